//! `$rankFusion` over a small collection, as far as one input pipeline goes, and what it refuses.

use pinion_bson::{RawArrayBuf, RawBson, RawDocumentBuf, rawbson, rawdoc};

use crate::expression::Variables;
use crate::pipeline::Pipeline;
use crate::pipeline::tests::outputs;
use crate::work::Units;

fn array(stages: RawBson) -> RawArrayBuf {
    match stages {
        RawBson::Array(array) => array,
        _ => panic!("an array of stages"),
    }
}

#[track_caller]
fn check(stages: RawBson, expected: &[RawDocumentBuf]) {
    let documents = [(1, 5), (2, 9), (3, 9), (4, 1)];
    let documents = documents.map(|(id, a)| rawdoc! { "_id": id, "a": a });
    let pipeline = Pipeline::parse(&array(stages), &Variables::default()).expect("it parses");
    let (found, _) = outputs(pipeline, documents.into(), Units::MAX).expect("it runs");
    assert_eq!(found, expected);
}

#[track_caller]
fn check_error(stage: RawBson, code: i32) {
    let text = format!("{stage:?}");
    let parsed = Pipeline::parse(
        &array(rawbson!([{ "$rankFusion": stage }])),
        &Variables::default(),
    );
    assert_eq!(parsed.expect_err(&text).code.0, code, "{text}");
}

#[test]
fn equal_documents_share_a_place() {
    let fusion = rawbson!({ "$rankFusion": {
        "input": { "pipelines": { "p": [{ "$sort": { "a": -1 } }, { "$limit": 3 }] } },
        "combination": { "weights": { "p": 2 } }, "scoreDetails": true
    } });
    let score = |place: f64| 2.0 * (1.0 / (60.0 + place));
    check(
        rawbson!([fusion.clone(), { "$project": { "_id": 1, "s": { "$meta": "score" } } }]),
        &[
            rawdoc! { "_id": 2, "s": score(1.0) },
            rawdoc! { "_id": 3, "s": score(1.0) },
            rawdoc! { "_id": 1, "s": score(3.0) },
        ],
    );
    let details = rawbson!({ "$project": { "_id": 1, "d": { "$arrayElemAt": [{ "$getField": {
        "field": "details", "input": { "$meta": "scoreDetails" } } }, 0] } } });
    check(
        rawbson!([fusion, { "$limit": 1 }, details]),
        &[rawdoc! { "_id": 2, "d": {
        "inputPipelineName": "p", "rank": 1_i64, "weight": 2.0, "details": [] } }],
    );
}

#[test]
fn what_is_refused() {
    let input = |pipelines: RawBson| rawbson!({ "input": { "pipelines": pipelines } });
    check_error(rawbson!(1), 9);
    check_error(rawbson!({}), 40414);
    check_error(rawbson!({ "input": {} }), 40414);
    check_error(rawbson!({ "input": 1 }), 14);
    check_error(rawbson!({ "input": { "pipelines": {}, "x": 1 } }), 40415);
    check_error(input(rawbson!({})), 2);
    check_error(input(rawbson!({ "p": 1 })), 14);
    check_error(input(rawbson!({ "p": [] })), 9_834_300);
    check_error(input(rawbson!({ "$p": [{ "$sort": { "a": 1 } }] })), 16410);
    check_error(input(rawbson!({ "p.q": [{ "$sort": { "a": 1 } }] })), 16412);
    check_error(input(rawbson!({ "p": [{ "$match": {} }] })), 9_191_100);
    check_error(
        input(rawbson!({ "p": [{ "$sort": { "a": 1 } }, { "$count": "n" }] })),
        9_191_103,
    );
    check_error(
        input(rawbson!({ "p": [{ "$geoNear": { "near": [0, 0], "distanceField": "d" } }] })),
        9_191_103,
    );
    let nested = rawbson!({ "$rankFusion": { "input": { "pipelines": { "q": [{ "$sort": { "a": 1 } }] } } } });
    check_error(input(rawbson!({ "p": [nested.clone()] })), 10_473_002);
    check_error(
        input(rawbson!({ "p": [{ "$sort": { "a": 1 } }, nested.clone()] })),
        10_170_100,
    );
    let behind = array(rawbson!([{ "$match": {} }, nested]));
    let refused = Pipeline::parse(&behind, &Variables::default()).expect_err("it is refused");
    assert_eq!(refused.code.0, 10_170_100);
}

#[test]
fn weights_that_are_refused() {
    let check = |weights: RawBson, code: i32| {
        check_error(
            rawbson!({ "input": { "pipelines": { "p": [{ "$sort": { "a": 1 } }], "q": [{ "$sort": { "a": 1 } }] } },
                "combination": { "weights": weights } }),
            code,
        );
    };
    check(rawbson!(null), 40414);
    check(rawbson!({ "p": 1, "q": 1, "r": 1 }), 9_460_301);
    check(rawbson!({ "P": 1 }), 9_967_500);
    check(rawbson!({ "p": "x" }), 13118);
    check(rawbson!({ "p": null }), 13118);
    check(rawbson!({ "p": -1 }), 9_460_300);
    check(rawbson!({ "p": (f64::NAN) }), 9_460_300);
}
