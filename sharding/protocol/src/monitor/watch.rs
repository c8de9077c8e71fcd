//! One host of a monitored set: what is known of it, and when it is asked.

use std::collections::VecDeque;
use std::time::Duration;

use super::hello::{HelloReply, TopologyVersion};
use super::topology::{Member, MemberKind};
use crate::limits::{EXPEDITED_INTERVAL, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, RTT_SAMPLES};

pub(super) fn ms(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

/// The question for a host's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Waiting {
        at_ms: u64,
    },
    /// It is asked, or streams its replies.
    Asking {
        check: u64,
        expires_ms: u64,
        awaits: bool,
    },
}

/// The measuring of round trips, which replies that wait for a change say nothing of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ping {
    Waiting { at_ms: u64 },
    Asking { check: u64, expires_ms: u64 },
}

#[derive(Debug)]
pub(super) struct Watch {
    pub(super) member: Member,
    /// The number of the topology in which it became what it is: what failed under an earlier one
    /// says nothing of it.
    pub(super) since: u64,
    pub(super) topology_version: Option<TopologyVersion>,
    pub(super) check: Check,
    pub(super) ping: Ping,
    pub(super) last_start_ms: Option<u64>,
    rtts: VecDeque<Duration>,
}

impl Watch {
    /// A host of which nothing is known, to be asked at once.
    pub(super) fn new(now_ms: u64, since: u64) -> Watch {
        Watch {
            member: Member::default(),
            since,
            topology_version: None,
            check: Check::Waiting { at_ms: now_ms },
            ping: Ping::Waiting { at_ms: now_ms },
            last_start_ms: None,
            rtts: VecDeque::new(),
        }
    }

    /// When it may be asked next, if it is to be soon.
    pub(super) fn soon_ms(&self, now_ms: u64) -> u64 {
        let earliest_ms = self.last_start_ms.map(|last| last + ms(EXPEDITED_INTERVAL));
        earliest_ms.unwrap_or(now_ms).max(now_ms)
    }

    pub(super) fn regular_ms(&self, now_ms: u64) -> u64 {
        let next_ms = self.last_start_ms.map(|last| last + ms(HEARTBEAT_INTERVAL));
        next_ms.unwrap_or(now_ms).max(now_ms)
    }

    /// Has it asked soon, unless it is asked already.
    pub(super) fn expedite(&mut self, now_ms: u64) {
        let soon_ms = self.soon_ms(now_ms);
        if let Check::Waiting { at_ms } = &mut self.check {
            *at_ms = soon_ms.min(*at_ms);
        }
    }

    /// Has its round trip measured soon, unless it is measured already.
    pub(super) fn ping_soon(&mut self, now_ms: u64) {
        if let Ping::Waiting { at_ms } = &mut self.ping {
            let sooner_ms = ms(HEARTBEAT_INTERVAL - EXPEDITED_INTERVAL);
            *at_ms = now_ms.max(at_ms.saturating_sub(sooner_ms)).min(*at_ms);
        }
    }

    /// Starts to ask it; returns what its next reply is to wait for a change of.
    pub(super) fn start(&mut self, check: u64, now_ms: u64) -> Option<TopologyVersion> {
        let awaited = self.topology_version;
        self.last_start_ms = Some(now_ms);
        self.check = Check::Asking {
            check,
            expires_ms: expiry_ms(now_ms, awaited.is_some()),
            awaits: awaited.is_some(),
        };
        awaited
    }

    /// A reply has come: whether it streams on, or when it is asked next.
    pub(super) fn schedule(&mut self, more_to_come: bool, is_wanted: bool, now_ms: u64) {
        let Check::Asking { check, awaits, .. } = self.check else {
            unreachable!("a reply belongs to a check that is under way");
        };
        if more_to_come {
            let expires_ms = expiry_ms(now_ms, true);
            self.check = Check::Asking {
                check,
                expires_ms,
                awaits: true,
            };
            return;
        }
        let at_ms = match self.topology_version {
            Some(_) if !awaits => now_ms,
            // One that answers at once is not asked all the time.
            Some(_) => self.soon_ms(now_ms),
            None if is_wanted => self.soon_ms(now_ms),
            None => self.regular_ms(now_ms),
        };
        self.check = Check::Waiting { at_ms };
    }

    pub(super) fn is_streaming(&self) -> bool {
        matches!(self.check, Check::Asking { awaits: true, .. })
    }

    /// When something has to be done for it.
    pub(super) fn next_ms(&self) -> u64 {
        let check_ms = match self.check {
            Check::Waiting { at_ms } => at_ms,
            Check::Asking { expires_ms, .. } => expires_ms,
        };
        let ping_ms = match self.ping {
            Ping::Asking { expires_ms, .. } => expires_ms,
            Ping::Waiting { at_ms } if self.is_streaming() => at_ms,
            Ping::Waiting { .. } => u64::MAX,
        };
        check_ms.min(ping_ms)
    }

    /// Takes a round trip into the mean (its weight is a fifth) and the least of the last ones.
    pub(super) fn measure(&mut self, rtt: Duration, now_ms: u64) {
        let mean = match self.member.rtt {
            Some(mean) => (mean * 4 + rtt) / 5,
            None => rtt,
        };
        self.member.rtt = Some(mean);
        if self.rtts.len() == RTT_SAMPLES {
            self.rtts.pop_front();
        }
        self.rtts.push_back(rtt);
        self.member.least_rtt = self.rtts.iter().min().copied();
        self.ping = Ping::Waiting {
            at_ms: now_ms + ms(HEARTBEAT_INTERVAL),
        };
    }

    /// Takes over what it says of itself.
    pub(super) fn update(&mut self, kind: MemberKind, reply: &HelloReply, now_ms: u64) {
        self.topology_version = reply.topology_version;
        self.member = Member {
            kind,
            error: None,
            is_unreachable: false,
            tags: reply.tags.clone(),
            is_hidden: reply.is_hidden,
            rtt: self.member.rtt,
            least_rtt: self.member.least_rtt,
            last_write: reply.last_write,
            updated_ms: now_ms,
            min_wire_version: reply.min_wire_version,
            max_wire_version: reply.max_wire_version,
            me: reply.me.clone(),
            set_version: reply.set_version,
            election_id: reply.election_id,
        };
    }

    /// It is no member of the set, as far as it says itself.
    pub(super) fn reject(&mut self, reply: &HelloReply, why: String) {
        self.topology_version = reply.topology_version;
        self.member = Member {
            error: Some(why),
            rtt: self.member.rtt,
            least_rtt: self.member.least_rtt,
            ..Member::default()
        };
    }

    /// It cannot be reached, or is not what it was.
    pub(super) fn forget(&mut self, why: String, is_unreachable: bool) {
        self.topology_version = None;
        self.rtts.clear();
        self.member = Member {
            error: Some(why),
            is_unreachable,
            ..Member::default()
        };
    }
}

fn expiry_ms(now_ms: u64, awaits: bool) -> u64 {
    let patience = match awaits {
        true => HEARTBEAT_INTERVAL + HEARTBEAT_TIMEOUT,
        false => HEARTBEAT_TIMEOUT,
    };
    now_ms + ms(patience)
}
