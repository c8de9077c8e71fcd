//! Strings: joining, cutting, searching, case.

use std::borrow::Cow;

use memchr::memmem;
use pinion_bson::decimal::Rounding;
use pinion_bson::{DocBuilder, Number, RawBsonRef};
use pinion_wire::{Error, Result};

use super::{Arity, Operator, Value};
use crate::error::error;
use crate::limits::{MAX_STRING_BYTES, check_string_bytes};
use crate::number::{exact_i64, truncated_i64};
use crate::text::value_text;
use crate::value::is_number;

pub(super) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$concat",
        arity: Arity::Any,
        evaluate: concat,
    },
    Operator {
        name: "$toLower",
        arity: Arity::Exactly(1),
        evaluate: |v| Ok(Value::string(coerced(&v[0])?.to_ascii_lowercase())),
    },
    Operator {
        name: "$toUpper",
        arity: Arity::Exactly(1),
        evaluate: |v| Ok(Value::string(coerced(&v[0])?.to_ascii_uppercase())),
    },
    Operator {
        name: "$strLenBytes",
        arity: Arity::Exactly(1),
        evaluate: |v| {
            Ok(Value::int(
                length_argument("$strLenBytes", 34473, &v[0])?.len() as i32,
            ))
        },
    },
    Operator {
        name: "$strLenCP",
        arity: Arity::Exactly(1),
        evaluate: |v| {
            Ok(Value::int(
                length_argument("$strLenCP", 34471, &v[0])?.chars().count() as i32,
            ))
        },
    },
    Operator {
        name: "$substr",
        arity: Arity::Exactly(3),
        evaluate: substr_bytes,
    },
    Operator {
        name: "$substrBytes",
        arity: Arity::Exactly(3),
        evaluate: substr_bytes,
    },
    Operator {
        name: "$substrCP",
        arity: Arity::Exactly(3),
        evaluate: substr_cp,
    },
    Operator {
        name: "$split",
        arity: Arity::Exactly(2),
        evaluate: split,
    },
    Operator {
        name: "$indexOfBytes",
        arity: Arity::Between(2, 4),
        evaluate: |v| index_of("$indexOfBytes", 40091, 40092, v, false),
    },
    Operator {
        name: "$indexOfCP",
        arity: Arity::Between(2, 4),
        evaluate: |v| index_of("$indexOfCP", 40093, 40094, v, true),
    },
    Operator {
        name: "$strcasecmp",
        arity: Arity::Exactly(2),
        evaluate: |v| {
            let (a, b) = (
                coerced(&v[0])?.to_ascii_uppercase(),
                coerced(&v[1])?.to_ascii_uppercase(),
            );
            Ok(Value::int(a.as_bytes().cmp(b.as_bytes()) as i32))
        },
    },
];

fn as_str<'v>(value: &'v Value<'_>) -> Option<&'v str> {
    match value.as_ref() {
        Some(RawBsonRef::String(text)) => Some(text),
        _ => None,
    }
}

/// Where a text that is not empty stands in another, without overlaps. One that is too long to be
/// there is not prepared for the search, which takes a while for megabytes.
pub(super) fn places<'t>(text: &'t str, sought: &'t str) -> impl Iterator<Item = usize> + 't {
    places_of_bytes(text.as_bytes(), sought.as_bytes())
}

fn places_of_bytes<'t>(text: &'t [u8], sought: &'t [u8]) -> impl Iterator<Item = usize> + 't {
    let fits = sought.len() <= text.len();
    memmem::find_iter(text, if fits { sought } else { b"\0" }).take_while(move |_| fits)
}

/// A value as text, as the older string operators take it: numbers and dates are written out, null
/// is empty.
fn coerced<'v>(value: &'v Value<'_>) -> Result<Cow<'v, str>> {
    Ok(match value.as_ref() {
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => "".into(),
        Some(
            RawBsonRef::String(text) | RawBsonRef::Symbol(text) | RawBsonRef::JavaScriptCode(text),
        ) => text.into(),
        // Conversions write all digits of a double; string operators have six of them.
        Some(RawBsonRef::Double(v)) => crate::text::format_general(v, 6).into(),
        Some(number) if is_number(number) => super::convert::number_text(number).into(),
        Some(RawBsonRef::DateTime(at)) => super::date::iso_text(at.timestamp_millis())?.into(),
        Some(RawBsonRef::Timestamp(at)) => super::date::timestamp_text(at).into(),
        Some(other) => {
            return Err(error(
                16007,
                format!(
                    "can't convert from BSON type {} to String",
                    crate::value::type_name(other)
                ),
            ));
        }
    })
}

fn concat<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let length = values.iter().filter_map(as_str).map(str::len).sum();
    let mut joined = String::with_capacity(if length < MAX_STRING_BYTES { length } else { 0 });
    for value in values {
        match as_str(value) {
            Some(text) => {
                check_string_bytes(joined.len() + text.len())?;
                joined.push_str(text);
            }
            None if value.is_nullish() => return Ok(Value::null()),
            None => {
                return Err(error(
                    16702,
                    format!("$concat only supports strings, not {}", value.type_name()),
                ));
            }
        }
    }
    Ok(Value::string(joined))
}

fn length_argument<'v>(name: &str, code: i32, value: &'v Value<'_>) -> Result<&'v str> {
    as_str(value).ok_or_else(|| {
        error(
            code,
            format!(
                "{name} requires a string argument, found: {}",
                value.type_name()
            ),
        )
    })
}

/// A number as MongoDB's `coerceToLong` has it: decimals are rounded to even, and what is no number
/// of 64 bits is the least one.
fn coerced_to_long(number: RawBsonRef<'_>) -> i64 {
    match number {
        RawBsonRef::Decimal128(decimal) => {
            let number = Number::Decimal(decimal);
            let whole = match number.is_finite() && !number.is_integral() {
                true => number.to_decimal().quantize(0, Rounding::HalfEven),
                false => number.to_decimal(),
            };
            Number::Decimal(whole.pack())
                .to_i64_truncated()
                .unwrap_or(i64::MIN)
        }
        RawBsonRef::Double(v) if v < 0.0 => truncated_i64(number).unwrap_or(i64::MIN),
        _ => truncated_i64(number).unwrap_or(i64::MAX),
    }
}

fn substr_bytes<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let text = coerced(&values[0])?;
    let integer = |value: &Value<'_>, code: i32, what: &str| {
        let number = value.or_null();
        if !is_number(number) {
            return Err(error(
                code,
                format!(
                    "$substrBytes:  {what} must be a numeric type (is BSON type {})",
                    value.type_name()
                ),
            ));
        }
        Ok(coerced_to_long(number))
    };
    let start = integer(&values[1], 16034, "starting index")?;
    let length = integer(&values[2], 16035, "length")?;
    if start < 0 {
        return Err(error(
            50752,
            format!("$substrBytes:  starting index must be non-negative (got: {start})"),
        ));
    }
    let start = usize::try_from(start).unwrap_or(usize::MAX);
    if start >= text.len() {
        return Ok(Value::string(""));
    }
    let end = usize::try_from(length).map_or(text.len(), |length| {
        start.saturating_add(length).min(text.len())
    });
    if !text.is_char_boundary(start) {
        return Err(error(
            28656,
            "$substrBytes:  Invalid range, starting index is a UTF-8 continuation byte.",
        ));
    }
    if !text.is_char_boundary(end) {
        return Err(error(
            28657,
            "$substrBytes:  Invalid range, ending index is in the middle of a UTF-8 character.",
        ));
    }
    Ok(Value::string(&text[start..end]))
}

fn substr_cp<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let text = coerced(&values[0])?;
    let integer = |value: &Value<'_>, codes: (i32, i32, i32), what: &str| {
        let number = value.or_null();
        if !is_number(number) {
            return Err(error(
                codes.0,
                format!(
                    "$substrCP: {what} must be a numeric type (is BSON type {})",
                    value.type_name()
                ),
            ));
        }
        let whole = exact_i64(number)
            .and_then(|n| i32::try_from(n).ok())
            .ok_or_else(|| {
                error(
                    codes.1,
                    format!(
                        "$substrCP: {what} cannot be represented as a 32-bit integral value: {}",
                        value_text(number)
                    ),
                )
            })?;
        usize::try_from(whole).map_err(|_| {
            error(
                codes.2,
                format!("$substrCP: {what} must be a nonnegative integer."),
            )
        })
    };
    let start = integer(&values[1], (34450, 34451, 34455), "the starting index")?;
    let length = integer(&values[2], (34452, 34453, 34454), "length")?;
    let byte = |text: &str, points: usize| {
        text.char_indices()
            .nth(points)
            .map_or(text.len(), |(at, _)| at)
    };
    let rest = &text[byte(&text, start)..];
    Ok(Value::string(&rest[..byte(rest, length)]))
}

fn split<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let wrong = |code: i32, which: &str, value: &Value<'_>| {
        error(
            code,
            format!(
                "$split requires an expression that evaluates to a string as a {which} argument, found: {}",
                value.type_name()
            ),
        )
    };
    if values.iter().any(Value::is_nullish) {
        return Ok(Value::null());
    }
    let text = as_str(&values[0]).ok_or_else(|| wrong(40085, "first", &values[0]))?;
    let separator = as_str(&values[1]).ok_or_else(|| wrong(10503900, "second", &values[1]))?;
    if separator.is_empty() {
        return Err(error(40087, "$split requires a non-empty separator"));
    }
    let mut parts = DocBuilder::new();
    parts.start_array("");
    let mut from = 0;
    for at in places(text, separator) {
        parts.push(RawBsonRef::String(&text[from..at]));
        from = at + separator.len();
    }
    parts.push(RawBsonRef::String(&text[from..])).end();
    Ok(Value::wrapped(parts))
}

fn index_of<'a>(
    name: &str,
    text_code: i32,
    token_code: i32,
    values: &[Value<'a>],
    points: bool,
) -> Result<Value<'a>> {
    if values[0].is_nullish() {
        return Ok(Value::null());
    }
    let text = as_str(&values[0]).ok_or_else(|| {
        error(
            text_code,
            format!(
                "{name} requires a string as the first argument, found: {}",
                values[0].type_name()
            ),
        )
    })?;
    let token = as_str(&values[1]).ok_or_else(|| {
        error(
            token_code,
            format!(
                "{name} requires a string as the second argument, found: {}",
                values[1].type_name()
            ),
        )
    })?;
    let length = if points {
        text.chars().count()
    } else {
        text.len()
    };
    let start = index_bound(name, "starting", values.get(2))?.unwrap_or(0);
    let end = index_bound(name, "ending", values.get(3))?
        .unwrap_or(length)
        .min(length);
    if start > end {
        return Ok(Value::int(-1));
    }
    let (text, token) = (text.as_bytes(), token.as_bytes());
    if !points {
        let found = match token.is_empty() {
            true => Some(0),
            false => places_of_bytes(&text[start..end], token).next(),
        };
        return Ok(Value::int(found.map_or(-1, |at| (start + at) as i32)));
    }
    if text.is_empty() && token.is_empty() && start == 0 {
        return Ok(Value::int(0));
    }
    // What is found begins in front of the end, and may continue behind it.
    let (from, to) = (point_offset(text, start), point_offset(text, end));
    let found = match token.len() {
        0 => (from < to).then_some(0),
        length => places_of_bytes(&text[from..text.len().min(to + length - 1)], token).next(),
    };
    Ok(Value::int(found.map_or(-1, |at| {
        (start + points_of(&text[from..from + at])) as i32
    })))
}

/// The number of characters that begin in these bytes of a text.
fn points_of(text: &[u8]) -> usize {
    text.iter().filter(|byte| !is_continuation(**byte)).count()
}

/// Where the character of this number begins in a text.
fn point_offset(text: &[u8], point: usize) -> usize {
    text.iter()
        .enumerate()
        .filter(|(_, byte)| !is_continuation(**byte))
        .nth(point)
        .map_or(text.len(), |(at, _)| at)
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// An index argument that is given and not missing.
fn index_bound(name: &str, which: &str, value: Option<&Value<'_>>) -> Result<Option<usize>> {
    let Some(value) = value else { return Ok(None) };
    let wrong = || -> Error {
        error(
            40096,
            format!(
                "{name}requires an integral {which} index, found a value of type: {}, with value: {}",
                value.type_name(),
                value_text(value.or_null())
            ),
        )
    };
    let index = exact_i64(value.or_null())
        .and_then(|n| i32::try_from(n).ok())
        .ok_or_else(wrong)?;
    match usize::try_from(index) {
        Ok(index) => Ok(Some(index)),
        Err(_) => Err(error(
            40097,
            format!("{name} requires a nonnegative {which} index, found: {index}"),
        )),
    }
}
