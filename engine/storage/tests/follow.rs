//! A member that follows another: entries are logged with the timestamps they came with, applied
//! later, and there after a crash. Checkpoints stay at or below what is stable, and snapshots can
//! be opened down to the oldest timestamp.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, Sim, SimOptions};
use pinion_runtime::{
    CoreId, Duration, Queue, Rng, random_stream, sleep, spawn, submit_to, yield_now,
};
use pinion_storage::{
    Applier, ApplyError, Entry, Expect, ForeignEntry, Key, Op, OpenError, PartitionId, ReadAt,
    ReadError, Statement, StorageOptions, TreeId, Write, WriteError, open, storage,
};

const TREE: TreeId = TreeId(5);
const KEYS: u64 = 12;

/// An entry: which key it sets, and to what.
type Change = (Timestamp, u64, u64);

/// The writes of every entry that there is, oldest first. What is not in the log of the node is
/// still to be fetched.
#[derive(Default)]
struct Oplog(Vec<Change>);

impl Oplog {
    /// What a snapshot at `ts` has.
    fn state(&self, ts: Timestamp) -> BTreeMap<u64, u64> {
        let seen = self.0.iter().take_while(|change| change.0 <= ts);
        seen.map(|&(_, key, value)| (key, value)).collect()
    }

    fn after(&self, ts: Timestamp) -> &[Change] {
        &self.0[self.0.partition_point(|change| change.0 <= ts)..]
    }

    /// The last entry at or below `ts`.
    fn last_at(&self, ts: Timestamp) -> Timestamp {
        let before = self.0.partition_point(|change| change.0 <= ts);
        before
            .checked_sub(1)
            .map_or(Timestamp::MIN, |nth| self.0[nth].0)
    }

    fn last(&self) -> Timestamp {
        self.0.last().map_or(Timestamp::MIN, |change| change.0)
    }
}

fn document(key: u64, value: u64) -> Vec<u8> {
    let mut bytes = b"\0\0\0\0\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&key.to_le_bytes());
    bytes.extend_from_slice(&value.to_le_bytes());
    // Entries of many lengths, of which some take several frames.
    bytes.resize(bytes.len() + (value % 6000) as usize, 7);
    bytes
}

fn change_of(bytes: &[u8]) -> (u64, u64) {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    (number(27), number(35))
}

fn write(key: u64, value: u64) -> Write {
    Write {
        partition: storage().partition_of_hash(&key.to_be_bytes()),
        tree: TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op: Op::Put(Bytes::copy_from_slice(&value.to_le_bytes())),
        expect: Expect::Any,
    }
}

/// Applies entries again, one by one.
struct Replay;

impl Applier for Replay {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        let (key, value) = change_of(&entry);
        storage().apply_at(ts, vec![write(key, value)]).await
    }
}

async fn read_at(ts: Timestamp) -> Result<BTreeMap<u64, u64>, ReadError> {
    let mut state = BTreeMap::new();
    for key in 0..KEYS {
        let partition = storage().partition_of_hash(&key.to_be_bytes());
        let owner = storage().owner(partition);
        let read = submit_to(owner, Queue::Foreground, move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            owned
                .get(TREE, &key.to_be_bytes(), ReadAt::At(ts))
                .await
                .map(|read| read.map(|read| u64::from_le_bytes(read.value[..].try_into().unwrap())))
        });
        if let Some(value) = read.await? {
            state.insert(key, value);
        }
    }
    Ok(state)
}

const OWN_TREE: TreeId = TreeId(TreeId::FIRST_UNREPLICATED.0 + 3);
const OWN_KEYS: [u64; 2] = [1, 2];

/// Two keys that are set together, in every partition's eyes: their number counts the writes.
fn own_statement(number: u64) -> Statement {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(if number.is_multiple_of(4) { 9000 } else { 8 }, 7);
    let write = |key: u64| Write {
        partition: PartitionId(0),
        tree: OWN_TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op: Op::Put(Bytes::from(value.clone())),
        expect: Expect::Any,
    };
    Statement {
        writes: OWN_KEYS.map(write).to_vec(),
        entry: None,
    }
}

/// The number of the last write, which each key and every snapshot must agree on.
async fn read_own(seed: u64, at: ReadAt) -> u64 {
    let read = submit_to(CoreId(0), Queue::Foreground, move || async move {
        let owned = storage().partition(PartitionId(0)).expect("core 0's");
        let mut found = Vec::new();
        for key in OWN_KEYS {
            let read = owned.get(OWN_TREE, &key.to_be_bytes(), at).await.unwrap();
            found.push(read.map_or(0, |read| {
                u64::from_le_bytes(read.value[..8].try_into().unwrap())
            }));
        }
        found
    });
    let found = read.await;
    assert_eq!(found[0], found[1], "seed {seed}: half of a write");
    found[0]
}

/// Writes what is not replicated, whatever the node is just now.
async fn write_own(run: Rc<Run>, stop: Rc<Cell<bool>>) {
    let mut rng = random_stream("own");
    while !stop.get() {
        let number = run.own_written.get() + 1;
        run.own_written.set(number);
        let outcome = storage().execute(vec![own_statement(number)], true).await;
        assert_eq!(outcome, vec![Ok(Timestamp::MIN)]);
        let at = match rng.chance(0.5) {
            true => ReadAt::Newest,
            false => ReadAt::At(storage().timeline().visible),
        };
        assert_eq!(read_own(run.seed, at).await, number, "seed {}", run.seed);
        if rng.chance(0.3) {
            storage().wait_unreplicated().await.expect("storage serves");
            run.own_durable.set(number);
            run.count("own writes");
        }
        sleep(Duration::from_micros(rng.below(5000))).await;
    }
}

/// What all lives of one member share.
struct Run {
    seed: u64,
    options: StorageOptions,
    oplog: RefCell<Oplog>,
    /// Durable, and acknowledged as such.
    acknowledged: Cell<Timestamp>,
    stable: Cell<Timestamp>,
    /// Nothing below it need be readable.
    oldest: Cell<Timestamp>,
    /// The numbers of this node's own writes: the last one, and the last that is durable.
    own_written: Cell<u64>,
    own_durable: Cell<u64>,
    done: Cell<bool>,
    counts: RefCell<BTreeMap<&'static str, u64>>,
}

impl Run {
    fn count(&self, what: &'static str) {
        *self.counts.borrow_mut().entry(what).or_default() += 1;
    }

    /// A timestamp around some entry, of which it is that or one that no entry has.
    fn some_timestamp(&self, rng: &mut Rng) -> Timestamp {
        let oplog = self.oplog.borrow();
        let (ts, ..) = oplog.0[rng.below(oplog.0.len() as u64) as usize];
        Timestamp::from_u64(ts.as_u64() - rng.below(2))
    }

    /// Adds entries of the primary, with timestamps that leave some out.
    fn make_entries(&self, rng: &mut Rng, count: u64) {
        let mut oplog = self.oplog.borrow_mut();
        for _ in 0..count {
            // Up to what is stable there is no other history.
            let last = oplog.last().max(self.stable.get()).as_u64().max(100);
            let ts = last + rng.between(1, 4);
            let (key, value) = (rng.below(KEYS), rng.next_u64());
            oplog.0.push((Timestamp::from_u64(ts), key, value));
        }
    }
}

fn raise(what: &Cell<Timestamp>, to: Timestamp) {
    what.set(what.get().max(to));
}

async fn check_reads(run: &Run, at: Timestamp) {
    let expected = run.oplog.borrow().state(at);
    match read_at(at).await {
        Ok(found) => {
            assert_eq!(found, expected, "seed {}: at {at}", run.seed);
            run.count("snapshots");
        }
        Err(ReadError::SnapshotTooOld) => {
            let oldest = run.oldest.get();
            assert!(
                at < oldest,
                "seed {}: {at} is gone, and {oldest} is the oldest",
                run.seed
            );
            run.count("snapshots too old");
        }
        Err(error) => panic!("seed {}: {error}", run.seed),
    }
}

/// Logs what is to be fetched, some entries at a time.
async fn fetch(run: Rc<Run>, end: Timestamp) {
    let mut rng = random_stream("fetcher");
    while storage().last_allotted() < end {
        let last = storage().last_allotted();
        let count = rng.between(1, 40) as usize;
        let batch: Vec<ForeignEntry> = {
            let oplog = run.oplog.borrow();
            let mut predecessor = last;
            let next = oplog.after(last).iter().take(count);
            next.map(|&(ts, key, value)| ForeignEntry {
                ts,
                predecessor: std::mem::replace(&mut predecessor, ts),
                bytes: Bytes::from(document(key, value)),
            })
            .collect()
        };
        storage().log_at(&batch).await.expect("storage serves");
        if rng.chance(0.3) {
            let last = storage().last_allotted();
            storage().wait_durable(last).await.expect("storage serves");
            run.acknowledged.set(last);
            run.count("acknowledged");
        }
        sleep(Duration::from_micros(rng.below(3000))).await;
    }
}

/// Applies what is logged, far behind now and then. Entries of different keys are applied in any
/// order.
async fn apply(run: Rc<Run>, end: Timestamp) {
    let mut rng = random_stream("applier");
    let mut applied = storage().timeline().visible;
    while applied < end {
        let logged = storage().last_allotted();
        let mut batch: Vec<Change> = {
            let oplog = run.oplog.borrow();
            let next = oplog
                .after(applied)
                .iter()
                .take(rng.between(1, 60) as usize);
            next.take_while(|change| change.0 <= logged)
                .copied()
                .collect()
        };
        if let Some(last) = batch.last().map(|change| change.0) {
            batch.sort_by_key(|&(ts, key, _)| (key * 7919 % KEYS, ts));
            for (ts, key, value) in batch {
                let applied = storage().apply_at(ts, vec![write(key, value)]).await;
                applied.expect("pages can be read");
                yield_now().await;
            }
            applied = last;
            storage().set_applied(applied);
        }
        sleep(Duration::from_micros(rng.below(2000))).await;
    }
}

/// Raises what is stable and what is old, and takes checkpoints.
async fn advance(run: Rc<Run>, stop: Rc<Cell<bool>>) {
    let mut rng = random_stream("advance");
    while !stop.get() {
        if rng.chance(0.5) {
            let last = storage().last_allotted();
            raise(&run.stable, run.some_timestamp(&mut rng).min(last));
            storage().set_stable(run.stable.get());
        }
        let stable = run.stable.get();
        if rng.chance(0.2) {
            raise(&run.oldest, run.some_timestamp(&mut rng).min(stable));
            storage().set_oldest(run.oldest.get());
        }
        if rng.chance(0.2) {
            let visible = storage().timeline().visible;
            let at = storage().checkpoint().await.expect("storage serves");
            let seed = run.seed;
            assert!(at <= run.stable.get(), "seed {seed}: {at} is not stable");
            assert!(at >= visible.min(stable));
            let base = storage().partition(PartitionId(0));
            assert!(base.expect("this core's").base_timestamp() <= run.stable.get());
            run.count("checkpoints");
        }
        sleep(Duration::from_micros(rng.below(4000))).await;
    }
}

/// Reads at what is visible, and at older snapshots.
async fn read(run: Rc<Run>, stop: Rc<Cell<bool>>) {
    let mut rng = random_stream("reader");
    while !stop.get() {
        let at = storage().read_timestamp().await.expect("storage serves");
        check_reads(&run, at).await;
        let oldest = run.oldest.get();
        let older = run.some_timestamp(&mut rng).min(at);
        if older >= oldest || rng.chance(0.2) {
            check_reads(&run, older).await;
        }
        sleep(Duration::from_micros(rng.below(1000))).await;
    }
}

/// Takes back what is above some timestamp that is not below what is stable, and has other entries
/// there.
async fn roll_back(run: &Run, rng: &mut Rng) {
    let (seed, own) = (run.seed, run.own_written.get());
    let stable = run.stable.get();
    let last = storage().last_allotted();
    let to = run.some_timestamp(rng).min(last).max(stable);
    // From here on a crash may take it back or not.
    let kept = run.acknowledged.get().min(run.oplog.borrow().last_at(to));
    run.acknowledged.set(kept);
    let closed = storage().close_to_reopen().await;
    let opened = closed.open().await.unwrap();
    let report = opened.recover_up_to(to, Replay).await.unwrap();
    run.oplog.borrow_mut().0.retain(|change| change.0 <= to);
    let kept = storage().last_allotted();
    // What was above was seen under its times.
    assert!(storage().cluster_time() >= last, "seed {seed}");
    assert!(kept <= to && report.cut == kept, "seed {seed}: {report:?}");
    let expected = run.oplog.borrow().last().max(report.base);
    assert_eq!(kept, expected, "seed {seed}: up to {to}");
    check_reads(run, kept).await;
    let found = read_own(seed, ReadAt::Newest).await;
    assert_eq!(found, own, "seed {seed}: what is not replicated");
    run.own_durable.set(own);
    if kept < last {
        run.count("rolled back");
    }
}

/// From an opening to a crash, or to the end of what there is to fetch.
async fn life(run: Rc<Run>) {
    let mut rng = random_stream("life");
    let report = open(run.options.clone())
        .await
        .unwrap()
        .recover(Replay)
        .await;
    let report = report.unwrap_or_else(|error| panic!("seed {}: {error}", run.seed));
    let (seed, last) = (run.seed, storage().last_allotted());
    // What is logged is there, whether it was applied or not.
    assert_eq!(report.cut, last);
    assert!(last >= run.acknowledged.get(), "seed {seed}: {last}");
    assert!(report.base <= run.stable.get(), "seed {seed}: {report:?}");
    let at = storage().timeline();
    assert_eq!((at.visible, at.last), (last, last), "seed {seed}");
    assert!(
        at.stable <= run.stable.get().max(report.base),
        "seed {seed}"
    );
    check_reads(&run, last).await;
    let own = read_own(seed, ReadAt::Newest).await;
    let expected = run.own_durable.get()..=run.own_written.get();
    assert!(
        expected.contains(&own),
        "seed {seed}: {own}, not {expected:?}"
    );
    run.own_written.set(own);
    if report.entries_replayed > 0 {
        run.count("replayed");
    }
    raise(&run.oldest, at.stable);
    storage().set_stable(run.stable.get());

    assert_eq!(storage().follow().await.expect("storage serves"), last);
    let refused = Statement {
        writes: vec![write(0, 0)],
        entry: Some(Entry::new(document(0, 0))),
    };
    let outcome = storage().execute(vec![refused], true).await;
    assert_eq!(outcome, vec![Err(WriteError::Following)]);
    follow_on(&run, &mut rng).await;
    if rng.chance(0.5) {
        roll_back(&run, &mut rng).await;
        storage().set_stable(run.stable.get());
        raise(&run.oldest, storage().timeline().stable);
        storage().follow().await.expect("storage serves");
        follow_on(&run, &mut rng).await;
    }
    lead_on(&run, &mut rng).await;
    if rng.chance(0.5) {
        storage().close().await;
        run.count("closed");
    }
    run.done.set(true);
}

/// Follows through what there is to fetch.
async fn follow_on(run: &Rc<Run>, rng: &mut Rng) {
    run.make_entries(rng, 80);
    let (end, stop) = (run.oplog.borrow().last(), Rc::new(Cell::new(false)));
    let tasks = [
        spawn(Queue::Foreground, advance(run.clone(), stop.clone())),
        spawn(Queue::Foreground, read(run.clone(), stop.clone())),
        spawn(Queue::Foreground, write_own(run.clone(), stop.clone())),
    ];
    let logging = spawn(Queue::Foreground, fetch(run.clone(), end));
    apply(run.clone(), end).await;
    logging.await.expect("not stopped");
    stop.set(true);
    for task in tasks {
        task.await.expect("not stopped");
    }
}

async fn lead_on(run: &Run, rng: &mut Rng) {
    let end = storage().last_allotted();
    // The next primary is this node: it allots above all that it has logged.
    storage().lead().await;
    for _ in 0..rng.below(5) {
        let (key, value) = (rng.below(KEYS), rng.next_u64());
        let written = Statement {
            writes: vec![write(key, value)],
            entry: Some(Entry::new(document(key, value))),
        };
        let before = storage().last_allotted();
        let ts = storage().execute(vec![written], true).await.pop();
        let ts = ts.expect("one outcome").expect("written");
        assert!(ts > before && before >= end, "{ts} behind {before}");
        run.oplog.borrow_mut().0.push((ts, key, value));
        storage().wait_durable(ts).await.expect("storage serves");
        run.acknowledged.set(ts);
        run.count("written as a primary");
    }
    check_reads(run, storage().last_allotted()).await;
}

/// Up to what is stable nothing is taken back; the directory is as it was then.
#[test]
fn what_is_stable_is_not_taken_back() {
    let sim = Sim::new(3, SimOptions::default());
    let node = sim.add_node("node", 1, |_| async {
        let options = StorageOptions {
            is_member: true,
            ..StorageOptions::hostile("/srv/pinion/data")
        };
        let opened = open(options).await.unwrap();
        opened.recover(Replay).await.unwrap();
        let mut written = Vec::new();
        for value in 0..10 {
            let statement = Statement {
                writes: vec![write(1, value)],
                entry: Some(Entry::new(document(1, value))),
            };
            let outcome = storage().execute(vec![statement], true).await.pop();
            written.push(outcome.unwrap().unwrap());
        }
        storage().set_stable(written[4]);
        assert_eq!(storage().checkpoint().await.unwrap(), written[4]);
        let reopening = storage().close_to_reopen().await;
        let refused = reopening.open().await.unwrap();
        let error = refused.recover_up_to(written[3], Replay).await;
        let Err(OpenError::BeyondRollback { limit, stable }) = error else {
            panic!("{error:?}")
        };
        assert_eq!((limit, stable), (written[3], written[4]));
        let reopening = storage().close_to_reopen().await;
        let opened = reopening.open().await.unwrap();
        let report = opened.recover_up_to(written[6], Replay).await.unwrap();
        assert_eq!((report.base, report.cut), (written[4], written[6]));
        assert_eq!(report.entries_replayed, 2);
        assert_eq!(read_at(written[6]).await.unwrap()[&1], 6);
        storage().close().await;
    });
    sim.run_until_down(node).unwrap();
}

fn run_seed(seed: u64, counts: &mut BTreeMap<&'static str, u64>) {
    let mut rng = Rng::from_seed(seed);
    let mut options = StorageOptions::hostile("/srv/pinion/data");
    options.is_member = true;
    options.partitions = Some(1 + rng.below(4) as u16);
    options.checkpoint_interval = Duration::from_millis([5, 50, 1000][rng.below(3) as usize]);
    let run = Rc::new(Run {
        seed,
        options,
        oplog: RefCell::default(),
        acknowledged: Cell::default(),
        stable: Cell::default(),
        oldest: Cell::default(),
        own_written: Cell::default(),
        own_durable: Cell::default(),
        done: Cell::new(false),
        counts: RefCell::default(),
    });
    let sim = Sim::new(seed, SimOptions::random(seed));
    let main = run.clone();
    let cores = 1 + rng.below(3) as usize;
    let node = sim.add_node("node", cores, move |core| {
        let run = main.clone();
        async move {
            match core {
                CoreId(0) => life(run).await,
                _ => {
                    while !run.done.get() {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            }
        }
    });
    for _ in 0..6 {
        let limit = sim.now() + Duration::from_micros(20_000 + rng.below(1_500_000));
        let clock = sim.handle();
        sim.run_until(|| run.done.get() || !clock.is_running(node) || clock.now() > limit)
            .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck:?}"));
        sim.crash(node, Death::PowerCut);
        // What was lost is fetched again; no other node has what this one wrote as a primary and
        // lost.
        run.done.set(false);
        sim.restart(node, 1 + rng.below(3) as usize);
    }
    for (what, count) in run.counts.take() {
        *counts.entry(what).or_default() += count;
    }
}

#[test]
fn a_member_has_what_it_has_logged_and_shows_what_it_has_applied() {
    let mut counts = BTreeMap::new();
    for seed in 0..36 {
        run_seed(seed, &mut counts);
    }
    println!("{counts:#?}");
    for what in [
        "acknowledged",
        "checkpoints",
        "closed",
        "own writes",
        "replayed",
        "rolled back",
        "snapshots",
        "snapshots too old",
        "written as a primary",
    ] {
        assert!(counts.contains_key(what), "nothing was {what}: {counts:?}");
    }
}
