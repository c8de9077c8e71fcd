//! The context of the running core: a thread-local handle through which every public function finds
//! its backend.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::core::CoreId;
use crate::mesh::Exchange;
use crate::process::ShutdownFlag;
use crate::random::StreamSource;
use crate::{real, sim};

/// Which implementation the current core runs on.
pub(crate) enum Backend {
    Real(real::RealCore),
    Sim(sim::SimCore),
}

/// Where the random streams of a core come from.
pub(crate) enum StreamSeed {
    /// Every stream is seeded by the operating system.
    Os,
    /// Streams derive from this number, their name and their ordinal.
    Fixed(u64),
}

impl StreamSeed {
    pub(crate) fn os() -> StreamSeed {
        StreamSeed::Os
    }
}

/// Everything the facade keeps for one core of one node.
pub(crate) struct CoreContext {
    pub(crate) core: CoreId,
    pub(crate) count: usize,
    pub(crate) backend: Backend,
    pub(crate) locals: Locals,
    pub(crate) mesh: Exchange,
    pub(crate) shutdown: ShutdownFlag,
    pub(crate) streams: StreamSource,
    /// Set once the node's life is over, so that late destructors find nothing to start.
    pub(crate) ended: Cell<bool>,
}

impl CoreContext {
    pub(crate) fn new(
        core: CoreId,
        count: usize,
        backend: Backend,
        seed: StreamSeed,
    ) -> Rc<CoreContext> {
        assert!(count > 0 && usize::from(core.0) < count);
        Rc::new(CoreContext {
            core,
            count,
            backend,
            locals: Locals::default(),
            mesh: Exchange::new(count),
            shutdown: ShutdownFlag::default(),
            streams: StreamSource::new(seed),
            ended: Cell::new(false),
        })
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<CoreContext>>> = const { RefCell::new(None) };
}

/// Makes `context` the current one of this thread and returns what was current before.
pub(crate) fn enter(context: Option<Rc<CoreContext>>) -> Option<Rc<CoreContext>> {
    CURRENT.with(|current| current.replace(context))
}

/// The context of the running core.
///
/// # Panics
/// Outside of a core.
pub(crate) fn current() -> Rc<CoreContext> {
    try_current().expect(
        "this function of pinion_runtime works only on a core: inside real::run or a simulation",
    )
}

/// The context of the running core, if this thread runs one.
pub(crate) fn try_current() -> Option<Rc<CoreContext>> {
    // A destructor that runs while the thread ends finds no context rather than a panic.
    CURRENT
        .try_with(|current| current.borrow().clone())
        .ok()
        .flatten()
}

/// Runs `f` on the current context without touching its reference count.
pub(crate) fn with<R>(f: impl FnOnce(&CoreContext) -> R) -> R {
    CURRENT.with(|current| {
        let current = current.borrow();
        let context = current.as_ref();
        f(context.expect("this function of pinion_runtime works only on a core: inside real::run or a simulation"))
    })
}

/// The core-local values: one for each type. Each operation asks for many of them.
#[derive(Default)]
pub(crate) struct Locals {
    values: RefCell<FxHashMap<TypeId, Rc<dyn Any>>>,
    /// In the order in which they were set first.
    order: RefCell<Vec<TypeId>>,
}

impl Locals {
    pub(crate) fn get<T: 'static>(&self) -> Option<Rc<T>> {
        let value = Rc::clone(self.values.borrow().get(&TypeId::of::<T>())?);
        let value = value.downcast::<T>();
        Some(value.expect("a local is stored under its own type"))
    }

    /// Stores a value and returns the one it replaces, for the caller to drop outside of any
    /// borrow.
    pub(crate) fn set<T: 'static>(&self, value: Rc<T>) -> Option<Rc<dyn Any>> {
        let replaced = self.values.borrow_mut().insert(TypeId::of::<T>(), value);
        if replaced.is_none() {
            self.order.borrow_mut().push(TypeId::of::<T>());
        }
        replaced
    }

    /// Takes the value whose type was set last. Repeated until `None`, it empties the locals in
    /// reverse order.
    pub(crate) fn pop(&self) -> Option<Rc<dyn Any>> {
        let last = self.order.borrow_mut().pop()?;
        let value = self.values.borrow_mut().remove(&last);
        Some(value.expect("what has a place in the order is there"))
    }
}
