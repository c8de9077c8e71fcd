//! What cannot be a part of a transaction: commands, namespaces, concerns and stages. Codes and texts are MongoDB's.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{Collection, SYSTEM_VIEWS};
use pinion_wire::idl::{Namespace, ReadConcern, ReadConcernLevel, ReadPreferenceMode};
use pinion_wire::{Error, ErrorCode, Invocation, Result, collection_named};

use super::state::Asked;
use crate::commands::BULK_WRITE_CURSOR;
use crate::commands::transactions::{check_fields, commit_timestamp};

/// The commands that are run in transactions.
const ALLOWED: [&str; 15] = [
    "abortTransaction",
    "aggregate",
    "bulkWrite",
    "commitTransaction",
    "create",
    "createIndexes",
    "delete",
    "distinct",
    "find",
    "findAndModify",
    "getMore",
    "insert",
    "killCursors",
    "prepareTransaction",
    "update",
];

/// Those of them that are run on the database `admin`.
const OF_ADMIN: [&str; 4] = [
    "abortTransaction",
    "bulkWrite",
    "commitTransaction",
    "prepareTransaction",
];

/// Stages that show the node or write, whatever the transaction reads.
const REFUSED_STAGES: [&str; 17] = [
    "$changeStream",
    "$collStats",
    "$currentOp",
    "$indexStats",
    "$listCatalog",
    "$listClusterCatalog",
    "$listLocalSessions",
    "$listSampledQueries",
    "$listSearchIndexes",
    "$listSessions",
    "$merge",
    "$out",
    "$planCacheStats",
    "$querySettings",
    "$queryStats",
    "$search",
    "$vectorSearch",
];

fn unsupported(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::OPERATION_NOT_SUPPORTED_IN_TRANSACTION, what)
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, what)
}

/// What a command wants of its transaction.
///
/// # Errors
/// A time of a commit that is none.
pub(super) fn asked(cmd: &Invocation) -> Result<Asked> {
    Ok(match cmd.name() {
        "commitTransaction" => Asked::Commit {
            at: commit_timestamp(cmd)?,
        },
        "abortTransaction" => Asked::Abort,
        "prepareTransaction" => Asked::Prepare,
        _ if cmd.ctx.args.start_transaction => Asked::Start,
        _ => Asked::Statement,
    })
}

/// Refuses a command that a transaction cannot have, before its session is looked at: the transaction goes on.
///
/// # Errors
/// `OperationNotSupportedInTransaction`, `InvalidOptions`.
pub(crate) fn check_command(cmd: &Invocation) -> Result<()> {
    let (name, args) = (cmd.name(), &cmd.ctx.args);
    if name == "count" {
        return Err(unsupported(
            "Cannot run 'count' in a multi-document transaction. Please see \
             http://dochub.mongodb.org/core/transaction-count for a recommended alternative.",
        ));
    }
    if !ALLOWED.contains(&name) {
        return Err(unsupported(format!(
            "Cannot run '{name}' in a multi-document transaction."
        )));
    }
    let ends = asked(cmd)?.ends();
    if ends {
        check_fields(cmd)?;
    }
    match collection_named(name, cmd.body()).map(|collection| Namespace::new(cmd.db(), collection))
    {
        // The cursor of a `bulkWrite` is one of `admin`; whose it is, is looked at where it is kept.
        Some(Ok(ns)) if is_of_cursors(name) && ns.as_str() == BULK_WRITE_CURSOR => {}
        Some(Ok(ns)) if !OF_ADMIN.contains(&name) => check_namespace(&ns)?,
        // What is no name is refused when the command is read.
        _ if OF_ADMIN.contains(&name) => {}
        _ => check_database(cmd.db())?,
    }
    if args.start_transaction && (ends || name == "killCursors") {
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
        // Drivers ask a member that they are connected to directly with the second, whatever the transaction says.
        // Source: drivers' specification of server selection, "Topology type: Single".
        None | Some(ReadPreferenceMode::Primary | ReadPreferenceMode::PrimaryPreferred) => {}
        Some(_) => return Err(invalid("Read preference in a transaction must be primary")),
    }
    if name == "aggregate" {
        check_stages(cmd.body())?;
    }
    Ok(())
}

fn is_of_cursors(name: &str) -> bool {
    matches!(name, "getMore" | "killCursors")
}

fn check_database(db: &str) -> Result<()> {
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

/// The read concern is that of the whole transaction, so the first statement alone says it.
fn check_read_concern(concern: &ReadConcern, is_first: bool) -> Result<()> {
    if !is_first && !concern.is_empty() {
        return Err(invalid(
            "Only the first command in a transaction may specify a readConcern",
        ));
    }
    check_level(concern.level)
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

fn check_stages(body: &RawDocument) -> Result<()> {
    let Some(RawBsonRef::Array(stages)) = pinion_bson::get(body, "pipeline") else {
        return Ok(());
    };
    for stage in pinion_bson::values(stages) {
        let RawBsonRef::Document(stage) = stage else {
            continue;
        };
        if let Some((name, _)) = pinion_bson::elements(stage).next()
            && REFUSED_STAGES.contains(&name)
        {
            return Err(unsupported(format!(
                "Stage not supported inside of a multi-document transaction: {name}"
            )));
        }
    }
    Ok(())
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
