//! A database: `config.databases`.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Path};

use super::other_fields;
use crate::shard_id::ShardId;
use crate::version::{DatabaseVersion, Form};

pub const DATABASES: &str = "config.databases";

/// `{_id, primary, partitioned?, version}`.
#[derive(Clone, Debug, PartialEq)]
pub struct DatabaseDocument {
    pub name: String,
    /// The shard that has its unsharded collections.
    pub primary: ShardId,
    /// Whether `enableSharding` was run: MongoDB 4.4 asks for it. Absent since 6.0.
    pub is_partitioned: Option<bool>,
    pub version: DatabaseVersion,
    pub other: RawDocumentBuf,
}

const FIELDS: [&str; 4] = ["_id", "primary", "partitioned", "version"];

impl DatabaseDocument {
    pub fn new(name: &str, primary: ShardId, version: DatabaseVersion) -> DatabaseDocument {
        DatabaseDocument {
            name: name.to_owned(),
            primary,
            is_partitioned: None,
            version,
            other: RawDocumentBuf::new(),
        }
    }

    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(document: &RawDocument) -> Result<DatabaseDocument> {
        let reader = FieldReader::object(Path::root(DATABASES), document)?;
        let version = reader.path().field("version");
        Ok(DatabaseDocument {
            name: reader.str("_id")?.to_owned(),
            primary: ShardId::new(reader.str("primary")?),
            is_partitioned: reader.opt_bool("partitioned")?,
            version: DatabaseVersion::parse(version, reader.doc("version")?)?,
            other: other_fields(document, &FIELDS),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", self.name.as_str())
            .append("primary", self.primary.as_str());
        if let Some(is_partitioned) = self.is_partitioned {
            out.append("partitioned", is_partitioned);
        }
        self.version.append_to(&mut out, "version", Form::Own);
        out.append_all(&self.other);
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawBson, Uuid, rawdoc};

    use super::super::testing::{check_kept, check_required, check_types, with};
    use super::*;
    use crate::values::bson_time;
    use pinion_clock::Timestamp;

    #[test]
    fn forms() {
        let uuid = Uuid::from_bytes([7; 16]);
        let time = Timestamp::new(5, 1);
        let full = rawdoc! {
            "_id": "d", "primary": "s1", "partitioned": false,
            "version": { "uuid": pinion_bson::Binary::from(uuid), "timestamp": bson_time(time), "lastMod": 3 },
            "x": 1,
        };
        let found = check_kept(&full, DatabaseDocument::parse, DatabaseDocument::to_bson);
        let version = DatabaseVersion {
            uuid,
            timestamp: time,
            last_mod: 3,
        };
        assert_eq!((found.version, &*found.primary), (version, "s1"));
        let fields = ["_id", "primary", "partitioned", "version"];
        check_types(&full, &fields, DatabaseDocument::parse, DATABASES);
        check_required(
            &full,
            &["_id", "primary", "version"],
            DatabaseDocument::parse,
        );
        let inner = RawBson::Document(rawdoc! { "uuid": 1, "lastMod": 1 });
        let error = DatabaseDocument::parse(&with(&full, "version", inner)).expect_err("no uuid");
        assert!(error.message.contains("config.databases.version.uuid"));
        // As MongoDB 4.4 has it, and a new one.
        let old = rawdoc! {
            "_id": "d", "primary": "s1", "partitioned": true,
            "version": { "uuid": pinion_bson::Binary::from(uuid), "lastMod": 3 },
        };
        check_kept(&old, DatabaseDocument::parse, DatabaseDocument::to_bson);
        let new = DatabaseDocument::new("d", "s1".into(), DatabaseVersion::first(uuid, time));
        assert_eq!(DatabaseDocument::parse(&new.to_bson()).ok(), Some(new));
    }
}
