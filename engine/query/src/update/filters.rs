//! `arrayFilters`: which items of an array the `$[identifier]` of a path stands for.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawArray, RawBsonRef, RawDocument};
use pinion_collation::Collation;
use pinion_wire::Result;

use crate::error::{bad_value, failed_to_parse};
use crate::matcher::{Matcher, Node};
use crate::value::{is_empty, is_nullish, items};

/// The filters of one update.
#[derive(Clone, Debug, Default)]
pub(super) struct ArrayFilters {
    filters: Vec<ArrayFilter>,
}

/// A filter whose paths all begin with its identifier.
#[derive(Clone, Debug)]
struct ArrayFilter {
    identifier: Box<str>,
    matcher: Matcher,
}

impl ArrayFilters {
    pub(super) fn parse(
        list: &RawArray,
        collation: Option<&Arc<Collation>>,
    ) -> Result<ArrayFilters> {
        let mut filters = ArrayFilters::default();
        for item in items(list) {
            let document = match item {
                RawBsonRef::Document(document) => document,
                // Lists of documents may hold nulls, which stand for nothing.
                item if is_nullish(item) => continue,
                _ => {
                    return Err(crate::error::type_mismatch(
                        "the elements of arrayFilters must be objects",
                    ));
                }
            };
            let filter = ArrayFilter::parse(document, collation)
                .map_err(|e| e.context("Error parsing array filter"))?;
            let Some(filter) = filter else {
                return Err(failed_to_parse(
                    "Cannot use an expression without a top-level field name in arrayFilters",
                ));
            };
            if filters.knows(&filter.identifier) {
                return Err(failed_to_parse(format!(
                    "Found multiple array filters with the same top-level field name {}",
                    filter.identifier
                )));
            }
            filters.filters.push(filter);
        }
        Ok(filters)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    pub(super) fn identifiers(&self) -> impl Iterator<Item = &str> {
        self.filters.iter().map(|filter| &*filter.identifier)
    }

    pub(super) fn knows(&self, identifier: &str) -> bool {
        self.identifiers().any(|known| known == identifier)
    }

    /// Whether the identifier stands for this item; the empty one (`$[]`) stands for all.
    pub(super) fn selects(&self, identifier: &str, item: RawBsonRef<'_>) -> Result<bool> {
        if identifier.is_empty() {
            return Ok(true);
        }
        let Some(filter) = self.filters.iter().find(|f| &*f.identifier == identifier) else {
            return Ok(false);
        };
        let mut document = DocBuilder::new();
        document.append(identifier, item);
        filter.matcher.matches(&document.finish())
    }
}

impl ArrayFilter {
    /// The filter, unless no field stands in it.
    fn parse(
        document: &RawDocument,
        collation: Option<&Arc<Collation>>,
    ) -> Result<Option<ArrayFilter>> {
        let matcher = Matcher::parse_nested(document, collation)?;
        if is_empty(document) {
            return Ok(None);
        }
        let mut found = None;
        top_level_name(matcher.root(), &mut found)?;
        let Some(identifier) = found.map(Box::<str>::from) else {
            return Ok(None);
        };
        let plain = identifier.starts_with(|c: char| c.is_ascii_lowercase())
            && identifier.bytes().all(|b| b.is_ascii_alphanumeric());
        if !plain {
            return Err(bad_value(format!(
                "The top-level field name must be an alphanumeric string beginning with a lowercase letter, found \
                 '{identifier}'"
            )));
        }
        Ok(Some(ArrayFilter {
            identifier,
            matcher,
        }))
    }
}

/// The first component that all paths of a filter share.
fn top_level_name<'n>(node: &'n Node, found: &mut Option<&'n str>) -> Result<()> {
    match node {
        Node::And(children) | Node::Or(children) | Node::Nor(children) => children
            .iter()
            .try_for_each(|child| top_level_name(child, found)),
        Node::Not(child) => top_level_name(child, found),
        Node::Leaf(leaf) => {
            let name = leaf.path.text().split('.').next().unwrap_or_default();
            match found {
                Some(known) if *known != name => Err(failed_to_parse(format!(
                    "Expected a single top-level field name, found '{known}' and '{name}'"
                ))),
                _ => {
                    *found = Some(name);
                    Ok(())
                }
            }
        }
        Node::AlwaysTrue
        | Node::AlwaysFalse
        | Node::Expr(..)
        | Node::Schema(..)
        | Node::Text(_) => Ok(()),
    }
}
