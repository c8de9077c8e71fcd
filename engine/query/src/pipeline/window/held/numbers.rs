//! Sums, averages and deviations over windows that move.

use pinion_bson::{Number, RawBson};
use pinion_wire::Result;

use super::{Element, Held, Window};
use crate::accumulator::Sum;

/// The number of an element, if it is one.
pub(super) fn number(element: &Element) -> Option<Number> {
    Number::from_value(element.value.as_ref()?.as_raw_bson_ref())
}

/// A sum of numbers that can be taken out again. Infinities and NaN are counted, since they cannot
/// be.
#[derive(Clone, Debug, Default)]
pub(super) struct MovingSum {
    finite: Sum,
    // A covariance may take out what it has forgotten, which then counts as less than nothing.
    nans: i64,
    positive_infinities: i64,
    negative_infinities: i64,
    doubles: i64,
    decimals: i64,
}

impl MovingSum {
    pub(super) fn put(&mut self, number: Number) {
        self.count(number, |count| count + 1);
        if number.is_finite() {
            self.finite.add(number);
        }
    }

    pub(super) fn take_out(&mut self, number: Number) {
        self.count(number, |count| count - 1);
        match number {
            // It has no negative of its own type.
            Number::Int64(i64::MIN) => {
                self.finite.add(Number::Int64(i64::MAX));
                self.finite.add(Number::Int64(1));
            }
            number if number.is_finite() => self.finite.add(number.negate()),
            _ => {}
        }
    }

    fn count(&mut self, number: Number, counted: fn(i64) -> i64) {
        match number {
            Number::Double(_) => self.doubles = counted(self.doubles),
            Number::Decimal(_) => self.decimals = counted(self.decimals),
            _ => {}
        }
        if number.is_nan() {
            self.nans = counted(self.nans);
        } else if !number.is_finite() {
            let infinities = if number.is_negative() {
                &mut self.negative_infinities
            } else {
                &mut self.positive_infinities
            };
            *infinities = counted(*infinities);
        }
    }

    pub(super) fn sum(&self) -> Number {
        let special =
            if self.nans > 0 || (self.positive_infinities > 0 && self.negative_infinities > 0) {
                Some(f64::NAN)
            } else if self.positive_infinities > 0 {
                Some(f64::INFINITY)
            } else if self.negative_infinities > 0 {
                Some(f64::NEG_INFINITY)
            } else {
                None
            };
        if let Some(special) = special {
            let double = Number::Double(special);
            return if self.decimals > 0 {
                Number::Decimal(double.to_decimal().pack())
            } else {
                double
            };
        }
        // The sum has the widest type of the numbers that are in it, not of those that were.
        match self.finite.value() {
            sum @ Number::Decimal(_) if self.decimals <= 0 => {
                self.narrowed(Number::Double(sum.to_f64()))
            }
            sum => self.narrowed(sum),
        }
    }

    fn narrowed(&self, sum: Number) -> Number {
        match (sum, sum.to_i64_truncated()) {
            (Number::Double(_), Some(whole)) if self.doubles <= 0 && self.decimals <= 0 => {
                i32::try_from(whole).map_or(Number::Int64(whole), Number::Int32)
            }
            _ => sum,
        }
    }
}

impl Held for MovingSum {
    fn add(&mut self, element: &Element) -> Result<()> {
        if let Some(number) = number(element) {
            self.put(number);
        }
        Ok(())
    }

    fn remove(&mut self, element: &Element) {
        if let Some(number) = number(element) {
            self.take_out(number);
        }
    }

    fn clear(&mut self) {
        *self = MovingSum::default();
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        Ok(self.sum().to_raw_bson())
    }
}

/// `$avg`
#[derive(Debug, Default)]
pub(super) struct MovingAverage {
    sum: MovingSum,
    count: i64,
}

impl Held for MovingAverage {
    fn add(&mut self, element: &Element) -> Result<()> {
        if let Some(number) = number(element) {
            self.sum.put(number);
            self.count += 1;
        }
        Ok(())
    }

    fn remove(&mut self, element: &Element) {
        if let Some(number) = number(element) {
            self.sum.take_out(number);
            self.count -= 1;
        }
    }

    fn clear(&mut self) {
        *self = MovingAverage::default();
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        if self.count == 0 {
            return Ok(RawBson::Null);
        }
        let average = match self.sum.sum() {
            sum @ Number::Decimal(_) => {
                let count = Number::Int64(self.count).to_decimal();
                Number::Decimal((sum.to_decimal() / count).pack())
            }
            sum => Number::Double(sum.to_f64() / self.count as f64),
        };
        Ok(average.to_raw_bson())
    }
}

/// `$stdDevPop` and `$stdDevSamp`: the sum of squares is adjusted by what a value adds to it beside
/// the others.
#[derive(Debug)]
pub(super) struct MovingDeviation {
    sample: bool,
    count: i64,
    sum: Sum,
    squares: Sum,
    not_finite: u64,
}

impl MovingDeviation {
    pub(super) fn new(sample: bool) -> MovingDeviation {
        MovingDeviation {
            sample,
            count: 0,
            sum: Sum::default(),
            squares: Sum::default(),
            not_finite: 0,
        }
    }

    fn adjust(&mut self, value: f64, step: i64) {
        let distance = self.count as f64 * value - self.sum.value().to_f64();
        self.count += step;
        let step_size = step as f64;
        self.sum.add(Number::Double(value * step_size));
        let others = (self.count * (self.count - step)) as f64;
        self.squares
            .add(Number::Double(distance * distance * step_size / others));
    }
}

impl Held for MovingDeviation {
    fn add(&mut self, element: &Element) -> Result<()> {
        match number(element) {
            None => {}
            Some(number) if !number.is_finite() => self.not_finite += 1,
            Some(number) if self.count == 0 => {
                self.count = 1;
                self.sum.add(number);
            }
            Some(number) => self.adjust(number.to_f64(), 1),
        }
        Ok(())
    }

    fn remove(&mut self, element: &Element) {
        match number(element) {
            None => {}
            Some(number) if !number.is_finite() => self.not_finite -= 1,
            Some(_) if self.count == 1 => {
                *self = MovingDeviation {
                    not_finite: self.not_finite,
                    ..MovingDeviation::new(self.sample)
                };
            }
            Some(number) => self.adjust(number.to_f64(), -1),
        }
    }

    fn clear(&mut self) {
        *self = MovingDeviation::new(self.sample);
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        let divisor = self.count - i64::from(self.sample);
        if self.not_finite > 0 || divisor <= 0 {
            return Ok(RawBson::Null);
        }
        let squares = self.squares.value().to_f64();
        // Rounding may leave a little less than nothing, and something of a single value.
        if squares < 0.0 || (!self.sample && self.count == 1) {
            return Ok(RawBson::Int32(0));
        }
        Ok(RawBson::Double((squares / divisor as f64).sqrt()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{element, slide};
    use super::*;
    use pinion_bson::rawbson;

    #[track_caller]
    fn check(state: impl Held + 'static, values: Vec<RawBson>, expected: Vec<RawBson>) {
        let found = slide(Box::new(state), 2, values.into_iter().map(element));
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }

    #[test]
    fn sums_have_the_type_of_what_is_in_them() {
        let decimal = RawBson::Decimal128("1.5".parse().expect("a decimal"));
        check(
            MovingSum::default(),
            vec![
                rawbson!(1),
                rawbson!(2.5),
                rawbson!("x"),
                rawbson!(3),
                rawbson!(4),
                decimal.clone(),
                rawbson!(1),
                rawbson!(2),
            ],
            vec![
                rawbson!(1),
                rawbson!(3.5),
                rawbson!(2.5),
                rawbson!(3),
                rawbson!(7),
                RawBson::Decimal128("5.5".parse().expect("a decimal")),
                RawBson::Decimal128("2.5".parse().expect("a decimal")),
                rawbson!(3),
            ],
        );
    }

    #[test]
    fn infinities_leave_no_trace() {
        let infinity = rawbson!(f64::INFINITY);
        check(
            MovingSum::default(),
            vec![
                infinity.clone(),
                rawbson!(f64::NEG_INFINITY),
                rawbson!(1),
                rawbson!(2),
            ],
            vec![
                infinity,
                rawbson!(f64::NAN),
                rawbson!(f64::NEG_INFINITY),
                rawbson!(3),
            ],
        );
        check(
            MovingSum::default(),
            vec![rawbson!(i64::MIN), rawbson!(1), rawbson!(1)],
            vec![rawbson!(i64::MIN), rawbson!(i64::MIN + 1), rawbson!(2_i64)],
        );
    }

    #[test]
    fn averages_and_deviations() {
        let values = || vec![rawbson!("x"), rawbson!(1), rawbson!(3), rawbson!(3)];
        check(
            MovingAverage::default(),
            values(),
            vec![RawBson::Null, rawbson!(1.0), rawbson!(2.0), rawbson!(3.0)],
        );
        check(
            MovingDeviation::new(false),
            values(),
            vec![RawBson::Null, rawbson!(0), rawbson!(1.0), rawbson!(0.0)],
        );
        check(
            MovingDeviation::new(true),
            vec![rawbson!(f64::NAN), rawbson!(1), rawbson!(1), rawbson!("x")],
            vec![RawBson::Null, RawBson::Null, rawbson!(0.0), RawBson::Null],
        );
    }
}
