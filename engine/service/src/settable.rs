//! A value that every core holds alike.

use std::cell::RefCell;
use std::ops::Deref;

use pinion_runtime::sync::Semaphore;

/// One core's copy of such a value.
pub struct Settable<T> {
    value: RefCell<T>,
    /// One sets it at a time; core 0 has the turn.
    pub turn: Semaphore,
}

impl<T: Default> Default for Settable<T> {
    fn default() -> Settable<T> {
        Settable {
            value: RefCell::default(),
            turn: Semaphore::new(1),
        }
    }
}

impl<T> Deref for Settable<T> {
    type Target = RefCell<T>;

    fn deref(&self) -> &RefCell<T> {
        &self.value
    }
}
