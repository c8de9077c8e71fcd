//! Groups and counts made in parts: each part groups what it finds, and what all know of their
//! groups is put together.
//!
//! Only what does not depend on how documents are distributed runs in parts. Where a result depends
//! on their order, each value carries the order of its document. What depends on it beyond that, as
//! the last digits of sums of decimals do, shows while it runs: then a part or the merge fails, and
//! the caller runs the pipeline as a whole.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_wire::ErrorCode;

use super::row::StageDivision;
use super::stage::{Stage, StageKind};
use super::{Document, Pipeline};
use crate::error::error;

/// A pipeline whose first stages every part runs over the documents that it finds.
#[derive(Clone, Debug)]
pub struct PartialPipeline {
    /// What a part runs.
    pub part: Pipeline,
    /// Whether a part has to know the order of its documents among those of all parts.
    pub needs_order: bool,
    /// What is run on all that the parts give, in any order.
    pub merge: Pipeline,
    /// What is left behind that.
    pub rest: Pipeline,
}

impl PartialPipeline {
    /// The stages in parts, if that gives the same.
    pub(super) fn of<'s>(stages: impl Iterator<Item = &'s Stage>) -> Option<PartialPipeline> {
        let mut stages = stages.peekable();
        let mut part = Vec::new();
        while let Some(stage) = stages.next_if(|stage| stage.is_of_one_document()) {
            part.push(stage);
        }
        let divided = stages.next()?;
        if divided.division() != StageDivision::Partial {
            return None;
        }
        let mut needs_order = false;
        let (in_part, merge) = match &divided.kind {
            StageKind::Group(group) if group.is_divisible() => {
                needs_order = group.needs_order();
                let merge = Stage {
                    source: group.merge_source(),
                    kind: StageKind::MergedGroup(group.clone()),
                };
                (StageKind::PartialGroup(group.clone()), merge)
            }
            StageKind::Count(name) => (
                StageKind::Count(name.clone()),
                Stage {
                    source: sum_of_counts(name),
                    kind: StageKind::MergedCount(name.clone()),
                },
            ),
            StageKind::Facet(facet) => {
                let divided = facet.divided()?;
                needs_order = divided.needs_order;
                let merge = Stage {
                    source: divided.merge.source(),
                    kind: StageKind::MergedFacet(divided.merge),
                };
                (StageKind::PartialFacet(divided.in_part), merge)
            }
            _ => return None,
        };
        let in_part = Stage {
            source: match &in_part {
                StageKind::PartialFacet(facet) => facet.source(),
                _ => divided.source.clone(),
            },
            kind: in_part,
        };
        Some(PartialPipeline {
            needs_order,
            part: Pipeline {
                stages: part.into_iter().cloned().chain([in_part]).collect(),
            },
            merge: Pipeline {
                stages: vec![merge],
            },
            rest: Pipeline {
                stages: stages.cloned().collect(),
            },
        })
    }

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

    /// What a part that only counts gives for a number of documents; `None` for none.
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

/// The stage that puts together the counts of parts, as it could be written.
fn sum_of_counts(name: &str) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.start_document("$group")
        .append("_id", RawBsonRef::Null)
        .start_document(name)
        .append("$sum", format!("${name}").as_str());
    out.end().end();
    out.finish()
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
    use crate::pipeline::SplitPipeline;
    use crate::pipeline::keyed;
    use crate::pipeline::tests::outputs;
    use crate::value::elements;
    use crate::work::Units;
    use pinion_bson::{CString, RawBson, rawbson, rawdoc};

    fn split(stages: &RawBson) -> SplitPipeline {
        let RawBson::Array(stages) = stages else {
            panic!("an array of stages");
        };
        let variables = Variables::default();
        let pipeline = Pipeline::parse(stages, &variables).expect("parses");
        pipeline.split(None, &variables).expect("splits")
    }

    /// What the parts make of documents that are dealt out to them; fails where they have to run as
    /// a whole.
    fn in_parts(
        partial: &PartialPipeline,
        documents: &[RawDocumentBuf],
        count: usize,
    ) -> pinion_wire::Result<Vec<RawDocumentBuf>> {
        let mut made = Vec::new();
        for part in 0..count {
            let numbered = documents.iter().cloned().zip(0_u32..);
            let dealt = numbered
                .skip(part)
                .step_by(count)
                .map(|(document, number)| {
                    let document = Document::from(document);
                    match partial.needs_order {
                        true => document.with_order(&number.to_be_bytes()),
                        false => document,
                    }
                });
            let stages = partial.part.clone();
            made.extend(outputs(stages, dealt.collect(), Units::MAX)?.0);
        }
        made.reverse();
        let merged = outputs(partial.merge.clone(), made, Units::MAX)?.0;
        Ok(outputs(partial.rest.clone(), merged, Units::MAX)?.0)
    }

    fn documents() -> Vec<RawDocumentBuf> {
        let document = |i: i32| rawdoc! { "_id": i, "k": i * 7 % 5, "n": i64::from(i) * 1000, "l": [i, i % 3], "t": "x".repeat((i % 4) as usize) };
        (0..50).map(document).collect()
    }

    #[track_caller]
    fn check(stages: RawBson) {
        let split = split(&stages);
        let partial = split.partial().expect("it can be made in parts");
        let whole = outputs(split.clone().into_whole(), documents(), Units::MAX).expect("it runs");
        for count in [1, 2, 3, 7] {
            let found = in_parts(&partial, &documents(), count).expect("it runs");
            assert_eq!(found, whole.0, "{stages:?} in {count}");
        }
        if partial.only_counts() {
            let counted = partial.counted(50).into_iter();
            let counted = counted
                .map(|d| pinion_bson::RawDocument::to_owned(&d))
                .collect();
            let merged = outputs(partial.merge, counted, Units::MAX).expect("it runs");
            assert_eq!(merged.0, whole.0, "{stages:?} by count");
            assert!(split.partial().expect("as before").counted(0).is_none());
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
        check(rawbson!([
            { "$match": { "k": { "$gt": 0 } } },
            { "$facet": {
                "n": [{ "$count": "n" }],
                "none": [{ "$match": { "k": 99 } }, { "$count": "n" }],
                "items": [{ "$unwind": "$l" }, { "$sortByCount": "$l" }, { "$limit": 2 }],
                "ranges": [{ "$bucket": { "groupBy": "$_id", "boundaries": [0, 10, 60], "output": { "a": { "$avg": "$n" } } } }],
            } },
            { "$project": { "n": { "$first": "$n.n" }, "items": 1, "ranges": 1, "none": 1 } },
        ]));
    }

    #[test]
    fn parts_know_the_order_of_their_documents_where_that_counts() {
        let group = |id: &str, fields: RawDocumentBuf| {
            let mut spec = rawdoc! { "_id": id };
            for (name, value) in elements(&fields) {
                let name = CString::try_from(name).expect("no zero byte");
                spec.append(name, RawBson::from(value));
            }
            rawdoc! { "$group": spec }
        };
        let first = group(
            "$k",
            rawdoc! { "f": { "$first": "$n" }, "l": { "$last": "$none" }, "n": { "$sum": "$n" } },
        );
        check(rawbson!([first.clone()]));
        check(rawbson!([group(
            "$k",
            rawdoc! { "all": { "$push": "$_id" }, "t": { "$push": "$none" } }
        )]));
        check(
            rawbson!([{ "$unwind": "$l" }, group("$t", rawdoc! { "all": { "$push": "$l" }, "set": { "$addToSet": "$l" } })]),
        );
        check(rawbson!([group(
            "$k",
            rawdoc! {
                "f": { "$firstN": { "n": 3, "input": "$t" } }, "l": { "$lastN": { "n": 3, "input": "$n" } },
            }
        )]));
        check(rawbson!([group(
            "$k",
            rawdoc! {
                "one": { "$top": { "sortBy": { "t": -1 }, "output": "$_id" } },
                "few": { "$topN": { "n": 3, "sortBy": { "t": 1 }, "output": "$_id" } },
            }
        )]));
        check(rawbson!([{ "$facet": { "f": [first], "n": [{ "$count": "n" }] } }]));
    }

    #[test]
    fn a_facet_is_made_in_parts_where_all_its_pipelines_are() {
        check_whole(
            rawbson!([{ "$facet": { "n": [{ "$count": "n" }], "first": [{ "$limit": 2 }] } }]),
        );
        let split = split(&rawbson!([{ "$facet": { "n": [{ "$count": "c" }] } }]));
        let [part, merger] = split.shown_parts(true, true).expect("it is divided");
        assert_eq!(part, [rawdoc! { "$facet": { "n": [{ "$count": "c" }] } }]);
        let sum = rawdoc! { "$group": { "_id": null, "c": { "$sum": "$c" } } };
        assert_eq!(merger, [rawdoc! { "$facet": { "n": [sum] } }]);
    }

    #[track_caller]
    fn check_whole(stages: RawBson) {
        assert!(split(&stages).partial().is_none(), "{stages:?}");
    }

    #[test]
    fn a_pipeline_that_reads_index_keys_runs_as_a_whole_over_keyed_documents() {
        let stages =
            rawbson!([{ "$group": { "_id": { "$meta": "indexKey" }, "n": { "$sum": 1 } } }]);
        let split = split(&stages);
        assert!(split.metadata.contains(MetaKind::IndexKey));
        assert!(split.partial().is_none());
        let whole = split.into_whole();
        assert_eq!(
            whole.sources().count(),
            1,
            "explain shows the stages that were written"
        );
        let metadata = Metadata::default().with(MetaKind::IndexKey, rawdoc! { "k": 7 });
        let keyed = documents()
            .iter()
            .map(|document| keyed(document, &metadata).expect("within the budget"))
            .collect();
        let found = outputs(whole, keyed, Units::MAX).expect("it runs").0;
        assert_eq!(found, [rawdoc! { "_id": { "k": 7 }, "n": 50 }]);
    }

    #[test]
    fn keys_that_no_stage_reads_are_not_given() {
        let both = rawbson!([{ "$project": { "i": { "$meta": "indexKey" }, "r": { "$meta": "recordId" } } }]);
        assert_eq!(
            split(&both).metadata,
            MetaSet::of([MetaKind::IndexKey, MetaKind::RecordId])
        );
        let check = |stages: RawBson| assert!(split(&stages).metadata.is_empty(), "{stages:?}");
        check(rawbson!([{ "$group": { "_id": "$k" } }]));
        check(rawbson!([{ "$match": { "k": 1 } }]));
    }

    #[test]
    fn what_depends_on_the_order_is_not_made_in_parts() {
        check_whole(rawbson!([{ "$group": { "_id": "$k", "all": { "$mergeObjects": "$o" } } }]));
        check_whole(
            rawbson!([{ "$group": { "_id": "$k", "n": { "$sum": 1 }, "d": { "$stdDevPop": "$n" } } }]),
        );
        check_whole(
            rawbson!([{ "$group": { "_id": "$k", "b": { "$bottom": { "sortBy": { "n": 1 }, "output": "$n" } } } }]),
        );
        check_whole(rawbson!([{ "$sort": { "n": 1 } }, { "$count": "n" }]));
        check_whole(rawbson!([{ "$limit": 7 }, { "$count": "n" }]));
        check_whole(rawbson!([{ "$project": { "n": 1 } }, { "$skip": 7 }, { "$count": "n" }]));
        check_whole(rawbson!([{ "$project": { "n": 1 } }]));
    }

    #[track_caller]
    fn check_refused(stages: RawBson, documents: &[RawDocumentBuf]) {
        let partial = split(&stages).partial().expect("it is made in parts");
        assert!(in_parts(&partial, documents, 2).is_err(), "{stages:?}");
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
