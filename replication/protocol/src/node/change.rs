//! How a configuration comes into force: one change at a time, durable before it is in force.
//!
//! Source: replication document, "Heartbeats".

use pinion_clock::Term;
use pinion_wire::{Error, ErrorCode, MemberState, Result};

use super::peer::Peer;
use super::reconfig::RequestedChange;
use super::{Effect, Installed, Mode, Node, Note, Pending, Progress, Role};
use crate::config::{Config, ConfigVersion, HostPort, MAX_VERSION};

/// A change that is under way.
#[derive(Debug)]
pub(super) enum Change {
    /// Another member has it already; it is being found out which member of it this node is.
    Learned(Config),
    /// It is being made durable: learned of another member, or made by this primary itself.
    Storing {
        config: Config,
        self_index: Option<usize>,
    },
    /// An operator asked for it.
    Requested(RequestedChange),
}

impl Node {
    pub(super) fn install(&mut self, config: Config, self_index: Option<usize>) {
        assert!(
            self_index.is_none_or(|at| at < config.members.len()),
            "this node is a member of the configuration"
        );
        self.end_candidacy("the configuration changed");
        // It was made in a term that this node must know of.
        self.update_term(Term(config.term));
        self.takeover = None;
        let known = std::mem::take(&mut self.peers);
        let same = |host: &HostPort, id: i64| {
            let found = known
                .iter()
                .find(|peer| peer.id == id && peer.host == *host);
            found.cloned()
        };
        let members = config.members.iter();
        let peers = members.map(|member| {
            let known = same(&member.host, member.id);
            known.unwrap_or_else(|| Peer::new(member, self.now))
        });
        self.peers = peers.collect();
        self.announced.installs += 1;
        let may_be_primary = self_index.is_some_and(|at| config.members[at].is_electable());
        self.primary = None;
        self.watch_no_primary();
        self.note(Note::NewConfig(config.clone()));
        self.installed = Some(Installed { config, self_index });
        if !may_be_primary {
            self.step_down("the configuration gives this node no priority");
        }
        self.drop_source_that_left();
        self.deny_no_source();
        if self_index.is_some() && (self.mode == Mode::Startup || self.was_arbiter()) {
            self.begin_replication();
        }
        if let Role::Leader(leader) = &mut self.role {
            leader.committed_in_previous_config = self.commit_point.optime;
        }
        self.update_primary();
        self.restart_heartbeats();
        self.postpone_election();
        self.positions_changed();
    }

    /// A member that is to bear data and has none, although it is past its initial sync.
    fn was_arbiter(&self) -> bool {
        let past = matches!(self.mode, Mode::Recovering | Mode::Secondary);
        past && !self.is_arbiter() && self.written().optime.is_null()
    }

    /// What is fetched from one that is no member is not of this set any more.
    fn drop_source_that_left(&mut self) {
        let source = self.sync.source.as_ref();
        if source.is_some_and(|source| self.index_of(&source.host).is_none()) {
            self.stop_sync("it is no member any more");
            self.retry_source_now();
        }
    }

    // Learned from another member.

    /// Takes a configuration that came with a heartbeat, if it is newer.
    pub(super) fn take_config(&mut self, config: Config) {
        // It comes again with a later heartbeat.
        if self.change.is_some() || matches!(self.role, Role::Candidate(_)) {
            return;
        }
        let newer =
            self.installed.is_none() || config.config_version().is_newer_than(self.config_id());
        if !newer {
            return;
        }
        if let Err(error) = self.acceptable(&config) {
            self.note(Note::ConfigRefused { why: error.message });
            return;
        }
        self.effects.push(Effect::LocateSelf(config.clone()));
        self.change = Some(Change::Learned(config));
    }

    fn acceptable(&self, config: &Config) -> Result<()> {
        let refuse = |what: String| Err(Error::new(ErrorCode::INVALID_REPLICA_SET_CONFIG, what));
        if config.id != self.identity.set_name {
            return refuse(format!("it is of another set, {}", config.id));
        }
        let own = self.config().and_then(|config| config.replica_set_id());
        if own.is_some() && own != config.replica_set_id() {
            return refuse("it is of another set with the same name".into());
        }
        config.validate()?;
        config.check_role(self.identity.parameters.config_server)
    }

    pub(super) fn self_located(&mut self, index: Result<usize>) {
        let Some(Change::Learned(config)) = self.change.take() else {
            panic!("no configuration waits for its member to be found");
        };
        let self_index = match index {
            Ok(index) => Some(index),
            // A member that is removed takes the configuration that says so.
            Err(error) if error.code == ErrorCode::NODE_NOT_FOUND && self.installed.is_some() => {
                None
            }
            Err(error) => {
                self.note(Note::ConfigRefused { why: error.message });
                return;
            }
        };
        self.store_config(config, self_index);
    }

    pub(super) fn self_found(&mut self, config: ConfigVersion, index: usize) {
        let Some(installed) = &self.installed else {
            return;
        };
        // Another configuration may have come meanwhile, for which it was asked again.
        if installed.self_index.is_none() && self.config_id() == config {
            self.install(installed.config.clone(), Some(index));
        }
    }

    fn store_config(&mut self, config: Config, self_index: Option<usize>) {
        assert!(self.change.is_none(), "one change at a time");
        self.effects.push(Effect::StoreConfig(config.clone()));
        self.change = Some(Change::Storing { config, self_index });
    }

    pub(super) fn config_stored(&mut self, outcome: Result<()>) {
        let change = self.change.take();
        match change.expect("a configuration is being made durable") {
            Change::Learned(_) => panic!("it was not known yet which member this node is"),
            Change::Requested(asked) => self.requested_config_stored(asked, outcome),
            Change::Storing { config, self_index } => match outcome {
                Ok(()) => self.install(config, self_index),
                Err(error) => self.note(Note::ConfigRefused { why: error.message }),
            },
        }
    }

    pub(super) fn initiated(&mut self, outcome: Result<Progress>) {
        let Some(Change::Requested(asked)) = self.change.take() else {
            panic!("no set is being initiated");
        };
        assert!(self.installed.is_none(), "a set is initiated once");
        let outcome = outcome.map(|progress| {
            self.needs_initial_sync = false;
            self.progress(progress);
        });
        self.requested_config_stored(asked, outcome);
    }

    // Made by the primary itself.

    /// A new primary makes the configuration one of its term: one of an older term could be changed
    /// by an older primary behind its back. And it gives members that were added their votes when
    /// they have their data.
    pub(super) fn change_config_as_primary(&mut self) {
        let Role::Leader(leader) = &mut self.role else {
            return;
        };
        if !leader.is_drained() || self.change.is_some() {
            return;
        }
        let Some(installed) = &self.installed else {
            return;
        };
        let self_index = installed.self_index;
        let mut config = installed.config.clone();
        // One that is forced upon this primary later stays as it is.
        if !std::mem::replace(&mut leader.has_config_of_term, true)
            && Term(config.term) != self.term
        {
            config.term = self.term.0;
            return self.store_config(config, self_index);
        }
        let Some(at) = self.member_with_data() else {
            return;
        };
        let has_room = config.version < MAX_VERSION;
        if has_room && self.is_writable_primary() && self.check_commitment().is_ok() {
            self.counts.new_member_reconfigs += 1;
            config.members[at].newly_added = false;
            config.version += 1;
            self.store_config(config, self_index);
        }
    }

    /// A member that waits for its vote and has its data. One at a time, as any two majorities must
    /// meet.
    fn member_with_data(&self) -> Option<usize> {
        let has_data = |state: MemberState| {
            use MemberState::{Recovering, Rollback, Secondary};
            matches!(state, Secondary | Recovering | Rollback)
        };
        let mut others = self.others();
        let found = others.find(|(at, peer)| {
            self.member(*at).newly_added && peer.is_up() && has_data(peer.state)
        });
        found.map(|(at, _)| at)
    }

    pub(super) fn forget_pending(&mut self, is_of: impl Fn(&Pending) -> bool) {
        self.pending.retain(|_, pending| !is_of(pending));
    }
}
