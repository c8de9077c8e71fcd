//! `$setWindowFields` and what is made of it, over partitions that are small enough to be written
//! down.

use pinion_bson::{DateTime, RawBson, RawDocument, RawDocumentBuf, rawbson, rawdoc};

use crate::expression::Variables;
use crate::pipeline::Pipeline;
use crate::pipeline::tests::outputs;
use crate::value::{field, owned};
use crate::work::Units;

fn parse(stages: &RawBson) -> pinion_wire::Result<Pipeline> {
    let RawBson::Array(stages) = stages else {
        panic!("an array of stages");
    };
    Pipeline::parse(stages, &Variables::default())
}

/// What stages make of documents; the same comes out where every step is refused much of its work.
#[track_caller]
pub(crate) fn run(stages: &RawBson, documents: &[RawDocumentBuf]) -> Vec<RawDocumentBuf> {
    let out = |budget: Units| {
        let pipeline = parse(stages).unwrap_or_else(|e| panic!("{stages:?}: {e:?}"));
        let found = outputs(pipeline, documents.to_vec(), budget);
        found.unwrap_or_else(|e| panic!("{stages:?}: {e:?}")).0
    };
    let found = out(Units::MAX);
    assert_eq!(found, out(2_000), "{stages:?}");
    found
}

#[track_caller]
pub(crate) fn check(stages: RawBson, documents: &[RawDocumentBuf], expected: &[RawDocumentBuf]) {
    assert_eq!(run(&stages, documents), expected, "{stages:?}");
}

#[track_caller]
pub(crate) fn check_error(stages: RawBson, documents: &[RawDocumentBuf], code: i32) {
    let failed = parse(&stages).and_then(|p| outputs(p, documents.to_vec(), Units::MAX));
    let failed = failed.map(|(out, _)| out).expect_err("it fails");
    assert_eq!(failed.code.0, code, "{stages:?}");
}

/// The results of one function over the documents in order of `t`.
#[track_caller]
fn results(function: RawBson, documents: &[RawDocumentBuf]) -> Vec<RawBson> {
    let stage =
        rawbson!([{ "$setWindowFields": { "sortBy": { "t": 1 }, "output": { "r": function } } }]);
    let result = |document: &RawDocumentBuf| field(document, "r").map_or(RawBson::Null, owned);
    run(&stage, documents).iter().map(result).collect()
}

/// Documents of these times and values.
fn points(points: &[(i32, i32)]) -> Vec<RawDocumentBuf> {
    let point = |(t, v): &(i32, i32)| rawdoc! { "t": *t, "v": *v };
    points.iter().map(point).collect()
}

fn ints(numbers: &[i32]) -> Vec<RawBson> {
    numbers.iter().copied().map(RawBson::Int32).collect()
}

#[test]
fn partitions_are_apart() {
    let documents = [
        rawdoc! { "_id": 1, "p": "b", "v": 1 },
        rawdoc! { "_id": 2, "v": 2 },
        rawdoc! { "_id": 3, "p": "a", "v": 4 },
        rawdoc! { "_id": 4, "p": null, "v": 8 },
        rawdoc! { "_id": 5, "p": "b", "v": 16 },
    ];
    let running = rawbson!({ "$sum": "$v", "window": { "documents": ["unbounded", "current"] } });
    check(
        rawbson!([{ "$setWindowFields": { "partitionBy": "$p", "sortBy": { "_id": 1 },
            "output": { "r": (running.clone()), "n.all": { "$count": {} } } } }]),
        &documents,
        &[
            rawdoc! { "_id": 2, "v": 2, "r": 2, "n": { "all": 2 } },
            rawdoc! { "_id": 4, "p": null, "v": 8, "r": 10, "n": { "all": 2 } },
            rawdoc! { "_id": 3, "p": "a", "v": 4, "r": 4, "n": { "all": 1 } },
            rawdoc! { "_id": 1, "p": "b", "v": 1, "r": 1, "n": { "all": 2 } },
            rawdoc! { "_id": 5, "p": "b", "v": 16, "r": 17, "n": { "all": 2 } },
        ],
    );
    // A key that is computed leaves no trace, and one that is constant is none.
    check(
        rawbson!([{ "$setWindowFields": { "partitionBy": { "$mod": ["$v", 3] }, "sortBy": { "_id": 1 },
            "output": { "v": (running.clone()) } } }, { "$project": { "p": 0 } }]),
        &documents,
        &[
            rawdoc! { "_id": 1, "v": 1 },
            rawdoc! { "_id": 3, "v": 5 },
            rawdoc! { "_id": 5, "v": 21 },
            rawdoc! { "_id": 2, "v": 2 },
            rawdoc! { "_id": 4, "v": 10 },
        ],
    );
    check(
        rawbson!([{ "$match": { "p": "b" } },
            { "$setWindowFields": { "partitionBy": 1, "output": { "_id": { "$sum": "$v" } } } }]),
        &documents,
        &[
            rawdoc! { "_id": 17, "p": "b", "v": 1 },
            rawdoc! { "_id": 17, "p": "b", "v": 16 },
        ],
    );
}

#[test]
fn windows_of_documents() {
    let documents = points(&[(1, 1), (2, 2), (3, 4), (4, 8), (5, 16)]);
    let sums = |lower: RawBson, upper: RawBson| {
        let window = rawbson!({ "documents": [lower, upper] });
        results(rawbson!({ "$sum": "$v", "window": window }), &documents)
    };
    let at = |offset: i32| RawBson::Int32(offset);
    let all = || rawbson!("unbounded");
    assert_eq!(sums(at(-1), at(1)), ints(&[3, 7, 14, 28, 24]));
    assert_eq!(sums(at(1), at(2)), ints(&[6, 12, 24, 16, 0]));
    assert_eq!(sums(at(-3), at(-2)), ints(&[0, 0, 1, 3, 6]));
    assert_eq!(sums(at(0), all()), ints(&[31, 30, 28, 24, 16]));
    assert_eq!(sums(all(), at(-1)), ints(&[0, 1, 3, 7, 15]));
    assert_eq!(sums(all(), at(1)), ints(&[3, 7, 15, 31, 31]));
    assert_eq!(sums(at(-9), at(9)), ints(&[31; 5]));
    assert_eq!(
        sums(rawbson!("current"), rawbson!("current")),
        ints(&[1, 2, 4, 8, 16])
    );
}

#[test]
fn windows_of_values() {
    let documents = points(&[(1, 1), (1, 2), (2, 4), (5, 8), (6, 16)]);
    let sums = |lower: RawBson, upper: RawBson| {
        let window = rawbson!({ "range": [lower, upper] });
        results(rawbson!({ "$sum": "$v", "window": window }), &documents)
    };
    let at = |offset: i32| RawBson::Int32(offset);
    let (all, current) = (|| rawbson!("unbounded"), || rawbson!("current"));
    assert_eq!(sums(at(-1), at(1)), ints(&[7, 7, 7, 24, 24]));
    assert_eq!(sums(current(), current()), ints(&[3, 3, 4, 8, 16]));
    assert_eq!(sums(all(), current()), ints(&[3, 3, 7, 15, 31]));
    assert_eq!(sums(current(), all()), ints(&[31, 31, 28, 24, 16]));
    assert_eq!(sums(at(3), at(4)), ints(&[8, 8, 24, 0, 0]));
    assert_eq!(sums(at(-4), at(-3)), ints(&[0, 0, 0, 7, 4]));
    assert_eq!(sums(rawbson!(-0.5), rawbson!(0.5)), ints(&[3, 3, 4, 8, 16]));

    let day = |day: i64, v: i32| {
        let time = DateTime::from_millis(day * 86_400_000);
        rawdoc! { "t": time, "v": v }
    };
    let window = rawbson!({ "range": [-1, 0], "unit": "month" });
    assert_eq!(
        results(
            rawbson!({ "$push": "$v", "window": window }),
            &[day(0, 1), day(30, 2), day(31, 3), day(59, 4)]
        ),
        [
            rawbson!([1]),
            rawbson!([1, 2]),
            rawbson!([1, 2, 3]),
            rawbson!([3, 4])
        ]
    );
}

#[test]
fn ranges_need_what_they_count() {
    let range = |unit: Option<&str>| {
        let mut window = rawdoc! { "range": [-1, 1] };
        if let Some(unit) = unit {
            window.append(pinion_bson::cstr!("unit"), unit);
        }
        rawbson!([{ "$setWindowFields": { "sortBy": { "t": 1 },
            "output": { "r": { "$sum": 1, "window": window } } } }])
    };
    let date = rawdoc! { "t": (DateTime::from_millis(0)) };
    check_error(range(None), &[rawdoc! { "t": "x" }], 5_429_414);
    check_error(range(None), &[rawdoc! {}], 5_429_414);
    check_error(range(None), &[date], 5_429_413);
    check_error(range(Some("day")), &[rawdoc! { "t": 1 }], 5_429_513);
}

/// Every function that moves with its window gives what it gives of each window by itself.
#[test]
fn windows_against_each_by_itself() {
    let documents: Vec<RawDocumentBuf> = (0..40)
        .map(|i| rawdoc! { "t": i, "v": (i * 7919 % 13), "w": (i * 31 % 5), "l": [i % 3, i % 4] })
        .collect();
    let functions = [
        rawbson!({ "$sum": "$v" }),
        rawbson!({ "$avg": "$v" }),
        rawbson!({ "$min": "$v" }),
        rawbson!({ "$max": "$v" }),
        rawbson!({ "$count": {} }),
        rawbson!({ "$first": "$v" }),
        rawbson!({ "$last": "$v" }),
        rawbson!({ "$push": "$v" }),
        rawbson!({ "$firstN": { "n": 3, "input": "$v" } }),
        rawbson!({ "$lastN": { "n": 3, "input": "$v" } }),
        rawbson!({ "$minN": { "n": 3, "input": "$v" } }),
        rawbson!({ "$maxN": { "n": 3, "input": "$v" } }),
        rawbson!({ "$top": { "sortBy": { "v": 1, "t": 1 }, "output": "$t" } }),
        rawbson!({ "$bottom": { "sortBy": { "v": 1, "t": 1 }, "output": "$t" } }),
        rawbson!({ "$topN": { "n": 3, "sortBy": { "v": 1, "t": 1 }, "output": "$t" } }),
        rawbson!({ "$bottomN": { "n": 3, "sortBy": { "v": 1, "t": 1 }, "output": "$t" } }),
        rawbson!({ "$median": { "input": "$v", "method": "approximate" } }),
        rawbson!({ "$concatArrays": "$l" }),
        rawbson!({ "$integral": { "input": "$v" } }),
    ];
    let windows = [(-3, 2), (0, 0), (-8, -5), (4, 9), (-40, 40)];
    for function in &functions {
        for (lower, upper) in windows {
            let RawBson::Document(function) = function else {
                panic!("a document");
            };
            let mut moving = function.clone();
            let window = rawdoc! { "documents": [lower, upper] };
            moving.append(pinion_bson::cstr!("window"), window);
            let moved = results(RawBson::Document(moving), &documents);
            for (at, found) in moved.iter().enumerate() {
                let from = (at as i32 + lower).clamp(0, 40) as usize;
                let to = (at as i32 + upper + 1).clamp(from as i32, 40) as usize;
                let expected = alone(function, &documents[from..to]);
                if let Some(expected) = expected {
                    assert_eq!(*found, expected, "{function:?} {lower}..{upper} at {at}");
                }
            }
        }
    }
}

/// The result of a function over all these documents; none of no documents.
fn alone(function: &RawDocument, documents: &[RawDocumentBuf]) -> Option<RawBson> {
    let function = RawBson::Document(function.to_owned());
    results(function, documents).into_iter().next()
}

#[test]
fn documents_leave_as_soon_as_their_windows_are_known() {
    use crate::pipeline::{Document, Input, PipelineRun, StageRequest};
    use crate::spill::Memory;
    let stage = rawbson!([{ "$setWindowFields": { "partitionBy": "$p",
        "output": { "r": { "$locf": "$v" } } } }]);
    let RawBson::Array(stages) = stage else {
        panic!("an array of stages");
    };
    // The sort in front of the functions is taken away, since it keeps all documents.
    let mut pipeline = Pipeline::parse(&stages, &Variables::default()).expect("parses");
    pipeline.stages.remove(0);
    let mut run = PipelineRun::new(pipeline, &Memory::default());
    let mut wants = Vec::new();
    let mut input = Input::Go;
    for v in [1, 2] {
        loop {
            match run.step(input, Units::MAX).expect("it runs") {
                StageRequest::Document => break,
                want => wants.push(format!("{want:?}").split('(').next().map(String::from)),
            }
            input = Input::Go;
        }
        input = Input::Document(Document::from(rawdoc! { "p": 1, "v": v }));
    }
    run.step(input, Units::MAX).expect("it runs");
    assert_eq!(wants, [Some("Output".to_string())]);
}

#[test]
fn errors() {
    let stage = |spec: RawBson| rawbson!([{ "$setWindowFields": spec }]);
    let output = || rawbson!({ "r": { "$sum": "$v" } });
    for (spec, code) in [
        (rawbson!(1), 9),
        (rawbson!({ "sortBy": { "t": 1 } }), 40414),
        (rawbson!({ "output": "x" }), 14),
        (rawbson!({ "sortBy": 1, "output": (output()) }), 14),
        (rawbson!({ "output": (output()), "x": 1 }), 40415),
        (rawbson!({ "output": { "r": 1 } }), 9),
        (rawbson!({ "output": { "r": { "$foo": 1 } } }), 9),
        (rawbson!({ "output": { "r.": { "$sum": 1 } } }), 40353),
        (
            rawbson!({ "output": { "r": { "$sum": 1 }, "r.s": { "$sum": 1 } } }),
            6_307_900,
        ),
        (
            rawbson!({ "partitionBy": [1, 2], "output": (output()) }),
            14,
        ),
        (rawbson!({ "partitionBy": "$v", "output": (output()) }), 14),
        (
            rawbson!({ "sortBy": { "t": 2 }, "output": (output()) }),
            15975,
        ),
    ] {
        check_error(stage(spec), &[rawdoc! { "v": [1] }], code);
    }
}

#[test]
fn a_partition_has_a_limit() {
    let large = "x".repeat(1 << 20);
    let documents: Vec<RawDocumentBuf> = (0..101)
        .map(|i| rawdoc! { "t": i, "x": large.as_str() })
        .collect();
    let stages = rawbson!([{ "$setWindowFields": { "output": { "r": { "$count": {} } } } }]);
    check_error(stages, &documents, 5_414_201);
    let running = rawbson!([{ "$setWindowFields": { "sortBy": { "t": 1 }, "output": { "x":
        { "$count": {}, "window": { "documents": ["unbounded", "current"] } } } } }]);
    // What has left is not held, but the sort in front holds all.
    let RawBson::Array(stages) = &running else {
        panic!("an array of stages");
    };
    let mut pipeline = Pipeline::parse(stages, &Variables::default()).expect("parses");
    pipeline.stages.remove(0);
    let (out, _) = outputs(pipeline, documents, Units::MAX).expect("it runs");
    assert_eq!(out.len(), 101);
}

#[test]
fn values_are_filled_in() {
    let documents = [
        rawdoc! { "_id": 1, "p": "a", "t": 1, "v": 10 },
        rawdoc! { "_id": 2, "p": "a", "t": 2, "v": null, "w": 5 },
        rawdoc! { "_id": 3, "p": "a", "t": 4, "v": 40 },
        rawdoc! { "_id": 4, "p": "b", "t": 3 },
    ];
    check(
        rawbson!([{ "$fill": { "partitionByFields": ["p"], "sortBy": { "t": 1 },
            "output": { "v": { "method": "linear" }, "w": { "value": "?" } } } }]),
        &documents,
        &[
            rawdoc! { "_id": 1, "p": "a", "t": 1, "v": 10, "w": "?" },
            rawdoc! { "_id": 2, "p": "a", "t": 2, "v": 20.0, "w": 5 },
            rawdoc! { "_id": 3, "p": "a", "t": 4, "v": 40, "w": "?" },
            rawdoc! { "_id": 4, "p": "b", "t": 3, "v": null, "w": "?" },
        ],
    );
    check(
        rawbson!([{ "$fill": { "sortBy": { "t": 1 }, "output": { "v": { "method": "locf" } } } },
            { "$project": { "v": 1 } }]),
        &documents,
        &[
            rawdoc! { "_id": 1, "v": 10 },
            rawdoc! { "_id": 2, "v": 10 },
            rawdoc! { "_id": 4, "v": 10 },
            rawdoc! { "_id": 3, "v": 40 },
        ],
    );
    let stage = |spec: RawBson| rawbson!([{ "$fill": spec }]);
    let linear = || rawbson!({ "v": { "method": "linear" } });
    for (spec, code) in [
        (rawbson!("x"), 9),
        (rawbson!({}), 40414),
        (rawbson!({ "output": 1 }), 14),
        (rawbson!({ "output": { "v": 1 } }), 14),
        (rawbson!({ "output": {}, "x": 1 }), 40415),
        (rawbson!({ "output": { "v": {} } }), 6_050_200),
        (
            rawbson!({ "output": { "v": { "method": "locf", "value": 1 } } }),
            6_050_200,
        ),
        (
            rawbson!({ "output": { "v": { "method": "x" } } }),
            6_050_202,
        ),
        (rawbson!({ "output": { "v": { "x": 1 } } }), 40415),
        (rawbson!({ "output": (linear()) }), 605_001),
        (
            rawbson!({ "partitionBy": "$p", "partitionByFields": ["p"], "output": (linear()) }),
            6_050_204,
        ),
        (
            rawbson!({ "sortBy": { "$$NOW": 1 }, "output": (linear()) }),
            16410,
        ),
    ] {
        check_error(stage(spec), &[], code);
    }
}
