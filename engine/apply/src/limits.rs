//! Named limits of what follows the log.

use pinion_exec::limits::{APPLIER_BYTES, APPLIER_ENTRIES, APPLY_BATCH_BYTES, APPLY_BATCH_ENTRIES};
use pinion_runtime::Duration;

/// How deep operations of `applyOps` may stand in one another.
pub(crate) const MAX_APPLY_OPS_DEPTH: usize = 10;
/// Entries of a transaction that are read from the log at once, and their bytes.
pub(crate) const CHAIN_READ_ENTRIES: usize = 16;
pub(crate) const CHAIN_READ_BYTES: usize = 32 * 1024 * 1024;
/// How often a build of indexes that waits for its set checks which member is primary and which are
/// ready, if it is not notified.
pub(crate) const BUILD_LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How long it is waited before a vote about a build is sent again.
pub(crate) const BUILD_VOTE_PAUSE: Duration = Duration::from_millis(500);
/// Bytes of the reason that a member gives the primary why it cannot make a build.
pub(crate) const MAX_ABORT_REASON_BYTES: usize = 1024;
/// Entries that one core decodes together, and their bytes.
pub(crate) const DECODE_BATCH_ENTRIES: usize = 256;
pub(crate) const DECODE_BATCH_BYTES: usize = 256 * 1024;
/// Those that are not worth the way to another core.
pub(crate) const DECODED_HERE_ENTRIES: usize = 8;
pub(crate) const DECODED_HERE_BYTES: usize = 16 * 1024;
/// Copied documents that are written at once, and about how many bytes.
pub(crate) const CLONE_STEP_DOCUMENTS: usize = 64;
pub(crate) const CLONE_STEP_BYTES: usize = 256 * 1024;
/// Bytes of entries that wait to be applied in recovery: fewer than elsewhere, as checkpoints,
/// which make room there, wait until all of them are applied.
pub(crate) const RECOVERY_BYTES: usize = 4 * 1024 * 1024;

const _: () =
    assert!(DECODE_BATCH_ENTRIES <= APPLY_BATCH_ENTRIES && APPLY_BATCH_ENTRIES <= APPLIER_ENTRIES);
const _: () =
    assert!(DECODE_BATCH_BYTES <= APPLY_BATCH_BYTES && APPLY_BATCH_BYTES <= RECOVERY_BYTES);
const _: () = assert!(RECOVERY_BYTES <= APPLIER_BYTES);

/// How long expiry pauses between two passes, unless `ttlMonitorSleepSecs` says otherwise.
pub(crate) const TTL_MONITOR_SLEEP: Duration = Duration::from_secs(60);
/// How long a sub-pass visits what expires, unless `ttlMonitorSubPassTargetSecs` says otherwise.
pub(crate) const TTL_SUB_PASS_TARGET: Duration = Duration::from_secs(60);
/// How long, and for how many documents, expiry deletes from one collection before it visits the
/// next, unless `ttlIndexDeleteTargetTimeMS` and `ttlIndexDeleteTargetDocs` say otherwise.
pub(crate) const TTL_INDEX_DELETE_TARGET_TIME: Duration = Duration::from_secs(1);
pub(crate) const TTL_INDEX_DELETE_TARGET_DOCS: u64 = 50_000;
