//! Positions in the oplog as they stand in messages.

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocument, Timestamp as BsonTimestamp};
use pinion_clock::{OpTime, Term};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Path, missing_field};

/// The highest term that is taken off the wire. No set reaches it, and a member that receives it
/// can still count further.
pub const MAX_TERM: Term = Term(i64::MAX >> 16);

/// An entry of the oplog with the wall-clock time at which its primary wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTimeAndWallTime {
    pub optime: OpTime,
    /// Milliseconds since the Unix epoch; 0 where it was not reported.
    pub wall_ms: i64,
}

impl OpTimeAndWallTime {
    pub const NULL: OpTimeAndWallTime = OpTimeAndWallTime {
        optime: OpTime::NULL,
        wall_ms: 0,
    };

    pub const fn new(optime: OpTime, wall_ms: i64) -> OpTimeAndWallTime {
        OpTimeAndWallTime { optime, wall_ms }
    }

    /// The later of two entries.
    #[must_use]
    pub fn max(self, other: OpTimeAndWallTime) -> OpTimeAndWallTime {
        match other.optime > self.optime {
            true => other,
            false => self,
        }
    }

    /// The earlier of two entries.
    #[must_use]
    pub fn min(self, other: OpTimeAndWallTime) -> OpTimeAndWallTime {
        match other.optime < self.optime {
            true => other,
            false => self,
        }
    }
}

/// Appends `{ts, t}`.
pub fn append_optime(out: &mut DocBuilder, name: &str, optime: OpTime) {
    let ts = BsonTimestamp {
        time: optime.ts.secs(),
        increment: optime.ts.inc(),
    };
    out.start_document(name)
        .append("ts", RawBsonRef::Timestamp(ts))
        .append("t", optime.term.0)
        .end();
}

pub(crate) fn append_date(out: &mut DocBuilder, name: &str, wall_ms: i64) {
    out.append(name, RawBsonRef::DateTime(DateTime::from_millis(wall_ms)));
}

/// Reads `{ts, t}`; fields that newer members add are passed over.
///
/// # Errors
/// A part that is missing or of another type.
pub fn parse_optime(path: Path<'_>, document: &RawDocument) -> Result<OpTime> {
    let reader = FieldReader::object(path, document)?;
    let ts = reader
        .opt_timestamp("ts")?
        .ok_or_else(|| missing_field(path.field("ts")))?;
    Ok(OpTime::new(ts, term(&reader, "t")?))
}

/// An optime below a document.
pub(super) fn opt_optime(reader: &FieldReader<'_, '_>, name: &str) -> Result<Option<OpTime>> {
    match reader.opt_doc(name)? {
        None => Ok(None),
        Some(document) => parse_optime(reader.path().field(name), document).map(Some),
    }
}

/// An optime and the date beside it, both optional.
pub(super) fn opt_optime_at(
    reader: &FieldReader<'_, '_>,
    name: &str,
    wall_name: &str,
) -> Result<Option<OpTimeAndWallTime>> {
    let wall_ms = reader.opt_date_ms(wall_name)?.unwrap_or(0);
    let optime = opt_optime(reader, name)?;
    Ok(optime.map(|optime| OpTimeAndWallTime { optime, wall_ms }))
}

pub(super) fn required<T>(reader: &FieldReader<'_, '_>, name: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| missing_field(reader.path().field(name)))
}

/// A term, which older members leave out.
pub(super) fn term(reader: &FieldReader<'_, '_>, name: &str) -> Result<Term> {
    let term = reader.opt_between(name, Term::UNINITIALIZED.0, MAX_TERM.0)?;
    Ok(term.map_or(Term::UNINITIALIZED, Term))
}

/// A term that must be there.
pub(super) fn required_term(reader: &FieldReader<'_, '_>, name: &str) -> Result<Term> {
    let given = reader.opt_i64(name)?;
    required(reader, name, given)?;
    term(reader, name)
}

/// The name of a host, where the empty text means none.
pub(super) fn opt_host(
    reader: &FieldReader<'_, '_>,
    name: &str,
) -> Result<Option<crate::config::HostPort>> {
    match reader.opt_str(name)? {
        None | Some("") | Some(":27017") => Ok(None),
        Some(text) => crate::config::HostPort::parse(text).map(Some),
    }
}
