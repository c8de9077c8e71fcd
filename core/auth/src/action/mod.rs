//! The actions that a privilege grants, by MongoDB's names.

mod set;

pub use set::ActionSet;

/// Each row is a variant and its name. The order is that in which MongoDB prints actions: by name
/// without regard to case, but for `updateSearchIndex` and `performRawDataOperations`.
macro_rules! actions {
    ($($variant:ident $name:literal)*) => {
        /// An action on a resource. Source: MongoDB's manual, "Privilege Actions".
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Action {
            $($variant),*
        }

        impl Action {
            /// Every action, in the order in which MongoDB prints them.
            pub const ALL: &[Action] = &[$(Action::$variant),*];

            /// The name in privileges.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Action::$variant => $name),*
                }
            }

            /// The action of this name; names are case-sensitive. `None` if MongoDB 8 has none.
            pub fn parse(name: &str) -> Option<Action> {
                match name {
                    $($name => Some(Action::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

actions! {
    AddShard "addShard"
    AdvanceClusterTime "advanceClusterTime"
    AllCollectionStats "allCollectionStats"
    Analyze "analyze"
    AnalyzeShardKey "analyzeShardKey"
    AnyAction "anyAction"
    AppendOplogNote "appendOplogNote"
    ApplicationMessage "applicationMessage"
    ApplyOps "applyOps"
    AuditConfigure "auditConfigure"
    Authenticate "authenticate"
    AuthSchemaUpgrade "authSchemaUpgrade"
    BypassDefaultMaxTimeMS "bypassDefaultMaxTimeMS"
    BypassDocumentValidation "bypassDocumentValidation"
    BypassWriteBlockingMode "bypassWriteBlockingMode"
    ChangeCustomData "changeCustomData"
    ChangeOwnCustomData "changeOwnCustomData"
    ChangeOwnPassword "changeOwnPassword"
    ChangePassword "changePassword"
    ChangeStream "changeStream"
    CheckMetadataConsistency "checkMetadataConsistency"
    CleanupOrphaned "cleanupOrphaned"
    CleanupStructuredEncryptionData "cleanupStructuredEncryptionData"
    ClearJumboFlag "clearJumboFlag"
    CloseAllDatabases "closeAllDatabases"
    CollMod "collMod"
    CollStats "collStats"
    Compact "compact"
    CompactStructuredEncryptionData "compactStructuredEncryptionData"
    ConfigureQueryAnalyzer "configureQueryAnalyzer"
    ConnPoolStats "connPoolStats"
    ConnPoolSync "connPoolSync"
    ConvertToCapped "convertToCapped"
    CpuProfiler "cpuProfiler"
    CreateCollection "createCollection"
    CreateDatabase "createDatabase"
    CreateIndex "createIndex"
    CreateRole "createRole"
    CreateSearchIndexes "createSearchIndexes"
    CreateUser "createUser"
    DbCheck "dbCheck"
    DbHash "dbHash"
    DbStats "dbStats"
    DropAllRolesFromDatabase "dropAllRolesFromDatabase"
    DropAllUsersFromDatabase "dropAllUsersFromDatabase"
    DropCollection "dropCollection"
    DropConnections "dropConnections"
    DropDatabase "dropDatabase"
    DropIndex "dropIndex"
    DropRole "dropRole"
    DropSearchIndex "dropSearchIndex"
    DropUser "dropUser"
    Emptycapped "emptycapped"
    EnableProfiler "enableProfiler"
    EnableSharding "enableSharding"
    ExportCollection "exportCollection"
    Find "find"
    FlushRouterConfig "flushRouterConfig"
    ForceUUID "forceUUID"
    Fsync "fsync"
    GetClusterParameter "getClusterParameter"
    GetCmdLineOpts "getCmdLineOpts"
    GetDatabaseVersion "getDatabaseVersion"
    GetDefaultRWConcern "getDefaultRWConcern"
    GetLog "getLog"
    GetParameter "getParameter"
    GetShardMap "getShardMap"
    GetShardVersion "getShardVersion"
    GrantPrivilegesToRole "grantPrivilegesToRole"
    GrantRole "grantRole"
    GrantRolesToRole "grantRolesToRole"
    GrantRolesToUser "grantRolesToUser"
    HostInfo "hostInfo"
    Impersonate "impersonate"
    ImportCollection "importCollection"
    IndexStats "indexStats"
    Inprog "inprog"
    Insert "insert"
    Internal "internal"
    InvalidateUserCache "invalidateUserCache"
    IssueDirectShardOperations "issueDirectShardOperations"
    KillAnyCursor "killAnyCursor"
    KillAnySession "killAnySession"
    KillCursors "killCursors"
    Killop "killop"
    ListCachedAndActiveUsers "listCachedAndActiveUsers"
    ListClusterCatalog "listClusterCatalog"
    ListCollections "listCollections"
    ListCursors "listCursors"
    ListDatabases "listDatabases"
    ListIndexes "listIndexes"
    ListSampledQueries "listSampledQueries"
    ListSearchIndexes "listSearchIndexes"
    UpdateSearchIndex "updateSearchIndex"
    ListSessions "listSessions"
    ListShards "listShards"
    LogRotate "logRotate"
    MoveChunk "moveChunk"
    MoveCollection "moveCollection"
    Netstat "netstat"
    OidReset "oidReset"
    OperationMetrics "operationMetrics"
    PlanCacheIndexFilter "planCacheIndexFilter"
    PlanCacheRead "planCacheRead"
    PlanCacheWrite "planCacheWrite"
    PerformRawDataOperations "performRawDataOperations"
    QuerySettings "querySettings"
    QueryStatsRead "queryStatsRead"
    QueryStatsReadTransformed "queryStatsReadTransformed"
    RefineCollectionShardKey "refineCollectionShardKey"
    ReIndex "reIndex"
    ReleaseMemoryAnyCursor "releaseMemoryAnyCursor"
    Remove "remove"
    RemoveShard "removeShard"
    RenameCollection "renameCollection"
    RenameCollectionSameDB "renameCollectionSameDB"
    RepairDatabase "repairDatabase"
    ReplSetConfigure "replSetConfigure"
    ReplSetGetConfig "replSetGetConfig"
    ReplSetGetStatus "replSetGetStatus"
    ReplSetHeartbeat "replSetHeartbeat"
    ReplSetReconfig "replSetReconfig"
    ReplSetResizeOplog "replSetResizeOplog"
    ReplSetStateChange "replSetStateChange"
    ReshardCollection "reshardCollection"
    Resync "resync"
    RevokePrivilegesFromRole "revokePrivilegesFromRole"
    RevokeRole "revokeRole"
    RevokeRolesFromRole "revokeRolesFromRole"
    RevokeRolesFromUser "revokeRolesFromUser"
    RotateCertificates "rotateCertificates"
    RunAsLessPrivilegedUser "runAsLessPrivilegedUser"
    RunTenantMigration "runTenantMigration"
    ServerStatus "serverStatus"
    SetAuthenticationRestriction "setAuthenticationRestriction"
    SetChangeStreamState "setChangeStreamState"
    SetClusterParameter "setClusterParameter"
    SetDefaultRWConcern "setDefaultRWConcern"
    SetFeatureCompatibilityVersion "setFeatureCompatibilityVersion"
    SetParameter "setParameter"
    SetUserWriteBlockMode "setUserWriteBlockMode"
    ShardCollection "shardCollection"
    ShardedDataDistribution "shardedDataDistribution"
    ShardingState "shardingState"
    Shutdown "shutdown"
    SplitChunk "splitChunk"
    SplitVector "splitVector"
    Top "top"
    Touch "touch"
    TrafficRecord "trafficRecord"
    TransitionFromDedicatedConfigServer "transitionFromDedicatedConfigServer"
    TransitionToDedicatedConfigServer "transitionToDedicatedConfigServer"
    Unlock "unlock"
    UnshardCollection "unshardCollection"
    Update "update"
    UpdateRole "updateRole"
    UpdateUser "updateUser"
    UseTenant "useTenant"
    UseUUID "useUUID"
    Validate "validate"
    ViewRole "viewRole"
    ViewUser "viewUser"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for (at, action) in Action::ALL.iter().enumerate() {
            assert_eq!(*action as usize, at);
            assert_eq!(Action::parse(action.name()), Some(*action));
        }
        for unknown in ["", "Find", "find ", "setFreeMonitoring", "dropEverything"] {
            assert_eq!(Action::parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn actions_are_in_the_order_of_names() {
        let moved = [Action::UpdateSearchIndex, Action::PerformRawDataOperations];
        let ordered: Vec<String> = Action::ALL
            .iter()
            .filter(|action| !moved.contains(action))
            .map(|action| action.name().to_ascii_lowercase())
            .collect();
        assert!(ordered.is_sorted());
    }
}
