//! Groups and counts made in parts: each partition groups what it has, and what it knows of its groups is put together.
//!
//! Only what comes out the same however the documents lie is divided. What depends on their order after all, as sums of
//! doubles do in their last digits, shows while it runs: then a part or the merge fails, and whoever asked runs the
//! pipeline as a whole.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_wire::ErrorCode;

use super::row::StageDivision;
use super::stage::StageKind;
use super::{Document, Pipeline, PipelineParts, Stage};
use crate::error::error;

/// A pipeline whose first stages every partition runs over its own documents.
#[derive(Clone, Debug)]
pub struct Division {
    /// What a partition runs.
    pub part: Pipeline,
    /// What is run on all that the parts give, in any order.
    pub merge: Pipeline,
    /// What is left behind that.
    pub rest: Pipeline,
}

impl PipelineParts {
    /// The pipeline in parts, if that gives the same.
    pub fn division(&self) -> Option<Division> {
        if self.sort.is_some() || self.limit.is_some() || !self.tells.is_empty() {
            return None;
        }
        let stages = &self.rest.stages;
        let at = stages.iter().position(|stage| !is_of_one_document(stage))?;
        if division_of(&stages[at]) != StageDivision::Partial {
            return None;
        }
        let (part, merge) = match &stages[at].kind {
            StageKind::Group(group) if group.is_divisible() => (
                StageKind::PartialGroup(group.clone()),
                StageKind::MergedGroup(group.clone()),
            ),
            StageKind::Count(name) => (
                StageKind::Count(name.clone()),
                StageKind::MergedCount(name.clone()),
            ),
            _ => return None,
        };
        let stage = |kind| Stage {
            kind,
            source: RawDocumentBuf::new(),
        };
        let before = stages[..at].iter().cloned();
        Some(Division {
            part: Pipeline {
                stages: before.chain([stage(part)]).collect(),
            },
            merge: Pipeline {
                stages: vec![stage(merge)],
            },
            rest: Pipeline {
                stages: stages[at + 1..].to_vec(),
            },
        })
    }
}

impl Division {
    /// Whether the parts do nothing but count documents.
    pub fn only_counts(&self) -> bool {
        match &self.part.stages[..] {
            [stage] => match &stage.kind {
                StageKind::Count(_) => true,
                StageKind::PartialGroup(group) => group.only_counts(),
                _ => false,
            },
            _ => false,
        }
    }

    /// What a part that only counts gives for so many documents; `None` for none.
    pub fn counted(&self, documents: u64) -> Option<Document> {
        let count = RawBsonRef::Int64(i64::try_from(documents).ok()?);
        if documents == 0 {
            return None;
        }
        match &self.part.stages.first()?.kind {
            StageKind::Count(name) => {
                let mut out = DocBuilder::new();
                out.append(name, count);
                Some(out.finish().into())
            }
            StageKind::PartialGroup(group) => group.counted(count),
            _ => None,
        }
    }
}

/// What partitions can do of a stage.
fn division_of(stage: &Stage) -> StageDivision {
    match &stage.kind {
        // What a filter knows of each document; no pipeline can name it.
        StageKind::Known(_) => StageDivision::PerDocument,
        _ => (stage.row()).map_or(StageDivision::Whole, |row| row.division),
    }
}

/// Whether a stage looks at each document alone.
fn is_of_one_document(stage: &Stage) -> bool {
    match (division_of(stage), &stage.kind) {
        (StageDivision::PerDocument, _) => true,
        (StageDivision::PerBucket, StageKind::Unpack(unpack)) => unpack.is_of_one_bucket(),
        _ => false,
    }
}

/// The error of a part, or of a merge, whose result would depend on the order of the documents.
pub(super) fn depends_on_order() -> pinion_wire::Error {
    error(
        ErrorCode::INTERNAL_ERROR.0,
        "the result depends on the order of the documents",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::{MetaKind, MetaSet, Metadata, Variables};
    use crate::pipeline::keyed;
    use crate::pipeline::tests::outputs;
    use crate::work::Units;
    use pinion_bson::{RawBson, rawbson, rawdoc};

    fn parts(stages: &RawBson) -> PipelineParts {
        let RawBson::Array(stages) = stages else {
            panic!("an array of stages");
        };
        let variables = Variables::default();
        let pipeline = Pipeline::parse(stages, &variables).expect("parses");
        pipeline.divide(None, &variables).expect("divides")
    }

    /// What the parts make of documents that are dealt out to them; fails where they have to run as a whole.
    fn divided(
        division: &Division,
        documents: &[RawDocumentBuf],
        count: usize,
    ) -> pinion_wire::Result<Vec<RawDocumentBuf>> {
        let mut partial = Vec::new();
        for part in 0..count {
            let dealt = documents.iter().skip(part).step_by(count).cloned();
            let stages = division.part.clone();
            partial.extend(outputs(stages, dealt.collect(), Units::MAX)?.0);
        }
        partial.reverse();
        let merged = outputs(division.merge.clone(), partial, Units::MAX)?.0;
        Ok(outputs(division.rest.clone(), merged, Units::MAX)?.0)
    }

    fn documents() -> Vec<RawDocumentBuf> {
        let document = |i: i32| rawdoc! { "_id": i, "k": i * 7 % 5, "n": i64::from(i) * 1000, "l": [i, i % 3], "t": "x".repeat((i % 4) as usize) };
        (0..50).map(document).collect()
    }

    #[track_caller]
    fn check(stages: RawBson) {
        let parts = parts(&stages);
        let division = parts.division().expect("it can be divided");
        let whole = outputs(parts.rest.clone(), documents(), Units::MAX).expect("it runs");
        for count in [1, 2, 3, 7] {
            let found = divided(&division, &documents(), count).expect("it runs");
            assert_eq!(found, whole.0, "{stages:?} in {count}");
        }
        if division.only_counts() {
            let counted = division.counted(50).into_iter();
            let counted = counted
                .map(|d| pinion_bson::RawDocument::to_owned(&d))
                .collect();
            let merged = outputs(division.merge, counted, Units::MAX).expect("it runs");
            assert_eq!(merged.0, whole.0, "{stages:?} by count");
            assert!(parts.division().expect("as before").counted(0).is_none());
        }
    }

    #[test]
    fn parts_make_the_whole() {
        check(
            rawbson!([{ "$group": { "_id": "$k", "n": { "$sum": 1 }, "s": { "$sum": "$n" }, "a": { "$avg": "$_id" } } }]),
        );
        check(rawbson!([{ "$group": { "_id": null, "n": { "$sum": 1 }, "c": { "$count": {} } } }]));
        check(
            rawbson!([{ "$group": { "_id": { "t": "$t", "k": "$k" }, "min": { "$min": "$n" }, "max": { "$max": "$t" } } }, { "$limit": 3 }]),
        );
        check(rawbson!([{ "$unwind": "$l" }, { "$sortByCount": "$l" }]));
        check(
            rawbson!([{ "$project": { "k": 1 } }, { "$match": { "k": { "$gt": 2 } } }, { "$count": "n" }]),
        );
        check(rawbson!([{ "$count": "n" }]));
        check(rawbson!([{ "$group": { "_id": "$t" } }]));
    }

    #[track_caller]
    fn check_whole(stages: RawBson) {
        assert!(parts(&stages).division().is_none(), "{stages:?}");
    }

    #[test]
    fn a_pipeline_that_reads_index_keys_runs_as_a_whole_over_keyed_documents() {
        let stages =
            rawbson!([{ "$group": { "_id": { "$meta": "indexKey" }, "n": { "$sum": 1 } } }]);
        let parts = parts(&stages);
        assert!(parts.tells.contains(MetaKind::IndexKey));
        assert!(parts.division().is_none());
        assert_eq!(
            parts.rest.sources().count(),
            1,
            "explain shows the stages that were written"
        );
        let metadata = Metadata::default().with(MetaKind::IndexKey, rawdoc! { "k": 7 });
        let keyed = documents()
            .iter()
            .map(|document| keyed(document, &metadata).expect("within the budget"))
            .collect();
        let found = outputs(parts.rest, keyed, Units::MAX).expect("it runs").0;
        assert_eq!(found, [rawdoc! { "_id": { "k": 7 }, "n": 50 }]);
    }

    #[test]
    fn keys_that_no_stage_reads_are_not_given() {
        let both = rawbson!([{ "$project": { "i": { "$meta": "indexKey" }, "r": { "$meta": "recordId" } } }]);
        assert_eq!(
            parts(&both).tells,
            MetaSet::of([MetaKind::IndexKey, MetaKind::RecordId])
        );
        let check = |stages: RawBson| assert!(parts(&stages).tells.is_empty(), "{stages:?}");
        check(rawbson!([{ "$group": { "_id": "$k" } }]));
        check(rawbson!([{ "$match": { "k": 1 } }]));
    }

    #[test]
    fn what_depends_on_the_order_is_not_divided() {
        check_whole(rawbson!([{ "$group": { "_id": "$k", "all": { "$push": "$n" } } }]));
        check_whole(
            rawbson!([{ "$group": { "_id": "$k", "n": { "$sum": 1 }, "f": { "$first": "$n" } } }]),
        );
        check_whole(rawbson!([{ "$sort": { "n": 1 } }, { "$count": "n" }]));
        check_whole(rawbson!([{ "$limit": 7 }, { "$count": "n" }]));
        check_whole(rawbson!([{ "$project": { "n": 1 } }, { "$skip": 7 }, { "$count": "n" }]));
        check_whole(rawbson!([{ "$project": { "n": 1 } }]));
    }

    #[track_caller]
    fn check_refused(stages: RawBson, documents: &[RawDocumentBuf]) {
        let division = parts(&stages).division().expect("it is divided");
        assert!(divided(&division, documents, 2).is_err(), "{stages:?}");
    }

    #[test]
    fn what_turns_out_to_depend_on_the_order_fails() {
        let two = |a: RawBson, b: RawBson| [rawdoc! { "v": a }, rawdoc! { "v": b }];
        let sum = || rawbson!([{ "$group": { "_id": null, "r": { "$sum": "$v" } } }]);
        check_refused(sum(), &two(rawbson!(1), rawbson!(0.1)));
        let max = rawbson!([{ "$group": { "_id": null, "r": { "$max": "$v" } } }]);
        check_refused(max, &two(rawbson!(1), rawbson!(1.0)));
        let key = rawbson!([{ "$group": { "_id": "$v" } }]);
        check_refused(key, &two(rawbson!({ "a": 1 }), rawbson!({ "a": 1_i64 })));
    }
}
