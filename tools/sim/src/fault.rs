//! The faults that a campaign can plant: those of storage, and those of what stands above it.

use pinion_replication_node::PlantedFault as MemberFault;
use pinion_storage::PlantedFault;

/// A planted fault, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Storage(PlantedFault),
    /// An update removes the old entries of its document and forgets a new one.
    IndexEntryForgotten,
    /// Of a member of a replica set.
    Member(MemberFault),
}

impl Fault {
    pub const NONE: Fault = Fault::Storage(PlantedFault::None);

    /// All faults, for a campaign that plants each.
    pub fn all() -> Vec<Fault> {
        let storage = PlantedFault::ALL.into_iter().map(Fault::Storage);
        let beyond = [
            Fault::Storage(PlantedFault::LateWritesMissed),
            Fault::IndexEntryForgotten,
        ];
        storage.chain(beyond).collect()
    }

    /// Faults for a campaign of replica sets.
    pub fn of_sets() -> Vec<Fault> {
        let faults = MemberFault::FOUND.iter().copied();
        faults.map(Fault::Member).collect()
    }

    /// How a command line names it.
    pub fn name(self) -> String {
        match self {
            Fault::Storage(fault) => format!("{fault:?}"),
            Fault::Member(fault) => format!("{fault:?}"),
            fault @ Fault::IndexEntryForgotten => format!("{fault:?}"),
        }
    }

    /// All faults of both.
    pub fn every() -> impl Iterator<Item = Fault> {
        let members = MemberFault::ALL.iter().copied().map(Fault::Member);
        Fault::all().into_iter().chain(members)
    }

    /// The fault of this name.
    pub fn named(name: &str) -> Option<Fault> {
        Fault::every().find(|fault| fault.name() == name)
    }
}
