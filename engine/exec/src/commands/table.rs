//! The handlers of the executor's commands. What is true of each command stands in its row, in
//! `engine/command`.

use std::rc::Rc;

use pinion_service::{authenticate, small_talk};
use pinion_wire::Registry;

use super::{
    aggregate, attach, bulk_write, capped, coll_mod, collections, count, create, current_op,
    cursors, delete, distinct, explain, find, find_and_modify, hello, indexes, insert, sessions,
    stats, transactions, update,
};
use crate::cluster_time::MemberEpilogue;

/// Attaches the handlers of the executor. Called on each core for its own registry.
pub fn register_commands(registry: &mut Registry) {
    registry.set_epilogue(Rc::new(MemberEpilogue));
    data(registry);
    definitions(registry);
    conversation(registry);
    diagnostics(registry);
    attach_authentication(registry);
}

fn data(r: &mut Registry) {
    attach(r, "find", find::find);
    attach(r, "getMore", cursors::get_more);
    attach(r, "killCursors", cursors::kill_cursors);
    attach(r, "insert", insert::insert);
    attach(r, "update", update::update);
    attach(r, "delete", delete::delete);
    attach(r, "bulkWrite", bulk_write::bulk_write);
    attach(r, "findAndModify", find_and_modify::find_and_modify);
    attach(r, "count", count::count);
    attach(r, "distinct", distinct::distinct);
    attach(r, "aggregate", aggregate::aggregate);
    attach(r, "explain", explain::explain);
}

fn definitions(r: &mut Registry) {
    attach(r, "create", create::create);
    attach(r, "collMod", coll_mod::coll_mod);
    attach(r, "drop", collections::drop);
    attach(r, "dropDatabase", collections::drop_database);
    attach(r, "renameCollection", collections::rename_collection);
    attach(
        r,
        "cloneCollectionAsCapped",
        capped::clone_collection_as_capped,
    );
    attach(r, "convertToCapped", capped::convert_to_capped);
    attach(r, "createIndexes", indexes::create_indexes);
    attach(r, "dropIndexes", indexes::drop_indexes);
    attach(r, "listIndexes", indexes::list_indexes);
    attach(r, "listCollections", collections::list_collections);
    attach(r, "listDatabases", collections::list_databases);
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
    attach(r, "commitTransaction", transactions::commit_transaction);
    attach(r, "abortTransaction", transactions::abort_transaction);
    attach(r, "prepareTransaction", transactions::prepare_transaction);
}

fn diagnostics(r: &mut Registry) {
    attach(r, "dbStats", stats::db_stats);
    attach(r, "collStats", stats::coll_stats);
    attach(r, "currentOp", current_op::current_op);
    attach(r, "killOp", current_op::kill_op);
    attach(r, "getLog", small_talk::get_log);
    attach(r, "logRotate", small_talk::log_rotate);
    attach(r, "getCmdLineOpts", small_talk::get_cmd_line_opts);
}

fn attach_authentication(r: &mut Registry) {
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
