//! What a checkpoint asks while it goes on, and tells.

use pinion_runtime::{Duration, sim, sleep, yield_if_due};

/// The core that a checkpoint's merge runs on, as the merge sees it.
pub(crate) trait Pace {
    /// So many more bytes of sealed changes are on their way into pages.
    fn merged(&self, bytes: u64);

    /// How long to rest now and then ask again; zero to go on.
    fn rest(&self) -> Duration;

    /// Some of the sealed changes need no memory any more.
    fn memory_freed(&self);
}

/// Lets other tasks go on if they are due, and rests while the checkpoint is ahead of its pace.
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

/// Of work that no checkpoint waits for: it goes on as fast as its queue lets it.
pub(crate) struct Unpaced;

impl Pace for Unpaced {
    fn merged(&self, _bytes: u64) {}

    fn rest(&self) -> Duration {
        Duration::ZERO
    }

    fn memory_freed(&self) {}
}

/// As fast as it can; the closure is told of freed memory.
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
