//! Stages that read or write outside of the documents that come to them. What they ask for is
//! parsed and computed here; the caller performs it between the runs of the stages before and
//! behind them.

mod graph;
mod lookup;
mod merge;
mod nested;
mod output;
mod union;

use pinion_bson::{DocBuilder, RawArray, RawArrayBuf, RawBsonRef, RawDocument};
use pinion_wire::Result;

use crate::error::{error, failed_to_parse};
use crate::value::{first, items};

pub use graph::{GraphLookup, Traversal};
pub use lookup::Lookup;
pub use merge::{Merge, MergeWrite, NotMatched};
pub use output::OutputTo;
pub use union::UnionWith;

use super::Pipeline;
use super::row::{InSubPipeline, StageRow, stage_row_of};

/// A stage that the caller performs.
#[derive(Clone, Debug)]
pub enum ExternalStage {
    Lookup(Lookup),
    GraphLookup(GraphLookup),
    UnionWith(UnionWith),
    Out(OutputTo),
    Merge(Merge),
    /// `$facet`, where a pipeline in it has such a stage: names with pipelines.
    Facet(Vec<(String, Pipeline)>),
}

impl ExternalStage {
    /// Whether the stage writes what comes to it and gives nothing.
    pub fn writes(&self) -> bool {
        matches!(self, ExternalStage::Out(_) | ExternalStage::Merge(_))
    }
}

/// Refuses stages that may not stand in the pipeline inside of a stage of this name: all those that
/// are refused with the first code come before those of the next.
fn check_inner(
    name: &str,
    stages: &RawArray,
    codes: &[i32],
    allowed: fn(&StageRow) -> InSubPipeline,
) -> Result<()> {
    for code in codes {
        for stage in items(stages) {
            let RawBsonRef::Document(stage) = stage else {
                continue;
            };
            let row = stage_row_of(stage);
            if let Some(row) = row.filter(|row| allowed(row) == InSubPipeline::No(*code)) {
                let inner = row.name;
                return Err(error(
                    *code,
                    format!("{inner} is not allowed within a {name}'s sub-pipeline"),
                ));
            }
        }
    }
    Ok(())
}

/// Refuses what no collection that is read can be called. A name that none can have now, like one
/// with a dollar, is that of a collection which is not there.
fn check_foreign(name: &str) -> Result<()> {
    let fault = match name {
        "" => "collection names cannot be empty",
        name if name.starts_with('.') => "collection names cannot start with '.'",
        name if name.contains('\0') => "collection names cannot have null bytes",
        _ => return Ok(()),
    };
    Err(error(73, format!("Invalid namespace specified: {fault}")))
}

/// A pipeline inside of a stage; `none` where the field is left out.
fn sub_pipeline(name: &str, value: Option<RawBsonRef<'_>>) -> Result<Option<RawArrayBuf>> {
    match value {
        None => Ok(None),
        Some(RawBsonRef::Array(stages)) => Ok(Some(stages.to_owned())),
        Some(_) => Err(crate::error::type_mismatch(format!(
            "{name} 'pipeline' option must be specified as an array"
        ))),
    }
}

/// Whether a sub-pipeline makes its documents itself.
fn begins_with_documents(stages: &RawArray) -> bool {
    match items(stages).next() {
        Some(RawBsonRef::Document(stage)) => {
            first(stage).is_some_and(|(name, _)| name == "$documents")
        }
        _ => false,
    }
}

/// A filter's field for what equals the value. Nothing may be compared with undefined: only
/// undefined is equal to it.
fn append_equality(out: &mut DocBuilder, path: &str, value: RawBsonRef<'_>) {
    out.start_document(path);
    match value {
        RawBsonRef::Undefined => out.append("$type", "undefined"),
        value => out.append_raw("$eq", value),
    };
    out.end();
}

/// A text argument of a stage.
fn text<'d>(stage: &str, name: &str, value: RawBsonRef<'d>) -> Result<&'d str> {
    match value {
        RawBsonRef::String(text) => Ok(text),
        other => Err(failed_to_parse(format!(
            "{stage} argument '{}' must be a string, found {}",
            crate::text::element_text(name, other),
            crate::value::type_name(other)
        ))),
    }
}

/// The fields of a stage's document, which must be one.
fn object<'d>(
    value: RawBsonRef<'d>,
    refused: impl FnOnce() -> pinion_wire::Error,
) -> Result<&'d RawDocument> {
    match value {
        RawBsonRef::Document(document) => Ok(document),
        _ => Err(refused()),
    }
}
