//! The comparisons of fields with constants that an expression demands: what an index can help
//! with.

use pinion_bson::RawBson;

use super::Expression;
use super::parse::{Expr, FieldPath};
use crate::path::array_index;

/// How the field compares with the constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Eq,
    Lt,
    Lte,
    Gt,
    Gte,
}

impl Comparison {
    fn of(name: &str) -> Option<Comparison> {
        Some(match name {
            "$eq" => Comparison::Eq,
            "$lt" => Comparison::Lt,
            "$lte" => Comparison::Lte,
            "$gt" => Comparison::Gt,
            "$gte" => Comparison::Gte,
            _ => return None,
        })
    }

    fn flipped(self) -> Comparison {
        match self {
            Comparison::Eq => Comparison::Eq,
            Comparison::Lt => Comparison::Gt,
            Comparison::Lte => Comparison::Gte,
            Comparison::Gt => Comparison::Lt,
            Comparison::Gte => Comparison::Lte,
        }
    }
}

/// A comparison that holds where the expression is true.
#[derive(Clone, Debug)]
pub(crate) struct FieldComparison<'e> {
    pub path: String,
    pub comparison: Comparison,
    pub value: &'e RawBson,
}

impl Expression {
    /// The comparisons of fields of the document with constants all of which hold where the
    /// expression is true.
    pub(crate) fn comparisons(&self) -> Vec<FieldComparison<'_>> {
        let mut out = Vec::new();
        collect(&self.root, &mut out);
        out
    }
}

fn collect<'e>(expression: &'e Expr, out: &mut Vec<FieldComparison<'e>>) {
    match expression {
        Expr::And(parts) => parts.iter().for_each(|part| collect(part, out)),
        Expr::Compare(operator, arguments, _) => {
            let Some(comparison) = Comparison::of(operator.name) else {
                return;
            };
            let (field, value, comparison) = match &arguments[..] {
                [Expr::Field(field) | Expr::Root(field), Expr::Literal(value)] => {
                    (field, value, comparison)
                }
                [Expr::Literal(value), Expr::Field(field) | Expr::Root(field)] => {
                    (field, value, comparison.flipped())
                }
                _ => return,
            };
            if let Some(path) = text(field) {
                out.push(FieldComparison {
                    path,
                    comparison,
                    value,
                });
            }
        }
        _ => {}
    }
}

/// The path as filters write it; none for the document itself, nor where filters would take a name
/// for a position in an array.
fn text(path: &FieldPath) -> Option<String> {
    let means_the_same = !path.is_empty() && path.iter().all(|name| array_index(name).is_none());
    means_the_same.then(|| path.join("."))
}
