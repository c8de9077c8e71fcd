//! What a text index makes its terms of: fields with weights, languages, and the fields in front
//! and behind.

use std::collections::BTreeMap;

use pinion_bson::{RawBsonRef, RawDocument};

use super::language::{Language, TextVersion};
use crate::number::truncated_i64;
use crate::path::Path;
use crate::value::{elements, field};

/// The field whose name stands for all fields.
const ALL_FIELDS: &str = "$**";

/// The fields of a text index, read from its stored form.
#[derive(Clone, Debug)]
pub(crate) struct TextFields {
    /// The dotted paths of texts with their weights.
    pub weights: BTreeMap<String, f64>,
    /// Texts of all fields are indexed.
    pub wildcard: bool,
    pub default_language: Language,
    /// The field that names the language of a document.
    pub language_field: String,
    pub version: TextVersion,
    /// The fields in front of the terms, which queries compare for equality, and those behind.
    pub before: Vec<Path>,
    pub after: Vec<Path>,
}

impl TextFields {
    /// Reads the stored form of a text index; `None` where it is none.
    pub(crate) fn parse(listed: &RawDocument) -> Option<TextFields> {
        let Some(RawBsonRef::Document(key)) = field(listed, "key") else {
            return None;
        };
        let names: Vec<&str> = elements(key).map(|(name, _)| name).collect();
        let terms = names.iter().position(|name| *name == "_fts")?;
        let paths = |names: &[&str]| names.iter().map(|name| Path::parse(name)).collect();
        let version = field(listed, "textIndexVersion").and_then(truncated_i64);
        let version = TextVersion::of(version.unwrap_or(3));
        let text = |name: &str, default| match field(listed, name) {
            Some(RawBsonRef::String(text)) => text.to_string(),
            _ => String::from(default),
        };
        let mut weights = BTreeMap::new();
        if let Some(RawBsonRef::Document(listed)) = field(listed, "weights") {
            for (name, weight) in elements(listed) {
                let weight = pinion_bson::Number::from_value(weight);
                weights.insert(name.to_string(), weight.map_or(1.0, |w| w.to_f64()));
            }
        }
        Some(TextFields {
            wildcard: weights.remove(ALL_FIELDS).is_some(),
            weights,
            default_language: Language::find(&text("default_language", "english"), version)?,
            language_field: text("language_override", "language"),
            version,
            before: paths(&names[..terms]),
            after: paths(names.get(terms + 2..).unwrap_or_default()),
        })
    }
}
