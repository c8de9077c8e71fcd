//! Matching: a tree against a document, or against one value inside `$elemMatch`.

use std::cmp::Ordering;
use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_collation::Collation;
use pinion_wire::{Error, Result};

use super::MatchPosition;
use super::node::{CompareOp, Leaf, Node, Predicate};
use crate::collation;
use crate::expression::{Metadata, Subject};
use crate::field_walk::FieldWalk;
use crate::number::truncated_i64;
use crate::path::{LeafArrays, walk, walk_from};
use crate::value::{array_document, class, count, elements, is_nan, is_number, is_true, items};

/// What one match carries through the tree.
pub(crate) struct State<'c> {
    /// The fields of the document that several predicates look at.
    fields: Option<FieldWalk<'c>>,
    collation: Option<&'c Collation>,
    metadata: &'c Metadata,
    record: bool,
    position: Option<u32>,
    error: Option<Error>,
}

impl<'c> State<'c> {
    pub(crate) fn new(
        collation: Option<&'c Arc<Collation>>,
        metadata: &'c Metadata,
        record: bool,
        fields: Option<FieldWalk<'c>>,
    ) -> State<'c> {
        State {
            fields,
            collation: collation.map(Arc::as_ref),
            metadata,
            record,
            position: None,
            error: None,
        }
    }

    pub(crate) fn finish(self, matched: bool) -> Result<Option<MatchPosition>> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(matched.then_some(MatchPosition {
                array_index: self.position,
            })),
        }
    }

    /// What was found; an error is kept until the end.
    fn found(&mut self, found: Result<bool>) -> bool {
        found.unwrap_or_else(|error| {
            self.error.get_or_insert(error);
            false
        })
    }

    /// Runs `f` with recording off: what a negation or an alternative met says nothing about the
    /// position.
    fn silent(&mut self, f: impl FnOnce(&mut State<'c>) -> bool) -> bool {
        let record = std::mem::replace(&mut self.record, false);
        let result = f(self);
        self.record = record;
        result
    }
}

impl Node {
    pub(crate) fn matches(&self, document: &RawDocument, state: &mut State<'_>) -> bool {
        match self {
            Node::And(children) => {
                for child in children {
                    if !child.matches(document, state) {
                        state.position = None;
                        return false;
                    }
                }
                true
            }
            Node::Or(children) => children
                .iter()
                .any(|c| state.silent(|s| c.matches(document, s))),
            Node::Nor(children) => !children
                .iter()
                .any(|c| state.silent(|s| c.matches(document, s))),
            Node::Not(child) => !state.silent(|s| child.matches(document, s)),
            Node::AlwaysTrue => true,
            Node::AlwaysFalse => false,
            Node::Expr(expression, _) => {
                let metadata = state.metadata;
                let found = match expression.evaluate(Subject { document, metadata }) {
                    Ok(value) => Ok(value.as_ref().is_some_and(is_true)),
                    Err(error) => Err(error),
                };
                state.found(found)
            }
            Node::Schema(schema, _) => schema.accepts_document(document),
            Node::Text(text) => state.found(text.matches(document)),
            Node::Leaf(leaf) => leaf.matches(document, state),
        }
    }

    /// Whether one value satisfies a tree without paths.
    fn matches_value(&self, value: Option<RawBsonRef<'_>>, state: &mut State<'_>) -> bool {
        match self {
            Node::And(children) => children.iter().all(|c| c.matches_value(value, state)),
            Node::Or(children) => children.iter().any(|c| c.matches_value(value, state)),
            Node::Nor(children) => !children.iter().any(|c| c.matches_value(value, state)),
            Node::Not(child) => !state.silent(|s| child.matches_value(value, s)),
            Node::AlwaysTrue => true,
            Node::AlwaysFalse | Node::Expr(..) | Node::Schema(..) | Node::Text(_) => false,
            Node::Leaf(leaf) => leaf.predicate.matches(value, state),
        }
    }
}

impl Leaf {
    fn matches(&self, document: &RawDocument, state: &mut State<'_>) -> bool {
        let leaf_arrays = match self.predicate {
            Predicate::Exists
            | Predicate::Size(_)
            | Predicate::ElemMatchObject(_)
            | Predicate::ElemMatchValue(_)
            | Predicate::Near(_) => LeafArrays::Keep,
            _ => LeafArrays::Traverse,
        };
        let path = self.path.components();
        let found = match (self.field, &mut state.fields) {
            (Some(place), Some(fields)) => Some(fields.get(place)),
            _ => None,
        };
        let mut visit = |value: Option<RawBsonRef<'_>>, position: Option<u32>| {
            if !self.predicate.matches(value, state) {
                return false;
            }
            if state.record && position.is_some() {
                state.position = position;
            }
            true
        };
        match found {
            Some(found) => walk_from(found, &path[1..], leaf_arrays, &mut visit),
            None => walk(document, path, leaf_arrays, &mut visit),
        }
    }
}

impl Predicate {
    /// Whether one value (or a missing one) satisfies the predicate.
    pub(crate) fn matches(&self, value: Option<RawBsonRef<'_>>, state: &mut State<'_>) -> bool {
        match self {
            Predicate::Compare { op, value: operand } => {
                compare(*op, value, operand.as_raw_bson_ref(), state.collation)
            }
            Predicate::In {
                values,
                regexes,
                has_null,
            } => {
                let Some(value) = value else { return *has_null };
                values
                    .binary_search_by(|v| {
                        collation::compare(state.collation, v.as_raw_bson_ref(), value)
                    })
                    .is_ok()
                    || regexes.iter().any(|r| regex_matches(r, value))
            }
            Predicate::Regex(regex) => value.is_some_and(|v| regex_matches(regex, v)),
            Predicate::Exists => value.is_some(),
            Predicate::Type(types) => value.is_some_and(|v| types.contains(v.element_type())),
            Predicate::Mod { divisor, remainder } => value.is_some_and(|v| {
                is_number(v)
                    && truncated_i64(v)
                        .is_some_and(|dividend| dividend.wrapping_rem(*divisor) == *remainder)
            }),
            Predicate::Bits(test) => value.is_some_and(|v| test.matches(v)),
            Predicate::Size(size) => match value {
                Some(RawBsonRef::Array(array)) => count(array_document(array)) as i64 == *size,
                _ => false,
            },
            Predicate::Geo(geo) => {
                let Some(value) = value else { return false };
                geo.matches(value).unwrap_or_else(|error| {
                    state.error.get_or_insert(error);
                    false
                })
            }
            Predicate::Near(_) => true,
            Predicate::ElemMatchObject(node) => {
                let Some(RawBsonRef::Array(array)) = value else {
                    return false;
                };
                for (position, (_, item)) in elements(array_document(array)).enumerate() {
                    let inner = match item {
                        RawBsonRef::Document(inner) => inner,
                        RawBsonRef::Array(inner) => array_document(inner),
                        _ => continue,
                    };
                    if state.silent(|s| node.matches(inner, s)) {
                        if state.record {
                            state.position = Some(position as u32);
                        }
                        return true;
                    }
                }
                false
            }
            Predicate::ElemMatchValue(nodes) => {
                let Some(RawBsonRef::Array(array)) = value else {
                    return false;
                };
                for (position, item) in items(array).enumerate() {
                    if state.silent(|s| nodes.iter().all(|n| n.matches_value(Some(item), s))) {
                        if state.record {
                            state.position = Some(position as u32);
                        }
                        return true;
                    }
                }
                false
            }
        }
    }
}

/// Comparison with type bracketing. A missing value compares as null; undefined does not.
fn compare(
    op: CompareOp,
    value: Option<RawBsonRef<'_>>,
    operand: RawBsonRef<'_>,
    collation: Option<&Collation>,
) -> bool {
    let value = value.unwrap_or(RawBsonRef::Null);
    if class(Some(value)) != class(Some(operand)) {
        return match operand {
            RawBsonRef::MaxKey => matches!(op, CompareOp::Lt | CompareOp::Lte),
            RawBsonRef::MinKey => matches!(op, CompareOp::Gt | CompareOp::Gte),
            _ => false,
        };
    }
    if is_nan(value) || is_nan(operand) {
        let both = is_nan(value) && is_nan(operand);
        return both && matches!(op, CompareOp::Eq | CompareOp::Lte | CompareOp::Gte);
    }
    let order = collation::compare(collation, value, operand);
    match op {
        CompareOp::Eq => order == Ordering::Equal,
        CompareOp::Lt => order == Ordering::Less,
        CompareOp::Lte => order != Ordering::Greater,
        CompareOp::Gt => order == Ordering::Greater,
        CompareOp::Gte => order != Ordering::Less,
    }
}

fn regex_matches(regex: &crate::regex::Regex, value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) => regex.is_match(text),
        RawBsonRef::RegularExpression(other) => {
            other.pattern.as_str() == &*regex.pattern && other.options.as_str() == &*regex.options
        }
        _ => false,
    }
}
