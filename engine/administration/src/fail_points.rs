//! The commands of tests: `configureFailPoint` and `waitForFailPoint`, those by which drivers see
//! how a server treats versions of its API, and what has the node see to its sessions at once.

use std::rc::Rc;

use pinion_catalog::{BuildPhase, set_build_hold};
use pinion_exec::commands::{attach, sessions};
use pinion_service::fail_points::{Configuration, FailPoint, configure, enter, wait_entered};
use pinion_wire::idl::i64_exact;
use pinion_wire::{Error, ErrorCode, Invocation, Registry, Reply, Result};

/// Attaches the handlers of the commands that a node has only where it was started with
/// `enableTestCommands`.
pub fn register_test_commands(r: &mut Registry) {
    hold_builds();
    attach(r, "configureFailPoint", configure_fail_point);
    attach(r, "waitForFailPoint", wait_for_fail_point);
    attach(r, "refreshLogicalSessionCacheNow", sessions::refresh_now);
    attach(r, "reapLogicalSessionCacheNow", sessions::reap_now);
    attach(r, "testVersion2", nothing);
    attach(r, "testVersions1And2", nothing);
    attach(r, "testDeprecation", test_deprecation);
    attach(r, "testDeprecationInVersion2", nothing);
}

/// Has builds of indexes that work on this core wait where a test holds them up.
fn hold_builds() {
    set_build_hold(Rc::new(|phase| {
        let point = match phase {
            BuildPhase::Scanning => {
                FailPoint::HangIndexBuildDuringCollectionScanPhaseAfterInsertion
            }
            BuildPhase::Loading => FailPoint::HangIndexBuildDuringBulkLoadPhase,
            BuildPhase::Draining => FailPoint::HangIndexBuildDuringDrainWritesPhase,
        };
        Box::pin(async move { enter(point, |_| true).await.is_some() })
    }));
}

/// A command that does nothing.
async fn nothing(_: Invocation) -> Result<Reply> {
    Ok(Reply::new())
}

/// `testDeprecation`: fails where the client wants nothing that is deprecated.
async fn test_deprecation(cmd: Invocation) -> Result<Reply> {
    match cmd.ctx.args.api.deprecation_errors {
        false => Ok(Reply::new()),
        true => Err(Error::new(
            ErrorCode::API_DEPRECATION_ERROR,
            "Provided apiDeprecationErrors:true, but the command testDeprecation is deprecated in API Version 1. \
             Information on deprecated commands and migrations in API Version 1 can be found at \
             https://dochub.mongodb.org/core/manual-versioned-api",
        )),
    }
}

/// `configureFailPoint`. Fields that it does not know it passes over, as MongoDB does.
async fn configure_fail_point(cmd: Invocation) -> Result<Reply> {
    let name = cmd.reader()?.str("configureFailPoint")?.to_owned();
    let point = FailPoint::named(&name)?;
    let configuration = Configuration::parse(cmd.body())?;
    let shown = pinion_query::document_text(&configuration.data);
    let mode = configuration.mode;
    let entered = configure(point, configuration).await;
    tracing::warn!(target: "CONTROL", id = 23_829u64, failPointName = name, mode = ?mode, data = shown, "Set failpoint");
    let mut out = Reply::new();
    out.append("count", entered as i64);
    Ok(out)
}

/// `waitForFailPoint`.
async fn wait_for_fail_point(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let point = FailPoint::named(reader.str("waitForFailPoint")?)?;
    let times = reader.i64("timesEntered")?;
    let limit = reader.value("maxTimeMS").and_then(i64_exact);
    reader.finish()?;
    let times = u64::try_from(times).ok().filter(|times| *times > 0);
    let times = times.ok_or_else(|| Error::bad_value("'timesEntered' must be greater than 0"))?;
    if limit.is_none_or(|ms| ms <= 0) {
        return Err(Error::bad_value("'maxTimeMS' must be greater than 0"));
    }
    wait_entered(&cmd.ctx, point, times).await?;
    Ok(Reply::new())
}
