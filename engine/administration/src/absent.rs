//! Commands of what this node has no part in: replica sets, users, search. Each answers what a
//! standalone of MongoDB answers, so that clients learn what is missing and not that the command
//! is.

use pinion_exec::commands::register;
use pinion_exec::feature_version::feature_version;
use pinion_exec::topology::is_member;
use pinion_wire::{CommandSpec, Error, ErrorCode, Invocation, Registry, Reply, Result};

/// Those that only members of a replica set have.
const REPLICATED: [(&str, &str); 10] = [
    ("replSetGetStatus", "state of the replica set"),
    ("replSetGetConfig", "configuration of the replica set"),
    ("replSetGetRBID", "how often this member rolled back"),
    ("replSetReconfig", "change the configuration"),
    ("replSetStepDown", "be primary no longer"),
    ("replSetStepUp", "ask for election now"),
    ("replSetFreeze", "do not ask for election for a while"),
    ("replSetMaintenance", "be in maintenance mode"),
    ("replSetSyncFrom", "replicate from this member"),
    (
        "replSetAbortPrimaryCatchUp",
        "be primary without the newest entries",
    ),
];

/// Those that make and change users and roles, which would protect nothing while no connection
/// authenticates.
const USERS: [(&str, &str); 12] = [
    ("createUser", "make a user"),
    ("updateUser", "change a user"),
    ("dropUser", "drop a user"),
    ("grantRolesToUser", "give roles to a user"),
    ("revokeRolesFromUser", "take roles from a user"),
    ("createRole", "make a role"),
    ("updateRole", "change a role"),
    ("dropRole", "drop a role"),
    ("grantPrivilegesToRole", "give privileges to a role"),
    ("revokePrivilegesFromRole", "take privileges from a role"),
    ("grantRolesToRole", "give roles to a role"),
    ("revokeRolesFromRole", "take roles from a role"),
];

pub(super) fn register_absent(r: &mut Registry) {
    let spec = CommandSpec::new;
    let admin = |name| spec(name).admin_only();
    if !is_member() {
        for (name, help) in REPLICATED {
            register(r, admin(name).help(help), None, not_replicated);
        }
        register(
            r,
            admin("replSetInitiate").help("begin a replica set"),
            None,
            repl_set_initiate,
        );
    }
    register(
        r,
        admin("setFeatureCompatibilityVersion")
            .write_concern()
            .help("use the features of a version"),
        None,
        set_feature_compatibility_version,
    );
    for (name, help) in USERS {
        register(r, spec(name).write_concern().help(help), None, no_users);
    }
    for (name, help) in [
        ("dropAllUsersFromDatabase", "drop the users of a database"),
        ("dropAllRolesFromDatabase", "drop the roles of a database"),
    ] {
        register(r, spec(name).write_concern().help(help), None, drop_none);
    }
    for name in [
        "createSearchIndexes",
        "updateSearchIndex",
        "dropSearchIndex",
        "listSearchIndexes",
    ] {
        register(
            r,
            spec(name).help("indexes of a search server"),
            None,
            search_indexes,
        );
    }
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
    pinion_exec::version::raise_version().await?;
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
