//! Arithmetic: `$add` to `$log10`, and the accumulators' forms over arguments and arrays.

use std::cmp::Ordering;

use pinion_bson::decimal::{Decimal, MAX_DIGITS, MIN_EXPONENT, Rounding, round_double};
use pinion_bson::{DateTime, Decimal128, ElementType, Number, RawBsonRef};
use pinion_collation::Collation;
use pinion_wire::{Error, Result};
use smallvec::SmallVec;

use super::{Arity, Comparing, Operator, Value, quad};
use crate::accumulator::{Accumulator, Kind};
use crate::collation::compare;
use crate::error::{bad_value, error, type_mismatch};
use crate::value::{is_nullish, items};

pub(super) const COMPARING: &[Comparing] = &[
    Comparing {
        name: "$min",
        arity: Arity::Any,
        evaluate: |v, c| extreme(v, c, Ordering::Less),
    },
    Comparing {
        name: "$max",
        arity: Arity::Any,
        evaluate: |v, c| extreme(v, c, Ordering::Greater),
    },
];

pub(super) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$add",
        arity: Arity::Any,
        evaluate: add,
    },
    Operator {
        name: "$subtract",
        arity: Arity::Exactly(2),
        evaluate: subtract,
    },
    Operator {
        name: "$multiply",
        arity: Arity::Any,
        evaluate: multiply,
    },
    Operator {
        name: "$divide",
        arity: Arity::Exactly(2),
        evaluate: divide,
    },
    Operator {
        name: "$mod",
        arity: Arity::Exactly(2),
        evaluate: modulo,
    },
    Operator {
        name: "$abs",
        arity: Arity::Exactly(1),
        evaluate: abs,
    },
    Operator {
        name: "$ceil",
        arity: Arity::Exactly(1),
        evaluate: |v| whole("$ceil", &v[0], f64::ceil, Rounding::Ceiling),
    },
    Operator {
        name: "$floor",
        arity: Arity::Exactly(1),
        evaluate: |v| whole("$floor", &v[0], f64::floor, Rounding::Floor),
    },
    Operator {
        name: "$round",
        arity: Arity::Between(1, 2),
        evaluate: |v| to_place("$round", v, true),
    },
    Operator {
        name: "$trunc",
        arity: Arity::Between(1, 2),
        evaluate: |v| to_place("$trunc", v, false),
    },
    Operator {
        name: "$sqrt",
        arity: Arity::Exactly(1),
        evaluate: sqrt,
    },
    Operator {
        name: "$pow",
        arity: Arity::Exactly(2),
        evaluate: pow,
    },
    Operator {
        name: "$exp",
        arity: Arity::Exactly(1),
        evaluate: |v| {
            unary("$exp", 28765, &v[0], |n| {
                of_number(n, f64::exp, |x| {
                    let power = quad::function(x, quad::exp)?;
                    let least = least_of_zeros(power).filter(|_| Number::Decimal(x).is_finite());
                    Ok(least.unwrap_or(power))
                })
            })
        },
    },
    Operator {
        name: "$ln",
        arity: Arity::Exactly(1),
        evaluate: |v| logarithm("$ln", 28766, &v[0], f64::ln, quad::ln),
    },
    Operator {
        name: "$log10",
        arity: Arity::Exactly(1),
        evaluate: |v| logarithm("$log10", 28761, &v[0], f64::log10, quad::log10),
    },
    Operator {
        name: "$log",
        arity: Arity::Exactly(2),
        evaluate: log,
    },
    Operator {
        name: "$sum",
        arity: Arity::Any,
        evaluate: |v| accumulate(Kind::Sum, v),
    },
    Operator {
        name: "$avg",
        arity: Arity::Any,
        evaluate: |v| accumulate(Kind::Avg, v),
    },
    Operator {
        name: "$stdDevPop",
        arity: Arity::Any,
        evaluate: |v| accumulate(Kind::StdDevPop, v),
    },
    Operator {
        name: "$stdDevSamp",
        arity: Arity::Any,
        evaluate: |v| accumulate(Kind::StdDevSamp, v),
    },
];

fn number<'a>(value: Number) -> Value<'a> {
    Value::Ref(value.to_value())
}

fn decimal<'a>(value: Decimal) -> Value<'a> {
    number(Number::Decimal(value.pack()))
}

/// The result of decimal arithmetic, where NaN has the sign of the first operand that is NaN.
fn signed_nan<'a>(values: &[Value<'a>], result: Number) -> Value<'a> {
    if !is_decimal(result) || !result.is_nan() {
        return number(result);
    }
    let operands = values.iter().filter_map(Value::as_ref);
    let mut operands = operands.filter_map(Number::from_value);
    let negative = match operands.find(|operand| operand.is_nan()) {
        Some(Number::Decimal(operand)) => operand.bytes()[15] & 0x80,
        Some(Number::Double(operand)) if operand.is_sign_negative() => 0x80,
        _ => 0,
    };
    let mut bytes = Decimal::Nan.pack().bytes();
    bytes[15] |= negative;
    number(Number::Decimal(Decimal128::from_bytes(bytes)))
}

fn is_decimal(value: Number) -> bool {
    value.kind() == ElementType::Decimal128
}

fn any_nullish(values: &[Value<'_>]) -> bool {
    values.iter().any(Value::is_nullish)
}

/// The argument as a number, or the error of an operator that takes nothing else.
fn numeric(value: &Value<'_>, wrong: impl FnOnce(&str) -> Error) -> Result<Number> {
    value
        .as_ref()
        .and_then(Number::from_value)
        .ok_or_else(|| wrong(value.type_name()))
}

/// `$add`: numbers are added one by one in the widest type so far, a date with whole milliseconds.
fn add<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let mut total = Number::Int32(0);
    let mut date: Option<i64> = None;
    for value in values {
        match value.as_ref() {
            Some(RawBsonRef::DateTime(at)) => {
                if date.is_some() {
                    return Err(error(16612, "only one date allowed in an $add expression"));
                }
                date = Some(moved_date(at.timestamp_millis(), total)?);
            }
            Some(other) if !crate::value::is_nullish(other) => {
                let Some(number) = Number::from_value(other) else {
                    return Err(type_mismatch(format!(
                        "$add only supports numeric or date types, not {}",
                        value.type_name()
                    )));
                };
                match &mut date {
                    Some(date) => *date = moved_date(*date, number)?,
                    None => total = total.add_widening(number),
                }
            }
            _ => return Ok(Value::null()),
        }
    }
    Ok(match date {
        Some(date) => Value::Ref(RawBsonRef::DateTime(DateTime::from_millis(date))),
        None => signed_nan(values, total),
    })
}

/// A date moved by milliseconds, rounded to whole ones.
fn moved_date(date: i64, by: Number) -> Result<i64> {
    let overflow = || error(15, "date overflow");
    let by = match by {
        Number::Double(v) => Number::Double(v.round()).to_i64_exact(),
        Number::Decimal(_) => {
            let whole = by.to_decimal().quantize(0, Rounding::HalfEven);
            Number::Decimal(whole.pack()).to_i64_exact()
        }
        whole => whole.to_i64_exact(),
    };
    date.checked_add(by.ok_or_else(overflow)?)
        .ok_or_else(overflow)
}

fn subtract<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if any_nullish(values) {
        return Ok(Value::null());
    }
    let (left, right) = (values[0].or_null(), values[1].or_null());
    let wrong = || {
        type_mismatch(format!(
            "can't $subtract {} from {}",
            values[1].type_name(),
            values[0].type_name()
        ))
    };
    match (left, right) {
        (RawBsonRef::DateTime(a), RawBsonRef::DateTime(b)) => {
            let difference = a.timestamp_millis().checked_sub(b.timestamp_millis());
            let difference =
                difference.ok_or_else(|| error(15, "overflow in $subtract of dates"))?;
            Ok(Value::Ref(RawBsonRef::Int64(difference)))
        }
        (RawBsonRef::DateTime(a), right) => {
            let by = Number::from_value(right).ok_or_else(wrong)?;
            let moved = moved_date(a.timestamp_millis(), by.negate())?;
            Ok(Value::Ref(RawBsonRef::DateTime(DateTime::from_millis(
                moved,
            ))))
        }
        (left, right) => match (Number::from_value(left), Number::from_value(right)) {
            (Some(a), Some(b)) => Ok(signed_nan(values, a.sub_widening(b))),
            _ => Err(wrong()),
        },
    }
}

fn multiply<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let mut product = Number::Int32(1);
    let mut nullish = false;
    for value in values {
        if value.is_nullish() {
            nullish = true;
            continue;
        }
        let factor = numeric(value, |kind| {
            type_mismatch(format!("$multiply only supports numeric types, not {kind}"))
        })?;
        product = product.mul_widening(factor);
    }
    Ok(if nullish {
        Value::null()
    } else {
        signed_nan(values, product)
    })
}

fn divide<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if any_nullish(values) {
        return Ok(Value::null());
    }
    let wrong = |_: &str| {
        type_mismatch(format!(
            "$divide only supports numeric types, not {} and {}",
            values[0].type_name(),
            values[1].type_name()
        ))
    };
    let (a, b) = (numeric(&values[0], wrong)?, numeric(&values[1], wrong)?);
    if b.is_zero() {
        return Err(bad_value("can't $divide by zero"));
    }
    if is_decimal(a) || is_decimal(b) {
        let quotient = a.to_decimal() / b.to_decimal();
        return Ok(signed_nan(values, Number::Decimal(quotient.pack())));
    }
    Ok(number(Number::Double(a.to_f64() / b.to_f64())))
}

fn modulo<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if any_nullish(values) {
        return Ok(Value::null());
    }
    let wrong = |_: &str| {
        error(
            16611,
            format!(
                "$mod only supports numeric types, not {} and {}",
                values[0].type_name(),
                values[1].type_name()
            ),
        )
    };
    let (a, b) = (numeric(&values[0], wrong)?, numeric(&values[1], wrong)?);
    if is_decimal(a) || is_decimal(b) {
        if b.is_zero() {
            return Err(error(5733415, "can't $mod by zero"));
        }
        let rest = super::decimal::remainder(a.to_decimal(), b.to_decimal());
        return Ok(signed_nan(values, Number::Decimal(rest.pack())));
    }
    if b.is_zero() {
        return Err(error(16610, "can't $mod by zero"));
    }
    Ok(number(match (a, b) {
        (Number::Int32(a), Number::Int32(b)) => Number::Int32(a.wrapping_rem(b)),
        // A double that is whole is taken as an integer beside integers.
        (a, b) => match (a, b, a.to_i64_exact(), b.to_i64_exact()) {
            (Number::Double(_), _, _, _) | (_, Number::Double(_), _, _) => {
                Number::Double(a.to_f64() % b.to_f64())
            }
            (_, _, Some(a), Some(b)) => Number::Int64(a.wrapping_rem(b)),
            _ => Number::Double(a.to_f64() % b.to_f64()),
        },
    }))
}

/// An operator on one number, null for null.
fn unary<'a>(
    name: &str,
    code: i32,
    value: &Value<'a>,
    f: impl FnOnce(Number) -> Result<Value<'a>>,
) -> Result<Value<'a>> {
    if value.is_nullish() {
        return Ok(Value::null());
    }
    f(numeric(value, |kind| {
        error(
            code,
            format!("{name} only supports numeric types, not {kind}"),
        )
    })?)
}

fn abs<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    unary("$abs", 28765, &values[0], |n| {
        if let Number::Int64(i64::MIN) = n {
            return Err(error(28680, "can't take $abs of long long min"));
        }
        Ok(number(match n {
            Number::Double(v) => Number::Double(v.abs()),
            Number::Decimal(v) => {
                let mut bytes = v.bytes();
                bytes[15] &= 0x7f;
                Number::Decimal(pinion_bson::Decimal128::from_bytes(bytes))
            }
            n if n.is_negative() => n.negate(),
            n => n,
        }))
    })
}

/// `$ceil` and `$floor`.
fn whole<'a>(
    name: &str,
    value: &Value<'a>,
    f: fn(f64) -> f64,
    rounding: Rounding,
) -> Result<Value<'a>> {
    unary(name, 28765, value, |n| {
        Ok(number(match n {
            Number::Double(v) => Number::Double(f(v)),
            Number::Decimal(_) if !n.is_nan() => {
                Number::Decimal(n.to_decimal().quantize(0, rounding).pack())
            }
            n => n,
        }))
    })
}

/// `$round` and `$trunc`, to a decimal place.
fn to_place<'a>(name: &str, values: &[Value<'a>], round: bool) -> Result<Value<'a>> {
    let value = &values[0];
    let place_value = values.get(1);
    if value.is_nullish() || place_value.is_some_and(Value::is_nullish) {
        return Ok(Value::null());
    }
    let n = numeric(value, |kind| {
        error(
            51081,
            format!("{name} only supports numeric types, not {kind}"),
        )
    })?;
    let place = match place_value {
        None => 0,
        Some(place) => {
            let as_number = numeric(place, |kind| {
                error(
                    16004,
                    format!("can't convert from BSON type {kind} to long"),
                )
            })?;
            // Of a decimal NaN it is said that it is not integral.
            let unusable = !as_number.is_finite() || as_number.to_i64_truncated().is_none();
            if unusable && !(is_decimal(as_number) && as_number.is_nan()) {
                let code = if is_decimal(as_number) { 51080 } else { 31109 };
                let named = match as_number {
                    Number::Double(v) => crate::text::format_general(v, 6),
                    _ => crate::text::value_text(place.or_null()),
                };
                return Err(error(
                    code,
                    format!("Can't coerce out of range value {named} to long"),
                ));
            }
            let fits = |whole: &i64| i32::try_from(*whole).is_ok();
            let whole = as_number.to_i64_exact().filter(fits).ok_or_else(|| {
                error(
                    51082,
                    format!("precision argument to  {name} must be a integral value"),
                )
            })?;
            if !(-20..=100).contains(&whole) {
                return Err(error(
                    51083,
                    format!(
                        "cannot apply {name} with precision value {whole} value must be in [-20, 100]"
                    ),
                ));
            }
            whole as i32
        }
    };
    Ok(number(match n {
        Number::Double(v) => Number::Double(double_to_place(v, place, round)),
        // The result has exactly the digits that were asked for.
        Number::Decimal(_) => {
            let rounding = if round {
                Rounding::HalfEven
            } else {
                Rounding::TowardZero
            };
            // What has no room for them, or no end, stays as it is, with as many digits as there is
            // room for.
            match n.to_decimal().quantize(-place, rounding) {
                cut if !cut.is_nan() => Number::Decimal(cut.pack()),
                _ if n.is_finite() => Number::Decimal(widened(n.to_decimal()).pack()),
                _ => n,
            }
        }
        n if place >= 0 => n,
        n => {
            let whole = i128::from(n.to_i64_saturating());
            let unit = 10_i128.pow(place.unsigned_abs());
            let cut = whole / unit * unit;
            let rest = (whole - cut).abs();
            let half_even = |cut: i128| (cut / unit) % 2 != 0;
            let up = round && (rest * 2 > unit || (rest * 2 == unit && half_even(cut)));
            let result = if up { cut + whole.signum() * unit } else { cut };
            match (n, i32::try_from(result), i64::try_from(result)) {
                (Number::Int32(_), Ok(v), _) => Number::Int32(v),
                (_, _, Ok(v)) => Number::Int64(v),
                _ => {
                    return Err(error(
                        51080,
                        format!("invalid conversion from Decimal128 result in {name}"),
                    ));
                }
            }
        }
    }))
}

/// What is too small for a decimal, as zero with the least exponent; `None` for what is not.
fn least_of_zeros(power: Decimal128) -> Option<Decimal128> {
    let zero = Decimal::Finite {
        negative: false,
        coefficient: 0,
        exponent: MIN_EXPONENT,
    };
    Number::Decimal(power).is_zero().then(|| zero.pack())
}

/// The same number with 34 digits, where its exponent lies above those it could do without.
fn widened(number: Decimal) -> Decimal {
    let Decimal::Finite {
        negative,
        mut coefficient,
        mut exponent,
    } = number
    else {
        return number;
    };
    while exponent > 0 && coefficient != 0 && coefficient < 10_u128.pow(MAX_DIGITS - 1) {
        coefficient *= 10;
        exponent -= 1;
    }
    Decimal::Finite {
        negative,
        coefficient,
        exponent,
    }
}

fn double_to_place(v: f64, place: i32, round: bool) -> f64 {
    if !v.is_finite() {
        return v;
    }
    if place == 0 {
        return if round {
            v.round_ties_even()
        } else {
            v.trunc()
        };
    }
    let (coefficient, exponent) = if v == 0.0 {
        return v;
    } else {
        round_double(v.abs(), MAX_DIGITS, Rounding::HalfEven)
    };
    let exact = Decimal::Finite {
        negative: v < 0.0,
        coefficient,
        exponent,
    };
    let rounding = if round {
        Rounding::HalfEven
    } else {
        Rounding::TowardZero
    };
    // A number without room for this many places has none behind them.
    match exact.quantize(-place, rounding) {
        cut if cut.is_nan() => v,
        cut => cut.to_f64(),
    }
}

/// A function of a number: of a decimal to all its digits.
fn of_number<'a>(
    n: Number,
    of_double: fn(f64) -> f64,
    of_decimal: impl FnOnce(Decimal128) -> Result<Decimal128>,
) -> Result<Value<'a>> {
    Ok(number(match n {
        Number::Decimal(_) if n.is_nan() => n,
        Number::Decimal(value) => Number::Decimal(of_decimal(value)?),
        n => Number::Double(of_double(n.to_f64())),
    }))
}

fn sqrt<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    unary("$sqrt", 28765, &values[0], |n| {
        if n.is_negative() && !n.is_zero() {
            return Err(error(
                28714,
                "$sqrt's argument must be greater than or equal to 0",
            ));
        }
        of_number(n, f64::sqrt, |x| Ok(super::decimal::sqrt(x)))
    })
}

fn logarithm<'a>(
    name: &str,
    code: i32,
    value: &Value<'a>,
    of_double: fn(f64) -> f64,
    of_decimal: quad::Function,
) -> Result<Value<'a>> {
    unary(name, 28765, value, |n| {
        if !n.is_nan() && (n.is_negative() || n.is_zero()) {
            return Err(error(
                code,
                format!(
                    "{name}'s argument must be a positive number, but is {}",
                    crate::text::value_text(n.to_value())
                ),
            ));
        }
        if n.is_nan() {
            return Ok(number(Number::Double(f64::NAN)));
        }
        of_number(n, of_double, |x| quad::function(x, of_decimal))
    })
}

fn log<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if any_nullish(values) {
        return Ok(Value::null());
    }
    let argument = numeric(&values[0], |kind| {
        error(
            28756,
            format!("$log's argument must be numeric, not {kind}"),
        )
    })?;
    let base = numeric(&values[1], |kind| {
        error(28757, format!("$log's base must be numeric, not {kind}"))
    })?;
    let text = |n: Number| crate::text::value_text(n.to_value());
    if !argument.is_nan() && (argument.is_negative() || argument.is_zero()) {
        return Err(error(
            28758,
            format!(
                "$log's argument must be a positive number, but is {}",
                text(argument)
            ),
        ));
    }
    if !base.is_nan() && (base.is_negative() || base.is_zero() || base.to_f64() == 1.0) {
        return Err(error(
            28759,
            format!(
                "$log's base must be a positive number not equal to 1, but is {}",
                text(base)
            ),
        ));
    }
    let exact = is_decimal(argument) || is_decimal(base);
    if exact && !argument.is_nan() && !base.is_nan() {
        let logarithm =
            |n: Number| quad::function(n.to_decimal().pack(), quad::ln).map(Decimal::unpack);
        return Ok(decimal(logarithm(argument)? / logarithm(base)?));
    }
    Ok(number(Number::Double(
        argument.to_f64().ln() / base.to_f64().ln(),
    )))
}

fn pow<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if any_nullish(values) {
        return Ok(Value::null());
    }
    let base = numeric(&values[0], |kind| {
        error(28762, format!("$pow's base must be numeric, not {kind}"))
    })?;
    let exponent = numeric(&values[1], |kind| {
        error(
            28763,
            format!("$pow's exponent must be numeric, not {kind}"),
        )
    })?;
    if base.is_zero() && exponent.is_negative() && !exponent.is_zero() {
        return Err(error(
            28764,
            "$pow cannot take a base of 0 and a negative exponent",
        ));
    }
    if is_decimal(base) || is_decimal(exponent) {
        let power = quad::pow(base.to_decimal().pack(), exponent.to_decimal().pack())?;
        return Ok(signed_nan(values, Number::Decimal(power)));
    }
    let whole = match (base, exponent) {
        (Number::Double(_), _) | (_, Number::Double(_)) => None,
        (base, exponent) => base.to_i64_exact().zip(exponent.to_i64_exact()),
    };
    if let Some((b, e)) = whole {
        let exact = match e {
            0.. => u32::try_from(e)
                .ok()
                .and_then(|e| b.checked_pow(e))
                .or(match b {
                    0 | 1 => Some(b),
                    -1 => Some(if e % 2 == 0 { 1 } else { -1 }),
                    _ => None,
                }),
            _ => match b {
                1 => Some(1),
                -1 => Some(if e % 2 == 0 { 1 } else { -1 }),
                _ => None,
            },
        };
        if let Some(result) = exact {
            let both_int = matches!((base, exponent), (Number::Int32(_), Number::Int32(_)));
            return Ok(match i32::try_from(result) {
                Ok(small) if both_int => number(Number::Int32(small)),
                _ => number(Number::Int64(result)),
            });
        }
    }
    Ok(number(Number::Double(
        base.to_f64().powf(exponent.to_f64()),
    )))
}

/// The least or greatest of the arguments, or of the items of a single one that is an array; null
/// and missing ones are passed over.
fn extreme<'a>(
    values: &[Value<'a>],
    collation: Option<&Collation>,
    wanted: Ordering,
) -> Result<Value<'a>> {
    let better =
        |value: RawBsonRef<'_>, than: RawBsonRef<'_>| compare(collation, value, than) == wanted;
    let mut found: Option<RawBsonRef<'_>> = None;
    let all: SmallVec<[RawBsonRef<'_>; 4]> = match values.first().and_then(Value::as_array) {
        Some(array) if values.len() == 1 => items(array).collect(),
        _ => values.iter().filter_map(Value::as_ref).collect(),
    };
    for value in all.into_iter().filter(|value| !is_nullish(*value)) {
        if found.is_none_or(|found| better(value, found)) {
            found = Some(value);
        }
    }
    Ok(found.map_or(Value::null(), Value::copied))
}

/// An accumulator over the arguments, or over the items of a single one that is an array.
fn accumulate<'a>(kind: Kind, values: &[Value<'a>]) -> Result<Value<'a>> {
    let mut accumulator = Accumulator::new(&kind);
    match values {
        [one] if one.as_array().is_some() => {
            for item in one.item_values() {
                accumulator.add(item.as_ref())?;
            }
        }
        values => {
            for value in values {
                accumulator.add(value.as_ref())?;
            }
        }
    }
    Ok(Value::owned(accumulator.finish()))
}
