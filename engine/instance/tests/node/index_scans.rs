//! Reads by indexes, which take entries by blocks, against reads of the whole collection: of what a
//! checkpoint has written, what was changed above it, and what a transaction has written.
//!
//! Checked: the documents, values and counts of random reads, the order of sorted ones, and what
//! `explain` counts of keys and documents. Not checked: reads beside writers, which are in
//! `renewals`.

use pinion_bson::{Bson, Document, doc};
use pinion_runtime::Rng;

use crate::harness::{Client, batch, options, with_options};
use crate::retryable::become_primary;
use crate::transactions::{abort, first, statement};

const DOCUMENTS: i32 = 300;
/// Values of `a`, `b` and the items of `l` are below it.
const VALUES: u64 = 25;

fn indexes() -> Vec<Document> {
    vec![
        doc! { "key": { "a": 1 }, "name": "a" },
        doc! { "key": { "b": -1, "a": 1 }, "name": "b_a" },
        doc! { "key": { "l": 1 }, "name": "l" },
        doc! { "key": { "u": 1 }, "name": "u", "unique": true },
        doc! { "key": { "s": 1, "a": 1 }, "name": "s_a" },
    ]
}

fn value(rng: &mut Rng) -> i32 {
    rng.below(VALUES) as i32
}

fn document(id: i32, rng: &mut Rng) -> Document {
    let items: Vec<i32> = (0..rng.below(4)).map(|_| value(rng)).collect();
    let mut document = doc! {
        "_id": id, "b": value(rng), "l": items, "u": id, "s": format!("text {}", value(rng)),
        "fill": "f".repeat(rng.below(300) as usize)
    };
    match rng.below(8) {
        0 => {}
        1 => drop(document.insert("a", Bson::Null)),
        _ => drop(document.insert("a", value(rng))),
    }
    document
}

/// Has documents inserted, changed and removed.
fn writes(rng: &mut Rng) -> Vec<Document> {
    let count = 10 + rng.below(40);
    let mut out = Vec::new();
    for _ in 0..count {
        let id = rng.below(DOCUMENTS as u64) as i32;
        let update = |update: Document| doc! { "update": "c", "updates": [{ "q": { "_id": id }, "u": update }] };
        out.push(match rng.below(5) {
            0 => doc! { "delete": "c", "deletes": [{ "q": { "_id": id }, "limit": 1 }] },
            1 => update(doc! { "$set": { "a": value(rng) }, "$push": { "l": value(rng) } }),
            2 => update(doc! { "$set": { "b": value(rng) }, "$unset": { "a": 1 } }),
            _ => doc! { "update": "c", "updates": [{ "q": { "_id": id }, "u": document(id, rng), "upsert": true }] },
        });
    }
    out
}

fn range(rng: &mut Rng) -> Document {
    let low = value(rng);
    match rng.below(4) {
        0 => doc! { "$gte": low },
        1 => doc! { "$lt": low },
        _ => doc! { "$gte": low, "$lt": low + value(rng) },
    }
}

fn some(rng: &mut Rng) -> Document {
    let values: Vec<i32> = (0..1 + rng.below(8)).map(|_| value(rng)).collect();
    doc! { "$in": values }
}

/// A filter and the index that it is read by; none if the planner is to choose.
fn filter(rng: &mut Rng) -> (Document, Option<&'static str>) {
    match rng.below(9) {
        0 => (doc! { "a": range(rng) }, Some("a")),
        1 => (doc! { "a": some(rng) }, Some("a")),
        2 => (doc! { "l": range(rng) }, Some("l")),
        3 => (doc! { "l": some(rng) }, Some("l")),
        4 => (
            doc! { "u": { "$gte": value(rng) * 9, "$lt": value(rng) * 12 } },
            Some("u"),
        ),
        5 => (doc! { "b": some(rng), "a": range(rng) }, Some("b_a")),
        6 => (doc! { "a": range(rng), "l": some(rng) }, Some("a")),
        7 => (
            doc! { "s": { "$gt": "text 1" }, "b": range(rng) },
            Some("s_a"),
        ),
        _ => {
            let ways = vec![
                doc! { "a": some(rng) },
                doc! { "l": range(rng) },
                doc! { "_id": range(rng) },
            ];
            (doc! { "$or": ways }, None)
        }
    }
}

/// A client that reads, within a transaction or not.
#[derive(Clone)]
struct Reader {
    client: Client,
    in_transaction: bool,
}

impl Reader {
    async fn ok(&self, command: Document) -> Document {
        match self.in_transaction {
            true => self.client.ok(statement(1, 1, command)).await,
            false => self.client.ok(command).await,
        }
    }

    /// The documents of a find, by many batches where it may.
    async fn find(&self, rest: Document, rng: &mut Rng) -> Vec<Document> {
        let mut find = doc! { "find": "c" };
        find.extend(rest);
        if self.in_transaction {
            find.insert("batchSize", 1000);
            let reply = self.ok(find).await;
            return batch(
                reply.get_document("cursor").expect("a cursor"),
                "firstBatch",
            );
        }
        find.insert("batchSize", [2, 7, 1000][rng.below(3) as usize]);
        self.client.find(find).await
    }
}

fn sorted(documents: Vec<Document>) -> Vec<String> {
    let mut texts: Vec<String> = documents.iter().map(Document::to_string).collect();
    texts.sort();
    texts
}

fn key_of(document: &Document, field: &str) -> i32 {
    document.get_i32(field).unwrap_or(-1)
}

/// Compares a random read by an index with the same by a scan of the collection.
async fn compare(reader: &Reader, rng: &mut Rng) {
    let (filter, hint) = filter(rng);
    let natural = doc! { "$natural": 1 };
    let all = reader
        .find(doc! { "filter": filter.clone(), "hint": natural }, rng)
        .await;
    let mut by_index = doc! { "filter": filter.clone() };
    if let Some(hint) = hint {
        by_index.insert("hint", hint);
    }
    let found = reader.find(by_index.clone(), rng).await;
    assert_eq!(sorted(found), sorted(all.clone()), "{by_index}");

    let mut count = doc! { "count": "c", "query": filter.clone() };
    count.extend(hint.map(|hint| doc! { "hint": hint }).unwrap_or_default());
    // A transaction counts by a pipeline.
    if !reader.in_transaction {
        let counted = reader.ok(count).await;
        assert_eq!(
            counted.get_i32("n").ok(),
            Some(all.len() as i32),
            "{filter}"
        );
    }
    in_order(reader, &filter, &all, rng).await;
    covered(reader, &filter, hint, &all, rng).await;
}

/// Sorted reads, by one index and by several scans that are merged, with a limit or without one.
async fn in_order(reader: &Reader, filter: &Document, all: &[Document], rng: &mut Rng) {
    let down = rng.chance(0.5);
    let (field, hint) = [("a", "a"), ("u", "u"), ("a", "b_a")][rng.below(3) as usize];
    let sort = doc! { field: if down { -1 } else { 1 } };
    let mut read = doc! { "filter": filter.clone(), "sort": sort };
    if hint != "b_a" || filter.contains_key("b") {
        read.insert("hint", hint);
    }
    let most = rng.below(40) as usize;
    if most > 0 {
        read.insert("limit", most as i32);
    }
    let mut keys: Vec<i32> = all.iter().map(|document| key_of(document, field)).collect();
    keys.sort();
    if down {
        keys.reverse();
    }
    if most > 0 {
        keys.truncate(most);
    }
    let found = reader.find(read.clone(), rng).await;
    let found: Vec<i32> = found
        .iter()
        .map(|document| key_of(document, field))
        .collect();
    assert_eq!(found, keys, "{read}");
}

/// What an index alone gives.
async fn covered(
    reader: &Reader,
    filter: &Document,
    hint: Option<&str>,
    all: &[Document],
    rng: &mut Rng,
) {
    let fields: &[&str] = match hint {
        Some("a") if filter.len() == 1 => &["a"],
        Some("b_a") => &["b", "a"],
        Some("u") => &["u"],
        _ => return,
    };
    let mut projection = doc! { "_id": 0 };
    projection.extend(
        fields
            .iter()
            .map(|field| (field.to_string(), Bson::Int32(1))),
    );
    let read = doc! { "filter": filter.clone(), "hint": hint.expect("an index"), "projection": projection };
    let found = reader.find(read.clone(), rng).await;
    let in_order = |documents: Vec<Document>| -> Vec<Vec<i32>> {
        let keys =
            |document: &Document| fields.iter().map(|field| key_of(document, field)).collect();
        let mut all: Vec<Vec<i32>> = documents.iter().map(keys).collect();
        all.sort();
        all
    };
    assert_eq!(in_order(found), in_order(all.to_vec()), "{read}");
}

/// The values of fields that indexes have, and of those that documents have.
async fn compare_values(reader: &Reader, rng: &mut Rng) {
    for field in ["a", "b", "s", "u", "l"] {
        let query = match rng.chance(0.5) {
            true => doc! {},
            false => doc! { field: { "$gte": value(rng) } },
        };
        let values = |reply: &Document| {
            let values = reply.get_array("values").expect("values");
            let mut values: Vec<String> = values.iter().map(Bson::to_string).collect();
            values.sort();
            values
        };
        let mut distinct = doc! { "distinct": "c", "key": field, "query": query };
        let by_index = reader.ok(distinct.clone()).await;
        distinct.insert("hint", doc! { "$natural": 1 });
        let by_scan = reader.ok(distinct.clone()).await;
        assert_eq!(values(&by_index), values(&by_scan), "{distinct}");
    }
}

/// What `explain` counts: the entries in the ranges, and each document once.
async fn compare_counts(client: &Client, rng: &mut Rng) {
    let low = value(rng);
    let high = low + value(rng);
    for field in ["a", "l"] {
        let filter = doc! { field: { "$in": (low..high).collect::<Vec<i32>>() } };
        let find = doc! { "find": "c", "filter": filter, "hint": field };
        let plan = client
            .ok(doc! { "explain": find, "verbosity": "executionStats" })
            .await;
        let all = client.find(doc! { "find": "c", "batchSize": 1000 }).await;
        let entries = |document: &Document| {
            let mut values = match document.get(field) {
                Some(Bson::Array(items)) => items.clone(),
                other => other.cloned().into_iter().collect(),
            };
            values.retain(|value| value.as_i32().is_some_and(|n| low <= n && n < high));
            values.sort_by_key(Bson::as_i32);
            values.dedup();
            values.len() as i32
        };
        let entries: Vec<i32> = all.iter().map(entries).filter(|count| *count > 0).collect();
        let stats = plan.get_document("executionStats").expect("figures");
        let figure = |name| stats.get_i32(name).expect("a figure");
        let figures = ["totalKeysExamined", "totalDocsExamined", "nReturned"].map(figure);
        let documents = entries.len() as i32;
        assert_eq!(
            figures,
            [entries.iter().sum(), documents, documents],
            "{low} to {high} in {field}"
        );
    }
}

async fn fill(client: &Client, rng: &mut Rng) {
    client
        .ok(doc! { "createIndexes": "c", "indexes": indexes() })
        .await;
    let documents: Vec<Document> = (0..DOCUMENTS).map(|id| document(id, rng)).collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

/// Reads over what is in memory alone, then over what a checkpoint has written and changes above
/// it.
async fn read_all(client: Client, seed: u64) {
    let mut rng = Rng::from_seed(seed);
    fill(&client, &mut rng).await;
    let reader = Reader {
        client: client.clone(),
        in_transaction: false,
    };
    for round in 0..6 {
        for _ in 0..25 {
            compare(&reader, &mut rng).await;
        }
        compare_values(&reader, &mut rng).await;
        compare_counts(&client, &mut rng).await;
        if round % 2 == 0 {
            client.at("admin").ok(doc! { "fsync": 1 }).await;
        }
        for write in writes(&mut rng) {
            client.ok(write).await;
        }
    }
}

#[test]
fn indexes_give_what_the_collection_has() {
    for (seed, cores, partitions) in [(2301, 1, 1), (2302, 3, 3), (2303, 2, 3)] {
        with_options(seed, cores, options(partitions), move |client| {
            read_all(client, seed)
        });
    }
}

/// The same where pages must often be read from disk.
#[test]
fn indexes_give_the_same_from_disk() {
    for (seed, cores, partitions) in [(2304, 1, 1), (2305, 2, 2)] {
        let mut options = options(partitions);
        options.storage.cache_bytes = 512 * 1024;
        with_options(seed, cores, options, move |client| read_all(client, seed));
    }
}

#[test]
fn a_transaction_reads_what_it_has_written_by_indexes() {
    for (seed, cores, partitions) in [(2306, 1, 1), (2307, 3, 3)] {
        with_options(seed, cores, options(partitions), move |client| async move {
            become_primary().await;
            let mut rng = Rng::from_seed(seed);
            fill(&client, &mut rng).await;
            client.at("admin").ok(doc! { "fsync": 1 }).await;
            for write in writes(&mut rng) {
                client.ok(write).await;
            }
            let reader = Reader {
                client: client.clone(),
                in_transaction: true,
            };
            let begins = doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "a": 3 } } }] };
            client.ok(first(1, 1, begins)).await;
            for _ in 0..4 {
                for write in writes(&mut rng) {
                    reader.ok(write).await;
                }
                for _ in 0..15 {
                    compare(&reader, &mut rng).await;
                }
                compare_values(&reader, &mut rng).await;
            }
            client.at("admin").ok(abort(1, 1)).await;
        });
    }
}
