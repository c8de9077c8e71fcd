//! The handlers of the commands that nodes of a cluster send each other.

use pinion_exec::attach;
use pinion_wire::Registry;

use crate::{config, shard};

/// Attaches the handlers, which a node without the role refuses by name. Called on each core for
/// its own registry.
pub fn register_commands(r: &mut Registry) {
    attach(r, "_addShard", shard::add_shard);
    attach(r, "_flushDatabaseCacheUpdates", shard::flush_database);
    attach(r, "_shardsvrDropDatabase", shard::drop_database);
    attach(r, "getDatabaseVersion", shard::get_database_version);
    attach(r, "shardingState", shard::sharding_state);
    attach(r, "_configsvrAddShard", config::add_shard);
    attach(r, "_configsvrCreateDatabase", config::create_database);
    attach(r, "_configsvrDropDatabase", config::drop_database);
}
