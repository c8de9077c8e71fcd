//! Limits of a member's driver.

use pinion_runtime::Duration;

/// How long a vote about a build of indexes may take at the primary, which waits for a majority.
pub(crate) const BUILD_VOTE: Duration = Duration::from_secs(30);
/// Connections of a core to each member.
pub(crate) const MAX_CONNECTIONS: usize = 64;
/// Those that are left over and kept.
pub(crate) const IDLE_CONNECTIONS: usize = 4;

/// How long one may take to be set up, with the look-up of the member's name: longer than a
/// resolver waits for its first name server. What waits for a member that has lost its power
/// meanwhile waits no longer for that one.
pub(crate) const SETUP_TIME: Duration = Duration::from_secs(10);

/// How long a host has to answer whether it is this node.
pub(crate) const SELF_CHECK: Duration = Duration::from_secs(5);
/// How often the members of a configuration are asked while none says to be this node and not all
/// answer, and the pause in between.
pub(crate) const SELF_CHECKS: usize = 12;
pub(crate) const SELF_CHECK_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, once the node continues without being a member.
pub(crate) const MAX_SELF_CHECK_PAUSE: Duration = Duration::from_secs(30);

/// How much longer than the time for it a step-down at the end of the process may take, before it
/// is not waited for any more.
pub(crate) const LEAVE_GRACE: Duration = Duration::from_secs(1);

/// The pause between two looks at whether clients have ended what they do, before the process ends.
pub(crate) const QUIESCE_POLL: Duration = Duration::from_millis(5);

/// The pause between two looks at whether the writes under way have ended.
pub(crate) const WRITERS_POLL: Duration = Duration::from_millis(1);

/// Entries whose wall clock times are remembered, and how often the newest are looked at.
pub(crate) const MAX_WALLS: usize = 64;
pub(crate) const WALL_PERIOD: Duration = Duration::from_millis(25);

/// Changes of the term that are remembered, of which one comes with each election.
pub(crate) const MAX_TERMS: usize = 1024;

/// The part of the free disk that the oplog takes by default, and its bounds.
pub(crate) const OPLOG_SHARE: u64 = 20;
pub(crate) const MIN_OPLOG_BYTES: u64 = 990 << 20;
pub(crate) const MAX_OPLOG_BYTES: u64 = 50 << 30;

/// Known hosts at which those without a connection are forgotten.
pub(crate) const KNOWN_HOSTS: usize = 64;

/// The least time between two ticks of the machine.
pub(crate) const TICK_PAUSE: Duration = Duration::from_millis(1);

/// Batches of fetched entries that wait to be logged, and the most that one may come to: a message.
pub(crate) const BATCHES_AHEAD: usize = 4;
pub(crate) const MAX_BATCH_BYTES: usize = 48_000_000;

/// How long a source has beyond the time that it is asked to wait.
pub(crate) const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a source may take for the first batch of a read while data are copied.
pub(crate) const FIRST_FETCH_TIME: Duration = Duration::from_secs(60);

/// For how long a source may send nothing, beyond the time that it is asked to wait, before it is
/// asked whether it is there.
pub(crate) const SILENCE: Duration = Duration::from_millis(1000);

/// How long it has to answer that.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_millis(1000);

/// Collections that each core copies at once. Each has a batch of documents in memory, and one on
/// its way.
pub(crate) const COPIES_PER_CORE: u16 = 2;

/// How a copier of files may call itself.
pub(crate) const MAX_COPIER_NAME_BYTES: usize = 512;

/// How often a source hears that its frozen checkpoint is wanted, while its pages are not read:
/// well within what it waits for that.
pub(crate) const KEEP_FROZEN: Duration = Duration::from_secs(60);

/// For how long at most a source whose files are copied may be away: then it has given the
/// checkpoint up.
pub(crate) const MAX_PAGES_RETRY: Duration = Duration::from_secs(600);

/// How often it is looked at what is applied at the end of an initial sync, and what a majority
/// has.
pub(crate) const APPLIED_POLL: Duration = Duration::from_millis(20);
pub(crate) const COMMITTED_POLL: Duration = Duration::from_secs(1);

/// How often in a row a question to the source is asked again, and the pause before.
pub(crate) const COPY_RETRIES: u32 = 10;
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// For how long an attempt waits for a source that is behind what this node has logged.
pub(crate) const BEHIND_PATIENCE: Duration = Duration::from_secs(60);

/// How often an attempt that waits looks whether it is to end.
pub(crate) const HALT_POLL: Duration = Duration::from_millis(500);

/// Entries of the log that are applied at once at the end of an initial sync.
pub(crate) const APPLY_BATCH_ENTRIES: usize = 1000;
pub(crate) const APPLY_BATCH_BYTES: usize = 4 << 20;

/// Entries, and their bytes, that a rollback reads at once of each oplog.
pub(crate) const ROLLBACK_BATCH: usize = 1000;
pub(crate) const ROLLBACK_BATCH_BYTES: usize = 16 << 20;

/// Bytes that are written to a file of a rollback at once: whole blocks.
pub(crate) const ROLLBACK_FILE_BYTES: usize = 1 << 20;

/// How often flow control decides, as MongoDB's: tickets are for a second.
pub(crate) const FLOW_PERIOD: Duration = Duration::from_secs(1);

/// How often a member with a delay looks whether that has changed.
pub(crate) const DELAY_POLL: Duration = Duration::from_secs(1);

/// How long commands of the set wait for a member that has just started to listen.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(5);
