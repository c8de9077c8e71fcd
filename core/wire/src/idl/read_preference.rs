//! Read preference as clients send it: the mode, and what narrows the choice among members.

use std::fmt::{self, Write};

use pinion_bson::{
    JsonMode, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, elements, value_to_json,
};

use super::errors::Path;
use super::numbers::truthy;
use super::reader::FieldReader;
use crate::error::{Error, ErrorCode, Result};
use crate::limits::MAX_TAG_SETS;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadPreferenceMode {
    #[default]
    Primary,
    PrimaryPreferred,
    Secondary,
    SecondaryPreferred,
    Nearest,
}

impl ReadPreferenceMode {
    const NAMED: [(&'static str, ReadPreferenceMode); 5] = [
        ("primary", ReadPreferenceMode::Primary),
        ("primaryPreferred", ReadPreferenceMode::PrimaryPreferred),
        ("secondary", ReadPreferenceMode::Secondary),
        ("secondaryPreferred", ReadPreferenceMode::SecondaryPreferred),
        ("nearest", ReadPreferenceMode::Nearest),
    ];

    /// The mode of this name, if there is one.
    pub fn named(name: &str) -> Option<ReadPreferenceMode> {
        let mut all = Self::NAMED.into_iter();
        all.find(|(known, _)| *known == name).map(|(_, mode)| mode)
    }

    pub fn name(self) -> &'static str {
        let mut all = Self::NAMED.into_iter();
        let found = all.find(|(_, mode)| *mode == self);
        found.expect("every mode has a name").0
    }
}

/// One of the sets of tags of a read preference: a member fits that has all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct TagSet(RawDocumentBuf);

impl TagSet {
    pub fn new(tags: RawDocumentBuf) -> TagSet {
        TagSet(tags)
    }

    /// Whether a member with these tags, names and values, fits. A value that is no string fits no
    /// member, as members have only strings.
    pub fn fits(&self, tags: &[(String, String)]) -> bool {
        elements(&self.0).all(|(name, value)| {
            let mut of_member = tags.iter();
            let found = of_member.find(|(known, _)| known == name);
            found.is_some_and(|(_, found)| value == RawBsonRef::String(found))
        })
    }
}

/// `$readPreference` of a command. `hedge` is accepted and has no effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadPreference {
    pub mode: ReadPreferenceMode,
    /// In the order in which they are tried; empty where any member will do.
    pub tags: Vec<TagSet>,
    /// How far a secondary may be behind, in seconds: at least 90.
    pub max_staleness_secs: Option<u32>,
}

impl From<ReadPreferenceMode> for ReadPreference {
    fn from(mode: ReadPreferenceMode) -> ReadPreference {
        ReadPreference {
            mode,
            ..ReadPreference::default()
        }
    }
}

impl ReadPreference {
    /// As it is sent to other nodes.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        document.append(cstr!("mode"), self.mode.name());
        if !self.tags.is_empty() {
            let mut tags = RawArrayBuf::new();
            for set in &self.tags {
                tags.push(set.0.clone());
            }
            document.append(cstr!("tags"), tags);
        }
        if let Some(secs) = self.max_staleness_secs {
            document.append(cstr!("maxStalenessSeconds"), i64::from(secs));
        }
        document
    }
}

/// As MongoDB's messages show it: `{ mode: "nearest", tags: [ { dc: "x" } ] }`.
impl fmt::Display for ReadPreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ mode: \"{}\"", self.mode.name())?;
        if !self.tags.is_empty() {
            let shown: Vec<String> = self.tags.iter().map(|set| shown(&set.0)).collect();
            write!(f, ", tags: [ {} ]", shown.join(", "))?;
        }
        if let Some(secs) = self.max_staleness_secs {
            write!(f, ", maxStalenessSeconds: {secs}")?;
        }
        f.write_str(" }")
    }
}

fn shown(tags: &RawDocument) -> String {
    if tags.is_empty() {
        return "{}".to_owned();
    }
    let mut out = String::from("{");
    for (at, (name, value)) in elements(tags).enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let value = value_to_json(value, JsonMode::Relaxed);
        // Writing to a string does not fail.
        let _ = write!(out, "{comma} {name}: {value}");
    }
    out.push_str(" }");
    out
}

/// Reads the document of `$readPreference`.
///
/// # Errors
/// `BadValue` for what contradicts the mode, `MaxStalenessOutOfRange` (160) for staleness that
/// cannot be measured, and those of a field's type.
pub fn parse_read_preference(document: &RawDocument) -> Result<ReadPreference> {
    let reader = FieldReader::object(Path::root("$readPreference"), document)?;
    let mode = reader.str("mode")?;
    let tags = parse_tags(&reader)?;
    let staleness_secs = reader.opt_i64("maxStalenessSeconds")?.unwrap_or(0);
    let hedge = reader.opt_doc("hedge")?;
    let mode = named_mode(mode)?;
    let is_primary = mode == ReadPreferenceMode::Primary;
    if is_primary && hedge.is_some_and(is_enabled) {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "cannot enable hedging for read preference mode \"primary\"",
        ));
    }
    if is_primary && !tags.is_empty() {
        return Err(Error::bad_value(
            "Only empty tags are allowed with primary read preference",
        ));
    }
    if staleness_secs < 0 {
        return Err(Error::bad_value(
            "maxStalenessSeconds must be a non-negative integer",
        ));
    }
    if staleness_secs > 0 && is_primary {
        return Err(Error::bad_value(
            "maxStalenessSeconds can not be set for the primary mode",
        ));
    }
    if (1..LEAST_STALENESS_SECS).contains(&staleness_secs) {
        return Err(Error::new(
            ErrorCode::MAX_STALENESS_OUT_OF_RANGE,
            format!("maxStalenessSeconds value can not be less than {LEAST_STALENESS_SECS}"),
        ));
    }
    // More than a hundred years is no limit.
    let staleness_secs = u32::try_from(staleness_secs).unwrap_or(u32::MAX);
    Ok(ReadPreference {
        mode,
        tags,
        max_staleness_secs: (staleness_secs > 0).then_some(staleness_secs),
    })
}

/// A hedge is enabled unless it says otherwise.
fn is_enabled(hedge: &RawDocument) -> bool {
    pinion_bson::get(hedge, "enabled").is_none_or(truthy)
}

/// The sets of tags; `[{}]` asks for nothing, as no sets do.
fn parse_tags(reader: &FieldReader<'_, '_>) -> Result<Vec<TagSet>> {
    let mut sets = Vec::new();
    let Some(tags) = reader.opt_objects("tags")? else {
        return Ok(sets);
    };
    for set in tags {
        let (_, set) = set?;
        if sets.len() == MAX_TAG_SETS {
            return Err(Error::bad_value(format!(
                "A read preference has at most {MAX_TAG_SETS} sets of tags"
            )));
        }
        sets.push(TagSet(set.to_owned()));
    }
    if let [only] = &sets[..]
        && only.0.is_empty()
    {
        sets.clear();
    }
    Ok(sets)
}

/// Staleness below this cannot be measured by a member.
const LEAST_STALENESS_SECS: i64 = 90;

fn named_mode(mode: &str) -> Result<ReadPreferenceMode> {
    ReadPreferenceMode::named(mode).ok_or_else(|| {
        Error::bad_value(format!(
            "Could not parse $readPreference mode '{mode}'. Only the modes 'primary', 'primaryPreferred', \
             'secondary', 'secondaryPreferred', and 'nearest' are supported. :: caused by :: Enumeration value \
             '{mode}' for field 'mode' is not a valid value."
        ))
    })
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawBson, rawdoc};

    use super::*;

    /// What a document says, as messages show it, or the code of the refusal.
    #[track_caller]
    fn check(document: RawDocumentBuf, expected: std::result::Result<&str, i32>) {
        let outcome = parse_read_preference(&document);
        let shown = outcome.as_ref().map(ToString::to_string);
        let shown = shown.as_ref().map(|shown| &**shown);
        let shown = shown.map_err(|error| error.code.0);
        assert_eq!(shown, expected, "{document:?}");
        if let Ok(preference) = outcome {
            let again = parse_read_preference(&preference.to_document());
            assert_eq!(again.expect("it was read before"), preference);
        }
    }

    #[test]
    fn read_preferences() {
        let nearest = Ok("{ mode: \"nearest\" }");
        check(rawdoc! { "mode": "nearest" }, nearest);
        check(
            rawdoc! { "mode": "nearest", "tags": [{ "dc": "x" }, {}], "maxStalenessSeconds": 90.5 },
            Ok("{ mode: \"nearest\", tags: [ { dc: \"x\" }, {} ], maxStalenessSeconds: 90 }"),
        );
        check(
            rawdoc! { "mode": "nearest", "tags": RawBson::Null, "hedge": RawBson::Null },
            nearest,
        );
        check(
            rawdoc! { "mode": "nearest", "hedge": { "enabled": true } },
            nearest,
        );
        check(rawdoc! { "mode": "nearest", "tags": [{}] }, nearest);
        check(rawdoc! { "mode": "nearest", "tags": [1] }, Err(14));
        check(rawdoc! { "mode": "nearest", "hedge": true }, Err(14));
        for (secs, code) in [
            (RawBson::Int32(89), 160),
            (RawBson::Int32(-1), 2),
            (RawBson::String("90".into()), 14),
        ] {
            let document = rawdoc! { "mode": "nearest", "maxStalenessSeconds": secs };
            check(document, Err(code));
        }
        let primary = Ok("{ mode: \"primary\" }");
        check(rawdoc! { "mode": "primary", "tags": [{}] }, primary);
        check(
            rawdoc! { "mode": "primary", "hedge": { "enabled": false } },
            primary,
        );
        check(rawdoc! { "mode": "primary", "hedge": {} }, Err(72));
        check(
            rawdoc! { "mode": "primary", "tags": [{ "dc": "x" }] },
            Err(2),
        );
        check(
            rawdoc! { "mode": "primary", "maxStalenessSeconds": 90 },
            Err(2),
        );
        check(rawdoc! { "mode": "Nearest" }, Err(2));
        check(rawdoc! {}, Err(40414));
    }

    #[test]
    fn tags_of_members() {
        let member = [("dc", "x"), ("rack", "1")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        for (tags, expected) in [
            (rawdoc! {}, true),
            (rawdoc! { "dc": "x" }, true),
            (rawdoc! { "rack": "1", "dc": "x" }, true),
            (rawdoc! { "rack": 1 }, false),
            (rawdoc! { "dc": "y" }, false),
            (rawdoc! { "dc": "x", "disk": "ssd" }, false),
        ] {
            assert_eq!(TagSet(tags.clone()).fits(&member), expected, "{tags:?}");
        }
    }
}
