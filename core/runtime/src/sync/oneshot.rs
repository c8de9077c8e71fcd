//! A channel for one value.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_alive: bool,
    receiver_alive: bool,
}

/// A channel that carries one value between two tasks of a core.
pub fn oneshot<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let state = Rc::new(RefCell::new(State {
        value: None,
        waker: None,
        sender_alive: true,
        receiver_alive: true,
    }));
    (OneshotSender(Rc::clone(&state)), OneshotReceiver(state))
}

/// The sender went away without sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderDropped;

impl std::fmt::Display for SenderDropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the sender was dropped without sending")
    }
}

impl std::error::Error for SenderDropped {}

/// Sends the one value.
pub struct OneshotSender<T>(Rc<RefCell<State<T>>>);

impl<T> OneshotSender<T> {
    /// Gives the value to the receiver, or back when that is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut state = self.0.borrow_mut();
        if !state.receiver_alive {
            return Err(value);
        }
        state.value = Some(value);
        Ok(())
        // Dropping `self` wakes the receiver.
    }

    /// True when there is no receiver any more.
    pub fn is_closed(&self) -> bool {
        !self.0.borrow().receiver_alive
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.sender_alive = false;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Awaits the one value.
pub struct OneshotReceiver<T>(Rc<RefCell<State<T>>>);

impl<T> OneshotReceiver<T> {
    /// The value, if it is there.
    pub fn try_recv(&mut self) -> Option<T> {
        self.0.borrow_mut().value.take()
    }
}

impl<T> Future for OneshotReceiver<T> {
    type Output = Result<T, SenderDropped>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.borrow_mut();
        if let Some(value) = state.value.take() {
            return Poll::Ready(Ok(value));
        }
        if !state.sender_alive {
            return Poll::Ready(Err(SenderDropped));
        }
        match &state.waker {
            Some(existing) if existing.will_wake(cx.waker()) => {}
            _ => state.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Drop for OneshotReceiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.receiver_alive = false;
        let value = state.value.take();
        drop(state);
        drop(value);
    }
}
