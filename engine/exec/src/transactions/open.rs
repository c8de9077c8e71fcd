//! A transaction that is in progress: what goes along with its session from core to core.

use bytes::Bytes;
use pinion_catalog::{GateAccess, Uuid};
use pinion_clock::Timestamp;
use pinion_runtime::{Duration, Instant, Queue, spawn};
use pinion_storage::{OpenUnit, storage};
use pinion_wire::Result;
use pinion_wire::idl::{Lsid, Namespace, ReadConcern};

use super::held::{pin_everywhere, release_everywhere};
use crate::limits::MAX_TRANSACTION_BYTES;
use crate::state::state;

/// What an element of an `applyOps` costs beside its bytes: its index as a name, its type and a terminator.
pub(super) const OPERATION_OVERHEAD_BYTES: usize = 12;

/// What a transaction has to do with the catalog.
#[derive(Clone, Default)]
pub(crate) struct Known {
    /// Collections that were made, or got indexes, for it, after its snapshot, and when.
    pub made: Vec<(Uuid, Timestamp)>,
    /// The gates that it has passed.
    pub passed: Vec<(Namespace, GateAccess)>,
}

/// A transaction between its first statement and its end, at which it is aborted or committed: one that is dropped would leave
/// its intents behind.
pub(crate) struct OpenTransaction {
    pub lsid: Lsid,
    pub number: i64,
    pub unit: OpenUnit,
    /// That of its first statement.
    pub read_concern: ReadConcern,
    /// What its writes do, in their order, as an `applyOps` has them.
    pub operations: Vec<Bytes>,
    pub operation_bytes: usize,
    pub known: Known,
    pub started: Instant,
    pub started_wall_ms: i64,
    /// How long its statements have run.
    pub active: Duration,
}

impl OpenTransaction {
    /// Begins a transaction that reads the state at `at`.
    ///
    /// # Errors
    /// `SnapshotTooOld` when that state is gone.
    pub(super) async fn begin(
        lsid: Lsid,
        number: i64,
        read_concern: ReadConcern,
        at: Timestamp,
    ) -> Result<Box<OpenTransaction>> {
        pin_everywhere(lsid, at).await?;
        Ok(Box::new(OpenTransaction {
            lsid,
            number,
            unit: storage().begin_unit(at),
            read_concern,
            operations: Vec::new(),
            operation_bytes: 0,
            known: Known::default(),
            started: pinion_runtime::now(),
            started_wall_ms: pinion_runtime::wall_ms(),
            active: Duration::ZERO,
        }))
    }

    /// Ends it without a trace. That goes on if the caller goes away.
    pub(crate) async fn abort(self: Box<Self>) {
        let aborting = spawn(Queue::Foreground, async move {
            let (lsid, number) = (self.lsid, self.number);
            storage().abort_unit(self.unit).await;
            release_everywhere(lsid, number).await;
            state().metrics.counters.transactions_aborted.inc();
        });
        // One that the end of the node has dropped needs nothing.
        let _ = aborting.await;
    }

    /// Whether there is room for what a write does.
    pub(super) fn has_room(&self, operation: &[u8]) -> bool {
        self.operation_bytes + operation.len() + OPERATION_OVERHEAD_BYTES <= MAX_TRANSACTION_BYTES
    }

    /// Adds what a write does.
    pub(super) fn add(&mut self, operation: Vec<u8>) {
        self.operation_bytes += operation.len() + OPERATION_OVERHEAD_BYTES;
        self.operations.push(Bytes::from(operation));
    }
}
