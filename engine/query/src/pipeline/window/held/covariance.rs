//! `$covariancePop` and `$covarianceSamp`.

use pinion_bson::decimal::Decimal;
use pinion_bson::{Number, RawBson};
use pinion_wire::Result;

use super::numbers::MovingSum;
use super::{Element, Held, Window};
use crate::value::items;

/// The sum of products of the distances from the means, adjusted as pairs come and go.
#[derive(Debug, Default)]
pub(super) struct Covariance {
    sample: bool,
    count: i64,
    sums: [MovingSum; 2],
    products: MovingSum,
}

impl Covariance {
    pub(super) fn new(sample: bool) -> Covariance {
        Covariance {
            sample,
            ..Covariance::default()
        }
    }

    /// The mean of the first or the second numbers; zero of none.
    fn mean(&self, which: usize) -> Number {
        if self.count == 0 {
            return Number::Int32(0);
        }
        divide(self.sums[which].sum(), Number::Int64(self.count))
    }
}

/// The two numbers of an element; other elements count for nothing.
fn pair(element: &Element) -> Option<[Number; 2]> {
    let Some(RawBson::Array(array)) = &element.value else {
        return None;
    };
    let mut numbers = items(array).map(Number::from_value);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Some(x)), Some(Some(y)), None) => Some([x, y]),
        _ => None,
    }
}

/// What a pair with an infinity or NaN adds to the sum of products. The mean is not moved by it.
fn not_finite(pair: [Number; 2]) -> Number {
    let is_infinite = |number: &Number| !number.is_nan() && !number.is_finite();
    let infinities = || pair.iter().filter(|number| is_infinite(number));
    let below = infinities().any(|number| number.is_negative());
    let above = infinities().any(|number| !number.is_negative());
    let special = match (pair.iter().any(|number| number.is_nan()), below, above) {
        (true, ..) | (_, true, true) => f64::NAN,
        (_, true, false) => f64::NEG_INFINITY,
        _ => f64::INFINITY,
    };
    if pair
        .iter()
        .any(|number| matches!(number, Number::Decimal(_)))
    {
        return Number::Decimal(Number::Double(special).to_decimal().pack());
    }
    Number::Double(special)
}

fn divide(dividend: Number, divisor: Number) -> Number {
    let is_decimal = |number| matches!(number, Number::Decimal(_));
    if is_decimal(dividend) || is_decimal(divisor) {
        let quotient: Decimal = dividend.to_decimal() / divisor.to_decimal();
        return Number::Decimal(quotient.pack());
    }
    Number::Double(dividend.to_f64() / divisor.to_f64())
}

impl Held for Covariance {
    fn add(&mut self, element: &Element) -> Result<()> {
        let Some([x, y]) = pair(element) else {
            return Ok(());
        };
        if !x.is_finite() || !y.is_finite() {
            self.products.put(not_finite([x, y]));
            return Ok(());
        }
        // The one distance is from the mean without the pair, the other from that with it.
        let distance = x.sub_widening(self.mean(0));
        self.count += 1;
        self.sums[0].put(x);
        self.sums[1].put(y);
        let other = y.sub_widening(self.mean(1));
        self.products.put(distance.mul_widening(other));
        Ok(())
    }

    fn remove(&mut self, element: &Element) {
        let Some([x, y]) = pair(element) else {
            return;
        };
        if !x.is_finite() || !y.is_finite() {
            self.products.take_out(not_finite([x, y]));
            return;
        }
        if self.count == 1 {
            // As MongoDB does, this forgets pairs with infinities that are still there.
            self.clear();
            return;
        }
        let other = y.sub_widening(self.mean(1));
        self.count -= 1;
        self.sums[0].take_out(x);
        self.sums[1].take_out(y);
        let distance = x.sub_widening(self.mean(0));
        self.products.take_out(distance.mul_widening(other));
    }

    fn clear(&mut self) {
        *self = Covariance::new(self.sample);
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        if self.count == 1 && !self.sample {
            return Ok(RawBson::Double(0.0));
        }
        let divisor = self.count - i64::from(self.sample);
        if divisor <= 0 {
            return Ok(RawBson::Null);
        }
        let covariance = divide(self.products.sum(), Number::Double(divisor as f64));
        Ok(covariance.to_raw_bson())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{element, slide};
    use super::*;
    use pinion_bson::rawbson;

    #[track_caller]
    fn check(sample: bool, pairs: Vec<RawBson>, expected: Vec<RawBson>) {
        let state = Box::new(Covariance::new(sample));
        let found = slide(state, 3, pairs.into_iter().map(element));
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }

    #[test]
    fn pairs_come_and_go() {
        check(
            true,
            vec![
                rawbson!([1, 2]),
                rawbson!([2, 4]),
                rawbson!([3, 6]),
                rawbson!([4, 8]),
                rawbson!([1]),
                rawbson!("x"),
                rawbson!([4, 8]),
            ],
            vec![
                RawBson::Null,
                rawbson!(1.0),
                rawbson!(2.0),
                rawbson!(2.0),
                rawbson!(1.0),
                RawBson::Null,
                RawBson::Null,
            ],
        );
        check(
            false,
            vec![rawbson!([1, 2]), rawbson!([f64::NAN, 2]), rawbson!([3, 4])],
            vec![rawbson!(0.0), rawbson!(0.0), rawbson!(f64::NAN)],
        );
    }

    #[test]
    fn infinities() {
        let infinite = f64::INFINITY;
        let pairs = |second: RawBson| vec![rawbson!([1, 2]), rawbson!([3, 4]), second];
        let check_third = |second: RawBson, expected: f64| {
            let first = [rawbson!(0.0), rawbson!(1.0)];
            let expected = first.into_iter().chain([RawBson::Double(expected)]);
            check(false, pairs(second), expected.collect());
        };
        check_third(rawbson!([infinite, 1]), infinite);
        check_third(rawbson!([1, -infinite]), -infinite);
        check_third(rawbson!([infinite, infinite]), infinite);
        check_third(rawbson!([infinite, -infinite]), f64::NAN);
        check_third(rawbson!([infinite, f64::NAN]), f64::NAN);
        // It leaves with the window.
        check(
            true,
            vec![
                rawbson!([infinite, 1]),
                rawbson!([1, 2]),
                rawbson!([3, 4]),
                rawbson!([5, 6]),
            ],
            vec![
                RawBson::Null,
                RawBson::Null,
                rawbson!(infinite),
                rawbson!(4.0),
            ],
        );
    }
}
