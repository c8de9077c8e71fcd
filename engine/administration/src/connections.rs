//! `connPoolStats`: the connections of this node to the other members of its set.

use pinion_exec::topology::replica_set;
use pinion_service::connections::{ConnectionPool, append_connections};
use pinion_wire::{Invocation, Reply, Result};

/// The pool that members' connections are of, as MongoDB names it.
const POOL: &str = "NetworkInterfaceTL-ReplNetwork";

/// `connPoolStats`.
pub(crate) async fn conn_pool_stats(_: Invocation) -> Result<Reply> {
    // Nothing is read of it, and MongoDB passes over fields that it does not know.
    let connections = match replica_set() {
        Some(set) => set.connections().await,
        None => Vec::new(),
    };
    let pool = ConnectionPool {
        name: POOL.to_owned(),
        connections,
    };
    let mut out = Reply::new();
    append_connections(&mut out, &[pool]);
    Ok(out)
}
