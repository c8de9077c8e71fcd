//! Transactions whose entries are needed as a whole: those of several entries, and those that are
//! prepared.
//!
//! A checkpoint at C holds nothing of a transaction whose first entry lies at or below C and whose
//! outcome lies above: opening that base needs all entries from the first on. So the log is kept
//! from there, and the manifest names the first entry of the oldest such transaction, from which
//! recovery looks back. A transaction is forgotten when a checkpoint is durable that holds its
//! outcome.
//!
//! Each core keeps those that it has coordinated. What a checkpoint at C needs to know is there
//! before C is visible: the coordinator notes the begin in the poll that appends it, and the
//! outcome before it releases its applying mark.

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Queue, join_all, submit_to};

use crate::engine::storage::{Storage, storage};

impl Storage {
    /// A transaction of several entries begins in the log at `first`, and what it wrote is not
    /// applied yet. Both this and [`Storage::transaction_ends`] are for applying the log of another
    /// node, and for recovery: on one core, and before the entry is said to be applied.
    pub fn transaction_begins(&self, first: Timestamp) {
        self.pins.begin_transaction(first);
    }

    /// The transaction that began at `first` is decided by the entry at `last`, and applied or
    /// forgotten.
    pub fn transaction_ends(&self, first: Timestamp, last: Timestamp) {
        self.pins.end_transaction(first, last);
    }

    /// The first entry of the oldest transaction that a checkpoint at `c` holds nothing of, though
    /// it has started by then.
    pub(in crate::engine) async fn oldest_transaction(&self, c: Timestamp) -> Option<Timestamp> {
        let cores = (0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Foreground, move || async move {
                storage().pins.oldest_transaction(c)
            })
        });
        join_all(cores).await.into_iter().flatten().min()
    }
}
