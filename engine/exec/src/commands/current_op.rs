//! `currentOp` and `killOp`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{BuildInfo, ClosedBy, GateAccess, GateMode, core_catalog, stored_document};
use pinion_query::Matcher;
use pinion_runtime::{CoreId, Queue, submit_to};
use pinion_service::compute::compute;
use pinion_service::cursors::{ShownCursor, cursors};
use pinion_service::node_info::node_info;
use pinion_service::ops::{OpSnapshot, ops};
use pinion_service::parameters::server_counters;
use pinion_service::users::{append_users, authenticated_user};
use pinion_wire::idl::{is_generic_argument, truthy};
use pinion_wire::{
    ClientInfo, Error, ErrorCode, GateKind, Invocation, OpWork, Reply, Result, namespace_named,
    shown_body,
};

use super::first_stage::Shown;
use crate::cluster_time::bson_time;
use crate::open_transactions::OpenShown;
use crate::transactions;
use pinion_wire::idl::append_lsid;

/// `currentOp`: the fields beside its options are a filter.
pub(crate) async fn current_op(cmd: Invocation) -> Result<Reply> {
    let mut filter = DocBuilder::new();
    let mut shown = Shown {
        truncated: true,
        idle_sessions: true,
        ..Shown::default()
    };
    for (name, value) in pinion_bson::elements(cmd.body()).skip(1) {
        match name {
            "$all" => shown.idle_connections = truthy(value),
            "$truncateOps" => shown.truncated = truthy(value),
            // Nothing is denied to any user, so every operation is every client's own.
            "$ownOps" => {}
            name if is_generic_argument(name) => {}
            name => {
                filter.append_raw(name, value);
            }
        }
    }
    let filter = filter.finish();
    let matcher = compute(&cmd.ctx, || Matcher::parse(&filter)).await?;
    let mut out = Reply::new();
    out.start_array("inprog");
    for op in operations(shown).await {
        if compute(&cmd.ctx, || matcher.matches(&op)).await? {
            out.push(&*op);
        }
    }
    out.end();
    if core_catalog().gates().is_locked() {
        out.append("fsyncLock", true).append(
            "info",
            "use db.fsyncUnlock() to terminate the fsync write/snapshot lock",
        );
    }
    Ok(out)
}

/// The documents of `currentOp`, and of `$currentOp`, which shows idle cursors and connections too.
pub(super) async fn operations(shown: Shown) -> Vec<RawDocumentBuf> {
    let parts = pinion_runtime::on_all_cores(move |_| async move {
        let clients = server_counters().clients();
        let transactions = (transactions::running(), transactions::idle());
        let ops = ops().snapshot();
        let cursors = cursors().shown(shown.idle_cursors);
        (ops, cursors, clients, transactions, awaited_locks())
    })
    .await;
    let builds = pinion_catalog::index_builds().await;
    let running = parts.iter().flat_map(|(ops, ..)| ops);
    let busy: BTreeSet<i32> = running.map(|op| op.ctx.client.connection_id).collect();
    let waiting: BTreeMap<i32, Awaited> = parts.iter().flat_map(|part| &part.4).copied().collect();
    // A cursor may be of another core than the connection that uses it.
    let cursors = parts.iter().flat_map(|(_, cursors, ..)| cursors);
    let used_by = |cursor: &ShownCursor| cursor.used_by.map(|op_id| (op_id, cursor.clone()));
    let used: BTreeMap<i32, ShownCursor> = cursors.filter_map(used_by).collect();
    let mut list = Vec::new();
    for (ops, cursors, clients, (running, idle), _) in parts {
        list.extend(ops.iter().map(|op| {
            let lsid = op
                .ctx
                .args
                .lsid
                .filter(|_| pinion_service::session_ids::is_in(&op.ctx));
            let of_op = |shown: &&OpenShown| {
                lsid.is_some_and(|lsid| lsid.id == shown.lsid.id && lsid.child == shown.lsid.child)
            };
            let waits_for = waiting.get(&op.ctx.op_id).copied();
            let around = Around {
                transaction: running.iter().find(of_op),
                cursor: used.get(&op.ctx.op_id),
                waits_for,
            };
            describe(op, shown, around)
        }));
        if shown.idle_sessions {
            list.extend(idle.iter().map(describe_session));
        }
        let idle_cursors = cursors.iter().filter(|cursor| cursor.used_by.is_none());
        list.extend(idle_cursors.map(|cursor| describe_cursor(cursor, shown)));
        if shown.idle_connections {
            let idle = clients
                .iter()
                .filter(|client| !busy.contains(&client.connection_id));
            list.extend(idle.map(|client| describe_idle(client)));
        }
    }
    if shown.idle_connections {
        list.extend(idle_tasks().await);
    }
    list.extend(builds.iter().enumerate().map(describe_build));
    list
}

/// A lock that an operation waits for.
#[derive(Clone, Copy)]
struct Awaited {
    /// What it is of, and its mode.
    lock: (&'static str, &'static str),
    by_critical_section: bool,
}

impl Awaited {
    fn new(of: &'static str, mode: &'static str) -> Awaited {
        Awaited {
            lock: (of, mode),
            by_critical_section: false,
        }
    }
}

/// The operations of this core that wait in front of a gate or the node's lock, or for those behind
/// a gate, and the changes of the catalog that wait for others.
fn awaited_locks() -> Vec<(i32, Awaited)> {
    let catalog = core_catalog();
    let gates = catalog.gates();
    let entering = ops().waiting().into_iter();
    let entering = entering.map(|(op_id, kind, ns)| {
        let (mode, access) = match kind {
            GateKind::Read => ("r", GateAccess::ReadAndStay),
            GateKind::Write => ("w", GateAccess::Write),
        };
        if kind == GateKind::Write && gates.is_locked() {
            return (op_id, Awaited::new("Global", mode));
        }
        let by_critical_section = gates.closed_by(&ns, access) == Some(ClosedBy::CriticalSection);
        let lock = ("Collection", mode);
        let awaited = Awaited {
            lock,
            by_critical_section,
        };
        (op_id, awaited)
    });
    let closing = gates.closing().into_iter();
    let closing = closing.map(|(op_id, mode)| match mode {
        // Closing a gate to all waits for the operations that stay behind it.
        GateMode::NoStaying | GateMode::Closed => (op_id, Awaited::new("Collection", "W")),
        GateMode::Open | GateMode::NoWrites => (op_id, Awaited::new("Collection", "R")),
    });
    let locked_out = gates.locked_out().into_iter();
    let locked_out = locked_out.map(|op_id| (op_id, Awaited::new("Global", "w")));
    let changing = pinion_catalog::awaited_locks().into_iter();
    let changing = changing.map(|awaited| {
        let of = match awaited.is_of_database {
            true => "Database",
            false => "Collection",
        };
        let lock = Awaited {
            lock: (of, "W"),
            by_critical_section: awaited.by_critical_section,
        };
        (awaited.op_id, lock)
    });
    let waiting = entering.chain(closing).chain(locked_out);
    waiting.chain(changing).collect()
}

/// What an operation begins with: the client that asked for it.
fn of_client(client: &ClientInfo, active: bool) -> DocBuilder {
    let shared = node_info();
    let mut out = DocBuilder::new();
    out.append("type", "op")
        .append("host", shared.options.host.as_str());
    out.append("desc", format!("conn{}", client.connection_id).as_str())
        .append("connectionId", client.connection_id);
    if let Some(remote) = client.remote {
        out.append("client", remote.to_string().as_str());
    }
    if let Some(metadata) = client.metadata() {
        if let Some(name) = &metadata.app_name {
            out.append("appName", name.as_str());
        }
        out.append("clientMetadata", &*metadata.document);
    }
    out.append("active", active)
        .append("currentOpTime", iso_now().as_str());
    if authenticated_user(client).is_some() {
        append_users(client, "effectiveUsers", &mut out);
    }
    out
}

/// The node's own tasks.
const TASKS: [&str; 2] = ["clientcursormon", "TTLMonitor"];

/// Those of the node's own tasks that wait for their next turn.
async fn idle_tasks() -> Vec<RawDocumentBuf> {
    let busy = submit_to(CoreId(0), Queue::Foreground, || async {
        ops().busy_tasks()
    });
    let busy = busy.await;
    let tasks = TASKS.into_iter().filter(|task| !busy.contains(task));
    let describe = |task| {
        let mut out = DocBuilder::new();
        out.append("type", "op")
            .append("host", node_info().options.host.as_str())
            .append("desc", task)
            .append("active", false)
            .append("currentOpTime", iso_now().as_str());
        out.finish()
    };
    tasks.map(describe).collect()
}

/// A connection whose client waits for nothing.
fn describe_idle(client: &ClientInfo) -> RawDocumentBuf {
    of_client(client, false).finish()
}

/// What an operation is in, has and waits for.
#[derive(Clone, Copy)]
struct Around<'a> {
    transaction: Option<&'a OpenShown>,
    cursor: Option<&'a ShownCursor>,
    waits_for: Option<Awaited>,
}

fn describe(op: &OpSnapshot, shown: Shown, around: Around<'_>) -> RawDocumentBuf {
    let ctx = &op.ctx;
    let mut out = of_client(&ctx.client, true);
    out.append("opid", ctx.op_id);
    if let Some(lsid) = &ctx.args.lsid {
        append_lsid(&mut out, "lsid", lsid);
    }
    out.append("secs_running", op.running.as_secs() as i64)
        .append("microsecs_running", op.running.as_micros() as i64);
    let ns = namespace_named(ctx.command, &ctx.db, stored_document(&op.command));
    out.append("op", ctx.command.op.name())
        .append("ns", ns.as_str());
    let command = shown_body(ctx.command.name, stored_document(&op.command));
    append_command(&mut out, "command", &command, shown);
    if let Some(transaction) = around.transaction {
        append_transaction(&mut out, transaction);
    }
    let work = ctx.work();
    let of_cursor = around.cursor.and_then(|cursor| cursor.plan_summary.clone());
    if let Some(plan) = work.plan_summary().map(Arc::from).or(of_cursor) {
        out.append("planSummary", &*plan);
    }
    if let Some(cursor) = around.cursor {
        append_cursor(&mut out, cursor, shown);
    }
    if ctx.killed().is_some() {
        out.append("killPending", true);
    }
    if let Some(progress) = &op.progress {
        append_progress(&mut out, "Validate", progress.counts());
    }
    out.append("numYields", work.yields() as i32);
    append_locks(&mut out, work, around.waits_for);
    out.append("waitingForFlowControl", work.awaits_ticket())
        .start_document("flowControlStats");
    work.append_tickets(&mut out);
    out.end();
    out.finish()
}

/// The gates that an operation has passed, or waits for, as locks of collections.
fn append_locks(out: &mut DocBuilder, work: &OpWork, waits_for: Option<Awaited>) {
    let mut stats = DocBuilder::new();
    work.append_locks(&mut stats);
    let stats = stats.finish();
    let counts = stats.get_document("Collection").ok();
    let passed = counts.and_then(|counts| counts.get_document("acquireCount").ok());
    let has_written = passed.is_some_and(|passed| pinion_bson::get(passed, "w").is_some());
    let held = passed.map(|_| if has_written { "w" } else { "r" });
    out.start_document("locks");
    match (waits_for.map(|awaited| awaited.lock), held) {
        (Some(("Collection", "r")) | None, Some(mode)) => {
            out.append("Collection", mode);
        }
        (Some((lock, mode)), _) => {
            out.append(lock, mode);
        }
        (None, None) => {}
    }
    out.end().append("waitingForLock", waits_for.is_some());
    if waits_for.is_some_and(|awaited| awaited.by_critical_section) {
        out.append("waitingForCriticalSection", true);
    }
    out.append("lockStats", &*stats);
}

/// A session whose transaction waits for its next statement.
fn describe_session(transaction: &OpenShown) -> RawDocumentBuf {
    let shared = node_info();
    let mut out = DocBuilder::new();
    out.append("type", "idleSession")
        .append("host", shared.options.host.as_str())
        .append("desc", "inactive transaction");
    append_lsid(&mut out, "lsid", &transaction.lsid);
    append_transaction(&mut out, transaction);
    out.append("waitingForLock", false).append("active", false);
    out.start_document("locks").end();
    out.finish()
}

/// Appends `transaction`: one that is open, as operations and sessions show it.
fn append_transaction(out: &mut DocBuilder, transaction: &OpenShown) {
    let iso = |ms| {
        let date = pinion_bson::DateTime::from_millis(ms);
        date.try_to_rfc3339_string().unwrap_or_default()
    };
    out.start_document("transaction")
        .start_document("parameters")
        .append("txnNumber", transaction.number)
        .append("autocommit", false)
        .start_document("readConcern");
    let concern = &transaction.read_concern;
    if let Some(level) = concern.level {
        out.append("level", level.name());
    }
    for (name, time) in [
        ("afterClusterTime", concern.after_cluster_time),
        ("atClusterTime", concern.at_cluster_time),
    ] {
        if let Some(time) = time {
            out.append(name, bson_time(time));
        }
    }
    let open_us = transaction.started.elapsed().as_micros() as i64;
    let active_us = (transaction.active.as_micros() as i64).min(open_us);
    out.end().end();
    out.append("readTimestamp", bson_time(transaction.at));
    out.append(
        "startWallClockTime",
        iso(transaction.started_wall_ms).as_str(),
    )
    .append("timeOpenMicros", open_us)
    .append("timeActiveMicros", active_us)
    .append("timeInactiveMicros", open_us - active_us);
    if let Some(prepared) = transaction.prepared {
        let us = prepared.elapsed().as_micros() as i64;
        out.append("timePreparedMicros", us);
    }
    if let Some(expires) = transaction.expires {
        let left_ms = expires.saturating_since(pinion_runtime::now()).as_millis();
        let date = iso(pinion_runtime::wall_ms() + left_ms as i64);
        out.append("expiryTime", date.as_str());
    }
    out.end();
}

/// A build of indexes, which continues beside the command that asked for it.
fn describe_build((place, build): (usize, &BuildInfo)) -> RawDocumentBuf {
    let shared = node_info();
    let mut out = DocBuilder::new();
    out.append("type", "op")
        .append("host", shared.options.host.as_str())
        .append(
            "desc",
            format!("IndexBuildsCoordinatorMongod-{place}").as_str(),
        )
        .append("active", true)
        .append("currentOpTime", iso_now().as_str())
        .append("opid", build.op_id);
    let running = build.started.elapsed();
    out.append("secs_running", running.as_secs() as i64)
        .append("microsecs_running", running.as_micros() as i64)
        .append("op", "command")
        .append("ns", build.ns.as_str());
    out.start_document("command")
        .append("createIndexes", build.ns.collection())
        .start_array("indexes");
    for index in &build.indexes {
        out.push(&**index);
    }
    out.end()
        .append("buildUUID", build.uuid.to_bson())
        .append("$db", build.ns.db())
        .end();
    out.append("numYields", 0i32);
    append_progress(&mut out, build.message(), (build.done, build.total));
    out.start_document("locks")
        .end()
        .append("waitingForLock", false)
        .start_document("lockStats")
        .end();
    out.append("waitingForFlowControl", false)
        .start_document("flowControlStats")
        .end();
    out.finish()
}

/// How far something has come that takes long.
fn append_progress(out: &mut DocBuilder, message: &str, (done, total): (u64, u64)) {
    let percent = (done * 100).checked_div(total).unwrap_or(100);
    out.append(
        "msg",
        format!("{message} {message}: {done}/{total} {percent}%").as_str(),
    );
    out.start_document("progress")
        .append("done", done as i64)
        .append("total", total as i64)
        .end();
}

fn describe_cursor(cursor: &ShownCursor, shown: Shown) -> RawDocumentBuf {
    let shared = node_info();
    let mut out = DocBuilder::new();
    out.append("type", "idleCursor")
        .append("host", shared.options.host.as_str())
        .append("ns", cursor.ns.as_str());
    if let Some(lsid) = &cursor.session {
        append_lsid(&mut out, "lsid", lsid);
    }
    if let Some(plan) = &cursor.plan_summary {
        out.append("planSummary", &**plan);
    }
    append_cursor(&mut out, cursor, shown);
    out.finish()
}

/// Appends `cursor`: one that is idle, or that an operation uses.
fn append_cursor(out: &mut DocBuilder, cursor: &ShownCursor, shown: Shown) {
    let date = |ms| RawBsonRef::DateTime(DateTime::from_millis(ms));
    out.start_document("cursor")
        .append("cursorId", cursor.id)
        .append("createdDate", date(cursor.created_ms))
        .append("lastAccessDate", date(cursor.last_used_ms))
        .append("nDocsReturned", cursor.returned as i64)
        .append("nBatchesReturned", cursor.batches as i64)
        .append("noCursorTimeout", cursor.no_timeout)
        .append("tailable", cursor.tailable)
        .append("awaitData", cursor.awaits_data);
    let originating = stored_document(&cursor.originating);
    append_command(out, "originatingCommand", originating, shown);
    if let Some(op_id) = cursor.used_by {
        out.append("operationUsingCursorId", op_id);
    }
    out.end();
}

/// A command document; where that is asked for it is cut when it is large: a batch of inserts would
/// fill the reply.
fn append_command(out: &mut DocBuilder, name: &str, command: &RawDocument, shown: Shown) {
    const MOST_BYTES: usize = 1024;
    if !shown.truncated || command.as_bytes().len() <= MOST_BYTES {
        out.append(name, command);
        return;
    }
    let mut text = pinion_query::document_text(command);
    let mut end = MOST_BYTES;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    out.start_document(name)
        .append("$truncated", text.as_str())
        .end();
}

/// The present time as `currentOp` writes it.
fn iso_now() -> String {
    let ms = pinion_runtime::wall_ms();
    pinion_bson::DateTime::from_millis(ms)
        .try_to_rfc3339_string()
        .unwrap_or_default()
}

/// `killOp`.
pub(crate) async fn kill_op(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let id = match reader.value("op") {
        None => {
            return Err(Error::new(
                pinion_wire::ErrorCode::NO_SUCH_KEY,
                "Did not provide \"op\" field",
            ));
        }
        Some(value) => match pinion_wire::idl::i64_exact(value) {
            Some(id) if i32::try_from(id).is_ok() => id as i32,
            Some(id) => {
                return Err(Error::new(
                    ErrorCode(26823),
                    format!("invalid op : {id}. Op ID cannot be represented with 32 bits"),
                ));
            }
            None if pinion_wire::idl::is_number(value) => {
                return Err(Error::bad_value(format!(
                    "Expected field \"op\" to have a value exactly representable as a 64-bit integer, but found op: {}",
                    pinion_query::value_text(value)
                )));
            }
            None => {
                return Err(Error::type_mismatch(format!(
                    "Expected field \"op\" to have numeric type, but found {}",
                    pinion_wire::idl::idl_type_name(value.element_type())
                )));
            }
        },
    };
    reader.ignore(&["killOp"]);
    reader.finish()?;
    pinion_runtime::on_all_cores(move |_| async move { ops().kill(id) }).await;
    pinion_catalog::kill_build(id).await;
    let mut out = Reply::new();
    out.append("info", "attempting to kill op");
    Ok(out)
}
