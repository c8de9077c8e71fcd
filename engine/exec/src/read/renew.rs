//! Which state of its partition a scan reads. A read that promises no snapshot keeps none for long:
//! it releases its state between steps, takes a newer one when that is old or gone, and continues
//! behind the last key that it was given.

use pinion_catalog::{GateAccess, core_catalog, from_read_error};
use pinion_clock::Timestamp;
use pinion_runtime::{Duration, Instant, now, sleep};
use pinion_service::interrupt::check;
use pinion_service::metrics::metrics;
use pinion_storage::{BlockRecord, Key, SnapshotPin, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::access::Access;
use super::part::{Output, PartSpec};
use super::scan::{Scan, ScannedDocument};
use super::tail::position_lost;
use crate::acquire::{Renewal, committed, enter_nested};
use crate::cursor_reads::check_still_there;
use crate::limits::{MAX_SNAPSHOT_RETRIES, RENEW_WHEN_SHORT, SNAPSHOT_RETRY_PAUSE};
use crate::options::{PlantedFault, node_options};
use crate::parameters::parameters;

impl Renewal {
    /// The newest state of the kind, and never one before `at`.
    fn newest(self, at: Timestamp) -> Timestamp {
        match self {
            Renewal::Never => at,
            Renewal::Applied => storage().visible().max(at),
            Renewal::Committed => committed().map_or(at, |point| point.max(at)),
        }
    }
}

/// The state that a scan reads.
pub(super) struct Snapshot {
    at: Timestamp,
    /// None before the first step, and between steps.
    pin: Option<SnapshotPin>,
    /// The first step was taken. Until then the parts of a read are to have one state, which is
    /// chosen for all of them.
    has_started: bool,
    taken: Instant,
    /// How many documents are read before the age of the state is examined.
    steps_left: u32,
    /// Where a walk in the order of a capped collection stands, which must not be removed under it.
    position: Option<Key>,
    keeps_position: bool,
    planted: Planted,
}

/// What a planted fault needs.
#[derive(Default)]
struct Planted {
    fault: PlantedFault,
    given: Option<ScannedDocument>,
    is_due: bool,
}

impl Snapshot {
    /// The state that a read begins with.
    pub(super) fn of(spec: &PartSpec) -> Snapshot {
        let keeps_position = spec.collection.options.capped.is_some()
            && !spec.collection.is_oplog()
            && matches!(&spec.access, Access::Collection(access) if !access.descending)
            && spec.output != Output::Count;
        Snapshot {
            at: spec.at,
            pin: None,
            has_started: false,
            taken: now(),
            steps_left: 0,
            position: None,
            keeps_position,
            planted: Planted {
                fault: node_options().planted_fault,
                ..Planted::default()
            },
        }
    }

    /// Whether the state must be looked after before the next step.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        match self.steps_left.checked_sub(1) {
            Some(left) => {
                self.steps_left = left;
                false
            }
            None => true,
        }
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.pin.is_some()
    }

    /// How many documents of a block may be given before the state must be looked after: the one
    /// for which the block was filled, and those that are left.
    pub(super) fn documents_left(&self) -> usize {
        1 + self.steps_left as usize
    }

    /// Notes a document of a block that the scan gives.
    #[inline]
    pub(super) fn passes(&mut self, record: BlockRecord<'_>) {
        if self.keeps_position {
            self.position = Some(record.key());
        }
    }

    /// Notes how many documents of a block were given since it was filled.
    pub(super) fn passed(&mut self, documents: usize) {
        let others = u32::try_from(documents.saturating_sub(1));
        let left = others
            .ok()
            .and_then(|others| self.steps_left.checked_sub(others));
        self.steps_left = left.expect("no more are given than may be");
    }

    /// Whether a planted fault changes which documents are given.
    pub(super) fn plants(&self) -> bool {
        matches!(
            self.planted.fault,
            PlantedFault::RepeatedAtRenewal | PlantedFault::SkippedAtRenewal
        )
    }

    /// Notes what the scan gives.
    #[inline]
    pub(super) fn gives(&mut self, found: &ScannedDocument) {
        if self.keeps_position {
            self.position = Some(found.id.clone());
        }
        if self.planted.fault == PlantedFault::RepeatedAtRenewal {
            self.planted.given = Some(found.clone());
        }
    }
}

impl Scan {
    /// Has the next step check whether the state has become old: the operation was suspended.
    pub(super) fn suspended(&mut self) {
        self.snapshot.steps_left = 0;
    }

    /// Releases the state until the next step. A promised one is kept, but nothing that was read of
    /// it ahead: a transaction may write before the next step.
    pub(super) fn release(&mut self) {
        self.walk.take_back();
        if self.spec.renewal != Renewal::Never {
            self.snapshot.steps_left = 0;
            self.snapshot.pin = None;
            self.walk.release();
        }
    }

    /// Ensures that the state can be read, and is not older than it should be.
    pub(super) async fn look_after(&mut self, ctx: &OpContext) -> Result<()> {
        let (steps, period) = parameters().borrow().read_yield();
        self.snapshot.steps_left = steps;
        let begins = !std::mem::replace(&mut self.snapshot.has_started, true);
        let renews = self.spec.renewal != Renewal::Never && !begins;
        let is_old = renews && self.is_old(period);
        if is_old && self.may_renew_now() {
            return self.renew(ctx).await;
        }
        if self.snapshot.is_pinned() {
            return Ok(());
        }
        match self.partition.pin(self.snapshot.at) {
            Ok(pin) => {
                self.snapshot.pin = Some(pin);
                self.walk.renew(self.at);
                Ok(())
            }
            Err(error) => match from_read_error(error) {
                error if renews && self.renews_after(&error) => self.renew(ctx).await,
                error => Err(error),
            },
        }
    }

    fn is_old(&self, period: Duration) -> bool {
        let age = now().saturating_since(self.snapshot.taken);
        age >= period || (age >= RENEW_WHEN_SHORT && storage().is_short_of_memory())
    }

    /// A read behind no gate does not take the state of a collection that is just being changed,
    /// unless it must.
    fn may_renew_now(&self) -> bool {
        let (catalog, ns) = (core_catalog(), &self.spec.collection.ns);
        let is_open = !self.spec.is_unguarded || catalog.gates().admits(ns, GateAccess::Read);
        is_open && !self.has_new_arrays()
    }

    /// Whether an index of the plan has learned of arrays since the plan was made, which counts on
    /// how many entries a document has. A state without those arrays is better kept while it can
    /// be.
    fn has_new_arrays(&self) -> bool {
        let (planned, current) = (&self.spec.collection, core_catalog().current());
        let Some(now) = current.by_uuid(planned.uuid) else {
            return false;
        };
        let differs = |name: &String| match (planned.index(name), now.index(name)) {
            (Some(planned), Some(now)) => planned.spec.multikey != now.spec.multikey,
            _ => false,
        };
        self.spec.access.indexes().iter().any(differs)
    }

    /// Whether a step that failed can be taken in a newer state.
    pub(super) fn renews_after(&self, error: &Error) -> bool {
        error.code == ErrorCode::SNAPSHOT_TOO_OLD && self.spec.renewal != Renewal::Never
    }

    /// Takes the newest state that the read may take, and continues there.
    ///
    /// # Errors
    /// `QueryPlanKilled` when the collection or an index is gone there, `CappedPositionLost` when
    /// the place in a capped collection is.
    pub(super) async fn renew(&mut self, ctx: &OpContext) -> Result<()> {
        let spec = self.spec.clone();
        assert!(spec.renewal != Renewal::Never, "a promised state was left");
        let mut attempts = 0;
        let (at, pin) = loop {
            check(ctx)?;
            let _pass = match spec.is_unguarded {
                true => Some(enter_nested(ctx, &spec.collection.ns).await?),
                false => None,
            };
            let at = spec.renewal.newest(self.snapshot.at);
            let indexes = spec.access.indexes();
            check_still_there(&spec.collection.ns, spec.collection.uuid, &indexes, None)?;
            match self.partition.pin(at).map_err(from_read_error) {
                Ok(pin) => break (at, pin),
                Err(error) if self.renews_after(&error) && attempts < MAX_SNAPSHOT_RETRIES => {
                    attempts += 1;
                    sleep(SNAPSHOT_RETRY_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        };
        assert!(at >= self.snapshot.at, "a read went back in time");
        self.snapshot.at = at;
        self.snapshot.pin = Some(pin);
        self.snapshot.taken = now();
        self.at = spec.read_at(at);
        if self.has_new_arrays() {
            self.walk.expect_repeats();
        }
        self.walk.continue_at(&spec, &self.partition, self.at);
        self.snapshot.planted.is_due = true;
        metrics().counters.reads_renewed.inc();
        ctx.work().yielded();
        self.check_position().await
    }

    /// What was removed of a capped collection in front of its readers had not been given to this
    /// one.
    async fn check_position(&self) -> Result<()> {
        let Some(position) = &self.snapshot.position else {
            return Ok(());
        };
        let tree = self.spec.collection.tree();
        let read = self.partition.get(tree, position, self.at).await;
        match read.map_err(from_read_error)? {
            Some(_) => Ok(()),
            None => Err(position_lost(position)),
        }
    }

    /// The document that a planted fault has the scan give again behind a renewal.
    pub(super) fn planted_repeat(&mut self) -> Option<ScannedDocument> {
        let planted = &mut self.snapshot.planted;
        if planted.fault != PlantedFault::RepeatedAtRenewal || !planted.is_due {
            return None;
        }
        planted.is_due = false;
        planted.given.take()
    }

    /// Whether a planted fault has the scan pass over its next document.
    pub(super) fn planted_skip(&mut self) -> bool {
        let planted = &mut self.snapshot.planted;
        planted.fault == PlantedFault::SkippedAtRenewal && std::mem::take(&mut planted.is_due)
    }
}
