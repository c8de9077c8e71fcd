//! `serverStatus` and `top`. Every section has counters behind it; what has none is absent.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_bson::{DateTime, DocBuilder, RawBsonRef};
use pinion_catalog::core_catalog;
use pinion_exec::acquire::acquire_stored;
use pinion_exec::commands::stage_counts::stage_counts;
use pinion_exec::concern::{ConcernValues, concern_counts};
use pinion_exec::parameters::parameters;
use pinion_exec::plan_cache::plan_cache;
use pinion_exec::replication::{METRICS, ReplicationFigures};
use pinion_exec::stats::storage_stats;
use pinion_exec::topology::replica_set;
use pinion_metrics::append_section;
use pinion_query::{OperatorKind, OperatorUses};
use pinion_runtime::{CoreId, RuntimeStats};
use pinion_service::cursors::{CursorCounts, cursors};
use pinion_service::latency::LatencyValues;
use pinion_service::login::{AuthenticationValues, authentication_counts};
use pinion_service::metrics::{CounterValues, TopEntry, metrics};
use pinion_service::node_info::node_info;
use pinion_service::operator_counts;
use pinion_service::operator_counts::operator_counts;
use pinion_service::ops::ops;
use pinion_service::process_usage::{append_extra_info, append_memory};
use pinion_service::profile_settings::profiles;
use pinion_service::session_table::session_table;
use pinion_service::spill::node_memory;
use pinion_wire::idl::{Namespace, truthy};
use pinion_wire::{
    COMPATIBLE_VERSION, Invocation, OpContext, Registry, Reply, Result, ServerCounters,
};

use crate::status_sections::{
    SystemSource, append_catalog, append_index_builds, append_locks, append_network,
    append_replicated,
};

/// The collection that shows the log.
const OPLOG: &str = "local.oplog.rs";

/// What one core contributes.
struct CorePart {
    counters: CounterValues,
    latencies: [LatencyValues; 4],
    concerns: ConcernValues,
    stages: BTreeMap<&'static str, u64>,
    operators: OperatorUses,
    /// Entries of the plan cache, and their bytes.
    cached_plans: (u64, u64),
    authentications: AuthenticationValues,
    cursors: CursorCounts,
    sessions: u64,
    running: u64,
    profile_writers: u64,
    awaiting_topology: u64,
    runtime: RuntimeStats,
    commands: Vec<(&'static str, u64, u64)>,
    unknown_commands: u64,
}

fn core_part() -> CorePart {
    let registry = pinion_runtime::try_core_local::<Registry>();
    let metrics = &metrics();
    CorePart {
        counters: metrics.counters.values(),
        latencies: [
            &metrics.reads,
            &metrics.writes,
            &metrics.commands,
            &metrics.transactions,
        ]
        .map(LatencyValues::of),
        concerns: concern_counts().values(),
        stages: stage_counts().values(),
        operators: operator_counts().values(),
        cached_plans: plan_cache().size(),
        authentications: authentication_counts().values(),
        cursors: cursors().counts(),
        sessions: session_table().count() as u64,
        running: ops().count() as u64,
        profile_writers: profiles().borrow().writing.get() as u64,
        awaiting_topology: metrics.counters.awaiting_topology.get(),
        runtime: pinion_runtime::stats(),
        commands: registry
            .iter()
            .flat_map(|registry| {
                registry
                    .iter()
                    .map(|c| (c.spec.name, c.total(), c.failed()))
                    .collect::<Vec<_>>()
            })
            .collect(),
        unknown_commands: registry.map_or(0, |registry| registry.unknown()),
    }
}

struct Sums {
    counters: CounterValues,
    latencies: [LatencyValues; 4],
    concerns: ConcernValues,
    stages: BTreeMap<&'static str, u64>,
    operators: OperatorUses,
    cached_plans: (u64, u64),
    authentications: AuthenticationValues,
    cursors: CursorCounts,
    sessions: u64,
    running: u64,
    physical_bytes_in: u64,
    physical_bytes_out: u64,
    profile_writers: u64,
    awaiting_topology: u64,
    commands: BTreeMap<&'static str, (u64, u64)>,
    unknown_commands: u64,
}

async fn sums() -> Sums {
    let mut sums = Sums {
        counters: CounterValues::default(),
        latencies: Default::default(),
        concerns: ConcernValues::default(),
        stages: BTreeMap::new(),
        operators: OperatorUses::default(),
        cached_plans: (0, 0),
        authentications: AuthenticationValues::default(),
        cursors: CursorCounts::default(),
        sessions: 0,
        running: 0,
        physical_bytes_in: 0,
        physical_bytes_out: 0,
        profile_writers: 0,
        awaiting_topology: 0,
        commands: BTreeMap::new(),
        unknown_commands: 0,
    };
    for part in pinion_runtime::on_all_cores(|_: CoreId| async { core_part() }).await {
        sums.counters.add(&part.counters);
        for (sum, latency) in sums.latencies.iter_mut().zip(&part.latencies) {
            sum.add(latency);
        }
        sums.concerns.add(&part.concerns);
        sums.authentications.add(&part.authentications);
        for (stage, count) in part.stages {
            *sums.stages.entry(stage).or_default() += count;
        }
        sums.operators.add(&part.operators);
        sums.cached_plans.0 += part.cached_plans.0;
        sums.cached_plans.1 += part.cached_plans.1;
        sums.cursors.open += part.cursors.open;
        sums.cursors.no_timeout += part.cursors.no_timeout;
        sums.cursors.pinned += part.cursors.pinned;
        sums.sessions += part.sessions;
        sums.running += part.running;
        sums.physical_bytes_in += part.runtime.network_in_bytes;
        sums.physical_bytes_out += part.runtime.network_out_bytes;
        sums.profile_writers += part.profile_writers;
        sums.awaiting_topology += part.awaiting_topology;
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
pub(crate) async fn server_status(cmd: Invocation) -> Result<Reply> {
    let mut out = Reply::new();
    // Any field may name a section to leave out or to put in, so none is unknown.
    let wanted = |section: &str| pinion_bson::get(cmd.body(), section).is_none_or(truthy);
    let latencies =
        pinion_bson::get(cmd.body(), "opLatencies").and_then(|asked| asked.as_document());
    let histograms = latencies.and_then(|asked| pinion_bson::get(asked, "histograms"));
    append_status(&mut out, histograms.is_some_and(truthy), wanted).await;
    if pinion_bson::get(cmd.body(), "oplog").is_some_and(truthy) {
        pinion_exec::commands::status_member::append_oplog(&mut out).await?;
    }
    Ok(out)
}

/// `getDiagnosticData`: what a collector of diagnostic data would take now.
pub(crate) async fn get_diagnostic_data(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["getDiagnosticData"]);
    reader.finish()?;
    let now = || RawBsonRef::DateTime(DateTime::from_millis(pinion_runtime::wall_ms()));
    let mut out = Reply::new();
    out.start_document("data").append("start", now());
    out.start_document("serverStatus").append("start", now());
    append_status(&mut out, false, |_| true).await;
    out.append("end", now()).end();
    if let Some(set) = replica_set() {
        out.start_document("replSetGetStatus")
            .append("start", now());
        // Before the set is initiated there is nothing to show.
        if let Ok(status) = set.status().await {
            out.append_all(&status);
        }
        out.append("end", now()).end();
        append_oplog_stats(&cmd.ctx, &mut out).await?;
    }
    if let Some(source) = pinion_runtime::try_core_local::<SystemSource>() {
        out.start_document("systemMetrics").append("start", now());
        out.append_all(&(source.0)());
        out.append("end", now()).end();
    }
    out.append("end", now()).end();
    Ok(out)
}

/// Appends `local.oplog.rs.stats`, as a collector takes it by `$collStats`.
async fn append_oplog_stats(ctx: &OpContext, out: &mut DocBuilder) -> Result<()> {
    let now = || RawBsonRef::DateTime(DateTime::from_millis(pinion_runtime::wall_ms()));
    let oplog = Namespace::parse(OPLOG)?;
    let acquired = acquire_stored(ctx, oplog, None).await?;
    out.start_document("local.oplog.rs.stats")
        .append("start", now())
        .append("ns", OPLOG);
    out.start_document("storageStats");
    pinion_exec::commands::stats::append_collection_stats(out, &acquired, 1).await;
    out.end().append("end", now()).end();
    Ok(())
}

/// Appends the sections that are wanted, latencies with their histograms or without.
async fn append_status(out: &mut DocBuilder, histograms: bool, wanted: impl Fn(&str) -> bool) {
    let shared = node_info();
    let sums = sums().await;
    let uptime_ms = shared.started.elapsed().as_millis() as i64;
    let [major, minor, patch, _] = COMPATIBLE_VERSION;
    out.append("host", shared.options.host.as_str())
        .append("version", format!("{major}.{minor}.{patch}").as_str())
        .append("process", "mongod")
        .append("pid", i64::from(shared.options.pid))
        .append("uptime", (uptime_ms / 1000) as f64)
        .append("uptimeMillis", uptime_ms)
        .append("uptimeEstimate", uptime_ms / 1000)
        .append(
            "localTime",
            RawBsonRef::DateTime(DateTime::from_millis(pinion_runtime::wall_ms())),
        );
    let c = &sums.counters;
    if wanted("asserts") {
        out.start_document("asserts")
            .append("regular", c.assert_regular as i32)
            // Kinds of assertions that this node does not have, and counters of 64 bits do not roll
            // over.
            .append("warning", 0i32)
            .append("msg", 0i32)
            .append("user", c.assert_user as i32)
            .append("rollovers", 0i32)
            .append("tripwire", 0i32)
            .end();
    }
    if wanted("catalogStats") {
        append_catalog(out).await;
    }
    if wanted("connections") {
        append_connections(out, &sums).await;
    }
    let figures = ReplicationFigures::take(sums.counters).await;
    pinion_exec::commands::status_member::append_sections(out, &figures, &wanted).await;
    if wanted("extra_info") {
        append_extra_info(out);
    }
    if wanted("globalLock") {
        let total = (c.active_readers + c.active_writers) as i32;
        let waiting = waiting_operations().await;
        out.start_document("globalLock")
            .append("totalTime", uptime_ms * 1000);
        out.start_document("currentQueue")
            .append("total", waiting[0] + waiting[1])
            .append("readers", waiting[0])
            .append("writers", waiting[1])
            .end();
        out.start_document("activeClients")
            .append("total", total)
            .append("readers", c.active_readers as i32)
            .append("writers", c.active_writers as i32)
            .end();
        out.end();
    }
    if wanted("indexBuilds") {
        append_index_builds(out).await;
    }
    if wanted("locks") {
        append_locks(out).await;
    }
    if wanted("logicalSessionRecordCache") {
        out.start_document("logicalSessionRecordCache")
            .append("activeSessionsCount", sums.sessions as i32)
            .end();
    }
    if wanted("network") {
        append_network(out, [sums.physical_bytes_in, sums.physical_bytes_out]).await;
    }
    if wanted("opLatencies") {
        out.start_document("opLatencies");
        for (name, latency) in ["reads", "writes", "commands", "transactions"]
            .into_iter()
            .zip(&sums.latencies)
        {
            out.start_document(name);
            latency.append(out, histograms);
            out.end();
        }
        out.end();
    }
    if wanted("opcounters") {
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
    append_replicated(out, c, &wanted);
    if wanted("opWriteConcernCounters") && parameters().borrow().shows_write_concerns {
        sums.concerns.append_writes(out);
    }
    if wanted("queues") {
        append_queues(out, c).await;
    }
    if wanted("readConcernCounters") {
        sums.concerns.append_reads(out);
    }
    if wanted("security") {
        sums.authentications.append(out);
    }
    if wanted("transactions") {
        pinion_exec::commands::transactions::append_status(out, c).await;
    }
    if wanted("profiler") {
        out.start_document("profiler")
            .append("totalWrites", c.profiled as i64)
            .append("activeWriters", sums.profile_writers as i64)
            .end();
    }
    if wanted("querySettings") {
        pinion_exec::commands::query_settings::append_status(out);
    }
    if wanted("storageEngine") {
        out.start_document("storageEngine")
            .append("name", "pinion")
            .append("supportsCommittedReads", true)
            .append("persistent", true)
            .append("readOnly", false)
            .end();
    }
    if wanted("wiredTiger") {
        append_engine(out).await;
    }
    if wanted("pinion") {
        append_pinion(out, c.reads_renewed).await;
    }
    if wanted("mem") {
        append_memory(out);
    }
    if wanted("metrics") {
        append_metrics(out, &sums, &figures);
    }
}

/// `queues`: what bounds the operations that run at once. There are no tickets for them: a
/// connection has one operation at a time, so there are as many as the node takes connections.
async fn append_queues(out: &mut DocBuilder, c: &CounterValues) {
    let most = pinion_runtime::on_all_cores(|_| async { ConnectionCounts::here().most }).await;
    let most = most.into_iter().max().unwrap_or_default();
    let available = most.saturating_sub(c.active_readers + c.active_writers);
    out.start_document("queues").start_document("execution");
    for (name, running) in [("write", c.active_writers), ("read", c.active_readers)] {
        out.start_document(name)
            .append("out", running as i32)
            .append("available", available as i32)
            .append("totalTickets", most as i32)
            .end();
    }
    out.end().end();
}

async fn append_connections(out: &mut DocBuilder, sums: &Sums) {
    let mut sum = ConnectionCounts::default();
    for part in pinion_runtime::on_all_cores(|_| async { ConnectionCounts::here() }).await {
        sum.add(&part);
    }
    out.start_document("connections")
        .append("current", sum.current as i32)
        .append("available", sum.most.saturating_sub(sum.current) as i32)
        .append("totalCreated", sum.created as i32)
        .append("rejected", sum.rejected as i32)
        .append("active", sums.running as i32)
        .append("exhaustIsMaster", sum.exhaust_is_master as i32)
        .append("exhaustHello", sum.exhaust_hello as i32)
        .append("awaitingTopologyChanges", sums.awaiting_topology as i32)
        .end();
}

/// What the connection layer says of its connections.
#[derive(Default)]
struct ConnectionCounts {
    current: u64,
    created: u64,
    rejected: u64,
    /// The most that the node takes.
    most: u64,
    exhaust_is_master: u64,
    exhaust_hello: u64,
}

impl ConnectionCounts {
    fn here() -> ConnectionCounts {
        let Some(counters) = pinion_runtime::try_core_local::<ServerCounters>() else {
            return ConnectionCounts::default();
        };
        ConnectionCounts {
            current: counters.current.get(),
            created: counters.total_created.get(),
            rejected: counters.rejected.get(),
            most: counters.max_connections.get(),
            exhaust_is_master: counters.exhaust_is_master.get(),
            exhaust_hello: counters.exhaust_hello.get(),
        }
    }

    fn add(&mut self, other: &ConnectionCounts) {
        self.current += other.current;
        self.created += other.created;
        self.rejected += other.rejected;
        self.most = self.most.max(other.most);
        self.exhaust_is_master += other.exhaust_is_master;
        self.exhaust_hello += other.exhaust_hello;
    }
}

/// Readers and writers that wait in front of a gate.
async fn waiting_operations() -> [i32; 2] {
    let mut waiting = [0; 2];
    let parts = pinion_runtime::on_all_cores(|_| async { core_catalog().gates().in_use() }).await;
    for gate in parts.iter().flatten() {
        waiting[0] += gate.waiting_readers as i32;
        waiting[1] += gate.waiting_writers as i32;
    }
    waiting
}

/// Under the names that dashboards read.
async fn append_engine(out: &mut DocBuilder) {
    let s = storage_stats().await;
    out.start_document("wiredTiger")
        .append("uri", "statistics:");
    out.start_document("cache");
    for (name, value) in [
        (
            "bytes currently in the cache",
            s.cache_bytes + s.delta_bytes,
        ),
        ("maximum bytes configured", s.memory_budget_bytes),
        ("tracked dirty bytes in the cache", s.delta_bytes),
        ("bytes read into cache", s.page_bytes_read),
        ("bytes written from cache", s.page_bytes_written),
        ("pages read into cache", s.cache_misses),
        (
            "pages requested from the cache",
            s.cache_hits + s.cache_misses,
        ),
        ("pages written from cache", s.pages_written),
        ("unmodified pages evicted", s.cache_evictions),
        (
            "operations timed out waiting for space in cache",
            s.refused_steps,
        ),
    ] {
        out.append(name, value as i64);
    }
    out.end();
    out.start_document("log");
    for (name, value) in [
        ("log bytes of payload data", s.ring_entry_bytes),
        ("log bytes written", s.ring_bytes),
        ("log sync operations", s.ring_flushes),
        ("log write operations", s.ring_entries),
    ] {
        out.append(name, value as i64);
    }
    out.end();
    out.start_document("block-manager")
        .append("bytes read", s.page_bytes_read as i64)
        .append("bytes written", s.page_bytes_written as i64)
        .end();
    out.start_document("transaction");
    for (name, value) in [
        ("transaction checkpoints", s.checkpoints),
        (
            "transaction checkpoint most recent time (msecs)",
            s.checkpoint_last_ms,
        ),
        (
            "transaction checkpoint total time (msecs)",
            s.checkpoint_total_ms,
        ),
    ] {
        out.append(name, value as i64);
    }
    out.end().end();
}

/// What no field of MongoDB's has a place for.
async fn append_pinion(out: &mut DocBuilder, reads_renewed: u64) {
    let s = storage_stats().await;
    out.start_document("pinion")
        .append("version", node_info().options.version.as_str());
    out.start_document("runtime");
    let mut sums = [0u64; 5];
    for part in pinion_runtime::on_all_cores(|_| async { pinion_runtime::stats() }).await {
        let values = [
            part.device_flushes,
            part.stalls,
            part.mesh_messages,
            part.busy_ns,
            part.idle_ns,
        ];
        sums.iter_mut()
            .zip(values)
            .for_each(|(sum, value)| *sum += value);
    }
    let [flushes, stalls, messages, busy_ns, idle_ns] = sums;
    for (name, value) in [
        ("deviceFlushes", flushes),
        ("stalls", stalls),
        ("meshMessages", messages),
        ("busyMicros", busy_ns / 1_000),
        ("idleMicros", idle_ns / 1_000),
    ] {
        out.append(name, value as i64);
    }
    out.end();
    let (held, spilled) = node_memory().in_use();
    out.start_document("operations")
        .append("heldBytes", held as i64)
        .append("spilledBytes", spilled as i64)
        .end();
    out.start_document("storage");
    for (name, value) in [
        ("intents", s.intents),
        ("deltaBytes", s.delta_bytes),
        ("deltaBudgetBytes", s.delta_budget_bytes),
        ("delayedWrites", s.delayed_steps),
        ("refusedWrites", s.refused_steps),
        ("snapshotBytes", s.retired_bytes),
        ("snapshotDiskBytes", s.history_disk_bytes),
        ("snapshotsEnded", s.expired_views),
        ("layersAboveStable", s.layers),
        ("layerDiskBytes", s.layer_disk_bytes),
        ("layeredSinceSecs", s.layered_since >> 32),
        ("stableLagSecs", s.stable_lag_secs),
        ("failedRunWrites", s.failed_runs),
        ("waitsForDiskRoom", s.waits_for_room),
        ("readsRenewed", reads_renewed),
        ("pageFileBytes", s.page_file_bytes),
        ("pageFreeBytes", s.page_free_bytes),
        ("ringSegmentsCreated", s.ring_segments_created),
        ("ringSegmentsReused", s.ring_segments_reused),
    ] {
        out.append(name, value as i64);
    }
    out.end().end();
}

fn append_metrics(out: &mut DocBuilder, sums: &Sums, figures: &ReplicationFigures) {
    let c = &sums.counters;
    out.start_document("metrics");
    pinion_exec::commands::stage_counts::append(out, &sums.stages);
    out.start_document("commands")
        .append("<UNKNOWN>", sums.unknown_commands as i64);
    for (name, (total, failed)) in &sums.commands {
        out.start_document(name)
            .append("failed", *failed as i64)
            .append("total", *total as i64)
            .end();
    }
    out.end();
    append_cursors(out, c, &sums.cursors);
    out.start_document("document")
        .append("deleted", c.documents_deleted as i64)
        .append("inserted", c.documents_inserted as i64)
        .append("returned", c.documents_returned as i64)
        .append("updated", c.documents_updated as i64)
        .end();
    out.start_document("getLastError")
        .start_document("default")
        .append("unsatisfiable", c.default_concern_unsatisfiable as i64)
        .append("wtimeouts", c.default_concern_timeouts as i64)
        .end();
    out.start_document("wtime")
        .append("num", c.concern_waits as i32)
        .append("totalMillis", (c.concern_wait_us / 1000) as i32)
        .end();
    out.append("wtimeouts", c.concern_timeouts as i64).end();
    out.start_document("operation");
    for (name, count) in [
        ("killedDueToClientDisconnect", c.killed_by_disconnect),
        (
            "killedDueToDefaultMaxTimeMSExpired",
            c.killed_by_default_time,
        ),
        ("killedDueToMaxTimeMSExpired", c.killed_by_time),
        ("scanAndOrder", c.sorts_in_memory),
        ("temporarilyUnavailableErrors", c.unavailable),
        (
            "temporarilyUnavailableErrorsConvertedToWriteConflict",
            c.unavailable_as_conflict,
        ),
        ("temporarilyUnavailableErrorsEscaped", c.unavailable_escaped),
        ("transactionTooLargeForCacheErrors", c.too_large),
        ("writeConflicts", c.write_conflicts),
    ] {
        out.append(name, count as i64);
    }
    out.end();
    append_operators(out, sums);
    append_query(out, sums);
    out.start_document("queryExecutor")
        .append("scanned", c.keys_examined as i64)
        .append("scannedObjects", c.docs_examined as i64);
    out.start_document("collectionScans")
        .append("nonTailable", (c.collection_scans - c.tailing_scans) as i64)
        .append("total", c.collection_scans as i64)
        .end()
        .end();
    append_section(METRICS, "metrics.repl", figures, out);
    out.start_document("ttl")
        .append("deletedDocuments", c.ttl_deleted_documents as i64)
        .append("passes", c.ttl_passes as i64)
        .append("subPasses", c.ttl_sub_passes as i64)
        .end();
    out.end();
}

/// `metrics.cursor`.
fn append_cursors(out: &mut DocBuilder, c: &CounterValues, now: &CursorCounts) {
    out.start_document("cursor")
        .append("moreThanOneBatch", c.cursors_multi_batch as i64)
        .append("timedOut", c.cursors_timed_out as i64)
        .append("totalOpened", c.cursors_opened as i64);
    out.start_document("lifespan");
    for (name, count) in [
        ("greaterThanOrEqual10Minutes", c.cursors_longer),
        ("lessThan10Minutes", c.cursors_within_10m),
        ("lessThan15Seconds", c.cursors_within_15s),
        ("lessThan1Minute", c.cursors_within_1m),
        ("lessThan1Second", c.cursors_within_1s),
        ("lessThan30Seconds", c.cursors_within_30s),
        ("lessThan5Seconds", c.cursors_within_5s),
    ] {
        out.append(name, count as i64);
    }
    out.end();
    out.start_document("open")
        .append("noTimeout", now.no_timeout as i64)
        .append("pinned", now.pinned as i64)
        .append("total", now.open as i64)
        .end()
        .end();
}

/// `metrics.operatorCounters`. Each find by `_id` alone, which is not parsed, has an equality.
fn append_operators(out: &mut DocBuilder, sums: &Sums) {
    let mut operators = sums.operators.clone();
    operators.note(OperatorKind::Match, "$eq", sums.counters.finds_by_id);
    operator_counts::append(out, &operators);
}

/// `metrics.query.planCache` and the sizes beside it. Skipped are reads for which the cache was not
/// asked: there was one plan, or a hint.
fn append_plan_cache(out: &mut DocBuilder, sums: &Sums) {
    let (c, (entries, bytes)) = (&sums.counters, sums.cached_plans);
    out.start_document("planCache")
        .start_document("classic")
        .append("hits", c.plan_cache_hits as i64)
        .append("misses", c.plan_cache_misses as i64)
        .append("skipped", c.plan_cache_skipped as i64)
        .end()
        .end();
    out.append("planCacheTotalQueryShapes", entries as i64)
        .append("planCacheTotalSizeEstimateBytes", bytes as i64);
}

/// `metrics.query`: the plan cache, what sorts have sorted, and what stages have spilled.
fn append_query(out: &mut DocBuilder, sums: &Sums) {
    let c = &sums.counters;
    let begin = |out: &mut DocBuilder, name: &str, values: [u64; 4]| {
        let [spills, records, bytes, storage_bytes] = values;
        out.start_document(name)
            .append("spills", spills as i64)
            .append("spilledBytes", bytes as i64)
            .append("spilledDataStorageSize", storage_bytes as i64)
            .append("spilledRecords", records as i64);
    };
    out.start_document("query");
    let bucket_auto = [
        c.bucket_auto_spills,
        c.bucket_auto_spilled_records,
        c.bucket_auto_spilled_bytes,
        c.bucket_auto_spilled_storage_bytes,
    ];
    begin(out, "bucketAuto", bucket_auto);
    out.end();
    let group = [
        c.group_spills,
        c.group_spilled_records,
        c.group_spilled_bytes,
        c.group_spilled_storage_bytes,
    ];
    begin(out, "group", group);
    out.end();
    append_plan_cache(out, sums);
    let window_fields = [
        c.window_fields_spills,
        c.window_fields_spilled_records,
        c.window_fields_spilled_bytes,
        c.window_fields_spilled_storage_bytes,
    ];
    begin(out, "setWindowFields", window_fields);
    out.end();
    let sort = [
        c.sort_spills,
        c.sort_spilled_records,
        c.sort_spilled_bytes,
        c.sort_spilled_storage_bytes,
    ];
    begin(out, "sort", sort);
    out.append("spillToDisk", c.sort_spills as i64)
        .append("totalBytesSorted", c.sort_total_bytes as i64)
        .append("totalKeysSorted", c.sort_total_keys as i64)
        .end();
    out.end();
}

/// `top`.
pub(crate) async fn top(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["top"]);
    reader.finish()?;
    let mut all: BTreeMap<Arc<str>, TopEntry> = BTreeMap::new();
    for part in pinion_runtime::on_all_cores(|_| async { metrics().top() }).await {
        for (ns, entry) in part {
            all.entry(ns).or_default().add(&entry);
        }
    }
    let catalog = pinion_catalog::core_catalog().current();
    let mut out = Reply::new();
    out.start_document("totals")
        .append("note", "all times in microseconds");
    for (ns, entry) in all.iter().filter(|(ns, _)| catalog.get_full(ns).is_some()) {
        out.start_document(ns);
        entry.append(&mut out);
        out.end();
    }
    out.end();
    Ok(out)
}
