//! What a change of the chunks of a collection writes, and what every such change compares first.

use pinion_bson::{DocBuilder, ObjectId, RawBson, RawDocument, RawDocumentBuf, Uuid};
use pinion_clock::Timestamp;
use pinion_query::document_text;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use crate::chunk::ChunkRange;
use crate::documents::{ChunkDocument, CollectionDocument};
use crate::key::{KeyBytes, ShardKeyPattern};
use crate::stale::StaleEpochInfo;
use crate::version::{ChunkVersion, Form};

/// A collection as the config servers have it.
#[derive(Clone, Debug)]
pub struct CommittedCollection {
    pub document: CollectionDocument,
    /// The highest of its chunks.
    pub version: ChunkVersion,
}

/// What one transaction writes to `config.chunks`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkChange {
    /// The `_id`s of chunks that are no more.
    pub removed: Vec<RawBson>,
    /// In the place of the document with its `_id`.
    pub replaced: ChunkDocument,
    pub inserted: Vec<ChunkDocument>,
    /// The highest that it gives: that of the collection, and of the shard.
    pub version: ChunkVersion,
}

impl CommittedCollection {
    /// Compares the incarnation that a request was made for.
    ///
    /// # Errors
    /// `StaleEpoch`.
    pub fn check_incarnation(&self, epoch: ObjectId, timestamp: Option<Timestamp>) -> Result<()> {
        let of = self.document.of;
        let is_same = of.epoch == epoch && timestamp.is_none_or(|time| time == of.timestamp);
        match is_same {
            true => Ok(()),
            false => Err(epoch_changed(&self.document.ns)),
        }
    }

    /// Compares the UUID that a request was made for.
    ///
    /// # Errors
    /// `InvalidUUID`.
    pub fn check_uuid(&self, uuid: Uuid) -> Result<()> {
        match self.document.uuid == Some(uuid) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorCode::INVALID_UUID,
                format!(
                    "UUID of collection does not match UUID of request. Collection UUID: {}, \
                     request UUID: {uuid}",
                    (self.document.uuid).map_or_else(|| "none".to_owned(), |uuid| uuid.to_string())
                ),
            )),
        }
    }

    /// The pattern of its keys.
    ///
    /// # Errors
    /// It is none.
    pub fn key(&self) -> Result<ShardKeyPattern> {
        ShardKeyPattern::parse(&self.document.key)
    }

    /// Selects the chunks that begin at this bound or below, as documents have it.
    pub fn up_to(&self, bound: &RawDocument) -> RawDocumentBuf {
        let mut filter = DocBuilder::new();
        filter.append_all(&self.document.chunks_filter(None));
        filter.start_document("min").append("$lte", bound).end();
        filter.finish()
    }

    /// Selects the chunks that have keys of a range, whose bounds are as documents have them. None
    /// of them begins below `first`, so that those in front of it are not read.
    pub fn overlapping(
        &self,
        (min, max): (&RawDocument, &RawDocument),
        first: Option<&RawDocument>,
    ) -> RawDocumentBuf {
        let mut filter = DocBuilder::new();
        filter.append_all(&self.document.chunks_filter(None));
        filter.start_document("min");
        if let Some(first) = first {
            filter.append("$gte", first);
        }
        filter.append("$lt", max).end();
        filter.start_document("max").append("$gt", min).end();
        filter.finish()
    }
}

/// The error of a request for another incarnation of a collection, or for one that is gone.
pub fn epoch_changed(ns: &Namespace) -> Error {
    let info = StaleEpochInfo {
        ns: ns.clone(),
        versions: None,
    };
    info.error(Form::Own)
}

/// The range of a chunk.
pub(super) fn range_of(key: &ShardKeyPattern, chunk: &ChunkDocument) -> Result<ChunkRange> {
    Ok(ChunkRange {
        min: key.bound(&chunk.min)?,
        max: key.bound(&chunk.max)?,
    })
}

/// The chunks with their ranges, in the order of these.
pub(super) fn in_order<'c>(
    key: &ShardKeyPattern,
    chunks: &'c [ChunkDocument],
) -> Result<Vec<(ChunkRange, &'c ChunkDocument)>> {
    let ranged = chunks
        .iter()
        .map(|chunk| Ok((range_of(key, chunk)?, chunk)));
    let mut ranged: Vec<_> = ranged.collect::<Result<_>>()?;
    ranged.sort_by(|(one, _), (other, _)| one.min.cmp(&other.min));
    Ok(ranged)
}

/// Whether ranges in their order are those between these bounds, one behind the other.
pub(super) fn are_parts<'c>(
    mut ranges: impl Iterator<Item = &'c ChunkRange>,
    bounds: &[KeyBytes],
) -> bool {
    let mut pairs = bounds.windows(2);
    pairs.all(|pair| {
        let range = ranges.next();
        range.is_some_and(|range| range.min == pair[0] && range.max == pair[1])
    }) && ranges.next().is_none()
}

/// A range as messages have it.
pub(super) fn shown(min: &RawDocument, max: &RawDocument) -> String {
    format!("[{}, {})", document_text(min), document_text(max))
}
