//! The sequences that `$densify` makes.

use pinion_bson::{DateTime, RawBson, RawDocumentBuf, rawbson, rawdoc};

use crate::pipeline::window::tests::{check, check_error};

fn numbers(numbers: &[i32]) -> Vec<RawDocumentBuf> {
    numbers
        .iter()
        .map(|x| rawdoc! { "_id": *x, "x": *x })
        .collect()
}

#[track_caller]
fn check_sequence(range: RawBson, values: &[i32], expected: &[RawDocumentBuf]) {
    check(
        rawbson!([{ "$densify": { "field": "x", "range": range } }]),
        &numbers(values),
        expected,
    );
}

fn came(x: i32) -> RawDocumentBuf {
    rawdoc! { "_id": x, "x": x }
}

fn made(x: i32) -> RawDocumentBuf {
    rawdoc! { "x": x }
}

#[test]
fn from_the_least_to_the_greatest() {
    let full = |step: i32| rawbson!({ "step": step, "bounds": "full" });
    check_sequence(full(1), &[1, 4], &[came(1), made(2), made(3), came(4)]);
    // What is not in the sequence does not move it.
    check_sequence(
        full(2),
        &[1, 4, 5, 8],
        &[came(1), made(3), came(4), came(5), made(7), came(8)],
    );
    check_sequence(full(1), &[], &[]);
    check(
        rawbson!([{ "$densify": { "field": "a.x", "range": { "step": 0.5, "bounds": "full" } } }]),
        &[
            rawdoc! { "a": { "x": 1 } },
            rawdoc! { "a": null },
            rawdoc! { "a": { "x": 2 } },
        ],
        &[
            rawdoc! { "a": null },
            rawdoc! { "a": { "x": 1 } },
            rawdoc! { "a": { "x": 1.5 } },
            rawdoc! { "a": { "x": 2 } },
        ],
    );
}

#[test]
fn from_a_bound_to_another() {
    let range = |low: i32, high: i32| rawbson!({ "step": 2, "bounds": [low, high] });
    check_sequence(
        range(3, 8),
        &[1, 4, 5, 9],
        &[came(1), made(3), came(4), came(5), made(7), came(9)],
    );
    check_sequence(range(3, 8), &[], &[made(3), made(5), made(7)]);
    check_sequence(range(3, 6), &[9], &[made(3), made(5), came(9)]);
    check_sequence(range(3, 6), &[1], &[came(1), made(3), made(5)]);
}

#[test]
fn dates() {
    let day = |day: i64| DateTime::from_millis(day * 86_400_000);
    check(
        rawbson!([{ "$densify": { "field": "t",
            "range": { "step": 1, "unit": "month", "bounds": [(day(0)), (day(60))] } } }]),
        &[rawdoc! { "t": (day(31)), "v": 1 }],
        &[
            rawdoc! { "t": (day(0)) },
            rawdoc! { "t": (day(31)), "v": 1 },
            rawdoc! { "t": (day(59)) },
        ],
    );
}

#[test]
fn partitions() {
    let documents = [
        rawdoc! { "p": "a", "x": 1 },
        rawdoc! { "p": "b", "x": 2 },
        rawdoc! { "p": "a", "x": 3 },
        rawdoc! { "p": "b", "x": 5 },
    ];
    let stage = |bounds: RawBson| {
        rawbson!([{ "$densify": { "field": "x", "partitionByFields": ["p"],
            "range": { "step": 1, "bounds": bounds } } }])
    };
    let of = |p: &str, x: i32| rawdoc! { "p": p, "x": x };
    check(
        stage(rawbson!("partition")),
        &documents,
        &[
            of("a", 1),
            of("a", 2),
            of("a", 3),
            of("b", 2),
            of("b", 3),
            of("b", 4),
            of("b", 5),
        ],
    );
    check(
        stage(rawbson!("full")),
        &documents,
        &[
            of("a", 1),
            of("b", 1),
            of("b", 2),
            of("a", 2),
            of("a", 3),
            of("b", 3),
            of("b", 4),
            of("b", 5),
            of("a", 4),
            of("a", 5),
        ],
    );
    check(
        stage(rawbson!([2, 5])),
        &documents,
        &[
            of("a", 1),
            of("a", 2),
            of("a", 3),
            of("b", 2),
            of("b", 3),
            of("b", 4),
            of("b", 5),
            of("a", 4),
        ],
    );
}

#[test]
fn errors() {
    let stage = |spec: RawBson| rawbson!([{ "$densify": spec }]);
    let range = |range: RawBson| stage(rawbson!({ "field": "x", "range": range }));
    let full = || rawbson!({ "step": 1, "bounds": "full" });
    let date = || DateTime::from_millis(0);
    check_error(stage(rawbson!(1)), &[], 5_876_900);
    check_error(stage(rawbson!({ "field": "x" })), &[], 40414);
    check_error(stage(rawbson!({ "range": (full()) })), &[], 40414);
    check_error(stage(rawbson!({ "field": 1, "range": (full()) })), &[], 14);
    check_error(
        stage(rawbson!({ "field": "x", "range": (full()), "y": 1 })),
        &[],
        40415,
    );
    for (spec, code) in [
        (rawbson!({ "bounds": "full" }), 40414),
        (rawbson!({ "step": 1 }), 40414),
        (rawbson!({ "step": 0, "bounds": "full" }), 5_733_401),
        (rawbson!({ "step": "1", "bounds": "full" }), 5_733_401),
        (
            rawbson!({ "step": 1.5, "bounds": "full", "unit": "day" }),
            6_586_400,
        ),
        (rawbson!({ "step": 1, "bounds": "full", "unit": "days" }), 9),
        (rawbson!({ "step": 1, "bounds": "all" }), 5_946_802),
        (rawbson!({ "step": 1, "bounds": "partition" }), 5_733_408),
        (rawbson!({ "step": 1, "bounds": [1] }), 5_733_403),
        (rawbson!({ "step": 1, "bounds": ["$$NOW", 1] }), 5_733_402),
        (rawbson!({ "step": 1, "bounds": [2, 1] }), 5_733_402),
        (
            rawbson!({ "step": 1, "bounds": [1, 2], "unit": "day" }),
            5_733_409,
        ),
        (
            rawbson!({ "step": 1, "bounds": [(date()), (date())] }),
            5_733_501,
        ),
    ] {
        check_error(range(spec), &[], code);
    }
    check_error(range(full()), &[rawdoc! { "x": "a" }], 5_733_201);
    check_error(
        range(rawbson!({ "step": 1, "bounds": "full", "unit": "day" })),
        &[rawdoc! { "x": 1 }],
        6_053_600,
    );
    check_error(
        range(rawbson!({ "step": 1, "bounds": [0, 1_000_000] })),
        &[],
        5_897_900,
    );
}
