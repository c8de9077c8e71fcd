//! The node's own work on its data while these may be closed and opened again, which is not held up
//! as commands are: core 0 alone.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use pinion_service::parking::{Inside, parking};
use pinion_wire::{Error, ErrorCode, Result, interruption};

use crate::part::part;

/// Waits until the data are open. They are not closed while the guard is there, so what is done
/// under it must come to its end soon.
pub(crate) async fn open_data() -> Inside {
    loop {
        let parking = parking();
        if let Some(inside) = parking.enter() {
            return inside;
        }
        parking.changed().await;
    }
}

/// Has the data stay open while the guard is there.
///
/// # Errors
/// `InterruptedDueToReplStateChange`: they are being closed, and opened again.
pub(crate) fn enter_data() -> Result<Inside> {
    parking().enter().ok_or_else(closed)
}

fn closed() -> Error {
    interruption(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE)
}

/// Waits for something of the data that are open now, and of the primary that there is now.
///
/// # Errors
/// `InterruptedDueToReplStateChange`: they are being closed, and opened again, or this node has
/// become primary.
pub(crate) async fn unless_closed<F: Future>(waiting: F) -> Result<F::Output> {
    let mut closing = pin!(part().core_0.waits_end.notified());
    enter_data()?;
    let mut waiting = pin!(waiting);
    poll_fn(|cx| {
        if closing.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(closed()));
        }
        waiting.as_mut().poll(cx).map(Ok)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use pinion_runtime::sim::{Sim, SimOptions};
    use pinion_runtime::{Queue, spawn, yield_now};
    use pinion_service::node_info::ClusterRole;
    use pinion_service::parking::Parking;

    use super::*;
    use crate::part::Part;
    use crate::planted::PlantedFault;

    #[test]
    fn what_waits_ends_with_the_data() {
        let sim = Sim::new(1, SimOptions::default());
        let ended = Rc::new(Cell::new(false));
        let end = ended.clone();
        sim.add_node("node", 1, move |_| {
            let end = end.clone();
            Box::pin(async move {
                pinion_runtime::set_core_local(Rc::new(Part::new(
                    ClusterRole::Shard,
                    PlantedFault::None,
                )));
                pinion_runtime::set_core_local(Rc::new(Parking::default()));
                assert_eq!(unless_closed(async { 1 }).await.ok(), Some(1));
                let waiting = spawn(
                    Queue::Background,
                    unless_closed(std::future::pending::<()>()),
                );
                yield_now().await;
                parking().close();
                part().core_0.waits_end.notify_all();
                assert!(waiting.await.is_ok_and(|outcome| outcome.is_err()));
                // Nothing of the data that are being closed is waited for.
                assert!(unless_closed(async { 1 }).await.is_err());
                let opened = spawn(Queue::Background, open_data());
                yield_now().await;
                assert!(!opened.is_finished());
                parking().open();
                assert!(opened.await.is_ok());
                end.set(true);
            })
        });
        assert!(sim.run_until(move || ended.get()).is_ok());
    }
}
