//! Verification of a page file that is not open: every checksum, the order of all keys, counts, and
//! the owner of each block. What a walk over every page shows besides, the shape of the trees, is
//! in the same report.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{LocalBoxFuture, yield_if_due};

use super::file::Access;
use super::options::PartitionOptions;
use super::page::{OverflowRef, Page, PageKind, PagePtr};
use super::roots::{Counts, PartitionRoots, TreeRoot};
use super::space::Extent;
use super::spilled::SpilledRecord;
use super::store::PageStore;
use crate::limits::{BLOCK_BYTES, MAX_VERIFY_PROBLEMS};
use crate::types::{Key, PartitionId, ReadError, TreeId};

/// The pages of one level of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelReport {
    /// Pages that could be read.
    pub pages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of them that hold something.
    pub used_bytes: u64,
}

/// One tree as its pages show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeReport {
    /// Which tree.
    pub tree: TreeId,
    /// Levels, leaves included.
    pub height: u32,
    /// Keys, with the spilled changes.
    pub records: u64,
    /// Sum of the lengths of keys.
    pub key_bytes: u64,
    /// Sum of the lengths of values.
    pub value_bytes: u64,
    /// Leaf pages.
    pub leaves: u64,
    /// Inner pages.
    pub inner_pages: u64,
    /// Values in extents of their own.
    pub overflow_values: u64,
    /// Bytes of all its pages.
    pub page_bytes: u64,
    /// Its levels, the leaves first; extents of values are in none.
    pub levels: Vec<LevelReport>,
    /// Changes of it that a checkpoint spilled and none has merged yet; they lie in the tree of
    /// spilled changes.
    pub spilled_changes: u64,
}

impl TreeReport {
    /// A tree of `height` levels of which nothing was seen yet.
    fn new(tree: TreeId, height: u32) -> TreeReport {
        TreeReport {
            tree,
            height,
            records: 0,
            key_bytes: 0,
            value_bytes: 0,
            leaves: 0,
            inner_pages: 0,
            overflow_values: 0,
            page_bytes: 0,
            levels: vec![LevelReport::default(); height as usize],
            spilled_changes: 0,
        }
    }
}

/// What verification found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Every tree, the tree of trees first.
    pub trees: Vec<TreeReport>,
    /// Pages read, the file's header and the list of free extents included.
    pub pages: u64,
    /// Length of the file in bytes, as the manifest says.
    pub file_bytes: u64,
    /// Free bytes of it.
    pub free_bytes: u64,
    /// Extents that are free.
    pub free_extents: u64,
    /// Offset and length of every page that was read or should have been, as met.
    pub extents: Vec<(u64, u64)>,
    /// Everything that is wrong, each naming file and offset; at most a limited number.
    pub problems: Vec<ReadError>,
    /// Problems beyond that number.
    pub more_problems: u64,
}

/// Reads every page that `roots` refer to and checks it. Damage is listed in the report; an error
/// means that the file cannot be read at all.
pub fn verify_partition<'a>(
    id: PartitionId,
    dir: &'a Path,
    roots: &'a PartitionRoots,
) -> LocalBoxFuture<'a, Result<VerifyReport, ReadError>> {
    Box::pin(async move {
        let (report, _) = verify_and_collect(id, dir, roots, Access::Read, None).await?;
        Ok(report)
    })
}

/// Like [`verify_partition`], and gives the records of one tree, with its spilled changes, as far
/// as they can be read.
pub(crate) async fn verify_and_collect(
    id: PartitionId,
    dir: &Path,
    roots: &PartitionRoots,
    access: Access,
    collect: Option<TreeId>,
) -> Result<(VerifyReport, Vec<(Key, Bytes)>), ReadError> {
    let options = PartitionOptions::default();
    let mut report = VerifyReport {
        file_bytes: roots.file_blocks * BLOCK_BYTES as u64,
        ..VerifyReport::default()
    };
    // With a damaged list of free extents everything else can still be read.
    let without_list = PartitionRoots {
        free_word: 0,
        free_crc: 0,
        ..*roots
    };
    let (store, free_is_known) =
        match PageStore::open(dir, id, roots, options.clone(), access).await {
            Ok(store) => (store, true),
            Err(error @ ReadError::Corrupt { .. }) if roots.free_list().is_some() => {
                report.problems.push(error);
                (
                    PageStore::open(dir, id, &without_list, options, access).await?,
                    false,
                )
            }
            Err(error) => return Err(error),
        };
    let mut walk = Walk {
        store: &store,
        report,
        owned: vec![Extent {
            start: 0,
            blocks: 1,
        }],
    };
    let mut collected = BTreeMap::new();
    let mut spilled = Spilled::default();
    walk.report.pages += 1;
    if let Some(list) = roots.free_list() {
        walk.own(&list);
    }
    if let Some((ptr, level)) = roots.master() {
        let mut trees = Vec::new();
        walk.tree(TreeId::MASTER, ptr, level, None, |key, value| {
            trees.push((key, TreeRoot::decode(&value)));
        })
        .await;
        for (key, root) in trees {
            match (<[u8; 8]>::try_from(key.as_slice()), root) {
                (Ok(id), Some(root)) => {
                    let tree = TreeId(u64::from_be_bytes(id));
                    walk.tree(tree, root.ptr, root.level, Some(&root), |key, value| {
                        if collect == Some(tree) {
                            collected.insert(key, value);
                        } else if tree == TreeId::SPILLED {
                            spilled.take(&key, value, collect);
                        }
                    })
                    .await;
                    if tree == TreeId::SPILLED && spilled.unsound {
                        walk.problem(&root.ptr, "a spilled change is not sound");
                    }
                }
                _ => walk.problem(&ptr, "the master tree holds something other than roots"),
            }
        }
    }
    if free_is_known {
        walk.check_owners();
    }
    let mut report = walk.report;
    spilled.put_into(&mut report.trees, &mut collected);
    report.extents = walk
        .owned
        .iter()
        .map(|extent| {
            let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
            (bytes(extent.start), bytes(extent.blocks))
        })
        .collect();
    {
        let space = store.space.borrow();
        report.free_bytes = space.free_blocks() * BLOCK_BYTES as u64;
        report.free_extents = space.extents().count() as u64;
    }
    store.file.close().await;
    Ok((report, collected.into_iter().collect()))
}

/// What the tree of spilled changes says of the others.
#[derive(Default)]
struct Spilled {
    counts: BTreeMap<TreeId, Counts>,
    /// How many changes of each tree there are.
    changes: BTreeMap<TreeId, u64>,
    /// Those of the tree that is collected.
    collected: BTreeMap<Key, (Timestamp, Option<Bytes>)>,
    unsound: bool,
}

impl Spilled {
    fn take(&mut self, key: &[u8], value: Bytes, collect: Option<TreeId>) {
        match SpilledRecord::decode(key, value) {
            Some(SpilledRecord::Counts(tree, counts)) => {
                self.counts.insert(tree, counts);
            }
            Some(SpilledRecord::Version {
                tree,
                key,
                ts,
                value,
            }) => {
                *self.changes.entry(tree).or_default() += 1;
                // Those of later checkpoints come later.
                if collect == Some(tree)
                    && self.collected.get(&key).is_none_or(|(then, _)| *then <= ts)
                {
                    self.collected.insert(key, (ts, value));
                }
            }
            None => self.unsound = true,
        }
    }

    /// Adds it to what the pages of the trees themselves show. A tree may have spilled changes and
    /// no page yet.
    fn put_into(self, trees: &mut Vec<TreeReport>, collected: &mut BTreeMap<Key, Bytes>) {
        for (tree, changes) in self.changes {
            let place = trees.iter().position(|report| report.tree == tree);
            let place = place.unwrap_or_else(|| {
                trees.push(TreeReport::new(tree, 0));
                trees.len() - 1
            });
            let report = &mut trees[place];
            report.spilled_changes = changes;
            if let Some(counts) = self.counts.get(&tree) {
                report.records = counts.records;
                report.key_bytes = counts.key_bytes;
                report.value_bytes = counts.value_bytes;
            }
        }
        for (key, (_, value)) in self.collected {
            match value {
                Some(value) => collected.insert(key, value),
                None => collected.remove(&key),
            };
        }
    }
}

struct Walk<'a> {
    store: &'a PageStore,
    report: VerifyReport,
    owned: Vec<Extent>,
}

impl Walk<'_> {
    fn problem(&mut self, ptr: &PagePtr, what: &str) {
        let error = self.store.file.corrupt(ptr.offset(), what);
        self.note(error);
    }

    fn note(&mut self, error: ReadError) {
        if self.report.problems.len() < MAX_VERIFY_PROBLEMS {
            self.report.problems.push(error);
        } else {
            self.report.more_problems += 1;
        }
    }

    fn own(&mut self, ptr: &PagePtr) {
        self.report.pages += 1;
        self.owned.push(Extent {
            start: ptr.block,
            blocks: u64::from(ptr.blocks),
        });
    }

    async fn read(
        &mut self,
        tree: TreeId,
        ptr: &PagePtr,
        kind: PageKind,
        level: u8,
    ) -> Option<Rc<Page>> {
        match self.store.page_once(ptr, tree).await {
            Ok(page) if page.kind() == kind && page.level() == level => Some(page),
            Ok(_) => {
                self.problem(ptr, "the page is not of the level its parent says");
                None
            }
            Err(error) => {
                self.note(error);
                None
            }
        }
    }

    async fn tree(
        &mut self,
        tree: TreeId,
        ptr: PagePtr,
        level: u8,
        expected: Option<&TreeRoot>,
        mut visit: impl FnMut(Key, Bytes),
    ) {
        let mut report = TreeReport::new(tree, u32::from(level) + 1);
        let problems_before = self.report.problems.len();
        let mut stack: Vec<(PagePtr, u8, Key, Option<Key>)> = vec![(ptr, level, Key::new(), None)];
        while let Some((ptr, level, lower, upper)) = stack.pop() {
            self.own(&ptr);
            report.page_bytes += ptr.len() as u64;
            let kind = if level == 0 {
                PageKind::Leaf
            } else {
                PageKind::Inner
            };
            let Some(page) = self.read(tree, &ptr, kind, level).await else {
                continue;
            };
            let at_level = &mut report.levels[usize::from(level)];
            at_level.pages += 1;
            at_level.bytes += ptr.len() as u64;
            at_level.used_bytes += page.used_bytes() as u64;
            let mut previous: Option<Key> = None;
            let first_child = stack.len();
            for index in 0..page.len() {
                let key = page.key(index);
                let in_order = previous.as_ref().is_none_or(|previous| *previous < key);
                if !in_order || key < lower || upper.as_ref().is_some_and(|upper| key >= *upper) {
                    self.problem(&ptr, "a key is out of order");
                }
                if level > 0 {
                    if index == 0 && key != lower {
                        self.problem(&ptr, "an inner page does not begin with its separator");
                    }
                    let end = if index + 1 < page.len() {
                        Some(page.key(index + 1))
                    } else {
                        upper.clone()
                    };
                    stack.push((page.child(index), level - 1, key.clone(), end));
                } else {
                    report.records += 1;
                    report.key_bytes += key.len() as u64;
                    match page.overflow(index) {
                        None => {
                            report.value_bytes += page.value_len(index) as u64;
                            visit(key.clone(), page.value(index));
                        }
                        Some(overflow) => {
                            report.overflow_values += 1;
                            report.value_bytes += u64::from(overflow.len);
                            report.page_bytes += overflow.ptr.len() as u64;
                            if let Some(value) = self.overflow(tree, &ptr, &overflow).await {
                                visit(key.clone(), value);
                            }
                        }
                    }
                }
                previous = Some(key);
            }
            // Children are taken in key order, so that the file is read in the order in which it
            // was written.
            stack[first_child..].reverse();
            match level {
                0 => report.leaves += 1,
                _ => report.inner_pages += 1,
            }
            yield_if_due().await;
        }
        if let Some(root) = expected
            && self.report.problems.len() == problems_before
        {
            let counts = Counts {
                records: report.records,
                key_bytes: report.key_bytes,
                value_bytes: report.value_bytes,
            };
            let pages = report.leaves + report.inner_pages + report.overflow_values;
            if counts != root.counts
                || pages != root.pages
                || report.page_bytes != root.blocks * BLOCK_BYTES as u64
            {
                self.problem(
                    &root.ptr,
                    &format!("{tree} has not the records or pages that its root counts"),
                );
            }
        }
        self.report.trees.push(report);
    }

    async fn overflow(
        &mut self,
        tree: TreeId,
        leaf: &PagePtr,
        overflow: &OverflowRef,
    ) -> Option<Bytes> {
        self.own(&overflow.ptr);
        if !leaf.overflow {
            self.problem(leaf, "a leaf does not say that it has overflow extents");
        }
        let page = self
            .read(tree, &overflow.ptr, PageKind::Overflow, 0)
            .await?;
        if page.payload().len() != overflow.len as usize {
            self.problem(&overflow.ptr, "the extent is not the value its leaf names");
            return None;
        }
        Some(page.payload())
    }

    /// Every block belongs to exactly one page or is free.
    fn check_owners(&mut self) {
        let mut all: Vec<Extent> = self.store.space.borrow().extents().collect();
        all.extend(&self.owned);
        all.sort_unstable();
        let mut at = 0;
        let end = Extent {
            start: self.store.space.borrow().end(),
            blocks: 1,
        };
        for extent in all.into_iter().chain([end]) {
            let place = PagePtr {
                block: extent.start,
                blocks: 1,
                overflow: false,
                crc: 0,
            };
            if extent.start < at {
                self.problem(
                    &place,
                    "the block belongs to two pages, or to a page and the free space",
                );
            } else if extent.start > at {
                self.problem(&place, "blocks before this one belong to nothing");
            }
            at = at.max(extent.end());
        }
    }
}
