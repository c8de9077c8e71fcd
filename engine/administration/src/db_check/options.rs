//! What a client asks of `dbCheck`.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_runtime::Duration;
use pinion_wire::idl::{
    CommandReader, Namespace, Types, WriteConcern, is_number, parse_write_concern,
};
use pinion_wire::{Error, ErrorCode, Result};

use crate::limits::{
    CHECK_BATCH_DOCUMENTS, CHECK_BATCH_TIME_MS, MAX_CHECK_BATCH_DOCUMENTS, MAX_CHECK_BATCH_TIME_MS,
    MIN_CHECK_BATCH_TIME_MS,
};

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ValidateMode {
    /// The documents of the members.
    Data,
    /// These, and on each member whether its indexes have the entries of its documents.
    MissingKeys,
    /// The entries of an index of the members, and on each member whether they have documents.
    ExtraKeys,
}

impl ValidateMode {
    const ALL: [(&str, ValidateMode); 3] = [
        ("dataConsistency", ValidateMode::Data),
        (
            "dataConsistencyAndMissingIndexKeysCheck",
            ValidateMode::MissingKeys,
        ),
        ("extraIndexKeysCheck", ValidateMode::ExtraKeys),
    ];

    fn name(self) -> &'static str {
        name_in(&Self::ALL, self)
    }
}

/// How closely the bytes of documents are examined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BsonMode {
    /// Whether they are documents.
    Default,
    /// And keep to the specification of BSON, as far as that is quick.
    Extended,
    /// And keep to all of it.
    Full,
}

impl BsonMode {
    const ALL: [(&str, BsonMode); 3] = [
        ("kDefault", BsonMode::Default),
        ("kExtended", BsonMode::Extended),
        ("kFull", BsonMode::Full),
    ];
}

fn name_in<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    let found = names.iter().find(|(_, known)| *known == value);
    found.map_or("", |(name, _)| name)
}

/// What a run looks at, as its entries in the oplog say it: `secondaryIndexCheckParameters`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Checks {
    pub mode: ValidateMode,
    /// The index whose entries are examined; empty in other modes.
    pub index: String,
    /// The entries are compared between the members alone.
    pub skips_lookup: bool,
    pub bson: BsonMode,
}

impl Checks {
    pub(super) fn to_document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("validateMode", self.mode.name())
            .append("secondaryIndex", self.index.as_str())
            .append("skipLookupForExtraKeys", self.skips_lookup)
            .append("bsonValidateMode", name_in(&BsonMode::ALL, self.bson));
        out.finish()
    }

    /// Reads what [`Checks::to_document`] makes; `None` where it says something else.
    pub(super) fn of_document(document: &RawDocument) -> Option<Checks> {
        let named = |name: &str| match pinion_bson::get(document, name) {
            Some(RawBsonRef::String(text)) => Some(text),
            _ => None,
        };
        let mode = named("validateMode")?;
        let bson = named("bsonValidateMode")?;
        let mode = ValidateMode::ALL.iter().find(|(name, _)| *name == mode)?;
        let bson = BsonMode::ALL.iter().find(|(name, _)| *name == bson)?;
        Some(Checks {
            mode: mode.1,
            index: named("secondaryIndex")?.to_owned(),
            skips_lookup: matches!(
                pinion_bson::get(document, "skipLookupForExtraKeys"),
                Some(RawBsonRef::Boolean(true))
            ),
            bson: bson.1,
        })
    }
}

/// Of what the documents are examined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Collection(Namespace),
    Database(String),
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub target: Target,
    pub checks: Checks,
    /// `{_id: <first>}`, or the values of the index's fields; from the beginning where it is
    /// absent. Included, as the end is.
    pub start: Option<RawDocumentBuf>,
    pub end: Option<RawDocumentBuf>,
    /// It ends after this number of documents or entries, or of bytes.
    pub most_count: u64,
    pub most_bytes: u64,
    pub batch_documents: u64,
    pub batch_time: Duration,
    /// What is waited for behind each batch; the default write concern where it is absent.
    pub write_concern: Option<WriteConcern>,
}

impl Request {
    pub(super) fn read(reader: &CommandReader<'_>, db: &str) -> Result<Request> {
        let target = match reader.value("dbCheck") {
            Some(RawBsonRef::String(_)) => Target::Collection(reader.sought("dbCheck", db)?),
            Some(value) if is_number(value) => Target::Database(db.to_owned()),
            Some(value) => {
                let expected = Types::Many(&["string", "long", "int", "decimal", "double"]);
                return Err(reader.wrong_type("dbCheck", value, expected));
            }
            None => {
                return Err(pinion_wire::idl::missing_field(
                    reader.path().field("dbCheck"),
                ));
            }
        };
        let mut request = Request {
            target,
            checks: Checks {
                mode: ValidateMode::Data,
                index: String::new(),
                skips_lookup: false,
                bson: BsonMode::Default,
            },
            start: None,
            end: None,
            most_count: u64::MAX,
            most_bytes: u64::MAX,
            batch_documents: CHECK_BATCH_DOCUMENTS,
            batch_time: Duration::from_millis(CHECK_BATCH_TIME_MS),
            write_concern: None,
        };
        request.read_pace(reader)?;
        // All collections of a database are examined from their beginnings to their ends.
        if matches!(request.target, Target::Collection(_)) {
            request.read_checks(reader)?;
            request.read_bounds(reader)?;
        }
        reader.finish()?;
        request.check_checks(reader)?;
        Ok(request)
    }

    fn read_pace(&mut self, reader: &CommandReader<'_>) -> Result<()> {
        let most = MAX_CHECK_BATCH_DOCUMENTS as i64;
        if let Some(documents) = reader.opt_between("maxDocsPerBatch", 1, most)? {
            self.batch_documents = documents as u64;
        }
        let (least, most) = (
            MIN_CHECK_BATCH_TIME_MS as i64,
            MAX_CHECK_BATCH_TIME_MS as i64,
        );
        if let Some(ms) = reader.opt_between("maxBatchTimeMillis", least, most)? {
            self.batch_time = Duration::from_millis(ms as u64);
        }
        if reader.opt_safe_bool("snapshotRead")? == Some(false) {
            return Err(Error::new(
                ErrorCode(6_769_501),
                "dbCheck no longer supports snapshotRead:false",
            ));
        }
        if let Some(concern) = reader.opt_doc("batchWriteConcern")? {
            self.write_concern = Some(parse_write_concern(concern)?);
        }
        Ok(())
    }

    fn read_checks(&mut self, reader: &CommandReader<'_>) -> Result<()> {
        if let Some(mode) = reader.opt_one_of("validateMode", &ValidateMode::ALL)? {
            self.checks.mode = mode;
        }
        if let Some(index) = reader.opt_str("secondaryIndex")? {
            self.checks.index = index.to_owned();
        }
        if let Some(skips) = reader.opt_safe_bool("skipLookupForExtraKeys")? {
            self.checks.skips_lookup = skips;
        }
        if let Some(bson) = reader.opt_one_of("bsonValidateMode", &BsonMode::ALL)? {
            self.checks.bson = bson;
        }
        let count = |name| reader.opt_at_least(name, 1);
        if let Some(count) = count("maxCount")? {
            self.most_count = count as u64;
        }
        if let Some(bytes) = count("maxSize")? {
            self.most_bytes = bytes as u64;
        }
        Ok(())
    }

    fn read_bounds(&mut self, reader: &CommandReader<'_>) -> Result<()> {
        let bound = |name: &str, older: &str| -> Result<Option<RawDocumentBuf>> {
            let given = reader.opt_doc(name)?;
            let key = reader.value(older);
            match (given, key) {
                (Some(_), Some(_)) => Err(invalid(format!(
                    "'{name}' and '{older}' cannot be set together"
                ))),
                (None, Some(_)) if self.checks.mode == ValidateMode::ExtraKeys => {
                    Err(invalid(format!(
                        "'{older}' is a value of _id: with the extraIndexKeysCheck validateMode, set '{name}'"
                    )))
                }
                (None, Some(key)) => {
                    let mut out = DocBuilder::new();
                    out.append_raw("_id", key);
                    Ok(Some(out.finish()))
                }
                (given, None) => Ok(given.map(RawDocument::to_owned)),
            }
        };
        let (start, end) = (bound("start", "minKey")?, bound("end", "maxKey")?);
        (self.start, self.end) = (start, end);
        Ok(())
    }

    /// Which options go together.
    fn check_checks(&self, reader: &CommandReader<'_>) -> Result<()> {
        let mode = self.checks.mode;
        if mode == ValidateMode::ExtraKeys {
            if self.checks.index.is_empty() {
                return Err(invalid(
                    "When validateMode is set to extraIndexKeysCheck, the secondaryIndex parameter must be set",
                ));
            }
            return match reader.has("bsonValidateMode") {
                true => Err(set_with("bsonValidateMode", mode)),
                false => Ok(()),
            };
        }
        for name in ["secondaryIndex", "skipLookupForExtraKeys"] {
            if matches!(self.target, Target::Collection(_)) && reader.has(name) {
                return Err(set_with(name, mode));
            }
        }
        for (name, bound) in [("start", &self.start), ("end", &self.end)] {
            let Some(bound) = bound else { continue };
            let mut names = pinion_bson::elements(bound).map(|(name, _)| name);
            if names.next() != Some("_id") || names.next().is_some() {
                return Err(invalid(format!(
                    "'{name}' must have the field _id and no other, but is {}",
                    pinion_query::document_text(bound)
                )));
            }
        }
        Ok(())
    }
}

fn set_with(name: &str, mode: ValidateMode) -> Error {
    invalid(format!(
        "When validateMode is set to {}, the {name} parameter cannot be set",
        mode.name()
    ))
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    /// Asserts with which code a command is refused; 0 where it is taken.
    #[track_caller]
    fn check(more: RawDocumentBuf, code: i32) {
        let mut command = DocBuilder::new();
        if pinion_bson::get(&more, "dbCheck").is_none() {
            command.append("dbCheck", "c");
        }
        command.append_all(&more);
        let command = command.finish();
        let read = || Request::read(&CommandReader::new("dbCheck", &command)?, "d");
        let found = read().map_or_else(|error| error.code.0, |_| 0);
        assert_eq!(found, code, "{more:?}");
    }

    #[test]
    fn ranges_of_arguments() {
        check(rawdoc! {}, 0);
        for (name, least, most) in [
            ("maxDocsPerBatch", 1_i64, 10_000),
            ("maxBatchTimeMillis", 10, 20_000),
        ] {
            let with = |value: i64| {
                let mut out = DocBuilder::new();
                out.append(name, value);
                out.finish()
            };
            check(with(least), 0);
            check(with(most), 0);
            check(with(least - 1), 2);
            check(with(most + 1), 2);
        }
        check(rawdoc! { "maxCount": 0 }, 2);
        check(rawdoc! { "snapshotRead": false }, 6_769_501);
        check(rawdoc! { "snapshotRead": true }, 0);
        check(rawdoc! { "batchWriteConcern": { "w": "majority" } }, 0);
        check(rawdoc! { "batchWriteConcern": 1 }, 14);
        // Of versions before 8.0.
        check(rawdoc! { "maxCountPerSecond": 10 }, 40_415);
        check(rawdoc! { "maxBytesPerBatch": 10 }, 40_415);
    }

    #[test]
    fn options_of_a_database() {
        check(
            rawdoc! { "dbCheck": 1, "maxDocsPerBatch": 10, "snapshotRead": true },
            0,
        );
        check(
            rawdoc! { "dbCheck": 1, "validateMode": "dataConsistency" },
            40_415,
        );
        check(rawdoc! { "dbCheck": 1, "maxCount": 5 }, 40_415);
        check(rawdoc! { "dbCheck": true }, 14);
    }

    #[test]
    fn options_that_go_together() {
        let extra = "extraIndexKeysCheck";
        let missing = "dataConsistencyAndMissingIndexKeysCheck";
        check(rawdoc! { "validateMode": "nosuch" }, 2);
        check(rawdoc! { "bsonValidateMode": "kFull" }, 0);
        check(
            rawdoc! { "validateMode": missing, "bsonValidateMode": "kExtended" },
            0,
        );
        check(
            rawdoc! { "validateMode": missing, "secondaryIndex": "a_1" },
            72,
        );
        check(rawdoc! { "secondaryIndex": "a_1" }, 72);
        check(rawdoc! { "skipLookupForExtraKeys": true }, 72);
        check(rawdoc! { "validateMode": extra }, 72);
        check(
            rawdoc! { "validateMode": extra, "secondaryIndex": "a_1" },
            0,
        );
        check(
            rawdoc! { "validateMode": extra, "secondaryIndex": "a_1", "bsonValidateMode": "kFull" },
            72,
        );
        check(
            rawdoc! { "validateMode": extra, "secondaryIndex": "a_1", "skipLookupForExtraKeys": true, "start": { "a": 1 } },
            0,
        );
        check(
            rawdoc! { "validateMode": extra, "secondaryIndex": "a_1", "minKey": 1 },
            72,
        );
        check(rawdoc! { "start": { "_id": 1 }, "end": { "_id": 5 } }, 0);
        check(rawdoc! { "minKey": 1, "maxKey": "x" }, 0);
        check(rawdoc! { "minKey": 1, "start": { "_id": 1 } }, 72);
        check(rawdoc! { "start": { "a": 1 } }, 72);
        check(rawdoc! { "end": { "_id": 1, "a": 1 } }, 72);
    }

    #[test]
    fn checks_are_read_back() {
        for (_, mode) in ValidateMode::ALL {
            let checks = Checks {
                mode,
                index: "a_1".to_owned(),
                skips_lookup: true,
                bson: BsonMode::Full,
            };
            assert_eq!(Checks::of_document(&checks.to_document()), Some(checks));
        }
        assert_eq!(Checks::of_document(&rawdoc! { "validateMode": "x" }), None);
    }
}
