//! Nanoseconds per document of filters, sort keys, projections and pipelines, without storage,
//! cores and replies.
//!
//! Each line is the best of several rounds over the same generated documents, on one core:
//! `cargo run --release -p pinion-bench-pipelines`. Words on the command line choose lines.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use pinion_bson::testing::Rng;
use pinion_bson::{RawBson, RawDocumentBuf, rawbson, rawdoc};
use pinion_query::{
    Document, Input, Matcher, Memory, Pipeline, PipelineRun, Projection, SortPattern, StageRequest,
    Subject, Variables, work,
};

/// Few enough to stay in a core's own cache: what memory costs is not measured here.
const DOCUMENTS: usize = 2_000;
/// How many documents a round of a scan examines, and a pipeline is given at once.
const AT_ONCE: usize = 64;
const ROUNDS: usize = 50;
/// What a core gives a call.
const BUDGET: work::Units = 4_000_000;

const WORDS: [&str; 16] = [
    "alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet",
    "kilo", "lima", "mike", "november", "oscar", "papa",
];

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let bench = Bench {
        documents: documents(),
        chosen,
    };
    bench.filters();
    bench.pipelines();
    bench.keys();
}

/// The documents of `bench/scans`.
fn documents() -> Vec<Document> {
    let mut rng = Rng::new(1);
    let made = (0..DOCUMENTS as i32).map(|number| {
        let text: Vec<&str> = (0..12).map(|_| word(&mut rng)).collect();
        let tags = [word(&mut rng), word(&mut rng), word(&mut rng), word(&mut rng)];
        let document = rawdoc! {
            "_id": number, "n": number, "few": rng.below(10) as i32, "many": rng.below(5000) as i32,
            "x": rng.below(1 << 52) as f64 / (1_u64 << 52) as f64, "key": rng.below(DOCUMENTS as u64) as i32,
            "text": text.join(" "), "tags": [(tags[0]), (tags[1]), (tags[2]), (tags[3])], "fill": "f".repeat(240),
        };
        Document::from(document)
    });
    made.collect()
}

fn word(rng: &mut Rng) -> &'static str {
    WORDS[rng.below(WORDS.len() as u64) as usize]
}

struct Bench {
    documents: Vec<Document>,
    chosen: Vec<String>,
}

impl Bench {
    fn filters(&self) {
        self.filter("filter, one double", rawdoc! { "x": { "$lt": 0.5 } });
        self.filter(
            "filter, three numbers",
            rawdoc! { "few": { "$lt": 8 }, "x": { "$gte": 0.1, "$lt": 0.9 }, "key": { "$gt": 10 } },
        );
        self.filter("filter, an array's items", rawdoc! { "tags": "papa" });
        self.filter(
            "filter, $in",
            rawdoc! { "many": { "$in": [1, 5, 9, 70, 800] } },
        );
        self.filter("filter, word", rawdoc! { "text": { "$regex": "oscar" } });
        self.filter(
            "filter, regex",
            rawdoc! { "text": { "$regex": "oscar.*papa" } },
        );
        self.filter(
            "filter, $expr",
            rawdoc! { "$expr": { "$lt": ["$x", { "$divide": ["$few", 10] }] } },
        );
    }

    fn pipelines(&self) {
        let group = |id: &str, fields: RawDocumentBuf| {
            let mut spec = rawdoc! { "_id": id };
            for (name, value) in pinion_bson::elements(&fields) {
                spec.append(
                    pinion_bson::CString::try_from(name).expect("no zero"),
                    RawBson::from(value),
                );
            }
            rawbson!([{ "$group": (RawBson::Document(spec)) }])
        };
        self.pipeline(
            "$group, 10 groups, count",
            group("$few", rawdoc! { "n": { "$sum": 1 } }),
        );
        self.pipeline(
            "$group, 10 groups, sum of doubles",
            group("$few", rawdoc! { "s": { "$sum": "$x" } }),
        );
        self.pipeline(
            "$group, 10 groups, sum, avg, min",
            group(
                "$few",
                rawdoc! { "s": { "$sum": "$n" }, "a": { "$avg": "$key" }, "m": { "$min": "$x" } },
            ),
        );
        self.pipeline(
            "$group, 5,000 groups, sum and max",
            group(
                "$many",
                rawdoc! { "s": { "$sum": "$x" }, "m": { "$max": "$n" } },
            ),
        );
        self.pipeline(
            "$group by two fields",
            rawbson!([{ "$group": { "_id": { "f": "$few", "t": "$many" }, "n": { "$sum": 1 } } }]),
        );
        self.pipeline("$unwind, $group", rawbson!([{ "$unwind": "$tags" }, { "$group": { "_id": "$tags", "n": { "$sum": 1 } } }]));
        self.pipeline(
            "$match, $count",
            rawbson!([{ "$match": { "x": { "$lt": 0.5 } } }, { "$count": "n" }]),
        );
        self.pipeline(
            "$sort, $limit",
            rawbson!([{ "$sort": { "key": 1 } }, { "$limit": 10 }]),
        );
        self.pipeline("$addFields, $match, $count", rawbson!([{ "$addFields": { "y": { "$multiply": ["$x", 2] } } }, { "$match": { "y": { "$lt": 1 } } }, { "$count": "n" }]));
        self.pipeline(
            "$project of two fields",
            rawbson!([{ "$project": { "few": 1, "x": 1 } }, { "$count": "n" }]),
        );
        self.pipeline(
            "$project that computes",
            rawbson!([{ "$project": { "y": { "$multiply": ["$x", 2] } } }, { "$count": "n" }]),
        );
    }

    fn keys(&self) {
        let variables = Variables::default();
        let sort = SortPattern::parse(&rawdoc! { "key": 1, "text": -1 }).expect("a pattern");
        self.line("sort key of two fields", |document| {
            let key = sort
                .sort_key(Subject::from(document))
                .expect("it has a key");
            key.len()
        });
        let projection = rawdoc! { "few": 1, "x": 1, "tags": 1 };
        let projection = Projection::parse_find(&projection, &variables).expect("a projection");
        self.line("projection of three fields", |document| {
            let made = projection
                .apply(Subject::from(document), None)
                .expect("it projects");
            made.as_bytes().len()
        });
    }

    fn filter(&self, name: &str, filter: RawDocumentBuf) {
        let matcher = Matcher::parse(&filter).expect("a filter");
        self.line(name, |document| {
            usize::from(matcher.matches(document).expect("it matches or not"))
        });
    }

    /// Calls a function for each document, some at a time within one budget.
    fn line(&self, name: &str, each: impl Fn(&Document) -> usize) {
        self.measure(name, || {
            let mut sum = 0;
            for documents in self.documents.chunks(AT_ONCE) {
                let some = || Ok(documents.iter().map(&each).sum::<usize>());
                sum += work::within(BUDGET, some)
                    .expect("little")
                    .expect("no error");
            }
            sum
        });
    }

    fn pipeline(&self, name: &str, stages: RawBson) {
        let RawBson::Array(stages) = stages else {
            panic!("stages come in an array");
        };
        let pipeline = Pipeline::parse(&stages, &Variables::default()).expect("a pipeline");
        self.measure(name, || self.run(&pipeline));
    }

    /// Runs all documents through the pipeline, and gives how many come out.
    fn run(&self, pipeline: &Pipeline) -> usize {
        let mut run = PipelineRun::new(pipeline.clone(), &Memory::default());
        let mut chunks = self.documents.chunks(AT_ONCE);
        let (mut input, mut out) = (Input::Go, 0);
        loop {
            let mut want = run.step(input, BUDGET).expect("no error");
            if let StageRequest::Compute = want {
                let until = Arc::new(AtomicBool::new(false));
                want = run.step_until(until).expect("no error");
            }
            input = match want {
                StageRequest::Document => chunks.next().map_or(Input::End, |documents| {
                    Input::Documents(documents.iter().cloned().collect::<VecDeque<_>>())
                }),
                StageRequest::Output(document) => {
                    black_box(document);
                    out += 1;
                    Input::Go
                }
                StageRequest::Done => return out,
                StageRequest::Pause | StageRequest::Compute => Input::Go,
                StageRequest::Disk(_) => panic!("there is memory for all"),
            };
        }
    }

    fn measure(&self, name: &str, round: impl Fn() -> usize) {
        if !self.chosen.is_empty() && !self.chosen.iter().any(|word| name.contains(&**word)) {
            return;
        }
        #[allow(
            clippy::disallowed_methods,
            reason = "a benchmark outside a node measures real time"
        )]
        let now = Instant::now;
        let timed = |_| {
            let began = now();
            black_box(round());
            began.elapsed()
        };
        let best = (0..ROUNDS).map(timed).min().expect("there are rounds");
        println!(
            "{name:<40} {:>8.1} ns",
            best.as_nanos() as f64 / DOCUMENTS as f64
        );
    }
}
