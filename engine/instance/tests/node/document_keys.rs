//! Documents' keys in the log that have fields of a shard key, and documents that move between
//! shards.

use bytes::Bytes;
use pinion_bson::{Bson, DateTime, DocBuilder, Document, RawDocumentBuf, doc, rawdoc};
use pinion_catalog::{append_lsid, core_catalog, statement_key};
use pinion_clock::Timestamp;
use pinion_exec::acquire::{AcquiredCollection, acquire_write};
use pinion_exec::write::{
    BatchOutcome, Change, InsertOptions, ModifyOutcome, ModifyStatement, Validation,
    insert_documents, prepare_for_insert, run,
};
use pinion_query::{Matcher, Update};
use pinion_runtime::{now, on_all_cores};
use pinion_storage::{PartitionId, ReadAt, storage};
use pinion_wire::OpContext;
use pinion_wire::idl::{Lsid, Namespace};

use crate::applier::source::recording;
use crate::harness::with_member;
use crate::retryable::{SHAPES, become_primary, retryable};
use crate::retryable_durable::follow;
use crate::transactions::insert;

/// The entries of the collection, without what says when and where they were made.
fn alike(entries: &[(Timestamp, Bytes)]) -> Vec<Document> {
    let document = |(_, bytes): &(Timestamp, Bytes)| {
        let raw = pinion_catalog::stored_document(bytes);
        Document::try_from(raw).expect("a document")
    };
    let is_of_c = |entry: &Document| entry.get_str("ns").ok() == Some("test.c");
    let mut found: Vec<Document> = entries.iter().map(document).filter(is_of_c).collect();
    for entry in &mut found {
        for name in ["ts", "t", "v", "ns", "ui", "wall"] {
            assert!(entry.remove(name).is_some(), "{entry}");
        }
    }
    found
}

/// The records of a statement as they are stored.
async fn stored_records(lsid: Lsid, stmt_id: i32) -> Vec<Document> {
    let ns = Namespace::parse("config.transactions").expect("a namespace");
    let tree = core_catalog().get(&ns).expect("it is there").tree();
    let key = statement_key(&lsid, stmt_id);
    let found = on_all_cores(move |_| {
        let key = key.clone();
        async move {
            let mut found = Vec::new();
            for partition in (0..storage().partition_count()).map(PartitionId) {
                let Some(owned) = storage().partition(partition) else {
                    continue;
                };
                let read = owned.get(tree, &key, ReadAt::Newest).await;
                found.extend(read.expect("no page is damaged").map(|read| read.value));
            }
            found
        }
    });
    let found = found.await.into_iter().flatten();
    let document = |bytes: Bytes| {
        let raw = pinion_catalog::stored_document(&bytes);
        Document::try_from(raw).expect("a document")
    };
    found.map(document).collect()
}

/// A member applies documents by the `_id` of what names them, and records the whole key of what
/// retryable statements did with them.
#[test]
fn a_member_applies_entries_with_shard_keys() {
    for (seed, (cores, partitions)) in (2500..).zip(SHAPES) {
        with_member(seed, &[cores], partitions, None, |_, client| async move {
            become_primary().await;
            let index = doc! { "key": { "a": 1 }, "name": "a" };
            client
                .ok(doc! { "createIndexes": "c", "indexes": [index] })
                .await;
            client.ok(retryable(1, 1, insert(&[1]))).await;
            let ns = Namespace::new("test", "c").expect("a namespace");
            let uuid = core_catalog().get(&ns).expect("it is there").uuid;
            let lsid = Lsid::of_client([1; 16], None);
            let own = stored_records(lsid, 0).await;
            assert!(own.len() == 1 && !own[0].contains_key("docKey"), "{own:?}");
            let key = |a: i32| doc! { "a": a, "_id": 2 };
            let whole = |a: i32| doc! { "_id": 2, "a": a };
            let diff = doc! { "$v": 2, "diff": { "u": { "a": 6 } } };
            for (stmt_id, (op, o, o2, of_record, left)) in (5..).zip([
                ("i", whole(5), Some(key(5)), key(5), vec![whole(5)]),
                ("u", diff, Some(key(5)), key(5), vec![whole(6)]),
                ("u", whole(7), Some(key(6)), key(6), vec![whole(7)]),
                ("d", key(7), None, key(7), vec![]),
            ]) {
                let head = doc! { "op": op, "ns": "test.c" };
                let mut rest = doc! { "o": o };
                if let Some(o2) = o2 {
                    rest.insert("o2", o2);
                }
                rest.insert("fromMigrate", true);
                rest.insert("wall", Bson::DateTime(DateTime::from_millis(7)));
                rest.insert("txnNumber", 2i64);
                rest.insert("stmtId", stmt_id);
                let raw = |part: &Document| RawDocumentBuf::try_from(part).expect("sound");
                let mut entry = DocBuilder::new();
                entry
                    .append_all(&raw(&head))
                    .append("ui", uuid.to_bson())
                    .append_all(&raw(&rest));
                append_lsid(&mut entry, "lsid", &lsid);
                let entry = entry.finish();
                let ts = storage().last_allotted().next();
                follow(&[(ts, Bytes::from(entry.into_bytes()))]).await;
                for filter in [doc! { "_id": 2 }, doc! { "a": { "$gt": 0 } }] {
                    let found = client.find(doc! { "find": "c", "filter": filter }).await;
                    assert_eq!(found, left, "{op}");
                }
                let records = stored_records(lsid, stmt_id).await;
                assert_eq!(records.len(), 1, "{records:?}");
                assert_eq!(records[0].get_document("docKey").ok(), Some(&of_record));
            }
            let valid = client.ok(doc! { "validate": "c", "full": true }).await;
            assert_eq!(valid.get_bool("valid").ok(), Some(true), "{valid}");
            // Such records answer as others do.
            pinion_exec::forget_sessions().await;
            let mut again = retryable(1, 2, insert(&[2]));
            again.insert("stmtIds", vec![5]);
            let reply = client.ok(again).await;
            assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
            assert_eq!(client.find(doc! { "find": "c" }).await.len(), 1);
        });
    }
}

async fn acquired() -> (OpContext, AcquiredCollection) {
    let ctx = OpContext::internal(0, pinion_command::row("insert"), "test", now().as_nanos());
    let ns = Namespace::new("test", "c").expect("a namespace");
    let acquired = acquire_write(&ctx, ns, None).await;
    (ctx, acquired.expect("it can be written to"))
}

/// Inserts, updates or deletes the document as a migration does.
async fn migrate(change: Option<Change>, id: i32) {
    let (ctx, acquired) = acquired().await;
    let filter = rawdoc! { "_id": id };
    let Some(change) = change else {
        let document = prepare_for_insert(&rawdoc! { "_id": id, "a": 1 }, true).await;
        let documents = vec![(0, document.expect("it can be stored"))];
        let options = InsertOptions {
            validation: Validation::Bypassed,
            from_migrate: true,
            ..InsertOptions::default()
        };
        let mut outcome = BatchOutcome::default();
        let inserted = insert_documents(&ctx, acquired, documents, options, &mut outcome).await;
        inserted.expect("the node takes writes");
        assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
        return;
    };
    let matcher = Matcher::parse(&filter).expect("a filter");
    let statement = ModifyStatement {
        from_migrate: true,
        ..ModifyStatement::plain(matcher, filter, change)
    };
    let mut outcome = ModifyOutcome::default();
    let changed = run(&ctx, acquired, &statement, &mut outcome).await;
    changed.expect("the node takes writes");
    assert_eq!(outcome.modified, 1);
}

/// A document comes with this `_id`, is brought up to date, and goes again.
pub async fn migrate_in_and_out(id: i32) {
    migrate(None, id).await;
    let update = Update::from_logged(&rawdoc! { "_id": id, "a": 2 });
    migrate(Some(Change::Update(update)), id).await;
    migrate(Some(Change::Delete), id).await;
}

#[test]
fn the_log_marks_what_moves_between_shards() {
    for (seed, shape) in (2510..).zip(SHAPES) {
        let source = recording(seed, shape, |client| async move {
            become_primary().await;
            client.ok(insert(&[1])).await;
            migrate_in_and_out(2).await;
            let delete = doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] };
            client.ok(delete).await;
            let written = storage().last_allotted();
            (storage().wait_durable(written).await).expect("storage serves");
        });
        assert_eq!(
            alike(&source.entries),
            [
                doc! { "op": "i", "o": { "_id": 1, "n": 0 }, "o2": { "_id": 1 } },
                doc! { "op": "i", "o": { "_id": 2, "a": 1 }, "o2": { "_id": 2 }, "fromMigrate": true },
                doc! { "op": "u", "o": { "_id": 2, "a": 2 }, "o2": { "_id": 2 }, "fromMigrate": true },
                doc! { "op": "d", "o": { "_id": 2 }, "fromMigrate": true },
                doc! { "op": "d", "o": { "_id": 1 } },
            ]
        );
    }
}
