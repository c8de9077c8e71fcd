//! Collections and databases dropped.

use pinion_bson::rawdoc;
use pinion_clock::Timestamp;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use super::coordinator::{Commit, Coordinator, behind_gates, coordinate};
use super::locks::Scope;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::gates::GateMode;
use crate::oplog::OpKind;

/// What `drop` did: how many indexes went with the collection (the `_id` index included), and when.
#[derive(Clone, Copy, Debug)]
pub struct Dropped {
    pub indexes: usize,
    pub ts: Timestamp,
}

/// Drops a collection; `None` if there is none of that name.
pub async fn drop_collection(ctx: &OpContext, ns: Namespace) -> Result<Option<Dropped>> {
    coordinate(ctx, move |c| async move {
        let _lock = c.lock(Scope::one(&ns)).await;
        if core_catalog().get(&ns).is_none() {
            return Ok(None);
        }
        let gates = [ns.clone()];
        behind_gates(&gates, GateMode::Closed, c.drop_one(&ns))
            .await
            .map(Some)
    })
    .await
}

/// Drops all collections of a database; the timestamp of the last change, or `None` if there was no
/// such database.
pub async fn drop_database(ctx: &OpContext, db: String) -> Result<Option<Timestamp>> {
    coordinate(ctx, move |c| async move {
        let _lock = c.lock(Scope::Database(db.clone())).await;
        let gates: Vec<Namespace> = core_catalog()
            .current()
            .collections_of(&db)
            .map(|collection| collection.ns.clone())
            .collect();
        if gates.is_empty() {
            return Ok(None);
        }
        let operation = c.drop_all(&db, &gates);
        behind_gates(&gates, GateMode::Closed, operation)
            .await
            .map(Some)
    })
    .await
}

impl Coordinator {
    /// Drops a collection whose gates are closed.
    async fn drop_one(&self, ns: &Namespace) -> Result<Dropped> {
        let mut indexes = 0;
        let compute = |catalog: &Catalog| {
            let collection = catalog.get(ns).expect("its lock is held").clone();
            indexes = collection.indexes.len() + 1;
            let change = CatalogChange {
                removes: vec![collection.number],
                dropped_trees: collection.trees().collect(),
                ..Default::default()
            };
            let o = rawdoc! { "drop": ns.collection() };
            Ok(Commit::command(ns, collection.uuid, o, change))
        };
        let ts = self.commit(compute).await?;
        Ok(Dropped { indexes, ts })
    }

    /// Drops the collections of a database, whose gates are closed.
    async fn drop_all(&self, db: &str, namespaces: &[Namespace]) -> Result<Timestamp> {
        for ns in namespaces {
            self.drop_one(ns).await?;
        }
        self.commit(|_| {
            Ok(Commit {
                change: CatalogChange::default(),
                kind: OpKind::Command,
                ns: format!("{db}.$cmd"),
                uuid: None,
                o: rawdoc! { "dropDatabase": 1 },
            })
        })
        .await
    }
}
