//! What a core may do: how far its storage has come, which node allots timestamps, in which term,
//! and why storage has failed.
//!
//! A step asks twice: when it enters, and right before it takes timestamps. What it learned the
//! first time may be over by then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_clock::Term;
use pinion_runtime::sync::{Gate, GateClosed, GateGuard, Notify};
use pinion_runtime::{CoreId, Queue, spawn, submit_to};

use crate::engine::storage::{Storage, storage};
use crate::ring::Ring;
use crate::types::{Fatal, WriteError};

/// Which node allots the timestamps of what this node logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The node itself, on every core.
    Leading,
    /// Another node; one core logs what that has allotted.
    Following { logger: CoreId },
}

/// How far this core's storage has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The base can be read, and entries are applied again.
    Recovering,
    Writable,
    Closed,
}

/// The phase, the role and the term of one core's storage, and its failure.
pub(in crate::engine) struct Roles {
    phase: Cell<Phase>,
    role: Cell<Role>,
    /// See [`Storage::set_term`].
    term: Cell<i64>,
    fatal: RefCell<Option<Fatal>>,
    failure: Notify,
    /// Steps, units and checkpoints in progress.
    steps: Gate,
}

impl Roles {
    /// Of a core whose base has just been opened.
    pub(in crate::engine) fn new() -> Roles {
        Roles {
            phase: Cell::new(Phase::Recovering),
            role: Cell::new(Role::Leading),
            term: Cell::new(Term::UNINITIALIZED.0),
            fatal: RefCell::new(None),
            failure: Notify::new(),
            steps: Gate::new(),
        }
    }

    pub(in crate::engine) fn is_recovering(&self) -> bool {
        self.phase.get() == Phase::Recovering
    }

    pub(in crate::engine) fn is_writable(&self) -> bool {
        self.phase.get() == Phase::Writable
    }

    pub(in crate::engine) fn is_closed(&self) -> bool {
        self.phase.get() == Phase::Closed
    }

    /// Recovery is complete, and there is a ring to write to.
    pub(in crate::engine) fn start_writing(&self) {
        assert!(self.is_recovering(), "storage is writable once");
        self.phase.set(Phase::Writable);
    }

    /// No step is in progress, and none is admitted any more.
    pub(in crate::engine) fn close(&self) {
        assert!(self.steps.is_closed(), "storage is closed while steps run");
        self.phase.set(Phase::Closed);
    }

    fn leads(&self) -> bool {
        self.role.get() == Role::Leading
    }

    /// Whether the node follows and `core` logs for it.
    pub(super) fn is_logger(&self, core: CoreId) -> bool {
        self.role.get() == Role::Following { logger: core }
    }

    pub(super) fn set_role(&self, role: Role) {
        self.role.set(role);
    }

    fn term(&self) -> i64 {
        self.term.get()
    }

    /// Terms only rise: entries of a higher one could otherwise be followed by entries of a lower.
    fn set_term(&self, term: i64) {
        let current = self.term.get();
        assert!(term >= current, "term {term} is below {current}");
        self.term.set(term);
    }

    pub(in crate::engine) fn has_failed(&self) -> bool {
        self.fatal.borrow().is_some()
    }

    fn fatal(&self) -> Option<Fatal> {
        self.fatal.borrow().clone()
    }

    /// Takes note of the first failure. False if there was one before.
    fn fail(&self, fatal: Fatal) -> bool {
        if self.has_failed() {
            return false;
        }
        *self.fatal.borrow_mut() = Some(fatal);
        true
    }

    /// Admits a step or a checkpoint, which holds up the end of storage while it runs.
    pub(in crate::engine) fn enter(&self) -> Result<GateGuard, Fatal> {
        let entered = self.steps.enter();
        entered.map_err(|GateClosed| Fatal::new("storage is closing"))
    }

    /// Whether no step is admitted any more.
    pub(in crate::engine) fn is_closing(&self) -> bool {
        self.steps.is_closed()
    }

    /// Admits no step any more, and waits for those in progress.
    pub(in crate::engine) async fn end_steps(&self) {
        self.steps.close().await;
    }
}

impl Storage {
    /// Entries that this core coordinates from now on carry `term` as their `t`; until the first
    /// call it is that of a node without elections, -1. The term of a node is set on every core,
    /// before it takes writes in that term.
    ///
    /// # Panics
    /// When the term goes back: entries of a higher one could then be followed by entries of a
    /// lower.
    pub fn set_term(&self, term: i64) {
        self.roles.set_term(term);
    }

    /// The term of the entries that this core coordinates now.
    pub fn term(&self) -> i64 {
        self.roles.term()
    }

    /// Whether this node allots the timestamps of what it writes.
    pub fn leads(&self) -> bool {
        self.roles.leads()
    }

    /// Completes when storage has failed and the node must stop.
    pub async fn failed(&self) -> Fatal {
        loop {
            let notified = self.roles.failure.notified();
            if let Some(fatal) = self.fatal() {
                return fatal;
            }
            notified.await;
        }
    }

    /// Why storage has failed, if it has.
    pub fn fatal(&self) -> Option<Fatal> {
        self.roles.fatal()
    }

    /// Storage has failed: nothing is written or acknowledged any more, on any core.
    pub(in crate::engine) fn poison(&self, fatal: Fatal) {
        if self.poison_here(fatal.clone()) {
            tracing::error!(target: "STORAGE", id = 7_300_001u64, core = self.core.0, error = %fatal, "Storage has stopped");
            for core in self.other_cores() {
                let fatal = fatal.clone();
                spawn(
                    Queue::Foreground,
                    submit_to(core, Queue::Foreground, move || async move {
                        storage().poison_here(fatal);
                    }),
                );
            }
        }
    }

    fn poison_here(&self, fatal: Fatal) -> bool {
        if !self.roles.fail(fatal) {
            return false;
        }
        self.progress.release_waiters();
        self.roles.failure.notify_all();
        self.flusher.wake();
        self.memory.wake_writers();
        if let Some(node) = &self.node {
            node.own.release();
        }
        self.flusher.stop_ring();
        true
    }

    pub(in crate::engine) fn check_fatal(&self) -> Result<(), Fatal> {
        self.fatal().map_or(Ok(()), Err)
    }

    /// Why nothing is logged any more.
    pub(in crate::engine) fn stopped(&self) -> WriteError {
        WriteError::Fatal(self.fatal().expect("only failure stops a ring"))
    }

    /// The ring of this core, or why there is none to write to.
    pub(in crate::engine) fn writable_ring(&self) -> Result<Rc<Ring>, WriteError> {
        self.check_fatal().map_err(WriteError::Fatal)?;
        match (self.roles.phase.get(), self.flusher.ring()) {
            (Phase::Writable, Some(ring)) => Ok(ring),
            (Phase::Closed, _) => Err(WriteError::Fatal(Fatal::new("storage is closed"))),
            _ => Err(WriteError::Fatal(Fatal::new("storage is still recovering"))),
        }
    }

    /// Where a step begins on a core: it can be logged there, and holds up the closing.
    pub(in crate::engine) fn enter(&self) -> Result<(Rc<Ring>, GateGuard), WriteError> {
        let ring = self.writable_ring()?;
        let inside = self.roles.enter().map_err(WriteError::Fatal)?;
        Ok((ring, inside))
    }

    /// Looked at right before timestamps are allotted.
    pub(in crate::engine) fn check_allots(&self) -> Result<(), WriteError> {
        self.writable_ring()?;
        match self.leads() {
            true => Ok(()),
            false => Err(WriteError::Following),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_stays() {
        let roles = Roles::new();
        assert!(!roles.has_failed());
        assert!(roles.fail(Fatal::new("first")));
        assert!(!roles.fail(Fatal::new("second")));
        assert_eq!(roles.fatal(), Some(Fatal::new("first")));
    }

    #[test]
    #[should_panic(expected = "term 3 is below 4")]
    fn terms_only_rise() {
        let roles = Roles::new();
        roles.set_term(4);
        roles.set_term(4);
        roles.set_term(3);
    }

    #[test]
    #[should_panic(expected = "storage is closed while steps run")]
    fn steps_end_before_storage_closes() {
        Roles::new().close();
    }
}
