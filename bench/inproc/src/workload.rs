//! Point reads and inserts of documents of 1 KB, brought to the connection layer of every core as
//! the bytes of OP_MSG.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, get};
use pinion_runtime::{
    Duration, Queue, Rng, core_count, core_id, join_all, now, on_all_cores, random_stream, spawn,
    yield_if_due,
};
use pinion_server::Direct;
use pinion_storage::storage;
use pinion_wire::{Flags, Message, encode_request, parse_message};

const DB: &str = "bench";
const COLLECTION: &str = "c";
const VALUE_BYTES: usize = 1000;
const LOAD_BATCH: u64 = 100;
/// One reply in this number is looked into.
const CHECK_EVERY: u64 = 1000;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads of uniform keys.
    Read,
    /// Reads of one key after the other, each core its share of them.
    Warm,
    Insert,
}

/// How long.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Elapsed(Duration),
    /// This number of operations on each core.
    Operations(u64),
}

/// What was done on all cores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub operations: u64,
    pub nanos: u64,
    /// Processor time of the whole process meanwhile.
    pub cpu_nanos: u64,
    /// Operations whose document another core owns.
    pub hops: u64,
    /// No insert has had this id or one above it.
    pub next_id: u64,
}

impl Measured {
    pub fn per_second(&self) -> f64 {
        self.operations as f64 * 1e9 / self.nanos as f64
    }

    /// Processor time of one operation, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.cpu_nanos as f64 / 1e3 / self.operations as f64
    }
}

fn request(fill: impl FnOnce(&mut DocBuilder)) -> Bytes {
    let mut body = DocBuilder::new();
    fill(&mut body);
    body.append("$db", DB);
    encode_request(1, Flags(0), &body.finish())
}

fn document(id: i64, value: &str) -> RawDocumentBuf {
    let mut document = DocBuilder::with_capacity(VALUE_BYTES + 64);
    document.append("_id", id).append("v", value);
    document.finish()
}

fn insert(documents: &[RawDocumentBuf]) -> Bytes {
    request(|body| {
        body.append("insert", COLLECTION).start_array("documents");
        for document in documents {
            body.push(RawBsonRef::Document(document));
        }
        body.end();
    })
}

fn find(id: i64) -> Bytes {
    request(|body| {
        body.append("find", COLLECTION)
            .start_document("filter")
            .append("_id", id)
            .end()
            .append("limit", 1)
            .append("singleBatch", true);
    })
}

fn random_text(rng: &mut Rng) -> String {
    (0..VALUE_BYTES)
        .map(|_| char::from(b'!' + rng.below(90) as u8))
        .collect()
}

/// Reads the reply's body with `look`.
fn look<R>(reply: Bytes, look: impl FnOnce(&RawDocument) -> R) -> R {
    let message: Message = parse_message(reply).expect("a reply is a message");
    let body = message.body();
    assert_eq!(
        get(body, "ok").and_then(|ok| ok.as_f64()),
        Some(1.0),
        "{body:?}"
    );
    look(body)
}

async fn command(direct: &Direct, message: Bytes) {
    let reply = direct.answer(message).await.expect("a reply");
    look(reply, |body| {
        assert!(get(body, "writeErrors").is_none(), "{body:?}")
    });
}

/// Inserts documents with the ids from 0 on, and makes a checkpoint.
pub async fn load(records: u64) {
    on_all_cores(move |core| async move {
        let direct = Direct::new();
        let mut rng = random_stream("load");
        let mut at = u64::from(core.0) * LOAD_BATCH;
        while at < records {
            let ids = at..(at + LOAD_BATCH).min(records);
            let documents: Vec<RawDocumentBuf> = ids
                .map(|id| document(id as i64, &random_text(&mut rng)))
                .collect();
            command(&direct, insert(&documents)).await;
            at += LOAD_BATCH * core_count() as u64;
        }
    })
    .await;
    checkpoint().await;
}

/// Makes a checkpoint.
pub async fn checkpoint() {
    let fsync = {
        let mut body = DocBuilder::new();
        body.append("fsync", 1).append("$db", "admin");
        encode_request(1, Flags(0), &body.finish())
    };
    command(&Direct::new(), fsync).await;
}

/// Documents there are.
pub async fn count() -> u64 {
    let reply = Direct::new()
        .answer(request(|body| {
            body.append("count", COLLECTION);
        }))
        .await
        .expect("a reply");
    look(reply, |body| {
        get(body, "n").and_then(|n| n.as_i32()).expect("a count") as u64
    })
}

/// User and system time of this process, in the kernel's ticks of 10 ms (proc(5), stat, fields 14
/// and 15).
fn cpu_nanos() -> u64 {
    const NANOS_OF_A_TICK: u64 = 10_000_000;
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a process sees itself");
    // The name, field 2, may hold anything but ends with the last parenthesis.
    let (_, behind_name) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks: u64 = behind_name
        .split_ascii_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum();
    ticks * NANOS_OF_A_TICK
}

/// Reads every document once, so that all that fits into the cache is there.
pub async fn warm(tasks: usize, records: u64) {
    let of_each_core = Until::Operations(records / core_count() as u64);
    run(Kind::Warm, of_each_core, tasks, records, 0).await;
}

/// Runs `tasks` connections on every core. Reads ask for uniform keys below `records`; inserts get
/// ids from `first` on.
pub async fn run(kind: Kind, until: Until, tasks: usize, records: u64, first: u64) -> Measured {
    let (started, cpu_before) = (now(), cpu_nanos());
    let cores =
        on_all_cores(move |_| async move { on_core(kind, until, tasks, records, first).await })
            .await;
    let nanos = now().saturating_since(started).as_nanos() as u64;
    let mut all = Measured {
        nanos,
        cpu_nanos: cpu_nanos() - cpu_before,
        ..Measured::default()
    };
    for core in cores {
        all.operations += core.operations;
        all.hops += core.hops;
        all.next_id = all.next_id.max(core.next_id);
    }
    all
}

/// The requests of one core.
struct Source {
    kind: Kind,
    /// A request, and where its `_id` stands in it.
    template: (Vec<u8>, usize),
    keys: RefCell<Rng>,
    records: u64,
    next_id: Cell<u64>,
    operations: Cell<u64>,
    hops: Cell<u64>,
    until: Until,
    deadline_ns: u64,
}

impl Source {
    fn new(kind: Kind, until: Until, records: u64, first: u64) -> Source {
        const MARK: i64 = 0x1122_3344_5566_7788;
        let mut keys = random_stream("keys");
        let template = match kind {
            Kind::Read | Kind::Warm => find(MARK),
            Kind::Insert => insert(&[document(MARK, &random_text(&mut keys))]),
        };
        let at = template
            .windows(8)
            .position(|bytes| bytes == MARK.to_le_bytes())
            .expect("the mark is in it");
        let deadline_ns = match until {
            Until::Elapsed(elapsed) => (now() + elapsed).as_nanos(),
            Until::Operations(_) => u64::MAX,
        };
        Source {
            kind,
            template: (template.to_vec(), at),
            keys: RefCell::new(keys),
            records,
            next_id: Cell::new(first + u64::from(core_id().0)),
            operations: Cell::new(0),
            hops: Cell::new(0),
            until,
            deadline_ns,
        }
    }

    /// The next request; `None` at the end.
    fn next(&self) -> Option<Bytes> {
        let done = self.operations.get();
        let over = match self.until {
            Until::Operations(wanted) => done >= wanted,
            Until::Elapsed(_) => now().as_nanos() >= self.deadline_ns,
        };
        if over {
            return None;
        }
        self.operations.set(done + 1);
        let id = match self.kind {
            Kind::Read => self.keys.borrow_mut().below(self.records),
            Kind::Warm | Kind::Insert => {
                let id = self.next_id.get();
                self.next_id.set(id + core_count() as u64);
                id
            }
        };
        let (mut message, at) = self.template.clone();
        message[at..at + 8].copy_from_slice(&(id as i64).to_le_bytes());
        self.hops.set(self.hops.get() + u64::from(hops(id as i64)));
        Some(Bytes::from(message))
    }
}

/// Whether another core owns the document with this id.
fn hops(id: i64) -> bool {
    let key = pinion_keystring::encode_id(RawBsonRef::Int64(id));
    storage().owner(storage().partition_of_hash(&key)) != core_id()
}

async fn on_core(kind: Kind, until: Until, tasks: usize, records: u64, first: u64) -> Measured {
    let source = Rc::new(Source::new(kind, until, records, first));
    join_all((0..tasks).map(|_| {
        let source = source.clone();
        spawn(Queue::Foreground, async move {
            let direct = Direct::new();
            while let Some(message) = source.next() {
                let looked_into = source.operations.get().is_multiple_of(CHECK_EVERY);
                let reply = direct.answer(message).await.expect("a reply");
                match kind {
                    Kind::Read | Kind::Warm => {
                        assert!(reply.len() > VALUE_BYTES, "a document is missing")
                    }
                    Kind::Insert if looked_into => look(reply, |body| {
                        assert_eq!(get(body, "n").and_then(|n| n.as_i32()), Some(1))
                    }),
                    Kind::Insert => {}
                }
                yield_if_due().await;
            }
        })
    }))
    .await;
    Measured {
        operations: source.operations.get(),
        nanos: 0,
        cpu_nanos: 0,
        hops: source.hops.get(),
        next_id: source.next_id.get(),
    }
}
