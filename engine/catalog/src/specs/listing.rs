//! An index's specification as `listIndexes` shows it. The catalog stores option values as they
//! were given; the reply has one order of fields, and one type for each option.
//!
//! Source: execution document, "Examples of differences between listIndexes and $listCatalog
//! results".

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::idl::{f64_lossy, truthy};

use super::part;

/// The type that an option has in the reply, whatever number or boolean it was given as.
#[derive(Clone, Copy)]
enum Shown {
    AsStored,
    Bool,
    Int,
    Double,
}

/// The fields of the reply in their order. What is not among them follows.
const FIELDS: [(&str, Shown); 23] = [
    ("v", Shown::Int),
    ("key", Shown::AsStored),
    ("name", Shown::AsStored),
    ("background", Shown::Bool),
    ("unique", Shown::Bool),
    ("hidden", Shown::Bool),
    ("partialFilterExpression", Shown::AsStored),
    ("sparse", Shown::Bool),
    ("expireAfterSeconds", Shown::Int),
    ("storageEngine", Shown::AsStored),
    ("weights", Shown::AsStored),
    ("default_language", Shown::AsStored),
    ("language_override", Shown::AsStored),
    ("textIndexVersion", Shown::Int),
    ("2dsphereIndexVersion", Shown::Int),
    ("bits", Shown::Int),
    ("min", Shown::Double),
    ("max", Shown::Double),
    ("bucketSize", Shown::Double),
    ("coarsestIndexedLevel", Shown::Int),
    ("finestIndexedLevel", Shown::Int),
    ("collation", Shown::AsStored),
    ("wildcardProjection", Shown::AsStored),
];

/// A stored specification as `listIndexes` shows it.
pub fn listing_of(stored: &RawDocument) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for (field, shown) in FIELDS {
        if let Some(value) = part(stored, field) {
            append(&mut out, field, value, shown);
        }
    }
    for (field, value) in pinion_bson::elements(stored) {
        if FIELDS.iter().all(|(known, _)| *known != field) {
            out.append_raw(field, value);
        }
    }
    out.finish()
}

fn append(out: &mut DocBuilder, field: &str, value: RawBsonRef<'_>, shown: Shown) {
    match shown {
        Shown::Bool => out.append(field, truthy(value)),
        Shown::Int => match f64_lossy(value) {
            // Every value of these options is within an i32; the fraction is cut off.
            Some(number) => out.append(field, number as i32),
            None => out.append_raw(field, value),
        },
        Shown::Double => match f64_lossy(value) {
            Some(number) => out.append(field, number),
            None => out.append_raw(field, value),
        },
        Shown::AsStored => out.append_raw(field, value),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    #[track_caller]
    fn check(stored: RawDocumentBuf, expected: RawDocumentBuf) {
        assert_eq!(listing_of(&stored), expected);
    }

    #[test]
    fn options_have_one_type_and_one_order() {
        check(
            rawdoc! { "v": 2, "unique": true, "key": { "a": 1.0 }, "name": "i", "sparse": 12345, "background": 0.0 },
            rawdoc! { "v": 2, "key": { "a": 1.0 }, "name": "i", "background": false, "unique": true, "sparse": true },
        );
        check(
            rawdoc! { "v": 2, "key": { "a": 1 }, "name": "i", "sparse": false, "expireAfterSeconds": 10.23 },
            rawdoc! { "v": 2, "key": { "a": 1 }, "name": "i", "sparse": false, "expireAfterSeconds": 10 },
        );
        check(
            rawdoc! { "v": 2, "key": { "p": "2d" }, "name": "i", "max": 5i64, "min": -5, "bits": 16.578 },
            rawdoc! { "v": 2, "key": { "p": "2d" }, "name": "i", "bits": 16, "min": -5.0, "max": 5.0 },
        );
        check(
            rawdoc! { "v": 2, "key": { "a": 1 }, "name": "i", "prepareUnique": true, "collation": { "locale": "en" } },
            rawdoc! { "v": 2, "key": { "a": 1 }, "name": "i", "collation": { "locale": "en" }, "prepareUnique": true },
        );
    }
}
