//! Pipelines over a small collection.

use pinion_bson::{RawArrayBuf, RawBson, RawDocumentBuf, rawbson, rawdoc};

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Document, Input, Pipeline, PipelineRun, StageRequest};
use crate::expression::Variables;
use crate::spill::Memory;
use crate::spill::tests::Disk;
use crate::work::Units;

fn collection() -> Vec<RawDocumentBuf> {
    vec![
        rawdoc! { "_id": 1, "k": "a", "v": 1, "l": [1, 2] },
        rawdoc! { "_id": 2, "k": "a", "v": 2.5, "l": [] },
        rawdoc! { "_id": 3, "k": "b", "v": "x" },
        rawdoc! { "_id": 4, "k": null, "v": null, "l": null },
        rawdoc! { "_id": 5, "v": 3, "l": 7 },
    ]
}

fn array(stages: RawBson) -> RawArrayBuf {
    match stages {
        RawBson::Array(array) => array,
        _ => panic!("an array of stages"),
    }
}

/// What stages make of documents when each step has this budget, and how many moves did not fit
/// into it.
fn stepped(
    stages: &RawArrayBuf,
    documents: Vec<RawDocumentBuf>,
    budget: Units,
) -> pinion_wire::Result<(Vec<RawDocumentBuf>, usize)> {
    outputs(
        Pipeline::parse(stages, &Variables::default())?,
        documents,
        budget,
    )
}

/// What a parsed pipeline makes of documents, as [`stepped`].
pub(crate) fn outputs(
    pipeline: Pipeline,
    documents: Vec<impl Into<Document>>,
    budget: Units,
) -> pinion_wire::Result<(Vec<RawDocumentBuf>, usize)> {
    outputs_within(
        pipeline,
        documents,
        budget,
        &Memory::default(),
        &mut Disk::default(),
    )
}

/// What a parsed pipeline makes of documents, with so much memory and this disk.
pub(crate) fn outputs_within(
    pipeline: Pipeline,
    documents: Vec<impl Into<Document>>,
    budget: Units,
    memory: &Memory,
    disk: &mut Disk,
) -> pinion_wire::Result<(Vec<RawDocumentBuf>, usize)> {
    outputs_by(pipeline, documents, 1, budget, memory, disk)
}

/// As [`outputs_within`], where up to `at_once` documents are given for each that is wanted.
fn outputs_by(
    pipeline: Pipeline,
    documents: Vec<impl Into<Document>>,
    at_once: usize,
    budget: Units,
    memory: &Memory,
    disk: &mut Disk,
) -> pinion_wire::Result<(Vec<RawDocumentBuf>, usize)> {
    let mut run = PipelineRun::new(pipeline, memory);
    let mut source: VecDeque<Document> = documents.into_iter().map(Into::into).collect();
    let (mut out, mut computed) = (Vec::new(), 0);
    let mut input = Input::Go;
    loop {
        let mut want = run.step(input, budget)?;
        if let StageRequest::Compute = want {
            computed += 1;
            want = run.step_until(Arc::new(AtomicBool::new(false)))?;
        }
        input = match want {
            StageRequest::Document if at_once == 1 => {
                source.pop_front().map_or(Input::End, Input::Document)
            }
            StageRequest::Document if source.is_empty() => Input::End,
            StageRequest::Document => {
                Input::Documents(source.drain(..at_once.min(source.len())).collect())
            }
            StageRequest::Output(document) => {
                out.push(pinion_bson::RawDocument::to_owned(&document));
                Input::Go
            }
            StageRequest::Pause => Input::Go,
            StageRequest::Disk(request) => Input::Disk(disk.perform(request)),
            StageRequest::Done => return Ok((out, computed)),
            StageRequest::Compute => unreachable!("without a budget nothing is refused"),
        };
    }
}

fn run(stages: RawBson) -> pinion_wire::Result<Vec<RawDocumentBuf>> {
    stepped(&array(stages), collection(), Units::MAX).map(|(out, _)| out)
}

#[track_caller]
fn check(stages: RawBson, expected: Vec<RawDocumentBuf>) {
    let text = format!("{stages:?}");
    for at_once in [1, 2, usize::MAX] {
        let pipeline = Pipeline::parse(&array(stages.clone()), &Variables::default());
        let (documents, memory) = (collection(), Memory::default());
        let (pipeline, disk) = (pipeline.expect("it parses"), &mut Disk::default());
        let made = outputs_by(pipeline, documents, at_once, Units::MAX, &memory, disk);
        let (out, _) = made.expect("the pipeline runs");
        assert_eq!(out, expected, "{text}, {at_once} at once");
    }
}

#[track_caller]
fn check_error(stages: RawBson, code: i32) {
    let text = format!("{stages:?}");
    assert_eq!(
        run(stages).expect_err("the pipeline is refused").code.0,
        code,
        "{text}"
    );
}

#[test]
fn simple_stages() {
    check(
        rawbson!([{ "$match": { "k": "a" } }, { "$project": { "v": 1 } }]),
        vec![rawdoc! { "_id": 1, "v": 1 }, rawdoc! { "_id": 2, "v": 2.5 }],
    );
    check(
        rawbson!([{ "$skip": 3 }, { "$limit": 1 }, { "$unset": ["k", "l"] }]),
        vec![rawdoc! { "_id": 4, "v": null }],
    );
    check(
        rawbson!([{ "$sort": { "_id": -1 } }, { "$limit": 2 }, { "$project": { "_id": 1 } }]),
        vec![rawdoc! { "_id": 5 }, rawdoc! { "_id": 4 }],
    );
    check(rawbson!([{ "$count": "n" }]), vec![rawdoc! { "n": 5 }]);
    check(
        rawbson!([{ "$match": { "v": 99 } }, { "$count": "n" }]),
        vec![],
    );
    check(
        rawbson!([{ "$limit": 1 }, { "$replaceWith": { "a": "$v" } }, { "$set": { "b": 1 } }]),
        vec![rawdoc! { "a": 1, "b": 1 }],
    );
}

#[test]
fn unwinding() {
    check(
        rawbson!([{ "$unwind": "$l" }, { "$project": { "l": 1 } }]),
        vec![
            rawdoc! { "_id": 1, "l": 1 },
            rawdoc! { "_id": 1, "l": 2 },
            rawdoc! { "_id": 5, "l": 7 },
        ],
    );
    check(
        rawbson!([
            { "$unwind": { "path": "$l", "includeArrayIndex": "i", "preserveNullAndEmptyArrays": true } },
            { "$project": { "l": 1, "i": 1 } }
        ]),
        vec![
            rawdoc! { "_id": 1, "l": 1, "i": 0_i64 },
            rawdoc! { "_id": 1, "l": 2, "i": 1_i64 },
            rawdoc! { "_id": 2, "i": null },
            rawdoc! { "_id": 3, "i": null },
            rawdoc! { "_id": 4, "l": null, "i": null },
            rawdoc! { "_id": 5, "l": 7, "i": null },
        ],
    );
}

#[test]
fn grouping() {
    check(
        rawbson!([{ "$group": { "_id": "$k", "n": { "$sum": 1 }, "c": { "$count": {} } } }]),
        vec![
            rawdoc! { "_id": null, "n": 2, "c": 2 },
            rawdoc! { "_id": "a", "n": 2, "c": 2 },
            rawdoc! { "_id": "b", "n": 1, "c": 1 },
        ],
    );
    check(
        rawbson!([{ "$group": { "_id": null, "n": { "$sum": "$v" }, "mi": { "$min": "$v" }, "ma": { "$max": "$v" },
            "f": { "$first": "$k" }, "l": { "$last": "$k" }, "p": { "$push": "$v" }, "s": { "$addToSet": "$k" } } }]),
        vec![
            rawdoc! { "_id": null, "n": 6.5, "mi": 1, "ma": "x", "f": "a", "l": null, "p": [1, 2.5, "x", null, 3], "s": ["a", "b", null] },
        ],
    );
    check(
        rawbson!([{ "$sortByCount": "$k" }, { "$limit": 1 }]),
        vec![rawdoc! { "_id": null, "count": 2 }],
    );
}

#[test]
fn buckets() {
    check(
        rawbson!([{ "$bucket": { "groupBy": "$_id", "boundaries": [1, 3, { "$add": [3, 2] }], "default": "other" } }]),
        vec![
            rawdoc! { "_id": 1, "count": 2 },
            rawdoc! { "_id": 3, "count": 2 },
            rawdoc! { "_id": "other", "count": 1 },
        ],
    );
    check(
        rawbson!([{ "$match": { "_id": { "$lt": 3 } } },
            { "$bucket": { "groupBy": "$_id", "boundaries": [0, 5], "output": { "k": { "$first": "$k" } } } }]),
        vec![rawdoc! { "_id": 0, "k": "a" }],
    );
    for (spec, code) in [
        (rawbson!(1), 40201),
        (rawbson!({ "groupBy": "x", "boundaries": [0, 1] }), 40202),
        (rawbson!({ "groupBy": "$x" }), 40198),
        (rawbson!({ "groupBy": "$x", "boundaries": 1 }), 40200),
        (
            rawbson!({ "groupBy": "$x", "boundaries": ["$x", 1] }),
            40191,
        ),
        (rawbson!({ "groupBy": "$x", "boundaries": [1] }), 40192),
        (rawbson!({ "groupBy": "$x", "boundaries": [1, "a"] }), 40193),
        (rawbson!({ "groupBy": "$x", "boundaries": [2, 1] }), 40194),
        (
            rawbson!({ "groupBy": "$x", "boundaries": [0, 9], "default": 4 }),
            40199,
        ),
        (
            rawbson!({ "groupBy": "$x", "boundaries": [0, 9], "output": 4 }),
            40196,
        ),
        (
            rawbson!({ "groupBy": "$x", "boundaries": [0, 9], "x": 4 }),
            40197,
        ),
        // A value outside every range.
        (rawbson!({ "groupBy": "$_id", "boundaries": [0, 2] }), 40066),
    ] {
        check_error(rawbson!([{ "$bucket": (spec) }]), code);
    }
}

#[test]
fn facets() {
    check(
        rawbson!([{ "$facet": {
            "first": [{ "$limit": 1 }, { "$project": { "k": 1 } }],
            "ks": [{ "$match": { "k": "a" } }, { "$count": "n" }],
            "none": [{ "$match": { "k": "zz" } }],
        } }, { "$set": { "more": 1 } }]),
        vec![
            rawdoc! { "first": [{ "_id": 1, "k": "a" }], "ks": [{ "n": 2 }], "none": [], "more": 1 },
        ],
    );
    for (spec, code) in [
        (rawbson!({}), 40169),
        (rawbson!({ "a": 1 }), 40170),
        (rawbson!({ "a": [1] }), 40171),
        (rawbson!({ "a.b": [] }), 16412),
        (rawbson!({ "a": [{ "$facet": { "b": [] } }] }), 40600),
        (rawbson!({ "a": [{ "$out": "x" }] }), 40600),
        (rawbson!({ "a": [{ "$limit": 0 }] }), 15958),
    ] {
        check_error(rawbson!([{ "$facet": (spec) }]), code);
    }
}

#[test]
fn redacting() {
    let redact = |document: RawDocumentBuf, expression: RawBson| {
        let stages = array(rawbson!([{ "$redact": (expression) }]));
        stepped(&stages, vec![document], Units::MAX).map(|(mut out, _)| out.pop())
    };
    let document = rawdoc! { "level": 1, "a": { "level": 5, "x": 1 }, "b": [{ "level": 2 }, { "level": 9 }, 3], "c": { "x": 2 } };
    let by_level = rawbson!({ "$cond": [{ "$lte": ["$level", 4] }, "$$DESCEND", "$$PRUNE"] });
    assert_eq!(
        redact(document.clone(), by_level).expect("it runs"),
        Some(rawdoc! { "level": 1, "b": [{ "level": 2 }, 3], "c": { "x": 2 } })
    );
    // Variables of the whole document stay what they are.
    let by_root = rawbson!({ "$cond": [{ "$eq": ["$$ROOT.level", 1] }, "$$KEEP", "$$PRUNE"] });
    assert_eq!(
        redact(document.clone(), by_root).expect("it runs"),
        Some(document.clone())
    );
    assert_eq!(
        redact(document.clone(), rawbson!("$$PRUNE")).expect("it runs"),
        None
    );
    let failed = redact(document, rawbson!("$level")).expect_err("it is refused");
    assert_eq!(failed.code.0, 17053);
}

#[test]
fn joining_arrays() {
    check(
        rawbson!([{ "$match": { "_id": { "$lte": 2 } } },
            { "$group": { "_id": null, "c": { "$concatArrays": "$l" }, "u": { "$setUnion": { "$ifNull": ["$l", []] } } } }]),
        vec![rawdoc! { "_id": null, "c": [1, 2], "u": [1, 2] }],
    );
    check_error(
        rawbson!([{ "$group": { "_id": null, "c": { "$concatArrays": "$l" } } }]),
        14,
    );
}

#[test]
fn errors() {
    for (stages, code) in [
        (rawbson!([{ "$foo": 1 }]), 40324),
        (rawbson!([{ "$match": 1 }]), 15959),
        (rawbson!([{ "$match": {}, "x": 1 }]), 40323),
        (rawbson!([{}]), 40323),
        (rawbson!([1]), 14),
        (rawbson!([{ "$limit": 0 }]), 15958),
        (rawbson!([{ "$skip": -1 }]), 5107200),
        (rawbson!([{ "$limit": 1.5 }]), 5107201),
        (rawbson!([{ "$count": "" }]), 40157),
        (rawbson!([{ "$count": "a.b" }]), 40160),
        (rawbson!([{ "$unwind": "l" }]), 28818),
        (rawbson!([{ "$unwind": 1 }]), 15981),
        (rawbson!([{ "$unwind": { "path": "$l", "x": 1 } }]), 28811),
        (rawbson!([{ "$group": 1 }]), 15947),
        (rawbson!([{ "$group": {} }]), 15955),
        (rawbson!([{ "$group": { "_id": { "a": 1 } } }]), 17390),
        (rawbson!([{ "$match": { "$nosuch": 1 } }, {}]), 40323),
        (
            rawbson!([{ "$match": { "$nosuch": 1 } }, { "$foo": 1 }]),
            40324,
        ),
        (rawbson!([{ "$group": { "_id": 1, "x": 1 } }]), 40234),
        (
            rawbson!([{ "$group": { "_id": 1, "x": { "$foo": 1 } } }]),
            15952,
        ),
        (
            rawbson!([{ "$group": { "_id": 1, "x": { "$sum": 1, "$avg": 1 } } }]),
            40238,
        ),
        (
            rawbson!([{ "$group": { "_id": 1, "a.b": { "$sum": 1 } } }]),
            40235,
        ),
        (
            rawbson!([{ "$group": { "_id": 1, "a": { "$sum": [1, 2] } } }]),
            40237,
        ),
        (rawbson!([{ "$replaceRoot": {} }]), 40414),
        (rawbson!([{ "$replaceRoot": { "newRoot": "$v" } }]), 40228),
        (rawbson!([{ "$unset": [] }]), 31119),
        (rawbson!([{ "$sort": {} }]), 15976),
        (rawbson!([{ "$unwind": "$a\0b" }]), 16419),
        (rawbson!([{ "$lookup": {} }]), 9),
        (rawbson!([{ "$lookup": { "from": "c" } }]), 40414),
        (
            rawbson!([{ "$lookup": { "from": "c", "as": null } }]),
            40414,
        ),
        (
            rawbson!([{ "$lookup": { "from": "c", "as": "x", "y": 1 } }]),
            40415,
        ),
        (
            rawbson!([{ "$lookup": { "from": "c", "as": "x", "localField": 1, "foreignField": "f" } }]),
            14,
        ),
        (
            rawbson!([{ "$lookup": { "from": "c", "as": "x", "let": 1, "pipeline": [] } }]),
            14,
        ),
        (
            rawbson!([{ "$lookup": { "from": { "db": 1, "coll": "c" }, "as": "x", "pipeline": [] } }]),
            14,
        ),
        (
            rawbson!([{ "$lookup": { "from": { "db": "d", "coll": "c" }, "as": "x", "pipeline": [] } }]),
            9,
        ),
        (
            rawbson!([{ "$lookup": { "from": ".c", "as": "x", "pipeline": [] } }]),
            73,
        ),
        (rawbson!([{ "$unionWith": "" }]), 73),
        (rawbson!([{ "$unionWith": { "coll": 1 } }]), 14),
        (rawbson!([{ "$unionWith": { "coll": "c", "x": 1 } }]), 40415),
        (
            rawbson!([{ "$merge": { "into": { "db": 1, "coll": "c" } } }]),
            14,
        ),
        (rawbson!([{ "$merge": { "into": { "db": null } } }]), 40414),
        (rawbson!([{ "$out": { "db": "d", "coll": null } }]), 40414),
        (rawbson!([{ "$search": {} }]), 31082),
        (rawbson!([{ "$changeStream": {} }]), 40573),
        (rawbson!([{ "$match": {} }, { "$collStats": {} }]), 40602),
        (
            rawbson!([{ "$facet": { "f": [{ "$listLocalSessions": {} }] } }]),
            73,
        ),
        (
            rawbson!([{ "$facet": { "f": [{ "$listClusterCatalog": {} }] } }]),
            9_621_301,
        ),
        (
            rawbson!([{ "$facet": { "f": [{ "$indexStats": {} }] } }]),
            40600,
        ),
    ] {
        check_error(stages, code);
    }
}

#[test]
fn a_pipeline_is_divided() {
    let variables = Variables::default();
    let stages = array(rawbson!([
        { "$match": { "a": 1 } }, { "$sort": { "c": 1 } }, { "$match": { "b": 2 } }, { "$limit": 3 }, { "$count": "n" }
    ]));
    let parts = Pipeline::parse(&stages, &variables)
        .and_then(|p| p.find_prefix(None, &variables))
        .expect("it divides");
    assert_eq!(
        parts.matcher.filter(),
        &*rawdoc! { "$and": [{ "a": 1 }, { "b": 2 }] }
    );
    assert_eq!(parts.sort.expect("a sort").source(), &*rawdoc! { "c": 1 });
    assert_eq!(parts.limit, Some(3));
    assert_eq!(parts.rest.stages.len(), 1);
}

#[test]
fn a_run_continues_where_its_work_was_refused() {
    let pipelines = [
        rawbson!([{ "$match": { "v": { "$ne": 7 } } }, { "$unwind": { "path": "$l", "preserveNullAndEmptyArrays": true } },
            { "$skip": 1 }, { "$addFields": { "w": { "$concat": ["x", { "$toString": "$v" }] } } }, { "$limit": 4 }]),
        rawbson!([{ "$unwind": "$l" }, { "$sort": { "l": -1 } }, { "$unwind": "$l" }, { "$skip": 1 }]),
        rawbson!([{ "$match": { "$or": [{ "k": { "$regex": "a" } }, { "v": 3 }] } },
            { "$group": { "_id": "$k", "n": { "$sum": 1 }, "all": { "$push": "$v" } } }, { "$sort": { "_id": 1 } }]),
        rawbson!([{ "$facet": { "a": [{ "$unwind": "$l" }, { "$limit": 2 }], "b": [{ "$count": "n" }] } }, { "$unwind": "$a" }]),
        rawbson!([{ "$addFields": { "c": { "$convert": { "input": "$v", "to": "int", "onError": { "$size": { "$range": [0, 30] } } } } } },
            { "$replaceRoot": { "newRoot": { "c": "$c", "d": { "$map": { "input": [1, 2], "in": "$$this" } } } } }, { "$count": "n" }]),
    ];
    for stages in pipelines {
        let text = format!("{stages:?}");
        let stages = array(stages);
        let run = |budget| stepped(&stages, collection(), budget).expect("no document is wrong");
        let (expected, _) = run(Units::MAX);
        assert!(!expected.is_empty(), "{text}");
        let (mut computed, mut never) = (0, false);
        for budget in (0..8000).step_by(13).chain([1 << 40]) {
            let (found, here) = run(budget);
            assert_eq!(found, expected, "budget {budget}: {text}");
            let pipeline = Pipeline::parse(&stages, &Variables::default()).expect("it parses");
            let (documents, memory) = (collection(), Memory::default());
            let together = outputs_by(
                pipeline,
                documents,
                3,
                budget,
                &memory,
                &mut Disk::default(),
            );
            let (together, _) = together.expect("no document is wrong");
            assert_eq!(together, expected, "budget {budget}, 3 at once: {text}");
            computed += here;
            never = here == 0;
        }
        assert!(computed > 20 && never, "{computed} {never}: {text}");
    }
}

#[test]
fn documents_leave_one_by_one() {
    let big = "x".repeat(1 << 20);
    let items: RawArrayBuf = (0..100).collect();
    let document = rawdoc! { "big": &*big, "a": items.clone(), "b": items };
    let stages = array(
        rawbson!([{ "$unwind": "$a" }, { "$unwind": "$b" }, { "$limit": 5 }, { "$project": { "a": 1, "b": 1 } }]),
    );
    let (found, _) = stepped(&stages, vec![document], Units::MAX).expect("nothing is wrong");
    let expected: Vec<_> = (0..5).map(|b| rawdoc! { "a": 0, "b": b }).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_document_between_stages_may_be_larger_than_one_that_leaves() {
    let big = "x".repeat(12 << 20);
    let documents = (0..2).map(|id| rawdoc! { "_id": id, "big": &*big });
    let stages = array(rawbson!([
        { "$group": { "_id": null, "all": { "$push": "$$ROOT" } } }, { "$project": { "n": { "$size": "$all" } } }
    ]));
    let (found, _) = stepped(&stages, documents.collect(), Units::MAX).expect("it runs");
    assert_eq!(found, [rawdoc! { "_id": null, "n": 2 }]);
}

#[test]
fn unwinding_below_the_top() {
    check(
        rawbson!([{ "$limit": 1 }, { "$replaceWith": { "a": { "b": { "l": "$l", "x": 1 }, "y": 2 }, "z": 3 } },
            { "$unwind": { "path": "$a.b.l", "includeArrayIndex": "i" } }]),
        vec![
            rawdoc! { "a": { "b": { "l": 1, "x": 1 }, "y": 2 }, "z": 3, "i": 0_i64 },
            rawdoc! { "a": { "b": { "l": 2, "x": 1 }, "y": 2 }, "z": 3, "i": 1_i64 },
        ],
    );
    check(
        rawbson!([{ "$limit": 1 }, { "$replaceWith": { "a": { "l": [], "x": 1 }, "z": 3 } },
            { "$unwind": { "path": "$a.l", "preserveNullAndEmptyArrays": true } }]),
        vec![rawdoc! { "a": { "x": 1 }, "z": 3 }],
    );
}
