//! The threads that long computations run on: of each kind as many as cores, and never a core's
//! own.
#![allow(
    clippy::disallowed_types,
    reason = "shared with threads that are no core; a core holds these locks for a move only"
)]

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};

use super::core::RealCore;
use super::limits::{COMPUTE_QUEUE, COMPUTE_RETRY, QUIET};
use crate::compute::{Abandoned, Length};

type Work = Box<dyn FnOnce() + Send>;

/// Where computations are sent.
#[derive(Clone)]
pub(super) struct Computing {
    open: Sender<Arc<Job>>,
    bounded: Sender<Arc<Job>>,
}

/// A thread's end. The thread ends when all senders are gone.
#[derive(Clone)]
pub(super) struct ComputeThread(Receiver<Arc<Job>>);

impl Computing {
    /// Gives the end of the threads of each kind too.
    pub fn new() -> (Computing, [ComputeThread; 2]) {
        let (open, of_open) = bounded(COMPUTE_QUEUE);
        let (bounded, of_bounded) = bounded(COMPUTE_QUEUE);
        let ends = [of_open, of_bounded].map(ComputeThread);
        (Computing { open, bounded }, ends)
    }

    fn of(&self, length: Length) -> &Sender<Arc<Job>> {
        match length {
            Length::Open => &self.open,
            Length::Bounded => &self.bounded,
        }
    }
}

impl ComputeThread {
    pub fn run(self, on_idle: Option<fn()>) {
        loop {
            match self.0.recv_timeout(QUIET) {
                Ok(job) => job.run(),
                Err(RecvTimeoutError::Timeout) => on_idle.iter().for_each(|act| act()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// How far a computation is. Its work is taken out under the lock, by the thread that does it or by
/// the task that gives up.
enum Stage {
    Queued(Work),
    Running,
    Ended,
}

struct Job {
    stage: Mutex<(Stage, Option<Waker>)>,
    ended: Condvar,
}

impl Job {
    fn run(&self) {
        let work = {
            let mut stage = locked(&self.stage);
            match std::mem::replace(&mut stage.0, Stage::Running) {
                Stage::Queued(work) => work,
                other => {
                    stage.0 = other;
                    return;
                }
            }
        };
        // It contains panics itself.
        work();
        let waker = {
            let mut stage = locked(&self.stage);
            stage.0 = Stage::Ended;
            stage.1.take()
        };
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Ends the use of what a computation borrows: one that waits is not done, one that runs is waited
/// for.
struct EndOnDrop {
    job: Arc<Job>,
    abandoned: Abandoned,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let mut stage = locked(&self.job.stage);
        if let Stage::Queued(_) = stage.0 {
            let queued = std::mem::replace(&mut stage.0, Stage::Ended);
            drop(stage);
            drop(queued);
            return;
        }
        self.abandoned.set();
        while !matches!(stage.0, Stage::Ended) {
            stage = self
                .job
                .ended
                .wait(stage)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

/// See [`crate::compute`].
///
/// # Safety
/// The future is polled to its end or dropped, never forgotten.
pub(crate) async unsafe fn compute<T: Send>(
    length: Length,
    abandoned: Abandoned,
    f: impl FnOnce() -> T + Send,
) -> T {
    let mut result: Option<Result<T, Box<dyn Any + Send>>> = None;
    let work: Box<dyn FnOnce() + Send + '_> = {
        let result = &mut result;
        Box::new(move || *result = Some(catch_unwind(AssertUnwindSafe(f))))
    };
    // SAFETY: the work borrows from this future and from what outlives it. It is done or dropped
    // before `end` below is gone, which is dropped before anything that the work borrows, as the
    // future is not forgotten.
    let work: Work = unsafe { std::mem::transmute(work) };
    let job = Arc::new(Job {
        stage: Mutex::new((Stage::Queued(work), None)),
        ended: Condvar::new(),
    });
    let end = EndOnDrop {
        job: job.clone(),
        abandoned,
    };
    loop {
        match RealCore::current()
            .computing()
            .of(length)
            .try_send(job.clone())
        {
            Ok(()) => break,
            Err(TrySendError::Full(_)) => crate::sleep(COMPUTE_RETRY).await,
            // The threads live as long as the cores; if they do not, this core does it.
            Err(TrySendError::Disconnected(job)) => {
                job.run();
                break;
            }
        }
    }
    poll_fn(|context| {
        let mut stage = locked(&job.stage);
        if let Stage::Ended = stage.0 {
            return Poll::Ready(());
        }
        stage.1 = Some(context.waker().clone());
        Poll::Pending
    })
    .await;
    drop(end);
    match result.expect("a computation that ended has left its result") {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    }
}
