//! A fair counting semaphore.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::waiters::{Ticket, Waiters};

struct State {
    available: usize,
    waiters: Waiters<usize>,
}

/// Hands out permits in order of arrival. Clones share the same permits.
#[derive(Clone)]
pub struct Semaphore(Rc<RefCell<State>>);

impl Semaphore {
    pub fn new(permits: usize) -> Semaphore {
        Semaphore(Rc::new(RefCell::new(State {
            available: permits,
            waiters: Waiters::default(),
        })))
    }

    /// Waits for one permit.
    pub fn acquire(&self) -> Acquire {
        self.acquire_many(1)
    }

    /// Waits for `count` permits at once. Later requests, however small, wait behind this one.
    pub fn acquire_many(&self, count: usize) -> Acquire {
        Acquire {
            semaphore: self.clone(),
            count,
            ticket: None,
            done: false,
        }
    }

    /// Takes one permit if there is one and no task waits.
    pub fn try_acquire(&self) -> Option<Permit> {
        self.try_acquire_many(1)
    }

    /// Takes `count` permits if there are that many and no task waits.
    pub fn try_acquire_many(&self, count: usize) -> Option<Permit> {
        let mut state = self.0.borrow_mut();
        if state.available < count || !state.waiters.is_empty() {
            return None;
        }
        state.available -= count;
        drop(state);
        Some(Permit {
            semaphore: self.clone(),
            count,
        })
    }

    /// Permits that are not held.
    pub fn available(&self) -> usize {
        self.0.borrow().available
    }

    /// How many tasks wait for permits.
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiters.len()
    }

    /// Adds permits, and serves the waiters.
    pub fn add_permits(&self, count: usize) {
        let mut state = self.0.borrow_mut();
        state.available += count;
        let mut woken = Vec::new();
        while let Some(&want) = state.waiters.front() {
            if want > state.available {
                break;
            }
            state.available -= want;
            let (_, waker) = state.waiters.pop().expect("the front waiter was just seen");
            woken.extend(waker);
        }
        drop(state);
        for waker in woken {
            waker.wake();
        }
    }
}

/// The future of [`Semaphore::acquire`].
pub struct Acquire {
    semaphore: Semaphore,
    count: usize,
    ticket: Option<Ticket>,
    done: bool,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        assert!(!this.done, "polled after completion");
        let mut state = this.semaphore.0.borrow_mut();
        match this.ticket {
            None if state.available >= this.count && state.waiters.is_empty() => {
                state.available -= this.count
            }
            None => {
                this.ticket = Some(state.waiters.push(this.count, Some(cx.waker().clone())));
                return Poll::Pending;
            }
            Some(ticket) if state.waiters.contains(ticket) => {
                state.waiters.set_waker(ticket, cx.waker());
                return Poll::Pending;
            }
            // Taken off the list: the permits were granted.
            Some(_) => {}
        }
        drop(state);
        this.done = true;
        Poll::Ready(Permit {
            semaphore: this.semaphore.clone(),
            count: this.count,
        })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        if self.done {
            return;
        }
        let waited = self.semaphore.0.borrow_mut().waiters.remove(ticket);
        // A wait that leaves the front may uncover smaller ones; one that was granted gives its
        // permits back.
        self.semaphore
            .add_permits(if waited { 0 } else { self.count });
    }
}

/// Permits held; given back when dropped.
pub struct Permit {
    semaphore: Semaphore,
    count: usize,
}

impl Permit {
    /// How many permits this holds.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Keeps the permits out of the semaphore; `add_permits` brings them back.
    pub fn forget(mut self) {
        self.count = 0;
    }

    /// Splits off `count` of the permits held.
    ///
    /// # Panics
    /// When this holds fewer.
    pub fn split(&mut self, count: usize) -> Permit {
        assert!(
            count <= self.count,
            "a permit cannot be split into more than it holds"
        );
        self.count -= count;
        Permit {
            semaphore: self.semaphore.clone(),
            count,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.count > 0 {
            self.semaphore.add_permits(self.count);
        }
    }
}
