//! Calls over the mesh: admission of requests, reply slots, and what happens when a queue is full.
//!
//! A request waits, in order of arrival, until the queue to its core has room; that is the only
//! wait. The receiving core starts a task for each request at once, or runs it at once where it is
//! a plain call. A reply goes to a slot that the request reserved, and when the queue back is full
//! it is kept in a list that is sent before any request: as many replies as the other core has
//! calls open, so the list is bounded by what was admitted. So two cores that fill each other's
//! queues cannot stop.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::context::{self, Backend, CoreContext};
use crate::core::CoreId;
use crate::sync::{Notify, Semaphore};
use crate::task::{self, Queue, join_all};

/// What a request runs on the receiving core.
type RunRequest = Box<dyn FnOnce(CoreId, usize) + Send>;

/// A function on its way to another core, and what it gave on its way back.
pub(crate) trait RemoteCall: Send {
    fn run(&mut self);
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// One allocation goes there and back, so that the core that made it frees it.
enum CallProgress<F, R> {
    Function(F),
    Result(R),
    Running,
}

impl<F, R> RemoteCall for CallProgress<F, R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    fn run(&mut self) {
        if let CallProgress::Function(f) = std::mem::replace(self, CallProgress::Running) {
            *self = CallProgress::Result(f());
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// A message between two cores.
pub(crate) enum MeshMessage {
    Request {
        slot: usize,
        run: RunRequest,
    },
    /// A request that is run where it is taken in.
    Call {
        slot: usize,
        call: Box<dyn RemoteCall>,
    },
    Reply {
        slot: usize,
        value: Box<dyn Any + Send>,
    },
}

impl MeshMessage {
    /// Identifies the message in a simulation's trace.
    pub(crate) fn trace_word(&self) -> u64 {
        match self {
            MeshMessage::Request { slot, .. } | MeshMessage::Call { slot, .. } => {
                (*slot as u64) << 1
            }
            MeshMessage::Reply { slot, .. } => (*slot as u64) << 1 | 1,
        }
    }
}

enum Slot {
    Waiting(Option<Waker>),
    Ready(Box<dyn Any + Send>),
    /// The caller went away; the slot stays taken until the reply arrives, so that it is not
    /// mistaken for another's.
    Abandoned,
}

/// The way to one other core.
struct MeshLink {
    /// Held by the request that waits for room; the others queue behind it.
    turn: Semaphore,
    space: Notify,
    /// Replies that the queue had no room for.
    replies: RefCell<VecDeque<MeshMessage>>,
}

/// One core's end of the mesh.
pub(crate) struct Exchange {
    slots: RefCell<Slab<Slot>>,
    links: Vec<MeshLink>,
}

impl Exchange {
    pub(crate) fn new(count: usize) -> Exchange {
        let link = || MeshLink {
            turn: Semaphore::new(1),
            space: Notify::new(),
            replies: RefCell::new(VecDeque::new()),
        };
        Exchange {
            slots: RefCell::new(Slab::new()),
            links: (0..count).map(|_| link()).collect(),
        }
    }
}

fn try_push(context: &CoreContext, to: CoreId, message: MeshMessage) -> Result<(), MeshMessage> {
    match &context.backend {
        Backend::Real(core) => core.mesh_try_push(to, message),
        Backend::Sim(core) => core.mesh_try_push(to, message),
    }
}

async fn push_request(context: &CoreContext, to: CoreId, mut message: MeshMessage) {
    let link = &context.mesh.links[usize::from(to.0)];
    let _turn = link.turn.acquire().await;
    loop {
        // Replies that wait have been owed for longer, and the other core's callers need them.
        if link.replies.borrow().is_empty() {
            match try_push(context, to, message) {
                Ok(()) => return,
                Err(refused) => message = refused,
            }
        }
        link.space.notified().await;
    }
}

fn send_reply(context: &CoreContext, to: CoreId, message: MeshMessage) {
    let link = &context.mesh.links[usize::from(to.0)];
    let mut waiting = link.replies.borrow_mut();
    if waiting.is_empty() {
        if let Err(refused) = try_push(context, to, message) {
            waiting.push_back(refused);
        }
    } else {
        waiting.push_back(message);
    }
}

/// The queue to `to` has room again. Called by the backend after it refused a push; spurious calls
/// are harmless.
pub(crate) fn space_available(to: CoreId) {
    let context = context::current();
    let link = &context.mesh.links[usize::from(to.0)];
    let mut waiting = link.replies.borrow_mut();
    while let Some(message) = waiting.pop_front() {
        if let Err(refused) = try_push(&context, to, message) {
            waiting.push_front(refused);
            return;
        }
    }
    drop(waiting);
    link.space.notify_one();
}

/// Takes in a message from another core. Never waits.
pub(crate) fn deliver(from: CoreId, message: MeshMessage) {
    match message {
        MeshMessage::Request { slot, run } => run(from, slot),
        MeshMessage::Call { slot, mut call } => {
            call.run();
            let value = call.into_any();
            send_reply(
                &context::current(),
                from,
                MeshMessage::Reply { slot, value },
            );
        }
        MeshMessage::Reply { slot, value } => {
            let context = context::current();
            let mut slots = context.mesh.slots.borrow_mut();
            let state = slots
                .get_mut(slot)
                .expect("a reply finds the slot that its request reserved");
            let waker = match state {
                Slot::Waiting(waker) => {
                    let waker = waker.take();
                    *state = Slot::Ready(value);
                    waker
                }
                Slot::Abandoned => {
                    slots.remove(slot);
                    drop(slots);
                    drop(value);
                    return;
                }
                Slot::Ready(_) => panic!("a request was answered twice"),
            };
            drop(slots);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// The reserved slot of one request.
struct Call {
    context: Rc<CoreContext>,
    slot: usize,
    sent: bool,
    done: bool,
}

impl Future for Call {
    type Output = Box<dyn Any + Send>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut slots = this.context.mesh.slots.borrow_mut();
        match &mut slots[this.slot] {
            Slot::Waiting(waker) => {
                match waker {
                    Some(existing) if existing.will_wake(cx.waker()) => {}
                    _ => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            Slot::Ready(_) => {
                this.done = true;
                match slots.remove(this.slot) {
                    Slot::Ready(value) => Poll::Ready(value),
                    Slot::Waiting(_) | Slot::Abandoned => {
                        unreachable!("the slot was just seen ready")
                    }
                }
            }
            Slot::Abandoned => unreachable!("only the drop of a call abandons its slot"),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut slots = self.context.mesh.slots.borrow_mut();
        let answered = matches!(slots[self.slot], Slot::Ready(_));
        let old = if answered || !self.sent {
            slots.remove(self.slot)
        } else {
            std::mem::replace(&mut slots[self.slot], Slot::Abandoned)
        };
        drop(slots);
        drop(old);
    }
}

/// Runs `f` on `core` and gives its result. On the caller's own core it runs in place, without a
/// hop and whatever the queue; elsewhere as a task of `queue`. Requests from one core to another
/// start in the order of their calls.
///
/// Dropping the future before the request was sent withdraws it; afterwards the request runs to its
/// end and its result is dropped. If the other core ends first, the future never completes.
///
/// # Panics
/// When this node has no such core.
pub async fn submit_to<F, Fut, R>(core: CoreId, queue: Queue, f: F) -> R
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = R> + 'static,
    R: Send + 'static,
{
    submit_boxed(core, queue, Box::new(move || Box::pin(f()))).await
}

/// A request before it runs: the future is made on the core that polls it.
type Body<R> = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = R>>> + Send>;

/// [`submit_to`] without the types of the request, so that its body is compiled once and not for
/// each place that it runs in.
async fn submit_boxed<R: Send + 'static>(core: CoreId, queue: Queue, body: Body<R>) -> R {
    if context::with(|context| core == context.core) {
        return body().await;
    }
    let run: RunRequest = Box::new(move |from, slot| {
        task::spawn_detached(queue, async move {
            let value: Box<dyn Any + Send> = Box::new(body().await);
            send_reply(
                &context::current(),
                from,
                MeshMessage::Reply { slot, value },
            );
        });
    });
    let value = exchange(core, |slot| MeshMessage::Request { slot, run }).await;
    *value
        .downcast::<R>()
        .expect("a reply has the type that its request asked for")
}

/// Runs `f` on `core` where it takes in its messages, without a task, and gives its result: for
/// what takes a microsecond or two and waits for nothing. Otherwise as [`submit_to`].
///
/// # Panics
/// When this node has no such core.
pub async fn call_on<F, R>(core: CoreId, f: F) -> R
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    if context::with(|context| core == context.core) {
        return f();
    }
    let call = Box::new(CallProgress::Function(f));
    let value = exchange(core, |slot| MeshMessage::Call { slot, call }).await;
    match value.downcast::<CallProgress<F, R>>().map(|call| *call) {
        Ok(CallProgress::Result(result)) => result,
        _ => unreachable!("a call comes back with its result"),
    }
}

/// Sends another core a request, made for the slot that is reserved for it, and gives what comes
/// back.
async fn exchange(core: CoreId, request: impl FnOnce(usize) -> MeshMessage) -> Box<dyn Any + Send> {
    let context = context::current();
    assert!(
        usize::from(core.0) < context.count,
        "core {core} does not exist: this node has {} cores",
        context.count
    );
    let slot = context.mesh.slots.borrow_mut().insert(Slot::Waiting(None));
    let mut call = Call {
        context: Rc::clone(&context),
        slot,
        sent: false,
        done: false,
    };
    push_request(&context, core, request(slot)).await;
    call.sent = true;
    call.await
}

/// Runs `f` on every core at the same time, in the foreground queue, and gives the results in the
/// order of the cores.
pub async fn on_all_cores<F, Fut, R>(f: F) -> Vec<R>
where
    F: Fn(CoreId) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = R> + 'static,
    R: Send + 'static,
{
    let count = context::with(|context| context.count);
    join_all((0..count).map(|core| {
        let core = CoreId(u16::try_from(core).expect("core numbers fit 16 bits"));
        let f = f.clone();
        submit_to(core, Queue::Foreground, move || f(core))
    }))
    .await
}
