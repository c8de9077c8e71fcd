//! Asking the processor for memory that is about to be needed, so that the waits for it overlap.
//!
//! A page that was not looked at for a while is in no cache of the processor, and each line of it
//! costs a wait as long as hundreds of instructions. What is asked for early is on its way while
//! something else is waited for.

/// Bytes that come from memory at once.
const LINE_BYTES: usize = 64;

/// Asks for the line that holds an address.
#[inline(always)]
pub(super) fn line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can observe, and does not fault at any
    // address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for the lines from an address on that hold `len` bytes.
#[inline(always)]
pub(crate) fn lines(address: usize, len: usize) {
    let mut at = address & !(LINE_BYTES - 1);
    while at < address + len {
        line(at);
        at += LINE_BYTES;
    }
}
