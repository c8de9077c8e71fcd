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

/// Which MongoDB's are the routers and config servers of a shard's cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClusterVersion {
    /// They speak as Pinion's own do.
    #[default]
    Newest,
    /// Those of MongoDB 4.4.
    V44,
}

/// How a node was started, and when. Each core has a copy.
#[derive(Clone)]
pub struct NodeInfo {
    pub options: ProcessOptions,
    pub cluster_role: ClusterRole,
    pub cluster_version: ClusterVersion,
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

/// Whether this node is, or is to be, a shard behind routers of MongoDB 4.4.
pub fn is_behind_v44() -> bool {
    node_info().cluster_version == ClusterVersion::V44
}
