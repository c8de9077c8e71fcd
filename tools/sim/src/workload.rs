//! What the clients do: workers that write keys of their own, a reader of snapshots, and one that
//! changes indexes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use pinion_bson::{RawArrayBuf, RawDocument, RawDocumentBuf, rawdoc};
use pinion_runtime::{Duration, Rng, sleep};

use crate::agreement::numbers;
use crate::client::{
    Client, Failure, Refusal, SHUTTING_DOWN, batch, error_code, error_message, read_all,
};
use crate::oracle::{Oracle, State};

/// Values of the unique field that workers compete for.
const CONTESTED_VALUES: u64 = 20;
/// Documents of one batch into the log.
const MAX_BATCH: u64 = 12;
/// Documents that one statement moves at most, and the part of the other operations that are such
/// statements.
const MAX_MOVED: u64 = 8;
const MOVES: f64 = 0.1;
const DUPLICATE_KEY: i32 = 11_000;
/// What comes and goes in the catalog, as the oracle names it.
pub const EXTRA_INDEX: &str = "index extra";
pub const SIDE_COLLECTION: &str = "collection side";
/// WriteConflict and TemporarilyUnavailable: right answers to a write when others write too, or
/// memory is short.
const BUSY: [i32; 2] = [112, 365];
/// Index changes at once meet each other or a collection that is not there: these answers are
/// right.
const DDL_REFUSALS: [i32; 5] = [26, 27, 48, 85, 86];
/// An index build that somebody has ended, which leaves nothing of it.
const INDEX_BUILD_ABORTED: i32 = 276;
/// What the node says when its disk fails: the failure itself, and that it has stopped for it.
const FAILURES: [&str; 2] = ["simulated I/O error", "storage has stopped"];

/// What workers, reader and the run share. All of a simulation is one thread.
pub struct Shared {
    pub address: Cell<SocketAddr>,
    pub oracle: RefCell<Oracle>,
    /// No worker starts anything while this is set.
    pub paused: Cell<bool>,
    /// Operations under way.
    pub active: Cell<usize>,
    /// Everybody ends.
    pub stopped: Cell<bool>,
    /// Whether indexes come and go.
    pub with_ddl: bool,
    /// Names of the files in which a bit was flipped, one of which must be in every report of
    /// damage.
    pub damaged: RefCell<Vec<String>>,
    /// Operations of the disk fail now and then.
    pub failing: Cell<bool>,
    /// The first report of damage that the node made.
    pub reported: RefCell<Option<String>>,
}

impl Shared {
    fn begin(self: &Rc<Self>) -> Option<Active> {
        if self.paused.get() || self.stopped.get() {
            return None;
        }
        self.active.set(self.active.get() + 1);
        Some(Active(self.clone()))
    }

    /// The node says that something is wrong. That is right only when something is, and then it
    /// must name a file.
    pub fn report(&self, what: &str) {
        if self.failing.get() && FAILURES.iter().any(|failure| what.contains(failure)) {
            return;
        }
        let damaged = self.damaged.borrow();
        if damaged.is_empty() {
            let mut oracle = self.oracle.borrow_mut();
            oracle.fail(format!("without any damage: {what}"));
        } else if !damaged.iter().any(|file| what.contains(file)) {
            let mut oracle = self.oracle.borrow_mut();
            oracle.fail(format!("{damaged:?} is damaged, and the report is: {what}"));
        } else {
            let mut reported = self.reported.borrow_mut();
            reported.get_or_insert_with(|| what.to_owned());
        }
    }

    /// A read gave nothing: because of the crash, or because the node says that something is wrong.
    pub fn read_refused(&self, refusal: &Refusal) {
        if !refusal.is_of_the_moment() {
            self.report(&format!("{}: {refusal:?}", refusal.message()));
        }
    }

    /// An answer to a write that is none of those that a working node gives.
    fn write_refused(&self, reply: &RawDocument) {
        if !SHUTTING_DOWN.contains(&error_code(reply)) {
            self.report(&format!("{}: {reply:?}", error_message(reply)));
        }
    }
}

/// One operation under way.
struct Active(Rc<Shared>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.set(self.0.active.get() - 1);
    }
}

async fn idle(shared: &Shared) -> bool {
    sleep(Duration::from_millis(5)).await;
    !shared.stopped.get()
}

/// A worker: inserts, updates, deletes and reads its own keys, and appends to the log.
pub async fn work(shared: Rc<Shared>, number: usize, mut rng: Rng) {
    let mut client = Client::new(shared.address.get());
    loop {
        let Some(active) = shared.begin() else {
            if idle(&shared).await {
                continue;
            }
            return;
        };
        let journaled = rng.chance(0.8);
        match rng.below(10) {
            0..4 => insert(&shared, &mut client, number, &mut rng, journaled).await,
            4..6 => update(&shared, &mut client, number, &mut rng, journaled).await,
            6 => delete(&shared, &mut client, number, &mut rng, journaled).await,
            _ if rng.chance(MOVES) => {
                move_some(&shared, &mut client, number, &mut rng, journaled).await
            }
            7 => read(&shared, &mut client, number, &mut rng).await,
            _ => append(&shared, &mut client, number, &mut rng, journaled).await,
        }
        drop(active);
        if rng.chance(0.1) {
            sleep(Duration::from_micros(rng.below(3_000))).await;
        }
    }
}

fn concern(journaled: bool) -> RawDocumentBuf {
    rawdoc! { "w": 1_i32, "j": journaled }
}

fn document(key: &str, number: i32, unique: &str, version: i32, pad: &str) -> RawDocumentBuf {
    rawdoc! { "_id": key, "n": [number, number + 1], "u": unique, "v": version, "pad": pad }
}

async fn insert(
    shared: &Rc<Shared>,
    client: &mut Client,
    worker: usize,
    rng: &mut Rng,
    journaled: bool,
) {
    let key = format!(
        "w{worker}-{}",
        shared.oracle.borrow().workers[worker].key_count()
    );
    let unique = if rng.chance(0.3) {
        format!("contested-{}", rng.below(CONTESTED_VALUES))
    } else {
        key.clone()
    };
    // Large values now and then, so that overflow pages and frames over several blocks are common.
    let longest = if rng.chance(0.05) { 20_000 } else { 300 };
    let pad = "p".repeat(rng.below(longest) as usize);
    let document = document(&key, rng.below(30) as i32, &unique, 0, &pad);
    let mut documents = RawArrayBuf::new();
    documents.push(document.clone());
    let command = rawdoc! { "insert": "docs", "documents": documents, "writeConcern": concern(journaled), "$db": "sim" };
    write(
        shared,
        client,
        worker,
        &key,
        Some(document.into_bytes()),
        &command,
        journaled,
    )
    .await;
}

async fn update(
    shared: &Rc<Shared>,
    client: &mut Client,
    worker: usize,
    rng: &mut Rng,
    journaled: bool,
) {
    let Some((key, old)) = pick(shared, worker, rng) else {
        return;
    };
    let text = |name: &str| old.get_str(name).map(String::from).unwrap_or_default();
    let version = old.get_i32("v").unwrap_or(0) + 1;
    let unique = match rng.below(4) {
        0 => format!("contested-{}", rng.below(CONTESTED_VALUES)),
        1 => key.clone(),
        _ => text("u"),
    };
    let number = rng.below(30) as i32;
    let new = document(&key, number, &unique, version, &text("pad"));
    let change = rawdoc! { "$set": { "n": [number, number + 1], "u": unique.as_str() }, "$inc": { "v": 1_i32 } };
    let command = if rng.chance(0.25) {
        rawdoc! { "findAndModify": "docs", "query": { "_id": key.as_str() }, "update": change, "writeConcern": concern(journaled), "$db": "sim" }
    } else {
        rawdoc! { "update": "docs", "updates": [{ "q": { "_id": key.as_str() }, "u": change }], "writeConcern": concern(journaled), "$db": "sim" }
    };
    write(
        shared,
        client,
        worker,
        &key,
        Some(new.into_bytes()),
        &command,
        journaled,
    )
    .await;
}

/// Moves several documents of a worker forward in the index by which one statement finds them: each
/// once, however often the statement meets it.
async fn move_some(
    shared: &Rc<Shared>,
    client: &mut Client,
    worker: usize,
    rng: &mut Rng,
    journaled: bool,
) {
    let moved: BTreeMap<String, RawDocumentBuf> = (0..1 + rng.below(MAX_MOVED))
        .filter_map(|_| pick(shared, worker, rng))
        .collect();
    if moved.is_empty() {
        return;
    }
    if rng.chance(0.5) {
        return move_documents(shared, client, worker, &moved, journaled).await;
    }
    if let Err(refusal) = renew_reads(client, true).await {
        return shared.read_refused(&refusal);
    }
    move_documents(shared, client, worker, &moved, journaled).await;
    if let Err(refusal) = renew_reads(client, false).await {
        shared.read_refused(&refusal);
    }
}

async fn move_documents(
    shared: &Rc<Shared>,
    client: &mut Client,
    worker: usize,
    moved: &BTreeMap<String, RawDocumentBuf>,
    journaled: bool,
) {
    // Behind every other value of the worker's.
    let place = shared.oracle.borrow_mut().next_place();
    let mut keys = RawArrayBuf::new();
    moved.keys().for_each(|key| keys.push(key.as_str()));
    let filter = rawdoc! { "u": { "$gte": "" }, "_id": { "$in": keys } };
    let unique = rawdoc! { "$concat": [place.as_str(), "$_id"] };
    let version = rawdoc! { "$add": ["$v", 1_i32] };
    let command = rawdoc! {
        "update": "docs",
        "updates": [{
            "q": filter,
            "u": [{ "$set": { "u": unique, "v": version } }],
            "multi": true,
            "hint": "u_1",
        }],
        "writeConcern": concern(journaled),
        "$db": "sim",
    };
    for (key, old) in moved {
        let text = |name: &str| old.get_str(name).unwrap_or_default();
        let (first, _) = numbers(old).unwrap_or_default();
        let version = old.get_i32("v").unwrap_or(0) + 1;
        let unique = format!("{place}{key}");
        let new = document(key, first as i32, &unique, version, text("pad"));
        let state = Some(new.into_bytes());
        shared.oracle.borrow_mut().sent(worker, key, state);
    }
    let outcome = client.command(&command).await;
    let mut oracle = shared.oracle.borrow_mut();
    match outcome {
        Err(Failure::NotSent) => moved.keys().for_each(|key| oracle.refused(worker, key)),
        Err(Failure::Unknown) => oracle.unknown_outcomes += 1,
        Ok(reply) => match error_code(&reply) {
            0 => {
                if reply.get_i32("nModified").ok() != Some(moved.len() as i32) {
                    let keys: Vec<&String> = moved.keys().collect();
                    oracle.fail(format!(
                        "a statement that moves {keys:?} answered {reply:?}"
                    ));
                }
                oracle.statements_that_move += 1;
                let keys = moved.keys();
                keys.for_each(|key| oracle.acknowledged(worker, key, journaled));
            }
            code => {
                oracle.unknown_outcomes += 1;
                drop(oracle);
                if !BUSY.contains(&code) {
                    shared.write_refused(&reply);
                }
            }
        },
    }
}

async fn delete(
    shared: &Rc<Shared>,
    client: &mut Client,
    worker: usize,
    rng: &mut Rng,
    journaled: bool,
) {
    let Some((key, _)) = pick(shared, worker, rng) else {
        return;
    };
    let command = rawdoc! {
        "delete": "docs",
        "deletes": [{ "q": { "_id": key.as_str() }, "limit": 1_i32 }],
        "writeConcern": concern(journaled),
        "$db": "sim",
    };
    write(shared, client, worker, &key, None, &command, journaled).await;
}

fn pick(shared: &Shared, worker: usize, rng: &mut Rng) -> Option<(String, RawDocumentBuf)> {
    let oracle = shared.oracle.borrow();
    let present = oracle.workers[worker].present();
    if present.is_empty() {
        return None;
    }
    let (key, state) = present[rng.below(present.len() as u64) as usize];
    let document = RawDocumentBuf::from_bytes(state.to_vec()).expect("what was written");
    Some((key.to_owned(), document))
}

/// Sends a write of one key and records its outcome.
async fn write(
    shared: &Rc<Shared>,
    client: &mut Client,
    worker: usize,
    key: &str,
    state: State,
    command: &RawDocument,
    journaled: bool,
) {
    shared.oracle.borrow_mut().sent(worker, key, state);
    let outcome = client.command(command).await;
    let mut oracle = shared.oracle.borrow_mut();
    match outcome {
        Err(Failure::NotSent) => oracle.refused(worker, key),
        Err(Failure::Unknown) => oracle.unknown_outcomes += 1,
        Ok(reply) => match error_code(&reply) {
            0 => {
                let of_modify = reply.get_document("lastErrorObject").ok();
                let n = of_modify.unwrap_or(&reply).get_i32("n").ok();
                if n != Some(1) {
                    oracle.fail(format!("a write of {key} answered {reply:?}"));
                }
                oracle.acknowledged(worker, key, journaled);
            }
            DUPLICATE_KEY => {
                // No other client ever writes a worker's own keys, neither as _id nor as the unique
                // value.
                if !error_message(&reply).contains("contested-") {
                    oracle.fail(format!("nobody has what {key} asks for: {reply:?}"));
                }
                oracle.refused(worker, key);
                oracle.duplicates_refused += 1;
            }
            code => {
                oracle.unknown_outcomes += 1;
                drop(oracle);
                if !BUSY.contains(&code) {
                    shared.write_refused(&reply);
                }
            }
        },
    }
}

/// A worker sees its own writes.
async fn read(shared: &Rc<Shared>, client: &mut Client, worker: usize, rng: &mut Rng) {
    let Some((key, expected)) = pick(shared, worker, rng) else {
        return;
    };
    let command = rawdoc! { "find": "docs", "filter": { "_id": key.as_str() }, "$db": "sim" };
    let reply = match client.ask(&command).await {
        Ok(reply) => reply,
        Err(refusal) => return shared.read_refused(&refusal),
    };
    let found = batch(&reply, "firstBatch").into_iter().next();
    let mut oracle = shared.oracle.borrow_mut();
    oracle.reads_checked += 1;
    if found.as_ref().map(|document| document.as_bytes()) != Some(expected.as_bytes()) {
        oracle.fail(format!("key {key}: read {found:?}, written {expected:?}"));
    }
}

/// Appends a batch to the worker's part of the log, whose numbers have no gap.
async fn append(
    shared: &Rc<Shared>,
    client: &mut Client,
    worker: usize,
    rng: &mut Rng,
    journaled: bool,
) {
    let (first, certain) = {
        let oracle = shared.oracle.borrow();
        let state = &oracle.workers[worker];
        let acknowledged = state.log_acknowledged();
        (acknowledged + 1, state.log_sent() == acknowledged)
    };
    if !certain {
        return;
    }
    let last = first + rng.below(MAX_BATCH) as i64;
    let mut documents = RawArrayBuf::new();
    for number in first..=last {
        documents.push(
            rawdoc! { "_id": format!("l{worker}-{number}"), "w": worker as i32, "number": number },
        );
    }
    let command = rawdoc! { "insert": "log", "documents": documents, "writeConcern": concern(journaled), "$db": "sim" };
    shared.oracle.borrow_mut().log_sent(worker, last);
    let outcome = client.command(&command).await;
    let mut oracle = shared.oracle.borrow_mut();
    match outcome {
        Err(Failure::NotSent) => oracle.log_refused(worker),
        Err(Failure::Unknown) => oracle.unknown_outcomes += 1,
        Ok(reply) => match error_code(&reply) {
            0 => oracle.log_acknowledged(worker, journaled),
            code => {
                oracle.unknown_outcomes += 1;
                drop(oracle);
                if !BUSY.contains(&code) {
                    shared.write_refused(&reply);
                }
            }
        },
    }
}

/// Reads the whole log again and again and checks that each read has all that was acknowledged
/// before it, and is a snapshot where no part of a read took a newer state meanwhile.
pub async fn watch(shared: Rc<Shared>, mut rng: Rng) {
    let mut client = Client::new(shared.address.get());
    loop {
        let Some(active) = shared.begin() else {
            if idle(&shared).await {
                continue;
            }
            return;
        };
        let always_renews = rng.chance(0.2).then(|| rng.chance(0.5));
        let batch_size = rng.below(50) as i32 + 1;
        match watch_once(&shared, &mut client, always_renews, batch_size).await {
            Ok(()) => {}
            Err(refusal) => shared.read_refused(&refusal),
        }
        drop(active);
        sleep(Duration::from_micros(rng.below(50_000))).await;
    }
}

/// Reads the log once, where it is said after it has set whether reads take a newer state behind
/// every document.
async fn watch_once(
    shared: &Rc<Shared>,
    client: &mut Client,
    always_renews: Option<bool>,
    batch_size: i32,
) -> Result<(), Refusal> {
    if let Some(always) = always_renews {
        renew_reads(client, always).await?;
    }
    let renewed = reads_renewed(client).await?;
    let at_least = acknowledged_log(shared);
    let documents = read_all(client, "log", batch_size).await?;
    let is_snapshot = reads_renewed(client).await? == renewed;
    let mut oracle = shared.oracle.borrow_mut();
    oracle.check_log(&documents, &at_least, is_snapshot);
    Ok(())
}

/// Has reads take a newer state behind every document, or hardly ever.
async fn renew_reads(client: &mut Client, always: bool) -> Result<(), Refusal> {
    let (documents, period_ms) = if always { (1, 0) } else { (1000, 1000) };
    let set = rawdoc! {
        "setParameter": 1, "internalQueryExecYieldIterations": documents, "internalQueryExecYieldPeriodMS": period_ms,
        "$db": "admin"
    };
    client.ask(&set).await.map(|_| ())
}

/// How many parts of reads have taken a newer state since the node started.
async fn reads_renewed(client: &mut Client) -> Result<i64, Refusal> {
    let status = client
        .ask(&rawdoc! { "serverStatus": 1, "mem": 0, "extra_info": 0, "$db": "admin" })
        .await?;
    let storage = status.get_document("pinion");
    let storage = storage.and_then(|pinion| pinion.get_document("storage"));
    let count = storage.and_then(|storage| storage.get_i64("readsRenewed"));
    Ok(count.unwrap_or_else(|error| panic!("a status without a count: {error}")))
}

/// What every worker has acknowledged of the log.
fn acknowledged_log(shared: &Shared) -> Vec<i64> {
    let oracle = shared.oracle.borrow();
    let workers = oracle.workers.iter();
    workers.map(|worker| worker.log_acknowledged()).collect()
}

/// Builds and drops an index and a collection, over and over.
pub async fn change_indexes(shared: Rc<Shared>, mut rng: Rng) {
    let mut client = Client::new(shared.address.get());
    loop {
        let Some(active) = shared.begin() else {
            if idle(&shared).await {
                continue;
            }
            return;
        };
        let journaled = rng.chance(0.5);
        let there: State = Some(Vec::new());
        let concern = concern(journaled);
        let (key, state, command) = match rng.below(4) {
            0 => (
                EXTRA_INDEX,
                there,
                rawdoc! { "createIndexes": "docs", "indexes": [{ "key": { "v": 1_i32, "n": -1_i32 }, "name": "extra" }], "writeConcern": concern, "$db": "sim" },
            ),
            1 => (
                EXTRA_INDEX,
                None,
                rawdoc! { "dropIndexes": "docs", "index": "extra", "writeConcern": concern, "$db": "sim" },
            ),
            2 => (
                SIDE_COLLECTION,
                there,
                rawdoc! { "create": "side", "writeConcern": concern, "$db": "sim" },
            ),
            _ => (
                SIDE_COLLECTION,
                None,
                rawdoc! { "drop": "side", "writeConcern": concern, "$db": "sim" },
            ),
        };
        change_catalog(&shared, &mut client, key, state, &command, journaled).await;
        drop(active);
        sleep(Duration::from_millis(rng.below(60))).await;
    }
}

/// Sends a change of the catalog and records its outcome.
async fn change_catalog(
    shared: &Rc<Shared>,
    client: &mut Client,
    key: &str,
    state: State,
    command: &RawDocument,
    journaled: bool,
) {
    let (worker, known) = {
        let mut oracle = shared.oracle.borrow_mut();
        let worker = oracle.catalog_worker();
        let known = oracle.known(worker, key);
        oracle.sent(worker, key, state.clone());
        (worker, known)
    };
    let outcome = client.command(command).await;
    let mut oracle = shared.oracle.borrow_mut();
    match outcome {
        Err(Failure::NotSent) => oracle.refused(worker, key),
        Err(Failure::Unknown) => oracle.unknown_outcomes += 1,
        Ok(reply) => match error_code(&reply) {
            0 => oracle.acknowledged(worker, key, journaled),
            INDEX_BUILD_ABORTED => {
                oracle.refused(worker, key);
                oracle.builds_ended += 1;
            }
            code if DDL_REFUSALS.contains(&code) => {
                if known.is_some_and(|known| known != state) {
                    oracle.fail(format!("{command:?} answered {reply:?}"));
                }
                oracle.refused(worker, key);
            }
            code => {
                oracle.unknown_outcomes += 1;
                drop(oracle);
                if !BUSY.contains(&code) {
                    shared.write_refused(&reply);
                }
            }
        },
    }
}

/// Ends builds of indexes with `killOp`, whenever it finds one.
pub async fn end_builds(shared: Rc<Shared>, mut rng: Rng) {
    let mut client = Client::new(shared.address.get());
    loop {
        let Some(active) = shared.begin() else {
            if idle(&shared).await {
                continue;
            }
            return;
        };
        end_build(&shared, &mut client, &mut rng).await;
        drop(active);
        sleep(Duration::from_millis(rng.below(30))).await;
    }
}

/// The builds of indexes that are under way, by their numbers among the operations.
pub async fn running_builds(client: &mut Client) -> Result<Vec<i32>, Refusal> {
    let look = rawdoc! { "currentOp": 1_i32, "$db": "admin" };
    let reply = client.ask(&look).await?;
    let operations = reply.get_array("inprog");
    let operations = operations.expect("currentOp lists operations");
    let operations = pinion_bson::values(operations).filter_map(|found| found.as_document());
    let is_build = |found: &&RawDocument| {
        let described = found.get_str("desc");
        described.is_ok_and(|text| text.starts_with("IndexBuildsCoordinator"))
    };
    let builds = operations.filter(is_build);
    let numbers = builds.filter_map(|found| found.get_i32("opid").ok());
    Ok(numbers.collect())
}

async fn end_build(shared: &Rc<Shared>, client: &mut Client, rng: &mut Rng) {
    let numbers = match running_builds(client).await {
        Ok(numbers) => numbers,
        Err(refusal) => return shared.read_refused(&refusal),
    };
    for number in numbers {
        if rng.chance(0.5) {
            let kill = rawdoc! { "killOp": 1_i32, "op": number, "$db": "admin" };
            if let Err(refusal) = client.ask(&kill).await {
                shared.read_refused(&refusal);
            }
        }
    }
}
