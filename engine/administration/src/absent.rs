//! Commands of what this node has no part in: replica sets, search. Each answers what a
//! standalone of MongoDB answers, so that clients learn what is missing and not that the command
//! is.

use pinion_exec::commands::attach;
use pinion_wire::{Error, ErrorCode, Invocation, Registry, Reply, Result};

/// Those that only members of a replica set have.
const REPLICATED: [&str; 10] = [
    "replSetGetStatus",
    "replSetGetConfig",
    "replSetGetRBID",
    "replSetReconfig",
    "replSetStepDown",
    "replSetStepUp",
    "replSetFreeze",
    "replSetMaintenance",
    "replSetSyncFrom",
    "replSetAbortPrimaryCatchUp",
];

const SEARCH: [&str; 4] = [
    "createSearchIndexes",
    "updateSearchIndex",
    "dropSearchIndex",
    "listSearchIndexes",
];

pub(super) fn attach_absent(r: &mut Registry) {
    SEARCH
        .iter()
        .for_each(|name| attach(r, name, search_indexes));
}

/// Attaches what a standalone answers to the commands of members. Called on each core for its own
/// registry.
pub fn register_unreplicated(r: &mut Registry) {
    REPLICATED
        .iter()
        .for_each(|name| attach(r, name, not_replicated));
    attach(r, "replSetInitiate", repl_set_initiate);
}

async fn not_replicated(_: Invocation) -> Result<Reply> {
    Err(Error::new(
        ErrorCode::NO_REPLICATION_ENABLED,
        "not running with --replSet",
    ))
}

async fn repl_set_initiate(_: Invocation) -> Result<Reply> {
    Err(Error::new(
        ErrorCode::NO_REPLICATION_ENABLED,
        "This node was not started with replication enabled.",
    ))
}

/// `createSearchIndexes` and its relatives.
async fn search_indexes(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.namespace(cmd.name(), cmd.db())?;
    let error = pinion_query::no_search_server();
    Err(error)
}
