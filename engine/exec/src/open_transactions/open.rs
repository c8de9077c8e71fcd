//! A transaction that is in progress: what goes along with its session from core to core.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pinion_catalog::{Collection, GateAccess};
use pinion_clock::Timestamp;
use pinion_runtime::{Duration, Instant, Queue, spawn};
use pinion_service::metrics::metrics;
use pinion_storage::{Entry, OpenUnit, WriteError, storage};
use pinion_wire::idl::{Lsid, Namespace, ReadConcern};

use super::held::{pin_everywhere, release_everywhere};
use crate::limits::{MAX_TRANSACTION_BYTES, MIN_TRANSACTIONS_BYTES, TRANSACTIONS_MEMORY_PERCENT};
use crate::parameters::parameters;
use crate::statements::Pending;

/// What an element of an `applyOps` costs beside its bytes: its index as a name, its type and a
/// terminator.
pub const OPERATION_OVERHEAD_BYTES: usize = 12;

/// What all transactions of the node keep of their writes, to put it into the log: no checkpoint
/// frees that. Each core has a copy.
#[derive(Clone)]
pub struct TransactionMemory {
    bytes: Arc<AtomicU64>,
    limit: u64,
}

impl TransactionMemory {
    /// They have a part of the memory that the node was given for its cache, beside that.
    pub fn new(cache_bytes: u64) -> TransactionMemory {
        let share = cache_bytes / 100 * TRANSACTIONS_MEMORY_PERCENT;
        TransactionMemory {
            bytes: Arc::default(),
            limit: share.max(MIN_TRANSACTIONS_BYTES),
        }
    }
}

/// This node's.
pub(crate) fn transaction_memory() -> Rc<TransactionMemory> {
    pinion_runtime::core_local()
}

/// What one transaction keeps.
struct Kept {
    of: TransactionMemory,
    bytes: u64,
}

impl Kept {
    /// False where all together would keep too much; nothing is counted then.
    fn take(&mut self, bytes: u64) -> bool {
        let before = self.of.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.of.limit {
            self.of.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.bytes += bytes;
        true
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What a transaction uses of the catalog.
#[derive(Clone, Default)]
pub struct CatalogUse {
    /// Collections that it makes: no other operation sees them before it commits.
    pub planned: Vec<Arc<Collection>>,
    /// The gates that it has passed.
    pub passed: Vec<(Namespace, GateAccess)>,
}

/// A transaction between its first statement and its end, at which it is aborted or committed: one
/// that is dropped would leave its intents behind.
pub struct OpenTransaction {
    pub lsid: Lsid,
    pub number: i64,
    pub unit: OpenUnit,
    /// That of its first statement.
    pub read_concern: ReadConcern,
    /// What its writes do, in their order, as an `applyOps` has them.
    pub operations: Vec<Bytes>,
    pub operation_bytes: usize,
    kept: Kept,
    pub known: CatalogUse,
    /// What it has executed of the retryable write of its session's parent.
    pub statements: Pending,
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
    pub(crate) async fn begin(
        lsid: Lsid,
        number: i64,
        read_concern: ReadConcern,
        at: Timestamp,
    ) -> pinion_wire::Result<Box<OpenTransaction>> {
        pin_everywhere(lsid, at).await?;
        Ok(Box::new(OpenTransaction {
            lsid,
            number,
            unit: storage().begin_unit(at),
            read_concern,
            operations: Vec::new(),
            operation_bytes: 0,
            kept: Kept {
                of: TransactionMemory::clone(&transaction_memory()),
                bytes: 0,
            },
            known: CatalogUse::default(),
            statements: Pending::new(),
            started: pinion_runtime::now(),
            started_wall_ms: pinion_runtime::wall_ms(),
            active: Duration::ZERO,
        }))
    }

    /// Ends it without a trace. This completes even if the caller goes away.
    pub(crate) async fn abort(self: Box<Self>) {
        let aborting = spawn(Queue::Foreground, async move {
            let (lsid, number, started) = (self.lsid, self.number, self.started);
            storage().abort_unit(self.unit).await;
            release_everywhere(lsid, number).await;
            let metrics = &metrics();
            metrics.counters.transactions_aborted.inc();
            metrics.transaction_ended(started);
        });
        // One that the end of the node has dropped needs nothing.
        let _ = aborting.await;
    }

    /// Takes room for what a write does, which is added next.
    ///
    /// # Errors
    /// `UnitTooLarge`; `CacheFull` where all transactions together have none.
    pub(crate) fn take_room(&mut self, operation: &Entry) -> Result<(), WriteError> {
        let image = operation.image.iter();
        let bytes = image
            .chain([&operation.bytes])
            .map(|operation| operation.len() + OPERATION_OVERHEAD_BYTES)
            .sum::<usize>();
        let own = self.operation_bytes + bytes;
        let part = parameters().borrow().storage.transaction_threshold;
        let most = self.kept.of.limit as f64 * part;
        if own > MAX_TRANSACTION_BYTES || own as f64 > most {
            return Err(WriteError::UnitTooLarge);
        }
        match self.kept.take(bytes as u64) {
            true => Ok(()),
            false => Err(WriteError::CacheFull),
        }
    }

    /// Adds what a write does; an image beside it is an operation before it.
    pub(crate) fn add(&mut self, operation: Entry) {
        let Entry { bytes, image } = operation;
        for operation in image.into_iter().chain([bytes]) {
            self.operation_bytes += operation.len() + OPERATION_OVERHEAD_BYTES;
            self.operations.push(Bytes::from(operation));
        }
    }
}
