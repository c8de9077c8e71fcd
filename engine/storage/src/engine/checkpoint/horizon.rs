//! How far back a snapshot can still be opened: versions that only older snapshots would see are
//! dropped.
//!
//! A read takes its timestamp and pins it on the owners a message later, so the horizon stays
//! behind the visible timestamp by a grace. A read that is slower than that is refused and takes a
//! new timestamp.
//!
//! A checkpoint at C needs the version of each key that is newest at C until the owner has sealed
//! its changes. Core 0 publishes a bound to every core *before* it chooses C, and each core takes
//! its own away when it has sealed. A core looks at the bound after it has looked at the visible
//! and the stable timestamp: if it finds none, neither was above what C was chosen from.

use std::sync::atomic::{AtomicU64, Ordering};

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, now};

use crate::engine::storage::Storage;

/// What no horizon passes; shared by all cores.
pub(in crate::engine) struct HorizonBounds {
    /// Of each core: no version that a checkpoint there, soon to be sealed, needs lies at or above
    /// it.
    unsealed: Box<[AtomicU64]>,
    /// The timestamp of the oldest layer.
    layered: AtomicU64,
}

/// Bounds nothing.
const UNBOUNDED: u64 = u64::MAX;

impl HorizonBounds {
    pub(in crate::engine) fn new(cores: usize) -> HorizonBounds {
        HorizonBounds {
            unsealed: (0..cores).map(|_| AtomicU64::new(UNBOUNDED)).collect(),
            layered: AtomicU64::new(UNBOUNDED),
        }
    }

    /// Of every core, until [`HorizonBounds::set_sealed`] there.
    fn set_unsealed(&self, bound: Timestamp) {
        for word in &self.unsealed {
            word.store(bound.as_u64(), Ordering::SeqCst);
        }
    }

    fn set_sealed(&self, core: CoreId) {
        self.unsealed[usize::from(core.0)].store(UNBOUNDED, Ordering::SeqCst);
    }

    pub(super) fn set_layered(&self, oldest: Option<Timestamp>) {
        let oldest = oldest.map_or(UNBOUNDED, Timestamp::as_u64);
        self.layered.store(oldest, Ordering::SeqCst);
    }

    /// The timestamp of the oldest layer, or where one is about to be.
    pub(in crate::engine) fn layered(&self) -> Option<Timestamp> {
        let oldest = self.layered.load(Ordering::SeqCst);
        (oldest != UNBOUNDED).then(|| Timestamp::from_u64(oldest))
    }

    /// The horizon of a core that is otherwise at `bound`.
    fn limit(&self, core: CoreId, bound: Timestamp) -> Timestamp {
        let unsealed = self.unsealed[usize::from(core.0)].load(Ordering::SeqCst);
        let layered = self.layered.load(Ordering::SeqCst);
        bound.min(Timestamp::from_u64(unsealed.min(layered)))
    }
}

impl Storage {
    /// Lets the horizon of this core's partitions follow. Costs a look at the clock when there is
    /// nothing to do.
    pub(in crate::engine) fn follow_horizon(&self) {
        // The last stable entry may lie below the stable timestamp, and replay takes its
        // checkpoints there.
        if self.roles.is_recovering() {
            return;
        }
        let now = now();
        if !self.pins.is_horizon_due(now) {
            return;
        }
        let bound = self.timeline().horizon();
        let Some(bound) = self.pins.sample_horizon(now, bound) else {
            return;
        };
        let horizon = self.shared.horizon.limit(self.core, bound);
        for partition in self.owned() {
            partition.raise_horizon(horizon);
        }
    }

    /// Chooses the timestamp of a checkpoint: nothing that it needs goes until
    /// [`Storage::unhold_horizon`] on each core. Call it on core 0.
    pub(super) fn hold_horizons(&self) -> Timestamp {
        let bound = self.timeline().checkpoint();
        self.shared.horizon.set_unsealed(bound);
        self.next_checkpoint()
    }

    /// This core has sealed its changes for the checkpoint.
    pub(super) fn unhold_horizon(&self) {
        self.shared.horizon.set_sealed(self.core);
    }
}
