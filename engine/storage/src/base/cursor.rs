//! A position in a tree: it goes from record to record, and from a leaf to its neighbour through
//! the inner page above them.

use std::ops::Bound;
use std::rc::Rc;

use super::page::{Page, PageKind, PagePtr};
use super::roots::TreeRoot;
use super::store::PageStore;
use super::tree::Seek;
use crate::types::{Direction, Key, ReadError, TreeId};

/// Records before the end of a leaf at which a cursor asks for the slots of the next leaf, and then
/// for its first record.
const PAGE_AHEAD: usize = 4;
const RECORD_AHEAD: usize = 1;

/// The inner page above a leaf, by which its neighbours are found without another descent.
#[derive(Clone, Debug)]
pub(crate) struct Above {
    pub(super) page: Rc<Page>,
    /// Every key below the page is below it; none for the last page of its level.
    pub(super) upper: Option<Key>,
}

/// A leaf and where it hangs.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub page: Rc<Page>,
    /// None if the leaf is the whole tree.
    pub(super) above: Option<Above>,
    /// The leaf's place in the page above it.
    pub(super) place: usize,
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

    /// The leaf to which a cursor goes when it leaves this one, as far as it hangs on the same
    /// inner page.
    fn neighbour(&self, direction: Direction) -> Option<PagePtr> {
        let above = self.above.as_ref()?;
        let place = match direction {
            Direction::Forward => Some(self.place + 1).filter(|&place| place < above.page.len()),
            Direction::Reverse => self.place.checked_sub(1),
        };
        place.map(|place| above.page.child(place))
    }
}

/// A position in a tree, in one direction. It refers to the root it was placed in: the caller
/// places it again when it continues in another.
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

    /// Advances by one record if the leaf has another.
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

    /// Passes over this many records, and stands on the next: the leaf has all of them.
    pub(crate) fn pass(&mut self, records: usize, direction: Direction) {
        let BaseCursor::On { leaf, index } = self else {
            panic!("a base cursor passes over records from one on")
        };
        let target = match direction {
            Direction::Forward => index.checked_add(records),
            Direction::Reverse => index.checked_sub(records),
        };
        let target = target.filter(|&target| target < leaf.page.len());
        *index = target.expect("a base cursor stays in its leaf");
    }

    /// Advances by one record within the leaf, or to its edge.
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

    /// Where to continue from an edge; `from` counts only for a cursor that is not placed yet.
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

    /// A key of the page to which a cursor goes forwards that is not ready; `from` counts for one
    /// that is nowhere yet.
    pub(crate) fn goes_to(&self, from: Bound<&[u8]>) -> Key {
        match (self, from) {
            (BaseCursor::Beside { above, place }, _) => above.page.key(*place),
            (BaseCursor::Next(key), _) => key.clone(),
            (_, Bound::Included(key) | Bound::Excluded(key)) => Key::from_slice(key),
            (_, Bound::Unbounded) => Key::new(),
        }
    }

    /// The leaves that a cursor which has left one comes to after the next: at most `most`, and
    /// only those that are not in memory. None for one that was placed by a key.
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

    /// Has the processor fetch the record behind the one that the cursor stands on, and towards the
    /// end of the leaf what the next one begins with.
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

    /// Has the processor fetch the slots of the leaf that a cursor comes to which has left another,
    /// as far as both hang on the same inner page.
    pub(crate) fn expect_next_leaf(&self, store: &PageStore) {
        if let BaseCursor::Beside { above, place } = self {
            store.cache.expect(above.page.child(*place).block);
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
