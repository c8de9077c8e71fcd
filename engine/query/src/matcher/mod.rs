//! Filters: parsed once, matched against raw documents.

mod bits;
mod eval;
mod node;
mod parse;
mod serialize;

#[cfg(test)]
mod tests;

use pinion_bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use crate::expression::Variables;

pub(crate) use node::{CompareOp, Leaf, Node, Predicate, TypeSet};
pub(crate) use serialize::serialize_all;

/// A parsed filter.
#[derive(Clone, Debug)]
pub struct Matcher {
    filter: RawDocumentBuf,
    root: Node,
}

/// What a match tells the positional operator of an update or a projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchPosition {
    /// The position in the array that the filter traversed last, where it traversed one.
    pub array_index: Option<u32>,
}

impl Matcher {
    /// Parses a filter; the errors are MongoDB's.
    pub fn parse(filter: &RawDocument) -> Result<Matcher> {
        Matcher::parse_with(filter, &Variables::default())
    }

    /// Parses a filter whose `$expr` may use these variables (`$$NOW`, those of `let`).
    pub fn parse_with(filter: &RawDocument, variables: &Variables) -> Result<Matcher> {
        let root = parse::parse_filter(filter, variables)?;
        Ok(Matcher {
            filter: filter.to_owned(),
            root,
        })
    }

    /// A filter inside an update, where what concerns the whole document may not stand.
    pub(crate) fn parse_nested(filter: &RawDocument) -> Result<Matcher> {
        Ok(Matcher {
            filter: filter.to_owned(),
            root: parse::parse_nested(filter)?,
        })
    }

    /// Whether a document matches. Only `$expr` can fail.
    pub fn matches(&self, document: &RawDocument) -> Result<bool> {
        let mut state = eval::State::default();
        let matched = self.root.matches(document, &mut state);
        state.finish(matched).map(|position| position.is_some())
    }

    /// As `matches`, with what the positional operator needs.
    pub fn matches_with_position(&self, document: &RawDocument) -> Result<Option<MatchPosition>> {
        let mut state = eval::State::recording();
        let matched = self.root.matches(document, &mut state);
        state.finish(matched)
    }

    /// The filter as it was given.
    pub fn filter(&self) -> &RawDocument {
        &self.filter
    }

    /// Whether every document matches.
    pub fn is_empty(&self) -> bool {
        matches!(&self.root, Node::And(children) if children.is_empty())
    }

    /// The value that `_id` must equal when the filter demands one, beside whatever else it demands.
    pub fn id_equality(&self) -> Option<&RawBson> {
        self.root.conjuncts().iter().find_map(|node| match node {
            Node::Leaf(Leaf {
                path,
                predicate:
                    Predicate::Compare {
                        op: CompareOp::Eq,
                        value,
                    },
            }) if path.text() == "_id" && is_simple_id(value.as_raw_bson_ref()) => Some(value),
            _ => None,
        })
    }

    /// As `id_equality` for a filter that demands nothing else.
    pub fn id_equality_alone(&self) -> Option<&RawBson> {
        if self.root.conjuncts().len() == 1 {
            self.id_equality()
        } else {
            None
        }
    }

    pub(crate) fn root(&self) -> &Node {
        &self.root
    }

    /// The filter in the normal form that explain prints as `parsedQuery`.
    pub fn parsed_query(&self) -> RawDocumentBuf {
        serialize::serialize(&self.root)
    }
}

/// Whether equality with this value can be looked up by `_id`: arrays traverse, null matches missing.
fn is_simple_id(value: RawBsonRef<'_>) -> bool {
    !matches!(
        value,
        RawBsonRef::Array(_)
            | RawBsonRef::RegularExpression(_)
            | RawBsonRef::Undefined
            | RawBsonRef::Null
    )
}
