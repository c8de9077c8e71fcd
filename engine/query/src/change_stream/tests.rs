//! Tables of entries with their events, of tokens, and of specifications.

use std::str::FromStr;

use bytes::Bytes;
use pinion_bson::{
    Binary, BinarySubtype, DateTime, ObjectId, RawArrayBuf, RawBson, RawDocument, RawDocumentBuf,
    Timestamp, rawbson, rawdoc,
};

use super::*;

const UUID: [u8; 16] = *b"0123456789abcdef";

fn ts(time: u32, increment: u32) -> Timestamp {
    Timestamp { time, increment }
}

fn uuid() -> Binary {
    Binary {
        subtype: BinarySubtype::Uuid,
        bytes: UUID.to_vec(),
    }
}

fn options(spec: RawDocumentBuf) -> ChangeStreamOptions {
    ChangeStreamOptions::parse(RawBson::Document(spec).as_raw_bson_ref()).expect("a specification")
}

/// An entry with this operation.
fn entry(op: &str, ns: &str, o: RawDocumentBuf, more: RawDocumentBuf) -> RawDocumentBuf {
    let mut out = pinion_bson::DocBuilder::new();
    out.append_all(&rawdoc! {
        "ts": ts(9, 2), "t": 1i64, "v": 2i64, "op": op, "ns": ns, "ui": uuid(), "o": o,
    });
    out.append_all(&more);
    out.append_all(&rawdoc! { "wall": DateTime::from_millis(5000) });
    out.finish()
}

fn events_of(scope: &Scope, spec: RawDocumentBuf, entry: RawDocumentBuf) -> Vec<RawDocumentBuf> {
    let entry = Bytes::from(entry.into_bytes());
    let (changes, _) = changes_of(scope, &entry, &entry, 0);
    let options = options(spec);
    let events = changes.iter().flat_map(|change| {
        options
            .events(scope, change, i64::MIN)
            .expect("events of a sound entry")
    });
    events
        .map(|mut event| {
            if let Image::LookUp { key, .. } = &event.full_document {
                event.full_document = Image::Document(key.clone());
            }
            event.into_document()
        })
        .collect()
}

/// The events without what all have.
fn check(scope: &Scope, spec: RawDocumentBuf, entry: RawDocumentBuf, expected: &[RawDocumentBuf]) {
    let found = events_of(scope, spec, entry.clone());
    let short: Vec<RawDocumentBuf> = found
        .iter()
        .map(|event| {
            let mut out = pinion_bson::DocBuilder::new();
            for (name, value) in pinion_bson::elements(event) {
                if !matches!(name, "_id" | "clusterTime" | "wallTime") {
                    out.append_raw(name, value);
                }
            }
            assert_eq!(event.get_timestamp("clusterTime").ok(), Some(ts(9, 2)));
            assert!(event.get_document("_id").is_ok());
            out.finish()
        })
        .collect();
    assert_eq!(short, expected, "{entry:?}");
}

fn collection() -> Scope {
    Scope::Collection("d.c".into())
}

fn database() -> Scope {
    Scope::Database("d".into())
}

fn expanded() -> RawDocumentBuf {
    rawdoc! { "showExpandedEvents": true }
}

fn ns() -> RawDocumentBuf {
    rawdoc! { "db": "d", "coll": "c" }
}

#[test]
fn changes_of_documents() {
    let document = rawdoc! { "_id": 1, "a": 2 };
    check(
        &collection(),
        rawdoc! {},
        entry("i", "d.c", document.clone(), rawdoc! {}),
        &[rawdoc! {
            "operationType": "insert", "fullDocument": document.clone(), "ns": ns(), "documentKey": { "_id": 1 },
        }],
    );
    check(
        &collection(),
        rawdoc! {},
        entry("u", "d.c", document.clone(), rawdoc! { "o2": { "_id": 1 } }),
        &[rawdoc! {
            "operationType": "replace", "fullDocument": document.clone(), "ns": ns(), "documentKey": { "_id": 1 },
        }],
    );
    check(
        &collection(),
        rawdoc! { "fullDocumentBeforeChange": "whenAvailable" },
        entry(
            "d",
            "d.c",
            rawdoc! { "_id": 1 },
            rawdoc! { "preImage": document.clone() },
        ),
        &[rawdoc! {
            "operationType": "delete", "ns": ns(), "documentKey": { "_id": 1 }, "fullDocumentBeforeChange": document.clone(),
        }],
    );
    check(
        &collection(),
        rawdoc! { "fullDocumentBeforeChange": "whenAvailable" },
        entry("d", "d.c", rawdoc! { "_id": 1 }, rawdoc! {}),
        &[rawdoc! {
            "operationType": "delete", "ns": ns(), "documentKey": { "_id": 1 }, "fullDocumentBeforeChange": null,
        }],
    );
    check(
        &collection(),
        expanded(),
        entry("d", "d.c", rawdoc! { "_id": 1 }, rawdoc! {}),
        &[rawdoc! {
            "operationType": "delete", "collectionUUID": uuid(), "ns": ns(), "documentKey": { "_id": 1 },
        }],
    );
}

#[test]
fn what_is_not_watched() {
    let insert = |ns: &str| entry("i", ns, rawdoc! { "_id": 1 }, rawdoc! {});
    let check = |scope: &Scope, ns: &str, expected: usize| {
        let found = events_of(scope, rawdoc! {}, insert(ns));
        assert_eq!(found.len(), expected, "{scope:?} {ns}");
    };
    check(&collection(), "d.c", 1);
    check(&collection(), "d.c2", 0);
    check(&collection(), "d2.c", 0);
    check(&database(), "d.c2", 1);
    check(&database(), "d.x.y", 1);
    check(&database(), "d.system.views", 0);
    check(&database(), "d2.c", 0);
    check(&Scope::Cluster, "d2.c", 1);
    for own in ["config.c", "admin.c", "local.c", "d.system.js"] {
        check(&Scope::Cluster, own, 0);
    }
    let noop = entry("n", "", rawdoc! { "msg": "periodic noop" }, rawdoc! {});
    assert!(!Scope::Cluster.may_concern(&noop));
    let check_of_members = rawdoc! { "dbCheck": "d.c", "type": "batch", "md5": "x" };
    for scope in [collection(), database(), Scope::Cluster] {
        let entry = entry("c", "d.$cmd", check_of_members.clone(), rawdoc! {});
        let found = events_of(&scope, rawdoc! { "showExpandedEvents": true }, entry);
        assert!(found.is_empty(), "{scope:?} {found:?}");
    }
}

#[test]
fn update_descriptions() {
    let check_description = |diff: RawDocumentBuf, expected: RawDocumentBuf| {
        let o = rawdoc! { "$v": 2, "diff": diff };
        let found = events_of(
            &collection(),
            expanded(),
            entry("u", "d.c", o, rawdoc! { "o2": { "_id": 1 } }),
        );
        let found = found[0].get_document("updateDescription").expect("one");
        assert_eq!(found.to_owned(), expected);
    };
    check_description(
        rawdoc! { "d": { "x": false }, "u": { "a": 1 }, "i": { "b": 2 } },
        rawdoc! {
            "updatedFields": { "a": 1, "b": 2 }, "removedFields": ["x"], "truncatedArrays": [], "disambiguatedPaths": {},
        },
    );
    check_description(
        rawdoc! { "sn": { "u": { "m": 1 }, "d": { "k": false } }, "sl": { "a": true, "l": 2, "u1": 5 } },
        rawdoc! {
            "updatedFields": { "n.m": 1, "l.1": 5 }, "removedFields": ["n.k"],
            "truncatedArrays": [{ "field": "l", "newSize": 2 }], "disambiguatedPaths": {},
        },
    );
    check_description(
        rawdoc! { "u": { "home.town": "x" }, "sr": { "a": true, "s0": { "u": { "0": "y" } } } },
        rawdoc! {
            "updatedFields": { "home.town": "x", "r.0.0": "y" }, "removedFields": [], "truncatedArrays": [],
            "disambiguatedPaths": { "home.town": ["home.town"], "r.0.0": ["r", 0, "0"] },
        },
    );
}

#[test]
fn full_documents_of_updates() {
    let update = |more: RawDocumentBuf| {
        let mut all = pinion_bson::DocBuilder::new();
        all.append_all(&rawdoc! { "o2": { "_id": 1 } })
            .append_all(&more);
        let o = rawdoc! { "$v": 2, "diff": { "u": { "a": 3 } } };
        entry("u", "d.c", o, all.finish())
    };
    let full = |spec: RawDocumentBuf, more: RawDocumentBuf| {
        let found = events_of(&collection(), spec, update(more));
        pinion_bson::get(&found[0], "fullDocument").map(RawBson::from)
    };
    let image = || rawdoc! { "preImage": { "_id": 1, "a": 2 } };
    assert_eq!(full(rawdoc! {}, image()), None);
    assert_eq!(
        full(rawdoc! { "fullDocument": "updateLookup" }, rawdoc! {}),
        Some(rawbson!({ "_id": 1 }))
    );
    assert_eq!(
        full(rawdoc! { "fullDocument": "whenAvailable" }, rawdoc! {}),
        Some(RawBson::Null)
    );
    assert_eq!(
        full(rawdoc! { "fullDocument": "required" }, image()),
        Some(rawbson!({ "_id": 1, "a": 3 }))
    );
    let required = |spec: RawDocumentBuf, since_ms: i64| {
        let entry = Bytes::from(update(image()).into_bytes());
        let (changes, _) = changes_of(&collection(), &entry, &entry, 0);
        let made = options(spec).events(&collection(), &changes[0], since_ms);
        made.map(|events| events.len())
            .map_err(|error| error.code.0)
    };
    // The entry was written at 5000.
    for spec in [
        rawdoc! { "fullDocument": "required" },
        rawdoc! { "fullDocumentBeforeChange": "required" },
    ] {
        assert_eq!(required(spec.clone(), 5000), Ok(1));
        assert_eq!(required(spec, 5001), Err(47));
    }
}

/// A no-op with the image of the operation behind it.
fn image_apart() -> RawDocumentBuf {
    entry(
        "n",
        "d.c",
        rawdoc! { "msg": "pre-image" },
        rawdoc! { "preImage": { "_id": 1, "a": 2 } },
    )
}

fn update_with_image_apart() -> RawDocumentBuf {
    let o = rawdoc! { "$v": 2, "diff": { "u": { "a": 3 } } };
    let more = rawdoc! { "o2": { "_id": 1 }, "preImageApart": true };
    entry("u", "d.c", o, more)
}

fn transaction_part(operations: &[RawDocumentBuf]) -> Bytes {
    let mut list = RawArrayBuf::new();
    operations
        .iter()
        .for_each(|operation| list.push(operation.clone()));
    let part = entry("c", "admin.$cmd", rawdoc! { "applyOps": list }, rawdoc! {});
    Bytes::from(part.into_bytes())
}

/// The documents before and after, of the last change of an entry; `before` is the entry before it.
fn images_of(entry: &Bytes, before: Option<&Bytes>) -> [Option<RawBson>; 2] {
    let (mut changes, _) = changes_of(&collection(), entry, entry, 0);
    let mut change = changes.pop_back().expect("something changes");
    if change.wants_image_before() {
        change.take_image_of(before);
    }
    let options = options(
        rawdoc! { "fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable" },
    );
    let events = options.events(&collection(), &change, i64::MIN);
    let event = events.expect("a sound entry").remove(0).into_document();
    ["fullDocumentBeforeChange", "fullDocument"]
        .map(|name| pinion_bson::get(&event, name).map(RawBson::from))
}

#[test]
fn images_that_are_apart() {
    let bytes = |document: RawDocumentBuf| Bytes::from(document.into_bytes());
    let found = [
        Some(rawbson!({ "_id": 1, "a": 2 })),
        Some(rawbson!({ "_id": 1, "a": 3 })),
    ];
    let lost = [Some(RawBson::Null), Some(RawBson::Null)];
    let (update, image) = (bytes(update_with_image_apart()), bytes(image_apart()));
    assert_eq!(images_of(&update, Some(&image)), found);
    // The log begins with the change, or something else is before it.
    assert_eq!(images_of(&update, None), lost);
    assert_eq!(images_of(&update, Some(&update)), lost);
    let other = entry("i", "d.c", rawdoc! { "_id": 2 }, rawdoc! {});
    let whole = transaction_part(&[other.clone(), image_apart(), update_with_image_apart()]);
    assert_eq!(images_of(&whole, None), found);
    let first = transaction_part(&[other.clone(), image_apart()]);
    let second = transaction_part(&[update_with_image_apart()]);
    assert_eq!(images_of(&second, Some(&first)), found);
    assert_eq!(images_of(&second, None), lost);
    let (changes, count) = changes_of(&collection(), &first, &first, 0);
    assert_eq!((changes.len(), count), (1, 2));
}

#[test]
fn commands() {
    let command = |o: RawDocumentBuf, more: RawDocumentBuf| entry("c", "d.$cmd", o, more);
    let drop = || command(rawdoc! { "drop": "c" }, rawdoc! {});
    let dropped = || rawdoc! { "operationType": "drop", "ns": ns() };
    let invalidate = || rawdoc! { "operationType": "invalidate" };
    check(
        &collection(),
        rawdoc! {},
        drop(),
        &[dropped(), invalidate()],
    );
    check(&database(), rawdoc! {}, drop(), &[dropped()]);
    let rename = |from: &str, to: &str| {
        command(
            rawdoc! { "renameCollection": from, "to": to, "stayTemp": false },
            rawdoc! {},
        )
    };
    let renamed = |coll: &str, to: &str| {
        rawdoc! {
            "operationType": "rename", "ns": { "db": "d", "coll": coll }, "to": { "db": "d", "coll": to },
        }
    };
    // The namespace of the event is that of the entry.
    check(
        &collection(),
        rawdoc! {},
        rename("d.c", "d.e"),
        &[renamed("c", "e"), invalidate()],
    );
    check(
        &collection(),
        rawdoc! {},
        rename("d.b", "d.c"),
        &[renamed("b", "c"), invalidate()],
    );
    check(&collection(), rawdoc! {}, rename("d.b", "d.e"), &[]);
    check(
        &database(),
        rawdoc! {},
        rename("d.b", "d.e"),
        &[renamed("b", "e")],
    );
    let gone = || command(rawdoc! { "dropDatabase": 1 }, rawdoc! {});
    let dropped = || rawdoc! { "operationType": "dropDatabase", "ns": { "db": "d" } };
    check(&collection(), rawdoc! {}, gone(), &[]);
    check(&database(), rawdoc! {}, gone(), &[dropped(), invalidate()]);
    check(&Scope::Cluster, rawdoc! {}, gone(), &[dropped()]);
}

#[test]
fn expanded_events() {
    let command = |o: RawDocumentBuf, more: RawDocumentBuf| entry("c", "d.$cmd", o, more);
    let check_expanded = |entry: RawDocumentBuf, operation: &str, expected: RawDocumentBuf| {
        check(&collection(), rawdoc! {}, entry.clone(), &[]);
        let mut event = pinion_bson::DocBuilder::new();
        event.append_all(
            &rawdoc! { "operationType": operation, "collectionUUID": uuid(), "ns": ns() },
        );
        event.append_all(&expected);
        check(&collection(), expanded(), entry, &[event.finish()]);
    };
    check_expanded(
        command(rawdoc! { "create": "c", "capped": true }, rawdoc! {}),
        "create",
        rawdoc! { "nsType": "collection", "operationDescription": { "capped": true } },
    );
    let index = || rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a_1" };
    let made = || rawdoc! { "operationDescription": { "indexes": [index()] } };
    let create = rawdoc! { "createIndexes": "c", "v": 2, "key": { "a": 1 }, "name": "a_1" };
    check_expanded(command(create, rawdoc! {}), "createIndexes", made());
    let commit =
        rawdoc! { "commitIndexBuild": "c", "indexBuildUUID": uuid(), "indexes": [index()] };
    check_expanded(command(commit, rawdoc! {}), "createIndexes", made());
    check_expanded(
        command(
            rawdoc! { "dropIndexes": "c", "index": "a_1" },
            rawdoc! { "o2": { "rows": [], "index": index() } },
        ),
        "dropIndexes",
        made(),
    );
    check_expanded(
        command(
            rawdoc! { "collMod": "c", "index": { "name": "a_1", "hidden": true } },
            rawdoc! { "o2": { "rows": [], "collectionOptions_old": { "uuid": uuid() }, "indexOptions_old": { "hidden": false } } },
        ),
        "modify",
        rawdoc! {
            "operationDescription": { "index": { "name": "a_1", "hidden": true } },
            "stateBeforeChange": { "collectionOptions": { "uuid": uuid() }, "indexOptions": { "hidden": false } },
        },
    );
    let started =
        rawdoc! { "startIndexBuild": "c", "indexBuildUUID": uuid(), "indexes": [index()] };
    check(&collection(), expanded(), command(started, rawdoc! {}), &[]);
}

#[test]
fn operations_that_take_place_together() {
    let operation = |op: &str, ns: &str, id: i32| rawdoc! { "op": op, "ns": ns, "ui": uuid(), "o": { "_id": id } };
    let o = rawdoc! { "applyOps": [operation("i", "d.c", 1), operation("i", "d.e", 2), operation("d", "d.c", 3)] };
    let session = rawdoc! { "lsid": { "id": uuid() }, "txnNumber": 7i64 };
    let found = events_of(
        &collection(),
        rawdoc! {},
        entry("c", "admin.$cmd", o.clone(), session),
    );
    let kinds: Vec<_> = found
        .iter()
        .map(|event| event.get_str("operationType").ok())
        .collect();
    assert_eq!(kinds, [Some("insert"), Some("delete")]);
    for (event, place) in found.iter().zip([0, 2]) {
        assert_eq!(event.get_i64("txnNumber").ok(), Some(7));
        assert!(event.get_document("lsid").is_ok());
        let token = ResumeToken::parse(event.get_document("_id").expect("a token"));
        let data = token.expect("sound").data().expect("sound");
        assert_eq!(data.operation, place);
        assert_eq!(data.cluster_time, ts(9, 2));
    }
    // Without a transaction there is nothing to show of one.
    let alone = entry("c", "admin.$cmd", o, rawdoc! {});
    let found = events_of(&collection(), rawdoc! {}, alone);
    assert_eq!(found.len(), 2);
    assert!(found[0].get("lsid").expect("sound").is_none());
}

#[test]
fn an_event_has_the_key_that_its_entry_has() {
    let key = || rawdoc! { "a": 2, "_id": 1 };
    let document = || rawdoc! { "_id": 1, "a": 2 };
    let updated = rawdoc! { "$v": 2i32, "diff": { "u": { "b": 5 } } };
    for (op, o, o2, operation) in [
        ("i", document(), Some(key()), "insert"),
        ("u", document(), Some(key()), "replace"),
        ("u", updated, Some(key()), "update"),
        ("d", key(), None, "delete"),
    ] {
        let more = o2.map_or(rawdoc! {}, |o2| rawdoc! { "o2": o2 });
        let spec = rawdoc! { "fullDocument": "updateLookup" };
        let found = events_of(&collection(), spec, entry(op, "d.c", o, more));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].get_str("operationType").ok(), Some(operation));
        assert_eq!(found[0].get_document("documentKey").ok(), Some(&*key()));
        // The document is looked up by all of its key.
        if operation == "update" {
            assert_eq!(found[0].get_document("fullDocument").ok(), Some(&*key()));
        }
        let token = ResumeToken::parse(found[0].get_document("_id").expect("a token"));
        let data = token.expect("sound").data().expect("sound");
        let identifier = data.identifier.expect("it is an event");
        assert_eq!(identifier.get_document("documentKey").ok(), Some(&*key()));
    }
}

#[test]
fn what_moves_between_shards_is_in_no_stream() {
    let migrated = || rawdoc! { "fromMigrate": true };
    let id = || rawdoc! { "_id": 1 };
    let joined = |parts: [&RawDocument; 2]| {
        let mut out = pinion_bson::DocBuilder::new();
        out.append_all(parts[0]).append_all(parts[1]);
        out.finish()
    };
    let operation = |op: &str, is_migrated: bool| {
        let operation = rawdoc! { "op": op, "ns": "d.c", "ui": uuid(), "o": id(), "o2": id() };
        match is_migrated {
            true => joined([&operation, &migrated()]),
            false => operation,
        }
    };
    for op in ["i", "u", "d"] {
        let of = |more: RawDocumentBuf| {
            let more = joined([&rawdoc! { "o2": id() }, &more]);
            entry(op, "d.c", id(), more)
        };
        check(&collection(), rawdoc! {}, of(migrated()), &[]);
        check(&Scope::Cluster, expanded(), of(migrated()), &[]);
        assert!(matches!(concerned_by(&of(migrated())), Concerned::NoStream));
        for shown in [rawdoc! {}, rawdoc! { "fromMigrate": false }] {
            let found = events_of(&collection(), rawdoc! {}, of(shown.clone()));
            assert_eq!(found.len(), 1, "{op} {shown:?}");
        }
    }
    // One of several, and all of an entry. Those that are shown keep their places.
    let several = rawdoc! { "applyOps": [operation("i", true), operation("d", false)] };
    let apply_ops = |more| entry("c", "admin.$cmd", several.clone(), more);
    let found = events_of(&collection(), rawdoc! {}, apply_ops(rawdoc! {}));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].get_str("operationType").ok(), Some("delete"));
    let token = ResumeToken::parse(found[0].get_document("_id").expect("a token"));
    let data = token.expect("sound").data().expect("sound");
    assert_eq!(data.operation, 1);
    check(&collection(), rawdoc! {}, apply_ops(migrated()), &[]);
    let all_hidden = rawdoc! { "applyOps": [operation("i", true), operation("d", true)] };
    let all_hidden = entry("c", "admin.$cmd", all_hidden, rawdoc! {});
    let concerned = concerned_by(&all_hidden);
    assert!(matches!(concerned, Concerned::Namespaces(none) if none.is_empty()));
    // No stream is made that shows them.
    let wanted = RawBson::Document(rawdoc! { "showMigrationEvents": true });
    assert!(ChangeStreamOptions::parse(wanted.as_raw_bson_ref()).is_err());
}

#[test]
fn the_ends_of_transactions() {
    let check = |o: RawDocumentBuf, more: RawDocumentBuf, expected: TransactionEnd| {
        let entry = entry("c", "admin.$cmd", o, more);
        assert_eq!(transaction_end(&entry), expected, "{entry:?}");
    };
    let session = |previous: Timestamp| {
        rawdoc! { "prevOpTime": { "ts": previous, "t": 1i64 }, "txnNumber": 7i64 }
    };
    let operations = || rawdoc! { "applyOps": [] };
    check(operations(), rawdoc! {}, TransactionEnd::Whole);
    check(operations(), session(ts(0, 0)), TransactionEnd::Whole);
    let last = TransactionEnd::Last { before: ts(8, 1) };
    check(operations(), session(ts(8, 1)), last);
    let part = rawdoc! { "applyOps": [], "partialTxn": true };
    check(part, session(ts(8, 1)), TransactionEnd::Part);
    let prepare = rawdoc! { "applyOps": [], "prepare": true };
    check(prepare, session(ts(8, 1)), TransactionEnd::Part);
    check(rawdoc! { "commitTransaction": 1 }, session(ts(8, 1)), last);
    let statements = rawdoc! { "prevOpTime": { "ts": ts(8, 1), "t": 1i64 }, "txnNumber": 7i64, "stmtId": [0, 1] };
    check(operations(), statements, TransactionEnd::Whole);
}

#[test]
fn whom_an_entry_concerns() {
    fn check(entry: RawDocumentBuf, expected: Concerned<'_>) {
        let found = concerned_by(&entry);
        assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{entry:?}");
    }
    let of = |namespaces: &[&'static str]| Concerned::Namespaces(namespaces.into());
    check(
        entry("i", "d.c", rawdoc! { "_id": 1 }, rawdoc! {}),
        of(&["d.c"]),
    );
    check(
        entry("n", "", rawdoc! { "msg": "periodic noop" }, rawdoc! {}),
        Concerned::NoStream,
    );
    let command = |o: RawDocumentBuf, more: RawDocumentBuf| entry("c", "admin.$cmd", o, more);
    check(
        command(rawdoc! { "drop": "c" }, rawdoc! {}),
        Concerned::AllStreams,
    );
    let insert = |ns: &str| rawdoc! { "op": "i", "ns": ns, "o": { "_id": 1 } };
    let operations =
        || rawdoc! { "applyOps": [insert("d.c"), insert("d.c"), insert("d.e"), insert("d.c")] };
    check(
        command(operations(), rawdoc! {}),
        of(&["d.c", "d.e", "d.c"]),
    );
    let session = |previous: Timestamp| rawdoc! { "prevOpTime": { "ts": previous, "t": 1i64 }, "txnNumber": 7i64 };
    check(
        command(operations(), session(ts(0, 0))),
        of(&["d.c", "d.e", "d.c"]),
    );
    check(
        command(operations(), session(ts(8, 1))),
        Concerned::AllStreams,
    );
    let part = rawdoc! { "applyOps": [insert("d.c")], "partialTxn": true };
    check(command(part, session(ts(0, 0))), Concerned::NoStream);
    let inner = rawdoc! { "applyOps": [{ "op": "c", "ns": "d.$cmd", "o": { "create": "c" } }] };
    check(command(inner, rawdoc! {}), Concerned::AllStreams);
}

#[test]
fn tokens_have_the_form_of_mongodb() {
    let key = rawdoc! { "operationType": "insert", "documentKey": { "_id": ObjectId::from_str("6635fbff0000000000000001").expect("an id") } };
    let data = TokenData {
        cluster_time: ts(0x6635_fbff, 7),
        is_event: true,
        operation: 0,
        from_invalidate: false,
        uuid: Some(UUID),
        identifier: Some(key),
        fragment: None,
    };
    let expected = [
        "82",
        "6635FBFF00000007",
        "2B04",
        "2C0100",
        "29",
        "6E",
        "5A1004",
        "30313233343536373839616263646566",
        "463C6F7065726174696F6E54797065003C696E7365727400",
        "46646F63756D656E744B65790046645F6964006466",
        "35FBFF0000000000000001",
        "000004",
    ];
    let token = data.token();
    assert_eq!(token.to_document(), rawdoc! { "_data": expected.concat() });
    assert_eq!(token.data().ok(), Some(data.clone()));
    let quiet = TokenData::high_water_mark(ts(1, 2));
    let expected = rawdoc! { "_data": "8200000001000000022B0429296E1404" };
    assert_eq!(quiet.token().to_document(), expected);
    assert_eq!(quiet.token().data().ok(), Some(quiet));
    // The difference between 1.0 and 1 is beside the string.
    let of_double = TokenData {
        identifier: Some(rawdoc! { "operationType": "insert", "documentKey": { "_id": 1.0 } }),
        fragment: Some(3),
        ..data
    };
    let token = of_double.token().to_document();
    assert!(token.get_binary("_typeBits").is_ok());
    let read = ResumeToken::parse(&token).expect("sound");
    assert_eq!(read.data().ok(), Some(of_double));
}

#[test]
fn tokens_have_the_form_of_mongodb_4_4() {
    let id = ObjectId::from_str("6635fbff0000000000000001").expect("an id");
    let data = TokenData {
        cluster_time: ts(0x6635_fbff, 7),
        is_event: true,
        operation: 0,
        from_invalidate: false,
        uuid: Some(UUID),
        identifier: Some(rawdoc! { "_id": id }),
        fragment: None,
    };
    let expected = [
        "82",
        "6635FBFF00000007",
        "2B02",
        "2C0100",
        "29",
        "6E",
        "5A1004",
        "30313233343536373839616263646566",
        "46645F69640064",
        "6635FBFF0000000000000001",
        "0004",
    ];
    let token = data.token_in(TokenForm::V44);
    assert_eq!(token.to_document(), rawdoc! { "_data": expected.concat() });
    assert_eq!(token.data().ok(), Some(data));
    let quiet = TokenData::high_water_mark(ts(1, 2));
    let expected = rawdoc! { "_data": "8200000001000000022B0229296E04" };
    assert_eq!(quiet.token_in(TokenForm::V44).to_document(), expected);
    let read = quiet.token_in(TokenForm::V44).data();
    assert_eq!(read.ok(), Some(quiet));
}

#[test]
fn events_that_mongos_of_4_4_merges() {
    let document = rawdoc! { "_id": 1, "a": 2 };
    let dropped = || rawdoc! { "drop": "c" };
    for (op, ns, o, more, keys) in [
        (
            "i",
            "d.c",
            document.clone(),
            rawdoc! {},
            vec![Some(rawdoc! { "_id": 1 })],
        ),
        (
            "u",
            "d.c",
            rawdoc! { "$v": 2i32, "diff": { "u": { "b": 5 } } },
            rawdoc! { "o2": { "s": 3, "_id": 1 } },
            vec![Some(rawdoc! { "s": 3, "_id": 1 })],
        ),
        ("c", "d.$cmd", dropped(), rawdoc! {}, vec![None, None]),
    ] {
        let entry = Bytes::from(entry(op, ns, o, more).into_bytes());
        let (changes, _) = changes_of(&collection(), &entry, &entry, 0);
        let options = options(rawdoc! { "fullDocument": "updateLookup" }).of_mongos();
        let made = options.events(&collection(), &changes[0], i64::MIN);
        let made = made.expect("events of a sound entry");
        assert_eq!(made.len(), keys.len());
        for (event, key) in made.into_iter().zip(keys) {
            let data = event.token.data().expect("sound");
            assert_eq!(event.token, data.token_in(TokenForm::V44));
            assert_eq!((data.uuid, data.identifier), (Some(UUID), key));
            assert_eq!(data.from_invalidate, event.is_invalidate);
            // What is looked up is looked up by mongos.
            assert!(!matches!(event.full_document, Image::LookUp { .. }));
        }
    }
}

#[test]
fn a_stream_continues_behind_its_token() {
    let data = |operation: u64, is_event: bool| TokenData {
        cluster_time: ts(9, 2),
        is_event,
        operation,
        from_invalidate: false,
        uuid: Some(UUID),
        identifier: Some(rawdoc! { "operationType": "insert", "documentKey": { "_id": 1 } }),
        fragment: None,
    };
    let resume = |data: TokenData| {
        let spec = rawdoc! { "startAfter": data.token().to_document() };
        match options(spec).start {
            Start::Behind(resume) => *resume,
            other => panic!("{other:?}"),
        }
    };
    let token = |operation| data(operation, true).token();
    let mut after = resume(data(1, true));
    assert_eq!(after.look(&token(0)).ok(), Some(Seen::Yes));
    assert_eq!(after.look(&token(1)).ok(), Some(Seen::Yes));
    assert_eq!(after.look(&token(2)).ok(), Some(Seen::No));
    let mut lost = resume(data(1, true));
    assert_eq!(
        lost.look(&token(2)).err().map(|error| error.code.0),
        Some(280)
    );
    let mut quiet = resume(TokenData::high_water_mark(ts(9, 2)));
    assert_eq!(quiet.look(&token(0)).ok(), Some(Seen::No));
    let mut inside = resume(TokenData {
        fragment: Some(1),
        ..data(1, true)
    });
    assert_eq!(inside.look(&token(1)).ok(), Some(Seen::Parts(2)));
    assert_eq!(inside.look(&token(2)).ok(), Some(Seen::No));
}

#[test]
fn specifications() {
    let check = |spec: RawBson, code: Option<i32>| {
        let found = ChangeStreamOptions::parse(spec.as_raw_bson_ref());
        assert_eq!(found.err().map(|error| error.code.0), code, "{spec:?}");
    };
    check(rawbson!({}), None);
    check(rawbson!(1), Some(6_188_500));
    check(
        rawbson!({ "fullDocument": null, "resumeAfter": null }),
        None,
    );
    check(rawbson!({ "fullDocument": "Default" }), Some(2));
    check(rawbson!({ "fullDocument": 1 }), Some(14));
    check(rawbson!({ "showExpandedEvents": null }), Some(14));
    check(rawbson!({ "bogus": 1 }), Some(40415));
    check(rawbson!({ "resumeAfter": {} }), Some(40647));
    check(
        rawbson!({ "resumeAfter": { "_data": "00", "_typeBits": 1 } }),
        Some(40648),
    );
    check(rawbson!({ "resumeAfter": { "_data": "" } }), Some(40649));
    check(rawbson!({ "resumeAfter": { "_data": "xyz" } }), Some(9));
    check(rawbson!({ "resumeAfter": { "_data": "00" } }), Some(50811));
    let token = |from_invalidate: bool| {
        TokenData {
            from_invalidate,
            ..TokenData::high_water_mark(ts(1, 2))
        }
        .token()
        .to_document()
    };
    check(
        rawbson!({ "resumeAfter": token(false), "startAfter": token(false) }),
        Some(50865),
    );
    check(
        rawbson!({ "resumeAfter": token(false), "startAtOperationTime": ts(1, 2) }),
        Some(40674),
    );
    check(rawbson!({ "resumeAfter": token(true) }), Some(260));
    check(rawbson!({ "startAfter": token(true) }), None);
    check(rawbson!({ "showSystemEvents": true }), Some(238));
}

#[test]
fn stages_behind_a_stream() {
    let check = |behind: Vec<RawDocumentBuf>, expected: Result<bool, i32>| {
        let mut stages = RawArrayBuf::new();
        stages.push(rawdoc! { "$changeStream": {} });
        behind.iter().for_each(|stage| stages.push(stage.clone()));
        let found = check_stages(&stages).map_err(|error| error.code.0);
        assert_eq!(found, expected, "{behind:?}");
    };
    let split = || rawdoc! { "$changeStreamSplitLargeEvent": {} };
    check(vec![], Ok(false));
    check(
        vec![rawdoc! { "$match": {} }, rawdoc! { "$unset": "a" }],
        Ok(false),
    );
    check(vec![rawdoc! { "$match": {} }, split()], Ok(true));
    check(vec![split(), rawdoc! { "$match": {} }], Err(7_182_802));
    check(
        vec![rawdoc! { "$changeStreamSplitLargeEvent": 1 }],
        Err(7_182_800),
    );
    check(vec![rawdoc! { "$group": { "_id": 1 } }], Err(20));
    check(vec![rawdoc! { "$changeStream": {} }], Err(40602));
}

#[test]
fn large_events_in_parts() {
    let token = TokenData {
        is_event: true,
        ..TokenData::high_water_mark(ts(1, 2))
    }
    .token();
    let event = rawdoc! {
        "_id": token.to_document(), "operationType": "update", "a": "x".repeat(300), "b": "y".repeat(500), "c": "z".repeat(200),
    };
    let parts = |given: u32, most: usize| {
        let parts = split_event(&event, &token, given, most).map_err(|error| error.code.0)?;
        let parts = parts.iter().map(|part| {
            let part = RawDocument::from_bytes(part).expect("a document");
            let names = pinion_bson::elements(part).map(|(name, _)| name.to_owned());
            let split = part.get_document("splitEvent").expect("told");
            let place = (split.get_i32("fragment").ok(), split.get_i32("of").ok());
            (place, names.skip(2).collect::<Vec<_>>())
        });
        Ok(parts.collect::<Vec<_>>())
    };
    let first = (
        (Some(1), Some(2)),
        vec!["operationType".to_owned(), "c".into(), "a".into()],
    );
    let second = ((Some(2), Some(2)), vec!["b".to_owned()]);
    assert_eq!(parts(0, 700), Ok(vec![first, second.clone()]));
    assert_eq!(parts(1, 700), Ok(vec![second]));
    assert_eq!(parts(2, 700), Ok(vec![]));
    assert_eq!(parts(3, 700), Err(280));
    assert_eq!(parts(0, 500), Err(10334));
}
