//! The table of expression operators.
//!
//! An operator whose arguments are evaluated before it is one line of a module's table: name,
//! arity, function. What binds variables, chooses what to evaluate or has named arguments is parsed
//! by a function of its own in `special`.

mod arithmetic;
mod array;
mod bits;
mod comparison;
mod convert;
mod date;
mod date_math;
mod date_parse;
mod date_parts;
mod date_text;
mod decimal;
mod ejson;
mod hash;
mod known;
mod named;
mod quad;
mod regex;
mod sequence;
mod special;
mod statistics;
mod string;
mod timezone;

#[cfg(test)]
mod tests;

use pinion_collation::Collation;
use pinion_wire::{LanguageVersion, Result};

use super::value::Value;
use crate::error::error;

pub(crate) use date_math::TimeUnit;
pub(super) use known::Known;
pub(super) use special::special;
pub use timezone::NamedZone;

/// How many arguments an operator takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arity {
    Exactly(usize),
    Between(usize, usize),
    Any,
    /// Exactly one, with the error of the conversions.
    One,
}

/// One operator.
#[derive(Debug)]
pub(crate) struct Operator {
    pub name: &'static str,
    pub arity: Arity,
    pub evaluate: Function,
}

/// One operator that compares values, strings among them in a collation.
#[derive(Debug)]
pub(crate) struct Comparing {
    pub name: &'static str,
    pub arity: Arity,
    pub evaluate: for<'a> fn(&[Value<'a>], Option<&Collation>) -> Result<Value<'a>>,
}

/// Which arguments of an operator may be computed before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Associativity {
    None,
    /// Those at the front.
    Left,
    /// Any that stand together.
    Full,
}

/// What an operator computes from its evaluated arguments.
pub(crate) type Function = for<'a> fn(&[Value<'a>]) -> Result<Value<'a>>;

const TABLES: &[&[Operator]] = &[
    comparison::OPERATORS,
    arithmetic::OPERATORS,
    string::OPERATORS,
    array::OPERATORS,
    bits::OPERATORS,
    date::OPERATORS,
    convert::OPERATORS,
    hash::OPERATORS,
];

const COMPARING: &[&[Comparing]] = &[
    comparison::COMPARING,
    array::COMPARING,
    arithmetic::COMPARING,
];

/// The operator of this name.
pub(super) fn find(name: &str) -> Option<&'static Operator> {
    TABLES
        .iter()
        .flat_map(|table| table.iter())
        .find(|operator| operator.name == name)
}

/// The operator of this name that compares values.
pub(super) fn find_comparing(name: &str) -> Option<&'static Comparing> {
    COMPARING
        .iter()
        .flat_map(|table| table.iter())
        .find(|operator| operator.name == name)
}

/// The names of all operators.
pub(crate) fn expression_names() -> impl Iterator<Item = &'static str> {
    let plain = TABLES.iter().flat_map(|table| table.iter());
    let plain = plain.map(|operator| operator.name);
    let comparing = COMPARING.iter().flat_map(|table| table.iter());
    let comparing = comparing.map(|operator| operator.name);
    let named = named::OPERATORS.iter().map(|named| named.operator.name);
    let special = special::NAMES.iter().copied();
    plain.chain(comparing).chain(named).chain(special)
}

/// Operators that came with version 8.3.
const SINCE_8_3: &[&str] = &[
    "$createObjectId",
    "$deserializeEJSON",
    "$hash",
    "$hexHash",
    "$serializeEJSON",
    "$subtype",
];

/// Whether a version has the operator of this name, if there is one.
pub(super) fn is_in(name: &str, version: LanguageVersion) -> bool {
    version >= LanguageVersion::V8_3 || !SINCE_8_3.contains(&name)
}

/// Whether an operator of this name exists in a version.
pub(crate) fn is_expression_name(name: &str, version: LanguageVersion) -> bool {
    let exists = find(name).is_some() || find_comparing(name).is_some() || special(name).is_some();
    exists && is_in(name, version)
}

impl Operator {
    /// Sums and products are made from the left, since their order counts for doubles and for what
    /// overflows.
    pub(super) fn associativity(&self) -> Associativity {
        match self.name {
            "$add" | "$multiply" => Associativity::Left,
            "$concat" | "$concatArrays" | "$mergeObjects" => Associativity::Full,
            _ => Associativity::None,
        }
    }
}

pub(super) fn check_arity(name: &str, arity: Arity, given: usize) -> Result<()> {
    match arity {
        Arity::Exactly(n) if given != n => Err(error(
            16020,
            format!("Expression {name} takes exactly {n} arguments. {given} were passed in."),
        )),
        Arity::One if given != 1 => Err(error(
            50723,
            format!("{name} requires a single argument, got {given}"),
        )),
        Arity::Between(low, high) if given < low || given > high => Err(error(
            28667,
            format!(
                "Expression {name} takes at least {low} arguments, and at most {high}, but {given} were passed in."
            ),
        )),
        _ => Ok(()),
    }
}
