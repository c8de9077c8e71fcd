//! Coverings: few cells of a tree of cells that together contain a region.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pinion_wire::Result;

use crate::work::{self, STEP};

/// A region, asked about cells that are halved in both directions again and again.
pub(super) trait Region {
    type Cell: Copy;

    fn level(&self, cell: &Self::Cell) -> u8;

    fn children(&self, cell: &Self::Cell) -> [Self::Cell; 4];

    /// Whether a cell may have a point of the region.
    fn meets(&self, cell: &Self::Cell) -> Result<bool>;

    /// Whether a cell has nothing but points of the region.
    fn contains(&self, cell: &Self::Cell) -> Result<bool>;
}

/// What a covering may be made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub coarsest: u8,
    pub finest: u8,
    /// Exceeded only where the coarsest level demands it.
    pub cells: usize,
}

/// A cell that is partly covered, by its place in the list of all.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Large cells are divided first, and among them those that leave most out.
    level: u8,
    parts: usize,
    place: usize,
}

struct Coverer<'a, R: Region> {
    region: &'a R,
    limits: Limits,
    open: BinaryHeap<Reverse<Candidate>>,
    cells: Vec<(R::Cell, Vec<R::Cell>)>,
    out: Vec<R::Cell>,
}

/// Covers what of a region is in these cells.
pub(super) fn cover<R: Region>(
    region: &R,
    roots: &[R::Cell],
    limits: Limits,
) -> Result<Vec<R::Cell>> {
    let mut coverer = Coverer {
        region,
        limits,
        open: BinaryHeap::new(),
        cells: Vec::new(),
        out: Vec::new(),
    };
    for root in roots {
        if region.meets(root)? {
            coverer.add(*root)?;
        }
    }
    while let Some(Reverse(candidate)) = coverer.open.pop() {
        let (cell, parts) =
            std::mem::replace(&mut coverer.cells[candidate.place], (roots[0], Vec::new()));
        let after = coverer.out.len() + coverer.open.len() + parts.len();
        let divides =
            candidate.level < limits.coarsest || parts.len() == 1 || after <= limits.cells;
        if divides {
            for part in parts {
                coverer.add(part)?;
            }
        } else {
            coverer.out.push(cell);
        }
    }
    Ok(coverer.out)
}

impl<R: Region> Coverer<'_, R> {
    /// Takes in a cell that meets the region.
    fn add(&mut self, cell: R::Cell) -> Result<()> {
        work::spend(STEP)?;
        let level = self.region.level(&cell);
        if level >= self.limits.coarsest
            && (level >= self.limits.finest || self.region.contains(&cell)?)
        {
            self.out.push(cell);
            return Ok(());
        }
        let mut parts = Vec::with_capacity(4);
        for child in self.region.children(&cell) {
            if self.region.meets(&child)? {
                parts.push(child);
            }
        }
        if parts.is_empty() {
            // Rounding has it that the parts together are less than the whole.
            self.out.push(cell);
            return Ok(());
        }
        let place = self.cells.len();
        self.open.push(Reverse(Candidate {
            level,
            parts: parts.len(),
            place,
        }));
        self.cells.push((cell, parts));
        Ok(())
    }
}

/// Closed ranges in ascending order, none touching another.
pub(super) fn joined(mut ranges: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    ranges.sort_unstable();
    let mut joined: Vec<(i64, i64)> = Vec::with_capacity(ranges.len());
    for (low, high) in ranges {
        match joined.last_mut() {
            Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
            _ => joined.push((low, high)),
        }
    }
    joined
}

/// What of the ranges is in none of the others; both are as `joined` gives them.
pub(super) fn without(ranges: &[(i64, i64)], others: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let mut rest = Vec::new();
    for &(low, high) in ranges {
        let mut from = Some(low);
        let first = others.partition_point(|other| other.1 < low);
        for &(other_low, other_high) in &others[first..] {
            let Some(begin) = from.filter(|_| other_low <= high) else {
                break;
            };
            if begin < other_low {
                rest.push((begin, other_low - 1));
            }
            from = (other_high < high).then(|| other_high + 1);
        }
        if let Some(begin) = from {
            rest.push((begin, high));
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_ranges() {
        let all = joined(vec![(5, 9), (1, 2), (3, 3), (20, 30), (8, 12)]);
        assert_eq!(all, [(1, 3), (5, 12), (20, 30)]);
        assert_eq!(without(&all, &[]), all);
        assert_eq!(
            without(&all, &[(0, 1), (6, 7), (12, 22)]),
            [(2, 3), (5, 5), (8, 11), (23, 30)]
        );
        assert_eq!(without(&all, &[(i64::MIN, i64::MAX)]), []);
    }
}
