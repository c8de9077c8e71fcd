//! The command line.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::protocol::{Concerns, Endpoint, Scheme, TlsOptions};
use crate::workload::{Kind, Properties, Spec};

/// What `run` does.
pub struct Settings {
    pub endpoint: Endpoint,
    pub tls: TlsOptions,
    pub spec: Arc<Spec>,
    pub concerns: Concerns,
    pub string_fields: bool,
    pub load_first: bool,
    pub connections: usize,
    pub pipeline: usize,
    pub threads: usize,
    pub cpus: Vec<usize>,
    /// Looks for replies without sleeping.
    pub busy_poll: bool,
    /// Operations a second; none: closed loop.
    pub target: Option<f64>,
    pub duration: Duration,
    pub warm_up: Duration,
    pub interval: Duration,
    pub timeout: Duration,
    pub drain: Duration,
    pub max_lag: Duration,
    pub compare_every: u64,
    pub allow_errors: u64,
    pub allow_misses: u64,
    /// Searches the highest rate at which the p99 is no longer than this.
    pub ramp_p99: Option<Duration>,
    pub server_pid: Option<u32>,
    /// How often the server is asked what it does beside answering; zero: never.
    pub events_every: Duration,
    /// Determines all choices; runs with the same seed make the same ones.
    pub seed: u64,
    pub json: Option<String>,
    pub quiet: bool,
}

pub fn command() -> Command {
    Command::new("pinion-bench")
        .about("Drives database servers over the wire and shows what was measured")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommand(run())
        .subcommand(report())
        .subcommand(engine())
        .subcommand(crate::peers::options())
        .subcommand(crate::soak::options())
        .subcommand(crate::streams::options())
        .subcommand(crate::echo::options())
}

fn engine() -> Command {
    Command::new("engine")
        .about("Measures the storage engine in process beside others; the arguments behind -- are that program's (-- --help)")
        .arg(flag("build", "builds that program anew first; PINION_ENGINE_TARGET names the directory to build in"))
        .arg(
            Arg::new("argument")
                .value_name("ARGUMENT")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .help("what to measure"),
        )
}

fn report() -> Command {
    Command::new("report")
        .about("Makes one HTML page of one or several results")
        .arg(
            Arg::new("result")
                .value_name("JSON")
                .num_args(1..)
                .required(true)
                .help("what --json of run, peers or engine has written"),
        )
        .arg(value("output", "FILE", "the page").default_value("report.html"))
}

pub fn value(name: &'static str, shown: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(shown).help(help)
}

pub fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

fn run() -> Command {
    let workload = value(
        "workload",
        "NAME",
        "load, read, update, insert, mixed, scan, index, batch-insert, transactions, storm, collections, ttl, large, or YCSB's a to f",
    );
    Command::new("run")
        .about("Runs one workload against one server; exit status 2 if the figures must not be used")
        .arg(value("uri", "URI", "mongodb://, redis:// or postgresql:// with [user:password@]host[:port][/database]").default_value("mongodb://127.0.0.1:27017"))
        .arg(workload)
        .arg(Arg::new("P").short('P').value_name("FILE|NAME=VALUE").action(ArgAction::Append).help("a YCSB property file, or one property; later ones win"))
        .arg(flag("load", "removes the workload's tables and loads recordcount documents first; with the workload load removes them only"))
        .arg(value("target", "OPS", "open loop: operations a second in all; without it the loop is closed"))
        .arg(value("ramp-p99-ms", "MS", "finds the highest open-loop rate whose p99 is at most this; each step lasts --duration"))
        .arg(value("duration", "SECS", "how long to measure (default 10, or until operationcount is done)"))
        .arg(value("warm-up", "SECS", "how long to run before measuring").default_value("2"))
        .arg(value("interval", "SECS", "length of the intervals of the series").default_value("1"))
        .arg(value("connections", "N", "connections in all").default_value("64"))
        .arg(value("pipeline", "N", "requests in flight on each connection").default_value("1"))
        .arg(value("threads", "N", "threads, among which the connections are divided").default_value("1"))
        .arg(value("cpus", "LIST", "pins the threads to these processors in turn, for example 1,3"))
        .arg(flag("busy-poll", "looks for replies without ever sleeping, as a client does to which latency is worth a processor; its CPU time is all there is"))
        .arg(value("w", "N|majority", "MongoDB: write concern"))
        .arg(value("journal", "BOOL", "MongoDB: write concern j; PostgreSQL: synchronous_commit"))
        .arg(value("wtimeout-ms", "MS", "MongoDB: write concern wtimeout"))
        .arg(value("read-concern", "LEVEL", "MongoDB: local, available, majority, linearizable or snapshot"))
        .arg(flag("retryable", "MongoDB: inserts and updates name a session and a number, as a driver's do by default"))
        .arg(value("redis-wait", "N", "Redis: each write waits for so many replicas, by a WAIT in the same packet"))
        .arg(value("read-preference", "MODE", "MongoDB: primary, secondary, ..."))
        .arg(flag("string-fields", "MongoDB: fields are strings instead of binary data, which YCSB writes"))
        .arg(value("compare-every", "N", "compares one reply in N byte for byte; 0: none").default_value("1000"))
        .arg(value("allow-errors", "N", "errors that do not fail the run").default_value("0"))
        .arg(value("allow-misses", "N", "missing documents that do not fail the run").default_value("0"))
        .arg(value("max-lag-ms", "MS", "open loop: the run is invalid if one request in 1,000 goes out later than this though a connection is free, or one reply in 1,000 is read so late").default_value("2"))
        .arg(value("drain", "SECS", "open loop: how long requests that were due may be sent after the end").default_value("5"))
        .arg(value("timeout", "SECS", "gives up when no reply comes for so long").default_value("30"))
        .arg(value("tls-ca", "FILE", "TLS: certificates to trust (PEM)"))
        .arg(value("tls-certificate-key-file", "FILE", "TLS: the client's certificate and key (PEM)"))
        .arg(flag("tls", "speaks TLS, as tls=true in the URI does"))
        .arg(flag("tls-insecure", "TLS: trusts any certificate"))
        .arg(value("server-pid", "PID", "counts the CPU time and memory of this process and its children"))
        .arg(value("events", "SECS", "asks the server so often for its checkpoints and other events (serverStatus, INFO, pg_stat_bgwriter); 0: never").default_value("1"))
        .arg(value("seed", "N", "determines the choices of operations, keys, fields and values; without it the clock gives one, and the result tells which"))
        .arg(value("json", "FILE", "writes the result as JSON (-: to standard output)"))
        .arg(flag("quiet", "no progress"))
}

pub fn number<T: std::str::FromStr>(matches: &ArgMatches, name: &str) -> Result<Option<T>, String> {
    match matches.get_one::<String>(name) {
        None => Ok(None),
        Some(text) => match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(format!("--{name} cannot be '{text}'")),
        },
    }
}

pub fn required<T: std::str::FromStr>(matches: &ArgMatches, name: &str) -> Result<T, String> {
    number(matches, name)?.ok_or_else(|| format!("--{name} is needed"))
}

pub fn secs(matches: &ArgMatches, name: &str) -> Result<Option<Duration>, String> {
    match number::<f64>(matches, name)? {
        None => Ok(None),
        Some(secs) if (0.0..=1e7).contains(&secs) => Ok(Some(Duration::from_secs_f64(secs))),
        Some(secs) => Err(format!("--{name} cannot be {secs}")),
    }
}

/// A seed that no run before has had: milliseconds since 1970.
fn seed_of_the_clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_millis() as u64)
}

fn at_least_one(matches: &ArgMatches, name: &str, most: usize) -> Result<usize, String> {
    match required(matches, name)? {
        number if (1..=most).contains(&number) => Ok(number),
        number => Err(format!("--{name} is 1 to {most}, not {number}")),
    }
}

impl Settings {
    pub fn from(matches: &ArgMatches) -> Result<Self, String> {
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let mut properties = Properties::default();
        for given in matches.get_many::<String>("P").into_iter().flatten() {
            properties.add(given)?;
        }
        if text("workload").is_none() && properties.names().next().is_none() {
            return Err("what to run? --workload NAME or -P FILE".into());
        }
        let spec = Spec::new(text("workload").as_deref(), &properties)?;
        let mut endpoint = Endpoint::parse(&text("uri").unwrap_or_default())?;
        endpoint.tls |= matches.get_flag("tls");
        let given_duration = secs(matches, "duration")?;
        let endless = spec.load || (spec.operations.is_some() && given_duration.is_none());
        let cpus = match text("cpus") {
            None => Vec::new(),
            Some(list) => list
                .split(',')
                .map(|cpu| {
                    cpu.trim()
                        .parse()
                        .map_err(|_| format!("--cpus cannot be '{list}'"))
                })
                .collect::<Result<_, _>>()?,
        };
        let settings = Self {
            endpoint,
            tls: TlsOptions {
                ca_file: text("tls-ca"),
                certificate_key_file: text("tls-certificate-key-file"),
                insecure: matches.get_flag("tls-insecure"),
            },
            concerns: Concerns {
                w: text("w"),
                journal: number(matches, "journal")?,
                wtimeout_ms: number(matches, "wtimeout-ms")?,
                read_concern: text("read-concern"),
                read_preference: text("read-preference"),
                retryable: matches.get_flag("retryable"),
                redis_wait: number(matches, "redis-wait")?,
            },
            string_fields: matches.get_flag("string-fields"),
            load_first: matches.get_flag("load"),
            connections: at_least_one(matches, "connections", 60_000)?,
            pipeline: at_least_one(matches, "pipeline", 1024)?,
            threads: at_least_one(matches, "threads", 1024)?,
            cpus,
            busy_poll: matches.get_flag("busy-poll"),
            target: number(matches, "target")?.or(spec.target),
            duration: if endless {
                Duration::from_secs(10_000_000)
            } else {
                given_duration.unwrap_or(Duration::from_secs(10))
            },
            // A load counts every document, and so does a run of a number of operations.
            warm_up: if endless {
                Duration::ZERO
            } else {
                secs(matches, "warm-up")?.unwrap_or_default()
            },
            interval: secs(matches, "interval")?.unwrap_or_default(),
            timeout: secs(matches, "timeout")?.unwrap_or_default(),
            drain: secs(matches, "drain")?.unwrap_or_default(),
            max_lag: Duration::from_secs_f64(
                required::<f64>(matches, "max-lag-ms")?.clamp(0.0, 1e6) / 1e3,
            ),
            compare_every: required(matches, "compare-every")?,
            allow_errors: required(matches, "allow-errors")?,
            allow_misses: required(matches, "allow-misses")?,
            ramp_p99: number::<f64>(matches, "ramp-p99-ms")?
                .map(|ms| Duration::from_secs_f64(ms.clamp(0.0, 1e6) / 1e3)),
            server_pid: number(matches, "server-pid")?,
            events_every: secs(matches, "events")?.unwrap_or_default(),
            seed: number(matches, "seed")?.unwrap_or_else(seed_of_the_clock),
            json: text("json"),
            quiet: matches.get_flag("quiet"),
            spec: Arc::new(spec),
        };
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<(), String> {
        if self.threads > self.connections {
            return Err("--threads needs at least as many --connections".into());
        }
        if self.interval < Duration::from_millis(10) {
            return Err("--interval is at least 0.01".into());
        }
        if self.target.is_some_and(|rate| !(rate > 0.0 && rate <= 1e9)) {
            return Err("--target is a rate above 0".into());
        }
        if self.spec.has(Kind::Transaction) && self.pipeline > 1 {
            return Err("a connection has one transaction at a time: --pipeline 1".into());
        }
        if self.concerns.retryable && self.pipeline > 1 {
            return Err("a session has one write at a time: --pipeline 1".into());
        }
        if self.concerns.retryable && self.endpoint.scheme != Scheme::MongoDb {
            return Err("--retryable is MongoDB's".into());
        }
        if self.concerns.redis_wait.is_some() && self.endpoint.scheme != Scheme::Redis {
            return Err("--redis-wait is Redis's".into());
        }
        if self.spec.has(Kind::Connect) && self.connections > 4096 {
            return Err("a storm has at most 4096 --connections under way".into());
        }
        if self.spec.has(Kind::Connect) && self.busy_poll {
            return Err("a storm's threads wait for the kernel: no --busy-poll".into());
        }
        if self.ramp_p99.is_some()
            && (self.target.is_some() || self.spec.load || self.spec.operations.is_some())
        {
            return Err(
                "--ramp-p99-ms finds the rate: no --target, no load and no operationcount".into(),
            );
        }
        if self.duration.is_zero() {
            return Err("--duration is above 0".into());
        }
        Ok(())
    }
}
