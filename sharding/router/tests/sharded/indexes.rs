//! Definitions and statistics of sharded collections through a router.

use pinion_bson::{RawBsonRef, RawDocument, get, get_path, rawdoc};
use pinion_wire::idl::i64_exact;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::cluster::{Client, run};
use super::nodes::{Member, collection_of};
use super::operations::documents;
use super::world::shard_name;

impl Member {
    /// `createIndexes`, `dropIndexes` and `collMod`.
    pub async fn define(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers define nothing");
        self.enter(&cmd, shard, cmd.body()).await?;
        let mut world = self.world.borrow_mut();
        let name = collection_of(cmd.body()).to_owned();
        *world.indexes_defined.entry(shard).or_default() += 1;
        let indexes = world.indexes.entry((shard, name)).or_default();
        let before = indexes.len() as i32 + 1;
        let mut reply = Reply::new();
        match cmd.name() {
            "createIndexes" => {
                let Some(RawBsonRef::Array(specs)) = get(cmd.body(), "indexes") else {
                    panic!("a list");
                };
                for spec in pinion_bson::values(specs).filter_map(|spec| spec.as_document()) {
                    let name = spec.get_str("name").expect("a name");
                    if name == "bad" && shard == 1 {
                        return Err(Error::new(ErrorCode::DUPLICATE_KEY, "there are two"));
                    }
                    indexes.insert(name.to_owned());
                }
                reply.append("numIndexesBefore", before);
                reply.append("numIndexesAfter", indexes.len() as i32 + 1);
                reply.append("createdCollectionAutomatically", false);
            }
            "dropIndexes" => {
                let name = get(cmd.body(), "index").and_then(|name| name.as_str());
                if !indexes.remove(name.expect("a name")) {
                    return Err(Error::new(ErrorCode::INDEX_NOT_FOUND, "index not found"));
                }
                reply.append("nIndexesWas", before);
            }
            _ => {}
        }
        Ok(reply)
    }

    pub async fn list_indexes(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers list nothing");
        self.enter(&cmd, shard, cmd.body()).await?;
        let key = (shard, collection_of(cmd.body()).to_owned());
        let names = self.world.borrow().indexes.get(&key).cloned();
        let names = names.unwrap_or_default();
        let mut listed = vec![rawdoc! { "name": "_id_", "key": { "_id": 1 } }];
        listed.extend(names.iter().map(|name| rawdoc! { "name": &**name }));
        Ok(self.cursor("d.c", listed, None))
    }

    pub async fn coll_stats(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers have no statistics");
        self.enter(&cmd, shard, cmd.body()).await?;
        let count = self
            .world
            .borrow()
            .part(collection_of(cmd.body()), shard)
            .len() as i32;
        let mut reply = Reply::new();
        reply.append("ns", "d.c").append("count", count);
        reply.append("size", count * 10).append("avgObjSize", 10i32);
        reply.append("nindexes", 1i32);
        reply
            .start_document("indexSizes")
            .append("_id_", 4096i32)
            .end();
        Ok(reply)
    }

    pub async fn validate(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers have no collections");
        self.enter(&cmd, shard, cmd.body()).await?;
        let mut reply = Reply::new();
        reply.append("valid", shard != 1);
        Ok(reply)
    }

    pub async fn db_stats(self, _: Invocation) -> Result<Reply> {
        self.work().await;
        let mut reply = Reply::new();
        reply.append("db", "d").append("collections", 2i64);
        reply.append("objects", 5i64).append("avgObjSize", 8.0);
        reply.append("dataSize", 40.0).append("scaleFactor", 1i64);
        Ok(reply)
    }
}

fn number(reply: &RawDocument, path: &str) -> Option<i64> {
    get_path(reply, path).and_then(i64_exact)
}

/// A collection on all three shards, whose table the router has.
async fn fill(client: &Client, rng: &mut pinion_runtime::Rng) {
    {
        let mut world = client.world.borrow_mut();
        let documents = documents(rng, 0..60);
        world.insert("c", documents);
        world.shard("c", rawdoc! { "a": 1 }, 12, rng);
        while world.owners("c") < 3 {
            world.move_chunk("c", rng);
        }
    }
    client.expect(&rawdoc! { "count": "c" }).await;
}

fn create(name: &str) -> pinion_bson::RawDocumentBuf {
    rawdoc! { "createIndexes": "c", "indexes": [{ "key": { "b": 1 }, "name": name }] }
}

#[test]
fn indexes_are_made_at_every_shard() {
    for seed in 1..=10 {
        run(seed, 3, |client, mut rng| async move {
            fill(&client, &mut rng).await;
            for round in 0..5 {
                // Some shards run it under the old table; they are asked again.
                let before = client.world.borrow().indexes_defined.clone();
                (0..3).for_each(|_| client.world.borrow_mut().move_chunk("c", &mut rng));
                let name = format!("b_{round}");
                let reply = client.expect(&create(&name)).await;
                let after = number(&reply, "numIndexesAfter").expect("a number");
                let was = number(&reply, "numIndexesBefore").expect("a number");
                assert!(after > was, "{reply:?}");
                let world = client.world.borrow();
                let raw = reply.get_document("raw").expect("replies");
                for shard in 0..3 {
                    let ran = world.indexes_defined.get(&shard).copied().unwrap_or(0);
                    let had = before.get(&shard).copied().unwrap_or(0);
                    let key = (shard, "c".to_owned());
                    let has = world
                        .indexes
                        .get(&key)
                        .is_some_and(|has| has.contains(&name));
                    assert_eq!(has, ran > had);
                    let is_owner = !world.part("c", shard).is_empty();
                    assert!(has || !(is_owner || shard == world.primary));
                }
                assert!(raw.into_iter().count() >= world.owners("c").min(2));
            }
        });
    }
}

#[test]
fn the_first_error_names_its_shard() {
    run(2, 3, |client, mut rng| async move {
        fill(&client, &mut rng).await;
        let error = client.run(&create("bad")).await.expect_err("one fails");
        assert_eq!(error.code, ErrorCode::DUPLICATE_KEY);
        assert!(error.message.contains("failed on shard s1"), "{error}");
        let reply = error.extra.expect("a whole reply");
        let raw = reply.get_document("raw").expect("replies");
        let codes = raw.into_iter().filter_map(|elem| elem.ok());
        let codes: Vec<Option<i64>> = codes
            .map(|(_, reply)| number(reply.as_document().expect("a reply"), "code"))
            .collect();
        assert_eq!(codes, [None, Some(11000), None]);
        let unique = rawdoc! {
            "createIndexes": "c",
            "indexes": [{ "key": { "b": 1 }, "name": "u", "unique": true }],
        };
        let error = client.run(&unique).await.expect_err("it cannot be kept");
        assert_eq!(error.code, ErrorCode::CANNOT_CREATE_INDEX, "{error}");
    });
}

#[test]
fn statistics_are_those_of_all_shards() {
    run(4, 3, |client, mut rng| async move {
        fill(&client, &mut rng).await;
        client.expect(&create("b")).await;
        let stats = client.expect(&rawdoc! { "collStats": "c" }).await;
        assert_eq!(get(&stats, "sharded"), Some(RawBsonRef::Boolean(true)));
        assert_eq!(number(&stats, "count"), Some(60));
        assert_eq!(number(&stats, "size"), Some(600));
        assert_eq!(number(&stats, "indexSizes._id_"), Some(3 * 4096));
        for shard in 0..3 {
            let count = client.world.borrow().part("c", shard).len() as i64;
            let path = format!("shards.{}.count", shard_name(shard));
            assert_eq!(number(&stats, &path), Some(count));
        }
        let valid = client.expect(&rawdoc! { "validate": "c" }).await;
        assert_eq!(get(&valid, "valid"), Some(RawBsonRef::Boolean(false)));
        assert_eq!(
            get_path(&valid, "raw.s0.valid"),
            Some(RawBsonRef::Boolean(true))
        );
        let database = client.expect(&rawdoc! { "dbStats": 1 }).await;
        assert_eq!(number(&database, "objects"), Some(15));
        assert_eq!(database.get_f64("avgObjSize").ok(), Some(8.0));
        let indexes = client.expect(&rawdoc! { "listIndexes": "c" }).await;
        let batch = get_path(&indexes, "cursor.firstBatch").and_then(|batch| batch.as_array());
        assert_eq!(pinion_bson::values(batch.expect("a batch")).count(), 2);
    });
}
