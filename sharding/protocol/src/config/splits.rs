//! The split of a chunk, as a shard has the config servers commit it.
//!
//! Source: sharding document, "Auto-splitting"; versions as of "Shard versioning".

use pinion_bson::{ObjectId, RawBson, RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_query::document_text;
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use super::chunk_change::{ChunkChange, CommittedCollection, are_parts, in_order, shown};
use super::zones::check_bound;
use crate::balancer::MAX_SPLIT_POINTS;
use crate::documents::ChunkDocument;
use crate::key::{KeyBytes, ShardKeyPattern};
use crate::shard_id::ShardId;
use crate::version::ChunkVersion;

/// `_configsvrCommitChunkSplit: <ns>, collEpoch, collTimestamp?, min, max, splitPoints, shard`.
#[derive(Clone, Debug)]
pub struct SplitRequest {
    pub ns: Namespace,
    pub epoch: ObjectId,
    pub timestamp: Option<Timestamp>,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
    pub points: Vec<RawDocumentBuf>,
    pub shard: ShardId,
}

const COMMAND: &str = "_configsvrCommitChunkSplit";

fn invalid(message: String) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

impl SplitRequest {
    /// # Errors
    /// A field that is missing or of a wrong type; `InvalidOptions` without points, or with more
    /// than one commit has.
    pub fn parse(command: &RawDocument) -> Result<SplitRequest> {
        let reader = FieldReader::object(Path::root(COMMAND), command)?;
        let mut points = Vec::new();
        for point in pinion_bson::values(reader.array("splitPoints")?) {
            let point = point.as_document().ok_or_else(|| {
                Error::bad_value(format!("'{COMMAND}.splitPoints' are documents"))
            })?;
            points.push(point.to_owned());
        }
        if points.is_empty() || points.len() > MAX_SPLIT_POINTS {
            return Err(invalid(format!(
                "a split has 1 to {MAX_SPLIT_POINTS} points, not {}",
                points.len()
            )));
        }
        Ok(SplitRequest {
            ns: Namespace::parse(reader.str(COMMAND)?)?,
            epoch: reader
                .opt_object_id("collEpoch")?
                .ok_or_else(|| missing_field(reader.path().field("collEpoch")))?,
            timestamp: reader.opt_timestamp("collTimestamp")?,
            min: reader.doc("min")?.to_owned(),
            max: reader.doc("max")?.to_owned(),
            points,
            shard: ShardId::new(reader.str("shard")?),
        })
    }

    pub fn fields() -> &'static [&'static str] {
        &[
            COMMAND,
            "collEpoch",
            "collTimestamp",
            "min",
            "max",
            "splitPoints",
            "shard",
        ]
    }

    /// The command for the config servers.
    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = pinion_bson::DocBuilder::new();
        out.append(COMMAND, self.ns.as_str())
            .append("collEpoch", self.epoch);
        if let Some(time) = self.timestamp {
            crate::values::append_time(&mut out, "collTimestamp", time);
        }
        out.append("min", &*self.min).append("max", &*self.max);
        out.start_array("splitPoints");
        for point in &self.points {
            out.push(&**point);
        }
        out.end();
        out.append("shard", self.shard.as_str())
            .append("$db", "admin");
        out.finish()
    }

    /// Decides, given the chunks that have keys of the range. `None` where it is split so already.
    /// `id` gives a new identifier each time.
    ///
    /// # Errors
    /// `StaleEpoch`; `InvalidOptions` for points that are not within the chunk, in their order;
    /// `IncompatibleShardingMetadata` where there is no such chunk on the shard.
    pub fn decide(
        &self,
        collection: &CommittedCollection,
        chunks: &[ChunkDocument],
        mut id: impl FnMut() -> ObjectId,
    ) -> Result<Option<ChunkChange>> {
        collection.check_incarnation(self.epoch, self.timestamp)?;
        let key = collection.key()?;
        let bounds = self.bounds(&key)?;
        let found = in_order(&key, chunks)?;
        let is_owned = || found.iter().all(|(_, chunk)| chunk.shard == self.shard);
        if are_parts(found.iter().map(|(range, _)| range), &bounds) && is_owned() {
            return Ok(None);
        }
        let whole = [bounds[0].clone(), bounds[bounds.len() - 1].clone()];
        let chunk = match &found[..] {
            [(range, chunk)] if are_parts([range].into_iter(), &whole) => chunk,
            _ => return Err(self.no_chunk("there is no such chunk")),
        };
        if chunk.shard != self.shard {
            let text = format!("it is owned by shard {}", chunk.shard);
            return Err(self.no_chunk(&text));
        }
        Ok(Some(self.parts(chunk, collection.version, &mut id)))
    }

    fn no_chunk(&self, why: &str) -> Error {
        Error::new(
            ErrorCode::INCOMPATIBLE_SHARDING_METADATA,
            format!(
                "splitChunk cannot split chunk {} of {} on shard {}: {why}",
                shown(&self.min, &self.max),
                self.ns,
                self.shard
            ),
        )
    }

    /// The bounds of the parts, in their order.
    fn bounds(&self, key: &ShardKeyPattern) -> Result<Vec<KeyBytes>> {
        let max = key.bound(&self.max)?;
        let mut bounds = vec![key.bound(&self.min)?];
        for (at, point) in self.points.iter().enumerate() {
            check_bound("split", point)?;
            let bound = key.bound(point)?;
            if bound <= bounds[0] || bound >= max {
                return Err(invalid(format!(
                    "splitChunk cannot split chunk {}, split key {} not contained within chunk \
                     bounds.",
                    shown(&self.min, &self.max),
                    document_text(point)
                )));
            }
            if bound <= bounds[at] {
                return Err(invalid(format!(
                    "splitChunk cannot split chunk {}. Split keys must be specified in strictly \
                     increasing order. Key {} was specified after {}.",
                    shown(&self.min, &self.max),
                    document_text(point),
                    document_text(&self.points[at - 1])
                )));
            }
            bounds.push(bound);
        }
        bounds.push(max);
        Ok(bounds)
    }

    /// The first part keeps the document of the chunk; all keep its history. What was too large as
    /// a whole need not be in parts.
    fn parts(
        &self,
        chunk: &ChunkDocument,
        version: ChunkVersion,
        id: &mut impl FnMut() -> ObjectId,
    ) -> ChunkChange {
        let mins = [&self.min].into_iter().chain(&self.points);
        let maxs = self.points.iter().chain([&self.max]);
        let versions: Vec<ChunkVersion> = version.split(self.points.len() + 1).collect();
        let mut parts = mins
            .zip(maxs)
            .zip(&versions)
            .map(|((min, max), version)| ChunkDocument {
                min: min.clone(),
                max: max.clone(),
                placement: version.placement(),
                is_jumbo: false,
                ..chunk.clone()
            });
        let replaced = parts.next().expect("there is a first part");
        let inserted = parts.map(|part| ChunkDocument {
            id: RawBson::ObjectId(id()),
            ..part
        });
        ChunkChange {
            removed: Vec::new(),
            replaced,
            inserted: inserted.collect(),
            version: *versions.last().expect("there are two parts at least"),
        }
    }
}
