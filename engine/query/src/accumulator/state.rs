//! The state of one accumulator of one group.

use std::sync::Arc;

use indexmap::IndexMap;
use pinion_bson::{BinarySubtype, DocBuilder, Number, RawBinaryRef, RawBson, RawBsonRef};
use pinion_collation::Collation;
use pinion_keystring::encode_id_in;
use pinion_wire::Result;
use rustc_hash::{FxBuildHasher, FxHashSet};

use super::digest::Digest;
use super::kind::Kind;
use super::list::List;
use super::ordered::Ordered;
use super::quantile::Quantiles;
use super::ranked::{Few, Ranked, Side};
use super::spread::Spread;
use super::sum::Sum;
use crate::collation::compare;
use crate::error::{error, type_mismatch};
use crate::text::value_text;
use crate::value::{elements, is_nullish, items, owned, type_name};

#[derive(Clone, Debug)]
pub(crate) enum Accumulator {
    Count(i64),
    Sum(Sum),
    Avg {
        sum: Sum,
        count: i64,
    },
    Extreme {
        max: bool,
        value: Option<RawBson>,
        collation: Option<Arc<Collation>>,
    },
    First(Option<RawBson>),
    Last(Option<RawBson>),
    Push(List),
    AddToSet {
        values: List,
        seen: FxHashSet<Vec<u8>>,
        bytes: usize,
        collation: Option<Arc<Collation>>,
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
    StdDev {
        sample: bool,
        spread: Spread,
    },
    Few(Few),
    /// The least or greatest few values, the greatest in descending order.
    Extremes {
        max: bool,
        ranked: Ranked,
        collation: Option<Arc<Collation>>,
    },
    /// The best few, or the best one, by a sort pattern.
    Best {
        single: bool,
        ranked: Ranked,
    },
    Quantiles {
        wanted: Quantiles,
        digest: Box<Digest>,
    },
    /// What parts know of one whose result depends on the order of the documents. Gives the values
    /// that it keeps, in that order.
    Ordered(Ordered),
    /// What another accumulator is given later, each value behind its key where that orders by
    /// keys. Gives no result of its own.
    Recorded {
        ranked: bool,
        inputs: List,
    },
}

impl Accumulator {
    /// The state of an accumulator that keeps no set number of values.
    pub(crate) fn new(kind: &Kind) -> Accumulator {
        Accumulator::with_number(kind, 1)
    }

    /// The state of an accumulator; `wanted` is the `n` of those that have one.
    pub(crate) fn with_number(kind: &Kind, wanted: usize) -> Accumulator {
        let extreme = |max| Accumulator::Extreme {
            max,
            value: None,
            collation: None,
        };
        let extremes = |max, side| Accumulator::Extremes {
            max,
            ranked: Ranked::new(wanted, side),
            collation: None,
        };
        let best = |single, side| Accumulator::Best {
            single,
            ranked: Ranked::new(wanted, side),
        };
        let items = |name, kind| Accumulator::Items {
            name,
            each: Box::new(Accumulator::new(kind)),
        };
        let deviation = |sample| Accumulator::StdDev {
            sample,
            spread: Spread::default(),
        };
        match kind {
            Kind::Count => Accumulator::Count(0),
            Kind::Sum => Accumulator::Sum(Sum::default()),
            Kind::Avg => Accumulator::Avg {
                sum: Sum::default(),
                count: 0,
            },
            Kind::Min => extreme(false),
            Kind::Max => extreme(true),
            Kind::First => Accumulator::First(None),
            Kind::Last => Accumulator::Last(None),
            Kind::Push => Accumulator::Push(List::default()),
            Kind::AddToSet => Accumulator::AddToSet {
                values: List::default(),
                seen: FxHashSet::default(),
                bytes: 0,
                collation: None,
            },
            Kind::MergeObjects => Accumulator::MergeObjects {
                fields: IndexMap::default(),
                bytes: 0,
            },
            Kind::SetUnion => items("$setUnion", &Kind::AddToSet),
            Kind::ConcatArrays => items("$concatArrays", &Kind::Push),
            Kind::StdDevPop => deviation(false),
            Kind::StdDevSamp => deviation(true),
            Kind::FirstN => Accumulator::Few(Few::new(wanted, false)),
            Kind::LastN => Accumulator::Few(Few::new(wanted, true)),
            Kind::MinN => extremes(false, Side::Top),
            Kind::MaxN => extremes(true, Side::Bottom),
            Kind::Top => best(true, Side::Top),
            Kind::Bottom => best(true, Side::Bottom),
            Kind::TopN => best(false, Side::Top),
            Kind::BottomN => best(false, Side::Bottom),
            Kind::Quantiles(wanted) => Accumulator::Quantiles {
                wanted: wanted.clone(),
                digest: Box::default(),
            },
        }
    }

    /// The same state before it takes its first value, with strings compared by the collation.
    #[must_use]
    pub(crate) fn with_collation(mut self, by: Option<&Arc<Collation>>) -> Accumulator {
        match &mut self {
            Accumulator::Extreme { collation, .. }
            | Accumulator::AddToSet { collation, .. }
            | Accumulator::Extremes { collation, .. } => *collation = by.cloned(),
            Accumulator::Items { each, .. } => {
                let inner = std::mem::replace(&mut **each, Accumulator::Count(0));
                **each = inner.with_collation(by);
            }
            _ => {}
        }
        self
    }

    /// Takes one value, `None` where it is missing.
    pub(crate) fn add(&mut self, value: Option<RawBsonRef<'_>>) -> Result<()> {
        self.add_ranked(value, &[])
    }

    /// Takes one value under the key that its document has in the order of `$top` and its kin.
    pub(crate) fn add_ranked(&mut self, value: Option<RawBsonRef<'_>>, key: &[u8]) -> Result<()> {
        match self {
            Accumulator::Count(count) => *count += 1,
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
                collation,
            } => add_extreme(*max, extreme, value, collation.as_deref()),
            Accumulator::First(first) => {
                if first.is_none() {
                    *first = Some(value.map_or(RawBson::Null, owned));
                }
            }
            Accumulator::Last(last) => *last = Some(value.map_or(RawBson::Null, owned)),
            Accumulator::Push(values) => {
                if let Some(value) = value {
                    values.push(value);
                }
            }
            Accumulator::AddToSet {
                values,
                seen,
                bytes,
                collation,
            } => {
                if let Some(value) = value {
                    let key = encode_id_in(collation.as_deref(), value);
                    if !seen.contains(&key[..]) {
                        *bytes += size_of::<Vec<u8>>() + key.len();
                        seen.insert(key.to_vec());
                        values.push(value);
                    }
                }
            }
            Accumulator::MergeObjects { fields, bytes } => merge_objects(fields, bytes, value)?,
            Accumulator::Items { name, each } => match value {
                None => {}
                Some(RawBsonRef::Array(array)) => {
                    for item in items(array) {
                        each.add(Some(item))?;
                    }
                }
                Some(other) => {
                    return Err(type_mismatch(format!(
                        "{name} requires array inputs, but input {} is of type {}",
                        value_text(other),
                        type_name(other)
                    )));
                }
            },
            Accumulator::StdDev { spread, .. } => {
                if let Some(number) = value.and_then(Number::from_value) {
                    spread.add(number.to_f64());
                }
            }
            Accumulator::Few(few) => few.add(value.unwrap_or(RawBsonRef::Null)),
            Accumulator::Extremes {
                ranked, collation, ..
            } => {
                if let Some(value) = value.filter(|v| !is_nullish(*v)) {
                    ranked.add(&encode_id_in(collation.as_deref(), value), value);
                }
            }
            Accumulator::Best { ranked, .. } => {
                ranked.add(key, value.unwrap_or(RawBsonRef::Null));
            }
            Accumulator::Quantiles { digest, .. } => {
                if let Some(number) = value.and_then(Number::from_value) {
                    digest.add(number.to_f64());
                }
            }
            Accumulator::Ordered(ordered) => ordered.add(&[], value),
            Accumulator::Recorded { ranked, inputs } => {
                if *ranked {
                    inputs.push(RawBsonRef::Binary(RawBinaryRef {
                        subtype: BinarySubtype::Generic,
                        bytes: key,
                    }));
                    inputs.push(value.unwrap_or(RawBsonRef::Null));
                } else if let Some(value) = value {
                    inputs.push(value);
                }
            }
        }
        Ok(())
    }

    /// The result.
    pub(crate) fn finish(&self) -> RawBson {
        match self {
            Accumulator::Count(count) => {
                i32::try_from(*count).map_or(RawBson::Int64(*count), RawBson::Int32)
            }
            Accumulator::Sum(sum) => sum.value().to_raw_bson(),
            Accumulator::Avg { count: 0, .. } => RawBson::Null,
            Accumulator::Avg { sum, count } => sum.average(*count).to_raw_bson(),
            Accumulator::Extreme { value, .. }
            | Accumulator::First(value)
            | Accumulator::Last(value) => value.clone().unwrap_or(RawBson::Null),
            Accumulator::Push(values) | Accumulator::AddToSet { values, .. } => values.array(),
            Accumulator::MergeObjects { fields, .. } => {
                let mut out = DocBuilder::new();
                for (name, value) in fields {
                    out.append(name, value.as_raw_bson_ref());
                }
                RawBson::Document(out.finish())
            }
            Accumulator::Items { each, .. } => each.finish(),
            Accumulator::StdDev { sample, spread } => spread.deviation(*sample),
            Accumulator::Few(few) => few.array(),
            Accumulator::Extremes { max, ranked, .. } => {
                let values = ranked.entries().map(|(_, value)| value);
                if *max {
                    List::of(values.rev())
                } else {
                    List::of(values)
                }
            }
            Accumulator::Best {
                single: true,
                ranked,
            } => {
                let best = ranked.entries().next();
                best.map_or(RawBson::Null, |(_, value)| owned(value))
            }
            Accumulator::Best { ranked, .. } => List::of(ranked.entries().map(|(_, value)| value)),
            Accumulator::Quantiles { wanted, digest } => {
                wanted.result(digest.quantiles(wanted.shares()))
            }
            Accumulator::Ordered(ordered) => List::of(ordered.in_order()),
            Accumulator::Recorded { inputs, .. } => inputs.array(),
        }
    }

    /// The bytes held, roughly.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Accumulator::Push(values) => 32 + values.bytes(),
            Accumulator::AddToSet { values, bytes, .. } => 32 + values.bytes() + bytes,
            Accumulator::MergeObjects { bytes, .. } => 32 + bytes,
            Accumulator::First(value)
            | Accumulator::Last(value)
            | Accumulator::Extreme { value, .. } => 32 + value.as_ref().map_or(0, size),
            Accumulator::Items { each, .. } => each.bytes(),
            Accumulator::Few(few) => 64 + few.bytes(),
            Accumulator::Extremes { ranked, .. } | Accumulator::Best { ranked, .. } => {
                64 + ranked.bytes()
            }
            Accumulator::Quantiles { digest, .. } => 64 + digest.bytes(),
            Accumulator::Ordered(ordered) => size_of::<Accumulator>() + ordered.bytes(),
            Accumulator::Recorded { inputs, .. } => 32 + inputs.bytes(),
            Accumulator::Sum(sum) | Accumulator::Avg { sum, .. } => {
                size_of::<Accumulator>() + sum.heap_bytes()
            }
            _ => 64,
        }
    }
}

fn add_extreme(
    max: bool,
    extreme: &mut Option<RawBson>,
    value: Option<RawBsonRef<'_>>,
    collation: Option<&Collation>,
) {
    let Some(value) = value.filter(|v| !is_nullish(*v)) else {
        return;
    };
    let better = extreme.as_ref().is_none_or(|old| {
        let order = compare(collation, value, old.as_raw_bson_ref());
        if max { order.is_gt() } else { order.is_lt() }
    });
    if better {
        *extreme = Some(owned(value));
    }
}

fn merge_objects(
    fields: &mut IndexMap<String, RawBson, FxBuildHasher>,
    bytes: &mut usize,
    value: Option<RawBsonRef<'_>>,
) -> Result<()> {
    let document = match value {
        None => return Ok(()),
        Some(value) if is_nullish(value) => return Ok(()),
        Some(RawBsonRef::Document(document)) => document,
        Some(other) => {
            return Err(error(
                40400,
                format!(
                    "$mergeObjects requires object inputs, but input {} is of type {}",
                    value_text(other),
                    type_name(other)
                ),
            ));
        }
    };
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
    Ok(())
}

/// The bytes of a value that is owned.
pub(super) fn size(value: &RawBson) -> usize {
    size_of::<RawBson>() + crate::value::bytes(value.as_raw_bson_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawbson;
    use pinion_keystring::encode_id;

    #[track_caller]
    fn check(kind: Kind, values: Vec<RawBson>, expected: RawBson) {
        check_few(kind, 2, values, expected);
    }

    #[track_caller]
    fn check_few(kind: Kind, wanted: usize, values: Vec<RawBson>, expected: RawBson) {
        let mut accumulator = Accumulator::with_number(&kind, wanted);
        for value in &values {
            let value = value.as_raw_bson_ref();
            accumulator
                .add_ranked(Some(value), &encode_id(value))
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
        check(Kind::Count, vec![rawbson!("x"); 3], rawbson!(3));
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
    fn the_few() {
        let values = || {
            vec![
                rawbson!(3),
                RawBson::Null,
                rawbson!(1),
                rawbson!(9),
                rawbson!(1.0),
            ]
        };
        let null = RawBson::Null;
        check(Kind::FirstN, values(), rawbson!([3, (null.clone())]));
        check(Kind::LastN, values(), rawbson!([9, 1.0]));
        check(Kind::MinN, values(), rawbson!([1, 1.0]));
        check_few(Kind::MinN, 1, values(), rawbson!([1]));
        check(Kind::MaxN, values(), rawbson!([9, 3]));
        check(Kind::MaxN, vec![null.clone()], rawbson!([]));
        check(Kind::TopN, values(), rawbson!([(null.clone()), 1]));
        check(Kind::BottomN, values(), rawbson!([3, 9]));
        check_few(Kind::Top, 1, values(), null.clone());
        check_few(Kind::Bottom, 1, values(), rawbson!(9));
        check_few(Kind::Top, 1, vec![], null);
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
            Kind::FirstN,
            Kind::LastN,
            Kind::MinN,
            Kind::MaxN,
            Kind::Top,
            Kind::Bottom,
        ] {
            let mut accumulator = Accumulator::new(&kind);
            accumulator
                .add_ranked(Some(large.as_raw_bson_ref()), b"2")
                .expect("it takes documents");
            assert!(
                (100_000..300_000).contains(&accumulator.bytes()),
                "{kind:?}"
            );
            accumulator
                .add_ranked(Some(small.as_raw_bson_ref()), b"1")
                .expect("it takes documents");
            let mut kept = accumulator.finish();
            if let RawBson::Array(array) = &kept
                && let Some(Ok(first)) = array.into_iter().next()
            {
                kept = first.into();
            }
            let large_is_kept = kept != small;
            assert_eq!(accumulator.bytes() >= 100_000, large_is_kept, "{kind:?}");
        }
    }
}
