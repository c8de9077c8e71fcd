//! How a table is made from documents, and another one from it and what changed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;
use pinion_bson::RawDocument;
use pinion_clock::Timestamp;
use pinion_query::document_text;
use pinion_wire::{Error, ErrorCode};

use super::{RoutingTable, TableShard};
use crate::chunk::{ChunkInfo, ChunkRange, ShardIdx};
use crate::documents::{ChunkDocument, ChunkOf, CollectionDocument};
use crate::key::{KeyBytes, ShardKeyPattern};
use crate::shard_id::ShardId;

/// Why documents are no table.
#[derive(Debug)]
pub enum TableError {
    /// They are of another incarnation: all chunks are to be read again.
    OtherIncarnation(String),
    /// They do not fit to each other, as when they were read while a change was committed: all
    /// chunks are to be read again.
    Inconsistent(String),
    /// A document cannot be read: reading it again does not help.
    Malformed(Error),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::OtherIncarnation(text) | TableError::Inconsistent(text) => {
                f.write_str(text)
            }
            TableError::Malformed(error) => write!(f, "{error}"),
        }
    }
}

impl From<TableError> for Error {
    fn from(error: TableError) -> Error {
        match error {
            TableError::OtherIncarnation(text) | TableError::Inconsistent(text) => {
                Error::new(ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS, text)
            }
            TableError::Malformed(error) => error,
        }
    }
}

impl From<Error> for TableError {
    fn from(error: Error) -> TableError {
        TableError::Malformed(error)
    }
}

type Result<T> = std::result::Result<T, TableError>;

impl RoutingTable {
    /// The table of a collection with all of its chunks, in any order. Where ranges overlap, as in
    /// a read during which a change was committed, the later version counts.
    ///
    /// # Errors
    /// A gap, a chunk of another collection, none at all; what cannot be read.
    pub fn new(
        collection: &CollectionDocument,
        chunks: impl IntoIterator<Item = ChunkDocument>,
    ) -> Result<RoutingTable> {
        let mut table = RoutingTable::without_chunks(collection)?;
        let mut infos = Vec::new();
        for chunk in chunks {
            infos.push(table.info(&chunk)?);
        }
        infos.sort_unstable_by(|one, other| one.range.min.cmp(&other.range.min));
        let touched = ChunkRange {
            min: table.key.min(),
            max: table.key.max(),
        };
        if is_partition(&infos, &touched) {
            for chunk in &infos {
                table.count(chunk);
            }
            let by_max = |chunk: ChunkInfo| (chunk.range.max.clone(), Arc::new(chunk));
            table.chunks = infos.into_iter().map(by_max).collect();
            return Ok(table);
        }
        infos.sort_unstable_by_key(|chunk| chunk.placement);
        for chunk in infos {
            table.replace(chunk);
        }
        table.check(&[touched])?;
        table.raise_lowered();
        Ok(table)
    }

    /// The table after these changes: chunks with a version at or above this table's, in any order.
    /// One that is as it was costs nothing.
    ///
    /// # Errors
    /// Another incarnation of the collection, or ranges that do not fit: then all chunks are to be
    /// read again; what cannot be read.
    pub fn apply(
        &self,
        collection: &CollectionDocument,
        changes: impl IntoIterator<Item = ChunkDocument>,
    ) -> Result<RoutingTable> {
        if !self.of.is_same(collection.of) || collection.ns != self.ns {
            return Err(TableError::OtherIncarnation(format!(
                "Collection {} has another epoch than the table that is refreshed: {:?} instead \
                 of {:?}",
                collection.ns, collection.of, self.of
            )));
        }
        let mut table = self.with_options(collection)?;
        let mut infos = Vec::new();
        for chunk in changes {
            infos.push(table.info(&chunk)?);
        }
        infos.sort_unstable_by_key(|chunk| chunk.placement);
        let touched: Vec<ChunkRange> = infos
            .into_iter()
            .map(|chunk| table.replace(chunk))
            .collect();
        table.check(&touched)?;
        table.raise_lowered();
        if table.version().is_older_than(self.version()) == Some(true) {
            return Err(TableError::Inconsistent(format!(
                "The version of {} goes back from {:?} to {:?}",
                self.ns,
                self.version(),
                table.version()
            )));
        }
        Ok(table)
    }

    fn without_chunks(collection: &CollectionDocument) -> Result<RoutingTable> {
        Ok(RoutingTable {
            ns: collection.ns.clone(),
            uuid: collection.uuid,
            of: collection.of,
            key: ShardKeyPattern::parse(&collection.key)?,
            is_unique: collection.is_unique,
            default_collation: collection.default_collation.clone(),
            allows_migrations: collection.may_migrate(),
            max_chunk_size_bytes: collection.max_chunk_size_bytes,
            time_series: collection.time_series.clone(),
            chunks: OrdMap::new(),
            shards: Vec::new(),
        })
    }

    /// These chunks under what the collection's document now says.
    fn with_options(&self, collection: &CollectionDocument) -> Result<RoutingTable> {
        let table = RoutingTable {
            chunks: self.chunks.clone(),
            shards: self.shards.clone(),
            ..RoutingTable::without_chunks(collection)?
        };
        match table.key == self.key && table.uuid == self.uuid {
            true => Ok(table),
            false => Err(TableError::OtherIncarnation(format!(
                "Collection {} has another shard key or UUID with the same epoch",
                self.ns
            ))),
        }
    }

    /// A document as it stands in this table.
    fn info(&mut self, document: &ChunkDocument) -> Result<ChunkInfo> {
        let is_of_this = match &document.of {
            ChunkOf::Uuid(uuid) => Some(*uuid) == self.uuid,
            ChunkOf::Named { epoch, .. } => *epoch == self.of.epoch,
        };
        let placement = document.placement;
        if !is_of_this {
            return Err(TableError::OtherIncarnation(format!(
                "Chunk {} is of another incarnation of {}",
                document_text(&document.min),
                self.ns
            )));
        }
        let range = ChunkRange {
            min: self.bound(&document.min)?,
            max: self.bound(&document.max)?,
        };
        if range.min >= range.max || placement.secs() == 0 {
            return Err(TableError::Malformed(Error::bad_value(format!(
                "Chunk {} of {} is empty, or has no version",
                document_text(&document.min),
                self.ns
            ))));
        }
        Ok(ChunkInfo {
            range,
            shard: self.intern(&document.shard),
            placement,
            history: document
                .history
                .iter()
                .map(|entry| (entry.valid_after, self.intern(&entry.shard)))
                .collect(),
            is_jumbo: document.is_jumbo,
        })
    }

    /// A bound of the key. One with more fields was written with a finer key, after the
    /// collection's document was read.
    fn bound(&self, bound: &RawDocument) -> Result<KeyBytes> {
        if pinion_bson::field_count(bound) > self.key.paths().len() {
            return Err(TableError::Inconsistent(format!(
                "the bound {} of {} is of another shard key",
                document_text(bound),
                self.ns
            )));
        }
        Ok(self.key.bound(bound)?)
    }

    fn intern(&mut self, shard: &ShardId) -> ShardIdx {
        if let Some(known) = self.shard_of_name(shard) {
            return known;
        }
        self.shards.push(TableShard {
            id: shard.clone(),
            placement: Timestamp::MIN,
            chunks: 0,
        });
        ShardIdx(self.shards.len() as u32 - 1)
    }

    /// Puts a chunk in the place of all that have keys of it, unless one of those is newer: then
    /// the source is behind this table. Gives the range that was touched, which has to be without a
    /// gap in the end.
    fn replace(&mut self, chunk: ChunkInfo) -> ChunkRange {
        let mut touched = chunk.range.clone();
        let mut replaced: Vec<Arc<ChunkInfo>> = Vec::new();
        for old in self.intersecting(&chunk.range) {
            if old.placement > chunk.placement || **old == chunk {
                return old.range.clone();
            }
            replaced.push(Arc::clone(old));
        }
        for old in replaced {
            touched.min = touched.min.min(old.range.min.clone());
            touched.max = touched.max.max(old.range.max.clone());
            self.chunks.remove(old.range.max.as_bytes());
            self.discount(&old);
        }
        self.count(&chunk);
        self.chunks.insert(chunk.range.max.clone(), Arc::new(chunk));
        touched
    }

    fn count(&mut self, chunk: &ChunkInfo) {
        let shard = &mut self.shards[chunk.shard.0 as usize];
        shard.chunks += 1;
        shard.placement = shard.placement.max(chunk.placement);
    }

    /// Takes a chunk from its shard. The version of one that had the highest is found by
    /// `raise_lowered`, unless another chunk of the shard has a higher one by then.
    fn discount(&mut self, chunk: &ChunkInfo) {
        let shard = &mut self.shards[chunk.shard.0 as usize];
        shard.chunks -= 1;
        if shard.placement == chunk.placement {
            shard.placement = Timestamp::MIN;
        }
    }

    /// Looks for the highest version of the shards that own chunks and have none: a donor whose
    /// control chunk is missing. Changes that are complete leave no such shard.
    fn raise_lowered(&mut self) {
        let is_lowered = |shard: &TableShard| shard.chunks > 0 && shard.placement.is_null();
        if !self.shards.iter().any(is_lowered) {
            return;
        }
        let mut highest: BTreeMap<ShardIdx, Timestamp> = BTreeMap::new();
        for chunk in self.chunks.values() {
            let version = highest.entry(chunk.shard).or_insert(Timestamp::MIN);
            *version = (*version).max(chunk.placement);
        }
        for (shard, version) in highest {
            self.shards[shard.0 as usize].placement = version;
        }
    }

    /// Whether the chunks of each range are without a gap. There is no overlap: a chunk is put in
    /// the place of all that have keys of it.
    fn check(&self, ranges: &[ChunkRange]) -> Result<()> {
        for range in ranges {
            let mut end = &range.min;
            let behind = (Bound::Excluded(range.min.as_bytes()), Bound::Unbounded);
            for (max, chunk) in self.chunks.range::<_, [u8]>(behind) {
                if *end >= range.max {
                    break;
                }
                // A merged chunk may begin before what was touched, and reach beyond it.
                if chunk.range.min > *end {
                    return Err(self.gap(end));
                }
                end = max;
            }
            if *end < range.max {
                return Err(self.gap(end));
            }
        }
        Ok(())
    }

    fn gap(&self, at: &KeyBytes) -> TableError {
        TableError::Inconsistent(format!(
            "Gap exists in the routing table of {} at {}",
            self.ns,
            document_text(&self.key.document(at))
        ))
    }
}

/// Whether chunks in the order of their ranges are all of a range, each key once.
fn is_partition(chunks: &[ChunkInfo], of: &ChunkRange) -> bool {
    let mut end = &of.min;
    for chunk in chunks {
        if chunk.range.min != *end {
            return false;
        }
        end = &chunk.range.max;
    }
    *end == of.max && !chunks.is_empty()
}
