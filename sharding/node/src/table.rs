//! The handlers of the commands that nodes of a cluster send each other.

use pinion_exec::attach;
use pinion_wire::Registry;

use crate::{config, consistency, ddl, shard, v44};

/// Attaches the handlers, which a node without the role refuses by name. Called on each core for
/// its own registry.
pub fn register_commands(r: &mut Registry) {
    of_shards(r);
    behind_v44(r);
    of_config_servers(r);
}

fn of_shards(r: &mut Registry) {
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
    attach(r, "_shardsvrCloneCatalogData", ddl::clone_catalog_data);
    attach(r, "_shardsvrMovePrimary", ddl::move_primary);
    attach(r, "_shardsvrMovePrimaryAbort", ddl::move_primary_abort);
    attach(r, "_shardsvrParticipantBlock", ddl::participant_block);
    attach(
        r,
        "_shardsvrRefineCollectionShardKey",
        ddl::refine_shard_key,
    );
    attach(r, "_shardsvrSetAllowMigrations", ddl::set_allow_migrations);
    attach(r, "_shardsvrCollMod", ddl::coll_mod);
    attach(r, "_shardsvrCollModParticipant", ddl::change_participant);
    attach(r, "_shardsvrDropIndexes", ddl::drop_indexes);
    attach(
        r,
        "_shardsvrDropIndexesParticipant",
        ddl::change_participant,
    );
    attach(r, "_shardsvrRenameCollection", ddl::rename_collection);
    attach(
        r,
        "_shardsvrRenameCollectionParticipant",
        ddl::rename_collection_participant,
    );
    attach(r, "_shardsvrConvertToCapped", ddl::convert_to_capped);
    attach(
        r,
        "internalRenameIfOptionsAndIndexesMatch",
        ddl::rename_if_unchanged,
    );
    attach(
        r,
        "_shardsvrSetUserWriteBlockMode",
        ddl::set_user_write_block_mode,
    );
    attach(
        r,
        "_shardsvrSetClusterParameter",
        shard::set_cluster_parameter,
    );
    attach(r, "getDatabaseVersion", shard::get_database_version);
    attach(r, "getShardVersion", shard::get_shard_version);
    attach(r, "shardingState", shard::sharding_state);
}

fn behind_v44(r: &mut Registry) {
    attach(r, "setShardVersion", v44::set_shard_version);
    attach(r, "unsetSharding", v44::unset_sharding);
    attach(r, "_shardsvrShardCollection", v44::shard_collection);
    attach(
        r,
        "_cloneCollectionOptionsFromPrimaryShard",
        v44::clone_collection_options,
    );
}

fn of_config_servers(r: &mut Registry) {
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
    attach(
        r,
        "_configsvrCommitRefineCollectionShardKey",
        config::commit_refine_shard_key,
    );
    attach(r, "_configsvrCollMod", config::coll_mod);
    attach(
        r,
        "_configsvrSetAllowMigrations",
        config::set_allow_migrations,
    );
    attach(
        r,
        "_configsvrRenameCollectionMetadata",
        config::rename_collection_metadata,
    );
    attach(
        r,
        "_configsvrCommitMovePrimary",
        config::commit_move_primary,
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
    attach(
        r,
        "_configsvrSetUserWriteBlockMode",
        config::set_user_write_block_mode,
    );
    attach(
        r,
        "_configsvrSetClusterParameter",
        config::set_cluster_parameter,
    );
    chunks_of_shards(r);
    chunks_of_config(r);
}

fn chunks_of_shards(r: &mut Registry) {
    attach(
        r,
        "_shardsvrCheckMetadataConsistency",
        consistency::check_metadata_consistency,
    );
    attach(
        r,
        "_shardsvrCheckMetadataConsistencyParticipant",
        consistency::check_metadata_consistency_participant,
    );
    attach(r, "splitVector", shard::split_vector);
    attach(r, "checkShardingIndex", shard::check_sharding_index);
    attach(r, "splitChunk", shard::split_chunk);
    attach(r, "_shardsvrMergeChunks", shard::merge_chunks);
    attach(
        r,
        "_shardsvrMergeAllChunksOnShard",
        shard::merge_all_chunks_on_shard,
    );
}

fn chunks_of_config(r: &mut Registry) {
    attach(r, "_configsvrCommitChunkSplit", config::commit_chunk_split);
    attach(
        r,
        "_configsvrCommitChunksMerge",
        config::commit_chunks_merge,
    );
    attach(
        r,
        "_configsvrCommitMergeAllChunksOnShard",
        config::commit_merge_all_chunks_on_shard,
    );
    attach(r, "_configsvrClearJumboFlag", config::clear_jumbo_flag);
    attach(r, "_configsvrBalancerStart", config::balancer_start);
    attach(r, "_configsvrBalancerStop", config::balancer_stop);
    attach(r, "_configsvrBalancerStatus", config::balancer_status);
    attach(
        r,
        "_configsvrBalancerCollectionStatus",
        config::balancer_collection_status,
    );
    attach(
        r,
        "_configsvrConfigureCollectionBalancing",
        config::configure_collection_balancing,
    );
}
