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
}

impl PlantedFault {
    /// All faults, each of which a campaign plants and must find.
    pub const ALL: &[PlantedFault] = &[
        PlantedFault::DatabaseVersionUnchecked,
        PlantedFault::PlacementNotMajority,
    ];
}
