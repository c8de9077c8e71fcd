//! The two task queues of a core as glommio sees them: one glommio task each, between which its
//! scheduler divides the core by shares.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use glommio::{Latency, Shares, SharesManager, TaskQueueHandle, executor};

use super::core::RealCore;
use super::limits::{BACKGROUND_TURN, SHARES_PERIOD, TURN, TURNS_BETWEEN_YIELDS};
use crate::{FOREGROUND_SHARES, Queue};

/// Wakes the task of a queue that has nothing to do.
#[derive(Default)]
pub(super) struct QueueBell(RefCell<Option<Waker>>);

impl QueueBell {
    pub fn is_asleep(&self) -> bool {
        self.0.borrow().is_some()
    }

    pub fn ring(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }

    async fn wait(&self, ready: impl Fn() -> bool) {
        poll_fn(|context| {
            if ready() {
                return Poll::Ready(());
            }
            self.0.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

/// Gives glommio the background queue's shares of the core.
struct BackgroundShares(Rc<Cell<usize>>);

impl SharesManager for BackgroundShares {
    fn shares(&self) -> usize {
        self.0.get()
    }

    fn adjustment_period(&self) -> Duration {
        SHARES_PERIOD
    }
}

/// Makes glommio's queues, in this order: foreground, background, which has as many shares as the
/// cell says.
pub(super) fn create(background_shares: Rc<Cell<usize>>) -> (TaskQueueHandle, TaskQueueHandle) {
    let foreground = executor().create_task_queue(
        Shares::Static(FOREGROUND_SHARES),
        Latency::NotImportant,
        "foreground",
    );
    let background = executor().create_task_queue(
        Shares::Dynamic(Rc::new(BackgroundShares(background_shares))),
        Latency::NotImportant,
        "background",
    );
    (foreground, background)
}

/// The foreground queue's task: the core's loop. Ends with the node.
pub(super) async fn foreground(core: RealCore) {
    let mut turns = 0u32;
    loop {
        core.turn(TURN);
        if core.node().finished() {
            core.submit();
            core.bell(Queue::Background).ring();
            return;
        }
        let background = core.tasks().has_ready(Queue::Background);
        let idle = !core.tasks().has_ready(Queue::Foreground);
        if idle {
            core.count_foreground_idle();
        }
        turns = turns.wrapping_add(1);
        if background || !idle {
            core.submit();
        }
        if background {
            if core.bell(Queue::Background).is_asleep() {
                // glommio places a queue that wakes up by the run time that it has seen of the
                // others. It sees ours, in which we may have slept for long, only when we yield;
                // without this the background would have all of that time to catch up with.
                executor().yield_task_queue_now().await;
                core.bell(Queue::Background).ring();
            }
            if idle {
                // The background's task looks after sockets, files and timers until there is
                // foreground work: two busy queues would divide the core by shares, also when one
                // of them is busy with looking.
                let ready = || {
                    core.tasks().has_ready(Queue::Foreground)
                        || !core.tasks().has_ready(Queue::Background)
                        || core.node().finished()
                };
                core.bell(Queue::Foreground).wait(ready).await;
            } else {
                executor().yield_task_queue_now().await;
            }
        } else if idle {
            core.rest();
        }
        if turns.is_multiple_of(TURNS_BETWEEN_YIELDS) {
            // glommio multiplies the time between yields in 64 bits.
            core.submit();
            executor().yield_task_queue_now().await;
        }
    }
}

/// The background queue's task. Ends with the node.
pub(super) async fn background(core: RealCore) {
    loop {
        core.run_ready(Queue::Background, BACKGROUND_TURN);
        let finished = core.node().finished();
        let more = core.tasks().has_ready(Queue::Background);
        if more && !finished && core.bell(Queue::Foreground).is_asleep() {
            core.take_in_and_submit();
        }
        if !more || finished || core.tasks().has_ready(Queue::Foreground) {
            core.bell(Queue::Foreground).ring();
        }
        if finished {
            return;
        }
        if more {
            executor().yield_task_queue_now().await;
        } else {
            let ready = || core.tasks().has_ready(Queue::Background) || core.node().finished();
            core.bell(Queue::Background).wait(ready).await;
        }
    }
}
