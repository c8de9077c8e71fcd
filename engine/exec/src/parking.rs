//! Where operations wait while the data directory is opened again: none begins, and those that run are interrupted.

use std::cell::Cell;

use pinion_runtime::sync::Notify;

/// One core's.
#[derive(Default)]
pub(crate) struct Parking {
    is_closed: Cell<bool>,
    /// Operations that run.
    inside: Cell<usize>,
    /// It was opened, or the last operation has ended.
    changed: Notify,
}

/// An operation that runs.
pub(crate) struct Inside<'a>(&'a Parking);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.set(self.0.inside.get() - 1);
        if self.0.inside.get() == 0 {
            self.0.changed.notify_all();
        }
    }
}

impl Parking {
    /// Lets an operation begin, unless it must wait.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        if self.is_closed.get() {
            return None;
        }
        self.inside.set(self.inside.get() + 1);
        Some(Inside(self))
    }

    pub(crate) async fn until_open(&self) {
        while self.is_closed.get() {
            self.changed.notified().await;
        }
    }

    /// Lets no operation begin.
    pub(crate) fn close(&self) {
        assert!(!self.is_closed.replace(true), "it is closed already");
    }

    pub(crate) fn open(&self) {
        assert!(self.is_closed.replace(false), "it is open already");
        self.changed.notify_all();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inside.get() == 0
    }

    /// Completes when an operation has ended that was the last, or has been told to look again.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
