//! What a set's members may not be together.

use pinion_wire::{Error, Result};

use super::Config;
use super::limits::{MAX_MEMBERS, MAX_VOTERS};

impl Config {
    /// Whether a set can have this configuration.
    ///
    /// # Errors
    /// The first rule that it breaks, as MongoDB reports it.
    pub fn validate(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::bad_value(message));
        if self.members.is_empty() || self.members.len() > MAX_MEMBERS {
            return refuse(format!(
                "Replica set configuration contains {} members, but must have at least 1 and no more than  {MAX_MEMBERS}",
                self.members.len()
            ));
        }
        self.validate_members()?;
        let localhosts = self
            .members
            .iter()
            .filter(|m| m.host.is_localhost())
            .count();
        if localhosts != 0 && localhosts != self.members.len() {
            return refuse(format!(
                "Either all host names in a replica set configuration must be localhost references, or none must be; found {localhosts} out of {}",
                self.members.len()
            ));
        }
        let voters = self.voters().count();
        if voters == 0 || voters > MAX_VOTERS {
            return refuse(format!(
                "Replica set configuration contains {voters} voting members, but must be at least 1 and no more than {MAX_VOTERS}"
            ));
        }
        if !self.members.iter().any(|member| member.is_electable()) {
            return refuse(
                "Replica set configuration must contain at least one non-arbiter member with priority > 0"
                    .into(),
            );
        }
        if self.protocol_version != 1 {
            return refuse(format!(
                "protocolVersion field value of {} is not 1",
                self.protocol_version
            ));
        }
        for mode in &self.settings.modes {
            mode.check_satisfiable(&self.members)?;
        }
        Ok(())
    }

    /// Whether the set may be what a node was started as: a config server, or none.
    ///
    /// # Errors
    /// It is not, or breaks a rule of config servers.
    pub fn check_role(&self, is_config_server: bool) -> Result<()> {
        let refuse = |message: &str| Err(Error::bad_value(message));
        match (self.config_server, is_config_server) {
            (false, false) => return Ok(()),
            (false, true) => {
                return refuse(
                    "Nodes started with the --configsvr flag must have configsvr:true in their config",
                );
            }
            (true, _) => {}
        }
        if self.members.iter().any(|member| member.arbiter_only) {
            return refuse(
                "Arbiters are not allowed in replica set configurations being used for config servers",
            );
        }
        for member in &self.members {
            if !member.build_indexes {
                return refuse(
                    "Members in replica set configurations being used for config servers must build indexes",
                );
            }
            if member.delay_secs != 0 {
                return refuse(
                    "Members in replica set configurations being used for config servers cannot have a non-zero secondaryDelaySecs",
                );
            }
        }
        if !is_config_server {
            return refuse(
                "Nodes being used for config servers must be started with the --configsvr flag",
            );
        }
        if !self.write_concern_majority_journal_default {
            return refuse(
                "writeConcernMajorityJournalDefault must be true in replica set configurations being used for config servers",
            );
        }
        Ok(())
    }

    /// Whether this node may be given the configuration by an operator: a set that has one like it
    /// already keeps it.
    ///
    /// # Errors
    /// It asks for what no member here does.
    pub(super) fn check_supported(&self, before: Option<&Config>) -> Result<()> {
        let builds_none = |config: &Config, id| {
            let mut members = config.members.iter();
            members.any(|member| member.id == id && !member.build_indexes)
        };
        for (at, member) in self.members.iter().enumerate() {
            let is_known = before.is_some_and(|before| builds_none(before, member.id));
            if !member.build_indexes && !is_known {
                return Err(Error::bad_value(format!(
                    "members.{at}.buildIndexes: false is not supported: member {} would build all indexes",
                    member.host
                )));
            }
        }
        Ok(())
    }

    fn validate_members(&self) -> Result<()> {
        for (i, member) in self.members.iter().enumerate() {
            member.validate()?;
            for (j, other) in self.members.iter().enumerate().skip(i + 1) {
                let same = |field: &str, value: String| {
                    Err(Error::bad_value(format!(
                        "Found two member configurations with same {field} field, members.{i}.{field} == members.{j}.{field} == {value}"
                    )))
                };
                if member.id == other.id {
                    return same("_id", member.id.to_string());
                }
                if member.host == other.host {
                    return same("host", member.host.to_string());
                }
            }
        }
        Ok(())
    }
}
