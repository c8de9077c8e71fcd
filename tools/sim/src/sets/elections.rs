//! Scenes of elections that follow each other closely, with members that come and go in between.

use pinion_runtime::Duration;
use pinion_runtime::sim::{Death, NodeId};

use super::Run;

/// How long a scene waits for what it needs.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it looks where a moment counts.
const CLOSELY: Duration = Duration::from_micros(50);
const LOOSELY: Duration = Duration::from_millis(1);
/// How long a scene lets happen what comes of it.
const AFTERMATH_MS: u64 = 15_000;
/// The time within which an isolated primary writes what is not replicated, as the totals call it.
const UNHEARD: Duration = Duration::from_millis(1_200);
const ALONE: &str = "writes acknowledged by one";
/// How long a primary lives at most that is to die, while clients read from it.
const SHORT_LIFE_MS: u64 = 800;
/// What was written is on the device by then.
const FLUSHED: Duration = Duration::from_millis(60);

impl Run {
    /// Nothing passes between these members and those.
    fn part(&self, these: &[usize], those: &[usize]) {
        self.between(these, those, |one, other| self.sim.cut(one, other));
    }

    fn rejoin(&self, these: &[usize], those: &[usize]) {
        self.between(these, those, |one, other| self.sim.join(one, other));
    }

    fn between(&self, these: &[usize], those: &[usize], act: impl Fn(NodeId, NodeId)) {
        for one in these {
            for other in those.iter().filter(|other| *other != one) {
                let (one, other) = (self.members[*one].node, self.members[*other].node);
                act(one, other);
                act(other, one);
            }
        }
    }

    fn counts_of(&self, event: &str) -> Vec<u64> {
        let members = self.members.iter();
        members
            .map(|member| self.sim.event_count(member.node, event))
            .collect()
    }

    /// Waits until one of these members has gone through an event, which it does once more than
    /// `before` says.
    fn wait_for(
        &mut self,
        members: &[usize],
        event: &str,
        before: &[u64],
        step: Duration,
    ) -> Result<Option<usize>, String> {
        let deadline = self.sim.now() + PATIENCE;
        while self.sim.now() < deadline {
            let counts = self.counts_of(event);
            let mut members = members.iter().copied();
            if let Some(member) = members.find(|member| counts[*member] > before[*member]) {
                return Ok(Some(member));
            }
            self.pass(step)?;
        }
        Ok(None)
    }

    fn die(&mut self, member: usize, death: Death, down: Duration) {
        let at = self.sim.now() + down;
        self.members[member].restart_at = Some(at);
        self.sim.crash(self.members[member].node, death);
    }

    /// The members but for these.
    fn others(&self, these: &[usize]) -> Vec<usize> {
        let members = 0..self.members.len();
        members.filter(|member| !these.contains(member)).collect()
    }

    /// The primary is cut off. When one of the others is elected, those that voted for it lose
    /// power at once, and come back to the old primary while the new one is cut off: a member that
    /// forgets its vote gives it a second time in the same term.
    pub(super) fn forget_votes(&mut self, primary: usize) -> Result<(), String> {
        let others = self.others(&[primary]);
        self.part(&[primary], &others);
        let before = self.counts_of("elected");
        if let Some(elected) = self.wait_for(&others, "elected", &before, LOOSELY)? {
            let voters = self.others(&[primary, elected]);
            self.part(&[elected], &voters);
            for voter in &voters {
                let down = Duration::from_millis(self.rng.below(5));
                self.die(*voter, Death::PowerCut, down);
            }
            self.rejoin(&[primary], &voters);
            self.outcome.count("votes asked for again", 1);
            self.pass_some(AFTERMATH_MS)?;
        }
        self.heal();
        Ok(())
    }

    /// What a majority holds of an older term is not committed by that (Raft, figure 8). A primary
    /// writes what is not replicated, and dies; another one is elected, begins its term in
    /// isolation, and dies too. The first comes back and is elected when the others hold what it
    /// wrote, and is cut off from them before they have an entry of its own term; clients read from
    /// it what a majority has. Then it dies, and the second one comes back, whose log is the later
    /// one, and takes that back.
    pub(super) fn commit_over_terms(&mut self, first: usize) -> Result<(), String> {
        let others = self.others(&[first]);
        let usual = self.shared.alone.replace(1.0);
        let before = (self.counts_of("elected"), self.counts_of("drained"));
        self.part(&[first], &others);
        self.write_unheard()?;
        self.shared.alone.set(usual);
        self.die(first, Death::Kill, PATIENCE * 4);
        if let Some(second) = self.begin_unheard(&others, (&before.0, &before.1))? {
            self.die(second, Death::Kill, PATIENCE * 4);
            let rest = self.others(&[first, second]);
            self.sim.heal();
            let drained = self.counts_of("drained");
            self.members[first].restart_at = Some(self.sim.now());
            let again = self.wait_for(&[first], "drained", &drained, CLOSELY)?;
            self.part(&[first], &rest);
            if again.is_some() {
                self.outcome.count("older terms held by a majority", 1);
                self.shared.watched.set(true);
                let lives = self.rng.between(SHORT_LIFE_MS / 4, SHORT_LIFE_MS);
                self.pass(Duration::from_millis(lives))?;
                self.shared.watched.set(false);
            }
            self.die(first, Death::PowerCut, PATIENCE);
            self.members[second].restart_at = Some(self.sim.now());
            self.pass_some(AFTERMATH_MS)?;
        }
        let now = self.sim.now();
        for member in &mut self.members {
            member.restart_at = member.restart_at.map(|at| at.min(now));
        }
        self.heal();
        Ok(())
    }

    /// Waits until an isolated primary has written what it acknowledges alone.
    fn write_unheard(&mut self) -> Result<(), String> {
        let written = |run: &Run| {
            let history = run.shared.history.borrow();
            history.counts.get(ALONE).copied()
        };
        let (before, deadline) = (written(self), self.sim.now() + UNHEARD);
        while written(self) == before && self.sim.now() < deadline {
            self.pass(LOOSELY)?;
        }
        self.pass(FLUSHED)
    }

    /// One of these is elected and begins its term, which is not replicated. Returns which, if that
    /// came about.
    fn begin_unheard(
        &mut self,
        members: &[usize],
        (elected, drained): (&[u64], &[u64]),
    ) -> Result<Option<usize>, String> {
        let terms = self.counts_of("term begun");
        self.wait_for(members, "elected", elected, LOOSELY)?;
        let Some(member) = self.wait_for(members, "drained", drained, CLOSELY)? else {
            return Ok(None);
        };
        self.part(&[member], &self.others(&[member]));
        let terms = self.wait_for(&[member], "term begun", &terms, LOOSELY)?;
        self.pass(FLUSHED)?;
        Ok(terms)
    }
}
