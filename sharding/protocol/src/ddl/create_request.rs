//! What `_shardsvrCreateCollection` asks for.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, raw_elements};
use pinion_query::{document_text, parse_collation};
use pinion_wire::idl::{FieldReader, Namespace, Path, Types, wrong_type};
use pinion_wire::{Error, ErrorCode, Result};

use crate::key::ShardKeyPattern;
use crate::version::has_fixed_placement;

/// A collection that is to be sharded.
#[derive(Clone, Debug, PartialEq)]
pub struct CreateCollectionRequest {
    pub key: ShardKeyPattern,
    pub is_unique: bool,
    /// `numInitialChunks`.
    pub chunks: Option<u64>,
    pub presplits_hashed_zones: bool,
    /// `initialSplitPoints`.
    pub points: Option<Vec<RawDocumentBuf>>,
    /// Whether the simple collation was asked for; none was otherwise.
    pub names_simple_collation: bool,
    pub makes_index: bool,
    pub enforces_uniqueness: bool,
}

const FIELDS: [&str; 9] = [
    "shardKey",
    "unique",
    "numInitialChunks",
    "presplitHashedZones",
    "initialSplitPoints",
    "collation",
    "timeseries",
    "implicitlyCreateIndex",
    "enforceUniquenessCheck",
];

impl CreateCollectionRequest {
    /// The fields of a command that make its request. What they are is checked by
    /// [`CreateCollectionRequest::parse`].
    pub fn of_command(command: &RawDocument) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        for field in raw_elements(command) {
            if FIELDS.iter().any(|name| name.as_bytes() == field.name) {
                out.append_elem(&field);
            }
        }
        out.finish()
    }

    /// The names that [`CreateCollectionRequest::of_command`] takes.
    pub fn fields() -> &'static [&'static str] {
        &FIELDS
    }

    /// # Errors
    /// A field that is missing, of a wrong type, or that no collection can have;
    /// `CommandNotSupported` for a time series.
    pub fn parse(request: &RawDocument) -> Result<CreateCollectionRequest> {
        let reader = FieldReader::object(Path::root("_shardsvrCreateCollection"), request)?;
        if reader.opt_doc("timeseries")?.is_some() {
            return Err(Error::new(
                ErrorCode::COMMAND_NOT_SUPPORTED,
                "shardCollection with 'timeseries' is not supported",
            ));
        }
        let key = ShardKeyPattern::parse(reader.doc("shardKey")?)?;
        let is_unique = reader.opt_safe_bool("unique")?.unwrap_or(false);
        if is_unique {
            key.check_unique()?;
        }
        let chunks = reader.opt_non_negative("numInitialChunks")?;
        let flag =
            |name, default| -> Result<bool> { Ok(reader.opt_safe_bool(name)?.unwrap_or(default)) };
        Ok(CreateCollectionRequest {
            is_unique,
            chunks: chunks.map(i64::unsigned_abs).filter(|chunks| *chunks > 0),
            presplits_hashed_zones: flag("presplitHashedZones", false)?,
            points: points(&reader)?,
            names_simple_collation: names_simple_collation(reader.opt_doc("collation")?)?,
            makes_index: flag("implicitlyCreateIndex", true)?,
            enforces_uniqueness: flag("enforceUniquenessCheck", true)?,
            key,
        })
    }
}

fn points(reader: &FieldReader<'_, '_>) -> Result<Option<Vec<RawDocumentBuf>>> {
    let Some(points) = reader.opt_array("initialSplitPoints")? else {
        return Ok(None);
    };
    let mut found = Vec::new();
    for (at, point) in pinion_bson::values(points).enumerate() {
        let RawBsonRef::Document(point) = point else {
            let path = reader.path().field("initialSplitPoints");
            return Err(wrong_type(path.index(at), point, Types::OBJECT));
        };
        found.push(point.to_owned());
    }
    Ok(Some(found))
}

fn names_simple_collation(collation: Option<&RawDocument>) -> Result<bool> {
    let Some(collation) = collation else {
        return Ok(false);
    };
    match parse_collation(collation)? {
        None => Ok(true),
        Some(_) => Err(Error::bad_value(format!(
            "The collation for shardCollection must be {{locale: 'simple'}}, but found: {}",
            document_text(collation)
        ))),
    }
}

/// Refuses namespaces that are not sharded.
///
/// # Errors
/// `IllegalOperation`, `InvalidNamespace`, and `CommandNotSupported`.
pub(super) fn check_namespace(ns: &Namespace) -> Result<()> {
    ns.check()?;
    let illegal = |message: String| Err(Error::new(ErrorCode::ILLEGAL_OPERATION, message));
    if ns.as_str() == "config.system.sessions" || ns.collection().starts_with("system.buckets.") {
        return Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED,
            format!("shardCollection of {ns} is not supported"),
        ));
    }
    if ns.db() == "config" {
        return illegal("only special collections in the config db may be sharded".to_owned());
    }
    if has_fixed_placement(ns.db()) || ns.db() == "local" {
        return illegal(format!(
            "can't shard collections of the {} database",
            ns.db()
        ));
    }
    if ns.collection().starts_with("system.") {
        return illegal("can't shard system namespaces".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    fn code(request: RawDocumentBuf) -> i32 {
        CreateCollectionRequest::parse(&request).map_or_else(|error| error.code.0, |_| 0)
    }

    #[test]
    fn requests() {
        let command = rawdoc! {
            "_shardsvrCreateCollection": "c", "shardKey": { "a": 1 }, "unique": true,
            "numInitialChunks": 4, "collation": { "locale": "simple" }, "$db": "d",
        };
        let request = CreateCollectionRequest::of_command(&command);
        assert!(pinion_bson::get(&request, "$db").is_none());
        let request = CreateCollectionRequest::parse(&request).expect("a request");
        assert!(request.is_unique && request.names_simple_collation && request.makes_index);
        assert_eq!(request.chunks, Some(4));
        assert_eq!(code(rawdoc! {}), 40_414);
        assert_eq!(code(rawdoc! { "shardKey": { "a": -1 } }), 2);
        assert_eq!(
            code(rawdoc! { "shardKey": { "a": "hashed" }, "unique": true }),
            72
        );
        let key = || rawdoc! { "a": 1 };
        let with = |name: &str, value: RawBsonRef<'_>| {
            let mut out = DocBuilder::new();
            out.append("shardKey", &*key());
            out.append_raw(name, value);
            out.finish()
        };
        let german = rawdoc! { "locale": "de" };
        assert_eq!(code(with("collation", RawBsonRef::Document(&german))), 2);
        let series = rawdoc! { "timeField": "t" };
        assert_eq!(code(with("timeseries", RawBsonRef::Document(&series))), 115);
        assert_eq!(code(with("numInitialChunks", RawBsonRef::Int32(0))), 0);
        assert_eq!(code(with("initialSplitPoints", RawBsonRef::Int32(1))), 14);
    }

    #[test]
    fn namespaces() {
        let check = |name: &str, expected| {
            let ns = Namespace::parse_sought(name).expect("a name");
            let found = check_namespace(&ns).map_or_else(|error| error.code.0, |()| 0);
            assert_eq!(found, expected, "{name}");
        };
        check("d.c", 0);
        check("d.$c", 73);
        check("config.c", 20);
        check("config.system.sessions", 115);
        check("admin.c", 20);
        check("local.c", 20);
        check("d.system.js", 20);
        check("d.system.buckets.c", 115);
    }
}
