//! What is true of a stage wherever a pipeline is looked at. Each stage has one such row, and
//! whatever treats stages differently asks the row, not the name.

use std::sync::LazyLock;

use pinion_bson::{RawBsonRef, RawDocument};
use rustc_hash::FxHashMap;

use super::rows::ROWS;
use crate::value::{elements, first};

/// How a pipeline takes a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageSupport {
    /// Parsed and run as a part of the pipeline.
    Pipeline,
    /// Makes its documents itself: whatever runs a command's pipeline takes it off the front.
    Front,
    /// The same; MongoDB also has it in front of pipelines inside of stages, this server does not.
    FrontHere,
    /// Of a change stream, which takes it off the front.
    Stream,
    /// MongoDB has it and this server does not.
    Unsupported,
}

/// Whether a stage in front makes its documents itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MakesDocuments {
    No,
    Yes,
    /// On the members of a replica set.
    OnMembers,
}

/// The pipelines that stand in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InnerPipelines {
    None,
    /// It has none, and reads another collection.
    Foreign,
    /// One, which is its `pipeline`, over another collection.
    Pipeline,
    /// One in each of its fields, over the same documents.
    Facets,
    /// One in each field of `input.pipelines`, over the same collection.
    Inputs,
}

/// What partitions do of a stage beside their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageDivision {
    /// All of it: it looks at each document alone.
    PerDocument,
    /// All of it if it looks at each bucket alone.
    PerBucket,
    /// A part, which is put together with those of the others.
    Partial,
    /// Nothing: it has to see all documents. What parts do of sorts and limits all the same, the
    /// splitter knows.
    Whole,
}

/// Whether a stage may stand in the pipeline of a `$lookup` or a `$unionWith`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InSubPipeline {
    Yes,
    /// Refused with this code.
    No(i32),
}

/// Whether a stage may stand in the definition of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InViews {
    Yes,
    /// It writes, wherever it stands.
    Output,
    /// It reads no collection, which a view needs.
    WithoutCollection,
    /// It is a change stream.
    Stream,
}

/// Whether a stage is in version 1 of the stable API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageApi {
    No,
    Yes,
    /// With these options alone.
    Only(&'static [&'static str]),
    /// Unless it has one of these options.
    Without(&'static [&'static str]),
}

/// Which read concerns a stage can be had with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageReadConcern {
    Any,
    /// All but `linearizable`.
    NotLinearizable,
    /// It shows the state of this node, for which only `local` means anything.
    Local,
}

/// Where a router has a stage run. Routing declares it for each stage; until then nothing reads
/// this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageRouting {
    Undeclared,
}

/// The row of a stage. A row has an answer to each question: nothing is so by default.
#[derive(Clone, Copy, Debug)]
pub struct StageRow {
    pub name: &'static str,
    pub support: StageSupport,
    /// Stands only in front of a pipeline.
    pub first_only: bool,
    pub makes_documents: MakesDocuments,
    /// Shows the collection that is read, and not its documents.
    pub shows_collection: bool,
    /// Writes what comes to it, and gives nothing.
    pub writes: bool,
    pub inner: InnerPipelines,
    pub division: StageDivision,
    /// Gives its documents in an order, when it begins an input pipeline of a stage that ranks.
    pub ranks: bool,
    /// Leaves documents as they are, so it may stand in an input pipeline of a stage that ranks.
    pub selects: bool,
    pub in_facet: bool,
    pub in_lookup: InSubPipeline,
    pub in_union: InSubPipeline,
    pub in_views: InViews,
    /// Makes one document out of one, so an update may have it.
    pub in_updates: bool,
    /// Shows neither the node nor writes: a transaction may have it.
    pub in_transactions: bool,
    pub read_concern: StageReadConcern,
    pub api_v1: StageApi,
    pub routing: StageRouting,
}

static BY_NAME: LazyLock<FxHashMap<&'static str, &'static StageRow>> = LazyLock::new(|| {
    let by_name: FxHashMap<_, _> = ROWS.iter().map(|row| (row.name, row)).collect();
    assert_eq!(by_name.len(), ROWS.len(), "a stage has one row");
    by_name
});

/// The row of the stage that has this name.
pub fn stage_row(name: &str) -> Option<&'static StageRow> {
    BY_NAME.get(name).copied()
}

/// The row of a stage as a pipeline has it, with its specification.
pub fn stage_row_of(stage: &RawDocument) -> Option<&'static StageRow> {
    first(stage).and_then(|(name, _)| stage_row(name))
}

/// The names of all stages that can be run.
pub fn stage_names() -> impl Iterator<Item = &'static str> {
    let kept = ROWS
        .iter()
        .filter(|row| row.support != StageSupport::Unsupported);
    kept.map(|row| row.name)
}

impl StageRow {
    /// Whether MongoDB has the stage and the parser of pipelines refuses it.
    pub(super) fn is_lacking(&self) -> bool {
        self.support != StageSupport::Pipeline
    }

    /// Whether the stage makes its documents itself and is known at the front of a command's
    /// pipeline.
    pub(super) fn is_of_front(&self) -> bool {
        matches!(self.support, StageSupport::Front | StageSupport::FrontHere)
    }

    /// Whether the stage combines the documents of several pipelines.
    pub(super) fn is_fusion(&self) -> bool {
        self.inner == InnerPipelines::Inputs
    }

    /// Whether version 1 of the stable API has the stage with this specification.
    pub(super) fn is_in_v1(&self, spec: RawBsonRef<'_>) -> bool {
        match (self.api_v1, spec) {
            (StageApi::No, _) => false,
            (StageApi::Only(allowed), RawBsonRef::Document(spec)) => {
                elements(spec).all(|(option, _)| allowed.contains(&option))
            }
            (StageApi::Without(others), RawBsonRef::Document(spec)) => {
                !elements(spec).any(|(option, _)| others.contains(&option))
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests;
