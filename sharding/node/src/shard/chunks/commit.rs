//! Splits and merges that the config servers commit, and that this shard then goes by. One that
//! was committed although its reply was lost is a success.

use std::sync::Arc;

use pinion_bson::{ObjectId, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_sharding_protocol::balancer::in_turns;
use pinion_sharding_protocol::config::{MergeRequest, SplitRequest, epoch_changed};
use pinion_sharding_protocol::{ChunkRange, KeyBytes, RoutingTable};
use pinion_wire::Result;
use pinion_wire::idl::Namespace;

use super::super::collections::{Known, refresh_collection};
use super::super::databases::membership;
use crate::config_servers::change_config_within;
use crate::limits::CHUNKS_COMMIT;
use crate::part::{Part, part};

/// The incarnation of a collection that a request is for.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) ns: Namespace,
    pub(super) epoch: ObjectId,
    pub(super) timestamp: Option<Timestamp>,
}

impl Expected {
    fn table_in(&self, part: &Part) -> Option<Arc<RoutingTable>> {
        match part.collection(&self.ns) {
            Known::Table(table) if self.is_of(&table) => Some(table),
            _ => None,
        }
    }

    fn is_of(&self, table: &RoutingTable) -> bool {
        let is_same_time = (self.timestamp).is_none_or(|time| time == table.of.timestamp);
        table.of.epoch == self.epoch && is_same_time
    }

    /// The table that this shard goes by, learned if it is not known.
    ///
    /// # Errors
    /// `StaleEpoch`; those of a refresh.
    async fn table(&self) -> Result<Arc<RoutingTable>> {
        let part = part();
        if let Some(table) = self.table_in(&part) {
            return Ok(table);
        }
        let is_known = |part: &Part| self.table_in(part).is_some();
        refresh_collection(&self.ns, is_known).await?;
        self.table_in(&part).ok_or_else(|| epoch_changed(&self.ns))
    }

    /// Learns what was committed. Where the commit has failed, whether it was made all the same
    /// decides.
    async fn learn(
        &self,
        committed: Result<()>,
        is_made: impl Fn(&RoutingTable) -> bool,
    ) -> Result<()> {
        let refreshed = refresh_collection(&self.ns, |_| false).await;
        let Err(error) = committed else {
            return refreshed;
        };
        let table = self.table_in(&part());
        match refreshed.is_ok() && table.is_some_and(|table| is_made(&table)) {
            true => Ok(()),
            false => Err(error),
        }
    }
}

/// Splits a chunk at these points; more than one commit has are committed in turn. Called on core
/// 0.
///
/// # Errors
/// `StaleEpoch`; those of the config servers.
pub(super) async fn split(
    expected: &Expected,
    [min, max]: [&RawDocumentBuf; 2],
    points: &[RawDocumentBuf],
) -> Result<()> {
    let shard = membership(&part())?;
    let table = expected.table().await?;
    let key = &table.key;
    let chunk = ChunkRange {
        min: key.bound(min)?,
        max: key.bound(max)?,
    };
    let points: Vec<KeyBytes> = points
        .iter()
        .map(|point| key.bound(point))
        .collect::<Result<_>>()?;
    let committing = async {
        for turn in in_turns(&chunk, &points) {
            let request = SplitRequest {
                ns: expected.ns.clone(),
                epoch: expected.epoch,
                timestamp: expected.timestamp,
                min: key.document(&turn.chunk.min),
                max: key.document(&turn.chunk.max),
                points: turn
                    .points
                    .iter()
                    .map(|point| key.document(point))
                    .collect(),
                shard: shard.shard().clone(),
            };
            change_config_within(&shard, request.to_bson(), CHUNKS_COMMIT).await?;
        }
        Ok(())
    };
    let committed = committing.await;
    let is_bound = |table: &RoutingTable, key: &KeyBytes| table.chunk_of(key).range.min == *key;
    expected
        .learn(committed, |table| {
            let mut bounds = points.iter().chain([&chunk.min]);
            bounds.all(|point| is_bound(table, point))
        })
        .await
}

/// Merges the chunks of a range, which this shard owns. Called on core 0.
///
/// # Errors
/// `StaleEpoch`; those of the config servers.
pub(super) async fn merge(expected: &Expected, [min, max]: [&RawDocumentBuf; 2]) -> Result<()> {
    let shard = membership(&part())?;
    let table = expected.table().await?;
    let range = ChunkRange {
        min: table.key.bound(min)?,
        max: table.key.bound(max)?,
    };
    let Some(uuid) = table.uuid else {
        return Err(epoch_changed(&expected.ns));
    };
    let request = MergeRequest {
        ns: expected.ns.clone(),
        shard: shard.shard().clone(),
        uuid,
        min: min.clone(),
        max: max.clone(),
    };
    let committed = change_config_within(&shard, request.to_bson(), CHUNKS_COMMIT).await;
    let committed = committed.map(drop);
    let is_made = |table: &RoutingTable| table.chunk_of(&range.min).range == range;
    expected.learn(committed, is_made).await
}

/// Merges all chunks of a collection that this shard owns, where they meet. Called on core 0.
///
/// # Errors
/// Those of the config servers.
pub(super) async fn merge_all(ns: &Namespace, limit: Option<i64>) -> Result<()> {
    let shard = membership(&part())?;
    let mut command = rawdoc! {
        "_configsvrCommitMergeAllChunksOnShard": ns.as_str(), "shard": shard.shard().as_str(),
        "$db": "admin",
    };
    if let Some(limit) = limit {
        command.append(pinion_bson::cstr!("maxNumberOfChunksToMerge"), limit);
    }
    let committed = change_config_within(&shard, command, CHUNKS_COMMIT).await;
    refresh_collection(ns, |_| false).await?;
    committed.map(drop)
}
