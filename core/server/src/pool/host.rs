//! One host of a pool: hands its connections out, has them set up, and closes them.
//!
//! Nothing here is dropped or woken while the state is borrowed.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::{Rc, Weak};

use pinion_runtime::sync::{OneshotReceiver, oneshot};
use pinion_runtime::{
    Elapsed, Instant, Queue, is_core, now, sleep_until, spawn, timeout, timeout_at,
};
use pinion_wire::{Error, ErrorCode, HostPort};

use super::connection::PooledConnection;
use super::state::{Answer, Counts, Needed, State, Waiter};
use super::{Deadline, Shared};
use crate::limits::ABANDONED_SETUP;
use crate::remote::{Remote, RemoteError};

pub(super) struct Host {
    address: HostPort,
    shared: Rc<Shared>,
    state: RefCell<State>,
    this: Weak<Host>,
}

/// A request that waits. Dropped, it leaves the line, and what it was served with serves another.
struct Waiting {
    host: Rc<Host>,
    number: u64,
    answer: OneshotReceiver<Answer>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        match self.answer.try_recv() {
            Some(Ok(connection)) => connection.put_back(),
            Some(Err(_)) => {}
            None => self.host.leave(self.number),
        }
    }
}

impl Host {
    pub(super) fn new(address: HostPort, shared: Rc<Shared>) -> Rc<Host> {
        Rc::new_cyclic(|this| Host {
            address,
            shared,
            state: RefCell::default(),
            this: this.clone(),
        })
    }

    fn this(&self) -> Rc<Host> {
        self.this.upgrade().expect("its caller has it")
    }

    pub(super) fn counts(&self) -> Counts {
        self.state.borrow().counts()
    }

    /// A connection of the caller's own, within a time.
    ///
    /// # Errors
    /// `NoConnection` when none was there in time, or too many wait for one; what went wrong where
    /// one was set up.
    pub(super) async fn acquire(
        &self,
        wanted: Needed,
        deadline: &Deadline,
    ) -> Result<PooledConnection, RemoteError> {
        if wanted == Needed::Any
            && let Some(connection) = self.left_over()
        {
            return Ok(connection);
        }
        let mut waiting = self.enqueue(wanted)?;
        match timeout_at(deadline.at, &mut waiting.answer).await {
            Ok(answer) => answer.expect("a request leaves the line with an answer"),
            Err(_) => Err(no_connection(
                ErrorCode::POOLED_CONNECTION_ACQUISITION_EXCEEDED_TIME_LIMIT,
                format!(
                    "Couldn't get a connection within the time limit of {}ms",
                    deadline.limit.as_millis()
                ),
            )),
        }
    }

    fn left_over(&self) -> Option<PooledConnection> {
        self.close_expired();
        let mut state = self.state.borrow_mut();
        let remote = state.take_idle()?;
        let generation = state.generation;
        drop(state);
        Some(PooledConnection::new(self.this(), remote, generation, true))
    }

    fn enqueue(&self, wanted: Needed) -> Result<Waiting, RemoteError> {
        let most = self.shared.limits.waiting;
        if self.counts().waiting >= most {
            return Err(no_connection(
                ErrorCode::POOLED_CONNECTION_ACQUISITION_REJECTED,
                format!(
                    "{most} requests wait for a connection to {} already",
                    self.address
                ),
            ));
        }
        let (sender, receiver) = oneshot();
        let answer = sender;
        let number = self.state.borrow_mut().enqueue(Waiter { wanted, answer });
        let waiting = Waiting {
            host: self.this(),
            number,
            answer: receiver,
        };
        self.start_attempts();
        Ok(waiting)
    }

    fn leave(&self, number: u64) {
        let waited = self.state.borrow_mut().leave(number);
        if waited {
            self.start_attempts();
        }
    }

    /// Has connections set up that requests wait for, as far as the limits permit.
    fn start_attempts(&self) {
        // A destructor that runs when the core has ended starts nothing.
        while is_core() {
            let next = {
                let mut state = self.state.borrow_mut();
                state.next_attempt(&self.shared.limits, now())
            };
            let Some((id, replaced)) = next else {
                break;
            };
            replaced.close();
            let task = spawn(Queue::Foreground, self.this().set_up(id));
            self.state.borrow_mut().set_task(id, task);
        }
    }

    async fn set_up(self: Rc<Self>, id: u64) {
        let mut attempt = pin!(self.shared.greeter.set_up(&self.address));
        let mut outcome = timeout(ABANDONED_SETUP, attempt.as_mut()).await;
        if outcome.is_err() {
            // If the request that this was for is gone, it makes room for another from now on.
            self.start_attempts();
            let rest = self.shared.limits.setup_time - ABANDONED_SETUP;
            outcome = timeout(rest, attempt.as_mut()).await;
        }
        self.attempt_ended(id, outcome);
    }

    fn attempt_ended(&self, id: u64, outcome: Result<Result<Remote, RemoteError>, Elapsed>) {
        let ended = self.state.borrow_mut().end_attempt(id);
        let Some(ended) = ended else {
            return;
        };
        match outcome {
            Ok(Ok(remote)) => {
                let generation = {
                    let mut state = self.state.borrow_mut();
                    state.count_created();
                    state.generation
                };
                self.put(remote, generation, false);
            }
            Ok(Err(error)) => {
                let failed = self.state.borrow_mut().fail(&ended);
                for waiter in failed {
                    // None has left: that takes it off the line.
                    let _ = waiter.answer.send(Err(error.for_other_waiter()));
                }
                if error.is_peer_gone() {
                    self.forget();
                }
            }
            // What waits has a limit of its own: it is tried again.
            Err(Elapsed) => {}
        }
        self.start_attempts();
    }

    /// Takes back a connection that was in use.
    pub(super) fn take_back(&self, remote: Remote, generation: u64, was_used: bool) {
        self.state.borrow_mut().release();
        self.put(remote, generation, was_used);
        self.start_attempts();
    }

    /// A connection that was in use is closed.
    pub(super) fn closed(&self) {
        self.state.borrow_mut().release();
        self.start_attempts();
    }

    /// Gives a connection to the first request that can use it, or keeps it.
    fn put(&self, remote: Remote, generation: u64, was_used: bool) {
        let mut state = self.state.borrow_mut();
        if generation != state.generation {
            drop(state);
            return;
        }
        if let Some(waiter) = state.serve(was_used) {
            drop(state);
            let connection = PooledConnection::new(self.this(), remote, generation, was_used);
            // If the request is gone nevertheless, the connection is closed.
            let _ = waiter.answer.send(Ok(connection));
            return;
        }
        let unwanted = state.keep(remote, &self.shared.limits, now());
        let is_watched = state.is_watched;
        state.is_watched |= unwanted.is_none();
        drop(state);
        if unwanted.is_none() && !is_watched && is_core() {
            spawn(Queue::Foreground, close_when_expired(self.this.clone()));
        }
    }

    /// A connection has broken. If the host was forgotten since it was set up, that says nothing of
    /// the present ones.
    pub(super) fn broke(&self, generation: u64) {
        let is_present = self.state.borrow().generation == generation;
        if is_present {
            self.forget();
        }
    }

    /// Closes what is left over; what is in use is closed when it is given back, and what is set
    /// up for requests that wait is set up again.
    pub(super) fn forget(&self) {
        let closed = self.state.borrow_mut().forget();
        for closed in closed {
            closed.close();
        }
        self.start_attempts();
    }

    /// Closes what is left over for too long, and returns when there is more to close.
    fn close_expired(&self) -> Option<Instant> {
        let idle_time = self.shared.limits.idle_time;
        let mut state = self.state.borrow_mut();
        let expired = state.take_expired(idle_time, now());
        let next = state.oldest_idle().map(|since| since + idle_time);
        drop(state);
        drop(expired);
        next
    }
}

/// Closes connections as they expire, until none is left over.
async fn close_when_expired(host: Weak<Host>) {
    loop {
        let next = match host.upgrade() {
            Some(host) => match host.close_expired() {
                Some(next) => next,
                None => {
                    host.state.borrow_mut().is_watched = false;
                    return;
                }
            },
            None => return,
        };
        sleep_until(next).await;
    }
}

fn no_connection(code: ErrorCode, why: String) -> RemoteError {
    RemoteError::NoConnection(Box::new(Error::new(code, why)))
}
