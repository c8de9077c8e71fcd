//! What replies carry beside their answer: `$replData` and `$oplogQueryData`.
//!
//! Source: replication document, "ReplSetMetadata" and "OplogQueryMetadata".

use pinion_bson::{DocBuilder, ObjectId, RawBsonRef, RawDocument};
use pinion_clock::{OpTime, Term};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Path};

use super::optime::{
    OpTimeAndWallTime, append_date, append_optime, opt_host, opt_optime, opt_optime_at, required,
    term,
};
use crate::config::{ConfigVersion, HostPort, NO_TERM};

/// The name of the field that a request asks for it with, and that a reply carries it in.
pub const REPL_DATA: &str = "$replData";
/// As [`REPL_DATA`], for reads of the oplog.
pub const OPLOG_QUERY_DATA: &str = "$oplogQueryData";

/// `$replData`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplSetMetadata {
    pub term: Term,
    pub last_committed: OpTimeAndWallTime,
    /// The newest entry that a reader of the sender sees.
    pub last_visible: OpTime,
    pub config: ConfigVersion,
    pub replica_set_id: Option<ObjectId>,
    pub primary_index: Option<usize>,
    pub sync_source_index: Option<usize>,
    pub is_primary: bool,
}

impl ReplSetMetadata {
    /// Reads it from a message that may carry it. A request that merely asks for it carries a
    /// number there.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn of_message(message: &RawDocument) -> Result<Option<ReplSetMetadata>> {
        let Some(RawBsonRef::Document(document)) = pinion_bson::get(message, REPL_DATA) else {
            return Ok(None);
        };
        let reader = FieldReader::object(Path::root(REPL_DATA), document)?;
        let committed = opt_optime_at(&reader, "lastOpCommitted", "lastCommittedWall")?;
        Ok(Some(ReplSetMetadata {
            term: term(&reader, "term")?,
            last_committed: required(&reader, "lastOpCommitted", committed)?,
            last_visible: opt_optime(&reader, "lastOpVisible")?.unwrap_or_default(),
            config: ConfigVersion {
                version: reader.i64("configVersion")?,
                term: reader.opt_i64("configTerm")?.unwrap_or(NO_TERM),
            },
            replica_set_id: reader.opt_object_id("replicaSetId")?,
            primary_index: index(&reader, "primaryIndex")?,
            sync_source_index: index(&reader, "syncSourceIndex")?,
            is_primary: reader.opt_safe_bool("isPrimary")?.unwrap_or(false),
        }))
    }

    /// Appends the field.
    pub fn append_to(&self, out: &mut DocBuilder) {
        out.start_document(REPL_DATA).append("term", self.term.0);
        append_optime(out, "lastOpCommitted", self.last_committed.optime);
        append_date(out, "lastCommittedWall", self.last_committed.wall_ms);
        append_optime(out, "lastOpVisible", self.last_visible);
        out.append("configVersion", self.config.version)
            .append("configTerm", self.config.term);
        if let Some(id) = self.replica_set_id {
            out.append("replicaSetId", id);
        }
        append_index(out, "primaryIndex", self.primary_index);
        append_index(out, "syncSourceIndex", self.sync_source_index);
        out.append("isPrimary", self.is_primary).end();
    }
}

/// `$oplogQueryData`.
#[derive(Clone, Debug, PartialEq)]
pub struct OplogQueryMetadata {
    pub last_committed: OpTimeAndWallTime,
    /// The last entry that the sender has applied.
    pub last_applied: OpTime,
    pub rollback_id: i32,
    pub primary_index: Option<usize>,
    pub sync_source_index: Option<usize>,
    pub sync_source: Option<HostPort>,
}

impl OplogQueryMetadata {
    /// Reads it from a reply that may carry it.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn of_message(message: &RawDocument) -> Result<Option<OplogQueryMetadata>> {
        let Some(RawBsonRef::Document(document)) = pinion_bson::get(message, OPLOG_QUERY_DATA)
        else {
            return Ok(None);
        };
        let reader = FieldReader::object(Path::root(OPLOG_QUERY_DATA), document)?;
        let committed = opt_optime_at(&reader, "lastOpCommitted", "lastCommittedWall")?;
        let applied = opt_optime(&reader, "lastOpApplied")?;
        Ok(Some(OplogQueryMetadata {
            last_committed: required(&reader, "lastOpCommitted", committed)?,
            last_applied: required(&reader, "lastOpApplied", applied)?,
            rollback_id: required(&reader, "rbid", reader.opt_i32("rbid")?)?,
            primary_index: index(&reader, "primaryIndex")?,
            sync_source_index: index(&reader, "syncSourceIndex")?,
            sync_source: opt_host(&reader, "syncSourceHost")?,
        }))
    }

    /// Appends the field.
    pub fn append_to(&self, out: &mut DocBuilder) {
        out.start_document(OPLOG_QUERY_DATA);
        append_optime(out, "lastOpCommitted", self.last_committed.optime);
        append_date(out, "lastCommittedWall", self.last_committed.wall_ms);
        append_optime(out, "lastOpApplied", self.last_applied);
        out.append("rbid", self.rollback_id);
        append_index(out, "primaryIndex", self.primary_index);
        append_index(out, "syncSourceIndex", self.sync_source_index);
        let host = self.sync_source.as_ref().map(HostPort::to_string);
        out.append("syncSourceHost", host.as_deref().unwrap_or_default())
            .end();
    }
}

/// -1 is none.
fn index(reader: &FieldReader<'_, '_>, name: &str) -> Result<Option<usize>> {
    let index = reader.opt_i64(name)?;
    Ok(index.and_then(|index| usize::try_from(index).ok()))
}

fn append_index(out: &mut DocBuilder, name: &str, index: Option<usize>) {
    out.append(name, index.map_or(-1, |index| index as i32));
}
