//! Changes of the catalog that a log records: this node's own, replayed, or that of another member.
//!
//! The applier has applied everything before them, and applies nothing behind them before they are
//! done. Readers of a namespace are kept out while it changes, as by the operation that made the
//! entry where it was made.

use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::RawDocument;
use pinion_clock::Timestamp;
use pinion_runtime::LocalBoxFuture;
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::adapt::{adapted, learned_here, names_of};
use super::coordinator::{Coordinator, behind_gates};
use super::foreign::{Numbers, view_change, worked_out};
use super::locks::Scope;
use super::logged_builds::{indexes_of, load_missing};
use crate::build;
use crate::catalog::{Catalog, core_catalog};
use crate::change::{CatalogChange, SystemDocument};
use crate::entry::{BadRow, Collection};
use crate::gates::GateMode;
use crate::index::Index;
use crate::uuid::Uuid;
use crate::view::{SYSTEM_VIEWS, View};

/// What the entries that are applied are to this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ApplyMode {
    /// Its own, behind the base that it has opened: there are no readers yet, and nothing of them
    /// is there.
    Recovery,
    /// Those of the member that it follows, in their order from where it is. What does not fit
    /// means that the two have diverged, and is an error.
    Secondary,
    /// The same, over copies of collections that may be newer than the entries. All that cannot be
    /// done is passed over: an entry that follows has the reason.
    InitialSync,
}

/// An entry of the log that may change the catalog.
pub struct LoggedCommand<'a> {
    pub ts: Timestamp,
    /// `database.$cmd`, or the collection of a no-op.
    pub ns: &'a str,
    /// The collection that it is about.
    pub uuid: Option<Uuid>,
    /// Whether it is a command; a no-op otherwise, which may report arrays in indexes.
    pub is_command: bool,
    pub o: &'a RawDocument,
    /// The rows of the catalog.
    pub o2: Option<&'a RawDocument>,
}

impl LoggedCommand<'_> {
    /// The name of the command.
    pub(super) fn name(&self) -> &str {
        let first = pinion_bson::elements(self.o).next();
        match self.is_command {
            true => first.map_or("", |(name, _)| name),
            false => "",
        }
    }

    /// What a `drop` drops.
    fn dropped(&self) -> Option<Namespace> {
        let name = pinion_bson::get(self.o, "drop")?.as_str()?;
        let db = self.ns.split('.').next()?;
        Namespace::new(db, name).ok()
    }

    /// What the change keeps out: readers too, unless all that it does is to make indexes. `None`
    /// where it only reports arrays in indexes.
    fn gates(&self) -> Option<GateMode> {
        match self.name() {
            "" => None,
            "createIndexes" | "startIndexBuild" | "commitIndexBuild" | "abortIndexBuild" => {
                Some(GateMode::NoWrites)
            }
            _ => Some(GateMode::Closed),
        }
    }
}

fn damaged(row: BadRow) -> Error {
    Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, row.0)
}

/// Plants a fault that the simulation must find: from now on readers are not kept out while a
/// logged command is applied. Called on core 0.
#[doc(hidden)]
pub fn plant_unfenced_reads() {
    let coordinator = pinion_runtime::core_local::<Coordinator>();
    coordinator.reads_unfenced.set(true);
}

/// Applies what an entry does to the catalog: rows, indexes, memory, dropped trees. Runs on core 0,
/// after everything before the entry has been applied and before anything after it is. False where
/// there is nothing to do.
///
/// # Errors
/// A command that is not known; on a secondary also what does not fit into the catalog.
pub fn apply_command(
    command: LoggedCommand<'_>,
    mode: ApplyMode,
) -> LocalBoxFuture<'_, Result<bool>> {
    Box::pin(async move {
        let coordinator = pinion_runtime::core_local::<Coordinator>();
        let catalog = core_catalog().current();
        match coordinator.change_of(&command, &catalog, mode)? {
            Some(change) => coordinator.apply_change(&command, change, mode).await,
            None => Ok(false),
        }
    })
}

/// Applies what becomes of the document of a view in `system.views`, which MongoDB's members log as
/// the write of a document: `None` where it is removed. False where there is nothing to do.
///
/// # Errors
/// The document is none of a view, or its name is taken.
pub fn apply_view_document<'a>(
    ts: Timestamp,
    holder: Uuid,
    id: &'a str,
    document: Option<&'a RawDocument>,
    mode: ApplyMode,
) -> LocalBoxFuture<'a, Result<bool>> {
    Box::pin(async move {
        let coordinator = pinion_runtime::core_local::<Coordinator>();
        let catalog = core_catalog().current();
        let numbers = coordinator.numbers_behind(&catalog);
        let Some(change) = view_change(&catalog, holder, id, document, numbers)? else {
            return Ok(false);
        };
        let is_there = Namespace::parse(id).is_ok_and(|ns| catalog.view(&ns).is_some());
        let name = match (document.is_some(), is_there) {
            (true, false) => "create",
            (true, true) => "collMod",
            (false, _) => "drop",
        };
        let mut o = pinion_bson::DocBuilder::new();
        o.append(name, id);
        let o = o.finish();
        let command = LoggedCommand {
            ts,
            ns: id,
            uuid: None,
            is_command: true,
            o: &o,
            o2: None,
        };
        coordinator.apply_change(&command, change, mode).await
    })
}

/// Whether the rows of an entry number things as this node's catalog does. Those of another member
/// may not: it may have copied MongoDB's collections, as this node may have, and then each has
/// given out numbers of its own.
fn numbers_fit(
    change: &CatalogChange,
    command: &LoggedCommand<'_>,
    catalog: &Catalog,
    copy_may_be_newer: bool,
) -> bool {
    let fits = |row: &Collection| {
        let known = catalog.by_uuid(row.uuid);
        if known.is_some_and(|known| known.number != row.number) {
            return false;
        }
        // A command that makes an index again elsewhere may have moved it.
        let moves = |from: &Index, to: &Index| match command.name() {
            "collMod" => from.placement != to.placement,
            name => name == "reIndex",
        };
        let index_fits =
            |index: &Arc<Index>| match known.and_then(|known| known.index(index.name())) {
                Some(known) if !moves(known, index) => known.tree == index.tree,
                _ => is_free(catalog, index.tree, row.number),
            };
        let is_new_number =
            catalog.by_number(row.number).is_none() && catalog.view_by_number(row.number).is_none();
        (known.is_some() || is_new_number && is_free(catalog, row.tree(), row.number))
            && row.indexes.iter().all(index_fits)
    };
    // What is not here must not have its number here either.
    let is_elsewhere = || {
        let mut removes = change.removes.iter();
        removes.all(|number| {
            catalog.by_number(*number).is_none() && catalog.view_by_number(*number).is_none()
        })
    };
    let is_removed = |uuid: Option<Uuid>| match uuid.map(|uuid| catalog.by_uuid(uuid)) {
        None => true,
        Some(None) => is_elsewhere(),
        Some(Some(known)) => change.removes.contains(&known.number),
    };
    let is_view_removed = || match command.dropped().and_then(|ns| catalog.view(&ns)) {
        None => is_elsewhere(),
        Some(known) if copy_may_be_newer && !change.removes.contains(&known.number) => {
            is_elsewhere()
        }
        Some(known) => change.removes.contains(&known.number),
    };
    let removes = match command.name() {
        "drop" if command.uuid.is_none() => is_view_removed(),
        "drop" => is_removed(command.uuid),
        "renameCollection" => {
            let target = pinion_bson::get(command.o, "dropTarget");
            is_removed(target.and_then(Uuid::from_bson))
        }
        _ => true,
    };
    let view_fits = |row: &View| {
        let known = catalog.view(&row.ns);
        match known {
            // One of this name that was made since, as numbers are given out upwards.
            Some(known) if copy_may_be_newer && known.number > row.number => true,
            Some(known) => known.number == row.number,
            None => {
                let holder = catalog.view_by_number(row.number);
                holder.is_none() && catalog.by_number(row.number).is_none()
            }
        }
    };
    let tree_fits = |written: &SystemDocument| {
        let made = change.puts.iter().any(|row| row.tree() == written.tree);
        let known = catalog.by_number(written.tree.0);
        made || known.is_some_and(|known| known.ns.collection() == SYSTEM_VIEWS)
    };
    removes
        && change.puts.iter().all(fits)
        && change.views.iter().all(view_fits)
        && change.documents.iter().all(tree_fits)
}

/// The change with the indexes that this member alone has, since they were built while it ran as a
/// standalone: the rows of others do not name them, and only a command on indexes of their names
/// takes them away.
fn with_own_indexes(
    mut change: CatalogChange,
    command: &LoggedCommand<'_>,
    catalog: &Catalog,
) -> CatalogChange {
    let names = match command.name() {
        "dropIndexes" | "dropIndex" | "deleteIndexes" | "deleteIndex" => {
            names_of(command.name(), command.o)
        }
        _ => Vec::new(),
    };
    let goes = |index: &Index| {
        let is_named = names.iter().any(|name| name == index.name() || name == "*");
        is_named || index.building.is_some()
    };
    for row in &mut change.puts {
        let Some(known) = catalog.by_uuid(row.uuid) else {
            continue;
        };
        let is_own = |index: &&Arc<Index>| row.index(index.name()).is_none() && !goes(index);
        let own: Vec<Index> = (known.indexes.iter().filter(is_own))
            .map(|index| Index::clone(index))
            .collect();
        for index in own {
            *row = row.with_index(index);
        }
    }
    change
}

/// Whether no collection but the one with this number has the tree.
fn is_free(catalog: &Catalog, tree: TreeId, of: u64) -> bool {
    // What was never given out here need not be looked for.
    let has_it = |found: &Arc<Collection>| found.trees().any(|known| known == tree);
    tree.0 >= catalog.next_number()
        || !catalog
            .collections()
            .any(|found| found.number != of && has_it(found))
}

impl Coordinator {
    /// What an entry changes, by its rows where they are such as this node would have written.
    fn change_of(
        &self,
        command: &LoggedCommand<'_>,
        catalog: &Catalog,
        mode: ApplyMode,
    ) -> Result<Option<CatalogChange>> {
        let copies = mode == ApplyMode::InitialSync;
        // What was made meanwhile has a number that was given out here.
        let is_listed = copies && self.is_listed.get();
        let copy_may_be_newer = copies && !is_listed;
        let rows = match command.o2 {
            Some(o2) => CatalogChange::from_o2(o2).map_err(damaged)?,
            None => None,
        };
        match rows {
            Some(change)
                if !is_listed && numbers_fit(&change, command, catalog, copy_may_be_newer) =>
            {
                Ok(Some(match copies {
                    true => change,
                    false => with_own_indexes(change, command, catalog),
                }))
            }
            // What is changed of a collection its row says in full, and the command not.
            Some(change) if !copies && command.name() == "collMod" && change.views.is_empty() => {
                adapted(change, command.name(), command.o, catalog)
            }
            Some(change) if !command.is_command => Ok(learned_here(&change, catalog)),
            None if !command.is_command => Ok(None),
            rows => worked_out(
                command,
                rows.as_ref(),
                catalog,
                self.numbers_behind(catalog),
            ),
        }
    }

    fn numbers_behind(&self, catalog: &Catalog) -> Numbers {
        Numbers::from(self.next_number(catalog, true))
    }

    async fn apply_change(
        self: &Rc<Self>,
        command: &LoggedCommand<'_>,
        change: CatalogChange,
        mode: ApplyMode,
    ) -> Result<bool> {
        let catalog = core_catalog().current();
        match mode {
            ApplyMode::Recovery => {
                self.complete_indexes(command.ts, &catalog, &change, &[])
                    .await?;
                self.apply_logged(command.ts, |_| Ok(change)).await?;
                Ok(true)
            }
            ApplyMode::Secondary => {
                check_fits(&change, command, &catalog)?;
                self.apply_fenced(command, change, mode).await?;
                Ok(true)
            }
            ApplyMode::InitialSync => {
                let Some(change) = adapted(change, command.name(), command.o, &catalog)? else {
                    return Ok(false);
                };
                free_trees(&change, &catalog).await?;
                self.apply_fenced(command, change, mode).await?;
                Ok(true)
            }
        }
    }
}

/// Refuses rows that do not stand where the entry was made as they would here.
fn check_fits(
    change: &CatalogChange,
    command: &LoggedCommand<'_>,
    catalog: &Catalog,
) -> Result<()> {
    let refuse = |what: String| {
        let (name, ns) = (command.name(), command.ns);
        Err(Error::new(
            ErrorCode::OPLOG_OPERATION_UNSUPPORTED,
            format!(
                "the entry of the command '{name}' on {ns} does not fit into the catalog: {what}"
            ),
        ))
    };
    let mut next = catalog.clone();
    for number in &change.removes {
        next.remove(*number);
    }
    for row in &change.puts {
        let (ns, number) = (&row.ns, row.number);
        match (next.by_uuid(row.uuid), next.by_number(number)) {
            (Some(known), _) if known.number != number => {
                return refuse(format!(
                    "{ns} has the number {}, not {number}",
                    known.number
                ));
            }
            (None, Some(other)) => {
                return refuse(format!("the number {number} is that of {}", other.ns));
            }
            (None, None) if command.name() != "create" => {
                return refuse(format!("there is no collection {}", row.uuid));
            }
            _ => {}
        }
        let is_taken = next.get(ns).is_some_and(|other| other.number != number);
        if is_taken || next.view(ns).is_some() {
            return refuse(format!("the name {ns} is taken"));
        }
        next.put(row.clone());
    }
    for view in &change.views {
        let other = next.view(&view.ns).map(|other| other.number);
        if next.get(&view.ns).is_some() || other.is_some_and(|other| other != view.number) {
            return refuse(format!("the name {} is taken", view.ns));
        }
        next.put_view(view.clone());
    }
    Ok(())
}

/// The namespaces that a change is about, under their names before and after.
fn concerned(change: &CatalogChange, catalog: &Catalog) -> Vec<Namespace> {
    let mut found: Vec<Namespace> = Vec::new();
    for number in &change.removes {
        found.extend(catalog.by_number(*number).map(|gone| gone.ns.clone()));
        found.extend(catalog.view_by_number(*number).map(|gone| gone.ns.clone()));
    }
    for row in &change.puts {
        found.extend(
            catalog
                .by_number(row.number)
                .map(|before| before.ns.clone()),
        );
        found.push(row.ns.clone());
    }
    for view in &change.views {
        found.extend(
            catalog
                .view_by_number(view.number)
                .map(|before| before.ns.clone()),
        );
        found.push(view.ns.clone());
    }
    found.sort();
    found.dedup();
    found
}

/// Waits until the trees are gone that a change brings back under their numbers: what is still to
/// be dropped would take with it what is written now.
pub(super) async fn free_trees(change: &CatalogChange, catalog: &Catalog) -> Result<()> {
    let before = |row: &Collection| catalog.by_number(row.number).cloned();
    let is_new = |row: &Collection, tree: &TreeId| {
        before(row).is_none_or(|before| before.trees().all(|known| known != *tree))
    };
    let of_row = |row: &Collection| -> Vec<TreeId> {
        row.trees().filter(|tree| is_new(row, tree)).collect()
    };
    let trees: Arc<[TreeId]> = change.puts.iter().flat_map(of_row).collect();
    if trees.is_empty() {
        return Ok(());
    }
    let dropping = pinion_runtime::on_all_cores(move |_| {
        let trees = trees.clone();
        async move {
            let storage = pinion_storage::storage();
            trees.iter().any(|tree| storage.is_dropping(*tree))
        }
    });
    if dropping.await.contains(&true) {
        let written = pinion_storage::storage().checkpoint().await;
        written.map_err(crate::errors::from_fatal)?;
    }
    Ok(())
}

/// The indexes that a collection has ready after a change, and had not before it.
fn made_ready(before: &Collection, after: &Collection) -> Vec<Index> {
    let was_ready = |index: &Index| before.ready_indexes().any(|known| known.tree == index.tree);
    let ready = after.ready_indexes().map(|index| Index::clone(index));
    ready.filter(|index| !was_ready(index)).collect()
}

/// The builds that a collection has after a change, and had not before it, with their indexes.
fn started(before: &Collection, after: &Collection) -> Vec<(Uuid, Vec<Index>)> {
    let known = before.builds();
    let new = after
        .builds()
        .into_iter()
        .filter(|build| !known.contains(build));
    new.map(|build| (build, indexes_of(after, build))).collect()
}

/// The builds that a change ends.
#[derive(Default)]
struct Ended {
    /// All their entries are there.
    built: Vec<Uuid>,
    /// This node could not make them, though others could: they are made again from what the
    /// documents are now.
    failed: Vec<(Uuid, Vec<Index>)>,
    aborted: Vec<Uuid>,
}

impl Ended {
    /// Wakes the tasks that wait for the builds.
    fn notify(self, coordinator: &Coordinator, ts: Timestamp) {
        let failed = self.failed.into_iter().map(|(build, _)| build);
        for build in self.built.into_iter().chain(failed) {
            coordinator.ended_by_log(build, Ok(ts));
        }
        for build in self.aborted {
            let aborted = Error::new(
                ErrorCode::INDEX_BUILD_ABORTED,
                format!("Index build aborted: {build}"),
            );
            coordinator.ended_by_log(build, Err(aborted));
        }
    }
}

impl Coordinator {
    /// Applies a change whose namespaces others read.
    async fn apply_fenced(
        self: &Rc<Self>,
        command: &LoggedCommand<'_>,
        change: CatalogChange,
        mode: ApplyMode,
    ) -> Result<()> {
        let catalog = core_catalog().current();
        let namespaces = concerned(&change, &catalog);
        // Waited for before the gates are closed, and while the node may still be locked: a build
        // needs a pass of its own.
        let ended = self.end_logged_builds(&catalog, &change).await;
        let _pass = core_catalog().gates().begin_change().await;
        let _lock = self.lock(Scope::Namespaces(namespaces.clone())).await;
        for (_, indexes) in &ended.failed {
            build::forget_entries(indexes.iter()).await?;
        }
        let apply = async {
            self.complete_indexes(command.ts, &catalog, &change, &ended.built)
                .await?;
            self.apply_logged(command.ts, |_| Ok(change)).await
        };
        let mut gates = command.gates();
        if self.reads_unfenced.get() {
            gates = gates.map(|mode| mode.min(GateMode::NoWrites));
        }
        let change = match gates {
            Some(mode) => behind_gates(None, &namespaces, mode, apply).await?,
            None => apply.await?,
        };
        ended.notify(self, command.ts);
        // The copy of another member's documents is not complete yet: they begin when it is.
        if mode == ApplyMode::InitialSync {
            return Ok(());
        }
        for after in &change.puts {
            let Some(before) = catalog.by_number(after.number) else {
                continue;
            };
            for (build, indexes) in started(before, after) {
                let collection = Arc::new(after.clone());
                self.run_logged(&collection, indexes, build);
            }
        }
        Ok(())
    }

    /// Waits for the builds that are complete by a change, and stops those that it gives up.
    async fn end_logged_builds(&self, catalog: &Catalog, change: &CatalogChange) -> Ended {
        let mut ended = Ended::default();
        let removed = change.removes.iter().filter_map(|n| catalog.by_number(*n));
        for build in removed.flat_map(|gone| gone.builds()) {
            self.leave_to_log(build, false).await;
            ended.aborted.push(build);
        }
        for after in &change.puts {
            let Some(before) = catalog.by_number(after.number) else {
                continue;
            };
            let ready = made_ready(before, after);
            for build in before.builds() {
                let of_build = indexes_of(before, build);
                let is_made = |index: &Index| ready.iter().any(|made| made.tree == index.tree);
                if of_build.iter().any(is_made) {
                    let ran = self.running(build).is_some();
                    match self.leave_to_log(build, true).await {
                        true => ended.built.push(build),
                        false if ran => ended.failed.push((build, of_build)),
                        // A node that opened the directory finds all of its entries, or none.
                        false => {}
                    }
                } else if !after.builds().contains(&build) {
                    self.leave_to_log(build, false).await;
                    ended.aborted.push(build);
                }
            }
        }
        ended
    }

    /// Completes the entries of the indexes that a change makes ready, but for those of the builds
    /// that `built` names. Their trees are as a rule in the page files: where they are not, as the
    /// process that loaded them has ended before, the entries are made again.
    async fn complete_indexes(
        &self,
        ts: Timestamp,
        catalog: &Catalog,
        change: &CatalogChange,
        built: &[Uuid],
    ) -> Result<()> {
        for after in &change.puts {
            let Some(before) = catalog.by_number(after.number) else {
                continue;
            };
            let is_built = |made: &Index| {
                before.indexes.iter().any(|index| {
                    index.tree == made.tree
                        && index.building.is_some_and(|b| built.contains(&b.build))
                })
            };
            let mut made = made_ready(before, after);
            made.retain(|made| !is_built(made));
            if !made.is_empty() {
                load_missing(after, made, self.uuid()).await?;
            }
            build::replay(ts, before, after).await?;
        }
        Ok(())
    }
}
