//! Conversions between types.

use pinion_bson::{
    DateTime, ElementType, Number, ObjectId, RawBson, RawBsonRef, type_from_alias, type_from_number,
};
use pinion_wire::{Error, Result};

use super::{Arity, Operator, Value};
use crate::error::{bad_value, error, failed_to_parse};
use crate::number::exact_i64;
use crate::text::shortened;
use crate::value::{is_number, type_name};

pub(super) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$toString",
        arity: Arity::One,
        evaluate: |v| converted(&v[0], ElementType::String),
    },
    Operator {
        name: "$toInt",
        arity: Arity::One,
        evaluate: |v| converted(&v[0], ElementType::Int32),
    },
    Operator {
        name: "$toLong",
        arity: Arity::One,
        evaluate: |v| converted(&v[0], ElementType::Int64),
    },
    Operator {
        name: "$toDouble",
        arity: Arity::One,
        evaluate: |v| converted(&v[0], ElementType::Double),
    },
    Operator {
        name: "$toDecimal",
        arity: Arity::One,
        evaluate: |v| converted(&v[0], ElementType::Decimal128),
    },
    Operator {
        name: "$toBool",
        arity: Arity::One,
        evaluate: |v| converted(&v[0], ElementType::Boolean),
    },
    Operator {
        name: "$toDate",
        arity: Arity::One,
        evaluate: |v| converted(&v[0], ElementType::DateTime),
    },
    Operator {
        name: "$toObjectId",
        arity: Arity::One,
        evaluate: |v| converted(&v[0], ElementType::ObjectId),
    },
];

fn converted<'a>(value: &Value<'a>, to: ElementType) -> Result<Value<'a>> {
    match value.as_ref() {
        Some(value) if !crate::value::is_nullish(value) => convert(value, to).map(Value::owned),
        _ => Ok(Value::null()),
    }
}

/// `$convert`: input, target, what stands for an error and for null.
pub(super) fn convert_with<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [input, to, on_error, on_null] = values else {
        return Ok(Value::null());
    };
    let to = match to.as_ref() {
        None => return Ok(Value::null()),
        Some(value) if crate::value::is_nullish(value) => return Ok(Value::null()),
        Some(RawBsonRef::String(alias)) => type_from_alias(alias)
            .ok_or_else(|| bad_value(format!("Unknown type name: {alias}")))?,
        Some(number) if is_number(number) => {
            let code = exact_i64(number).and_then(|n| i32::try_from(n).ok());
            let code = code.ok_or_else(|| {
                failed_to_parse("In $convert, numeric 'to' argument is not an integer")
            })?;
            type_from_number(code).ok_or_else(|| {
                failed_to_parse(format!(
                    "In $convert, numeric value for 'to' does not correspond to a BSON type: {code}"
                ))
            })?
        }
        Some(other) => {
            return Err(failed_to_parse(format!(
                "$convert's 'to' argument must be a string or number, but is {}",
                type_name(other)
            )));
        }
    };
    match input.as_ref() {
        Some(value) if !crate::value::is_nullish(value) => match convert(value, to) {
            Ok(made) => Ok(Value::owned(made)),
            Err(e) if e.code.0 == 241 && !on_error.is_missing() => Ok(on_error.clone()),
            Err(e) => Err(e),
        },
        _ if on_null.is_missing() => Ok(Value::null()),
        _ => Ok(on_null.clone()),
    }
}

fn failure(message: String) -> Error {
    error(241, format!("{message} in $convert with no onError value"))
}

fn convert(value: RawBsonRef<'_>, to: ElementType) -> Result<RawBson> {
    let unsupported = || {
        failure(format!(
            "Unsupported conversion from {} to {}",
            type_name(value),
            pinion_bson::type_name(to)
        ))
    };
    if value.element_type() == to {
        return Ok(value.into());
    }
    let number = Number::from_value(value);
    Ok(match (to, value) {
        (ElementType::Boolean, RawBsonRef::String(_)) => RawBson::Boolean(true),
        (ElementType::Boolean, other) => RawBson::Boolean(crate::value::is_true(other)),
        (ElementType::String, RawBsonRef::Boolean(v)) => RawBson::String(v.to_string()),
        (ElementType::String, RawBsonRef::ObjectId(v)) => RawBson::String(v.to_hex()),
        (ElementType::String, RawBsonRef::DateTime(v)) => {
            RawBson::String(super::date::iso_text(v.timestamp_millis())?)
        }
        (ElementType::String, v) if number.is_some() => RawBson::String(number_text(v)),
        (ElementType::ObjectId, RawBsonRef::String(text)) => match ObjectId::parse_str(text) {
            Ok(id) => RawBson::ObjectId(id),
            Err(_) => {
                return Err(failure(format!(
                    "Failed to parse objectId '{}'",
                    shortened(text)
                )));
            }
        },
        (ElementType::DateTime, RawBsonRef::ObjectId(v)) => {
            RawBson::DateTime(DateTime::from_millis(super::date::object_id_millis(v)))
        }
        (ElementType::DateTime, RawBsonRef::Timestamp(v)) => {
            RawBson::DateTime(DateTime::from_millis(i64::from(v.time) * 1000))
        }
        (ElementType::DateTime, RawBsonRef::Int32(_)) => return Err(unsupported()),
        (ElementType::DateTime, RawBsonRef::String(text)) => match super::date::parse_iso(text) {
            Some(millis) => RawBson::DateTime(DateTime::from_millis(millis)),
            None => {
                return Err(failure(format!(
                    "Error parsing date string '{}'",
                    shortened(text)
                )));
            }
        },
        (ElementType::DateTime, _) => {
            let number = number.ok_or_else(unsupported)?;
            RawBson::DateTime(DateTime::from_millis(whole(number, i64::MIN, i64::MAX)?))
        }
        (
            ElementType::Int32 | ElementType::Int64 | ElementType::Double | ElementType::Decimal128,
            source,
        ) => {
            let number = match source {
                RawBsonRef::Boolean(v) => Number::Int32(i32::from(v)),
                RawBsonRef::DateTime(v) if to != ElementType::Int32 => {
                    Number::Int64(v.timestamp_millis())
                }
                RawBsonRef::String(text) => return parse_number(text, to),
                _ => number.ok_or_else(unsupported)?,
            };
            match to {
                ElementType::Int32 => {
                    RawBson::Int32(whole(number, i64::from(i32::MIN), i64::from(i32::MAX))? as i32)
                }
                ElementType::Int64 => RawBson::Int64(whole(number, i64::MIN, i64::MAX)?),
                ElementType::Double => {
                    let result = number.to_f64();
                    if result.is_infinite() && number.is_finite() {
                        return Err(failure("Conversion would overflow target type".into()));
                    }
                    RawBson::Double(result)
                }
                _ => Number::Decimal(number.to_decimal().pack()).to_raw_bson(),
            }
        }
        _ => return Err(unsupported()),
    })
}

fn whole(number: Number, least: i64, greatest: i64) -> Result<i64> {
    if number.is_nan() {
        return Err(failure(
            "Attempt to convert NaN value to integer type".into(),
        ));
    }
    if !number.is_finite() {
        return Err(failure(
            "Attempt to convert infinity value to integer type".into(),
        ));
    }
    number
        .to_i64_truncated()
        .filter(|n| (least..=greatest).contains(n))
        .ok_or_else(|| failure("Conversion would overflow target type".into()))
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
        _ => RawBson::Decimal128(super::decimal::parse(text).ok_or_else(wrong)?),
    })
}

/// A number as text: whole doubles without a point, large ones with an exponent.
pub(super) fn number_text(value: RawBsonRef<'_>) -> String {
    match value {
        RawBsonRef::Double(v) if v.is_nan() => "NaN".into(),
        RawBsonRef::Double(v) if v.is_infinite() => {
            if v > 0.0 {
                "Infinity".into()
            } else {
                "-Infinity".into()
            }
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
