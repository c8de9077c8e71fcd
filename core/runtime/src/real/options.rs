//! Options of a node on real hardware, and why one did not start.

use std::fmt;
use std::io;
use std::time::Duration;

use super::sys;

/// How a node runs.
#[derive(Clone, Debug)]
pub struct RealOptions {
    /// The CPU of each core, in order: one core per entry. See [`available_cpus`]. Naming a CPU
    /// twice is allowed.
    pub cpus: Vec<usize>,
    /// How long a core that was busy a moment ago looks for work before it sleeps; zero turns
    /// spinning off. An idle core does not spin.
    pub spin: Duration,
    /// Whether SIGTERM, SIGINT and SIGHUP request shutdown, as long as the node runs.
    pub handle_signals: bool,
    /// What SIGUSR1 asks for, where signals are handled. It runs on a thread that is no core.
    pub on_usr1: Option<fn()>,
    /// What to do every few seconds while the node is quiet, such as giving back memory. It runs on
    /// a thread that is no core.
    pub on_quiet: Option<fn()>,
    /// What to do while the process is larger than it should be, quiet or not. It runs on a thread
    /// that is no core.
    pub on_large: Option<OnLarge>,
    /// What each of the threads for long computations does every few seconds that it has no work,
    /// such as collecting the memory that it made and others have freed.
    pub on_idle: Option<fn()>,
}

/// What to do while the process is larger than it should be, such as giving back memory that is
/// freed and kept.
#[derive(Clone, Copy, Debug)]
pub struct OnLarge {
    /// Gives the process's size in bytes; asked ten times a second.
    pub size: fn() -> u64,
    /// The size above which it is too large.
    pub limit: u64,
    /// What to do then: at once, again when the process has grown by an eighth of the limit since,
    /// and otherwise every second.
    pub act: fn(),
}

impl Default for RealOptions {
    /// Every CPU the process may use, 200 us of spinning, signals handled.
    fn default() -> RealOptions {
        RealOptions {
            cpus: available_cpus().unwrap_or_else(|_| vec![0]),
            spin: Duration::from_micros(200),
            handle_signals: true,
            on_usr1: None,
            on_quiet: None,
            on_large: None,
            on_idle: None,
        }
    }
}

/// The CPUs this process may run on (taskset and cpusets are honoured), in ascending order; never
/// empty.
pub fn available_cpus() -> io::Result<Vec<usize>> {
    let cpus = sys::affinity()?;
    if cpus.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the process's CPU affinity mask is empty",
        ));
    }
    Ok(cpus)
}

/// The CPUs for a node: `wanted` of those this process may use, or all of them.
pub fn choose_cpus(wanted: Option<usize>) -> Result<Vec<usize>, StartError> {
    let mut cpus = available_cpus().map_err(StartError::System)?;
    match wanted {
        None => {}
        Some(0) => {
            return Err(StartError::Options(
                "a node needs at least one CPU".to_owned(),
            ));
        }
        Some(wanted) if wanted > cpus.len() => {
            return Err(StartError::Options(format!(
                "{wanted} CPUs were asked for, but this process may use only {}: {cpus:?}",
                cpus.len()
            )));
        }
        Some(wanted) => cpus.truncate(wanted),
    }
    Ok(cpus)
}

/// Why a node did not start, or stopped before its mains returned. Each prints as one line.
#[derive(Debug)]
pub enum StartError {
    /// The options make no sense.
    Options(String),
    /// A core could not be set up.
    Core {
        core: usize,
        cpu: usize,
        message: String,
    },
    /// A task panicked: an invariant is broken, so the node stopped.
    Panicked { core: usize, message: String },
    /// A thread or descriptor of the runtime itself could not be made.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Options(message) => f.write_str(message),
            StartError::Core { core, cpu, message } => {
                write!(f, "core {core} on CPU {cpu}: {message}")
            }
            StartError::Panicked { core, message } => {
                write!(
                    f,
                    "a task on core {core} panicked, so the node stopped: {message}"
                )
            }
            StartError::System(error) => write!(f, "the runtime could not start: {error}"),
        }
    }
}

impl std::error::Error for StartError {}
