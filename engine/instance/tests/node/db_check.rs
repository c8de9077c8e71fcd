//! `dbCheck` on one node: what it reads, what it finds wrong between documents and indexes, and
//! what a member does with entries.

use bytes::Bytes;
use md5::{Digest, Md5};
use pinion_apply::Applier;
use pinion_bson::{Bson, Document, RawDocumentBuf, Timestamp as BsonTimestamp, doc};
use pinion_catalog::{
    ApplyMode, CollectionOptions, OplogFormat, core_catalog, create_collection, set_oplog_format,
};
use pinion_clock::{OpTime, Timestamp};
use pinion_runtime::{Duration, Queue, now, sleep, submit_to};
use pinion_storage::{
    Direction, Expect, Key, KeyRange, Op, PartitionId, ReadAt, Statement, TreeId, Write, storage,
};
use pinion_wire::idl::Namespace;
use pinion_wire::{MemberState, OpContext};

use crate::applier::target::log;
use crate::fake_set::become_member;
use crate::harness::{Client, with_node};

const DOCUMENTS: i32 = 50;

async fn become_primary() {
    become_member(MemberState::Primary, true, OpTime::NULL).await;
}

async fn notes(client: &Client, filter: Document) -> Vec<Document> {
    let find = doc! { "find": "system.healthlog", "filter": filter };
    client.at("local").find(find).await
}

/// Waits until that number of notes is there.
async fn wait_for(client: &Client, filter: Document, count: usize) -> Vec<Document> {
    for _ in 0..2000 {
        let found = notes(client, filter.clone()).await;
        if found.len() >= count {
            assert_eq!(found.len(), count, "{found:?}");
            return found;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", notes(client, doc! {}).await);
}

fn of_c(options: Document) -> Document {
    let mut command = doc! { "dbCheck": "c" };
    command.extend(options);
    command
}

/// Runs a check to its end, which is the `runs`-th, and gives what it has written down.
async fn check(client: &Client, options: Document, runs: usize) {
    client.ok(of_c(options)).await;
    wait_for(client, doc! { "operation": "dbCheckStop" }, runs).await;
}

fn document(n: i32) -> Document {
    doc! { "_id": n, "a": n % 5, "t": [n, -n - 1] }
}

async fn fill(client: &Client, capped: bool) {
    if capped {
        let create = doc! { "create": "c", "capped": true, "size": 1 << 20 };
        client.ok(create).await;
    }
    let indexes = [
        doc! { "key": { "a": -1 }, "name": "a" },
        doc! { "key": { "t": 1 }, "name": "t" },
    ];
    client
        .ok(doc! { "createIndexes": "c", "indexes": indexes.to_vec() })
        .await;
    // Not in their order.
    let all: Vec<Document> = (0..DOCUMENTS)
        .map(|n| document(n * 7 % DOCUMENTS))
        .collect();
    client.ok(doc! { "insert": "c", "documents": all }).await;
}

/// The digest of some documents in their order.
fn digest_of(documents: impl Iterator<Item = i32>) -> String {
    let mut digest = Md5::new();
    for n in documents {
        let document = RawDocumentBuf::try_from(&document(n)).expect("a document");
        digest.update(document.as_bytes());
    }
    let bytes = digest.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_batch_has_the_digest_of_its_documents_in_order() {
    for (seed, cores, partitions, capped) in
        [(1500, 1, 1, false), (1501, 2, 3, false), (1502, 2, 3, true)]
    {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            fill(&client, capped).await;
            let every = doc! { "setParameter": 1, "dbCheckHealthLogEveryNBatches": 1 };
            client.at("admin").ok(every).await;
            check(&client, doc! { "maxDocsPerBatch": 20 }, 1).await;
            let batches = notes(&client, doc! { "operation": "dbCheckBatch" }).await;
            assert_eq!(batches.len(), 3, "{batches:?}");
            for (at, note) in (0..).zip(&batches) {
                let (from, to) = (at * 20, (at * 20 + 20).min(DOCUMENTS));
                let data = note.get_document("data").expect("data");
                assert_eq!(data.get_i64("count").ok(), Some(i64::from(to - from)));
                let md5 = data.get_document("md5").expect("digests");
                assert_eq!(md5.get_str("found").ok(), Some(&*digest_of(from..to)));
                assert_eq!(md5.get("expected"), md5.get("found"));
            }
            let last = batches[2].get_document("data").expect("data");
            let end = last.get_document("batchEnd").expect("an end");
            assert_eq!(end.get("_id"), Some(&Bson::MaxKey));
            // The other modes find nothing where nothing is wrong.
            let missing = doc! { "validateMode": "dataConsistencyAndMissingIndexKeysCheck" };
            check(&client, missing, 2).await;
            for (runs, index) in [(3, "a"), (4, "t")] {
                let extra = doc! {
                    "validateMode": "extraIndexKeysCheck", "secondaryIndex": index, "maxDocsPerBatch": 7,
                };
                if capped {
                    // Each member numbers the records of its entries.
                    let error = client.fails(of_c(extra), 72).await;
                    assert!(error.contains("capped"), "{error}");
                } else {
                    check(&client, extra, runs).await;
                }
            }
            let wrong = notes(&client, doc! { "severity": { "$ne": "info" } }).await;
            assert!(wrong.is_empty(), "{wrong:?}");
            let of_index = notes(&client, doc! { "data.batchStart.t": { "$exists": true } }).await;
            let counted = of_index.iter().map(|note| {
                let data = note.get_document("data").expect("data");
                data.get_i64("count").expect("a count")
            });
            let (entries, batches) = if capped { (0, 0) } else { (DOCUMENTS * 2, 15) };
            assert_eq!(counted.sum::<i64>(), i64::from(entries));
            assert_eq!(of_index.len(), batches);
        });
    }
}

/// Writes past all that keeps documents and indexes together: the first entry of an index is put
/// under another key.
async fn spoil(index: &str, removes: bool) {
    let ns = Namespace::new("test", "c").expect("a namespace");
    let collection = core_catalog().get(&ns).expect("a collection");
    let tree = collection.index(index).expect("an index").tree;
    rewrite_first(tree, |key, value| match removes {
        true => vec![(key, Op::Delete)],
        false => {
            // That of no document: the last byte ends the key, and the one before is of `_id`.
            let mut other = key;
            let last = other.len() - 2;
            other[last] ^= 0x40;
            vec![(other, Op::Put(value))]
        }
    })
    .await;
}

/// Changes the first record of a tree in the partition in which there is one, past everything else.
async fn rewrite_first(tree: TreeId, change: impl Fn(Key, Bytes) -> Vec<(Key, Op)>) {
    for partition in (0..storage().partition_count()).map(PartitionId) {
        let found = submit_to(
            storage().owner(partition),
            Queue::Foreground,
            move || async move {
                let owned = storage().partition(partition).expect("its owner");
                let (all, forward) = (KeyRange::all(), Direction::Forward);
                let mut cursor = owned.cursor(tree, all, forward, ReadAt::Newest);
                cursor.next().await.expect("it can be read")
            },
        )
        .await;
        let Some((key, read)) = found else { continue };
        let write = |(key, op)| Write {
            partition,
            tree,
            key,
            op,
            expect: Expect::Any,
        };
        let writes = change(key, read.value).into_iter().map(write).collect();
        let statement = Statement {
            writes,
            entry: None,
        };
        let outcomes = storage().execute(vec![statement], true).await;
        assert!(outcomes[0].is_ok(), "{outcomes:?}");
        return;
    }
    panic!("the tree is empty");
}

#[test]
fn keys_that_are_missing_or_too_many_are_written_down() {
    for (seed, cores, partitions) in [(1510, 1, 1), (1511, 2, 3)] {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            fill(&client, false).await;
            let missing = || doc! { "validateMode": "dataConsistencyAndMissingIndexKeysCheck" };
            let extra = |index: &str| doc! { "validateMode": "extraIndexKeysCheck", "secondaryIndex": index };
            spoil("a", true).await;
            check(&client, doc! {}, 1).await;
            check(&client, extra("a"), 2).await;
            assert_eq!(notes(&client, doc! { "severity": "error" }).await, []);
            check(&client, missing(), 3).await;
            let found = notes(&client, doc! { "severity": "error" }).await;
            let [note] = &found[..] else {
                panic!("{found:?}");
            };
            assert_eq!(note.get_str("scope").ok(), Some("index"));
            assert_eq!(
                note.get_str("msg").ok(),
                Some("Document has missing index keys")
            );
            let entry = note
                .get_document("data")
                .and_then(|data| data.get_document("found"));
            assert_eq!(
                entry.expect("an entry").get_str("indexName").ok(),
                Some("a")
            );
            spoil("t", false).await;
            check(&client, extra("t"), 4).await;
            let found = notes(&client, doc! { "severity": "error" }).await;
            assert_eq!(found.len(), 2, "{found:?}");
            let msg = found[1].get_str("msg").expect("a text");
            assert!(msg.contains("extra index key"), "{msg}");
            let mut quick = extra("t");
            quick.insert("skipLookupForExtraKeys", true);
            check(&client, quick, 5).await;
            assert_eq!(notes(&client, doc! { "severity": "error" }).await.len(), 2);
        });
    }
}

#[test]
fn where_it_is_refused() {
    with_node(1520, 2, 2, |client| async move {
        client.ok(doc! { "insert": "c", "documents": [{}] }).await;
        client.fails(doc! { "dbCheck": "c" }, 76).await;
        become_primary().await;
        set_oplog_format(OplogFormat::V44).await;
        let error = client.fails(doc! { "dbCheck": "c" }, 72).await;
        assert!(error.contains("4.4"), "{error}");
        set_oplog_format(OplogFormat::Native).await;
        client.fails(doc! { "dbCheck": "nosuch" }, 26).await;
        client.at("local").fails(doc! { "dbCheck": 1 }, 73).await;
        client
            .ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a" }] })
            .await;
        let extra = doc! { "validateMode": "extraIndexKeysCheck", "secondaryIndex": "a", "end": { "b": 1 } };
        let error = client.fails(of_c(extra), 72).await;
        assert!(error.contains("which are a"), "{error}");
        // It would be kept while it waits.
        let long = "x".repeat(70_000);
        client
            .fails(of_c(doc! { "start": { "_id": long } }), 10_334)
            .await;
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        client.fails(doc! { "dbCheck": "c" }, 10107).await;
        assert!(notes(&client, doc! {}).await.is_empty());
    });
}

#[test]
fn a_member_compares_what_entries_say() {
    with_node(1530, 2, 3, |client| async move {
        become_primary().await;
        fill(&client, false).await;
        let ns = Namespace::new("test", "c").expect("a namespace");
        let uuid = core_catalog().get(&ns).expect("a collection").uuid;
        storage().follow().await.expect("storage serves");
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        let read_at = storage().visible();
        let at = |ts: Timestamp| BsonTimestamp {
            time: ts.secs(),
            increment: ts.inc(),
        };
        let checks = doc! {
            "validateMode": "dataConsistency", "secondaryIndex": "", "skipLookupForExtraKeys": false, "bsonValidateMode": "kDefault",
        };
        let batch = |md5: &str, read_at: Timestamp| {
            doc! {
                "dbCheck": "test.c", "type": "batch", "md5": md5, "batchStart": { "_id": 9 }, "batchEnd": { "_id": 19 },
                "isStartIncluded": false, "readTimestamp": at(read_at), "logBatchToHealthLog": true,
                "secondaryIndexCheckParameters": checks.clone(),
            }
        };
        let right = digest_of(10..20);
        let unlogged = {
            let mut unlogged = batch(&right, read_at);
            unlogged.insert("logBatchToHealthLog", false);
            unlogged
        };
        let stop = |more: Document| {
            let mut stop = doc! { "dbCheck": "test.c", "type": "stop", "secondaryIndexCheckParameters": checks.clone() };
            stop.extend(more);
            stop
        };
        let commands = [
            batch(&right, read_at),
            unlogged,
            batch("wrong", read_at),
            batch(&right, Timestamp::new(1, 1)),
            // This one never comes.
            batch(&right, Timestamp::new(u32::MAX, 1)),
            doc! { "dbCheck": "test.c", "type": "batch", "md5": "x", "minKey": 1, "maxKey": 2, "readTimestamp": at(read_at) },
            doc! { "dbCheck": 5 },
            doc! { "applyOps": [{ "op": "c", "ns": "test.$cmd", "o": batch("nested", read_at) }] },
            stop(doc! { "outcome": "killed", "error": "operation was interrupted" }),
            stop(doc! {}),
        ];
        let applier = Applier::new(ApplyMode::Secondary);
        let first = storage().last_allotted().as_u64().max(1u64 << 32) + 1;
        for (ts, o) in (first..).zip(commands) {
            let ts = Timestamp::from_u64(ts);
            let entry = doc! { "ts": at(ts), "t": 1i64, "v": 2i64, "op": "c", "ns": "test.$cmd", "ui": bson_uuid(uuid.0), "o": o };
            let bytes = RawDocumentBuf::try_from(&entry)
                .expect("an entry")
                .into_bytes();
            let bytes = Bytes::from(bytes);
            log(ts, &bytes).await;
            applier
                .apply(ts, bytes)
                .await
                .expect("nothing ends the applier");
        }
        applier.barrier().await.expect("nothing ends the applier");
        wait_for(&client, doc! { "operation": "dbCheckStop" }, 2).await;
        let found = notes(&client, doc! {}).await;
        let notes: Vec<(&str, &str, &str)> = found
            .iter()
            .map(|note| {
                let text = |name| note.get_str(name).expect("a text");
                let data = note.get_document("data").expect("data");
                let error = data.get_str("error").unwrap_or("");
                let error = error.split_once(" at ").map_or(error, |(what, _)| what);
                (text("severity"), text("msg"), error)
            })
            .collect();
        let abandoned = "abandoning dbCheck batch";
        assert_eq!(
            notes,
            [
                ("info", "dbCheck batch consistent", ""),
                ("error", "dbCheck batch inconsistent", ""),
                (
                    "warning",
                    abandoned,
                    "the catalog is not kept any more as it was"
                ),
                (
                    "warning",
                    abandoned,
                    "the readTimestamp is not before the entry"
                ),
                (
                    "warning",
                    abandoned,
                    "the entry of type 'batch' is none of this version: nothing was compared"
                ),
                ("warning", abandoned, "the entry has no dbCheck"),
                ("warning", "dbCheck terminated", "operation was interrupted"),
                ("info", "", ""),
            ]
        );
        let wrong = found[1].get_document("data").expect("data");
        let md5 = wrong.get_document("md5").expect("digests");
        assert_eq!(md5, &doc! { "expected": "wrong", "found": &right });
        assert_eq!(
            wrong.get_document("batchEnd").ok(),
            Some(&doc! { "_id": 19 })
        );
        assert_eq!(wrong.get_i64("count").ok(), Some(10));
    });
}

#[test]
fn a_run_that_was_killed_under_the_lock_ends_with_the_node() {
    with_node(1540, 2, 2, |client| async move {
        become_primary().await;
        fill(&client, false).await;
        let admin = client.at("admin");
        admin.ok(doc! { "fsync": 1, "lock": true }).await;
        client.ok(of_c(doc! {})).await;
        let filter = doc! { "currentOp": 1, "command.dbCheck": { "$exists": true } };
        let reply = admin.ok(filter).await;
        let listed = reply.get_array("inprog").expect("a list");
        let op = listed[0].as_document().and_then(|op| op.get("opid"));
        let op = op.expect("a number").clone();
        admin.ok(doc! { "killOp": 1, "op": op }).await;
        // It waits for the lock, to log that it has ended.
        sleep(Duration::from_secs(3)).await;
        assert_eq!(notes(&client, doc! {}).await, []);
    });
}

async fn set_rate(client: &Client, megabytes: i32) {
    let set = doc! { "setParameter": 1, "maxDbCheckMBperSec": megabytes, "dbCheckHealthLogEveryNBatches": 1 };
    client.at("admin").ok(set).await;
}

#[test]
fn a_run_reads_no_more_than_it_may() {
    with_node(1550, 2, 3, |client| async move {
        become_primary().await;
        for n in 0..8 {
            let document = doc! { "_id": n, "text": "x".repeat(512 * 1024) };
            client
                .ok(doc! { "insert": "c", "documents": [document] })
                .await;
        }
        set_rate(&client, 1).await;
        let began = now();
        check(&client, doc! {}, 1).await;
        let took = began.elapsed();
        let batches = notes(&client, doc! { "operation": "dbCheckBatch" }).await;
        let counts: Vec<i64> = batches
            .iter()
            .map(|note| {
                note.get_document("data")
                    .and_then(|data| data.get_i64("count"))
            })
            .map(|count| count.expect("a count"))
            .collect();
        assert_eq!(counts, [2, 2, 2, 2]);
        // A second behind each but the last.
        let (least, most) = (Duration::from_millis(2900), Duration::from_millis(3900));
        assert!(least < took && took < most, "{took:?}");
        // What is set meanwhile holds for a run that waits.
        let document = doc! { "_id": -1, "text": "x".repeat(12 * 1024 * 1024) };
        client
            .ok(doc! { "insert": "c", "documents": [document] })
            .await;
        client
            .ok(doc! { "insert": "gone", "documents": [{}] })
            .await;
        client.ok(of_c(doc! {})).await;
        client.ok(doc! { "dbCheck": "gone" }).await;
        client.ok(doc! { "drop": "gone" }).await;
        wait_for(&client, doc! { "operation": "dbCheckBatch" }, 5).await;
        set_rate(&client, 0).await;
        let set = now();
        let stops = wait_for(&client, doc! { "operation": "dbCheckStop" }, 3).await;
        assert!(
            set.elapsed() < Duration::from_secs(3),
            "{:?}",
            set.elapsed()
        );
        let data = stops[2].get_document("data").expect("data");
        assert_eq!(stops[2].get_str("severity").ok(), Some("warning"));
        assert_eq!(
            data.get_str("error").ok(),
            Some("there was nothing to compare")
        );
    });
}

#[test]
fn the_health_log_is_made_by_the_node() {
    with_node(1560, 2, 2, |client| async move {
        become_primary().await;
        fill(&client, false).await;
        let (local, name) = (client.at("local"), "system.healthlog");
        let made_by_clients = || {
            [
                (doc! { "create": name }, 20),
                (doc! { "create": name, "capped": true, "size": 4096 }, 20),
                (
                    doc! { "createIndexes": name, "indexes": [{ "key": { "a": 1 }, "name": "a" }] },
                    67,
                ),
                (doc! { "insert": name, "documents": [{}] }, 73),
            ]
        };
        for there in [false, true] {
            for (command, code) in made_by_clients() {
                let reply = local.run(command.clone()).await;
                let errors = reply.get_array("writeErrors").ok();
                let refused = match errors.and_then(|errors| errors[0].as_document()) {
                    Some(error) => error.get_i32("code"),
                    None => reply.get_i32("code"),
                };
                assert_eq!(refused.ok(), Some(code), "{command} {reply}");
            }
            if !there {
                assert_eq!(notes(&client, doc! {}).await, []);
                check(&client, doc! {}, 1).await;
            }
        }
        local.ok(doc! { "drop": name }).await;
        // Whatever else has the name is not written to.
        let ns = Namespace::new("local", name).expect("a namespace");
        let ctx = OpContext::internal(0, pinion_command::row("create"), "local", now().as_nanos());
        let made = create_collection(&ctx, ns.clone(), CollectionOptions::default()).await;
        made.expect("it was not there");
        client.ok(of_c(doc! {})).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(notes(&client, doc! {}).await, []);
        local.ok(doc! { "drop": name }).await;
        check(&client, doc! {}, 1).await;
        let made = core_catalog().get(&ns).expect("a collection");
        assert!(made.options.capped.is_some());
    });
}

#[test]
fn what_is_no_text_is_a_fault_where_that_is_asked() {
    with_node(1570, 2, 3, |client| async move {
        become_primary().await;
        let document = doc! { "_id": 1, "text": "text" };
        client
            .ok(doc! { "insert": "c", "documents": [document] })
            .await;
        let ns = Namespace::new("test", "c").expect("a namespace");
        let tree = core_catalog().get(&ns).expect("a collection").tree();
        rewrite_first(tree, |key, value| {
            let mut bytes = value.to_vec();
            let at = bytes.windows(5).rposition(|part| part == b"text\0");
            bytes[at.expect("its text")] = 0xff;
            vec![(key, Op::Put(Bytes::from(bytes)))]
        })
        .await;
        for (runs, mode, faults) in [(1, "kDefault", 0), (2, "kExtended", 1), (3, "kFull", 2)] {
            check(&client, doc! { "bsonValidateMode": mode }, runs).await;
            let found = notes(&client, doc! { "severity": "error" }).await;
            assert_eq!(found.len(), faults, "{mode}: {found:?}");
        }
    });
}

fn bson_uuid(bytes: [u8; 16]) -> Bson {
    Bson::Binary(pinion_bson::Binary {
        subtype: pinion_bson::BinarySubtype::Uuid,
        bytes: bytes.to_vec(),
    })
}
