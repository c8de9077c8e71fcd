//! What follows from every input: timers that are due, and what has changed for those outside.

use pinion_clock::OpTime;
use pinion_wire::MemberState;

use super::{Effect, Mode, Node, Role};
use crate::decision::election_timeout_ms;

/// What was announced to the outside last.
#[derive(Debug)]
pub(super) struct Announced {
    state: MemberState,
    view: Option<Shown>,
    counter: i64,
    /// Configurations installed so far.
    pub(super) installs: u64,
    committed: OpTime,
    stable: OpTime,
}

impl Default for Announced {
    fn default() -> Announced {
        Announced {
            state: MemberState::Startup,
            view: None,
            counter: 0,
            installs: 0,
            committed: OpTime::NULL,
            stable: OpTime::NULL,
        }
    }
}

/// What the view depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    state: MemberState,
    writable: bool,
    primary: Option<usize>,
    installs: u64,
    term: pinion_clock::Term,
    quiesces_until_ms: Option<u64>,
}

impl Node {
    pub(super) fn settle(&mut self) {
        self.leave_recovery();
        self.follow_state();
        self.run_timers();
        self.follow_state();
        self.change_config_as_primary();
        self.keep_source();
        self.report_position();
        self.announce_view();
        self.answer_waiters();
    }

    /// A client that is answered may read at once what is committed.
    pub(super) fn answer_waiters(&mut self) {
        self.announce_commit_point();
        self.answer_satisfied();
    }

    /// A node becomes readable when it has applied what it lacked for being consistent.
    fn leave_recovery(&mut self) {
        if self.mode == Mode::Recovering && self.progress.applied.optime >= self.min_valid {
            self.counts.attempts_to_become_secondary += 1;
            self.mode = Mode::Secondary;
        }
    }

    /// Does what entering and leaving a state needs.
    pub(super) fn follow_state(&mut self) {
        let state = self.state();
        if state == self.announced.state {
            return;
        }
        self.announced.state = state;
        self.effects.push(Effect::StateChanged(state));
        if !matches!(state, MemberState::Secondary | MemberState::Primary) {
            self.end_candidacy("this node is no secondary any more");
        }
        self.takeover = None;
        self.suspicion_is_acted_upon();
        self.postpone_election();
    }

    /// Waits the whole timeout again before an election is called.
    pub(super) fn postpone_election(&mut self) {
        let stands =
            self.state() == MemberState::Secondary && self.me().is_some_and(|me| me.is_electable());
        self.election_due_ms = stands.then(|| {
            let random = self.random.next();
            let config = self.config().expect("a secondary is a member");
            let fraction = self.identity.parameters.election_offset_fraction;
            self.after_ms(election_timeout_ms(config, fraction, random))
        });
    }

    fn run_timers(&mut self) {
        let now = self.now.ms;
        self.check_liveness();
        self.watch_primary();
        if self.election_due_ms.is_some_and(|due| due <= now) {
            self.election_timed_out();
        }
        if self
            .takeover
            .as_ref()
            .is_some_and(|takeover| takeover.due_ms <= now)
        {
            self.take_over();
        }
        self.elect_alone();
        self.check_catch_up();
        self.try_step_down();
        self.send_due_heartbeats();
    }

    /// When the next [`Input::Tick`](super::Input::Tick) is due; `None` if nothing happens by itself. It may lie in the past, and
    /// may change with each step.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let mut due: Vec<u64> = Vec::new();
        due.extend(self.election_due_ms);
        due.extend(self.watch.due_ms());
        due.extend(self.takeover.as_ref().map(|takeover| takeover.due_ms));
        if self.self_index().is_some() {
            let idle = self
                .others()
                .filter(|(_, peer)| peer.heartbeat.sent_ms.is_none());
            due.extend(idle.map(|(_, peer)| peer.heartbeat.due_ms));
        }
        due.extend(self.liveness_deadline_ms());
        match &self.role {
            Role::Leader(leader) => due.extend(leader.deadline_ms()),
            Role::Follower if self.abstains_until_ms > self.now.ms => {
                due.push(self.abstains_until_ms);
            }
            Role::Follower | Role::Candidate(_) => {}
        }
        if self.wants_source() {
            match &self.sync.source {
                None => due.push(self.sync.retry_ms),
                Some(_) => due.extend(self.report_deadline_ms()),
            }
        }
        due.into_iter().min()
    }

    fn announce_view(&mut self) {
        let shown = Shown {
            state: self.announced.state,
            writable: self.is_writable_primary(),
            primary: self.primary,
            installs: self.announced.installs,
            term: self.term,
            quiesces_until_ms: self.quiesces_until_ms,
        };
        if self.announced.view != Some(shown) {
            if self.announced.view.is_some() {
                self.announced.counter += 1;
                let counter = self.announced.counter;
                self.effects.push(Effect::ViewChanged { counter });
            }
            self.announced.view = Some(shown);
        }
    }

    fn announce_commit_point(&mut self) {
        let (committed, stable) = (self.commit_point, self.stable_optime());
        if (committed.optime, stable) != (self.announced.committed, self.announced.stable) {
            assert!(
                committed.optime >= self.announced.committed,
                "the commit point goes back"
            );
            self.announced.committed = committed.optime;
            self.announced.stable = stable;
            self.effects.push(Effect::CommitPoint { committed, stable });
        }
    }

    /// The counter of `topologyVersion`.
    pub(super) fn view_counter(&self) -> i64 {
        self.announced.counter
    }
}
