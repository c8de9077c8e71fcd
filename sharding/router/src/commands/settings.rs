//! Settings of the cluster, which the config servers change on all shards.

use pinion_bson::DocBuilder;
use pinion_service::cluster_parameters::parse_setting;
use pinion_service::interrupt::interruptible;
use pinion_wire::idl::missing_field;
use pinion_wire::{Invocation, Reply, Result};

use super::sharding::append_majority;
use crate::cluster_parameters::reload;
use crate::config_reads::run_at_config;
use crate::limits::SETTINGS_TIME;

async fn at_config(cmd: &Invocation, fields: impl FnOnce(&mut DocBuilder)) -> Result<()> {
    let change = run_at_config(
        "admin",
        |out| {
            fields(out);
            append_majority(out, cmd);
        },
        Some(SETTINGS_TIME),
    );
    interruptible(&cmd.ctx, change).await??;
    Ok(())
}

/// `setUserWriteBlockMode: 1, global: <bool>`. All shards have it when this replies.
pub(super) async fn set_user_write_block_mode(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let blocks = reader.opt_bool("global")?;
    let blocks = blocks.ok_or_else(|| missing_field(reader.path().field("global")))?;
    reader.ignore(&["setUserWriteBlockMode"]);
    reader.finish()?;
    at_config(&cmd, |out| {
        out.append("_configsvrSetUserWriteBlockMode", 1i32)
            .append("global", blocks);
    })
    .await?;
    Ok(Reply::new())
}

/// `setClusterParameter: {<name>: <value>}`. All shards, and this router, go by it when this
/// replies.
pub(super) async fn set_cluster_parameter(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let setting = reader.doc("setClusterParameter")?;
    parse_setting(setting)?;
    at_config(&cmd, |out| {
        out.append("_configsvrSetClusterParameter", setting);
    })
    .await?;
    reload().await?;
    Ok(Reply::new())
}
