//! `$derivative` and `$integral`: a value over the time, or the number, that the documents are
//! sorted by.

use std::collections::VecDeque;

use pinion_bson::{Number, RawBson, RawBsonRef};
use pinion_wire::Result;

use super::numbers::{MovingSum, number};
use super::{Element, Held, Window};
use crate::error::{error, type_mismatch};
use crate::expression::TimeUnit;
use crate::value::{is_nullish, type_name};

/// A point of the curve: its time as a number, of milliseconds where it is a date.
#[derive(Clone, Copy, Debug)]
struct Point {
    time: Number,
    /// `None` where it is null or missing.
    value: Option<Number>,
}

/// Codes for a time that is no date though there is a unit, and for one that is no number.
struct Codes {
    date: i32,
    number: i32,
}

impl Point {
    fn of(
        element: &Element,
        operator: &str,
        unit: Option<TimeUnit>,
        codes: &Codes,
    ) -> Result<Point> {
        let time = element.time.as_ref().map(RawBson::as_raw_bson_ref);
        let kind = time.map_or("missing", type_name);
        let time = match (time, unit) {
            (Some(RawBsonRef::DateTime(date)), Some(_)) => Number::Int64(date.timestamp_millis()),
            (_, Some(_)) => {
                return Err(error(
                    codes.date,
                    format!(
                        "{operator} with 'unit' expects the sortBy field to be a Date, but found {kind}"
                    ),
                ));
            }
            (time, None) => time.and_then(Number::from_value).ok_or_else(|| {
                error(
                    codes.number,
                    format!(
                        "{operator} (with no 'unit') expects the sortBy field to be numeric, but found {kind}"
                    ),
                )
            })?,
        };
        let value = match element.value.as_ref().map(RawBson::as_raw_bson_ref) {
            None => None,
            Some(value) if is_nullish(value) => None,
            Some(value) => Some(number(element).ok_or_else(|| {
                type_mismatch(format!(
                    "{operator} expects its input to be numeric, but found {}",
                    type_name(value)
                ))
            })?),
        };
        Ok(Point { time, value })
    }
}

fn divide(dividend: Number, divisor: Number) -> Number {
    match (dividend, divisor) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            Number::Decimal((dividend.to_decimal() / divisor.to_decimal()).pack())
        }
        _ => Number::Double(dividend.to_f64() / divisor.to_f64()),
    }
}

/// `$derivative`: the slope between the ends of the window.
#[derive(Debug)]
pub(super) struct Derivative {
    unit: Option<TimeUnit>,
    only_grows: bool,
    /// The ends of a window that keeps no elements.
    ends: Option<(Element, Element)>,
}

const DERIVATIVE: Codes = Codes {
    date: 5_624_900,
    number: 5_624_901,
};

impl Derivative {
    pub(super) fn new(unit: Option<TimeUnit>, only_grows: bool) -> Derivative {
        Derivative {
            unit,
            only_grows,
            ends: None,
        }
    }
}

impl Held for Derivative {
    fn add(&mut self, element: &Element) -> Result<()> {
        if self.only_grows {
            let first = match self.ends.take() {
                Some((first, _)) => first,
                None => element.clone(),
            };
            self.ends = Some((first, element.clone()));
        }
        Ok(())
    }

    fn remove(&mut self, _: &Element) {}

    fn clear(&mut self) {
        self.ends = None;
    }

    fn value(&self, window: Window<'_>, _: &Element) -> Result<RawBson> {
        let ends = match &self.ends {
            Some((first, last)) => Some((first, last)),
            None if self.only_grows => None,
            None => window.first().zip(window.last()),
        };
        let Some((first, last)) = ends else {
            return Ok(RawBson::Null);
        };
        let point = |element| Point::of(element, "$derivative", self.unit, &DERIVATIVE);
        let (first, last) = (point(first)?, point(last)?);
        let run = last.time.sub_widening(first.time);
        let (Some(from), Some(to)) = (first.value, last.value) else {
            return Ok(RawBson::Null);
        };
        if run.is_zero() {
            return Ok(RawBson::Null);
        }
        let slope = divide(to.sub_widening(from), run);
        Ok(match self.unit.and_then(TimeUnit::fixed_ms) {
            Some(millis) => slope.mul_widening(Number::Int64(millis)),
            None => slope,
        }
        .to_raw_bson())
    }

    fn bytes(&self) -> usize {
        let ends = self.ends.as_ref();
        64 + ends.map_or(0, |(first, last)| first.bytes() + last.bytes())
    }
}

/// `$integral`: the area under the curve, between each two points that of a trapezoid.
#[derive(Debug)]
pub(super) struct Integral {
    unit: Option<TimeUnit>,
    only_grows: bool,
    points: VecDeque<Point>,
    area: MovingSum,
    nans: u64,
}

const INTEGRAL: Codes = Codes {
    date: 5_423_901,
    number: 5_423_902,
};

impl Integral {
    pub(super) fn new(unit: Option<TimeUnit>, only_grows: bool) -> Integral {
        Integral {
            unit,
            only_grows,
            points: VecDeque::new(),
            area: MovingSum::default(),
            nans: 0,
        }
    }
}

fn has_nan(point: &Point) -> bool {
    point.time.is_nan() || point.value.is_some_and(Number::is_nan)
}

/// The area between two points, unless one of them has no value.
fn trapezoid(left: &Point, right: &Point) -> Option<Number> {
    let (from, to) = (left.value?, right.value?);
    if has_nan(left) || has_nan(right) {
        return None;
    }
    let width = right.time.sub_widening(left.time);
    let twice = from.add_widening(to).mul_widening(width);
    Some(divide(twice, Number::Double(2.0)))
}

impl Held for Integral {
    fn add(&mut self, element: &Element) -> Result<()> {
        let point = Point::of(element, "$integral", self.unit, &INTEGRAL)?;
        self.nans += u64::from(has_nan(&point));
        if let Some(area) = self.points.back().and_then(|last| trapezoid(last, &point)) {
            self.area.put(area);
        }
        if self.only_grows {
            self.points.clear();
        }
        self.points.push_back(point);
        Ok(())
    }

    fn remove(&mut self, _: &Element) {
        let Some(first) = self.points.pop_front() else {
            return;
        };
        self.nans -= u64::from(has_nan(&first));
        if let Some(area) = self.points.front().and_then(|next| trapezoid(&first, next)) {
            self.area.take_out(area);
        }
    }

    fn clear(&mut self) {
        *self = Integral::new(self.unit, self.only_grows);
    }

    fn value(&self, _: Window<'_>, _: &Element) -> Result<RawBson> {
        if self.points.is_empty() {
            return Ok(RawBson::Null);
        }
        if self.nans > 0 {
            return Ok(RawBson::Double(f64::NAN));
        }
        let area = self.area.sum();
        Ok(match self.unit.and_then(TimeUnit::fixed_ms) {
            Some(millis) => divide(area, Number::Int64(millis)),
            None => area,
        }
        .to_raw_bson())
    }

    fn bytes(&self) -> usize {
        64 + self.points.capacity() * size_of::<Point>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::slide;
    use super::*;
    use pinion_bson::{DateTime, rawbson};

    fn points(points: Vec<(RawBson, RawBson)>) -> Vec<Element> {
        let element = |(time, value)| Element {
            value: Some(value),
            key: Vec::new(),
            time: Some(time),
        };
        points.into_iter().map(element).collect()
    }

    fn at(seconds: i64) -> RawBson {
        RawBson::DateTime(DateTime::from_millis(1000 * seconds))
    }

    #[track_caller]
    fn check(
        state: impl Held + 'static,
        width: usize,
        given: Vec<Element>,
        expected: Vec<RawBson>,
    ) {
        assert_eq!(slide(Box::new(state), width, given), expected);
    }

    #[test]
    fn slopes() {
        let numbers = || {
            points(vec![
                (rawbson!(0), rawbson!(1)),
                (rawbson!(2), rawbson!(5)),
                (rawbson!(2), rawbson!(6)),
                (rawbson!(4), RawBson::Null),
            ])
        };
        let null = || RawBson::Null;
        check(
            Derivative::new(None, false),
            2,
            numbers(),
            vec![null(), rawbson!(2.0), null(), null()],
        );
        check(
            Derivative::new(None, true),
            9,
            numbers(),
            vec![null(), rawbson!(2.0), rawbson!(2.5), null()],
        );
        let dates = points(vec![(at(0), rawbson!(1)), (at(30), rawbson!(2))]);
        check(
            Derivative::new(TimeUnit::find("minute"), false),
            2,
            dates,
            vec![null(), rawbson!(2.0)],
        );
    }

    #[test]
    fn areas() {
        let dates = || {
            points(vec![
                (at(0), rawbson!(10)),
                (at(10), rawbson!(20)),
                (at(20), rawbson!(30)),
            ])
        };
        let second = TimeUnit::find("second");
        check(
            Integral::new(second, true),
            9,
            dates(),
            vec![rawbson!(0.0), rawbson!(150.0), rawbson!(400.0)],
        );
        check(
            Integral::new(second, false),
            2,
            dates(),
            vec![rawbson!(0.0), rawbson!(150.0), rawbson!(250.0)],
        );
    }

    #[track_caller]
    fn check_error(mut state: impl Held, given: Element, code: i32) {
        let window = VecDeque::from([given]);
        let result = state.add(&window[0]).and_then(|()| {
            let held = Window {
                elements: &window,
                from: 0,
                to: 1,
            };
            state.value(held, &window[0])
        });
        assert_eq!(result.expect_err("it is refused").code.0, code);
    }

    #[test]
    fn errors() {
        let one = |time, value| points(vec![(time, value)]).remove(0);
        let unit = TimeUnit::find("hour");
        let (number, text) = (|| rawbson!(1), || rawbson!("x"));
        check_error(
            Integral::new(unit, false),
            one(number(), number()),
            5_423_901,
        );
        check_error(Integral::new(None, false), one(at(0), number()), 5_423_902);
        check_error(Integral::new(None, false), one(number(), text()), 14);
        check_error(
            Derivative::new(unit, false),
            one(number(), number()),
            5_624_900,
        );
        check_error(
            Derivative::new(None, false),
            one(at(0), number()),
            5_624_901,
        );
    }
}
