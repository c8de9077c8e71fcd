//! `$out` and `$merge` at work: they take all that comes, write it, and give nothing.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::RawDocument;
use pinion_catalog::{
    CollectionOptions, Uuid, create_collection, create_indexes, drop_collection, rename_collection,
};
use pinion_collation::Collation;
use pinion_query::{
    Document, IndexSpec, Matcher, Merge, MergeWrite, NotMatched, OutputTo, Outside, Update,
};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::{Node, Surroundings};
use crate::acquire::{acquire_read, acquire_write};
use crate::compute::compute;
use crate::limits::{INSERT_GROUP_BYTES, INSERT_GROUP_STATEMENTS};
use crate::state::state;
use crate::write::{
    BatchOutcome, Change, InsertOptions, ModifyOutcome, ModifyStatement, insert_documents,
    prepare_for_insert, run,
};

pub(crate) struct OutNode {
    source: Node,
    stage: Arc<Outside>,
    around: Rc<Surroundings>,
    done: bool,
}

impl OutNode {
    pub(super) fn new(source: Node, stage: Arc<Outside>, around: Rc<Surroundings>) -> OutNode {
        OutNode {
            source,
            stage,
            around,
            done: false,
        }
    }

    pub(super) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        if std::mem::replace(&mut self.done, true) {
            return Ok(None);
        }
        let Outside::Out(stage) = &*self.stage else {
            unreachable!("made of such a stage");
        };
        let target = target_of(stage, &self.around)?;
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
        let ts = rename_collection(ctx, temporary, target, true).await?;
        self.around.written.set(Some(ts));
        Ok(None)
    }

    /// Makes a collection with the options and indexes of the one there is, and what comes in it.
    async fn fill(
        &mut self,
        ctx: &OpContext,
        target: &Namespace,
    ) -> Result<Namespace, (Option<Namespace>, Error)> {
        let before = |error| (None, error);
        let acquired = acquire_read(ctx, target.clone(), None)
            .await
            .map_err(before)?;
        let (options, indexes) = match acquired.collection() {
            None => (CollectionOptions::default(), Vec::new()),
            Some(found) => {
                if found.options.capped.is_some() {
                    let why =
                        format!("namespace '{target}' is capped so it can't be used for $out");
                    return Err((None, Error::new(ErrorCode(17152), why)));
                }
                (found.options.clone(), found.index_requests())
            }
        };
        drop(acquired);
        let name = format!("tmp.agg_out.{}", Uuid(state().random_bytes()));
        let temporary = Namespace::new(target.db(), &name).map_err(before)?;
        let failed = |error| (Some(temporary.clone()), error);
        create_collection(ctx, temporary.clone(), options)
            .await
            .map_err(before)?;
        if !indexes.is_empty() {
            let limits = state().parameters.borrow().build_limits();
            create_indexes(ctx, temporary.clone(), indexes, limits)
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
                insert(ctx, &temporary, batch, &self.around)
                    .await
                    .map_err(failed)?;
            }
            if ended {
                return Ok(temporary);
            }
        }
    }
}

fn target_of(stage: &OutputTo, around: &Surroundings) -> Result<Namespace> {
    let db = stage.db.as_deref().unwrap_or(around.ns.db());
    Namespace::new(db, &stage.collection)
}

/// Inserts documents in their stored form; the first error ends it.
async fn insert(
    ctx: &OpContext,
    ns: &Namespace,
    documents: Vec<Bytes>,
    around: &Surroundings,
) -> Result<()> {
    let acquired = acquire_write(ctx, ns.clone(), None).await?;
    let mut outcome = BatchOutcome::default();
    let documents = documents.into_iter().enumerate().collect();
    let options = InsertOptions {
        ordered: true,
        validation: around.validation,
    };
    insert_documents(ctx, acquired, documents, options, &mut outcome).await?;
    around.written.set(around.written.get().max(outcome.last));
    match outcome.errors.into_iter().next() {
        Some(failure) => Err(failure.error),
        None => Ok(()),
    }
}

pub(crate) struct MergeNode {
    source: Node,
    stage: Arc<Outside>,
    around: Rc<Surroundings>,
    done: bool,
}

impl MergeNode {
    pub(super) fn new(source: Node, stage: Arc<Outside>, around: Rc<Surroundings>) -> MergeNode {
        MergeNode {
            source,
            stage,
            around,
            done: false,
        }
    }

    pub(super) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        if std::mem::replace(&mut self.done, true) {
            return Ok(None);
        }
        let stage = self.stage.clone();
        let Outside::Merge(stage) = &*stage else {
            unreachable!("made of such a stage");
        };
        let db = stage.db.as_deref().unwrap_or(self.around.ns.db());
        let target = Namespace::new(db, &stage.collection)?;
        let collation = self.around.vars.collation.as_ref();
        check_unique(ctx, stage, &target, collation).await?;
        let mut inserts = Vec::new();
        loop {
            let Some(document) = self.source.next(ctx).await? else {
                break;
            };
            let vars = &self.around.vars;
            let written = || stage.write(&document, vars);
            match compute(ctx, written).await? {
                MergeWrite::Insert => inserts.push(prepare_for_insert(&document, false).await?),
                MergeWrite::Unmatched => match stage.not_matched {
                    NotMatched::Insert => inserts.push(prepare_for_insert(&document, false).await?),
                    NotMatched::Discard => {}
                    NotMatched::Fail => return Err(not_found()),
                },
                MergeWrite::Update {
                    filter,
                    update,
                    variables,
                } => {
                    let parse = || {
                        let update =
                            Update::parse_with(update.as_raw_bson_ref(), None, &variables)?;
                        Ok((update, Matcher::parse_with(&filter, &variables)?))
                    };
                    let (update, matcher) = compute(ctx, parse).await?;
                    let statement = ModifyStatement {
                        filter,
                        matcher,
                        change: Arc::new(Change::Update(update)),
                        multi: false,
                        upsert: false,
                        hint: None,
                        sort: None,
                        wants_documents: false,
                        validation: self.around.validation,
                    };
                    self.change(ctx, stage, &target, &document, &statement)
                        .await?;
                }
            }
            if inserts.len() >= INSERT_GROUP_STATEMENTS {
                insert(ctx, &target, std::mem::take(&mut inserts), &self.around).await?;
            }
        }
        if !inserts.is_empty() {
            insert(ctx, &target, inserts, &self.around).await?;
        }
        Ok(None)
    }

    /// Changes the document that has the same key. Where there is none, the one that came is inserted as it is: a
    /// pipeline of `whenMatched` says nothing about it.
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
            if done.matched > 0 {
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
            match insert(ctx, target, vec![prepared], &self.around).await {
                // Another client may have inserted one with this key meanwhile: then it is there to be changed.
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

/// Checks that the `on` fields tell the target's documents apart, as strings compare here.
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
