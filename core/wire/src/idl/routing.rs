//! What routers send to shards with a command: which versions of the routing table they go by, and
//! what they know of the cluster's clocks.
//!
//! Source: sharding document, "Shard Version", "Vector clock".

use pinion_bson::{ObjectId, RawBsonRef, RawDocument, Timestamp};

use super::errors::{Path, Types, missing_field, wrong_type};
use super::reader::FieldReader;
use crate::error::{Error, Result};

/// The placement version of a collection that the sender goes by. It is compared by the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentShardVersion {
    pub epoch: ObjectId,
    /// When the collection was made or its key changed last; absent in MongoDB 4.4's form.
    pub timestamp: Option<Timestamp>,
    /// Major and minor version as the seconds and the increment.
    pub placement: Timestamp,
}

/// The version of a database that the sender goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentDatabaseVersion {
    pub uuid: [u8; 16],
    /// Absent in MongoDB 4.4's form.
    pub timestamp: Option<Timestamp>,
    pub last_mod: i32,
}

/// The arguments of routers. Each is absent where the command does not have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutingArguments {
    pub shard_version: Option<SentShardVersion>,
    pub database_version: Option<SentDatabaseVersion>,
    /// `$configTime` and `$topologyTime` of the sender's vector clock.
    pub config_time: Option<Timestamp>,
    pub topology_time: Option<Timestamp>,
    /// The term of `$configServerState`, in which MongoDB 4.4 has the config time.
    pub config_term: Option<i64>,
    /// Whether a write may make the collection: `allowImplicitCollectionCreation`.
    pub may_create: Option<bool>,
    /// Whether the user may write although user writes are blocked: `mayBypassWriteBlocking`.
    pub may_bypass_write_block: Option<bool>,
    /// Whether the shard coordinates the transaction that the command begins.
    pub coordinator: Option<bool>,
}

impl RoutingArguments {
    /// The versions of one namespace of a command that names several: `shardVersion` and
    /// `databaseVersion` of an element of `nsInfo`.
    ///
    /// # Errors
    /// `TypeMismatch` and the like.
    pub fn of_namespace(reader: &FieldReader<'_, '_>) -> Result<RoutingArguments> {
        let mut found = RoutingArguments::default();
        for name in ["shardVersion", "databaseVersion"] {
            if let Some(value) = reader.value(name) {
                found.take(name, reader.path().field(name), value)?;
            }
        }
        Ok(found)
    }

    /// The fields that they come in.
    pub(super) const NAMES: [&str; 8] = [
        "$configServerState",
        "$configTime",
        "$topologyTime",
        "allowImplicitCollectionCreation",
        "coordinator",
        "databaseVersion",
        "mayBypassWriteBlocking",
        "shardVersion",
    ];

    /// Takes in one of them.
    ///
    /// # Errors
    /// `TypeMismatch` and the like, of the field or of what is in it.
    pub(super) fn take(&mut self, name: &str, path: Path<'_>, value: RawBsonRef<'_>) -> Result<()> {
        match name {
            "shardVersion" => self.shard_version = Some(shard_version(path, value)?),
            "databaseVersion" => self.database_version = Some(database_version(path, value)?),
            "$configServerState" => {
                if let Some((time, term)) = config_server_state(path, value)? {
                    self.config_time = self.config_time.max(Some(time));
                    self.config_term = Some(term);
                }
            }
            "$configTime" => self.config_time = Some(timestamp(path, value)?),
            "$topologyTime" => self.topology_time = Some(timestamp(path, value)?),
            "allowImplicitCollectionCreation" => self.may_create = Some(boolean(path, value)?),
            "mayBypassWriteBlocking" => self.may_bypass_write_block = Some(boolean(path, value)?),
            "coordinator" => self.coordinator = Some(boolean(path, value)?),
            other => unreachable!("{other} is none of NAMES"),
        }
        Ok(())
    }
}

/// Time and term of `{opTime: {ts: <Timestamp>, t: <long>}}`, by which MongoDB 4.4 says how much of
/// the config servers it has read.
fn config_server_state(path: Path<'_>, value: RawBsonRef<'_>) -> Result<Option<(Timestamp, i64)>> {
    let RawBsonRef::Document(document) = value else {
        return Err(wrong_type(path, value, Types::OBJECT));
    };
    let reader = FieldReader::object(path, document)?;
    let Some(op_time) = reader.opt_doc("opTime")? else {
        return Ok(None);
    };
    let reader = FieldReader::object(reader.path().field("opTime"), op_time)?;
    let ts = time(&reader, "ts")?.ok_or_else(|| missing_field(reader.path().field("ts")))?;
    Ok(Some((ts, reader.opt_i64("t")?.unwrap_or(0))))
}

fn timestamp(path: Path<'_>, value: RawBsonRef<'_>) -> Result<Timestamp> {
    match value {
        RawBsonRef::Timestamp(time) => Ok(time),
        other => Err(wrong_type(path, other, Types::TIMESTAMP)),
    }
}

fn boolean(path: Path<'_>, value: RawBsonRef<'_>) -> Result<bool> {
    match value {
        RawBsonRef::Boolean(value) => Ok(value),
        other => Err(wrong_type(path, other, Types::BOOL)),
    }
}

/// `{e: <ObjectId>, t: <Timestamp>, v: <Timestamp>}`, or 4.4's
/// `[<Timestamp>, <ObjectId>, <bool>?]`, whose flag is about requests that ignore versions.
fn shard_version(path: Path<'_>, value: RawBsonRef<'_>) -> Result<SentShardVersion> {
    match value {
        RawBsonRef::Document(document) => {
            let reader = FieldReader::object(path, document)?;
            let missing = |name| missing_field(reader.path().field(name));
            Ok(SentShardVersion {
                epoch: reader.opt_object_id("e")?.ok_or_else(|| missing("e"))?,
                timestamp: Some(time(&reader, "t")?.ok_or_else(|| missing("t"))?),
                placement: time(&reader, "v")?.ok_or_else(|| missing("v"))?,
            })
        }
        RawBsonRef::Array(array) => {
            let mut values = pinion_bson::values(array);
            match (values.next(), values.next(), values.next()) {
                (
                    Some(RawBsonRef::Timestamp(placement)),
                    Some(RawBsonRef::ObjectId(epoch)),
                    None | Some(RawBsonRef::Boolean(_)),
                ) => Ok(SentShardVersion {
                    epoch,
                    timestamp: None,
                    placement,
                }),
                _ => Err(Error::bad_value(
                    "shardVersion as an array has a timestamp and an ObjectId",
                )),
            }
        }
        other => Err(wrong_type(path, other, Types::OBJECT)),
    }
}

fn time(reader: &FieldReader<'_, '_>, name: &str) -> Result<Option<Timestamp>> {
    match reader.value(name) {
        None => Ok(None),
        Some(value) => timestamp(reader.path().field(name), value).map(Some),
    }
}

/// `{uuid: <UUID>, timestamp: <Timestamp>, lastMod: <int>}`.
fn database_version(path: Path<'_>, value: RawBsonRef<'_>) -> Result<SentDatabaseVersion> {
    let document: &RawDocument = match value {
        RawBsonRef::Document(document) => document,
        other => return Err(wrong_type(path, other, Types::OBJECT)),
    };
    let reader = FieldReader::object(path, document)?;
    let missing = |name| missing_field(reader.path().field(name));
    Ok(SentDatabaseVersion {
        uuid: reader.opt_uuid("uuid")?.ok_or_else(|| missing("uuid"))?,
        timestamp: time(&reader, "timestamp")?,
        last_mod: reader
            .opt_int("lastMod")?
            .ok_or_else(|| missing("lastMod"))?,
    })
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;
    use crate::idl::GenericArguments;

    fn read(document: &RawDocumentBuf) -> Result<Option<Box<RoutingArguments>>> {
        GenericArguments::parse("find", document).map(|found| found.routing)
    }

    fn at(secs: u32, increment: u32) -> Timestamp {
        Timestamp {
            time: secs,
            increment,
        }
    }

    #[test]
    fn each_argument_is_carried() {
        let epoch = ObjectId::from_bytes([3; 12]);
        let document = rawdoc! {
            "find": "c",
            "shardVersion": { "e": epoch, "t": at(5, 6), "v": at(7, 8) },
            "databaseVersion": {
                "uuid": pinion_bson::Binary {
                    subtype: pinion_bson::BinarySubtype::Uuid,
                    bytes: vec![9; 16],
                },
                "timestamp": at(1, 2),
                "lastMod": 4,
            },
            "$configTime": at(10, 1),
            "$topologyTime": at(11, 1),
            "allowImplicitCollectionCreation": false,
            "mayBypassWriteBlocking": true,
            "coordinator": true,
        };
        let found = read(&document).expect("readable").expect("there");
        let expected = RoutingArguments {
            shard_version: Some(SentShardVersion {
                epoch,
                timestamp: Some(at(5, 6)),
                placement: at(7, 8),
            }),
            database_version: Some(SentDatabaseVersion {
                uuid: [9; 16],
                timestamp: Some(at(1, 2)),
                last_mod: 4,
            }),
            config_time: Some(at(10, 1)),
            topology_time: Some(at(11, 1)),
            config_term: None,
            may_create: Some(false),
            may_bypass_write_block: Some(true),
            coordinator: Some(true),
        };
        assert_eq!(*found, expected);
        let none = read(&rawdoc! { "find": "c", "comment": 1 }).expect("readable");
        assert_eq!(none, None);
    }

    #[test]
    fn the_older_form_of_a_version() {
        let epoch = ObjectId::from_bytes([3; 12]);
        let document = rawdoc! { "find": "c", "shardVersion": [at(7, 8), epoch] };
        let found = read(&document).expect("readable").expect("there");
        let version = found.shard_version.expect("there");
        assert_eq!((version.timestamp, version.placement), (None, at(7, 8)));
    }

    #[test]
    fn what_was_read_of_the_config_servers() {
        let state = |op_time: RawDocumentBuf| {
            let document = rawdoc! { "find": "c", "$configServerState": { "opTime": op_time } };
            read(&document).map(|found| {
                let found = found.expect("there");
                (found.config_time, found.config_term)
            })
        };
        let found = state(rawdoc! { "ts": at(9, 1), "t": 3i64 });
        assert_eq!(found.ok(), Some((Some(at(9, 1)), Some(3))));
        assert!(state(rawdoc! { "ts": 1 }).is_err());
        assert!(state(rawdoc! { "t": 3i64 }).is_err());
    }

    #[test]
    fn what_is_no_version_is_refused() {
        let check = |document: RawDocumentBuf, code: i32| {
            let error = read(&document).expect_err("refused");
            assert_eq!(error.code.0, code, "{document:?}: {}", error.message);
        };
        check(rawdoc! { "find": "c", "shardVersion": 1 }, 14);
        check(rawdoc! { "find": "c", "shardVersion": [1] }, 2);
        check(rawdoc! { "find": "c", "shardVersion": {} }, 40414);
        check(rawdoc! { "find": "c", "databaseVersion": "x" }, 14);
        check(
            rawdoc! { "find": "c", "databaseVersion": { "lastMod": 1 } },
            40414,
        );
        check(rawdoc! { "find": "c", "$configTime": 1 }, 14);
        check(rawdoc! { "find": "c", "coordinator": 1 }, 14);
        check(
            rawdoc! { "find": "c", "allowImplicitCollectionCreation": 1 },
            14,
        );
    }
}
