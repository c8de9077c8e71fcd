//! `setUserWriteBlockMode` of a replica set. Shards and config servers have it from the router.

use pinion_exec::commands::acknowledge;
use pinion_exec::replica_set;
use pinion_exec::user_write_block::BlockChange;
use pinion_exec::user_write_block_store::change;
use pinion_service::interrupt::interruptible;
use pinion_service::node_info::{ClusterRole, node_info};
use pinion_storage::storage;
use pinion_wire::idl::missing_field;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

/// `setUserWriteBlockMode: 1, global: <bool>`. A majority has it when this replies.
pub(crate) async fn set_user_write_block_mode(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let blocks = reader.opt_bool("global")?;
    let blocks = blocks.ok_or_else(|| missing_field(reader.path().field("global")))?;
    reader.ignore(&["setUserWriteBlockMode"]);
    reader.finish()?;
    let refused = |on: &str| {
        let message = format!("setUserWriteBlockMode cannot be run on {on}");
        Err(Error::new(ErrorCode::ILLEGAL_OPERATION, message))
    };
    if node_info().cluster_role != ClusterRole::None {
        return refused("shardsvrs nor configsvrs");
    }
    let Some(set) = replica_set() else {
        return refused("standalones");
    };
    let wanted = match blocks {
        true => BlockChange::BlockWrites,
        false => BlockChange::Release,
    };
    change(cmd.ctx.clone(), wanted).await?;
    let written = storage().last_allotted();
    interruptible(&cmd.ctx, set.wait_committed(written)).await??;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(written), &mut out).await?;
    Ok(out)
}
