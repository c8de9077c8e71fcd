//! Blocks: the records that a cursor comes to next, as many as it can give without waiting.
//!
//! Where neither a change nor an intent lies among the records of a leaf, one look decides for all
//! of them that the read sees what the base has, and the block lends them from the page. All others
//! are taken one by one, by the steps that [`Cursor::next`] takes.

use std::collections::VecDeque;
use std::ops::Bound;
use std::rc::Rc;

use bytes::Bytes;

use super::{Advanced, Cursor, Step};
use crate::base::Page;
use crate::types::{Direction, Key, ReadError};

/// The most single steps for one block, and the most pieces. A short read fills few blocks, so the
/// limit starts low and grows with each of them.
const FIRST_STEPS: usize = 4;
const STEPS_GROWTH: usize = 4;
const MAX_STEPS: usize = 64;
/// Keys and values that lie in no leaf: no step is taken behind this many bytes.
const MAX_STEP_BYTES: usize = 64 * 1024;

/// Records that follow each other in a tree, in the direction of the cursor that filled the block.
/// It holds a page at most, beside the keys and values of changed records.
#[derive(Default)]
pub struct Block {
    pieces: VecDeque<Piece>,
    direction: Option<Direction>,
    behind: Behind,
    /// The cursor has passed over keys behind the last record, which had no version to be seen, or
    /// has come to the end of its range there.
    skipped: bool,
    /// The limit of steps when the block was filled last.
    steps: usize,
}

/// Some records of a block.
enum Piece {
    /// Records of a leaf, `left` of them from the one at `next` on.
    Leaf {
        page: Rc<Page>,
        first: usize,
        next: usize,
        left: usize,
    },
    Record(Key, Bytes),
}

/// What stands before the first of a block's pieces.
enum Behind {
    /// Where the cursor stood.
    Start(Bound<Key>),
    /// A record of a leaf that was passed.
    InLeaf(Rc<Page>, usize),
    /// The key of another record that was passed.
    Record(Key),
}

impl Default for Behind {
    fn default() -> Behind {
        Behind::Start(Bound::Unbounded)
    }
}

/// A record that a block lends.
#[derive(Clone, Copy)]
pub struct BlockRecord<'b>(Lent<'b>);

#[derive(Clone, Copy)]
enum Lent<'b> {
    InLeaf(&'b Page, usize),
    Record(&'b Key, &'b Bytes),
}

impl<'b> BlockRecord<'b> {
    /// A copy of the key.
    pub fn key(&self) -> Key {
        match self.0 {
            Lent::InLeaf(page, index) => page.key(index),
            Lent::Record(key, _) => Key::from_slice(key),
        }
    }

    /// The value, where it lies.
    pub fn value(&self) -> &'b [u8] {
        match self.0 {
            Lent::InLeaf(page, index) => page.value_bytes(index),
            Lent::Record(_, value) => value,
        }
    }

    /// The value as a slice that shares the buffer of a page or of the delta.
    pub fn to_bytes(&self) -> Bytes {
        match self.0 {
            Lent::InLeaf(page, index) => page.value(index),
            Lent::Record(_, value) => value.clone(),
        }
    }
}

impl Block {
    /// Whether every record was passed.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The next record.
    #[inline]
    pub fn front(&self) -> Option<BlockRecord<'_>> {
        let lent = match self.pieces.front()? {
            Piece::Leaf { page, next, .. } => Lent::InLeaf(page, *next),
            Piece::Record(key, value) => Lent::Record(key, value),
        };
        Some(BlockRecord(lent))
    }

    /// Passes the next record.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn pass(&mut self) {
        match self.pieces.front_mut() {
            Some(Piece::Leaf {
                page, next, left, ..
            }) if *left > 1 => {
                *left -= 1;
                match self.direction {
                    Some(Direction::Reverse) => {
                        *next -= 1;
                        page.expect_record(next.saturating_sub(1));
                    }
                    _ => {
                        *next += 1;
                        page.expect_record((*next + 1).min(page.len() - 1));
                    }
                }
            }
            _ => self.pass_piece(),
        }
    }

    /// Passes up to `most` records without a look at each, and gives how many.
    pub fn pass_many(&mut self, most: usize) -> usize {
        let mut passed = 0;
        while passed < most {
            match self.pieces.front_mut() {
                None => break,
                Some(Piece::Leaf { next, left, .. }) if *left > 1 => {
                    let here = (*left - 1).min(most - passed);
                    *left -= here;
                    match self.direction {
                        Some(Direction::Reverse) => *next -= here,
                        _ => *next += here,
                    }
                    passed += here;
                }
                Some(_) => {
                    self.pass_piece();
                    passed += 1;
                }
            }
        }
        passed
    }

    /// Passes the records in front of `key`, by a search in each piece. False where none is left.
    fn pass_before(&mut self, key: &[u8]) -> bool {
        while let Some(piece) = self.pieces.front() {
            let in_front = match (piece, self.direction) {
                (Piece::Record(record, _), Some(Direction::Reverse)) => {
                    usize::from(record.as_slice() > key)
                }
                (Piece::Record(record, _), _) => usize::from(record.as_slice() < key),
                (Piece::Leaf { page, next, .. }, Some(Direction::Reverse)) => {
                    let first = page.search(key).map_or_else(|at| at, |at| at + 1);
                    (next + 1).saturating_sub(first)
                }
                (Piece::Leaf { page, next, .. }, _) => {
                    let first = page.search(key).unwrap_or_else(|at| at);
                    first.saturating_sub(*next)
                }
            };
            let left = match piece {
                Piece::Leaf { left, .. } => *left,
                Piece::Record(..) => 1,
            };
            self.pass_many(in_front.min(left));
            if in_front < left {
                return true;
            }
        }
        false
    }

    /// Passes the last record of a piece.
    fn pass_piece(&mut self) {
        let piece = self.pieces.pop_front();
        self.behind = match piece.expect("a record of a block that has one is passed") {
            Piece::Leaf { page, next, .. } => Behind::InLeaf(page, next),
            Piece::Record(key, _) => Behind::Record(key),
        };
    }

    /// Where a cursor stands that has given what was passed, and nothing else.
    fn position(&self) -> Bound<Key> {
        if let Some(Piece::Leaf {
            page, first, next, ..
        }) = self.pieces.front()
            && first != next
        {
            let last = match self.direction {
                Some(Direction::Reverse) => next + 1,
                _ => next - 1,
            };
            return Bound::Excluded(page.key(last));
        }
        match &self.behind {
            Behind::Start(from) => copied(from),
            Behind::InLeaf(page, index) => Bound::Excluded(page.key(*index)),
            Behind::Record(key) => Bound::Excluded(Key::from_slice(key)),
        }
    }

    fn push(&mut self, piece: Piece) {
        self.pieces.push_back(piece);
        self.skipped = false;
    }

    /// Releases everything in the block.
    fn clear(&mut self) {
        self.pieces.clear();
        self.behind = Behind::default();
        self.skipped = false;
    }
}

impl Cursor {
    /// Puts the next records into a block, which must be empty: what [`Cursor::next`] would give
    /// between the call and its end. False at the end of the range. Waits for nothing where `next`
    /// would not, and at most for one record.
    ///
    /// The cursor stands behind the last record of the block. [`Cursor::take_back`] has it continue
    /// behind the last that was passed; before the cursor is renewed, or placed elsewhere, that
    /// comes first.
    ///
    /// # Errors
    /// Those of [`Cursor::next`]; the block is empty then.
    pub async fn fill(&mut self, block: &mut Block) -> Result<bool, ReadError> {
        if self.try_fill(block) {
            return Ok(true);
        }
        match self.advance().await? {
            Advanced::Record(key, read) => {
                block.push(Piece::Record(key, read.value));
                self.gather(block);
                Ok(true)
            }
            Advanced::Unreadable(_, error) => Err(error),
            Advanced::End => Ok(false),
        }
    }

    /// As [`Cursor::fill`], but false where that would wait, has an error, or is at the end.
    ///
    /// # Panics
    /// Where something is left of the block.
    pub fn try_fill(&mut self, block: &mut Block) -> bool {
        assert!(block.is_empty(), "a block is filled when all was passed");
        self.settle_from();
        block.direction = Some(self.direction);
        block.behind = Behind::Start(copied(&self.from));
        block.skipped = false;
        block.steps = (STEPS_GROWTH * block.steps).clamp(FIRST_STEPS, MAX_STEPS);
        self.gather(block);
        !block.is_empty()
    }

    /// Continues behind the last record that was passed in the block; the others come again, as the
    /// cursor finds them then. The block, which this cursor has filled, is empty afterwards.
    pub fn take_back(&mut self, block: &mut Block) {
        // What was passed over may be there now.
        if !block.is_empty() || block.skipped {
            assert!(
                block.direction == Some(self.direction),
                "a block goes back to another cursor"
            );
            self.stand(block.position());
        }
        block.clear();
    }

    /// Continues at `key`, which lies ahead of what was passed in the block: as [`Cursor::seek`]
    /// does, but within the block as far as that goes. Records in front of `key` count as passed:
    /// after [`Cursor::take_back`] the cursor stands behind the last of them, so a record that
    /// appears between that and `key` is given.
    ///
    /// # Panics
    /// Where another cursor has filled the block, in another direction.
    pub fn seek_ahead(&mut self, block: &mut Block, key: &[u8]) {
        assert!(
            block.is_empty() || block.direction == Some(self.direction),
            "a block is searched for another cursor"
        );
        if !block.pass_before(key) {
            self.take_back(block);
            self.seek(key);
        }
    }

    /// Adds what comes next to a block, as far as that waits for nothing. The end of a leaf ends
    /// the block too, so that it keeps one page in memory and not many.
    fn gather(&mut self, block: &mut Block) {
        let mut bytes = 0;
        for _ in 0..block.steps {
            let is_full = bytes >= MAX_STEP_BYTES || block.pieces.len() >= block.steps;
            let has_left_leaf = !block.is_empty() && !self.base.is_ready();
            if is_full || has_left_leaf {
                return;
            }
            bytes += self.take_ahead(block);
            if let Some(piece) = self.take_leaf() {
                block.push(piece);
                continue;
            }
            if !self.steps_without_waiting() {
                return;
            }
            match self.step() {
                Ok(Step::Found(key, read)) => {
                    bytes += key.len() + read.value.len();
                    block.push(Piece::Record(key, read.value));
                }
                Ok(Step::Skipped) => block.skipped = true,
                Ok(Step::End) => {
                    (self.done, block.skipped) = (true, true);
                    return;
                }
                Ok(Step::Large(..)) => unreachable!("no value is elsewhere"),
                // Found once more by the step that waits for it, or gives the error.
                Ok(Step::Undecided(_) | Step::Load(..) | Step::Runs(_)) | Err(_) => return,
            }
        }
    }

    /// Takes the records that were read ahead, and gives the bytes of their keys and values.
    fn take_ahead(&mut self, block: &mut Block) -> usize {
        if self.done || self.pin.is_err() {
            return 0;
        }
        let mut bytes = 0;
        let count = self.to_pass_ahead();
        for (key, read) in self.ahead.records.drain(..count) {
            bytes += key.len() + read.value.len();
            block.push(Piece::Record(key, read.value));
        }
        if let Some(Piece::Record(last, _)) = block.pieces.back()
            && count > 0
        {
            self.from = Bound::Excluded(Key::from_slice(last));
        }
        bytes
    }

    /// Takes the records of the leaf that come next, up to a value that does not lie in the page.
    fn take_leaf(&mut self) -> Option<Piece> {
        if self.done || self.pin.is_err() {
            return None;
        }
        let partition = self.partition.clone();
        let (page, first, left) = {
            let state = partition.state.borrow();
            let view = state.views.of(self.at).ok()?;
            if self.place_base(&partition, view).is_some() {
                return None;
            }
            let unchanged = self.unchanged_in_leaf(&state, view);
            let (page, first) = self.base.record()?;
            let is_inline = |step: &usize| {
                !page.is_overflow(match self.direction {
                    Direction::Forward => first + step,
                    Direction::Reverse => first - step,
                })
            };
            let left = (0..unchanged).take_while(is_inline).count();
            (page.clone(), first, left)
        };
        let last = left.checked_sub(1)?;
        self.base.pass(last, self.direction);
        let last_key = page.key(match self.direction {
            Direction::Forward => first + last,
            Direction::Reverse => first - last,
        });
        self.advance_past(&last_key);
        self.base.expect_next_leaf(&partition.store);
        Some(Piece::Leaf {
            page,
            first,
            next: first,
            left,
        })
    }

    /// Whether [`Cursor::step`] comes to an end at once: neither a page, nor a run, nor a value
    /// that lies elsewhere is needed for it.
    fn steps_without_waiting(&self) -> bool {
        if self.done || self.pin.is_err() {
            return false;
        }
        let state = self.partition.state.borrow();
        let Ok(view) = state.views.of(self.at) else {
            return false;
        };
        self.base_number == view.number()
            && self.base.is_ready()
            && !state.has_runs(view)
            && (self.base.record()).is_none_or(|(page, index)| !page.is_overflow(index))
    }
}

/// The same bound, with the key copied at once, where `clone` would go byte by byte.
fn copied(bound: &Bound<Key>) -> Bound<Key> {
    bound.as_ref().map(|key| Key::from_slice(key))
}
