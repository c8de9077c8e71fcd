//! The least and the greatest of windows that move, and values scaled between them.

use std::collections::VecDeque;
use std::sync::Arc;

use pinion_bson::{Number, RawBson, RawBsonRef};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::numbers::number;
use super::{Element, Held, Window};
use crate::collation::compare;
use crate::error::error;
use crate::text::value_text;
use crate::value::{is_nullish, owned};

/// The values of a window that are, or may yet become, its least or its greatest, in order.
#[derive(Debug)]
pub(super) struct MovingExtreme {
    max: bool,
    collation: Option<Arc<Collation>>,
    /// With the number that each was added as.
    candidates: VecDeque<(u64, RawBson)>,
    added: u64,
    removed: u64,
    bytes: usize,
}

impl MovingExtreme {
    pub(super) fn new(max: bool, collation: Option<Arc<Collation>>) -> MovingExtreme {
        MovingExtreme {
            max,
            collation,
            candidates: VecDeque::new(),
            added: 0,
            removed: 0,
            bytes: 0,
        }
    }

    fn put(&mut self, value: Option<RawBsonRef<'_>>) {
        let place = self.added;
        self.added += 1;
        let Some(value) = value.filter(|v| !is_nullish(*v)) else {
            return;
        };
        // Of equal values the first is the least, and the last the greatest.
        while let Some((_, last)) = self.candidates.back() {
            let order = compare(self.collation.as_deref(), value, last.as_raw_bson_ref());
            let passes = if self.max {
                order.is_ge()
            } else {
                order.is_lt()
            };
            if !passes {
                break;
            }
            self.pop(false);
        }
        self.bytes += entry_bytes(value);
        self.candidates.push_back((place, owned(value)));
    }

    fn take_out_first(&mut self) {
        if self
            .candidates
            .front()
            .is_some_and(|(place, _)| *place == self.removed)
        {
            self.pop(true);
        }
        self.removed += 1;
    }

    fn pop(&mut self, front: bool) {
        let gone = if front {
            self.candidates.pop_front()
        } else {
            self.candidates.pop_back()
        };
        if let Some((_, value)) = gone {
            self.bytes -= entry_bytes(value.as_raw_bson_ref());
        }
    }

    fn extreme(&self) -> Option<RawBsonRef<'_>> {
        let (_, value) = self.candidates.front()?;
        Some(value.as_raw_bson_ref())
    }
}

fn entry_bytes(value: RawBsonRef<'_>) -> usize {
    size_of::<(u64, RawBson)>() + crate::value::bytes(value)
}

impl Held for MovingExtreme {
    fn add(&mut self, element: &Element) -> Result<()> {
        self.put(element.value.as_ref().map(RawBson::as_raw_bson_ref));
        Ok(())
    }

    fn remove(&mut self, _: &Element) {
        self.take_out_first();
    }

    fn clear(&mut self) {
        self.candidates.clear();
        self.removed = self.added;
        self.bytes = 0;
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        Ok(self.extreme().map_or(RawBson::Null, owned))
    }

    fn bytes(&self) -> usize {
        64 + self.bytes
    }
}

/// `$minMaxScaler`: where the current value lies between the least and the greatest of the window.
#[derive(Debug)]
pub(super) struct Scaler {
    least: MovingExtreme,
    greatest: MovingExtreme,
    /// The range of the results.
    low: Number,
    high: Number,
}

impl Scaler {
    pub(super) fn new(low: Number, high: Number) -> Scaler {
        Scaler {
            least: MovingExtreme::new(false, None),
            greatest: MovingExtreme::new(true, None),
            low,
            high,
        }
    }
}

fn checked(element: &Element) -> Result<Number> {
    number(element).ok_or_else(|| {
        let value = element.value.as_ref().map(RawBson::as_raw_bson_ref);
        error(
            10_487_000,
            format!(
                "'input' argument to $minMaxScaler must evaluate to a numeric value, but found {}",
                value.map_or_else(|| "MISSING".into(), value_text)
            ),
        )
    })
}

impl Held for Scaler {
    fn add(&mut self, element: &Element) -> Result<()> {
        let number = checked(element)?;
        self.least.put(Some(number.to_value()));
        self.greatest.put(Some(number.to_value()));
        Ok(())
    }

    fn remove(&mut self, _: &Element) {
        self.least.take_out_first();
        self.greatest.take_out_first();
    }

    fn clear(&mut self) {
        self.least.clear();
        self.greatest.clear();
    }

    fn value(&self, _: Window<'_>, current: &Element) -> Result<RawBson> {
        let extreme = |of: &MovingExtreme| of.extreme().and_then(Number::from_value);
        let (Some(least), Some(greatest)) = (extreme(&self.least), extreme(&self.greatest)) else {
            return Ok(RawBson::Null);
        };
        let range = greatest.sub_widening(least);
        if range.is_zero() {
            return Ok(self.low.to_raw_bson());
        }
        let place = checked(current)?.sub_widening(least);
        let share = match (place, range) {
            (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
                Number::Decimal((place.to_decimal() / range.to_decimal()).pack())
            }
            _ => Number::Double(place.to_f64() / range.to_f64()),
        };
        let scaled = share.mul_widening(self.high.sub_widening(self.low));
        Ok(scaled.add_widening(self.low).to_raw_bson())
    }

    fn depends_on_current(&self) -> bool {
        true
    }

    fn bytes(&self) -> usize {
        self.least.bytes() + self.greatest.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{element, slide};
    use super::*;
    use pinion_bson::rawbson;

    #[track_caller]
    fn check(state: impl Held + 'static, values: Vec<RawBson>, expected: Vec<RawBson>) {
        let found = slide(Box::new(state), 3, values.into_iter().map(element));
        assert_eq!(found, expected);
    }

    #[test]
    fn extremes_move_with_the_window() {
        let values = || {
            vec![
                RawBson::Null,
                rawbson!(3),
                rawbson!(1),
                rawbson!(1.0),
                rawbson!(5),
                RawBson::Null,
                RawBson::Null,
                RawBson::Null,
            ]
        };
        check(
            MovingExtreme::new(false, None),
            values(),
            vec![
                RawBson::Null,
                rawbson!(3),
                rawbson!(1),
                rawbson!(1),
                rawbson!(1),
                rawbson!(1.0),
                rawbson!(5),
                RawBson::Null,
            ],
        );
        check(
            MovingExtreme::new(true, None),
            values(),
            vec![
                RawBson::Null,
                rawbson!(3),
                rawbson!(3),
                rawbson!(3),
                rawbson!(5),
                rawbson!(5),
                rawbson!(5),
                RawBson::Null,
            ],
        );
    }

    #[test]
    fn values_are_scaled() {
        check(
            Scaler::new(Number::Int32(0), Number::Int32(100)),
            vec![rawbson!(1), rawbson!(5), rawbson!(3), rawbson!(1)],
            vec![rawbson!(0), rawbson!(100.0), rawbson!(50.0), rawbson!(0.0)],
        );
        let mut scaler = Scaler::new(Number::Int32(0), Number::Int32(1));
        let refused = scaler.add(&element(rawbson!("x"))).expect_err("no number");
        assert_eq!(refused.code.0, 10_487_000);
    }
}
