//! Clocks, timers and time-outs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_runtime::{
    Duration, Elapsed, Instant, Queue, now, sleep, sleep_until, spawn, timeout, wall_ms, wall_us,
    yield_now,
};

use crate::suite;

suite! {
    sleeping_takes_at_least_its_time(1),
    timers_fire_in_the_order_of_their_times(1),
    a_past_instant_is_reached_at_once(1),
    a_dropped_timer_does_nothing(1),
    a_time_limit_drops_the_future(1),
    a_ready_future_wins_over_the_time_limit(1),
    the_clock_never_goes_back(1),
    wall_time_is_of_this_age(1),
    many_timers_of_all_lengths(1),
}

async fn sleeping_takes_at_least_its_time() {
    for micros in [1, 50, 999, 3_000, 20_000] {
        let (start, duration) = (now(), Duration::from_micros(micros));
        sleep(duration).await;
        assert!(
            start.elapsed() >= duration,
            "slept for less than {duration:?}"
        );
    }
}

async fn timers_fire_in_the_order_of_their_times() {
    let order = Rc::new(RefCell::new(Vec::new()));
    let start = now();
    // A task for each: one task would look at all its timers in its own order when it is late.
    let tasks = [50u64, 10, 30, 20, 40].map(|millis| {
        let order = order.clone();
        spawn(Queue::Foreground, async move {
            sleep_until(start + Duration::from_millis(millis)).await;
            order.borrow_mut().push(millis);
        })
    });
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.borrow(), [10, 20, 30, 40, 50]);
}

async fn a_past_instant_is_reached_at_once() {
    sleep_until(Instant::ZERO).await;
    sleep_until(now() - Duration::from_secs(1)).await;
    sleep(Duration::ZERO).await;
}

async fn a_dropped_timer_does_nothing() {
    for _ in 0..1000 {
        assert_eq!(
            timeout(Duration::from_secs(3600), yield_now()).await,
            Ok(())
        );
    }
    let mut never = Box::pin(sleep_until(Instant::FAR_FUTURE));
    assert_eq!(
        timeout(Duration::from_millis(1), &mut never).await,
        Err(Elapsed)
    );
}

async fn a_time_limit_drops_the_future() {
    struct SetOnDrop(Rc<Cell<bool>>);
    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let dropped = Rc::new(Cell::new(false));
    let guard = SetOnDrop(dropped.clone());
    let start = now();
    let result = timeout(Duration::from_millis(5), async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    })
    .await;
    assert_eq!(result, Err(Elapsed));
    assert!(dropped.get() && start.elapsed() >= Duration::from_millis(5));
}

async fn a_ready_future_wins_over_the_time_limit() {
    assert_eq!(timeout(Duration::ZERO, async { 4 }).await, Ok(4));
    let slow = async {
        sleep(Duration::from_millis(1)).await;
        5
    };
    assert_eq!(timeout(Duration::from_secs(600), slow).await, Ok(5));
}

async fn the_clock_never_goes_back() {
    let mut last = now();
    for _ in 0..1000 {
        yield_now().await;
        let next = now();
        assert!(next >= last);
        last = next;
    }
}

async fn wall_time_is_of_this_age() {
    let (millis, micros) = (wall_ms(), wall_us());
    assert!((millis - micros / 1000).abs() < 10_000);
    // Between 2024 and 2100.
    assert!((1_704_067_200_000..4_102_444_800_000).contains(&millis));
    sleep(Duration::from_millis(20)).await;
    assert!(wall_ms() >= millis);
}

async fn many_timers_of_all_lengths() {
    let fired = Rc::new(Cell::new(0));
    let tasks: Vec<_> = (0..2000u64)
        .map(|n| {
            let fired = fired.clone();
            spawn(Queue::Foreground, async move {
                let at = now() + Duration::from_micros(n * 37 % 60_000);
                sleep_until(at).await;
                assert!(now() >= at);
                fired.set(fired.get() + 1);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(fired.get(), 2000);
}
