//! The configuration of a replica set.
//!
//! Source: replication document, "Communication" and "Elections"; the rules and their messages are
//! MongoDB's.

mod change;
mod limits;
mod member;
mod modes;
mod settings;
mod validate;

use pinion_bson::{DocBuilder, ObjectId, RawDocument, RawDocumentBuf};
use pinion_wire::idl::{FieldReader, Path};
use pinion_wire::{Error, ErrorCode, Result};

use crate::message::MAX_TERM;

pub use change::{Initiate, check_reconfig, find_self};
pub use limits::{MAX_MEMBERS, MAX_VERSION, MAX_VOTERS};
pub use member::Member;
pub use modes::WriteMode;
pub use pinion_wire::HostPort;
pub use settings::Settings;

/// A configuration as it was read. [`Config::validate`] says whether a set can have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The set's name.
    pub id: String,
    pub version: i64,
    /// The term in which it was made, -1 where none is said.
    pub term: i64,
    pub members: Vec<Member>,
    pub protocol_version: i64,
    /// Whether a member counts for a majority only once it has written its journal.
    pub write_concern_majority_journal_default: bool,
    pub config_server: bool,
    pub settings: Settings,
    pub names: FieldNames,
}

/// The name by which the members' delays are given. Members of MongoDB 4.4 know only the older one,
/// and no votes that are held back.
#[derive(Clone, Copy, Debug, Default)]
pub enum FieldNames {
    /// No member has a delay.
    #[default]
    Absent,
    Old,
    New,
}

impl FieldNames {
    pub(crate) fn are_old(self) -> bool {
        matches!(self, FieldNames::Old)
    }
}

/// What a configuration says does not depend on its names.
impl PartialEq for FieldNames {
    fn eq(&self, _: &FieldNames) -> bool {
        true
    }
}

/// Which of two configurations of a set is the newer one: that of the later term, then of the
/// higher version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigVersion {
    pub term: i64,
    pub version: i64,
}

impl ConfigVersion {
    /// Whether a member that has `other` is to take this one. No order of all configurations: one
    /// without a term was forced upon the set, and beside it versions alone count.
    pub fn is_newer_than(self, other: ConfigVersion) -> bool {
        if self.term == other.term || self.term == NO_TERM || other.term == NO_TERM {
            return self.version > other.version;
        }
        self.term > other.term
    }
}

/// The term of a configuration that was made without an election.
pub const NO_TERM: i64 = -1;

impl Config {
    /// Reads a configuration as a client or another member sends it.
    ///
    /// # Errors
    /// What MongoDB answers to a field of a wrong type, out of its range, or unknown.
    pub fn parse(document: &RawDocument) -> Result<Config> {
        let reader = FieldReader::object(Path::root("ReplSetConfig"), document)?;
        let id = reader.str("_id")?.to_owned();
        if id.is_empty() {
            return Err(Error::bad_value(
                "Replica set configuration must have non-empty _id field",
            ));
        }
        let version = reader.opt_between("version", 1, limits::MAX_VERSION)?;
        let version = version.unwrap_or(1);
        let term = reader.opt_between("term", NO_TERM, MAX_TERM.0)?;
        let term = term.unwrap_or(NO_TERM);
        let mut members = Vec::new();
        let mut names = FieldNames::Absent;
        let path = reader.path().field("members");
        for (at, value) in pinion_bson::values(reader.array("members")?).enumerate() {
            members.push(Member::parse(path.index(at), value)?);
            if let Some(given) = Member::names_in(value) {
                names = given;
            }
        }
        let protocol_version = reader.opt_i64("protocolVersion")?.unwrap_or(1);
        let config = Config {
            id,
            version,
            term,
            members,
            protocol_version,
            write_concern_majority_journal_default: reader
                .opt_safe_bool("writeConcernMajorityJournalDefault")?
                .unwrap_or(true),
            config_server: reader.opt_safe_bool("configsvr")?.unwrap_or(false),
            settings: match reader.opt_doc("settings")? {
                Some(settings) => Settings::parse(reader.path().field("settings"), settings)?,
                None => Settings::default(),
            },
            names,
        };
        reader.finish()?;
        Ok(config)
    }

    /// As `replSetGetConfig` shows it, and as it is stored and sent.
    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", self.id.as_str())
            .append("version", version_value(self.version));
        if self.term != NO_TERM {
            out.append("term", version_value(self.term));
        }
        out.start_array("members");
        for member in &self.members {
            out.push_document();
            member.append_to(&mut out, self.names);
            out.end();
        }
        out.end();
        if self.config_server {
            out.append("configsvr", true);
        }
        out.append("protocolVersion", self.protocol_version).append(
            "writeConcernMajorityJournalDefault",
            self.write_concern_majority_journal_default,
        );
        out.start_document("settings");
        self.settings.append_to(&mut out);
        out.end();
        out.finish()
    }

    pub fn config_version(&self) -> ConfigVersion {
        ConfigVersion {
            term: self.term,
            version: self.version,
        }
    }

    pub fn replica_set_id(&self) -> Option<ObjectId> {
        self.settings.replica_set_id
    }

    /// The same configuration with the identity of the set where it names none, as an operator's
    /// seldom does.
    #[must_use]
    pub fn with_identity_of(mut self, current: &Config) -> Config {
        let settings = &mut self.settings;
        settings.replica_set_id = settings.replica_set_id.or(current.replica_set_id());
        if matches!(self.names, FieldNames::Absent) {
            self.names = current.names;
        }
        self
    }

    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_voter())
    }

    /// How many votes win an election.
    pub fn majority_votes(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    /// How many members that bear data have to hold a write for it to be safe from any election.
    pub fn write_majority(&self) -> usize {
        let bearing = self.voters().filter(|member| !member.arbiter_only).count();
        self.majority_votes().min(bearing)
    }

    pub fn member_of(&self, host: &HostPort) -> Option<(usize, &Member)> {
        let mut members = self.members.iter().enumerate();
        members.find(|(_, member)| member.host == *host)
    }

    /// Whether the set's default write concern is one of the majority, which MongoDB has unless
    /// arbiters could leave it unsatisfied.
    pub fn default_is_majority(&self) -> bool {
        let arbiters = self.members.iter().filter(|m| m.arbiter_only).count();
        let bearing = self.voters().filter(|member| !member.arbiter_only).count();
        arbiters == 0 || bearing > self.majority_votes()
    }

    pub(crate) fn incompatible(message: impl Into<String>) -> Error {
        Error::new(
            ErrorCode::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE,
            message,
        )
    }
}

/// MongoDB shows versions and terms as 32-bit numbers where they fit.
fn version_value(value: i64) -> pinion_bson::RawBsonRef<'static> {
    match i32::try_from(value) {
        Ok(small) => pinion_bson::RawBsonRef::Int32(small),
        Err(_) => pinion_bson::RawBsonRef::Int64(value),
    }
}

#[cfg(test)]
mod tests;
