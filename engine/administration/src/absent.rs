//! Commands of what this node has no part in: replica sets, users, search. Each answers what a
//! standalone of MongoDB answers, so that clients learn what is missing and not that the command
//! is.

use pinion_exec::commands::attach;
use pinion_service::feature_version::feature_version;
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
    attach(
        r,
        "setFeatureCompatibilityVersion",
        set_feature_compatibility_version,
    );
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

/// `setFeatureCompatibilityVersion`: the data files have one version, and there is none to go back
/// to. Data that came from members of MongoDB 4.4 keep theirs until this is called.
async fn set_feature_compatibility_version(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let wanted = reader.str("setFeatureCompatibilityVersion")?;
    let confirmed = reader.opt_safe_bool("confirm")?.unwrap_or(false);
    reader.finish()?;
    let present = feature_version();
    if !confirmed {
        return Err(Error::new(
            ErrorCode(7_369_100),
            format!(
                "Once you have upgraded to {present}, you will not be able to downgrade FCV and binary version without \
                 support assistance. Please re-run this command with 'confirm: true' to acknowledge this and continue \
                 with the FCV upgrade."
            ),
        ));
    }
    if wanted != present {
        let code = ErrorCode(4_926_900);
        let message = format!(
            "Invalid feature compatibility version value '{wanted}'; expected '{present}'. See \
             https://docs.mongodb.com/manual/release-notes/{present}-compatibility/#feature-compatibility."
        );
        return Err(Error::new(code, message));
    }
    pinion_exec::feature_compatibility::raise_version().await?;
    Ok(Reply::new())
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
