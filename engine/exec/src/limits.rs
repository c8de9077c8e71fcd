//! Named limits of the executor.

use pinion_runtime::Duration;
use pinion_service::limits::CORE_BUDGET;

/// How long a read waits for the outcome of a prepared transaction before it checks whether that
/// may wait for the read.
pub(crate) const OUTCOME_PATIENCE: Duration = Duration::from_secs(1);

/// Documents of a block that are examined without a look at the clock, and the bytes and the work
/// of a filter after which no other is: about the time that a task has before it yields.
pub(crate) const ROUND_DOCUMENTS: usize = 64;
pub(crate) const ROUND_BYTES: usize = 32 * 1024;
pub(crate) const ROUND_WORK: pinion_query::work::Units = CORE_BUDGET / 16;
/// By how much a round grows behind each that found too little, where few documents are wanted.
pub(crate) const FOUND_GROWTH: usize = 4;

/// What a part that makes groups keeps of the documents that it finds: where the result turns out
/// to depend on their order, so few need not be found again.
pub(crate) const MAX_KEPT_DOCUMENTS: usize = 1024;
pub(crate) const MAX_KEPT_BYTES: usize = 1024 * 1024;
/// Bytes that the plan of a filter works with, for each of the filter's.
pub(crate) const PLANNED_PER_BYTE: usize = 8;
/// Bytes of a batch above which its reply is built on a compute thread.
pub(crate) const LARGE_BATCH_BYTES: usize = 1024 * 1024;
/// The largest entry of the oplog, or operation in one: members get it in a message that has room
/// for little more.
pub const MAX_LOGGED_BYTES: usize = pinion_bson::MAX_USER_DOCUMENT_BYTES + 8 * 1024;

/// How long a secondary waits for a time to be reached before it has its primary write an entry
/// that reaches it. Source: MongoDB's `waitForSecondaryBeforeNoopWriteMS`.
pub const NOOP_PATIENCE: Duration = Duration::from_millis(10);

const _: () = assert!(MAX_LOGGED_BYTES + 4096 < pinion_bson::MAX_INTERNAL_DOCUMENT_BYTES);
const _: () = assert!(MAX_LOGGED_BYTES < pinion_storage::MAX_ENTRY_BYTES);

/// How often an upsert looks for the document again that has the key which it wanted to insert, as
/// MongoDB's `upsertMaxRetryAttemptsOnDuplicateKeyError`.
pub(crate) const MAX_UPSERT_ATTEMPTS: u32 = 100;

/// The longest key of a document in a collection that is declared to be clustered, as in MongoDB.
pub(crate) const MAX_CLUSTER_KEY_BYTES: usize = 8 * 1024 * 1024;
/// Points of a unique index that a read looks up one by one instead of asking every partition.
pub const MAX_POINTS: usize = 256;
/// Documents that a scan of a unique index fetches from other partitions at once.
pub const FETCH_GROUP: usize = 64;
/// Bytes of the documents that a part keeps while they wait for their turn by distance; others are
/// read once more.
pub(crate) const NEAR_BUFFER_BYTES: usize = 16 * 1024 * 1024;
/// Documents of a multi-update that are changed at once.
pub const TARGET_GROUP: usize = 256;
/// Documents in a first batch when the client names no size.
pub const DEFAULT_FIRST_BATCH: usize = 101;
/// Plans that one core keeps, and the bytes that they and what is shown of them may have.
pub(crate) const MAX_CACHED_PLANS: usize = 5000;
pub(crate) const MAX_PLAN_CACHE_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of what is shown of a cached plan; what is longer is not kept.
pub(crate) const MAX_CACHED_PLAN_BYTES: usize = 256 * 1024;
/// How much more work an inactive entry is given when a trial took more than it promises.
pub(crate) const PLAN_WORKS_GROWTH: u64 = 2;
/// A cached plan that takes this many times the work that it promises is tried again.
pub(crate) const PLAN_EVICTION_RATIO: u64 = 10;
/// Steps that each of the plans of a trial takes at most, and results that end it.
pub(crate) const TRIAL_WORKS: u64 = 10_000;
pub(crate) const TRIAL_RESULTS: u64 = 101;
/// Bytes of all index filters together.
pub(crate) const MAX_INDEX_FILTER_BYTES: usize = 16 * 1024 * 1024;
/// This many documents of a retryable insert, or bytes of them, count as one for
/// `onPrimaryTransactionalWrite`: what MongoDB inserts at once.
pub(crate) const TEST_GROUP_DOCUMENTS: usize = 500;
pub(crate) const TEST_GROUP_BYTES: usize = 256 * 1024;
/// Sessions with retryable writes that one core knows; what it forgets is read from their records.
pub(crate) const MAX_CATALOG_SESSIONS: usize = 100_000;
/// This many of them are examined for one that can be forgotten.
pub(crate) const EVICTED_SESSIONS_LOOK: usize = 64;
/// Keys for cluster times that are read: one comes every three months.
pub(crate) const MAX_TIME_KEYS: usize = 1000;
/// The least time between two looks at them.
pub(crate) const KEY_PAUSE: Duration = Duration::from_millis(50);
/// How long a request waits for the key that its cluster time was signed with.
pub(crate) const KEY_PATIENCE: Duration = Duration::from_secs(1);
/// How long a majority has to hold new keys, before that is tried again.
pub(crate) const KEY_COMMIT_PATIENCE: Duration = Duration::from_secs(10);
/// How often the keys are checked while no request misses one.
pub(crate) const KEY_LOOK_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// For how long a key is used: MongoDB's `KeysRotationIntervalSec`, three months.
pub(crate) const KEYS_ROTATION_SECS: u32 = 90 * 24 * 60 * 60;
/// Sessions that are published, removed from the list of those in use, or looked for in it at once.
pub(crate) const SESSION_BATCH: usize = 1_000;

/// How often the sessions in use are published to the set: MongoDB's `logicalSessionRefreshMillis`.
pub(crate) const SESSION_REFRESH_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Ended sessions that a core remembers until then.
pub(crate) const MAX_ENDED_SESSIONS: usize = 100_000;
/// Sessions whose records are removed after one look, for each core.
pub(crate) const REAPED_SESSIONS: usize = 10_000;
/// Records that are removed in one unit.
pub(crate) const REAPED_RECORDS: usize = 1000;
/// Statements of a session that are kept when its command has ended.
pub(crate) const MAX_KEPT_STATEMENTS: usize = 1000;
/// Modes of write concerns that a core counts by their names, the bytes of such a name, and how
/// deep pipelines within pipelines are whose stages count.
pub(crate) const MAX_COUNTED_MODES: usize = 64;
pub(crate) const MAX_COUNTED_MODE_BYTES: usize = 128;
pub(crate) const MAX_COUNTED_PIPELINES: usize = 20;
/// Bytes of the operations of a transaction: what storage logs at once.
pub(crate) const MAX_TRANSACTION_BYTES: usize = pinion_storage::MAX_UNIT_ENTRY_BYTES - 1024 * 1024;
/// How often it is looked for transactions that are too old.
pub(crate) const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long the answer that a transaction is not known waits for a majority, where its write
/// concern has no timeout: as long as drivers wait when they send a commit again. A setting of the
/// whole set waits so long as well.
pub(crate) const OUTCOME_MAJORITY_TIMEOUT_MS: u32 = 10_000;
/// What the operations of all open transactions of a node may take, in percent of the memory for
/// its cache, and at least.
pub(crate) const TRANSACTIONS_MEMORY_PERCENT: u64 = 10;
pub(crate) const MIN_TRANSACTIONS_BYTES: u64 = 96 * 1024 * 1024;
/// Bytes of the operations that one entry of a transaction has at most, unless it has one alone.
pub(crate) const TRANSACTION_ENTRY_BYTES: usize = 16 * 1024 * 1024 - 64 * 1024;
/// Bytes of the keys of the documents that one statement of a transaction changes.
pub(crate) const TRANSACTION_TARGET_BYTES: usize = 64 * 1024 * 1024;
/// How long a stage that reads another collection waits for a DDL there, which may wait for the
/// stage's own operation.
pub const NESTED_GATE_TIMEOUT: Duration = Duration::from_secs(1);
/// This many errors of a batch have a text, however long that is,
pub const REPORTED_ERRORS: usize = 2;
/// and the others until their texts have this many bytes.
pub const REPORTED_ERROR_BYTES: usize = 1024 * 1024;
/// Bytes of the results that a `bulkWrite` keeps for its cursor; what would exceed them ends it.
pub const MAX_BULK_REPLY_BYTES: usize = 100 * 1024 * 1024;
/// Bytes of a reply of `validateDBMetadata` above which it says that there are more errors.
pub const MAX_METADATA_REPLY_BYTES: usize = 15 * 1024 * 1024;
/// Size of a capped collection `system.profile`.
pub const PROFILE_BYTES: i64 = 1024 * 1024;
/// Bytes of a command that the profiler writes down; of a longer one it writes the beginning.
pub const PROFILED_COMMAND_BYTES: usize = 50 * 1024;
/// Entries of the profiler that are written at once on one core; what comes up meanwhile is not
/// written.
pub const MAX_PROFILE_WRITES: usize = 64;
/// How long an operation waits until the profiler has written it down.
pub const PROFILE_WRITE_PATIENCE: Duration = Duration::from_secs(1);
/// What an error of a batch takes in the reply, roughly.
pub const ERROR_BYTES: usize = 256;
/// The most that one takes there without its text and its values.
pub const BARE_ERROR_BYTES: usize = 64;
/// Statements that one step of an insert hands to storage together.
pub const INSERT_GROUP_STATEMENTS: usize = 1000;
/// Bytes of documents that one step of an insert hands to storage together.
pub const INSERT_GROUP_BYTES: usize = 4 * 1024 * 1024;
/// Writes that one step of an insert hands to storage together, but for those of its last document:
/// of documents that have many keys it takes fewer.
pub(crate) const INSERT_STEP_WRITES: usize = 4096;
/// Changes that one step of a multi-update or a multi-delete hands to storage together, and the
/// writes of them but for those of the last.
pub(crate) const MODIFY_STEP_STATEMENTS: usize = 256;
pub(crate) const MODIFY_STEP_WRITES: usize = 4096;
/// Bytes of documents, old and new, that a core prepares before what it has is written; one is
/// always prepared.
pub(crate) const PREPARED_BYTES: usize = 4 * 1024 * 1024;
/// How often a write that finds no memory for changes is tried again before its client gets the
/// error, and how long it waits before: the defaults of `temporarilyUnavailableMaxRetries` and
/// `temporarilyUnavailableBackoffBaseMs`. Storage has waited for memory each time before it says
/// that there is none.
pub(crate) const MAX_UNAVAILABLE_RETRIES: i32 = 10;
pub(crate) const UNAVAILABLE_BACKOFF_BASE_MS: i32 = 1000;
/// The part of what all transactions may keep that one may have: the default of
/// `transactionTooLargeForCacheThreshold`.
pub(crate) const TRANSACTION_TOO_LARGE_THRESHOLD: f64 = 0.75;
/// The bounds of `journalCommitInterval` and `syncdelay`.
pub(crate) const MAX_JOURNAL_COMMIT_INTERVAL_MS: i64 = 500;
pub(crate) const MAX_SYNC_DELAY_SECS: f64 = 9_000_000.0;
/// How often a read is opened again, or takes a newer state again, when its snapshot went away
/// while it was being pinned, and the pause before it takes one.
pub const MAX_SNAPSHOT_RETRIES: u32 = 20;
pub(crate) const SNAPSHOT_RETRY_PAUSE: Duration = Duration::from_millis(5);
/// How many documents a read that promises no snapshot looks at before it looks at the age of its
/// state, and the age at which it takes a newer one, unless `internalQueryExecYieldIterations` and
/// `internalQueryExecYieldPeriodMS` say otherwise.
pub(crate) const READ_YIELD_DOCUMENTS: i32 = 1000;
pub(crate) const READ_YIELD_PERIOD: Duration = Duration::from_secs(1);
/// The same age where memory for changes is short: what was visible can be read for as long without
/// being pinned.
pub(crate) const RENEW_WHEN_SHORT: Duration = Duration::from_millis(100);
/// Documents that one statement evicts from a capped collection, and the bytes that it names them
/// by, roughly.
pub const EVICTION_GROUP: usize = 1000;
pub const EVICTION_GROUP_BYTES: usize = 4 * 1024 * 1024;
/// Capped collections that a core keeps something of before it looks for ones that are gone.
pub const CAPPED_SWEEP: usize = 1024;
/// How long a cursor that awaits data waits when its `getMore` does not say.
pub const AWAIT_DATA: Duration = Duration::from_secs(1);
/// How often one that waits checks whether its collection is still there.
pub const AWAIT_POLL: Duration = Duration::from_millis(100);
/// Oplog entries, and their bytes, that the applier hands to one core together.
pub const APPLY_BATCH_ENTRIES: usize = 1000;
pub const APPLY_BATCH_BYTES: usize = 1024 * 1024;
/// Entries, and their bytes, that the applier has accepted and not applied.
pub const APPLIER_ENTRIES: usize = 50_000;
pub const APPLIER_BYTES: usize = 32 * 1024 * 1024;
/// How often the lock of `fsync` checks whether the last writer has ended, and an operation that
/// waits for its turn whether it has it.
pub const FSYNC_LOCK_POLL: Duration = Duration::from_millis(2);
/// How often it is checked whether the last write of a user has ended, once these are blocked.
pub const USER_WRITES_POLL: Duration = Duration::from_millis(2);
/// Indexes whose uses a core counts for `$indexStats` before it looks for ones that are gone.
pub const MIN_USED_INDEXES: usize = 1_000;

/// Sources of measurements of which a core knows the open buckets.
pub const MAX_OPEN_BUCKET_SOURCES: usize = 8192;
/// Buckets of one source that a core knows: measurements may come for several times in turn.
pub const OPEN_BUCKETS_OF_SOURCE: usize = 4;
/// Sources whose buckets one round of an insert writes, and about how many bytes of buckets.
pub const SERIES_ROUND_SOURCES: usize = 1024;
pub const SERIES_ROUND_BYTES: usize = 8 * 1024 * 1024;
/// How often writers of one source may come into each other's way before they get a bucket each.
pub const SERIES_CONFLICTS: u32 = 3;

/// The least that an index build may be given of memory, in MiB, and the most room, in MiB, that it
/// can be set to leave.
pub(crate) const LEAST_BUILD_MEMORY_MB: i64 = 50;
pub(crate) const MOST_LEAST_FREE_MB: i64 = 8 << 20;

/// Members that a replica set may have.
pub(crate) const MAX_MEMBERS: u32 = 50;

/// Entries that a read of the log takes first, and at most at once, and their bytes.
pub(crate) const LOG_FIRST_BATCH_ENTRIES: usize = 16;
pub const LOG_BATCH_ENTRIES: usize = 1024;
pub const LOG_BATCH_BYTES: usize = 1 << 20;
/// Entries of the log, and their bytes, that a change stream holds before it looks at them, whether
/// it has read them or the feed of its core has handed them to it: thousands of streams may wait.
pub(crate) const CHANGE_BATCH_ENTRIES: usize = 256;
pub(crate) const CHANGE_BATCH_BYTES: usize = 256 * 1024;
/// An entry up to this size is copied for the streams that it concerns, so that they do not keep
/// the memory around it.
pub(crate) const CHANGE_ENTRY_COPY_BYTES: usize = 16 * 1024;
/// Entries of one transaction, whose times a change stream keeps until it has come to them.
pub(crate) const MAX_TRANSACTION_PARTS: usize = 100_000;
