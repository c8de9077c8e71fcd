//! What any process answers of itself: `ping`, `buildInfo`, `hostInfo`, its command line and log.

use std::sync::mpsc::TryRecvError;

use pinion_bson::{DateTime, DocBuilder, RawBsonRef};
use pinion_runtime::{Duration, sleep};
use pinion_wire::idl::{Types, is_number, missing_field};
use pinion_wire::{COMPATIBLE_VERSION, Error, ErrorCode, Invocation, Reply, Result};

use crate::logbuf;
use crate::node_info::{NodeInfo, node_info};
use crate::parameters::LogControl;

/// `ping`.
pub async fn ping(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["ping"]);
    reader.finish()?;
    Ok(Reply::new())
}

/// `buildInfo`.
pub async fn build_info(cmd: Invocation) -> Result<Reply> {
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
pub async fn host_info(cmd: Invocation) -> Result<Reply> {
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
pub async fn whats_my_uri(cmd: Invocation) -> Result<Reply> {
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
pub async fn get_cmd_line_opts(cmd: Invocation) -> Result<Reply> {
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
pub async fn log_rotate(cmd: Invocation) -> Result<Reply> {
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
pub async fn get_log(cmd: Invocation) -> Result<Reply> {
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
                logbuf::lines().await
            } else {
                let lines = logbuf::startup_warnings().await;
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
