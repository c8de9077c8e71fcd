//! Sums of numbers as MongoDB makes them, to the last bit: doubles and integers with the error of
//! each addition carried into the next one, decimals apart. A sum of doubles may be asked for that
//! does not depend on their order: then it is the exact one, rounded once.

use pinion_bson::decimal::Decimal;
use pinion_bson::{DocBuilder, Number, RawBson, RawBsonRef, RawDocument};

use super::exact::ExactSum;
use crate::value::elements;

/// Integers up to here are doubles exactly.
const EXACT: i64 = 1 << 53;
/// 2^63, the first double above all 64-bit integers.
const BEYOND_LONG: f64 = 9_223_372_036_854_775_808.0;

/// The widest type that took part, which the sum has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Widest {
    #[default]
    Int,
    Long,
    Double,
    Decimal,
}

impl Widest {
    fn of(number: Number) -> Widest {
        match number {
            Number::Int32(_) => Widest::Int,
            Number::Int64(_) => Widest::Long,
            Number::Double(_) => Widest::Double,
            Number::Decimal(_) => Widest::Decimal,
        }
    }

    fn from_number(number: i32) -> Widest {
        match number {
            0 => Widest::Int,
            1 => Widest::Long,
            2 => Widest::Double,
            _ => Widest::Decimal,
        }
    }
}

/// A sum over all number types.
#[derive(Clone, Debug)]
pub(crate) struct Sum {
    widest: Widest,
    others: DoubleDouble,
    decimals: Decimal,
    exact: Exactness,
}

/// Whether the exact sum is kept beside the one that depends on the order.
#[derive(Clone, Debug)]
enum Exactness {
    NotAsked,
    /// The integers that were added are their exact sum themselves.
    OfIntegers,
    Kept(Box<ExactSum>),
}

impl Default for Sum {
    fn default() -> Sum {
        Sum {
            widest: Widest::Int,
            others: DoubleDouble::default(),
            decimals: Decimal::ZERO,
            exact: Exactness::NotAsked,
        }
    }
}

impl Sum {
    /// A sum of nothing, whose doubles are added exactly too.
    pub(crate) fn exact() -> Sum {
        Sum {
            exact: Exactness::OfIntegers,
            ..Sum::default()
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, number: Number) {
        self.widest = self.widest.max(Widest::of(number));
        let before = self.others.whole;
        match number {
            Number::Int32(v) => self.others.add_integer(i64::from(v)),
            Number::Int64(v) => self.others.add_integer(v),
            Number::Double(v) => self.others.add_double(v),
            // A zero to begin with makes 1E+3 a sum of 1000, and -0 one of 0.
            Number::Decimal(v) => {
                self.decimals = self.decimals + Decimal::unpack(v);
                return;
            }
        }
        if self.others.whole.is_none()
            && let Some(exact) = self.keep_exact(before)
        {
            match number {
                Number::Double(v) => exact.add(v),
                Number::Int32(v) => exact.add(f64::from(v)),
                Number::Int64(v) => halves(v).into_iter().for_each(|half| exact.add(half)),
                Number::Decimal(_) => unreachable!("returned above"),
            }
        }
    }

    /// The exact sum, if it is asked for; `before` are the integers that were all there was before.
    #[inline]
    fn keep_exact(&mut self, before: Option<i64>) -> Option<&mut ExactSum> {
        if let Exactness::OfIntegers = self.exact {
            let mut exact = ExactSum::default();
            exact.add(before.unwrap_or(0) as f64);
            self.exact = Exactness::Kept(Box::new(exact));
        }
        match &mut self.exact {
            Exactness::Kept(exact) => Some(exact),
            _ => None,
        }
    }

    pub(crate) fn value(&self) -> Number {
        match (self.widest, self.others.integer()) {
            (Widest::Decimal, _) => Number::Decimal(self.decimal().pack()),
            (Widest::Int, Some(whole)) => {
                i32::try_from(whole).map_or(Number::Int64(whole), Number::Int32)
            }
            (Widest::Long, Some(whole)) => Number::Int64(whole),
            _ => Number::Double(self.others.double()),
        }
    }

    /// The sum whatever the order of its terms; `None` where it depends on that.
    pub(crate) fn orderless(&self) -> Option<Number> {
        match (&self.exact, self.widest) {
            _ if self.is_of_integers() => Some(self.value()),
            (Exactness::Kept(exact), Widest::Double) => exact.rounded().map(Number::Double),
            _ => None,
        }
    }

    pub(crate) fn average(&self, count: i64) -> Number {
        if self.widest == Widest::Decimal {
            return Number::Decimal((self.decimal() / Decimal::from_i64(count)).pack());
        }
        Number::Double(self.value().to_f64() / count as f64)
    }

    /// The average whatever the order of the terms; `None` where it depends on that.
    pub(crate) fn orderless_average(&self, count: i64) -> Option<Number> {
        let sum = self.orderless()?;
        Some(Number::Double(sum.to_f64() / count as f64))
    }

    fn decimal(&self) -> Decimal {
        self.decimals + self.others.decimal()
    }

    /// Whether only integers were added, and exactly.
    pub(crate) fn is_of_integers(&self) -> bool {
        self.widest <= Widest::Long && self.others.whole.is_some()
    }

    /// Whether [`Sum::orderless`] gives a sum.
    pub(crate) fn is_orderless(&self) -> bool {
        match (&self.exact, self.widest) {
            _ if self.is_of_integers() => true,
            (Exactness::Kept(exact), Widest::Double) => exact.is_finite(),
            _ => false,
        }
    }

    /// The bytes held beyond the value itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.exact {
            Exactness::Kept(exact) => size_of::<ExactSum>() + exact.heap_bytes(),
            _ => 0,
        }
    }

    /// The sum in the form in which MongoDB 4.4 merges it: where integers leave 64 bits, a double
    /// and the integer that is added to it. `orderless` says whether it is to be one whatever the
    /// order of the terms, where there is one.
    pub(crate) fn mergeable_by_v44(&self, orderless: bool) -> RawBson {
        if self.widest <= Widest::Long && self.others.integer().is_none() {
            let (total, rest) = self.pair(false);
            let mut out = DocBuilder::new();
            out.append("subTotal", total)
                .append("subTotalError", rest as i64);
            return RawBson::Document(out.finish());
        }
        let made = orderless.then(|| self.orderless()).flatten();
        made.unwrap_or_else(|| self.value()).to_raw_bson()
    }

    /// The average of `count` terms in the form in which MongoDB 4.4 merges it: a double and what
    /// rounding has cut off, or a decimal.
    pub(crate) fn mergeable_average_by_v44(&self, count: i64, orderless: bool) -> RawBson {
        let mut out = DocBuilder::new();
        if self.widest == Widest::Decimal {
            let total = RawBsonRef::Decimal128(self.decimal().pack());
            out.append("subTotal", total).append("count", count);
        } else {
            let (total, rest) = self.pair(orderless);
            out.append("subTotal", total)
                .append("count", count)
                .append("subTotalError", rest);
        }
        RawBson::Document(out.finish())
    }

    /// The sum of what is no decimal as a double, and what is to be added to that.
    fn pair(&self, orderless: bool) -> (f64, f64) {
        if let Exactness::Kept(exact) = &self.exact
            && orderless
            && self.others.whole.is_none()
            && let Some(pair) = exact.pair()
        {
            return pair;
        }
        self.others.pair()
    }

    /// Appends what [`Sum::merge`] takes.
    pub(crate) fn write(&self, out: &mut DocBuilder) {
        out.append("widest", self.widest as i32);
        match self.others.whole {
            Some(whole) => {
                out.append("whole", whole);
            }
            None => {
                out.append("sum", self.others.sum);
                out.append("addend", self.others.addend);
                out.append("plain", self.others.plain);
            }
        }
        if self.widest == Widest::Decimal {
            out.append("decimals", RawBsonRef::Decimal128(self.decimals.pack()));
        }
        if let Exactness::Kept(exact) = &self.exact {
            exact.write("exact", out);
        }
    }

    /// Adds another sum. What is missing counts as nothing, and what is added to nothing stays as
    /// it is.
    pub(crate) fn merge(&mut self, partial: &RawDocument) {
        let partial = PartialSum::read(partial);
        self.widest = self.widest.max(partial.widest);
        let before = self.others.whole;
        let DoubleDouble {
            whole,
            sum,
            addend,
            plain,
        } = partial.others;
        match whole {
            Some(whole) => self.others.add_integer(whole),
            None if self.others.whole == Some(0) => self.others = partial.others,
            None => self.others.add_pair(sum, addend, plain),
        }
        if self.others.whole.is_none()
            && let Some(exact) = self.keep_exact(before)
        {
            match (whole, partial.exact) {
                (Some(whole), _) => exact.add(whole as f64),
                (None, Some(other)) => exact.add_all(&other),
                (None, None) => exact.add(f64::NAN),
            }
        }
        if let Some(decimals) = partial.decimals {
            self.decimals = self.decimals + decimals;
        }
    }
}

/// What [`Sum::write`] has written, read in one pass: there are as many as groups and parts.
struct PartialSum {
    widest: Widest,
    others: DoubleDouble,
    decimals: Option<Decimal>,
    exact: Option<ExactSum>,
}

impl PartialSum {
    fn read(partial: &RawDocument) -> PartialSum {
        let mut read = PartialSum {
            widest: Widest::Int,
            others: DoubleDouble {
                whole: None,
                sum: 0.0,
                addend: 0.0,
                plain: 0.0,
            },
            decimals: None,
            exact: None,
        };
        for (name, value) in elements(partial) {
            match (name, value) {
                ("widest", RawBsonRef::Int32(widest)) => read.widest = Widest::from_number(widest),
                ("whole", RawBsonRef::Int64(whole)) => read.others.whole = Some(whole),
                ("sum", RawBsonRef::Double(sum)) => read.others.sum = sum,
                ("addend", RawBsonRef::Double(addend)) => read.others.addend = addend,
                ("plain", RawBsonRef::Double(plain)) => read.others.plain = plain,
                ("decimals", RawBsonRef::Decimal128(v)) => {
                    read.decimals = Some(Decimal::unpack(v));
                }
                ("exact", RawBsonRef::Array(parts)) => read.exact = ExactSum::read(parts),
                _ => {}
            }
        }
        read
    }
}

/// An integer in two halves, each of which is a double exactly.
fn halves(value: i64) -> [f64; 2] {
    let high = value / (1 << 32) * (1 << 32);
    [(value - high) as f64, high as f64]
}

/// A sum of doubles with what rounding has cut off. The rest of an addition goes into the next one,
/// and the result is the first of the two: that is how MongoDB adds, and what its sums show in the
/// last bit.
#[derive(Clone, Copy, Debug)]
struct DoubleDouble {
    /// The sum, while it is of integers that are doubles exactly.
    whole: Option<i64>,
    sum: f64,
    addend: f64,
    /// The plain sum, which has the right infinities.
    plain: f64,
}

impl Default for DoubleDouble {
    fn default() -> DoubleDouble {
        DoubleDouble {
            whole: Some(0),
            sum: 0.0,
            addend: 0.0,
            plain: 0.0,
        }
    }
}

impl DoubleDouble {
    #[inline]
    fn add_integer(&mut self, value: i64) {
        if let Some(whole) = self.whole
            && (-EXACT..=EXACT).contains(&value)
            && (-EXACT..=EXACT).contains(&(whole + value))
        {
            self.whole = Some(whole + value);
            return;
        }
        halves(value)
            .into_iter()
            .for_each(|half| self.add_double(half));
    }

    #[inline]
    fn add_double(&mut self, value: f64) {
        if let Some(whole) = self.whole.take() {
            self.sum = whole as f64;
            self.plain = whole as f64;
        }
        self.plain += value;
        let carried = value + self.addend;
        let cut = self.addend - (carried - value);
        let sum = self.sum + carried;
        let virtual_value = sum - self.sum;
        let rest = (self.sum - (sum - virtual_value)) + (carried - virtual_value);
        self.sum = sum;
        self.addend = rest + cut;
    }

    fn add_pair(&mut self, sum: f64, addend: f64, plain: f64) {
        if sum.is_finite() && addend.is_finite() {
            self.add_double(sum);
            self.add_double(addend);
        } else {
            self.add_double(plain);
        }
    }

    /// The sum as a double, and what is to be added to that.
    fn pair(&self) -> (f64, f64) {
        match self.whole {
            Some(whole) => (whole as f64, 0.0),
            None if self.sum.is_finite() && self.addend.is_finite() => (self.sum, self.addend),
            // The plain sum has the right infinities.
            None => (self.plain, 0.0),
        }
    }

    fn double(&self) -> f64 {
        match self.whole {
            Some(whole) => whole as f64,
            None if self.sum.is_nan() => self.plain,
            None => self.sum,
        }
    }

    /// The sum as a 64-bit integer where it is one; asked for where only integers were added.
    fn integer(&self) -> Option<i64> {
        if let Some(whole) = self.whole {
            return Some(whole);
        }
        let fits = (self.sum > -BEYOND_LONG && self.sum < BEYOND_LONG)
            || (self.sum == -BEYOND_LONG && self.addend >= 0.0)
            || (self.sum == BEYOND_LONG && self.addend < 0.0);
        fits.then(|| (self.sum as i128 + self.addend as i128) as i64)
    }

    fn decimal(&self) -> Decimal {
        match self.whole {
            Some(whole) => Decimal::from_i64(whole),
            None if self.sum.is_finite() => {
                Decimal::from_f64_34(self.sum) + Decimal::from_f64_34(self.addend)
            }
            None => Decimal::from_f64_34(self.plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(terms: &[Number], expected: Number) {
        let mut sum = Sum::default();
        terms.iter().for_each(|term| sum.add(*term));
        assert_eq!(
            sum.value().to_raw_bson(),
            expected.to_raw_bson(),
            "{terms:?}"
        );
    }

    #[test]
    fn the_rest_of_an_addition_goes_into_the_next() {
        let double = |values: &[f64]| {
            values
                .iter()
                .map(|v| Number::Double(*v))
                .collect::<Vec<_>>()
        };
        // The last rest is no part of the result.
        check(
            &double(&[0.1, 0.7, 0.3, 1e16, 0.6, -1e16]),
            Number::Double(2.0),
        );
        check(&double(&[0.1; 10]), Number::Double(1.0));
        check(
            &double(&[f64::INFINITY, 1.0]),
            Number::Double(f64::INFINITY),
        );
        check(&double(&[-0.0]), Number::Double(0.0));
    }

    #[test]
    fn integers_are_added_exactly() {
        let max = Number::Int64(i64::MAX);
        check(
            &[Number::Int32(i32::MAX), Number::Int32(1)],
            Number::Int64(1 << 31),
        );
        check(&[max, Number::Int32(1)], Number::Double(BEYOND_LONG));
        check(
            &[max, Number::Int32(1), Number::Int32(-2)],
            Number::Int64(i64::MAX - 1),
        );
        check(
            &[max, max, Number::Int64(-i64::MAX), Number::Int64(-i64::MAX)],
            Number::Int64(0),
        );
        check(&[Number::Int64(i64::MIN)], Number::Int64(i64::MIN));
        check(
            &[Number::Int64(i64::MIN), Number::Int32(-1)],
            Number::Double(-BEYOND_LONG),
        );
        check(
            &[Number::Int64(EXACT), Number::Int32(1)],
            Number::Int64(EXACT + 1),
        );
    }

    #[test]
    fn an_average_of_integers_is_that_of_their_exact_sum() {
        let mut sum = Sum::default();
        sum.add(Number::Int64(i64::MAX));
        sum.add(Number::Int64(i64::MIN));
        assert_eq!(sum.average(2).to_f64(), -0.5);
    }

    #[test]
    fn a_merged_sum_is_the_sum() {
        let terms = [
            Number::Int32(3),
            Number::Int64(EXACT),
            Number::Double(0.5),
            Number::Decimal("1.25".parse().expect("a decimal")),
            Number::Int64(7),
        ];
        let mut whole = Sum::default();
        terms.iter().for_each(|term| whole.add(*term));
        let mut merged = Sum::default();
        for part in terms.chunks(2) {
            let mut sum = Sum::default();
            part.iter().for_each(|term| sum.add(*term));
            let mut out = DocBuilder::new();
            sum.write(&mut out);
            merged.merge(&out.finish());
        }
        assert_eq!(merged.value().to_raw_bson(), whole.value().to_raw_bson());
        let mut infinite = Sum::default();
        infinite.add(Number::Double(f64::INFINITY));
        let mut out = DocBuilder::new();
        infinite.write(&mut out);
        let mut merged = Sum::default();
        merged.merge(&out.finish());
        assert_eq!(merged.value().to_f64(), f64::INFINITY);
    }
}
