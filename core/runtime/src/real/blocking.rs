//! The thread for directory operations, which the kernel offers no asynchronous form of (or a form
//! that would use a thread of its own as well). One for each node; it never panics.

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::task::{Poll, Waker};

use super::core::RealCore;
use super::limits::BLOCKING_QUEUE;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Where jobs are sent.
#[derive(Clone)]
pub(super) struct Blocking(SyncSender<Job>);

/// The thread's end. The thread ends when all senders are gone.
pub(super) struct BlockingThread(Receiver<Job>);

impl Blocking {
    pub fn new() -> (Blocking, BlockingThread) {
        let (sender, receiver) = sync_channel(BLOCKING_QUEUE);
        (Blocking(sender), BlockingThread(receiver))
    }
}

impl BlockingThread {
    pub fn run(self) {
        while let Ok(job) = self.0.recv() {
            job();
        }
    }
}

struct Slot<T> {
    result: Option<io::Result<T>>,
    waker: Option<Waker>,
}

/// Runs `f` on the blocking thread.
pub(super) async fn run<T: Send + 'static>(
    f: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    run_by(f, |job| {
        let sent = RealCore::current().blocking().0.try_send(job);
        sent.map_err(|error| match error {
            TrySendError::Full(_) => io::Error::other("too many directory operations are waiting"),
            TrySendError::Disconnected(_) => io::Error::other("the node is stopping"),
        })
    })
    .await
}

/// Runs `f` on the thread that `start` gives the job to.
pub(super) async fn run_by<T: Send + 'static>(
    f: impl FnOnce() -> io::Result<T> + Send + 'static,
    start: impl FnOnce(Job) -> io::Result<()>,
) -> io::Result<T> {
    // Shared with a thread that is no core; held for a move only.
    #[allow(clippy::disallowed_types)]
    let slot = Arc::new(std::sync::Mutex::new(Slot {
        result: None,
        waker: None,
    }));
    let answer = slot.clone();
    let job: Job = Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(f))
            .unwrap_or_else(|_| Err(io::Error::other("a blocking operation panicked")));
        let waker = {
            let mut slot = answer
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            slot.result = Some(result);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    });
    start(job)?;
    poll_fn(move |context| {
        let mut slot = slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}
