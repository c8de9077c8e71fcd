//! The handlers of a router, by the names of their commands.

use pinion_service::{authenticate, listing, parameter_commands, small_talk, test_commands, users};
use pinion_wire::{CommandRouting, Registry};

use super::{
    balancer, bulk_write, chunks, cluster, collection_stats, collections, consistency, cursors,
    databases, forward, indexes, move_primary, operations, profile, reads, refine, renames,
    sessions, settings, sharding, shutdown, status, writes,
};
use crate::epilogue::RouterEpilogue;
use crate::surround::attach;
use crate::{hello, transactions};

/// Attaches the commands of a router. Called on each core for its own registry.
pub fn register_commands(r: &mut Registry) {
    r.set_epilogue(std::rc::Rc::new(RouterEpilogue));
    data(r);
    definitions(r);
    of_cluster(r);
    of_chunks(r);
    conversation(r);
    diagnostics(r);
    // What needs nothing but a way there.
    for row in pinion_command::ROWS.into_iter().flatten() {
        match row.routing {
            CommandRouting::PrimaryShard if r.lookup(row.name).is_none() => {
                attach(r, row.name, reads::plain);
            }
            CommandRouting::MakesDatabase if r.lookup(row.name).is_none() => {
                attach(r, row.name, forward::making_database);
            }
            CommandRouting::ConfigServer if r.lookup(row.name).is_none() => {
                attach(r, row.name, forward::to_config_servers);
            }
            CommandRouting::EveryShard => attach(r, row.name, forward::to_every_shard),
            _ => {}
        }
    }
}

fn data(r: &mut Registry) {
    attach(r, "find", reads::find);
    attach(r, "aggregate", reads::aggregate);
    attach(r, "count", reads::count);
    attach(r, "distinct", reads::distinct);
    attach(r, "explain", reads::explain);
    attach(r, "getMore", cursors::get_more);
    attach(r, "killCursors", cursors::kill_cursors);
    attach(r, "insert", writes::insert);
    attach(r, "update", writes::update);
    attach(r, "delete", writes::delete);
    attach(r, "findAndModify", writes::find_and_modify);
    attach(r, "bulkWrite", bulk_write::bulk_write);
    attach(r, "commitTransaction", transactions::commit_transaction);
    attach(r, "abortTransaction", transactions::abort_transaction);
}

fn definitions(r: &mut Registry) {
    attach(r, "create", collections::create);
    attach(r, "drop", collections::drop);
    attach(r, "listCollections", reads::with_cursor);
    attach(r, "listIndexes", indexes::list_indexes);
    attach(r, "createIndexes", indexes::create_indexes);
    attach(r, "dropIndexes", indexes::drop_indexes);
    attach(r, "collMod", indexes::coll_mod);
    attach(r, "setIndexCommitQuorum", indexes::modify);
    attach(r, "planCacheClear", indexes::clear_plans);
    attach(r, "planCacheSetFilter", indexes::index_filters);
    attach(r, "planCacheClearFilters", indexes::index_filters);
    attach(r, "planCacheListFilters", indexes::index_filters);
    attach(r, "listDatabases", databases::list_databases);
    attach(r, "dropDatabase", databases::drop_database);
    attach(r, "convertToCapped", renames::convert_to_capped);
    attach(
        r,
        "cloneCollectionAsCapped",
        renames::clone_collection_as_capped,
    );
    attach(r, "renameCollection", renames::rename_collection);
    attach(r, "collStats", collection_stats::coll_stats);
    attach(r, "dbStats", collection_stats::db_stats);
    attach(r, "dataSize", collection_stats::data_size);
    attach(r, "validate", collection_stats::validate);
}

fn of_cluster(r: &mut Registry) {
    attach(r, "addShard", cluster::add_shard);
    attach(r, "listShards", cluster::list_shards);
    attach(r, "enableSharding", cluster::enable_sharding);
    attach(r, "shardCollection", sharding::shard_collection);
    attach(
        r,
        "refineCollectionShardKey",
        refine::refine_collection_shard_key,
    );
    attach(r, "setAllowMigrations", refine::set_allow_migrations);
    attach(r, "movePrimary", move_primary::move_primary);
    attach(r, "addShardToZone", sharding::add_shard_to_zone);
    attach(r, "removeShardFromZone", sharding::remove_shard_from_zone);
    attach(r, "updateZoneKeyRange", sharding::update_zone_key_range);
    attach(r, "getShardMap", cluster::get_shard_map);
    attach(r, "flushRouterConfig", cluster::flush_router_config);
    attach(r, "isdbgrid", cluster::is_db_grid);
    attach(r, "connPoolStats", cluster::conn_pool_stats);
    attach(r, "setDefaultRWConcern", forward::set_default_concerns);
    attach(r, "setClusterParameter", settings::set_cluster_parameter);
    attach(
        r,
        "setUserWriteBlockMode",
        settings::set_user_write_block_mode,
    );
}

fn of_chunks(r: &mut Registry) {
    attach(r, "split", chunks::split);
    attach(r, "mergeChunks", chunks::merge_chunks);
    attach(
        r,
        "mergeAllChunksOnShard",
        chunks::merge_all_chunks_on_shard,
    );
    attach(r, "clearJumboFlag", chunks::clear_jumbo_flag);
    attach(r, "splitVector", chunks::split_vector);
    attach(r, "getShardVersion", chunks::get_shard_version);
    attach(r, "balancerStart", balancer::start);
    attach(r, "balancerStop", balancer::stop);
    attach(r, "balancerStatus", balancer::status);
    attach(r, "balancerCollectionStatus", balancer::collection_status);
    attach(
        r,
        "configureCollectionBalancing",
        balancer::configure_collection,
    );
    attach(
        r,
        "checkMetadataConsistency",
        consistency::check_metadata_consistency,
    );
}

fn conversation(r: &mut Registry) {
    attach(r, "hello", hello::hello);
    attach(r, "isMaster", hello::is_master);
    attach(r, "ping", small_talk::ping);
    attach(r, "buildInfo", small_talk::build_info);
    attach(r, "hostInfo", small_talk::host_info);
    attach(r, "whatsmyuri", small_talk::whats_my_uri);
    attach(r, "startSession", sessions::start_session);
    attach(r, "endSessions", sessions::end_sessions);
    attach(r, "refreshSessions", sessions::refresh_sessions);
    attach(r, "killSessions", sessions::kill_sessions);
    attach(r, "killAllSessions", sessions::kill_all_sessions);
    attach(
        r,
        "killAllSessionsByPattern",
        sessions::kill_all_sessions_by_pattern,
    );
    attach(r, "saslStart", authenticate::sasl_start);
    attach(r, "saslContinue", authenticate::sasl_continue);
    attach(r, "authenticate", authenticate::authenticate);
    attach(r, "logout", authenticate::logout);
    attach(
        r,
        "invalidateUserCache",
        authenticate::invalidate_user_cache,
    );
}

fn diagnostics(r: &mut Registry) {
    attach(r, "currentOp", operations::current_op);
    attach(r, "killOp", operations::kill_op);
    attach(r, "lockInfo", operations::lock_info);
    attach(r, "validateDBMetadata", operations::validate_db_metadata);
    attach(r, "compact", operations::compact);
    attach(r, "serverStatus", status::server_status);
    attach(r, "getLog", small_talk::get_log);
    attach(r, "logRotate", small_talk::log_rotate);
    attach(r, "getCmdLineOpts", small_talk::get_cmd_line_opts);
    attach(r, "getParameter", parameter_commands::get_parameter);
    attach(r, "setParameter", parameter_commands::set_parameter);
    attach(r, "listCommands", listing::list_commands);
    attach(r, "features", listing::features);
    attach(r, "profile", profile::profile);
    attach(r, "connectionStatus", users::connection_status);
    attach(r, "dropConnections", users::drop_connections);
    attach(r, "shutdown", shutdown::shutdown);
}

/// Attaches the commands that a process has only where it was started with `enableTestCommands`.
pub fn register_test_commands(r: &mut Registry) {
    attach(r, "configureFailPoint", test_commands::configure_fail_point);
    attach(r, "waitForFailPoint", test_commands::wait_for_fail_point);
    attach(r, "refreshLogicalSessionCacheNow", sessions::refresh_now);
    attach(r, "testVersion2", test_commands::nothing);
    attach(r, "testVersions1And2", test_commands::nothing);
    attach(r, "testDeprecation", test_commands::test_deprecation);
    attach(r, "testDeprecationInVersion2", test_commands::nothing);
}
