//! What others of this node may read of a member, and what travels beside its replies.

use pinion_bson::RawDocumentBuf;
use pinion_clock::Term;
use pinion_wire::{Error, ErrorCode, MemberState, Result};

use super::{Node, Parameters, Pending, Progress, Role};
use crate::config::{Config, HostPort, NO_TERM};
use crate::message::{OpTimeAndWallTime, OplogQueryMetadata, ReplSetMetadata};

/// What a member knows of its set at one moment. It changes with [`Effect::ViewChanged`](super::Effect::ViewChanged) only.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The name in the configuration; before there is one, that which the node was started with.
    pub set_name: String,
    pub state: MemberState,
    /// It accepts clients' writes.
    pub writable: bool,
    pub term: Term,
    /// 0 while there is no configuration.
    pub config_version: i64,
    /// -1 where the configuration has none.
    pub config_term: i64,
    /// `topologyVersion.counter`.
    pub counter: i64,
    /// What `hello` reports of the set, in MongoDB's order, but for whether the node is writable.
    /// Empty while no configuration names this node.
    pub hello: RawDocumentBuf,
    /// The modes that a write concern may name, `majority` not among them.
    pub modes: Vec<String>,
    /// Members that bear data: the most that `w` can ask for.
    pub data_members: usize,
    pub voters: usize,
    /// How many voters that bear data make a majority.
    pub write_majority: usize,
    /// Whether commands that name no write concern wait for a majority.
    pub default_is_majority: bool,
    /// `writeConcernMajorityJournalDefault`.
    pub journal_default: bool,
    pub primary: Option<HostPort>,
    /// The process ends at that time of `Now::ms` at the latest: clients are sent to other members.
    pub quiesces_until_ms: Option<u64>,
}

impl Node {
    pub fn view(&self) -> View {
        let config = self.config();
        let members = config.map_or(&[][..], |config| &config.members);
        let set_name = config.map_or(&self.identity.set_name, |config| &config.id);
        View {
            set_name: set_name.clone(),
            state: self.state(),
            writable: self.is_writable_primary(),
            term: self.term,
            config_version: config.map_or(0, |config| config.version),
            config_term: config.map_or(NO_TERM, |config| config.term),
            counter: self.view_counter(),
            hello: self.hello(),
            modes: config.map_or_else(Vec::new, |config| {
                let modes = config.settings.modes.iter();
                modes.map(|mode| mode.name.clone()).collect()
            }),
            data_members: members.iter().filter(|member| !member.arbiter_only).count(),
            voters: config.map_or(0, |config| config.voters().count()),
            write_majority: config.map_or(0, Config::write_majority),
            default_is_majority: config.is_none_or(Config::default_is_majority),
            journal_default: config
                .is_none_or(|config| config.write_concern_majority_journal_default),
            primary: self.primary.map(|at| self.member(at).host.clone()),
            quiesces_until_ms: self.quiesces_until_ms,
        }
    }

    pub fn config(&self) -> Option<&Config> {
        self.installed.as_ref().map(|installed| &installed.config)
    }

    pub fn term(&self) -> Term {
        self.term
    }

    /// Whether clients may write.
    pub fn is_writable_primary(&self) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.is_writable())
    }

    /// The last entry that a majority holds, as far as this node knows. It may lie ahead of what it
    /// has itself.
    pub fn commit_point(&self) -> OpTimeAndWallTime {
        self.commit_point
    }

    pub fn last_progress(&self) -> Progress {
        self.progress
    }

    /// `replSetGetRBID`: it changes with each rollback.
    pub fn rollback_id(&self) -> i32 {
        self.rollback_id
    }

    /// How old entries are to be that this node takes over (`secondaryDelaySecs`).
    pub fn delay_secs(&self) -> i64 {
        self.me().map_or(0, |me| me.delay_secs)
    }

    /// Whether the member that is to take over has not answered yet whether it was elected.
    pub fn hands_over(&self) -> bool {
        let mut pending = self.pending.values();
        pending.any(|pending| matches!(pending, Pending::Handoff))
    }

    /// From whom this node fetches.
    pub fn sync_source(&self) -> Option<&HostPort> {
        self.sync.source.as_ref().map(|source| &source.host)
    }

    /// Changes what may be changed while the node runs.
    pub fn set_parameters(&mut self, parameters: Parameters) {
        self.identity.parameters = parameters;
    }

    /// `replSetGetConfig`, without `ok`; with `commitmentStatus` where that is asked for.
    ///
    /// # Errors
    /// No configuration.
    pub fn get_config(&self, with_commitment_status: bool) -> Result<RawDocumentBuf> {
        let Some(config) = self.config() else {
            return Err(Error::new(
                ErrorCode::NOT_YET_INITIALIZED,
                "no replset config has been received",
            ));
        };
        if with_commitment_status && !self.is_writable_primary() {
            return Err(Error::new(
                ErrorCode::NOT_WRITABLE_PRIMARY,
                "commitmentStatus is only supported on primary.",
            ));
        }
        // Which votes are held back is no concern of clients, which would give it back with their
        // next change.
        let mut shown = config.clone();
        for member in &mut shown.members {
            member.newly_added = false;
        }
        let mut out = pinion_bson::DocBuilder::new();
        out.append("config", &*shown.to_bson());
        if with_commitment_status {
            out.append("commitmentStatus", self.check_commitment().is_ok());
        }
        Ok(out.finish())
    }

    fn sync_source_index(&self) -> Option<usize> {
        self.index_of(self.sync_source()?)
    }

    /// `$replData`, for the reply of a command that asks for it.
    pub fn repl_metadata(&self) -> ReplSetMetadata {
        ReplSetMetadata {
            term: self.term,
            last_committed: self.commit_point,
            last_visible: self.progress.applied.optime,
            config: self.config_id(),
            replica_set_id: self.config().and_then(Config::replica_set_id),
            primary_index: self.primary,
            sync_source_index: self.sync_source_index(),
            is_primary: self.is_primary(),
        }
    }

    /// `$oplogQueryData`, for the reply of a read of the oplog that asks for it.
    pub fn oplog_query_metadata(&self) -> OplogQueryMetadata {
        OplogQueryMetadata {
            last_committed: self.commit_point,
            last_applied: self.progress.applied.optime,
            rollback_id: self.rollback_id,
            primary_index: self.primary,
            sync_source_index: self.sync_source_index(),
            sync_source: self.sync_source().cloned(),
        }
    }
}
