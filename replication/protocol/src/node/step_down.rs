//! The end of a primary's time: by an operator, when another is ready; or at once, when it must.
//!
//! Source: replication document, "Step Down".

use pinion_bson::{DateTime, RawDocumentBuf};
use pinion_wire::{Error, ErrorCode, MemberState};

use super::counts::CatchUpEnd;
use super::limits::LEAVES_FOR_MS;
use super::{CommandId, Effect, LATER_TERM, Leave, Node, Note, Pending, Role, Writers};
use crate::decision::{self, NoStepDown, StepDownAttempt, may_step_down};
use crate::message::{Request, StepDown};

/// A step-down that waits until another member could take over.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) id: CommandId,
    terms: StepDownAttempt,
    why: &'static str,
    /// It does not wait while all that could follow refuse connections.
    ends_alone: bool,
    /// Why it does not come about: it ends when the log is this node's again.
    failed: Option<Error>,
}

/// Why a primary steps down whose process is to end.
const LEAVES: &str = "this node shuts down";

impl Attempt {
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        let ends_ms = self.terms.wait_until_ms.min(self.terms.step_down_until_ms);
        self.failed.is_none().then_some(ends_ms)
    }
}

impl Node {
    pub(super) fn step_down_command(&mut self, id: CommandId, args: StepDown) {
        let terms = StepDownAttempt {
            wait_until_ms: self.after_ms(args.catch_up_secs.saturating_mul(1000)),
            step_down_until_ms: self.after_ms(args.period_secs.saturating_mul(1000)),
            force: args.force,
        };
        self.attempt_step_down(id, terms, "an operator asked for it", false);
    }

    /// This node's process is to end.
    pub(super) fn leave(&mut self, id: CommandId, leave: Leave) {
        let takes_writes = match &self.role {
            Role::Leader(leader) => leader.takes_writes(),
            Role::Follower | Role::Candidate(_) => {
                return self.reply(id, Ok(RawDocumentBuf::new()));
            }
        };
        // No member can follow, and none has to be waited for.
        if self.peers.len() == 1 {
            return self.reply(id, Ok(RawDocumentBuf::new()));
        }
        if !takes_writes {
            self.step_down(LEAVES);
            return self.reply(id, Ok(RawDocumentBuf::new()));
        }
        let terms = StepDownAttempt {
            wait_until_ms: self.after_ms(leave.catch_up_ms),
            step_down_until_ms: self.after_ms(leave.catch_up_ms.saturating_add(LEAVES_FOR_MS)),
            force: leave.force,
        };
        if leave.force {
            self.take_attempt_over();
        }
        self.attempt_step_down(id, terms, LEAVES, leave.force);
        // The members that are gone are to be known soon.
        for peer in &mut self.peers {
            peer.heartbeat.due_ms = self.now.ms;
        }
    }

    /// An attempt that waits makes room for one with another deadline. Writers stay stopped, or are
    /// stopped again where it has failed.
    fn take_attempt_over(&mut self) {
        let Role::Leader(leader) = &mut self.role else {
            return;
        };
        let Some(attempt) = leader.attempt.take() else {
            return;
        };
        let leaves = || Error::new(ErrorCode::INTERRUPTED_AT_SHUTDOWN, LEAVES);
        self.reply(attempt.id, Err(attempt.failed.unwrap_or_else(leaves)));
    }

    /// Clients are sent away, and this node does not stand for election any more.
    pub(super) fn quiesce(&mut self, until_ms: u64) {
        self.quiesces_until_ms = Some(until_ms);
        let abstains_until_ms = until_ms.saturating_add(LEAVES_FOR_MS);
        self.abstains_until_ms = self.abstains_until_ms.max(abstains_until_ms);
    }

    fn attempt_step_down(
        &mut self,
        id: CommandId,
        terms: StepDownAttempt,
        why: &'static str,
        ends_alone: bool,
    ) {
        let leader = match &mut self.role {
            Role::Leader(leader) if leader.takes_writes() => leader,
            _ => {
                let error = Error::new(
                    ErrorCode::NOT_WRITABLE_PRIMARY,
                    "not primary so can't step down",
                );
                return self.reply(id, Err(error));
            }
        };
        if leader.attempt.is_some() {
            let error = Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                "This node is already in the process of stepping down",
            );
            return self.reply(id, Err(error));
        }
        leader.attempt = Some(Attempt {
            id,
            terms,
            why,
            ends_alone,
            failed: None,
        });
        // Without new writes others can catch up.
        self.stop_writes();
    }

    fn stop_writes(&mut self) {
        if self.writers == Writers::Allowed {
            self.writers = Writers::Stopping;
            self.effects.push(Effect::StopWrites);
        }
    }

    pub(super) fn writes_stopped(&mut self) {
        assert_eq!(self.writers, Writers::Stopping, "writers were told to stop");
        self.writers = Writers::Stopped;
    }

    /// Ends an attempt to step down, if it can be decided now.
    pub(super) fn try_step_down(&mut self) {
        let Role::Leader(leader) = &self.role else {
            return;
        };
        let Some(attempt) = &leader.attempt else {
            return;
        };
        // Only now it is known what the last entry is.
        if self.writers != Writers::Stopped || attempt.failed.is_some() {
            return;
        }
        let config = self.config().expect("a primary is a member");
        let me = self.self_index().expect("a primary is a member");
        let positions = self.positions();
        let secondaries = self.would_stand();
        let now_ms = self.now.ms;
        let mut terms = attempt.terms;
        if attempt.ends_alone && self.no_member_can_follow() {
            terms.wait_until_ms = now_ms;
        }
        match may_step_down(config, me, &positions, &secondaries, terms, now_ms) {
            Ok(decision::StepDown::Wait) => {}
            Ok(decision::StepDown::Now) => self.complete_attempt(),
            Err(no) => self.fail_attempt(self.no_step_down(no)),
        }
    }

    /// Whether the processes of all members are gone that could be elected.
    fn no_member_can_follow(&self) -> bool {
        let mut electable = self
            .others()
            .filter(|(at, _)| self.member(*at).is_electable());
        electable.all(|(_, peer)| peer.is_gone())
    }

    fn no_step_down(&self, why: NoStepDown) -> Error {
        let message = match why {
            NoStepDown::TooLate => {
                "By the time we were ready to step down, we were already past the time we were supposed to step down until".to_owned()
            }
            NoStepDown::NotCaughtUp => {
                let now = DateTime::from_millis(self.now.wall_ms);
                let now = now.try_to_rfc3339_string().unwrap_or_default();
                format!(
                    "No electable secondaries caught up as of {now}. Please use the replSetStepDown command with the argument {{force: true}} to force node to step down."
                )
            }
        };
        Error::new(ErrorCode::EXCEEDED_TIME_LIMIT, message)
    }

    /// Of each member, whether it is a secondary that does not say that it would not stand for
    /// election.
    fn would_stand(&self) -> Vec<bool> {
        let peers = self.peers.iter().enumerate();
        let stands = peers.map(|(at, peer)| {
            Some(at) != self.self_index()
                && peer.is_up()
                && peer.state == MemberState::Secondary
                && peer.electable != Some(false)
        });
        stands.collect()
    }

    /// The electable member of highest priority that has everything.
    fn successor(&self) -> Option<usize> {
        let last = self.written().optime;
        let would_stand = self.would_stand();
        let ready = self.others().filter(|(at, peer)| {
            would_stand[*at]
                && self.member(*at).is_electable()
                && peer.position.written().optime >= last
        });
        let best = ready.max_by(|(a, _), (b, _)| {
            let priority = |at: usize| self.member(at).priority;
            priority(*a).total_cmp(&priority(*b)).then(b.cmp(a))
        });
        best.map(|(at, _)| at)
    }

    fn complete_attempt(&mut self) {
        let successor = self.successor();
        let Role::Leader(leader) = &mut self.role else {
            panic!("only a primary steps down");
        };
        let attempt = leader.attempt.take().expect("a step-down was asked for");
        self.abstains_until_ms = attempt.terms.step_down_until_ms;
        self.step_down(attempt.why);
        self.reply(attempt.id, Ok(RawDocumentBuf::new()));
        // An operator who forces one chooses the successor himself; a node that ends by force does
        // so only if there is none.
        let hands_over = !attempt.terms.force || attempt.why == LEAVES;
        let handoff = self.identity.parameters.election_handoff && hands_over;
        if let (true, Some(at)) = (handoff, successor) {
            let host = self.member(at).host.clone();
            let request = Request::StepUp { skip_dry_run: true };
            let timeout_ms = self.election_timeout_ms();
            self.send(host, request, timeout_ms, Pending::Handoff);
        }
    }

    fn fail_attempt(&mut self, error: Error) {
        let Role::Leader(leader) = &mut self.role else {
            panic!("only a primary steps down");
        };
        let attempt = leader.attempt.as_mut().expect("a step-down was asked for");
        attempt.failed = Some(error);
        // From here on a step-down must wait until the log was taken up.
        self.writers = Writers::Allowed;
        self.effects.push(Effect::ResumeWrites);
    }

    /// The log is this node's again, after an attempt that has failed.
    pub(super) fn writes_resumed(&mut self) {
        let term = self.term;
        // It may have stepped down meanwhile, and then hears this before its writers have stopped
        // again.
        let Role::Leader(leader) = &mut self.role else {
            return;
        };
        let Some(attempt) = leader.attempt.take_if(|attempt| attempt.failed.is_some()) else {
            return;
        };
        self.effects.push(Effect::AllowWrites { term });
        let error = attempt.failed.expect("it has failed");
        self.reply(attempt.id, Err(error));
    }

    /// This node is primary no more, whatever it was about; nothing happens if it was none.
    pub(super) fn step_down(&mut self, why: &'static str) {
        // A client that has what it waits for gets no error that it may be lost.
        self.answer_waiters();
        let Role::Leader(leader) = &mut self.role else {
            return;
        };
        let was_catching_up = leader.is_catching_up();
        let attempt = leader.attempt.take();
        self.role = Role::Follower;
        self.primary = None;
        if was_catching_up {
            let is_later_term = why == LATER_TERM;
            self.count_catch_up_end(match is_later_term {
                true => CatchUpEnd::NewTerm,
                false => CatchUpEnd::SteppedDown,
            });
        }
        self.note(Note::SteppedDown {
            term: self.term,
            reason: why,
        });
        self.stop_sync("this node is primary no more");
        self.stop_writes();
        if let Some(attempt) = attempt {
            let error = Error::new(
                ErrorCode::PRIMARY_STEPPED_DOWN,
                "While waiting for secondaries to catch up before stepping down, this node decided to step down for other reasons",
            );
            self.reply(attempt.id, Err(error));
        }
        self.answer_committed_reconfigs();
        self.interrupt_waiters();
        self.restart_reports();
        self.retry_source_now();
    }
}
