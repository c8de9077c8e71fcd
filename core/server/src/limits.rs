//! Named limits of the connection layer.

use pinion_bson::MAX_USER_DOCUMENT_BYTES;
use pinion_runtime::Duration;
use pinion_wire::limits::{MAX_MESSAGE_BYTES, REPLY_ALLOWANCE_BYTES};

/// Bytes received ahead of the command that is running. While that many wait, nothing more is read.
pub const READ_AHEAD_BYTES: usize = 64 * 1024;
/// A message up to this size gets its whole buffer at once; a larger one grows with what arrives,
/// so that a header alone does not cost 48 MB.
pub const RESERVE_AT_ONCE_BYTES: usize = 1024 * 1024;
/// For a larger message at most this multiple of what has arrived is reserved. It is copied less
/// the sooner its whole buffer is there.
pub const RESERVE_AHEAD: usize = 8;
/// The memory that the kernel hands out at once.
pub const PAGE_BYTES: usize = 4096;
/// A message above this size is checked on a compute thread; its bytes are decompressed, and a
/// reply's compressed, there too. At some nanoseconds for each of the smallest values, or each byte
/// that is compressed, more would hold a core for too long.
pub const LARGE_MESSAGE_BYTES: usize = 1024 * 1024;
/// How long running commands may take to end once the node shuts down.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last replies may take to leave when a connection ends.
pub const LAST_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection that this side ends is read on, so that the peer sees the last reply and
/// not a reset, which unread bytes would cause.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// How much of a slow command is logged.
pub const SLOW_COMMAND_LOG_BYTES: usize = 2048;
/// The largest reply, but for `ok` and the times behind it: a batch as large as a document, what a
/// cursor puts around it, and what the places of more than a million documents take beyond what a
/// batch counts for them.
pub const MAX_REPLY_BYTES: usize = MAX_USER_DOCUMENT_BYTES + REPLY_ALLOWANCE_BYTES + 1024 * 1024;
/// How much of an error's message is sent where all of it would be too much.
pub const SHORTENED_MESSAGE_BYTES: usize = 64 * 1024;
/// How long accepting rests after it failed, for example because no file descriptor was free: twice
/// as long each time, up to the second of these.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
pub const MAX_ACCEPT_PAUSE: Duration = Duration::from_millis(1000);
/// The most connections unless the options say otherwise.
pub const DEFAULT_MAX_CONNECTIONS: usize = 65_536;

/// Connections of a pool to one host, unless its options say otherwise: the most, how many are set
/// up at a time (MongoDB's `maxConnecting`), the most that are left over and for how long, and how
/// many requests may wait for one.
pub const POOL_CONNECTIONS: usize = 1024;
pub const POOL_CONNECTING: usize = 2;
pub const POOL_IDLE: usize = 128;
pub const POOL_IDLE_TIME: Duration = Duration::from_secs(60);
pub const POOL_WAITING: usize = 10_000;
/// How long an address may take to answer before another one is tried, or the same again.
pub const CONNECT_TIME: Duration = Duration::from_secs(1);
/// How long a connection may take to be set up: MongoDB's.
pub const POOL_SETUP_TIME: Duration = Duration::from_secs(20);
/// How long one is set up all the same if the request that it is for is gone and another one waits.
pub const ABANDONED_SETUP: Duration = Duration::from_secs(1);
/// Known hosts at which a pool forgets those without a connection.
pub const POOL_HOSTS: usize = 1024;
/// Secrets that a pool keeps of its keys, one for each key and start of another process.
pub const MAX_LOGINS: usize = 128;
/// Iterations that another process may ask for: more than MongoDB's default, and no way to keep
/// this one busy.
pub const MAX_LOGIN_ITERATIONS: u32 = 100_000;

const _: () = assert!(POOL_CONNECTING <= POOL_CONNECTIONS && POOL_IDLE <= POOL_CONNECTIONS);
const _: () = assert!(ABANDONED_SETUP.as_millis() < POOL_SETUP_TIME.as_millis());
const _: () =
    assert!(SHORTENED_MESSAGE_BYTES < MAX_REPLY_BYTES && MAX_REPLY_BYTES < MAX_MESSAGE_BYTES);
const _: () = assert!(READ_AHEAD_BYTES <= RESERVE_AT_ONCE_BYTES);
const _: () = assert!(ACCEPT_PAUSE.as_millis() <= MAX_ACCEPT_PAUSE.as_millis());
const _: () = assert!(LAST_FLUSH_TIMEOUT.as_millis() < DRAIN_TIMEOUT.as_millis());
