//! What a build of indexes works on, shared by all cores that take part in it.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use pinion_runtime::{Queue, join_all, set_core_local, submit_to, try_core_local};
use pinion_service::interrupt::check;
use pinion_storage::{PartitionId, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result, interruption};

use super::state::BuildState;
use crate::entry::{Collection, Placement};
use crate::index::Index;
use crate::limits::{
    BUILD_LEAST_FREE_BYTES, BUILD_MEMORY_BYTES, CHUNK_BYTES, LEAST_SORTER_BYTES,
    MAX_ACTIVE_USER_BUILDS,
};
use crate::uuid::Uuid;

/// What a build may take.
#[derive(Clone, Copy, Debug)]
pub struct BuildLimits {
    /// Memory for entries that are sorted.
    pub memory_bytes: u64,
    /// It ends when the file system has less room than this.
    pub least_free_bytes: u64,
    /// A client's build begins when fewer than this run on the node.
    pub most_active: usize,
}

impl Default for BuildLimits {
    fn default() -> BuildLimits {
        BuildLimits {
            memory_bytes: BUILD_MEMORY_BYTES,
            least_free_bytes: BUILD_LEAST_FREE_BYTES,
            most_active: MAX_ACTIVE_USER_BUILDS,
        }
    }
}

/// What builds may take that no command of a client begins: those of another member, those that
/// begin again, and `compact`.
struct NodeLimits(Cell<BuildLimits>);

/// Sets what builds may take that begin on this core from now on and that no client's command
/// begins.
pub fn set_build_limits(limits: BuildLimits) {
    match try_core_local::<NodeLimits>() {
        Some(of_node) => of_node.0.set(limits),
        None => set_core_local(Rc::new(NodeLimits(Cell::new(limits)))),
    }
}

/// What was set on this core.
pub(crate) fn build_limits() -> BuildLimits {
    try_core_local::<NodeLimits>().map_or_else(BuildLimits::default, |of_node| of_node.0.get())
}

/// How far a build has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BuildPhase {
    /// Documents are read, and their entries sorted.
    Scanning,
    /// Sorted entries go into the index.
    Loading,
    /// What was written meanwhile goes into the index, now or when the set is ready for it.
    Draining,
}

impl BuildPhase {
    const ALL: [BuildPhase; 3] = [
        BuildPhase::Scanning,
        BuildPhase::Loading,
        BuildPhase::Draining,
    ];

    /// The phase's name and number in `indexBuildInfo`.
    pub fn name(self) -> (&'static str, i32) {
        match self {
            BuildPhase::Scanning => ("collection scan", 1),
            BuildPhase::Loading => ("bulk load", 2),
            BuildPhase::Draining => ("drain writes", 3),
        }
    }

    /// The phase of this name.
    pub(super) fn named(name: &str) -> Option<BuildPhase> {
        BuildPhase::ALL
            .into_iter()
            .find(|phase| phase.name().0 == name)
    }

    /// What `currentOp` says of it.
    pub fn message(self) -> &'static str {
        match self {
            BuildPhase::Scanning => "Index Build: scanning collection",
            BuildPhase::Loading => "Index Build: inserting keys from external sorter into index",
            BuildPhase::Draining => "Index Build: draining writes received during build",
        }
    }
}

/// What a build has done, written by all cores at once.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    phase: AtomicU8,
    done: AtomicU64,
    total: AtomicU64,
    stopped: AtomicBool,
    closing: AtomicBool,
}

impl Progress {
    pub(super) fn begin(&self, phase: BuildPhase, total: u64) {
        let number = BuildPhase::ALL.iter().position(|one| *one == phase);
        let number = number.expect("all phases are listed") as u8;
        self.phase.store(number, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    pub(super) fn add(&self, done: u64) {
        self.done.fetch_add(done, Ordering::Relaxed);
    }

    pub(crate) fn phase(&self) -> BuildPhase {
        BuildPhase::ALL[usize::from(self.phase.load(Ordering::Relaxed))]
    }

    /// Of the phase: how many are done, and how many there were to do.
    pub(crate) fn done_of(&self) -> (u64, u64) {
        let done = self.done.load(Ordering::Relaxed);
        (done, self.total.load(Ordering::Relaxed).max(done))
    }

    /// Ends the build as soon as it looks.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Stops it as a shutdown does.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }
}

/// A build.
pub(crate) struct Work {
    pub(crate) collection: Arc<Collection>,
    pub(crate) indexes: Arc<[Index]>,
    pub(crate) uuid: Uuid,
    pub(crate) limits: BuildLimits,
    pub(crate) progress: Arc<Progress>,
    /// Where it continues, if a process before this one has stopped it.
    pub(crate) resumed: Option<BuildState>,
    /// Of the command that asked for it.
    pub(crate) ctx: OpContext,
}

impl Work {
    pub(crate) fn new(
        ctx: &OpContext,
        collection: Arc<Collection>,
        indexes: Vec<Index>,
        uuid: Uuid,
        limits: BuildLimits,
    ) -> Work {
        Work {
            collection,
            indexes: indexes.into(),
            uuid,
            limits,
            progress: Arc::default(),
            resumed: None,
            ctx: ctx.clone(),
        }
    }

    /// The number of partitions that the collection is in.
    pub(super) fn partitions(&self) -> u16 {
        match self.collection.placement {
            Placement::Hashed | Placement::Scattered => storage().partition_count(),
            Placement::One => 1,
        }
    }

    /// What the sorter of one index in one partition may take of memory.
    pub(super) fn sorter_bytes(&self) -> usize {
        let sorters = self.indexes.len().max(1) * usize::from(self.partitions());
        let share = self.limits.memory_bytes / sorters as u64;
        usize::try_from(share)
            .unwrap_or(usize::MAX)
            .max(LEAST_SORTER_BYTES)
    }

    /// The size of the pieces in which entries are sorted.
    pub(super) fn chunk_bytes(&self) -> usize {
        (self.sorter_bytes() / 8).min(CHUNK_BYTES)
    }

    /// Where sorted entries are that have no room in memory.
    pub(super) fn dir() -> PathBuf {
        storage().dir().join("_tmp")
    }

    /// The reason to stop, if there is one. A client that has gone away is none, nor is one that
    /// was sent to another primary: the build is that of the set.
    pub(crate) fn check(&self) -> Result<()> {
        if self.progress.stopped.load(Ordering::Relaxed) {
            let reason = format!("Index build aborted: {}", self.uuid);
            return Err(Error::new(ErrorCode::INDEX_BUILD_ABORTED, reason));
        }
        let is_closing = self.progress.closing.load(Ordering::Relaxed);
        if is_closing || pinion_runtime::is_shutdown_requested() {
            return Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN));
        }
        match self.ctx.killed() {
            Some(
                ErrorCode::CLIENT_DISCONNECT | ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
            ) => Ok(()),
            _ => check(&self.ctx),
        }
    }

    /// Has every partition's owner do its part, all at once, and gives what each has found.
    pub(super) async fn on_partitions<F, Fut, R>(self: &Arc<Self>, part: F) -> Result<Vec<R>>
    where
        F: Fn(Arc<Work>, PartitionId) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
        R: Send + 'static,
    {
        let parts = (0..self.partitions()).map(PartitionId).map(|partition| {
            let (work, part) = (self.clone(), part.clone());
            submit_to(storage().owner(partition), Queue::Background, move || {
                part(work, partition)
            })
        });
        // All of them end before anything is taken back.
        join_all(parts).await.into_iter().collect()
    }
}
