//! One member of a replica set as a state machine: inputs go in with the time, effects come out.
//!
//! It is the replication and the topology coordinator of the replication document in one. Nothing
//! here waits: what takes time is an effect, and its end an input. What it decides is decided by
//! [`decision`](crate::decision).
//!
//! `input`, `effect` and `view` are what the caller sees. `heartbeat` asks and answers; `voter`,
//! `candidate`, `takeover` elect; `primary` and `step_down` are a primary's beginning and end;
//! `change`, `reconfig` and `quorum` bring configurations into force; `suspicion` notices a silent
//! primary; `source` chooses whom to sync from; `commit` and `report` follow how far all are;
//! `concern`, `hello` and `status` report to clients; `steer` is what operators may do; `settle` is
//! what follows from every input.

mod candidate;
mod change;
mod commit;
mod concern;
mod counts;
mod effect;
mod heartbeat;
mod hello;
mod input;
mod limits;
mod metrics;
mod peer;
mod primary;
mod quorum;
mod random;
mod reconfig;
mod report;
mod settle;
mod source;
mod status;
mod steer;
mod step_down;
mod suspicion;
mod takeover;
mod view;
mod voter;

use std::collections::{BTreeMap, VecDeque};

use pinion_bson::RawDocumentBuf;
use pinion_clock::{OpTime, Term};
use pinion_wire::{MemberState, Result};

use crate::config::{Config, HostPort, Member};
use crate::decision::LastVote;
use crate::message::{OpTimeAndWallTime, Request};

pub use counts::{CatchUpCounts, ElectionCounts, NodeCounts};
pub use effect::{Effect, Note, SyncPurpose};
pub use input::{
    Command, CommandId, Fetched, Input, Leave, Now, Parameters, Persisted, Progress, RequestId,
    SourceFailure,
};
pub use view::View;

use candidate::Candidacy;
use change::Change;
use concern::Waiters;
use metrics::Metrics;
use peer::Peer;
use primary::Leadership;
use random::Random;
use reconfig::AwaitsCommitment;
use report::Report;
use settle::Announced;
use source::Sync;
use suspicion::Watch;
use takeover::Takeover;

/// The identity of this node, whatever it finds on its disk.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `--replSet`.
    pub set_name: String,
    /// How it calls itself before a configuration names it.
    pub host: HostPort,
    /// Of its random numbers: no two members should have the same.
    pub seed: u64,
    pub parameters: Parameters,
}

/// A member of a replica set, or a node that is to become one.
#[derive(Debug)]
pub struct Node {
    identity: Identity,
    random: Random,
    started_ms: u64,
    now: Now,
    effects: Vec<Effect>,
    next_request: u64,
    pending: BTreeMap<RequestId, Pending>,

    installed: Option<Installed>,
    /// As the members of the configuration; this node's own place says nothing.
    peers: Vec<Peer>,
    change: Option<Change>,
    awaits_commitment: Vec<AwaitsCommitment>,
    /// A heartbeat to one that seems to have a newer configuration, which need not be a member of
    /// this node's.
    asking_config: bool,

    term: Term,
    last_vote: Option<LastVote>,
    /// Votes that are not durable yet, and what waits for them.
    votes_to_store: VecDeque<(LastVote, AfterVote)>,
    role: Role,
    mode: Mode,
    /// How often maintenance was started and not ended.
    maintenance: u32,
    too_stale: bool,
    primary: Option<usize>,
    writers: Writers,

    progress: Progress,
    min_valid: OpTime,
    needs_initial_sync: bool,
    rollback_id: i32,
    commit_point: OpTimeAndWallTime,

    election_due_ms: Option<u64>,
    takeover: Option<Takeover>,
    watch: Watch,
    /// Until then it does not stand for election.
    abstains_until_ms: u64,
    sync: Sync,
    report: Report,
    waiters: Waiters,
    /// The process ends by then.
    quiesces_until_ms: Option<u64>,
    announced: Announced,
    metrics: Metrics,
    counts: NodeCounts,
}

#[derive(Clone, Debug)]
struct Installed {
    config: Config,
    /// `None`: this node is removed.
    self_index: Option<usize>,
}

/// A command that was sent and not answered yet.
#[derive(Clone, Debug)]
enum Pending {
    Heartbeat {
        index: usize,
    },
    /// A heartbeat out of turn, to a primary that is silent.
    Probe {
        index: usize,
    },
    /// To a host that need not be a member.
    AskConfig,
    Quorum {
        index: usize,
    },
    Vote {
        index: usize,
    },
    Position {
        source: HostPort,
    },
    Handoff,
}

/// What waits for a vote to be durable.
#[derive(Clone, Debug)]
enum AfterVote {
    Answer(CommandId, RawDocumentBuf),
    /// The vote was for this node itself.
    AskOthers,
}

#[derive(Debug)]
enum Role {
    Follower,
    Candidate(Candidacy),
    Leader(Leadership),
}

/// The state of one that is no primary, whatever its configuration makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    InitialSync,
    Recovering,
    Secondary,
    Rollback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writers {
    Stopped,
    Allowed,
    /// RequestedChange to stop; some may still be under way, so nothing is fetched yet.
    Stopping,
}

impl Node {
    /// A node that starts. Its first effects come with the first step.
    ///
    /// # Panics
    /// If the place in the configuration is none of its.
    pub fn new(identity: Identity, found: Persisted, now: Now) -> Node {
        let random = Random::new(identity.seed);
        let voted = found.last_vote.map_or(Term::INITIAL, |vote| vote.term);
        let logged = found.progress.written.optime.term;
        let mut node = Node {
            identity,
            random,
            started_ms: now.ms,
            now,
            effects: Vec::new(),
            next_request: 1,
            pending: BTreeMap::new(),
            installed: None,
            peers: Vec::new(),
            change: None,
            awaits_commitment: Vec::new(),
            asking_config: false,
            term: voted.max(logged).max(Term::INITIAL),
            last_vote: found.last_vote,
            votes_to_store: VecDeque::new(),
            role: Role::Follower,
            mode: Mode::Startup,
            maintenance: 0,
            too_stale: false,
            primary: None,
            writers: Writers::Stopped,
            progress: found.progress,
            min_valid: found.min_valid,
            needs_initial_sync: found.needs_initial_sync,
            rollback_id: found.rollback_id,
            commit_point: OpTimeAndWallTime::NULL,
            election_due_ms: None,
            takeover: None,
            watch: Watch::default(),
            abstains_until_ms: 0,
            sync: Sync::default(),
            report: Report::default(),
            waiters: Waiters::default(),
            quiesces_until_ms: None,
            announced: Announced::default(),
            metrics: Metrics::default(),
            counts: NodeCounts::default(),
        };
        if let Some(config) = found.config {
            node.install(config, found.self_index);
        }
        node
    }

    /// Takes in what happened, and returns what is to be done.
    ///
    /// # Panics
    /// When the time goes back, or the end of something comes that was not started: the caller is
    /// broken.
    #[must_use]
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Effect> {
        assert!(now.ms >= self.now.ms, "time goes back");
        self.now = now;
        self.notice_stall();
        match input {
            Input::Tick => {}
            Input::Command { id, command } => self.command(id, command),
            Input::Withdrawn(id) => self.withdraw(id),
            Input::Response { id, reply } => self.response(id, reply),
            Input::VoteStored(vote) => self.vote_stored(vote),
            Input::SelfLocated(index) => self.self_located(index),
            Input::SelfFound { config, index } => self.self_found(config, index),
            Input::ConfigStored(outcome) => self.config_stored(outcome),
            Input::Initiated(outcome) => self.initiated(outcome),
            Input::Progress(progress) => self.progress(progress),
            Input::WritesStopped => self.writes_stopped(),
            Input::WritesResumed => self.writes_resumed(),
            Input::Drained => self.drained(),
            Input::NewPrimaryWritten { term, at } => self.new_primary_written(term, at),
            Input::Fetched(fetched) => self.fetched(&fetched),
            Input::SourceFailed { source, failure } => self.source_failed(&source, failure),
            Input::Unreachable(host) => self.suspect(&host),
            Input::NoCommonEntry { source } => self.no_common_entry(source),
            Input::RolledBack(progress) => self.rolled_back(progress),
            Input::RollbackFailed => self.rollback_failed(),
            Input::SyncNeeded => self.sync_needed(),
            Input::SyncDone(progress) => self.sync_done(progress),
            Input::Quiesce { until_ms } => self.quiesce(until_ms),
        }
        self.settle();
        std::mem::take(&mut self.effects)
    }

    fn command(&mut self, id: CommandId, command: Command) {
        match command {
            Command::Heartbeat(request) => self.answer_heartbeat(id, &request),
            Command::Votes(request) => self.answer_vote(id, &request),
            Command::Position(update) => self.answer_position(id, &update),
            Command::Initiate { config, self_index } => self.initiate(id, config, self_index),
            Command::Reconfig {
                config,
                self_index,
                force,
            } => self.reconfig(id, config, self_index, force),
            Command::StepDown(args) => self.step_down_command(id, args),
            Command::Leave(leave) => self.leave(id, leave),
            Command::StepUp { skip_dry_run } => self.step_up_command(id, skip_dry_run),
            Command::Freeze { secs } => {
                let result = self.freeze(secs);
                self.reply(id, result);
            }
            Command::Maintenance { begins } => {
                let result = self.set_maintenance(begins);
                self.reply(id, result.map(|()| RawDocumentBuf::new()));
            }
            Command::SyncFrom { host } => {
                let result = self.sync_from(host);
                self.reply(id, result);
            }
            Command::AbortPrimaryCatchUp => {
                let result = self.abort_catch_up_command();
                self.reply(id, result.map(|()| RawDocumentBuf::new()));
            }
            Command::AwaitWriteConcern { ts, concern } => self.await_concern(id, ts, concern),
        }
    }

    fn response(&mut self, id: RequestId, reply: Result<RawDocumentBuf>) {
        // An answer that is not awaited any more: heartbeats restarted, or the election is over.
        let Some(pending) = self.pending.remove(&id) else {
            return;
        };
        match pending {
            Pending::Heartbeat { index } => self.heartbeat_response(index, reply),
            Pending::Probe { index } => self.probe_response(index, reply),
            Pending::AskConfig => self.asked_config_response(reply),
            Pending::Quorum { index } => self.quorum_response(index, reply),
            Pending::Vote { index } => self.vote_response(index, reply),
            Pending::Position { source } => self.position_response(&source, reply),
            Pending::Handoff => {}
        }
    }

    fn send(&mut self, to: HostPort, request: Request, timeout_ms: u64, pending: Pending) {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.pending.insert(id, pending);
        self.effects.push(Effect::Send {
            id,
            to,
            request,
            timeout_ms,
        });
    }

    fn reply(&mut self, id: CommandId, result: Result<RawDocumentBuf>) {
        self.effects.push(Effect::Reply { id, result });
    }

    fn note(&mut self, note: Note) {
        self.effects.push(Effect::Note(note));
    }

    // What this node is.

    /// This node's place in its configuration.
    pub fn self_index(&self) -> Option<usize> {
        self.installed.as_ref()?.self_index
    }

    fn me(&self) -> Option<&Member> {
        let installed = self.installed.as_ref()?;
        installed.config.members.get(installed.self_index?)
    }

    /// The other members, with their places.
    fn others(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let own = self.self_index();
        let all = self.peers.iter().enumerate();
        all.filter(move |(at, _)| Some(*at) != own)
    }

    fn member(&self, index: usize) -> &Member {
        let config = self.config().expect("members stand in a configuration");
        &config.members[index]
    }

    fn index_of(&self, host: &HostPort) -> Option<usize> {
        self.config()?.member_of(host).map(|(at, _)| at)
    }

    fn is_primary(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    fn is_arbiter(&self) -> bool {
        self.me().is_some_and(|me| me.arbiter_only)
    }

    /// The last entry of this node's oplog.
    fn written(&self) -> OpTimeAndWallTime {
        let progress = &self.progress;
        progress.written.max(progress.applied).max(progress.durable)
    }

    /// The state as clients see it.
    pub fn state(&self) -> MemberState {
        let Some(installed) = &self.installed else {
            return MemberState::Startup;
        };
        if installed.self_index.is_none() {
            return MemberState::Removed;
        }
        if self.is_primary() {
            return MemberState::Primary;
        }
        if self.is_arbiter() {
            return MemberState::Arbiter;
        }
        match self.mode {
            Mode::Startup => MemberState::Startup,
            Mode::InitialSync => MemberState::Startup2,
            Mode::Recovering => MemberState::Recovering,
            Mode::Rollback => MemberState::Rollback,
            Mode::Secondary if self.maintenance > 0 || self.too_stale => MemberState::Recovering,
            Mode::Secondary => MemberState::Secondary,
        }
    }

    /// Learns of a term. One that is later ends this node's time as a primary or candidate.
    fn update_term(&mut self, term: Term) {
        if term <= self.term {
            return;
        }
        // Before the term changes, so that what is reported names the term that ends.
        self.end_candidacy(LATER_TERM);
        if self.is_primary() {
            self.counts.step_downs_by_higher_term += 1;
        }
        self.step_down(LATER_TERM);
        self.takeover = None;
        self.term = term;
    }

    /// The time `delay_ms` from now, at the end of all time where that is beyond it.
    fn after_ms(&self, delay_ms: u64) -> u64 {
        self.now.ms.saturating_add(delay_ms)
    }

    /// The time of people at a moment of the past.
    fn wall_at(&self, ms: u64) -> i64 {
        let ago = i64::try_from(self.now.ms.saturating_sub(ms)).unwrap_or(i64::MAX);
        self.now.wall_ms.saturating_sub(ago)
    }

    fn election_timeout_ms(&self) -> u64 {
        positive(
            self.config()
                .map_or(10_000, |config| config.settings.election_timeout_ms),
        )
    }
}

/// Why a primary or a candidate ends that learns of a later term.
const LATER_TERM: &str = "a later term was seen";

/// A setting that the configuration has checked to be positive.
fn positive(value: i64) -> u64 {
    u64::try_from(value).expect("a checked setting is positive")
}

#[cfg(test)]
mod tests;
