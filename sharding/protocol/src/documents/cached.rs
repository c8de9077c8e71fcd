//! What a shard's primary keeps of the routing table for its secondaries: `config.cache.*`.
//!
//! A refresh is written as `refreshing: true`, the chunks, then `refreshing: false` with the
//! version that was reached. A secondary believes chunks only where `refreshing` was false before
//! and after it read them.
//!
//! Source: sharding document, "The routing table cache"; names and forms are MongoDB's.

use pinion_bson::{DocBuilder, RawBson, RawDocument, RawDocumentBuf, Uuid};
use pinion_clock::Timestamp;
use pinion_query::TimeSeries;
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};

use super::{
    ChunkDocument, ChunkOf, CollectionDocument, DatabaseDocument, append_document, other_fields,
};
use crate::series::{SERIES_FIELDS, series_in};
use crate::shard_id::ShardId;
use crate::values::{append_time, append_uuid};
use crate::version::{DatabaseVersion, Form, Incarnation};

pub const CACHED_COLLECTIONS: &str = "config.cache.collections";
pub const CACHED_DATABASES: &str = "config.cache.databases";
/// Stands before the namespace whose chunks a collection has.
pub const CACHED_CHUNKS_PREFIX: &str = "config.cache.chunks.";

/// `{_id: ns, epoch, timestamp, uuid, key, unique, refreshing, ...}`.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedCollectionDocument {
    pub ns: Namespace,
    pub of: Incarnation,
    /// Absent in old documents of MongoDB 4.4.
    pub uuid: Option<Uuid>,
    pub key: RawDocumentBuf,
    pub is_unique: bool,
    pub default_collation: Option<RawDocumentBuf>,
    pub allows_migrations: bool,
    pub max_chunk_size_bytes: Option<i64>,
    /// The series that the documents of the collection are the buckets of.
    pub time_series: Option<TimeSeries>,
    /// Whether chunks are being written. Absent before the first refresh.
    pub is_refreshing: Option<bool>,
    /// Major and minor version as seconds and counter.
    pub last_refreshed: Option<Timestamp>,
    /// Raised by each critical section: secondaries then ask their primary.
    pub critical_sections: i32,
    pub other: RawDocumentBuf,
}

const FIELDS: [&str; 14] = [
    "_id",
    "epoch",
    "timestamp",
    "uuid",
    "key",
    "unique",
    "defaultCollation",
    "allowMigrations",
    "maxChunkSizeBytes",
    SERIES_FIELDS,
    "refreshing",
    "lastRefreshedCollectionVersion",
    "lastRefreshedCollectionPlacementVersion",
    "enterCriticalSectionCounter",
];

impl CachedCollectionDocument {
    /// What is known of a collection, before its first refresh.
    pub fn of_collection(collection: &CollectionDocument) -> CachedCollectionDocument {
        CachedCollectionDocument {
            ns: collection.ns.clone(),
            of: collection.of,
            uuid: collection.uuid,
            key: collection.key.clone(),
            is_unique: collection.is_unique,
            default_collation: collection.default_collation.clone(),
            allows_migrations: collection.may_migrate(),
            max_chunk_size_bytes: collection.max_chunk_size_bytes,
            time_series: collection.time_series.clone(),
            is_refreshing: None,
            last_refreshed: None,
            critical_sections: 0,
            other: RawDocumentBuf::new(),
        }
    }

    /// The collection as a routing table is made of it.
    pub fn to_collection(&self) -> CollectionDocument {
        let uuid = self.uuid.unwrap_or(Uuid::from_bytes([0; 16]));
        let new = CollectionDocument::new(self.ns.clone(), self.of, 0, uuid, self.key.clone());
        CollectionDocument {
            uuid: self.uuid,
            is_unique: self.is_unique,
            default_collation: self.default_collation.clone(),
            allows_migrations: self.allows_migrations,
            max_chunk_size_bytes: self.max_chunk_size_bytes,
            time_series: self.time_series.clone(),
            ..new
        }
    }

    /// The collection that has its chunks.
    pub fn chunks_ns(&self) -> String {
        format!("{CACHED_CHUNKS_PREFIX}{}", self.ns)
    }

    /// # Errors
    /// A field that is missing or of a wrong type, and `InvalidNamespace`.
    pub fn parse(document: &RawDocument) -> Result<CachedCollectionDocument> {
        let reader = FieldReader::object(Path::root(CACHED_COLLECTIONS), document)?;
        let last_refreshed = reader.opt_timestamp("lastRefreshedCollectionVersion")?;
        // Its name since MongoDB 6.1.
        let placement = reader.opt_timestamp("lastRefreshedCollectionPlacementVersion")?;
        Ok(CachedCollectionDocument {
            ns: Namespace::parse_sought(reader.str("_id")?)?,
            of: Incarnation {
                epoch: reader
                    .opt_object_id("epoch")?
                    .ok_or_else(|| missing_field(reader.path().field("epoch")))?,
                timestamp: reader.opt_timestamp("timestamp")?.unwrap_or(Timestamp::MIN),
            },
            uuid: reader.opt_uuid("uuid")?.map(Uuid::from_bytes),
            key: reader.doc("key")?.to_owned(),
            is_unique: reader.opt_safe_bool("unique")?.unwrap_or(false),
            default_collation: reader
                .opt_doc("defaultCollation")?
                .filter(|collation| !collation.is_empty())
                .map(RawDocument::to_owned),
            allows_migrations: reader.opt_safe_bool("allowMigrations")?.unwrap_or(true),
            max_chunk_size_bytes: reader.opt_i64("maxChunkSizeBytes")?,
            time_series: series_in(&reader, SERIES_FIELDS)?,
            is_refreshing: reader.opt_safe_bool("refreshing")?,
            last_refreshed: last_refreshed.or(placement),
            critical_sections: reader.opt_i32("enterCriticalSectionCounter")?.unwrap_or(0),
            other: other_fields(document, &FIELDS),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", self.ns.as_str())
            .append("epoch", self.of.epoch);
        if !self.of.timestamp.is_null() {
            append_time(&mut out, "timestamp", self.of.timestamp);
        }
        if let Some(uuid) = self.uuid {
            append_uuid(&mut out, "uuid", uuid);
        }
        append_document(&mut out, "key", &self.key);
        out.append("unique", self.is_unique);
        if let Some(collation) = &self.default_collation {
            append_document(&mut out, "defaultCollation", collation);
        }
        if !self.allows_migrations {
            out.append("allowMigrations", false);
        }
        if let Some(size_bytes) = self.max_chunk_size_bytes {
            out.append("maxChunkSizeBytes", size_bytes);
        }
        if let Some(series) = &self.time_series {
            append_document(&mut out, SERIES_FIELDS, &series.to_document());
        }
        if let Some(is_refreshing) = self.is_refreshing {
            out.append("refreshing", is_refreshing);
        }
        if let Some(version) = self.last_refreshed {
            append_time(&mut out, "lastRefreshedCollectionVersion", version);
        }
        if self.critical_sections != 0 {
            out.append("enterCriticalSectionCounter", self.critical_sections);
        }
        out.append_all(&self.other);
        out.finish()
    }
}

/// `{_id: db, primary, partitioned?, version, enterCriticalSectionCounter?}`.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedDatabaseDocument {
    pub name: String,
    pub primary: ShardId,
    pub is_partitioned: Option<bool>,
    pub version: DatabaseVersion,
    /// Raised by each critical section.
    pub critical_sections: i32,
    pub other: RawDocumentBuf,
}

const DATABASE_FIELDS: [&str; 5] = [
    "_id",
    "primary",
    "partitioned",
    "version",
    "enterCriticalSectionCounter",
];

impl CachedDatabaseDocument {
    pub fn of_database(database: &DatabaseDocument) -> CachedDatabaseDocument {
        CachedDatabaseDocument {
            name: database.name.clone(),
            primary: database.primary.clone(),
            is_partitioned: database.is_partitioned,
            version: database.version,
            critical_sections: 0,
            other: RawDocumentBuf::new(),
        }
    }

    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(document: &RawDocument) -> Result<CachedDatabaseDocument> {
        let reader = FieldReader::object(Path::root(CACHED_DATABASES), document)?;
        let version = reader.path().field("version");
        Ok(CachedDatabaseDocument {
            name: reader.str("_id")?.to_owned(),
            primary: ShardId::new(reader.str("primary")?),
            is_partitioned: reader.opt_bool("partitioned")?,
            version: DatabaseVersion::parse(version, reader.doc("version")?)?,
            critical_sections: reader.opt_i32("enterCriticalSectionCounter")?.unwrap_or(0),
            other: other_fields(document, &DATABASE_FIELDS),
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
        if self.critical_sections != 0 {
            out.append("enterCriticalSectionCounter", self.critical_sections);
        }
        out.append_all(&self.other);
        out.finish()
    }
}

impl ChunkDocument {
    /// Reads `{_id: <min>, max, shard, lastmod, history, ...}` of `config.cache.chunks.<ns>`.
    ///
    /// # Errors
    /// As [`ChunkDocument::parse`].
    pub fn parse_cached(document: &RawDocument, of: &ChunkOf) -> Result<ChunkDocument> {
        let mut whole = DocBuilder::with_capacity(document.as_bytes().len() + 64);
        of.append_to(&mut whole);
        for field in pinion_bson::raw_elements(document) {
            match field.name {
                b"_id" => {
                    whole.append_elem(&field).append_elem_as("min", &field);
                }
                // They are the collection's.
                b"uuid" | b"ns" | b"lastmodEpoch" | b"min" => {}
                _ => {
                    whole.append_elem(&field);
                }
            }
        }
        ChunkDocument::parse(&whole.finish())
    }

    /// As `config.cache.chunks.<ns>` has it: by its lower bound. Whether it is jumbo is known to
    /// the config servers alone.
    pub fn to_cached_bson(&self) -> RawDocumentBuf {
        let cached = ChunkDocument {
            id: RawBson::Document(self.min.clone()),
            is_jumbo: false,
            other: RawDocumentBuf::new(),
            ..self.clone()
        };
        other_fields(&cached.to_bson(), &["uuid", "ns", "lastmodEpoch", "min"])
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{Binary, ObjectId, rawdoc};

    use super::super::testing::{check_kept, check_required, check_types};
    use super::*;
    use crate::table::RoutingTable;
    use crate::testing::{Model, UUID};
    use crate::values::bson_time;

    #[test]
    fn collections() {
        let full = rawdoc! {
            "_id": "d.c", "epoch": ObjectId::from_bytes([1; 12]),
            "timestamp": bson_time(Timestamp::new(5, 1)), "uuid": Binary::from(UUID),
            "key": { "a": 1 }, "unique": true, "defaultCollation": { "locale": "de" },
            "allowMigrations": false, "maxChunkSizeBytes": 1024i64,
            "timeseriesFields": { "timeField": "t", "bucketMaxSpanSeconds": 60 },
            "refreshing": false,
            "lastRefreshedCollectionVersion": bson_time(Timestamp::new(7, 3)),
            "enterCriticalSectionCounter": 4, "reshardingFields": { "x": 1 },
        };
        let parse = CachedCollectionDocument::parse;
        let found = check_kept(&full, parse, CachedCollectionDocument::to_bson);
        assert_eq!(found.last_refreshed, Some(Timestamp::new(7, 3)));
        assert_eq!(found.chunks_ns(), "config.cache.chunks.d.c");
        check_types(&full, &FIELDS[..12], parse, CACHED_COLLECTIONS);
        check_required(&full, &["_id", "epoch", "key"], parse);
        // From the config servers' document and back.
        let collection = found.to_collection();
        let again = CachedCollectionDocument {
            is_refreshing: found.is_refreshing,
            last_refreshed: found.last_refreshed,
            critical_sections: 4,
            other: found.other.clone(),
            ..CachedCollectionDocument::of_collection(&collection)
        };
        assert_eq!(again, found);
        let newer = rawdoc! {
            "_id": "d.c", "epoch": ObjectId::from_bytes([1; 12]), "key": { "a": 1 },
            "lastRefreshedCollectionPlacementVersion": bson_time(Timestamp::new(8, 3)),
        };
        let found = parse(&newer).expect("readable");
        assert_eq!(
            (found.last_refreshed, found.is_refreshing),
            (Some(Timestamp::new(8, 3)), None)
        );
    }

    #[test]
    fn databases() {
        let full = rawdoc! {
            "_id": "d", "primary": "s1", "partitioned": true,
            "version": { "uuid": Binary::from(UUID), "lastMod": 3 },
            "enterCriticalSectionCounter": 2, "x": 1,
        };
        let parse = CachedDatabaseDocument::parse;
        let found = check_kept(&full, parse, CachedDatabaseDocument::to_bson);
        assert_eq!((found.critical_sections, found.version.last_mod), (2, 3));
        check_types(&full, &DATABASE_FIELDS, parse, CACHED_DATABASES);
        check_required(&full, &["_id", "primary", "version"], parse);
    }

    #[test]
    fn a_secondary_has_the_table_of_its_primary() {
        let mut model = Model::new(1, 10, "s0");
        model.split(0, &[0, 10]);
        model.move_chunk(1, "s1");
        model.chunks[0].is_jumbo = true;
        let all: Vec<ChunkDocument> = model.chunks.iter().map(|c| c.document()).collect();
        let of_primary = RoutingTable::new(&model.collection(), all.clone()).expect("a table");

        let collection = CachedCollectionDocument::of_collection(&model.collection());
        let collection = CachedCollectionDocument::parse(&collection.to_bson()).expect("kept");
        let of = ChunkOf::Uuid(UUID);
        let cached = all.iter().map(|chunk| {
            let kept = chunk.to_cached_bson();
            assert_eq!(kept.get_document("_id").ok(), Some(&*chunk.min));
            assert_eq!(
                (
                    pinion_bson::get(&kept, "min"),
                    pinion_bson::get(&kept, "uuid")
                ),
                (None, None)
            );
            ChunkDocument::parse_cached(&kept, &of).expect("readable")
        });
        let found = RoutingTable::new(&collection.to_collection(), cached).expect("a table");
        assert_eq!(found.version(), of_primary.version());
        for (one, other) in found.chunks().zip(of_primary.chunks()) {
            assert_eq!(
                (&one.range, one.shard, one.placement),
                (&other.range, other.shard, other.placement)
            );
            assert_eq!(one.history, other.history);
        }
    }
}
