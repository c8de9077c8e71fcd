//! `pinion-bench peers`: servers in turns on one core, driven from another, and the ratios of what
//! they do.

mod cases;
mod disk;
mod options;
mod output;
mod results;
mod server;
mod targets;

use std::process::{Command, Stdio};
use std::time::Duration;

use clap::ArgMatches;
use serde_json::{Value, json};

use crate::{cpu, machine};
use cases::Case;
use options::Options;
use results::{Figures, Results, Spread};
use server::Durability;

pub use options::command as options;
pub use output::FORMAT;
pub use server::{Common, Kind, Server, find_program, plain_session};

/// Before a server's memory is looked at.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the raw disk is measured in each round.
const DISK: Duration = Duration::from_secs(2);
/// Reads of a warm-up for each document, at random: pages hold several documents, so next to none
/// stays cold.
const WARMING_READS: u64 = 2;

/// Runs everything, prints the ratios and writes the result. False if a run was not valid.
pub fn command(matches: &ArgMatches) -> Result<bool, String> {
    let options = Options::from(matches)?;
    raise_file_limit();
    if options.directory.exists() {
        return Err(format!(
            "{} is there already: this program makes and removes it",
            options.directory.display()
        ));
    }
    std::fs::create_dir_all(&options.directory)
        .map_err(|error| format!("{}: {error}", options.directory.display()))?;
    let directory = options
        .directory
        .canonicalize()
        .map_err(|error| error.to_string())?;
    let done = Comparison::new(&options, directory.clone()).and_then(Comparison::run);
    if let Err(error) = std::fs::remove_dir_all(&directory) {
        eprintln!("pinion-bench: {}: {error}", directory.display());
    }
    done
}

/// Ten thousand connections need as many files, in this process and in those that it starts.
fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place for the kernel to write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is valid during the call; a refusal leaves the limit as it was.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

struct Comparison<'a> {
    options: &'a Options,
    machine: Value,
    servers: Vec<Server>,
    results: Results,
    /// What `run` wrote in the last round, with its series.
    last: Vec<Value>,
    /// The seed of the current turn: a warm-up or a round of a case. Its servers make the same
    /// choices, and no turn those of another: an update that a server has seen before would change
    /// nothing.
    seed: u64,
    versions: Vec<(Kind, String)>,
    invalid: Vec<String>,
}

impl<'a> Comparison<'a> {
    fn new(options: &'a Options, directory: std::path::PathBuf) -> Result<Self, String> {
        let machine = machine::facts();
        let common = Common {
            server_cpu: options.server_cpu,
            cache_gb: options.cache_gb,
            checkpoint_secs: options.checkpoint_secs,
            directory,
            words: options.words.clone(),
        };
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let wanted = |kind: Kind| {
            options
                .cases
                .iter()
                .any(|case| case.servers.contains(&kind))
        };
        let programs = [
            (Kind::Pinion, options.pinion.clone()),
            (Kind::MongoDb, options.mongod.clone()),
            (Kind::Redis, options.redis.clone()),
            (Kind::Postgres, options.postgres.clone()),
            (Kind::Echo, Some(own)),
        ];
        let mut servers = Vec::new();
        for (kind, program) in programs {
            let idle = options.idle_connections > 0 && matches!(kind, Kind::Pinion | Kind::MongoDb);
            match program {
                Some(program) if wanted(kind) || idle => {
                    servers.push(Server::own(kind, program, common.clone())?);
                }
                None if wanted(kind) => {
                    eprintln!("pinion-bench: {} is not here and is left out", kind.name());
                }
                _ => {}
            }
        }
        for uri in &options.uris {
            servers.push(Server::given(uri, common.clone())?);
        }
        Ok(Self {
            options,
            machine,
            servers,
            results: Results::default(),
            last: Vec::new(),
            seed: options.seed,
            versions: Vec::new(),
            invalid: Vec::new(),
        })
    }

    fn run(mut self) -> Result<bool, String> {
        for place in 0..self.servers.len() {
            self.servers[place].start()?;
            let server = &self.servers[place];
            self.versions.push((server.kind, server.version()?));
        }
        if self.options.idle_connections > 0 {
            self.idle()?;
        }
        let mut loaded = false;
        for case in &self.options.cases {
            if !loaded {
                self.load()?;
            }
            self.case(case)?;
            loaded = !case.grows;
        }
        output::print(&self);
        if let Some(file) = &self.options.json {
            let text = serde_json::to_string_pretty(&output::json(&self))
                .map_err(|error| error.to_string())?;
            std::fs::write(file, text + "\n")
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(self.invalid.is_empty())
    }

    /// What connections cost that do nothing, before anything else has used memory.
    fn idle(&mut self) -> Result<(), String> {
        let count = self.options.idle_connections;
        for round in 0..self.options.rounds {
            for server in &mut self.servers {
                if !matches!(server.kind, Kind::Pinion | Kind::MongoDb) {
                    continue;
                }
                // What the first connections need once, and what allocators keep of the last round,
                // is not counted.
                server.stop()?;
                server.start()?;
                drop(server.idle_connections(100)?);
                std::thread::sleep(SETTLE);
                let resident = || match server.pid().map(cpu::server) {
                    Some(Ok(usage)) => Ok(usage.resident_bytes as f64),
                    Some(Err(error)) => Err(error.to_string()),
                    None => Err("the server does not run".to_owned()),
                };
                let before = resident()?;
                let connections = server.idle_connections(count)?;
                std::thread::sleep(SETTLE);
                let bytes = (resident()? - before) / count as f64;
                drop(connections);
                eprintln!(
                    "idle {}/{}: {:10} {bytes:.0} bytes for each of {count} connections",
                    round + 1,
                    self.options.rounds,
                    server.kind.name()
                );
                self.results
                    .idle_bytes
                    .entry(server.kind)
                    .or_default()
                    .push(bytes);
            }
        }
        Ok(())
    }

    fn next_turn(&mut self) {
        self.seed = self.seed.wrapping_add(1);
    }

    /// Loads again, takes a checkpoint, restarts and reads until the caches are warm.
    fn load(&mut self) -> Result<(), String> {
        let records = self.options.records;
        for place in 0..self.servers.len() {
            if self.servers[place].kind == Kind::Echo {
                continue;
            }
            let load = ["--workload", "load", "--load", "-P", "batchsize=100"].map(str::to_owned);
            let loaded = self.drive(place, &load)?;
            if loaded["valid"] != json!(true) {
                let why = &loaded["invalid"];
                return Err(format!(
                    "the load of {}: {why}",
                    self.servers[place].kind.name()
                ));
            }
            eprintln!(
                "load: {:10} {:.0} documents a second",
                self.servers[place].kind.name(),
                loaded["documents_inserted"].as_f64().unwrap_or(0.0)
                    / loaded["elapsed_secs"].as_f64().unwrap_or(1.0)
            );
            let server = &mut self.servers[place];
            server.checkpoint()?;
            if server.kind != Kind::Uri {
                server.stop()?;
                server.start()?;
            }
            let reads = format!("operationcount={}", records * WARMING_READS);
            let warm = ["--workload", "read", "-P", &reads].map(str::to_owned);
            self.drive(place, &warm)?;
        }
        self.next_turn();
        Ok(())
    }

    fn case(&mut self, case: &'static Case) -> Result<(), String> {
        let Some(rate) = self.rate(case) else {
            eprintln!(
                "{}: the server that gives its rate was not measured",
                case.name
            );
            return Ok(());
        };
        for round in 0..self.options.rounds {
            if case.name == "insert-journaled-1" {
                let us = disk::durable_write_us(&self.options.directory, DISK)?;
                self.results.disk_us.push(us);
            }
            for place in 0..self.servers.len() {
                let kind = self.servers[place].kind;
                // A server of somebody else's stands where MongoDB stands.
                let like = if kind == Kind::Uri {
                    Kind::MongoDb
                } else {
                    kind
                };
                if !case.servers.contains(&like) {
                    continue;
                }
                self.one(case, round, place, rate)?;
            }
            self.next_turn();
        }
        Ok(())
    }

    /// The case's rate; nothing in it for a closed loop, none if it is not known.
    fn rate(&self, case: &Case) -> Option<Option<f64>> {
        match case.rate {
            None => Some(None),
            Some(of) => {
                let spread: Spread = self
                    .results
                    .spread(of.case, of.server, |figures| Some(figures.per_sec))?;
                Some(Some((spread.median * of.share).floor().max(1.0)))
            }
        }
    }

    fn one(
        &mut self,
        case: &'static Case,
        round: usize,
        place: usize,
        rate: Option<f64>,
    ) -> Result<(), String> {
        let kind = self.servers[place].kind;
        let mut words: Vec<String> = case.options.iter().map(|word| (*word).to_owned()).collect();
        let mut add = |name: &str, value: String| words.extend([name.to_owned(), value]);
        add("--connections", case.connections.to_string());
        add(
            "--duration",
            self.options.duration.as_secs_f64().to_string(),
        );
        add("--warm-up", self.options.warm_up.as_secs_f64().to_string());
        if let Some(rate) = rate {
            add("--target", rate.to_string());
            add("--max-lag-ms", self.options.max_lag_ms.clone());
        }
        match (case.durability, self.servers[place].scheme()?) {
            (_, crate::protocol::Scheme::Redis) => {}
            (Durability::Journaled, _) => add("--journal", "true".into()),
            (Durability::Default, crate::protocol::Scheme::Postgres) => {
                add("--journal", "false".into())
            }
            (Durability::Default, _) => {}
        }
        if case.fresh {
            add("-P", "table=inserts".into());
            words.push("--load".into());
        }
        if case.connections > 1000 {
            // Opening them takes the server some time.
            words.extend(["--timeout", "60"].map(str::to_owned));
        }
        if kind == Kind::Echo {
            // What it sends is no document that somebody wrote.
            words.extend(["--compare-every", "0"].map(str::to_owned));
        }
        for server in &self.servers {
            server.rest()?;
        }
        self.servers[place].set_durability(case.durability)?;
        let result = self.drive(place, &words)?;
        let figures = Figures::of(&result)
            .ok_or_else(|| format!("{}: the result of the run has no figures", case.name))?;
        for why in result["invalid"].as_array().into_iter().flatten() {
            self.invalid.push(format!(
                "{} {} round {}: {}",
                case.name,
                kind.name(),
                round + 1,
                why.as_str().unwrap_or_default()
            ));
        }
        eprintln!(
            "{} {}/{}: {:10} {:9.0}/s  p50 {:7.0} us  p99 {:7.0} us  CPU for each: server {} us, client {:.1} us{}{}",
            case.name,
            round + 1,
            self.options.rounds,
            kind.name(),
            figures.per_sec,
            figures.p50_us,
            figures.p99_us,
            figures
                .server_cpu_us
                .map_or("?".into(), |us| format!("{us:.1}")),
            figures.client_cpu_us,
            // An open loop's client spins until the next request is due.
            if rate.is_none() && figures.client_is_full() {
                "  CLIENT'S CORE FULL"
            } else {
                ""
            },
            if figures.valid { "" } else { "  INVALID" }
        );
        self.results.add(case.name, kind, figures);
        if round + 1 == self.options.rounds {
            self.last
                .push(json!({"case": case.name, "server": kind.name(), "result": result}));
        }
        if case.writes {
            self.servers[place].checkpoint()?;
        }
        Ok(())
    }

    /// One `run` as a process of its own on the client's core; gives its result.
    fn drive(&self, place: usize, words: &[String]) -> Result<Value, String> {
        let server = &self.servers[place];
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut uri = server.uri.clone();
        let own_table = words.iter().any(|word| word == "table=inserts");
        let mut records = self.options.records;
        if own_table {
            // Redis has no tables; another database is one, and it is what --load empties.
            if server.kind == Kind::Redis {
                uri.push_str("/1");
            }
            records /= 10;
        }
        let mut command = Command::new(own);
        command
            .args(["run", "--quiet", "--json", "-", "--uri", &uri])
            .args(words)
            .args(["-P", &format!("recordcount={records}")])
            .args(["--seed", &self.seed.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        if let Some(pid) = server.pid() {
            command.args(["--server-pid", &pid.to_string()]);
        }
        cpu::bind_child(&mut command, self.options.client_cpu, libc::SIGKILL);
        let done = command.output().map_err(|error| error.to_string())?;
        serde_json::from_slice(&done.stdout).map_err(|_| {
            format!(
                "the run {words:?} against {} gave no result",
                server.kind.name()
            )
        })
    }
}
