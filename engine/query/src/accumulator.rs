//! Accumulators of `$group`, shared with the expressions of the same names.

use indexmap::IndexMap;
use pinion_bson::decimal::Decimal;
use pinion_bson::{DocBuilder, Number, RawBson, RawBsonRef, compare_values};
use pinion_keystring::encode_id;
use pinion_wire::Result;
use rustc_hash::{FxBuildHasher, FxHashSet};

use crate::error::error;
use crate::value::{elements, is_nullish, owned, type_name};

/// Which accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sum,
    Avg,
    Min,
    Max,
    First,
    Last,
    Push,
    AddToSet,
    MergeObjects,
    StdDevPop,
    StdDevSamp,
    SetUnion,
    ConcatArrays,
}

impl Kind {
    pub(crate) fn find(name: &str) -> Option<Kind> {
        Some(match name {
            "$sum" => Kind::Sum,
            "$avg" => Kind::Avg,
            "$min" => Kind::Min,
            "$max" => Kind::Max,
            "$first" => Kind::First,
            "$last" => Kind::Last,
            "$push" => Kind::Push,
            "$addToSet" => Kind::AddToSet,
            "$mergeObjects" => Kind::MergeObjects,
            "$stdDevPop" => Kind::StdDevPop,
            "$stdDevSamp" => Kind::StdDevSamp,
            "$setUnion" => Kind::SetUnion,
            "$concatArrays" => Kind::ConcatArrays,
            _ => return None,
        })
    }
}

/// The state of one accumulator of one group.
#[derive(Clone, Debug)]
pub(crate) enum Accumulator {
    Sum(Sum),
    Avg {
        sum: Sum,
        count: i64,
    },
    Extreme {
        max: bool,
        value: Option<RawBson>,
    },
    First(Option<RawBson>),
    Last(Option<RawBson>),
    Push(Vec<RawBson>, usize),
    AddToSet {
        values: Vec<RawBson>,
        seen: FxHashSet<Vec<u8>>,
        bytes: usize,
    },
    MergeObjects {
        fields: IndexMap<String, RawBson, FxBuildHasher>,
        bytes: usize,
    },
    /// The items of arrays, each given to another accumulator.
    Items {
        name: &'static str,
        each: Box<Accumulator>,
    },
    /// Welford's method.
    StdDev {
        sample: bool,
        count: i64,
        mean: f64,
        squares: f64,
    },
}

impl Accumulator {
    pub(crate) fn new(kind: Kind) -> Accumulator {
        match kind {
            Kind::Sum => Accumulator::Sum(Sum::default()),
            Kind::Avg => Accumulator::Avg {
                sum: Sum::default(),
                count: 0,
            },
            Kind::Min => Accumulator::Extreme {
                max: false,
                value: None,
            },
            Kind::Max => Accumulator::Extreme {
                max: true,
                value: None,
            },
            Kind::First => Accumulator::First(None),
            Kind::Last => Accumulator::Last(None),
            Kind::Push => Accumulator::Push(Vec::new(), 0),
            Kind::AddToSet => Accumulator::AddToSet {
                values: Vec::new(),
                seen: FxHashSet::default(),
                bytes: 0,
            },
            Kind::MergeObjects => Accumulator::MergeObjects {
                fields: IndexMap::default(),
                bytes: 0,
            },
            Kind::SetUnion => Accumulator::Items {
                name: "$setUnion",
                each: Box::new(Accumulator::new(Kind::AddToSet)),
            },
            Kind::ConcatArrays => Accumulator::Items {
                name: "$concatArrays",
                each: Box::new(Accumulator::new(Kind::Push)),
            },
            Kind::StdDevPop => Accumulator::StdDev {
                sample: false,
                count: 0,
                mean: 0.0,
                squares: 0.0,
            },
            Kind::StdDevSamp => Accumulator::StdDev {
                sample: true,
                count: 0,
                mean: 0.0,
                squares: 0.0,
            },
        }
    }

    /// Takes one value, `None` where it is missing.
    pub(crate) fn add(&mut self, value: Option<RawBsonRef<'_>>) -> Result<()> {
        match self {
            Accumulator::Sum(sum) => {
                if let Some(number) = value.and_then(Number::from_value) {
                    sum.add(number);
                }
            }
            Accumulator::Avg { sum, count } => {
                if let Some(number) = value.and_then(Number::from_value) {
                    sum.add(number);
                    *count += 1;
                }
            }
            Accumulator::Extreme {
                max,
                value: extreme,
            } => {
                if let Some(value) = value.filter(|v| !is_nullish(*v)) {
                    let better = extreme.as_ref().is_none_or(|old| {
                        let order = compare_values(value, old.as_raw_bson_ref());
                        if *max { order.is_gt() } else { order.is_lt() }
                    });
                    if better {
                        *extreme = Some(owned(value));
                    }
                }
            }
            Accumulator::First(first) => {
                if first.is_none() {
                    *first = Some(value.map_or(RawBson::Null, owned));
                }
            }
            Accumulator::Last(last) => *last = Some(value.map_or(RawBson::Null, owned)),
            Accumulator::Push(values, bytes) => {
                if let Some(value) = value {
                    let value = owned(value);
                    *bytes += size(&value);
                    values.push(value);
                }
            }
            Accumulator::AddToSet {
                values,
                seen,
                bytes,
            } => {
                if let Some(value) = value
                    && seen.insert(encode_id(value).to_vec())
                {
                    let value = owned(value);
                    *bytes += 2 * size(&value);
                    values.push(value);
                }
            }
            Accumulator::MergeObjects { fields, bytes } => match value {
                None => {}
                Some(value) if is_nullish(value) => {}
                Some(RawBsonRef::Document(document)) => {
                    for (name, value) in elements(document) {
                        let value = owned(value);
                        *bytes += size(&value);
                        match fields.get_mut(name) {
                            Some(old) => {
                                *bytes -= size(old);
                                *old = value;
                            }
                            None => {
                                *bytes += 2 * size_of::<String>() + name.len();
                                fields.insert(name.to_string(), value);
                            }
                        }
                    }
                }
                Some(other) => {
                    return Err(error(
                        40400,
                        format!(
                            "$mergeObjects requires object inputs, but input {} is of type {}",
                            crate::text::value_text(other),
                            type_name(other)
                        ),
                    ));
                }
            },
            Accumulator::Items { name, each } => match value {
                None => {}
                Some(RawBsonRef::Array(array)) => {
                    for item in crate::value::items(array) {
                        each.add(Some(item))?;
                    }
                }
                Some(other) => {
                    return Err(crate::error::type_mismatch(format!(
                        "{name} requires array inputs, but input {} is of type {}",
                        crate::text::value_text(other),
                        type_name(other)
                    )));
                }
            },
            Accumulator::StdDev {
                count,
                mean,
                squares,
                ..
            } => {
                if let Some(number) = value.and_then(Number::from_value) {
                    let value = number.to_f64();
                    *count += 1;
                    let delta = value - *mean;
                    *mean += delta / *count as f64;
                    *squares += delta * (value - *mean);
                }
            }
        }
        Ok(())
    }

    /// The result.
    pub(crate) fn finish(&self) -> RawBson {
        match self {
            Accumulator::Sum(sum) => sum.value().to_raw_bson(),
            Accumulator::Avg { count: 0, .. } => RawBson::Null,
            Accumulator::Avg { sum, count } => sum.average(*count).to_raw_bson(),
            Accumulator::Extreme { value, .. } => value.clone().unwrap_or(RawBson::Null),
            Accumulator::First(value) | Accumulator::Last(value) => {
                value.clone().unwrap_or(RawBson::Null)
            }
            Accumulator::Push(values, _) | Accumulator::AddToSet { values, .. } => {
                let mut out = DocBuilder::new();
                out.start_array("");
                for value in values {
                    out.push(value.as_raw_bson_ref());
                }
                out.end();
                crate::value::first(&out.finish()).map_or(RawBson::Null, |(_, value)| owned(value))
            }
            Accumulator::MergeObjects { fields, .. } => {
                let mut out = DocBuilder::new();
                for (name, value) in fields {
                    out.append(name, value.as_raw_bson_ref());
                }
                RawBson::Document(out.finish())
            }
            Accumulator::Items { each, .. } => each.finish(),
            Accumulator::StdDev {
                sample,
                count,
                squares,
                ..
            } => {
                let divisor = if *sample { count - 1 } else { *count };
                if divisor <= 0 {
                    RawBson::Null
                } else {
                    RawBson::Double((squares / divisor as f64).sqrt())
                }
            }
        }
    }

    /// The bytes held, roughly.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Accumulator::Push(_, bytes)
            | Accumulator::AddToSet { bytes, .. }
            | Accumulator::MergeObjects { bytes, .. } => 32 + bytes,
            Accumulator::First(value)
            | Accumulator::Last(value)
            | Accumulator::Extreme { value, .. } => 32 + value.as_ref().map_or(0, size),
            Accumulator::Items { each, .. } => each.bytes(),
            _ => 64,
        }
    }
}

fn size(value: &RawBson) -> usize {
    std::mem::size_of::<RawBson>()
        + match value {
            RawBson::String(text) => text.len(),
            RawBson::Document(document) => document.as_bytes().len(),
            RawBson::Array(array) => array.as_bytes().len(),
            RawBson::Binary(binary) => binary.bytes.len(),
            _ => 0,
        }
}

/// A sum over all number types: integers exactly while they fit, doubles with the error of each addition carried along,
/// decimals apart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    integers: i128,
    has_long: bool,
    doubles: Compensated,
    has_double: bool,
    decimals: Option<Decimal>,
}

/// A double with what rounding has cut off.
#[derive(Clone, Copy, Debug, Default)]
struct Compensated {
    sum: f64,
    rest: f64,
    /// The plain sum, which has the right infinities.
    plain: f64,
}

impl Compensated {
    fn add(&mut self, value: f64) {
        self.plain += value;
        let sum = self.sum + value;
        let virtual_value = sum - self.sum;
        self.rest += (self.sum - (sum - virtual_value)) + (value - virtual_value);
        self.sum = sum;
    }

    fn value(&self) -> f64 {
        let total = self.sum + self.rest;
        if total.is_nan() { self.plain } else { total }
    }
}

impl Sum {
    pub(crate) fn add(&mut self, number: Number) {
        match number {
            Number::Int32(v) => self.integers += i128::from(v),
            Number::Int64(v) => {
                self.integers += i128::from(v);
                self.has_long = true;
            }
            Number::Double(v) => {
                self.doubles.add(v);
                self.has_double = true;
            }
            Number::Decimal(v) => {
                let value = Decimal::unpack(v);
                // A zero to begin with makes 1E+3 a sum of 1000, and -0 one of 0.
                self.decimals = Some(self.decimals.unwrap_or(Decimal::from_i64(0)) + value);
            }
        }
    }

    /// Everything but the decimals.
    fn doubles_and_integers(&self) -> Compensated {
        let mut total = self.doubles;
        // The integers in two exact halves.
        let high = self.integers >> 32 << 32;
        total.add(high as f64);
        total.add((self.integers - high) as f64);
        total
    }

    fn double(&self) -> f64 {
        self.doubles_and_integers().value()
    }

    fn decimal(&self, decimals: Decimal) -> Decimal {
        let others = self.doubles_and_integers();
        decimals
            + if others.sum.is_finite() {
                Decimal::from_f64_34(others.sum) + Decimal::from_f64_34(others.rest)
            } else {
                Decimal::from_f64_34(others.plain)
            }
    }

    pub(crate) fn value(&self) -> Number {
        if let Some(decimals) = self.decimals {
            return Number::Decimal(self.decimal(decimals).pack());
        }
        if self.has_double {
            return Number::Double(self.double());
        }
        match (i32::try_from(self.integers), i64::try_from(self.integers)) {
            (Ok(v), _) if !self.has_long => Number::Int32(v),
            (_, Ok(v)) => Number::Int64(v),
            _ => Number::Double(self.integers as f64),
        }
    }

    pub(crate) fn average(&self, count: i64) -> Number {
        match self.decimals {
            Some(decimals) => {
                Number::Decimal((self.decimal(decimals) / Number::Int64(count).to_decimal()).pack())
            }
            None => Number::Double(self.double() / count as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawbson;

    #[track_caller]
    fn check(kind: Kind, values: Vec<RawBson>, expected: RawBson) {
        let mut accumulator = Accumulator::new(kind);
        for value in &values {
            accumulator
                .add(Some(value.as_raw_bson_ref()))
                .expect("it accumulates");
        }
        assert_eq!(accumulator.finish(), expected, "{kind:?} {values:?}");
    }

    #[test]
    fn sums() {
        check(Kind::Sum, vec![], rawbson!(0));
        check(
            Kind::Sum,
            vec![rawbson!(1), rawbson!("x"), rawbson!(2.5)],
            rawbson!(3.5),
        );
        check(
            Kind::Sum,
            vec![rawbson!(i32::MAX), rawbson!(1)],
            rawbson!(2_147_483_648_i64),
        );
        check(
            Kind::Sum,
            vec![rawbson!(i64::MAX), rawbson!(1)],
            rawbson!(i64::MAX as f64),
        );
        check(
            Kind::Sum,
            vec![rawbson!(1_i64), rawbson!(1)],
            rawbson!(2_i64),
        );
        check(
            Kind::Sum,
            vec![rawbson!(0.1), rawbson!(0.2), rawbson!(0.3)],
            rawbson!(0.6),
        );
        // Doubles join decimals with all their digits, and a sum begins at zero.
        let decimal = |text: &str| RawBson::Decimal128(text.parse().unwrap());
        for (terms, sum) in [
            (vec![decimal("-0")], "0"),
            (vec![decimal("1E+3")], "1000"),
            (vec![decimal("1.00"), rawbson!(1.5)], "2.50"),
            (
                vec![decimal("0"), rawbson!(0.1)],
                "0.1000000000000000055511151231257827",
            ),
            (
                vec![decimal("0"), rawbson!(1.0 / 3.0)],
                "0.3333333333333333148296162562473910",
            ),
            (
                vec![decimal("1"), rawbson!(i64::MAX), rawbson!(i64::MAX)],
                "18446744073709551615",
            ),
        ] {
            check(Kind::Sum, terms, decimal(sum));
        }
        check(Kind::Avg, vec![rawbson!(1), rawbson!(2)], rawbson!(1.5));
        check(Kind::Avg, vec![rawbson!("x")], RawBson::Null);
    }

    #[test]
    fn others() {
        check(
            Kind::Min,
            vec![rawbson!(3), RawBson::Null, rawbson!(1)],
            rawbson!(1),
        );
        check(Kind::Max, vec![rawbson!(3), rawbson!("a")], rawbson!("a"));
        check(Kind::Min, vec![RawBson::Null], RawBson::Null);
        check(Kind::First, vec![rawbson!(3), rawbson!(1)], rawbson!(3));
        check(Kind::Last, vec![rawbson!(3), rawbson!(1)], rawbson!(1));
        check(Kind::Push, vec![rawbson!(3), rawbson!(3)], rawbson!([3, 3]));
        check(
            Kind::AddToSet,
            vec![rawbson!(3), rawbson!(3.0), rawbson!(1)],
            rawbson!([3, 1]),
        );
        check(
            Kind::MergeObjects,
            vec![rawbson!({ "a": 1, "b": 1 }), rawbson!({ "a": 2 })],
            rawbson!({ "a": 2, "b": 1 }),
        );
        check(
            Kind::StdDevPop,
            vec![rawbson!(1), rawbson!(3)],
            rawbson!(1.0),
        );
        check(Kind::StdDevSamp, vec![rawbson!(1)], RawBson::Null);
    }

    #[test]
    fn what_is_kept_is_counted() {
        let large = RawBson::Document(pinion_bson::rawdoc! { "a": "x".repeat(100_000) });
        let small = RawBson::Document(pinion_bson::rawdoc! { "a": "x" });
        for kind in [
            Kind::Min,
            Kind::Max,
            Kind::First,
            Kind::Last,
            Kind::Push,
            Kind::AddToSet,
            Kind::MergeObjects,
        ] {
            let mut accumulator = Accumulator::new(kind);
            accumulator
                .add(Some(large.as_raw_bson_ref()))
                .expect("it takes documents");
            assert!(
                (100_000..300_000).contains(&accumulator.bytes()),
                "{kind:?}"
            );
            accumulator
                .add(Some(small.as_raw_bson_ref()))
                .expect("it takes documents");
            let kept = accumulator.finish().as_raw_bson_ref() != small.as_raw_bson_ref();
            assert_eq!(accumulator.bytes() >= 100_000, kept, "{kind:?}");
        }
    }
}
