//! Runs: every version of a sealed delta, as an immutable tree on disk for each of its trees.
//!
//! ```text
//! record    key of the tree -> entries, the newest version first
//! version   0 timestamp u64  8 decided u64  16 number u64
//!           24 kind u8 (0 deletion, 1 value, 2 value elsewhere)  25 length u32
//!           29 the value, or an OverflowRef (16)
//! piece     0 timestamp u64  8 decided u64, both of its oldest version  16 zero u64
//!           24 kind u8 (3)  25 length u32
//!           29 OverflowRef (16) of more entries, which are older than those before and newer
//!              than those behind
//! ```
//!
//! A run is volatile: no manifest names it, and every list of free extents that is written counts
//! its blocks as free. An opening has the log from the base on, and makes again what is needed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use bytes::{Buf, Bytes};
use pinion_clock::Timestamp;
use pinion_runtime::{Queue, spawn, yield_if_due};
use rustc_hash::FxHashMap;

use super::core::Partition;
use super::delta::Version;
use super::filter::Filter;
use crate::base::{Extent, OverflowRef, PageStore, Stored, TakenExtents, TreeRoot};
use crate::limits::{BLOCK_BYTES, RUN_FILTER_PART};
use crate::types::{Read, ReadAt, ReadError, TreeId, VersionToken};

const DELETION: u8 = 0;
const VALUE: u8 = 1;
const VALUE_ELSEWHERE: u8 = 2;
const PIECE: u8 = 3;
/// Bytes of an entry before its value or reference.
const ENTRY_HEAD: usize = 29;

/// The blocks of the runs of one partition.
#[derive(Default)]
pub(super) struct RunSpace {
    /// Of each run, by its number.
    live: BTreeMap<u64, TakenExtents>,
    /// Of runs that have ended and are on their way to the free space.
    ended: Vec<Extent>,
}

impl RunSpace {
    /// Everything that runs have taken of the free space and not given back.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        let live = self.live.values().flat_map(|taken| taken.borrow().clone());
        live.chain(self.ended.iter().copied())
    }
}

/// A run. Its blocks are given back when the last reader releases it.
pub(super) struct Run {
    number: u64,
    trees: RefCell<FxHashMap<TreeId, TreeRoot>>,
    pub(super) filter: Filter,
    /// No version is older.
    pub(super) oldest: Timestamp,
    pub(super) taken: TakenExtents,
    /// Bytes of the page file, once all is written.
    pub(super) disk_bytes: u64,
    space: Rc<RefCell<RunSpace>>,
    partition: Weak<Partition>,
}

/// A version of a key, as a run has it.
#[derive(Clone, Debug)]
pub(super) struct RunVersion {
    pub ts: Timestamp,
    pub decided: Timestamp,
    pub seq: u64,
    /// None for a deletion.
    pub value: Option<Stored>,
}

impl RunVersion {
    pub(super) fn token(&self) -> VersionToken {
        VersionToken(self.seq)
    }
}

/// What a run says of a key without waiting.
pub(super) enum RunLook {
    /// It has no version that the read sees.
    Absent,
    Found(RunVersion),
    /// A page must be loaded.
    Load,
}

/// One entry of a record.
pub(super) enum Entry {
    Version(RunVersion),
    Piece {
        ts: Timestamp,
        decided: Timestamp,
        entries: OverflowRef,
    },
}

/// What the entries of a record say of a read.
enum Seen {
    Nothing,
    Version(RunVersion),
    Piece(OverflowRef),
}

impl Partition {
    /// What the filter of one run takes at most.
    fn most_filter_bytes(&self) -> usize {
        let part = self.store.cache.budget() / RUN_FILTER_PART;
        usize::try_from(part).unwrap_or(usize::MAX).max(BLOCK_BYTES)
    }
}

impl Run {
    pub(super) fn new(partition: &Partition, number: u64, keys: usize) -> Run {
        let (taken, space) = (TakenExtents::default(), partition.runs.clone());
        space.borrow_mut().live.insert(number, taken.clone());
        Run {
            number,
            trees: RefCell::default(),
            filter: Filter::new(keys, partition.most_filter_bytes()),
            oldest: Timestamp::MAX,
            taken,
            disk_bytes: 0,
            space,
            partition: partition.me.clone(),
        }
    }

    pub(super) fn root(&self, tree: TreeId) -> Option<TreeRoot> {
        self.trees.borrow().get(&tree).copied()
    }

    /// All that it has, by tree.
    pub(super) fn roots(&self) -> BTreeMap<TreeId, TreeRoot> {
        let trees = self.trees.borrow();
        trees.iter().map(|(&tree, &root)| (tree, root)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.trees.borrow().is_empty()
    }

    pub(super) fn add(&self, tree: TreeId, root: TreeRoot) {
        self.trees.borrow_mut().insert(tree, root);
    }

    /// Whatever it has of the tree is not there for readers that begin from now on.
    pub(super) fn forget(&self, tree: TreeId) {
        self.trees.borrow_mut().remove(&tree);
    }

    /// Whether a read of the tree may find something here.
    pub(super) fn concerns(&self, tree: TreeId, at: ReadAt) -> bool {
        self.trees.borrow().contains_key(&tree) && at.snapshot().is_none_or(|ts| self.oldest <= ts)
    }

    /// Where a read at `at` looks for `key`, if it may find it.
    fn root_for(&self, tree: TreeId, key: &[u8], at: ReadAt) -> Option<TreeRoot> {
        let root = self.root(tree)?;
        (self.concerns(tree, at) && self.filter.may_have(tree, key)).then_some(root)
    }

    /// The version of `key` that a read at `at` sees, if every page on the way is in memory.
    pub(super) fn look(&self, store: &PageStore, tree: TreeId, key: &[u8], at: ReadAt) -> RunLook {
        let Some(root) = self.root_for(tree, key, at) else {
            return RunLook::Absent;
        };
        let stored = match store.try_get(&root, key) {
            None => return RunLook::Load,
            Some(None) => return RunLook::Absent,
            Some(Some((stored, _))) => stored,
        };
        match store
            .try_value(stored)
            .ok()
            .and_then(|record| seen(record, at))
        {
            None | Some(Seen::Piece(_)) => RunLook::Load,
            Some(Seen::Nothing) => RunLook::Absent,
            Some(Seen::Version(version)) => RunLook::Found(version),
        }
    }

    /// The version of `key` that a read at `at` sees.
    pub(super) async fn get(
        &self,
        store: &PageStore,
        tree: TreeId,
        key: &[u8],
        at: ReadAt,
    ) -> Result<Option<RunVersion>, ReadError> {
        let Some(root) = self.root_for(tree, key, at) else {
            return Ok(None);
        };
        match store.get(tree, &root, key).await? {
            None => Ok(None),
            Some((stored, _)) => visible(store, tree, &root, &stored, at).await,
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut space = self.space.borrow_mut();
        if let Some(taken) = space.live.remove(&self.number) {
            space.ended.append(&mut taken.borrow_mut());
        }
        drop(space);
        // A partition that is gone has given back everything: nothing on disk names a run.
        if let Some(partition) = self.partition.upgrade() {
            drop(spawn(Queue::Background, partition.release_runs()));
        }
    }
}

impl Partition {
    /// Makes the blocks of runs that have ended reusable. Any of them may be the first of a page in
    /// the cache.
    async fn release_runs(self: Rc<Partition>) {
        loop {
            let Some(extent) = self.runs.borrow_mut().ended.pop() else {
                return;
            };
            for block in extent.start..extent.end() {
                self.store.cache.remove(block);
            }
            self.store.space.borrow_mut().release(extent);
            yield_if_due().await;
        }
    }

    /// The newest version that a read sees in any of these runs.
    pub(super) async fn get_in_runs(
        &self,
        runs: &[Rc<Run>],
        tree: TreeId,
        key: &[u8],
        at: ReadAt,
    ) -> Result<Option<RunVersion>, ReadError> {
        let mut newest: Option<RunVersion> = None;
        for run in runs {
            if let Some(found) = run.get(&self.store, tree, key, at).await?
                && newest.as_ref().is_none_or(|newest| newest.ts < found.ts)
            {
                newest = Some(found);
            }
        }
        Ok(newest)
    }

    /// The value of a version, unless it is a deletion.
    pub(super) async fn read_run_version(
        &self,
        tree: TreeId,
        version: RunVersion,
    ) -> Result<Option<Read>, ReadError> {
        let token = version.token();
        match &version.value {
            None => Ok(None),
            Some(stored) => {
                let value = self.store.value(tree, stored).await?;
                Ok(Some(Read { value, token }))
            }
        }
    }
}

/// The version that a read at `at` sees in a stored record.
pub(super) async fn visible(
    store: &PageStore,
    tree: TreeId,
    root: &TreeRoot,
    stored: &Stored,
    at: ReadAt,
) -> Result<Option<RunVersion>, ReadError> {
    let mut record = store.value(tree, stored).await?;
    loop {
        match seen(record, at) {
            None => return Err(unsound(store, root)),
            Some(Seen::Nothing) => return Ok(None),
            Some(Seen::Version(version)) => return Ok(Some(version)),
            Some(Seen::Piece(piece)) => {
                record = store.value(tree, &Stored::Overflow(piece)).await?;
            }
        }
    }
}

/// Every version of a stored record, with its value, newest first.
pub(super) async fn versions(
    store: &PageStore,
    tree: TreeId,
    root: &TreeRoot,
    stored: &Stored,
) -> Result<Vec<Version>, ReadError> {
    let mut found = Vec::new();
    let mut records = vec![store.value(tree, stored).await?];
    while let Some(mut record) = records.pop() {
        while !record.is_empty() {
            match decode(&mut record).ok_or_else(|| unsound(store, root))? {
                Entry::Version(version) => {
                    let value = match &version.value {
                        None => None,
                        // A delta keeps it for long, and must not keep a page by it.
                        Some(stored) => {
                            Some(Bytes::copy_from_slice(&store.value(tree, stored).await?))
                        }
                    };
                    found.push(Version {
                        ts: version.ts,
                        decided: version.decided,
                        seq: version.seq,
                        value,
                    });
                }
                Entry::Piece { entries, .. } => {
                    let piece = store.value(tree, &Stored::Overflow(entries)).await?;
                    records.push(std::mem::replace(&mut record, piece));
                }
            }
        }
    }
    Ok(found)
}

fn unsound(store: &PageStore, root: &TreeRoot) -> ReadError {
    let offset = root.ptr.offset();
    store.file.corrupt(offset, "a record of a run is not sound")
}

/// Whether a read at `at` sees a version.
fn sees(at: ReadAt, ts: Timestamp, decided: Timestamp) -> bool {
    match at {
        ReadAt::Newest | ReadAt::NewestDecided => true,
        ReadAt::At(at) | ReadAt::In { at, .. } => ts <= at,
        ReadAt::DecidedAt(at) => decided <= at,
    }
}

/// None if the record is not sound.
fn seen(mut record: Bytes, at: ReadAt) -> Option<Seen> {
    while !record.is_empty() {
        match decode(&mut record)? {
            Entry::Version(version) if sees(at, version.ts, version.decided) => {
                return Some(Seen::Version(version));
            }
            Entry::Piece {
                ts,
                decided,
                entries,
            } if sees(at, ts, decided) => return Some(Seen::Piece(entries)),
            Entry::Version(_) | Entry::Piece { .. } => {}
        }
    }
    Some(Seen::Nothing)
}

/// Takes the next entry off a record.
fn decode(record: &mut Bytes) -> Option<Entry> {
    let ts = Timestamp::from_u64(record.try_get_u64_le().ok()?);
    let decided = Timestamp::from_u64(record.try_get_u64_le().ok()?);
    let seq = record.try_get_u64_le().ok()?;
    let kind = record.try_get_u8().ok()?;
    let len = record.try_get_u32_le().ok()? as usize;
    let kept = match kind {
        DELETION => 0,
        VALUE => len,
        _ => OverflowRef::BYTES,
    };
    if record.len() < kept {
        return None;
    }
    let kept = record.split_to(kept);
    let version = |value| {
        Entry::Version(RunVersion {
            ts,
            decided,
            seq,
            value,
        })
    };
    match kind {
        DELETION => Some(version(None)),
        VALUE => Some(version(Some(Stored::Inline(kept)))),
        VALUE_ELSEWHERE => Some(version(Some(Stored::Overflow(OverflowRef::decode(&kept))))),
        PIECE => Some(Entry::Piece {
            ts,
            decided,
            entries: OverflowRef::decode(&kept),
        }),
        _ => None,
    }
}

/// Bytes that a version takes in a record.
pub(super) fn encoded_len(kept: usize) -> usize {
    ENTRY_HEAD + kept
}

/// Adds a version to a record; a large value lies elsewhere.
pub(super) fn encode_version(out: &mut Vec<u8>, version: &Version, elsewhere: Option<OverflowRef>) {
    let (kind, len) = match (&version.value, elsewhere) {
        (None, _) => (DELETION, 0),
        (Some(value), None) => (VALUE, value.len()),
        (Some(value), Some(_)) => (VALUE_ELSEWHERE, value.len()),
    };
    encode_head(out, (version.ts, version.decided, version.seq), kind, len);
    match (&version.value, elsewhere) {
        (_, Some(elsewhere)) => out.extend_from_slice(&elsewhere.encode()),
        (Some(value), None) => out.extend_from_slice(value),
        (None, None) => {}
    }
}

/// Adds a piece to a record: more entries, of which `oldest` is the last version.
pub(super) fn encode_piece(out: &mut Vec<u8>, oldest: &Version, entries: OverflowRef) {
    let len = entries.len as usize;
    encode_head(out, (oldest.ts, oldest.decided, 0), PIECE, len);
    out.extend_from_slice(&entries.encode());
}

fn encode_head(
    out: &mut Vec<u8>,
    (ts, decided, seq): (Timestamp, Timestamp, u64),
    kind: u8,
    len: usize,
) {
    out.extend_from_slice(&ts.as_u64().to_le_bytes());
    out.extend_from_slice(&decided.as_u64().to_le_bytes());
    out.extend_from_slice(&seq.to_le_bytes());
    out.push(kind);
    let len = u32::try_from(len).expect("values have a limit");
    out.extend_from_slice(&len.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(ts: u64, value: Option<&'static str>) -> Version {
        Version {
            ts: Timestamp::from_u64(ts),
            decided: Timestamp::from_u64(ts + ts % 2),
            seq: ts * 10,
            value: value.map(Bytes::from_static_str),
        }
    }

    trait FromStr {
        fn from_static_str(value: &'static str) -> Self;
    }

    impl FromStr for Bytes {
        fn from_static_str(value: &'static str) -> Bytes {
            Bytes::from_static(value.as_bytes())
        }
    }

    #[test]
    fn a_record_answers_as_the_chain_that_it_was() {
        let mut record = Vec::new();
        for (ts, value) in [(9, Some("new")), (6, None), (3, Some("")), (2, Some("old"))] {
            encode_version(&mut record, &version(ts, value), None);
        }
        let record = Bytes::from(record);
        let check = |at: ReadAt, expected: Option<u64>| {
            let found = match seen(record.clone(), at) {
                Some(Seen::Version(version)) => {
                    assert_eq!(version.seq, version.ts.as_u64() * 10);
                    Some(version.ts.as_u64())
                }
                Some(Seen::Nothing) => None,
                _ => panic!("the record is sound and has no pieces"),
            };
            assert_eq!(found, expected, "{at:?}");
        };
        let ts = Timestamp::from_u64;
        check(ReadAt::Newest, Some(9));
        check(ReadAt::At(ts(9)), Some(9));
        check(ReadAt::DecidedAt(ts(9)), Some(6));
        check(ReadAt::At(ts(8)), Some(6));
        check(ReadAt::DecidedAt(ts(3)), Some(2));
        check(ReadAt::At(ts(1)), None);
        for len in 1..ENTRY_HEAD {
            assert!(seen(record.slice(..len), ReadAt::Newest).is_none());
        }
        assert!(seen(record.slice(..ENTRY_HEAD + 2), ReadAt::Newest).is_none());
    }
}
