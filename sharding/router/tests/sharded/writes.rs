//! Random writes through a router: each statement that is acknowledged has its effect once, however
//! the routing table changes.
//!
//! Not looked at: which of the documents that match are changed by a statement that fails half way,
//! but that none is changed twice.

use std::cell::Cell;
use std::rc::Rc;

use pinion_bson::{
    Binary, DocBuilder, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, Uuid, get,
    rawdoc,
};
use pinion_query::{Matcher, SortPattern, document_text};
use pinion_runtime::{Duration, Queue, Rng, sleep, spawn};
use pinion_wire::idl::{i64_exact, truthy};

use super::cluster::{Client, run};
use super::local::variables;
use super::operations::{below, documents, filter, sort, with_collation};
use super::{change, fill};

/// A statement of an update that leaves a mark.
fn update(rng: &mut Rng, mark: i32) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("q", &*filter(rng));
    out.append("u", &*rawdoc! { "$push": { "marks": mark } });
    match rng.below(6) {
        0 | 1 => {
            out.append("multi", true);
        }
        2 => {
            out.append("upsert", true);
        }
        3 => {
            out.append("sort", &*sort(rng));
        }
        _ => {}
    }
    with_collation(rng, &mut out);
    out.finish()
}

fn array(documents: &[RawDocumentBuf]) -> RawArrayBuf {
    let mut out = RawArrayBuf::new();
    for document in documents {
        out.push(RawBson::Document(document.clone()));
    }
    out
}

fn all(client: &Client, name: &str) -> Vec<RawDocumentBuf> {
    client.world.borrow().documents(name)
}

/// How often a document has a mark.
fn marks(document: &RawDocument, mark: i32) -> usize {
    match get(document, "marks") {
        Some(RawBsonRef::Array(marks)) => pinion_bson::values(marks)
            .filter(|found| found.as_i32() == Some(mark))
            .count(),
        _ => 0,
    }
}

fn flag(document: &RawDocument, name: &str) -> bool {
    get(document, name).is_some_and(truthy)
}

/// The documents that match a filter with the options of a statement, in its order.
fn matching(documents: &[RawDocumentBuf], statement: &RawDocument, filter: &str) -> Vec<RawBson> {
    let vars = variables(statement).expect("a collation");
    let empty = RawDocumentBuf::new();
    let filter = get(statement, filter).and_then(|filter| filter.as_document());
    let matcher = Matcher::parse_query(filter.unwrap_or(&empty), &vars).expect("a filter");
    let is_meant = |found: &&RawDocumentBuf| matcher.matches(&***found).expect("it can be");
    let mut found: Vec<&RawDocumentBuf> = documents.iter().filter(is_meant).collect();
    if let Some(RawBsonRef::Document(sort)) = get(statement, "sort") {
        let sort = SortPattern::parse_find(sort).expect("a sort");
        let sort = sort.with_collation(vars.collation.clone());
        found.sort_by_cached_key(|document| sort.sort_key(&***document).expect("a key"));
    }
    let id = |document: &&RawDocumentBuf| RawBson::from(get(document, "_id").expect("an id"));
    found.iter().map(id).collect()
}

fn id_of(document: &RawDocument) -> RawBson {
    get(document, "_id").expect("an id").into()
}

/// Checks the effect of one statement, given what was there before.
fn check_effect(
    before: &[RawDocumentBuf],
    after: &[RawDocumentBuf],
    statement: &RawDocument,
    mark: i32,
    (filter_name, has_failed): (&str, bool),
) -> usize {
    let text = document_text(statement);
    let marked: Vec<&RawDocumentBuf> = after
        .iter()
        .filter(|found| marks(found, mark) > 0)
        .collect();
    for document in &marked {
        assert_eq!(marks(document, mark), 1, "{text}: {document:?}");
    }
    let ids: Vec<RawBson> = marked.iter().map(|found| id_of(found)).collect();
    let expected = matching(before, statement, filter_name);
    if has_failed {
        assert!(ids.iter().all(|id| expected.contains(id)), "{text}");
        return ids.len();
    }
    if flag(statement, "multi") {
        assert_eq!(ids.len(), expected.len(), "{text}");
        assert!(ids.iter().all(|id| expected.contains(id)), "{text}");
    } else if expected.is_empty() {
        assert_eq!(ids.len(), usize::from(flag(statement, "upsert")), "{text}");
    } else {
        assert_eq!(ids.len(), 1, "{text} {expected:?}");
        match get(statement, "sort") {
            Some(_) => assert_eq!(ids[0], expected[0], "{text}"),
            None => assert!(expected.contains(&ids[0]), "{text}"),
        }
    }
    ids.len()
}

/// The codes of a reply's errors by their places.
fn errors_of(reply: &RawDocument) -> Vec<(usize, i32)> {
    let number = |entry: &RawDocument, name| get(entry, name).and_then(i64_exact);
    match get(reply, "writeErrors") {
        Some(RawBsonRef::Array(errors)) => pinion_bson::values(errors)
            .filter_map(|entry| entry.as_document())
            .map(|entry| {
                let at = number(entry, "index").expect("a place");
                let code = number(entry, "code").expect("a code");
                (at as usize, code as i32)
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// Counts what a test did.
#[derive(Default)]
struct Counts {
    statements: Cell<usize>,
    half_done: Cell<usize>,
    refused: Cell<u32>,
    /// Whether the table changes meanwhile.
    changes: bool,
}

impl Counts {
    fn add(&self, statements: usize, half_done: usize) {
        self.statements.set(self.statements.get() + statements);
        self.half_done.set(self.half_done.get() + half_done);
    }
}

/// A batch of updates.
async fn check_updates(client: &Client, rng: &mut Rng, next_mark: &mut i32, counts: &Counts) {
    let first = *next_mark;
    let count = 1 + below(rng, 5);
    *next_mark += count;
    // What is inserted may match the filter of a later statement: an upsert is alone.
    let mut statements: Vec<_> = (first..*next_mark).map(|mark| update(rng, mark)).collect();
    if statements.iter().any(|statement| flag(statement, "upsert")) {
        statements.truncate(1);
    }
    let is_ordered = rng.below(2) == 0;
    let name = ["c", "c", "c", "other", "plain"][rng.below(5) as usize];
    let updates = array(&statements);
    let before = all(client, name);
    let command = rawdoc! { "update": name, "updates": updates, "ordered": is_ordered };
    let reply = client.expect(&command).await;
    let after = all(client, name);
    let errors = errors_of(&reply);
    let mut total = 0;
    for (at, statement) in statements.iter().enumerate() {
        let failed = errors.iter().find(|(place, _)| *place == at);
        if let Some((_, code)) = failed {
            assert_eq!(*code, 175, "{}: {reply:?}", document_text(statement));
        }
        let is_behind = is_ordered && errors.first().is_some_and(|(place, _)| *place < at);
        let has_failed = failed.is_some() || is_behind;
        let mark = first + at as i32;
        let changed = check_effect(&before, &after, statement, mark, ("q", has_failed));
        assert!(!is_behind || changed == 0, "it stands behind an error");
        total += changed;
    }
    let n = get(&reply, "n").and_then(i64_exact).expect("a number");
    assert_eq!(n as usize, total, "{}: {reply:?}", document_text(&command));
    counts.add(statements.len(), errors.len());
}

/// A batch of deletes.
async fn check_deletes(client: &Client, rng: &mut Rng, counts: &Counts) {
    let count = 1 + rng.below(3);
    let statements: Vec<RawDocumentBuf> = (0..count)
        .map(|_| {
            let mut out = DocBuilder::new();
            let narrow = rawdoc! { "$and": [filter(rng), { "b": below(rng, 6) }] };
            out.append("q", &*narrow).append("limit", below(rng, 2));
            with_collation(rng, &mut out);
            out.finish()
        })
        .collect();
    let before = all(client, "c");
    let deletes = array(&statements);
    let command = rawdoc! { "delete": "c", "deletes": deletes, "ordered": rng.below(2) == 0 };
    let reply = client.expect(&command).await;
    let after = all(client, "c");
    let n = get(&reply, "n").and_then(i64_exact).expect("a number");
    assert_eq!(before.len() - after.len(), n as usize, "{reply:?}");
    let errors = errors_of(&reply);
    assert!(errors.iter().all(|(_, code)| *code == 175), "{reply:?}");
    if errors.is_empty() {
        let mut most = 0;
        for statement in &statements {
            let expected = matching(&before, statement, "q").len();
            let left = matching(&after, statement, "q").len();
            let is_multi = !flag(statement, "limit");
            assert!(!is_multi || left == 0, "{}", document_text(statement));
            assert!(left < expected || expected == 0);
            most += if is_multi { expected } else { expected.min(1) };
        }
        assert!(n as usize <= most);
        assert!(count > 1 || n as usize == most);
    }
    counts.add(statements.len(), errors.len());
}

/// A batch of inserts, some of which have no key, or an `_id` that is there.
async fn check_inserts(client: &Client, rng: &mut Rng, next_id: &mut i32, counts: &Counts) {
    let first = *next_id;
    *next_id += 1 + below(rng, 12);
    let mut made = documents(rng, first..*next_id);
    // A document without a key has no owner once the collection is sharded by another key.
    let bad = match counts.changes {
        true => usize::MAX,
        false => rng.below(3 * made.len() as u64) as usize,
    };
    if let Some(document) = made.get_mut(bad) {
        *document = rawdoc! { "_id": first + bad as i32, "a": [1] };
    }
    let is_ordered = rng.below(2) == 0;
    let inserts = array(&made);
    let key = client.world.borrow().names_of_key("c");
    let needs_key = key.contains(&"a".to_owned()) && bad < made.len();
    let command = rawdoc! { "insert": "c", "documents": inserts, "ordered": is_ordered };
    let reply = client.expect(&command).await;
    let after = all(client, "c");
    let errors = errors_of(&reply);
    let mut n = 0;
    for (at, document) in made.iter().enumerate() {
        let found = after.iter().filter(|found| *found == document).count();
        let failed = errors.iter().find(|(place, _)| *place == at);
        let is_behind = is_ordered && errors.first().is_some_and(|(place, _)| *place < at);
        match failed {
            Some((_, code)) => assert!(at == bad && *code == 61, "{reply:?}"),
            None if is_behind => {}
            None => n += 1,
        }
        let is_there = failed.is_none() && !is_behind;
        assert_eq!(found, usize::from(is_there), "{document:?} {reply:?}");
    }
    assert_eq!(errors.len(), usize::from(needs_key), "{reply:?}");
    assert_eq!(get(&reply, "n").and_then(i64_exact), Some(n));
    counts.add(made.len(), 0);
}

/// A `findAndModify`.
async fn check_find_and_modify(
    client: &Client,
    rng: &mut Rng,
    next_mark: &mut i32,
    counts: &Counts,
) {
    let mark = *next_mark;
    *next_mark += 1;
    let mut out = DocBuilder::new();
    out.append("findAndModify", "c")
        .append("query", &*filter(rng));
    let is_new = rng.below(2) == 0;
    let is_removal = rng.below(5) == 0;
    match is_removal {
        true => {
            out.append("remove", true);
        }
        false => {
            out.append("update", &*rawdoc! { "$push": { "marks": mark } });
            out.append("new", is_new);
            if rng.below(4) == 0 {
                out.append("upsert", true);
            }
        }
    }
    if rng.below(2) == 0 {
        out.append("sort", &*sort(rng));
    }
    with_collation(rng, &mut out);
    let command = out.finish();
    let before = all(client, "c");
    let reply = client.expect(&command).await;
    let after = all(client, "c");
    let text = document_text(&command);
    let value = get(&reply, "value").and_then(|value| value.as_document());
    counts.add(1, 0);
    if is_removal {
        let expected = matching(&before, &command, "query");
        assert_eq!(before.len() - after.len(), expected.len().min(1), "{text}");
        assert_eq!(value.is_some(), !expected.is_empty());
        return;
    }
    let changed = check_effect(&before, &after, &command, mark, ("query", false));
    let n = pinion_bson::get_path(&reply, "lastErrorObject.n").and_then(i64_exact);
    assert_eq!(n, Some(changed as i64), "{text}");
    let marked = after.iter().find(|found| marks(found, mark) == 1);
    let of_mark = |among: &[RawDocumentBuf]| {
        let id = id_of(marked?);
        among.iter().find(|found| id_of(found) == id).cloned()
    };
    let expected = of_mark(if is_new { &after } else { &before });
    assert_eq!(value, expected.as_deref(), "{text}");
}

/// A statement of an update as an operation.
fn operation(statement: &RawDocument, target: i32) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("update", target);
    for elem in pinion_bson::raw_elements(statement) {
        match elem.name {
            b"q" => out.append_elem_as("filter", &elem),
            b"u" => out.append_elem_as("updateMods", &elem),
            _ => out.append_elem(&elem),
        };
    }
    out.finish()
}

const NAMES: [&str; 3] = ["c", "other", "plain"];

/// Updates of several collections, and inserts.
async fn check_bulk_write(
    client: &Client,
    rng: &mut Rng,
    (next_mark, next_id): (&mut i32, &mut i32),
    counts: &Counts,
) {
    let first = *next_mark;
    *next_mark += 1 + below(rng, 5);
    let mut operations: Vec<RawDocumentBuf> = (first..*next_mark)
        .map(|mark| operation(&update(rng, mark), below(rng, 3)))
        .collect();
    if operations.iter().any(|operation| flag(operation, "upsert")) {
        operations.truncate(1);
    }
    let updates = operations.len();
    // They come last, so that no update finds them.
    for _ in 0..rng.below(3) {
        let made = documents(rng, *next_id..*next_id + 1).remove(0);
        *next_id += 1;
        operations.push(rawdoc! { "insert": below(rng, 3), "document": made });
    }
    let is_ordered = rng.below(4) > 0;
    let before = NAMES.map(|name| all(client, name));
    if !is_ordered {
        // Nor one that runs beside them.
        operations.truncate(updates);
    }
    let ops = array(&operations);
    let command = rawdoc! {
        "bulkWrite": 1, "ops": ops, "ordered": is_ordered, "$db": "admin",
        "nsInfo": [{ "ns": "d.c" }, { "ns": "d.other" }, { "ns": "d.plain" }],
    };
    let reply = client.expect(&command).await;
    let after = NAMES.map(|name| all(client, name));
    let batch = pinion_bson::get_path(&reply, "cursor.firstBatch");
    let batch = batch.and_then(|batch| batch.as_array()).expect("a batch");
    let results = pinion_bson::values(batch).filter_map(|result| result.as_document());
    let number = |result: &RawDocument, name| get(result, name).and_then(i64_exact);
    let mut found = std::collections::BTreeMap::new();
    for result in results {
        let at = number(result, "idx").expect("a place") as usize;
        found.insert(at, (number(result, "code"), number(result, "n")));
    }
    let mut errors = 0;
    for (at, operation) in operations.iter().enumerate() {
        let name = pinion_bson::elements(operation).next().expect("a kind").1;
        let target = i64_exact(name).expect("a place") as usize;
        let result = found.get(&at);
        let failed = result.and_then(|(code, _)| *code);
        assert!(failed.is_none_or(|code| code == 175), "{reply:?}");
        errors += usize::from(failed.is_some());
        let has_failed = failed.is_some() || result.is_none();
        assert!(result.is_some() || is_ordered && errors > 0, "{reply:?}");
        let n = match get(operation, "document") {
            Some(RawBsonRef::Document(made)) => after[target]
                .iter()
                .filter(|found| ***found == *made)
                .count(),
            _ => {
                let (before, after, mark) = (&before[target], &after[target], first + at as i32);
                check_effect(before, after, operation, mark, ("filter", has_failed))
            }
        };
        if !has_failed {
            let said = result.and_then(|(_, n)| *n);
            assert_eq!(
                said,
                Some(n as i64),
                "{} {reply:?}",
                document_text(operation)
            );
        }
    }
    assert_eq!(number(&reply, "nErrors"), Some(errors as i64));
    counts.add(operations.len(), errors);
}

async fn check_one(
    client: &Client,
    rng: &mut Rng,
    (next_mark, next_id): (&mut i32, &mut i32),
    counts: &Counts,
) {
    match rng.below(10) {
        8 | 9 => check_bulk_write(client, rng, (next_mark, next_id), counts).await,
        0 => check_deletes(client, rng, counts).await,
        1 => check_inserts(client, rng, next_id, counts).await,
        2 | 3 => check_find_and_modify(client, rng, next_mark, counts).await,
        _ => check_updates(client, rng, next_mark, counts).await,
    }
}

#[test]
fn writes_have_their_effect_once() {
    let counts = Rc::new(Counts::default());
    for seed in 1..=30 {
        let counted = counts.clone();
        run(seed, 1 + seed as usize % 4, move |client, mut rng| {
            let counts = counted.clone();
            async move {
                fill(&client, &mut rng);
                let (mut mark, mut id) = (0, 10_000);
                for _ in 0..40 {
                    check_one(&client, &mut rng, (&mut mark, &mut id), &counts).await;
                }
                assert_eq!(client.world.borrow().refused, 0);
            }
        });
    }
    assert_eq!(counts.half_done.get(), 0);
    assert!(counts.statements.get() > 4000);
}

#[test]
fn writes_have_their_effect_once_while_the_table_changes() {
    let counts = Rc::new(Counts {
        changes: true,
        ..Counts::default()
    });
    for seed in 1..=40 {
        let counted = counts.clone();
        run(seed, 2 + seed as usize % 3, move |client, mut rng| {
            let counts = counted.clone();
            async move {
                fill(&client, &mut rng);
                let stops = Rc::new(Cell::new(false));
                let (other, stopped) = (client.clone(), stops.clone());
                let mut changes = Rng::from_seed(rng.next_u64());
                spawn(Queue::Background, async move {
                    while !stopped.get() {
                        sleep(Duration::from_millis(2 + changes.below(40))).await;
                        change(&other, &mut changes);
                    }
                });
                let (mut mark, mut id) = (0, 10_000);
                for _ in 0..40 {
                    check_one(&client, &mut rng, (&mut mark, &mut id), &counts).await;
                }
                stops.set(true);
                sleep(Duration::from_millis(100)).await;
                let refused = client.world.borrow().refused;
                counts.refused.set(counts.refused.get() + refused);
            }
        });
    }
    let (statements, half_done) = (counts.statements.get(), counts.half_done.get());
    assert!(counts.refused.get() > 300, "{}", counts.refused.get());
    assert!(
        half_done > 0 && half_done * 20 < statements,
        "{half_done} {statements}"
    );
}

fn session(byte: u8) -> RawDocumentBuf {
    let uuid = Binary::from(Uuid::from_bytes([byte; 16]));
    rawdoc! { "id": uuid }
}

/// A client that has no answer sends its command again.
#[test]
fn retried_writes_have_their_effect_once() {
    let retried = Rc::new(Cell::new(0));
    for seed in 1..=30 {
        let total = retried.clone();
        run(seed, 1 + seed as usize % 4, move |client, mut rng| {
            let total = total.clone();
            async move {
                fill(&client, &mut rng);
                for number in 1..=20i64 {
                    let first = number as i32 * 10;
                    let mut statements: Vec<RawDocumentBuf> = (first..first + 5)
                        .map(|mark| update(&mut rng, mark))
                        .collect();
                    // Several documents cannot be changed once.
                    statements.retain(|statement| !flag(statement, "multi"));
                    if statements.is_empty() {
                        continue;
                    }
                    let is_ordered = rng.below(2) == 0;
                    let operations: Vec<RawDocumentBuf> = statements
                        .iter()
                        .map(|statement| operation(statement, 0))
                        .collect();
                    let command = match rng.below(4) {
                        3 => rawdoc! {
                            "bulkWrite": 1, "ops": array(&operations), "ordered": is_ordered,
                            "nsInfo": [{ "ns": "d.c" }], "$db": "admin",
                            "lsid": session(1), "txnNumber": number,
                        },
                        0 => rawdoc! {
                            "findAndModify": "c", "query": filter(&mut rng),
                            "update": { "$push": { "marks": first } },
                            "upsert": rng.below(2) == 0, "new": rng.below(2) == 0,
                            "lsid": session(1), "txnNumber": number,
                        },
                        _ => rawdoc! {
                            "update": "c", "updates": array(&statements), "ordered": is_ordered,
                            "lsid": session(1), "txnNumber": number,
                        },
                    };
                    let reply = client.expect(&command).await;
                    let after = all(&client, "c");
                    let again = client.expect(&command).await;
                    assert_eq!(after, all(&client, "c"), "{}", document_text(&command));
                    for name in [
                        "n",
                        "nModified",
                        "upserted",
                        "value",
                        "lastErrorObject",
                        "cursor",
                        "nMatched",
                        "nUpserted",
                        "nErrors",
                    ] {
                        assert_eq!(get(&reply, name), get(&again, name), "{name} {again:?}");
                    }
                    total.set(total.get() + 1);
                }
            }
        });
    }
    assert!(retried.get() > 500);
}

#[test]
fn statements_that_fail() {
    run(5, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        client
            .world
            .borrow_mut()
            .shard("c", rawdoc! { "a": 1 }, 9, &mut rng);
        let statements = [
            rawdoc! { "q": { "_id": 1 }, "u": { "$push": { "marks": 1 } } },
            rawdoc! { "q": { "s": 1 }, "u": { "$push": { "marks": 2 } }, "multi": true, "upsert": true },
            rawdoc! { "q": { "a": { "$bad": 1 } }, "u": { "$push": { "marks": 3 } } },
            rawdoc! { "q": { "_id": 1 }, "u": { "$push": { "marks": 4 } } },
        ];
        for (is_ordered, expected) in [(true, vec![(1, 61)]), (false, vec![(1, 61), (2, 2)])] {
            let updates = array(&statements);
            let command = rawdoc! { "update": "c", "updates": updates, "ordered": is_ordered };
            let reply = client.expect(&command).await;
            assert_eq!(errors_of(&reply), expected);
            let n = get(&reply, "n").and_then(i64_exact);
            assert_eq!(n, Some(if is_ordered { 1 } else { 2 }));
        }
        let id = all(&client, "c")
            .into_iter()
            .find(|found| marks(found, 4) > 0);
        let id = id.expect("the last one was executed");
        assert_eq!((marks(&id, 1), marks(&id, 3), marks(&id, 4)), (2, 0, 1));
        let command = rawdoc! { "update": "c", "updates": [{ "u": { "$set": { "x": 1 } } }] };
        let error = client.run(&command).await.expect_err("it has no filter");
        assert_eq!(error.code.0, 40414);
    });
}

#[test]
fn a_transaction_over_shards() {
    run(3, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        while client.world.borrow().owners("c") < 3 {
            let mut world = client.world.borrow_mut();
            world.shard("c", rawdoc! { "_id": 1 }, 12, &mut rng);
        }
        let with = |command: RawDocumentBuf, number: i64, starts: bool| {
            let mut out = DocBuilder::new();
            out.append_all(&command);
            out.append("lsid", &*session(2)).append("txnNumber", number);
            out.append("autocommit", false);
            if starts {
                out.append("startTransaction", true);
            }
            out.finish()
        };
        let find = rawdoc! { "find": "c", "sort": { "_id": 1 }, "batchSize": 1000 };
        let total = all(&client, "c").len();
        let reply = client.expect(&with(find.clone(), 1, true)).await;
        let batch = pinion_bson::get_path(&reply, "cursor.firstBatch");
        let batch = batch.and_then(|batch| batch.as_array()).expect("a batch");
        assert_eq!(pinion_bson::values(batch).count(), total);
        assert_eq!(client.world.borrow().parts.len(), 3);
        // A table that is old does not end a statement with which shards join.
        let update = |id: i32, mark: i32| {
            rawdoc! {
                "update": "c",
                "updates": [{ "q": { "_id": id }, "u": { "$push": { "marks": mark } } }],
            }
        };
        client.expect(&with(update(3, 1), 1, false)).await;
        let commit = rawdoc! { "commitTransaction": 1, "$db": "admin" };
        client.expect(&with(commit, 1, false)).await;
        let ends = std::mem::take(&mut client.world.borrow_mut().ends);
        assert_eq!(ends.len(), 3);
        assert!(ends.iter().all(|(_, name)| *name == "commitTransaction"));
        let marked = all(&client, "c")
            .iter()
            .filter(|found| marks(found, 1) == 1)
            .count();
        assert_eq!(marked, 1);
        // A second shard is not written.
        let several = rawdoc! {
            "update": "c",
            "updates": [{ "q": {}, "u": { "$push": { "marks": 2 } }, "multi": true }],
        };
        let error = client.run(&with(several, 2, true)).await;
        assert_eq!(error.expect_err("two shards").code.0, 115);
        // One document is found at all of them, and written at its own.
        let one = rawdoc! {
            "update": "c",
            "updates": [{ "q": { "b": { "$gte": 0 } }, "u": { "$push": { "marks": 5 } } }],
        };
        client.expect(&with(one, 3, true)).await;
        let marked = all(&client, "c")
            .iter()
            .filter(|found| marks(found, 5) == 1)
            .count();
        assert_eq!(marked, 1);
        client.world.borrow_mut().move_chunk("c", &mut rng);
        client.expect(&with(find, 4, true)).await;
    });
}
