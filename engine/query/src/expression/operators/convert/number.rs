//! Conversions from and to numbers and their text.

use std::num::{IntErrorKind, ParseIntError};

use pinion_bson::{Decimal, ElementType, Number, RawBson, RawBsonRef};
use pinion_wire::{Error, Result};

use super::double_text::{NoDouble, parse_double};
use super::failure;
use crate::error::error;
use crate::text::shortened;

/// A value as a number of a type; `None` where its type has no such conversion.
pub(super) fn to_number(value: RawBsonRef<'_>, to: ElementType) -> Option<Result<RawBson>> {
    let number = match value {
        RawBsonRef::Boolean(v) => Number::Int32(i32::from(v)),
        RawBsonRef::DateTime(v) if to != ElementType::Int32 => Number::Int64(v.timestamp_millis()),
        RawBsonRef::String(text) => return Some(from_text(text, to)),
        other => Number::from_value(other)?,
    };
    Some(number_as(number, to))
}

fn number_as(number: Number, to: ElementType) -> Result<RawBson> {
    Ok(match to {
        ElementType::Int32 => {
            RawBson::Int32(whole(number, i64::from(i32::MIN), i64::from(i32::MAX))? as i32)
        }
        ElementType::Int64 => RawBson::Int64(whole(number, i64::MIN, i64::MAX)?),
        ElementType::Double => {
            let result = number.to_f64();
            if (result.is_infinite() && number.is_finite()) || is_below_doubles(number, result) {
                return Err(overflow(number));
            }
            RawBson::Double(result)
        }
        _ => Number::Decimal(number.to_decimal().pack()).to_raw_bson(),
    })
}

/// Whether a decimal is so small that its double has lost digits.
fn is_below_doubles(number: Number, double: f64) -> bool {
    // The least that has the least normal double where there are 53 binary digits.
    const LEAST: Decimal = Decimal::Finite {
        negative: false,
        coefficient: 2_225_073_858_507_201_259_573_821_257_020_769,
        exponent: -341,
    };
    let is_decimal = matches!(number, Number::Decimal(_));
    let size = match number.is_negative() {
        true => number.negate(),
        false => number,
    };
    is_decimal
        && !number.is_nan()
        && !number.is_zero()
        && double.abs() <= f64::MIN_POSITIVE
        && size.compare(Number::Decimal(LEAST.pack())).is_lt()
}

/// A number without its fraction.
pub(super) fn whole(number: Number, least: i64, greatest: i64) -> Result<i64> {
    if number.is_nan() {
        return Err(failure("Attempt to convert NaN value to integer type"));
    }
    if !number.is_finite() {
        return Err(failure("Attempt to convert infinity value to integer type"));
    }
    number
        .to_i64_truncated()
        .filter(|n| (least..=greatest).contains(n))
        .ok_or_else(|| overflow(number))
}

/// The error for a number that its target has no room for. Integers are not named.
fn overflow(number: Number) -> Error {
    let named = match number {
        Number::Double(v) => crate::text::format_general(v, 6),
        Number::Decimal(v) => v.to_string(),
        Number::Int32(_) | Number::Int64(_) => String::new(),
    };
    error(
        241,
        format!("Conversion would overflow target type in $convert with no onError value: {named}"),
    )
}

/// The number of a type that a text says.
pub(in super::super) fn from_text(text: &str, to: ElementType) -> Result<RawBson> {
    let wrong = |why: &str| {
        error(
            241,
            format!(
                "Failed to parse number '{}' in $convert with no onError value: {why}",
                shortened(text)
            ),
        )
    };
    if text.starts_with("0x") {
        return Err(error(
            241,
            format!(
                "Illegal hexadecimal input in $convert with no onError value: {}",
                shortened(text)
            ),
        ));
    }
    let no_integer = |error: ParseIntError| {
        wrong(match error.kind() {
            IntErrorKind::Empty => "No digits",
            _ if matches!(text, "+" | "-") => "No digits",
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "Overflow",
            _ => REST,
        })
    };
    Ok(match to {
        ElementType::Int32 => RawBson::Int32(text.parse().map_err(no_integer)?),
        ElementType::Int64 => RawBson::Int64(text.parse().map_err(no_integer)?),
        _ if text.is_empty() => return Err(wrong("Empty string")),
        ElementType::Double if text.starts_with(is_space) => {
            return Err(wrong("Leading whitespace"));
        }
        ElementType::Double => {
            RawBson::Double(parse_double(text).map_err(|no_double| match no_double {
                NoDouble::NoDigits => wrong("Did not consume any digits"),
                NoDouble::Rest => wrong(REST),
                NoDouble::OutOfRange => wrong("Out of range"),
            })?)
        }
        _ => {
            let number = super::super::decimal::parse(text).filter(|_| text.trim() == text);
            RawBson::Decimal128(number.ok_or_else(|| wrong("Failed to parse string to decimal"))?)
        }
    })
}

const REST: &str = "Did not consume whole string.";

/// A space as C knows them.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t'..='\r')
}

/// A number as text: whole doubles without a point, large ones with an exponent.
pub(in crate::expression::operators) fn number_text(value: RawBsonRef<'_>) -> String {
    match value {
        RawBsonRef::Double(v) if v.is_nan() => "NaN".into(),
        RawBsonRef::Double(v) if v.is_infinite() => {
            if v > 0.0 { "Infinity" } else { "-Infinity" }.into()
        }
        RawBsonRef::Double(v) => {
            // The fewest digits that read back as the same double.
            (1..=17)
                .map(|precision| crate::text::format_general(v, precision))
                .find(|text| text.parse() == Ok(v))
                .unwrap_or_else(|| v.to_string())
        }
        RawBsonRef::Int32(v) => v.to_string(),
        RawBsonRef::Int64(v) => v.to_string(),
        other => crate::text::value_text(other),
    }
}
