//! The connections of a pool to one host, as data: what is left over, what is set up, and the
//! requests that wait.
//!
//! A request that waits has an attempt to set up a connection made for it as soon as the limits
//! permit, but takes whichever connection is there first. Requests are served in the order in which
//! they came. An attempt whose request is gone continues for a while, so that a host that takes
//! longer to answer than a request may wait gets a connection all the same; then it makes room.

use std::collections::BTreeMap;

use pinion_runtime::sync::OneshotSender;
use pinion_runtime::{Duration, Instant, JoinHandle};

use super::connection::PooledConnection;
use super::options::PoolLimits;
use crate::limits::ABANDONED_SETUP;
use crate::remote::{Remote, RemoteError};

/// Which connections a request can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needed {
    Any,
    /// One that was never used, which the other side cannot have closed meanwhile.
    New,
}

impl Needed {
    fn takes(self, was_used: bool) -> bool {
        self == Needed::Any || !was_used
    }
}

/// What a request that waited gets.
pub(super) type Answer = Result<PooledConnection, RemoteError>;

/// A request that waits for a connection.
pub(super) struct Waiter {
    pub(super) wanted: Needed,
    pub(super) answer: OneshotSender<Answer>,
}

/// A connection that is being set up.
pub(super) struct Attempt {
    id: u64,
    since: Instant,
    /// The request that it is made for, until that is served or gone.
    owner: Option<u64>,
    /// Requests below this number waited when it started: if it fails, it fails for all of them.
    waited_below: u64,
    pub(super) task: Option<JoinHandle<()>>,
}

struct Idle {
    remote: Remote,
    since: Instant,
}

/// Connections and attempts for the caller to close.
#[derive(Default)]
pub(super) struct ToClose {
    attempt: Option<Attempt>,
    idle: Option<Idle>,
}

impl ToClose {
    pub(super) fn close(self) {
        if let Some(task) = self.attempt.and_then(|attempt| attempt.task) {
            task.abort();
        }
        drop(self.idle);
    }
}

#[derive(Default)]
pub(super) struct State {
    /// Counts how often the host was forgotten.
    pub(super) generation: u64,
    /// Those used last are at the end.
    idle: Vec<Idle>,
    in_use: usize,
    /// How many were ever set up.
    created: u64,
    /// By their numbers, which are in the order of their arrival.
    waiting: BTreeMap<u64, Waiter>,
    arrived: u64,
    /// Those that started first are at the front.
    attempts: Vec<Attempt>,
    attempted: u64,
    /// A task closes what is left over for too long.
    pub(super) is_watched: bool,
}

/// How many connections there are to a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) in_use: usize,
    pub(super) idle: usize,
    pub(super) attempts: usize,
    pub(super) created: u64,
    pub(super) waiting: usize,
}

impl State {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            in_use: self.in_use,
            idle: self.idle.len(),
            attempts: self.attempts.len(),
            created: self.created,
            waiting: self.waiting.len(),
        }
    }

    fn open(&self) -> usize {
        self.in_use + self.idle.len() + self.attempts.len()
    }

    /// Adds a request behind those that wait, and gives its number.
    pub(super) fn enqueue(&mut self, waiter: Waiter) -> u64 {
        let number = self.arrived;
        self.arrived += 1;
        self.waiting.insert(number, waiter);
        number
    }

    /// A request waits no longer; false if it was served before.
    pub(super) fn leave(&mut self, number: u64) -> bool {
        let waited = self.waiting.remove(&number).is_some();
        if waited && let Some(attempt) = self.attempt_of(number) {
            attempt.owner = None;
        }
        waited
    }

    fn attempt_of(&mut self, number: u64) -> Option<&mut Attempt> {
        let mut attempts = self.attempts.iter_mut();
        attempts.find(|attempt| attempt.owner == Some(number))
    }

    /// The first request, of those that wait, for which no attempt is made.
    fn first_without_attempt(&self) -> Option<u64> {
        let has_attempt = |number: &u64| {
            let mut attempts = self.attempts.iter();
            attempts.any(|attempt| attempt.owner == Some(*number))
        };
        // At most as many are passed over as there are attempts.
        self.waiting.keys().copied().find(|n| !has_attempt(n))
    }

    /// The attempt of a request that does not need it any more is made for the next one.
    fn reassign_attempt(&mut self, served: u64) {
        let next = self.first_without_attempt();
        if let Some(attempt) = self.attempt_of(served) {
            attempt.owner = next;
        }
    }

    /// Starts an attempt if a request needs one and the limits permit it: its number, and what is
    /// closed for it.
    pub(super) fn next_attempt(
        &mut self,
        limits: &PoolLimits,
        now: Instant,
    ) -> Option<(u64, ToClose)> {
        let owner = self.first_without_attempt()?;
        let mut replaced = ToClose::default();
        let all_connect = self.attempts.len() >= limits.connecting;
        if all_connect || self.open() >= limits.connections {
            let is_abandoned = |attempt: &Attempt| {
                attempt.owner.is_none() && now.saturating_since(attempt.since) >= ABANDONED_SETUP
            };
            match self.attempts.iter().position(is_abandoned) {
                Some(at) => replaced.attempt = Some(self.attempts.remove(at)),
                None if all_connect || self.idle.is_empty() => return None,
                None => replaced.idle = Some(self.idle.remove(0)),
            }
        }
        let id = self.attempted;
        self.attempted += 1;
        self.attempts.push(Attempt {
            id,
            since: now,
            owner: Some(owner),
            waited_below: self.arrived,
            task: None,
        });
        assert!(self.attempts.len() <= limits.connecting && self.open() <= limits.connections);
        Some((id, replaced))
    }

    /// Keeps the task of an attempt, which can have ended already.
    pub(super) fn set_task(&mut self, id: u64, task: JoinHandle<()>) {
        let mut attempts = self.attempts.iter_mut();
        if let Some(attempt) = attempts.find(|attempt| attempt.id == id) {
            attempt.task = Some(task);
        }
    }

    /// An attempt has ended; `None` if it was given up before.
    pub(super) fn end_attempt(&mut self, id: u64) -> Option<Attempt> {
        let at = self.attempts.iter().position(|attempt| attempt.id == id)?;
        Some(self.attempts.remove(at))
    }

    /// Gives up all attempts and what is left over: the host has restarted, or is asked for no
    /// more. The caller closes what this returns.
    pub(super) fn forget(&mut self) -> Vec<ToClose> {
        self.generation += 1;
        let attempts = self.attempts.drain(..).map(|attempt| ToClose {
            attempt: Some(attempt),
            idle: None,
        });
        let idle = self.idle.drain(..).map(|idle| ToClose {
            attempt: None,
            idle: Some(idle),
        });
        attempts.chain(idle).collect()
    }

    /// The requests for which an attempt has failed.
    pub(super) fn fail(&mut self, attempt: &Attempt) -> Vec<Waiter> {
        let later = self.waiting.split_off(&attempt.waited_below);
        let failed = std::mem::replace(&mut self.waiting, later);
        for number in failed.keys() {
            self.reassign_attempt(*number);
        }
        failed.into_values().collect()
    }

    pub(super) fn count_created(&mut self) {
        self.created += 1;
    }

    /// The first request that can use a connection; it is counted as in use from now on.
    pub(super) fn serve(&mut self, was_used: bool) -> Option<Waiter> {
        let mut waiting = self.waiting.iter();
        let (number, _) = waiting.find(|(_, waiter)| waiter.wanted.takes(was_used))?;
        let number = *number;
        let waiter = self.waiting.remove(&number)?;
        self.reassign_attempt(number);
        self.in_use += 1;
        Some(waiter)
    }

    /// Keeps a connection that no request wants, or gives it back where enough are kept.
    pub(super) fn keep(
        &mut self,
        remote: Remote,
        limits: &PoolLimits,
        now: Instant,
    ) -> Option<Remote> {
        if self.idle.len() >= limits.idle {
            return Some(remote);
        }
        self.idle.push(Idle { remote, since: now });
        None
    }

    /// The connection that was used last, of those left over; it is counted as in use from now on.
    pub(super) fn take_idle(&mut self) -> Option<Remote> {
        let idle = self.idle.pop()?;
        self.in_use += 1;
        Some(idle.remote)
    }

    /// What has been left over for too long.
    pub(super) fn take_expired(&mut self, idle_time: Duration, now: Instant) -> Vec<Remote> {
        let is_expired = |idle: &Idle| now.saturating_since(idle.since) >= idle_time;
        let expired = self.idle.iter().take_while(|idle| is_expired(idle)).count();
        self.idle.drain(..expired).map(|idle| idle.remote).collect()
    }

    /// Since when the first one is left over.
    pub(super) fn oldest_idle(&self) -> Option<Instant> {
        self.idle.first().map(|idle| idle.since)
    }

    /// A connection is not in use any more.
    pub(super) fn release(&mut self) {
        assert!(self.in_use > 0, "no connection is in use");
        self.in_use -= 1;
    }
}
