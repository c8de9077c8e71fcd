//! Waking of waiting tasks, one or all.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::waiters::{Ticket, Waiters};

#[derive(Default)]
struct State {
    /// A `notify_one` that found no waiter.
    permit: bool,
    /// Counts the calls of `notify_all`.
    rounds: u64,
    waiters: Waiters<()>,
}

/// Wakes waiting tasks. Clones share the same waiters.
#[derive(Clone, Default)]
pub struct Notify(Rc<RefCell<State>>);

impl Notify {
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes the task that has waited longest. When no task waits, the next wait completes at once;
    /// several such calls count as one.
    pub fn notify_one(&self) {
        let mut state = self.0.borrow_mut();
        match state.waiters.pop() {
            None => state.permit = true,
            Some(((), waker)) => {
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }

    /// Wakes every task whose [`Notify::notified`] was called before; leaves nothing for later
    /// ones.
    pub fn notify_all(&self) {
        let mut state = self.0.borrow_mut();
        state.rounds += 1;
        let mut woken = Vec::with_capacity(state.waiters.len());
        while let Some(((), waker)) = state.waiters.pop() {
            woken.extend(waker);
        }
        drop(state);
        for waker in woken {
            waker.wake();
        }
    }

    /// Completes at the next notification. A `notify_all` counts from this call on, even before the
    /// first poll, so a condition checked between this call and the await cannot be missed.
    pub fn notified(&self) -> Notified {
        let rounds = self.0.borrow().rounds;
        Notified {
            notify: self.clone(),
            rounds,
            ticket: None,
            done: false,
        }
    }

    /// How many tasks wait.
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiters.len()
    }
}

/// The future of [`Notify::notified`].
pub struct Notified {
    notify: Notify,
    rounds: u64,
    ticket: Option<Ticket>,
    done: bool,
}

impl Future for Notified {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(());
        }
        let mut state = this.notify.0.borrow_mut();
        match this.ticket {
            _ if state.rounds != this.rounds => this.done = true,
            None if state.permit => {
                state.permit = false;
                this.done = true;
            }
            None => this.ticket = Some(state.waiters.push((), Some(cx.waker().clone()))),
            Some(ticket) if state.waiters.contains(ticket) => {
                state.waiters.set_waker(ticket, cx.waker())
            }
            Some(_) => this.done = true,
        }
        if this.done {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.notify.0.borrow_mut();
        let notified = !state.waiters.remove(ticket) && state.rounds == self.rounds;
        drop(state);
        // A notification given to a wait that was dropped before it saw it belongs to the next one.
        if notified && !self.done {
            self.notify.notify_one();
        }
    }
}
