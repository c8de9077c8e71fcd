//! The pace of a checkpoint: what it asks and reports while it runs.

use pinion_runtime::{Duration, sim, sleep, yield_if_due};

/// The core that a checkpoint's merge runs on, as the merge sees it.
pub(crate) trait Pace {
    /// `bytes` more of the sealed changes are on their way into pages.
    fn merged(&self, bytes: u64);

    /// How long to rest before asking again; zero to continue.
    fn rest(&self) -> Duration;

    /// Some of the sealed changes need no memory any more.
    fn memory_freed(&self);
}

/// Yields to other tasks if they are due, and rests while the checkpoint is ahead of its pace.
pub(crate) async fn rest(pace: &dyn Pace) {
    yield_if_due().await;
    loop {
        let rest = pace.rest();
        if rest.is_zero() {
            return;
        }
        sim::count("rests of a merge", 1);
        sleep(rest).await;
    }
}

/// Of work that no checkpoint waits for: it runs as fast as its queue allows.
pub(crate) struct Unpaced;

impl Pace for Unpaced {
    fn merged(&self, _bytes: u64) {}

    fn rest(&self) -> Duration {
        Duration::ZERO
    }

    fn memory_freed(&self) {}
}

/// As fast as it can; the closure is called when memory is freed.
#[cfg(test)]
impl<F: Fn()> Pace for F {
    fn merged(&self, _bytes: u64) {}

    fn rest(&self) -> Duration {
        Duration::ZERO
    }

    fn memory_freed(&self) {
        self();
    }
}
