//! Aligned buffers for direct file I/O.

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;

use crate::limits::{ALIGN, MAX_IO_BYTES};

/// Bytes at an address that is a multiple of [`ALIGN`], with a capacity that is too. Its length may
/// be anything up to the capacity: writes need whole multiples of [`ALIGN`], reads at the end of a
/// file give less.
pub struct DmaBuf {
    /// Start of the allocation of `capacity` bytes; dangling when that is zero.
    start: NonNull<u8>,
    /// At most `initialized`.
    len: usize,
    /// Bytes from the start on that have been written once; at most `capacity`.
    initialized: usize,
    capacity: usize,
}

// SAFETY: the buffer owns its memory alone, and plain bytes may be used from any thread.
unsafe impl Send for DmaBuf {}
// SAFETY: shared references only read.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// A buffer of `len` zero bytes; its capacity is `len` rounded up to a multiple of [`ALIGN`].
    ///
    /// # Panics
    /// When `len` exceeds [`MAX_IO_BYTES`].
    pub fn zeroed(len: usize) -> DmaBuf {
        assert!(
            len <= MAX_IO_BYTES,
            "a transfer of {len} bytes exceeds the limit of {MAX_IO_BYTES}"
        );
        let mut buffer = DmaBuf::allocate(len, true);
        buffer.len = len;
        buffer
    }

    /// An empty buffer with room for `capacity` bytes, rounded up to a multiple of [`ALIGN`]: for
    /// what is filled from front to back, so that nothing need be cleared first. It may be larger
    /// than one transfer.
    pub fn with_capacity(capacity: usize) -> DmaBuf {
        DmaBuf::allocate(capacity, false)
    }

    fn allocate(least: usize, zeroed: bool) -> DmaBuf {
        let capacity = least.next_multiple_of(ALIGN);
        if capacity == 0 {
            return DmaBuf {
                start: NonNull::dangling(),
                len: 0,
                initialized: 0,
                capacity: 0,
            };
        }
        let layout = DmaBuf::layout(capacity);
        // SAFETY: the layout's size is not zero.
        let start = unsafe {
            if zeroed {
                alloc::alloc_zeroed(layout)
            } else {
                alloc::alloc(layout)
            }
        };
        let Some(start) = NonNull::new(start) else {
            alloc::handle_alloc_error(layout)
        };
        DmaBuf {
            start,
            len: 0,
            initialized: if zeroed { capacity } else { 0 },
            capacity,
        }
    }

    /// A buffer that holds a copy of `bytes`, with zeros up to the next multiple of [`ALIGN`].
    pub fn padded_copy(bytes: &[u8]) -> DmaBuf {
        let mut buffer = DmaBuf::zeroed(bytes.len().next_multiple_of(ALIGN));
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN)
            .expect("a bounded capacity and a constant alignment make a layout")
    }

    /// Allocated bytes, a multiple of [`ALIGN`].
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Shortens the buffer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Sets the length. Bytes between an earlier length and this one are what was last written
    /// there, or zero.
    ///
    /// # Panics
    /// When `len` exceeds what has been written or cleared.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.initialized,
            "a buffer with {} known bytes cannot have {len}",
            self.initialized
        );
        self.len = len;
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// When there is no room for them: the buffer does not grow.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.capacity - self.len,
            "{} bytes more in a buffer of capacity {} that has {}",
            bytes.len(),
            self.capacity,
            self.len
        );
        // SAFETY: there is room for them behind the first `len` bytes, and nothing else refers to
        // the buffer.
        unsafe {
            let end = self.start.as_ptr().add(self.len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), end, bytes.len());
        }
        self.len += bytes.len();
        self.initialized = self.initialized.max(self.len);
    }

    /// Appends zeros up to a length.
    ///
    /// # Panics
    /// When the buffer is longer, or has no room for them.
    pub fn pad_to(&mut self, len: usize) {
        assert!(
            self.len <= len && len <= self.capacity,
            "a buffer of {} bytes and capacity {} padded to {len}",
            self.len,
            self.capacity
        );
        // SAFETY: as for `extend_from_slice`.
        unsafe { std::ptr::write_bytes(self.start.as_ptr().add(self.len), 0, len - self.len) };
        self.len = len;
        self.initialized = self.initialized.max(len);
    }

    /// The buffer as shared immutable bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        if self.capacity > 0 {
            // SAFETY: allocated in `allocate` with this layout, and freed only here.
            unsafe { alloc::dealloc(self.start.as_ptr(), DmaBuf::layout(self.capacity)) }
        }
    }
}

impl Deref for DmaBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` never exceeds `initialized`, and `initialized` never the capacity.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for DmaBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` excludes every other reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for DmaBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DmaBuf")
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_resizable() {
        for len in [0, 1, 4095, 4096, 4097, 100_000] {
            let mut buffer = DmaBuf::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(
                buffer.as_ptr() as usize % if len == 0 { 1 } else { ALIGN },
                0
            );
            assert_eq!(buffer.capacity(), len.next_multiple_of(ALIGN));
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
            buffer.truncate(len / 2);
            assert_eq!(buffer.len(), len / 2);
            buffer.set_len(len);
            let bytes = buffer.into_bytes();
            assert!(bytes.len() == len && bytes.iter().all(|byte| *byte == 7));
        }
        let padded = DmaBuf::padded_copy(b"abc");
        assert_eq!((padded.len(), &padded[..4]), (ALIGN, &b"abc\0"[..]));
    }

    #[test]
    fn a_buffer_is_filled_from_front_to_back() {
        let mut buffer = DmaBuf::with_capacity(5000);
        assert_eq!((buffer.len(), buffer.capacity()), (0, 2 * ALIGN));
        buffer.extend_from_slice(&[7; 4097]);
        buffer.pad_to(2 * ALIGN);
        assert_eq!(buffer.as_ptr() as usize % ALIGN, 0);
        assert_eq!(
            (buffer.len(), buffer[4096], buffer[4097]),
            (2 * ALIGN, 7, 0)
        );
        buffer.truncate(1);
        buffer.set_len(2 * ALIGN);
        assert_eq!((buffer[0], buffer[2 * ALIGN - 1]), (7, 0));
    }

    #[test]
    #[should_panic(expected = "1 bytes more in a buffer")]
    fn a_buffer_does_not_grow() {
        let mut buffer = DmaBuf::with_capacity(ALIGN);
        buffer.extend_from_slice(&[0; ALIGN]);
        buffer.extend_from_slice(&[0]);
    }

    #[test]
    #[should_panic(expected = "known bytes")]
    fn bytes_that_were_never_written_cannot_be_seen() {
        DmaBuf::with_capacity(ALIGN).set_len(1);
    }
}
