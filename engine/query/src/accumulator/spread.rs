//! The standard deviation of numbers, as they come, by Welford's method.

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument};

use crate::value::field;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    count: i64,
    mean: f64,
    /// The sum of the squares of the distances from the mean.
    squares: f64,
}

impl Spread {
    #[inline]
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1;
        let delta = value - self.mean;
        self.mean += delta / self.count as f64;
        self.squares += delta * (value - self.mean);
    }

    /// The deviation, of a sample or of all there is.
    pub(crate) fn deviation(&self, sample: bool) -> RawBson {
        let divisor = if sample { self.count - 1 } else { self.count };
        if divisor <= 0 {
            return RawBson::Null;
        }
        RawBson::Double((self.squares / divisor as f64).sqrt())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The form in which MongoDB 4.4 merges it.
    pub(crate) fn mergeable_by_v44(&self) -> RawBson {
        let mut out = DocBuilder::new();
        out.append("m2", self.squares)
            .append("mean", self.mean)
            .append("count", self.count);
        RawBson::Document(out.finish())
    }

    /// Appends what [`Spread::merge`] takes.
    pub(crate) fn write(&self, out: &mut DocBuilder) {
        out.append("count", self.count);
        out.append("mean", self.mean);
        out.append("squares", self.squares);
    }

    pub(crate) fn merge(&mut self, partial: &RawDocument) {
        let double = |name| match field(partial, name) {
            Some(RawBsonRef::Double(v)) => v,
            _ => 0.0,
        };
        let Some(RawBsonRef::Int64(count)) = field(partial, "count") else {
            return;
        };
        if count <= 0 {
            return;
        }
        let (mean, squares) = (double("mean"), double("squares"));
        if self.count == 0 {
            *self = Spread {
                count,
                mean,
                squares,
            };
            return;
        }
        let total = (self.count + count) as f64;
        let (ours, theirs) = (self.count as f64, count as f64);
        let delta = mean - self.mean;
        self.squares += squares;
        if delta != 0.0 {
            self.squares += delta * delta * (ours * theirs / total);
            self.mean = (ours * self.mean + theirs * mean) / total;
        }
        self.count += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merged_deviation_is_that_of_all_values() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        let mut merged = Spread::default();
        for part in values.chunks(3) {
            let mut spread = Spread::default();
            part.iter().for_each(|v| spread.add(*v));
            let mut out = DocBuilder::new();
            spread.write(&mut out);
            merged.merge(&out.finish());
        }
        assert_eq!(merged.deviation(false), RawBson::Double(2.0));
        assert_eq!(Spread::default().deviation(false), RawBson::Null);
    }
}
