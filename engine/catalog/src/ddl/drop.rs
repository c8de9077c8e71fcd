//! Collections, views and databases dropped.

use std::sync::Arc;

use pinion_bson::rawdoc;
use pinion_clock::Timestamp;
use pinion_query::series_of;
use pinion_runtime::LocalBoxFuture;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::builds::{Step, coordinate_beside};
use super::coordinator::{Commit, Coordinator, behind_gates, coordinate};
use super::create::view_commit;
use super::guard::Definition;
use super::locks::Scope;
use super::series::{scope_of, together};
use crate::catalog::{Catalog, core_catalog};
use crate::change::{CatalogChange, SystemDocument};
use crate::entry::{Collection, oplog_namespace};
use crate::gates::GateMode;
use crate::oplog::OpKind;
use crate::oplog_format::{OplogFormat, oplog_format};
use crate::options::CollectionKind;
use crate::uuid::Uuid;
use crate::view::{SYSTEM_VIEWS, View};

/// What `drop` did: how many indexes went with the collection (the `_id` index included; none went
/// with a view), and when.
#[derive(Clone, Copy, Debug)]
pub struct Dropped {
    pub indexes: Option<usize>,
    pub ts: Timestamp,
}

/// Drops a collection or a view; `None` if there is none of that name.
pub fn drop_collection(
    ctx: &OpContext,
    ns: Namespace,
) -> LocalBoxFuture<'_, Result<Option<Dropped>>> {
    drop_shown(ctx, ns, true)
}

/// The same of a collection that another shard has too, whose drop is the one that change streams
/// show.
pub fn drop_collection_unseen(
    ctx: &OpContext,
    ns: Namespace,
) -> LocalBoxFuture<'_, Result<Option<Dropped>>> {
    drop_shown(ctx, ns, false)
}

fn drop_shown(
    ctx: &OpContext,
    ns: Namespace,
    is_shown: bool,
) -> LocalBoxFuture<'_, Result<Option<Dropped>>> {
    Box::pin(async move {
        let by = ctx.clone();
        let definition = Definition::Drop(ns.clone());
        coordinate_beside(ctx, definition, move |c| async move {
            let _lock = c.lock_for(&by, scope_of(&ns)).await?;
            if core_catalog().current().kind(&ns).is_none() {
                return Ok(Step::Done(None));
            }
            check_no_series(&core_catalog().current(), &ns)?;
            let gates = together(&ns);
            if let Some(builds) = c.builds_ended(&gates) {
                return Ok(Step::Waits(builds));
            }
            let operation = c.drop_one_shown(&ns, is_shown);
            behind_gates(Some(&by), &gates, GateMode::Closed, operation)
                .await
                .map(|dropped| Step::Done(Some(dropped)))
        })
        .await
    })
}

/// Drops the collection of a database's views if it has none, unseen by change streams. For a shard
/// that is not the primary one of the database: its views are those of sharded series, of which it
/// keeps nothing. Any other node keeps the collection.
pub fn drop_collection_of_no_views(ctx: &OpContext, db: String) -> LocalBoxFuture<'_, Result<()>> {
    Box::pin(async move {
        let by = ctx.clone();
        let holder = Namespace::new(&db, SYSTEM_VIEWS)?;
        let definition = Definition::Drop(holder.clone());
        coordinate(ctx, definition, move |c| async move {
            let _lock = c.lock_for(&by, Scope::one(&holder)).await?;
            if without_views(&core_catalog().current(), &holder).is_none() {
                return Ok(());
            }
            let operation = c.drop_holder(&holder);
            let gates = std::slice::from_ref(&holder);
            behind_gates(Some(&by), gates, GateMode::Closed, operation).await
        })
        .await
    })
}

/// The collection of the views, if there is none in the database.
fn without_views<'c>(catalog: &'c Catalog, holder: &Namespace) -> Option<&'c Arc<Collection>> {
    let has_views = catalog.views_of(holder.db()).next().is_some();
    let found = catalog.get(holder).filter(|_| !has_views);
    found.filter(|found| found.builds().is_empty())
}

/// Drops all that is in a database; the timestamp of the last change, or `None` if there was no
/// such database.
pub fn drop_database(ctx: &OpContext, db: String) -> LocalBoxFuture<'_, Result<Option<Timestamp>>> {
    drop_database_shown(ctx, db, true)
}

/// The same, which change streams do not show: they have it from another shard.
pub fn drop_database_unseen(
    ctx: &OpContext,
    db: String,
) -> LocalBoxFuture<'_, Result<Option<Timestamp>>> {
    drop_database_shown(ctx, db, false)
}

fn drop_database_shown(
    ctx: &OpContext,
    db: String,
    is_shown: bool,
) -> LocalBoxFuture<'_, Result<Option<Timestamp>>> {
    Box::pin(async move {
        let by = ctx.clone();
        let definition = Definition::DropDatabase(db.clone());
        coordinate_beside(ctx, definition, move |c| async move {
            let _lock = c.lock_for(&by, Scope::Database(db.clone())).await?;
            let catalog = core_catalog().current();
            let views = catalog.views_of(&db).map(|view| view.ns.clone());
            // The log has no row. A standalone that drops what a member knows of its set no longer
            // shows it.
            let collections = catalog
                .collections_of(&db)
                .filter(|found| !found.is_oplog());
            let collections = collections.map(|found| found.ns.clone());
            let gates: Vec<Namespace> = views.chain(collections).collect();
            let hides_oplog = catalog.shows_oplog() && db == oplog_namespace().db();
            if gates.is_empty() {
                if hides_oplog {
                    c.show(Catalog::without_oplog).await;
                }
                return Ok(Step::Done(None));
            }
            if let Some(builds) = c.builds_ended(&gates) {
                return Ok(Step::Waits(builds));
            }
            let operation = c.drop_all(&db, &gates, is_shown);
            let dropped = behind_gates(Some(&by), &gates, GateMode::Closed, operation).await?;
            if hides_oplog {
                c.show(Catalog::without_oplog).await;
            }
            Ok(Step::Done(Some(dropped)))
        })
        .await
    })
}

/// Drops the temporary collections that the node before has left. Runs on core 0, before the
/// catalog is used.
pub(crate) async fn drop_temporary() -> Result<()> {
    let coordinator = pinion_runtime::core_local::<Coordinator>();
    let catalog = core_catalog().current();
    let left = catalog.collections();
    for collection in left.filter(|found| found.options.temporary) {
        coordinator.drop_one(&collection.ns).await?;
    }
    Ok(())
}

impl Coordinator {
    /// Ends the builds of indexes on what is to be dropped, if there are any.
    fn builds_ended(&self, namespaces: &[Namespace]) -> Option<Vec<Uuid>> {
        let catalog = core_catalog().current();
        let collections = namespaces.iter().filter_map(|ns| catalog.get(ns));
        let builds: Vec<Uuid> = collections.flat_map(|found| found.builds()).collect();
        self.end_builds(&builds, "the collection is being dropped");
        (!builds.is_empty()).then_some(builds)
    }

    /// Drops a collection or a view whose gates are closed.
    pub(super) async fn drop_one(&self, ns: &Namespace) -> Result<Dropped> {
        self.drop_one_shown(ns, true).await
    }

    async fn drop_one_shown(&self, ns: &Namespace, is_shown: bool) -> Result<Dropped> {
        let mut indexes = None;
        let compute = |catalog: &Catalog| {
            let o = rawdoc! { "drop": ns.collection() };
            let commit = match (catalog.get(ns), catalog.view(ns)) {
                (Some(collection), _) => {
                    indexes = Some(collection.index_count());
                    let mut change = dropping(catalog, collection);
                    // With its buckets goes the series.
                    if let Some(series) = series_of(ns).and_then(|ns| catalog.view(&ns)) {
                        change.add(dropping_view(catalog, series)?);
                    }
                    Commit::command(ns, Some(collection.uuid), o, change)
                }
                (None, Some(view)) if oplog_format() == OplogFormat::V44 => {
                    let holder = Namespace::new(ns.db(), SYSTEM_VIEWS)?;
                    view_commit(catalog, &holder, OpKind::Delete, view)?
                }
                (None, Some(view)) => {
                    let mut change = dropping_view(catalog, view)?;
                    if view.kind() == CollectionKind::TimeSeries
                        && let Some(buckets) = catalog.get(&view.on())
                    {
                        indexes = Some(buckets.index_count());
                        change.add(dropping(catalog, buckets));
                    }
                    Commit::command(ns, None, o, change)
                }
                (None, None) => unreachable!("its lock is held"),
            };
            Ok(Commit {
                from_migrate: !is_shown,
                ..commit
            })
        };
        let ts = self.commit(compute).await?;
        Ok(Dropped { indexes, ts })
    }

    /// Drops the collection of the views, whose gate is closed, unless one has been made meanwhile.
    async fn drop_holder(&self, holder: &Namespace) -> Result<()> {
        let compute = |catalog: &Catalog| {
            let Some(found) = without_views(catalog, holder) else {
                return Ok(None);
            };
            let o = rawdoc! { "drop": holder.collection() };
            let change = dropping(catalog, found);
            Ok(Some(Commit {
                from_migrate: true,
                ..Commit::command(holder, Some(found.uuid), o, change)
            }))
        };
        self.commit_with(compute).await.map(drop)
    }

    /// Drops what is in a database, whose gates are closed.
    async fn drop_all(
        &self,
        db: &str,
        namespaces: &[Namespace],
        is_shown: bool,
    ) -> Result<Timestamp> {
        for ns in namespaces {
            // The views have gone with the collection that they are documents of.
            if core_catalog().current().kind(ns).is_some() {
                self.drop_one_shown(ns, is_shown).await?;
            }
        }
        self.commit(|_| {
            Ok(Commit {
                change: CatalogChange::default(),
                kind: OpKind::Command,
                ns: format!("{db}.$cmd"),
                uuid: None,
                o: rawdoc! { "dropDatabase": 1 },
                o2: None,
                from_migrate: !is_shown,
            })
        })
        .await
    }
}

/// Refuses to drop the collection of the views where the buckets of a series would stay behind.
fn check_no_series(catalog: &Catalog, ns: &Namespace) -> Result<()> {
    let mut views = catalog.views_of(ns.db());
    let is_series = |view: &Arc<View>| view.kind() == CollectionKind::TimeSeries;
    if ns.collection() == SYSTEM_VIEWS && views.any(is_series) {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!("cannot drop collection {ns} when time-series collections are present"),
        ));
    }
    Ok(())
}

/// With the collection of the views the views go.
pub(super) fn dropping(catalog: &Catalog, collection: &Collection) -> CatalogChange {
    let mut removes = vec![collection.number];
    if collection.ns.collection() == SYSTEM_VIEWS {
        let views = catalog.views_of(collection.ns.db());
        removes.extend(views.map(|view| view.number));
    }
    CatalogChange {
        removes,
        dropped_trees: collection.trees().collect(),
        ..Default::default()
    }
}

pub(super) fn dropping_view(catalog: &Catalog, view: &View) -> Result<CatalogChange> {
    let holder = Namespace::new(view.ns.db(), SYSTEM_VIEWS)?;
    let document = catalog.get(&holder).map(|holder| SystemDocument {
        tree: holder.tree(),
        id: view.ns.as_str().to_owned(),
        document: None,
    });
    Ok(CatalogChange {
        removes: vec![view.number],
        documents: document.into_iter().collect(),
        ..Default::default()
    })
}
