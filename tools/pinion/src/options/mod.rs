//! Start options: the command line and the YAML file, in mongod's names, checked and turned into
//! one value.

mod parse;
mod replication;
mod role;
mod table;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use pinion_process::log::Rotation;
use pinion_process::options::OptionValue;
use pinion_service::members::MemberAuth;
use pinion_service::node_info::{ClusterRole, ClusterVersion};

use pinion_replication_node::MemberOptions;

pub use parse::{StartAction, parse};

/// What the node was started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Data directory.
    pub dbpath: PathBuf,
    /// TCP port; 0 takes a free one.
    pub port: u16,
    /// Addresses to listen on, in the order given.
    pub bind: Vec<IpAddr>,
    /// Most simultaneous connections.
    pub max_connections: usize,
    /// Log file; standard output when absent.
    pub log_path: Option<PathBuf>,
    /// Append to the log file rather than move the old one aside.
    pub log_append: bool,
    /// How a new log file is started.
    pub log_rotate: Rotation,
    /// Leave out connection lines.
    pub quiet: bool,
    /// 0 to 5.
    pub verbosity: u8,
    /// Another process runs the server.
    pub fork: bool,
    /// File that receives the process id.
    pub pid_file: Option<PathBuf>,
    /// Seconds between checkpoints; 0 takes none but those asked for.
    pub sync_delay_secs: u64,
    /// Operations that take longer than this number of milliseconds are logged.
    pub slow_ms: Option<u64>,
    /// Which operations are written to `system.profile`: none, slow ones, all; and which share of
    /// the slow ones.
    pub profile_level: i64,
    pub profile_sample_rate: f64,
    /// Most milliseconds between journal flushes.
    pub journal_commit_interval_ms: u64,
    /// Memory budget of the node in bytes.
    pub cache_bytes: u64,
    /// The budget is taken from the system at start, locked, and never given back.
    pub lock_memory: bool,
    /// `name=value` pairs for setParameter.
    pub set_parameters: Vec<(String, String)>,
    /// Number of cores to use; all of the affinity mask when absent.
    pub cpus: Option<usize>,
    /// Number of partitions of a new data directory.
    pub partitions: Option<u16>,
    /// Most microseconds that a busy core spins before it parks.
    pub spin_micros: u64,
    /// What makes the node a member of a replica set.
    pub replication: Option<MemberOptions>,
    /// What the node is in a sharded cluster.
    pub cluster_role: ClusterRole,
    /// Whose routers and config servers the shard has.
    pub cluster_version: ClusterVersion,
    /// The key of the set, which its members prove to each other to have.
    pub member_auth: Option<MemberAuth>,
    /// The arguments as given, for getCmdLineOpts.
    pub argv: Vec<String>,
    /// The options in the configuration file's shape (`path`, value as text or boolean), for
    /// getCmdLineOpts.
    pub parsed: Vec<(String, OptionValue)>,
}

impl Options {
    /// What may be the paths of files that the options name: the log, the process id, the key, the
    /// configuration.
    pub fn named_files(&self) -> Vec<&Path> {
        let texts = self.parsed.iter().filter_map(|(_, given)| match given {
            OptionValue::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let arguments = self.argv.iter().skip(1);
        let arguments = arguments.map(|word| {
            word.split_once('=')
                .map_or(word.as_str(), |(_, value)| value)
        });
        texts.chain(arguments).map(Path::new).collect()
    }

    /// Whether every address is a loopback one.
    pub fn loopback_only(&self) -> bool {
        self.bind.iter().all(IpAddr::is_loopback)
    }
}
