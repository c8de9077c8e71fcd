//! The `settings` of a configuration.

use pinion_bson::{DocBuilder, ObjectId, RawBsonRef, RawDocument};
use pinion_wire::idl::{FieldReader, Path, Types, wrong_type};
use pinion_wire::{Error, Result};

use super::modes::WriteMode;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Whether a secondary may sync from another one.
    pub chaining_allowed: bool,
    pub heartbeat_interval_ms: i64,
    pub heartbeat_timeout_secs: i64,
    pub election_timeout_ms: i64,
    /// How long a new primary waits for entries that others have; -1 for as long as it takes.
    pub catch_up_timeout_ms: i64,
    pub catch_up_takeover_delay_ms: i64,
    /// Write concerns that have a name.
    pub modes: Vec<WriteMode>,
    /// Made when the set is.
    pub replica_set_id: Option<ObjectId>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            chaining_allowed: true,
            heartbeat_interval_ms: 2_000,
            heartbeat_timeout_secs: 10,
            election_timeout_ms: 10_000,
            catch_up_timeout_ms: -1,
            catch_up_takeover_delay_ms: 30_000,
            modes: Vec::new(),
            replica_set_id: None,
        }
    }
}

impl Settings {
    pub(super) fn parse(path: Path<'_>, document: &RawDocument) -> Result<Settings> {
        let reader = FieldReader::object(path, document)?;
        let default = Settings::default();
        let mut modes = Vec::new();
        if let Some(given) = reader.opt_doc("getLastErrorModes")? {
            let path = reader.path().field("getLastErrorModes");
            for (name, tags) in pinion_bson::elements(given) {
                let RawBsonRef::Document(tags) = tags else {
                    return Err(wrong_type(path.field(name), tags, Types::OBJECT));
                };
                modes.push(WriteMode::parse(name, tags)?);
            }
        }
        if let Some(defaults) = reader.opt_doc("getLastErrorDefaults")? {
            check_defaults(defaults)?;
        }
        let settings = Settings {
            chaining_allowed: reader
                .opt_safe_bool("chainingAllowed")?
                .unwrap_or(default.chaining_allowed),
            heartbeat_interval_ms: reader
                .opt_at_least("heartbeatIntervalMillis", 1)?
                .unwrap_or(default.heartbeat_interval_ms),
            heartbeat_timeout_secs: reader
                .opt_at_least("heartbeatTimeoutSecs", 1)?
                .unwrap_or(default.heartbeat_timeout_secs),
            election_timeout_ms: reader
                .opt_at_least("electionTimeoutMillis", 1)?
                .unwrap_or(default.election_timeout_ms),
            catch_up_timeout_ms: reader
                .opt_at_least("catchUpTimeoutMillis", -1)?
                .unwrap_or(default.catch_up_timeout_ms),
            catch_up_takeover_delay_ms: reader
                .opt_at_least("catchUpTakeoverDelayMillis", -1)?
                .unwrap_or(default.catch_up_takeover_delay_ms),
            modes,
            replica_set_id: reader.opt_object_id("replicaSetId")?,
        };
        reader.finish()?;
        Ok(settings)
    }

    pub(super) fn append_to(&self, out: &mut DocBuilder) {
        out.append("chainingAllowed", self.chaining_allowed)
            .append("heartbeatIntervalMillis", self.heartbeat_interval_ms as i32)
            .append("heartbeatTimeoutSecs", self.heartbeat_timeout_secs as i32)
            .append("electionTimeoutMillis", self.election_timeout_ms as i32)
            .append("catchUpTimeoutMillis", self.catch_up_timeout_ms as i32)
            .append(
                "catchUpTakeoverDelayMillis",
                self.catch_up_takeover_delay_ms as i32,
            );
        out.start_document("getLastErrorModes");
        for mode in &self.modes {
            mode.append_to(out);
        }
        out.end();
        out.start_document("getLastErrorDefaults")
            .append("w", 1)
            .append("wtimeout", 0)
            .end();
        if let Some(id) = self.replica_set_id {
            out.append("replicaSetId", id);
        }
    }
}

/// Since MongoDB 5.0 nothing but what holds anyway: `setDefaultRWConcern` sets defaults.
fn check_defaults(defaults: &RawDocument) -> Result<()> {
    for (name, value) in pinion_bson::elements(defaults) {
        let number = pinion_wire::idl::f64_lossy(value);
        let is_default = matches!((name, number), ("w", Some(1.0)) | ("wtimeout", Some(0.0)));
        if !is_default {
            return Err(Error::bad_value(
                "Default write concern can't be set in settings.getLastErrorDefaults: use setDefaultRWConcern",
            ));
        }
    }
    Ok(())
}
