//! What a core knows of the node's part in its cluster.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use pinion_runtime::sync::{Notify, Semaphore, oneshot};
use pinion_runtime::{CoreId, JoinHandle, Queue, core_id, on_all_cores, spawn, submit_to};
use pinion_service::interrupt::interruptible;
use pinion_service::node_info::ClusterRole;
use pinion_sharding_protocol::documents::{DatabaseDocument, ShardIdentityDocument};
use pinion_sharding_protocol::{ConnectionString, Form, ShardId};
use pinion_wire::idl::Namespace;
use pinion_wire::{ErrorCode, OpContext, Result, interruption};
use rustc_hash::FxHashMap;

use crate::ddl::Definitions;
use crate::planted::PlantedFault;
use crate::shard::{Collections, EntryKey, Known, Refreshes};

/// This core's part. Identity and databases are copies that core 0 replaces on all cores.
pub(crate) struct Part {
    pub(crate) role: ClusterRole,
    /// In which form the routers of the cluster have versions and errors.
    pub(crate) form: Form,
    pub(crate) planted_fault: PlantedFault,
    identity: RefCell<Option<Arc<Membership>>>,
    /// What the config servers have last said of each database, whichever shard has it.
    databases: RefCell<FxHashMap<String, Arc<DatabaseDocument>>>,
    pub(crate) collections: Collections,
    /// What an earlier primary has left of definitions is taken over by this one.
    pub(crate) definitions_resumed: Cell<bool>,
    pub(crate) core_0: CoreZero,
}

/// A shard's identity, read.
#[derive(Debug, PartialEq)]
pub(crate) struct Membership {
    pub(crate) document: ShardIdentityDocument,
    pub(crate) config_servers: ConnectionString,
}

impl Membership {
    /// # Errors
    /// The document is none of a shard.
    pub(crate) fn of(document: ShardIdentityDocument) -> Result<Membership> {
        Ok(Membership {
            config_servers: ConnectionString::parse(&document.config_servers)?,
            document,
        })
    }

    pub(crate) fn shard(&self) -> &ShardId {
        &self.document.shard
    }
}

/// What core 0 alone uses: the order of what changes the node's part, and its tasks.
pub(crate) struct CoreZero {
    /// Changes of the identity.
    pub(crate) identity_turn: Semaphore,
    /// Of each database and collection that is being refreshed.
    pub(crate) refreshes: RefCell<BTreeMap<EntryKey, Rc<Refreshes>>>,
    /// Changes of what the cores know of databases and collections.
    pub(crate) cache_turn: Semaphore,
    /// Writes of the times that are kept.
    pub(crate) times_turn: Semaphore,
    /// The making of the cluster's catalog.
    pub(crate) catalog_turn: Semaphore,
    /// Changes of shards, and of databases; who needs both takes them in this order.
    pub(crate) shards_turn: Semaphore,
    pub(crate) databases_turn: Semaphore,
    /// Changes of sharded collections and of zones.
    pub(crate) collections_turn: Semaphore,
    /// Changes of settings that all shards have: on config servers one is made after the other, on
    /// shards a phase of one is performed after the other.
    pub(crate) settings_turn: Semaphore,
    /// Whether writes of users are about to be blocked, or let in, by this config server.
    pub(crate) blocking_user_writes: Cell<Option<bool>>,
    /// Definitions that this shard coordinates.
    pub(crate) definitions: Definitions,
    /// A task follows the topology time, and is to look again.
    pub(crate) topology_followed: Cell<bool>,
    pub(crate) topology_behind: Cell<bool>,
    /// Counts what has made entries of collections stale.
    pub(crate) distrusts: Cell<u64>,
    /// Notified where waits for the data are in vain: they are about to be closed, to be opened
    /// again, or this node has become the primary and waits for no other any more.
    pub(crate) waits_end: Notify,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    is_stopping: Cell<bool>,
}

impl Default for CoreZero {
    fn default() -> CoreZero {
        CoreZero {
            identity_turn: Semaphore::new(1),
            refreshes: RefCell::default(),
            cache_turn: Semaphore::new(1),
            times_turn: Semaphore::new(1),
            catalog_turn: Semaphore::new(1),
            shards_turn: Semaphore::new(1),
            databases_turn: Semaphore::new(1),
            collections_turn: Semaphore::new(1),
            settings_turn: Semaphore::new(1),
            blocking_user_writes: Cell::new(None),
            definitions: Definitions::default(),
            topology_followed: Cell::new(false),
            topology_behind: Cell::new(false),
            distrusts: Cell::new(0),
            waits_end: Notify::new(),
            tasks: RefCell::default(),
            is_stopping: Cell::new(false),
        }
    }
}

/// This core's part of a node that has one.
///
/// # Panics
/// The node was started without a role.
pub(crate) fn part() -> Rc<Part> {
    pinion_runtime::core_local()
}

/// The same of any node.
pub(crate) fn any_part() -> Option<Rc<Part>> {
    pinion_runtime::try_core_local()
}

impl Part {
    pub(crate) fn new(role: ClusterRole, planted_fault: PlantedFault) -> Part {
        Part {
            role,
            form: Form::Own,
            planted_fault,
            identity: RefCell::default(),
            databases: RefCell::default(),
            collections: Collections::default(),
            definitions_resumed: Cell::new(false),
            core_0: CoreZero::default(),
        }
    }

    /// The same in a cluster whose routers have this form.
    pub(crate) fn of_form(self, form: Form) -> Part {
        Part { form, ..self }
    }

    pub(crate) fn is_config_server(&self) -> bool {
        self.role == ClusterRole::Config
    }

    /// The identity of a shard that has been added to a cluster.
    pub(crate) fn membership(&self) -> Option<Arc<Membership>> {
        self.identity.borrow().clone()
    }

    pub(crate) fn database(&self, name: &str) -> Option<Arc<DatabaseDocument>> {
        self.databases.borrow().get(name).cloned()
    }

    /// What this node goes by for a collection.
    pub(crate) fn collection(&self, ns: &Namespace) -> Known {
        self.collections.known(ns.as_str())
    }
}

/// That in which this node answers routers.
pub(crate) fn form() -> Form {
    part().form
}

/// Replaces the identity on every core; `None`: the set is none of a cluster any more.
pub(crate) async fn install_membership(membership: Option<Arc<Membership>>) {
    on_all_cores(move |_| {
        let membership = membership.clone();
        async move {
            part().identity.replace(membership);
        }
    })
    .await;
}

/// Replaces what is known of a database on every core; `None`: there is none, or what is known is
/// not relied on any more.
pub(crate) async fn install_database(name: &str, database: Option<DatabaseDocument>) {
    let (name, database) = (name.to_owned(), database.map(Arc::new));
    on_all_cores(move |_| {
        let (name, database) = (name.clone(), database.clone());
        async move {
            let part = part();
            let mut databases = part.databases.borrow_mut();
            match database {
                Some(database) => databases.insert(name, database),
                None => databases.remove(&name),
            };
        }
    })
    .await;
}

/// Forgets all databases on every core: what is needed is learned again.
pub(crate) async fn forget_databases() {
    on_all_cores(|_| async {
        part().databases.borrow_mut().clear();
    })
    .await;
}

/// Runs work of a command on core 0. It comes to its end although the command is interrupted, but
/// not beyond that of the node.
///
/// # Errors
/// Its own; the command is interrupted, or the node ends.
pub(crate) async fn on_core_0<T, Fut>(
    ctx: &OpContext,
    work: impl FnOnce() -> Fut + Send + 'static,
) -> Result<T>
where
    T: Send + 'static,
    Fut: Future<Output = Result<T>> + 'static,
{
    let running = submit_to(CoreId(0), Queue::Foreground, move || async move {
        let (sender, receiver) = oneshot();
        part().core_0.begin_on(Queue::Foreground, async move {
            // Without a receiver the command was interrupted.
            let _ = sender.send(work().await);
        });
        let ended = receiver.await;
        ended.unwrap_or_else(|_| Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN)))
    });
    interruptible(ctx, running).await?
}

impl CoreZero {
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.get() || pinion_runtime::is_shutdown_requested()
    }

    /// Begins a task of the node's own, which ends with it.
    pub(crate) fn begin(&self, task: impl Future<Output = ()> + 'static) {
        self.begin_on(Queue::Background, task);
    }

    /// The same on another queue.
    pub(crate) fn begin_on(&self, queue: Queue, task: impl Future<Output = ()> + 'static) {
        assert!(core_id() == CoreId(0), "tasks are core 0's");
        if self.is_stopping() {
            return;
        }
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(spawn(queue, task));
    }

    /// Ends all tasks; when this returns they write nothing any more.
    pub(crate) async fn stop(&self) {
        self.is_stopping.set(true);
        let tasks = self.tasks.take();
        for task in tasks {
            task.abort();
            // One that was dropped has ended too.
            let _ = task.await;
        }
    }
}
