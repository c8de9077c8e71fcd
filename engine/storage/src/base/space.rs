//! Which blocks of a page file are free: allocation, coalescing, and the form in which they are
//! stored.
//!
//! An allocation takes the smallest extent that is large enough, so that large extents stay whole
//! for large writes; the file grows only when no extent fits.

use std::collections::{BTreeMap, BTreeSet};

use super::page::{read_varint, write_varint};

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    /// First block.
    pub start: u64,
    /// Length in blocks, at least one.
    pub blocks: u64,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.blocks
    }
}

/// The free extents below the end of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeSpace {
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    free_blocks: u64,
    /// Blocks below this number exist; all others are beyond the end.
    end: u64,
    /// What was released since a walk over the extents began.
    released: Option<Vec<Extent>>,
}

impl FreeSpace {
    /// A file of `end` blocks, all in use.
    pub(crate) fn new(end: u64) -> FreeSpace {
        FreeSpace {
            end,
            ..FreeSpace::default()
        }
    }

    /// Blocks of the file, free or not.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Free blocks below the end.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// Takes between `least` and `most` blocks from the free extents: the best fit for `most`, else
    /// the largest extent that holds at least `least`. None if there is none: the file must grow.
    pub(crate) fn take(&mut self, least: u64, most: u64) -> Option<Extent> {
        assert!(least > 0 && least <= most);
        let &(blocks, start) = self
            .by_size
            .range((most, 0)..)
            .next()
            .or_else(|| self.by_size.range((least, 0)..).next_back())?;
        self.remove(Extent { start, blocks });
        let taken = Extent {
            start,
            blocks: blocks.min(most),
        };
        if blocks > taken.blocks {
            self.insert(Extent {
                start: taken.end(),
                blocks: blocks - taken.blocks,
            });
        }
        Some(taken)
    }

    /// Appends `blocks` at the end of the file as free space.
    pub(crate) fn grow(&mut self, blocks: u64) {
        let start = self.end;
        self.end += blocks;
        self.release(Extent { start, blocks });
    }

    /// Records what is released from now on, for a walk over the extents that takes several steps.
    pub(crate) fn record_released(&mut self) {
        self.released = Some(Vec::new());
    }

    /// What was released since [`FreeSpace::record_released`]; some of it may be in use again.
    /// Nothing more is recorded.
    pub(crate) fn take_released(&mut self) -> Vec<Extent> {
        self.released.take().unwrap_or_default()
    }

    /// Returns an extent and joins it with its neighbours.
    ///
    /// # Panics
    /// If a part of it is free already, or lies beyond the end: two pages would come to share a
    /// block.
    pub(crate) fn release(&mut self, extent: Extent) {
        assert!(
            extent.blocks > 0 && extent.end() <= self.end,
            "{extent:?} is released beyond the end {}",
            self.end
        );
        if let Some(released) = &mut self.released {
            released.push(extent);
        }
        let mut joined = extent;
        if let Some((&start, &blocks)) = self.by_start.range(..extent.end()).next_back() {
            let below = Extent { start, blocks };
            assert!(
                below.end() <= extent.start,
                "{extent:?} is released while {below:?} is free"
            );
            if below.end() == extent.start {
                self.remove(below);
                joined = Extent {
                    start,
                    blocks: blocks + joined.blocks,
                };
            }
        }
        if let Some(&blocks) = self.by_start.get(&joined.end()) {
            let above = Extent {
                start: joined.end(),
                blocks,
            };
            self.remove(above);
            joined.blocks += blocks;
        }
        self.insert(joined);
    }

    /// The free extents in order.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> {
        self.by_start.iter().map(extent)
    }

    /// The free extents that end above `block`, in order.
    pub(crate) fn extents_above(&self, block: u64) -> impl Iterator<Item = Extent> {
        let mut below = self.by_start.range(..block).map(extent);
        let around = below.next_back().filter(|below| below.end() > block);
        around
            .into_iter()
            .chain(self.by_start.range(block..).map(extent))
    }

    fn insert(&mut self, extent: Extent) {
        self.by_start.insert(extent.start, extent.blocks);
        self.by_size.insert((extent.blocks, extent.start));
        self.free_blocks += extent.blocks;
    }

    fn remove(&mut self, extent: Extent) {
        let blocks = self.by_start.remove(&extent.start);
        assert_eq!(blocks, Some(extent.blocks));
        assert!(self.by_size.remove(&(extent.blocks, extent.start)));
        self.free_blocks -= extent.blocks;
    }

    /// Reads the stored form for a file of `end` blocks; none if it is not sound.
    pub(crate) fn decode(bytes: &[u8], end: u64) -> Option<FreeSpace> {
        let mut rest = bytes;
        let mut next = || {
            let (value, len) = read_varint(rest)?;
            rest = &rest[len..];
            Some(value as u64)
        };
        let mut space = FreeSpace::new(end);
        let mut at = 0u64;
        for _ in 0..next()? {
            let start = at.checked_add(next()?)?;
            let blocks = next()?;
            at = start.checked_add(blocks)?;
            if blocks == 0 || at > end || space.by_start.range(start..).next().is_some() {
                return None;
            }
            space.insert(Extent { start, blocks });
        }
        rest.is_empty().then_some(space)
    }
}

fn extent((&start, &blocks): (&u64, &u64)) -> Extent {
    Extent { start, blocks }
}

/// A list of free extents, as a checkpoint stores it: in order, and joined with their neighbours.
pub(crate) struct FreeList(Vec<Extent>);

impl FreeList {
    /// The list of these extents, in any order; some may be named several times.
    pub(crate) fn new(mut extents: Vec<Extent>) -> FreeList {
        extents.sort_unstable();
        let mut list: Vec<Extent> = Vec::with_capacity(extents.len());
        for extent in extents {
            match list.last_mut().filter(|last| last.end() >= extent.start) {
                Some(last) => last.blocks = last.end().max(extent.end()) - last.start,
                None => list.push(extent),
            }
        }
        FreeList(list)
    }

    /// Adds the blocks by which the file has grown.
    pub(crate) fn push(&mut self, grown: Extent) {
        match self.0.last_mut().filter(|last| last.end() == grown.start) {
            Some(last) => last.blocks += grown.blocks,
            None => self.0.push(grown),
        }
    }

    /// Leaves out an extent.
    ///
    /// # Panics
    /// If it is not free as a whole.
    pub(crate) fn take(&mut self, taken: Extent) {
        let index = self.0.partition_point(|extent| extent.end() <= taken.start);
        let around = self.0.get(index).copied();
        let around = around
            .filter(|around| around.start <= taken.start && taken.end() <= around.end())
            .unwrap_or_else(|| panic!("{taken:?} is not free"));
        let parts = [(around.start, taken.start), (taken.end(), around.end())];
        let left = parts.iter().filter(|(start, end)| start < end);
        let left = left.map(|&(start, end)| Extent {
            start,
            blocks: end - start,
        });
        self.0.splice(index..=index, left);
    }

    /// The stored form: for each extent the gap since the previous one and its length, as LEB128
    /// numbers.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.0.len() * 3 + 16);
        let mut push = |value: u64| {
            let mut buffer = [0; 10];
            let len = write_varint(&mut buffer, value as usize);
            out.extend_from_slice(&buffer[..len]);
        };
        push(self.0.len() as u64);
        let mut at = 0;
        for extent in &self.0 {
            push(extent.start - at);
            push(extent.blocks);
            at = extent.end();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(end: u64, free: &[(u64, u64)]) -> FreeSpace {
        let mut space = FreeSpace::new(end);
        for &(start, blocks) in free {
            space.release(Extent { start, blocks });
        }
        space
    }

    fn encode(space: &FreeSpace) -> Vec<u8> {
        FreeList::new(space.extents().collect()).encode()
    }

    fn list(space: &FreeSpace) -> Vec<(u64, u64)> {
        space
            .extents()
            .map(|extent| (extent.start, extent.blocks))
            .collect()
    }

    #[test]
    fn neighbours_are_joined() {
        let check = |free: &[(u64, u64)], expected: &[(u64, u64)]| {
            assert_eq!(list(&space(100, free)), expected)
        };
        check(&[(0, 1), (2, 1), (1, 1)], &[(0, 3)]);
        check(&[(10, 5), (15, 5)], &[(10, 10)]);
        check(&[(15, 5), (10, 5), (0, 10)], &[(0, 20)]);
        check(&[(99, 1), (0, 1)], &[(0, 1), (99, 1)]);
    }

    #[test]
    fn the_best_fit_is_taken() {
        let free = [(0, 4), (10, 8), (30, 64)];
        let check = |least, most, expected: Option<(u64, u64)>| {
            let taken = space(100, &free)
                .take(least, most)
                .map(|extent| (extent.start, extent.blocks));
            assert_eq!(taken, expected);
        };
        check(1, 4, Some((0, 4)));
        check(1, 5, Some((10, 5)));
        check(1, 100, Some((30, 64)));
        check(65, 100, None);
        check(8, 64, Some((30, 64)));
    }

    #[test]
    #[should_panic(expected = "is released while")]
    fn a_double_release_is_refused() {
        space(100, &[(10, 5), (12, 1)]);
    }

    #[test]
    fn random_operations_against_a_bitmap() {
        let mut random = 1u64;
        let mut next = |n: u64| {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (random >> 33) % n
        };
        let mut space = FreeSpace::new(0);
        let mut used: Vec<bool> = Vec::new();
        let mut held: Vec<Extent> = Vec::new();
        for _ in 0..20_000 {
            if next(2) == 0 || held.is_empty() {
                let least = next(6) + 1;
                let most = least + next(20);
                match space.take(least, most) {
                    Some(extent) => {
                        assert!(extent.blocks >= least && extent.blocks <= most);
                        for block in extent.start..extent.end() {
                            assert!(!std::mem::replace(&mut used[block as usize], true));
                        }
                        held.push(extent);
                    }
                    None => {
                        space.grow(16);
                        used.resize(space.end() as usize, false);
                    }
                }
            } else {
                let extent = held.swap_remove(next(held.len() as u64) as usize);
                for block in extent.start..extent.end() {
                    assert!(std::mem::replace(&mut used[block as usize], false));
                }
                space.release(extent);
            }
        }
        assert_eq!(
            space.free_blocks(),
            used.iter().filter(|used| !**used).count() as u64
        );
        let again = FreeSpace::decode(&encode(&space), space.end()).unwrap();
        assert_eq!(list(&again), list(&space));
        for block in 0..=space.end() {
            let above: Vec<_> = space.extents_above(block).collect();
            let expected: Vec<_> = space.extents().filter(|free| free.end() > block).collect();
            assert_eq!(above, expected);
        }
    }

    #[test]
    fn a_list_is_what_its_extents_say() {
        let listed = |extents: &[(u64, u64)]| {
            let extents = extents
                .iter()
                .map(|&(start, blocks)| Extent { start, blocks });
            FreeList::new(extents.collect())
        };
        let check = |free: &FreeList, expected: &[(u64, u64)]| {
            let space = FreeSpace::decode(&free.encode(), 100).unwrap();
            assert_eq!(list(&space), expected);
        };
        check(&listed(&[]), &[]);
        check(
            &listed(&[(20, 5), (10, 2), (25, 1), (12, 1)]),
            &[(10, 3), (20, 6)],
        );
        // What has become free while they were gathered is there twice, or a part of something
        // larger.
        check(
            &listed(&[(10, 2), (10, 2), (9, 5), (11, 1), (13, 3)]),
            &[(9, 7)],
        );
        let taken = |start, blocks| {
            let mut free = listed(&[(10, 10), (30, 4)]);
            free.push(Extent {
                start: 34,
                blocks: 6,
            });
            free.push(Extent {
                start: 50,
                blocks: 2,
            });
            free.take(Extent { start, blocks });
            free
        };
        check(&taken(10, 10), &[(30, 10), (50, 2)]);
        check(&taken(10, 1), &[(11, 9), (30, 10), (50, 2)]);
        check(&taken(14, 2), &[(10, 4), (16, 4), (30, 10), (50, 2)]);
        check(&taken(33, 7), &[(10, 10), (30, 3), (50, 2)]);
        check(&taken(50, 2), &[(10, 10), (30, 10)]);
    }

    #[test]
    #[should_panic(expected = "is not free")]
    fn what_is_not_free_is_not_taken() {
        let free = Extent {
            start: 10,
            blocks: 5,
        };
        FreeList::new(vec![free]).take(Extent {
            start: 14,
            blocks: 2,
        });
    }

    #[test]
    fn nonsense_is_not_decoded() {
        let good = encode(&space(100, &[(3, 4), (50, 10)]));
        assert!(FreeSpace::decode(&good, 100).is_some());
        assert!(
            FreeSpace::decode(&good, 59).is_none(),
            "an extent beyond the end"
        );
        for len in 0..good.len() {
            assert!(FreeSpace::decode(&good[..len], 100).is_none());
        }
        assert!(
            FreeSpace::decode(
                &[
                    1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff
                ],
                100
            )
            .is_none()
        );
        assert!(
            FreeSpace::decode(&[2, 5, 0, 0, 3], 100).is_none(),
            "an empty extent"
        );
    }
}
