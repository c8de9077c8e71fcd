//! The commands of tests: `configureFailPoint` and `waitForFailPoint`.

use pinion_wire::idl::i64_exact;
use pinion_wire::{CommandSpec, Error, Invocation, Registry, Reply, Result};

use super::register;
use crate::fail_points::{Configuration, FailPoint, configure, wait_entered};

/// Registers the commands that only a node has which was started with `enableTestCommands`.
pub fn register_test_commands(r: &mut Registry) {
    let spec = |name| CommandSpec::new(name).admin_only();
    register(
        r,
        spec("configureFailPoint").help("have the node show a fault"),
        None,
        configure_fail_point,
    );
    register(
        r,
        spec("waitForFailPoint").help("wait until a fault was shown"),
        None,
        wait_for_fail_point,
    );
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
