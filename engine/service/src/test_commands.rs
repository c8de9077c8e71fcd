//! The commands of tests that any process has: `configureFailPoint` and `waitForFailPoint`, and
//! those by which drivers see how a server treats versions of its API.

use pinion_wire::idl::i64_exact;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::fail_points::{Configuration, FailPoint, configure, wait_entered};

/// A command that does nothing.
pub async fn nothing(_: Invocation) -> Result<Reply> {
    Ok(Reply::new())
}

/// `testDeprecation`: fails where the client wants nothing that is deprecated.
pub async fn test_deprecation(cmd: Invocation) -> Result<Reply> {
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
pub async fn configure_fail_point(cmd: Invocation) -> Result<Reply> {
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
pub async fn wait_for_fail_point(cmd: Invocation) -> Result<Reply> {
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
