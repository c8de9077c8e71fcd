//! How far back a snapshot can still be opened: versions that only older snapshots would see are dropped.
//!
//! A read takes its timestamp and pins it on the owners a message later, so the horizon stays behind the visible timestamp by
//! a grace. A read that is slower than that is refused and takes a new timestamp.
//!
//! A checkpoint at C needs the version of each key that is newest at C until the owner has sealed its changes. Core 0
//! publishes a bound to every core *before* it chooses C, and each core takes its own away when it has sealed. A core looks
//! at the bound after it has looked at the visible and the stable timestamp: if it finds none, neither was above what C was
//! chosen from.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use pinion_clock::Timestamp;
use pinion_runtime::{Instant, now};

use crate::engine::storage::Storage;
use crate::limits::SNAPSHOT_GRACE;

/// Since when which timestamp is known to be a possible horizon, on one core.
#[derive(Default)]
pub(in crate::engine) struct Horizon {
    sampled: Cell<Option<(Instant, Timestamp)>>,
}

impl Storage {
    /// Lets the horizon of this core's partitions follow. Costs a look at the clock when there is nothing to do.
    pub(in crate::engine) fn follow_horizon(&self) {
        // The last stable entry may lie below the stable timestamp, and replay takes its checkpoints there.
        if self.roles.is_recovering() {
            return;
        }
        let now = now();
        let before = self.horizon.sampled.get();
        if before.is_some_and(|(taken, _)| now.saturating_since(taken) < SNAPSHOT_GRACE) {
            return;
        }
        let bound = self.timeline().horizon();
        self.horizon.sampled.set(Some((now, bound)));
        let Some((_, bound)) = before else { return };
        let unsealed = self.shared.unsealed[usize::from(self.core.0)].load(Ordering::SeqCst);
        let layered = self.shared.layered.load(Ordering::SeqCst);
        let horizon = bound.min(Timestamp::from_u64(unsealed.min(layered)));
        for partition in self.owned() {
            partition.raise_horizon(horizon);
        }
    }

    /// Chooses the timestamp of a checkpoint: nothing that it needs goes until [`Storage::unhold_horizon`] on each core. Call it
    /// on core 0.
    pub(super) fn hold_horizons(&self) -> Timestamp {
        let bound = self.timeline().checkpoint();
        for word in &self.shared.unsealed {
            word.store(bound.as_u64(), Ordering::SeqCst);
        }
        self.next_checkpoint()
    }

    /// This core has sealed its changes for the checkpoint.
    pub(super) fn unhold_horizon(&self) {
        self.shared.unsealed[usize::from(self.core.0)].store(u64::MAX, Ordering::SeqCst);
    }
}
