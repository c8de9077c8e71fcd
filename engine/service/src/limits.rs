//! Named limits of what surrounds a command.

use pinion_runtime::Duration;

/// How often a waiting operation checks whether it was killed, at first.
pub const KILL_POLL: Duration = Duration::from_millis(20);
/// The same once it has waited for long: thousands of clients may wait for one lock.
pub const LONGEST_KILL_POLL: Duration = Duration::from_millis(160);
/// Work that an evaluation may do on its core, in units of about a nanosecond; what takes more is
/// offloaded.
pub const CORE_BUDGET: pinion_query::work::Units = 4_000_000;
/// A document above this size is prepared, compared and copied on a compute thread.
pub const LARGE_DOCUMENT_BYTES: usize = 128 * 1024;
/// Log lines kept for `getLog`, on each core.
pub(crate) const LOG_LINES: usize = 1024;
/// Bytes of one kept log line.
pub(crate) const LOG_LINE_BYTES: usize = 4096;
/// Namespaces with counters for `top` before a core looks for ones that are gone.
pub(crate) const MIN_TOP_NAMESPACES: usize = 10_000;
/// Bytes of a refused command that its error shows.
pub(crate) const REFUSED_COMMAND_BYTES: usize = 2048;
/// Bytes of all query settings together, which are one stored document.
pub(crate) const MAX_QUERY_SETTINGS_BYTES: usize = 8 * 1024 * 1024;
/// How long it is waited before it is looked again how often a fail point has acted.
pub(crate) const FAIL_POINT_POLL: Duration = Duration::from_millis(10);
/// What the operations of a node may hold in memory together, in percent of the memory for its
/// cache, and at least.
pub(crate) const NODE_MEMORY_PERCENT: u64 = 50;
pub(crate) const MIN_NODE_MEMORY_BYTES: u64 = 200 * 1024 * 1024;
/// Bytes that they may put on disk together.
pub(crate) const MAX_SPILLED_BYTES: u64 = 64 * 1024 * 1024 * 1024;
/// Bytes on disk that are left to the data, unless
/// `internalQuerySpillingMinAvailableDiskSpaceBytes` says otherwise.
pub(crate) const MIN_SPACE_BESIDE_SPILLS_BYTES: i64 = 500 * 1024 * 1024;
/// After this many spilled bytes free space is checked again.
pub(crate) const SPILL_SPACE_STEP_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of a spilled block that are written or read at once.
pub(crate) const SPILL_TRANSFER_BYTES: usize = 4 * 1024 * 1024;
/// How long a cursor may idle, unless `cursorTimeoutMillis` says otherwise.
pub(crate) const CURSOR_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a session may idle.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Longest `automationServiceDescriptor`.
pub(crate) const MAX_SERVICE_DESCRIPTOR_BYTES: usize = 64;
/// Bytes of documents in one batch; a single document may exceed it by the internal allowance.
pub const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;
/// Open cursors of one core.
pub(crate) const MAX_CURSORS: usize = 100_000;

/// Sessions remembered on one core.
pub const MAX_SESSIONS: usize = 1_000_000;
