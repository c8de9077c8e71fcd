//! What applies oplog entries again while a node recovers: the trait, and recovery's own view of
//! it, which is compiled once.

use std::future::Future;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::LocalBoxFuture;

use super::error::ApplyError;

/// Applies oplog entries again. It runs on core 0.
pub trait Applier {
    /// Applies one entry, through [`super::Storage::apply_at`]. Entries come in the order of their
    /// timestamps. It need not be complete when this returns; see [`Applier::barrier`].
    fn apply(&self, ts: Timestamp, entry: Bytes) -> impl Future<Output = Result<(), ApplyError>>;

    /// Is shown an entry that the base contains, before anything is applied: all of them from the
    /// first of the oldest transaction on that has entries there and its outcome, if any, only
    /// behind the base. What is prepared as of the base is to be made again with
    /// [`super::Storage::restore_prepared`] in [`Applier::looked_back`], and what has started is to
    /// be noted with [`super::Storage::transaction_begins`].
    fn look_back(
        &self,
        _ts: Timestamp,
        _entry: Bytes,
    ) -> impl Future<Output = Result<(), ApplyError>> {
        async { Ok(()) }
    }

    /// All was shown that there is to look back at, which may be nothing.
    fn looked_back(&self) -> impl Future<Output = Result<(), ApplyError>> {
        async { Ok(()) }
    }

    /// Completes everything given to [`Applier::apply`] so far.
    fn barrier(&self) -> impl Future<Output = Result<(), ApplyError>> {
        async { Ok(()) }
    }
}

/// The outcome of a step of an applier.
type Applied<'a> = LocalBoxFuture<'a, Result<(), ApplyError>>;

/// An [`Applier`] of any type. Recovery is large, and would be compiled again for every type that
/// it is generic over.
pub(super) trait AnyApplier {
    fn apply(&self, ts: Timestamp, entry: Bytes) -> Applied<'_>;

    fn look_back(&self, ts: Timestamp, entry: Bytes) -> Applied<'_>;

    fn looked_back(&self) -> Applied<'_>;

    fn barrier(&self) -> Applied<'_>;
}

impl<A: Applier> AnyApplier for A {
    fn apply(&self, ts: Timestamp, entry: Bytes) -> Applied<'_> {
        Box::pin(Applier::apply(self, ts, entry))
    }

    fn look_back(&self, ts: Timestamp, entry: Bytes) -> Applied<'_> {
        Box::pin(Applier::look_back(self, ts, entry))
    }

    fn looked_back(&self) -> Applied<'_> {
        Box::pin(Applier::looked_back(self))
    }

    fn barrier(&self) -> Applied<'_> {
        Box::pin(Applier::barrier(self))
    }
}
