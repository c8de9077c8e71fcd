//! Connections to the other members. Each command has one to itself while it runs; what is left
//! over is kept for the next.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use pinion_bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};
use pinion_replication_protocol::config::HostPort;
use pinion_runtime::{Duration, Instant, now, timeout};
use pinion_server::{Remote, RemoteError, RemoteReply};

use crate::connection::{Connection, Counted};
use crate::limits::{IDLE_CONNECTION, IDLE_CONNECTIONS};
use crate::login::{Login, log_in};

/// Connections of one core to other members.
#[derive(Default)]
pub(crate) struct Peers {
    idle: RefCell<BTreeMap<HostPort, Vec<Idle>>>,
    /// Commands that are not answered yet.
    running: Cell<u64>,
}

struct Idle {
    remote: Connection,
    since: Instant,
}

/// A command that is not answered yet.
struct Running<'p>(&'p Peers);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

impl Peers {
    pub(crate) fn new() -> Rc<Peers> {
        Rc::default()
    }

    /// How many commands are not answered yet.
    pub(crate) fn running(&self) -> u64 {
        self.running.get()
    }

    /// Runs a command on a member, which names its database, within a time. It may be run twice: a
    /// connection that was left over may turn out to be closed.
    ///
    /// # Errors
    /// `Broken` also when the time is up.
    pub(crate) async fn run(
        &self,
        address: &HostPort,
        command: &RawDocument,
        limit: Duration,
    ) -> Result<RemoteReply, RemoteError> {
        self.running.set(self.running.get() + 1);
        let _running = Running(self);
        let within = async {
            if let Some(mut remote) = self.left_over(address) {
                match remote.run(command).await {
                    // The other side has closed it meanwhile, and others to it with it.
                    Err(RemoteError::Broken(_)) => self.forget(address),
                    reply => return self.keep(address, remote, reply),
                }
            }
            let mut remote = connect(address).await?;
            let reply = remote.run(command).await;
            self.keep(address, remote, reply)
        };
        match timeout(limit, within).await {
            Ok(reply) => reply,
            Err(_) => Err(RemoteError::Broken(io::ErrorKind::TimedOut.into())),
        }
    }

    /// A refusal leaves the connection as it was; anything else leaves it in the middle of
    /// something.
    fn keep(
        &self,
        address: &HostPort,
        remote: Connection,
        reply: Result<RemoteReply, RemoteError>,
    ) -> Result<RemoteReply, RemoteError> {
        if matches!(reply, Ok(_) | Err(RemoteError::Refused(_))) {
            self.give_back(address, remote);
        }
        reply
    }

    fn left_over(&self, address: &HostPort) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let now = now();
        // Of all members: one that was removed is never asked for again.
        idle.retain(|_, connections| {
            connections.retain(|idle| now.saturating_since(idle.since) < IDLE_CONNECTION);
            !connections.is_empty()
        });
        let mut taken = idle.get_mut(address)?.pop()?;
        taken.remote.set_idle(false);
        Some(taken.remote)
    }

    fn give_back(&self, address: &HostPort, mut remote: Connection) {
        let mut idle = self.idle.borrow_mut();
        let connections = idle.entry(address.clone()).or_default();
        if connections.len() < IDLE_CONNECTIONS {
            let since = now();
            remote.set_idle(true);
            connections.push(Idle { remote, since });
        }
    }

    /// Closes what is left over to a member: it has restarted, or is no member any more.
    pub(crate) fn forget(&self, address: &HostPort) {
        self.idle.borrow_mut().remove(address);
    }
}

/// Opens a connection, introduces this node on it and, where the set has a key, proves to have
/// that.
///
/// # Errors
/// `Refused` with `AuthenticationFailed` where either side does not have a key of the other's.
pub(crate) async fn connect(address: &HostPort) -> Result<Connection, RemoteError> {
    let counted = Counted::connecting(address);
    let mut remote = Remote::open(&address.host, address.port).await?;
    let mut introduction = introduction();
    let info = pinion_service::node_info::node_info();
    let Some(auth) = &info.options.member_auth else {
        remote.run(&introduction).await?;
        return Ok(Connection::made(remote, counted));
    };
    // Most often this saves one way there and back.
    let login = Login::new()?;
    introduction.append(cstr!("speculativeAuthenticate"), login.speculative());
    let greeted = remote.run(&introduction).await?;
    log_in(&mut remote, auth, login, greeted.body()).await?;
    Ok(Connection::made(remote, counted))
}

/// The first command on a connection between members. Members of MongoDB 4.4 know it by its older
/// name alone.
fn introduction() -> RawDocumentBuf {
    rawdoc! {
        "isMaster": 1,
        "client": {
            "driver": { "name": "NetworkInterfacePinion", "version": env!("CARGO_PKG_VERSION") },
            "os": { "type": "Linux", "name": "Linux", "architecture": "", "version": "" },
        },
        "internalClient": { "minWireVersion": 0, "maxWireVersion": pinion_service::hello::MAX_WIRE_VERSION },
        "$db": "admin",
    }
}
