//! A panic inside a handler ends that command, not the core.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs a future and gives the text of its panic if it panics. The future is gone afterwards.
///
/// State that the handler shares may be half changed after a panic. A module that keeps an
/// invariant across such a point poisons itself (storage does, and then refuses every further
/// call).
pub(crate) struct CatchUnwind<F>(Option<Pin<Box<F>>>)
where
    F: Future + ?Sized;

impl<F: Future + ?Sized> CatchUnwind<F> {
    pub(crate) fn new(future: Pin<Box<F>>) -> CatchUnwind<F> {
        CatchUnwind(Some(future))
    }
}

impl<F: Future + ?Sized> Future for CatchUnwind<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.0.as_mut().expect("polled after it was ready");
        let outcome = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        let ready = match outcome {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => Err(panic_text(&*panic)),
        };
        // Its destructors may panic as well, all the more after a first panic.
        let future = self.0.take();
        match (catch_unwind(AssertUnwindSafe(|| drop(future))), ready) {
            (Err(panic), Ok(_)) => Poll::Ready(Err(panic_text(&*panic))),
            (_, ready) => Poll::Ready(ready),
        }
    }
}

/// The text of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a text".to_owned(),
    }
}
