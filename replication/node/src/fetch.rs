//! Fetching the oplog of a sync source: a cursor on it that waits for more, from this node's last
//! entry on.

use std::rc::Rc;

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, Timestamp as BsonTimestamp, rawdoc};
use pinion_clock::{OpTime, Timestamp};
use pinion_exec::replication_parameters;
use pinion_replication_protocol::config::HostPort;
use pinion_replication_protocol::decision::{FirstBatch, FirstBatchVerdict, judge_first_batch};
use pinion_replication_protocol::message::{
    OPLOG_QUERY_DATA, OplogQueryMetadata, REPL_DATA, ReplSetMetadata,
};
use pinion_replication_protocol::node::{self, Input, SourceFailure};
use pinion_runtime::{Duration, now, timeout};
use pinion_server::{PooledConnection, RemoteError, RemoteReply};
use pinion_service::fail_points::fetching_resumed;
use pinion_wire::{Error, ErrorCode};

use crate::driver::Driver;
use crate::follower::Fetched;
use crate::limits::{FETCH_TIMEOUT, PROBE_TIMEOUT, SILENCE};
use crate::peers::Peers;

/// Why fetching ends.
pub(crate) enum End {
    /// The connection broke, or the source refused: it may go better the next time.
    Broken(String),
    /// This source is of no use.
    Failed(SourceFailure),
    /// The source's oplog does not have this node's last entry.
    NoCommonEntry,
}

impl From<RemoteError> for End {
    fn from(error: RemoteError) -> End {
        match error.refusal().map(|refusal| refusal.code) {
            Some(ErrorCode::CAPPED_POSITION_LOST) => End::Failed(SourceFailure::TooStale),
            _ => End::Broken(error.to_string()),
        }
    }
}

impl From<Error> for End {
    fn from(error: Error) -> End {
        End::Broken(error.message)
    }
}

/// Whether a member is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Answers,
    /// It refuses the connection.
    Gone,
    Silent,
}

/// A cursor on a source's oplog.
struct Fetch {
    remote: PooledConnection,
    cursor: i64,
    rollback_id: i32,
    /// The next reply comes by itself.
    streams: bool,
}

impl Driver {
    /// Fetches from a source until it is of no use any more, or the future is dropped.
    pub(crate) async fn fetch(self: Rc<Self>, source: HostPort) {
        match self.fetch_until_end(&source).await {
            Some(failure) => self.step(Input::SourceFailed { source, failure }),
            None => self.step(Input::NoCommonEntry { source }),
        }
    }

    /// Fetches from a source until it is of no use any more, and gives why; `None` if its oplog
    /// does not have this node's last entry.
    pub(crate) async fn fetch_until_end(
        self: &Rc<Self>,
        source: &HostPort,
    ) -> Option<SourceFailure> {
        let mut failures = 0;
        loop {
            let before = self.follower.last();
            let end = match self.fetch_once(source).await {
                Ok(never) => match never {},
                Err(end) => end,
            };
            // What was fetched meanwhile shows that the source is worth another try.
            failures = match self.follower.last() > before {
                true => 1,
                false => failures + 1,
            };
            let failure = match end {
                End::Broken(why) => match self.probe(source).await {
                    Presence::Gone => {
                        tracing::info!(target: "REPL", id = 7_400_005u64, source = %source, why, "The sync source is gone");
                        self.step(Input::Unreachable(source.clone()));
                        SourceFailure::Unreachable
                    }
                    // Its process may be there, or be heard by others: the machine finds out.
                    Presence::Silent => {
                        tracing::info!(target: "REPL", id = 7_400_006u64, source = %source, why, "The sync source is silent");
                        SourceFailure::Unreachable
                    }
                    Presence::Answers if failures <= self.fetcher_restarts() => {
                        tracing::info!(target: "REPL", id = 21_275u64, source = %source, why, failures, "Recreating cursor for oplog fetcher due to error");
                        continue;
                    }
                    Presence::Answers => {
                        tracing::info!(target: "REPL", id = 21_274u64, source = %source, why, "Error returned from oplog query");
                        SourceFailure::Unreachable
                    }
                },
                End::Failed(failure) => failure,
                End::NoCommonEntry => return None,
            };
            return Some(failure);
        }
    }

    /// How often fetching restarts with the same source before it is given up.
    fn fetcher_restarts(&self) -> u32 {
        let set = replication_parameters();
        let restarts = match self.initial_sync.borrow().is_some() {
            true => set.initial_sync_fetcher_restarts,
            false => set.steady_fetcher_restarts,
        };
        restarts.unsigned_abs()
    }

    /// What becomes of a member, which was to answer, when it is asked again.
    async fn probe(&self, host: &HostPort) -> Presence {
        self.peers.forget(host);
        let ping = rawdoc! { "ping": 1, "$db": "admin" };
        match self.peers.run(host, &ping, PROBE_TIMEOUT).await {
            Err(error) if error.is_refused_connection() => Presence::Gone,
            Err(RemoteError::Broken(_) | RemoteError::NoConnection(_)) => Presence::Silent,
            Ok(_) | Err(RemoteError::Protocol(_) | RemoteError::Refused(_)) => Presence::Answers,
        }
    }

    async fn fetch_once(
        self: &Rc<Self>,
        source: &HostPort,
    ) -> Result<std::convert::Infallible, End> {
        let last = self.follower.last();
        let mut fetch = Fetch::open(source).await?;
        self.metrics.opened();
        let reply = fetch.find(last, self.term()).await?;
        let entries = entries_of(&reply)?;
        let (repl, query) = metadata_of(reply.body())?;
        let ends = entries.first().zip(entries.last());
        let verdict = judge_first_batch(
            last,
            &FirstBatch {
                source_oldest: fetch.oldest().await?,
                source_last_applied: query.last_applied,
                entries: ends.map(|(first, last)| (first.optime, last.optime)),
            },
        );
        match verdict {
            FirstBatchVerdict::Follow => {}
            FirstBatchVerdict::SourceBehind => return Err(End::Failed(SourceFailure::Behind)),
            FirstBatchVerdict::TooStale => return Err(End::Failed(SourceFailure::TooStale)),
            FirstBatchVerdict::Rollback => return Err(End::NoCommonEntry),
            FirstBatchVerdict::NothingToContinue => {
                return Err(End::Failed(SourceFailure::Stopped));
            }
        }
        // The first one is the one that this node has.
        let new = entries.into_iter().skip(1).collect();
        self.take_batch(source, &fetch, new, (repl, query)).await?;
        loop {
            let asked = now();
            let reply = fetch.more(self.term(), self.committed()).await?;
            self.metrics.batch(asked.elapsed());
            let metadata = metadata_of(reply.body())?;
            let entries = entries_of(&reply)?;
            self.take_batch(source, &fetch, entries, metadata).await?;
            if fetch.cursor == 0 {
                return Err(End::Broken("the source closed the cursor".into()));
            }
        }
    }

    async fn take_batch(
        self: &Rc<Self>,
        source: &HostPort,
        fetch: &Fetch,
        entries: Vec<Fetched>,
        (repl, query): (ReplSetMetadata, OplogQueryMetadata),
    ) -> Result<(), End> {
        fetching_resumed().await;
        let count = entries.len() as u64;
        let bytes = entries.iter().map(|entry| entry.bytes.len()).sum();
        self.metrics.fetched(entries.len(), bytes);
        let mut last = self.follower.last();
        for entry in &entries {
            if entry.optime.ts <= last.ts || entry.optime.term < last.term {
                return Err(End::Broken("the source's entries are out of order".into()));
            }
            last = entry.optime;
        }
        self.hand_over(entries).await;
        self.step(Input::Fetched(node::Fetched {
            source: source.clone(),
            source_rollback_id: fetch.rollback_id,
            repl,
            query,
            entries: count,
            last_fetched: last,
        }));
        Ok(())
    }

    fn term(&self) -> i64 {
        self.with_node(|node| node.term().0)
    }

    fn committed(&self) -> OpTime {
        self.with_node(|node| node.commit_point().optime)
    }
}

impl Fetch {
    async fn open(source: &HostPort) -> Result<Fetch, End> {
        let opened = timeout(FETCH_TIMEOUT, async {
            let mut remote = Peers::here().open(source, FETCH_TIMEOUT).await?;
            let asked = remote
                .run(&rawdoc! { "replSetGetRBID": 1, "$db": "admin" })
                .await?;
            Ok::<_, RemoteError>((remote, asked))
        });
        let (remote, asked) = opened.await.map_err(|_| timed_out())??;
        let rollback_id =
            pinion_bson::get(asked.body(), "rbid").and_then(pinion_wire::idl::i32_clamped);
        Ok(Fetch {
            remote,
            cursor: 0,
            rollback_id: rollback_id.unwrap_or(0),
            streams: false,
        })
    }

    /// The first batch, from this node's last entry on.
    async fn find(&mut self, last: OpTime, term: i64) -> Result<RemoteReply, End> {
        let secs = replication_parameters().initial_find_secs.unsigned_abs();
        let find_time = Duration::from_secs(secs.into());
        let mut find = rawdoc! {
            "find": "oplog.rs",
            "filter": { "ts": { "$gte": bson_ts(last.ts) } },
            "tailable": true,
            "awaitData": true,
            "maxTimeMS": find_time.as_millis() as i64,
            "term": term,
            "readConcern": { "level": "local", "afterClusterTime": BsonTimestamp { time: 0, increment: 1 } },
        };
        finish(&mut find);
        let reply = timeout(find_time + FETCH_TIMEOUT, self.remote.run(&find));
        let reply = reply.await.map_err(|_| timed_out())??;
        self.cursor = cursor_of(reply.body());
        Ok(reply)
    }

    /// The next batch. The source sends it when there is something new to send: entries, or a
    /// commit point beyond this.
    async fn more(&mut self, term: i64, committed: OpTime) -> Result<RemoteReply, End> {
        if !self.streams {
            let mut more = rawdoc! {
                "getMore": self.cursor,
                "collection": "oplog.rs",
                "maxTimeMS": AWAIT.as_millis() as i64,
                "term": term,
                "lastKnownCommittedOpTime": { "ts": bson_ts(committed.ts), "t": committed.term.0 },
            };
            finish(&mut more);
            if !replication_parameters().fetcher_uses_exhaust {
                let reply = timeout(AWAIT + SILENCE, self.remote.run(&more));
                let reply = reply.await.map_err(|_| timed_out())??;
                self.cursor = cursor_of(reply.body());
                return Ok(reply);
            }
            self.remote.stream(&more).await?;
        }
        let reply = timeout(AWAIT + SILENCE, self.remote.next());
        let reply = reply.await.map_err(|_| timed_out())??;
        self.streams = reply.more_to_come();
        self.cursor = cursor_of(reply.body());
        Ok(reply)
    }

    /// The oldest entry of the source's oplog.
    async fn oldest(&mut self) -> Result<OpTime, End> {
        let find = rawdoc! {
            "find": "oplog.rs",
            "sort": { "$natural": 1 },
            "limit": 1,
            "projection": { "ts": 1, "t": 1 },
            "readConcern": { "level": "local" },
            "$db": "local",
            "$readPreference": { "mode": "secondaryPreferred" },
        };
        let reply = timeout(FETCH_TIMEOUT, self.remote.run(&find));
        let reply = reply.await.map_err(|_| timed_out())??;
        match entries_of(&reply)?.first() {
            Some(entry) => Ok(entry.optime),
            None => Err(End::Failed(SourceFailure::NoOplog)),
        }
    }
}

/// How long the source waits for something new before it answers with nothing: so often it shows
/// that it is there.
const AWAIT: Duration = Duration::from_millis(500);

fn timed_out() -> End {
    End::Broken("the source does not answer".into())
}

pub(crate) fn bson_ts(ts: Timestamp) -> BsonTimestamp {
    BsonTimestamp {
        time: ts.secs(),
        increment: ts.inc(),
    }
}

/// What every read of the oplog says.
fn finish(command: &mut RawDocumentBuf) {
    command.append(pinion_bson::cstr!("$db"), "local");
    command.append(
        pinion_bson::cstr!("$readPreference"),
        rawdoc! { "mode": "secondaryPreferred" },
    );
    for name in [REPL_DATA, OPLOG_QUERY_DATA] {
        let name = pinion_bson::CString::try_from(name).expect("a name without zero bytes");
        command.append(name, 1);
    }
}

pub(crate) fn cursor_of(reply: &RawDocument) -> i64 {
    let cursor = reply.get_document("cursor");
    cursor.and_then(|cursor| cursor.get_i64("id")).unwrap_or(0)
}

/// The entries of a batch, sharing the reply's memory.
pub(crate) fn entries_of(reply: &RemoteReply) -> Result<Vec<Fetched>, End> {
    let body = reply.body();
    let malformed = || End::Broken("a reply to a read of the oplog has no batch".into());
    let Some(RawBsonRef::Document(cursor)) = pinion_bson::get(body, "cursor") else {
        return Err(malformed());
    };
    let batch =
        pinion_bson::get(cursor, "firstBatch").or_else(|| pinion_bson::get(cursor, "nextBatch"));
    let Some(RawBsonRef::Array(batch)) = batch else {
        return Err(malformed());
    };
    let whole = reply.body_bytes();
    let mut entries = Vec::new();
    for entry in pinion_bson::values(batch) {
        let RawBsonRef::Document(entry) = entry else {
            return Err(malformed());
        };
        entries.push(Fetched::read(share(&whole, entry.as_bytes()))?);
    }
    Ok(entries)
}

/// A part of these bytes, without a copy.
fn share(whole: &Bytes, part: &[u8]) -> Bytes {
    whole.slice_ref(part)
}

fn metadata_of(reply: &RawDocument) -> Result<(ReplSetMetadata, OplogQueryMetadata), End> {
    let missing = |name: &str| End::Broken(format!("the source's reply has no {name}"));
    let repl = ReplSetMetadata::of_message(reply)?.ok_or_else(|| missing(REPL_DATA))?;
    let query = OplogQueryMetadata::of_message(reply)?.ok_or_else(|| missing(OPLOG_QUERY_DATA))?;
    Ok((repl, query))
}
