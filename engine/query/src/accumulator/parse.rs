//! Accumulators as stages name them: `{$sum: <expression>}`, `{$topN: {n, sortBy, output}}`.

use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::kind::Kind;
use super::ordered::Ordered;
use super::quantile::Quantiles;
use super::state::Accumulator;
use crate::error::error;
use crate::expression::{Expression, MetaSet, Subject, Value, Variables};
use crate::field_walk::FieldWalk;
use crate::number::exact_i64;
use crate::sort::SortPattern;
use crate::text::value_text;
use crate::value::{elements, is_empty, is_number};

/// A parsed accumulator.
#[derive(Clone, Debug)]
pub(crate) struct Accumulation {
    kind: Kind,
    argument: Expression,
    /// How many values are kept: an expression over the group's key.
    number: Option<Expression>,
    /// The order of `$top` and its kin.
    order: Option<SortPattern>,
    collation: Option<Arc<Collation>>,
}

/// What a document gives an accumulator: a value, and its key where values are ordered by one.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub value: Value<'a>,
    pub key: Vec<u8>,
}

impl Accumulation {
    /// Parses an accumulator by its name; `None` where there is none of that name.
    pub(crate) fn parse(
        name: &str,
        operand: RawBsonRef<'_>,
        variables: &Variables,
    ) -> Result<Option<Accumulation>> {
        Ok(Some(match name {
            "$count" => {
                if !matches!(operand, RawBsonRef::Document(document) if is_empty(document)) {
                    return Err(error(9, "$count takes no arguments, i.e. $count:{}"));
                }
                Accumulation::plain(Kind::Count, RawBsonRef::Null, variables)?
            }
            "$firstN" => parse_n(Kind::FirstN, operand, variables)?,
            "$lastN" => parse_n(Kind::LastN, operand, variables)?,
            "$minN" => parse_n(Kind::MinN, operand, variables)?,
            "$maxN" => parse_n(Kind::MaxN, operand, variables)?,
            "$top" => parse_ranked(Kind::Top, name, operand, variables)?,
            "$bottom" => parse_ranked(Kind::Bottom, name, operand, variables)?,
            "$topN" => parse_ranked(Kind::TopN, name, operand, variables)?,
            "$bottomN" => parse_ranked(Kind::BottomN, name, operand, variables)?,
            "$percentile" | "$median" => {
                let (quantiles, input) = Quantiles::parse(name, operand, variables)?;
                Accumulation::plain(Kind::Quantiles(quantiles), input, variables)?
            }
            name => match Kind::of_one_expression(name) {
                Some(kind) => Accumulation::plain(kind, operand, variables)?,
                None => return Ok(None),
            },
        }))
    }

    /// An accumulator of one expression.
    pub(crate) fn plain(
        kind: Kind,
        argument: RawBsonRef<'_>,
        variables: &Variables,
    ) -> Result<Accumulation> {
        let argument = Expression::parse(argument, variables)?;
        let kind = match (&kind, argument.constant()) {
            (Kind::Sum, Some(RawBson::Int32(1))) => Kind::Count,
            _ => kind,
        };
        Ok(Accumulation {
            kind,
            argument,
            number: None,
            order: None,
            collation: variables.collation.clone(),
        })
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// What is read beside the documents.
    pub(crate) fn reads(&self) -> MetaSet {
        let order = self.order.as_ref().map(SortPattern::reads);
        self.argument.reads().union(order.unwrap_or_default())
    }

    /// How strings compare.
    pub(crate) fn collation(&self) -> Option<&Arc<Collation>> {
        self.collation.as_ref()
    }

    /// How many values are kept for the group of this key.
    pub(crate) fn wanted(&self, key: RawBsonRef<'_>) -> Result<usize> {
        let Some(number) = &self.number else {
            return Ok(1);
        };
        let nothing = RawDocumentBuf::new();
        let document = match key {
            RawBsonRef::Document(key) => key,
            _ => &*nothing,
        };
        check_number(number.evaluate(document)?.or_null())
    }

    /// An empty state for the group of this key.
    pub(crate) fn start(&self, key: RawBsonRef<'_>) -> Result<Accumulator> {
        let started = Accumulator::with_number(&self.kind, self.wanted(key)?);
        Ok(started.with_collation(self.collation.as_ref()))
    }

    /// An empty state for what parts know of the group of this key.
    pub(crate) fn start_partial(&self, key: RawBsonRef<'_>) -> Result<Accumulator> {
        let ordered = Ordered::new(&self.kind, self.wanted(key)?, self.collation.as_ref());
        match ordered {
            Some(ordered) => Ok(Accumulator::Ordered(ordered)),
            None => self.start(key),
        }
    }

    /// The state after the inputs of all parts, in the order of their documents, for the group of
    /// this key.
    pub(crate) fn replay(&self, key: RawBsonRef<'_>, ordered: &Ordered) -> Result<Accumulator> {
        let mut accumulator = self.start(key)?;
        for value in ordered.in_order() {
            accumulator.add(Some(value))?;
        }
        Ok(accumulator)
    }

    /// The field that a document's value is read from, if it is one.
    pub(crate) fn field_path(&self) -> Option<&[Box<str>]> {
        self.argument.field_path()
    }

    /// What a document gives.
    #[inline]
    pub(crate) fn input<'a>(&'a self, subject: impl Into<Subject<'a>>) -> Result<Input<'a>> {
        let subject = subject.into();
        self.input_of(subject, || self.argument.evaluate(subject))
    }

    /// What a document gives whose fields are walked through.
    #[inline]
    pub(crate) fn input_walked<'a>(
        &'a self,
        subject: Subject<'a>,
        walked: (&mut FieldWalk<'a>, Option<u8>),
    ) -> Result<Input<'a>> {
        self.input_of(subject, || self.argument.evaluate_walked(subject, walked))
    }

    #[inline]
    fn input_of<'a>(
        &'a self,
        subject: Subject<'a>,
        value: impl FnOnce() -> Result<Value<'a>>,
    ) -> Result<Input<'a>> {
        if self.kind == Kind::Count {
            return Ok(Input {
                value: Value::Missing,
                key: Vec::new(),
            });
        }
        Ok(Input {
            value: value()?,
            key: match &self.order {
                Some(order) => order.value_key(subject)?,
                None => Vec::new(),
            },
        })
    }
}

/// The number of values that an accumulator is to keep.
fn check_number(number: RawBsonRef<'_>) -> Result<usize> {
    let not_whole = |code| {
        error(
            code,
            format!(
                "Value for 'n' must be of integral type, but found {}",
                value_text(number)
            ),
        )
    };
    if !is_number(number) {
        return Err(not_whole(5_787_902));
    }
    let wanted = exact_i64(number).ok_or_else(|| not_whole(5_787_903))?;
    if wanted <= 0 {
        return Err(error(
            5_787_908,
            format!("'n' must be greater than 0, found {wanted}"),
        ));
    }
    Ok(wanted as usize)
}

/// `{n, input}`.
fn parse_n(kind: Kind, operand: RawBsonRef<'_>, variables: &Variables) -> Result<Accumulation> {
    let RawBsonRef::Document(spec) = operand else {
        return Err(error(
            5_787_900,
            format!(
                "specification must be an object; found {}",
                value_text(operand)
            ),
        ));
    };
    let (mut number, mut input) = (None, None);
    for (name, value) in elements(spec) {
        match name {
            "n" => number = Some(Expression::parse(value, variables)?),
            "input" => input = Some(Expression::parse(value, variables)?),
            other => {
                return Err(error(
                    5_787_901,
                    format!("Unknown argument for 'n' operator: {other}"),
                ));
            }
        }
    }
    let number = number.ok_or_else(|| error(5_787_906, "Missing value for 'n'"))?;
    Ok(Accumulation {
        kind,
        argument: input.ok_or_else(|| error(5_787_907, "Missing value for 'input'"))?,
        number: Some(number),
        order: None,
        collation: variables.collation.clone(),
    })
}

/// `{n, sortBy, output}`, without the number for `$top` and `$bottom`.
fn parse_ranked(
    kind: Kind,
    operator: &str,
    operand: RawBsonRef<'_>,
    variables: &Variables,
) -> Result<Accumulation> {
    let single = matches!(kind, Kind::Top | Kind::Bottom);
    let RawBsonRef::Document(spec) = operand else {
        return Err(error(
            5_788_001,
            format!(
                "specification must be an object; found {}",
                value_text(operand)
            ),
        ));
    };
    let (mut number, mut output, mut order) = (None, None, None);
    for (name, value) in elements(spec) {
        match (name, value) {
            ("n", _) if !single => number = Some(Expression::parse(value, variables)?),
            ("output", _) => output = Some(value),
            ("sortBy", RawBsonRef::Document(pattern)) => order = Some(pattern),
            ("sortBy", _) => {
                return Err(error(
                    5_788_604,
                    format!(
                        "invalid parameter: expected an object (sortBy), but found {}",
                        value_text(value)
                    ),
                ));
            }
            (other, _) => {
                return Err(error(
                    5_788_002,
                    format!("Unknown argument to {operator} '{other}'"),
                ));
            }
        }
    }
    if !single && number.is_none() {
        return Err(error(5_788_003, "Missing value for 'n'"));
    }
    let output = output.ok_or_else(|| error(5_788_004, "Missing value for 'output'"))?;
    let order = order.ok_or_else(|| error(5_788_005, "Missing value for 'sortBy'"))?;
    Ok(Accumulation {
        kind,
        argument: Expression::parse(output, variables)?,
        number,
        order: Some(SortPattern::parse(order)?.with_collation(variables.collation.clone())),
        collation: variables.collation.clone(),
    })
}
