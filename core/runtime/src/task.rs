//! Tasks: spawning, joining, aborting, yielding.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::context::{self, Backend};
use crate::{FOREGROUND_SHARES, real, sim};

/// The task queues of a core. Shares keep background work out of the foreground's tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// Client operations: latency matters.
    Foreground,
    /// Checkpoint, merge, expiry, index build, migration, initial sync.
    Background,
}

/// A future in a box. The body of an `async fn` is compiled again in each crate that awaits it,
/// with all that it awaits itself; one in a box is compiled where the box is made. What a crate
/// offers to others, and is not called for every statement, is therefore given in a box: without
/// that the executor would be built four times over.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The task was aborted, or its node ended before it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl std::fmt::Display for Cancelled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the task was cancelled")
    }
}

impl std::error::Error for Cancelled {}

struct JoinState<T> {
    result: RefCell<Option<Result<T, Cancelled>>>,
    finished: Cell<bool>,
    abort: Cell<bool>,
    /// The task that awaits the handle.
    joiner: RefCell<Option<Waker>>,
    /// The spawned task itself, so that an abort can wake it.
    task: RefCell<Option<Waker>>,
}

impl<T> JoinState<T> {
    fn finish(&self, result: Result<T, Cancelled>) {
        if self.finished.replace(true) {
            return;
        }
        *self.result.borrow_mut() = Some(result);
        // The task's own waker would keep the finished task in memory for as long as the handle
        // lives.
        let own = self.task.borrow_mut().take();
        drop(own);
        let joiner = self.joiner.borrow_mut().take();
        if let Some(joiner) = joiner {
            joiner.wake();
        }
    }
}

/// Resolves the join state even when the executor drops the task unfinished.
struct FinishOnDrop<T>(Rc<JoinState<T>>);

impl<T> Drop for FinishOnDrop<T> {
    fn drop(&mut self) {
        self.0.finish(Err(Cancelled));
    }
}

/// Awaits a spawned task. Dropping the handle leaves the task running.
pub struct JoinHandle<T>(Rc<JoinState<T>>);

impl<T> JoinHandle<T> {
    /// Drops the task's future the next time its core schedules it; the handle then gives
    /// [`Cancelled`].
    pub fn abort(&self) {
        if self.0.finished.get() {
            return;
        }
        self.0.abort.set(true);
        let task = self.0.task.borrow_mut().take();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// True once the task has completed or was cancelled.
    pub fn is_finished(&self) -> bool {
        self.0.finished.get()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Cancelled>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.0.result.borrow_mut().take() {
            return Poll::Ready(result);
        }
        assert!(
            !self.0.finished.get(),
            "a join handle was polled after it gave its result"
        );
        store_waker(&self.0.joiner, cx.waker());
        Poll::Pending
    }
}

/// Keeps `waker` in `slot`, without cloning when the same one is there already.
pub(crate) fn store_waker(slot: &RefCell<Option<Waker>>, waker: &Waker) {
    let mut slot = slot.borrow_mut();
    match &*slot {
        Some(existing) if existing.will_wake(waker) => {}
        _ => *slot = Some(waker.clone()),
    }
}

/// Starts a task on this core.
#[track_caller]
pub fn spawn<F>(queue: Queue, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    // What surrounds a task is compiled for each type of result, not for each task.
    spawn_boxed(queue, Box::pin(future))
}

#[track_caller]
fn spawn_boxed<T: 'static>(
    queue: Queue,
    mut future: Pin<Box<dyn Future<Output = T>>>,
) -> JoinHandle<T> {
    let state = Rc::new(JoinState {
        result: RefCell::new(None),
        finished: Cell::new(false),
        abort: Cell::new(false),
        joiner: RefCell::new(None),
        task: RefCell::new(None),
    });
    let guard = FinishOnDrop(Rc::clone(&state));
    spawn_detached(queue, async move {
        let guard = guard;
        let output = poll_fn(|cx| {
            if guard.0.abort.get() {
                return Poll::Ready(None);
            }
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                // The future may have aborted its own task while it ran.
                Poll::Pending if guard.0.abort.get() => Poll::Ready(None),
                Poll::Pending => {
                    store_waker(&guard.0.task, cx.waker());
                    Poll::Pending
                }
            }
        })
        .await;
        // A joiner finds the future's resources released.
        drop(future);
        guard.0.finish(output.ok_or(Cancelled));
    });
    JoinHandle(state)
}

/// Starts a task that is not joined.
#[track_caller]
pub(crate) fn spawn_detached<F>(queue: Queue, future: F)
where
    F: Future<Output = ()> + 'static,
{
    let context = context::current();
    if context.ended.get() {
        return;
    }
    match &context.backend {
        Backend::Real(core) => core.spawn(queue, future),
        Backend::Sim(core) => core.spawn(queue, future),
    }
}

/// Lets the other tasks of this core run.
pub fn yield_now() -> YieldNow {
    context::with(|context| match &context.backend {
        Backend::Real(core) => YieldNow(YieldKind::Real(core.yield_now())),
        Backend::Sim(core) => YieldNow(YieldKind::Sim(core.yield_now())),
    })
}

/// The future of [`yield_now`].
pub struct YieldNow(YieldKind);

enum YieldKind {
    Real(real::RealYield),
    Sim(sim::SimYield),
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            YieldKind::Real(future) => Pin::new(future).poll(cx),
            YieldKind::Sim(future) => Pin::new(future).poll(cx),
        }
    }
}

/// True when the running task has used its slice and should await [`yield_now`].
pub fn should_yield() -> bool {
    context::with(|context| match &context.backend {
        Backend::Real(core) => core.should_yield(),
        Backend::Sim(core) => core.should_yield(),
    })
}

/// A number that has grown since the last call if this core's foreground queue was without work in
/// between, or is now. For background work that would rather wait than take its share while the
/// foreground has fallen behind.
pub fn foreground_idles() -> u64 {
    context::with(|context| match &context.backend {
        Backend::Real(core) => core.foreground_idles(),
        Backend::Sim(core) => core.foreground_idles(),
    })
}

/// Gives this core's background queue `shares` against the foreground's [`FOREGROUND_SHARES`]:
/// while both have work, the core's time is divided by them.
/// [`BACKGROUND_SHARES`](crate::BACKGROUND_SHARES) is what it has at first. The scheduler takes
/// note within 10 ms.
///
/// # Panics
/// Unless `shares` is 1 to [`FOREGROUND_SHARES`].
pub fn set_background_shares(shares: usize) {
    assert!(
        (1..=FOREGROUND_SHARES).contains(&shares),
        "the background has 1 to {FOREGROUND_SHARES} shares, not {shares}"
    );
    context::with(|context| match &context.backend {
        Backend::Real(core) => core.set_background_shares(shares),
        Backend::Sim(core) => core.set_background_shares(shares),
    })
}

/// Lets the other tasks of this core run if the running task has used its slice.
pub async fn yield_if_due() {
    if should_yield() {
        yield_now().await;
    }
}

/// Runs all futures at the same time on the calling task and returns their outputs in order. Each
/// wake-up polls every future that is not ready, so this is for tens of them; more belong into
/// tasks.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<Option<Pin<Box<F>>>> = futures
        .into_iter()
        .map(|future| Some(Box::pin(future)))
        .collect();
    let mut outputs: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut waiting = false;
        for (slot, output) in pending.iter_mut().zip(&mut outputs) {
            let Some(future) = slot else { continue };
            match future.as_mut().poll(cx) {
                Poll::Ready(value) => {
                    *output = Some(value);
                    *slot = None;
                }
                Poll::Pending => waiting = true,
            }
        }
        if waiting {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    outputs
        .into_iter()
        .map(|output| output.expect("every future completed"))
        .collect()
}
