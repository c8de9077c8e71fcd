//! The beginning of a primary's time: it catches up, drains, writes the first entry of its term,
//! and takes writes.
//!
//! Source: replication document, "Transitioning to PRIMARY".

use pinion_clock::{OpTime, Term, Timestamp};
use pinion_wire::{Error, ErrorCode, Result};

use super::counts::CatchUpEnd;
use super::limits::CATCH_UP_HEARING_MS;
use super::step_down::Attempt;
use super::{Effect, Mode, Node, Note, Progress, Role, Writers};
use crate::message::OpTimeAndWallTime;

/// This node is the primary of its term.
#[derive(Debug)]
pub(super) struct Leadership {
    pub(super) election_time: Timestamp,
    phase: Phase,
    /// The entry that began the term; null until it is written.
    pub(super) first_of_term: OpTime,
    /// The commit point when the configuration was last changed; null where that was in an earlier
    /// term.
    pub(super) committed_in_previous_config: OpTime,
    /// Whether the configuration has been made one of this term.
    pub(super) has_config_of_term: bool,
    /// A step-down that waits for others to catch up.
    pub(super) attempt: Option<Attempt>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    CatchingUp {
        /// `None`: not all members have reported yet what they have.
        target: Option<OpTime>,
        /// Until then everybody is listened to, and afterwards no more than a majority.
        hearing_until_ms: u64,
        until_ms: Option<u64>,
    },
    /// Clients that wrote in an earlier term of this node may not have ended yet.
    AwaitingWriters,
    Draining,
    WritingNewPrimary,
    Writable,
}

impl Leadership {
    pub(super) fn is_writable(&self) -> bool {
        self.phase == Phase::Writable && self.attempt.is_none()
    }

    pub(super) fn is_drained(&self) -> bool {
        matches!(self.phase, Phase::WritingNewPrimary | Phase::Writable)
    }

    pub(super) fn is_catching_up(&self) -> bool {
        matches!(self.phase, Phase::CatchingUp { .. })
    }

    /// Whether clients could write but for an attempt to step down.
    pub(super) fn takes_writes(&self) -> bool {
        self.phase == Phase::Writable
    }

    pub(super) fn deadline_ms(&self) -> Option<u64> {
        let catch_up = match self.phase {
            Phase::CatchingUp {
                target: None,
                hearing_until_ms,
                until_ms,
            } => Some(until_ms.map_or(hearing_until_ms, |until| until.min(hearing_until_ms))),
            Phase::CatchingUp { until_ms, .. } => until_ms,
            _ => None,
        };
        let attempt = self.attempt.as_ref().and_then(Attempt::deadline_ms);
        catch_up.into_iter().chain(attempt).min()
    }
}

impl Node {
    pub(super) fn become_primary(&mut self) {
        assert!(matches!(self.role, Role::Follower), "the election is over");
        let secs = u32::try_from(self.now.wall_ms / 1000).unwrap_or(0);
        let config = self.config().expect("a primary is a member");
        let timeout = config.settings.catch_up_timeout_ms;
        let alone = config.members.len() == 1;
        let until_ms = u64::try_from(timeout)
            .ok()
            .map(|timeout| self.after_ms(timeout));
        self.role = Role::Leader(Leadership {
            election_time: Timestamp::new(secs, 1),
            phase: Phase::CatchingUp {
                target: None,
                hearing_until_ms: self.after_ms(CATCH_UP_HEARING_MS),
                until_ms,
            },
            first_of_term: OpTime::NULL,
            committed_in_previous_config: OpTime::NULL,
            has_config_of_term: false,
            attempt: None,
        });
        self.note(Note::Elected { term: self.term });
        self.stop_sync("this node is primary");
        self.sync.forget();
        for peer in &mut self.peers {
            peer.last_update_ms = self.now.ms;
        }
        self.update_primary();
        self.restart_heartbeats();
        if alone || timeout == 0 {
            self.end_catch_up(CatchUpEnd::Skipped);
        }
    }

    fn leader(&mut self) -> Option<&mut Leadership> {
        match &mut self.role {
            Role::Leader(leader) => Some(leader),
            Role::Follower | Role::Candidate(_) => None,
        }
    }

    /// Looks whether there is more to catch up with.
    pub(super) fn check_catch_up(&mut self) {
        let all_heard = self
            .others()
            .all(|(_, peer)| peer.heard_since_restart || peer.given_up);
        let majority_heard = self.majority_heard_since_restart();
        // What a silent primary has alone cannot be had of it; a majority does not have it.
        let latest = self
            .others()
            .filter(|(_, peer)| peer.is_up() && !peer.given_up)
            .map(|(_, peer)| peer.reported_written.optime)
            .max()
            .unwrap_or_default();
        let (now, own, stopped) = (
            self.now.ms,
            self.written().optime,
            self.writers == Writers::Stopped,
        );
        let Some(leader) = self.leader() else {
            return;
        };
        match &mut leader.phase {
            Phase::CatchingUp {
                target,
                hearing_until_ms,
                until_ms,
            } => {
                let heard = all_heard || (majority_heard && *hearing_until_ms <= now);
                if until_ms.is_some_and(|until| until <= now) {
                    self.end_catch_up(CatchUpEnd::TimedOut);
                } else if heard && latest <= own {
                    let end = match target {
                        None => CatchUpEnd::AlreadyCaughtUp,
                        Some(_) => CatchUpEnd::Succeeded,
                    };
                    self.end_catch_up(end);
                } else if heard && target.replace(latest).is_none() {
                    self.counts.catch_ups += 1;
                }
            }
            Phase::AwaitingWriters if stopped => {
                leader.phase = Phase::Draining;
                self.effects.push(Effect::Drain);
            }
            Phase::AwaitingWriters
            | Phase::Draining
            | Phase::WritingNewPrimary
            | Phase::Writable => {}
        }
    }

    /// Whether a majority of voters, this node among them, has reported since the election what it
    /// has: a member that holds something that a majority acknowledged is among them or has voted
    /// for this node.
    fn majority_heard_since_restart(&self) -> bool {
        let Some(config) = self.config() else {
            return false;
        };
        let heard = self.others().filter(|(at, peer)| {
            peer.heard_since_restart && peer.is_up() && config.members[*at].is_voter()
        });
        heard.count() + 1 >= config.majority_votes()
    }

    pub(super) fn end_catch_up(&mut self, end: CatchUpEnd) {
        let Some(leader) = self.leader() else {
            return;
        };
        assert!(leader.is_catching_up(), "catch-up ends once");
        leader.phase = Phase::AwaitingWriters;
        self.count_catch_up_end(end);
        self.note(Note::CatchUp {
            outcome: end.name(),
        });
        self.stop_sync("catch-up is over");
        self.check_catch_up();
    }

    pub(super) fn abort_catch_up_command(&mut self) -> Result<()> {
        match &self.role {
            Role::Leader(leader) if leader.is_catching_up() => {
                self.end_catch_up(CatchUpEnd::Aborted);
                Ok(())
            }
            _ => Err(Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                "The node is not in catch-up mode.",
            )),
        }
    }

    pub(super) fn drained(&mut self) {
        let term = self.term;
        // It may have stepped down meanwhile.
        let Some(leader) = self.leader() else {
            return;
        };
        if leader.phase != Phase::Draining {
            return;
        }
        leader.phase = Phase::WritingNewPrimary;
        assert_eq!(
            self.writers,
            Writers::Stopped,
            "nobody writes before the term has begun"
        );
        // From here on a step-down must wait for the entry to be written or dropped.
        self.writers = Writers::Allowed;
        self.effects.push(Effect::WriteNewPrimary { term });
    }

    pub(super) fn new_primary_written(&mut self, term: Term, at: OpTimeAndWallTime) {
        if term != self.term {
            return;
        }
        let own = self.written();
        let Some(leader) = self.leader() else {
            return;
        };
        if leader.phase != Phase::WritingNewPrimary {
            return;
        }
        assert_eq!(
            at.optime.term, term,
            "the entry is of the term that it begins"
        );
        assert!(
            leader.attempt.is_none(),
            "only one that takes writes waits to step down"
        );
        leader.phase = Phase::Writable;
        leader.first_of_term = at.optime;
        self.progress.written = own.max(at);
        self.metrics.term_began(term, at);
        // It may have become durable before.
        self.metrics.committed(self.commit_point.optime, self.now);
        self.effects.push(Effect::AllowWrites { term });
        self.positions_changed();
    }

    /// The oplog has grown, been applied, or become durable.
    pub(super) fn progress(&mut self, progress: Progress) {
        assert!(
            self.mode == Mode::InitialSync
                || progress.written.optime >= self.progress.written.optime,
            "an oplog grows unless it is rolled back"
        );
        self.set_progress(progress);
    }

    pub(super) fn set_progress(&mut self, progress: Progress) {
        if self.progress == progress {
            return;
        }
        let before = std::mem::replace(&mut self.progress, progress);
        self.metrics.applied(progress.applied, self.now);
        let reported = |of: Progress| (of.applied, of.durable);
        match reported(before) == reported(progress) {
            // Upstream hears nothing of what is only written, and a report of it would hold back
            // that of what is durable.
            true => self.judge_positions(),
            false => self.positions_changed(),
        }
    }
}
