//! Commands of what this node has no part in: replica sets, users, search. Each answers what a
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

/// Those that make and change users and roles, which would protect nothing while no connection
/// authenticates.
const USERS: [&str; 12] = [
    "createUser",
    "updateUser",
    "dropUser",
    "grantRolesToUser",
    "revokeRolesFromUser",
    "createRole",
    "updateRole",
    "dropRole",
    "grantPrivilegesToRole",
    "revokePrivilegesFromRole",
    "grantRolesToRole",
    "revokeRolesFromRole",
];

/// Those that drop all users or roles of a database.
const DROP_ALL: [&str; 2] = ["dropAllUsersFromDatabase", "dropAllRolesFromDatabase"];

const SEARCH: [&str; 4] = [
    "createSearchIndexes",
    "updateSearchIndex",
    "dropSearchIndex",
    "listSearchIndexes",
];

pub(super) fn attach_absent(r: &mut Registry) {
    USERS.iter().for_each(|name| attach(r, name, no_users));
    DROP_ALL.iter().for_each(|name| attach(r, name, drop_none));
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

/// `createUser` and its relatives.
async fn no_users(cmd: Invocation) -> Result<Reply> {
    Err(Error::new(
        ErrorCode::COMMAND_NOT_SUPPORTED,
        format!(
            "{} is not supported: this server has no users and no roles",
            cmd.name()
        ),
    ))
}

/// `dropAllUsersFromDatabase` and `dropAllRolesFromDatabase`, which tools send before they make
/// any: there are none to drop.
async fn drop_none(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.name()]);
    reader.finish()?;
    let mut out = Reply::new();
    out.append("n", 0i32);
    Ok(out)
}

/// `createSearchIndexes` and its relatives.
async fn search_indexes(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.namespace(cmd.name(), cmd.db())?;
    let error = pinion_query::no_search_server();
    Err(error)
}
