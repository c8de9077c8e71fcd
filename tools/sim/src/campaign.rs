//! Many seeds, on all processors: their totals, and which failed.

// Around the simulations: threads, and time that passes.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Instant;

use crate::clusters::{self, run_cluster_seed};
use crate::fault::Fault;
use crate::seed::{Outcome, run_seed};
use crate::sets::run_set_seed;

/// What seeds are run of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One node.
    Node,
    /// A replica set.
    Set,
    /// A cluster with shards.
    Cluster,
}

impl Kind {
    pub fn run(self, seed: u64, fault: Fault, print_trace: bool) -> Outcome {
        match self {
            Kind::Node => run_seed(seed, fault, print_trace),
            Kind::Set => run_set_seed(seed, fault, print_trace),
            Kind::Cluster => run_cluster_seed(seed, fault, print_trace),
        }
    }

    /// The faults that are planted.
    fn faults(self) -> Vec<Fault> {
        match self {
            Kind::Node => Fault::all(),
            Kind::Set => Fault::of_sets(),
            Kind::Cluster => Fault::of_clusters(),
        }
    }

    /// Seeds that failed once, and what was wrong then. Every campaign runs them.
    fn kept(self) -> &'static [(u64, &'static str)] {
        match self {
            Kind::Node => KEPT,
            Kind::Set => KEPT_OF_SETS,
            Kind::Cluster => clusters::KEPT,
        }
    }

    /// How many seeds a campaign has that must meet everything.
    fn full_campaign(self) -> u64 {
        match self {
            Kind::Node => 200,
            Kind::Set | Kind::Cluster => 60,
        }
    }

    /// What the lines of seeds report, if each has one.
    fn reported(self) -> Option<Reported> {
        match self {
            Kind::Node => None,
            Kind::Set => Some(REPORTED_OF_SETS),
            Kind::Cluster => Some(clusters::REPORTED),
        }
    }

    /// What such a campaign must have met.
    fn must_happen(self) -> &'static [&'static str] {
        match self {
            Kind::Node => MUST_HAPPEN,
            Kind::Set => MUST_HAPPEN_TO_SETS,
            Kind::Cluster => clusters::MUST_HAPPEN,
        }
    }
}

const MUST_HAPPEN: &[&str] = &[
    "power cuts",
    "kills",
    "shutdowns",
    "torn blocks",
    "lost blocks",
    "journaled writes acknowledged",
    "catalog changes acknowledged",
    "duplicates refused",
    "reads checked",
    "snapshots checked",
    "renewed reads checked",
    "indexes checked",
    "statements that move documents",
    "failures of the disk stopped the node",
    "bits flipped",
    "damage refused",
    "damage reported",
    "damage harmless",
    "event flush",
    "event checkpoint end",
    "event superblock",
    "event segment",
    "event segments reused",
    "event unit placed",
    "event entries replayed",
    "event entries cut off",
    "event torn frames",
    "event stamps alike by chance",
    "event recovery hole",
    "event checkpoint spills",
    "event changes spilled",
    "event spilled changes loaded",
    "event spilled changes merged",
    "event part of a merge published",
    "event merged changes given up",
    "event leaves read ahead of a merge",
    "event leaves read ahead of a cursor",
    "event leaves read ahead of writes",
    "crash at flush",
    "crash at checkpoint begin",
    "crash at checkpoint install",
    "crash at checkpoint end",
    "crash at checkpoint spills",
    "crash at spilled changes merged",
    "crash at part of a merge published",
    "crash at superblock",
    "crash at superblock copy",
    "crash at segment",
    "crash at unit placed",
    "crash at recovery begin",
    "crash at recovery cut",
    "crash at recovery replay",
    "crash at recovery end",
    "crash at ddl",
    "event index build scanned",
    "event index build drained",
    "event loaded tree installed",
    "index builds ended",
    "crash at index build scanned",
    "crash at part of a tree loaded",
    "crash at index build loaded",
    "crash at loaded tree installed",
    "crash at index build drained",
];

const MUST_HAPPEN_TO_SETS: &[&str] = &[
    "sets compared",
    "power cuts",
    "kills",
    "shutdowns ordered",
    "links cut",
    "links cut one way",
    "links slowed",
    "links clogged",
    "clocks jumped",
    "disks slowed",
    "step-downs ordered",
    "step-ups ordered",
    "primaries stranded",
    "elections torn",
    "blackouts",
    "reconfigurations",
    "members added and synced",
    "members replaced and synced",
    "members ended while they copy",
    "event index build drained",
    "event checkpoint end",
    "sets with little memory",
    "event history written",
    "event layer written",
    "event layer dissolved",
    "event elected",
    "event stepped down",
    "event vote stored",
    "event entries logged",
    "event rolled back",
    "writes acknowledged by a majority",
    "writes acknowledged by one",
    "catalog changes acknowledged",
    "local reads",
    "available reads",
    "majority reads",
    "snapshot reads",
    "linearizable reads",
    "reads by an index",
    "writes sent again",
    "transactions acknowledged",
    "list transactions committed",
    "list transactions aborted",
    "list transactions uncertain",
    "commits sent again",
    "reads of lists",
    "write skews",
    "change streams resumed",
    "events of change streams",
    "reads of what moves",
    "reads of a place twice",
    "reads that waited in the middle",
    "transactions held",
    "runs whose leaders die",
    "majority reads under new leaders",
    "votes asked for again",
    "older terms held by a majority",
    "sets with a key file",
    "event files taken over",
    "crash at flush",
    "crash at term begun",
];

/// What the line of a seed reports, and what it counts.
pub type Reported = &'static [(&'static str, &'static [&'static str])];

const REPORTED_OF_SETS: Reported = &[
    ("crashes", &["power cuts", "kills"]),
    ("cuts", &["links cut"]),
    ("one-way cuts", &["links cut one way"]),
    ("clogs", &["links clogged"]),
    ("slow disks", &["disks slowed"]),
    ("clock jumps", &["clocks jumped"]),
    ("elections", &["event elected"]),
    ("step-downs", &["event stepped down"]),
    ("reconfigurations", &["reconfigurations"]),
    ("members added", &["members added and synced"]),
    ("members replaced", &["members replaced and synced"]),
    ("rollbacks", &["event rolled back"]),
    ("index builds", &["event index build drained"]),
    (
        "transactions",
        &["transactions acknowledged", "list transactions committed"],
    ),
    ("write skews", &["write skews"]),
    ("streams resumed", &["change streams resumed"]),
];

const KEPT: &[(u64, &str)] = &[
    (
        48,
        "a flipped bit in a page was reported to the checker, which asked for ever",
    ),
    (114, "like 48, in the tree of an index"),
    (
        467,
        "an epoch that began below what was discarded before it was taken for damage",
    ),
];

const KEPT_OF_SETS: &[(u64, &str)] = &[(
    700_008,
    "a new primary answered a commit with w: 1, which was sent again, that nothing of the transaction stays; the old primary, \
     which had committed it, led again before a majority had anything of the new one",
)];

/// Runs these seeds and prints what they went through.
pub fn campaign(of: Kind, first: u64, count: u64, fault: Fault) -> Result<(), String> {
    let began = Instant::now();
    let mut seeds: Vec<u64> = (first..first + count).collect();
    if fault == Fault::NONE {
        let kept = of.kept().iter().map(|(seed, _)| *seed);
        seeds.extend(kept.filter(|seed| !(first..first + count).contains(seed)));
    }
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    let mut failed = 0;
    let all = seeds.len();
    for (seed, outcome) in run_all(of, &seeds, fault) {
        if let Some(reported) = of.reported() {
            println!("seed {seed}: {}", summary(&outcome, reported));
        }
        for (name, number) in outcome.counts {
            *totals.entry(name).or_default() += number;
        }
        if let Some(problem) = outcome.problem {
            failed += 1;
            println!("seed {seed}: {problem}");
        }
    }
    for (name, number) in &totals {
        println!("{name}: {number}");
    }
    println!("{:.1} s", began.elapsed().as_secs_f64());
    let must_happen = of.must_happen().iter();
    let absent: Vec<&&str> = must_happen
        .filter(|name| totals.get(**name).is_none_or(|number| *number == 0))
        .collect();
    let incomplete = count >= of.full_campaign() && fault == Fault::NONE && !absent.is_empty();
    if incomplete {
        println!("never happened: {absent:?}");
    }
    println!(
        "{} passed, {} failed",
        all - failed,
        failed + usize::from(incomplete)
    );
    if failed == 0 && !incomplete {
        Ok(())
    } else {
        Err("run one with: pinion-sim seed --number N".into())
    }
}

fn summary(outcome: &Outcome, reported: Reported) -> String {
    let reported = reported.iter().filter_map(|(what, names)| {
        let counts = names.iter().filter_map(|name| outcome.counts.get(*name));
        let count: u64 = counts.sum();
        (count > 0).then(|| format!("{count} {what}"))
    });
    let reported: Vec<String> = reported.collect();
    format!(
        "{:.1} s; {}",
        outcome.took.as_secs_f64(),
        reported.join(", ")
    )
}

/// Plants each fault and looks for a seed that finds it. Each processor takes one fault after the
/// other: of several seeds with one fault all but the first that finds it would have run for
/// nothing.
pub fn faults(of: Kind, seeds: u64) -> Result<(), String> {
    let all = of.faults();
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..processors() {
            scope.spawn(|| {
                while let Some(fault) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !is_found(of, *fault, seeds) {
                        missed.lock().expect("nobody panics").push(fault.name());
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("nobody panics");
    println!(
        "{} passed, {} failed",
        all.len() - missed.len(),
        missed.len()
    );
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("missed: {missed:?}"))
    }
}

/// Prints which seed finds a fault.
fn is_found(of: Kind, fault: Fault, seeds: u64) -> bool {
    let (name, began) = (fault.name(), Instant::now());
    // The fault may be one that a kept seed has met.
    let kept = of.kept().iter().map(|(seed, _)| *seed);
    let found = kept
        .chain(1..=seeds)
        .find_map(|seed| Some((seed, guarded(of, seed, fault).problem?)));
    let Some((seed, problem)) = found else {
        println!("{name}: NOT found in {seeds} seeds");
        return false;
    };
    let problem: String = problem.chars().take(300).collect();
    let took = began.elapsed().as_secs_f64();
    println!("{name}: found by seed {seed} in {took:.0} s: {problem}");
    true
}

fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs seeds on all processors, in their order.
fn run_all(of: Kind, seeds: &[u64], fault: Fault) -> Vec<(u64, Outcome)> {
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    let mut outcomes: Vec<(u64, Outcome)> = thread::scope(|scope| {
        for _ in 0..processors() {
            let (next, send) = (&next, send.clone());
            scope.spawn(move || {
                while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = guarded(of, seed, fault);
                    send.send((seed, outcome)).expect("the receiver waits");
                }
            });
        }
        drop(send);
        receive.iter().collect()
    });
    outcomes.sort_by_key(|(seed, _)| *seed);
    outcomes
}

/// A panic is a failure of its seed, and the others still run.
fn guarded(of: Kind, seed: u64, fault: Fault) -> Outcome {
    let began = Instant::now();
    let outcome = caught(of, seed, fault);
    Outcome {
        took: began.elapsed(),
        ..outcome
    }
}

fn caught(of: Kind, seed: u64, fault: Fault) -> Outcome {
    std::panic::catch_unwind(|| of.run(seed, fault, false)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        Outcome {
            problem: Some(format!("panic: {}", text.unwrap_or_default())),
            ..Outcome::default()
        }
    })
}
