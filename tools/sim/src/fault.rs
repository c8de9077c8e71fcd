//! The faults that a campaign can plant: those of storage, and those of what stands above it.

use pinion_exec::PlantedFault as ExecFault;
use pinion_replication_node::PlantedFault as MemberFault;
use pinion_storage::PlantedFault;

/// A planted fault, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Storage(PlantedFault),
    /// Of reads and writes.
    Exec(ExecFault),
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

    /// How a command line names it.
    pub fn name(self) -> String {
        match self {
            Fault::Storage(fault) => format!("{fault:?}"),
            Fault::Exec(fault) => format!("{fault:?}"),
            Fault::Member(fault) => format!("{fault:?}"),
        }
    }

    /// All faults of both.
    pub fn every() -> impl Iterator<Item = Fault> {
        Fault::all().into_iter().chain(Fault::of_sets())
    }

    /// The fault of this name.
    pub fn named(name: &str) -> Option<Fault> {
        Fault::every().find(|fault| fault.name() == name)
    }

    /// That of reads and writes, if it is one.
    pub fn of_exec(self) -> ExecFault {
        match self {
            Fault::Exec(fault) => fault,
            Fault::Storage(_) | Fault::Member(_) => ExecFault::None,
        }
    }
}
