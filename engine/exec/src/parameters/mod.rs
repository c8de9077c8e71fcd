//! Server parameters: those that have an effect here, and those that describe this node.

mod db_check;
mod log_verbosity;
mod memory;
mod replication;
mod storage;
mod ttl;
mod values;

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_catalog::{
    BUILD_LEAST_FREE_BYTES, BUILD_MEMORY_BYTES, BuildLimits, MAX_ACTIVE_USER_BUILDS,
    set_build_limits,
};
use pinion_clock::DEFAULT_MAX_DRIFT_SECS;
use pinion_query::MemoryLimits;
use pinion_runtime::Duration;
use pinion_runtime::sync::Notify;
use pinion_service::feature_version::feature_version;
use pinion_wire::idl::f64_lossy;
use pinion_wire::{Error, ErrorCode, Result, ServerCounters};

use crate::limits::{
    CURSOR_TIMEOUT, KEYS_ROTATION_SECS, LEAST_BUILD_MEMORY_MB, MAX_SERVICE_DESCRIPTOR_BYTES,
    MIN_SPACE_BESIDE_SPILLS_BYTES, MOST_LEAST_FREE_MB, READ_YIELD_DOCUMENTS, READ_YIELD_PERIOD,
    SESSION_TIMEOUT, VALIDATE_MEMORY_MB,
};

pub(crate) use self::db_check::DbCheckParameters;
use self::db_check::DbCheckSetting;
use self::memory::MemoryLimit;
use self::replication::ReplicationSetting;
pub use self::replication::{InitialSyncMethod, ReplicationParameters};
use self::storage::{StorageParameters, StorageSetting};
pub use self::ttl::TtlParameters;
use self::ttl::TtlSetting;
pub use self::values::unreadable;
use self::values::{flag, within};

/// The parameters of one core; every core holds the same values.
#[derive(Clone, Debug)]
pub struct Parameters {
    pub cursor_timeout: Duration,
    pub notablescan: bool,
    /// After how many documents a read looks at the age of its state, and the age at which it takes
    /// a newer one.
    pub read_yield_documents: i32,
    pub read_yield_period: Duration,
    /// What a build of indexes may take of memory, and the least room on the file system for it.
    pub build_memory_mb: i64,
    /// How many builds run at once that clients begin.
    pub most_active_builds: i32,
    /// What the sums of a validation may take.
    pub validate_memory_mb: i64,
    pub build_least_free_mb: i64,
    /// What each stage of an operation may hold in memory.
    pub memory: MemoryLimits,
    pub allow_disk_use_by_default: bool,
    /// Bytes on disk that nothing is spilled into.
    pub spilling_min_available_bytes: i64,
    pub ttl: TtlParameters,
    pub db_check: DbCheckParameters,
    pub replication: ReplicationParameters,
    pub storage: StorageParameters,
    /// Whether `serverStatus` shows the write concerns of writes.
    pub shows_write_concerns: bool,
    /// Whether the commands of tests are there.
    pub enable_test_commands: bool,
    /// How far ahead of the wall clock a cluster time may be that a request gives.
    pub max_clock_drift_secs: u32,
    /// For how long a key signs cluster times.
    pub keys_rotation_secs: u32,
    /// How old a transaction may become, in seconds.
    pub transaction_lifetime_secs: i32,
    /// How long a statement of a transaction waits for a gate, in milliseconds; negative for as
    /// long as it takes.
    pub transaction_lock_timeout_ms: i32,
    /// What an automation agent calls the deployment; kept for it.
    pub automation_service_descriptor: Box<str>,
}

/// How commands reach the log: a core-local value, where there is a log.
pub struct LogControl {
    /// The components that have a verbosity of their own, by their dotted names; the first is what
    /// the others go by.
    pub components: &'static [&'static str],
    /// The verbosity of a component, by its place; negative where it has none of its own.
    pub get: fn(usize) -> i32,
    /// Sets it, for all cores.
    pub set: fn(usize, i32),
    /// Begins a new log file; the outcome comes on the channel.
    pub rotate: fn() -> std::sync::mpsc::Receiver<std::io::Result<()>>,
}

fn log_level() -> i32 {
    pinion_runtime::try_core_local::<LogControl>().map_or(0, |source| (source.get)(0))
}

/// What this core's connection layer looks at.
pub fn server_counters() -> Rc<ServerCounters> {
    pinion_runtime::try_core_local::<ServerCounters>().unwrap_or_else(|| {
        let counters = Rc::new(ServerCounters::new());
        pinion_runtime::set_core_local(counters.clone());
        counters
    })
}

/// Whether the node was started with the commands of tests; asked when its parameters are set.
pub fn test_commands_enabled() -> bool {
    let parameters = parameters();
    let parameters = parameters.borrow();
    parameters.enable_test_commands
}

/// Wakes what waits for a time that a parameter of this core gives, so that it looks at that again.
#[derive(Default)]
pub struct ParameterChanges(pub Notify);

/// This core's.
pub fn parameter_changes() -> Rc<ParameterChanges> {
    pinion_runtime::core_local()
}

/// This core's parameters.
pub fn parameters() -> Rc<RefCell<Parameters>> {
    pinion_runtime::core_local()
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            cursor_timeout: CURSOR_TIMEOUT,
            notablescan: false,
            read_yield_documents: READ_YIELD_DOCUMENTS,
            read_yield_period: READ_YIELD_PERIOD,
            build_memory_mb: (BUILD_MEMORY_BYTES >> 20) as i64,
            most_active_builds: MAX_ACTIVE_USER_BUILDS as i32,
            validate_memory_mb: VALIDATE_MEMORY_MB,
            build_least_free_mb: (BUILD_LEAST_FREE_BYTES >> 20) as i64,
            memory: MemoryLimits::default(),
            allow_disk_use_by_default: true,
            spilling_min_available_bytes: MIN_SPACE_BESIDE_SPILLS_BYTES,
            ttl: TtlParameters::default(),
            db_check: DbCheckParameters::default(),
            replication: ReplicationParameters::default(),
            storage: StorageParameters::default(),
            shows_write_concerns: false,
            enable_test_commands: false,
            max_clock_drift_secs: DEFAULT_MAX_DRIFT_SECS,
            keys_rotation_secs: KEYS_ROTATION_SECS,
            transaction_lifetime_secs: 60,
            transaction_lock_timeout_ms: 5,
            automation_service_descriptor: "".into(),
        }
    }
}

/// A value of `logLevel`: numbers are cut to whole ones, and a flag is one too.
fn log_level_of(value: RawBsonRef<'_>) -> Result<i32> {
    let number = match value {
        RawBsonRef::Boolean(flag) => Some(f64::from(u8::from(flag))),
        value => f64_lossy(value),
    };
    let refused = |reason: &str| {
        Err(Error::bad_value(format!(
            "Invalid value for parameter logLevel: {} {reason}",
            pinion_query::value_text(value)
        )))
    };
    match number {
        None => refused("is not a number"),
        Some(number) if number.is_nan() || number > f64::from(i32::MAX) => {
            refused("does not fit into 32 bits")
        }
        Some(number) if number.trunc() < 0.0 => refused("is not greater than or equal to 0"),
        // There is nothing to log above the highest level.
        Some(number) => Ok((number as i32).min(5)),
    }
}

fn service_descriptor(value: RawBsonRef<'_>) -> Result<Box<str>> {
    let RawBsonRef::String(text) = value else {
        return Err(Error::type_mismatch(
            "Value for parameter automationServiceDescriptor must be of type 'string'",
        ));
    };
    if text.len() > MAX_SERVICE_DESCRIPTOR_BYTES {
        return Err(Error::new(
            ErrorCode::OVERFLOW,
            format!(
                "Value for parameter automationServiceDescriptor must be no more than {MAX_SERVICE_DESCRIPTOR_BYTES} \
                 bytes"
            ),
        ));
    }
    Ok(text.into())
}

/// One value, in a form that every core takes.
#[derive(Clone, Debug)]
pub enum Setting {
    CursorTimeout(Duration),
    LogLevel(i32),
    LogComponents(Vec<(usize, i32)>),
    AutomationServiceDescriptor(Box<str>),
    Quiet(bool),
    NoTableScan(bool),
    ReadYieldDocuments(i32),
    ReadYieldPeriod(Duration),
    EnableTestCommands(bool),
    BuildMemory(i64),
    MostActiveBuilds(i32),
    ValidateMemory(i64),
    BuildLeastFree(i64),
    Memory(&'static MemoryLimit, usize),
    AllowDiskUseByDefault(bool),
    SpillingMinAvailable(i64),
    Ttl(TtlSetting),
    DbCheck(DbCheckSetting),
    Replication(ReplicationSetting),
    Storage(StorageSetting),
    ShowsWriteConcerns(bool),
    MaxClockDrift(u32),
    KeysRotation(u32),
    TransactionLifetime(i32),
    TransactionLockTimeout(i32),
}

/// What stands before the name of a fail point where it is a parameter.
pub const FAIL_POINT_PREFIX: &str = "failpoint.";

/// Whether there is a parameter of this name.
pub fn is_known(name: &str) -> bool {
    let tables = [
        &OWN_NAMES[..],
        &db_check::NAMES,
        &replication::NAMES,
        &storage::NAMES,
    ];
    tables.iter().any(|names| names.contains(&name))
}

/// All parameters that can be asked for, in order.
pub fn names() -> Vec<&'static str> {
    let tables = [
        &OWN_NAMES[..],
        &db_check::NAMES,
        &replication::NAMES,
        &storage::NAMES,
    ];
    let mut names = tables.concat();
    names.sort_unstable();
    names
}

/// Those that are neither of replication, nor of storage, nor of `dbCheck`.
const OWN_NAMES: [&str; 35] = [
    "KeysRotationIntervalSec",
    "allowDiskUseByDefault",
    "authenticationMechanisms",
    "automationServiceDescriptor",
    "cursorTimeoutMillis",
    "enableTestCommands",
    "featureCompatibilityVersion",
    "indexBuildMinAvailableDiskSpaceMB",
    "internalDocumentSourceBucketAutoMaxMemoryBytes",
    "internalDocumentSourceGroupMaxMemoryBytes",
    "internalDocumentSourceSetWindowFieldsMaxMemoryBytes",
    "internalQueryExecYieldIterations",
    "internalQueryExecYieldPeriodMS",
    "internalQueryMaxBlockingSortMemoryUsageBytes",
    "internalQuerySlotBasedExecutionHashAggApproxMemoryUseInBytesBeforeSpill",
    "internalQuerySpillingMinAvailableDiskSpaceBytes",
    "localLogicalSessionTimeoutMinutes",
    "logComponentVerbosity",
    "logLevel",
    "maxAcceptableLogicalClockDriftSecs",
    "maxBSONDepth",
    "maxIndexBuildMemoryUsageMegabytes",
    "maxNumActiveUserIndexBuilds",
    "maxTransactionLockRequestTimeoutMillis",
    "maxValidateMemoryUsageMB",
    "notablescan",
    "quiet",
    "reportOpWriteConcernCountersInServerStatus",
    "transactionLifetimeLimitSeconds",
    "ttlIndexDeleteTargetDocs",
    "ttlIndexDeleteTargetTimeMS",
    "ttlMonitorBatchDeletes",
    "ttlMonitorEnabled",
    "ttlMonitorSleepSecs",
    "ttlMonitorSubPassTargetSecs",
];

impl Parameters {
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

    /// Appends a parameter; false if there is none of that name.
    pub fn append(&self, name: &str, out: &mut DocBuilder) -> bool {
        self.append_as(name, name, out)
    }

    /// Appends the value of a parameter under another name; false if there is no such parameter.
    pub fn append_as(&self, parameter: &str, name: &str, out: &mut DocBuilder) -> bool {
        match parameter {
            "authenticationMechanisms" => {
                out.start_array(name).end();
            }
            "cursorTimeoutMillis" => {
                out.append(name, self.cursor_timeout.as_millis() as i64);
            }
            "enableTestCommands" => {
                out.append(name, self.enable_test_commands);
            }
            "featureCompatibilityVersion" => {
                out.start_document(name)
                    .append("version", feature_version().as_str())
                    .end();
            }
            "allowDiskUseByDefault" => {
                out.append(name, self.allow_disk_use_by_default);
            }
            "internalQuerySpillingMinAvailableDiskSpaceBytes" => {
                out.append(name, self.spilling_min_available_bytes);
            }
            "internalQueryExecYieldIterations" => {
                out.append(name, self.read_yield_documents);
            }
            "internalQueryExecYieldPeriodMS" => {
                out.append(name, self.read_yield_period.as_millis() as i32);
            }
            "indexBuildMinAvailableDiskSpaceMB" => {
                out.append(name, self.build_least_free_mb);
            }
            "maxIndexBuildMemoryUsageMegabytes" => {
                out.append(name, self.build_memory_mb as i32);
            }
            "maxNumActiveUserIndexBuilds" => {
                out.append(name, self.most_active_builds);
            }
            "maxValidateMemoryUsageMB" => {
                out.append(name, self.validate_memory_mb as i32);
            }
            "localLogicalSessionTimeoutMinutes" => {
                out.append(name, (SESSION_TIMEOUT.as_secs() / 60) as i32);
            }
            "reportOpWriteConcernCountersInServerStatus" => {
                out.append(name, self.shows_write_concerns);
            }
            "automationServiceDescriptor" => {
                out.append(name, &*self.automation_service_descriptor);
            }
            "logComponentVerbosity" => log_verbosity::append(name, out),
            "logLevel" => {
                out.append(name, log_level());
            }
            "maxAcceptableLogicalClockDriftSecs" => {
                out.append(name, i64::from(self.max_clock_drift_secs));
            }
            "KeysRotationIntervalSec" => {
                out.append(name, self.keys_rotation_secs as i32);
            }
            "maxBSONDepth" => {
                out.append(name, pinion_bson::MAX_DEPTH as i32);
            }
            "maxTransactionLockRequestTimeoutMillis" => {
                out.append(name, self.transaction_lock_timeout_ms);
            }
            "transactionLifetimeLimitSeconds" => {
                out.append(name, self.transaction_lifetime_secs);
            }
            "notablescan" => {
                out.append(name, self.notablescan);
            }
            "quiet" => {
                out.append(name, server_counters().quiet.get());
            }
            _ => match MemoryLimit::find(parameter) {
                Some(limit) => {
                    out.append(name, limit.get(&self.memory));
                }
                None => {
                    return self.ttl.append_as(parameter, name, out)
                        || self.db_check.append_as(parameter, name, out)
                        || self.storage.append_as(parameter, name, out)
                        || self.replication.append_as(parameter, name, out);
                }
            },
        }
        true
    }

    /// Whether the value of a parameter is true or false.
    pub fn is_flag(&self, name: &str) -> bool {
        let mut out = DocBuilder::new();
        self.append_as(name, "value", &mut out);
        matches!(
            pinion_bson::get(&out.finish(), "value"),
            Some(RawBsonRef::Boolean(_))
        )
    }

    /// Whether the value of a parameter may be a fraction.
    pub fn takes_fraction(name: &str) -> bool {
        ReplicationParameters::takes_fraction(name) || storage::NAMES.contains(&name)
    }

    /// Whether a parameter may be set while the node runs, and may be set at its start.
    pub fn settable(name: &str) -> (bool, bool) {
        match name {
            "automationServiceDescriptor"
            | "cursorTimeoutMillis"
            | "indexBuildMinAvailableDiskSpaceMB"
            | "maxIndexBuildMemoryUsageMegabytes"
            | "maxNumActiveUserIndexBuilds"
            | "allowDiskUseByDefault"
            | "internalQueryExecYieldIterations"
            | "internalQueryExecYieldPeriodMS"
            | "internalQuerySpillingMinAvailableDiskSpaceBytes"
            | "logComponentVerbosity"
            | "logLevel"
            | "maxTransactionLockRequestTimeoutMillis"
            | "maxValidateMemoryUsageMB"
            | "notablescan"
            | "quiet"
            | "transactionLifetimeLimitSeconds"
            | "ttlIndexDeleteTargetDocs"
            | "ttlIndexDeleteTargetTimeMS"
            | "ttlMonitorBatchDeletes"
            | "ttlMonitorEnabled"
            | "ttlMonitorSleepSecs"
            | "ttlMonitorSubPassTargetSecs" => (true, true),
            "enableTestCommands" | "reportOpWriteConcernCountersInServerStatus" => (false, true),
            name if storage::NAMES.contains(&name) => (true, true),
            name if db_check::NAMES.contains(&name) => (true, true),
            "maxAcceptableLogicalClockDriftSecs" | "KeysRotationIntervalSec" => (false, true),
            _ => {
                if let Some(runtime) = ReplicationParameters::settable_at_runtime(name) {
                    return (runtime, true);
                }
                let is_limit = MemoryLimit::find(name).is_some();
                (is_limit, is_limit)
            }
        }
    }

    /// Checks a value for a parameter.
    pub fn parse(name: &str, value: RawBsonRef<'_>) -> Result<Setting> {
        let at_least = |least| within(name, value, least, i64::MAX);
        let within = |least, most| within(name, value, least, most);
        let most = i64::from(i32::MAX);
        Ok(match name {
            "cursorTimeoutMillis" => {
                Setting::CursorTimeout(Duration::from_millis(at_least(0)? as u64))
            }
            "automationServiceDescriptor" => {
                Setting::AutomationServiceDescriptor(service_descriptor(value)?)
            }
            "logComponentVerbosity" => Setting::LogComponents(log_verbosity::parse(value)?),
            "logLevel" => Setting::LogLevel(log_level_of(value)?),
            "quiet" => Setting::Quiet(flag(value)),
            "notablescan" => Setting::NoTableScan(flag(value)),
            "internalQueryExecYieldIterations" => {
                // All negative ones mean the same.
                let documents = within(i64::MIN, most)?;
                Setting::ReadYieldDocuments(documents.max(-1) as i32)
            }
            "internalQueryExecYieldPeriodMS" => {
                let ms = within(0, most)?;
                Setting::ReadYieldPeriod(Duration::from_millis(ms as u64))
            }
            "enableTestCommands" => Setting::EnableTestCommands(flag(value)),
            "reportOpWriteConcernCountersInServerStatus" => {
                Setting::ShowsWriteConcerns(flag(value))
            }
            "maxIndexBuildMemoryUsageMegabytes" => {
                Setting::BuildMemory(within(LEAST_BUILD_MEMORY_MB, most)?)
            }
            "maxNumActiveUserIndexBuilds" => Setting::MostActiveBuilds(within(0, most)? as i32),
            "maxValidateMemoryUsageMB" => Setting::ValidateMemory(within(1, most)?),
            "indexBuildMinAvailableDiskSpaceMB" => {
                Setting::BuildLeastFree(within(0, MOST_LEAST_FREE_MB)?)
            }
            "maxAcceptableLogicalClockDriftSecs" => Setting::MaxClockDrift(within(1, most)? as u32),
            "KeysRotationIntervalSec" => Setting::KeysRotation(within(1, most)? as u32),
            "transactionLifetimeLimitSeconds" => {
                Setting::TransactionLifetime(within(1, most)? as i32)
            }
            "maxTransactionLockRequestTimeoutMillis" => {
                // All negative ones mean the same.
                let ms = within(i64::MIN, most)?;
                Setting::TransactionLockTimeout(ms.max(-1) as i32)
            }
            "allowDiskUseByDefault" => Setting::AllowDiskUseByDefault(flag(value)),
            "internalQuerySpillingMinAvailableDiskSpaceBytes" => {
                Setting::SpillingMinAvailable(at_least(0)?)
            }
            _ => {
                if let Some(setting) = TtlSetting::parse(name, value) {
                    return setting.map(Setting::Ttl);
                }
                if let Some(setting) = DbCheckSetting::parse(name, value) {
                    return setting.map(Setting::DbCheck);
                }
                if let Some(setting) = StorageSetting::parse(name, value) {
                    return setting.map(Setting::Storage);
                }
                if let Some(setting) = ReplicationSetting::parse(name, value) {
                    return setting.map(Setting::Replication);
                }
                if let Some(limit) = MemoryLimit::find(name) {
                    return Ok(Setting::Memory(limit, limit.parse(value)?));
                }
                return Err(Error::new(
                    ErrorCode::INVALID_OPTIONS,
                    format!(
                        "attempted to set unrecognized parameter [{name}], use help:true to see options "
                    ),
                ));
            }
        })
    }

    pub fn set(&mut self, setting: &Setting) {
        match setting {
            Setting::CursorTimeout(value) => self.cursor_timeout = *value,
            Setting::LogLevel(value) => {
                if let Some(source) = pinion_runtime::try_core_local::<LogControl>() {
                    (source.set)(0, *value);
                }
            }
            Setting::LogComponents(verbosities) => {
                if let Some(source) = pinion_runtime::try_core_local::<LogControl>() {
                    for (component, level) in verbosities {
                        (source.set)(*component, *level);
                    }
                }
            }
            Setting::AutomationServiceDescriptor(value) => {
                self.automation_service_descriptor = value.clone();
            }
            Setting::Quiet(value) => server_counters().quiet.set(*value),
            Setting::NoTableScan(value) => self.notablescan = *value,
            Setting::ReadYieldDocuments(value) => self.read_yield_documents = *value,
            Setting::ReadYieldPeriod(value) => self.read_yield_period = *value,
            Setting::EnableTestCommands(value) => self.enable_test_commands = *value,
            Setting::Storage(setting) => self.storage.set(*setting),
            Setting::ShowsWriteConcerns(value) => self.shows_write_concerns = *value,
            Setting::BuildMemory(value) => {
                self.build_memory_mb = *value;
                set_build_limits(self.build_limits());
            }
            Setting::MostActiveBuilds(value) => {
                self.most_active_builds = *value;
                set_build_limits(self.build_limits());
            }
            Setting::ValidateMemory(value) => self.validate_memory_mb = *value,
            Setting::BuildLeastFree(value) => {
                self.build_least_free_mb = *value;
                set_build_limits(self.build_limits());
            }
            Setting::Memory(limit, bytes) => limit.set(&mut self.memory, *bytes),
            Setting::AllowDiskUseByDefault(value) => self.allow_disk_use_by_default = *value,
            Setting::SpillingMinAvailable(value) => self.spilling_min_available_bytes = *value,
            Setting::MaxClockDrift(secs) => self.max_clock_drift_secs = *secs,
            Setting::KeysRotation(secs) => self.keys_rotation_secs = *secs,
            Setting::Replication(setting) => self.replication.set(*setting),
            Setting::DbCheck(setting) => self.db_check.set(*setting),
            Setting::TransactionLifetime(secs) => self.transaction_lifetime_secs = *secs,
            Setting::TransactionLockTimeout(ms) => self.transaction_lock_timeout_ms = *ms,
            Setting::Ttl(setting) => self.ttl.set(*setting),
        }
    }
}

/// The parameters of replication as they are set now.
pub fn replication_parameters() -> ReplicationParameters {
    let parameters = parameters();
    let parameters = parameters.borrow();
    parameters.replication
}
