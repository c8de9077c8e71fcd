//! The catalog of another member, copied: what this one has of replicated collections goes, and
//! what that one has comes with its numbers, as the entries that follow name trees by them.
//!
//! All of it is written without timestamps, over a base that a checkpoint has made of everything
//! before. Until the copy is complete a row of its own says so in every checkpoint: a node that
//! opens such a base knows that its replicated data are incomplete.

use std::sync::Arc;

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_query::MultikeyPaths;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, submit_to};
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result, interruption};

use super::coordinator::{Coordinator, behind_gates};
use super::foreign::{ListedIndex, listed_collection};
use super::locks::Scope;
use super::logged::free_trees;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::{BadRow, Collection};
use crate::gates::GateMode;
use crate::limits::FIRST_IDENT;
use crate::names::is_replicated;
use crate::options::CollectionOptions;
use crate::uuid::Uuid;
use crate::view::View;

/// Rows of a member's replicated collections and views, in the order of their numbers.
#[derive(Clone, Debug)]
pub struct CatalogRows {
    pub rows: Vec<RawDocumentBuf>,
    /// The number to continue above; `None` if these were the last ones.
    pub above: Option<u64>,
    /// The next number that the member gives out.
    pub next_number: u64,
}

/// The rows above a number, up to `max_bytes` bytes of them but at least one. Every change that a
/// reader of this node has seen is in them.
pub fn replicated_rows(above: u64, max_bytes: usize) -> LocalBoxFuture<'static, CatalogRows> {
    Box::pin(async move {
        submit_to(CoreId(0), Queue::Foreground, move || async move {
            let coordinator = pinion_runtime::core_local::<Coordinator>();
            // A change is visible a moment before it is in the catalogs of the cores.
            coordinator.settled().await;
            rows_above(&core_catalog().current(), above, max_bytes)
        })
        .await
    })
}

fn rows_above(catalog: &Catalog, above: u64, max_bytes: usize) -> CatalogRows {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    let mut last = above;
    let mut more = None;
    for (number, row) in catalog.rows_above(above) {
        let Some(row) = row else { continue };
        if bytes > 0 && bytes + row.as_bytes().len() > max_bytes {
            more = Some(last);
            break;
        }
        bytes += row.as_bytes().len();
        last = number;
        rows.push(row);
    }
    CatalogRows {
        rows,
        above: more,
        next_number: catalog.next_number(),
    }
}

/// Drops all replicated collections and views, unlogged, and notes that a copy of another member's
/// has started. Everything in the log is applied, and a checkpoint has it. The trees are gone with
/// the next checkpoint.
///
/// # Errors
/// Storage has failed.
pub fn begin_copy() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        on_coordinator(|coordinator| async move { coordinator.begin_copy().await }).await
    })
}

/// Puts collections and views into the catalog as another member's rows have them. Indexes that are
/// being built there are built here too, when the copy is complete, unless the entry that completes
/// them comes before. Gives the collections.
///
/// # Errors
/// A row that cannot be understood; a number that this node uses for a collection of its own.
pub fn put_copied(
    rows: Vec<RawDocumentBuf>,
    next_number: u64,
) -> LocalBoxFuture<'static, Result<Vec<Arc<Collection>>>> {
    Box::pin(async move {
        on_coordinator(move |coordinator| async move {
            coordinator.put_copied(&rows, next_number).await
        })
        .await
    })
}

/// A collection or a view as another member lists it to clients.
#[derive(Clone, Debug)]
pub struct ListedCollection {
    pub ns: Namespace,
    /// Views have none.
    pub uuid: Option<Uuid>,
    pub options: RawDocumentBuf,
    pub indexes: Vec<ListedIndex>,
}

/// Puts the collections and views into the catalog that a member without rows lists, with numbers
/// of this node. Returns the collections.
///
/// # Errors
/// Options or indexes that are not understood.
pub fn put_listed(
    listed: Vec<ListedCollection>,
) -> LocalBoxFuture<'static, Result<Vec<Arc<Collection>>>> {
    Box::pin(async move {
        on_coordinator(move |coordinator| async move { coordinator.put_listed(&listed).await })
            .await
    })
}

/// Notes the arrays that copied documents have in indexes; a member that does not list it leaves
/// that to the documents.
///
/// # Errors
/// Storage has failed.
pub fn mark_copied(
    uuid: Uuid,
    found: Vec<(TreeId, MultikeyPaths)>,
) -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        on_coordinator(move |coordinator| async move {
            let compute = |catalog: &Catalog| {
                let marked = catalog.by_uuid(uuid);
                let puts = marked.map(|collection| collection.with_multikey(&found));
                Ok(CatalogChange {
                    puts: puts.into_iter().collect(),
                    next_number: catalog.next_number(),
                    ..CatalogChange::default()
                })
            };
            coordinator.apply_logged(Timestamp::MIN, compute).await?;
            Ok(())
        })
        .await
    })
}

/// Notes that the copy is complete. A checkpoint holds all of it.
///
/// # Errors
/// Storage has failed.
pub fn end_copy() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let change = CatalogChange {
            is_partial: Some(false),
            ..CatalogChange::default()
        };
        on_coordinator(|coordinator| async move { coordinator.apply_copied(change).await }).await
    })
}

async fn on_coordinator<F, Fut, R>(operation: F) -> Result<R>
where
    F: FnOnce(std::rc::Rc<Coordinator>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<R>> + 'static,
    R: Send + 'static,
{
    submit_to(CoreId(0), Queue::Foreground, move || async move {
        let _pass = core_catalog().gates().begin_change().await;
        operation(pinion_runtime::core_local::<Coordinator>()).await
    })
    .await
}

impl Coordinator {
    async fn begin_copy(&self) -> Result<()> {
        self.is_listed.set(false);
        let catalog = core_catalog().current();
        let collections = || {
            catalog
                .collections()
                .filter(|found| is_replicated(&found.ns))
        };
        let views = || catalog.views().filter(|view| is_replicated(&view.ns));
        let named = collections().map(|found| found.ns.clone());
        let namespaces: Vec<Namespace> = named.chain(views().map(|view| view.ns.clone())).collect();
        let _lock = self.lock(Scope::Namespaces(namespaces.clone())).await;
        for build in collections().flat_map(|found| found.builds()) {
            self.leave_to_log(build, false).await;
            self.ended_by_log(
                build,
                Err(interruption(
                    ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
                )),
            );
        }
        let numbers = collections().map(|found| found.number);
        let change = CatalogChange {
            removes: numbers.chain(views().map(|view| view.number)).collect(),
            dropped_trees: collections().flat_map(|found| found.trees()).collect(),
            is_partial: Some(true),
            ..CatalogChange::default()
        };
        behind_gates(
            None,
            &namespaces,
            GateMode::Closed,
            self.apply_copied(change),
        )
        .await
    }

    async fn put_copied(
        &self,
        rows: &[RawDocumentBuf],
        next_number: u64,
    ) -> Result<Vec<Arc<Collection>>> {
        let mut change = CatalogChange {
            next_number,
            ..CatalogChange::default()
        };
        let catalog = core_catalog().current();
        for row in rows {
            put_row(&catalog, &mut change, row)?;
        }
        self.put_change(&catalog, change).await
    }

    async fn put_listed(&self, listed: &[ListedCollection]) -> Result<Vec<Arc<Collection>>> {
        self.is_listed.set(true);
        let catalog = core_catalog().current();
        let mut change = CatalogChange::default();
        let mut next = self.next_number(&catalog, true);
        for found in listed {
            match found.uuid {
                Some(uuid) => {
                    let (ns, options) = (found.ns.clone(), &found.options);
                    let made = listed_collection(ns, uuid, options, &found.indexes, &mut next)?;
                    put_collection(&catalog, &mut change, made)?;
                }
                None => {
                    let options = CollectionOptions::from_document(&found.options);
                    let options = options.map_err(|error| Error::bad_value(error.0))?;
                    if options.view.is_none() {
                        let what = format!("{} has no UUID and is no view", found.ns);
                        return Err(Error::bad_value(what));
                    }
                    put_view(
                        &catalog,
                        &mut change,
                        View::new(found.ns.clone(), next, options),
                    )?;
                    next += 1;
                }
            }
        }
        change.next_number = next;
        self.put_change(&catalog, change).await
    }

    async fn put_change(
        &self,
        catalog: &Catalog,
        change: CatalogChange,
    ) -> Result<Vec<Arc<Collection>>> {
        free_trees(&change, catalog).await?;
        let numbers: Vec<u64> = change.puts.iter().map(|row| row.number).collect();
        self.apply_copied(change).await?;
        let catalog = core_catalog().current();
        let put = numbers
            .iter()
            .filter_map(|number| catalog.by_number(*number));
        Ok(put.cloned().collect())
    }

    async fn apply_copied(&self, mut change: CatalogChange) -> Result<()> {
        self.apply_logged(Timestamp::MIN, |catalog| {
            change.next_number = change.next_number.max(catalog.next_number());
            Ok(change)
        })
        .await?;
        Ok(())
    }
}

/// Adds a row to a change of the catalog. What has the row's name was listed before it and is
/// called otherwise by now: an entry that follows says how.
fn put_row(catalog: &Catalog, change: &mut CatalogChange, row: &RawDocument) -> Result<()> {
    if View::is_row(row) {
        let view = View::from_row(row).map_err(damaged)?;
        return put_view(catalog, change, view);
    }
    put_collection(catalog, change, Collection::from_row(row).map_err(damaged)?)
}

fn put_view(catalog: &Catalog, change: &mut CatalogChange, view: View) -> Result<()> {
    check_number(catalog, view.number, &view.ns)?;
    take_name(catalog, change, &view.ns)?;
    change.views.push(view);
    Ok(())
}

fn put_collection(
    catalog: &Catalog,
    change: &mut CatalogChange,
    collection: Collection,
) -> Result<()> {
    for tree in collection.trees() {
        check_number(catalog, tree.0, &collection.ns)?;
    }
    take_name(catalog, change, &collection.ns)?;
    change.puts.push(collection);
    Ok(())
}

fn damaged(row: BadRow) -> Error {
    Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, row.0)
}

fn check_number(catalog: &Catalog, number: u64, ns: &Namespace) -> Result<()> {
    let own = catalog.by_number(number).map(|own| &own.ns);
    let taken = own.is_some_and(|own| !is_replicated(own));
    match taken || number < FIRST_IDENT {
        false => Ok(()),
        true => Err(Error::new(
            ErrorCode::OPLOG_OPERATION_UNSUPPORTED,
            format!("the number {number} of {ns} is taken on this node"),
        )),
    }
}

fn take_name(catalog: &Catalog, change: &mut CatalogChange, ns: &Namespace) -> Result<()> {
    change.views.retain(|view| view.ns != *ns);
    if let Some(view) = catalog.view(ns) {
        change.removes.push(view.number);
    }
    let elsewhere = |uuid| Namespace::new(ns.db(), &format!("tmp{uuid}.create"));
    if let Some(holder) = change.puts.iter_mut().find(|holder| holder.ns == *ns) {
        *holder = holder.renamed(elsewhere(holder.uuid)?, holder.options.temporary);
    } else if let Some(holder) = catalog.get(ns) {
        let moved = holder.renamed(elsewhere(holder.uuid)?, holder.options.temporary);
        if !change.puts.iter().any(|row| row.number == moved.number) {
            change.puts.push(moved);
        }
    }
    Ok(())
}
