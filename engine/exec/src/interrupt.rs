//! Interruption: deadlines, `killOp`, shutdown.

use std::future::Future;
use std::pin::pin;

use pinion_runtime::Instant;
use pinion_wire::{OpContext, Result};

use crate::limits::KILL_POLL;

/// The error for an operation that must stop, if it must.
pub(crate) fn check(ctx: &OpContext) -> Result<()> {
    ctx.check(pinion_runtime::now().as_nanos())
}

/// Waits for something that may take long, unless the operation is killed or its time is up.
pub(crate) async fn interruptible<F: Future>(ctx: &OpContext, future: F) -> Result<F::Output> {
    let mut future = pin!(future);
    loop {
        check(ctx)?;
        let wake = pinion_runtime::now() + KILL_POLL;
        let wake = ctx
            .deadline_ns
            .map_or(wake, |deadline| wake.min(Instant::from_nanos(deadline)));
        if let Ok(output) = pinion_runtime::timeout_at(wake, future.as_mut()).await {
            return Ok(output);
        }
    }
}
