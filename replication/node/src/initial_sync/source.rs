//! What is asked of the source beside its documents.

use pinion_apply::parse_catalog_rows;
use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_catalog::CatalogRows;
use pinion_clock::Timestamp;
use pinion_replication_protocol::config::HostPort;
use pinion_server::{PooledConnection, RemoteReply};
use pinion_wire::ErrorCode;

use super::{Failed, Halt, Outage};
use crate::fetch::bson_ts;
use crate::follower::Fetched;
use crate::limits::{COPY_RETRIES, FETCH_TIMEOUT, FIRST_FETCH_TIME, RETRY_PAUSE};
use crate::peers::Peers;

/// The source of an attempt, with a connection that is opened again when it breaks. It belongs to
/// one core.
pub(super) struct Source {
    pub host: HostPort,
    pub halt: Halt,
    /// Something is copied of it, so it is waited for as long as the parameter says: before,
    /// another source would do.
    pub has_started: bool,
    remote: Option<PooledConnection>,
}

impl Source {
    pub(super) fn new(host: HostPort, halt: Halt) -> Source {
        Source {
            host,
            halt,
            has_started: false,
            remote: None,
        }
    }

    /// The connection: it is used by one command at a time, and given back when that has ended
    /// well.
    pub(super) async fn take(&mut self) -> Result<PooledConnection, Failed> {
        match self.remote.take() {
            Some(remote) => Ok(remote),
            None => {
                let peers = Peers::here();
                let opened = peers.open(&self.host, FETCH_TIMEOUT);
                Ok(self.halt.within(FETCH_TIMEOUT, opened).await??)
            }
        }
    }

    pub(super) fn give_back(&mut self, remote: PooledConnection) {
        self.remote = Some(remote);
    }

    /// Runs a command, once.
    pub(super) async fn run_once(&mut self, command: &RawDocument) -> Result<RemoteReply, Failed> {
        let mut remote = self.take().await?;
        let reply = self
            .halt
            .within(FIRST_FETCH_TIME, remote.run(command))
            .await?;
        if matches!(reply, Ok(_) | Err(pinion_server::RemoteError::Refused(_))) {
            self.give_back(remote);
        }
        Ok(reply?)
    }

    /// Runs a command that only reads; again if the connection breaks.
    pub(super) async fn run(&mut self, command: &RawDocument) -> Result<RemoteReply, Failed> {
        let mut tries = 0;
        let mut outage = Outage::default();
        loop {
            match self.run_once(command).await {
                Err(failed)
                    if failed.is_broken()
                        && match self.has_started {
                            true => !outage.is_too_long(),
                            false => tries < COPY_RETRIES,
                        } =>
                {
                    tries += 1;
                    self.halt.pause(RETRY_PAUSE).await?;
                }
                done => return done,
            }
        }
    }

    pub(super) async fn rollback_id(&mut self) -> Result<i32, Failed> {
        let reply = self
            .run(&rawdoc! { "replSetGetRBID": 1, "$db": "admin" })
            .await?;
        let id = pinion_bson::get(reply.body(), "rbid").and_then(pinion_wire::idl::i32_clamped);
        id.ok_or_else(|| Failed::new("the source does not tell its rollback id"))
    }

    /// The last entry that the source has applied: whatever is read of it from now on has that in
    /// it.
    pub(super) async fn last_applied(&mut self) -> Result<Fetched, Failed> {
        let hello = self.run(&rawdoc! { "isMaster": 1, "$db": "admin" }).await?;
        let applied = hello
            .body()
            .get_document("lastWrite")
            .and_then(|last| last.get_document("opTime"))
            .and_then(|applied| applied.get_timestamp("ts"));
        let applied =
            applied.map_err(|_| Failed::new("the source does not tell what it has applied"))?;
        self.newest_entry(Timestamp::new(applied.time, applied.increment))
            .await
    }

    /// The newest entry of the source's oplog, at or below a timestamp.
    pub(super) async fn newest_entry(&mut self, limit: Timestamp) -> Result<Fetched, Failed> {
        let find = rawdoc! {
            "find": "oplog.rs",
            "filter": { "ts": { "$lte": bson_ts(limit) } },
            "sort": { "$natural": -1 },
            "limit": 1,
            "readConcern": { "level": "local" },
            "$db": "local",
            "$readPreference": { "mode": "secondaryPreferred" },
        };
        let reply = self.run(&find).await?;
        let batch = batch_of(reply.body())?;
        match pinion_bson::values(batch).next() {
            Some(RawBsonRef::Document(entry)) => Ok(Fetched::read(
                reply.body_bytes().slice_ref(entry.as_bytes()),
            )?),
            _ => Err(Failed {
                failure: pinion_replication_protocol::node::SourceFailure::NoOplog,
                ..Failed::new("the source has no oplog")
            }),
        }
    }

    /// The time of the first entry of the oldest transaction that is prepared at the source and has
    /// no outcome.
    pub(super) async fn oldest_prepared(&mut self) -> Result<Option<Timestamp>, Failed> {
        let asking = |raw: bool| {
            let mut find = rawdoc! {
                "find": "transactions",
                "filter": { "state": { "$in": ["prepared", "inProgress"] } },
                "sort": { "startOpTime": 1 },
                "limit": 1,
                "readConcern": { "level": "local" },
                "$db": "config",
                "$readPreference": { "mode": "secondaryPreferred" },
            };
            if raw {
                find.append(pinion_bson::cstr!("rawData"), true);
            }
            find
        };
        let reply = match self.run(&asking(true)).await {
            // Members of MongoDB 4.4 do not know the field, and show what there is.
            Err(failed) if failed.code == Some(ErrorCode::FAILED_TO_PARSE) => {
                self.run(&asking(false)).await?
            }
            reply => reply?,
        };
        let Some(RawBsonRef::Document(record)) =
            pinion_bson::values(batch_of(reply.body())?).next()
        else {
            return Ok(None);
        };
        let started = record
            .get_document("startOpTime")
            .and_then(|started| started.get_timestamp("ts"));
        let started = started.map_err(|_| {
            Failed::new("a prepared transaction of the source does not tell where it begins")
        })?;
        Ok(Some(Timestamp::new(started.time, started.increment)))
    }

    /// The rows of the source's catalog above a number.
    pub(super) async fn catalog_rows(&mut self, above: u64) -> Result<CatalogRows, Failed> {
        let ask = rawdoc! {
            "_replCatalogRows": 1,
            "above": above as i64,
            "$db": "admin",
            "$readPreference": { "mode": "secondaryPreferred" },
        };
        let reply = self.run(&ask).await?;
        Ok(parse_catalog_rows(reply.body())?)
    }

    /// How many documents a collection has, and of how many bytes, about.
    pub(super) async fn size_of(&mut self, db: &str, collection: &str) -> (u64, u64) {
        let ask = rawdoc! {
            "collStats": collection,
            "$db": db,
            "$readPreference": { "mode": "secondaryPreferred" },
        };
        let number = |reply: &RawDocument, name| {
            let value = pinion_bson::get(reply, name).and_then(pinion_wire::idl::i64_exact);
            value
                .and_then(|value| u64::try_from(value).ok())
                .unwrap_or(0)
        };
        match self.run(&ask).await {
            Ok(reply) => (number(reply.body(), "count"), number(reply.body(), "size")),
            // It is reported, and nothing depends on it.
            Err(_) => (0, 0),
        }
    }
}

/// The documents of a reply to `find` or `getMore`.
pub(super) fn batch_of(reply: &RawDocument) -> Result<&pinion_bson::RawArray, Failed> {
    let cursor = reply.get_document("cursor");
    let batch = cursor.and_then(|cursor| {
        cursor
            .get_array("firstBatch")
            .or_else(|_| cursor.get_array("nextBatch"))
    });
    batch.map_err(|_| Failed::new("a reply of the source has no batch"))
}

/// Whether a document of the source's catalog is the row of the collection with this UUID, and in
/// which database that is.
pub(super) fn database_of(row: &RawDocumentBuf, uuid: &[u8; 16]) -> Option<String> {
    let options = row
        .get_document("md")
        .and_then(|md| md.get_document("options"));
    let found = pinion_bson::get(options.ok()?, "uuid");
    let is_same = matches!(found, Some(RawBsonRef::Binary(binary)) if binary.bytes == uuid);
    let ns = row.get_str("ns").ok()?;
    let (db, _) = ns.split_once('.')?;
    is_same.then(|| db.to_owned())
}
