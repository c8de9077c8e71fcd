//! What a process says of itself, and how others prove to be members of its cluster.

use pinion_bson::RawDocumentBuf;

use crate::members::MemberAuth;

/// The options of any process of Pinion.
#[derive(Clone, Debug)]
pub struct ProcessOptions {
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
    pub host_info: HostInfo,
    /// The key file of the set that the node is a member of.
    pub member_auth: Option<MemberAuth>,
}

/// What `hostInfo` reports about the machine.
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

/// What the process has used of the machine since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUsage {
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    pub max_resident_bytes: u64,
    pub user_us: u64,
    pub system_us: u64,
    /// Page faults without and with a read from a device.
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Bytes read from and written to devices.
    pub read_bytes: u64,
    pub written_bytes: u64,
}
