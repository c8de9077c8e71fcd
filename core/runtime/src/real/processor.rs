//! How long a core's thread was ready to run and the kernel gave the processor to others: time that
//! no task held. And how long it was in the kernel, where memory is found for who touches it first.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::limits::WAIT_SAMPLE;
use super::sys;

/// A thread's time on the run queue, from a file of the kernel's: `None` where the kernel does not
/// report it, and then all time counts as the task's.
pub(super) struct WaitClock(Option<File>);

impl WaitClock {
    #[allow(clippy::disallowed_methods)] // A file of the kernel's, in memory: nothing to wait for.
    pub fn of_thread(thread: i32) -> WaitClock {
        WaitClock(File::open(format!("/proc/self/task/{thread}/schedstat")).ok())
    }

    /// Nanoseconds since the thread began: the second of three numbers.
    pub fn read(&self) -> u64 {
        let mut text = [0; 64];
        self.0
            .as_ref()
            .and_then(|file| file.read_at(&mut text, 0).ok())
            .and_then(|length| waited(&text[..length]))
            .unwrap_or(0)
    }
}

/// What of a core's polls was waiting, and what was the kernel's. Reading the clocks takes about a
/// microsecond, so they are read once in a while and not for each poll.
pub(super) struct Waits {
    clock: WaitClock,
    sampled_at: Cell<u64>,
    sampled: Cell<u64>,
    kernel_sampled: Cell<u64>,
}

impl Waits {
    /// Called on the thread that is measured, as all its methods are.
    pub fn new(clock: WaitClock, now: u64) -> Waits {
        let sampled = Cell::new(clock.read());
        Waits {
            clock,
            sampled_at: Cell::new(now),
            sampled,
            kernel_sampled: Cell::new(sys::thread_kernel_ns()),
        }
    }

    /// Called before a poll that begins at `now`.
    pub fn before_poll(&self, now: u64) {
        if now.saturating_sub(self.sampled_at.get()) >= WAIT_SAMPLE.as_nanos() as u64 {
            self.sampled_at.set(now);
            self.sampled.set(self.clock.read());
            self.kernel_sampled.set(sys::thread_kernel_ns());
        }
    }

    /// How long the thread waited for a processor during the poll that has just ended; at most
    /// [`WAIT_SAMPLE`] too much.
    pub fn during_poll(&self) -> u64 {
        self.clock.read().saturating_sub(self.sampled.get())
    }

    /// How long the kernel worked for the thread during that poll; at most a millisecond and a tick
    /// of the kernel's clock too much.
    pub fn in_kernel(&self) -> u64 {
        sys::thread_kernel_ns().saturating_sub(self.kernel_sampled.get())
    }
}

fn waited(schedstat: &[u8]) -> Option<u64> {
    std::str::from_utf8(schedstat)
        .ok()?
        .split_ascii_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_is_the_time_on_the_run_queue() {
        assert_eq!(waited(b"120 54601 1\n"), Some(54601));
        assert_eq!(waited(b"120\n"), None);
        assert_eq!(waited(b""), None);
    }
}
