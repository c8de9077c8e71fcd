//! The routing table of a collection: every key in one chunk, each of a shard that there is.

use std::collections::BTreeSet;

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid, compare_documents};
use pinion_wire::idl::Namespace;

use super::inconsistency::Inconsistencies;
use crate::documents::{ChunkDocument, CollectionDocument};
use crate::key::ShardKeyPattern;
use crate::shard_id::ShardId;

/// What the chunks of a collection say.
#[derive(Debug, Default)]
pub struct RoutingFindings {
    pub inconsistencies: Inconsistencies,
    /// The shards that own chunks.
    pub owners: BTreeSet<ShardId>,
}

/// Checks the chunks of a collection, which are in the order of `min`. `shards` are all of the
/// cluster.
pub fn check_chunks(
    collection: &CollectionDocument,
    chunks: &[RawDocumentBuf],
    shards: &BTreeSet<ShardId>,
) -> RoutingFindings {
    let mut found = RoutingFindings::default();
    let of = (&collection.ns, collection.uuid);
    let Ok(key) = ShardKeyPattern::parse(&collection.key) else {
        found.inconsistencies.add_of(
            "CorruptedCollectionShardKey",
            "The shard key of a collection is none",
            of,
            |out| {
                out.append("shardKeyPattern", &*collection.key);
            },
        );
        return found;
    };
    if collection.is_unsplittable && chunks.len() > 1 {
        found.inconsistencies.add_of(
            "TrackedUnshardedCollectionHasMultipleChunks",
            "Found a tracked unsharded collection with multiple chunks",
            of,
            |out| {
                out.append("numChunks", chunks.len() as i64);
            },
        );
    }
    for chunk in chunks {
        found.check_chunk(of, &key, chunk, shards);
    }
    for pair in chunks.windows(2) {
        found.check_pair(of, &pair[0], &pair[1]);
    }
    found.check_ends(of, &key, chunks);
    found
}

fn bound<'d>(document: &'d RawDocument, name: &str) -> Option<&'d RawDocument> {
    pinion_bson::get(document, name)?.as_document()
}

type Of<'a> = (&'a Namespace, Option<Uuid>);

impl RoutingFindings {
    fn check_chunk(
        &mut self,
        of: Of<'_>,
        key: &ShardKeyPattern,
        document: &RawDocument,
        shards: &BTreeSet<ShardId>,
    ) {
        let is_bound = |name| bound(document, name).is_some_and(|bound| key.bound(bound).is_ok());
        if !is_bound("min") || !is_bound("max") {
            self.inconsistencies.add_of(
                "CorruptedChunkShardKey",
                "Found a chunk with a min key or max key that does not match the shard key",
                of,
                |out| {
                    out.append("chunk", document);
                    out.append("shardKeyPattern", &*key.to_bson());
                },
            );
        }
        let chunk = match ChunkDocument::parse(document) {
            Ok(chunk) => chunk,
            Err(error) => return self.corrupted(of, document, &error.message),
        };
        if !shards.contains(&chunk.shard) {
            self.inconsistencies.add_of(
                "RoutingTableUnknownShard",
                "Found a chunk that is owned by a shard which does not exist",
                of,
                |out| {
                    out.append("chunk", document);
                },
            );
        }
        if let Some(wrong) = wrong_history(&chunk) {
            self.corrupted(of, document, &wrong);
        }
        self.owners.insert(chunk.shard);
    }

    fn corrupted(&mut self, of: Of<'_>, document: &RawDocument, why: &str) {
        self.inconsistencies.add_of(
            "CorruptedChunkHistory",
            "Found a chunk with a corrupted history",
            of,
            |out| {
                out.append("chunk", document).append("errMsg", why);
            },
        );
    }

    fn check_pair(&mut self, of: Of<'_>, one: &RawDocument, other: &RawDocument) {
        let (Some(end), Some(start)) = (bound(one, "max"), bound(other, "min")) else {
            return;
        };
        let (kind, description) = match compare_documents(end, start) {
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Less => (
                "RoutingTableRangeGap",
                "Found a gap between two consecutive chunks",
            ),
            std::cmp::Ordering::Greater => (
                "RoutingTableRangeOverlap",
                "Found two chunks with overlapping ranges",
            ),
        };
        self.inconsistencies.add_of(kind, description, of, |out| {
            out.append("chunkA", one).append("chunkB", other);
        });
    }

    fn check_ends(&mut self, of: Of<'_>, key: &ShardKeyPattern, chunks: &[RawDocumentBuf]) {
        let (Some(first), Some(last)) = (chunks.first(), chunks.last()) else {
            self.inconsistencies.add_of(
                "MissingRoutingTable",
                "Found a sharded collection without a routing table",
                of,
                |_| {},
            );
            return;
        };
        let ends = [
            (
                first,
                "min",
                key.document(&key.min()),
                "RoutingTableMissingMinKey",
                "The first chunk does not start at the least key",
                ["minKeyObj", "globalMin"],
            ),
            (
                last,
                "max",
                key.document(&key.max()),
                "RoutingTableMissingMaxKey",
                "The last chunk does not end at the greatest key",
                ["maxKeyObj", "globalMax"],
            ),
        ];
        for (chunk, name, expected, kind, description, fields) in ends {
            let Some(found) = bound(chunk, name) else {
                continue;
            };
            if compare_documents(found, &expected).is_ne() {
                self.inconsistencies.add_of(kind, description, of, |out| {
                    out.append(fields[0], found).append(fields[1], &*expected);
                });
            }
        }
    }
}

/// What is wrong with the owners of a chunk.
fn wrong_history(chunk: &ChunkDocument) -> Option<String> {
    let Some(first) = chunk.history.first() else {
        return Some("The history field is empty".to_owned());
    };
    if first.shard != chunk.shard {
        return Some(format!(
            "The first element in the history for this chunk must be the owning shard {} but it \
             is {}",
            chunk.shard, first.shard
        ));
    }
    match chunk.on_current_shard_since {
        Some(since) if since != first.valid_after => Some(
            "The validAfter for the first element in the history must match the value of \
             onCurrentShardSince"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Checks the zones of a sharded collection, which are in the order of `min`.
pub fn check_zones(collection: &CollectionDocument, zones: &[RawDocumentBuf]) -> Inconsistencies {
    let mut found = Inconsistencies::default();
    let of = (&collection.ns, collection.uuid);
    let Ok(key) = ShardKeyPattern::parse(&collection.key) else {
        return found;
    };
    for zone in zones {
        let is_bound = |name| bound(zone, name).is_some_and(|bound| key.bound(bound).is_ok());
        if !is_bound("min") || !is_bound("max") {
            found.add_of(
                "CorruptedZoneShardKey",
                "Found a zone with a min key or max key that does not match the shard key",
                of,
                |out: &mut DocBuilder| {
                    out.append("zone", &**zone);
                    out.append("shardKeyPattern", &*key.to_bson());
                },
            );
        }
    }
    for pair in zones.windows(2) {
        let (Some(end), Some(start)) = (bound(&pair[0], "max"), bound(&pair[1], "min")) else {
            continue;
        };
        if compare_documents(end, start).is_gt() {
            found.add_of(
                "ZonesRangeOverlap",
                "Found two zones with overlapping ranges",
                of,
                |out| {
                    out.append("zoneA", &*pair[0]).append("zoneB", &*pair[1]);
                },
            );
        }
    }
    found
}
