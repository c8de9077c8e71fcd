//! Named limits of the router role.

use pinion_runtime::Duration;
use pinion_wire::limits::MAX_MESSAGE_BYTES;

/// How often a command is sent in all where it may be sent again: MongoDB's `kMaxNumRetries` and
/// the first time.
pub const RUN_ATTEMPTS: usize = 3;
/// How long a member that fits is waited for, unless the options say otherwise:
/// `defaultFindReplicaSetHostTimeoutMS`.
pub const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// The first and the longest pause before a member is asked again that has not heard yet which
/// shard it is of.
pub(crate) const UNKNOWN_SHARD_PAUSE: Duration = Duration::from_millis(10);
pub(crate) const MAX_UNKNOWN_SHARD_PAUSE: Duration = Duration::from_millis(500);

/// Connections of the monitors to each host: one that streams, one for round trips, and as many
/// while they are replaced.
pub const MONITOR_CONNECTIONS: usize = 4;
pub const MONITOR_IDLE: usize = 1;

/// How often a command is sent again because the sender's routing table was old.
pub(crate) const MAX_STALE_RETRIES: u32 = 10;

/// How often the shards are asked for indexes of a sharded collection until all of them have them
/// at the same time.
pub(crate) const MAX_CONFIRMATIONS: usize = 10;

/// The pause before a command is sent again for the second time and later: what it met may be
/// changing.
pub(crate) const STALE_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// By how many doublings that pause grows: a migration that is being committed takes longer than a
/// definition.
pub(crate) const MAX_PAUSE_DOUBLINGS: u32 = 6;

/// How often a table that changes between two looks at it is looked at again.
pub(crate) const MAX_TARGETINGS: usize = 100;

/// The bounds of chunks that a reply lists.
pub(crate) const LISTED_CHUNKS_BYTES: usize = 8 << 20;

/// What the shards find in `validateDBMetadata` is listed up to this length.
pub(crate) const METADATA_REPLY_BYTES: usize = 15 << 20;

/// How often the catalog is looked at until what is inconsistent at each look is reported, and the
/// pause between. A definition that writes chunks changes their number meanwhile.
pub(crate) const CONSISTENCY_LOOKS: usize = 4;
pub(crate) const CONSISTENCY_PAUSE: Duration = Duration::from_millis(500);
/// Collections of which chunks are counted.
pub(crate) const MAX_COUNTED_COLLECTIONS: i32 = 100_000;

/// How often a document is found again that others change before it can be written.
pub(crate) const MAX_FOUND_ATTEMPTS: u32 = 20;

/// How often an upsert is done again that meets what another one has inserted meanwhile.
pub(crate) const MAX_DUPLICATE_UPSERTS: u32 = 3;

/// The statements of a request for a shard, with their numbers; the rest of the message is for the
/// command's own fields.
pub(crate) const MAX_PART_BYTES: usize = MAX_MESSAGE_BYTES - (1 << 20);

/// What the number of a statement takes of a message at most.
pub(crate) const NUMBER_BYTES: usize = 16;

/// The statements of the requests that a batch sends at once, if it sends several.
pub(crate) const MAX_ROUND_BYTES: usize = 2 * MAX_MESSAGE_BYTES;

/// Documents that `$out` and `$merge` write by one command, and their bytes: a command is full with
/// the document that goes beyond them.
pub(crate) const OUTPUT_BATCH_DOCUMENTS: usize = 1_000;
pub(crate) const OUTPUT_BATCH_BYTES: usize = 4 << 20;

const _: () = assert!(2 * OUTPUT_BATCH_BYTES < MAX_PART_BYTES);

/// How long a command without a deadline of its own may take at a shard. MongoDB has none; a
/// connection that is silent for so long is given up.
pub(crate) const LONGEST_COMMAND: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a read of the config servers may take.
pub(crate) const CONFIG_READ_TIME: Duration = Duration::from_secs(30);

/// The documents of one read of the config servers: a table of a million chunks has a quarter of
/// it.
pub(crate) const MAX_READ_BYTES: usize = 1 << 30;

/// How long a change at the config servers may take.
pub(crate) const CONFIG_WRITE_TIME: Duration = Duration::from_secs(60);
/// How long a change of settings may take, for which all shards end what runs.
pub(crate) const SETTINGS_TIME: Duration = Duration::from_secs(300);

/// Pause between two reads of the list of shards.
pub(crate) const SHARDS_RELOAD_PAUSE: Duration = Duration::from_secs(30);

/// The pause after a read of the list of shards that failed.
pub(crate) const SHARDS_RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Databases, and collections, whose place a core remembers. Beyond it all are forgotten, and
/// looked up again.
pub(crate) const MAX_KNOWN_NAMESPACES: usize = 100_000;

/// The longest an operation waits for data that its client lets it wait for, without saying how
/// long.
pub(crate) const AWAIT_DATA: Duration = Duration::from_secs(1);

/// How long a change stream waits for a shard that an event of another one waits for, before it has
/// that shard write a note in its log again.
pub(crate) const CHANGE_MARK_PAUSE: Duration = Duration::from_millis(100);

/// What a reply may take longer than the time that the shard was given.
pub(crate) const REPLY_PATIENCE: Duration = Duration::from_secs(10);

/// Cursors of a shard that a core still has to close there. Beyond it the shard closes them itself,
/// once they are idle for long enough.
pub(crate) const MAX_CLOSING_CURSORS: usize = 10_000;

/// How long the end of a process waits for the operations that run, by default.
pub(crate) const QUIESCE_TIME: Duration = Duration::from_secs(15);

/// Transactions that a core keeps the participants of.
pub(crate) const MAX_TRANSACTIONS: usize = 1_000_000;

/// Causes of aborted transactions that are counted one by one.
pub(crate) const MAX_ABORT_CAUSES: usize = 200;

/// The operations of a router hold together as much as those of a node with a cache of this size.
pub(crate) const MERGE_CACHE_BYTES: u64 = 4 << 30;

/// How often idle cursors and sessions are looked for.
pub(crate) const REAP_INTERVAL: Duration = Duration::from_secs(4);

/// How long a client's time is kept waiting for the key that it was signed with.
pub(crate) const KEY_PATIENCE: Duration = Duration::from_secs(2);

/// The pause between two looks at the keys of the config servers while one is missing.
pub(crate) const KEY_PAUSE: Duration = Duration::from_millis(200);

/// The pause between two looks at the keys otherwise. A new one is made three months ahead.
pub(crate) const KEYS_RELOAD_PAUSE: Duration = Duration::from_secs(60 * 60);

/// The pause between two looks at whether operations of clients still run.
pub(crate) const QUIESCE_POLL: Duration = Duration::from_millis(20);

const _: () = assert!(RUN_ATTEMPTS > 0 && MONITOR_IDLE < MONITOR_CONNECTIONS);

/// Connections of one core to a host. A router has as many commands under way there as its clients
/// send.
pub(crate) const ROUTER_CONNECTIONS: usize = 2_000;

/// Those that are kept while no command needs them.
pub(crate) const ROUTER_IDLE_CONNECTIONS: usize = 200;

/// How often sessions in use are published: `logicalSessionRefreshMillis`.
pub(crate) const SESSION_REFRESH_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Sessions that one command publishes, removes or looks for.
pub(crate) const SESSION_BATCH: usize = 1_000;

/// Ended sessions that wait for the next refresh. Others expire.
pub(crate) const MAX_ENDED_SESSIONS: usize = 100_000;

/// The pause between two looks at the default concerns of the cluster, as MongoDB has it.
pub(crate) const DEFAULTS_RELOAD_PAUSE: Duration = Duration::from_secs(30);
/// The same of the cluster parameters.
pub(crate) const PARAMETERS_RELOAD_PAUSE: Duration = Duration::from_secs(30);

/// The pause between two pings of a router to the config servers, and how long one may take.
pub(crate) const PRESENCE_PAUSE: Duration = Duration::from_secs(10);
pub(crate) const PRESENCE_TIME: Duration = Duration::from_secs(10);

/// What a read that may pass over shards keeps of its time, at most, for the reply without them.
pub(crate) const PARTIAL_REPLY_TIME: Duration = Duration::from_millis(200);

/// How long a shard is asked to drop what a `$out` that has failed leaves behind.
pub(crate) const DROP_OUTPUT_TIME: Duration = Duration::from_secs(10);

/// How long shards are asked to abort their parts of a transaction that has failed.
pub(crate) const ABORT_TIME: Duration = Duration::from_secs(10);
