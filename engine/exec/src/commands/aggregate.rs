//! `aggregate`.

use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

/// `aggregate`.
pub(crate) async fn aggregate(cmd: Invocation) -> Result<Reply> {
    let _ = cmd;
    Err(Error::new(ErrorCode::NOT_IMPLEMENTED, "aggregate"))
}
