//! Faults that simulations of whole clusters must be able to find.

/// A planted fault, or none.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedFault {
    #[default]
    None,
    /// What a shard has refused as old is taken for the answer to the question for another.
    StaleDatabaseReturned,
    /// A table that a shard has refused as old is used again.
    StaleTableReturned,
    /// A write that is not retryable is sent again when its outcome is not known.
    RetryStartsAgain,
}

impl PlantedFault {
    /// All faults, each of which a campaign plants and must find.
    pub const ALL: &[PlantedFault] = &[
        PlantedFault::StaleDatabaseReturned,
        PlantedFault::StaleTableReturned,
        PlantedFault::RetryStartsAgain,
    ];
}
