//! What the clients of a set do: writers of documents of their own, which also read everybody's,
//! and one that changes the catalog.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use pinion_bson::{RawArrayBuf, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use pinion_runtime::{Duration, Rng, sleep};

use super::history::{Floor, History};
use super::lists::Lists;
use super::session::{Session, Unread, Written};
use crate::client::error_code;

pub const COLLECTION: &str = "docs";
/// Operations on one document, after which its writer takes another one.
const OPERATIONS_OF_A_DOCUMENT: usize = 40;
/// Operations after which a writer pauses longer, and again after as many.
const BUSY_OPERATIONS: u64 = 60;
/// Documents that one insert makes at most.
const MOST_AT_ONCE: u64 = 4;
/// How long the set has to acknowledge a write before it says that it could not yet.
const WTIMEOUT_MS: i32 = 5_000;
/// How often a write is sent a second time though it was answered.
const AGAIN: f64 = 0.15;
/// IncompleteTransactionHistory.
pub const INCOMPLETE_HISTORY: i32 = 217;
/// How often a read goes by the index that comes and goes.
const BY_INDEX: f64 = 0.4;
/// BadValue (the index of the hint is not there), IndexNotFound, QueryPlanKilled: what a read by an
/// index may be refused with.
const NO_INDEX: [i32; 3] = [2, 27, 175];
/// NamespaceNotFound, IndexNotFound, NamespaceExists, IndexOptionsConflict,
/// BackgroundOperationInProgressForNamespace, IndexBuildAborted: right answers to changes of the
/// catalog that are sent twice.
const DDL_REFUSALS: [i32; 6] = [26, 27, 48, 85, 12_587, 276];

/// What clients, observers and the run share. All of a simulation is one thread.
pub struct Shared {
    pub members: Vec<SocketAddr>,
    pub history: RefCell<History>,
    /// No worker starts anything while this is set.
    pub paused: Cell<bool>,
    /// Operations under way.
    pub active: Cell<usize>,
    /// Everybody ends.
    pub stopped: Cell<bool>,
    /// The part of the writes that only the primary acknowledges.
    pub alone: Cell<f64>,
    /// Clients may prepare transactions.
    pub may_prepare: bool,
    /// The part of the transactions of lists that are prepared before they are committed.
    pub prepared: f64,
    /// Longest pause of a client between two operations.
    pub pause_ms: u64,
    /// What was done to lists.
    pub lists: RefCell<Lists>,
    /// A collection is about to take the place of another one.
    pub moves: Cell<bool>,
    /// Watchers read.
    pub watched: Cell<bool>,
    /// A time before which no client has written anything.
    pub beginning: Cell<Option<Timestamp>>,
    /// The database of the clients.
    pub db: &'static str,
    /// The members are routers, each of which is as good as another.
    pub via_routers: bool,
}

pub struct Active(Rc<Shared>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.set(self.0.active.get() - 1);
    }
}

impl Shared {
    /// Of clients that have not started yet.
    pub fn new(members: Vec<SocketAddr>, db: &'static str) -> Shared {
        Shared {
            members,
            history: RefCell::default(),
            paused: Cell::new(true),
            active: Cell::new(0),
            stopped: Cell::new(false),
            alone: Cell::new(0.0),
            may_prepare: false,
            prepared: 0.0,
            pause_ms: 100,
            lists: RefCell::default(),
            moves: Cell::new(false),
            watched: Cell::new(false),
            beginning: Cell::new(None),
            db,
            via_routers: false,
        }
    }

    /// Waits until something may be started; `None` when everybody ends.
    pub async fn begin(self: &Rc<Self>) -> Option<Active> {
        while self.paused.get() {
            sleep(Duration::from_millis(20)).await;
            if self.stopped.get() {
                return None;
            }
        }
        self.active.set(self.active.get() + 1);
        Some(Active(self.clone()))
    }

    /// The longest pause behind this number of operations. Reads are of ever more: a run of long
    /// virtual time must not take as much longer.
    pub fn pause_of(&self, operations: u64) -> u64 {
        self.pause_ms * (1 + operations / BUSY_OPERATIONS)
    }

    pub fn fail(&self, problem: String) {
        self.history.borrow_mut().fail(problem);
    }

    pub fn count(&self, name: &'static str) {
        self.history.borrow_mut().count(name);
    }
}

/// One writer.
struct Writer {
    shared: Rc<Shared>,
    name: String,
    session: Session,
    rng: Rng,
    /// Number of the last operation.
    last: i64,
    /// Its documents, with how many operations each has had.
    documents: Vec<(String, usize)>,
    /// What this client has written or read with majority concerns, and must see whenever it asks
    /// so again.
    seen: BTreeMap<String, Vec<i64>>,
}

/// Writes and reads until everybody ends.
pub async fn work(shared: Rc<Shared>, number: usize, mut rng: Rng) {
    let session = Session::of(&shared, &mut rng);
    let mut writer = Writer {
        shared: shared.clone(),
        name: format!("w{number}"),
        session,
        rng,
        last: 0,
        documents: Vec::new(),
        seen: BTreeMap::new(),
    };
    let mut operations = 0;
    while let Some(_active) = shared.begin().await {
        match writer.rng.below(10) {
            0 => writer.insert().await,
            1..5 => writer.update().await,
            5 | 6 => writer.transact().await,
            _ => writer.read().await,
        }
        operations += 1;
        let pause_ms = shared.pause_of(operations);
        sleep(Duration::from_millis(writer.rng.below(pause_ms + 1))).await;
    }
}

impl Writer {
    fn next(&mut self) -> i64 {
        self.last += 1;
        self.last
    }

    /// The write concern of the next write, and whether a majority acknowledges it.
    fn concern(&mut self) -> (RawDocumentBuf, bool) {
        match self.rng.chance(self.shared.alone.get()) {
            true => (rawdoc! { "w": 1_i32 }, false),
            false => (rawdoc! { "w": "majority", "wtimeout": WTIMEOUT_MS }, true),
        }
    }

    async fn insert(&mut self) {
        let count = 1 + self.rng.below(MOST_AT_ONCE);
        let mut documents = RawArrayBuf::new();
        let mut operations = Vec::new();
        for _ in 0..count {
            let number = self.next();
            let key = format!("{}-{number}", self.name);
            let pad = "p".repeat(self.rng.below(200) as usize);
            documents.push(
                rawdoc! { "_id": key.as_str(), "ops": [number], "n": 1_i32, "v": (number % 30) as i32, "pad": pad },
            );
            self.documents.push((key.clone(), 1));
            operations.push((key, number));
        }
        let (concern, of_majority) = self.concern();
        let command = rawdoc! { "insert": COLLECTION, "documents": documents, "writeConcern": concern, "$db": self.shared.db };
        self.write(&command, operations, of_majority).await;
    }

    /// One of the newest documents, so that operations on one follow each other.
    fn pick(&mut self) -> Option<String> {
        let open: Vec<usize> = (0..self.documents.len())
            .filter(|at| self.documents[*at].1 < OPERATIONS_OF_A_DOCUMENT)
            .collect();
        let newest = &open[open.len().saturating_sub(4)..];
        if newest.is_empty() {
            return None;
        }
        let at = newest[self.rng.below(newest.len() as u64) as usize];
        self.documents[at].1 += 1;
        Some(self.documents[at].0.clone())
    }

    async fn update(&mut self) {
        let statements = 1 + self.rng.below(2);
        let mut updates = RawArrayBuf::new();
        let mut operations: Vec<(String, i64)> = Vec::new();
        for _ in 0..statements {
            let Some(key) = self.pick() else {
                break;
            };
            let number = self.next();
            // An operation whose insert was lost makes the document.
            let change = rawdoc! { "$push": { "ops": number }, "$inc": { "n": 1_i32 }, "$set": { "v": (number % 30) as i32 } };
            updates.push(rawdoc! { "q": { "_id": key.as_str() }, "u": change, "upsert": true });
            operations.push((key, number));
        }
        let Some((key, number)) = operations.first().cloned() else {
            return;
        };
        let (concern, of_majority) = self.concern();
        let command = if self.rng.chance(0.25) {
            operations.truncate(1);
            let change = rawdoc! { "$push": { "ops": number }, "$inc": { "n": 1_i32 } };
            rawdoc! { "findAndModify": COLLECTION, "query": { "_id": key.as_str() }, "update": change, "upsert": true, "new": true, "writeConcern": concern, "$db": self.shared.db }
        } else {
            rawdoc! { "update": COLLECTION, "updates": updates, "writeConcern": concern, "$db": self.shared.db }
        };
        self.write(&command, operations, of_majority).await;
    }

    /// Changes several documents, or one several times, in a transaction, and reads all in it.
    async fn transact(&mut self) {
        let mut operations: Vec<(String, i64)> = Vec::new();
        let mut statements = Vec::new();
        for _ in 0..2 + self.rng.below(3) {
            let number = self.next();
            let again = operations.last().map(|(key, _)| key.clone());
            let again = again.filter(|_| self.rng.chance(0.3));
            let key = match again.or_else(|| self.pick()) {
                Some(key) => key,
                None => {
                    let key = format!("{}-{number}", self.name);
                    self.documents.push((key.clone(), 1));
                    key
                }
            };
            let change = rawdoc! { "$push": { "ops": number }, "$inc": { "n": 1_i32 }, "$set": { "v": (number % 30) as i32 } };
            statements.push(rawdoc! { "update": COLLECTION, "updates": [{ "q": { "_id": key.as_str() }, "u": change, "upsert": true }], "$db": self.shared.db });
            operations.push((key, number));
        }
        statements.push(
            rawdoc! { "find": COLLECTION, "batchSize": 1_000_000_i32, "$db": self.shared.db },
        );
        {
            let mut history = self.shared.history.borrow_mut();
            for (key, number) in &operations {
                history.sent(key, *number);
            }
            history.together(&operations);
        }
        let (shared, name) = (self.shared.clone(), self.name.clone());
        let floor: Floor = operations
            .iter()
            .fold(Floor::new(), |mut floor, (key, number)| {
                floor.entry(key.clone()).or_default().push(*number);
                floor
            });
        let mut check = |_, documents: Vec<RawDocumentBuf>| {
            // Updates have no batch.
            if !documents.is_empty() {
                let who = format!("{name} in a transaction");
                shared
                    .history
                    .borrow_mut()
                    .check_snapshot(&who, &documents, &floor);
            }
        };
        match self.session.transact(&statements, &mut check).await {
            Written::Unknown => self.shared.count("transactions of unknown outcome"),
            Written::Refused(reply) => {
                let problem = format!("{}: a transaction was refused: {reply:?}", self.name);
                self.shared.fail(problem);
            }
            Written::Acknowledged => {
                let mut history = self.shared.history.borrow_mut();
                history.count("transactions acknowledged");
                for (key, number) in operations {
                    history.acknowledged(&key, number);
                    self.seen.entry(key).or_default().push(number);
                }
            }
        }
    }

    /// Sends a write and records its outcome.
    async fn write(
        &mut self,
        command: &RawDocument,
        operations: Vec<(String, i64)>,
        of_majority: bool,
    ) {
        if self.rng.chance(AGAIN) {
            self.write_again().await;
        }
        for (key, number) in &operations {
            self.shared.history.borrow_mut().sent(key, *number);
        }
        match self.session.write(command).await {
            Written::Unknown => self.shared.count("writes of unknown outcome"),
            Written::Refused(reply) if error_code(&reply) == INCOMPLETE_HISTORY => {
                self.shared.count("writes of unknown outcome")
            }
            Written::Refused(reply) => {
                let problem = format!("{}: a write was refused: {reply:?}", self.name);
                self.shared.fail(problem);
            }
            Written::Acknowledged if !of_majority => {
                self.shared.count("writes acknowledged by one")
            }
            Written::Acknowledged => {
                let mut history = self.shared.history.borrow_mut();
                history.count("writes acknowledged by a majority");
                for (key, number) in operations {
                    history.acknowledged(&key, number);
                    self.seen.entry(key).or_default().push(number);
                }
            }
        }
    }

    /// Sends the last write once more, as if its answer had been lost: it must not be executed a
    /// second time.
    async fn write_again(&mut self) {
        match self.session.again().await {
            Some(Written::Acknowledged) => self.shared.count("writes sent again"),
            // What a `findAndModify` answered with is not known to a member that copied its data.
            Some(Written::Refused(reply)) if error_code(&reply) != INCOMPLETE_HISTORY => {
                let problem = format!("{}: a write sent again was refused: {reply:?}", self.name);
                self.shared.fail(problem);
            }
            Some(Written::Refused(_) | Written::Unknown) | None => {}
        }
    }

    async fn read(&mut self) {
        let member = self.rng.below(self.session.member_count() as u64) as usize;
        match self.rng.below(6) {
            0 => self.read_with(Some(member), "local", false).await,
            1 => self.read_with(Some(member), "available", false).await,
            2 => self.read_with(None, "linearizable", false).await,
            3 => self.read_with(Some(member), "snapshot", true).await,
            4 => self.read_with(Some(member), "local", true).await,
            _ => {
                let causal = self.rng.chance(0.7);
                self.read_with(Some(member), "majority", causal).await;
            }
        }
    }

    /// Reads everything and checks it. A causal read sees what this client has seen before with a
    /// majority's concern; a linearizable one what anybody had acknowledged when it began.
    async fn read_with(&mut self, member: Option<usize>, level: &'static str, causal: bool) {
        let mut concern = rawdoc! { "level": level };
        let causal = causal && self.session.operation_time.is_some();
        if let (true, Some(time)) = (causal, self.session.operation_time) {
            concern.append(pinion_bson::cstr!("afterClusterTime"), time);
        }
        let floor = match level {
            "linearizable" => self.shared.history.borrow().floor(),
            // A local read may see a branch of history that parted before what this client has
            // seen.
            "majority" | "snapshot" if causal => self.seen.clone(),
            _ => Floor::new(),
        };
        // Those of an earlier time may be older than the index.
        let of_the_past = matches!(level, "majority" | "snapshot");
        let by_index = !of_the_past && self.rng.chance(BY_INDEX);
        let hint = by_index.then(|| rawdoc! { "v": 1_i32, "n": -1_i32 });
        let read = self
            .session
            .read_all(member, (self.shared.db, COLLECTION), &concern, hint);
        let documents = match read.await {
            Ok(documents) => documents,
            Err(Unread::Refused(reply)) if by_index && NO_INDEX.contains(&error_code(&reply)) => {
                return self.shared.count("reads by an index that was not there");
            }
            Err(Unread::OfTheMoment) => return self.shared.count("reads not answered"),
            Err(Unread::Refused(reply)) => {
                let problem = format!("{}: a {level} read was refused: {reply:?}", self.name);
                return self.shared.fail(problem);
            }
        };
        let mut history = self.shared.history.borrow_mut();
        let place = member.map_or("the primary".to_owned(), |member| {
            format!("member {member}")
        });
        let who = format!(
            "{} by a {level} read on {place}, causal {causal}, by an index {by_index}",
            self.name
        );
        let found = match level {
            "snapshot" | "linearizable" => history.check_snapshot(&who, &documents, &floor),
            _ => history.check(&who, &documents, &floor),
        };
        if by_index {
            history.count("reads by an index");
        }
        history.count(match level {
            "local" => "local reads",
            "available" => "available reads",
            "majority" => "majority reads",
            "snapshot" => "snapshot reads",
            _ => "linearizable reads",
        });
        if !matches!(level, "majority" | "snapshot" | "linearizable") {
            return;
        }
        history.seen_by_majority(&found);
        if causal {
            // Later reads of this session see at least this.
            self.seen = found
                .into_iter()
                .map(|found| (found.key, found.operations))
                .collect();
        }
    }
}

/// Builds and drops an index and a collection, over and over.
pub async fn change_catalog(shared: Rc<Shared>, mut rng: Rng) {
    let mut session = Session::of(&shared, &mut rng);
    while let Some(_active) = shared.begin().await {
        let concern = rawdoc! { "w": "majority", "wtimeout": WTIMEOUT_MS };
        let command = match rng.below(6) {
            0 | 1 => {
                rawdoc! { "createIndexes": COLLECTION, "indexes": [{ "key": { "v": 1_i32, "n": -1_i32 }, "name": "extra" }], "writeConcern": concern, "$db": shared.db }
            }
            2 => {
                rawdoc! { "dropIndexes": COLLECTION, "index": "extra", "writeConcern": concern, "$db": shared.db }
            }
            3 => rawdoc! { "create": "side", "writeConcern": concern, "$db": shared.db },
            4 => {
                rawdoc! { "collMod": COLLECTION, "validationLevel": "off", "writeConcern": concern, "$db": shared.db }
            }
            _ => rawdoc! { "drop": "side", "writeConcern": concern, "$db": shared.db },
        };
        match session.retry(&command).await {
            Written::Acknowledged => shared.count("catalog changes acknowledged"),
            Written::Refused(reply) if DDL_REFUSALS.contains(&error_code(&reply)) => {}
            Written::Refused(reply) => {
                shared.fail(format!("a change of the catalog was refused: {reply:?}"))
            }
            Written::Unknown => shared.count("catalog changes of unknown outcome"),
        }
        sleep(Duration::from_millis(rng.below(3_000))).await;
    }
}
