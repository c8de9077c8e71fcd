//! Sockets: listeners, accepted connections on their way to a core, and connections.

use std::io;
use std::net::{IpAddr, SocketAddr};

use bytes::{Bytes, BytesMut};

use crate::context::{self, Backend};
use crate::{real, sim};

/// Accepts connections.
pub struct Listener(ListenerKind);

enum ListenerKind {
    Real(real::RealListener),
    Sim(sim::SimListener),
}

impl Listener {
    /// Listens on `addr`; port zero takes a free one.
    pub async fn bind(addr: SocketAddr) -> io::Result<Listener> {
        let context = context::current();
        match &context.backend {
            Backend::Real(_) => real::RealListener::bind(addr)
                .await
                .map(|inner| Listener(ListenerKind::Real(inner))),
            Backend::Sim(core) => sim::SimListener::bind(core, addr)
                .await
                .map(|inner| Listener(ListenerKind::Sim(inner))),
        }
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<Incoming> {
        match &self.0 {
            ListenerKind::Real(inner) => inner
                .accept()
                .await
                .map(|incoming| Incoming(IncomingKind::Real(incoming))),
            ListenerKind::Sim(inner) => inner
                .accept()
                .await
                .map(|incoming| Incoming(IncomingKind::Sim(incoming))),
        }
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.0 {
            ListenerKind::Real(inner) => inner.local_addr(),
            ListenerKind::Sim(inner) => inner.local_addr(),
        }
    }
}

/// An accepted connection that no core owns yet; dropping it closes the connection.
pub struct Incoming(IncomingKind);

enum IncomingKind {
    Real(real::RealIncoming),
    Sim(sim::SimIncoming),
}

impl Incoming {
    pub fn peer_addr(&self) -> SocketAddr {
        match &self.0 {
            IncomingKind::Real(inner) => inner.peer_addr(),
            IncomingKind::Sim(inner) => inner.peer_addr(),
        }
    }

    pub fn local_addr(&self) -> SocketAddr {
        match &self.0 {
            IncomingKind::Real(inner) => inner.local_addr(),
            IncomingKind::Sim(inner) => inner.local_addr(),
        }
    }

    /// Makes the calling core the connection's owner.
    pub fn attach(self) -> io::Result<Connection> {
        match self.0 {
            IncomingKind::Real(inner) => inner
                .attach()
                .map(|inner| Connection(ConnectionKind::Real(inner))),
            IncomingKind::Sim(inner) => inner
                .attach()
                .map(|inner| Connection(ConnectionKind::Sim(inner))),
        }
    }
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Incoming>();
};

/// A TCP connection owned by this core. Clones are the same connection; when the last is dropped,
/// queued output is still sent and then the connection is closed.
#[derive(Clone)]
pub struct Connection(ConnectionKind);

#[derive(Clone)]
enum ConnectionKind {
    Real(real::RealConnection),
    Sim(sim::SimConnection),
}

/// Opens a connection.
pub async fn connect(addr: SocketAddr) -> io::Result<Connection> {
    let context = context::current();
    match &context.backend {
        Backend::Real(_) => real::RealConnection::connect(addr)
            .await
            .map(|inner| Connection(ConnectionKind::Real(inner))),
        Backend::Sim(core) => sim::SimConnection::connect(core, addr)
            .await
            .map(|inner| Connection(ConnectionKind::Sim(inner))),
    }
}

/// The addresses of a host, at least one. A simulated node knows no names, only addresses written
/// out.
///
/// # Errors
/// The name is unknown, or the resolver does not answer.
pub async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let is_real = context::with(|context| matches!(context.backend, Backend::Real(_)));
    match is_real {
        true => real::resolve(host, port).await,
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

impl Connection {
    /// Appends received bytes to `into` and says how many, at most
    /// [`crate::limits::RECEIVE_CHUNK_BYTES`]; zero when the peer has closed its side. One task
    /// receives at a time.
    pub async fn recv(&self, into: &mut BytesMut) -> io::Result<usize> {
        match &self.0 {
            ConnectionKind::Real(inner) => inner.recv(into).await,
            ConnectionKind::Sim(inner) => inner.recv(into).await,
        }
    }

    /// Queues bytes for sending, in order. Waits while more than
    /// [`crate::limits::OUTPUT_BUFFER_BYTES`] are queued.
    pub async fn send(&self, data: Bytes) -> io::Result<()> {
        match &self.0 {
            ConnectionKind::Real(inner) => inner.send(data).await,
            ConnectionKind::Sim(inner) => inner.send(data).await,
        }
    }

    /// Waits until all queued output was handed to the operating system.
    pub async fn flush(&self) -> io::Result<()> {
        match &self.0 {
            ConnectionKind::Real(inner) => inner.flush().await,
            ConnectionKind::Sim(inner) => inner.flush().await,
        }
    }

    /// Closes the sending side once the queued output was sent; the peer's bytes can still be
    /// received.
    pub fn shutdown_write(&self) {
        match &self.0 {
            ConnectionKind::Real(inner) => inner.shutdown_write(),
            ConnectionKind::Sim(inner) => inner.shutdown_write(),
        }
    }

    /// Closes the connection at once: queued output is dropped, and every waiter gets an error.
    pub fn close(&self) {
        match &self.0 {
            ConnectionKind::Real(inner) => inner.close(),
            ConnectionKind::Sim(inner) => inner.close(),
        }
    }

    pub fn peer_addr(&self) -> SocketAddr {
        match &self.0 {
            ConnectionKind::Real(inner) => inner.peer_addr(),
            ConnectionKind::Sim(inner) => inner.peer_addr(),
        }
    }

    pub fn local_addr(&self) -> SocketAddr {
        match &self.0 {
            ConnectionKind::Real(inner) => inner.local_addr(),
            ConnectionKind::Sim(inner) => inner.local_addr(),
        }
    }

    /// A number that no other connection of this node has had since it started.
    pub fn id(&self) -> u64 {
        match &self.0 {
            ConnectionKind::Real(inner) => inner.id(),
            ConnectionKind::Sim(inner) => inner.id(),
        }
    }
}
