//! Listeners: multishot accept, and sockets on their way to the core that will own them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Poll, Waker};

use io_uring::{opcode, types};

use super::connection::RealConnection;
use crate::real::core::RealCore;
use crate::real::limits::ACCEPT_RETRY;
use crate::real::ring::{Completion, Kind, user_data};
use crate::real::sys;

/// A listening socket on its core's ring.
pub(super) struct Acceptor {
    socket: OwnedFd,
    local: SocketAddr,
    index: Cell<u32>,
    queue: RefCell<VecDeque<OwnedFd>>,
    error: Cell<Option<i32>>,
    armed: Cell<bool>,
    closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Acceptor {
    fn arm(&self, core: &RealCore) {
        if self.armed.get() || self.closed.get() {
            return;
        }
        self.armed.set(true);
        let entry = opcode::AcceptMulti::new(types::Fd(self.socket.as_raw_fd()))
            .flags(libc::SOCK_CLOEXEC)
            .build();
        // SAFETY: the entry points to no memory, and the listening socket stays open while the
        // request is armed.
        unsafe {
            core.uring()
                .push(entry.user_data(user_data(Kind::Accept, self.index.get())))
        };
    }

    fn cancel(&self, core: &RealCore) {
        if self.armed.get() {
            core.cancel(user_data(Kind::Accept, self.index.get()));
        }
    }

    pub fn completed(&self, core: &RealCore, completion: Completion) {
        if !completion.more() {
            self.armed.set(false);
        }
        if completion.result >= 0 {
            let socket = sys::own_fd(completion.result);
            let mut queue = self.queue.borrow_mut();
            if !self.closed.get() {
                queue.push_back(socket);
                if queue.len() == crate::limits::ACCEPT_BACKLOG {
                    self.cancel(core);
                }
            }
        } else if !matches!(
            -completion.result,
            libc::ECANCELED | libc::ECONNABORTED | libc::EINTR
        ) {
            self.error.set(Some(-completion.result));
        }
        if self.closed.get() {
            self.release(core);
            return;
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Stops accepting and drops connections that were not accepted.
    pub fn stop(&self, core: &RealCore) {
        if self.closed.replace(true) {
            return;
        }
        self.queue.borrow_mut().clear();
        self.cancel(core);
        self.release(core);
    }

    fn release(&self, core: &RealCore) {
        if self.closed.get() && !self.armed.get() {
            let removed = core
                .net()
                .acceptors
                .borrow_mut()
                .try_remove(self.index.get() as usize);
            drop(removed);
        }
    }
}

/// A listening socket. Dropping it stops listening.
pub(crate) struct RealListener {
    core: RealCore,
    acceptor: Rc<Acceptor>,
}

impl RealListener {
    pub async fn bind(address: SocketAddr) -> io::Result<RealListener> {
        let core = RealCore::current();
        // The standard library binds without waiting, with address reuse and the system's largest
        // backlog.
        #[allow(clippy::disallowed_methods)]
        let listener = std::net::TcpListener::bind(address)?;
        let local = listener.local_addr()?;
        let acceptor = Rc::new(Acceptor {
            socket: OwnedFd::from(listener),
            local,
            index: Cell::new(0),
            queue: RefCell::default(),
            error: Cell::new(None),
            armed: Cell::new(false),
            closed: Cell::new(false),
            waker: RefCell::new(None),
        });
        let index = core.net().acceptors.borrow_mut().insert(acceptor.clone());
        acceptor.index.set(index as u32);
        acceptor.arm(&core);
        Ok(RealListener { core, acceptor })
    }

    /// The next connection. An error (too many open files, say) concerns one attempt: later ones
    /// may succeed.
    pub async fn accept(&self) -> io::Result<RealIncoming> {
        loop {
            let next = poll_fn(|context| {
                if let Some(socket) = self.acceptor.queue.borrow_mut().pop_front() {
                    return Poll::Ready(Ok(socket));
                }
                if let Some(code) = self.acceptor.error.take() {
                    return Poll::Ready(Err(io::Error::from_raw_os_error(code)));
                }
                self.acceptor.waker.replace(Some(context.waker().clone()));
                self.acceptor.arm(&self.core);
                Poll::Pending
            })
            .await;
            match next {
                // A peer that has gone again has no address any more.
                Ok(socket) => match RealIncoming::new(socket, self.acceptor.local) {
                    Ok(incoming) => return Ok(incoming),
                    Err(_) => continue,
                },
                Err(error) => {
                    self.core.sleep_until(self.core.now() + ACCEPT_RETRY).await;
                    return Err(error);
                }
            }
        }
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.acceptor.local
    }
}

impl Drop for RealListener {
    fn drop(&mut self) {
        self.acceptor.stop(&self.core);
    }
}

/// An accepted socket that no core owns yet.
pub(crate) struct RealIncoming {
    socket: OwnedFd,
    peer: SocketAddr,
    local: SocketAddr,
}

impl RealIncoming {
    fn new(socket: OwnedFd, listening: SocketAddr) -> io::Result<RealIncoming> {
        let peer = sys::peer_address(socket.as_raw_fd())?;
        // A listener on all addresses has to ask which one was called.
        let local = if listening.ip().is_unspecified() {
            sys::local_address(socket.as_raw_fd())?
        } else {
            listening
        };
        sys::prepare_stream(socket.as_raw_fd())?;
        Ok(RealIncoming {
            socket,
            peer,
            local,
        })
    }

    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Makes the calling core the owner.
    pub fn attach(self) -> io::Result<RealConnection> {
        Ok(RealConnection::new(
            &RealCore::current(),
            self.socket,
            self.peer,
            self.local,
        ))
    }
}
