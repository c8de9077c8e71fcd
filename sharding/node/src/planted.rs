//! Faults that simulations of whole clusters must be able to find.

/// A planted fault, or none.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedFault {
    #[default]
    None,
    /// A shard does not compare the versions of databases.
    DatabaseVersionUnchecked,
    /// The place of a new database is answered before a majority of the config servers has it.
    PlacementNotMajority,
    /// A definition stores its first phase alone.
    PhaseNotCheckpointed,
    /// A definition does not release its locks.
    LockLeaked,
    /// A definition leaves its gate closed.
    CriticalSectionLeaked,
    /// A drop leaves the chunks of the collection in the catalog of the cluster.
    DropLeavesChunks,
}

impl PlantedFault {
    /// Those that a campaign plants and must find.
    pub const ALL: &[PlantedFault] = &[
        PlantedFault::DatabaseVersionUnchecked,
        PlantedFault::PlacementNotMajority,
        PlantedFault::PhaseNotCheckpointed,
        PlantedFault::LockLeaked,
        PlantedFault::CriticalSectionLeaked,
        PlantedFault::DropLeavesChunks,
    ];
}
