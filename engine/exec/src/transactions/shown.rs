//! Open transactions as diagnostics show them.

use pinion_clock::Timestamp;
use pinion_runtime::{Duration, Instant, on_all_cores};
use pinion_wire::idl::{Lsid, ReadConcern};

use super::open::OpenTransaction;
use crate::sessions::session_catalog;
use crate::transactions::transactions;

/// What is shown of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct OpenShown {
    pub lsid: Lsid,
    pub number: i64,
    pub read_concern: ReadConcern,
    /// The time of its snapshot.
    pub at: Timestamp,
    pub started: Instant,
    pub started_wall_ms: i64,
    /// How long its statements ran, up to the one that runs now.
    pub active: Duration,
    /// When it is aborted for its age, where its home is asked.
    pub expires: Option<Instant>,
    /// Since when it has waited for its outcome.
    pub prepared: Option<Instant>,
}

impl OpenShown {
    pub(super) fn of(open: &OpenTransaction, expires: Option<Instant>) -> OpenShown {
        OpenShown {
            lsid: open.lsid,
            number: open.number,
            read_concern: open.read_concern,
            at: open.unit.snapshot(),
            started: open.started,
            started_wall_ms: open.started_wall_ms,
            active: open.active,
            expires,
            prepared: None,
        }
    }
}

/// The transactions that run a statement on this core.
pub(crate) fn running() -> Vec<OpenShown> {
    let transactions = transactions();
    let running = transactions.running.borrow();
    running
        .values()
        .filter_map(|running| running.shown().cloned())
        .collect()
}

/// The transactions whose home this core is that wait for their next statement, or for their outcome.
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
