//! Commands that the node sends to itself, as a client would: as retried or in a transaction, and
//! counted like others. Only their write concern is not waited for, which is none of the node's
//! own: who needs a majority waits for it here.

use std::cell::Cell;

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_exec::replica_set;
use pinion_runtime::{Duration, now, sleep, timeout};
use pinion_server::Direct;
use pinion_service::generate::random_bytes;
use pinion_storage::storage;
use pinion_wire::idl::{WriteConcern, WriteConcernW};
use pinion_wire::{Error, ErrorCode, Flags, Result, encode_request, interruption, parse_message};

use crate::limits::LOCAL_COMMAND;
use crate::replies;

/// The pause before a transaction is tried again that met another write.
const TRANSACTION_PAUSE: Duration = Duration::from_millis(20);
const TRANSACTION_ATTEMPTS: u32 = 10;

/// A connection to the node itself, of this core.
pub(crate) struct LocalClient {
    direct: Direct,
    last_request: Cell<i32>,
}

/// What a command of the node has done.
pub(crate) struct LocalReply {
    body: RawDocumentBuf,
}

impl LocalReply {
    pub(crate) fn body(&self) -> &RawDocument {
        &self.body
    }
}

/// Waits until a majority has all that this node, as the primary, has written so far.
///
/// # Errors
/// It is no primary any more, after which what it wrote may be lost; `WriteConcernTimeout`.
pub(crate) async fn wait_majority() -> Result<()> {
    wait_majority_of(storage().last_allotted()).await
}

async fn wait_majority_of(ts: Timestamp) -> Result<()> {
    let set = replica_set().expect("a node of a cluster is a member");
    let concern = WriteConcern {
        w: Some(WriteConcernW::Majority),
        journal: Some(set.view().journal_default),
        timeout_ms: 0,
    };
    let deadline = now() + LOCAL_COMMAND;
    set.wait_write_concern(ts, &concern, Some(deadline)).await
}

impl LocalClient {
    /// # Errors
    /// `ShutdownInProgress` where the node does not serve clients yet, or any more.
    pub(crate) fn new() -> Result<LocalClient> {
        let direct =
            Direct::try_new().ok_or_else(|| interruption(ErrorCode::SHUTDOWN_IN_PROGRESS))?;
        Ok(LocalClient {
            direct,
            last_request: Cell::new(0),
        })
    }

    /// Runs a command, whose document names its database.
    ///
    /// # Errors
    /// Those of the command and of its statements; `NetworkInterfaceExceededTimeLimit` where it
    /// does not end.
    pub(crate) async fn run(&self, command: &RawDocument) -> Result<LocalReply> {
        self.run_within(command, LOCAL_COMMAND).await
    }

    /// The same of a command that may take another time.
    ///
    /// # Errors
    /// As of [`LocalClient::run`].
    pub(crate) async fn run_within(
        &self,
        command: &RawDocument,
        limit: Duration,
    ) -> Result<LocalReply> {
        let number = self.last_request.get().wrapping_add(1);
        self.last_request.set(number);
        let request = encode_request(number, Flags(0), command);
        let answered = timeout(limit, self.direct.answer(request)).await;
        let answer = answered.map_err(|_| {
            Error::new(
                ErrorCode::NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT,
                "a command of the node itself has not ended in time",
            )
        })?;
        let answer = answer.ok_or_else(|| Error::internal("a command has no reply"))?;
        let message = parse_message(answer).map_err(|refused| refused.error)?;
        replies::check(message.body())?;
        Ok(LocalReply {
            body: message.body().to_owned(),
        })
    }

    /// Runs a command that writes. A majority has it when this returns.
    ///
    /// # Errors
    /// As of [`LocalClient::run`] and [`wait_majority`].
    pub(crate) async fn write(&self, command: &RawDocument) -> Result<()> {
        self.run(command).await?;
        wait_majority().await
    }

    /// The documents that a filter selects, which are at most `limit`.
    ///
    /// # Errors
    /// As of [`LocalClient::run`].
    pub(crate) async fn find(
        &self,
        (db, collection): (&str, &str),
        filter: &RawDocument,
        limit: i32,
    ) -> Result<Vec<RawDocumentBuf>> {
        let command = rawdoc! {
            "find": collection, "filter": filter.to_owned(), "limit": limit, "batchSize": limit,
            "singleBatch": true, "readConcern": { "level": "local" }, "$db": db,
        };
        replies::only_batch(self.run(&command).await?.body())
    }

    /// The documents that a filter selects, in an order, which are at most `limit`, however many
    /// replies they take.
    ///
    /// # Errors
    /// As of [`LocalClient::run`].
    pub(crate) async fn find_sorted(
        &self,
        place: (&str, &str),
        filter: &RawDocument,
        sort: &RawDocument,
        limit: i32,
    ) -> Result<Vec<RawDocumentBuf>> {
        let (db, collection) = place;
        let command = rawdoc! {
            "find": collection, "filter": filter.to_owned(), "sort": sort.to_owned(),
            "limit": limit, "readConcern": { "level": "local" }, "$db": db,
        };
        self.read_to_end(place, &command).await
    }

    /// All documents that a filter selects.
    ///
    /// # Errors
    /// As of [`LocalClient::run`].
    pub(crate) async fn find_all(
        &self,
        place: (&str, &str),
        filter: &RawDocument,
    ) -> Result<Vec<RawDocumentBuf>> {
        let (db, collection) = place;
        let command = rawdoc! {
            "find": collection, "filter": filter.to_owned(), "readConcern": { "level": "local" },
            "$db": db,
        };
        self.read_to_end(place, &command).await
    }

    async fn read_to_end(
        &self,
        place: (&str, &str),
        command: &RawDocument,
    ) -> Result<Vec<RawDocumentBuf>> {
        let mut found = Vec::new();
        let mut batch = replies::batch(self.run(command).await?.body(), "firstBatch")?;
        loop {
            found.append(&mut batch.documents);
            if batch.cursor == 0 {
                return Ok(found);
            }
            batch = self.more(place, batch.cursor, None).await?;
        }
    }

    /// The next batch of a cursor.
    ///
    /// # Errors
    /// As of [`LocalClient::run`].
    pub(crate) async fn more(
        &self,
        (db, collection): (&str, &str),
        cursor: i64,
        batch_size: Option<i32>,
    ) -> Result<replies::Batch> {
        let mut command = DocBuilder::new();
        command
            .append("getMore", cursor)
            .append("collection", collection);
        if let Some(size) = batch_size {
            command.append("batchSize", size);
        }
        command.append("$db", db);
        replies::batch(self.run(&command.finish()).await?.body(), "nextBatch")
    }

    /// Runs commands in one transaction, which a majority has when this returns: all of them or
    /// none have their effect.
    ///
    /// # Errors
    /// Those of a command; nothing has been written then. Those of [`wait_majority`].
    pub(crate) async fn run_together(&self, commands: &[RawDocumentBuf]) -> Result<()> {
        let session = rawdoc! { "id": pinion_bson::Binary {
            subtype: pinion_bson::BinarySubtype::Uuid,
            bytes: random_bytes::<16>().to_vec(),
        } };
        let mut attempt = 1;
        loop {
            let outcome = self.try_together(&session, attempt, commands).await;
            match outcome {
                Err(error) if is_conflict(&error) && attempt < TRANSACTION_ATTEMPTS.into() => {
                    attempt += 1;
                    sleep(TRANSACTION_PAUSE).await;
                }
                Err(error) => return Err(error),
                Ok(()) => return wait_majority().await,
            }
        }
    }

    async fn try_together(
        &self,
        session: &RawDocument,
        number: i64,
        commands: &[RawDocumentBuf],
    ) -> Result<()> {
        let of_transaction = |command: &RawDocument, is_first: bool| {
            let mut out = DocBuilder::new();
            out.append_all(command);
            out.append("lsid", session);
            out.append("txnNumber", number).append("autocommit", false);
            if is_first {
                out.append("startTransaction", true);
            }
            out.finish()
        };
        for (at, command) in commands.iter().enumerate() {
            if let Err(error) = self.run(&of_transaction(command, at == 0)).await {
                let abort = rawdoc! { "abortTransaction": 1, "$db": "admin" };
                // Most errors have ended it already.
                let _ = self.run(&of_transaction(&abort, false)).await;
                return Err(error);
            }
        }
        let commit = rawdoc! { "commitTransaction": 1, "$db": "admin" };
        self.run(&of_transaction(&commit, false)).await.map(drop)
    }
}

fn is_conflict(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::WRITE_CONFLICT | ErrorCode::LOCK_TIMEOUT
    )
}
