//! The statements of `delete`.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_query::Hint;
use pinion_wire::idl::{FieldReader, Path, Types, f64_lossy, missing_field};
use pinion_wire::{Error, Result};

use super::collation::CollationOption;
use super::hint::hint;

/// One element of `deletes`, syntax alone.
pub struct DeleteSpec<'d> {
    pub q: &'d RawDocument,
    pub multi: bool,
    pub hint: Option<Hint>,
    pub collation: CollationOption,
}

/// Reads one element of `deletes`; `of_mongos` as in [`hint`].
///
/// # Errors
/// A field that is not known, of a wrong type, or refused.
pub fn parse_delete<'d>(
    path: Path<'_>,
    document: &'d RawDocument,
    of_mongos: bool,
) -> Result<DeleteSpec<'d>> {
    let reader = FieldReader::object(path, document)?;
    reader.only(&["q", "limit", "hint", "collation", "sampleId"])?;
    let q = reader.doc("q")?;
    let limit = match reader.value("limit") {
        Some(limit) => limit,
        None => return Err(missing_field(reader.path().field("limit"))),
    };
    let hint = hint(&reader, of_mongos)?;
    let collation = CollationOption::read(&reader)?;
    reader.unsupported("sampleId", Types::BIN_DATA)?;
    Ok(DeleteSpec {
        q,
        multi: deletes_all(limit)?,
        hint,
        collation,
    })
}

/// What `limit` asks for: 0 is every document, 1 a single one, and a fraction neither. A value that
/// is no number counts as 0, which is part of MongoDB's stable API.
fn deletes_all(limit: RawBsonRef<'_>) -> Result<bool> {
    match f64_lossy(limit).unwrap_or(0.0) {
        0.0 => Ok(true),
        1.0 => Ok(false),
        other => Err(Error::failed_to_parse(format!(
            "The limit field in delete objects must be 0 or 1. Got {other}"
        ))),
    }
}
