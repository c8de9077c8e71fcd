//! `replSetInitiate` and `replSetReconfig`, and when a configuration may change again.
//!
//! The two majorities of a safe change meet as long as the configuration that it starts from is on
//! a majority: otherwise two primaries could make different ones, step by step, until their
//! majorities no longer meet.

use pinion_bson::RawDocumentBuf;
use pinion_clock::{OpTime, Term};
use pinion_wire::{Error, ErrorCode, Result};

use super::change::Change;
use super::limits::{FORCED_VERSION_SPREAD, FORCED_VERSION_STEP};
use super::quorum::Quorum;
use super::{CommandId, Effect, Node, Role};
use crate::config::{Config, ConfigVersion, MAX_VERSION, NO_TERM, check_reconfig};

/// A change that an operator asked for.
#[derive(Debug)]
pub(super) struct RequestedChange {
    pub(super) id: CommandId,
    pub(super) config: Config,
    pub(super) self_index: usize,
    pub(super) kind: Kind,
    /// The term in which it was asked.
    pub(super) term: Term,
    /// The members that are asked before; `None` once they have agreed.
    pub(super) quorum: Option<Quorum>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Initiate,
    Reconfig,
    Forced,
}

/// A change in force whose command is answered when a majority has it.
#[derive(Debug)]
pub(super) struct AwaitsCommitment {
    pub(super) id: CommandId,
    config: ConfigVersion,
    term: Term,
}

fn arbiters(config: &Config) -> usize {
    let members = config.members.iter();
    members.filter(|member| member.arbiter_only).count()
}

impl Node {
    pub(super) fn initiate(&mut self, id: CommandId, config: Config, self_index: usize) {
        let refusal = if self.installed.is_some() {
            Some(Error::new(
                ErrorCode::ALREADY_INITIALIZED,
                "already initialized",
            ))
        } else if self.change.is_some() {
            Some(in_progress("replSetInitiate"))
        } else {
            let valid = config.validate();
            let is_config_server = self.identity.parameters.config_server;
            valid
                .and_then(|()| config.check_role(is_config_server))
                .and_then(|()| self.check_arbiters(0, &config))
                .and_then(|()| electable(&config, self_index))
                .err()
        };
        match refusal {
            Some(error) => self.reply(id, Err(error)),
            None => self.check_quorum(id, config, self_index, Kind::Initiate),
        }
    }

    pub(super) fn reconfig(
        &mut self,
        id: CommandId,
        config: Config,
        self_index: Result<usize>,
        force: bool,
    ) {
        match self.prepare_reconfig(config, self_index, force) {
            Err(error) => self.reply(id, Err(error)),
            Ok((config, self_index)) => {
                let kind = match force {
                    true => Kind::Forced,
                    false => Kind::Reconfig,
                };
                self.check_quorum(id, config, self_index, kind);
            }
        }
    }

    fn prepare_reconfig(
        &mut self,
        new: Config,
        self_index: Result<usize>,
        force: bool,
    ) -> Result<(Config, usize)> {
        let Some(installed) = &self.installed else {
            return Err(Error::new(
                ErrorCode::NOT_YET_INITIALIZED,
                "Node not yet initialized; use the replSetInitiate command",
            ));
        };
        if !force && !self.is_writable_primary() {
            return Err(self.not_primary_for_reconfig());
        }
        if self.change.is_some() {
            return Err(in_progress("replSetReconfig"));
        }
        if !force {
            self.check_commitment()?;
        }
        let old = &installed.config;
        let mut new = new.with_identity_of(old);
        if force {
            let spread = self.random.below(FORCED_VERSION_SPREAD) as i64;
            let step = FORCED_VERSION_STEP + spread;
            new.version = (new.version.max(old.version) + step).min(MAX_VERSION);
            new.term = NO_TERM;
        } else {
            new.term = self.term.0;
            // Members of MongoDB 4.4 do not understand it.
            if !new.names.are_old() {
                hold_back_votes(old, &mut new);
            }
        }
        new.validate()?;
        new.check_role(self.identity.parameters.config_server)?;
        check_reconfig(old, &new, force)?;
        self.check_arbiters(arbiters(old), &new)?;
        let self_index = self_index?;
        if !force {
            electable(&new, self_index)?;
        }
        Ok((new, self_index))
    }

    /// A set gets no second arbiter: two of them could elect a primary that lacks what the majority
    /// acknowledged.
    fn check_arbiters(&self, before: usize, new: &Config) -> Result<()> {
        let now = arbiters(new);
        if now <= before.max(1) || self.identity.parameters.multiple_arbiters {
            return Ok(());
        }
        Err(Error::new(
            ErrorCode::INVALID_REPLICA_SET_CONFIG,
            "Multiple arbiters are not allowed unless all nodes were started with with --setParameter 'allowMultipleArbiters=true'",
        ))
    }

    pub(super) fn not_primary_for_reconfig(&self) -> Error {
        Error::new(
            ErrorCode::NOT_WRITABLE_PRIMARY,
            format!(
                "replSetReconfig should only be run on a writable PRIMARY. Current state {};",
                self.state().name()
            ),
        )
    }

    /// All members that were asked have agreed.
    pub(super) fn store_requested(&mut self, asked: RequestedChange) {
        self.effects.push(match asked.kind {
            Kind::Initiate => Effect::Initiate(asked.config.clone()),
            Kind::Reconfig | Kind::Forced => Effect::StoreConfig(asked.config.clone()),
        });
        self.change = Some(Change::Requested(asked));
    }

    pub(super) fn requested_config_stored(&mut self, asked: RequestedChange, outcome: Result<()>) {
        assert!(
            asked.quorum.is_none(),
            "a quorum agrees before anything is stored"
        );
        if let Err(error) = outcome {
            return self.reply(asked.id, Err(error));
        }
        // It comes into force although this node may have stepped down meanwhile: it is durable and
        // newer.
        let config = asked.config.config_version();
        self.install(asked.config, Some(asked.self_index));
        match asked.kind {
            Kind::Initiate | Kind::Forced => self.reply(asked.id, Ok(RawDocumentBuf::new())),
            Kind::Reconfig => {
                self.awaits_commitment.push(AwaitsCommitment {
                    id: asked.id,
                    config,
                    term: asked.term,
                });
                self.answer_committed_reconfigs();
            }
        }
    }

    /// The configuration must not change again before a majority has it, and before what was
    /// committed under the one before is committed under it too: only then do the majorities of all
    /// configurations overlap.
    pub(super) fn check_commitment(&self) -> Result<()> {
        let refuse = |what: String| {
            Err(Error::new(
                ErrorCode::CURRENT_CONFIG_NOT_COMMITTED_YET,
                what,
            ))
        };
        let Role::Leader(leader) = &self.role else {
            return Err(self.not_primary_for_reconfig());
        };
        let config = self.config().expect("a primary is a member");
        if !self.is_config_committed() {
            return refuse(format!(
                "Cannot run replSetReconfig because the current config: {{version: {}, term: {}}} is not majority committed.",
                config.version, config.term
            ));
        }
        let must = leader
            .first_of_term
            .max(leader.committed_in_previous_config);
        match leader.first_of_term != OpTime::NULL && self.majority_holds(config, must) {
            true => Ok(()),
            false => refuse(format!(
                "Cannot run replSetReconfig because the current config: {{version: {}, term: {}}} has not replicated {must}, the last operation committed in the previous config, to a majority.",
                config.version, config.term
            )),
        }
    }

    /// Whether a majority of the voters, arbiters too, have reported that they have this very
    /// configuration.
    fn is_config_committed(&self) -> bool {
        let Some(config) = self.config() else {
            return false;
        };
        let id = config.config_version();
        let has = |at: usize| Some(at) == self.self_index() || self.peers[at].config == Some(id);
        let voters = config.members.iter().enumerate();
        let voters = voters.filter(|(_, member)| member.is_voter());
        voters.filter(|(at, _)| has(*at)).count() >= config.majority_votes()
    }

    /// Answers those whose change a majority has, and those whose primary it was.
    pub(super) fn answer_committed_reconfigs(&mut self) {
        if self.awaits_commitment.is_empty() {
            return;
        }
        let committed = self.is_config_committed();
        let current = self.config_id();
        let primary_of = self.is_primary().then_some(self.term);
        for waiting in std::mem::take(&mut self.awaits_commitment) {
            if primary_of != Some(waiting.term) {
                let error = Error::new(
                    ErrorCode::PRIMARY_STEPPED_DOWN,
                    "Primary stepped down while waiting for the config to be committed",
                );
                self.reply(waiting.id, Err(error));
            } else if committed || current.is_newer_than(waiting.config) {
                self.reply(waiting.id, Ok(RawDocumentBuf::new()));
            } else {
                self.awaits_commitment.push(waiting);
            }
        }
    }
}

/// A member that is added has no data yet, so it would make a majority harder to reach and hold
/// nothing of it: it gets its vote when it is synced. What a client gives back was shown to it
/// without the marks.
fn hold_back_votes(old: &Config, new: &mut Config) {
    for member in &mut new.members {
        let before = old.members.iter().find(|other| other.id == member.id);
        let is_new = before.is_none_or(|before| before.newly_added);
        member.newly_added = is_new && member.votes > 0 && !member.arbiter_only;
    }
}

/// A node that changes a configuration must be able to be primary under it.
fn electable(config: &Config, self_index: usize) -> Result<()> {
    let member = &config.members[self_index];
    match member.is_electable() {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::NODE_NOT_ELECTABLE,
            format!(
                "This node, {}, with _id {} is not electable under the new configuration with {{version: {}, term: {}}} for replica set {}",
                member.host, member.id, config.version, config.term, config.id
            ),
        )),
    }
}

fn in_progress(command: &str) -> Error {
    Error::new(
        ErrorCode::CONFIGURATION_IN_PROGRESS,
        format!("Cannot run {command} because the node is currently updating its configuration"),
    )
}
