//! Commands of config servers about the balancer.

use pinion_exec::replica_set;
use pinion_sharding_protocol::config::BalancingRequest;
use pinion_sharding_protocol::documents::BalancerMode;
use pinion_wire::idl::Namespace;
use pinion_wire::{Invocation, Reply, Result};

use super::balancer;
use super::commands::{check, check_role, finish};
use crate::part::on_core_0;

async fn switch(cmd: Invocation, is_on: bool) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.name(), "maxTimeMS"]);
    reader.finish()?;
    on_core_0(&cmd.ctx, move || balancer::switch(is_on)).await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrBalancerStart: 1`.
pub(crate) async fn balancer_start(cmd: Invocation) -> Result<Reply> {
    switch(cmd, true).await
}

/// `_configsvrBalancerStop: 1`.
pub(crate) async fn balancer_stop(cmd: Invocation) -> Result<Reply> {
    switch(cmd, false).await
}

/// `_configsvrBalancerStatus: 1` -> `mode`, `inBalancerRound`, `numBalancerRounds`, `term`.
pub(crate) async fn balancer_status(cmd: Invocation) -> Result<Reply> {
    check_role(&cmd)?;
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.name()]);
    reader.finish()?;
    let mode = on_core_0(&cmd.ctx, balancer::mode).await?;
    let mode = match mode {
        BalancerMode::Full => "full",
        BalancerMode::AutoSplitOnly => "autoSplitOnly",
        BalancerMode::Off => "off",
    };
    let mut out = Reply::new();
    out.append("mode", mode)
        .append("inBalancerRound", false)
        .append("numBalancerRounds", 0i64)
        .append("term", replica_set().map_or(0, |set| set.view().term));
    Ok(out)
}

/// `_configsvrBalancerCollectionStatus: <ns>` -> `chunkSize`, `balancerCompliant`,
/// `firstComplianceViolation?`.
pub(crate) async fn balancer_collection_status(cmd: Invocation) -> Result<Reply> {
    check_role(&cmd)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    reader.finish()?;
    let status = on_core_0(&cmd.ctx, move || async move { balancer::status(&ns).await });
    let (size, reason) = status.await?;
    let mut out = Reply::new();
    out.append("chunkSize", (size >> 20) as i64)
        .append("balancerCompliant", reason.is_none());
    if let Some(reason) = reason {
        out.append("firstComplianceViolation", reason.name());
    }
    Ok(out)
}

/// `_configsvrConfigureCollectionBalancing: <ns>, ..`.
pub(crate) async fn configure_collection_balancing(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let request = BalancingRequest::parse(cmd.name(), cmd.body())?;
    reader.ignore(&[cmd.name()]);
    reader.ignore(BalancingRequest::fields());
    reader.finish()?;
    on_core_0(&cmd.ctx, move || async move {
        balancer::configure(&request).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}
