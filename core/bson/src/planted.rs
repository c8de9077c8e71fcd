//! Errors planted to show that the comparison with MongoDB finds them. Only in builds with the
//! feature `planted`.

use core::sync::atomic::{AtomicU8, Ordering};

/// An error that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Documents are ordered by the names of their fields before the types of the values.
    ComparisonOrder = 1,
    /// `$mul` makes a missing field a 32-bit zero whatever it multiplies by.
    UpdateOperator = 2,
    /// A range of an index leaves out the value at its upper end.
    IndexBound = 3,
}

static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants the error of this name; false if there is none.
pub fn plant(name: &str) -> bool {
    let planted = match name {
        "comparison_order" => Planted::ComparisonOrder,
        "update_operator" => Planted::UpdateOperator,
        "index_bound" => Planted::IndexBound,
        _ => return false,
    };
    PLANTED.store(planted as u8, Ordering::Relaxed);
    true
}

/// Whether this error is planted.
pub fn is_planted(error: Planted) -> bool {
    PLANTED.load(Ordering::Relaxed) == error as u8
}
