//! The servers that are compared: how each is started, checkpointed and stopped, and what it
//! promises.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cpu;
use crate::protocol::{Concerns, Endpoint, Mongo, Postgres, Protocol, Resp, Scheme, Session};
use crate::workload::{Properties, Spec};

use std::sync::Arc;

/// How long a server may take until it answers; it may have a log to read.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// A server that ends sooner than this after its start may find its port taken, and is started
/// again so often.
const QUICK_END: Duration = Duration::from_secs(1);
const STARTS_AGAIN: usize = 20;
/// How long a server may take to end by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);
/// Less CPU time than this share of a core is a server at rest.
const REST_SHARE: f64 = 0.05;
const REST_WINDOW: Duration = Duration::from_millis(500);
/// A server that does not come to rest is measured all the same.
const REST_TIMEOUT: Duration = Duration::from_secs(90);
/// PostgreSQL takes no shorter time between checkpoints.
const POSTGRES_LEAST_CHECKPOINT_SECS: u64 = 30;

/// The servers that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Pinion,
    MongoDb,
    Redis,
    Postgres,
    /// The generator's own server that stores nothing: what the machine and the generator cost
    /// alone.
    Echo,
    /// A server that somebody else runs.
    Uri,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pinion => "pinion",
            Self::MongoDb => "mongodb",
            Self::Redis => "redis",
            Self::Postgres => "postgresql",
            Self::Echo => "echo",
            Self::Uri => "uri",
        }
    }
}

/// How writes are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// What a driver gets that asks for nothing.
    Default,
    /// When it is on the disk.
    Journaled,
}

/// What all servers have in common.
#[derive(Clone)]
pub struct Common {
    pub server_cpu: usize,
    pub cache_gb: u32,
    pub checkpoint_secs: u64,
    pub directory: PathBuf,
    /// More words of servers' command lines.
    pub words: Vec<(Kind, String)>,
}

/// A server of the comparison.
pub struct Server {
    pub kind: Kind,
    pub uri: String,
    program: PathBuf,
    common: Common,
    port: u16,
    process: Option<Child>,
    /// Each start's command line, as it was given last.
    pub command: Vec<String>,
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener
        .local_addr()
        .map(|address| address.port())
        .map_err(|error| error.to_string())
}

impl Server {
    /// A server that this program starts.
    pub fn own(kind: Kind, program: PathBuf, common: Common) -> Result<Self, String> {
        let port = free_port()?;
        let uri = match kind {
            Kind::Redis => format!("redis://127.0.0.1:{port}"),
            Kind::Postgres => format!("postgresql://postgres@127.0.0.1:{port}/postgres"),
            _ => format!("mongodb://127.0.0.1:{port}"),
        };
        Ok(Self {
            kind,
            uri,
            program,
            common,
            port,
            process: None,
            command: Vec::new(),
        })
    }

    /// A server that runs already, and is neither restarted nor pinned.
    pub fn given(uri: &str, common: Common) -> Result<Self, String> {
        Endpoint::parse(uri)?;
        Ok(Self {
            kind: Kind::Uri,
            uri: uri.into(),
            program: PathBuf::new(),
            common,
            port: 0,
            process: None,
            command: Vec::new(),
        })
    }

    pub fn scheme(&self) -> Result<Scheme, String> {
        Endpoint::parse(&self.uri).map(|endpoint| endpoint.scheme)
    }

    /// The process whose CPU time and memory are the server's.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Where its files are.
    pub fn data(&self) -> PathBuf {
        self.common.directory.join(self.kind.name())
    }

    /// The command line for this server's settings.
    fn arguments(&self) -> Vec<String> {
        let data = self.data().display().to_string();
        let (port, gb, secs) = (
            self.port.to_string(),
            self.common.cache_gb.to_string(),
            self.common.checkpoint_secs,
        );
        let mut out: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| out.extend(words.iter().map(|word| (*word).to_owned()));
        match self.kind {
            Kind::Pinion | Kind::MongoDb => {
                add(&["--dbpath", &data, "--port", &port]);
                add(&["--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", &gb]);
                add(&["--syncdelay", &secs.to_string()]);
                if self.kind == Kind::Pinion {
                    // What spinning takes would count as work.
                    add(&["--cpus", "1", "--spinMicros", "0"]);
                }
            }
            Kind::Redis => {
                add(&["--port", &port, "--bind", "127.0.0.1", "--dir", &data]);
                add(&["--save", "", "--appendonly", "yes"]);
                add(&["--appendfsync", "everysec"]);
            }
            Kind::Postgres => {
                let checkpoint = secs.max(POSTGRES_LEAST_CHECKPOINT_SECS);
                add(&["-D", &data, "-p", &port, "-k", &data]);
                for setting in [
                    "listen_addresses=127.0.0.1".into(),
                    format!("shared_buffers={gb}GB"),
                    "max_wal_size=8GB".into(),
                    "wal_writer_delay=100ms".into(),
                    "max_connections=200".into(),
                    format!("checkpoint_timeout={checkpoint}s"),
                ] {
                    add(&["-c", &setting]);
                }
            }
            Kind::Echo => add(&["echo", "--port", &port]),
            Kind::Uri => {}
        }
        let words = self.common.words.iter();
        words
            .filter(|(kind, _)| *kind == self.kind)
            .for_each(|(_, word)| add(&[word.as_str()]));
        out
    }

    /// Starts the server on its core, over what its directory has, and waits until it answers.
    pub fn start(&mut self) -> Result<(), String> {
        if self.kind == Kind::Uri {
            return self.ping();
        }
        let data = self.data();
        let failed = |error: std::io::Error| format!("{}: {error}", data.display());
        std::fs::create_dir_all(&data).map_err(failed)?;
        if self.kind == Kind::Postgres && !data.join("PG_VERSION").exists() {
            self.make_postgres()?;
        }
        self.spawn()?;
        let mut began = Instant::now();
        let mut again = 0;
        loop {
            let Err(why) = self.ping() else {
                return Ok(());
            };
            let ended = self.process.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                // What was killed may hold its port for a moment longer than it lives, where the
                // kernel cleans up its ring behind it; a supervisor starts it again.
                if began.elapsed() < QUICK_END && again < STARTS_AGAIN {
                    again += 1;
                    std::thread::sleep(QUICK_END / 4);
                    self.spawn()?;
                    began = Instant::now();
                    continue;
                }
                return Err(format!(
                    "{} ended with {status}; its log is {}",
                    self.kind.name(),
                    self.log().display()
                ));
            }
            if began.elapsed() > START_TIMEOUT {
                return Err(format!("{} does not answer: {why}", self.kind.name()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts the process.
    fn spawn(&mut self) -> Result<(), String> {
        let data = self.data();
        let failed = |error: std::io::Error| format!("{}: {error}", data.display());
        let arguments = self.arguments();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .map_err(failed)?;
        let mut command = Command::new(&self.program);
        command
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log);
        if self.kind == Kind::Postgres {
            as_postgres(&mut command)?;
        }
        // A PostgreSQL whose postmaster is killed leaves its other processes behind.
        let last_signal = if self.kind == Kind::Postgres {
            libc::SIGQUIT
        } else {
            libc::SIGKILL
        };
        cpu::bind_child(&mut command, self.common.server_cpu, last_signal);
        let process = command
            .spawn()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        self.command = std::iter::once(self.program.display().to_string())
            .chain(arguments)
            .collect();
        self.process = Some(process);
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.common
            .directory
            .join(format!("{}.log", self.kind.name()))
    }

    fn make_postgres(&self) -> Result<(), String> {
        let data = self.data();
        if let Some((uid, gid)) = postgres_user()? {
            for place in [&self.common.directory, &data] {
                std::os::unix::fs::chown(place, Some(uid), Some(gid))
                    .map_err(|error| format!("{}: {error}", place.display()))?;
            }
        }
        let initdb = self.program.with_file_name("initdb");
        let mut command = Command::new(&initdb);
        command
            .args(["--auth=trust", "--username=postgres", "--locale=C"])
            .args(["--encoding=UTF8", "--pgdata"])
            .arg(&data);
        as_postgres(&mut command)?;
        let done = command
            .output()
            .map_err(|error| format!("{}: {error}", initdb.display()))?;
        if done.status.success() {
            Ok(())
        } else {
            Err(format!(
                "initdb: {}",
                String::from_utf8_lossy(&done.stderr).trim()
            ))
        }
    }

    /// Ends the server in order.
    pub fn stop(&mut self) -> Result<(), String> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        // PostgreSQL waits for its clients at SIGTERM, and none is left that would end by itself.
        let signal = if self.kind == Kind::Postgres {
            libc::SIGINT
        } else {
            libc::SIGTERM
        };
        // SAFETY: the process is this one's child and not yet waited for, so the number is still
        // its own.
        unsafe { libc::kill(process.id() as i32, signal) };
        let began = Instant::now();
        while began.elapsed() < STOP_TIMEOUT {
            match process.try_wait() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(error.to_string()),
            }
        }
        let _ = process.kill();
        let _ = process.wait();
        Err(format!("{} did not end when asked to", self.kind.name()))
    }

    /// Ends the server at once, as a fault would.
    pub fn kill(&mut self) -> Result<(), String> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        process
            .kill()
            .and_then(|()| process.wait())
            .map(drop)
            .map_err(|error| error.to_string())
    }

    /// Has everything written to its place, so that nothing of one run is left to the next.
    pub fn checkpoint(&self) -> Result<(), String> {
        match (self.kind, self.scheme()?) {
            (Kind::Echo, _) | (_, Scheme::Redis) => Ok(()),
            (_, Scheme::MongoDb) => self.with::<Mongo, _>(|mongo, stream| mongo.fsync(stream)),
            (_, Scheme::Postgres) => self.with::<Postgres, _>(|_, stream| {
                crate::protocol::postgres_query(stream, "CHECKPOINT").map(drop)
            }),
        }
    }

    /// Sets what an acknowledgement means where it is the server's setting.
    pub fn set_durability(&self, durability: Durability) -> Result<(), String> {
        if self.kind != Kind::Redis {
            return Ok(());
        }
        let policy = match durability {
            Durability::Default => "everysec",
            Durability::Journaled => "always",
        };
        self.with::<Resp, _>(|resp, stream| {
            resp.command(stream, &["CONFIG", "SET", "appendfsync", policy])
                .map(drop)
        })
    }

    /// Waits until the server uses next to no CPU: until what a run has left behind is done.
    pub fn rest(&self) -> Result<(), String> {
        let Some(pid) = self.pid() else {
            return Ok(());
        };
        let used = || cpu::server(pid).map_err(|error| error.to_string());
        let began = Instant::now();
        let mut before = used()?;
        while began.elapsed() < REST_TIMEOUT {
            std::thread::sleep(REST_WINDOW);
            let now = used()?;
            let share =
                now.cpu_us.saturating_sub(before.cpu_us) as f64 / REST_WINDOW.as_micros() as f64;
            if share < REST_SHARE {
                break;
            }
            before = now;
        }
        Ok(())
    }

    fn ping(&self) -> Result<(), String> {
        match self.scheme()? {
            Scheme::MongoDb => self.with::<Mongo, _>(|mongo, stream| mongo.ping(stream)),
            // Redis answers an error while it reads its log.
            Scheme::Redis => self.with::<Resp, _>(|resp, stream| resp.ping(stream)),
            Scheme::Postgres => self.with::<Postgres, _>(|_, stream| {
                crate::protocol::postgres_query(stream, "SELECT 1").map(drop)
            }),
        }
    }

    /// Its name and version, as it reports them.
    pub fn version(&self) -> Result<String, String> {
        match self.scheme()? {
            Scheme::MongoDb => self.with::<Mongo, _>(|mongo, stream| mongo.server(stream)),
            Scheme::Redis => self.with::<Resp, _>(|resp, stream| resp.server(stream)),
            Scheme::Postgres => {
                self.with::<Postgres, _>(|postgres, stream| postgres.server(stream))
            }
        }
    }

    /// One connection for one question.
    fn with<P: Protocol, T>(
        &self,
        ask: impl FnOnce(&mut P, &mut dyn crate::protocol::Stream) -> Result<T, String>,
    ) -> Result<T, String> {
        let session = plain_session(&self.uri)?;
        let (mut protocol, mut transport) = P::open(&session)?;
        ask(&mut protocol, &mut transport)
    }

    /// Connections that are open and do nothing; they close when dropped.
    pub fn idle_connections(&self, count: usize) -> Result<Vec<TcpStream>, String> {
        let session = plain_session(&self.uri)?;
        (0..count)
            .map(|_| {
                // What a driver does before it leaves a connection idle.
                let (mut mongo, mut transport) = Mongo::open(&session)?;
                mongo.ping(&mut transport)?;
                transport
                    .into_plain()
                    .ok_or_else(|| "TLS was not asked for".into())
            })
            .collect()
    }

    /// What an acknowledgement survives.
    pub fn survives(&self, durability: Durability) -> &'static str {
        match (self.kind, durability) {
            (Kind::Pinion | Kind::MongoDb, Durability::Default) => {
                "process kill: but for the last 100 ms (journalCommitInterval); power cut: the same"
            }
            (Kind::Pinion | Kind::MongoDb, Durability::Journaled) => {
                "j: true; process kill: yes; power cut: yes"
            }
            (Kind::Redis, Durability::Default) => {
                "appendfsync everysec; process kill: yes (written before the reply); power cut: but for the last 1 to 2 s"
            }
            (Kind::Redis, Durability::Journaled) => {
                "appendfsync always; process kill: yes; power cut: yes"
            }
            (Kind::Postgres, Durability::Default) => {
                "synchronous_commit off, wal_writer_delay 100 ms; process kill: but for the last 300 ms; power cut: the same"
            }
            (Kind::Postgres, Durability::Journaled) => {
                "synchronous_commit on; process kill: yes; power cut: yes"
            }
            (Kind::Echo, _) => "stores nothing",
            (Kind::Uri, _) => "what that server says",
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(why) = self.stop() {
            eprintln!("pinion-bench: {why}");
        }
    }
}

/// A session that asks and measures nothing.
pub fn plain_session(uri: &str) -> Result<Session, String> {
    Ok(Session {
        endpoint: Endpoint::parse(uri)?,
        tls: None,
        spec: Arc::new(Spec::new(Some("read"), &Properties::default())?),
        concerns: Concerns::default(),
        string_fields: false,
    })
}

/// PostgreSQL refuses to run as root: its own user's numbers, where this is root.
fn postgres_user() -> Result<Option<(u32, u32)>, String> {
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").map_err(|error| error.to_string())?;
    let line = users
        .lines()
        .find(|line| line.starts_with("postgres:"))
        .ok_or("PostgreSQL does not run as root, and there is no user postgres")?;
    let number = |place: usize| {
        line.split(':')
            .nth(place)
            .and_then(|text| text.parse().ok())
    };
    match (number(2), number(3)) {
        (Some(uid), Some(gid)) => Ok(Some((uid, gid))),
        _ => Err("the user postgres has no numbers".into()),
    }
}

fn as_postgres(command: &mut Command) -> Result<(), String> {
    if let Some((uid, gid)) = postgres_user()? {
        command.uid(uid).gid(gid).current_dir("/");
    }
    Ok(())
}

/// The first of the places that has a program.
pub fn find_program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    names.iter().find_map(|name| {
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(|place| place.exists());
        }
        std::env::split_paths(&path)
            .map(|folder: PathBuf| folder.join(name))
            .find(|place: &PathBuf| Path::is_file(place))
    })
}
