//! What the parts and the merger make of documents is what the whole pipeline makes of them.

use super::*;
use crate::pipeline::tests::outputs;
use crate::pipeline::{Input, PipelineRun, StageRequest};
use crate::spill::Memory;
use crate::work::Units;
use pinion_bson::{CString, RawArrayBuf, RawBson, rawbson, rawdoc};
use pinion_wire::ErrorCode;

/// What orders a document among those of all parts.
type OrderKey = Vec<u8>;

/// Documents, or the code of the error that came first.
type Outcome = std::result::Result<Vec<RawDocumentBuf>, ErrorCode>;

fn pipeline(stages: &RawArrayBuf) -> Pipeline {
    Pipeline::parse(stages, &Variables::default()).expect("it parses")
}

fn run(pipeline: Pipeline, documents: Vec<RawDocumentBuf>) -> Outcome {
    let made = outputs(pipeline, documents, Units::MAX);
    made.map(|(made, _)| made).map_err(|error| error.code)
}

/// What one part gives of the documents that it has, with what orders them.
fn part(
    split: &SplitPipeline,
    documents: Vec<(OrderKey, RawDocumentBuf)>,
) -> Vec<(OrderKey, std::result::Result<RawDocumentBuf, ErrorCode>)> {
    let code = |error: pinion_wire::Error| error.code;
    let mut found: Vec<(OrderKey, RawDocumentBuf)> = documents
        .into_iter()
        .filter(|(_, document)| split.matcher.matches(&**document).expect("it is a filter"))
        .collect();
    if let Some(sort) = &split.sort {
        for (order, document) in &mut found {
            *order = sort.sort_key(&**document).expect("it has a key");
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
    }
    let Some(stages) = &split.part else {
        return found.into_iter().map(|(order, d)| (order, Ok(d))).collect();
    };
    let mut made = Vec::new();
    for (order, document) in found {
        match run(stages.before().clone(), vec![document]) {
            Ok(documents) => made.extend(documents.into_iter().map(|d| (order.clone(), Ok(d)))),
            Err(code) => made.push((order, Err(code))),
        }
    }
    if stages.sort().is_some() {
        let mut sorted = Vec::new();
        for (at, (order, document)) in made.into_iter().enumerate() {
            let keyed = document.and_then(|document| {
                let document = Document::from(document);
                let key = stages.sort_key(&document).map_err(code)?;
                Ok((key, RawDocument::to_owned(&document)))
            });
            match keyed {
                Ok((key, document)) => {
                    let key = [&key[..], &order, &(at as u64).to_be_bytes()].concat();
                    sorted.push((key, Ok(document)));
                }
                Err(code) => return vec![([&[0], &order[..]].concat(), Err(code))],
            }
        }
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        made = sorted;
    }
    made.truncate(stages.keep().unwrap_or(usize::MAX));
    let finished = |document: RawDocumentBuf| {
        let bytes = stages.finish(&document).map_err(code)?;
        Ok(RawDocumentBuf::from_bytes(bytes.to_vec()).expect("a document"))
    };
    let finished = made
        .into_iter()
        .map(|(order, document)| (order, document.and_then(finished)));
    finished.collect()
}

/// What the pipeline gives when the documents lie in a number of parts.
fn in_parts(split: &SplitPipeline, documents: &[RawDocumentBuf], parts: usize) -> Outcome {
    let mut given = Vec::new();
    for at in 0..parts {
        let own = documents.iter().enumerate().skip(at).step_by(parts);
        let own = own.map(|(at, document)| (at.to_be_bytes().to_vec(), document.clone()));
        given.extend(part(split, own.collect()));
    }
    given.sort_by(|a, b| a.0.cmp(&b.0));
    given.truncate(split.limit.map_or(usize::MAX, |limit| limit as usize));
    let (mut merged, mut failed) = (Vec::new(), None);
    for (_, document) in given {
        match document {
            Ok(document) => merged.push(document),
            Err(code) => {
                failed = Some(code);
                break;
            }
        }
    }
    merge(split.merger.clone(), merged, failed)
}

/// What the merger makes of documents, behind which one failed unless all are there.
fn merge(merger: Pipeline, documents: Vec<RawDocumentBuf>, failed: Option<ErrorCode>) -> Outcome {
    let mut run = PipelineRun::new(merger, &Memory::default());
    let mut documents = documents.into_iter();
    let (mut out, mut input) = (Vec::new(), Input::Go);
    loop {
        let want = run.step(input, Units::MAX).map_err(|error| error.code)?;
        input = match want {
            StageRequest::Document => match (documents.next(), failed) {
                (Some(document), _) => Input::Document(document.into()),
                (None, Some(code)) => return Err(code),
                (None, None) => Input::End,
            },
            StageRequest::Output(document) => {
                out.push(RawDocument::to_owned(&document));
                Input::Go
            }
            StageRequest::Pause => Input::Go,
            StageRequest::Done => return Ok(out),
            StageRequest::Disk(_) | StageRequest::Compute => {
                unreachable!("there is room for all, and time")
            }
        };
    }
}

fn documents(count: i32) -> Vec<RawDocumentBuf> {
    let document = |i: i32| {
        let k = ["a", "b", "c"][(i * 5 % 3) as usize];
        let t = "x".repeat((i % 4) as usize);
        rawdoc! { "_id": i, "k": k, "n": i * 7 % 11, "l": [i, i % 3], "t": t }
    };
    (0..count).map(document).collect()
}

#[track_caller]
fn check(stages: &RawArrayBuf, count: i32) {
    let whole = run(pipeline(stages), documents(count));
    let split = pipeline(stages).split(None, &Variables::default());
    let split = split.expect("it splits");
    let behind = pipeline(stages).find_prefix(None, &Variables::default());
    let (behind, whole_again) = (behind.expect("it splits").rest, split.clone().into_whole());
    assert!(behind.sources().eq(whole_again.sources()), "{stages:?}");
    for parts in [1, 2, 3, 7] {
        let found = in_parts(&split, &documents(count), parts);
        assert_eq!(found, whole, "{stages:?} of {count} in {parts}");
    }
}

/// The stages that random pipelines are made of.
fn stages() -> Vec<RawDocumentBuf> {
    vec![
        rawdoc! { "$match": { "n": { "$gt": 3 } } },
        rawdoc! { "$match": { "$expr": { "$ne": ["$k", "b"] } } },
        rawdoc! { "$project": { "k": 1, "n": 1 } },
        rawdoc! { "$project": { "n": { "$add": ["$n", 1] }, "l": 1, "k": 1 } },
        rawdoc! { "$addFields": { "m": { "$multiply": ["$n", 2] } } },
        rawdoc! { "$addFields": { "q": { "$divide": [12, { "$subtract": ["$n", 9] }] } } },
        rawdoc! { "$unset": "t" },
        rawdoc! { "$unwind": "$l" },
        rawdoc! { "$unwind": { "path": "$l", "preserveNullAndEmptyArrays": true, "includeArrayIndex": "i" } },
        rawdoc! { "$replaceRoot": { "newRoot": { "_id": "$n", "n": "$_id", "k": "$k", "l": "$l" } } },
        rawdoc! { "$replaceWith": { "l": "$l", "n": "$n" } },
        rawdoc! { "$redact": { "$cond": [{ "$lt": ["$n", 8] }, "$$KEEP", "$$PRUNE"] } },
        rawdoc! { "$sort": { "n": 1 } },
        rawdoc! { "$sort": { "k": -1, "n": 1 } },
        rawdoc! { "$sort": { "l": 1 } },
        rawdoc! { "$limit": 4 },
        rawdoc! { "$skip": 2 },
        rawdoc! { "$group": { "_id": "$k", "f": { "$first": "$n" }, "all": { "$push": "$_id" }, "s": { "$sum": "$n" } } },
        rawdoc! { "$count": "c" },
    ]
}

/// A campaign runs more: `PINION_SEEDS` says how many times as many.
#[test]
fn random_pipelines_give_the_same_in_parts() {
    let times: u64 = std::env::var("PINION_SEEDS")
        .ok()
        .and_then(|times| times.parse().ok())
        .unwrap_or(1);
    let stages = stages();
    let (mut state, mut staged) = (7_u64, 0);
    let mut next = |below: usize| {
        state = (state.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for _ in 0..1500 * times {
        let mut array = RawArrayBuf::new();
        for _ in 0..=next(5) {
            array.push(stages[next(stages.len())].clone());
        }
        let count = [0, 1, 9, 40][next(4)];
        check(&array, count);
        let split = pipeline(&array).split(None, &Variables::default());
        staged += u64::from(split.expect("it splits").part.is_some());
    }
    assert!(staged > 700 * times, "{staged} have stages in their parts");
}

#[track_caller]
fn check_split(stages: RawBson, expected: Option<[RawBson; 2]>) {
    let RawBson::Array(stages) = stages else {
        panic!("an array of stages");
    };
    check(&stages, 40);
    let split = pipeline(&stages).split(None, &Variables::default());
    let shown = split.expect("it splits").shown_parts(true, true);
    let listed = |stages: Vec<RawDocumentBuf>| {
        let mut array = RawArrayBuf::new();
        stages.into_iter().for_each(|stage| array.push(stage));
        RawBson::Array(array)
    };
    let shown = shown.map(|parts| parts.map(listed));
    assert_eq!(shown, expected, "{stages:?}");
}

/// What leaves of each document the fields that are read.
fn read(names: &[&str]) -> RawDocumentBuf {
    let mut spec = RawDocumentBuf::new();
    for name in names {
        spec.append(CString::try_from(*name).expect("no zero byte"), 1);
    }
    if !names.contains(&"_id") {
        spec.append(CString::try_from("_id").expect("no zero byte"), 0);
    }
    rawdoc! { "$project": spec }
}

#[test]
fn parts_run_what_looks_at_each_document_and_sort() {
    let add = || rawdoc! { "$addFields": { "m": { "$add": ["$n", 1] } } };
    let unwind = || rawdoc! { "$unwind": { "path": "$l" } };
    let sort = || rawdoc! { "$sort": { "m": 1 } };
    let project = || rawdoc! { "$project": { "m": true, "_id": true } };
    // A group that does not run in parts.
    let undivided = || rawdoc! { "$group": { "_id": "$k", "f": { "$stdDevPop": "$n" } } };
    let nothing = || rawbson!([]);
    check_split(rawbson!([{ "$match": { "n": 1 } }]), None);
    check_split(rawbson!([{ "$sort": { "n": 1 } }, { "$limit": 3 }]), None);
    check_split(rawbson!([undivided()]), None);
    check_split(
        rawbson!([add(), unwind()]),
        Some([rawbson!([add(), unwind()]), nothing()]),
    );
    check_split(
        rawbson!([add(), undivided()]),
        Some([
            rawbson!([read(&["k", "n"]), add()]),
            rawbson!([undivided()]),
        ]),
    );
    check_split(
        rawbson!([add(), sort(), { "$limit": 3_i64 }, project()]),
        Some([
            rawbson!([read(&["_id", "m", "n"]), add(), sort(), project()]),
            rawbson!([{ "$limit": 3_i64 }]),
        ]),
    );
    check_split(
        rawbson!([add(), sort(), { "$skip": 1_i64 }, { "$limit": 3_i64 }, project()]),
        Some([
            rawbson!([read(&["_id", "m", "n"]), add(), sort()]),
            rawbson!([{ "$skip": 1_i64 }, { "$limit": 3_i64 }, project()]),
        ]),
    );
    check_split(
        rawbson!([{ "$sort": { "n": 1 } }, { "$limit": 7 }, project(), unwind()]),
        Some([rawbson!([project()]), rawbson!([unwind()])]),
    );
}

/// Nothing is made of documents that are skipped, so they cannot fail.
#[test]
fn skipped_documents_are_not_looked_at() {
    let divides =
        rawdoc! { "$addFields": { "q": { "$divide": [12, { "$subtract": ["$n", 9] }] } } };
    let stages = rawbson!([{ "$unset": "t" }, { "$match": { "n": { "$gt": 3 } } },
        { "$sort": { "l": 1 } }, { "$skip": 2 }, divides]);
    let RawBson::Array(stages) = stages else {
        panic!("an array of stages");
    };
    check(&stages, 9);
}

#[test]
fn parts_make_groups_where_the_order_does_not_matter() {
    let group = rawdoc! { "$group": { "_id": "$k", "n": { "$sum": "$n" }, "c": { "$sum": 1 } } };
    let merge = rawdoc! { "$group": { "_id": "$$ROOT._id", "n": { "$sum": "$$ROOT.n" },
    "c": { "$sum": "$$ROOT.c" }, "$doingMerge": true } };
    check_split(
        rawbson!([{ "$unwind": "$l" }, group.clone(), { "$limit": 2_i64 }]),
        Some([
            rawbson!([read(&["k", "l", "n"]), { "$unwind": "$l" }, group]),
            rawbson!([merge, { "$limit": 2_i64 }]),
        ]),
    );
}

#[test]
fn what_is_known_of_documents_does_not_leave_a_part() {
    let stages = rawbson!([{ "$addFields": { "m": 1 } }, { "$sort": { "m": 1 } },
        { "$project": { "key": { "$meta": "sortKey" } } }]);
    check_split(stages, None);
}
