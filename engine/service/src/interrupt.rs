//! Interruption: deadlines, `killOp`, shutdown, and waits that end with their operation.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use pinion_runtime::{Instant, should_yield, yield_now};
use pinion_wire::{Category, Error, OpContext, Result};

use crate::limits::{KILL_POLL, LONGEST_KILL_POLL};

/// The error for an operation that must stop, if it must.
pub fn check(ctx: &OpContext) -> Result<()> {
    // The clock is read only where it decides.
    let now = match ctx.deadline_ns {
        Some(_) => pinion_runtime::now().as_nanos(),
        None => 0,
    };
    ctx.check(now)
}

/// Polls a future once; `None` where it has to wait.
pub async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Waits for something that may take long, unless the operation is killed or its time is up.
pub async fn interruptible<F: Future>(ctx: &OpContext, future: F) -> Result<F::Output> {
    let mut future = pin!(future);
    check(ctx)?;
    // Most need not wait, and then the clock is not read.
    if let Some(output) = poll_once(future.as_mut()).await {
        return Ok(output);
    }
    // In a box, as few operations ever need its room.
    Box::pin(interruptible_wait(ctx, future)).await
}

async fn interruptible_wait<F: Future>(
    ctx: &OpContext,
    mut future: Pin<&mut F>,
) -> Result<F::Output> {
    let mut poll = KILL_POLL;
    loop {
        check(ctx)?;
        let wake = pinion_runtime::now() + poll;
        poll = LONGEST_KILL_POLL.min(poll * 2);
        let wake = ctx
            .deadline_ns
            .map_or(wake, |deadline| wake.min(Instant::from_nanos(deadline)));
        if let Ok(output) = pinion_runtime::timeout_at(wake, future.as_mut()).await {
            return Ok(output);
        }
    }
}

/// Whether an error says that the operation was stopped. It is the answer to the whole command,
/// whichever statement was under way, and not one of that statement.
pub fn is_interruption(error: &Error) -> bool {
    error.is(Category::INTERRUPTION)
}

/// Yields to other tasks if the operation has used its slice, and checks whether it must stop.
pub async fn pause(ctx: &OpContext) -> Result<()> {
    if should_yield() {
        check(ctx)?;
        ctx.work().yielded();
        yield_now().await;
    }
    Ok(())
}
