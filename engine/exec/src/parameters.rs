//! Server parameters: those that have an effect here, and those that tell what this node is.

use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_runtime::Duration;
use pinion_wire::idl::{i64_exact, truthy};
use pinion_wire::{Error, ErrorCode, Result, ServerCounters};

use crate::limits::CURSOR_TIMEOUT;

/// The parameters of one core; every core holds the same values.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    pub cursor_timeout: Duration,
    pub notablescan: bool,
    pub max_sort_bytes: i64,
}

/// How commands reach the log: a core-local value, where there is a log.
pub struct LogControl {
    /// The verbosity in force.
    pub get: fn() -> i32,
    /// Takes another one, for all cores.
    pub set: fn(i32),
    /// Begins a new log file; the outcome comes on the channel.
    pub rotate: fn() -> std::sync::mpsc::Receiver<std::io::Result<()>>,
}

fn log_level() -> i32 {
    pinion_runtime::try_core_local::<LogControl>().map_or(0, |source| (source.get)())
}

/// What this core's connection layer looks at.
pub(crate) fn server_counters() -> Rc<ServerCounters> {
    pinion_runtime::try_core_local::<ServerCounters>().unwrap_or_else(|| {
        let counters = Rc::new(ServerCounters::new());
        pinion_runtime::set_core_local(counters.clone());
        counters
    })
}

/// Sets the parameters given at the start (`--setParameter name=value`) on this core.
///
/// # Errors
/// One line that names a parameter that does not exist, cannot be set at start, or has a wrong value.
pub fn set_start_parameters(given: &[(String, String)]) -> std::result::Result<(), String> {
    let state = crate::state::state();
    for (name, text) in given {
        if !Parameters::settable(name).1 {
            return Err(format!(
                "--setParameter {name}={text} is not supported: unknown parameter, or it cannot be set"
            ));
        }
        let value = match (text.as_str(), text.parse::<i64>()) {
            ("true", _) => RawBsonRef::Boolean(true),
            ("false", _) => RawBsonRef::Boolean(false),
            (_, Ok(number)) => RawBsonRef::Int64(number),
            (text, Err(_)) => RawBsonRef::String(text),
        };
        let setting = Parameters::parse(name, value)
            .map_err(|error| format!("--setParameter {name}={text}: {}", error.message))?;
        state.parameters.borrow_mut().set(&setting);
    }
    Ok(())
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            cursor_timeout: CURSOR_TIMEOUT,
            notablescan: false,
            max_sort_bytes: crate::limits::MAX_SORT_BYTES as i64,
        }
    }
}

/// One value, in a form that every core takes.
#[derive(Clone, Debug)]
pub(crate) enum Setting {
    CursorTimeout(Duration),
    LogLevel(i32),
    Quiet(bool),
    NoTableScan(bool),
    MaxSortBytes(i64),
}

/// All parameters that can be asked for, in order.
pub(crate) const NAMES: [&str; 10] = [
    "authenticationMechanisms",
    "cursorTimeoutMillis",
    "enableTestCommands",
    "featureCompatibilityVersion",
    "internalQueryMaxBlockingSortMemoryUsageBytes",
    "journalCommitInterval",
    "logLevel",
    "maxBSONDepth",
    "notablescan",
    "quiet",
];

impl Parameters {
    /// Appends a parameter; false if there is none of that name.
    pub(crate) fn append(&self, name: &str, out: &mut DocBuilder) -> bool {
        self.append_as(name, name, out)
    }

    /// Appends the value of a parameter under another name; false if there is no such parameter.
    pub(crate) fn append_as(&self, parameter: &str, name: &str, out: &mut DocBuilder) -> bool {
        match parameter {
            "authenticationMechanisms" => {
                out.start_array(name).end();
            }
            "cursorTimeoutMillis" => {
                out.append(name, self.cursor_timeout.as_millis() as i64);
            }
            "enableTestCommands" => {
                out.append(name, false);
            }
            "featureCompatibilityVersion" => {
                out.start_document(name).append("version", "7.0").end();
            }
            "internalQueryMaxBlockingSortMemoryUsageBytes" => {
                out.append(name, self.max_sort_bytes);
            }
            "journalCommitInterval" => {
                let storage = &crate::state::state().shared.options.storage;
                out.append(name, storage.journal_commit_interval.as_millis() as i32);
            }
            "logLevel" => {
                out.append(name, log_level());
            }
            "maxBSONDepth" => {
                out.append(name, pinion_bson::MAX_DEPTH as i32);
            }
            "notablescan" => {
                out.append(name, self.notablescan);
            }
            "quiet" => {
                out.append(name, server_counters().quiet.get());
            }
            _ => return false,
        }
        true
    }

    /// Whether a parameter may be set while the node runs, and may be set at its start.
    pub(crate) fn settable(name: &str) -> (bool, bool) {
        match name {
            "cursorTimeoutMillis"
            | "internalQueryMaxBlockingSortMemoryUsageBytes"
            | "logLevel"
            | "notablescan"
            | "quiet" => (true, true),
            _ => (false, false),
        }
    }

    /// Checks a value for a parameter.
    pub(crate) fn parse(name: &str, value: RawBsonRef<'_>) -> Result<Setting> {
        let number = || {
            i64_exact(value).ok_or_else(|| {
                Error::new(
                    ErrorCode::BAD_VALUE,
                    format!(
                        "Failed to parse value {} for parameter {name}",
                        pinion_query::value_text(value)
                    ),
                )
            })
        };
        let at_least = |least: i64| {
            number().and_then(|n| {
                if n < least {
                    return Err(Error::bad_value(format!(
                        "Invalid value for parameter {name}: {n} is not greater than or equal to {least}"
                    )));
                }
                Ok(n)
            })
        };
        let boolean = || match value {
            RawBsonRef::Boolean(_)
            | RawBsonRef::Int32(_)
            | RawBsonRef::Int64(_)
            | RawBsonRef::Double(_) => Ok(truthy(value)),
            _ => Err(Error::bad_value(format!(
                "Failed to parse value {} for parameter {name}",
                pinion_query::value_text(value)
            ))),
        };
        Ok(match name {
            "cursorTimeoutMillis" => {
                Setting::CursorTimeout(Duration::from_millis(at_least(0)? as u64))
            }
            "logLevel" => Setting::LogLevel(at_least(0)?.min(5) as i32),
            "quiet" => Setting::Quiet(boolean()?),
            "notablescan" => Setting::NoTableScan(boolean()?),
            "internalQueryMaxBlockingSortMemoryUsageBytes" => Setting::MaxSortBytes(at_least(0)?),
            _ => {
                return Err(Error::new(
                    ErrorCode::INVALID_OPTIONS,
                    format!(
                        "attempted to set unrecognized parameter [{name}], use help:true to see options "
                    ),
                ));
            }
        })
    }

    pub(crate) fn set(&mut self, setting: &Setting) {
        match setting {
            Setting::CursorTimeout(value) => self.cursor_timeout = *value,
            Setting::LogLevel(value) => {
                if let Some(source) = pinion_runtime::try_core_local::<LogControl>() {
                    (source.set)(*value);
                }
            }
            Setting::Quiet(value) => server_counters().quiet.set(*value),
            Setting::NoTableScan(value) => self.notablescan = *value,
            Setting::MaxSortBytes(value) => self.max_sort_bytes = *value,
        }
    }
}
