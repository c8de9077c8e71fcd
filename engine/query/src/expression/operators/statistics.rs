//! `$percentile` and `$median` of the numbers of an array.

use pinion_bson::{Number, RawBsonRef};
use pinion_wire::Result;

use super::{Arity, Operator, Value};
use crate::accumulator::{List, Quantiles};
use crate::error::error;
use crate::expression::parse::{Expr, Parser};
use crate::text::value_text;
use crate::value::items;
use crate::work::{STEP, Units, spend};

static PERCENTILE: Operator = Operator {
    name: "$percentile",
    arity: Arity::Any,
    evaluate: |v| quantiles(v, false),
};
static MEDIAN: Operator = Operator {
    name: "$median",
    arity: Arity::Any,
    evaluate: |v| quantiles(v, true),
};

/// The input, and the shares whose quantiles are wanted.
pub(super) fn parse(parser: &mut Parser<'_>, name: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    if !matches!(operand, RawBsonRef::Document(_)) {
        let code = match name {
            "$median" => 7_436_201,
            _ => 7_436_200,
        };
        return Err(error(
            code,
            format!(
                "specification must be an object; found {}",
                value_text(operand)
            ),
        ));
    }
    let (wanted, input) = Quantiles::parse(name, operand, parser.variables())?;
    let operator = match name {
        "$median" => &MEDIAN,
        _ => &PERCENTILE,
    };
    let shares = List::of(wanted.shares().iter().map(|v| RawBsonRef::Double(*v)));
    Ok(Expr::Call(
        operator,
        vec![parser.parse(input)?, Expr::literal(shares)],
    ))
}

fn quantiles<'a>(values: &[Value<'a>], median: bool) -> Result<Value<'a>> {
    let [input, shares] = values else {
        return Ok(Value::null());
    };
    let numbers = |value: &Value<'_>| -> Vec<f64> {
        let number = |item| Some(Number::from_value(item)?.to_f64());
        let mut found: Vec<f64> = match value.as_ref() {
            Some(RawBsonRef::Array(array)) => items(array).filter_map(number).collect(),
            other => other.and_then(number).into_iter().collect(),
        };
        found.retain(|v| !v.is_nan());
        found
    };
    let mut sorted = numbers(input);
    // Each is compared with some ten to twenty others.
    spend(10 * STEP * sorted.len() as Units)?;
    sorted.sort_unstable_by(f64::total_cmp);
    let wanted = Quantiles::new(numbers(shares), median);
    Ok(Value::owned(wanted.of_sorted(&sorted)))
}
