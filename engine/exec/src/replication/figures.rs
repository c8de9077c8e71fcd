//! The figures of replication: what a member has counted of it, and the table of the metrics that
//! are made of them.
//!
//! The names, the types and what counts as which are MongoDB 8's. A standalone shows the same
//! metrics, and has counted nothing.

use pinion_bson::Timestamp as BsonTimestamp;
use pinion_metrics::{Kind, Row, Unit, Value};
use pinion_service::metrics::CounterValues;
use pinion_storage::{StorageStats, storage};

use crate::Rounds;
use crate::stats::storage_stats;
use crate::topology::{MemberFigures, replica_set};

/// What the metrics of replication are read off.
#[derive(Default)]
pub struct ReplicationFigures {
    member: MemberFigures,
    counters: CounterValues,
    storage: StorageStats,
    oldest: Option<BsonTimestamp>,
    is_ending: bool,
}

impl ReplicationFigures {
    /// Takes the figures as they are now, beside the sums of the counters of all cores.
    pub async fn take(counters: CounterValues) -> ReplicationFigures {
        let is_ending = pinion_runtime::is_shutdown_requested();
        let Some(set) = replica_set() else {
            return ReplicationFigures {
                counters,
                is_ending,
                ..ReplicationFigures::default()
            };
        };
        let member = set.figures().await;
        let oldest = storage().timeline().oldest;
        ReplicationFigures {
            member,
            counters,
            is_ending,
            storage: storage_stats().await,
            oldest: Some(BsonTimestamp {
                time: oldest.secs(),
                increment: oldest.inc(),
            }),
        }
    }
}

type Read = fn(&ReplicationFigures) -> Option<Value>;

const fn row(
    kind: Kind,
    path: &'static str,
    unit: Unit,
    help: &'static str,
    read: Read,
) -> Row<ReplicationFigures> {
    Row {
        path,
        kind,
        unit,
        help,
        read,
    }
}

const fn counter(path: &'static str, help: &'static str, read: Read) -> Row<ReplicationFigures> {
    row(Kind::Counter, path, Unit::Count, help, read)
}

const fn gauge(
    path: &'static str,
    unit: Unit,
    help: &'static str,
    read: Read,
) -> Row<ReplicationFigures> {
    row(Kind::Gauge, path, unit, help, read)
}

/// A counter of something else than things.
const fn amount(
    path: &'static str,
    unit: Unit,
    help: &'static str,
    read: Read,
) -> Row<ReplicationFigures> {
    row(Kind::Counter, path, unit, help, read)
}

fn count(count: u64) -> Option<Value> {
    Some(Value::count(count))
}

fn int(count: u64) -> Option<Value> {
    Some(Value::int(count))
}

fn millis(rounds: Rounds) -> Option<Value> {
    Some(Value::int(rounds.total.as_millis() as u64))
}

/// The metrics, in the order in which `serverStatus` shows them.
#[rustfmt::skip]
pub const METRICS: &[Row<ReplicationFigures>] = &[
    counter("electionMetrics.stepUpCmd.called", "Elections by `replSetStepUp`, the handoff of a primary that steps down among them.", |f| count(f.member.step_up_command.called)),
    counter("electionMetrics.stepUpCmd.successful", "Those that were won.", |f| count(f.member.step_up_command.successful)),
    counter("electionMetrics.priorityTakeover.called", "Elections because this member has a higher priority than the primary.", |f| count(f.member.priority_takeover.called)),
    counter("electionMetrics.priorityTakeover.successful", "Those that were won.", |f| count(f.member.priority_takeover.successful)),
    counter("electionMetrics.catchUpTakeover.called", "Elections because this member is ahead of a primary that catches up.", |f| count(f.member.catch_up_takeover.called)),
    counter("electionMetrics.catchUpTakeover.successful", "Those that were won.", |f| count(f.member.catch_up_takeover.successful)),
    counter("electionMetrics.electionTimeout.called", "Elections because the primary is gone.", |f| count(f.member.election_timeout.called)),
    counter("electionMetrics.electionTimeout.successful", "Those that were won.", |f| count(f.member.election_timeout.successful)),
    counter("electionMetrics.freezeTimeout.called", "Elections of a set of one.", |f| count(f.member.freeze_timeout.called)),
    counter("electionMetrics.freezeTimeout.successful", "Those that were won.", |f| count(f.member.freeze_timeout.successful)),
    counter("electionMetrics.numStepDownsCausedByHigherTerm", "Step-downs because of a later term.", |f| count(f.member.step_downs_by_higher_term)),
    counter("electionMetrics.numCatchUps", "Catch-ups in which this primary lacked something.", |f| count(f.member.catch_ups)),
    counter("electionMetrics.numCatchUpsSucceeded", "Those that got it.", |f| count(f.member.catch_ups_succeeded)),
    counter("electionMetrics.numCatchUpsAlreadyCaughtUp", "Catch-ups in which it lacked nothing.", |f| count(f.member.catch_ups_already_caught_up)),
    counter("electionMetrics.numCatchUpsSkipped", "Catch-ups of a set of one, or with `catchUpTimeoutMillis: 0`.", |f| count(f.member.catch_ups_skipped)),
    counter("electionMetrics.numCatchUpsTimedOut", "Those that took longer than `catchUpTimeoutMillis`.", |f| count(f.member.catch_ups_timed_out)),
    counter("electionMetrics.numCatchUpsFailedWithError", "Those whose source is on another branch, or during which the primary stepped down.", |f| count(f.member.catch_ups_failed_with_error)),
    counter("electionMetrics.numCatchUpsFailedWithNewTerm", "Those that a later term ended.", |f| count(f.member.catch_ups_failed_with_new_term)),
    counter("electionMetrics.numCatchUpsFailedWithReplSetAbortPrimaryCatchUpCmd", "Those that `replSetAbortPrimaryCatchUp` ended.", |f| count(f.member.catch_ups_aborted)),
    gauge("electionMetrics.averageCatchUpOps", Unit::Count, "Entries that a catch-up fetched, on average.", |f| Some(Value::Double(f.member.average_catch_up_operations))),

    amount("oplogTruncation.totalTimeTruncatingMicros", Unit::Micros, "Time in which segments were cut off the oplog's beginning.", |f| count(f.storage.log_truncating_us)),
    counter("oplogTruncation.truncateCount", "Segments that were cut off.", |f| count(f.storage.log_truncations)),
    gauge("oplogTruncation.oplogMinRetentionHours", Unit::Hours, "For how long entries are kept at least, beyond the oplog's size.", |f| Some(Value::Double(f.member.oplog_min_age.as_secs_f64() / 3600.0))),

    counter("metrics.repl.apply.attemptsToBecomeSecondary", "How often recovery was left for the state of a secondary.", |f| count(f.member.attempts_to_become_secondary)),
    counter("metrics.repl.apply.batchSize", "Entries handed over to be applied.", |f| count(f.member.handed_over)),
    counter("metrics.repl.apply.batches.num", "Batches of entries that were applied.", |f| int(f.member.apply_batches.count)),
    amount("metrics.repl.apply.batches.totalMillis", Unit::Millis, "Time from when each was logged until it was applied.", |f| millis(f.member.apply_batches)),
    counter("metrics.repl.apply.ops", "Entries that were applied.", |f| count(f.member.applied)),
    gauge("metrics.repl.buffer.count", Unit::Count, "Entries that were fetched and are not applied.", |f| count(f.member.write_buffer.entries + f.member.apply_buffer.entries)),
    gauge("metrics.repl.buffer.maxSizeBytes", Unit::Bytes, "The most bytes that both buffers hold.", |f| count(f.member.write_buffer_most_bytes + crate::limits::APPLIER_BYTES as u64)),
    gauge("metrics.repl.buffer.sizeBytes", Unit::Bytes, "The bytes of what was fetched and is not applied.", |f| count(f.member.write_buffer.bytes + f.member.apply_buffer.bytes)),
    gauge("metrics.repl.buffer.apply.count", Unit::Count, "Entries that are logged and not applied.", |f| count(f.member.apply_buffer.entries)),
    gauge("metrics.repl.buffer.apply.maxCount", Unit::Count, "The most entries that wait to be applied.", |_| count(crate::limits::APPLIER_ENTRIES as u64)),
    gauge("metrics.repl.buffer.apply.maxSizeBytes", Unit::Bytes, "The most bytes that wait to be applied.", |_| count(crate::limits::APPLIER_BYTES as u64)),
    gauge("metrics.repl.buffer.apply.sizeBytes", Unit::Bytes, "The bytes of what is logged and not applied.", |f| count(f.member.apply_buffer.bytes)),
    gauge("metrics.repl.buffer.write.count", Unit::Count, "Entries that were fetched and are not logged.", |f| count(f.member.write_buffer.entries)),
    gauge("metrics.repl.buffer.write.maxSizeBytes", Unit::Bytes, "The most bytes that wait to be logged.", |f| count(f.member.write_buffer_most_bytes)),
    gauge("metrics.repl.buffer.write.sizeBytes", Unit::Bytes, "The bytes of what was fetched and is not logged.", |f| count(f.member.write_buffer.bytes)),
    gauge("metrics.repl.executor.pool.inProgressCount", Unit::Count, "Tasks of the member that are being carried out.", |f| int(f.member.effects_in_progress)),
    gauge("metrics.repl.executor.queues.networkInProgress", Unit::Count, "Commands to other members that are not answered yet.", |f| int(f.member.requests_in_progress)),
    gauge("metrics.repl.executor.queues.sleepers", Unit::Count, "Timers of the member that run.", |f| int(f.member.timers)),
    gauge("metrics.repl.executor.unsignaledEvents", Unit::Count, "Commands that wait for something to happen to the set.", |f| int(f.member.commands_waiting)),
    gauge("metrics.repl.executor.shuttingDown", Unit::State, "Whether the node ends.", |f| Some(Value::Bool(f.is_ending))),
    counter("metrics.repl.initialSync.completed", "Initial syncs that were completed.", |f| count(f.member.initial_syncs)),
    counter("metrics.repl.initialSync.failedAttempts", "Attempts of them that failed.", |f| count(f.member.failed_initial_sync_attempts)),
    counter("metrics.repl.initialSync.failures", "Initial syncs that were given up.", |f| count(f.member.failed_initial_syncs)),
    amount("metrics.repl.network.bytes", Unit::Bytes, "Bytes of entries fetched from sources.", |f| count(f.member.fetched_bytes)),
    counter("metrics.repl.network.getmores.num", "Batches that sources were asked for.", |f| int(f.member.get_mores.count)),
    amount("metrics.repl.network.getmores.totalMillis", Unit::Millis, "Time in which they were waited for.", |f| millis(f.member.get_mores)),
    counter("metrics.repl.network.getmores.numEmptyBatches", "Those that brought nothing.", |f| count(f.member.empty_batches)),
    counter("metrics.repl.network.notPrimaryUnacknowledgedWrites", "Writes without acknowledgement that came to a node that is no primary.", |f| count(f.counters.unacknowledged_not_primary)),
    counter("metrics.repl.network.oplogGetMoresProcessed.num", "Batches of this member's oplog that others were given.", |f| count(f.counters.oplog_get_mores)),
    amount("metrics.repl.network.oplogGetMoresProcessed.totalMillis", Unit::Millis, "Time that these took, waiting included.", |f| count(f.counters.oplog_get_mores_us / 1000)),
    counter("metrics.repl.network.ops", "Entries fetched from sources.", |f| count(f.member.fetched)),
    counter("metrics.repl.network.readersCreated", "Cursors on oplogs of sources.", |f| count(f.member.readers_created)),
    counter("metrics.repl.network.replSetUpdatePosition.num", "Positions sent to sources.", |f| count(f.member.position_reports)),
    counter("metrics.repl.reconfig.numAutoReconfigsForRemovalOfNewlyAddedFields", "Members that this primary gave their vote once they had their data.", |f| count(f.member.new_member_reconfigs)),
    gauge("metrics.repl.stateTransition.lastStateTransition", Unit::State, "The last change of state: `stepUp`, `stepDown`, `rollback`, or nothing.", |f| Some(Value::Text(f.member.transition.name))),
    gauge("metrics.repl.stateTransition.totalOperationsKilled", Unit::Count, "Operations that it interrupted.", |f| count(f.member.transition.killed)),
    gauge("metrics.repl.stateTransition.totalOperationsRunning", Unit::Count, "Operations that continued.", |f| count(f.member.transition.running)),
    counter("metrics.repl.syncSource.numSelections", "Sync sources chosen.", |f| count(f.member.sources_same + f.member.sources_different)),
    counter("metrics.repl.syncSource.numTimesChoseDifferent", "Those that were not the one before.", |f| count(f.member.sources_different)),
    counter("metrics.repl.syncSource.numTimesChoseSame", "Those that were.", |f| count(f.member.sources_same)),
    counter("metrics.repl.syncSource.numTimesCouldNotFind", "How often none was found.", |f| count(f.member.sources_missing)),
    gauge("metrics.repl.timestamps.oldestTimestamp", Unit::Time, "The oldest time that can be read, as far as memory goes.", |f| f.oldest.map(Value::Time)),
    gauge("metrics.repl.waiters.opTime", Unit::Count, "Reads that wait for a time of the cluster.", |f| count(f.counters.waiting_for_op_time)),
    gauge("metrics.repl.waiters.replication", Unit::Count, "Writes that wait for other members.", |f| count(f.counters.waiting_for_replication)),
    counter("metrics.repl.write.batchSize", "Entries of others that were logged.", |f| count(f.member.written)),
    counter("metrics.repl.write.batches.num", "Batches of entries that were logged.", |f| int(f.member.write_batches.count)),
    amount("metrics.repl.write.batches.totalMillis", Unit::Millis, "Time that this took.", |f| millis(f.member.write_batches)),
];

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_metrics::describe;

    #[test]
    fn the_table_stands_in_the_documents() {
        let written = include_str!("../../../../docs/metrics.md");
        let table = describe(METRICS);
        assert!(
            written.ends_with(&table),
            "docs/metrics.md is to end with:\n{table}"
        );
    }

    #[test]
    fn units_are_those_of_the_names() {
        for row in METRICS {
            let unit = match row.path.rsplit('.').next().unwrap_or_default() {
                name if name.ends_with("Millis") => Unit::Millis,
                name if name.ends_with("Micros") => Unit::Micros,
                name if name.ends_with("Hours") => Unit::Hours,
                name if name.ends_with("ytes") => Unit::Bytes,
                name if name.ends_with("Timestamp") => Unit::Time,
                "lastStateTransition" | "shuttingDown" => Unit::State,
                _ => Unit::Count,
            };
            assert_eq!(row.unit, unit, "{}", row.path);
            assert!(row.help.ends_with('.'), "{}: {}", row.path, row.help);
        }
    }

    #[test]
    fn a_standalone_has_counted_nothing_and_says_so() {
        let mut out = pinion_bson::DocBuilder::new();
        let figures = ReplicationFigures::default();
        let shown: Vec<&Row<ReplicationFigures>> = METRICS
            .iter()
            .filter(|row| (row.read)(&figures).is_some())
            .collect();
        assert_eq!(
            shown.len(),
            METRICS.len() - 1,
            "the oldest time is a member's"
        );
        // Every document is opened once.
        pinion_metrics::append_section(METRICS, "metrics.repl", &figures, &mut out);
        pinion_metrics::append_section(METRICS, "electionMetrics", &figures, &mut out);
        let shown = out.finish();
        let batches = shown.get_document("repl").unwrap();
        let batches = batches.get_document("apply").unwrap();
        let batches = batches.get_document("batches").unwrap();
        assert_eq!(batches.get_i32("num").unwrap(), 0);
    }
}
