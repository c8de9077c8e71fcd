//! The log of a running node, as its readers see it: several cores that write, readers of every
//! kind beside them, checkpoints that reuse segments, crashes anywhere, another number of cores at
//! each opening.

mod model;
mod retention;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use model::{Log, SharedLog, check_whole_log, document, number_of};
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, Sim, SimOptions};
use pinion_runtime::{CoreId, Duration, Rng, core_count, join_all, random_stream, sleep};
use pinion_storage::{
    Applier, ApplyError, Entry, Expect, Key, LogReadError, LogRetention, Op, Statement,
    StorageOptions, TreeId, Write, open, storage,
};

const TREE: TreeId = TreeId(5);

/// Nothing is applied: only the log is looked at.
struct Replayed(SharedLog);

impl Applier for Replayed {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        self.0.borrow_mut().found(ts, number_of(ts, &entry));
        Ok(())
    }
}

/// One write of one entry, into one partition or two.
fn statement(number: u64, padding: usize, keys: &[u64]) -> Statement {
    let write = |&key: &u64| Write {
        partition: storage().partition_of_hash(&key.to_be_bytes()),
        tree: TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op: Op::Put(Bytes::copy_from_slice(&number.to_be_bytes())),
        expect: Expect::Any,
    };
    Statement {
        writes: keys.iter().map(write).collect(),
        entry: Some(Entry::new(document(number, padding))),
    }
}

#[derive(Clone)]
struct Plan {
    options: StorageOptions,
    writers: u64,
    writes: u64,
    largest: u64,
}

/// Bytes of a log of which nothing is given up.
const KEEP_ALL: Option<u64> = Some(u64::MAX);

impl Plan {
    fn keeps_all(&self) -> bool {
        self.options.log_retention.map(|retention| retention.bytes) == KEEP_ALL
    }
}

struct Run {
    plan: Plan,
    log: SharedLog,
    /// Cores whose writers are not done.
    working: Cell<usize>,
    /// Cores whose readers are not done.
    reading: Cell<usize>,
    open: Cell<bool>,
    finished: Cell<bool>,
    closed: Cell<bool>,
    check_only: Cell<bool>,
    totals: RefCell<Totals>,
}

#[derive(Clone, Debug, Default)]
struct Totals {
    tailed: u64,
    read_backward: u64,
    lost: u64,
    discarded: u64,
    checked: u64,
}

async fn life(run: Rc<Run>) {
    let opened = open(run.plan.options.clone()).await.unwrap();
    let report = opened.recover(Replayed(run.log.clone())).await.unwrap();
    run.totals.borrow_mut().discarded += report.entries_cut;
    run.log.borrow_mut().cut(report.cut);
    check(&run).await;
    if !run.check_only.get() {
        run.working.set(core_count());
        run.reading.set(core_count());
        run.open.set(true);
        on_this_core(&run).await;
        while run.reading.get() > 0 {
            sleep(Duration::from_micros(500)).await;
        }
        run.open.set(false);
        check(&run).await;
    }
    run.finished.set(true);
    storage().close().await;
    run.closed.set(true);
}

async fn check(run: &Run) {
    let whole = run.plan.keeps_all();
    let checked = check_whole_log(&run.log, whole).await;
    run.totals.borrow_mut().checked += checked;
}

async fn other_core(run: Rc<Run>) {
    while !run.finished.get() && !run.open.get() {
        sleep(Duration::from_micros(500)).await;
    }
    if run.open.get() {
        on_this_core(&run).await;
    }
    while !run.closed.get() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Writers, and beside them one that follows the end and one that looks back.
async fn on_this_core(run: &Rc<Run>) {
    let writers = async {
        join_all((0..run.plan.writers).map(|_| write(run.clone()))).await;
        run.working.set(run.working.get() - 1);
    };
    let readers = async {
        join_all([false, true].map(|from_start| tail(run.clone(), from_start))).await;
    };
    let backward = look_back(run.clone());
    let tasks: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 3] =
        [Box::pin(writers), Box::pin(readers), Box::pin(backward)];
    join_all(tasks).await;
    run.reading.set(run.reading.get() - 1);
}

async fn write(run: Rc<Run>) {
    let mut rng = random_stream("writer");
    for _ in 0..run.plan.writes {
        let step: Vec<u64> = (0..1 + rng.below(4))
            .map(|_| run.log.borrow_mut().next())
            .collect();
        let statements = step.iter().map(|&number| {
            let keys = [number % 40, 40 + rng.below(40)];
            let padding = match rng.below(20) {
                0 => rng.below(run.plan.largest),
                _ => rng.below(300),
            };
            statement(number, padding as usize, &keys[..1 + rng.below(2) as usize])
        });
        let outcomes = storage().execute(statements.collect(), false).await;
        let mut last = Timestamp::MIN;
        for (&number, outcome) in step.iter().zip(outcomes) {
            // Conflicts and want of memory: the writer continues with the next.
            if let Ok(ts) = outcome {
                run.log.borrow_mut().written(ts, number);
                last = last.max(ts);
            }
        }
        if rng.chance(0.1) {
            // A link of the chain without a document.
            let key = Key::from_slice(&rng.below(40).to_be_bytes());
            let write = Write {
                partition: storage().partition_of_hash(&key),
                tree: TREE,
                key,
                op: Op::Delete,
                expect: Expect::Any,
            };
            let link = Statement {
                writes: vec![write],
                entry: None,
            };
            let _ = storage().execute(vec![link], false).await;
        }
        if rng.chance(0.3) {
            let _ = storage().wait_durable(last).await;
        }
        if rng.chance(0.3) {
            sleep(Duration::from_micros(rng.below(5_000))).await;
        }
    }
}

/// Follows the log, from its beginning or from its end, until all is written and read.
async fn tail(run: Rc<Run>, from_start: bool) {
    let mut rng = random_stream("tail");
    let begin = match from_start {
        true => Timestamp::MIN,
        false => storage().oplog_read_timestamp(),
    };
    let mut cursor = storage().log_after(begin);
    let mut read: Vec<(Timestamp, u64)> = Vec::new();
    loop {
        let done = run.working.get() == 0;
        let (entries, bytes) = (1 + rng.below(30), 1 + rng.below(100_000));
        let reading = cursor.next_batch(entries as usize, bytes as usize);
        let batch = match rng.chance(0.3) {
            // The reader may be interrupted anywhere, and continues where it was.
            true => {
                let patience = Duration::from_micros(rng.below(3_000));
                match pinion_runtime::timeout(patience, reading).await {
                    Ok(read) => read,
                    Err(_) => continue,
                }
            }
            false => reading.await,
        };
        let batch = match batch {
            Ok(batch) => batch,
            Err(LogReadError::PositionLost) => {
                assert!(!run.plan.keeps_all());
                run.totals.borrow_mut().lost += 1;
                return;
            }
            Err(LogReadError::Fatal(_)) => return,
            Err(error) => panic!("{error}"),
        };
        assert!(batch.len() <= entries as usize);
        if batch.is_empty() && done {
            break;
        }
        let ended = batch.is_empty();
        read.extend(batch.iter().map(|(ts, entry)| (*ts, number_of(*ts, entry))));
        if rng.chance(0.1) {
            sleep(Duration::from_micros(rng.below(100_000))).await;
        } else if ended && rng.chance(0.5) && !done {
            // Not for long: there may be no more writes.
            let waiting = pinion_runtime::timeout(Duration::from_millis(20), cursor.wait());
            let _ = waiting.await;
        }
    }
    run.totals.borrow_mut().tailed += read.len() as u64;
    run.log
        .borrow()
        .check_range(&read, begin, cursor.position());
}

/// Reads backwards again and again, from the end and from elsewhere.
async fn look_back(run: Rc<Run>) {
    let mut rng = random_stream("look back");
    while run.working.get() > 0 {
        let from = match rng.chance(0.5) {
            true => Timestamp::MAX,
            false => run.log.borrow().some(&mut rng),
        };
        let whole_to = from.min(storage().oplog_read_timestamp());
        let mut cursor = storage().log_backward(from);
        let mut read: Vec<(Timestamp, u64)> = Vec::new();
        let whole = loop {
            let reading = cursor.next_batch(1 + rng.below(30) as usize, 100_000);
            let read_now = match rng.chance(0.2) {
                true => {
                    let patience = Duration::from_micros(rng.below(3_000));
                    match pinion_runtime::timeout(patience, reading).await {
                        Ok(read) => read,
                        Err(_) => continue,
                    }
                }
                false => reading.await,
            };
            match read_now {
                Ok(batch) if batch.is_empty() => break true,
                Ok(batch) => read.extend(batch.iter().map(|(ts, e)| (*ts, number_of(*ts, e)))),
                Err(LogReadError::PositionLost) => {
                    assert!(!run.plan.keeps_all());
                    run.totals.borrow_mut().lost += 1;
                    break false;
                }
                Err(LogReadError::Fatal(_)) => return,
                Err(error) => panic!("{error}"),
            }
            if rng.chance(0.1) {
                sleep(Duration::from_micros(rng.below(20_000))).await;
            }
        };
        read.reverse();
        assert!(read.last().is_none_or(|&(ts, _)| ts <= from));
        run.totals.borrow_mut().read_backward += read.len() as u64;
        let all = run.plan.keeps_all() && whole;
        run.log.borrow().check_backward(&read, whole_to, all);
        sleep(Duration::from_micros(rng.below(10_000))).await;
    }
}

fn plan(rng: &mut Rng) -> Plan {
    let mut options = StorageOptions::hostile("/srv/pinion/data");
    options.partitions = Some(1 + rng.below(6) as u16);
    options.segment_bytes = 4096 * [4, 6, 16, 64][rng.below(4) as usize];
    options.journal_commit_interval = Duration::from_millis([2, 20, 100][rng.below(3) as usize]);
    options.checkpoint_interval = Duration::from_millis([3, 30, 300][rng.below(3) as usize]);
    options.log_tail_bytes = [0, 4096, 32 * 1024][rng.below(3) as usize];
    let bytes = [None, Some(64 * 1024), KEEP_ALL, KEEP_ALL][rng.below(4) as usize];
    options.log_retention = bytes.map(|bytes| LogRetention {
        bytes,
        min_age: Duration::ZERO,
    });
    Plan {
        options,
        writers: 1 + rng.below(3),
        writes: 5 + rng.below(40),
        largest: [1000, 20_000, 300_000][rng.below(3) as usize],
    }
}

fn run_seed(seed: u64, totals: &mut Totals) {
    let mut rng = Rng::from_seed(seed);
    let run = Rc::new(Run {
        plan: plan(&mut rng),
        log: Rc::new(RefCell::new(Log::default())),
        working: Cell::new(0),
        reading: Cell::new(0),
        open: Cell::new(false),
        finished: Cell::new(false),
        closed: Cell::new(false),
        check_only: Cell::new(false),
        totals: RefCell::new(totals.clone()),
    });
    let mut options = SimOptions::random(seed);
    options.time_limit = Duration::from_secs(600);
    let sim = Sim::new(seed, options);
    let main = run.clone();
    let node = sim.add_node("node", 1 + rng.below(4) as usize, move |core| {
        let run = main.clone();
        async move {
            match core {
                CoreId(0) => life(run).await,
                _ => other_core(run).await,
            }
        }
    });
    for last in [false, false, false, false, true] {
        run.check_only.set(last);
        let crashes = !last && rng.chance(0.8);
        if crashes {
            let death = match rng.chance(0.8) {
                true => Death::PowerCut,
                false => Death::Kill,
            };
            let places = ["flush", "segment", "checkpoint install", "recovery end"];
            let place = places[rng.below(4) as usize];
            let nth = match place {
                "flush" => 1 + rng.below(60),
                "recovery end" => 1,
                _ => 1 + rng.below(6),
            };
            sim.crash_at(node, place, nth, death);
            let clock = sim.handle();
            let closed = run.clone();
            sim.run_until(|| closed.closed.get() || !clock.is_running(node))
                .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck:?}"));
            sim.crash(node, death);
            sim.cancel_crashes(node);
        } else {
            sim.run_until_down(node)
                .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck:?}"));
        }
        run.finished.set(false);
        run.closed.set(false);
        run.open.set(false);
        run.working.set(0);
        if !last {
            sim.restart(node, 1 + rng.below(4) as usize);
        }
    }
    *totals = run.totals.borrow().clone();
}

#[test]
fn every_reader_sees_each_entry_once_and_in_order() {
    let seeds: Vec<u64> = match std::env::var("PINION_SEEDS") {
        Ok(text) => {
            let (first, last) = text.split_once("..").expect("first..last");
            (first.parse().expect("a number")..last.parse().expect("a number")).collect()
        }
        // In 319 a reader was interrupted while it opened a segment of a ring that no core has any
        // more.
        Err(_) => (0..24).chain([319]).collect(),
    };
    let mut totals = Totals::default();
    for seed in seeds {
        run_seed(seed, &mut totals);
    }
    println!("{totals:#?}");
    let Totals {
        tailed,
        read_backward,
        lost,
        discarded,
        checked,
    } = totals;
    for count in [tailed, read_backward, lost, discarded, checked] {
        assert!(count > 0, "the runs did not do what they are for");
    }
}
