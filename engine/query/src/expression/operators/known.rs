//! What the constant arguments of an operator determine before there is a document: errors, and
//! results that are null anyway.

use pinion_wire::Result;

use super::timezone::Zone;
use super::{Operator, Value, date, date_math, regex};
use crate::expression::parse::Expr;

/// What is known of a call before its other arguments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::expression) enum Known {
    Nothing,
    /// It gives null.
    Null,
}

impl Operator {
    /// Reads the constant arguments of a call that has others too.
    pub(in crate::expression) fn known(&self, arguments: &[Expr]) -> Result<Known> {
        let constant = |at: usize| arguments.get(at).and_then(Expr::constant);
        match self.name {
            "$dateAdd" | "$dateSubtract" => all([
                unit(self.name, constant(1))?,
                zone(constant(3), Known::Null)?,
            ]),
            "$dateDiff" => all([
                unit(self.name, constant(2))?,
                zone(constant(3), Known::Null)?,
                week_start(self.name, constant(4))?,
            ]),
            "$dateTrunc" => all([
                unit(self.name, constant(1))?,
                bin_size(constant(2))?,
                zone(constant(3), Known::Null)?,
                week_start(self.name, constant(4))?,
            ]),
            "$dateToString" | "$dateFromString" => zone(constant(2), Known::Nothing),
            "$dateToParts" => zone(constant(1), Known::Null),
            "$dateFromParts" => zone(constant(10), Known::Null),
            name if date::is_date_part(name) => zone(constant(1), Known::Null),
            "$regexMatch" | "$regexFind" | "$regexFindAll" => {
                if let (Some(pattern), Some(options)) = (constant(1), constant(2)) {
                    regex::check(self.name, &pattern, &options)?;
                }
                Ok(Known::Nothing)
            }
            _ => Ok(Known::Nothing),
        }
    }
}

fn all<const N: usize>(known: [Known; N]) -> Result<Known> {
    Ok(if known.contains(&Known::Null) {
        Known::Null
    } else {
        Known::Nothing
    })
}

/// The argument that is given; a missing one stands for one that is not.
fn given(value: Option<Value<'_>>) -> Option<Value<'_>> {
    value.filter(|value| !value.is_missing())
}

fn unit(operator: &str, value: Option<Value<'_>>) -> Result<Known> {
    match given(value) {
        None => Ok(Known::Nothing),
        Some(value) if value.is_nullish() => Ok(Known::Null),
        Some(value) => date_math::check_unit(&value, operator).map(|()| Known::Nothing),
    }
}

fn bin_size(value: Option<Value<'_>>) -> Result<Known> {
    match given(value) {
        None => Ok(Known::Nothing),
        Some(value) if value.is_nullish() => Ok(Known::Null),
        Some(value) => date_math::bin_size(&value).map(|_| Known::Nothing),
    }
}

fn week_start(operator: &str, value: Option<Value<'_>>) -> Result<Known> {
    match given(value) {
        None => Ok(Known::Nothing),
        Some(value) if value.is_nullish() => Ok(Known::Null),
        Some(value) => date_math::week_start(&value, operator).map(|_| Known::Nothing),
    }
}

fn zone(value: Option<Value<'_>>, where_null: Known) -> Result<Known> {
    match given(value) {
        None => Ok(Known::Nothing),
        Some(value) => Ok(match Zone::of_argument(&value, true)? {
            Some(_) => Known::Nothing,
            None => where_null,
        }),
    }
}
