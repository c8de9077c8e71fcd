//! `_shardsvrCollModParticipant` and `_shardsvrDropIndexesParticipant`: the part of a shard in a
//! change that another one, or itself, coordinates.
//!
//! The shard runs the client's command, by the version that it has itself. One message about a
//! collection is worked on after the other, and each asks the coordinator first whether it is late:
//! so what is sent again finds what came before done, and what another run has done stays.
//!
//! The buckets of a time series are changed by the shard itself, behind gates that are closed.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, compare_documents, rawdoc};
use pinion_catalog::{CollMod, Collection, coll_mod, core_catalog, series_index_key};
use pinion_query::{TimeSeries, document_text, series_of};
use pinion_sharding_protocol::ddl::{OperationKind, ParticipantChange, named_indexes};
use pinion_sharding_protocol::{Form, ShardVersion, change_to};
use pinion_storage::storage;
use pinion_wire::idl::{Namespace, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::block::{check_run, turn_of};
use super::leadership::{Leadership, lead};
use super::perform::context;
use crate::limits::{CHANGE_AT_SHARD, STALE_ATTEMPTS};
use crate::local::LocalClient;
use crate::part::{on_core_0, part};
use crate::shard::{membership, refresh_collection, shard_version};

/// `_shardsvrCollModParticipant: <collection>, collectionUUID, command, timeseriesFields?, check,
/// reason, phase, run, from`, and the same for `dropIndexes`. The reply is that of the command; of
/// a check of `dropIndexes` it is `missing`: the places of the indexes that the shard does not
/// have.
pub(crate) async fn change_participant(cmd: Invocation) -> Result<Reply> {
    membership(&part())?;
    let reader = cmd.reader()?;
    let ns = reader.namespace(cmd.name(), cmd.db())?;
    let asked = ParticipantChange::parse(cmd.body())?;
    reader.ignore(ParticipantChange::fields());
    reader.finish()?;
    let done = on_core_0(&cmd.ctx, move || change(ns, asked)).await?;
    let mut out = Reply::new();
    out.append_all(&done);
    let written = Some(storage().last_allotted());
    pinion_exec::commands::acknowledge(&cmd.ctx, written, &mut out).await?;
    Ok(out)
}

async fn change(ns: Namespace, asked: ParticipantChange) -> Result<RawDocumentBuf> {
    let leadership = lead().await?;
    let work = async {
        let _turn = turn_of(&leadership, &ns).await;
        check_run(&asked.reason, &asked.phase, asked.run, &asked.from).await?;
        let catalog = core_catalog();
        let found = catalog.get(&ns);
        let found = found.filter(|found| found.uuid.0 == asked.uuid.bytes());
        if let Some(series) = asked.series.as_ref().filter(|_| !asked.is_check) {
            return change_buckets(&leadership, &ns, found.as_deref(), series).await;
        }
        let Some(found) = found else {
            return Err(Error::new(
                ErrorCode::NAMESPACE_NOT_FOUND,
                format!("this shard does not have the collection {ns} of that UUID"),
            ));
        };
        match (asked.reason.kind, asked.is_check) {
            (OperationKind::DropIndexes, true) => Ok(missing_reply(&found, &asked.command)),
            (OperationKind::DropIndexes, false) => match remaining(&found, &asked.command) {
                Some(command) => run_by_version(&ns, &command).await,
                // What came before has dropped them.
                None => Ok(rawdoc! { "nIndexesWas": found.index_count() as i32 }),
            },
            (_, true) => {
                if let Some(series) = &asked.series {
                    check_buckets(&ns, &found, series)?;
                }
                check_coll_mod(&ns, &found, &asked.command).await
            }
            (_, false) => run_by_version(&ns, &asked.command).await,
        }
    };
    leadership.unless_over(work).await?
}

fn is_missing(collection: &Collection, index: RawBsonRef<'_>) -> bool {
    let specs = collection.index_specs();
    match index {
        RawBsonRef::String("_id_") => false,
        RawBsonRef::String(name) => specs.iter().all(|spec| spec.name != name),
        RawBsonRef::Document(key) => {
            let is_id = compare_documents(key, &rawdoc! { "_id": 1 }).is_eq();
            let series = collection.options.time_series.as_ref();
            // One that no index can have is missing too.
            let of_buckets = series.map(|series| series_index_key(series, key));
            let key = match &of_buckets {
                Some(Ok(of_buckets)) => of_buckets,
                _ => key,
            };
            !is_id
                && specs
                    .iter()
                    .all(|spec| compare_documents(key, &spec.key).is_ne())
        }
        // The command refuses it.
        _ => false,
    }
}

/// The places of the indexes that are not here.
fn missing_reply(collection: &Collection, command: &RawDocument) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.start_array("missing");
    for (at, index) in named_indexes(command).into_iter().enumerate() {
        if is_missing(collection, index) {
            out.push(at as i32);
        }
    }
    out.end();
    out.finish()
}

/// `dropIndexes` of those that are here; `None` where none is.
fn remaining(collection: &Collection, command: &RawDocument) -> Option<RawDocumentBuf> {
    let named = named_indexes(command);
    let mut left = named.clone();
    left.retain(|index| !is_missing(collection, *index));
    if left.len() == named.len() {
        return Some(command.to_owned());
    }
    if left.is_empty() {
        return None;
    }
    let mut out = DocBuilder::new();
    for (name, value) in pinion_bson::elements(command) {
        if name != "index" {
            out.append_raw(name, value);
        }
    }
    out.start_array("index");
    for index in left {
        out.push(index);
    }
    out.end();
    Some(out.finish())
}

/// Refuses buckets that those of this shard cannot become. While an index is built, no options are
/// changed.
fn check_buckets(ns: &Namespace, collection: &Collection, to: &TimeSeries) -> Result<()> {
    let invalid = |why: &str| {
        Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!("the options of {ns} on this shard cannot be changed: {why}"),
        )
    };
    let Some(series) = &collection.options.time_series else {
        return Err(invalid("it has no buckets of a time series"));
    };
    let changed = series.changed(change_to(to)).map_err(invalid)?;
    if changed.as_ref().unwrap_or(series) != to {
        return Err(invalid("they are those of another time series"));
    }
    match collection.builds().is_empty() {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::BACKGROUND_OPERATION_IN_PROGRESS_FOR_NAMESPACE,
            format!(
                "cannot perform operation: an index build is currently running for collection {ns}"
            ),
        )),
    }
}

/// Has this shard make such buckets from now on, where it has the collection.
async fn change_buckets(
    leadership: &Leadership,
    ns: &Namespace,
    collection: Option<&Collection>,
    to: &TimeSeries,
) -> Result<RawDocumentBuf> {
    let is_other = |found: &Collection| found.options.time_series.as_ref() != Some(to);
    if collection.is_some_and(is_other) {
        let ctx = context(leadership, ns);
        let change = CollMod {
            command: command_for(ns, to),
            time_series: Some(change_to(to)),
            ..CollMod::default()
        };
        coll_mod(&ctx, ns.clone(), change).await?;
    }
    Ok(RawDocumentBuf::new())
}

/// The change as a client asks for it, for the log.
fn command_for(buckets: &Namespace, to: &TimeSeries) -> RawDocumentBuf {
    let series = series_of(buckets);
    let mut out = DocBuilder::new();
    out.append("collMod", series.as_ref().unwrap_or(buckets).collection());
    out.start_document("timeseries");
    match (to.granularity, to.rounding_secs) {
        (Some(granularity), _) => {
            out.append("granularity", granularity.name());
        }
        (None, rounding) => {
            out.append("bucketMaxSpanSeconds", to.max_span_secs).append(
                "bucketRoundingSeconds",
                rounding.unwrap_or(to.max_span_secs),
            );
        }
    }
    out.end();
    out.finish()
}

/// Refuses what only this shard can know to be impossible: an index that it does not have, and
/// documents that are in the way of a unique one.
async fn check_coll_mod(
    ns: &Namespace,
    collection: &Collection,
    command: &RawDocument,
) -> Result<RawDocumentBuf> {
    let Some(RawBsonRef::Document(index)) = pinion_bson::get(command, "index") else {
        return Ok(RawDocumentBuf::new());
    };
    for field in ["name", "keyPattern"] {
        let named = pinion_bson::get(index, field);
        let Some(named) = named.filter(|named| is_missing(collection, *named)) else {
            continue;
        };
        let shown = match named {
            RawBsonRef::Document(key) => document_text(key),
            name => name.as_str().unwrap_or_default().to_owned(),
        };
        return Err(Error::new(
            ErrorCode::INDEX_NOT_FOUND,
            format!("cannot find index {shown} for ns {ns}"),
        ));
    }
    if !pinion_bson::get(index, "unique").is_some_and(truthy) {
        return Ok(RawDocumentBuf::new());
    }
    let mut out = DocBuilder::new();
    for (name, value) in pinion_bson::elements(command) {
        if name != "dryRun" {
            out.append_raw(name, value);
        }
    }
    out.append("dryRun", true);
    run_by_version(ns, &out.finish()).await
}

/// Runs a command as one that carries this shard's version of the collection.
async fn run_by_version(ns: &Namespace, command: &RawDocument) -> Result<RawDocumentBuf> {
    let client = LocalClient::new()?;
    let mut failed = None;
    for _ in 0..STALE_ATTEMPTS {
        if let Some(version @ ShardVersion::Placed(_)) = shard_version(&part(), ns)? {
            let mut out = DocBuilder::new();
            out.append_all(command);
            version.append_to(&mut out, "shardVersion", Form::Own);
            out.append("$db", ns.db());
            match client.run_within(&out.finish(), CHANGE_AT_SHARD).await {
                Ok(reply) => return Ok(without_times(reply.body())),
                Err(error) if error.code == ErrorCode::STALE_CONFIG => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        refresh_collection(ns, |_| false).await?;
    }
    Err(failed.unwrap_or_else(|| {
        Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!("the collection {ns} is not sharded on this shard any more"),
        )
    }))
}

/// A reply without what the node adds to each.
fn without_times(reply: &RawDocument) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for (name, value) in pinion_bson::elements(reply) {
        if !matches!(name, "ok" | "operationTime") && !name.starts_with('$') {
            out.append_raw(name, value);
        }
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use pinion_query::Granularity;

    use super::*;

    #[test]
    fn commands_of_the_log() {
        let buckets = Namespace::parse_sought("d.system.buckets.s").expect("a namespace");
        let series = |granularity, rounding_secs, max_span_secs| TimeSeries {
            time_field: "t".into(),
            meta_field: None,
            granularity,
            rounding_secs,
            max_span_secs,
        };
        let hours = Granularity::Hours;
        assert_eq!(
            command_for(&buckets, &series(Some(hours), None, hours.max_span_secs())),
            rawdoc! { "collMod": "s", "timeseries": { "granularity": "hours" } }
        );
        assert_eq!(
            command_for(&buckets, &series(None, Some(7200), 7200)),
            rawdoc! { "collMod": "s", "timeseries": {
                "bucketMaxSpanSeconds": 7200, "bucketRoundingSeconds": 7200,
            } }
        );
    }

    #[test]
    fn replies() {
        let reply = rawdoc! { "nIndexesWas": 3, "ok": 1.0, "operationTime": 1, "$clusterTime": {} };
        assert_eq!(without_times(&reply), rawdoc! { "nIndexesWas": 3 });
    }
}
