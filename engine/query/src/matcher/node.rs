//! The tree a filter is parsed into.

use std::sync::Arc;

use pinion_bson::{ElementType, RawBson, RawDocumentBuf};
use pinion_collation::Collation;

use super::bits::BitTest;
use super::schema::Schema;
use super::text::TextPredicate;
use crate::collation::compare_owned;
use crate::expression::{Expression, MetaSet};
use crate::geo::{GeoPredicate, Near};
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
    /// `$jsonSchema`, with its source for explain.
    Schema(Arc<Schema>, RawDocumentBuf),
    Text(Box<TextPredicate>),
    Leaf(Leaf),
}

/// A predicate at a path. Inside `$elemMatch` on values the path is empty text and not walked.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub path: Path,
    pub predicate: Predicate,
    /// Where a walk through a document has the field that the path begins with, if one is made for
    /// several predicates.
    pub field: Option<u8>,
}

impl Leaf {
    pub(crate) fn new(path: Path, predicate: Predicate) -> Leaf {
        Leaf {
            path,
            predicate,
            field: None,
        }
    }
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
    Compare {
        op: CompareOp,
        value: RawBson,
    },
    /// `values` in comparison order, in the collation's, without duplicates.
    In {
        values: Vec<RawBson>,
        regexes: Vec<Regex>,
        has_null: bool,
    },
    Regex(Regex),
    Exists,
    Type(TypeSet),
    Mod {
        divisor: i64,
        remainder: i64,
    },
    Bits(BitTest),
    Size(i64),
    ElemMatchObject(Box<Node>),
    ElemMatchValue(Vec<Node>),
    /// `$geoWithin` and `$geoIntersects`.
    Geo(Arc<GeoPredicate>),
    /// `$near` and its like: an order more than a predicate, which the access to the documents
    /// gives.
    Near(Arc<Near>),
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

    /// The first part that the filter of a partial index may not have.
    pub(super) fn unsuitable_for_partial_index(&self) -> Option<&Node> {
        match self {
            Node::And(children) | Node::Or(children) => {
                children.iter().find_map(Node::unsuitable_for_partial_index)
            }
            Node::Leaf(leaf) => match &leaf.predicate {
                Predicate::Compare { .. }
                | Predicate::In { .. }
                | Predicate::Exists
                | Predicate::Type(_)
                | Predicate::Geo(_) => None,
                _ => Some(self),
            },
            _ => Some(self),
        }
    }

    /// Calls `f` for each predicate at a path of the document itself.
    pub(super) fn each_leaf(&mut self, f: &mut impl FnMut(&mut Leaf)) {
        match self {
            Node::And(children) | Node::Or(children) | Node::Nor(children) => {
                children.iter_mut().for_each(|child| child.each_leaf(f));
            }
            Node::Not(child) => child.each_leaf(f),
            Node::Leaf(leaf) => f(leaf),
            Node::AlwaysTrue
            | Node::AlwaysFalse
            | Node::Expr(..)
            | Node::Schema(..)
            | Node::Text(_) => {}
        }
    }

    /// Whether `$expr` stands anywhere in it.
    pub(crate) fn has_expression(&self) -> bool {
        match self {
            Node::And(children) | Node::Or(children) | Node::Nor(children) => {
                children.iter().any(Node::has_expression)
            }
            Node::Not(child) => child.has_expression(),
            Node::Expr(..) => true,
            Node::AlwaysTrue
            | Node::AlwaysFalse
            | Node::Schema(..)
            | Node::Text(_)
            | Node::Leaf(_) => false,
        }
    }

    /// What is read beside the documents.
    pub(super) fn reads(&self) -> MetaSet {
        match self {
            Node::And(children) | Node::Or(children) | Node::Nor(children) => children
                .iter()
                .map(Node::reads)
                .fold(MetaSet::default(), MetaSet::union),
            Node::Not(child) => child.reads(),
            Node::Expr(expression, _) => expression.reads(),
            Node::AlwaysTrue
            | Node::AlwaysFalse
            | Node::Schema(..)
            | Node::Text(_)
            | Node::Leaf(_) => MetaSet::default(),
        }
    }

    /// How many parts ask for an order by distance.
    pub(crate) fn nears(&self) -> usize {
        match self {
            Node::And(children) | Node::Or(children) | Node::Nor(children) => {
                children.iter().map(Node::nears).sum()
            }
            Node::Not(child) => child.nears(),
            Node::Leaf(leaf) => match &leaf.predicate {
                Predicate::Near(_) => 1,
                Predicate::ElemMatchObject(node) => node.nears(),
                Predicate::ElemMatchValue(nodes) => nodes.iter().map(Node::nears).sum(),
                _ => 0,
            },
            Node::AlwaysTrue
            | Node::AlwaysFalse
            | Node::Expr(..)
            | Node::Schema(..)
            | Node::Text(_) => 0,
        }
    }

    /// Joins conjuncts, flattening nested ones; one alone stands for itself, as does one that
    /// nothing satisfies.
    pub(crate) fn and(children: Vec<Node>) -> Node {
        let mut flat = Vec::with_capacity(children.len());
        for child in children {
            match child {
                Node::And(inner) => flat.extend(inner),
                Node::AlwaysTrue => {}
                Node::AlwaysFalse => return Node::AlwaysFalse,
                other => flat.push(other),
            }
        }
        sort(&mut flat);
        if flat.len() == 1 {
            flat.remove(0)
        } else {
            Node::And(flat)
        }
    }

    /// Joins alternatives: one alone stands for itself, and equalities at one path are one `$in`.
    pub(crate) fn or(mut children: Vec<Node>, collation: Option<&Collation>) -> Node {
        if children.len() == 1 {
            return children.remove(0);
        }
        if let Some(joined) = joined_equalities(&children, collation) {
            return joined;
        }
        sort(&mut children);
        Node::Or(children)
    }

    /// The place in the normal order of a filter's parts, which decides what a positional operator
    /// meets last.
    fn rank(&self) -> u8 {
        match self {
            Node::And(_) => 0,
            Node::Or(_) => 1,
            Node::Leaf(leaf) => match &leaf.predicate {
                Predicate::ElemMatchObject(_) => 2,
                Predicate::ElemMatchValue(_) => 3,
                Predicate::Size(_) => 4,
                Predicate::Compare {
                    op: CompareOp::Eq, ..
                } => 5,
                Predicate::Compare {
                    op: CompareOp::Lte, ..
                } => 6,
                Predicate::Compare {
                    op: CompareOp::Lt, ..
                } => 7,
                Predicate::Compare {
                    op: CompareOp::Gt, ..
                } => 8,
                Predicate::Compare {
                    op: CompareOp::Gte, ..
                } => 9,
                Predicate::Regex(_) => 10,
                Predicate::Mod { .. } => 11,
                Predicate::Exists => 12,
                Predicate::In { .. } => 13,
                Predicate::Bits(_) => 14,
                Predicate::Type(_) => 22,
                Predicate::Geo(_) => 23,
                Predicate::Near(_) => 33,
            },
            Node::Not(_) => 20,
            Node::Nor(_) => 21,
            Node::AlwaysFalse => 30,
            Node::AlwaysTrue => 31,
            Node::Expr(..) => 32,
            Node::Schema(..) => 33,
            Node::Text(_) => 34,
        }
    }

    /// The path the part speaks of, where it is one.
    fn path(&self) -> &str {
        match self {
            Node::Leaf(leaf) => leaf.path.text(),
            Node::Not(child) => child.path(),
            _ => "",
        }
    }
}

/// Puts parts into the normal order: by kind, then by path.
fn sort(nodes: &mut [Node]) {
    nodes.sort_by(|a, b| a.rank().cmp(&b.rank()).then_with(|| a.path().cmp(b.path())));
}

fn joined_equalities(children: &[Node], collation: Option<&Collation>) -> Option<Node> {
    let mut values: Vec<RawBson> = Vec::with_capacity(children.len());
    let mut path: Option<&Path> = None;
    for child in children {
        match child {
            Node::Leaf(Leaf {
                path: at,
                predicate:
                    Predicate::Compare {
                        op: CompareOp::Eq,
                        value,
                    },
                ..
            }) if path.is_none_or(|p| p == at)
                && !matches!(value, RawBson::RegularExpression(_)) =>
            {
                path = Some(at);
                values.push(value.clone());
            }
            _ => return None,
        }
    }
    let path = path?.clone();
    let predicate = Predicate::any_of(values, Vec::new(), collation);
    Some(Node::Leaf(Leaf::new(path, predicate)))
}

impl Predicate {
    /// Equality with any of these values, or a match with any of these expressions; one alone
    /// stands for itself.
    pub(crate) fn any_of(
        mut values: Vec<RawBson>,
        regexes: Vec<Regex>,
        collation: Option<&Collation>,
    ) -> Predicate {
        let has_null = values.contains(&RawBson::Null);
        values.sort_by(|a, b| compare_owned(collation, a, b));
        values.dedup_by(|a, b| compare_owned(collation, a, b).is_eq());
        match (&values[..], &regexes[..]) {
            ([one], []) => Predicate::Compare {
                op: CompareOp::Eq,
                value: one.clone(),
            },
            ([], [one]) => Predicate::Regex(one.clone()),
            _ => Predicate::In {
                values,
                regexes,
                has_null,
            },
        }
    }
}
