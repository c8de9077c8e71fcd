//! Functions of the documents up to the current one, or at a set distance from it: ranks, moving
//! averages, values filled in, values of neighbours.

use std::collections::VecDeque;

use pinion_bson::decimal::Decimal;
use pinion_bson::{Number, RawBson, RawBsonRef};
use pinion_wire::Result;

use super::function::SeriesKind;
use super::held::Element;
use crate::error::error;
use crate::value::{is_nullish, type_name};

/// A function along a partition.
#[derive(Debug)]
pub(super) struct Series {
    state: State,
    /// The results for documents from the one numbered `base` on, as far as they are known.
    results: VecDeque<RawBson>,
    base: usize,
    bytes: usize,
}

#[derive(Debug)]
enum State {
    Rank {
        /// Whether ranks follow each other without gaps.
        dense: bool,
        last: Option<Vec<u8>>,
        documents: i64,
        rank: i64,
    },
    DocumentNumber(i64),
    MovingAverage {
        weight: Decimal,
        average: Option<Decimal>,
        /// A decimal was among the values.
        is_decimal: bool,
    },
    CarriedForward(RawBson),
    Interpolated(Interpolation),
    Shifted {
        by: i64,
        default: RawBson,
        /// Values of documents whose turn comes later, or that came before.
        values: VecDeque<RawBson>,
        documents: i64,
    },
}

#[derive(Debug, Default)]
struct Interpolation {
    last_time: Option<RawBson>,
    /// The last document that had a value.
    known: Option<(Number, Number)>,
    /// The times of documents behind it that have none.
    unknown: Vec<Number>,
}

impl Series {
    pub(super) fn new(kind: &SeriesKind) -> Series {
        let rank = |dense| State::Rank {
            dense,
            last: None,
            documents: 0,
            rank: 0,
        };
        let state = match kind {
            SeriesKind::Rank => rank(false),
            SeriesKind::DenseRank => rank(true),
            SeriesKind::DocumentNumber => State::DocumentNumber(0),
            SeriesKind::MovingAverage(weight) => State::MovingAverage {
                weight: *weight,
                average: None,
                is_decimal: false,
            },
            SeriesKind::CarriedForward => State::CarriedForward(RawBson::Null),
            SeriesKind::Interpolated => State::Interpolated(Interpolation::default()),
            SeriesKind::Shifted { by, default } => State::Shifted {
                by: *by,
                default: default.clone(),
                values: VecDeque::new(),
                documents: 0,
            },
        };
        Series {
            state,
            results: VecDeque::new(),
            base: 0,
            bytes: 0,
        }
    }

    pub(super) fn feed(&mut self, element: Element) -> Result<()> {
        let bytes = element.bytes();
        let value = element.value.unwrap_or(RawBson::Null);
        match &mut self.state {
            State::Rank {
                dense,
                last,
                documents,
                rank,
            } => {
                *documents += 1;
                if last.as_ref() != Some(&element.key) {
                    *rank = if *dense { *rank + 1 } else { *documents };
                    *last = Some(element.key);
                }
                self.results.push_back(whole(*rank));
            }
            State::DocumentNumber(number) => {
                *number += 1;
                self.results.push_back(whole(*number));
            }
            State::MovingAverage {
                weight,
                average,
                is_decimal,
            } => {
                if let Some(number) = Number::from_value(value.as_raw_bson_ref()) {
                    *is_decimal |= matches!(number, Number::Decimal(_));
                    let number = number.to_decimal();
                    *average = Some(match average {
                        None => number,
                        Some(old) => number * *weight + *old * (Decimal::from_i64(1) - *weight),
                    });
                }
                self.results.push_back(match average {
                    None => RawBson::Null,
                    Some(average) if *is_decimal => RawBson::Decimal128(average.pack()),
                    Some(average) => RawBson::Double(average.to_f64()),
                });
            }
            State::CarriedForward(last) => {
                if !is_nullish(value.as_raw_bson_ref()) {
                    *last = value;
                }
                self.bytes += crate::value::bytes(last.as_raw_bson_ref());
                self.results.push_back(last.clone());
            }
            State::Interpolated(interpolation) => {
                interpolation.feed(element.time, value, &mut self.results)?;
            }
            State::Shifted {
                by,
                default,
                values,
                documents,
            } => {
                self.bytes += bytes;
                values.push_back(value);
                *documents += 1;
                if *by >= 0 {
                    // The value is that of the document `by` places before.
                    if *documents > *by
                        && let Some(value) = values.pop_back()
                    {
                        self.results.push_back(value);
                    } else {
                        values.clear();
                    }
                } else if *documents > -*by {
                    self.results.extend(values.pop_front());
                } else {
                    self.results.push_back(default.clone());
                }
            }
        }
        self.bytes += size_of::<RawBson>();
        Ok(())
    }

    /// No more documents come.
    pub(super) fn end(&mut self) {
        match &mut self.state {
            State::Interpolated(interpolation) => {
                let unknown = std::mem::take(&mut interpolation.unknown);
                self.results.extend(unknown.iter().map(|_| RawBson::Null));
            }
            State::Shifted {
                by,
                default,
                documents,
                ..
            } if *by > 0 => {
                let missing = (*by).min(*documents);
                *documents = 0;
                self.results.extend((0..missing).map(|_| default.clone()));
            }
            _ => {}
        }
    }

    pub(super) fn is_ready(&self, at: usize) -> bool {
        at < self.base + self.results.len()
    }

    /// The result for the document at this place.
    pub(super) fn value(&self, at: usize) -> RawBson {
        self.results[at - self.base].clone()
    }

    /// Drops what only documents up to this place needed.
    pub(super) fn pass(&mut self, at: usize) {
        while self.base <= at {
            if let Some(gone) = self.results.pop_front() {
                let gone = size_of::<RawBson>() + crate::value::bytes(gone.as_raw_bson_ref());
                self.bytes = self.bytes.saturating_sub(gone);
            }
            self.base += 1;
        }
    }

    /// The bytes held, roughly.
    pub(super) fn bytes(&self) -> usize {
        128 + self.bytes
    }
}

fn whole(number: i64) -> RawBson {
    i32::try_from(number).map_or(RawBson::Int64(number), RawBson::Int32)
}

impl Interpolation {
    fn feed(
        &mut self,
        time: Option<RawBson>,
        value: RawBson,
        results: &mut VecDeque<RawBson>,
    ) -> Result<()> {
        let time = time.unwrap_or(RawBson::Null);
        let place = match time.as_raw_bson_ref() {
            RawBsonRef::DateTime(date) => Number::Int64(date.timestamp_millis()),
            other => Number::from_value(other).ok_or_else(|| {
                error(
                    6_050_101,
                    format!(
                        "$linearFill expects the sortBy field to be numeric or a Date, but found {}",
                        type_name(other)
                    ),
                )
            })?,
        };
        if let Some(last) = &self.last_time {
            let (last, now) = (last.as_raw_bson_ref(), time.as_raw_bson_ref());
            if crate::value::class(Some(last)) != crate::value::class(Some(now)) {
                return Err(error(
                    6_050_103,
                    "Conflicting sort value types, previous and current types don't match",
                ));
            }
            if pinion_bson::compare_values(last, now).is_eq() {
                return Err(error(
                    6_050_106,
                    "There can be no repeated values in the sort field",
                ));
            }
        }
        self.last_time = Some(time);
        if is_nullish(value.as_raw_bson_ref()) {
            self.unknown.push(place);
            return Ok(());
        }
        let number = Number::from_value(value.as_raw_bson_ref()).ok_or_else(|| {
            error(
                6_050_105,
                format!(
                    "Value to be filled must be numeric or nullish, but found {}",
                    type_name(value.as_raw_bson_ref())
                ),
            )
        })?;
        for unknown in self.unknown.drain(..) {
            results.push_back(match self.known {
                None => RawBson::Null,
                Some(known) => between(known, (place, number), unknown).to_raw_bson(),
            });
        }
        self.known = Some((place, number));
        results.push_back(value);
        Ok(())
    }
}

/// The point at a place on the line through two others.
fn between(left: (Number, Number), right: (Number, Number), place: Number) -> Number {
    let rise = right.1.sub_widening(left.1);
    let run = right.0.sub_widening(left.0);
    let slope = match (rise, run) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            Number::Decimal((rise.to_decimal() / run.to_decimal()).pack())
        }
        _ => Number::Double(rise.to_f64() / run.to_f64()),
    };
    let distance = place.sub_widening(left.0);
    left.1.add_widening(slope.mul_widening(distance))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawbson;

    fn element(time: i32, value: RawBson) -> Element {
        Element {
            key: pinion_keystring::encode_id(value.as_raw_bson_ref()).to_vec(),
            value: Some(value),
            time: Some(RawBson::Int32(time)),
        }
    }

    #[track_caller]
    fn check(kind: SeriesKind, values: Vec<RawBson>, expected: Vec<RawBson>) {
        let mut series = Series::new(&kind);
        for (at, value) in values.into_iter().enumerate() {
            let element = element(at as i32, value);
            series.feed(element).expect("it is taken");
        }
        series.end();
        let mut found = Vec::new();
        while series.is_ready(found.len()) {
            found.push(series.value(found.len()));
            series.pass(found.len() - 1);
        }
        assert_eq!(found, expected, "{kind:?}");
    }

    #[test]
    fn ranks() {
        let values = || [7, 9, 9, 10].map(RawBson::Int32).to_vec();
        let ints = |ints: [i32; 4]| ints.map(RawBson::Int32).to_vec();
        check(SeriesKind::Rank, values(), ints([1, 2, 2, 4]));
        check(SeriesKind::DenseRank, values(), ints([1, 2, 2, 3]));
        check(SeriesKind::DocumentNumber, values(), ints([1, 2, 3, 4]));
    }

    #[test]
    fn moving_averages() {
        let two_thirds = Decimal::from_i64(2) / Decimal::from_i64(3);
        check(
            SeriesKind::MovingAverage(two_thirds),
            vec![rawbson!("x"), rawbson!(10), rawbson!(12), rawbson!(15)],
            vec![
                RawBson::Null,
                rawbson!(10.0),
                rawbson!(11.333333333333334),
                rawbson!(13.777777777777779),
            ],
        );
    }

    #[test]
    fn values_are_filled_in() {
        let null = || RawBson::Null;
        let values = || vec![null(), rawbson!(10), null(), null(), rawbson!(40), null()];
        check(
            SeriesKind::CarriedForward,
            values(),
            vec![
                null(),
                rawbson!(10),
                rawbson!(10),
                rawbson!(10),
                rawbson!(40),
                rawbson!(40),
            ],
        );
        check(
            SeriesKind::Interpolated,
            values(),
            vec![
                null(),
                rawbson!(10),
                rawbson!(20.0),
                rawbson!(30.0),
                rawbson!(40),
                null(),
            ],
        );
    }

    #[test]
    fn neighbours() {
        let shifted = |by| SeriesKind::Shifted {
            by,
            default: rawbson!("-"),
        };
        let none = || rawbson!("-");
        let values = || [1, 2, 3].map(RawBson::Int32).to_vec();
        check(shifted(0), values(), values());
        check(
            shifted(-1),
            values(),
            vec![none(), rawbson!(1), rawbson!(2)],
        );
        check(shifted(2), values(), vec![rawbson!(3), none(), none()]);
        check(shifted(9), values(), vec![none(), none(), none()]);
        check(shifted(-9), values(), vec![none(), none(), none()]);
    }

    #[track_caller]
    fn check_error(elements: Vec<Element>, code: i32) {
        let mut series = Series::new(&SeriesKind::Interpolated);
        let failed = elements
            .into_iter()
            .find_map(|element| series.feed(element).err());
        assert_eq!(failed.expect("it is refused").code.0, code);
    }

    #[test]
    fn errors_of_interpolation() {
        let text = Element {
            time: Some(rawbson!("x")),
            ..element(0, rawbson!(1))
        };
        check_error(vec![text], 6_050_101);
        check_error(vec![element(0, rawbson!("x"))], 6_050_105);
        check_error(
            vec![element(1, RawBson::Null), element(1, rawbson!(2))],
            6_050_106,
        );
    }
}
