//! The stored form of text indexes: `{_fts: "text", _ftsx: 1}` among the other fields, a weight for
//! each field, the default language, the field that names a document's own, and the version.

use std::collections::BTreeMap;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_query::is_text_language;
use pinion_wire::Result;
use pinion_wire::idl::f64_lossy;

use super::{cannot_create, key_of, part};
use crate::text::render_value;

/// The version that a new text index gets.
const LATEST_VERSION: i32 = 3;

/// Weights are below this.
const WEIGHTS_BELOW: f64 = 1e5;

/// Checks the options of a text index and brings them into the stored form.
pub(super) fn normal_form(listed: &RawDocument) -> Result<RawDocumentBuf> {
    let key = key_of(listed);
    let mut weights = BTreeMap::new();
    let pattern = stored_pattern(key, &mut weights)?;
    check_order(key)?;
    add_weights(part(listed, "weights"), &mut weights)?;
    if weights.is_empty() {
        return Err(cannot_create(
            "text index option 'weights' must specify fields or the wildcard",
        ));
    }
    let mut stored_weights = DocBuilder::new();
    for (field, weight) in &weights {
        check_weight(field, *weight)?;
        stored_weights.append(field, *weight as i32);
    }
    let stored_weights = stored_weights.finish();
    let language = text_of(listed, "default_language", "english")?;
    let version = version_of(listed)?;
    if !is_text_language(&language, version) {
        return Err(cannot_create("default_language is not valid"));
    }
    let language_field = text_of(listed, "language_override", "language")?;
    if language_field.is_empty() || language_field.starts_with('$') || language_field.contains('.')
    {
        return Err(cannot_create("language_override is not valid"));
    }
    let stored = rawdoc! {
        "weights": stored_weights,
        "default_language": language,
        "language_override": language_field,
        "textIndexVersion": version,
    };
    let mut out = DocBuilder::new();
    for (field, value) in pinion_bson::elements(listed) {
        match part(&stored, field) {
            _ if field == "key" => out.append("key", &*pattern),
            normal => out.append_raw(field, normal.unwrap_or(value)),
        };
    }
    // What was not given stands behind what was.
    for (field, value) in pinion_bson::elements(&stored) {
        if part(listed, field).is_none() {
            out.append_raw(field, value);
        }
    }
    Ok(out.finish())
}

/// Fields of texts stand side by side; the names that the stored form uses are not for others.
fn check_order(key: &RawDocument) -> Result<()> {
    let is_text = |value: &RawBsonRef<'_>| matches!(value, RawBsonRef::String(_));
    let mut fields = pinion_bson::elements(key).peekable();
    while let Some((field, _)) = fields.next_if(|(_, value)| !is_text(value)) {
        check_reserved(field)?;
    }
    if fields.next_if(|(field, _)| *field == "_fts").is_some() {
        if fields.next_if(|(field, _)| *field == "_ftsx").is_none() {
            return Err(cannot_create("expected _ftsx after _fts"));
        }
    } else {
        while let Some((field, _)) = fields.next_if(|(_, value)| is_text(value)) {
            check_reserved(field)?;
        }
    }
    for (field, value) in fields {
        if is_text(&value) {
            return Err(cannot_create("'text' fields in index must all be adjacent"));
        }
        check_reserved(field)?;
    }
    Ok(())
}

fn check_reserved(field: &str) -> Result<()> {
    match field {
        "_fts" | "_ftsx" => Err(cannot_create(
            "text index with reserved fields _fts/_ftsx not allowed",
        )),
        _ => Ok(()),
    }
}

/// The pattern with the fields of texts replaced, which get a weight of one.
fn stored_pattern(
    key: &RawDocument,
    weights: &mut BTreeMap<String, f64>,
) -> Result<RawDocumentBuf> {
    let mut pattern = DocBuilder::new();
    let mut has_terms = false;
    for (field, value) in pinion_bson::elements(key) {
        match value {
            RawBsonRef::String(_) => {
                if !has_terms {
                    pattern.append("_fts", "text").append("_ftsx", 1i32);
                    has_terms = true;
                }
                if field != "_fts" {
                    weights.insert(field.to_owned(), 1.0);
                }
            }
            _ if field == "_ftsx" => {
                if f64_lossy(value) != Some(1.0) {
                    return Err(cannot_create("expecting _ftsx:1"));
                }
            }
            value => {
                if !matches!(f64_lossy(value).map(f64::trunc), Some(1.0 | -1.0)) {
                    return Err(cannot_create(
                        "expected value 1 or -1 for non-text key in compound index",
                    ));
                }
                pattern.append_raw(field, value);
            }
        }
    }
    Ok(pattern.finish())
}

fn add_weights(given: Option<RawBsonRef<'_>>, weights: &mut BTreeMap<String, f64>) -> Result<()> {
    match given {
        None => {}
        Some(RawBsonRef::Document(given)) => {
            for (field, weight) in pinion_bson::elements(given) {
                let Some(weight) = f64_lossy(weight) else {
                    return Err(cannot_create("weight for text index needs numeric type"));
                };
                weights.insert(field.to_owned(), weight.trunc());
            }
        }
        Some(RawBsonRef::String("$**")) => {
            weights.insert("$**".to_owned(), 1.0);
        }
        Some(_) => {
            return Err(cannot_create(
                "text index option 'weights' must be an object",
            ));
        }
    }
    Ok(())
}

fn check_weight(field: &str, weight: f64) -> Result<()> {
    if !(weight > 0.0 && weight < WEIGHTS_BELOW) {
        return Err(cannot_create(format!(
            "text index weight must be in the exclusive interval (0,100000) but found: {weight}"
        )));
    }
    if field == "$**" {
        return Ok(());
    }
    if field.is_empty() {
        return Err(cannot_create("weight cannot be on an empty field"));
    }
    for part in field.split('.') {
        if part.is_empty() {
            return Err(cannot_create("weight cannot have empty path component"));
        }
        if part.starts_with('$') {
            return Err(cannot_create(
                "weight cannot have path component with $ prefix",
            ));
        }
    }
    Ok(())
}

fn text_of(listed: &RawDocument, field: &str, default: &str) -> Result<String> {
    match part(listed, field) {
        None => Ok(default.to_owned()),
        Some(RawBsonRef::String(text)) => Ok(text.to_owned()),
        Some(_) => Err(cannot_create(format!("{field} needs a string type"))),
    }
}

fn version_of(listed: &RawDocument) -> Result<i32> {
    let Some(version) = part(listed, "textIndexVersion") else {
        return Ok(LATEST_VERSION);
    };
    match f64_lossy(version).map(f64::trunc) {
        Some(1.0) => Ok(1),
        Some(2.0) => Ok(2),
        Some(3.0) => Ok(3),
        _ => Err(cannot_create(format!(
            "bad textIndexVersion: {}",
            render_value(version)
        ))),
    }
}
