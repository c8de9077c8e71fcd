//! The roles that every deployment has, as a table.
//!
//! Sources: MongoDB's manual, "Built-In Roles" of 8.0, and the privileges that MongoDB shows of a
//! user with the role `root`, which name the collections that the manual counts as the system's.

use super::actions::*;
use crate::action::Action::*;
use crate::action::ActionSet;

/// A built-in role.
pub(super) struct BuiltInRole {
    pub name: &'static str,
    pub scope: Scope,
    /// Roles of the same database that it contains.
    pub contains: &'static [&'static str],
    pub grants: &'static [(On, ActionSet)],
}

/// The databases that have a role.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    EveryDatabase,
    Admin,
}

/// What a grant is on.
#[derive(Clone, Copy)]
pub(super) enum On {
    /// The role's database, and its normal collections.
    Own,
    /// A collection of the role's database.
    OwnCollection(&'static str),
    Any,
    Cluster,
    AllNormal,
    AllBuckets,
    Database(&'static str),
    Collection(&'static str, &'static str),
    /// The collections of a name in all databases.
    Named(&'static str),
}

/// By name.
pub(super) const BUILT_IN_ROLES: &[BuiltInRole] = &[
    BuiltInRole {
        name: "__system",
        scope: Scope::Admin,
        contains: &[],
        grants: &[(On::Any, ActionSet::ANY)],
    },
    BuiltInRole {
        name: "backup",
        scope: Scope::Admin,
        contains: &[],
        grants: &[
            (
                On::Any,
                LIST_DATABASES.union(ActionSet::of(&[
                    ListCollections,
                    ListIndexes,
                    ListSearchIndexes,
                ])),
            ),
            (On::Cluster, BACKUP),
            (On::AllNormal, FIND),
            (On::AllBuckets, FIND),
            (On::Database("config"), FIND),
            (On::Database("local"), FIND),
            (On::Collection("local", "system.replset"), FIND),
            (On::Collection("local", "replset.election"), FIND),
            (On::Collection("local", "replset.minvalid"), FIND),
            (On::Named("system.js"), FIND),
            (On::Named("system.profile"), FIND),
            (On::Named("system.users"), FIND),
            (On::Collection("admin", "system.backup_users"), FIND),
            (On::Collection("admin", "system.roles"), FIND),
            (On::Collection("admin", "system.users"), FIND),
            (On::Collection("admin", "system.version"), FIND),
            (
                On::Collection("config", "settings"),
                ActionSet::of(&[Find, Insert, Update]),
            ),
        ],
    },
    BuiltInRole {
        name: "clusterAdmin",
        scope: Scope::Admin,
        contains: &["clusterMonitor", "hostManager", "clusterManager"],
        grants: &[(On::AllNormal, ActionSet::of(&[DropDatabase]))],
    },
    BuiltInRole {
        name: "clusterManager",
        scope: Scope::Admin,
        contains: &[],
        grants: &[
            (On::Cluster, CLUSTER_MANAGER),
            (On::AllNormal, CLUSTER_MANAGER_COLLECTIONS),
            (On::AllBuckets, CLUSTER_MANAGER_COLLECTIONS),
            (On::Database("config"), CLUSTER_MANAGER_WRITES.union(READ)),
            (On::Collection("config", "system.js"), READ),
            (On::Database("local"), CLUSTER_MANAGER_WRITES),
            (On::Collection("local", "system.replset"), READ),
            (On::Collection("local", "replset.election"), WRITE),
            (On::Collection("local", "replset.minvalid"), WRITE),
        ],
    },
    BuiltInRole {
        name: "clusterMonitor",
        scope: Scope::Admin,
        contains: &[],
        grants: &[
            (On::Cluster, CLUSTER_MONITOR),
            (On::AllNormal, STATISTICS),
            (On::AllBuckets, STATISTICS),
            (On::Database("config"), READ.union(STATISTICS)),
            (On::Collection("config", "system.js"), READ),
            (On::Collection("config", "system.sessions"), STATISTICS),
            (On::Database("local"), READ.union(STATISTICS)),
            (On::Collection("local", "system.js"), READ),
            (On::Collection("local", "system.healthlog"), READ),
            (On::Collection("local", "system.replset"), FIND),
            (On::Collection("local", "replset.election"), FIND),
            (On::Collection("local", "replset.minvalid"), FIND),
            (On::Named("system.profile"), FIND),
        ],
    },
    BuiltInRole {
        name: "dbAdmin",
        scope: Scope::EveryDatabase,
        contains: &[],
        grants: &[
            (On::Own, DB_ADMIN),
            (On::OwnCollection("system.profile"), PROFILE),
        ],
    },
    BuiltInRole {
        name: "dbAdminAnyDatabase",
        scope: Scope::Admin,
        contains: &[],
        grants: &[
            (
                On::Cluster,
                LIST_DATABASES.union(ActionSet::of(&[ApplyOps])),
            ),
            (On::AllNormal, DB_ADMIN),
            (On::Named("system.profile"), PROFILE),
        ],
    },
    BuiltInRole {
        name: "dbOwner",
        scope: Scope::EveryDatabase,
        contains: &["readWrite", "dbAdmin", "userAdmin"],
        grants: &[],
    },
    BuiltInRole {
        name: "directShardOperations",
        scope: Scope::Admin,
        contains: &[],
        grants: &[(On::Cluster, ActionSet::of(&[IssueDirectShardOperations]))],
    },
    BuiltInRole {
        name: "enableSharding",
        scope: Scope::EveryDatabase,
        contains: &[],
        grants: &[(On::AllNormal, SHARDING), (On::AllBuckets, SHARDING)],
    },
    BuiltInRole {
        name: "hostManager",
        scope: Scope::Admin,
        contains: &[],
        grants: &[
            (On::Cluster, HOST_MANAGER),
            (On::AllNormal, ActionSet::of(&[KillCursors])),
        ],
    },
    BuiltInRole {
        name: "read",
        scope: Scope::EveryDatabase,
        contains: &[],
        grants: &[(On::Own, READ), (On::OwnCollection("system.js"), READ)],
    },
    BuiltInRole {
        name: "readAnyDatabase",
        scope: Scope::Admin,
        contains: &[],
        grants: &[
            (On::Cluster, LIST_DATABASES),
            (On::AllNormal, READ),
            (On::Named("system.js"), READ),
        ],
    },
    BuiltInRole {
        name: "readWrite",
        scope: Scope::EveryDatabase,
        contains: &[],
        grants: &[
            (On::Own, READ_WRITE),
            (On::OwnCollection("system.js"), READ_WRITE),
        ],
    },
    BuiltInRole {
        name: "readWriteAnyDatabase",
        scope: Scope::Admin,
        contains: &[],
        grants: &[
            (On::Cluster, LIST_DATABASES),
            (On::AllNormal, READ_WRITE),
            (On::Named("system.js"), READ_WRITE),
        ],
    },
    BuiltInRole {
        name: "restore",
        scope: Scope::Admin,
        contains: &[],
        grants: &[
            (On::Any, ActionSet::of(&[ListCollections])),
            (On::Cluster, RESTORE),
            (On::AllNormal, RESTORE_WRITES.union(RESTORE_USERS)),
            (On::AllBuckets, RESTORE_WRITES),
            (On::Named("system.js"), RESTORE_WRITES),
            (On::Named("system.views"), ActionSet::of(&[DropCollection])),
            (
                On::Named("system.users"),
                RESTORE_WRITES.union(FIND).union(WRITE),
            ),
            (On::Database("config"), RESTORE_WRITES),
            (On::Database("local"), RESTORE_WRITES),
            (On::Collection("local", "system.replset"), RESTORE_WRITES),
            (On::Collection("local", "replset.election"), RESTORE_WRITES),
            (On::Collection("local", "replset.minvalid"), RESTORE_WRITES),
            (
                On::Collection("admin", "system.backup_users"),
                RESTORE_WRITES.union(FIND),
            ),
            (
                On::Collection("admin", "system.roles"),
                ActionSet::of(&[CreateIndex]),
            ),
            (
                On::Collection("admin", "system.version"),
                RESTORE_WRITES.union(FIND),
            ),
            (On::Collection("admin", "tempusers"), FIND),
            (On::Collection("admin", "temproles"), FIND),
        ],
    },
    BuiltInRole {
        name: "root",
        scope: Scope::Admin,
        contains: &[
            "readWriteAnyDatabase",
            "dbAdminAnyDatabase",
            "userAdminAnyDatabase",
            "clusterAdmin",
            "restore",
            "backup",
        ],
        grants: &[
            (On::Any, ActionSet::of(&[Validate])),
            (On::Cluster, ActionSet::of(&[BypassDefaultMaxTimeMS])),
            (
                On::Collection("config", "system.preimages"),
                ActionSet::of(&[Find, Remove]),
            ),
            (
                On::Collection("config", "system.change_collection"),
                WRITE.union(FIND),
            ),
        ],
    },
    BuiltInRole {
        name: "searchCoordinator",
        scope: Scope::Admin,
        contains: &["clusterMonitor", "directShardOperations", "readAnyDatabase"],
        grants: &[
            (On::Database("__mdb_internal_search"), READ_WRITE),
            (On::Cluster, ActionSet::of(&[BypassDefaultMaxTimeMS])),
        ],
    },
    BuiltInRole {
        name: "userAdmin",
        scope: Scope::EveryDatabase,
        contains: &[],
        grants: &[(On::Own, USER_ADMIN)],
    },
    BuiltInRole {
        name: "userAdminAnyDatabase",
        scope: Scope::Admin,
        contains: &[],
        grants: &[
            (
                On::Cluster,
                LIST_DATABASES.union(ActionSet::of(&[
                    AuthSchemaUpgrade,
                    InvalidateUserCache,
                    ViewUser,
                ])),
            ),
            (
                On::AllNormal,
                USER_ADMIN.union(ActionSet::of(&[ListCachedAndActiveUsers])),
            ),
            (On::Database("local"), USER_ADMIN),
            (On::Database("config"), USER_ADMIN),
            (On::Named("system.users"), READ),
            (On::Collection("admin", "system.users"), READ_AND_INDEX),
            (On::Collection("admin", "system.roles"), READ_AND_INDEX),
            (On::Collection("admin", "system.version"), READ),
            (On::Collection("admin", "system.backup_users"), READ),
        ],
    },
];
