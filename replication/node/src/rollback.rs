//! Rollback: this node has entries that its set does not have, and gives them up.
//!
//! The point where the two oplogs part is looked for backwards; what the documents behind it are
//! now is kept in files; then the data directory is opened again as of that point. What a majority
//! holds is never given up: there the node stops.
//!
//! Source: replication document, "Rollback".

use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_apply::{Applier, OpenNodeError};
use pinion_bson::{RawBson, RawBsonRef, RawDocument, rawdoc};
use pinion_catalog::{ApplyMode, Uuid};
use pinion_clock::{OpTime, Timestamp};
use pinion_exec::{Transition, from_log_error, replication_parameters};
use pinion_instance::reopen_at;
use pinion_replication_protocol::config::HostPort;
use pinion_replication_protocol::decision::{CommonPointSearch, Oplog, SearchStep};
use pinion_replication_protocol::node::Input;
use pinion_runtime::sim::event;
use pinion_runtime::{Queue, request_shutdown, spawn, timeout};
use pinion_server::PooledConnection;
use pinion_storage::storage;
use pinion_wire::{Error, Result};

use crate::driver::Driver;
use crate::fetch::{cursor_of, entries_of};
use crate::follower::Fetched;
use crate::give_up::stop_node;
use crate::kept::keep_documents;
use crate::limits::{FETCH_TIMEOUT, ROLLBACK_BATCH, ROLLBACK_BATCH_BYTES};
use crate::peers::Peers;
use crate::persisted;

/// The `_id`s of the documents that entries have written, by the UUID of their collection: its name
/// may have changed on the way.
type Affected = BTreeMap<Uuid, Vec<RawBson>>;

/// What a search has found.
struct Parting {
    common: OpTime,
    rolled_back: u64,
    affected: Affected,
    /// What a planted fault does not take back.
    kept: Option<Fetched>,
}

/// Why there is no rollback.
enum NoRollback {
    /// The source cannot be read: another one may be.
    Unreachable(String),
    /// There is no point to go back to.
    Impossible(Error),
}

impl From<Error> for NoRollback {
    fn from(error: Error) -> NoRollback {
        NoRollback::Impossible(error)
    }
}

impl Driver {
    /// Rolls back to where this node's oplog and the source's part.
    pub(crate) async fn roll_back(self: Rc<Self>, source: HostPort, rollback_id: i32) {
        self.stop_fetching();
        if !self.stop_following().await {
            return;
        }
        let parting = match self.find_parting(&source).await {
            Ok(parting) => parting,
            Err(NoRollback::Unreachable(why)) => {
                tracing::warn!(target: "ROLLBACK", id = 21_607u64, source = %source, why, "The common point of a rollback cannot be found now");
                self.start_following();
                return self.step(Input::RollbackFailed);
            }
            Err(NoRollback::Impossible(error)) => {
                return stop_node("a rollback is not possible", &error);
            }
        };
        let Parting {
            common,
            rolled_back,
            affected,
            kept,
        } = parting;
        tracing::info!(target: "ROLLBACK", id = 21_593u64, source = %source, commonPoint = ?common, entries = rolled_back, "Transition to ROLLBACK");
        event("rollback begin");
        let killed = pinion_instance::running_operations().await;
        self.metrics.changed_state(Transition {
            name: "rollback",
            killed,
            running: 0,
        });
        let set = replication_parameters();
        let limit_secs = set.rollback_limit_secs.unsigned_abs();
        let undone_secs = self.undone_secs(common.ts).await;
        if undone_secs > limit_secs {
            let why = format!(
                "not willing to roll back more than {limit_secs} seconds of data. Have: {undone_secs} seconds"
            );
            return stop_node("a rollback is not possible", &Error::internal(why));
        }
        if set.create_rollback_data_files
            && let Err(error) = keep_documents(&affected).await
        {
            return stop_node("the documents of a rollback cannot be kept", &error);
        }
        self.reopens.set(true);
        let gone_back = self.go_back(common, rollback_id).await;
        if let Some(kept) = kept {
            let applier = Applier::new(ApplyMode::Secondary);
            let _ = applier.apply(common.ts, kept.bytes).await;
            let _ = applier.barrier().await;
        }
        self.reopens.set(false);
        match gone_back {
            Ok(()) => {
                event("rolled back");
                tracing::info!(target: "ROLLBACK", id = 21_612u64, rollbackId = rollback_id, entries = rolled_back, "Rollback complete");
                self.step(Input::RolledBack(self.progress()));
            }
            Err(error) => stop_node("a rollback has failed", &error),
        }
    }

    /// Over how many seconds what goes was written: from the first entry behind the common point to
    /// the last.
    async fn undone_secs(&self, common: Timestamp) -> u32 {
        let mut log = storage().log_after(common);
        let first = log.next_batch(1, 1).await.ok();
        let first = first.and_then(|batch| batch.first().map(|(ts, _)| ts.secs()));
        let last = storage().last_allotted().secs();
        first.map_or(0, |first| last.saturating_sub(first))
    }

    async fn go_back(self: &Rc<Self>, common: OpTime, rollback_id: i32) -> Result<()> {
        // First, as a member that copies this node's data must learn of it, even if this node dies
        // on the way.
        persisted::store_rollback_id(rollback_id).await?;
        let storing = self.storing.acquire().await;
        let reopened = reopen_at(common.ts).await;
        drop(storing);
        reopened.map_err(|error: OpenNodeError| Error::internal(error.to_string()))?;
        self.terms.borrow_mut().cut(common);
        self.walls.borrow_mut().cut(common.ts);
        self.keep_history(
            self.with_node(|node| node.stable_optime().ts)
                .min(common.ts),
        );
        self.take_up_reopened().await
    }

    /// Continues with storage that was opened again, behind what is logged.
    pub(crate) async fn take_up_reopened(self: &Rc<Self>) -> Result<()> {
        pinion_instance::show_oplog(self.retention.get()).await?;
        pinion_exec::forget_default_concerns().await;
        self.watch_storage();
        spawn(Queue::Foreground, async {
            storage().failed().await;
            request_shutdown();
        });
        self.start_following();
        Ok(())
    }

    /// Reads both oplogs backwards until they meet.
    async fn find_parting(&self, source: &HostPort) -> std::result::Result<Parting, NoRollback> {
        let last = self.terms.borrow().optime(storage().last_allotted());
        let committed = self.with_node(|node| node.commit_point().optime);
        let mut search = CommonPointSearch::new(committed, last);
        let mut local = Local::new();
        let mut remote = Backwards::open(source).await?;
        let mut affected = Affected::new();
        let mut newest: Option<Fetched> = None;
        let mut kept = None;
        loop {
            let entry = match search.awaited() {
                Oplog::Local => {
                    // The one before was of this branch, and goes.
                    if let Some(gone) = newest.take() {
                        note(&gone, &mut affected)?;
                        if self.options.planted_fault.keeps(&gone) {
                            kept = Some(gone);
                        }
                    }
                    newest = local.next().await?;
                    newest.as_ref().map(|entry| entry.optime)
                }
                Oplog::Source => remote.next().await?.map(|entry| entry.optime),
            };
            let step = search.feed(entry);
            let step = step.map_err(|error| Error::internal(error.to_string()))?;
            if let SearchStep::Found {
                common,
                rolled_back,
            } = step
            {
                return Ok(Parting {
                    common,
                    rolled_back,
                    affected,
                    kept,
                });
            }
        }
    }
}

/// This node's oplog, from its end.
struct Local {
    cursor: pinion_storage::LogCursor,
    ahead: std::vec::IntoIter<(Timestamp, bytes::Bytes)>,
}

impl Local {
    fn new() -> Local {
        Local {
            cursor: storage().log_backward(Timestamp::MAX),
            ahead: Vec::new().into_iter(),
        }
    }

    async fn next(&mut self) -> Result<Option<Fetched>> {
        if self.ahead.len() == 0 {
            let read = self.cursor.next_batch(ROLLBACK_BATCH, ROLLBACK_BATCH_BYTES);
            self.ahead = read.await.map_err(from_log_error)?.into_iter();
        }
        self.ahead
            .next()
            .map(|(_, entry)| Fetched::read(entry))
            .transpose()
    }
}

/// The source's oplog, from its end.
struct Backwards {
    remote: PooledConnection,
    cursor: i64,
    ahead: std::vec::IntoIter<Fetched>,
}

impl Backwards {
    async fn open(source: &HostPort) -> std::result::Result<Backwards, NoRollback> {
        let remote = Peers::here().open(source, FETCH_TIMEOUT).await;
        let mut opened = Backwards {
            remote: remote.map_err(|error| unreachable(&error.to_string()))?,
            cursor: 0,
            ahead: Vec::new().into_iter(),
        };
        let find = rawdoc! {
            "find": "oplog.rs",
            "sort": { "$natural": -1 },
            "projection": { "ts": 1, "t": 1 },
            "batchSize": ROLLBACK_BATCH as i32,
            "readConcern": { "level": "local" },
            "$db": "local",
            "$readPreference": { "mode": "secondaryPreferred" },
        };
        opened.ask(&find).await?;
        Ok(opened)
    }

    async fn ask(&mut self, command: &RawDocument) -> std::result::Result<(), NoRollback> {
        let reply = timeout(FETCH_TIMEOUT, self.remote.run(command)).await;
        let reply = reply.map_err(|_| unreachable("it does not answer"))?;
        let reply = reply.map_err(|error| unreachable(&error.to_string()))?;
        self.cursor = cursor_of(reply.body());
        let entries = entries_of(&reply).map_err(|_| unreachable("its reply has no batch"))?;
        self.ahead = entries.into_iter();
        Ok(())
    }

    async fn next(&mut self) -> std::result::Result<Option<Fetched>, NoRollback> {
        if self.ahead.len() == 0 && self.cursor != 0 {
            let more = rawdoc! {
                "getMore": self.cursor,
                "collection": "oplog.rs",
                "batchSize": ROLLBACK_BATCH as i32,
                "readConcern": { "level": "local" },
                "$db": "local",
                "$readPreference": { "mode": "secondaryPreferred" },
            };
            self.ask(&more).await?;
        }
        Ok(self.ahead.next())
    }
}

fn unreachable(why: &str) -> NoRollback {
    NoRollback::Unreachable(why.to_owned())
}

/// Notes the documents that an entry has written.
fn note(entry: &Fetched, affected: &mut Affected) -> Result<()> {
    let document = RawDocument::from_bytes(&entry.bytes)
        .map_err(|error| Error::failed_to_parse(error.to_string()))?;
    let inner = pinion_bson::get(document, "o");
    let operations = match inner {
        Some(RawBsonRef::Document(o)) => pinion_bson::get(o, "applyOps"),
        _ => None,
    };
    let Some(RawBsonRef::Array(operations)) = operations else {
        note_operation(document, affected);
        return Ok(());
    };
    for operation in pinion_bson::values(operations) {
        if let RawBsonRef::Document(operation) = operation {
            note_operation(operation, affected);
        }
    }
    Ok(())
}

/// What is deleted is not there, so only inserts and updates name something that is lost.
fn note_operation(operation: &RawDocument, affected: &mut Affected) {
    let names_it = match pinion_bson::get(operation, "op").and_then(|op| op.as_str()) {
        Some("i") => "o",
        Some("u") => "o2",
        _ => return,
    };
    let key = match pinion_bson::get(operation, names_it) {
        Some(RawBsonRef::Document(key)) => pinion_bson::get(key, "_id"),
        _ => None,
    };
    let uuid = match pinion_bson::get(operation, "ui") {
        Some(RawBsonRef::Binary(binary)) => <[u8; 16]>::try_from(binary.bytes).ok(),
        _ => None,
    };
    if let (Some(id), Some(uuid)) = (key, uuid) {
        let ids = affected.entry(Uuid(uuid)).or_default();
        ids.push(RawBson::from(id));
    }
}
