//! The functions of an output: `{$sum: "$x", window: {...}}`.

use pinion_bson::decimal::Decimal;
use pinion_bson::{Number, RawBson, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::bounds::{Bounds, parse_unit};
use super::held::Element;
use super::parse_series::{
    parse_carried_forward, parse_interpolated, parse_moving_average, parse_rank, parse_shift,
};
use crate::accumulator::{Accumulation, Kind};
use crate::error::failed_to_parse;
use crate::expression::{Expression, MetaSet, TimeUnit, Variables};
use crate::operator_uses::{OperatorKind, note};
use crate::pipeline::Document;
use crate::sort::SortPattern;
use crate::text::{document_text, value_text};
use crate::value::elements;
use crate::work::spend_bytes;

/// A parsed function.
#[derive(Clone, Debug)]
pub(super) enum Function {
    /// Of the documents in a window.
    Framed { what: Box<What>, bounds: Bounds },
    /// Of the documents up to the current one, or of a set distance from it.
    Series {
        what: SeriesKind,
        input: Option<Expression>,
    },
}

/// What is computed of a window.
#[derive(Clone, Debug)]
pub(super) enum What {
    Accumulation(Accumulation),
    Covariance {
        sample: bool,
        pair: Expression,
    },
    Derivative {
        input: Expression,
        unit: Option<TimeUnit>,
    },
    Integral {
        input: Expression,
        unit: Option<TimeUnit>,
    },
    /// `$minMaxScaler` with the range of its results.
    Scaler {
        input: Expression,
        least: Number,
        greatest: Number,
    },
}

#[derive(Clone, Debug)]
pub(super) enum SeriesKind {
    Rank,
    DenseRank,
    DocumentNumber,
    /// `$expMovingAvg` with the weight of each new value.
    MovingAverage(Decimal),
    /// `$locf`
    CarriedForward,
    /// `$linearFill`
    Interpolated,
    /// `$shift`
    Shifted {
        by: i64,
        default: RawBson,
    },
}

/// The functions that a `window` may stand beside, but for the accumulators.
const FRAMED: &[&str] = &[
    "$covariancePop",
    "$covarianceSamp",
    "$derivative",
    "$integral",
    "$minMaxScaler",
];

/// Accumulators of several arguments; those of one expression are known by their kind.
const OF_SEVERAL: &[&str] = &[
    "$bottom",
    "$bottomN",
    "$count",
    "$firstN",
    "$lastN",
    "$maxN",
    "$median",
    "$minN",
    "$percentile",
    "$top",
    "$topN",
];

const SERIES: &[&str] = &[
    "$denseRank",
    "$documentNumber",
    "$expMovingAvg",
    "$linearFill",
    "$locf",
    "$rank",
    "$shift",
];

fn is_accumulator(name: &str) -> bool {
    OF_SEVERAL.contains(&name)
        || Kind::of_one_expression(name).is_some_and(|kind| kind != Kind::MergeObjects)
}

fn is_function(name: &str) -> bool {
    is_accumulator(name) || FRAMED.contains(&name) || SERIES.contains(&name)
}

/// What functions are parsed with.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// The order of the partitions.
    pub sort: Option<&'a SortPattern>,
    pub variables: &'a Variables,
}

impl Context<'_> {
    pub(super) fn expression(&self, value: RawBsonRef<'_>) -> Result<Expression> {
        Expression::parse(value, self.variables)
    }

    /// How many fields the partitions are sorted by.
    pub(super) fn sort_fields(&self) -> usize {
        self.sort.map_or(0, |sort| sort.fields().count())
    }
}

impl Function {
    pub(super) fn parse(spec: &RawDocument, context: Context<'_>) -> Result<Function> {
        let Some((name, operand)) = elements(spec).find(|(name, _)| name.starts_with('$')) else {
            return Err(failed_to_parse(format!(
                "Expected a $-prefixed window function, {}",
                document_text(spec)
            )));
        };
        note(OperatorKind::WindowFunction, name);
        match name {
            "$rank" => parse_rank(SeriesKind::Rank, name, spec, context),
            "$denseRank" => parse_rank(SeriesKind::DenseRank, name, spec, context),
            "$documentNumber" => parse_rank(SeriesKind::DocumentNumber, name, spec, context),
            "$expMovingAvg" => parse_moving_average(spec, operand, context),
            "$locf" => parse_carried_forward(spec, operand, context),
            "$linearFill" => parse_interpolated(spec, operand, context),
            "$shift" => parse_shift(spec, context),
            name if is_function(name) => parse_framed(spec, context),
            name => Err(failed_to_parse(format!(
                "Unrecognized window function, {name}"
            ))),
        }
    }

    /// Whether the value that the partitions are sorted by is needed of each document.
    pub(super) fn needs_time(&self) -> bool {
        match self {
            Function::Framed { what, bounds } => {
                bounds.is_range()
                    || matches!(**what, What::Derivative { .. } | What::Integral { .. })
            }
            Function::Series { what, .. } => matches!(what, SeriesKind::Interpolated),
        }
    }

    /// What is read beside the documents.
    pub(super) fn reads(&self) -> MetaSet {
        match self {
            Function::Framed { what, .. } => match &**what {
                What::Accumulation(accumulation) => accumulation.reads(),
                What::Covariance { pair: input, .. }
                | What::Derivative { input, .. }
                | What::Integral { input, .. }
                | What::Scaler { input, .. } => input.reads(),
            },
            Function::Series { input, .. } => {
                input.as_ref().map(Expression::reads).unwrap_or_default()
            }
        }
    }

    /// What a document gives the function; `time` is the value that the partitions are sorted by.
    pub(super) fn element(
        &self,
        document: &Document,
        time: Option<&RawBson>,
        sort: Option<&SortPattern>,
    ) -> Result<Element> {
        let owned = |expression: &Expression| -> Result<Option<RawBson>> {
            let value = expression.evaluate(document)?;
            spend_bytes(value.bytes())?;
            Ok(value.into_owned())
        };
        let (value, key) = match self {
            Function::Framed { what, .. } => match &**what {
                What::Accumulation(accumulation) => {
                    let input = accumulation.input(document)?;
                    spend_bytes(input.value.bytes())?;
                    (input.value.into_owned(), input.key)
                }
                What::Covariance { pair, .. } => (owned(pair)?, Vec::new()),
                What::Derivative { input, .. }
                | What::Integral { input, .. }
                | What::Scaler { input, .. } => (owned(input)?, Vec::new()),
            },
            Function::Series { what, input } => {
                let key = match (what, sort) {
                    (SeriesKind::Rank | SeriesKind::DenseRank, Some(sort)) => {
                        sort.value_key(document)?
                    }
                    _ => Vec::new(),
                };
                let value = input.as_ref().map(owned).transpose()?;
                (value.flatten(), key)
            }
        };
        let time = if self.needs_time() {
            time.cloned()
        } else {
            None
        };
        Ok(Element { value, key, time })
    }
}

/// A function with a window beside it.
fn parse_framed(spec: &RawDocument, context: Context<'_>) -> Result<Function> {
    let (mut what, mut bounds) = (None, None);
    for (name, value) in elements(spec) {
        if name == "window" {
            bounds = Some(Bounds::parse(value, context.sort, context.variables)?);
        } else if is_function(name) {
            if what.is_some() {
                return Err(failed_to_parse(
                    "Cannot specify multiple functions in window function spec",
                ));
            }
            what = Some(parse_what(name, value, context)?);
        } else {
            return Err(failed_to_parse(format!(
                "Window function found an unknown argument: {name}"
            )));
        }
    }
    let what = what.ok_or_else(|| failed_to_parse("Expected a $-prefixed window function"))?;
    if let (What::Derivative { .. }, None) = (&what, &bounds) {
        return Err(failed_to_parse(
            "$derivative requires explicit window bounds",
        ));
    }
    Ok(Function::Framed {
        what: Box::new(what),
        bounds: bounds.unwrap_or(Bounds::WHOLE),
    })
}

fn parse_what(name: &str, operand: RawBsonRef<'_>, context: Context<'_>) -> Result<What> {
    Ok(match name {
        "$covariancePop" | "$covarianceSamp" => What::Covariance {
            sample: name == "$covarianceSamp",
            pair: context.expression(operand)?,
        },
        "$derivative" => {
            let (input, unit) = parse_over_time(name, operand, context)?;
            What::Derivative { input, unit }
        }
        "$integral" => {
            let (input, unit) = parse_over_time(name, operand, context)?;
            What::Integral { input, unit }
        }
        "$minMaxScaler" => parse_scaler(operand, context)?,
        name => match Accumulation::parse(name, operand, context.variables)? {
            Some(accumulation) => What::Accumulation(accumulation),
            None => {
                return Err(failed_to_parse(format!(
                    "Cannot specify {name} beside another window function"
                )));
            }
        },
    })
}

/// `{input, unit}` of `$derivative` and `$integral`.
fn parse_over_time(
    name: &str,
    operand: RawBsonRef<'_>,
    context: Context<'_>,
) -> Result<(Expression, Option<TimeUnit>)> {
    match context.sort_fields() {
        0 => return Err(failed_to_parse(format!("{name} requires a sortBy"))),
        1 => {}
        _ => {
            return Err(failed_to_parse(format!(
                "{name} requires a non-compound sortBy"
            )));
        }
    }
    let RawBsonRef::Document(arguments) = operand else {
        return Err(failed_to_parse(format!(
            "{name} expects an object, but found {}",
            value_text(operand)
        )));
    };
    let (mut input, mut unit) = (None, None);
    for (argument, value) in elements(arguments) {
        match argument {
            "input" => input = Some(context.expression(value)?),
            "unit" => {
                let parsed = parse_unit(value)?;
                if parsed.fixed_ms().is_none() {
                    return Err(failed_to_parse("unit must be 'week' or smaller"));
                }
                unit = Some(parsed);
            }
            other => {
                return Err(failed_to_parse(format!(
                    "{name} got unexpected argument: {other}"
                )));
            }
        }
    }
    let input =
        input.ok_or_else(|| failed_to_parse(format!("{name} requires an 'input' expression")))?;
    Ok((input, unit))
}

/// An expression, or `{input, min, max}`.
fn parse_scaler(operand: RawBsonRef<'_>, context: Context<'_>) -> Result<What> {
    let arguments = match operand {
        RawBsonRef::Document(document)
            if elements(document).any(|(name, _)| !name.starts_with('$')) =>
        {
            document
        }
        other => {
            return Ok(What::Scaler {
                input: context.expression(other)?,
                least: Number::Int32(0),
                greatest: Number::Int32(1),
            });
        }
    };
    let (mut input, mut least, mut greatest) = (None, Number::Int32(0), Number::Int32(1));
    let constant = |name: &str, value: RawBsonRef<'_>| {
        let constant = context.expression(value)?.constant();
        let number = constant.and_then(|v| Number::from_value(v.as_raw_bson_ref()));
        number.ok_or_else(|| {
            failed_to_parse(format!(
                "'{name}' argument to $minMaxScaler must be a constant number, but found {}",
                value_text(value)
            ))
        })
    };
    for (name, value) in elements(arguments) {
        match name {
            "input" => input = Some(context.expression(value)?),
            "min" => least = constant(name, value)?,
            "max" => greatest = constant(name, value)?,
            other => {
                return Err(failed_to_parse(format!(
                    "$minMaxScaler got unexpected argument: {other}"
                )));
            }
        }
    }
    if !least.compare(greatest).is_lt() {
        return Err(failed_to_parse(
            "'min' argument to $minMaxScaler must be less than 'max'",
        ));
    }
    Ok(What::Scaler {
        input: input
            .ok_or_else(|| failed_to_parse("$minMaxScaler requires an 'input' expression"))?,
        least,
        greatest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawbson, rawdoc};

    fn parse(spec: &RawBson, sort: Option<RawDocumentBuf>) -> Result<Function> {
        let RawBson::Document(spec) = spec else {
            panic!("a document");
        };
        let sort = sort.map(|pattern| SortPattern::parse(&pattern).expect("a sort"));
        Function::parse(
            spec,
            Context {
                sort: sort.as_ref(),
                variables: &Variables::default(),
            },
        )
    }

    #[track_caller]
    fn check_error(spec: RawBson, code: i32) {
        let failed = parse(&spec, Some(rawdoc! { "t": 1 })).expect_err("it is refused");
        assert_eq!(failed.code.0, code, "{spec:?}");
    }

    #[test]
    fn all_functions_parse() {
        for spec in [
            rawbson!({ "$sum": ["$x", 1], "window": { "documents": [-1, 1] } }),
            rawbson!({ "$count": {} }),
            rawbson!({ "$topN": { "n": 2, "sortBy": { "x": 1 }, "output": "$x" } }),
            rawbson!({ "$percentile": { "input": "$x", "p": [0.5], "method": "approximate" } }),
            rawbson!({ "$covariancePop": ["$x", "$y"] }),
            rawbson!({ "$derivative": { "input": "$x", "unit": "hour" }, "window": { "range": [-1, 0], "unit": "day" } }),
            rawbson!({ "$integral": { "input": "$x" } }),
            rawbson!({ "$minMaxScaler": "$x" }),
            rawbson!({ "$minMaxScaler": { "$add": ["$x", 1] } }),
            rawbson!({ "$minMaxScaler": { "input": "$x", "min": 1, "max": 2.5 } }),
            rawbson!({ "$rank": {} }),
            rawbson!({ "$denseRank": {} }),
            rawbson!({ "$documentNumber": {} }),
            rawbson!({ "$expMovingAvg": { "input": "$x", "N": 2 } }),
            rawbson!({ "$expMovingAvg": { "input": "$x", "alpha": 0.5 } }),
            rawbson!({ "$locf": "$x" }),
            rawbson!({ "$linearFill": "$x" }),
            rawbson!({ "$shift": { "output": "$x", "by": -1, "default": { "$add": [1, 1] } } }),
        ] {
            if let Err(e) = parse(&spec, Some(rawdoc! { "t": 1 })) {
                panic!("{spec:?}: {e:?}");
            }
        }
    }

    #[test]
    fn errors_of_form() {
        for spec in [
            rawbson!({}),
            rawbson!({ "window": { "documents": [-1, 1] } }),
            rawbson!({ "$foo": "$x" }),
            rawbson!({ "$mergeObjects": "$x" }),
            rawbson!({ "$sum": "$x", "$avg": "$x" }),
            rawbson!({ "$sum": "$x", "$rank": {} }),
            rawbson!({ "$sum": "$x", "y": 1 }),
            rawbson!({ "$count": 1 }),
            rawbson!({ "$derivative": { "input": "$x" } }),
            rawbson!({ "$derivative": "$x", "window": {} }),
            rawbson!({ "$derivative": { "unit": "hour" }, "window": {} }),
            rawbson!({ "$derivative": { "input": "$x", "unit": "month" }, "window": {} }),
            rawbson!({ "$derivative": { "input": "$x", "y": 1 }, "window": {} }),
            rawbson!({ "$minMaxScaler": { "input": "$x", "min": 1, "max": 1 } }),
            rawbson!({ "$minMaxScaler": { "input": "$x", "min": "$y" } }),
            rawbson!({ "$minMaxScaler": { "min": 1 } }),
            rawbson!({ "$expMovingAvg": "$x" }),
            rawbson!({ "$expMovingAvg": { "input": "$x" } }),
            rawbson!({ "$expMovingAvg": { "input": "$x", "N": 2, "alpha": 0.5 } }),
            rawbson!({ "$expMovingAvg": { "input": "$x", "N": 0 } }),
            rawbson!({ "$expMovingAvg": { "input": "$x", "N": 1.5 } }),
            rawbson!({ "$expMovingAvg": { "input": "$x", "alpha": 1 } }),
            rawbson!({ "$expMovingAvg": { "input": "$x", "alpha": 0.5 }, "window": {} }),
            rawbson!({ "$locf": "$x", "window": {} }),
            rawbson!({ "$linearFill": "$x", "window": {} }),
            rawbson!({ "$shift": "$x" }),
            rawbson!({ "$shift": { "output": "$x" } }),
            rawbson!({ "$shift": { "by": 1 } }),
            rawbson!({ "$shift": { "output": "$x", "by": 1.5 } }),
            rawbson!({ "$shift": { "output": "$x", "by": 1, "default": "$x" } }),
            rawbson!({ "$shift": { "output": "$x", "by": 1, "y": 1 } }),
            rawbson!({ "$shift": { "output": "$x", "by": 1 }, "window": {} }),
        ] {
            check_error(spec, 9);
        }
    }

    #[test]
    fn other_errors() {
        check_error(rawbson!({ "$rank": {}, "window": {} }), 5_371_601);
        check_error(rawbson!({ "$rank": 1 }), 5_371_603);
        check_error(rawbson!({ "$sum": { "$foo": 1 } }), 168);
        check_error(rawbson!({ "$firstN": { "input": "$x" } }), 5_787_906);
        for (spec, code) in [
            (rawbson!({ "$rank": {} }), 5_371_602),
            (rawbson!({ "$linearFill": "$x" }), 605_001),
            (rawbson!({ "$expMovingAvg": { "input": "$x", "N": 2 } }), 9),
            (rawbson!({ "$shift": { "output": "$x", "by": 1 } }), 9),
            (rawbson!({ "$integral": { "input": "$x" } }), 9),
        ] {
            let failed = parse(&spec, None).expect_err("it needs an order");
            assert_eq!(failed.code.0, code, "{spec:?}");
        }
    }
}
