//! Plans: how a query finds its documents. Pure; the caller runs them.

mod alternatives;
mod bounds;
mod candidate;
mod choose;
mod covered;
mod distinct;
mod explain;
mod explain_merge;
mod explain_text;
mod geo;
mod implication;
mod interval;
mod key_bounds;
mod key_fields;
mod merge;
mod ranges;
mod residual;
mod shape;
mod text;
mod wildcard;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_collation;
#[cfg(test)]
mod tests_text;

use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use crate::error::bad_value;
use crate::index::IndexSpec;
use crate::matcher::Matcher;
use crate::projection::Projection;
use crate::sort::{Direction, SortPattern};
use crate::value::{count, field, first, is_empty};

pub use distinct::{DistinctPlan, distinct_plan};
pub use explain::{ExplainStage, ShownPlans, append_if_room, query_planner};
pub use geo::{NearAccess, NearSearch};
pub use interval::{Interval, Intervals};
pub use key_bounds::KeyBounds;
pub use key_fields::key_field_bounds;
pub use merge::{SortedAccess, SortedField};
pub use ranges::KeyRange;
pub use shape::{Outline, QueryShape, shown_hash};

/// What is to be planned.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    pub namespace: &'a str,
    pub matcher: &'a Matcher,
    pub sort: Option<&'a SortPattern>,
    pub projection: Option<&'a Projection>,
    pub hint: Option<&'a Hint>,
    /// `min` and `max`.
    pub key_bounds: Option<&'a KeyBounds>,
    /// What follows the read looks at the scores of a text search.
    pub reads_scores: bool,
    /// Keys of the index are wanted in place of documents.
    pub return_key: bool,
    /// The indexes of the collection, the one on `_id` first.
    pub indexes: &'a [IndexSpec],
    /// The shard key, where documents are passed over that the shard does not own.
    pub shard_key: Option<&'a RawDocument>,
    /// The indexes that plans of this shape may use, whatever the hint says.
    pub filter: Option<&'a IndexFilter>,
}

/// The indexes that are left to the queries of a shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexFilter {
    pub names: Vec<String>,
    pub keys: Vec<RawDocumentBuf>,
}

impl IndexFilter {
    /// Whether it names no index.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.keys.is_empty()
    }

    fn allows(&self, index: &IndexSpec) -> bool {
        self.names.contains(&index.name)
            || (self.keys.iter()).any(|key| pinion_bson::compare_documents(key, &index.key).is_eq())
    }
}

/// An index named by the client.
#[derive(Clone, Debug, PartialEq)]
pub enum Hint {
    Name(String),
    Pattern(RawDocumentBuf),
    Natural(Direction),
}

impl Hint {
    /// Reads a hint; `None` for an empty document. The caller has checked that it is a string or a
    /// document.
    pub fn parse(hint: RawBsonRef<'_>) -> Result<Option<Hint>> {
        match hint {
            RawBsonRef::String(name) => Ok(Some(Hint::Name(name.to_string()))),
            RawBsonRef::Document(pattern) if is_empty(pattern) => Ok(None),
            RawBsonRef::Document(pattern) => match field(pattern, "$natural") {
                Some(_) if count(pattern) > 1 => {
                    Err(bad_value("Cannot include '$natural' in compound hint"))
                }
                Some(direction) => match crate::number::truncated_i64(direction) {
                    Some(1) => Ok(Some(Hint::Natural(Direction::Forward))),
                    Some(-1) => Ok(Some(Hint::Natural(Direction::Backward))),
                    _ => Err(bad_value("$natural hint may only be 1 or -1")),
                },
                None if first(pattern).is_some_and(|(name, _)| name.starts_with("$hint")) => Err(
                    crate::error::failed_to_parse("Hint must be a string or an object"),
                ),
                None => Ok(Some(Hint::Pattern(pattern.to_owned()))),
            },
            _ => Err(crate::error::failed_to_parse(
                "Hint must be a string or an object",
            )),
        }
    }
}

/// How the documents are found. The caller applies the whole filter to each fetched document unless
/// the access is `Nothing`.
#[derive(Clone, Debug)]
pub enum Access {
    /// No document can match.
    Nothing,
    /// The one document with this `_id`.
    Id(RawBson),
    /// All documents, in `_id` order.
    Collection(Direction),
    /// The documents whose keys lie in ranges of an index.
    Index(IndexAccess),
    /// The documents of any of these, each once.
    Union(Vec<IndexAccess>),
    /// As `Union`, in the order of the sort.
    Merge(Vec<SortedAccess>),
    /// The documents by their distance from a point.
    Near(Box<NearAccess>),
}

/// A scan of an index; of the collection itself where the index is the one on `_id`.
#[derive(Clone, Debug)]
pub struct IndexAccess {
    /// The place in the request's list.
    pub index: usize,
    /// A wildcard index as if it were one on the path that is asked for.
    pub expanded: Option<Arc<IndexSpec>>,
    /// The intervals of each field, in ascending order whatever the field's direction.
    pub bounds: Vec<Intervals>,
    /// Disjoint, in the order of the index's keys; a backward scan takes them from the last.
    pub ranges: Vec<KeyRange>,
    /// How many leading fields have in the ranges exactly what their bounds hold.
    pub decided_fields: usize,
    pub direction: Direction,
    /// Arrays, or several paths, may stand behind the entries of a document: a predicate of a field
    /// need not hold for the value of each of them.
    pub multikey: bool,
    /// A document may come more than once.
    pub repeats: bool,
}

impl IndexAccess {
    /// The index that is scanned, as the plan sees it.
    pub fn spec<'a>(&'a self, indexes: &'a [IndexSpec]) -> &'a IndexSpec {
        self.expanded.as_deref().unwrap_or(&indexes[self.index])
    }
}

/// A plan.
#[derive(Clone, Debug)]
pub struct Plan {
    pub access: Access,
    /// The documents come in the order of the sort; otherwise the caller sorts them.
    pub sort_provided: bool,
    /// Every document of the access matches: the filter is empty, or the access decides all of it.
    pub filter_satisfied: bool,
    /// The entries of the index have all that the projection keeps, but for fields that are null
    /// in them, which may be missing.
    pub covered: bool,
}

impl Plan {
    /// Whether the caller has to sort.
    pub fn needs_sort(&self, sort: Option<&SortPattern>) -> bool {
        sort.is_some_and(|sort| !sort.is_empty()) && !self.sort_provided
    }

    /// The indexes the plan uses, by place in the request's list.
    pub fn indexes_used(&self) -> Vec<usize> {
        match &self.access {
            Access::Index(access) => vec![access.index],
            Access::Union(branches) => branches.iter().map(|b| b.index).collect(),
            Access::Merge(branches) => branches.iter().map(|b| b.scan.index).collect(),
            Access::Near(access) => vec![access.index],
            _ => Vec::new(),
        }
    }
}

/// Chooses a plan without a trial.
pub fn plan(request: &PlanRequest<'_>) -> Result<Plan> {
    Ok(choose::plans(request)?.swap_remove(0))
}

/// The plans that a trial can choose from, at least one: first that which is the likeliest to be
/// the best.
pub fn plans(request: &PlanRequest<'_>) -> Result<Vec<Plan>> {
    choose::plans(request)
}

impl Plan {
    /// The stages of a `count` by this plan.
    pub fn explain_count(&self, request: &PlanRequest<'_>) -> ExplainStage {
        explain::count_stages(self, request)
    }

    /// The stages that explain prints, from the outermost.
    pub fn explain(
        &self,
        request: &PlanRequest<'_>,
        skip: Option<i64>,
        limit: Option<i64>,
        projection: Option<&RawDocument>,
    ) -> ExplainStage {
        explain::stages(self, request, skip, limit, projection)
    }
}
