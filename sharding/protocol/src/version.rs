//! Versions of chunks, shards and databases, and how each change of the routing table changes them.
//!
//! Source: sharding document, "Shard versioning and database versioning".

use std::fmt;

use pinion_bson::{DocBuilder, ObjectId, RawBsonRef, RawDocument, Uuid};
use pinion_clock::Timestamp;
use pinion_wire::idl::{
    FieldReader, Path, SentDatabaseVersion, SentShardVersion, Types, missing_field, wrong_type,
};
use pinion_wire::{Error, Result};

use crate::values::{append_time, append_uuid, bson_time, clock_time};

/// In whose form versions and errors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Form {
    /// That of MongoDB 5.0 and later, and of Pinion's nodes.
    #[default]
    Own,
    /// That of MongoDB 4.4: no timestamps.
    Mongo44,
}

/// One life of a collection under one shard key: from its sharding, or the last change of its key,
/// to its drop.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation {
    pub epoch: ObjectId,
    /// When it started. `Timestamp::MIN` in MongoDB 4.4's form: two such are not comparable.
    pub timestamp: Timestamp,
}

impl Incarnation {
    /// Whether both are the same one. A side in MongoDB 4.4's form has no timestamp to compare.
    pub fn is_same(self, other: Incarnation) -> bool {
        self.epoch == other.epoch
            && (self.timestamp == other.timestamp
                || self.timestamp.is_null()
                || other.timestamp.is_null())
    }

    /// Whether this one ended before the other started; `None` where that cannot be known.
    pub fn is_older_than(self, other: Incarnation) -> Option<bool> {
        if self.is_same(other) {
            return Some(false);
        }
        let comparable = !self.timestamp.is_null()
            && !other.timestamp.is_null()
            && self.timestamp != other.timestamp;
        comparable.then_some(self.timestamp < other.timestamp)
    }
}

impl Incarnation {
    /// `{epoch, timestamp}`.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub(crate) fn parse(path: Path<'_>, document: &RawDocument) -> Result<Incarnation> {
        let reader = FieldReader::object(path, document)?;
        let missing = |name| missing_field(reader.path().field(name));
        Ok(Incarnation {
            epoch: reader
                .opt_object_id("epoch")?
                .ok_or_else(|| missing("epoch"))?,
            timestamp: reader
                .opt_timestamp("timestamp")?
                .ok_or_else(|| missing("timestamp"))?,
        })
    }

    pub(crate) fn append_to(self, out: &mut DocBuilder, name: &str) {
        out.start_document(name).append("epoch", self.epoch);
        append_time(out, "timestamp", self.timestamp);
        out.end();
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:?}", self.epoch, self.timestamp)
    }
}

/// The version of a chunk. The highest of a shard's chunks is the shard's version, the highest of
/// all is the collection's. `<0, 0>` is that of a shard without chunks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkVersion {
    pub of: Incarnation,
    /// Raised by what moves data.
    pub major: u32,
    /// Raised by what only cuts or joins ranges.
    pub minor: u32,
}

/// The versions that a migration gives, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedVersions {
    /// Of the chunk that moved: the recipient's version.
    pub migrated: ChunkVersion,
    /// Of one chunk that stays on the donor, if there is one: the donor's version.
    pub control: ChunkVersion,
}

impl ChunkVersion {
    /// That of the first chunk of a collection.
    pub fn first(of: Incarnation) -> ChunkVersion {
        ChunkVersion {
            of,
            major: 1,
            minor: 0,
        }
    }

    /// That of a shard that owns no chunk of a collection which is sharded.
    pub fn without_chunks(of: Incarnation) -> ChunkVersion {
        ChunkVersion {
            of,
            major: 0,
            minor: 0,
        }
    }

    /// From `lastmod` of a chunk's document: the major version as seconds, the minor as counter.
    pub fn from_placement(of: Incarnation, placement: Timestamp) -> ChunkVersion {
        ChunkVersion {
            of,
            major: placement.secs(),
            minor: placement.inc(),
        }
    }

    /// Major and minor version as one timestamp, in which order they are.
    pub fn placement(self) -> Timestamp {
        Timestamp::new(self.major, self.minor)
    }

    /// Whether any chunk stands behind it.
    pub fn has_chunks(self) -> bool {
        self.major > 0
    }

    /// Whether both place data alike: a request with one is served by a shard with the other.
    pub fn is_placement_equal(self, other: ChunkVersion) -> bool {
        self.of.is_same(other.of) && self.major == other.major
    }

    /// Whether the other one is newer; `None` where that cannot be known: of two incarnations
    /// without timestamps, and of a shard without chunks within one incarnation, which may have
    /// lost its last one at any time.
    pub fn is_older_than(self, other: ChunkVersion) -> Option<bool> {
        if !self.of.is_same(other.of) {
            return self.of.is_older_than(other.of);
        }
        if self.placement() == other.placement() {
            return Some(false);
        }
        let comparable = self.has_chunks() && other.has_chunks();
        comparable.then_some(self.placement() < other.placement())
    }

    /// As `self` is the collection's version: what a migration gives.
    ///
    /// # Panics
    /// At the end of the versions, which no number of changes reaches.
    pub fn moved(self) -> MovedVersions {
        let major = self.major.checked_add(1).expect("a major version is left");
        let migrated = ChunkVersion {
            of: self.of,
            major,
            minor: 0,
        };
        MovedVersions {
            migrated,
            control: ChunkVersion {
                minor: 1,
                ..migrated
            },
        }
    }

    /// As `self` is the collection's version: those of the `n` parts of a chunk that is split.
    ///
    /// Behind the last minor version comes the next major one, which costs each router a refresh.
    pub fn split(self, n: usize) -> impl Iterator<Item = ChunkVersion> {
        (1..=n as u64)
            .map(move |at| ChunkVersion::from_placement(self.of, self.placement().plus(at)))
    }

    /// As `self` is the collection's version: that of the chunk which others are merged into.
    #[must_use]
    pub fn merged(self) -> ChunkVersion {
        ChunkVersion::from_placement(self.of, self.placement().next())
    }

    /// As `self` is a chunk's version: that of the same chunk under a refined key.
    #[must_use]
    pub fn refined(self, of: Incarnation) -> ChunkVersion {
        ChunkVersion { of, ..self }
    }
}

impl fmt::Debug for ChunkVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}||{:?}", self.major, self.minor, self.of)
    }
}

/// What a request, or a shard, goes by for one collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardVersion {
    /// The collection is not sharded, or there is none.
    Unsharded,
    /// Neither version nor owner is checked.
    Ignored,
    Placed(ChunkVersion),
}

/// No collection has it.
const NO_EPOCH: [u8; 12] = [0; 12];
/// The epoch of `Ignored`: a date of zero, and the greatest rest.
const IGNORED_EPOCH: [u8; 12] = [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255];

impl ShardVersion {
    /// The version that a request carries.
    pub fn from_sent(sent: SentShardVersion) -> ShardVersion {
        let placement = clock_time(sent.placement);
        let timestamp = sent.timestamp.map_or(Timestamp::MIN, clock_time);
        if sent.epoch.bytes() == IGNORED_EPOCH && placement.is_null() {
            return ShardVersion::Ignored;
        }
        if sent.epoch.bytes() == NO_EPOCH && timestamp.is_null() && placement.is_null() {
            return ShardVersion::Unsharded;
        }
        let of = Incarnation {
            epoch: sent.epoch,
            timestamp,
        };
        ShardVersion::Placed(ChunkVersion::from_placement(of, placement))
    }

    /// As it is sent: epoch, timestamp, placement.
    pub fn to_sent(self) -> SentShardVersion {
        let (epoch, timestamp, placement) = match self {
            ShardVersion::Unsharded => (
                ObjectId::from_bytes(NO_EPOCH),
                Timestamp::MIN,
                Timestamp::MIN,
            ),
            ShardVersion::Ignored => (
                ObjectId::from_bytes(IGNORED_EPOCH),
                Timestamp::MAX,
                Timestamp::MIN,
            ),
            ShardVersion::Placed(version) => {
                (version.of.epoch, version.of.timestamp, version.placement())
            }
        };
        SentShardVersion {
            epoch,
            timestamp: Some(bson_time(timestamp)),
            placement: bson_time(placement),
        }
    }

    /// Appends `{e, t, v}`, or 4.4's `[v, e]`, as this field.
    pub fn append_to(self, out: &mut DocBuilder, name: &str, form: Form) {
        let sent = self.to_sent();
        match form {
            Form::Own => {
                out.start_document(name).append("e", sent.epoch);
                out.append("t", sent.timestamp.unwrap_or(bson_time(Timestamp::MIN)));
                out.append("v", sent.placement).end();
            }
            Form::Mongo44 => {
                out.start_array(name);
                out.push(sent.placement).push(sent.epoch).end();
            }
        }
    }

    /// Reads `{e, t, v}` or 4.4's `[v, e, ..]`.
    ///
    /// # Errors
    /// `TypeMismatch` or a missing field, naming the path.
    pub fn parse(path: Path<'_>, value: RawBsonRef<'_>) -> Result<ShardVersion> {
        let sent = match value {
            RawBsonRef::Document(document) => {
                let reader = FieldReader::object(path, document)?;
                let time = |name| {
                    reader
                        .opt_timestamp(name)?
                        .ok_or_else(|| missing_field(reader.path().field(name)))
                };
                SentShardVersion {
                    epoch: reader
                        .opt_object_id("e")?
                        .ok_or_else(|| missing_field(reader.path().field("e")))?,
                    timestamp: Some(bson_time(time("t")?)),
                    placement: bson_time(time("v")?),
                }
            }
            RawBsonRef::Array(array) => {
                let mut values = pinion_bson::values(array);
                let (Some(RawBsonRef::Timestamp(placement)), Some(RawBsonRef::ObjectId(epoch))) =
                    (values.next(), values.next())
                else {
                    return Err(Error::bad_value(format!(
                        "'{path}' as an array has a timestamp and an ObjectId"
                    )));
                };
                SentShardVersion {
                    epoch,
                    timestamp: None,
                    placement,
                }
            }
            other => return Err(wrong_type(path, other, Types::OBJECT)),
        };
        Ok(ShardVersion::from_sent(sent))
    }

    /// Whether a request with one is served by a shard with the other. `Ignored` is by each.
    pub fn is_placement_equal(self, other: ShardVersion) -> bool {
        match (self, other) {
            (ShardVersion::Ignored, _) | (_, ShardVersion::Ignored) => true,
            (ShardVersion::Unsharded, ShardVersion::Unsharded) => true,
            (ShardVersion::Placed(one), ShardVersion::Placed(other)) => {
                one.is_placement_equal(other)
            }
            _ => false,
        }
    }

    /// Whether the other one is newer; `None` where that cannot be known. That a collection is not
    /// sharded may be older or newer than any version of it.
    pub fn is_older_than(self, other: ShardVersion) -> Option<bool> {
        match (self, other) {
            (ShardVersion::Unsharded, ShardVersion::Unsharded) => Some(false),
            (ShardVersion::Placed(one), ShardVersion::Placed(other)) => one.is_older_than(other),
            _ => None,
        }
    }
}

/// On which shard the unsharded collections of a database are, and in which life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseVersion {
    /// Of one life of the database.
    pub uuid: Uuid,
    /// When it was made. `Timestamp::MIN` in MongoDB 4.4's form.
    pub timestamp: Timestamp,
    /// Raised by each change of the primary shard. Zero for `config` and `admin`.
    pub last_mod: i32,
}

/// True for the databases whose place never changes: versions of them are never sent and never
/// checked.
pub fn has_fixed_placement(db: &str) -> bool {
    matches!(db, "config" | "admin")
}

impl DatabaseVersion {
    /// That of `config` and `admin`.
    pub const FIXED: DatabaseVersion = DatabaseVersion {
        uuid: Uuid::from_bytes([0; 16]),
        timestamp: Timestamp::MIN,
        last_mod: 0,
    };

    /// That of a new database.
    pub fn first(uuid: Uuid, timestamp: Timestamp) -> DatabaseVersion {
        DatabaseVersion {
            uuid,
            timestamp,
            last_mod: 1,
        }
    }

    /// Whether it is that of a database which stays where it is: it is not sent.
    pub fn is_fixed(self) -> bool {
        self.last_mod == 0
    }

    /// That of the database on its next primary shard.
    ///
    /// # Panics
    /// For a database that stays where it is, and at the end of the versions.
    #[must_use]
    pub fn next_primary(self) -> DatabaseVersion {
        assert!(!self.is_fixed(), "config and admin have no other primary");
        DatabaseVersion {
            last_mod: self.last_mod.checked_add(1).expect("a version is left"),
            ..self
        }
    }

    fn is_same_life(self, other: DatabaseVersion) -> bool {
        self.uuid == other.uuid
            && (self.timestamp == other.timestamp
                || self.timestamp.is_null()
                || other.timestamp.is_null())
    }

    /// Whether a request with one is served by a shard with the other.
    pub fn is_placement_equal(self, other: DatabaseVersion) -> bool {
        self.is_same_life(other) && self.last_mod == other.last_mod
    }

    /// Whether the other one is newer; `None` where that cannot be known: two lives of which one
    /// has no timestamp.
    pub fn is_older_than(self, other: DatabaseVersion) -> Option<bool> {
        if self.is_same_life(other) {
            return Some(self.last_mod < other.last_mod);
        }
        let comparable = !self.timestamp.is_null()
            && !other.timestamp.is_null()
            && self.timestamp != other.timestamp;
        comparable.then_some(self.timestamp < other.timestamp)
    }

    pub fn from_sent(sent: SentDatabaseVersion) -> DatabaseVersion {
        DatabaseVersion {
            uuid: Uuid::from_bytes(sent.uuid),
            timestamp: sent.timestamp.map_or(Timestamp::MIN, clock_time),
            last_mod: sent.last_mod,
        }
    }

    pub fn to_sent(self) -> SentDatabaseVersion {
        SentDatabaseVersion {
            uuid: self.uuid.bytes(),
            timestamp: (!self.timestamp.is_null()).then_some(bson_time(self.timestamp)),
            last_mod: self.last_mod,
        }
    }

    /// Appends `{uuid, timestamp, lastMod}` as this field; 4.4's form has no timestamp.
    pub fn append_to(self, out: &mut DocBuilder, name: &str, form: Form) {
        out.start_document(name);
        append_uuid(out, "uuid", self.uuid);
        if form == Form::Own && !self.timestamp.is_null() {
            append_time(out, "timestamp", self.timestamp);
        }
        out.append("lastMod", self.last_mod).end();
    }

    /// Reads `{uuid, timestamp, lastMod}`; 4.4's form has no timestamp.
    ///
    /// # Errors
    /// `TypeMismatch` or a missing field, naming the path.
    pub fn parse(path: Path<'_>, document: &RawDocument) -> Result<DatabaseVersion> {
        let reader = FieldReader::object(path, document)?;
        let missing = |name| missing_field(reader.path().field(name));
        Ok(DatabaseVersion {
            uuid: Uuid::from_bytes(reader.opt_uuid("uuid")?.ok_or_else(|| missing("uuid"))?),
            timestamp: reader.opt_timestamp("timestamp")?.unwrap_or(Timestamp::MIN),
            last_mod: reader
                .opt_i32("lastMod")?
                .ok_or_else(|| missing("lastMod"))?,
        })
    }
}

#[cfg(test)]
mod tests;
