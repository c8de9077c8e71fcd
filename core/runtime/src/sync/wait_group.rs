//! Waiting until a number of pieces of work is done.

use std::cell::Cell;
use std::rc::Rc;

use super::notify::Notify;

#[derive(Default)]
struct State {
    pending: Cell<usize>,
    done: Notify,
}

/// Counts pieces of work. Clones are the same group.
#[derive(Clone, Default)]
pub struct WaitGroup(Rc<State>);

impl WaitGroup {
    pub fn new() -> WaitGroup {
        WaitGroup::default()
    }

    /// Adds one piece of work, done when the guard is dropped.
    pub fn add(&self) -> WaitGroupGuard {
        self.0.pending.set(self.0.pending.get() + 1);
        WaitGroupGuard(Rc::clone(&self.0))
    }

    /// Pieces of work that are not done.
    pub fn pending(&self) -> usize {
        self.0.pending.get()
    }

    /// Waits until no work is pending.
    pub async fn wait(&self) {
        while self.0.pending.get() > 0 {
            self.0.done.notified().await;
        }
    }
}

/// One pending piece of work.
pub struct WaitGroupGuard(Rc<State>);

impl Drop for WaitGroupGuard {
    fn drop(&mut self) {
        let pending = self.0.pending.get();
        assert!(pending > 0, "more work was done than added");
        self.0.pending.set(pending - 1);
        if pending == 1 {
            self.0.done.notify_all();
        }
    }
}
