//! The transactions that are open now.

use pinion_runtime::on_all_cores;

use crate::open_transactions::{OpenShown, transactions};
use crate::sessions::session_catalog;

/// The transactions that run a statement on this core.
pub(crate) fn running() -> Vec<OpenShown> {
    let transactions = transactions();
    let running = transactions.running.borrow();
    running
        .values()
        .filter_map(|running| running.shown().cloned())
        .collect()
}

/// The transactions whose home this core is that wait for their next statement, or for their
/// outcome.
pub(crate) fn idle() -> Vec<OpenShown> {
    let mut idle = Vec::new();
    session_catalog().for_each_idle(|open, expires| idle.push(OpenShown::of(open, expires)));
    let prepared = transactions().prepared.all();
    idle.extend(prepared.into_iter().map(|known| known.shown));
    idle
}

/// How many transactions run a statement now, and how many wait for their next one.
pub(crate) async fn open_counts() -> (u64, u64) {
    let counts = on_all_cores(|_| async { (running().len() as u64, idle().len() as u64) });
    let counts = counts.await.into_iter();
    counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
}
