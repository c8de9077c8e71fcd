//! Partial results: what an accumulator knows of some of a group's documents, as a value that can
//! be kept or sent, and merged with what others know.

use pinion_bson::{Binary, BinarySubtype, DocBuilder, RawBson, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::kind::Kind;
use super::list::List;
use super::ranked::Side;
use super::state::Accumulator;
use super::sum::Sum;
use crate::collation::compare;
use crate::error::bad_value;
use crate::value::{elements, field, is_identical, items};

impl Kind {
    /// Whether partial results can be merged in any order, as long as
    /// [`Accumulator::merge_unordered`] says so.
    pub(crate) fn is_divisible(&self) -> bool {
        matches!(
            self,
            Kind::Count | Kind::Sum | Kind::Avg | Kind::Min | Kind::Max
        ) || self.needs_order()
    }

    /// Whether partial results carry the order of their documents.
    pub(crate) fn needs_order(&self) -> bool {
        matches!(
            self,
            Kind::First
                | Kind::Last
                | Kind::FirstN
                | Kind::LastN
                | Kind::Push
                | Kind::AddToSet
                | Kind::Top
                | Kind::TopN
        )
    }
}

impl Accumulator {
    /// What is known so far, for [`Accumulator::merge`].
    pub(crate) fn partial(&self) -> RawBson {
        match self {
            Accumulator::Sum(sum) => document(|out| sum.write(out)),
            Accumulator::Avg { sum, count } => document(|out| {
                sum.write(out);
                out.append("count", *count);
            }),
            Accumulator::StdDev { spread, .. } => document(|out| spread.write(out)),
            Accumulator::Quantiles { digest, .. } => document(|out| digest.write(out)),
            Accumulator::First(value)
            | Accumulator::Last(value)
            | Accumulator::Extreme { value, .. } => document(|out| {
                if let Some(value) = value {
                    out.append("value", value.as_raw_bson_ref());
                }
            }),
            Accumulator::Best { ranked, .. } => document(|out| {
                out.start_array("entries");
                for (key, value) in ranked.entries() {
                    let key = Binary {
                        subtype: BinarySubtype::Generic,
                        bytes: key.to_vec(),
                    };
                    out.push(&RawBson::Binary(key));
                    out.push(value);
                }
                out.end();
            }),
            Accumulator::Ordered(ordered) => ordered.partial(),
            // In ascending order also where the result descends: equal values stay in the order in
            // which they came.
            Accumulator::Extremes { ranked, .. } => {
                List::of(ranked.entries().map(|(_, value)| value))
            }
            // The result itself says all.
            _ => self.finish(),
        }
    }

    /// Takes a partial result of an accumulator of the same kind. Where the kind's merge order is
    /// that of the documents, what is merged must be of documents that follow all that were taken
    /// before.
    pub(crate) fn merge(&mut self, partial: RawBsonRef<'_>) -> Result<()> {
        if let (Accumulator::Sum(_) | Accumulator::Avg { .. }, RawBsonRef::Array(recorded))
        | (
            Accumulator::StdDev { .. } | Accumulator::Quantiles { .. },
            RawBsonRef::Array(recorded),
        ) = (&*self, partial)
        {
            return items(recorded).try_for_each(|value| self.add(Some(value)));
        }
        match self {
            Accumulator::Count(count) => {
                *count += crate::number::exact_i64(partial).ok_or_else(unreadable)?;
            }
            Accumulator::Sum(sum) => sum.merge(read(partial)?),
            Accumulator::Avg { sum, count } => {
                let partial = read(partial)?;
                sum.merge(partial);
                if let Some(RawBsonRef::Int64(more)) = field(partial, "count") {
                    *count += more;
                }
            }
            Accumulator::StdDev { spread, .. } => spread.merge(read(partial)?),
            Accumulator::Quantiles { digest, .. } => digest.merge(read(partial)?),
            Accumulator::First(_) | Accumulator::Last(_) | Accumulator::Extreme { .. } => {
                if let Some(value) = field(read(partial)?, "value") {
                    self.add(Some(value))?;
                }
            }
            Accumulator::Best { ranked, .. } => {
                let entries = match partial {
                    RawBsonRef::Array(recorded) => recorded,
                    partial => match field(read(partial)?, "entries") {
                        Some(RawBsonRef::Array(entries)) => entries,
                        _ => return Err(unreadable()),
                    },
                };
                let mut entries = items(entries);
                while let Some(key) = entries.next() {
                    let (RawBsonRef::Binary(key), Some(value)) = (key, entries.next()) else {
                        return Err(unreadable());
                    };
                    ranked.add(key.bytes, value);
                }
            }
            Accumulator::MergeObjects { .. } => {
                if elements(read(partial)?).next().is_some() {
                    self.add(Some(partial))?;
                }
            }
            Accumulator::Items { .. } => self.add(Some(partial))?,
            Accumulator::Ordered(ordered) => match partial {
                RawBsonRef::Array(inputs) => ordered.merge(inputs).ok_or_else(unreadable)?,
                _ => return Err(unreadable()),
            },
            Accumulator::Recorded { .. } => return Err(unreadable()),
            Accumulator::Push(_)
            | Accumulator::AddToSet { .. }
            | Accumulator::Few(_)
            | Accumulator::Extremes { .. } => {
                let RawBsonRef::Array(values) = partial else {
                    return Err(unreadable());
                };
                for value in items(values) {
                    self.add(Some(value))?;
                }
            }
        }
        Ok(())
    }

    /// Takes a partial result of documents that lie anywhere among the others; false where the
    /// result would depend on that: on the order in which numbers are added, or on which of two
    /// equal values came first. Sums of doubles do not, with [`Accumulator::finish_orderless`].
    pub(crate) fn merge_unordered(&mut self, partial: RawBsonRef<'_>) -> Result<bool> {
        if let Accumulator::Extreme {
            value: Some(value),
            collation,
            ..
        } = self
            && let Some(other) = field(read(partial)?, "value")
            && !is_identical(value.as_raw_bson_ref(), other)
            && compare(collation.as_deref(), value.as_raw_bson_ref(), other).is_eq()
        {
            return Ok(false);
        }
        self.merge(partial)?;
        Ok(self.is_orderless())
    }

    /// Takes one value of a document. `order` orders the document among those of all parts; it is
    /// empty where the pipeline does not run in parts. `key` is as in [`Accumulator::add_ranked`].
    pub(crate) fn add_ordered(
        &mut self,
        order: &[u8],
        value: Option<RawBsonRef<'_>>,
        key: &[u8],
    ) -> Result<()> {
        match self {
            Accumulator::Ordered(ordered) => ordered.add(order, value),
            // Of equal keys the first is kept, also where parts are merged.
            Accumulator::Best { ranked, .. } if ranked.side() == Side::Top && !order.is_empty() => {
                let key = [key, order].concat();
                ranked.add(&key, value.unwrap_or(RawBsonRef::Null));
            }
            _ => return self.add_ranked(value, key),
        }
        Ok(())
    }

    /// The same state before it takes its first value, where merging its partial results gives what
    /// all values would have given, to the last bit and with the same one of equal values. For
    /// others one that keeps what it takes until it is merged: sums of doubles, and kinds that drop
    /// the first of equal values, depend on all that came before.
    #[must_use]
    pub(crate) fn or_recorded(self) -> Accumulator {
        let recorded = |ranked| Accumulator::Recorded {
            ranked,
            inputs: List::default(),
        };
        match self {
            Accumulator::Sum(_)
            | Accumulator::Avg { .. }
            | Accumulator::StdDev { .. }
            | Accumulator::Quantiles { .. }
            | Accumulator::Extremes { max: true, .. } => recorded(false),
            Accumulator::Best { ref ranked, .. } if ranked.side() == Side::Bottom => recorded(true),
            other => other,
        }
    }

    /// Whether there is a result that does not depend on the order of the values. Sums of decimals
    /// depend on it in the last digits, and so do deviations and sketches.
    pub(crate) fn is_orderless(&self) -> bool {
        match self {
            Accumulator::Sum(sum) | Accumulator::Avg { sum, .. } => sum.is_orderless(),
            Accumulator::StdDev { spread, .. } => spread.is_empty(),
            Accumulator::Quantiles { digest, .. } => digest.is_exact(),
            _ => true,
        }
    }

    /// The result, which does not depend on the order of the values if that is possible: sums of
    /// doubles are exact, and rounded once.
    pub(crate) fn finish_orderless(&self) -> RawBson {
        let made = match self {
            Accumulator::Sum(sum) => sum.orderless(),
            Accumulator::Avg { sum, count } if *count > 0 => sum.orderless_average(*count),
            _ => None,
        };
        made.map_or_else(|| self.finish(), |made| made.to_raw_bson())
    }

    /// Whether [`Accumulator::finish`] depends on the order of the values, and
    /// [`Accumulator::finish_orderless`] does not.
    pub(crate) fn sums_doubles(&self) -> bool {
        match self {
            Accumulator::Sum(sum) | Accumulator::Avg { sum, .. } => {
                !sum.is_of_integers() && sum.is_orderless()
            }
            _ => false,
        }
    }

    /// The same state before it takes its first value, with a result of doubles that does not
    /// depend on their order.
    #[must_use]
    pub(crate) fn orderless(self) -> Accumulator {
        match self {
            Accumulator::Sum(_) => Accumulator::Sum(Sum::exact()),
            Accumulator::Avg { count, .. } => Accumulator::Avg {
                sum: Sum::exact(),
                count,
            },
            other => other,
        }
    }
}

fn document(write: impl FnOnce(&mut DocBuilder)) -> RawBson {
    let mut out = DocBuilder::new();
    write(&mut out);
    RawBson::Document(out.finish())
}

fn read(partial: RawBsonRef<'_>) -> Result<&RawDocument> {
    match partial {
        RawBsonRef::Document(document) => Ok(document),
        _ => Err(unreadable()),
    }
}

fn unreadable() -> pinion_wire::Error {
    bad_value("a partial result of an accumulator has a form that it does not take")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::Variables;
    use pinion_bson::rawbson;
    use pinion_keystring::encode_id;

    /// What is merged of consecutive parts is what all values give.
    #[track_caller]
    fn check(kind: &Kind, values: &[RawBson]) {
        let of = |values: &[RawBson]| {
            let mut accumulator = Accumulator::with_number(kind, 3);
            for value in values {
                let value = value.as_raw_bson_ref();
                accumulator
                    .add_ranked(Some(value), &encode_id(value))
                    .expect("it accumulates");
            }
            accumulator
        };
        for size in 1..=values.len() {
            let mut merged = Accumulator::with_number(kind, 3);
            for part in values.chunks(size) {
                merged
                    .merge(of(part).partial().as_raw_bson_ref())
                    .expect("it merges");
            }
            // Nothing adds nothing.
            merged
                .merge(of(&[]).partial().as_raw_bson_ref())
                .expect("it merges");
            assert_eq!(merged.finish(), of(values).finish(), "{kind:?} by {size}");
        }
    }

    #[test]
    fn parts_make_the_whole() {
        let median = rawbson!({ "input": "$x", "method": "approximate" });
        let (median, _) = crate::accumulator::Quantiles::parse(
            "$median",
            median.as_raw_bson_ref(),
            &Variables::default(),
        )
        .expect("parses");
        let values: Vec<RawBson> = [5, 3, 8, 1, 8, 2, 9, 4]
            .into_iter()
            .map(RawBson::Int32)
            .collect();
        for kind in [
            Kind::Count,
            Kind::Sum,
            Kind::Avg,
            Kind::Min,
            Kind::Max,
            Kind::First,
            Kind::Last,
            Kind::Push,
            Kind::AddToSet,
            Kind::FirstN,
            Kind::LastN,
            Kind::MinN,
            Kind::MaxN,
            Kind::Top,
            Kind::Bottom,
            Kind::TopN,
            Kind::BottomN,
            Kind::Quantiles(median),
        ] {
            check(&kind, &values);
        }
        let arrays: Vec<RawBson> = vec![rawbson!([1, 2]), rawbson!([2, 3]), rawbson!([])];
        check(&Kind::SetUnion, &arrays);
        check(&Kind::ConcatArrays, &arrays);
        check(
            &Kind::MergeObjects,
            &[
                rawbson!({ "a": 1 }),
                rawbson!({ "b": 1 }),
                rawbson!({ "a": 2 }),
            ],
        );
    }

    /// What is merged of a state and of what was recorded after it is, to the last bit, what all
    /// values give.
    #[track_caller]
    fn check_recorded(kind: &Kind, values: &[RawBson]) {
        let add = |accumulator: &mut Accumulator, values: &[RawBson]| {
            for (at, value) in values.iter().enumerate() {
                let value = value.as_raw_bson_ref();
                let key = encode_id(value);
                accumulator
                    .add_ranked(Some(value), &key)
                    .unwrap_or_else(|e| panic!("{at}: {e:?}"));
            }
        };
        let mut whole = Accumulator::with_number(kind, 3);
        add(&mut whole, values);
        for size in [1, 2, 5, values.len()] {
            let mut merged = Accumulator::with_number(kind, 3);
            for (at, part) in values.chunks(size).enumerate() {
                let mut state = Accumulator::with_number(kind, 3);
                if at > 0 {
                    state = state.or_recorded();
                }
                add(&mut state, part);
                merged
                    .merge(state.partial().as_raw_bson_ref())
                    .expect("it merges");
            }
            assert_eq!(merged.finish(), whole.finish(), "{kind:?} by {size}");
        }
    }

    #[test]
    fn recorded_values_count_as_if_they_had_come_in_their_turn() {
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 33
        };
        let values: Vec<RawBson> = (0..300)
            .map(|_| match next() % 4 {
                0 => RawBson::Int32((next() % 5) as i32),
                1 => RawBson::Double((next() % 5) as f64),
                2 => RawBson::Double(next() as f64 / 7.0),
                _ => RawBson::Int64((next() % 5) as i64),
            })
            .collect();
        let quantile = rawbson!({ "input": "$x", "p": [0.3], "method": "approximate" });
        let (quantile, _) = crate::accumulator::Quantiles::parse(
            "$percentile",
            quantile.as_raw_bson_ref(),
            &Variables::default(),
        )
        .expect("parses");
        for kind in [
            Kind::Sum,
            Kind::Avg,
            Kind::StdDevPop,
            Kind::StdDevSamp,
            Kind::Min,
            Kind::Max,
            Kind::AddToSet,
            Kind::FirstN,
            Kind::LastN,
            Kind::MinN,
            Kind::MaxN,
            Kind::Top,
            Kind::Bottom,
            Kind::TopN,
            Kind::BottomN,
            Kind::Quantiles(quantile),
        ] {
            check_recorded(&kind, &values);
        }
    }

    #[test]
    fn what_is_no_partial_result_is_refused() {
        for kind in [Kind::Count, Kind::Sum, Kind::Push, Kind::Top, Kind::First] {
            let merged = Accumulator::new(&kind).merge(RawBsonRef::String("x"));
            assert!(merged.is_err(), "{kind:?}");
        }
    }

    /// The result of values that lie in parts, and whether it depends on how they lie.
    fn in_parts(kind: &Kind, values: &[RawBson], parts: usize) -> (RawBson, bool) {
        let mut merged = Accumulator::new(kind).orderless();
        let mut orderless = true;
        for at in 0..parts {
            let mut part = Accumulator::new(kind).orderless();
            for value in values.iter().skip(at).step_by(parts) {
                part.add(Some(value.as_raw_bson_ref())).expect("it adds");
            }
            let partial = part.partial();
            let taken = merged.merge_unordered(partial.as_raw_bson_ref());
            orderless &= part.is_orderless() && taken.expect("it merges");
        }
        (merged.finish_orderless(), orderless)
    }

    #[test]
    fn sums_of_doubles_need_not_depend_on_their_order() {
        let mut state = 5_u64;
        let mut next = |below: u64| {
            state = (state.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1);
            (state >> 33) % below
        };
        for (count, ints) in [0, 1, 3, 16, 40, 200]
            .into_iter()
            .flat_map(|count| [0, 50, 100].map(|ints| (count, ints)))
        {
            let values: Vec<RawBson> = (0..count)
                .map(|_| match next(100) < ints {
                    true => RawBson::Int64(next(1 << 40) as i64),
                    false => RawBson::Double(next(1 << 31) as f64 / 100.0),
                })
                .collect();
            let doubles = values.iter().any(|v| matches!(v, RawBson::Double(_)));
            for kind in [Kind::Sum, Kind::Avg] {
                let mut whole = Accumulator::new(&kind).orderless();
                let mut as_mongodb = Accumulator::new(&kind);
                for value in &values {
                    let value = Some(value.as_raw_bson_ref());
                    whole.add(value).expect("it adds");
                    as_mongodb.add(value).expect("it adds");
                }
                assert_eq!(whole.finish(), as_mongodb.finish());
                assert_eq!(whole.sums_doubles(), doubles);
                for parts in [1, 2, 3, 7] {
                    let found = in_parts(&kind, &values, parts);
                    let expected = (whole.finish_orderless(), true);
                    assert_eq!(found, expected, "{values:?} in {parts}");
                }
            }
        }
    }

    #[track_caller]
    fn check_unordered(kind: &Kind, parts: [RawBson; 2], expected: bool) {
        let (_, orderless) = in_parts(kind, &parts, 2);
        assert_eq!(orderless, expected, "{kind:?} {parts:?}");
    }

    #[test]
    fn what_depends_on_the_order_shows() {
        for kind in [Kind::Sum, Kind::Avg] {
            check_unordered(&kind, [rawbson!(1), rawbson!(2_i64)], true);
            check_unordered(&kind, [rawbson!(1), rawbson!(2.0)], true);
            check_unordered(&kind, [rawbson!(1), rawbson!(1e300)], false);
            check_unordered(&kind, [rawbson!(1_i64 << 53), rawbson!(1_i64 << 53)], false);
            check_unordered(&kind, [rawbson!(1), rawbson!("x")], true);
        }
        for kind in [Kind::Min, Kind::Max] {
            check_unordered(&kind, [rawbson!(1.5), rawbson!(2)], true);
            check_unordered(&kind, [rawbson!("a"), rawbson!("a")], true);
            check_unordered(&kind, [rawbson!(1), rawbson!(1.0)], false);
            check_unordered(&kind, [RawBson::Null, rawbson!(1.0)], true);
        }
        check_unordered(&Kind::Count, [rawbson!(1.5), rawbson!("x")], true);
    }
}
