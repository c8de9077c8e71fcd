//! Stale versions: what a shard answers to a request by another routing table than its own, as
//! errors and back.
//!
//! Source: sharding document, "Shard versioning and database versioning".

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::idl::{FieldReader, Namespace, Path, Types, missing_field, wrong_type};
use pinion_wire::{Error, ErrorCode, Result};

use crate::shard_id::ShardId;
use crate::version::{DatabaseVersion, Form, ShardVersion};

/// A request went by another version of a collection than the shard has: `StaleConfig`.
#[derive(Clone, Debug, PartialEq)]
pub struct StaleInfo {
    pub ns: Namespace,
    pub received: ShardVersion,
    /// Absent where the shard does not know its own: the origin is to ask the config servers, and
    /// the shard recovers.
    pub wanted: Option<ShardVersion>,
    pub shard: ShardId,
}

/// Why a shard refuses a version, for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleReason {
    /// The shard does not know the collection's state.
    Unknown,
    /// A migration, or a definition, is being committed.
    CriticalSection,
    /// The versions differ.
    Mismatch,
}

impl StaleInfo {
    /// The error that a shard answers.
    pub fn error(&self, reason: StaleReason, form: Form) -> Error {
        Error::new(ErrorCode::STALE_CONFIG, self.message(reason)).with_extra(self.fields(form))
    }

    fn message(&self, reason: StaleReason) -> String {
        let ns = &self.ns;
        match reason {
            StaleReason::Unknown => format!(
                "sharding status of collection {ns} is not currently known for shard {} and needs \
                 to be recovered from the config server",
                self.shard
            ),
            StaleReason::CriticalSection => {
                format!("The critical section for the collection {ns} is acquired")
            }
            StaleReason::Mismatch => match (self.received, self.wanted) {
                (ShardVersion::Placed(received), Some(ShardVersion::Placed(wanted)))
                    if !received.of.is_same(wanted.of) =>
                {
                    format!("timestamp mismatch detected for {ns}")
                }
                (ShardVersion::Unsharded, Some(ShardVersion::Placed(_))) => format!(
                    "this shard contains chunks for {ns}, but the client expects unsharded \
                     collection"
                ),
                (ShardVersion::Placed(_), Some(ShardVersion::Unsharded)) => format!(
                    "this shard no longer contains chunks for {ns}, the collection may have been \
                     dropped"
                ),
                _ => format!("placement version mismatch detected for {ns}"),
            },
        }
    }

    /// `{ns, vReceived, vWanted?, shardId}`; 4.4 has each epoch in a field of its own.
    pub fn fields(&self, form: Form) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("ns", self.ns.as_str());
        append_version(
            &mut out,
            ["vReceived", "vReceivedEpoch"],
            self.received,
            form,
        );
        if let Some(wanted) = self.wanted {
            append_version(&mut out, ["vWanted", "vWantedEpoch"], wanted, form);
        }
        out.append("shardId", self.shard.as_str());
        out.finish()
    }

    /// Reads the fields in either form.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type, and `InvalidNamespace`.
    pub fn parse(document: &RawDocument) -> Result<StaleInfo> {
        let reader = FieldReader::object(Path::root("StaleConfigInfo"), document)?;
        Ok(StaleInfo {
            ns: Namespace::parse_sought(reader.str("ns")?)?,
            received: read_version(&reader, ["vReceived", "vReceivedEpoch"])?
                .ok_or_else(|| missing_field(reader.path().field("vReceived")))?,
            wanted: read_version(&reader, ["vWanted", "vWantedEpoch"])?,
            shard: ShardId::new(reader.str("shardId")?),
        })
    }

    /// What an error of a shard says, if it is `StaleConfig`.
    ///
    /// # Errors
    /// As [`StaleInfo::parse`].
    pub fn from_error(error: &Error) -> Result<Option<StaleInfo>> {
        from_error(error, ErrorCode::STALE_CONFIG, StaleInfo::parse)
    }

    /// What one of a batch's `writeErrors` says, if it is stale: the fields stand in it, or in its
    /// `errInfo` beside the older code 63.
    ///
    /// # Errors
    /// As [`StaleInfo::parse`].
    pub fn from_write_error(entry: &RawDocument) -> Result<Option<StaleInfo>> {
        match pinion_bson::get(entry, "code") {
            Some(RawBsonRef::Int32(code))
                if code == ErrorCode::STALE_CONFIG.0
                    || code == ErrorCode::OBSOLETE_STALE_SHARD_VERSION.0 =>
            {
                let fields = match pinion_bson::get(entry, "errInfo") {
                    Some(RawBsonRef::Document(info)) => info,
                    _ => entry,
                };
                StaleInfo::parse(fields).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The entry of `writeErrors` for a statement, which routers of each version understand.
    pub fn write_error(&self, index: i32, reason: StaleReason, form: Form) -> RawDocumentBuf {
        let code = match form {
            Form::Own => ErrorCode::STALE_CONFIG,
            Form::Mongo44 => ErrorCode::OBSOLETE_STALE_SHARD_VERSION,
        };
        let mut out = DocBuilder::new();
        out.append("index", index).append("code", code.0);
        out.append("errmsg", self.message(reason).as_str());
        let fields = self.fields(form);
        match form {
            Form::Own => out.append_all(&fields),
            Form::Mongo44 => out.start_document("errInfo").append_all(&fields).end(),
        };
        out.finish()
    }
}

/// A request went by another version of a database than the shard has: `StaleDbVersion`.
#[derive(Clone, Debug, PartialEq)]
pub struct StaleDatabaseInfo {
    pub db: String,
    pub received: DatabaseVersion,
    /// Absent where the shard does not know its own.
    pub wanted: Option<DatabaseVersion>,
}

impl StaleDatabaseInfo {
    /// The error that a shard answers.
    pub fn error(&self, form: Form) -> Error {
        let message = match self.wanted {
            None => format!("No cached info for the database {}", self.db),
            Some(_) => format!("Version mismatch for the database {}", self.db),
        };
        Error::new(ErrorCode::STALE_DB_VERSION, message).with_extra(self.fields(form))
    }

    /// `{db, vReceived, vWanted?}`.
    pub fn fields(&self, form: Form) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("db", self.db.as_str());
        self.received.append_to(&mut out, "vReceived", form);
        if let Some(wanted) = self.wanted {
            wanted.append_to(&mut out, "vWanted", form);
        }
        out.finish()
    }

    /// Reads the fields in either form.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(document: &RawDocument) -> Result<StaleDatabaseInfo> {
        let reader = FieldReader::object(Path::root("StaleDbRoutingVersion"), document)?;
        let path = |name| reader.path().field(name);
        Ok(StaleDatabaseInfo {
            db: reader.str("db")?.to_owned(),
            received: DatabaseVersion::parse(path("vReceived"), reader.doc("vReceived")?)?,
            wanted: match reader.opt_doc("vWanted")? {
                Some(wanted) => Some(DatabaseVersion::parse(path("vWanted"), wanted)?),
                None => None,
            },
        })
    }

    /// What an error of a shard says, if it is `StaleDbVersion`.
    ///
    /// # Errors
    /// As [`StaleDatabaseInfo::parse`].
    pub fn from_error(error: &Error) -> Result<Option<StaleDatabaseInfo>> {
        from_error(error, ErrorCode::STALE_DB_VERSION, StaleDatabaseInfo::parse)
    }
}

/// A command named an epoch that is not the collection's: `StaleEpoch`.
#[derive(Clone, Debug, PartialEq)]
pub struct StaleEpochInfo {
    pub ns: Namespace,
    /// Both or none of the versions are known.
    pub versions: Option<(ShardVersion, ShardVersion)>,
}

impl StaleEpochInfo {
    /// The error that is answered.
    pub fn error(&self, form: Form) -> Error {
        let mut out = DocBuilder::new();
        out.append("ns", self.ns.as_str());
        if let (Some((received, wanted)), Form::Own) = (self.versions, form) {
            received.append_to(&mut out, "vReceived", form);
            wanted.append_to(&mut out, "vWanted", form);
        }
        let message = format!(
            "epoch mismatch detected for {}, the collection may have been dropped and recreated",
            self.ns
        );
        Error::new(ErrorCode::STALE_EPOCH, message).with_extra(out.finish())
    }

    /// What an error says, if it is `StaleEpoch` with the collection's name. One without is none:
    /// its sender does not say what to refresh.
    ///
    /// # Errors
    /// A field of a wrong type, and `InvalidNamespace`.
    pub fn from_error(error: &Error) -> Result<Option<StaleEpochInfo>> {
        let Some(extra) = &error.extra else {
            return Ok(None);
        };
        let reader = FieldReader::object(Path::root("StaleEpochInfo"), extra)?;
        if error.code != ErrorCode::STALE_EPOCH || !reader.has("ns") {
            return Ok(None);
        }
        let received = read_version(&reader, ["vReceived", "vReceivedEpoch"])?;
        let wanted = read_version(&reader, ["vWanted", "vWantedEpoch"])?;
        Ok(Some(StaleEpochInfo {
            ns: Namespace::parse_sought(reader.str("ns")?)?,
            versions: received.zip(wanted),
        }))
    }
}

fn from_error<T>(
    error: &Error,
    code: ErrorCode,
    parse: impl FnOnce(&RawDocument) -> Result<T>,
) -> Result<Option<T>> {
    if error.code != code {
        return Ok(None);
    }
    match &error.extra {
        Some(extra) => parse(extra).map(Some),
        None => Err(Error::failed_to_parse(format!(
            "{error} says nothing of versions"
        ))),
    }
}

/// A version in a field; in 4.4's form its placement and its epoch in two.
fn append_version(out: &mut DocBuilder, names: [&str; 2], version: ShardVersion, form: Form) {
    match form {
        Form::Own => version.append_to(out, names[0], form),
        Form::Mongo44 => {
            let sent = version.to_sent();
            out.append(names[0], sent.placement);
            out.append(names[1], sent.epoch);
        }
    }
}

fn read_version(reader: &FieldReader<'_, '_>, names: [&str; 2]) -> Result<Option<ShardVersion>> {
    match reader.value(names[0]) {
        None | Some(RawBsonRef::Null) => Ok(None),
        Some(RawBsonRef::Timestamp(placement)) => {
            let epoch = reader
                .opt_object_id(names[1])?
                .ok_or_else(|| missing_field(reader.path().field(names[1])))?;
            let sent = pinion_wire::idl::SentShardVersion {
                epoch,
                timestamp: None,
                placement,
            };
            Ok(Some(ShardVersion::from_sent(sent)))
        }
        Some(value @ RawBsonRef::Document(_)) => {
            ShardVersion::parse(reader.path().field(names[0]), value).map(Some)
        }
        Some(other) => Err(wrong_type(
            reader.path().field(names[0]),
            other,
            Types::OBJECT,
        )),
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{ObjectId, Uuid, rawdoc};
    use pinion_clock::Timestamp;

    use super::*;
    use crate::values::bson_time;
    use crate::version::{ChunkVersion, Incarnation};

    fn ns() -> Namespace {
        Namespace::new("d", "c").expect("a name")
    }

    fn placed(epoch: u8, secs: u32, major: u32) -> ShardVersion {
        let of = Incarnation {
            epoch: ObjectId::from_bytes([epoch; 12]),
            timestamp: Timestamp::new(secs, 0),
        };
        ShardVersion::Placed(ChunkVersion {
            of,
            major,
            minor: 3,
        })
    }

    fn stale(received: ShardVersion, wanted: Option<ShardVersion>) -> StaleInfo {
        StaleInfo {
            ns: ns(),
            received,
            wanted,
            shard: "s1".into(),
        }
    }

    #[test]
    fn both_forms_of_stale_config() {
        let time = |secs, inc| bson_time(Timestamp::new(secs, inc));
        let (one, two) = (ObjectId::from_bytes([1; 12]), ObjectId::from_bytes([2; 12]));
        let info = stale(placed(1, 5, 2), Some(placed(2, 6, 1)));
        let own = rawdoc! {
            "ns": "d.c",
            "vReceived": { "e": one, "t": time(5, 0), "v": time(2, 3) },
            "vWanted": { "e": two, "t": time(6, 0), "v": time(1, 3) },
            "shardId": "s1",
        };
        let old = rawdoc! {
            "ns": "d.c",
            "vReceived": time(2, 3), "vReceivedEpoch": one,
            "vWanted": time(1, 3), "vWantedEpoch": two,
            "shardId": "s1",
        };
        assert_eq!(info.fields(Form::Own), own);
        assert_eq!(info.fields(Form::Mongo44), old);
        let without_times = stale(placed(1, 0, 2), Some(placed(2, 0, 1)));
        for (form, read) in [(Form::Own, &info), (Form::Mongo44, &without_times)] {
            let error = info.error(StaleReason::Mismatch, form);
            assert_eq!(error.code.0, 13388);
            assert_eq!(error.message, "timestamp mismatch detected for d.c");
            let found = StaleInfo::from_error(&error).expect("readable");
            assert_eq!(found.as_ref(), Some(read));
            let entry = info.write_error(4, StaleReason::Mismatch, form);
            let found = StaleInfo::from_write_error(&entry).expect("readable");
            assert_eq!(found.as_ref(), Some(read), "{entry:?}");
        }
        let entry = info.write_error(4, StaleReason::Mismatch, Form::Mongo44);
        assert_eq!(entry.get_i32("code").ok(), Some(63));
        assert_eq!(entry.get_i32("index").ok(), Some(4));
        let entry = info.write_error(4, StaleReason::Mismatch, Form::Own);
        assert_eq!(entry.get_i32("code").ok(), Some(13388));
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let info = stale(placed(1, 5, 2), None);
        for form in [Form::Own, Form::Mongo44] {
            let error = info.error(StaleReason::Unknown, form);
            let extra = error.extra.as_ref().expect("fields");
            assert_eq!(pinion_bson::get(extra, "vWanted"), None);
            let found = StaleInfo::from_error(&error).expect("readable");
            assert_eq!(found.expect("stale").wanted, None);
            assert!(error.message.starts_with(
                "sharding status of collection d.c is not currently known for shard s1"
            ));
        }
        assert_eq!(
            StaleInfo::from_error(&Error::bad_value("x")).ok(),
            Some(None)
        );
        assert_eq!(
            StaleInfo::from_write_error(&rawdoc! { "index": 0, "code": 11000 }).ok(),
            Some(None)
        );
        let bare = Error::new(ErrorCode::STALE_CONFIG, "x");
        assert!(StaleInfo::from_error(&bare).is_err());
        let bad = rawdoc! { "ns": "d.c", "vReceived": 1, "shardId": "s" };
        assert_eq!(StaleInfo::parse(&bad).expect_err("no version").code.0, 14);
    }

    #[test]
    fn messages() {
        let check = |received, wanted, reason, expected: &str| {
            let error = stale(received, wanted).error(reason, Form::Own);
            assert_eq!(error.message, expected);
        };
        let mismatch = StaleReason::Mismatch;
        check(
            placed(1, 5, 2),
            Some(placed(1, 5, 3)),
            mismatch,
            "placement version mismatch detected for d.c",
        );
        check(
            ShardVersion::Unsharded,
            Some(placed(1, 5, 3)),
            mismatch,
            "this shard contains chunks for d.c, but the client expects unsharded collection",
        );
        check(
            placed(1, 5, 3),
            Some(ShardVersion::Unsharded),
            mismatch,
            "this shard no longer contains chunks for d.c, the collection may have been dropped",
        );
        check(
            placed(1, 5, 3),
            None,
            StaleReason::CriticalSection,
            "The critical section for the collection d.c is acquired",
        );
    }

    #[test]
    fn stale_databases() {
        let version = |last_mod| DatabaseVersion {
            uuid: Uuid::from_bytes([1; 16]),
            timestamp: Timestamp::new(5, 0),
            last_mod,
        };
        for wanted in [None, Some(version(2))] {
            let info = StaleDatabaseInfo {
                db: "d".into(),
                received: version(1),
                wanted,
            };
            let error = info.error(Form::Own);
            assert_eq!(error.code.0, 249);
            let found = StaleDatabaseInfo::from_error(&error).expect("readable");
            assert_eq!(found, Some(info.clone()));
            let old = StaleDatabaseInfo::from_error(&info.error(Form::Mongo44));
            let old = old.expect("readable").expect("stale");
            assert!(old.received.timestamp.is_null());
            assert_eq!(old.wanted.map(|v| v.last_mod), wanted.map(|v| v.last_mod));
        }
    }

    #[test]
    fn stale_epochs() {
        let info = StaleEpochInfo {
            ns: ns(),
            versions: Some((placed(1, 5, 2), placed(2, 6, 1))),
        };
        let error = info.error(Form::Own);
        assert_eq!(error.code.0, 150);
        let read = |error: &Error| StaleEpochInfo::from_error(error).expect("readable");
        assert_eq!(read(&error), Some(info.clone()));
        let old = read(&info.error(Form::Mongo44)).expect("named");
        assert_eq!((old.ns, old.versions), (ns(), None));
        assert_eq!(read(&Error::new(ErrorCode::STALE_EPOCH, "x")), None);
    }
}
