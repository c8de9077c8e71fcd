//! `aggregate`.

use pinion_bson::{BinarySubtype, RawArray, RawBsonRef, RawDocument};
use pinion_query::Hint;
use pinion_wire::idl::{CommandReader, FieldReader, Namespace, Types};
use pinion_wire::{Error, ErrorCode, Result};

use super::collation::CollationOption;
use super::hint::hint;
use super::runtime_constants::RuntimeConstants;

/// An `aggregate` as it is written.
pub struct AggregateSyntax<'d> {
    pub ns: Namespace,
    pub uuid: Option<[u8; 16]>,
    /// `{aggregate: 1}`: the first stage makes the documents.
    pub collectionless: bool,
    pub stages: &'d RawArray,
    pub lets: Option<&'d RawDocument>,
    pub collation: CollationOption,
    pub hint: Option<Hint>,
    pub bypasses_validation: Option<bool>,
    pub allow_disk_use: Option<bool>,
    pub batch_size: Option<usize>,
    pub explain: bool,
    /// What it gives is a part of what a router merges.
    pub from_router: bool,
    /// What a mongos of MongoDB 4.4 says beside that.
    pub mongos: MongosArguments,
}

/// What mongos of MongoDB 4.4 says with an `aggregate` that it sends to shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MongosArguments {
    /// What the shard gives is merged with what others give: documents come with what is known of
    /// them, groups in a form that can be put together.
    pub needs_merge: bool,
    /// The times that all shards take.
    pub constants: Option<RuntimeConstants>,
}

impl MongosArguments {
    /// Sort keys have one form alone here, and `$merge` one way of upserting, which are those that
    /// mongos says it knows.
    const TOLERATED: [&str; 3] = ["use44SortKeys", "_use44SortKeys", "useNewUpsert"];

    fn read(reader: &CommandReader<'_>) -> Result<MongosArguments> {
        let from_mongos = reader.opt_bool("fromMongos")?;
        let needs_merge = reader.opt_bool("needsMerge")?;
        for name in MongosArguments::TOLERATED {
            reader.opt_bool(name)?;
        }
        if needs_merge.is_some() && from_mongos.is_none() {
            return Err(Error::failed_to_parse(
                "Cannot specify 'needsMerge' without 'fromMongos'",
            ));
        }
        Ok(MongosArguments {
            needs_merge: needs_merge.unwrap_or(false),
            constants: RuntimeConstants::read(reader)?,
        })
    }
}

/// What stands for the collection of an aggregate that reads none.
pub const COLLECTIONLESS: &str = "$cmd.aggregate";

/// What routers and members of sharded clusters ask of each other.
const UNSUPPORTED: [(&str, Types); 5] = [
    ("exchange", Types::OBJECT),
    ("requestReshardingResumeToken", Types::BOOL),
    ("encryptionInformation", Types::OBJECT),
    ("isMapReduceCommand", Types::BOOL),
    ("includeQueryStatsMetrics", Types::BOOL),
];

/// What only mongos of MongoDB 4.4 asks for.
const OF_MONGOS: [(&str, Types); 2] = [("needsMerge", Types::BOOL), ("fromMongos", Types::BOOL)];

impl<'d> AggregateSyntax<'d> {
    /// Reads the command; `explaining` when it stands inside an `explain`, which has no cursor.
    ///
    /// # Errors
    /// A field that is not known, of a wrong type, refused, or that does not stand beside another.
    pub fn read(body: &'d RawDocument, db: &str, explaining: bool) -> Result<AggregateSyntax<'d>> {
        let reader = CommandReader::new("aggregate", body)?;
        for (option, expected) in OF_MONGOS {
            reader.unsupported_unless_empty(option, expected)?;
        }
        AggregateSyntax::read_from(&reader, db, explaining, None)
    }

    /// As [`AggregateSyntax::read`], of a shard behind mongos of MongoDB 4.4, which has arguments
    /// of its own.
    ///
    /// # Errors
    /// As those of [`AggregateSyntax::read`].
    pub fn read_behind_v44(
        body: &'d RawDocument,
        db: &str,
        explaining: bool,
    ) -> Result<AggregateSyntax<'d>> {
        let reader = CommandReader::new("aggregate", body)?;
        let mongos = MongosArguments::read(&reader)?;
        AggregateSyntax::read_from(&reader, db, explaining, Some(mongos))
    }

    fn read_from(
        reader: &CommandReader<'d>,
        db: &str,
        explaining: bool,
        mongos: Option<MongosArguments>,
    ) -> Result<AggregateSyntax<'d>> {
        let of_mongos = mongos.is_some();
        let (ns, collectionless) = namespace(reader, db)?;
        let stages = stages(reader)?;
        let explain = match reader.value("explain") {
            None => false,
            Some(RawBsonRef::Boolean(explain)) => explain,
            Some(_) => return Err(Error::type_mismatch("explain must be a boolean")),
        };
        let batch_size = batch_size(reader, explain || explaining)?;
        if (explain || explaining) && reader.has("writeConcern") {
            // The space is missing in MongoDB's text too.
            return Err(Error::failed_to_parse(
                "Aggregation explain does not support the'writeConcern' option",
            ));
        }
        let hint = hint(reader, of_mongos)?;
        let lets = reader.opt_doc("let")?;
        let allow_disk_use = reader.opt_flag("allowDiskUse")?;
        let bypasses_validation = reader.opt_safe_bool("bypassDocumentValidation")?;
        let collation = CollationOption::read(reader)?;
        for (option, expected) in UNSUPPORTED {
            reader.unsupported_unless_empty(option, expected)?;
        }
        reader.unsupported("legacyRuntimeConstants", Types::OBJECT)?;
        let uuid = reader.opt_uuid("collectionUUID")?;
        let from_router = reader.opt_safe_bool("fromRouter")?.unwrap_or(false);
        reader.finish()?;
        Ok(AggregateSyntax {
            ns,
            uuid,
            collectionless,
            stages,
            lets,
            collation,
            hint,
            bypasses_validation,
            allow_disk_use,
            batch_size,
            explain: explain || explaining,
            from_router,
            mongos: mongos.unwrap_or_default(),
        })
    }
}

/// The stages.
fn stages<'d>(reader: &CommandReader<'d>) -> Result<&'d RawArray> {
    match reader.value("pipeline") {
        Some(RawBsonRef::Array(stages)) => Ok(stages),
        Some(_) => Err(Error::type_mismatch(
            "'pipeline' option must be specified as an array",
        )),
        None => Err(pinion_wire::idl::missing_field(
            reader.path().field("pipeline"),
        )),
    }
}

/// The namespace, and whether it is that of no collection.
fn namespace(reader: &CommandReader<'_>, db: &str) -> Result<(Namespace, bool)> {
    let collectionless = match reader.value("aggregate") {
        Some(value) if pinion_wire::idl::is_number(value) => {
            if pinion_wire::idl::f64_lossy(value) != Some(1.0) {
                return Err(Error::bad_value(
                    "Invalid command format: the 'aggregate' field must specify a collection name or 1",
                ));
            }
            true
        }
        Some(RawBsonRef::Binary(value)) if value.subtype == BinarySubtype::Uuid => {
            return Err(Error::bad_value(
                "Collection name must be provided. UUID is not valid in this context",
            ));
        }
        _ => false,
    };
    let ns = if collectionless {
        Namespace::new(db, COLLECTIONLESS)?
    } else {
        let ns = reader.sought("aggregate", db)?;
        if ns.collection() == COLLECTIONLESS {
            return Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                format!("Invalid namespace specified '{ns}'"),
            ));
        }
        ns
    };
    Ok((ns, collectionless))
}

/// The option `cursor`, which a command that is not explained has.
fn batch_size(reader: &CommandReader<'_>, explains: bool) -> Result<Option<usize>> {
    let cursor = match reader.value("cursor") {
        None => None,
        Some(RawBsonRef::Document(cursor)) => Some(cursor),
        Some(_) => {
            return Err(Error::type_mismatch(
                "cursor field must be missing or an object",
            ));
        }
    };
    if cursor.is_none() && !explains {
        return Err(Error::failed_to_parse(
            "The 'cursor' option is required, except for aggregate with the explain argument",
        ));
    }
    match cursor {
        None => Ok(None),
        Some(cursor) => {
            let path = reader.path().field("cursor");
            let options = FieldReader::object(path, cursor)?;
            let size = options.opt_non_negative("batchSize")?;
            options.finish()?;
            Ok(size.map(|size| size as usize))
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{DateTime, RawDocumentBuf, Timestamp, rawdoc};

    use super::*;

    fn command(more: &RawDocumentBuf) -> RawDocumentBuf {
        let mut out = pinion_bson::DocBuilder::new();
        out.append_all(&rawdoc! { "aggregate": "c", "pipeline": [], "cursor": { "batchSize": 0 } });
        out.append_all(more);
        out.finish()
    }

    fn constants() -> RawDocumentBuf {
        let time = Timestamp {
            time: 3,
            increment: 4,
        };
        rawdoc! { "localNow": (DateTime::from_millis(7)), "clusterTime": time }
    }

    #[track_caller]
    fn check(more: RawDocumentBuf, expected: std::result::Result<MongosArguments, i32>) {
        let command = command(&more);
        let read = AggregateSyntax::read_behind_v44(&command, "d", false);
        let found = read.map(|read| read.mongos).map_err(|error| error.code.0);
        assert_eq!(found, expected, "{more:?}");
    }

    #[test]
    fn what_mongos_says() {
        let merged = MongosArguments {
            needs_merge: true,
            constants: Some(RuntimeConstants {
                now_ms: 7,
                cluster_time: Some(Timestamp {
                    time: 3,
                    increment: 4,
                }),
            }),
        };
        check(
            rawdoc! { "fromMongos": true, "needsMerge": true, "use44SortKeys": true, "useNewUpsert": true,
            "isMapReduceCommand": false, "runtimeConstants": constants() },
            Ok(merged),
        );
        check(
            rawdoc! { "fromMongos": true },
            Ok(MongosArguments::default()),
        );
        check(rawdoc! {}, Ok(MongosArguments::default()));
        check(rawdoc! { "needsMerge": true }, Err(9));
        check(rawdoc! { "fromMongos": 1 }, Err(14));
        check(rawdoc! { "isMapReduceCommand": true }, Err(238));
        let exchange = rawdoc! { "policy": "keyRange", "consumers": 2 };
        check(
            rawdoc! { "fromMongos": true, "exchange": exchange },
            Err(238),
        );
    }

    #[test]
    fn no_other_server_takes_it() {
        for more in [
            rawdoc! { "fromMongos": true },
            rawdoc! { "fromMongos": true, "needsMerge": true },
            rawdoc! { "use44SortKeys": true },
            rawdoc! { "useNewUpsert": true },
            rawdoc! { "runtimeConstants": constants() },
        ] {
            let command = command(&more);
            assert!(
                AggregateSyntax::read(&command, "d", false).is_err(),
                "{more:?}"
            );
        }
        let nothing = command(&rawdoc! { "fromMongos": false, "needsMerge": false });
        assert!(AggregateSyntax::read(&nothing, "d", false).is_ok());
    }
}
