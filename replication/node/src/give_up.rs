//! A member that cannot continue in its set ends its process, with an exit status that says so.

use std::cell::RefCell;
use std::rc::Rc;

use pinion_runtime::{is_shutdown_requested, request_shutdown, set_core_local, try_core_local};
use pinion_wire::Error;

/// Why, if it has. It lives on core 0.
#[derive(Default)]
struct GaveUp(RefCell<Option<String>>);

/// Why the member has given up, the first of several reasons. Called on core 0.
pub fn gave_up() -> Option<String> {
    try_core_local::<GaveUp>().and_then(|gave_up| gave_up.0.borrow().clone())
}

/// Ends the node: what a member cannot keep it must not act upon. The process exits with an error.
/// Called on core 0.
///
/// A node that is being ended does not give up: its storage closes under whatever is still at work.
pub fn give_up(what: &str, error: &Error) {
    if is_shutdown_requested() {
        return;
    }
    tracing::error!(target: "REPL", id = 7_400_001u64, severity = "F", error = error.message, "{what}: the node stops");
    let gave_up = try_core_local::<GaveUp>().unwrap_or_else(|| {
        let gave_up = Rc::new(GaveUp::default());
        set_core_local(gave_up.clone());
        gave_up
    });
    let why = format!("{what}: {}", error.message);
    gave_up.0.borrow_mut().get_or_insert(why);
    request_shutdown();
}

pub(crate) use give_up as stop_node;
