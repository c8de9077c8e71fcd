//! `_shardsvrRenameCollectionParticipant`: a shard renames what it has of a collection.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};

use super::documents::DdlId;
use crate::shard_id::ShardId;
use crate::values::append_uuid;

/// What a rename asks of each shard. The gates of both names are closed there.
#[derive(Clone, Debug, PartialEq)]
pub struct RenamePart {
    pub from: Namespace,
    pub to: Namespace,
    /// The collection that gets the name; a shard may have nothing of it. Whatever else has the
    /// name goes.
    pub uuid: Uuid,
    /// The definition, and its phase.
    pub reason: DdlId,
    pub phase: String,
}

impl RenamePart {
    /// The command, as the coordinator on the shard `sender` sends it.
    pub fn to_command(&self, sender: &ShardId) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        let name = "_shardsvrRenameCollectionParticipant";
        out.append(name, self.from.collection());
        out.append("to", self.to.as_str());
        append_uuid(&mut out, "sourceUUID", self.uuid);
        out.append("reason", &*self.reason.to_bson());
        out.append("phase", self.phase.as_str());
        out.append("from", sender.as_str());
        out.append("$db", self.from.db());
        out.finish()
    }

    /// The command's fields, and the shard that sends it.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(from: Namespace, command: &RawDocument) -> Result<(RenamePart, ShardId)> {
        let root = Path::root("_shardsvrRenameCollectionParticipant");
        let reader = FieldReader::object(root, command)?;
        let uuid = reader.opt_uuid("sourceUUID")?;
        let uuid = uuid.ok_or_else(|| missing_field(reader.path().field("sourceUUID")))?;
        let reason = DdlId::parse(reader.path().field("reason"), reader.doc("reason")?)?;
        let part = RenamePart {
            from,
            to: Namespace::parse_sought(reader.str("to")?)?,
            uuid: Uuid::from_bytes(uuid),
            reason,
            phase: reader.str("phase")?.to_owned(),
        };
        Ok((part, ShardId::new(reader.str("from")?)))
    }

    pub fn fields() -> &'static [&'static str] {
        &["to", "sourceUUID", "reason", "phase", "from"]
    }
}

#[cfg(test)]
mod tests {
    use super::super::documents::OperationKind;
    use super::*;

    #[test]
    fn form() {
        let part = RenamePart {
            from: Namespace::parse("d.c").expect("a namespace"),
            to: Namespace::parse("d.e").expect("a namespace"),
            uuid: Uuid::from_bytes([3; 16]),
            reason: DdlId {
                namespace: "d.c".to_owned(),
                kind: OperationKind::RenameCollection,
            },
            phase: "renameOnParticipants".to_owned(),
        };
        let sender = ShardId::new("s0");
        let read = RenamePart::parse(part.from.clone(), &part.to_command(&sender));
        assert_eq!(read.ok(), Some((part, sender)));
    }
}
