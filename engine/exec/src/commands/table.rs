//! The table of commands.

use std::rc::Rc;

use pinion_wire::{AllowedOnSecondary, CommandSpec, Registry};

use super::{
    aggregate, bulk_write, capped, coll_mod, collections, count, create, current_op, cursors,
    delete, distinct, explain, find, find_and_modify, hello, indexes, insert, register, sessions,
    stats, transactions, update,
};
use crate::cluster_time::MemberEpilogue;
use crate::metrics::TopKind;

/// Registers every command of the executor. Called on each core for its own registry.
pub fn register_commands(registry: &mut Registry) {
    registry.set_epilogue(Rc::new(MemberEpilogue));
    data(registry);
    definitions(registry);
    conversation(registry);
    diagnostics(registry);
    super::authenticate::register_authentication(registry);
}

fn data(r: &mut Registry) {
    let spec = CommandSpec::new;
    register(
        r,
        spec("find").read().api_v1().help("query for documents"),
        Some(TopKind::Query),
        find::find,
    );
    register(
        r,
        spec("getMore")
            .read()
            .on_secondary(AllowedOnSecondary::Always)
            .api_v1()
            .help("continue a cursor"),
        Some(TopKind::GetMore),
        cursors::get_more,
    );
    register(
        r,
        spec("killCursors").api_v1().help("close cursors"),
        None,
        cursors::kill_cursors,
    );
    register(
        r,
        spec("insert")
            .write()
            .api_v1()
            .sequences(&["documents"])
            .help("insert documents"),
        Some(TopKind::Insert),
        insert::insert,
    );
    register(
        r,
        spec("update")
            .write()
            .api_v1()
            .sequences(&["updates"])
            .help("update documents"),
        Some(TopKind::Update),
        update::update,
    );
    register(
        r,
        spec("delete")
            .write()
            .api_v1()
            .sequences(&["deletes"])
            .help("delete documents"),
        Some(TopKind::Remove),
        delete::delete,
    );
    register(
        r,
        spec("bulkWrite")
            .write()
            .admin_only()
            .api_v1()
            .sequences(&["ops", "nsInfo"])
            .help("insert, update and delete documents of several collections"),
        None,
        bulk_write::bulk_write,
    );
    register(
        r,
        spec("findAndModify")
            .aliases(&["findandmodify"])
            .write()
            .api_v1()
            .help("change one document and return it"),
        Some(TopKind::Update),
        find_and_modify::find_and_modify,
    );
    register(
        r,
        spec("count")
            .read()
            .no_snapshot()
            .api_v1()
            .help("count documents"),
        Some(TopKind::Command),
        count::count,
    );
    register(
        r,
        spec("distinct").read().help("the values of a field"),
        Some(TopKind::Command),
        distinct::distinct,
    );
    register(
        r,
        spec("aggregate")
            .read()
            .write_concern()
            .on_secondary(AllowedOnSecondary::OptIn)
            .api_v1()
            .help("run a pipeline"),
        Some(TopKind::Command),
        aggregate::aggregate,
    );
    register(
        r,
        spec("explain")
            .read()
            .api_v1()
            .help("tell how a command would run"),
        None,
        explain::explain,
    );
}

fn definitions(r: &mut Registry) {
    let spec = CommandSpec::new;
    let ddl = |name| spec(name).write_concern().api_v1();
    register(
        r,
        ddl("create").help("make a collection"),
        Some(TopKind::Command),
        create::create,
    );
    register(
        r,
        ddl("collMod").help("change a collection, a view or an index"),
        Some(TopKind::Command),
        coll_mod::coll_mod,
    );
    register(
        r,
        ddl("drop").help("drop a collection"),
        Some(TopKind::Command),
        collections::drop,
    );
    register(
        r,
        ddl("dropDatabase").help("drop a database"),
        None,
        collections::drop_database,
    );
    register(
        r,
        spec("renameCollection")
            .write_concern()
            .admin_only()
            .help("rename a collection"),
        None,
        collections::rename_collection,
    );
    register(
        r,
        ddl("cloneCollectionAsCapped").help("copy a collection into a capped one"),
        None,
        capped::clone_collection_as_capped,
    );
    register(
        r,
        ddl("convertToCapped").help("make a collection a capped one"),
        None,
        capped::convert_to_capped,
    );
    register(
        r,
        ddl("createIndexes").help("make indexes"),
        Some(TopKind::Command),
        indexes::create_indexes,
    );
    register(
        r,
        ddl("dropIndexes")
            .aliases(&["deleteIndexes"])
            .help("drop indexes"),
        Some(TopKind::Command),
        indexes::drop_indexes,
    );
    register(
        r,
        spec("listIndexes")
            .on_secondary(AllowedOnSecondary::OptIn)
            .api_v1()
            .help("the indexes of a collection"),
        Some(TopKind::Command),
        indexes::list_indexes,
    );
    register(
        r,
        spec("listCollections")
            .on_secondary(AllowedOnSecondary::OptIn)
            .api_v1()
            .help("the collections of a database"),
        None,
        collections::list_collections,
    );
    register(
        r,
        spec("listDatabases")
            .on_secondary(AllowedOnSecondary::OptIn)
            .admin_only()
            .api_v1()
            .help("the databases"),
        None,
        collections::list_databases,
    );
}

fn conversation(r: &mut Registry) {
    let spec = CommandSpec::new;
    register(
        r,
        spec("hello").api_v1().help("who this node is"),
        None,
        hello::hello,
    );
    register(
        r,
        spec("isMaster")
            .aliases(&["ismaster"])
            .help("who this node is"),
        None,
        hello::is_master,
    );
    register(
        r,
        spec("ping").api_v1().help("whether this node answers"),
        None,
        hello::ping,
    );
    register(
        r,
        spec("buildInfo")
            .aliases(&["buildinfo"])
            .help("version and build"),
        None,
        hello::build_info,
    );
    register(
        r,
        spec("hostInfo").help("the machine"),
        None,
        hello::host_info,
    );
    register(
        r,
        spec("whatsmyuri").help("the client's address"),
        None,
        hello::whats_my_uri,
    );
    register(
        r,
        spec("startSession").help("begin a session"),
        None,
        sessions::start_session,
    );
    register(
        r,
        spec("endSessions").api_v1().help("end sessions"),
        None,
        sessions::end_sessions,
    );
    register(
        r,
        spec("refreshSessions").api_v1().help("keep sessions"),
        None,
        sessions::refresh_sessions,
    );
    register(
        r,
        spec("killSessions").help("kill sessions and what runs in them"),
        None,
        sessions::kill_sessions,
    );
    register(
        r,
        spec("killAllSessions").help("kill all sessions"),
        None,
        sessions::kill_all_sessions,
    );
    register(
        r,
        spec("killAllSessionsByPattern").help("kill all sessions"),
        None,
        sessions::kill_all_sessions_by_pattern,
    );
    let ends = |name| spec(name).admin_only().api_v1().write_concern();
    register(
        r,
        ends("commitTransaction").help("commit a transaction"),
        None,
        transactions::commit_transaction,
    );
    register(
        r,
        ends("abortTransaction").help("abort a transaction"),
        None,
        transactions::abort_transaction,
    );
    register(
        r,
        spec("prepareTransaction")
            .admin_only()
            .for_members()
            .write_concern()
            .help("prepare a transaction for its commit"),
        None,
        transactions::prepare_transaction,
    );
}

fn diagnostics(r: &mut Registry) {
    let spec = CommandSpec::new;
    register(
        r,
        spec("dbStats")
            .aliases(&["dbstats"])
            .help("sizes of a database"),
        None,
        stats::db_stats,
    );
    register(
        r,
        spec("collStats")
            .aliases(&["collstats"])
            .help("sizes of a collection"),
        Some(TopKind::Command),
        stats::coll_stats,
    );
    register(
        r,
        spec("currentOp").admin_only().help("running operations"),
        None,
        current_op::current_op,
    );
    register(
        r,
        spec("killOp").admin_only().help("interrupt an operation"),
        None,
        current_op::kill_op,
    );
    register(
        r,
        spec("getLog").admin_only().help("the last log lines"),
        None,
        hello::get_log,
    );
    register(
        r,
        spec("logRotate").admin_only().help("begin a new log file"),
        None,
        hello::log_rotate,
    );
    register(
        r,
        spec("getCmdLineOpts")
            .admin_only()
            .help("how this node was started"),
        None,
        hello::get_cmd_line_opts,
    );
}
