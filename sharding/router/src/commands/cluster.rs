//! Commands about the cluster: its shards, and what this router knows of them.

use std::collections::BTreeMap;

use pinion_bson::RawBsonRef;
use pinion_runtime::on_all_cores;
use pinion_server::HostFigures;
use pinion_service::connections::{ConnectionPool, HostConnections, append_connections};
use pinion_service::interrupt::interruptible;
use pinion_sharding_protocol::ShardId;
use pinion_wire::idl::{Namespace, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::cluster::Cluster;
use crate::config_reads::run_at_config;
use crate::hosts::{Hosts, ShownSet};
use crate::placement::{flush_all, flush_collection, flush_database, make_database};
use crate::shards::{current_shards, reload_shards};

/// `addShard`.
pub(super) async fn add_shard(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let host = reader.str(cmd.message.command_name())?;
    let name = reader.opt_str("name")?;
    // Once a limit on a shard's data; the balancer looks at it no more, here as with MongoDB.
    reader.ignore(&["maxSize"]);
    reader.finish()?;
    let added = run_at_config(
        "admin",
        |out| {
            out.append("_configsvrAddShard", host);
            if let Some(name) = name {
                out.append("name", name);
            }
            out.start_document("writeConcern")
                .append("w", "majority")
                .end();
        },
        None,
    );
    let added = interruptible(&cmd.ctx, added).await??;
    interruptible(&cmd.ctx, reload_shards()).await??;
    let mut out = Reply::new();
    if let Some(RawBsonRef::String(added)) = pinion_bson::get(&added, "shardAdded") {
        out.append("shardAdded", added);
    }
    Ok(out)
}

/// `listShards`.
pub(super) async fn list_shards(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let filter = reader.opt_doc("filter")?;
    reader.ignore(&["listShards"]);
    reader.finish()?;
    let draining = filter.and_then(|filter| pinion_bson::get(filter, "draining"));
    interruptible(&cmd.ctx, reload_shards()).await??;
    let mut out = Reply::new();
    out.start_array("shards");
    for document in current_shards().await?.documents() {
        let is_draining = pinion_bson::get(document, "draining").is_some_and(truthy);
        if draining.is_none_or(|wanted| truthy(wanted) == is_draining) {
            out.push(&**document);
        }
    }
    out.end();
    Ok(out)
}

/// `enableSharding`: the database is made, if there is none.
pub(super) async fn enable_sharding(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let db = reader.str(cmd.message.command_name())?;
    let primary = reader.opt_str("primaryShard")?.map(ShardId::new);
    reader.finish()?;
    interruptible(&cmd.ctx, make_database(db, primary.as_ref())).await??;
    Ok(Reply::new())
}

/// `getShardMap`: the hosts of each shard, and the shard of each host.
pub(super) async fn get_shard_map(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["getShardMap"]);
    reader.finish()?;
    let cluster = Cluster::here();
    let shards = current_shards().await?;
    let config = (ShardId::CONFIG, &cluster.config_servers);
    let all = shards.iter().map(|shard| (&*shard.id, &shard.string));
    let all: Vec<_> = all.chain([config]).collect();
    let mut out = Reply::new();
    out.start_document("map");
    for (id, string) in &all {
        out.append(id, string.to_string().as_str());
    }
    out.end().start_document("hosts");
    let hosts: BTreeMap<String, &str> = all
        .iter()
        .flat_map(|(id, string)| string.hosts.iter().map(move |host| (host.to_string(), *id)))
        .collect();
    for (host, id) in hosts {
        out.append(&host, id);
    }
    out.end().start_document("connStrings");
    for (id, string) in &all {
        out.append(&string.to_string(), *id);
    }
    out.end();
    Ok(out)
}

/// `flushRouterConfig`: of one namespace or database, or all.
pub(super) async fn flush_router_config(cmd: Invocation) -> Result<Reply> {
    let mut out = Reply::new();
    match pinion_bson::get(cmd.body(), "flushRouterConfig") {
        Some(RawBsonRef::String(name)) => {
            let db = name.split_once('.').map_or(name, |(db, _)| db);
            if !pinion_wire::idl::is_valid_database_name(db) {
                return Err(Error::new(
                    ErrorCode::INVALID_NAMESPACE,
                    format!("Invalid namespace specified '{name}'"),
                ));
            }
            match name.contains('.') {
                true => flush_collection(&Namespace::parse(name)?).await,
                false => flush_database(db).await,
            }
        }
        _ => flush_all().await,
    }
    out.append("flushed", true);
    Ok(out)
}

/// `isdbgrid`: what tools ask to know a router.
pub(super) async fn is_db_grid(_: Invocation) -> Result<Reply> {
    let mut out = Reply::new();
    let host = pinion_service::node_info::node_info().options.host.clone();
    out.append("isdbgrid", 1i32)
        .append("hostname", host.as_str());
    Ok(out)
}

/// The connections of one core, as MongoDB's routers name the pools of their executors.
fn pool(at: usize, figures: Vec<HostFigures>) -> ConnectionPool {
    let connections = figures.into_iter().map(|figures| HostConnections {
        host: figures.host.to_string(),
        in_use: figures.in_use,
        available: figures.available,
        refreshing: figures.refreshing,
        created: figures.created,
    });
    ConnectionPool {
        name: format!("NetworkInterfaceTL-TaskExecutorPool-{at}"),
        connections: connections.collect(),
    }
}

/// `connPoolStats`: connections to other nodes, and the sets that this process watches.
pub(super) async fn conn_pool_stats(cmd: Invocation) -> Result<Reply> {
    // Nothing is read of it, and MongoDB passes over fields that it does not know.
    drop(cmd);
    let cores = on_all_cores(|_| async { Hosts::here().figures() }).await;
    let cores = cores.into_iter().enumerate();
    let pools: Vec<ConnectionPool> = cores.map(|(at, figures)| pool(at, figures)).collect();
    let mut out = Reply::new();
    append_connections(&mut out, &pools);
    append_sets(&mut out, &Hosts::here().shown_sets().await);
    Ok(out)
}

fn append_sets(out: &mut Reply, sets: &[ShownSet]) {
    out.start_document("replicaSets");
    for set in sets {
        out.start_document(&set.name).start_array("hosts");
        for host in &set.hosts {
            out.push_document()
                .append("addr", host.addr.to_string().as_str())
                .append("ok", host.ok)
                .append("ismaster", host.is_primary)
                .append("hidden", host.is_hidden)
                .append("secondary", host.is_secondary)
                .append("pingTimeMillis", host.ping_time_ms);
            if !host.tags.is_empty() {
                out.start_document("tags");
                for (name, value) in &host.tags {
                    out.append(name, value.as_str());
                }
                out.end();
            }
            out.end();
        }
        out.end().end();
    }
    out.end();
}
