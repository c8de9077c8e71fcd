//! Open transactions as diagnostics show them.

use pinion_clock::Timestamp;
use pinion_runtime::{Duration, Instant};
use pinion_wire::idl::{Lsid, ReadConcern};

use super::open::OpenTransaction;

/// What is shown of a transaction.
#[derive(Clone, Debug)]
pub struct OpenShown {
    pub lsid: Lsid,
    pub number: i64,
    pub read_concern: ReadConcern,
    /// The time of its snapshot.
    pub at: Timestamp,
    pub started: Instant,
    pub started_wall_ms: i64,
    /// How long its statements ran, up to the one that runs now.
    pub active: Duration,
    /// When it is aborted for its age, where its home core reports it.
    pub expires: Option<Instant>,
    /// Since when it has waited for its outcome.
    pub prepared: Option<Instant>,
}

impl OpenShown {
    pub(crate) fn of(open: &OpenTransaction, expires: Option<Instant>) -> OpenShown {
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
