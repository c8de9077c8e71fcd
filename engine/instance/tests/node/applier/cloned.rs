//! A node copied while others write to it, with its log from the beginning of the copy on: the copy
//! is the same.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use pinion_apply::{
    Applier, ClonedDocument, begin_clone, clone_catalog, end_clone, parse_catalog_rows,
};
use pinion_bson::{Binary, BinarySubtype, Bson, Document, RawDocument, RawDocumentBuf, doc};
use pinion_catalog::{ApplyMode, Uuid, core_catalog};
use pinion_clock::Timestamp;
use pinion_runtime::sim::Death;
use pinion_runtime::{Duration, Queue, random_stream, sleep, spawn};
use pinion_storage::storage;

use super::SHAPES;
use super::faults::last_two;
use super::source::{Source, recording, workload};
use super::target::{log, state_of};
use crate::harness::{Client, with_member};

/// What was read of a node.
#[derive(Clone, Default)]
struct Copied {
    /// What is in the log up to here is in all that follows.
    begin: Timestamp,
    rows: Vec<RawDocumentBuf>,
    next_number: u64,
    documents: Vec<(Uuid, Vec<ClonedDocument>)>,
}

impl Copied {
    /// Reads a node that is written to meanwhile; each collection is read twice.
    async fn read(client: Client) -> Copied {
        let mut rng = random_stream("copier");
        let mut pause = async || sleep(Duration::from_micros(rng.below(2000))).await;
        let mut copied = Copied {
            begin: storage().visible(),
            ..Copied::default()
        };
        let mut above = Some(0);
        while let Some(after) = above {
            pause().await;
            let asked = doc! { "_replCatalogRows": 1, "above": after };
            let reply = client.at("admin").ok(asked).await;
            let reply = RawDocumentBuf::try_from(&reply).expect("a document");
            let found = parse_catalog_rows(&reply).expect("rows");
            above = found.above.map(|above| above as i64);
            copied.rows.extend(found.rows);
            copied.next_number = found.next_number;
        }
        for _ in 0..2 {
            for row in &copied.rows {
                pause().await;
                let Some(uuid) = uuid_of(row) else { continue };
                let is_capped = row.get_str("clustering").ok() == Some("record");
                let found = documents(&client, uuid, is_capped).await;
                copied.documents.push((uuid, found));
            }
        }
        copied
    }
}

/// The UUID of a collection; views have none.
fn uuid_of(row: &RawDocument) -> Option<Uuid> {
    let options = row
        .get_document("md")
        .and_then(|md| md.get_document("options"));
    pinion_bson::get(options.expect("options"), "uuid").and_then(Uuid::from_bson)
}

/// The documents of a collection, whatever it is called; none of one that is gone.
async fn documents(client: &Client, uuid: Uuid, is_capped: bool) -> Vec<ClonedDocument> {
    let Some(found) = core_catalog().current().by_uuid(uuid).cloned() else {
        return Vec::new();
    };
    let db: &'static str = match found.ns.db() {
        "test" => "test",
        "other" => "other",
        _ => "unseen",
    };
    let named = Bson::Binary(Binary {
        subtype: BinarySubtype::Uuid,
        bytes: uuid.0.to_vec(),
    });
    let find = doc! {
        "find": named, "batchSize": 100_000, "singleBatch": true, "showRecordId": is_capped,
    };
    let reply = client.at(db).run(find).await;
    let Ok(cursor) = reply.get_document("cursor") else {
        // Dropped, or in another database, since we looked.
        assert_eq!(reply.get_i32("code").ok(), Some(26), "{reply}");
        return Box::pin(documents(client, uuid, is_capped)).await;
    };
    let batch = cursor.get_array("firstBatch").expect("a batch");
    batch.iter().map(|value| cloned(value, is_capped)).collect()
}

fn cloned(value: &Bson, is_capped: bool) -> ClonedDocument {
    let mut document: Document = value.as_document().expect("a document").clone();
    let record = document.remove("$recordId");
    let record = record.filter(|_| is_capped);
    ClonedDocument {
        bytes: Bytes::from(
            RawDocumentBuf::try_from(&document)
                .expect("valid")
                .into_bytes(),
        ),
        record: record.map(|record| record.as_i64().expect("a number")),
    }
}

/// A node that was copied, and what was read of it.
fn copied_source(seed: u64, shape: (usize, u16), latest_us: u64) -> (Source, Copied) {
    let copied = Rc::new(RefCell::new(Copied::default()));
    let source = {
        let copied = copied.clone();
        recording(seed, shape, move |client| {
            let copied = copied.clone();
            async move {
                let copier = client.on(1);
                let copying = spawn(Queue::Foreground, async move {
                    let mut rng = random_stream("copy");
                    sleep(Duration::from_micros(rng.below(latest_us))).await;
                    Copied::read(copier).await
                });
                workload(&client).await;
                *copied.borrow_mut() = copying.await.expect("not stopped");
            }
        })
    };
    let copied = copied.take();
    let all = source.entries.len();
    let before = source
        .entries
        .partition_point(|entry| entry.0 <= copied.begin);
    let documents: usize = copied.documents.iter().map(|(_, found)| found.len()).sum();
    assert!(
        before > 0 && before < all * 9 / 10 && documents > 0,
        "seed {seed}: nothing to copy, or to apply: {before} of {all} entries, {documents} documents"
    );
    (source, copied)
}

/// Begins the log at the copy, and puts in collections and documents: `parts` thousandths of them.
async fn put(copied: &Copied, parts: usize) {
    begin_clone().await.expect("storage serves");
    let started = storage().begin_log_at(copied.begin).await;
    started.expect("storage serves");
    let targets = clone_catalog(copied.rows.clone(), copied.next_number).await;
    let targets = targets.expect("rows");
    let mut rng = random_stream("put");
    let count = copied.documents.len() * parts / 1000;
    for (nth, (uuid, documents)) in copied.documents[..count].iter().enumerate() {
        let target = targets.iter().find(|target| target.uuid() == *uuid);
        let target = target.expect("its row was copied");
        let over = nth >= copied.documents.len() / 2;
        let mut rest = documents.as_slice();
        while !rest.is_empty() {
            let (some, others) = rest.split_at(rng.between(1, rest.len() as u64) as usize);
            target.put(some.to_vec(), over).await.expect("documents");
            rest = others;
        }
    }
}

/// Applies what the log has above the beginning of the copy, and completes that.
async fn complete(source: &Source, copied: &Copied) -> Result<(), pinion_storage::ApplyError> {
    let applier = Applier::new(ApplyMode::InitialSync);
    let entries = source.entries.iter();
    for (ts, bytes) in entries.filter(|(ts, _)| *ts > copied.begin) {
        log(*ts, bytes).await;
        applier.apply(*ts, bytes.clone()).await?;
    }
    applier.barrier().await?;
    if storage().visible() < storage().last_allotted() {
        storage().set_applied(storage().last_allotted());
    }
    end_clone().await.expect("storage serves");
    Ok(())
}

#[test]
fn a_node_that_is_written_to_while_it_is_copied() {
    for (seed, [source, target]) in (900..).zip(SHAPES.into_iter().cycle().take(8)) {
        let (source, copied) = copied_source(seed, source, 60_000);
        let (cores, partitions) = target;
        with_member(seed, &[cores], partitions, None, move |_, client| {
            let (source, copied) = (source.clone(), copied.clone());
            async move {
                storage().follow().await.expect("storage serves");
                put(&copied, 1000).await;
                complete(&source, &copied).await.expect("applies");
                storage().lead().await;
                let (mut found, mut expected) = (state_of(&client).await, source.state.clone());
                found.sort_indexes();
                expected.sort_indexes();
                assert_eq!(found, expected, "seed {seed}: copied at {}", copied.begin);
            }
        });
    }
}

/// The node dies in the middle of a copy, and again when a second one is complete.
#[test]
fn a_copy_that_is_not_complete_is_dropped() {
    for (seed, [source, target]) in (920..).zip(SHAPES) {
        let (source, copied) = copied_source(seed, source, 30_000);
        let (cores, partitions) = target;
        let (cores, death) = ([cores; 3], Some(Death::PowerCut));
        with_member(seed, &cores, partitions, death, move |life, client| {
            let (source, copied) = (source.clone(), copied.clone());
            async move {
                let mut rng = random_stream("parts");
                if life < 2 {
                    let left: Vec<String> = core_catalog().current().databases();
                    assert!(
                        !left.iter().any(|db| db == "test" || db == "other"),
                        "seed {seed}: {left:?}"
                    );
                    storage().follow().await.expect("storage serves");
                }
                match life {
                    0 => {
                        // What was logged beside a part of the data cannot be applied to it.
                        let earlier = Copied {
                            begin: Timestamp::from_u64(1),
                            ..copied.clone()
                        };
                        put(&earlier, rng.below(1000) as usize).await;
                        for (ts, bytes) in source.entries.iter().filter(|e| e.0 <= copied.begin) {
                            log(*ts, bytes).await;
                        }
                        let last = storage().last_allotted();
                        storage().wait_durable(last).await.expect("storage serves");
                        // A second attempt in the same life.
                        if rng.chance(0.5) && last < copied.begin {
                            put(&copied, rng.below(1000) as usize).await;
                        }
                        let _ = storage().checkpoint().await;
                    }
                    1 => {
                        let later = Copied {
                            begin: copied.begin.max(storage().last_allotted().next()),
                            ..copied.clone()
                        };
                        put(&later, 1000).await;
                        complete(&source, &later).await.expect("applies");
                    }
                    _ => {
                        assert!(!core_catalog().current().is_partial());
                        let mut found = state_of(&client).await;
                        let mut expected = source.state.clone();
                        found.sort_indexes();
                        expected.sort_indexes();
                        assert_eq!(found, expected, "seed {seed}");
                    }
                }
            }
        });
    }
}

#[test]
fn an_entry_that_is_left_out_beside_a_copy_is_found() {
    for seed in 940..944 {
        let (source, copied) = copied_source(seed, (2, 2), 10_000);
        with_member(seed, &[2], 3, None, move |_, client| {
            let (mut source, copied) = (source.clone(), copied.clone());
            async move {
                let mut entries = source.entries.to_vec();
                let started = entries.partition_point(|(ts, _)| *ts <= copied.begin);
                let mut later = entries.split_off(started);
                let (_, last) = last_two(&later, &mut random_stream("fault"));
                later.remove(last);
                source.entries = later.into();
                storage().follow().await.expect("storage serves");
                put(&copied, 1000).await;
                if complete(&source, &copied).await.is_ok() {
                    storage().lead().await;
                    let (mut found, mut expected) = (state_of(&client).await, source.state);
                    found.sort_indexes();
                    expected.sort_indexes();
                    assert_ne!(found, expected, "seed {seed}: not found");
                }
            }
        });
    }
}
