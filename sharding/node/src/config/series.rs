//! The buckets of time series: `timeseriesFields` of `config.collections`.

use pinion_bson::{Binary, RawBsonRef, Uuid, rawdoc};
use pinion_sharding_protocol::config::{SeriesChange, SeriesChangeStep};
use pinion_sharding_protocol::ddl::DdlId;
use pinion_sharding_protocol::documents::ChunkDocument;
use pinion_wire::idl::Path;
use pinion_wire::{Error, ErrorCode, Result};

use super::changelog::note;
use super::collections::collection;
use super::migrations::newest_chunk;
use super::shards::known_shards;
use crate::ddl::{is_of_run, stored_on};
use crate::local::{LocalClient, wait_majority};
use crate::part::part;

/// Gives a series other buckets, and each of its shards a higher version, unless an earlier attempt
/// has. Called on core 0.
///
/// # Errors
/// `ConflictingOperationInProgress` for a message that is late; as of [`SeriesChange::decide`];
/// those of a write.
pub(super) async fn change(change: &SeriesChange, from: &str) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    check_not_late(&client, change).await?;
    let found = collection(&client, &change.ns).await?;
    let newest = newest_of_shards(&client, change.uuid).await?;
    match change.decide(found.as_ref(), &newest)? {
        // Another attempt may have written it, and not have come to its end.
        SeriesChangeStep::Done => wait_majority().await,
        SeriesChangeStep::Write(commands) => {
            client.run_together(&commands).await?;
            let details = rawdoc! { "timeseriesFields": change.to.to_document() };
            note(&client, from, "collMod", change.ns.as_str(), details).await;
            Ok(())
        }
    }
}

/// A later definition may make the series what this one has found, and this message come then.
async fn check_not_late(client: &LocalClient, change: &SeriesChange) -> Result<()> {
    let reason = DdlId::parse(Path::root("reason"), &change.reason)?;
    let shards = known_shards(client).await?;
    let found = stored_on(&shards, &reason, &change.from).await?;
    match found.is_some_and(|found| is_of_run(&found, &change.phase, change.run)) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!(
                "a message of the phase {} of a run of {reason} is late",
                change.phase
            ),
        )),
    }
}

/// The chunk of each shard that has its version.
async fn newest_of_shards(client: &LocalClient, uuid: Uuid) -> Result<Vec<ChunkDocument>> {
    let distinct = rawdoc! {
        "distinct": "chunks", "key": "shard", "query": { "uuid": Binary::from(uuid) },
        "readConcern": { "level": "local" }, "$db": "config",
    };
    let reply = client.run(&distinct).await?;
    let Some(RawBsonRef::Array(shards)) = pinion_bson::get(reply.body(), "values") else {
        return Err(Error::failed_to_parse("the reply has no values"));
    };
    let mut newest = Vec::new();
    for shard in pinion_bson::values(shards).filter_map(|shard| shard.as_str()) {
        let filter = rawdoc! { "uuid": Binary::from(uuid), "shard": shard };
        newest.extend(newest_chunk(client, filter).await?);
    }
    Ok(newest)
}
