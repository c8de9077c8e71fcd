//! The first configuration of a set, and which change of it is allowed.

use pinion_bson::{ObjectId, RawDocument};
use pinion_wire::{Error, ErrorCode, Result};

use super::{Config, FieldNames, HostPort, Member, NO_TERM, Settings};

/// What `replSetInitiate` is asked for.
pub struct Initiate<'a> {
    /// `--replSet`.
    pub set_name: &'a str,
    /// Empty: a set of this node alone.
    pub document: &'a RawDocument,
    /// How this node is known, for the configuration that is not written by an operator.
    pub host: HostPort,
    /// Whether this node was started as a config server.
    pub is_config_server: bool,
    /// The identity that the new set gets.
    pub replica_set_id: ObjectId,
}

impl Initiate<'_> {
    /// The set's first configuration.
    ///
    /// # Errors
    /// `InvalidReplicaSetConfig` with the rule that is broken.
    pub fn config(&self) -> Result<Config> {
        let invalid = |message: String| Error::new(ErrorCode::INVALID_REPLICA_SET_CONFIG, message);
        let mut config = match self.document.is_empty() {
            true => self.of_this_node(),
            false => Config::parse(self.document).map_err(|error| invalid(error.message))?,
        };
        if config.id != self.set_name {
            return Err(invalid(format!(
                "Rejecting initiate with a set name that differs from command line set name, initiate set name: {}, command line set name: {}",
                config.id, self.set_name
            )));
        }
        if config.replica_set_id().is_some() {
            return Err(invalid(
                "replica set configuration cannot contain 'replicaSetId' field when called from replSetInitiate"
                    .into(),
            ));
        }
        if config.version != 1 {
            return Err(invalid(format!(
                "Configuration used to initiate a replica set must  have version 1, but found {}",
                config.version
            )));
        }
        if config.term != NO_TERM {
            return Err(invalid(format!(
                "Configuration used to initiate a replica set cannot have a term, but found {}",
                config.term
            )));
        }
        config.settings.replica_set_id = Some(self.replica_set_id);
        // The term of a set before its first election.
        config.term = 0;
        let checked = config
            .validate()
            .and_then(|()| config.check_role(self.is_config_server))
            .and_then(|()| config.check_supported(None));
        checked.map_err(|error| invalid(error.message))?;
        Ok(config)
    }

    fn of_this_node(&self) -> Config {
        Config {
            id: self.set_name.to_owned(),
            version: 1,
            term: NO_TERM,
            members: vec![Member {
                id: 0,
                host: self.host.clone(),
                arbiter_only: false,
                build_indexes: true,
                hidden: false,
                priority: 1.0,
                tags: Vec::new(),
                delay_secs: 0,
                votes: 1,
                newly_added: false,
            }],
            protocol_version: 1,
            write_concern_majority_journal_default: true,
            config_server: self.is_config_server,
            settings: Settings::default(),
            names: FieldNames::default(),
        }
    }
}

/// The place of this node among the members.
///
/// # Errors
/// No member is this node, or several are.
pub fn find_self(config: &Config, is_self: impl Fn(&HostPort) -> bool) -> Result<usize> {
    let mut found = config
        .members
        .iter()
        .enumerate()
        .filter(|(_, member)| is_self(&member.host))
        .map(|(at, _)| at);
    let Some(first) = found.next() else {
        let hosts: Vec<String> = config.members.iter().map(|m| m.host.to_string()).collect();
        return Err(Error::new(
            ErrorCode::NODE_NOT_FOUND,
            format!(
                "No host described in new configuration with {{version: {}, term: {}}} for replica set {} maps to this node: {}",
                config.version,
                config.term,
                config.id,
                hosts.join(", ")
            ),
        ));
    };
    match found.next() {
        None => Ok(first),
        Some(second) => Err(Error::new(
            ErrorCode::INVALID_REPLICA_SET_CONFIG,
            format!(
                "The hosts {} and {} all map to this node in new configuration with {{version: {}, term: {}}} for replica set {}",
                config.members[first].host,
                config.members[second].host,
                config.version,
                config.term,
                config.id
            ),
        )),
    }
}

/// Whether a set may go from one configuration to another. The new one has the set's identity: see
/// [`Config::with_identity_of`].
///
/// # Errors
/// `NewReplicaSetConfigurationIncompatible` with the rule that is broken.
pub fn check_reconfig(old: &Config, new: &Config, force: bool) -> Result<()> {
    let refuse = |message: String| Err(Config::incompatible(message));
    if new.id != old.id {
        return refuse(format!(
            "New and old configurations differ in replica set name; old was {}, and new is {}",
            old.id, new.id
        ));
    }
    if new.version <= old.version {
        return refuse(format!(
            "New replica set configuration version must be greater than old, but {} is not greater than {} for replica set {}",
            new.version, old.version, new.id
        ));
    }
    if old.replica_set_id() != new.replica_set_id() {
        let shown = |id: Option<ObjectId>| id.map_or("none".to_owned(), |id| id.to_string());
        return refuse(format!(
            "New and old configurations differ in replica set ID; old was {}, and new is {}",
            shown(old.replica_set_id()),
            shown(new.replica_set_id())
        ));
    }
    if new.config_server != old.config_server {
        return refuse("Cannot change the configsvr field of a replica set's configuration".into());
    }
    for member in &new.members {
        let of_host = old.members.iter().find(|other| other.host == member.host);
        if let Some(before) = of_host
            && before.id != member.id
        {
            return refuse(format!(
                "New and old configurations both have members with host of {} but in the new configuration the _id field is {} and in the old configuration it is {} for replica set {}",
                member.host, member.id, before.id, new.id
            ));
        }
        // A member is the one with the same number, wherever it has moved.
        let Some(before) = old.members.iter().find(|other| other.id == member.id) else {
            continue;
        };
        if before.arbiter_only != member.arbiter_only {
            return refuse(format!(
                "New and old configurations differ in the setting of the arbiterOnly field for member {}; to make this change, remove then re-add the member",
                member.host
            ));
        }
        if before.build_indexes != member.build_indexes {
            return refuse(format!(
                "New and old configurations differ in the setting of the buildIndexes field for member {}; to make this change, remove then re-add the member",
                member.host
            ));
        }
    }
    new.check_supported(Some(old))
        .map_err(|error| Config::incompatible(error.message))?;
    match force {
        true => Ok(()),
        false => check_voters(old, new),
    }
}

/// Two majorities overlap as long as one voter at a time comes or goes.
fn check_voters(old: &Config, new: &Config) -> Result<()> {
    let missing = |from: &Config, to: &Config| {
        let is_voter = |id| to.voters().any(|voter| voter.id == id);
        from.voters().filter(|voter| !is_voter(voter.id)).count()
    };
    let (added, removed) = (missing(new, old), missing(old, new));
    if added + removed <= 1 {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::INVALID_REPLICA_SET_CONFIG,
        format!(
            "Non force replica set reconfig can only add or remove at most 1 voting member. Found {added} added and {removed} removed"
        ),
    ))
}
