//! Checkpoints: merge every partition, make one manifest true, install, give up what is no longer
//! needed.
//!
//! The checkpoint timestamp C is the last one allotted when it begins; on a member of a replica set
//! no more than is stable, and while that follows another no more than is visible. It is durable
//! and visible on every core before any partition seals its changes, so what is sealed holds every
//! version at or below C. Writers continue all the time. Whatever an earlier manifest named stays
//! untouched until the new one is durable.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use pinion_clock::Timestamp;
use pinion_runtime::sync::Notify;
use pinion_runtime::{
    CoreId, LocalBoxFuture, Queue, fs, join_all, now, sim, spawn, submit_to, timeout,
};

use super::demand::CheckpointTimes;
use super::pace::CorePace;
use crate::base::{PartitionRoots, Unpaced};
use crate::engine::checkpoint::{Turn, Turns};
use crate::engine::copy::FrozenCheckpoints;
use crate::engine::log::{LogRetention, OwnLog};
use crate::engine::options::PlantedFault;
use crate::engine::storage::{Shared, Storage, storage};
use crate::manifest::Manifest;
use crate::ring::RingFiles;
use crate::types::{Fatal, PartitionId};

/// What belongs to the node as a whole; core 0 has it.
pub(in crate::engine) struct NodeState {
    /// Keeps every other process out of the data directory; handed on when that is opened again.
    pub(in crate::engine) lock: RefCell<Option<fs::DirLock>>,
    /// One checkpoint at a time, and one manifest.
    pub(in crate::engine) turns: Turns,
    pub(in crate::engine) demand: Notify,
    /// The rings that no core writes any more.
    pub(in crate::engine) foreign: RefCell<Vec<RingFiles>>,
    pub(in crate::engine) retention: Cell<Option<LogRetention>>,
    /// Above it entries are a standalone's, over the data of a member.
    pub(in crate::engine) standalone_above: Cell<Option<Timestamp>>,
    /// That member had ended in order.
    pub(in crate::engine) member_was_closed: Cell<bool>,
    /// The process before this one has ended in order.
    pub(in crate::engine) was_closed: Cell<bool>,
    /// Nothing links to the entries at or below it: they go with the next checkpoint, whatever
    /// retention and pins say.
    pub(in crate::engine) log_begins_above: Cell<Timestamp>,
    /// Something besides entries is to be written: trees were dropped.
    pub(in crate::engine) dirty: Cell<bool>,
    /// While no checkpoint may change the files: the last timestamp allotted to any write.
    pub(in crate::engine) held: Cell<Option<Timestamp>>,
    pub(in crate::engine) released: Notify,
    pub(in crate::engine) base: Cell<Timestamp>,
    pub(in crate::engine) epoch: Cell<u64>,
    pub(in crate::engine) own: OwnLog,
    /// Checkpoints that are copied.
    pub(in crate::engine) frozen: FrozenCheckpoints,
    /// The timestamps of the layers over the base, oldest first.
    pub(in crate::engine) layers: RefCell<VecDeque<Timestamp>>,
    /// Of what some partition sealed for the last checkpoint, more than half lay above it.
    pub(in crate::engine) mostly_left: Cell<bool>,
    pub(in crate::engine) times: CheckpointTimes,
}

impl NodeState {
    /// The turn, once checkpoints are not held: for what changes the files otherwise.
    pub(in crate::engine) async fn take_unheld_turn(&self) -> Turn<'_> {
        loop {
            let turn = self.turns.take().await;
            if self.held.get().is_none() {
                return turn;
            }
            drop(turn);
            self.released.notified().await;
        }
    }
}

/// Whether a checkpoint may leave changes to be merged later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spilling {
    /// Where merging them would cost much more.
    WherePaying,
    /// The same, but what is left is merged when nothing was written since the last checkpoint.
    WhileWriting,
    Never,
}

/// Runs what changes the files of the node, on core 0. Closing waits for its end, and it completes
/// though the caller goes away: half of it must not be left behind.
///
/// # Errors
/// Those of `change`; storage is closing.
pub(in crate::engine) async fn on_node<T, E>(
    change: impl AsyncFnOnce(Rc<Storage>) -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Fatal> + Send + 'static,
{
    submit_to(CoreId(0), Queue::Background, move || async move {
        let task = spawn(Queue::Background, async move {
            let storage = storage();
            let _inside = storage.roles.enter()?;
            change(storage.clone()).await
        });
        match task.await {
            Ok(result) => result,
            Err(_) => Err(Fatal::new("a change of the files was stopped").into()),
        }
    })
    .await
}

impl Storage {
    pub(in crate::engine) fn node_state(&self) -> &NodeState {
        self.node.as_ref().expect("only core 0 acts for the node")
    }

    /// Takes a checkpoint, or does nothing when there is nothing to write. Everything at or below
    /// the timestamp it returns is in the page files: in the base, or spilled.
    ///
    /// # Errors
    /// A page or a manifest could not be written; storage has stopped then.
    pub fn checkpoint(&self) -> LocalBoxFuture<'_, Result<Timestamp, Fatal>> {
        Box::pin(async move { self.checkpoint_by_command(Spilling::WherePaying).await })
    }

    /// Takes a checkpoint after which no change waits to be merged: everything at or below the
    /// timestamp it returns is in the base.
    ///
    /// # Errors
    /// As of [`checkpoint`](Self::checkpoint).
    pub fn checkpoint_merging_all(&self) -> LocalBoxFuture<'_, Result<Timestamp, Fatal>> {
        Box::pin(async move { self.checkpoint_by_command(Spilling::Never).await })
    }

    async fn checkpoint_by_command(&self, spilling: Spilling) -> Result<Timestamp, Fatal> {
        let _awaits = self.await_checkpoint();
        on_node(async move |storage| storage.checkpoint_node(spilling).await).await
    }

    /// Takes a checkpoint after which no change waits to be merged. Call it on core 0.
    pub(in crate::engine) async fn checkpoint_thoroughly(&self) -> Result<Timestamp, Fatal> {
        let _awaits = self.await_checkpoint();
        self.checkpoint_node(Spilling::Never).await
    }

    /// Takes no checkpoint from now on, so that nothing changes the files but writes: the caller
    /// has ended them all, and what it wants to be in the base is there. A checkpoint asked for
    /// does nothing. Closing ends this too.
    pub fn hold_checkpoints(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            submit_to(CoreId(0), Queue::Foreground, || async {
                let storage = storage();
                let node = storage.node_state();
                // One that has started is to be complete first.
                let _awaits = storage.await_checkpoint();
                let _turn = node.turns.take().await;
                // From here on nothing is logged: what another node sends and what is not
                // replicated continue when checkpoints are released. What was logged is to be in
                // the files.
                let held = storage.last_allotted();
                let before = node.held.replace(Some(held));
                assert!(before.is_none(), "checkpoints are held twice");
                let _ = storage.wait_durable(held).await;
                let _ = storage.wait_own().await;
            })
            .await;
        })
    }

    /// Takes checkpoints again.
    ///
    /// # Panics
    /// Something was written meanwhile: a copy of the files has no consistent state.
    pub async fn release_checkpoints(&self) {
        submit_to(CoreId(0), Queue::Foreground, || async {
            let storage = storage();
            let Some(held) = storage.node_state().held.take() else {
                return;
            };
            assert!(
                storage.last_allotted() == held,
                "something was written while checkpoints were held"
            );
            storage.node_state().released.notify_all();
            // A request made in vain may be made again.
            storage.clear_checkpoint_asked().await;
        })
        .await;
    }

    /// Notes that a checkpoint is awaited, so that it runs as fast as it can, until the guard is
    /// dropped.
    pub(super) fn await_checkpoint(&self) -> impl Drop + use<> {
        struct Awaits(Arc<Shared>);
        impl Drop for Awaits {
            fn drop(&mut self) {
                self.0.demand.end_await();
            }
        }
        self.shared.demand.begin_await();
        Awaits(self.shared.clone())
    }

    /// The timestamp of the last checkpoint, as of which the node begins when it is opened again.
    /// Call it on core 0.
    pub fn checkpoint_timestamp(&self) -> Timestamp {
        self.node_state().base.get()
    }

    async fn checkpoint_node(&self, spilling: Spilling) -> Result<Timestamp, Fatal> {
        let node = self.node_state();
        let mut turn = node.turns.take().await;
        self.check_fatal()?;
        if let Some(held) = node.held.get() {
            assert!(
                self.last_allotted() == held,
                "something was written while checkpoints are held"
            );
            return Ok(held);
        }
        // What becomes stable meanwhile is left to the next one: clients may write faster than
        // layers come back.
        let asked = self.timeline().checkpoint();
        let mut c = self.checkpoint_once(&mut turn, spilling).await?;
        while c < asked && self.next_checkpoint() > c {
            let room = self.make_room_for_layer().await;
            room.inspect_err(|fatal| self.poison(fatal.clone()))?;
            c = self.checkpoint_once(&mut turn, spilling).await?;
        }
        Ok(c)
    }

    /// One checkpoint, or none.
    async fn checkpoint_once(
        &self,
        turn: &mut Turn<'_>,
        spilling: Spilling,
    ) -> Result<Timestamp, Fatal> {
        let node = self.node_state();
        let c = self.next_checkpoint();
        // Nothing was written since.
        let has_untimed = self.shared.demand.has_untimed();
        let idle = c == node.base.get() && !node.dirty.get() && !has_untimed;
        let merges = match spilling {
            // Nothing but a merge frees the memory of what is spilled already.
            Spilling::WherePaying => idle && self.wants_checkpoint(),
            Spilling::WhileWriting => idle,
            Spilling::Never => true,
        };
        // What is spilled cannot be sealed into another layer.
        let merges = merges || !node.layers.borrow().is_empty();
        if idle && !(merges && self.has_spilled().await) {
            self.clear_checkpoint_asked().await;
            return Ok(c);
        }
        let c = self.hold_horizons();
        self.wait_durable(c).await?;
        self.wait_visible(c).await?;
        assert!(
            c >= node.base.get(),
            "the base holds what is not stable, or not applied"
        );
        let result = self.write_checkpoint(turn, c, merges).await;
        if let Err(fatal) = &result {
            self.poison(fatal.clone());
        }
        result.map(|()| c)
    }

    /// Takes a checkpoint at `ts`, which lies above everything in the log, and begins the log
    /// behind it. Call it [`on_node`], while nothing is logged.
    pub(in crate::engine) async fn checkpoint_beyond_log(
        &self,
        ts: Timestamp,
    ) -> Result<(), Fatal> {
        let mut turn = self.node_state().take_unheld_turn().await;
        self.check_fatal()?;
        self.node_state().log_begins_above.set(ts);
        let last = self.last_allotted();
        let written = self.write_checkpoint(&mut turn, ts, true).await;
        written.inspect_err(|fatal| self.poison(fatal.clone()))?;
        assert!(self.last_allotted() == last, "nobody else logs");
        // Before the next checkpoint begins: its timestamp is not below the base.
        self.progress.continue_after(ts);
        Ok(())
    }

    /// Whether changes wait to be merged in some partition.
    pub(in crate::engine) async fn has_spilled(&self) -> bool {
        let cores = (0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Background, || async {
                storage().owned().any(|partition| partition.has_spilled())
            })
        });
        join_all(cores).await.contains(&true)
    }

    /// Forgets the requests for a checkpoint that is not taken, so that they can be made again.
    pub(super) async fn clear_checkpoint_asked(&self) {
        self.on_all(|storage| async move {
            storage.memory.clear_checkpoint_asked();
            // A ring that is long because no checkpoint may run asks again when it is longer by as
            // much.
            storage.flusher.note_sealed();
        })
        .await;
    }

    /// Writes the checkpoint at `c`, which is durable and visible; `merges` when nothing may be
    /// spilled.
    pub(in crate::engine) async fn write_checkpoint(
        &self,
        turn: &mut Turn<'_>,
        c: Timestamp,
        merges: bool,
    ) -> Result<(), Fatal> {
        let node = self.node_state();
        let started = now();
        sim::event("checkpoint begin");
        node.dirty.set(false);
        self.shared.demand.clear_untimed();
        // What is stable now is stable at every opening of this checkpoint.
        let stable = self.stable_to_record();
        let merged = join_all((0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Background, move || async move {
                storage().merge_owned(c, merges).await
            })
        }))
        .await;
        let mut roots: Vec<Option<PartitionRoots>> =
            (0..self.partition_count()).map(|_| None).collect();
        let mut spilled = false;
        for core in merged {
            for (partition, merged, spills) in core? {
                roots[usize::from(partition.0)] = Some(merged);
                spilled |= spills;
            }
        }
        let roots: Vec<PartitionRoots> = roots
            .into_iter()
            .map(|roots| roots.expect("every partition has an owner"))
            .collect();

        let transaction = self.oldest_transaction(c).await;
        let retained = self.choose_retained(c, transaction).await;
        let own_base = node.own.sealed();
        self.write_manifest(turn, |current| {
            let mut manifest = Manifest {
                base: c.as_u64(),
                all_durable: current.all_durable.max(c.as_u64()),
                retained_above: retained.as_u64(),
                roots: roots.clone(),
                spilled,
                stable: stable.map_or(current.stable, Timestamp::as_u64),
                own_base,
                transaction: transaction.map_or(0, Timestamp::as_u64),
                ..current.clone()
            };
            manifest.cuts.prune(retained);
            manifest.own_cuts.prune(Timestamp::from_u64(own_base));
            manifest
        })
        .await?;
        node.base.set(c);
        self.publish_retained(retained);
        self.shared.recorded_durable.record(c);
        sim::event("checkpoint install");

        let installed = join_all((0..self.cores as u16).map(|core| {
            let roots = roots.clone();
            submit_to(CoreId(core), Queue::Background, move || async move {
                let storage = storage();
                storage.pins.forget_transactions(c);
                storage.install_owned(retained, &roots).await
            })
        }))
        .await;
        let installed = installed
            .into_iter()
            .collect::<Result<Vec<bool>, Fatal>>()?;
        node.mostly_left.set(installed.contains(&true));
        self.end_layers(c);
        self.remove_foreign_segments(retained).await?;
        self.recycle_own(own_base).await?;
        node.times.add(now() - started);
        sim::event("checkpoint end");
        Ok(())
    }

    /// Makes what `change` makes of the current manifest the next one.
    pub(in crate::engine) async fn write_manifest(
        &self,
        turn: &mut Turn<'_>,
        change: impl FnOnce(&Manifest) -> Manifest,
    ) -> Result<(), Fatal> {
        let current = turn.manifest();
        let next = Manifest {
            generation: current.generation + 1,
            ..change(current)
        };
        let room = &self.shared.room;
        let replaced = room.repeat("a manifest", async || {
            turn.manifests().replace(next.clone()).await
        });
        replaced
            .await
            .map_err(|error| Fatal::new(format!("writing a manifest failed: {error}")))
    }

    /// Seals this core's partitions in one poll and merges them one after another. Gives of each
    /// what the manifest shall say, and whether it has spilled changes.
    async fn merge_owned(
        &self,
        c: Timestamp,
        merges: bool,
    ) -> Result<Vec<(PartitionId, PartitionRoots, bool)>, Fatal> {
        // What the checkpoint before has left to old snapshots goes to disk first, so that at most
        // one checkpoint's changes are kept in memory for them. It waits for the device alone.
        for partition in self.owned().map(Rc::clone).collect::<Vec<_>>() {
            partition.settle_history().await?;
            partition.dissolve_layers(c, &Unpaced).await?;
        }
        for partition in self.owned() {
            partition.seal(c);
        }
        if let Some(node) = &self.node {
            node.own.seal();
        }
        self.unhold_horizon();
        self.flusher.note_sealed();
        let pace = CorePace::new(self);
        let mut merged = Vec::new();
        for partition in self.owned().map(Rc::clone).collect::<Vec<_>>() {
            if self.options.planted_fault == PlantedFault::SuperblockBeforePages {
                partition.hold_page_syncs(true).await?;
            }
            let roots = partition.merge(merges, &pace).await?;
            merged.push((partition.id(), roots, partition.merged_spills()));
        }
        Ok(merged)
    }

    /// The manifest is durable: the new base takes over, and what only the old one needed may go.
    /// Gives whether the checkpoint has left most of the changes of some partition in its delta.
    async fn install_owned(
        &self,
        retained: Timestamp,
        roots: &[PartitionRoots],
    ) -> Result<bool, Fatal> {
        let mut mostly_left = false;
        for partition in self.owned() {
            if self.options.planted_fault == PlantedFault::SuperblockBeforePages {
                partition.hold_page_syncs(false).await?;
            }
            mostly_left |= partition.install(roots[usize::from(partition.id().0)]);
        }
        self.memory.clear_checkpoint_asked();
        let ring = self.flusher.ring();
        self.publish_memory();
        self.memory.wake_writers();
        if let Some(ring) = ring {
            let failed = |error: std::io::Error| {
                Fatal::new(format!("recycling ring segments failed: {error}"))
            };
            ring.recycle(retained).await.map_err(failed)?;
        }
        Ok(mostly_left)
    }

    /// Removes the segments of rings without a core that hold nothing above `retained`.
    async fn remove_foreign_segments(&self, retained: Timestamp) -> Result<(), Fatal> {
        let mut gone: Vec<PathBuf> = Vec::new();
        for files in self.node_state().foreign.borrow_mut().iter_mut() {
            let done = files.segments.extract_if(.., |span| span.last <= retained);
            gone.extend(done.map(|span| files.dir.segment_path(span.generation)));
        }
        for path in gone {
            let failed = |error| Fatal::new(format!("removing {} failed: {error}", path.display()));
            fs::remove_file(&path).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Takes checkpoints at intervals and on demand; ends when storage fails or closes.
    pub(in crate::engine) async fn run_checkpoints(self: Rc<Self>) {
        let mut began = now();
        while !self.roles.has_failed() && !self.roles.is_closed() {
            let node = self.node_state();
            // From one's begin to the next's, however long it takes.
            let due = began + self.checkpoint_interval();
            let left = due.saturating_since(now());
            let asked = timeout(left, node.demand.notified()).await;
            began = now();
            let spilling = match asked {
                Ok(()) => Spilling::WherePaying,
                Err(_) => Spilling::WhileWriting,
            };
            let Ok(_inside) = self.roles.enter() else {
                return;
            };
            let taken = match self.checkpoint_node(spilling).await {
                Ok(_) => self.relieve_memory().await,
                Err(fatal) => Err(fatal),
            };
            if let Err(fatal) = taken {
                tracing::error!(target: "STORAGE", id = 7_300_002u64, error = %fatal, "No checkpoint could be taken");
            }
        }
    }
}
