//! Sections of `serverStatus` about the process, the network, the catalog and the gates.

use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_catalog::{
    Acquisitions, BuildActivity, BuildInfo, BuildPhase, Collection, CollectionKind, GateCounts,
    View, core_catalog,
};
use pinion_service::metrics::CounterValues;
use pinion_wire::idl::Namespace;
use pinion_wire::{Compressor, ServerCounters};

/// What the whole machine does, section by section, as a collector of diagnostic data reads it; set
/// by the binary, because a simulated node has no machine of its own.
pub struct SystemSource(pub Box<dyn Fn() -> RawDocumentBuf>);

/// How many collections of each kind there are. Those of the node's own databases, and those that
/// the system makes, are internal.
#[derive(Default, PartialEq, Eq, Debug)]
struct CatalogCounts {
    collections: i32,
    capped: i32,
    clustered: i32,
    timeseries: i32,
    views: i32,
    internal_collections: i32,
    internal_views: i32,
    system_profile: i32,
}

impl CatalogCounts {
    fn count(&mut self, collection: &Collection) {
        *match is_internal(&collection.ns) {
            true => &mut self.internal_collections,
            false => &mut self.collections,
        } += 1;
        self.capped += i32::from(collection.options.capped.is_some());
        self.clustered += i32::from(collection.options.clustered.is_some());
        self.system_profile += i32::from(collection.ns.collection() == "system.profile");
    }

    fn count_view(&mut self, view: &View) {
        *match (is_internal(&view.ns), view.kind()) {
            (_, CollectionKind::TimeSeries) => &mut self.timeseries,
            (true, _) => &mut self.internal_views,
            (false, _) => &mut self.views,
        } += 1;
    }
}

fn is_internal(ns: &Namespace) -> bool {
    matches!(ns.db(), "admin" | "config" | "local") || ns.collection().starts_with("system.")
}

/// `catalogStats`.
pub(super) async fn append_catalog(out: &mut DocBuilder) {
    let catalog = core_catalog().current();
    let mut counts = CatalogCounts::default();
    for collection in catalog.collections() {
        counts.count(collection);
        pinion_runtime::yield_if_due().await;
    }
    for view in catalog.views() {
        counts.count_view(view);
        pinion_runtime::yield_if_due().await;
    }
    out.start_document("catalogStats");
    for (name, count) in [
        ("collections", counts.collections),
        ("capped", counts.capped),
        ("clustered", counts.clustered),
        ("timeseries", counts.timeseries),
        ("views", counts.views),
        ("internalCollections", counts.internal_collections),
        ("internalViews", counts.internal_views),
        ("systemProfile", counts.system_profile),
    ] {
        out.append(name, count);
    }
    out.end();
}

/// `indexBuilds`.
pub(super) async fn append_index_builds(out: &mut DocBuilder) {
    let counts = pinion_catalog::build_counts().await;
    let running = pinion_catalog::index_builds().await;
    let count = |activity, phase| {
        let does = |build: &&BuildInfo| build.activity == activity && build.phase == phase;
        running.iter().filter(does).count() as i32
    };
    out.start_document("indexBuilds")
        .append("total", counts.total as i64)
        .append(
            "killedDueToInsufficientDiskSpace",
            counts.killed_by_low_disk as i64,
        )
        .append("failedDueToDataCorruption", counts.failed_on_damage as i64)
        .start_document("phases");
    let (fills, drain) = (BuildActivity::Fills, BuildPhase::Draining);
    for (name, builds) in [
        ("scanCollection", count(fills, BuildPhase::Scanning)),
        ("bulkLoad", count(fills, BuildPhase::Loading)),
        ("drainSideWritesTable", count(BuildActivity::Drains, drain)),
        (
            "waitForCommitQuorum",
            count(BuildActivity::WaitsForSet, drain),
        ),
        ("commit", count(BuildActivity::Commits, drain)),
    ] {
        out.append(name, builds);
    }
    out.end().end();
}

/// `locks`, of the gates that there are. The lock of `fsync` is the global one: writers and changes
/// of the catalog pass it. Databases are locked by changes of the catalog alone, against each
/// other. Operations pass a collection's gate as they would take an intent lock, and changes of the
/// catalog close it. Each core has its part of the global lock and of a gate, and counts alone.
pub(super) async fn append_locks(out: &mut DocBuilder) {
    let mut gates = GateCounts::default();
    for counts in pinion_runtime::on_all_cores(|_| async { core_catalog().gates().counts() }).await
    {
        gates += counts;
    }
    let databases = pinion_catalog::database_locks().await;
    out.start_document("locks");
    append_lock(
        out,
        "Global",
        &[("w", gates.node_writes), ("R", gates.node_locks)],
    );
    append_lock(
        out,
        "Database",
        &[("w", databases.in_part), ("W", databases.whole)],
    );
    append_lock(
        out,
        "Collection",
        &[
            ("r", gates.reads),
            ("w", gates.writes),
            ("R", gates.closed_to_writers),
            ("W", gates.closed),
        ],
    );
    out.end();
}

fn append_lock(out: &mut DocBuilder, name: &str, modes: &[(&str, Acquisitions)]) {
    type Figure = fn(&Acquisitions) -> u64;
    let figures: [(&str, Figure); 3] = [
        ("acquireCount", |of| of.count),
        ("acquireWaitCount", |of| of.waits),
        ("timeAcquiringMicros", |of| of.wait_us),
    ];
    out.start_document(name);
    for (figure, read) in figures {
        out.start_document(figure);
        for (mode, acquisitions) in modes {
            out.append(mode, read(acquisitions) as i64);
        }
        out.end();
    }
    out.end();
}

/// What a node does as a member of a replica set, and a standalone never: operations of a primary
/// applied.
pub(super) fn append_replicated(
    out: &mut DocBuilder,
    counters: &CounterValues,
    wanted: impl Fn(&str) -> bool,
) {
    if wanted("opcountersRepl") {
        out.start_document("opcountersRepl");
        for (name, applied) in [
            ("insert", counters.applied_inserts),
            // The oplog has no reads.
            ("query", 0),
            ("update", counters.applied_updates),
            ("delete", counters.applied_deletes),
            ("getmore", 0),
            ("command", counters.applied_commands),
        ] {
            out.append(name, applied as i64);
        }
        out.end();
    }
}

/// What one core says of the network: bytes of messages in and out, messages in, and what each
/// compressor took and gave when it compressed and when it decompressed.
type NetworkCounts = ([u64; 3], [[u64; 4]; Compressor::OFFERED.len()]);

fn network_counts() -> NetworkCounts {
    let Some(counters) = pinion_runtime::try_core_local::<ServerCounters>() else {
        return Default::default();
    };
    let messages = [&counters.bytes_in, &counters.bytes_out, &counters.requests];
    let compression = counters.compression.each_ref().map(|of| {
        [
            of.compressed_in.get(),
            of.compressed_out.get(),
            of.decompressed_in.get(),
            of.decompressed_out.get(),
        ]
    });
    (messages.map(|counter| counter.get()), compression)
}

/// `network`; the physical bytes are those that went over the wire, in and out.
pub(super) async fn append_network(out: &mut DocBuilder, physical: [u64; 2]) {
    let (mut messages, mut compression) = NetworkCounts::default();
    for (more, compressed) in pinion_runtime::on_all_cores(|_| async { network_counts() }).await {
        messages.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
        for (sums, counts) in compression.iter_mut().zip(compressed) {
            sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        }
    }
    let [bytes_in, bytes_out, requests] = messages;
    let [physical_in, physical_out] = physical;
    out.start_document("network");
    for (name, value) in [
        ("bytesIn", bytes_in),
        ("bytesOut", bytes_out),
        ("physicalBytesIn", physical_in),
        ("physicalBytesOut", physical_out),
        ("numRequests", requests),
    ] {
        out.append(name, value as i64);
    }
    out.start_document("compression");
    for (compressor, counts) in Compressor::OFFERED.iter().zip(compression) {
        let [
            compressed_in,
            compressed_out,
            decompressed_in,
            decompressed_out,
        ] = counts;
        out.start_document(compressor.name());
        for (direction, bytes_in, bytes_out) in [
            ("compressor", compressed_in, compressed_out),
            ("decompressor", decompressed_in, decompressed_out),
        ] {
            out.start_document(direction)
                .append("bytesIn", bytes_in as i64)
                .append("bytesOut", bytes_out as i64)
                .end();
        }
        out.end();
    }
    out.end().end();
}
