//! `_shardsvrSetUserWriteBlockMode`: a shard starts no definitions, then takes no writes of users,
//! and the other way round.
//!
//! Definitions that run would wait for writes that are blocked, so they end first.

use pinion_bson::{get, rawdoc};
use pinion_sharding_protocol::config::{
    BlockPhase, BlockStep, Blocked, CONFIG_COORDINATORS, SettingsChange,
};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::participants::finish;
use crate::config_servers::read_config;
use crate::part::{Membership, on_core_0, part};
use crate::shard::membership;
use crate::user_writes::{context, perform};

/// Where the config servers have what they block.
const BLOCKED: (&str, &str) = ("config", "user_writes_critical_sections");

/// `_shardsvrSetUserWriteBlockMode: 1, global: <bool>, phase: "prepare" | "complete"`. Sent again
/// it does nothing; where it is late it is refused.
pub(crate) async fn set_user_write_block_mode(cmd: Invocation) -> Result<Reply> {
    membership(&part())?;
    let reader = cmd.reader()?;
    let step = BlockStep::of_command(&reader)?;
    reader.ignore(&[cmd.name()]);
    reader.finish()?;
    let ctx = cmd.ctx.clone();
    on_core_0(&cmd.ctx, move || take(ctx, step)).await?;
    finish(&cmd).await
}

async fn take(ctx: OpContext, step: BlockStep) -> Result<()> {
    let part = part();
    // What was checked holds until it is performed: another message waits.
    let _turn = part.core_0.settings_turn.acquire().await;
    let shard = membership(&part)?;
    let made = step_made(&shard).await?;
    let stored = blocked_at_config(&shard).await?;
    if !step.is_current(made, stored) {
        return Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!("the config servers do not set the user write block mode by {step:?} now"),
        ));
    }
    if step.phase == BlockPhase::Prepare && step.blocks {
        perform(context(), step).await?;
        return drain_definitions().await;
    }
    perform(ctx, step).await
}

/// The step that the config servers are at.
async fn step_made(shard: &Membership) -> Result<Option<BlockStep>> {
    let (db, collection) = CONFIG_COORDINATORS.split_once('.').expect("a namespace");
    let filter = rawdoc! { "_id": SettingsChange::block(true).id() };
    let found = read_config(shard, (db, collection), &filter, 1).await?;
    let Some(found) = found.first() else {
        return Ok(None);
    };
    match SettingsChange::parse(found)? {
        SettingsChange::UserWriteBlock(step) => Ok(Some(step)),
        SettingsChange::Parameter { .. } => Ok(None),
    }
}

async fn blocked_at_config(shard: &Membership) -> Result<Blocked> {
    let found = read_config(shard, BLOCKED, &rawdoc! {}, 1).await?;
    let flag = |name| {
        let stored = found.first().and_then(|found| get(found, name));
        stored.and_then(|flag| flag.as_bool()).unwrap_or(false)
    };
    Ok(Blocked {
        definitions: flag("blockNewUserShardedDDL"),
        writes: flag("blockUserWrites"),
    })
}

/// Waits until no definition runs: none starts any more.
async fn drain_definitions() -> Result<()> {
    let part = part();
    let definitions = &part.core_0.definitions;
    let leadership = definitions.current()?;
    let none_runs = || {
        let is_none = leadership.is_resumed.get() && !leadership.runs_for_users();
        is_none.then_some(())
    };
    leadership.unless_over(definitions.until(none_runs)).await
}
