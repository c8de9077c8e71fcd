//! Standing for election although there is a primary: one of lower priority, or one that catches up
//! too slowly. And which members can stand at all.
//!
//! Source: replication document, "Step Up".

use pinion_clock::OpTime;
use pinion_wire::MemberState;

use super::candidate::Reason;
use super::{Node, Role};
use crate::decision::{election_timeout_ms, priority_takeover_delay_ms};

#[derive(Debug)]
pub(super) struct Takeover {
    reason: Reason,
    pub(super) due_ms: u64,
}

impl Node {
    /// Looks, when the primary has answered a heartbeat, whether this node should take its place.
    pub(super) fn consider_takeover(&mut self, primary: usize) {
        let secondary = self.state() == MemberState::Secondary;
        let Some(me) = self.me().filter(|me| me.is_electable()) else {
            return;
        };
        if !secondary || self.takeover.is_some() || !matches!(self.role, Role::Follower) {
            return;
        }
        let config = self.config().expect("a member has a configuration");
        let settings = &config.settings;
        let own = self
            .self_index()
            .expect("one that is electable is a member");
        let first = config
            .members
            .iter()
            .all(|other| other.priority <= me.priority);
        let by_priority = config.members[primary].priority < me.priority;
        let by_catch_up = settings.catch_up_timeout_ms != 0
            && settings.catch_up_takeover_delay_ms >= 0
            && self.peers[primary].reported_written.optime < self.written().optime;
        let (reason, delay_ms) = if by_priority && (first || !by_catch_up) {
            (
                Reason::PriorityTakeover,
                priority_takeover_delay_ms(config, own),
            )
        } else if by_catch_up {
            (
                Reason::CatchupTakeover,
                settings.catch_up_takeover_delay_ms as u64,
            )
        } else {
            return;
        };
        let random = self.random.next();
        let config = self.config().expect("a member has a configuration");
        let fraction = self.identity.parameters.election_offset_fraction;
        let offset_ms = election_timeout_ms(config, fraction, random) - self.election_timeout_ms();
        self.takeover = Some(Takeover {
            reason,
            due_ms: self.after_ms(delay_ms.saturating_add(offset_ms)),
        });
    }

    pub(super) fn take_over(&mut self) {
        let Some(takeover) = self.takeover.take() else {
            return;
        };
        let fresh = match takeover.reason {
            Reason::CatchupTakeover => self.is_fresh_for_catch_up_takeover(),
            _ => self.is_fresh_for_priority_takeover(),
        };
        if fresh {
            // If it cannot stand now, the next heartbeat of the primary looks again.
            self.stand(takeover.reason, None).ok();
        }
    }

    fn is_fresh_for_priority_takeover(&self) -> bool {
        let own = self.written().optime;
        let latest = self.latest_known();
        let window = self.identity.parameters.priority_takeover_freshness_secs;
        latest.term == own.term && own.ts.secs().saturating_add(window) >= latest.ts.secs()
    }

    /// A takeover makes sense while the primary has not started to write, and by the freshest only.
    fn is_fresh_for_catch_up_takeover(&self) -> bool {
        let Some(primary) = self.primary else {
            return false;
        };
        let of_primary = self.peers[primary].reported_written.optime;
        let own = self.written().optime;
        own > of_primary && own >= self.latest_known() && of_primary.term < self.term
    }

    /// The last entry that any member which answers has.
    pub(super) fn latest_known(&self) -> OpTime {
        let others = self.others().filter(|(_, peer)| peer.is_up());
        let others = others.map(|(_, peer)| peer.reported_written.optime);
        others.fold(self.written().optime, |latest, other| latest.max(other))
    }

    /// Why this node does not stand for election.
    pub(super) fn unelectable_reason(&self) -> Option<&'static str> {
        let Some(me) = self.me() else {
            return Some("not a member of a valid replica set configuration");
        };
        if me.arbiter_only {
            return Some("member is an arbiter");
        }
        if !me.is_electable() {
            return Some("member has zero priority");
        }
        if self.state() != MemberState::Secondary {
            return Some("member is not currently a secondary");
        }
        if self.written().optime.is_null() {
            return Some("node has no applied oplog entries");
        }
        if self.abstains_until_ms > self.now.ms {
            return Some("I am still waiting for the stepdown period to end");
        }
        match self.sees_majority() {
            true => None,
            false => Some("I cannot see a majority"),
        }
    }

    fn sees_majority(&self) -> bool {
        let Some(config) = self.config() else {
            return false;
        };
        let up = self
            .others()
            .filter(|(at, peer)| peer.is_up() && config.members[*at].is_voter());
        let own = usize::from(self.me().is_some_and(|me| me.is_voter()));
        up.count() + own >= config.majority_votes()
    }
}
