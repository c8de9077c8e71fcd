//! A client of the whole set: a session that finds the primary, retries, and is causally
//! consistent, as a driver's.

use std::net::SocketAddr;

use pinion_bson::{Binary, BinarySubtype, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc};
use pinion_runtime::{Duration, Instant, Rng, now, sleep};

use super::workload::Shared;
use crate::client::{Client, Failure, error_code};

/// How long a client waits for one answer.
const ANSWER: Duration = Duration::from_secs(8);
/// For how long a write is retried before its client gives it up.
pub const RETRYING: Duration = Duration::from_secs(40);
const SEARCH_PAUSE_MS: u64 = 150;
/// How long a commit waits for a majority before it is asked for again.
const COMMIT_WTIMEOUT_MS: i32 = 5_000;

/// Answers that say nothing of a write but that it may go better elsewhere or later:
/// NotWritablePrimary, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary, PrimarySteppedDown,
/// ShutdownInProgress, InterruptedAtShutdown, InterruptedDueToReplStateChange, HostUnreachable,
/// HostNotFound.
const MOVED: [i32; 9] = [10_107, 13_435, 13_436, 189, 91, 11_600, 11_602, 6, 7];
/// How often a client of routers goes by another one.
const HOPS: f64 = 0.3;
/// FailedToSatisfyReadPreference, NetworkInterfaceExceededTimeLimit, NetworkTimeout,
/// ConnectionPoolExpired, PooledConnectionsDropped, SocketException: a router has not reached what
/// it asked.
const UNREACHED: [i32; 6] = [133, 202, 89, 317, 374, 9_001];
/// StaleDbVersion, StaleConfig.
const STALE: [i32; 2] = [249, 13_388];
/// WriteConflict, TemporarilyUnavailable, WriteConcernTimeout (the write is there, and is asked for
/// again), MaxTimeMSExpired, NotYetInitialized.
const BUSY: [i32; 5] = [112, 365, 64, 50, 94];
/// SnapshotTooOld, SnapshotUnavailable, ReadConcernMajorityNotAvailableYet,
/// LinearizableReadConcernError, CursorNotFound, LockTimeout (it waits for an outcome that comes
/// behind a change of the catalog, which waits for the read): a read may be refused so.
const UNREADABLE: [i32; 6] = [239, 246, 134, 151, 43, 24];

const NO_SUCH_TRANSACTION: i32 = 251;
/// OperationNotSupportedInTransaction.
const NOT_IN_TRANSACTION: i32 = 263;

/// Whether an error says no more than that members come and go.
pub fn is_of_the_moment(code: i32) -> bool {
    MOVED.contains(&code) || BUSY.contains(&code) || UNREADABLE.contains(&code)
}

/// How a write ended.
#[derive(Debug)]
pub enum Written {
    Acknowledged,
    /// With an error that no client here provokes.
    Refused(RawDocumentBuf),
    Unknown,
}

/// How one attempt at a transaction ended.
#[derive(Debug)]
pub enum Attempt {
    Committed,
    /// Nothing of it was or will be there.
    Aborted,
    /// Nothing of it stays; a primary whom others no longer follow may have committed it.
    RolledBack,
    /// With an error that no client here provokes.
    Refused(RawDocumentBuf),
    Unknown,
}

/// Why a read gave nothing.
#[derive(Debug)]
pub enum Unread {
    /// As happens when members come and go.
    OfTheMoment,
    Refused(RawDocumentBuf),
}

/// What sessions know of time.
#[derive(Default)]
pub struct KnownTime {
    cluster: Option<RawDocumentBuf>,
    operation: Option<Timestamp>,
}

pub struct Session {
    members: Vec<Client>,
    /// Where the primary was last.
    primary: usize,
    id: [u8; 16],
    txn_number: i64,
    cluster_time: Option<RawDocumentBuf>,
    /// The time of the last operation, which the next one must not see less of.
    pub operation_time: Option<Timestamp>,
    pub rng: Rng,
    /// The last write.
    last: Option<RawDocumentBuf>,
    via_routers: bool,
    /// By it another router finds the outcome of the last transaction.
    recovery_token: Option<RawDocumentBuf>,
    /// An attempt at the last command had no answer: a router may be busy with it for some time.
    pub is_left_behind: bool,
}

/// Whether a reply says that the transaction has not taken place and may be tried again.
fn is_transient(reply: &RawDocument) -> bool {
    let labels = reply.get_array("errorLabels").into_iter().flatten();
    let mut labels = labels.filter_map(|label| label.ok()?.as_str());
    labels.any(|label| label == "TransientTransactionError")
}

/// Whether a primary that leads since a moment does not know yet that a majority has the entry of
/// what is prepared.
fn is_not_committed_yet(reply: &RawDocument) -> bool {
    let message = reply.get_str("errmsg").unwrap_or_default();
    message.ends_with("before its prepare oplog entry has been majority committed")
}

/// The write concern of a commit that a majority acknowledges.
pub fn majority() -> RawDocumentBuf {
    rawdoc! { "w": "majority", "wtimeout": COMMIT_WTIMEOUT_MS }
}

fn clients(members: &[SocketAddr], patience: Duration) -> Vec<Client> {
    let members = members.iter();
    members
        .map(|address| Client::new(*address).within(patience))
        .collect()
}

impl Session {
    pub fn new(members: &[SocketAddr], mut rng: Rng) -> Session {
        let mut id = [0; 16];
        rng.fill_bytes(&mut id);
        Session {
            members: clients(members, ANSWER),
            primary: 0,
            id,
            txn_number: 0,
            cluster_time: None,
            operation_time: None,
            rng,
            last: None,
            via_routers: false,
            recovery_token: None,
            is_left_behind: false,
        }
    }

    /// A session of these clients.
    pub fn of(shared: &Shared, rng: &mut Rng) -> Session {
        let session = Session::new(&shared.members, Rng::from_seed(rng.next_u64()));
        Session {
            via_routers: shared.via_routers,
            ..session
        }
    }

    /// Goes by another router now and then.
    fn hop(&mut self) {
        if self.via_routers && self.rng.chance(HOPS) {
            self.primary = self.rng.below(self.members.len() as u64) as usize;
        }
    }

    /// Where the next command goes.
    pub fn place(&mut self) -> usize {
        self.hop();
        self.primary
    }

    /// A shard could not learn the version of a database or a collection in time, and so does not
    /// say which it wants.
    fn is_unlearned(&self, reply: &RawDocument) -> bool {
        let is_stale = STALE.contains(&error_code(reply));
        self.via_routers && is_stale && reply.get_document("vWanted").is_err()
    }

    fn is_moved(&self, code: i32) -> bool {
        MOVED.contains(&code) || (self.via_routers && UNREACHED.contains(&code))
    }

    /// Whether an error says no more than that members come and go.
    pub fn is_momentary(&self, reply: &RawDocument) -> bool {
        let code = error_code(reply);
        let is_unreached = self.via_routers && UNREACHED.contains(&code);
        is_of_the_moment(code) || is_unreached || self.is_unlearned(reply)
    }

    pub fn member_count(&self) -> usize {
        self.members.len()
    }

    fn lsid(&self) -> RawDocumentBuf {
        let id = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: self.id.to_vec(),
        };
        rawdoc! { "id": id }
    }

    /// Sends a command to a member, with what this client knows of time.
    pub async fn on(
        &mut self,
        member: usize,
        body: &RawDocument,
    ) -> Result<RawDocumentBuf, Failure> {
        let mut body = body.to_owned();
        if let Some(time) = &self.cluster_time {
            body.append(cstr!("$clusterTime"), time.clone());
        }
        let reply = self.members[member].command(&body).await?;
        self.learn(&reply);
        Ok(reply)
    }

    fn learn(&mut self, reply: &RawDocument) {
        if let Ok(token) = reply.get_document("recoveryToken") {
            self.recovery_token = Some(token.to_owned());
        }
        if let Ok(time) = reply.get_document("$clusterTime") {
            self.advance(time);
        }
        if let Ok(time) = reply.get_timestamp("operationTime") {
            self.operation_time = self.operation_time.max(Some(time));
        }
    }

    fn advance(&mut self, time: &RawDocument) {
        let at = |time: &RawDocument| time.get_timestamp("clusterTime").ok();
        if at(time) > self.cluster_time.as_deref().and_then(at) {
            self.cluster_time = Some(time.to_owned());
        }
    }

    /// Exchanges what this session and others know of time: a causal read of each sees what all
    /// have seen.
    pub fn share_time(&mut self, known: &mut KnownTime) {
        if let Some(time) = &known.cluster {
            self.advance(time);
        }
        self.operation_time = self.operation_time.max(known.operation);
        *known = KnownTime {
            cluster: self.cluster_time.clone(),
            operation: self.operation_time,
        };
    }

    /// Looks for the primary, and gives its place.
    async fn find_primary(&mut self) -> Option<usize> {
        let first = self.rng.below(self.members.len() as u64) as usize;
        for step in 0..self.members.len() {
            let member = (first + step) % self.members.len();
            let hello = rawdoc! { "hello": 1_i32, "$db": "admin" };
            let Ok(reply) = self.on(member, &hello).await else {
                continue;
            };
            if matches!(reply.get_bool("isWritablePrimary"), Ok(true)) {
                return Some(member);
            }
        }
        None
    }

    /// Executes a write once, on whichever member is primary, and retries it until its outcome is
    /// known.
    pub async fn write(&mut self, body: &RawDocument) -> Written {
        self.hop();
        self.txn_number += 1;
        let mut body = body.to_owned();
        body.append(cstr!("lsid"), self.lsid());
        body.append(cstr!("txnNumber"), self.txn_number);
        self.last = Some(body.clone());
        self.retry(&body).await
    }

    /// Sends the last write again, as it was.
    pub async fn again(&mut self) -> Option<Written> {
        let last = self.last.clone()?;
        self.hop();
        Some(self.retry(&last).await)
    }

    /// Sends a command that may be executed twice until its outcome is known.
    pub async fn retry(&mut self, body: &RawDocument) -> Written {
        let deadline = now() + RETRYING;
        self.is_left_behind = false;
        while now() < deadline {
            let reply = match self.on(self.primary, body).await {
                Ok(reply) => reply,
                Err(_) => {
                    self.is_left_behind = true;
                    self.search().await;
                    continue;
                }
            };
            match error_code(&reply) {
                0 => return Written::Acknowledged,
                code if self.is_moved(code) => self.search().await,
                _ if self.is_unlearned(&reply) => self.search().await,
                code if BUSY.contains(&code) => sleep(Duration::from_millis(10)).await,
                _ => return Written::Refused(reply),
            }
        }
        Written::Unknown
    }

    /// Runs statements in a transaction, as a driver's `withTransaction` does: started again when
    /// it may be retried as a whole, and committed until that is known. `seen` is shown what a find
    /// at its end has read.
    pub async fn transact(
        &mut self,
        statements: &[RawDocumentBuf],
        seen: &mut impl FnMut(usize, Vec<RawDocumentBuf>),
    ) -> Written {
        let concern = rawdoc! { "level": "snapshot" };
        let of_commit = majority();
        // What was written before has an older number, which is not sent again.
        self.last = None;
        let deadline = now() + RETRYING;
        let mut attempts = 0;
        while now() < deadline {
            if attempts > 0 {
                sleep(Duration::from_millis(self.rng.below(20 * attempts.min(10)))).await;
            }
            attempts += 1;
            self.hop();
            self.recovery_token = None;
            self.txn_number += 1;
            match self.run_statements(statements, &concern, seen).await {
                Ok(()) => {}
                Err(None) => continue,
                Err(Some(refused)) => return Written::Refused(refused),
            }
            match self.commit(&of_commit, deadline).await {
                Attempt::Committed => return Written::Acknowledged,
                Attempt::Refused(reply) => return Written::Refused(reply),
                Attempt::Unknown => return Written::Unknown,
                Attempt::Aborted | Attempt::RolledBack => continue,
            }
        }
        // What is left is never committed.
        Written::Unknown
    }

    /// Runs statements in a transaction and commits it; `seen` is shown the place of each statement
    /// and what it has read. With `of_commit` as the write concern of its commit, or without one:
    /// it is aborted then.
    pub async fn attempt(
        &mut self,
        statements: &[RawDocumentBuf],
        read_concern: &RawDocument,
        of_commit: Option<&RawDocument>,
        seen: &mut impl FnMut(usize, Vec<RawDocumentBuf>),
    ) -> Attempt {
        self.last = None;
        self.txn_number += 1;
        match self.run_statements(statements, read_concern, seen).await {
            Ok(()) => {}
            Err(None) => return Attempt::Aborted,
            Err(Some(refused)) => return Attempt::Refused(refused),
        }
        let Some(of_commit) = of_commit else {
            let abort = rawdoc! { "abortTransaction": 1_i32, "$db": "admin" };
            let _ = self.on(self.primary, &self.in_transaction(&abort)).await;
            return Attempt::Aborted;
        };
        self.commit(of_commit, now() + RETRYING).await
    }

    /// Runs statements in a transaction, prepares it and, after a pause, has it committed or
    /// aborted, however long that takes: nothing else ends it. Once a majority has it prepared
    /// nothing but that answer ends it.
    pub async fn attempt_prepared(
        &mut self,
        statements: &[RawDocumentBuf],
        read_concern: &RawDocument,
        commits: bool,
        seen: &mut impl FnMut(usize, Vec<RawDocumentBuf>),
    ) -> Attempt {
        self.last = None;
        self.txn_number += 1;
        match self.run_statements(statements, read_concern, seen).await {
            Ok(()) => {}
            Err(None) => return Attempt::Aborted,
            Err(Some(refused)) => return Attempt::Refused(refused),
        }
        let prepare =
            rawdoc! { "prepareTransaction": 1_i32, "writeConcern": majority(), "$db": "admin" };
        let prepare = self.in_transaction(&prepare);
        let prepared = match self.until_answered(&prepare).await {
            // A primary that does not have it prepared leads now, and no member will have it.
            Err(reply) if is_transient(&reply) => return Attempt::Aborted,
            // It has made a collection, which is not supported.
            Err(reply) if error_code(&reply) == NOT_IN_TRANSACTION => {
                let abort = rawdoc! { "abortTransaction": 1_i32, "$db": "admin" };
                let _ = self.on(self.primary, &self.in_transaction(&abort)).await;
                return Attempt::Aborted;
            }
            Err(reply) => return Attempt::Refused(reply),
            Ok(reply) => match reply.get_timestamp("prepareTimestamp") {
                Ok(at) => at,
                Err(_) => return Attempt::Refused(reply),
            },
        };
        let most_ms = [20, 500, 5_000][self.rng.below(3) as usize];
        sleep(Duration::from_millis(self.rng.below(most_ms))).await;
        if !commits {
            let abort =
                rawdoc! { "abortTransaction": 1_i32, "writeConcern": majority(), "$db": "admin" };
            return match self.until_answered(&self.in_transaction(&abort)).await {
                Ok(_) => Attempt::Aborted,
                // Aborted already, and the answer was lost.
                Err(reply) if error_code(&reply) == NO_SUCH_TRANSACTION => Attempt::Aborted,
                Err(reply) => Attempt::Refused(reply),
            };
        }
        let at = match self.rng.chance(0.5) {
            true => self
                .operation_time
                .map_or(prepared, |time| time.max(prepared)),
            false => prepared,
        };
        let commit = rawdoc! { "commitTransaction": 1_i32, "commitTimestamp": at, "writeConcern": majority(), "$db": "admin" };
        match self.until_answered(&self.in_transaction(&commit)).await {
            Ok(_) => Attempt::Committed,
            Err(reply) => Attempt::Refused(reply),
        }
    }

    /// Sends a command to the current primary until it is answered finally.
    async fn until_answered(
        &mut self,
        command: &RawDocument,
    ) -> Result<RawDocumentBuf, RawDocumentBuf> {
        loop {
            let Ok(reply) = self.on(self.primary, command).await else {
                self.search().await;
                continue;
            };
            match error_code(&reply) {
                0 => return Ok(reply),
                _ if is_transient(&reply) => return Err(reply),
                code if self.is_moved(code) => self.search().await,
                code if BUSY.contains(&code) || is_not_committed_yet(&reply) => {
                    sleep(Duration::from_millis(10)).await;
                }
                _ => return Err(reply),
            }
        }
    }

    /// Commits what a majority has acknowledged once more, as if the answer had been lost.
    pub async fn commit_again(&mut self) -> Attempt {
        self.commit(&majority(), now() + RETRYING).await
    }

    /// A command as a part of the transaction.
    fn in_transaction(&self, body: &RawDocument) -> RawDocumentBuf {
        let mut body = body.to_owned();
        body.append(cstr!("lsid"), self.lsid());
        body.append(cstr!("txnNumber"), self.txn_number);
        body.append(cstr!("autocommit"), false);
        body
    }

    /// An error without a reply says that the transaction may be tried again.
    async fn run_statements(
        &mut self,
        statements: &[RawDocumentBuf],
        concern: &RawDocument,
        seen: &mut impl FnMut(usize, Vec<RawDocumentBuf>),
    ) -> Result<(), Option<RawDocumentBuf>> {
        for (place, statement) in statements.iter().enumerate() {
            let mut body = self.in_transaction(statement);
            if place == 0 {
                body.append(cstr!("startTransaction"), true);
                body.append(cstr!("readConcern"), concern.to_owned());
            }
            let Ok(reply) = self.on(self.primary, &body).await else {
                self.search().await;
                return Err(None);
            };
            match error_code(&reply) {
                0 if matches!(reply.get_document("cursor"), Ok(cursor) if !matches!(cursor.get_i64("id"), Ok(0))) =>
                {
                    return Err(Some(reply));
                }
                0 => seen(place, crate::client::batch(&reply, "firstBatch")),
                code => {
                    if self.is_moved(code) {
                        self.search().await;
                    }
                    let may_again = is_transient(&reply) || self.is_unlearned(&reply);
                    return Err((!may_again).then_some(reply));
                }
            }
        }
        Ok(())
    }

    /// Commits until that is known.
    async fn commit(&mut self, concern: &RawDocument, deadline: Instant) -> Attempt {
        let concern = concern.to_owned();
        let commit =
            rawdoc! { "commitTransaction": 1_i32, "writeConcern": concern, "$db": "admin" };
        let mut commit = self.in_transaction(&commit);
        if let Some(token) = &self.recovery_token {
            commit.append(cstr!("recoveryToken"), token.clone());
        }
        let mut is_first = true;
        while now() < deadline {
            let reply = self.on(self.primary, &commit).await;
            let was_first = std::mem::take(&mut is_first);
            let Ok(reply) = reply else {
                self.search().await;
                continue;
            };
            match error_code(&reply) {
                0 => return Attempt::Committed,
                _ if is_transient(&reply) && was_first => return Attempt::Aborted,
                _ if is_transient(&reply) => return Attempt::RolledBack,
                code if self.is_moved(code) => self.search().await,
                code if BUSY.contains(&code) => sleep(Duration::from_millis(10)).await,
                _ => return Attempt::Refused(reply),
            }
        }
        Attempt::Unknown
    }

    async fn search(&mut self) {
        match self.find_primary().await {
            Some(member) => self.primary = member,
            None => sleep(Duration::from_millis(self.rng.below(SEARCH_PAUSE_MS))).await,
        }
    }

    /// Reads all documents of a collection of the clients from a member, or from the primary.
    pub async fn read_all(
        &mut self,
        member: Option<usize>,
        (db, collection): (&str, &str),
        concern: &RawDocument,
        hint: Option<RawDocumentBuf>,
    ) -> Result<Vec<RawDocumentBuf>, Unread> {
        // A member is asked itself; a router chooses one, and the primary alone reads linearizably.
        let mode = match (member, self.via_routers) {
            (None, true) => "primary",
            _ => "secondaryPreferred",
        };
        let member = member.unwrap_or(self.primary);
        let mut find = rawdoc! {
            "find": collection,
            "batchSize": 1_000_000_i32,
            "readConcern": concern.to_owned(),
            "maxTimeMS": 4_000_i32,
            "lsid": self.lsid(),
            "$readPreference": { "mode": mode },
            "$db": db,
        };
        if let Some(hint) = hint {
            find.append(cstr!("hint"), hint);
        }
        let reply = self.on(member, &find).await;
        let reply = reply.map_err(|_| Unread::OfTheMoment)?;
        match error_code(&reply) {
            0 => {}
            _ if self.is_momentary(&reply) => return Err(Unread::OfTheMoment),
            _ => return Err(Unread::Refused(reply)),
        }
        let cursor = reply.get_document("cursor");
        let id = cursor.and_then(|cursor| cursor.get_i64("id"));
        if !matches!(id, Ok(0)) {
            return Err(Unread::Refused(reply));
        }
        Ok(crate::client::batch(&reply, "firstBatch"))
    }
}
