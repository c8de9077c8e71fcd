//! The bounds of a window: `{documents: [lower, upper]}` or `{range: [lower, upper], unit}`.

use std::cmp::Ordering;

use pinion_bson::{RawBson, RawBsonRef, RawDocument};
use pinion_wire::Result;

use crate::error::{error, failed_to_parse};
use crate::expression::{Expression, TimeUnit, Variables};
use crate::number::exact_i64;
use crate::sort::SortPattern;
use crate::text::value_text;
use crate::value::{compare_owned, count, elements, field, is_number, items};

/// One bound.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Bound<T> {
    /// The partition's.
    Unbounded,
    /// The current document, or the value that it is sorted by.
    Current,
    /// So far from the current one.
    Offset(T),
}

/// Both bounds, which belong to the window.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Bounds {
    Documents(Bound<i64>, Bound<i64>),
    Range {
        lower: Bound<RawBson>,
        upper: Bound<RawBson>,
        unit: Option<TimeUnit>,
    },
}

impl Bounds {
    /// The whole partition.
    pub(super) const WHOLE: Bounds = Bounds::Documents(Bound::Unbounded, Bound::Unbounded);

    /// Parses the value of `window`.
    pub(super) fn parse(
        window: RawBsonRef<'_>,
        sort: Option<&SortPattern>,
        variables: &Variables,
    ) -> Result<Bounds> {
        let RawBsonRef::Document(window) = window else {
            return Err(failed_to_parse("'window' field must be an object"));
        };
        if crate::value::is_empty(window) {
            return Ok(Bounds::WHOLE);
        }
        let documents = field(window, "documents");
        let range = field(window, "range");
        let known = |name| matches!(name, "documents" | "range" | "unit");
        let all_known = elements(window).all(|(name, _)| known(name));
        match (documents, range) {
            (Some(pair), None) if count(window) == 1 => parse_documents(pair, sort, variables),
            (None, Some(pair)) if all_known => parse_range(window, pair, sort, variables),
            _ => Err(failed_to_parse(
                "'window' field can only contain 'documents' as the only argument or 'range' with an optional \
                 'unit' field",
            )),
        }
    }

    /// Whether the window begins where the partition does, so that it only grows.
    pub(super) fn only_grows(&self) -> bool {
        matches!(
            self,
            Bounds::Documents(Bound::Unbounded, _)
                | Bounds::Range {
                    lower: Bound::Unbounded,
                    ..
                }
        )
    }

    /// Whether the value that the documents are sorted by takes part.
    pub(super) fn is_range(&self) -> bool {
        matches!(self, Bounds::Range { .. })
    }
}

fn parse_documents(
    pair: RawBsonRef<'_>,
    sort: Option<&SortPattern>,
    variables: &Variables,
) -> Result<Bounds> {
    let [lower, upper] = unpack(pair)?.map(|bound| {
        parse_bound(bound, variables)?.map(|offset| {
            exact_i64(offset.as_raw_bson_ref())
                .filter(|offset| i32::try_from(*offset).is_ok())
                .ok_or_else(|| {
                    failed_to_parse(format!(
                        "Numeric document-based bounds must be an integer: {}",
                        value_text(offset.as_raw_bson_ref())
                    ))
                })
        })
    });
    let (lower, upper) = (lower?, upper?);
    check_order(&lower, &upper, &0, i64::cmp)?;
    let whole = (&lower, &upper) == (&Bound::Unbounded, &Bound::Unbounded);
    if !whole && sort.is_none_or(SortPattern::is_empty) {
        return Err(error(5_339_901, "Document-based bounds require a sortBy"));
    }
    Ok(Bounds::Documents(lower, upper))
}

fn parse_range(
    window: &RawDocument,
    pair: RawBsonRef<'_>,
    sort: Option<&SortPattern>,
    variables: &Variables,
) -> Result<Bounds> {
    let mut fields = sort.into_iter().flat_map(SortPattern::fields);
    let (Some((_, descending)), None) = (fields.next(), fields.next()) else {
        return Err(error(
            5_339_902,
            "Range-based bounds require sortBy a single field",
        ));
    };
    if descending {
        return Err(error(
            8_947_401,
            "Range-based bounds require an ascending sortBy",
        ));
    }
    let unit = match field(window, "unit") {
        None => None,
        Some(unit) => Some(parse_unit(unit)?),
    };
    let [lower, upper] = unpack(pair)?.map(|bound| {
        parse_bound(bound, variables)?.map(|offset| {
            let value = offset.as_raw_bson_ref();
            if !is_number(value) {
                return Err(failed_to_parse(format!(
                    "Range-based bounds expression must be a number: {}",
                    value_text(value)
                )));
            }
            if unit.is_some() && exact_i64(value).is_none() {
                return Err(failed_to_parse(format!(
                    "With 'unit', range-based bounds must be an integer: {}",
                    value_text(value)
                )));
            }
            Ok(offset)
        })
    });
    let (lower, upper) = (lower?, upper?);
    check_order(&lower, &upper, &RawBson::Int32(0), compare_owned)?;
    Ok(Bounds::Range { lower, upper, unit })
}

/// The unit of time of this name.
pub(in crate::pipeline) fn parse_unit(unit: RawBsonRef<'_>) -> Result<TimeUnit> {
    let RawBsonRef::String(name) = unit else {
        return Err(failed_to_parse("'unit' must be a string"));
    };
    TimeUnit::find(name).ok_or_else(|| failed_to_parse(format!("unknown time unit value: {name}")))
}

fn unpack(pair: RawBsonRef<'_>) -> Result<[RawBsonRef<'_>; 2]> {
    if let RawBsonRef::Array(array) = pair
        && let [lower, upper] = items(array).take(3).collect::<Vec<_>>()[..]
    {
        return Ok([lower, upper]);
    }
    Err(failed_to_parse(format!(
        "Window bounds must be a 2-element array: {}",
        value_text(pair)
    )))
}

fn parse_bound(bound: RawBsonRef<'_>, variables: &Variables) -> Result<Bound<RawBson>> {
    match bound {
        RawBsonRef::String("unbounded") => Ok(Bound::Unbounded),
        RawBsonRef::String("current") => Ok(Bound::Current),
        RawBsonRef::String(_) => Err(failed_to_parse(
            "Window bounds must be 'unbounded', 'current', or a number.",
        )),
        other => match Expression::parse(other, variables)?.constant() {
            Some(constant) => Ok(Bound::Offset(constant)),
            None => Err(failed_to_parse(
                "Window bounds expression must be a constant.",
            )),
        },
    }
}

impl<T> Bound<T> {
    fn map<U>(self, f: impl FnOnce(T) -> Result<U>) -> Result<Bound<U>> {
        Ok(match self {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Current => Bound::Current,
            Bound::Offset(offset) => Bound::Offset(f(offset)?),
        })
    }
}

/// The lower bound must not lie above the upper one; `zero` is the current document's place.
fn check_order<T: std::fmt::Debug>(
    lower: &Bound<T>,
    upper: &Bound<T>,
    zero: &T,
    compare: impl Fn(&T, &T) -> Ordering,
) -> Result<()> {
    let place = |bound| match bound {
        Bound::Unbounded => None,
        Bound::Current => Some(zero),
        Bound::Offset(offset) => Some(offset),
    };
    let (Some(low), Some(high)) = (place(as_ref(lower)), place(as_ref(upper))) else {
        return Ok(());
    };
    if compare(low, high).is_gt() {
        return Err(error(5_339_900, "Lower bound must not exceed upper bound"));
    }
    Ok(())
}

fn as_ref<T>(bound: &Bound<T>) -> Bound<&T> {
    match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Current => Bound::Current,
        Bound::Offset(offset) => Bound::Offset(offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawbson, rawdoc};

    fn parse(window: RawBson, sort: Option<RawDocumentBuf>) -> Result<Bounds> {
        let sort = sort.map(|pattern| SortPattern::parse(&pattern).expect("a sort"));
        Bounds::parse(
            window.as_raw_bson_ref(),
            sort.as_ref(),
            &Variables::default(),
        )
    }

    #[track_caller]
    fn check(window: RawBson, expected: Bounds) {
        let parsed = parse(window.clone(), Some(rawdoc! { "t": 1 }));
        assert_eq!(parsed.expect("parses"), expected, "{window:?}");
    }

    #[track_caller]
    fn check_error(window: RawBson, sort: Option<RawDocumentBuf>, code: i32) {
        let found = parse(window.clone(), sort).expect_err("it is refused");
        assert_eq!(found.code.0, code, "{window:?}");
    }

    #[test]
    fn forms() {
        check(rawbson!({}), Bounds::WHOLE);
        check(
            rawbson!({ "documents": [-1, { "$add": [1, 1] }] }),
            Bounds::Documents(Bound::Offset(-1), Bound::Offset(2)),
        );
        check(
            rawbson!({ "documents": ["unbounded", "current"] }),
            Bounds::Documents(Bound::Unbounded, Bound::Current),
        );
        check(
            rawbson!({ "range": [-1.5, "current"] }),
            Bounds::Range {
                lower: Bound::Offset(rawbson!(-1.5)),
                upper: Bound::Current,
                unit: None,
            },
        );
        check(
            rawbson!({ "range": [-1, 0], "unit": "day" }),
            Bounds::Range {
                lower: Bound::Offset(rawbson!(-1)),
                upper: Bound::Offset(rawbson!(0)),
                unit: TimeUnit::find("day"),
            },
        );
        let whole = parse(rawbson!({ "documents": ["unbounded", "unbounded"] }), None);
        assert_eq!(whole.expect("it needs no order"), Bounds::WHOLE);
    }

    #[test]
    fn errors() {
        let sort = || Some(rawdoc! { "t": 1 });
        for window in [
            rawbson!("x"),
            rawbson!({ "documents": [-1, 0], "range": [-1, 0] }),
            rawbson!({ "documents": [-1, 0], "unit": "day" }),
            rawbson!({ "documents": [-1, 0], "x": 1 }),
            rawbson!({ "x": 1 }),
            rawbson!({ "documents": [] }),
            rawbson!({ "documents": [-1, 0, 1] }),
            rawbson!({ "documents": 1 }),
            rawbson!({ "documents": ["x", 0] }),
            rawbson!({ "documents": [-1.5, 0] }),
            rawbson!({ "documents": [null, 0] }),
            rawbson!({ "documents": [true, 0] }),
            rawbson!({ "documents": ["$x", 0] }),
            rawbson!({ "range": ["x", 0] }),
            rawbson!({ "range": [{ "$literal": "x" }, 0] }),
            rawbson!({ "range": [0.5, 1], "unit": "day" }),
            rawbson!({ "range": [0, 1], "unit": "days" }),
            rawbson!({ "range": [0, 1], "unit": 1 }),
        ] {
            check_error(window, sort(), 9);
        }
        check_error(rawbson!({ "documents": [1, -1] }), sort(), 5_339_900);
        check_error(
            rawbson!({ "documents": ["current", -1] }),
            sort(),
            5_339_900,
        );
        check_error(rawbson!({ "range": [1, -1] }), sort(), 5_339_900);
        check_error(rawbson!({ "documents": [-1, 1] }), None, 5_339_901);
        check_error(rawbson!({ "range": [-1, 1] }), None, 5_339_902);
        check_error(
            rawbson!({ "range": [-1, 1] }),
            Some(rawdoc! { "a": 1, "b": 1 }),
            5_339_902,
        );
        check_error(
            rawbson!({ "range": [-1, 1] }),
            Some(rawdoc! { "a": -1 }),
            8_947_401,
        );
    }
}
