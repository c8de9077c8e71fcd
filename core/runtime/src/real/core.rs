//! One core: what runs on its thread, and the loop that runs it.
//!
//! A loop turn takes completions, messages and due timers, runs ready tasks for a while, and hands
//! all that they queued to the kernel in one system call. With nothing to do the core spins for a
//! moment if it was busy just before, and then sleeps in that same system call.
//!
//! The loop is a glommio task in a queue of its own, background tasks run in a second one, and
//! glommio's scheduler divides the core between the two by shares. When both have nothing to do,
//! glommio has nothing to do either, as nothing else uses it, so the core sleeps in its own ring:
//! one system call rather than the five or more that parking a glommio executor and coming back
//! takes.

use std::any::Any;
use std::cell::{Cell, RefCell, RefMut};
use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use io_uring::{opcode, types};

use super::blocking::Blocking;
use super::compute::Computing;
use super::file::FileCounters;
use super::limits::{STALL, STOP_WAIT, TASK_SLICE};
use super::net::Net;
use super::options::StartError;
use super::ports::Ports;
use super::processor::{WaitClock, Waits};
use super::queues::QueueBell;
use super::ring::{Completion, Kind, OpTable, RecvBuffers, Uring, parse_user_data, user_data};
use super::shared::{CoreShared, Node};
use super::spin::Spin;
use super::sys;
use super::task::{RealYield, Tasks};
use super::timer::{RealSleep, Wheel};
use crate::mesh::MeshMessage;
use crate::{BACKGROUND_SHARES, CoreId, Instant, Queue, RuntimeStats, context};

thread_local! {
    static CURRENT: RefCell<Option<RealCore>> = const { RefCell::new(None) };
}

/// A core of the real backend. Clones are the same core.
#[derive(Clone)]
pub(crate) struct RealCore(Rc<CoreState>);

/// The state of a core. Buffers come after the ring, so that they are dropped after it.
pub(crate) struct CoreState {
    shared: Arc<CoreShared>,
    node: Arc<Node>,
    tasks: Tasks,
    uring: RefCell<Uring>,
    buffers: RefCell<RecvBuffers>,
    ops: OpTable,
    net: Net,
    files: FileCounters,
    timers: RefCell<Wheel>,
    ports: Ports,
    blocking: Blocking,
    computing: Computing,
    spin: Spin,
    bells: [QueueBell; 2],
    completions: Cell<Vec<Completion>>,
    due: Cell<Vec<(Instant, Waker)>>,
    shutdown_seen: Cell<bool>,
    bell_armed: Cell<bool>,
    /// Start of the poll in progress.
    poll_started: Cell<u64>,
    heartbeat: Cell<u64>,
    waits: Waits,
    stalls: Cell<u64>,
    started: u64,
    idle_ns: Cell<u64>,
    /// See [`crate::foreground_idles`].
    foreground_idles: Cell<u64>,
    /// See [`crate::set_background_shares`].
    background_shares: Rc<Cell<usize>>,
}

impl Deref for RealCore {
    type Target = CoreState;

    fn deref(&self) -> &CoreState {
        &self.0
    }
}

impl RealCore {
    /// Makes the core's state, on its thread.
    pub(super) fn new(
        shared: Arc<CoreShared>,
        node: Arc<Node>,
        ports: Ports,
        blocking: Blocking,
        computing: Computing,
        spin: Duration,
    ) -> std::io::Result<RealCore> {
        let uring = Uring::new()?;
        let buffers = RecvBuffers::register(&uring)?;
        let started = sys::monotonic_ns();
        let thread = sys::thread_id();
        shared.thread.store(thread, Ordering::Release);
        Ok(RealCore(Rc::new(CoreState {
            shared,
            node,
            tasks: Tasks::new(),
            uring: RefCell::new(uring),
            buffers: RefCell::new(buffers),
            ops: OpTable::new(),
            net: Net::new(),
            files: FileCounters::default(),
            timers: RefCell::new(Wheel::new(Instant::from_nanos(started))),
            ports,
            blocking,
            computing,
            spin: Spin::new(spin),
            bells: [QueueBell::default(), QueueBell::default()],
            completions: Cell::default(),
            due: Cell::default(),
            shutdown_seen: Cell::new(false),
            bell_armed: Cell::new(false),
            poll_started: Cell::new(started),
            heartbeat: Cell::new(0),
            waits: Waits::new(WaitClock::of_thread(thread), started),
            stalls: Cell::new(0),
            started,
            idle_ns: Cell::new(0),
            foreground_idles: Cell::new(0),
            background_shares: Rc::new(Cell::new(BACKGROUND_SHARES)),
        })))
    }

    /// The core that this thread runs.
    ///
    /// # Panics
    /// On other threads.
    pub(super) fn current() -> RealCore {
        RealCore::with_current(RealCore::clone)
    }

    /// Runs `f` on the core that this thread runs.
    pub(super) fn with_current<R>(f: impl FnOnce(&RealCore) -> R) -> R {
        CURRENT.with_borrow(|core| f(core.as_ref().expect("this thread runs a core")))
    }

    pub(super) fn set_current(core: Option<RealCore>) {
        CURRENT.set(core);
    }

    pub fn now(&self) -> Instant {
        Instant::from_nanos(sys::monotonic_ns())
    }

    pub fn wall_us(&self) -> i64 {
        (sys::realtime_ns() / 1000) as i64
    }

    #[track_caller]
    pub fn spawn<F: Future<Output = ()> + 'static>(&self, queue: Queue, future: F) {
        self.tasks
            .spawn(&self.shared, queue, Location::caller(), Box::pin(future));
    }

    pub fn should_yield(&self) -> bool {
        sys::monotonic_ns() - self.poll_started.get() > TASK_SLICE.as_nanos() as u64
    }

    pub fn yield_now(&self) -> RealYield {
        RealYield { yielded: false }
    }

    pub fn sleep_until(&self, at: Instant) -> RealSleep {
        RealSleep::new(self.clone(), at)
    }

    pub fn mesh_try_push(&self, to: CoreId, message: MeshMessage) -> Result<(), MeshMessage> {
        self.ports.try_push(&self.node, to, message)
    }

    pub fn request_shutdown(&self) {
        self.node.request_shutdown();
    }

    pub fn foreground_idles(&self) -> u64 {
        if self.bell(Queue::Foreground).is_asleep() {
            self.count_foreground_idle();
        }
        self.foreground_idles.get()
    }

    pub fn set_background_shares(&self, shares: usize) {
        self.background_shares.set(shares);
    }

    /// The background queue's shares, as the scheduler reads them.
    pub(super) fn background_shares(&self) -> Rc<Cell<usize>> {
        Rc::clone(&self.background_shares)
    }

    /// The foreground has nothing to do.
    pub(super) fn count_foreground_idle(&self) {
        self.foreground_idles.set(self.foreground_idles.get() + 1);
    }

    pub fn stats(&self) -> RuntimeStats {
        let mut stats = RuntimeStats {
            stalls: self.stalls.get(),
            ..RuntimeStats::default()
        };
        stats.idle_ns = self.idle_ns.get();
        stats.busy_ns = (sys::monotonic_ns() - self.started).saturating_sub(stats.idle_ns);
        stats.tasks_spawned = self.tasks.spawned();
        stats.mesh_messages = self.ports.sent();
        self.net.count(&mut stats);
        self.files.count(&mut stats);
        stats
    }

    /// Asks the kernel to end a request.
    pub(super) fn cancel(&self, target: u64) {
        let entry = opcode::AsyncCancel::new(target)
            .build()
            .user_data(user_data(Kind::Ignored, 0));
        // SAFETY: the entry points to nothing.
        unsafe { self.uring().push(entry) };
    }

    /// One loop turn: takes in what has happened, runs foreground tasks for at most `budget`,
    /// prepares what they queued. The kernel sees it with the next [`CoreState::submit`] or
    /// [`CoreState::rest`].
    pub(super) fn turn(&self, budget: Duration) {
        self.collect();
        self.run_ready(Queue::Foreground, budget);
        self.net.end_turn(self);
    }

    /// A loop turn without tasks, submitted.
    pub(super) fn take_in_and_submit(&self) {
        self.collect();
        self.net.end_turn(self);
        self.submit();
    }

    /// Hands to the kernel what was queued, and lets it post completions.
    pub(super) fn submit(&self) {
        if let Err(error) = self.uring().submit() {
            panic!("the kernel refused requests of the core's ring: {error}");
        }
    }

    /// Takes in completions, messages, wake-ups from other threads, due timers and the shutdown
    /// request.
    fn collect(&self) {
        let mut completions = self.completions.take();
        self.uring().reap(&mut completions);
        for completion in completions.drain(..) {
            self.dispatch(completion);
        }
        self.completions.set(completions);
        self.arm_bell();

        self.ports.receive(&self.node);
        for (queue, task) in self.shared.take_injected() {
            self.tasks.push(queue, task);
        }
        if !self.shutdown_seen.get() && self.node.shutdown_requested() {
            self.shutdown_seen.set(true);
            context::current().shutdown.trigger();
        }
        self.fire_timers();
    }

    fn dispatch(&self, completion: Completion) {
        let (kind, index) = parse_user_data(completion.user_data);
        match kind {
            Kind::Ignored => {}
            Kind::Bell => self.bell_armed.set(completion.more()),
            Kind::Op => self.ops.complete(index, completion.result),
            Kind::Accept => self.net.accepted(self, index, completion),
            Kind::Receive => self.net.received(self, index, completion),
            Kind::Send => self.net.sent(self, index, completion),
        }
    }

    /// Keeps a request in the ring that completes whenever the core's eventfd is signalled. It is
    /// edge-triggered, so the eventfd need not be read.
    fn arm_bell(&self) {
        if !self.bell_armed.replace(true) {
            let entry = opcode::PollAdd::new(types::Fd(self.shared.eventfd()), libc::POLLIN as u32)
                .multi(true)
                .build();
            // SAFETY: the entry points to no memory.
            unsafe { self.uring().push(entry.user_data(user_data(Kind::Bell, 0))) };
        }
    }

    fn fire_timers(&self) {
        if self.timers().is_empty() {
            return;
        }
        let mut due = self.due.take();
        let now = self.now();
        self.timers().advance(now, &mut due);
        due.drain(..).for_each(|(_, waker)| waker.wake());
        self.due.set(due);
    }

    /// Polls ready tasks of a queue until none is left or the budget is used; they may make each
    /// other ready.
    pub(super) fn run_ready(&self, queue: Queue, budget: Duration) {
        let Some(mut task) = self.tasks.pop(queue) else {
            return;
        };
        let mut polled_at = sys::monotonic_ns();
        let end = polled_at + budget.as_nanos() as u64;
        loop {
            self.poll_started.set(polled_at);
            self.waits.before_poll(polled_at);
            self.beat();
            let polled = catch_unwind(AssertUnwindSafe(|| self.tasks.poll(task)));
            self.beat();
            let now = sys::monotonic_ns();
            match polled {
                Ok(Some(origin)) if now - polled_at >= STALL.as_nanos() as u64 => {
                    self.report_stall(now - polled_at, origin);
                }
                Ok(_) => {}
                Err(payload) => {
                    self.fail(payload.as_ref());
                    return;
                }
            }
            polled_at = now;
            if now >= end || self.node.finished() {
                return;
            }
            match self.tasks.pop(queue) {
                Some(next) => task = next,
                None => return,
            }
        }
    }

    /// Counts and reports a poll that took `took_ns`, unless it was short but for the time that
    /// others had the processor.
    fn report_stall(&self, took_ns: u64, origin: &Location<'_>) {
        let waited_ns = self.waits.during_poll().min(took_ns);
        let held_ns = took_ns - waited_ns;
        if held_ns < STALL.as_nanos() as u64 {
            return;
        }
        self.stalls.set(self.stalls.get() + 1);
        let kernel_ns = self.waits.in_kernel().min(held_ns);
        tracing::warn!(
            target: "CONTROL",
            id = 7_200_001u64,
            core = self.shared.id.0,
            heldMillis = held_ns / 1_000_000,
            kernelMillis = kernel_ns / 1_000_000,
            waitedMillis = waited_ns / 1_000_000,
            task = %origin,
            "a task held its core for too long"
        );
    }

    /// Changes the heartbeat word that the monitor reads: odd while a task is polled.
    fn beat(&self) {
        let beat = self.heartbeat.get().wrapping_add(1);
        self.heartbeat.set(beat);
        self.shared.heartbeat.store(beat, Ordering::Relaxed);
    }

    /// Stops the node after a panic: what the panic left half done cannot be trusted.
    pub(super) fn fail(&self, payload: &(dyn Any + Send)) {
        let message = payload
            .downcast_ref::<&str>()
            .map(|message| message.to_string())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        let error = StartError::Panicked {
            core: usize::from(self.shared.id.0),
            message,
        };
        tracing::error!(target: "CONTROL", id = 7_200_002u64, core = self.shared.id.0, "{error}");
        self.node.fail(error);
    }

    /// Submits, and waits for something to do: spinning first if that has paid lately, then
    /// sleeping.
    pub(super) fn rest(&self) {
        let begin = sys::monotonic_ns();
        let timer = self.timers().next().map_or(u64::MAX, Instant::as_nanos);
        let found = self.spin.worth_it() && {
            self.submit();
            let end = timer.min(begin + self.spin.limit_ns());
            loop {
                if self.has_work() {
                    break true;
                }
                if sys::monotonic_ns() >= end {
                    break timer <= end;
                }
                // The kernel's threads of this processor carry requests to the disk on; behind a
                // thread that does not give way they wait for the next tick, up to 4 ms.
                std::thread::yield_now();
            }
        };
        if !found {
            self.sleep_once(timer);
        }
        let rested = sys::monotonic_ns() - begin;
        self.spin.record(rested);
        self.idle_ns.set(self.idle_ns.get() + rested);
    }

    fn sleep_once(&self, timer: u64) {
        self.shared.bell.prepare_sleep();
        // Looked at once more after the bell shows that we sleep: later senders ring it.
        let now = sys::monotonic_ns();
        if timer > now && !self.has_messages() && self.ports.nothing_blocked_has_space() {
            let timeout = (timer != u64::MAX).then(|| Duration::from_nanos(timer - now));
            if let Err(error) = self.uring().wait(timeout) {
                panic!("the kernel refused to wait on the core's ring: {error}");
            }
        } else {
            self.submit();
        }
        self.shared.bell.awake();
    }

    fn has_work(&self) -> bool {
        self.uring().has_work() || self.has_messages()
    }

    fn has_messages(&self) -> bool {
        self.ports.has_mail()
            || self.shared.has_injected()
            || self.node.finished()
            || (self.node.shutdown_requested() && !self.shutdown_seen.get())
    }

    /// Drops all tasks, breaks all connections and waits until the kernel uses nothing of this core
    /// any more. Whether that succeeded; if not, the core's memory must not be freed.
    pub(super) fn stop(&self) -> bool {
        self.tasks.drop_all();
        self.net.close_all(self);
        self.tasks.drop_all();
        let end = sys::monotonic_ns() + STOP_WAIT.as_nanos() as u64;
        while self.ops.len() > 0 || self.net.len() > 0 {
            if sys::monotonic_ns() > end {
                return false;
            }
            self.net.end_turn(self);
            if self.uring().wait(Some(Duration::from_millis(10))).is_err() {
                return false;
            }
            let mut completions = Vec::new();
            self.uring().reap(&mut completions);
            completions
                .into_iter()
                .for_each(|completion| self.dispatch(completion));
            self.tasks.drop_all();
        }
        true
    }
}

/// The parts of a core, borrowed for a moment by the modules that work with them.
impl CoreState {
    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    pub(super) fn uring(&self) -> RefMut<'_, Uring> {
        self.uring.borrow_mut()
    }

    pub(super) fn buffers(&self) -> RefMut<'_, RecvBuffers> {
        self.buffers.borrow_mut()
    }

    pub(super) fn timers(&self) -> RefMut<'_, Wheel> {
        self.timers.borrow_mut()
    }

    pub(super) fn ops(&self) -> &OpTable {
        &self.ops
    }

    pub(super) fn net(&self) -> &Net {
        &self.net
    }

    pub(super) fn files(&self) -> &FileCounters {
        &self.files
    }

    pub(super) fn blocking(&self) -> &Blocking {
        &self.blocking
    }

    pub(super) fn computing(&self) -> &Computing {
        &self.computing
    }

    pub(super) fn bell(&self, queue: Queue) -> &QueueBell {
        &self.bells[queue as usize]
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    pub(super) fn connection_id(&self) -> u64 {
        self.node.connection_id()
    }
}
