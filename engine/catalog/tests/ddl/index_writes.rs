//! What a change of a document writes to indexes is the difference of what they have of it before
//! and after, computed whole.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, rawdoc};
use pinion_catalog::{
    BuildLimits, Collection, CollectionOptions, Index, core_catalog, create_collection,
    create_indexes, entries_of, entry_partition, index_builds, index_writes, parse_index_spec,
    set_build_hold,
};
use pinion_runtime::{Duration, Queue, Rng, now, on_all_cores, random_stream, sleep, spawn};
use pinion_storage::{Expect, Key, Op, PartitionId, TreeId, storage};
use pinion_wire::OpContext;

use crate::act::namespace;
use crate::documents;
use crate::node::with_node;

const CASES: usize = 400;

/// What indexes a collection may have; each has a name of its own.
fn specs() -> Vec<RawDocumentBuf> {
    vec![
        rawdoc! { "key": { "a": 1 }, "name": "a" },
        rawdoc! { "key": { "b": -1 }, "name": "b", "unique": true },
        rawdoc! { "key": { "a": 1, "b": -1 }, "name": "ab" },
        rawdoc! { "key": { "a.x": 1 }, "name": "ax" },
        rawdoc! { "key": { "c": 1 }, "name": "c", "sparse": true },
        rawdoc! { "key": { "a": "hashed" }, "name": "hashed" },
        rawdoc! { "key": { "$**": 1 }, "name": "all" },
        rawdoc! { "key": { "a.$**": 1 }, "name": "below" },
        rawdoc! { "key": { "b": 1 }, "name": "some", "partialFilterExpression": { "c": { "$gt": 1 } } },
        rawdoc! { "key": { "b": 1, "c": 1 }, "name": "collated", "collation": { "locale": "en", "strength": 2 } },
        rawdoc! { "key": { "c": "text" }, "name": "words" },
    ]
}

fn scalar(rng: &mut Rng) -> RawBson {
    match rng.below(8) {
        0 => RawBson::Null,
        1 => RawBson::Double(rng.below(3) as f64),
        2 => RawBson::Int64(rng.below(3) as i64),
        3 => RawBson::String(["a", "A", "b and c"][rng.below(3) as usize].to_owned()),
        4 => RawBson::Boolean(rng.chance(0.5)),
        _ => RawBson::Int32(rng.below(3) as i32),
    }
}

fn value(rng: &mut Rng, depth: u32) -> RawBson {
    match rng.below(if depth == 0 { 5 } else { 8 }) {
        0..=4 => scalar(rng),
        5 => {
            let mut inner = DocBuilder::new();
            for name in ["x", "y"] {
                if rng.chance(0.6) {
                    inner.append_raw(name, value(rng, depth - 1).as_raw_bson_ref());
                }
            }
            inner.finish().into()
        }
        _ => {
            let mut all = RawArrayBuf::new();
            for _ in 0..rng.below(4) {
                all.push(value(rng, depth - 1));
            }
            all.into()
        }
    }
}

fn random_document(rng: &mut Rng) -> RawDocumentBuf {
    let mut made = DocBuilder::new();
    made.append("_id", 7i32);
    for name in ["a", "b", "c"] {
        if rng.chance(0.8) {
            made.append_raw(name, value(rng, 2).as_raw_bson_ref());
        }
    }
    made.finish()
}

/// What an index has of a document.
fn computed(
    collection: &Collection,
    index: &Index,
    document: Option<&RawDocument>,
    partition: PartitionId,
) -> BTreeMap<(PartitionId, Key), (Bytes, usize)> {
    let Some(document) = document else {
        return BTreeMap::new();
    };
    let hash = storage().partition_hash();
    let made = entries_of(collection, index, document, None);
    let entries = made.expect("it can be indexed").entries.into_iter();
    let placed = entries.map(|entry| {
        let place = entry_partition(collection, index, &entry, partition, hash);
        ((place, entry.key), (entry.type_bits, entry.prefix_len))
    });
    placed.collect()
}

fn can_be_indexed(collection: &Collection, document: &RawDocument) -> bool {
    let mut indexes = collection.indexes.iter();
    indexes.all(|index| entries_of(collection, index, document, None).is_ok())
}

/// Compares what is written with the difference. Gives how much that is.
fn check(
    collection: &Collection,
    old: Option<&RawDocument>,
    new: Option<&RawDocument>,
    is_checked: bool,
) -> usize {
    let partition = PartitionId(storage().partition_count() - 1);
    let hash = storage().partition_hash();
    let made = index_writes(collection, partition, hash, None, old, new, is_checked);
    if !new.is_none_or(|new| can_be_indexed(collection, new)) {
        assert!(made.is_err(), "{new:?} cannot be indexed, and is");
        return 0;
    }
    let made = made.expect("it can be indexed");
    let count = made.writes.len();
    let writes = made.writes.into_iter();
    let mut written: BTreeMap<(TreeId, PartitionId, Key), (Op, Expect)> = writes
        .map(|write| {
            (
                (write.tree, write.partition, write.key),
                (write.op, write.expect),
            )
        })
        .collect();
    assert_eq!(written.len(), count, "a key is written twice");
    for index in &collection.indexes {
        let before = computed(collection, index, old, partition);
        let after = computed(collection, index, new, partition);
        let tree = index.building.map_or(index.tree, |building| building.side);
        let shown = || format!("index {}, from {old:?} to {new:?}", index.name());
        let mut take = |place: &(PartitionId, Key)| {
            let found = written.remove(&(tree, place.0, place.1.clone()));
            found.unwrap_or_else(|| panic!("{} misses {place:?}", shown()))
        };
        for place in before.keys().filter(|place| !after.contains_key(*place)) {
            let (op, expect) = take(place);
            assert_eq!(expect, Expect::Any, "{}", shown());
            // While it is built it is noted that the entry goes.
            let is_noted = matches!(&op, Op::Put(note) if !note.is_empty());
            assert!(
                if index.building.is_some() {
                    is_noted
                } else {
                    op == Op::Delete
                },
                "{}",
                shown()
            );
        }
        for (place, (bits, prefix_len)) in &after {
            if before.get(place).is_some_and(|(other, _)| other == bits) {
                continue;
            }
            let (op, expect) = take(place);
            if index.building.is_some() {
                let has_bits =
                    matches!(&op, Op::Put(note) if note.ends_with(bits) && note.len() > bits.len());
                assert!(has_bits && expect == Expect::Any, "{}", shown());
                continue;
            }
            assert_eq!(op, Op::Put(bits.clone()), "{}", shown());
            let is_unique = is_checked && index.spec.enforces_unique();
            let expected = match is_unique {
                true => Expect::UniquePrefix { len: *prefix_len },
                false => Expect::Any,
            };
            assert_eq!(expect, expected, "{}", shown());
        }
        let arrays = new.and_then(|new| {
            let made = entries_of(collection, index, new, None).expect("it can be indexed");
            made.multikey
                .filter(|paths| !index.spec.knows_multikey(paths))
        });
        let mut newly = made.newly_multikey.iter();
        let found = newly.find(|(tree, _)| *tree == index.tree);
        assert_eq!(
            found.map(|(_, paths)| paths),
            arrays.as_ref(),
            "{}",
            shown()
        );
    }
    assert!(written.is_empty(), "from {old:?} to {new:?}: {written:?}");
    count
}

fn limits() -> BuildLimits {
    BuildLimits {
        memory_bytes: 1 << 20,
        least_free_bytes: 0,
        most_active: 100,
    }
}

/// A collection with some of the indexes, maybe in their builds.
async fn collection_with(rng: &mut Rng, number: u64, in_build: bool) -> std::sync::Arc<Collection> {
    let ns = namespace(&format!("c{number}"));
    let ctx = OpContext::internal(
        1,
        pinion_command::row("createIndexes"),
        "d",
        now().as_nanos(),
    );
    let made = create_collection(&ctx, ns.clone(), CollectionOptions::default()).await;
    made.expect("it is made");
    let chosen: Vec<RawDocumentBuf> = specs().into_iter().filter(|_| rng.chance(0.5)).collect();
    let chosen = chosen.iter().map(|spec| parse_index_spec(spec, false));
    let chosen: Vec<RawDocumentBuf> = chosen.collect::<Result<_, _>>().expect("specifications");
    let count = chosen.len();
    if in_build && count > 0 {
        // Something is there to build over.
        documents::insert(&ctx, &ns, 0..1).await.expect("inserted");
        let builds_before = index_builds().await.len();
        let of = ns.clone();
        let asking = async move { create_indexes(&ctx, of, chosen, limits(), None).await };
        drop(spawn(Queue::Foreground, asking));
        while index_builds().await.len() == builds_before {
            sleep(Duration::from_millis(1)).await;
        }
    } else {
        let built = create_indexes(&ctx, ns.clone(), chosen, limits(), None).await;
        built.expect("they are made");
    }
    let collection = core_catalog().get(&ns).expect("it was made");
    assert_eq!(collection.builds().is_empty(), !in_build || count == 0);
    collection
}

#[test]
fn what_is_written_is_the_difference() {
    for (seed, partitions) in [(31, 1), (32, 3), (33, 3)] {
        with_node(seed, 1, partitions, move || async move {
            on_all_cores(|_| async {
                set_build_hold(Rc::new(|_| {
                    // Until the node ends.
                    let waits = !pinion_runtime::is_shutdown_requested();
                    Box::pin(async move { waits })
                }));
            })
            .await;
            let mut rng = random_stream("index writes");
            let mut written = 0;
            for number in 0..8 {
                let collection = collection_with(&mut rng, number, number % 2 == 1).await;
                let mut known = None;
                for _ in 0..CASES / 8 {
                    let is_checked = rng.chance(0.5);
                    let new = rng.chance(0.9).then(|| random_document(&mut rng));
                    written += check(&collection, known.as_deref(), new.as_deref(), is_checked);
                    // What is there was indexed.
                    if new
                        .as_deref()
                        .is_none_or(|new| can_be_indexed(&collection, new))
                    {
                        known = new;
                    }
                }
            }
            assert!(
                written > CASES,
                "too little is written to say anything: {written}"
            );
        });
    }
}
