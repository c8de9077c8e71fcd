//! What cannot be a part of a transaction: commands, namespaces, concerns and stages. Codes and
//! texts are MongoDB's.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_clock::Timestamp;
use pinion_service::transaction_checks::{self, unsupported};
use pinion_wire::{CommandRole, Error, ErrorCode, InTransaction, Invocation, Result};

use crate::transaction_state::TxnAction;

/// What a command wants of its transaction.
///
/// # Errors
/// A time of a commit that is none.
pub(super) fn action_of(cmd: &Invocation) -> Result<TxnAction> {
    Ok(match cmd.command.spec.in_transaction {
        InTransaction::Commit => TxnAction::Commit {
            at: commit_timestamp(cmd)?,
        },
        InTransaction::Abort => TxnAction::Abort,
        InTransaction::Prepare => TxnAction::Prepare,
        _ if cmd.ctx.args.start_transaction => TxnAction::Start,
        _ => TxnAction::Statement,
    })
}

/// `commitTimestamp`: when a prepared transaction is committed.
///
/// # Errors
/// `TypeMismatch`; `InvalidOptions` for a null one.
pub(crate) fn commit_timestamp(cmd: &Invocation) -> Result<Option<Timestamp>> {
    match cmd.reader()?.opt_timestamp("commitTimestamp")? {
        Some(at) if at.is_null() => Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "'commitTimestamp' cannot be null",
        )),
        at => Ok(at),
    }
}

/// Refuses a command that a transaction cannot have, before its session is examined: the
/// transaction continues.
///
/// # Errors
/// `OperationNotSupportedInTransaction`, `InvalidOptions`.
pub(crate) fn check_command(cmd: &Invocation) -> Result<()> {
    transaction_checks::check_command(cmd)?;
    if cmd.command.spec.in_transaction == InTransaction::Commit {
        commit_timestamp(cmd)?;
    }
    match cmd.command.spec.role {
        CommandRole::Pipeline => check_stages(cmd.body()),
        _ => Ok(()),
    }
}

fn check_stages(body: &RawDocument) -> Result<()> {
    let Some(RawBsonRef::Array(stages)) = pinion_bson::get(body, "pipeline") else {
        return Ok(());
    };
    for stage in pinion_bson::values(stages) {
        let RawBsonRef::Document(stage) = stage else {
            continue;
        };
        let row = pinion_query::stage_row_of(stage);
        if let Some(row) = row.filter(|row| !row.in_transactions) {
            return Err(unsupported(format!(
                "Stage not supported inside of a multi-document transaction: {}",
                row.name
            )));
        }
    }
    Ok(())
}
