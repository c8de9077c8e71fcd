//! A bare io_uring with provided receive buffers: what the client and the bare-ring server are
//! written on, and the least that any server on io_uring can cost.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

const BUFFERS: u16 = 1024;
const BUFFER_BYTES: usize = 4096;

/// The ring.
pub struct Kit {
    ring: IoUring,
    entries: *mut BufRingEntry,
    memory: *mut u8,
    tail: u16,
}

/// A completion.
#[derive(Clone, Copy)]
pub struct Event {
    pub user_data: u64,
    pub result: i32,
    flags: u32,
}

impl Event {
    pub fn more(&self) -> bool {
        cqueue::more(self.flags)
    }

    pub fn buffer(&self) -> Option<u16> {
        cqueue::buffer_select(self.flags)
    }
}

fn map(len: usize) -> *mut u8 {
    // SAFETY: an anonymous mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED);
    address.cast()
}

impl Kit {
    pub fn new() -> Kit {
        let ring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(8192)
            .build(4096)
            .expect("io_uring");
        let entries =
            map(BUFFERS as usize * std::mem::size_of::<BufRingEntry>()).cast::<BufRingEntry>();
        let memory = map(BUFFERS as usize * BUFFER_BYTES);
        // SAFETY: the mapping lives as long as the process.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(entries as u64, BUFFERS, 0, 0)
                .expect("buffer ring")
        };
        let mut kit = Kit {
            ring,
            entries,
            memory,
            tail: 0,
        };
        (0..BUFFERS).for_each(|buffer| kit.give_back(buffer));
        kit.publish();
        kit
    }

    pub fn bytes(&self, buffer: u16, len: usize) -> &[u8] {
        // SAFETY: inside the mapping; the kernel does not write to a buffer that a completion has
        // named.
        unsafe {
            std::slice::from_raw_parts(
                self.memory.add(buffer as usize * BUFFER_BYTES),
                len.min(BUFFER_BYTES),
            )
        }
    }

    pub fn give_back(&mut self, buffer: u16) {
        // SAFETY: the slot is inside the mapped ring and not yet published.
        unsafe {
            let entry = &mut *self.entries.add((self.tail & (BUFFERS - 1)) as usize);
            entry.set_addr(self.memory.add(buffer as usize * BUFFER_BYTES) as u64);
            entry.set_len(BUFFER_BYTES as u32);
            entry.set_bid(buffer);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    pub fn publish(&mut self) {
        // SAFETY: the tail lies in the first entry of the page-aligned ring.
        unsafe {
            (*(BufRingEntry::tail(self.entries) as *const AtomicU16))
                .store(self.tail, Ordering::Release)
        };
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: callers pass memory that lives until the completion (see `send`).
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit().expect("submit");
        }
    }

    pub fn accept(&mut self, fd: RawFd, user_data: u64) {
        self.push(
            opcode::AcceptMulti::new(Fd(fd))
                .build()
                .user_data(user_data),
        );
    }

    pub fn receive(&mut self, fd: RawFd, user_data: u64) {
        self.push(
            opcode::RecvMulti::new(Fd(fd), 0)
                .build()
                .user_data(user_data),
        );
    }

    /// Sends bytes that the caller keeps unchanged until the completion.
    pub fn send(&mut self, fd: RawFd, bytes: &[u8], user_data: u64) {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        self.push(
            opcode::Send::new(Fd(fd), bytes.as_ptr(), bytes.len() as u32)
                .flags(flags)
                .build()
                .user_data(user_data),
        );
    }

    /// Submits, waits for at least one completion or the time, and collects what has come.
    pub fn turn(&mut self, timeout: Duration, events: &mut Vec<Event>) {
        self.publish();
        if self.ring.completion().is_empty() {
            let time = Timespec::new()
                .sec(timeout.as_secs())
                .nsec(timeout.subsec_nanos());
            let _ = self
                .ring
                .submitter()
                .submit_with_args(1, &SubmitArgs::new().timespec(&time));
        } else {
            let queued = self.ring.submission().len() as u32;
            // SAFETY: no argument is passed.
            let _ = unsafe {
                self.ring.submitter().enter::<libc::sigset_t>(
                    queued,
                    0,
                    EnterFlags::GETEVENTS.bits(),
                    None,
                )
            };
        }
        for entry in self.ring.completion() {
            events.push(Event {
                user_data: entry.user_data(),
                result: entry.result(),
                flags: entry.flags(),
            });
        }
    }
}
