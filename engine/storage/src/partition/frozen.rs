//! Frozen states: what a checkpoint has left in the page file stays there, whatever comes after it,
//! until it was copied.
//!
//! A frozen state is a set of extents. What later checkpoints free of it is not reused while it is
//! frozen; to a node that opens the directory after a crash it is free, as nothing in there names
//! the copier. Nothing of it is kept in memory, and no snapshot of it can be read. At most the
//! whole state is kept, once more than the partition needs.

use bytes::Bytes;

use super::core::Partition;
use crate::base::{Extent, FreeSpace, PartitionRoots};
use crate::limits::{BLOCK_BYTES, FROZEN_GAP_BLOCKS, FROZEN_READ_BLOCKS, IO_BYTES};
use crate::types::ReadError;

/// A state of the base whose extents are kept.
pub(super) struct Frozen {
    number: u64,
    /// What it refers to, ascending and joined; the blocks between are free in it.
    used: Vec<Extent>,
}

/// A piece of a frozen state.
pub(crate) struct FrozenPart {
    /// Where it lies in the page file.
    pub(crate) offset: u64,
    /// Whole blocks; those that the state does not refer to may be among them. None at the end.
    pub(crate) bytes: Bytes,
}

impl Frozen {
    fn new(number: u64, free: &FreeSpace) -> Frozen {
        let mut used = Vec::new();
        let mut at = 0;
        let end = Extent {
            start: free.end(),
            blocks: 0,
        };
        for gap in free.extents().chain([end]) {
            if gap.start > at {
                used.push(Extent {
                    start: at,
                    blocks: gap.start - at,
                });
            }
            at = gap.end();
        }
        Frozen { number, used }
    }

    /// The first extent of it that ends above a block, and its place.
    fn first_above(&self, block: u64) -> usize {
        self.used.partition_point(|extent| extent.end() <= block)
    }

    /// Whether a block of the extent belongs to it.
    pub(super) fn needs(&self, extent: Extent) -> bool {
        let next = self.used.get(self.first_above(extent.start));
        next.is_some_and(|used| used.start < extent.end())
    }

    /// What is to be read next, from a block on; none at the end. Short gaps are read with what is
    /// around them.
    fn next(&self, block: u64) -> Option<Extent> {
        let mut extents = self.used[self.first_above(block)..].iter();
        let first = extents.next()?;
        let start = first.start.max(block);
        let most = start + FROZEN_READ_BLOCKS;
        let mut end = first.end();
        for extent in extents {
            if end >= most || extent.start - end > FROZEN_GAP_BLOCKS {
                break;
            }
            end = extent.end();
        }
        Some(Extent {
            start,
            blocks: end.min(most) - start,
        })
    }
}

impl Partition {
    /// Freezes the current state under a number, which is what a manifest says of this partition.
    /// No checkpoint is under way.
    ///
    /// # Errors
    /// The list of free extents cannot be read.
    pub(crate) async fn freeze(
        &self,
        number: u64,
        roots: &PartitionRoots,
    ) -> Result<(), ReadError> {
        let free = self.store.free_space_of(roots).await?;
        let mut state = self.state.borrow_mut();
        assert_eq!(
            state.views.current().roots,
            *roots,
            "another state is frozen than the manifest has"
        );
        state.frozen.push(Frozen::new(number, &free));
        Ok(())
    }

    /// Ends [`Partition::freeze`]; nothing happens if there is no such state.
    pub(crate) fn thaw(&self, number: u64) {
        let state = &mut *self.state.borrow_mut();
        state.frozen.retain(|frozen| frozen.number != number);
        let frozen = &state.frozen;
        let needed = |extent: &Extent| frozen.iter().any(|frozen| frozen.needs(*extent));
        let released = state
            .frozen_extents
            .extract_if(.., |extent| !needed(extent));
        let released: Vec<Extent> = released.collect();
        self.begin_release(state, released);
    }

    /// The next piece of a frozen state, from an offset on; `None` if there is no such state any
    /// more.
    ///
    /// # Errors
    /// The device's.
    pub(crate) async fn read_frozen(
        &self,
        number: u64,
        offset: u64,
    ) -> Result<Option<FrozenPart>, ReadError> {
        let block = offset.div_ceil(BLOCK_BYTES as u64);
        let next = {
            let state = self.state.borrow();
            let mut frozen = state.frozen.iter();
            match frozen.find(|frozen| frozen.number == number) {
                None => return Ok(None),
                Some(frozen) => frozen.next(block),
            }
        };
        let Some(extent) = next else {
            return Ok(Some(FrozenPart {
                offset,
                bytes: Bytes::new(),
            }));
        };
        let (offset, len) = (
            extent.start * BLOCK_BYTES as u64,
            extent.blocks as usize * BLOCK_BYTES,
        );
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let part = (len - bytes.len()).min(IO_BYTES);
            let at = offset + bytes.len() as u64;
            let read = self.store.file.read_bytes(at, part).await?;
            if read.len() < part {
                return Err(self
                    .store
                    .file
                    .corrupt(at, "the file ends before its state"));
            }
            bytes.extend_from_slice(&read);
        }
        // What was read while the state was given up may be of another.
        let is_frozen = |frozen: &Frozen| frozen.number == number;
        let is_kept = self.state.borrow().frozen.iter().any(is_frozen);
        Ok(is_kept.then(|| FrozenPart {
            offset,
            bytes: Bytes::from(bytes),
        }))
    }

    /// Bytes that a frozen state refers to; 0 if there is none of this number.
    pub(crate) fn frozen_bytes(&self, number: u64) -> u64 {
        let state = self.state.borrow();
        let frozen = state.frozen.iter().filter(|frozen| frozen.number == number);
        let used = frozen.flat_map(|frozen| &frozen.used);
        used.map(|extent| extent.blocks * BLOCK_BYTES as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frozen(end: u64, free: &[(u64, u64)]) -> Frozen {
        let mut space = FreeSpace::new(end);
        for &(start, blocks) in free {
            space.release(Extent { start, blocks });
        }
        Frozen::new(1, &space)
    }

    #[test]
    fn what_is_not_free_is_needed() {
        let check = |free: &[(u64, u64)], expected: &[(u64, u64)]| {
            let found = frozen(100, free);
            let used: Vec<(u64, u64)> = found.used.iter().map(|e| (e.start, e.blocks)).collect();
            assert_eq!(used, expected);
            for start in 0..110 {
                for blocks in 1..4 {
                    let inside = |block: u64| {
                        block < 100
                            && !free
                                .iter()
                                .any(|&(at, len)| (at..at + len).contains(&block))
                    };
                    let needs = (start..start + blocks).any(inside);
                    assert_eq!(
                        found.needs(Extent { start, blocks }),
                        needs,
                        "{start} {blocks}"
                    );
                }
            }
        };
        check(&[], &[(0, 100)]);
        check(&[(10, 5), (50, 50)], &[(0, 10), (15, 35)]);
        check(&[(1, 1), (3, 97)], &[(0, 1), (2, 1)]);
    }

    #[test]
    fn pieces_cover_all_that_is_needed() {
        let most = FROZEN_READ_BLOCKS;
        let check = |end: u64, free: &[(u64, u64)], expected: &[(u64, u64)]| {
            let found = frozen(end, free);
            let (mut at, mut pieces) = (0, Vec::new());
            while let Some(piece) = found.next(at) {
                assert!(piece.blocks > 0 && piece.blocks <= most);
                at = piece.end();
                pieces.push((piece.start, piece.blocks));
            }
            assert_eq!(pieces, expected);
        };
        check(10, &[], &[(0, 10)]);
        check(most + 3, &[], &[(0, most), (most, 3)]);
        check(50, &[(10, FROZEN_GAP_BLOCKS)], &[(0, 50)]);
        check(
            50,
            &[(10, FROZEN_GAP_BLOCKS + 1)],
            &[(0, 10), (11 + FROZEN_GAP_BLOCKS, 39 - FROZEN_GAP_BLOCKS)],
        );
        check(50, &[(40, 10)], &[(0, 40)]);
        check(
            2 * most,
            &[(most - 1, 3)],
            &[(0, most), (most + 2, most - 2)],
        );
    }
}
