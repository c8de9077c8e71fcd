//! A drain counter: work enters, and closing waits until all of it has left.

use std::cell::Cell;
use std::rc::Rc;

use super::notify::Notify;

#[derive(Default)]
struct State {
    inside: Cell<usize>,
    closed: Cell<bool>,
    emptied: Notify,
}

/// Counts the work in flight. Clones are the same gate.
#[derive(Clone, Default)]
pub struct Gate(Rc<State>);

/// The gate lets nothing in any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateClosed;

impl std::fmt::Display for GateClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the gate is closed")
    }
}

impl std::error::Error for GateClosed {}

impl Gate {
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Enters, unless the gate is closed. The guard leaves when dropped.
    pub fn enter(&self) -> Result<GateGuard, GateClosed> {
        if self.0.closed.get() {
            return Err(GateClosed);
        }
        self.0.inside.set(self.0.inside.get() + 1);
        Ok(GateGuard(Rc::clone(&self.0)))
    }

    /// Lets nothing in any more and waits until everything has left. Several may wait.
    pub async fn close(&self) {
        self.0.closed.set(true);
        while self.0.inside.get() > 0 {
            self.0.emptied.notified().await;
        }
    }

    /// Lets work in again.
    pub fn reopen(&self) {
        self.0.closed.set(false);
    }

    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// How many guards are alive.
    pub fn inside(&self) -> usize {
        self.0.inside.get()
    }
}

/// Work inside a gate.
pub struct GateGuard(Rc<State>);

impl Drop for GateGuard {
    fn drop(&mut self) {
        let inside = self.0.inside.get();
        assert!(inside > 0, "more guards left a gate than entered it");
        self.0.inside.set(inside - 1);
        if inside == 1 {
            self.0.emptied.notify_all();
        }
    }
}
