//! One seed: a node with its clients, crashes wherever the seed says, and a check after each; at
//! the end flipped bits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use pinion_node::node::{NodeConfig, run_core};
use pinion_runtime::sim::{Death, DiskFaults, NodeId, Sim, SimOptions};
use pinion_runtime::{Duration, Rng};
use pinion_storage::StorageOptions;

use crate::check::{Checks, check};
use crate::fault::Fault;
use crate::oracle::Oracle;
use crate::workload::{Shared, change_indexes, end_builds, watch, work};

const PORT: u16 = 27_017;
const DATA: &str = "/data";
pub const MIN_CRASHES: u64 = 3;
pub const MIN_JOURNALED: u64 = 500;
/// A life that is not interrupted ends after so much virtual time.
const LIFE: Duration = Duration::from_millis(700);
/// Virtual time after which a node that neither serves nor refuses, or does not end, is stuck.
const PATIENCE: Duration = Duration::from_secs(600);
/// Lives of one seed at most; a seed that has not done its work by then fails.
const MAX_LIVES: u64 = 40;
/// Bits flipped one after the other, with a life after each, until one is noticed.
const MAX_FLIPS: u64 = 4;
/// A crash is placed at most so long behind its event.
const MAX_CRASH_DELAY_US: u64 = 4_000;

/// Events of the node at which crashes are placed, with how many occurrences may pass before.
const CRASH_EVENTS: &[(&str, u64)] = &[
    ("flush", 200),
    ("checkpoint begin", 3),
    ("checkpoint spills", 3),
    ("spilled changes merged", 2),
    ("part of a merge published", 20),
    ("checkpoint install", 3),
    ("superblock", 6),
    ("superblock copy", 8),
    ("checkpoint end", 3),
    ("segment", 12),
    ("ddl", 6),
    ("index build scanned", 12),
    ("part of a tree loaded", 6),
    ("index build loaded", 12),
    ("loaded tree installed", 6),
    ("index build drained", 6),
    ("unit placed", 60),
];
/// Events of an opening node.
const OPEN_EVENTS: &[(&str, u64)] = &[
    ("recovery begin", 1),
    ("recovery cut", 1),
    ("recovery replay", 1),
    ("recovery end", 1),
    ("superblock", 2),
    ("superblock copy", 2),
];
/// Where bits are flipped; rings twice as often, because there damage is easily taken for a hole.
const FLIP_PLACES: [&str; 5] = ["ring-", "ring-", "partition-", "superblock", "manifest-"];

/// Files on which the disk fails.
const FAIL_PLACES: [&str; 3] = ["ring-", "partition-", ""];

/// What happened in one seed.
#[derive(Default)]
pub struct Outcome {
    /// Why the seed failed.
    pub problem: Option<String>,
    pub trace_hash: u64,
    pub counts: BTreeMap<String, u64>,
    /// The time of people that it took; only shown.
    pub took: Duration,
}

impl Outcome {
    pub fn count(&mut self, name: &str, number: u64) {
        *self.counts.entry(name.to_string()).or_default() += number;
    }
}

/// A running seed.
struct Run {
    sim: Sim,
    node: NodeId,
    shared: Rc<Shared>,
    /// What the node's main function returned as its error.
    ended: Rc<RefCell<Option<String>>>,
    checks: Rc<Checks>,
    rng: Rng,
    outcome: Outcome,
    crashes: u64,
}

/// Runs one seed.
pub fn run_seed(seed: u64, fault: Fault, print_trace: bool) -> Outcome {
    let mut options = SimOptions::random(seed);
    options.print_trace = print_trace;
    let sim = Sim::new(seed, options);
    let mut rng = sim.random_stream("campaign");
    let partitions = rng.between(1, 8) as u16;
    let workers = rng.between(3, 6) as usize;
    let ended: Rc<RefCell<Option<String>>> = Rc::default();
    let config = Arc::new(config(partitions, fault));
    let node = {
        let ended = ended.clone();
        let cores = rng.between(1, 4) as usize;
        sim.add_node("node", cores, move |core| {
            let (config, ended) = (config.clone(), ended.clone());
            async move {
                if let Err(why) = run_core(core, config).await {
                    ended.borrow_mut().get_or_insert(why.to_string());
                }
            }
        })
    };
    let shared = Rc::new(Shared {
        address: Cell::new(SocketAddr::new(sim.node_ip(node), PORT)),
        oracle: RefCell::new(Oracle::new(workers)),
        paused: Cell::new(true),
        active: Cell::new(0),
        stopped: Cell::new(false),
        with_ddl: rng.chance(0.5),
        damaged: RefCell::default(),
        failing: Cell::new(false),
        reported: RefCell::default(),
    });
    let checks: Rc<Checks> = Rc::default();
    add_clients(&sim, &shared, &checks, workers);
    let mut run = Run {
        sim,
        node,
        shared,
        ended,
        checks,
        rng,
        outcome: Outcome::default(),
        crashes: 0,
    };
    let result = run.lives().and_then(|()| run.damage());
    let Run {
        sim,
        shared,
        mut outcome,
        ..
    } = run;
    shared.stopped.set(true);
    outcome.problem = result
        .err()
        .or_else(|| shared.oracle.borrow().problem().map(String::from));
    outcome.trace_hash = sim.trace_hash();
    totals(&sim, node, &shared.oracle.borrow(), &mut outcome);
    outcome
}

fn config(partitions: u16, fault: Fault) -> NodeConfig {
    let mut storage = StorageOptions::hostile(DATA);
    storage.partitions = Some(partitions);
    if let Fault::Storage(fault) = fault {
        storage.planted_fault = fault;
    }
    NodeConfig::for_simulation(storage, PORT, fault.of_exec())
}

fn add_clients(sim: &Sim, shared: &Rc<Shared>, checks: &Rc<Checks>, workers: usize) {
    for number in 0..workers {
        let (shared, rng) = (
            shared.clone(),
            sim.random_stream(&format!("worker {number}")),
        );
        sim.add_node(&format!("worker-{number}"), 1, move |_| {
            work(shared.clone(), number, rng.clone())
        });
    }
    let (own, rng) = (shared.clone(), sim.random_stream("watcher"));
    sim.add_node("watcher", 1, move |_| watch(own.clone(), rng.clone()));
    if shared.with_ddl {
        let (own, rng) = (shared.clone(), sim.random_stream("ddl"));
        sim.add_node("ddl", 1, move |_| change_indexes(own.clone(), rng.clone()));
        let (own, rng) = (shared.clone(), sim.random_stream("ended builds"));
        sim.add_node("killer", 1, move |_| end_builds(own.clone(), rng.clone()));
    }
    let (own, checks) = (shared.clone(), checks.clone());
    sim.add_node("checker", 1, move |_| check(own.clone(), checks.clone()));
}

impl Run {
    /// Lives that crash or end in order, until there are enough crashes and journaled writes.
    fn lives(&mut self) -> Result<(), String> {
        self.open()?;
        for _ in 0..MAX_LIVES {
            self.live()?;
            self.start();
            self.open()?;
            let journaled = self.shared.oracle.borrow().journaled;
            if self.crashes >= MIN_CRASHES && journaled >= MIN_JOURNALED {
                return Ok(());
            }
        }
        Err(format!(
            "{MAX_LIVES} lives were not enough: {} crashes, {} journaled writes",
            self.crashes,
            self.shared.oracle.borrow().journaled
        ))
    }

    /// More lives, with a bit flipped before each. The node may refuse, or report the damage, or
    /// nothing that was promised is lost; what it does give must be right.
    fn damage(&mut self) -> Result<(), String> {
        for _ in 0..MAX_FLIPS {
            if !self.live()? {
                break;
            }
            let place = FLIP_PLACES[self.rng.below(FLIP_PLACES.len() as u64) as usize];
            let Some((file, _, _)) = self.sim.flip_random_bit(self.node, place) else {
                continue;
            };
            self.outcome.count("bits flipped", 1);
            // A lost end of the log may have been in any ring: the report names the likeliest.
            let name = if place == "ring-" {
                place.to_owned()
            } else {
                file
            };
            self.shared.damaged.borrow_mut().push(name);
            self.start();
            if !self.open()? {
                break;
            }
            self.outcome.count("damage harmless", 1);
        }
        Ok(())
    }

    /// Starts the node again, with any number of cores, and may place a crash inside of its
    /// opening.
    fn start(&mut self) {
        if self.rng.chance(0.3) {
            let (event, most) = OPEN_EVENTS[self.rng.below(OPEN_EVENTS.len() as u64) as usize];
            self.place_crash(event, most);
        }
        let cores = self.rng.between(1, 4) as usize;
        self.sim.restart(self.node, cores);
    }

    fn place_crash(&mut self, event: &str, most: u64) {
        let nth = self.rng.between(1, most);
        // Right at the event, or a little or a while behind it.
        let most_delay = [0, 0, 50, MAX_CRASH_DELAY_US][self.rng.below(4) as usize];
        let after = Duration::from_micros(self.rng.below(most_delay + 1));
        let death = self.death();
        self.sim.crash_after(self.node, event, nth, after, death);
    }

    /// Waits until the checker has found everything right, restarting the node where a crash falls
    /// into its opening. False when the node refuses its directory, or reports damage, as it
    /// should.
    fn open(&mut self) -> Result<bool, String> {
        self.checks.order();
        let deadline = self.sim.now() + PATIENCE;
        loop {
            let (sim, checks) = (self.sim.handle(), self.checks.clone());
            let stuck = self.sim.run_until(|| {
                checks.is_done()
                    || !sim.is_running(self.node)
                    || self.is_over()
                    || sim.now() >= deadline
            });
            stuck.map_err(|stuck| format!("the simulation is stuck: {stuck:?}"))?;
            if self.has_ended()? {
                return Ok(false);
            }
            if checks.is_done() {
                self.sim.cancel_crashes(self.node);
                return Ok(true);
            }
            if sim.now() >= deadline {
                return Err("the node neither serves nor refuses".into());
            }
            self.crashes += 1;
            let cores = self.rng.between(1, 4) as usize;
            self.sim.restart(self.node, cores);
        }
    }

    /// Whether waiting for anything else is pointless.
    fn is_over(&self) -> bool {
        self.ended.borrow().is_some()
            || self.shared.reported.borrow().is_some()
            || self.shared.oracle.borrow().problem().is_some()
    }

    /// True when the node has refused its directory, has stopped, or has reported damage, as it
    /// should.
    fn has_ended(&mut self) -> Result<bool, String> {
        let ended = self.ended.borrow().clone();
        if let Some(why) = &ended {
            self.shared.report(why);
        }
        if let Some(problem) = self.shared.oracle.borrow().problem() {
            return Err(problem.to_string());
        }
        let noticed = self.shared.reported.borrow().is_some();
        if noticed {
            let how = match ended {
                Some(_) if self.checks.is_done() => "damage stopped the node",
                Some(_) => "damage refused",
                None => "damage reported",
            };
            self.outcome.count(how, 1);
        }
        Ok(noticed)
    }

    /// Lets the clients work until the crash, or until the node has shut down in order. False when
    /// the node has noticed damage.
    fn live(&mut self) -> Result<bool, String> {
        self.sim.cancel_crashes(self.node);
        let in_order = self.rng.chance(0.1);
        let mut lasts = LIFE;
        if !in_order && self.rng.chance(0.75) {
            let (event, most) = CRASH_EVENTS[self.rng.below(CRASH_EVENTS.len() as u64) as usize];
            self.place_crash(event, most);
        } else {
            lasts = Duration::from_millis(self.rng.between(1, LIFE.as_millis() as u64));
        }
        let death = self.death();
        if self.rng.chance(0.1) {
            self.let_disk_fail();
        }
        self.shared.paused.set(false);
        let end = self.sim.now() + lasts;
        let (sim, node) = (&self.sim, self.node);
        let _ = sim.run_until(|| !sim.is_running(node) || sim.now() >= end || self.is_over());
        if in_order && sim.is_running(node) {
            sim.terminate(node);
            let deadline = sim.now() + PATIENCE;
            let _ = sim.run_until(|| !sim.is_running(node) || sim.now() >= deadline);
            if sim.is_running(node) {
                return Err("the node does not shut down".into());
            }
            self.stop_clients()?;
            if self.ended.borrow().is_none() {
                self.shared.oracle.borrow_mut().closed();
                self.outcome.count("shutdowns", 1);
            }
        } else {
            if sim.is_running(node) {
                sim.crash(node, death);
            }
            self.crashes += 1;
            self.stop_clients()?;
        }
        if self.shared.failing.replace(false) {
            self.sim.set_disk_faults(self.node, DiskFaults::default());
            if self.ended.borrow_mut().take().is_some() {
                self.outcome
                    .count("failures of the disk stopped the node", 1);
            }
        }
        Ok(!self.has_ended()?)
    }

    /// From now on an operation on some of the files fails sooner or later.
    fn let_disk_fail(&mut self) {
        let rng = &mut self.rng;
        let mut probability = || [0.0, 0.005][rng.below(2) as usize];
        let faults = DiskFaults {
            read_error: probability(),
            write_error: probability(),
            sync_error: probability(),
            path_contains: Some(FAIL_PLACES[rng.below(3) as usize].to_owned()),
            ..DiskFaults::default()
        };
        self.sim.set_disk_faults(self.node, faults);
        self.shared.failing.set(true);
    }

    fn death(&mut self) -> Death {
        if self.rng.chance(0.8) {
            Death::PowerCut
        } else {
            Death::Kill
        }
    }

    fn stop_clients(&self) -> Result<(), String> {
        self.shared.paused.set(true);
        let (sim, shared) = (&self.sim, &self.shared);
        sim.run_until(|| shared.active.get() == 0)
            .map_err(|stuck| format!("clients do not end: {stuck:?}"))
    }
}

fn totals(sim: &Sim, node: NodeId, oracle: &Oracle, outcome: &mut Outcome) {
    let stats = sim.stats();
    for (event, number) in &stats.crashes_by_event {
        outcome.count(&format!("crash at {event}"), *number);
    }
    for (event, number) in sim.event_counts(node) {
        outcome.count(&format!("event {event}"), number);
    }
    for (name, number) in [
        ("power cuts", stats.power_cuts),
        ("kills", stats.kills),
        ("torn blocks", stats.torn_blocks),
        ("lost blocks", stats.lost_blocks),
        ("journaled writes acknowledged", oracle.journaled),
        ("writes acknowledged", oracle.acknowledged),
        ("catalog changes acknowledged", oracle.catalog_changes),
        ("index builds ended", oracle.builds_ended),
        ("unknown outcomes", oracle.unknown_outcomes),
        ("duplicates refused", oracle.duplicates_refused),
        ("reads checked", oracle.reads_checked),
        ("snapshots checked", oracle.snapshots_checked),
        ("renewed reads checked", oracle.renewed_reads_checked),
        ("indexes checked", oracle.indexes_checked),
        (
            "statements that move documents",
            oracle.statements_that_move,
        ),
    ] {
        outcome.count(name, number);
    }
}
