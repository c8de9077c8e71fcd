//! Interruption: deadlines, `killOp`, shutdown.

pub use pinion_catalog::{check_interrupted as check, interruptible, poll_once};
use pinion_runtime::{should_yield, yield_now};
use pinion_wire::{Category, Error, OpContext, Result};

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
