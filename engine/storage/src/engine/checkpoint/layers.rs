//! Changes that no checkpoint may hold yet, and that take too much memory, go to disk as layers
//! over the base.
//!
//! A member's base holds nothing above the stable timestamp. Where that stands still, because no
//! majority of the set answers, checkpoints free no memory. Then all cores seal what they have at
//! one timestamp R, and write it (`partition/layers.rs`). R is visible and durable, and above
//! everything that a checkpoint may hold now. Core 0 knows the timestamps of all layers. While
//! there are any, the next checkpoint is at that of the oldest one, as soon as it is stable; until
//! then checkpoints stay at the base, and take what is not replicated.
//!
//! No horizon passes the oldest layer: versions that the checkpoint there needs may lie in the
//! delta as well.

use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Queue, join_all, sim, submit_to};

use super::pace::CorePace;
use crate::engine::options::PlantedFault;
use crate::engine::storage::{Storage, storage};
use crate::limits::MAX_LAYERS;
use crate::partition::KeptVersions;
use crate::types::{Fatal, PartitionId};

/// A layer is written where some partition has such a part of its memory for changes at least: one
/// of few changes costs every reader as much as one of many.
const SMALLEST_PART: u64 = 8;

/// What layers hold that a planted fault has outlive a rollback, by partition.
pub(in crate::engine) type KeptLayers = Vec<(PartitionId, KeptVersions)>;

impl Storage {
    /// The timestamp of a checkpoint that begins now. Call it on core 0.
    pub(super) fn next_checkpoint(&self) -> Timestamp {
        let node = self.node_state();
        let allowed = self.timeline().checkpoint();
        match node.layers.borrow().front() {
            None => allowed,
            Some(&oldest) if oldest <= allowed => oldest,
            Some(_) => node.base.get(),
        }
    }

    /// The checkpoint at `c` holds the layers up to there. Call it on core 0.
    pub(super) fn end_layers(&self, c: Timestamp) {
        let mut layers = self.node_state().layers.borrow_mut();
        let before = layers.len();
        layers.retain(|&at| at > c);
        if layers.is_empty() && before > 0 {
            tracing::info!(target: "STORAGE", id = 7_300_051u64, "All changes that waited on disk for the stable timestamp are in the base");
        }
        drop(layers);
        self.publish_layers();
    }

    fn publish_layers(&self) {
        let oldest = self.node_state().layers.borrow().front().copied();
        self.shared.horizon.set_layered(oldest);
    }

    /// Writes changes to disk that no checkpoint may hold, where they take so much memory that
    /// writes would wait for it. Call it on core 0, after a checkpoint.
    pub(super) async fn relieve_memory(&self) -> Result<(), Fatal> {
        let node = self.node_state();
        let _turn = node.turns.take().await;
        self.check_fatal()?;
        let checkpoint_helps = self.next_checkpoint() > node.base.get() && !node.mostly_left.get();
        if !self.wants_checkpoint() || node.held.get().is_some() || checkpoint_helps {
            return Ok(());
        }
        // What is spilled can only be merged, which a checkpoint does that finds nothing else to
        // do.
        if self.has_spilled().await {
            return Ok(());
        }
        self.hold_layers();
        let timeline = self.timeline();
        let at = timeline.visible.min(timeline.durable);
        let added = match at > timeline.checkpoint() {
            true => self.add_layer(at).await,
            false => Ok(false),
        };
        self.publish_layers();
        self.clear_checkpoint_asked().await;
        let added = added.inspect_err(|fatal| self.poison(fatal.clone()));
        added.map(|_| ())
    }

    /// Nothing goes that a checkpoint at a layer needs which is about to be sealed.
    fn hold_layers(&self) {
        if self.node_state().layers.borrow().is_empty() {
            let allowed = self.timeline().checkpoint();
            self.shared.horizon.set_layered(Some(allowed));
        }
    }

    /// Before a layer comes back into memory: makes room for it if there is little, by another
    /// layer.
    pub(super) async fn make_room_for_layer(&self) -> Result<bool, Fatal> {
        if self.node_state().layers.borrow().is_empty() {
            // The checkpoint that comes frees the memory itself, and no layer holds the horizon
            // back.
            return Ok(false);
        }
        let timeline = self.timeline();
        let at = timeline.visible.min(timeline.durable);
        match self.wants_checkpoint() {
            true => self.add_layer(at).await,
            false => Ok(false),
        }
    }

    /// Seals a layer at `at` on every core, where there is enough for one, and writes it. The
    /// caller has the turn; no horizon has passed `at`, and everything up to there is applied.
    /// Gives whether there was anything to write.
    pub(in crate::engine) async fn add_layer(&self, at: Timestamp) -> Result<bool, Fatal> {
        let node = self.node_state();
        {
            let layers = node.layers.borrow();
            if layers.len() >= MAX_LAYERS || layers.back().is_some_and(|&newest| newest >= at) {
                return Ok(false);
            }
        }
        let enough = join_all((0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Background, || async {
                storage().has_enough_for_layer()
            })
        }));
        if !enough.await.contains(&true) {
            return Ok(false);
        }
        sim::event("layer begin");
        let written = join_all((0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Background, move || async move {
                storage().write_owned_layers(at).await
            })
        }));
        let written = written
            .await
            .into_iter()
            .collect::<Result<Vec<bool>, Fatal>>()?;
        let is_written = written.contains(&true);
        if is_written {
            node.layers.borrow_mut().push_back(at);
            self.publish_layers();
            let layers = node.layers.borrow().len();
            let lag_secs = self.stable_lag_secs();
            tracing::info!(target: "STORAGE", id = 7_300_050u64, layers, lag_secs, "Changes above the stable timestamp are written to disk, as memory for them is short");
        }
        Ok(is_written)
    }

    /// Whether a layer frees much memory of a partition of this core.
    fn has_enough_for_layer(&self) -> bool {
        let least =
            self.memory.delta_budget_bytes() / SMALLEST_PART / self.owned().count().max(1) as u64;
        self.owned()
            .any(|partition| partition.memory().active_bytes >= least.max(1))
    }

    /// Seals this core's partitions in one poll and writes one after another. Gives whether there
    /// is a layer. Every partition takes part, however little it has: what one kept below this
    /// layer would go into the next, and the checkpoint at this one lack it; or lie above it in
    /// memory, where what is newer is looked for first.
    async fn write_owned_layers(&self, at: Timestamp) -> Result<bool, Fatal> {
        let partitions: Vec<_> = self.owned().map(Rc::clone).collect();
        let sealed = partitions.iter().map(|partition| partition.seal_layer(at));
        let sealed = sealed.filter(|is_sealed| *is_sealed).count();
        let pace = CorePace::new(self);
        for partition in &partitions {
            partition.write_layer(&pace).await?;
            self.publish_memory();
            self.memory.wake_writers();
        }
        Ok(sealed > 0)
    }

    /// What the layers of all partitions hold, where a test has planted that a rollback does not
    /// end them.
    pub(in crate::engine) async fn keep_layers(&self) -> KeptLayers {
        if self.options.planted_fault != PlantedFault::LayersKept {
            return KeptLayers::new();
        }
        let kept = join_all((0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Background, || async {
                let mut kept = KeptLayers::new();
                for partition in storage().owned().map(Rc::clone).collect::<Vec<_>>() {
                    let versions = partition.keep_layers().await;
                    kept.push((partition.id(), versions.expect("layers can be read")));
                }
                kept
            })
        }));
        kept.await.into_iter().flatten().collect()
    }

    /// Puts it back behind a rollback to `cut`.
    pub(in crate::engine) async fn put_back_kept(&self, kept: KeptLayers, cut: Timestamp) {
        for (partition, versions) in kept {
            submit_to(
                self.owner(partition),
                Queue::Background,
                move || async move {
                    let partition = storage().owned_partition(partition);
                    partition.put_back_kept(versions, cut);
                },
            )
            .await;
        }
    }

    /// By how much the stable timestamp is behind what is visible; 0 on a standalone.
    pub fn stable_lag_secs(&self) -> u64 {
        let timeline = self.timeline();
        let secs = |ts: Timestamp| ts.as_u64() >> 32;
        secs(timeline.visible).saturating_sub(secs(timeline.stable))
    }
}
