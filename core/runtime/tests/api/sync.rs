//! Synchronisation within a core.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_runtime::sync::{
    Gate, GateClosed, Notify, Semaphore, SendError, SenderDropped, TrySendError, WaitGroup,
    channel, oneshot,
};
use pinion_runtime::{Duration, Elapsed, Queue, sleep, spawn, timeout, yield_now};

use crate::suite;

suite! {
    a_notification_wakes_one_or_all(1),
    a_notification_is_kept_for_one_who_comes_later(1),
    a_dropped_wait_passes_its_notification_on(1),
    a_wait_made_before_notify_all_is_done(1),
    permits_go_in_order_of_arrival(1),
    a_dropped_acquire_gives_its_permits_back(1),
    permits_can_be_split_and_forgotten(1),
    one_value_goes_through_a_oneshot(1),
    a_full_channel_makes_its_sender_wait(1),
    a_channel_ends_with_either_side(1),
    a_gate_waits_for_those_inside(1),
    a_wait_group_waits_for_all(1),
}

const SHORT: Duration = Duration::from_micros(200);

async fn a_notification_wakes_one_or_all() {
    let notify = Notify::new();
    let woken = Rc::new(Cell::new(0));
    let tasks: Vec<_> = (0..5)
        .map(|_| {
            let (notify, woken) = (notify.clone(), woken.clone());
            spawn(Queue::Foreground, async move {
                notify.notified().await;
                woken.set(woken.get() + 1);
            })
        })
        .collect();
    while notify.waiting() < 5 {
        yield_now().await;
    }
    notify.notify_one();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(woken.get(), 1);
    notify.notify_all();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(woken.get(), 5);
    assert_eq!(
        timeout(SHORT, notify.notified()).await,
        Err(Elapsed),
        "notify_all leaves nothing for later"
    );
}

async fn a_notification_is_kept_for_one_who_comes_later() {
    let notify = Notify::new();
    notify.notify_one();
    notify.notify_one();
    notify.notified().await;
    assert_eq!(timeout(SHORT, notify.notified()).await, Err(Elapsed));
    assert_eq!(notify.waiting(), 0);
}

async fn a_dropped_wait_passes_its_notification_on() {
    let notify = Notify::new();
    let mut first = Box::pin(notify.notified());
    let mut second = Box::pin(notify.notified());
    assert!(timeout(SHORT, &mut first).await.is_err());
    assert!(timeout(SHORT, &mut second).await.is_err());
    notify.notify_one();
    drop(first);
    second.await;
}

async fn a_wait_made_before_notify_all_is_done() {
    let notify = Notify::new();
    let wait = notify.notified();
    notify.notify_all();
    wait.await;
}

async fn permits_go_in_order_of_arrival() {
    let semaphore = Semaphore::new(2);
    let held = semaphore.acquire_many(2).await;
    let order = Rc::new(RefCell::new(Vec::new()));
    let mut tasks = Vec::new();
    for (n, want) in [2, 1, 1].into_iter().enumerate() {
        let (semaphore, order) = (semaphore.clone(), order.clone());
        let waiting = semaphore.waiting();
        let name = semaphore.clone();
        tasks.push(spawn(Queue::Foreground, async move {
            let _permit = semaphore.acquire_many(want).await;
            order.borrow_mut().push(n);
            // Held for a while, so that the later ones have to wait for the first.
            sleep(SHORT).await;
        }));
        while name.waiting() == waiting {
            yield_now().await;
        }
    }
    assert!(semaphore.try_acquire().is_none());
    drop(held);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(order.borrow()[0], 0);
    assert_eq!(semaphore.available(), 2);
}

async fn a_dropped_acquire_gives_its_permits_back() {
    let semaphore = Semaphore::new(1);
    let held = semaphore.acquire().await;
    let mut large = Box::pin(semaphore.acquire_many(1));
    let mut next = Box::pin(semaphore.acquire());
    assert!(timeout(SHORT, &mut large).await.is_err());
    assert!(timeout(SHORT, &mut next).await.is_err());
    drop(held);
    // Granted to the first, which goes away without having seen it.
    drop(large);
    drop(next.await);
    assert_eq!((semaphore.available(), semaphore.waiting()), (1, 0));
    // One that waits for more than there is uncovers those behind it when it goes.
    let mut large = Box::pin(semaphore.acquire_many(5));
    assert!(timeout(SHORT, &mut large).await.is_err());
    let mut small = Box::pin(semaphore.acquire());
    assert!(timeout(SHORT, &mut small).await.is_err());
    drop(large);
    drop(small.await);
}

async fn permits_can_be_split_and_forgotten() {
    let semaphore = Semaphore::new(5);
    let mut permit = semaphore.try_acquire_many(4).unwrap();
    let part = permit.split(3);
    assert_eq!(
        (permit.count(), part.count(), semaphore.available()),
        (1, 3, 1)
    );
    part.forget();
    drop(permit);
    assert_eq!(semaphore.available(), 2);
    semaphore.add_permits(3);
    assert_eq!(semaphore.available(), 5);
}

async fn one_value_goes_through_a_oneshot() {
    let (sender, receiver) = oneshot();
    let task = spawn(Queue::Foreground, receiver);
    yield_now().await;
    sender.send(5).unwrap();
    assert_eq!(task.await, Ok(Ok(5)));
    let (sender, receiver) = oneshot::<u32>();
    drop(sender);
    assert_eq!(receiver.await, Err(SenderDropped));
    let (sender, receiver) = oneshot();
    drop(receiver);
    assert!(sender.is_closed());
    assert_eq!(sender.send(6), Err(6));
}

async fn a_full_channel_makes_its_sender_wait() {
    let (sender, mut receiver) = channel(2);
    sender.send(1).await.unwrap();
    sender.send(2).await.unwrap();
    assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
    assert!(timeout(SHORT, sender.send(3)).await.is_err());
    let task = spawn(Queue::Foreground, async move {
        for n in 3..100 {
            sender.send(n).await.unwrap();
        }
    });
    let mut received = Vec::new();
    while let Some(n) = receiver.recv().await {
        received.push(n);
        assert!(receiver.len() <= 2);
    }
    assert_eq!(received, (1..100).collect::<Vec<_>>());
    task.await.unwrap();
}

async fn a_channel_ends_with_either_side() {
    let (sender, mut receiver) = channel(1);
    let second = sender.clone();
    sender.send(1).await.unwrap();
    drop(sender);
    assert_eq!(receiver.recv().await, Some(1));
    assert!(timeout(SHORT, receiver.recv()).await.is_err());
    drop(second);
    assert_eq!(receiver.recv().await, None);

    let (sender, receiver) = channel(1);
    sender.send(1).await.unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let sender = sender.clone();
            spawn(Queue::Foreground, async move { sender.send(2).await })
        })
        .collect();
    sleep(SHORT).await;
    drop(receiver);
    for task in waiting {
        assert_eq!(task.await, Ok(Err(SendError(2))));
    }
    assert_eq!(sender.try_send(3), Err(TrySendError::Closed(3)));
    assert!(sender.is_closed());
}

async fn a_gate_waits_for_those_inside() {
    let gate = Gate::new();
    let (first, second) = (gate.enter().unwrap(), gate.enter().unwrap());
    let closing = {
        let gate = gate.clone();
        spawn(Queue::Foreground, async move { gate.close().await })
    };
    while !gate.is_closed() {
        yield_now().await;
    }
    assert!(matches!(gate.enter(), Err(GateClosed)));
    drop(first);
    sleep(SHORT).await;
    assert!(!closing.is_finished());
    drop(second);
    closing.await.unwrap();
    gate.close().await;
    gate.reopen();
    assert!(gate.enter().is_ok());
}

async fn a_wait_group_waits_for_all() {
    let group = WaitGroup::new();
    group.wait().await;
    let done = Rc::new(Cell::new(0));
    for _ in 0..10 {
        let (guard, done) = (group.add(), done.clone());
        spawn(Queue::Background, async move {
            yield_now().await;
            done.set(done.get() + 1);
            drop(guard);
        });
    }
    group.wait().await;
    assert_eq!((done.get(), group.pending()), (10, 0));
}
