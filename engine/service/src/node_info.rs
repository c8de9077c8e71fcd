//! What all cores of a node know of it and none changes.

use std::rc::Rc;

use pinion_bson::ObjectId;
use pinion_runtime::Instant;

use crate::options::ProcessOptions;

/// What a node is in a sharded cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClusterRole {
    /// No member of a sharded cluster.
    #[default]
    None,
    /// A shard, whose clients are routers. It serves as a plain replica set until it is added to
    /// a cluster.
    Shard,
    /// A config server, which keeps the routing table.
    Config,
}

/// How a node was started, and when. Each core has a copy.
#[derive(Clone)]
pub struct NodeInfo {
    pub options: ProcessOptions,
    pub cluster_role: ClusterRole,
    /// Names this process in `topologyVersion`.
    pub process_id: ObjectId,
    /// Monotonic and wall clock.
    pub started: Instant,
    pub started_wall_ms: i64,
}

/// This node's.
///
/// # Panics
/// Before the node is open on this core.
pub fn node_info() -> Rc<NodeInfo> {
    pinion_runtime::core_local()
}
