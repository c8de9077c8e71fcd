//! The two task queues of a core as glommio sees them: one glommio task each, between which its scheduler divides the
//! core by shares.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use glommio::{Latency, Shares, TaskQueueHandle, executor};

use super::core::RealCore;
use super::limits::{
    BACKGROUND_SHARES, BACKGROUND_TURN, FOREGROUND_SHARES, TURN, TURNS_BETWEEN_YIELDS,
};
use crate::Queue;

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

/// Makes glommio's queues, in this order: foreground, background.
pub(super) fn create() -> (TaskQueueHandle, TaskQueueHandle) {
    let foreground = executor().create_task_queue(
        Shares::Static(FOREGROUND_SHARES),
        Latency::NotImportant,
        "foreground",
    );
    let background = executor().create_task_queue(
        Shares::Static(BACKGROUND_SHARES),
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
                // glommio places a queue that wakes up by the run time that it has seen of the others. It sees ours,
                // in which we may have slept for long, only when we yield; without this the background would have
                // all of that time to catch up with.
                executor().yield_task_queue_now().await;
                core.bell(Queue::Background).ring();
            }
            if idle {
                // The background's task looks after sockets, files and timers until there is foreground work:
                // two busy queues would divide the core by shares, also when one of them is busy with looking.
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
