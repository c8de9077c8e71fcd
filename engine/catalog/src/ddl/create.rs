//! Collections made: by `create`, and by the first write.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::coordinator::{Commit, Coordinator, coordinate};
use super::locks::Scope;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::names::check_creatable;
use crate::text::render;

/// What `create` did.
#[derive(Clone, Debug)]
pub struct Created {
    pub collection: Arc<Collection>,
    /// When it was made; `None` if it was there already.
    pub ts: Option<Timestamp>,
}

/// Makes a collection, or finds it if it is there with the same options.
///
/// # Errors
/// `NamespaceExists` if it is there with other options; `InvalidNamespace`; `DatabaseDifferCase`.
pub async fn create_collection(
    ctx: &OpContext,
    ns: Namespace,
    options: RawDocumentBuf,
) -> Result<Created> {
    coordinate(ctx, move |c| async move {
        let _lock = c.lock(Scope::one(&ns)).await;
        c.create(&ns, options).await
    })
    .await
}

/// Finds the collection, or makes it without options: what the first insert does.
pub async fn ensure_collection(ctx: &OpContext, ns: Namespace) -> Result<Created> {
    coordinate(ctx, move |c| async move {
        let _lock = c.lock(Scope::one(&ns)).await;
        c.ensure(&ns).await
    })
    .await
}

impl Coordinator {
    /// As [`ensure_collection`], for a caller that holds the lock.
    pub(super) async fn ensure(&self, ns: &Namespace) -> Result<Created> {
        match core_catalog().get(ns) {
            Some(collection) => Ok(Created {
                collection,
                ts: None,
            }),
            None => self.create(ns, RawDocumentBuf::new()).await,
        }
    }

    async fn create(&self, ns: &Namespace, options: RawDocumentBuf) -> Result<Created> {
        check_creatable(ns)?;
        if let Some(collection) = core_catalog().get(ns) {
            return same_options(collection, &options);
        }
        let mut collection =
            Collection::new(ns.clone(), self.uuid(), self.numbers(1), options.clone());
        collection.made_ms = Some(pinion_runtime::wall_ms());
        let mut o = DocBuilder::new();
        o.append("create", ns.collection())
            .append("idIndex", &*Collection::id_index())
            .append_all(&options);
        let compute = |catalog: &Catalog| {
            check_database_case(catalog, ns.db())?;
            let uuid = collection.uuid;
            let change = CatalogChange {
                puts: vec![collection],
                ..Default::default()
            };
            Ok(Commit::command(ns, uuid, o.finish(), change))
        };
        let ts = self.commit(compute).await?;
        let collection = core_catalog().get(ns).expect("just installed");
        Ok(Created {
            collection,
            ts: Some(ts),
        })
    }
}

/// The collection, if it is what was to be made.
fn same_options(collection: Arc<Collection>, options: &RawDocumentBuf) -> Result<Created> {
    if collection.options.as_bytes() == options.as_bytes() {
        return Ok(Created {
            collection,
            ts: None,
        });
    }
    Err(Error::new(
        ErrorCode::NAMESPACE_EXISTS,
        format!(
            "namespace {} already exists, but with different options: {}",
            collection.ns,
            render(&collection.options)
        ),
    ))
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
