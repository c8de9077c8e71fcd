//! What `_shardsvrCreateCollection` asks for.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, raw_elements};
use pinion_query::{BUCKETS_PREFIX, TimeSeries, document_text, parse_collation};
use pinion_wire::idl::{FieldReader, Namespace, Path, Types, missing_field, wrong_type};
use pinion_wire::{Error, ErrorCode, Result};

use crate::key::ShardKeyPattern;
use crate::limits::MAX_SHARDED_NAMESPACE_BYTES;
use crate::series::bucket_shard_key;
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
    /// The series whose buckets are to be sharded.
    pub series: Option<RequestedSeries>,
}

/// A series that is made unless it is there.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedSeries {
    pub options: TimeSeries,
    /// The shard key as the client named it: of measurements.
    pub key: RawDocumentBuf,
}

/// The shard key of measurements, where that of the request is of their buckets.
const SERIES_KEY: &str = "seriesKey";

/// Where routers keep the sessions of clients.
pub(super) const SESSIONS: &str = "config.system.sessions";

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

    /// The request for the buckets of a series, of one that names the series.
    ///
    /// # Errors
    /// A shard key that a series cannot have; `InvalidOptions` for a unique one.
    pub fn of_series(request: &RawDocument, series: &TimeSeries) -> Result<RawDocumentBuf> {
        let reader = FieldReader::object(Path::root("_shardsvrCreateCollection"), request)?;
        let key = reader.doc("shardKey")?;
        if reader.opt_safe_bool("unique")?.unwrap_or(false) {
            return Err(Error::new(
                ErrorCode::INVALID_OPTIONS,
                "Index option 'unique' is not supported on time-series collections",
            ));
        }
        let mut out = DocBuilder::new();
        out.append("shardKey", &*bucket_shard_key(series, key)?)
            .append(SERIES_KEY, key)
            .append("timeseries", &*series.to_document());
        for field in raw_elements(request) {
            if !matches!(field.name, b"shardKey" | b"timeseries") {
                out.append_elem(&field);
            }
        }
        Ok(out.finish())
    }

    /// The fields of the index that serves the shard key, as the collection is asked for it.
    pub(super) fn index_key(&self) -> RawDocumentBuf {
        match &self.series {
            Some(series) => series.key.clone(),
            None => self.key.to_bson(),
        }
    }

    /// The names that [`CreateCollectionRequest::of_command`] takes.
    pub fn fields() -> &'static [&'static str] {
        &FIELDS
    }

    /// # Errors
    /// A field that is missing, of a wrong type, or that no collection can have.
    pub fn parse(request: &RawDocument) -> Result<CreateCollectionRequest> {
        let reader = FieldReader::object(Path::root("_shardsvrCreateCollection"), request)?;
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
            series: series(&reader)?,
            key,
        })
    }
}

fn series(reader: &FieldReader<'_, '_>) -> Result<Option<RequestedSeries>> {
    let Some(options) = reader.opt_doc("timeseries")? else {
        return Ok(None);
    };
    let path = reader.path().field("timeseries");
    let options = TimeSeries::from_document(options);
    Ok(Some(RequestedSeries {
        options: options.map_err(|name| missing_field(path.field(name)))?,
        key: reader.doc(SERIES_KEY)?.to_owned(),
    }))
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

/// Refuses the buckets of a series: what is done to them is done by the name of the series.
///
/// # Errors
/// 5731501.
pub fn check_no_buckets(ns: &Namespace) -> Result<()> {
    match ns.collection().starts_with(BUCKETS_PREFIX) {
        false => Ok(()),
        true => Err(Error::new(
            ErrorCode(5_731_501),
            "Sharding a buckets collection is not allowed",
        )),
    }
}

/// Refuses a name for which there is no room beside the names of what is kept of a sharded
/// collection.
///
/// # Errors
/// `InvalidNamespace`.
pub fn check_length(ns: &Namespace) -> Result<()> {
    match ns.as_str().len() > MAX_SHARDED_NAMESPACE_BYTES {
        false => Ok(()),
        true => Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!(
                "The fully qualified namespace {ns} is too long. Maximum length is {MAX_SHARDED_NAMESPACE_BYTES} bytes."
            ),
        )),
    }
}

/// Refuses namespaces that are not sharded.
///
/// # Errors
/// `IllegalOperation`, `InvalidNamespace`, and `CommandNotSupported`.
pub fn check_namespace(ns: &Namespace) -> Result<()> {
    ns.check()?;
    let illegal = |message: String| Err(Error::new(ErrorCode::ILLEGAL_OPERATION, message));
    if ns.as_str() == SESSIONS {
        return Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED,
            format!("shardCollection of {ns} is not supported"),
        ));
    }
    check_no_buckets(ns)?;
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
        assert_eq!(code(with("numInitialChunks", RawBsonRef::Int32(0))), 0);
        assert_eq!(code(with("initialSplitPoints", RawBsonRef::Int32(1))), 14);
    }

    #[test]
    fn series() {
        let options = TimeSeries {
            time_field: "t".into(),
            meta_field: Some("m".into()),
            granularity: None,
            rounding_secs: Some(60),
            max_span_secs: 60,
        };
        let asked = rawdoc! { "shardKey": { "m.a": 1, "t": 1 }, "numInitialChunks": 2 };
        let of_buckets = CreateCollectionRequest::of_series(&asked, &options).expect("a key");
        let request = CreateCollectionRequest::parse(&of_buckets).expect("a request");
        let key = rawdoc! { "meta.a": 1, "control.min.t": 1 };
        assert_eq!((request.key.to_bson(), request.chunks), (key, Some(2)));
        assert_eq!(request.index_key(), rawdoc! { "m.a": 1, "t": 1 });
        assert_eq!(
            request.series.map(|series| series.options),
            Some(options.clone())
        );
        let asked = rawdoc! { "shardKey": { "a": 1 } };
        let refused = CreateCollectionRequest::of_series(&asked, &options);
        assert_eq!(refused.map_err(|error| error.code.0), Err(5_914_001));
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
        check("d.system.buckets.c", 5_731_501);
        let long = |bytes| Namespace::parse(&format!("d.{}", "c".repeat(bytes))).expect("a name");
        assert!(check_length(&long(233)).is_ok());
        assert_eq!(
            check_length(&long(234)).map_err(|error| error.code.0),
            Err(73)
        );
    }
}
