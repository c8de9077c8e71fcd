//! The kinds of indexes, determined by their key patterns.

use pinion_bson::{RawBsonRef, RawDocument};

use crate::value::elements;

/// What an index makes its keys of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// The values of its fields.
    Btree,
    /// The hash of the values of one field, and the values of the others.
    Hashed,
    /// The paths and values of all fields.
    Wildcard,
    /// The terms of texts.
    Text,
    /// Cells of a plane.
    TwoD,
    /// Cells of a sphere.
    TwoDSphere,
}

impl IndexKind {
    /// The kind that a key pattern determines: a text in it names one, a field `$**` makes a
    /// wildcard index. `Err` with a name that no kind has.
    pub fn of_pattern(key: &RawDocument) -> Result<IndexKind, &str> {
        for (field, value) in elements(key) {
            match value {
                RawBsonRef::String("hashed") => return Ok(IndexKind::Hashed),
                RawBsonRef::String("text") => return Ok(IndexKind::Text),
                RawBsonRef::String("2d") => return Ok(IndexKind::TwoD),
                RawBsonRef::String("2dsphere") => return Ok(IndexKind::TwoDSphere),
                RawBsonRef::String(name) => return Err(name),
                _ if is_wildcard_field(field) => return Ok(IndexKind::Wildcard),
                _ => {}
            }
        }
        Ok(IndexKind::Btree)
    }

    /// The name as messages give it; none for an ordinary index.
    pub fn name(&self) -> &'static str {
        match self {
            IndexKind::Btree => "",
            IndexKind::Hashed => "hashed",
            IndexKind::Wildcard => "wildcard",
            IndexKind::Text => "text",
            IndexKind::TwoD => "2d",
            IndexKind::TwoDSphere => "2dsphere",
        }
    }
}

/// Whether a field of a key pattern stands for all fields, or for all below a path.
pub(crate) fn is_wildcard_field(field: &str) -> bool {
    field == "$**" || field.ends_with(".$**")
}
