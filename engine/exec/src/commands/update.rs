//! `update`.

use std::sync::Arc;

use pinion_bson::{RawArray, RawBsonRef, RawDocument};
use pinion_collation::Collation;
use pinion_query::{Hint, Matcher, Pipeline, Update, Variables};
use pinion_service::command_checks::check_batch_size;
use pinion_service::compute::compute;
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_wire::idl::{CommandReader, FieldReader, Namespace, Path, Types};
use pinion_wire::{Error, ErrorCode, Invocation, LogicalOp, OpContext, Reply, Result};

use super::collation::CollationOption;
use super::reply::acknowledged;
use super::variables::{variables_of_write, with_constants};
use crate::acquire::acquire_statement;
use crate::concern::{self, WriteKind};
use crate::open_transactions::ends_command;
use crate::profile::ProfiledStatement;
use crate::read::parse_hint;
use crate::sessions;
use crate::statements::StatementIds;
use crate::write::{
    BatchOutcome, Change, ModifyOutcome, ModifyStatement, Upserted, Validation, parse_and_run,
    sort_beside,
};

/// One update statement, syntax alone.
pub(super) struct UpdateSpec<'d> {
    pub q: &'d RawDocument,
    pub u: RawBsonRef<'d>,
    pub multi: bool,
    pub upsert: bool,
    pub hint: Option<Hint>,
    pub sort: Option<&'d RawDocument>,
    array_filters: Option<&'d RawArray>,
    /// Constants that a pipeline may refer to.
    constants: Option<&'d RawDocument>,
    collation: CollationOption,
}

/// What a command calls the parts of its statements that others call differently.
pub(super) struct UpdateNames {
    pub filter: &'static str,
    pub update: &'static str,
    pub constants: &'static str,
}

const NAMES: UpdateNames = UpdateNames {
    filter: "q",
    update: "u",
    constants: "c",
};

/// Reads one element of `updates`.
pub(super) fn parse_update<'d>(
    path: Path<'_>,
    document: &'d RawDocument,
) -> Result<UpdateSpec<'d>> {
    let reader = FieldReader::object(path, document)?;
    reader.only(&[
        "q",
        "u",
        "multi",
        "upsert",
        "hint",
        "sort",
        "arrayFilters",
        "c",
        "collation",
        "upsertSupplied",
        "allowShardKeyUpdatesWithoutFullShardKeyInQuery",
        "sampleId",
    ])?;
    let of_router = "allowShardKeyUpdatesWithoutFullShardKeyInQuery";
    reader.unsupported_unless_empty(of_router, Types::BOOL)?;
    read_update(&reader, &NAMES)
}

/// Reads an update statement, whose fields are known to be ones that it may have.
pub(super) fn read_update<'d>(
    reader: &FieldReader<'d, '_>,
    names: &UpdateNames,
) -> Result<UpdateSpec<'d>> {
    let q = reader.doc(names.filter)?;
    let u = reader
        .value(names.update)
        .ok_or_else(|| pinion_wire::idl::missing_field(reader.path().field(names.update)))?;
    check_modification(u)?;
    let multi = reader.opt_bool("multi")?.unwrap_or(false);
    let upsert = reader.opt_bool("upsert")?.unwrap_or(false);
    let hint = parse_hint(reader.value("hint"))?;
    let sort = reader.opt_doc("sort")?;
    let array_filters = array_filters(reader)?;
    let constants = reader.opt_doc(names.constants)?;
    let collation = CollationOption::read(reader)?;
    reader.unsupported_unless_empty("upsertSupplied", Types::BOOL)?;
    reader.unsupported("sampleId", Types::BIN_DATA)?;
    if multi && sort.is_some() {
        return Err(Error::failed_to_parse(
            "Cannot specify sort with multi=true",
        ));
    }
    Ok(UpdateSpec {
        q,
        u,
        multi,
        upsert,
        hint,
        sort,
        array_filters,
        constants,
        collation,
    })
}

/// Reads `arrayFilters`, an array of documents.
pub(super) fn array_filters<'d>(reader: &FieldReader<'d, '_>) -> Result<Option<&'d RawArray>> {
    for document in reader.opt_objects("arrayFilters")?.into_iter().flatten() {
        document?;
    }
    reader.opt_array("arrayFilters")
}

/// Refuses what is neither a document nor a list of stages. It is part of reading the command, so
/// that the whole command fails and not the statement alone.
pub(super) fn check_modification(update: RawBsonRef<'_>) -> Result<()> {
    match update {
        RawBsonRef::Document(_) => Ok(()),
        RawBsonRef::Array(stages) => {
            if pinion_bson::values(stages).all(|stage| matches!(stage, RawBsonRef::Document(_))) {
                Ok(())
            } else {
                Err(Error::type_mismatch(
                    "Each element of the 'pipeline' array must be an object",
                ))
            }
        }
        _ => Err(Error::failed_to_parse(
            "Update argument must be either an object or an array",
        )),
    }
}

impl UpdateSpec<'_> {
    /// Parses filter and update.
    pub(super) fn statement(
        &self,
        vars: &Variables,
        default: Option<&Arc<Collation>>,
        options: UpdateOptions,
    ) -> Result<ModifyStatement> {
        let vars = &self.collation.variables(vars, default);
        if self.multi && Update::is_replacement_document(self.u) {
            return Err(Error::failed_to_parse(
                "multi update is not supported for replacement-style update",
            ));
        }
        let is_pipeline = matches!(self.u, RawBsonRef::Array(_));
        // The update is parsed before the filter: where both are wrong, MongoDB reports the update.
        let update = match self.constants {
            Some(_) if !is_pipeline => {
                return Err(Error::new(
                    ErrorCode(51198),
                    "Constant values may only be specified for pipeline updates",
                ));
            }
            Some(constants) => {
                let vars = with_constants(vars, constants);
                Update::parse_with(self.u, self.array_filters, &vars)?
            }
            None => Update::parse_with(self.u, self.array_filters, vars)?,
        };
        let update = update.keeping_empty_timestamps(options.keep_empty_timestamps);
        let matcher = Matcher::parse_query(self.q, vars)?;
        let sort = sort_beside(&matcher, self.q, self.sort)?;
        Ok(ModifyStatement {
            multi: self.multi,
            upsert: self.upsert,
            hint: self.hint.clone(),
            sort,
            validation: options.validation,
            ..ModifyStatement::plain(matcher, self.q.to_owned(), Change::Update(update))
        })
    }
}

/// Options that `update` and `delete` share.
pub(super) struct BatchOptions {
    pub ns: Namespace,
    pub uuid: Option<[u8; 16]>,
    pub ordered: bool,
    pub ids: StatementIds,
    pub vars: Variables,
    pub update: UpdateOptions,
}

/// Options of all updates of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateOptions {
    pub validation: Validation,
    pub keep_empty_timestamps: bool,
}

/// Reads the options beside the statements.
pub(super) async fn batch_options(
    cmd: &Invocation,
    command: &str,
    statements: &str,
) -> Result<BatchOptions> {
    read_options(&cmd.ctx, &cmd.reader()?, cmd.db(), command, statements).await
}

/// Reads the options of a command, or of one that is explained.
pub(super) async fn read_options(
    ctx: &OpContext,
    reader: &CommandReader<'_>,
    db: &str,
    command: &str,
    statements: &str,
) -> Result<BatchOptions> {
    let ns = reader.namespace(command, db)?;
    let ordered = reader.opt_bool("ordered")?.unwrap_or(true);
    let validation = Validation::unless(reader.opt_safe_bool("bypassDocumentValidation")?);
    let keep_empty_timestamps = command == "update"
        && reader
            .opt_safe_bool("bypassEmptyTsReplacement")?
            .unwrap_or(false);
    let ids = StatementIds::read(reader)?;
    let vars = variables_of_write(ctx, reader.opt_doc("let")?).await?;
    for option in ["legacyRuntimeConstants", "encryptionInformation"] {
        reader.unsupported(option, Types::OBJECT)?;
    }
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.ignore(&[statements]);
    reader.finish()?;
    Ok(BatchOptions {
        ns,
        uuid,
        ordered,
        ids,
        vars,
        update: UpdateOptions {
            validation,
            keep_empty_timestamps,
        },
    })
}

/// `update`.
pub(crate) async fn update(cmd: Invocation) -> Result<Reply> {
    let options = batch_options(&cmd, "update", "updates").await?;
    let documents = cmd.documents("updates")?;
    check_batch_size(&documents)?;
    let root = Path::root("update");
    let path = root.field("updates");
    let mut specs = Vec::with_capacity(documents.len());
    for (index, document) in documents.iter().enumerate() {
        pinion_runtime::yield_if_due().await;
        let spec = parse_update(path.index(index), document)?;
        // What is no stage at all is reported before any statement runs.
        if let RawBsonRef::Array(stages) = spec.u {
            compute(&cmd.ctx, || Pipeline::check_form(stages)).await?;
        }
        specs.push(spec);
    }
    let retryable = sessions::begin(&cmd.ctx, options.ids, specs.len()).await?;
    let mut outcome = BatchOutcome::default();
    let metrics = metrics();
    let counters = &metrics.counters;
    for (index, spec) in specs.iter().enumerate() {
        pinion_runtime::yield_if_due().await;
        let retryable = retryable.as_deref();
        if outcome.was_executed(index, retryable)? {
            continue;
        }
        let stamp = retryable.and_then(|retryable| retryable.stamp(&options.ns, [index], None));
        counters.update.inc();
        concern::count_writes(&cmd.ctx, WriteKind::Update, 1).await;
        let mut done = ModifyOutcome::default();
        let profiled = ProfiledStatement::begin(
            &cmd.ctx,
            LogicalOp::Update,
            &options.ns,
            documents.get(index),
        );
        let ctx = profiled.as_ref().map_or(&cmd.ctx, ProfiledStatement::ctx);
        let is_retryable = stamp.is_some();
        let parse = |default: Option<&Arc<Collation>>| {
            check_retryable(spec.multi && is_retryable, "multi=true")?;
            spec.statement(&options.vars, default, options.update)
        };
        let result = match acquire_statement(ctx, &options.ns, options.uuid, index).await? {
            Ok(acquired) => {
                let at = (index, stamp);
                parse_and_run(ctx, acquired, parse, at, retryable, &mut done).await
            }
            Err(stale) => Err(stale),
        };
        if let Some(profiled) = profiled {
            Box::pin(profiled.end(&cmd.ctx, result.as_ref().err())).await;
        }
        counters.documents_updated.add(done.modified as u64);
        if let Some(ts) = done.last {
            outcome.wrote(ts);
        }
        if result.is_ok() {
            // A statement that failed half way counts nothing, though what it wrote stays written.
            outcome.n += done.matched;
            outcome.modified += done.modified;
        }
        if let Some(id) = done.upserted {
            outcome.n += 1;
            outcome.upserted.push(Upserted { index, id });
        }
        if let Err(error) = result {
            if ends_command(&cmd.ctx, &error) {
                return Err(error);
            }
            outcome.failed(index, error);
            if options.ordered || is_in(&cmd.ctx) {
                break;
            }
        }
    }
    if let Some(retryable) = retryable {
        outcome.retried = retryable.take_retried();
        retryable.end();
    }
    acknowledged(&cmd.ctx, &outcome, true).await
}

/// Refuses what changes several documents as one statement: how far it came would be unknown.
pub(super) fn check_retryable(is_refused: bool, option: &str) -> Result<()> {
    if !is_refused {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::INVALID_OPTIONS,
        format!("Cannot use (or request) retryable writes with {option}"),
    ))
}
