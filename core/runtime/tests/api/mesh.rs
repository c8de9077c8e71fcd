//! Calls between cores, and shutdown.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_runtime::{
    CoreId, Duration, Queue, call_on, core_id, core_local, is_shutdown_requested, join_all,
    on_all_cores, request_shutdown, set_core_local, shutdown_requested, sleep, spawn, stats,
    submit_to, timeout, yield_now,
};

use crate::suite;

suite! {
    a_call_runs_on_its_core(3),
    a_call_to_the_own_core_runs_in_place(2),
    calls_between_two_cores_start_in_order(2),
    cores_that_fill_each_others_queues_continue(2),
    nested_calls_among_all_cores_continue(4),
    a_dropped_call_still_runs(2),
    plain_calls_run_where_they_arrive(3),
    plain_calls_fill_queues_and_continue(2),
    a_dropped_plain_call_still_runs(2),
    calls_carry_large_values(2),
    a_slow_call_does_not_hold_up_others(2),
    messages_are_counted(2),
    all_cores_hear_of_a_shutdown(3),
}

const OTHER: CoreId = CoreId(1);

async fn a_call_runs_on_its_core() {
    for core in 0..3 {
        for queue in [Queue::Foreground, Queue::Background] {
            let ran_on = submit_to(CoreId(core), queue, || async {
                yield_now().await;
                core_id()
            })
            .await;
            assert_eq!(ran_on, CoreId(core));
        }
    }
    assert_eq!(
        on_all_cores(|core| async move { (core, core_id()) }).await,
        [0, 1, 2].map(|n| (CoreId(n), CoreId(n)))
    );
}

async fn a_call_to_the_own_core_runs_in_place() {
    let other_ran = Rc::new(Cell::new(false));
    let flag = other_ran.clone();
    let other = spawn(Queue::Foreground, async move { flag.set(true) });
    assert_eq!(
        submit_to(core_id(), Queue::Foreground, || async { 5 }).await,
        5
    );
    assert!(
        !other_ran.get(),
        "a call in place does not give way to other tasks"
    );
    other.await.unwrap();
}

#[derive(Default)]
struct Log(RefCell<Vec<u32>>);

async fn calls_between_two_cores_start_in_order() {
    submit_to(OTHER, Queue::Foreground, || async {
        set_core_local(Rc::new(Log::default()))
    })
    .await;
    // The closure runs where the request is received, before its future is scheduled among the
    // others.
    let calls = (0..500u32).map(|n| {
        submit_to(OTHER, Queue::Foreground, move || async move {
            core_local::<Log>().0.borrow_mut().push(n);
        })
    });
    join_all(calls).await;
    let mut log = submit_to(OTHER, Queue::Foreground, || async {
        core_local::<Log>().0.borrow().clone()
    })
    .await;
    // Every call ran once; the tasks of one core may overtake each other, the requests may not.
    assert_eq!(log.len(), 500);
    log.sort_unstable();
    assert_eq!(log, (0..500).collect::<Vec<_>>());
}

async fn cores_that_fill_each_others_queues_continue() {
    call_both_ways(|to, n| submit_to(to, Queue::Foreground, move || async move { n })).await;
}

async fn plain_calls_fill_queues_and_continue() {
    call_both_ways(|to, n| call_on(to, move || n)).await;
}

/// Two cores call each other, thousands of calls at once, and each gets its own number back from
/// each.
async fn call_both_ways<Fut>(call: impl Fn(CoreId, u64) -> Fut + Copy + Send + 'static)
where
    Fut: Future<Output = u64> + 'static,
{
    let totals = on_all_cores(move |core| async move {
        let to = CoreId(1 - core.0);
        let calls: Vec<_> = (0..5000u64)
            .map(|n| spawn(Queue::Foreground, call(to, n)))
            .collect();
        let mut total = 0;
        for call in calls {
            total += call.await.unwrap();
        }
        total
    })
    .await;
    assert_eq!(totals, [4999 * 5000 / 2; 2]);
}

async fn plain_calls_run_where_they_arrive() {
    for core in 0..3 {
        let text = "moved there and back".to_owned();
        let (ran_on, text) = call_on(CoreId(core), move || (core_id(), text)).await;
        assert_eq!((ran_on, &*text), (CoreId(core), "moved there and back"));
    }
    submit_to(OTHER, Queue::Foreground, || async {
        set_core_local(Rc::new(Log::default()))
    })
    .await;
    // No task comes between them, so what they do is in their order as well.
    join_all(
        (0..500u32).map(|n| call_on(OTHER, move || core_local::<Log>().0.borrow_mut().push(n))),
    )
    .await;
    let log = call_on(OTHER, || core_local::<Log>().0.borrow().clone()).await;
    assert_eq!(log, (0..500).collect::<Vec<_>>());
}

async fn a_dropped_plain_call_still_runs() {
    call_on(OTHER, || set_core_local(Rc::new(Log::default()))).await;
    {
        let mut call = std::pin::pin!(call_on(OTHER, || core_local::<Log>()
            .0
            .borrow_mut()
            .push(1)));
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
    }
    while call_on(OTHER, || core_local::<Log>().0.borrow().is_empty()).await {
        yield_now().await;
    }
    assert_eq!(
        call_on(OTHER, || core_local::<Log>().0.borrow().clone()).await,
        [1]
    );
}

async fn nested_calls_among_all_cores_continue() {
    /// Goes round all cores and back, without returning in between.
    fn hop(left: u16) -> std::pin::Pin<Box<dyn Future<Output = u64>>> {
        Box::pin(async move {
            if left == 0 {
                return 1;
            }
            let next = CoreId((core_id().0 + 1) % 4);
            submit_to(next, Queue::Foreground, move || hop(left - 1)).await + 1
        })
    }
    let totals = on_all_cores(|_| async {
        let calls: Vec<_> = (0..300).map(|_| spawn(Queue::Foreground, hop(7))).collect();
        let mut total = 0;
        for call in calls {
            total += call.await.unwrap();
        }
        total
    })
    .await;
    assert_eq!(totals, [300 * 8; 4]);
}

struct Seen(Cell<u32>);

async fn a_dropped_call_still_runs() {
    submit_to(OTHER, Queue::Foreground, || async {
        set_core_local(Rc::new(Seen(Cell::new(0))))
    })
    .await;
    for _ in 0..10 {
        let call = submit_to(OTHER, Queue::Foreground, || async {
            sleep(Duration::from_millis(20)).await;
            let seen = core_local::<Seen>();
            seen.0.set(seen.0.get() + 1);
        });
        // Long enough to be sent, too short to be answered.
        let _ = timeout(Duration::from_millis(5), call).await;
    }
    while submit_to(OTHER, Queue::Foreground, || async {
        core_local::<Seen>().0.get()
    })
    .await
        < 10
    {
        sleep(Duration::from_micros(100)).await;
    }
}

async fn calls_carry_large_values() {
    let sent = vec![7u8; 3_000_000];
    let back = submit_to(OTHER, Queue::Background, move || async move {
        let mut sent = sent;
        sent.push(8);
        sent
    })
    .await;
    assert_eq!((back.len(), back.last()), (3_000_001, Some(&8)));
}

async fn a_slow_call_does_not_hold_up_others() {
    let slow = spawn(Queue::Foreground, async {
        submit_to(OTHER, Queue::Foreground, || {
            sleep(Duration::from_millis(30))
        })
        .await;
    });
    for n in 0..100 {
        assert_eq!(
            submit_to(OTHER, Queue::Foreground, move || async move { n }).await,
            n
        );
    }
    slow.await.unwrap();
}

async fn messages_are_counted() {
    let before = stats().mesh_messages;
    for _ in 0..5 {
        submit_to(OTHER, Queue::Foreground, || async {}).await;
    }
    assert!(stats().mesh_messages >= before + 5);
}

async fn all_cores_hear_of_a_shutdown() {
    assert!(!is_shutdown_requested());
    let waiting = spawn(Queue::Foreground, on_all_cores(|_| shutdown_requested()));
    sleep(Duration::from_millis(1)).await;
    assert!(!waiting.is_finished());
    submit_to(CoreId(2), Queue::Foreground, || async {
        request_shutdown()
    })
    .await;
    waiting.await.unwrap();
    assert_eq!(
        on_all_cores(|_| async { is_shutdown_requested() }).await,
        [true; 3]
    );
    // Also for calls that come afterwards.
    shutdown_requested().await;
}
