//! Reading a copy-on-write B+tree: descent to a leaf, in place when every page is in memory and
//! asynchronously otherwise.

use std::rc::Rc;

use bytes::Bytes;

use super::cursor::{Above, Leaf};
use super::pace::{Pace, rest};
use super::page::{OverflowRef, Page, PageKind, PagePtr};
use super::roots::{Counts, TreeRoot};
use super::store::PageStore;
use crate::types::{Direction, Key, ReadError, TreeId, VersionToken};

/// Where in a tree to go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seek<'a> {
    /// The leaf in whose range the key lies.
    At(&'a [u8]),
    /// The leaf that holds the greatest keys below this one.
    Below(&'a [u8]),
    /// The last leaf.
    Last,
}

/// A descent under way. The bounds are the separators at these positions; only the last ones are
/// made into keys.
struct Descent {
    ptr: PagePtr,
    level: u8,
    lower: Option<(Rc<Page>, usize)>,
    upper: Option<(Rc<Page>, usize)>,
    /// The upper bound of the page above.
    above_upper: Option<(Rc<Page>, usize)>,
}

impl Descent {
    fn new(root: &TreeRoot) -> Descent {
        Descent::from((root.ptr, root.level))
    }

    fn from((ptr, level): (PagePtr, u8)) -> Descent {
        Descent {
            ptr,
            level,
            lower: None,
            upper: None,
            above_upper: None,
        }
    }

    fn bounds(&self) -> (Key, Option<Key>) {
        let key = |(page, index): &(Rc<Page>, usize)| page.key(*index);
        (
            self.lower.as_ref().map(key).unwrap_or_default(),
            self.upper.as_ref().map(key),
        )
    }

    fn located(self) -> Located {
        let (lower, upper) = self.bounds();
        Located {
            ptr: self.ptr,
            lower,
            upper,
        }
    }

    /// The child to which `seek` leads.
    fn index(page: &Page, seek: Seek<'_>) -> usize {
        match seek {
            Seek::At(key) => page.child_index(key),
            Seek::Below(key) => match page.search(key) {
                Ok(index) | Err(index) => index.saturating_sub(1),
            },
            Seek::Last => page.len() - 1,
        }
    }

    /// Goes down by one level through the page that `ptr` names.
    fn step(&mut self, page: &Rc<Page>, seek: Seek<'_>) {
        let index = Descent::index(page, seek);
        self.lower = Some((page.clone(), index));
        self.above_upper = self.upper.clone();
        if index + 1 < page.len() {
            self.upper = Some((page.clone(), index + 1));
        }
        self.ptr = page.child(index);
        self.level -= 1;
    }

    fn leaf(self, page: Rc<Page>) -> Leaf {
        let Some((above, place)) = self.lower else {
            return Leaf {
                page,
                above: None,
                place: 0,
            };
        };
        let upper = self.above_upper.map(|(page, index)| page.key(index));
        Leaf {
            page,
            above: Some(Above { page: above, upper }),
            place,
        }
    }
}

/// What a base lookup found.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    /// The value lies in the leaf.
    Inline(Bytes),
    /// The value lies in an extent of its own.
    Overflow(OverflowRef),
}

impl Stored {
    /// The record at a position of a leaf.
    pub(crate) fn at(page: &Page, index: usize) -> Stored {
        match page.overflow(index) {
            Some(overflow) => Stored::Overflow(overflow),
            None => Stored::Inline(page.value(index)),
        }
    }

    /// The record at a position of a leaf with its key.
    pub(crate) fn with_key(page: &Page, index: usize) -> (Key, Stored) {
        if page.is_overflow(index) {
            return (page.key(index), Stored::at(page, index));
        }
        let (key, value) = page.key_and_value(index);
        (key, Stored::Inline(value))
    }

    /// Length of the value.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Stored::Inline(value) => value.len() as u64,
            Stored::Overflow(overflow) => u64::from(overflow.len),
        }
    }
}

impl PageStore {
    /// Asserts on reading what the parent promised of the page.
    pub(super) fn expect_level(
        &self,
        page: &Page,
        ptr: &PagePtr,
        level: u8,
    ) -> Result<(), ReadError> {
        let kind = if level == 0 {
            PageKind::Leaf
        } else {
            PageKind::Inner
        };
        if page.kind() != kind || page.level() != level {
            return Err(self
                .file
                .corrupt(ptr.offset(), "the page is not of the level its parent says"));
        }
        Ok(())
    }

    /// The leaf that `seek` names, if every page on the way is in memory.
    pub(crate) fn try_leaf(&self, root: &TreeRoot, seek: Seek<'_>) -> Option<Leaf> {
        let mut descent = Descent::new(root);
        loop {
            let page = self.cache.get(descent.ptr.block)?;
            // A page of the wrong level was refused when it was loaded through its parent; it is
            // not in the cache by another way, because a block belongs to one page as long as a
            // root refers to it.
            if descent.level == 0 {
                return (page.kind() == PageKind::Leaf).then(|| descent.leaf(page));
            }
            if page.kind() != PageKind::Inner || page.level() != descent.level {
                return None;
            }
            descent.step(&page, seek);
        }
    }

    /// The leaf that `seek` names.
    pub(crate) async fn leaf(
        &self,
        tree: TreeId,
        root: &TreeRoot,
        seek: Seek<'_>,
    ) -> Result<Leaf, ReadError> {
        let mut descent = Descent::new(root);
        loop {
            let page = self.page(&descent.ptr, tree).await?;
            self.expect_level(&page, &descent.ptr, descent.level)?;
            if descent.level == 0 {
                return Ok(descent.leaf(page));
            }
            descent.step(&page, seek);
        }
    }

    /// The page of `level` in whose range `key` lies, with that range; the page itself is not
    /// loaded.
    pub(crate) async fn locate(
        &self,
        tree: TreeId,
        root: (PagePtr, u8),
        level: u8,
        key: &[u8],
    ) -> Result<Located, ReadError> {
        let mut descent = Descent::from(root);
        while descent.level > level {
            let page = self.page(&descent.ptr, tree).await?;
            self.expect_level(&page, &descent.ptr, descent.level)?;
            descent.step(&page, Seek::At(key));
        }
        Ok(descent.located())
    }

    /// The first key behind the page that cannot be read on the way to `key`, or behind the leaf if
    /// all can; none if the tree ends there.
    pub(crate) async fn end_of_unreadable(
        &self,
        tree: TreeId,
        root: &TreeRoot,
        key: &[u8],
    ) -> Option<Key> {
        let mut descent = Descent::new(root);
        while descent.level > 0 {
            let read = self.page(&descent.ptr, tree).await;
            let page = read.and_then(|page| {
                self.expect_level(&page, &descent.ptr, descent.level)?;
                Ok(page)
            });
            let Ok(page) = page else { break };
            descent.step(&page, Seek::At(key));
        }
        descent.bounds().1
    }

    /// The leaf in whose range `key` lies, if every page above it is in memory.
    pub(crate) fn try_locate_leaf(&self, root: (PagePtr, u8), key: &[u8]) -> Option<Located> {
        let mut descent = Descent::from(root);
        while descent.level > 0 {
            let page = self.inner_in_memory(&descent)?;
            descent.step(&page, Seek::At(key));
        }
        Some(descent.located())
    }

    /// The leaf in whose range `key` lies, if it is not in memory but every page above it is.
    pub(crate) fn try_leaf_on_disk(&self, root: &TreeRoot, key: &[u8]) -> Option<PagePtr> {
        let located = self.try_locate_leaf((root.ptr, root.level), key)?;
        (!self.cache.contains(located.ptr.block)).then_some(located.ptr)
    }

    /// The inner page that a descent has come to, if it is in memory.
    fn inner_in_memory(&self, descent: &Descent) -> Option<Rc<Page>> {
        let page = self.cache.get(descent.ptr.block)?;
        (page.kind() == PageKind::Inner && page.level() == descent.level).then_some(page)
    }

    /// The leaves behind the one to which `seek` leads, in `direction`: at most `most`, as far as
    /// they hang on the same inner page and that is in memory, and only those that are not.
    pub(super) fn leaves_ahead(
        &self,
        root: &TreeRoot,
        seek: Seek<'_>,
        direction: Direction,
        most: usize,
    ) -> Vec<PagePtr> {
        let mut descent = Descent::new(root);
        while descent.level > 0 {
            let Some(page) = self.inner_in_memory(&descent) else {
                break;
            };
            if descent.level > 1 {
                descent.step(&page, seek);
                continue;
            }
            let at = Descent::index(&page, seek);
            return self.children_ahead(&page, at, direction, most);
        }
        Vec::new()
    }

    /// The children of an inner page behind the one at `place`, in `direction`: those that are not
    /// in memory of at most `most`.
    pub(super) fn children_ahead(
        &self,
        page: &Page,
        place: usize,
        direction: Direction,
        most: usize,
    ) -> Vec<PagePtr> {
        let ahead: Box<dyn Iterator<Item = usize>> = match direction {
            Direction::Forward => Box::new(place + 1..page.len()),
            Direction::Reverse => Box::new((0..place).rev()),
        };
        ahead
            .take(most)
            .map(|index| page.child(index))
            .filter(|ptr| !self.cache.contains(ptr.block))
            .collect()
    }

    /// Loads a page of a known level without keeping it in memory.
    pub(crate) async fn page_of_level(
        &self,
        tree: TreeId,
        ptr: &PagePtr,
        level: u8,
    ) -> Result<Rc<Page>, ReadError> {
        let page = self.page_once(ptr, tree).await?;
        self.expect_level(&page, ptr, level)?;
        Ok(page)
    }

    /// Pages and blocks of a tree without overflow extents. Leaves are not read.
    pub(crate) async fn count_pages(
        &self,
        tree: TreeId,
        ptr: PagePtr,
        level: u8,
    ) -> Result<(u64, u64), ReadError> {
        let mut stack = vec![(ptr, level)];
        let (mut pages, mut blocks) = (0, 0);
        while let Some((ptr, level)) = stack.pop() {
            pages += 1;
            blocks += u64::from(ptr.blocks);
            if level > 0 {
                let page = self.page_of_level(tree, &ptr, level).await?;
                stack.extend((0..page.len()).map(|index| (page.child(index), level - 1)));
            }
        }
        Ok((pages, blocks))
    }

    /// What the leaves of a tree hold. All of them are read.
    pub(crate) async fn count_records(
        &self,
        tree: TreeId,
        root: &TreeRoot,
        pace: &dyn Pace,
    ) -> Result<Counts, ReadError> {
        let mut stack = vec![(root.ptr, root.level)];
        let mut counts = Counts::default();
        while let Some((ptr, level)) = stack.pop() {
            let page = self.page_of_level(tree, &ptr, level).await?;
            for index in 0..page.len() {
                match level {
                    0 => counts.add(page.key(index).len(), page.stored_len(index)),
                    _ => stack.push((page.child(index), level - 1)),
                }
            }
            rest(pace).await;
        }
        Ok(counts)
    }

    /// Looks a key up if every page on the way is in memory.
    pub(crate) fn try_get(
        &self,
        root: &TreeRoot,
        key: &[u8],
    ) -> Option<Option<(Stored, VersionToken)>> {
        let leaf = self.try_leaf_page(root, key)?;
        let at = |index| (Stored::at(&leaf, index), leaf.token());
        Some(leaf.find(key).map(at))
    }

    /// The length of a key's value if every page on the way is in memory. The value is not touched.
    pub(crate) fn try_len(
        &self,
        root: &TreeRoot,
        key: &[u8],
    ) -> Option<Option<(u64, VersionToken)>> {
        let leaf = self.try_leaf_page(root, key)?;
        let at = |index| (leaf.stored_len(index), leaf.token());
        Some(leaf.search(key).ok().map(at))
    }

    /// The leaf in whose range `key` lies, if every page on the way is in memory.
    #[inline]
    fn try_leaf_page(&self, root: &TreeRoot, key: &[u8]) -> Option<Rc<Page>> {
        let mut ptr = root.ptr;
        let mut level = root.level;
        loop {
            let page = self.cache.get(ptr.block)?;
            if level == 0 {
                return (page.kind() == PageKind::Leaf).then_some(page);
            }
            if page.kind() != PageKind::Inner || page.level() != level {
                return None;
            }
            ptr = page.child(page.child_index(key));
            level -= 1;
        }
    }

    /// Looks a key up.
    pub(crate) async fn get(
        &self,
        tree: TreeId,
        root: &TreeRoot,
        key: &[u8],
    ) -> Result<Option<(Stored, VersionToken)>, ReadError> {
        let Leaf { page, .. } = self.leaf(tree, root, Seek::At(key)).await?;
        let at = |index| (Stored::at(&page, index), page.token());
        Ok(page.search(key).ok().map(at))
    }

    /// The value, if it is in memory; else what it was asked for.
    pub(crate) fn try_value(&self, stored: Stored) -> Result<Bytes, Stored> {
        match stored {
            Stored::Inline(value) => Ok(value),
            Stored::Overflow(overflow) => self
                .cache
                .get(overflow.ptr.block)
                .filter(|page| page.kind() == PageKind::Overflow)
                .map(|page| page.payload())
                .filter(|value| value.len() == overflow.len as usize)
                .ok_or(Stored::Overflow(overflow)),
        }
    }

    /// The value, from memory or disk.
    pub(crate) async fn value(&self, tree: TreeId, stored: &Stored) -> Result<Bytes, ReadError> {
        match stored {
            Stored::Inline(value) => Ok(value.clone()),
            Stored::Overflow(overflow) => {
                let page = self.page(&overflow.ptr, tree).await?;
                if page.kind() != PageKind::Overflow
                    || page.payload().len() != overflow.len as usize
                {
                    return Err(self.file.corrupt(
                        overflow.ptr.offset(),
                        "the extent is not the value its leaf names",
                    ));
                }
                Ok(page.payload())
            }
        }
    }
}

/// A page and the range of keys that belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub ptr: PagePtr,
    pub lower: Key,
    pub upper: Option<Key>,
}
