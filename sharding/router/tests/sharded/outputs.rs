//! `$out` and `$merge` through a router: each document has its effect once, however the routing
//! table changes.

use std::collections::BTreeMap;

use pinion_bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, get, rawdoc};
use pinion_query::document_text;
use pinion_runtime::{Duration, Rng, sleep};
use pinion_wire::{Invocation, Reply, Result};

use super::cluster::{Client, run};
use super::nodes::{Member, check_database};
use super::operations::keys;
use super::{change, fill};

impl Member {
    pub async fn list_collections(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers list nothing");
        self.work().await;
        let name = pinion_bson::get_path(cmd.body(), "filter.name").and_then(|name| name.as_str());
        let name = name.expect("a name");
        let mut world = self.world.borrow_mut();
        check_database(&mut world, &cmd, shard)?;
        let is_there = world.names().iter().any(|found| found == name);
        drop(world);
        let listed = rawdoc! { "name": name, "type": "collection", "options": {} };
        let listed = is_there.then_some(listed).into_iter().collect();
        Ok(self.cursor("d.$cmd.listCollections", listed, None))
    }

    /// Puts a collection in the place of another one, which must be as it was listed.
    pub async fn replace(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers have nothing to rename");
        self.work().await;
        let mut world = self.world.borrow_mut();
        check_database(&mut world, &cmd, shard)?;
        let name = |field| {
            let name = get(cmd.body(), field).and_then(|name| name.as_str());
            name.and_then(|name| name.strip_prefix("d."))
                .expect("a name of the database")
        };
        let (from, to) = (name("from"), name("to"));
        let options = get(cmd.body(), "collectionOptions");
        assert_eq!(options, Some(RawBsonRef::Document(&rawdoc! {})));
        let indexes = get(cmd.body(), "indexes").and_then(|indexes| indexes.as_array());
        let listed = pinion_bson::values(indexes.expect("a list")).filter_map(|index| {
            let name = get(index.as_document()?, "name")?.as_str()?;
            (name != "_id_").then(|| name.to_owned())
        });
        let listed: Vec<String> = listed.collect();
        let there = world.indexes.get(&(shard, to.to_owned())).cloned();
        let there: Vec<String> = there.into_iter().flatten().collect();
        assert_eq!(listed, there);
        world.rename(from, to);
        Ok(Reply::new())
    }
}

/// Documents by their `_id`, with the texts of their fields in the order of the names.
type Shown = BTreeMap<i32, BTreeMap<String, String>>;

fn fields(document: &RawDocument) -> BTreeMap<String, String> {
    let shown = |(name, value): (&str, RawBsonRef<'_>)| {
        let mut one = RawDocumentBuf::new();
        one.append(pinion_bson::cstr!("v"), RawBson::from(value));
        (name.to_owned(), document_text(&one))
    };
    pinion_bson::elements(document).map(shown).collect()
}

fn id_of(document: &RawDocument) -> i32 {
    document.get_i32("_id").expect("a number")
}

fn shown(client: &Client, name: &str) -> Shown {
    let documents = client.world.borrow().documents(name);
    let shown = documents.iter().map(|found| (id_of(found), fields(found)));
    let all: Shown = shown.collect();
    assert_eq!(all.len(), documents.len(), "a document is there twice");
    all
}

fn pipeline(stages: Vec<RawDocumentBuf>) -> RawArrayBuf {
    let mut out = RawArrayBuf::new();
    stages.into_iter().for_each(|stage| out.push(stage));
    out
}

async fn write(client: &Client, source: &str, stages: Vec<RawDocumentBuf>) -> RawDocumentBuf {
    let command =
        rawdoc! { "aggregate": source, "pipeline": pipeline(stages), "cursor": { "batchSize": 0 } };
    let reply = client.expect(&command).await;
    let id = pinion_bson::get_path(&reply, "cursor.id").and_then(|id| id.as_i64());
    assert_eq!(id, Some(0), "{reply:?}");
    reply
}

/// Documents whose key is not null, with a mark.
fn marked(from: i32, mark: i32) -> Vec<RawDocumentBuf> {
    vec![
        rawdoc! { "$match": { "_id": { "$gte": from }, "a": { "$type": "number" } } },
        rawdoc! { "$project": { "a": 1, "b": 1, "mark": { "$literal": mark } } },
    ]
}

/// Whether a document is one of those.
fn is_marked(document: &RawDocument, from: i32) -> bool {
    let is_number = matches!(
        get(document, "a"),
        Some(RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_))
    );
    is_number && id_of(document) >= from
}

/// Runs `$merge` in one of its modes, and expects what it does.
async fn merge_one(client: &Client, rng: &mut Rng, round: i32) {
    let from = rng.below(60) as i32;
    let mode = rng.below(5);
    let mut expected = shown(client, "t");
    let source = client.world.borrow().documents("c");
    for document in source.iter().filter(|found| is_marked(found, from)) {
        let mut new = fields(document);
        new.retain(|name, _| matches!(name.as_str(), "_id" | "a" | "b"));
        new.extend(fields(&rawdoc! { "mark": round }));
        let old = expected.get_mut(&id_of(document));
        match (old, mode) {
            (None, 4) | (Some(_), 2) => {}
            (Some(old), 3) => {
                let n = old.get("n").map_or("{ v: 1 }", |_| "{ v: 2 }");
                old.insert("n".to_owned(), n.to_owned());
                old.insert("was".to_owned(), new["mark"].clone());
            }
            (Some(old), 1) => *old = new,
            (Some(old), _) => old.extend(new),
            (None, _) => {
                expected.insert(id_of(document), new);
            }
        }
    }
    let count = rawdoc! { "$cond": [{ "$eq": [{ "$type": "$n" }, "missing"] }, 1, 2] };
    let stage = match mode {
        0 => rawdoc! { "into": "t" },
        1 => rawdoc! { "into": "t", "whenMatched": "replace" },
        2 => rawdoc! { "into": "t", "whenMatched": "keepExisting" },
        3 => rawdoc! {
            "into": "t", "let": { "mark": "$mark", "new": "$$ROOT" },
            "whenMatched": [{ "$set": { "n": count, "was": "$$mark", "a": "$$new.a" } }],
        },
        _ => rawdoc! { "into": "t", "whenMatched": "merge", "whenNotMatched": "discard" },
    };
    let mut stages = marked(from, round);
    stages.push(rawdoc! { "$merge": stage });
    write(client, "c", stages).await;
    assert_eq!(shown(client, "t"), expected, "mode {mode} from {from}");
}

#[test]
fn merges_have_their_effect_once() {
    for seed in 1..=15 {
        run(seed, 1 + seed as usize % 4, |client, mut rng| async move {
            fill(&client, &mut rng);
            let key = keys()[rng.below(4) as usize].clone();
            client.world.borrow_mut().insert("t", Vec::new());
            for round in 0..12 {
                match rng.below(4) {
                    0 => change(&client, &mut rng),
                    1 => client.world.borrow_mut().move_chunk("t", &mut rng),
                    2 if rng.below(2) == 0 => client.world.borrow_mut().unshard("t"),
                    2 => {
                        let cuts = rng.below(8) as usize;
                        let mut world = client.world.borrow_mut();
                        world.shard("t", key.clone(), cuts, &mut rng);
                    }
                    _ => {}
                }
                let has_sharded = ["c", "t"].map(|name| client.world.borrow().is_sharded(name));
                if has_sharded == [false, false] {
                    // A shard would do all of it.
                    client
                        .world
                        .borrow_mut()
                        .shard("t", key.clone(), 4, &mut rng);
                }
                merge_one(&client, &mut rng, round).await;
            }
        });
    }
}

#[test]
fn an_output_takes_the_place_of_a_collection() {
    for seed in 1..=10 {
        run(seed, 1 + seed as usize % 4, |client, mut rng| async move {
            fill(&client, &mut rng);
            for round in 0..6 {
                change(&client, &mut rng);
                let key = keys()[rng.below(4) as usize].clone();
                client.world.borrow_mut().shard("c", key, 5, &mut rng);
                let primary = client.world.borrow().primary;
                let key = (primary, "t".to_owned());
                let kept =
                    (client.world.borrow().indexes.get(&key)).is_some_and(|of| !of.is_empty());
                let mut stages = marked(10, round);
                stages.push(rawdoc! { "$out": "t" });
                write(&client, "c", stages).await;
                let source = client.world.borrow().documents("c");
                let source = source.iter().filter(|found| is_marked(found, 10));
                let expected: Vec<i32> = source.map(|found| id_of(found)).collect();
                let found = shown(&client, "t");
                let mark = fields(&rawdoc! { "mark": round })["mark"].clone();
                assert!(found.values().all(|found| found["mark"] == mark));
                let mut ids: Vec<i32> = found.into_keys().collect();
                let mut expected = expected.clone();
                ids.sort_unstable();
                expected.sort_unstable();
                assert_eq!(ids, expected);
                let names = client.world.borrow().names();
                assert!(
                    !names.iter().any(|name| name.starts_with("tmp.")),
                    "{names:?}"
                );
                let primary = client.world.borrow().primary;
                let key = (primary, "t".to_owned());
                let indexes = client.world.borrow().indexes.get(&key).cloned();
                assert!(!kept || indexes.is_some_and(|of| of.contains("b_1")));
                client
                    .expect(&rawdoc! { "createIndexes": "t", "indexes": [{ "key": { "b": 1 }, "name": "b_1" }] })
                    .await;
            }
        });
    }
}

async fn fails(client: &Client, source: &str, stages: Vec<RawDocumentBuf>, code: i32) {
    let command = rawdoc! { "aggregate": source, "pipeline": pipeline(stages), "cursor": {} };
    let error = client.run(&command).await.expect_err("it is refused");
    assert_eq!(error.code.0, code, "{}: {error}", document_text(&command));
}

#[test]
fn what_cannot_be_written() {
    run(3, 3, |client, mut rng| async move {
        {
            let mut world = client.world.borrow_mut();
            let documents = (0..20).map(|n| rawdoc! { "_id": n, "a": n });
            world.insert("c", documents.collect());
            world.insert(
                "plain",
                vec![rawdoc! { "_id": 3, "a": 3 }, rawdoc! { "_id": 4 }],
            );
            world.shard("c", rawdoc! { "a": 1 }, 5, &mut rng);
        }
        let before = shown(&client, "c");
        fails(&client, "plain", vec![rawdoc! { "$out": "c" }], 28769).await;
        let merge = |mut spec: RawDocumentBuf| {
            spec.append(pinion_bson::cstr!("into"), "c");
            vec![rawdoc! { "$merge": spec }]
        };
        // The second document has no key.
        fails(&client, "plain", merge(rawdoc! {}), 51132).await;
        fails(&client, "plain", merge(rawdoc! { "on": "a" }), 51183).await;
        fails(
            &client,
            "plain",
            merge(rawdoc! { "whenMatched": "fail" }),
            11000,
        )
        .await;
        let mut stages = vec![rawdoc! { "$project": { "a": { "$literal": 77 } } }];
        stages.extend(merge(rawdoc! { "whenNotMatched": "fail" }));
        fails(&client, "plain", stages, 13113).await;
        // What was not refused before it was written stays.
        let mut after = shown(&client, "c");
        after.retain(|id, _| before.contains_key(id));
        assert_eq!(after, before);
        // What shards say while the output is read ends it, and nothing is left of it.
        let stages = vec![
            rawdoc! { "$project": { "_id": 1 } },
            rawdoc! { "$set": { "_id": { "$literal": 1 } } },
            rawdoc! { "$out": "other" },
        ];
        fails(&client, "c", stages, 11000).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(client.world.borrow().names(), ["c", "plain"]);
        let explain = rawdoc! {
            "aggregate": "c", "cursor": {}, "explain": true, "pipeline": [{ "$out": "other" }],
        };
        let reply = client.expect(&explain).await;
        let last = pinion_bson::get_path(&reply, "splitPipeline.mergerPart.0");
        let last = last.and_then(|stage| stage.as_document()).expect("a stage");
        assert_eq!(last, &*rawdoc! { "$out": "other" });
        assert_eq!(client.world.borrow().names(), ["c", "plain"]);
    });
}
