//! `collMod`.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{Capped, CollMod, IndexChange, IndexName, Modified};
use pinion_command::syntax::time_series_change;
use pinion_wire::idl::{CommandReader, Namespace};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::acknowledge;
use super::create::{
    check_expire_after, check_validator, check_view_on, check_view_pipeline, read_pipeline,
    validation_action, validation_level,
};

/// The greatest time after which documents expire by an index.
const MAX_INDEX_EXPIRY_SECS: i64 = i32::MAX as i64;

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

/// `collMod`.
pub async fn coll_mod(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.sought("collMod", cmd.db())?;
    let change = read(&reader)?;
    reader.finish()?;
    check(&cmd.ctx, &ns, &change).await?;
    let modified = pinion_catalog::coll_mod(&cmd.ctx, ns, change).await?;
    let mut out = Reply::new();
    append_index(&mut out, &modified);
    acknowledge(&cmd.ctx, modified.ts, &mut out).await?;
    Ok(out)
}

fn append_index(out: &mut Reply, modified: &Modified) {
    for property in &modified.index {
        if let Some(old) = &property.old {
            out.append_raw(&format!("{}_old", property.name), old.as_raw_bson_ref());
        }
        let new = property.new.as_raw_bson_ref();
        out.append_raw(&format!("{}_new", property.name), new);
    }
}

fn read(reader: &CommandReader<'_>) -> Result<CollMod> {
    let owned = |document: Option<&RawDocument>| document.map(RawDocument::to_owned);
    let images = match reader.opt_object("changeStreamPreAndPostImages")? {
        Some(images) => {
            images.only(&["enabled"])?;
            Some(images.bool("enabled")?)
        }
        None => None,
    };
    let time_series = match reader.opt_object("timeseries")? {
        Some(series) => {
            series.only(&[
                "granularity",
                "bucketRoundingSeconds",
                "bucketMaxSpanSeconds",
            ])?;
            Some(time_series_change(&series)?)
        }
        None => None,
    };
    let capped_max = match reader.opt_i64("cappedMax")? {
        Some(max) => Some(Capped::max_of(max).map_err(Error::bad_value)?),
        None => None,
    };
    Ok(CollMod {
        command: command(reader),
        index: read_index(reader)?,
        dry_run: reader.opt_safe_bool("dryRun")?.unwrap_or(false),
        validator: owned(reader.opt_doc("validator")?),
        validation_level: validation_level(reader)?,
        validation_action: validation_action(reader)?,
        view_on: reader.opt_str("viewOn")?.map(str::to_owned),
        pipeline: read_pipeline(reader)?,
        pre_and_post_images: images,
        time_series,
        capped_size: reader.opt_between("cappedSize", 1, Capped::MAX_SIZE_BYTES)?,
        capped_max,
        expire_after_secs: read_expiry(reader)?,
    })
}

/// The command as the oplog has it: without what belongs to its sender.
fn command(reader: &CommandReader<'_>) -> pinion_bson::RawDocumentBuf {
    let mut out = pinion_bson::DocBuilder::new();
    for (name, value) in reader.iter() {
        if !pinion_wire::idl::is_generic_argument(name) {
            out.append_raw(name, value);
        }
    }
    out.finish()
}

fn read_index(reader: &CommandReader<'_>) -> Result<Option<IndexChange>> {
    let Some(index) = reader.opt_object("index")? else {
        return Ok(None);
    };
    index.only(&[
        "name",
        "keyPattern",
        "expireAfterSeconds",
        "hidden",
        "unique",
        "prepareUnique",
    ])?;
    let which = match (index.opt_str("name")?, index.opt_doc("keyPattern")?) {
        (Some(name), None) => IndexName::Name(name.to_owned()),
        (None, Some(key)) => IndexName::Key(key.to_owned()),
        (Some(_), Some(_)) => return Err(invalid("Cannot specify both key pattern and name.")),
        (None, None) => return Err(invalid("Must specify either index name or key pattern.")),
    };
    let change = IndexChange {
        which,
        expire_after_secs: index.opt_i64("expireAfterSeconds")?,
        hidden: index.opt_safe_bool("hidden")?,
        unique: index.opt_safe_bool("unique")?,
        prepare_unique: index.opt_safe_bool("prepareUnique")?,
    };
    let asks = change.expire_after_secs.is_some() || change.hidden.is_some();
    if !asks && change.unique.is_none() && change.prepare_unique.is_none() {
        return Err(invalid(
            "no expireAfterSeconds, hidden, unique, or prepareUnique field",
        ));
    }
    if change.unique == Some(true) && change.prepare_unique == Some(true) {
        return Err(invalid(
            "collMod does not support 'unique' and 'prepareUnique' in the same command",
        ));
    }
    if let Some(secs) = change.expire_after_secs
        && !(0..=MAX_INDEX_EXPIRY_SECS).contains(&secs)
    {
        return Err(invalid(format!(
            "TTL index 'expireAfterSeconds' option must be within an acceptable range of 0 to {MAX_INDEX_EXPIRY_SECS}, but is {secs}"
        )));
    }
    Ok(Some(change))
}

/// A number of seconds, or that there is none.
fn read_expiry(reader: &CommandReader<'_>) -> Result<Option<Option<i64>>> {
    match reader.value("expireAfterSeconds") {
        Some(RawBsonRef::String("off")) => Ok(Some(None)),
        Some(RawBsonRef::String(other)) => Err(invalid(format!(
            "Invalid string value for the 'clusteredIndex::expireAfterSeconds' option. Got: '{other}'. Accepted value is 'off'"
        ))),
        _ => match reader.opt_i64("expireAfterSeconds")? {
            Some(secs) => {
                check_expire_after(secs)?;
                Ok(Some(Some(secs)))
            }
            None => Ok(None),
        },
    }
}

/// What can be found wrong without the catalog.
async fn check(ctx: &OpContext, ns: &Namespace, change: &CollMod) -> Result<()> {
    let asks_for_conversion = || {
        let index = change.index.as_ref();
        index.is_some_and(|index| index.unique.is_some())
    };
    if change.dry_run && !asks_for_conversion() {
        return Err(invalid(
            "collMod dry run mode is only supported for unique index conversion",
        ));
    }
    if let Some(validator) = &change.validator {
        check_validator(ctx, ns, validator).await?;
    }
    if let Some(on) = &change.view_on {
        check_view_on(ns, on)?;
    }
    if let Some(pipeline) = &change.pipeline {
        check_view_pipeline(ctx, ns, pipeline).await?;
    }
    Ok(())
}
