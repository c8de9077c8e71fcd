//! `_shardsvrParticipantBlock`: a shard keeps requests out of a collection that another one
//! defines.
//!
//! A message may be late: it may come when its definition is in a later phase, or has ended. So it
//! names the phase that sends it, and a shard asks the coordinator whether it still is in that
//! phase before it closes or opens a gate.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};

use super::documents::DdlId;
use crate::shard_id::ShardId;

/// What a shard keeps out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockType {
    Writes,
    ReadsAndWrites,
    /// Nothing any more.
    Unblock,
}

impl BlockType {
    const NAMES: [(&'static str, BlockType); 3] = [
        ("Writes", BlockType::Writes),
        ("ReadsAndWrites", BlockType::ReadsAndWrites),
        ("Unblock", BlockType::Unblock),
    ];

    fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, block)| *block == self);
        found.map_or("", |(name, _)| name)
    }
}

/// What a definition asks of a shard that takes part in it.
#[derive(Clone, Debug, PartialEq)]
pub struct ParticipantBlock {
    pub ns: Namespace,
    /// A collection that is opened and closed together with this one, which gets its name.
    pub to: Option<Namespace>,
    pub block: BlockType,
    /// The definition, and its phase.
    pub reason: DdlId,
    pub phase: String,
}

impl ParticipantBlock {
    /// The command, as the coordinator on the shard `from` sends it.
    pub fn to_command(&self, from: &ShardId) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_shardsvrParticipantBlock", self.ns.collection());
        if let Some(to) = &self.to {
            out.append("to", to.as_str());
        }
        out.append("blockType", self.block.name());
        out.append("reason", &*self.reason.to_bson());
        out.append("phase", self.phase.as_str());
        out.append("from", from.as_str());
        out.append("$db", self.ns.db());
        out.finish()
    }

    /// The command's fields, and the shard that sends it.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(ns: Namespace, command: &RawDocument) -> Result<(ParticipantBlock, ShardId)> {
        let reader = FieldReader::object(Path::root("_shardsvrParticipantBlock"), command)?;
        let block = reader.opt_one_of("blockType", &BlockType::NAMES)?;
        let block = block.ok_or_else(|| missing_field(reader.path().field("blockType")))?;
        let reason = DdlId::parse(reader.path().field("reason"), reader.doc("reason")?)?;
        let asked = ParticipantBlock {
            ns,
            to: match reader.opt_str("to")? {
                Some(to) => Some(Namespace::parse_sought(to)?),
                None => None,
            },
            block,
            reason,
            phase: reader.str("phase")?.to_owned(),
        };
        Ok((asked, ShardId::new(reader.str("from")?)))
    }

    pub fn fields() -> &'static [&'static str] {
        &["to", "blockType", "reason", "phase", "from"]
    }
}

#[cfg(test)]
mod tests {
    use super::super::documents::OperationKind;
    use super::*;

    #[test]
    fn form() {
        let asked = ParticipantBlock {
            ns: Namespace::parse("d.c").expect("a namespace"),
            to: Some(Namespace::parse("d.e").expect("a namespace")),
            block: BlockType::Writes,
            reason: DdlId {
                namespace: "d.c".to_owned(),
                kind: OperationKind::DropCollection,
            },
            phase: "block".to_owned(),
        };
        let from = ShardId::new("s0");
        let command = asked.to_command(&from);
        let read = ParticipantBlock::parse(asked.ns.clone(), &command);
        assert_eq!(read.ok(), Some((asked, from)));
    }
}
