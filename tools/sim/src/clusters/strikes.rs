//! Primaries that are struck on purpose while something is being defined.

use pinion_runtime::sim::{Death, NodeId};
use pinion_runtime::{Duration, Instant, Rng};

use super::Run;
use super::happenings::nodes_of;

/// How often a run strikes, and how often at most.
const STRIKING: f64 = 0.7;
const MOST: u64 = 6;
/// How often a definition is chosen.
const CHOSEN: f64 = 0.5;
/// How long behind the sending of a definition a strike comes at most.
const WITHIN_MS: [u64; 5] = [1, 10, 40, 150, 800];

/// When the next strike comes.
pub(super) struct Strikes {
    rng: Rng,
    /// Nothing is struck otherwise.
    pub(super) are_on: bool,
    left: u64,
    /// How many definitions were sent when that was last looked at.
    seen: u64,
    due: Option<Instant>,
}

impl Strikes {
    pub(super) fn draw(mut rng: Rng) -> Strikes {
        let left = match rng.chance(STRIKING) {
            true => rng.between(1, MOST),
            false => 0,
        };
        Strikes {
            rng,
            are_on: false,
            left,
            seen: 0,
            due: None,
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

impl Run {
    /// Strikes when the time has come, and chooses among the definitions that were sent.
    pub(super) fn strike(&mut self) {
        let sent = self.cluster.definitions.sent.get();
        let is_new = std::mem::replace(&mut self.strikes.seen, sent) != sent;
        if !self.strikes.are_on || self.strikes.left == 0 {
            self.strikes.due = None;
            return;
        }
        let now = self.sim.now();
        match self.strikes.due {
            Some(due) if due <= now => {
                self.strikes.due = None;
                self.strike_a_primary();
            }
            None if is_new && self.strikes.rng.chance(CHOSEN) => {
                let rng = &mut self.strikes.rng;
                let most_ms = WITHIN_MS[rng.below(WITHIN_MS.len() as u64) as usize];
                let within = Duration::from_micros(rng.below(most_ms * 1_000));
                self.strikes.due = Some(now + within);
            }
            _ => {}
        }
    }

    fn strike_a_primary(&mut self) {
        let definitions = &self.cluster.definitions;
        let rng = &mut self.strikes.rng;
        let (nodes, primary) = nodes_of(&self.sets[rng.below(self.sets.len() as u64) as usize]);
        let node = nodes[primary];
        if definitions.running.get() == 0 || !self.sim.is_running(node) {
            return self.outcome.count("strikes that came too late", 1);
        }
        self.strikes.left -= 1;
        if definitions.of_series.get() > 0 {
            let name = "primaries struck while the series is defined";
            self.outcome.count(name, 1);
        }
        let death = match rng.below(4) {
            0 | 1 => Some(Death::PowerCut),
            2 => Some(Death::Kill),
            _ => None,
        };
        tracing::info!(?node, ?death, "a primary is struck");
        if let Some(death) = death {
            self.sim.crash(node, death);
            let name = "primaries ended while one is defined";
            return self.outcome.count(name, 1);
        }
        // From its set alone, or from everybody.
        let stays_reachable = nodes.len() > 1 && rng.chance(0.5);
        let others = match stays_reachable {
            true => nodes,
            false => {
                let sets = self.sets.iter().flat_map(|set| &set.members);
                sets.chain(&self.routers).map(|one| one.node).collect()
            }
        };
        let others: Vec<NodeId> = others.into_iter().filter(|other| *other != node).collect();
        self.sim.partition(&[node], &others);
        let name = "primaries cut off while one is defined";
        self.outcome.count(name, 1);
    }
}
