//! `hello` and `isMaster`, as a standalone and as a member of a replica set answer them; `ping`,
//! `buildInfo`, `hostInfo` and other small talk.

use std::sync::mpsc::TryRecvError;

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocument, rawdoc};
use pinion_runtime::{Duration, sleep};
use pinion_service::interrupt::interruptible;
use pinion_service::limits::SESSION_TIMEOUT;
use pinion_service::metrics::Gauge;
use pinion_service::node_info::{NodeInfo, node_info};
use pinion_service::ops::is_of_client;
use pinion_service::parameters::LogControl;
use pinion_wire::idl::{CommandReader, Types, is_number, missing_field, wrong_type};
use pinion_wire::{
    COMPATIBLE_VERSION, ClientInfo, ClientMetadata, Compressor, Error, ErrorCode, Invocation,
    Reply, Result,
};

use super::authenticate::{append_mechanisms, append_speculative};
use super::status_member::append_member;
use crate::cluster_time::append_topology_version;
use crate::topology::{ReplicaSet, SetView, replica_set};

/// With 25 a driver sends `bulkWrite`, and updates of one document with `sort`.
pub const MAX_WIRE_VERSION: i32 = 25;

/// `hello`.
pub(crate) async fn hello(cmd: Invocation) -> Result<Reply> {
    answer(&cmd, "isWritablePrimary").await
}

/// `isMaster` and `ismaster`.
pub(crate) async fn is_master(cmd: Invocation) -> Result<Reply> {
    answer(&cmd, "ismaster").await
}

async fn answer(cmd: &Invocation, role: &str) -> Result<Reply> {
    let reader = cmd.reader()?;
    let hello_ok = reader.opt_safe_bool("helloOk")?.unwrap_or(false);
    // What they say is of no consequence here: clients of a node are behind no load balancer, and
    // stay when it steps down.
    for flag in ["loadBalanced", "forShell", "hangUpOnStepDown"] {
        reader.opt_safe_bool(flag)?;
    }
    reader.opt_str("hostInfo")?;
    if let Some(user) = reader.value("saslSupportedMechs") {
        check_user_name(user)?;
    }
    if let Some(client) = reader.opt_doc("client")? {
        let metadata = ClientMetadata::parse(client)?;
        cmd.ctx.client.set_metadata(metadata)?;
    }
    if reader.opt_doc("internalClient")?.is_some() {
        cmd.ctx.client.set_says_internal();
    }
    let compressors = compressors(&reader)?;
    let max_await = reader.opt_non_negative("maxAwaitTimeMS")?;
    let version = reader.opt_doc("topologyVersion")?;
    // The handshake is open for what newer drivers add: fields that mean nothing here are passed
    // over, as MongoDB does.
    let awaitable = version.is_some();
    let set = replica_set();
    match (version, max_await) {
        (Some(version), Some(max_await)) => {
            await_change(cmd, version, max_await as u64, set.as_deref()).await?;
        }
        (Some(_), None) => {
            return Err(Error::new(
                ErrorCode(31368),
                "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'",
            ));
        }
        (None, Some(_)) => {
            return Err(Error::new(
                ErrorCode(31372),
                "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'",
            ));
        }
        (None, None) => {}
    }
    if let Some(set) = &set {
        check_stays(&set.view(), &cmd.ctx.client)?;
    }
    let mut out = Reply::new();
    if hello_ok {
        out.append("helloOk", true);
    }
    let counter = match &set {
        Some(set) => {
            let view = set.view();
            append_topology_version(view.counter, &mut out);
            append_member(&mut out, &view, &set.last_write(), role);
            view.counter
        }
        None => {
            out.append(role, true);
            append_topology_version(0, &mut out);
            0
        }
    };
    out.append(
        "maxBsonObjectSize",
        pinion_bson::MAX_USER_DOCUMENT_BYTES as i32,
    )
    .append(
        "maxMessageSizeBytes",
        pinion_wire::limits::MAX_MESSAGE_BYTES as i32,
    )
    .append(
        "maxWriteBatchSize",
        pinion_wire::limits::MAX_WRITE_BATCH as i32,
    )
    .append(
        "localTime",
        RawBsonRef::DateTime(DateTime::from_millis(pinion_runtime::wall_ms())),
    )
    .append(
        "logicalSessionTimeoutMinutes",
        (SESSION_TIMEOUT.as_secs() / 60) as i32,
    )
    .append("connectionId", cmd.ctx.client.connection_id)
    .append("minWireVersion", 0i32)
    .append("maxWireVersion", MAX_WIRE_VERSION)
    .append("readOnly", false);
    if !compressors.is_empty() {
        out.start_array("compression");
        for compressor in compressors {
            out.push(compressor.name());
        }
        out.end();
    }
    if let Some(user) = reader.value("saslSupportedMechs") {
        append_mechanisms(user, &mut out);
    }
    if let Some(asked) = reader.opt_doc("speculativeAuthenticate")? {
        append_speculative(cmd, asked, &mut out)?;
    }
    if cmd.exhaust_allowed && awaitable {
        out.stream_next(next_await(cmd.body(), node_info().process_id, counter));
    }
    Ok(out)
}

/// Sends clients of a node that is about to end to other members. Members still find it: it votes
/// for its successor.
///
/// # Errors
/// `ShutdownInProgress`, with the time that is left.
fn check_stays(view: &SetView, client: &ClientInfo) -> Result<()> {
    let Some(until_ms) = view.quiesces_until_ms.filter(|_| is_of_client(client)) else {
        return Ok(());
    };
    let now_ms = pinion_runtime::now().as_nanos() / 1_000_000;
    let left_ms = i64::try_from(until_ms.saturating_sub(now_ms)).unwrap_or(i64::MAX);
    let error = Error::new(
        ErrorCode::SHUTDOWN_IN_PROGRESS,
        "The server is in quiesce mode and will shut down",
    );
    Err(error.with_extra(rawdoc! { "remainingQuiesceTimeMillis": left_ms }))
}

/// Those that the client offers and this node has, in the client's order.
fn compressors(reader: &CommandReader<'_>) -> Result<Vec<Compressor>> {
    let mut known = Vec::new();
    let Some(offered) = reader.opt_array("compression")? else {
        return Ok(known);
    };
    let path = reader.path().field("compression");
    for (at, name) in pinion_bson::values(offered).enumerate() {
        let RawBsonRef::String(name) = name else {
            return Err(wrong_type(path.index(at), name, Types::STRING));
        };
        if let Some(compressor) = Compressor::from_name(name)
            && !known.contains(&compressor)
        {
            known.push(compressor);
        }
    }
    Ok(known)
}

/// Refuses what cannot name a user, of whom a driver asks the mechanisms before it authenticates.
/// Of users that are not there nothing is answered.
fn check_user_name(user: RawBsonRef<'_>) -> Result<()> {
    match user {
        RawBsonRef::String(name) if name.contains('.') => Ok(()),
        RawBsonRef::String(name) => Err(Error::bad_value(format!(
            "UserName must contain a '.' separated database.user pair, found '{name}'"
        ))),
        RawBsonRef::Document(name) => {
            let has = |part| matches!(pinion_bson::get(name, part), Some(RawBsonRef::String(_)));
            if has("user") && has("db") {
                return Ok(());
            }
            Err(Error::bad_value(
                "UserName must contain the string fields 'user' and 'db'",
            ))
        }
        other => Err(Error::type_mismatch(format!(
            "UserName must be either a string or an object, found {}",
            pinion_bson::type_name(other.element_type())
        ))),
    }
}

/// The body of the next hello of a stream: the same, with the topology version just sent.
fn next_await(
    body: &RawDocument,
    process: pinion_bson::ObjectId,
    counter: i64,
) -> pinion_bson::RawDocumentBuf {
    let mut next = pinion_bson::DocBuilder::with_capacity(body.as_bytes().len());
    for elem in pinion_bson::raw_elements(body) {
        if elem.name == b"topologyVersion" {
            next.start_document("topologyVersion")
                .append("processId", process)
                .append("counter", counter)
                .end();
        } else {
            next.append_elem(&elem);
        }
    }
    next.finish()
}

/// Waits as long as the client allows for another topology than it knows. A standalone has no
/// other.
async fn await_change(
    cmd: &Invocation,
    version: &RawDocument,
    max_await_ms: u64,
    set: Option<&dyn ReplicaSet>,
) -> Result<()> {
    let malformed = || {
        Error::new(
            ErrorCode::BAD_VALUE,
            "topologyVersion must have a processId and a counter",
        )
    };
    let process = version
        .get_object_id("processId")
        .map_err(|_| malformed())?;
    let counter = version.get_i64("counter").map_err(|_| malformed())?;
    if process != node_info().process_id {
        return Ok(());
    }
    let current = set.map_or(0, |set| set.view().counter);
    if counter > current {
        return Err(Error::new(
            ErrorCode(31382),
            "Received a topology version with counter greater than the server topology version counter",
        ));
    }
    if counter < 0 {
        return Err(Error::new(
            ErrorCode(31371),
            "topologyVersion must have a non-negative counter",
        ));
    }
    if counter < current {
        return Ok(());
    }
    let _waiting = Gauge::up(|counters| &counters.awaiting_topology);
    let max_await = Duration::from_millis(max_await_ms);
    match set {
        None => interruptible(&cmd.ctx, sleep(max_await)).await,
        Some(set) => {
            let changed = pinion_runtime::timeout(max_await, set.wait_changed(counter));
            interruptible(&cmd.ctx, changed).await.map(drop)
        }
    }
}

/// `ping`.
pub(crate) async fn ping(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["ping"]);
    reader.finish()?;
    Ok(Reply::new())
}

/// `buildInfo`.
pub(crate) async fn build_info(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["buildInfo", "buildinfo"]);
    reader.finish()?;
    let mut out = Reply::new();
    append_build_info(&mut out, &node_info());
    Ok(out)
}

/// Appends what the program is, as `buildInfo` returns it.
pub fn append_build_info(out: &mut DocBuilder, shared: &NodeInfo) {
    let [major, minor, patch, _] = COMPATIBLE_VERSION;
    out.append("version", format!("{major}.{minor}.{patch}").as_str())
        .append("gitVersion", shared.options.git_version.as_str())
        .append("pinion", shared.options.version.as_str());
    out.start_array("modules").end();
    out.append("allocator", "mimalloc")
        .append("javascriptEngine", "none")
        .append("sysInfo", "deprecated");
    out.start_array("versionArray");
    for part in COMPATIBLE_VERSION {
        out.push(part);
    }
    out.end();
    out.start_document("openssl")
        .append("running", "disabled")
        .append("compiled", "disabled")
        .end();
    out.append("bits", 64i32)
        .append("debug", cfg!(debug_assertions))
        .append(
            "maxBsonObjectSize",
            pinion_bson::MAX_USER_DOCUMENT_BYTES as i32,
        );
    out.start_array("storageEngines").push("pinion").end();
    out.start_document("buildEnvironment")
        .append("distmod", "")
        .append("distarch", std::env::consts::ARCH)
        .append("target_arch", std::env::consts::ARCH)
        .append("target_os", std::env::consts::OS)
        .end();
}

/// `hostInfo`.
pub(crate) async fn host_info(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["hostInfo"]);
    reader.finish()?;
    let shared = node_info();
    let info = &shared.options.host_info;
    let mut out = Reply::new();
    out.start_document("system")
        .append(
            "currentTime",
            RawBsonRef::DateTime(DateTime::from_millis(pinion_runtime::wall_ms())),
        )
        .append("hostname", shared.options.host.as_str())
        .append("cpuAddrSize", 64i32)
        .append("memSizeMB", (info.memory_bytes >> 20) as i64)
        .append("memLimitMB", (info.memory_limit_bytes >> 20) as i64)
        .append("numCores", info.cpus)
        .append("numCoresAvailableToProcess", info.usable_cpus)
        .append("numPhysicalCores", info.physical_cpus)
        .append("numCpuSockets", info.sockets)
        .append("cpuArch", info.cpu_arch.as_str())
        .append("numaEnabled", info.numa_nodes > 1)
        .append("numNumaNodes", info.numa_nodes)
        .end();
    out.start_document("os")
        .append("type", "Linux")
        .append("name", info.os_name.as_str())
        .append("version", info.os_version.as_str())
        .end();
    out.start_document("extra")
        .append("versionString", info.version.as_str())
        .append("kernelVersion", info.kernel.as_str())
        .append("cpuString", info.cpu_model.as_str())
        .append("pageSize", info.page_bytes)
        .end();
    Ok(out)
}

/// `whatsmyuri`.
pub(crate) async fn whats_my_uri(cmd: Invocation) -> Result<Reply> {
    // Nothing is read of it, and MongoDB passes over fields that it does not know.
    let mut out = Reply::new();
    let remote = cmd
        .ctx
        .client
        .remote
        .map(|remote| remote.to_string())
        .unwrap_or_default();
    out.append("you", remote.as_str());
    Ok(out)
}

/// `getCmdLineOpts`.
pub(crate) async fn get_cmd_line_opts(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["getCmdLineOpts"]);
    reader.finish()?;
    let shared = node_info();
    let mut out = Reply::new();
    out.start_array("argv");
    for arg in &shared.options.argv {
        out.push(arg.as_str());
    }
    out.end().append("parsed", &*shared.options.parsed);
    Ok(out)
}

const NUMBER_OR_STRING: Types = Types::Many(&["long", "int", "decimal", "double", "string"]);

/// `logRotate`: a number is all logs, a string names one.
pub(crate) async fn log_rotate(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let value = reader.value("logRotate").unwrap_or(RawBsonRef::Null);
    reader.finish()?;
    match value {
        RawBsonRef::String("server") => {}
        RawBsonRef::String(_) => {
            return Err(Error::new(
                ErrorCode::NO_SUCH_KEY,
                "Unknown log type for rotate",
            ));
        }
        number if is_number(number) => {}
        other => return Err(reader.wrong_type("logRotate", other, NUMBER_OR_STRING)),
    }
    let failed = || {
        Error::new(
            ErrorCode::OPERATION_FAILED,
            "Log rotation failed due to one or more errors",
        )
    };
    let Some(control) = pinion_runtime::try_core_local::<LogControl>() else {
        return Err(failed());
    };
    let outcome = (control.rotate)();
    loop {
        match outcome.try_recv() {
            Ok(Ok(())) => return Ok(Reply::new()),
            Ok(Err(error)) => {
                tracing::error!(target: "CONTROL", id = 23_168u64, error = %error, "Log rotation failed");
                return Err(failed());
            }
            Err(TryRecvError::Disconnected) => return Err(failed()),
            // The log's writer is a thread that cannot wake a core.
            Err(TryRecvError::Empty) => sleep(Duration::from_millis(1)).await,
        }
    }
}

/// `getLog`.
pub(crate) async fn get_log(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let value = reader.value("getLog");
    reader.finish()?;
    let name = match value {
        Some(RawBsonRef::String(name)) => name,
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => {
            return Err(missing_field(reader.path().field("getLog")));
        }
        Some(other) => {
            return Err(Error::type_mismatch(format!(
                "Argument to getLog must be of type String; found {} of type {}",
                pinion_query::value_text(other),
                pinion_bson::type_name(other.element_type())
            )));
        }
    };
    let mut out = Reply::new();
    match name {
        "*" => {
            out.start_array("names")
                .push("global")
                .push("startupWarnings")
                .end();
        }
        "global" | "startupWarnings" => {
            let (lines, total) = if name == "global" {
                pinion_service::logbuf::lines().await
            } else {
                let lines = pinion_service::logbuf::startup_warnings().await;
                let total = lines.len() as u64;
                (lines, total)
            };
            out.append("totalLinesWritten", total as i64)
                .start_array("log");
            for line in &lines {
                out.push(line.as_str());
            }
            out.end();
        }
        other => {
            return Err(Error::new(
                ErrorCode::OPERATION_FAILED,
                format!("No log named '{other}'"),
            ));
        }
    }
    Ok(out)
}
