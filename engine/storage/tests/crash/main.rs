//! Crash tests of the whole engine on the simulated runtime: several cores and partitions,
//! concurrent writers, crashes anywhere, another number of cores at each opening.

mod workload;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, Sim, SimOptions};
use pinion_runtime::{CoreId, Duration, Rng, core_count, core_id, join_all, sleep};
use pinion_storage::{OpenError, PlantedFault, StorageOptions, open, storage};
use workload::{SharedOracle, TestApplier, check_state, client};

/// What one run is made of.
#[derive(Clone)]
struct Plan {
    clients: u64,
    statements: u64,
    options: StorageOptions,
}

/// Shared by the test and the lives of its node.
struct Run {
    plan: Plan,
    oracle: SharedOracle,
    /// Cores whose clients are not done.
    working: Cell<usize>,
    /// The life has done all its statements, or cannot.
    finished: Cell<bool>,
    closed: Cell<bool>,
    /// Only open, recover, check and close.
    check_only: Cell<bool>,
}

async fn life(run: Rc<Run>) {
    let opened = match open(run.plan.options.clone()).await {
        Ok(opened) => opened,
        Err(error) => return refused(&run, &error),
    };
    let applier = TestApplier {
        last: RefCell::new(Timestamp::MIN),
    };
    match opened.recover(applier).await {
        Ok(report) => {
            if std::env::var("PINION_SHOW").is_ok() {
                println!("{report:?}");
            }
            let mut oracle = run.oracle.borrow_mut();
            oracle.replayed += report.entries_replayed;
            oracle.cut += report.entries_cut;
            oracle.torn += report.torn_frames;
            oracle.recoveries += 1;
        }
        Err(error) => return refused(&run, &error),
    }
    check_state(&run.oracle).await;
    if !run.check_only.get() {
        run.working.set(core_count());
        clients_here(&run).await;
        while run.working.get() > 0 {
            sleep(Duration::from_micros(500)).await;
        }
        check_state(&run.oracle).await;
    }
    run.finished.set(true);
    storage().close().await;
    run.closed.set(true);
}

/// This core's part of the clients.
async fn clients_here(run: &Rc<Run>) {
    let here = (0..run.plan.clients)
        .filter(|number| number % core_count() as u64 == u64::from(core_id().0));
    join_all(here.map(|_| client(run.oracle.clone(), run.plan.statements))).await;
    run.working.set(run.working.get() - 1);
}

/// What a core other than 0 does while core 0 opens, recovers, checks and closes.
async fn other_core(run: Rc<Run>) {
    while !run.finished.get() && run.working.get() == 0 {
        sleep(Duration::from_micros(500)).await;
    }
    if run.working.get() > 0 {
        clients_here(&run).await;
    }
    while !run.closed.get() {
        sleep(Duration::from_millis(1)).await;
    }
}

fn refused(run: &Run, error: &OpenError) {
    run.oracle.borrow_mut().refused.push(error.to_string());
    run.finished.set(true);
    run.closed.set(true);
}

/// The sums over many runs.
#[derive(Default, Debug)]
struct Totals {
    acknowledged: u64,
    replayed: u64,
    cut: u64,
    torn: u64,
    snapshots: u64,
    units: u64,
    aborted_units: u64,
    conflicts: u64,
    duplicates: u64,
    recoveries: u64,
    refused: u64,
    events: BTreeMap<&'static str, u64>,
    crashes: BTreeMap<&'static str, u64>,
}

fn plan(rng: &mut Rng) -> Plan {
    let mut options = StorageOptions::hostile("/srv/pinion/data");
    options.partitions = Some(1 + rng.below(6) as u16);
    options.segment_bytes = 4096 * [4, 6, 16, 64][rng.below(4) as usize];
    options.journal_commit_interval = Duration::from_millis([2, 20, 100][rng.below(3) as usize]);
    options.checkpoint_interval = Duration::from_millis([3, 30, 300][rng.below(3) as usize]);
    Plan {
        clients: 1 + rng.below(8),
        statements: 5 + rng.below(40),
        options,
    }
}

/// Runs one seed: lives that crash, one that ends in order, one that only checks.
fn run_seed(seed: u64, fault: PlantedFault, flips: bool, totals: &mut Totals) {
    let mut rng = Rng::from_seed(seed);
    let mut plan = plan(&mut rng);
    plan.options.planted_fault = fault;
    let run = Rc::new(Run {
        plan,
        oracle: SharedOracle::default(),
        working: Cell::new(0),
        finished: Cell::new(false),
        closed: Cell::new(false),
        check_only: Cell::new(false),
    });
    let mut options = SimOptions::random(seed);
    options.time_limit = Duration::from_secs(600);
    let sim = Sim::new(seed, options);
    let main = run.clone();
    let cores = 1 + rng.below(4) as usize;
    let node = sim.add_node("node", cores, move |core| {
        let run = main.clone();
        async move {
            match core {
                CoreId(0) => life(run).await,
                _ => other_core(run).await,
            }
        }
    });
    let places = [
        "flush",
        "segment",
        "superblock",
        "checkpoint begin",
        "checkpoint install",
        "checkpoint end",
        "recovery begin",
        "recovery cut",
        "recovery replay",
        "recovery end",
    ];
    for last in [false, false, false, false, true] {
        if !last {
            let death = if rng.chance(0.8) {
                Death::PowerCut
            } else {
                Death::Kill
            };
            let place = places[rng.below(places.len() as u64) as usize];
            let nth = if place.starts_with("recovery") {
                1
            } else {
                1 + rng.below(if place == "flush" { 60 } else { 6 })
            };
            sim.crash_at(node, place, nth, death);
            let finished = run.clone();
            let limit = sim.now() + Duration::from_micros(20_000 + rng.below(2_000_000));
            let clock = sim.handle();
            sim.run_until(|| {
                finished.finished.get() || !clock.is_running(node) || clock.now() > limit
            })
            .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck:?}"));
            sim.crash(node, death);
            sim.cancel_crashes(node);
        } else {
            run.check_only.set(true);
            sim.run_until_down(node)
                .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck:?}"));
        }
        if flips && rng.chance(0.5) {
            let place = ["ring-", "ring-", "superblock", "manifest-"][rng.below(4) as usize];
            for _ in 0..1 + rng.below(4) {
                sim.flip_random_bit(node, place);
            }
        }
        if !run.oracle.borrow().refused.is_empty() {
            break;
        }
        run.finished.set(false);
        run.closed.set(false);
        run.working.set(0);
        if !last {
            sim.restart(node, 1 + rng.below(4) as usize);
        }
    }
    let oracle = run.oracle.borrow();
    assert!(
        flips || oracle.refused.is_empty(),
        "seed {seed}: {:?}",
        oracle.refused
    );
    totals.acknowledged += oracle.acknowledged;
    totals.replayed += oracle.replayed;
    totals.cut += oracle.cut;
    totals.torn += oracle.torn;
    totals.snapshots += oracle.snapshots;
    totals.units += oracle.units;
    totals.aborted_units += oracle.aborted_units;
    totals.conflicts += oracle.conflicts;
    totals.duplicates += oracle.duplicates;
    totals.recoveries += oracle.recoveries;
    totals.refused += oracle.refused.len() as u64;
    for (event, count) in sim.event_counts(node) {
        *totals.events.entry(event).or_default() += count;
    }
    for (event, count) in sim.stats().crashes_by_event {
        *totals.crashes.entry(event).or_default() += count;
    }
}

/// `PINION_SEEDS=first..last` runs others than the default.
fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("PINION_SEEDS") else {
        return default;
    };
    let (first, last) = text.split_once("..").expect("first..last");
    first.parse().expect("a number")..last.parse().expect("a number")
}

#[test]
fn acknowledged_writes_survive_any_crash() {
    let mut totals = Totals::default();
    for seed in seeds(0..60) {
        run_seed(seed, PlantedFault::None, false, &mut totals);
    }
    println!("{totals:#?}");
    for count in [
        totals.duplicates,
        totals.acknowledged,
        totals.replayed,
        totals.cut,
        totals.torn,
        totals.snapshots,
        totals.units,
        totals.aborted_units,
        totals.conflicts,
    ] {
        assert!(
            count > 0,
            "the runs did not do what they are for: {totals:?}"
        );
    }
}

/// A flipped bit in rings, superblocks or manifests: the node refuses to open and names the file,
/// or nothing that was promised is lost.
#[test]
fn a_flipped_bit_is_refused_or_harmless() {
    let mut totals = Totals::default();
    for seed in seeds(1000..1080) {
        run_seed(seed, PlantedFault::None, true, &mut totals);
    }
    println!("{totals:#?}");
    assert!(
        totals.refused > 0 && totals.recoveries > 0,
        "the runs did not do what they are for: {totals:?}"
    );
}

/// The tests above would notice each of these faults.
#[test]
fn planted_faults_are_found() {
    let faults = PlantedFault::ALL.into_iter();
    for fault in faults.chain(PlantedFault::OF_OPEN_UNITS) {
        let flips = fault == PlantedFault::ChecksumNotChecked;
        let found = (0..200).find(|&seed| {
            let run = std::panic::AssertUnwindSafe(|| {
                run_seed(seed, fault, flips, &mut Totals::default())
            });
            std::panic::catch_unwind(run).is_err()
        });
        println!("{fault:?} is found by seed {found:?}");
        assert!(found.is_some(), "{fault:?} is not found");
    }
}
