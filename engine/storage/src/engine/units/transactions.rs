//! Transactions whose entries are needed as a whole: those of several entries, and those that are prepared.
//!
//! A checkpoint at C holds nothing of a transaction whose first entry lies at or below C and whose outcome lies above:
//! who opens that base needs all entries from the first on. So the log is kept from there, and the manifest names the
//! first entry of the oldest such transaction, from which recovery looks back. A transaction is forgotten when a
//! checkpoint is durable that holds its outcome.
//!
//! Each core keeps those that it has coordinated. What a checkpoint at C needs to know is there before C is visible: the
//! coordinator notes the begin in the poll that appends it, and the outcome before it lets go of its applying mark.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Queue, join_all, submit_to};

use crate::engine::storage::{Storage, storage};

/// The first entry of each transaction, and the entry that decides it, once there is one.
pub(in crate::engine) type Transactions = RefCell<BTreeMap<Timestamp, Option<Timestamp>>>;

impl Storage {
    /// A transaction of several entries begins in the log at `first`, and what it wrote is not applied yet. Both this and
    /// [`Storage::transaction_ends`] are for who applies the log of another node, or recovers: on one core, and before
    /// the entry is said to be applied.
    pub fn transaction_begins(&self, first: Timestamp) {
        self.transactions.borrow_mut().entry(first).or_insert(None);
    }

    /// The transaction that began at `first` is decided by the entry at `last`, and applied or forgotten.
    pub fn transaction_ends(&self, first: Timestamp, last: Timestamp) {
        assert!(first <= last, "a transaction ends behind its begin");
        if let Some(outcome) = self.transactions.borrow_mut().get_mut(&first) {
            *outcome = Some(last);
        }
    }

    /// The first entry of the oldest transaction that a checkpoint at `c` holds nothing of, though it has begun by then.
    pub(in crate::engine) async fn oldest_transaction(&self, c: Timestamp) -> Option<Timestamp> {
        let cores = (0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Foreground, move || async move {
                oldest_at(&storage().transactions.borrow(), c)
            })
        });
        join_all(cores).await.into_iter().flatten().min()
    }

    /// A checkpoint at `c` is durable.
    pub(in crate::engine) fn forget_transactions(&self, c: Timestamp) {
        let mut transactions = self.transactions.borrow_mut();
        transactions.retain(|_, outcome| outcome.is_none_or(|outcome| outcome > c));
    }
}

fn oldest_at(
    transactions: &BTreeMap<Timestamp, Option<Timestamp>>,
    c: Timestamp,
) -> Option<Timestamp> {
    let mut begun = transactions.range(..=c);
    let oldest = begun.find(|(_, outcome)| outcome.is_none_or(|outcome| outcome > c));
    oldest.map(|(&first, _)| first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_needs_what_has_begun_and_is_decided_above_it() {
        let ts = Timestamp::from_u64;
        let transactions = [(10, Some(12)), (20, Some(40)), (30, None), (50, Some(60))]
            .map(|(first, outcome)| (ts(first), outcome.map(ts)))
            .into();
        let check = |c: u64, expected: Option<u64>| {
            assert_eq!(oldest_at(&transactions, ts(c)), expected.map(ts), "at {c}");
        };
        check(9, None);
        check(10, Some(10));
        check(11, Some(10));
        check(12, None);
        check(25, Some(20));
        check(39, Some(20));
        check(40, Some(30));
        check(55, Some(30));
    }
}
