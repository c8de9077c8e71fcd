//! The options a node is opened with.

use std::path::PathBuf;
use std::rc::Rc;

use pinion_service::node_info::{ClusterRole, ClusterVersion};
use pinion_service::options::ProcessOptions;
use pinion_storage::StorageOptions;

/// Options of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub process: ProcessOptions,
    pub storage: StorageOptions,
    pub db_path: PathBuf,
    /// What the node is started as in a sharded cluster.
    pub cluster_role: ClusterRole,
    /// Whose routers ask the shard.
    pub cluster_version: ClusterVersion,
    /// A fault that the simulation plants to see whether it would find it.
    #[doc(hidden)]
    pub planted_fault: PlantedFault,
}

/// The options of this node.
///
/// # Panics
/// Before the node is open on this core.
pub fn node_options() -> Rc<NodeOptions> {
    pinion_runtime::core_local()
}

/// Faults of reads and writes that simulations must be able to find.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedFault {
    #[default]
    None,
    /// An update removes the old entries of its document and forgets a new one.
    IndexEntryForgotten,
    /// What a transaction reads of one partition is later than its snapshot.
    SnapshotOfOneLater,
    /// A change stream that is resumed does not show the first event behind its token.
    EventSkippedAtResume,
    /// A change stream shows two events of one entry in the wrong order.
    EventsSwapped,
    /// A node that starts again forgets the transactions that are prepared.
    PreparedLostAtRestart,
    /// That a transaction is not known is answered before a majority has what this node knows.
    OutcomeNotAwaited,
    /// A read that takes a newer state passes over the next document.
    SkippedAtRenewal,
    /// A read that takes a newer state gives its last document again.
    RepeatedAtRenewal,
    /// An update changes a document again that has moved in the index that it walks.
    ChangedAgain,
    /// A shard does not compare versions again behind the gate.
    VersionUnchecked,
    /// A shard gives documents of a scan that it does not own.
    FilterSkippedInScans,
    /// A shard gives a document by its `_id` that it does not own.
    FilterSkippedById,
    /// A shard changes documents that it does not own.
    FilterSkippedInWrites,
}

impl PlantedFault {
    /// Those that only clients of a replica set can meet.
    pub const OF_SETS: [PlantedFault; 5] = [
        PlantedFault::SnapshotOfOneLater,
        PlantedFault::EventSkippedAtResume,
        PlantedFault::EventsSwapped,
        PlantedFault::PreparedLostAtRestart,
        PlantedFault::OutcomeNotAwaited,
    ];

    /// Those that only clients of a sharded cluster can meet.
    pub const OF_CLUSTERS: [PlantedFault; 4] = [
        PlantedFault::VersionUnchecked,
        PlantedFault::FilterSkippedInScans,
        PlantedFault::FilterSkippedById,
        PlantedFault::FilterSkippedInWrites,
    ];
}
