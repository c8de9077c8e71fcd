//! Cores and their local values.

use std::rc::Rc;

use crate::context;

/// A core of this node, numbered from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u16);

impl std::fmt::Display for CoreId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// True where the functions of this crate work: on a core.
pub fn is_core() -> bool {
    crate::context::try_current().is_some()
}

/// The core that runs the caller.
pub fn core_id() -> CoreId {
    context::with(|context| context.core)
}

/// How many cores this node has.
pub fn core_count() -> usize {
    context::with(|context| context.count)
}

/// The value of type `T` of this core.
///
/// # Panics
/// When none was set.
pub fn core_local<T: 'static>() -> Rc<T> {
    try_core_local().unwrap_or_else(|| {
        panic!(
            "no core-local {} was set on this core",
            std::any::type_name::<T>()
        )
    })
}

/// The value of type `T` of this core, if one was set.
pub fn try_core_local<T: 'static>() -> Option<Rc<T>> {
    context::with(|context| context.locals.get())
}

/// Sets the value of type `T` of this core; there is one for each type. It is dropped when the node
/// ends.
pub fn set_core_local<T: 'static>(value: Rc<T>) {
    // The replaced value is dropped after the context is released: its destructor may use the
    // runtime.
    let replaced = context::with(|context| context.locals.set(value));
    drop(replaced);
}
