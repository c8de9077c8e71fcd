//! The checker of histories of lists: whether transactions have run under snapshot isolation, and
//! whether what was promised is there.
//!
//! As Elle does it (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from Experimental
//! Observations", 2020): since every number is appended once, a list shows in which order its
//! writers came, and what a reader has seen of them. The order is that of the lists as all members
//! have them at the end. From it follow the dependencies: `ww`, which transaction wrote behind
//! which; `wr`, which read whose version; `rw`, which read the version that another one replaced.
//! Snapshot isolation forbids every cycle in which no two `rw` follow each other (Cerone and
//! Gotsman, "Analysing Snapshot Isolation", 2016); what else there is of cycles is write skew,
//! which it allows.
//!
//! Not checked: that a transaction sees what ended before it began, but for those of its own
//! client.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::graph::{Edges, cyclic_components, path};
use super::txn::{Finals, Key, Op, Outcome, Txn};

/// What was wrong, by its name in the literature where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A number that was never appended to this list.
    Garbage,
    /// A number is there twice.
    Duplicate,
    /// What a majority has acknowledged is not there.
    Lost,
    /// A part of a transaction is there.
    Torn,
    /// What was aborted or rolled back is there.
    AbortedWrite,
    /// G1a: what was aborted was read.
    AbortedRead,
    /// G1b: a version was read that its writer replaced itself.
    IntermediateRead,
    /// A lasting read has seen what was never so.
    IncompatibleOrder,
    /// A transaction has not read what it has appended before, or something else in its place.
    OwnWriteNotRead,
    /// A transaction has read a list twice, and two versions of it.
    NotRepeatable,
    /// G0: a cycle of `ww`.
    DirtyWrite,
    /// G1c: a cycle of `ww` and `wr`.
    CircularFlow,
    /// Two have read the same version and both appended to it.
    LostUpdate,
    /// G-single: a cycle with one `rw`.
    ReadSkew,
    /// A cycle of several `rw`, of which none follows another.
    SnapshotsDisagree,
    /// A cycle that comes of what a client was answered before.
    SessionBroken,
}

#[derive(Clone, Debug)]
pub struct Anomaly {
    pub kind: Kind,
    pub what: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.what)
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Verdict {
    pub anomalies: Vec<Anomaly>,
    /// G2-item: cycles that snapshot isolation allows.
    pub write_skews: u64,
    /// Dependencies between transactions, by which the checker went.
    pub dependencies: u64,
}

/// Checks a history. The transactions of each client are in their order.
pub fn check(txns: &[Txn], finals: &Finals) -> Verdict {
    let mut checker = Checker {
        txns,
        finals,
        writers: BTreeMap::new(),
        took_place: vec![false; txns.len()],
        reads: vec![BTreeMap::new(); txns.len()],
        verdict: Verdict::default(),
    };
    checker.find_writers();
    checker.check_finals();
    checker.check_outcomes();
    checker.check_reads();
    checker.check_lost_updates();
    checker.check_cycles();
    checker.verdict
}

/// The transaction that has appended a number.
#[derive(Clone, Copy)]
struct Writer {
    txn: usize,
    key: Key,
    /// It has appended nothing else to the list afterwards.
    is_last: bool,
}

struct Checker<'h> {
    txns: &'h [Txn],
    finals: &'h Finals,
    writers: BTreeMap<i64, Writer>,
    /// What is known to have happened.
    took_place: Vec<bool>,
    /// Of each transaction the versions that it has read of others, where these count.
    reads: Vec<BTreeMap<Key, &'h [i64]>>,
    verdict: Verdict,
}

/// Dependencies of one kind.
struct Dependencies {
    ww: Edges,
    wr: Edges,
    rw: Edges,
    session: Edges,
}

impl<'h> Checker<'h> {
    fn report(&mut self, kind: Kind, what: String) {
        self.verdict.anomalies.push(Anomaly { kind, what });
    }

    fn list(&self, key: Key) -> &'h [i64] {
        self.finals.get(&key).map_or(&[], Vec::as_slice)
    }

    fn find_writers(&mut self) {
        for (txn, each) in self.txns.iter().enumerate() {
            for (key, number) in each.appends() {
                let later = each.appends().filter(|(other, _)| *other == key);
                let is_last = later.last() == Some((key, number));
                let writer = Writer { txn, key, is_last };
                let before = self.writers.insert(number, writer);
                assert!(before.is_none(), "{number} is appended twice");
            }
        }
    }

    /// What is wrong with a list, whichever reader has seen it.
    fn check_list(&mut self, key: Key, list: &[i64], of_aborted: Kind, who: &dyn fmt::Display) {
        let mut seen = BTreeSet::new();
        for number in list {
            if !seen.insert(number) {
                self.report(
                    Kind::Duplicate,
                    format!("{who}: {number} in {key}: {list:?}"),
                );
            }
            match self.writers.get(number) {
                Some(writer) if writer.key == key => {
                    let txn = &self.txns[writer.txn];
                    let is_gone = match txn.outcome {
                        Outcome::Aborted => true,
                        Outcome::RolledBack => of_aborted == Kind::AbortedWrite,
                        _ => false,
                    };
                    if is_gone {
                        self.report(of_aborted, format!("{who}: {number} in {key}, of {txn}"));
                    }
                }
                _ => self.report(Kind::Garbage, format!("{who}: {number} in {key}")),
            }
        }
    }

    fn check_finals(&mut self) {
        for (key, list) in self.finals {
            self.check_list(*key, list, Kind::AbortedWrite, &"at the end");
        }
    }

    /// What must be there is, and all of a transaction or nothing.
    fn check_outcomes(&mut self) {
        for (place, txn) in self.txns.iter().enumerate() {
            let is_there = |(key, number): &(Key, i64)| self.list(*key).contains(number);
            let (there, missing): (Vec<_>, Vec<_>) = txn.appends().partition(is_there);
            self.took_place[place] = match txn.outcome {
                Outcome::Committed => true,
                Outcome::Aborted | Outcome::RolledBack => false,
                Outcome::AcknowledgedByOne | Outcome::Unknown => {
                    !there.is_empty() && missing.is_empty()
                }
            };
            if missing.is_empty() {
                continue;
            }
            match txn.outcome {
                Outcome::Committed => self.report(Kind::Lost, format!("{missing:?} of {txn}")),
                _ if !there.is_empty() => {
                    self.report(Kind::Torn, format!("{missing:?} is missing of {txn}"));
                }
                _ => {}
            }
        }
    }

    fn check_reads(&mut self) {
        let txns = self.txns;
        for (place, txn) in txns.iter().enumerate() {
            // What was read of lists, without what it has appended itself.
            let mut versions: BTreeMap<Key, &'h [i64]> = BTreeMap::new();
            let mut own: BTreeMap<Key, Vec<i64>> = BTreeMap::new();
            for op in &txn.ops {
                let (key, list) = match op {
                    Op::Append(key, number) => {
                        own.entry(*key).or_default().push(*number);
                        continue;
                    }
                    Op::Read(key, list) => (*key, list),
                };
                let appended = own.get(&key).map_or(&[][..], Vec::as_slice);
                let Some(version) = list.strip_suffix(appended) else {
                    self.report(Kind::OwnWriteNotRead, format!("{key} in {txn}"));
                    continue;
                };
                if *versions.entry(key).or_insert(version) != version {
                    self.report(Kind::NotRepeatable, format!("{key} in {txn}"));
                }
                self.check_list(key, version, Kind::AbortedRead, txn);
                let last = version.last().and_then(|last| self.writers.get(last));
                if last.is_some_and(|writer| !writer.is_last && writer.txn != place) {
                    self.report(Kind::IntermediateRead, format!("{key} in {txn}"));
                }
            }
            // What is written behind what was read says that this is there too.
            let counts = self.took_place[place] && (txn.is_lasting || txn.appends().count() > 0);
            if !counts {
                continue;
            }
            for (key, version) in versions {
                match self.list(key).starts_with(version) {
                    true => {
                        self.reads[place].insert(key, version);
                    }
                    false => {
                        let list = self.list(key);
                        let what = format!("{version:?} of {key}, which is {list:?}, in {txn}");
                        self.report(Kind::IncompatibleOrder, what);
                    }
                }
            }
        }
    }

    fn check_lost_updates(&mut self) {
        let mut based: BTreeMap<(Key, usize), usize> = BTreeMap::new();
        let mut found = Vec::new();
        for (place, txn) in self.txns.iter().enumerate() {
            let appends: BTreeSet<Key> = txn.appends().map(|(key, _)| key).collect();
            for (key, version) in &self.reads[place] {
                if appends.contains(key)
                    && let Some(other) = based.insert((*key, version.len()), place)
                {
                    found.push(format!("of {key}: {} and {txn}", self.txns[other]));
                }
            }
        }
        for what in found {
            self.report(Kind::LostUpdate, what);
        }
    }

    fn dependencies(&self) -> Dependencies {
        let none = || vec![Vec::new(); self.txns.len()];
        let mut found = Dependencies {
            ww: none(),
            wr: none(),
            rw: none(),
            session: none(),
        };
        let writer = |number: &i64| {
            let writer = self.writers.get(number)?;
            self.took_place[writer.txn].then_some(writer.txn)
        };
        let add = |edges: &mut Edges, from: Option<usize>, to: Option<usize>| {
            if let (Some(from), Some(to)) = (from, to)
                && from != to
                && !edges[from].contains(&to)
            {
                edges[from].push(to);
            }
        };
        for list in self.finals.values() {
            for two in list.windows(2) {
                add(&mut found.ww, writer(&two[0]), writer(&two[1]));
            }
        }
        for (reader, versions) in self.reads.iter().enumerate() {
            for (key, version) in versions {
                let read = version.last().and_then(writer);
                add(&mut found.wr, read, Some(reader));
                let next = self.list(*key).get(version.len());
                add(&mut found.rw, Some(reader), next.and_then(writer));
            }
        }
        self.add_sessions(&mut found.session);
        found
    }

    /// A causal transaction comes behind all that its client was answered before.
    fn add_sessions(&self, edges: &mut Edges) {
        let mut before: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, txn) in self.txns.iter().enumerate() {
            if !self.took_place[place] {
                continue;
            }
            let before = before.entry(txn.client).or_default();
            if txn.is_causal {
                for earlier in before.drain(..) {
                    edges[earlier].push(place);
                }
            }
            if txn.outcome != Outcome::Unknown {
                before.push(place);
            }
        }
    }

    fn check_cycles(&mut self) {
        let found = self.dependencies();
        let Dependencies {
            ww,
            wr,
            rw,
            session,
        } = &found;
        let count = |edges: &Edges| edges.iter().map(Vec::len).sum::<usize>() as u64;
        self.verdict.dependencies = count(ww) + count(wr) + count(rw);
        if self.report_cycle(Kind::DirtyWrite, ww, &found) {
            return;
        }
        let flow = union(&[ww, wr]);
        if self.report_cycle(Kind::CircularFlow, &flow, &found) {
            return;
        }
        let all = union(&[&flow, rw]);
        let skewed = cyclic_components(&all);
        let mut is_forbidden = false;
        for component in &skewed {
            let ends = component
                .iter()
                .flat_map(|from| rw[*from].iter().map(move |to| (*from, *to)));
            let back = ends
                .filter_map(|(from, to)| Some((from, path(&flow, to, from)?)))
                .next();
            if let Some((from, mut cycle)) = back {
                cycle.insert(0, from);
                self.report_path(Kind::ReadSkew, &cycle, &found);
                is_forbidden = true;
            }
        }
        is_forbidden = is_forbidden
            || self.report_cycle(Kind::SnapshotsDisagree, &composed(&flow, rw), &found)
            || {
                let flow = union(&[&flow, session]);
                self.report_cycle(Kind::SessionBroken, &composed(&flow, rw), &found)
            };
        if !is_forbidden {
            self.verdict.write_skews = skewed.len() as u64;
        }
    }

    fn report_cycle(&mut self, kind: Kind, edges: &Edges, found: &Dependencies) -> bool {
        let components = cyclic_components(edges);
        for component in &components {
            let cycle = path(edges, component[0], component[0]).expect("it has a cycle");
            self.report_path(kind, &cycle, found);
        }
        !components.is_empty()
    }

    fn report_path(&mut self, kind: Kind, cycle: &[usize], found: &Dependencies) {
        let mut what = self.txns[cycle[0]].to_string();
        for two in cycle.windows(2) {
            let names = [
                ("ww", &found.ww),
                ("wr", &found.wr),
                ("rw", &found.rw),
                ("session", &found.session),
            ];
            let names = names
                .iter()
                .filter(|(_, edges)| edges[two[0]].contains(&two[1]));
            let names: Vec<&str> = names.map(|(name, _)| *name).collect();
            // No dependency is one and then a `rw`.
            let name = match names.is_empty() {
                true => "..rw".to_owned(),
                false => names.join(","),
            };
            what.push_str(&format!(" -{name}-> {}", self.txns[two[1]]));
        }
        self.report(kind, what);
    }
}

fn union(all: &[&Edges]) -> Edges {
    let nodes = 0..all[0].len();
    nodes
        .map(|node| {
            let mut behind: Vec<usize> = all.iter().flat_map(|edges| edges[node].clone()).collect();
            behind.sort_unstable();
            behind.dedup();
            behind
        })
        .collect()
}

/// One edge of the first, and then one of the second or none.
fn composed(flow: &Edges, rw: &Edges) -> Edges {
    let beyond: Vec<Vec<usize>> = flow
        .iter()
        .map(|behind| behind.iter().flat_map(|next| rw[*next].clone()).collect())
        .collect();
    union(&[flow, &beyond])
}
