//! Pipelines over a small collection.

use pinion_bson::{RawArrayBuf, RawBson, RawDocumentBuf, rawbson, rawdoc};

use super::{Pipeline, PipelineRun};
use crate::expression::Variables;

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

fn run(stages: RawBson) -> pinion_wire::Result<Vec<RawDocumentBuf>> {
    let pipeline = Pipeline::parse(&array(stages), &Variables::default())?;
    let mut run = PipelineRun::new(&pipeline);
    for document in collection() {
        run.push(&document)?;
    }
    run.finish()?;
    Ok(std::iter::from_fn(|| run.pop()).collect())
}

#[track_caller]
fn check(stages: RawBson, expected: Vec<RawDocumentBuf>) {
    let text = format!("{stages:?}");
    assert_eq!(run(stages).expect("the pipeline runs"), expected, "{text}");
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
            rawdoc! { "_id": "a", "n": 2, "c": 2 },
            rawdoc! { "_id": "b", "n": 1, "c": 1 },
            rawdoc! { "_id": null, "n": 2, "c": 2 },
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
        vec![rawdoc! { "_id": "a", "count": 2 }],
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
        (rawbson!([{ "$lookup": {} }]), 115),
    ] {
        check_error(stages, code);
    }
}

#[test]
fn a_pipeline_is_divided() {
    let variables = Variables::default();
    let stages = array(rawbson!([
        { "$match": { "a": 1 } }, { "$match": { "b": 2 } }, { "$sort": { "c": 1 } }, { "$limit": 3 }, { "$count": "n" }
    ]));
    let parts = Pipeline::parse(&stages, &variables)
        .and_then(|p| p.divide(&variables))
        .expect("it divides");
    assert_eq!(
        parts.matcher.filter(),
        &*rawdoc! { "$and": [{ "a": 1 }, { "b": 2 }] }
    );
    assert_eq!(parts.sort.expect("a sort").source(), &*rawdoc! { "c": 1 });
    assert_eq!(parts.limit, Some(3));
    assert_eq!(parts.rest.stages.len(), 1);
}
