//! Updates and deletes of measurements. A delete may ask for any measurements, and leaves buckets
//! without them; an update changes the meta field, and so whole buckets.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, ObjectId, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{
    Collection, core_catalog, document_id, from_write_error, set_multikey, stored_document,
};
use pinion_query::{
    Hint, Matcher, MultikeyPaths, Packing, SeriesForm, Update, Variables, bucket_filter,
    is_about_meta, measurement_count, measurements, normal_meta, pack,
};
use pinion_service::compute::compute;
use pinion_service::interrupt::{check, pause};
use pinion_storage::{Key, Read, TreeId, WriteError, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::buckets::{BucketWrite, build, read, start_of};
use crate::acquire::{AcquiredCollection, ReadTarget, acquire};
use crate::cursor_reads::check_still_there;
use crate::read::{Again, ReadRequest, Targets, of_buckets, open_ids};
use crate::write::backoff::Backoff;
use crate::write::document::update_context;
use crate::write::modify::Change;
use crate::write::shard_key::check_key_kept;
use crate::write::target::{ModifyOutcome, ModifyStatement};

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

/// The buckets of a statement, from the first hold of the series' gate to the last. A statement
/// that was stopped continues where it was: what it changed already must not be found a second
/// time.
struct Found {
    collection: Arc<Collection>,
    targets: Targets,
    /// Found, and waiting until its indexes are multikey.
    waiting: Option<Key>,
}

/// Runs a statement on a series. Measurements changed before an error stay changed and are counted.
pub async fn run(
    ctx: &OpContext,
    mut acquired: AcquiredCollection,
    statement: &ModifyStatement,
    outcome: &mut ModifyOutcome,
) -> Result<()> {
    let mut found: Option<Found> = None;
    loop {
        if let Some(Found {
            collection,
            targets,
            ..
        }) = &found
        {
            check_still_there(&collection.ns, collection.uuid, &targets.indexes, None)?;
        }
        let Some(series) = acquired.series() else {
            return Err(invalid(format!(
                "{} is no time series any more",
                acquired.ns()
            )));
        };
        let form = series.form();
        refuse(&form, statement)?;
        let Some(collection) = acquired.collection() else {
            return Ok(());
        };
        let changing = Changing {
            form: &form,
            collection,
            target: acquired.target(collection),
            statement,
            of_sources: is_about_meta(&form, &statement.filter),
        };
        if found.is_none() {
            let hint = of_buckets(statement.hint.clone(), Some(series));
            let request = changing.request(ctx, hint).await?;
            // A measurement that was deleted is not found again.
            let again = match &*statement.change {
                Change::Update(_) => Again::PassedOver,
                Change::Delete => Again::Given,
            };
            found = Some(Found {
                collection: collection.clone(),
                targets: open_ids(ctx, acquired.source(), request, again).await?,
                waiting: None,
            });
        }
        let found = found.as_mut().expect("set before");
        match changing.run(ctx, found, outcome).await? {
            Step::Done => return Ok(()),
            Step::Left => acquired = acquire(ctx, acquired.leave()).await?,
            Step::Multikey(paths) => {
                let (ns, uuid) = (collection.ns.clone(), collection.uuid);
                let left = acquired.leave();
                Box::pin(set_multikey(ctx, ns, uuid, paths)).await?;
                acquired = acquire(ctx, left).await?;
            }
        }
    }
}

/// The read that finds the buckets of a statement.
pub struct SeriesTargets {
    pub request: ReadRequest,
    /// Whether all measurements of a bucket match or none.
    pub of_sources: bool,
}

/// How the buckets of a statement are found; `None` where it does not change a series that is
/// there.
pub async fn series_targets(
    ctx: &OpContext,
    acquired: &AcquiredCollection,
    statement: &ModifyStatement,
) -> Result<Option<SeriesTargets>> {
    let (Some(series), Some(collection)) = (acquired.series(), acquired.collection()) else {
        return Ok(None);
    };
    let form = series.form();
    refuse(&form, statement)?;
    let of_sources = is_about_meta(&form, &statement.filter);
    let changing = Changing {
        form: &form,
        collection,
        target: acquired.target(collection),
        statement,
        of_sources,
    };
    let hint = of_buckets(statement.hint.clone(), Some(series));
    let request = changing.request(ctx, hint).await?;
    Ok(Some(SeriesTargets {
        request,
        of_sources: of_sources && statement.multi,
    }))
}

/// Refuses what MongoDB does not let happen to series.
fn refuse(form: &SeriesForm, statement: &ModifyStatement) -> Result<()> {
    if statement.sort.is_some() {
        return Err(invalid(
            "Cannot perform a findAndModify with sort on a time-series collection",
        ));
    }
    let Change::Update(update) = &*statement.change else {
        return Ok(());
    };
    if !statement.multi {
        return Err(invalid(
            "Cannot perform a non-multi update on a time-series collection",
        ));
    }
    if statement.upsert {
        return Err(invalid(
            "Cannot perform an upsert on a time-series collection",
        ));
    }
    let Some(meta) = &form.meta else {
        return Err(invalid(
            "Cannot perform an update on a time-series collection that does not have a metaField",
        ));
    };
    if !is_about_meta(form, &statement.filter) {
        return Err(invalid(format!(
            "Cannot perform an update on a time-series collection when querying on a field that is not the metaField '{meta}'"
        )));
    }
    let Some(mut paths) = update.operator_paths() else {
        return Err(invalid(
            "Cannot perform an update on a time-series collection other than with update operators",
        ));
    };
    match paths.find(|path| form.meta_path(path).is_none()) {
        Some(path) => Err(invalid(format!(
            "Cannot perform an update on a time-series collection which updates a field that is not the metaField '{meta}': '{path}'"
        ))),
        None => Ok(()),
    }
}

/// How far a statement came.
enum Step {
    Done,
    /// The gate must be left for a while.
    Left,
    Multikey(Vec<(TreeId, MultikeyPaths)>),
}

/// What a bucket becomes.
enum Becomes {
    /// As it is.
    Same { matched: usize },
    Other {
        /// `None` where nothing is left in it.
        new: Option<RawDocumentBuf>,
        changed: usize,
        /// The last measurement that was deleted.
        last: Option<RawDocumentBuf>,
    },
}

struct Changing<'a> {
    form: &'a SeriesForm,
    collection: &'a Arc<Collection>,
    target: ReadTarget,
    statement: &'a ModifyStatement,
    /// Whether the filter speaks of the meta field alone.
    of_sources: bool,
}

impl Changing<'_> {
    /// The read of the buckets that may have measurements of the statement.
    async fn request(&self, ctx: &OpContext, hint: Option<Hint>) -> Result<ReadRequest> {
        let statement = self.statement;
        let collation = statement.matcher.collation();
        let alike = collation == self.collection.collation.as_ref();
        let variables = Variables {
            collation: collation.cloned(),
            ..Variables::default()
        };
        let filter = || {
            let divided = bucket_filter(self.form, &statement.filter, alike);
            Matcher::parse_with(&divided.buckets, &variables)
        };
        let matcher = compute(ctx, filter).await?;
        let mut request = ReadRequest::new(self.target.clone(), matcher);
        request.hint = hint;
        Ok(request)
    }

    async fn run(
        &self,
        ctx: &OpContext,
        found: &mut Found,
        outcome: &mut ModifyOutcome,
    ) -> Result<Step> {
        loop {
            let key = match found.waiting.take() {
                Some(key) => key,
                None => match found.targets.next(ctx).await? {
                    Some(key) => key,
                    None => return Ok(Step::Done),
                },
            };
            pause(ctx).await?;
            if let Some(paths) = self.change(ctx, &key, outcome).await? {
                found.waiting = Some(key);
                return Ok(Step::Multikey(paths));
            }
            if !self.statement.multi && outcome.matched > 0 {
                return Ok(Step::Done);
            }
            // The lock of `fsync` does not wait for the end of this.
            if core_catalog().gates().is_locked() {
                return Ok(Step::Left);
            }
        }
    }

    /// Changes one bucket; gives the indexes that must be multikey before.
    async fn change(
        &self,
        ctx: &OpContext,
        key: &Key,
        outcome: &mut ModifyOutcome,
    ) -> Result<Option<Vec<(TreeId, MultikeyPaths)>>> {
        let mut backoff = Backoff::default();
        loop {
            check(ctx)?;
            let Some(old) = read(self.collection, key).await? else {
                return Ok(None);
            };
            let becomes = compute(ctx, || self.becomes(&old)).await?;
            let (new, changed, last) = match becomes {
                Becomes::Same { matched } => {
                    outcome.matched += matched as i64;
                    return Ok(None);
                }
                Becomes::Other { new, changed, last } => (new, changed, last),
            };
            if let (Some(ownership), Some(new)) = (&self.target.ownership, &new) {
                check_key_kept(&**ownership, stored_document(&old.value), new)?;
            }
            let write = BucketWrite {
                old: Some(old),
                new: new.map(|new| Bytes::from(new.into_bytes())),
            };
            let built = build(ctx, self.collection, &write, self.statement.stamp.as_ref()).await?;
            if !built.newly_multikey.is_empty() {
                return Ok(Some(built.newly_multikey));
            }
            let mut results = storage().execute(vec![built.statement], true).await;
            match results.pop().expect("one statement has one result") {
                Ok(ts) => {
                    outcome.matched += changed as i64;
                    outcome.modified += changed as i64;
                    outcome.last = outcome.last.max(Some(ts));
                    if self.statement.wants_documents {
                        outcome.old = last.map(|last| Bytes::from(last.into_bytes()));
                    }
                    return Ok(None);
                }
                Err(WriteError::Conflict | WriteError::Missing { .. }) => {
                    if !backoff.conflict(ctx).await? {
                        return Err(from_write_error(WriteError::Conflict));
                    }
                }
                Err(WriteError::CacheFull) => {
                    if !backoff.cache_full(ctx).await? {
                        return Err(from_write_error(WriteError::CacheFull));
                    }
                }
                Err(error) => return Err(from_write_error(error)),
            }
        }
    }

    fn becomes(&self, old: &Read) -> Result<Becomes> {
        let bucket = stored_document(&old.value);
        match &*self.statement.change {
            Change::Delete => self.without(bucket),
            Change::Update(update) => self.with_meta(bucket, update),
        }
    }

    /// A measurement of the bucket as far as its source determines it.
    fn source_of(&self, bucket: &RawDocument) -> RawDocumentBuf {
        let mut source = DocBuilder::new();
        if let (Some(name), Some(meta)) = (&self.form.meta, pinion_bson::get(bucket, "meta")) {
            source.append_raw(name, meta);
        }
        source.finish()
    }

    /// The bucket without the measurements that match.
    fn without(&self, bucket: &RawDocument) -> Result<Becomes> {
        let count = measurement_count(self.form, bucket);
        if self.of_sources && self.statement.multi && !self.statement.wants_documents && count > 0 {
            return Ok(
                match self.statement.matcher.matches(&*self.source_of(bucket))? {
                    true => Becomes::Other {
                        new: None,
                        changed: count,
                        last: None,
                    },
                    false => Becomes::Same { matched: 0 },
                },
            );
        }
        let (mut kept, mut last, mut changed) = (Vec::new(), None, 0);
        for measurement in measurements(self.form, bucket)? {
            let wanted = self.statement.multi || changed == 0;
            match wanted && self.statement.matcher.matches(&measurement)? {
                true => {
                    changed += 1;
                    last = Some(measurement);
                }
                false => kept.push(measurement),
            }
        }
        if changed == 0 {
            return Ok(Becomes::Same { matched: 0 });
        }
        let new = match kept.is_empty() {
            true => None,
            false => Some(self.repacked(bucket, &kept)?),
        };
        Ok(Becomes::Other { new, changed, last })
    }

    fn repacked(&self, bucket: &RawDocument, kept: &[RawDocumentBuf]) -> Result<RawDocumentBuf> {
        let damaged = || Error::internal("a bucket has no time or no ObjectId");
        let RawBsonRef::ObjectId(id) = document_id(bucket)? else {
            return Err(damaged());
        };
        let meta = pinion_bson::get(bucket, "meta").map(RawBson::from);
        let start_ms = start_of(self.form, bucket).ok_or_else(damaged)?;
        let into = Packing::New {
            id,
            start_ms,
            meta: meta.as_ref(),
        };
        let kept: Vec<&RawDocument> = kept.iter().map(|one| &**one).collect();
        let packed = pack(self.form, self.collection.collation.as_deref(), into, &kept)?;
        match packed.taken == kept.len() {
            true => Ok(packed.bucket),
            // Another program wrote it, which puts more into a bucket than it may hold here.
            false => Err(invalid(format!(
                "the bucket {} holds more than a bucket may",
                ObjectId::to_hex(id)
            ))),
        }
    }

    /// The bucket with another meta value: what an update makes of a measurement that has nothing
    /// else.
    fn with_meta(&self, bucket: &RawDocument, update: &Update) -> Result<Becomes> {
        let matched = measurement_count(self.form, bucket);
        let name = self.form.meta.as_deref().unwrap_or_default();
        let before = self.source_of(bucket);
        let Some(position) = self.statement.matcher.matches_with_position(&before)? else {
            return Ok(Becomes::Same { matched: 0 });
        };
        let context = update_context(update, false, position.array_index);
        let Some(after) = update.apply(&before, &context)? else {
            return Ok(Becomes::Same { matched });
        };
        let meta = pinion_bson::get(&after, name).map(normal_meta);
        let mut out = DocBuilder::with_capacity(bucket.as_bytes().len());
        for (field, value) in pinion_bson::elements(bucket) {
            match (field, &meta) {
                ("meta", _) => {}
                ("data", Some(meta)) => {
                    out.append_raw("meta", meta.as_raw_bson_ref());
                    out.append_raw(field, value);
                }
                _ => {
                    out.append_raw(field, value);
                }
            }
        }
        Ok(Becomes::Other {
            new: Some(out.finish()),
            changed: matched,
            last: None,
        })
    }
}
