//! A timer that a poll can wait for, finer than the poll's own milliseconds.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A timerfd.
pub struct Timer(OwnedFd);

impl Timer {
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointer.
        let fd = unsafe {
            libc::timerfd_create(
                libc::CLOCK_MONOTONIC,
                libc::TFD_NONBLOCK | libc::TFD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Fires once after `wait_ns`; whatever was set before is forgotten.
    pub fn set(&self, wait_ns: u64) -> io::Result<()> {
        let spec = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: (wait_ns / 1_000_000_000) as libc::time_t,
                // Zero would disarm it.
                tv_nsec: (wait_ns % 1_000_000_000).max(1) as libc::c_long,
            },
        };
        // SAFETY: `spec` lives during the call; the old value is not asked for.
        let result =
            unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
