//! How much work one call may do: what is longer gives up, and is done again where it holds no
//! core.
//!
//! The functions of this crate are called by tasks that share their core, and cannot be suspended.
//! A call inside of [`within`] is refused once its work exceeds a budget. Since everything here is
//! pure, the caller can do the same again inside of [`until`], on a thread where it holds up no
//! other task. What is not pure says how it continues.
//!
//! A call may also count the operators that it parses ([`crate::counted`]).

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinion_wire::{ErrorCode, Result};

use crate::error::error;
use crate::operator_uses::OperatorUses;

/// Units of work, each about a nanosecond: memory is filled for the first time at about one byte
/// each.
pub type Units = u64;

/// What a step of an evaluation costs.
pub(crate) const STEP: Units = 30;
/// What each byte of a value costs that is looked through, copied, or both.
pub(crate) const BYTE: Units = 4;
/// What it costs to pass a field or an item.
pub(crate) const ITEM: Units = 5;
/// What it costs to make a path known, with its name and its place among others.
pub(crate) const PATH: Units = 300;
/// After how much work a call inside of [`until`] checks whether it must stop.
const CHUNK: Units = 1_000_000;

thread_local! {
    static LEFT: Cell<Units> = const { Cell::new(Units::MAX) };
    static EXHAUSTED: Cell<bool> = const { Cell::new(false) };
    static STOP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
    static USES: RefCell<Option<OperatorUses>> = const { RefCell::new(None) };
}

/// Counts no operators from now on, also when a call panics.
struct EndCount;

impl Drop for EndCount {
    fn drop(&mut self) {
        USES.take();
    }
}

/// Calls `f`, and gives what [`count`] has counted meanwhile.
pub(crate) fn counting<T>(f: impl FnOnce() -> T) -> (T, OperatorUses) {
    let _ended = EndCount;
    USES.replace(Some(OperatorUses::default()));
    let result = f();
    (result, USES.take().unwrap_or_default())
}

/// Counts operators, if the call counts them.
pub(crate) fn count(add: impl FnOnce(&mut OperatorUses)) {
    USES.with_borrow_mut(|uses| {
        if let Some(uses) = uses {
            add(uses);
        }
    });
}

/// Puts back what held before a call, also when that panics.
struct Restore(Units, Option<Arc<AtomicBool>>);

impl Drop for Restore {
    fn drop(&mut self) {
        LEFT.set(self.0);
        STOP.set(self.1.take());
        EXHAUSTED.set(false);
    }
}

/// Calls `f` with a budget; `None` when it did not suffice. Then `f` has changed nothing, or says
/// how to continue.
pub fn within<T>(budget: Units, f: impl FnOnce() -> Result<T>) -> Option<Result<T>> {
    let _restore = Restore(LEFT.replace(budget), STOP.take());
    EXHAUSTED.set(false);
    let result = f();
    // The error does not show this: an expression may replace errors of its parts.
    if EXHAUSTED.get() { None } else { Some(result) }
}

/// Calls `f` without a bound, until `stop` is set: then it fails.
pub fn until<T>(stop: Arc<AtomicBool>, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let _restore = Restore(LEFT.replace(CHUNK), STOP.replace(Some(stop)));
    EXHAUSTED.set(false);
    let result = f();
    if EXHAUSTED.get() {
        return Err(interrupted());
    }
    result
}

/// Accounts for work before it is done.
#[inline]
pub(crate) fn spend(units: Units) -> Result<()> {
    match LEFT.get().checked_sub(units) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => used_up(),
    }
}

/// Accounts for looking at `bytes` bytes.
#[inline]
pub fn spend_bytes(bytes: usize) -> Result<()> {
    spend(bytes as Units * BYTE)
}

/// What is left of the budget of a call inside of [`within`].
#[inline]
pub fn left() -> Units {
    LEFT.get()
}

/// Whether the call was refused for the work that it would take.
pub(crate) fn is_exhausted() -> bool {
    EXHAUSTED.get()
}

/// Fails where the call was refused for its work already, and an expression has put a value in the
/// place of that error.
pub(crate) fn check() -> Result<()> {
    if EXHAUSTED.get() {
        return Err(interrupted());
    }
    Ok(())
}

#[cold]
fn used_up() -> Result<()> {
    let continues = STOP.with_borrow(|stop| match stop {
        Some(stop) => !stop.load(Ordering::Relaxed),
        None => false,
    });
    if continues {
        LEFT.set(CHUNK);
        return Ok(());
    }
    // Whatever follows is refused as well, so that no part of the call does much of it.
    LEFT.set(0);
    EXHAUSTED.set(true);
    Err(interrupted())
}

/// The error of a call that was refused for its work, which says nothing but that.
pub(crate) fn interrupted() -> pinion_wire::Error {
    error(ErrorCode::INTERRUPTED.0, "operation was interrupted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_refuses_what_is_beyond_it_alone() {
        assert!(matches!(within(100, || spend(100)), Some(Ok(()))));
        assert!(within(100, || spend(101)).is_none());
        assert!(matches!(
            within(100, || spend(30).map(|()| left())),
            Some(Ok(70))
        ));
        // Also when the error is lost on the way.
        assert!(within(100, || Ok(spend(101).is_err())).is_none());
        assert!(spend(1 << 60).is_ok());
    }

    #[test]
    fn a_stopped_call_fails() {
        let stop = Arc::new(AtomicBool::new(false));
        let mut rounds = 0;
        let endless = until(stop.clone(), || -> Result<()> {
            loop {
                rounds += 1;
                if rounds == 1000 {
                    stop.store(true, Ordering::Relaxed);
                }
                spend(CHUNK)?;
            }
        });
        assert_eq!(endless.map_err(|e| e.code), Err(ErrorCode::INTERRUPTED));
        assert_eq!(rounds, 1000);
    }
}
