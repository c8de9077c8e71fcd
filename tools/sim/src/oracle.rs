//! What the node promised, and whether it kept it.
//!
//! For each key the oracle keeps the states that may be found after a crash: the last one that is certainly durable,
//! and every one that was sent after it. It checks single documents, uniqueness, agreement of indexes with documents,
//! and that a read over several partitions is a snapshot. It does not check the order in which operations of
//! different clients took effect, nor timing.

use std::collections::{BTreeMap, BTreeSet};

use pinion_bson::{RawDocument, RawDocumentBuf};

/// A document's bytes, or `None` where it does not exist.
pub type State = Option<Vec<u8>>;

/// The states a key may be in.
#[derive(Clone, Debug)]
struct Key {
    /// From the last certainly durable state to the last one sent.
    candidates: Vec<State>,
    /// How many of them are acknowledged: index of the state that a read must see, when nothing is uncertain.
    acknowledged: usize,
    /// The outcome of the last write is unknown.
    uncertain: bool,
}

impl Default for Key {
    fn default() -> Self {
        Self {
            candidates: vec![None],
            acknowledged: 0,
            uncertain: false,
        }
    }
}

/// The keys of one worker; nobody else writes them.
#[derive(Default)]
pub struct Worker {
    keys: BTreeMap<String, Key>,
    /// Highest number acknowledged in this worker's part of the log collection, and the highest one sent.
    pub log_acknowledged: i64,
    pub log_durable: i64,
    pub log_sent: i64,
}

/// Everything known.
#[derive(Default)]
pub struct Oracle {
    pub workers: Vec<Worker>,
    /// Acknowledged journaled writes.
    pub journaled: u64,
    pub acknowledged: u64,
    pub duplicates_refused: u64,
    pub reads_checked: u64,
    pub snapshots_checked: u64,
    pub unknown_outcomes: u64,
    problem: Option<String>,
}

impl Worker {
    /// A write of this state is sent.
    pub fn sent(&mut self, key: &str, state: State) {
        let key = self.keys.entry(key.into()).or_default();
        key.candidates.push(state);
        key.uncertain = true;
    }

    /// The last write of this key had no effect.
    pub fn refused(&mut self, key: &str) {
        let key = self.keys.get_mut(key).expect("a key that was written");
        key.candidates.pop();
        key.uncertain = key.candidates.len() > key.acknowledged + 1;
    }

    /// The last write of this key took effect; with `journaled` so is everything this worker was acknowledged before.
    pub fn acknowledged(&mut self, key: &str, journaled: bool) {
        let entry = self.keys.get_mut(key).expect("a key that was written");
        entry.acknowledged = entry.candidates.len() - 1;
        entry.uncertain = false;
        if journaled {
            self.all_durable();
        }
    }

    /// Whatever was acknowledged is durable.
    pub fn all_durable(&mut self) {
        for key in self.keys.values_mut() {
            key.candidates.drain(..key.acknowledged);
            key.acknowledged = 0;
        }
        self.log_durable = self.log_acknowledged;
    }

    /// The state that a read must see, unless the outcome of the last write is unknown.
    pub fn visible(&self, key: &str) -> Option<State> {
        match self.keys.get(key) {
            None => Some(None),
            Some(key) if key.uncertain => None,
            Some(key) => Some(key.candidates[key.acknowledged].clone()),
        }
    }

    /// Keys with a document, whose last write has a known outcome.
    pub fn present(&self) -> Vec<String> {
        let there = |key: &Key| !key.uncertain && key.candidates[key.acknowledged].is_some();
        self.keys
            .iter()
            .filter(|(_, key)| there(key))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// How many keys were ever written.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }
}

impl Oracle {
    /// An oracle for so many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| Worker::default()).collect(),
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

    /// After a crash: compares all documents of the collection with what may be there, and takes them as the state
    /// from now on. `by_index` are the same documents found through each index.
    pub fn check_documents(
        &mut self,
        scan: &[RawDocumentBuf],
        by_index: &[(&str, Vec<RawDocumentBuf>)],
    ) {
        let found: BTreeMap<String, Vec<u8>> = scan
            .iter()
            .map(|document| (id(document), document.as_bytes().to_vec()))
            .collect();
        if found.len() != scan.len() {
            self.fail(format!(
                "{} documents have {} different _id values",
                scan.len(),
                found.len()
            ));
        }
        for (name, documents) in by_index {
            let through: BTreeMap<String, Vec<u8>> = documents
                .iter()
                .map(|document| (id(document), document.as_bytes().to_vec()))
                .collect();
            if through != found || documents.len() != through.len() {
                let odd = through
                    .keys()
                    .filter(|key| !found.contains_key(*key))
                    .chain(found.keys().filter(|key| !through.contains_key(*key)));
                let odd: Vec<&String> = odd.take(5).collect();
                self.fail(format!(
                    "index {name} gives {} entries for {} documents, the scan {}; not in both: {odd:?}",
                    documents.len(), through.len(), found.len()
                ));
            }
        }
        let mut unique = BTreeSet::new();
        for document in scan {
            if let Ok(Some(value)) = document.get("u") {
                let value = format!("{value:?}");
                if !unique.insert(value.clone()) {
                    self.fail(format!("the unique value {value} is there twice"));
                }
            }
        }
        let mut known = BTreeSet::new();
        let mut problems = Vec::new();
        for worker in &mut self.workers {
            for (name, key) in &mut worker.keys {
                known.insert(name.clone());
                let state = found.get(name).cloned();
                if !key.candidates.contains(&state) {
                    problems.push(format!(
                        "key {name} is {}, but may only be one of {}",
                        show(&state),
                        key.candidates
                            .iter()
                            .map(show)
                            .collect::<Vec<_>>()
                            .join(" or ")
                    ));
                }
                *key = Key {
                    candidates: vec![state],
                    acknowledged: 0,
                    uncertain: false,
                };
            }
        }
        problems.extend(
            found
                .keys()
                .filter(|key| !known.contains(*key))
                .map(|key| format!("key {key} was never written")),
        );
        if let Some(problem) = problems.into_iter().next() {
            self.fail(problem);
        }
    }

    /// Checks a read of the log collection: every worker's numbers are there without a gap. `at_least` is what each
    /// worker had acknowledged when the read began.
    pub fn check_log(&mut self, documents: &[RawDocumentBuf], at_least: &[i64], after_crash: bool) {
        self.snapshots_checked += 1;
        let mut seen: Vec<BTreeSet<i64>> = vec![BTreeSet::new(); self.workers.len()];
        for document in documents {
            let (Ok(worker), Ok(number)) = (document.get_i32("w"), document.get_i64("number"))
            else {
                return self.fail(format!(
                    "a log document is not what was written: {document:?}"
                ));
            };
            if !seen[worker as usize].insert(number) {
                self.fail(format!(
                    "worker {worker}: number {number} of the log is there twice"
                ));
            }
        }
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
            let state = &mut self.workers[worker];
            if highest > state.log_sent {
                self.fail(format!(
                    "worker {worker}: the log has {highest}, which was never sent"
                ));
            } else if after_crash {
                (state.log_acknowledged, state.log_durable, state.log_sent) =
                    (highest, highest, highest);
            }
        }
    }
}

fn id(document: &RawDocument) -> String {
    document
        .get_str("_id")
        .map(String::from)
        .unwrap_or_else(|_| format!("{document:?}"))
}

fn show(state: &State) -> String {
    match state {
        None => "absent".into(),
        Some(bytes) => match RawDocument::from_bytes(bytes) {
            Ok(document) => pinion_bson::to_extended_json(document, pinion_bson::JsonMode::Relaxed),
            Err(error) => format!("broken ({error})"),
        },
    }
}
