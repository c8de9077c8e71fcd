//! The options a node is opened with.

use std::path::PathBuf;

use pinion_bson::RawDocumentBuf;
use pinion_storage::StorageOptions;

use crate::members::MemberAuth;

/// Options of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub storage: StorageOptions,
    /// Pinion's own version.
    pub version: String,
    /// The revision it was built from, or empty.
    pub git_version: String,
    /// `host:port`, as clients may see it.
    pub host: String,
    pub port: u16,
    pub pid: u32,
    /// The command line, and the options in the form of a configuration file: what `getCmdLineOpts`
    /// answers.
    pub argv: Vec<String>,
    pub parsed: RawDocumentBuf,
    pub db_path: PathBuf,
    pub host_info: HostInfo,
    /// The key file of the set that the node is a member of.
    pub member_auth: Option<MemberAuth>,
    /// A fault that the simulation plants to see whether it would find it.
    #[doc(hidden)]
    pub planted_fault: PlantedFault,
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
}

/// What `hostInfo` reports about the machine
#[derive(Clone, Debug, Default)]
pub struct HostInfo {
    pub hostname: String,
    /// Processors of the machine, those that this process may use, and the cores that they are
    /// parts of.
    pub cpus: i32,
    pub usable_cpus: i32,
    pub physical_cpus: i32,
    pub sockets: i32,
    pub numa_nodes: i32,
    pub memory_bytes: u64,
    pub memory_limit_bytes: u64,
    pub os_name: String,
    pub os_version: String,
    pub kernel: String,
    /// The kernel with how it was built.
    pub version: String,
    pub cpu_arch: String,
    pub cpu_model: String,
    pub page_bytes: i64,
}
