//! Parsing of the functions of a window's whole partition: ranks, averages, fillings and shifts.

use pinion_bson::decimal::Decimal;
use pinion_bson::{Number, RawBson, RawBsonRef, RawDocument};
use pinion_wire::{Error, Result};

use super::function::{Context, Function, SeriesKind};
use crate::error::{error, failed_to_parse};
use crate::number::exact_i64;
use crate::text::value_text;
use crate::value::{count, elements, field, is_empty, is_number};

/// `$rank` and its kin, which have no arguments.
pub(super) fn parse_rank(
    what: SeriesKind,
    name: &str,
    spec: &RawDocument,
    context: Context<'_>,
) -> Result<Function> {
    if count(spec) > 1 {
        return Err(error(
            5_371_601,
            "Rank style window functions take no other arguments",
        ));
    }
    if context.sort_fields() != 1 {
        return Err(error(
            5_371_602,
            format!(
                "{name} must be specified with a top level sortBy expression with exactly one element"
            ),
        ));
    }
    match field(spec, name) {
        Some(RawBsonRef::Document(arguments)) if is_empty(arguments) => {
            Ok(Function::Series { what, input: None })
        }
        _ => Err(error(
            5_371_603,
            format!("{name} must be specified with '{{}}' as the value"),
        )),
    }
}

fn only_argument(spec: &RawDocument, name: &str) -> Result<()> {
    match elements(spec).find(|(other, _)| *other != name) {
        None => Ok(()),
        Some(("window", _)) => Err(failed_to_parse(format!(
            "'window' field is not allowed in {name}"
        ))),
        Some((other, _)) => Err(failed_to_parse(format!(
            "{name} got unexpected argument: {other}"
        ))),
    }
}

pub(super) fn parse_moving_average(
    spec: &RawDocument,
    operand: RawBsonRef<'_>,
    context: Context<'_>,
) -> Result<Function> {
    let form = || {
        failed_to_parse(
            "$expMovingAvg sub object must have exactly two fields: An 'input' field, and either an 'N' field or an \
             'alpha' field",
        )
    };
    let RawBsonRef::Document(arguments) = operand else {
        return Err(failed_to_parse(
            "$expMovingAvg must have exactly one argument that is an object",
        ));
    };
    if count(spec) > 1 {
        return Err(failed_to_parse(
            "$expMovingAvg must have exactly one argument that is an object",
        ));
    }
    if context.sort_fields() == 0 {
        return Err(failed_to_parse(
            "$expMovingAvg requires an explicit 'sortBy'",
        ));
    }
    let input = field(arguments, "input").filter(|_| count(arguments) == 2);
    let input = context.expression(input.ok_or_else(form)?)?;
    let weight = match (field(arguments, "N"), field(arguments, "alpha")) {
        (Some(number), None) => {
            let wrong = || -> Error {
                failed_to_parse(format!(
                    "'N' field must be an integer greater than zero. Got {}",
                    value_text(number)
                ))
            };
            let number = exact_i64(number).filter(|n| *n > 0).ok_or_else(wrong)?;
            Decimal::from_i64(2) / (Decimal::from_i64(number) + Decimal::from_i64(1))
        }
        (None, Some(alpha)) => {
            let Some(number) = Number::from_value(alpha) else {
                return Err(failed_to_parse(format!(
                    "'alpha' must be a number, but found {}",
                    value_text(alpha)
                )));
            };
            let within = number.compare(Number::Int32(0)).is_gt()
                && number.compare(Number::Int32(1)).is_lt();
            if !within {
                return Err(failed_to_parse(format!(
                    "'alpha' must be between 0 and 1 (exclusive), found {}",
                    value_text(alpha)
                )));
            }
            number.to_decimal()
        }
        _ => return Err(form()),
    };
    Ok(Function::Series {
        what: SeriesKind::MovingAverage(weight),
        input: Some(input),
    })
}

pub(super) fn parse_carried_forward(
    spec: &RawDocument,
    operand: RawBsonRef<'_>,
    context: Context<'_>,
) -> Result<Function> {
    only_argument(spec, "$locf")?;
    Ok(Function::Series {
        what: SeriesKind::CarriedForward,
        input: Some(context.expression(operand)?),
    })
}

pub(super) fn parse_interpolated(
    spec: &RawDocument,
    operand: RawBsonRef<'_>,
    context: Context<'_>,
) -> Result<Function> {
    only_argument(spec, "$linearFill")?;
    if context.sort_fields() != 1 {
        return Err(error(
            605_001,
            "$linearFill must be specified with a top level sortBy expression with exactly one element",
        ));
    }
    Ok(Function::Series {
        what: SeriesKind::Interpolated,
        input: Some(context.expression(operand)?),
    })
}

pub(super) fn parse_shift(spec: &RawDocument, context: Context<'_>) -> Result<Function> {
    if context.sort_fields() == 0 {
        return Err(failed_to_parse("'$shift' requires a 'sortBy'"));
    }
    only_argument(spec, "$shift")?;
    let Some(RawBsonRef::Document(arguments)) = field(spec, "$shift") else {
        return Err(failed_to_parse("Argument to $shift must be an object"));
    };
    let (mut output, mut by, mut default) = (None, None, RawBson::Null);
    for (name, value) in elements(arguments) {
        match name {
            "output" => output = Some(context.expression(value)?),
            "by" => {
                let whole = Some(value).filter(|v| is_number(*v)).and_then(exact_i64);
                let whole = whole.filter(|by| i32::try_from(*by).is_ok());
                by = Some(whole.ok_or_else(|| {
                    failed_to_parse(format!(
                        "'$shift:by' field must be an integer, but found {}",
                        value_text(value)
                    ))
                })?);
            }
            "default" => {
                default = context.expression(value)?.constant().ok_or_else(|| {
                    failed_to_parse("'$shift:default' expression must yield a constant value.")
                })?;
            }
            other => {
                return Err(failed_to_parse(format!(
                    "Unknown argument in $shift: {other}"
                )));
            }
        }
    }
    let by = by.ok_or_else(|| failed_to_parse("$shift requires 'by' as an integer value."))?;
    Ok(Function::Series {
        what: SeriesKind::Shifted { by, default },
        input: Some(
            output.ok_or_else(|| failed_to_parse("$shift requires 'output' to be specified."))?,
        ),
    })
}
