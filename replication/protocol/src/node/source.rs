//! Whom to sync from: chosen, kept while it serves, given up when it does not.
//!
//! Source: replication document, "Sync Source Selection".

use pinion_clock::OpTime;
use pinion_wire::idl::ReadPreferenceMode;

use super::counts::CatchUpEnd;
use super::effect::SyncPurpose;
use super::limits::{DENY_TOO_STALE_MS, DENY_UNREACHABLE_MS, SOURCE_RETRY_MS};
use super::{Effect, Fetched, Mode, Node, Note, Progress, Role, SourceFailure, Writers};
use crate::config::HostPort;
use crate::decision::{
    BatchMetadata, ChangeReason, DenyList, Neighbour, SourceChoice, choose_sync_source,
    should_change,
};

#[derive(Debug, Default)]
pub(super) struct Sync {
    pub(super) source: Option<Source>,
    /// `replSetSyncFrom`: taken once.
    pub(super) requested: Option<HostPort>,
    deny_list: DenyList,
    /// Members whose oplogs do not reach back to this node's end.
    too_new: Vec<HostPort>,
    /// One that was left since it had another configuration.
    disagreeing: Option<HostPort>,
    /// The last entry that was fetched, which may not be written yet.
    pub(super) last_fetched: OpTime,
    pub(super) retry_ms: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) host: HostPort,
    pub(super) purpose: SyncPurpose,
}

impl Sync {
    pub(super) fn forget(&mut self) {
        self.requested = None;
        self.deny_list.clear();
        self.too_new.clear();
    }
}

impl Node {
    fn purpose(&self) -> Option<SyncPurpose> {
        // What clients of an earlier term still write, and what is fetched, must not meet.
        if self.self_index().is_none() || self.is_arbiter() || self.writers != Writers::Stopped {
            return None;
        }
        if self.peers.len() == 1 {
            return None;
        }
        match (&self.role, self.mode) {
            (Role::Leader(leader), _) => leader.is_catching_up().then_some(SyncPurpose::CatchUp),
            (_, Mode::InitialSync) => Some(SyncPurpose::InitialSync),
            (_, Mode::Recovering | Mode::Secondary) => Some(SyncPurpose::Steady),
            (_, Mode::Startup | Mode::Rollback) => None,
        }
    }

    pub(super) fn wants_source(&self) -> bool {
        self.purpose().is_some()
    }

    /// Has a source while one is needed, and none otherwise.
    pub(super) fn keep_source(&mut self) {
        let Some(purpose) = self.purpose() else {
            return self.stop_sync("nothing is to be fetched");
        };
        if self.sync.source.is_some() || self.sync.retry_ms > self.now.ms {
            return;
        }
        let neighbours = self.neighbours();
        let chosen = choose_sync_source(&self.source_choice(&neighbours, purpose));
        let Some(at) = chosen else {
            self.notice_staleness(&neighbours, purpose);
            self.counts.missing_sync_sources += 1;
            self.sync.retry_ms = self.after_ms(SOURCE_RETRY_MS);
            return;
        };
        self.sync.requested = None;
        let host = self.peers[at].host.clone();
        self.note(Note::NewSyncSource {
            source: Some(host.clone()),
            why: "it was chosen",
        });
        self.effects.push(Effect::StartFetching {
            source: host.clone(),
            purpose,
        });
        self.sync.source = Some(Source { host, purpose });
        self.restart_reports();
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        self.peers.iter().map(|peer| peer.neighbour()).collect()
    }

    fn source_choice<'a>(
        &'a self,
        neighbours: &'a [Neighbour],
        purpose: SyncPurpose,
    ) -> SourceChoice<'a> {
        let me = self.self_index().expect("one that syncs is a member");
        let parameters = &self.identity.parameters;
        let requested = self.sync.requested.as_ref();
        let requested = requested.and_then(|host| self.index_of(host));
        let ended = self
            .others()
            .map(|(_, peer)| u64::from(peer.heartbeat.ended));
        SourceChoice {
            config: self.config().expect("one that syncs is a member"),
            me,
            primary: self.primary.filter(|at| *at != me),
            neighbours,
            last_fetched: match purpose {
                SyncPurpose::InitialSync => OpTime::NULL,
                SyncPurpose::Steady | SyncPurpose::CatchUp => self.last_fetched(),
            },
            deny_list: &self.sync.deny_list,
            requested: requested.filter(|at| *at != me),
            pings: ended.sum(),
            ignore_chaining: purpose == SyncPurpose::CatchUp || parameters.override_chaining,
            preference: match purpose {
                SyncPurpose::InitialSync => self.initial_sync_preference(),
                SyncPurpose::Steady | SyncPurpose::CatchUp => ReadPreferenceMode::Nearest,
            },
            max_lag_secs: parameters.max_sync_source_lag_secs,
            now_ms: self.now.ms,
        }
    }

    /// Which member is copied where the operator named none: the primary, if it votes.
    fn initial_sync_preference(&self) -> ReadPreferenceMode {
        let default = match self.me().is_some_and(|me| me.is_voter()) {
            true => ReadPreferenceMode::PrimaryPreferred,
            false => ReadPreferenceMode::Nearest,
        };
        let set = self.identity.parameters.initial_sync_preference;
        set.unwrap_or(default)
    }

    fn last_fetched(&self) -> OpTime {
        self.sync.last_fetched.max(self.written().optime)
    }

    pub(super) fn stop_sync(&mut self, why: &'static str) {
        if self.sync.source.take().is_some() {
            self.note(Note::NewSyncSource { source: None, why });
            self.effects.push(Effect::StopFetching);
        }
    }

    pub(super) fn retry_source_now(&mut self) {
        self.sync.retry_ms = self.now.ms;
    }

    /// If no oplog reaches back to this node's end, it cannot follow, and an operator should look.
    fn notice_staleness(&mut self, neighbours: &[Neighbour], purpose: SyncPurpose) {
        let too_new = &self.sync.too_new;
        let readable = self
            .others()
            .filter(|(at, _)| neighbours[*at].up && neighbours[*at].readable);
        let readable: Vec<bool> = readable
            .map(|(_, peer)| too_new.contains(&peer.host))
            .collect();
        let stale = !readable.is_empty() && !readable.contains(&false);
        if stale && purpose == SyncPurpose::Steady && !self.too_stale {
            self.too_stale = true;
            self.note(Note::TooStale);
            self.follow_state();
        }
    }

    pub(super) fn source_failed(&mut self, source: &HostPort, failure: SourceFailure) {
        let deny_ms = match failure {
            SourceFailure::Unreachable | SourceFailure::NoOplog => DENY_UNREACHABLE_MS,
            SourceFailure::TooStale => DENY_TOO_STALE_MS,
            SourceFailure::Behind => SOURCE_RETRY_MS,
            SourceFailure::Stopped => 0,
        };
        if deny_ms > 0 {
            self.sync.disagreeing = None;
            let until_ms = self.after_ms(deny_ms);
            let deny_list = &mut self.sync.deny_list;
            deny_list.deny(source.clone(), until_ms, self.now.ms);
        }
        let is_member = self.index_of(source).is_some();
        let too_new = &mut self.sync.too_new;
        if failure == SourceFailure::TooStale && is_member && !too_new.contains(source) {
            too_new.push(source.clone());
        }
        if failure == SourceFailure::Unreachable
            && let Some(at) = self.index_of(source)
        {
            self.peers[at].heartbeat.due_ms = self.now.ms;
        }
        if self.is_source(source) {
            self.stop_sync("it failed");
            match deny_ms {
                0 => self.sync.retry_ms = self.after_ms(SOURCE_RETRY_MS),
                _ => self.retry_source_now(),
            }
        }
    }

    fn is_source(&self, host: &HostPort) -> bool {
        let source = self.sync.source.as_ref();
        source.is_some_and(|source| source.host == *host)
    }

    pub(super) fn fetched(&mut self, fetched: &Fetched) {
        self.update_term(fetched.repl.term);
        // What one reports that was left meanwhile says nothing of this node's branch.
        if !self.is_source(&fetched.source) {
            return;
        }
        if let Some(at) = self.index_of(&fetched.source) {
            self.heard(at);
        }
        self.too_stale = false;
        self.sync.too_new.clear();
        self.sync.last_fetched = fetched.last_fetched;
        self.count_caught_up(fetched.entries);
        self.learn_commit_point_from_source(fetched.query.last_committed);
        let has_primary = fetched.query.primary_index.is_some();
        // A source may take for the primary whom a majority hears nothing of.
        let lives = has_primary && !self.is_about_to_succeed();
        if lives && fetched.repl.term == self.term && !self.is_primary() {
            self.postpone_election();
        }
        if let Some(why) = self.reason_to_change(fetched) {
            self.stop_sync(match why {
                ChangeReason::RolledBack => "it has rolled back",
                ChangeReason::Requested => "another was asked for",
                ChangeReason::NotMember => "it is no member any more",
                ChangeReason::OtherConfig => "it has another configuration",
                ChangeReason::NotPrimary => "it is not the primary, and chaining is not allowed",
                ChangeReason::NotAhead => "it has nothing new, and nobody to get it from",
                ChangeReason::Cycle => "it has nothing new, and syncs from this node",
                ChangeReason::Lags => "it lags behind another",
            });
            if why == ChangeReason::OtherConfig {
                self.leave_until_configs_agree(&fetched.source);
            }
            self.retry_source_now();
        }
    }

    fn count_caught_up(&mut self, entries: u64) {
        if matches!(&self.role, Role::Leader(leader) if leader.is_catching_up()) {
            self.counts.catch_up_operations += entries;
        }
    }

    /// Another one is looked for at once, if it is from this one that this node fetches.
    pub(super) fn leave_source(&mut self, source: &HostPort, why: &'static str) {
        // What is copied of a source is of use when that comes back: the attempt itself knows for
        // how long it waits.
        let copies = self.mode == Mode::InitialSync;
        if !self.is_source(source) || copies {
            return;
        }
        self.sync.disagreeing = None;
        let until_ms = self.after_ms(DENY_UNREACHABLE_MS);
        let deny_list = &mut self.sync.deny_list;
        deny_list.deny(source.clone(), until_ms, self.now.ms);
        self.stop_sync(why);
        self.retry_source_now();
    }

    /// One of the two learns of the newer configuration soon. Until then the source would be left
    /// whenever it is chosen.
    fn leave_until_configs_agree(&mut self, source: &HostPort) {
        let until_ms = self.after_ms(SOURCE_RETRY_MS);
        let deny_list = &mut self.sync.deny_list;
        deny_list.deny(source.clone(), until_ms, self.now.ms);
        self.sync.disagreeing = Some(source.clone());
        if let Some(at) = self.index_of(source) {
            self.peers[at].heartbeat.due_ms = self.now.ms;
        }
    }

    /// A member has reported which configuration it has: if it is this node's, it may be a source
    /// again. Most often a batch on its way reported the one before, and a new primary waits for
    /// members that do not fetch from it.
    pub(super) fn return_if_configs_agree(&mut self, at: usize) {
        let own = self.config_id();
        let peer = &self.peers[at];
        if self.sync.disagreeing.as_ref() == Some(&peer.host) && peer.config == Some(own) {
            let host = self.sync.disagreeing.take();
            let host = host.expect("it was looked at");
            self.sync.deny_list.allow(&host);
        }
    }

    /// Under another configuration every source may be tried again.
    pub(super) fn deny_no_source(&mut self) {
        self.sync.deny_list.clear();
    }

    /// Whether another source would serve better.
    fn reason_to_change(&self, fetched: &Fetched) -> Option<ChangeReason> {
        let purpose = self.sync.source.as_ref()?.purpose;
        // Data and oplog of an initial sync come of one source.
        if purpose == SyncPurpose::InitialSync {
            return None;
        }
        let Fetched { repl, query, .. } = fetched;
        let batch = BatchMetadata {
            config: repl.config,
            rbid: i64::from(query.rollback_id),
            last_applied: query.last_applied,
            primary: query.primary_index,
            sync_source: query.sync_source_index,
        };
        let neighbours = self.neighbours();
        let choice = SourceChoice {
            last_fetched: fetched.last_fetched,
            ..self.source_choice(&neighbours, purpose)
        };
        let rbid = i64::from(fetched.source_rollback_id);
        should_change(&choice, &fetched.source, rbid, &batch)
    }

    pub(super) fn no_common_entry(&mut self, source: HostPort) {
        if !self.is_source(&source) {
            return;
        }
        match &self.role {
            Role::Leader(leader) => {
                // What this primary has and the others have not will win.
                if leader.is_catching_up() {
                    self.end_catch_up(CatchUpEnd::OtherBranch);
                }
            }
            Role::Follower | Role::Candidate(_) => {
                if self.mode != Mode::InitialSync {
                    self.roll_back(source);
                }
            }
        }
    }

    fn roll_back(&mut self, source: HostPort) {
        self.stop_sync("this node rolls back");
        self.mode = Mode::Rollback;
        self.follow_state();
        // A member that fetches from this node sees that what it received may be gone.
        self.rollback_id = self.rollback_id.wrapping_add(1);
        self.effects.push(Effect::StartRollback {
            source,
            rollback_id: self.rollback_id,
        });
    }

    pub(super) fn rolled_back(&mut self, progress: Progress) {
        assert_eq!(self.mode, Mode::Rollback, "a rollback was under way");
        let held = self.commit_point.optime.min(self.written().optime);
        assert!(
            progress.written.optime >= held,
            "a rollback does not undo what is committed"
        );
        self.mode = Mode::Recovering;
        self.min_valid = OpTime::NULL;
        self.sync.last_fetched = OpTime::NULL;
        self.set_progress(progress);
        self.retry_source_now();
    }

    pub(super) fn rollback_failed(&mut self) {
        assert_eq!(self.mode, Mode::Rollback, "a rollback was under way");
        self.mode = Mode::Recovering;
        self.sync.last_fetched = OpTime::NULL;
        self.sync.retry_ms = self.after_ms(SOURCE_RETRY_MS);
    }

    // Initial sync.

    /// A member with a configuration starts as what its data allow.
    pub(super) fn begin_replication(&mut self) {
        let has_data = !self.needs_initial_sync && !self.written().optime.is_null();
        if !has_data && !self.is_arbiter() {
            self.mode = Mode::InitialSync;
            self.effects.push(Effect::StartInitialSync);
        } else {
            self.mode = Mode::Recovering;
        }
    }

    pub(super) fn sync_needed(&mut self) {
        assert!(!self.is_primary(), "a primary does not copy its data anew");
        self.end_candidacy("the data is copied anew");
        self.stop_sync("the data is copied anew");
        self.needs_initial_sync = true;
        self.too_stale = false;
        self.progress = Progress::default();
        self.sync.last_fetched = OpTime::NULL;
        if self.mode != Mode::Startup {
            self.begin_replication();
        }
    }

    pub(super) fn sync_done(&mut self, progress: Progress) {
        assert_eq!(
            self.mode,
            Mode::InitialSync,
            "an initial sync was under way"
        );
        self.needs_initial_sync = false;
        self.min_valid = OpTime::NULL;
        self.mode = Mode::Recovering;
        self.stop_sync("the initial sync is done");
        self.set_progress(progress);
        self.retry_source_now();
    }
}
