//! The simulated backend of one core.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::events::{Event, EventKey};
use super::life::CoreState;
use super::trace::Step;
use crate::context;
use crate::core::CoreId;
use crate::mesh;
use crate::process::RuntimeStats;
use crate::task::Queue;
use crate::time::Instant;

/// One core of a simulated node.
#[derive(Clone)]
pub(crate) struct SimCore(Rc<CoreState>);

impl SimCore {
    pub(super) fn new(state: Rc<CoreState>) -> SimCore {
        SimCore(state)
    }

    pub(super) fn state(&self) -> &Rc<CoreState> {
        &self.0
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.0.world().now())
    }

    pub(crate) fn wall_us(&self) -> i64 {
        self.0.world().wall_us() + self.0.node().wall_offset_us.get()
    }

    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(&self, queue: Queue, future: F) {
        if self.0.life().is_alive() {
            self.0.stats.borrow_mut().tasks_spawned += 1;
            self.0
                .world()
                .executor
                .spawn(&self.0, queue, Box::pin(future));
        }
    }

    pub(crate) fn foreground_idles(&self) -> u64 {
        if self.0.ready.borrow()[Queue::Foreground as usize].is_empty() {
            self.0
                .foreground_idles
                .set(self.0.foreground_idles.get() + 1);
        }
        self.0.foreground_idles.get()
    }

    pub(crate) fn set_background_shares(&self, shares: usize) {
        self.0.background_shares.set(shares);
    }

    pub(crate) fn should_yield(&self) -> bool {
        // Asking takes time, so that a long loop that asks sees the clock move.
        self.0.world().advance(100);
        match self.0.slice.get() {
            0 => true,
            left => {
                self.0.slice.set(left - 1);
                false
            }
        }
    }

    pub(crate) fn yield_now(&self) -> SimYield {
        SimYield { yielded: false }
    }

    pub(crate) fn sleep_until(&self, at: Instant) -> SimSleep {
        SimSleep {
            core: Rc::clone(&self.0),
            at: at.as_nanos(),
            timer: None,
        }
    }

    pub(crate) fn mesh_try_push(
        &self,
        to: CoreId,
        message: mesh::MeshMessage,
    ) -> Result<(), mesh::MeshMessage> {
        let core = &self.0;
        if !core.life().has_effect() {
            return Ok(());
        }
        let world = core.world();
        let link = core.link(to);
        if link.under_way.get() >= world.options.mesh_slots {
            link.refused.set(true);
            return Err(message);
        }
        link.under_way.set(link.under_way.get() + 1);
        core.stats.borrow_mut().mesh_messages += 1;
        let latency = &world.options.mesh_latency_ns;
        let latency = core
            .mesh_rng
            .borrow_mut()
            .between(*latency.start(), *latency.end());
        let arrival = link.last_arrival.get().max(world.now() + latency);
        link.last_arrival.set(arrival);
        let from = Rc::clone(core);
        world.schedule_call(arrival, move |world| {
            if !from.life().is_alive() {
                return;
            }
            world.trace(
                Step::Mesh,
                from.trace_id(),
                (message.trace_word() << 16) | u64::from(to.0),
            );
            let target = Rc::clone(&from.life().cores.borrow()[usize::from(to.0)]);
            let previous = context::enter(target.context());
            mesh::deliver(from.id, message);
            let link = from.link(to);
            link.under_way.set(link.under_way.get() - 1);
            if link.refused.replace(false) {
                context::enter(from.context());
                mesh::space_available(to);
            }
            context::enter(previous);
        });
        Ok(())
    }

    pub(crate) fn request_shutdown(&self) {
        let life = self.0.life();
        if life.has_effect() {
            self.0.world().request_shutdown(life);
        }
    }

    pub(crate) fn stats(&self) -> RuntimeStats {
        let core = &self.0;
        let busy_ns = core.busy_ns.get();
        let lived_ns = core.world().now() - core.started_ns;
        RuntimeStats {
            busy_ns,
            idle_ns: lived_ns.saturating_sub(busy_ns),
            ..*core.stats.borrow()
        }
    }
}

/// A timer in virtual time.
pub(crate) struct SimSleep {
    core: Rc<CoreState>,
    at: u64,
    timer: Option<EventKey>,
}

impl Future for SimSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let world = this.core.world();
        if world.now() >= this.at {
            if let Some(timer) = this.timer.take() {
                world.cancel(timer);
            }
            return Poll::Ready(());
        }
        // The end of time is never reached, and an event there would keep an idle simulation going.
        if this.at == u64::MAX {
            return Poll::Pending;
        }
        if !this
            .timer
            .is_some_and(|timer| world.set_timer_waker(timer, cx.waker()))
        {
            this.timer = Some(world.schedule(this.at, Event::Wake(cx.waker().clone())));
        }
        Poll::Pending
    }
}

impl Drop for SimSleep {
    fn drop(&mut self) {
        // While a whole simulation is torn down its world may be gone before the last timer.
        if let (Some(timer), Some(world)) = (self.timer.take(), self.core.life().world.upgrade()) {
            world.cancel(timer);
        }
    }
}

/// Gives way once.
pub(crate) struct SimYield {
    yielded: bool,
}

impl Future for SimYield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
