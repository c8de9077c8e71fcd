//! What no command of a transaction can be, have or name, wherever it is executed. Codes and texts
//! are MongoDB's.

use pinion_wire::idl::{Namespace, ReadConcern, ReadConcernLevel, ReadPreferenceMode};
use pinion_wire::{
    Error, ErrorCode, InTransaction, Invocation, OpContext, Result, collection_named,
};

use crate::command_checks::check_end_fields;
use crate::cursors::BULK_WRITE_CURSOR;
use crate::node_info::{ClusterRole, node_info};

fn is_config_server() -> bool {
    node_info().cluster_role == ClusterRole::Config
}

pub fn invalid(what: &str) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, what)
}

pub fn unsupported(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::OPERATION_NOT_SUPPORTED_IN_TRANSACTION, what)
}

/// Refuses the databases that nodes keep for themselves. Config servers change the catalog of their
/// cluster in transactions of their own.
///
/// # Errors
/// `OperationNotSupportedInTransaction`.
pub fn check_database(ctx: &OpContext, db: &str) -> Result<()> {
    match db {
        "config" if ctx.client.is_internal() && is_config_server() => Ok(()),
        "local" | "config" | "admin" => Err(unsupported(format!(
            "Cannot run command against the '{db}' database in a transaction."
        ))),
        _ => Ok(()),
    }
}

/// Refuses namespaces that no transaction reaches.
///
/// # Errors
/// `OperationNotSupportedInTransaction`.
pub fn check_namespace(ctx: &OpContext, ns: &Namespace) -> Result<()> {
    check_database(ctx, ns.db())?;
    match ns.collection() {
        "system.profile" | "system.views" => Err(unsupported(format!(
            "Cannot run command against the '{ns}' collection in a transaction."
        ))),
        _ => Ok(()),
    }
}

/// Refuses levels that make no snapshot.
///
/// # Errors
/// `InvalidOptions`.
pub fn check_level(level: Option<ReadConcernLevel>) -> Result<()> {
    match level {
        None
        | Some(ReadConcernLevel::Local | ReadConcernLevel::Majority | ReadConcernLevel::Snapshot) => {
            Ok(())
        }
        Some(_) => Err(invalid(
            "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a \
             transaction",
        )),
    }
}

/// Refuses a command that a transaction cannot have, before its session is examined: the
/// transaction continues.
///
/// # Errors
/// `OperationNotSupportedInTransaction`, `InvalidOptions`.
pub fn check_command(cmd: &Invocation) -> Result<()> {
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
    let ends = role.ends();
    if ends {
        check_end_fields(cmd)?;
    }
    let named = collection_named(cmd.command.spec, cmd.body());
    match named.map(|collection| Namespace::new(cmd.db(), collection)) {
        // The cursor of a `bulkWrite` is one of `admin`; whose it is, is examined where it is kept.
        Some(Ok(ns)) if role.is_of_cursors() && ns.as_str() == BULK_WRITE_CURSOR => {}
        Some(Ok(ns)) if !role.is_of_admin() => check_namespace(&cmd.ctx, &ns)?,
        // What is no name is refused when the command is read.
        _ if role.is_of_admin() => {}
        _ => check_database(&cmd.ctx, cmd.db())?,
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
    match args
        .read_preference
        .as_ref()
        .map(|preference| preference.mode)
    {
        // Drivers ask a member that they are connected to directly with the second, whatever the
        // transaction says. Source: drivers' specification of server selection, "Topology type:
        // Single".
        None | Some(ReadPreferenceMode::Primary | ReadPreferenceMode::PrimaryPreferred) => {}
        Some(_) => return Err(invalid("Read preference in a transaction must be primary")),
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use pinion_wire::ClientInfo;
    use pinion_wire::idl::GenericArguments;

    use super::*;

    #[test]
    fn namespaces_of_the_node_are_refused() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let client = Arc::new(ClientInfo::new(1, address, address));
        let (row, args) = (pinion_command::row("find"), GenericArguments::default());
        let ctx = OpContext::new(0, client, row, "test", args, 0);
        let check = |ns: &str, allowed: bool| {
            let ns = Namespace::parse(ns).expect("a name");
            assert_eq!(check_namespace(&ctx, &ns).is_ok(), allowed, "{ns}");
        };
        check("test.c", true);
        check("test.system.buckets.c", true);
        check("local.c", false);
        check("config.transactions", false);
        check("admin.c", false);
        check("test.system.profile", false);
        check("test.system.views", false);
    }

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
