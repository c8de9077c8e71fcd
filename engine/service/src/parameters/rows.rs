//! The parameters of what this crate owns: cursors, memory and spilling, the log, tests.

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::RawBsonRef;
use pinion_query::MemoryLimits;
use pinion_runtime::Duration;
use pinion_wire::idl::f64_lossy;
use pinion_wire::{Error, ErrorCode, Result, ServerCounters};

use super::authentication::{self, Mechanisms, ScramIterations};
use super::log_verbosity::{self, LogControl};
use super::memory;
use super::row::{Row, Setting};
use super::values::{flag, within};
use crate::feature_version::feature_version;
use crate::limits::{
    CURSOR_TIMEOUT, MAX_SERVICE_DESCRIPTOR_BYTES, MIN_SPACE_BESIDE_SPILLS_BYTES, SESSION_TIMEOUT,
};

/// The values of one core; every core holds the same.
#[derive(Clone, Debug)]
pub struct Parameters {
    pub cursor_timeout: Duration,
    /// What each stage of an operation may hold in memory.
    pub memory: MemoryLimits,
    pub allow_disk_use_by_default: bool,
    /// Bytes on disk that nothing is spilled into.
    pub spilling_min_available_bytes: i64,
    /// Whether the commands of tests are there.
    pub enable_test_commands: bool,
    /// What an automation agent calls the deployment; kept for it.
    pub automation_service_descriptor: Box<str>,
    /// By which users may authenticate.
    pub mechanisms: Mechanisms,
    pub scram_iterations: ScramIterations,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            cursor_timeout: CURSOR_TIMEOUT,
            memory: MemoryLimits::default(),
            allow_disk_use_by_default: true,
            spilling_min_available_bytes: MIN_SPACE_BESIDE_SPILLS_BYTES,
            enable_test_commands: false,
            automation_service_descriptor: "".into(),
            mechanisms: Mechanisms::default(),
            scram_iterations: ScramIterations::default(),
        }
    }
}

/// This core's values.
pub fn parameters() -> Rc<RefCell<Parameters>> {
    pinion_runtime::core_local()
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
    parameters().borrow().enable_test_commands
}

/// The rows of this crate.
pub fn rows() -> Vec<Row> {
    [&ROWS[..], &authentication::ROWS, &memory::ROWS].concat()
}

const ROWS: [Row; 11] = [
    Row::always(
        "allowDiskUseByDefault",
        |_, name, out| {
            out.append(name, parameters().borrow().allow_disk_use_by_default);
        },
        |_, value| {
            let allows = flag(value);
            Ok(setting(move |p| p.allow_disk_use_by_default = allows))
        },
    ),
    Row::always(
        "automationServiceDescriptor",
        |_, name, out| {
            let parameters = parameters();
            let parameters = parameters.borrow();
            out.append(name, &*parameters.automation_service_descriptor);
        },
        |_, value| {
            let text = service_descriptor(value)?;
            Ok(setting(move |p| {
                p.automation_service_descriptor = text.clone()
            }))
        },
    ),
    Row::always(
        "cursorTimeoutMillis",
        |_, name, out| {
            let timeout = parameters().borrow().cursor_timeout;
            out.append(name, timeout.as_millis() as i64);
        },
        |name, value| {
            let timeout = Duration::from_millis(within(name, value, 0, i64::MAX)? as u64);
            Ok(setting(move |p| p.cursor_timeout = timeout))
        },
    ),
    Row::startup(
        "enableTestCommands",
        |_, name, out| {
            out.append(name, test_commands_enabled());
        },
        |_, value| {
            let enabled = flag(value);
            Ok(setting(move |p| p.enable_test_commands = enabled))
        },
    ),
    Row::never("featureCompatibilityVersion", |_, name, out| {
        out.start_document(name)
            .append("version", feature_version().as_str())
            .end();
    }),
    Row::always(
        "internalQuerySpillingMinAvailableDiskSpaceBytes",
        |_, name, out| {
            out.append(name, parameters().borrow().spilling_min_available_bytes);
        },
        |name, value| {
            let bytes = within(name, value, 0, i64::MAX)?;
            Ok(setting(move |p| p.spilling_min_available_bytes = bytes))
        },
    ),
    Row::never("localLogicalSessionTimeoutMinutes", |_, name, out| {
        out.append(name, (SESSION_TIMEOUT.as_secs() / 60) as i32);
    }),
    Row::always(
        "logComponentVerbosity",
        |_, name, out| log_verbosity::append(name, out),
        |_, value| {
            let verbosities = log_verbosity::parse(value)?;
            Ok(Setting::new(move || log_verbosity::set(&verbosities)))
        },
    ),
    Row::always(
        "logLevel",
        |_, name, out| {
            out.append(name, log_level());
        },
        |_, value| {
            let level = log_level_of(value)?;
            Ok(Setting::new(move || log_verbosity::set(&[(0, level)])))
        },
    ),
    Row::never("maxBSONDepth", |_, name, out| {
        out.append(name, pinion_bson::MAX_DEPTH as i32);
    }),
    Row::always(
        "quiet",
        |_, name, out| {
            out.append(name, server_counters().quiet.get());
        },
        |_, value| {
            let quiet = flag(value);
            Ok(Setting::new(move || server_counters().quiet.set(quiet)))
        },
    ),
];

/// The setting of a value of [`Parameters`].
pub(super) fn setting(set: impl Fn(&mut Parameters) + Send + Sync + 'static) -> Setting {
    Setting::new(move || set(&mut parameters().borrow_mut()))
}

fn log_level() -> i32 {
    pinion_runtime::try_core_local::<LogControl>().map_or(0, |control| (control.get)(0))
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
