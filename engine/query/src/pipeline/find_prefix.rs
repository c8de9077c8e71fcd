//! The front of a pipeline that is a find, and the stages behind it.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_wire::Result;

use super::fields::restrict;
use super::stage::StageKind;
use super::{Pipeline, Stage};
use crate::expression::{MetaKind, MetaSet, Variables};
use crate::index::IndexSpec;
use crate::matcher::Matcher;
use crate::sort::SortPattern;
use crate::value::{field, is_empty};

/// What a find over the partitions does of a pipeline, and the stages behind it.
#[derive(Clone, Debug)]
pub(super) struct FindPrefix {
    /// The leading `$match` stages as one filter.
    pub matcher: Matcher,
    /// The sort that comes next.
    pub sort: Option<SortPattern>,
    /// How many documents are wanted at most after filter and sort.
    pub limit: Option<i64>,
    /// What the read gives with its documents, as `keyed` writes both: of what the stages behind it
    /// read.
    pub metadata: MetaSet,
    /// What is left to run on the merged documents.
    pub rest: Pipeline,
}

impl Pipeline {
    /// Takes off the front what a find can do over a collection with these indexes, if there is
    /// one.
    pub(super) fn find_prefix(
        self,
        indexes: Option<&[IndexSpec]>,
        variables: &Variables,
    ) -> Result<FindPrefix> {
        let mut prefix = self.taken_apart(indexes, variables)?;
        if let Some(indexes) = indexes {
            prefix.matcher = prefix.matcher.with_text_index(indexes)?;
        }
        if let Some(source) = prefix.matcher.meta_source(prefix.rest.reads()) {
            let known = Stage::unnamed(StageKind::Known(source));
            prefix.rest.stages.insert(0, known);
        }
        prefix.read_metadata();
        restrict(&mut prefix.rest.stages)?;
        Ok(prefix)
    }

    fn taken_apart(
        mut self,
        indexes: Option<&[IndexSpec]>,
        variables: &Variables,
    ) -> Result<FindPrefix> {
        if let Some(StageKind::GeoNear(stage)) = self.stages.first().map(|stage| &stage.kind) {
            let matcher = Matcher::parse_query(&stage.filter()?, variables)?;
            return Ok(self.behind_geo_near(matcher));
        }
        filters_before_sorts(&mut self.stages);
        if let Some(StageKind::Unpack(unpack)) = self.stages.first().map(|stage| &stage.kind) {
            let unpack = unpack.clone();
            return self.behind_unpacking(unpack, indexes, variables);
        }
        let mut stages = self.stages.into_iter().peekable();
        let mut filters: Vec<RawDocumentBuf> = Vec::new();
        while let Some(StageKind::Match(matcher)) = stages.peek().map(|stage| &stage.kind) {
            filters.push(matcher.filter().to_owned());
            stages.next();
        }
        let matcher = match &filters[..] {
            [] => Matcher::parse(&RawDocumentBuf::new())?,
            [filter] => Matcher::parse_with(filter, variables)?,
            filters => Matcher::parse_with(&join_filters(filters), variables)?,
        };
        let mut sort = None;
        if let Some(StageKind::Sort(pattern)) = stages.peek().map(|stage| &stage.kind) {
            sort = Some(pattern.clone());
            stages.next();
        }
        let limit = match stages.peek().map(|stage| &stage.kind) {
            Some(StageKind::Limit(limit)) => Some(*limit),
            _ => None,
        };
        if limit.is_some() {
            stages.next();
        }
        Ok(FindPrefix {
            matcher,
            sort,
            limit,
            metadata: MetaSet::default(),
            rest: Pipeline {
                stages: stages.collect(),
            },
        })
    }
}

impl Pipeline {
    /// The parts where a `$geoNear` is at the front: it continues to add distances to the documents
    /// that the filter gives in their order, each by itself, so that a limit behind it is one of
    /// the read.
    fn behind_geo_near(mut self, matcher: Matcher) -> FindPrefix {
        let limit = match self.stages.get(1).map(|stage| &stage.kind) {
            Some(StageKind::Limit(limit)) => Some(*limit),
            _ => None,
        };
        if limit.is_some() {
            self.stages.remove(1);
        }
        FindPrefix {
            matcher,
            sort: None,
            limit,
            metadata: MetaSet::default(),
            rest: self,
        }
    }
}

impl FindPrefix {
    /// Has the read give what the stages read of how it finds documents.
    fn read_metadata(&mut self) {
        let kinds: &[MetaKind] = match self.rest.stages.first().map(|stage| &stage.kind) {
            None | Some(StageKind::Unpack(_)) => &[],
            // Distances and scores come from indexes whose keys are not those of the documents.
            Some(StageKind::GeoNear(_) | StageKind::Known(_)) => &[MetaKind::RecordId],
            Some(_) => &[MetaKind::RecordId, MetaKind::IndexKey],
        };
        let given = MetaSet::of(kinds.iter().copied());
        self.metadata = self.rest.reads().intersection(given);
        if !self.metadata.is_empty() {
            self.rest.stages.insert(0, Stage::unnamed(StageKind::Keyed));
        }
    }
}

/// Moves filters that follow a sort in front of it: the same documents come out, and an index may
/// find them.
fn filters_before_sorts(stages: &mut [Stage]) {
    let is_filter = |stage: &Stage| matches!(stage.kind, StageKind::Match(_));
    let is_sort = |stage: &Stage| matches!(stage.kind, StageKind::Sort(_) | StageKind::SortKeys(_));
    for mut at in 1..stages.len() {
        while at > 0 && is_filter(&stages[at]) && is_sort(&stages[at - 1]) {
            stages.swap(at - 1, at);
            at -= 1;
        }
    }
}

pub(super) fn join_filters(filters: &[RawDocumentBuf]) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.start_array("$and");
    for filter in filters.iter().filter(|filter| !is_empty(filter)) {
        out.push(RawBsonRef::Document(filter));
    }
    out.end();
    let joined = out.finish();
    match field(&joined, "$and") {
        Some(RawBsonRef::Array(filters)) if filters.is_empty() => RawDocumentBuf::new(),
        _ => joined,
    }
}
