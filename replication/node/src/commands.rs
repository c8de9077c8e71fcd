//! The commands of a member: of operators, and of other members.

use std::future::Future;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_exec::attach;
use pinion_replication_protocol::config::{Config, Initiate};
use pinion_replication_protocol::message::{
    HeartbeatRequest, StepDown, UpdatePosition, VoteRequest, parse_freeze, parse_maintenance,
    parse_step_up, parse_sync_from,
};
use pinion_replication_protocol::node::{Command, Node};
use pinion_runtime::{CoreId, Duration, Instant, Queue, submit_to, timeout_at};
use pinion_service::node_info::node_info;
use pinion_wire::idl::WriteConcern;
use pinion_wire::{Error, ErrorCode, Invocation, Registry, Reply, Result, interruption};

use crate::driver::{Driver, awaited_driver};
use crate::effects::{locate, locate_for_initiate, new_set_id};
use crate::idle::is_config_server;

/// Attaches the handlers of the commands of a member. Called on each core for its own registry.
pub fn register_commands(r: &mut Registry) {
    attach(r, "replSetInitiate", initiate);
    attach(r, "replSetReconfig", reconfig);
    attach(r, "replSetGetConfig", get_config);
    attach(r, "replSetGetStatus", get_status);
    attach(r, "replSetGetRBID", get_rollback_id);
    attach(r, "replSetHeartbeat", heartbeat);
    attach(r, "replSetRequestVotes", request_votes);
    attach(r, "replSetUpdatePosition", update_position);
    attach(r, "replSetStepDown", step_down);
    attach(r, "replSetStepUp", step_up);
    attach(r, "replSetFreeze", freeze);
    attach(r, "replSetMaintenance", maintenance);
    attach(r, "replSetSyncFrom", sync_from);
    attach(r, "replSetAbortPrimaryCatchUp", abort_catch_up);
    attach(r, "replSetResizeOplog", resize_oplog);
    attach(r, "_isSelf", is_self);
    crate::copy_source::attach_commands(r);
}

/// Runs something where the member is driven.
async fn at_driver<F, Fut>(run: F) -> Result<RawDocumentBuf>
where
    F: FnOnce(Rc<Driver>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<RawDocumentBuf>> + 'static,
{
    submit_to(CoreId(0), Queue::Foreground, move || async move {
        match awaited_driver().await {
            Some(driver) => run(driver).await,
            None => Err(Driver::not_initialized()),
        }
    })
    .await
}

async fn answer<F, Fut>(run: F) -> Result<Reply>
where
    F: FnOnce(Rc<Driver>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<RawDocumentBuf>> + 'static,
{
    let document = at_driver(run).await?;
    Ok(Reply::from_document(&document))
}

async fn command(command: Command) -> Result<Reply> {
    answer(move |driver| async move { driver.command(command).await }).await
}

/// Waits until members hold what was written up to `ts`.
///
/// # Errors
/// The concern cannot be satisfied, or this node is no primary any more.
pub(crate) async fn await_members(ts: Timestamp, concern: WriteConcern) -> Result<()> {
    let command = Command::AwaitWriteConcern { ts, concern };
    at_driver(move |driver| async move { driver.command(command).await }).await?;
    Ok(())
}

async fn initiate(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let document = match reader.value("replSetInitiate") {
        Some(RawBsonRef::Document(document)) => document.to_owned(),
        _ => RawDocumentBuf::new(),
    };
    tracing::info!(target: "REPL", id = 21_356u64, ctx = of_client(&cmd), "replSetInitiate admin command received from client");
    answer(move |driver| async move {
        if driver.with_node(|node| node.config().is_some()) {
            return Err(Error::new(
                ErrorCode::ALREADY_INITIALIZED,
                "already initialized",
            ));
        }
        let asked = Initiate {
            set_name: &driver.options.set_name,
            document: &document,
            host: driver.host.clone(),
            is_config_server: is_config_server(),
            replica_set_id: new_set_id(),
        };
        let config = asked.config()?;
        let self_index = locate_for_initiate(&driver.peers, &config).await?;
        driver
            .command(Command::Initiate { config, self_index })
            .await?;
        let mut reply = DocBuilder::new();
        if document.is_empty() {
            reply
                .append(
                    "info2",
                    "no configuration specified. Using a default configuration for the set",
                )
                .append("me", driver.host.to_string().as_str());
        }
        Ok(reply.finish())
    })
    .await
}

async fn reconfig(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let document = reader.doc("replSetReconfig")?.to_owned();
    let force = reader.value("force").is_some_and(pinion_wire::idl::truthy);
    reader.ignore(&["maxTimeMS"]);
    reader.finish()?;
    let deadline = cmd.ctx.deadline_ns.map(Instant::from_nanos);
    tracing::info!(target: "REPL", id = 21_352u64, ctx = of_client(&cmd), force, "replSetReconfig admin command received from client");
    answer(move |driver| async move {
        let changed = change_config(&driver, &document, force);
        match deadline {
            None => changed.await,
            // The configuration may be in force by then, and not known to a majority yet.
            Some(deadline) => timeout_at(deadline, changed)
                .await
                .unwrap_or_else(|_| Err(interruption(ErrorCode::MAX_TIME_MS_EXPIRED))),
        }
    })
    .await
}

async fn change_config(
    driver: &Rc<Driver>,
    document: &RawDocument,
    force: bool,
) -> Result<RawDocumentBuf> {
    let Some(current) = driver.with_node(|node| node.config().cloned()) else {
        return Err(Driver::not_initialized());
    };
    let config = Config::parse(document)?.with_identity_of(&current);
    if !force && config.default_is_majority() != current.default_is_majority() {
        check_default_write_concern().await?;
    }
    let self_index = locate(&driver.peers, &config).await;
    let asked = Command::Reconfig {
        config,
        self_index,
        force,
    };
    driver.command(asked).await
}

/// "conn7", as the log names the sender of a command.
fn of_client(cmd: &Invocation) -> String {
    format!("conn{}", cmd.ctx.client.connection_id)
}

/// Commands that name no write concern must not wait for fewer members all of a sudden, or for
/// more.
async fn check_default_write_concern() -> Result<()> {
    match pinion_exec::has_default_write_concern().await {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE,
            "Reconfig attempted to install a config that would change the implicit default write concern. Use the setDefaultRWConcern command to set a cluster-wide write concern and try the reconfig again.",
        )),
    }
}

async fn get_config(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["replSetGetConfig"]);
    let with_status = reader.opt_given_bool("commitmentStatus")?.unwrap_or(false);
    reader.finish()?;
    answer(move |driver| async move { driver.with_node(|node| node.get_config(with_status)) }).await
}

async fn get_status(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    // A shell says by `forShell` that it asks for its prompt alone.
    reader.ignore(&["replSetGetStatus", "forShell"]);
    let initial_sync = reader.opt_given_bool("initialSync")?.unwrap_or(true);
    reader.finish()?;
    answer(move |driver| async move { driver.status(initial_sync) }).await
}

async fn get_rollback_id(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["replSetGetRBID"]);
    reader.finish()?;
    answer(|driver| async move { Ok(rawdoc! { "rbid": driver.with_node(Node::rollback_id) }) })
        .await
}

async fn heartbeat(cmd: Invocation) -> Result<Reply> {
    command(Command::Heartbeat(HeartbeatRequest::parse(cmd.body())?)).await
}

async fn request_votes(cmd: Invocation) -> Result<Reply> {
    command(Command::Votes(VoteRequest::parse(cmd.body())?)).await
}

async fn update_position(cmd: Invocation) -> Result<Reply> {
    command(Command::Position(UpdatePosition::parse(cmd.body())?)).await
}

async fn step_down(cmd: Invocation) -> Result<Reply> {
    command(Command::StepDown(StepDown::parse(cmd.body())?)).await
}

async fn step_up(cmd: Invocation) -> Result<Reply> {
    let skip_dry_run = parse_step_up(cmd.body())?;
    command(Command::StepUp { skip_dry_run }).await
}

async fn freeze(cmd: Invocation) -> Result<Reply> {
    let secs = parse_freeze(cmd.body())?;
    command(Command::Freeze { secs }).await
}

async fn maintenance(cmd: Invocation) -> Result<Reply> {
    let begins = parse_maintenance(cmd.body())?;
    command(Command::Maintenance { begins }).await
}

async fn sync_from(cmd: Invocation) -> Result<Reply> {
    let host = parse_sync_from(cmd.body())?;
    command(Command::SyncFrom { host }).await
}

async fn abort_catch_up(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["replSetAbortPrimaryCatchUp"]);
    reader.finish()?;
    command(Command::AbortPrimaryCatchUp).await
}

async fn resize_oplog(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["replSetResizeOplog"]);
    let within = |name: &str, least: f64, most: f64| -> Result<Option<f64>> {
        let value = reader.opt_f64(name)?;
        let bound = |relation, bound| {
            Err(Error::bad_value(format!(
                "BSON field '{name}' value must be {relation} {bound}, actual value '{}'",
                value.unwrap_or(f64::NAN)
            )))
        };
        match value {
            Some(value) if value.is_nan() || value < least => bound(">=", least),
            Some(value) if value > most => bound("<=", most),
            value => Ok(value),
        }
    };
    let megabytes = within("size", MIN_RESIZED_MB, MAX_RESIZED_MB)?;
    let hours = within("minRetentionHours", 0.0, f64::MAX)?;
    reader.finish()?;
    answer(move |driver| async move {
        let mut retention = driver.retention.get();
        if let Some(megabytes) = megabytes {
            retention.bytes = (megabytes * f64::from(1 << 20)) as u64;
            pinion_instance::store_oplog_bytes(retention.bytes).await?;
        }
        if let Some(hours) = hours {
            let secs = (hours * 3600.0).min(MAX_RETENTION_SECS);
            retention.min_age = Duration::from_secs_f64(secs);
        }
        pinion_instance::show_oplog(retention).await?;
        driver.retention.set(retention);
        Ok(RawDocumentBuf::new())
    })
    .await
}

/// The bounds of `replSetResizeOplog`, as MongoDB's.
const MIN_RESIZED_MB: f64 = 990.0;
const MAX_RESIZED_MB: f64 = 1e9;
/// A hundred years: longer is for ever.
const MAX_RETENTION_SECS: f64 = 3.2e9;

async fn is_self(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["_isSelf"]);
    reader.finish()?;
    let mut out = Reply::new();
    out.append("id", node_info().process_id);
    Ok(out)
}
