//! The command line: `run` compares, `serve` is what it starts for each engine.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::engines::{ENGINES, find};
use crate::session::{Durability, Outcome, Settings, text};

/// The intervals that can be asked for, in the order in which they are run.
pub const PHASES: [&str; 10] = [
    "load",
    "read",
    "scan",
    "scan-all",
    "read-changed",
    "read-while-write",
    "update",
    "insert",
    "update-sync",
    "insert-sync",
];

/// What `run` does.
pub struct Options {
    pub engines: Vec<&'static str>,
    pub phases: Vec<String>,
    pub dir: PathBuf,
    pub records: u64,
    pub value_bytes: usize,
    pub cache_bytes: u64,
    /// Memory that each engine's process may take, page cache included; none: no limit.
    pub memory_bytes: Option<u64>,
    pub clients: usize,
    pub cpus: Vec<usize>,
    pub rounds: usize,
    pub seconds: f64,
    pub writes: u64,
    pub sync_writes: u64,
    pub batch: usize,
    pub scan_len: usize,
    pub write_rate: f64,
    pub snapshot_ops: u64,
    pub seed: u64,
    pub keep: bool,
    pub json: Option<String>,
}

pub fn command() -> Command {
    Command::new("pinion-bench engine")
        .about("The storage engine in process beside RocksDB, WiredTiger, LMDB, redb and fjall")
        .subcommand_required(true)
        .subcommand(run())
        .subcommand(serve())
}

fn value(name: &'static str, shown: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(shown).help(help)
}

fn run() -> Command {
    Command::new("run")
        .about("Loads each engine, opens it again, and measures all of them in turns; exit status 2 if one was not measured")
        .arg(value("engines", "LIST", "pinion, rocksdb, wiredtiger, lmdb, redb, fjall (default: all); the ratios are those of the first"))
        .arg(value("phases", "LIST", "load, read, scan, scan-all, read-changed, read-while-write, update, insert, update-sync, insert-sync (default: all)"))
        .arg(value("dir", "DIR", "where each engine gets a directory; it must be on the device that is to be measured").default_value("/var/tmp/pinion-bench-engine"))
        .arg(value("records", "N", "records loaded").default_value("1000000"))
        .arg(value("value-bytes", "N", "bytes of a value; keys have 16").default_value("1000"))
        .arg(value("cache-mib", "N", "cache budget of each engine (default: twice the data, and 256)"))
        .arg(value("memory-mib", "N", "memory of each engine's process, page cache included, held by a memory cgroup (default: none; for data beyond cache give a little more than the cache)"))
        .arg(value("clients", "N", "tasks or threads that ask at once").default_value("1"))
        .arg(value("cpus", "LIST", "processors that an engine has, its background threads included").default_value("0"))
        .arg(value("rounds", "N", "measurements of each engine, all engines in turns").default_value("5"))
        .arg(value("seconds", "SECS", "length of one measurement of reads").default_value("3"))
        .arg(value("writes", "N", "inserts or updates of one measurement (default: a tenth of the records)"))
        .arg(value("sync-writes", "N", "the same, where each commit is durable before it is acknowledged").default_value("2000"))
        .arg(value("batch", "N", "records of one commit while loading").default_value("100"))
        .arg(value("scan-len", "N", "records of one scan").default_value("100"))
        .arg(value("write-rate", "OPS", "updates a second beside readers").default_value("5000"))
        .arg(value("snapshot-ops", "N", "records read at one snapshot").default_value("1000"))
        .arg(value("seed", "N", "determines the choices of keys").default_value("1"))
        .arg(Arg::new("keep").long("keep").action(ArgAction::SetTrue).help("leaves the directories"))
        .arg(value("json", "FILE", "writes the result as JSON"))
}

fn serve() -> Command {
    Command::new("serve")
        .about("One engine, driven line by line over standard input; started by run")
        .hide(true)
        .arg(value("engine", "NAME", "").required(true))
        .arg(value("dir", "DIR", "").required(true))
        .arg(value("cache-bytes", "N", "").required(true))
        .arg(value("data-bytes", "N", "").required(true))
        .arg(value("clients", "N", "").required(true))
        .arg(value("cpus", "LIST", "").required(true))
        .arg(Arg::new("commit").long("commit").action(ArgAction::SetTrue))
        .arg(
            Arg::new("checkpoints")
                .long("checkpoints")
                .action(ArgAction::SetTrue),
        )
}

fn given<T: std::str::FromStr>(matches: &ArgMatches, name: &str) -> Outcome<Option<T>> {
    match matches.get_one::<String>(name) {
        None => Ok(None),
        Some(value) => match value.parse() {
            Ok(parsed) => Ok(Some(parsed)),
            Err(_) => Err(format!("--{name} does not take {value:?}")),
        },
    }
}

fn required<T: std::str::FromStr>(matches: &ArgMatches, name: &str) -> Outcome<T> {
    given(matches, name)?.ok_or_else(|| format!("--{name} is missing"))
}

fn positive(matches: &ArgMatches, name: &str) -> Outcome<u64> {
    match required(matches, name)? {
        0 => Err(format!("--{name} must not be 0")),
        number => Ok(number),
    }
}

fn list(matches: &ArgMatches, name: &str) -> Option<Vec<String>> {
    let text = matches.get_one::<String>(name)?;
    Some(text.split(',').map(|word| word.trim().to_owned()).collect())
}

fn cpus(matches: &ArgMatches) -> Outcome<Vec<usize>> {
    let words = list(matches, "cpus").unwrap_or_default();
    words
        .iter()
        .map(|word| {
            word.parse()
                .map_err(|_| format!("--cpus does not take {word:?}"))
        })
        .collect()
}

impl Options {
    pub fn from(matches: &ArgMatches) -> Outcome<Options> {
        let engines = match list(matches, "engines") {
            None => ENGINES.iter().map(|engine| engine.name).collect(),
            Some(names) => names
                .iter()
                .map(|name| find(name).map(|engine| engine.name))
                .collect::<Outcome<_>>()?,
        };
        let phases = list(matches, "phases")
            .unwrap_or_else(|| PHASES.iter().map(|phase| (*phase).to_owned()).collect());
        if let Some(unknown) = phases
            .iter()
            .find(|phase| !PHASES.contains(&phase.as_str()))
        {
            return Err(format!(
                "no phase is called {unknown}; there are {}",
                PHASES.join(", ")
            ));
        }
        let records = positive(matches, "records")?;
        let value_bytes = required::<usize>(matches, "value-bytes")?;
        if !(16..=1 << 20).contains(&value_bytes) {
            return Err("--value-bytes must lie between 16 and 1048576".into());
        }
        let twice = (records * (value_bytes as u64 + 16) * 2 >> 20) + 256;
        Ok(Options {
            engines,
            phases,
            dir: required(matches, "dir")?,
            records,
            value_bytes,
            cache_bytes: given(matches, "cache-mib")?.unwrap_or(twice) << 20,
            memory_bytes: given::<u64>(matches, "memory-mib")?.map(|mib| mib << 20),
            clients: positive(matches, "clients")? as usize,
            cpus: cpus(matches)?,
            rounds: positive(matches, "rounds")? as usize,
            seconds: required(matches, "seconds")?,
            writes: given(matches, "writes")?.unwrap_or(records.div_ceil(10)),
            sync_writes: positive(matches, "sync-writes")?,
            batch: positive(matches, "batch")? as usize,
            scan_len: positive(matches, "scan-len")? as usize,
            write_rate: required(matches, "write-rate")?,
            snapshot_ops: positive(matches, "snapshot-ops")?,
            seed: required(matches, "seed")?,
            keep: matches.get_flag("keep"),
            json: given(matches, "json")?,
        })
    }

    pub fn has(&self, phase: &str) -> bool {
        self.phases.iter().any(|asked| asked == phase)
    }

    /// Bytes of the records that are loaded and of those that the rounds insert.
    pub fn data_bytes(&self) -> u64 {
        let inserted = self.rounds as u64 * (self.writes + self.sync_writes);
        (self.records + inserted) * (self.value_bytes as u64 + 16)
    }
}

/// The engine of a child, its settings and its processors.
pub fn child(matches: &ArgMatches) -> Outcome<(String, Settings, Vec<usize>)> {
    let cpus = cpus(matches)?;
    let settings = Settings {
        dir: required(matches, "dir")?,
        cache_bytes: required(matches, "cache-bytes")?,
        durability: match matches.get_flag("commit") {
            true => Durability::Commit,
            false => Durability::Interval,
        },
        checkpoints: matches.get_flag("checkpoints"),
        clients: required(matches, "clients")?,
        cores: cpus.len(),
        data_bytes: required(matches, "data-bytes")?,
    };
    let engine = required::<String>(matches, "engine").map_err(text)?;
    Ok((engine, settings, cpus))
}
