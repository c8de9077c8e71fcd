//! A bounded channel with several senders and one receiver.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::semaphore::Semaphore;

struct State<T> {
    queue: VecDeque<T>,
    senders: usize,
    receiver_alive: bool,
    receiver: Option<Waker>,
}

/// A channel that holds at most `capacity` values.
///
/// # Panics
/// When `capacity` is zero.
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel without room cannot carry anything");
    let state = State {
        queue: VecDeque::new(),
        senders: 1,
        receiver_alive: true,
        receiver: None,
    };
    let state = Rc::new(RefCell::new(state));
    let room = Semaphore::new(capacity);
    (
        Sender {
            state: Rc::clone(&state),
            room: room.clone(),
        },
        Receiver { state, room },
    )
}

/// The receiver is gone; here is the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError<T>(pub T);

/// Why [`Sender::try_send`] did not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrySendError<T> {
    Full(T),
    Closed(T),
}

/// The sending side. Clones send into the same channel, each in its own order.
pub struct Sender<T> {
    state: Rc<RefCell<State<T>>>,
    room: Semaphore,
}

impl<T> Sender<T> {
    /// Waits for room, in order of arrival, and sends.
    pub async fn send(&self, value: T) -> Result<(), SendError<T>> {
        let permit = self.room.acquire().await;
        if !self.state.borrow().receiver_alive {
            return Err(SendError(value));
        }
        permit.forget();
        self.push(value);
        Ok(())
    }

    /// Sends if there is room.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        if self.is_closed() {
            return Err(TrySendError::Closed(value));
        }
        match self.room.try_acquire() {
            None => Err(TrySendError::Full(value)),
            Some(permit) => {
                permit.forget();
                self.push(value);
                Ok(())
            }
        }
    }

    /// True when there is no receiver any more.
    pub fn is_closed(&self) -> bool {
        !self.state.borrow().receiver_alive
    }

    fn push(&self, value: T) {
        let mut state = self.state.borrow_mut();
        state.queue.push_back(value);
        let receiver = state.receiver.take();
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.state.borrow_mut().senders += 1;
        Sender {
            state: Rc::clone(&self.state),
            room: self.room.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        state.senders -= 1;
        let receiver = if state.senders == 0 {
            state.receiver.take()
        } else {
            None
        };
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

/// The receiving side.
pub struct Receiver<T> {
    state: Rc<RefCell<State<T>>>,
    room: Semaphore,
}

impl<T> Receiver<T> {
    /// The next value; `None` once all senders are gone and the channel is empty.
    pub async fn recv(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| {
            if let Some(value) = self.try_recv() {
                return Poll::Ready(Some(value));
            }
            let mut state = self.state.borrow_mut();
            if state.senders == 0 {
                return Poll::Ready(None);
            }
            match &state.receiver {
                Some(existing) if existing.will_wake(cx.waker()) => {}
                _ => state.receiver = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }

    /// The next value, if one is there.
    pub fn try_recv(&mut self) -> Option<T> {
        let value = self.state.borrow_mut().queue.pop_front()?;
        self.room.add_permits(1);
        Some(value)
    }

    /// Values waiting.
    pub fn len(&self) -> usize {
        self.state.borrow().queue.len()
    }

    /// True when no value waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        state.receiver_alive = false;
        let queue = std::mem::take(&mut state.queue);
        let waiting = self.room.waiting();
        drop(state);
        drop(queue);
        // Senders that wait for room find the channel closed, each passing its permit on.
        self.room.add_permits(waiting.min(1));
    }
}
