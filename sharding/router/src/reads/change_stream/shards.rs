//! The streams of the shards: each has one request under way while it has nothing left.
//!
//! A request runs in a task of its own, so that what it brings stays when the client's `getMore`
//! ends before it. A shard without changes is asked for a note in its log when an event of another
//! one waits for it: its stream answers then.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_query::{CHANGE_STREAM_MARK, PartNumber, ResumeToken};
use pinion_runtime::sync::{Notified, Notify};
use pinion_runtime::{Instant, Queue, now, spawn};
use pinion_service::cursors::DocumentStream;
use pinion_sharding_protocol::ShardId;
use pinion_wire::idl::{GenericArguments, ReadPreference};
use pinion_wire::{ClientInfo, Error, Invocation, OpContext, Result};

use crate::clock::{append_gossip, bson_time, learn_from};
use crate::cluster::Cluster;
use crate::cursor::RemoteStream;
use crate::hosts::{Hosts, Retry};
use crate::limits::{AWAIT_DATA, CHANGE_MARK_PAUSE, REPLY_PATIENCE};

/// What a shard has given.
pub(super) struct ShardBatch {
    pub events: Vec<(ResumeToken, Bytes)>,
    pub mark: ResumeToken,
    pub is_last: bool,
}

/// How a request has ended: with the stream that it was sent for.
type Outcome = Result<(RemoteStream, ShardBatch)>;

/// What has come and was not looked at.
#[derive(Default)]
struct Arrived {
    batches: RefCell<VecDeque<(PartNumber, Outcome)>>,
    changed: Notify,
}

struct ShardStream {
    shard: ShardId,
    set: String,
    /// `None` while a request is under way, and at the end.
    idle: Option<RemoteStream>,
    /// The last note that was asked for: for which time, and when.
    noted: Option<(Timestamp, Instant)>,
}

/// The streams of all shards.
pub(super) struct ShardStreams {
    parts: BTreeMap<PartNumber, ShardStream>,
    arrived: Rc<Arrived>,
    /// What all requests have of the client's.
    args: GenericArguments,
    db: Box<str>,
}

impl ShardStreams {
    pub(super) fn new(cmd: &Invocation) -> ShardStreams {
        ShardStreams {
            parts: BTreeMap::new(),
            arrived: Rc::default(),
            args: GenericArguments {
                lsid: cmd.ctx.args.lsid,
                comment: cmd.ctx.args.comment.clone(),
                ..GenericArguments::default()
            },
            db: cmd.db().into(),
        }
    }

    pub(super) fn add(
        &mut self,
        part: PartNumber,
        (shard, set): (ShardId, String),
        stream: Option<RemoteStream>,
    ) {
        let stream = ShardStream {
            shard,
            set,
            idle: stream,
            noted: None,
        };
        self.parts.insert(part, stream);
    }

    pub(super) fn has_shard(&self, shard: &str) -> bool {
        self.parts.values().any(|part| part.shard == *shard)
    }

    /// Takes out the parts whose shards are not wanted any more.
    pub(super) fn remove_unless(
        &mut self,
        is_wanted: impl Fn(&ShardId) -> bool,
    ) -> Vec<PartNumber> {
        let gone = self
            .parts
            .iter()
            .filter(|(_, part)| !is_wanted(&part.shard));
        let gone: Vec<PartNumber> = gone.map(|(number, _)| *number).collect();
        gone.iter()
            .for_each(|number| drop(self.parts.remove(number)));
        gone
    }

    /// Asks a part for what comes next, unless it is asked already.
    pub(super) fn ask(&mut self, number: PartNumber) {
        let Some(part) = self.parts.get_mut(&number) else {
            return;
        };
        let Some(stream) = part.idle.take() else {
            return;
        };
        let ctx = OpContext::new(
            0,
            Arc::new(ClientInfo::internal()),
            pinion_command::row("getMore"),
            &self.db,
            self.args.clone(),
            now().as_nanos(),
        );
        let arrived = Rc::downgrade(&self.arrived);
        spawn(Queue::Foreground, ask_one(arrived, number, stream, ctx));
    }

    /// The next batch that has come.
    ///
    /// # Errors
    /// The shard's, as a client gets it.
    pub(super) fn next_arrived(&mut self) -> Result<Option<(PartNumber, ShardBatch)>> {
        loop {
            let next = self.arrived.batches.borrow_mut().pop_front();
            let Some((number, outcome)) = next else {
                return Ok(None);
            };
            // Its shard may be gone.
            let Some(part) = self.parts.get_mut(&number) else {
                continue;
            };
            let (stream, batch) = outcome?;
            if !batch.is_last {
                part.idle = Some(stream);
            }
            return Ok(Some((number, batch)));
        }
    }

    /// Wakes when more has come than was looked at before this call.
    pub(super) fn changed(&self) -> Notified {
        self.arrived.changed.notified()
    }

    /// Whether something has come that was not looked at.
    pub(super) fn has_arrived(&self) -> bool {
        !self.arrived.batches.borrow().is_empty()
    }

    /// Has shards write a note behind this time, for which an event waits. The first is only
    /// wanted where the shard has written nothing since; if that does not help, what it has written
    /// wakes no stream, and a note does.
    pub(super) fn ask_for_marks(&mut self, late: &[PartNumber], time: Timestamp) {
        for number in late {
            let Some(part) = self.parts.get_mut(number) else {
                continue;
            };
            let is_first = part.noted.is_none_or(|(noted, _)| noted != time);
            let is_due = part
                .noted
                .is_none_or(|(_, at)| now().saturating_since(at) >= CHANGE_MARK_PAUSE);
            if is_first || is_due {
                part.noted = Some((time, now()));
                let limit = is_first.then(|| time.next());
                spawn(Queue::Background, write_mark(part.set.clone(), limit));
            }
        }
    }
}

async fn ask_one(
    arrived: Weak<Arrived>,
    number: PartNumber,
    mut stream: RemoteStream,
    ctx: OpContext,
) {
    stream.give_up_at(now() + AWAIT_DATA);
    let outcome = match stream.next_batch(&ctx, usize::MAX).await {
        Ok(batch) => {
            let token = stream.token_behind(&[], true);
            read_batch(&batch.documents, token, batch.id == 0).map(|batch| (stream, batch))
        }
        Err(error) => Err(error),
    };
    // Where the client's cursor is gone the shard's is closed with this.
    if let Some(arrived) = arrived.upgrade() {
        arrived.batches.borrow_mut().push_back((number, outcome));
        arrived.changed.notify_all();
    }
}

/// A batch of a shard's stream: events with their tokens, and the mark behind them.
///
/// # Errors
/// It has none.
pub(super) fn read_batch(
    documents: &[Bytes],
    mark: Option<RawDocumentBuf>,
    is_last: bool,
) -> Result<ShardBatch> {
    let malformed = || Error::internal("a shard's event has no resume token");
    let mut events = Vec::with_capacity(documents.len());
    for bytes in documents {
        let document = RawDocument::from_bytes(bytes).map_err(|_| malformed())?;
        let id = pinion_bson::get(document, "_id").and_then(|id| id.as_document());
        events.push((
            ResumeToken::parse(id.ok_or_else(malformed)?)?,
            bytes.clone(),
        ));
    }
    let mark = match (mark, events.last()) {
        (Some(mark), _) => ResumeToken::parse(&mark)?,
        (None, Some((token, _))) => token.clone(),
        (None, None) => return Err(malformed()),
    };
    Ok(ShardBatch {
        events,
        mark,
        is_last,
    })
}

/// Has the primary of a shard write a note, only if it has written nothing up to `limit`.
async fn write_mark(set: String, limit: Option<Timestamp>) {
    let cluster = Cluster::here();
    let mut note = DocBuilder::new();
    note.append("appendOplogNote", 1i32);
    note.start_document("data")
        .append("msg", CHANGE_STREAM_MARK)
        .end();
    if let Some(limit) = limit {
        note.append("maxClusterTime", bson_time(limit));
    }
    append_gossip(&mut note, &*cluster.clock);
    note.append("$db", "admin");
    let (note, primary) = (note.finish(), ReadPreference::default());
    let limit = REPLY_PATIENCE;
    match Hosts::here()
        .run(&set, &primary, &note, limit, Retry::Never)
        .await
    {
        Ok((_, reply)) => {
            learn_from(&*cluster.clock, reply.body());
        }
        // It has written since, or cannot: the stream continues when it has more.
        Err(error) => {
            tracing::debug!(target: "QUERY", id = 7_300_021u64, error = error.message, set, "A shard has written no mark for change streams");
        }
    }
}
