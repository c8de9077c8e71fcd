//! Statements that find their documents first: update, delete, findAndModify.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{Collection, core_catalog};
use pinion_collation::Collation;
use pinion_query::{Hint, Matcher, MultikeyPaths, SortPattern, Update};
use pinion_service::compute::compute;
use pinion_service::fail_points;
use pinion_service::generate::new_object_id;
use pinion_service::operator_counts::compute_counted;
use pinion_service::session_ids::is_in;
use pinion_storage::{Key, TreeId};
use pinion_wire::{Error, ErrorCode, OpContext, Result, Written};

use super::batch::BatchOutcome;
use super::document::{prepare_for_insert, update_context};
use super::group::change_group;
use super::insert::{InsertOptions, Stamps, insert_documents};
use super::modify::{Change, Modified, ModifyRequest, modify_at_owner};
use super::multikey::mark_multikey;
use super::shard_key::{check_upserted, ownership_of_write};
use super::validation::Validation;
use crate::acquire::{AcquiredCollection, ReadSource, ReadTarget, acquire};
use crate::cursor_reads::check_still_there;
use crate::limits::{MAX_UPSERT_ATTEMPTS, TRANSACTION_TARGET_BYTES};
use crate::open_transactions::no_measurements;
use crate::read::{Again, LeafReport, ReadRequest, Targets, open_ids, parse_sort, target_group};
use crate::sessions::RetryableWrite;
use crate::statements::{ExecutedChange, Stamp};

/// One statement of `update` or `delete`, or a `findAndModify`.
#[derive(Clone)]
pub struct ModifyStatement {
    pub filter: RawDocumentBuf,
    pub matcher: Matcher,
    pub change: Arc<Change>,
    pub multi: bool,
    pub upsert: bool,
    pub hint: Option<Hint>,
    pub sort: Option<SortPattern>,
    pub validation: Validation,
    pub wants_documents: bool,
    /// What goes into the entry of a retryable statement.
    pub stamp: Option<Stamp>,
    /// Whether it moves documents between shards, as the log then says.
    pub from_migrate: bool,
}

impl ModifyStatement {
    /// Changes one document, and nothing more.
    pub fn plain(matcher: Matcher, filter: RawDocumentBuf, change: Change) -> Self {
        ModifyStatement {
            filter,
            matcher,
            change: Arc::new(change),
            multi: false,
            upsert: false,
            hint: None,
            sort: None,
            validation: Validation::default(),
            wants_documents: false,
            stamp: None,
            from_migrate: false,
        }
    }

    /// The same statement with its filter's `$text` searching the text index of its collection.
    pub(crate) fn bound(self, acquired: &AcquiredCollection) -> Result<ModifyStatement> {
        acquired.check_text(&self.matcher)?;
        let Some(collection) = acquired.collection() else {
            return Ok(self);
        };
        let matcher = self.matcher.with_text_index(collection.index_specs())?;
        Ok(ModifyStatement { matcher, ..self })
    }
}

/// Parses the sort of a statement. Beside a filter that is nothing but an `_id` it has no meaning,
/// and MongoDB does not look at it.
pub fn sort_beside(
    matcher: &Matcher,
    filter: &RawDocument,
    sort: Option<&RawDocument>,
) -> Result<Option<SortPattern>> {
    let mut fields = pinion_bson::elements(filter);
    let only_id = fields.next().is_some_and(|(name, _)| name == "_id") && fields.next().is_none();
    if only_id && matcher.id_equality().is_some() {
        return Ok(None);
    }
    parse_sort(sort, matcher.collation())
}

/// What a statement did.
#[derive(Debug, Default)]
pub struct ModifyOutcome {
    pub matched: i64,
    pub modified: i64,
    pub upserted: Option<RawBson>,
    /// Of the last document, if the statement wants documents.
    pub old: Option<Bytes>,
    pub new: Option<Bytes>,
    pub last: Option<pinion_clock::Timestamp>,
}

impl ModifyOutcome {
    pub(super) fn count(&mut self, modified: Modified) -> bool {
        match modified {
            Modified::NoMatch | Modified::NeedsMultikey { .. } => false,
            Modified::Unchanged { document } => {
                self.matched += 1;
                self.old = document.clone();
                self.new = document;
                true
            }
            Modified::Changed { ts, old, new } => {
                self.matched += 1;
                self.modified += 1;
                self.last = self.last.max(Some(ts));
                self.old = old;
                self.new = new;
                true
            }
        }
    }
}

impl ModifyOutcome {
    /// Notes in the retryable write what its statement at this place did, if it did something.
    fn note_executed(&self, retryable: &RetryableWrite, place: usize, statement: &ModifyStatement) {
        let change = match (&self.upserted, &*statement.change) {
            (Some(id), _) => ExecutedChange::Insert {
                id: Some(id.clone()),
            },
            (None, _) if self.modified == 0 => return,
            (None, Change::Update(_)) => ExecutedChange::Update,
            (None, Change::Delete) => ExecutedChange::Delete,
        };
        let stamp = match &change {
            ExecutedChange::Insert { .. } => statement.stamp.clone().map(Stamp::of_insert),
            ExecutedChange::Update | ExecutedChange::Delete => statement.stamp.clone(),
        };
        if let (Some(stamp), Some(ts)) = (stamp, self.last) {
            retryable.wrote(place, ts, change, stamp.session.image);
        }
    }
}

/// Runs the statement at this place of a command, and notes in the command's retryable write what
/// it did.
///
/// # Errors
/// As of [`run`].
pub async fn run_and_report(
    ctx: &OpContext,
    acquired: AcquiredCollection,
    (place, statement): (usize, &ModifyStatement),
    retryable: Option<&RetryableWrite>,
    done: &mut ModifyOutcome,
) -> Result<()> {
    if statement.stamp.is_some() {
        fail_points::on_retryable_write(ctx).await?;
    }
    let result = run(ctx, acquired, statement, done).await;
    if let Some(retryable) = retryable {
        done.note_executed(retryable, place, statement);
    }
    result
}

/// Parses the statement at this place of a command, with the collation that it has there by
/// default, and runs it as a part of the command's retryable write.
///
/// # Errors
/// Those of the parser, and as of [`run`].
pub async fn parse_and_run(
    ctx: &OpContext,
    acquired: AcquiredCollection,
    parse: impl Fn(Option<&Arc<Collation>>) -> Result<ModifyStatement> + Sync,
    (place, stamp): (usize, Option<Stamp>),
    retryable: Option<&RetryableWrite>,
    done: &mut ModifyOutcome,
) -> Result<()> {
    let default = acquired.collation();
    let statement = compute_counted(ctx, || parse(default)).await?;
    let statement = ModifyStatement { stamp, ..statement };
    run_and_report(ctx, acquired, (place, &statement), retryable, done).await
}

enum Step {
    Done,
    Multikey(Arc<Collection>, Vec<(TreeId, MultikeyPaths)>),
    /// The document that was found changed so that it does not match any more: look again. Or the
    /// node was locked: continue when it is not.
    Again,
}

/// The documents of a statement that changes several, from the first hold of the collection's gate
/// to the last. A statement that was stopped continues where it was: what it changed already must
/// not be found a second time.
struct Several {
    targets: Targets,
    collection: Arc<Collection>,
    /// Found, and waiting until their indexes are multikey.
    waiting: Vec<Key>,
}

/// Runs one statement. Documents changed before an error stay changed and are counted in `outcome`.
pub async fn run(
    ctx: &OpContext,
    acquired: AcquiredCollection,
    statement: &ModifyStatement,
    outcome: &mut ModifyOutcome,
) -> Result<()> {
    let result = run_statement(ctx, acquired, statement, outcome).await;
    let changed = outcome.modified as u64;
    let written = match &*statement.change {
        Change::Delete => Written {
            deleted: changed,
            ..Written::default()
        },
        Change::Update(_) => Written {
            matched: outcome.matched as u64,
            modified: changed,
            upserted: u64::from(outcome.upserted.is_some()),
            ..Written::default()
        },
    };
    ctx.work().wrote(written);
    result
}

async fn run_statement(
    ctx: &OpContext,
    mut acquired: AcquiredCollection,
    statement: &ModifyStatement,
    outcome: &mut ModifyOutcome,
) -> Result<()> {
    let bound;
    let statement = if statement.matcher.has_text() {
        bound = statement.clone().bound(&acquired)?;
        &bound
    } else {
        statement
    };
    let mut several: Option<Several> = None;
    let mut attempts = 0;
    loop {
        if let Some(Several {
            targets,
            collection,
            ..
        }) = &several
        {
            check_still_there(acquired.ns(), collection.uuid, &targets.indexes, None)?;
        }
        // The name may also have become that of a series while its gate was not held.
        if acquired.series().is_some() {
            if is_in(ctx) {
                return Err(no_measurements("write to", acquired.ns()));
            }
            return Box::pin(super::series::run(ctx, acquired, statement, outcome)).await;
        }
        let found = match acquired.collection() {
            Some(_) => {
                Some(change_matching(ctx, &acquired, statement, &mut several, outcome).await?)
            }
            None => None,
        };
        let left = match found {
            Some(Step::Multikey(collection, trees)) => {
                let left = acquired.leave();
                mark_multikey(ctx, &left.ns, collection.uuid, trees).await?;
                left
            }
            Some(Step::Again) => {
                pinion_service::interrupt::check(ctx)?;
                acquired.leave()
            }
            Some(Step::Done) | None if outcome.matched > 0 || !statement.upsert => return Ok(()),
            None => {
                pinion_catalog::check_creatable(acquired.ns())?;
                // Looked for in the collection that is there then, the statement may be refused: by
                // its hint.
                (acquired, _) = acquired.create(ctx).await?;
                continue;
            }
            Some(Step::Done) => {
                let left = acquired.wanted().clone();
                match upsert(ctx, acquired, statement, outcome).await? {
                    None => return Ok(()),
                    Some(taken) => try_again(ctx, &mut attempts, taken)?,
                }
                left
            }
        };
        acquired = acquire(ctx, left).await?;
    }
}

/// Another client inserted the same document meanwhile: it is there to be updated now. One that the
/// shard does not own never is.
///
/// # Errors
/// That the key is taken, after the last attempt; the operation is stopped.
fn try_again(ctx: &OpContext, attempts: &mut u32, taken: Error) -> Result<()> {
    *attempts += 1;
    match *attempts < MAX_UPSERT_ATTEMPTS {
        true => pinion_service::interrupt::check(ctx),
        false => Err(taken),
    }
}

async fn change_matching(
    ctx: &OpContext,
    acquired: &AcquiredCollection,
    statement: &ModifyStatement,
    several: &mut Option<Several>,
    outcome: &mut ModifyOutcome,
) -> Result<Step> {
    let collection = acquired.collection().expect("asked by the caller");
    let id = match statement.hint.is_none() && acquired.is_plain() {
        true => statement.matcher.id_lookup(collection.collation.as_ref()),
        false => None,
    };
    let request = Arc::new(ModifyRequest {
        collection: collection.clone(),
        ownership: ownership_of_write(acquired, statement.from_migrate),
        matcher: statement.matcher.clone(),
        change: statement.change.clone(),
        multi: statement.multi,
        validation: statement.validation,
        wants_documents: statement.wants_documents,
        stamp: statement.stamp.clone(),
        from_migrate: statement.from_migrate,
        is_lookup: id.is_some(),
        reads: match acquired.source() {
            ReadSource::In(reads) => Some(reads),
            _ => None,
        },
    });
    if let Some(id) = id {
        ctx.work().planned(Arc::new(LeafReport("IDHACK")));
        let key = collection.id_key(id.as_raw_bson_ref());
        let modified = modify_at_owner(&request, key, ctx).await?;
        if let Modified::NeedsMultikey { trees } = modified {
            return Ok(Step::Multikey(collection.clone(), trees));
        }
        outcome.count(modified);
        return Ok(Step::Done);
    }
    let targets = async || {
        let target = ReadTarget {
            collection: collection.clone(),
            ownership: request.ownership.clone(),
        };
        let mut read = ReadRequest::new(target, statement.matcher.clone());
        read.sort = statement.sort.clone();
        read.hint = statement.hint.clone();
        read.limit = (!statement.multi).then_some(1);
        // A document that was deleted is not found again.
        let again = match (statement.multi, &*statement.change) {
            (true, Change::Update(_)) => Again::PassedOver,
            _ => Again::Given,
        };
        open_ids(ctx, acquired.source(), read, again).await
    };
    if !statement.multi {
        let Some(key) = targets().await?.next(ctx).await? else {
            return Ok(Step::Done);
        };
        return Ok(match modify_at_owner(&request, key, ctx).await? {
            Modified::NeedsMultikey { trees } => Step::Multikey(collection.clone(), trees),
            modified => {
                if outcome.count(modified) {
                    Step::Done
                } else {
                    Step::Again
                }
            }
        });
    }
    let several = match several {
        Some(several) => several,
        None => several.insert(Several {
            targets: targets().await?,
            collection: collection.clone(),
            waiting: Vec::new(),
        }),
    };
    // What a transaction writes it finds itself, and must not change a second time.
    if request.reads.is_some() {
        let mut bytes = 0;
        while let Some(key) = several.targets.next(ctx).await? {
            bytes += key.len() + std::mem::size_of::<Key>();
            if bytes > TRANSACTION_TARGET_BYTES {
                return Err(too_many_targets());
            }
            several.waiting.push(key);
        }
    }
    loop {
        let mut group = std::mem::take(&mut several.waiting);
        let at_once = target_group();
        if group.len() > at_once {
            several.waiting = group.split_off(at_once);
        }
        while group.len() < at_once {
            match several.targets.next(ctx).await? {
                Some(key) => group.push(key),
                None => break,
            }
        }
        if group.is_empty() {
            return Ok(Step::Done);
        }
        let trees = change_group(ctx, &request, group, &mut several.waiting, outcome).await?;
        if !trees.is_empty() {
            return Ok(Step::Multikey(collection.clone(), trees));
        }
        // The lock of `fsync` does not wait for the end of this.
        if core_catalog().gates().is_locked() {
            return Ok(Step::Again);
        }
    }
}

fn too_many_targets() -> Error {
    Error::new(
        ErrorCode::TRANSACTION_TOO_LARGE_FOR_CACHE,
        "a statement of a transaction would change more documents than one may",
    )
}

/// What an upsert inserts, before it is brought into its stored form.
pub(super) async fn upserted(
    ctx: &OpContext,
    statement: &ModifyStatement,
    update: &Update,
) -> Result<RawDocumentBuf> {
    let (context, new_id) = (update_context(update, true, None), new_object_id());
    compute(ctx, || update.upsert(&statement.matcher, &context, new_id)).await
}

/// Inserts what the update makes out of the filter. The error where the document that the filter
/// names has appeared.
async fn upsert(
    ctx: &OpContext,
    acquired: AcquiredCollection,
    statement: &ModifyStatement,
    outcome: &mut ModifyOutcome,
) -> Result<Option<Error>> {
    let Change::Update(update) = &*statement.change else {
        return Err(Error::internal("a delete cannot upsert"));
    };
    let made = upserted(ctx, statement, update).await?;
    let document = prepare_for_insert(&made, update.keeps_empty_timestamps()).await?;
    let ownership = ownership_of_write(&acquired, statement.from_migrate);
    if let (Some(ownership), Some(collection)) = (ownership, acquired.collection()) {
        let (filter, new) = (
            &statement.filter,
            pinion_catalog::stored_document(&document),
        );
        check_upserted(&*ownership, collection, ctx, filter, new)?;
    }
    let mut batch = BatchOutcome::default();
    let stamp = statement.stamp.clone().map(Stamp::of_insert);
    let options = InsertOptions {
        validation: statement.validation,
        stamps: stamp.as_ref().map_or(Stamps::None, Stamps::One),
        from_migrate: statement.from_migrate,
        ..InsertOptions::default()
    };
    let documents = vec![(0, document.clone())];
    insert_documents(ctx, acquired, documents, options, &mut batch).await?;
    if let Some(failure) = batch.errors.pop() {
        // The document to update is there now, if the filter asks for what is taken; otherwise the
        // conflict is the answer. In a transaction that is to be looked for again where it was not
        // found, in the same snapshot.
        if failure.error.code == ErrorCode::DUPLICATE_KEY
            && !is_in(ctx)
            && filter_matches_taken(&failure.error, statement)
        {
            return Ok(Some(failure.error));
        }
        return Err(failure.error);
    }
    outcome.last = outcome.last.max(batch.last);
    let raw = pinion_catalog::stored_document(&document);
    outcome.upserted = Some(pinion_catalog::document_id(raw)?.into());
    outcome.new = statement.wants_documents.then_some(document);
    Ok(None)
}

/// Whether the filter is an equality on exactly the fields of the unique key that was taken, so
/// that a retry finds its owner.
fn filter_matches_taken(error: &Error, statement: &ModifyStatement) -> bool {
    let Some(extra) = &error.extra else {
        return false;
    };
    let (Ok(pattern), Ok(value)) = (
        extra.get_document("keyPattern"),
        extra.get_document("keyValue"),
    ) else {
        return false;
    };
    // What an index with a collation holds of strings, if the statement compares them so too.
    let collation = match extra.get_document("collation") {
        Ok(collation) => match statement.matcher.collation() {
            Some(own) if *own.document() == *collation => Some(own),
            _ => return false,
        },
        Err(_) => None,
    };
    let equal = |a: RawBsonRef<'_>, held: RawBsonRef<'_>| {
        let keys = collation.and_then(|collation| pinion_query::with_sort_keys(collation, a));
        let a = keys.as_ref().map_or(a, RawBson::as_raw_bson_ref);
        pinion_bson::values_equal(a, held)
    };
    let same = |name: &str| {
        let wanted = match pinion_bson::get(&statement.filter, name) {
            Some(RawBsonRef::Document(condition))
                if condition.get("$eq").is_ok_and(|eq| eq.is_some()) =>
            {
                pinion_bson::get(condition, "$eq")
            }
            other => other,
        };
        matches!((wanted, pinion_bson::get(value, name)), (Some(a), Some(b)) if equal(a, b))
    };
    pinion_bson::elements(pattern).all(|(name, _)| same(name))
        && pinion_bson::elements(&statement.filter).count()
            == pinion_bson::elements(pattern).count()
}
