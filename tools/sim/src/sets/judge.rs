//! The judge: a client that no fault reaches. It begins the set, gives members orders, and finds at
//! the end whether they agree.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use pinion_bson::{RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use pinion_runtime::{Duration, now, sleep};

use super::lists::{self, Key};
use super::operator::{self, Change};
use super::stream::{self, HeldNumbers};
use super::workload::{COLLECTION, Shared};
use crate::client::{Client, batch, error_code};

const ANSWER: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the probe of the end has to reach a majority.
const PROBE_WTIMEOUT_MS: i32 = 2_000;

/// Where the images of retryable statements are, in `config`.
const IMAGES: &str = "image_collection";
/// How long a change of the configuration is tried.
const RECONFIGURING: Duration = Duration::from_secs(30);

/// One thing to do.
pub enum Order {
    /// A command for a member, whose answer does not matter.
    Command(usize, RawDocumentBuf),
    /// A change of the configuration, and whether a majority has it in the end.
    Reconfig {
        change: Change,
        done: Rc<Cell<Option<bool>>>,
    },
}

/// What the judge is to do, and what came of it.
#[derive(Default)]
pub struct Orders {
    pub given: RefCell<VecDeque<Order>>,
    /// The members have to agree by now.
    pub compares: Cell<bool>,
    pub started: Cell<bool>,
    pub agreed: Cell<bool>,
    /// Why they do not agree yet.
    pub disagreement: RefCell<String>,
    /// The numbers that all hold, once they agree.
    pub held: RefCell<HeldNumbers>,
}

/// What one member has.
struct Contents {
    applied: Timestamp,
    /// Digests of collections, by database.
    digests: BTreeMap<String, RawDocumentBuf>,
    indexes: BTreeMap<String, Vec<RawDocumentBuf>>,
    /// The images of retryable statements, by their sessions. One that was changed while the member
    /// copied another could not be known, and is none.
    images: BTreeMap<Vec<u8>, Option<RawDocumentBuf>>,
}

struct Judge {
    shared: Rc<Shared>,
    clients: Vec<Client>,
    probes: i64,
}

/// Begins the set of these members, and then does what `orders` say.
pub async fn judge(shared: Rc<Shared>, orders: Rc<Orders>, config: RawDocumentBuf) {
    let clients = shared.members.iter();
    let mut judge = Judge {
        clients: clients
            .map(|address| Client::new(*address).within(ANSWER))
            .collect(),
        shared: shared.clone(),
        probes: 0,
    };
    let count = operator::hosts(&config).len();
    let initiate = rawdoc! { "replSetInitiate": config, "$db": "admin" };
    while !judge.has_started(count, &initiate).await {
        sleep(LOOK_EVERY).await;
    }
    while shared.beginning.get().is_none() {
        let time = judge.probe_time().await;
        shared.beginning.set(time);
        sleep(LOOK_EVERY).await;
    }
    orders.started.set(true);
    while !shared.stopped.get() {
        sleep(LOOK_EVERY).await;
        let order = orders.given.borrow_mut().pop_front();
        match order {
            Some(Order::Command(member, command)) => {
                let _ = judge.clients[member].command(&command).await;
            }
            Some(Order::Reconfig { change, done }) => {
                let is_done = judge.change_config(change).await;
                done.set(Some(is_done));
            }
            None => {}
        }
        if orders.compares.get() && !orders.agreed.get() {
            match judge.compare(&orders.held).await {
                Ok(()) => orders.agreed.set(true),
                Err(why) => *orders.disagreement.borrow_mut() = why,
            }
        }
    }
}

impl Judge {
    async fn ask(
        &mut self,
        member: usize,
        command: &RawDocument,
    ) -> Result<RawDocumentBuf, String> {
        let name = command.iter().next();
        let name = name.and_then(|first| Some(first.ok()?.0.to_string()));
        let what = format!("member {member}: {}", name.unwrap_or_default());
        let mut command = command.to_owned();
        command.append(
            pinion_bson::cstr!("$readPreference"),
            rawdoc! { "mode": "secondaryPreferred" },
        );
        match self.clients[member].command(&command).await {
            Ok(reply) if error_code(&reply) == 0 => Ok(reply),
            Ok(reply) => Err(format!("{what}: {reply:?}")),
            Err(failure) => Err(format!("{what}: {failure:?}")),
        }
    }

    /// Whether every member has taken its place; the set is initiated where it is not yet.
    async fn has_started(&mut self, count: usize, initiate: &RawDocument) -> bool {
        let status = rawdoc! { "replSetGetStatus": 1_i32, "$db": "admin" };
        if self.ask(0, &status).await.is_err() {
            let _ = self.clients[0].command(initiate).await;
            return false;
        }
        for member in 0..count {
            let status = self.ask(member, &status).await;
            let state = status
                .ok()
                .and_then(|status| status.get_i32("myState").ok());
            if !matches!(state, Some(1 | 2)) {
                return false;
            }
        }
        true
    }

    /// Changes the configuration; whether a majority has what it is then.
    async fn change_config(&mut self, change: Change) -> bool {
        let deadline = now() + RECONFIGURING;
        let mut is_asked = false;
        while now() < deadline {
            match self.try_config(change, is_asked).await {
                Ok(true) => {
                    self.shared.history.borrow_mut().count("reconfigurations");
                    return true;
                }
                Ok(false) => is_asked = true,
                Err(why) => tracing::info!(why, ?change, "a reconfiguration has to wait"),
            }
            sleep(LOOK_EVERY * 4).await;
        }
        false
    }

    /// Looks whether a majority has a change, and asks for it where it is not there. False where it
    /// was asked for.
    async fn try_config(&mut self, change: Change, is_asked: bool) -> Result<bool, String> {
        let primary = self.find_primary().await?;
        let (config, is_committed) = self.config(primary).await?;
        let is_done = match change {
            Change::Priority(_) => is_asked,
            Change::Add(_) | Change::Remove(_) => change.is_done(&config, &self.shared.members),
        };
        if is_done {
            return match is_committed {
                true => Ok(true),
                false => Err("no majority has it yet".into()),
            };
        }
        let new = change.of(&config, &self.shared.members);
        let reconfig = rawdoc! { "replSetReconfig": new, "$db": "admin" };
        self.ask(primary, &reconfig).await?;
        Ok(false)
    }

    async fn find_primary(&mut self) -> Result<usize, String> {
        let hello = rawdoc! { "hello": 1_i32, "$db": "admin" };
        for member in 0..self.clients.len() {
            let reply = self.ask(member, &hello).await;
            let reply = reply.as_ref().ok();
            if reply.is_some_and(|reply| matches!(reply.get_bool("isWritablePrimary"), Ok(true))) {
                return Ok(member);
            }
        }
        Err("there is no primary".into())
    }

    /// The configuration of a primary, and whether a majority has it.
    async fn config(&mut self, primary: usize) -> Result<(RawDocumentBuf, bool), String> {
        let get = rawdoc! { "replSetGetConfig": 1_i32, "commitmentStatus": true, "$db": "admin" };
        let reply = self.ask(primary, &get).await?;
        let config = reply.get_document("config");
        let config = config.map_err(|_| format!("{reply:?}"))?.to_owned();
        let is_committed = matches!(reply.get_bool("commitmentStatus"), Ok(true));
        Ok((config, is_committed))
    }

    /// Whether a primary takes a write, and all members have the same and all that is certain.
    /// What they hold is kept.
    async fn compare(&mut self, held_at_end: &RefCell<HeldNumbers>) -> Result<(), String> {
        let primary = self.probe().await?;
        let (config, _) = self.config(primary).await?;
        let hosts = operator::hosts(&config);
        let members: Vec<usize> = (0..self.clients.len())
            .filter(|at| hosts.contains(&self.shared.members[*at].to_string()))
            .collect();
        let mut first: Option<Contents> = None;
        for member in members.iter().copied() {
            let contents = self.contents(member).await?;
            let Some(first) = &first else {
                first = Some(contents);
                continue;
            };
            if first.applied != contents.applied {
                return Err(format!(
                    "member {member} has applied {}, the first one {}",
                    contents.applied, first.applied
                ));
            }
            if let Some(problem) = first.difference(&contents) {
                // Both are at the same entry: this will not pass.
                let problem = format!("member {member} is unlike the first: {problem}");
                self.shared.history.borrow_mut().fail(problem);
            }
        }
        let floor = self.shared.history.borrow().floor();
        let mut held: Option<HeldNumbers> = None;
        for member in members {
            let documents = self.documents(member, COLLECTION).await?;
            let who = format!("member {member} at the end");
            self.shared
                .history
                .borrow_mut()
                .check_snapshot(&who, &documents, &floor);
            let mut of_member = HeldNumbers::new();
            hold(&mut of_member, COLLECTION, &documents)?;
            for collection in lists::COLLECTIONS {
                let documents = self.documents(member, collection).await?;
                hold(&mut of_member, collection, &documents)?;
            }
            match &held {
                None => {
                    self.judge_lists(&of_member);
                    held = Some(of_member);
                }
                Some(held) if *held != of_member => {
                    return Err(format!("member {member} holds other lists than the first"));
                }
                Some(_) => {}
            }
        }
        *held_at_end.borrow_mut() = held.unwrap_or_default();
        Ok(())
    }

    /// Checks the transactions of lists against what a member holds, as all do.
    fn judge_lists(&self, held: &HeldNumbers) {
        let finals = held.iter().filter_map(|((collection, id), numbers)| {
            let collection = lists::COLLECTIONS
                .iter()
                .position(|name| name == collection)?;
            let key = Key {
                collection: collection as u8,
                id: id.parse().ok()?,
            };
            Some((key, numbers.clone()))
        });
        let (wrong, counts) = self.shared.lists.borrow().judge(&finals.collect());
        let mut history = self.shared.history.borrow_mut();
        for (name, count) in counts {
            *history.counts.entry(name).or_default() += count;
        }
        if !wrong.is_empty() {
            let more = wrong.len();
            let first: Vec<&str> = wrong.iter().take(3).map(String::as_str).collect();
            history.fail(format!("{more} anomalies of lists: {}", first.join("\n  ")));
        }
    }

    /// The time of a write that a majority acknowledges.
    async fn probe_time(&mut self) -> Option<Timestamp> {
        let member = self.probe().await.ok()?;
        let ping = rawdoc! { "ping": 1_i32, "$db": "admin" };
        let reply = self.ask(member, &ping).await.ok()?;
        reply.get_timestamp("operationTime").ok()
    }

    /// Some member takes a write that a majority acknowledges; which.
    async fn probe(&mut self) -> Result<usize, String> {
        let mut answers = Vec::new();
        self.probes += 1;
        let write = rawdoc! {
            "insert": "probes",
            "documents": [{ "_id": self.probes }],
            "writeConcern": { "w": "majority", "wtimeout": PROBE_WTIMEOUT_MS },
            "$db": self.shared.db,
        };
        for member in 0..self.clients.len() {
            match self.ask(member, &write).await {
                Ok(_) => return Ok(member),
                Err(why) => answers.push(why),
            }
        }
        Err(format!("no primary takes a write: {}", answers.join("; ")))
    }

    async fn documents(
        &mut self,
        member: usize,
        collection: &str,
    ) -> Result<Vec<RawDocumentBuf>, String> {
        let find = rawdoc! {
            "find": collection,
            "batchSize": 1_000_000_i32,
            "$db": self.shared.db,
        };
        let reply = self.ask(member, &find).await?;
        Ok(batch(&reply, "firstBatch"))
    }

    async fn applied(&mut self, member: usize) -> Result<Timestamp, String> {
        let status = rawdoc! { "replSetGetStatus": 1_i32, "$db": "admin" };
        let status = self.ask(member, &status).await?;
        let applied = status
            .get_document("optimes")
            .and_then(|optimes| optimes.get_document("appliedOpTime"))
            .and_then(|applied| applied.get_timestamp("ts"));
        applied.map_err(|_| format!("member {member}: {status:?}"))
    }

    /// What a member has; nothing is applied while it is looked at.
    async fn contents(&mut self, member: usize) -> Result<Contents, String> {
        let applied = self.applied(member).await?;
        let databases = rawdoc! { "listDatabases": 1_i32, "nameOnly": true, "$db": "admin" };
        let databases = self.ask(member, &databases).await?;
        let listed = databases.get_array("databases").into_iter().flatten();
        let names: Vec<String> = listed
            .filter_map(|database| {
                let name = database.ok()?.as_document()?.get_str("name").ok()?;
                (name != "local").then(|| name.to_owned())
            })
            .collect();
        let (mut digests, mut indexes) = (BTreeMap::new(), BTreeMap::new());
        for name in names {
            let hash = rawdoc! { "dbHash": 1_i32, "$db": name.as_str() };
            let hash = self.ask(member, &hash).await?;
            let collections = hash.get_document("collections");
            let collections = collections.map_err(|_| format!("{hash:?}"))?.to_owned();
            for collection in collections
                .iter()
                .flatten()
                .map(|(name, _)| name.to_string())
            {
                let list = rawdoc! { "listIndexes": collection.as_str(), "$db": name.as_str() };
                // The merged collections have none.
                if let Ok(list) = self.ask(member, &list).await {
                    let path = format!("{name}.{collection}");
                    indexes.insert(path, batch(&list, "firstBatch"));
                }
            }
            digests.insert(name, without_images(&collections));
        }
        let images = self.images(member).await?;
        if self.applied(member).await? != applied {
            return Err(format!("member {member} is still applying"));
        }
        Ok(Contents {
            applied,
            digests,
            indexes,
            images,
        })
    }

    async fn images(
        &mut self,
        member: usize,
    ) -> Result<BTreeMap<Vec<u8>, Option<RawDocumentBuf>>, String> {
        let find = rawdoc! { "find": IMAGES, "batchSize": 1_000_000_i32, "$db": "config" };
        let reply = self.ask(member, &find).await?;
        let mut images = BTreeMap::new();
        for image in batch(&reply, "firstBatch") {
            let session = image
                .get_document("_id")
                .map_err(|_| format!("{image:?}"))?;
            let session = session.as_bytes().to_vec();
            let is_known = matches!(image.get_bool("invalidated"), Ok(false));
            images.insert(session, is_known.then_some(image));
        }
        Ok(images)
    }
}

/// Adds the numbers that documents of the clients hold.
fn hold(
    held: &mut HeldNumbers,
    collection: &str,
    documents: &[RawDocumentBuf],
) -> Result<(), String> {
    for document in documents {
        let numbers = stream::numbers(collection, document);
        let numbers = numbers.ok_or_else(|| format!("not of a client: {document:?}"))?;
        held.insert(stream::document_key(collection, document), numbers);
    }
    Ok(())
}

/// Of a database's digests those of what all members know.
fn without_images(collections: &RawDocument) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    for (name, digest) in collections.iter().flatten() {
        if name.as_str() != IMAGES {
            out.append(name, digest);
        }
    }
    out
}

impl Contents {
    /// What differs.
    fn difference(&self, other: &Contents) -> Option<String> {
        if self.digests != other.digests {
            return Some(format!("{:?} and {:?}", self.digests, other.digests));
        }
        if self.indexes != other.indexes {
            return Some(format!("{:?} and {:?}", self.indexes, other.indexes));
        }
        if !self.images.keys().eq(other.images.keys()) {
            return Some("images of other sessions".into());
        }
        let both = self.images.values().zip(other.images.values());
        let mut known = both.filter_map(|(one, another)| Some((one.as_ref()?, another.as_ref()?)));
        let different = known.find(|(one, another)| one != another);
        different.map(|(one, another)| format!("{one:?} and {another:?}"))
    }
}
