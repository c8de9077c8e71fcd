//! Measurements put into buckets. Each round puts as many of each source as go into one bucket, and
//! writes all buckets of the round in one step of storage; a bucket that another writer has changed
//! meanwhile is read again in the next round.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DateTime, DocBuilder, RawBson, RawBsonRef, RawDocument};
use pinion_catalog::{Collection, from_write_error, set_multikey, stored_document};
use pinion_query::{
    MAX_BUCKET_MEASUREMENTS, Matcher, MultikeyPaths, Packing, SeriesForm, TimeSeries, bucket_id,
    measurement_count, normal_meta, pack, time_of,
};
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::generate::new_object_id;
use pinion_service::interrupt::{check, is_interruption, pause};
use pinion_storage::{Read, Statement, TreeId, WriteError, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::buckets::{BucketWrite, build, key_of, read, start_of};
use super::counts::{SeriesCounts, record_series};
use super::open::OpenBucket;
use crate::acquire::{AcquiredCollection, acquire};
use crate::limits::{SERIES_CONFLICTS, SERIES_ROUND_BYTES, SERIES_ROUND_SOURCES};
use crate::read::{ReadRequest, existing_trees, open};
use crate::statements::Stamp;
use crate::write::backoff::Backoff;
use crate::write::batch::BatchOutcome;
use crate::write::insert::{InsertOptions, insert_documents, stops_here};
use crate::write::open_buckets;

/// A measurement that is not in a bucket yet, with its place in the client's batch.
struct Pending {
    index: usize,
    time_ms: i64,
    document: Bytes,
}

/// What is left of the measurements of one source.
struct Source {
    /// Identifies the source, within its collection.
    key: Vec<u8>,
    meta: Option<RawBson>,
    /// By their times, the next one last.
    pending: Vec<Pending>,
    /// One by one, since a bucket with several of them could not be written.
    alone: bool,
    /// How often another writer came before.
    conflicts: u32,
    /// The last bucket was found full: what has been looked for need not be looked for again.
    rolls_over: bool,
    counts: SeriesCounts,
}

impl Source {
    /// What goes into the entry of a bucket with the next measurements, if these are retryable.
    fn stamp(
        &self,
        options: InsertOptions<'_>,
        collection: &Collection,
        taken: usize,
    ) -> Option<Stamp> {
        let next = self.pending.iter().rev().take(taken);
        options.stamps.of(collection, next.map(|next| next.index))
    }

    /// Counts a bucket that was written, and what led to it.
    fn wrote(&mut self, collection: &Collection, measurements: usize, is_new: bool) {
        let mut counts = std::mem::take(&mut self.counts);
        counts.measurements += measurements as u64;
        match is_new {
            true => counts.bucket_inserts += 1,
            false => counts.bucket_updates += 1,
        }
        if is_new && !self.rolls_over {
            counts.opened_for_source += 1;
        }
        let tree = collection.tree();
        record_series(tree, counts, existing_trees);
    }
}

/// A bucket that is about to be written.
struct Attempt {
    /// Which source it is of, and how many of its measurements go in.
    source: usize,
    taken: usize,
    bucket: OpenBucket,
    is_new: bool,
    statement: Statement,
}

/// Inserts measurements. What becomes of a single one stands in the outcome.
pub async fn insert_measurements(
    ctx: &OpContext,
    acquired: AcquiredCollection,
    documents: Vec<(usize, Bytes)>,
    options: InsertOptions<'_>,
    outcome: &mut BatchOutcome,
) -> Result<()> {
    let Some(form) = acquired.series().map(TimeSeries::form) else {
        return insert_documents(ctx, acquired, documents, options, outcome).await;
    };
    let (documents, refused) = with_times(&form, documents, options.ordered);
    let failed = outcome.errors.len();
    let mut batch = Batch {
        sources: sources(&form, documents).await,
        ordered: options.ordered,
        strict: false,
        stopped: false,
        backoff: Backoff::default(),
    };
    batch.insert(ctx, acquired, options, outcome).await?;
    // With order, a refused measurement is reached only when nothing before it failed.
    if !options.ordered || outcome.errors.len() == failed {
        for (index, error) in refused {
            outcome.failed(index, error);
        }
        outcome.errors.sort_by_key(|failure| failure.index);
    }
    Ok(())
}

type Refused = Vec<(usize, Error)>;

/// Those that have a time, with order up to the first that has none.
fn with_times(
    form: &SeriesForm,
    documents: Vec<(usize, Bytes)>,
    ordered: bool,
) -> (Vec<Pending>, Refused) {
    let (mut pending, mut refused) = (Vec::with_capacity(documents.len()), Vec::new());
    for (index, document) in documents {
        match time_of(form, stored_document(&document)) {
            Ok(time_ms) => pending.push(Pending {
                index,
                time_ms,
                document,
            }),
            Err(error) => {
                refused.push((index, error));
                if ordered {
                    break;
                }
            }
        }
    }
    (pending, refused)
}

/// The measurements by their sources.
async fn sources(form: &SeriesForm, documents: Vec<Pending>) -> Vec<Source> {
    let mut places: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let mut sources: Vec<Source> = Vec::new();
    for pending in documents {
        pinion_runtime::yield_if_due().await;
        let document = stored_document(&pending.document);
        let meta = form
            .meta
            .as_ref()
            .and_then(|name| pinion_bson::get(document, name));
        let bytes = document.as_bytes().len();
        let meta = compute_bytes(bytes, || meta.map(normal_meta)).await;
        let mut key = DocBuilder::new();
        if let Some(meta) = &meta {
            key.append_raw("", meta.as_raw_bson_ref());
        }
        let key = key.finish_bytes();
        let place = *places.entry(key.clone()).or_insert_with(|| {
            sources.push(Source {
                key,
                meta,
                pending: Vec::new(),
                alone: false,
                conflicts: 0,
                rolls_over: false,
                counts: SeriesCounts::default(),
            });
            sources.len() - 1
        });
        sources[place].pending.push(pending);
    }
    for source in &mut sources {
        source.pending.sort_by_key(|pending| pending.time_ms);
        source.pending.reverse();
    }
    sources
}

struct Batch {
    sources: Vec<Source>,
    ordered: bool,
    /// In the client's order, one at a time: one of them fails, and none behind it may be inserted.
    strict: bool,
    stopped: bool,
    backoff: Backoff,
}

/// What a round found out.
#[derive(Default)]
struct Found {
    multikey: Vec<(TreeId, MultikeyPaths)>,
    conflict: bool,
    full: bool,
}

impl Batch {
    async fn insert(
        &mut self,
        ctx: &OpContext,
        mut acquired: AcquiredCollection,
        options: InsertOptions<'_>,
        outcome: &mut BatchOutcome,
    ) -> Result<()> {
        while !self.stopped && self.sources.iter().any(|source| !source.pending.is_empty()) {
            check(ctx)?;
            let Some(series) = acquired.series().cloned() else {
                // The name now belongs to something else.
                let left = self.take_left();
                return insert_documents(ctx, acquired, left, options, outcome).await;
            };
            let Some(collection) = acquired.collection().cloned() else {
                return Err(Error::new(
                    ErrorCode::NAMESPACE_NOT_FOUND,
                    format!("the buckets of {} are not there", acquired.ns()),
                ));
            };
            let before = outcome.n;
            let found = self
                .round(ctx, &acquired, (&series, &collection), options, outcome)
                .await?;
            if outcome.n > before {
                self.backoff = Backoff::default();
            }
            if self.stopped {
                return Ok(());
            }
            // A DDL or the lock of `fsync` does not wait for the end of a long batch.
            let left = acquired.leave();
            if found.conflict || found.full {
                self.wait(ctx, found.full, outcome).await?;
            }
            if !found.multikey.is_empty() {
                let ns = collection.ns.clone();
                Box::pin(set_multikey(ctx, ns, collection.uuid, found.multikey)).await?;
            }
            acquired = match acquire(ctx, left).await {
                Err(error) if stops_here(ctx, &error, outcome) => {
                    self.fail_left(&error, outcome);
                    return Ok(());
                }
                again => again?,
            };
        }
        Ok(())
    }

    /// Has what is left fail: the first of it where there is an order.
    fn fail_left(&mut self, error: &Error, outcome: &mut BatchOutcome) {
        let left = self.take_left();
        outcome.stop(left.iter().map(|(index, _)| *index), self.ordered, error);
        self.stopped = true;
    }

    /// What is left in the client's order.
    fn take_left(&mut self) -> Vec<(usize, Bytes)> {
        let sources = std::mem::take(&mut self.sources);
        let left = sources.into_iter().flat_map(|source| source.pending);
        let mut left: Vec<(usize, Bytes)> = left
            .map(|pending| (pending.index, pending.document))
            .collect();
        left.sort_by_key(|(index, _)| *index);
        left
    }

    /// Waits for another writer, or for memory; gives up in the end.
    async fn wait(
        &mut self,
        ctx: &OpContext,
        full: bool,
        outcome: &mut BatchOutcome,
    ) -> Result<()> {
        let (more, error) = match full {
            true => (self.backoff.cache_full(ctx).await?, WriteError::CacheFull),
            false => (self.backoff.conflict(ctx).await?, WriteError::Conflict),
        };
        if !more {
            self.fail_left(&from_write_error(error), outcome);
        }
        Ok(())
    }

    /// The sources that take part in a round.
    fn chosen(&self) -> Vec<usize> {
        let with_some = |place: &usize| !self.sources[*place].pending.is_empty();
        let places = (0..self.sources.len()).filter(with_some);
        if !self.strict {
            return places.take(SERIES_ROUND_SOURCES).collect();
        }
        let first = |place: &usize| {
            let pending = self.sources[*place].pending.iter();
            pending.map(|pending| pending.index).min()
        };
        places.min_by_key(first).into_iter().collect()
    }

    /// Builds a bucket for each source, and writes them together.
    async fn round(
        &mut self,
        ctx: &OpContext,
        acquired: &AcquiredCollection,
        (series, collection): (&TimeSeries, &Arc<Collection>),
        options: InsertOptions<'_>,
        outcome: &mut BatchOutcome,
    ) -> Result<Found> {
        let mut found = Found::default();
        let mut attempts = Vec::new();
        let mut bytes = 0;
        for place in self.chosen() {
            pause(ctx).await?;
            if self.strict {
                self.bring_first_to_the_end(place);
            }
            let into = (series, collection);
            match self.prepare(ctx, acquired, into, options, place).await {
                Ok(Prepared::Ready(attempt, size)) => {
                    bytes += size;
                    attempts.push(attempt);
                }
                Ok(Prepared::Multikey(paths)) => found.multikey.extend(paths),
                Err(error) if is_interruption(&error) => return Err(error),
                Err(error) => {
                    self.could_not_build(place, error, outcome);
                    if self.strict || self.stopped {
                        return Ok(found);
                    }
                }
            }
            if bytes >= SERIES_ROUND_BYTES {
                break;
            }
        }
        self.execute(collection, attempts, options, &mut found, outcome)
            .await;
        Ok(found)
    }

    /// The client's first goes first, also where its time does not say so.
    fn bring_first_to_the_end(&mut self, place: usize) {
        let pending = &mut self.sources[place].pending;
        let first = (0..pending.len()).min_by_key(|at| pending[*at].index);
        if let Some(first) = first {
            let first = pending.remove(first);
            pending.push(first);
        }
    }

    /// Several are tried one by one, to find the one that fails, and that one has failed.
    fn could_not_build(&mut self, place: usize, error: Error, outcome: &mut BatchOutcome) {
        if self.ordered && !self.strict {
            self.strict = true;
            return;
        }
        let source = &mut self.sources[place];
        if !self.strict && !source.alone && source.pending.len() > 1 {
            source.alone = true;
            return;
        }
        if let Some(failing) = source.pending.pop() {
            outcome.failed(failing.index, error);
        }
        self.stopped = self.ordered;
    }

    async fn prepare(
        &mut self,
        ctx: &OpContext,
        acquired: &AcquiredCollection,
        (series, collection): (&TimeSeries, &Arc<Collection>),
        options: InsertOptions<'_>,
        place: usize,
    ) -> Result<Prepared> {
        let form = series.form();
        let one = self.strict || self.sources[place].alone;
        let source = &mut self.sources[place];
        let first_ms = source.pending.last().expect("some are pending").time_ms;
        let old = bucket_for(ctx, acquired, &form, collection, source, first_ms).await?;
        if let Some(old) = old.filter(|old| is_owned(acquired, old)) {
            let bucket = OpenBucket {
                id: id_of(&old)?,
                start_ms: start_of(&form, stored_document(&old.value)).unwrap_or(first_ms),
            };
            let packed = packed(ctx, &form, collection, source, one, Some(&old)).await?;
            if packed.1 > 0 {
                let write = BucketWrite {
                    old: Some(old),
                    new: Some(packed.0),
                };
                let into = (place, bucket, packed.1);
                return ready(
                    ctx,
                    collection,
                    into,
                    write,
                    source.stamp(options, collection, packed.1),
                )
                .await;
            }
            let key = (collection.uuid, source.key.clone());
            open_buckets().borrow_mut().forget(&key, bucket.id);
            source.rolls_over = true;
            match measurement_count(&form, stored_document(&old.value)) {
                count if count >= MAX_BUCKET_MEASUREMENTS => source.counts.closed_by_count += 1,
                _ => source.counts.closed_by_size += 1,
            }
        }
        let (new, taken, bucket) = {
            let start_ms = series.bucket_start_ms(first_ms);
            let id = bucket_id(start_ms, new_object_id());
            let bucket = OpenBucket { id, start_ms };
            let new = packed_new(ctx, &form, collection, source, one, bucket).await?;
            (new.0, new.1, bucket)
        };
        if taken == 0 {
            return Err(Error::internal("a new bucket does not take a measurement"));
        }
        let write = BucketWrite {
            old: None,
            new: Some(new),
        };
        let stamp = source.stamp(options, collection, taken);
        ready(ctx, collection, (place, bucket, taken), write, stamp).await
    }

    /// Writes the buckets, and takes out what is in them.
    async fn execute(
        &mut self,
        collection: &Collection,
        attempts: Vec<Attempt>,
        options: InsertOptions<'_>,
        found: &mut Found,
        outcome: &mut BatchOutcome,
    ) {
        if attempts.is_empty() {
            return;
        }
        let (statements, attempts): (Vec<Statement>, Vec<_>) = attempts
            .into_iter()
            .map(|attempt| {
                let Attempt {
                    source,
                    taken,
                    bucket,
                    is_new,
                    statement,
                } = attempt;
                (statement, (source, taken, bucket, is_new))
            })
            .unzip();
        let results = storage().execute(statements, false).await;
        for (result, (place, taken, bucket, is_new)) in results.into_iter().zip(attempts) {
            let source = &mut self.sources[place];
            let key = (collection.uuid, source.key.clone());
            match result {
                Ok(ts) => {
                    for done in source.pending.drain(source.pending.len() - taken..) {
                        options.stamps.wrote(done.index, ts);
                    }
                    source.conflicts = 0;
                    source.wrote(collection, taken, is_new);
                    source.rolls_over = false;
                    open_buckets().borrow_mut().add(&key, bucket);
                    outcome.n += taken as i64;
                    outcome.wrote(ts);
                }
                Err(WriteError::CacheFull) => found.full = true,
                Err(
                    WriteError::Conflict | WriteError::Missing { .. } | WriteError::Exists { .. },
                ) => {
                    source.conflicts += 1;
                    found.conflict = true;
                }
                Err(error) => {
                    let error = from_write_error(error);
                    for failing in source.pending.drain(source.pending.len() - taken..).rev() {
                        outcome.failed(failing.index, error.clone());
                    }
                    self.stopped |= self.ordered;
                }
            }
        }
    }
}

enum Prepared {
    Ready(Attempt, usize),
    Multikey(Vec<(TreeId, MultikeyPaths)>),
}

async fn ready(
    ctx: &OpContext,
    collection: &Collection,
    (source, bucket, taken): (usize, OpenBucket, usize),
    write: BucketWrite,
    stamp: Option<Stamp>,
) -> Result<Prepared> {
    let built = build(ctx, collection, &write, stamp.as_ref()).await?;
    if !built.newly_multikey.is_empty() {
        return Ok(Prepared::Multikey(built.newly_multikey));
    }
    let bytes = write.new.as_ref().map_or(0, Bytes::len);
    let attempt = Attempt {
        source,
        taken,
        bucket,
        is_new: write.old.is_none(),
        statement: built.statement,
    };
    Ok(Prepared::Ready(attempt, bytes))
}

/// The next measurements of a source, the first of them first.
fn next_of(source: &Source, one: bool) -> Vec<&RawDocument> {
    let most = if one {
        1
    } else {
        pinion_query::MAX_BUCKET_MEASUREMENTS
    };
    let next = source.pending.iter().rev().take(most);
    next.map(|pending| stored_document(&pending.document))
        .collect()
}

/// A bucket with more measurements, and how many.
async fn packed(
    ctx: &OpContext,
    form: &SeriesForm,
    collection: &Collection,
    source: &Source,
    one: bool,
    old: Option<&Read>,
) -> Result<(Bytes, usize)> {
    let old = old
        .map(|read| stored_document(&read.value))
        .expect("it was read");
    let into = Packing::Into(old);
    let next = next_of(source, one);
    let collation = collection.collation.as_deref();
    let packed = compute(ctx, || pack(form, collation, into, &next)).await?;
    Ok((Bytes::from(packed.bucket.into_bytes()), packed.taken))
}

async fn packed_new(
    ctx: &OpContext,
    form: &SeriesForm,
    collection: &Collection,
    source: &Source,
    one: bool,
    bucket: OpenBucket,
) -> Result<(Bytes, usize)> {
    let into = Packing::New {
        id: bucket.id,
        start_ms: bucket.start_ms,
        meta: source.meta.as_ref(),
    };
    let next = next_of(source, one);
    let collation = collection.collation.as_deref();
    let packed = compute(ctx, || pack(form, collation, into, &next)).await?;
    Ok((Bytes::from(packed.bucket.into_bytes()), packed.taken))
}

/// Whether what is put into the bucket is seen: it is not another shard's.
fn is_owned(acquired: &AcquiredCollection, bucket: &Read) -> bool {
    let ownership = acquired.ownership().filter(|_| !acquired.owns_all());
    ownership.is_none_or(|ownership| {
        let owned = ownership.owns_document(stored_document(&bucket.value));
        owned.unwrap_or(false)
    })
}

fn id_of(bucket: &Read) -> Result<pinion_bson::ObjectId> {
    match pinion_catalog::document_id(stored_document(&bucket.value))? {
        RawBsonRef::ObjectId(id) => Ok(id),
        _ => Err(Error::internal("a bucket has no ObjectId")),
    }
}

/// The bucket that a measurement of this time may go into, if there is one.
async fn bucket_for(
    ctx: &OpContext,
    acquired: &AcquiredCollection,
    form: &SeriesForm,
    collection: &Arc<Collection>,
    source: &mut Source,
    time_ms: i64,
) -> Result<Option<Read>> {
    // This many concurrent writers of one source are better off with a bucket each.
    if source.conflicts >= SERIES_CONFLICTS {
        return Ok(None);
    }
    let key = (collection.uuid, source.key.clone());
    let span_ms = i64::from(form.max_span_secs) * 1000;
    let known = {
        let open_buckets = open_buckets();
        let mut open = open_buckets.borrow_mut();
        open.find(&key, time_ms, span_ms)
    };
    if let Some(known) = known {
        if let Some(found) = read(collection, &key_of(collection, known.id)).await?
            && is_of(source, &found)
        {
            return Ok(Some(found));
        }
        open_buckets().borrow_mut().forget(&key, known.id);
    }
    if source.rolls_over {
        return Ok(None);
    }
    let found = reopened(ctx, acquired, form, collection, source, time_ms).await?;
    source.counts.reopened += u64::from(found.is_some());
    Ok(found)
}

/// Whether a bucket has the meta value of the source.
fn is_of(source: &Source, bucket: &Read) -> bool {
    let mut key = DocBuilder::new();
    if let Some(meta) = pinion_bson::get(stored_document(&bucket.value), "meta") {
        key.append_raw("", meta);
    }
    key.finish_bytes() == source.key
}

/// Looks for a bucket that this core does not know, and that has room.
async fn reopened(
    ctx: &OpContext,
    acquired: &AcquiredCollection,
    form: &SeriesForm,
    collection: &Arc<Collection>,
    source: &Source,
    time_ms: i64,
) -> Result<Option<Read>> {
    let span_ms = i64::from(form.max_span_secs) * 1000;
    let earliest_ms = time_ms.saturating_sub(span_ms);
    let date = |ms| RawBsonRef::DateTime(DateTime::from_millis(ms));
    let id = |ms, filler| bucket_id(ms, pinion_bson::ObjectId::from_bytes([filler; 12]));
    let mut filter = DocBuilder::new();
    filter
        .start_document("_id")
        .append("$gte", RawBsonRef::ObjectId(id(earliest_ms, 0)))
        .append("$lte", RawBsonRef::ObjectId(id(time_ms, 0xff)))
        .end();
    filter.start_document("meta");
    match &source.meta {
        Some(meta) => filter.append_raw("$eq", meta.as_raw_bson_ref()),
        None => filter.append("$exists", false),
    };
    filter.end();
    // A time field whose name cannot stand in a path is found by the `_id` alone.
    if !form.time.is_empty() && !form.time.starts_with('$') {
        filter
            .start_document(&format!("control.min.{}", form.time))
            .append("$gt", date(earliest_ms))
            .append("$lte", date(time_ms))
            .end();
        let last = pinion_query::MAX_BUCKET_MEASUREMENTS - 1;
        filter
            .start_document(&format!("data.{}.{last}", form.time))
            .append("$exists", false)
            .end();
    }
    filter
        .start_document("control.closed")
        .append("$ne", true)
        .end()
        .append("control.version", 1i32);
    let filter = filter.finish();
    let matcher = compute(ctx, || Matcher::parse(&filter)).await?;
    let mut request = ReadRequest::new(acquired.target(collection), matcher);
    request.limit = Some(1);
    let mut opened = Box::pin(open(ctx, acquired.source(), request, 1)).await?;
    let Some(found) = opened.stream.next_wanted(ctx, 1).await? else {
        return Ok(None);
    };
    let RawBsonRef::ObjectId(id) = pinion_catalog::document_id(stored_document(&found))? else {
        return Ok(None);
    };
    let newest = read(collection, &key_of(collection, id)).await?;
    Ok(newest.filter(|newest| is_of(source, newest)))
}
