//! The io_uring of one core: submission, waiting, reaping. The only module that enters the kernel
//! for I/O.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, cqueue, squeue, types};

use crate::real::limits::{COMPLETION_ENTRIES, SUBMISSION_ENTRIES};

/// One completion, copied out of the completion queue.
#[derive(Clone, Copy, Debug)]
pub(in crate::real) struct Completion {
    pub user_data: u64,
    pub result: i32,
    pub flags: u32,
}

impl Completion {
    /// Whether a multishot request continues after this completion.
    pub fn more(&self) -> bool {
        cqueue::more(self.flags)
    }

    /// The provided buffer that holds the received bytes.
    pub fn buffer(&self) -> Option<u16> {
        cqueue::buffer_select(self.flags)
    }
}

/// An io_uring used by the thread that made it alone.
pub(in crate::real) struct Uring {
    ring: IoUring,
    /// Entries that found the submission queue full while the kernel refused to take it.
    overflow: VecDeque<squeue::Entry>,
}

impl Uring {
    /// Makes the ring. Task work is deferred to our own enters (kernel 6.1) where the kernel knows
    /// that, so completions come in batches, once a loop turn.
    pub fn new() -> io::Result<Uring> {
        let deferred = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(COMPLETION_ENTRIES)
            .build(SUBMISSION_ENTRIES);
        let ring = match deferred {
            Ok(ring) => ring,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder()
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
                .setup_clamp()
                .setup_cqsize(COMPLETION_ENTRIES)
                .build(SUBMISSION_ENTRIES)?,
            Err(error) => return Err(error),
        };
        Ok(Uring {
            ring,
            overflow: VecDeque::new(),
        })
    }

    /// The submitter, for registrations.
    pub fn submitter(&self) -> io_uring::Submitter<'_> {
        self.ring.submitter()
    }

    /// Queues an entry; it goes to the kernel with the next [`Uring::submit`] or [`Uring::wait`].
    ///
    /// # Safety
    ///
    /// Everything the entry points to must stay valid and unmoved until the request's last
    /// completion was reaped.
    pub unsafe fn push(&mut self, entry: squeue::Entry) {
        if !self.overflow.is_empty() {
            self.overflow.push_back(entry);
            return;
        }
        // SAFETY: the caller keeps what the entry points to alive.
        if unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        // An error here is met again, and reported, by the submit of this turn.
        let _ = self.enter(0, None);
        // SAFETY: as above.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.overflow.push_back(entry);
        }
    }

    /// Hands queued entries to the kernel and lets it post completions, without waiting. No system
    /// call when there is nothing to do.
    pub fn submit(&mut self) -> io::Result<()> {
        loop {
            let queue = self.ring.submission();
            let needed = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
            drop(queue);
            if !needed {
                return Ok(());
            }
            self.enter(0, None)?;
            if !self.refill() {
                return Ok(());
            }
        }
    }

    /// Hands queued entries to the kernel and waits for a completion, at most `timeout`.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.refill();
        self.enter(1, timeout)
    }

    /// Whether completions may be had (by [`Uring::reap`], or by [`Uring::submit`] first): three
    /// loads.
    pub fn has_work(&mut self) -> bool {
        if !self.ring.completion().is_empty() {
            return true;
        }
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Copies all posted completions to the end of `into`.
    pub fn reap(&mut self, into: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            into.push(Completion {
                user_data: entry.user_data(),
                result: entry.result(),
                flags: entry.flags(),
            });
        }
    }

    /// Moves overflowed entries to the submission queue; whether any moved.
    fn refill(&mut self) -> bool {
        let mut moved = false;
        while let Some(entry) = self.overflow.front() {
            // SAFETY: the caller that queued the entry keeps what it points to alive (see `push`).
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                break;
            }
            self.overflow.pop_front();
            moved = true;
        }
        moved
    }

    fn enter(&mut self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        let queued = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        let result = match timeout {
            Some(timeout) if want > 0 => {
                let timespec = types::Timespec::new()
                    .sec(timeout.as_secs())
                    .nsec(timeout.subsec_nanos());
                let args = types::SubmitArgs::new().timespec(&timespec);
                submitter.submit_with_args(want as usize, &args)
            }
            // SAFETY: no argument structure is passed, and the flags ask for nothing but
            // completions.
            _ => unsafe {
                submitter.enter::<libc::sigset_t>(queued, want, EnterFlags::GETEVENTS.bits(), None)
            },
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // A timeout, a signal, or a full completion queue, which the coming reap empties.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }
}
