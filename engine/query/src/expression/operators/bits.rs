//! Operators on single numbers that only they have: bits, angles, and the parts of timestamps.

use pinion_bson::decimal::Decimal;
use pinion_bson::{Decimal128, Number, RawBsonRef};
use pinion_wire::Result;

use super::{Arity, Operator, Value, quad};
use crate::error::{error, type_mismatch};
use crate::text::value_text;

macro_rules! angle {
    ($name:literal, $function:ident, $from:expr, $to:expr, $open:expr) => {
        Operator {
            name: $name,
            arity: Arity::Exactly(1),
            evaluate: |v| {
                angle(
                    $name,
                    &v[0],
                    (f64::$function, |x| quad::function(x, quad::$function)),
                    ($from, $to, $open),
                )
            },
        }
    };
}

const INFINITE: f64 = f64::INFINITY;
/// The limits of a function that has none.
const ANY: (f64, f64, bool) = (-INFINITE, INFINITE, false);

/// One degree: 0.01745329251994329576923690768488613.
const PI_OVER_180: Decimal = Decimal::Finite {
    negative: false,
    coefficient: 1_745_329_251_994_329_576_923_690_768_488_613,
    exponent: -35,
};
/// One radian: 57.29577951308232087679815481410517.
const DEGREES_OVER_PI: Decimal = Decimal::Finite {
    negative: false,
    coefficient: 5_729_577_951_308_232_087_679_815_481_410_517,
    exponent: -32,
};

fn product(value: Decimal128, factor: Decimal) -> Decimal128 {
    (Decimal::unpack(value) * factor).pack()
}

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
    angle!("$sin", sin, -INFINITE, INFINITE, true),
    angle!("$cos", cos, -INFINITE, INFINITE, true),
    angle!("$tan", tan, -INFINITE, INFINITE, true),
    angle!("$asin", asin, -1.0, 1.0, false),
    angle!("$acos", acos, -1.0, 1.0, false),
    angle!("$atan", atan, -INFINITE, INFINITE, false),
    angle!("$sinh", sinh, -INFINITE, INFINITE, false),
    angle!("$cosh", cosh, -INFINITE, INFINITE, false),
    angle!("$tanh", tanh, -INFINITE, INFINITE, false),
    angle!("$asinh", asinh, -INFINITE, INFINITE, false),
    angle!("$acosh", acosh, 1.0, INFINITE, false),
    angle!("$atanh", atanh, -1.0, 1.0, false),
    Operator {
        name: "$degreesToRadians",
        arity: Arity::Exactly(1),
        evaluate: |v| {
            let exact = |x| Ok(product(x, PI_OVER_180));
            angle("$degreesToRadians", &v[0], (f64::to_radians, exact), ANY)
        },
    },
    Operator {
        name: "$radiansToDegrees",
        arity: Arity::Exactly(1),
        evaluate: |v| {
            let exact = |x| Ok(product(x, DEGREES_OVER_PI));
            angle("$radiansToDegrees", &v[0], (f64::to_degrees, exact), ANY)
        },
    },
    Operator {
        name: "$atan2",
        arity: Arity::Exactly(2),
        evaluate: atan2,
    },
    Operator {
        name: "$sigmoid",
        arity: Arity::Exactly(1),
        evaluate: |v| angle("$sigmoid", &v[0], (sigmoid, quad::sigmoid), ANY),
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
                    "{name} only supports int and long operands."
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
        Some(value) if crate::value::is_number(value) => Err(type_mismatch(format!(
            "$bitNot only supports int and long, not: {}.",
            values[0].type_name()
        ))),
        _ => Err(error(
            28765,
            format!(
                "$bitNot only supports numeric types, not {}",
                values[0].type_name()
            ),
        )),
    }
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

/// What is done with doubles, and with decimals.
type Rounding = (fn(f64) -> f64, fn(Decimal128) -> Result<Decimal128>);

/// A function defined between two limits; `open` leaves the limits themselves out.
fn angle<'a>(
    name: &str,
    value: &Value<'a>,
    (of_double, of_decimal): Rounding,
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
    Ok(Value::Ref(match number {
        Number::Decimal(x) => RawBsonRef::Decimal128(of_decimal(x)?),
        _ => RawBsonRef::Double(of_double(x)),
    }))
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
    Ok(Value::Ref(match (first, second) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            let (y, x) = (first.to_decimal().pack(), second.to_decimal().pack());
            RawBsonRef::Decimal128(quad::atan2(y, x)?)
        }
        _ => RawBsonRef::Double(first.to_f64().atan2(second.to_f64())),
    }))
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
                " Argument to {name} must be a timestamp, but is {}",
                value.type_name()
            ),
        )),
    }
}
