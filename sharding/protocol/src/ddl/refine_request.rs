//! What `_shardsvrRefineCollectionShardKey` asks of the shard that coordinates, and of those that
//! own chunks: whether their indexes suit the finer key.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid};
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{CollectionFacts, LocalKind};
use super::key_index::{ProposedKey, check_refined};
use crate::key::ShardKeyPattern;
use crate::values::append_uuid;

const COMMAND: &str = "_shardsvrRefineCollectionShardKey";
const IS_CHECK: &str = "checksIndexes";
const FIELDS: [&str; 5] = [
    "key",
    "enforceUniquenessCheck",
    "collectionUUID",
    "unique",
    IS_CHECK,
];

/// A finer key for a collection.
#[derive(Clone, Debug, PartialEq)]
pub struct RefineRequest {
    pub key: ShardKeyPattern,
    pub enforces_uniqueness: bool,
    /// Another collection of that name is left as it is.
    pub uuid: Option<Uuid>,
}

impl RefineRequest {
    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("key", &*self.key.to_bson());
        out.append("enforceUniquenessCheck", self.enforces_uniqueness);
        if let Some(uuid) = self.uuid {
            append_uuid(&mut out, "collectionUUID", uuid);
        }
        out.finish()
    }

    /// # Errors
    /// A field that is missing or of a wrong type; `BadValue` for what is no shard key.
    pub fn parse(request: &RawDocument) -> Result<RefineRequest> {
        let reader = FieldReader::object(Path::root(COMMAND), request)?;
        let enforces_uniqueness = reader.opt_safe_bool("enforceUniquenessCheck")?;
        Ok(RefineRequest {
            key: ShardKeyPattern::parse(reader.doc("key")?)?,
            enforces_uniqueness: enforces_uniqueness.unwrap_or(true),
            uuid: reader.opt_uuid("collectionUUID")?.map(Uuid::from_bytes),
        })
    }

    /// The names of all fields, also of those that an [`IndexCheck`] has.
    pub fn fields() -> &'static [&'static str] {
        &FIELDS
    }
}

/// Asks a shard whether its part of a collection has an index for a finer key, while writes are
/// kept out: arrays are found on the shard that has them alone.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexCheck {
    pub uuid: Uuid,
    pub key: ShardKeyPattern,
    pub is_unique: bool,
    pub enforces_uniqueness: bool,
}

impl IndexCheck {
    /// Whether a command is such a check, and not sent to a coordinator.
    pub fn is_asked_by(command: &RawDocument) -> bool {
        pinion_bson::get(command, IS_CHECK).is_some()
    }

    pub(super) fn to_command(&self, ns: &Namespace) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append(COMMAND, ns.collection())
            .append("key", &*self.key.to_bson())
            .append("unique", self.is_unique)
            .append("enforceUniquenessCheck", self.enforces_uniqueness)
            .append(IS_CHECK, true);
        append_uuid(&mut out, "collectionUUID", self.uuid);
        out.append("$db", ns.db());
        out.finish()
    }

    /// # Errors
    /// A field that is missing or of a wrong type; `BadValue` for what is no shard key.
    pub fn parse(command: &RawDocument) -> Result<IndexCheck> {
        let reader = FieldReader::object(Path::root(COMMAND), command)?;
        let request = RefineRequest::parse(command)?;
        let missing = || missing_field(reader.path().field("collectionUUID"));
        Ok(IndexCheck {
            uuid: request.uuid.ok_or_else(missing)?,
            key: request.key,
            is_unique: reader.bool("unique")?,
            enforces_uniqueness: request.enforces_uniqueness,
        })
    }
}

/// Checks the indexes of a shard's part of a collection.
///
/// # Errors
/// `NamespaceNotFound` where the shard has another collection or none; `InvalidOptions`.
pub fn check_indexes(ns: &Namespace, check: &IndexCheck, local: &CollectionFacts) -> Result<()> {
    if local.kind != LocalKind::Collection || local.uuid != Some(check.uuid) {
        return Err(Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("{ns} is not the collection whose shard key is refined"),
        ));
    }
    let proposed = ProposedKey {
        key: &check.key,
        is_unique: check.is_unique,
        enforces_uniqueness: check.enforces_uniqueness,
    };
    check_refined(ns, proposed, local)
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn forms() {
        let ns = Namespace::parse("d.c").expect("a namespace");
        let request = rawdoc! { "key": { "a": 1, "b.c": 1 } };
        let request = RefineRequest::parse(&request).expect("a request");
        assert!(request.enforces_uniqueness && request.uuid.is_none());
        let read = RefineRequest::parse(&request.to_bson());
        assert_eq!(read.ok().as_ref(), Some(&request));
        assert!(!IndexCheck::is_asked_by(&request.to_bson()));
        let check = IndexCheck {
            uuid: Uuid::from_bytes([7; 16]),
            key: request.key,
            is_unique: true,
            enforces_uniqueness: false,
        };
        let command = check.to_command(&ns);
        assert!(IndexCheck::is_asked_by(&command));
        assert_eq!(IndexCheck::parse(&command).ok(), Some(check));
        for bad in [
            rawdoc! {},
            rawdoc! { "key": {} },
            rawdoc! { "key": { "a": -1 } },
        ] {
            assert!(RefineRequest::parse(&bad).is_err());
        }
    }

    #[test]
    fn parts_of_shards() {
        let ns = Namespace::parse("d.c").expect("a namespace");
        let check = IndexCheck {
            uuid: Uuid::from_bytes([7; 16]),
            key: ShardKeyPattern::parse(&rawdoc! { "a": 1 }).expect("a key"),
            is_unique: false,
            enforces_uniqueness: true,
        };
        let code = |local: &CollectionFacts| {
            let checked = check_indexes(&ns, &check, local);
            checked.map_or_else(|error| error.code.0, |()| 0)
        };
        let mut local = CollectionFacts::absent();
        assert_eq!(code(&local), 26);
        local.kind = LocalKind::Collection;
        local.uuid = Some(Uuid::from_bytes([8; 16]));
        assert_eq!(code(&local), 26);
        local.uuid = Some(check.uuid);
        assert_eq!(code(&local), 72);
    }
}
