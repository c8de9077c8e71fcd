//! Reading a copy-on-write B+tree: descent to a leaf, in place when every page is in memory and asynchronously otherwise.

use std::ops::Bound;
use std::rc::Rc;

use bytes::Bytes;

use super::page::{OverflowRef, Page, PageKind, PagePtr};
use super::roots::TreeRoot;
use super::store::PageStore;
use crate::types::{Direction, Key, ReadError, TreeId};

/// Records before the end of a leaf at which a cursor asks for the slots of the next leaf, and then for its first record.
const PAGE_AHEAD: usize = 4;
const RECORD_AHEAD: usize = 1;

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

/// The inner page above a leaf, by which its neighbours are found without another descent.
#[derive(Clone, Debug)]
pub(crate) struct Above {
    page: Rc<Page>,
    /// Every key below the page is below it; none for the last page of its level.
    upper: Option<Key>,
}

/// A leaf and where it hangs.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub page: Rc<Page>,
    /// None if the leaf is the whole tree.
    above: Option<Above>,
    /// The leaf's place in the page above it.
    place: usize,
}

impl Leaf {
    /// Whether the key lies in the leaf's range.
    fn covers(&self, key: &[u8]) -> bool {
        let Some(above) = &self.above else {
            return true;
        };
        let next = self.place + 1;
        above.page.compare(self.place, key).is_le()
            && if next < above.page.len() {
                above.page.compare(next, key).is_gt()
            } else {
                above
                    .upper
                    .as_ref()
                    .is_none_or(|upper| key < upper.as_slice())
            }
    }

    /// Leaves the leaf for its neighbour.
    fn beyond(self, direction: Direction) -> BaseCursor {
        let Some(above) = self.above else {
            return BaseCursor::End;
        };
        match direction {
            Direction::Forward if self.place + 1 < above.page.len() => BaseCursor::Beside {
                above,
                place: self.place + 1,
            },
            Direction::Forward => above.upper.map_or(BaseCursor::End, BaseCursor::Next),
            Direction::Reverse if self.place > 0 => BaseCursor::Beside {
                above,
                place: self.place - 1,
            },
            Direction::Reverse => match above.page.key(0) {
                lower if lower.is_empty() => BaseCursor::End,
                lower => BaseCursor::Previous(lower),
            },
        }
    }

    /// The leaf to which a cursor goes when it leaves this one, as far as it hangs on the same inner page.
    fn neighbour(&self, direction: Direction) -> Option<PagePtr> {
        let above = self.above.as_ref()?;
        let place = match direction {
            Direction::Forward => Some(self.place + 1).filter(|&place| place < above.page.len()),
            Direction::Reverse => self.place.checked_sub(1),
        };
        place.map(|place| above.page.child(place))
    }
}

/// A descent under way. The bounds are the separators at these positions; only the last ones are made into keys.
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
            // A page of the wrong level was refused when it was loaded through its parent; it is not in the cache by
            // another way, because a block belongs to one page as long as a root refers to it.
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

    /// The page of `level` in whose range `key` lies, with that range; the page itself is not loaded.
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

    /// The leaves behind the one to which `seek` leads, in `direction`: at most `most`, as far as they hang on the same inner
    /// page and that is in memory, and only those that are not.
    fn leaves_ahead(
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

    /// The children of an inner page behind the one at `place`, in `direction`: those that are not in memory of at most `most`.
    fn children_ahead(
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

    /// Looks a key up if every page on the way is in memory.
    pub(crate) fn try_get(&self, root: &TreeRoot, key: &[u8]) -> Option<Option<Stored>> {
        let leaf = self.try_leaf_page(root, key)?;
        Some(leaf.find(key).map(|index| Stored::at(&leaf, index)))
    }

    /// The length of a key's value if every page on the way is in memory. The value is not touched.
    pub(crate) fn try_len(&self, root: &TreeRoot, key: &[u8]) -> Option<Option<u64>> {
        let leaf = self.try_leaf_page(root, key)?;
        Some(leaf.search(key).ok().map(|index| leaf.stored_len(index)))
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
    ) -> Result<Option<Stored>, ReadError> {
        let leaf = self.leaf(tree, root, Seek::At(key)).await?;
        Ok(leaf
            .page
            .search(key)
            .ok()
            .map(|index| Stored::at(&leaf.page, index)))
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

/// A position in a tree, in one direction. It refers to the root it was placed in: the caller places it anew when it goes
/// on in another.
#[derive(Debug, Default)]
pub(crate) enum BaseCursor {
    /// Nowhere yet.
    #[default]
    Unplaced,
    /// On a record.
    On { leaf: Leaf, index: usize },
    /// Between two leaves that hang on the same inner page: the next one is at this place there.
    Beside { above: Above, place: usize },
    /// Between two leaves: the next one begins with this key.
    Next(Key),
    /// Between two leaves: the next one ends below this key.
    Previous(Key),
    /// Past the last record.
    End,
}

impl BaseCursor {
    /// The leaf to go to for the first record beyond `from`.
    fn entry<'a>(from: Bound<&'a [u8]>, direction: Direction) -> Seek<'a> {
        match (from, direction) {
            (Bound::Included(key) | Bound::Excluded(key), _) => Seek::At(key),
            (Bound::Unbounded, Direction::Forward) => Seek::At(&[]),
            (Bound::Unbounded, Direction::Reverse) => Seek::Last,
        }
    }

    /// Goes to the first record of `leaf` beyond `from`, or to the edge of the leaf.
    fn enter(leaf: Leaf, from: Bound<&[u8]>, direction: Direction) -> BaseCursor {
        let len = leaf.page.len();
        // The position of the first record on the far side of `from`, in forward order.
        let split = match (from, direction) {
            (Bound::Unbounded, Direction::Forward) => 0,
            (Bound::Unbounded, Direction::Reverse) => len,
            (Bound::Included(key), Direction::Forward)
            | (Bound::Excluded(key), Direction::Reverse) => {
                leaf.page.search(key).unwrap_or_else(|index| index)
            }
            (Bound::Excluded(key), Direction::Forward)
            | (Bound::Included(key), Direction::Reverse) => leaf
                .page
                .search(key)
                .map_or_else(|index| index, |index| index + 1),
        };
        match direction {
            Direction::Forward if split < len => BaseCursor::On { leaf, index: split },
            Direction::Reverse if split > 0 => BaseCursor::On {
                leaf,
                index: split - 1,
            },
            direction => leaf.beyond(direction),
        }
    }

    /// Whether the cursor stands on a record or at the end, so that nothing need be loaded.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, BaseCursor::On { .. } | BaseCursor::End)
    }

    /// The record it stands on, if it stands on one.
    pub(crate) fn standing(&self) -> Option<(&Page, usize)> {
        match self {
            BaseCursor::On { leaf, index } => Some((&leaf.page, *index)),
            _ => None,
        }
    }

    /// The record it stands on; none at the end.
    pub(crate) fn record(&self) -> Option<(&Rc<Page>, usize)> {
        match self {
            BaseCursor::On { leaf, index } => Some((&leaf.page, *index)),
            BaseCursor::End => None,
            _ => panic!("a base cursor is read before it is placed"),
        }
    }

    /// Goes on by one record if the leaf has another.
    #[inline]
    pub(crate) fn advance_within(&mut self, direction: Direction) -> bool {
        let BaseCursor::On { leaf, index } = self else {
            panic!("a base cursor advances from a record")
        };
        match direction {
            Direction::Forward if *index + 1 < leaf.page.len() => *index += 1,
            Direction::Reverse if *index > 0 => *index -= 1,
            _ => return false,
        }
        true
    }

    /// Goes on by one record within the leaf, or to its edge.
    pub(crate) fn advance(&mut self, direction: Direction) {
        if !self.advance_within(direction)
            && let BaseCursor::On { leaf, .. } = std::mem::take(self)
        {
            *self = leaf.beyond(direction);
        }
    }

    /// The key from which [`BaseCursor::advance_within`] has just gone on.
    pub(crate) fn behind(&self, direction: Direction) -> Key {
        let BaseCursor::On { leaf, index } = self else {
            panic!("a base cursor that went on within a leaf stands there")
        };
        leaf.page.key(match direction {
            Direction::Forward => index - 1,
            Direction::Reverse => index + 1,
        })
    }

    /// Where to go on from an edge; `from` counts only for a cursor that is nowhere yet.
    fn target<'a>(
        &'a self,
        from: Bound<&'a [u8]>,
        direction: Direction,
    ) -> (Seek<'a>, Bound<&'a [u8]>) {
        match self {
            BaseCursor::Unplaced => (BaseCursor::entry(from, direction), from),
            BaseCursor::Next(key) => (Seek::At(key), Bound::Unbounded),
            BaseCursor::Previous(key) => (Seek::Below(key), Bound::Unbounded),
            BaseCursor::Beside { .. } | BaseCursor::On { .. } | BaseCursor::End => {
                panic!("a base cursor that knows its page needs no descent")
            }
        }
    }

    /// The leaves that a cursor which has left one comes to after the next: at most `most`, and only those that are not in
    /// memory. None for one that was placed by a key.
    pub(crate) fn leaves_ahead(
        &self,
        store: &PageStore,
        root: &TreeRoot,
        direction: Direction,
        most: usize,
    ) -> Vec<PagePtr> {
        let seek = match self {
            BaseCursor::Beside { above, place } => {
                return store.children_ahead(&above.page, *place, direction, most);
            }
            BaseCursor::Next(key) => Seek::At(key),
            BaseCursor::Previous(key) => Seek::Below(key),
            BaseCursor::Unplaced | BaseCursor::On { .. } | BaseCursor::End => return Vec::new(),
        };
        store.leaves_ahead(root, seek, direction, most)
    }

    /// Goes from beside a leaf onto it.
    fn onto(&mut self, page: Rc<Page>, direction: Direction) {
        let BaseCursor::Beside { above, place } = std::mem::take(self) else {
            panic!("only a cursor beside a leaf knows which it is")
        };
        let leaf = Leaf {
            page,
            above: Some(above),
            place,
        };
        *self = BaseCursor::enter(leaf, Bound::Unbounded, direction);
    }

    /// Makes the cursor ready if every page on the way is in memory.
    pub(crate) fn try_place(
        &mut self,
        store: &PageStore,
        root: Option<&TreeRoot>,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> bool {
        let Some(root) = root else {
            *self = BaseCursor::End;
            return true;
        };
        while !self.is_ready() {
            if let BaseCursor::Beside { above, place } = self {
                let page = store.cache.get(above.page.child(*place).block);
                let Some(page) = page.filter(|page| page.kind() == PageKind::Leaf) else {
                    return false;
                };
                self.onto(page, direction);
            } else {
                let (seek, from) = self.target(from, direction);
                let Some(leaf) = store.try_leaf(root, seek) else {
                    return false;
                };
                *self = BaseCursor::enter(leaf, from, direction);
            }
        }
        self.expect_more(store, direction);
        true
    }

    /// Makes the cursor ready.
    pub(crate) async fn place(
        &mut self,
        store: &PageStore,
        tree: TreeId,
        root: &TreeRoot,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<(), ReadError> {
        while !self.is_ready() {
            if let BaseCursor::Beside { above, place } = self {
                let ptr = above.page.child(*place);
                let page = store.page(&ptr, tree).await?;
                store.expect_level(&page, &ptr, 0)?;
                self.onto(page, direction);
            } else {
                let (seek, from) = self.target(from, direction);
                let leaf = store.leaf(tree, root, seek).await?;
                *self = BaseCursor::enter(leaf, from, direction);
            }
        }
        Ok(())
    }

    /// Has the processor fetch the record behind the one that the cursor stands on, and towards the end of the leaf what the
    /// next one begins with.
    #[inline]
    pub(crate) fn expect_more(&self, store: &PageStore, direction: Direction) {
        let BaseCursor::On { leaf, index } = self else {
            return;
        };
        let (next, left) = match direction {
            Direction::Forward => (index + 1, leaf.page.len() - index - 1),
            Direction::Reverse => (index.wrapping_sub(1), *index),
        };
        if left > 0 {
            leaf.page.expect_record(next);
        }
        if left != PAGE_AHEAD && left != RECORD_AHEAD {
            return;
        }
        if let Some(ptr) = leaf.neighbour(direction) {
            match left {
                PAGE_AHEAD => store.cache.expect(ptr.block),
                _ => store.cache.expect_record(ptr.block, direction),
            }
        }
    }

    /// Goes to the first record beyond `from` without leaving the leaf, if it lies there.
    pub(crate) fn seek_within(&mut self, from: Bound<&[u8]>, direction: Direction) {
        let stays = match (&*self, from) {
            (BaseCursor::On { leaf, .. }, Bound::Included(key) | Bound::Excluded(key)) => {
                leaf.covers(key)
            }
            _ => false,
        };
        *self = match std::mem::take(self) {
            BaseCursor::On { leaf, .. } if stays => BaseCursor::enter(leaf, from, direction),
            _ => BaseCursor::Unplaced,
        };
    }
}
