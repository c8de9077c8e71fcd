//! Intervals of values: what a predicate leaves of one field of an index.

use std::cmp::Ordering;

use pinion_bson::{DateTime, ElementType, ObjectId, RawBson, RawBsonRef, Timestamp};
use pinion_keystring::Strings;

use crate::text::value_text;
use crate::value::compare_owned;

/// The values from `lower` to `upper` in comparison order.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    pub lower: RawBson,
    pub lower_inclusive: bool,
    pub upper: RawBson,
    pub upper_inclusive: bool,
}

impl Interval {
    pub(super) fn new(
        lower: RawBson,
        lower_inclusive: bool,
        upper: RawBson,
        upper_inclusive: bool,
    ) -> Interval {
        Interval {
            lower,
            lower_inclusive,
            upper,
            upper_inclusive,
        }
    }

    pub(super) fn point(value: RawBson) -> Interval {
        Interval::new(value.clone(), true, value, true)
    }

    pub(super) fn all() -> Interval {
        Interval::new(RawBson::MinKey, true, RawBson::MaxKey, true)
    }

    /// Whether the interval holds one value.
    pub fn is_point(&self) -> bool {
        self.lower_inclusive
            && self.upper_inclusive
            && compare_owned(&self.lower, &self.upper).is_eq()
    }

    pub(super) fn is_all(&self) -> bool {
        matches!(
            (&self.lower, &self.upper),
            (RawBson::MinKey, RawBson::MaxKey)
        ) && self.lower_inclusive
            && self.upper_inclusive
    }

    pub(super) fn is_empty(&self) -> bool {
        match compare_owned(&self.lower, &self.upper) {
            Ordering::Less => false,
            Ordering::Equal => !(self.lower_inclusive && self.upper_inclusive),
            Ordering::Greater => true,
        }
    }

    fn intersect(&self, other: &Interval) -> Option<Interval> {
        let (lower, lower_inclusive) = match compare_owned(&self.lower, &other.lower) {
            Ordering::Less => (&other.lower, other.lower_inclusive),
            Ordering::Greater => (&self.lower, self.lower_inclusive),
            Ordering::Equal => (&self.lower, self.lower_inclusive && other.lower_inclusive),
        };
        let (upper, upper_inclusive) = match compare_owned(&self.upper, &other.upper) {
            Ordering::Less => (&self.upper, self.upper_inclusive),
            Ordering::Greater => (&other.upper, other.upper_inclusive),
            Ordering::Equal => (&self.upper, self.upper_inclusive && other.upper_inclusive),
        };
        let both = Interval::new(
            lower.clone(),
            lower_inclusive,
            upper.clone(),
            upper_inclusive,
        );
        (!both.is_empty()).then_some(both)
    }

    /// Whether a string, or a value in which strings could be, may lie in it.
    pub(super) fn may_hold_strings(&self) -> bool {
        let class = |value: &RawBson| pinion_bson::canonical_type(value.element_type());
        class(&self.lower) <= pinion_bson::canonical_type(ElementType::Array)
            && class(&self.upper) >= pinion_bson::canonical_type(ElementType::String)
    }

    /// As explain prints it, in the direction of the scan.
    pub fn text(&self, backward: bool, strings: Strings<'_>) -> String {
        let (open, lower, upper, close) = if backward {
            let open = if self.upper_inclusive { '[' } else { '(' };
            let close = if self.lower_inclusive { ']' } else { ')' };
            (open, &self.upper, &self.lower, close)
        } else {
            let open = if self.lower_inclusive { '[' } else { '(' };
            let close = if self.upper_inclusive { ']' } else { ')' };
            (open, &self.lower, &self.upper, close)
        };
        let text = |value: &RawBson| match value {
            RawBson::String(key) if !strings.are_kept() && !key.is_empty() => {
                format!("CollationKey({key})")
            }
            value => value_text(value.as_raw_bson_ref()),
        };
        format!("{open}{}, {}{close}", text(lower), text(upper))
    }
}

/// Intervals in ascending order, none touching another.
#[derive(Clone, Debug, PartialEq)]
pub struct Intervals(pub Vec<Interval>);

impl Intervals {
    /// All values.
    pub fn all() -> Intervals {
        Intervals(vec![Interval::all()])
    }

    pub(super) fn none() -> Intervals {
        Intervals(Vec::new())
    }

    /// Whether every value lies in one of them.
    pub fn is_all(&self) -> bool {
        matches!(&self.0[..], [one] if one.is_all())
    }

    /// Whether no value does.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether each holds one value.
    pub fn points_only(&self) -> bool {
        self.0.iter().all(Interval::is_point)
    }

    pub(super) fn may_hold_strings(&self) -> bool {
        self.0.iter().any(Interval::may_hold_strings)
    }

    pub(super) fn single_point(&self) -> bool {
        matches!(&self.0[..], [one] if one.is_point())
    }

    /// Sorts the intervals and joins those that meet.
    pub(super) fn union(mut intervals: Vec<Interval>) -> Intervals {
        intervals.retain(|i| !i.is_empty());
        intervals.sort_by(|a, b| {
            compare_owned(&a.lower, &b.lower).then(b.lower_inclusive.cmp(&a.lower_inclusive))
        });
        let mut joined: Vec<Interval> = Vec::with_capacity(intervals.len());
        for next in intervals {
            let Some(last) = joined.last_mut() else {
                joined.push(next);
                continue;
            };
            let touches = match compare_owned(&next.lower, &last.upper) {
                Ordering::Less => true,
                Ordering::Equal => next.lower_inclusive || last.upper_inclusive,
                Ordering::Greater => false,
            };
            if !touches {
                joined.push(next);
                continue;
            }
            match compare_owned(&next.upper, &last.upper) {
                Ordering::Greater => {
                    last.upper = next.upper;
                    last.upper_inclusive = next.upper_inclusive;
                }
                Ordering::Equal => last.upper_inclusive |= next.upper_inclusive,
                Ordering::Less => {}
            }
        }
        Intervals(joined)
    }

    pub(super) fn intersect(&self, other: &Intervals) -> Intervals {
        let mut both = Vec::new();
        for a in &self.0 {
            both.extend(other.0.iter().filter_map(|b| a.intersect(b)));
        }
        Intervals::union(both)
    }

    /// Everything else.
    pub(super) fn complement(&self) -> Intervals {
        let mut rest = Vec::new();
        let mut lower = RawBson::MinKey;
        let mut lower_inclusive = true;
        for interval in &self.0 {
            rest.push(Interval::new(
                lower,
                lower_inclusive,
                interval.lower.clone(),
                !interval.lower_inclusive,
            ));
            lower = interval.upper.clone();
            lower_inclusive = !interval.upper_inclusive;
        }
        rest.push(Interval::new(lower, lower_inclusive, RawBson::MaxKey, true));
        Intervals::union(rest)
    }
}

/// The least value of an operand's class and the first beyond it, and whether that one belongs to
/// the class.
pub(super) fn class_range(value: RawBsonRef<'_>) -> Option<(RawBson, RawBson, bool)> {
    let empty_document = || RawBson::Document(pinion_bson::RawDocumentBuf::new());
    Some(match value {
        RawBsonRef::Double(_)
        | RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Decimal128(_) => (
            RawBson::Double(f64::NEG_INFINITY),
            RawBson::Double(f64::INFINITY),
            true,
        ),
        RawBsonRef::String(_) | RawBsonRef::Symbol(_) => {
            (RawBson::String(String::new()), empty_document(), false)
        }
        RawBsonRef::Document(_) => (
            empty_document(),
            RawBson::Array(pinion_bson::RawArrayBuf::new()),
            false,
        ),
        RawBsonRef::Binary(_) => (
            RawBson::Binary(pinion_bson::Binary {
                subtype: pinion_bson::BinarySubtype::Generic,
                bytes: Vec::new(),
            }),
            RawBson::ObjectId(ObjectId::from_bytes([0; 12])),
            false,
        ),
        RawBsonRef::ObjectId(_) => (
            RawBson::ObjectId(ObjectId::from_bytes([0; 12])),
            RawBson::ObjectId(ObjectId::from_bytes([0xff; 12])),
            true,
        ),
        RawBsonRef::Boolean(_) => (RawBson::Boolean(false), RawBson::Boolean(true), true),
        RawBsonRef::DateTime(_) => (
            RawBson::DateTime(DateTime::from_millis(i64::MIN)),
            RawBson::DateTime(DateTime::from_millis(i64::MAX)),
            true,
        ),
        RawBsonRef::Timestamp(_) => (
            RawBson::Timestamp(Timestamp {
                time: 0,
                increment: 0,
            }),
            RawBson::Timestamp(Timestamp {
                time: u32::MAX,
                increment: u32::MAX,
            }),
            true,
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(text: &str) -> Interval {
        let inner = &text[1..text.len() - 1];
        let (lower, upper) = inner.split_once(", ").expect("two bounds");
        let value = |text: &str| match text {
            "MinKey" => RawBson::MinKey,
            "MaxKey" => RawBson::MaxKey,
            number => RawBson::Int32(number.parse().expect("a number")),
        };
        Interval::new(
            value(lower),
            text.starts_with('['),
            value(upper),
            text.ends_with(']'),
        )
    }

    fn intervals(texts: &[&str]) -> Intervals {
        Intervals(texts.iter().map(|t| interval(t)).collect())
    }

    fn texts(intervals: &Intervals) -> Vec<String> {
        intervals
            .0
            .iter()
            .map(|i| i.text(false, Strings::Plain))
            .collect()
    }

    #[test]
    fn sets_of_values() {
        let union = |texts_: &[&str]| {
            texts(&Intervals::union(
                texts_.iter().map(|t| interval(t)).collect(),
            ))
        };
        assert_eq!(union(&["[5, 6]", "[1, 2)", "[2, 3]"]), ["[1, 3]", "[5, 6]"]);
        assert_eq!(union(&["[1, 2)", "(2, 3]"]), ["[1, 2)", "(2, 3]"]);
        assert_eq!(union(&["(1, 1)", "[4, 3]"]), [] as [&str; 0]);
        let both = |a: &[&str], b: &[&str]| texts(&intervals(a).intersect(&intervals(b)));
        assert_eq!(both(&["[1, 5]"], &["(3, 9]"]), ["(3, 5]"]);
        assert_eq!(
            both(&["[1, 2]", "[4, 6]"], &["[2, 5)"]),
            ["[2, 2]", "[4, 5)"]
        );
        assert_eq!(both(&["[1, 2)"], &["[2, 5)"]), [] as [&str; 0]);
        let rest = |a: &[&str]| texts(&intervals(a).complement());
        assert_eq!(rest(&["[5, 5]"]), ["[MinKey, 5)", "(5, MaxKey]"]);
        assert_eq!(rest(&["[1, 2)", "[3, MaxKey]"]), ["[MinKey, 1)", "[2, 3)"]);
        assert_eq!(rest(&[]), ["[MinKey, MaxKey]"]);
        assert_eq!(interval("[1, 2)").text(true, Strings::Plain), "(2, 1]");
    }
}
