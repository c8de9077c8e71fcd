//! Scenes of a run: faults that make something rare happen only together, in this order.

use std::cell::Cell;
use std::rc::Rc;

use pinion_runtime::Duration;
use pinion_runtime::sim::{Death, DiskFaults};

use super::chaos::Happening;
use super::judge::Order;
use super::operator::Change;
use super::{PRIMARY, Run, chaos};

/// How long a scene waits for what it needs.
const PATIENCE: Duration = Duration::from_secs(30);
/// A primary that is cut off has noticed by then, and another one was elected.
const MOST_STRANDED_MS: u64 = 20_000;
/// When the first come back in a blackout, and within which time it begins.
const DARK: Duration = Duration::from_millis(2_500);
const DARK_WITHIN_MS: u64 = 2_000;
const DARK_WITHIN: Duration = Duration::from_millis(DARK_WITHIN_MS);
/// How much slower disks are before a blackout at most.
const SLOWEST_BEFORE_DARK: u64 = 4_000;
/// How much slower disks are in a torn election.
const TORN_SLOWNESS: u64 = 60;
/// What a member goes through when it falls.
const TEARS: [&str; 5] = [
    "term begun",
    "term begun",
    "term begun",
    "elected",
    "vote stored",
];
/// How many of the members that are replaced end in order while they copy.
const ENDED_COPYING: f64 = 0.5;
/// How long a new primary lives in one at most.
const MOST_TORN_US: u64 = 120_000;

impl Run {
    /// A primary is cut off from the others, and its clients ask for no majority: what they write
    /// before it notices, or before they do, is rolled back.
    pub(super) fn strand(&mut self, primary: usize) -> Result<(), String> {
        let usual = self.shared.alone.replace(1.0);
        self.pass_some(500)?;
        let cut = Happening::Cut {
            apart: vec![primary],
            one_way: false,
        };
        chaos::disturb(&self.sim, &self.nodes(), &cut, &mut self.rng);
        self.pass_some(MOST_STRANDED_MS)?;
        self.shared.alone.set(usual);
        self.heal();
        Ok(())
    }

    /// The primary dies. When another one is elected and has hardly started, all lose power, on
    /// disks so slow that little of its term is on any of them. Then all come back, and elect
    /// again.
    pub(super) fn tear_election(&mut self, primary: usize) -> Result<(), String> {
        let nodes = self.nodes();
        let slow = DiskFaults {
            slowness: self.rng.between(5, TORN_SLOWNESS),
            ..DiskFaults::default()
        };
        // Either one falls where that is placed, or all do when somebody has seen the new primary.
        let when_seen = self.rng.chance(0.5);
        let event = TEARS[self.rng.below(TEARS.len() as u64) as usize];
        for (at, node) in nodes.iter().enumerate() {
            self.members[at]
                .restart_at
                .get_or_insert(self.sim.now() + PATIENCE * 2);
            if at == primary {
                self.sim.crash(*node, Death::PowerCut);
            } else {
                self.sim.set_disk_faults(*node, slow.clone());
                let after = Duration::from_micros(self.rng.below(MOST_TORN_US + 1));
                if !when_seen {
                    let death = Death::PowerCut;
                    self.sim.crash_after(*node, event, 1, after, death);
                }
            }
        }
        let others: Vec<usize> = (0..nodes.len())
            .filter(|at| *at != primary && self.sim.is_running(nodes[*at]))
            .collect();
        let deadline = self.sim.now() + PATIENCE;
        let known = self.sightings.borrow().terms();
        let has_fallen = |run: &Run| {
            let is_seen = when_seen && run.sightings.borrow().terms() > known;
            is_seen || others.iter().any(|at| !run.sim.is_running(nodes[*at]))
        };
        while !has_fallen(self) && self.sim.now() < deadline {
            self.pass(Duration::from_millis(1))?;
        }
        if has_fallen(self) {
            self.outcome.count("elections torn", 1);
            nodes
                .iter()
                .for_each(|node| self.sim.crash(*node, Death::PowerCut));
        }
        self.heal();
        for member in &mut self.members {
            let wait = Duration::from_millis(self.rng.below(50));
            member.restart_at = Some(self.sim.now() + wait);
        }
        self.pass_some(15_000)
    }

    /// All lose power at once while clients write. What a majority has acknowledged is on the disks
    /// of those that come back first, however slow these are.
    pub(super) fn black_out(&mut self, primary: usize) -> Result<(), String> {
        let nodes = self.nodes();
        // Now and then nothing that is written in the meantime comes to a disk.
        let most = [100, SLOWEST_BEFORE_DARK][self.rng.below(2) as usize];
        let slow = DiskFaults {
            slowness: self.rng.between(most / 20, most),
            ..DiskFaults::default()
        };
        for (at, node) in nodes.iter().enumerate().filter(|(at, _)| *at != primary) {
            self.sim.set_disk_faults(*node, slow.clone());
            let wait = Duration::from_millis(self.rng.below(500));
            self.members[at]
                .restart_at
                .get_or_insert(self.sim.now() + DARK + wait);
        }
        let last = self.sim.now() + DARK + Duration::from_secs(15);
        self.members[primary].restart_at.get_or_insert(last);
        // With a write that was acknowledged at this moment.
        let acknowledged = |run: &Run| {
            let history = run.shared.history.borrow();
            history.counts.get(ACKNOWLEDGED).copied()
        };
        self.pass_some(DARK_WITHIN_MS / 2)?;
        let (before, latest) = (acknowledged(self), self.sim.now() + DARK_WITHIN / 2);
        while acknowledged(self) == before && self.sim.now() < latest {
            self.pass(Duration::from_millis(1))?;
        }
        nodes
            .iter()
            .for_each(|node| self.sim.crash(*node, Death::PowerCut));
        self.heal();
        self.pass_some(15_000)
    }

    /// Adds the member that is outside, or changes something else.
    pub(super) fn reconfigure(&mut self) {
        let change = match self.outside.take() {
            Some(member) => Change::Add(member),
            None => Change::Priority(self.rng.next_u64()),
        };
        self.order(change);
    }

    fn order(&mut self, change: Change) -> Rc<Cell<Option<bool>>> {
        if let Change::Add(member) = change
            && self.rng.chance(0.6)
        {
            // So that clients write while it copies.
            let slow = Happening::SlowLinks(member);
            chaos::disturb(&self.sim, &self.nodes(), &slow, &mut self.rng);
        }
        let done: Rc<Cell<Option<bool>>> = Rc::default();
        self.orders.given.borrow_mut().push_back(Order::Reconfig {
            change,
            done: done.clone(),
        });
        done
    }

    /// Takes a member out of the set and its disk away. When a majority has the configuration
    /// without it, no member counts upon what it had, its vote neither.
    pub(super) fn replace(&mut self, member: usize) -> Result<(), String> {
        if self.outside.is_some() || self.sightings.borrow().seen(member).state == PRIMARY {
            return Ok(());
        }
        let done = self.order(Change::Remove(member));
        while done.get().is_none() {
            self.pass(Duration::from_millis(100))?;
        }
        if done.get() == Some(true) {
            let node = self.members[member].node;
            self.sim.crash(node, Death::PowerCut);
            self.sim.cancel_crashes(node);
            self.sim.wipe_disk(node);
            let before = self.sim.event_count(node, SYNCED);
            self.replaced.push((member, before));
            let wait = chaos::down_time(&mut self.rng);
            self.members[member].restart_at = Some(self.sim.now() + wait);
            self.members[member].ended.take();
            self.order(Change::Add(member));
            return self.end_copying(member);
        }
        self.order(Change::Add(member));
        Ok(())
    }

    /// Now and then a member ends in order while it copies another one, mostly right at the
    /// beginning.
    fn end_copying(&mut self, member: usize) -> Result<(), String> {
        // Of a stream of its own: all other draws of a seed stay what they were before this scene.
        let stream = format!("ended while it copies {}", self.replaced.len());
        let mut rng = self.sim.random_stream(&stream);
        if !rng.chance(ENDED_COPYING) {
            return Ok(());
        }
        let node = self.members[member].node;
        let before = self.sim.event_count(node, COPYING);
        let deadline = self.sim.now() + PATIENCE;
        while self.sim.event_count(node, COPYING) == before {
            if self.sim.now() >= deadline {
                return Ok(());
            }
            self.pass(Duration::from_millis(1))?;
        }
        let most_us = [500, 20_000, 1_000_000][rng.below(3) as usize];
        self.pass(Duration::from_micros(rng.below(most_us)))?;
        if self.sim.is_running(node) {
            self.outcome.count("members ended while they copy", 1);
            self.members[member].is_ending = true;
            self.sim.terminate(node);
        }
        Ok(())
    }

    /// Initial syncs of members that were added, and of those whose disks were replaced.
    pub(super) fn count_syncs(&mut self) {
        let synced = |member: usize| self.sim.event_count(self.members[member].node, SYNCED);
        let added = self
            .spare
            .filter(|member| synced(*member) > 0)
            .iter()
            .count();
        let replaced = self.replaced.iter();
        let replaced = replaced.filter(|(member, before)| synced(*member) > *before);
        let replaced = replaced.count();
        self.outcome.count("members added and synced", added as u64);
        self.outcome
            .count("members replaced and synced", replaced as u64);
    }
}

const SYNCED: &str = "initial sync done";
const COPYING: &str = "initial sync attempt";
const ACKNOWLEDGED: &str = "writes acknowledged by a majority";
