//! What other threads may touch of a core (its doorbell, wake-ups from outside, heartbeat), and
//! what all cores of a running node share.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use super::options::StartError;
use super::sys;
use super::task::TaskId;
use crate::mesh::doorbell::Doorbell;
use crate::{CoreId, Queue};

// A core never blocks on these: the lock is held for a push or a swap only, by threads outside of
// the cores.
#[allow(clippy::disallowed_types)]
type Lock<T> = std::sync::Mutex<T>;

/// The part of a core that other threads see.
pub(super) struct CoreShared {
    pub id: CoreId,
    pub bell: Arc<Doorbell>,
    eventfd: OwnedFd,
    injected: Lock<Vec<(Queue, TaskId)>>,
    has_injected: AtomicBool,
    /// Odd while a task is being polled; changes with each poll.
    pub heartbeat: AtomicU64,
    /// The kernel's number of the core's thread; 0 before that runs.
    pub thread: AtomicI32,
}

impl CoreShared {
    pub fn new(id: CoreId, bell: Arc<Doorbell>) -> io::Result<CoreShared> {
        Ok(CoreShared {
            id,
            bell,
            eventfd: sys::eventfd(0)?,
            injected: Lock::new(Vec::new()),
            has_injected: AtomicBool::new(false),
            heartbeat: AtomicU64::new(0),
            thread: AtomicI32::new(0),
        })
    }

    pub fn eventfd(&self) -> i32 {
        self.eventfd.as_raw_fd()
    }

    /// Wakes the core if it sleeps. Whatever it should see must have been stored before.
    pub fn ring_bell(&self) {
        if self.bell.ring() {
            sys::eventfd_signal(self.eventfd.as_raw_fd());
        }
    }

    /// Makes a task runnable from another thread.
    pub fn inject(&self, queue: Queue, task: TaskId) {
        self.injected
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .push((queue, task));
        self.has_injected.store(true, Ordering::SeqCst);
        self.ring_bell();
    }

    pub fn has_injected(&self) -> bool {
        self.has_injected.load(Ordering::SeqCst)
    }

    pub fn take_injected(&self) -> Vec<(Queue, TaskId)> {
        if !self.has_injected.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        std::mem::take(
            &mut *self
                .injected
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner()),
        )
    }
}

/// What all cores of a node share.
pub(super) struct Node {
    pub cores: Vec<Arc<CoreShared>>,
    shutdown: AtomicBool,
    /// Set when a core failed: the others stop at once.
    failed: AtomicBool,
    failure: Lock<Option<StartError>>,
    /// Cores whose main has not returned.
    running: AtomicUsize,
    next_connection: AtomicU64,
}

impl Node {
    pub fn new(cores: Vec<Arc<CoreShared>>) -> Node {
        let running = AtomicUsize::new(cores.len());
        Node {
            cores,
            shutdown: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Lock::new(None),
            running,
            next_connection: AtomicU64::new(1),
        }
    }

    pub fn request_shutdown(&self) {
        self.shutdown.store(true, Ordering::SeqCst);
        self.ring_all();
    }

    pub fn shutdown_requested(&self) -> bool {
        self.shutdown.load(Ordering::Relaxed)
    }

    pub fn main_returned(&self) {
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.ring_all();
        }
    }

    /// Whether a core should leave its loop.
    pub fn finished(&self) -> bool {
        self.running.load(Ordering::Relaxed) == 0 || self.failed.load(Ordering::Relaxed)
    }

    /// Stops all cores; the first failure is what the caller of `run` gets.
    pub fn fail(&self, error: StartError) {
        self.failure
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .get_or_insert(error);
        self.stop_now();
    }

    /// Stops all cores; the reason is reported by another call of [`Node::fail`], before or after.
    pub fn stop_now(&self) {
        self.failed.store(true, Ordering::SeqCst);
        self.ring_all();
    }

    pub fn take_failure(&self) -> Option<StartError> {
        self.failure
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .take()
    }

    pub fn connection_id(&self) -> u64 {
        self.next_connection.fetch_add(1, Ordering::Relaxed)
    }

    fn ring_all(&self) {
        for core in &self.cores {
            core.ring_bell();
        }
    }
}

thread_local! {
    /// The core that this thread runs, as far as wakers need to know it.
    static HOME: RefCell<Option<Arc<CoreShared>>> = const { RefCell::new(None) };
}

/// Whether this thread is the one that runs `core`.
pub(super) fn is_home(core: &Arc<CoreShared>) -> bool {
    HOME.with_borrow(|home| home.as_ref().is_some_and(|home| Arc::ptr_eq(home, core)))
}

pub(super) fn set_home(core: Option<Arc<CoreShared>>) {
    HOME.set(core);
}
