//! Reads and pipelines over parts and collections that are on no core: what a router has of this
//! crate.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use pinion_bson::{RawArray, RawBsonRef, RawDocumentBuf, rawdoc};
use pinion_merge::{
    Batch, Item, MergeObserver, MergeSpec, MergedStream, Node, OrderKey, Part, PartCounters,
    Passes, PipelineStream, Sources, StepSize,
};
use pinion_query::{Document, ExternalStage, Memory, Pipeline, Variables, document_text};
use pinion_runtime::sim::block_on;
use pinion_wire::{CommandSpec, Error, ErrorCode, OpContext, Result};

static TASK: CommandSpec = CommandSpec::of_task("find");

fn context() -> OpContext {
    OpContext::internal(0, &TASK, "test", 0)
}

/// What happened, in its order.
type Trace = Rc<RefCell<Vec<String>>>;

fn note(trace: &Trace, what: impl Into<String>) {
    trace.borrow_mut().push(what.into());
}

/// A part that gives prepared batches; a batch that is missing is an error.
struct Scripted {
    name: &'static str,
    batches: VecDeque<Option<Vec<RawDocumentBuf>>>,
    trace: Trace,
}

impl Scripted {
    fn batch(&mut self) -> Result<Batch> {
        let failed = || Error::new(ErrorCode::HOST_UNREACHABLE, "the part is gone");
        let documents = self.batches.pop_front().expect("no step follows the last");
        let items = documents.ok_or_else(failed)?.into_iter().map(item);
        Ok(Batch {
            items: items.collect(),
            done: self.batches.is_empty(),
            counters: PartCounters {
                works: 1,
                ..PartCounters::default()
            },
        })
    }
}

/// Documents are ordered by their `_id`, a number below 128.
fn item(document: RawDocumentBuf) -> Item {
    let id = document.get_i32("_id").expect("each has a number");
    let order = OrderKey::from_slice(&[u8::try_from(id).expect("a small one")]);
    Item {
        id: Some(order.clone()),
        order,
        document: Ok(document.into_bytes().into()),
    }
}

impl Part for Scripted {
    async fn step(&mut self, _: &OpContext, size: StepSize) -> Result<Batch> {
        note(
            &self.trace,
            format!("step {} {}", self.name, size.documents),
        );
        pinion_runtime::yield_now().await;
        self.batch()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        note(&self.trace, format!("close {}", self.name));
    }
}

/// Adds up the work of the parts.
struct Progress {
    works: u64,
    trace: Trace,
}

impl MergeObserver for Progress {
    fn stepped(&mut self, _: &OpContext, step: &PartCounters) {
        self.works += step.works;
    }

    fn returned(&mut self, documents: u64) {
        note(&self.trace, format!("returned {documents}"));
    }

    fn ended(&mut self) {
        note(&self.trace, format!("ended after {} steps", self.works));
    }
}

type Scripts<'s> = &'s [(&'static str, Vec<Option<Vec<RawDocumentBuf>>>)];

fn read(ctx: &OpContext, parts: Scripts<'_>, trace: &Trace) -> MergedStream<Scripted, Progress> {
    let progress = Progress {
        works: 0,
        trace: trace.clone(),
    };
    let mut stream = MergedStream::new(MergeSpec::default(), progress);
    for (name, batches) in parts {
        let mut part = Scripted {
            name,
            batches: batches.clone().into(),
            trace: trace.clone(),
        };
        let first = part.batch().expect("the first batch is there");
        stream.add(ctx, part, first);
    }
    stream
}

fn numbered(ids: &[i32]) -> Option<Vec<RawDocumentBuf>> {
    Some(ids.iter().map(|id| rawdoc! { "_id": *id }).collect())
}

/// Reads to the end or to the first error, which the trace has.
async fn read_all(parts: Scripts<'_>) -> Vec<String> {
    let (ctx, trace) = (context(), Trace::default());
    let mut stream = read(&ctx, parts, &trace);
    loop {
        match stream.next_wanted(&ctx, 7).await {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => {
                note(&trace, error.message);
                break;
            }
        }
    }
    drop(stream);
    trace.take()
}

#[test]
fn parts_are_stepped_as_far_as_is_wanted_and_closed() {
    let parts = [
        ("a", vec![numbered(&[1, 3]), numbered(&[4])]),
        ("b", vec![numbered(&[2]), numbered(&[])]),
    ];
    let trace = block_on(1, async move { read_all(&parts).await });
    let expected = [
        "returned 1",
        "returned 2",
        "step b 7",
        "returned 3",
        "step a 7",
        "returned 4",
        "ended after 4 steps",
        "close a",
        "close b",
    ];
    assert_eq!(trace, expected);
}

#[test]
fn an_error_of_a_part_ends_the_read() {
    let parts = [
        ("a", vec![numbered(&[1]), None]),
        ("b", vec![numbered(&[2, 3])]),
    ];
    let trace = block_on(2, async move { read_all(&parts).await });
    let expected = [
        "returned 1",
        "step a 7",
        "the part is gone",
        "close a",
        "close b",
    ];
    assert_eq!(trace, expected);
}

/// Collections by their names, each in two parts, and what was written.
struct Elsewhere {
    collections: BTreeMap<&'static str, Vec<RawDocumentBuf>>,
    vars: Variables,
    memory: Memory,
    trace: Trace,
}

impl Elsewhere {
    fn read(&self, ctx: &OpContext, name: &str) -> Node<Elsewhere> {
        let all = &self.collections[name];
        let of_part = |part: usize| {
            let own = all.iter().skip(part).step_by(2);
            vec![Some(own.cloned().collect())]
        };
        let parts = [("a", of_part(0)), ("b", of_part(1))];
        // What the parts do is not looked at here.
        Node::Read(Box::new(read(ctx, &parts, &Trace::default())))
    }
}

impl Sources for Elsewhere {
    type Read = MergedStream<Scripted, Progress>;
    type Held = ();

    fn vars(&self) -> &Variables {
        &self.vars
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    async fn open(
        self: &Rc<Self>,
        ctx: &OpContext,
        from: Option<&str>,
        stages: &RawArray,
        vars: &Variables,
        passes: Passes,
    ) -> Result<(Node<Self>, Option<()>)> {
        note(&self.trace, format!("{passes:?} {}", from.unwrap_or("-")));
        let source = match from {
            Some(name) => self.read(ctx, name),
            None => {
                let made = Pipeline::documents(stages, vars)?;
                Node::List(made.into_iter().flatten().collect())
            }
        };
        let pipeline = Pipeline::parse_sub(stages, vars)?;
        Ok((Node::chain(source, pipeline, self), Some(())))
    }

    async fn open_own(self: &Rc<Self>, ctx: &OpContext, pipeline: &Pipeline) -> Result<Node<Self>> {
        note(&self.trace, "own");
        let source = self.read(ctx, "own");
        Ok(Node::chain(source, pipeline.clone(), self))
    }

    async fn write(
        self: &Rc<Self>,
        ctx: &OpContext,
        stage: &ExternalStage,
        mut source: Node<Self>,
    ) -> Result<()> {
        assert!(stage.writes(), "no other stage writes");
        while let Some(document) = source.next(ctx).await? {
            note(&self.trace, format!("write {}", document_text(&document)));
        }
        Ok(())
    }
}

/// Runs `pipeline` over the collection `own`; gives its documents, and what was opened and written.
#[track_caller]
fn check(pipeline: RawDocumentBuf, documents: &[&str], outside: &[&str]) {
    let run = async move {
        let sources = Rc::new(Elsewhere {
            collections: BTreeMap::from([
                ("own", vec![rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 }]),
                (
                    "other",
                    vec![
                        rawdoc! { "_id": 5, "of": 1 },
                        rawdoc! { "_id": 6, "of": 2 },
                        rawdoc! { "_id": 7, "of": 2 },
                    ],
                ),
            ]),
            vars: Variables::default(),
            memory: Memory::default(),
            trace: Trace::default(),
        });
        let ctx = context();
        let Ok(Some(RawBsonRef::Array(stages))) = pipeline.get("pipeline") else {
            panic!("a pipeline is an array");
        };
        let parsed = Pipeline::parse(stages, &sources.vars).expect("it parses");
        let mut stream = PipelineStream::new(sources.read(&ctx, "own"), parsed, &sources);
        let mut found = Vec::new();
        while let Some(document) = stream.next(&ctx).await.expect("nothing fails") {
            found.push(document_text(&Document::from(document)));
        }
        (found, sources.trace.take())
    };
    let (found, trace) = block_on(3, run);
    assert_eq!(found, documents);
    assert_eq!(trace, outside);
}

#[test]
fn stages_read_collections_through_their_sources() {
    let lookup = rawdoc! {
        "from": "other", "localField": "_id", "foreignField": "of", "as": "found",
    };
    check(
        rawdoc! { "pipeline": [{ "$match": { "_id": 2 } }, { "$lookup": lookup }] },
        &["{ _id: 2, found: [ { _id: 6, of: 2 }, { _id: 7, of: 2 } ] }"],
        &["Held other"],
    );
    let union = rawdoc! { "coll": "other", "pipeline": [{ "$limit": 1 }] };
    check(
        rawdoc! { "pipeline": [{ "$unionWith": union }, { "$project": { "_id": 1 } }] },
        &["{ _id: 1 }", "{ _id: 2 }", "{ _id: 5 }"],
        &["LetGo other"],
    );
}

#[test]
fn stages_that_write_take_all_and_give_nothing() {
    check(
        rawdoc! { "pipeline": [{ "$sort": { "_id": -1 } }, { "$out": "target" }] },
        &[],
        &["write { _id: 2 }", "write { _id: 1 }"],
    );
}

/// Runs a pipeline over one part, whose documents with a number from `failing` on have an error in
/// their place. Gives its documents, the error that ended it, and how many it was noted to have
/// read in the end.
fn run_over(
    ids: std::ops::Range<i32>,
    failing: i32,
    stages: RawDocumentBuf,
) -> (Vec<String>, Option<String>, String) {
    let run = async move {
        let (ctx, trace) = (context(), Trace::default());
        let sources = Rc::new(Elsewhere {
            collections: BTreeMap::new(),
            vars: Variables::default(),
            memory: Memory::default(),
            trace: Trace::default(),
        });
        let mut stream = read(&ctx, &[], &trace);
        let part = Scripted {
            name: "a",
            batches: VecDeque::new(),
            trace: trace.clone(),
        };
        let items = ids.map(|id| match id < failing {
            true => item(rawdoc! { "_id": id }),
            false => Item {
                document: Err(Box::new(Error::new(ErrorCode::BAD_VALUE, "no form"))),
                ..item(rawdoc! { "_id": id })
            },
        });
        let first = Batch {
            items: items.collect(),
            done: true,
            counters: PartCounters::default(),
        };
        stream.add(&ctx, part, first);
        let Ok(Some(RawBsonRef::Array(stages))) = stages.get("pipeline") else {
            panic!("a pipeline is an array");
        };
        let parsed = Pipeline::parse(stages, &sources.vars).expect("it parses");
        let mut stream = PipelineStream::new(Node::Read(Box::new(stream)), parsed, &sources);
        let (mut found, mut failed) = (Vec::new(), None);
        loop {
            match stream.next(&ctx).await {
                Ok(Some(document)) => found.push(document_text(&Document::from(document))),
                Ok(None) => break,
                Err(error) => {
                    failed = Some(error.message);
                    break;
                }
            }
        }
        let trace = trace.take();
        let last = trace.iter().rfind(|what| what.starts_with("returned"));
        (found, failed, last.cloned().unwrap_or_default())
    };
    block_on(4, run)
}

/// Documents that are there go into a run together: what it does not use was not read, and an error
/// comes in its place.
#[test]
fn what_a_run_does_not_use_was_not_read() {
    let limited = rawdoc! { "pipeline": [{ "$match": { "_id": { "$gte": 2 } } }, { "$limit": 2 }] };
    let two = vec!["{ _id: 2 }".to_owned(), "{ _id: 3 }".to_owned()];
    let expected = (two.clone(), None, "returned 4".to_owned());
    assert_eq!(run_over(0..100, 100, limited.clone()), expected);
    assert_eq!(run_over(0..100, 4, limited.clone()), expected);
    let (found, failed, read) = run_over(0..100, 3, limited);
    assert_eq!((found, read), (two[..1].to_vec(), "returned 4".to_owned()));
    assert_eq!(failed.as_deref(), Some("no form"));
    // While documents wait in the run they do not count either.
    let skipped = rawdoc! { "pipeline": [{ "$match": {} }] };
    let (found, failed, read) = run_over(0..100, 1, skipped);
    assert_eq!((found.len(), read), (1, "returned 2".to_owned()));
    assert_eq!(failed.as_deref(), Some("no form"));
    let counted = rawdoc! { "pipeline": [{ "$group": { "_id": 1, "n": { "$sum": 1 } } }] };
    let expected = (
        vec!["{ _id: 1, n: 120 }".to_owned()],
        None,
        "returned 120".to_owned(),
    );
    assert_eq!(run_over(0..120, 120, counted), expected);
}
