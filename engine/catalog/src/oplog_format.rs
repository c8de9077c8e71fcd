//! In which form a primary logs what it does: where members of MongoDB 4.4 follow it, in one that
//! they understand.
//!
//! They refuse entries with fields of later versions, and differences of documents; and they remove
//! the surplus of capped collections themselves.

use std::rc::Rc;

use pinion_runtime::LocalBoxFuture;
use pinion_wire::{Error, ErrorCode, Result};

/// The form of the entries of a core.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OplogFormat {
    /// With all that members of Pinion can use.
    #[default]
    Native,
    /// As MongoDB 4.4 has them.
    V44,
}

struct Current(OplogFormat);

/// The form in which this core logs.
pub fn oplog_format() -> OplogFormat {
    pinion_runtime::try_core_local::<Current>().map_or(OplogFormat::default(), |current| current.0)
}

/// Sets the form of this core to that of a node that has opened.
pub(crate) fn begin() {
    pinion_runtime::set_core_local(Rc::new(Current(OplogFormat::default())));
}

/// Sets the form on every core. Nothing is logged meanwhile that depends on it.
pub fn set_oplog_format(form: OplogFormat) -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        pinion_runtime::on_all_cores(move |_| async move {
            pinion_runtime::set_core_local(Rc::new(Current(form)));
        })
        .await;
    })
}

/// Refuses what members of MongoDB 4.4 cannot follow, where there may be some.
///
/// # Errors
/// `InvalidOptions`, with what it is.
pub fn check_v44_can_follow(is_new: bool, what: &str) -> Result<()> {
    match is_new && oplog_format() == OplogFormat::V44 {
        true => Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "{what} cannot be used while the feature compatibility version is 4.4: members of MongoDB 4.4 could not follow"
            ),
        )),
        false => Ok(()),
    }
}
