//! The monitor thread: turns signals into requests and reports tasks that hold a core and do not
//! come back.
//!
//! A core itself counts and reports each poll of more than 10 ms when it ends. The monitor is for
//! polls that do not end: it reads one word a core, ten times a second. From the same words it sees
//! that a node is quiet. As often it looks at the process's size, where that has a limit.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use super::limits::{
    LARGE_GROWTH_PART, LARGE_PERIOD, MONITOR_PERIOD, QUIET, QUIET_POLLS_PER_SEC, STUCK,
};
use super::options::{OnLarge, RealOptions};
use super::processor::WaitClock;
use super::shared::{CoreShared, Node};
use super::sys;

/// Signals that request shutdown.
const SHUTDOWN_SIGNALS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Where the signal handler writes: the eventfd of the node that handles signals, or -1.
static SIGNAL_FD: AtomicI32 = AtomicI32::new(-1);

/// The signal that asked for shutdown last, or 0.
static SHUTDOWN_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// SIGUSR1 came and was not handled yet.
static USR1: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(signal: libc::c_int) {
    match signal {
        libc::SIGUSR1 => USR1.store(true, Ordering::Relaxed),
        _ => SHUTDOWN_SIGNAL.store(signal, Ordering::Relaxed),
    }
    let fd = SIGNAL_FD.load(Ordering::Relaxed);
    if fd >= 0 {
        sys::eventfd_signal(fd);
    }
}

/// Handles the signals that request shutdown, and SIGUSR1 where that means something, from now
/// until dropped.
pub(super) struct SignalHandlers {
    previous: Vec<(libc::c_int, libc::sigaction)>,
    fd: i32,
}

impl SignalHandlers {
    /// Signals then write to `eventfd`, which must outlive the handlers. `None` when another node
    /// has them.
    pub fn install(eventfd: &OwnedFd, with_usr1: bool) -> std::io::Result<Option<SignalHandlers>> {
        let fd = eventfd.as_raw_fd();
        if SIGNAL_FD
            .compare_exchange(-1, fd, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            return Ok(None);
        }
        let mut handlers = SignalHandlers {
            previous: Vec::new(),
            fd,
        };
        let usr1 = with_usr1.then_some(libc::SIGUSR1);
        for signal in SHUTDOWN_SIGNALS.into_iter().chain(usr1) {
            handlers
                .previous
                .push((signal, sys::install_handler(signal, on_signal)?));
        }
        Ok(Some(handlers))
    }
}

impl Drop for SignalHandlers {
    fn drop(&mut self) {
        self.previous
            .iter()
            .for_each(|(signal, previous)| sys::restore_handler(*signal, previous));
        let _ = SIGNAL_FD.compare_exchange(self.fd, -1, Ordering::SeqCst, Ordering::SeqCst);
    }
}

struct Watch {
    heartbeat: u64,
    since_ns: u64,
    /// How long the core's thread had waited for its processor then.
    waited_ns: u64,
    report_at: Duration,
    /// There once the thread runs.
    waits: Option<WaitClock>,
}

impl Watch {
    fn new() -> Watch {
        Watch {
            heartbeat: 0,
            since_ns: 0,
            waited_ns: 0,
            report_at: STUCK,
            waits: None,
        }
    }

    fn waited_ns(&mut self, core: &CoreShared) -> u64 {
        let thread = core.thread.load(Ordering::Acquire);
        if self.waits.is_none() && thread != 0 {
            self.waits = Some(WaitClock::of_thread(thread));
        }
        self.waits.as_ref().map_or(0, WaitClock::read)
    }
}

/// Sees when a node has had little to do for a while.
struct Rest {
    /// Where the window began, and what the cores' heartbeats were together then.
    since_ns: u64,
    beats: u64,
}

impl Rest {
    fn new(now_ns: u64) -> Rest {
        Rest {
            since_ns: now_ns,
            beats: 0,
        }
    }

    /// Whether a window has ended now, and was quiet. Also a quiet one may have had something to
    /// do, if not often.
    fn has_been(&mut self, now_ns: u64, beats: u64, cores: usize) -> bool {
        let window_ns = now_ns - self.since_ns;
        if window_ns < QUIET.as_nanos() as u64 {
            return false;
        }
        // A poll is two beats.
        let polls = beats.wrapping_sub(self.beats) / 2;
        let busy = u128::from(polls) * 1_000_000_000
            > u128::from(window_ns) * u128::from(QUIET_POLLS_PER_SEC) * cores as u128;
        self.since_ns = now_ns;
        self.beats = beats;
        !busy
    }
}

/// Keeps a process from being larger than it should be, as far as it can do something about that.
struct Size {
    on_large: OnLarge,
    /// When something was done last, and the size that remained.
    acted_ns: u64,
    remained: u64,
}

impl Size {
    fn new(on_large: OnLarge) -> Size {
        Size {
            on_large,
            acted_ns: 0,
            remained: 0,
        }
    }

    fn look(&mut self, now_ns: u64) {
        let OnLarge { size, limit, act } = self.on_large;
        let size_now = size();
        let grown = size_now.saturating_sub(self.remained) > limit / LARGE_GROWTH_PART;
        let is_due = grown || now_ns - self.acted_ns >= LARGE_PERIOD.as_nanos() as u64;
        if size_now > limit && is_due {
            act();
            self.acted_ns = now_ns;
            self.remained = size();
        }
    }
}

/// Runs until `stop` is set and `eventfd` signalled.
pub(super) fn run(
    node: Arc<Node>,
    eventfd: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    options: &RealOptions,
) {
    let mut watches: Vec<Watch> = node.cores.iter().map(|_| Watch::new()).collect();
    let mut rest = Rest::new(sys::monotonic_ns());
    let mut size = options.on_large.map(Size::new);
    loop {
        let signalled = sys::eventfd_wait(eventfd.as_raw_fd(), MONITOR_PERIOD);
        if stop.load(Ordering::SeqCst) {
            return;
        }
        if signalled && USR1.swap(false, Ordering::Relaxed) {
            options.on_usr1.inspect(|act| act());
        }
        let signal = SHUTDOWN_SIGNAL.load(Ordering::Relaxed);
        if signalled && signal != 0 && !node.shutdown_requested() {
            tracing::info!(target: "CONTROL", id = 23_377u64, ctx = "SignalHandler", signal, "Received signal");
            tracing::info!(target: "CONTROL", id = 23_378u64, ctx = "SignalHandler", "A signal asked this node to shut down");
            node.request_shutdown();
        }
        let now = sys::monotonic_ns();
        let beats = |core: &Arc<CoreShared>| core.heartbeat.load(Ordering::Relaxed);
        let all_beats = node.cores.iter().map(beats).fold(0, u64::wrapping_add);
        if rest.has_been(now, all_beats, node.cores.len()) {
            options.on_quiet.inspect(|act| act());
        }
        if let Some(size) = &mut size {
            size.look(now);
        }
        for (core, watch) in node.cores.iter().zip(&mut watches) {
            let heartbeat = core.heartbeat.load(Ordering::Relaxed);
            let waited_ns = watch.waited_ns(core);
            if heartbeat != watch.heartbeat || heartbeat.is_multiple_of(2) {
                watch.heartbeat = heartbeat;
                watch.since_ns = now;
                watch.waited_ns = waited_ns;
                watch.report_at = STUCK;
                continue;
            }
            // What others had of the processor meanwhile, the task did not hold.
            let others = waited_ns.saturating_sub(watch.waited_ns);
            let held = Duration::from_nanos((now - watch.since_ns).saturating_sub(others));
            if held >= watch.report_at {
                watch.report_at = held * 2;
                tracing::warn!(
                    target: "CONTROL",
                    id = 7_200_004u64,
                    core = core.id.0,
                    heldMillis = held.as_millis() as u64,
                    "a task holds its core and does not yield"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_process_that_is_too_large_is_reported() {
        static SIZE: AtomicU64 = AtomicU64::new(0);
        static ACTED: AtomicU64 = AtomicU64::new(0);
        let second = LARGE_PERIOD.as_nanos() as u64;
        let mut size = Size::new(OnLarge {
            size: || SIZE.load(Ordering::Relaxed),
            limit: 800,
            act: || {
                ACTED.fetch_add(1, Ordering::Relaxed);
            },
        });
        let mut acts = |now_ns, bytes| {
            SIZE.store(bytes, Ordering::Relaxed);
            let before = ACTED.load(Ordering::Relaxed);
            size.look(now_ns);
            ACTED.load(Ordering::Relaxed) > before
        };
        let start = 5 * second;
        assert!(!acts(start, 800), "that much it may have");
        assert!(acts(start + 1, 801), "it is too large");
        assert!(!acts(start + 2, 901), "it has not grown by much since");
        assert!(acts(start + 3, 902), "it has");
        assert!(!acts(start + second, 902), "it was just now");
        assert!(acts(start + 3 + second, 902), "it is still too large");
        assert!(!acts(start + 3 * second, 800), "it is no more");
    }

    #[test]
    fn a_window_is_quiet_or_busy() {
        let window = QUIET.as_nanos() as u64;
        let busy = 2 * 2 * QUIET_POLLS_PER_SEC * (QUIET.as_secs() + 1);
        let mut rest = Rest::new(0);
        let mut beats = 10;
        assert!(rest.has_been(window, beats, 2));
        beats += busy;
        assert!(!rest.has_been(2 * window, beats, 2), "it is busy");
        assert!(
            !rest.has_been(3 * window - 1, beats, 2),
            "the window goes on"
        );
        beats += busy / 4;
        assert!(rest.has_been(3 * window, beats, 2));
        assert!(rest.has_been(4 * window, beats, 2));
    }
}
