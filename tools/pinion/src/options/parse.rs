//! From arguments and file to `Options`: every value checked, every refusal one line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command};

use super::file::{Key, read};
use super::key_file::member_auth;
use super::replication::replication;
use super::table::{OPTIONS, OptionSpec, Shape, Support};
use super::{OptionValue, Options};
use crate::log::Rotation;

/// One line that says what is wrong with the options, or the help text asked for.
#[derive(Debug, PartialEq)]
pub struct OptionError(pub String);

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OptionError {}

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
/// mongod's default of `net.maxIncomingConnections` on Linux is bound by the open-file limit; this
/// is our own.
pub(crate) const DEFAULT_MAX_CONNECTIONS: usize = 65_536;

/// Reads the arguments (the first is the program's name) and the file they name.
pub fn parse<I>(argv: I, machine_memory_bytes: u64) -> Result<StartAction, OptionError>
where
    I: IntoIterator<Item = OsString>,
{
    let argv: Vec<OsString> = argv.into_iter().collect();
    let matches = match command().try_get_matches_from(&argv) {
        Ok(matches) => matches,
        Err(error) => return refuse(error),
    };
    if matches.get_flag(VERSION) {
        return Ok(StartAction::Print(version()));
    }
    let mut given: BTreeMap<&'static str, Vec<OptionValue>> = BTreeMap::new();
    if let Some(path) = matches.get_one::<String>("config") {
        let text = read_config(path)?;
        for (key, value) in read(&text, path)? {
            let (spec, value) = match key {
                Key::Path(path) => find_path(path, value)?,
                Key::Name(name) => find_name(&name, value)?,
            };
            given.entry(spec.name).or_default().push(value);
        }
    }
    for spec in OPTIONS {
        let values: Vec<OptionValue> = match spec.shape {
            Shape::Switch if matches.get_flag(spec.name) => vec![OptionValue::Switch(true)],
            Shape::Switch => continue,
            Shape::Value | Shape::Repeated => match matches.get_many::<String>(spec.name) {
                Some(values) => values
                    .map(|value| OptionValue::Text(value.clone()))
                    .collect(),
                None => continue,
            },
        };
        // The command line wins over the file; setParameter adds to it.
        let slot = given.entry(spec.name).or_default();
        if spec.shape != Shape::Repeated {
            slot.clear();
        }
        slot.extend(values);
    }
    check_support(&given)?;
    let argv = argv
        .iter()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    build(given, argv, machine_memory_bytes).map(|options| StartAction::Run(Box::new(options)))
}

const VERSION: &str = "version";

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

fn command() -> Command {
    let mut command = Command::new("pinion")
        .arg(
            Arg::new(VERSION)
                .long(VERSION)
                .action(ArgAction::SetTrue)
                .help("Print the version"),
        )
        .about("A document database that speaks the MongoDB wire protocol");
    for spec in OPTIONS {
        let mut arg = Arg::new(spec.name).long(spec.name).help(spec.help);
        if spec.short != '\0' {
            arg = arg.short(spec.short);
        }
        arg = match spec.shape {
            Shape::Switch => arg.action(ArgAction::SetTrue),
            Shape::Value => arg
                .action(ArgAction::Set)
                .num_args(1)
                .overrides_with(spec.name),
            Shape::Repeated => arg.action(ArgAction::Append).num_args(1),
        };
        if spec.name == "verbose" {
            arg = arg.num_args(0..=1).default_missing_value("1");
        }
        command = command.arg(arg.hide(spec.help.is_empty()));
    }
    command
}

fn refuse(error: clap::Error) -> Result<StartAction, OptionError> {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp => Ok(StartAction::Print(error.to_string())),
        _ => {
            let text = error.to_string();
            let line = text
                .lines()
                .next()
                .unwrap_or_default()
                .trim_start_matches("error: ");
            Err(OptionError(format!("Error parsing command line: {line}")))
        }
    }
}

#[allow(clippy::disallowed_methods)] // Before the runtime exists, on the main thread.
fn read_config(path: &str) -> Result<String, OptionError> {
    let bytes = std::fs::read(path)
        .map_err(|error| OptionError(format!("Error reading config file {path}: {error}")))?;
    String::from_utf8(bytes)
        .map_err(|_| OptionError(format!("Error reading config file {path}: it is not UTF-8")))
}

fn find_path(
    path: String,
    value: OptionValue,
) -> Result<(&'static OptionSpec, OptionValue), OptionError> {
    if let Some(name) = path.strip_prefix("setParameter.") {
        let spec = spec("setParameter");
        return Ok((spec, OptionValue::Text(format!("{name}={}", text(&value)))));
    }
    let found = OPTIONS
        .iter()
        .find(|spec| !spec.path.is_empty() && spec.path == path);
    let Some(spec) = found else {
        return Err(OptionError(format!("Unrecognized option: {path}")));
    };
    match (spec.shape, &value) {
        (Shape::Switch, OptionValue::Switch(_)) | (Shape::Value, _) => Ok((spec, value)),
        _ => Err(OptionError(format!(
            "{path} takes a boolean, not '{}'",
            text(&value)
        ))),
    }
}

/// An option of a file in the older form, which names it as the command line does.
fn find_name(
    name: &str,
    value: OptionValue,
) -> Result<(&'static OptionSpec, OptionValue), OptionError> {
    let found = OPTIONS.iter().find(|spec| spec.name == name);
    let Some(spec) = found.filter(|spec| spec.name != "config") else {
        return Err(OptionError(format!("Unrecognized option: {name}")));
    };
    match (spec.shape, text(&value).as_str()) {
        (Shape::Value | Shape::Repeated, _) => Ok((spec, value)),
        (Shape::Switch, "true") => Ok((spec, OptionValue::Switch(true))),
        (Shape::Switch, "false") => Ok((spec, OptionValue::Switch(false))),
        (Shape::Switch, other) => Err(OptionError(format!(
            "{name} takes true or false, not '{other}'"
        ))),
    }
}

fn spec(name: &str) -> &'static OptionSpec {
    OPTIONS
        .iter()
        .find(|spec| spec.name == name)
        .expect("a name of the table")
}

fn check_support(given: &BTreeMap<&'static str, Vec<OptionValue>>) -> Result<(), OptionError> {
    for (name, values) in given {
        let spec = spec(name);
        match spec.support {
            Support::Yes => {}
            // A switch that the file turns off asks for nothing.
            Support::No(_)
                if values
                    .iter()
                    .all(|value| *value == OptionValue::Switch(false)) => {}
            Support::No(why) => {
                return Err(OptionError(format!("--{name} is not supported: {why}")));
            }
            Support::Only(allowed, why) => {
                if let Some(value) = values.iter().find(|value| text(value) != allowed) {
                    let value = text(value);
                    return Err(OptionError(format!(
                        "--{name} {value} is not supported: {why}"
                    )));
                }
            }
        }
    }
    Ok(())
}

fn text(value: &OptionValue) -> String {
    match value {
        OptionValue::Switch(value) => value.to_string(),
        OptionValue::Int(value) => value.to_string(),
        OptionValue::Double(value) => value.to_string(),
        OptionValue::Text(value) => value.clone(),
    }
}

/// The values given, read one by one with their ranges.
pub(super) struct Reader {
    given: BTreeMap<&'static str, Vec<OptionValue>>,
}

impl Reader {
    pub(super) fn last(&self, name: &str) -> Option<String> {
        self.given
            .get(name)
            .and_then(|values| values.last())
            .map(text)
    }

    pub(super) fn switch(&self, name: &str) -> bool {
        self.last(name).is_some_and(|value| value == "true")
    }

    pub(super) fn int(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, OptionError> {
        let Some(value) = self.last(name) else {
            return Ok(None);
        };
        match value.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(OptionError(format!(
                "Invalid value '{value}' for --{name}: expected a whole number from {min} to {max}"
            ))),
        }
    }
}

fn build(
    given: BTreeMap<&'static str, Vec<OptionValue>>,
    argv: Vec<String>,
    memory_bytes: u64,
) -> Result<Options, OptionError> {
    let parsed = parsed(&given);
    let reader = Reader { given };
    let verbosity = match reader.last("verbose") {
        // mongod's -vvv: clap hands the rest of the letters over as the value.
        Some(value) if value.chars().all(|c| c == 'v') && !value.is_empty() => {
            (value.len() as u64 + 1).min(5)
        }
        Some(_) => reader.int("verbose", 0, 5)?.unwrap_or(0),
        None => 0,
    };
    Ok(Options {
        dbpath: reader
            .last("dbpath")
            .unwrap_or_else(|| "./data".into())
            .into(),
        port: reader.int("port", 0, 65_535)?.unwrap_or(27_017) as u16,
        bind: bind_addresses(&reader)?,
        max_connections: reader
            .int("maxConns", 5, 1_000_000)?
            .map_or(DEFAULT_MAX_CONNECTIONS, |n| n as usize),
        log_path: reader.last("logpath").map(PathBuf::from),
        log_append: reader.switch("logappend"),
        log_rotate: log_rotate(&reader)?,
        quiet: reader.switch("quiet"),
        verbosity: verbosity as u8,
        fork: fork(&reader)?,
        pid_file: reader.last("pidfilepath").map(PathBuf::from),
        sync_delay_secs: reader.int("syncdelay", 0, 1_000_000)?.unwrap_or(60),
        slow_ms: reader.int("slowms", 0, 1_000_000_000)?,
        profile_level: profile_level(&reader)?,
        profile_sample_rate: profile_sample_rate(&reader)?,
        journal_commit_interval_ms: reader.int("journalCommitInterval", 1, 500)?.unwrap_or(100),
        cache_bytes: cache_bytes(&reader, memory_bytes)?,
        lock_memory: reader.switch("lockMemory"),
        set_parameters: set_parameters(&reader)?,
        cpus: reader.int("cpus", 1, 1_024)?.map(|n| n as usize),
        partitions: reader
            .int("partitions", 1, MAX_PARTITIONS)?
            .map(|n| n as u16),
        spin_micros: reader.int("spinMicros", 0, 10_000)?.unwrap_or(200),
        replication: replication(&reader)?,
        member_auth: member_auth(&reader)?,
        argv,
        parsed,
    })
}

/// What has no terminal logs to a file.
fn fork(reader: &Reader) -> Result<bool, OptionError> {
    match (reader.switch("fork"), reader.last("logpath")) {
        (true, None) => Err(OptionError(
            "BadValue: --fork has to be used with --logpath or --syslog, and there is no --syslog"
                .into(),
        )),
        (fork, _) => Ok(fork),
    }
}

fn log_rotate(reader: &Reader) -> Result<Rotation, OptionError> {
    match reader.last("logRotate").as_deref() {
        None | Some("rename") => Ok(Rotation::Rename),
        Some("reopen") if !reader.switch("logappend") => Err(OptionError(
            "--logRotate reopen needs --logappend: otherwise the log would be moved aside at the next start".into(),
        )),
        Some("reopen") => Ok(Rotation::Reopen),
        Some(other) => Err(OptionError(format!(
            "Invalid value '{other}' for --logRotate: expected rename or reopen"
        ))),
    }
}

fn bind_addresses(reader: &Reader) -> Result<Vec<IpAddr>, OptionError> {
    let ipv6 = reader.switch("ipv6");
    if reader.switch("bind_ip_all") {
        let any = if ipv6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        return Ok(vec![any]);
    }
    let names = reader.last("bind_ip").unwrap_or_else(|| "localhost".into());
    let mut out: Vec<IpAddr> = Vec::new();
    for name in names.split(',').map(str::trim) {
        let found: Vec<IpAddr> = match name {
            "" => return Err(OptionError("--bind_ip has an empty address".into())),
            "*" if ipv6 => vec![Ipv6Addr::UNSPECIFIED.into()],
            "*" => vec![Ipv4Addr::UNSPECIFIED.into()],
            "localhost" if ipv6 => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            "localhost" => vec![Ipv4Addr::LOCALHOST.into()],
            _ => match name.parse::<IpAddr>() {
                Ok(address) => vec![address],
                Err(_) => resolve(name, ipv6)?,
            },
        };
        if found.iter().any(IpAddr::is_ipv6) && !ipv6 {
            return Err(OptionError(format!(
                "--bind_ip {name} is an IPv6 address: give --ipv6 too"
            )));
        }
        for address in found {
            if !out.contains(&address) {
                out.push(address);
            }
        }
    }
    Ok(out)
}

/// Host names are resolved once, before the runtime starts, because resolving blocks.
fn resolve(name: &str, ipv6: bool) -> Result<Vec<IpAddr>, OptionError> {
    let found: Vec<IpAddr> = (name, 0u16)
        .to_socket_addrs()
        .map_err(|error| OptionError(format!("--bind_ip {name} cannot be resolved: {error}")))?
        .map(|address| address.ip())
        .filter(|address| ipv6 || address.is_ipv4())
        .collect();
    if found.is_empty() {
        return Err(OptionError(format!(
            "--bind_ip {name} has no address of an enabled family"
        )));
    }
    Ok(found)
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

fn set_parameters(reader: &Reader) -> Result<Vec<(String, String)>, OptionError> {
    let Some(values) = reader.given.get("setParameter") else {
        return Ok(Vec::new());
    };
    let split = |value: &OptionValue| match text(value).split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_string(), value.to_string())),
        _ => Err(OptionError(format!(
            "Illegal option assignment '{}' for --setParameter: expected name=value",
            text(value)
        ))),
    };
    values.iter().map(split).collect()
}

/// The options in the configuration file's shape, numbers and booleans as such, as getCmdLineOpts
/// answers.
fn parsed(given: &BTreeMap<&'static str, Vec<OptionValue>>) -> Vec<(String, OptionValue)> {
    let mut out = Vec::new();
    for (name, values) in given {
        let spec = spec(name);
        match (spec.shape, values.last()) {
            (_, None) => {}
            (Shape::Repeated, _) => {
                for value in values {
                    if let Some((name, value)) = text(value).split_once('=') {
                        out.push((
                            format!("setParameter.{name}"),
                            OptionValue::Text(value.into()),
                        ));
                    }
                }
            }
            (_, Some(value)) => {
                let path = if spec.path.is_empty() {
                    spec.name
                } else {
                    spec.path
                };
                out.push((path.to_string(), typed(value)));
            }
        }
    }
    out
}

fn typed(value: &OptionValue) -> OptionValue {
    let OptionValue::Text(value) = value else {
        return value.clone();
    };
    if let Ok(number) = value.parse::<i64>() {
        return OptionValue::Int(number);
    }
    match value.parse::<f64>() {
        Ok(number) if number.is_finite() => OptionValue::Double(number),
        _ => OptionValue::Text(value.clone()),
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
