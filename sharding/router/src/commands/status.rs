//! `serverStatus` of a router. Every section has counters behind it; what has none is absent.

use std::collections::BTreeMap;

use pinion_bson::{DateTime, DocBuilder, RawBsonRef};
use pinion_runtime::{RuntimeStats, on_all_cores};
use pinion_service::cursors::{CursorCounts, cursors};
use pinion_service::latency::LatencyValues;
use pinion_service::metrics::{CounterValues, metrics};
use pinion_service::node_info::node_info;
use pinion_service::process_usage::{append_extra_info, append_memory};
use pinion_service::session_table::session_table;
use pinion_wire::idl::truthy;
use pinion_wire::{COMPATIBLE_VERSION, Invocation, Registry, Reply, Result, ServerCounters};

use crate::clock::bson_time;
use crate::cluster::Cluster;
use crate::transaction_counts::TransactionCounts;
use crate::transactions::transactions;

/// What one core contributes.
struct CorePart {
    counters: CounterValues,
    latencies: [LatencyValues; 3],
    cursors: CursorCounts,
    transactions: TransactionCounts,
    sessions: u64,
    connections: [u64; 4],
    network: [u64; 3],
    runtime: RuntimeStats,
    commands: Vec<(&'static str, u64, u64)>,
    unknown_commands: u64,
}

fn core_part() -> CorePart {
    let metrics = &metrics();
    let registry = pinion_runtime::try_core_local::<Registry>();
    let server = pinion_runtime::try_core_local::<ServerCounters>().unwrap_or_default();
    CorePart {
        counters: metrics.counters.values(),
        latencies: [&metrics.reads, &metrics.writes, &metrics.commands].map(LatencyValues::of),
        cursors: cursors().counts(),
        transactions: transactions().counts(),
        sessions: session_table().count() as u64,
        connections: [
            server.current.get(),
            server.total_created.get(),
            server.active.get(),
            server.rejected.get(),
        ],
        network: [
            server.bytes_in.get(),
            server.bytes_out.get(),
            server.requests.get(),
        ],
        runtime: pinion_runtime::stats(),
        commands: registry
            .iter()
            .flat_map(|registry| {
                let commands = registry.iter();
                commands
                    .map(|command| (command.spec.name, command.total(), command.failed()))
                    .collect::<Vec<_>>()
            })
            .collect(),
        unknown_commands: registry.map_or(0, |registry| registry.unknown()),
    }
}

#[derive(Default)]
struct Sums {
    counters: CounterValues,
    latencies: [LatencyValues; 3],
    cursors: CursorCounts,
    transactions: TransactionCounts,
    sessions: u64,
    connections: [u64; 4],
    network: [u64; 3],
    physical_bytes: [u64; 2],
    commands: BTreeMap<&'static str, (u64, u64)>,
    unknown_commands: u64,
}

async fn sums() -> Sums {
    let mut sums = Sums::default();
    for part in on_all_cores(|_| async { core_part() }).await {
        sums.counters.add(&part.counters);
        for (sum, latency) in sums.latencies.iter_mut().zip(&part.latencies) {
            sum.add(latency);
        }
        sums.cursors.open += part.cursors.open;
        sums.cursors.no_timeout += part.cursors.no_timeout;
        sums.cursors.pinned += part.cursors.pinned;
        sums.transactions.add(&part.transactions);
        sums.sessions += part.sessions;
        let pairs = sums.connections.iter_mut().zip(part.connections);
        pairs.for_each(|(sum, value)| *sum += value);
        let pairs = sums.network.iter_mut().zip(part.network);
        pairs.for_each(|(sum, value)| *sum += value);
        sums.physical_bytes[0] += part.runtime.network_in_bytes;
        sums.physical_bytes[1] += part.runtime.network_out_bytes;
        for (name, total, failed) in part.commands {
            let sum = sums.commands.entry(name).or_default();
            sum.0 += total;
            sum.1 += failed;
        }
        sums.unknown_commands += part.unknown_commands;
    }
    sums
}

/// `serverStatus`.
pub(super) async fn server_status(cmd: Invocation) -> Result<Reply> {
    // Any field may name a section to leave out or to put in, so none is unknown.
    let wanted = |section: &str| pinion_bson::get(cmd.body(), section).is_none_or(truthy);
    let latencies = pinion_bson::get(cmd.body(), "opLatencies");
    let latencies = latencies.and_then(|asked| asked.as_document());
    let histograms = latencies.and_then(|asked| pinion_bson::get(asked, "histograms"));
    let sums = sums().await;
    let mut out = Reply::new();
    append_process(&mut out);
    let c = &sums.counters;
    if wanted("asserts") {
        out.start_document("asserts")
            .append("regular", c.assert_regular as i32)
            // Kinds of assertions that this process does not have, and counters of 64 bits do not
            // roll over.
            .append("warning", 0i32)
            .append("msg", 0i32)
            .append("user", c.assert_user as i32)
            .append("rollovers", 0i32)
            .append("tripwire", 0i32)
            .end();
    }
    if wanted("connections") {
        append_connections(&mut out, &sums);
    }
    if wanted("extra_info") {
        append_extra_info(&mut out);
    }
    if wanted("logicalSessionRecordCache") {
        out.start_document("logicalSessionRecordCache")
            .append("activeSessionsCount", sums.sessions as i32)
            .end();
    }
    if wanted("mem") {
        append_memory(&mut out);
    }
    if wanted("network") {
        append_network(&mut out, &sums);
    }
    if wanted("opLatencies") {
        out.start_document("opLatencies");
        for (name, latency) in ["reads", "writes", "commands"]
            .into_iter()
            .zip(&sums.latencies)
        {
            out.start_document(name);
            latency.append(&mut out, histograms.is_some_and(truthy));
            out.end();
        }
        out.end();
    }
    if wanted("opcounters") {
        append_counters(&mut out, c);
    }
    if wanted("sharding") {
        append_sharding(&mut out);
    }
    if wanted("transactions") {
        out.start_document("transactions");
        sums.transactions.append(&mut out);
        out.end();
    }
    if wanted("metrics") {
        append_metrics(&mut out, &sums);
    }
    Ok(out)
}

fn append_process(out: &mut DocBuilder) {
    let info = node_info();
    let uptime_ms = info.started.elapsed().as_millis() as i64;
    let [major, minor, patch, _] = COMPATIBLE_VERSION;
    out.append("host", info.options.host.as_str())
        .append("version", format!("{major}.{minor}.{patch}").as_str())
        .append("process", "mongos")
        .append("pid", i64::from(info.options.pid))
        .append("uptime", (uptime_ms / 1000) as f64)
        .append("uptimeMillis", uptime_ms)
        .append("uptimeEstimate", uptime_ms / 1000)
        .append(
            "localTime",
            RawBsonRef::DateTime(DateTime::from_millis(pinion_runtime::wall_ms())),
        );
}

fn append_connections(out: &mut DocBuilder, sums: &Sums) {
    let [current, created, active, rejected] = sums.connections;
    let max = pinion_service::parameters::server_counters()
        .max_connections
        .get();
    out.start_document("connections")
        .append("current", current as i32)
        .append("available", max.saturating_sub(current) as i32)
        .append("totalCreated", created as i32)
        .append("rejected", rejected as i64)
        .append("active", active as i32)
        .append(
            "awaitingTopologyChanges",
            sums.counters.awaiting_topology as i32,
        )
        .end();
}

fn append_network(out: &mut DocBuilder, sums: &Sums) {
    out.start_document("network");
    let [bytes_in, bytes_out, requests] = sums.network;
    for (name, value) in [
        ("bytesIn", bytes_in),
        ("bytesOut", bytes_out),
        ("physicalBytesIn", sums.physical_bytes[0]),
        ("physicalBytesOut", sums.physical_bytes[1]),
        ("numRequests", requests),
    ] {
        out.append(name, value as i64);
    }
    out.end();
}

fn append_counters(out: &mut DocBuilder, c: &CounterValues) {
    out.start_document("opcounters");
    for (name, value) in [
        ("insert", c.insert),
        ("query", c.query),
        ("update", c.update),
        ("delete", c.delete),
        ("getmore", c.getmore),
        ("command", c.command),
    ] {
        out.append(name, value as i64);
    }
    out.end();
}

/// The config servers, and how new what this router knows of the cluster is.
fn append_sharding(out: &mut DocBuilder) {
    let cluster = Cluster::here();
    let time = cluster.clock.time();
    out.start_document("sharding")
        .append(
            "configsvrConnectionString",
            cluster.config_servers.to_string().as_str(),
        )
        .append("lastSeenConfigServerTime", bson_time(time.config()))
        .append("lastSeenTopologyTime", bson_time(time.topology()))
        .append("shards", cluster.shards().len() as i32)
        .end();
}

fn append_metrics(out: &mut DocBuilder, sums: &Sums) {
    let c = &sums.counters;
    out.start_document("metrics");
    out.start_document("commands");
    for (name, (total, failed)) in &sums.commands {
        out.start_document(name)
            .append("failed", *failed as i64)
            .append("total", *total as i64)
            .end();
    }
    out.append("<UNKNOWN>", sums.unknown_commands as i64).end();
    out.start_document("cursor")
        .append("timedOut", c.cursors_timed_out as i64)
        .append("totalOpened", c.cursors_opened as i64)
        .append("moreThanOneBatch", c.cursors_multi_batch as i64);
    out.start_document("open")
        .append("noTimeout", sums.cursors.no_timeout as i64)
        .append("pinned", sums.cursors.pinned as i64)
        .append("total", sums.cursors.open as i64)
        .end();
    out.end();
    out.start_document("document")
        .append("returned", c.documents_returned as i64)
        .end();
    out.start_document("operation")
        .append("killedDueToMaxTimeMSExpired", c.killed_by_time as i64)
        .append("killedDueToClientDisconnect", c.killed_by_disconnect as i64)
        .end();
    out.end();
}
