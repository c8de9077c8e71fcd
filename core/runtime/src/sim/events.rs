//! The event queue: what happens at which virtual time.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Waker;

use super::world::World;

/// Names a scheduled event; in order of time, and of scheduling within one time.
pub(super) type EventKey = (u64, u64);

/// Something to do at its time.
type Call = Box<dyn FnOnce(&Rc<World>)>;

pub(super) enum Event {
    /// A sleeping task.
    Wake(Waker),
    /// Anything else.
    Call(Call),
}

#[derive(Default)]
pub(super) struct EventQueue {
    events: BTreeMap<EventKey, Event>,
    scheduled: u64,
}

impl EventQueue {
    pub(super) fn schedule(&mut self, at: u64, event: Event) -> EventKey {
        let key = (at, self.scheduled);
        self.scheduled += 1;
        self.events.insert(key, event);
        key
    }

    pub(super) fn cancel(&mut self, key: EventKey) -> Option<Event> {
        self.events.remove(&key)
    }

    pub(super) fn get_mut(&mut self, key: EventKey) -> Option<&mut Event> {
        self.events.get_mut(&key)
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.events.first_key_value().map(|(key, _)| key.0)
    }

    pub(super) fn pop(&mut self) -> Option<(EventKey, Event)> {
        self.events.pop_first()
    }

    /// Empties the queue; the caller drops what was in it.
    pub(super) fn take_all(&mut self) -> BTreeMap<EventKey, Event> {
        std::mem::take(&mut self.events)
    }
}
