//! The doorbell of a core: it is rung only when the core sleeps.
//!
//! A sender publishes a message and then looks whether the receiver sleeps; a receiver says that it
//! is about to sleep and then looks for messages once more. With a sequentially consistent fence
//! between the two steps on both sides, at least one of them sees the other.

use super::primitives::{AtomicBool, Ordering, fence};

/// Shared by a core and all that send to it.
#[repr(align(128))]
pub struct Doorbell {
    sleeping: AtomicBool,
}

impl Doorbell {
    #[allow(
        clippy::new_without_default,
        reason = "loom's atomics have no default either; one way to make it"
    )]
    pub fn new() -> Doorbell {
        Doorbell {
            sleeping: AtomicBool::new(false),
        }
    }

    /// Called by a sender after its push. True when the core sleeps: the caller, and only the
    /// caller, must wake it.
    pub fn ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed)
    }

    /// Called by the core before it parks; it must then look at all its rings once more, and call
    /// [`Doorbell::awake`] instead of parking when one of them is not empty.
    pub fn prepare_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Called by the core when it runs again, or does not park after all.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}
