//! A config server in a few lines, for tests: chunks of one collection and what changes them.

use pinion_bson::{ObjectId, RawBson, RawDocumentBuf, Uuid, rawdoc};
use pinion_clock::Timestamp;
use pinion_wire::idl::Namespace;

use crate::documents::{ChunkDocument, ChunkOf, CollectionDocument, OwnerSince};
use crate::shard_id::ShardId;
use crate::version::{ChunkVersion, Incarnation};

/// A seeded stream of numbers.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

pub(crate) const UUID: Uuid = Uuid::from_bytes([2; 16]);

/// Keys are integers; these two are below and above all.
pub(crate) const LOWEST: i64 = i64::MIN;
pub(crate) const HIGHEST: i64 = i64::MAX;

/// `{a: <key>}`.
pub(crate) fn bound(key: i64) -> RawDocumentBuf {
    match key {
        LOWEST => rawdoc! { "a": RawBson::MinKey },
        HIGHEST => rawdoc! { "a": RawBson::MaxKey },
        key => rawdoc! { "a": key },
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelChunk {
    pub(crate) min: i64,
    pub(crate) max: i64,
    pub(crate) version: ChunkVersion,
    /// The latest owner first.
    pub(crate) history: Vec<(Timestamp, String)>,
    pub(crate) is_jumbo: bool,
}

impl ModelChunk {
    pub(crate) fn shard(&self) -> &str {
        &self.history[0].1
    }

    pub(crate) fn document(&self) -> ChunkDocument {
        let owner = |(valid_after, shard): &(Timestamp, String)| OwnerSince {
            valid_after: *valid_after,
            shard: ShardId::new(shard),
        };
        ChunkDocument {
            id: RawBson::Int64(self.min),
            of: ChunkOf::Uuid(UUID),
            min: bound(self.min),
            max: bound(self.max),
            shard: ShardId::new(self.shard()),
            placement: self.version.placement(),
            on_current_shard_since: Some(self.history[0].0),
            history: self.history.iter().map(owner).collect(),
            is_jumbo: self.is_jumbo,
            other: RawDocumentBuf::new(),
        }
    }
}

/// One collection, sharded by `{a: 1}`.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) of: Incarnation,
    /// In their order.
    pub(crate) chunks: Vec<ModelChunk>,
    pub(crate) now: Timestamp,
}

impl Model {
    pub(crate) fn new(epoch: u8, secs: u32, shard: &str) -> Model {
        let of = Incarnation {
            epoch: ObjectId::from_bytes([epoch; 12]),
            timestamp: Timestamp::new(secs, 0),
        };
        let chunk = ModelChunk {
            min: LOWEST,
            max: HIGHEST,
            version: ChunkVersion::first(of),
            history: vec![(of.timestamp, shard.to_owned())],
            is_jumbo: false,
        };
        Model {
            of,
            chunks: vec![chunk],
            now: of.timestamp,
        }
    }

    pub(crate) fn version(&self) -> ChunkVersion {
        let highest = self.chunks.iter().map(|chunk| chunk.version);
        highest
            .max_by_key(|version| version.placement())
            .expect("a chunk")
    }

    pub(crate) fn collection(&self) -> CollectionDocument {
        let ns = Namespace::new("d", "c").expect("a name");
        CollectionDocument::new(ns, self.of, 0, UUID, rawdoc! { "a": 1 })
    }

    /// The chunks whose version is at or above this one.
    pub(crate) fn changes(&self, from: ChunkVersion) -> Vec<ChunkDocument> {
        let changed = |chunk: &&ModelChunk| chunk.version.placement() >= from.placement();
        self.chunks
            .iter()
            .filter(changed)
            .map(ModelChunk::document)
            .collect()
    }

    pub(crate) fn chunk_of(&self, key: i64) -> usize {
        let found = self.chunks.iter().position(|chunk| key < chunk.max);
        found.unwrap_or(self.chunks.len() - 1)
    }

    /// Splits a chunk at these keys, which are in order and in it.
    pub(crate) fn split(&mut self, at: usize, keys: &[i64]) {
        let old = self.chunks[at].clone();
        let mut versions = self.version().split(keys.len() + 1);
        let ends = keys.iter().copied().chain([old.max]);
        let mut min = old.min;
        let parts: Vec<ModelChunk> = ends
            .map(|max| {
                let part = ModelChunk {
                    min,
                    max,
                    version: versions.next().expect("one for each"),
                    ..old.clone()
                };
                min = max;
                part
            })
            .collect();
        self.chunks.splice(at..=at, parts);
    }

    /// Moves a chunk; another one of the donor becomes its control chunk.
    pub(crate) fn move_chunk(&mut self, at: usize, to: &str) {
        let from = self.chunks[at].shard().to_owned();
        let moved = self.version().moved();
        self.now = self.now.plus(1 << 32);
        self.chunks[at].version = moved.migrated;
        self.chunks[at].history.insert(0, (self.now, to.to_owned()));
        if let Some(control) = self.chunks.iter_mut().find(|chunk| chunk.shard() == from) {
            control.version = moved.control;
        }
    }

    /// Merges chunks of one shard, as `mergeChunks` does: history is that of the last owner.
    pub(crate) fn merge(&mut self, from: usize, to: usize) {
        let version = self.version().merged();
        let merged = ModelChunk {
            max: self.chunks[to].max,
            version,
            ..self.chunks[from].clone()
        };
        self.chunks.splice(from..=to, [merged]);
    }
}
