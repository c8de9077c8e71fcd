//! The routing table of a collection that becomes sharded, as a shard asks for it.
//!
//! Source: sharding document, "DDL operations"; versions as of "Shard versioning".

use pinion_bson::{ObjectId, RawBson, RawDocument, RawDocumentBuf, Uuid};
use pinion_clock::Timestamp;
use pinion_query::document_text;
use pinion_wire::idl::{Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use super::initial_split::InitialChunk;
use super::zone_ranges::check_zone_key;
use crate::documents::{
    COLLECTIONS, ChunkDocument, ChunkOf, CollectionDocument, OwnerSince, ShardDocument, TagDocument,
};
use crate::key::ShardKeyPattern;
use crate::limits::MAX_INITIAL_CHUNKS;
use crate::version::ChunkVersion;

/// A collection with its first chunks, checked.
#[derive(Clone, Debug)]
pub struct NewCollection {
    document: CollectionDocument,
    uuid: Uuid,
    key: ShardKeyPattern,
    chunks: Vec<InitialChunk>,
}

/// What is to be done for a collection that is to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectionCreation {
    /// An earlier attempt has written it.
    Exists,
    /// Its chunks are to be written, and then its document.
    Create,
}

impl NewCollection {
    /// Reads what is asked for.
    ///
    /// # Errors
    /// `BadValue` where the document is of another namespace or has no time, and for chunks that
    /// do not begin at the least key, are not in order or too many; those of a document and of a
    /// key pattern.
    pub fn new(
        ns: &Namespace,
        document: &RawDocument,
        chunks: Vec<InitialChunk>,
    ) -> Result<NewCollection> {
        let document = CollectionDocument::parse(document)?;
        if document.ns != *ns {
            return Err(Error::bad_value(format!(
                "the document is of {}, not of {ns}",
                document.ns
            )));
        }
        if document.of.timestamp.is_null() {
            return Err(missing_field(Path::root(COLLECTIONS).field("timestamp")));
        }
        let uuid = document
            .uuid
            .ok_or_else(|| missing_field(Path::root(COLLECTIONS).field("uuid")))?;
        let key = ShardKeyPattern::parse(&document.key)?;
        check_chunks(&key, &chunks)?;
        Ok(NewCollection {
            document,
            uuid,
            key,
            chunks,
        })
    }

    /// Decides, given the document that has this name, if there is one.
    ///
    /// # Errors
    /// `ConflictingOperationInProgress` where another collection has the name; `ShardNotFound`
    /// where a shard is none of the cluster or leaves it; `InvalidOptions` where a zone of the
    /// namespace is of another key.
    pub fn decide(
        &self,
        found: Option<&CollectionDocument>,
        shards: &[ShardDocument],
        tags: &[TagDocument],
    ) -> Result<CollectionCreation> {
        if let Some(found) = found {
            let is_same = found.uuid == Some(self.uuid) && found.of.is_same(self.document.of);
            return match is_same {
                true => Ok(CollectionCreation::Exists),
                false => Err(Error::new(
                    ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                    format!(
                        "another collection {} is sharded already, by {}",
                        found.ns,
                        document_text(&found.key)
                    ),
                )),
            };
        }
        let stays = |id: &str| {
            let shard = shards.iter().find(|shard| shard.id == *id);
            shard.is_some_and(|shard| !shard.is_draining)
        };
        if let Some(chunk) = self.chunks.iter().find(|chunk| !stays(&chunk.shard)) {
            return Err(Error::new(
                ErrorCode::SHARD_NOT_FOUND,
                format!("Shard {} not found or currently draining", chunk.shard),
            ));
        }
        for tag in tags {
            check_zone_key(&self.key, &tag.min, &tag.max)?;
        }
        Ok(CollectionCreation::Create)
    }

    pub fn document(&self) -> &CollectionDocument {
        &self.document
    }

    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// How many chunks it has.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// It never is.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The version of the whole collection: that of its last chunk.
    pub fn version(&self) -> ChunkVersion {
        self.version_of(self.chunks.len() - 1)
    }

    fn version_of(&self, at: usize) -> ChunkVersion {
        let minor = u32::try_from(at).expect("their number has a limit");
        ChunkVersion {
            minor,
            ..ChunkVersion::first(self.document.of)
        }
    }

    /// The documents of its chunks, in their order. `id` gives a new identifier each time.
    pub fn chunk_documents(
        &self,
        mut id: impl FnMut() -> ObjectId,
    ) -> impl Iterator<Item = ChunkDocument> {
        let last = self.key.document(&self.key.max());
        let since = self.document.of.timestamp;
        self.chunks.iter().enumerate().map(move |(at, chunk)| {
            let next = self.chunks.get(at + 1);
            ChunkDocument {
                id: RawBson::ObjectId(id()),
                of: ChunkOf::Uuid(self.uuid),
                min: chunk.min.clone(),
                max: next.map_or_else(|| last.clone(), |next| next.min.clone()),
                shard: chunk.shard.clone(),
                placement: self.version_of(at).placement(),
                on_current_shard_since: Some(since),
                history: vec![owner_since(since, chunk)],
                is_jumbo: false,
                other: RawDocumentBuf::new(),
            }
        })
    }
}

fn owner_since(valid_after: Timestamp, chunk: &InitialChunk) -> OwnerSince {
    OwnerSince {
        valid_after,
        shard: chunk.shard.clone(),
    }
}

/// Whether the chunks have each key once.
fn check_chunks(key: &ShardKeyPattern, chunks: &[InitialChunk]) -> Result<()> {
    let (Some(first), true) = (chunks.first(), chunks.len() as u64 <= MAX_INITIAL_CHUNKS) else {
        return Err(Error::bad_value(format!(
            "a collection starts with 1 to {MAX_INITIAL_CHUNKS} chunks, and there are {}",
            chunks.len()
        )));
    };
    let mut last = key.bound(&first.min)?;
    if last != key.min() {
        return Err(Error::bad_value(format!(
            "the first chunk begins at {}, not at the least key",
            document_text(&first.min)
        )));
    }
    for chunk in &chunks[1..] {
        let min = key.bound(&chunk.min)?;
        if min <= last || min >= key.max() {
            return Err(Error::bad_value(format!(
                "the chunk that begins at {} is not behind the one before it",
                document_text(&chunk.min)
            )));
        }
        last = min;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pinion_bson::{Binary, DateTime, rawdoc};

    use super::*;
    use crate::table::RoutingTable;
    use crate::values::bson_time;

    const MIN: RawBson = RawBson::MinKey;
    const MAX: RawBson = RawBson::MaxKey;

    fn ns() -> Namespace {
        Namespace::new("d", "c").expect("a name")
    }

    fn document(name: &str, uuid: u8) -> RawDocumentBuf {
        rawdoc! {
            "_id": name, "lastmodEpoch": ObjectId::from_bytes([1; 12]),
            "lastmod": DateTime::from_millis(77), "timestamp": bson_time(Timestamp::new(5, 1)),
            "uuid": Binary::from(Uuid::from_bytes([uuid; 16])), "key": { "a": 1 },
            "unique": false, "noBalance": false,
        }
    }

    fn chunks(of: &[(RawBson, &str)]) -> Vec<InitialChunk> {
        let chunks = of.iter().map(|(min, shard)| InitialChunk {
            min: rawdoc! { "a": min.clone() },
            shard: (*shard).into(),
        });
        chunks.collect()
    }

    fn three() -> Vec<InitialChunk> {
        chunks(&[
            (MIN, "x"),
            (RawBson::Int32(5), "y"),
            (RawBson::Int32(9), "x"),
        ])
    }

    fn shards() -> Vec<ShardDocument> {
        let shard = |id: &str, is_draining| ShardDocument {
            is_draining,
            ..ShardDocument::new(id.into(), String::new(), Timestamp::MIN)
        };
        vec![shard("x", false), shard("y", false), shard("z", true)]
    }

    #[test]
    fn documents_of_chunks() {
        let new = NewCollection::new(&ns(), &document("d.c", 2), three()).expect("readable");
        let mut next = 0;
        let id = || {
            next += 1;
            ObjectId::from_bytes([next; 12])
        };
        let found: Vec<ChunkDocument> = new.chunk_documents(id).collect();
        let since = bson_time(Timestamp::new(5, 1));
        let expected = rawdoc! {
            "_id": ObjectId::from_bytes([3; 12]),
            "uuid": Binary::from(Uuid::from_bytes([2; 16])),
            "min": { "a": 9 }, "max": { "a": MAX }, "shard": "x",
            "lastmod": bson_time(Timestamp::new(1, 2)), "onCurrentShardSince": since,
            "history": [{ "validAfter": since, "shard": "x" }],
        };
        assert_eq!(found[2].to_bson(), expected);
        let table = RoutingTable::new(new.document(), found).expect("a table");
        assert_eq!((table.len(), table.version()), (3, new.version()));
    }

    #[test]
    fn what_is_not_readable() {
        let refused = |document: RawDocumentBuf, chunks, text: &str| {
            let error = NewCollection::new(&ns(), &document, chunks).expect_err("refused");
            assert!(error.message.contains(text), "{error}");
        };
        let good = || document("d.c", 2);
        refused(
            document("d.x", 2),
            three(),
            "the document is of d.x, not of d.c",
        );
        refused(good(), Vec::new(), "there are 0");
        let late = chunks(&[(RawBson::Int32(1), "x")]);
        refused(good(), late, "the first chunk begins at { a: 1 }");
        let twice = chunks(&[
            (MIN, "x"),
            (RawBson::Int32(1), "x"),
            (RawBson::Int32(1), "y"),
        ]);
        refused(
            good(),
            twice,
            "the chunk that begins at { a: 1 } is not behind",
        );
        let end = chunks(&[(MIN, "x"), (MAX, "x")]);
        refused(good(), end, "is not behind the one before it");
        let mut other = chunks(&[(MIN, "x")]);
        other[0].min = rawdoc! { "b": 1 };
        refused(good(), other, "no bound of the shard key pattern");
        for name in ["timestamp", "uuid"] {
            let mut without = pinion_bson::DocBuilder::new();
            for field in pinion_bson::raw_elements(&good()) {
                if field.name != name.as_bytes() {
                    without.append_elem(&field);
                }
            }
            refused(
                without.finish(),
                three(),
                &format!("config.collections.{name}"),
            );
        }
    }

    #[test]
    fn decisions() {
        let new = NewCollection::new(&ns(), &document("d.c", 2), three()).expect("readable");
        let found = |uuid| CollectionDocument::parse(&document("d.c", uuid)).expect("readable");
        let decide = |found: Option<&CollectionDocument>, tags: &[TagDocument]| {
            let decided = new.decide(found, &shards(), tags);
            decided.map_err(|error| error.code.0)
        };
        assert_eq!(decide(None, &[]), Ok(CollectionCreation::Create));
        assert_eq!(decide(Some(&found(2)), &[]), Ok(CollectionCreation::Exists));
        assert_eq!(decide(Some(&found(3)), &[]), Err(117));
        let mut later = found(2);
        later.of.epoch = ObjectId::from_bytes([9; 12]);
        assert_eq!(decide(Some(&later), &[]), Err(117));
        let bound = |name: &str, value: i32| {
            let mut out = pinion_bson::DocBuilder::new();
            out.append(name, value);
            out.finish()
        };
        let tag = |name: &str| TagDocument {
            id: RawBson::Int32(1),
            ns: ns(),
            zone: "z".to_owned(),
            min: bound(name, 1),
            max: bound(name, 2),
            other: RawDocumentBuf::new(),
        };
        assert_eq!(decide(None, &[tag("a")]), Ok(CollectionCreation::Create));
        assert_eq!(decide(None, &[tag("b")]), Err(72));
        for shard in ["z", "unknown"] {
            let chunks = chunks(&[(MIN, "x"), (RawBson::Int32(5), shard)]);
            let new = NewCollection::new(&ns(), &document("d.c", 2), chunks).expect("readable");
            let error = new.decide(None, &shards(), &[]).expect_err("no shard");
            assert_eq!(error.code.0, 70);
        }
    }
}
