//! What a primary does periodically: an entry that changes nothing where there are no writes, and
//! flow control.
//!
//! The entry moves the commit point, the times that clients wait for, and the reported lag, on a
//! set that is idle. Source: execution document, "Flow Control"; what the entry says is MongoDB's.

use std::rc::Rc;

use pinion_apply::log_note;
use pinion_bson::rawdoc;
use pinion_clock::Timestamp;
use pinion_exec::{
    FlowControlStatus, ReplicationParameters, flow_sample, replication_parameters, set_tickets,
    tickets_ran_out,
};
use pinion_replication_protocol::decision::{FlowControl, FlowDecision, FlowPeriod, FlowSettings};
use pinion_replication_protocol::node::Parameters;
use pinion_runtime::sim::event;
use pinion_runtime::{Duration, is_shutdown_requested, sleep};
use pinion_service::node_info::{ClusterRole, node_info};
use pinion_storage::storage;

use crate::driver::{Driver, time};
use crate::limits::FLOW_PERIOD;
use crate::planted::PlantedFault;

/// What the state machine goes by.
pub(crate) fn machine_parameters(planted_fault: PlantedFault) -> Parameters {
    let set = replication_parameters();
    Parameters {
        election_handoff: set.election_handoff,
        priority_takeover_freshness_secs: set.takeover_freshness_secs.unsigned_abs(),
        election_offset_fraction: set.election_offset_fraction,
        max_sync_source_lag_secs: set.max_sync_source_lag_secs.unsigned_abs(),
        override_chaining: set.override_chaining,
        initial_sync_preference: set.initial_sync_read_preference,
        multiple_arbiters: set.allow_multiple_arbiters,
        config_server: is_config_server(),
        primary_silence_ms: set.primary_silence_ms.unsigned_abs(),
        counts_older_terms: planted_fault == PlantedFault::CommitOverTerms,
    }
}

/// Whether this node was started as a config server.
pub(crate) fn is_config_server() -> bool {
    node_info().cluster_role == ClusterRole::Config
}

fn flow_settings(set: &ReplicationParameters) -> FlowSettings {
    FlowSettings {
        target_lag_secs: set.flow_control_target_lag_secs.unsigned_abs(),
        threshold: set.flow_control_threshold,
        min_tickets: set.flow_control_min_tickets.unsigned_abs(),
        decay: set.flow_control_decay,
        fudge: set.flow_control_fudge,
        adder: set.flow_control_adder.unsigned_abs(),
        multiplier: set.flow_control_multiplier,
        sample_period: set.flow_control_sample_period.unsigned_abs().into(),
        max_samples: set.flow_control_max_samples.unsigned_abs() as usize,
        warn_secs: set.flow_control_warn_secs.unsigned_abs(),
    }
}

impl Driver {
    /// Writes an entry whenever none has been written for a while.
    pub(crate) async fn write_noops(self: Rc<Self>) {
        let secs = replication_parameters().periodic_noop_secs.unsigned_abs();
        let interval = Duration::from_secs(secs.into());
        let mut seen = Timestamp::MIN;
        while !is_shutdown_requested() {
            sleep(interval).await;
            let last = storage().last_allotted();
            if last != seen {
                seen = last;
                continue;
            }
            if replication_parameters().write_periodic_noops {
                seen = self.write_noop().await.unwrap_or(last);
            }
        }
    }

    async fn write_noop(&self) -> Option<Timestamp> {
        // A task that has storage follow holds the turn.
        let _turn = self.role_turn.acquire().await;
        if !self.with_node(|node| node.is_writable_primary()) || !storage().leads() {
            return None;
        }
        match log_note(&rawdoc! { "msg": "periodic noop" }).await {
            Ok(written) => {
                event("periodic noop");
                Some(written)
            }
            Err(error) => {
                tracing::info!(target: "REPL", id = 21_220u64, error = %error, "Writing noop to oplog failed");
                None
            }
        }
    }

    /// Once a second looks how far the majority is behind this primary, and slows writes down.
    pub(crate) async fn control_flow(self: Rc<Self>) {
        let mut control = FlowControl::default();
        let mut logged = None;
        while !is_shutdown_requested() {
            sleep(FLOW_PERIOD).await;
            let set = replication_parameters();
            let is_writable = self.with_node(|node| node.is_writable_primary());
            let decision = match is_writable && set.flow_control {
                true => {
                    let period = self.flow_period().await;
                    control.step(&flow_settings(&set), &period)
                }
                false => control.rest(time().ms),
            };
            if decision.warns {
                tracing::warn!(target: "REPL", id = 22_225u64, "Flow control is engaged and the sustainer point is not moving. Please check the health of all secondaries.");
            }
            if decision.tickets.is_some() || logged != Some(decision) {
                logged = Some(decision);
                set_tickets(decision.tickets, status_of(&decision)).await;
            }
        }
    }

    async fn flow_period(&self) -> FlowPeriod {
        // In this order: a majority holds nothing that is not counted.
        let committed = self.with_node(|node| node.commit_point().optime.ts);
        let sample = flow_sample().await;
        FlowPeriod {
            now_ms: time().ms,
            last: storage().last_allotted(),
            committed,
            operations: sample.operations,
            locks: sample.locks,
            ran_out: tickets_ran_out(),
        }
    }
}

fn status_of(decision: &FlowDecision) -> FlowControlStatus {
    FlowControlStatus {
        target_rate: decision.target_rate,
        locks_per_op: decision.locks_per_op,
        sustainer_rate: decision.sustained,
        is_lagged: decision.is_lagged,
        lagged_count: decision.lagged_count,
        lagged_us: decision.lagged_ms * 1000,
    }
}
