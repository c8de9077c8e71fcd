//! Cluster parameters: settings that all members of a cluster share, each a small document that is
//! stored in `config.clusterParameters`.

use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp};
use pinion_wire::idl::{FieldReader, Path, i64_exact};
use pinion_wire::{Error, ErrorCode, Result};

use crate::settable::Settable;

/// The collection that they are stored in.
pub const COLLECTION: (&str, &str) = ("config", "clusterParameters");

/// Every parameter, in the order of the names.
pub const NAMES: [&str; 5] = [
    CHANGE_STREAM_OPTIONS,
    CHANGE_STREAMS,
    DEFAULT_MAX_TIME_MS,
    FLE_LIMITS,
    PAUSE_MIGRATIONS,
];

const CHANGE_STREAM_OPTIONS: &str = "changeStreamOptions";
/// Of the change collections of serverless clusters, which a set does not have, here as with
/// MongoDB.
const CHANGE_STREAMS: &str = "changeStreams";
const DEFAULT_MAX_TIME_MS: &str = "defaultMaxTimeMS";
const FLE_LIMITS: &str = "fleDisableSubstringPreviewParameterLimits";
/// Of a cluster with shards: a set alone migrates nothing, here as with MongoDB.
const PAUSE_MIGRATIONS: &str = "pauseMigrationsDuringMultiUpdates";

/// A value that was set, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    pub time: Timestamp,
    pub value: RawDocumentBuf,
}

/// The parameters of one core; every core holds the same.
#[derive(Clone, Debug, Default)]
pub struct ClusterParameters {
    set: BTreeMap<&'static str, Set>,
}

/// The cluster parameters that are set.
pub fn cluster_parameters() -> Rc<Settable<ClusterParameters>> {
    pinion_runtime::core_local()
}

/// The parameter's name as it is kept; NoSuchKey (4) for one that is none.
pub fn known(name: &str) -> Result<&'static str> {
    NAMES
        .into_iter()
        .find(|known| *known == name)
        .ok_or_else(|| {
            Error::new(
                ErrorCode::NO_SUCH_KEY,
                format!("Unknown server parameter: {name}"),
            )
        })
}

/// The flag that is the whole of some parameters.
fn flag_of(name: &str) -> &'static str {
    match name {
        FLE_LIMITS => "shouldOverride",
        _ => "enabled",
    }
}

/// What holds until another value is set.
fn default_value(name: &str) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    match name {
        CHANGE_STREAM_OPTIONS => {
            out.start_document("preAndPostImages")
                .append("expireAfterSeconds", "off")
                .end();
        }
        CHANGE_STREAMS => {
            out.append("expireAfterSeconds", 3600i64);
        }
        DEFAULT_MAX_TIME_MS => {
            out.append("readOperations", 0i64);
        }
        flag => {
            out.append(flag_of(flag), false);
        }
    }
    out.finish()
}

/// Checks a value for a parameter and gives it with all its fields.
pub fn parse(name: &'static str, value: RawBsonRef<'_>) -> Result<RawDocumentBuf> {
    let RawBsonRef::Document(value) = value else {
        return Err(Error::bad_value(format!(
            "Cluster parameter value must be an object, found {} for {name}",
            pinion_bson::type_name(value.element_type())
        )));
    };
    if let Some((field, _)) = pinion_bson::elements(value).find(|(name, _)| name.starts_with('$')) {
        return Err(Error::new(
            ErrorCode::DOLLAR_PREFIXED_FIELD_NAME,
            format!("'{field}' in the value of {name} begins with a dollar sign"),
        ));
    }
    if name == CHANGE_STREAM_OPTIONS {
        return change_stream_options(value);
    }
    let root = Path::root("setClusterParameter");
    let reader = FieldReader::object(root.field(name), value)?;
    let mut out = DocBuilder::new();
    match name {
        CHANGE_STREAMS => {
            let secs = reader.opt_at_least("expireAfterSeconds", 1)?;
            out.append("expireAfterSeconds", secs.unwrap_or(3600));
        }
        DEFAULT_MAX_TIME_MS => {
            let ms = reader.opt_between("readOperations", 0, i64::from(i32::MAX))?;
            out.append("readOperations", ms.unwrap_or(0));
        }
        name => {
            let flag = flag_of(name);
            let value = reader.opt_bool(flag)?.unwrap_or(false);
            if value && name == FLE_LIMITS {
                return Err(Error::new(
                    ErrorCode::INVALID_OPTIONS,
                    format!(
                        "{name}.{flag} is not supported: this server has no encrypted collections whose limits could be overridden"
                    ),
                ));
            }
            out.append(flag, value);
        }
    }
    reader.finish()?;
    Ok(out.finish())
}

/// The one parameter that `setClusterParameter` sets, with its checked value.
///
/// # Errors
/// There is none or several; it is unknown; the value is wrong.
pub fn parse_setting(setting: &RawDocument) -> Result<(&'static str, RawDocumentBuf)> {
    let mut settings = pinion_bson::elements(setting);
    let Some((name, value)) = settings.next() else {
        return Err(Error::new(
            ErrorCode::NO_SUCH_KEY,
            "setClusterParameter names no parameter",
        ));
    };
    if settings.next().is_some() {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "setClusterParameter only supports setting exactly one parameter",
        ));
    }
    let name = known(name)?;
    Ok((name, parse(name, value)?))
}

/// These have a parser of their own in MongoDB too, and BadValue for all that is wrong.
fn change_stream_options(value: &RawDocument) -> Result<RawDocumentBuf> {
    let wrong = |what: &str| Err(Error::bad_value(format!("{CHANGE_STREAM_OPTIONS}: {what}")));
    let mut images = None;
    for (name, value) in pinion_bson::elements(value) {
        match (name, value) {
            ("preAndPostImages", RawBsonRef::Document(value)) => images = Some(value),
            ("preAndPostImages", _) => return wrong("'preAndPostImages' has to be an object"),
            (name, _) => return wrong(&format!("the field '{name}' is unknown")),
        }
    }
    let Some(images) = images else {
        return wrong("'preAndPostImages' is missing");
    };
    let mut expires = None;
    for (name, value) in pinion_bson::elements(images) {
        if name != "expireAfterSeconds" {
            return wrong(&format!("the field 'preAndPostImages.{name}' is unknown"));
        }
        expires = Some(value);
    }
    let mut out = DocBuilder::new();
    out.start_document("preAndPostImages");
    match expires {
        Some(RawBsonRef::String("off")) => out.append("expireAfterSeconds", "off"),
        Some(value) => match i64_exact(value) {
            Some(secs) if secs > 0 => out.append("expireAfterSeconds", secs),
            _ => {
                return wrong(
                    "'expireAfterSeconds' has to be a positive number of seconds or 'off'",
                );
            }
        },
        None => return wrong("'preAndPostImages.expireAfterSeconds' is missing"),
    };
    out.end();
    Ok(out.finish())
}

impl ClusterParameters {
    /// Sets a parameter, whose value is checked.
    pub fn set(&mut self, name: &'static str, set: Set) {
        self.set.insert(name, set);
    }

    /// Appends `{_id, clusterParameterTime, ...}`.
    pub fn append(&self, name: &'static str, out: &mut DocBuilder) {
        let unset = || Set {
            time: Timestamp {
                time: 0,
                increment: 0,
            },
            value: default_value(name),
        };
        let set = self.set.get(name).cloned().unwrap_or_else(unset);
        append_set(name, &set, out);
    }

    /// After how many seconds a document as it was before a change is not shown any more; none
    /// where the log alone says.
    pub fn images_expire_secs(&self) -> Option<i64> {
        let set = self.set.get(CHANGE_STREAM_OPTIONS)?;
        let images = set.value.get_document("preAndPostImages").ok()?;
        images.get_i64("expireAfterSeconds").ok()
    }

    /// The time that reads have whose commands name none.
    pub fn default_max_time_ms(&self) -> Option<u64> {
        let set = self.set.get(DEFAULT_MAX_TIME_MS)?;
        let ms = set.value.get_i64("readOperations").unwrap_or(0);
        (ms > 0).then_some(ms as u64)
    }
}

/// Appends the fields of a parameter as it is stored and answered.
pub fn append_set(name: &str, set: &Set, out: &mut DocBuilder) {
    out.append("_id", name);
    out.append("clusterParameterTime", RawBsonRef::Timestamp(set.time));
    out.append_all(&set.value);
}

/// Reads a stored parameter; none where it is not understood.
pub fn read_stored(document: &RawDocument) -> Option<(&'static str, Set)> {
    let name = known(document.get_str("_id").ok()?).ok()?;
    let time = document.get_timestamp("clusterParameterTime").ok()?;
    let mut value = DocBuilder::new();
    for (field, of_it) in pinion_bson::elements(document) {
        if !matches!(field, "_id" | "clusterParameterTime") {
            value.append(field, of_it);
        }
    }
    let value = parse(name, RawBsonRef::Document(&value.finish())).ok()?;
    Some((name, Set { time, value }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawBson, rawbson, rawdoc};

    #[track_caller]
    fn check(name: &str, value: RawBson, expected: std::result::Result<RawDocumentBuf, i32>) {
        let name = known(name).expect("a parameter");
        let parsed = parse(name, value.as_raw_bson_ref());
        assert_eq!(
            parsed.map_err(|error| error.code.0),
            expected,
            "{name} {value:?}"
        );
    }

    #[test]
    fn values() {
        check(
            "changeStreams",
            rawbson!({}),
            Ok(rawdoc! { "expireAfterSeconds": 3600i64 }),
        );
        check(
            "changeStreams",
            rawbson!({ "expireAfterSeconds": 0 }),
            Err(2),
        );
        check(
            "changeStreams",
            rawbson!({ "expireAfterSeconds": "x" }),
            Err(14),
        );
        check(
            "defaultMaxTimeMS",
            rawbson!({ "readOperations": 5 }),
            Ok(rawdoc! { "readOperations": 5i64 }),
        );
        check(
            "pauseMigrationsDuringMultiUpdates",
            rawbson!({ "enabled": 1 }),
            Err(14),
        );
        let options = rawbson!({ "preAndPostImages": { "expireAfterSeconds": "off" } });
        check(
            "changeStreamOptions",
            options,
            Ok(default_value(CHANGE_STREAM_OPTIONS)),
        );
        check(
            "changeStreamOptions",
            rawbson!({ "preAndPostImages": null }),
            Err(2),
        );
        check("changeStreamOptions", rawbson!({ "$bad": 1 }), Err(52));
        check("changeStreamOptions", rawbson!("x"), Err(2));
        check(FLE_LIMITS, rawbson!({ "shouldOverride": true }), Err(72));
        check(
            FLE_LIMITS,
            rawbson!({ "shouldOverride": false }),
            Ok(rawdoc! { "shouldOverride": false }),
        );
        assert!(known("ChangeStreams").is_err());
    }

    #[test]
    fn what_is_stored_is_read_again() {
        let set = Set {
            time: Timestamp {
                time: 7,
                increment: 1,
            },
            value: rawdoc! { "readOperations": 5i64 },
        };
        let mut out = DocBuilder::new();
        append_set(DEFAULT_MAX_TIME_MS, &set, &mut out);
        assert_eq!(
            read_stored(&out.finish()),
            Some((DEFAULT_MAX_TIME_MS, set.clone()))
        );
        let mut parameters = ClusterParameters::default();
        assert_eq!(parameters.default_max_time_ms(), None);
        parameters.set(DEFAULT_MAX_TIME_MS, set);
        assert_eq!(parameters.default_max_time_ms(), Some(5));
    }
}
