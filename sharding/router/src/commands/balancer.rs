//! Commands about the balancer, which the config servers answer.

use pinion_bson::DocBuilder;
use pinion_service::interrupt::interruptible;
use pinion_sharding_protocol::config::BalancingRequest;
use pinion_wire::idl::Namespace;
use pinion_wire::{Invocation, Reply, Result};

use super::sharding::append_majority;
use crate::config_reads::run_at_config;
use crate::placement::defined_by;
use crate::reply::{passed_on, refused};

async fn at_config(cmd: &Invocation, fields: impl FnOnce(&mut DocBuilder)) -> Result<Reply> {
    let running = run_at_config("admin", fields, None);
    let reply = interruptible(&cmd.ctx, running).await?.map_err(refused)?;
    Ok(passed_on(&reply))
}

async fn switch(cmd: Invocation, at: &'static str) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.message.command_name()]);
    reader.finish()?;
    at_config(&cmd, |out| {
        out.append(at, 1i32);
        append_majority(out, &cmd);
    })
    .await
}

/// `balancerStart: 1`.
pub(super) async fn start(cmd: Invocation) -> Result<Reply> {
    switch(cmd, "_configsvrBalancerStart").await
}

/// `balancerStop: 1`.
pub(super) async fn stop(cmd: Invocation) -> Result<Reply> {
    switch(cmd, "_configsvrBalancerStop").await
}

/// `balancerStatus: 1`.
pub(super) async fn status(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.message.command_name()]);
    reader.finish()?;
    at_config(&cmd, |out| {
        out.append("_configsvrBalancerStatus", 1i32);
    })
    .await
}

/// `balancerCollectionStatus: <ns>`.
pub(super) async fn collection_status(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.message.command_name())?)?;
    reader.finish()?;
    let ns = interruptible(&cmd.ctx, defined_by(&ns)).await??;
    at_config(&cmd, |out| {
        out.append("_configsvrBalancerCollectionStatus", ns.as_str());
    })
    .await
}

/// `configureCollectionBalancing: <ns>, ..`.
pub(super) async fn configure_collection(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = cmd.message.command_name();
    let request = BalancingRequest::parse(name, cmd.body())?;
    reader.ignore(&[name]);
    reader.ignore(BalancingRequest::fields());
    reader.finish()?;
    let ns = interruptible(&cmd.ctx, defined_by(&request.ns)).await??;
    at_config(&cmd, |out| {
        out.append("_configsvrConfigureCollectionBalancing", ns.as_str());
        for field in pinion_bson::raw_elements(cmd.body()) {
            let is_option = |option: &&&str| option.as_bytes() == field.name;
            if BalancingRequest::fields()
                .iter()
                .any(|option| is_option(&option))
            {
                out.append_elem(&field);
            }
        }
        append_majority(out, &cmd);
    })
    .await
}
