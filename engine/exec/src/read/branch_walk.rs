//! The walk over the entries of one branch of an access, by blocks.

use std::rc::Rc;

use bytes::Bytes;
use pinion_catalog::{from_read_error, prefix_len};
use pinion_merge::PartCounters;
use pinion_storage::{Block, BlockRecord, Cursor, Key, Partition, ReadAt};
use pinion_wire::Result;
use rustc_hash::FxHashSet;

use super::access::{Access, RangeAccess};
use super::entry_values::{covered_document, value_of};
use super::fetch::damaged;
use super::part::{Output, PartSpec};
use super::scan::{ScanContext, ScannedDocument, ScannedEntry};
use super::sorted_walk::sorted_order;

/// The walk over the entries of one branch.
pub(super) struct BranchWalk {
    /// The place of the branch in the access.
    turn: usize,
    /// Which of the branch's ranges comes next.
    range: usize,
    /// None before the first range and behind the last.
    cursor: Option<Cursor>,
    /// Entries that the cursor has given and the walk has not.
    block: Block,
}

/// A record or an index entry that leads to a document.
#[derive(Clone)]
pub(super) struct WalkHit {
    /// The place of its branch in the access.
    pub turn: usize,
    /// How many of the branch's ranges were started, with the one that it lies in.
    pub range: usize,
    pub order: Key,
    /// The key of the document.
    pub id: Key,
    /// The key of the entry, where its order does not contain that.
    pub key: Option<Key>,
    pub entry: Option<Box<ScannedEntry>>,
    /// The document, or what the entry alone has of it, as far as that is known.
    pub document: Option<Bytes>,
    /// The document counts as one that was examined.
    pub is_examined: bool,
}

impl WalkHit {
    /// The key of the entry.
    fn entry_key(&self, spec: &PartSpec) -> &[u8] {
        match &self.key {
            Some(key) => key,
            None if spec.access.branches().len() == 1 => &self.order,
            None => &self.order[size_of::<u32>()..],
        }
    }

    pub(super) fn found(self, document: Bytes) -> ScannedDocument {
        ScannedDocument {
            order: self.order,
            id: self.id,
            document,
            position: None,
            entry: self.entry,
        }
    }
}

impl BranchWalk {
    pub(super) fn new(turn: usize) -> BranchWalk {
        BranchWalk {
            turn,
            range: 0,
            cursor: None,
            block: Block::default(),
        }
    }

    pub(super) fn turn(&self) -> usize {
        self.turn
    }

    pub(super) fn cursor(&mut self) -> Option<&mut Cursor> {
        self.cursor.as_mut()
    }

    pub(super) fn block(&mut self) -> &mut Block {
        &mut self.block
    }

    /// Has the entry come next, if it is there.
    pub(super) fn stand_before(
        &mut self,
        named: &WalkHit,
        spec: &PartSpec,
        partition: &Rc<Partition>,
        at: ReadAt,
    ) {
        let branch = &spec.access.branches()[named.turn];
        let place = named.range.checked_sub(1).expect("its range was started");
        let mut cursor = branch.cursor(&spec.collection, partition, place, at);
        cursor.seek(named.entry_key(spec));
        *self = BranchWalk {
            turn: named.turn,
            range: named.range,
            cursor: Some(cursor),
            block: Block::default(),
        };
    }

    /// Entries that were read and not given are read again.
    pub(super) fn take_back(&mut self) {
        if let Some(cursor) = &mut self.cursor {
            cursor.take_back(&mut self.block);
        }
        assert!(self.block.is_empty(), "a block is given back to its cursor");
    }

    /// Passes over entries without a look at each, and gives how many.
    pub(super) fn pass_many(&mut self, most: usize) -> usize {
        let passed = self.block.pass_many(most);
        if passed > 0 {
            return passed;
        }
        if self.cursor.as_ref().is_none_or(Cursor::is_done) {
            return 0;
        }
        // What the cursor passes is behind everything that the block knows of.
        self.take_back();
        self.cursor.as_mut().map_or(0, |cursor| cursor.pass(most))
    }

    /// Continues at the first entry with a key from this one on, which lies ahead.
    pub(super) fn seek_ahead(&mut self, key: &[u8]) {
        let cursor = self.cursor.as_mut().expect("an entry was given");
        cursor.seek_ahead(&mut self.block, key);
    }

    /// Ensures that the block has an entry; false at the end of the branch.
    pub(super) async fn fill(
        &mut self,
        place: ScanContext<'_>,
        counters: &mut PartCounters,
    ) -> Result<bool> {
        let Some(branch) = place.spec.access.branches().get(self.turn) else {
            return Ok(false);
        };
        while self.block.is_empty() {
            if let Some(cursor) = self.cursor.as_mut().filter(|cursor| !cursor.is_done()) {
                let filled = cursor.fill(&mut self.block).await;
                if filled.map_err(from_read_error)? {
                    break;
                }
            }
            if !self.enter_next(place, branch, counters) {
                self.cursor = None;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Goes to the beginning of the next range; false where none is left.
    fn enter_next(
        &mut self,
        place: ScanContext<'_>,
        branch: &RangeAccess,
        counters: &mut PartCounters,
    ) -> bool {
        if self.range >= branch.ranges.len() {
            return false;
        }
        counters.seeks += 1;
        match &mut self.cursor {
            Some(cursor) => cursor.enter(branch.range(self.range).clone()),
            None => {
                let (collection, partition) = (&place.spec.collection, place.partition);
                let cursor = branch.cursor(collection, partition, self.range, place.at);
                self.cursor = Some(cursor);
            }
        }
        self.range += 1;
        true
    }

    /// Fills a block of which nothing is left, from the next range at the end of one. False where
    /// [`BranchWalk::fill`] must decide.
    fn try_fill(
        &mut self,
        place: ScanContext<'_>,
        branch: &RangeAccess,
        counters: &mut PartCounters,
    ) -> bool {
        let is_done = self.cursor.as_ref().is_some_and(Cursor::is_done);
        if is_done && !self.enter_next(place, branch, counters) {
            return false;
        }
        let cursor = self.cursor.as_mut();
        cursor.is_some_and(|cursor| cursor.try_fill(&mut self.block))
    }

    /// The next entry that names a document not seen before, as far as nothing must be waited for;
    /// those in front of it are passed. None where [`BranchWalk::fill`] is to follow.
    pub(super) fn front(
        &mut self,
        place: ScanContext<'_>,
        seen: Option<&FxHashSet<Key>>,
        counters: &mut PartCounters,
    ) -> Result<Option<WalkHit>> {
        let spec = place.spec;
        let Some(branch) = spec.access.branches().get(self.turn) else {
            return Ok(None);
        };
        // Once: empty ranges are passed by `fill`.
        if self.block.is_empty() && !self.try_fill(place, branch, counters) {
            return Ok(None);
        }
        while let Some(record) = self.block.front() {
            let key = record.key();
            let id = match &branch.index {
                None => Key::from_slice(&key),
                Some(index) => match prefix_len(index, &key) {
                    Some(prefix) => Key::from_slice(&key[prefix..]),
                    None => return Err(damaged(branch)),
                },
            };
            if seen.is_none_or(|seen| !seen.contains(&id)) {
                return self.named(spec, branch, key, id, record).map(Some);
            }
            self.block.pass();
            counters.keys_examined += u64::from(branch.index.is_some());
            counters.dups_dropped += 1;
        }
        Ok(None)
    }

    /// Passes the entry in front.
    pub(super) fn pass(
        &mut self,
        named: &WalkHit,
        spec: &PartSpec,
        seen: Option<&mut FxHashSet<Key>>,
        counters: &mut PartCounters,
    ) {
        self.block.pass();
        counters.keys_examined += u64::from(!matches!(spec.access, Access::Collection(_)));
        if let Some(seen) = seen {
            seen.insert(Key::from_slice(&named.id));
        }
    }

    /// The next entry that names a document not seen before, which it passes.
    pub(super) async fn next(
        &mut self,
        place: ScanContext<'_>,
        seen: &mut Option<FxHashSet<Key>>,
        counters: &mut PartCounters,
    ) -> Result<Option<WalkHit>> {
        while self.fill(place, counters).await? {
            if let Some(named) = self.front(place, seen.as_ref(), counters)? {
                self.pass(&named, place.spec, seen.as_mut(), counters);
                return Ok(Some(named));
            }
        }
        Ok(None)
    }

    /// What was read as an entry of the access.
    fn named(
        &self,
        spec: &PartSpec,
        branch: &RangeAccess,
        key: Key,
        id: Key,
        record: BlockRecord<'_>,
    ) -> Result<WalkHit> {
        let keeps_entry = spec.output == Output::Keys || spec.metadata.index_key;
        let entry = (keeps_entry && branch.index.is_some()).then(|| {
            Box::new(ScannedEntry {
                branch: self.turn,
                key: key.clone(),
                type_bits: record.to_bytes(),
            })
        });
        let document = alone(spec, branch, &key, record)?;
        // A caller that asks for keys alone then reads the documents to change them.
        let is_examined =
            branch.index.is_none() || (spec.output == Output::Ids && document.is_some());
        let mut entry_key = None;
        let order = match &spec.access {
            Access::Merge(merge) => {
                let order = sorted_order(branch, &merge.orders[self.turn], &key, &id)?;
                entry_key = Some(key);
                order
            }
            access if access.branches().len() == 1 => key,
            _ => ordered_by_branch(self.turn, &key),
        };
        Ok(WalkHit {
            turn: self.turn,
            range: self.range,
            order,
            id,
            key: entry_key,
            entry,
            document,
            is_examined,
        })
    }
}

/// What an entry alone gives, if that suffices.
fn alone(
    spec: &PartSpec,
    branch: &RangeAccess,
    key: &[u8],
    record: BlockRecord<'_>,
) -> Result<Option<Bytes>> {
    let Some(index) = &branch.index else {
        return Ok(Some(record.to_bytes()));
    };
    if let Output::Distinct(field) = spec.output {
        return value_of(index, key, record.value(), field);
    }
    if let Some(kept) = &spec.covered
        && let Some(document) = covered_document(index, key, record.value(), kept)?
    {
        return Ok(Some(document));
    }
    Ok((!spec.reads_documents()).then(Bytes::new))
}

/// Branches come one after the other, in every part alike.
fn ordered_by_branch(turn: usize, key: &[u8]) -> Key {
    let mut order = Key::from_slice(&(turn as u32).to_be_bytes());
    order.extend_from_slice(key);
    order
}
