//! Changes of the catalog, one at a time, coordinated on core 0.
//!
//! Each operation closes the namespace's gate on every core, which drains what is in flight there, then
//! writes its rows and its entry in one statement, installs the new version on every core, and opens the gates.
//! It runs as a task of its own: a caller who goes away in the middle leaves no gate closed. While the node is locked against
//! writes none begins; the callers wait, each on its own core, until its operation is stopped.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_query::MultikeyPaths;
use pinion_runtime::sync::Semaphore;
use pinion_runtime::{CoreId, Queue, Rng};
use pinion_storage::{Statement, TreeId};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result, interruption};

use crate::build;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::{Collection, Index};
use crate::errors::from_write_error;
use crate::gates::GateMode;
use crate::interrupt::interruptible;
use crate::limits::MAX_INDEXES;
use crate::names::{check_creatable, command_namespace, is_single_partition};
use crate::oplog::{Observers, OpEvent, OpKind};
use crate::specs;
use crate::text::render;
use crate::uuid::Uuid;

/// The coordinator's state; lives on core 0 alone.
pub(crate) struct Coordinator {
    one_at_a_time: Semaphore,
    rng: std::cell::RefCell<Rng>,
}

impl Coordinator {
    pub(crate) fn new() -> Coordinator {
        Coordinator {
            one_at_a_time: Semaphore::new(1),
            rng: std::cell::RefCell::new(pinion_runtime::random_stream("catalog")),
        }
    }

    fn uuid(&self) -> Uuid {
        Uuid::random(&mut self.rng.borrow_mut())
    }

    /// Writes the change with its entry, then installs it on every core.
    async fn commit(
        &self,
        ns: &str,
        uuid: Option<Uuid>,
        kind: OpKind,
        o: &RawDocument,
        change: CatalogChange,
    ) -> Result<Timestamp> {
        let o2 = change.to_o2();
        let event = OpEvent {
            kind,
            ns,
            uuid,
            o,
            o2: Some(&o2),
            wall_ms: pinion_runtime::wall_ms(),
            session: None,
        };
        let entry = pinion_runtime::core_local::<Observers>().entry(&event)?;
        let statement = Statement {
            writes: change.writes(),
            entry: Some(entry),
        };
        pinion_runtime::sim::event("ddl");
        let mut results = pinion_storage::storage()
            .execute(vec![statement], true)
            .await;
        assert!(results.len() == 1, "one statement has one result");
        let ts = results.pop().expect("asserted").map_err(from_write_error)?;
        install_change(&change, ts).await;
        Ok(ts)
    }
}

/// Makes the change the current version on every core and lets go of its dropped trees. Runs on core 0.
pub(crate) async fn install_change(change: &CatalogChange, ts: Timestamp) {
    let next = Arc::new(change.apply_to(&core_catalog().current()));
    install_everywhere(next).await;
    drop_trees(change.dropped_trees.clone(), ts).await;
}

/// Trees that nothing refers to from `after` on go with the next checkpoint.
async fn drop_trees(trees: Vec<TreeId>, after: Timestamp) {
    if trees.is_empty() {
        return;
    }
    let trees: Arc<[TreeId]> = trees.into();
    pinion_runtime::on_all_cores(move |_| {
        let trees = trees.clone();
        async move {
            for tree in trees.iter() {
                pinion_storage::storage().drop_tree(*tree, after);
            }
        }
    })
    .await;
}

pub(crate) async fn install_everywhere(catalog: Arc<Catalog>) {
    pinion_runtime::on_all_cores(move |_| {
        let catalog = catalog.clone();
        async move { core_catalog().install(catalog) }
    })
    .await;
}

/// Runs one operation on core 0, after those before it. While the node is locked it waits here, having begun nothing: who is
/// stopped then can say that nothing was changed.
async fn coordinate<F, Fut, R>(ctx: &OpContext, mut operation: F) -> Result<R>
where
    F: FnOnce(Rc<Coordinator>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<R>> + 'static,
    R: Send + 'static,
{
    loop {
        interruptible(ctx, core_catalog().gates().until_unlocked()).await?;
        let begun = pinion_runtime::submit_to(CoreId(0), Queue::Foreground, move || async move {
            // The lock may have been asked for meanwhile: what begins here it waits for.
            let Some(pass) = core_catalog().gates().try_change() else {
                return Err(operation);
            };
            let task = pinion_runtime::spawn(Queue::Foreground, async move {
                let _pass = pass;
                let coordinator = pinion_runtime::core_local::<Coordinator>();
                let _turn = coordinator.one_at_a_time.acquire().await;
                operation(coordinator.clone()).await
            });
            Ok(match task.await {
                Ok(result) => result,
                Err(_) => Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN)),
            })
        })
        .await;
        match begun {
            Ok(result) => return result,
            Err(not_begun) => operation = not_begun,
        }
    }
}

async fn close_gates(namespaces: &[Namespace], mode: GateMode) {
    for ns in namespaces {
        let ns = ns.clone();
        pinion_runtime::on_all_cores(move |_| {
            let ns = ns.clone();
            async move { core_catalog().gates().close(&ns, mode).await }
        })
        .await;
    }
}

async fn open_gates(namespaces: &[Namespace]) {
    let namespaces = namespaces.to_vec();
    pinion_runtime::on_all_cores(move |_| {
        let namespaces = namespaces.clone();
        async move {
            for ns in &namespaces {
                core_catalog().gates().open(ns);
            }
        }
    })
    .await;
}

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
    coordinate(ctx, move |c| async move { c.create(&ns, options).await }).await
}

/// Finds the collection, or makes it without options: what the first insert does.
pub async fn ensure_collection(ctx: &OpContext, ns: Namespace) -> Result<Created> {
    coordinate(ctx, move |c| async move {
        if let Some(collection) = core_catalog().get(&ns) {
            return Ok(Created {
                collection,
                ts: None,
            });
        }
        c.create(&ns, RawDocumentBuf::new()).await
    })
    .await
}

impl Coordinator {
    async fn create(&self, ns: &Namespace, options: RawDocumentBuf) -> Result<Created> {
        check_creatable(ns)?;
        let catalog = core_catalog().current();
        if let Some(collection) = catalog.get(ns) {
            if collection.options.as_bytes() == options.as_bytes() {
                return Ok(Created {
                    collection: collection.clone(),
                    ts: None,
                });
            }
            return Err(Error::new(
                ErrorCode::NAMESPACE_EXISTS,
                format!(
                    "namespace {ns} already exists, but with different options: {}",
                    render(&collection.options)
                ),
            ));
        }
        check_database_case(&catalog, ns.db())?;
        let number = catalog.next_number();
        let mut collection = Collection::new(ns.clone(), self.uuid(), number, options.clone());
        collection.made_ms = Some(pinion_runtime::wall_ms());
        let mut o = DocBuilder::new();
        o.append("create", ns.collection())
            .append("idIndex", &*Collection::id_index())
            .append_all(&options);
        let change = CatalogChange {
            puts: vec![collection.clone()],
            next_number: number + 1,
            ..Default::default()
        };
        let ts = self
            .commit(
                &command_namespace(ns),
                Some(collection.uuid),
                OpKind::Command,
                &o.finish(),
                change,
            )
            .await?;
        let collection = core_catalog().get(ns).expect("just installed");
        Ok(Created {
            collection,
            ts: Some(ts),
        })
    }
}

fn check_database_case(catalog: &Catalog, db: &str) -> Result<()> {
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

/// What `drop` did: how many indexes went with the collection (the `_id` index included), and when.
#[derive(Clone, Copy, Debug)]
pub struct Dropped {
    pub indexes: usize,
    pub ts: Timestamp,
}

/// Drops a collection; `None` if there is none of that name.
pub async fn drop_collection(ctx: &OpContext, ns: Namespace) -> Result<Option<Dropped>> {
    coordinate(ctx, move |c| async move {
        if core_catalog().get(&ns).is_none() {
            return Ok(None);
        }
        let gates = [ns.clone()];
        close_gates(&gates, GateMode::Closed).await;
        let result = c.drop_one(&ns).await;
        open_gates(&gates).await;
        result.map(Some)
    })
    .await
}

/// Drops all collections of a database; the timestamp of the last change, or `None` if there was no such database.
pub async fn drop_database(ctx: &OpContext, db: String) -> Result<Option<Timestamp>> {
    coordinate(ctx, move |c| async move {
        let gates: Vec<Namespace> = core_catalog()
            .current()
            .collections_of(&db)
            .map(|collection| collection.ns.clone())
            .collect();
        if gates.is_empty() {
            return Ok(None);
        }
        close_gates(&gates, GateMode::Closed).await;
        let mut result = Ok(None);
        for ns in &gates {
            if let Err(error) = c.drop_one(ns).await {
                result = Err(error);
                break;
            }
        }
        if result.is_ok() {
            let next_number = core_catalog().current().next_number();
            let change = CatalogChange {
                next_number,
                ..Default::default()
            };
            let o = rawdoc! { "dropDatabase": 1 };
            result = c
                .commit(&format!("{db}.$cmd"), None, OpKind::Command, &o, change)
                .await
                .map(Some);
        }
        open_gates(&gates).await;
        result
    })
    .await
}

impl Coordinator {
    /// Drops a collection whose gates are closed.
    async fn drop_one(&self, ns: &Namespace) -> Result<Dropped> {
        let catalog = core_catalog().current();
        let collection = catalog
            .get(ns)
            .expect("only this coordinator removes collections")
            .clone();
        let change = CatalogChange {
            removes: vec![collection.number],
            dropped_trees: collection.trees().collect(),
            next_number: catalog.next_number(),
            ..Default::default()
        };
        let o = rawdoc! { "drop": ns.collection() };
        let ts = self
            .commit(
                &command_namespace(ns),
                Some(collection.uuid),
                OpKind::Command,
                &o,
                change,
            )
            .await?;
        Ok(Dropped {
            indexes: collection.indexes.len() + 1,
            ts,
        })
    }
}

/// Renames a collection within the node.
///
/// # Errors
/// `NamespaceNotFound` without a source, `NamespaceExists` when the target is there and `drop_target` is false.
pub async fn rename_collection(
    ctx: &OpContext,
    from: Namespace,
    to: Namespace,
    drop_target: bool,
) -> Result<Timestamp> {
    coordinate(ctx, move |c| async move {
        check_creatable(&to)?;
        let catalog = core_catalog().current();
        let Some(source) = catalog.get(&from).cloned() else {
            return Err(Error::new(
                ErrorCode::NAMESPACE_NOT_FOUND,
                format!("Source collection {from} does not exist"),
            ));
        };
        if from == to {
            return Err(Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                "Can't rename a collection to itself",
            ));
        }
        let target = catalog.get(&to).cloned();
        if target.is_some() && !drop_target {
            return Err(Error::new(
                ErrorCode::NAMESPACE_EXISTS,
                "target namespace exists",
            ));
        }
        if is_single_partition(&from) != is_single_partition(&to) {
            return Err(Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                format!("cannot rename {from} to {to}: their documents are placed differently"),
            ));
        }
        check_database_case(&catalog, to.db())?;
        let gates = [from.clone(), to.clone()];
        close_gates(&gates, GateMode::Closed).await;
        let mut change = CatalogChange {
            puts: vec![source.renamed(to.clone())],
            next_number: catalog.next_number(),
            ..Default::default()
        };
        let mut o = DocBuilder::new();
        o.append("renameCollection", from.as_str())
            .append("to", to.as_str())
            .append("stayTemp", false);
        if let Some(target) = target {
            change.removes.push(target.number);
            change.dropped_trees.extend(target.trees());
            o.append("dropTarget", target.uuid.to_bson());
        }
        let result = c
            .commit(
                &command_namespace(&from),
                Some(source.uuid),
                OpKind::Command,
                &o.finish(),
                change,
            )
            .await;
        open_gates(&gates).await;
        result
    })
    .await
}

/// What `createIndexes` did.
#[derive(Clone, Copy, Debug)]
pub struct IndexesCreated {
    pub before: usize,
    pub after: usize,
    pub collection_made: bool,
    pub ts: Option<Timestamp>,
}

/// Makes indexes out of checked specifications (`{v, key, name, ...}`), building them over the documents that are there.
pub async fn create_indexes(
    ctx: &OpContext,
    ns: Namespace,
    requested: Vec<RawDocumentBuf>,
) -> Result<IndexesCreated> {
    coordinate(ctx, move |c| async move {
        let made = match core_catalog().get(&ns) {
            Some(collection) => Created {
                collection,
                ts: None,
            },
            None => c.create(&ns, RawDocumentBuf::new()).await?,
        };
        let collection = made.collection.clone();
        let before = collection.indexes.len() + 1;
        let wanted = specs::missing(&collection, &requested)?;
        let unchanged = IndexesCreated {
            before,
            after: before,
            collection_made: made.ts.is_some(),
            ts: made.ts,
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
        let gates = [ns.clone()];
        close_gates(&gates, GateMode::NoWrites).await;
        let result = c.build_indexes(&collection, wanted).await;
        open_gates(&gates).await;
        let (after, ts) = result?;
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
    ) -> Result<(usize, Timestamp)> {
        let first = core_catalog().current().next_number();
        let mut indexes: Vec<Index> = Vec::with_capacity(wanted.len());
        for (i, wanted) in wanted.into_iter().enumerate() {
            indexes.push(wanted.into_index(TreeId(first + i as u64)));
        }
        let next_number = first + indexes.len() as u64;
        let build_uuid = self.uuid();
        // The numbers are taken before anything is written under them: those of a build that fails or that a crash ends
        // are never given to another tree, whose entries would mix with what is left of it.
        let mut o = DocBuilder::new();
        o.append("startIndexBuild", collection.ns.collection())
            .append("indexBuildUUID", build_uuid.to_bson())
            .start_array("indexes");
        for index in &indexes {
            o.push(&*index.listed);
        }
        o.end();
        let reserved = CatalogChange {
            next_number,
            ..Default::default()
        };
        let command = command_namespace(&collection.ns);
        self.commit(
            &command,
            Some(collection.uuid),
            OpKind::Command,
            &o.finish(),
            reserved,
        )
        .await?;
        let built = match build::build(collection, &indexes, build_uuid).await {
            Ok(built) => built,
            Err(error) => {
                // Nothing in the catalog names these trees: they can go at once.
                let now = pinion_storage::storage().last_allotted();
                drop_trees(indexes.iter().map(|index| index.tree).collect(), now).await;
                return Err(error);
            }
        };
        let mut current = Collection::clone(collection);
        let mut o = DocBuilder::new();
        o.append("commitIndexBuild", collection.ns.collection())
            .append("indexBuildUUID", build_uuid.to_bson())
            .start_array("indexes");
        for mut index in indexes {
            let tree = index.tree;
            for (_, paths) in built.multikey.iter().filter(|(found, _)| *found == tree) {
                index = index.with_multikey(paths);
            }
            o.push(&*index.listed);
            current = current.with_index(index);
        }
        let after = current.indexes.len() + 1;
        o.end();
        let change = CatalogChange {
            puts: vec![current],
            next_number,
            ..Default::default()
        };
        let ts = self
            .commit(
                &command_namespace(&collection.ns),
                Some(collection.uuid),
                OpKind::Command,
                &o.finish(),
                change,
            )
            .await?;
        Ok((after, ts))
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
        let Some(collection) = core_catalog().get(&ns) else {
            return Err(Error::new(
                ErrorCode::NAMESPACE_NOT_FOUND,
                format!("ns not found {ns}"),
            ));
        };
        let names = specs::select(&collection, &selection)?;
        let before = collection.indexes.len() + 1;
        if names.is_empty() {
            return Ok((before, None));
        }
        let gates = [ns.clone()];
        close_gates(&gates, GateMode::Closed).await;
        let result = c.drop_named(&collection, &names).await;
        open_gates(&gates).await;
        Ok((before, Some(result?)))
    })
    .await
}

impl Coordinator {
    async fn drop_named(
        &self,
        collection: &Arc<Collection>,
        names: &[String],
    ) -> Result<Timestamp> {
        let mut last = Timestamp::MIN;
        for name in names {
            let catalog = core_catalog().current();
            let current = catalog
                .get(&collection.ns)
                .expect("only this coordinator removes collections");
            let index = current.index(name).expect("selected by name").clone();
            let change = CatalogChange {
                puts: vec![current.without_indexes(std::slice::from_ref(name))],
                dropped_trees: vec![index.tree],
                next_number: catalog.next_number(),
                ..Default::default()
            };
            let o = rawdoc! { "dropIndexes": collection.ns.collection(), "index": name.as_str() };
            let command = command_namespace(&collection.ns);
            last = self
                .commit(&command, Some(collection.uuid), OpKind::Command, &o, change)
                .await?;
        }
        Ok(last)
    }
}

/// Marks indexes of a collection as multikey, before the first document with several keys in them is written. The caller
/// must not hold a pass of the namespace's gate, or a DDL before this one would wait for it for ever.
pub async fn set_multikey(
    ctx: &OpContext,
    ns: Namespace,
    uuid: Uuid,
    found: Vec<(TreeId, MultikeyPaths)>,
) -> Result<()> {
    coordinate(ctx, move |c| async move {
        let catalog = core_catalog().current();
        let Some(collection) = catalog
            .get(&ns)
            .filter(|collection| collection.uuid == uuid)
        else {
            return Ok(());
        };
        let known = |tree: TreeId, paths: &MultikeyPaths| {
            collection
                .indexes
                .iter()
                .all(|index| index.tree != tree || index.knows_multikey(paths))
        };
        if found.iter().all(|(tree, paths)| known(*tree, paths)) {
            return Ok(());
        }
        let change = CatalogChange {
            puts: vec![collection.with_multikey(&found)],
            next_number: catalog.next_number(),
            ..Default::default()
        };
        let o = rawdoc! { "msg": "Setting index to multikey", "coll": ns.as_str() };
        c.commit(ns.as_str(), Some(uuid), OpKind::Noop, &o, change)
            .await?;
        Ok(())
    })
    .await
}
