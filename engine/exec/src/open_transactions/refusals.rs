//! What no transaction can have: namespaces, levels of its read concern, and collections. Codes and
//! texts are MongoDB's.

use pinion_catalog::{Collection, SYSTEM_VIEWS};
use pinion_wire::idl::{Namespace, ReadConcernLevel};
use pinion_wire::{Error, ErrorCode, Result};

pub(crate) fn invalid(what: &str) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, what)
}

pub(crate) fn unsupported(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::OPERATION_NOT_SUPPORTED_IN_TRANSACTION, what)
}

pub(crate) fn check_database(db: &str) -> Result<()> {
    match db {
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
pub(crate) fn check_namespace(ns: &Namespace) -> Result<()> {
    check_database(ns.db())?;
    match ns.collection() {
        "system.profile" | SYSTEM_VIEWS => Err(unsupported(format!(
            "Cannot run command against the '{ns}' collection in a transaction."
        ))),
        _ => Ok(()),
    }
}

/// Refuses levels that make no snapshot.
///
/// # Errors
/// `InvalidOptions`.
pub(crate) fn check_level(level: Option<ReadConcernLevel>) -> Result<()> {
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

/// Refuses writes to what has to be written at once, or in an order of its own.
///
/// # Errors
/// `OperationNotSupportedInTransaction`, 50791.
pub(crate) fn check_written(ns: &Namespace, collection: Option<&Collection>) -> Result<()> {
    if ns.collection().starts_with("system.") {
        return Err(Error::new(
            ErrorCode(50_791),
            format!("Cannot write to system collection {ns} within a transaction."),
        ));
    }
    if collection.is_some_and(|collection| collection.options.capped.is_some()) {
        return Err(unsupported(format!(
            "Collection '{ns}' is a capped collection. Writes in transactions are not allowed on capped collections."
        )));
    }
    Ok(())
}

/// The refusal of writes of measurements; `what` is `insert into`, say.
pub(crate) fn no_measurements(what: &str, ns: &Namespace) -> Error {
    unsupported(format!(
        "Cannot {what} a time-series collection in a multi-document transaction: {ns}"
    ))
}

/// The refusal of indexes of what the transaction has not made.
pub(crate) fn not_made(ns: &Namespace) -> Error {
    unsupported(format!(
        "Cannot create new indexes on existing collection {ns} in a multi-document transaction."
    ))
}

/// The refusal of indexes of what has documents already.
pub(crate) fn not_empty(ns: &Namespace) -> Error {
    unsupported(format!(
        "Cannot create new indexes on non-empty collection {ns} in a multi-document transaction."
    ))
}

/// The answer to a command of a session whose record says that it is prepared, where nothing else
/// does.
pub(crate) fn lost(number: i64) -> Error {
    Error::internal(format!(
        "Transaction with {{ txnNumber: {number} }} has been prepared, and what it has written is not here."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_the_node_are_refused() {
        let check = |ns: &str, allowed: bool| {
            let ns = Namespace::parse(ns).expect("a name");
            assert_eq!(check_namespace(&ns).is_ok(), allowed, "{ns}");
        };
        check("test.c", true);
        check("test.system.buckets.c", true);
        check("local.c", false);
        check("config.transactions", false);
        check("admin.c", false);
        check("test.system.profile", false);
        check("test.system.views", false);
    }
}
