//! Simulated sockets, as the tasks of a node hold them.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use super::core::SimCore;
use super::life::CoreState;
use super::network::{self, ConnectionId, End};
use crate::context::{self, Backend};
use crate::limits::{OUTPUT_BUFFER_BYTES, RECEIVE_CHUNK_BYTES};

/// A listener of a simulated node.
pub(crate) struct SimListener {
    core: Rc<CoreState>,
    addr: SocketAddr,
}

impl SimListener {
    pub(crate) async fn bind(core: &SimCore, addr: SocketAddr) -> io::Result<SimListener> {
        let core = Rc::clone(core.state());
        if !core.life().has_effect() {
            return pending().await;
        }
        let addr = core.world().bind(core.node().index, addr)?;
        Ok(SimListener { core, addr })
    }

    pub(crate) async fn accept(&self) -> io::Result<SimIncoming> {
        loop {
            if !self.core.life().has_effect() {
                return pending().await;
            }
            let world = self.core.world();
            match world.try_accept(self.core.node().index, self.addr.port()) {
                Ok(id) => {
                    let mut network = world.network.borrow_mut();
                    let (peer, local) = (network.end(id, 0).addr, network.end(id, 1).addr);
                    return Ok(SimIncoming {
                        id,
                        peer,
                        local,
                        attached: false,
                    });
                }
                Err(arrival) => {
                    drop(world);
                    arrival.await;
                }
            }
        }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        if self.core.life().has_effect() {
            self.core
                .world()
                .close_listener(self.core.node().index, self.addr.port());
        }
    }
}

/// The end of a connection on the side that accepted it.
const ACCEPTED: usize = 1;

/// An accepted connection; it holds no more than numbers, so that it can cross cores.
pub(crate) struct SimIncoming {
    id: ConnectionId,
    peer: SocketAddr,
    local: SocketAddr,
    attached: bool,
}

/// The simulated core that runs the caller.
fn current_core() -> Option<Rc<CoreState>> {
    match &context::try_current()?.backend {
        Backend::Sim(core) => Some(Rc::clone(core.state())),
        Backend::Real(_) => None,
    }
}

impl SimIncoming {
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn attach(mut self) -> io::Result<SimConnection> {
        self.attached = true;
        let core = current_core().expect("a simulated connection is attached to a simulated core");
        Ok(SimConnection::new(
            core, self.id, ACCEPTED, self.local, self.peer,
        ))
    }
}

impl Drop for SimIncoming {
    fn drop(&mut self) {
        if self.attached {
            return;
        }
        if let Some(core) = current_core()
            && core.life().has_effect()
        {
            core.world().detach(self.id, ACCEPTED, true);
        }
    }
}

/// A connection of a simulated core.
#[derive(Clone)]
pub(crate) struct SimConnection(Rc<Handle>);

struct Handle {
    core: Rc<CoreState>,
    id: ConnectionId,
    side: usize,
    local: SocketAddr,
    peer: SocketAddr,
    closed: std::cell::Cell<bool>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.core.life().has_effect() {
            self.core.stats.borrow_mut().connections_open -= 1;
            if !self.closed.get() {
                self.core.world().detach(self.id, self.side, false);
            }
        }
    }
}

impl SimConnection {
    fn new(
        core: Rc<CoreState>,
        id: ConnectionId,
        side: usize,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> SimConnection {
        core.stats.borrow_mut().connections_open += 1;
        let closed = std::cell::Cell::new(false);
        SimConnection(Rc::new(Handle {
            core,
            id,
            side,
            local,
            peer,
            closed,
        }))
    }

    pub(crate) async fn connect(core: &SimCore, addr: SocketAddr) -> io::Result<SimConnection> {
        let core = Rc::clone(core.state());
        if !core.life().has_effect() {
            return pending().await;
        }
        let world = core.world();
        let id = network::connect(&world, core.node().index, addr).await?;
        let (local, peer) = {
            let mut network = world.network.borrow_mut();
            (network.end(id, 0).addr, network.end(id, 1).addr)
        };
        Ok(SimConnection::new(core, id, 0, local, peer))
    }

    /// Runs `f` on this end, or fails as a closed connection does. What a dying node asks for is
    /// never answered.
    fn with_end<T>(&self, f: impl FnOnce(&mut End) -> Outcome<T>) -> Outcome<T> {
        let handle = &self.0;
        if !handle.core.life().has_effect() {
            return Outcome::Never;
        }
        if handle.closed.get() {
            return Outcome::Done(Err(io::ErrorKind::NotConnected.into()));
        }
        let world = handle.core.world();
        let mut network = world.network.borrow_mut();
        let end = network.end(handle.id, handle.side);
        if let Some(error) = end.error {
            return Outcome::Done(Err(error.into()));
        }
        f(end)
    }

    fn pump(&self, side: usize) {
        let world = self.0.core.world();
        world.pump(&mut world.network.borrow_mut(), self.0.id, side);
    }

    pub(crate) async fn recv(&self, into: &mut BytesMut) -> io::Result<usize> {
        loop {
            let outcome = self.with_end(|end| {
                if end.has_input() {
                    Outcome::Done(Ok(end.take_input(RECEIVE_CHUNK_BYTES, into)))
                } else if end.ended_by_peer {
                    Outcome::Done(Ok(0))
                } else {
                    Outcome::Wait(end.readable.notified())
                }
            });
            match outcome {
                Outcome::Done(Ok(received)) if received > 0 => {
                    // Reading opens the window of the other side.
                    self.pump(1 - self.0.side);
                    let mut stats = self.0.core.stats.borrow_mut();
                    stats.network_in_bytes += received as u64;
                    stats.network_receives += 1;
                    return Ok(received);
                }
                Outcome::Done(result) => return result,
                Outcome::Wait(readable) => readable.await,
                Outcome::Never => return pending().await,
            }
        }
    }

    pub(crate) async fn send(&self, data: Bytes) -> io::Result<()> {
        let len = data.len();
        let mut data = Some(data);
        loop {
            let outcome = self.with_end(|end| {
                if end.output_bytes > OUTPUT_BUFFER_BYTES {
                    return Outcome::Wait(end.writable.notified());
                }
                if len > 0 {
                    end.push_output(data.take().expect("queued once"));
                }
                Outcome::Done(Ok(()))
            });
            match outcome {
                Outcome::Done(Ok(())) => {
                    self.pump(self.0.side);
                    let mut stats = self.0.core.stats.borrow_mut();
                    stats.network_out_bytes += len as u64;
                    stats.network_sends += 1;
                    return Ok(());
                }
                Outcome::Done(Err(error)) => return Err(error),
                Outcome::Wait(writable) => writable.await,
                Outcome::Never => return pending().await,
            }
        }
    }

    pub(crate) async fn flush(&self) -> io::Result<()> {
        loop {
            let outcome = self.with_end(|end| {
                if end.output_bytes == 0 {
                    Outcome::Done(Ok(()))
                } else {
                    Outcome::Wait(end.writable.notified())
                }
            });
            match outcome {
                Outcome::Done(result) => return result,
                Outcome::Wait(writable) => writable.await,
                Outcome::Never => return pending().await,
            }
        }
    }

    pub(crate) fn shutdown_write(&self) {
        let outcome = self.with_end(|end| {
            end.want_end();
            Outcome::Done(Ok(()))
        });
        if matches!(outcome, Outcome::Done(Ok(()))) {
            self.pump(self.0.side);
        }
    }

    pub(crate) fn close(&self) {
        let handle = &self.0;
        if !handle.core.life().has_effect() || handle.closed.replace(true) {
            return;
        }
        let world = handle.core.world();
        {
            // A waiter on this end wakes and finds it closed.
            let mut network = world.network.borrow_mut();
            let end = network.end(handle.id, handle.side);
            end.readable.notify_all();
            end.writable.notify_all();
        }
        world.detach(handle.id, handle.side, true);
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.0.peer
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.0.local
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }
}

/// What an operation on an end comes to at this moment.
enum Outcome<T> {
    Done(io::Result<T>),
    Wait(crate::sync::Notified),
    Never,
}
