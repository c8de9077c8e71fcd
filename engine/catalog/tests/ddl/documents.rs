//! Documents as statements write them, and a check of everything that indexes have.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawDocument, RawDocumentBuf, rawdoc};
use pinion_catalog::{
    Collection, GateAccess, OpEvent, OpKind, OplogFormat, core_catalog, document_id, encode_entry,
    entries_of, entry_partition, from_write_error, index_writes, partition_of, record_of,
    stored_document,
};
use pinion_query::DocumentKeyPattern;
use pinion_runtime::{Queue, submit_to};
use pinion_service::interrupt::{self, interruptible};
use pinion_storage::{
    Direction, Expect, Key, KeyRange, Op, PartitionId, ReadAt, Statement, TreeId, Write, storage,
};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

/// What the tests insert: indexes are on `a`, `b` and `c`, of which `b` has few values.
pub fn document(id: i32) -> RawDocumentBuf {
    rawdoc! { "_id": id, "a": -id, "b": id % 3, "c": id }
}

/// Inserts documents one by one, each behind the gate.
pub async fn insert(ctx: &OpContext, ns: &Namespace, ids: Range<i32>) -> Result<usize> {
    let count = ids.len();
    for id in ids {
        interrupt::check(ctx)?;
        let entering = core_catalog();
        let entering = entering.gates().enter(ns, GateAccess::Write);
        let _pass = interruptible(ctx, entering).await?;
        let found = core_catalog().get(ns).ok_or_else(|| {
            Error::new(ErrorCode::NAMESPACE_NOT_FOUND, format!("{ns} is not there"))
        })?;
        put(&found, None, &document(id)).await?;
    }
    Ok(count)
}

/// Writes a document that was not there; with a number where records have these.
pub async fn put(
    collection: &Collection,
    record: Option<i64>,
    document: &RawDocument,
) -> Result<()> {
    let key = collection.document_key(document_id(document)?, record);
    let partition = partition_of(collection, &key);
    let hash = storage().partition_hash();
    let of_indexes = index_writes(
        collection,
        partition,
        hash,
        record,
        None,
        Some(document),
        true,
    )?;
    let mut writes = of_indexes.writes;
    writes.push(Write {
        partition,
        tree: collection.tree(),
        key,
        op: Op::Put(Bytes::copy_from_slice(document.as_bytes())),
        expect: Expect::Absent,
    });
    let logged_key = collection.logged_key(document, &DocumentKeyPattern::ID)?;
    let entry = encode_entry(&OpEvent {
        kind: OpKind::Insert,
        ns: collection.ns.as_str(),
        uuid: Some(collection.uuid),
        o: document,
        o2: Some(&logged_key),
        from_migrate: false,
        wall_ms: pinion_runtime::wall_ms(),
        session: None,
        record,
        form: OplogFormat::Native,
    });
    let statement = Statement {
        writes,
        entry: Some(entry),
    };
    let mut outcomes = storage().execute(vec![statement], true).await;
    let outcome = outcomes.pop().expect("one statement has one outcome");
    outcome.map(|_| ()).map_err(from_write_error)
}

/// Copies documents into a capped collection, which gives them numbers in their order.
pub async fn copy(from: Arc<Collection>, to: Arc<Collection>) -> Result<()> {
    for (number, (_, _, value)) in (1..).zip(records(from.tree()).await) {
        put(&to, Some(number), stored_document(&value)).await?;
    }
    Ok(())
}

/// All that a tree has, in each partition.
pub async fn records(tree: TreeId) -> Vec<(PartitionId, Key, Bytes)> {
    let mut all = Vec::new();
    for partition in (0..storage().partition_count()).map(PartitionId) {
        let owner = storage().owner(partition);
        let read = submit_to(owner, Queue::Foreground, move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            let mut cursor =
                owned.cursor(tree, KeyRange::all(), Direction::Forward, ReadAt::Newest);
            let mut read = Vec::new();
            while let Some((key, found)) = cursor.next().await.expect("it can be read") {
                read.push((partition, key, found.value));
            }
            read
        });
        all.extend(read.await);
    }
    all
}

/// Checks that each index that is ready has what the documents say, and nothing more. Gives how
/// many documents there are.
pub async fn check(collection: &Collection) -> usize {
    let hash = storage().partition_hash();
    let documents = records(collection.tree()).await;
    for index in collection.secondary_indexes() {
        if index.building.is_some() {
            continue;
        }
        let mut expected = BTreeMap::new();
        for (partition, key, value) in &documents {
            let record = collection
                .record_of(key)
                .filter(|_| record_of(key).is_some());
            let made = entries_of(collection, index, stored_document(value), record);
            for entry in made.expect("it was indexed").entries {
                let place = entry_partition(collection, index, &entry, *partition, hash);
                expected.insert((place, entry.key), entry.type_bits);
            }
        }
        let found = records(index.tree).await.into_iter();
        let found: BTreeMap<_, _> = found
            .map(|(place, key, bits)| ((place, key), bits))
            .collect();
        assert!(
            found == expected,
            "index {} of {} has {} entries, and its documents {}",
            index.name(),
            collection.ns,
            found.len(),
            expected.len()
        );
    }
    documents.len()
}
