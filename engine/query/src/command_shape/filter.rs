//! The shape of a filter.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::values::{append_kind, expression};
use crate::value::{elements, first, items};
use crate::work;

/// Appends the predicates of a filter.
pub(super) fn filter(out: &mut DocBuilder, filter: &RawDocument) -> Result<()> {
    for (name, value) in elements(filter) {
        work::spend_bytes(name.len() + 8)?;
        match (name, value) {
            ("$and" | "$or" | "$nor", RawBsonRef::Array(branches)) => {
                out.start_array(name);
                for (position, branch) in items(branches).enumerate() {
                    out.start_document(&position.to_string());
                    if let RawBsonRef::Document(branch) = branch {
                        self::filter(out, branch)?;
                    }
                    out.end();
                }
                out.end();
            }
            ("$expr", value) => expression(out, name, value)?,
            ("$text", RawBsonRef::Document(options)) => {
                out.start_document(name);
                for (option, value) in elements(options) {
                    append_kind(out, option, value)?;
                }
                out.end();
            }
            // A comment asks for nothing.
            ("$comment", _) => {}
            (name, value) if name.starts_with('$') => append_kind(out, name, value)?,
            (path, value) => of_path(out, path, value)?,
        }
    }
    Ok(())
}

/// Whether a document has operators, and is none to be compared with.
fn has_operators(document: &RawDocument) -> bool {
    let Some((name, _)) = first(document) else {
        return false;
    };
    name.starts_with('$') && !matches!(name, "$ref" | "$id" | "$db")
}

fn of_path(out: &mut DocBuilder, path: &str, value: RawBsonRef<'_>) -> Result<()> {
    out.start_document(path);
    match value {
        RawBsonRef::Document(document) if has_operators(document) => operators(out, document)?,
        RawBsonRef::RegularExpression(_) => {
            out.append("$regex", "?string");
        }
        value => append_kind(out, "$eq", value)?,
    }
    out.end();
    Ok(())
}

fn operators(out: &mut DocBuilder, written: &RawDocument) -> Result<()> {
    for (name, value) in elements(written) {
        match (name, value) {
            ("$not", RawBsonRef::Document(inner)) => {
                out.start_document(name);
                operators(out, inner)?;
                out.end();
            }
            ("$elemMatch", RawBsonRef::Document(inner)) => {
                let of_values = has_operators(inner)
                    && !matches!(first(inner), Some(("$and" | "$or" | "$nor" | "$expr", _)));
                out.start_document(name);
                match of_values {
                    true => operators(out, inner)?,
                    false => filter(out, inner)?,
                }
                out.end();
            }
            // These ask for something else with each value.
            ("$exists" | "$type", value) => {
                work::spend_bytes(crate::value::bytes(value))?;
                out.append(name, value);
            }
            (name, value) => append_kind(out, name, value)?,
        }
    }
    Ok(())
}
