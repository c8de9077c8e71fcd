//! Sections of `serverStatus` about the process, the catalog and the gates.

use pinion_bson::DocBuilder;
use pinion_catalog::{Collection, CollectionKind, GateCounts, View, core_catalog};
use pinion_wire::idl::Namespace;

/// What the process has used of the machine since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUsage {
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    pub max_resident_bytes: u64,
    pub user_us: u64,
    pub system_us: u64,
    /// Page faults without and with a read from a device.
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Bytes read from and written to devices.
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Tells the use of the machine; set by the binary, because a simulated node has none of its own.
pub struct ProcessSource(pub Box<dyn Fn() -> ProcessUsage>);

fn process_usage() -> Option<ProcessUsage> {
    let source = pinion_runtime::try_core_local::<ProcessSource>()?;
    Some((source.0)())
}

/// `mem`, where the node has a process of its own.
pub(super) fn append_memory(out: &mut DocBuilder) {
    let Some(usage) = process_usage() else {
        return;
    };
    out.start_document("mem")
        .append("bits", 64i32)
        .append("resident", (usage.resident_bytes >> 20) as i32)
        .append("virtual", (usage.virtual_bytes >> 20) as i32)
        .append("supported", true)
        .end();
}

/// `extra_info`, where the node has a process of its own.
pub(super) fn append_extra_info(out: &mut DocBuilder) {
    const BLOCK_BYTES: u64 = 512;
    let Some(usage) = process_usage() else {
        return;
    };
    out.start_document("extra_info")
        .append("note", "fields vary by platform");
    for (name, value) in [
        ("user_time_us", usage.user_us),
        ("system_time_us", usage.system_us),
        ("maximum_resident_set_kb", usage.max_resident_bytes >> 10),
        ("input_blocks", usage.read_bytes / BLOCK_BYTES),
        ("output_blocks", usage.written_bytes / BLOCK_BYTES),
        ("page_reclaims", usage.minor_faults),
        ("page_faults", usage.major_faults),
    ] {
        out.append(name, value as i64);
    }
    out.end();
}

/// How many collections of each kind there are. Those of the node's own databases, and those that the system makes, are
/// internal.
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

/// `locks`: operations share a collection's gate as with intent locks, changes of the catalog close it.
pub(super) async fn append_locks(out: &mut DocBuilder) {
    let mut sum = GateCounts::default();
    for counts in pinion_runtime::on_all_cores(|_| async { core_catalog().gates().counts() }).await
    {
        sum += counts;
    }
    out.start_document("locks").start_document("Collection");
    for (name, modes) in [
        (
            "acquireCount",
            [
                ("r", sum.reads),
                ("w", sum.writes),
                ("R", sum.closed_to_writers),
                ("W", sum.closed),
            ]
            .as_slice(),
        ),
        (
            "acquireWaitCount",
            &[("r", sum.read_waits), ("w", sum.write_waits)],
        ),
        (
            "timeAcquiringMicros",
            &[("r", sum.read_wait_us), ("w", sum.write_wait_us)],
        ),
    ] {
        out.start_document(name);
        for (mode, count) in modes {
            out.append(mode, *count as i64);
        }
        out.end();
    }
    out.end().end();
}

/// What a node without a replica set has never done: operations of a primary applied, and transactions.
pub(super) fn append_replicated(out: &mut DocBuilder, wanted: impl Fn(&str) -> bool) {
    if wanted("opcountersRepl") {
        out.start_document("opcountersRepl");
        for name in ["insert", "query", "update", "delete", "getmore", "command"] {
            out.append(name, 0i64);
        }
        out.end();
    }
    if wanted("transactions") {
        out.start_document("transactions");
        for name in [
            "currentActive",
            "currentInactive",
            "currentOpen",
            "totalAborted",
            "totalCommitted",
            "totalStarted",
        ] {
            out.append(name, 0i64);
        }
        out.end();
    }
}
