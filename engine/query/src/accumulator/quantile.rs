//! `$percentile` and `$median`: which quantiles are wanted, and their result.

use std::sync::Arc;

use pinion_bson::{Number, RawBson, RawBsonRef};
use pinion_wire::{Error, Result};

use super::list::List;
use crate::error::{bad_value, error, type_mismatch};
use crate::expression::{Expression, Variables};
use crate::text::value_text;
use crate::value::{elements, items, type_name};

/// The shares whose quantiles are wanted, each from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Quantiles {
    shares: Arc<[f64]>,
    /// One value for `$median`, an array for `$percentile`.
    median: bool,
}

/// The position, in order, of the value at a share of `count` values.
pub(crate) fn rank_of(count: usize, share: f64) -> usize {
    if share >= 1.0 {
        return count - 1;
    }
    ((count as f64 * share).ceil() as usize).max(1) - 1
}

impl Quantiles {
    pub(crate) fn new(shares: Vec<f64>, median: bool) -> Quantiles {
        Quantiles {
            shares: shares.into(),
            median,
        }
    }

    /// Parses the operand of `$percentile` or `$median`; gives what is wanted, and the input.
    pub(crate) fn parse<'a>(
        name: &str,
        operand: RawBsonRef<'a>,
        variables: &Variables,
    ) -> Result<(Quantiles, RawBsonRef<'a>)> {
        let median = name == "$median";
        let RawBsonRef::Document(spec) = operand else {
            return Err(error(
                if median { 7_436_100 } else { 7_429_703 },
                format!(
                    "specification must be an object; found {}",
                    value_text(operand)
                ),
            ));
        };
        let (mut input, mut shares, mut method) = (None, None, None);
        for (field, value) in elements(spec) {
            let place = match field {
                "input" => &mut input,
                "p" if !median => &mut shares,
                "method" => &mut method,
                _ => {
                    return Err(error(
                        40415,
                        format!("BSON field '{name}.{field}' is an unknown field."),
                    ));
                }
            };
            if place.replace(value).is_some() {
                return Err(error(
                    40413,
                    format!("BSON field '{name}.{field}' is a duplicate field"),
                ));
            }
            if field == "method" {
                check_method(name, value)?;
            }
        }
        let missing = |field: &str| {
            error(
                40414,
                format!("BSON field '{name}.{field}' is missing but a required field"),
            )
        };
        let input = input.ok_or_else(|| missing("input"))?;
        let shares: Arc<[f64]> = if median {
            Arc::new([0.5])
        } else {
            parse_shares(shares.ok_or_else(|| missing("p"))?, variables)?.into()
        };
        method.ok_or_else(|| missing("method"))?;
        Ok((Quantiles { shares, median }, input))
    }

    pub(crate) fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// The quantiles of values in ascending order.
    pub(crate) fn of_sorted(&self, sorted: &[f64]) -> RawBson {
        let at = |share: &f64| sorted[rank_of(sorted.len(), *share)];
        self.result((!sorted.is_empty()).then(|| self.shares.iter().map(at).collect()))
    }

    /// The result for quantiles, `None` where there were no values.
    pub(crate) fn result(&self, quantiles: Option<Vec<f64>>) -> RawBson {
        let values: Vec<RawBson> = match quantiles {
            Some(quantiles) => quantiles.into_iter().map(RawBson::Double).collect(),
            None => vec![RawBson::Null; self.shares.len()],
        };
        if self.median {
            return values.into_iter().next().unwrap_or(RawBson::Null);
        }
        List::of(values.iter().map(RawBson::as_raw_bson_ref))
    }
}

fn check_method(name: &str, method: RawBsonRef<'_>) -> Result<()> {
    match method {
        RawBsonRef::String("approximate") => Ok(()),
        RawBsonRef::String(_) => Err(bad_value(
            "Currently only 'approximate' can be used as percentile 'method'.",
        )),
        other => Err(type_mismatch(format!(
            "BSON field '{name}.method' is the wrong type '{}', expected type 'string'",
            type_name(other)
        ))),
    }
}

fn parse_shares(value: RawBsonRef<'_>, variables: &Variables) -> Result<Vec<f64>> {
    let wrong = |code: i32, what: String| -> Error {
        error(
            code,
            format!(
                "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found{what}"
            ),
        )
    };
    let Some(constant) = Expression::parse(value, variables)?.constant() else {
        return Err(error(
            7_750_300,
            format!(
                "The $percentile 'p' field must be an array of constant values, but found value: {}.",
                value_text(value)
            ),
        ));
    };
    let RawBson::Array(array) = &constant else {
        return Err(wrong(
            7_750_301,
            format!(": {}", value_text(constant.as_raw_bson_ref())),
        ));
    };
    let mut shares = Vec::new();
    for item in items(array) {
        let Some(number) = Number::from_value(item) else {
            return Err(wrong(7_750_302, format!(" element: {}", value_text(item))));
        };
        let share = number.to_f64();
        if !(0.0..=1.0).contains(&share) {
            return Err(wrong(7_750_303, format!(" element: {}", value_text(item))));
        }
        shares.push(share);
    }
    if shares.is_empty() {
        return Err(wrong(7_750_301, " an empty array".into()));
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawbson;

    #[test]
    fn ranks_round_up() {
        let ranks = |count| [0.0, 0.25, 0.5, 0.9, 1.0].map(|share| rank_of(count, share));
        assert_eq!(ranks(1), [0, 0, 0, 0, 0]);
        assert_eq!(ranks(2), [0, 0, 0, 1, 1]);
        assert_eq!(ranks(10), [0, 2, 4, 8, 9]);
    }

    #[track_caller]
    fn check_error(name: &str, operand: RawBson, code: i32) {
        let found = Quantiles::parse(name, operand.as_raw_bson_ref(), &Variables::default());
        assert_eq!(found.unwrap_err().code.0, code, "{name} {operand:?}");
    }

    #[test]
    fn errors() {
        let with = |p: RawBson| rawbson!({ "input": "$x", "p": p, "method": "approximate" });
        check_error("$percentile", rawbson!([0.5]), 7_429_703);
        check_error("$median", rawbson!("$x"), 7_436_100);
        check_error("$percentile", with(rawbson!([])), 7_750_301);
        check_error("$percentile", with(RawBson::Null), 7_750_301);
        check_error("$percentile", with(rawbson!(["a"])), 7_750_302);
        check_error("$percentile", with(rawbson!([0.1, 1.5])), 7_750_303);
        check_error("$percentile", with(rawbson!("$y")), 7_750_300);
        check_error("$percentile", rawbson!({ "input": 1, "p": [0.5] }), 40414);
        check_error("$median", rawbson!({ "input": 1, "p": [0.5] }), 40415);
        for method in [rawbson!("discrete"), rawbson!("continuous")] {
            check_error("$median", rawbson!({ "input": 1, "method": method }), 2);
        }
        check_error("$median", rawbson!({ "input": 1, "method": 1 }), 14);
    }
}
