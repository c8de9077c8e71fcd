//! Counters of one core. `serverStatus`, `top` and mongostat show their sums over all cores.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::DocBuilder;
use pinion_runtime::Instant;
use pinion_wire::LogicalOp;

use crate::counter::Counter;
use crate::latency::{Latency, LatencyValues};
use crate::limits::MIN_TOP_NAMESPACES;

/// Counts one up on its core as long as it lives.
pub struct Gauge(fn(&Counters) -> &Counter);

impl Gauge {
    /// Counts one up, until what this gives is dropped.
    pub fn up(counter: fn(&Counters) -> &Counter) -> Gauge {
        counter(&metrics().counters).inc();
        Gauge(counter)
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        // A node that ends drops what waits with its cores' state, or after it.
        if let Some(metrics) = pinion_runtime::try_core_local::<Metrics>() {
            (self.0)(&metrics.counters).dec();
        }
    }
}

/// What kind of work an operation is, for latencies and `opcounters`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpClass {
    Read,
    Write,
    Command,
}

macro_rules! counters {
    ($($name:ident)*) => {
        /// The plain counters of one core.
        #[derive(Debug, Default)]
        pub struct Counters { $(pub $name: Counter,)* }

        /// Their values, summed over cores.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterValues { $(pub $name: u64,)* }

        impl Counters {
            /// The present values.
            pub fn values(&self) -> CounterValues {
                CounterValues { $($name: self.$name.get(),)* }
            }
        }

        impl CounterValues {
            /// Adds another core's values.
            pub fn add(&mut self, other: &CounterValues) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    // opcounters
    insert query update delete getmore command
    // metrics.document
    documents_inserted documents_updated documents_deleted documents_returned
    // metrics.queryExecutor and metrics.operation
    keys_examined docs_examined collection_scans tailing_scans sorts_in_memory
    // finds by `_id` that are not parsed
    finds_by_id
    // metrics.query.planCache
    plan_cache_hits plan_cache_misses plan_cache_skipped
    // parts of reads that took a newer state
    reads_renewed
    // metrics.query
    sort_total_bytes sort_total_keys
    sort_spills sort_spilled_records sort_spilled_bytes sort_spilled_storage_bytes
    group_spills group_spilled_records group_spilled_bytes group_spilled_storage_bytes
    bucket_auto_spills bucket_auto_spilled_records bucket_auto_spilled_bytes bucket_auto_spilled_storage_bytes
    window_fields_spills window_fields_spilled_records window_fields_spilled_bytes window_fields_spilled_storage_bytes
    write_conflicts duplicate_key_errors
    // transactions
    retried_commands retried_statements session_records
    transactions_started transactions_committed transactions_aborted
    transactions_prepared prepared_committed prepared_aborted
    // metrics.cursor
    cursors_opened cursors_timed_out cursors_multi_batch
    cursors_within_1s cursors_within_5s cursors_within_15s cursors_within_30s cursors_within_1m
    cursors_within_10m cursors_longer
    // globalLock
    active_readers active_writers
    // asserts
    assert_user assert_regular
    // transactions of the applier
    entries_replayed
    // metrics.operation
    killed_by_time killed_by_default_time killed_by_disconnect
    // opcountersRepl
    applied_inserts applied_updates applied_deletes applied_commands
    // profiler
    profiled
    // connections
    awaiting_topology
    // reads of clients that wait for data
    awaiting_data
    // metrics.operation: memory that was short
    unavailable unavailable_escaped unavailable_as_conflict too_large
    // metrics.getLastError
    concern_waits concern_wait_us concern_timeouts default_concern_timeouts default_concern_unsatisfiable
    // metrics.repl
    oplog_get_mores oplog_get_mores_us waiting_for_op_time waiting_for_replication
    unacknowledged_not_primary
    // metrics.ttl
    ttl_deleted_documents ttl_passes ttl_sub_passes
}

impl Counters {
    /// Counts an operation of another member that was applied, by its kind in the oplog.
    pub fn applied(&self, op: &str) {
        match op {
            "i" => self.applied_inserts.inc(),
            "u" => self.applied_updates.inc(),
            "d" => self.applied_deletes.inc(),
            "c" => self.applied_commands.inc(),
            // One that changes nothing.
            _ => {}
        }
    }

    /// Counts a cursor that is gone, by how long it lived.
    pub(crate) fn cursor_ended(&self, lived_secs: u64, batches: u64) {
        if batches > 1 {
            self.cursors_multi_batch.inc();
        }
        let lived = match lived_secs {
            0 => &self.cursors_within_1s,
            1..5 => &self.cursors_within_5s,
            5..15 => &self.cursors_within_15s,
            15..30 => &self.cursors_within_30s,
            30..60 => &self.cursors_within_1m,
            60..600 => &self.cursors_within_10m,
            _ => &self.cursors_longer,
        };
        lived.inc();
    }
}

/// Reads and writes of one namespace, for `top`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub count: u64,
    pub time_us: u64,
}

/// What `top` shows for one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopEntry {
    pub total: Usage,
    pub reads: Usage,
    pub writes: Usage,
    pub queries: Usage,
    pub getmore: Usage,
    pub insert: Usage,
    pub update: Usage,
    pub remove: Usage,
    pub commands: Usage,
}

impl TopEntry {
    /// Appends it as `top` and `$collStats` show it.
    pub fn append(&self, out: &mut DocBuilder) {
        for (name, usage) in [
            ("total", self.total),
            ("readLock", self.reads),
            ("writeLock", self.writes),
            ("queries", self.queries),
            ("getmore", self.getmore),
            ("insert", self.insert),
            ("update", self.update),
            ("remove", self.remove),
            ("commands", self.commands),
        ] {
            out.start_document(name)
                .append("time", usage.time_us as i64)
                .append("count", usage.count as i64)
                .end();
        }
    }

    fn record(&mut self, kind: LogicalOp, class: OpClass, us: u64) {
        let of_class = match class {
            OpClass::Read => Some(&mut self.reads),
            OpClass::Write => Some(&mut self.writes),
            OpClass::Command => None,
        };
        let of_kind = match kind {
            LogicalOp::Query => &mut self.queries,
            LogicalOp::GetMore => &mut self.getmore,
            LogicalOp::Insert => &mut self.insert,
            LogicalOp::Update => &mut self.update,
            LogicalOp::Remove => &mut self.remove,
            LogicalOp::Command => &mut self.commands,
        };
        for usage in [&mut self.total, of_kind].into_iter().chain(of_class) {
            usage.count += 1;
            usage.time_us += us;
        }
    }

    /// Adds another core's.
    pub fn add(&mut self, other: &TopEntry) {
        let pairs = [
            (&mut self.total, &other.total),
            (&mut self.reads, &other.reads),
            (&mut self.writes, &other.writes),
            (&mut self.queries, &other.queries),
            (&mut self.getmore, &other.getmore),
            (&mut self.insert, &other.insert),
            (&mut self.update, &other.update),
            (&mut self.remove, &other.remove),
            (&mut self.commands, &other.commands),
        ];
        for (mine, theirs) in pairs {
            mine.count += theirs.count;
            mine.time_us += theirs.time_us;
        }
    }
}

/// What one core knows of a namespace. Most are only read, or only written: the latencies of a
/// class of operations are there once there was one.
#[derive(Debug, Default)]
struct NamespaceUse {
    top: TopEntry,
    latencies: [Option<Box<Latency>>; 3],
}

/// How a namespace was used.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamespaceValues {
    pub top: TopEntry,
    /// Of reads, writes and other commands.
    pub latencies: [LatencyValues; 3],
}

impl NamespaceValues {
    /// Adds another core's values.
    pub fn add(&mut self, other: &NamespaceValues) {
        self.top.add(&other.top);
        for (mine, theirs) in self.latencies.iter_mut().zip(&other.latencies) {
            mine.add(theirs);
        }
    }
}

/// All metrics of one core.
#[derive(Debug, Default)]
pub struct Metrics {
    pub counters: Counters,
    pub reads: Latency,
    pub writes: Latency,
    pub commands: Latency,
    /// Of whole transactions, from their first statement to their end.
    pub transactions: Latency,
    top: RefCell<BTreeMap<Arc<str>, NamespaceUse>>,
    top_forget_at: Cell<usize>,
}

/// What this core has counted.
pub fn metrics() -> Rc<Metrics> {
    pinion_runtime::core_local()
}

impl Metrics {
    /// Records one finished operation.
    pub fn record(&self, class: OpClass, us: u64) {
        match class {
            OpClass::Read => self.reads.record(us),
            OpClass::Write => self.writes.record(us),
            OpClass::Command => self.commands.record(us),
        }
    }

    /// Records a transaction that has ended now.
    pub fn transaction_ended(&self, started: Instant) {
        self.transactions
            .record(started.elapsed().as_micros() as u64);
    }

    /// Records one finished operation of a namespace. Now and then it forgets those that do not
    /// exist any more, so it knows at most twice as many as there are.
    pub fn record_top(
        &self,
        ns: &str,
        (kind, class): (LogicalOp, OpClass),
        us: u64,
        exists: impl Fn(&str) -> bool,
    ) {
        let record = |used: &mut NamespaceUse| {
            used.top.record(kind, class, us);
            let latency = &mut used.latencies[class as usize];
            latency.get_or_insert_default().record(us);
        };
        let mut top = self.top.borrow_mut();
        if let Some(used) = top.get_mut(ns) {
            return record(used);
        }
        if top.len() >= self.top_forget_at.get().max(MIN_TOP_NAMESPACES) {
            top.retain(|ns, _| exists(ns));
            self.top_forget_at.set(2 * top.len());
        }
        record(top.entry(ns.into()).or_default());
    }

    /// A copy of what `top` shows.
    pub fn top(&self) -> BTreeMap<Arc<str>, TopEntry> {
        let top = self.top.borrow();
        top.iter()
            .map(|(ns, used)| (ns.clone(), used.top))
            .collect()
    }

    /// How one namespace was used.
    pub fn of_namespace(&self, ns: &str) -> NamespaceValues {
        let top = self.top.borrow();
        let Some(used) = top.get(ns) else {
            return NamespaceValues::default();
        };
        let values = |latency: &Option<Box<Latency>>| {
            latency
                .as_deref()
                .map(LatencyValues::of)
                .unwrap_or_default()
        };
        NamespaceValues {
            top: used.top,
            latencies: used.latencies.each_ref().map(values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `top` was full for ever once enough collections had come and gone, and knew nothing of later
    /// ones.
    #[test]
    fn collections_that_are_gone_make_room() {
        let metrics = Metrics::default();
        let exists = |ns: &str| ns == "db.kept" || ns == "db.last";
        metrics.record_top("db.kept", (LogicalOp::Query, OpClass::Read), 1, exists);
        for i in 0..3 * MIN_TOP_NAMESPACES {
            metrics.record_top(
                &format!("db.c{i}"),
                (LogicalOp::Query, OpClass::Read),
                1,
                exists,
            );
        }
        metrics.record_top("db.last", (LogicalOp::Insert, OpClass::Write), 1, exists);
        metrics.record_top("db.kept", (LogicalOp::Query, OpClass::Read), 1, exists);
        let top = metrics.top();
        assert!(top.len() <= MIN_TOP_NAMESPACES, "{}", top.len());
        assert_eq!(top["db.kept"].queries.count, 2);
        assert_eq!(top["db.last"].insert.count, 1);
        let kept = metrics.of_namespace("db.kept").latencies;
        assert_eq!([kept[0].ops, kept[1].ops, kept[2].ops], [2, 0, 0]);
        assert_eq!((kept[0].total_us, kept[0].count_of_step(0)), (2, 2));
    }
}
