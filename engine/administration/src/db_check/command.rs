//! The command: it checks what it is asked for, and leaves it to the task of core 0.

use bytes::Bytes;
use pinion_catalog::{
    Collection, check_not_view, check_v44_can_follow, core_catalog, is_replicated,
};
use pinion_exec::topology::{is_member, is_writable, not_primary};
use pinion_runtime::{CoreId, Queue, submit_to};
use pinion_service::ops::ops;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::digest::{OWN_ENTRIES, has_own_entries, is_compared};
use super::options::{Request, Target, ValidateMode, invalid};
use super::range::Range;
use super::runner::Run;
use crate::db_check::db_check_tasks;
use crate::limits::{MAX_CHECK_COMMAND_BYTES, MAX_QUEUED_CHECKS};

/// `dbCheck`. It answers before anything is read.
pub(crate) async fn db_check(cmd: Invocation) -> Result<Reply> {
    if !is_member() {
        return Err(Error::new(
            ErrorCode::NO_REPLICATION_ENABLED,
            "dbCheck compares the members of a replica set, and this node is in none",
        ));
    }
    let request = Request::read(&cmd.reader()?, cmd.db())?;
    check_v44_can_follow(true, "dbCheck")?;
    check_target(&request)?;
    let command = cmd.message.body_bytes();
    if command.len() > MAX_CHECK_COMMAND_BYTES {
        return Err(Error::new(
            ErrorCode::BSON_OBJECT_TOO_LARGE,
            format!("dbCheck takes a command of at most {MAX_CHECK_COMMAND_BYTES} bytes"),
        ));
    }
    // It may wait for long, and is a part of what came with it.
    let command = Bytes::copy_from_slice(&command);
    let (op_id, db) = (cmd.ctx.op_id, cmd.db().to_owned());
    submit_to(CoreId(0), Queue::Foreground, move || async move {
        enqueue(op_id, &db, command, request)
    })
    .await?;
    Ok(Reply::new())
}

fn check_target(request: &Request) -> Result<()> {
    let catalog = core_catalog().current();
    match &request.target {
        Target::Database(db) if db == "local" => Err(not_replicated(db)),
        Target::Database(db) => match catalog.collections_of(db).next() {
            Some(_) => Ok(()),
            None => Err(not_found(format!("Database {db} not found"))),
        },
        Target::Collection(ns) => {
            check_not_view(&catalog, ns)?;
            if !is_replicated(ns) {
                return Err(not_replicated(ns.as_str()));
            }
            match catalog.get(ns) {
                None => Err(not_found(format!("Collection {ns} not found"))),
                Some(found) if is_compared(found) => check_index(found, request),
                Some(_) => Err(not_compared(ns)),
            }
        }
    }
}

/// The index may be another one when the turn of the run comes.
fn check_index(collection: &Collection, request: &Request) -> Result<()> {
    let checks = &request.checks;
    if checks.mode != ValidateMode::ExtraKeys {
        return Ok(());
    }
    if has_own_entries(collection) {
        return Err(invalid(OWN_ENTRIES));
    }
    match collection.index(&checks.index) {
        Some(index) => {
            Range::of_entries(index, request.start.as_ref(), request.end.as_ref()).map(drop)
        }
        None => Ok(()),
    }
}

fn not_found(message: String) -> Error {
    Error::new(ErrorCode::NAMESPACE_NOT_FOUND, message)
}

fn not_replicated(name: &str) -> Error {
    Error::new(
        ErrorCode::INVALID_NAMESPACE,
        format!("Cannot run dbCheck on {name} because it is not replicated"),
    )
}

fn not_compared(ns: &Namespace) -> Error {
    Error::new(
        ErrorCode::INVALID_NAMESPACE,
        format!("Cannot run dbCheck on {ns} because each member keeps it in its own form"),
    )
}

/// Puts a run behind those that wait. On core 0.
fn enqueue(op_id: i32, db: &str, command: Bytes, request: Request) -> Result<()> {
    // A step-down ends what is queued by now.
    if !is_writable() {
        return Err(not_primary());
    }
    let tasks = &db_check_tasks();
    let mut runs = tasks.runs.borrow_mut();
    if runs.len() >= MAX_QUEUED_CHECKS {
        return Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!("{MAX_QUEUED_CHECKS} dbCheck commands run or wait already"),
        ));
    }
    let ctx = OpContext::internal(
        op_id,
        pinion_command::row("dbCheck"),
        db,
        pinion_runtime::now().as_nanos(),
    );
    runs.push_back(Run {
        _listed: ops().enter_background(ctx.clone(), command),
        ctx,
        request,
    });
    tasks.changed.notify_all();
    Ok(())
}
