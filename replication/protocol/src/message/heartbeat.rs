//! `replSetHeartbeat`: what a member asks another, and what it learns.
//!
//! Source: replication document, "Heartbeats".

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_wire::idl::{CommandReader, FieldReader, Path};
use pinion_wire::{MemberState, Result};

use super::optime::{
    OpTimeAndWallTime, append_date, append_optime, opt_host, opt_optime_at, required,
    required_term, term,
};
use crate::config::{Config, ConfigVersion, HostPort, NO_TERM};

/// The arguments of `replSetHeartbeat`, version 1 of them.
#[derive(Clone, Debug, PartialEq)]
pub struct HeartbeatRequest {
    pub set_name: String,
    /// Whether the asked one is to say if it has data, before a set is initiated.
    pub check_empty: bool,
    pub config: ConfigVersion,
    /// `None` from a node that no configuration names.
    pub sender: Option<HostPort>,
    pub sender_id: Option<i64>,
    pub term: Term,
    /// The `_id` of the member that the sender takes for the primary.
    pub primary_id: Option<i64>,
}

impl HeartbeatRequest {
    /// Reads the command.
    ///
    /// # Errors
    /// A field that is missing, of a wrong type or unknown.
    pub fn parse(body: &RawDocument) -> Result<HeartbeatRequest> {
        let reader = CommandReader::new("replSetHeartbeat", body)?;
        // Version 1 is the only one there is.
        reader.ignore(&["hbv", "maxTimeMSOpOnly"]);
        let request = HeartbeatRequest {
            set_name: reader.str("replSetHeartbeat")?.to_owned(),
            check_empty: reader.opt_safe_bool("checkEmpty")?.unwrap_or(false),
            config: ConfigVersion {
                version: reader.i64("configVersion")?,
                term: reader.opt_i64("configTerm")?.unwrap_or(NO_TERM),
            },
            sender: opt_host(&reader, "from")?,
            sender_id: reader.opt_i64("fromId")?.filter(|id| *id >= 0),
            term: required_term(&reader, "term")?,
            primary_id: reader.opt_i64("primaryId")?.filter(|id| *id >= 0),
        };
        reader.finish()?;
        Ok(request)
    }

    /// The command, without its database.
    pub(super) fn append_to(&self, out: &mut DocBuilder) {
        let sender = self.sender.as_ref().map(HostPort::to_string);
        out.append("replSetHeartbeat", self.set_name.as_str());
        if self.check_empty {
            out.append("checkEmpty", true);
        }
        out.append("configVersion", self.config.version)
            .append("configTerm", self.config.term)
            .append("hbv", 1i64)
            .append("from", sender.as_deref().unwrap_or_default())
            .append("fromId", self.sender_id.unwrap_or(-1))
            .append("term", self.term.0)
            .append("primaryId", self.primary_id.unwrap_or(-1));
    }
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct HeartbeatResponse {
    pub set_name: Option<String>,
    pub state: Option<MemberState>,
    /// When a primary was elected.
    pub election_time: Option<Timestamp>,
    /// Whether there is data; reported only when asked for.
    pub has_data: Option<bool>,
    /// The version of its configuration, -2 for none.
    pub config_version: i64,
    pub config_term: i64,
    /// Its configuration, where that is newer than the sender's.
    pub config: Option<Config>,
    pub term: Term,
    pub primary_id: Option<i64>,
    pub sync_source: Option<HostPort>,
    pub applied: OpTimeAndWallTime,
    pub durable: OpTimeAndWallTime,
    pub written: Option<OpTimeAndWallTime>,
    /// Whether it would stand for election; members before MongoDB 4.4 do not report it.
    pub electable: Option<bool>,
    /// For how many milliseconds it has heard nothing of the member `primary_id`, which it asks.
    /// Pinion's members report it, where it is long enough to matter; MongoDB's do not, and ignore
    /// it.
    pub primary_silent_ms: Option<u64>,
}

/// The version that a node without a configuration reports.
pub const UNINITIALIZED_VERSION: i64 = -2;

const PRIMARY_SILENT: &str = "primarySilentMillis";

impl HeartbeatResponse {
    pub fn config_id(&self) -> ConfigVersion {
        ConfigVersion {
            version: self.config_version,
            term: self.config_term,
        }
    }

    /// Reads the reply. Fields that newer members add are passed over.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(reply: &RawDocument) -> Result<HeartbeatResponse> {
        let reader = FieldReader::object(Path::root("ReplSetHeartbeatResponse"), reply)?;
        let state = match reader.opt_i64("state")? {
            None => None,
            Some(number) => Some(MemberState::from_number(number).ok_or_else(|| {
                pinion_wire::Error::bad_value(format!(
                    "Value for \"state\" in response to replSetHeartbeat is out of range; legal values are non-negative and no more than 10, found {number}"
                ))
            })?),
        };
        let election_time = match reader.value("electionTime") {
            None => None,
            Some(RawBsonRef::DateTime(date)) => {
                Some(Timestamp::from_u64(date.timestamp_millis() as u64))
            }
            Some(_) => reader.opt_timestamp("electionTime")?,
        };
        let config = match reader.opt_doc("config")? {
            Some(document) => Some(Config::parse(document)?),
            None => None,
        };
        Ok(HeartbeatResponse {
            set_name: reader.opt_str("set")?.map(str::to_owned),
            state,
            election_time,
            has_data: reader.opt_safe_bool("hasData")?,
            config_version: required(&reader, "v", reader.opt_i64("v")?)?,
            config_term: reader.opt_i64("configTerm")?.unwrap_or(NO_TERM),
            config,
            term: term(&reader, "term")?,
            primary_id: reader.opt_i64("primaryId")?.filter(|id| *id >= 0),
            sync_source: opt_host(&reader, "syncingTo")?,
            applied: opt_optime_at(&reader, "opTime", "wallTime")?.unwrap_or_default(),
            durable: opt_optime_at(&reader, "durableOpTime", "durableWallTime")?
                .unwrap_or_default(),
            written: opt_optime_at(&reader, "writtenOpTime", "writtenWallTime")?,
            electable: reader.opt_safe_bool("electable")?,
            primary_silent_ms: reader
                .opt_i64(PRIMARY_SILENT)?
                .and_then(|ms| u64::try_from(ms).ok()),
        })
    }

    /// The reply, without `ok`.
    pub fn append_to(&self, out: &mut DocBuilder) {
        if let Some(time) = self.election_time {
            // A date whose milliseconds are the timestamp: so MongoDB sends it.
            let date = DateTime::from_millis(time.as_u64() as i64);
            out.append("electionTime", RawBsonRef::DateTime(date));
        }
        if let Some(config) = &self.config {
            out.append("config", &*config.to_bson());
        }
        if let Some(has_data) = self.has_data {
            out.append("hasData", has_data);
        }
        if let Some(electable) = self.electable {
            out.append("electable", electable);
        }
        if let Some(state) = self.state {
            out.append("state", state.number());
        }
        out.append("v", self.config_version as i32);
        if self.config_version != UNINITIALIZED_VERSION {
            out.append("configTerm", self.config_term);
        }
        if let Some(name) = &self.set_name {
            out.append("set", name.as_str());
        }
        if let Some(host) = &self.sync_source {
            out.append("syncingTo", host.to_string().as_str());
        }
        out.append("term", self.term.0);
        if let Some(id) = self.primary_id {
            out.append("primaryId", id as i32);
        }
        if let Some(ms) = self.primary_silent_ms {
            out.append(PRIMARY_SILENT, i64::try_from(ms).unwrap_or(i64::MAX));
        }
        append_optime(out, "durableOpTime", self.durable.optime);
        append_date(out, "durableWallTime", self.durable.wall_ms);
        append_optime(out, "opTime", self.applied.optime);
        append_date(out, "wallTime", self.applied.wall_ms);
        if let Some(written) = self.written {
            append_optime(out, "writtenOpTime", written.optime);
            append_date(out, "writtenWallTime", written.wall_ms);
        }
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        self.append_to(&mut out);
        out.finish()
    }

    /// The last entry that is known to be in its oplog.
    pub fn last_written(&self) -> OpTime {
        let known = self.applied.max(self.durable);
        known.max(self.written.unwrap_or_default()).optime
    }
}
