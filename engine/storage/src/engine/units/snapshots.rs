//! Snapshots that are held on all partitions of the node, for transactions that read them over
//! several statements.
//!
//! A cursor pins the snapshot of its partition while it lives. A transaction comes back to any
//! partition, from any core, and between its statements nothing of it is there but plain data.

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Queue, join_all, submit_to};

use crate::engine::storage::{Storage, storage};
use crate::partition::{SnapshotPin, UnitId};
use crate::types::ReadError;

/// A snapshot that stays readable on every partition of the node until it is given to
/// [`Storage::release_snapshot`], or the node closes. Plain data.
#[derive(Debug)]
#[must_use = "a snapshot is kept until it is released"]
pub struct SnapshotHold {
    number: UnitId,
    incarnation: u64,
    ts: Timestamp,
}

impl SnapshotHold {
    /// The timestamp.
    pub fn timestamp(&self) -> Timestamp {
        self.ts
    }
}

impl Storage {
    /// Keeps the state at `ts` readable on all partitions, unless memory for old versions runs out.
    /// A future that is dropped may leave it held until the node closes.
    ///
    /// # Errors
    /// [`ReadError::SnapshotTooOld`] if that state is gone already.
    pub async fn hold_snapshot(&self, ts: Timestamp) -> Result<SnapshotHold, ReadError> {
        let hold = SnapshotHold {
            number: self.units.number(),
            incarnation: self.shared.incarnation,
            ts,
        };
        let number = hold.number;
        let held = join_all((0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Foreground, move || async move {
                storage().hold_here(number, ts)
            })
        }))
        .await;
        match held.into_iter().collect::<Result<Vec<()>, ReadError>>() {
            Ok(_) => Ok(hold),
            Err(error) => {
                self.release_snapshot(hold).await;
                Err(error)
            }
        }
    }

    fn hold_here(&self, number: UnitId, ts: Timestamp) -> Result<(), ReadError> {
        let pins = self.owned().map(|partition| partition.pin(ts));
        let pins = pins.collect::<Result<Vec<SnapshotPin>, ReadError>>()?;
        self.pins.hold_snapshot(number, pins);
        Ok(())
    }

    /// The snapshot need not be readable any more.
    pub async fn release_snapshot(&self, hold: SnapshotHold) {
        if hold.incarnation != self.shared.incarnation {
            return;
        }
        let number = hold.number;
        join_all((0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Foreground, move || async move {
                drop(storage().pins.release_snapshot(number));
            })
        }))
        .await;
    }
}
