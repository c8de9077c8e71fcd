//! One seed of a whole cluster: config servers, shards and routers with their clients, what happens
//! to them, and whether they kept what they promised.

mod build;
mod clients;
mod clocks;
mod cluster;
mod happenings;
mod lives;
mod movers;
mod operator;
mod report;
mod series;
mod strays;
mod strikes;
mod verdict;

use std::net::SocketAddr;
use std::rc::Rc;

use pinion_runtime::sim::{DiskFaults, NodeId, Sim, SimOptions};
use pinion_runtime::{Duration, Rng};

use crate::fault::Fault;
use crate::members::{Member, PORT};
use crate::seed::Outcome;
use build::{SetRun, Sizes};
use cluster::Cluster;
use strikes::Strikes;

pub use report::{KEPT, MUST_HAPPEN, REPORTED};

/// Virtual time that a cluster has to begin.
const BEGINNING: Duration = Duration::from_secs(180);
/// Virtual time after the last fault within which everything is as it should be.
const HEALING: Duration = Duration::from_secs(240);
/// Longest time between two happenings.
const BETWEEN_MS: u64 = 5_000;
/// How often clients go through a minute without faults, and a time without config servers.
const CALM: f64 = 0.25;
const AWAY: f64 = 0.35;
const SHORT: Duration = Duration::from_millis(100);

struct Run {
    sim: Sim,
    fault: Fault,
    cluster: Rc<Cluster>,
    /// The config servers come first.
    sets: Vec<SetRun>,
    routers: Vec<Member>,
    rng: Rng,
    /// Draws when the primary of the config servers is stranded.
    stranding: Rng,
    strikes: Strikes,
    outcome: Outcome,
    /// How often the config servers were asked for their counts.
    asked: usize,
}

/// Runs one seed.
pub fn run_cluster_seed(seed: u64, fault: Fault, print_trace: bool) -> Outcome {
    crate::log::take_warnings();
    let mut options = SimOptions::random(seed);
    options.print_trace = print_trace;
    let mut run = Run::new(Sim::new(seed, options), fault);
    let result = run.run();
    run.cluster
        .shared()
        .chain(run.sets.iter().map(|set| &set.shared))
        .for_each(|shared| shared.stopped.set(true));
    let problem = run.problem().or(result.err());
    let problem = crate::log::with_warnings(problem);
    Outcome {
        problem,
        ..run.totals()
    }
}

impl Run {
    fn new(sim: Sim, fault: Fault) -> Run {
        let mut rng = sim.random_stream("campaign");
        let sizes = Sizes::draw(&mut rng);
        let cluster = build::cluster_of(&sizes, &mut rng);
        let sets = build::add_sets(&sim, &cluster, &mut rng, fault);
        let mut routers = Vec::new();
        for (at, address) in cluster.routers.iter().enumerate() {
            let name = format!("router-{at}");
            let router = build::add_router(&sim, &cluster, &name, &mut rng, fault);
            assert_eq!(sim.node_ip(router.node), address.ip());
            routers.push(router);
        }
        build::add_judges(&sim, &sets);
        build::add_clients(&sim, &cluster, &mut rng);
        let members = sets.iter().flat_map(|set| &set.members).chain(&routers);
        let nodes: Vec<NodeId> = members.map(|member| member.node).collect();
        let differ = build::set_clocks(&sim, &nodes, &mut rng);
        let mut outcome = Outcome::default();
        outcome.count("clusters with clocks that differ", differ.into());
        outcome.count("shards", sizes.shards.len() as u64);
        Run {
            stranding: sim.random_stream("stranding"),
            strikes: Strikes::draw(sim.random_stream("strikes")),
            sim,
            fault,
            cluster,
            sets,
            routers,
            rng,
            outcome,
            asked: 0,
        }
    }

    /// The first thing that was wrong.
    fn problem(&self) -> Option<String> {
        let of_sets = self.sets.iter().map(|set| &set.shared);
        let mut all = self.cluster.shared().chain(of_sets);
        all.find_map(|shared| shared.history.borrow().problem().map(String::from))
    }

    fn run(&mut self) -> Result<(), String> {
        self.begin()?;
        self.cluster.pause(false);
        self.pass_some(BETWEEN_MS)?;
        self.strikes.are_on = true;
        for _ in 0..self.rng.between(3, 8) {
            self.let_happen()?;
            let most = [500, BETWEEN_MS, 2 * BETWEEN_MS][self.rng.below(3) as usize];
            self.pass_some(most)?;
            if self.rng.chance(0.6) {
                self.heal();
                self.pass_some(most)?;
            }
        }
        self.strikes.are_on = false;
        if self.rng.chance(AWAY) {
            self.take_config_away()?;
        }
        self.end()
    }

    /// Waits until all sets are initiated, and the shards added.
    fn begin(&mut self) -> Result<(), String> {
        let deadline = self.sim.now() + BEGINNING;
        while !self.cluster.is_built.get() {
            if self.sim.now() >= deadline {
                let sets = self.sets.iter().filter(|set| !set.orders.started.get());
                let missing: Vec<&str> = sets.map(|set| set.name).collect();
                return Err(format!("the cluster does not begin; not yet: {missing:?}"));
            }
            self.pass(SHORT)?;
        }
        Ok(())
    }

    /// Lets time pass, and starts processes whose time has come.
    fn pass(&mut self, duration: Duration) -> Result<(), String> {
        let end = self.sim.now() + duration;
        while self.sim.now() < end {
            let until = end.min(self.strikes.due().unwrap_or(end));
            let slice = Duration::from_millis(20).min(until.saturating_since(self.sim.now()));
            self.sim.run_for(slice.max(Duration::from_micros(1)));
            self.strike();
            let members = self.sets.iter_mut().flat_map(|set| &mut set.members);
            for (at, member) in members.chain(&mut self.routers).enumerate() {
                let looked = member.look_after(&self.sim, &mut self.rng);
                looked.map_err(|ended| format!("process {at} has stopped by itself: {ended:?}"))?;
            }
            if let Some(problem) = self.problem() {
                return Err(problem);
            }
        }
        Ok(())
    }

    /// Lets some time pass, up to this.
    fn pass_some(&mut self, most_ms: u64) -> Result<(), String> {
        let lasts = self.rng.below(most_ms + 1);
        self.pass(Duration::from_millis(lasts))
    }

    /// Takes all faults away; what is down comes back in its time.
    fn heal(&self) {
        self.sim.heal();
        for member in self.sets.iter().flat_map(|set| &set.members) {
            self.sim.set_disk_faults(member.node, DiskFaults::default());
            self.sim.cancel_crashes(member.node);
        }
    }

    /// Lets time pass until something is so.
    fn wait_until(
        &mut self,
        what: &str,
        is_so: impl Fn(&Run) -> Result<(), String>,
    ) -> Result<(), String> {
        let deadline = self.sim.now() + HEALING;
        while let Err(why) = is_so(self) {
            if self.sim.now() >= deadline {
                return Err(format!("after {HEALING:?} without faults {what}: {why}"));
            }
            self.pass(SHORT)?;
        }
        Ok(())
    }

    /// After the last fault: clients end, all members of each set come to the same, and a new
    /// router shows everything.
    fn end(&mut self) -> Result<(), String> {
        self.heal();
        self.pass_some(BETWEEN_MS)?;
        self.cluster.pause(true);
        self.wait_until("clients do not end", |run| match run.cluster.active() {
            0 => Ok(()),
            active => Err(format!("{active} operations")),
        })?;
        if self.rng.chance(CALM) {
            self.be_calm()?;
        }
        let name = "router-new";
        let mut rng = self.sim.random_stream(name);
        let router = build::add_router(&self.sim, &self.cluster, name, &mut rng, self.fault);
        let address = SocketAddr::new(self.sim.node_ip(router.node), PORT);
        self.routers.push(router);
        self.cluster.verdict.wanted.set(Some(address));
        self.wait_until("there is no verdict", |run| {
            let why = run.cluster.verdict.pending.borrow().clone();
            run.cluster.verdict.done.get().then_some(()).ok_or(why)
        })?;
        for set in &self.sets {
            set.orders.compares.set(true);
        }
        self.wait_until("members differ", |run| {
            let mut apart = run.sets.iter().filter(|set| !set.orders.agreed.get());
            apart.next().map_or(Ok(()), |set| {
                Err(format!(
                    "{}: {}",
                    set.name,
                    set.orders.disagreement.borrow()
                ))
            })
        })?;
        self.outcome.count("clusters compared", 1);
        Ok(())
    }

    /// What the seed went through.
    fn totals(self) -> Outcome {
        let mut outcome = self.outcome;
        outcome.trace_hash = self.sim.trace_hash();
        let stats = self.sim.stats();
        outcome.count("power cuts", stats.power_cuts);
        outcome.count("kills", stats.kills);
        let members = self.sets.iter().flat_map(|set| &set.members);
        for member in members.chain(&self.routers) {
            for (event, number) in self.sim.event_counts(member.node) {
                outcome.count(&format!("event {event}"), number);
            }
        }
        for shared in self.cluster.shared() {
            for (name, number) in &shared.history.borrow().counts {
                outcome.count(name, *number);
            }
        }
        outcome
    }
}
