//! Tasks of one core that wait until a timestamp is reached.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pinion_clock::Timestamp;

#[derive(Default)]
struct State {
    waiting: RefCell<BTreeMap<(Timestamp, u64), Option<Waker>>>,
    next: Cell<u64>,
    reached: Cell<Timestamp>,
    released: Cell<bool>,
}

/// Waiters ordered by what they wait for.
#[derive(Clone, Default)]
pub(in crate::engine) struct TimestampWaiters(Rc<State>);

impl TimestampWaiters {
    /// The highest timestamp known to be reached. It never goes back: what is reached stays
    /// reached.
    pub(in crate::engine) fn reached(&self) -> Timestamp {
        self.0.reached.get()
    }

    /// Takes note that `reached` is reached, and wakes the waiters for no more than that.
    pub(in crate::engine) fn advance(&self, reached: Timestamp) -> Timestamp {
        if reached > self.0.reached.get() {
            self.0.reached.set(reached);
            self.wake_through(reached);
        }
        self.0.reached.get()
    }

    /// Wakes all waiters and admits no more of them: the node has stopped.
    pub(in crate::engine) fn release_all(&self) {
        self.0.released.set(true);
        self.wake_through(Timestamp::MAX);
    }

    fn wake_through(&self, reached: Timestamp) {
        let woken = {
            let mut waiting = self.0.waiting.borrow_mut();
            let Some(next) = reached.as_u64().checked_add(1) else {
                let all = std::mem::take(&mut *waiting);
                drop(waiting);
                return all.into_values().flatten().for_each(Waker::wake);
            };
            if waiting
                .first_key_value()
                .is_none_or(|((lowest, _), _)| *lowest > reached)
            {
                return;
            }
            let later = waiting.split_off(&(Timestamp::from_u64(next), 0));
            std::mem::replace(&mut *waiting, later)
        };
        woken.into_values().flatten().for_each(Waker::wake);
    }

    /// The lowest and the highest timestamp that is waited for.
    pub(in crate::engine) fn range(&self) -> Option<(Timestamp, Timestamp)> {
        let waiting = self.0.waiting.borrow();
        Some((
            waiting.first_key_value()?.0.0,
            waiting.last_key_value()?.0.0,
        ))
    }

    /// Completes when `ts` is reached, or when all are released. It counts as waiting from this
    /// call on.
    pub(in crate::engine) fn wait(&self, ts: Timestamp) -> Waiting {
        let number = self.0.next.get();
        self.0.next.set(number + 1);
        self.0.waiting.borrow_mut().insert((ts, number), None);
        Waiting {
            state: self.0.clone(),
            key: (ts, number),
        }
    }
}

/// The future of [`TimestampWaiters::wait`].
pub(in crate::engine) struct Waiting {
    state: Rc<State>,
    key: (Timestamp, u64),
}

impl Future for Waiting {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.state.reached.get() >= self.key.0 || self.state.released.get() {
            return Poll::Ready(());
        }
        match self.state.waiting.borrow_mut().get_mut(&self.key) {
            Some(waker) => *waker = Some(cx.waker().clone()),
            None => return Poll::Ready(()),
        }
        Poll::Pending
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.state.waiting.borrow_mut().remove(&self.key);
    }
}
