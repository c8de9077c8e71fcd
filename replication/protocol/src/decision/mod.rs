//! The decisions of a member, each a pure function over what it knows of its set.
//!
//! Source: replication document, "Steady State Replication", "Elections" and "Rollback". Where the
//! document is silent the rules and their messages are MongoDB's. Times are milliseconds of one
//! monotonic clock, which callers read.

mod commit_point;
mod commit_quorum;
mod election;
mod flow_control;
mod limits;
mod rollback;
mod sync_source;
mod vote;
mod write_concern;

use pinion_clock::OpTime;

use crate::config::Config;

pub use commit_point::{
    advance_commit_point, commit_point_from_heartbeat, commit_point_from_sync_source,
};
pub use commit_quorum::{Readiness, is_ready};
pub use election::{
    NoStepDown, StepDown, StepDownAttempt, election_timeout_ms, has_lost_majority, may_step_down,
    priority_takeover_delay_ms,
};
pub use flow_control::{FlowControl, FlowDecision, FlowPeriod, FlowSettings, MAX_TICKETS};
pub use limits::{ELECTION_OFFSET_FRACTION, MAX_SYNC_SOURCE_LAG_SECS};
pub use rollback::{
    CommonPointError, CommonPointSearch, FirstBatch, FirstBatchVerdict, Oplog, SearchStep,
    judge_first_batch,
};
pub use sync_source::{
    BatchMetadata, ChangeReason, DenyList, Neighbour, SourceChoice, choose_sync_source,
    should_change,
};
pub use vote::{LastVote, Verdict, VoterState, judge_vote};
pub use write_concern::{Holders, MemberConcern, check_satisfiable, find_mode, is_satisfied};

/// How far a member has come, as this node knows it. Slices of positions are by the index of the
/// member in the configuration; of an arbiter and of a member not heard of it is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The last entry that it has applied.
    pub applied: OpTime,
    /// The last entry that is in its journal.
    pub durable: OpTime,
}

impl Position {
    fn held(self, durably: bool) -> OpTime {
        match durably {
            true => self.durable,
            false => self.applied,
        }
    }
}

/// A slice by member index is of the configuration that it is judged by.
#[track_caller]
fn assert_by_member<T>(config: &Config, slice: &[T]) {
    assert_eq!(slice.len(), config.members.len());
}

#[cfg(test)]
mod testing;
