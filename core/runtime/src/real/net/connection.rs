//! Connections: multishot receive with bounded input, batched sends with bounded output, closing
//! that waits for the kernel.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use io_uring::{opcode, types};

use super::add;
use super::send::Outgoing;
use crate::limits::{OUTPUT_BUFFER_BYTES, RECEIVE_CHUNK_BYTES};
use crate::real::core::RealCore;
use crate::real::limits::{
    INPUT_HIGH_BYTES, INPUT_KEEP_BYTES, INPUT_LOW_BYTES, LINGER, OUTPUT_HIGH_PIECES,
};
use crate::real::ring::{Completion, GROUP, Keep, Kind, Op, user_data};
use crate::real::sys::{self, RawAddress};
use crate::{Queue, task::store_waker};

/// Bytes in a receive buffer that the connection has not copied out yet.
#[derive(Clone, Copy)]
struct BufferSpan {
    buffer: u16,
    from: u32,
    to: u32,
}

#[derive(Default)]
struct Input {
    /// Unread bytes copied out of receive buffers; older than those in `held`.
    spilled: BytesMut,
    held: VecDeque<BufferSpan>,
    /// All unread bytes.
    len: usize,
    ended: bool,
    error: Option<i32>,
    /// The multishot receive is in the kernel.
    armed: bool,
    /// Unread bytes at which it is cancelled, because the task does not read; `None` stands for
    /// [`INPUT_HIGH_BYTES`]. Higher once a cancellation is under way, so that one which came to
    /// nothing is followed by another.
    pause_at: Option<usize>,
}

#[derive(Default)]
struct Output {
    queue: VecDeque<Bytes>,
    in_flight: Option<Outgoing>,
    /// Bytes in `queue` and `in_flight`.
    len: usize,
    error: Option<i32>,
    /// On the core's list of connections with output to submit.
    dirty: bool,
    /// No more output comes: shut down the direction when all was sent.
    finishing: bool,
    finished: bool,
    waiting: Vec<Waker>,
}

impl Output {
    fn wait(&mut self, context: &Context<'_>) {
        if !self
            .waiting
            .iter()
            .any(|waker| waker.will_wake(context.waker()))
        {
            self.waiting.push(context.waker().clone());
        }
    }
}

/// A connected socket on its core's ring.
pub(super) struct Socket {
    fd: OwnedFd,
    index: Cell<u32>,
    input: RefCell<Input>,
    output: RefCell<Output>,
    reader: RefCell<Option<Waker>>,
    /// No more use by us: reads and writes fail, and the entry goes when the kernel is done.
    closed: Cell<bool>,
}

impl Socket {
    fn receive(&self, core: &RealCore) {
        let mut input = self.input.borrow_mut();
        if input.armed || input.ended || input.error.is_some() || self.closed.get() {
            return;
        }
        input.armed = true;
        let entry = opcode::RecvMulti::new(types::Fd(self.fd.as_raw_fd()), GROUP).build();
        // SAFETY: the kernel writes only to provided buffers, which outlive the ring, and the
        // descriptor is open until the last completion of the request was seen (see `release`).
        unsafe {
            core.uring()
                .push(entry.user_data(user_data(Kind::Receive, self.index.get())))
        };
    }

    /// Takes a completion of the multishot receive.
    pub fn received(self: &Rc<Self>, core: &RealCore, completion: Completion) {
        let mut input = self.input.borrow_mut();
        if !completion.more() {
            input.armed = false;
            input.pause_at = None;
        }
        if let Some(buffer) = completion.buffer() {
            let mut buffers = core.buffers();
            buffers.take(buffer);
            if completion.result > 0 && !self.closed.get() {
                if input.held.is_empty() {
                    core.net().holding.borrow_mut().push(self.clone());
                }
                input.held.push_back(BufferSpan {
                    buffer,
                    from: 0,
                    to: completion.result as u32,
                });
                input.len += completion.result as usize;
                add(&core.net().received_bytes, completion.result as u64);
                add(&core.net().receives, 1);
            } else {
                buffers.give_back(buffer);
            }
        }
        match completion.result {
            0 => input.ended = true,
            1.. => {}
            negative => match -negative {
                libc::ENOBUFS => core.net().starved.borrow_mut().push(self.clone()),
                // The pause has taken effect, or the receive was ended from within: started again
                // when needed.
                libc::ECANCELED | libc::EINTR | libc::EAGAIN => {}
                code => input.error = Some(code),
            },
        }
        if self.closed.get() {
            drop(input);
            self.release(core);
            return;
        }
        if input.armed && input.len > input.pause_at.unwrap_or(INPUT_HIGH_BYTES) {
            input.pause_at = Some(input.len + INPUT_LOW_BYTES);
            core.cancel(user_data(Kind::Receive, self.index.get()));
        }
        // A receive that ended without a reason is restarted, unless the connection holds enough.
        let restart = !input.armed && completion.result > 0 && input.len <= INPUT_HIGH_BYTES;
        drop(input);
        if restart {
            self.receive(core);
        }
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    /// Receives again after the core ran out of receive buffers.
    pub fn restart(&self, core: &RealCore) {
        if self.input.borrow().len <= INPUT_HIGH_BYTES {
            self.receive(core);
        }
    }

    fn poll_receive(
        &self,
        core: &RealCore,
        into: &mut BytesMut,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut input = self.input.borrow_mut();
        if self.closed.get() {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        }
        if input.len == 0 {
            if let Some(code) = input.error {
                return Poll::Ready(Err(io::Error::from_raw_os_error(code)));
            }
            if input.ended {
                return Poll::Ready(Ok(0));
            }
            drop(input);
            store_waker(&self.reader, context.waker());
            self.receive(core);
            return Poll::Pending;
        }
        let limit = input.len.min(RECEIVE_CHUNK_BYTES);
        let mut taken = input.spilled.len().min(limit);
        if taken > 0 {
            into.extend_from_slice(&input.spilled[..taken]);
            bytes::Buf::advance(&mut input.spilled, taken);
            if input.spilled.is_empty() && input.spilled.capacity() > INPUT_KEEP_BYTES {
                input.spilled = BytesMut::new();
            }
        }
        while taken < limit {
            let held = input
                .held
                .front_mut()
                .expect("unread bytes are spilled or held");
            let take = ((held.to - held.from) as usize).min(limit - taken);
            let mut buffers = core.buffers();
            into.extend_from_slice(buffers.bytes(
                held.buffer,
                held.from as usize,
                held.from as usize + take,
            ));
            held.from += take as u32;
            if held.from == held.to {
                buffers.give_back(held.buffer);
                input.held.pop_front();
            }
            taken += take;
        }
        input.len -= taken;
        let resume = !input.armed && input.len <= INPUT_LOW_BYTES;
        drop(input);
        if resume {
            self.receive(core);
        }
        Poll::Ready(Ok(taken))
    }

    /// Copies what is held out of the receive buffers, which other connections need.
    pub fn spill(&self, core: &RealCore) {
        let mut input = self.input.borrow_mut();
        let input = &mut *input;
        let mut buffers = core.buffers();
        for held in input.held.drain(..) {
            input.spilled.extend_from_slice(buffers.bytes(
                held.buffer,
                held.from as usize,
                held.to as usize,
            ));
            buffers.give_back(held.buffer);
        }
    }

    fn poll_send(
        &self,
        data: &mut Option<Bytes>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        let mut output = self.output.borrow_mut();
        self.check_output(&output)?;
        if output.finishing {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // One message may overshoot the limit, so that a message larger than it can be sent at all.
        if output.len > OUTPUT_BUFFER_BYTES || output.queue.len() >= OUTPUT_HIGH_PIECES {
            output.wait(context);
            return Poll::Pending;
        }
        if let Some(data) = data.take().filter(|data| !data.is_empty()) {
            output.len += data.len();
            output.queue.push_back(data);
        }
        let make_dirty = !output.dirty && output.in_flight.is_none() && !output.queue.is_empty();
        output.dirty |= make_dirty;
        Poll::Ready(Ok(make_dirty))
    }

    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut output = self.output.borrow_mut();
        self.check_output(&output)?;
        if output.len == 0 {
            return Poll::Ready(Ok(()));
        }
        output.wait(context);
        Poll::Pending
    }

    fn check_output(&self, output: &Output) -> io::Result<()> {
        if let Some(code) = output.error {
            return Err(io::Error::from_raw_os_error(code));
        }
        if self.closed.get() {
            Err(io::ErrorKind::NotConnected.into())
        } else {
            Ok(())
        }
    }

    /// Submits queued output: once a loop turn for each connection that has some.
    pub fn submit_output(&self, core: &RealCore) {
        let mut output = self.output.borrow_mut();
        output.dirty = false;
        if output.in_flight.is_some() || output.queue.is_empty() || output.error.is_some() {
            return;
        }
        let outgoing = Outgoing::gather(&mut output.queue);
        let entry = output.in_flight.insert(outgoing).entry(self.fd.as_raw_fd());
        // SAFETY: the entry points into `in_flight`'s heap memory, which stays until the completion
        // was seen: only `sent` takes it, and the socket stays in the table until then (see
        // `release`).
        unsafe {
            core.uring()
                .push(entry.user_data(user_data(Kind::Send, self.index.get())))
        };
        add(&core.net().sends, 1);
    }

    /// Takes the completion of a send.
    pub fn sent(self: &Rc<Self>, core: &RealCore, result: i32) {
        let mut output = self.output.borrow_mut();
        let outgoing = output
            .in_flight
            .take()
            .expect("a send completed that was not in flight");
        if result < 0 {
            if -result != libc::EINTR && -result != libc::EAGAIN {
                output.error = Some(-result);
                output.queue.clear();
                output.len = 0;
            } else {
                outgoing.put_back(0, &mut output.queue);
            }
        } else {
            let sent = result as usize;
            add(&core.net().sent_bytes, sent as u64);
            output.len -= sent;
            if sent < outgoing.len() {
                outgoing.put_back(sent, &mut output.queue);
            }
        }
        if !output.queue.is_empty() && !output.dirty {
            output.dirty = true;
            core.net().dirty.borrow_mut().push(self.clone());
        }
        if output.len == 0 && output.finishing && !output.finished {
            output.finished = true;
            sys::shutdown(self.fd.as_raw_fd(), libc::SHUT_WR);
        }
        let waiting = std::mem::take(&mut output.waiting);
        let lingering = output.len > 0;
        drop(output);
        waiting.into_iter().for_each(Waker::wake);
        if self.closed.get() {
            if !lingering {
                self.abort(core);
            }
            self.release(core);
        }
    }

    /// Ends output once all that is queued was sent.
    fn finish(&self) {
        let mut output = self.output.borrow_mut();
        output.finishing = true;
        if output.len == 0 && !output.finished {
            output.finished = true;
            sys::shutdown(self.fd.as_raw_fd(), libc::SHUT_WR);
        }
    }

    /// Breaks the connection: queued output is dropped, requests in flight end.
    pub fn abort(&self, core: &RealCore) {
        self.closed.set(true);
        let mut output = self.output.borrow_mut();
        output.queue.clear();
        output.len = output.in_flight.as_ref().map_or(0, Outgoing::len);
        let waiting = std::mem::take(&mut output.waiting);
        drop(output);
        sys::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR);
        if self.input.borrow().armed {
            core.cancel(user_data(Kind::Receive, self.index.get()));
        }
        waiting.into_iter().for_each(Waker::wake);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        self.release(core);
    }

    /// Closes without breaking off queued output, which the peer gets [`LINGER`] to take.
    fn close_gracefully(self: &Rc<Self>, core: &RealCore) {
        if self.closed.get() {
            return;
        }
        if self.output.borrow().len == 0 {
            self.abort(core);
            return;
        }
        self.closed.set(true);
        if self.input.borrow().armed {
            core.cancel(user_data(Kind::Receive, self.index.get()));
        }
        let (socket, timer) = (Rc::downgrade(self), core.sleep_until(core.now() + LINGER));
        core.spawn(Queue::Background, async move {
            timer.await;
            if let Some(socket) = socket.upgrade() {
                socket.abort(&RealCore::current());
            }
        });
    }

    /// Removes a closed connection from the table when no request of it is in the kernel any more.
    fn release(&self, core: &RealCore) {
        let done = self.closed.get() && !self.input.borrow().armed && {
            let output = self.output.borrow();
            output.in_flight.is_none() && output.queue.is_empty()
        };
        if done {
            self.spill(core);
            let removed = {
                let mut sockets = core.net().sockets.borrow_mut();
                let index = self.index.get() as usize;
                // A second call finds the slot empty, or another connection's.
                match sockets.get(index) {
                    Some(socket) if std::ptr::eq(Rc::as_ptr(socket), self) => {
                        Some(sockets.remove(index))
                    }
                    _ => None,
                }
            };
            drop(removed);
        }
    }
}

/// The last handle closes the connection.
struct Handle {
    core: RealCore,
    socket: Rc<Socket>,
    peer: SocketAddr,
    local: SocketAddr,
    id: u64,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.socket.close_gracefully(&self.core);
    }
}

/// A connection, owned by the core that attached it.
#[derive(Clone)]
pub(crate) struct RealConnection(Rc<Handle>);

impl RealConnection {
    pub(super) fn new(
        core: &RealCore,
        fd: OwnedFd,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> RealConnection {
        let socket = Rc::new(Socket {
            fd,
            index: Cell::new(0),
            input: RefCell::default(),
            output: RefCell::default(),
            reader: RefCell::new(None),
            closed: Cell::new(false),
        });
        let index = core.net().sockets.borrow_mut().insert(socket.clone());
        socket.index.set(index as u32);
        socket.receive(core);
        RealConnection(Rc::new(Handle {
            core: core.clone(),
            socket,
            peer,
            local,
            id: core.connection_id(),
        }))
    }

    pub async fn connect(address: SocketAddr) -> io::Result<RealConnection> {
        let core = RealCore::current();
        let socket = sys::tcp_socket(&address)?;
        let (result, keep) = Op::connect(&core, socket, Box::new(RawAddress::new(&address))).await;
        result?;
        let Keep::Address(socket, _) = keep else {
            unreachable!("connect keeps a socket and an address")
        };
        sys::prepare_stream(socket.as_raw_fd())?;
        let local = sys::local_address(socket.as_raw_fd())?;
        Ok(RealConnection::new(&core, socket, address, local))
    }

    /// Appends bytes as they have come; zero when the peer has closed.
    pub async fn recv(&self, into: &mut BytesMut) -> io::Result<usize> {
        poll_fn(|context| self.0.socket.poll_receive(&self.0.core, into, context)).await
    }

    /// Queues bytes, waiting while the output buffer is full.
    pub async fn send(&self, data: Bytes) -> io::Result<()> {
        let mut data = Some(data);
        let make_dirty = poll_fn(|context| self.0.socket.poll_send(&mut data, context)).await?;
        if make_dirty {
            self.0
                .core
                .net()
                .dirty
                .borrow_mut()
                .push(self.0.socket.clone());
        }
        Ok(())
    }

    /// Waits until all queued bytes were handed to the system.
    pub async fn flush(&self) -> io::Result<()> {
        poll_fn(|context| self.0.socket.poll_flush(context)).await
    }

    pub fn shutdown_write(&self) {
        self.0.socket.finish();
    }

    pub fn close(&self) {
        self.0.socket.abort(&self.0.core);
    }

    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.0.local
    }

    pub fn id(&self) -> u64 {
        self.0.id
    }
}
