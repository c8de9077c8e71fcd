//! The handlers of the commands that nodes of a cluster send each other.

use pinion_exec::attach;
use pinion_wire::Registry;

use crate::{config, ddl, shard};

/// Attaches the handlers, which a node without the role refuses by name. Called on each core for
/// its own registry.
pub fn register_commands(r: &mut Registry) {
    attach(r, "_addShard", shard::add_shard);
    attach(r, "_flushDatabaseCacheUpdates", shard::flush_database);
    attach(r, "_flushRoutingTableCacheUpdates", shard::flush_collection);
    attach(r, "_shardsvrCreateCollection", ddl::create_collection);
    attach(
        r,
        "_shardsvrCreateCollectionParticipant",
        ddl::create_collection_participant,
    );
    attach(r, "_shardsvrDropCollection", ddl::drop_collection);
    attach(
        r,
        "_shardsvrDropCollectionParticipant",
        ddl::drop_collection_participant,
    );
    attach(r, "_shardsvrDropDatabase", ddl::drop_database);
    attach(
        r,
        "_shardsvrDropDatabaseParticipant",
        ddl::drop_database_participant,
    );
    attach(r, "getDatabaseVersion", shard::get_database_version);
    attach(r, "getShardVersion", shard::get_shard_version);
    attach(r, "shardingState", shard::sharding_state);
    attach(r, "_configsvrAddShard", config::add_shard);
    attach(r, "_configsvrCreateDatabase", config::create_database);
    attach(r, "_configsvrDropDatabase", config::drop_database);
    attach(
        r,
        "_configsvrCommitCreateCollection",
        config::commit_create_collection,
    );
    attach(
        r,
        "_configsvrCommitDropCollection",
        config::commit_drop_collection,
    );
    attach(r, "_configsvrAddShardToZone", config::add_shard_to_zone);
    attach(
        r,
        "_configsvrRemoveShardFromZone",
        config::remove_shard_from_zone,
    );
    attach(
        r,
        "_configsvrUpdateZoneKeyRange",
        config::update_zone_key_range,
    );
}
