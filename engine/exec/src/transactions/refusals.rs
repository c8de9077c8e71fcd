//! What cannot be a part of a transaction: commands, namespaces, concerns and stages. Codes and
//! texts are MongoDB's.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_clock::Timestamp;
use pinion_service::cursors::BULK_WRITE_CURSOR;
use pinion_wire::idl::{Namespace, ReadConcern, ReadPreferenceMode};
use pinion_wire::{
    CommandRole, Error, ErrorCode, InTransaction, Invocation, Result, collection_named,
};

use crate::open_transactions::{
    check_database, check_level, check_namespace, invalid, unsupported,
};
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

/// Refuses what none of them has. A transaction is not aborted for that.
///
/// # Errors
/// Those of the fields.
pub(crate) fn check_fields(cmd: &Invocation) -> Result<()> {
    let reader = cmd.reader()?;
    // The command's own value has no meaning, and a router's token none on a member.
    reader.ignore(&[cmd.message.command_name()]);
    reader.opt_doc("recoveryToken")?;
    if cmd.command.spec.in_transaction == InTransaction::Commit {
        reader.opt_timestamp("commitTimestamp")?;
    }
    reader.finish()
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
    let (name, args) = (cmd.name(), &cmd.ctx.args);
    let role = cmd.command.spec.in_transaction;
    match role {
        InTransaction::Never => {
            return Err(unsupported(format!(
                "Cannot run '{name}' in a multi-document transaction."
            )));
        }
        InTransaction::Alternative => {
            return Err(unsupported(format!(
                "Cannot run '{name}' in a multi-document transaction. Please see \
                 http://dochub.mongodb.org/core/transaction-{name} for a recommended alternative."
            )));
        }
        _ => {}
    }
    let ends = action_of(cmd)?.ends();
    if ends {
        check_fields(cmd)?;
    }
    let named = collection_named(cmd.command.spec, cmd.body());
    match named.map(|collection| Namespace::new(cmd.db(), collection)) {
        // The cursor of a `bulkWrite` is one of `admin`; whose it is, is examined where it is kept.
        Some(Ok(ns)) if role.is_of_cursors() && ns.as_str() == BULK_WRITE_CURSOR => {}
        Some(Ok(ns)) if !role.is_of_admin() => check_namespace(&ns)?,
        // What is no name is refused when the command is read.
        _ if role.is_of_admin() => {}
        _ => check_database(cmd.db())?,
    }
    if args.start_transaction && (ends || role == InTransaction::CloseCursor) {
        return Err(unsupported(format!(
            "Cannot run {name} at the start of a transaction."
        )));
    }
    if let Some(concern) = &args.read_concern {
        check_read_concern(concern, args.start_transaction && !ends)?;
    }
    if args.write_concern.is_some() && !ends {
        return Err(invalid(
            "writeConcern is not allowed within a multi-statement transaction",
        ));
    }
    match args.read_preference {
        // Drivers ask a member that they are connected to directly with the second, whatever the
        // transaction says. Source: drivers' specification of server selection, "Topology type:
        // Single".
        None | Some(ReadPreferenceMode::Primary | ReadPreferenceMode::PrimaryPreferred) => {}
        Some(_) => return Err(invalid("Read preference in a transaction must be primary")),
    }
    if cmd.command.spec.role == CommandRole::Pipeline {
        check_stages(cmd.body())?;
    }
    Ok(())
}

/// The read concern is that of the whole transaction, so the first statement alone says it.
fn check_read_concern(concern: &ReadConcern, is_first: bool) -> Result<()> {
    if !is_first && !concern.is_empty() {
        return Err(invalid(
            "Only the first command in a transaction may specify a readConcern",
        ));
    }
    check_level(concern.level)
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

#[cfg(test)]
mod tests {
    use pinion_wire::idl::ReadConcernLevel;

    use super::*;

    #[test]
    fn a_transaction_has_one_read_concern() {
        let check = |level: Option<ReadConcernLevel>, is_first: bool, allowed: bool| {
            let concern = ReadConcern {
                level,
                ..ReadConcern::default()
            };
            let found = check_read_concern(&concern, is_first);
            assert_eq!(found.is_ok(), allowed, "{level:?} {is_first}");
        };
        check(None, true, true);
        check(None, false, true);
        check(Some(ReadConcernLevel::Snapshot), true, true);
        check(Some(ReadConcernLevel::Majority), true, true);
        check(Some(ReadConcernLevel::Local), false, false);
        check(Some(ReadConcernLevel::Linearizable), true, false);
        check(Some(ReadConcernLevel::Available), true, false);
    }
}
