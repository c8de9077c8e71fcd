//! Aggregation pipelines: parsed, split into what the parts of a read do and what is left, and run.

mod bucket;
mod bucket_auto;
mod codes;
mod densify;
mod divided;
mod document;
mod facet;
mod fields;
mod fill;
mod find_prefix;
mod fusion;
mod geo_near;
mod granularity;
mod group;
mod grouping;
mod keyed;
mod metadata;
mod outside;
mod parse;
mod partial;
mod redact;
mod refused;
mod row;
mod rows;
mod rules;
mod run;
mod sample;
mod shards_part;
mod sorting;
mod spec;
mod split;
mod stage;
mod step;
mod steps;
mod unpacked;
mod unwind;
mod window;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use pinion_bson::{RawArray, RawDocument, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_wire::Result;

use self::stage::{Stage, StageKind, limit_behind};
use crate::expression::{MetaKind, MetaSet, Subject, Variables};
use crate::index::IndexSpec;
use crate::spill::Memory;

pub use divided::DividedPipeline;
pub use document::Document;
pub(crate) use fields::FieldNames;
pub use keyed::keyed;
pub use outside::{
    ExternalStage, GraphLookup, Lookup, Merge, MergeWrite, NotMatched, OutputTo, Traversal,
    UnionWith,
};
pub use parse::check_documents;
pub use partial::PartialPipeline;
pub use refused::no_search_server;
pub use row::{
    InSubPipeline, InViews, InnerPipelines, MakesDocuments, StageApi, StageDivision,
    StageReadConcern, StageRouting, StageRow, StageSupport, stage_names, stage_row, stage_row_of,
};
pub use rules::{check_api_v1, check_read_concern, stage_outside_v1};
pub use run::PipelineRun;
pub use split::{PartStages, SplitPipeline};
pub(crate) use step::{Accepted, Produced, Step};
pub use step::{Input, StageRequest};

/// A part of a pipeline.
#[derive(Debug)]
pub enum Segment {
    /// Stages that a [`PipelineRun`] runs.
    Run(Pipeline),
    External(Arc<ExternalStage>),
}

/// A parsed pipeline.
#[derive(Clone, Debug)]
pub struct Pipeline {
    stages: Vec<Stage>,
}

/// What is known of documents in front of a pipeline: of those of a collection the keys under which
/// it holds them.
fn given_by_collection(reads_collection: bool) -> MetaSet {
    MetaSet::of(reads_collection.then_some(MetaKind::RecordId))
}

impl Pipeline {
    /// Parses a pipeline; the errors are MongoDB's.
    pub fn parse(stages: &RawArray, variables: &Variables) -> Result<Pipeline> {
        Pipeline::parse_from(stages, 0, variables)
    }

    /// Parses the stages that an update runs on its documents, which no read gives.
    pub(crate) fn parse_of_update(stages: &RawArray, variables: &Variables) -> Result<Pipeline> {
        let pipeline = Pipeline::parse(stages, variables)?;
        pipeline.check_metadata(MetaSet::default())?;
        Ok(pipeline)
    }

    /// Refuses stages that are none, whatever they are given.
    pub fn check_form(stages: &RawArray) -> Result<()> {
        parse::check_form(stages)
    }

    /// Parses a pipeline without the first `skip` stages.
    pub fn parse_from(stages: &RawArray, skip: usize, variables: &Variables) -> Result<Pipeline> {
        rules::check_depth(stages)?;
        let mut pipeline = Pipeline::parse_inner(stages, skip, variables)?;
        pipeline.check_text(skip == 0)?;
        pipeline.check_metadata(given_by_collection(skip == 0))?;
        codes::mark(&mut pipeline.stages);
        Ok(pipeline)
    }

    /// Parses a pipeline that is a part of a stage.
    fn parse_inner(stages: &RawArray, skip: usize, variables: &Variables) -> Result<Pipeline> {
        let stages = parse::parse(stages, skip, variables)?;
        Ok(Pipeline { stages }.with_sort_keys())
    }

    /// Informs the stages at the front about the collection that is read. A `$geoNear` that does
    /// not say what it searches searches the field of the only geospatial index; where buckets are
    /// unpacked, how their strings compare decides which have to be.
    pub fn locate(
        &mut self,
        indexes: &[IndexSpec],
        collation: Option<&Arc<Collation>>,
        namespace: &str,
    ) -> Result<()> {
        let mut stages = self.stages.iter_mut().map(|stage| &mut stage.kind);
        match (stages.next(), stages.next()) {
            (Some(StageKind::GeoNear(stage)), _) => stage.locate(indexes, namespace, None),
            (Some(StageKind::Unpack(unpack)), behind) => {
                unpack.locate(collation);
                match behind {
                    Some(StageKind::GeoNear(stage)) => {
                        stage.locate(indexes, namespace, Some(&unpack.form))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Parses a pipeline that stands in a stage, but for a `$documents` at its front.
    pub fn parse_sub(stages: &RawArray, variables: &Variables) -> Result<Pipeline> {
        let made = parse::documents_of(stages, variables)?.is_some();
        let pipeline = Pipeline::parse_inner(stages, usize::from(made), variables)?;
        pipeline.check_text(!made)?;
        pipeline.check_metadata(given_by_collection(!made))?;
        Ok(pipeline)
    }

    /// The documents that a `$documents` at the front of a pipeline makes.
    pub fn documents(stages: &RawArray, variables: &Variables) -> Result<Option<Vec<Document>>> {
        parse::documents_of(stages, variables)
    }

    /// Divides the pipeline at the stages that the caller performs.
    pub fn segments(self) -> Vec<Segment> {
        let mut out = Vec::new();
        let mut run = Vec::new();
        for stage in self.stages {
            let outside = match stage.kind {
                StageKind::External(outside) => outside,
                StageKind::Facet(facet) if facet.0.iter().any(|(_, p)| p.reaches_outside()) => {
                    Arc::new(ExternalStage::Facet(facet.0))
                }
                kind => {
                    run.push(Stage { kind, ..stage });
                    continue;
                }
            };
            if !run.is_empty() {
                let stages = std::mem::take(&mut run);
                out.push(Segment::Run(Pipeline { stages }));
            }
            out.push(Segment::External(outside));
        }
        if !run.is_empty() {
            out.push(Segment::Run(Pipeline { stages: run }));
        }
        out
    }

    /// Whether the caller performs any of the stages, also inside of a `$facet`.
    fn reaches_outside(&self) -> bool {
        self.stages.iter().any(|stage| match &stage.kind {
            StageKind::External(_) => true,
            StageKind::Facet(facet) => facet.0.iter().any(|(_, inner)| inner.reaches_outside()),
            _ => false,
        })
    }

    /// The stage that writes what the pipeline makes.
    pub fn output(&self) -> Option<&ExternalStage> {
        match &self.stages.last()?.kind {
            StageKind::External(outside) if outside.writes() => Some(outside),
            _ => None,
        }
    }

    /// Whether there are no stages.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// The documents that the stages were parsed from, or that say what they do.
    pub fn sources(&self) -> impl Iterator<Item = &RawDocument> {
        let written = |stage: &&Stage| {
            !matches!(
                stage.kind,
                StageKind::Known(_)
                    | StageKind::Keyed
                    | StageKind::SortKeys(_)
                    | StageKind::Showing(_)
            )
        };
        self.stages
            .iter()
            .filter(written)
            .map(|stage| &*stage.source)
    }

    /// Whether MongoDB has a stage of this name that the parser refuses.
    pub(crate) fn is_lacking(name: &str) -> bool {
        stage_row(name).is_some_and(StageRow::is_lacking)
    }

    /// What stages that make one document out of one make of it; others leave it alone.
    pub(crate) fn transform(&self, document: &RawDocument) -> Result<RawDocumentBuf> {
        let mut made: Option<RawDocumentBuf> = None;
        for stage in &self.stages {
            let current = made.as_deref().unwrap_or(document);
            if let Some(next) = stage.transform(Subject::from(current))? {
                made = Some(next);
            }
        }
        Ok(made.unwrap_or_else(|| document.to_owned()))
    }

    /// The stages at work.
    fn into_steps(self, memory: &Memory) -> impl Iterator<Item = Box<dyn Step>> {
        let limits: Vec<Option<usize>> = (0..self.stages.len())
            .map(|at| match self.stages[at].kind {
                StageKind::Sort(_) => limit_behind(&self.stages[at + 1..]),
                _ => None,
            })
            .collect();
        let stages = self.stages.into_iter().zip(limits);
        stages.map(move |(stage, limit)| stage.into_step(limit, memory))
    }
}
