//! Sums of doubles that do not depend on the order in which they are added: what they come to is
//! rounded once.

use pinion_bson::{DocBuilder, RawArray, RawBsonRef};
use smallvec::SmallVec;

use crate::value::items;

/// A sum of finite doubles, to the last bit: doubles of growing magnitude that do not overlap and
/// whose sum it is (Shewchuk, "Adaptive Precision Floating-Point Arithmetic", 1997).
#[derive(Clone, Debug, Default)]
pub(crate) struct ExactSum {
    parts: SmallVec<[f64; 4]>,
    /// A term is not finite, or so large that a sum might overflow on the way.
    has_large: bool,
}

/// Terms below this cannot overflow a sum, in whatever order: 2^53 of them do not.
const LARGE: f64 = f64::from_bits((1023 + 970) << 52); // 2^970

impl ExactSum {
    /// Adds a double.
    #[inline]
    pub(crate) fn add(&mut self, value: f64) {
        match value.abs() < LARGE {
            true => self.add_part(value),
            false => self.has_large = true,
        }
    }

    #[inline]
    fn add_part(&mut self, value: f64) {
        let (mut carried, mut kept) = (value, 0);
        for at in 0..self.parts.len() {
            let (sum, rest) = two_sum(carried, self.parts[at]);
            if rest != 0.0 {
                self.parts[kept] = rest;
                kept += 1;
            }
            carried = sum;
        }
        self.parts.truncate(kept);
        if carried != 0.0 {
            self.parts.push(carried);
        }
    }

    /// Adds another sum.
    pub(crate) fn add_all(&mut self, other: &ExactSum) {
        self.has_large |= other.has_large;
        other.parts.iter().for_each(|part| self.add_part(*part));
    }

    /// Whether the sum is one of finite doubles, none of which is close to the largest.
    #[inline]
    pub(crate) fn is_finite(&self) -> bool {
        !self.has_large
    }

    /// The bytes held beyond the value itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self.parts.spilled() {
            true => self.parts.capacity() * size_of::<f64>(),
            false => 0,
        }
    }

    /// The double that is nearest to the sum, of two the even one; `None` where a term is not
    /// finite, or too large.
    pub(crate) fn rounded(&self) -> Option<f64> {
        if self.has_large {
            return None;
        }
        let mut smaller = self.parts.iter().rev();
        let Some(mut sum) = smaller.next().copied() else {
            return Some(0.0);
        };
        while let Some(part) = smaller.next() {
            let (rounded, rest) = two_sum(sum, *part);
            sum = rounded;
            if rest == 0.0 {
                continue;
            }
            // Half way between two doubles, what follows decides.
            if let Some(next) = smaller.next()
                && (rest < 0.0) == (*next < 0.0)
            {
                let doubled = rest * 2.0;
                let other = sum + doubled;
                if other - sum == doubled {
                    sum = other;
                }
            }
            break;
        }
        Some(sum)
    }

    /// The rounded sum, and what rounding has cut off of it; `None` as for [`ExactSum::rounded`].
    pub(crate) fn pair(&self) -> Option<(f64, f64)> {
        let rounded = self.rounded()?;
        let mut rest = self.clone();
        rest.add_part(-rounded);
        Some((rounded, rest.rounded()?))
    }

    /// Appends what [`ExactSum::read`] reads, as a field of this name.
    pub(crate) fn write(&self, name: &str, out: &mut DocBuilder) {
        out.start_array(name);
        if self.has_large {
            out.push(f64::NAN);
        }
        for part in &self.parts {
            out.push(*part);
        }
        out.end();
    }

    /// The sum that was written so.
    pub(crate) fn read(parts: &RawArray) -> Option<ExactSum> {
        let mut sum = ExactSum::default();
        for part in items(parts) {
            match part {
                RawBsonRef::Double(part) if part.is_nan() => sum.has_large = true,
                RawBsonRef::Double(part) => sum.add_part(part),
                _ => return None,
            }
        }
        Some(sum)
    }
}

/// The sum of two doubles, and what rounding has cut off of it (Knuth).
#[inline]
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(values: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        values.iter().for_each(|value| sum.add(*value));
        sum
    }

    #[track_caller]
    fn check(values: &[f64], expected: f64) {
        assert_eq!(sum(values).rounded(), Some(expected), "{values:?}");
    }

    #[test]
    fn sums_are_rounded_once() {
        check(&[], 0.0);
        check(&[0.1; 10], 1.0);
        check(&[1e16, 1.0, -1e16], 1.0);
        check(&[1e290, 1e274, -1e290, 1.0], 1e274);
        check(&[7.0, 1.3, 6.1], 14.4);
        let half = f64::EPSILON / 2.0;
        check(&[1.0, half], 1.0);
        check(&[1.0, half, 1e-300], 1.0 + f64::EPSILON);
        check(&[1.0 + f64::EPSILON, half], 1.0 + 2.0 * f64::EPSILON);
        check(&[1.0 + f64::EPSILON, half, -1e-300], 1.0 + f64::EPSILON);
        check(&[-1.0, -half, -1e-300], -1.0 - f64::EPSILON);
        check(&[5e-324, 5e-324], 1e-323);
    }

    #[test]
    fn what_rounding_has_cut_off() {
        assert_eq!(sum(&[]).pair(), Some((0.0, 0.0)));
        assert_eq!(sum(&[1e16, 1.0]).pair(), Some((1e16, 1.0)));
        assert_eq!(sum(&[1.5, 2.0]).pair(), Some((3.5, 0.0)));
        assert_eq!(sum(&[f64::INFINITY]).pair(), None);
    }

    #[test]
    fn what_is_not_finite_or_may_overflow_is_no_exact_sum() {
        for values in [[f64::NAN, 1.0], [f64::INFINITY, 1.0], [1e308, -1e308]] {
            assert_eq!(sum(&values).rounded(), None);
        }
    }

    /// Against the arithmetic of integers: the values are multiples of 2^-40 below 2^60.
    #[test]
    fn sums_in_any_order_and_in_parts_are_those_of_integers() {
        let mut state = 3_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 11
        };
        for _ in 0..2000 {
            let values: Vec<f64> = (0..=next() % 40)
                .map(|_| {
                    let scale = (next() % 60) as i32 - 40;
                    let signed = (next() as i64) - (1 << 52);
                    signed as f64 * f64::from(scale).exp2()
                })
                .collect();
            let scaled = |value: f64| (value * f64::from(40).exp2()) as i128;
            let whole: i128 = values.iter().map(|value| scaled(*value)).sum();
            // The conversion of an integer to a double rounds to the nearest, of two to the even.
            let expected = whole as f64 * f64::from(-40).exp2();
            check(&values, expected);
            let mut reversed = values.clone();
            reversed.reverse();
            check(&reversed, expected);
            let (left, right) = values.split_at(values.len() / 2);
            let mut merged = sum(right);
            merged.add_all(&sum(left));
            assert_eq!(merged.rounded(), Some(expected));
            let mut out = DocBuilder::new();
            merged.write("exact", &mut out);
            let written = out.finish();
            let parts = written.get_array("exact").expect("written");
            let read = ExactSum::read(parts).expect("as written");
            assert_eq!(read.rounded(), Some(expected));
        }
    }
}
