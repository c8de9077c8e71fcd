//! `explain`.

use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

/// `explain`.
pub(crate) async fn explain(cmd: Invocation) -> Result<Reply> {
    let _ = cmd;
    Err(Error::new(ErrorCode::NOT_IMPLEMENTED, "explain"))
}
