//! What no transaction can have: writes of some collections. Codes and texts are MongoDB's.

use pinion_catalog::Collection;
use pinion_service::transaction_checks::unsupported;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

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
