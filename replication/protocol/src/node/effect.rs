//! What a member wants done.

use pinion_bson::RawDocumentBuf;
use pinion_clock::{OpTime, Term};
use pinion_wire::{MemberState, Result};

use super::input::{CommandId, RequestId};
use crate::config::{Config, HostPort};
use crate::decision::LastVote;
use crate::message::{OpTimeAndWallTime, Request};

/// What a sync source is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPurpose {
    Steady,
    /// A primary fetches what others have and it has not, before it takes writes.
    CatchUp,
    InitialSync,
}

/// What is to be done, started in the order given. Where something takes time, its end is an input,
/// which is named here.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Sends a command; `Input::Response` brings the answer.
    Send {
        id: RequestId,
        to: HostPort,
        request: Request,
        timeout_ms: u64,
    },
    /// Answers a command, without `ok`.
    Reply {
        id: CommandId,
        result: Result<RawDocumentBuf>,
    },
    /// Makes a vote durable; then `Input::VoteStored`. Several may be under way and complete in
    /// order.
    StoreVote(LastVote),
    /// Finds out which member of a configuration this node is; then `Input::SelfLocated`.
    LocateSelf(Config),
    /// Makes a configuration durable; then `Input::ConfigStored`.
    StoreConfig(Config),
    /// Makes the oplog of a new set, with its first entry ("initiating set", of term -1), and the
    /// configuration durable, the configuration last; then `Input::Initiated`.
    Initiate(Config),
    /// The state as clients see it. It decides whether reads are allowed.
    StateChanged(MemberState),
    /// Something of [`View`](super::View) has changed: the view is taken again, and waiting `hello`
    /// commands are woken.
    ViewChanged { counter: i64 },
    /// No new write of a client is admitted and those under way are interrupted; then
    /// `Input::WritesStopped`.
    StopWrites,
    /// The log is this node's again, after [`Effect::StopWrites`] and without another's entries in
    /// between; then `Input::WritesResumed`. A later `StopWrites` waits for that.
    ResumeWrites,
    /// Clients may write, and their entries carry this term.
    AllowWrites { term: Term },
    /// Applies all that was fetched; then `Input::Drained`. Meaningless once the node is no primary
    /// any more.
    Drain,
    /// Writes the entry that begins a primary's term; then `Input::NewPrimaryWritten`. The next
    /// entry of this node's own carries this term, and so do all that clients write.
    WriteNewPrimary { term: Term },
    /// Fetches the oplog of this member, and of no other.
    StartFetching {
        source: HostPort,
        purpose: SyncPurpose,
    },
    /// Fetches no more. What is buffered is still applied, but for a rollback.
    StopFetching,
    /// Copies the data of the source that `StartFetching` names next; then `Input::SyncDone`.
    StartInitialSync,
    /// Rolls back to the point where this node's oplog and the source's part, and stores the new
    /// rollback id with it; then `Input::RolledBack` or `Input::RollbackFailed`. What is buffered
    /// is dropped.
    StartRollback { source: HostPort, rollback_id: i32 },
    /// A majority holds everything up to `committed`; `stable` is what of it this node has applied,
    /// which nothing can undo.
    CommitPoint {
        committed: OpTimeAndWallTime,
        stable: OpTime,
    },
    /// Something that people should read in the log.
    Note(Note),
}

/// What is reported in the log.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// An election begins: why, and whether with a dry run.
    Election {
        reason: &'static str,
        term: Term,
        dry_run: bool,
    },
    ElectionLost {
        term: Term,
        reason: &'static str,
    },
    Elected {
        term: Term,
    },
    SteppedDown {
        term: Term,
        reason: &'static str,
    },
    /// The other side of a vote.
    Voted {
        term: Term,
        candidate_index: usize,
        refused: Option<String>,
    },
    /// Catch-up has ended: so.
    CatchUp {
        outcome: &'static str,
    },
    MemberDown {
        host: HostPort,
        why: String,
    },
    /// Another member has come up, or has another state than before.
    MemberState {
        host: HostPort,
        state: MemberState,
    },
    /// A configuration is in force.
    NewConfig(Config),
    NewSyncSource {
        source: Option<HostPort>,
        why: &'static str,
    },
    /// No member's oplog reaches back to this node's end.
    TooStale,
    /// A configuration that came with a heartbeat is not taken.
    ConfigRefused {
        why: String,
    },
}
