//! A pipeline split into what the parts of a read do with the documents that they find, and what is
//! done with what all of them give.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::divided::DividedPipeline;
use super::find_prefix::FindPrefix;
use super::partial::PartialPipeline;
use super::row::StageDivision;
use super::stage::{Stage, StageKind, limit_behind};
use super::{Document, Pipeline};
use crate::expression::{MetaSet, Variables};
use crate::index::IndexSpec;
use crate::matcher::Matcher;
use crate::sort::SortPattern;

/// A pipeline over a collection: a find, what its parts do beside that, and the stages behind it.
#[derive(Clone, Debug)]
pub struct SplitPipeline {
    /// The leading `$match` stages as one filter.
    pub matcher: Matcher,
    /// The sort that comes next.
    pub sort: Option<SortPattern>,
    /// How many documents are wanted at most after filter and sort.
    pub limit: Option<i64>,
    /// What the read gives with its documents, as `keyed` writes both: of what the stages behind it
    /// read.
    pub metadata: MetaSet,
    /// What each part runs over the documents that it finds, if there is something.
    pub part: Option<Arc<PartStages>>,
    /// What runs over what all parts give, in its order.
    pub merger: Pipeline,
}

/// What a part runs over the documents that it finds. The documents that come out are in the order
/// of the sort, if there is one, and else of those that they were made of.
#[derive(Clone, Debug)]
pub struct PartStages {
    /// Stages that look at each document alone.
    before: Pipeline,
    sort: Option<Stage>,
    keep: Option<usize>,
    /// Stages behind the sort, or behind that of the read, which make one document of one.
    after: Pipeline,
    /// How many limits of the merger were written between the two.
    limits: usize,
}

impl Pipeline {
    /// Splits the pipeline over a collection with these indexes, if there is one.
    pub fn split(
        self,
        indexes: Option<&[IndexSpec]>,
        variables: &Variables,
    ) -> Result<SplitPipeline> {
        let FindPrefix {
            matcher,
            sort,
            limit,
            metadata,
            rest,
        } = self.find_prefix(indexes, variables)?;
        let (part, merger) = match sort.is_some() || limit.is_some() {
            true => split_behind_order(rest),
            false => split_stages(rest),
        };
        Ok(SplitPipeline {
            matcher,
            sort,
            limit,
            metadata,
            part: part.map(Arc::new),
            merger,
        })
    }
}

/// The stages behind a sort or a limit of the read: parts make of each document what is wanted of
/// it.
fn split_behind_order(mut rest: Pipeline) -> (Option<PartStages>, Pipeline) {
    let after = count_leading(&rest.stages, Stage::makes_one_of_one);
    if after == 0 || reads_metadata(&rest.stages[after..]) {
        return (None, rest);
    }
    let merger = rest.stages.split_off(after);
    let part = PartStages {
        before: Pipeline { stages: Vec::new() },
        sort: None,
        keep: None,
        after: rest,
        limits: 0,
    };
    (Some(part), Pipeline { stages: merger })
}

/// The stages behind a filter.
fn split_stages(mut rest: Pipeline) -> (Option<PartStages>, Pipeline) {
    let before = count_leading(&rest.stages, Stage::is_of_one_document);
    let behind = &rest.stages[before..];
    let has_sort = (behind.first()).is_some_and(|stage| matches!(stage.kind, StageKind::Sort(_)));
    // A sort at the front is the read's.
    if before == 0 || reads_metadata(&behind[usize::from(has_sort)..]) {
        return (None, rest);
    }
    let mut behind = rest.stages.split_off(before);
    let keep = limit_behind(&behind[usize::from(has_sort)..]);
    let sort = has_sort.then(|| behind.remove(0));
    let (mut after, mut limits) = (Vec::new(), 0);
    if has_sort {
        // A document that is skipped is not looked at, so nothing is made of one in front of a
        // skip. One behind a limit is not either: what it fails with has its place behind that.
        limits = count_leading(&behind, |stage| matches!(stage.kind, StageKind::Limit(_)));
        let made = count_leading(&behind[limits..], Stage::makes_one_of_one);
        after = behind.drain(limits..limits + made).collect();
    }
    let part = PartStages {
        before: rest,
        sort,
        keep,
        after: Pipeline { stages: after },
        limits,
    };
    (Some(part), Pipeline { stages: behind })
}

/// How many stages at the front are of a kind.
fn count_leading(stages: &[Stage], is_of_kind: impl Fn(&Stage) -> bool) -> usize {
    stages.iter().take_while(|stage| is_of_kind(stage)).count()
}

/// Whether stages read of documents what does not leave a part with them.
fn reads_metadata(stages: &[Stage]) -> bool {
    stages.iter().any(|stage| !stage.reads().is_empty())
}

impl Stage {
    /// What parts can do of the stage.
    pub(super) fn division(&self) -> StageDivision {
        match &self.kind {
            // What a read knows of each document; no pipeline can name them.
            StageKind::Known(_) | StageKind::Keyed => StageDivision::PerDocument,
            _ => (self.row()).map_or(StageDivision::Whole, |row| row.division),
        }
    }

    /// Whether the stage looks at each document alone.
    pub(super) fn is_of_one_document(&self) -> bool {
        match (self.division(), &self.kind) {
            (StageDivision::PerDocument, _) => true,
            (StageDivision::PerBucket, StageKind::Unpack(unpack)) => unpack.is_of_one_bucket(),
            _ => false,
        }
    }

    /// Whether the stage makes of each document another one, of its fields alone.
    fn makes_one_of_one(&self) -> bool {
        matches!(
            self.kind,
            StageKind::Project(_) | StageKind::ReplaceRoot(..)
        ) && self.reads().is_empty()
    }
}

impl Pipeline {
    /// Whether the stages do more than select documents and fields.
    fn computes(&self) -> bool {
        self.stages.iter().any(|stage| match &stage.kind {
            StageKind::Match(_) | StageKind::Known(_) | StageKind::Keyed => false,
            StageKind::Project(projection) => projection.computes(),
            _ => true,
        })
    }
}

impl SplitPipeline {
    /// The groups or the count that parts make of what they find, if that gives the same.
    pub fn partial(&self) -> Option<PartialPipeline> {
        let part = self.part.as_deref();
        if self.sort.is_some()
            || self.limit.is_some()
            || !self.metadata.is_empty()
            || part.is_some_and(|part| part.sort.is_some())
        {
            return None;
        }
        let before = part.map_or(&[][..], |part| &part.before.stages);
        PartialPipeline::of(before.iter().chain(&self.merger.stages))
    }

    /// Whether the stages look at the scores of a text search.
    pub fn reads_scores(&self) -> bool {
        let part = self.part.as_deref();
        self.merger.reads_scores() || part.is_some_and(|part| part.stages().any(Stage::reads_score))
    }

    /// The stages behind the read, where the parts give the documents as they find them.
    pub fn into_whole(self) -> Pipeline {
        let Some(part) = self.part else {
            return self.merger;
        };
        let part = Arc::unwrap_or_clone(part);
        let mut merger = self.merger.stages;
        let behind = merger.split_off(part.limits);
        let stages = part.before.stages.into_iter().chain(part.sort);
        let stages = stages.chain(merger).chain(part.after.stages);
        Pipeline {
            stages: stages.chain(behind).collect(),
        }
    }

    /// The same pipeline divided for parts that run stages of clients.
    pub(super) fn divided(self) -> DividedPipeline {
        let mut stages = Vec::new();
        if !self.matcher.is_empty() {
            let filter = RawBsonRef::Document(self.matcher.filter());
            stages.push(stage_of("$match", filter));
        }
        let (matcher, limit) = (self.matcher.clone(), self.limit);
        let mut sort = self.sort.clone();
        let mut keep = limit;
        let mut taken = 0;
        if sort.is_none()
            && limit.is_none()
            && let Some(part) = self.part.as_deref()
        {
            taken = part.before.stages.len() + usize::from(part.sort.is_some());
            stages.extend(part.before.sources().map(RawDocument::to_owned));
            sort = part.sort().cloned();
            keep = part.keep.and_then(|keep| i64::try_from(keep).ok());
        }
        if let Some(sort) = &sort {
            stages.push(stage_of("$sort", RawBsonRef::Document(sort.source())));
        }
        if let Some(keep) = keep.filter(|_| sort.is_some() || limit.is_some()) {
            stages.push(stage_of("$limit", RawBsonRef::Int64(keep)));
        }
        let mut rest = self.into_whole();
        rest.stages.drain(..taken);
        DividedPipeline {
            matcher,
            stages,
            sort,
            is_near: false,
            limit,
            metadata: MetaSet::default(),
            rest,
        }
        .with_metadata()
    }

    /// The stages behind the read as they were written: what the parts do, and what is done with
    /// what they give; `None` where the parts do nothing but find documents. A plan may keep them
    /// from making groups, or from running stages at all.
    pub fn shown_parts(
        &self,
        makes_groups: bool,
        runs_stages: bool,
    ) -> Option<[Vec<RawDocumentBuf>; 2]> {
        let shown = |pipeline: &Pipeline| -> Vec<RawDocumentBuf> {
            pipeline.sources().map(RawDocument::to_owned).collect()
        };
        if let Some(partial) = self.partial().filter(|_| makes_groups) {
            let mut merger = shown(&partial.merge);
            merger.extend(shown(&partial.rest));
            return Some([shown(&partial.part), merger]);
        }
        let part = self.part.as_deref().filter(|_| runs_stages)?;
        let stages = part.stages().cloned().collect();
        Some([shown(&Pipeline { stages }), shown(&self.merger)])
    }
}

/// A stage as it is written.
pub(super) fn stage_of(name: &str, value: RawBsonRef<'_>) -> RawDocumentBuf {
    let mut stage = DocBuilder::new();
    stage.append(name, value);
    stage.finish()
}

impl PartStages {
    fn stages(&self) -> impl Iterator<Item = &Stage> {
        let stages = self.before.stages.iter().chain(&self.sort);
        stages.chain(&self.after.stages)
    }

    /// What looks at each document that is found.
    pub fn before(&self) -> &Pipeline {
        &self.before
    }

    /// The order of what that gives.
    pub fn sort(&self) -> Option<&SortPattern> {
        match &self.sort.as_ref()?.kind {
            StageKind::Sort(pattern) => Some(pattern),
            other => unreachable!("{other:?} is no sort"),
        }
    }

    /// How many of its documents are wanted at most, of all parts together.
    pub fn keep(&self) -> Option<usize> {
        self.keep
    }

    /// Whether what is made of a document, before it is sorted if it is, may take long, or be much
    /// larger than it.
    pub fn computes(&self) -> bool {
        self.before.computes()
    }

    /// The same of what is made as it leaves the part.
    pub fn computes_at_end(&self) -> bool {
        self.after.computes()
    }

    /// The key of a document in the order of the sort, without what decides between equal ones.
    ///
    /// # Errors
    /// The document has no such key; there is no sort.
    pub fn sort_key(&self, document: &Document) -> Result<Vec<u8>> {
        let sort = self.sort().expect("asked where there is a sort");
        sort.value_key(document)
    }

    /// Whether documents change as they leave the part.
    pub fn changes_at_end(&self) -> bool {
        !self.after.stages.is_empty()
    }

    /// What leaves the part in the place of a document.
    ///
    /// # Errors
    /// Those of the stages.
    pub fn finish(&self, document: &RawDocument) -> Result<Bytes> {
        let made = self.after.transform(document)?;
        Ok(Bytes::from(made.into_bytes()))
    }
}

#[cfg(test)]
mod tests;
