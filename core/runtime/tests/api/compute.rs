//! Long computations.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use pinion_runtime::{Abandoned, Queue, compute, join_all, offload_bounded, spawn, yield_now};

use crate::suite;

suite! {
    a_computation_borrows_and_gives_its_result(2),
    more_computations_than_threads_all_end(1),
    a_dropped_computation_uses_nothing_any_more(1),
    a_panic_reaches_who_waits(1),
}

async fn a_computation_borrows_and_gives_its_result() {
    let text = String::from("what the task owns");
    let mut changed = vec![1, 2];
    // SAFETY: awaited at once, here and below.
    let length = unsafe {
        compute(Abandoned::default(), || {
            changed.push(3);
            text.len()
        })
    };
    assert_eq!(length.await, text.len());
    assert_eq!(changed, [1, 2, 3]);
}

/// Ends only when another task of the same core has had its turns. A simulated core computes by
/// itself.
#[test]
fn other_tasks_run_meanwhile() {
    crate::on_real("other_tasks_run_meanwhile", 1, || async {
        let abandoned = Abandoned::default();
        let (ends, stop) = (abandoned.clone(), abandoned.clone());
        spawn(Queue::Foreground, async move {
            for _ in 0..10 {
                yield_now().await;
            }
            ends.set();
        });
        // SAFETY: awaited at once.
        let waiting = unsafe {
            compute(abandoned, move || {
                while !stop.is_set() {
                    std::thread::yield_now();
                }
                "ended"
            })
        };
        assert_eq!(waiting.await, "ended");
    });
}

/// What has a known end does not wait for what has none, on however many threads that is.
#[test]
fn a_bounded_computation_waits_for_no_open_one() {
    crate::on_real("a_bounded_computation_waits_for_no_open_one", 1, || async {
        let abandoned = Abandoned::default();
        let endless = (0..20).map(|_| {
            let stop = abandoned.clone();
            spawn(Queue::Foreground, async move {
                let until = stop.clone();
                // SAFETY: awaited at once.
                let waiting = unsafe {
                    compute(stop, move || {
                        while !until.is_set() {
                            std::thread::yield_now();
                        }
                    })
                };
                waiting.await;
            })
        });
        let endless: Vec<_> = endless.collect();
        // All of them are where computations go.
        for _ in 0..10 {
            yield_now().await;
        }
        assert_eq!(offload_bounded(|| 7).await, 7);
        abandoned.set();
        assert!(join_all(endless).await.iter().all(Result::is_ok));
    });
}

async fn more_computations_than_threads_all_end() {
    let tasks = (0..50_u64).map(|i| {
        // SAFETY: all are awaited.
        unsafe { compute(Abandoned::default(), move || (0..i * 1000).sum::<u64>()) }
    });
    let sums = join_all(tasks).await;
    assert_eq!(sums[10], (0..10_000).sum());
    assert_eq!(sums.len(), 50);
}

async fn a_dropped_computation_uses_nothing_any_more() {
    for started in [false, true] {
        let abandoned = Abandoned::default();
        let mut data = vec![0_u8; 1 << 16];
        {
            let stop = abandoned.clone();
            let work = || {
                let mut rounds = 0;
                while !stop.is_set() && rounds < 10_000 {
                    data.fill(rounds as u8);
                    rounds += 1;
                }
            };
            // SAFETY: dropped at the end of this block.
            let mut running = pin!(unsafe { compute(abandoned, work) });
            if started {
                poll_fn(|context| {
                    let _ = running.as_mut().poll(context);
                    Poll::Ready(())
                })
                .await;
            }
        }
        let first = data[0];
        assert!(data.iter().all(|byte| *byte == first));
        data.clear();
    }
}

async fn a_panic_reaches_who_waits() {
    let failing = async {
        // SAFETY: awaited at once.
        unsafe { compute(Abandoned::default(), || panic!("as the test wants")) }.await
    };
    let mut failing = pin!(failing);
    let panicked = poll_fn(|context| {
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            failing.as_mut().poll(context)
        }));
        match polled {
            Ok(Poll::Ready(())) => Poll::Ready(false),
            Ok(Poll::Pending) => Poll::Pending,
            Err(_) => Poll::Ready(true),
        }
    });
    assert!(panicked.await);
}
