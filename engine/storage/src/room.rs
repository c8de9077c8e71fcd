//! Room on the disk: background writes that find none wait for it, and meanwhile no new write is
//! taken.
//!
//! A file is made longer before anything is written there, so a full disk fails a growth and no
//! page or frame. Nothing is lost by that: what was acknowledged is in the rings, and a writer that
//! has room again continues where it stopped. After any other failure it is not known what the disk
//! holds, so that is final.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pinion_runtime::{now, sim, sleep};

use crate::limits::{ROOM_PAUSE, ROOM_WARNING_INTERVAL};

/// Whether the disk of a data directory is full, as all cores of a node find it.
#[derive(Debug, Default)]
pub(crate) struct DiskRoom {
    /// Writers that wait for room.
    waiting: AtomicUsize,
    /// How often one began to wait.
    waits: AtomicU64,
    /// The node ends: none waits any longer.
    is_given_up: AtomicBool,
}

/// One writer that waits.
struct Waiting<'a>(&'a DiskRoom);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl DiskRoom {
    /// Whether something waits for room.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// How often something began to wait for room.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Whatever waits fails, and what finds a full disk from now on.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::SeqCst)
    }

    /// Repeats what a full disk fails, until there is room. `attempt` leaves nothing behind when it
    /// fails so.
    ///
    /// # Errors
    /// Any other error of the disk; a full one when the node ends.
    pub(crate) async fn repeat<T>(
        &self,
        what: &str,
        mut attempt: impl AsyncFnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut waiting: Option<Waiting<'_>> = None;
        let mut logged = None;
        loop {
            match attempt().await {
                Err(error) if is_full(&error) && !self.is_given_up() => {
                    if waiting.is_none() {
                        self.waiting.fetch_add(1, Ordering::SeqCst);
                        self.waits.fetch_add(1, Ordering::Relaxed);
                        waiting = Some(Waiting(self));
                        sim::event("disk full");
                    }
                    if logged.is_none_or(|at| now().saturating_since(at) >= ROOM_WARNING_INTERVAL) {
                        logged = Some(now());
                        tracing::warn!(target: "STORAGE", id = 7_300_053u64, what, %error, "The disk is full. Writes are refused until there is room");
                    }
                    sleep(ROOM_PAUSE).await;
                }
                done => {
                    if waiting.take().is_some() && done.is_ok() {
                        tracing::info!(target: "STORAGE", id = 7_300_054u64, what, "There is room on the disk again");
                    }
                    return done;
                }
            }
        }
    }
}

/// Whether an error says that the disk, or the part of it that the process may use, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
