//! Read concern and write concern as clients send them.
//!
//! What a topology allows (no `w: 2` and no snapshot reads on a standalone) is decided by the
//! executor.

use pinion_bson::{Document, RawBsonRef, RawDocument, elements};
use pinion_clock::{OpTime, Term, Timestamp};

use super::errors::{Path, Types, idl_type_name, missing_field};
use super::numbers::{i64_clamped, is_number};
use super::reader::FieldReader;
use crate::error::{Error, ErrorCode, Result};
use crate::limits::MAX_WRITE_CONCERN_MEMBERS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadConcernLevel {
    Local,
    Available,
    Majority,
    Linearizable,
    Snapshot,
}

impl ReadConcernLevel {
    pub fn name(self) -> &'static str {
        match self {
            ReadConcernLevel::Local => "local",
            ReadConcernLevel::Available => "available",
            ReadConcernLevel::Majority => "majority",
            ReadConcernLevel::Linearizable => "linearizable",
            ReadConcernLevel::Snapshot => "snapshot",
        }
    }
}

const LEVELS: [(&str, ReadConcernLevel); 5] = [
    ("local", ReadConcernLevel::Local),
    ("available", ReadConcernLevel::Available),
    ("majority", ReadConcernLevel::Majority),
    ("linearizable", ReadConcernLevel::Linearizable),
    ("snapshot", ReadConcernLevel::Snapshot),
];

const PROVENANCES: [(&str, ()); 5] = [
    ("clientSupplied", ()),
    ("implicitDefault", ()),
    ("customDefault", ()),
    ("getLastErrorDefaults", ()),
    ("internalWriteDefault", ()),
];

/// `readConcern` of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadConcern {
    pub level: Option<ReadConcernLevel>,
    pub after_cluster_time: Option<Timestamp>,
    pub at_cluster_time: Option<Timestamp>,
    /// What members ask each other for.
    pub after_op_time: Option<OpTime>,
}

impl ReadConcern {
    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        *self == ReadConcern::default()
    }
}

/// Reads the document of `readConcern`.
pub fn parse_read_concern(document: &RawDocument) -> Result<ReadConcern> {
    let reader = FieldReader::object(Path::root("readConcern"), document)?;
    let concern = ReadConcern {
        level: reader.opt_one_of("level", &LEVELS)?,
        after_cluster_time: cluster_time(&reader, "afterClusterTime")?,
        at_cluster_time: cluster_time(&reader, "atClusterTime")?,
        after_op_time: after_op_time(&reader)?,
    };
    reader.opt_one_of("provenance", &PROVENANCES)?;
    for option in [
        "allowTransactionTableSnapshot",
        "waitLastStableRecoveryTimestamp",
    ] {
        reader.unsupported_unless_empty(option, Types::BOOL)?;
    }
    reader.ignore(&["$replData"]);
    reader.finish()?;
    if concern.after_cluster_time.is_some() && concern.at_cluster_time.is_some() {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "Specifying a timestamp for readConcern snapshot in a causally consistent session is not allowed. \
             See https://docs.mongodb.com/manual/core/read-isolation-consistency-recency/#causal-consistency",
        ));
    }
    if concern.at_cluster_time.is_some() && concern.level != Some(ReadConcernLevel::Snapshot) {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "atClusterTime field can be set only if level is equal to snapshot",
        ));
    }
    Ok(concern)
}

/// `afterOpTime: {ts, t}`; without a term it is compared by its timestamp alone.
fn after_op_time(reader: &FieldReader<'_, '_>) -> Result<Option<OpTime>> {
    let Some(reader) = reader.opt_object("afterOpTime")? else {
        return Ok(None);
    };
    let ts = reader
        .opt_timestamp("ts")?
        .ok_or_else(|| missing_field(reader.path().field("ts")))?;
    let term = reader.opt_i64("t")?.map_or(Term::UNINITIALIZED, Term);
    Ok(Some(OpTime::new(ts, term)))
}

/// A cluster time is of BSON's any-type in MongoDB's definition, so null is refused too.
fn cluster_time(reader: &FieldReader<'_, '_>, name: &str) -> Result<Option<Timestamp>> {
    match reader.value(name) {
        None => Ok(None),
        Some(RawBsonRef::Timestamp(time)) => {
            let time = Timestamp::new(time.time, time.increment);
            if time.is_null() {
                return Err(Error::new(
                    ErrorCode::INVALID_OPTIONS,
                    format!("{name} cannot be a null timestamp"),
                ));
            }
            Ok(Some(time))
        }
        Some(other) => Err(reader.wrong_type(name, other, Types::TIMESTAMP)),
    }
}

/// `w` of a write concern.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteConcernW {
    /// This number of members.
    Members(u8),
    Majority,
    /// A mode that the configuration of the set defines.
    Mode(String),
    /// Tag names with counts.
    Tags(Document),
}

/// `writeConcern` of a command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteConcern {
    pub w: Option<WriteConcernW>,
    /// `j`, or its old name `fsync`.
    pub journal: Option<bool>,
    /// 0: wait without end.
    pub timeout_ms: u32,
}

impl WriteConcern {
    /// True for `w: 0` without journaling: the client does not wait for the outcome.
    pub fn is_unacknowledged(&self) -> bool {
        self.w == Some(WriteConcernW::Members(0)) && self.journal != Some(true)
    }
}

/// Reads the document of `writeConcern`.
pub fn parse_write_concern(document: &RawDocument) -> Result<WriteConcern> {
    let reader = FieldReader::object(Path::root("writeConcern"), document)?;
    let w = reader.value("w").map(parse_w).transpose()?;
    let journal = reader.opt_safe_bool("j")?;
    let fsync = reader.opt_safe_bool("fsync")?;
    if journal == Some(true) && fsync == Some(true) {
        return Err(Error::failed_to_parse(
            "fsync and j options cannot be used together",
        ));
    }
    let timeout = reader.value("wtimeout").and_then(i64_clamped).unwrap_or(0);
    // However far below zero: that is no time-out.
    let timeout_ms = i32::try_from(timeout.max(0)).map_err(|_| {
        Error::failed_to_parse(format!(
            "wtimeout must be within the range of a 32-bit integer; found: {timeout}"
        ))
    })?;
    reader.opt_one_of("provenance", &PROVENANCES)?;
    reader.ignore(&["wOpTime", "wElectionId", "getLastError"]);
    reader.finish()?;
    Ok(WriteConcern {
        w,
        journal: journal.or(fsync),
        timeout_ms: timeout_ms as u32,
    })
}

fn parse_w(value: RawBsonRef<'_>) -> Result<WriteConcernW> {
    match value {
        RawBsonRef::String("majority") => Ok(WriteConcernW::Majority),
        RawBsonRef::String(mode) => Ok(WriteConcernW::Mode(mode.to_owned())),
        // Null is a mode without a name, which no set defines.
        RawBsonRef::Null | RawBsonRef::Undefined => Ok(WriteConcernW::Mode(String::new())),
        RawBsonRef::Document(tags) => parse_tags(tags).map(WriteConcernW::Tags),
        other => match i64_clamped(other) {
            Some(members) => {
                let not_a_number = match other {
                    RawBsonRef::Double(n) => n.is_nan(),
                    RawBsonRef::Decimal128(n) => n.to_string().contains("NaN"),
                    _ => false,
                };
                if not_a_number || !(0..=MAX_WRITE_CONCERN_MEMBERS).contains(&members) {
                    return Err(Error::failed_to_parse(format!(
                        "w has to be a non-negative number and not greater than {MAX_WRITE_CONCERN_MEMBERS}; \
                         found: {members}"
                    )));
                }
                Ok(WriteConcernW::Members(members as u8))
            }
            None => Err(Error::failed_to_parse(format!(
                "w has to be a number, string, or object; found: {}",
                idl_type_name(other.element_type())
            ))),
        },
    }
}

const _: () = assert!(MAX_WRITE_CONCERN_MEMBERS <= u8::MAX as i64);

fn parse_tags(tags: &RawDocument) -> Result<Document> {
    if tags.is_empty() {
        return Err(Error::failed_to_parse("tagged write concern requires tags"));
    }
    for (_, value) in elements(tags) {
        if !is_number(value) {
            return Err(Error::failed_to_parse(format!(
                "tags must be a single level document with only number values; found: {}",
                idl_type_name(value.element_type())
            )));
        }
    }
    Document::try_from(tags).map_err(|error| Error::failed_to_parse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use pinion_bson::{Bson, RawBson, RawDocumentBuf, rawdoc};

    use super::*;

    fn check_read(document: RawDocumentBuf, expected: std::result::Result<ReadConcern, i32>) {
        let outcome = parse_read_concern(&document).map_err(|error| error.code.0);
        assert_eq!(outcome, expected, "{document:?}");
    }

    #[test]
    fn read_concern() {
        let level = |level| {
            Ok(ReadConcern {
                level: Some(level),
                ..ReadConcern::default()
            })
        };
        let bson_time = |time, increment| pinion_bson::Timestamp { time, increment };
        check_read(rawdoc! {}, Ok(ReadConcern::default()));
        check_read(
            rawdoc! { "level": RawBson::Null },
            Ok(ReadConcern::default()),
        );
        check_read(
            rawdoc! { "level": "majority" },
            level(ReadConcernLevel::Majority),
        );
        check_read(rawdoc! { "level": "LOCAL" }, Err(2));
        check_read(rawdoc! { "level": 1 }, Err(14));
        check_read(rawdoc! { "Level": "local" }, Err(40415));
        check_read(
            rawdoc! { "provenance": "clientSupplied" },
            Ok(ReadConcern::default()),
        );
        check_read(rawdoc! { "provenance": "x" }, Err(2));
        check_read(
            rawdoc! { "waitLastStableRecoveryTimestamp": false },
            Ok(ReadConcern::default()),
        );
        check_read(
            rawdoc! { "waitLastStableRecoveryTimestamp": true },
            Err(238),
        );
        check_read(rawdoc! { "allowTransactionTableSnapshot": 1 }, Err(14));
        check_read(rawdoc! { "afterClusterTime": 1 }, Err(14));
        check_read(rawdoc! { "afterClusterTime": RawBson::Null }, Err(14));
        check_read(rawdoc! { "afterClusterTime": bson_time(0, 0) }, Err(72));
        check_read(
            rawdoc! { "afterClusterTime": bson_time(7, 3) },
            Ok(ReadConcern {
                after_cluster_time: Some(Timestamp::new(7, 3)),
                ..ReadConcern::default()
            }),
        );
        check_read(rawdoc! { "atClusterTime": bson_time(7, 3) }, Err(72));
    }

    fn check_write(w: Bson, expected: std::result::Result<WriteConcernW, i32>) {
        let document = rawdoc! { "w": pinion_bson::RawBson::try_from(w).unwrap() };
        let outcome = parse_write_concern(&document)
            .map(|c| c.w.unwrap())
            .map_err(|error| error.code.0);
        assert_eq!(outcome, expected, "{document:?}");
    }

    #[test]
    fn write_concern_w() {
        let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
        let members = |n| Ok(WriteConcernW::Members(n));
        check_write(Bson::Int32(1), members(1));
        check_write(Bson::Double(0.9), members(0));
        check_write(Bson::Double(50.99), members(50));
        check_write(decimal("1.5"), members(2));
        check_write(decimal("50.5"), members(50));
        check_write(decimal("51.4"), Err(9));
        check_write(decimal("NaN"), Err(9));
        check_write(Bson::Double(f64::NAN), Err(9));
        check_write(Bson::Double(f64::INFINITY), Err(9));
        check_write(Bson::Int32(-1), Err(9));
        check_write(Bson::Int32(51), Err(9));
        check_write(Bson::Int64(i64::MAX), Err(9));
        check_write(Bson::Boolean(true), Err(9));
        check_write(Bson::Null, Ok(WriteConcernW::Mode(String::new())));
        check_write(Bson::String("majority".into()), Ok(WriteConcernW::Majority));
        check_write(
            Bson::String("Majority".into()),
            Ok(WriteConcernW::Mode("Majority".into())),
        );
        check_write(Bson::Document(pinion_bson::doc! {}), Err(9));
        check_write(Bson::Document(pinion_bson::doc! { "dc": "x" }), Err(9));
        check_write(
            Bson::Document(pinion_bson::doc! { "dc": 1 }),
            Ok(WriteConcernW::Tags(pinion_bson::doc! { "dc": 1 })),
        );
    }

    #[test]
    fn write_concern_rest() {
        let read =
            |document: RawDocumentBuf| parse_write_concern(&document).map_err(|error| error.code.0);
        assert_eq!(read(rawdoc! { "j": 1.0 }).unwrap().journal, Some(true));
        assert_eq!(read(rawdoc! { "fsync": true }).unwrap().journal, Some(true));
        assert_eq!(read(rawdoc! { "j": RawBson::Null }).unwrap().journal, None);
        assert_eq!(read(rawdoc! { "j": "x" }), Err(14));
        assert_eq!(read(rawdoc! { "fsync": true, "j": true }), Err(9));
        assert_eq!(read(rawdoc! { "wtimeout": "any" }).unwrap().timeout_ms, 0);
        assert_eq!(
            read(rawdoc! { "wtimeout": 5_000i64 }).unwrap().timeout_ms,
            5_000
        );
        assert_eq!(read(rawdoc! { "wtimeout": 2_147_483_648i64 }), Err(9));
        assert_eq!(read(rawdoc! { "wtimeout": f64::INFINITY }), Err(9));
        assert_eq!(read(rawdoc! { "W": 1 }), Err(40415));
        assert!(read(rawdoc! { "w": 0 }).unwrap().is_unacknowledged());
        assert!(
            !read(rawdoc! { "w": 0, "j": true })
                .unwrap()
                .is_unacknowledged()
        );
    }
}
