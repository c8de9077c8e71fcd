//! What the node and its set keep for themselves, and what clients may do with that: one table of
//! classes of namespaces and kinds of access.
//!
//! The door asks it of every write of documents ([`crate::acquire`]), the catalog's coordinator of
//! every definition: no command has a rule of its own. The node's own operations, and what members
//! apply out of the log, pass. Codes and texts are MongoDB's where it refuses the same; Pinion
//! refuses more, where a client would end the node or its vote.

use std::rc::Rc;

use pinion_bson::RawDocumentBuf;
use pinion_catalog::{
    CollectionOptions, Definition, DefinitionGuard, RETRY_IMAGES, SESSION_RECORDS, SYSTEM_VIEWS,
    check_not_scattered, check_writable, core_catalog,
};
use pinion_service::node_info::{ClusterRole, NodeInfo};
use pinion_service::profile_settings::{self, is_written};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::own_collections::{self, is_node_database};
use crate::placement;
use crate::topology::{LOCAL, SetView, not_primary, set_view};
use crate::user_write_block;

/// What a namespace is kept for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// The log of a member, which no collection of the catalog holds.
    Oplog,
    /// What a member knows of its set: the configuration, its vote, its copy.
    Set,
    /// Builds of indexes of the whole set.
    Builds,
    /// What retryable writes and transactions leave behind.
    Records,
    /// The version that the data are of.
    Version,
    /// The keys that cluster times are signed with.
    Keys,
    Sessions,
    Profile,
    /// What checks have found, which the node makes as a capped collection when it is first needed.
    HealthLog,
    /// Documents of views, which are rows of the catalog too.
    Views,
    /// The buckets of a time series.
    Buckets,
    /// Others below `system.` that MongoDB lets clients drop.
    Droppable,
    /// All others below `system.`.
    System,
}

impl Class {
    /// `None` of what is the clients' own.
    fn of(ns: &Namespace) -> Option<Class> {
        let (db, collection) = (ns.db(), ns.collection());
        let is_system = collection.starts_with("system.");
        // Most namespaces are none of these, and every write asks.
        if !is_system && !matches!(db, LOCAL | "config") {
            return None;
        }
        Some(match (db, collection) {
            (LOCAL, name) if name.starts_with("oplog.") => Class::Oplog,
            (LOCAL, "system.replset" | "system.rollback.id") => Class::Set,
            (LOCAL, name) if name.starts_with("replset.") => Class::Set,
            (_, profile_settings::COLLECTION) => Class::Profile,
            (_, SYSTEM_VIEWS) => Class::Views,
            (_, name) if name.starts_with("system.buckets.") => Class::Buckets,
            ("config", "system.indexBuilds") => Class::Builds,
            ("config", "system.sessions") => Class::Sessions,
            ("config", _) if matches!(ns.as_str(), SESSION_RECORDS | RETRY_IMAGES) => {
                Class::Records
            }
            ("admin", own_collections::VERSION) => Class::Version,
            ("admin", "system.keys") => Class::Keys,
            (LOCAL, own_collections::HEALTH_LOG) => Class::HealthLog,
            ("config", "system.preimages") | (_, "system.js") => Class::Droppable,
            _ if is_system => Class::System,
            _ => return None,
        })
    }

    /// Whether a member's part in its set rests on it. A standalone has no set: an operator may put
    /// things in order there.
    fn is_of_set(self) -> bool {
        matches!(self, Class::Oplog | Class::Set | Class::Builds)
    }

    /// Whether the node itself writes it as an ordinary collection, so that it has to be one.
    fn is_plain(self) -> bool {
        matches!(
            self,
            Class::Set
                | Class::Builds
                | Class::Records
                | Class::Version
                | Class::Keys
                | Class::Sessions
        )
    }
}

fn illegal(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::ILLEGAL_OPERATION, message)
}

fn invalid_namespace(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_NAMESPACE, message)
}

fn no_index(what: impl std::fmt::Display) -> Error {
    let message = format!("cannot create indexes on {what}");
    Error::new(ErrorCode::CANNOT_CREATE_INDEX, message)
}

/// MongoDB's code of a refused drop of the oplog.
const DROPS_OPLOG: ErrorCode = ErrorCode(5_255_000);
/// MongoDB's code of an oplog that would not be capped.
const OPLOG_NOT_CAPPED: ErrorCode = ErrorCode(28_838);
/// MongoDB's code of a database that no config server has.
const USER_DATABASE: ErrorCode = ErrorCode(14_037);

/// Refuses a write of documents that is not for clients, one to a name that no collection of theirs
/// can have, and one of a user while these are blocked.
///
/// # Errors
/// `InvalidNamespace`, `UserWritesBlocked`.
pub(crate) fn check_write(view: Option<&SetView>, ctx: &OpContext, ns: &Namespace) -> Result<()> {
    if ctx.client.is_internal() {
        return Ok(());
    }
    let is_kept = match Class::of(ns) {
        None => false,
        Some(Class::Profile | Class::HealthLog | Class::Views) => true,
        Some(Class::Oplog) => view.is_some() || core_catalog().current().shows_oplog(),
        Some(class) => class.is_of_set() && view.is_some(),
    };
    match is_kept {
        true => Err(invalid_namespace(format!("cannot write to {ns}"))),
        false => {
            check_writable(ns)?;
            user_write_block::check(ctx, ns.db())
        }
    }
}

/// Refuses a definition that is not for clients; pure. A standalone may show the oplog of the
/// member that its data are of, and keeps it as that does.
fn check_definition(is_member: bool, has_oplog: bool, definition: &Definition) -> Result<()> {
    match definition {
        Definition::OfWrite => Ok(()),
        Definition::Create { ns, options } => check_create(is_member, ns, options),
        Definition::Drop(ns) => check_drop(is_member, has_oplog, ns),
        Definition::DropDatabase(db) => check_drop_database(is_member, db),
        Definition::Rename { from, to } => check_rename(is_member, has_oplog, from, to),
        Definition::Modify(ns) => match Class::of(ns) {
            Some(Class::Version | Class::Keys | Class::Views) => {
                Err(illegal(format!("cannot modify {ns}")))
            }
            Some(class)
                if (is_member && class.is_of_set()) || (has_oplog && class == Class::Oplog) =>
            {
                Err(illegal(format!("cannot modify {ns} while replicating")))
            }
            Some(Class::Records) if is_member => check_not_scattered(ns),
            _ => Ok(()),
        },
        Definition::CreateIndexes(ns) => match Class::of(ns) {
            Some(Class::Oplog) if has_oplog => Err(no_index("the oplog")),
            // Its documents are written without regard to any index.
            Some(Class::Records) => check_not_scattered(ns),
            Some(Class::Version | Class::Keys | Class::Views | Class::HealthLog) => {
                Err(no_index(ns))
            }
            Some(class) if is_member && class.is_of_set() => Err(no_index(ns)),
            _ => Ok(()),
        },
        Definition::DropIndexes(ns) | Definition::Reindex(ns) => match Class::of(ns) {
            Some(Class::Oplog) if has_oplog => Err(illegal("the oplog has no indexes")),
            _ => Ok(()),
        },
        Definition::CloneAsCapped { from, to } => match (Class::of(from), Class::of(to)) {
            (Some(Class::Oplog), _) if has_oplog => {
                Err(illegal("can't clone live oplog while replicating"))
            }
            (_, Some(class)) if class.is_plain() => Err(not_capped(to)),
            (_, Some(Class::HealthLog)) => Err(made_by_node(to)),
            _ => Ok(()),
        },
        Definition::ConvertToCapped(ns) => match Class::of(ns) {
            Some(Class::Records) if is_member => check_not_scattered(ns),
            Some(Class::Oplog) if !has_oplog => Ok(()),
            Some(_) => Err(not_capped(ns)),
            None => Ok(()),
        },
    }
}

fn not_capped(ns: &Namespace) -> Error {
    illegal(format!("{ns} cannot be made a capped collection"))
}

fn made_by_node(ns: &Namespace) -> Error {
    illegal(format!("{ns} is made by the node alone"))
}

fn check_create(is_member: bool, ns: &Namespace, options: &CollectionOptions) -> Result<()> {
    match Class::of(ns) {
        Some(Class::Oplog) if !is_member && options.capped.is_none() => Err(Error::new(
            OPLOG_NOT_CAPPED,
            "cannot create a non-capped oplog collection",
        )),
        Some(class) if class.is_plain() && *options != CollectionOptions::default() => {
            Err(illegal(format!("{ns} is made without options")))
        }
        Some(Class::HealthLog) => Err(made_by_node(ns)),
        _ => Ok(()),
    }
}

fn check_drop(is_member: bool, has_oplog: bool, ns: &Namespace) -> Result<()> {
    let message = "can't drop live oplog while replicating";
    match Class::of(ns) {
        Some(Class::Oplog) if has_oplog => Err(Error::new(DROPS_OPLOG, message)),
        Some(Class::Records) if is_member => check_not_scattered(ns),
        Some(Class::Set) if ns.collection().starts_with("replset.") && !is_member => Ok(()),
        Some(Class::Set | Class::Builds | Class::Version | Class::System) => {
            Err(illegal(format!("can't drop system collection {ns}")))
        }
        _ => Ok(()),
    }
}

fn check_drop_database(is_member: bool, db: &str) -> Result<()> {
    match db {
        LOCAL if is_member => Err(illegal(format!(
            "Cannot drop '{db}' database while replication is active"
        ))),
        // On a member, what retryable writes rely on is in `config`.
        "config" if !is_member => Ok(()),
        "admin" | "config" => Err(illegal(format!(
            "Dropping the '{db}' database is prohibited."
        ))),
        _ => Ok(()),
    }
}

fn check_rename(is_member: bool, has_oplog: bool, from: &Namespace, to: &Namespace) -> Result<()> {
    let (source, target) = (Class::of(from), Class::of(to));
    let is_oplog = |class| class == Some(Class::Oplog);
    if has_oplog && is_oplog(source) {
        return Err(illegal("can't rename live oplog while replicating"));
    }
    if has_oplog && is_oplog(target) {
        return Err(illegal("can't rename to live oplog while replicating"));
    }
    if is_oplog(source) != is_oplog(target) {
        return Err(illegal(
            "If either the source or target of a rename is an oplog name, both must be",
        ));
    }
    let is_written = |class| {
        matches!(
            class,
            Some(Class::Profile | Class::HealthLog | Class::Views)
        )
    };
    for (class, ns, side) in [(source, from, "source"), (target, to, "target")] {
        if is_written(class) {
            let message = format!("error with {side} namespace: cannot write to {ns}");
            return Err(illegal(message));
        }
    }
    for (class, ns) in [(source, from), (target, to)] {
        let refused = |what: &str| Err(illegal(format!("renaming {what} is not allowed")));
        match (class, ns.collection()) {
            (Some(Class::Version), _) => {
                return refused("the server configuration collection (admin.system.version)");
            }
            (Some(Class::Records), _) if is_member => check_not_scattered(ns)?,
            (Some(class), _) if class.is_plain() => return refused(ns.as_str()),
            (_, name @ ("system.js" | "system.users")) => {
                return refused(&format!("{name} collection or renaming to {name}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The guard of this core's definitions.
struct Guard;

/// Has the definitions of clients of this core admitted by the table above. Called once on each
/// core.
pub fn start() {
    pinion_catalog::set_definition_guard(Rc::new(Guard));
}

impl DefinitionGuard for Guard {
    fn admit(&self, ctx: &OpContext, definition: &Definition) -> Result<()> {
        check(ctx, definition)
    }

    fn admit_behind_gate(&self, ctx: &OpContext, ns: &Namespace) -> Result<()> {
        user_write_block::check(ctx, ns.db())?;
        placement::check_behind_gate(ctx, ns)
    }

    fn shard_key(&self, ctx: &OpContext, ns: &Namespace) -> Option<RawDocumentBuf> {
        let sent = placement::ownership_behind_gate(ctx, ns, None);
        let ownership = sent.or_else(|| placement::ownership_of_node(ns))?;
        Some(ownership.key().to_owned())
    }
}

fn is_config_server() -> bool {
    pinion_runtime::try_core_local::<NodeInfo>()
        .is_some_and(|node| node.cluster_role == ClusterRole::Config)
}

/// Refuses a definition that is not for clients of this node, as it is now.
///
/// # Errors
/// `IllegalOperation` and the like; `NotWritablePrimary` of a member that is not the primary.
pub(crate) fn check(ctx: &OpContext, definition: &Definition) -> Result<()> {
    if ctx.client.is_internal() {
        return Ok(());
    }
    let view = set_view();
    let admitted = match definition {
        Definition::Drop(ns) if core_catalog().current().kind(ns).is_none() => Ok(()),
        Definition::Drop(ns) if is_written(ns) => Err(illegal(
            "turn off profiling before dropping system.profile collection",
        )),
        Definition::Create { ns, .. } | Definition::CreateIndexes(ns)
            if is_config_server() && !is_node_database(ns.db()) =>
        {
            Err(Error::new(
                USER_DATABASE,
                "can't create user databases on a --configsvr instance",
            ))
        }
        definition => {
            let is_member = view.is_some();
            let has_oplog = is_member || core_catalog().current().shows_oplog();
            check_definition(is_member, has_oplog, definition)
        }
    };
    let admitted = admitted.and_then(|()| user_write_block::check_definition(ctx, definition));
    match view {
        // Another member would refuse it too, but this one takes no definitions at all.
        Some(view) if admitted.is_err() && !view.writable => Err(not_primary()),
        _ => admitted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ns(text: &str) -> Namespace {
        Namespace::parse(text).expect("a namespace")
    }

    fn code_of(is_member: bool, has_oplog: bool, definition: &Definition) -> i32 {
        let checked = check_definition(is_member, has_oplog, definition);
        checked.map_or_else(|error| error.code.0, |()| 0)
    }

    /// Asserts with which code a standalone and a member refuse a definition; 0 where they admit
    /// it.
    #[track_caller]
    fn check(definition: Definition, [standalone, member]: [i32; 2]) {
        let code = |is_member| code_of(is_member, is_member, &definition);
        assert_eq!(
            [code(false), code(true)],
            [standalone, member],
            "{definition:?}"
        );
    }

    #[test]
    fn what_clients_own_is_not_guarded() {
        for name in [
            "d.c",
            "admin.c",
            "local.c",
            "config.c",
            "d.oplog.rs",
            "d.systemx",
            "local.startup_log",
        ] {
            assert_eq!(Class::of(&ns(name)), None, "{name}");
        }
    }

    #[test]
    fn drops() {
        let drop = |name, codes| check(Definition::Drop(ns(name)), codes);
        drop("local.oplog.rs", [0, 5_255_000]);
        drop("local.replset.election", [0, 20]);
        drop("local.system.replset", [20, 20]);
        drop("config.transactions", [0, 20]);
        drop("config.system.indexBuilds", [20, 20]);
        drop("config.system.sessions", [0, 0]);
        drop("admin.system.version", [20, 20]);
        drop("admin.system.keys", [0, 0]);
        drop("d.system.users", [20, 20]);
        drop("d.system.js", [0, 0]);
        drop("d.system.views", [0, 0]);
        drop("local.system.healthlog", [0, 0]);
        drop("d.c", [0, 0]);
        let database = |db: &str, codes| check(Definition::DropDatabase(db.to_owned()), codes);
        database("local", [0, 20]);
        database("config", [0, 20]);
        database("admin", [20, 20]);
        database("d", [0, 0]);
    }

    #[test]
    fn renames() {
        let rename = |from, to, codes| {
            let (from, to) = (ns(from), ns(to));
            check(Definition::Rename { from, to }, codes);
        };
        rename("local.oplog.rs", "local.o", [20, 20]);
        rename("local.o", "local.oplog.rs", [20, 20]);
        rename("local.oplog.rs", "local.oplog.x", [0, 20]);
        rename("d.system.profile", "d.c", [20, 20]);
        rename("d.c", "d.system.views", [20, 20]);
        rename("local.replset.election", "local.x", [20, 20]);
        rename("admin.c", "admin.system.version", [20, 20]);
        rename("config.c", "config.transactions", [20, 20]);
        rename("d.c", "d.system.js", [20, 20]);
        rename("local.c", "local.system.healthlog", [20, 20]);
        rename("local.system.healthlog", "local.c", [20, 20]);
        rename("d.c", "e.c", [0, 0]);
    }

    #[test]
    fn the_health_log_is_made_by_the_node() {
        let log = || ns("local.system.healthlog");
        let options = Box::default();
        check(Definition::Create { ns: log(), options }, [20, 20]);
        let from = ns("local.c");
        check(Definition::CloneAsCapped { from, to: log() }, [20, 20]);
        let client = OpContext::internal(0, pinion_command::row("insert"), "local", 0);
        assert!(check_write(None, &client, &log()).is_ok());
    }

    #[test]
    fn the_oplog_of_a_standalone_over_a_members_data_is_kept() {
        let oplog = || ns("local.oplog.rs");
        for (definition, code) in [
            (Definition::Drop(oplog()), 5_255_000),
            (Definition::Modify(oplog()), 20),
            (Definition::CreateIndexes(oplog()), 67),
            (Definition::Reindex(oplog()), 20),
            (Definition::ConvertToCapped(oplog()), 20),
            (Definition::Drop(ns("local.replset.election")), 0),
            (Definition::Modify(ns("local.system.replset")), 0),
            (Definition::DropDatabase("local".to_owned()), 0),
        ] {
            assert_eq!(code_of(false, true, &definition), code, "{definition:?}");
        }
    }

    #[test]
    fn other_definitions() {
        for (name, modify, index, capped) in [
            ("local.oplog.rs", [0, 20], [0, 67], [0, 20]),
            ("local.system.replset", [0, 20], [0, 67], [20, 20]),
            ("local.replset.initialSyncId", [0, 20], [0, 67], [20, 20]),
            ("config.system.indexBuilds", [0, 20], [0, 67], [20, 20]),
            ("config.transactions", [0, 20], [20, 20], [20, 20]),
            ("config.system.sessions", [0, 0], [0, 0], [20, 20]),
            ("admin.system.version", [20, 20], [67, 67], [20, 20]),
            ("admin.system.keys", [20, 20], [67, 67], [20, 20]),
            ("d.system.profile", [0, 0], [0, 0], [20, 20]),
            ("d.system.views", [20, 20], [67, 67], [20, 20]),
            ("local.system.healthlog", [0, 0], [67, 67], [20, 20]),
            ("d.system.buckets.s", [0, 0], [0, 0], [20, 20]),
            ("local.x", [0, 0], [0, 0], [0, 0]),
        ] {
            check(Definition::Modify(ns(name)), modify);
            check(Definition::CreateIndexes(ns(name)), index);
            check(Definition::ConvertToCapped(ns(name)), capped);
        }
    }
}
