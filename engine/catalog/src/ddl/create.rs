//! Collections and views made: by `create`, and by the first write.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_runtime::LocalBoxFuture;
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::coordinator::{Commit, Coordinator, coordinate};
use super::guard::Definition;
use super::locks::Scope;
use super::series::{put_view, scope_of};
use crate::catalog::{Catalog, core_catalog};
use crate::change::{CatalogChange, SystemDocument};
use crate::entry::{Clustering, Collection};
use crate::names::{check_creatable, check_not_view, is_replicated};
use crate::oplog::OpKind;
use crate::oplog_format::{OplogFormat, check_v44_can_follow, oplog_format};
use crate::options::{CollectionKind, CollectionOptions, ValidationAction};
use crate::text::render;
use crate::uuid::Uuid;
use crate::v44_checks::check_operators;
use crate::view::{SYSTEM_VIEWS, View};

/// Makes a collection or a view. Gives the time, or `None` if it is there with the same options
/// already.
///
/// # Errors
/// `NamespaceExists` if it is there with other options; `InvalidNamespace`; `DatabaseDifferCase`;
/// for a view what its pipeline must not be.
pub fn create_collection(
    ctx: &OpContext,
    ns: Namespace,
    options: CollectionOptions,
) -> LocalBoxFuture<'_, Result<Option<Timestamp>>> {
    create_with(ctx, ns, options, None)
}

/// The same with the UUID that the collection, or of a series that of its buckets, has on other
/// shards. One that is there keeps its own.
///
/// # Errors
/// As of [`create_collection`].
pub fn create_collection_as(
    ctx: &OpContext,
    ns: Namespace,
    options: CollectionOptions,
    uuid: Uuid,
) -> LocalBoxFuture<'_, Result<Option<Timestamp>>> {
    create_with(ctx, ns, options, Some(uuid))
}

fn create_with(
    ctx: &OpContext,
    ns: Namespace,
    options: CollectionOptions,
    uuid: Option<Uuid>,
) -> LocalBoxFuture<'_, Result<Option<Timestamp>>> {
    Box::pin(async move {
        let by = ctx.clone();
        let definition = Definition::Create {
            ns: ns.clone(),
            options: Box::new(options.clone()),
        };
        coordinate(ctx, definition, move |c| async move {
            let _lock = c.lock_for(&by, scope_of(&ns)).await?;
            check_creatable(&ns)?;
            check_options_v44(&ns, &options)?;
            let is_series = options.time_series.is_some();
            let catalog = core_catalog().current();
            let present = match (catalog.get(&ns), catalog.view(&ns)) {
                (Some(collection), _) => Some(&collection.options),
                (None, Some(view)) => Some(&view.options),
                (None, None) => None,
            };
            match present {
                Some(present) if is_like(present, &options) => Ok(None),
                Some(present) => Err(exists(&ns, present)),
                None if is_series => c.create_series(&ns, options, uuid).await.map(Some),
                None if options.kind() == CollectionKind::Collection => {
                    c.create_as(&ns, options, uuid).await.map(Some)
                }
                None => c.create_view(&ns, options).await.map(Some),
            }
        })
        .await
    })
}

/// Makes the collection without options unless something of the name is there, which is what the
/// first insert does. Gives the time if nothing was there. What has come to be there since the
/// caller has looked may be a view or a series: the caller looks again.
pub async fn ensure_collection(ctx: &OpContext, ns: Namespace) -> Result<Option<Timestamp>> {
    let by = ctx.clone();
    let definition = Definition::Create {
        ns: ns.clone(),
        options: Box::default(),
    };
    coordinate(ctx, definition, move |c| async move {
        let _lock = c.lock_for(&by, Scope::one(&ns)).await?;
        match core_catalog().current().view(&ns) {
            Some(_) => Ok(None),
            None => Ok(c.ensure(&ns).await?.1),
        }
    })
    .await
}

/// Refuses options that MongoDB 4.4 does not have, where its members follow.
pub(super) fn check_options_v44(ns: &Namespace, options: &CollectionOptions) -> Result<()> {
    if !is_replicated(ns) {
        return Ok(());
    }
    check_v44_can_follow(options.time_series.is_some(), "timeseries")?;
    check_v44_can_follow(options.clustered.is_some(), "clusteredIndex")?;
    check_v44_can_follow(options.expire_after_secs.is_some(), "expireAfterSeconds")?;
    check_v44_can_follow(options.pre_and_post_images, "changeStreamPreAndPostImages")?;
    let action = options.validation_action;
    check_v44_can_follow(action == Some(ValidationAction::ErrorAndLog), "errorAndLog")?;
    options.validator.as_deref().map_or(Ok(()), check_operators)
}

/// Whether what is there has the options that are asked for.
fn is_like(present: &CollectionOptions, asked: &CollectionOptions) -> bool {
    match present.kind() {
        // A request does not name the view of a series, and one without options accepts a series
        // too.
        CollectionKind::TimeSeries => {
            if *asked == CollectionOptions::default() {
                return true;
            }
            let view = present.view.clone();
            *present
                == CollectionOptions {
                    view,
                    ..asked.clone()
                }
        }
        _ => present == asked,
    }
}

fn exists(ns: &Namespace, present: &CollectionOptions) -> Error {
    let what = match present.kind() {
        CollectionKind::Collection => "",
        CollectionKind::View => "is a view, ",
        CollectionKind::TimeSeries => "is a timeseries collection, ",
    };
    Error::new(
        ErrorCode::NAMESPACE_EXISTS,
        format!(
            "namespace {ns} already exists, {what}but with different options: {}",
            render(&listed_options(present))
        ),
    )
}

/// The options as they are listed: how a series is made out of its buckets is left out.
fn listed_options(present: &CollectionOptions) -> RawDocumentBuf {
    let mut listed = present.clone();
    if present.kind() == CollectionKind::TimeSeries {
        listed.view = None;
    }
    listed.to_document()
}

impl Coordinator {
    /// As [`ensure_collection`], for a caller that holds the lock.
    pub(super) async fn ensure(
        &self,
        ns: &Namespace,
    ) -> Result<(Arc<Collection>, Option<Timestamp>)> {
        check_not_view(&core_catalog().current(), ns)?;
        let made = match core_catalog().get(ns) {
            Some(_) => None,
            None => {
                check_creatable(ns)?;
                Some(self.create(ns, CollectionOptions::default()).await?)
            }
        };
        let collection = core_catalog().get(ns).expect("its lock is held");
        Ok((collection, made))
    }

    pub(super) async fn create(
        &self,
        ns: &Namespace,
        options: CollectionOptions,
    ) -> Result<Timestamp> {
        self.create_as(ns, options, None).await
    }

    async fn create_as(
        &self,
        ns: &Namespace,
        options: CollectionOptions,
        uuid: Option<Uuid>,
    ) -> Result<Timestamp> {
        let o = creation_entry(ns, &options);
        let mut collection = self.new_collection(ns.clone(), options);
        collection.uuid = uuid.unwrap_or(collection.uuid);
        let compute = |catalog: &Catalog| {
            check_database_case(catalog, ns.db())?;
            let uuid = collection.uuid;
            let change = CatalogChange {
                puts: vec![collection],
                ..Default::default()
            };
            Ok(Commit::command(ns, Some(uuid), o, change))
        };
        self.commit(compute).await
    }

    /// A collection that is about to be made.
    pub(super) fn new_collection(&self, ns: Namespace, options: CollectionOptions) -> Collection {
        let mut made = Collection::new(ns.clone(), self.uuid(), self.numbers(&ns, 1), options);
        if made.clustering == Clustering::Record {
            made = made.with_id_index(TreeId(self.numbers(&ns, 1)));
        }
        made.made_ms = Some(pinion_runtime::wall_ms());
        made
    }

    async fn create_view(&self, ns: &Namespace, options: CollectionOptions) -> Result<Timestamp> {
        let mut o = DocBuilder::new();
        o.append("create", ns.collection())
            .append_all(&options.to_document());
        let system_views = Namespace::new(ns.db(), SYSTEM_VIEWS)?;
        let view = View::new(ns.clone(), self.numbers(&system_views, 1), options);
        if oplog_format() == OplogFormat::V44 {
            return self.create_view_v44(&system_views, view).await;
        }
        // Made in the same change, if this is the database's first view.
        let holder = self.new_collection(system_views, CollectionOptions::default());
        let compute = |catalog: &Catalog| {
            check_database_case(catalog, ns.db())?;
            catalog.check_view(&view)?;
            let mut change = CatalogChange::default();
            put_view(catalog, &mut change, holder, view);
            Ok(Commit::command(ns, None, o.finish(), change))
        };
        self.commit(compute).await
    }
}

impl Coordinator {
    /// As MongoDB 4.4 logs it: the collection of the views, if it is the first, and then a document
    /// in it.
    async fn create_view_v44(&self, holder: &Namespace, view: View) -> Result<Timestamp> {
        check_database_case(&core_catalog().current(), holder.db())?;
        core_catalog().current().check_view(&view)?;
        let options = CollectionOptions::default();
        let o = creation_entry(holder, &options);
        let made = self.new_collection(holder.clone(), options);
        // Another one may be making its first view just now.
        let first = |catalog: &Catalog| {
            Ok(catalog.get(holder).is_none().then(|| {
                let uuid = made.uuid;
                let change = CatalogChange {
                    puts: vec![made],
                    ..Default::default()
                };
                Commit::command(holder, Some(uuid), o, change)
            }))
        };
        self.commit_with(first).await?;
        let compute = |catalog: &Catalog| view_commit(catalog, holder, OpKind::Insert, &view);
        self.commit(compute).await
    }
}

/// What writes or removes the document of a view in the collection of the views, as MongoDB 4.4
/// logs it.
///
/// # Errors
/// `NamespaceNotFound` if that collection was dropped, and the views with it.
pub(super) fn view_commit(
    catalog: &Catalog,
    holder: &Namespace,
    kind: OpKind,
    view: &View,
) -> Result<Commit> {
    let missing = || {
        Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("{holder} was dropped"),
        )
    };
    let holder = catalog.get(holder).ok_or_else(missing)?;
    let id = pinion_bson::rawdoc! { "_id": view.ns.as_str() };
    let mut written = system_document(holder.tree(), view);
    let (o, views, removes) = match kind {
        OpKind::Delete => (id.clone(), Vec::new(), vec![view.number]),
        _ => (view.to_system_document(), vec![view.clone()], Vec::new()),
    };
    if kind == OpKind::Delete {
        written.document = None;
    }
    Ok(Commit {
        change: CatalogChange {
            views,
            removes,
            documents: vec![written],
            ..CatalogChange::default()
        },
        kind,
        ns: holder.ns.as_str().to_owned(),
        uuid: Some(holder.uuid),
        o,
        o2: (kind == OpKind::Update).then_some(id),
        from_migrate: false,
    })
}

/// What the oplog says of a collection that is made.
pub(super) fn creation_entry(ns: &Namespace, options: &CollectionOptions) -> RawDocumentBuf {
    let mut o = DocBuilder::new();
    o.append("create", ns.collection());
    if options.clustered.is_none() {
        o.append("idIndex", &*options.id_index());
    }
    o.append_all(&options.to_document());
    o.finish()
}

/// The document of a view that is made or changed.
pub(super) fn system_document(tree: TreeId, view: &View) -> SystemDocument {
    SystemDocument {
        tree,
        id: view.ns.as_str().to_owned(),
        document: Some(view.to_system_document()),
    }
}

pub(super) fn check_database_case(catalog: &Catalog, db: &str) -> Result<()> {
    for existing in catalog.databases() {
        if existing != db && existing.eq_ignore_ascii_case(db) {
            return Err(Error::new(
                ErrorCode::DATABASE_DIFFER_CASE,
                format!(
                    "db already exists with different case already have: [{existing}] trying to create [{db}]"
                ),
            ));
        }
    }
    Ok(())
}
