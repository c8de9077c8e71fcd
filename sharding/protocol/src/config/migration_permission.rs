//! `_configsvrSetAllowMigrations`: whether chunks of a collection may move: `permitMigrations`.

use pinion_bson::{Binary, DocBuilder, RawBson, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use crate::documents::{ChunkDocument, CollectionDocument};
use crate::shard_id::ShardId;
use crate::values::{append_uuid, bson_time};
use crate::version::ChunkVersion;

const COMMAND: &str = "_configsvrSetAllowMigrations";

/// Chunks of a collection may move, or not.
#[derive(Clone, Debug, PartialEq)]
pub struct MigrationPermission {
    pub ns: Namespace,
    pub uuid: Uuid,
    pub allows: bool,
    /// The definition that sends it, its phase, and the shard that coordinates it: a message that
    /// is late comes when that has ended.
    pub reason: RawDocumentBuf,
    pub phase: String,
    pub from: ShardId,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum MigrationPermissionStep {
    /// It is so already.
    Done,
    /// These commands in one transaction.
    Write(Vec<RawDocumentBuf>),
}

impl MigrationPermission {
    pub fn to_command(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append(COMMAND, self.ns.as_str());
        append_uuid(&mut out, "collectionUUID", self.uuid);
        out.append("allowMigrations", self.allows)
            .append("reason", &*self.reason)
            .append("phase", self.phase.as_str())
            .append("from", self.from.as_str())
            .append("$db", "admin");
        out.finish()
    }

    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(ns: Namespace, command: &RawDocument) -> Result<MigrationPermission> {
        let reader = FieldReader::object(Path::root(COMMAND), command)?;
        let uuid = reader.opt_uuid("collectionUUID")?.map(Uuid::from_bytes);
        Ok(MigrationPermission {
            ns,
            uuid: uuid.ok_or_else(|| missing_field(reader.path().field("collectionUUID")))?,
            allows: reader.bool("allowMigrations")?,
            reason: reader.doc("reason")?.to_owned(),
            phase: reader.str("phase")?.to_owned(),
            from: ShardId::new(reader.str("from")?),
        })
    }

    pub fn fields() -> &'static [&'static str] {
        &[
            "collectionUUID",
            "allowMigrations",
            "reason",
            "phase",
            "from",
        ]
    }

    /// Decides, given the document that has this name, if there is one, and the chunk with the
    /// collection's version.
    ///
    /// # Errors
    /// `ConflictingOperationInProgress` where the collection is another one by now.
    pub fn decide(
        &self,
        found: Option<&CollectionDocument>,
        newest: Option<&ChunkDocument>,
    ) -> Result<MigrationPermissionStep> {
        let found = found.filter(|found| !found.is_dropped && found.uuid == Some(self.uuid));
        let (Some(found), Some(newest)) = (found, newest) else {
            return Err(Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("the sharded collection {} is not there any more", self.ns),
            ));
        };
        if found.permits_migrations == self.allows {
            return Ok(MigrationPermissionStep::Done);
        }
        let change = match self.allows {
            true => rawdoc! { "$unset": { "permitMigrations": true } },
            false => rawdoc! { "$set": { "permitMigrations": false } },
        };
        let uuid = || RawBson::Binary(Binary::from(self.uuid));
        // Shards that have the former table learn the next one, and routers need not.
        let version = ChunkVersion::from_placement(found.of, newest.placement).merged();
        Ok(MigrationPermissionStep::Write(vec![
            rawdoc! {
                "update": "collections", "$db": "config",
                "updates": [{ "q": { "_id": self.ns.as_str(), "uuid": uuid() }, "u": change }],
            },
            rawdoc! {
                "update": "chunks", "$db": "config",
                "updates": [{
                    "q": { "uuid": uuid(), "min": newest.min.clone() },
                    "u": { "$set": { "lastmod": bson_time(version.placement()) } },
                }],
            },
        ]))
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::ObjectId;
    use pinion_clock::Timestamp;

    use super::*;
    use crate::documents::ChunkOf;
    use crate::version::Incarnation;

    fn permission(allows: bool) -> MigrationPermission {
        MigrationPermission {
            ns: Namespace::new("d", "c").expect("a name"),
            uuid: Uuid::from_bytes([7; 16]),
            allows,
            reason: rawdoc! { "namespace": "d.c" },
            phase: "x".to_owned(),
            from: "s0".into(),
        }
    }

    fn document(uuid: u8, permits: bool) -> CollectionDocument {
        let of = Incarnation {
            epoch: ObjectId::from_bytes([1; 12]),
            timestamp: Timestamp::new(5, 1),
        };
        let uuid = Uuid::from_bytes([uuid; 16]);
        let key = rawdoc! { "a": 1 };
        let mut found = CollectionDocument::new(permission(true).ns, of, 5, uuid, key);
        found.permits_migrations = permits;
        found
    }

    fn newest() -> ChunkDocument {
        ChunkDocument {
            id: RawBson::Int32(1),
            of: ChunkOf::Uuid(Uuid::from_bytes([7; 16])),
            min: rawdoc! { "a": 5 },
            max: rawdoc! { "a": 9 },
            shard: "s1".into(),
            placement: Timestamp::new(3, 4),
            on_current_shard_since: None,
            history: Vec::new(),
            is_jumbo: false,
            other: RawDocumentBuf::new(),
        }
    }

    #[test]
    fn forms() {
        let permission = permission(false);
        let command = permission.to_command();
        let read = MigrationPermission::parse(permission.ns.clone(), &command);
        assert_eq!(read.ok(), Some(permission));
    }

    #[test]
    fn decisions() {
        let decide = |allows, found: Option<CollectionDocument>| {
            let decided = permission(allows).decide(found.as_ref(), Some(&newest()));
            decided.map_err(|error| error.code.0)
        };
        let done = Ok(MigrationPermissionStep::Done);
        assert_eq!(decide(true, Some(document(7, true))), done);
        assert_eq!(decide(false, Some(document(7, false))), done);
        assert_eq!(decide(true, Some(document(8, false))), Err(117));
        assert_eq!(decide(true, None), Err(117));
        for (allows, expected) in [
            (true, rawdoc! { "$unset": { "permitMigrations": true } }),
            (false, rawdoc! { "$set": { "permitMigrations": false } }),
        ] {
            let decided = decide(allows, Some(document(7, !allows)));
            let Ok(MigrationPermissionStep::Write(commands)) = decided else {
                panic!("it is written");
            };
            let change = |command: &RawDocument| {
                let updates = pinion_bson::get(command, "updates").expect("statements");
                let updates = updates.as_array().expect("a list");
                let first = pinion_bson::values(updates).next().expect("one");
                pinion_bson::get(first.as_document().expect("a document"), "u").map(RawBson::from)
            };
            let raised = bson_time(Timestamp::new(3, 5));
            let raised = rawdoc! { "$set": { "lastmod": raised } };
            let found: Vec<Option<RawBson>> = commands.iter().map(|one| change(one)).collect();
            assert_eq!(
                found,
                [
                    Some(RawBson::Document(expected)),
                    Some(RawBson::Document(raised))
                ]
            );
        }
    }
}
