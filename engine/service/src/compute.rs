//! Evaluations that may take long: tried here with a budget, and offloaded where that does not
//! suffice.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pinion_query::work;
use pinion_runtime::{Abandoned, offload_bounded};
use pinion_wire::{OpContext, Result};

use crate::interrupt::check;
use crate::limits::{CORE_BUDGET, KILL_POLL, LARGE_DOCUMENT_BYTES};

/// Calls `f`, which may be refused for its work and is then called once more on another thread.
pub async fn compute<T: Send>(
    ctx: &OpContext,
    mut f: impl FnMut() -> Result<T> + Send,
) -> Result<T> {
    match work::within(CORE_BUDGET, &mut f) {
        Some(result) => result,
        // In a box, as few commands ever need its room.
        None => Box::pin(offload(ctx, move |stop| work::until(stop, &mut f))).await,
    }
}

/// Calls `f`, which looks through or copies `bytes` bytes: here, or on a compute thread if they are
/// many.
pub async fn compute_bytes<T: Send>(bytes: usize, f: impl FnOnce() -> T + Send) -> T {
    if bytes <= LARGE_DOCUMENT_BYTES {
        return f();
    }
    offload_bounded(f).await
}

/// Calls `f` on another thread while this task waits. `f` fails soon after its flag is set, which
/// happens when the operation is killed or its time is up.
#[cold]
pub async fn offload<T: Send>(
    ctx: &OpContext,
    f: impl FnOnce(Arc<AtomicBool>) -> Result<T> + Send,
) -> Result<T> {
    offload_boxed(ctx, Box::new(f)).await
}

/// [`offload`] without the type of what is computed, so that the wait is compiled for each type of
/// result only.
async fn offload_boxed<T: Send>(
    ctx: &OpContext,
    f: Box<dyn FnOnce(Arc<AtomicBool>) -> Result<T> + Send + '_>,
) -> Result<T> {
    check(ctx)?;
    let abandoned = Abandoned::default();
    let stop = abandoned.flag();
    // SAFETY: it is awaited here, in a future that lives in its task and goes with it.
    let computing = unsafe { pinion_runtime::compute(abandoned.clone(), move || f(stop)) };
    let mut computing = std::pin::pin!(computing);
    loop {
        let wake = pinion_runtime::now() + KILL_POLL;
        if let Ok(result) = pinion_runtime::timeout_at(wake, computing.as_mut()).await {
            // What it says of an interruption is not why.
            check(ctx)?;
            return result;
        }
        if check(ctx).is_err() {
            abandoned.set();
        }
    }
}
