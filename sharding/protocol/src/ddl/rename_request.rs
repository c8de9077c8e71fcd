//! What `_shardsvrRenameCollection` asks for.

use pinion_bson::{BinarySubtype, DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Uuid};
use pinion_wire::idl::{FieldReader, Namespace, Path, Types};
use pinion_wire::{Error, ErrorCode, Result};

use crate::values::append_uuid;

/// A collection that is to get another name.
#[derive(Clone, Debug, PartialEq)]
pub struct RenameRequest {
    pub to: Namespace,
    /// Whether a collection that has the name goes.
    pub drops_target: bool,
    /// Only this one goes, and there has to be one.
    pub target_uuid: Option<Uuid>,
    /// `collectionUUID`: another collection is not renamed.
    pub expected_uuid: Option<Uuid>,
    /// Which collection the sender means. Where this one has the new name already, the same request
    /// has been carried out before.
    pub known_uuid: Option<Uuid>,
    pub stays_temporary: bool,
}

const FIELDS: [&str; 5] = [
    "to",
    "dropTarget",
    "collectionUUID",
    "knownUUID",
    "stayTemp",
];

impl RenameRequest {
    /// The fields of a command that make its request.
    pub fn fields() -> &'static [&'static str] {
        &FIELDS
    }

    /// Reads what is kept of a request, or a command between nodes that has its fields.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type; `InvalidNamespace`.
    pub fn parse(request: &RawDocument) -> Result<RenameRequest> {
        let reader = FieldReader::object(Path::root("_shardsvrRenameCollection"), request)?;
        let known_uuid = reader.opt_uuid("knownUUID")?.map(Uuid::from_bytes);
        Ok(RenameRequest {
            known_uuid,
            ..RenameRequest::read(&reader)?
        })
    }

    /// Reads what a client asks for.
    ///
    /// # Errors
    /// Those of [`RenameRequest::parse`].
    pub fn read(reader: &FieldReader<'_, '_>) -> Result<RenameRequest> {
        let uuid = |name| {
            let uuid = reader.opt_uuid(name);
            uuid.map(|uuid| uuid.map(Uuid::from_bytes))
        };
        let (drops_target, target_uuid) = match reader.value("dropTarget") {
            None => (false, None),
            Some(RawBsonRef::Boolean(drops)) => (drops, None),
            Some(RawBsonRef::Binary(binary)) => {
                let is_uuid = binary.subtype == BinarySubtype::Uuid;
                let bytes = <[u8; 16]>::try_from(binary.bytes);
                let bytes = bytes.ok().filter(|_| is_uuid).ok_or_else(|| {
                    Error::new(
                        ErrorCode::INVALID_UUID,
                        "uuid must be a 16-byte binary field with UUID (4) subtype",
                    )
                })?;
                (true, Some(Uuid::from_bytes(bytes)))
            }
            Some(other) => {
                let types = Types::Many(&["bool", "binData"]);
                return Err(reader.wrong_type("dropTarget", other, types));
            }
        };
        Ok(RenameRequest {
            to: Namespace::parse(reader.str("to")?)?,
            drops_target,
            target_uuid,
            expected_uuid: uuid("collectionUUID")?,
            known_uuid: None,
            stays_temporary: reader.opt_bool("stayTemp")?.unwrap_or(false),
        })
    }

    /// Appends the fields to a command, or to what is kept of it.
    pub fn append_to(&self, out: &mut DocBuilder) {
        out.append("to", self.to.as_str());
        match self.target_uuid {
            Some(uuid) => append_uuid(out, "dropTarget", uuid),
            None => drop(out.append("dropTarget", self.drops_target)),
        }
        if let Some(uuid) = self.expected_uuid {
            append_uuid(out, "collectionUUID", uuid);
        }
        if let Some(uuid) = self.known_uuid {
            append_uuid(out, "knownUUID", uuid);
        }
        if self.stays_temporary {
            out.append("stayTemp", true);
        }
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        self.append_to(&mut out);
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn forms() {
        let uuid = |byte| Some(Uuid::from_bytes([byte; 16]));
        let plain = RenameRequest {
            to: Namespace::parse("d.e").expect("a namespace"),
            drops_target: false,
            target_uuid: None,
            expected_uuid: None,
            known_uuid: None,
            stays_temporary: false,
        };
        let all = RenameRequest {
            drops_target: true,
            target_uuid: uuid(1),
            expected_uuid: uuid(2),
            known_uuid: uuid(3),
            stays_temporary: true,
            ..plain.clone()
        };
        for request in [plain, all] {
            let read = RenameRequest::parse(&request.to_bson());
            assert_eq!(read.ok(), Some(request));
        }
        assert!(RenameRequest::parse(&rawdoc! { "to": "d" }).is_err());
        let number = rawdoc! { "to": "d.e", "dropTarget": 1 };
        let refused = RenameRequest::parse(&number).expect_err("a number");
        assert_eq!(refused.code.0, 14);
    }
}
