//! A sketch of many numbers that gives their quantiles: all of them while they are few, else a
//! merging t-digest (Dunning and Ertl, "Computing extremely accurate quantiles using t-digests").
//!
//! Quantiles are values that came in, not points between two of them, as long as the sketch keeps
//! the values: that is what MongoDB answers, and what the `tdigest` crate, which always
//! interpolates, does not.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};

use super::quantile::rank_of;
use crate::limits::{DIGEST_BUFFER, DIGEST_COMPRESSION};
use crate::value::{field, items};

#[derive(Clone, Copy, Debug, PartialEq)]
struct Centroid {
    mean: f64,
    weight: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Digest {
    /// In ascending order, without the infinities.
    centroids: Vec<Centroid>,
    /// How many values the centroids stand for.
    weight: u64,
    least: f64,
    greatest: f64,
    negative_infinities: u64,
    positive_infinities: u64,
    /// Values not yet in the centroids.
    buffer: Vec<f64>,
}

impl Default for Digest {
    fn default() -> Digest {
        Digest {
            centroids: Vec::new(),
            weight: 0,
            least: f64::INFINITY,
            greatest: f64::NEG_INFINITY,
            negative_infinities: 0,
            positive_infinities: 0,
            buffer: Vec::new(),
        }
    }
}

impl Digest {
    /// Takes one value; what is not a number counts as none.
    pub(crate) fn add(&mut self, value: f64) {
        if value.is_nan() {
            return;
        }
        if value == f64::INFINITY {
            self.positive_infinities += 1;
        } else if value == f64::NEG_INFINITY {
            self.negative_infinities += 1;
        } else {
            self.least = self.least.min(value);
            self.greatest = self.greatest.max(value);
            self.buffer.push(value);
            if self.buffer.len() >= DIGEST_BUFFER {
                self.compress();
            }
        }
    }

    /// Whether all values are kept as they came.
    pub(crate) fn is_exact(&self) -> bool {
        self.centroids.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.centroids.capacity() * size_of::<Centroid>()
            + self.buffer.capacity() * size_of::<f64>()
    }

    /// The quantiles at these shares, each from 0 to 1; nothing where no value came.
    pub(crate) fn quantiles(&self, shares: &[f64]) -> Option<Vec<f64>> {
        let mut ordered = self.clone();
        if ordered.centroids.is_empty() {
            ordered.buffer.sort_unstable_by(f64::total_cmp);
        } else {
            ordered.compress();
        }
        let finite = ordered.weight as usize + ordered.buffer.len();
        let below = self.negative_infinities as usize;
        let all = below + finite + self.positive_infinities as usize;
        if all == 0 {
            return None;
        }
        let at_share = |share: &f64| match rank_of(all, *share) {
            rank if rank < below => f64::NEG_INFINITY,
            rank if rank >= below + finite => f64::INFINITY,
            rank => ordered.at_rank(rank - below),
        };
        Some(shares.iter().map(at_share).collect())
    }

    /// The value at a position of the finite ones in order.
    fn at_rank(&self, rank: usize) -> f64 {
        if self.centroids.is_empty() {
            return self.buffer[rank];
        }
        // The ends are known, and so is what a centroid of one value stands for.
        if rank == 0 {
            return self.least;
        }
        if rank as u64 == self.weight - 1 {
            return self.greatest;
        }
        let rank = rank as f64;
        let mut passed = 0.0;
        for (at, centroid) in self.centroids.iter().enumerate() {
            if rank >= passed + centroid.weight {
                passed += centroid.weight;
                continue;
            }
            if centroid.weight == 1.0 {
                return centroid.mean;
            }
            let middle = passed + (centroid.weight - 1.0) / 2.0;
            if rank < middle {
                let (mean, place) = match at.checked_sub(1).map(|before| self.centroids[before]) {
                    Some(before) => (before.mean, passed - (before.weight + 1.0) / 2.0),
                    None => (self.least, 0.0),
                };
                return between(mean, place, centroid.mean, middle, rank);
            }
            let (mean, place) = match self.centroids.get(at + 1) {
                Some(after) => {
                    let begin = passed + centroid.weight;
                    (after.mean, begin + (after.weight - 1.0) / 2.0)
                }
                None => (self.greatest, self.weight as f64 - 1.0),
            };
            return between(centroid.mean, middle, mean, place, rank);
        }
        self.greatest
    }

    /// Puts the buffer into the centroids.
    fn compress(&mut self) {
        let mut all = std::mem::take(&mut self.centroids);
        self.weight += self.buffer.len() as u64;
        all.extend(
            self.buffer
                .drain(..)
                .map(|mean| Centroid { mean, weight: 1.0 }),
        );
        all.sort_by(|a, b| a.mean.total_cmp(&b.mean));
        let mut all = all.into_iter();
        let Some(mut current) = all.next() else {
            return;
        };
        let weight = self.weight as f64;
        let mut passed = 0.0;
        let mut limit = weight * limit_behind(0.0, weight);
        for next in all {
            if passed + current.weight + next.weight <= limit {
                current.weight += next.weight;
                current.mean += (next.mean - current.mean) * next.weight / current.weight;
            } else {
                passed += current.weight;
                limit = weight * limit_behind(passed / weight, weight);
                self.centroids.push(current);
                current = next;
            }
        }
        self.centroids.push(current);
    }

    /// Appends what [`Digest::merge`] takes.
    pub(crate) fn write(&self, out: &mut DocBuilder) {
        out.append("least", self.least);
        out.append("greatest", self.greatest);
        out.append("negativeInfinities", self.negative_infinities as i64);
        out.append("positiveInfinities", self.positive_infinities as i64);
        out.start_array("centroids");
        for centroid in &self.centroids {
            out.push(centroid.mean);
            out.push(centroid.weight);
        }
        out.end();
        out.start_array("values");
        for value in &self.buffer {
            out.push(*value);
        }
        out.end();
    }

    pub(crate) fn merge(&mut self, partial: &RawDocument) {
        let count = |name| match field(partial, name) {
            Some(RawBsonRef::Int64(n)) => n.max(0) as u64,
            _ => 0,
        };
        // What is merged into nothing is taken over as it is.
        let is_new = self.weight == 0 && self.buffer.is_empty();
        self.negative_infinities += count("negativeInfinities");
        self.positive_infinities += count("positiveInfinities");
        let doubles = |name| -> Vec<f64> {
            match field(partial, name) {
                Some(RawBsonRef::Array(array)) => {
                    items(array).filter_map(|item| item.as_f64()).collect()
                }
                _ => Vec::new(),
            }
        };
        for pair in doubles("centroids").chunks_exact(2) {
            let (mean, weight) = (pair[0], pair[1]);
            if mean.is_finite() && weight >= 1.0 {
                self.centroids.push(Centroid { mean, weight });
                self.weight += weight as u64;
            }
        }
        if !self.centroids.is_empty() {
            if let Some(RawBsonRef::Double(least)) = field(partial, "least") {
                self.least = self.least.min(least);
            }
            if let Some(RawBsonRef::Double(greatest)) = field(partial, "greatest") {
                self.greatest = self.greatest.max(greatest);
            }
            if !is_new {
                self.compress();
            }
        }
        doubles("values").into_iter().for_each(|v| self.add(v));
    }
}

/// The point at a place between two others.
fn between(from: f64, from_place: f64, to: f64, to_place: f64, place: f64) -> f64 {
    if to_place <= from_place {
        return from;
    }
    from + (to - from) * (place - from_place) / (to_place - from_place)
}

/// Up to which share a centroid that begins at this one may reach: the scale function k2, under
/// which centroids are small at both ends.
fn limit_behind(share: f64, count: f64) -> f64 {
    if share <= 0.0 {
        return 0.0;
    }
    let normalizer = DIGEST_COMPRESSION / (4.0 * (count / DIGEST_COMPRESSION).ln().max(0.0) + 24.0);
    let odds = (share / (1.0 - share)) * (1.0 / normalizer).exp();
    odds / (1.0 + odds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantiles(values: impl IntoIterator<Item = f64>, shares: &[f64]) -> Option<Vec<f64>> {
        let mut digest = Digest::default();
        values.into_iter().for_each(|v| digest.add(v));
        digest.quantiles(shares)
    }

    #[test]
    fn quantiles_of_few_values_are_exact() {
        assert_eq!(quantiles([], &[0.5]), None);
        assert_eq!(quantiles([f64::NAN], &[0.5]), None);
        assert_eq!(
            quantiles([20.0, 10.0], &[0.0, 0.5, 0.51, 1.0]),
            Some(vec![10.0, 10.0, 20.0, 20.0])
        );
        assert_eq!(
            quantiles([f64::INFINITY, 3.0, f64::NEG_INFINITY], &[0.1, 0.5, 0.9]),
            Some(vec![f64::NEG_INFINITY, 3.0, f64::INFINITY])
        );
    }

    /// How far the quantiles of many values are from the exact ones, in ranks.
    #[track_caller]
    fn check_error(values: &[f64], digest: &Digest) {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        for share in [0.0, 0.001, 0.01, 0.25, 0.5, 0.9, 0.99, 0.9999, 1.0] {
            let found = digest.quantiles(&[share]).expect("there are values")[0];
            let below = sorted.partition_point(|v| *v < found) as f64 / sorted.len() as f64;
            let above = sorted.partition_point(|v| *v <= found) as f64 / sorted.len() as f64;
            let near = (below - 0.01 * share.min(1.0 - share) - 0.0005)
                ..=(above + 0.01 * share.min(1.0 - share) + 0.0005);
            assert!(
                near.contains(&share),
                "{share}: {found} lies at {below}..{above}"
            );
        }
    }

    #[test]
    fn quantiles_of_many_values_are_close() {
        // Spread evenly, in an order that jumps about, and then bent.
        let values: Vec<f64> = (0..100_000_u64)
            .map(|i| ((i * 61_803 % 100_000) as f64 / 100_000.0).powi(3))
            .collect();
        let mut digest = Digest::default();
        values.iter().for_each(|v| digest.add(*v));
        assert!(!digest.is_exact());
        assert!(digest.bytes() < 200_000, "{}", digest.bytes());
        check_error(&values, &digest);

        let mut merged = Digest::default();
        for part in values.chunks(9_000) {
            let mut digest = Digest::default();
            part.iter().for_each(|v| digest.add(*v));
            let mut out = DocBuilder::new();
            digest.write(&mut out);
            merged.merge(&out.finish());
        }
        check_error(&values, &merged);
    }

    #[test]
    fn equal_values_stay_what_they_are() {
        let digest = quantiles(std::iter::repeat_n(0.1, 50_000), &[0.0, 0.3, 0.5, 1.0]);
        assert_eq!(digest, Some(vec![0.1; 4]));
    }
}
