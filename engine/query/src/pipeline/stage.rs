//! The stages of a parsed pipeline, and what each of them is when at work.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_wire::Result;

use super::ExternalStage;
use super::bucket_auto::{BucketAuto, Bucketing};
use super::densify::{Densify, Densifying};
use super::facet::{Facet, Faceting};
use super::fusion::{Fusing, Fusion, Ranking, Ranks};
use super::geo_near::GeoNear;
use super::group::Group;
use super::grouping::{Grouping, Role};
use super::keyed::Unkeying;
use super::row::{StageRow, stage_row_of};
use super::sample::Sample;
use super::shards_part::Shown;
use super::sorting::Sorting;
use super::step::Step;
use super::steps::{
    Counting, Filtering, Knowing, Limiting, Ordered, Redacting, Skipping, Transforming,
};
use super::unwind::{Unwind, Unwinding};
use super::window::{WindowFields, Windows};
use crate::error::error;
use crate::expression::{Expression, MetaSet, Subject};
use crate::matcher::{Matcher, MetaSource};
use crate::projection::Projection;
use crate::series::{Unpack, Unpacking};
use crate::sort::SortPattern;
use crate::spill::Memory;
use crate::text::{document_text, value_text};
use crate::work;

/// A parsed stage with the document that it was parsed from.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub kind: StageKind,
    pub source: RawDocumentBuf,
}

#[derive(Clone, Debug)]
pub(super) enum StageKind {
    Match(Matcher),
    /// The metadata that a filter provides for what it has found, as far as other stages read it.
    Known(MetaSource),
    /// Takes what a read knows of its documents off what it gives.
    Keyed,
    /// The values that the sort before it orders by, as far as other stages read them.
    SortKeys(SortPattern),
    /// Shows what is known of documents in fields of theirs, for MongoDB 4.4's mongos.
    Showing(MetaSet),
    Project(Projection),
    Sort(SortPattern),
    Skip(i64),
    Limit(i64),
    Count(String),
    Group(Group),
    /// A group of one partition's documents, and what puts those together.
    PartialGroup(Group),
    MergedGroup(Group),
    /// The sum of the counts that partitions give under this name.
    MergedCount(String),
    Unwind(Unwind),
    /// With the words that the error for a value that is no document begins with.
    ReplaceRoot(Expression, &'static str),
    Redact(Expression),
    Facet(Facet),
    /// What the pipelines give of one partition's documents, and what puts that together.
    PartialFacet(Facet),
    MergedFacet(Facet),
    GeoNear(GeoNear),
    /// What the caller performs.
    External(Arc<ExternalStage>),
    BucketAuto(BucketAuto),
    Sample(Sample),
    /// The functions of `$setWindowFields`, behind its sort.
    Window(Arc<WindowFields>),
    /// `$_internalUnpackBucket`.
    Unpack(Unpack),
    /// What `$densify` makes, behind its sort.
    Densify(Arc<Densify>),
    /// The places of an input pipeline's documents.
    Rank(Arc<Ranks>),
    /// The scores that are made of places.
    Fuse(Arc<Fusion>),
}

impl Stage {
    /// A stage that does the work of another one, under the name and the specification that say
    /// what it does.
    pub(super) fn made<'v>(name: &str, spec: impl Into<RawBsonRef<'v>>, kind: StageKind) -> Stage {
        let mut source = DocBuilder::new();
        source.append(name, spec);
        Stage {
            kind,
            source: source.finish(),
        }
    }

    /// A stage that no pipeline can name.
    pub(super) fn unnamed(kind: StageKind) -> Stage {
        Stage {
            kind,
            source: RawDocumentBuf::new(),
        }
    }

    /// The row of the stage whose name it has; `None` for one that no pipeline can name.
    pub(super) fn row(&self) -> Option<&'static StageRow> {
        stage_row_of(&self.source)
    }

    /// The stage at work; `limit` is how many of its documents are wanted at most.
    pub(super) fn into_step(self, limit: Option<usize>, memory: &Memory) -> Box<dyn Step> {
        match self.kind {
            StageKind::Match(matcher) => Box::new(Filtering(matcher)),
            StageKind::Known(source) => Box::new(Knowing(source)),
            StageKind::Keyed => Box::new(Unkeying),
            StageKind::SortKeys(pattern) => Box::new(Ordered(pattern)),
            StageKind::Showing(kinds) => Box::new(Shown(kinds)),
            StageKind::Sort(pattern) => Box::new(Sorting::new(pattern, limit, memory)),
            StageKind::Skip(amount) => Box::new(Skipping(amount)),
            StageKind::Limit(amount) => Box::new(Limiting(amount)),
            StageKind::Count(name) => Box::new(Counting::new(name)),
            StageKind::Group(group) => Box::new(Grouping::new(group, Role::Whole, memory)),
            StageKind::PartialGroup(group) => Box::new(Grouping::new(group, Role::Part, memory)),
            StageKind::MergedGroup(group) => Box::new(Grouping::new(group, Role::Merge, memory)),
            StageKind::MergedCount(name) => Box::new(Counting::of_counts(name)),
            StageKind::Unwind(unwind) => Box::new(Unwinding::new(unwind)),
            StageKind::Redact(expression) => Box::new(Redacting(expression)),
            StageKind::Facet(facet) => Box::new(Faceting::new(facet, Role::Whole, memory)),
            StageKind::PartialFacet(facet) => Box::new(Faceting::new(facet, Role::Part, memory)),
            StageKind::MergedFacet(facet) => Box::new(Faceting::new(facet, Role::Merge, memory)),
            StageKind::BucketAuto(buckets) => Box::new(Bucketing::new(buckets, memory)),
            StageKind::Sample(sample) => Box::new(Sorting::sample(sample, memory)),
            StageKind::Window(fields) => Box::new(Windows::new(fields, memory)),
            StageKind::Unpack(unpack) => Box::new(Unpacking::new(unpack)),
            StageKind::Densify(densify) => Box::new(Densifying::new(densify)),
            StageKind::Rank(ranks) => Box::new(Ranking::new(ranks)),
            StageKind::Fuse(fusion) => Box::new(Fusing(fusion)),
            StageKind::Project(_) | StageKind::ReplaceRoot(..) | StageKind::GeoNear(_) => {
                Box::new(Transforming(self))
            }
            StageKind::External(_) => {
                unreachable!("a run is made of what lies between such stages")
            }
        }
    }

    /// What a stage that makes one document out of one makes of it; `None` for other stages.
    pub(super) fn transform(&self, subject: Subject<'_>) -> Result<Option<RawDocumentBuf>> {
        let document = subject.document;
        match &self.kind {
            StageKind::Project(projection) => projection.apply(subject, None).map(Some),
            StageKind::GeoNear(stage) => stage.transform(document).map(Some),
            StageKind::ReplaceRoot(expression, what) => {
                let value = expression.evaluate(subject)?;
                work::spend_bytes(value.bytes())?;
                match value.as_ref() {
                    Some(RawBsonRef::Document(new_root)) => Ok(Some(new_root.to_owned())),
                    other => Err(error(
                        40228,
                        format!(
                            "{what}must evaluate to an object, but resulting value was: {}. Type of resulting value: \
                             '{}'. Input document: {}",
                            other.map_or_else(|| "MISSING".into(), value_text),
                            value.type_name(),
                            document_text(document)
                        ),
                    )),
                }
            }
            _ => Ok(None),
        }
    }
}

/// How many documents are wanted of a stage: a limit behind it, with the skips in between.
pub(super) fn limit_behind(stages: &[Stage]) -> Option<usize> {
    let mut skipped = 0_i64;
    for stage in stages {
        match &stage.kind {
            StageKind::Skip(amount) => skipped = skipped.saturating_add(*amount),
            StageKind::Limit(amount) => {
                return usize::try_from(amount.saturating_add(skipped)).ok();
            }
            StageKind::Project(_) | StageKind::ReplaceRoot(..) | StageKind::SortKeys(_) => {}
            _ => return None,
        }
    }
    None
}
