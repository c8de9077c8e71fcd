//! A connection to another member, counted with those of its core by what it is doing, for
//! `connPoolStats`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use pinion_exec::HostConnections;
use pinion_replication_protocol::config::HostPort;
use pinion_server::Remote;

use crate::limits::MAX_COUNTED_HOSTS;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It is being made.
    Connecting,
    InUse,
    /// It waits to be used again.
    Idle,
}

/// The connections of one core to one host.
#[derive(Default)]
struct OfHost {
    connecting: Cell<u64>,
    in_use: Cell<u64>,
    idle: Cell<u64>,
    /// How many were ever made.
    created: Cell<u64>,
}

impl OfHost {
    fn counter(&self, doing: Doing) -> &Cell<u64> {
        match doing {
            Doing::Connecting => &self.connecting,
            Doing::InUse => &self.in_use,
            Doing::Idle => &self.idle,
        }
    }

    fn open(&self) -> u64 {
        self.connecting.get() + self.in_use.get() + self.idle.get()
    }
}

/// The connections of one core.
#[derive(Default)]
pub(crate) struct ConnectionCounts {
    hosts: RefCell<BTreeMap<HostPort, Rc<OfHost>>>,
}

impl ConnectionCounts {
    /// Those of this core.
    fn here() -> Rc<ConnectionCounts> {
        pinion_runtime::try_core_local::<ConnectionCounts>().unwrap_or_else(|| {
            let counts = Rc::<ConnectionCounts>::default();
            pinion_runtime::set_core_local(counts.clone());
            counts
        })
    }

    fn of(&self, host: &HostPort) -> Rc<OfHost> {
        let mut hosts = self.hosts.borrow_mut();
        if hosts.len() >= MAX_COUNTED_HOSTS && !hosts.contains_key(host) {
            // Those of former members.
            hosts.retain(|_, of| of.open() > 0);
        }
        hosts.entry(host.clone()).or_default().clone()
    }

    /// What `connPoolStats` shows of this core.
    pub(crate) fn shown() -> Vec<HostConnections> {
        let counts = ConnectionCounts::here();
        let hosts = counts.hosts.borrow();
        let shown = hosts.iter().map(|(host, of)| HostConnections {
            host: host.to_string(),
            in_use: of.in_use.get(),
            available: of.idle.get(),
            refreshing: of.connecting.get(),
            created: of.created.get(),
        });
        shown.collect()
    }
}

/// One connection in the counts, until it is dropped.
pub(crate) struct Counted {
    of: Rc<OfHost>,
    doing: Doing,
}

impl Counted {
    /// A connection that is about to be made.
    pub(crate) fn connecting(host: &HostPort) -> Counted {
        let of = ConnectionCounts::here().of(host);
        let doing = Doing::Connecting;
        of.counter(doing).set(of.counter(doing).get() + 1);
        Counted { of, doing }
    }

    fn becomes(&mut self, doing: Doing) {
        let (before, after) = (self.of.counter(self.doing), self.of.counter(doing));
        before.set(before.get() - 1);
        after.set(after.get() + 1);
        self.doing = doing;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let count = self.of.counter(self.doing);
        count.set(count.get() - 1);
    }
}

/// A connection to another member.
pub(crate) struct Connection {
    remote: Remote,
    counted: Counted,
}

impl Connection {
    /// One that was made, and is in use from now on.
    pub(crate) fn made(remote: Remote, mut counted: Counted) -> Connection {
        counted.becomes(Doing::InUse);
        counted.of.created.set(counted.of.created.get() + 1);
        Connection { remote, counted }
    }

    /// It waits to be used again, or is.
    pub(crate) fn set_idle(&mut self, idle: bool) {
        self.counted.becomes(match idle {
            true => Doing::Idle,
            false => Doing::InUse,
        });
    }
}

impl Deref for Connection {
    type Target = Remote;

    fn deref(&self) -> &Remote {
        &self.remote
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Remote {
        &mut self.remote
    }
}
