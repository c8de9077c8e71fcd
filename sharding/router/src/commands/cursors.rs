//! `getMore` and `killCursors`.

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_runtime::{Queue, core_id, now, submit_to};
use pinion_service::cursors::{Cursor, core_of, cursors, not_found};
use pinion_service::fail_points::{fail_points, fails_get_more, time_out};
use pinion_service::metrics::{Gauge, metrics};
use pinion_wire::idl::{Namespace, Types, missing_field, wrong_type};
use pinion_wire::{Error, Invocation, OpContext, Reply, Result};

use crate::cursor::await_time;

/// `getMore`, wherever the cursor was made.
pub(super) async fn get_more(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let id = reader.long("getMore")?;
    let collection = match reader.value("collection") {
        Some(RawBsonRef::String(name)) => name,
        Some(other) => return Err(reader.wrong_type("collection", other, Types::STRING)),
        None => return Err(missing_field(reader.path().field("collection"))),
    };
    let ns = Namespace::sought(cmd.db(), collection)?;
    let batch_size = reader.opt_non_negative("batchSize")?;
    reader.opt_long("term")?;
    reader.opt_doc("lastKnownCommittedOpTime")?;
    reader.unsupported_unless_empty("includeQueryStatsMetrics", Types::BOOL)?;
    reader.finish()?;
    metrics().counters.getmore.inc();
    let core = core_of(id).ok_or_else(|| not_found(id))?;
    let max_documents = match batch_size {
        None | Some(0) => usize::MAX,
        Some(n) => n as usize,
    };
    let (of_cursor, ctx) = (ns.clone(), cmd.ctx.clone());
    let continued = match core == core_id() {
        true => continue_cursor(id, of_cursor, max_documents, &ctx).await?,
        false => {
            submit_to(core, Queue::Foreground, move || async move {
                continue_cursor(id, of_cursor, max_documents, &ctx).await
            })
            .await?
        }
    };
    let mut out = Reply::new();
    out.start_document("cursor").start_array("nextBatch");
    for document in &continued.documents {
        out.push(
            RawDocument::from_bytes(document)
                .map_err(|error| Error::internal(error.to_string()))?,
        );
    }
    out.end();
    if let Some(token) = &continued.token {
        out.append("postBatchResumeToken", &**token);
    }
    out.append("id", continued.next).append("ns", ns.as_str());
    out.end();
    if cmd.exhaust_allowed && continued.next != 0 {
        out.stream_next(cmd.body().to_owned());
    }
    Ok(out)
}

/// What a `getMore` has read.
struct Continued {
    documents: Vec<Bytes>,
    /// The cursor that is left, or 0.
    next: i64,
    /// Where a change stream continues.
    token: Option<RawDocumentBuf>,
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

async fn continue_cursor(
    id: i64,
    ns: Namespace,
    max_documents: usize,
    ctx: &OpContext,
) -> Result<Continued> {
    let mut cursor = cursors().check_out(id, &ns, ctx)?;
    let awaits_data = cursor.stream.awaits_data();
    let _waiting = awaits_data.then(|| Gauge::up(|counters| &counters.awaiting_data));
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
    let started = now();
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
    cursor.stream.give_up_at(started + await_time(&ctx));
    ctx.work().continues(cursor.originating.clone());
    let filled = read_on(&mut cursor, &ctx, max_documents).await?;
    let returned = filled.documents.len() as u64;
    metrics().counters.documents_returned.add(returned);
    let token = cursor.stream.token_behind(&filled.documents, true);
    let next = if filled.exhausted { 0 } else { id };
    ctx.work().left_cursor(next);
    if next != 0 {
        let ended = now();
        cursor.last_used = ended;
        cursor.last_used_ms = pinion_runtime::wall_ms();
        cursor.batches += 1;
        cursor.returned += returned;
        if let Some(left) = &mut cursor.time_left {
            *left = left.saturating_sub(ended.saturating_since(started));
        }
        guard.armed = false;
        cursors().check_in(id, cursor);
    }
    Ok(Continued {
        documents: filled.documents,
        next,
        token,
    })
}

async fn read_on(
    cursor: &mut Cursor,
    ctx: &OpContext,
    max_documents: usize,
) -> Result<pinion_service::cursors::Filled> {
    let mut stash = cursor.stash.take();
    let filled = cursor.stream.fill(&mut stash, ctx, max_documents).await;
    cursor.stash = stash;
    filled
}

/// `killCursors`.
pub(super) async fn kill_cursors(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.sought("killCursors", cmd.db())?;
    let mut ids = Vec::new();
    for value in pinion_bson::values(reader.array("cursors")?) {
        match value {
            RawBsonRef::Int64(id) => ids.push(id),
            RawBsonRef::Null | RawBsonRef::Undefined => {}
            other => {
                let path = reader.path().field("cursors");
                return Err(wrong_type(path.index(ids.len()), other, Types::LONG));
            }
        }
    }
    reader.finish()?;
    let (mut killed, mut missing) = (Vec::new(), Vec::new());
    for id in ids {
        let was_there = match core_of(id) {
            None => false,
            Some(core) => {
                let kill = move || async move { cursors().kill(id) };
                submit_to(core, Queue::Foreground, kill).await
            }
        };
        match was_there {
            true => killed.push(id),
            false => missing.push(id),
        }
    }
    let mut out = Reply::new();
    let lists = [
        ("cursorsKilled", killed),
        ("cursorsNotFound", missing),
        ("cursorsAlive", Vec::new()),
        ("cursorsUnknown", Vec::new()),
    ];
    for (name, list) in lists {
        out.start_array(name);
        for id in list {
            out.push(id);
        }
        out.end();
    }
    Ok(out)
}
