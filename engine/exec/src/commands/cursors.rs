//! `getMore` and `killCursors`, and the reply that every cursor command gives.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::stored_document;
use pinion_clock::{OpTime, Timestamp};
use pinion_runtime::{Duration, LocalBoxFuture, Queue, offload_bounded};
use pinion_service::compute::compute_bytes;
use pinion_service::cursors::{Cursor, DocumentStream, Filled, core_of, cursors, not_found};
use pinion_service::fail_points::{fail_points, fails_get_more, time_out};
use pinion_service::metrics::{Gauge, metrics};
use pinion_service::ops::is_of_client;
use pinion_service::session_ids::is_in;
use pinion_wire::idl::{FieldReader, Namespace, ReadConcern, Types, missing_field};
use pinion_wire::{Error, Invocation, OpContext, Reply, Result};

use crate::acquire::acquire_read;
use crate::cluster_time::bson_time;
use crate::concern;
use crate::cursor_reads::Reads;
use crate::limits::{AWAIT_DATA, DEFAULT_FIRST_BATCH, LARGE_BATCH_BYTES};
use crate::topology::replica_set;

/// What a command that makes a cursor asks for.
pub(crate) struct CursorRequest {
    pub ns: Namespace,
    pub reads: Option<Reads>,
    pub batch_size: Option<usize>,
    pub single_batch: bool,
    pub no_timeout: bool,
}

impl CursorRequest {
    /// A cursor over a list that is made at once.
    pub(crate) fn of_list(ns: Namespace, batch_size: Option<usize>) -> CursorRequest {
        CursorRequest {
            ns,
            reads: None,
            batch_size,
            single_batch: false,
            no_timeout: false,
        }
    }
}

/// Reads the first batch of a stream and keeps the rest as a cursor; the reply's `cursor` field is
/// appended.
pub(crate) async fn first_batch(
    cmd: &Invocation,
    mut stream: Box<dyn DocumentStream>,
    request: CursorRequest,
    out: &mut DocBuilder,
) -> Result<()> {
    let ctx = &cmd.ctx;
    let max_documents = request.batch_size.unwrap_or(DEFAULT_FIRST_BATCH);
    let mut stash = None;
    let filled = stream.fill(&mut stash, ctx, max_documents).await?;
    let metrics = metrics();
    let counters = &metrics.counters;
    counters
        .documents_returned
        .add(filled.documents.len() as u64);
    let token = stream.token_behind(&filled.documents, stash.is_none());
    let mut id = 0;
    if !filled.exhausted && !request.single_batch {
        let body = cmd.body().as_bytes();
        let originating = compute_bytes(body.len(), || Bytes::copy_from_slice(body)).await;
        let (now, wall_ms) = (pinion_runtime::now(), pinion_runtime::wall_ms());
        let cursor = Cursor {
            ns: request.ns.clone(),
            reads: request.reads.map(|reads| Box::new(reads) as _),
            session: ctx.args.lsid,
            transaction: ctx.args.txn_number.filter(|_| is_in(ctx)),
            read_concern: ctx.read_concern,
            no_timeout: request.no_timeout,
            stream,
            stash,
            originating,
            plan_summary: ctx.work().plan_summary().map(Arc::from),
            created: now,
            last_used: now,
            created_ms: wall_ms,
            last_used_ms: wall_ms,
            batches: 1,
            returned: filled.documents.len() as u64,
            time_left: ctx.remaining_ns(now.as_nanos()).map(Duration::from_nanos),
        };
        id = cursors().insert(cursor)?;
    }
    ctx.work().left_cursor(id);
    let left = Left {
        id,
        ns: request.ns.as_str(),
        at: ctx.read_concern.at_cluster_time,
        token: token.as_deref(),
    };
    append_batch(out, "firstBatch", &filled.documents, left).await;
    Ok(())
}

/// As [`append_cursor`]. A batch may come to 16 MB, which the reply copies into fresh memory.
pub(super) async fn append_batch(
    out: &mut DocBuilder,
    batch: &str,
    documents: &[Bytes],
    left: Left<'_>,
) {
    let bytes: usize = documents.iter().map(Bytes::len).sum();
    if bytes <= LARGE_BATCH_BYTES {
        return append_cursor(out, batch, documents, left);
    }
    let append = || append_cursor(out, batch, documents, left);
    offload_bounded(append).await;
}

/// What a batch leaves behind it.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    /// 0 for no cursor.
    pub id: i64,
    pub ns: &'a str,
    /// The time of the snapshot, if the client asked for one.
    pub at: Option<Timestamp>,
    /// Where a change stream continues.
    pub token: Option<&'a RawDocument>,
}

impl<'a> Left<'a> {
    /// No cursor, and nothing that was read of a snapshot.
    pub(crate) fn nothing(ns: &'a str) -> Left<'a> {
        Left {
            id: 0,
            ns,
            at: None,
            token: None,
        }
    }
}

/// Appends `cursor: {firstBatch | nextBatch, id, ns}`, with `postBatchResumeToken` of a change
/// stream in front of the last two, and behind these `atClusterTime` of a snapshot.
pub(crate) fn append_cursor(
    out: &mut DocBuilder,
    batch: &str,
    documents: &[Bytes],
    left: Left<'_>,
) {
    // Beside its bytes a document costs its index as a name, its type and a terminator.
    let bytes: usize = documents.iter().map(|document| document.len() + 8).sum();
    out.reserve(bytes + left.ns.len() + 64);
    out.start_document("cursor").start_array(batch);
    for document in documents {
        out.push(stored_document(document));
    }
    out.end();
    if let Some(token) = left.token {
        out.append("postBatchResumeToken", token);
    }
    out.append("id", left.id).append("ns", left.ns);
    if let Some(at) = left.at {
        out.append("atClusterTime", bson_time(at));
    }
    out.end();
}

/// `getMore`, wherever the cursor was made.
pub(crate) async fn get_more(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let id = reader.long("getMore")?;
    let collection = match reader.value("collection") {
        Some(RawBsonRef::String(name)) => name,
        Some(other) => {
            return Err(reader.wrong_type("collection", other, Types::STRING));
        }
        None => {
            return Err(pinion_wire::idl::missing_field(
                reader.path().field("collection"),
            ));
        }
    };
    let ns = Namespace::sought(cmd.db(), collection)?;
    let batch_size = reader.opt_non_negative("batchSize")?;
    reader.opt_long("term")?;
    let committed = last_known_committed(reader.opt_doc(LAST_KNOWN_COMMITTED)?)?;
    reader.unsupported_unless_empty("includeQueryStatsMetrics", Types::BOOL)?;
    reader.finish()?;
    metrics().counters.getmore.inc();
    let core = core_of(id).ok_or_else(|| not_found(id))?;
    let max_documents = match batch_size {
        None | Some(0) => usize::MAX,
        Some(n) => n as usize,
    };
    let continued = if core == pinion_runtime::core_id() {
        continue_cursor(id, ns.clone(), max_documents, committed, &cmd.ctx).await?
    } else {
        let (ns, ctx) = (ns.clone(), cmd.ctx.clone());
        let running = crate::open_transactions::of(&ctx);
        let visit = running.as_ref().map(|running| running.visit());
        let continuing = pinion_runtime::submit_to(core, Queue::Foreground, move || async move {
            let continuing = continue_cursor(id, ns, max_documents, committed, &ctx);
            match visit {
                None => (continuing.await, None),
                Some(visit) => {
                    let (continued, known) = visit.run(continuing).await;
                    (continued, Some(known))
                }
            }
        });
        let (continued, known) = continuing.await;
        if let (Some(running), Some(known)) = (running, known) {
            running.come_back(known);
        }
        continued?
    };
    // Another member reads on in this one's oplog.
    if committed.is_some() && cmd.db() == crate::topology::LOCAL {
        let us = (pinion_runtime::now().as_nanos() - cmd.ctx.started_ns) / 1000;
        metrics().counters.oplog_get_mores.inc();
        metrics().counters.oplog_get_mores_us.add(us);
    }
    let next = continued.next;
    concern::confirm(&cmd.ctx, &continued.read_concern).await?;
    let mut out = Reply::new();
    let left = Left {
        id: next,
        ns: ns.as_str(),
        at: continued.read_concern.at_cluster_time,
        token: continued.token.as_deref(),
    };
    append_batch(&mut out, "nextBatch", &continued.documents, left).await;
    if cmd.exhaust_allowed && next != 0 {
        let sent = replica_set().map(|set| set.commit_point());
        out.stream_next(next_of_stream(cmd.body(), sent));
    }
    Ok(out)
}

/// What a `getMore` has read.
struct Continued {
    documents: Vec<Bytes>,
    /// The cursor that is left, or 0.
    next: i64,
    /// That of the command that made the cursor.
    read_concern: ReadConcern,
    /// Where a change stream continues.
    token: Option<RawDocumentBuf>,
}

fn continue_cursor(
    id: i64,
    ns: Namespace,
    max_documents: usize,
    known_committed: Option<Timestamp>,
    ctx: &OpContext,
) -> LocalBoxFuture<'_, Result<Continued>> {
    Box::pin(async move {
        let mut cursor = cursors().check_out(id, &ns, ctx)?;
        let awaits_data = cursor.stream.awaits_data();
        let waits = awaits_data && is_of_client(&ctx.client);
        let _waiting = waits.then(|| Gauge::up(|counters| &counters.awaiting_data));
        let read_concern = cursor.read_concern;
        if ctx.args.max_time_ms.is_some() && !awaits_data {
            // Only a cursor that waits for data takes a limit of the wait. It is left as it was.
            cursors().check_in(id, cursor);
            return Err(Error::bad_value(
                "cannot set maxTimeMS on getMore command for a non-awaitData cursor",
            ));
        }
        if cursor.stream.is_change_stream() {
            // From here on errors have the labels of change streams.
            ctx.work().reads_changes();
        }
        let fails_by_test = fail_points().any_is_on();
        if fails_by_test && let Err(error) = fails_get_more(ctx, ns.as_str()).await {
            cursors().check_in(id, cursor);
            return Err(error);
        }
        let mut guard = ForgetOnDrop { id, armed: true };
        // The time that the command which made the cursor had left counts. To one that waits for
        // data the time says how long.
        let started = pinion_runtime::now();
        let deadline_ns = match (awaits_data, cursor.time_left) {
            (false, Some(left)) => Some((started + left).as_nanos()),
            (false, None) => ctx.deadline_ns,
            (true, _) => None,
        };
        let deadline_ns = match fails_by_test {
            true => time_out(deadline_ns).await,
            false => deadline_ns,
        };
        let ctx = ctx.clone().with_deadline(deadline_ns);
        let until = started + await_time(&ctx);
        cursor.stream.give_up_at(until);
        ctx.work().continues(cursor.originating.clone());
        let Filled {
            documents,
            exhausted,
        } = loop {
            let filled = next_batch(&mut cursor, &ctx, max_documents).await?;
            // Whatever of the collection is held while it waits, a DDL would wait for.
            let waited = cursor.stream.wait(&ctx, cursor.reads.as_deref(), until);
            if !filled.documents.is_empty() || cursor.stream.has_news() {
                break filled;
            }
            let waits = pinion_runtime::now();
            let more = until_committed(known_committed, waited).await;
            let awaited = pinion_runtime::now().saturating_since(waits);
            ctx.work().awaited_data(awaited.as_nanos() as u64);
            if !more? {
                break filled;
            }
        };
        metrics()
            .counters
            .documents_returned
            .add(documents.len() as u64);
        let token = cursor
            .stream
            .token_behind(&documents, cursor.stash.is_none());
        ctx.work().left_cursor(if exhausted { 0 } else { id });
        if exhausted {
            return Ok(Continued {
                documents,
                next: 0,
                read_concern,
                token,
            });
        }
        let now = pinion_runtime::now();
        cursor.last_used = now;
        cursor.last_used_ms = pinion_runtime::wall_ms();
        cursor.batches += 1;
        cursor.returned += documents.len() as u64;
        if let Some(left) = &mut cursor.time_left {
            *left = left.saturating_sub(now.saturating_since(started));
        }
        guard.armed = false;
        cursors().check_in(id, cursor);
        Ok(Continued {
            documents,
            next: id,
            read_concern,
            token,
        })
    })
}

/// The command that comes next in a stream of replies, after this reply has sent the commit point
/// `sent`: the other member knows that then. If it stayed news, empty replies would follow one
/// another without a pause.
fn next_of_stream(body: &RawDocument, sent: Option<OpTime>) -> RawDocumentBuf {
    let (Some(_), Some(sent)) = (pinion_bson::get(body, LAST_KNOWN_COMMITTED), sent) else {
        return body.to_owned();
    };
    let mut next = DocBuilder::new();
    for (name, value) in pinion_bson::elements(body) {
        if name == LAST_KNOWN_COMMITTED {
            next.start_document(name)
                .append("ts", bson_time(sent.ts))
                .append("t", sent.term.0)
                .end();
        } else {
            next.append(name, value);
        }
    }
    next.finish()
}

/// The field of a `getMore` on the oplog that names the commit point which the other member knows.
const LAST_KNOWN_COMMITTED: &str = "lastKnownCommittedOpTime";

/// The commit point that another member knows, which asks for more of the oplog.
fn last_known_committed(document: Option<&RawDocument>) -> Result<Option<Timestamp>> {
    let Some(document) = document else {
        return Ok(None);
    };
    let path = pinion_wire::idl::Path::root("getMore");
    let path = path.field(LAST_KNOWN_COMMITTED);
    let ts = FieldReader::object(path, document)?.opt_timestamp("ts")?;
    ts.map(Some).ok_or_else(|| missing_field(path.field("ts")))
}

/// Waits for data, but no longer than until more is committed than a member knows: that is news for
/// it too.
async fn until_committed(
    known: Option<Timestamp>,
    waited: impl Future<Output = Result<bool>>,
) -> Result<bool> {
    let (Some(known), Some(set)) = (known, replica_set()) else {
        return waited.await;
    };
    let (mut waited, mut committed) = (pin!(waited), set.wait_commit_beyond(known));
    poll_fn(|cx| match committed.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Ok(false)),
        Poll::Pending => waited.as_mut().poll(cx),
    })
    .await
}

/// How long one that awaits data waits.
fn await_time(ctx: &OpContext) -> Duration {
    match ctx.args.max_time_ms {
        Some(ms) => Duration::from_millis(u64::from(ms)),
        None => AWAIT_DATA,
    }
}

/// Reads one batch behind the gate of the collection that the cursor reads.
async fn next_batch(cursor: &mut Cursor, ctx: &OpContext, max_documents: usize) -> Result<Filled> {
    let _acquired = match &cursor.reads {
        Some(reads) => {
            let snapshot = match crate::open_transactions::of(ctx) {
                Some(running) => Some(running.reads().at),
                None => cursor.read_concern.at_cluster_time,
            };
            reads.check(snapshot)?;
            let acquired = acquire_read(ctx, reads.ns().clone(), None).await?;
            reads.check(snapshot)?;
            Some(acquired)
        }
        None => None,
    };
    cursor.stream.resume().await?;
    let mut stash = cursor.stash.take();
    let filled = cursor.stream.fill(&mut stash, ctx, max_documents).await?;
    cursor.stash = stash;
    Ok(filled)
}

/// A `getMore` that ends in any other way than leaving something to read takes its cursor with it.
struct ForgetOnDrop {
    id: i64,
    armed: bool,
}

impl Drop for ForgetOnDrop {
    fn drop(&mut self) {
        if self.armed {
            cursors().forget(self.id);
        }
    }
}

/// `killCursors`.
pub(crate) async fn kill_cursors(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.sought("killCursors", cmd.db())?;
    let mut ids = Vec::new();
    for value in pinion_bson::values(reader.array("cursors")?) {
        match value {
            RawBsonRef::Int64(id) => ids.push(id),
            RawBsonRef::Null | RawBsonRef::Undefined => {}
            other => {
                let path = reader.path().field("cursors");
                return Err(pinion_wire::idl::wrong_type(
                    path.index(ids.len()),
                    other,
                    Types::LONG,
                ));
            }
        }
    }
    reader.finish()?;
    let (mut killed, mut missing) = (Vec::new(), Vec::new());
    for id in ids {
        let found = match core_of(id) {
            None => false,
            Some(core) => {
                pinion_runtime::submit_to(core, Queue::Foreground, move || async move {
                    cursors().kill(id)
                })
                .await
            }
        };
        if found {
            killed.push(id)
        } else {
            missing.push(id)
        }
    }
    let mut out = Reply::new();
    for (name, list) in [
        ("cursorsKilled", &killed),
        ("cursorsNotFound", &missing),
        ("cursorsAlive", &vec![]),
        ("cursorsUnknown", &vec![]),
    ] {
        out.start_array(name);
        for id in list {
            out.push(*id);
        }
        out.end();
    }
    Ok(out)
}

/// Options of `cursor: {batchSize}`, which several commands have.
pub(crate) fn batch_size_of(options: Option<&RawDocument>, command: &str) -> Result<Option<usize>> {
    let Some(options) = options else {
        return Ok(None);
    };
    let path = pinion_wire::idl::Path::root(command);
    let reader = pinion_wire::idl::FieldReader::object(path.field("cursor"), options)?;
    let size = reader.opt_non_negative("batchSize")?;
    reader.finish()?;
    Ok(size.map(|n| n as usize))
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;
    use pinion_clock::Term;

    use super::*;

    #[test]
    fn a_stream_sends_a_commit_point_once() {
        let check = |body: RawDocumentBuf, sent: Option<OpTime>, expected: &RawDocument| {
            assert_eq!(next_of_stream(&body, sent).as_bytes(), expected.as_bytes());
        };
        let body = |ts: Timestamp, t: i64| {
            let mut body = DocBuilder::new();
            body.append("getMore", 1i64)
                .start_document(LAST_KNOWN_COMMITTED)
                .append("ts", bson_time(ts))
                .append("t", t)
                .end()
                .append("$db", "local");
            body.finish()
        };
        let (old, new) = (Timestamp::new(5, 1), Timestamp::new(9, 2));
        let sent = OpTime::new(new, Term(3));
        check(body(old, 2), Some(sent), &body(new, 3));
        check(body(old, 2), None, &body(old, 2));
        let plain = rawdoc! { "getMore": 1_i64, "$db": "test" };
        check(plain.clone(), Some(sent), &plain);
    }
}
