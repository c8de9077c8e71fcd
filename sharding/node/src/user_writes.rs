//! What the steps of a block of writes mean for this node.

use pinion_exec::user_write_block::{BlockChange, BlockedUserWork, blocked_user_work};
use pinion_exec::user_write_block_store::change;
use pinion_runtime::now;
use pinion_sharding_protocol::config::{BlockPhase, BlockStep, Blocked};
use pinion_wire::{CommandSpec, OpContext, Result};

/// What blocks writes here, in the place of a command.
static TASK: CommandSpec = CommandSpec::of_task("userWriteBlock");

/// What is done of the node's own accord with settings.
pub(crate) fn context() -> OpContext {
    OpContext::internal(0, &TASK, "config", now().as_nanos())
}

/// Performs a step on this node; `ctx` is what may be stopped while writes are waited for.
///
/// # Errors
/// As of [`change`].
pub(crate) async fn perform(ctx: OpContext, step: BlockStep) -> Result<()> {
    let wanted = match (step.phase, step.blocks) {
        (BlockPhase::Prepare, true) => BlockChange::BlockDefinitions,
        (BlockPhase::Complete, true) => BlockChange::AlsoBlockWrites,
        (BlockPhase::Prepare, false) => BlockChange::UnblockWrites,
        (BlockPhase::Complete, false) => BlockChange::Release,
    };
    change(ctx, wanted).await
}

/// What is blocked on this node.
pub(crate) fn blocked_here() -> Blocked {
    let BlockedUserWork {
        definitions,
        writes,
    } = blocked_user_work();
    Blocked {
        definitions,
        writes,
    }
}
