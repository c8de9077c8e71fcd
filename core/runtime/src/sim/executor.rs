//! Simulated tasks: their wakers and the choice of what runs next.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
#[allow(
    clippy::disallowed_types,
    reason = "wakers must be Sync; there is one thread, so nothing ever waits here"
)]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use slab::Slab;

use super::events::Event;
use super::life::CoreState;
use super::trace::Step;
use super::world::World;
use crate::task::Queue;
use crate::{FOREGROUND_SHARES, context};

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Tasks that were woken since the executor last looked.
#[derive(Default)]
struct WokenList {
    #[allow(clippy::disallowed_types, reason = "see the import")]
    tasks: Mutex<Vec<(usize, u64)>>,
}

struct TaskWaker {
    index: usize,
    number: u64,
    queued: AtomicBool,
    woken: Arc<WokenList>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.woken
                .tasks
                .lock()
                .expect("nothing panics under this lock")
                .push((self.index, self.number));
        }
    }
}

pub(super) struct Task {
    /// Absent while it is polled.
    future: Option<TaskFuture>,
    core: Rc<CoreState>,
    queue: Queue,
    number: u64,
    header: Arc<TaskWaker>,
    waker: Waker,
}

#[derive(Default)]
pub(super) struct Executor {
    tasks: RefCell<Slab<Task>>,
    started: Cell<u64>,
    woken: Arc<WokenList>,
    collected: RefCell<Vec<(usize, u64)>>,
    /// Cores that have a ready task and do not pause.
    runnable: RefCell<Vec<Rc<CoreState>>>,
}

impl Executor {
    pub(super) fn spawn(&self, core: &Rc<CoreState>, queue: Queue, future: TaskFuture) {
        let number = self.started.get();
        self.started.set(number + 1);
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let index = entry.key();
        let woken = Arc::clone(&self.woken);
        let header = Arc::new(TaskWaker {
            index,
            number,
            queued: AtomicBool::new(false),
            woken,
        });
        let waker = Waker::from(Arc::clone(&header));
        header.wake_by_ref();
        entry.insert(Task {
            future: Some(future),
            core: Rc::clone(core),
            queue,
            number,
            header,
            waker,
        });
    }

    /// Puts woken tasks into the queues of their cores.
    fn collect_woken(&self) {
        let mut collected = self.collected.borrow_mut();
        std::mem::swap(
            &mut *collected,
            &mut *self
                .woken
                .tasks
                .lock()
                .expect("nothing panics under this lock"),
        );
        if collected.is_empty() {
            return;
        }
        let tasks = self.tasks.borrow();
        for (index, number) in collected.drain(..) {
            let Some(task) = tasks.get(index).filter(|task| task.number == number) else {
                continue;
            };
            task.core.ready.borrow_mut()[task.queue as usize].push(index);
            self.make_runnable(&task.core);
        }
    }

    fn make_runnable(&self, core: &Rc<CoreState>) {
        if !core.runnable.get() && !core.paused.get() {
            core.runnable.set(true);
            self.runnable.borrow_mut().push(Rc::clone(core));
        }
    }

    /// Ends a pause.
    pub(super) fn resume(&self, core: &Rc<CoreState>) {
        core.paused.set(false);
        if core.ready.borrow().iter().any(|queue| !queue.is_empty()) {
            self.make_runnable(core);
        }
    }

    /// Takes all tasks of a life out, in the order of their places, for the caller to drop.
    pub(super) fn take_tasks_of(&self, core: &Rc<CoreState>) -> Vec<Task> {
        let mut tasks = self.tasks.borrow_mut();
        let keys: Vec<usize> = tasks
            .iter()
            .filter(|(_, task)| Rc::ptr_eq(&task.core, core))
            .map(|(key, _)| key)
            .collect();
        self.runnable
            .borrow_mut()
            .retain(|runnable| !Rc::ptr_eq(runnable, core));
        core.ready.borrow_mut().iter_mut().for_each(Vec::clear);
        keys.into_iter().map(|key| tasks.remove(key)).collect()
    }

    /// Polls one ready task, chosen at random; false when there is none.
    pub(super) fn run_one(&self, world: &Rc<World>) -> bool {
        self.collect_woken();
        let random = world.schedule_rng.borrow_mut().next_u64();
        let pick = |shift: u32, count: usize| (((random >> shift) & 0xffff) as usize * count) >> 16;
        let (core, index) = {
            let mut runnable = self.runnable.borrow_mut();
            if runnable.is_empty() {
                return false;
            }
            let position = pick(0, runnable.len());
            let core = Rc::clone(&runnable[position]);
            let mut ready = core.ready.borrow_mut();
            let shares = core.background_shares.get();
            let background = ready[0].is_empty()
                || (!ready[1].is_empty() && pick(48, FOREGROUND_SHARES + shares) < shares);
            let queue = &mut ready[usize::from(background)];
            let index = queue.swap_remove(pick(16, queue.len()));
            if ready.iter().all(Vec::is_empty) {
                core.runnable.set(false);
                runnable.swap_remove(position);
            }
            drop(ready);
            (core, index)
        };
        let (mut future, waker, number) = {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks[index];
            task.header.queued.store(false, Ordering::Relaxed);
            (
                task.future
                    .take()
                    .expect("a task is not polled within its own poll"),
                task.waker.clone(),
                task.number,
            )
        };
        world.trace(Step::Poll, core.trace_id(), number);
        core.slice.set((random >> 52) & 15);
        let previous = context::enter(core.context());
        world.set_polling(Some(&core));
        let finished = future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready();
        if finished {
            drop(future);
            let task = self.tasks.borrow_mut().remove(index);
            drop(task);
        } else {
            self.tasks.borrow_mut()[index].future = Some(future);
        }
        world.set_polling(None);
        context::enter(previous);

        let poll_ns = &world.options.poll_ns;
        let cost = poll_ns.start()
            + ((((random >> 32) & 0xfffff) * (poll_ns.end() - poll_ns.start())) >> 20);
        world.advance(cost);
        core.busy_ns.set(core.busy_ns.get() + cost);
        if world.options.pauses_of_1024 > 0 {
            self.maybe_pause(world, &core);
        }
        true
    }

    fn maybe_pause(&self, world: &Rc<World>, core: &Rc<CoreState>) {
        let mut rng = world.schedule_rng.borrow_mut();
        if rng.below(1024) >= world.options.pauses_of_1024 {
            return;
        }
        let pause = rng.between(
            *world.options.pause_ns.start(),
            *world.options.pause_ns.end(),
        );
        drop(rng);
        world.trace(Step::Pause, core.trace_id(), pause);
        core.paused.set(true);
        if core.runnable.replace(false) {
            self.runnable
                .borrow_mut()
                .retain(|runnable| !Rc::ptr_eq(runnable, core));
        }
        let core = Rc::clone(core);
        let resume = Event::Call(Box::new(move |world: &Rc<World>| {
            if core.life().is_alive() {
                world.executor.resume(&core);
            }
        }));
        world.schedule(world.now() + pause, resume);
    }
}
