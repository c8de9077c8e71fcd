//! The allocator: mimalloc, asked for alignment only where its blocks do not have it anyway, and
//! set to keep freed memory.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;

use libmimalloc_sys::{
    mi_collect, mi_free, mi_malloc, mi_malloc_aligned, mi_manage_os_memory_ex, mi_option_set,
    mi_option_set_default, mi_option_t, mi_realloc, mi_realloc_aligned, mi_zalloc,
    mi_zalloc_aligned,
};

/// mimalloc for Rust. The crate of that name asks for an alignment with every block, and above 1
/// KiB mimalloc then takes a slow way, with a larger block.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

/// What every block of at least this size is aligned to (`MI_MAX_ALIGN_SIZE`); smaller ones are to
/// a word.
const BLOCK_ALIGNMENT: usize = 16;
const WORD: usize = size_of::<usize>();

/// Whether a block of this size has the alignment without being asked.
#[inline]
fn is_natural(size: usize, alignment: usize) -> bool {
    alignment <= WORD || (alignment <= BLOCK_ALIGNMENT && size >= BLOCK_ALIGNMENT)
}

// SAFETY: blocks are of the size asked for, and aligned as `is_natural` says or as asked for. All
// are blocks of mimalloc, which frees and resizes them however they were made.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and any power of two is allowed.
        let block = unsafe {
            if is_natural(layout.size(), layout.align()) {
                mi_malloc(layout.size())
            } else {
                mi_malloc_aligned(layout.size(), layout.align())
            }
        };
        block.cast()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe {
            if is_natural(layout.size(), layout.align()) {
                mi_zalloc(layout.size())
            } else {
                mi_zalloc_aligned(layout.size(), layout.align())
            }
        };
        block.cast()
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the caller has it from here.
        unsafe { mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let block: *mut c_void = block.cast();
        // SAFETY: the caller has it from here.
        let block = unsafe {
            if is_natural(size, layout.align()) {
                mi_realloc(block, size)
            } else {
                mi_realloc_aligned(block, size, layout.align())
            }
        };
        block.cast()
    }
}

/// The option for how long freed memory is kept, by its place in mimalloc 3's `mi_option_e`, and
/// that time in milliseconds.
const PURGE_DELAY: mi_option_t = 15;
const PURGE_DELAY_MS: c_long = 150_000;

/// Keeps freed memory for longer than from one checkpoint to the next, unless
/// `MIMALLOC_PURGE_DELAY` says otherwise: what a checkpoint frees, the writes until the next need
/// again, and memory that comes back from the system is cleared on the core that touches it first.
/// Measured on a virtual machine whose host had to find the memory: 4.4 ms for each 2 MiB. With ten
/// seconds, 40 s of YCSB A with a checkpoint every 20 s took 88,000 page faults; kept for longer,
/// 360.
pub fn keep_freed_memory() {
    // SAFETY: sets a number, which the allocator reads atomically.
    unsafe { mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
}

/// The option for how many allocations that need more than a free block at hand lie between two
/// looks through all pages that a thread has blocks in, and the most that mimalloc takes.
const GENERIC_COLLECT: mi_option_t = 34;
const GENERIC_COLLECT_CALLS: c_long = 1_000_000;

/// Looks through a thread's pages a hundred times less often than mimalloc does by itself, unless
/// `MIMALLOC_GENERIC_COLLECT` says otherwise: a core's heap may be all of the node's cache, and the
/// look holds the core. Pages in which others freed the last block are met when the next block of
/// that size is wanted. Measured: 4.4 % of the processor time of inserts into 3 GB.
pub fn look_through_pages_rarely() {
    // SAFETY: sets a number, as above.
    unsafe { mi_option_set_default(GENERIC_COLLECT, GENERIC_COLLECT_CALLS) };
}

/// Keeps freed memory for as long as the process lives, whatever `MIMALLOC_PURGE_DELAY` says.
pub fn keep_freed_memory_forever() {
    // SAFETY: as above; a negative delay never ends.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

/// What mimalloc cuts its arenas into (`MI_BCHUNK_SIZE`): the size of a region that it takes whole.
const CHUNK_BYTES: usize = 32 << 20;

/// The size of a region that has room for `bytes`.
pub fn region_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(CHUNK_BYTES)
}

/// Gives mimalloc memory that stays: it allocates from there before it asks the system for more.
/// False if it does not take it.
///
/// # Safety
/// The region is mapped for as long as the process lives, begins at a multiple of 64 KiB, is
/// zeroed, and has no other owner.
pub unsafe fn take_locked_region(region: Range<usize>) -> bool {
    const ANY_NUMA_NODE: c_int = -1;
    // Committed, pinned, zero, not exclusive.
    // SAFETY: the caller's promise.
    unsafe {
        mi_manage_os_memory_ex(
            region.start as *const c_void,
            region.len(),
            true,
            true,
            true,
            ANY_NUMA_NODE,
            false,
            std::ptr::null_mut(),
        )
    }
}

/// Gives freed memory back to the system at once, whichever thread freed it.
pub fn give_back_freed_memory() {
    // SAFETY: any thread may ask for this at any time.
    unsafe { mi_collect(true) };
}

/// Takes back what this thread allocated and other threads have freed: until the thread that made a
/// block looks, a large one cannot be used by others. Where the memory goes is as with all that is
/// freed.
pub fn collect_freed_by_others() {
    // SAFETY: as above.
    unsafe { mi_collect(false) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_delay_of_purging() {
        // SAFETY: reads a number. 1000 is the default of this option alone.
        let default = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(default, 1000);
    }

    #[test]
    fn the_option_is_the_number_of_calls_between_collections() {
        // SAFETY: as above. 10000 is the default of this option alone.
        let default = unsafe { libmimalloc_sys::mi_option_get(GENERIC_COLLECT) };
        assert_eq!(default, 10_000);
    }

    #[test]
    fn blocks_are_aligned() {
        let sizes = (1..400).chain((1..200).map(|i| i * 517));
        for size in sizes {
            for alignment in [1, 2, 4, 8, 16, 32, 64, 4096] {
                let layout = Layout::from_size_align(size, alignment).expect("a layout");
                // SAFETY: the size is not zero, and the blocks are given back with the layout they
                // have.
                unsafe {
                    let zeroed = Allocator.alloc_zeroed(layout);
                    assert_eq!(*zeroed.add(size - 1), 0);
                    let block = Allocator.alloc(layout);
                    let grown = Allocator.realloc(block, layout, 3 * size);
                    let layout_grown =
                        Layout::from_size_align(3 * size, alignment).expect("a layout");
                    for block in [zeroed, grown] {
                        assert!(
                            block.addr().is_multiple_of(alignment),
                            "{size} bytes, alignment {alignment}: {block:?}"
                        );
                    }
                    Allocator.dealloc(zeroed, layout);
                    Allocator.dealloc(grown, layout_grown);
                }
            }
        }
    }
}
