//! The atomics of the mesh queues: the processor's, or loom's when the queues are model-checked.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

#[cfg(not(loom))]
pub(super) use std::sync::Arc;

#[cfg(loom)]
pub(super) use loom::sync::Arc;

/// One slot of a ring, reached through a raw pointer so that loom can see every access.
#[cfg(not(loom))]
pub(super) struct SlotCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> SlotCell<T> {
    pub(super) fn new(value: T) -> Self {
        SlotCell(std::cell::UnsafeCell::new(value))
    }

    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

#[cfg(loom)]
pub(super) use loom::cell::UnsafeCell as SlotCell;
