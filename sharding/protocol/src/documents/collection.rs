//! A sharded collection: `config.collections`.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid};
use pinion_clock::Timestamp;
use pinion_query::TimeSeries;
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};

use super::{append_document, other_fields};
use crate::series::{SERIES_FIELDS, series_in};
use crate::values::{append_time, append_uuid, date};
use crate::version::Incarnation;

pub const COLLECTIONS: &str = "config.collections";

/// `{_id, lastmodEpoch, lastmod, timestamp, uuid, key, unique, ...}`.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectionDocument {
    pub ns: Namespace,
    pub of: Incarnation,
    /// When the document was changed last, in milliseconds since the Unix epoch.
    pub last_changed_ms: i64,
    /// Absent in old documents of MongoDB 4.4.
    pub uuid: Option<Uuid>,
    /// The shard key's pattern; empty in a document of MongoDB 4.4 for what was dropped.
    pub key: RawDocumentBuf,
    pub is_unique: bool,
    /// The collation of queries that name none; the key itself is always compared by bytes.
    pub default_collation: Option<RawDocumentBuf>,
    /// Whether the balancer passes over it.
    pub no_balance: bool,
    /// False while a definition keeps migrations off: `permitMigrations`.
    pub permits_migrations: bool,
    /// False while a resharding or an administrator keeps migrations off: `allowMigrations`.
    pub allows_migrations: bool,
    /// The collection has one chunk for ever: it was moved, not sharded.
    pub is_unsplittable: bool,
    /// In place of that of `config.settings`.
    pub max_chunk_size_bytes: Option<i64>,
    /// False where chunks of it are not merged.
    pub enable_auto_merge: Option<bool>,
    pub no_auto_split: Option<bool>,
    /// MongoDB 4.4 keeps the document of what was dropped.
    pub is_dropped: bool,
    /// The series that the documents of the collection are the buckets of.
    pub time_series: Option<TimeSeries>,
    pub other: RawDocumentBuf,
}

const FIELDS: [&str; 17] = [
    "_id",
    "lastmodEpoch",
    "lastmod",
    "timestamp",
    "uuid",
    "key",
    "unique",
    "defaultCollation",
    "noBalance",
    "permitMigrations",
    "allowMigrations",
    "unsplittable",
    "maxChunkSizeBytes",
    "enableAutoMerge",
    "noAutoSplit",
    "dropped",
    SERIES_FIELDS,
];

impl CollectionDocument {
    /// A collection that was just sharded.
    pub fn new(
        ns: Namespace,
        of: Incarnation,
        now_ms: i64,
        uuid: Uuid,
        key: RawDocumentBuf,
    ) -> CollectionDocument {
        CollectionDocument {
            ns,
            of,
            last_changed_ms: now_ms,
            uuid: Some(uuid),
            key,
            is_unique: false,
            default_collation: None,
            no_balance: false,
            permits_migrations: true,
            allows_migrations: true,
            is_unsplittable: false,
            max_chunk_size_bytes: None,
            enable_auto_merge: None,
            no_auto_split: None,
            is_dropped: false,
            time_series: None,
            other: RawDocumentBuf::new(),
        }
    }

    /// Whether chunks of it may move now.
    pub fn may_migrate(&self) -> bool {
        self.permits_migrations && self.allows_migrations
    }

    /// # Errors
    /// A field that is missing or of a wrong type, and `InvalidNamespace`.
    pub fn parse(document: &RawDocument) -> Result<CollectionDocument> {
        let reader = FieldReader::object(Path::root(COLLECTIONS), document)?;
        let missing = |name| missing_field(reader.path().field(name));
        let is_dropped = reader.opt_safe_bool("dropped")?.unwrap_or(false);
        let key = match reader.opt_doc("key")? {
            None if !is_dropped => return Err(missing("key")),
            key => key.map_or_else(RawDocumentBuf::new, RawDocument::to_owned),
        };
        Ok(CollectionDocument {
            ns: Namespace::parse_sought(reader.str("_id")?)?,
            of: Incarnation {
                epoch: reader
                    .opt_object_id("lastmodEpoch")?
                    .ok_or_else(|| missing("lastmodEpoch"))?,
                timestamp: reader.opt_timestamp("timestamp")?.unwrap_or(Timestamp::MIN),
            },
            last_changed_ms: reader
                .opt_date_ms("lastmod")?
                .ok_or_else(|| missing("lastmod"))?,
            uuid: reader.opt_uuid("uuid")?.map(Uuid::from_bytes),
            key,
            is_unique: reader.opt_safe_bool("unique")?.unwrap_or(false),
            default_collation: reader
                .opt_doc("defaultCollation")?
                .filter(|collation| !collation.is_empty())
                .map(RawDocument::to_owned),
            no_balance: reader.opt_safe_bool("noBalance")?.unwrap_or(false),
            permits_migrations: reader.opt_safe_bool("permitMigrations")?.unwrap_or(true),
            allows_migrations: reader.opt_safe_bool("allowMigrations")?.unwrap_or(true),
            is_unsplittable: reader.opt_safe_bool("unsplittable")?.unwrap_or(false),
            max_chunk_size_bytes: reader.opt_i64("maxChunkSizeBytes")?,
            enable_auto_merge: reader.opt_safe_bool("enableAutoMerge")?,
            no_auto_split: reader.opt_safe_bool("noAutoSplit")?,
            is_dropped,
            time_series: series_in(&reader, SERIES_FIELDS)?,
            other: other_fields(document, &FIELDS),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", self.ns.as_str())
            .append("lastmodEpoch", self.of.epoch)
            .append_raw("lastmod", date(self.last_changed_ms));
        if !self.of.timestamp.is_null() {
            append_time(&mut out, "timestamp", self.of.timestamp);
        }
        if let Some(uuid) = self.uuid {
            append_uuid(&mut out, "uuid", uuid);
        }
        if !self.key.is_empty() {
            append_document(&mut out, "key", &self.key);
        }
        out.append("unique", self.is_unique);
        if let Some(collation) = &self.default_collation {
            append_document(&mut out, "defaultCollation", collation);
        }
        out.append("noBalance", self.no_balance);
        self.append_exceptions(&mut out);
        if let Some(series) = &self.time_series {
            out.append(SERIES_FIELDS, &*series.to_document());
        }
        out.append_all(&self.other);
        out.finish()
    }

    /// The fields that are written only where they differ from what their absence means.
    fn append_exceptions(&self, out: &mut DocBuilder) {
        let flags = [
            (
                "permitMigrations",
                (!self.permits_migrations).then_some(false),
            ),
            (
                "allowMigrations",
                (!self.allows_migrations).then_some(false),
            ),
            ("unsplittable", self.is_unsplittable.then_some(true)),
            ("enableAutoMerge", self.enable_auto_merge),
            ("noAutoSplit", self.no_auto_split),
            ("dropped", self.is_dropped.then_some(true)),
        ];
        for (name, flag) in flags {
            if let Some(flag) = flag {
                out.append(name, flag);
            }
        }
        if let Some(size_bytes) = self.max_chunk_size_bytes {
            out.append("maxChunkSizeBytes", size_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{Binary, DateTime, ObjectId, rawdoc};

    use super::super::testing::{check_kept, check_required, check_types};
    use super::*;
    use crate::values::bson_time;

    fn document() -> RawDocumentBuf {
        rawdoc! {
            "_id": "d.c", "lastmodEpoch": ObjectId::from_bytes([1; 12]),
            "lastmod": DateTime::from_millis(77),
            "timestamp": bson_time(Timestamp::new(5, 1)),
            "uuid": Binary::from(Uuid::from_bytes([2; 16])),
            "key": { "a": 1, "b": "hashed" }, "unique": true,
            "defaultCollation": { "locale": "de" }, "noBalance": true,
            "permitMigrations": false, "allowMigrations": false, "unsplittable": true,
            "enableAutoMerge": false, "noAutoSplit": true, "dropped": true,
            "maxChunkSizeBytes": 1024i64,
            "timeseriesFields": {
                "timeField": "t", "metaField": "m", "granularity": "hours",
                "bucketMaxSpanSeconds": 2_592_000,
            },
            "reshardingFields": { "state": "x" },
        }
    }

    #[test]
    fn forms() {
        let full = document();
        let found = check_kept(
            &full,
            CollectionDocument::parse,
            CollectionDocument::to_bson,
        );
        assert_eq!(found.of.timestamp, Timestamp::new(5, 1));
        assert_eq!(found.max_chunk_size_bytes, Some(1024));
        assert!(!found.may_migrate() && found.is_unique && found.no_balance);
        check_types(&full, &FIELDS, CollectionDocument::parse, COLLECTIONS);
        let required = ["_id", "lastmodEpoch", "lastmod"];
        check_required(&full, &required, CollectionDocument::parse);
        let without_key = other_fields(&full, &["key", "dropped"]);
        assert!(CollectionDocument::parse(&without_key).is_err());
        assert!(CollectionDocument::parse(&other_fields(&full, &["key"])).is_ok());
    }

    #[test]
    fn a_new_one_has_no_exceptions() {
        let full = document();
        let like = CollectionDocument::parse(&full).expect("readable");
        let uuid = Uuid::from_bytes([2; 16]);
        let new = CollectionDocument::new(like.ns, like.of, 77, uuid, like.key);
        let kept = ["_id", "lastmodEpoch", "lastmod", "timestamp", "uuid", "key"];
        let mut expected = DocBuilder::new();
        for field in pinion_bson::raw_elements(&full) {
            if kept.iter().any(|name| name.as_bytes() == field.name) {
                expected.append_elem(&field);
            }
        }
        expected.append("unique", false).append("noBalance", false);
        assert_eq!(new.to_bson(), expected.finish());
        assert!(new.may_migrate());
        assert_eq!(CollectionDocument::parse(&new.to_bson()).ok(), Some(new));
    }
}
