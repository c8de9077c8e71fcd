//! Collections that a transaction makes.
//!
//! They are *planned* at first: they have their numbers, and only the transaction knows them. They
//! come into the catalog when it commits, in the same unit as what it has written to them, or not
//! at all.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::RawDocumentBuf;
use pinion_clock::Timestamp;
use pinion_runtime::{LocalBoxFuture, Queue, core_id, submit_to, timeout};
use pinion_storage::{TreeId, Write};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::coordinator::coordinate;
use super::create::{check_database_case, check_options_v44, creation_entry};
use super::guard::Definition;
use super::indexes::{check_index_count, index_creation_entry};
use super::locks::Scope;
use super::series::together;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::limits::PLANNED_LOCK_PATIENCE;
use crate::names::{check_creatable, check_not_view, command_namespace};
use crate::oplog::{Observers, OpEvent, OpKind, encode_operation};
use crate::oplog_format::oplog_format;
use crate::options::CollectionOptions;
use crate::specs::{self, Missing};

/// What planned collections are when they come into the catalog.
#[derive(Default)]
pub struct PlannedChange {
    /// What the oplog says of them: elements of an `applyOps`.
    pub operations: Vec<Bytes>,
    /// Their rows.
    pub writes: Vec<Write>,
}

/// Plans a collection; `None` if the name is taken.
///
/// # Errors
/// `InvalidNamespace`; `DatabaseDifferCase`; the name is a view's.
pub fn plan_collection(
    ctx: &OpContext,
    ns: Namespace,
    options: CollectionOptions,
) -> LocalBoxFuture<'_, Result<Option<Arc<Collection>>>> {
    Box::pin(async move {
        let definition = Definition::Create {
            ns: ns.clone(),
            options: Box::new(options.clone()),
        };
        coordinate(ctx, definition, move |c| async move {
            check_creatable(&ns)?;
            let catalog = core_catalog().current();
            check_not_view(&catalog, &ns)?;
            check_options_v44(&ns, &options)?;
            check_database_case(&catalog, ns.db())?;
            Ok(match catalog.get(&ns) {
                Some(_) => None,
                None => Some(Arc::new(c.new_collection(ns, options))),
            })
        })
        .await
    })
}

/// Plans indexes of a planned collection without documents, out of checked specifications. Gives
/// the collection with those that it lacked.
///
/// # Errors
/// Those of the specifications, beside the indexes that are there; `CannotCreateIndex` of too many.
pub fn plan_indexes(
    ctx: &OpContext,
    collection: Arc<Collection>,
    requested: Vec<RawDocumentBuf>,
) -> LocalBoxFuture<'_, Result<Arc<Collection>>> {
    Box::pin(async move {
        let definition = Definition::CreateIndexes(collection.ns.clone());
        coordinate(ctx, definition, move |c| async move {
            let Missing { wanted, .. } = specs::missing(&collection, &requested)?;
            check_index_count(&collection, &wanted)?;
            let mut planned = Collection::clone(&collection);
            for wanted in wanted {
                let tree = TreeId(c.numbers(&planned.ns, 1));
                planned = planned.with_index(wanted.into_index(tree));
            }
            Ok(Arc::new(planned))
        })
        .await
    })
}

/// Brings planned collections into the catalog. `commit` writes their change, with all else that
/// takes place at the same timestamp, and gives that; it runs on the core that has called this.
///
/// # Errors
/// `WriteConflict` if a name was taken meanwhile; `LockTimeout` if another change of one of them,
/// which may wait for the transaction, does not end in time; those of `commit`. Nothing is changed
/// then. Where `commit` was not called, it is dropped.
pub async fn commit_planned<F, Fut>(
    ctx: &OpContext,
    planned: Vec<Arc<Collection>>,
    commit: F,
) -> Result<Timestamp>
where
    F: FnOnce(PlannedChange) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Timestamp>> + 'static,
{
    let home = core_id();
    coordinate(ctx, Definition::OfWrite, move |c| async move {
        let names = planned.iter().flat_map(|made| together(&made.ns)).collect();
        let _lock = timeout(PLANNED_LOCK_PATIENCE, c.lock(Scope::Namespaces(names)))
            .await
            .map_err(|_| lock_timeout(&planned[0].ns))?;
        let puts = planned.iter().map(|made| Collection::clone(made));
        let compute = |catalog: &Catalog| {
            for made in &planned {
                check_free(catalog, &made.ns)?;
            }
            Ok(CatalogChange {
                puts: puts.collect(),
                ..Default::default()
            })
        };
        let write = |change: &CatalogChange| {
            let prepared = operations_of(change).map(|operations| PlannedChange {
                operations,
                writes: change.writes(),
            });
            async move {
                let change = prepared?;
                submit_to(home, Queue::Foreground, move || commit(change)).await
            }
        };
        c.commit_by(compute, write).await
    })
    .await
}

fn lock_timeout(ns: &Namespace) -> Error {
    Error::new(
        ErrorCode::LOCK_TIMEOUT,
        format!("Unable to create '{ns}' in time: another change is under way."),
    )
}

/// Others may have made a collection or a view of the name, or the database with another case,
/// since it was planned.
fn check_free(catalog: &Catalog, ns: &Namespace) -> Result<()> {
    check_database_case(catalog, ns.db())?;
    if catalog.get(ns).is_none() && catalog.view(ns).is_none() {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::WRITE_CONFLICT,
        format!(
            "Caused by :: Collection {ns} was made by another operation meanwhile. Please retry your operation or multi-document transaction."
        ),
    ))
}

/// What the oplog says: each collection is made, and then its indexes. The rows with the first are
/// complete.
fn operations_of(change: &CatalogChange) -> Result<Vec<Bytes>> {
    let observers = pinion_runtime::core_local::<Observers>();
    let mut operations = Vec::new();
    for made in &change.puts {
        let alone = CatalogChange {
            puts: vec![made.clone()],
            next_number: change.next_number,
            ..Default::default()
        };
        let o2 = alone.to_o2();
        let ns = command_namespace(&made.ns);
        let of_indexes = made.indexes.iter().filter(|index| index.name() != "_id_");
        let of_indexes = of_indexes.map(|index| index_creation_entry(&made.ns, index));
        let entries = [creation_entry(&made.ns, &made.options)].into_iter();
        for o in entries.chain(of_indexes) {
            let event = OpEvent {
                kind: OpKind::Command,
                ns: &ns,
                uuid: Some(made.uuid),
                o: &o,
                o2: Some(&o2),
                from_migrate: false,
                wall_ms: pinion_runtime::wall_ms(),
                session: None,
                record: None,
                form: oplog_format(),
            };
            observers.show(&event)?;
            operations.push(Bytes::from(encode_operation(&event, None).bytes));
        }
    }
    Ok(operations)
}
