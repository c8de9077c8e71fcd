//! The inputs of a member: from clients, other members, its own storage and the clock.

use pinion_bson::RawDocumentBuf;
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_wire::Result;
use pinion_wire::idl::{ReadPreferenceMode, WriteConcern};

use crate::config::{Config, ConfigVersion, HostPort};
use crate::decision::{ELECTION_OFFSET_FRACTION, LastVote, MAX_SYNC_SOURCE_LAG_SECS};
use crate::message::{
    HeartbeatRequest, OpTimeAndWallTime, OplogQueryMetadata, ReplSetMetadata, StepDown,
    UpdatePosition, VoteRequest,
};

/// The time of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of a clock that never goes back.
    pub ms: u64,
    /// Milliseconds since the Unix epoch. Only shown to people: nothing is decided by it.
    pub wall_ms: i64,
}

/// Names a request that the node sent, until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Names a command that the node was given, until it has answered. The caller chooses it and uses
/// it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandId(pub u64);

/// How far this node's oplog is.
///
/// Entries may be durable before they are applied: elections and majorities count what is written
/// or durable, and only readers wait for what is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last entry of the oplog.
    pub written: OpTimeAndWallTime,
    /// The last entry before which all have been applied and are visible.
    pub applied: OpTimeAndWallTime,
    /// The last entry before which all survive a crash.
    pub durable: OpTimeAndWallTime,
}

impl Progress {
    /// A node whose oplog is as far in every respect.
    pub fn all_at(at: OpTimeAndWallTime) -> Progress {
        Progress {
            written: at,
            applied: at,
            durable: at,
        }
    }
}

/// What a node finds when it starts.
#[derive(Clone, Debug)]
pub struct Persisted {
    /// `local.system.replset`.
    pub config: Option<Config>,
    /// This node's place in it; `None` if no member is this node.
    pub self_index: Option<usize>,
    /// `local.replset.election`.
    pub last_vote: Option<LastVote>,
    pub progress: Progress,
    /// The entry that must be applied before anybody may read; null if the data is consistent.
    pub min_valid: OpTime,
    /// The oplog is empty, or an initial sync was under way.
    pub needs_initial_sync: bool,
    /// `local.system.rollback.id`.
    pub rollback_id: i32,
}

impl Persisted {
    /// A node that has never been a member of a set.
    pub fn nothing() -> Persisted {
        Persisted {
            config: None,
            self_index: None,
            last_vote: None,
            progress: Progress::default(),
            min_valid: OpTime::NULL,
            needs_initial_sync: true,
            rollback_id: 1,
        }
    }
}

/// Parameters that change a member's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// `enableElectionHandoff`.
    pub election_handoff: bool,
    /// `priorityTakeoverFreshnessWindowSeconds`.
    pub priority_takeover_freshness_secs: u32,
    /// Planted by a test: entries of older terms are committed by counting.
    #[doc(hidden)]
    pub counts_older_terms: bool,
    /// `replElectionTimeoutOffsetLimitFraction`.
    pub election_offset_fraction: f64,
    /// `maxSyncSourceLagSecs`.
    pub max_sync_source_lag_secs: u32,
    /// `enableOverrideClusterChainingSetting`: it syncs from others than the primary, whatever the
    /// configuration says.
    pub override_chaining: bool,
    /// `initialSyncSourceReadPreference`.
    pub initial_sync_preference: Option<ReadPreferenceMode>,
    /// `allowMultipleArbiters`.
    pub multiple_arbiters: bool,
    /// The node was started as a config server (`--configsvr`).
    pub config_server: bool,
    /// `primarySilenceLimitMillis`: for how long a majority hears nothing of the primary before
    /// another is elected; 0: until the election timeout has passed.
    pub primary_silence_ms: u32,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            election_handoff: true,
            priority_takeover_freshness_secs: 2,
            counts_older_terms: false,
            election_offset_fraction: ELECTION_OFFSET_FRACTION,
            max_sync_source_lag_secs: MAX_SYNC_SOURCE_LAG_SECS,
            override_chaining: false,
            initial_sync_preference: None,
            multiple_arbiters: false,
            config_server: false,
            primary_silence_ms: 0,
        }
    }
}

/// How a primary steps down before its process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// How long it waits for another member to catch up.
    pub catch_up_ms: u64,
    /// It steps down even if none has by then, and does not wait while all that could follow refuse
    /// connections. Without it the command fails, and the node stays primary.
    pub force: bool,
}

/// A command of a client or of another member. Each is answered once by [`Effect::Reply`](super::Effect::Reply), unless the
/// caller withdraws it.
#[derive(Clone, Debug)]
pub enum Command {
    Heartbeat(HeartbeatRequest),
    Votes(VoteRequest),
    Position(UpdatePosition),
    /// `replSetInitiate`, read by [`Initiate`](crate::config::Initiate), and where this node stands in it.
    Initiate {
        config: Config,
        self_index: usize,
    },
    /// `replSetReconfig`, as it was read, and where this node stands in it ([`find_self`](crate::config::find_self)).
    Reconfig {
        config: Config,
        self_index: Result<usize>,
        force: bool,
    },
    StepDown(StepDown),
    /// The process is to end: a primary steps down first. On any other node it is answered at once.
    Leave(Leave),
    StepUp {
        skip_dry_run: bool,
    },
    Freeze {
        secs: u64,
    },
    Maintenance {
        begins: bool,
    },
    SyncFrom {
        host: HostPort,
    },
    AbortPrimaryCatchUp,
    /// Waits until members hold all up to this timestamp, which this node wrote or has seen. The
    /// deadline is the caller's, which withdraws the command when it passes.
    AwaitWriteConcern {
        ts: Timestamp,
        concern: WriteConcern,
    },
}

/// Why a sync source is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceFailure {
    /// It does not answer, or answered with an error.
    Unreachable,
    /// It has no oplog.
    NoOplog,
    /// Its oldest entry is newer than this node's newest.
    TooStale,
    /// It has nothing that this node lacks, or has lost it.
    Behind,
    /// The fetcher ended for a reason of this node's own.
    Stopped,
}

/// A batch of the sync source's oplog, of which the first has been judged to continue this node's
/// ([`judge_first_batch`](crate::decision::judge_first_batch)).
#[derive(Clone, Debug)]
pub struct Fetched {
    pub source: HostPort,
    /// What the source's `replSetGetRBID` returned before the first batch was asked for.
    pub source_rollback_id: i32,
    pub repl: ReplSetMetadata,
    pub query: OplogQueryMetadata,
    /// How many entries the batch brought.
    pub entries: u64,
    /// The last entry fetched, this batch included.
    pub last_fetched: OpTime,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// The time that [`Node::next_deadline_ms`](super::Node::next_deadline_ms) named has come.
    Tick,
    Command {
        id: CommandId,
        command: Command,
    },
    /// The answer to a command is not awaited any more. It may have been given already.
    Withdrawn(CommandId),
    /// The answer to an [`Effect::Send`](super::Effect::Send): exactly one comes for each, at the latest when its time is up.
    Response {
        id: RequestId,
        reply: Result<RawDocumentBuf>,
    },
    /// A vote survives a crash.
    VoteStored(LastVote),
    /// Which member of the configuration asked about this node is; an error if none is, or several
    /// are.
    SelfLocated(Result<usize>),
    /// Which member of the installed configuration this node is, when that was unknown at the
    /// start.
    SelfFound {
        config: ConfigVersion,
        index: usize,
    },
    /// The configuration survives a crash. An error leaves the old one in place.
    ConfigStored(Result<()>),
    /// The new set's configuration and the first entry of its oplog survive a crash. An error
    /// leaves neither.
    Initiated(Result<Progress>),
    /// The oplog has grown, been applied, or become durable.
    Progress(Progress),
    /// No client writes any more; what they wrote stands in an earlier `Progress`.
    WritesStopped,
    /// What clients write is logged again.
    WritesResumed,
    /// Everything that was fetched has been applied, and nothing more comes.
    Drained,
    /// The entry of [`Effect::WriteNewPrimary`](super::Effect::WriteNewPrimary) is written.
    NewPrimaryWritten {
        term: Term,
        at: OpTimeAndWallTime,
    },
    Fetched(Fetched),
    SourceFailed {
        source: HostPort,
        failure: SourceFailure,
    },
    /// A member refuses connections: its process is gone. If it is the primary, the election
    /// timeout is not waited for. That one is silent the machine finds out by itself.
    Unreachable(HostPort),
    /// The sync source's oplog does not continue this node's.
    NoCommonEntry {
        source: HostPort,
    },
    /// The oplog now ends at the common point.
    RolledBack(Progress),
    /// Rollback gave up before it changed anything.
    RollbackFailed,
    /// This node's data is to be copied again, and is not there any more. Not while it is the
    /// primary.
    SyncNeeded,
    /// The data is copied and consistent.
    SyncDone(Progress),
    /// Clients are sent to other members from now on, and the process ends at that time of
    /// `Now::ms` at the latest.
    Quiesce {
        until_ms: u64,
    },
}
