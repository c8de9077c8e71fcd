//! Operators on single numbers that only they have: bits, angles, and the parts of timestamps.

use pinion_bson::{Number, RawBsonRef};
use pinion_wire::Result;

use super::{Arity, Operator, Value};
use crate::error::{error, type_mismatch};
use crate::text::value_text;

macro_rules! angle {
    ($name:literal, $function:expr, $from:expr, $to:expr, $open:expr) => {
        Operator {
            name: $name,
            arity: Arity::Exactly(1),
            evaluate: |v| angle($name, &v[0], $function, ($from, $to, $open)),
        }
    };
}

const INFINITE: f64 = f64::INFINITY;

pub(super) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$bitAnd",
        arity: Arity::Any,
        evaluate: |v| bits("$bitAnd", v, -1, |a, b| a & b),
    },
    Operator {
        name: "$bitOr",
        arity: Arity::Any,
        evaluate: |v| bits("$bitOr", v, 0, |a, b| a | b),
    },
    Operator {
        name: "$bitXor",
        arity: Arity::Any,
        evaluate: |v| bits("$bitXor", v, 0, |a, b| a ^ b),
    },
    Operator {
        name: "$bitNot",
        arity: Arity::Exactly(1),
        evaluate: bit_not,
    },
    angle!("$sin", f64::sin, -INFINITE, INFINITE, true),
    angle!("$cos", f64::cos, -INFINITE, INFINITE, true),
    angle!("$tan", f64::tan, -INFINITE, INFINITE, true),
    angle!("$asin", f64::asin, -1.0, 1.0, false),
    angle!("$acos", f64::acos, -1.0, 1.0, false),
    angle!("$atan", f64::atan, -INFINITE, INFINITE, false),
    angle!("$sinh", f64::sinh, -INFINITE, INFINITE, false),
    angle!("$cosh", f64::cosh, -INFINITE, INFINITE, false),
    angle!("$tanh", f64::tanh, -INFINITE, INFINITE, false),
    angle!("$asinh", f64::asinh, -INFINITE, INFINITE, false),
    angle!("$acosh", f64::acosh, 1.0, INFINITE, false),
    angle!("$atanh", f64::atanh, -1.0, 1.0, false),
    angle!(
        "$degreesToRadians",
        f64::to_radians,
        -INFINITE,
        INFINITE,
        false
    ),
    angle!(
        "$radiansToDegrees",
        f64::to_degrees,
        -INFINITE,
        INFINITE,
        false
    ),
    Operator {
        name: "$atan2",
        arity: Arity::Exactly(2),
        evaluate: atan2,
    },
    Operator {
        name: "$sigmoid",
        arity: Arity::Exactly(1),
        evaluate: |v| match v[0].as_ref() {
            Some(RawBsonRef::Decimal128(x)) => Ok(Value::Ref(RawBsonRef::Decimal128(
                super::decimal::sigmoid(x),
            ))),
            _ => angle("$sigmoid", &v[0], sigmoid, (-INFINITE, INFINITE, false)),
        },
    },
    Operator {
        name: "$tsSecond",
        arity: Arity::Exactly(1),
        evaluate: |v| timestamp_part("$tsSecond", 5_687_301, &v[0], |at| at.time),
    },
    Operator {
        name: "$tsIncrement",
        arity: Arity::Exactly(1),
        evaluate: |v| timestamp_part("$tsIncrement", 5_687_302, &v[0], |at| at.increment),
    },
];

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// An int where all operands are, else a long.
fn integral<'a>(value: i64, long: bool) -> Value<'a> {
    Value::Ref(if long {
        RawBsonRef::Int64(value)
    } else {
        RawBsonRef::Int32(value as i32)
    })
}

fn bits<'a>(
    name: &str,
    values: &[Value<'a>],
    start: i64,
    combine: fn(i64, i64) -> i64,
) -> Result<Value<'a>> {
    let (mut result, mut long, mut null) = (start, false, false);
    for value in values {
        match value.as_ref() {
            Some(RawBsonRef::Int32(v)) => result = combine(result, i64::from(v)),
            Some(RawBsonRef::Int64(v)) => {
                result = combine(result, v);
                long = true;
            }
            _ if value.is_nullish() => null = true,
            _ => {
                return Err(type_mismatch(format!(
                    "{name} only supports int and long operands, not {}",
                    value.type_name()
                )));
            }
        }
    }
    Ok(if null {
        Value::null()
    } else {
        integral(result, long)
    })
}

fn bit_not<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    match values[0].as_ref() {
        Some(RawBsonRef::Int32(v)) => Ok(integral(i64::from(!v), false)),
        Some(RawBsonRef::Int64(v)) => Ok(integral(!v, true)),
        _ if values[0].is_nullish() => Ok(Value::null()),
        _ => Err(error(
            28765,
            format!(
                "$bitNot only supports int and long, not {}",
                values[0].type_name()
            ),
        )),
    }
}

/// A double, or a decimal where the operand was one.
fn result<'a>(number: Number, value: f64) -> Value<'a> {
    let value = Number::Double(value);
    Value::Ref(match number {
        Number::Decimal(_) => Number::Decimal(value.to_decimal().pack()).to_value(),
        _ => value.to_value(),
    })
}

fn operand(name: &str, code: i32, value: &Value<'_>) -> Result<Number> {
    value.as_ref().and_then(Number::from_value).ok_or_else(|| {
        error(
            code,
            format!(
                "{name} only supports numeric types, not {}",
                value.type_name()
            ),
        )
    })
}

/// A function defined between two limits; `open` leaves the limits themselves out.
fn angle<'a>(
    name: &str,
    value: &Value<'a>,
    function: fn(f64) -> f64,
    (from, to, open): (f64, f64, bool),
) -> Result<Value<'a>> {
    if value.is_nullish() {
        return Ok(Value::null());
    }
    let code = if name == "$sigmoid" { 14 } else { 28765 };
    let number = operand(name, code, value)?;
    let x = number.to_f64();
    let inside = if open {
        x > from && x < to
    } else {
        x >= from && x <= to
    };
    if !x.is_nan() && !inside {
        let (left, right) = if open { ('(', ')') } else { ('[', ']') };
        return Err(error(
            50989,
            format!(
                "cannot apply {name} to {}, value must be in {left}{from},{to}{right}",
                value_text(value.or_null())
            ),
        ));
    }
    Ok(result(number, function(x)))
}

fn atan2<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [y, x] = values else {
        return Ok(Value::null());
    };
    if y.is_nullish() || x.is_nullish() {
        return Ok(Value::null());
    }
    let wrong = |value: &Value<'_>| {
        if crate::value::is_number(value.or_null()) {
            Ok(())
        } else {
            Err(error(
                51044,
                format!(
                    "$atan2 only supports numeric types, not {} and {}",
                    y.type_name(),
                    x.type_name()
                ),
            ))
        }
    };
    wrong(y)?;
    let (first, second) = (operand("$atan2", 51044, y)?, operand("$atan2", 51045, x)?);
    let decimal = matches!(second, Number::Decimal(_));
    Ok(result(
        if decimal { second } else { first },
        first.to_f64().atan2(second.to_f64()),
    ))
}

fn timestamp_part<'a>(
    name: &str,
    code: i32,
    value: &Value<'a>,
    part: fn(pinion_bson::Timestamp) -> u32,
) -> Result<Value<'a>> {
    match value.as_ref() {
        Some(RawBsonRef::Timestamp(at)) => Ok(Value::Ref(RawBsonRef::Int64(i64::from(part(at))))),
        _ if value.is_nullish() => Ok(Value::null()),
        _ => Err(error(
            code,
            format!(
                "Argument to {name} must be a timestamp, but is {}",
                value.type_name()
            ),
        )),
    }
}
