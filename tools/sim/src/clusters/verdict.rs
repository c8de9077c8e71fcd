//! The verdict at the end: what a router that has just been started shows, and where it is.
//!
//! Not checked: what indexes show.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_runtime::{Duration, now, sleep};

use pinion_sharding_protocol::RoutingTable;
use pinion_sharding_protocol::documents::{ChunkDocument, CollectionDocument};

use super::cluster::{Cluster, Set};
use super::series::{self, Shown};
use super::strays;
use crate::client::{Client, batch, error_code};
use crate::sets::workload::COLLECTION;

const ANSWER: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What each set has of its own.
const OF_SETS: [&str; 4] = ["admin", "config", "local", PROBES];
/// Where the judges of sets write.
pub const PROBES: &str = "probes";

/// What a definition has while it is under way.
const OF_DEFINITIONS: [&str; 2] = [
    "system.sharding_ddl_coordinators",
    "collectionCriticalSections",
];

/// Waits until the verdict is asked for, and looks until there is one.
pub async fn judge(cluster: Rc<Cluster>) {
    let verdict = &cluster.verdict;
    while !cluster.control().stopped.get() {
        sleep(LOOK_EVERY).await;
        let Some(router) = verdict.wanted.get().filter(|_| !verdict.done.get()) else {
            continue;
        };
        let client = Client::new(router).within(ANSWER);
        match (Look {
            cluster: &cluster,
            client,
        })
        .all()
        .await
        {
            Ok(()) => verdict.done.set(true),
            Err(why) => *verdict.pending.borrow_mut() = why,
        }
    }
}

/// One look through a router. An error is of the moment; what is wrong is the cluster's failure.
struct Look<'c> {
    cluster: &'c Cluster,
    client: Client,
}

async fn ask(client: &mut Client, command: &RawDocument) -> Result<RawDocumentBuf, String> {
    match client.command(command).await {
        Ok(reply) if error_code(&reply) == 0 => Ok(reply),
        Ok(reply) => Err(format!("{command:?}: {reply:?}")),
        Err(failure) => Err(format!("{command:?}: {failure:?}")),
    }
}

impl Look<'_> {
    async fn all(mut self) -> Result<(), String> {
        let placement = self.placement().await?;
        self.look_at_shards().await?;
        for (db, shard) in self.cluster.placed.borrow().iter() {
            let found = placement.get(db).map(String::as_str);
            if found != Some(*shard) {
                self.cluster
                    .fail(format!("{db} was put on {shard}, and is on {found:?}"));
            }
        }
        for shared in self.cluster.shared() {
            let documents = self.find(shared.db, COLLECTION).await?;
            let floor = shared.history.borrow().floor();
            let who = format!("a new router, of {}", shared.db);
            (shared.history.borrow_mut()).check_snapshot(&who, &documents, &floor);
            let count = rawdoc! { "count": COLLECTION, "query": {}, "$db": shared.db };
            let count = ask(&mut self.client, &count).await?.get_i32("n").ok();
            if count != Some(documents.len() as i32) {
                // A write of a client that has left may have come between the two.
                let found = documents.len();
                return Err(format!("{}: {count:?} counted, {found} found", shared.db));
            }
            self.look_by_key(shared.db, COLLECTION, &documents).await?;
        }
        for place in &self.cluster.places {
            let began = now();
            let documents = self.find(place.db, "c").await?;
            let checked = place.lives.borrow().check(&documents, began, now());
            checked.unwrap_or_else(|why| {
                let db = place.db;
                self.cluster.fail(format!("a new router, of {db}: {why}"));
            });
        }
        self.look_at_series().await?;
        self.look_at_made().await?;
        self.look_at_metadata().await?;
        let sharded = self.look_at_tables().await?;
        let mut copies = Vec::new();
        for shard in &self.cluster.shards {
            let mut primary = primary_of(shard).await?;
            self.look_where(&mut primary, shard, &placement, &sharded)
                .await?;
            for name in OF_DEFINITIONS {
                let find = rawdoc! { "find": name, "$db": "config" };
                let left = batch(&ask(&mut primary, &find).await?, "firstBatch");
                if !left.is_empty() {
                    return Err(format!("{} has {left:?} in {name}", shard.name));
                }
            }
            let find = rawdoc! { "find": strays::COLLECTION, "$db": strays::DB };
            let reply = ask(&mut primary, &find).await?;
            copies.extend(batch(&reply, "firstBatch"));
        }
        strays::check_copies(self.cluster, &copies);
        let shown = self.find(strays::DB, strays::COLLECTION).await?;
        strays::check_shown(self.cluster, &shown);
        Ok(())
    }

    /// What shards have is what the catalog says, as the cluster itself finds.
    async fn look_at_metadata(&mut self) -> Result<(), String> {
        let check = rawdoc! {
            "checkMetadataConsistency": 1_i32, "maxTimeMS": 10_000_i32, "$db": "admin",
        };
        let reply = ask(&mut self.client, &check).await?;
        match batch(&reply, "firstBatch") {
            found if found.is_empty() => Ok(()),
            found => Err(format!("inconsistent metadata: {found:?}")),
        }
    }

    /// Looks at what the config servers have of sharded collections: each has chunks, which leave
    /// out nothing, and nothing else has. Gives their databases.
    async fn look_at_tables(&mut self) -> Result<BTreeSet<String>, String> {
        let collections = self.find("config", "collections").await?;
        let chunks = self.find("config", "chunks").await?;
        let mut left = chunks.len();
        let mut databases = BTreeSet::new();
        for collection in &collections {
            let name = collection.get_str("_id").unwrap_or_default();
            let uuid = pinion_bson::get(collection, "uuid");
            let of_collection = chunks
                .iter()
                .filter(|chunk| pinion_bson::get(chunk, "uuid") == uuid);
            let parsed: Result<Vec<ChunkDocument>, _> = of_collection
                .map(|chunk| ChunkDocument::parse(chunk))
                .collect();
            let count = parsed.as_ref().map_or(0, Vec::len);
            let table = CollectionDocument::parse(collection)
                .and_then(|document| Ok(RoutingTable::new(&document, parsed?)?));
            table.map_err(|error| format!("the table of {name}: {error}"))?;
            left -= count;
            let (db, _) = name.split_once('.').unwrap_or_default();
            databases.insert(db.to_owned());
        }
        match left {
            0 => Ok(databases),
            _ => Err(format!("{left} chunks are of no collection")),
        }
    }

    /// The shard of each database, as the config servers have it.
    async fn placement(&mut self) -> Result<BTreeMap<String, String>, String> {
        let databases = self.find("config", "databases").await?;
        let pairs = databases.iter().filter_map(|database| {
            let name = database.get_str("_id").ok()?.to_owned();
            Some((name, database.get_str("primary").ok()?.to_owned()))
        });
        Ok(pairs.collect())
    }

    /// Each shard is there once.
    async fn look_at_shards(&mut self) -> Result<(), String> {
        let list = rawdoc! { "listShards": 1_i32, "$db": "admin" };
        let reply = ask(&mut self.client, &list).await?;
        let shards = reply.get_array("shards").into_iter().flatten();
        let names: Vec<String> = shards
            .filter_map(|shard| Some(shard.ok()?.as_document()?.get_str("_id").ok()?.to_owned()))
            .collect();
        let expected: Vec<&str> = self.cluster.shards.iter().map(|shard| shard.name).collect();
        if names != expected {
            self.cluster
                .fail(format!("the shards are {names:?}, not {expected:?}"));
        }
        Ok(())
    }

    async fn find(&mut self, db: &str, collection: &str) -> Result<Vec<RawDocumentBuf>, String> {
        let find = rawdoc! {
            "find": collection,
            "batchSize": 1_000_000_i32,
            "readConcern": { "level": "linearizable" },
            "maxTimeMS": 10_000_i32,
            "$db": db,
        };
        let reply = ask(&mut self.client, &find).await?;
        Ok(batch(&reply, "firstBatch"))
    }

    /// The first and the last document by their keys.
    async fn look_by_key(
        &mut self,
        db: &str,
        collection: &str,
        documents: &[RawDocumentBuf],
    ) -> Result<(), String> {
        for document in documents.first().into_iter().chain(documents.last()) {
            let Some(RawBsonRef::String(key)) = pinion_bson::get(document, "_id") else {
                continue;
            };
            let find = rawdoc! { "find": collection, "filter": { "_id": key }, "$db": db };
            let reply = ask(&mut self.client, &find).await?;
            if batch(&reply, "firstBatch") != std::slice::from_ref(document) {
                self.cluster
                    .fail(format!("{db}: {key} is not found by its key: {reply:?}"));
            }
        }
        Ok(())
    }

    /// The series has what was acknowledged, and is there as a whole or not at all.
    async fn look_at_series(&mut self) -> Result<(), String> {
        let began = now();
        let documents = self.find(series::DB, series::NAME).await?;
        let checked = self.cluster.series.check(&documents, began, now());
        checked.unwrap_or_else(|why| {
            let problem = format!("a new router, of the series: {why}");
            self.cluster.fail(problem);
        });
        let listed = ask(&mut self.client, &Shown::list()).await?;
        let in_catalog = ask(&mut self.client, &Shown::find_in_catalog()).await?;
        let [listed, in_catalog] = [listed, in_catalog].map(|reply| batch(&reply, "firstBatch"));
        let shown = Shown::of(&listed, &in_catalog);
        match self.cluster.series.expected() {
            Some(expected) if shown != expected => Err(format!(
                "the series is shown as {shown:?}, and not {expected:?}"
            )),
            _ => Ok(()),
        }
    }

    /// What was acknowledged in databases that a write made.
    async fn look_at_made(&mut self) -> Result<(), String> {
        let made = self.cluster.made.borrow().clone();
        let list = rawdoc! { "listDatabases": 1_i32, "nameOnly": true, "$db": "admin" };
        let listed = names(&ask(&mut self.client, &list).await?);
        for (db, id) in made {
            let documents = self.find(&db, "c").await?;
            let is_there = documents
                .iter()
                .any(|document| pinion_bson::get(document, "_id") == Some(RawBsonRef::Int64(id)));
            if !is_there || documents.len() != 1 || !listed.contains(&db) {
                self.cluster.fail(format!(
                    "{db} has {documents:?}; listed: {}",
                    listed.contains(&db)
                ));
            }
        }
        Ok(())
    }

    /// A shard has the databases that the config servers know there, and those of which a
    /// collection is sharded, and no other.
    async fn look_where(
        &mut self,
        primary: &mut Client,
        shard: &Set,
        placement: &BTreeMap<String, String>,
        sharded: &BTreeSet<String>,
    ) -> Result<(), String> {
        let list = rawdoc! { "listDatabases": 1_i32, "nameOnly": true, "$db": "admin" };
        let listed = names(&ask(primary, &list).await?);
        for name in listed
            .iter()
            .filter(|name| !OF_SETS.contains(&name.as_str()) && !sharded.contains(*name))
        {
            let expected = placement.get(name).map(String::as_str);
            if expected == Some(shard.name) {
                continue;
            }
            let list = rawdoc! { "listCollections": 1_i32, "$db": name.as_str() };
            let has = batch(&ask(primary, &list).await?, "firstBatch");
            // A list of views stays when its last view is dropped, as on a set.
            let is_list = |one: &RawDocumentBuf| one.get_str("name").ok() == Some("system.views");
            if has.is_empty() || !has.iter().all(is_list) {
                self.cluster.fail(format!(
                    "{name} is on {}, which has {has:?}, and belongs to {expected:?}",
                    shard.name
                ));
            }
        }
        Ok(())
    }
}

/// The names in a list of databases.
fn names(reply: &RawDocument) -> BTreeSet<String> {
    let listed = reply.get_array("databases").into_iter().flatten();
    let names = listed.filter_map(|database| {
        Some(
            database
                .ok()?
                .as_document()?
                .get_str("name")
                .ok()?
                .to_owned(),
        )
    });
    names.collect()
}

async fn primary_of(set: &Set) -> Result<Client, String> {
    for member in &set.members {
        let mut client = primary_client(*member);
        let hello = rawdoc! { "hello": 1_i32, "$db": "admin" };
        let hello = ask(&mut client, &hello).await;
        let is_primary = |hello: &RawDocumentBuf| hello.get_bool("isWritablePrimary");
        if hello.is_ok_and(|hello| matches!(is_primary(&hello), Ok(true))) {
            return Ok(client);
        }
    }
    Err(format!("{} has no primary", set.name))
}

fn primary_client(member: SocketAddr) -> Client {
    Client::new(member).within(ANSWER)
}

/// Has each shard take the table of the series: the deletion of what has expired goes by it, and
/// begins at any time.
pub async fn learn_series(cluster: &Cluster) -> Result<(), String> {
    let buckets = format!("{}.{}", series::DB, series::BUCKETS);
    let learn = rawdoc! {
        "_flushRoutingTableCacheUpdates": buckets, "syncFromConfig": true, "$db": "admin",
    };
    for shard in &cluster.shards {
        ask(&mut primary_of(shard).await?, &learn).await?;
    }
    Ok(())
}

/// How often each command was run on the config servers, but for what any process may send: hellos,
/// pings, and what the members send each other.
pub async fn commands_at_config(cluster: &Cluster) -> Result<BTreeMap<String, i64>, String> {
    let mut sums = BTreeMap::new();
    for member in &cluster.config.members {
        let status = rawdoc! { "serverStatus": 1_i32, "$db": "admin" };
        let status = ask(&mut primary_client(*member), &status).await?;
        let metrics = status.get_document("metrics");
        let commands = metrics.and_then(|metrics| metrics.get_document("commands"));
        let commands = commands.map_err(|_| format!("no counts of commands: {status:?}"))?;
        for (name, counts) in pinion_bson::elements(commands) {
            let total = counts
                .as_document()
                .and_then(|counts| counts.get_i64("total").ok());
            if !OF_CALM.contains(&name) {
                *sums.entry(name.to_owned()).or_default() += total.unwrap_or(0);
            }
        }
    }
    Ok(sums)
}

const OF_CALM: &[&str] = &[
    "hello",
    "isMaster",
    "ping",
    "getMore",
    "serverStatus",
    "replSetGetStatus",
    "replSetHeartbeat",
    "replSetUpdatePosition",
];
