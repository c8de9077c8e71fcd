//! Start options of a router, in mongos' names.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use pinion_process::log::Rotation;
use pinion_process::options::{
    Arguments, DEFAULT_MAX_CONNECTIONS, KeyFileUse, OptionError, OptionSpec, OptionValue, Program,
    Reader, Shape, Support, bind_addresses, fork, log_rotate, member_auth, no, verbosity, yes,
};
use pinion_service::members::MemberAuth;
use pinion_sharding_protocol::ConnectionString;

const NO_SECURITY: &str = "encryption is not available in this version";

/// Every option that mongos documents and a router has, and those that it refuses by name.
const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "config",
        short: 'f',
        path: "",
        shape: Shape::Value,
        support: Support::Yes,
        help: "YAML configuration file",
    },
    yes(
        "configdb",
        "sharding.configDB",
        Shape::Value,
        "The config servers: SET/HOST:PORT,HOST:PORT",
    ),
    yes(
        "port",
        "net.port",
        Shape::Value,
        "Port to listen on; 0 takes a free one [default: 27017]",
    ),
    yes(
        "bind_ip",
        "net.bindIp",
        Shape::Value,
        "Comma-separated addresses to listen on [default: localhost]",
    ),
    yes(
        "bind_ip_all",
        "net.bindIpAll",
        Shape::Switch,
        "Listen on every address",
    ),
    yes(
        "ipv6",
        "net.ipv6",
        Shape::Switch,
        "Listen on IPv6 addresses too",
    ),
    yes(
        "maxConns",
        "net.maxIncomingConnections",
        Shape::Value,
        "Most simultaneous connections [default: 65536]",
    ),
    yes(
        "logpath",
        "systemLog.path",
        Shape::Value,
        "Log file [default: standard output]",
    ),
    yes(
        "logappend",
        "systemLog.logAppend",
        Shape::Switch,
        "Append to the log file rather than move the old one aside",
    ),
    yes(
        "logRotate",
        "systemLog.logRotate",
        Shape::Value,
        "How a new log file is started: rename or reopen [default: rename]",
    ),
    yes(
        "quiet",
        "systemLog.quiet",
        Shape::Switch,
        "Leave out connection lines",
    ),
    OptionSpec {
        name: "verbose",
        short: 'v',
        path: "systemLog.verbosity",
        shape: Shape::Value,
        support: Support::Yes,
        help: "Log more: -v to -vvvvv",
    },
    yes(
        "fork",
        "processManagement.fork",
        Shape::Switch,
        "Run in the background; needs --logpath",
    ),
    yes(
        "pidfilepath",
        "processManagement.pidFilePath",
        Shape::Value,
        "File that receives the process id",
    ),
    yes(
        "slowms",
        "operationProfiling.slowOpThresholdMs",
        Shape::Value,
        "Operations that take longer are logged, in milliseconds [default: 100]",
    ),
    yes(
        "setParameter",
        "",
        Shape::Repeated,
        "Set a server parameter: NAME=VALUE",
    ),
    yes(
        "keyFile",
        "security.keyFile",
        Shape::Value,
        "The key that the nodes of the cluster know each other by",
    ),
    yes(
        "transitionToAuth",
        "security.transitionToAuth",
        Shape::Switch,
        "Let nodes of the cluster in that have no key yet",
    ),
    OptionSpec {
        name: "clusterAuthMode",
        short: '\0',
        path: "security.clusterAuthMode",
        shape: Shape::Value,
        support: Support::Only("keyFile", NO_SECURITY),
        help: "How the nodes of the cluster know each other: keyFile",
    },
    yes(
        "cpus",
        "",
        Shape::Value,
        "Number of cores to use [default: all of the affinity mask]",
    ),
    yes(
        "spinMicros",
        "",
        Shape::Value,
        "Most microseconds that a busy core spins before it parks [default: 200]",
    ),
    no("tlsMode", "net.tls.mode", Shape::Value, NO_SECURITY),
    no(
        "tlsCertificateKeyFile",
        "net.tls.certificateKeyFile",
        Shape::Value,
        NO_SECURITY,
    ),
    no("tlsCAFile", "net.tls.CAFile", Shape::Value, NO_SECURITY),
    no(
        "localThreshold",
        "replication.localPingThresholdMs",
        Shape::Value,
        "members that answer within 15 milliseconds of the nearest are chosen among",
    ),
    no(
        "test",
        "",
        Shape::Switch,
        "the tests of this program are in its source tree",
    ),
];

const PROGRAM: Program = Program {
    name: "pinion-router",
    about: "The router of a sharded cluster that speaks the MongoDB wire protocol",
    version,
    options: OPTIONS,
};

/// As mongos prints it.
fn version() -> String {
    let version = pinion_service::feature_version::compatible_version();
    let (pinion, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    format!(
        r#"mongos version v{version}
Build Info: {{
    "version": "{version}",
    "pinion": "{pinion}",
    "modules": [],
    "allocator": "mimalloc",
    "environment": {{
        "distarch": "{arch}",
        "target_arch": "{arch}"
    }}
}}"#
    )
}

/// What a router was started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The set of config servers, with some of its hosts.
    pub config_servers: ConnectionString,
    pub port: u16,
    pub bind: Vec<IpAddr>,
    pub max_connections: usize,
    pub log_path: Option<PathBuf>,
    pub log_append: bool,
    pub log_rotate: Rotation,
    pub quiet: bool,
    pub verbosity: u8,
    pub fork: bool,
    pub pid_file: Option<PathBuf>,
    pub slow_ms: Option<u64>,
    pub set_parameters: Vec<(String, String)>,
    pub member_auth: Option<MemberAuth>,
    pub cpus: Option<usize>,
    pub spin_micros: u64,
    pub argv: Vec<String>,
    pub parsed: Vec<(String, OptionValue)>,
}

/// What the arguments ask for.
#[derive(Debug, PartialEq)]
pub enum StartAction {
    /// Run a router.
    Run(Box<Options>),
    /// Print this text and end with success (`--help`, `--version`).
    Print(String),
}

/// Reads the arguments (the first is the program's name) and the file they name.
///
/// # Errors
/// One line that names what is wrong.
pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<StartAction, OptionError> {
    match PROGRAM.read(argv)? {
        Arguments::Print(text) => Ok(StartAction::Print(text)),
        Arguments::Run(reader) => Ok(StartAction::Run(Box::new(options(&reader)?))),
    }
}

fn options(reader: &Reader) -> Result<Options, OptionError> {
    Ok(Options {
        config_servers: config_servers(reader)?,
        port: reader.int("port", 0, 65_535)?.unwrap_or(27_017) as u16,
        bind: bind_addresses(reader)?,
        max_connections: reader
            .int("maxConns", 5, 1_000_000)?
            .map_or(DEFAULT_MAX_CONNECTIONS, |n| n as usize),
        log_path: reader.last("logpath").map(PathBuf::from),
        log_append: reader.switch("logappend"),
        log_rotate: log_rotate(reader)?,
        quiet: reader.switch("quiet"),
        verbosity: verbosity(reader)?,
        fork: fork(reader)?,
        pid_file: reader.last("pidfilepath").map(PathBuf::from),
        slow_ms: reader.int("slowms", 0, 1_000_000_000)?,
        set_parameters: reader.set_parameters()?,
        member_auth: member_auth(reader, KeyFileUse::OfCluster)?,
        cpus: reader.int("cpus", 1, 1_024)?.map(|n| n as usize),
        spin_micros: reader.int("spinMicros", 0, 10_000)?.unwrap_or(200),
        argv: reader.argv().to_vec(),
        parsed: reader.parsed(),
    })
}

/// The set of config servers, which a router cannot do without.
fn config_servers(reader: &Reader) -> Result<ConnectionString, OptionError> {
    let Some(text) = reader.last("configdb") else {
        return Err(OptionError(
            "error: no args for --configdb: a router needs the config servers of its cluster"
                .into(),
        ));
    };
    let string = ConnectionString::parse(&text)
        .map_err(|error| OptionError(format!("Invalid configdb: {}", error.message)))?;
    match string.set.is_empty() {
        true => Err(OptionError(format!(
            "Invalid value '{text}' for --configdb: expected SET/HOST:PORT,... of the config servers' replica set"
        ))),
        false => Ok(string),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str]) -> Result<Options, String> {
        let argv = std::iter::once("pinion-router").chain(args.iter().copied());
        match parse(argv.map(OsString::from)) {
            Ok(StartAction::Run(options)) => Ok(*options),
            Ok(StartAction::Print(text)) => Err(text),
            Err(error) => Err(error.0),
        }
    }

    #[test]
    fn options_of_a_router() {
        let options = run(&["--configdb", "c/a:1,b:2", "--port=0", "-vv"]).expect("it starts");
        assert_eq!(options.config_servers.to_string(), "c/a:1,b:2");
        assert_eq!((options.port, options.verbosity), (0, 2));
        let place = (
            "sharding.configDB".to_owned(),
            OptionValue::Text("c/a:1,b:2".into()),
        );
        assert!(options.parsed.contains(&place), "{:?}", options.parsed);
    }

    #[test]
    fn mistakes() {
        let check = |args: &[&str], part: &str| {
            let error = run(args).expect_err("it is refused");
            assert!(error.contains(part), "{error:?} does not contain {part:?}");
        };
        check(&[], "--configdb");
        check(&["--configdb", "a:1"], "expected SET/HOST:PORT");
        check(&["--configdb", "c/"], "Invalid configdb");
        check(&["--configdb", "c/a", "--dbpath", "x"], "--dbpath");
        check(
            &["--configdb", "c/a", "--tlsMode", "x"],
            "--tlsMode is not supported",
        );
        check(&["--version"], "mongos version v");
        check(&["--help"], "--configdb");
    }

    #[test]
    fn every_refused_option_is_named() {
        for spec in OPTIONS
            .iter()
            .filter(|spec| matches!(spec.support, Support::No(_)))
        {
            let name = format!("--{}", spec.name);
            let mut args = vec!["--configdb", "c/a", &name];
            if spec.shape != Shape::Switch {
                args.push("x");
            }
            let error = run(&args).expect_err("it is refused");
            assert!(error.contains(&name), "{error}");
        }
    }
}
