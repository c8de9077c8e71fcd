//! Cursors of clients over those of nodes.
//!
//! A client's cursor is one of the router's own table, so it can be listed, killed and timed out
//! here; behind it stands the cursor of a node, which is closed with it.

use std::cell::Cell;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_runtime::{Duration, Instant, LocalBoxFuture, Queue, spawn};
use pinion_server::{RemoteReply, Resend};
use pinion_service::cursors::{Cursor, DocumentStream, Documents, Filled, cursors, fill};
use pinion_service::interrupt::interruptible;
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_wire::idl::{Namespace, append_lsid};
use pinion_wire::{Error, HostPort, Invocation, OpContext, Reply, Result};

use crate::clock::{append_gossip, learn_from};
use crate::cluster::Cluster;
use crate::dispatch::Answer;
use crate::hosts::Hosts;
use crate::limits::{AWAIT_DATA, CONFIG_READ_TIME, MAX_CLOSING_CURSORS, REPLY_PATIENCE};
use crate::reply::{passed_on, passed_on_with_cursor, refused};
use crate::request::time_left;

/// How the documents of a cursor come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CursorKind {
    pub is_tail: bool,
    pub awaits_data: bool,
    pub is_change_stream: bool,
    pub no_timeout: bool,
}

/// A cursor of a node.
struct RemoteCursor {
    set: String,
    host: HostPort,
    ns: Namespace,
    /// 0 once it is exhausted.
    id: Cell<i64>,
}

impl Drop for RemoteCursor {
    fn drop(&mut self) {
        let id = self.id.get();
        if id != 0
            && let Some(closing) = pinion_runtime::try_core_local::<ClosingCursors>()
        {
            closing.close(&self.set, &self.host, &self.ns, id);
        }
    }
}

/// The documents of a node's cursor.
pub(crate) struct RemoteStream {
    cursor: RemoteCursor,
    kind: CursorKind,
    /// Until when a `getMore` may wait for data.
    waits_until: Cell<Option<Instant>>,
    /// `postBatchResumeToken` of the last batch.
    token: RefCell<Option<RawDocumentBuf>>,
}

impl DocumentStream for RemoteStream {
    fn fill<'a>(
        &'a mut self,
        _stash: &'a mut Option<Bytes>,
        ctx: &'a OpContext,
        max_documents: usize,
    ) -> LocalBoxFuture<'a, Result<Filled>> {
        Box::pin(async move {
            let batch = self.next_batch(ctx, max_documents).await?;
            ctx.work().returned(batch.documents.len() as u64);
            Ok(Filled {
                documents: batch.documents,
                exhausted: batch.id == 0,
            })
        })
    }

    fn is_tail(&self) -> bool {
        self.kind.is_tail
    }

    fn awaits_data(&self) -> bool {
        self.kind.awaits_data
    }

    fn is_change_stream(&self) -> bool {
        self.kind.is_change_stream
    }

    fn give_up_at(&mut self, until: Instant) {
        self.waits_until.set(Some(until));
    }

    fn token_behind(&mut self, _batch: &[Bytes], _is_all: bool) -> Option<RawDocumentBuf> {
        self.token.take()
    }
}

impl RemoteStream {
    /// The cursor that a command has made at a node, with its first batch.
    ///
    /// # Errors
    /// The reply has no cursor.
    pub(crate) fn open(answer: &Answer, kind: CursorKind) -> Result<(RemoteStream, RemoteBatch)> {
        let first = RemoteBatch::read(&answer.reply, "firstBatch")?;
        let ns = cursor_of(answer.body()).and_then(|cursor| pinion_bson::get(cursor, "ns"));
        let ns = match ns {
            Some(RawBsonRef::String(ns)) => Namespace::parse_sought(ns)?,
            _ => return Err(Error::internal("a node's cursor has no namespace")),
        };
        let stream = RemoteStream {
            cursor: RemoteCursor {
                set: answer.set.clone(),
                host: answer.host.clone(),
                ns,
                id: Cell::new(first.id),
            },
            kind,
            waits_until: Cell::new(None),
            token: RefCell::new(None),
        };
        Ok((stream, first))
    }

    /// The next batch.
    ///
    /// # Errors
    /// The node's, as a client gets it, and those of the way there.
    pub(crate) async fn next_batch(
        &self,
        ctx: &OpContext,
        max_documents: usize,
    ) -> Result<RemoteBatch> {
        let reply = self.get_more(ctx, max_documents).await?;
        let mut batch = RemoteBatch::read(&reply, "nextBatch")?;
        self.cursor.id.set(batch.id);
        self.token.replace(batch.token.take());
        Ok(batch)
    }

    async fn get_more(&self, ctx: &OpContext, max_documents: usize) -> Result<RemoteReply> {
        let cluster = Cluster::here();
        let RemoteCursor { set, host, ns, id } = &self.cursor;
        let mut more = DocBuilder::new();
        more.append("getMore", id.get())
            .append("collection", ns.collection());
        if max_documents != usize::MAX {
            more.append("batchSize", max_documents as i64);
        }
        let awaits = self.waits_until.get().filter(|_| self.kind.awaits_data);
        let awaits = awaits.map(|until| until.saturating_since(pinion_runtime::now()));
        if let Some(awaits) = awaits {
            more.append("maxTimeMS", (awaits.as_millis() as i64).max(1));
        }
        if let Some(lsid) = &ctx.args.lsid {
            append_lsid(&mut more, "lsid", lsid);
        }
        if is_in(ctx)
            && let Some(number) = ctx.args.txn_number
        {
            more.append("txnNumber", number).append("autocommit", false);
        }
        if let Some(comment) = &ctx.args.comment {
            more.append_raw("comment", comment.as_raw_bson_ref());
        }
        append_gossip(&mut more, &*cluster.clock);
        more.append("$db", ns.db());
        let more = more.finish();
        let hosts = Hosts::here();
        let limit = match awaits {
            Some(awaits) => awaits + REPLY_PATIENCE,
            None => time_left(ctx),
        };
        let running = hosts.run_at(set, host, &more, limit, Resend::Never);
        let outcome = interruptible(ctx, running).await?;
        let outcome = outcome.map_err(|error| {
            if error.refusal().is_some() {
                // It is gone there, whatever went wrong.
                id.set(0);
            }
            error.into_error()
        });
        match outcome {
            Ok(reply) => {
                if let Some(time) = learn_from(&*cluster.clock, reply.body()) {
                    ctx.wrote(time);
                }
                Ok(reply)
            }
            Err(error) => Err(refused(error)),
        }
    }
}

/// A batch of a node's cursor.
pub(crate) struct RemoteBatch {
    pub documents: Vec<Bytes>,
    /// 0 where nothing follows.
    pub id: i64,
    /// `postBatchResumeToken`.
    pub token: Option<RawDocumentBuf>,
}

impl RemoteBatch {
    /// The documents share the memory of the reply.
    fn read(reply: &RemoteReply, name: &str) -> Result<RemoteBatch> {
        let malformed = || Error::internal("a node's reply has no cursor");
        let bytes = reply.body_bytes();
        let cursor = cursor_of(reply.body()).ok_or_else(malformed)?;
        let documents = pinion_bson::get(cursor, name).and_then(|batch| batch.as_array());
        let documents = pinion_bson::values(documents.ok_or_else(malformed)?);
        let documents = documents
            .filter_map(|document| document.as_document())
            .map(|document| bytes.slice_ref(document.as_bytes()))
            .collect();
        let token = pinion_bson::get(cursor, "postBatchResumeToken");
        Ok(RemoteBatch {
            documents,
            id: id_of(cursor).ok_or_else(malformed)?,
            token: token
                .and_then(|token| token.as_document())
                .map(RawDocument::to_owned),
        })
    }
}

/// Documents that are all here.
pub(crate) struct CollectedStream(std::vec::IntoIter<Bytes>);

impl CollectedStream {
    pub(crate) fn new(documents: Vec<Bytes>) -> CollectedStream {
        CollectedStream(documents.into_iter())
    }
}

impl Documents for CollectedStream {
    async fn next(&mut self, _: &OpContext, _: usize) -> Result<Option<Bytes>> {
        Ok(self.0.next())
    }

    fn is_eof(&self) -> bool {
        self.0.len() == 0
    }

    fn is_tail(&self) -> bool {
        false
    }
}

impl DocumentStream for CollectedStream {
    fn fill<'a>(
        &'a mut self,
        stash: &'a mut Option<Bytes>,
        ctx: &'a OpContext,
        max_documents: usize,
    ) -> LocalBoxFuture<'a, Result<Filled>> {
        Box::pin(fill(self, stash, ctx, max_documents))
    }
}

fn cursor_of(reply: &RawDocument) -> Option<&RawDocument> {
    pinion_bson::get(reply, "cursor")?.as_document()
}

fn id_of(cursor: &RawDocument) -> Option<i64> {
    match pinion_bson::get(cursor, "id") {
        Some(RawBsonRef::Int64(id)) => Some(id),
        _ => None,
    }
}

/// The reply to a command that made a cursor at a node: with a cursor of this router's in its
/// place, if there is more to come.
///
/// # Errors
/// There are too many cursors.
pub(crate) fn first_reply(cmd: &Invocation, answer: &Answer, kind: CursorKind) -> Result<Reply> {
    let ctx = &cmd.ctx;
    let cursor = cursor_of(answer.body());
    let (Some(cursor), Some(id)) = (cursor, cursor.and_then(id_of)) else {
        return Ok(passed_on(answer.body()));
    };
    let batch = pinion_bson::get(cursor, "firstBatch").and_then(|batch| batch.as_array());
    let returned = batch.map_or(0, |batch| pinion_bson::values(batch).count()) as u64;
    metrics().counters.documents_returned.add(returned);
    ctx.work().returned(returned);
    if id == 0 {
        return Ok(passed_on(answer.body()));
    }
    let (stream, _) = RemoteStream::open(answer, kind)?;
    let own = keep_cursor(
        cmd,
        KeptCursor {
            ns: stream.cursor.ns.clone(),
            no_timeout: kind.no_timeout,
            stream: Box::new(stream),
            stash: None,
            returned,
        },
    )?;
    Ok(passed_on_with_cursor(answer.body(), own))
}

/// What is left of a command for its client's `getMore`.
pub(crate) struct KeptCursor {
    pub ns: Namespace,
    pub no_timeout: bool,
    pub stream: Box<dyn DocumentStream>,
    pub stash: Option<Bytes>,
    /// Documents of the first batch.
    pub returned: u64,
}

/// Keeps a cursor for the client of a command, and names it.
///
/// # Errors
/// There are too many cursors.
pub(crate) fn keep_cursor(cmd: &Invocation, kept: KeptCursor) -> Result<i64> {
    let ctx = &cmd.ctx;
    let (now, wall_ms) = (pinion_runtime::now(), pinion_runtime::wall_ms());
    let id = cursors().insert(Cursor {
        ns: kept.ns,
        reads: None,
        session: ctx.args.lsid,
        transaction: ctx.args.txn_number.filter(|_| is_in(ctx)),
        read_concern: ctx.read_concern,
        no_timeout: kept.no_timeout,
        stream: kept.stream,
        stash: kept.stash,
        originating: cmd.message.body_bytes(),
        plan_summary: None,
        created: now,
        last_used: now,
        created_ms: wall_ms,
        last_used_ms: wall_ms,
        batches: 1,
        returned: kept.returned,
        time_left: ctx.remaining_ns(now.as_nanos()).map(Duration::from_nanos),
    })?;
    ctx.work().left_cursor(id);
    Ok(id)
}

/// Closes the cursor that a node has answered with, if there is one.
pub(crate) fn close_cursor_of(answer: &Answer) {
    // It is closed as it is dropped.
    drop(RemoteStream::open(answer, CursorKind::default()));
}

/// The cursors of nodes that this core has given up and not closed yet.
#[derive(Default)]
pub(crate) struct ClosingCursors {
    waiting: RefCell<VecDeque<Closing>>,
    runs: Cell<bool>,
}

struct Closing {
    set: String,
    host: HostPort,
    ns: Namespace,
    id: i64,
}

impl ClosingCursors {
    fn close(&self, set: &str, host: &HostPort, ns: &Namespace, id: i64) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= MAX_CLOSING_CURSORS {
            return;
        }
        waiting.push_back(Closing {
            set: set.to_owned(),
            host: host.clone(),
            ns: ns.clone(),
            id,
        });
        if !self.runs.replace(true) {
            spawn(Queue::Background, close_all(pinion_runtime::core_local()));
        }
    }
}

async fn close_all(closing: Rc<ClosingCursors>) {
    loop {
        let Some(next) = closing.waiting.borrow_mut().pop_front() else {
            closing.runs.set(false);
            return;
        };
        let mut kill = DocBuilder::new();
        kill.append("killCursors", next.ns.collection());
        kill.start_array("cursors").push(next.id).end();
        kill.append("$db", next.ns.db());
        let hosts = Hosts::here();
        // If it does not arrive, the node closes the cursor when it was idle for long enough.
        let killed = hosts
            .run_at(
                &next.set,
                &next.host,
                &kill.finish(),
                CONFIG_READ_TIME,
                Resend::OverNewConnection,
            )
            .await;
        if let Err(error) = killed {
            tracing::debug!(target: "QUERY", id = 7_300_020u64, error = %error, host = %next.host, "A cursor of a node could not be closed");
        }
    }
}

/// How long a `getMore` waits for data if its client does not say how long.
pub(crate) fn await_time(ctx: &OpContext) -> Duration {
    match ctx.args.max_time_ms {
        Some(ms) => Duration::from_millis(u64::from(ms)),
        None => AWAIT_DATA,
    }
}
