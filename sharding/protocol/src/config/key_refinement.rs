//! `_configsvrCommitRefineCollectionShardKey`: a collection gets a finer shard key, and with it a
//! new incarnation.
//!
//! Bounds of chunks and zones get MinKey for the new fields, and MaxKey in the bound above all
//! keys: each chunk keeps its documents. Placements stay as they are. The document, the chunks and
//! the zones change in one transaction.
//!
//! Source: sharding document, "Shard versioning and database versioning".

use pinion_bson::{Binary, DocBuilder, RawBson, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_query::document_text;
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use crate::documents::CollectionDocument;
use crate::key::ShardKeyPattern;
use crate::shard_id::ShardId;
use crate::values::{append_time, append_uuid, date};
use crate::version::Incarnation;

const COMMAND: &str = "_configsvrCommitRefineCollectionShardKey";

/// A finer key for a collection.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRefinement {
    pub ns: Namespace,
    pub uuid: Uuid,
    pub key: ShardKeyPattern,
    /// The incarnation that ends.
    pub was: Incarnation,
    /// The one that starts.
    pub of: Incarnation,
    pub now_ms: i64,
    /// All that may own chunks: their indexes were looked at, and they keep requests out.
    pub shards: Vec<ShardId>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyRefinementStep {
    /// An earlier attempt has written it.
    Done,
    /// These commands in one transaction.
    Write(Vec<RawDocumentBuf>),
}

impl KeyRefinement {
    pub fn to_command(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append(COMMAND, self.ns.as_str());
        append_uuid(&mut out, "uuid", self.uuid);
        out.append("key", &*self.key.to_bson());
        self.was.append_to(&mut out, "was");
        self.of.append_to(&mut out, "of");
        out.append("nowMs", self.now_ms).start_array("shards");
        for shard in &self.shards {
            out.push(shard.as_str());
        }
        out.end().append("$db", "admin");
        out.finish()
    }

    /// # Errors
    /// A field that is missing or of a wrong type; `BadValue` for what is no shard key.
    pub fn parse(ns: Namespace, command: &RawDocument) -> Result<KeyRefinement> {
        let reader = FieldReader::object(Path::root(COMMAND), command)?;
        let uuid = reader.opt_uuid("uuid")?.map(Uuid::from_bytes);
        let shards = pinion_bson::values(reader.array("shards")?);
        let shards = shards.filter_map(|shard| shard.as_str()).map(ShardId::new);
        Ok(KeyRefinement {
            ns,
            uuid: uuid.ok_or_else(|| missing_field(reader.path().field("uuid")))?,
            key: ShardKeyPattern::parse(reader.doc("key")?)?,
            was: Incarnation::parse(reader.path().field("was"), reader.doc("was")?)?,
            of: Incarnation::parse(reader.path().field("of"), reader.doc("of")?)?,
            now_ms: reader.i64("nowMs")?,
            shards: shards.collect(),
        })
    }

    pub fn fields() -> &'static [&'static str] {
        &["uuid", "key", "was", "of", "nowMs", "shards"]
    }

    /// Selects chunks of shards that the definition does not know to own any.
    pub fn unexpected_chunks(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        append_uuid(&mut out, "uuid", self.uuid);
        out.start_document("shard").start_array("$nin");
        for shard in &self.shards {
            out.push(shard.as_str());
        }
        out.end().end();
        out.finish()
    }

    /// Decides, given the document that has this name, if there is one.
    ///
    /// # Errors
    /// `ConflictingOperationInProgress` where the collection is another one by now, or has chunks
    /// on another shard; `InvalidOptions` where the key does not extend its own.
    pub fn decide(
        &self,
        found: Option<&CollectionDocument>,
        has_unexpected_chunks: bool,
    ) -> Result<KeyRefinementStep> {
        let changed = |what: &str| {
            Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("the sharded collection {} {what}", self.ns),
            )
        };
        let found = found.filter(|found| !found.is_dropped && found.uuid == Some(self.uuid));
        let found = found.ok_or_else(|| changed("is not there any more"))?;
        if found.of.is_same(self.of) {
            return Ok(KeyRefinementStep::Done);
        }
        if !found.of.is_same(self.was) {
            return Err(changed("was changed meanwhile"));
        }
        if has_unexpected_chunks {
            return Err(changed("has chunks on another shard by now"));
        }
        let was = ShardKeyPattern::parse(&found.key)?;
        if !self.key.extends(&was) {
            return Err(Error::new(
                ErrorCode::INVALID_OPTIONS,
                format!(
                    "refineCollectionShardKey shard key {} does not extend the current shard key {}",
                    document_text(&self.key.to_bson()),
                    document_text(&found.key)
                ),
            ));
        }
        Ok(KeyRefinementStep::Write(vec![
            self.change_of_collection(),
            self.change_of_bounds("chunks", &self.of_uuid(), &was),
            self.change_of_bounds("tags", &rawdoc! { "ns": self.ns.as_str() }, &was),
        ]))
    }

    fn of_uuid(&self) -> RawDocumentBuf {
        rawdoc! { "uuid": Binary::from(self.uuid) }
    }

    fn change_of_collection(&self) -> RawDocumentBuf {
        let mut set = DocBuilder::new();
        set.append("lastmodEpoch", self.of.epoch)
            .append_raw("lastmod", date(self.now_ms));
        append_time(&mut set, "timestamp", self.of.timestamp);
        set.append("key", &*self.key.to_bson());
        rawdoc! {
            "update": "collections", "$db": "config",
            "updates": [{
                "q": {
                    "_id": self.ns.as_str(), "uuid": Binary::from(self.uuid),
                    "lastmodEpoch": self.was.epoch,
                },
                "u": { "$set": set.finish() },
            }],
        }
    }

    /// The new fields at the end of `min` and `max` of all documents that a filter selects.
    fn change_of_bounds(
        &self,
        collection: &str,
        filter: &RawDocument,
        was: &ShardKeyPattern,
    ) -> RawDocumentBuf {
        let added = |value: RawBson| {
            let mut out = DocBuilder::new();
            for path in self.key.paths().skip(was.paths().len()) {
                out.append_raw(path, value.as_raw_bson_ref());
            }
            rawdoc! { "$literal": out.finish() }
        };
        let least = added(RawBson::MinKey);
        let above_all = rawdoc! { "$eq": ["$max", { "$literal": was.document(&was.max()) }] };
        let max = rawdoc! { "$cond": [above_all, added(RawBson::MaxKey), least.clone()] };
        rawdoc! {
            "update": collection, "$db": "config",
            "updates": [{
                "q": filter.to_owned(), "multi": true,
                "u": [
                    { "$set": {
                        "min": { "$mergeObjects": ["$min", least] },
                        "max": { "$mergeObjects": ["$max", max] },
                    } },
                    // Parts that could not be split may be by the new fields.
                    { "$unset": "jumbo" },
                ],
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::ObjectId;
    use pinion_clock::Timestamp;

    use super::*;

    fn incarnation(number: u8) -> Incarnation {
        Incarnation {
            epoch: ObjectId::from_bytes([number; 12]),
            timestamp: Timestamp::new(number.into(), 1),
        }
    }

    fn refinement() -> KeyRefinement {
        KeyRefinement {
            ns: Namespace::new("d", "c").expect("a name"),
            uuid: Uuid::from_bytes([7; 16]),
            key: ShardKeyPattern::parse(&rawdoc! { "a": 1, "b.c": 1 }).expect("a key"),
            was: incarnation(1),
            of: incarnation(2),
            now_ms: 77,
            shards: vec!["s1".into(), "s0".into()],
        }
    }

    fn document(of: Incarnation, uuid: u8, key: RawDocumentBuf) -> CollectionDocument {
        let uuid = Uuid::from_bytes([uuid; 16]);
        CollectionDocument::new(refinement().ns, of, 5, uuid, key)
    }

    #[test]
    fn commands() {
        let refinement = refinement();
        let command = refinement.to_command();
        let read = KeyRefinement::parse(refinement.ns.clone(), &command);
        assert_eq!(read.ok().as_ref(), Some(&refinement));
        let fields = pinion_bson::elements(&command).map(|(name, _)| name);
        let known = |name: &str| KeyRefinement::fields().contains(&name);
        assert!(fields.skip(1).all(|name| known(name) || name == "$db"));
        let expected = rawdoc! {
            "uuid": Binary::from(refinement.uuid), "shard": { "$nin": ["s1", "s0"] },
        };
        assert_eq!(refinement.unexpected_chunks(), expected);
    }

    #[test]
    fn decisions() {
        let refinement = refinement();
        let key = || rawdoc! { "a": 1 };
        let check = |found: Option<CollectionDocument>, moved: bool, expected: i32| {
            let decided = refinement.decide(found.as_ref(), moved);
            let code = match decided {
                Ok(KeyRefinementStep::Write(_)) => 0,
                Ok(KeyRefinementStep::Done) => -1,
                Err(error) => error.code.0,
            };
            assert_eq!(code, expected, "{found:?}");
        };
        check(Some(document(incarnation(1), 7, key())), false, 0);
        check(Some(document(incarnation(1), 7, key())), true, 117);
        check(Some(document(incarnation(1), 8, key())), false, 117);
        check(None, false, 117);
        // What came first, and what came between.
        check(Some(document(incarnation(2), 7, key())), true, -1);
        check(Some(document(incarnation(3), 7, key())), false, 117);
        check(
            Some(document(incarnation(1), 7, rawdoc! { "b": 1 })),
            false,
            72,
        );
    }

    #[test]
    fn what_is_written() {
        let found = document(incarnation(1), 7, rawdoc! { "a": 1 });
        let Ok(KeyRefinementStep::Write(commands)) = refinement().decide(Some(&found), false)
        else {
            panic!("it is written");
        };
        assert_eq!(commands.len(), 3);
        let first = |at: usize, path: &str| {
            let updates = pinion_bson::get(&commands[at], "updates").expect("statements");
            let updates = updates.as_array().expect("a list");
            let one = pinion_bson::values(updates).next().expect("one");
            let one = one.as_document().expect("a document").to_owned();
            pinion_bson::get_path(&one, path).map(RawBson::from)
        };
        assert_eq!(
            first(0, "u.$set.key"),
            Some(RawBson::Document(rawdoc! { "a": 1, "b.c": 1 }))
        );
        let epoch = incarnation(2).epoch;
        assert_eq!(
            first(0, "u.$set.lastmodEpoch"),
            Some(RawBson::ObjectId(epoch))
        );
        for at in [1, 2] {
            let Some(RawBson::Array(stages)) = first(at, "u") else {
                panic!("a pipeline");
            };
            let stages: Vec<RawBson> = pinion_bson::values(&stages).map(RawBson::from).collect();
            let least = rawdoc! { "$literal": { "b.c": RawBson::MinKey } };
            let most = rawdoc! { "$literal": { "b.c": RawBson::MaxKey } };
            let end = rawdoc! { "$eq": ["$max", { "$literal": { "a": RawBson::MaxKey } }] };
            let expected = rawdoc! { "$set": {
                "min": { "$mergeObjects": ["$min", least.clone()] },
                "max": { "$mergeObjects": ["$max", { "$cond": [end, most, least] }] },
            } };
            assert_eq!(stages[0], RawBson::Document(expected));
        }
    }
}
