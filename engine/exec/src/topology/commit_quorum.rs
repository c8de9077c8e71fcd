//! `commitQuorum` of an index build: which members must be ready before its index is there.

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_wire::idl::{i64_clamped, is_number};
use pinion_wire::{Error, ErrorCode, Result};

use super::SetView;
use crate::limits::MAX_MEMBERS;

/// Members that bear data and vote.
const VOTING_MEMBERS: &str = "votingMembers";
const MAJORITY: &str = "majority";

/// A commit quorum.
#[derive(Clone, Debug, PartialEq)]
pub enum CommitQuorum {
    /// This number of members. With none no member is waited for, and no votes are kept.
    Members(u32),
    /// `votingMembers`, `majority`, or a mode of the configuration.
    Mode(String),
}

impl Default for CommitQuorum {
    fn default() -> CommitQuorum {
        CommitQuorum::Mode(VOTING_MEMBERS.to_owned())
    }
}

impl CommitQuorum {
    /// Reads a `commitQuorum`.
    ///
    /// # Errors
    /// `FailedToParse` for what is none.
    pub fn parse(value: RawBsonRef<'_>) -> Result<CommitQuorum> {
        match value {
            RawBsonRef::String("") => Err(Error::failed_to_parse(
                "commitQuorum can't be an empty string",
            )),
            RawBsonRef::String(mode) => Ok(CommitQuorum::Mode(mode.to_owned())),
            value if is_number(value) => {
                let members = i64_clamped(value).unwrap_or(-1);
                if !(0..=i64::from(MAX_MEMBERS)).contains(&members) {
                    return Err(Error::failed_to_parse(format!(
                        "commitQuorum has to be a non-negative number and not greater than {MAX_MEMBERS}; found: {members}"
                    )));
                }
                Ok(CommitQuorum::Members(members as u32))
            }
            _ => Err(Error::failed_to_parse(
                "commitQuorum has to be a number or a string",
            )),
        }
    }

    /// Checks that the members of a configuration can satisfy it.
    ///
    /// # Errors
    /// `UnsatisfiableCommitQuorum` for more members than there are, and `UnknownReplWriteConcern`
    /// for a mode that the configuration lacks.
    pub fn check(&self, view: &SetView) -> Result<()> {
        match self {
            CommitQuorum::Members(members) if *members > view.data_members.min(view.voters) => {
                Err(Error::new(
                    ErrorCode::UNSATISFIABLE_COMMIT_QUORUM,
                    "Not enough data-bearing voting nodes",
                ))
            }
            CommitQuorum::Mode(mode)
                if !matches!(mode.as_str(), VOTING_MEMBERS | MAJORITY)
                    && !view.modes.iter().any(|known| known == mode) =>
            {
                Err(Error::new(
                    ErrorCode::UNKNOWN_REPL_WRITE_CONCERN,
                    format!(
                        "No write concern mode named '{mode}' found in replica set configuration"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Reads one that is kept, whatever the configuration has become since; `None` for what is
    /// none.
    pub fn stored(value: RawBsonRef<'_>) -> Option<CommitQuorum> {
        match value {
            RawBsonRef::String(mode) if !mode.is_empty() => {
                Some(CommitQuorum::Mode(mode.to_owned()))
            }
            value if is_number(value) => {
                let members = u32::try_from(i64_clamped(value)?).ok()?;
                Some(CommitQuorum::Members(members))
            }
            _ => None,
        }
    }

    /// Whether no member is waited for.
    pub fn is_disabled(&self) -> bool {
        *self == CommitQuorum::Members(0)
    }

    pub fn append(&self, name: &str, out: &mut DocBuilder) {
        match self {
            CommitQuorum::Members(members) => out.append(name, *members as i32),
            CommitQuorum::Mode(mode) => out.append(name, mode.as_str()),
        };
    }
}
