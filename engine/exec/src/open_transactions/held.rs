//! What transactions hold on one core: which of them run a statement there, snapshots, and the
//! gates that they have passed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_catalog::{AccessGuard, GateAccess, from_read_error};
use pinion_clock::Timestamp;
use pinion_runtime::on_all_cores;
use pinion_service::cursors::cursors;
use pinion_storage::{PartitionId, SnapshotPin, storage};
use pinion_wire::Result;
use pinion_wire::idl::{Lsid, Namespace};

use super::open::OpenTransaction;
use super::prepared::PreparedTable;
use super::running::Running;

/// The transactions of one core.
#[derive(Default)]
pub struct Transactions {
    /// Those that run a statement here, by their sessions.
    pub(crate) running: RefCell<BTreeMap<Lsid, Rc<Running>>>,
    held: RefCell<BTreeMap<Lsid, Held>>,
    /// Those that are about to be committed with collections that they make, until it is their
    /// turn.
    pub(crate) committing: RefCell<BTreeMap<Lsid, Box<OpenTransaction>>>,
    /// Those without an outcome, of the sessions whose home this is.
    pub(crate) prepared: PreparedTable,
}

/// What a transaction holds here until it ends.
#[derive(Default)]
struct Held {
    /// Keep its snapshot readable.
    pins: Vec<SnapshotPin>,
    /// Keep what it has read or written from being dropped or changed.
    passes: Vec<(Namespace, GateAccess, AccessGuard)>,
}

/// This core's part of the transactions.
pub fn transactions() -> Rc<Transactions> {
    pinion_runtime::core_local()
}

impl Transactions {
    pub(crate) fn hold(&self, lsid: Lsid, ns: Namespace, access: GateAccess, pass: AccessGuard) {
        let mut held = self.held.borrow_mut();
        let passes = &mut held.entry(lsid).or_default().passes;
        passes.push((ns, access, pass));
    }

    fn release(&self, lsid: &Lsid) {
        let held = self.held.borrow_mut().remove(lsid);
        drop(held);
    }

    /// Releases everything.
    pub fn clear(&self) {
        let held = std::mem::take(&mut *self.held.borrow_mut());
        drop(held);
        self.prepared.clear();
    }

    /// Releases the snapshot: no statement reads it any more.
    fn unpin(&self, lsid: &Lsid) {
        let pins = match self.held.borrow_mut().get_mut(lsid) {
            Some(held) => std::mem::take(&mut held.pins),
            None => Vec::new(),
        };
        drop(pins);
    }
}

/// Keeps the state at `at` readable in every partition, for the transaction of a session.
///
/// # Errors
/// `SnapshotTooOld`; nothing is held then.
pub(crate) async fn pin_everywhere(lsid: Lsid, at: Timestamp) -> Result<()> {
    let pinned = on_all_cores(move |_| async move { pin_here(lsid, at) }).await;
    let failed = pinned.into_iter().find_map(Result::err);
    match failed {
        None => Ok(()),
        Some(error) => {
            on_all_cores(move |_| async move { transactions().release(&lsid) }).await;
            Err(error)
        }
    }
}

fn pin_here(lsid: Lsid, at: Timestamp) -> Result<()> {
    let storage = storage();
    let mut pins = Vec::new();
    for partition in (0..storage.partition_count()).map(PartitionId) {
        if let Some(owned) = storage.partition(partition) {
            pins.push(owned.pin(at).map_err(from_read_error)?);
        }
    }
    let held = Held {
        pins,
        passes: Vec::new(),
    };
    let before = transactions().held.borrow_mut().insert(lsid, held);
    assert!(
        before.is_none(),
        "a session has one open transaction at a time"
    );
    Ok(())
}

/// Releases what a transaction holds, and its cursors.
pub async fn release_everywhere(lsid: Lsid, number: i64) {
    on_all_cores(move |_| async move {
        cursors().kill_transaction(&lsid, number);
        transactions().release(&lsid);
    })
    .await;
}

/// Releases the snapshot and the cursors of a transaction that takes no more statements, and keeps
/// its gates.
pub async fn forget_cursors(lsid: Lsid, number: i64) {
    on_all_cores(move |_| async move {
        cursors().kill_transaction(&lsid, number);
        transactions().unpin(&lsid);
    })
    .await;
}

/// Releases what a transaction holds.
pub async fn release_held_everywhere(lsid: Lsid) {
    on_all_cores(move |_| async move { transactions().release(&lsid) }).await;
}
