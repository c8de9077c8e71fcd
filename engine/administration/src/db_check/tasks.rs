//! The two tasks of core 0: one runs what clients of a primary ask for, one does what entries of
//! the oplog say.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, JoinHandle, Queue, call_on, core_id, spawn};
use pinion_wire::{ErrorCode, OpContext};

use super::follower::Followed;
use super::runner::Run;
use super::{follower, runner};

/// What core 0 has to do for `dbCheck`.
#[derive(Default)]
pub struct DbCheckTasks {
    /// Runs that clients have asked for, the first of which is under way.
    pub(super) runs: RefCell<VecDeque<Run>>,
    /// Entries of the oplog.
    pub(super) followed: RefCell<Followed>,
    /// Entries for which there was no room.
    pub(super) missed: Cell<u64>,
    /// There is something to do.
    pub(super) changed: Notify,
    pub(super) stopping: Cell<bool>,
    /// The comparison that is under way.
    pub(super) following: RefCell<Option<OpContext>>,
    /// What logs the end of a run.
    pub(super) ending: RefCell<Option<OpContext>>,
    /// A note could not be written while the tasks were to end: no other is tried.
    pub(super) has_given_up: Cell<bool>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

/// What is compared between the members; core 0 has it.
pub fn db_check_tasks() -> Rc<DbCheckTasks> {
    pinion_runtime::core_local()
}

impl DbCheckTasks {
    /// The next thing in a queue; none when the tasks are to end.
    pub(super) async fn next<T>(&self, take: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            let changed = self.changed.notified();
            if self.stopping.get() {
                return None;
            }
            if let Some(next) = take() {
                return Some(next);
            }
            changed.await;
        }
    }
}

/// Begins both tasks. Called on core 0.
pub fn start() {
    assert!(
        core_id() == CoreId(0),
        "members are compared by tasks of core 0"
    );
    db_check_tasks().stopping.set(false);
    db_check_tasks().has_given_up.set(false);
    let tasks = [
        spawn(Queue::Background, runner::run_all()),
        spawn(Queue::Background, follower::follow_all()),
    ];
    db_check_tasks().tasks.borrow_mut().extend(tasks);
}

/// Ends both tasks, and forgets what they had to do: the state of the data that it is about may be
/// taken back. Called on core 0.
pub async fn stop() {
    let tasks = &db_check_tasks();
    tasks.stopping.set(true);
    end_here(ErrorCode::INTERRUPTED_AT_SHUTDOWN);
    if let Some(following) = &*tasks.following.borrow() {
        following.kill(ErrorCode::INTERRUPTED_AT_SHUTDOWN);
    }
    tasks.changed.notify_all();
    let running = tasks.tasks.take();
    for task in running {
        // One that was dropped has ended too.
        let _ = task.await;
    }
    tasks.runs.borrow_mut().clear();
    tasks.followed.take();
    tasks.missed.set(0);
}

/// Ends the runs that clients have asked for: the node is no primary any more.
pub async fn end_runs(code: ErrorCode) {
    call_on(CoreId(0), move || end_here(code)).await;
}

fn end_here(code: ErrorCode) {
    for run in &*db_check_tasks().runs.borrow() {
        run.ctx.kill(code);
    }
    if let Some(ending) = &*db_check_tasks().ending.borrow() {
        ending.kill(code);
    }
}
