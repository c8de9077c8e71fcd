//! `_shardsvrRenameCollectionParticipant`: a part of a rename that another shard coordinates.

use pinion_sharding_protocol::ShardId;
use pinion_sharding_protocol::ddl::RenamePart;
use pinion_wire::{Invocation, Reply, Result};

use super::block::{check_phase, turn_of};
use super::leadership::lead;
use super::participants::finish;
use super::perform::context;
use super::rename::rename_local;
use crate::part::{on_core_0, part};
use crate::shard::membership;

/// `_shardsvrRenameCollectionParticipant: <from>, to, sourceUUID, reason, phase, from`.
pub(crate) async fn rename_collection_participant(cmd: Invocation) -> Result<Reply> {
    membership(&part())?;
    let reader = cmd.reader()?;
    let from = reader.sought(cmd.name(), cmd.db())?;
    let (part, sender) = RenamePart::parse(from, cmd.body())?;
    reader.ignore(RenamePart::fields());
    reader.finish()?;
    on_core_0(&cmd.ctx, move || rename(part, sender)).await?;
    finish(&cmd).await
}

async fn rename(part: RenamePart, sender: ShardId) -> Result<()> {
    let leadership = lead().await?;
    let work = async {
        // In turn with what closes and opens the gates.
        let _turn = turn_of(&leadership, &part.from).await;
        check_phase(&part.reason, &part.phase, &sender).await?;
        rename_local(&context(&leadership, &part.from), &part, false).await
    };
    leadership.unless_over(work).await?
}
