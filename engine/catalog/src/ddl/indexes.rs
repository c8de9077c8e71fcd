//! Indexes made and dropped.

use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_runtime::{LocalBoxFuture, timeout};
use pinion_service::interrupt::interruptible;
use pinion_service::limits::LONGEST_KILL_POLL;
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result, interruption};

use super::builds::{Build, Step, await_builds, check_no_build, listing};
use super::coordinator::{
    Commit, Coordinator, behind_gates, coordinate, coordinate_then, drop_trees,
};
use super::guard::{Definition, shard_key};
use super::series::{Indexed, indexed, scope_of};
use super::shard_key::{check_dropped, check_wanted, is_kept};
use crate::build::{self, BuildLimits, Work};
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::gates::GateMode;
use crate::index::{Building, Index};
use crate::limits::MAX_INDEXES;
use crate::specs::{self, Missing};
use crate::text::render;
use crate::uuid::Uuid;

/// What `createIndexes` did.
#[derive(Clone, Copy, Debug)]
pub struct IndexesCreated {
    pub before: usize,
    pub after: usize,
    pub collection_made: bool,
    pub ts: Option<Timestamp>,
}

/// What became of a request for indexes.
enum RequestOutcome {
    Done(IndexesCreated),
    /// Another build makes some of the indexes.
    Waits(Vec<Uuid>),
    /// As many builds run as may.
    Full,
    Runs(Rc<Build>, IndexesCreated),
}

/// Makes indexes out of checked specifications (`{v, key, name, ...}`), building them over the
/// documents that are there. Others read and write the collection meanwhile. `asked` is what the
/// client wants of the replica set: a document with `commitQuorum`.
///
/// # Errors
/// Those of the specifications, beside the indexes that are there; `OutOfDiskSpace`; of documents
/// that cannot be indexed, or not together; `IndexBuildAborted` where an operation ended the build.
pub fn create_indexes(
    ctx: &OpContext,
    ns: Namespace,
    requested: Vec<RawDocumentBuf>,
    limits: BuildLimits,
    asked: Option<RawDocumentBuf>,
) -> LocalBoxFuture<'_, Result<IndexesCreated>> {
    Box::pin(async move {
        let requested: Arc<[RawDocumentBuf]> = requested.into();
        loop {
            let begin = {
                let (ctx, ns, requested) = (ctx.clone(), ns.clone(), requested.clone());
                let asked = asked.clone();
                move |c: Rc<Coordinator>| async move {
                    let _lock = c.lock_for(&ctx, scope_of(&ns)).await?;
                    let Indexed { ns, series } = indexed(&core_catalog().current(), &ns)?;
                    let requested = match &series {
                        None => requested,
                        Some(series) => (requested.iter())
                            .map(|spec| specs::to_buckets(series, spec))
                            .collect::<Result<_>>()?,
                    };
                    c.begin_build(&ctx, &ns, &requested, limits, asked).await
                }
            };
            let run = {
                let ctx = ctx.clone();
                move |c: Rc<Coordinator>, outcome| {
                    let ctx = ctx.clone();
                    async move {
                        Ok(match outcome {
                            RequestOutcome::Done(created) => Step::Done(created),
                            RequestOutcome::Waits(builds) => Step::Waits(builds),
                            RequestOutcome::Full => {
                                interruptible(&ctx, c.builds.ended(limits.most_active)).await?;
                                Step::Waits(Vec::new())
                            }
                            RequestOutcome::Runs(build, created) => {
                                let ts = Some(outcome_of(&ctx, &build).await?);
                                // Others may have made and dropped indexes meanwhile.
                                let catalog = core_catalog().current();
                                let now = catalog.by_uuid(build.work.collection.uuid);
                                let after = now.map_or(created.after, |now| now.index_count());
                                Step::Done(IndexesCreated {
                                    ts,
                                    after,
                                    ..created
                                })
                            }
                        })
                    }
                }
            };
            let definition = Definition::CreateIndexes(ns.clone());
            match coordinate_then(ctx, definition, begin, run).await? {
                Step::Done(created) => return Ok(created),
                Step::Waits(builds) => await_builds(ctx, builds).await?,
            }
        }
    })
}

/// Refuses more indexes than a collection may have.
pub(super) fn check_index_count(collection: &Collection, wanted: &[specs::Wanted]) -> Result<()> {
    let count = collection.listed_indexes().count() + wanted.len();
    match wanted.first() {
        Some(first) if count > MAX_INDEXES => Err(Error::new(
            ErrorCode::CANNOT_CREATE_INDEX,
            format!(
                "add index fails, too many indexes for {} key:{}",
                collection.ns,
                render(first.key())
            ),
        )),
        _ => Ok(()),
    }
}

/// What the oplog says of an index that is made without a build.
pub(super) fn index_creation_entry(ns: &Namespace, index: &Index) -> RawDocumentBuf {
    let mut o = DocBuilder::new();
    o.append("createIndexes", ns.collection())
        .append_all(&index.listed);
    o.finish()
}

/// Waits for the end of a build. A client whose node is no primary any more gets that as its
/// error, and the build continues; any other interruption of the client ends the build, and the
/// reply says how.
async fn outcome_of(ctx: &OpContext, build: &Build) -> Result<Timestamp> {
    let moved_on = ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE;
    loop {
        if let Ok(outcome) = timeout(LONGEST_KILL_POLL, build.outcome()).await {
            return outcome;
        }
        // One that was killed for something else before gets that error: here the build can no
        // longer be ended.
        if let Some(code) = ctx.killed()
            && (code == moved_on || !pinion_storage::storage().leads())
        {
            return Err(interruption(code));
        }
        // The node waits for its clients before it stops the builds.
        if pinion_runtime::is_shutdown_requested() {
            return Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN));
        }
    }
}

impl Coordinator {
    /// Makes indexes over an empty collection, or begins to build them.
    async fn begin_build(
        self: &Rc<Self>,
        ctx: &OpContext,
        ns: &Namespace,
        requested: &[RawDocumentBuf],
        limits: BuildLimits,
        asked: Option<RawDocumentBuf>,
    ) -> Result<RequestOutcome> {
        let (collection, made) = self.ensure(ns).await?;
        let before = collection.index_count();
        let Missing { wanted, builds } = specs::missing(&collection, requested)?;
        if !builds.is_empty() {
            return Ok(RequestOutcome::Waits(builds));
        }
        let unchanged = IndexesCreated {
            before,
            after: before,
            collection_made: made.is_some(),
            ts: made,
        };
        if wanted.is_empty() {
            return Ok(RequestOutcome::Done(unchanged));
        }
        check_index_count(&collection, &wanted)?;
        if let Some(key) = shard_key(ctx, ns) {
            check_wanted(&key, &wanted)?;
        }
        let created = IndexesCreated {
            after: before + wanted.len(),
            ..unchanged
        };
        let uuid = self.uuid();
        let work = |indexes| Work::new(ctx, collection.clone(), indexes, uuid, limits);
        let gates = [ns.clone()];
        let begin = async {
            // No writer is behind the gates: an empty collection stays so until its indexes exist.
            if build::documents(&work(Vec::new())).await == 0 {
                let ts = self.make_ready(&collection, wanted).await?;
                return Ok(RequestOutcome::Done(IndexesCreated {
                    ts: Some(ts),
                    ..created
                }));
            }
            let is_of_user = !matches!(ns.db(), "admin" | "config" | "local");
            if is_of_user && self.builds.active() >= limits.most_active {
                return Ok(RequestOutcome::Full);
            }
            build::check_room(&work(Vec::new())).await?;
            let indexes = self.start(&collection, wanted, uuid).await?;
            Ok(RequestOutcome::Runs(
                self.run(work(indexes), asked),
                created,
            ))
        };
        behind_gates(Some(ctx), &gates, GateMode::NoWrites, begin).await
    }

    /// Makes indexes that have no entries.
    async fn make_ready(
        &self,
        collection: &Arc<Collection>,
        wanted: Vec<specs::Wanted>,
    ) -> Result<Timestamp> {
        let ns = &collection.ns;
        let mut last = Timestamp::MIN;
        for wanted in wanted {
            let index = wanted.into_index(TreeId(self.numbers(ns, 1)));
            let o = index_creation_entry(ns, &index);
            let ready = |catalog: &Catalog| {
                let current = catalog.get(ns).expect("its lock is held");
                let change = CatalogChange {
                    puts: vec![current.with_index(index)],
                    ..Default::default()
                };
                Ok(Commit::command(ns, Some(current.uuid), o, change))
            };
            last = self.commit(ready).await?;
        }
        Ok(last)
    }

    /// Puts indexes at the beginning of their build into the catalog: from now on all that is
    /// written of them is in the side writes.
    async fn start(
        &self,
        collection: &Arc<Collection>,
        wanted: Vec<specs::Wanted>,
        build: Uuid,
    ) -> Result<Vec<Index>> {
        let ns = &collection.ns;
        let first = self.numbers(ns, 2 * wanted.len() as u64);
        let in_build = |(tree, wanted): (u64, specs::Wanted)| {
            let side = TreeId(tree + 1);
            wanted
                .into_index(TreeId(tree))
                .in_build(Building { build, side })
        };
        let numbered = (first..).step_by(2).zip(wanted);
        let indexes: Vec<Index> = numbered.map(in_build).collect();
        let o = listing("startIndexBuild", ns, build, &indexes).finish();
        let started = |catalog: &Catalog| {
            let current = catalog.get(ns).expect("its lock is held");
            let with = |made: Collection, index: &Index| made.with_index(index.clone());
            let change = CatalogChange {
                puts: vec![indexes.iter().fold(Collection::clone(current), with)],
                ..Default::default()
            };
            Ok(Commit::command(ns, Some(current.uuid), o, change))
        };
        self.commit(started).await?;
        Ok(indexes)
    }
}

impl Coordinator {
    /// Makes the entries of an index again in a new tree, placed by its specification, while no
    /// writer is behind the collection's gates. The caller replaces the old index by the new one.
    pub(super) async fn rebuild(
        &self,
        ctx: &OpContext,
        collection: &Arc<Collection>,
        index: &Index,
    ) -> Result<Index> {
        let moved = index.moved_to(TreeId(self.numbers(&collection.ns, 1)));
        let build = self.uuid();
        let o = listing("startIndexBuild", &collection.ns, build, [&moved]).finish();
        // The number is taken before anything is written under it: that of a build that fails or
        // that a crash ends is never given to another tree, whose entries would mix with what is
        // left of it.
        let reserved = |_: &Catalog| {
            let change = CatalogChange::default();
            let uuid = Some(collection.uuid);
            Ok(Commit::command(&collection.ns, uuid, o, change))
        };
        self.commit(reserved).await?;
        let limits = build::build_limits();
        let indexes = vec![moved.clone()];
        let work = Arc::new(Work::new(ctx, collection.clone(), indexes, build, limits));
        let built = async {
            build::check_room(&work).await?;
            let mut found = build::fill(&work).await?;
            build::install(&work, &found).await?;
            build::complete(&work, &mut found).await
        };
        match built.await {
            Ok(_) => Ok(moved),
            Err(error) => {
                let now = pinion_storage::storage().last_allotted();
                drop_trees(vec![moved.tree], now).await;
                Err(build::failed(&work, error))
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

impl IndexSelection {
    /// The names that are meant, but for those of ended builds, which are gone already.
    fn names(&self, collection: &Collection, ended: &[String]) -> Result<Vec<String>> {
        let is_gone = |name: &String| ended.contains(name) && collection.index(name).is_none();
        match self {
            IndexSelection::Names(names) if !ended.is_empty() => {
                let left = names.iter().filter(|name| !is_gone(name)).cloned();
                specs::select(collection, &IndexSelection::Names(left.collect()))
            }
            IndexSelection::Key(_) if ended.iter().any(is_gone) => Ok(Vec::new()),
            selection => specs::select(collection, selection),
        }
    }
}

/// What `dropIndexes` did.
#[derive(Clone, Copy, Debug)]
pub struct IndexesDropped {
    /// The number of indexes before.
    pub before: usize,
    /// When; `None` if there was nothing to drop.
    pub ts: Option<Timestamp>,
    /// Whether the collection is sharded, so that those that serve its key are kept of all.
    pub is_sharded: bool,
}

/// What became of an attempt to drop indexes.
enum Attempt {
    Done(IndexesDropped),
    /// Builds of these indexes were ended.
    Ended(usize, Vec<String>, Vec<Uuid>),
}

/// Drops indexes, and ends their builds.
///
/// # Errors
/// `NamespaceNotFound`, `IndexNotFound`, `InvalidOptions` for the `_id` index;
/// `CannotDropShardKeyIndex` for the last one that serves the shard key;
/// `BackgroundOperationInProgressForNamespace` for some indexes of a build that makes others too.
pub fn drop_indexes(
    ctx: &OpContext,
    ns: Namespace,
    selection: IndexSelection,
) -> LocalBoxFuture<'_, Result<IndexesDropped>> {
    Box::pin(async move {
        let mut ended: Vec<String> = Vec::new();
        let mut most = 0;
        loop {
            let attempt = {
                let (by, ns) = (ctx.clone(), ns.clone());
                let (selection, ended) = (selection.clone(), ended.clone());
                move |c: Rc<Coordinator>| async move { c.try_drop(&by, &ns, &selection, &ended).await }
            };
            let definition = Definition::DropIndexes(ns.clone());
            match coordinate(ctx, definition, attempt).await? {
                Attempt::Done(done) => {
                    // What ended the builds is in the log at or before this.
                    let last =
                        (!ended.is_empty()).then(|| pinion_storage::storage().last_allotted());
                    return Ok(IndexesDropped {
                        before: done.before.max(most),
                        ts: done.ts.max(last),
                        ..done
                    });
                }
                Attempt::Ended(before, names, builds) => {
                    most = most.max(before);
                    ended.extend(names);
                    await_builds(ctx, builds).await?;
                }
            }
        }
    })
}

/// The builds that end when these indexes are dropped.
fn builds_of(collection: &Collection, names: &[String]) -> Result<Vec<Uuid>> {
    let mut builds = Vec::new();
    for index in &collection.indexes {
        let Some(building) = &index.building else {
            continue;
        };
        if names.iter().any(|name| name == index.name()) {
            builds.push(building.build);
        }
    }
    builds.dedup();
    let is_left = |index: &&Arc<Index>| {
        let build = index.building.map(|building| building.build);
        build.is_some_and(|build| builds.contains(&build))
            && !names.iter().any(|name| name == index.name())
    };
    if collection.indexes.iter().any(|index| is_left(&index)) {
        check_no_build(collection)?;
    }
    Ok(builds)
}

impl Coordinator {
    async fn try_drop(
        &self,
        ctx: &OpContext,
        ns: &Namespace,
        selection: &IndexSelection,
        ended: &[String],
    ) -> Result<Attempt> {
        let _lock = self.lock_for(ctx, scope_of(ns)).await?;
        let Indexed { ns, series } = indexed(&core_catalog().current(), ns)?;
        let selection = match (selection, &series) {
            (IndexSelection::Key(key), Some(series)) => {
                &IndexSelection::Key(specs::bucket_key(&series.form(), key)?)
            }
            (selection, _) => selection,
        };
        let Some(collection) = core_catalog().get(&ns) else {
            return Err(Error::new(
                ErrorCode::NAMESPACE_NOT_FOUND,
                format!("ns not found {ns}"),
            ));
        };
        let mut names = selection.names(&collection, ended)?;
        let key = shard_key(ctx, &ns);
        if let Some(key) = &key {
            match selection {
                IndexSelection::All => names.retain(|name| !is_kept(&collection, key, name)),
                _ => check_dropped(&collection, key, &names)?,
            }
        }
        let building = collection.indexes.len() - collection.ready_indexes().count();
        let before = collection.index_count() + building;
        let builds = builds_of(&collection, &names)?;
        if !builds.is_empty() {
            self.end_builds(&builds, "dropIndexes command");
            let is_building = |name: &String| {
                let index = collection.index(name);
                index.is_some_and(|index| index.building.is_some())
            };
            let names = names.into_iter().filter(is_building).collect();
            return Ok(Attempt::Ended(before, names, builds));
        }
        let unchanged = IndexesDropped {
            before,
            ts: None,
            is_sharded: key.is_some(),
        };
        if names.is_empty() {
            return Ok(Attempt::Done(unchanged));
        }
        let operation = self.drop_named(&collection, &names);
        let last = behind_gates(Some(ctx), &[ns], GateMode::Closed, operation).await?;
        Ok(Attempt::Done(IndexesDropped {
            ts: Some(last),
            ..unchanged
        }))
    }
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
                    details: Some(rawdoc! { "index": index.listed.clone() }),
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
