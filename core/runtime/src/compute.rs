//! Long computations are offloaded to compute threads, so that the other tasks of a core continue
//! meanwhile.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::context::{self, Backend};
use crate::{real, yield_now};

/// How long a computation may take. Each kind has threads of its own: what is known to end soon
/// does not wait behind computations of unknown length, such as other clients' queries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Open,
    Bounded,
}

/// Says to a computation that its caller does not need it any more. It then ends as soon as it can:
/// the caller waits for that.
#[derive(Clone, Debug, Default)]
pub struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    /// Whether the caller does not need the result any more.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Asks the computation to end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Offloads to a compute thread what would hold a core for too long; it may borrow from the task
/// that awaits it. A simulated core computes it itself, after the other tasks had their turn.
///
/// A computation that has started does not end with the future: dropping that sets `abandoned` and
/// then blocks the core until the computation has returned. So one that may take long looks at
/// `abandoned`, and a caller that gives up while its core has other work sets it and continues to
/// await.
///
/// # Safety
/// The future is polled to its end or dropped, never forgotten: the computation may use what it
/// borrows until then.
///
/// # Panics
/// When the computation panics.
pub async unsafe fn compute<T: Send>(abandoned: Abandoned, f: impl FnOnce() -> T + Send) -> T {
    // SAFETY: the caller's promise.
    unsafe { compute_of(Length::Open, abandoned, f).await }
}

/// See [`compute`], whose promise this needs too.
async unsafe fn compute_of<T: Send>(
    length: Length,
    abandoned: Abandoned,
    f: impl FnOnce() -> T + Send,
) -> T {
    let is_real = context::with(|context| matches!(context.backend, Backend::Real(_)));
    if is_real {
        // SAFETY: the caller's promise.
        unsafe { real::compute(length, abandoned, f).await }
    } else {
        yield_now().await;
        f()
    }
}

/// As [`compute`], for what is known to take long, and how long at most: it need not be abandoned,
/// and it never waits for a computation of unknown length.
///
/// The future is in a box, as few tasks ever need its room. It lives in its task, as all of ours
/// do: nothing in this workspace forgets or leaks one.
///
/// # Panics
/// When the computation panics.
pub fn offload_bounded<'a, T: Send + 'a>(
    f: impl FnOnce() -> T + Send + 'a,
) -> Pin<Box<impl Future<Output = T>>> {
    // Without its type, so that the wait is compiled for each type of result only.
    let f: Box<dyn FnOnce() -> T + Send + 'a> = Box::new(f);
    // SAFETY: the future is polled to its end or dropped, see above.
    Box::pin(unsafe { compute_of(Length::Bounded, Abandoned::default(), f) })
}
