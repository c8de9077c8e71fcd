//! A range that belongs to a zone: `config.tags`.

use pinion_bson::{DocBuilder, RawBson, RawDocument, RawDocumentBuf};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Namespace, Path};

use super::{any_value, append_document, append_value, other_fields};

pub const TAGS: &str = "config.tags";

/// `{_id, ns, tag, min, max}`.
#[derive(Clone, Debug, PartialEq)]
pub struct TagDocument {
    /// An ObjectId, or `{ns, min}` in MongoDB's documents before 5.0.
    pub id: RawBson,
    pub ns: Namespace,
    pub zone: String,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
    pub other: RawDocumentBuf,
}

const FIELDS: [&str; 5] = ["_id", "ns", "tag", "min", "max"];

impl TagDocument {
    /// # Errors
    /// A field that is missing or of a wrong type, and `InvalidNamespace`.
    pub fn parse(document: &RawDocument) -> Result<TagDocument> {
        let reader = FieldReader::object(Path::root(TAGS), document)?;
        Ok(TagDocument {
            id: any_value(&reader, "_id")?,
            ns: Namespace::parse_sought(reader.str("ns")?)?,
            zone: reader.str("tag")?.to_owned(),
            min: reader.doc("min")?.to_owned(),
            max: reader.doc("max")?.to_owned(),
            other: other_fields(document, &FIELDS),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        append_value(&mut out, "_id", &self.id);
        out.append("ns", self.ns.as_str())
            .append("tag", self.zone.as_str());
        append_document(&mut out, "min", &self.min);
        append_document(&mut out, "max", &self.max);
        out.append_all(&self.other);
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::super::testing::{check_kept, check_required, check_types};
    use super::*;

    #[test]
    fn forms() {
        let full = rawdoc! {
            "_id": { "ns": "d.c", "min": { "a": 1 } }, "ns": "d.c", "tag": "eu",
            "min": { "a": 1 }, "max": { "a": 9 }, "x": true,
        };
        let found = check_kept(&full, TagDocument::parse, TagDocument::to_bson);
        assert_eq!(found.zone, "eu");
        check_types(
            &full,
            &["ns", "tag", "min", "max"],
            TagDocument::parse,
            TAGS,
        );
        check_required(&full, &FIELDS, TagDocument::parse);
    }
}
