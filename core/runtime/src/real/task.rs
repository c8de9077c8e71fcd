//! The tasks of a core: their table, the two run queues, and wakers that work from any thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use slab::Slab;

use super::core::RealCore;
use super::shared::{CoreShared, is_home};
use crate::Queue;

/// Names one life of one slot of the task table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TaskId {
    index: u32,
    generation: u32,
}

struct TaskWaker {
    home: Arc<CoreShared>,
    id: TaskId,
    queue: Queue,
    /// Whether the task is in a run queue, or on its way to one.
    queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A load first: most redundant wakes come from the core itself, and an exchange costs more
        // than a load.
        if self.queued.load(Ordering::Acquire) || self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        if is_home(&self.home) {
            RealCore::with_current(|core| core.tasks().push(self.queue, self.id));
        } else {
            self.home.inject(self.queue, self.id);
        }
    }
}

struct Body {
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
    state: Arc<TaskWaker>,
    origin: &'static Location<'static>,
}

struct Slot {
    generation: u32,
    /// Absent while the task is being polled.
    body: Option<Body>,
}

/// The tasks of one core.
pub(super) struct Tasks {
    slots: RefCell<Slab<Slot>>,
    ready: [RefCell<VecDeque<TaskId>>; 2],
    generation: Cell<u32>,
    spawned: Cell<u64>,
}

impl Tasks {
    pub fn new() -> Tasks {
        Tasks {
            slots: RefCell::new(Slab::new()),
            ready: [RefCell::default(), RefCell::default()],
            generation: Cell::new(0),
            spawned: Cell::new(0),
        }
    }

    pub fn spawned(&self) -> u64 {
        self.spawned.get()
    }

    pub fn spawn(
        &self,
        home: &Arc<CoreShared>,
        queue: Queue,
        origin: &'static Location<'static>,
        future: Pin<Box<dyn Future<Output = ()>>>,
    ) {
        let generation = self.generation.get().wrapping_add(1);
        self.generation.set(generation);
        self.spawned.set(self.spawned.get() + 1);
        let mut slots = self.slots.borrow_mut();
        let entry = slots.vacant_entry();
        let id = TaskId {
            index: entry.key() as u32,
            generation,
        };
        let state = Arc::new(TaskWaker {
            home: home.clone(),
            id,
            queue,
            queued: AtomicBool::new(true),
        });
        let waker = Waker::from(state.clone());
        entry.insert(Slot {
            generation,
            body: Some(Body {
                future,
                waker,
                state,
                origin,
            }),
        });
        drop(slots);
        self.push(queue, id);
    }

    /// Puts a task that is marked as queued into its run queue.
    pub fn push(&self, queue: Queue, id: TaskId) {
        self.ready[queue as usize].borrow_mut().push_back(id);
    }

    pub fn pop(&self, queue: Queue) -> Option<TaskId> {
        self.ready[queue as usize].borrow_mut().pop_front()
    }

    pub fn has_ready(&self, queue: Queue) -> bool {
        !self.ready[queue as usize].borrow().is_empty()
    }

    /// Polls a task once. Gives the place that spawned it, or `None` if it has ended before.
    pub fn poll(&self, id: TaskId) -> Option<&'static Location<'static>> {
        let mut body = {
            let mut slots = self.slots.borrow_mut();
            let slot = slots
                .get_mut(id.index as usize)
                .filter(|slot| slot.generation == id.generation)?;
            slot.body.take()?
        };
        // Cleared before the poll, so a wake during the poll queues the task again.
        body.state.queued.store(false, Ordering::Release);
        let mut context = Context::from_waker(&body.waker);
        let poll = body.future.as_mut().poll(&mut context);
        let origin = body.origin;
        match poll {
            Poll::Ready(()) => {
                // Removed before its destructors run: they may spawn.
                self.slots.borrow_mut().remove(id.index as usize);
                drop(body);
            }
            Poll::Pending => self.slots.borrow_mut()[id.index as usize].body = Some(body),
        }
        Some(origin)
    }

    /// Drops all tasks. Destructors may wake and spawn; what they spawn is dropped as well.
    pub fn drop_all(&self) {
        loop {
            let slots = std::mem::take(&mut *self.slots.borrow_mut());
            self.ready
                .iter()
                .for_each(|queue| queue.borrow_mut().clear());
            if slots.is_empty() {
                return;
            }
            drop(slots);
        }
    }
}

/// Completes after the other ready tasks had their turn.
pub(crate) struct RealYield {
    pub(super) yielded: bool,
}

impl Future for RealYield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
