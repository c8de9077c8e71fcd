//! What stages read of documents beside their fields, and whether anything before them gives it.

use pinion_wire::Result;

use super::stage::{Stage, StageKind};
use super::{ExternalStage, Pipeline};
use crate::error::error;
use crate::expression::{MetaKind, MetaSet};
use crate::sort::SortPattern;

impl Stage {
    /// Whether the stage looks at the score of a text search.
    pub(super) fn reads_score(&self) -> bool {
        self.reads().contains(MetaKind::TextScore)
    }

    /// What the stage reads.
    pub(super) fn reads(&self) -> MetaSet {
        match &self.kind {
            StageKind::Match(matcher) => matcher.reads(),
            StageKind::Project(projection) => projection.reads(),
            StageKind::Sort(sort) => sort.reads(),
            StageKind::Group(group) | StageKind::PartialGroup(group) => group.reads(),
            StageKind::BucketAuto(buckets) => buckets.reads(),
            StageKind::Window(fields) => fields.reads(),
            StageKind::ReplaceRoot(expression, _) | StageKind::Redact(expression) => {
                expression.reads()
            }
            StageKind::Facet(facet)
            | StageKind::PartialFacet(facet)
            | StageKind::MergedFacet(facet) => all(&facet.0),
            StageKind::External(outside) => match &**outside {
                ExternalStage::Facet(branches) => all(branches),
                ExternalStage::Lookup(lookup) => lookup.reads(),
                ExternalStage::GraphLookup(lookup) => lookup.reads(),
                ExternalStage::Merge(merge) => merge.reads(),
                ExternalStage::UnionWith(_) | ExternalStage::Out(_) => MetaSet::default(),
            },
            StageKind::Rank(ranks) => ranks.reads(),
            StageKind::SortKeys(sort) => sort.reads(),
            StageKind::Showing(kinds) => *kinds,
            StageKind::Known(_)
            | StageKind::Keyed
            | StageKind::Fuse(_)
            | StageKind::Skip(_)
            | StageKind::Limit(_)
            | StageKind::Count(_)
            | StageKind::MergedGroup(_)
            | StageKind::MergedCount(_)
            | StageKind::Unwind(_)
            | StageKind::Unpack(_)
            | StageKind::GeoNear(_)
            | StageKind::Densify(_)
            | StageKind::Sample(_) => MetaSet::default(),
        }
    }

    /// What is known behind the stage, of what is known before it.
    fn passes(&self, known: MetaSet) -> MetaSet {
        match &self.kind {
            StageKind::Match(matcher) => known.union(matcher.provides()),
            StageKind::GeoNear(_) => {
                let mut known = known;
                known.insert(MetaKind::GeoNearDistance);
                known.insert(MetaKind::GeoNearPoint);
                known
            }
            StageKind::Fuse(fusion) => known.union(fusion.provides()),
            StageKind::Sort(_) | StageKind::SortKeys(_) => {
                known.union(MetaSet::of([MetaKind::SortKey]))
            }
            StageKind::Sample(sample) if sample.gives_numbers => {
                known.union(MetaSet::of([MetaKind::SortKey, MetaKind::RandVal]))
            }
            // The records of a series are its buckets.
            StageKind::Unpack(_) => {
                let mut known = known;
                known.remove(MetaKind::RecordId);
                known
            }
            // Their documents are made of many.
            StageKind::Group(_)
            | StageKind::BucketAuto(_)
            | StageKind::Count(_)
            | StageKind::Facet(_)
            | StageKind::PartialFacet(_)
            | StageKind::MergedFacet(_) => MetaSet::default(),
            StageKind::External(outside) if matches!(**outside, ExternalStage::Facet(_)) => {
                MetaSet::default()
            }
            _ => known,
        }
    }
}

fn all(branches: &[(String, Pipeline)]) -> MetaSet {
    branches
        .iter()
        .map(|(_, pipeline)| pipeline.reads())
        .fold(MetaSet::default(), MetaSet::union)
}

impl Pipeline {
    /// Whether the stages look at the scores of a text search.
    pub fn reads_scores(&self) -> bool {
        self.stages.iter().any(Stage::reads_score)
    }

    /// What the stages read.
    pub(super) fn reads(&self) -> MetaSet {
        self.stages
            .iter()
            .map(Stage::reads)
            .fold(MetaSet::default(), MetaSet::union)
    }

    /// What the stages give.
    pub(super) fn gives(&self) -> MetaSet {
        let stages = self.stages.iter();
        stages.fold(MetaSet::default(), |known, stage| stage.passes(known))
    }

    /// What the stages read that none of them gives.
    pub(super) fn needs(&self) -> MetaSet {
        let (mut needed, mut known) = (MetaSet::default(), MetaSet::default());
        for stage in &self.stages {
            let mut missing = stage.reads();
            known.iter().for_each(|kind| missing.remove(kind));
            needed = needed.union(missing);
            known = stage.passes(known);
        }
        needed
    }

    /// Refuses stages that read what nothing before them gives.
    pub(super) fn check_metadata(&self, given: MetaSet) -> Result<()> {
        let mut known = given;
        for stage in &self.stages {
            let facets = match &stage.kind {
                StageKind::Facet(facet) => Some(&facet.0),
                _ => None,
            };
            match facets {
                Some(branches) => {
                    for (_, inner) in branches {
                        inner.check_metadata(known)?;
                    }
                }
                None => {
                    // A filter may read what its own `$text` provides.
                    let known = match &stage.kind {
                        StageKind::Match(matcher) => known.union(matcher.provides()),
                        _ => known,
                    };
                    for kind in stage.reads().iter() {
                        kind.check_given(known.contains(kind))?;
                        if matches!(stage.kind, StageKind::Match(_)) {
                            kind.refuse_before_read()?;
                        }
                    }
                }
            }
            known = stage.passes(known);
        }
        Ok(())
    }

    /// Puts behind each sort what adds the values that it orders by, where a later stage reads
    /// them; a limit stays with its sort, which needs to keep no more.
    pub(super) fn with_sort_keys(mut self) -> Pipeline {
        for at in (0..self.stages.len()).rev() {
            let StageKind::Sort(pattern) = &self.stages[at].kind else {
                continue;
            };
            let mut later = self.stages[at + 1..].iter().map(Stage::reads);
            if !later.any(|reads| reads.contains(MetaKind::SortKey)) {
                continue;
            }
            let pattern = pattern.clone();
            self.insert_sort_keys(at, pattern);
        }
        self
    }

    /// Puts what adds the values of an order behind the stage at this place, which gives that
    /// order, and behind its limit.
    pub(super) fn insert_sort_keys(&mut self, at: usize, pattern: SortPattern) {
        let behind = self.behind_order(at);
        let stage = Stage::unnamed(StageKind::SortKeys(pattern));
        self.stages.insert(behind, stage);
    }

    /// The place behind the stage at this one, which gives an order, and behind its limit.
    pub(super) fn behind_order(&self, at: usize) -> usize {
        let is_limited = |stage: &Stage| matches!(stage.kind, StageKind::Limit(_));
        at + 1 + usize::from(self.stages.get(at + 1).is_some_and(is_limited))
    }

    /// Refuses a `$text` anywhere but at the front.
    pub(super) fn check_text(&self, at_front: bool) -> Result<()> {
        let behind = self.stages.iter().skip(usize::from(at_front));
        for stage in behind {
            if matches!(&stage.kind, StageKind::Match(matcher) if matcher.has_text()) {
                return Err(error(
                    17313,
                    "$match with $text is only allowed as the first pipeline stage",
                ));
            }
        }
        Ok(())
    }

    /// Whether a `$text` is at the front.
    pub(super) fn has_text(&self) -> bool {
        let first = self.stages.first().map(|stage| &stage.kind);
        matches!(first, Some(StageKind::Match(matcher)) if matcher.has_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::Variables;
    use crate::pipeline::tests::outputs;
    use crate::work::Units;
    use pinion_bson::{RawArrayBuf, RawBson, RawDocument, rawbson, rawdoc};

    fn parsed(stages: &RawBson) -> Result<Pipeline> {
        let RawBson::Array(stages) = stages else {
            panic!("an array of stages");
        };
        Pipeline::parse(stages, &Variables::default())
    }

    /// Checks which sort keys the documents have in the end, each with the `_id` in front.
    #[track_caller]
    fn check_keys(stages: RawBson, expected: RawBson) {
        let documents = (1..=3).map(|n| rawdoc! { "_id": n, "a": 10 - n, "l": [n, 7] });
        let pipeline = parsed(&stages).expect("it parses");
        let is_written = |source: &RawDocument| !source.is_empty();
        assert!(
            pipeline.sources().all(is_written),
            "explain shows the stages that were written"
        );
        let found = outputs(pipeline, documents.collect(), Units::MAX).expect("it runs");
        let mut shown = RawArrayBuf::new();
        for document in &found.0 {
            shown.push(pinion_bson::get(document, "_id").map_or(RawBson::Null, RawBson::from));
            shown.push(pinion_bson::get(document, "k").map_or(RawBson::Null, RawBson::from));
        }
        assert_eq!(RawBson::Array(shown), expected, "{stages:?}");
    }

    #[test]
    fn sorts_provide_their_keys() {
        let show = || rawdoc! { "$project": { "k": { "$meta": "sortKey" } } };
        let sort = || rawdoc! { "$sort": { "a": 1 } };
        check_keys(
            rawbson!([sort(), show()]),
            rawbson!([3, [7], 2, [8], 1, [9]]),
        );
        check_keys(
            rawbson!([sort(), { "$limit": 1 }, show()]),
            rawbson!([3, [7]]),
        );
        check_keys(
            rawbson!([sort(), { "$skip": 1 }, { "$limit": 1 }, { "$unwind": "$l" }, show()]),
            rawbson!([2, [8], 2, [8]]),
        );
        // The last sort counts, and each element that is not there is null.
        check_keys(
            rawbson!([sort(), { "$sort": { "l": -1, "x": 1 } }, { "$limit": 1 }, show()]),
            rawbson!([3, [7, null]]),
        );
        check_keys(
            rawbson!([sort(), { "$group": { "_id": { "$meta": "sortKey" } } }, { "$sort": { "_id": 1 } }]),
            rawbson!([[7], null, [8], null, [9], null]),
        );
    }

    #[test]
    fn metadata_that_nothing_gives_is_refused() {
        #[track_caller]
        fn check(stages: RawBson, expected: Option<i32>) {
            let code = parsed(&stages).err().map(|error| error.code.0);
            assert_eq!(code, expected, "{stages:?}");
        }
        let read = |kind: &str| rawdoc! { "$project": { "k": { "$meta": kind } } };
        let group = || rawdoc! { "$group": { "_id": "$a" } };
        let sort = || rawdoc! { "$sort": { "a": 1 } };
        check(rawbson!([read("sortKey")]), Some(40218));
        check(rawbson!([sort(), group(), read("sortKey")]), Some(40218));
        check(rawbson!([group(), sort(), read("sortKey")]), None);
        check(
            rawbson!([sort(), { "$facet": { "f": [read("sortKey")] } }]),
            None,
        );
        check(rawbson!([read("recordId")]), None);
        check(rawbson!([group(), read("recordId")]), Some(40218));
        check(
            rawbson!([{ "$match": { "$expr": { "$meta": "recordId" } } }]),
            Some(115),
        );
    }
}
