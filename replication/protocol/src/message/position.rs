//! `replSetUpdatePosition`: how far members are, passed along the sync sources to the primary.
//!
//! Source: replication document, "Update Position Commands".

use pinion_bson::{DocBuilder, RawDocument};
use pinion_wire::Result;
use pinion_wire::idl::{CommandReader, FieldReader};

use super::metadata::ReplSetMetadata;
use super::optime::{OpTimeAndWallTime, append_date, append_optime, opt_optime_at, required};

/// How far one member is, as the sender knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemberPosition {
    pub member_id: i64,
    pub config_version: i64,
    pub applied: OpTimeAndWallTime,
    pub durable: OpTimeAndWallTime,
    pub written: Option<OpTimeAndWallTime>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct UpdatePosition {
    pub positions: Vec<MemberPosition>,
    /// Only here it travels with a request.
    pub metadata: Option<ReplSetMetadata>,
}

impl UpdatePosition {
    /// Reads the command.
    ///
    /// # Errors
    /// A field that is missing, of a wrong type or unknown.
    pub fn parse(body: &RawDocument) -> Result<UpdatePosition> {
        let reader = CommandReader::new("replSetUpdatePosition", body)?;
        reader.ignore(&["replSetUpdatePosition"]);
        let optimes = required(&reader, "optimes", reader.opt_objects("optimes")?)?;
        let path = optimes.path();
        let mut positions = Vec::new();
        for object in optimes {
            let (at, entry) = object?;
            let entry = FieldReader::object(path.index(at), entry)?;
            positions.push(parse_position(&entry)?);
        }
        let metadata = ReplSetMetadata::of_message(body)?;
        reader.finish()?;
        Ok(UpdatePosition {
            positions,
            metadata,
        })
    }

    pub(super) fn append_to(&self, out: &mut DocBuilder) {
        out.append("replSetUpdatePosition", 1)
            .start_array("optimes");
        for position in &self.positions {
            out.push_document();
            append_optime(out, "durableOpTime", position.durable.optime);
            append_date(out, "durableWallTime", position.durable.wall_ms);
            append_optime(out, "appliedOpTime", position.applied.optime);
            append_date(out, "appliedWallTime", position.applied.wall_ms);
            if let Some(written) = position.written {
                append_optime(out, "writtenOpTime", written.optime);
                append_date(out, "writtenWallTime", written.wall_ms);
            }
            out.append("memberId", position.member_id)
                .append("cfgver", position.config_version)
                .end();
        }
        out.end();
        if let Some(metadata) = &self.metadata {
            metadata.append_to(out);
        }
    }
}

fn parse_position(entry: &FieldReader<'_, '_>) -> Result<MemberPosition> {
    let applied = opt_optime_at(entry, "appliedOpTime", "appliedWallTime")?;
    let durable = opt_optime_at(entry, "durableOpTime", "durableWallTime")?;
    let position = MemberPosition {
        member_id: entry.i64("memberId")?,
        config_version: entry.i64("cfgver")?,
        applied: required(entry, "appliedOpTime", applied)?,
        durable: required(entry, "durableOpTime", durable)?,
        written: opt_optime_at(entry, "writtenOpTime", "writtenWallTime")?,
    };
    entry.finish()?;
    Ok(position)
}
