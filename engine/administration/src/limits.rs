//! Named limits of administrative commands.

use pinion_exec::limits::MAX_LOGGED_BYTES;
use pinion_runtime::Duration;

/// How long a primary that `shutdown` ends waits for another member to catch up, as in MongoDB.
pub(crate) const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(15);
/// The longest wait that a command may ask for.
pub(crate) const MAX_SHUTDOWN_PATIENCE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How often `autoCompact` compacts, and how often it checks whether it was switched off meanwhile.
pub(crate) const AUTO_COMPACT_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
pub(crate) const AUTO_COMPACT_POLL: Duration = Duration::from_secs(1);
/// How long the lock of `fsync` waits for writers when its client does not say.
pub(crate) const FSYNC_LOCK_TIMEOUT: Duration = Duration::from_secs(90);
/// Buckets of the sums by which a validation compares keys; powers of two.
pub(crate) const MIN_KEY_BUCKETS: usize = 256;
pub(crate) const MAX_KEY_BUCKETS: usize = 1 << 16;
/// Errors and warnings of each kind that a validation lists.
pub(crate) const MAX_VALIDATION_NOTES: usize = 100;
/// Invalid documents that it lists.
pub(crate) const MAX_LISTED_RECORDS: usize = 10_000;
/// Bytes of the index entries that it lists, of those that are missing and of those that are too
/// many.
pub(crate) const MAX_LISTED_ENTRY_BYTES: usize = 1024 * 1024;
/// Faults of documents that it logs in each partition.
pub(crate) const MAX_LOGGED_FAULTS: usize = 100;
/// Documents and entries that its second phase looks up at once in each partition.
pub(crate) const VERIFY_GROUP: usize = 32;
/// Snapshots that a validation takes one after the other for the same thing, where each is lost
/// before it is done.
pub(crate) const MAX_SNAPSHOT_ATTEMPTS: usize = 10;
/// How often a validation tries to mend what others write at the same time.
pub(crate) const MAX_REPAIR_ATTEMPTS: usize = 20;
/// How often it tries to count records while others write, and how often when only the correction
/// of a count depends on it.
pub(crate) const MAX_COUNT_ATTEMPTS: usize = 50;
pub(crate) const FEW_COUNT_ATTEMPTS: usize = 3;
/// How often it looks again where the catalog differs from its row.
pub(crate) const MAX_METADATA_LOOKS: usize = 5;
/// Documents or index entries of a batch of `dbCheck`, and how long it is read, unless the command
/// says otherwise; in the bounds of MongoDB.
pub(crate) const CHECK_BATCH_DOCUMENTS: u64 = 5000;
pub(crate) const MAX_CHECK_BATCH_DOCUMENTS: u64 = 10_000;
pub(crate) const CHECK_BATCH_TIME_MS: u64 = 1000;
pub(crate) const MIN_CHECK_BATCH_TIME_MS: u64 = 10;
pub(crate) const MAX_CHECK_BATCH_TIME_MS: u64 = 20_000;
/// Records of a partition that are read at once, and their bytes.
pub(crate) const CHECK_PAGE_RECORDS: usize = 256;
pub(crate) const CHECK_PAGE_BYTES: usize = 256 * 1024;
/// Documents or entries that wait until they are looked up together, and their bytes, but for the
/// last.
pub(crate) const CHECK_LOOKUPS: usize = 64;
pub(crate) const CHECK_LOOKUP_BYTES: usize = 1024 * 1024;
/// Faults of documents and entries that are written down of each batch.
pub(crate) const MAX_CHECK_FAULTS: usize = 100;
/// Runs that wait for their turn, and the bytes of the command of each.
pub(crate) const MAX_QUEUED_CHECKS: usize = 100;
pub(crate) const MAX_CHECK_COMMAND_BYTES: usize = 64 * 1024;
/// Entries of batches that a member has not compared yet, and their bytes. Those of beginnings and
/// ends have as much room again.
pub(crate) const MAX_FOLLOWED_CHECKS: usize = 1000;
pub(crate) const MAX_FOLLOWED_CHECK_BYTES: usize = 20 * 1024 * 1024;
/// Bytes of what an entry says about why a run ended early, and of each value of a note in the log
/// of the node.
pub(crate) const MAX_CHECK_REASON_BYTES: usize = 1024;
/// How long a run is slowed down before it looks again how much it may read, and how long it waits
/// for memory.
pub(crate) const CHECK_PAUSE: Duration = Duration::from_secs(1);
pub(crate) const CHECK_RETRY: Duration = Duration::from_millis(100);

const _: () = assert!(MAX_FOLLOWED_CHECK_BYTES > MAX_LOGGED_BYTES + 4096);
/// Size of the capped collection `local.system.healthlog`.
pub(crate) const HEALTH_LOG_BYTES: i64 = 100 << 20;
/// How long a note for it waits before it is checked whether the node closes.
pub(crate) const HEALTH_LOG_PATIENCE: Duration = Duration::from_secs(1);

const _: () = assert!(MIN_KEY_BUCKETS.is_power_of_two() && MAX_KEY_BUCKETS.is_power_of_two());

/// What its sums may take in memory, unless `maxValidateMemoryUsageMB` says otherwise.
pub(crate) const VALIDATE_MEMORY_MB: i64 = 200;
/// Each this many batches without a difference, one is logged, unless
/// `dbCheckHealthLogEveryNBatches` says otherwise.
pub(crate) const CHECK_LOG_EVERY: u32 = 25;
pub(crate) const MAX_CHECK_LOG_EVERY: u32 = 10_000;
/// Megabytes that a run reads in a second, unless `maxDbCheckMBperSec` says otherwise.
pub(crate) const CHECK_MB_PER_SEC: u32 = 1;
