//! The server parameters of what this crate and those below it own: reads, builds of indexes,
//! transactions, cluster times, storage, replication.

mod replication;
mod storage;

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_catalog::{
    BUILD_LEAST_FREE_BYTES, BUILD_MEMORY_BYTES, BuildLimits, MAX_ACTIVE_USER_BUILDS,
    set_build_limits,
};
use pinion_clock::DEFAULT_MAX_DRIFT_SECS;
use pinion_runtime::Duration;
use pinion_service::parameters::{Row, Setting, flag, within};

use crate::limits::{
    KEYS_ROTATION_SECS, LEAST_BUILD_MEMORY_MB, MOST_LEAST_FREE_MB, READ_YIELD_DOCUMENTS,
    READ_YIELD_PERIOD,
};

pub use self::replication::{InitialSyncMethod, ReplicationParameters};
use self::storage::StorageParameters;

/// The values of one core; every core holds the same.
#[derive(Clone, Debug)]
pub struct NodeParameters {
    pub notablescan: bool,
    /// After how many documents a read looks at the age of its state, and the age at which it takes
    /// a newer one.
    pub read_yield_documents: i32,
    pub read_yield_period: Duration,
    /// What a build of indexes may take of memory, and the least room on the file system for it.
    pub build_memory_mb: i64,
    pub build_least_free_mb: i64,
    /// How many builds run at once that clients begin.
    pub most_active_builds: i32,
    pub replication: ReplicationParameters,
    pub storage: StorageParameters,
    /// Whether `serverStatus` shows the write concerns of writes.
    pub shows_write_concerns: bool,
    /// How far ahead of the wall clock a cluster time may be that a request gives.
    pub max_clock_drift_secs: u32,
    /// For how long a key signs cluster times.
    pub keys_rotation_secs: u32,
    /// How old a transaction may become, in seconds.
    pub transaction_lifetime_secs: i32,
    /// How long a statement of a transaction waits for a gate, in milliseconds; negative for as
    /// long as it takes.
    pub transaction_lock_timeout_ms: i32,
}

impl Default for NodeParameters {
    fn default() -> NodeParameters {
        NodeParameters {
            notablescan: false,
            read_yield_documents: READ_YIELD_DOCUMENTS,
            read_yield_period: READ_YIELD_PERIOD,
            build_memory_mb: (BUILD_MEMORY_BYTES >> 20) as i64,
            build_least_free_mb: (BUILD_LEAST_FREE_BYTES >> 20) as i64,
            most_active_builds: MAX_ACTIVE_USER_BUILDS as i32,
            replication: ReplicationParameters::default(),
            storage: StorageParameters::default(),
            shows_write_concerns: false,
            max_clock_drift_secs: DEFAULT_MAX_DRIFT_SECS,
            keys_rotation_secs: KEYS_ROTATION_SECS,
            transaction_lifetime_secs: 60,
            transaction_lock_timeout_ms: 5,
        }
    }
}

/// This core's values.
pub fn parameters() -> Rc<RefCell<NodeParameters>> {
    pinion_runtime::core_local()
}

/// The parameters of replication as they are set now.
pub fn replication_parameters() -> ReplicationParameters {
    parameters().borrow().replication
}

impl NodeParameters {
    /// After how many documents a read looks at the age of its state, and the age at which it takes
    /// a newer one.
    pub(crate) fn read_yield(&self) -> (u32, Duration) {
        // It looks after every document where none are to be in between, and without end where it
        // is not to count.
        let documents = u32::try_from(self.read_yield_documents).unwrap_or(u32::MAX);
        (documents.saturating_sub(1), self.read_yield_period)
    }

    /// What a build of indexes that begins now may take.
    pub(crate) fn build_limits(&self) -> BuildLimits {
        let bytes = |megabytes: i64| u64::try_from(megabytes).unwrap_or(0) << 20;
        BuildLimits {
            memory_bytes: bytes(self.build_memory_mb),
            least_free_bytes: bytes(self.build_least_free_mb),
            most_active: usize::try_from(self.most_active_builds).unwrap_or(0),
        }
    }
}

/// The rows of this crate.
pub fn parameter_rows() -> Vec<Row> {
    [&ROWS[..], &storage::ROWS, &replication::ROWS].concat()
}

/// The greatest value of those that have 32 bits.
const MOST: i64 = i32::MAX as i64;

const ROWS: [Row; 11] = [
    Row::startup(
        "KeysRotationIntervalSec",
        |_, name, out| shown(out, name, |p| p.keys_rotation_secs as i32),
        |name, value| {
            let secs = within(name, value, 1, MOST)? as u32;
            Ok(setting(move |p| p.keys_rotation_secs = secs))
        },
    ),
    Row::always(
        "indexBuildMinAvailableDiskSpaceMB",
        |_, name, out| shown(out, name, |p| p.build_least_free_mb),
        |name, value| {
            let megabytes = within(name, value, 0, MOST_LEAST_FREE_MB)?;
            Ok(build_setting(move |p| p.build_least_free_mb = megabytes))
        },
    ),
    Row::always(
        "internalQueryExecYieldIterations",
        |_, name, out| shown(out, name, |p| p.read_yield_documents),
        |name, value| {
            // All negative ones mean the same.
            let documents = within(name, value, i64::MIN, MOST)?.max(-1) as i32;
            Ok(setting(move |p| p.read_yield_documents = documents))
        },
    ),
    Row::always(
        "internalQueryExecYieldPeriodMS",
        |_, name, out| shown(out, name, |p| p.read_yield_period.as_millis() as i32),
        |name, value| {
            let period = Duration::from_millis(within(name, value, 0, MOST)? as u64);
            Ok(setting(move |p| p.read_yield_period = period))
        },
    ),
    Row::startup(
        "maxAcceptableLogicalClockDriftSecs",
        |_, name, out| shown(out, name, |p| i64::from(p.max_clock_drift_secs)),
        |name, value| {
            let secs = within(name, value, 1, MOST)? as u32;
            Ok(setting(move |p| p.max_clock_drift_secs = secs))
        },
    ),
    Row::always(
        "maxIndexBuildMemoryUsageMegabytes",
        |_, name, out| shown(out, name, |p| p.build_memory_mb as i32),
        |name, value| {
            let megabytes = within(name, value, LEAST_BUILD_MEMORY_MB, MOST)?;
            Ok(build_setting(move |p| p.build_memory_mb = megabytes))
        },
    ),
    Row::always(
        "maxNumActiveUserIndexBuilds",
        |_, name, out| shown(out, name, |p| p.most_active_builds),
        |name, value| {
            let builds = within(name, value, 0, MOST)? as i32;
            Ok(build_setting(move |p| p.most_active_builds = builds))
        },
    ),
    Row::always(
        "maxTransactionLockRequestTimeoutMillis",
        |_, name, out| shown(out, name, |p| p.transaction_lock_timeout_ms),
        |name, value| {
            // All negative ones mean the same.
            let ms = within(name, value, i64::MIN, MOST)?.max(-1) as i32;
            Ok(setting(move |p| p.transaction_lock_timeout_ms = ms))
        },
    ),
    Row::always(
        "notablescan",
        |_, name, out| shown(out, name, |p| p.notablescan),
        |_, value| {
            let forbids = flag(value);
            Ok(setting(move |p| p.notablescan = forbids))
        },
    ),
    Row::startup(
        "reportOpWriteConcernCountersInServerStatus",
        |_, name, out| shown(out, name, |p| p.shows_write_concerns),
        |_, value| {
            let shows = flag(value);
            Ok(setting(move |p| p.shows_write_concerns = shows))
        },
    ),
    Row::always(
        "transactionLifetimeLimitSeconds",
        |_, name, out| shown(out, name, |p| p.transaction_lifetime_secs),
        |name, value| {
            let secs = within(name, value, 1, MOST)? as i32;
            Ok(setting(move |p| p.transaction_lifetime_secs = secs))
        },
    ),
];

/// Appends a value of this core under a name.
fn shown<'v, T: Into<RawBsonRef<'v>>>(
    out: &mut DocBuilder,
    name: &str,
    of: impl Fn(&NodeParameters) -> T,
) {
    out.append(name, of(&parameters().borrow()));
}

/// The setting of a value of [`NodeParameters`].
fn setting(set: impl Fn(&mut NodeParameters) + Send + Sync + 'static) -> Setting {
    Setting::new(move || set(&mut parameters().borrow_mut()))
}

/// The setting of a limit of builds, which the catalog goes by.
fn build_setting(set: impl Fn(&mut NodeParameters) + Send + Sync + 'static) -> Setting {
    setting(move |parameters| {
        set(parameters);
        set_build_limits(parameters.build_limits());
    })
}
