//! Tasks, yielding, core-local values and random streams.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_runtime::sync::Notify;
use pinion_runtime::{
    BACKGROUND_SHARES, Cancelled, Duration, FOREGROUND_SHARES, Instant, Queue, core_count, core_id,
    core_local, foreground_idles, join_all, now, on_all_cores, os_random, random_stream,
    set_background_shares, set_core_local, should_yield, sleep, spawn, stats, try_core_local,
    yield_now,
};

use crate::suite;

suite! {
    a_joined_task_gives_its_output(1),
    a_dropped_handle_leaves_the_task_running(1),
    an_aborted_task_drops_its_future(1),
    a_task_can_be_aborted_before_it_starts(1),
    an_abort_after_the_end_changes_nothing(1),
    tasks_take_turns_when_they_yield(1),
    a_long_task_is_asked_to_yield(1),
    background_work_does_not_stop_the_foreground(1),
    the_background_sees_whether_the_foreground_has_breaks(1),
    the_background_gets_the_shares_that_it_is_given(1),
    join_all_keeps_the_order(1),
    many_tasks_run(1),
    core_locals_are_one_for_each_type_and_core(3),
    random_streams_are_separate(2),
    cores_know_their_numbers(4),
    spawned_tasks_are_counted(1),
}

async fn a_joined_task_gives_its_output() {
    let handle = spawn(Queue::Foreground, async { String::from("done") });
    assert_eq!(handle.await.as_deref(), Ok("done"));
    // Also when it has long finished.
    let handle = spawn(Queue::Background, async { 7 });
    sleep(Duration::from_millis(1)).await;
    assert!(handle.is_finished());
    assert_eq!(handle.await, Ok(7));
}

async fn a_dropped_handle_leaves_the_task_running() {
    let done = Notify::new();
    let signal = done.clone();
    drop(spawn(Queue::Foreground, async move {
        yield_now().await;
        signal.notify_one();
    }));
    done.notified().await;
}

struct SetOnDrop(Rc<Cell<bool>>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

async fn an_aborted_task_drops_its_future() {
    let dropped = Rc::new(Cell::new(false));
    let guard = SetOnDrop(dropped.clone());
    let handle = spawn(Queue::Foreground, async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    yield_now().await;
    assert!(!dropped.get());
    handle.abort();
    assert_eq!(handle.await, Err(Cancelled));
    assert!(dropped.get());
}

async fn a_task_can_be_aborted_before_it_starts() {
    let started = Rc::new(Cell::new(false));
    let flag = started.clone();
    let handle = spawn(Queue::Foreground, async move { flag.set(true) });
    handle.abort();
    assert_eq!(handle.await, Err(Cancelled));
    assert!(!started.get());
}

async fn an_abort_after_the_end_changes_nothing() {
    let handle = spawn(Queue::Foreground, async { 3 });
    while !handle.is_finished() {
        yield_now().await;
    }
    handle.abort();
    assert_eq!(handle.await, Ok(3));
}

async fn tasks_take_turns_when_they_yield() {
    let turns = Rc::new(RefCell::new(Vec::new()));
    let tasks: Vec<_> = (0..2)
        .map(|task| {
            let turns = turns.clone();
            spawn(Queue::Foreground, async move {
                for _ in 0..200 {
                    turns.borrow_mut().push(task);
                    yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let turns = turns.borrow();
    let last_of_first = turns.iter().rposition(|task| *task == 0).unwrap();
    let last_of_second = turns.iter().rposition(|task| *task == 1).unwrap();
    let first_of_first = turns.iter().position(|task| *task == 0).unwrap();
    let first_of_second = turns.iter().position(|task| *task == 1).unwrap();
    assert!(
        first_of_first < last_of_second && first_of_second < last_of_first,
        "one task ran to its end first"
    );
}

async fn a_long_task_is_asked_to_yield() {
    let other_ran = Rc::new(Cell::new(false));
    let flag = other_ran.clone();
    let other = spawn(Queue::Foreground, async move { flag.set(true) });
    let mut yields = 0;
    while yields < 3 {
        if should_yield() {
            yields += 1;
            yield_now().await;
        }
    }
    other.await.unwrap();
    assert!(other_ran.get());
}

async fn background_work_does_not_stop_the_foreground() {
    let stop = Rc::new(Cell::new(false));
    let flag = stop.clone();
    let background = spawn(Queue::Background, async move {
        while !flag.get() {
            yield_now().await;
        }
    });
    let foreground = spawn(Queue::Foreground, async {
        for _ in 0..100 {
            yield_now().await;
        }
    });
    foreground.await.unwrap();
    stop.set(true);
    background.await.unwrap();
}

async fn the_background_sees_whether_the_foreground_has_breaks() {
    let busy = Rc::new(Cell::new(true));
    let works = busy.clone();
    let work = spawn(Queue::Foreground, async move {
        while works.get() {
            yield_now().await;
        }
    });
    let watch = spawn(Queue::Background, async move {
        let before = foreground_idles();
        for _ in 0..20 {
            yield_now().await;
            assert_eq!(foreground_idles(), before);
        }
        busy.set(false);
        sleep(Duration::from_millis(2)).await;
        let after = foreground_idles();
        assert!(after > before);
        // Nothing wakes it meanwhile.
        assert!(foreground_idles() > after);
    });
    watch.await.unwrap();
    work.await.unwrap();
}

/// How the time of a core was divided whose queues always had work.
struct Division {
    counted_from: Instant,
    until: Instant,
    last: Cell<Instant>,
    spent: [Cell<Duration>; 2],
    /// The longest time between two polls: what a machine takes for others, within a queue's time,
    /// counts as the queue's.
    longest: Cell<Duration>,
}

impl Division {
    async fn work(&self, queue: Queue) {
        while now() < self.until {
            let from = now();
            while now() - from < Duration::from_micros(20) && !should_yield() {}
            let passed = now() - self.last.replace(now());
            if self.last.get() > self.counted_from {
                let spent = &self.spent[queue as usize];
                spent.set(spent.get() + passed);
                self.longest.set(self.longest.get().max(passed));
            }
            yield_now().await;
        }
    }
}

async fn check_background_shares(shares: usize) {
    set_background_shares(shares);
    // The scheduler takes note of it, and forgets what was before.
    let division = Rc::new(Division {
        counted_from: now() + Duration::from_millis(50),
        until: now() + Duration::from_millis(400),
        last: Cell::new(now()),
        spent: Default::default(),
        longest: Cell::default(),
    });
    let works = [Queue::Foreground, Queue::Background].map(|queue| {
        let division = division.clone();
        spawn(queue, async move { division.work(queue).await })
    });
    for work in works {
        work.await.unwrap();
    }
    let [foreground, background] = [0, 1].map(|queue| division.spent[queue].get());
    let total = foreground + background;
    let expected = total.mul_f64(shares as f64 / (FOREGROUND_SHARES + shares) as f64);
    assert!(
        background.abs_diff(expected) < total / 20 + division.longest.get() * 3,
        "{shares}: {background:?} of {total:?}, not {expected:?}; once {:?}",
        division.longest.get()
    );
}

async fn the_background_gets_the_shares_that_it_is_given() {
    check_background_shares(BACKGROUND_SHARES).await;
    check_background_shares(400).await;
    set_background_shares(BACKGROUND_SHARES);
}

async fn join_all_keeps_the_order() {
    let outputs = join_all((0..20u64).map(|n| async move {
        sleep(Duration::from_micros(100 * (20 - n))).await;
        n
    }))
    .await;
    assert_eq!(outputs, (0..20).collect::<Vec<_>>());
    assert!(
        join_all(Vec::<std::future::Ready<()>>::new())
            .await
            .is_empty()
    );
}

async fn many_tasks_run() {
    let count = Rc::new(Cell::new(0));
    let handles: Vec<_> = (0..5000)
        .map(|_| {
            let count = count.clone();
            spawn(Queue::Foreground, async move {
                yield_now().await;
                count.set(count.get() + 1);
            })
        })
        .collect();
    for handle in handles {
        handle.await.unwrap();
    }
    assert_eq!(count.get(), 5000);
}

async fn core_locals_are_one_for_each_type_and_core() {
    struct Name(String);
    struct Number(u16);
    assert!(try_core_local::<Name>().is_none());
    on_all_cores(|core| async move {
        assert!(try_core_local::<Number>().is_none());
        set_core_local(Rc::new(Number(core.0)));
        set_core_local(Rc::new(Name(format!("core {core}"))));
    })
    .await;
    let seen =
        on_all_cores(|_| async { (core_local::<Number>().0, core_local::<Name>().0.clone()) })
            .await;
    assert_eq!(
        seen,
        (0..3)
            .map(|core| (core, format!("core {core}")))
            .collect::<Vec<_>>()
    );
    set_core_local(Rc::new(Number(99)));
    assert_eq!(core_local::<Number>().0, 99);
}

async fn random_streams_are_separate() {
    let draw = |name| {
        (0..4)
            .map(|_| 0)
            .scan(random_stream(name), |rng, _: i32| Some(rng.next_u64()))
            .collect::<Vec<_>>()
    };
    let (first, second, third) = (draw("one"), draw("two"), draw("one"));
    assert!(first != second && second != third && first != third);
    let streams = on_all_cores(|_| async { random_stream("cores").next_u64() }).await;
    assert_ne!(streams[0], streams[1]);
    let mut rng = random_stream("numbers");
    let mut seen = [false; 10];
    for _ in 0..1000 {
        seen[rng.below(10) as usize] = true;
        assert!((0.0..1.0).contains(&rng.f64()));
        assert!((5..=6).contains(&rng.between(5, 6)));
    }
    assert_eq!(seen, [true; 10]);
    let mut bytes = [0; 37];
    os_random(&mut bytes);
    assert!(bytes.iter().any(|byte| *byte != 0));
}

async fn cores_know_their_numbers() {
    assert_eq!((core_id().0, core_count()), (0, 4));
    let seen = on_all_cores(|core| async move { (core == core_id(), core_count()) }).await;
    assert_eq!(seen, vec![(true, 4); 4]);
}

async fn spawned_tasks_are_counted() {
    let before = stats().tasks_spawned;
    for _ in 0..10 {
        spawn(Queue::Foreground, async {}).await.unwrap();
    }
    assert!(stats().tasks_spawned >= before + 10);
}
