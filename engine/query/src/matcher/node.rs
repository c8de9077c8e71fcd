//! The tree a filter is parsed into.

use pinion_bson::{ElementType, RawBson, RawDocumentBuf};

use super::bits::BitTest;
use crate::expression::Expression;
use crate::path::Path;
use crate::regex::Regex;

/// A filter or a part of one.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Nor(Vec<Node>),
    Not(Box<Node>),
    AlwaysTrue,
    AlwaysFalse,
    /// `$expr`, with its source for explain.
    Expr(Box<Expression>, RawDocumentBuf),
    Leaf(Leaf),
}

/// A predicate at a path. Inside `$elemMatch` on values the path is empty text and not walked.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub path: Path,
    pub predicate: Predicate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompareOp {
    Eq,
    Lt,
    Lte,
    Gt,
    Gte,
}

impl CompareOp {
    pub(crate) fn name(self) -> &'static str {
        match self {
            CompareOp::Eq => "$eq",
            CompareOp::Lt => "$lt",
            CompareOp::Lte => "$lte",
            CompareOp::Gt => "$gt",
            CompareOp::Gte => "$gte",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Predicate {
    Compare { op: CompareOp, value: RawBson },
    /// `values` in comparison order without duplicates.
    In { values: Vec<RawBson>, regexes: Vec<Regex>, has_null: bool },
    Regex(Regex),
    Exists,
    Type(TypeSet),
    Mod { divisor: i64, remainder: i64 },
    Bits(BitTest),
    Size(i64),
    ElemMatchObject(Box<Node>),
    ElemMatchValue(Vec<Node>),
}

/// A set of BSON types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TypeSet {
    pub all_numbers: bool,
    pub types: Vec<ElementType>,
}

impl TypeSet {
    pub(crate) fn contains(&self, kind: ElementType) -> bool {
        (self.all_numbers && pinion_bson::is_numeric(kind)) || self.types.contains(&kind)
    }
}

impl Node {
    /// The parts all of which must hold.
    pub(crate) fn conjuncts(&self) -> &[Node] {
        match self {
            Node::And(children) => children,
            other => std::slice::from_ref(other),
        }
    }

    /// Joins conjuncts, flattening nested ones; one alone stands for itself.
    pub(crate) fn and(children: Vec<Node>) -> Node {
        let mut flat = Vec::with_capacity(children.len());
        for child in children {
            match child {
                Node::And(inner) => flat.extend(inner),
                Node::AlwaysTrue => {}
                other => flat.push(other),
            }
        }
        if flat.len() == 1 { flat.remove(0) } else { Node::And(flat) }
    }
}
