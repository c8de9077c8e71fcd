//! The cursor of a change stream over all shards.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_query::{ChangeMerge, ReleasedEvent, Resume, ResumeToken, Seen, TokenData};
use pinion_runtime::{Instant, LocalBoxFuture, join_all, now, timeout_at};
use pinion_service::cursors::{DocumentStream, Filled};
use pinion_service::interrupt::interruptible;
use pinion_service::limits::MAX_BATCH_BYTES;
use pinion_sharding_protocol::ShardId;
use pinion_wire::{Error, OpContext, Result};

use super::CHANGE_STREAM;
use super::request::{ChangesRequest, ShardStart};
use super::shards::{ShardBatch, ShardStreams, read_batch};
use super::stages::RouterStages;
use crate::cluster::Cluster;
use crate::cursor::RemoteStream;
use crate::dispatch::send_to;
use crate::hosts::Retry;
use crate::limits::CHANGE_MARK_PAUSE;
use crate::reply::refused;
use crate::shards::{Shards, current_shards};

/// The merged streams of all shards.
pub(super) struct ClusterChanges {
    request: ChangesRequest,
    merge: ChangeMerge,
    streams: ShardStreams,
    /// The shards that have a stream.
    known: Arc<Shards>,
    /// Looks for the event that the client has seen last.
    resume: Option<Resume>,
    /// `None` where the shards run the client's stages.
    stages: Option<RouterStages>,
    /// What goes out next: parts of an event, or one that had no room.
    ready: VecDeque<Bytes>,
    /// Nothing that may go out is left.
    is_drained: bool,
    /// Where the client started.
    first: ResumeToken,
    /// The client can resume from this.
    token: RawDocumentBuf,
    until: Option<Instant>,
}

/// A shard's stream that was opened, with what came with it.
type Opened = ((ShardId, String), RemoteStream, ShardBatch);

impl ClusterChanges {
    /// Opens a stream at every shard.
    ///
    /// # Errors
    /// Those of the stages, of the shards, and of the way there.
    pub(super) async fn open(ctx: &OpContext, request: ChangesRequest) -> Result<ClusterChanges> {
        let start = request.start();
        let known = Cluster::here().shards();
        let mut stream = ClusterChanges {
            merge: ChangeMerge::new(start.token()),
            streams: ShardStreams::new(&request.cmd),
            known: known.clone(),
            resume: request.resume(),
            stages: request.router_stages().await?,
            ready: VecDeque::new(),
            is_drained: true,
            token: request.first_token().to_document(),
            first: request.first_token(),
            until: None,
            request,
        };
        let shards = known.iter().map(|shard| ShardId::new(&shard.id));
        let shards = shards.map(|shard| (shard, start.clone())).collect();
        stream.open_at(ctx, shards).await?;
        Ok(stream)
    }

    async fn open_at(&mut self, ctx: &OpContext, shards: Vec<(ShardId, ShardStart)>) -> Result<()> {
        let opening = shards
            .iter()
            .map(|(shard, start)| self.open_one(shard, start));
        let opened = interruptible(ctx, join_all(opening)).await?;
        // All are taken over first, so that all are closed if one has failed.
        let opened: Result<Vec<Opened>> = opened.into_iter().collect();
        for ((_, start), (name, stream, batch)) in shards.iter().zip(opened?) {
            let part = self.merge.add(start.token());
            let stream = (!batch.is_last).then_some(stream);
            self.streams.add(part, name, stream);
            self.take(part, batch);
        }
        Ok(())
    }

    async fn open_one(&self, shard: &ShardId, start: &ShardStart) -> Result<Opened> {
        let cmd = &self.request.cmd;
        let preference = cmd.ctx.args.read_preference.clone().unwrap_or_default();
        let request = self.request.of_shard(start);
        let answer = send_to(cmd, shard, &preference, &request, Retry::Idempotent).await;
        let answer = answer.map_err(refused)?;
        let (stream, first) = RemoteStream::open(&answer, CHANGE_STREAM)?;
        let batch = read_batch(&first.documents, first.token, first.id == 0)?;
        Ok(((shard.clone(), answer.set), stream, batch))
    }

    fn take(&mut self, part: u32, batch: ShardBatch) {
        self.merge
            .batch(part, batch.events, batch.mark, batch.is_last);
    }

    /// Opens streams at shards that have come, and closes those of shards that have left. A new one
    /// begins where the whole stands, or when it came if that is earlier.
    async fn learn_shards(&mut self, ctx: &OpContext) -> Result<()> {
        let now = match interruptible(ctx, current_shards()).await? {
            Ok(now) => now,
            // Without config servers no shard comes or leaves.
            Err(_) => return Ok(()),
        };
        if Arc::ptr_eq(&now, &self.known) {
            return Ok(());
        }
        for part in self.streams.remove_unless(|shard| now.get(shard).is_some()) {
            self.merge.retire(part);
        }
        let reached = self.merge.mark().clone();
        let mut added = Vec::new();
        for shard in now
            .iter()
            .filter(|shard| !self.streams.has_shard(&shard.id))
        {
            let came = shard.topology_time;
            let came = pinion_bson::Timestamp {
                time: came.secs(),
                increment: came.inc(),
            };
            let is_earlier = TokenData::high_water_mark(came).token() < reached;
            let start = match is_earlier && !shard.topology_time.is_null() {
                true => ShardStart::At(came),
                false => ShardStart::Behind(reached.clone()),
            };
            added.push((ShardId::new(&shard.id), start));
        }
        self.open_at(ctx, added).await?;
        self.known = now;
        Ok(())
    }

    /// Fills `ready` with what goes out next. False where nothing may go out now.
    async fn make_ready(&mut self, ctx: &OpContext) -> Result<bool> {
        while self.ready.is_empty() {
            let Some(released) = self.merge.next_ready() else {
                return Ok(false);
            };
            let ReleasedEvent { token, event, .. } = released;
            let parts_seen = match &mut self.resume {
                None => 0,
                Some(resume) => match resume.look(&token)? {
                    Seen::Yes => continue,
                    Seen::Parts(parts) => parts,
                    Seen::No => 0,
                },
            };
            self.ready = match &mut self.stages {
                None => VecDeque::from([event]),
                Some(stages) => stages.apply(ctx, event, &token, parts_seen).await?,
            };
        }
        Ok(true)
    }

    /// Moves what may go out to a batch.
    async fn drain(
        &mut self,
        ctx: &OpContext,
        batch: &mut Vec<Bytes>,
        max_documents: usize,
    ) -> Result<()> {
        let mut bytes = 0;
        self.is_drained = false;
        while batch.len() < max_documents {
            if !self.make_ready(ctx).await? {
                self.is_drained = true;
                return Ok(());
            }
            let size = self.ready.front().map_or(0, Bytes::len);
            if !batch.is_empty() && bytes + size > MAX_BATCH_BYTES {
                return Ok(());
            }
            bytes += size;
            batch.extend(self.ready.pop_front());
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.merge.has_ended() && self.ready.is_empty()
    }

    /// Asks the shards that have nothing left, and those that an event waits for.
    fn ask(&mut self) {
        let hungry: Vec<u32> = self.merge.hungry().collect();
        hungry.into_iter().for_each(|part| self.streams.ask(part));
        let Some((token, late)) = self.merge.waiting() else {
            return;
        };
        if let Ok(data) = token.data() {
            let time = Timestamp::new(data.cluster_time.time, data.cluster_time.increment);
            self.streams.ask_for_marks(&late, time);
        }
    }

    async fn fill_until(&mut self, ctx: &OpContext, max_documents: usize) -> Result<Filled> {
        let mut documents = Vec::new();
        loop {
            self.learn_shards(ctx).await?;
            let changed = self.streams.changed();
            while let Some((part, batch)) = self.streams.next_arrived()? {
                self.take(part, batch);
            }
            self.drain(ctx, &mut documents, max_documents).await?;
            let until = self.until.unwrap_or_else(now);
            let is_over = now() >= until || max_documents == 0;
            if !documents.is_empty() || self.has_ended() || is_over {
                break;
            }
            self.ask();
            let until = match self.merge.waiting() {
                Some(_) => until.min(now() + CHANGE_MARK_PAUSE),
                None => until,
            };
            if !self.streams.has_arrived() {
                // Whether something has come or the time is up is seen above.
                let _ = interruptible(ctx, timeout_at(until, changed)).await?;
            }
        }
        ctx.work().returned(documents.len() as u64);
        let exhausted = self.has_ended();
        if !exhausted && self.until.is_some() {
            // What comes meanwhile is there for the next batch.
            self.ask();
        }
        Ok(Filled {
            documents,
            exhausted,
        })
    }
}

impl DocumentStream for ClusterChanges {
    fn fill<'a>(
        &'a mut self,
        _stash: &'a mut Option<Bytes>,
        ctx: &'a OpContext,
        max_documents: usize,
    ) -> LocalBoxFuture<'a, Result<Filled>> {
        Box::pin(self.fill_until(ctx, max_documents))
    }

    fn is_tail(&self) -> bool {
        true
    }

    fn awaits_data(&self) -> bool {
        true
    }

    fn is_change_stream(&self) -> bool {
        true
    }

    fn give_up_at(&mut self, until: Instant) {
        self.until = Some(until);
    }

    fn token_behind(&mut self, batch: &[Bytes], _is_all: bool) -> Option<RawDocumentBuf> {
        if let Some(last) = batch.last()
            && let Ok(Some(token)) = token_of(last)
        {
            self.token = token;
        }
        // In front of where it started are the parts of an event that it has.
        let mark = self.merge.mark();
        if self.is_drained && self.ready.is_empty() && *mark > self.first {
            self.token = mark.to_document();
        }
        Some(self.token.clone())
    }
}

/// The token of an event.
fn token_of(event: &Bytes) -> Result<Option<RawDocumentBuf>> {
    let event = RawDocument::from_bytes(event);
    let event = event.map_err(|error| Error::internal(error.to_string()))?;
    let id = pinion_bson::get(event, "_id").and_then(|id| id.as_document());
    Ok(id.map(RawDocument::to_owned))
}
