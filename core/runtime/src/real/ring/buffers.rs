//! The ring of provided receive buffers of one core: memory that the kernel picks from when bytes
//! arrive.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::uring::Uring;
use crate::real::limits::{RECV_BUFFER_BYTES, RECV_BUFFERS};

/// The group id of the only buffer group.
pub(in crate::real) const GROUP: u16 = 0;

/// Receive buffers shared with the kernel. A buffer belongs to the kernel until a completion names
/// it, then to us until it is given back.
pub(in crate::real) struct RecvBuffers {
    /// First entry of the shared ring; `RECV_BUFFERS` entries, page-aligned, mapped by us.
    ring: NonNull<BufRingEntry>,
    /// `RECV_BUFFERS` buffers of `RECV_BUFFER_BYTES`, `STRIDE` apart, mapped by us.
    memory: NonNull<u8>,
    tail: u16,
    published: u16,
    /// Whether we own buffer i. The kernel never touches an owned one.
    owned: Vec<bool>,
}

const RING_BYTES: usize = RECV_BUFFERS as usize * std::mem::size_of::<BufRingEntry>();
/// Buffers are a cache line more than their size apart: at a power of two the beginnings of all of
/// them, which is where small messages lie, would compete for the same few sets of the processor's
/// caches.
const STRIDE: usize = RECV_BUFFER_BYTES + 64;
const MEMORY_BYTES: usize = (RECV_BUFFERS as usize * STRIDE).next_multiple_of(HUGE_PAGE);
const HUGE_PAGE: usize = 2 << 20;

impl RecvBuffers {
    /// Maps the memory and registers it with the ring. The ring must be dropped before the value
    /// made here.
    pub fn register(uring: &Uring) -> io::Result<RecvBuffers> {
        let ring = map(RING_BYTES)?.cast::<BufRingEntry>();
        let memory = match map(MEMORY_BYTES) {
            Ok(memory) => memory,
            Err(error) => {
                unmap(ring.cast(), RING_BYTES);
                return Err(error);
            }
        };
        // SAFETY: advice about our own mapping; without huge pages it works as well.
        unsafe { libc::madvise(memory.as_ptr().cast(), MEMORY_BYTES, libc::MADV_HUGEPAGE) };
        let mut buffers = RecvBuffers {
            ring,
            memory,
            tail: 0,
            published: 0,
            owned: vec![true; RECV_BUFFERS as usize],
        };
        // SAFETY: the mapping is RING_BYTES long and lives until `buffers` is dropped, which the
        // core's state does after the ring.
        unsafe {
            uring.submitter().register_buf_ring_with_flags(
                ring.as_ptr() as u64,
                RECV_BUFFERS,
                GROUP,
                0,
            )?;
        }
        for index in 0..RECV_BUFFERS {
            buffers.give_back(index);
        }
        buffers.publish();
        Ok(buffers)
    }

    /// Takes ownership of the buffer that a completion named.
    pub fn take(&mut self, index: u16) {
        let owned = &mut self.owned[index as usize];
        assert!(
            !*owned,
            "the kernel handed out receive buffer {index} twice"
        );
        *owned = true;
    }

    /// The bytes of an owned buffer.
    pub fn bytes(&self, index: u16, from: usize, to: usize) -> &[u8] {
        assert!(self.owned[index as usize] && from <= to && to <= RECV_BUFFER_BYTES);
        // SAFETY: the range lies inside the mapping; the buffer is owned, so the kernel does not
        // write to it, and giving it back needs `&mut self`.
        unsafe {
            let start = self.memory.as_ptr().add(index as usize * STRIDE + from);
            std::slice::from_raw_parts(start, to - from)
        }
    }

    /// Gives an owned buffer back; the kernel sees it after the next [`RecvBuffers::publish`].
    pub fn give_back(&mut self, index: u16) {
        let owned = &mut self.owned[index as usize];
        assert!(*owned, "receive buffer {index} given back twice");
        *owned = false;
        let slot = (self.tail & (RECV_BUFFERS - 1)) as usize;
        // SAFETY: the slot lies inside the ring. At most RECV_BUFFERS entries are outstanding
        // because each buffer is given back once, so the kernel does not read this slot before the
        // tail is published. Writing the fields one by one leaves the tail, which shares the first
        // entry's memory, alone.
        unsafe {
            let entry = &mut *self.ring.as_ptr().add(slot);
            entry.set_addr(self.memory.as_ptr().add(index as usize * STRIDE) as u64);
            entry.set_len(RECV_BUFFER_BYTES as u32);
            entry.set_bid(index);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Lets the kernel see all buffers given back.
    pub fn publish(&mut self) {
        if self.published == self.tail {
            return;
        }
        // SAFETY: the ring's base is page-aligned and its first entry holds the tail, which the
        // kernel reads with acquire; an aligned u16 may be accessed as an AtomicU16.
        unsafe {
            let tail = BufRingEntry::tail(self.ring.as_ptr()) as *const AtomicU16;
            (*tail).store(self.tail, Ordering::Release);
        }
        self.published = self.tail;
    }
}

impl Drop for RecvBuffers {
    fn drop(&mut self) {
        unmap(self.ring.cast(), RING_BYTES);
        unmap(self.memory, MEMORY_BYTES);
    }
}

fn map(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing
    // memory.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(address.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

fn unmap(address: NonNull<u8>, len: usize) {
    // SAFETY: exactly a mapping made by `map`, unmapped once, by its owner's drop or error path.
    let result = unsafe { libc::munmap(address.as_ptr().cast(), len) };
    debug_assert_eq!(result, 0);
}
