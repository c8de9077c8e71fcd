//! The connections that this process opens to others, one pool for each core, by host and port.
//!
//! Each command has a connection to itself while it runs; what is left over is kept for the next.
//! What this process says of itself on a connection, the keys by which it logs in and all limits
//! are given to the pool when it is made. The rules are those of MongoDB's `ConnectionPool`, and
//! the figures have the names that `connPoolStats` shows.

mod connection;
mod greeting;
mod host;
mod login;
mod options;
mod state;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_runtime::{Duration, Instant, now};
use pinion_wire::HostPort;

use self::greeting::Greeter;
use self::host::Host;
use self::state::{Counts, Needed};
use crate::remote::{Outgoing, RemoteError, RemoteReply};

pub use self::connection::PooledConnection;
pub use self::options::{Introduction, PoolLimits, PoolOptions};

/// The connections of one core to other processes.
pub struct Pool {
    shared: Rc<Shared>,
    hosts: RefCell<BTreeMap<HostPort, Rc<Host>>>,
    /// Commands that are not answered yet.
    running: Cell<u64>,
}

/// What all hosts of a pool have in common.
struct Shared {
    greeter: Greeter,
    limits: PoolLimits,
}

/// Until when something is waited for.
struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    fn after(limit: Duration) -> Deadline {
        Deadline {
            at: now() + limit,
            limit,
        }
    }
}

/// What becomes of a command whose connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// It fails: whether it had its effect is not known.
    Never,
    /// If the connection was used before, so that the other side may just have closed it, the
    /// command is sent once more over a new one. It may have its effect twice.
    OverNewConnection,
}

/// The connections of one core to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFigures {
    pub host: HostPort,
    pub in_use: u64,
    /// Kept to be used again.
    pub available: u64,
    /// Being set up.
    pub refreshing: u64,
    /// Ever set up.
    pub created: u64,
}

/// A command that is not answered yet.
struct Running<'p>(&'p Pool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

impl Pool {
    /// # Panics
    /// The limits contradict each other.
    pub fn new(options: PoolOptions) -> Pool {
        options.limits.check();
        Pool {
            shared: Rc::new(Shared {
                greeter: Greeter::new(&options.introduction, options.auth),
                limits: options.limits,
            }),
            hosts: RefCell::default(),
            running: Cell::new(0),
        }
    }

    /// Runs a command, which names its database, within a time.
    ///
    /// # Errors
    /// `NoConnection` when there was no connection in time, or too many wait for one; `Broken` also
    /// when the reply did not come in time.
    pub async fn run(
        &self,
        host: &HostPort,
        command: impl Into<Outgoing<'_>>,
        limit: Duration,
        resend: Resend,
    ) -> Result<RemoteReply, RemoteError> {
        let command = command.into();
        self.running.set(self.running.get() + 1);
        let _running = Running(self);
        let deadline = Deadline::after(limit);
        let connection = self.host(host).acquire(Needed::Any, &deadline).await?;
        let resends = resend == Resend::OverNewConnection && connection.was_used();
        let broken = match connection.run_once(command, &deadline).await {
            Err(error) if resends && error.is_broken_connection() => error,
            reply => return reply,
        };
        match self.host(host).acquire(Needed::New, &deadline).await {
            Ok(connection) => connection.run_once(command, &deadline).await,
            // It was sent once, and may have had its effect.
            Err(RemoteError::NoConnection(_)) => Err(broken),
            Err(error) => Err(error),
        }
    }

    /// A new connection, set up within a time, for a caller that keeps it for many commands, or has
    /// replies follow one another.
    ///
    /// # Errors
    /// `NoConnection` as of [`Pool::run`], and what went wrong while it was set up: `Refused` with
    /// `AuthenticationFailed` where either side does not have a key of the other's.
    pub async fn open(
        &self,
        host: &HostPort,
        limit: Duration,
    ) -> Result<PooledConnection, RemoteError> {
        let deadline = Deadline::after(limit);
        self.host(host).acquire(Needed::New, &deadline).await
    }

    /// A connection within a time, for a caller that runs several commands on it and gives it back
    /// ([`PooledConnection::give_back`]): one that is left over, or a new one.
    ///
    /// # Errors
    /// As of [`Pool::open`].
    pub async fn acquire(
        &self,
        host: &HostPort,
        limit: Duration,
    ) -> Result<PooledConnection, RemoteError> {
        let deadline = Deadline::after(limit);
        self.host(host).acquire(Needed::Any, &deadline).await
    }

    fn host(&self, address: &HostPort) -> Rc<Host> {
        let mut hosts = self.hosts.borrow_mut();
        if hosts.len() >= self.shared.limits.hosts && !hosts.contains_key(address) {
            // Those that are not spoken to any more.
            hosts.retain(|_, host| {
                let counts = host.counts();
                counts.in_use + counts.idle + counts.attempts + counts.waiting > 0
            });
        }
        let host = hosts.entry(address.clone());
        host.or_insert_with(|| Host::new(address.clone(), self.shared.clone()))
            .clone()
    }

    /// Closes what is left over to a host, and what is in use when it is given back: the host has
    /// restarted, or is not to be spoken to any more.
    pub fn forget(&self, host: &HostPort) {
        let found = self.hosts.borrow().get(host).cloned();
        if let Some(found) = found {
            found.forget();
        }
    }

    /// Forgets all hosts but those that are kept.
    pub fn forget_others(&self, is_kept: impl Fn(&HostPort) -> bool) {
        let others: Vec<Rc<Host>> = {
            let hosts = self.hosts.borrow();
            let others = hosts.iter().filter(|(address, _)| !is_kept(address));
            others.map(|(_, host)| host.clone()).collect()
        };
        for other in others {
            other.forget();
        }
    }

    /// How many commands are not answered yet.
    pub fn running(&self) -> u64 {
        self.running.get()
    }

    /// The connections to each host.
    pub fn figures(&self) -> Vec<HostFigures> {
        let hosts = self.hosts.borrow();
        let figures = hosts.iter().map(|(address, host)| {
            let Counts {
                in_use,
                idle,
                attempts,
                created,
                waiting: _,
            } = host.counts();
            HostFigures {
                host: address.clone(),
                in_use: in_use as u64,
                available: idle as u64,
                refreshing: attempts as u64,
                created,
            }
        });
        figures.collect()
    }
}
