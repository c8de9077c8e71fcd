//! Changes of existing collections: `collMod`.

mod index;
mod options;

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawArrayBuf, RawBson, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_query::{TimeSeriesChange, buckets_of, series_of};
use pinion_runtime::LocalBoxFuture;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::builds::check_no_build;
use super::coordinator::{Commit, Coordinator, behind_gates, coordinate, drop_trees};
use super::create::{system_document, view_commit};
use super::guard::{Definition, shard_key};
use super::series::scope_of;
use super::shard_key::check_modified;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::gates::GateMode;
use crate::index::Index;
use crate::oplog::OpKind;
use crate::oplog_format::{OplogFormat, check_v44_can_follow, oplog_format};
use crate::options::{
    CollectionKind, CollectionOptions, ValidationAction, ValidationLevel, ViewDefinition,
};
use crate::series::view_options;
use crate::v44_checks::check_operators;
use crate::view::{SYSTEM_VIEWS, View};

pub use index::{IndexChange, IndexName};

/// What is to be changed; nothing of what is `None`.
#[derive(Clone, Debug, Default)]
pub struct CollMod {
    /// The command, for the oplog.
    pub command: RawDocumentBuf,
    pub index: Option<IndexChange>,
    /// Only find out whether an index could be made unique.
    pub dry_run: bool,
    /// An empty one is none any more.
    pub validator: Option<RawDocumentBuf>,
    pub validation_level: Option<ValidationLevel>,
    pub validation_action: Option<ValidationAction>,
    pub view_on: Option<String>,
    pub pipeline: Option<RawArrayBuf>,
    pub pre_and_post_images: Option<bool>,
    pub time_series: Option<TimeSeriesChange>,
    pub capped_size: Option<i64>,
    /// Inside, `None` is no bound.
    pub capped_max: Option<Option<i64>>,
    /// Inside, `None` is never.
    pub expire_after_secs: Option<Option<i64>>,
}

/// What an entry says of a collection as it was before, and of its index.
fn state_before(collection: &Collection, index: Option<&[PropertyChange]>) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.start_document("collectionOptions_old")
        .append("uuid", collection.uuid.to_bson())
        .append_all(&collection.options.to_document())
        .end();
    if let Some(index) = index {
        out.start_document("indexOptions_old");
        for property in index {
            if let Some(old) = &property.old {
                out.append_raw(property.name, old.as_raw_bson_ref());
            }
        }
        out.end();
    }
    out.finish()
}

/// What became of an index's property.
#[derive(Clone, Debug, PartialEq)]
pub struct PropertyChange {
    pub name: &'static str,
    /// `None` if the index had none.
    pub old: Option<RawBson>,
    pub new: RawBson,
}

/// What `collMod` did.
#[derive(Clone, Debug, Default)]
pub struct Modified {
    pub index: Vec<PropertyChange>,
    /// `None` if nothing was tried.
    pub ts: Option<Timestamp>,
}

/// Changes a collection, a view or a time series.
///
/// # Errors
/// `NamespaceNotFound`; `InvalidOptions` for what the namespace does not have; `IndexNotFound`,
/// `CannotConvertIndexToUnique` with the documents in the way.
pub fn coll_mod(
    ctx: &OpContext,
    ns: Namespace,
    change: CollMod,
) -> LocalBoxFuture<'_, Result<Modified>> {
    Box::pin(async move {
        let by = ctx.clone();
        let definition = Definition::Modify(ns.clone());
        coordinate(ctx, definition, move |c| async move {
            let _lock = c.lock_for(&by, scope_of(&ns)).await?;
            match core_catalog().current().kind(&ns) {
                None => Err(Error::new(
                    ErrorCode::NAMESPACE_NOT_FOUND,
                    format!("ns does not exist: {ns}"),
                )),
                Some(CollectionKind::View) => c.modify_view(&ns, &change).await,
                Some(CollectionKind::Collection) => c.modify_collection(&by, &ns, &change).await,
                Some(CollectionKind::TimeSeries) => {
                    options::check_for_series(&change)?;
                    // Of a series nothing is capped, and MongoDB does not look at how it would be.
                    let change = CollMod {
                        capped_size: None,
                        capped_max: None,
                        index: change
                            .index
                            .map(|index| of_buckets(&ns, index))
                            .transpose()?,
                        ..change
                    };
                    c.modify_collection(&by, &buckets_of(&ns)?, &change).await
                }
            }
        })
        .await
    })
}

/// Adds to the change of a collection of buckets that of its series.
fn put_series(catalog: &Catalog, buckets: &Collection, change: &mut CatalogChange) -> Result<()> {
    let Some(view) = series_of(&buckets.ns).and_then(|ns| catalog.view(&ns)) else {
        return Ok(());
    };
    let asked = CollectionOptions {
        time_series: buckets.options.time_series.clone(),
        expire_after_secs: buckets.options.expire_after_secs,
        ..view.options.clone()
    };
    let changed = View::new(
        view.ns.clone(),
        view.number,
        view_options(&buckets.ns, &asked),
    );
    let holder = catalog.get(&Namespace::new(view.ns.db(), SYSTEM_VIEWS)?);
    let document = holder.map(|holder| system_document(holder.tree(), &changed));
    change.documents.extend(document);
    change.views.push(changed);
    Ok(())
}

/// The change of an index of a series as that of the index of its buckets.
fn of_buckets(ns: &Namespace, change: IndexChange) -> Result<IndexChange> {
    let catalog = core_catalog().current();
    let series = catalog
        .view(ns)
        .and_then(|view| view.options.time_series.clone());
    let which = match (change.which, series) {
        (IndexName::Key(key), Some(series)) => {
            IndexName::Key(crate::specs::bucket_key(&series.form(), &key)?)
        }
        (which, _) => which,
    };
    Ok(IndexChange { which, ..change })
}

/// Refuses what MongoDB 4.4 does not change, where its members follow.
fn check_form(change: &CollMod) -> Result<()> {
    let index = change.index.as_ref();
    let makes_unique = |index: &IndexChange| index.unique.or(index.prepare_unique).is_some();
    check_v44_can_follow(
        index.is_some_and(makes_unique),
        "collMod with unique or prepareUnique",
    )?;
    let is_resized = change.capped_size.is_some() || change.capped_max.is_some();
    check_v44_can_follow(is_resized, "collMod with cappedSize or cappedMax")?;
    check_v44_can_follow(change.expire_after_secs.is_some(), "expireAfterSeconds")?;
    check_v44_can_follow(
        change.pre_and_post_images.is_some(),
        "changeStreamPreAndPostImages",
    )?;
    let action = change.validation_action;
    check_v44_can_follow(action == Some(ValidationAction::ErrorAndLog), "errorAndLog")?;
    change.validator.as_deref().map_or(Ok(()), check_operators)
}

/// The command with nothing in it that MongoDB 4.4 does not know, nor in another form than it
/// takes.
fn v44_command(change: &CollMod, index: Option<&Index>) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    let known = [
        "collMod",
        "validator",
        "validationLevel",
        "validationAction",
    ];
    for (name, value) in pinion_bson::elements(&change.command) {
        if known.contains(&name) {
            out.append_raw(name, value);
        }
    }
    if let (Some(index), Some(wanted)) = (index, &change.index) {
        out.start_document("index").append("name", index.name());
        if let Some(secs) = wanted.expire_after_secs {
            out.append("expireAfterSeconds", secs);
        }
        if let Some(hidden) = wanted.hidden {
            out.append("hidden", hidden);
        }
        out.end();
    }
    out.finish()
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

impl Coordinator {
    async fn modify_collection(
        &self,
        ctx: &OpContext,
        ns: &Namespace,
        change: &CollMod,
    ) -> Result<Modified> {
        let Some(collection) = core_catalog().get(ns) else {
            return Err(Error::new(
                ErrorCode::NAMESPACE_NOT_FOUND,
                format!("ns does not exist: {ns}"),
            ));
        };
        check_no_build(&collection)?;
        if collection.is_replicated() {
            check_form(change)?;
        }
        let options = options::changed(&collection.options, change)?;
        let index = match &change.index {
            Some(wanted) => Some(index::plan(&collection, wanted)?),
            None => None,
        };
        if let (Some(plan), Some(wanted)) = (&index, &change.index)
            && let Some(key) = shard_key(ctx, ns)
        {
            check_modified(&collection, &key, (&plan.before().spec, wanted))?;
        }
        if change.dry_run {
            let is_conversion = change
                .index
                .as_ref()
                .is_some_and(IndexChange::is_conversion);
            if !is_conversion {
                return Err(invalid(
                    "collMod dry run mode is only supported for unique index conversion",
                ));
            }
        }
        // One that changes nothing is logged too, as in MongoDB: change streams report it.
        let gates = [ns.clone()];
        // While entries are looked through or made again, documents may be read but not written.
        let is_long = index.as_ref().is_some_and(index::Plan::is_long);
        let prepared = match index {
            Some(plan) if is_long => {
                let prepare = self.prepare_index(ctx, &collection, plan, change.dry_run);
                Some(behind_gates(Some(ctx), &gates, GateMode::NoWrites, prepare).await?)
            }
            plan => plan,
        };
        if change.dry_run {
            return Ok(Modified::default());
        }
        let reported = prepared.as_ref().map(index::Plan::reported);
        let reported_index = reported.as_deref();
        let named = core_catalog().current();
        let made = (prepared.iter())
            .map(|plan| plan.index().tree)
            .filter(|tree| named.trees().all(|named| named != *tree))
            .collect();
        let index = prepared.as_ref().map(index::Plan::index);
        let o = match oplog_format() {
            OplogFormat::Native => change.command.clone(),
            OplogFormat::V44 => v44_command(change, index),
        };
        let commit = |catalog: &Catalog| {
            let current = catalog.get(ns).expect("its lock is held");
            let mut dropped_trees = Vec::new();
            let mut changed = Collection::clone(current).with_options(options);
            if let Some(plan) = prepared {
                changed = plan.apply(changed, &mut dropped_trees)?;
            }
            let mut change = CatalogChange {
                dropped_trees,
                details: Some(state_before(current, reported_index)),
                ..Default::default()
            };
            put_series(catalog, &changed, &mut change)?;
            change.puts.push(changed);
            Ok(Commit::command(ns, Some(current.uuid), o, change))
        };
        let changing = self.commit(commit);
        let changed = behind_gates(Some(ctx), &gates, GateMode::Closed, changing).await;
        if changed.is_err() {
            // Nothing in the catalog names what was made again.
            let now = pinion_storage::storage().last_allotted();
            drop_trees(made, now).await;
        }
        let ts = changed?;
        Ok(Modified {
            index: reported.unwrap_or_default(),
            ts: Some(ts),
        })
    }

    async fn modify_view(&self, ns: &Namespace, change: &CollMod) -> Result<Modified> {
        options::check_for_view(change)?;
        if change.view_on.is_none() && change.pipeline.is_none() {
            return Ok(Modified::default());
        }
        let commit = |catalog: &Catalog| {
            let view = catalog.view(ns).expect("its lock is held");
            let present = view.definition();
            let definition = ViewDefinition {
                on: change.view_on.clone().unwrap_or_else(|| present.on.clone()),
                pipeline: match &change.pipeline {
                    Some(pipeline) => pipeline.clone(),
                    None => present.pipeline.clone(),
                },
            };
            let options = CollectionOptions {
                view: Some(definition),
                ..view.options.clone()
            };
            let view = View::new(ns.clone(), view.number, options);
            catalog.check_view(&view)?;
            let holder_ns = Namespace::new(ns.db(), SYSTEM_VIEWS)?;
            if oplog_format() == OplogFormat::V44 {
                return view_commit(catalog, &holder_ns, OpKind::Update, &view);
            }
            let holder = catalog.get(&holder_ns);
            let document = holder.map(|holder| system_document(holder.tree(), &view));
            let changed = CatalogChange {
                documents: document.into_iter().collect(),
                views: vec![view],
                ..Default::default()
            };
            Ok(Commit::command(ns, None, change.command.clone(), changed))
        };
        let ts = self.commit(commit).await?;
        Ok(Modified {
            index: Vec::new(),
            ts: Some(ts),
        })
    }

    /// Looks through an index, or makes its entries again, while there are no writers.
    async fn prepare_index(
        &self,
        ctx: &OpContext,
        collection: &Arc<Collection>,
        plan: index::Plan,
        dry_run: bool,
    ) -> Result<index::Plan> {
        if plan.is_conversion() {
            index::check_convertible(collection, &plan).await?;
        }
        if dry_run || !plan.moves() {
            return Ok(plan);
        }
        let rebuilt = self.rebuild(ctx, collection, plan.index()).await?;
        Ok(plan.rebuilt(rebuilt))
    }
}
