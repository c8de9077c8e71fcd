//! The cluster's identifier: `config.version`.

use pinion_bson::{DocBuilder, ObjectId, RawDocument, RawDocumentBuf};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Path, missing_field};

use super::other_fields;

pub const VERSION: &str = "config.version";

/// `{_id: 1, clusterId}`.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionDocument {
    pub cluster: ObjectId,
    /// MongoDB 4.4 keeps two numbers of its version here.
    pub other: RawDocumentBuf,
}

const FIELDS: [&str; 2] = ["_id", "clusterId"];

impl VersionDocument {
    pub const ID: i32 = 1;

    pub fn new(cluster: ObjectId) -> VersionDocument {
        VersionDocument {
            cluster,
            other: RawDocumentBuf::new(),
        }
    }

    /// # Errors
    /// `clusterId` is missing or of a wrong type.
    pub fn parse(document: &RawDocument) -> Result<VersionDocument> {
        let reader = FieldReader::object(Path::root(VERSION), document)?;
        Ok(VersionDocument {
            cluster: reader
                .opt_object_id("clusterId")?
                .ok_or_else(|| missing_field(reader.path().field("clusterId")))?,
            other: other_fields(document, &FIELDS),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", Self::ID)
            .append("clusterId", self.cluster);
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
        let cluster = ObjectId::from_bytes([1; 12]);
        let full = rawdoc! { "_id": 1, "clusterId": cluster, "currentVersion": 6 };
        let found = check_kept(&full, VersionDocument::parse, VersionDocument::to_bson);
        assert_eq!(found.cluster, cluster);
        check_types(&full, &["clusterId"], VersionDocument::parse, VERSION);
        check_required(&full, &["clusterId"], VersionDocument::parse);
        let new = VersionDocument::new(cluster);
        assert_eq!(new.to_bson(), rawdoc! { "_id": 1, "clusterId": cluster });
    }
}
