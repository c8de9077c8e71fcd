//! `$out` and `$merge` at work: they take all that comes, write it, and give nothing.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawBson, RawDocument, RawDocumentBuf};
use pinion_catalog::{
    CollectionOptions, Uuid, create_collection, create_indexes, drop_collection,
    replace_collection, series_index,
};
use pinion_collation::Collation;
use pinion_merge::Spool;
use pinion_query::{
    Document, ExternalStage, IndexSpec, Matcher, Merge, MergeWrite, NotMatched, OutputTo, Update,
    Variables, document_text,
};
use pinion_service::compute::compute;
use pinion_service::generate::random_bytes;
use pinion_service::interrupt::is_interruption;
use pinion_wire::idl::Namespace;
use pinion_wire::limits::MAX_NAMESPACE_BYTES;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::{Node, Surroundings};
use crate::acquire::{acquire_read, acquire_stored, acquire_write};
use crate::limits::{INSERT_GROUP_BYTES, INSERT_GROUP_STATEMENTS};
use crate::parameters::parameters;
use crate::topology::{Intent, check_access, set_view};
use crate::write::{
    BatchOutcome, Change, InsertOptions, ModifyOutcome, ModifyStatement, insert_documents,
    insert_measurements, prepare_for_insert, run,
};

/// Writes all documents of a source, as `$out` or `$merge` say.
pub(super) async fn write(
    ctx: &OpContext,
    around: &Surroundings,
    stage: &ExternalStage,
    source: Node,
) -> Result<()> {
    match stage {
        ExternalStage::Out(stage) => {
            let out = Replacement {
                source,
                stage,
                around,
            };
            out.run(ctx).await
        }
        ExternalStage::Merge(stage) => {
            let merge = Merging {
                source,
                stage,
                around,
            };
            merge.run(ctx).await
        }
        _ => unreachable!("the other stages write nothing"),
    }
}

/// `$out` at work: what comes takes the place of a collection.
struct Replacement<'s> {
    source: Node,
    stage: &'s OutputTo,
    around: &'s Surroundings,
}

impl Replacement<'_> {
    async fn run(mut self, ctx: &OpContext) -> Result<()> {
        let target = target_of(self.stage, self.around)?;
        // What it makes first, it makes behind no door.
        check_access(set_view().as_deref(), ctx, &target, Intent::Write)?;
        let made = self.fill(ctx, &target).await;
        let temporary = match made {
            Ok(temporary) => temporary,
            Err((temporary, error)) => {
                if let Some(temporary) = temporary {
                    drop_collection(ctx, temporary).await?;
                }
                return Err(error);
            }
        };
        let ts = replace_collection(ctx, temporary, target, None).await?;
        self.around.written.set(Some(ts));
        Ok(())
    }

    /// Makes a collection with the options and indexes of the one there is, and what comes in it.
    async fn fill(
        &mut self,
        ctx: &OpContext,
        target: &Namespace,
    ) -> Result<Namespace, (Option<Namespace>, Error)> {
        let before = |error| (None, error);
        let (options, indexes) = self.model(ctx, target).await.map_err(before)?;
        let name = format!("tmp.agg_out.{}", Uuid(random_bytes()));
        let temporary = Namespace::new(target.db(), &name).map_err(before)?;
        let failed = |error| (Some(temporary.clone()), error);
        // One that is never renamed is gone with the next start of the node. A series takes its
        // name by another way.
        let options = CollectionOptions {
            temporary: options.time_series.is_none(),
            ..options
        };
        create_collection(ctx, temporary.clone(), options)
            .await
            .map_err(before)?;
        if !indexes.is_empty() {
            let limits = parameters().borrow().build_limits();
            create_indexes(ctx, temporary.clone(), indexes, limits, None)
                .await
                .map_err(failed)?;
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        loop {
            let next = self.source.next(ctx).await.map_err(failed)?;
            let ended = next.is_none();
            if let Some(document) = next {
                let prepared = prepare_for_insert(&document, false).await.map_err(failed)?;
                bytes += prepared.len();
                batch.push(prepared);
            }
            let is_full = batch.len() >= INSERT_GROUP_STATEMENTS || bytes >= INSERT_GROUP_BYTES;
            if !batch.is_empty() && (ended || is_full) {
                bytes = 0;
                let batch = std::mem::take(&mut batch);
                insert(ctx, &temporary, batch, true, self.around)
                    .await
                    .map_err(failed)?;
            }
            if ended {
                return Ok(temporary);
            }
        }
    }
}

impl Replacement<'_> {
    /// The options and the indexes of what takes the target's place.
    async fn model(
        &self,
        ctx: &OpContext,
        target: &Namespace,
    ) -> Result<(CollectionOptions, Vec<RawDocumentBuf>)> {
        let asked = self.around.out_series.as_ref();
        let no_series = || {
            Error::new(
                ErrorCode(7_268_700),
                "Cannot create a time-series collection from a non time-series collection.",
            )
        };
        let acquired = match acquire_stored(ctx, target.clone(), None).await {
            Err(error) if asked.is_some() && !is_interruption(&error) => return Err(no_series()),
            acquired => acquired?,
        };
        let Some(found) = acquired.collection() else {
            let options = CollectionOptions {
                time_series: asked.cloned(),
                ..CollectionOptions::default()
            };
            return Ok((options, Vec::new()));
        };
        let Some(series) = acquired.series() else {
            if asked.is_some() {
                return Err(no_series());
            }
            if found.options.capped.is_some() {
                let why = format!("namespace '{target}' is capped so it can't be used for $out");
                return Err(Error::new(ErrorCode(17152), why));
            }
            return Ok((found.options.clone(), found.index_requests()));
        };
        if let Some(asked) = asked
            && asked != series
        {
            return Err(Error::new(
                ErrorCode(7_406_103),
                format!(
                    "Time-series options inputted must match the existing time-series collection. Received: {} Found: {}",
                    document_text(&asked.to_document()),
                    document_text(&series.to_document())
                ),
            ));
        }
        let options = CollectionOptions {
            validator: None,
            clustered: None,
            ..found.options.clone()
        };
        let indexes = found.index_requests();
        let indexes = indexes
            .iter()
            .filter_map(|index| series_index(series, index));
        Ok((options, indexes.collect()))
    }
}

fn target_of(stage: &OutputTo, around: &Surroundings) -> Result<Namespace> {
    let db = stage.db.as_deref().unwrap_or(around.ns.db());
    if db.len() + 1 + stage.collection.len() > MAX_NAMESPACE_BYTES {
        let why = format!("invalid $out target: {db}.{} is too long", stage.collection);
        return Err(Error::new(ErrorCode::ILLEGAL_OPERATION, why));
    }
    Namespace::new(db, &stage.collection)
}

/// Inserts documents in their stored form; the first error ends it where they are `ordered`.
async fn insert(
    ctx: &OpContext,
    ns: &Namespace,
    documents: Vec<Bytes>,
    ordered: bool,
    around: &Surroundings,
) -> Result<()> {
    let acquired = acquire_write(ctx, ns.clone(), None).await?;
    let mut outcome = BatchOutcome::default();
    let documents = documents.into_iter().enumerate().collect();
    let options = InsertOptions {
        ordered,
        validation: around.validation,
        ..InsertOptions::default()
    };
    match acquired.series() {
        None => insert_documents(ctx, acquired, documents, options, &mut outcome).await?,
        Some(_) => {
            let into = insert_measurements(ctx, acquired, documents, options, &mut outcome);
            Box::pin(into).await?;
        }
    }
    around.written.set(around.written.get().max(outcome.last));
    match outcome.errors.into_iter().next() {
        Some(failure) => Err(failure.error),
        None => Ok(()),
    }
}

/// `$merge` at work: each document that comes is written into a collection.
struct Merging<'s> {
    source: Node,
    stage: &'s Merge,
    around: &'s Surroundings,
}

impl Merging<'_> {
    async fn run(mut self, ctx: &OpContext) -> Result<()> {
        let stage = self.stage;
        let db = stage.db.as_deref().unwrap_or(self.around.ns.db());
        let target = Namespace::new(db, &stage.collection)?;
        let collation = self.around.vars.collation.as_ref();
        check_unique(ctx, stage, &target, collation).await?;
        let mut spool = match self.around.merges_into_source {
            true => {
                let spool = Box::pin(Spool::of(ctx, &mut self.source, &self.around.memory)).await?;
                self.source = Node::nothing();
                Some(spool)
            }
            false => None,
        };
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            let next = match &mut spool {
                Some(spool) => spool.next(ctx).await?,
                None => self.source.next(ctx).await?,
            };
            let ended = next.is_none();
            if let Some(document) = next {
                let vars = &self.around.vars;
                let write = compute(ctx, || stage.write(&document, vars)).await?;
                bytes += document.as_bytes().len();
                batch.push((document, write));
            }
            if ended || batch.len() >= INSERT_GROUP_STATEMENTS || bytes >= INSERT_GROUP_BYTES {
                bytes = 0;
                self.write(ctx, stage, &target, std::mem::take(&mut batch))
                    .await?;
            }
            if ended {
                return Ok(());
            }
        }
    }

    /// Performs the writes of a batch. One that fails does not keep the others from being done, and
    /// its error ends the stage.
    async fn write(
        &self,
        ctx: &OpContext,
        stage: &Merge,
        target: &Namespace,
        batch: Vec<(Document, MergeWrite)>,
    ) -> Result<()> {
        let mut inserts = Vec::new();
        let mut failed = None;
        for (document, write) in batch {
            let done = match write {
                MergeWrite::Update {
                    filter,
                    update,
                    variables,
                } => {
                    let statement = self.statement(ctx, stage, filter, update, *variables).await;
                    match statement {
                        Ok(statement) => {
                            self.change(ctx, stage, target, &document, &statement).await
                        }
                        Err(error) => Err(error),
                    }
                }
                MergeWrite::Unmatched if stage.not_matched == NotMatched::Discard => Ok(()),
                MergeWrite::Unmatched if stage.not_matched == NotMatched::Fail => Err(not_found()),
                MergeWrite::Insert | MergeWrite::Unmatched => prepare_for_insert(&document, false)
                    .await
                    .map(|prepared| inserts.push(prepared)),
            };
            match done {
                Err(error) if is_interruption(&error) => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
                Ok(()) => {}
            }
        }
        if !inserts.is_empty() {
            insert(ctx, target, inserts, false, self.around).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// The update of one document of the target.
    async fn statement(
        &self,
        ctx: &OpContext,
        stage: &Merge,
        filter: RawDocumentBuf,
        update: RawBson,
        variables: Variables,
    ) -> Result<ModifyStatement> {
        let parse = || {
            let update = Update::parse_with(update.as_raw_bson_ref(), None, &variables)?;
            Ok((update, Matcher::parse_with(&filter, &variables)?))
        };
        let (update, matcher) = compute(ctx, parse).await?;
        Ok(ModifyStatement {
            upsert: stage.inserts_by_update(),
            validation: self.around.validation,
            ..ModifyStatement::plain(matcher, filter, Change::Update(update))
        })
    }

    /// Changes the document that has the same key. Where there is none, and the update does not
    /// make it, the one that came is inserted as it is: a pipeline of `whenMatched` says nothing
    /// about it.
    async fn change(
        &self,
        ctx: &OpContext,
        stage: &Merge,
        target: &Namespace,
        document: &Document,
        statement: &ModifyStatement,
    ) -> Result<()> {
        let mut taken = None;
        loop {
            let acquired = acquire_write(ctx, target.clone(), None).await?;
            let mut done = ModifyOutcome::default();
            run(ctx, acquired, statement, &mut done).await?;
            let written = self.around.written.get().max(done.last);
            self.around.written.set(written);
            if done.matched > 0 || done.upserted.is_some() {
                return Ok(());
            }
            match (stage.not_matched, taken) {
                (NotMatched::Discard, _) => return Ok(()),
                (NotMatched::Fail, _) => return Err(not_found()),
                // It is another key that was taken.
                (NotMatched::Insert, Some(error)) => return Err(error),
                (NotMatched::Insert, None) => {}
            }
            let prepared = prepare_for_insert(document, false).await?;
            match insert(ctx, target, vec![prepared], true, self.around).await {
                // Another client may have inserted one with this key meanwhile: then it is there to
                // be changed.
                Err(error) if error.code == ErrorCode::DUPLICATE_KEY => taken = Some(error),
                result => return result,
            }
        }
    }
}

fn not_found() -> Error {
    Error::new(
        ErrorCode(13113),
        "$merge could not find a matching document in the target collection for at least one document in the source \
         collection",
    )
}

/// Checks that the `on` fields identify the target's documents, as strings compare here.
async fn check_unique(
    ctx: &OpContext,
    stage: &Merge,
    target: &Namespace,
    collation: Option<&Arc<Collation>>,
) -> Result<()> {
    let on = stage.on();
    let acquired = acquire_read(ctx, target.clone(), None).await?;
    let supports = |spec: &IndexSpec| {
        let fields: Vec<&str> = names(&spec.key).collect();
        (spec.unique || fields == ["_id"])
            && spec.ready
            && spec.filter.is_none()
            && spec.collation.as_ref() == collation
            && fields.len() == on.len()
            && on.iter().all(|name| fields.contains(name))
    };
    let found = match acquired.collection() {
        Some(collection) => collection.index_specs().iter().any(supports),
        // It will have the index on `_id` alone.
        None => on == ["_id"],
    };
    if found {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode(51183),
        "Cannot find index to verify that join fields will be unique",
    ))
}

fn names(document: &RawDocument) -> impl Iterator<Item = &str> {
    pinion_bson::elements(document).map(|(name, _)| name)
}
