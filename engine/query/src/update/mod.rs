//! Updates: replacements and operators, applied to raw documents.

mod apply;
mod apply_diff;
mod array;
mod diff;
mod filters;
mod operator;
mod parse;
mod path;
mod pipeline;
mod storage;
mod tree;
mod upsert;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_diff;
#[cfg(test)]
mod tests_items;

use std::cell::Cell;
use std::sync::Arc;

use pinion_bson::{
    ObjectId, RawArray, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, values_equal,
};
use pinion_collation::Collation;
use pinion_wire::Result;

use crate::error::{error, failed_to_parse};
use crate::expression::Variables;
use crate::matcher::Matcher;
use crate::pipeline::Pipeline;
use crate::text::element_text;
use crate::value::{elements, field};

pub use apply_diff::apply_diff;
pub(crate) use apply_diff::sections_of;
pub(crate) use array::ItemSort;
pub use diff::diff;
pub use storage::{check_storable, prepare_insert};

use apply::{Applying, NameOrder, Node, Timestamps};
use filters::ArrayFilters;
use parse::Entry;
use tree::Slot;

/// A parsed update.
#[derive(Clone, Debug)]
pub struct Update {
    kind: Kind,
    keeps_empty_timestamps: bool,
    timestamps: usize,
    /// How strings compare.
    collation: Option<Arc<Collation>>,
    /// How large the update is itself, some of which each document that it changes takes in.
    source_bytes: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    Replacement(RawDocumentBuf),
    /// The document that the oplog has in place of another: whatever its fields are called, it was
    /// stored once.
    Logged(RawDocumentBuf),
    Operators {
        entries: Vec<Entry>,
        filters: ArrayFilters,
        tree: Option<Node>,
    },
    Pipeline(Pipeline),
    /// The difference of two documents, as the oplog has it.
    Diff(RawDocumentBuf),
}

/// What an update needs to know beside the document.
#[derive(Clone, Copy, Debug)]
pub struct UpdateContext {
    /// The time for `$currentDate`, milliseconds since 1970.
    pub now_ms: i64,
    /// The first of the timestamps for `$currentDate` and for empty timestamps, of which each gets
    /// its own: the caller has set aside as many as [`Update::timestamps`] says.
    pub timestamp: Timestamp,
    /// Whether the document is being inserted by an upsert.
    pub insert: bool,
    /// The array position that the filter matched at.
    pub position: Option<u32>,
}

impl Update {
    /// Parses an update; the errors are MongoDB's.
    pub fn parse(update: RawBsonRef<'_>) -> Result<Update> {
        Update::parse_with(update, None, &Variables::default())
    }

    /// An update that the oplog has as `{$v: 2, diff: ...}`.
    pub fn from_diff(diff: &RawDocument) -> Update {
        Update::from_log(Kind::Diff(diff.to_owned()), diff)
    }

    /// An update that the oplog has as the whole document. Its fields may begin with `$`, which
    /// those of a client's replacement may not: pipelines and upserts make such documents.
    pub fn from_logged(document: &RawDocument) -> Update {
        Update::from_log(Kind::Logged(document.to_owned()), document)
    }

    /// An update that the oplog has as operators, of MongoDB before 5.0. New fields are made in the
    /// order of their names, numbers among them.
    ///
    /// # Errors
    /// Those of [`Update::parse`].
    pub fn from_logged_operators(operators: &RawDocument) -> Result<Update> {
        let mut update =
            Update::parse(RawBsonRef::Document(operators))?.keeping_empty_timestamps(true);
        if let Kind::Operators { entries, tree, .. } = &mut update.kind {
            *tree = Some(apply::build(entries, None, NameOrder::Bytes)?);
        }
        Ok(update)
    }

    fn from_log(kind: Kind, source: &RawDocument) -> Update {
        Update {
            kind,
            keeps_empty_timestamps: true,
            timestamps: 0,
            collation: None,
            source_bytes: source.as_bytes().len(),
        }
    }

    /// Parses an update with its `arrayFilters`; a pipeline may use these variables, and strings
    /// compare by their collation.
    pub fn parse_with(
        update: RawBsonRef<'_>,
        filters: Option<&RawArray>,
        variables: &Variables,
    ) -> Result<Update> {
        let source_bytes = crate::value::bytes(update);
        crate::work::spend_bytes(source_bytes)?;
        let collation = variables.collation.clone();
        let document = match update {
            RawBsonRef::Document(document) => document,
            RawBsonRef::Array(stages) => {
                if filters.is_some_and(|filters| !filters.is_empty()) {
                    return Err(failed_to_parse(
                        "arrayFilters may not be specified for pipeline-syle updates",
                    ));
                }
                return Ok(Update {
                    kind: Kind::Pipeline(pipeline::parse(stages, variables)?),
                    keeps_empty_timestamps: false,
                    timestamps: 0,
                    collation,
                    source_bytes,
                });
            }
            _ => {
                return Err(failed_to_parse(
                    "Update argument must be either an object or an array",
                ));
            }
        };
        let filters = filters
            .map(|filters| ArrayFilters::parse(filters, collation.as_ref()))
            .transpose()?
            .unwrap_or_default();
        if !Update::is_replacement_document(update) {
            let entries = parse::parse(document, &filters, collation.as_ref())?;
            let positional = entries.iter().any(|e| e.path.has_matched());
            let tree = if positional {
                None
            } else {
                Some(apply::build(&entries, None, NameOrder::Numbers)?)
            };
            let is_timestamp = |entry: &&Entry| entry.operator.makes_timestamp();
            return Ok(Update {
                timestamps: entries.iter().filter(is_timestamp).count(),
                kind: Kind::Operators {
                    entries,
                    filters,
                    tree,
                },
                keeps_empty_timestamps: false,
                collation,
                source_bytes,
            });
        }
        if !filters.is_empty() {
            return Err(failed_to_parse(
                "arrayFilters may not be specified for replacement-style updates",
            ));
        }
        Ok(Update {
            kind: Kind::Replacement(document.to_owned()),
            keeps_empty_timestamps: false,
            timestamps: storage::count_empty_timestamps(document),
            collation,
            source_bytes,
        })
    }

    /// The same update that, with `keep`, stores empty timestamps as they are instead of filling in
    /// the present one.
    pub fn keeping_empty_timestamps(self, keep: bool) -> Update {
        Update {
            keeps_empty_timestamps: keep,
            ..self
        }
    }

    /// See [`Update::keeping_empty_timestamps`].
    pub fn keeps_empty_timestamps(&self) -> bool {
        self.keeps_empty_timestamps
    }

    /// How many timestamps the update writes into a document. Operators on the items of arrays may
    /// share them.
    pub fn timestamps(&self) -> usize {
        self.timestamps
    }

    /// Whether an update that is not parsed yet is a document to put in place of another.
    pub fn is_replacement_document(update: RawBsonRef<'_>) -> bool {
        matches!(update, RawBsonRef::Document(document)
            if elements(document).next().is_none_or(|(name, _)| !name.starts_with('$')))
    }

    /// Whether the whole document is replaced.
    pub fn is_replacement(&self) -> bool {
        matches!(self.kind, Kind::Replacement(_) | Kind::Logged(_))
    }

    /// The paths that operators change; `None` where the update is no list of operators.
    pub fn operator_paths(&self) -> Option<impl Iterator<Item = &str>> {
        match &self.kind {
            Kind::Operators { entries, .. } => Some(entries.iter().map(|entry| entry.path.text())),
            Kind::Replacement(_) | Kind::Logged(_) | Kind::Pipeline(_) | Kind::Diff(_) => None,
        }
    }

    /// Whether the filter's match must give the array position (`$` in a path).
    pub fn needs_position(&self) -> bool {
        matches!(&self.kind, Kind::Operators { tree: None, .. })
    }

    /// The document after the update; `None` when nothing changes.
    pub fn apply(
        &self,
        old: &RawDocument,
        context: &UpdateContext,
    ) -> Result<Option<RawDocumentBuf>> {
        crate::work::spend_bytes(old.as_bytes().len() + self.source_bytes)?;
        let mut rewrote = false;
        let new = match &self.kind {
            Kind::Replacement(replacement) => {
                let filler = (!self.keeps_empty_timestamps)
                    .then(|| Timestamps::new(context.timestamp, self.timestamps));
                check_replacement(replacement)?;
                replace(old, replacement, filler.as_ref())?
            }
            Kind::Logged(document) => replace(old, document, None)?,
            Kind::Pipeline(pipeline) => replace(old, &pipeline.transform(old)?, None)?,
            Kind::Diff(diff) => replace(old, &apply_diff(old, diff)?, None)?,
            Kind::Operators {
                entries,
                filters,
                tree,
            } => {
                let applying = Applying {
                    now_ms: context.now_ms,
                    timestamps: Timestamps::new(context.timestamp, self.timestamps),
                    insert: context.insert,
                    collation: self.collation.as_deref(),
                    filters,
                    root: old,
                    rewrote: Cell::new(false),
                };
                let mut root = Slot::open(old);
                match tree {
                    Some(tree) => apply::apply(tree, &mut root, &applying)?,
                    None => apply::apply(
                        &apply::build(entries, context.position, NameOrder::Numbers)?,
                        &mut root,
                        &applying,
                    )?,
                }
                let new = tree::finish(&root, old.as_bytes().len());
                if !context.insert {
                    check_dollar_fields(old, &new, entries)?;
                }
                rewrote = applying.rewrote.get();
                new
            }
        };
        // A replacement is compared as it was given: one that leaves out the `_id` always counts as
        // a change.
        let same = match &self.kind {
            Kind::Replacement(replacement) | Kind::Logged(replacement) => {
                replacement.as_bytes() == old.as_bytes()
            }
            Kind::Operators { .. } | Kind::Pipeline(_) | Kind::Diff(_) => {
                new.as_bytes() == old.as_bytes()
            }
        };
        if same && !rewrote {
            return Ok(None);
        }
        check_storable(&new)?;
        Ok(Some(new))
    }

    /// The document that an upsert inserts: the filter's equalities, the update, and an `_id`.
    pub fn upsert(
        &self,
        matcher: &Matcher,
        context: &UpdateContext,
        new_id: ObjectId,
    ) -> Result<RawDocumentBuf> {
        let context = UpdateContext {
            insert: true,
            position: None,
            ..*context
        };
        let base = upsert::base_document(matcher, self.is_replacement())?;
        let made = self.apply(&base, &context)?.unwrap_or(base);
        let made = upsert::with_id(made, new_id);
        check_storable(&made)?;
        Ok(made)
    }
}

/// Refuses a replacement that could be taken for operators, once there is a document to replace.
/// What a pipeline makes cannot be.
fn check_replacement(replacement: &RawDocument) -> Result<()> {
    for (name, _) in elements(replacement) {
        if name.starts_with('$') {
            return Err(error(
                52,
                format!(
                    "The dollar ($) prefixed field '{name}' in '{name}' is not allowed in the context of an update's \
                     replacement document. Consider using an aggregation pipeline with $replaceWith."
                ),
            ));
        }
    }
    Ok(())
}

/// The new document under the old `_id`; empty timestamps are filled in where some are given.
fn replace(
    old: &RawDocument,
    replacement: &RawDocument,
    timestamps: Option<&Timestamps>,
) -> Result<RawDocumentBuf> {
    let old_id = field(old, "_id");
    let new_id = field(replacement, "_id");
    if let (Some(old_id), Some(new_id)) = (old_id, new_id)
        && !values_equal(old_id, new_id)
    {
        return Err(error(
            66,
            format!(
                "After applying the update, the (immutable) field '_id' was found to have been altered to {}",
                element_text("_id", new_id)
            ),
        ));
    }
    let mut out = pinion_bson::DocBuilder::with_capacity(replacement.as_bytes().len() + 32);
    // An `_id` that is equal, if of another numeric type, is stored as the replacement has it.
    if let Some(id) = new_id.or(old_id) {
        out.append("_id", id);
    }
    storage::append_without_id(&mut out, replacement, timestamps);
    Ok(out.finish())
}

/// A top-level field with a dollar sign in front can be inserted but not made by an update.
fn check_dollar_fields(old: &RawDocument, new: &RawDocument, entries: &[Entry]) -> Result<()> {
    for entry in entries {
        let text = entry.path.text();
        let name = text.split('.').next().unwrap_or_default();
        if !name.starts_with('$') {
            continue;
        }
        let made = field(new, name);
        if made.is_some() && made != field(old, name) {
            return Err(error(
                52,
                format!(
                    "The dollar ($) prefixed field '{name}' in '{text}' is not valid for storage."
                ),
            ));
        }
    }
    Ok(())
}
