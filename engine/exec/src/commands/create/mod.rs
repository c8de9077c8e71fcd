//! `create`: a collection, a view or a time series, with its options.

mod clustered;
mod encrypted;
mod engine_options;
mod time_series;
mod validation;
mod view;

pub(super) use engine_options::refuse_configuration;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{Capped, CollectionKind, CollectionOptions, core_catalog};
use pinion_command::syntax::TimeSeriesSpec;
use pinion_query::parse_collation;
use pinion_service::compute::compute;
use pinion_wire::idl::{CommandReader, FieldReader, Namespace, Types};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

pub use pinion_command::syntax::time_series_option;
pub(super) use validation::{
    action as validation_action, check_validator, level as validation_level,
};
pub(super) use view::{
    check_on as check_view_on, check_pipeline as check_view_pipeline, read_pipeline,
};

use super::acknowledge;
use crate::open_transactions::Running;

/// Options that MongoDB has and this node does not.
/// The options as they are written, in the types that they must have.
struct Written<'d> {
    capped: bool,
    size: Option<i64>,
    max: Option<i64>,
    id_index: Option<&'d RawDocument>,
    view_on: Option<&'d str>,
    pipeline: Option<pinion_bson::RawArrayBuf>,
    clustered: Option<clustered::Written>,
    time_series: Option<TimeSeriesSpec>,
    has_encrypted_fields: bool,
    options: CollectionOptions,
}

/// `create`.
pub async fn create(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.namespace("create", cmd.db())?;
    let auto_index_id = reader.opt_safe_bool("autoIndexId")?;
    let written = read(&reader)?;
    reader.finish()?;
    if auto_index_id == Some(false) {
        return Err(without_id_index(&ns));
    }
    let options = options(&cmd.ctx, &reader, &ns, written).await?;
    let created = match crate::open_transactions::of(&cmd.ctx) {
        Some(running) => {
            create_in(&running, &cmd.ctx, ns, options).await?;
            None
        }
        None => pinion_catalog::create_collection(&cmd.ctx, ns, options).await?,
    };
    let mut out = Reply::new();
    if auto_index_id.is_some() {
        out.append(
            "note",
            "The autoIndexId option is deprecated and will be removed in a future release",
        );
    }
    acknowledge(&cmd.ctx, created, &mut out).await?;
    Ok(out)
}

/// Makes a collection in a transaction.
///
/// # Errors
/// `NamespaceExists`, also where it has the same options; `OperationNotSupportedInTransaction` of
/// anything but a collection.
async fn create_in(
    running: &Running,
    ctx: &OpContext,
    ns: Namespace,
    options: CollectionOptions,
) -> Result<()> {
    if options.kind() != CollectionKind::Collection {
        return Err(Error::new(
            ErrorCode::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Cannot create a view or a time-series collection in a multi-document transaction.",
        ));
    }
    let is_there = running.planned(&ns).is_some() || core_catalog().get(&ns).is_some();
    if is_there || !running.plan(ctx, &ns, options).await? {
        return Err(Error::new(
            ErrorCode::NAMESPACE_EXISTS,
            format!("Collection {ns} already exists."),
        ));
    }
    Ok(())
}

/// MongoDB makes collections without an index on `_id` in `local` alone, and this node nowhere.
fn without_id_index(ns: &Namespace) -> Error {
    if ns.db() == "local" {
        return Error::new(
            ErrorCode::NOT_IMPLEMENTED,
            "BSON field 'create.autoIndexId' is not supported by this server",
        );
    }
    Error::new(
        ErrorCode(50_001),
        format!(
            "autoIndexId:false is not allowed for collection {ns} because it can be replicated"
        ),
    )
}

fn read<'d>(reader: &CommandReader<'d>) -> Result<Written<'d>> {
    let mut options = CollectionOptions::default();
    let capped = reader.opt_safe_bool("capped")?.unwrap_or(false);
    let (size, max) = (reader.opt_i64("size")?, reader.opt_i64("max")?);
    let id_index = reader.opt_doc("idIndex")?;
    options.storage_engine = engine_options::read(reader, "storageEngine")?;
    options.index_storage_engine = engine_options::read_index_defaults(reader)?;
    let validator = reader.opt_doc("validator")?;
    options.validator = validator
        .filter(|validator| !validator.is_empty())
        .map(RawDocument::to_owned);
    options.validation_level = validation::level(reader)?;
    options.validation_action = validation::action(reader)?;
    let view_on = reader.opt_str("viewOn")?;
    let pipeline = view::read_pipeline(reader)?;
    let collation = reader.opt_doc("collation")?;
    options.collation = match collation {
        Some(collation) => parse_collation(collation)?.map(|collation| collation.document()),
        None => None,
    };
    if let Some(images) = reader.opt_object("changeStreamPreAndPostImages")? {
        images.only(&["enabled"])?;
        options.pre_and_post_images = images.bool("enabled")?;
    }
    options.temporary = reader.opt_bool("temp")?.unwrap_or(false);
    let time_series = TimeSeriesSpec::read(reader)?;
    let clustered = clustered::read(reader)?;
    options.expire_after_secs = reader.opt_i64("expireAfterSeconds")?;
    let has_encrypted_fields = match reader.opt_object("encryptedFields")? {
        Some(fields) => encrypted::check(&fields).map(|()| true)?,
        None => false,
    };
    reader.unsupported_unless_empty("recordIdsReplicated", Types::BOOL)?;
    // An option of storage engines past; it has no effect in MongoDB either.
    reader.ignore(&["flags"]);
    Ok(Written {
        capped,
        size,
        max,
        id_index,
        view_on,
        pipeline,
        clustered,
        time_series,
        has_encrypted_fields,
        options,
    })
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

/// The options in their final form, once they have been found to go together.
async fn options(
    ctx: &OpContext,
    reader: &FieldReader<'_, '_>,
    ns: &Namespace,
    written: Written<'_>,
) -> Result<CollectionOptions> {
    check_companions(reader, ns, &written)?;
    let mut options = written.options;
    if let Some(clustered) = written.clustered {
        options.clustered = clustered.resolve()?;
    }
    options.capped = capped(written.capped, written.size, written.max)?;
    if let Some(series) = written.time_series {
        options.time_series = Some(series.resolve(ns)?);
    }
    check_expiry(&options)?;
    if let Some(view_on) = written.view_on {
        let view = view::definition(ctx, ns, view_on, written.pipeline).await?;
        return view_options(options, view);
    }
    if let Some(validator) = &options.validator {
        check_validator(ctx, ns, validator).await?;
    }
    if let Some(id_index) = written.id_index {
        let check = || pinion_catalog::check_id_index_spec(id_index, options.collation.as_deref());
        compute(ctx, check).await?;
    }
    Ok(options)
}

/// Refuses options that do not go with one another.
fn check_companions(
    reader: &FieldReader<'_, '_>,
    ns: &Namespace,
    written: &Written<'_>,
) -> Result<()> {
    let is_view = written.view_on.is_some();
    if written.id_index.is_some() {
        // These have no index on `_id`.
        let others = [
            ("viewOn", is_view),
            ("timeseries", written.time_series.is_some()),
            ("clusteredIndex", written.clustered.is_some()),
        ];
        if let Some((other, _)) = others.into_iter().find(|(_, is_given)| *is_given) {
            return Err(invalid(format!("'{other}' is not allowed with 'idIndex'")));
        }
    }
    if written.has_encrypted_fields {
        encrypted::check_companions(written.capped, is_view || written.time_series.is_some())?;
    }
    if written.time_series.is_some() {
        time_series::check_companions(reader, ns)?;
    }
    if let Some(clustered) = &written.clustered {
        clustered.check_companions(written.size, written.max, written.capped, is_view)?;
    }
    if written.pipeline.is_some() && !is_view {
        return Err(invalid("'pipeline' requires 'viewOn' to also be specified"));
    }
    Ok(())
}

fn capped(is_capped: bool, size: Option<i64>, max: Option<i64>) -> Result<Option<Capped>> {
    if !is_capped {
        // Zero asks for no bound.
        return match (size.unwrap_or(0), max.unwrap_or(0)) {
            (0, 0) => Ok(None),
            _ => Err(invalid(
                "the 'capped' field needs to be true when either the 'size' or 'max' fields are present",
            )),
        };
    }
    let size_bytes =
        size.ok_or_else(|| invalid("the 'size' field is required when 'capped' is true"))?;
    if size_bytes < 0 {
        return Err(Error::bad_value("size has to be >= 0"));
    }
    if size_bytes > Capped::MAX_SIZE_BYTES {
        return Err(Error::bad_value("size cannot exceed 1 PB"));
    }
    Ok(Some(Capped {
        size_bytes,
        max_documents: Capped::max_of(max.unwrap_or(0)).map_err(Error::bad_value)?,
    }))
}

/// Only documents with a time in their key can be too old.
fn check_expiry(options: &CollectionOptions) -> Result<()> {
    let Some(secs) = options.expire_after_secs else {
        return Ok(());
    };
    if options.clustered.is_none() && options.time_series.is_none() {
        return Err(invalid(
            "'expireAfterSeconds' is only supported on time-series collections or when the 'clusteredIndex' option is specified",
        ));
    }
    check_expire_after(secs)
}

/// Refuses what no document can be older than: the keys of what expires are dates since 1970, or
/// `ObjectId`s, whose times cannot be before that.
pub(super) fn check_expire_after(secs: i64) -> Result<()> {
    let since_1970_secs = pinion_runtime::wall_ms() / 1000;
    if secs < 0 {
        return Err(invalid(
            "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a higher number than 0",
        ));
    }
    if secs > since_1970_secs {
        return Err(invalid(format!(
            "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a lower number than {secs}"
        )));
    }
    Ok(())
}

/// A view keeps its definition and its collation, and is nothing that its documents would have to
/// be stored for.
fn view_options(
    options: CollectionOptions,
    view: pinion_catalog::ViewDefinition,
) -> Result<CollectionOptions> {
    let stored = [
        ("capped", options.capped.is_some()),
        ("changeStreamPreAndPostImages", options.pre_and_post_images),
        ("timeseries", options.time_series.is_some()),
        ("expireAfterSeconds", options.expire_after_secs.is_some()),
    ];
    if let Some((option, _)) = stored.into_iter().find(|(_, is_given)| *is_given) {
        return Err(invalid(format!("option not supported on a view: {option}")));
    }
    Ok(CollectionOptions {
        view: Some(view),
        collation: options.collation,
        ..CollectionOptions::default()
    })
}

/// Whether a value is a boolean or a number, which `safeBool` takes for one.
fn safe_bool(value: RawBsonRef<'_>) -> Option<bool> {
    let fits = pinion_wire::idl::is_number(value) || matches!(value, RawBsonRef::Boolean(_));
    fits.then(|| pinion_wire::idl::truthy(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        is_capped: bool,
        size: Option<i64>,
        max: Option<i64>,
        expected: std::result::Result<Option<(i64, Option<i64>)>, ErrorCode>,
    ) {
        let found = capped(is_capped, size, max)
            .map(|capped| capped.map(|capped| (capped.size_bytes, capped.max_documents)))
            .map_err(|error| error.code);
        assert_eq!(found, expected, "{is_capped} {size:?} {max:?}");
    }

    #[test]
    fn bounds_of_capped_collections() {
        check(false, None, None, Ok(None));
        check(false, Some(0), Some(0), Ok(None));
        check(false, Some(1), None, Err(ErrorCode::INVALID_OPTIONS));
        check(false, None, Some(1), Err(ErrorCode::INVALID_OPTIONS));
        check(true, None, Some(1), Err(ErrorCode::INVALID_OPTIONS));
        check(true, Some(-1), None, Err(ErrorCode::BAD_VALUE));
        check(true, Some(1 << 50), None, Ok(Some((1 << 50, None))));
        check(true, Some((1 << 50) + 1), None, Err(ErrorCode::BAD_VALUE));
        check(true, Some(5), Some(-5), Ok(Some((5, None))));
        check(true, Some(5), Some(7), Ok(Some((5, Some(7)))));
        check(true, Some(5), Some(1 << 31), Err(ErrorCode::BAD_VALUE));
    }
}
