//! Copies of frozen checkpoints: what another node has written at the checkpoint's timestamp is
//! there in the copy, whatever it writes meanwhile, and what is not replicated stays each node's
//! own. A crash leaves what was, or the copy.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, Sim, SimOptions};
use pinion_runtime::{CoreId, Duration, Queue, random_stream, sleep, spawn, submit_to};
use pinion_storage::{
    Applier, ApplyError, CATALOG_TREE, CopiedEntry, CopyError, Direction, Entry, Expect,
    ForeignEntry, FreezeError, FrozenCheckpoint, Inspector, Key, KeyRange, LogRetention, Op,
    PartitionId, ReadAt, Statement, StorageOptions, TreeId, Write, open, storage,
};

const TREE: TreeId = TreeId(5);
const OWN_TREE: TreeId = TreeId(TreeId::FIRST_UNREPLICATED.0 + 3);
const OTHER_OWN_TREE: TreeId = TreeId(TreeId::FIRST_UNREPLICATED.0 + 4);
const DIR: &str = "/srv/pinion/data";
const PARTITIONS: u16 = 3;
const KEYS: u64 = 400;

type State = BTreeMap<u64, Vec<u8>>;

/// What was written, and when.
type History = Vec<(Timestamp, u64, Vec<u8>)>;

fn options(is_member: bool) -> StorageOptions {
    StorageOptions {
        partitions: Some(PARTITIONS),
        is_member,
        checkpoint_interval: Duration::from_millis(30),
        log_retention: Some(LogRetention {
            bytes: 1 << 30,
            min_age: Duration::ZERO,
        }),
        ..StorageOptions::hostile(DIR)
    }
}

fn document(key: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = b"\0\0\0\0\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&key.to_le_bytes());
    bytes.extend_from_slice(value);
    bytes
}

fn write(key: u64, op: Op) -> Write {
    Write {
        partition: storage().partition_of_hash(&key.to_be_bytes()),
        tree: TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op,
        expect: Expect::Any,
    }
}

struct Replay;

impl Applier for Replay {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        let key = u64::from_le_bytes(entry[27..35].try_into().expect("eight bytes"));
        let value = entry.slice(35..);
        storage()
            .apply_at(ts, vec![write(key, Op::Put(value))])
            .await
    }
}

/// A write of each node's own: a row of the catalog, and a record of a tree.
fn own_statement(tree: TreeId, text: &str) -> Statement {
    let put = |tree, key: &[u8]| Write {
        partition: PartitionId(0),
        tree,
        key: Key::from_slice(key),
        op: Op::Put(Bytes::copy_from_slice(text.as_bytes())),
        expect: Expect::Any,
    };
    Statement {
        writes: vec![
            put(CATALOG_TREE, &tree.0.to_be_bytes()),
            put(tree, text.as_bytes()),
        ],
        entry: None,
    }
}

async fn write_own(tree: TreeId, text: &str) {
    let statements = vec![own_statement(tree, text)];
    let written = storage().execute_unreplicated(statements, true).await;
    assert_eq!(written, [Ok(Timestamp::MIN)]);
    let durable = storage().wait_unreplicated().await;
    durable.expect("storage serves");
}

/// The records of a tree over all partitions.
async fn records(tree: TreeId) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    for partition in (0..PARTITIONS).map(PartitionId) {
        let owner = storage().owner(partition);
        let read = submit_to(owner, Queue::Foreground, move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            let mut cursor =
                owned.cursor(tree, KeyRange::all(), Direction::Forward, ReadAt::Newest);
            let mut read = Vec::new();
            while let Some((key, found)) = cursor.next().await.expect("readable") {
                read.push((key.to_vec(), found.value.to_vec()));
            }
            read
        });
        all.extend(read.await);
    }
    all
}

async fn state() -> State {
    let number = |key: Vec<u8>| u64::from_be_bytes(key.try_into().expect("eight bytes"));
    let records = records(TREE).await.into_iter();
    records.map(|(key, value)| (number(key), value)).collect()
}

async fn own_rows() -> Vec<(TreeId, String)> {
    let rows = records(CATALOG_TREE).await.into_iter();
    let tree = |key: Vec<u8>| TreeId(u64::from_be_bytes(key.try_into().expect("eight bytes")));
    let rows = rows.map(|(key, text)| (tree(key), String::from_utf8(text).expect("text")));
    rows.filter(|(tree, _)| !tree.is_replicated()).collect()
}

async fn logged() -> Vec<Timestamp> {
    let mut log = storage().log_after(Timestamp::MIN);
    let read = log.next_batch(10_000, 1 << 24).await.expect("readable");
    read.iter().map(|(ts, _)| *ts).collect()
}

/// What the source sends.
struct Sent {
    frozen: FrozenCheckpoint,
    pages: Vec<(PartitionId, u64, Bytes)>,
    entry: CopiedEntry,
    state: State,
}

/// Writes keys until `stop` is set, and notes them in `history`.
async fn write_all(stop: Rc<Cell<bool>>, history: Rc<RefCell<History>>) {
    let mut rng = random_stream("writer");
    while !stop.get() {
        let key = rng.below(KEYS);
        let mut value = rng.next_u64().to_le_bytes().to_vec();
        value.resize(8 + rng.below(600) as usize, 3);
        let statement = Statement {
            writes: vec![write(key, Op::Put(Bytes::from(value.clone())))],
            entry: Some(Entry::new(document(key, &value))),
        };
        let written = storage().execute(vec![statement], true).await.pop();
        let ts = written.expect("one").expect("storage serves");
        history.borrow_mut().push((ts, key, value));
        if rng.chance(0.3) {
            sleep(Duration::from_micros(rng.below(800))).await;
        }
    }
}

async fn copy_out(pause: Duration) -> (FrozenCheckpoint, Vec<(PartitionId, u64, Bytes)>) {
    let frozen = storage().freeze_checkpoint("copier").await;
    let frozen = frozen.expect("it can be frozen");
    let mut pages = Vec::new();
    for partition in (0..PARTITIONS).map(PartitionId) {
        let mut at = 0;
        loop {
            let part = storage().read_frozen(frozen.number, partition, at).await;
            let part = part.expect("it is frozen");
            if part.bytes.is_empty() {
                break;
            }
            at = part.offset + part.bytes.len() as u64;
            // A piece of what a real file has: these are small.
            for (nth, block) in part.bytes.chunks(8192).enumerate() {
                let offset = part.offset + 8192 * nth as u64;
                pages.push((partition, offset, Bytes::copy_from_slice(block)));
            }
            sleep(pause).await;
        }
    }
    (frozen, pages)
}

/// The life of a source: it writes, and is copied meanwhile.
async fn source(sent: Rc<RefCell<Option<Sent>>>, seed: u64, releases: bool) {
    write_own(OWN_TREE, "theirs").await;
    write_own(OTHER_OWN_TREE, "theirs too").await;
    let (stop, history) = (Rc::new(Cell::new(false)), Rc::default());
    let writing = spawn(
        Queue::Foreground,
        write_all(stop.clone(), Rc::clone(&history)),
    );
    sleep(Duration::from_millis(300 + seed * 10)).await;
    let checkpoints = storage().stats().checkpoints;
    let (frozen, pages) = copy_out(Duration::from_millis(60)).await;
    let later = storage().stats().checkpoints;
    assert!(
        later >= checkpoints + 2,
        "seed {seed}: checkpoints go on while one is frozen"
    );
    stop.set(true);
    writing.await.expect("it ended");
    assert_eq!(frozen.log_from, frozen.base);
    let mut log = storage().log_from(frozen.base);
    let first = log.next_batch(1, 1).await.expect("readable").remove(0);
    assert_eq!(first.0, frozen.base, "the log is kept from the base on");
    let mut before: History = history.take();
    before.retain(|(ts, ..)| *ts <= frozen.base);
    before.sort_by_key(|(ts, ..)| *ts);
    let number = frozen.number;
    *sent.borrow_mut() = Some(Sent {
        frozen,
        pages,
        entry: CopiedEntry {
            ts: first.0,
            bytes: first.1,
        },
        state: before
            .into_iter()
            .map(|(_, key, value)| (key, value))
            .collect(),
    });
    if releases {
        storage().release_frozen(number).await;
        assert_eq!(storage().frozen_checkpoints(), 0);
        let gone = storage().read_frozen(number, PartitionId(0), 0).await;
        assert_eq!(gone.unwrap_err(), FreezeError::Gone(number));
    }
}

/// Takes over what was sent.
async fn adopt(sent: &Sent, cores: usize) {
    let copy = storage().begin_copy(&sent.frozen.manifest).await;
    let copy = copy.expect("it is of the same form");
    assert_eq!(copy.base(), sent.frozen.base);
    for partition in (0..PARTITIONS).map(PartitionId) {
        let file = copy.create(partition).await.expect("the disk has room");
        let pages = sent.pages.iter().filter(|(of, ..)| *of == partition);
        for (_, offset, bytes) in pages {
            file.write(*offset, bytes).await.expect("it has its place");
        }
        let beyond = file.write(1 << 40, &[0; 4096]).await;
        assert!(matches!(beyond, Err(CopyError::Damaged(_))), "{beyond:?}");
        file.finish().await.expect("the disk works");
    }
    copy.verify(cores).await.expect("it is what was sent");
    let entries = vec![sent.entry.clone()];
    let closed = storage().close_to_adopt(&copy, entries).await;
    let opened = closed.expect("it is taken over").open().await;
    let report = opened
        .expect("opens")
        .recover(Replay)
        .await
        .expect("recovers");
    assert_eq!(report.entries_replayed, 0);
    storage().follow().await.expect("storage serves");
}

/// What must hold when the copy is taken over.
async fn check_copied(sent: &Sent, seed: u64) {
    let base = sent.frozen.base;
    assert_eq!(state().await, sent.state, "seed {seed}");
    assert_eq!(logged().await.first(), Some(&base), "seed {seed}");
    check_own(seed).await;
}

async fn check_own(seed: u64) {
    assert_eq!(
        own_rows().await,
        [(OWN_TREE, "ours".to_owned())],
        "seed {seed}"
    );
    let own = records(OWN_TREE).await;
    assert_eq!(own.len(), 1, "seed {seed}");
    assert!(own.contains_key(&b"ours"[..]), "seed {seed}: {own:?}");
    assert!(records(OTHER_OWN_TREE).await.is_empty(), "seed {seed}");
}

async fn log(ts: Timestamp, key: u64) {
    let entry = ForeignEntry {
        ts,
        predecessor: storage().last_allotted(),
        bytes: document(key, b"after").into(),
    };
    storage().log_at(&[entry]).await.expect("storage serves");
    let put = write(key, Op::Put(Bytes::from_static(b"after")));
    storage().apply_at(ts, vec![put]).await.expect("readable");
    storage().set_applied(ts);
    storage().wait_durable(ts).await.expect("storage serves");
}

/// One life of a copier. It begins with a part of something else.
async fn copier(sent: Rc<Sent>, life: u32, cores: usize, seed: u64) {
    let opened = open(options(true)).await.expect("opens");
    opened.recover(Replay).await.expect("recovers");
    storage().follow().await.expect("storage serves");
    if life == 0 {
        write_own(OWN_TREE, "ours").await;
        for ts in 1..20 {
            log(Timestamp::from_u64(ts), ts + 10 * KEYS).await;
        }
    }
    check_own(seed).await;
    let base = sent.frozen.base;
    let after = Timestamp::from_u64(base.as_u64() + 5);
    let last = storage().last_allotted();
    if last < base {
        let expected = (1..20).map(|ts| (ts + 10 * KEYS, b"after".to_vec()));
        assert_eq!(state().await, expected.collect(), "seed {seed}: what was");
        adopt(&sent, cores).await;
    }
    if storage().last_allotted() < after {
        check_copied(&sent, seed).await;
        log(after, 1).await;
    }
    let mut expected = sent.state.clone();
    expected.insert(1, b"after".to_vec());
    assert_eq!(state().await, expected, "seed {seed}");
    assert_eq!(logged().await, [base, after], "seed {seed}");
    // What is stable goes into the base, from which the next life begins.
    storage().set_stable(after);
    if life.is_multiple_of(2) {
        storage().checkpoint().await.expect("storage serves");
    }
    check_own(seed).await;
}

/// Every page of a directory that is not open, and every block's owner.
async fn verify_directory() {
    let inspector = Inspector::open(Path::new(DIR)).await.expect("readable");
    assert!(
        inspector.problems().is_empty(),
        "{:?}",
        inspector.problems()
    );
    for partition in (0..PARTITIONS).map(PartitionId) {
        let report = inspector.partition(partition).await;
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

fn source_runs(sim: &Sim, seed: u64, releases: bool) -> Sent {
    let (sent, done) = (Rc::new(RefCell::new(None)), Rc::new(Cell::new(false)));
    let (to_send, ended) = (sent.clone(), done.clone());
    let node = sim.add_node("source", 2, move |core| {
        let (sent, done) = (to_send.clone(), ended.clone());
        async move {
            if core == CoreId(0) {
                let opened = open(options(false)).await.expect("opens");
                opened.recover(Replay).await.expect("recovers");
                source(sent, seed, releases).await;
                if releases {
                    storage().close().await;
                }
                done.set(true);
            }
            sleep(Duration::from_secs(3600)).await;
        }
    });
    let ran = sim.run_until(|| done.get());
    assert!(ran.is_ok(), "seed {seed}: {ran:?}");
    // Where it was not released a crash must not leave blocks without an owner.
    sim.crash(node, Death::PowerCut);
    let verified = Rc::new(Cell::new(false));
    let ended = verified.clone();
    sim.set_main(node, move |core| {
        let ended = ended.clone();
        async move {
            if core == CoreId(0) {
                verify_directory().await;
                ended.set(true);
            }
            sleep(Duration::from_secs(3600)).await;
        }
    });
    sim.restart(node, 2);
    let ran = sim.run_until(|| verified.get());
    assert!(ran.is_ok(), "seed {seed}: {ran:?}");
    sim.crash(node, Death::Kill);
    sent.take().expect("it was sent")
}

fn copier_runs(sim: &Sim, sent: Sent, seed: u64) {
    let cores = 1 + seed as usize % 3;
    let (sent, life, done) = (Rc::new(sent), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (lives, ended) = (life.clone(), done.clone());
    let node = sim.add_node("copier", cores, move |core| {
        let (sent, life, done) = (sent.clone(), lives.clone(), ended.clone());
        async move {
            if core == CoreId(0) {
                let number = life.get();
                life.set(number + 1);
                copier(sent, number, cores, seed).await;
                done.set(done.get() + 1);
            }
            sleep(Duration::from_secs(3600)).await;
        }
    });
    let death = [Death::PowerCut, Death::Kill][seed as usize % 2];
    let crash = ["copy taken over", "copy takes effect", "none"][seed as usize % 3];
    sim.crash_after(node, crash, 1, Duration::from_micros(seed * 137), death);
    while done.get() < 3 {
        let before = done.get();
        let ran = sim.run_until(|| done.get() > before || !sim.is_running(node));
        assert!(ran.is_ok(), "seed {seed}: {ran:?}");
        sim.crash(node, death);
        sim.restart(node, cores);
        assert!(life.get() < 8, "seed {seed}: it does not come to an end");
    }
}

#[test]
fn a_copy_is_the_state_at_its_timestamp_whatever_is_written_or_crashes() {
    for seed in 0..24 {
        let sim = Sim::new(seed, SimOptions::random(seed));
        let sent = source_runs(&sim, seed, seed % 4 != 1);
        assert!(!sent.state.is_empty());
        copier_runs(&sim, sent, seed);
    }
}

/// Runs on core 0 of a node that has no history.
fn alone<Fut: Future<Output = ()> + 'static>(test: fn() -> Fut) {
    let sim = Sim::new(3, SimOptions::default());
    let done = Rc::new(Cell::new(false));
    let ended = done.clone();
    let _node = sim.add_node("node", 1, move |_| {
        let done = ended.clone();
        async move {
            let opened = open(options(false)).await.expect("opens");
            opened.recover(Replay).await.expect("recovers");
            test().await;
            done.set(true);
        }
    });
    let ran = sim.run_until(|| done.get());
    assert!(ran.is_ok(), "{ran:?}");
}

async fn write_one(key: u64) {
    let value = Bytes::from(vec![1; 3000]);
    let statement = Statement {
        writes: vec![write(key, Op::Put(value.clone()))],
        entry: Some(Entry::new(document(key, &value))),
    };
    let written = storage().execute(vec![statement], true).await.pop();
    written.expect("one").expect("storage serves");
}

#[test]
fn a_copier_that_is_gone_keeps_nothing_for_ever() {
    alone(|| async {
        for key in 0..50 {
            write_one(key).await;
        }
        let frozen = storage().freeze_checkpoint("one").await.expect("it can");
        // The same copier begins again; others come beside it, up to a limit.
        let again = storage().freeze_checkpoint("one").await.expect("it can");
        assert!(!storage().keep_frozen(frozen.number).await);
        for name in ["two", "three", "four"] {
            storage().freeze_checkpoint(name).await.expect("it can");
        }
        let refused = storage().freeze_checkpoint("five").await.unwrap_err();
        assert_eq!(refused, FreezeError::TooMany(4));
        // A copier that asks for it keeps it.
        for _ in 0..5 {
            sleep(Duration::from_secs(500)).await;
            assert!(storage().keep_frozen(again.number).await);
        }
        assert_eq!(storage().frozen_checkpoints(), 1);
        sleep(Duration::from_secs(700)).await;
        assert_eq!(storage().frozen_checkpoints(), 0);
        let gone = storage().read_frozen(again.number, PartitionId(0), 0).await;
        assert_eq!(gone.unwrap_err(), FreezeError::Gone(again.number));
    });
}

#[test]
fn what_is_frozen_comes_back_when_it_is_released() {
    alone(|| async {
        let file_bytes = || storage().stats().page_file_bytes;
        let rewrite = async |times: u64| {
            for _ in 0..times {
                for key in 0..50 {
                    write_one(key).await;
                }
                storage().checkpoint_merging_all().await.expect("it serves");
            }
        };
        rewrite(20).await;
        let frozen = storage().freeze_checkpoint("one").await.expect("it can");
        rewrite(20).await;
        let most = file_bytes();
        storage().release_frozen(frozen.number).await;
        // As much again is there now, so no file grows.
        rewrite(20).await;
        assert_eq!(file_bytes(), most);
    });
}

/// A member may be stopped while it copies, or is copied.
#[test]
fn a_copy_begins_while_storage_closes() {
    alone(|| async {
        write_one(1).await;
        let frozen = storage().freeze_checkpoint("one").await.expect("it can");
        let closed = Rc::new(Cell::new(false));
        let (ended, manifest) = (closed.clone(), frozen.manifest.clone());
        let copying = spawn(Queue::Background, async move {
            let mut started = 0;
            while !ended.get() {
                let copy = storage().begin_copy(&manifest).await;
                copy.expect("it is of the same form");
                let _ = storage().freeze_checkpoint("two").await;
                started += 1;
                sleep(Duration::from_micros(1)).await;
            }
            started
        });
        write_one(2).await;
        storage().close().await;
        closed.set(true);
        let started = copying.await.expect("nothing panics");
        assert!(started > 1, "copies began while it closed: {started}");
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    alone(|| async {
        // Nothing was written: there is nothing that a log could begin with.
        let refused = storage().freeze_checkpoint("one").await;
        assert!(refused.is_err(), "{refused:?}");
        write_one(1).await;
        let frozen = storage().freeze_checkpoint("one").await.expect("it can");
        let mut manifest = frozen.manifest.to_vec();
        let started = storage().begin_copy(&manifest).await;
        assert!(started.is_ok(), "{started:?}");
        manifest[60] ^= 1;
        let refused = storage().begin_copy(&manifest).await;
        assert!(matches!(refused, Err(CopyError::Unknown(_))), "{refused:?}");
        // A copy whose pages did not come is none.
        let copy = started.expect("just seen");
        for partition in (0..PARTITIONS).map(PartitionId) {
            let file = copy.create(partition).await.expect("the disk has room");
            file.finish().await.expect("the disk works");
        }
        let verified = copy.verify(1).await;
        assert!(
            matches!(verified, Err(CopyError::Damaged(_))),
            "{verified:?}"
        );
        copy.remove().await;
    });
}
