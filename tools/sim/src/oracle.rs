//! What the node promised, and whether it kept it.
//!
//! For each key the oracle keeps the states that may be found after a crash, with the moments at
//! which each was sent and acknowledged. A state is durable for certain when it was journaled, when
//! a journaled write was sent after its acknowledgement, or when something that was sent after its
//! acknowledgement is found: what survives is a prefix of the oplog. The oracle checks single
//! documents, uniqueness, agreement of indexes with documents, and that a read over several
//! partitions is a snapshot. It does not check the order of writes that were under way at the same
//! time, nor timing.

use std::collections::{BTreeMap, BTreeSet};

use pinion_bson::{RawDocument, RawDocumentBuf};

use crate::agreement::Indexes;

/// A document's bytes, or `None` where it does not exist.
pub type State = Option<Vec<u8>>;

/// A moment: counts what was sent and what was acknowledged.
type Tick = u64;

/// One state that a key was given.
#[derive(Clone, Debug)]
struct Attempt {
    state: State,
    sent: Tick,
    /// `None` while the outcome is unknown.
    acknowledged: Option<Tick>,
    journaled: bool,
}

impl Attempt {
    fn is_durable(&self, durable_before: Tick) -> bool {
        self.journaled || self.acknowledged.is_some_and(|at| at <= durable_before)
    }
}

/// The states of a key since the last crash; the first is what was found then.
#[derive(Clone, Debug)]
struct Key(Vec<Attempt>);

impl Key {
    fn found(state: State) -> Key {
        Key(vec![Attempt {
            state,
            sent: 0,
            acknowledged: Some(0),
            journaled: true,
        }])
    }

    fn last(&self) -> &Attempt {
        self.0.last().expect("a key has a state")
    }
}

/// A batch of the log that was sent: numbers up to `last`.
#[derive(Clone, Copy, Debug)]
struct LogBatch {
    last: i64,
    sent: Tick,
    acknowledged: Option<Tick>,
    journaled: bool,
}

/// The keys of one worker, and its part of the log collection; no other client writes them. The
/// last worker is the one that changes the catalog: its keys are an index and a collection, which
/// are there or not.
#[derive(Default)]
pub struct Worker {
    keys: BTreeMap<String, Key>,
    log: Vec<LogBatch>,
    /// What of the log was found after the last crash.
    log_found: i64,
}

/// Everything known.
#[derive(Default)]
pub struct Oracle {
    pub workers: Vec<Worker>,
    tick: Tick,
    /// What was acknowledged up to here is durable.
    durable_before: Tick,
    /// Acknowledged journaled writes.
    pub journaled: u64,
    pub acknowledged: u64,
    /// Acknowledged changes of the catalog.
    pub catalog_changes: u64,
    /// Builds of indexes that somebody has ended.
    pub builds_ended: u64,
    pub duplicates_refused: u64,
    pub reads_checked: u64,
    pub snapshots_checked: u64,
    pub renewed_reads_checked: u64,
    pub unknown_outcomes: u64,
    pub indexes_checked: u64,
    places: u64,
    /// Statements that move documents in the index that they walk.
    pub statements_that_move: u64,
    problem: Option<String>,
}

impl Worker {
    /// Keys with a document, whose last write has a known outcome.
    pub fn present(&self) -> Vec<(&str, &[u8])> {
        self.keys
            .iter()
            .filter_map(|(name, key)| {
                let last = key.last();
                let state = last.state.as_deref()?;
                last.acknowledged.map(|_| (name.as_str(), state))
            })
            .collect()
    }

    /// How many keys were ever written.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The highest number of the log that was acknowledged.
    pub fn log_acknowledged(&self) -> i64 {
        let acknowledged = self.log.iter().filter(|batch| batch.acknowledged.is_some());
        acknowledged
            .map(|batch| batch.last)
            .max()
            .unwrap_or(self.log_found)
    }

    /// The highest number of the log that was sent, acknowledged or not.
    pub fn log_sent(&self) -> i64 {
        self.log.last().map_or(self.log_found, |batch| batch.last)
    }

    /// The highest number of the log that must be found after a crash.
    fn log_durable(&self, durable_before: Tick) -> i64 {
        let durable = self.log.iter().filter(|batch| {
            batch.journaled || batch.acknowledged.is_some_and(|at| at <= durable_before)
        });
        durable
            .map(|batch| batch.last)
            .max()
            .unwrap_or(self.log_found)
    }
}

impl Oracle {
    /// An oracle for `workers`, and one that changes the catalog.
    pub fn new(workers: usize) -> Self {
        Self {
            workers: (0..=workers).map(|_| Worker::default()).collect(),
            ..Self::default()
        }
    }

    /// Records what went wrong; the first one counts.
    pub fn fail(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    /// What went wrong.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// The worker that changes the catalog.
    pub fn catalog_worker(&self) -> usize {
        self.workers.len() - 1
    }

    /// The beginning of unique values that lie behind all that were given before.
    pub fn next_place(&mut self) -> String {
        self.places += 1;
        format!("x{:08}-", self.places)
    }

    fn tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// A write of this state is sent.
    pub fn sent(&mut self, worker: usize, key: &str, state: State) {
        let sent = self.tick();
        let keys = &mut self.workers[worker].keys;
        let key = keys.entry(key.into()).or_insert_with(|| Key::found(None));
        key.0.push(Attempt {
            state,
            sent,
            acknowledged: None,
            journaled: false,
        });
    }

    /// The last write of this key had no effect.
    pub fn refused(&mut self, worker: usize, key: &str) {
        let key = self.workers[worker].keys.get_mut(key);
        let last = key.expect("a key that was written").0.pop();
        assert!(
            last.is_some_and(|last| last.acknowledged.is_none()),
            "an acknowledged write is not refused"
        );
    }

    /// The last write of this key took effect.
    pub fn acknowledged(&mut self, worker: usize, key: &str, journaled: bool) {
        let now = self.tick();
        let key = self.workers[worker].keys.get_mut(key);
        let last = key.expect("a key that was written").0.last_mut();
        let last = last.expect("it was sent");
        last.acknowledged = Some(now);
        last.journaled = journaled;
        let sent = last.sent;
        self.count_acknowledged(worker, sent, journaled);
    }

    fn count_acknowledged(&mut self, worker: usize, sent: Tick, journaled: bool) {
        if worker == self.catalog_worker() {
            self.catalog_changes += 1;
        } else {
            self.acknowledged += 1;
            self.journaled += u64::from(journaled);
        }
        if journaled {
            // Its timestamp lies above those of all that was acknowledged before it was sent.
            self.durable_before = self.durable_before.max(sent);
        }
    }

    /// A batch of the log up to this number is sent.
    pub fn log_sent(&mut self, worker: usize, last: i64) {
        let sent = self.tick();
        self.workers[worker].log.push(LogBatch {
            last,
            sent,
            acknowledged: None,
            journaled: false,
        });
    }

    /// The last batch of the log had no effect.
    pub fn log_refused(&mut self, worker: usize) {
        self.workers[worker].log.pop().expect("a batch was sent");
    }

    /// The last batch of the log took effect.
    pub fn log_acknowledged(&mut self, worker: usize, journaled: bool) {
        let now = self.tick();
        let batch = self.workers[worker].log.last_mut().expect("it was sent");
        batch.acknowledged = Some(now);
        batch.journaled = journaled;
        let sent = batch.sent;
        self.count_acknowledged(worker, sent, journaled);
    }

    /// The node has shut down in order: whatever was acknowledged is durable.
    pub fn closed(&mut self) {
        self.durable_before = self.tick();
    }

    /// The state that a key has for certain, or nothing while the outcome of its last write is
    /// unknown.
    pub fn known(&self, worker: usize, key: &str) -> Option<State> {
        let Some(key) = self.workers[worker].keys.get(key) else {
            return Some(None);
        };
        let last = key.last();
        last.acknowledged.map(|_| last.state.clone())
    }

    /// After a crash: compares everything there is with what may be there, and takes it as the
    /// state from now on. `catalog` names the keys of the catalog's worker that are there.
    pub fn check_all(
        &mut self,
        docs: &[RawDocumentBuf],
        log: &[RawDocumentBuf],
        indexes: &Indexes,
        catalog: &[&str],
    ) {
        if let Err(problem) = indexes.check(docs) {
            self.fail(problem);
        }
        self.indexes_checked += 1;
        let mut found: BTreeMap<String, Vec<u8>> = docs
            .iter()
            .map(|document| (id(document), document.as_bytes().to_vec()))
            .collect();
        if found.len() != docs.len() {
            self.fail(format!(
                "{} documents have {} different _id values",
                docs.len(),
                found.len()
            ));
        }
        found.extend(catalog.iter().map(|name| ((*name).to_owned(), Vec::new())));
        let Some(log) = self.numbers(log) else {
            return;
        };
        let durable_before = self.durable_before.max(self.latest_found(&found, &log));
        self.check_keys(&found, durable_before);
        let at_least: Vec<i64> = self
            .workers
            .iter()
            .map(|worker| worker.log_durable(durable_before))
            .collect();
        self.check_numbers(&log, &at_least);
        for (worker, numbers) in self.workers.iter_mut().zip(log) {
            worker.log.clear();
            worker.log_found = numbers.last().copied().unwrap_or(0);
        }
        // All that is there is durable now, whenever it was sent.
        (self.tick, self.durable_before) = (0, 0);
    }

    /// When the latest of what is found was sent. A state that is not unique counts as its
    /// earliest.
    fn latest_found(&self, found: &BTreeMap<String, Vec<u8>>, log: &[BTreeSet<i64>]) -> Tick {
        let keys = self.workers.iter().flat_map(|worker| &worker.keys);
        let keys = keys.filter_map(|(name, key)| {
            let state = found.get(name);
            let same = |attempt: &&Attempt| attempt.state.as_ref() == state;
            key.0.iter().find(same).map(|attempt| attempt.sent)
        });
        let batches = self
            .workers
            .iter()
            .zip(log)
            .filter_map(|(worker, numbers)| {
                let highest = numbers.last()?;
                let mut reaching = worker.log.iter().filter(|batch| batch.last >= *highest);
                let sent = reaching.next()?.sent;
                (*highest > worker.log_found).then_some(sent)
            });
        keys.chain(batches).max().unwrap_or(0)
    }

    fn check_keys(&mut self, found: &BTreeMap<String, Vec<u8>>, durable_before: Tick) {
        let mut known = BTreeSet::new();
        let mut problems = Vec::new();
        for worker in &mut self.workers {
            for (name, key) in &mut worker.keys {
                known.insert(name.clone());
                let state = found.get(name).cloned();
                let durable = |attempt: &Attempt| attempt.is_durable(durable_before);
                let floor = key.0.iter().rposition(durable).unwrap_or(0);
                let allowed = &key.0[floor..];
                if !allowed.iter().any(|attempt| attempt.state == state) {
                    let allowed: Vec<String> =
                        allowed.iter().map(|attempt| show(&attempt.state)).collect();
                    problems.push(format!(
                        "key {name} is {}, but may only be one of {}",
                        show(&state),
                        allowed.join(" or ")
                    ));
                }
                *key = Key::found(state);
            }
        }
        let unknown = found.keys().filter(|key| !known.contains(*key));
        problems.extend(unknown.map(|key| format!("key {key} was never written")));
        if let Some(problem) = problems.into_iter().next() {
            self.fail(problem);
        }
    }

    /// The log's numbers by worker, or nothing when a document is not what was written.
    fn numbers(&mut self, documents: &[RawDocumentBuf]) -> Option<Vec<BTreeSet<i64>>> {
        let mut seen: Vec<BTreeSet<i64>> = vec![BTreeSet::new(); self.workers.len()];
        for document in documents {
            let (Ok(worker), Ok(number)) = (document.get_i32("w"), document.get_i64("number"))
            else {
                self.fail(format!(
                    "a log document is not what was written: {document:?}"
                ));
                return None;
            };
            if !seen[worker as usize].insert(number) {
                self.fail(format!(
                    "worker {worker}: number {number} of the log is there twice"
                ));
            }
        }
        Some(seen)
    }

    /// Checks a read of the log collection: every worker's numbers are there without a gap, but for
    /// what came while a read took newer states. `at_least` is what each worker had acknowledged
    /// when the read began.
    pub fn check_log(&mut self, documents: &[RawDocumentBuf], at_least: &[i64], is_snapshot: bool) {
        match is_snapshot {
            true => self.snapshots_checked += 1,
            false => self.renewed_reads_checked += 1,
        }
        let Some(seen) = self.numbers(documents) else {
            return;
        };
        for (worker, numbers) in seen.iter().enumerate() {
            let missing = (1..=at_least[worker]).find(|number| !numbers.contains(number));
            if let Some(missing) = missing {
                self.fail(format!(
                    "worker {worker}: {missing} of the log was acknowledged and is not there"
                ));
            }
        }
        if is_snapshot {
            self.check_numbers(&seen, at_least);
        }
    }

    fn check_numbers(&mut self, seen: &[BTreeSet<i64>], at_least: &[i64]) {
        for (worker, numbers) in seen.iter().enumerate() {
            let highest = numbers.last().copied().unwrap_or(0);
            if numbers.len() as i64 != highest {
                let missing = (1..=highest).find(|number| !numbers.contains(number));
                self.fail(format!(
                    "worker {worker}: the log reaches {highest} but lacks {missing:?}: not a snapshot"
                ));
            }
            if highest < at_least[worker] {
                self.fail(format!(
                    "worker {worker}: the log ends at {highest}, {} was acknowledged",
                    at_least[worker]
                ));
            }
            if highest > self.workers[worker].log_sent() {
                self.fail(format!(
                    "worker {worker}: the log has {highest}, which was never sent"
                ));
            }
        }
    }
}

/// The `_id` of a document of the simulation, which is always a string.
pub fn id(document: &RawDocument) -> String {
    document
        .get_str("_id")
        .map(String::from)
        .unwrap_or_else(|_| format!("{document:?}"))
}

fn show(state: &State) -> String {
    match state {
        None => "absent".into(),
        Some(bytes) if bytes.is_empty() => "there".into(),
        Some(bytes) => match RawDocument::from_bytes(bytes) {
            Ok(document) => pinion_bson::to_extended_json(document, pinion_bson::JsonMode::Relaxed),
            Err(error) => format!("broken ({error})"),
        },
    }
}
