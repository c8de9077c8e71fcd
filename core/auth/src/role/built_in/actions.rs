//! The sets of actions that built-in roles grant.

use crate::action::Action::*;
use crate::action::ActionSet;

pub(super) const READ: ActionSet = ActionSet::of(&[
    ChangeStream,
    CollStats,
    DbHash,
    DbStats,
    Find,
    KillCursors,
    ListCollections,
    ListIndexes,
    ListSearchIndexes,
    PerformRawDataOperations,
    PlanCacheRead,
]);

pub(super) const READ_WRITE: ActionSet = READ.union(ActionSet::of(&[
    CleanupStructuredEncryptionData,
    CompactStructuredEncryptionData,
    ConvertToCapped,
    CreateCollection,
    CreateIndex,
    CreateSearchIndexes,
    DropCollection,
    DropIndex,
    DropSearchIndex,
    Insert,
    Remove,
    RenameCollectionSameDB,
    Update,
    UpdateSearchIndex,
]));

pub(super) const DB_ADMIN: ActionSet = ActionSet::of(&[
    Analyze,
    BypassDocumentValidation,
    CollMod,
    CollStats,
    Compact,
    ConfigureQueryAnalyzer,
    ConvertToCapped,
    CreateCollection,
    CreateIndex,
    CreateSearchIndexes,
    DbStats,
    DropCollection,
    DropDatabase,
    DropIndex,
    DropSearchIndex,
    EnableProfiler,
    ListCollections,
    ListIndexes,
    ListSearchIndexes,
    PlanCacheIndexFilter,
    PlanCacheRead,
    PlanCacheWrite,
    ReIndex,
    RenameCollectionSameDB,
    UpdateSearchIndex,
    Validate,
]);

/// Of `dbAdmin`, on `system.profile`.
pub(super) const PROFILE: ActionSet = READ.union(ActionSet::of(&[
    ConvertToCapped,
    CreateCollection,
    DropCollection,
]));

pub(super) const USER_ADMIN: ActionSet = ActionSet::of(&[
    ChangeCustomData,
    ChangePassword,
    CreateRole,
    CreateUser,
    DropRole,
    DropUser,
    GrantRole,
    RevokeRole,
    SetAuthenticationRestriction,
    ViewRole,
    ViewUser,
]);

/// Of `userAdminAnyDatabase`, on the collections that hold users and roles.
pub(super) const READ_AND_INDEX: ActionSet = READ.union(ActionSet::of(&[
    CreateIndex,
    CreateSearchIndexes,
    DropIndex,
    DropSearchIndex,
]));

pub(super) const SHARDING: ActionSet = ActionSet::of(&[
    AnalyzeShardKey,
    EnableSharding,
    MoveCollection,
    RefineCollectionShardKey,
    ReshardCollection,
    UnshardCollection,
]);

/// Of `clusterManager`, on normal collections.
pub(super) const CLUSTER_MANAGER_COLLECTIONS: ActionSet = SHARDING.union(ActionSet::of(&[
    ClearJumboFlag,
    ConfigureQueryAnalyzer,
    MoveChunk,
    SplitChunk,
    SplitVector,
]));

pub(super) const CLUSTER_MANAGER: ActionSet = ActionSet::of(&[
    AddShard,
    AppendOplogNote,
    ApplicationMessage,
    CheckMetadataConsistency,
    CleanupOrphaned,
    FlushRouterConfig,
    GetClusterParameter,
    GetDefaultRWConcern,
    ListSessions,
    ListShards,
    MoveCollection,
    QuerySettings,
    RemoveShard,
    ReplSetConfigure,
    ReplSetGetConfig,
    ReplSetGetStatus,
    ReplSetStateChange,
    Resync,
    SetChangeStreamState,
    SetClusterParameter,
    SetDefaultRWConcern,
    SetFeatureCompatibilityVersion,
    TransitionFromDedicatedConfigServer,
    TransitionToDedicatedConfigServer,
    UnshardCollection,
]);

pub(super) const WRITE: ActionSet = ActionSet::of(&[Insert, Remove, Update]);

/// Of `clusterManager`, on the databases that describe a cluster and a member.
pub(super) const CLUSTER_MANAGER_WRITES: ActionSet = CLUSTER_MANAGER_COLLECTIONS.union(WRITE);

pub(super) const CLUSTER_MONITOR: ActionSet = ActionSet::of(&[
    ConnPoolStats,
    GetClusterParameter,
    GetCmdLineOpts,
    GetDefaultRWConcern,
    GetLog,
    GetParameter,
    GetShardMap,
    HostInfo,
    Inprog,
    ListClusterCatalog,
    ListDatabases,
    ListSampledQueries,
    ListSessions,
    ListShards,
    OperationMetrics,
    QueryStatsRead,
    QueryStatsReadTransformed,
    ReplSetGetConfig,
    ReplSetGetStatus,
    ServerStatus,
    ShardedDataDistribution,
    ShardingState,
    Top,
    UseUUID,
]);

/// Of `clusterMonitor`, on all collections but the system's.
pub(super) const STATISTICS: ActionSet = ActionSet::of(&[
    CollStats,
    DbStats,
    GetDatabaseVersion,
    GetShardVersion,
    IndexStats,
]);

pub(super) const HOST_MANAGER: ActionSet = ActionSet::of(&[
    ApplicationMessage,
    CloseAllDatabases,
    Compact,
    ConnPoolSync,
    DropConnections,
    FlushRouterConfig,
    Fsync,
    InvalidateUserCache,
    KillAnyCursor,
    KillAnySession,
    Killop,
    LogRotate,
    OidReset,
    ReplSetResizeOplog,
    Resync,
    RotateCertificates,
    SetParameter,
    Shutdown,
    Touch,
    TrafficRecord,
    Unlock,
]);

pub(super) const BACKUP: ActionSet = ActionSet::of(&[
    AppendOplogNote,
    GetParameter,
    ListDatabases,
    ServerStatus,
    SetUserWriteBlockMode,
]);

pub(super) const RESTORE: ActionSet =
    ActionSet::of(&[BypassWriteBlockingMode, GetParameter, SetUserWriteBlockMode]);

/// Of `restore`, on collections.
pub(super) const RESTORE_WRITES: ActionSet = ActionSet::of(&[
    BypassDocumentValidation,
    CollMod,
    ConvertToCapped,
    CreateCollection,
    CreateIndex,
    CreateSearchIndexes,
    DropCollection,
    Insert,
    UpdateSearchIndex,
]);

/// Of `restore`, on users and roles.
pub(super) const RESTORE_USERS: ActionSet = ActionSet::of(&[
    ChangeCustomData,
    ChangePassword,
    CreateRole,
    CreateUser,
    DropRole,
    DropUser,
    GrantRole,
    RevokeRole,
    ViewRole,
    ViewUser,
]);

pub(super) const FIND: ActionSet = ActionSet::of(&[Find]);
pub(super) const LIST_DATABASES: ActionSet = ActionSet::of(&[ListDatabases]);
