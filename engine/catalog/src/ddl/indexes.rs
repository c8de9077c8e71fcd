//! Indexes made and dropped.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::coordinator::{Commit, Coordinator, behind_gates, coordinate, drop_trees};
use super::locks::Scope;
use crate::build;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::gates::GateMode;
use crate::index::Index;
use crate::limits::MAX_INDEXES;
use crate::names::check_not_view;
use crate::specs;
use crate::text::render;

/// What `createIndexes` did.
#[derive(Clone, Copy, Debug)]
pub struct IndexesCreated {
    pub before: usize,
    pub after: usize,
    pub collection_made: bool,
    pub ts: Option<Timestamp>,
}

/// Makes indexes out of checked specifications (`{v, key, name, ...}`), building them over the
/// documents that are there.
pub async fn create_indexes(
    ctx: &OpContext,
    ns: Namespace,
    requested: Vec<RawDocumentBuf>,
) -> Result<IndexesCreated> {
    coordinate(ctx, move |c| async move {
        let _lock = c.lock(Scope::one(&ns)).await;
        let (collection, made) = c.ensure(&ns).await?;
        let before = collection.index_count();
        let wanted = specs::missing(&collection, &requested)?;
        let unchanged = IndexesCreated {
            before,
            after: before,
            collection_made: made.is_some(),
            ts: made,
        };
        if wanted.is_empty() {
            return Ok(unchanged);
        }
        if before + wanted.len() > MAX_INDEXES {
            return Err(Error::new(
                ErrorCode::CANNOT_CREATE_INDEX,
                format!(
                    "add index fails, too many indexes for {ns} key:{}",
                    render(wanted[0].key())
                ),
            ));
        }
        let after = before + wanted.len();
        let operation = c.build_indexes(&collection, wanted);
        let ts = behind_gates(std::slice::from_ref(&ns), GateMode::NoWrites, operation).await?;
        Ok(IndexesCreated {
            after,
            ts: Some(ts),
            ..unchanged
        })
    })
    .await
}

impl Coordinator {
    /// Builds and makes ready, while no writer is behind the collection's gates.
    async fn build_indexes(
        &self,
        collection: &Arc<Collection>,
        wanted: Vec<specs::Wanted>,
    ) -> Result<Timestamp> {
        let first = self.numbers(wanted.len() as u64);
        let mut indexes: Vec<Index> = Vec::with_capacity(wanted.len());
        for (i, wanted) in wanted.into_iter().enumerate() {
            indexes.push(wanted.into_index(TreeId(first + i as u64)));
        }
        let build_uuid = self.uuid();
        let listing = |command: &str, indexes: &[Index]| {
            let mut o = DocBuilder::new();
            o.append(command, collection.ns.collection())
                .append("indexBuildUUID", build_uuid.to_bson())
                .start_array("indexes");
            for index in indexes {
                o.push(&*index.listed);
            }
            o.end();
            o.finish()
        };
        // The numbers are taken before anything is written under them: those of a build that fails
        // or that a crash ends are never given to another tree, whose entries would mix with what
        // is left of it.
        let o = listing("startIndexBuild", &indexes);
        let reserved = |_: &Catalog| {
            let change = CatalogChange::default();
            Ok(Commit::command(
                &collection.ns,
                Some(collection.uuid),
                o,
                change,
            ))
        };
        self.commit(reserved).await?;
        let built = match build::build(collection, &indexes, build_uuid).await {
            Ok(built) => built,
            Err(error) => {
                // Nothing in the catalog names these trees: they can go at once.
                let now = pinion_storage::storage().last_allotted();
                drop_trees(indexes.iter().map(|index| index.tree).collect(), now).await;
                return Err(error);
            }
        };
        let o = listing("commitIndexBuild", &indexes);
        let ready = |catalog: &Catalog| {
            let current = catalog.get(&collection.ns).expect("its lock is held");
            let mut current = Collection::clone(current);
            for mut index in indexes {
                let tree = index.tree;
                for (_, paths) in built.multikey.iter().filter(|(found, _)| *found == tree) {
                    index = index.with_multikey(paths);
                }
                current = current.with_index(index);
            }
            let change = CatalogChange {
                puts: vec![current],
                ..Default::default()
            };
            Ok(Commit::command(
                &collection.ns,
                Some(collection.uuid),
                o,
                change,
            ))
        };
        self.commit(ready).await
    }
}

impl Coordinator {
    /// Makes the entries of an index anew in a tree of their own, where its specification says,
    /// while no writer is behind the collection's gates. The caller puts the new index in the place
    /// of the old one.
    pub(super) async fn rebuild(
        &self,
        collection: &Arc<Collection>,
        index: &Index,
    ) -> Result<Index> {
        let moved = index.moved_to(TreeId(self.numbers(1)));
        let build_uuid = self.uuid();
        let reserved = |_: &Catalog| {
            let o = rawdoc! {
                "startIndexBuild": collection.ns.collection(),
                "indexBuildUUID": build_uuid.to_bson(),
                "indexes": [moved.listed.clone()],
            };
            let change = CatalogChange::default();
            let uuid = Some(collection.uuid);
            Ok(Commit::command(&collection.ns, uuid, o, change))
        };
        self.commit(reserved).await?;
        let indexes = [moved];
        match build::build(collection, &indexes, build_uuid).await {
            Ok(_) => {
                let [moved] = indexes;
                Ok(moved)
            }
            Err(error) => {
                let now = pinion_storage::storage().last_allotted();
                drop_trees(indexes.iter().map(|index| index.tree).collect(), now).await;
                Err(error)
            }
        }
    }
}

/// Which indexes `dropIndexes` means.
#[derive(Clone, Debug)]
pub enum IndexSelection {
    /// `"*"`: all but the `_id` index.
    All,
    Names(Vec<String>),
    Key(RawDocumentBuf),
}

/// Drops indexes; the number of indexes before, and when.
///
/// # Errors
/// `NamespaceNotFound`, `IndexNotFound`, `InvalidOptions` for the `_id` index.
pub async fn drop_indexes(
    ctx: &OpContext,
    ns: Namespace,
    selection: IndexSelection,
) -> Result<(usize, Option<Timestamp>)> {
    coordinate(ctx, move |c| async move {
        let _lock = c.lock(Scope::one(&ns)).await;
        check_not_view(&core_catalog().current(), &ns)?;
        let Some(collection) = core_catalog().get(&ns) else {
            return Err(Error::new(
                ErrorCode::NAMESPACE_NOT_FOUND,
                format!("ns not found {ns}"),
            ));
        };
        let names = specs::select(&collection, &selection)?;
        let before = collection.index_count();
        if names.is_empty() {
            return Ok((before, None));
        }
        let operation = c.drop_named(&collection, &names);
        let last = behind_gates(&[ns], GateMode::Closed, operation).await?;
        Ok((before, Some(last)))
    })
    .await
}

impl Coordinator {
    async fn drop_named(
        &self,
        collection: &Arc<Collection>,
        names: &[String],
    ) -> Result<Timestamp> {
        let ns = &collection.ns;
        let mut last = Timestamp::MIN;
        for name in names {
            let compute = |catalog: &Catalog| {
                let current = catalog.get(ns).expect("its lock is held");
                let index = current.index(name).expect("selected by name");
                let change = CatalogChange {
                    puts: vec![current.without_indexes(std::slice::from_ref(name))],
                    dropped_trees: vec![index.tree],
                    ..Default::default()
                };
                let o = rawdoc! { "dropIndexes": ns.collection(), "index": name.as_str() };
                Ok(Commit::command(ns, Some(collection.uuid), o, change))
            };
            last = self.commit(compute).await?;
        }
        Ok(last)
    }
}
