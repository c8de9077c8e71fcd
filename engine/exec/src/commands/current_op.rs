//! `currentOp` and `killOp`.

use std::collections::BTreeSet;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_catalog::{BuildInfo, core_catalog, stored_document};
use pinion_query::Matcher;
use pinion_runtime::{CoreId, Queue, submit_to};
use pinion_wire::idl::{is_generic_argument, truthy};
use pinion_wire::{ClientInfo, Error, ErrorCode, Invocation, Reply, Result, namespace_named};

use super::first_stage::Shown;
use super::sessions::append_lsid;
use crate::cluster_time::bson_time;
use crate::compute::compute;
use crate::ops::OpSnapshot;
use crate::parameters::server_counters;
use crate::read::IdleCursor;
use crate::state::state;
use crate::transactions::{self, OpenShown};

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
            // There are no users, so all operations are everybody's own.
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
    let parts = pinion_runtime::on_all_cores(|_| async {
        let state = state();
        let clients = server_counters().clients();
        let transactions = (transactions::running(), transactions::idle());
        let (ops, cursors) = (state.ops.snapshot(), state.cursors.idle());
        (ops, cursors, clients, transactions)
    })
    .await;
    let builds = pinion_catalog::index_builds().await;
    let running = parts.iter().flat_map(|(ops, ..)| ops);
    let busy: BTreeSet<i32> = running.map(|op| op.ctx.client.connection_id).collect();
    let mut list = Vec::new();
    for (ops, cursors, clients, (running, idle)) in parts {
        list.extend(ops.iter().map(|op| {
            let lsid = op.ctx.args.lsid.filter(|_| transactions::is_in(&op.ctx));
            let of_op = |shown: &&OpenShown| lsid.is_some_and(|lsid| lsid.id == shown.lsid.id);
            describe(op, shown, running.iter().find(of_op))
        }));
        if shown.idle_sessions {
            list.extend(idle.iter().map(describe_session));
        }
        if shown.idle_cursors {
            list.extend(cursors.iter().map(|cursor| describe_cursor(cursor, shown)));
        }
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

fn kind_of(name: &str) -> &'static str {
    match name {
        "insert" => "insert",
        "update" => "update",
        "delete" => "remove",
        "find" => "query",
        "getMore" => "getmore",
        _ => "command",
    }
}

/// What an operation begins with: who asked for it.
fn of_client(client: &ClientInfo, active: bool) -> DocBuilder {
    let shared = state().shared.clone();
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
    out
}

/// The node's own tasks that wait for their next turn.
async fn idle_tasks() -> Vec<RawDocumentBuf> {
    let expires = submit_to(CoreId(0), Queue::Foreground, || async {
        state().ttl.is_deleting()
    });
    let mut tasks = vec!["clientcursormon"];
    if !expires.await {
        tasks.push("TTLMonitor");
    }
    let describe = |task| {
        let mut out = DocBuilder::new();
        out.append("type", "op")
            .append("host", state().shared.options.host.as_str())
            .append("desc", task)
            .append("active", false)
            .append("currentOpTime", iso_now().as_str());
        out.finish()
    };
    tasks.into_iter().map(describe).collect()
}

/// A connection whose client waits for nothing.
fn describe_idle(client: &ClientInfo) -> RawDocumentBuf {
    of_client(client, false).finish()
}

fn describe(op: &OpSnapshot, shown: Shown, transaction: Option<&OpenShown>) -> RawDocumentBuf {
    let ctx = &op.ctx;
    let mut out = of_client(&ctx.client, true);
    out.append("opid", ctx.op_id);
    if let Some(lsid) = &ctx.args.lsid {
        append_lsid(&mut out, "lsid", lsid);
    }
    out.append("secs_running", op.running.as_secs() as i64)
        .append("microsecs_running", op.running.as_micros() as i64);
    let ns = namespace_named(ctx.command, &ctx.db, stored_document(&op.command));
    out.append("op", kind_of(ctx.command))
        .append("ns", ns.as_str());
    append_command(&mut out, "command", &op.command, shown);
    if let Some(transaction) = transaction {
        append_transaction(&mut out, transaction);
    }
    let work = ctx.work();
    if let Some(plan) = work.plan_summary() {
        out.append("planSummary", plan.as_str());
    }
    if let Some(originating) = work.originating() {
        out.start_document("cursor");
        let id = pinion_bson::get(stored_document(&op.command), "getMore");
        if let Some(id) = id {
            out.append("cursorId", id);
        }
        append_command(&mut out, "originatingCommand", originating, shown);
        out.append("operationUsingCursorId", ctx.op_id).end();
    }
    if ctx.killed().is_some() {
        out.append("killPending", true);
    }
    out.append("numYields", 0i32);
    out.start_document("locks")
        .end()
        .append("waitingForLock", false)
        .start_document("lockStats")
        .end();
    out.append("waitingForFlowControl", work.awaits_ticket())
        .start_document("flowControlStats");
    work.append_tickets(&mut out);
    out.end();
    out.finish()
}

/// A session whose transaction waits for its next statement.
fn describe_session(transaction: &OpenShown) -> RawDocumentBuf {
    let shared = state().shared.clone();
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

/// A build of indexes, which goes on beside the command that asked for it.
fn describe_build((place, build): (usize, &BuildInfo)) -> RawDocumentBuf {
    let shared = state().shared.clone();
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
    let message = build.message();
    let (done, total) = (build.done, build.total);
    let percent = (done * 100).checked_div(total).unwrap_or(100);
    out.append("numYields", 0i32).append(
        "msg",
        format!("{message} {message}: {done}/{total} {percent}%").as_str(),
    );
    out.start_document("progress")
        .append("done", done as i64)
        .append("total", total as i64)
        .end();
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

fn describe_cursor(cursor: &IdleCursor, shown: Shown) -> RawDocumentBuf {
    let shared = state().shared.clone();
    let mut out = DocBuilder::new();
    out.append("type", "idleCursor")
        .append("host", shared.options.host.as_str())
        .append("ns", cursor.ns.as_str());
    if let Some(lsid) = &cursor.session {
        append_lsid(&mut out, "lsid", lsid);
    }
    out.start_document("cursor").append("cursorId", cursor.id);
    out.append("nDocsReturned", cursor.returned as i64)
        .append("nBatchesReturned", cursor.batches as i64);
    out.append("noCursorTimeout", cursor.no_timeout)
        .append("ageMillis", cursor.age.as_millis() as i64)
        .append("idleMillis", cursor.idle.as_millis() as i64);
    append_command(&mut out, "originatingCommand", &cursor.originating, shown);
    out.end();
    out.finish()
}

/// A command document; where that is asked for it is cut when it is large: a batch of inserts would fill the reply.
fn append_command(out: &mut DocBuilder, name: &str, command: &Bytes, shown: Shown) {
    const MOST_BYTES: usize = 1024;
    if !shown.truncated || command.len() <= MOST_BYTES {
        out.append(name, stored_document(command));
        return;
    }
    let mut text = pinion_query::document_text(stored_document(command));
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
    pinion_runtime::on_all_cores(move |_| async move { state().ops.kill(id) }).await;
    pinion_catalog::kill_build(id).await;
    let mut out = Reply::new();
    out.append("info", "attempting to kill op");
    Ok(out)
}
