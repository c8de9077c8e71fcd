//! `insert`, `update`, `delete` and `findAndModify`.

use pinion_service::metrics::metrics;
use pinion_wire::{Invocation, Reply, Result};

use super::reads::routed;
use crate::dispatch::WhenAbsent;
use crate::reply::passed_on;
use crate::writes::{Batch, BatchKind, Statements, run};

/// `insert`.
pub(super) async fn insert(cmd: Invocation) -> Result<Reply> {
    let batch = Batch::read(&cmd, BatchKind::Insert)?;
    metrics().counters.insert.add(batch.len() as u64);
    run(batch).await
}

/// `update`.
pub(super) async fn update(cmd: Invocation) -> Result<Reply> {
    let batch = Batch::read(&cmd, BatchKind::Update)?;
    metrics().counters.update.add(batch.len() as u64);
    run(batch).await
}

/// `delete`.
pub(super) async fn delete(cmd: Invocation) -> Result<Reply> {
    let batch = Batch::read(&cmd, BatchKind::Delete)?;
    metrics().counters.delete.add(batch.len() as u64);
    run(batch).await
}

/// `findAndModify`.
pub(super) async fn find_and_modify(cmd: Invocation) -> Result<Reply> {
    // In a box, as few commands need its room.
    let sharded = async || Box::pin(crate::writes::find_and_modify(&cmd)).await;
    let unsharded = |answer: &crate::dispatch::Answer| Ok(passed_on(answer.body()));
    routed(&cmd, WhenAbsent::Make, sharded, unsharded).await
}
