//! A function of the documents in a window, along a partition.

use std::collections::VecDeque;

use pinion_bson::{DateTime, Number, RawBson, RawBsonRef, compare_values};
use pinion_wire::Result;

use super::bounds::{Bound, Bounds};
use super::function::What;
use super::held::{Element, Held, Window, held};
use crate::error::error;
use crate::expression::TimeUnit;
use crate::number::exact_i64;
use crate::value::type_name;
use crate::work::{STEP, spend, spend_bytes};

#[derive(Debug)]
pub(super) struct Framed {
    bounds: Bounds,
    held: Box<dyn Held>,
    /// The elements of documents from the one numbered `base` on.
    elements: VecDeque<Element>,
    base: usize,
    bytes: usize,
    /// The documents whose elements are held: from this one, up to but without that one.
    low: usize,
    high: usize,
    /// How far the bounds of a range have been looked for.
    from: usize,
    to: usize,
    ended: bool,
    /// The result where it is the same for all documents.
    whole: Option<RawBson>,
}

impl Framed {
    pub(super) fn new(what: &What, bounds: &Bounds) -> Result<Framed> {
        Ok(Framed {
            held: held(what, bounds.only_grows())?,
            bounds: bounds.clone(),
            elements: VecDeque::new(),
            base: 0,
            bytes: 0,
            low: 0,
            high: 0,
            from: 0,
            to: 0,
            ended: false,
            whole: None,
        })
    }

    pub(super) fn feed(&mut self, element: Element) {
        self.bytes += element.bytes();
        self.elements.push_back(element);
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.held.bytes()
    }

    /// The number of documents that have come.
    fn fed(&self) -> usize {
        self.base + self.elements.len()
    }

    fn element(&self, at: usize) -> &Element {
        &self.elements[at - self.base]
    }

    /// Whether all documents of the window of the document at this place have come.
    pub(super) fn is_ready(&self, at: usize) -> bool {
        if self.ended {
            return true;
        }
        match &self.bounds {
            Bounds::Documents(_, Bound::Unbounded)
            | Bounds::Range {
                upper: Bound::Unbounded,
                ..
            } => false,
            Bounds::Documents(_, Bound::Current) => true,
            Bounds::Documents(_, Bound::Offset(offset)) => {
                *offset <= 0 || self.fed() as i64 > at as i64 + offset
            }
            Bounds::Range { upper, unit, .. } => {
                // What is wrong with the current document is reported when its result is asked for.
                let Ok(limit) = self.limit(at, upper, *unit) else {
                    return true;
                };
                let last = self.elements.back();
                last.is_some_and(|last| {
                    compare_values(time_of(last), limit.as_raw_bson_ref()).is_gt()
                })
            }
        }
    }

    /// The result for the document at this place; asked for in the order of the documents. It may
    /// be asked for again, after it was refused for its work and otherwise.
    pub(super) fn value(&mut self, at: usize) -> Result<RawBson> {
        if let Some(whole) = &self.whole {
            spend_bytes(crate::value::bytes(whole.as_raw_bson_ref()))?;
            return Ok(whole.clone());
        }
        let (from, to) = self.frame(at)?;
        self.move_to(from, to)?;
        let window = Window {
            elements: &self.elements,
            from: self.low.max(self.base) - self.base,
            to: self.high.max(self.base) - self.base,
        };
        spend_bytes(self.held.cost(window))?;
        let value = self.held.value(window, self.element(at))?;
        spend_bytes(crate::value::bytes(value.as_raw_bson_ref()))?;
        if self.bounds == Bounds::WHOLE && !self.held.depends_on_current() {
            self.whole = Some(value.clone());
        }
        Ok(value)
    }

    /// Drops what only documents up to this place needed.
    pub(super) fn pass(&mut self, at: usize) {
        let needed = if self.bounds.only_grows() {
            self.high
        } else {
            self.low
        };
        // In an empty window the upper bound lags behind.
        let needed = match &self.bounds {
            Bounds::Documents(..)
            | Bounds::Range {
                upper: Bound::Unbounded,
                ..
            } => needed,
            Bounds::Range { .. } => needed.min(self.to),
        };
        while self.base < needed.min(at + 1) {
            if let Some(gone) = self.elements.pop_front() {
                self.bytes -= gone.bytes();
            }
            self.base += 1;
        }
    }

    /// Adds and removes what lies between the last window and this one.
    fn move_to(&mut self, from: usize, to: usize) -> Result<()> {
        if from >= self.high && from > self.low {
            // Nothing of what is held stays, or nothing was.
            self.held.clear();
            (self.low, self.high) = (from, from);
        }
        while self.low < from {
            let element = &self.elements[self.low - self.base];
            spend(STEP)?;
            spend_bytes(element.bytes())?;
            self.held.remove(element);
            self.low += 1;
        }
        while self.high < to {
            let element = &self.elements[self.high - self.base];
            spend(STEP)?;
            spend_bytes(element.bytes())?;
            self.held.add(element)?;
            self.high += 1;
        }
        Ok(())
    }

    /// The window of a document: from this one, up to but without that one.
    fn frame(&mut self, at: usize) -> Result<(usize, usize)> {
        let (from, to) = match self.bounds.clone() {
            Bounds::Documents(lower, upper) => {
                let offset = |bound: &Bound<i64>| match bound {
                    Bound::Offset(offset) => *offset,
                    _ => 0,
                };
                let place = |place: i64| (place.max(0) as usize).min(self.fed());
                let from = match lower {
                    Bound::Unbounded => 0,
                    bound => place(at as i64 + offset(&bound)),
                };
                let to = match upper {
                    Bound::Unbounded => self.fed(),
                    bound => place(at as i64 + offset(&bound) + 1),
                };
                (from, to)
            }
            Bounds::Range { lower, upper, unit } => {
                let from = match lower {
                    Bound::Unbounded => 0,
                    bound => {
                        let limit = self.limit(at, &bound, unit)?;
                        self.from = self.seek(self.from, limit.as_raw_bson_ref(), false)?;
                        self.from
                    }
                };
                let to = match upper {
                    Bound::Unbounded => self.fed(),
                    bound => {
                        let limit = self.limit(at, &bound, unit)?;
                        self.to = self.seek(self.to, limit.as_raw_bson_ref(), true)?;
                        self.to
                    }
                };
                (from, to)
            }
        };
        Ok((from, to.max(from)))
    }

    /// The first document at or behind a place whose time is not below a limit, or is above it.
    fn seek(&self, mut at: usize, limit: RawBsonRef<'_>, above: bool) -> Result<usize> {
        while at < self.fed() {
            spend(STEP)?;
            let order = compare_values(time_of(self.element(at)), limit);
            if order.is_gt() || (order.is_eq() && !above) {
                break;
            }
            at += 1;
        }
        Ok(at)
    }

    /// The value at a bound of the current document's range.
    fn limit(&self, at: usize, bound: &Bound<RawBson>, unit: Option<TimeUnit>) -> Result<RawBson> {
        let offset = match bound {
            Bound::Offset(offset) => offset.as_raw_bson_ref(),
            _ => RawBsonRef::Int32(0),
        };
        let time = time_of(self.element(at));
        match (unit, time) {
            (Some(unit), RawBsonRef::DateTime(date)) => {
                let amount = exact_i64(offset).unwrap_or_default();
                let moved = unit.after(date.timestamp_millis(), amount);
                let moved = moved.ok_or_else(|| error(5_166_406, "dateAdd overflowed"))?;
                Ok(RawBson::DateTime(DateTime::from_millis(moved)))
            }
            (Some(_), other) => Err(error(
                5_429_513,
                format!(
                    "Invalid range: Expected the sortBy field to be a Date, but it was {}",
                    type_name(other)
                ),
            )),
            (None, RawBsonRef::DateTime(_)) => Err(error(
                5_429_413,
                "For windows that involve date or time ranges, a unit must be provided.",
            )),
            (None, other) => {
                let (Some(time), Some(offset)) =
                    (Number::from_value(other), Number::from_value(offset))
                else {
                    return Err(error(
                        5_429_414,
                        format!(
                            "Invalid range: Expected the sortBy field to be a number, but it was {}",
                            type_name(other)
                        ),
                    ));
                };
                Ok(time.add_widening(offset).to_raw_bson())
            }
        }
    }
}

fn time_of(element: &Element) -> RawBsonRef<'_> {
    let time = element.time.as_ref().map(RawBson::as_raw_bson_ref);
    time.unwrap_or(RawBsonRef::Null)
}
