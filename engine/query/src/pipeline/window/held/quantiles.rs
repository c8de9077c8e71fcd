//! `$percentile` and `$median` over windows: all numbers of the window, in order.

use pinion_bson::RawBson;
use pinion_wire::Result;

use super::numbers::number;
use super::{Element, Held, Window};
use crate::accumulator::Quantiles;

/// Numbers in a run before it is cut in two.
const RUN: usize = 1024;

/// Ascending numbers in ascending runs, so that one comes in or goes without moving all.
#[derive(Debug)]
pub(super) struct SortedNumbers {
    wanted: Quantiles,
    runs: Vec<Vec<f64>>,
    count: usize,
}

impl SortedNumbers {
    pub(super) fn new(wanted: Quantiles) -> SortedNumbers {
        SortedNumbers {
            wanted,
            runs: Vec::new(),
            count: 0,
        }
    }

    /// The run that a number belongs into.
    fn run_of(&self, number: f64) -> usize {
        let before = |run: &Vec<f64>| {
            run.last()
                .is_some_and(|last| last.total_cmp(&number).is_lt())
        };
        self.runs
            .partition_point(before)
            .min(self.runs.len().saturating_sub(1))
    }

    fn put(&mut self, number: f64) {
        if self.runs.is_empty() {
            self.runs.push(Vec::new());
        }
        let at = self.run_of(number);
        let run = &mut self.runs[at];
        let place = run.partition_point(|other| other.total_cmp(&number).is_lt());
        run.insert(place, number);
        if run.len() > RUN {
            let behind = run.split_off(RUN / 2);
            self.runs.insert(at + 1, behind);
        }
        self.count += 1;
    }

    fn take_out(&mut self, number: f64) {
        let at = self.run_of(number);
        let Some(run) = self.runs.get_mut(at) else {
            return;
        };
        let place = run.partition_point(|other| other.total_cmp(&number).is_lt());
        if place < run.len() {
            run.remove(place);
            self.count -= 1;
            if run.is_empty() {
                self.runs.remove(at);
            }
        }
    }

    fn at_rank(&self, mut rank: usize) -> f64 {
        for run in &self.runs {
            match run.get(rank) {
                Some(number) => return *number,
                None => rank -= run.len(),
            }
        }
        f64::NAN
    }
}

fn sortable(element: &Element) -> Option<f64> {
    number(element).map(|n| n.to_f64()).filter(|v| !v.is_nan())
}

impl Held for SortedNumbers {
    fn add(&mut self, element: &Element) -> Result<()> {
        if let Some(number) = sortable(element) {
            self.put(number);
        }
        Ok(())
    }

    fn remove(&mut self, element: &Element) {
        if let Some(number) = sortable(element) {
            self.take_out(number);
        }
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.count = 0;
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        let at_share = |share: &f64| self.at_rank(crate::accumulator::rank_of(self.count, *share));
        let found = || self.wanted.shares().iter().map(at_share).collect();
        Ok(self.wanted.result((self.count > 0).then(found)))
    }

    fn bytes(&self) -> usize {
        64 + 24 * self.runs.len() + 2 * size_of::<f64>() * self.count
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{element, slide};
    use super::*;
    use pinion_bson::rawbson;

    #[test]
    fn quantiles_of_the_window() {
        let wanted = Quantiles::new(vec![0.5], true);
        let values = [5, 1, 9, 3, 3].map(|v| element(RawBson::Int32(v)));
        let found = slide(Box::new(SortedNumbers::new(wanted)), 3, values);
        assert_eq!(found, [5.0, 1.0, 5.0, 3.0, 3.0].map(RawBson::Double));
        let nothing = slide(
            Box::new(SortedNumbers::new(Quantiles::new(vec![0.5, 1.0], false))),
            3,
            [element(rawbson!("x"))],
        );
        assert_eq!(nothing, [rawbson!([null, null])]);
    }

    #[test]
    fn many_numbers_come_and_go() {
        let mut numbers = SortedNumbers::new(Quantiles::new(vec![0.5], true));
        let value = |i: u64| (i * 7919 % 10_007) as f64;
        for i in 0..10_000 {
            numbers.put(value(i));
        }
        for i in 0..5_000 {
            numbers.take_out(value(i));
        }
        let mut rest: Vec<f64> = (5_000..10_000).map(value).collect();
        rest.sort_by(f64::total_cmp);
        let kept: Vec<f64> = numbers.runs.concat();
        assert_eq!(kept, rest);
        assert_eq!(numbers.at_rank(2_500), rest[2_500]);
    }
}
