//! Time: monotonic instants, wall time, sleeping and time-outs.

use std::future::Future;
use std::ops::{Add, AddAssign, Sub};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

pub use std::time::Duration;

use crate::context::{self, Backend};
use crate::{real, sim};

/// A point in monotonic time, in nanoseconds since an origin that differs between runs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The earliest instant.
    pub const ZERO: Instant = Instant(0);
    /// An instant that is never reached.
    pub const FAR_FUTURE: Instant = Instant(u64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`, zero when `earlier` is later.
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The time passed since this instant.
    pub fn elapsed(self) -> Duration {
        now().saturating_since(self)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, rhs: Duration) -> Instant {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, rhs: Duration) -> Instant {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_sub(nanos))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    fn sub(self, rhs: Instant) -> Duration {
        self.saturating_since(rhs)
    }
}

/// The current monotonic time.
pub fn now() -> Instant {
    context::with(|context| match &context.backend {
        Backend::Real(core) => core.now(),
        Backend::Sim(core) => core.now(),
    })
}

/// Wall-clock time in microseconds since the Unix epoch. It may step in either direction.
pub fn wall_us() -> i64 {
    context::with(|context| match &context.backend {
        Backend::Real(core) => core.wall_us(),
        Backend::Sim(core) => core.wall_us(),
    })
}

/// Wall-clock time in milliseconds since the Unix epoch. It may step in either direction.
pub fn wall_ms() -> i64 {
    wall_us().div_euclid(1000)
}

/// The future of [`sleep`] and [`sleep_until`]. Dropping it cancels the timer.
pub struct Sleep(SleepKind);

enum SleepKind {
    Real(real::RealSleep),
    Sim(sim::SimSleep),
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            SleepKind::Real(sleep) => Pin::new(sleep).poll(cx),
            SleepKind::Sim(sleep) => Pin::new(sleep).poll(cx),
        }
    }
}

/// Completes once `duration` has passed.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(now() + duration)
}

/// Completes once `at` is reached.
pub fn sleep_until(at: Instant) -> Sleep {
    context::with(|context| match &context.backend {
        Backend::Real(core) => Sleep(SleepKind::Real(core.sleep_until(at))),
        Backend::Sim(core) => Sleep(SleepKind::Sim(core.sleep_until(at))),
    })
}

/// The time given to [`timeout`] has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl std::fmt::Display for Elapsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the time limit has passed")
    }
}

impl std::error::Error for Elapsed {}

/// Runs `future` for at most `duration`, then drops it. A future that is ready wins over the time
/// limit.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    timeout_at(now() + duration, future).await
}

/// Runs `future` until `at` at most, then drops it. A future that is ready wins over the time
/// limit.
pub async fn timeout_at<F: Future>(at: Instant, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep: Option<Sleep> = None;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        // The timer is made only when the future has to wait: most never do.
        let sleep = sleep.get_or_insert_with(|| sleep_until(at));
        Pin::new(sleep).poll(cx).map(|()| Err(Elapsed))
    })
    .await
}
