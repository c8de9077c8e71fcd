//! Reads that promise no snapshot take newer states while they run: what is not written is given
//! once, what a statement changes is changed once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::{Bson, Document, doc};
use pinion_exec::{NodeOptions, PlantedFault};
use pinion_runtime::{Duration, JoinHandle, Queue, sleep, spawn};

use crate::harness::{Client, column, options, with_options};

/// More than a statement changes at once.
const DOCUMENTS: i32 = 400;

/// Runs on 1 and 3 partitions, on as many cores.
fn check_everywhere<Fut: Future<Output = ()> + 'static>(
    test: impl Fn(Client) -> Fut + Copy + 'static,
) {
    for (seed, cores, partitions) in [(2100, 1, 1), (2101, 3, 3)] {
        with_options(seed, cores, options(partitions), test);
    }
}

/// Has every read take a newer state behind each document.
async fn renew_always(client: &Client) {
    set(client, doc! { "setParameter": 1, "internalQueryExecYieldIterations": 1, "internalQueryExecYieldPeriodMS": 0 }).await;
}

async fn set(client: &Client, parameters: Document) {
    client.at("admin").ok(parameters).await;
}

async fn renewed(client: &Client) -> i64 {
    let status = client.at("admin").ok(doc! { "serverStatus": 1 }).await;
    let storage = status
        .get_document("pinion")
        .and_then(|pinion| pinion.get_document("storage"))
        .expect("a section");
    storage.get_i64("readsRenewed").expect("a count")
}

fn document(id: i32) -> Document {
    let place = f64::from(id % 50);
    doc! {
        "_id": id, "a": id % 40, "b": id % 3, "u": id, "l": [id % 7, 100 + id % 11, id], "t": format!("word w{}", id % 5),
        "p": { "type": "Point", "coordinates": [place, f64::from(id % 30)] }, "w": { "x": id % 9, "y": id % 4 }
    }
}

/// Documents that are not written have even keys; the others are written all the time.
async fn fill(client: &Client) {
    let indexes = vec![
        doc! { "key": { "a": 1 }, "name": "a" },
        doc! { "key": { "b": 1, "a": -1 }, "name": "b_a" },
        doc! { "key": { "u": 1 }, "name": "u", "unique": true },
        doc! { "key": { "l": 1 }, "name": "l" },
        doc! { "key": { "t": "text" }, "name": "t" },
        doc! { "key": { "p": "2dsphere" }, "name": "p" },
        doc! { "key": { "w.$**": 1 }, "name": "w" },
    ];
    client
        .ok(doc! { "createIndexes": "c", "indexes": indexes })
        .await;
    let documents: Vec<Document> = (0..DOCUMENTS).map(document).collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

/// Writers that move, remove and bring back the documents with odd keys.
struct Writers {
    stop: Rc<Cell<bool>>,
    task: JoinHandle<()>,
}

impl Writers {
    fn begin(client: &Client) -> Writers {
        let stop = Rc::new(Cell::new(false));
        let (client, stopped) = (client.on(1), stop.clone());
        let task = spawn(Queue::Foreground, async move {
            let mut turn = 0;
            while !stopped.get() {
                turn += 1;
                let id = 1 + 2 * (turn * 7 % (DOCUMENTS / 2));
                let moved = doc! { "$inc": { "a": 3, "b": 1, "u": 1000, "w.x": 5 }, "$set": { "l": [turn % 90, turn % 13] } };
                let update = doc! { "q": { "_id": id }, "u": moved };
                client.ok(doc! { "update": "c", "updates": [update] }).await;
                if turn % 3 == 0 {
                    client
                        .ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": id }, "limit": 1 }] })
                        .await;
                    client
                        .ok(doc! { "insert": "c", "documents": [document(id)] })
                        .await;
                }
                sleep(Duration::from_micros(200)).await;
            }
        });
        Writers { stop, task }
    }

    async fn end(self) {
        self.stop.set(true);
        self.task.await.expect("no writer fails");
    }
}

fn find(rest: Document) -> Document {
    let mut command = doc! { "find": "c", "batchSize": 7 };
    command.extend(rest);
    command
}

fn aggregate(pipeline: Vec<Document>) -> Document {
    doc! { "aggregate": "c", "pipeline": pipeline, "cursor": { "batchSize": 7 } }
}

/// Reads that give every document, with the field that they are in the order of, which may be
/// descending.
fn whole_reads() -> Vec<(Document, Option<(&'static str, bool)>)> {
    let near = doc! { "$geometry": { "type": "Point", "coordinates": [0, 0] } };
    let up = |field| Some((field, false));
    let down = |field| Some((field, true));
    vec![
        (find(doc! {}), up("_id")),
        (find(doc! { "hint": { "$natural": -1 } }), down("_id")),
        (find(doc! { "sort": { "_id": -1 } }), down("_id")),
        (
            find(doc! { "filter": { "a": { "$gte": 0 } }, "hint": "a" }),
            up("a"),
        ),
        (find(doc! { "sort": { "a": -1 }, "hint": "a" }), down("a")),
        (
            find(doc! { "filter": { "b": { "$gte": 0 } }, "hint": "b_a" }),
            up("b"),
        ),
        (find(doc! { "sort": { "b": -1, "a": 1 } }), down("b")),
        (
            find(doc! { "filter": { "u": { "$gte": 0 } }, "hint": "u" }),
            up("u"),
        ),
        (find(doc! { "sort": { "u": -1 }, "hint": "u" }), down("u")),
        (
            find(doc! { "filter": { "l": { "$gte": 0 } }, "hint": "l" }),
            None,
        ),
        (
            find(
                doc! { "filter": { "b": { "$in": [0, 1, 2] } }, "sort": { "a": 1 }, "hint": "b_a" },
            ),
            up("a"),
        ),
        (
            find(
                doc! { "filter": { "$or": [{ "a": { "$lt": 20 } }, { "u": { "$gte": 0 } }, { "l": 100 }] } },
            ),
            None,
        ),
        (
            find(
                doc! { "filter": { "$or": [{ "a": { "$lt": 15 } }, { "b": { "$gte": 0 } }, { "a": { "$gte": 10 } }] } },
            ),
            None,
        ),
        (
            find(doc! { "filter": { "$text": { "$search": "word w1" } } }),
            None,
        ),
        (
            find(doc! { "filter": { "w.x": { "$gte": 0 } }, "hint": "w" }),
            up("w.x"),
        ),
        (
            find(doc! { "filter": { "p": { "$nearSphere": near } } }),
            None,
        ),
        (
            find(
                doc! { "filter": { "p": { "$geoWithin": { "$box": [[-1, -1], [60, 60]] } } }, "hint": "p" },
            ),
            None,
        ),
        (find(doc! { "sort": { "t": 1, "_id": 1 } }), up("t")),
        (
            aggregate(vec![
                doc! { "$match": { "a": { "$gte": 0 } } },
                doc! { "$set": { "k": 1 } },
            ]),
            None,
        ),
        (
            aggregate(vec![doc! { "$sort": { "w.y": 1, "_id": 1 } }]),
            up("w.y"),
        ),
        (
            aggregate(vec![
                doc! { "$lookup": { "from": "c", "localField": "_id", "foreignField": "_id", "as": "s" } },
                doc! { "$unwind": "$s" },
            ]),
            up("_id"),
        ),
        (
            aggregate(vec![
                doc! { "$setWindowFields": { "sortBy": { "_id": 1 }, "output": { "n": { "$sum": 1, "window": { "documents": ["unbounded", "current"] } } } } },
            ]),
            up("_id"),
        ),
        (
            aggregate(vec![
                doc! { "$geoNear": { "near": { "type": "Point", "coordinates": [0, 0] }, "distanceField": "d", "key": "p" } },
            ]),
            up("d"),
        ),
        (
            aggregate(vec![
                doc! { "$facet": { "all": [{ "$match": {} }] } },
                doc! { "$unwind": "$all" },
                doc! { "$replaceWith": "$all" },
            ]),
            up("_id"),
        ),
        (
            aggregate(vec![
                doc! { "$match": { "_id": { "$lt": 0 } } },
                doc! { "$unionWith": "c" },
            ]),
            up("_id"),
        ),
        (
            aggregate(vec![
                doc! { "$group": { "_id": "$_id", "n": { "$sum": 1 } } },
                doc! { "$match": { "n": 1 } },
            ]),
            None,
        ),
    ]
}

fn id_of(document: &Document) -> i32 {
    document.get_i32("_id").expect("a number")
}

fn untouched(found: &[Document]) -> Vec<Document> {
    let is_untouched = |document: &&Document| id_of(document) % 2 == 0;
    found.iter().filter(is_untouched).cloned().collect()
}

fn number(document: &Document, path: &str) -> f64 {
    let mut value = Bson::Document(document.clone());
    for name in path.split('.') {
        value = value
            .as_document()
            .and_then(|inner| inner.get(name).cloned())
            .unwrap_or(Bson::Null);
    }
    match value {
        Bson::Int32(n) => f64::from(n),
        Bson::Double(n) => n,
        Bson::String(text) => f64::from(text.as_bytes().last().copied().unwrap_or(0)),
        other => panic!("{path} is {other}"),
    }
}

/// What is wrong with a read of all documents.
fn fault_of(found: &[Document], order: Option<(&str, bool)>) -> Option<String> {
    let kept = untouched(found);
    let mut ids: Vec<i32> = kept.iter().map(id_of).collect();
    if let Some((field, descending)) = order {
        let values: Vec<f64> = kept
            .iter()
            .map(|document| number(document, field))
            .collect();
        let sorted = values.is_sorted_by(|a, b| if descending { a >= b } else { a <= b });
        if !sorted {
            return Some(format!("not in the order of {field}: {values:?}"));
        }
    }
    ids.sort_unstable();
    let expected: Vec<i32> = (0..DOCUMENTS).filter(|id| id % 2 == 0).collect();
    (ids != expected).then(|| format!("it gave {ids:?}"))
}

#[test]
fn what_is_not_written_is_given_once() {
    check_everywhere(|client| async move {
        fill(&client).await;
        renew_always(&client).await;
        let writers = Writers::begin(&client);
        for (read, order) in whole_reads() {
            let before = renewed(&client).await;
            let found = client.find(read.clone()).await;
            assert_eq!(fault_of(&found, order), None, "{read}");
            assert!(renewed(&client).await > before, "it kept its state: {read}");
        }
        writers.end().await;
    });
}

/// Documents that are counted without a look at each, behind as many deleted ones as are passed
/// over at once.
#[test]
fn what_lies_behind_deleted_documents_counts_once() {
    check_everywhere(|client| async move {
        renew_always(&client).await;
        for deleted in [1, 61, 62, 63, 64, 65, 126, 127] {
            let name = format!("deleted{deleted}");
            let documents: Vec<Document> = (0..deleted + 4).map(document).collect();
            client
                .ok(doc! { "insert": &name, "documents": documents })
                .await;
            let range = doc! { "_id": { "$gte": 1, "$lte": deleted } };
            client
                .ok(doc! { "delete": &name, "deletes": [{ "q": range, "limit": 0 }] })
                .await;
            let count = vec![doc! { "$group": { "_id": 1, "n": { "$sum": 1 } } }];
            let counted = client
                .find(doc! { "aggregate": &name, "pipeline": count, "cursor": {} })
                .await;
            assert_eq!(counted, [doc! { "_id": 1, "n": 4 }], "{name}");
        }
    });
}

/// Values and counts of what is not written.
#[test]
fn counts_and_values_are_of_all() {
    check_everywhere(|client| async move {
        fill(&client).await;
        renew_always(&client).await;
        let writers = Writers::begin(&client);
        let even = doc! { "$mod": [2, 0] };
        for hint in [
            doc! { "$natural": 1 },
            doc! { "_id": 1 },
            doc! { "u": 1 },
            doc! { "a": 1 },
            doc! { "l": 1 },
        ] {
            let count = doc! { "count": "c", "query": { "_id": even.clone() }, "hint": hint };
            let counted = client.ok(count.clone()).await;
            assert_eq!(counted.get_i32("n").ok(), Some(DOCUMENTS / 2), "{count}");
        }
        for (key, all) in [("_id", DOCUMENTS / 2), ("u", DOCUMENTS / 2), ("a", 20)] {
            let distinct = doc! { "distinct": "c", "key": key, "query": { "_id": even.clone() } };
            let values = client.ok(distinct.clone()).await;
            let values = values.get_array("values").expect("values").len();
            assert_eq!(values, all as usize, "{distinct}");
        }
        // By an index alone, where values of others may be among them.
        let values = client.ok(doc! { "distinct": "c", "key": "a" }).await;
        let values = values.get_array("values").expect("values").clone();
        for value in (0..40).step_by(2) {
            assert!(values.contains(&Bson::Int32(value)), "{value} is missing");
        }
        let group = vec![
            doc! { "$match": { "_id": even } },
            doc! { "$group": { "_id": Bson::Null, "n": { "$sum": 1 }, "s": { "$sum": "$_id" } } },
        ];
        let grouped = client.find(aggregate(group)).await;
        assert_eq!(grouped[0].get_i32("n").ok(), Some(DOCUMENTS / 2));
        assert_eq!(
            grouped[0].get_i32("s").ok(),
            Some((0..DOCUMENTS).step_by(2).sum())
        );
        writers.end().await;
    });
}

#[test]
fn skip_and_limit_count_over_all_states() {
    check_everywhere(|client| async move {
        fill(&client).await;
        renew_always(&client).await;
        let writers = Writers::begin(&client);
        for (sort, hint) in [
            (doc! { "_id": 1 }, "_id_"),
            (doc! { "u": 1 }, "u"),
            (doc! { "u": -1 }, "u"),
        ] {
            let read = doc! { "filter": { "_id": { "$mod": [2, 0] } }, "sort": sort.clone(), "hint": hint, "skip": 11, "limit": 23 };
            let found = column(&client.find(find(read)).await, "_id");
            let mut all: Vec<i32> = (0..DOCUMENTS).step_by(2).collect();
            if sort.get_i32("u").ok() == Some(-1) {
                all.reverse();
            }
            let expected: Vec<Bson> = all[11..34].iter().copied().map(Bson::from).collect();
            assert_eq!(found, expected, "{sort}");
        }
        writers.end().await;
    });
}

/// What a read of all by this index gives where a fault is planted.
fn faulty(fault: PlantedFault, hint: &'static str) -> Vec<i32> {
    let options = NodeOptions {
        planted_fault: fault,
        ..options(2)
    };
    let given = Rc::new(RefCell::new(Vec::new()));
    let kept = given.clone();
    with_options(2110, 2, options, move |client| {
        let kept = kept.clone();
        async move {
            fill(&client).await;
            renew_always(&client).await;
            let found = client
                .find(find(
                    doc! { "hint": hint, "filter": { "a": { "$gte": 0 }, "u": { "$gte": 0 } } },
                ))
                .await;
            *kept.borrow_mut() = found.iter().map(id_of).collect();
        }
    });
    let mut given = given.take();
    given.sort_unstable();
    given
}

#[test]
fn planted_faults_of_renewals_are_found() {
    let all: Vec<i32> = (0..DOCUMENTS).collect();
    for hint in ["_id_", "a", "u"] {
        assert_eq!(faulty(PlantedFault::None, hint), all);
        assert_ne!(faulty(PlantedFault::SkippedAtRenewal, hint), all);
        assert_ne!(faulty(PlantedFault::RepeatedAtRenewal, hint), all);
    }
}

/// How often each document was changed, by its key.
async fn changes(client: &Client) -> BTreeMap<i32, i32> {
    let found = client.find(doc! { "find": "c", "batchSize": 1000 }).await;
    let changed = |document: &Document| (id_of(document), document.get_i32("n").unwrap_or(0));
    found.iter().map(changed).collect()
}

fn once() -> BTreeMap<i32, i32> {
    (0..DOCUMENTS).map(|id| (id, 1)).collect()
}

/// Moves all documents forward in an index that the update walks.
async fn move_all(client: &Client, hint: &str, by: &str) -> Document {
    let change = doc! { "$inc": { by: 50, "n": 1 } };
    let filter = doc! { by: { "$gte": 0, "$lt": 400 } };
    let update = doc! { "q": filter, "u": change, "multi": true, "hint": hint };
    client.ok(doc! { "update": "c", "updates": [update] }).await
}

#[test]
fn a_statement_changes_a_document_once_wherever_it_moves() {
    check_everywhere(|client| async move {
        for (hint, by) in [("a", "a"), ("b_a", "b"), ("w", "w.x")] {
            client.run(doc! { "drop": "c" }).await;
            fill(&client).await;
            renew_always(&client).await;
            let before = renewed(&client).await;
            let reply = move_all(&client, hint, by).await;
            assert_eq!(
                reply.get_i32("nModified").ok(),
                Some(DOCUMENTS),
                "{hint}: {reply}"
            );
            assert_eq!(changes(&client).await, once(), "{hint}");
            assert!(renewed(&client).await > before);
        }
    });
}

#[test]
fn a_statement_that_has_no_room_for_what_it_changed_goes_by_id() {
    check_everywhere(|client| async move {
        fill(&client).await;
        renew_always(&client).await;
        set(
            &client,
            doc! { "setParameter": 1, "internalQueryMaxBlockingSortMemoryUsageBytes": 800 },
        )
        .await;
        let reply = move_all(&client, "a", "a").await;
        assert_eq!(reply.get_i32("nModified").ok(), Some(DOCUMENTS), "{reply}");
        assert_eq!(changes(&client).await, once());
    });
}

#[test]
fn a_document_that_others_move_is_changed_once() {
    check_everywhere(|client| async move {
        fill(&client).await;
        renew_always(&client).await;
        let stop = Rc::new(Cell::new(false));
        let (other, stopped) = (client.on(1), stop.clone());
        let moving = spawn(Queue::Foreground, async move {
            let mut turn = 0;
            while !stopped.get() {
                turn += 1;
                let update =
                    doc! { "q": { "_id": turn * 11 % DOCUMENTS }, "u": { "$inc": { "a": 7 } } };
                other.ok(doc! { "update": "c", "updates": [update] }).await;
            }
        });
        for turn in 1..=3 {
            let update = doc! { "q": { "a": { "$gte": 0 } }, "u": { "$inc": { "n": 1 } }, "multi": true, "hint": "a" };
            client.ok(doc! { "update": "c", "updates": [update] }).await;
            let more = changes(&client)
                .await
                .into_values()
                .filter(|n| *n > turn)
                .count();
            assert_eq!(more, 0, "after {turn} updates");
        }
        stop.set(true);
        moving.await.expect("no writer fails");
    });
}

#[test]
fn a_planted_second_change_is_found() {
    let options = NodeOptions {
        planted_fault: PlantedFault::ChangedAgain,
        ..options(1)
    };
    with_options(2120, 1, options, |client| async move {
        fill(&client).await;
        renew_always(&client).await;
        move_all(&client, "a", "a").await;
        assert_ne!(changes(&client).await, once());
    });
}

#[test]
fn deletions_take_all_in_every_state() {
    check_everywhere(|client| async move {
        fill(&client).await;
        renew_always(&client).await;
        let writers = Writers::begin(&client);
        for (hint, rest) in [("a", 3), ("u", 1), ("l", 0)] {
            let filter = doc! { "_id": { "$mod": [2, 0], "$gte": rest * 20 } };
            let delete = doc! { "q": filter, "limit": 0, "hint": hint };
            client.ok(doc! { "delete": "c", "deletes": [delete] }).await;
            let left = client.find(doc! { "find": "c", "batchSize": 1000 }).await;
            let left = untouched(&left);
            assert_eq!(left.len() as i32, rest * 10, "{hint}");
        }
        writers.end().await;
    });
}

/// Options of a node whose memory for old versions is soon at its end.
fn tiny() -> NodeOptions {
    let mut options = options(2);
    options.storage.cache_bytes = 2 * 1024 * 1024;
    options
}

/// Writes until states that are older can have none of their versions left.
async fn overwrite(client: &Client) {
    for turn in 0..6 {
        let update = doc! { "q": {}, "u": { "$set": { "v": turn, "pad": "y".repeat(3000) } }, "multi": true };
        client.ok(doc! { "update": "c", "updates": [update] }).await;
        client.at("admin").ok(doc! { "fsync": 1 }).await;
    }
}

#[test]
fn an_open_cursor_outlives_its_state() {
    with_options(2130, 2, tiny(), |client| async move {
        fill(&client).await;
        for read in [
            find(doc! {}),
            find(doc! { "hint": "u" }),
            find(doc! { "sort": { "a": -1 }, "hint": "a" }),
            aggregate(vec![doc! { "$match": {} }]),
        ] {
            let reply = client.ok(read.clone()).await;
            let cursor = reply.get_document("cursor").expect("a cursor");
            let mut found = cursor.get_array("firstBatch").expect("a batch").len();
            let mut id = cursor.get_i64("id").expect("an id");
            while id != 0 {
                overwrite(&client).await;
                let more = doc! { "getMore": id, "collection": "c", "batchSize": 60 };
                let reply = client.ok(more).await;
                let cursor = reply.get_document("cursor").expect("a cursor");
                found += cursor.get_array("nextBatch").expect("a batch").len();
                id = cursor.get_i64("id").expect("an id");
            }
            assert_eq!(found as i32, DOCUMENTS, "{read}");
        }
    });
}

#[test]
fn a_cursor_notices_what_is_gone() {
    check_everywhere(|client| async move {
        let union = aggregate(vec![
            doc! { "$match": { "_id": { "$lt": 3 } } },
            doc! { "$unionWith": "other" },
        ]);
        let changes = [
            (
                find(doc! { "hint": "a" }),
                doc! { "dropIndexes": "c", "index": "a" },
            ),
            (find(doc! {}), doc! { "drop": "c" }),
            (union, doc! { "drop": "other" }),
        ];
        for (read, change) in changes {
            client.run(doc! { "drop": "c" }).await;
            client.run(doc! { "drop": "other" }).await;
            fill(&client).await;
            // More than its parts hand over in one step.
            let padded = |id| {
                let mut padded = document(id);
                padded.insert("pad", "x".repeat(12_000));
                padded
            };
            let others: Vec<Document> = (0..DOCUMENTS).map(padded).collect();
            client
                .ok(doc! { "insert": "other", "documents": others })
                .await;
            renew_always(&client).await;
            let reply = client.ok(read).await;
            let id = reply
                .get_document("cursor")
                .and_then(|cursor| cursor.get_i64("id"));
            let id = id.expect("a cursor");
            client.ok(change.clone()).await;
            client
                .fails(doc! { "getMore": id, "collection": "c" }, 175)
                .await;
        }
    });
}

#[test]
fn a_reader_of_a_capped_collection_loses_its_place_and_passes_over_nothing() {
    check_everywhere(|client| async move {
        client
            .ok(doc! { "create": "c", "capped": true, "size": 1 << 20, "max": 40 })
            .await;
        let insert = async |ids: std::ops::Range<i32>| {
            let documents: Vec<Document> = ids.map(|id| doc! { "_id": id }).collect();
            client
                .ok(doc! { "insert": "c", "documents": documents })
                .await;
        };
        insert(0..40).await;
        renew_always(&client).await;
        let found = client.find(find(doc! {})).await;
        assert_eq!(found.len(), 40);
        for tailable in [false, true] {
            let reply = client.ok(find(doc! { "tailable": tailable })).await;
            let id = reply
                .get_document("cursor")
                .and_then(|cursor| cursor.get_i64("id"));
            let id = id.expect("a cursor");
            let next = if tailable { 140 } else { 40 };
            insert(next..next + 50).await;
            client
                .fails(doc! { "getMore": id, "collection": "c" }, 136)
                .await;
        }
    });
}

#[test]
fn a_series_is_read_and_changed_once_in_every_state() {
    check_everywhere(|client| async move {
        client
            .ok(doc! { "create": "s", "timeseries": { "timeField": "t", "metaField": "m" } })
            .await;
        let time = |i: i64| {
            Bson::DateTime(pinion_bson::DateTime::from_millis(
                1_700_000_000_000 + i * 1000,
            ))
        };
        let documents: Vec<Document> = (0..200)
            .map(|i| doc! { "t": time(i), "m": { "k": (i % 40) as i32, "n": 0 }, "i": i })
            .collect();
        client
            .ok(doc! { "insert": "s", "documents": documents })
            .await;
        renew_always(&client).await;
        let found = client.find(doc! { "find": "s", "batchSize": 7 }).await;
        assert_eq!(found.len(), 200);
        let update = doc! { "q": { "m.k": { "$gte": 0, "$lt": 1000 } }, "u": { "$inc": { "m.k": 50, "m.n": 1 } }, "multi": true };
        client.ok(doc! { "update": "s", "updates": [update] }).await;
        let found = client.find(doc! { "find": "s", "batchSize": 1000 }).await;
        let changed = |document: &Document| {
            document
                .get_document("m")
                .and_then(|meta| meta.get_i32("n"))
                .ok()
        };
        assert!(found.iter().all(|document| changed(document) == Some(1)));
        assert_eq!(found.len(), 200);
    });
}

#[test]
fn what_a_pipeline_writes_it_does_not_read() {
    check_everywhere(|client| async move {
        fill(&client).await;
        renew_always(&client).await;
        let twice = vec![
            doc! { "$match": { "_id": { "$gte": 0 } } },
            doc! { "$project": { "_id": { "$add": ["$_id", 1000] }, "u": { "$add": ["$_id", 1000] } } },
            doc! { "$merge": "c" },
        ];
        client.ok(aggregate(twice)).await;
        let found = client.find(doc! { "find": "c", "batchSize": 1000 }).await;
        assert_eq!(found.len() as i32, 2 * DOCUMENTS);
        let count = doc! { "$add": [{ "$ifNull": ["$n", 0] }, 1] };
        let matched = vec![doc! { "$set": { "n": count, "a": { "$add": ["$a", 50] } } }];
        let moving = vec![
            doc! { "$match": { "a": { "$gte": 0, "$lt": 400 } } },
            doc! { "$project": { "a": 1 } },
            doc! { "$merge": { "into": "c", "whenMatched": matched } },
        ];
        client.ok(aggregate(moving)).await;
        let changed = changes(&client).await.into_iter();
        let changed: BTreeMap<i32, i32> = changed.filter(|(id, _)| *id < 1000).collect();
        assert_eq!(changed, once());
        let out = vec![doc! { "$match": {} }, doc! { "$out": "copied" }];
        client.ok(aggregate(out)).await;
        let copied = client
            .find(doc! { "find": "copied", "batchSize": 1000 })
            .await;
        assert_eq!(copied.len() as i32, 2 * DOCUMENTS);
    });
}

#[test]
fn an_index_that_gets_its_first_arrays_under_a_read_gives_each_document_once() {
    check_everywhere(|client| async move {
        renew_always(&client).await;
        let index = doc! { "key": { "a": 1 }, "name": "a" };
        client
            .ok(doc! { "createIndexes": "c", "indexes": [index] })
            .await;
        let plain: Vec<Document> = (0..60).map(|id| doc! { "_id": id, "a": id }).collect();
        client.ok(doc! { "insert": "c", "documents": plain }).await;
        let reply = client.ok(find(doc! { "hint": "a" })).await;
        let cursor = reply.get_document("cursor").expect("a cursor");
        let mut found = column_of(cursor, "firstBatch");
        let mut id = cursor.get_i64("id").expect("an id");
        let arrays = (100..120).map(|id| doc! { "_id": id, "a": [id, id + 50, id + 100] });
        let arrays: Vec<Document> = arrays.collect();
        client.ok(doc! { "insert": "c", "documents": arrays }).await;
        while id != 0 {
            let more = doc! { "getMore": id, "collection": "c", "batchSize": 7 };
            let reply = client.ok(more).await;
            let cursor = reply.get_document("cursor").expect("a cursor");
            found.extend(column_of(cursor, "nextBatch"));
            id = cursor.get_i64("id").expect("an id");
        }
        let given = found.len();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), given, "a document was given twice");
        assert!((0..60).all(|id| found.contains(&id)), "{found:?}");
    });
}

/// The `_id` of each document of a batch.
fn column_of(cursor: &Document, batch: &str) -> Vec<i32> {
    let batch = cursor.get_array(batch).expect("a batch").iter();
    let documents = batch.map(|document| document.as_document().expect("a document"));
    let ids = documents.map(|document| document.get_i32("_id").expect("an _id"));
    ids.collect()
}
