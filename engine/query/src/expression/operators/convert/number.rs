//! Conversions from and to numbers and their text.

use pinion_bson::{ElementType, Number, RawBson, RawBsonRef};
use pinion_wire::Result;

use super::failure;
use crate::text::shortened;

/// A value as a number of a type; `None` where its type has no such conversion.
pub(super) fn to_number(value: RawBsonRef<'_>, to: ElementType) -> Option<Result<RawBson>> {
    let number = match value {
        RawBsonRef::Boolean(v) => Number::Int32(i32::from(v)),
        RawBsonRef::DateTime(v) if to != ElementType::Int32 => Number::Int64(v.timestamp_millis()),
        RawBsonRef::String(text) => return Some(parse_number(text, to)),
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
            if result.is_infinite() && number.is_finite() {
                return Err(failure("Conversion would overflow target type"));
            }
            RawBson::Double(result)
        }
        _ => Number::Decimal(number.to_decimal().pack()).to_raw_bson(),
    })
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
        .ok_or_else(|| failure("Conversion would overflow target type"))
}

fn parse_number(text: &str, to: ElementType) -> Result<RawBson> {
    let wrong = || failure(format!("Failed to parse number '{}'", shortened(text)));
    if text.is_empty() || text.trim() != text {
        return Err(wrong());
    }
    Ok(match to {
        ElementType::Int32 => RawBson::Int32(text.parse().map_err(|_| wrong())?),
        ElementType::Int64 => RawBson::Int64(text.parse().map_err(|_| wrong())?),
        ElementType::Double => RawBson::Double(text.parse().map_err(|_| wrong())?),
        _ => RawBson::Decimal128(super::super::decimal::parse(text).ok_or_else(wrong)?),
    })
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
