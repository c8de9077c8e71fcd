//! Where statements are executed: as steps of their own, or in the transaction of their operation.

use pinion_clock::Timestamp;
use pinion_storage::{Statement, WriteError, storage};
use pinion_wire::OpContext;

/// Executes statements together. Those of a transaction take place when it is committed, and the
/// time that is given for them is that of what it reads; of these none is tried behind one that is
/// refused.
pub(super) async fn execute(
    ctx: &OpContext,
    statements: Vec<Statement>,
    ordered: bool,
) -> Vec<Result<Timestamp, WriteError>> {
    match crate::open_transactions::of(ctx) {
        None => storage().execute(statements, ordered).await,
        Some(running) => Box::pin(running.execute(statements)).await,
    }
}
