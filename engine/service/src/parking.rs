//! Where operations wait while the data directory is opened again: none begins, and those that run
//! are interrupted.

use std::cell::Cell;
use std::rc::Rc;

use pinion_runtime::sync::Notify;
use pinion_wire::{Invocation, Result};

use crate::interrupt::interruptible;

/// One core's.
#[derive(Default)]
pub struct Parking {
    is_closed: Cell<bool>,
    /// Operations that run.
    inside: Cell<usize>,
    /// It was opened, or the last operation has ended.
    changed: Notify,
}

/// An operation that runs.
pub struct Inside(Rc<Parking>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.set(self.0.inside.get() - 1);
        if self.0.inside.get() == 0 {
            self.0.changed.notify_all();
        }
    }
}

/// Where this core's operations wait while the data directory is opened again.
pub fn parking() -> Rc<Parking> {
    pinion_runtime::core_local()
}

impl Parking {
    /// Lets an operation begin, unless it must wait.
    pub fn enter(self: &Rc<Parking>) -> Option<Inside> {
        if self.is_closed.get() {
            return None;
        }
        self.inside.set(self.inside.get() + 1);
        Some(Inside(Rc::clone(self)))
    }

    pub(crate) async fn until_open(&self) {
        while self.is_closed.get() {
            self.changed.notified().await;
        }
    }

    /// Lets no operation begin.
    pub fn close(&self) {
        assert!(!self.is_closed.replace(true), "it is closed already");
    }

    /// Lets operations begin again, and wakes those that wait.
    pub fn open(&self) {
        assert!(self.is_closed.replace(false), "it is open already");
        self.changed.notify_all();
    }

    /// Whether no operation runs.
    pub fn is_empty(&self) -> bool {
        self.inside.get() == 0
    }

    /// Completes when the last operation has ended, or when the waiting task is woken to look
    /// again.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Lets a command begin, or holds it up while the data directory is opened again. Commands whose
/// row says `during_reopen` begin: those that may wait for long, and those by which the set knows
/// that this member is there, without which a primary that has no other would step down meanwhile.
///
/// # Errors
/// The command is interrupted while it waits.
#[cold]
pub async fn park(cmd: &Invocation) -> Result<Option<Inside>> {
    loop {
        if cmd.command.spec.during_reopen {
            return Ok(None);
        }
        if let Some(inside) = parking().enter() {
            return Ok(Some(inside));
        }
        interruptible(&cmd.ctx, parking().until_open()).await?;
    }
}
