//! Partial results: what an accumulator knows of some of a group's documents, as a value that can be
//! kept or sent, and put together with what others know.

use pinion_bson::{Binary, BinarySubtype, DocBuilder, RawBson, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::kind::Kind;
use super::state::Accumulator;
use crate::error::bad_value;
use crate::value::{elements, field, items};

/// In which order partial results have to be merged for the result of all documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeOrder {
    /// Any.
    Any,
    /// Those of earlier documents first, and each of documents that follow each other.
    OfDocuments,
}

impl Kind {
    /// The order in which partial results have to be merged. Where any will do, values that are equal
    /// but of different types (1 and 1.0) may still stand for each other in the result.
    pub(crate) fn merge_order(&self) -> MergeOrder {
        match self {
            Kind::First
            | Kind::Last
            | Kind::Push
            | Kind::MergeObjects
            | Kind::ConcatArrays
            | Kind::FirstN
            | Kind::LastN => MergeOrder::OfDocuments,
            _ => MergeOrder::Any,
        }
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
            // The result itself says all.
            _ => self.finish(),
        }
    }

    /// Takes a partial result of an accumulator of the same kind. Where the kind's merge order is that of
    /// the documents, what is merged must be of documents that follow all that were taken before.
    pub(crate) fn merge(&mut self, partial: RawBsonRef<'_>) -> Result<()> {
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
                let Some(RawBsonRef::Array(entries)) = field(read(partial)?, "entries") else {
                    return Err(unreadable());
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

    /// Whether merging gives, to the last bit, what adding each value in its turn would have given. Sums of
    /// doubles and decimals depend on their order in the last digits, and so do deviations and sketches.
    pub(crate) fn is_exact(&self) -> bool {
        match self {
            Accumulator::Sum(sum) | Accumulator::Avg { sum, .. } => sum.is_exact(),
            Accumulator::StdDev { spread, .. } => spread.is_empty(),
            Accumulator::Quantiles { digest, .. } => digest.is_exact(),
            _ => true,
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

    #[test]
    fn what_is_no_partial_result_is_refused() {
        for kind in [Kind::Count, Kind::Sum, Kind::Push, Kind::Top, Kind::First] {
            let merged = Accumulator::new(&kind).merge(RawBsonRef::String("x"));
            assert!(merged.is_err(), "{kind:?}");
        }
    }

    #[test]
    fn what_is_first_or_last_needs_the_order_of_documents() {
        assert_eq!(Kind::First.merge_order(), MergeOrder::OfDocuments);
        assert_eq!(Kind::Max.merge_order(), MergeOrder::Any);
    }

    #[test]
    fn sums_of_integers_alone_are_exact() {
        let exact = |value: RawBson| {
            let mut sum = Accumulator::new(&Kind::Sum);
            sum.add(Some(value.as_raw_bson_ref())).expect("it adds");
            sum.is_exact()
        };
        assert!(exact(rawbson!(1)));
        assert!(!exact(rawbson!(1.5)));
    }
}
