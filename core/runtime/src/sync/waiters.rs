//! A first-come list of waiting tasks, from which a cancelled wait is removed at once.

use std::collections::BTreeMap;
use std::task::Waker;

/// Names one wait in a [`Waiters`] list. Tickets grow, so their order is the order of arrival.
pub(super) type Ticket = u64;

/// Waiting tasks in order of arrival, each with what it waits for.
pub(super) struct Waiters<T> {
    next: Ticket,
    waiting: BTreeMap<Ticket, (T, Option<Waker>)>,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Waiters {
            next: 0,
            waiting: BTreeMap::new(),
        }
    }
}

impl<T> Waiters<T> {
    pub(super) fn push(&mut self, want: T, waker: Option<Waker>) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.waiting.insert(ticket, (want, waker));
        ticket
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn contains(&self, ticket: Ticket) -> bool {
        self.waiting.contains_key(&ticket)
    }

    /// Keeps the waker of a wait that continues.
    pub(super) fn set_waker(&mut self, ticket: Ticket, waker: &Waker) {
        if let Some((_, slot)) = self.waiting.get_mut(&ticket) {
            match slot {
                Some(existing) if existing.will_wake(waker) => {}
                _ => *slot = Some(waker.clone()),
            }
        }
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.waiting.first_key_value().map(|(_, (want, _))| want)
    }

    pub(super) fn pop(&mut self) -> Option<(T, Option<Waker>)> {
        self.waiting.pop_first().map(|(_, wait)| wait)
    }

    /// Removes a wait; true when it was still in the list.
    pub(super) fn remove(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket).is_some()
    }
}
