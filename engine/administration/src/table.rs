//! The table of commands that administrators and their tools send.

use pinion_exec::commands::{indexes, plan_cache, query_settings, register};
use pinion_exec::metrics::TopKind;
use pinion_wire::{AllowedOnSecondary, CommandSpec, Registry};

use crate::{
    cluster_parameters, compact, connections, data_size, db_hash, default_concerns, fsync,
    lock_info, metadata, parameters, profile, server_status, shutdown, small, users,
};

/// Registers them. Called on each core for its own registry.
pub fn register_commands(r: &mut Registry) {
    status(r);
    crate::absent::register_absent(r);
    sizes_and_digests(r);
    settings(r);
    encryption(r);
    plans(r);
}

fn sizes_and_digests(r: &mut Registry) {
    let spec = CommandSpec::new;
    register(
        r,
        spec("dataSize")
            .aliases(&["datasize"])
            .help("bytes of documents"),
        None,
        data_size::data_size,
    );
    register(
        r,
        spec("dbHash")
            .aliases(&["dbhash"])
            .help("digests of collections"),
        None,
        db_hash::db_hash,
    );
    register(
        r,
        spec("dbCheck")
            .on_secondary(AllowedOnSecondary::Never)
            .help("compare the members of the set, and indexes with documents"),
        None,
        crate::db_check::db_check,
    );
    register(
        r,
        spec("filemd5").help("digest of a file in GridFS"),
        None,
        db_hash::file_md5,
    );
    register(
        r,
        spec("compact").help("merge the changes of a collection that wait to be merged"),
        Some(TopKind::Command),
        compact::compact,
    );
    register(
        r,
        spec("autoCompact")
            .admin_only()
            .help("merge changes in the background"),
        None,
        compact::auto_compact,
    );
    register(
        r,
        spec("reIndex").help("make the entries of all indexes anew"),
        Some(TopKind::Command),
        indexes::re_index,
    );
    register(
        r,
        spec("validateDBMetadata").help("what a version of the API does not have"),
        None,
        metadata::validate_db_metadata,
    );
    register(
        r,
        spec("lockInfo").help("operations behind the gates of namespaces"),
        None,
        lock_info::lock_info,
    );
    register(
        r,
        spec("getDiagnosticData")
            .admin_only()
            .help("counters for a collector"),
        None,
        server_status::get_diagnostic_data,
    );
}

fn settings(r: &mut Registry) {
    let spec = CommandSpec::new;
    register(
        r,
        spec("getDefaultRWConcern")
            .admin_only()
            .help("default concerns"),
        None,
        default_concerns::get_default_rw_concern,
    );
    register(
        r,
        spec("setDefaultRWConcern")
            .admin_only()
            .write_concern()
            .help("change the default concerns"),
        None,
        default_concerns::set_default_rw_concern,
    );
    register(
        r,
        spec("profile").help("what is written to system.profile, and what counts as slow"),
        None,
        profile::profile,
    );
    register(
        r,
        spec("getClusterParameter")
            .admin_only()
            .help("settings of the cluster"),
        None,
        cluster_parameters::get_cluster_parameter,
    );
    register(
        r,
        spec("setClusterParameter")
            .on_secondary(AllowedOnSecondary::Never)
            .admin_only()
            .help("change a setting of the cluster"),
        None,
        cluster_parameters::set_cluster_parameter,
    );
    register(
        r,
        spec("usersInfo")
            .on_secondary(AllowedOnSecondary::OptIn)
            .help("users, of which there are none"),
        None,
        users::users_info,
    );
    register(
        r,
        spec("rolesInfo")
            .on_secondary(AllowedOnSecondary::OptIn)
            .help("roles, of which there are none"),
        None,
        users::roles_info,
    );
    register(
        r,
        spec("dropConnections")
            .admin_only()
            .help("close connections to other nodes"),
        None,
        users::drop_connections,
    );
}

fn encryption(r: &mut Registry) {
    let spec = CommandSpec::new;
    register(
        r,
        spec("compactStructuredEncryptionData")
            .on_secondary(AllowedOnSecondary::Never)
            .help("compact an encrypted collection"),
        None,
        compact::compact_structured_encryption_data,
    );
    register(
        r,
        spec("cleanupStructuredEncryptionData")
            .on_secondary(AllowedOnSecondary::Never)
            .help("clean up an encrypted collection"),
        None,
        compact::cleanup_structured_encryption_data,
    );
}

fn plans(r: &mut Registry) {
    let spec = |name| CommandSpec::new(name).on_secondary(AllowedOnSecondary::OptIn);
    let setting = |name| {
        let spec = CommandSpec::new(name).admin_only();
        spec.on_secondary(AllowedOnSecondary::Never)
    };
    register(
        r,
        spec("planCacheClear")
            .help("forget the plans that were found for queries of a shape, or of a collection"),
        Some(TopKind::Command),
        plan_cache::clear,
    );
    register(
        r,
        spec("planCacheSetFilter").help("set the indexes that queries of a shape may use"),
        Some(TopKind::Command),
        plan_cache::set_filter,
    );
    register(
        r,
        spec("planCacheClearFilters")
            .help("let queries of a shape, or of a collection, use all indexes again"),
        Some(TopKind::Command),
        plan_cache::clear_filters,
    );
    register(
        r,
        spec("planCacheListFilters")
            .help("the indexes that queries may use, for the shapes that have such filters"),
        Some(TopKind::Command),
        plan_cache::list_filters,
    );
    register(
        r,
        setting("setQuerySettings")
            .help("set what commands of a shape may use, or that they are rejected"),
        Some(TopKind::Command),
        query_settings::set_query_settings,
    );
    register(
        r,
        setting("removeQuerySettings").help("remove the settings of a shape"),
        Some(TopKind::Command),
        query_settings::remove_query_settings,
    );
}

fn status(r: &mut Registry) {
    let spec = CommandSpec::new;
    register(
        r,
        spec("mapReduce")
            .aliases(&["mapreduce"])
            .write_concern()
            .on_secondary(AllowedOnSecondary::OptIn)
            .help("group by functions in JavaScript, which there are none of"),
        Some(TopKind::Command),
        small::map_reduce,
    );
    register(
        r,
        spec("connectionStatus").help("who is connected"),
        None,
        users::connection_status,
    );
    register(
        r,
        spec("serverStatus").help("counters"),
        None,
        server_status::server_status,
    );
    register(
        r,
        spec("top").admin_only().help("use by collection"),
        None,
        server_status::top,
    );
    register(
        r,
        spec("validate").help("check a collection"),
        Some(TopKind::Command),
        crate::validate::validate,
    );
    register(
        r,
        spec("getParameter").admin_only().help("server parameters"),
        None,
        parameters::get_parameter,
    );
    register(
        r,
        spec("setParameter")
            .admin_only()
            .help("change server parameters"),
        None,
        parameters::set_parameter,
    );
    register(
        r,
        spec("listCommands").help("this list"),
        None,
        small::list_commands,
    );
    register(
        r,
        spec("fsync")
            .admin_only()
            .help("write a checkpoint, and lock the node against writes"),
        None,
        fsync::fsync,
    );
    register(
        r,
        spec("fsyncUnlock")
            .admin_only()
            .help("take back a lock of fsync"),
        None,
        fsync::fsync_unlock,
    );
    register(
        r,
        spec("shutdown").admin_only().help("stop this node"),
        None,
        shutdown::shutdown,
    );
    register(
        r,
        spec("connPoolStats").help("connections to other nodes"),
        None,
        connections::conn_pool_stats,
    );
    register(
        r,
        spec("features").help("build features"),
        None,
        small::features,
    );
}
