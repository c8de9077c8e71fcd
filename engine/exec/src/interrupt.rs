//! Interruption: deadlines, `killOp`, shutdown.

use std::future::Future;
use std::pin::pin;

use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::limits::KILL_POLL;

/// The error for an operation that must stop, if it must.
pub(crate) fn check(ctx: &OpContext) -> Result<()> {
    if let Some(code) = ctx.kill.reason() {
        return Err(interrupted(code));
    }
    if let Some(deadline) = ctx.deadline
        && pinion_runtime::now() >= deadline
    {
        return Err(expired());
    }
    Ok(())
}

fn expired() -> Error {
    Error::new(ErrorCode::MAX_TIME_MS_EXPIRED, "operation exceeded time limit")
}

fn interrupted(code: ErrorCode) -> Error {
    let message = match code {
        ErrorCode::CURSOR_KILLED => "cursor was killed",
        ErrorCode::INTERRUPTED_AT_SHUTDOWN => "interrupted at shutdown",
        _ => "operation was interrupted",
    };
    Error::new(code, message)
}

/// Waits for something that may take long, unless the operation is killed or its time is up.
pub(crate) async fn interruptible<F: Future>(ctx: &OpContext, future: F) -> Result<F::Output> {
    let mut future = pin!(future);
    loop {
        check(ctx)?;
        let wake = pinion_runtime::now() + KILL_POLL;
        let wake = ctx.deadline.map_or(wake, |deadline| wake.min(deadline));
        if let Ok(output) = pinion_runtime::timeout_at(wake, future.as_mut()).await {
            return Ok(output);
        }
    }
}
