//! A sharded collection of which every shard has every document, and owns some of them: what a
//! shard does not own is never read, counted or changed through a router.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_runtime::{Duration, Rng, sleep};

use super::cluster::{Cluster, Set};
use super::operator::insist;
use crate::client::{Client, batch, error_code};
use crate::sets::session::{Session, Written, majority};

pub const DB: &str = "strays";
pub const COLLECTION: &str = "c";
/// Documents on each shard, which have the same `_id` everywhere.
const STRAYS: i32 = 12;
const ANSWER: Duration = Duration::from_secs(10);
const MAX_TIME_MS: i32 = 5_000;
/// Longest time between two operations.
const PAUSE_MS: u64 = 1_500;

/// What became of each document.
#[derive(Default)]
pub struct Strays {
    pub are_there: Cell<bool>,
    counts: RefCell<BTreeMap<i32, Count>>,
}

/// How often a document was to be changed.
#[derive(Clone, Copy, Default)]
struct Count {
    sent: i64,
    acknowledged: i64,
}

impl Strays {
    fn sent(&self, id: i32) {
        self.counts.borrow_mut().entry(id).or_default().sent += 1;
    }

    fn acknowledged(&self, id: i32) {
        self.counts.borrow_mut().entry(id).or_default().acknowledged += 1;
    }

    fn count(&self, id: i32) -> Count {
        self.counts.borrow().get(&id).copied().unwrap_or_default()
    }

    /// How often each was changed for certain by now.
    fn floor(&self) -> BTreeMap<i32, i64> {
        let counts = self.counts.borrow();
        let floor = counts.iter().map(|(id, count)| (*id, count.acknowledged));
        floor.collect()
    }

    /// Checks all documents, as a router has shown them: each is there once, and as often changed
    /// as was acknowledged before, and no more often than was asked for.
    fn check(
        &self,
        documents: &[RawDocumentBuf],
        floor: &BTreeMap<i32, i64>,
    ) -> Result<(), String> {
        let mut found = BTreeMap::new();
        for document in documents {
            let (id, changed) = read(document)?;
            if found.insert(id, changed).is_some() {
                return Err(format!("twice: {document:?}"));
            }
        }
        for id in 0..STRAYS {
            let Some(changed) = found.get(&id).copied() else {
                return Err(format!("document {id} is missing"));
            };
            let least = floor.get(&id).copied().unwrap_or(0);
            let most = self.count(id).sent;
            if !(least..=most).contains(&changed) {
                return Err(format!(
                    "document {id} was changed {changed} times, and not {least} to {most}"
                ));
            }
        }
        match found.len() == STRAYS as usize {
            true => Ok(()),
            false => Err(format!("{} documents", found.len())),
        }
    }
}

fn read(document: &RawDocument) -> Result<(i32, i64), String> {
    let changed = document.get_i64("n");
    match (pinion_bson::get(document, "_id"), changed) {
        (Some(RawBsonRef::Int32(id)), Ok(changed)) => Ok((id, changed)),
        _ => Err(format!("it was never written so: {document:?}")),
    }
}

/// Shards the collection, and gives every shard every document. False where the run ends before.
pub async fn prepare(cluster: &Cluster, rng: &mut Rng) -> bool {
    let name = format!("{DB}.{COLLECTION}");
    let shard = rawdoc! { "shardCollection": name, "key": { "k": "hashed" }, "$db": "admin" };
    if insist(cluster, &shard, rng).await.is_none() {
        return false;
    }
    for set in &cluster.shards {
        for id in 0..STRAYS {
            if !put(cluster, set, id).await {
                return false;
            }
        }
    }
    cluster.strays.are_there.set(true);
    true
}

/// Writes a document on a shard, whether it owns it or not, as a client that knows of no cluster.
async fn put(cluster: &Cluster, set: &Set, id: i32) -> bool {
    let insert = rawdoc! {
        "update": COLLECTION,
        "updates": [{ "q": { "_id": id }, "u": { "$set": { "k": id, "n": 0_i64 } }, "upsert": true }],
        "writeConcern": majority(), "$db": DB,
    };
    let mut at = 0;
    while !cluster.control().stopped.get() {
        let mut client = Client::new(set.members[at % set.members.len()]).within(ANSWER);
        if let Ok(reply) = client.command(&insert).await
            && error_code(&reply) == 0
        {
            return true;
        }
        at += 1;
        sleep(Duration::from_millis(100)).await;
    }
    false
}

/// Reads and changes the documents through routers.
pub async fn wander(cluster: Rc<Cluster>, mut rng: Rng) {
    let mut session = Session::of(cluster.control(), &mut rng);
    while let Some(_active) = cluster.control().begin().await {
        if cluster.strays.are_there.get() {
            match rng.below(3) {
                0 => change(&cluster, &mut session, &mut rng).await,
                1 => change_all(&cluster, &mut session).await,
                _ => look(&cluster, &mut session, &mut rng).await,
            }
        }
        sleep(Duration::from_millis(rng.below(PAUSE_MS))).await;
    }
}

/// Changes one: by its key, at the shard that owns that, or by its `_id`, for which all shards are
/// asked.
async fn change(cluster: &Cluster, session: &mut Session, rng: &mut Rng) {
    let id = rng.below(STRAYS as u64) as i32;
    cluster.strays.sent(id);
    let filter = match rng.below(2) {
        0 => rawdoc! { "_id": id },
        _ => rawdoc! { "k": id },
    };
    let update = rawdoc! {
        "update": COLLECTION,
        "updates": [{ "q": filter, "u": { "$inc": { "n": 1_i64 } } }],
        "writeConcern": majority(), "$db": DB,
    };
    match session.write(&update).await {
        Written::Acknowledged => {
            cluster.strays.acknowledged(id);
            cluster.count("strays changed");
        }
        Written::Refused(reply) => cluster.fail(format!("a stray was not changed: {reply:?}")),
        Written::Unknown => {}
    }
}

/// Changes all, once: whether all shards have done so or some is not asked where that fails.
async fn change_all(cluster: &Cluster, session: &mut Session) {
    (0..STRAYS).for_each(|id| cluster.strays.sent(id));
    let update = rawdoc! {
        "update": COLLECTION,
        "updates": [{ "q": {}, "u": { "$inc": { "n": 1_i64 } }, "multi": true }],
        "writeConcern": majority(), "maxTimeMS": MAX_TIME_MS, "$db": DB,
    };
    let router = session.place();
    let Ok(reply) = session.on(router, &update).await else {
        return;
    };
    if error_code(&reply) != 0 || reply.get_array("writeErrors").is_ok() {
        return;
    }
    if !matches!(reply.get_i32("n"), Ok(STRAYS)) {
        cluster.fail(format!("not all strays were changed once: {reply:?}"));
    }
    (0..STRAYS).for_each(|id| cluster.strays.acknowledged(id));
    cluster.count("all strays changed");
}

async fn look(cluster: &Cluster, session: &mut Session, rng: &mut Rng) {
    let floor = cluster.strays.floor();
    let router = session.place();
    let level = ["majority", "linearizable"][rng.below(2) as usize];
    let concern = rawdoc! { "level": level };
    let id = rng.below(STRAYS as u64) as i32;
    let what = match rng.below(4) {
        0 => rawdoc! { "find": COLLECTION, "filter": {} },
        1 => {
            rawdoc! { "find": COLLECTION, "filter": { "n": { "$gte": 0_i64 } }, "sort": { "n": 1_i32 } }
        }
        2 => rawdoc! { "find": COLLECTION, "filter": { "_id": id } },
        _ => rawdoc! { "count": COLLECTION, "query": {} },
    };
    let is_of_one = pinion_bson::get_path(&what, "filter._id").is_some();
    let mut command = what;
    command.append(pinion_bson::cstr!("readConcern"), concern);
    command.append(pinion_bson::cstr!("maxTimeMS"), MAX_TIME_MS);
    command.append(pinion_bson::cstr!("$db"), DB);
    let Ok(reply) = session.on(router, &command).await else {
        return;
    };
    if error_code(&reply) != 0 {
        if !session.is_momentary(&reply) {
            cluster.fail(format!("strays were not read: {reply:?}"));
        }
        return;
    }
    cluster.count("looks at strays");
    let found = batch(&reply, "firstBatch");
    let checked = match reply.get_i32("n") {
        Ok(STRAYS) => Ok(()),
        Ok(n) => Err(format!("{n} counted")),
        Err(_) if is_of_one && found.len() == 1 => Ok(()),
        Err(_) if is_of_one => Err(format!("{id} is found {} times", found.len())),
        Err(_) => {
            // Reads of the majority may be of a moment before.
            let least = match level {
                "linearizable" => floor,
                _ => BTreeMap::new(),
            };
            cluster.strays.check(&found, &least)
        }
    };
    checked.unwrap_or_else(|why| cluster.fail(format!("strays ({command:?}): {why}")));
}

/// Checks, at the end, what a new router shows.
pub fn check_shown(cluster: &Cluster, shown: &[RawDocumentBuf]) {
    let checked = cluster.strays.check(shown, &cluster.strays.floor());
    checked.unwrap_or_else(|why| cluster.fail(format!("strays in the end: {why}")));
}

/// Checks, at the end, what the shards have: of each document one copy was changed at most.
pub fn check_copies(cluster: &Cluster, copies: &[RawDocumentBuf]) {
    let mut changed = BTreeMap::new();
    for copy in copies {
        match read(copy) {
            Ok((id, n)) => *changed.entry(id).or_insert(0) += usize::from(n > 0),
            Err(why) => cluster.fail(why),
        }
    }
    if let Some((id, copies)) = changed.iter().find(|(_, copies)| **copies > 1) {
        cluster.fail(format!("{copies} copies of the stray {id} were changed"));
    }
}
