//! Fail points: faults that a test has the node show. They can be set only where
//! `enableTestCommands` is.
//!
//! Every core knows what each fail point is set to, and whether one is set at all, which is all
//! that a command looks at where none is. Core 0 alone counts how often each has acted, so
//! `{times: 1}` is once, whichever cores the commands run on.

mod command;
mod mode;
mod start;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_runtime::sync::Semaphore;
use pinion_runtime::{CoreId, Queue, call_on, on_all_cores, submit_to};
use pinion_wire::idl::i64_exact;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

pub use command::{around, fails_get_more, on_retryable_write, time_out};
pub use mode::Mode;
pub use start::set_at_start;

use crate::generate::jitter;
use crate::interrupt::{check, interruptible};
use crate::limits::FAIL_POINT_POLL;

/// The fail points there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailPoint {
    FailCommand,
    FailGetMoreAfterCursorCheckout,
    HangIndexBuildDuringBulkLoadPhase,
    HangIndexBuildDuringCollectionScanPhaseAfterInsertion,
    HangIndexBuildDuringDrainWritesPhase,
    MaxTimeAlwaysTimeOut,
    MaxTimeNeverTimeOut,
    OnPrimaryTransactionalWrite,
    PauseCollectionValidationWithLock,
    StopReplProducer,
}

impl FailPoint {
    /// All of them, in the order of their names.
    pub const ALL: [FailPoint; 10] = [
        FailPoint::FailCommand,
        FailPoint::FailGetMoreAfterCursorCheckout,
        FailPoint::HangIndexBuildDuringBulkLoadPhase,
        FailPoint::HangIndexBuildDuringCollectionScanPhaseAfterInsertion,
        FailPoint::HangIndexBuildDuringDrainWritesPhase,
        FailPoint::MaxTimeAlwaysTimeOut,
        FailPoint::MaxTimeNeverTimeOut,
        FailPoint::OnPrimaryTransactionalWrite,
        FailPoint::PauseCollectionValidationWithLock,
        FailPoint::StopReplProducer,
    ];

    /// MongoDB's name of the fail point.
    pub fn name(self) -> &'static str {
        match self {
            FailPoint::FailCommand => "failCommand",
            FailPoint::FailGetMoreAfterCursorCheckout => "failGetMoreAfterCursorCheckout",
            FailPoint::HangIndexBuildDuringBulkLoadPhase => "hangIndexBuildDuringBulkLoadPhase",
            FailPoint::HangIndexBuildDuringCollectionScanPhaseAfterInsertion => {
                "hangIndexBuildDuringCollectionScanPhaseAfterInsertion"
            }
            FailPoint::HangIndexBuildDuringDrainWritesPhase => {
                "hangIndexBuildDuringDrainWritesPhase"
            }
            FailPoint::MaxTimeAlwaysTimeOut => "maxTimeAlwaysTimeOut",
            FailPoint::MaxTimeNeverTimeOut => "maxTimeNeverTimeOut",
            FailPoint::OnPrimaryTransactionalWrite => "onPrimaryTransactionalWrite",
            FailPoint::PauseCollectionValidationWithLock => "pauseCollectionValidationWithLock",
            FailPoint::StopReplProducer => "stopReplProducer",
        }
    }

    /// The fail point of this name.
    ///
    /// # Errors
    /// FailPointSetFailed (266) where there is none.
    pub fn named(name: &str) -> Result<FailPoint> {
        let found = FailPoint::ALL
            .into_iter()
            .find(|point| point.name() == name);
        found.ok_or_else(|| {
            Error::new(
                ErrorCode::FAIL_POINT_SET_FAILED,
                format!("{name} not found"),
            )
        })
    }

    fn at(self) -> usize {
        self as usize
    }
}

const COUNT: usize = FailPoint::ALL.len();

/// How a fail point is set.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    pub mode: Mode,
    pub data: RawDocumentBuf,
}

impl Configuration {
    /// Reads `mode` and `data`, as the command and the parameter of the start have them.
    pub fn parse(given: &RawDocument) -> Result<Configuration> {
        let mode = Mode::parse(pinion_bson::get(given, "mode"))?;
        let data = match pinion_bson::get(given, "data") {
            None => RawDocumentBuf::new(),
            Some(data) => match data.as_document() {
                Some(data) => data.to_owned(),
                None => {
                    return Err(Error::type_mismatch(
                        "the 'data' option must be a JSON object",
                    ));
                }
            },
        };
        Ok(Configuration { mode, data })
    }
}

/// What a fail point that is on is set to.
#[derive(Debug)]
pub struct Set {
    /// Which setting of its fail point this is, by which core 0 knows what another core speaks of.
    number: u64,
    pub data: RawDocumentBuf,
}

/// The fail points of one core.
pub struct FailPoints {
    /// Whether any is on here.
    is_on: Cell<bool>,
    set: RefCell<[Option<Arc<Set>>; COUNT]>,
    /// Connections that are closed when their command has ended, by their numbers.
    closing: RefCell<BTreeSet<i32>>,
    /// How far each has come; core 0 alone keeps it.
    progress: [Progress; COUNT],
    /// One that sets a fail point at a time; core 0 has it.
    turn: Semaphore,
}

#[derive(Default)]
struct Progress {
    configured: Cell<Mode>,
    mode: Cell<Mode>,
    /// Counts the settings.
    number: Cell<u64>,
    /// How often it has acted since the node started.
    entered: Cell<u64>,
}

/// The fail points that are on.
pub fn fail_points() -> Rc<FailPoints> {
    pinion_runtime::core_local()
}

impl Default for FailPoints {
    fn default() -> FailPoints {
        FailPoints {
            is_on: Cell::new(false),
            set: RefCell::default(),
            closing: RefCell::default(),
            progress: Default::default(),
            turn: Semaphore::new(1),
        }
    }
}

impl FailPoints {
    /// Whether any fail point is on. One that has acted as often as it was set to counts until it
    /// is set to off.
    pub fn any_is_on(&self) -> bool {
        self.is_on.get()
    }

    fn set_to(&self, point: FailPoint) -> Option<Arc<Set>> {
        self.set.borrow()[point.at()].clone()
    }

    fn set(&self, point: FailPoint, to: Option<Arc<Set>>) {
        let mut set = self.set.borrow_mut();
        set[point.at()] = to;
        self.is_on.set(set.iter().any(Option::is_some));
    }

    /// Has this core, which is core 0, count by a configuration from now on; what every core is to
    /// set.
    fn begin(&self, point: FailPoint, configuration: Configuration) -> Option<Arc<Set>> {
        let Configuration { mode, data } = configuration;
        let progress = &self.progress[point.at()];
        let number = progress.number.get() + 1;
        progress.number.set(number);
        progress.configured.set(mode);
        progress.mode.set(mode);
        (mode != Mode::Off).then(|| Arc::new(Set { number, data }))
    }

    /// Whether a fail point acts now for a task that saw this setting of it; on core 0.
    fn acts(&self, point: FailPoint, number: u64) -> bool {
        let progress = &self.progress[point.at()];
        if progress.number.get() != number {
            return false;
        }
        let mut mode = progress.mode.get();
        let acts = mode.advance(draw);
        progress.mode.set(mode);
        if acts {
            progress.entered.set(progress.entered.get() + 1);
        }
        acts
    }

    /// Sets a fail point on this core alone, as the node starts: every core does, with the same
    /// configuration.
    pub fn set_at_start(&self, point: FailPoint, configuration: Configuration) {
        let set = self.begin(point, configuration);
        self.set(point, set);
    }
}

/// A random number from 0 to below 1.
fn draw() -> f64 {
    const STEPS: u64 = 1 << 53;
    jitter(STEPS) as f64 / STEPS as f64
}

/// Whether the fail point acts on something that wants what it is set to: then what that is.
pub async fn enter(point: FailPoint, wants: impl FnOnce(&RawDocument) -> bool) -> Option<Arc<Set>> {
    let set = fail_points().set_to(point)?;
    if !wants(&set.data) {
        return None;
    }
    let number = set.number;
    let acts = call_on(CoreId(0), move || fail_points().acts(point, number)).await;
    acts.then_some(set)
}

/// Sets a fail point on every core, and returns how often it had acted before.
pub async fn configure(point: FailPoint, configuration: Configuration) -> u64 {
    submit_to(CoreId(0), Queue::Foreground, move || async move {
        let points = &fail_points();
        let _turn = points.turn.acquire().await;
        let set = points.begin(point, configuration);
        let before = points.progress[point.at()].entered.get();
        on_all_cores(move |_| {
            let set = set.clone();
            async move { fail_points().set(point, set) }
        })
        .await;
        before
    })
    .await
}

/// Waits while a test has stopped this member from taking over entries of the oplog.
pub async fn fetching_resumed() {
    while enter(FailPoint::StopReplProducer, |_| true).await.is_some() {
        pinion_runtime::sleep(FAIL_POINT_POLL).await;
    }
}

/// Has a validation wait in one partition where a test holds it up: between its documents and its
/// indexes or, where the test names an index and a number in `indexName` and `entries`, behind that
/// entry of the index.
///
/// # Errors
/// The operation is interrupted.
pub async fn hold_validation(ctx: &OpContext, place: Option<(&str, u64)>) -> Result<()> {
    if !fail_points().any_is_on() {
        return Ok(());
    }
    let is_here = move |data: &RawDocument| {
        let index = pinion_bson::get(data, "indexName").and_then(|name| name.as_str());
        let entries = pinion_bson::get(data, "entries").and_then(i64_exact);
        match place {
            None => index.is_none(),
            Some((name, at)) => index == Some(name) && entries == i64::try_from(at).ok(),
        }
    };
    let point = FailPoint::PauseCollectionValidationWithLock;
    while enter(point, is_here).await.is_some() {
        check(ctx)?;
        pinion_runtime::sleep(FAIL_POINT_POLL).await;
    }
    Ok(())
}

/// How often a fail point has acted.
async fn entered(point: FailPoint) -> u64 {
    call_on(CoreId(0), move || {
        fail_points().progress[point.at()].entered.get()
    })
    .await
}

/// Waits until a fail point has acted this many times.
///
/// # Errors
/// The operation is interrupted.
pub async fn wait_entered(ctx: &OpContext, point: FailPoint, times: u64) -> Result<()> {
    let reached = async {
        while entered(point).await < times {
            pinion_runtime::sleep(FAIL_POINT_POLL).await;
        }
    };
    interruptible(ctx, reached).await
}

/// Appends `{mode, data, timesEntered}`, which the parameter of the fail point answers.
pub async fn append(point: FailPoint, name: &str, out: &mut DocBuilder) {
    let (mode, times) = call_on(CoreId(0), move || {
        let progress = &fail_points().progress[point.at()];
        (progress.configured.get(), progress.entered.get())
    })
    .await;
    out.start_document(name).append("mode", mode.number());
    out.start_document("data");
    if let Some(set) = fail_points().set_to(point) {
        out.append_all(&set.data);
    }
    out.end().append("timesEntered", times as i64).end();
}
