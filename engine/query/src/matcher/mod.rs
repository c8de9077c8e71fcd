//! Filters: parsed once, matched against raw documents.

mod bits;
mod eval;
mod metadata;
mod node;
mod parse;
mod schema;
mod serialize;
mod text;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_wire::Result;

use crate::collation::has_strings;
use crate::error::error;
use crate::expression::{MetaSet, Subject, Variables};
use crate::field_walk::WantedFields;
use crate::index::IndexSpec;
use crate::work::{self, spend_bytes};

pub use metadata::MetaSource;
pub(crate) use node::{CompareOp, Leaf, Node, Predicate, TypeSet};
pub(crate) use schema::{Details, schema_details};
pub(crate) use serialize::serialize_all;
pub(crate) use text::text_index_missing;

/// A parsed filter.
#[derive(Clone, Debug)]
pub struct Matcher(Arc<Parsed>);

/// Shared: it may hold values as large as a document, and is copied for each run.
#[derive(Debug)]
struct Parsed {
    filter: RawDocumentBuf,
    root: Node,
    /// The fields that predicates look at, if there are several predicates.
    fields: WantedFields,
    collation: Option<Arc<Collation>>,
    /// It asks for an order by distance.
    near: bool,
    /// It has a `$text`.
    text: bool,
    /// What it reads beside the documents.
    reads: MetaSet,
}

/// What a match gives the positional operator of an update or a projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchPosition {
    /// The position in the array that the filter traversed last, where it traversed one.
    pub array_index: Option<u32>,
}

impl Matcher {
    fn new(filter: &RawDocument, mut root: Node, collation: Option<Arc<Collation>>) -> Matcher {
        Matcher(Arc::new(Parsed {
            filter: filter.to_owned(),
            near: root.nears() > 0,
            text: root.texts() > 0,
            reads: root.reads(),
            fields: wanted_fields(&mut root),
            root,
            collation,
        }))
    }

    /// Parses a filter of other documents than those of collections, or of an index; the errors are
    /// MongoDB's.
    pub fn parse(filter: &RawDocument) -> Result<Matcher> {
        Matcher::parse_validator(filter, &Variables::default())
    }

    /// Parses a filter whose `$expr` may use these variables (`$$NOW`, those of `let`), and whose
    /// strings compare by their collation.
    pub fn parse_with(filter: &RawDocument, variables: &Variables) -> Result<Matcher> {
        spend_bytes(filter.as_bytes().len())?;
        let root = parse::parse_filter(filter, variables)?;
        Ok(Matcher::new(filter, root, variables.collation.clone()))
    }

    /// The validator of a collection, where what looks beyond one document may not stand.
    pub(crate) fn parse_validator(filter: &RawDocument, variables: &Variables) -> Result<Matcher> {
        spend_bytes(filter.as_bytes().len())?;
        let root = parse::parse_validator(filter, variables)?;
        Ok(Matcher::new(filter, root, variables.collation.clone()))
    }

    /// Parses the filter of a command that reads: it may ask for an order by distance (`$near`).
    pub fn parse_query(filter: &RawDocument, variables: &Variables) -> Result<Matcher> {
        spend_bytes(filter.as_bytes().len())?;
        let root = parse::parse_query(filter, variables)?;
        Ok(Matcher::new(filter, root, variables.collation.clone()))
    }

    /// A filter inside an update, or of a partial index, where what concerns the whole document may
    /// not stand.
    pub fn parse_nested(
        filter: &RawDocument,
        collation: Option<&Arc<Collation>>,
    ) -> Result<Matcher> {
        let variables = Variables {
            collation: collation.cloned(),
            ..Variables::default()
        };
        let root = parse::parse_nested(filter, &variables)?;
        Ok(Matcher::new(filter, root, variables.collation))
    }

    /// Whether a document matches. Only `$expr` and `$text` can fail.
    pub fn matches<'d>(&self, subject: impl Into<Subject<'d>>) -> Result<bool> {
        Ok(self.meet(subject.into(), false)?.is_some())
    }

    /// As `matches`, with what the positional operator needs.
    pub fn matches_with_position(&self, document: &RawDocument) -> Result<Option<MatchPosition>> {
        self.meet(document.into(), true)
    }

    fn meet(&self, subject: Subject<'_>, record: bool) -> Result<Option<MatchPosition>> {
        let Subject { document, metadata } = subject;
        spend_bytes(document.as_bytes().len())?;
        // The metadata of its own `$text` is not known yet.
        let source = self.meta_source(self.0.reads);
        let own = source.map(|source| source.metadata(document)).transpose()?;
        let metadata = own.as_ref().unwrap_or(metadata);
        let fields = (!self.0.fields.is_empty()).then(|| self.0.fields.walk(document));
        let mut state = eval::State::new(self.collation(), metadata, record, fields);
        let matched = self.0.root.matches(document, &mut state);
        work::check()?;
        state.finish(matched)
    }

    /// What the filter reads beside the documents.
    pub(crate) fn reads(&self) -> MetaSet {
        self.0.reads
    }

    /// Whether a `$text` stands in the filter.
    pub fn has_text(&self) -> bool {
        self.0.text
    }

    /// The same filter with its `$text` searching the text index among these.
    pub fn with_text_index(&self, indexes: &[IndexSpec]) -> Result<Matcher> {
        if !self.0.text {
            return Ok(self.clone());
        }
        let root = self.0.root.with_text_index(indexes)?;
        Ok(Matcher::new(&self.0.filter, root, self.0.collation.clone()))
    }

    /// Refuses a `$text` over a collection that is not there.
    pub fn check_without_collection(&self, namespace: &str) -> Result<()> {
        if !self.0.text {
            return Ok(());
        }
        Err(error(
            27,
            format!("text index required for $text query (no such collection '{namespace}')"),
        ))
    }

    /// How the filter compares strings.
    pub fn collation(&self) -> Option<&Arc<Collation>> {
        self.0.collation.as_ref()
    }

    /// The filter as it was given.
    pub fn filter(&self) -> &RawDocument {
        &self.0.filter
    }

    /// Whether every document matches.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0.root, Node::And(children) if children.is_empty())
    }

    /// The value that `_id` must equal when the filter demands one, beside whatever else it
    /// demands.
    pub fn id_equality(&self) -> Option<&RawBson> {
        if self.0.near || self.0.text {
            return None;
        }
        self.0.root.conjuncts().iter().find_map(|node| match node {
            Node::Leaf(Leaf {
                path,
                predicate:
                    Predicate::Compare {
                        op: CompareOp::Eq,
                        value,
                    },
                ..
            }) if path.text() == "_id" && is_simple_id(value.as_raw_bson_ref()) => Some(value),
            _ => None,
        })
    }

    /// As `id_equality` for a filter that demands nothing else.
    pub fn id_equality_alone(&self) -> Option<&RawBson> {
        if self.0.root.conjuncts().len() == 1 {
            self.id_equality()
        } else {
            None
        }
    }

    /// Whether the filter asks for an order by distance.
    pub fn is_near(&self) -> bool {
        self.0.near
    }

    /// As `id_equality`, where a collection with this collation means the same documents by it.
    pub fn id_lookup(&self, collation: Option<&Arc<Collation>>) -> Option<&RawBson> {
        let alike = self.collation() == collation;
        self.id_equality()
            .filter(|id| alike || !has_strings(id.as_raw_bson_ref()))
    }

    pub(crate) fn root(&self) -> &Node {
        &self.0.root
    }

    /// The first predicate, in its normal form, that the filter of a partial index may not have.
    pub fn unsuitable_for_partial_index(&self) -> Option<String> {
        self.0
            .root
            .unsuitable_for_partial_index()
            .map(|node| crate::text::document_text(&serialize::serialize(node)))
    }

    /// The filter in the normal form that explain prints as `parsedQuery`.
    pub fn parsed_query(&self) -> RawDocumentBuf {
        serialize::serialize(&self.0.root)
    }
}

/// Has the predicates of a filter find their fields in one walk, if there are several.
fn wanted_fields(root: &mut Node) -> WantedFields {
    let (mut fields, mut leaves) = (WantedFields::default(), 0);
    root.each_leaf(&mut |leaf| {
        leaves += 1;
        leaf.field = fields.want(&leaf.path.components()[0].name);
    });
    if leaves < 2 {
        root.each_leaf(&mut |leaf| leaf.field = None);
        fields = WantedFields::default();
    }
    fields
}

/// Whether equality with this value can be looked up by `_id`: arrays traverse, null matches
/// missing.
fn is_simple_id(value: RawBsonRef<'_>) -> bool {
    !matches!(
        value,
        RawBsonRef::Array(_)
            | RawBsonRef::RegularExpression(_)
            | RawBsonRef::Undefined
            | RawBsonRef::Null
    )
}
