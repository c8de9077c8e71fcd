//! One seed of a whole replica set: members with their clients, what happens to them, and whether
//! they kept what they promised.

pub mod chaos;
mod elections;
pub mod history;
mod joined;
pub mod judge;
pub mod lists;
mod moving;
pub mod observer;
mod operator;
mod scenes;
pub mod session;
pub mod stream;
mod watcher;
pub mod workload;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use pinion_runtime::sim::{DiskFaults, NodeId, Sim, SimOptions};
use pinion_runtime::{Duration, Rng};
use pinion_service::node_info::ClusterRole;

use crate::fault::Fault;
use crate::members::{Member, PORT, SetKind, SetPlan, add_member, set_config};
use crate::seed::Outcome;
use chaos::Happening;
use judge::{Order, Orders};
use observer::Sightings;
use stream::Shown;
use workload::Shared;

const SET: &str = "sim";
const DB: &str = "sim";
/// Shortest and longest time between two questions to a member.
const OBSERVED_MS: (u64, u64) = (10, 120);
pub const PRIMARY: i32 = 1;
/// Virtual time that a set has to begin.
const BEGINNING: Duration = Duration::from_secs(120);
/// Virtual time after the last fault within which a primary takes writes and all members agree.
const HEALING: Duration = Duration::from_secs(240);
/// Longest time between two happenings.
const BETWEEN_MS: u64 = 6_000;
const CALM_MS: u64 = 15_000;
/// The part of the runs in which nothing happens but to leaders.
const OF_LEADERS: f64 = 0.15;

struct Run {
    sim: Sim,
    members: Vec<Member>,
    shared: Rc<Shared>,
    orders: Rc<Orders>,
    sightings: Rc<RefCell<Sightings>>,
    /// What each change stream has shown.
    streams: Vec<Rc<RefCell<Shown>>>,
    rng: Rng,
    outcome: Outcome,
    /// A node that is no member at the beginning.
    spare: Option<usize>,
    /// The node that waits to be added.
    outside: Option<usize>,
    /// Members whose disks were replaced, with how often each had synced before.
    replaced: Vec<(usize, u64)>,
}

/// Runs one seed.
pub fn run_set_seed(seed: u64, fault: Fault, print_trace: bool) -> Outcome {
    crate::log::take_warnings();
    let mut options = SimOptions::random(seed);
    options.print_trace = print_trace;
    let sim = Sim::new(seed, options);
    let mut run = Run::new(sim, fault);
    let result = run.run();
    run.shared.stopped.set(true);
    let problem = run.shared.history.borrow().problem().map(String::from);
    let problem = problem.or(result.err());
    let problem = crate::log::with_warnings(problem);
    Outcome {
        problem,
        ..run.totals()
    }
}

impl Run {
    fn new(sim: Sim, fault: Fault) -> Run {
        let mut rng = sim.random_stream("campaign");
        let count = [3, 3, 3, 4, 5][rng.below(5) as usize];
        let spare = rng.chance(0.4).then_some(count);
        let kind = SetKind::draw(&mut rng, &mut sim.random_stream("memory"));
        let plan = SetPlan {
            name: SET,
            role: ClusterRole::None,
            kind: &kind,
            fault,
        };
        let members: Vec<Member> = (0..count + usize::from(spare.is_some()))
            .map(|at| add_member(&sim, &plan, at, &mut rng, || {}))
            .collect();
        let addresses = members
            .iter()
            .map(|member| SocketAddr::new(sim.node_ip(member.node), PORT));
        let shared = Rc::new(Shared {
            alone: Cell::new([0.0, 0.1, 0.3][rng.below(3) as usize]),
            // With a key file only members may prepare.
            may_prepare: kind.auth.is_none(),
            prepared: match kind.auth {
                None => [0.0, 0.1, 0.4][rng.below(3) as usize],
                Some(_) => 0.0,
            },
            pause_ms: [20, 100, 400][rng.below(3) as usize],
            ..Shared::new(addresses.collect(), DB)
        });
        let orders: Rc<Orders> = Rc::default();
        let sightings: Rc<RefCell<Sightings>> = Rc::default();
        let config = set_config(SET, ClusterRole::None, &shared.members[..count], &mut rng);
        add_clients(&sim, &shared, &mut rng);
        let streams = add_streams(&sim, &shared, &mut rng);
        let mut outcome = Outcome::default();
        outcome.count("sets with a key file", kind.auth.is_some().into());
        outcome.count("sets with little memory", kind.cache_bytes.is_some().into());
        outcome.count(
            "sets that copy files",
            kind.copied_partitions.is_some().into(),
        );
        for (at, member) in members.iter().enumerate() {
            let (shared, sightings, handle) = (shared.clone(), sightings.clone(), sim.handle());
            let place = (at, member.node);
            let rng = sim.random_stream(&format!("observer {at}"));
            sim.add_node(&format!("observer-{at}"), 1, move |_| {
                observer::observe(
                    shared.clone(),
                    sightings.clone(),
                    handle.clone(),
                    place,
                    (rng.clone(), OBSERVED_MS),
                )
            });
        }
        {
            let (shared, orders) = (shared.clone(), orders.clone());
            sim.add_node("judge", 1, move |_| {
                judge::judge(shared.clone(), orders.clone(), config.clone())
            });
        }
        Run {
            sim,
            members,
            shared,
            orders,
            sightings,
            streams,
            rng,
            outcome,
            spare,
            outside: spare,
            replaced: Vec::new(),
        }
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.members.iter().map(|member| member.node).collect()
    }

    fn run(&mut self) -> Result<(), String> {
        self.begin()?;
        self.shared.paused.set(false);
        let happenings = self.rng.between(3, 10);
        let of_leaders = self.rng.chance(OF_LEADERS);
        self.outcome
            .count("runs whose leaders die", of_leaders.into());
        self.pass_some(5_000)?;
        for _ in 0..happenings {
            let primary = self.primary();
            let happening = match of_leaders {
                true => Happening::draw_of_leaders(&mut self.rng, primary),
                false => Happening::draw(&mut self.rng, self.members.len(), primary),
            };
            self.outcome.count(happening.name(), 1);
            tracing::info!(?happening, "happens");
            self.let_happen(&happening)?;
            let most = [500, BETWEEN_MS, CALM_MS][self.rng.below(3) as usize];
            self.pass_some(most)?;
            if self.rng.chance(0.6) {
                self.heal();
                self.pass_some(most)?;
            }
        }
        self.end()
    }

    /// The member that was last seen to be primary.
    fn primary(&self) -> usize {
        let sightings = self.sightings.borrow();
        let members = 0..self.members.len();
        let mut primaries = members.filter(|member| sightings.seen(*member).state == PRIMARY);
        primaries.next().unwrap_or(0)
    }

    /// Waits until the set is initiated and every member has its data.
    fn begin(&mut self) -> Result<(), String> {
        let deadline = self.sim.now() + BEGINNING;
        while !self.orders.started.get() {
            if self.sim.now() >= deadline {
                return Err("the set does not begin".into());
            }
            self.pass(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Lets time pass, and starts members whose time has come.
    fn pass(&mut self, duration: Duration) -> Result<(), String> {
        let end = self.sim.now() + duration;
        while self.sim.now() < end {
            let slice = Duration::from_millis(20).min(end.saturating_since(self.sim.now()));
            self.sim.run_for(slice.max(Duration::from_micros(1)));
            self.look_after_members()?;
            if let Some(problem) = self.shared.history.borrow().problem() {
                return Err(problem.to_owned());
            }
        }
        Ok(())
    }

    /// Lets some time pass, up to this.
    fn pass_some(&mut self, most_ms: u64) -> Result<(), String> {
        let lasts = self.rng.below(most_ms + 1);
        self.pass(Duration::from_millis(lasts))
    }

    /// Notices members that have died, starts those whose time has come, and finds those that have
    /// stopped by themselves.
    fn look_after_members(&mut self) -> Result<(), String> {
        for (at, member) in self.members.iter_mut().enumerate() {
            let looked = member.look_after(&self.sim, &mut self.rng);
            looked.map_err(|ended| format!("member {at} has stopped by itself: {ended:?}"))?;
        }
        Ok(())
    }

    fn let_happen(&mut self, happening: &Happening) -> Result<(), String> {
        let nodes = self.nodes();
        chaos::disturb(&self.sim, &nodes, happening, &mut self.rng);
        if let Some((member, command)) = chaos::command(happening, &mut self.rng) {
            let order = Order::Command(member, command);
            self.orders.given.borrow_mut().push_back(order);
        }
        match happening {
            Happening::Crash { .. } => chaos::crash(&self.sim, &nodes, happening),
            Happening::Shutdown(member) => self.members[*member].terminate(&self.sim),
            Happening::Strand(primary) => self.strand(*primary)?,
            Happening::TornElection(primary) => self.tear_election(*primary)?,
            Happening::Blackout(primary) => self.black_out(*primary)?,
            Happening::ForgottenVotes(primary) => self.forget_votes(*primary)?,
            Happening::CommitOverTerms(primary) => self.commit_over_terms(*primary)?,
            Happening::Reconfig => self.reconfigure(),
            Happening::Replace(member) => self.replace(*member)?,
            _ => {}
        }
        Ok(())
    }

    /// Takes all faults away; what is down comes back in its time.
    fn heal(&self) {
        self.sim.heal();
        for member in &self.members {
            self.sim.set_disk_faults(member.node, DiskFaults::default());
            self.sim.cancel_crashes(member.node);
        }
    }

    /// After the last fault: clients end, a primary takes writes, and all members come to the same.
    fn end(&mut self) -> Result<(), String> {
        self.heal();
        // Clients that write meanwhile show that the set is there again.
        self.pass_some(BETWEEN_MS)?;
        self.shared.paused.set(true);
        let deadline = self.sim.now() + HEALING;
        while self.shared.active.get() > 0 {
            if self.sim.now() >= deadline {
                return Err("the clients do not end".into());
            }
            self.pass(Duration::from_millis(100))?;
        }
        self.orders.compares.set(true);
        let deadline = self.sim.now() + HEALING;
        while !self.orders.agreed.get() {
            if self.sim.now() >= deadline {
                let why = self.orders.disagreement.borrow();
                return Err(format!("after {HEALING:?} without faults: {why}"));
            }
            self.pass(Duration::from_millis(100))?;
        }
        self.outcome.count("sets compared", 1);
        let deadline = self.sim.now() + HEALING;
        while let Some(why) = self.stream_behind() {
            if self.sim.now() >= deadline {
                return Err(format!("a change stream has not shown everything: {why}"));
            }
            self.pass(Duration::from_millis(100))?;
        }
        self.count_syncs();
        Ok(())
    }

    /// What a change stream has not shown of what all members hold.
    fn stream_behind(&self) -> Option<String> {
        let held = self.orders.held.borrow();
        let mut streams = self.streams.iter();
        streams.find_map(|shown| shown.borrow().difference(&held))
    }

    /// What the seed went through.
    fn totals(self) -> Outcome {
        let mut outcome = self.outcome;
        outcome.trace_hash = self.sim.trace_hash();
        let stats = self.sim.stats();
        for (event, number) in &stats.crashes_by_event {
            outcome.count(&format!("crash at {event}"), *number);
        }
        for member in &self.members {
            for (event, number) in self.sim.event_counts(member.node) {
                outcome.count(&format!("event {event}"), number);
            }
        }
        for (name, number) in [
            ("power cuts", stats.power_cuts),
            ("kills", stats.kills),
            ("terms with a primary", self.sightings.borrow().terms()),
        ] {
            outcome.count(name, number);
        }
        for (name, number) in &self.shared.history.borrow().counts {
            outcome.count(name, *number);
        }
        outcome
    }
}

fn add_clients(sim: &Sim, shared: &Rc<Shared>, rng: &mut Rng) {
    for number in 0..rng.between(2, 4) as usize {
        let (shared, rng) = (
            shared.clone(),
            sim.random_stream(&format!("writer {number}")),
        );
        sim.add_node(&format!("writer-{number}"), 1, move |_| {
            workload::work(shared.clone(), number, rng.clone())
        });
    }
    for number in 0..rng.between(2, 4) as usize {
        let (shared, rng) = (
            shared.clone(),
            sim.random_stream(&format!("lists {number}")),
        );
        sim.add_node(&format!("lists-{number}"), 1, move |_| {
            lists::change(shared.clone(), number, rng.clone())
        });
    }
    if rng.chance(0.5) {
        let (own, rng) = (shared.clone(), sim.random_stream("mover"));
        sim.add_node("mover", 1, move |_| {
            moving::move_collections(own.clone(), rng.clone())
        });
        for at in 0..shared.members.len() {
            let (own, rng) = (shared.clone(), sim.random_stream(&format!("reader {at}")));
            sim.add_node(&format!("reader-{at}"), 1, move |_| {
                moving::read(own.clone(), at, rng.clone())
            });
        }
        if shared.may_prepare {
            let (own, rng) = (shared.clone(), sim.random_stream("holder"));
            sim.add_node("holder", 1, move |_| joined::hold(own.clone(), rng.clone()));
            for at in 0..shared.members.len() {
                let (own, rng) = (shared.clone(), sim.random_stream(&format!("joiner {at}")));
                sim.add_node(&format!("joiner-{at}"), 1, move |_| {
                    joined::read(own.clone(), at, rng.clone())
                });
            }
        }
    }
    for at in 0..shared.members.len() {
        let (own, rng) = (shared.clone(), sim.random_stream(&format!("watcher {at}")));
        sim.add_node(&format!("watcher-{at}"), 1, move |_| {
            watcher::watch(own.clone(), at, rng.clone())
        });
    }
    if rng.chance(0.7) {
        let (shared, rng) = (shared.clone(), sim.random_stream("catalog"));
        sim.add_node("catalog", 1, move |_| {
            workload::change_catalog(shared.clone(), rng.clone())
        });
    }
}

/// Clients of change streams, and what each has shown.
fn add_streams(sim: &Sim, shared: &Rc<Shared>, rng: &mut Rng) -> Vec<Rc<RefCell<Shown>>> {
    let count = rng.between(1, 2);
    let streams = (0..count).map(|number| {
        let shown: Rc<RefCell<Shown>> = Rc::default();
        let (shared, own) = (shared.clone(), shown.clone());
        let rng = sim.random_stream(&format!("stream {number}"));
        sim.add_node(&format!("stream-{number}"), 1, move |_| {
            stream::watch(shared.clone(), own.clone(), rng.clone())
        });
        shown
    });
    streams.collect()
}
