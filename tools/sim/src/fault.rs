//! The faults that a campaign can plant: those of storage, and those of what stands above it.

use pinion_exec::PlantedFault as ExecFault;
use pinion_replication_node::PlantedFault as MemberFault;
use pinion_sharding_node::PlantedFault as ClusterNodeFault;
use pinion_sharding_router::PlantedFault as RouterFault;
use pinion_storage::PlantedFault;

/// A planted fault, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Storage(PlantedFault),
    /// Of reads and writes.
    Exec(ExecFault),
    /// Of a member of a replica set.
    Member(MemberFault),
    /// Of a shard or a config server.
    ClusterNode(ClusterNodeFault),
    /// Of a router.
    Router(RouterFault),
}

impl Fault {
    pub const NONE: Fault = Fault::Storage(PlantedFault::None);

    /// All faults, for a campaign that plants each.
    pub fn all() -> Vec<Fault> {
        let storage = PlantedFault::ALL.into_iter().map(Fault::Storage);
        let beyond = [
            Fault::Storage(PlantedFault::LateWritesMissed),
            Fault::Exec(ExecFault::IndexEntryForgotten),
            Fault::Exec(ExecFault::SkippedAtRenewal),
            Fault::Exec(ExecFault::RepeatedAtRenewal),
            Fault::Exec(ExecFault::ChangedAgain),
        ];
        storage.chain(beyond).collect()
    }

    /// Faults for a campaign of replica sets.
    pub fn of_sets() -> Vec<Fault> {
        let members = MemberFault::ALL.iter().copied().map(Fault::Member);
        let exec = ExecFault::OF_SETS.into_iter().map(Fault::Exec);
        let units = PlantedFault::OF_OPEN_UNITS.into_iter();
        let storage = units.chain(PlantedFault::OF_RUNS).map(Fault::Storage);
        members.chain(exec).chain(storage).collect()
    }

    /// Faults for a campaign of clusters.
    pub fn of_clusters() -> Vec<Fault> {
        let nodes = ClusterNodeFault::ALL.iter().copied();
        let routers = RouterFault::ALL.iter().copied();
        let nodes = nodes.map(Fault::ClusterNode);
        let exec = ExecFault::OF_CLUSTERS.into_iter().map(Fault::Exec);
        nodes
            .chain(routers.map(Fault::Router))
            .chain(exec)
            .collect()
    }

    /// How a command line names it.
    pub fn name(self) -> String {
        match self {
            Fault::Storage(fault) => format!("{fault:?}"),
            Fault::Exec(fault) => format!("{fault:?}"),
            Fault::Member(fault) => format!("{fault:?}"),
            Fault::ClusterNode(fault) => format!("{fault:?}"),
            Fault::Router(fault) => format!("{fault:?}"),
        }
    }

    /// All faults of all kinds of runs.
    pub fn every() -> impl Iterator<Item = Fault> {
        let of_one_set = Fault::all().into_iter().chain(Fault::of_sets());
        of_one_set.chain(Fault::of_clusters())
    }

    /// The fault of this name.
    pub fn named(name: &str) -> Option<Fault> {
        Fault::every().find(|fault| fault.name() == name)
    }

    /// That of reads and writes, if it is one.
    pub fn of_exec(self) -> ExecFault {
        match self {
            Fault::Exec(fault) => fault,
            _ => ExecFault::None,
        }
    }

    /// That of a shard or a config server, if it is one.
    pub fn of_cluster_node(self) -> ClusterNodeFault {
        match self {
            Fault::ClusterNode(fault) => fault,
            _ => ClusterNodeFault::None,
        }
    }

    /// That of a router, if it is one.
    pub fn of_router(self) -> RouterFault {
        match self {
            Fault::Router(fault) => fault,
            _ => RouterFault::None,
        }
    }
}
