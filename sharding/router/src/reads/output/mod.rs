//! `$out` and `$merge` at work in a router: all that comes is written at the shards of the target,
//! and nothing comes out.
//!
//! A router runs a pipeline that writes where a collection that it reads, or the one that it writes
//! into, is sharded, and where the two are on different shards. All others run at their shard.

// A module uses those above it.

mod target;
mod writer;

mod merge;
mod replace;

use pinion_merge::Node;
use pinion_query::{ExternalStage, Pipeline};
use pinion_wire::{OpContext, Result};

pub(super) use replace::Model;
pub(super) use target::{collation_of, destinations_of};

use super::sources::Routed;

/// Looks at what a pipeline is to replace before anything is read for it: what cannot be replaced
/// is reported before the errors of its sources.
///
/// # Errors
/// Those of the target, and of the way there.
pub(super) async fn prepare(around: &Routed, pipeline: &Pipeline) -> Result<()> {
    match pipeline.output() {
        Some(ExternalStage::Out(stage)) => replace::prepare(around, stage).await,
        _ => Ok(()),
    }
}

/// Writes all documents of a source, as `$out` or `$merge` say.
///
/// # Errors
/// Those of the source, of the writes, and of the way there. What `$merge` has written stays.
pub(super) async fn write(
    ctx: &OpContext,
    around: &Routed,
    stage: &ExternalStage,
    source: Node<Routed>,
) -> Result<()> {
    match stage {
        ExternalStage::Out(stage) => replace::run(ctx, around, stage, source).await,
        ExternalStage::Merge(stage) => merge::run(ctx, around, stage, source).await,
        _ => unreachable!("the other stages write nothing"),
    }
}
