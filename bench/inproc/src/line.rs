//! What a cache line takes from one core to another and back: whatever cores exchange costs at
//! least that.
//!
//! On a virtual machine it changes with where the host runs the processors: measured on one, 50 ns
//! while they shared a cache of the third level, 330 ns while they did not, for seconds or minutes
//! at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pinion_runtime::{CoreId, now, on_all_cores, yield_now};

const ROUND_TRIPS: u32 = 5_000;

/// The only thing on its line, and on the one that is fetched with it.
#[repr(align(128))]
struct Ball(AtomicU32);

/// Nanoseconds for one round trip between cores 0 and 1, which both do nothing else meanwhile.
pub async fn round_trip_ns() -> f64 {
    let ball = Arc::new(Ball(AtomicU32::new(0)));
    let took = on_all_cores(move |core| {
        let ball = ball.clone();
        async move {
            // What the other core is to do has to leave this one first.
            yield_now().await;
            match core {
                CoreId(0) => throw(&ball.0, 1),
                CoreId(1) => throw(&ball.0, 0),
                _ => 0.0,
            }
        }
    })
    .await;
    took[0]
}

/// Adds one whenever the ball is even (`side` 1) or odd (`side` 0). Gives the nanoseconds from the
/// first catch on, for each round.
fn throw(ball: &AtomicU32, side: u32) -> f64 {
    let wait_for = |value| {
        while ball.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    // The other core may be late for the first.
    let first = 1 - side;
    let mut started = now();
    for round in 0..ROUND_TRIPS {
        wait_for(2 * round + first);
        ball.store(2 * round + first + 1, Ordering::Release);
        if round == 1 {
            started = now();
        }
    }
    started.elapsed().as_nanos() as f64 / f64::from(ROUND_TRIPS - 2)
}
