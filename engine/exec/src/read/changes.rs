//! A change stream: a read of the log up to what a majority holds, as events behind the stages of
//! the client.
//!
//! It holds no snapshot and no gate. It reads the log itself until it has caught up; from then on
//! the feed of its core reads for it (`change_feed.rs`). Between two batches it keeps no more
//! entries than one read gives.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_catalog::{Uuid, stored_document};
use pinion_clock::Timestamp;
use pinion_query::{
    Change, ChangeStreamOptions, Document, Event, Image, Input, MAX_CHANGE_EVENT_BYTES, Matcher,
    Memory, Pipeline, PipelineRun, Resume, Scope, Seen, StageRequest, Start, TokenData, TokenForm,
    TransactionEnd, Variables, changes_of, check_event_id, is_mark, split_event, transaction_end,
};
use pinion_runtime::{Instant, LocalBoxFuture, timeout_at, yield_if_due};
use pinion_service::cluster_parameters::cluster_parameters;
use pinion_service::compute::{compute_bytes, offload};
use pinion_service::interrupt::{interruptible, pause};
use pinion_service::limits::CORE_BUDGET;
use pinion_storage::{LogCursor, LogReadError, storage};
use pinion_wire::idl::{Namespace, ReadConcernLevel};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::change_feed::{Handed, Watch, committed};
use super::log::from_log_error;
use super::request::{ReadRequest, open};
use crate::acquire::acquire_read;
use crate::limits::{CHANGE_BATCH_BYTES, CHANGE_BATCH_ENTRIES, MAX_TRANSACTION_PARTS};
use crate::options::{PlantedFault, node_options};
use crate::read::change_feed;

/// Room for a token beside an event. One of a long document key takes more.
const SORT_KEY_BYTES: usize = 256;

/// What a stream shows, and from where on.
pub(crate) struct ChangeRequest {
    pub options: ChangeStreamOptions,
    pub scope: Scope,
    pub pipeline: Pipeline,
    /// Large events come in parts.
    pub splits: bool,
    /// It is one of the streams that a router merges.
    pub is_of_router: bool,
    pub memory: Memory,
}

impl ChangeRequest {
    /// The time of the first entry that a stream may show whose node has what there is at `now`.
    pub(crate) fn begins_at(&self, now: Timestamp) -> Timestamp {
        match &self.options.start {
            Start::Now => now.next(),
            Start::At(time) => time_of(*time),
            Start::Behind(resume) => time_of(resume.data.cluster_time),
        }
    }
}

/// What a stream has made so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct ChangeCounts {
    /// Operations of entries.
    pub operations: u64,
    /// Events about these.
    pub events: u64,
    /// These, and that nothing comes any more.
    pub with_invalidates: u64,
    /// Those of them that the client had not seen.
    pub unseen: u64,
}

/// The events of a scope, those to come included.
pub(crate) struct ChangeStream {
    options: ChangeStreamOptions,
    scope: Scope,
    splits: bool,
    is_of_router: bool,
    /// What it reads itself until it has come to where the feed begins.
    log: Option<LogCursor>,
    /// Entries that were read so and not examined.
    ahead: VecDeque<(Timestamp, Bytes)>,
    /// Its place in the feed, once it has caught up.
    watch: Option<Watch>,
    /// What is left of the transaction at hand.
    parts: VecDeque<Part>,
    changes: VecDeque<Change>,
    /// The entry in the log, or in their transaction, before the one that these changes are in: it
    /// may have the image of the first.
    before: Option<Timestamp>,
    /// With what the client has seen of them. What it has seen whole is shown by its token alone.
    events: VecDeque<(Event, Seen)>,
    /// Parts of a large event.
    split: VecDeque<Bytes>,
    /// The client's stages, which want a document between two calls.
    run: PipelineRun,
    resume: Option<Resume>,
    /// Only where a test has planted that fault: the next event is not shown.
    skips_next: bool,
    /// The first event that comes does not end the stream, unless the client has its end: for a
    /// mongos of MongoDB 4.4 the stream begins behind the end that another shard has shown.
    passes_end: bool,
    /// Everything up to here was examined.
    seen_through: Timestamp,
    /// Nothing behind this is examined.
    last: Option<Timestamp>,
    /// The client can resume from this.
    token: RawDocumentBuf,
    /// The time of the last event that was made, or where the stream began.
    reported: Timestamp,
    /// There was nothing more when it was last asked.
    is_behind_all: bool,
    has_ended: bool,
    /// The token of the event that it has ended with.
    end: Option<RawDocumentBuf>,
    /// A note by which a router asks how far it has come was seen since the last batch.
    saw_mark: bool,
    /// When a batch without events goes back to the client.
    until: Option<Instant>,
    /// An entry was examined since the last such batch.
    has_looked: bool,
    counts: ChangeCounts,
}

/// An entry of a transaction whose operations have not been shown.
struct Part {
    head: Bytes,
    /// Of an entry that is to be read again.
    at: Option<Timestamp>,
    /// The entry before it.
    before: Option<Timestamp>,
    /// The number of operations before it.
    first: u64,
}

fn bson_time(ts: Timestamp) -> pinion_bson::Timestamp {
    pinion_catalog::bson_timestamp(ts)
}

fn time_of(ts: pinion_bson::Timestamp) -> Timestamp {
    Timestamp::new(ts.time, ts.increment)
}

/// Whether a test has planted this fault.
fn is_planted(fault: PlantedFault) -> bool {
    node_options().planted_fault == fault
}

/// The log does not go back to where the stream is.
fn history_lost() -> Error {
    Error::new(
        ErrorCode::CHANGE_STREAM_HISTORY_LOST,
        "Resume of change stream was not possible, as the resume point may no longer be in the oplog.",
    )
}

fn from_error(error: LogReadError) -> Error {
    match error {
        LogReadError::PositionLost => history_lost(),
        other => from_log_error(other),
    }
}

impl ChangeStream {
    /// A stream that begins where its options say; without a place behind `now`.
    ///
    /// # Errors
    /// `ChangeStreamHistoryLost` when the log does not go back that far.
    pub(crate) async fn open(request: ChangeRequest, now: Timestamp) -> Result<ChangeStream> {
        let begin = request.begins_at(now);
        let ChangeRequest {
            options,
            scope,
            pipeline,
            splits,
            is_of_router,
            memory,
        } = request;
        if options.start != Start::Now {
            check_history(begin).await?;
        }
        let mut resume = match &options.start {
            Start::Behind(resume) => Some(Resume::clone(resume)),
            _ => None,
        };
        if let Some(resume) = resume.as_mut().filter(|_| is_of_router) {
            // The router finds out whether any shard has it.
            resume.allow_missing();
        }
        let form = options.token_form;
        let is_behind_end = |resume: &Resume| resume.data.from_invalidate;
        let passes_end = form == TokenForm::V44 && resume.as_ref().is_some_and(is_behind_end);
        // What begins with what comes has nothing to catch up with.
        let watch = (options.start == Start::Now).then(|| change_feed().join(&scope));
        let mut stream = ChangeStream {
            token: (options.start.first_token_in(form, bson_time(begin))).to_document(),
            reported: begin,
            scope,
            splits,
            is_of_router,
            log: None,
            ahead: VecDeque::new(),
            watch,
            parts: VecDeque::new(),
            changes: VecDeque::new(),
            before: None,
            events: VecDeque::new(),
            split: VecDeque::new(),
            run: PipelineRun::new(pipeline, &memory),
            skips_next: is_planted(PlantedFault::EventSkippedAtResume) && resume.is_some(),
            resume,
            passes_end,
            seen_through: begin.prev().unwrap_or(Timestamp::MIN),
            is_behind_all: false,
            has_ended: false,
            end: None,
            saw_mark: false,
            until: None,
            last: None,
            has_looked: false,
            counts: ChangeCounts::default(),
            options,
        };
        let nothing = stream.step(Input::Go)?;
        assert!(
            matches!(nothing, StageRequest::Document),
            "no stage has anything yet"
        );
        Ok(stream)
    }

    /// Goes back to the client without an event from this time on.
    pub(crate) fn give_up_at(&mut self, until: Instant) {
        self.until = Some(until);
        self.has_looked = false;
    }

    /// Ends at what a majority holds by now: what comes later is not examined.
    pub(crate) fn end_here(&mut self) {
        self.last = Some(committed());
    }

    /// What it has made so far.
    pub(crate) fn counts(&self) -> ChangeCounts {
        self.counts
    }

    /// Nothing comes any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended && self.split.is_empty()
    }

    /// The next event that is there by now.
    pub(crate) fn next<'a>(
        &'a mut self,
        ctx: &'a OpContext,
    ) -> LocalBoxFuture<'a, Result<Option<Bytes>>> {
        Box::pin(async move {
            loop {
                if let Some(part) = self.split.pop_front() {
                    return Ok(Some(part));
                }
                if self.has_ended {
                    return Ok(None);
                }
                let Some((mut event, seen)) = self.next_event(ctx).await? else {
                    return Ok(None);
                };
                self.is_behind_all = false;
                let cluster_time = time_of(event.cluster_time);
                let token = event.token.clone();
                let parts_seen = match seen {
                    Seen::Yes => {
                        self.reported = cluster_time.max(self.reported);
                        let token = token.to_document();
                        let event = match self.options.token_form {
                            TokenForm::Newest => Document::from(seen_event(&token)),
                            // A mongos looks at its kind before it passes over it.
                            TokenForm::V44 => event.into_document().into(),
                        };
                        return Ok(Some(self.given(event, &token).await));
                    }
                    Seen::Parts(parts) => parts,
                    Seen::No => 0,
                };
                self.has_ended = event.is_invalidate;
                self.end = event.is_invalidate.then(|| token.to_document());
                if let Image::LookUp { ns, uuid, key } = &event.full_document {
                    let found = look_up(ctx, ns, *uuid, key).await?;
                    event.full_document = found.map_or(Image::Null, Image::Document);
                }
                let Some(document) = self
                    .through_stages(ctx, event.into_document().into())
                    .await?
                else {
                    continue;
                };
                check_event_id(&document, &token.to_document())?;
                self.reported = cluster_time.max(self.reported);
                let is_large = self.splits && document.as_bytes().len() > MAX_CHANGE_EVENT_BYTES;
                if parts_seen > 0 && !is_large {
                    return Err(Error::new(
                        ErrorCode::CHANGE_STREAM_FATAL_ERROR,
                        "cannot resume stream; the event that was resumed from in the middle is not split any more",
                    ));
                }
                if !is_large {
                    return Ok(Some(self.given(document, &token.to_document()).await));
                }
                let bytes = document.as_bytes().len();
                let split = || split_event(&document, &token, parts_seen, MAX_CHANGE_EVENT_BYTES);
                self.split = compute_bytes(bytes, split).await?.into();
            }
        })
    }

    /// An event as it leaves the node: for a mongos of MongoDB 4.4 with what that merges it by.
    async fn given(&self, event: Document, token: &RawDocument) -> Bytes {
        if self.options.token_form == TokenForm::Newest {
            return event.into_bytes();
        }
        let bytes = event.as_bytes().len();
        compute_bytes(bytes, || with_sort_key(&event, token)).await
    }

    /// The next event that the client has not seen, and how many parts of it he has.
    async fn next_event(&mut self, ctx: &OpContext) -> Result<Option<(Event, Seen)>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if let Some(change) = self.changes.pop_front() {
                self.make_events(change).await?;
                pause(ctx).await?;
                continue;
            }
            if let Some(part) = self.parts.pop_front() {
                self.open_part(part).await?;
                continue;
            }
            // What comes next is examined by the next batch, which then makes progress.
            let next = match self.ran_out() {
                true => None,
                false => self.next_entry(ctx).await?,
            };
            let Some((ts, entry)) = next else {
                self.is_behind_all = true;
                return Ok(None);
            };
            self.take(ts, entry).await?;
            self.seen_through = ts;
            self.has_looked = true;
            yield_if_due().await;
        }
    }

    /// The next entry that a majority holds, if there is one by now.
    async fn next_entry(&mut self, ctx: &OpContext) -> Result<Option<(Timestamp, Bytes)>> {
        loop {
            if self.last.is_some_and(|last| self.seen_through >= last) {
                return Ok(None);
            }
            if let Some(watch) = self
                .watch
                .as_ref()
                .filter(|watch| watch.from <= self.seen_through)
            {
                self.log = None;
                self.ahead.clear();
                match watch.next(self.seen_through) {
                    Handed::Entry(ts, entry) => return Ok(Some((ts, entry))),
                    Handed::Nothing { through } => {
                        self.seen_through = through.max(self.seen_through);
                        return Ok(None);
                    }
                    Handed::Left { at } => {
                        self.seen_through = at.max(self.seen_through);
                        self.watch = None;
                    }
                }
            }
            let bound = committed();
            match self.ahead.front() {
                Some((ts, _)) if *ts <= bound => return Ok(self.ahead.pop_front()),
                Some(_) => self.seen_through = bound.max(self.seen_through),
                None => {
                    let behind = self.seen_through;
                    let is_first = self.log.is_none();
                    let log = self.log.get_or_insert_with(|| storage().log_after(behind));
                    let readable = storage().oplog_read_timestamp().min(bound);
                    let read = log.next_batch(CHANGE_BATCH_ENTRIES, CHANGE_BATCH_BYTES);
                    self.ahead = interruptible(ctx, read).await?.map_err(from_error)?.into();
                    if is_first {
                        // Once it has started a read notices what is missing, but not in front of
                        // its beginning.
                        check_history(behind.next()).await?;
                    }
                    if !self.ahead.is_empty() {
                        continue;
                    }
                    self.seen_through = readable.max(self.seen_through);
                }
            }
            // Everything is seen but for what came while it was examined.
            if self.watch.is_none() {
                self.watch = Some(change_feed().join(&self.scope));
            }
            yield_if_due().await;
        }
    }

    /// Whether the client has waited for long enough.
    fn ran_out(&self) -> bool {
        let until = self.until.filter(|_| self.has_looked);
        until.is_some_and(|until| pinion_runtime::now() >= until)
    }

    /// Looks at an entry: what of it is shown.
    async fn take(&mut self, ts: Timestamp, entry: Bytes) -> Result<()> {
        let document = stored_document(&entry);
        self.saw_mark |= self.is_of_router && is_mark(document);
        match transaction_end(document) {
            TransactionEnd::Whole => {
                // Most entries concern no stream, and are not taken apart for that.
                if self.scope.may_concern(document) {
                    (self.changes, _) = changes_of(&self.scope, &entry, &entry, 0);
                    self.before = ts.prev();
                    if is_planted(PlantedFault::EventsSwapped) && self.changes.len() > 1 {
                        self.changes.swap(0, 1);
                    }
                }
            }
            TransactionEnd::Part => {}
            TransactionEnd::Last { before } => {
                let mut times = VecDeque::new();
                let mut before = Some(time_of(before));
                while let Some(at) = before {
                    if times.len() >= MAX_TRANSACTION_PARTS {
                        return Err(Error::new(
                            ErrorCode::CHANGE_STREAM_FATAL_ERROR,
                            format!("a transaction has more than {MAX_TRANSACTION_PARTS} entries"),
                        ));
                    }
                    times.push_front(at);
                    let part = entry_at(at).await?;
                    before = TransactionEnd::before_part(stored_document(&part)).map(time_of);
                }
                let ends = times.into_iter().map(Some).chain([None]);
                let mut before = None;
                let parts = ends.map(|at| Part {
                    head: entry.clone(),
                    at,
                    before: std::mem::replace(&mut before, at),
                    first: 0,
                });
                self.parts = parts.collect();
            }
        }
        Ok(())
    }

    async fn open_part(&mut self, part: Part) -> Result<()> {
        let entry = match part.at {
            Some(at) => entry_at(at).await?,
            None => part.head.clone(),
        };
        let (changes, count) = changes_of(&self.scope, &part.head, &entry, part.first);
        self.changes = changes;
        self.before = part.before;
        if let Some(next) = self.parts.front_mut() {
            next.first = part.first + count;
        }
        Ok(())
    }

    async fn make_events(&mut self, mut change: Change) -> Result<()> {
        if change.wants_image_before() && self.options.wants_images() {
            let before = match self.before {
                Some(at) => entry_if_there(at).await?,
                None => None,
            };
            change.take_image_of(before.as_ref());
        }
        let since = images_since_ms();
        let (options, scope) = (&self.options, &self.scope);
        let events = compute_bytes(change.bytes(), || options.events(scope, &change, since)).await;
        self.counts.operations += 1;
        let mut events = events?;
        if !events.is_empty() && std::mem::take(&mut self.passes_end) {
            let resume = self.resume.as_ref();
            events.retain(|event| {
                !event.is_invalidate || resume.is_some_and(|resume| resume.is_of(&event.token))
            });
        }
        for event in events {
            self.counts.events += u64::from(!event.is_invalidate);
            self.counts.with_invalidates += 1;
            let seen = match &mut self.resume {
                Some(resume) => resume.look(&event.token)?,
                None => Seen::No,
            };
            self.counts.unseen += u64::from(seen != Seen::Yes);
            let is_last_seen = |resume: &Resume| resume.is_of(&event.token);
            match seen {
                Seen::Yes
                    if self.is_of_router && self.resume.as_ref().is_some_and(is_last_seen) =>
                {
                    self.events.push_back((event, Seen::Yes));
                }
                Seen::Yes => {}
                Seen::No if std::mem::take(&mut self.skips_next) => {}
                seen => self.events.push_back((event, seen)),
            }
        }
        Ok(())
    }

    fn step(&mut self, input: Input) -> Result<StageRequest> {
        self.run.step(input, CORE_BUDGET)
    }

    /// What the client's stages make of an event, if they let it through.
    async fn through_stages(
        &mut self,
        ctx: &OpContext,
        event: Document,
    ) -> Result<Option<Document>> {
        let mut made = None;
        let mut input = Input::Document(event);
        loop {
            let mut want = self.step(input)?;
            if let StageRequest::Compute = want {
                let run = &mut self.run;
                want = Box::pin(offload(ctx, |stop| run.step_until(stop))).await?;
            }
            input = Input::Go;
            match want {
                StageRequest::Output(document) => {
                    assert!(made.replace(document).is_none(), "one event makes one");
                }
                StageRequest::Document => return Ok(made),
                StageRequest::Pause | StageRequest::Compute => pause(ctx).await?,
                StageRequest::Disk(_) | StageRequest::Done => {
                    unreachable!("no stage that may follow a change stream keeps or ends anything")
                }
            }
        }
    }

    /// The client can resume behind this batch from it. `is_all` when nothing that was read is held
    /// back.
    pub(crate) fn token_behind(&mut self, batch: &[Bytes], is_all: bool) -> &RawDocument {
        self.saw_mark = false;
        // A router has to know where it ends, also where the client's stages do not show that.
        if let Some(end) = &self.end
            && self.is_of_router
            && is_all
            && self.split.is_empty()
        {
            self.token.clone_from(end);
            return &self.token;
        }
        if let Some(last) = batch.last()
            && let Ok(id) = stored_document(last).get_document("_id")
        {
            self.token = id.to_owned();
        }
        let is_quiet = is_all && self.is_behind_all && self.split.is_empty() && !self.has_ended;
        let caught_up = self.watch.as_ref();
        let caught_up = caught_up.filter(|watch| is_quiet && watch.from <= self.seen_through);
        if let Some(through) = caught_up.and_then(Watch::quiet_through) {
            self.seen_through = through.max(self.seen_through);
        }
        if is_quiet && self.seen_through > self.reported {
            self.reported = self.seen_through;
            self.token = TokenData::high_water_mark(bson_time(self.reported))
                .token_in(self.options.token_form)
                .to_document();
        }
        &self.token
    }

    /// Whether an empty batch says something to a router that waits for it.
    pub(crate) fn has_news(&self) -> bool {
        self.saw_mark
    }

    /// Waits until a majority holds something that may concern the stream, or until this time.
    pub(crate) async fn wait(&self, ctx: &OpContext, until: Instant) -> Result<bool> {
        if pinion_runtime::now() >= until {
            return Ok(false);
        }
        // Without a place in the feed it has not caught up.
        let Some(watch) = &self.watch else {
            return Ok(true);
        };
        let changed = interruptible(ctx, timeout_at(until, watch.changed())).await?;
        Ok(changed.is_ok())
    }
}

/// The event that a stream is resumed from, by its token alone: the router looks for it.
fn seen_event(token: &RawDocument) -> Bytes {
    let mut out = pinion_bson::DocBuilder::new();
    out.append("_id", token);
    Bytes::from(out.finish().into_bytes())
}

/// An event with its token in the field by which a mongos of MongoDB 4.4 merges.
fn with_sort_key(event: &RawDocument, token: &RawDocument) -> Bytes {
    let mut out = pinion_bson::DocBuilder::with_capacity(event.as_bytes().len() + SORT_KEY_BYTES);
    out.append_all(event)
        .start_array("$sortKey")
        .push(token)
        .end();
    Bytes::from(out.finish_bytes())
}

/// From when on documents as they were before a change are known.
fn images_since_ms() -> i64 {
    let expires = cluster_parameters().borrow().images_expire_secs();
    expires.map_or(i64::MIN, |secs| {
        pinion_runtime::wall_ms().saturating_sub(secs.saturating_mul(1000))
    })
}

/// Refuses a stream that begins before the log does. A log that begins with the set's own first
/// entry lacks nothing.
async fn check_history(begin: Timestamp) -> Result<()> {
    let mut oldest = storage().log_after(Timestamp::MIN);
    let first = oldest.next_batch(1, 1).await.map_err(from_error)?;
    let Some((ts, entry)) = first.first() else {
        return Ok(());
    };
    let is_first_of_set = pinion_bson::get_path(stored_document(entry), "o.msg")
        == Some(pinion_bson::RawBsonRef::String(FIRST_OF_SET));
    match *ts <= begin || is_first_of_set {
        true => Ok(()),
        false => Err(history_lost()),
    }
}

/// What the first entry of a set says.
const FIRST_OF_SET: &str = "initiating set";

/// The entry with this time.
async fn entry_at(at: Timestamp) -> Result<Bytes> {
    let found = entry_if_there(at).await?;
    found.ok_or_else(history_lost)
}

/// The entry with this time, unless the log begins behind it.
async fn entry_if_there(at: Timestamp) -> Result<Option<Bytes>> {
    let mut log = storage().log_from(at);
    let found = match log.next_batch(1, 1).await {
        Ok(found) => found,
        Err(LogReadError::PositionLost) => return Ok(None),
        Err(other) => return Err(from_log_error(other)),
    };
    let first = found.into_iter().next();
    Ok(first.filter(|(ts, _)| *ts == at).map(|(_, entry)| entry))
}

/// The document with this key as a majority has it now, if its collection is still the one that the
/// event is of.
async fn look_up(
    ctx: &OpContext,
    ns: &str,
    uuid: Option<[u8; 16]>,
    key: &RawDocument,
) -> Result<Option<RawDocumentBuf>> {
    let mut ctx = ctx.clone();
    ctx.read_concern.level = Some(ReadConcernLevel::Majority);
    let acquired = match acquire_read(&ctx, Namespace::parse(ns)?, None).await {
        // The name is that of a view by now.
        Err(error) if error.code == ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW => return Ok(None),
        acquired => acquired?,
    };
    let collection = acquired.collection();
    let same = collection.filter(|found| uuid.is_none_or(|uuid| found.uuid == Uuid(uuid)));
    let Some(collection) = same else {
        return Ok(None);
    };
    let variables = Variables {
        collation: collection.collation.clone(),
        ..Variables::default()
    };
    let matcher = Matcher::parse_with(key, &variables)?;
    let request = ReadRequest::new(acquired.target(collection), matcher);
    let mut stream = open(&ctx, acquired.source(), request, 1).await?.stream;
    let document = stream.next_wanted(&ctx, 1).await?;
    Ok(document.map(|bytes| stored_document(&bytes).to_owned()))
}
