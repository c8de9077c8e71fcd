//! What an entry's change is on a node whose collections may be newer than the entry.
//!
//! A collection is the one with the same UUID, whatever it is called by now, and an index the one
//! of the same name. What is gone stays gone, what is there stays, and a name that a collection of
//! a later time has is taken from it until the entry follows that gives it back, as MongoDB's
//! initial sync does.

use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::logged_builds::indexes_of;
use crate::catalog::Catalog;
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::index::Index;
use crate::uuid::Uuid;

/// The change that is left of `change` on this catalog; `None` where nothing is.
///
/// # Errors
/// A number of the entry's is that of another collection here.
pub(super) fn adapted(
    change: CatalogChange,
    command: &str,
    o: &RawDocument,
    catalog: &Catalog,
) -> Result<Option<CatalogChange>> {
    let mut adapted = Adapted {
        catalog,
        out: CatalogChange {
            next_number: change.next_number,
            ..CatalogChange::default()
        },
    };
    for number in &change.removes {
        adapted.remove(*number);
    }
    for row in &change.puts {
        match catalog.by_uuid(row.uuid) {
            Some(present) => adapted.change(present, row, command, o)?,
            None if command == "create" => adapted.create(row)?,
            None => {}
        }
    }
    adapted.views(&change, command);
    let out = adapted.out;
    let is_empty = out.puts.is_empty() && out.views.is_empty() && out.removes.is_empty();
    Ok((!is_empty).then_some(out))
}

struct Adapted<'a> {
    catalog: &'a Catalog,
    out: CatalogChange,
}

impl Adapted<'_> {
    fn remove(&mut self, number: u64) {
        if let Some(gone) = self.catalog.by_number(number) {
            self.out.dropped_trees.extend(gone.trees());
        } else if self.catalog.view_by_number(number).is_none() {
            return;
        }
        self.out.removes.push(number);
    }

    fn create(&mut self, row: &Collection) -> Result<()> {
        if let Some(other) = self.catalog.by_number(row.number) {
            return Err(Error::new(
                ErrorCode::OPLOG_OPERATION_UNSUPPORTED,
                format!(
                    "the number {} of {} is that of {} here",
                    row.number, row.ns, other.ns
                ),
            ));
        }
        if self.take_name(&row.ns)? {
            self.out.puts.push(row.clone());
        }
        Ok(())
    }

    /// Makes a name free. A view of that name is of a later time, at which the collection is gone
    /// or has another: false.
    fn take_name(&mut self, ns: &Namespace) -> Result<bool> {
        if self.catalog.view(ns).is_some() {
            return Ok(false);
        }
        if let Some(holder) = self.catalog.get(ns)
            && !self.out.removes.contains(&holder.number)
        {
            let elsewhere = Namespace::new(ns.db(), &format!("tmp{}.create", holder.uuid))?;
            let stays_temporary = holder.options.temporary;
            self.out
                .puts
                .push(holder.renamed(elsewhere, stays_temporary));
        }
        Ok(true)
    }

    /// Does to a collection that is there what the command did to it.
    fn change(
        &mut self,
        present: &Arc<Collection>,
        row: &Collection,
        command: &str,
        o: &RawDocument,
    ) -> Result<()> {
        let changed = match command {
            "create" | "renameCollection" => {
                if present.ns != row.ns && self.take_name(&row.ns)? {
                    Some(present.renamed(row.ns.clone(), row.options.temporary))
                } else {
                    None
                }
            }
            "collMod" => Some(self.modified(present, row)),
            "createIndexes" => with_made(present, row, &names_of(command, o)),
            "startIndexBuild" => with_started(present, row, o),
            "commitIndexBuild" => self.built(present, row, &names_of(command, o)),
            "abortIndexBuild" => {
                let build = build_of(o);
                let is_meant = |index: &&Arc<Index>| {
                    index
                        .building
                        .is_some_and(|building| Some(building.build) == build)
                };
                let meant = present.indexes.iter().filter(is_meant);
                let names: Vec<String> = meant.map(|index| index.name().to_owned()).collect();
                self.without(present, &names)
            }
            "dropIndexes" | "deleteIndexes" => self.without(present, &names_of(command, o)),
            "" => Some(present.with_multikey(&learned(present, row))),
            _ => None,
        };
        self.out.puts.extend(changed);
        Ok(())
    }

    /// The collection with the options of the row, and its indexes as the row has them.
    fn modified(&mut self, present: &Collection, row: &Collection) -> Collection {
        let mut changed = present.with_options(row.options.clone());
        for index in row.ready_indexes() {
            let Some(known) = present.index(index.name()) else {
                continue;
            };
            if known.building.is_some() || known.key() != index.key() {
                continue;
            }
            let mut index = Index::clone(index);
            if let Some(paths) = &known.spec.multikey {
                index = index.with_multikey(paths);
            }
            if index.placement == known.placement {
                index.tree = known.tree;
            } else {
                // Its entries are made again, in the tree that has them where the entry comes from.
                self.out.dropped_trees.push(known.tree);
            }
            changed = changed.with_replaced(known.name(), index);
        }
        changed
    }

    /// The collection with those of the row's indexes that have these names: what is being built
    /// becomes ready, what is missing is made.
    fn built(
        &mut self,
        present: &Collection,
        row: &Collection,
        names: &[String],
    ) -> Option<Collection> {
        let mut changed = with_made(present, row, names);
        for index in row.ready_indexes() {
            let Some(known) = present.index(index.name()) else {
                continue;
            };
            // One of the same name may be that of a later build.
            let Some(building) = known.building.filter(|_| known.tree == index.tree) else {
                continue;
            };
            let mut ready = Index::clone(index);
            if let Some(paths) = &known.spec.multikey {
                ready = ready.with_multikey(paths);
            }
            self.out.dropped_trees.push(building.side);
            let before = changed.as_ref().unwrap_or(present);
            changed = Some(before.with_replaced(known.name(), ready));
        }
        changed
    }

    fn without(&mut self, present: &Collection, names: &[String]) -> Option<Collection> {
        let gone: Vec<&Arc<Index>> = names
            .iter()
            .filter_map(|name| present.index(name))
            .collect();
        self.out
            .dropped_trees
            .extend(gone.iter().flat_map(|index| index.trees()));
        (!gone.is_empty()).then(|| present.without_indexes(names))
    }

    /// Views have no data: one that is there stays, and one whose name is taken has gone by the
    /// time of what has it.
    fn views(&mut self, change: &CatalogChange, command: &str) {
        for view in &change.views {
            let is_there = self.catalog.view_by_number(view.number).is_some();
            let is_free = self.catalog.kind(&view.ns).is_none();
            let (made, modified) = (!is_there && is_free, is_there && command == "collMod");
            if made || modified {
                self.out.views.push(view.clone());
            }
        }
        let removed = self.out.removes.iter();
        let gone: Vec<&Namespace> = removed
            .filter_map(|number| self.catalog.view_by_number(*number))
            .map(|view| &view.ns)
            .collect();
        let put: Vec<&Namespace> = self.out.views.iter().map(|view| &view.ns).collect();
        let is_about =
            |namespaces: &[&Namespace], id: &str| namespaces.iter().any(|ns| ns.as_str() == id);
        let documents = change.documents.iter().filter(|written| {
            let of_views = if written.document.is_some() {
                &put
            } else {
                &gone
            };
            is_about(of_views, &written.id) && self.is_present(written.tree)
        });
        self.out.documents = documents.cloned().collect();
    }

    /// Whether there is a collection with this tree after the change.
    fn is_present(&self, tree: TreeId) -> bool {
        let is_made = self.out.puts.iter().any(|row| row.tree() == tree);
        is_made || self.catalog.by_number(tree.0).is_some()
    }
}

/// The collection with those of the row's indexes that have these names and that it has not.
fn with_made(present: &Collection, row: &Collection, names: &[String]) -> Option<Collection> {
    let is_missing = |index: &&Arc<Index>| {
        names.iter().any(|name| name == index.name()) && present.index(index.name()).is_none()
    };
    let missing: Vec<&Arc<Index>> = row.ready_indexes().filter(is_missing).collect();
    let with = |made: Collection, index: &&Arc<Index>| made.with_index(Index::clone(index));
    (!missing.is_empty()).then(|| missing.iter().fold(present.clone(), with))
}

/// The collection with the indexes of a build that has started, as the row has them: none of those
/// names is there.
fn with_started(present: &Collection, row: &Collection, o: &RawDocument) -> Option<Collection> {
    let started = indexes_of(row, build_of(o)?);
    let missing = started
        .into_iter()
        .filter(|index| present.index(index.name()).is_none());
    let missing: Vec<Index> = missing.collect();
    let with = |made: Collection, index: &Index| made.with_index(index.clone());
    (!missing.is_empty()).then(|| missing.iter().fold(present.clone(), with))
}

/// The build that a command is about.
fn build_of(o: &RawDocument) -> Option<Uuid> {
    Uuid::from_bson(pinion_bson::get(o, "indexBuildUUID")?)
}

/// What the row knows of arrays in indexes that are here too.
fn learned(present: &Collection, row: &Collection) -> Vec<(TreeId, pinion_query::MultikeyPaths)> {
    let of_index = |index: &Arc<Index>| {
        let known = present.index(index.name())?;
        Some((known.tree, index.spec.multikey.clone()?))
    };
    row.indexes.iter().filter_map(of_index).collect()
}

/// What an entry that reports arrays in indexes says of collections whose numbers are others here;
/// `None` where that is nothing.
pub(super) fn learned_here(change: &CatalogChange, catalog: &Catalog) -> Option<CatalogChange> {
    let marked = change.puts.iter().filter_map(|row| {
        let present = catalog.by_uuid(row.uuid)?;
        Some(present.with_multikey(&learned(present, row)))
    });
    let puts: Vec<Collection> = marked.collect();
    (!puts.is_empty()).then(|| CatalogChange {
        puts,
        next_number: catalog.next_number(),
        ..CatalogChange::default()
    })
}

/// The names of the indexes that a command is about.
pub(super) fn names_of(command: &str, o: &RawDocument) -> Vec<String> {
    let name = |value: RawBsonRef<'_>| match value {
        RawBsonRef::String(name) => Some(name.to_owned()),
        RawBsonRef::Document(spec) => spec.get_str("name").ok().map(str::to_owned),
        _ => None,
    };
    let field = match command {
        "createIndexes" => "name",
        "commitIndexBuild" => "indexes",
        _ => "index",
    };
    match pinion_bson::get(o, field) {
        Some(RawBsonRef::Array(list)) => pinion_bson::values(list).filter_map(name).collect(),
        Some(value) => name(value).into_iter().collect(),
        None => Vec::new(),
    }
}
