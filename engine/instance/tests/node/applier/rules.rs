//! What an applier does with entries that do not fit, and what readers see of entries that are one.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use pinion_apply::Applier;
use pinion_bson::{DocBuilder, Document, RawArrayBuf, RawDocumentBuf, doc, rawdoc};
use pinion_catalog::{ApplyMode, GateAccess, core_catalog};
use pinion_clock::Timestamp;
use pinion_runtime::{Duration, Queue, sleep, spawn};
use pinion_storage::{ApplyError, storage};
use pinion_wire::idl::Namespace;

use super::target::log;
use crate::harness::{Client, column, with_node};

async fn uuid_of(client: &Client) -> [u8; 16] {
    client
        .ok(doc! { "insert": "c", "documents": [{ "_id": 1, "n": 1 }] })
        .await;
    let hash = client.ok(doc! { "dbHash": 1 }).await;
    let uuids = hash.get_document("uuids").expect("uuids");
    match uuids.get("c") {
        Some(pinion_bson::Bson::Binary(uuid)) => uuid.bytes[..].try_into().expect("a UUID"),
        other => panic!("{other:?}"),
    }
}

fn entry(op: &str, ns: &str, uuid: [u8; 16], o: RawDocumentBuf) -> RawDocumentBuf {
    let ui = pinion_bson::RawBson::Binary(pinion_bson::Binary {
        subtype: pinion_bson::BinarySubtype::Uuid,
        bytes: uuid.to_vec(),
    });
    match op {
        "u" => rawdoc! { "op": op, "ns": ns, "ui": ui, "o": o, "o2": { "_id": 2 } },
        _ => rawdoc! { "op": op, "ns": ns, "ui": ui, "o": o },
    }
}

/// Applies entries behind all that is there; gives how many operations were passed over.
async fn apply(mode: ApplyMode, entries: Vec<RawDocumentBuf>) -> Result<u64, ApplyError> {
    let applier = Applier::new(mode);
    let mut ts = storage().follow().await.expect("storage serves");
    for entry in entries {
        ts = ts.next();
        let bytes = Bytes::from(entry.into_bytes());
        log(ts, &bytes).await;
        applier.apply(ts, bytes).await?;
    }
    applier.barrier().await?;
    assert_eq!(applier.applied(), ts);
    storage().set_applied(ts);
    storage().lead().await;
    Ok(applier.counts().passed_over)
}

/// An entry, on a node whose collection has the document 1 and not 2: how much of it is passed
/// over, or a part of the error.
fn check(
    mode: ApplyMode,
    entry: impl Fn([u8; 16]) -> RawDocumentBuf + Copy + 'static,
    expected: Result<u64, &'static str>,
) {
    with_node(880, 2, 3, move |client| async move {
        let entry = entry(uuid_of(&client).await);
        let shown = format!("{mode:?} {entry:?}");
        match (apply(mode, vec![entry]).await, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{shown}"),
            (Err(found), Err(part)) => assert!(found.0.contains(part), "{shown}: {}", found.0),
            (found, expected) => panic!("{shown}: {found:?}, not {expected:?}"),
        }
    });
}

#[test]
fn entries_that_do_not_fit() {
    use ApplyMode::{InitialSync, Secondary};
    let update = |uuid| {
        entry(
            "u",
            "test.c",
            uuid,
            rawdoc! { "$v": 2, "diff": { "u": { "n": 2 } } },
        )
    };
    check(
        Secondary,
        update,
        Err("the document to update is not there"),
    );
    check(InitialSync, update, Ok(1));
    let delete = |uuid| entry("d", "test.c", uuid, rawdoc! { "_id": 2 });
    check(Secondary, delete, Ok(1));
    check(InitialSync, delete, Ok(1));
    let insert = |uuid| entry("i", "test.c", uuid, rawdoc! { "_id": 1, "n": 7 });
    check(Secondary, insert, Ok(0));
    let unknown = |_| entry("i", "test.c", [9; 16], rawdoc! { "_id": 1 });
    check(Secondary, unknown, Err("unknown collection"));
    check(InitialSync, unknown, Ok(1));
    let local = |uuid| entry("i", "local.c", uuid, rawdoc! { "_id": 1 });
    check(Secondary, local, Err("not replicated"));
    let plain = |uuid| entry("c", "test.$cmd", uuid, rawdoc! { "drop": "c" });
    check(Secondary, plain, Ok(0));
    check(InitialSync, plain, Ok(0));
    let gone = |_| entry("c", "test.$cmd", [9; 16], rawdoc! { "drop": "c" });
    check(Secondary, gone, Ok(1));
    let other = |uuid| entry("c", "test.$cmd", uuid, rawdoc! { "emptycapped": "c" });
    check(Secondary, other, Err("there is no such command"));
    let noop = |_| rawdoc! { "op": "n", "ns": "", "o": { "msg": "periodic noop" } };
    check(Secondary, noop, Ok(0));
    let strange = |uuid| entry("x", "test.c", uuid, rawdoc! { "_id": 1 });
    check(Secondary, strange, Err("unknown op 'x'"));
    let prepared = |uuid| {
        entry(
            "c",
            "admin.$cmd",
            uuid,
            rawdoc! { "applyOps": [], "prepare": true },
        )
    };
    check(Secondary, prepared, Err("names none"));
}

#[test]
fn an_insert_over_a_document_replaces_its_index_entries() {
    with_node(890, 2, 3, |client| async move {
        let uuid = uuid_of(&client).await;
        let index = doc! { "key": { "n": 1 }, "name": "n", "unique": true };
        client
            .ok(doc! { "createIndexes": "c", "indexes": [index] })
            .await;
        let entries = (2..40).map(|n| entry("i", "test.c", uuid, rawdoc! { "_id": 1, "n": n }));
        let applied = apply(ApplyMode::Secondary, entries.collect()).await;
        assert_eq!(applied, Ok(0));
        let found = client
            .find(doc! { "find": "c", "filter": { "n": { "$gt": 0 } }, "hint": "n" })
            .await;
        assert_eq!(found, [doc! { "_id": 1, "n": 39 }]);
        let valid = client.ok(doc! { "validate": "c", "full": true }).await;
        assert_eq!(valid.get_bool("valid").ok(), Some(true), "{valid}");
    });
}

#[test]
fn a_change_of_the_catalog_waits_for_readers_and_keeps_new_ones_out() {
    with_node(895, 2, 3, |client| async move {
        let uuid = uuid_of(&client).await;
        let ns = Namespace::parse("test.c").expect("a namespace");
        let gone = core_catalog().get(&ns).expect("made");
        let number = gone.number as i64;
        let rows = rawdoc! {
            "rows": [], "removed": [number], "dropped": [number], "documents": [], "next": number + 1,
        };
        let mut drop_it = DocBuilder::new();
        drop_it
            .append_all(&entry("c", "test.$cmd", uuid, rawdoc! { "drop": "c" }))
            .append("o2", &*rows);
        let drop_it = drop_it.finish();
        let reading = core_catalog().gates().enter(&ns, GateAccess::Read).await;
        let applying = spawn(
            Queue::Foreground,
            apply(ApplyMode::Secondary, vec![drop_it]),
        );
        sleep(Duration::from_millis(5)).await;
        assert!(!applying.is_finished() && core_catalog().get(&ns).is_some());
        let admitted = core_catalog().gates().try_enter(&ns, GateAccess::Read);
        assert!(admitted.is_none(), "a reader in the middle of a drop");
        drop(reading);
        assert_eq!(applying.await.expect("not stopped"), Ok(0));
        assert!(core_catalog().get(&ns).is_none());
        let again = client.find(doc! { "find": "c" }).await;
        assert!(again.is_empty(), "{again:?}");
    });
}

/// The documents that an `applyOps` writes lie in several partitions.
#[test]
fn readers_see_all_of_an_apply_ops_or_nothing() {
    const DOCUMENTS: i32 = 12;
    for (seed, cores, partitions) in [(891, 1, 3), (892, 2, 3), (893, 3, 3)] {
        with_node(seed, cores, partitions, |client| async move {
            let uuid = uuid_of(&client).await;
            client
                .ok(doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] })
                .await;
            let applier = Rc::new(Applier::new(ApplyMode::Secondary));
            let first = storage().follow().await.expect("storage serves");
            let last = Timestamp::from_u64(first.as_u64() + 300);
            let visible = {
                let applier = applier.clone();
                spawn(Queue::Foreground, async move {
                    let mut applied = first;
                    while applied < last {
                        applied = applier.wait_beyond(applied).await.expect("applies");
                        storage().set_applied(applied);
                    }
                })
            };
            let (stop, reads) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
            let reader = spawn(
                Queue::Foreground,
                read(client.on(1), stop.clone(), reads.clone()),
            );
            let mut ts = first;
            while ts < last {
                ts = ts.next();
                let round = ts.as_u64() as i64;
                let mut operations = RawArrayBuf::new();
                for id in 0..DOCUMENTS {
                    operations.push(entry(
                        "i",
                        "test.c",
                        uuid,
                        rawdoc! { "_id": id, "round": round },
                    ));
                }
                let whole =
                    rawdoc! { "op": "c", "ns": "admin.$cmd", "o": { "applyOps": operations } };
                let bytes = Bytes::from(whole.into_bytes());
                log(ts, &bytes).await;
                applier.apply(ts, bytes).await.expect("applies");
                if round % 16 == 0 {
                    sleep(Duration::from_micros(100)).await;
                }
            }
            visible.await.expect("not stopped");
            stop.set(true);
            reader.await.expect("not stopped");
            assert!(reads.get() > 3, "{} reads", reads.get());
        });
    }

    async fn read(client: Client, stop: Rc<Cell<bool>>, reads: Rc<Cell<u32>>) {
        while !stop.get() {
            let found: Vec<Document> = client.find(doc! { "find": "c", "batchSize": 100 }).await;
            let rounds = column(&found, "round");
            assert!(
                rounds.is_empty() || rounds.len() == DOCUMENTS as usize,
                "{found:?}"
            );
            assert!(rounds.windows(2).all(|two| two[0] == two[1]), "{found:?}");
            reads.set(reads.get() + 1);
            sleep(Duration::from_micros(50)).await;
        }
    }
}
