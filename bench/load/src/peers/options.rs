//! The command line of `peers`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::cases::{self, Case};
use super::server::Kind;
use crate::options::{flag, number, required, secs, value};

/// What `peers` does.
pub struct Options {
    pub pinion: Option<PathBuf>,
    pub mongod: Option<PathBuf>,
    pub redis: Option<PathBuf>,
    pub postgres: Option<PathBuf>,
    pub uris: Vec<String>,
    pub cases: Vec<&'static Case>,
    pub idle_connections: usize,
    pub rounds: usize,
    pub records: u64,
    pub duration: Duration,
    pub warm_up: Duration,
    pub server_cpu: usize,
    pub client_cpu: usize,
    pub cache_gb: u32,
    pub checkpoint_secs: u64,
    /// More words of servers' command lines.
    pub words: Vec<(Kind, String)>,
    /// How late an open loop's requests may go out, as `run` takes it.
    pub max_lag_ms: String,
    /// The seed of the first turn; each turn after it has the next.
    pub seed: u64,
    pub directory: PathBuf,
    pub json: Option<PathBuf>,
}

pub fn command() -> Command {
    Command::new("peers")
        .about("Runs Pinion and other servers in turns, each on one core, and prints their ratios")
        .arg(
            Arg::new("case")
                .value_name("CASE")
                .num_args(0..)
                .help("what to measure (all: everything; without any: the closed loops)"),
        )
        .arg(value(
            "pinion",
            "PATH",
            "the node's binary; found beside this program",
        ))
        .arg(value(
            "mongod",
            "PATH",
            "MongoDB's mongod; left out without it",
        ))
        .arg(value(
            "redis",
            "PATH",
            "redis-server; found in PATH; '' leaves it out",
        ))
        .arg(value(
            "postgres",
            "PATH",
            "PostgreSQL's postgres, initdb beside it; found where Debian puts it; '' leaves it out",
        ))
        .arg(
            Arg::new("uri")
                .long("uri")
                .value_name("URI")
                .action(ArgAction::Append)
                .help(
                    "a server that runs already, MongoDB-compatible: neither pinned nor restarted",
                ),
        )
        .arg(
            Arg::new("server-option")
                .long("server-option")
                .value_name("SERVER=WORD")
                .action(ArgAction::Append)
                .help("one more word of that server's command line, behind the others: pinion=--lockMemory"),
        )
        .arg(flag(
            "quick",
            "100,000 records, 3 rounds of 5 s: an indication",
        ))
        .arg(value(
            "rounds",
            "N",
            "runs of each case and server, in turns (default 5)",
        ))
        .arg(value(
            "records",
            "N",
            "documents of 1 KB that are loaded (default 1000000)",
        ))
        .arg(value("duration", "SECS", "length of a run (default 60)"))
        .arg(value("warm-up", "SECS", "before each run (default 2)"))
        .arg(
            value(
                "syncdelay",
                "SECS",
                "time between checkpoints of all servers that have such a time",
            )
            .default_value("20"),
        )
        .arg(
            value(
                "cache-gb",
                "GB",
                "cache budget of Pinion and MongoDB, shared_buffers of PostgreSQL",
            )
            .default_value("4"),
        )
        .arg(
            value(
                "max-lag-ms",
                "MS",
                "open loops: a run is invalid if one request in 1,000 goes out, or one reply is read, later than this; more where the machine itself \
                 stands still for longer, which the echo server's row tells",
            )
            .default_value("2"),
        )
        .arg(
            value(
                "seed",
                "N",
                "the seed of the first round, as run takes it; each round after it has the next, the same for all its servers",
            )
            .default_value("1"),
        )
        .arg(value("idle-connections", "N", "of the case idle").default_value("5000"))
        .arg(value("server-cpu", "N", "the servers' processor").default_value("0"))
        .arg(value("client-cpu", "N", "the client's processor").default_value("1"))
        .arg(
            value(
                "directory",
                "DIR",
                "where the servers' data and logs go; made and removed",
            )
            .default_value("pinion-bench-peers"),
        )
        .arg(value(
            "json",
            "FILE",
            "writes the result, which report renders",
        ))
}

impl Options {
    pub fn from(matches: &ArgMatches) -> Result<Self, String> {
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let many = |name: &str| -> Vec<String> {
            matches
                .get_many::<String>(name)
                .into_iter()
                .flatten()
                .cloned()
                .collect()
        };
        let quick = matches.get_flag("quick");
        let mut names = many("case");
        let idle = names.is_empty() || names.iter().any(|name| name == "all" || name == "idle");
        let only_idle = names == ["idle"];
        names.retain(|name| name != "idle");
        if names.is_empty() && !only_idle {
            names = cases::USUAL.iter().map(|name| (*name).to_owned()).collect();
        }
        let program = |name: &str, usual: &[&str]| match text(name) {
            Some(given) if given.is_empty() => Ok(None),
            Some(given) => match super::server::find_program(&[&given]) {
                Some(found) => Ok(Some(found)),
                None => Err(format!("--{name}: there is no {given}")),
            },
            None => Ok(super::server::find_program(usual)),
        };
        let beside = std::env::current_exe()
            .ok()
            .map(|own| own.with_file_name("pinion").display().to_string());
        let pinion = program("pinion", &[beside.as_deref().unwrap_or("pinion"), "pinion"])?;
        if pinion.is_none() && text("pinion").is_none() {
            return Err("the node's binary is not beside this program: --pinion PATH".into());
        }
        Ok(Self {
            pinion,
            mongod: program("mongod", &[])?,
            redis: program("redis", &["redis-server"])?,
            postgres: program(
                "postgres",
                &["/usr/lib/postgresql/15/bin/postgres", "postgres"],
            )?,
            uris: many("uri"),
            cases: cases::named(&names)?,
            idle_connections: if idle {
                required(matches, "idle-connections")?
            } else {
                0
            },
            rounds: number(matches, "rounds")?
                .unwrap_or(if quick { 3 } else { 5 })
                .max(1),
            records: number(matches, "records")?.unwrap_or(if quick { 100_000 } else { 1_000_000 }),
            duration: secs(matches, "duration")?.unwrap_or(Duration::from_secs(if quick {
                5
            } else {
                60
            })),
            warm_up: secs(matches, "warm-up")?.unwrap_or(Duration::from_secs(if quick {
                1
            } else {
                2
            })),
            server_cpu: required(matches, "server-cpu")?,
            client_cpu: required(matches, "client-cpu")?,
            cache_gb: required(matches, "cache-gb")?,
            checkpoint_secs: required(matches, "syncdelay")?,
            words: many("server-option")
                .iter()
                .map(|given| server_option(given))
                .collect::<Result<_, _>>()?,
            max_lag_ms: required(matches, "max-lag-ms")?,
            seed: required(matches, "seed")?,
            directory: required::<PathBuf>(matches, "directory")?,
            json: text("json").map(PathBuf::from),
        })
    }
}

fn server_option(given: &str) -> Result<(Kind, String), String> {
    const STARTED: [Kind; 5] = [
        Kind::Pinion,
        Kind::MongoDb,
        Kind::Redis,
        Kind::Postgres,
        Kind::Echo,
    ];
    given
        .split_once('=')
        .and_then(|(name, word)| {
            let kind = STARTED.into_iter().find(|kind| kind.name() == name)?;
            Some((kind, word.to_owned()))
        })
        .ok_or_else(|| {
            let names = STARTED.map(Kind::name).join(", ");
            format!("--server-option is SERVER=WORD with a server of {names}, not '{given}'")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_option_names_the_server() {
        assert_eq!(
            server_option("redis=--io-threads=2"),
            Ok((Kind::Redis, "--io-threads=2".into()))
        );
        for wrong in ["--lockMemory", "uri=--lockMemory", "=x", ""] {
            assert!(server_option(wrong).is_err(), "{wrong}");
        }
    }
}
