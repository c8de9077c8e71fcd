//! What happens to a cluster, beyond what happens within one of its sets.

use pinion_runtime::Duration;
use pinion_runtime::sim::{Death, LinkFaults, NodeId};

use super::Run;
use super::build::SetRun;
use super::verdict::{commands_at_config, learn_series};
use crate::sets::PRIMARY;
use crate::sets::chaos::{self, Happening};
use crate::sets::judge::Order;

/// How long routers and shards get to know each other before the config servers go.
const WARM: Duration = Duration::from_secs(120);
/// How long all is well then: longer than an election is away.
const STEADY: Duration = Duration::from_secs(12);
const ROUNDS: u64 = 3;
/// How often the primary of the config servers is stranded.
const STRANDED: f64 = 0.12;
/// How long the config servers are away.
const AWAY: Duration = Duration::from_secs(25);
const CALM: Duration = Duration::from_secs(60);
/// Reads of the list of shards, the default concerns and the parameters of the cluster in such a
/// time, by one router.
const RELOADS: i64 = 6;
/// How often a router says in a minute that it is there, at most.
const PINGS: i64 = 7;
const SHORT: Duration = Duration::from_millis(100);

/// The members of a set, and which of them was last seen to be primary.
pub(super) fn nodes_of(set: &SetRun) -> (Vec<NodeId>, usize) {
    let nodes: Vec<NodeId> = set.members.iter().map(|member| member.node).collect();
    let sightings = set.sightings.borrow();
    let found = (0..nodes.len()).find(|member| sightings.seen(*member).state == PRIMARY);
    (nodes, found.unwrap_or(0))
}

impl Run {
    /// Lets one thing happen.
    pub(super) fn let_happen(&mut self) -> Result<(), String> {
        if self.stranding.chance(STRANDED) {
            self.strand_config();
        }
        match self.rng.below(10) {
            0 => self.end_router(),
            1 | 2 => self.cut_roles(),
            3 => self.slow_roles(),
            _ => self.disturb_a_set(),
        }
        Ok(())
    }

    /// The primary of the config servers is cut off from the others, while routers reach it.
    fn strand_config(&mut self) {
        let (nodes, primary) = nodes_of(&self.sets[0]);
        tracing::info!(primary, "the primary of the config servers is stranded");
        let others = nodes.iter().filter(|node| **node != nodes[primary]);
        let others: Vec<NodeId> = others.copied().collect();
        self.sim.partition(&[nodes[primary]], &others);
        self.outcome
            .count("primaries of config servers stranded", 1);
    }

    fn disturb_a_set(&mut self) {
        let at = self.rng.below(self.sets.len() as u64) as usize;
        let set = &mut self.sets[at];
        let (nodes, primary) = nodes_of(set);
        let happening = Happening::draw_within(&mut self.rng, nodes.len(), primary);
        tracing::info!(set = set.name, ?happening, "happens");
        self.outcome.count(happening.name(), 1);
        chaos::disturb(&self.sim, &nodes, &happening, &mut self.rng);
        chaos::crash(&self.sim, &nodes, &happening);
        if let Some((member, command)) = chaos::command(&happening, &mut self.rng) {
            let order = Order::Command(member, command);
            set.orders.given.borrow_mut().push_back(order);
        }
        if let Happening::Shutdown(member) = happening {
            set.members[member].terminate(&self.sim);
        }
    }

    fn end_router(&mut self) {
        let at = self.rng.below(self.routers.len() as u64) as usize;
        tracing::info!(at, "a router ends");
        let router = &mut self.routers[at];
        match self.rng.chance(0.3) {
            true => router.terminate(&self.sim),
            false => self.sim.crash(router.node, Death::Kill),
        }
        self.outcome.count("routers ended", 1);
    }

    /// The nodes of two roles of which one needs the other.
    fn draw_roles(&mut self) -> (Vec<NodeId>, Vec<NodeId>) {
        let all = |members: &[crate::members::Member]| -> Vec<NodeId> {
            members.iter().map(|member| member.node).collect()
        };
        let router = self.rng.below(self.routers.len() as u64) as usize;
        let shard = 1 + self.rng.below(self.sets.len() as u64 - 1) as usize;
        let router = vec![self.routers[router].node];
        let (config, shard) = (all(&self.sets[0].members), all(&self.sets[shard].members));
        match self.rng.below(3) {
            0 => (router, config),
            1 => (router, shard),
            _ => (shard, config),
        }
    }

    fn cut_roles(&mut self) {
        let (these, those) = self.draw_roles();
        let one_way = self.rng.chance(0.3);
        tracing::info!(?these, ?those, one_way, "roles are cut");
        for one in &these {
            for other in &those {
                self.sim.cut(*one, *other);
                if !one_way {
                    self.sim.cut(*other, *one);
                }
            }
        }
        self.outcome.count("roles cut", 1);
    }

    fn slow_roles(&mut self) {
        let (these, those) = self.draw_roles();
        let faults = LinkFaults {
            delay: Duration::from_millis(self.rng.between(5, 500)),
            loss: [0.0, 0.05][self.rng.below(2) as usize],
            reset: [0.01, 0.05][self.rng.below(2) as usize],
            cut: false,
        };
        tracing::info!(?these, ?those, ?faults, "roles are slowed");
        for one in &these {
            for other in &those {
                self.sim.set_links(*one, *other, faults.clone());
            }
        }
        self.outcome.count("roles slowed", 1);
    }

    /// Takes all faults away, and waits until what is of known placement is written and read for a
    /// while: until then a shard may still elect a primary.
    fn warm_up(&mut self) -> Result<(), String> {
        self.heal();
        self.cluster.probes.wanted.set(true);
        let deadline = self.sim.now() + WARM;
        while let Err(why) = self.probe_for(STEADY)? {
            if self.sim.now() >= deadline {
                return Err(format!("{WARM:?} without faults, and a write fails: {why}"));
            }
        }
        Ok(())
    }

    /// Lets time pass; whether probes were acknowledged all the while.
    fn probe_for(&mut self, lasts: Duration) -> Result<Result<(), String>, String> {
        self.cluster.probes.refused.borrow_mut().clear();
        let before = self.cluster.probes.rounds.get();
        self.pass(lasts)?;
        let rounds = self.cluster.probes.rounds.get() - before;
        let why = self.cluster.probes.refused.borrow();
        Ok(match why.is_empty() && rounds >= ROUNDS {
            true => Ok(()),
            false => Err(format!("{rounds} rounds; {why}")),
        })
    }

    /// No config server is reached for a while: what is of known placement is read and written.
    pub(super) fn take_config_away(&mut self) -> Result<(), String> {
        self.warm_up()?;
        tracing::info!("the config servers are away");
        let config: Vec<NodeId> = self.sets[0].members.iter().map(|one| one.node).collect();
        let others = self.sets[1..].iter().flat_map(|set| &set.members);
        let others = others.chain(&self.routers).map(|one| one.node);
        let others: Vec<NodeId> = others.collect();
        self.sim.partition(&config, &others);
        let before = self.primaries();
        let probed = self.probe_for(AWAY)?;
        // A new primary has to ask them for the versions of databases.
        if self.primaries() == before {
            probed.map_err(|why| format!("without config servers a write fails: {why}"))?;
            self.outcome.count("config servers away", 1);
        }
        self.cluster.probes.wanted.set(false);
        self.heal();
        Ok(())
    }

    /// Which members lead the shards.
    fn primaries(&self) -> Vec<usize> {
        let shards = self.sets[1..].iter();
        shards.map(|set| nodes_of(set).1).collect()
    }

    /// While nothing is new the config servers are asked for nothing but the list of shards, the
    /// default concerns and the parameters of the cluster, and hear that the routers are there.
    pub(super) fn be_calm(&mut self) -> Result<(), String> {
        self.warm_up()?;
        let before = self.count_at_config(true)?;
        self.pass(CALM)?;
        let after = self.count_at_config(false)?;
        self.cluster.probes.wanted.set(false);
        let mut more = Vec::new();
        for (name, total) in after {
            let new = total - before.get(&name).copied().unwrap_or(0);
            let most = match name.as_str() {
                "find" => RELOADS * self.routers.len() as i64,
                "update" => PINGS * self.routers.len() as i64,
                _ => 0,
            };
            if new > most {
                more.push(format!("{new} of {name}"));
            }
        }
        if !more.is_empty() {
            return Err(format!(
                "in {CALM:?} without news the config servers got {more:?}"
            ));
        }
        self.outcome.count("calm minutes", 1);
        Ok(())
    }

    /// Asks the config servers, which takes some time. Before it shards may ask them for what they
    /// would need at any time.
    fn count_at_config(
        &mut self,
        is_first: bool,
    ) -> Result<std::collections::BTreeMap<String, i64>, String> {
        let answer = std::rc::Rc::new(std::cell::RefCell::new(None));
        let (cluster, own) = (self.cluster.clone(), answer.clone());
        self.asked += 1;
        self.sim
            .add_node(&format!("counter-{}", self.asked), 1, move |_| {
                let (cluster, own) = (cluster.clone(), own.clone());
                async move {
                    let learned = match is_first {
                        true => learn_series(&cluster).await,
                        false => Ok(()),
                    };
                    let counted = match learned {
                        Ok(()) => commands_at_config(&cluster).await,
                        Err(why) => Err(why),
                    };
                    *own.borrow_mut() = Some(counted);
                }
            });
        loop {
            self.pass(SHORT)?;
            let counted = answer.borrow_mut().take();
            if let Some(counted) = counted {
                return counted;
            }
        }
    }
}
