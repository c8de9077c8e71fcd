//! From arguments and file to `Options`: every value checked, every refusal one line.

use std::ffi::OsString;
use std::path::PathBuf;

use pinion_process::options::{
    Arguments, DEFAULT_MAX_CONNECTIONS, KeyFileUse, OptionError, Program, Reader, bind_addresses,
    fork, log_rotate, member_auth, verbosity,
};

use super::Options;
use super::replication::replication;
use super::role::{cluster_role, cluster_version, default_port, fold_switches};
use super::table::OPTIONS;

/// What the arguments ask for.
#[derive(Debug, PartialEq)]
pub enum StartAction {
    /// Run a node.
    Run(Box<Options>),
    /// Print this text and end with success (`--help`, `--version`).
    Print(String),
}

const GIB: f64 = (1u64 << 30) as f64;
/// The smallest memory budget, as mongod has it.
const MIN_CACHE_GB: f64 = 0.25;
const MAX_CACHE_GB: f64 = 10_000.0;
const MAX_PARTITIONS: u64 = 256;
/// Reads the arguments (the first is the program's name) and the file they name.
///
/// # Errors
/// One line that names what is wrong.
pub fn parse<I>(argv: I, machine_memory_bytes: u64) -> Result<StartAction, OptionError>
where
    I: IntoIterator<Item = OsString>,
{
    let mut reader = match PROGRAM.read(argv)? {
        Arguments::Print(text) => return Ok(StartAction::Print(text)),
        Arguments::Run(reader) => reader,
    };
    fold_switches(reader.given_mut())?;
    build(&reader, machine_memory_bytes).map(|options| StartAction::Run(Box::new(options)))
}

const PROGRAM: Program = Program {
    name: "pinion",
    about: "A document database that speaks the MongoDB wire protocol",
    version,
    options: OPTIONS,
};

/// As mongod prints it, of the version whose behaviour this program has, for tools that read it.
fn version() -> String {
    let version = pinion_service::feature_version::compatible_version();
    let git_version = option_env!("PINION_GIT_VERSION").unwrap_or_default();
    let (pinion, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    format!(
        r#"db version v{version}
Build Info: {{
    "version": "{version}",
    "gitVersion": "{git_version}",
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

fn build(reader: &Reader, memory_bytes: u64) -> Result<Options, OptionError> {
    let cluster_role = cluster_role(reader)?;
    let port = reader.int("port", 0, 65_535)?.map(|port| port as u16);
    Ok(Options {
        dbpath: reader
            .last("dbpath")
            .unwrap_or_else(|| "./data".into())
            .into(),
        port: port.unwrap_or(default_port(cluster_role)),
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
        sync_delay_secs: reader.int("syncdelay", 0, 1_000_000)?.unwrap_or(60),
        slow_ms: reader.int("slowms", 0, 1_000_000_000)?,
        profile_level: profile_level(reader)?,
        profile_sample_rate: profile_sample_rate(reader)?,
        journal_commit_interval_ms: reader.int("journalCommitInterval", 1, 500)?.unwrap_or(100),
        cache_bytes: cache_bytes(reader, memory_bytes)?,
        lock_memory: reader.switch("lockMemory"),
        set_parameters: reader.set_parameters()?,
        cpus: reader.int("cpus", 1, 1_024)?.map(|n| n as usize),
        partitions: reader
            .int("partitions", 1, MAX_PARTITIONS)?
            .map(|n| n as u16),
        spin_micros: reader.int("spinMicros", 0, 10_000)?.unwrap_or(200),
        replication: replication(reader)?,
        cluster_role,
        cluster_version: cluster_version(reader, cluster_role)?,
        member_auth: member_auth(reader, KeyFileUse::OfSet)?,
        argv: reader.argv().to_vec(),
        parsed: reader.parsed(),
    })
}

fn cache_bytes(reader: &Reader, memory_bytes: u64) -> Result<u64, OptionError> {
    let Some(value) = reader.last("wiredTigerCacheSizeGB") else {
        let half = (memory_bytes as f64 - GIB) / 2.0;
        return Ok(half.max(MIN_CACHE_GB * GIB) as u64);
    };
    match value.parse::<f64>() {
        Ok(gb) if (MIN_CACHE_GB..=MAX_CACHE_GB).contains(&gb) => Ok((gb * GIB) as u64),
        _ => Err(OptionError(format!(
            "Invalid value '{value}' for --wiredTigerCacheSizeGB: expected {MIN_CACHE_GB} to {MAX_CACHE_GB}"
        ))),
    }
}

/// On the command line a number, in the file a word.
fn profile_level(reader: &Reader) -> Result<i64, OptionError> {
    let Some(mode) = reader.last("profile") else {
        return Ok(0);
    };
    match mode.as_str() {
        "0" | "off" => Ok(0),
        "1" | "slowOp" => Ok(1),
        "2" | "all" => Ok(2),
        other => Err(OptionError(format!(
            "Invalid value '{other}' for --profile: expected 0, 1, 2, off, slowOp or all"
        ))),
    }
}

fn profile_sample_rate(reader: &Reader) -> Result<f64, OptionError> {
    let Some(rate) = reader.last("slowOpSampleRate") else {
        return Ok(1.0);
    };
    match rate.parse::<f64>() {
        Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(rate),
        _ => Err(OptionError(format!(
            "Invalid value '{rate}' for --slowOpSampleRate: expected a number from 0 to 1"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use pinion_process::options::{OptionValue, Shape, Support};
    use pinion_service::node_info::{ClusterRole, ClusterVersion};

    use super::*;

    const MEMORY: u64 = 9 << 30;

    fn run(args: &[&str]) -> Result<Options, String> {
        let argv = std::iter::once("pinion")
            .chain(args.iter().copied())
            .map(OsString::from);
        match parse(argv, MEMORY) {
            Ok(StartAction::Run(options)) => Ok(*options),
            Ok(StartAction::Print(text)) => Err(text),
            Err(error) => Err(error.0),
        }
    }

    fn refused(args: &[&str], part: &str) {
        let error = run(args).expect_err("must be refused");
        assert!(error.contains(part), "{error:?} does not contain {part:?}");
        assert_eq!(error.lines().count(), 1, "{error:?}");
    }

    #[test]
    fn defaults() {
        let options = run(&[]).unwrap();
        assert_eq!(options.port, 27_017);
        assert_eq!(options.dbpath, PathBuf::from("./data"));
        assert_eq!(options.bind, vec![IpAddr::from(Ipv4Addr::LOCALHOST)]);
        assert!(options.loopback_only());
        assert_eq!(options.cache_bytes, 4 << 30);
        assert_eq!(
            (options.sync_delay_secs, options.journal_commit_interval_ms),
            (60, 100)
        );
    }

    #[test]
    fn values_and_their_ranges() {
        let options = run(&[
            "--dbpath",
            "/d",
            "--port",
            "0",
            "--bind_ip",
            "127.0.0.1,10.0.0.1",
            "--syncdelay=20",
            "-vv",
            "--wiredTigerCacheSizeGB",
            "0.25",
            "--setParameter",
            "a=1",
            "--setParameter",
            "b=2",
        ])
        .unwrap();
        assert_eq!(options.port, 0);
        assert!(!options.loopback_only());
        assert_eq!((options.sync_delay_secs, options.verbosity), (20, 2));
        assert_eq!(options.cache_bytes, 1 << 28);
        assert_eq!(options.set_parameters.len(), 2);
        refused(&["--port", "70000"], "from 0 to 65535");
        refused(&["--journalCommitInterval", "0"], "from 1 to 500");
        refused(&["--wiredTigerCacheSizeGB", "0.1"], "expected 0.25");
        refused(&["--bind_ip", "::1"], "--ipv6");
        refused(&["--setParameter", "x"], "name=value");
        refused(&["--nosuch"], "--nosuch");
    }

    #[test]
    fn the_version_is_printed_as_mongods() {
        let printed = run(&["--version"]).expect_err("it is printed");
        let (first, info) = printed.split_once("\nBuild Info: ").expect("two parts");
        let version = first.strip_prefix("db version v").expect("a version");
        assert!(version.split('.').count() == 3, "{version}");
        assert!(info.starts_with('{') && info.ends_with('}'), "{info}");
        for (name, value) in [("version", version), ("pinion", env!("CARGO_PKG_VERSION"))] {
            assert!(info.contains(&format!("\"{name}\": \"{value}\"")), "{info}");
        }
    }

    #[test]
    fn a_process_in_the_background_has_a_log() {
        refused(&["--fork"], "--fork has to be used with --logpath");
        assert!(run(&["--fork", "--logpath", "/l"]).unwrap().fork);
    }

    #[test]
    fn members_of_a_set() {
        let check = |args: &[&str], expected: Option<(&str, Option<u64>, u64)>| {
            let set = run(args).unwrap().replication;
            let found = set.as_ref().map(|set| {
                (
                    &*set.set_name,
                    set.oplog_bytes,
                    set.oplog_min_age.as_secs() / 60,
                )
            });
            assert_eq!(found, expected, "{args:?}");
        };
        check(&[], None);
        check(&["--replSet", "rs0"], Some(("rs0", None, 0)));
        check(
            &["--replSet=rs0", "--oplogSize=990"],
            Some(("rs0", Some(990 << 20), 0)),
        );
        check(
            &["--replSet=rs0", "--oplogMinRetentionHours", "1.5"],
            Some(("rs0", None, 90)),
        );
        refused(&["--oplogSize", "990"], "--oplogSize needs --replSet");
        refused(&["--replSet", "rs0/a:1,b:2"], "without its members");
        refused(&["--replSet=rs0", "--oplogSize=0"], "--oplogSize");
        refused(
            &["--replSet=rs0", "--oplogMinRetentionHours=-1"],
            "expected hours",
        );
        refused(
            &["--replSet=rs0", "--enableMajorityReadConcern=false"],
            "--enableMajorityReadConcern false is not supported",
        );
    }

    #[test]
    fn roles_in_a_cluster() {
        let role = |name: &str| {
            (
                "sharding.clusterRole".into(),
                OptionValue::Text(name.into()),
            )
        };
        let check = |args: &[&str], expected: (ClusterRole, u16)| {
            let options = run(&[&["--replSet=rs0"], args].concat()).unwrap();
            assert_eq!((options.cluster_role, options.port), expected, "{args:?}");
            options.parsed
        };
        check(&[], (ClusterRole::None, 27_017));
        let parsed = check(&["--shardsvr"], (ClusterRole::Shard, 27_018));
        assert!(parsed.contains(&role("shardsvr")), "{parsed:?}");
        let parsed = check(&["--configsvr"], (ClusterRole::Config, 27_019));
        assert!(parsed.contains(&role("configsvr")), "{parsed:?}");
        check(&["--configsvr", "--port=5"], (ClusterRole::Config, 5));
        refused(&["--replSet=rs0", "--shardsvr", "--configsvr"], "together");
        refused(&["--shardsvr"], "Cannot start a shardsvr as a standalone");
        refused(&["--configsvr"], "Cannot start a configsvr as a standalone");
        refused(&["--configdb", "c/a:1"], "it is an option of routers");
    }

    #[test]
    fn versions_of_clusters() {
        let shard = ["--replSet=rs0", "--shardsvr"];
        let version = |args: &[&str]| run(&[&shard, args].concat()).unwrap().cluster_version;
        assert_eq!(version(&[]), ClusterVersion::Newest);
        assert_eq!(version(&["--clusterVersion=4.4"]), ClusterVersion::V44);
        refused(
            &["--replSet=rs0", "--shardsvr", "--clusterVersion=4.2"],
            "expected 4.4",
        );
        refused(
            &["--replSet=rs0", "--clusterVersion=4.4"],
            "needs --shardsvr",
        );
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // A file of the test's own.
    fn members_with_a_key() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("pinion-keys-{}", std::process::id()));
        let file = path.to_str().unwrap();
        std::fs::write(&path, "- first1\n- second\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(run(&["--replSet=rs0"]).unwrap().member_auth, None);
        let with = |more: &[&str]| {
            let args = [&["--replSet=rs0", "--keyFile", file], more].concat();
            run(&args).map(|options| options.member_auth.unwrap())
        };
        let auth = with(&["--clusterAuthMode", "keyFile"]).unwrap();
        assert_eq!(auth.keys.all(), ["first1", "second"]);
        assert!(!auth.is_transition);
        assert!(with(&["--transitionToAuth"]).unwrap().is_transition);
        for mode in ["x509", "sendKeyFile", "sendX509"] {
            let error = with(&["--clusterAuthMode", mode]).unwrap_err();
            assert!(error.contains(&format!("--clusterAuthMode {mode} is not supported")));
        }
        refused(&["--keyFile", file], "--keyFile needs --replSet");
        for option in ["--transitionToAuth", "--clusterAuthMode=keyFile"] {
            refused(&["--replSet=rs0", option], "needs --keyFile");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        refused(
            &["--replSet=rs0", "--keyFile", file],
            &format!("permissions on {file} are too open"),
        );
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_not_there_stops_the_start() {
        for spec in OPTIONS {
            if let Support::No(_) = spec.support {
                let name = format!("--{}", spec.name);
                match spec.shape {
                    Shape::Switch => refused(&[&name], &name),
                    _ => refused(&[&name, "x"], &name),
                }
            }
        }
        refused(&["--storageEngine", "inMemory"], "one storage engine");
        assert!(run(&["--storageEngine", "wiredTiger"]).is_ok());
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // A file of the test's own.
    fn the_file_gives_values_and_the_command_line_wins() {
        let path = std::env::temp_dir().join(format!("pinion-options-{}.yaml", std::process::id()));
        let file = path.to_str().unwrap();
        std::fs::write(
            &path,
            "net:\n  port: 27099\n  bindIp: 127.0.0.1\nstorage:\n  dbPath: /x\n",
        )
        .unwrap();
        assert_eq!(run(&["--config", file]).unwrap().port, 27_099);
        assert_eq!(run(&["-f", file, "--port", "27100"]).unwrap().port, 27_100);
        std::fs::write(&path, "replication:\n  replSetName: rs0\n").unwrap();
        let options = run(&["--config", file]).unwrap();
        assert_eq!(options.replication.unwrap().set_name, "rs0");
        let text = "replication:\n  replSetName: rs0\nsharding:\n  clusterRole: configsvr\n";
        std::fs::write(&path, text).unwrap();
        let options = run(&["--config", file]).unwrap();
        assert_eq!(options.cluster_role, ClusterRole::Config);
        let options = run(&["--config", file, "--shardsvr"]).unwrap();
        assert_eq!(options.cluster_role, ClusterRole::Shard);
        std::fs::write(&path, "sharding:\n  clusterRole: both\n").unwrap();
        refused(&["--config", file], "expected shardsvr or configsvr");
        std::fs::write(&path, "# older form\nport = 27101\n\nreplSet=rs1\nquiet = true\nsetParameter = a=1\nsetParameter = b=2\n").unwrap();
        let options = run(&["--config", file]).unwrap();
        assert_eq!((options.port, options.quiet), (27_101, true));
        assert_eq!(options.replication.unwrap().set_name, "rs1");
        assert_eq!(options.set_parameters.len(), 2);
        std::fs::write(&path, "port = 27101\nnosuch = 1\n").unwrap();
        refused(&["--config", file], "Unrecognized option: nosuch");
        std::fs::write(&path, "quiet = maybe\n").unwrap();
        refused(&["--config", file], "quiet takes true or false");
        std::fs::write(&path, "security:\n  authorization: enabled\n").unwrap();
        refused(
            &["--config", file],
            "--authorization enabled is not supported",
        );
        std::fs::write(&path, "net:\n  tls:\n    mode: requireTLS\n").unwrap();
        refused(&["--config", file], "--tlsMode requireTLS is not supported");
        std::fs::write(&path, "storage:\n  dbpath: /x\n").unwrap();
        refused(&["--config", file], "Unrecognized option: storage.dbpath");
        std::fs::remove_file(&path).unwrap();
    }
}
