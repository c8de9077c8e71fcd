//! Limits of a node's part in its cluster.

use pinion_runtime::Duration;

/// How long a command to another node of the cluster may take, with the choice of the member.
pub const REMOTE_COMMAND: Duration = Duration::from_secs(30);
/// The same where a shard's size is asked for: a shard that does not answer gets no new database.
pub const SHARD_SIZE: Duration = Duration::from_secs(5);
/// How long a command that the node sends itself may take.
pub const LOCAL_COMMAND: Duration = Duration::from_secs(60);

/// The pause before something is tried again that a primary has to do.
pub const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long a database may be kept closed for its removal, with the wait for what is in it.
pub const DROP_DATABASE: Duration = Duration::from_secs(30);

/// How often a refresh of a database begins again because what it has read was changed meanwhile.
pub const REFRESH_ATTEMPTS: usize = 5;
/// How long a secondary waits until it has applied what its primary has written for it.
pub const CACHE_APPLIED: Duration = Duration::from_secs(10);

/// For how long, and how often, a shard looks for the identity that a client writes, which is there
/// only after the write was admitted.
pub const IDENTITY_PATIENCE: Duration = Duration::from_secs(10);
pub const IDENTITY_PAUSE: Duration = Duration::from_millis(20);

/// Shards of a cluster, which are read in one batch.
pub const MAX_SHARDS: i32 = 4_096;
/// Databases of a replica set that is added as a shard, of which one transaction writes the
/// entries.
pub const MAX_ADDED_DATABASES: usize = 10_000;
/// Keys for cluster times that a shard reads of the config servers: one is made every three months.
pub const MAX_KEYS: i32 = 1_000;

/// Connections of a core to each other member of the cluster.
pub const MAX_CONNECTIONS: usize = 64;
pub const IDLE_CONNECTIONS: usize = 4;
/// Known hosts at which those without a connection are forgotten.
pub const KNOWN_HOSTS: usize = 4_096;

const _: () = assert!(IDLE_CONNECTIONS < MAX_CONNECTIONS);
const _: () = assert!(SHARD_SIZE.as_secs() < REMOTE_COMMAND.as_secs());
