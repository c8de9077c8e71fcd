//! The handlers of commands that administrators and their tools send.

use pinion_exec::commands::{attach, indexes, plan_cache, query_settings};
use pinion_service::parameters::Row;
use pinion_service::{listing, parameter_commands, users};
use pinion_wire::Registry;

use crate::{
    cluster_parameters, compact, connections, data_size, db_hash, default_concerns,
    feature_compatibility, fsync, lock_info, metadata, profile, server_status, shutdown, small,
    user_write_block,
};

/// The parameters of this crate.
pub fn parameter_rows() -> Vec<Row> {
    [&crate::validate::ROWS[..], &crate::db_check::ROWS].concat()
}

/// Attaches them. Called on each core for its own registry.
pub fn register_commands(r: &mut Registry) {
    status(r);
    crate::absent::attach_absent(r);
    sizes_and_digests(r);
    settings(r);
    encryption(r);
    plans(r);
}

fn sizes_and_digests(r: &mut Registry) {
    attach(r, "dataSize", data_size::data_size);
    attach(r, "dbHash", db_hash::db_hash);
    attach(r, "dbCheck", crate::db_check::db_check);
    attach(r, "filemd5", db_hash::file_md5);
    attach(r, "compact", compact::compact);
    attach(r, "autoCompact", compact::auto_compact);
    attach(r, "reIndex", indexes::re_index);
    attach(r, "validateDBMetadata", metadata::validate_db_metadata);
    attach(r, "lockInfo", lock_info::lock_info);
    attach(r, "getDiagnosticData", server_status::get_diagnostic_data);
}

fn settings(r: &mut Registry) {
    attach(
        r,
        "getDefaultRWConcern",
        default_concerns::get_default_rw_concern,
    );
    attach(
        r,
        "setDefaultRWConcern",
        default_concerns::set_default_rw_concern,
    );
    attach(r, "profile", profile::profile);
    attach(
        r,
        "getClusterParameter",
        cluster_parameters::get_cluster_parameter,
    );
    attach(
        r,
        "setClusterParameter",
        cluster_parameters::set_cluster_parameter,
    );
    attach(
        r,
        "setUserWriteBlockMode",
        user_write_block::set_user_write_block_mode,
    );
    attach(
        r,
        "setFeatureCompatibilityVersion",
        feature_compatibility::set_feature_compatibility_version,
    );
    attach(r, "dropConnections", users::drop_connections);
}

fn encryption(r: &mut Registry) {
    attach(
        r,
        "compactStructuredEncryptionData",
        compact::compact_structured_encryption_data,
    );
    attach(
        r,
        "cleanupStructuredEncryptionData",
        compact::cleanup_structured_encryption_data,
    );
}

fn plans(r: &mut Registry) {
    attach(r, "planCacheClear", plan_cache::clear);
    attach(r, "planCacheSetFilter", plan_cache::set_filter);
    attach(r, "planCacheClearFilters", plan_cache::clear_filters);
    attach(r, "planCacheListFilters", plan_cache::list_filters);
    attach(r, "setQuerySettings", query_settings::set_query_settings);
    attach(
        r,
        "removeQuerySettings",
        query_settings::remove_query_settings,
    );
}

fn status(r: &mut Registry) {
    attach(r, "mapReduce", small::map_reduce);
    attach(r, "connectionStatus", users::connection_status);
    attach(r, "serverStatus", server_status::server_status);
    attach(r, "top", server_status::top);
    attach(r, "validate", crate::validate::validate);
    attach(r, "getParameter", parameter_commands::get_parameter);
    attach(r, "setParameter", parameter_commands::set_parameter);
    attach(r, "listCommands", listing::list_commands);
    attach(r, "fsync", fsync::fsync);
    attach(r, "fsyncUnlock", fsync::fsync_unlock);
    attach(r, "shutdown", shutdown::shutdown);
    attach(r, "connPoolStats", connections::conn_pool_stats);
    attach(r, "features", listing::features);
}
