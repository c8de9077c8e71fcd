//! The cluster as it is in truth: collections, the shards of their documents, and versions.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{
    Binary, DocBuilder, ObjectId, RawBson, RawDocument, RawDocumentBuf, Uuid, get, rawdoc,
};
use pinion_clock::Timestamp;
use pinion_query::Matcher;
use pinion_runtime::Rng;
use pinion_sharding_protocol::documents::{
    ChunkDocument, ChunkOf, CollectionDocument, DatabaseDocument, OwnerSince,
};
use pinion_sharding_protocol::{
    ChunkVersion, DatabaseVersion, Incarnation, KeyBytes, RoutingTable, ShardId, ShardKeyPattern,
    ShardVersion,
};
use pinion_wire::idl::Namespace;

use super::feeds::Feeds;

pub const DB: &str = "d";

/// One chunk, by its bounds.
#[derive(Clone)]
struct Chunk {
    min: RawDocumentBuf,
    max: RawDocumentBuf,
    shard: usize,
    version: ChunkVersion,
}

struct Sharded {
    document: CollectionDocument,
    uuid: Uuid,
    chunks: Vec<Chunk>,
    table: Arc<RoutingTable>,
}

#[derive(Default)]
struct Collection {
    documents: Vec<RawDocumentBuf>,
    sharded: Option<Sharded>,
}

/// A cursor of a shard.
pub struct OpenCursor {
    pub shard: usize,
    pub documents: std::collections::VecDeque<RawDocumentBuf>,
}

pub struct World {
    pub shards: usize,
    pub primary: usize,
    pub database: DatabaseVersion,
    /// Whether the database is there.
    pub is_there: bool,
    collections: BTreeMap<String, Collection>,
    now: u32,
    /// Requests of definitions that coordinators and config servers have served.
    pub definitions: Vec<RawDocumentBuf>,
    /// Definitions that are done, and of which the router does not hear.
    pub lost_replies: u32,
    /// Zones of shards.
    pub tags: BTreeMap<usize, Vec<String>>,
    /// Finds of collections of the config servers, by their names.
    pub config_reads: BTreeMap<String, u32>,
    /// Commands that shards have refused as stale.
    pub refused: u32,
    pub cursors: BTreeMap<i64, OpenCursor>,
    pub next_cursor: i64,
    /// Requests of clients, by shard.
    pub served: BTreeMap<usize, u32>,
    /// A shard that says nothing of the version that it wants.
    pub is_silent: bool,
    /// The logs of the shards.
    pub feeds: Feeds,
    /// When the list of shards changed last.
    pub topology: u32,
    pub pings: u32,
    /// The indexes that each shard has of each collection, by their names.
    pub indexes: BTreeMap<(usize, String), BTreeSet<String>>,
    /// Definitions that shards have run.
    pub indexes_defined: BTreeMap<usize, u32>,
    /// What statements of retryable writes did, by shard, session, transaction number and their
    /// own.
    pub executed: BTreeMap<(usize, String, i64, i32), Executed>,
    /// Transactions that run, by shard and session.
    pub parts: BTreeMap<(usize, String), i64>,
    /// Ends of transactions that shards were sent.
    pub ends: Vec<(usize, &'static str)>,
}

/// What a statement did.
#[derive(Clone, Debug, Default)]
pub struct Executed {
    pub n: i32,
    pub n_modified: i32,
    pub upserted: Option<RawBson>,
    pub old: Option<RawDocumentBuf>,
    pub new: Option<RawDocumentBuf>,
}

pub type Shared = Rc<RefCell<World>>;

pub fn shard_name(shard: usize) -> String {
    format!("s{shard}")
}

pub fn host_of(node: usize) -> String {
    // As the simulation gives addresses to its nodes.
    format!("10.0.0.{}:27017", node + 1)
}

impl World {
    pub fn new(shards: usize) -> World {
        let uuid = Uuid::from_bytes([9; 16]);
        World {
            shards,
            primary: 0,
            database: DatabaseVersion::first(uuid, Timestamp::new(3, 0)),
            is_there: true,
            collections: BTreeMap::new(),
            now: 10,
            definitions: Vec::new(),
            lost_replies: 0,
            tags: BTreeMap::new(),
            config_reads: BTreeMap::new(),
            refused: 0,
            cursors: BTreeMap::new(),
            next_cursor: 1000,
            served: BTreeMap::new(),
            is_silent: false,
            executed: BTreeMap::new(),
            parts: BTreeMap::new(),
            ends: Vec::new(),
            feeds: Feeds::default(),
            topology: 1,
            pings: 0,
            indexes: BTreeMap::new(),
            indexes_defined: BTreeMap::new(),
        }
    }

    pub fn insert(&mut self, collection: &str, documents: Vec<RawDocumentBuf>) {
        let entry = self.collections.entry(collection.to_owned()).or_default();
        entry.documents.extend(documents);
    }

    pub fn drop(&mut self, collection: &str) {
        self.collections.remove(collection);
    }

    /// Gives a collection another name, with its indexes.
    pub fn rename(&mut self, from: &str, to: &str) {
        let renamed = self.collections.remove(from).expect("it is there");
        self.collections.insert(to.to_owned(), renamed);
        for shard in 0..self.shards {
            let indexes = self.indexes.remove(&(shard, from.to_owned()));
            let key = (shard, to.to_owned());
            self.indexes.insert(key, indexes.unwrap_or_default());
        }
    }

    /// Makes the database again, on the last shard.
    pub fn make_database(&mut self) {
        let timestamp = self.tick();
        self.is_there = true;
        self.primary = self.shards - 1;
        self.database = DatabaseVersion::first(Uuid::from_bytes([8; 16]), timestamp);
    }

    pub fn documents(&self, collection: &str) -> Vec<RawDocumentBuf> {
        let found = self.collections.get(collection);
        found.map_or_else(Vec::new, |found| found.documents.clone())
    }

    pub fn is_sharded(&self, collection: &str) -> bool {
        let found = self.collections.get(collection);
        found.is_some_and(|found| found.sharded.is_some())
    }

    /// The fields of the shard key.
    pub fn names_of_key(&self, collection: &str) -> Vec<String> {
        let found = self.collections.get(collection);
        let sharded = found.and_then(|found| found.sharded.as_ref());
        let key = sharded.map(|sharded| &sharded.table.key);
        key.into_iter()
            .flat_map(|key| key.paths().map(str::to_owned))
            .collect()
    }

    pub fn names(&self) -> Vec<String> {
        self.collections.keys().cloned().collect()
    }

    /// Whether a shard owns a document.
    pub fn owns(&self, collection: &str, shard: usize, document: &RawDocument) -> bool {
        let found = self.collections.get(collection);
        match found.and_then(|found| found.sharded.as_ref()) {
            None => shard == self.primary,
            Some(sharded) => {
                let owner = sharded.table.target_insert(document).expect("it has a key");
                sharded.table.shard(owner).as_str() == shard_name(shard)
            }
        }
    }

    /// Changes the first documents of a shard in an order that match; they are removed where
    /// there is no new form.
    pub fn change(
        &mut self,
        collection: &str,
        shard: usize,
        is_meant: impl Fn(&RawDocument) -> bool,
        limit: usize,
        mut new: impl FnMut(&RawDocument) -> Option<RawDocumentBuf>,
    ) -> Vec<(RawDocumentBuf, Option<RawDocumentBuf>)> {
        let mut changed = Vec::new();
        let all = self.documents(collection);
        let mut kept = Vec::new();
        for document in all {
            let is_meant = is_meant(&document) && self.owns(collection, shard, &document);
            if !is_meant || changed.len() == limit {
                kept.push(document);
                continue;
            }
            let new = new(&document);
            kept.extend(new.clone());
            changed.push((document, new));
        }
        if let Some(found) = self.collections.get_mut(collection) {
            found.documents = kept;
        }
        changed
    }

    /// What a shard has of a collection.
    pub fn part(&self, collection: &str, shard: usize) -> Vec<RawDocumentBuf> {
        let Some(found) = self.collections.get(collection) else {
            return Vec::new();
        };
        let Some(sharded) = &found.sharded else {
            return match shard == self.primary {
                true => found.documents.clone(),
                false => Vec::new(),
            };
        };
        let table = &sharded.table;
        let is_owned = |document: &&RawDocumentBuf| {
            let key = table.key.key_of(document).expect("it has no array");
            let owner = table.owner(&key, None).expect("now");
            table.shard(owner).as_str() == shard_name(shard)
        };
        found.documents.iter().filter(is_owned).cloned().collect()
    }

    pub fn version(&self, collection: &str, shard: usize) -> ShardVersion {
        let found = self.collections.get(collection);
        match found.and_then(|found| found.sharded.as_ref()) {
            None => ShardVersion::Unsharded,
            Some(sharded) => sharded.table.shard_version(&shard_name(shard)),
        }
    }

    pub fn uuid(&self, collection: &str) -> Uuid {
        let sharded = self.collections[collection].sharded.as_ref();
        sharded.expect("it is sharded").uuid
    }

    /// How many shards own something of a collection.
    pub fn owners(&self, collection: &str) -> usize {
        let found = self.collections.get(collection);
        let sharded = found.and_then(|found| found.sharded.as_ref());
        sharded.map_or(1, |sharded| sharded.table.shards().count())
    }

    fn tick(&mut self) -> Timestamp {
        self.now += 1;
        Timestamp::new(self.now, 0)
    }

    /// Shards a collection, with chunks that begin at keys of its documents.
    pub fn shard(&mut self, collection: &str, key: RawDocumentBuf, cuts: usize, rng: &mut Rng) {
        let timestamp = self.tick();
        let mut epoch = [7; 12];
        epoch[..4].copy_from_slice(&self.now.to_be_bytes());
        let of = Incarnation {
            epoch: ObjectId::from_bytes(epoch),
            timestamp,
        };
        let mut uuid = [5; 16];
        uuid[..4].copy_from_slice(&self.now.to_be_bytes());
        let uuid = Uuid::from_bytes(uuid);
        let ns = Namespace::new(DB, collection).expect("a name");
        let document = CollectionDocument::new(ns, of, 0, uuid, key.clone());
        let pattern = ShardKeyPattern::parse(&key).expect("a pattern");
        let shards = self.shards;
        let entry = self.collections.entry(collection.to_owned()).or_default();
        let documents = &entry.documents;
        let mut keys: Vec<KeyBytes> = Vec::new();
        for _ in 0..cuts.min(documents.len()) {
            let at = rng.below(documents.len() as u64) as usize;
            keys.push(pattern.key_of(&documents[at]).expect("it has no array"));
        }
        keys.sort();
        keys.dedup();
        let ends = keys.iter().map(|key| pattern.document(key));
        let mut bounds = vec![pattern.document(&pattern.min())];
        bounds.extend(ends);
        bounds.push(pattern.document(&pattern.max()));
        let chunks: Vec<Chunk> = bounds
            .windows(2)
            .enumerate()
            .map(|(at, ends)| Chunk {
                min: ends[0].clone(),
                max: ends[1].clone(),
                shard: rng.below(shards as u64) as usize,
                version: ChunkVersion::from_placement(of, Timestamp::new(1, at as u32)),
            })
            .collect();
        let documents = chunks.iter().map(|chunk| chunk_document(chunk, uuid));
        let table = Arc::new(RoutingTable::new(&document, documents).expect("a table"));
        entry.sharded = Some(Sharded {
            document,
            uuid,
            chunks,
            table,
        });
    }

    /// Makes the collection one of its database's primary shard.
    pub fn unshard(&mut self, collection: &str) {
        if let Some(found) = self.collections.get_mut(collection) {
            found.sharded = None;
        }
    }

    /// Moves a chunk to another shard, as a migration does.
    pub fn move_chunk(&mut self, collection: &str, rng: &mut Rng) {
        let shards = self.shards as u64;
        let found = self.collections.get_mut(collection);
        let Some(sharded) = found.and_then(|found| found.sharded.as_mut()) else {
            return;
        };
        let at = rng.below(sharded.chunks.len() as u64) as usize;
        let from = sharded.chunks[at].shard;
        let to = rng.below(shards) as usize;
        if from == to {
            return;
        }
        let moved = sharded.table.version().moved();
        sharded.chunks[at].shard = to;
        sharded.chunks[at].version = moved.migrated;
        if let Some(control) = sharded.chunks.iter_mut().find(|chunk| chunk.shard == from) {
            control.version = moved.control;
        }
        let documents = sharded.chunks.iter();
        let documents = documents.map(|chunk| chunk_document(chunk, sharded.uuid));
        let table = RoutingTable::new(&sharded.document, documents).expect("a table");
        sharded.table = Arc::new(table);
    }

    pub fn move_primary(&mut self, to: usize) {
        if to != self.primary {
            self.primary = to;
            self.database = self.database.next_primary();
        }
    }

    /// The documents of a collection of the config servers that a filter matches, in `lastmod`'s
    /// order where they have one.
    pub fn config_find(&mut self, collection: &str, filter: &RawDocument) -> Vec<RawDocumentBuf> {
        *self.config_reads.entry(collection.to_owned()).or_default() += 1;
        let mut all: Vec<RawDocumentBuf> = match collection {
            "databases" => {
                let primary = ShardId::new(&shard_name(self.primary));
                let document = DatabaseDocument::new(DB, primary, self.database);
                self.is_there
                    .then(|| document.to_bson())
                    .into_iter()
                    .collect()
            }
            "shards" => (0..self.shards)
                .map(|shard| {
                    let name = shard_name(shard);
                    let host = format!("r{name}/{}", host_of(shard + 1));
                    let mut document = rawdoc! {
                        "_id": name, "host": host, "state": 1,
                        "topologyTime": pinion_bson::Timestamp { time: 1, increment: 0 },
                    };
                    let mut tags = pinion_bson::RawArrayBuf::new();
                    for tag in self.tags.get(&shard).into_iter().flatten() {
                        tags.push(tag.as_str());
                    }
                    document.append(pinion_bson::cstr!("tags"), tags);
                    document
                })
                .collect(),
            "collections" => self
                .sharded()
                .map(|sharded| sharded.document.to_bson())
                .collect(),
            "chunks" => self
                .sharded()
                .flat_map(|sharded| {
                    let chunks = sharded.chunks.iter();
                    chunks.map(|chunk| chunk_document(chunk, sharded.uuid).to_bson())
                })
                .collect(),
            _ => Vec::new(),
        };
        let matcher = Matcher::parse(filter).expect("a filter");
        all.retain(|document| matcher.matches(&**document).expect("it can be compared"));
        all.sort_by_key(|document| match get(document, "lastmod") {
            Some(pinion_bson::RawBsonRef::Timestamp(time)) => (time.time, time.increment),
            _ => (0, 0),
        });
        all
    }

    fn sharded(&self) -> impl Iterator<Item = &Sharded> {
        let collections = self.collections.values();
        collections.filter_map(|collection| collection.sharded.as_ref())
    }
}

fn chunk_document(chunk: &Chunk, uuid: Uuid) -> ChunkDocument {
    let shard = ShardId::new(&shard_name(chunk.shard));
    let mut id = DocBuilder::new();
    id.append("of", pinion_bson::RawBsonRef::from(&Binary::from(uuid)));
    id.append("min", &*chunk.min);
    ChunkDocument {
        id: RawBson::Document(id.finish()),
        of: ChunkOf::Uuid(uuid),
        min: chunk.min.clone(),
        max: chunk.max.clone(),
        shard: shard.clone(),
        placement: chunk.version.placement(),
        on_current_shard_since: None,
        history: vec![OwnerSince {
            valid_after: chunk.version.of.timestamp,
            shard,
        }],
        is_jumbo: false,
        other: RawDocumentBuf::new(),
    }
}
