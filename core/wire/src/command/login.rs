//! As whom a connection is logged in.

// A connection belongs to one core, but its operations may be looked at on others: a lock that is
// held while a pointer is copied, and no longer.
#![allow(clippy::disallowed_types, reason = "held while a pointer is copied")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pinion_auth::ResolvedUser;

/// The user of a connection.
#[derive(Debug, Default)]
pub(super) struct Login {
    /// That of the user below, so that it is asked without the lock; 0 while there is none.
    generation: AtomicU64,
    user: Mutex<Option<Arc<ResolvedUser>>>,
}

impl Login {
    pub(super) fn user(&self) -> Option<Arc<ResolvedUser>> {
        if self.generation.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let user = self.user.lock().unwrap_or_else(PoisonError::into_inner);
        user.clone()
    }

    /// # Panics
    /// If the user is of generation 0, which no directory has.
    pub(super) fn set(&self, user: Option<Arc<ResolvedUser>>) {
        let generation = user.as_ref().map_or(0, |user| user.generation);
        assert!(user.is_none() || generation != 0, "generations begin at 1");
        *self.user.lock().unwrap_or_else(PoisonError::into_inner) = user;
        self.generation.store(generation, Ordering::Relaxed);
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
}
