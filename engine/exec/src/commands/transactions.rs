//! `commitTransaction`, `abortTransaction` and `prepareTransaction`.

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_service::command_checks::{check_end_fields, check_has_transaction};
use pinion_service::metrics::CounterValues;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::topology::is_member;
use crate::transactions;
use crate::transactions::commit_timestamp;

/// Whether there can be a transaction to end; the same checks in the same order on a standalone.
fn check(cmd: &Invocation) -> Result<()> {
    check_end_fields(cmd)?;
    if cmd.ctx.args.txn_number.is_some() && !is_member() {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Transaction numbers are only allowed on a replica set member or mongos",
        ));
    }
    check_has_transaction(cmd)
}

/// `commitTransaction`. Sent again it answers the same. It is answered once the commit is as safe
/// as it asks for.
pub(crate) async fn commit_transaction(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let running =
        crate::open_transactions::of(&cmd.ctx).expect("surrounded as all commands of transactions");
    match (running.was_prepared(), commit_timestamp(&cmd)?) {
        (Some(prepared), Some(at)) => {
            transactions::commit_prepared(&running, prepared, at).await?;
        }
        _ if running.was_committed() => {}
        _ => transactions::commit(&cmd.ctx, &running).await?,
    }
    Ok(Reply::new())
}

/// `prepareTransaction`. Sent again it answers the same. It is answered once what is prepared is as
/// safe as it asks for.
pub(crate) async fn prepare_transaction(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let running =
        crate::open_transactions::of(&cmd.ctx).expect("surrounded as all commands of transactions");
    let prepared = match running.was_prepared() {
        Some(prepared) => prepared.clone(),
        None => transactions::prepare(&cmd.ctx, &running).await?,
    };
    let mut out = Reply::new();
    let at = pinion_catalog::bson_timestamp(prepared.at.ts);
    out.append("prepareTimestamp", RawBsonRef::Timestamp(at))
        .start_array("affectedNamespaces");
    for ns in prepared.namespaces.iter() {
        out.push(ns.as_str());
    }
    out.end();
    Ok(out)
}

/// `abortTransaction`.
pub(crate) async fn abort_transaction(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let running =
        crate::open_transactions::of(&cmd.ctx).expect("surrounded as all commands of transactions");
    match running.was_prepared() {
        Some(prepared) => transactions::abort_prepared(&running, prepared).await?,
        None => transactions::abort(&running).await,
    }
    Ok(Reply::new())
}

/// `transactions` of serverStatus, but for what routers and participants of several shards do.
pub async fn append_status(out: &mut DocBuilder, counters: &CounterValues) {
    let (active, inactive) = transactions::open_counts().await;
    let prepared = transactions::all_prepared().await.len() as u64;
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
        ("totalPrepared", counters.transactions_prepared),
        ("totalPreparedThenCommitted", counters.prepared_committed),
        ("totalPreparedThenAborted", counters.prepared_aborted),
        ("currentPrepared", prepared),
    ] {
        out.append(name, value as i64);
    }
    out.end();
}
