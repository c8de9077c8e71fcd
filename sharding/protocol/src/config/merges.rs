//! Merges of chunks that meet, as a shard has the config servers commit them, and chunks that are
//! not too large any more.
//!
//! Source: versions as of sharding document, "Shard versioning".

use std::ops::Range;

use pinion_bson::{ObjectId, RawDocument, RawDocumentBuf, Uuid};
use pinion_clock::Timestamp;
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use super::chunk_change::{ChunkChange, CommittedCollection, in_order, range_of, shown};
use crate::balancer::{ZoneOf, Zones};
use crate::chunk::ChunkRange;
use crate::documents::{ChunkDocument, OwnerSince};
use crate::key::ShardKeyPattern;
use crate::shard_id::ShardId;
use crate::values::append_uuid;
use crate::version::ChunkVersion;

/// `_configsvrCommitChunksMerge: <ns>, shard, collUUID, chunkRange: {min, max}, validAfter?`.
#[derive(Clone, Debug)]
pub struct MergeRequest {
    pub ns: Namespace,
    pub shard: ShardId,
    pub uuid: Uuid,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
}

const COMMAND: &str = "_configsvrCommitChunksMerge";

impl MergeRequest {
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(command: &RawDocument) -> Result<MergeRequest> {
        let reader = FieldReader::object(Path::root(COMMAND), command)?;
        let uuid = reader.opt_uuid("collUUID")?;
        let uuid = uuid.ok_or_else(|| missing_field(reader.path().field("collUUID")))?;
        let range = reader.path().field("chunkRange");
        let range = FieldReader::object(range, reader.doc("chunkRange")?)?;
        Ok(MergeRequest {
            ns: Namespace::parse(reader.str(COMMAND)?)?,
            shard: ShardId::new(reader.str("shard")?),
            uuid: Uuid::from_bytes(uuid),
            min: range.doc("min")?.to_owned(),
            max: range.doc("max")?.to_owned(),
        })
    }

    pub fn fields() -> &'static [&'static str] {
        &[COMMAND, "shard", "collUUID", "chunkRange", "validAfter"]
    }

    /// The command for the config servers.
    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = pinion_bson::DocBuilder::new();
        out.append(COMMAND, self.ns.as_str())
            .append("shard", self.shard.as_str());
        append_uuid(&mut out, "collUUID", self.uuid);
        out.start_document("chunkRange")
            .append("min", &*self.min)
            .append("max", &*self.max)
            .end()
            .append("$db", "admin");
        out.finish()
    }

    /// Decides, given the chunks that have keys of the range. `None` where it is one already.
    ///
    /// # Errors
    /// `InvalidUUID`; `IllegalOperation` where the range is not that of chunks which the shard
    /// owns.
    pub fn decide(
        &self,
        collection: &CommittedCollection,
        chunks: &[ChunkDocument],
    ) -> Result<Option<ChunkChange>> {
        collection.check_uuid(self.uuid)?;
        let key = collection.key()?;
        let range = ChunkRange {
            min: key.bound(&self.min)?,
            max: key.bound(&self.max)?,
        };
        let found = in_order(&key, chunks)?;
        let are_joined = found.windows(2).all(|pair| pair[0].0.max == pair[1].0.min);
        let is_range = match (found.first(), found.last()) {
            (Some((first, _)), Some((last, _))) => first.min == range.min && last.max == range.max,
            _ => false,
        };
        let are_owned = found.iter().all(|(_, chunk)| chunk.shard == self.shard);
        if !are_joined || !is_range || !are_owned {
            return Err(Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                format!(
                    "could not merge chunks, collection {} range {} does not belong to shard {}, \
                     or is not that of chunks",
                    self.ns,
                    shown(&self.min, &self.max),
                    self.shard
                ),
            ));
        }
        let parts: Vec<&ChunkDocument> = found.iter().map(|(_, chunk)| *chunk).collect();
        Ok((parts.len() > 1).then(|| merged(&parts, collection.version)))
    }
}

/// One chunk in the place of these, which are of one shard and in their order.
///
/// # Panics
/// There is none.
pub fn merged(parts: &[&ChunkDocument], version: ChunkVersion) -> ChunkChange {
    let (first, last) = (parts[0], parts[parts.len() - 1]);
    let version = version.merged();
    let owner = common_history(parts);
    ChunkChange {
        removed: parts[1..].iter().map(|chunk| chunk.id.clone()).collect(),
        replaced: ChunkDocument {
            max: last.max.clone(),
            placement: version.placement(),
            on_current_shard_since: owner.first().map(|owner| owner.valid_after),
            history: owner,
            is_jumbo: parts.iter().any(|chunk| chunk.is_jumbo),
            ..first.clone()
        },
        inserted: Vec::new(),
        version,
    }
}

/// What is true of all of these at each time: their history where it is the same, and otherwise
/// that the last of them has come to the shard.
fn common_history(parts: &[&ChunkDocument]) -> Vec<OwnerSince> {
    if parts.iter().all(|chunk| chunk.history == parts[0].history) {
        return parts[0].history.clone();
    }
    let since = parts.iter().filter_map(|chunk| since(chunk)).max();
    let since = since.map(|valid_after| OwnerSince {
        valid_after,
        shard: parts[0].shard.clone(),
    });
    since.into_iter().collect()
}

/// From when on its shard has owned a chunk.
fn since(chunk: &ChunkDocument) -> Option<Timestamp> {
    let latest = chunk.history.first().map(|owner| owner.valid_after);
    latest.max(chunk.on_current_shard_since)
}

/// Runs of chunks of a shard that may be merged: they meet, are in one zone, and are not too large
/// to be moved. No read at a time after `oldest` comes to what was before they were on the shard,
/// or they have come there together. The chunks are in their order.
///
/// # Errors
/// A bound that is none of the key.
pub fn mergeable_runs(
    key: &ShardKeyPattern,
    chunks: &[ChunkDocument],
    zones: &Zones,
    oldest: Timestamp,
) -> Result<Vec<Range<usize>>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut last: Option<(ChunkRange, ZoneOf<'_>)> = None;
    let ranges = chunks.iter().map(|chunk| range_of(key, chunk));
    let ranges: Vec<ChunkRange> = ranges.collect::<Result<_>>()?;
    for (at, (chunk, range)) in chunks.iter().zip(&ranges).enumerate() {
        let zone = zones.zone_of(range);
        if chunk.is_jumbo || zone == ZoneOf::Crossing {
            last = None;
            continue;
        }
        let may_join = last.as_ref().is_some_and(|(before, of)| {
            let other = &chunks[at - 1];
            let is_settled =
                |chunk: &ChunkDocument| since(chunk).is_some_and(|since| since <= oldest);
            before.max == range.min
                && *of == zone
                && (other.history == chunk.history || (is_settled(other) && is_settled(chunk)))
        });
        match runs.last_mut() {
            Some(run) if may_join => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
        last = Some((range.clone(), zone));
    }
    runs.retain(|run| run.len() > 1);
    Ok(runs)
}

/// `_configsvrClearJumboFlag: <ns>, epoch, minKey, maxKey`.
#[derive(Clone, Debug)]
pub struct ClearJumboRequest {
    pub ns: Namespace,
    pub epoch: ObjectId,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
}

const CLEAR: &str = "_configsvrClearJumboFlag";

impl ClearJumboRequest {
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(command: &RawDocument) -> Result<ClearJumboRequest> {
        let reader = FieldReader::object(Path::root(CLEAR), command)?;
        let epoch = reader.opt_object_id("epoch")?;
        Ok(ClearJumboRequest {
            ns: Namespace::parse(reader.str(CLEAR)?)?,
            epoch: epoch.ok_or_else(|| missing_field(reader.path().field("epoch")))?,
            min: reader.doc("minKey")?.to_owned(),
            max: reader.doc("maxKey")?.to_owned(),
        })
    }

    pub fn fields() -> &'static [&'static str] {
        &[CLEAR, "epoch", "minKey", "maxKey"]
    }

    /// Appends the command for the config servers, without its database.
    pub fn append_to(&self, out: &mut pinion_bson::DocBuilder) {
        out.append(CLEAR, self.ns.as_str())
            .append("epoch", self.epoch)
            .append("minKey", &*self.min)
            .append("maxKey", &*self.max);
    }

    /// Decides, given the chunks that have keys of the range. `None` where the chunk is not called
    /// too large. The shard learns of it with the next major version.
    ///
    /// # Errors
    /// `StaleEpoch`; `IncompatibleShardingMetadata` where there is no such chunk.
    pub fn decide(
        &self,
        collection: &CommittedCollection,
        chunks: &[ChunkDocument],
    ) -> Result<Option<ChunkChange>> {
        collection.check_incarnation(self.epoch, None)?;
        let key = collection.key()?;
        let (min, max) = (key.bound(&self.min)?, key.bound(&self.max)?);
        let [(range, chunk)] = &in_order(&key, chunks)?[..] else {
            return Err(self.no_chunk());
        };
        if range.min != min || range.max != max {
            return Err(self.no_chunk());
        }
        let version = collection.version.moved().migrated;
        Ok(chunk.is_jumbo.then(|| ChunkChange {
            removed: Vec::new(),
            replaced: ChunkDocument {
                placement: version.placement(),
                is_jumbo: false,
                ..(*chunk).clone()
            },
            inserted: Vec::new(),
            version,
        }))
    }

    fn no_chunk(&self) -> Error {
        Error::new(
            ErrorCode::INCOMPATIBLE_SHARDING_METADATA,
            format!(
                "could not find the chunk {} of {}",
                shown(&self.min, &self.max),
                self.ns
            ),
        )
    }
}
