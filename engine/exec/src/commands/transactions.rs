//! `commitTransaction` and `abortTransaction`.

use pinion_bson::DocBuilder;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::metrics::CounterValues;
use crate::state::state;
use crate::transactions;

/// Refuses what neither of them has. A transaction is not aborted for that.
///
/// # Errors
/// Those of the fields.
pub(crate) fn check_fields(cmd: &Invocation) -> Result<()> {
    let reader = cmd.reader()?;
    // The command's own value has no meaning, and a router's token none on a member.
    reader.ignore(&[cmd.message.command_name(), "recoveryToken"]);
    if cmd.name() == "commitTransaction" && reader.has("commitTimestamp") {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "commitTransaction cannot provide commitTimestamp to unprepared transaction.",
        ));
    }
    reader.finish()
}

/// Whether there can be a transaction to end; the same checks in the same order on a standalone.
fn check(cmd: &Invocation) -> Result<()> {
    check_fields(cmd)?;
    if cmd.ctx.args.txn_number.is_some() && !state().is_member() {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Transaction numbers are only allowed on a replica set member or mongos",
        ));
    }
    match transactions::is_in(&cmd.ctx) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::COMMAND_FAILED,
            format!("{} must be run within a transaction", cmd.name()),
        )),
    }
}

/// `commitTransaction`. Sent again it answers the same. It is answered once the commit is as safe as it asks for.
pub(crate) async fn commit_transaction(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let running = transactions::of(&cmd.ctx).expect("surrounded as all commands of transactions");
    if !running.was_committed() {
        transactions::commit(&cmd.ctx, &running).await?;
    }
    Ok(Reply::new())
}

/// `abortTransaction`.
pub(crate) async fn abort_transaction(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let running = transactions::of(&cmd.ctx).expect("surrounded as all commands of transactions");
    transactions::abort(&running).await;
    Ok(Reply::new())
}

/// `transactions` of serverStatus, but for what routers and participants of several shards do.
pub(super) async fn append_status(out: &mut DocBuilder, counters: &CounterValues) {
    let (active, inactive) = transactions::open_counts().await;
    out.start_document("transactions");
    for (name, value) in [
        ("retriedCommandsCount", counters.retried_commands),
        ("retriedStatementsCount", counters.retried_statements),
        ("transactionsCollectionWriteCount", counters.session_records),
        ("currentActive", active),
        ("currentInactive", inactive),
        ("currentOpen", active + inactive),
        ("totalAborted", counters.transactions_aborted),
        ("totalCommitted", counters.transactions_committed),
        ("totalStarted", counters.transactions_started),
    ] {
        out.append(name, value as i64);
    }
    out.end();
}
