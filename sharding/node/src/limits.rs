//! Limits of a node's part in its cluster.

use pinion_runtime::Duration;
use pinion_sharding_protocol::balancer::MAX_SPLIT_POINTS;

/// How long a command to another node of the cluster may take, with the choice of the member.
pub const REMOTE_COMMAND: Duration = Duration::from_secs(30);
/// The same where a shard's size is asked for: a shard that does not answer gets no new database.
pub const SHARD_SIZE: Duration = Duration::from_secs(5);
/// How long a command that the node sends itself may take.
pub const LOCAL_COMMAND: Duration = Duration::from_secs(60);

/// The pause before something is tried again that a primary has to do.
pub const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long a gate may take to be closed for a definition, with the wait for what is behind it.
pub const HOLD_WAIT: Duration = Duration::from_secs(30);
/// How long a definition waits for others of the same collection or database.
pub const DDL_LOCK_WAIT: Duration = Duration::from_secs(300);
/// Definitions that run on a shard, with those that wait.
pub const MAX_DEFINITIONS: usize = 1_000;
/// Collections of a database that are listed at once where it is dropped.
pub const MAX_LISTED_COLLECTIONS: i32 = 1_000;
/// How long a shard's part of a definition may take that looks through all documents, as the
/// conversion of an index does. One that takes longer continues, and is asked for again.
pub const CHANGE_AT_SHARD: Duration = Duration::from_secs(1_800);
/// How often a shard's part of a definition is tried again that meets another table than the shard
/// has learned.
pub const STALE_ATTEMPTS: usize = 10;
/// Shards that are sent a part of a definition at the same time.
pub const MAX_SHARDS_AT_ONCE: usize = 64;

/// Documents of a batch that is copied with a database.
pub const CLONE_BATCH: i32 = 1_000;
/// After which time a shard that copies a database says that it does.
pub const CLONE_REPORT: Duration = Duration::from_secs(10);
/// How long a database stays closed to writes for a copy that cannot be made.
pub const CLONE_PATIENCE: Duration = Duration::from_secs(60);

/// How often a refresh of a database or collection begins again because what it has read was
/// changed meanwhile.
pub const REFRESH_ATTEMPTS: usize = 5;
/// How long a secondary waits until it has applied what its primary has written for it.
pub const CACHE_APPLIED: Duration = Duration::from_secs(10);

/// The pause before a secondary looks again at what its primary is writing.
pub const CACHE_READ_PAUSE: Duration = Duration::from_millis(50);

/// The documents of the chunks of one collection: a table of a million chunks has a quarter of it.
pub const MAX_TABLE_BYTES: usize = 1 << 30;
/// Chunks that a primary keeps with one command.
pub const CHUNKS_WRITTEN: usize = 1_000;
pub const CHUNK_WRITE_BYTES: usize = 8 << 20;
/// The bounds of chunks that a reply lists.
pub const LISTED_CHUNKS_BYTES: usize = 8 << 20;

/// For how long, and how often, a shard looks for the identity that a client writes, which is there
/// only after the write was admitted.
pub const IDENTITY_PATIENCE: Duration = Duration::from_secs(10);
pub const IDENTITY_PAUSE: Duration = Duration::from_millis(20);

/// Shards of a cluster, which are read in one batch.
pub const MAX_SHARDS: i32 = 4_096;
/// Changes of settings that are made at once: one of each cluster parameter, and of the block of
/// writes.
pub const MAX_SETTINGS_CHANGES: i32 = 100;
/// Databases of a replica set that is added as a shard, of which one transaction writes the
/// entries.
pub const MAX_ADDED_DATABASES: usize = 10_000;
/// Keys for cluster times that a shard reads of the config servers: one is made every three months.
pub const MAX_KEYS: i32 = 1_000;

/// Chunks that one command writes or removes when a collection becomes sharded or is dropped, and
/// the size at which it has enough of them.
pub const CHUNK_BATCH: usize = 1_000;
pub const CHUNK_BATCH_BYTES: usize = 4 << 20;
/// Chunks that one merge makes one of; `mergeAllChunksOnShard` takes more in turns.
pub const MAX_MERGED_CHUNKS: usize = 10_000;
/// Chunks that are read for a split: those that it may have made already.
pub const MAX_SPLIT_CHUNKS: usize = MAX_SPLIT_POINTS + 2;
/// How long a commit of a split or merge may take: it writes thousands of chunks.
pub const CHUNKS_COMMIT: Duration = Duration::from_secs(120);
/// Parts of a split that are noted in the changelog.
pub const MAX_NOTED_PARTS: usize = 100;
/// Keys of an index that one batch of a search for split points has.
pub const SPLIT_KEYS_BATCH: i32 = 10_000;
/// The split points of a reply.
pub const SPLIT_KEYS_BYTES: usize = 8 << 20;

/// Collections, and their bytes, that a shard reports at once where metadata are compared.
pub const REPORTED_COLLECTIONS: usize = 1_000;
pub const REPORTED_BYTES: usize = 8 << 20;
/// Inconsistencies that a shard reports to a router.
pub const REPORTED_INCONSISTENCIES_BYTES: usize = 8 << 20;
/// How often metadata are looked at until what is inconsistent at each look is reported, and the
/// pause between.
pub const CONSISTENCY_LOOKS: usize = 3;
pub const CONSISTENCY_PAUSE: Duration = Duration::from_millis(300);

/// Ranges of zones that a namespace has, which are read in one batch.
pub const MAX_ZONE_RANGES: i32 = 10_000;

/// Connections of a core to each other member of the cluster.
pub const MAX_CONNECTIONS: usize = 64;
pub const IDLE_CONNECTIONS: usize = 4;
/// Known hosts at which those without a connection are forgotten.
pub const KNOWN_HOSTS: usize = 4_096;

const _: () = assert!(IDLE_CONNECTIONS < MAX_CONNECTIONS);
const _: () = assert!(CHUNK_WRITE_BYTES + (1 << 24) <= pinion_wire::limits::MAX_MESSAGE_BYTES);
const _: () = assert!(CACHE_READ_PAUSE.as_millis() < CACHE_APPLIED.as_millis());
const _: () = assert!(CLONE_REPORT.as_secs() < REMOTE_COMMAND.as_secs());
const _: () = assert!(SHARD_SIZE.as_secs() < REMOTE_COMMAND.as_secs());
const _: () = assert!(CHANGE_AT_SHARD.as_secs() > REMOTE_COMMAND.as_secs());
const _: () = assert!(LOCAL_COMMAND.as_secs() < CHUNKS_COMMIT.as_secs());
