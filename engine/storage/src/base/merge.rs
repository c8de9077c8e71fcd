//! Merging sorted changes into a tree, copy-on-write: affected pages are read, merged and written
//! again, level by level.
//!
//! Each level is handled alike. Its changes are sorted: for leaves the keys of the delta, for inner
//! pages the separators and children that the level below has replaced. A *run* is a stretch of
//! neighbouring pages that the changes touch; its records are streamed into new pages. A run that
//! ends nearly empty takes in the next page. These hold of every level:
//!
//! * the first page's separator is the empty key;
//! * a page's separator is at or below all its keys, and above all keys of the page before it;
//! * the separator of an inner page is its first key.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::rc::Rc;

use bytes::Bytes;
use pinion_runtime::yield_if_due;

use super::page::{
    HEADER_BYTES, OverflowRef, Page, PageKind, PagePtr, Record, build_page, common_prefix,
    record_bytes,
};
use super::prefetch::{ChangedKeys, Prefetch};
use super::roots::{Counts, TreeRoot};
use super::space::Extent;
use super::store::{PageStore, PageWriter};
use super::tree::{Located, Stored};
use crate::limits::BLOCK_BYTES;
use crate::types::{Fatal, Key, ReadError, TreeId};

/// Changes taken up between two rests, though no page may come of them.
const CHANGES_AT_ONCE: usize = 128;

/// One record on its way into a new page.
struct Item {
    key: Key,
    value: Bytes,
    /// The value is an [`OverflowRef`]; in an inner page: the child has some below it.
    overflow: bool,
}

impl Record for Item {
    fn key(&self) -> &[u8] {
        &self.key
    }

    fn value(&self) -> &[u8] {
        &self.value
    }

    fn is_overflow(&self) -> bool {
        // In inner pages the flag travels within the pointer.
        self.overflow && self.value.len() == OverflowRef::BYTES
    }
}

/// A change of one key: its new value, or none.
pub(crate) type Change = (Key, Option<Bytes>);

/// What a merge does to the partition beside writing pages.
#[derive(Default)]
pub(crate) struct Freed {
    /// Extents that the old state refers to and the new one does not.
    pub extents: Vec<Extent>,
}

impl Freed {
    pub(crate) fn page(&mut self, ptr: &PagePtr) {
        self.extents.push(Extent {
            start: ptr.block,
            blocks: u64::from(ptr.blocks),
        });
    }
}

/// Merges `changes`, in ascending order of distinct keys, into the tree at `root` and returns the
/// new root; none if the tree is empty afterwards. `keys` are those of the changes, and may have
/// others between them.
pub(crate) async fn merge_tree(
    writer: &mut PageWriter<'_>,
    store: &PageStore,
    freed: &mut Freed,
    tree: TreeId,
    root: Option<TreeRoot>,
    keys: ChangedKeys<'_>,
    changes: impl Iterator<Item = Change>,
) -> Result<Option<TreeRoot>, Fatal> {
    let mut shape = Shape {
        counts: root.map_or_else(Counts::default, |root| root.counts),
        pages: root.map_or(0, |root| root.pages),
        blocks: root.map_or(0, |root| root.blocks),
    };
    let old_root = root.map(|root| (root.ptr, root.level));
    let mut level = LevelMerge::new(writer, store, freed, &mut shape, tree, 0, old_root);
    level.prefetch = old_root.map(|root| Prefetch::new(store, tree, root, keys));
    level.run_level(changes.peekable()).await?;
    let (mut outcome, _) = level.finish();
    let mut at = 0u8;
    let top = old_root.map_or(0, |(_, level)| level);
    // The only page of its level, where the levels above it go.
    let mut collapsed: Option<(PagePtr, u8)> = None;
    let (ptr, level) = loop {
        if at >= top {
            if let Some(root) = collapsed {
                assert!(outcome.values().all(Option::is_none));
                break root;
            }
            let mut pages = outcome.values().filter_map(|ptr| *ptr);
            match (pages.next(), pages.next()) {
                (None, _) => {
                    assert_eq!(
                        (shape.pages, shape.blocks, shape.counts),
                        (0, 0, Counts::default()),
                        "of an empty tree"
                    );
                    return Ok(None);
                }
                (Some(root), None) => break (root, at),
                _ => {}
            }
        }
        assert!(
            at < crate::limits::MAX_TREE_HEIGHT - 1,
            "a tree of impossible height"
        );
        let old = old_root.filter(|_| at < top);
        at += 1;
        let mut level = LevelMerge::new(writer, store, freed, &mut shape, tree, at, old);
        let changes = outcome
            .into_iter()
            .filter(|(_, ptr)| old.is_some() || ptr.is_some());
        let changes =
            changes.map(|(key, ptr)| (key, ptr.map(|ptr| Bytes::copy_from_slice(&ptr.encode()))));
        level.run_level(changes.peekable()).await?;
        let only;
        (outcome, only) = level.finish();
        // Levels above this one, if any, lose all their pages: they must not give another root.
        assert!(only.is_none() || collapsed.is_none());
        collapsed = collapsed.or(only.map(|ptr| (ptr, at - 1)));
    };
    Ok(Some(TreeRoot {
        ptr,
        level,
        counts: shape.counts,
        pages: shape.pages,
        blocks: shape.blocks,
    }))
}

/// Records every page of a tree as freed. Leaves are read only where they refer to overflow
/// extents.
pub(crate) async fn free_tree(
    store: &PageStore,
    freed: &mut Freed,
    tree: TreeId,
    root: TreeRoot,
) -> Result<(), Fatal> {
    let mut stack = vec![(root.ptr, root.level)];
    let (mut pages, mut blocks) = (0, 0);
    while let Some((ptr, level)) = stack.pop() {
        freed.page(&ptr);
        pages += 1;
        blocks += u64::from(ptr.blocks);
        if level > 0 || ptr.overflow {
            let page = store
                .page_of_level(tree, &ptr, level)
                .await
                .map_err(unreadable)?;
            for index in 0..page.len() {
                if level > 0 {
                    stack.push((page.child(index), level - 1));
                } else if let Some(overflow) = page.overflow(index) {
                    freed.page(&overflow.ptr);
                    pages += 1;
                    blocks += u64::from(overflow.ptr.blocks);
                }
            }
        }
        yield_if_due().await;
    }
    assert_eq!(
        (pages, blocks),
        (root.pages, root.blocks),
        "{tree} has not the pages its root names"
    );
    Ok(())
}

pub(crate) fn unreadable(error: ReadError) -> Fatal {
    Fatal::new(format!("a checkpoint cannot read what it merges: {error}"))
}

/// What the merge keeps count of.
struct Shape {
    counts: Counts,
    pages: u64,
    blocks: u64,
}

struct LevelMerge<'a, 'w, 'k> {
    writer: &'a mut PageWriter<'w>,
    store: &'a PageStore,
    freed: &'a mut Freed,
    shape: &'a mut Shape,
    tree: TreeId,
    level: u8,
    /// The old tree; none if it does not reach up to this level.
    old: Option<(PagePtr, u8)>,
    /// Of the leaves.
    prefetch: Option<Prefetch<'a, 'k>>,
    /// Records of the current run that are in no page yet, and an upper bound of the bytes they
    /// take.
    pending: Vec<Item>,
    pending_bytes: usize,
    /// `pending_bytes` at which full pages are looked for.
    cut_at: usize,
    /// The last key that the current run has put into a page.
    last_key: Option<Key>,
    /// Separator of the current run's first page.
    run_lower: Key,
    /// Whether pages that the current run replaces were in memory.
    warm: bool,
    /// For the parents: separators with their new page, or none where a page is gone.
    outcome: BTreeMap<Key, Option<PagePtr>>,
    collapsed: Option<PagePtr>,
}

impl<'a, 'w, 'k> LevelMerge<'a, 'w, 'k> {
    fn new(
        writer: &'a mut PageWriter<'w>,
        store: &'a PageStore,
        freed: &'a mut Freed,
        shape: &'a mut Shape,
        tree: TreeId,
        level: u8,
        old: Option<(PagePtr, u8)>,
    ) -> Self {
        let cut_at = 4 * store.options.leaf_target_bytes as usize;
        LevelMerge {
            writer,
            store,
            freed,
            shape,
            tree,
            level,
            old,
            prefetch: None,
            pending: Vec::new(),
            pending_bytes: 0,
            cut_at,
            last_key: None,
            run_lower: Key::new(),
            warm: false,
            outcome: BTreeMap::new(),
            collapsed: None,
        }
    }

    fn finish(self) -> (BTreeMap<Key, Option<PagePtr>>, Option<PagePtr>) {
        assert!(self.pending.is_empty());
        (self.outcome, self.collapsed)
    }

    fn target(&self) -> usize {
        self.store.options.leaf_target_bytes as usize
    }

    async fn run_level<I: Iterator<Item = Change>>(
        &mut self,
        mut changes: Peekable<I>,
    ) -> Result<(), Fatal> {
        while let Some((key, _)) = changes.peek() {
            let mut located = self.locate(key).await?;
            self.run_lower = located
                .as_ref()
                .map_or_else(Key::new, |located| located.lower.clone());
            self.last_key = None;
            self.warm = located.is_none();
            let at_right_end = loop {
                let upper = located.as_ref().and_then(|located| located.upper.clone());
                self.merge_page(located, upper.as_ref(), &mut changes)
                    .await?;
                self.writer.rest().await;
                let Some(upper) = upper else { break true };
                if let Some((key, _)) = changes.peek() {
                    let next = self
                        .locate(key)
                        .await?
                        .expect("the level has a page with an upper end");
                    if next.lower == upper {
                        located = Some(next);
                        continue;
                    }
                }
                if !self.wants_more() {
                    break false;
                }
                located = self.locate(&upper).await?;
            };
            self.end_run(at_right_end).await?;
        }
        Ok(())
    }

    async fn locate(&self, key: &[u8]) -> Result<Option<Located>, Fatal> {
        match self.old {
            None => Ok(None),
            Some(root) => {
                let located = self
                    .store
                    .locate(self.tree, root, self.level, key)
                    .await
                    .map_err(unreadable)?;
                assert!(
                    located.lower.as_slice() <= key
                        && located.upper.as_ref().is_none_or(|upper| &upper[..] > key)
                );
                Ok(Some(located))
            }
        }
    }

    async fn read(&mut self, located: &Located) -> Result<Rc<Page>, ReadError> {
        let ptr = &located.ptr;
        let ahead = match &mut self.prefetch {
            Some(prefetch) => {
                prefetch.advance(&located.lower);
                prefetch.take(ptr).await
            }
            None => None,
        };
        match ahead {
            Some(page) => {
                let page = page?;
                self.store.expect_level(&page, ptr, self.level)?;
                Ok(Rc::new(page))
            }
            None => self.store.page_of_level(self.tree, ptr, self.level).await,
        }
    }

    /// Whether the run would leave a page so small that it should take in the next one. The first
    /// page of a level must not vanish, since its separator is the lower end of everything.
    fn wants_more(&self) -> bool {
        let few = self.last_key.is_none() && self.pending_bytes < self.target() / 4;
        few && (!self.pending.is_empty() || self.run_lower.is_empty())
    }

    /// Streams one old page and the changes in its range into `pending`. The range may have any
    /// number of changes: that of a new tree, or of the last page, where keys that ascend are
    /// inserted.
    async fn merge_page<I: Iterator<Item = Change>>(
        &mut self,
        located: Option<Located>,
        upper: Option<&Key>,
        changes: &mut Peekable<I>,
    ) -> Result<(), Fatal> {
        let old = match &located {
            None => None,
            Some(located) => {
                self.warm |= self.store.cache.contains(located.ptr.block);
                let page = self.read(located).await.map_err(unreadable)?;
                self.free(&located.ptr);
                self.outcome.entry(located.lower.clone()).or_insert(None);
                Some(page)
            }
        };
        let mut index = 0;
        for taken in 1usize.. {
            if taken.is_multiple_of(CHANGES_AT_ONCE) {
                self.writer.rest().await;
            }
            let change = changes
                .peek()
                .filter(|(key, _)| upper.is_none_or(|upper| key < upper));
            let place = change.map(|(key, _)| match &old {
                Some(page) => page.search(key),
                None => Err(0),
            });
            // What lies before the change, or behind the last one, goes over as it is.
            if let Some(page) = &old {
                let until = match place {
                    Some(Ok(place) | Err(place)) => place,
                    None => page.len(),
                };
                while index < until {
                    self.push(self.item(page, index)).await?;
                    index += 1;
                }
            }
            let Some(place) = place else { break };
            let (key, value) = changes.next().expect("the change was just looked at");
            let replaced = old.as_ref().filter(|_| place.is_ok());
            let before = replaced.map(|page| Stored::at(page, index));
            index += usize::from(place.is_ok());
            self.change(key, before, value).await?;
        }
        Ok(())
    }

    /// A record of an old page.
    fn item(&self, page: &Page, index: usize) -> Item {
        let overflow = match self.level {
            0 => page.is_overflow(index),
            _ => page.child(index).overflow,
        };
        let (key, value) = page.key_and_value(index);
        Item {
            key,
            value,
            overflow,
        }
    }

    /// Takes up one changed record.
    async fn change(
        &mut self,
        key: Key,
        before: Option<Stored>,
        after: Option<Bytes>,
    ) -> Result<(), Fatal> {
        if self.level > 0 {
            let Some(value) = after else { return Ok(()) };
            let overflow = PagePtr::decode(&value).overflow;
            return self
                .push(Item {
                    key,
                    value,
                    overflow,
                })
                .await;
        }
        if let Some(Stored::Overflow(old)) = &before {
            self.free(&old.ptr);
        }
        let len = after.as_ref().map(|value| value.len() as u64);
        self.shape
            .counts
            .change(key.len(), before.map(|before| before.len()), len);
        let Some(value) = after else { return Ok(()) };
        if value.len() <= self.store.options.overflow_threshold() {
            return self
                .push(Item {
                    key,
                    value,
                    overflow: false,
                })
                .await;
        }
        let ptr = self.writer.put_overflow(self.tree, &value).await?;
        self.count_page(&ptr);
        self.writer.rest().await;
        let len = u32::try_from(value.len()).expect("values have a limit");
        let reference = OverflowRef { ptr, len };
        self.push(Item {
            key,
            value: Bytes::copy_from_slice(&reference.encode()),
            overflow: true,
        })
        .await
    }

    async fn push(&mut self, item: Item) -> Result<(), Fatal> {
        self.pending_bytes += record_bytes(item.key.len(), item.value.len(), 0);
        self.pending.push(item);
        let many = self.pending.len() / 4 >= self.store.options.max_records();
        if self.pending_bytes < self.cut_at && !many {
            return Ok(());
        }
        // Full pages from the front, but never so much that what stays would make a small page.
        let mut done = 0;
        let mut rest_bytes = self.pending_bytes;
        loop {
            let count = self.fitting(done);
            let taken: usize = self.pending[done..done + count].iter().map(raw_bytes).sum();
            let rest = self.pending.len() - done - count;
            if rest_bytes - taken < self.target() && rest < self.store.options.max_records() {
                break;
            }
            self.emit(done, count).await?;
            done += count;
            rest_bytes -= taken;
        }
        if done == 0 {
            // Long common prefixes: the estimate was far too high.
            self.cut_at *= 2;
        } else {
            self.pending.drain(..done);
            self.pending_bytes = rest_bytes;
            self.cut_at = 4 * self.target();
        }
        Ok(())
    }

    /// How many records from `start` on fit into one page: at least one, and in an inner page two.
    fn fitting(&self, start: usize) -> usize {
        let items = &self.pending[start..];
        let least = if self.level == 0 { 1 } else { 2 };
        let first = &items[0].key;
        let mut common = first.len();
        let (mut bytes, mut count) = (HEADER_BYTES, 0);
        for item in items {
            common = common.min(common_prefix(&first[..common], &item.key));
            bytes += raw_bytes(item);
            let size = bytes + common - common * (count + 1);
            if count >= least && (size > self.target() || count >= self.store.options.max_records())
            {
                break;
            }
            count += 1;
        }
        count
    }

    /// Puts what is pending into pages. At the right end of the tree, where keys that ascend are
    /// inserted, pages are filled from the left; elsewhere the records are spread evenly, so that
    /// none is full at once.
    async fn end_run(&mut self, at_right_end: bool) -> Result<(), Fatal> {
        let whole_level = at_right_end && self.run_lower.is_empty() && self.last_key.is_none();
        if self.level > 0 && whole_level && self.pending.len() == 1 {
            self.collapsed = Some(PagePtr::decode(&self.pending[0].value));
            self.pending.clear();
            self.pending_bytes = 0;
            return Ok(());
        }
        let mut cuts = Vec::new();
        let mut at = 0;
        while at < self.pending.len() {
            let count = self.fitting(at);
            cuts.push(count);
            at += count;
        }
        if self.level > 0 && cuts.len() > 1 && cuts.last() == Some(&1) && cuts[cuts.len() - 2] > 2 {
            let last = cuts.len() - 1;
            cuts[last] += 1;
            cuts[last - 1] -= 1;
        }
        if !at_right_end && cuts.len() > 1 {
            cuts = self.even_cuts(cuts.len());
        }
        let mut at = 0;
        for count in cuts {
            self.emit(at, count).await?;
            at += count;
        }
        self.pending.clear();
        self.pending_bytes = 0;
        Ok(())
    }

    /// Cuts the pending records into about `pages` parts of equal bytes, none larger than a page.
    fn even_cuts(&self, pages: usize) -> Vec<usize> {
        let share = self.pending_bytes.div_ceil(pages);
        let mut cuts = Vec::new();
        let mut at = 0;
        while at < self.pending.len() {
            let most = self.fitting(at);
            let least = most.min(if self.level == 0 { 1 } else { 2 });
            let (mut count, mut bytes) = (0, 0);
            while count < most
                && (count < least || bytes + raw_bytes(&self.pending[at + count]) / 2 < share)
            {
                bytes += raw_bytes(&self.pending[at + count]);
                count += 1;
            }
            cuts.push(count);
            at += count;
        }
        cuts
    }

    /// Writes `count` pending records from `start` on as one page.
    async fn emit(&mut self, start: usize, count: usize) -> Result<(), Fatal> {
        let items = &self.pending[start..start + count];
        let (first, last) = (&items[0].key, &items[count - 1].key);
        let separator = match &self.last_key {
            None if self.level == 0 || self.run_lower.is_empty() => self.run_lower.clone(),
            Some(previous) if self.level == 0 => {
                Key::from_slice(&first[..common_prefix(previous, first) + 1])
            }
            _ => first.clone(),
        };
        assert!(
            separator <= *first
                && self
                    .last_key
                    .as_ref()
                    .is_none_or(|previous| *previous < separator)
        );
        assert!(
            self.level == 0 || separator == *first,
            "an inner page's separator is its first key"
        );
        let kind = if self.level == 0 {
            PageKind::Leaf
        } else {
            PageKind::Inner
        };
        let overflow = items.iter().any(|item| item.overflow);
        let page = build_page(self.writer.header(kind, self.level, self.tree), items);
        let last = last.clone();
        let keep = self.level > 0 || self.warm || self.store.cache.has_room(page.len());
        let ptr = self.writer.put(page, overflow, keep).await?;
        self.count_page(&ptr);
        self.outcome.insert(separator, Some(ptr));
        self.last_key = Some(last);
        self.writer.rest().await;
        Ok(())
    }

    fn count_page(&mut self, ptr: &PagePtr) {
        self.shape.pages += 1;
        self.shape.blocks += u64::from(ptr.blocks);
    }

    fn free(&mut self, ptr: &PagePtr) {
        self.freed.page(ptr);
        self.shape.pages = self
            .shape
            .pages
            .checked_sub(1)
            .expect("a tree has lost a page");
        self.shape.blocks = self
            .shape
            .blocks
            .checked_sub(u64::from(ptr.blocks))
            .expect("a tree has lost blocks");
    }
}

fn raw_bytes(item: &Item) -> usize {
    record_bytes(item.key.len(), item.value.len(), 0)
}

const _: () = assert!(OverflowRef::BYTES != PagePtr::BYTES);
const _: () = assert!(HEADER_BYTES < BLOCK_BYTES);
