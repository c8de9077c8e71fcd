//! The table of MongoDB's public error codes: number, name and categories.

use std::fmt;

use super::category::Category;

/// The number of an error, as clients see it in `code`.
///
/// Every number is allowed: those outside the table are the positions of single checks in MongoDB's
/// source and print as `Location<code>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(pub i32);

struct Entry {
    code: i32,
    name: &'static str,
    categories: Category,
}

macro_rules! error_codes {
    ($($code:literal $constant:ident $name:literal $([$($category:ident)|+])?;)*) => {
        impl ErrorCode {
            $(#[doc = $name] pub const $constant: ErrorCode = ErrorCode($code);)*
        }

        /// Ascending by code, which the assertion at the end of this file checks at compile time.
        const TABLE: &[Entry] = &[
            $(Entry {
                code: $code,
                name: $name,
                categories: Category::NONE$($(.and(Category::$category))+)?,
            },)*
        ];
    };
}

error_codes! {
    0 OK "OK";
    1 INTERNAL_ERROR "InternalError";
    2 BAD_VALUE "BadValue";
    3 OBSOLETE_DUPLICATE_KEY "OBSOLETE_DuplicateKey";
    4 NO_SUCH_KEY "NoSuchKey";
    5 GRAPH_CONTAINS_CYCLE "GraphContainsCycle";
    6 HOST_UNREACHABLE "HostUnreachable" [NETWORK | RETRIABLE];
    7 HOST_NOT_FOUND "HostNotFound" [NETWORK | RETRIABLE];
    8 UNKNOWN_ERROR "UnknownError";
    9 FAILED_TO_PARSE "FailedToParse";
    10 CANNOT_MUTATE_OBJECT "CannotMutateObject";
    11 USER_NOT_FOUND "UserNotFound";
    12 UNSUPPORTED_FORMAT "UnsupportedFormat";
    13 UNAUTHORIZED "Unauthorized";
    14 TYPE_MISMATCH "TypeMismatch";
    15 OVERFLOW "Overflow" [VALIDATION];
    16 INVALID_LENGTH "InvalidLength";
    17 PROTOCOL_ERROR "ProtocolError";
    18 AUTHENTICATION_FAILED "AuthenticationFailed";
    19 CANNOT_REUSE_OBJECT "CannotReuseObject";
    20 ILLEGAL_OPERATION "IllegalOperation";
    21 EMPTY_ARRAY_OPERATION "EmptyArrayOperation";
    22 INVALID_BSON "InvalidBSON" [VALIDATION];
    23 ALREADY_INITIALIZED "AlreadyInitialized";
    24 LOCK_TIMEOUT "LockTimeout" [INTERRUPTION];
    25 REMOTE_VALIDATION_ERROR "RemoteValidationError";
    26 NAMESPACE_NOT_FOUND "NamespaceNotFound";
    27 INDEX_NOT_FOUND "IndexNotFound";
    28 PATH_NOT_VIABLE "PathNotViable";
    29 NON_EXISTENT_PATH "NonExistentPath";
    30 INVALID_PATH "InvalidPath";
    31 ROLE_NOT_FOUND "RoleNotFound";
    32 ROLES_NOT_RELATED "RolesNotRelated";
    33 PRIVILEGE_NOT_FOUND "PrivilegeNotFound";
    34 CANNOT_BACKFILL_ARRAY "CannotBackfillArray";
    35 USER_MODIFICATION_FAILED "UserModificationFailed";
    36 REMOTE_CHANGE_DETECTED "RemoteChangeDetected";
    37 FILE_RENAME_FAILED "FileRenameFailed";
    38 FILE_NOT_OPEN "FileNotOpen";
    39 FILE_STREAM_FAILED "FileStreamFailed";
    40 CONFLICTING_UPDATE_OPERATORS "ConflictingUpdateOperators";
    41 FILE_ALREADY_OPEN "FileAlreadyOpen";
    42 LOG_WRITE_FAILED "LogWriteFailed";
    43 CURSOR_NOT_FOUND "CursorNotFound" [CURSOR_INVALIDATED];
    45 USER_DATA_INCONSISTENT "UserDataInconsistent";
    46 LOCK_BUSY "LockBusy";
    47 NO_MATCHING_DOCUMENT "NoMatchingDocument";
    48 NAMESPACE_EXISTS "NamespaceExists";
    49 INVALID_ROLE_MODIFICATION "InvalidRoleModification";
    50 MAX_TIME_MS_EXPIRED "MaxTimeMSExpired" [INTERRUPTION | EXCEEDED_TIME_LIMIT];
    51 MANUAL_INTERVENTION_REQUIRED "ManualInterventionRequired";
    52 DOLLAR_PREFIXED_FIELD_NAME "DollarPrefixedFieldName";
    53 INVALID_ID_FIELD "InvalidIdField";
    54 NOT_SINGLE_VALUE_FIELD "NotSingleValueField";
    55 INVALID_DB_REF "InvalidDBRef";
    56 EMPTY_FIELD_NAME "EmptyFieldName";
    57 DOTTED_FIELD_NAME "DottedFieldName";
    58 ROLE_MODIFICATION_FAILED "RoleModificationFailed";
    59 COMMAND_NOT_FOUND "CommandNotFound";
    60 OBSOLETE_DATABASE_NOT_FOUND "OBSOLETE_DatabaseNotFound";
    61 SHARD_KEY_NOT_FOUND "ShardKeyNotFound";
    62 OPLOG_OPERATION_UNSUPPORTED "OplogOperationUnsupported";
    63 OBSOLETE_STALE_SHARD_VERSION "OBSOLETE_StaleShardVersion";
    64 WRITE_CONCERN_TIMEOUT "WriteConcernTimeout" [WRITE_CONCERN];
    65 MULTIPLE_ERRORS_OCCURRED "MultipleErrorsOccurred";
    66 IMMUTABLE_FIELD "ImmutableField";
    67 CANNOT_CREATE_INDEX "CannotCreateIndex";
    68 INDEX_ALREADY_EXISTS "IndexAlreadyExists";
    69 AUTH_SCHEMA_INCOMPATIBLE "AuthSchemaIncompatible";
    70 SHARD_NOT_FOUND "ShardNotFound";
    71 REPLICA_SET_NOT_FOUND "ReplicaSetNotFound";
    72 INVALID_OPTIONS "InvalidOptions";
    73 INVALID_NAMESPACE "InvalidNamespace";
    74 NODE_NOT_FOUND "NodeNotFound";
    75 WRITE_CONCERN_LEGACY_OK "WriteConcernLegacyOK" [WRITE_CONCERN];
    76 NO_REPLICATION_ENABLED "NoReplicationEnabled";
    77 OPERATION_INCOMPLETE "OperationIncomplete";
    78 COMMAND_RESULT_SCHEMA_VIOLATION "CommandResultSchemaViolation";
    79 UNKNOWN_REPL_WRITE_CONCERN "UnknownReplWriteConcern" [WRITE_CONCERN];
    80 ROLE_DATA_INCONSISTENT "RoleDataInconsistent";
    81 NO_MATCH_PARSE_CONTEXT "NoMatchParseContext";
    82 NO_PROGRESS_MADE "NoProgressMade";
    83 REMOTE_RESULTS_UNAVAILABLE "RemoteResultsUnavailable";
    84 OBSOLETE_DUPLICATE_KEY_VALUE "OBSOLETE_DuplicateKeyValue";
    85 INDEX_OPTIONS_CONFLICT "IndexOptionsConflict";
    86 INDEX_KEY_SPECS_CONFLICT "IndexKeySpecsConflict";
    87 CANNOT_SPLIT "CannotSplit";
    88 OBSOLETE_SPLIT_FAILED "OBSOLETE_SplitFailed";
    89 NETWORK_TIMEOUT "NetworkTimeout" [NETWORK | RETRIABLE | NETWORK_TIMEOUT];
    90 CALLBACK_CANCELED "CallbackCanceled" [CANCELLATION];
    91 SHUTDOWN_IN_PROGRESS "ShutdownInProgress" [SHUTDOWN | CANCELLATION | RETRIABLE];
    92 SECONDARY_AHEAD_OF_PRIMARY "SecondaryAheadOfPrimary";
    93 INVALID_REPLICA_SET_CONFIG "InvalidReplicaSetConfig";
    94 NOT_YET_INITIALIZED "NotYetInitialized";
    95 NOT_SECONDARY "NotSecondary";
    96 OPERATION_FAILED "OperationFailed" [CURSOR_INVALIDATED];
    97 NO_PROJECTION_FOUND "NoProjectionFound";
    98 DB_PATH_IN_USE "DBPathInUse";
    100 UNSATISFIABLE_WRITE_CONCERN "UnsatisfiableWriteConcern" [WRITE_CONCERN];
    101 OUTDATED_CLIENT "OutdatedClient";
    102 INCOMPATIBLE_AUDIT_METADATA "IncompatibleAuditMetadata";
    103 NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE "NewReplicaSetConfigurationIncompatible";
    104 NODE_NOT_ELECTABLE "NodeNotElectable";
    105 INCOMPATIBLE_SHARDING_METADATA "IncompatibleShardingMetadata";
    106 DISTRIBUTED_CLOCK_SKEWED "DistributedClockSkewed";
    107 LOCK_FAILED "LockFailed";
    108 INCONSISTENT_REPLICA_SET_NAMES "InconsistentReplicaSetNames";
    109 CONFIGURATION_IN_PROGRESS "ConfigurationInProgress";
    110 CANNOT_INITIALIZE_NODE_WITH_DATA "CannotInitializeNodeWithData";
    111 NOT_EXACT_VALUE_FIELD "NotExactValueField";
    112 WRITE_CONFLICT "WriteConflict";
    113 INITIAL_SYNC_FAILURE "InitialSyncFailure";
    114 INITIAL_SYNC_OPLOG_SOURCE_MISSING "InitialSyncOplogSourceMissing";
    115 COMMAND_NOT_SUPPORTED "CommandNotSupported";
    116 DOC_TOO_LARGE_FOR_CAPPED "DocTooLargeForCapped";
    117 CONFLICTING_OPERATION_IN_PROGRESS "ConflictingOperationInProgress";
    118 NAMESPACE_NOT_SHARDED "NamespaceNotSharded";
    119 INVALID_SYNC_SOURCE "InvalidSyncSource";
    120 OPLOG_START_MISSING "OplogStartMissing";
    121 DOCUMENT_VALIDATION_FAILURE "DocumentValidationFailure";
    122 OBSOLETE_READ_AFTER_OPTIME_TIMEOUT "OBSOLETE_ReadAfterOptimeTimeout";
    123 NOT_A_REPLICA_SET "NotAReplicaSet";
    124 INCOMPATIBLE_ELECTION_PROTOCOL "IncompatibleElectionProtocol";
    125 COMMAND_FAILED "CommandFailed";
    126 RPC_PROTOCOL_NEGOTIATION_FAILED "RPCProtocolNegotiationFailed";
    127 UNRECOVERABLE_ROLLBACK_ERROR "UnrecoverableRollbackError";
    128 LOCK_NOT_FOUND "LockNotFound";
    129 LOCK_STATE_CHANGE_FAILED "LockStateChangeFailed";
    130 SYMBOL_NOT_FOUND "SymbolNotFound";
    132 OBSOLETE_CONFIG_SERVERS_INCONSISTENT "OBSOLETE_ConfigServersInconsistent";
    133 FAILED_TO_SATISFY_READ_PREFERENCE "FailedToSatisfyReadPreference";
    134 READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET "ReadConcernMajorityNotAvailableYet" [RETRIABLE];
    135 STALE_TERM "StaleTerm";
    136 CAPPED_POSITION_LOST "CappedPositionLost";
    137 INCOMPATIBLE_SHARDING_CONFIG_VERSION "IncompatibleShardingConfigVersion";
    138 REMOTE_OPLOG_STALE "RemoteOplogStale";
    139 JS_INTERPRETER_FAILURE "JSInterpreterFailure";
    140 INVALID_SSL_CONFIGURATION "InvalidSSLConfiguration";
    141 SSL_HANDSHAKE_FAILED "SSLHandshakeFailed";
    142 JS_UNCATCHABLE_ERROR "JSUncatchableError";
    143 CURSOR_IN_USE "CursorInUse";
    144 INCOMPATIBLE_CATALOG_MANAGER "IncompatibleCatalogManager";
    145 POOLED_CONNECTIONS_DROPPED "PooledConnectionsDropped";
    146 EXCEEDED_MEMORY_LIMIT "ExceededMemoryLimit";
    147 Z_LIB_ERROR "ZLibError";
    148 READ_CONCERN_MAJORITY_NOT_ENABLED "ReadConcernMajorityNotEnabled" [VOTE_ABORT];
    149 NO_CONFIG_PRIMARY "NoConfigPrimary";
    150 STALE_EPOCH "StaleEpoch" [STALE_SHARD_VERSION | NEED_RETARGETTING];
    151 OPERATION_CANNOT_BE_BATCHED "OperationCannotBeBatched";
    152 OPLOG_OUT_OF_ORDER "OplogOutOfOrder";
    153 CHUNK_TOO_BIG "ChunkTooBig";
    154 INCONSISTENT_SHARD_IDENTITY "InconsistentShardIdentity";
    155 CANNOT_APPLY_OPLOG_WHILE_PRIMARY "CannotApplyOplogWhilePrimary";
    156 OBSOLETE_NEEDS_DOCUMENT_MOVE "OBSOLETE_NeedsDocumentMove";
    157 CAN_REPAIR_TO_DOWNGRADE "CanRepairToDowngrade";
    158 MUST_UPGRADE "MustUpgrade";
    159 DURATION_OVERFLOW "DurationOverflow";
    160 MAX_STALENESS_OUT_OF_RANGE "MaxStalenessOutOfRange";
    161 INCOMPATIBLE_COLLATION_VERSION "IncompatibleCollationVersion";
    162 COLLECTION_IS_EMPTY "CollectionIsEmpty";
    163 ZONE_STILL_IN_USE "ZoneStillInUse";
    164 INITIAL_SYNC_ACTIVE "InitialSyncActive";
    165 VIEW_DEPTH_LIMIT_EXCEEDED "ViewDepthLimitExceeded";
    166 COMMAND_NOT_SUPPORTED_ON_VIEW "CommandNotSupportedOnView";
    167 OPTION_NOT_SUPPORTED_ON_VIEW "OptionNotSupportedOnView";
    168 INVALID_PIPELINE_OPERATOR "InvalidPipelineOperator";
    169 COMMAND_ON_SHARDED_VIEW_NOT_SUPPORTED_ON_MONGOD "CommandOnShardedViewNotSupportedOnMongod";
    170 TOO_MANY_MATCHING_DOCUMENTS "TooManyMatchingDocuments";
    171 CANNOT_INDEX_PARALLEL_ARRAYS "CannotIndexParallelArrays";
    172 TRANSPORT_SESSION_CLOSED "TransportSessionClosed";
    173 TRANSPORT_SESSION_NOT_FOUND "TransportSessionNotFound";
    174 TRANSPORT_SESSION_UNKNOWN "TransportSessionUnknown";
    175 QUERY_PLAN_KILLED "QueryPlanKilled" [CURSOR_INVALIDATED];
    176 FILE_OPEN_FAILED "FileOpenFailed";
    177 ZONE_NOT_FOUND "ZoneNotFound";
    178 RANGE_OVERLAP_CONFLICT "RangeOverlapConflict";
    179 WINDOWS_PDH_ERROR "WindowsPdhError";
    180 BAD_PERF_COUNTER_PATH "BadPerfCounterPath";
    181 AMBIGUOUS_INDEX_KEY_PATTERN "AmbiguousIndexKeyPattern";
    182 INVALID_VIEW_DEFINITION "InvalidViewDefinition";
    183 CLIENT_METADATA_MISSING_FIELD "ClientMetadataMissingField";
    184 CLIENT_METADATA_APP_NAME_TOO_LARGE "ClientMetadataAppNameTooLarge";
    185 CLIENT_METADATA_DOCUMENT_TOO_LARGE "ClientMetadataDocumentTooLarge";
    186 CLIENT_METADATA_CANNOT_BE_MUTATED "ClientMetadataCannotBeMutated";
    187 LINEARIZABLE_READ_CONCERN_ERROR "LinearizableReadConcernError";
    188 INCOMPATIBLE_SERVER_VERSION "IncompatibleServerVersion";
    189 PRIMARY_STEPPED_DOWN "PrimarySteppedDown" [NOT_PRIMARY | RETRIABLE];
    190 MASTER_SLAVE_CONNECTION_FAILURE "MasterSlaveConnectionFailure";
    191 OBSOLETE_BALANCER_LOST_DISTRIBUTED_LOCK "OBSOLETE_BalancerLostDistributedLock";
    192 FAIL_POINT_ENABLED "FailPointEnabled";
    193 OBSOLETE_NO_SHARDING_ENABLED "OBSOLETE_NoShardingEnabled";
    194 BALANCER_INTERRUPTED "BalancerInterrupted";
    195 VIEW_PIPELINE_MAX_SIZE_EXCEEDED "ViewPipelineMaxSizeExceeded";
    197 INVALID_INDEX_SPECIFICATION_OPTION "InvalidIndexSpecificationOption";
    198 OBSOLETE_RECEIVED_OP_REPLY_MESSAGE "OBSOLETE_ReceivedOpReplyMessage";
    199 REPLICA_SET_MONITOR_REMOVED "ReplicaSetMonitorRemoved";
    200 CHUNK_RANGE_CLEANUP_PENDING "ChunkRangeCleanupPending";
    201 CANNOT_BUILD_INDEX_KEYS "CannotBuildIndexKeys";
    202 NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT "NetworkInterfaceExceededTimeLimit" [EXCEEDED_TIME_LIMIT | NETWORK_TIMEOUT];
    203 SHARDING_STATE_NOT_INITIALIZED "ShardingStateNotInitialized";
    204 TIME_PROOF_MISMATCH "TimeProofMismatch";
    205 CLUSTER_TIME_FAILS_RATE_LIMITER "ClusterTimeFailsRateLimiter";
    206 NO_SUCH_SESSION "NoSuchSession";
    207 INVALID_UUID "InvalidUUID";
    208 TOO_MANY_LOCKS "TooManyLocks";
    209 STALE_CLUSTER_TIME "StaleClusterTime";
    210 CANNOT_VERIFY_AND_SIGN_LOGICAL_TIME "CannotVerifyAndSignLogicalTime";
    211 KEY_NOT_FOUND "KeyNotFound";
    212 INCOMPATIBLE_ROLLBACK_ALGORITHM "IncompatibleRollbackAlgorithm";
    213 DUPLICATE_SESSION "DuplicateSession";
    214 AUTHENTICATION_RESTRICTION_UNMET "AuthenticationRestrictionUnmet";
    215 DATABASE_DROP_PENDING "DatabaseDropPending";
    216 ELECTION_IN_PROGRESS "ElectionInProgress";
    217 INCOMPLETE_TRANSACTION_HISTORY "IncompleteTransactionHistory";
    218 UPDATE_OPERATION_FAILED "UpdateOperationFailed";
    219 FTDC_PATH_NOT_SET "FTDCPathNotSet";
    220 FTDC_PATH_ALREADY_SET "FTDCPathAlreadySet";
    221 INDEX_MODIFIED "IndexModified";
    222 CLOSE_CHANGE_STREAM "CloseChangeStream";
    223 ILLEGAL_OP_MSG_FLAG "IllegalOpMsgFlag" [CONNECTION_FATAL_PARSE];
    224 QUERY_FEATURE_NOT_ALLOWED "QueryFeatureNotAllowed";
    225 TRANSACTION_TOO_OLD "TransactionTooOld" [VOTE_ABORT | TWO_PHASE_DECISION_ACK];
    226 ATOMICITY_FAILURE "AtomicityFailure";
    227 CANNOT_IMPLICITLY_CREATE_COLLECTION "CannotImplicitlyCreateCollection";
    228 SESSION_TRANSFER_INCOMPLETE "SessionTransferIncomplete";
    229 MUST_DOWNGRADE "MustDowngrade";
    230 DNS_HOST_NOT_FOUND "DNSHostNotFound";
    231 DNS_PROTOCOL_ERROR "DNSProtocolError";
    232 MAX_SUB_PIPELINE_DEPTH_EXCEEDED "MaxSubPipelineDepthExceeded";
    233 TOO_MANY_DOCUMENT_SEQUENCES "TooManyDocumentSequences" [CONNECTION_FATAL_PARSE];
    234 RETRY_CHANGE_STREAM "RetryChangeStream";
    235 INTERNAL_ERROR_NOT_SUPPORTED "InternalErrorNotSupported";
    236 FOR_TESTING_ERROR_EXTRA_INFO "ForTestingErrorExtraInfo";
    237 CURSOR_KILLED "CursorKilled" [INTERRUPTION | CURSOR_INVALIDATED];
    238 NOT_IMPLEMENTED "NotImplemented";
    239 SNAPSHOT_TOO_OLD "SnapshotTooOld" [SNAPSHOT];
    240 DNS_RECORD_TYPE_MISMATCH "DNSRecordTypeMismatch";
    241 CONVERSION_FAILURE "ConversionFailure";
    242 CANNOT_CREATE_COLLECTION "CannotCreateCollection";
    243 INCOMPATIBLE_WITH_UPGRADED_SERVER "IncompatibleWithUpgradedServer";
    244 NOT_YET_AVAILABLE_TRANSACTION_ABORTED "NOT_YET_AVAILABLE_TransactionAborted";
    245 BROKEN_PROMISE "BrokenPromise";
    246 SNAPSHOT_UNAVAILABLE "SnapshotUnavailable" [SNAPSHOT];
    247 PRODUCER_CONSUMER_QUEUE_BATCH_TOO_LARGE "ProducerConsumerQueueBatchTooLarge";
    248 PRODUCER_CONSUMER_QUEUE_END_CLOSED "ProducerConsumerQueueEndClosed";
    249 STALE_DB_VERSION "StaleDbVersion";
    250 STALE_CHUNK_HISTORY "StaleChunkHistory" [SNAPSHOT];
    251 NO_SUCH_TRANSACTION "NoSuchTransaction" [VOTE_ABORT | TWO_PHASE_DECISION_ACK];
    252 REENTRANCY_NOT_ALLOWED "ReentrancyNotAllowed";
    253 FREE_MON_HTTP_IN_FLIGHT "FreeMonHttpInFlight";
    254 FREE_MON_HTTP_TEMPORARY_FAILURE "FreeMonHttpTemporaryFailure";
    255 FREE_MON_HTTP_PERMANENT_FAILURE "FreeMonHttpPermanentFailure";
    256 TRANSACTION_COMMITTED "TransactionCommitted";
    257 TRANSACTION_TOO_LARGE "TransactionTooLarge";
    258 UNKNOWN_FEATURE_COMPATIBILITY_VERSION "UnknownFeatureCompatibilityVersion";
    259 KEYED_EXECUTOR_RETRY "KeyedExecutorRetry";
    260 INVALID_RESUME_TOKEN "InvalidResumeToken";
    261 TOO_MANY_LOGICAL_SESSIONS "TooManyLogicalSessions";
    262 EXCEEDED_TIME_LIMIT "ExceededTimeLimit" [INTERRUPTION | EXCEEDED_TIME_LIMIT | RETRIABLE];
    263 OPERATION_NOT_SUPPORTED_IN_TRANSACTION "OperationNotSupportedInTransaction" [VOTE_ABORT];
    264 TOO_MANY_FILES_OPEN "TooManyFilesOpen";
    265 ORPHANED_RANGE_CLEAN_UP_FAILED "OrphanedRangeCleanUpFailed";
    266 FAIL_POINT_SET_FAILED "FailPointSetFailed";
    267 PREPARED_TRANSACTION_IN_PROGRESS "PreparedTransactionInProgress";
    268 CANNOT_BACKUP "CannotBackup";
    269 DATA_MODIFIED_BY_REPAIR "DataModifiedByRepair";
    270 REPAIRED_REPLICA_SET_NODE "RepairedReplicaSetNode";
    271 JS_INTERPRETER_FAILURE_WITH_STACK "JSInterpreterFailureWithStack";
    272 MIGRATION_CONFLICT "MigrationConflict" [SNAPSHOT];
    273 PRODUCER_CONSUMER_QUEUE_PRODUCER_QUEUE_DEPTH_EXCEEDED "ProducerConsumerQueueProducerQueueDepthExceeded";
    274 PRODUCER_CONSUMER_QUEUE_CONSUMED "ProducerConsumerQueueConsumed";
    275 EXCHANGE_PASSTHROUGH "ExchangePassthrough";
    276 INDEX_BUILD_ABORTED "IndexBuildAborted";
    277 ALARM_ALREADY_FULFILLED "AlarmAlreadyFulfilled";
    278 UNSATISFIABLE_COMMIT_QUORUM "UnsatisfiableCommitQuorum";
    279 CLIENT_DISCONNECT "ClientDisconnect" [INTERRUPTION];
    280 CHANGE_STREAM_FATAL_ERROR "ChangeStreamFatalError" [NON_RESUMABLE_CHANGE_STREAM];
    281 TRANSACTION_COORDINATOR_STEPPING_DOWN "TransactionCoordinatorSteppingDown" [INTERRUPTION];
    282 TRANSACTION_COORDINATOR_REACHED_ABORT_DECISION "TransactionCoordinatorReachedAbortDecision" [INTERRUPTION];
    283 WOULD_CHANGE_OWNING_SHARD "WouldChangeOwningShard";
    284 FOR_TESTING_ERROR_EXTRA_INFO_WITH_EXTRA_INFO_IN_NAMESPACE "ForTestingErrorExtraInfoWithExtraInfoInNamespace";
    285 INDEX_BUILD_ALREADY_IN_PROGRESS "IndexBuildAlreadyInProgress";
    286 CHANGE_STREAM_HISTORY_LOST "ChangeStreamHistoryLost" [NON_RESUMABLE_CHANGE_STREAM];
    287 TRANSACTION_COORDINATOR_DEADLINE_TASK_CANCELED "TransactionCoordinatorDeadlineTaskCanceled" [INTERNAL_ONLY];
    288 CHECKSUM_MISMATCH "ChecksumMismatch" [CONNECTION_FATAL_PARSE];
    289 WAIT_FOR_MAJORITY_SERVICE_EARLIER_OP_TIME_AVAILABLE "WaitForMajorityServiceEarlierOpTimeAvailable" [INTERNAL_ONLY];
    290 TRANSACTION_EXCEEDED_LIFETIME_LIMIT_SECONDS "TransactionExceededLifetimeLimitSeconds" [INTERRUPTION | EXCEEDED_TIME_LIMIT];
    291 NO_QUERY_EXECUTION_PLANS "NoQueryExecutionPlans";
    292 QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED "QueryExceededMemoryLimitNoDiskUseAllowed";
    293 INVALID_SEED_LIST "InvalidSeedList";
    294 INVALID_TOPOLOGY_TYPE "InvalidTopologyType";
    295 INVALID_HEART_BEAT_FREQUENCY "InvalidHeartBeatFrequency";
    296 TOPOLOGY_SET_NAME_REQUIRED "TopologySetNameRequired";
    297 HIERARCHICAL_ACQUISITION_LEVEL_VIOLATION "HierarchicalAcquisitionLevelViolation";
    298 INVALID_SERVER_TYPE "InvalidServerType";
    299 OCSP_CERTIFICATE_STATUS_REVOKED "OCSPCertificateStatusRevoked";
    300 RANGE_DELETION_ABANDONED_BECAUSE_COLLECTION_WITH_UUID_DOES_NOT_EXIST "RangeDeletionAbandonedBecauseCollectionWithUUIDDoesNotExist";
    301 DATA_CORRUPTION_DETECTED "DataCorruptionDetected";
    302 OCSP_CERTIFICATE_STATUS_UNKNOWN "OCSPCertificateStatusUnknown";
    303 SPLIT_HORIZON_CHANGE "SplitHorizonChange" [CLOSE_CONNECTION];
    304 SHARD_INVALIDATED_FOR_TARGETING "ShardInvalidatedForTargeting";
    306 READ_THROUGH_CACHE_LOOKUP_CANCELED "ReadThroughCacheLookupCanceled" [INTERNAL_ONLY];
    307 RANGE_DELETION_ABANDONED_BECAUSE_TASK_DOCUMENT_DOES_NOT_EXIST "RangeDeletionAbandonedBecauseTaskDocumentDoesNotExist";
    308 CURRENT_CONFIG_NOT_COMMITTED_YET "CurrentConfigNotCommittedYet";
    309 EXHAUST_COMMAND_FINISHED "ExhaustCommandFinished";
    310 PERIODIC_JOB_IS_STOPPED "PeriodicJobIsStopped" [CANCELLATION];
    311 TRANSACTION_COORDINATOR_CANCELED "TransactionCoordinatorCanceled" [INTERNAL_ONLY];
    312 OPERATION_IS_KILLED_AND_DELISTED "OperationIsKilledAndDelisted" [CANCELLATION | INTERNAL_ONLY];
    313 RESUMABLE_RANGE_DELETER_DISABLED "ResumableRangeDeleterDisabled";
    314 OBJECT_IS_BUSY "ObjectIsBusy" [CURSOR_INVALIDATED];
    315 TOO_STALE_TO_SYNC_FROM_SOURCE "TooStaleToSyncFromSource" [INTERNAL_ONLY];
    316 QUERY_TRIAL_RUN_COMPLETED "QueryTrialRunCompleted" [INTERNAL_ONLY];
    317 CONNECTION_POOL_EXPIRED "ConnectionPoolExpired" [NETWORK | RETRIABLE | INTERNAL_ONLY];
    318 FOR_TESTING_OPTIONAL_ERROR_EXTRA_INFO "ForTestingOptionalErrorExtraInfo";
    319 MOVE_PRIMARY_IN_PROGRESS "MovePrimaryInProgress";
    320 TENANT_MIGRATION_CONFLICT "TenantMigrationConflict" [TENANT_MIGRATION];
    321 TENANT_MIGRATION_COMMITTED "TenantMigrationCommitted" [TENANT_MIGRATION];
    322 API_VERSION_ERROR "APIVersionError" [VERSIONED_API];
    323 API_STRICT_ERROR "APIStrictError" [VERSIONED_API];
    324 API_DEPRECATION_ERROR "APIDeprecationError" [VERSIONED_API];
    325 TENANT_MIGRATION_ABORTED "TenantMigrationAborted" [TENANT_MIGRATION];
    326 OPLOG_QUERY_MIN_TS_MISSING "OplogQueryMinTsMissing";
    327 NO_SUCH_TENANT_MIGRATION "NoSuchTenantMigration";
    328 TENANT_MIGRATION_ACCESS_BLOCKER_SHUTTING_DOWN "TenantMigrationAccessBlockerShuttingDown" [INTERNAL_ONLY];
    329 TENANT_MIGRATION_IN_PROGRESS "TenantMigrationInProgress";
    330 SKIP_COMMAND_EXECUTION "SkipCommandExecution";
    331 FAILED_TO_RUN_WITH_REPLY_BUILDER "FailedToRunWithReplyBuilder";
    332 CANNOT_DOWNGRADE "CannotDowngrade";
    333 SERVICE_EXECUTOR_IN_SHUTDOWN "ServiceExecutorInShutdown" [SHUTDOWN | CANCELLATION | INTERNAL_ONLY];
    334 MECHANISM_UNAVAILABLE "MechanismUnavailable";
    335 TENANT_MIGRATION_FORGOTTEN "TenantMigrationForgotten";
    336 TIMESERIES_BUCKET_CLEARED "TimeseriesBucketCleared" [INTERNAL_ONLY];
    337 AUTHENTICATION_ABANDONED "AuthenticationAbandoned" [INTERNAL_ONLY];
    338 RESHARD_COLLECTION_IN_PROGRESS "ReshardCollectionInProgress";
    339 NO_SUCH_RESHARD_COLLECTION "NoSuchReshardCollection";
    340 RESHARD_COLLECTION_COMMITTED "ReshardCollectionCommitted";
    341 RESHARD_COLLECTION_ABORTED "ReshardCollectionAborted";
    342 RESHARDING_CRITICAL_SECTION_TIMEOUT "ReshardingCriticalSectionTimeout";
    343 SHARD_CANNOT_REFRESH_DUE_TO_LOCKS_HELD "ShardCannotRefreshDueToLocksHeld";
    344 AUDITING_NOT_ENABLED "AuditingNotEnabled";
    345 RUNTIME_AUDIT_CONFIGURATION_NOT_ENABLED "RuntimeAuditConfigurationNotEnabled";
    346 CHANGE_STREAM_INVALIDATED "ChangeStreamInvalidated";
    347 API_MISMATCH_ERROR "APIMismatchError" [VERSIONED_API | VOTE_ABORT];
    348 CHANGE_STREAM_TOPOLOGY_CHANGE "ChangeStreamTopologyChange";
    349 KEY_PATTERN_SHORTER_THAN_BOUND "KeyPatternShorterThanBound";
    350 RESHARD_COLLECTION_TRUNCATED_ERROR "ReshardCollectionTruncatedError";
    351 CHANGE_STREAM_START_AFTER_INVALIDATE "ChangeStreamStartAfterInvalidate";
    352 UNSUPPORTED_OP_QUERY_COMMAND "UnsupportedOpQueryCommand";
    353 NON_RETRYABLE_TENANT_MIGRATION_CONFLICT "NonRetryableTenantMigrationConflict" [TENANT_MIGRATION];
    354 LOAD_BALANCER_SUPPORT_MISMATCH "LoadBalancerSupportMismatch" [CLOSE_CONNECTION];
    355 INTERRUPTED_DUE_TO_STORAGE_CHANGE "InterruptedDueToStorageChange" [INTERRUPTION | CANCELLATION];
    356 TXN_RETRY_COUNTER_TOO_OLD "TxnRetryCounterTooOld" [VOTE_ABORT | TWO_PHASE_DECISION_ACK];
    357 INVALID_BSON_TYPE "InvalidBSONType";
    358 INTERNAL_TRANSACTION_NOT_SUPPORTED "InternalTransactionNotSupported" [RETRIABLE];
    359 CANNOT_CONVERT_INDEX_TO_UNIQUE "CannotConvertIndexToUnique";
    360 PLACEMENT_VERSION_REFRESH_CANCELED "PlacementVersionRefreshCanceled" [INTERNAL_ONLY];
    361 COLLECTION_UUID_MISMATCH "CollectionUUIDMismatch";
    362 FUTURE_ALREADY_RETRIEVED "FutureAlreadyRetrieved";
    363 RETRYABLE_TRANSACTION_IN_PROGRESS "RetryableTransactionInProgress";
    365 TEMPORARILY_UNAVAILABLE "TemporarilyUnavailable";
    366 WOULD_CHANGE_OWNING_SHARD_DELETED_NO_DOCUMENT "WouldChangeOwningShardDeletedNoDocument";
    367 FLE_COMPACTION_PLACEHOLDER "FLECompactionPlaceholder";
    369 FLE_TRANSACTION_ABORT "FLETransactionAbort";
    370 CANNOT_DROP_SHARD_KEY_INDEX "CannotDropShardKeyIndex";
    371 USER_WRITES_BLOCKED "UserWritesBlocked";
    372 CLOSE_CONNECTION_FOR_SHUTDOWN_COMMAND "CloseConnectionForShutdownCommand" [CLOSE_CONNECTION | INTERNAL_ONLY];
    373 INTERNAL_TRANSACTIONS_EXHAUSTIVE_FIND_HAS_MORE "InternalTransactionsExhaustiveFindHasMore";
    374 TRANSACTION_API_MUST_RETRY_TRANSACTION "TransactionAPIMustRetryTransaction" [INTERNAL_ONLY];
    375 TRANSACTION_API_MUST_RETRY_COMMIT "TransactionAPIMustRetryCommit" [INTERNAL_ONLY];
    376 CHANGE_STREAM_NOT_ENABLED "ChangeStreamNotEnabled";
    377 FLE_MAX_TAG_LIMIT_EXCEEDED "FLEMaxTagLimitExceeded";
    378 NON_CONFORMANT_BSON "NonConformantBSON" [VALIDATION];
    379 DATABASE_METADATA_REFRESH_CANCELED "DatabaseMetadataRefreshCanceled" [INTERNAL_ONLY];
    380 REQUEST_ALREADY_FULFILLED "RequestAlreadyFulfilled";
    381 RESHARDING_COORDINATOR_SERVICE_CONFLICTING_OPERATION_IN_PROGRESS "ReshardingCoordinatorServiceConflictingOperationInProgress" [INTERNAL_ONLY];
    382 REMOTE_COMMAND_EXECUTION_ERROR "RemoteCommandExecutionError" [INTERNAL_ONLY];
    383 COLLECTION_IS_EMPTY_LOCALLY "CollectionIsEmptyLocally";
    384 CONNECTION_ERROR "ConnectionError" [NETWORK | RETRIABLE | INTERNAL_ONLY];
    385 CONFLICTING_SERVERLESS_OPERATION "ConflictingServerlessOperation";
    386 DUPLICATE_KEY_ID "DuplicateKeyId";
    387 ENCOUNTERED_FLE_PAYLOAD_WHILE_APPLYING_HMAC "EncounteredFLEPayloadWhileApplyingHmac";
    388 TRANSACTION_TOO_LARGE_FOR_CACHE "TransactionTooLargeForCache";
    389 LIBMONGOCRYPT_ERROR "LibmongocryptError";
    390 INVALID_SIGNATURE "InvalidSignature";
    391 REAUTHENTICATION_REQUIRED "ReauthenticationRequired";
    392 INVALID_JWT "InvalidJWT";
    393 INVALID_TENANT_ID "InvalidTenantId";
    395 TRUNCATED_SERIALIZATION "TruncatedSerialization";
    396 INDEX_INFORMATION_TOO_LARGE "IndexInformationTooLarge";
    398 STREAM_TERMINATED "StreamTerminated" [CLOSE_CONNECTION];
    400 CANNOT_UPGRADE "CannotUpgrade";
    401 RESUME_TENANT_CHANGE_STREAM "ResumeTenantChangeStream";
    402 RESOURCE_EXHAUSTED "ResourceExhausted" [RETRIABLE];
    403 UNSUPPORTED_SHARDING_EVENT_NOTIFICATION "UnsupportedShardingEventNotification";
    404 LDAP_ROLE_ACQUISITION_ERROR "LDAPRoleAcquisitionError";
    405 CANNOT_CREATE_CHUNK_DISTRIBUTION "CannotCreateChunkDistribution";
    406 MIGRATION_BLOCKING_OPERATION_COORDINATOR_CLEANING_UP "MigrationBlockingOperationCoordinatorCleaningUp" [RETRIABLE];
    407 POOLED_CONNECTION_ACQUISITION_EXCEEDED_TIME_LIMIT "PooledConnectionAcquisitionExceededTimeLimit" [EXCEEDED_TIME_LIMIT | RETRIABLE];
    408 CANNOT_INSERT_TIMESERIES_BUCKETS_WITH_MIXED_SCHEMA "CannotInsertTimeseriesBucketsWithMixedSchema";
    409 TIMESERIES_BUCKET_COMPRESSION_FAILED "TimeseriesBucketCompressionFailed";
    410 TIMESERIES_BUCKET_FROZEN "TimeseriesBucketFrozen" [INTERNAL_ONLY];
    411 QUERY_REJECTED_BY_SETTINGS "QueryRejectedBySettings";
    412 UPDATES_STILL_PENDING "UpdatesStillPending" [RETRIABLE];
    413 TRANSACTION_PARTICIPANT_FAILED_UNYIELD "TransactionParticipantFailedUnyield";
    414 ADD_OR_REMOVE_SHARD_IN_PROGRESS "AddOrRemoveShardInProgress";
    415 STREAM_PROCESSOR_DOES_NOT_EXIST "StreamProcessorDoesNotExist";
    416 STREAM_PROCESSOR_ALREADY_EXISTS "StreamProcessorAlreadyExists";
    417 STREAM_PROCESSOR_WORKER_SHUTTING_DOWN "StreamProcessorWorkerShuttingDown";
    418 STREAM_PROCESSOR_WORKER_OUT_OF_MEMORY "StreamProcessorWorkerOutOfMemory";
    419 STREAM_PROCESSOR_KAFKA_CONNECTION_ERROR "StreamProcessorKafkaConnectionError";
    420 STREAM_PROCESSOR_INVALID_OPTIONS "StreamProcessorInvalidOptions";
    421 STREAM_PROCESSOR_ATLAS_CONNECTION_ERROR "StreamProcessorAtlasConnectionError";
    422 STREAM_PROCESSOR_ATLAS_UNAUTHORIZED_ERROR "StreamProcessorAtlasUnauthorizedError";
    423 STREAM_PROCESSOR_SOURCE_DOC_TOO_LARGE "StreamProcessorSourceDocTooLarge";
    424 STREAM_PROCESSOR_TOO_MANY_OUTPUT_TARGETS "StreamProcessorTooManyOutputTargets";
    425 STREAM_PROCESSOR_CANNOT_RESUME_FROM_SOURCE "StreamProcessorCannotResumeFromSource";
    426 INDEX_IS_EMPTY "IndexIsEmpty";
    427 DB_CHECK_SECONDARY_BATCH_TIMEOUT "DbCheckSecondaryBatchTimeout";
    428 DB_CHECK_ATTEMPT_ON_CLUSTERED_COLLECTION_ID_INDEX "DbCheckAttemptOnClusteredCollectionIdIndex";
    429 DB_CHECK_INCONSISTENT_HASH "DbCheckInconsistentHash";
    430 INDEX_KEY_ORDER_VIOLATION "IndexKeyOrderViolation";
    431 CHUNK_METADATA_INCONSISTENCY "ChunkMetadataInconsistency";
    432 OFFLINE_VALIDATION_FAILED_TO_COMPLETE "OfflineValidationFailedToComplete";
    433 ADMISSION_QUEUE_OVERFLOW "AdmissionQueueOverflow" [SYSTEM_OVERLOADED];
    434 NO_DISTINCT_SCANS_FOR_DISTINCT_ELIGIBLE_QUERY "NoDistinctScansForDistinctEligibleQuery";
    435 QUERY_STATS_FAILED_TO_RECORD "QueryStatsFailedToRecord";
    436 STREAM_PROCESSOR_HTTPS_CONNECTION_ERROR "StreamProcessorHTTPSConnectionError";
    440 STREAM_PROCESSOR_EXTERNAL_FUNCTION_CONNECTION_ERROR "StreamProcessorExternalFunctionConnectionError";
    442 RETRY_MULTI_PLANNING "RetryMultiPlanning";
    443 STREAM_PROCESSOR_S3_CONNECTION_ERROR "StreamProcessorS3ConnectionError";
    444 STREAM_PROCESSOR_S3_ERROR "StreamProcessorS3Error";
    445 DATABASE_METADATA_REFRESH_CANCELED_DUE_TO_FCV_TRANSITION "DatabaseMetadataRefreshCanceledDueToFCVTransition" [INTERNAL_ONLY];
    446 CLUSTER_UMC_ERROR_WITH_WRITE_CONCERN_ERROR "ClusterUMCErrorWithWriteConcernError" [INTERNAL_ONLY];
    447 OBJECT_ALREADY_EXISTS "ObjectAlreadyExists" [INTERNAL_ONLY];
    448 STREAM_PROCESSOR_INVALID_NAMESPACE "StreamProcessorInvalidNamespace";
    449 RATE_LIMIT_EXCEEDED "RateLimitExceeded" [SYSTEM_OVERLOADED];
    450 POOLED_CONNECTION_ACQUISITION_REJECTED "PooledConnectionAcquisitionRejected" [SYSTEM_OVERLOADED];
    451 STREAM_PROCESSOR_S3_TOKEN_EXPIRED "StreamProcessorS3TokenExpired";
    452 RELEASE_MEMORY_SHARD_ERROR "ReleaseMemoryShardError";
    453 INTERRUPTED_DUE_TO_RESHARDING_CRITICAL_SECTION "InterruptedDueToReshardingCriticalSection" [INTERRUPTION | RETRIABLE];
    454 REPLAY_CLIENT_CONFIGURATION_ERROR "ReplayClientConfigurationError";
    455 REPLAY_CLIENT_NOT_CONNECTED "ReplayClientNotConnected";
    456 REPLAY_CLIENT_FAILED_TO_PROCESS_BSON "ReplayClientFailedToProcessBSON";
    457 REPLAY_CLIENT_INTERNAL_ERROR "ReplayClientInternalError";
    458 REPLAY_CLIENT_SESSION_SCHEDULER_ERROR "ReplayClientSessionSchedulerError";
    459 REPLAY_CLIENT_SESSION_SIMULATION_ERROR "ReplayClientSessionSimulationError";
    460 STREAM_PROCESSOR_KINESIS_CONNECTION_ERROR "StreamProcessorKinesisConnectionError";
    461 STREAM_PROCESSOR_KINESIS_ERROR "StreamProcessorKinesisError";
    462 INGRESS_REQUEST_RATE_LIMIT_EXCEEDED "IngressRequestRateLimitExceeded" [SYSTEM_OVERLOADED | RETRIABLE];
    9001 SOCKET_EXCEPTION "SocketException" [NETWORK | RETRIABLE];
    9996 OBSOLETE_RECV_STALE_CONFIG "OBSOLETE_RecvStaleConfig";
    10003 CANNOT_GROW_DOCUMENT_IN_CAPPED_NAMESPACE "CannotGrowDocumentInCappedNamespace";
    10058 LEGACY_NOT_PRIMARY "LegacyNotPrimary";
    10107 NOT_WRITABLE_PRIMARY "NotWritablePrimary" [NOT_PRIMARY | RETRIABLE];
    10334 BSON_OBJECT_TOO_LARGE "BSONObjectTooLarge";
    11000 DUPLICATE_KEY "DuplicateKey";
    11600 INTERRUPTED_AT_SHUTDOWN "InterruptedAtShutdown" [INTERRUPTION | SHUTDOWN | CANCELLATION | RETRIABLE];
    11601 INTERRUPTED "Interrupted" [INTERRUPTION];
    11602 INTERRUPTED_DUE_TO_REPL_STATE_CHANGE "InterruptedDueToReplStateChange" [INTERRUPTION | NOT_PRIMARY | RETRIABLE];
    12586 BACKGROUND_OPERATION_IN_PROGRESS_FOR_DATABASE "BackgroundOperationInProgressForDatabase";
    12587 BACKGROUND_OPERATION_IN_PROGRESS_FOR_NAMESPACE "BackgroundOperationInProgressForNamespace";
    13104 OBSOLETE_PREPARE_CONFIGS_FAILED "OBSOLETE_PrepareConfigsFailed";
    13113 MERGE_STAGE_NO_MATCHING_DOCUMENT "MergeStageNoMatchingDocument";
    13297 DATABASE_DIFFER_CASE "DatabaseDifferCase";
    13388 STALE_CONFIG "StaleConfig" [STALE_SHARD_VERSION | NEED_RETARGETTING];
    13435 NOT_PRIMARY_NO_SECONDARY_OK "NotPrimaryNoSecondaryOk" [NOT_PRIMARY | RETRIABLE];
    13436 NOT_PRIMARY_OR_SECONDARY "NotPrimaryOrSecondary" [NOT_PRIMARY | RETRIABLE];
    14031 OUT_OF_DISK_SPACE "OutOfDiskSpace";
    17280 OBSOLETE_KEY_TOO_LONG "OBSOLETE_KeyTooLong";
    28769 NAMESPACE_CANNOT_BE_SHARDED "NamespaceCannotBeSharded";
    31082 SEARCH_NOT_ENABLED "SearchNotEnabled";
    40413 IDL_DUPLICATE_FIELD "IDLDuplicateField" [IDL_PARSE];
    40414 IDL_FAILED_TO_PARSE "IDLFailedToParse" [IDL_PARSE];
    40415 IDL_UNKNOWN_FIELD "IDLUnknownField" [IDL_PARSE];
    46841 CLIENT_MARKED_KILLED "ClientMarkedKilled" [INTERRUPTION | CANCELLATION];
    50768 NOT_A_RETRYABLE_WRITE_COMMAND "NotARetryableWriteCommand";
    50915 BACKUP_CURSOR_OPEN_CONFLICT_WITH_CHECKPOINT "BackupCursorOpenConflictWithCheckpoint" [RETRIABLE];
    56846 CONFIG_SERVER_UNREACHABLE "ConfigServerUnreachable";
    57986 RETRYABLE_INTERNAL_TRANSACTION_NOT_SUPPORTED "RetryableInternalTransactionNotSupported";
    91331 RETRIABLE_REMOTE_COMMAND_FAILURE "RetriableRemoteCommandFailure" [INTERRUPTION | RETRIABLE];
    640570 ILLEGAL_CHANGE_TO_EXPECTED_SHARD_VERSION "IllegalChangeToExpectedShardVersion";
    640571 ILLEGAL_CHANGE_TO_EXPECTED_DATABASE_VERSION "IllegalChangeToExpectedDatabaseVersion";
    1003141 REMOVE_SHARD_DRAINING_IN_PROGRESS "RemoveShardDrainingInProgress";
    4662500 IDL_UNKNOWN_FIELD_POSSIBLE_MONGOCRYPTD "IDLUnknownFieldPossibleMongocryptd" [IDL_PARSE];
    4938500 INDEX_NOT_FOUND_CACHED_PLAN "IndexNotFoundCachedPlan";
    9737301 UNSUPPORTED_CBR_NODE "UnsupportedCbrNode" [PLANNER_ESTIMATION];
    9751901 HISTOGRAM_CE_FAILURE "HistogramCEFailure" [PLANNER_ESTIMATION];
    9751902 SAMPLING_CE_FAILURE "SamplingCEFailure" [PLANNER_ESTIMATION];
    9751903 CE_FAILURE "CEFailure" [PLANNER_ESTIMATION];
    10045600 INTERRUPTED_DUE_TO_FCV_CHANGE "InterruptedDueToFCVChange" [INTERRUPTION | RETRIABLE];
    10171600 READ_THROUGH_CACHE_TIME_MONOTONICITY_VIOLATION "ReadThroughCacheTimeMonotonicityViolation";
}

impl ErrorCode {
    fn entry(self) -> Option<&'static Entry> {
        TABLE
            .binary_search_by_key(&self.0, |entry| entry.code)
            .ok()
            .map(|at| &TABLE[at])
    }

    /// The name clients see in `codeName`; `None` for a number outside the table.
    pub fn known_name(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.name)
    }

    /// The name clients see in `codeName`: that of the table, or `Location<code>`.
    pub fn name(self) -> std::borrow::Cow<'static, str> {
        match self.known_name() {
            Some(name) => name.into(),
            None => format!("Location{}", self.0).into(),
        }
    }

    /// The code with this name in the table.
    pub fn from_name(name: &str) -> Option<ErrorCode> {
        TABLE
            .iter()
            .find(|entry| entry.name == name)
            .map(|entry| ErrorCode(entry.code))
    }

    /// True if the code belongs to any of these categories.
    pub fn is(self, category: Category) -> bool {
        self.entry()
            .is_some_and(|entry| entry.categories.intersects(category))
    }

    /// The whole table: code and name, ascending by code.
    pub fn all() -> impl Iterator<Item = (ErrorCode, &'static str)> {
        TABLE
            .iter()
            .map(|entry| (ErrorCode(entry.code), entry.name))
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known_name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Location{}", self.0),
        }
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self, self.0)
    }
}

const _: () = {
    let mut at = 1;
    while at < TABLE.len() {
        assert!(
            TABLE[at - 1].code < TABLE[at].code,
            "the error table must ascend by code"
        );
        at += 1;
    }
};
