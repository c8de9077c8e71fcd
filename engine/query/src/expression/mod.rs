//! Aggregation expressions: parsed once, evaluated on raw documents.

mod comparisons;
mod eval;
mod meta;
mod operators;
mod optimize;
mod parse;
mod random;
mod value;

#[cfg(test)]
mod tests_optimize;
#[cfg(test)]
mod tests_version;

use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef, RawDocument, Timestamp};
use pinion_collation::Collation;
use pinion_wire::{LanguageVersion, Result};

pub(crate) use comparisons::Comparison;
pub(crate) use eval::Env;
pub use meta::{MetaKind, MetaSet, Metadata, Subject};
pub(crate) use meta::{NO_METADATA, sort_kind};
pub(crate) use operators::{TimeUnit, expression_names, is_expression_name};
pub use parse::check_field_path;
pub use parse::check_variable_name;
pub use random::Random;
pub use value::Value;

use crate::field_walk::FieldWalk;
use crate::work;
use eval::{found, path_in_ref};
use parse::Expr;

/// What expressions may refer to beside the document: the time of the operation and the variables
/// of `let`.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// `$$NOW`, milliseconds since 1970.
    pub now_ms: Option<i64>,
    /// `$$CLUSTER_TIME`, where there is one.
    pub cluster_time: Option<Timestamp>,
    /// The node has a cluster time: where the variable is missing, it is because the command gives
    /// no times to expressions.
    pub in_cluster: bool,
    /// The variables of the command's `let`, by name without the dollar signs.
    pub values: Vec<(String, RawBson)>,
    /// How strings compare; by their bytes without one.
    pub collation: Option<Arc<Collation>>,
    /// Where the numbers of `$rand` come from.
    pub random: Random,
    /// Variables whose values are missing.
    pub missing: Vec<String>,
    /// Whose expressions there are.
    pub version: LanguageVersion,
    /// Variables that will have a value when a sub-pipeline runs, which is parsed for its errors
    /// before.
    pub unbound: Vec<String>,
}

impl Variables {
    /// Takes a variable away: an expression that names it gets an error.
    pub fn forget(&mut self, name: &str) {
        self.values.retain(|(other, _)| other != name);
        self.missing.retain(|other| other != name);
        self.unbound.retain(|other| other != name);
    }

    /// Gives a variable a value, which hides one of the same name; none where it is missing.
    pub fn bind(&mut self, name: &str, value: Option<RawBson>) {
        self.forget(name);
        match value {
            Some(value) => self.values.push((name.to_owned(), value)),
            None => self.missing.push(name.to_owned()),
        }
    }

    /// Says that a variable will have a value.
    pub fn leave_unbound(&mut self, name: &str) {
        self.forget(name);
        self.unbound.push(name.to_owned());
    }
}

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expression {
    root: Expr,
    slots: usize,
    /// What it reads beside the document.
    reads: MetaSet,
    /// Whether it reads the document itself.
    reads_document: bool,
}

impl Expression {
    /// Parses an expression; the errors are MongoDB's.
    pub fn parse(value: RawBsonRef<'_>, variables: &Variables) -> Result<Expression> {
        let mut parser = parse::Parser::new(variables);
        let root = optimize::optimize(parser.parse(value)?)?;
        Ok(parser.expression(root))
    }

    /// Parses the expression of a filter's `$expr`. Where a field is to be in a constant array,
    /// MongoDB also demands that it be so by the bytes of strings, whatever the collation: it adds
    /// the filter's `$in` to the expression, and does not give that the collation.
    pub(crate) fn parse_filter(value: RawBsonRef<'_>, variables: &Variables) -> Result<Expression> {
        let mut parser = parse::Parser::new(variables);
        let root = optimize::optimize(parser.parse_filter(value)?)?;
        Ok(parser.expression(root))
    }

    /// Parses the expression of a `$redact`, which has variables of its own for what is to be done.
    pub(crate) fn parse_redact(value: RawBsonRef<'_>, variables: &Variables) -> Result<Expression> {
        let mut variables = variables.clone();
        for name in ["DESCEND", "PRUNE", "KEEP"] {
            let answer = RawBson::String(name.to_ascii_lowercase());
            variables.values.push((name.into(), answer));
        }
        Expression::parse(value, &variables)
    }

    /// The value for a document.
    pub fn evaluate<'a>(&'a self, subject: impl Into<Subject<'a>>) -> Result<Value<'a>> {
        let subject = subject.into();
        self.evaluate_at(subject, subject.document)
    }

    /// Whether the value depends on a document.
    pub fn reads_document(&self) -> bool {
        self.reads_document
    }

    /// Whether the value depends on what is known of a document beside its fields.
    pub fn reads_metadata(&self) -> bool {
        !self.reads.is_empty()
    }

    /// What the expression reads beside the document.
    pub(crate) fn reads(&self) -> MetaSet {
        self.reads
    }

    /// The value where paths begin at a part of the document.
    pub(crate) fn evaluate_at<'a>(
        &'a self,
        root: Subject<'a>,
        current: &'a RawDocument,
    ) -> Result<Value<'a>> {
        let mut env = Env::new(root, current, self.slots);
        self.root.evaluate(&mut env)
    }

    /// The path, where the value is that of a path in the document.
    pub(crate) fn field_path(&self) -> Option<&[Box<str>]> {
        match &self.root {
            Expr::Field(path) | Expr::Root(path) if !path.is_empty() => Some(path),
            _ => None,
        }
    }

    /// The value for a document whose fields are walked through: where the expression is a path,
    /// `field` says where the walk has the field that it begins with.
    pub(crate) fn evaluate_walked<'a>(
        &'a self,
        subject: Subject<'a>,
        (walk, field): (&mut FieldWalk<'a>, Option<u8>),
    ) -> Result<Value<'a>> {
        let (Some(field), Some(path)) = (field, self.field_path()) else {
            return self.evaluate(subject);
        };
        work::spend(work::STEP)?;
        match walk.get(field) {
            Some(value) => found(path_in_ref(value, &path[1..])),
            None => Ok(Value::Missing),
        }
    }

    /// The value, where it does not depend on a document.
    pub(crate) fn constant(&self) -> Option<RawBson> {
        match &self.root {
            Expr::Literal(value) => Some(RawBson::clone(value)),
            _ => None,
        }
    }
}
