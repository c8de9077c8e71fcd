//! One engine's process, as its parent sees it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::options::Options;
use crate::plan::Plan;
use crate::session::{Durability, Outcome, text};

/// Where the memory controller of cgroups is, in the version that has one hierarchy for each
/// controller and in the other.
const MEMORY_V1: &str = "/sys/fs/cgroup/memory";
const MEMORY_V2: &str = "/sys/fs/cgroup";

/// A group that bounds the memory of the processes in it, page cache included.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn make(name: &str, bytes: u64) -> Outcome<MemoryGroup> {
        let v1 = Path::new(MEMORY_V1).join("memory.limit_in_bytes").exists();
        let (parent, limit) = if v1 {
            (MEMORY_V1, "memory.limit_in_bytes")
        } else {
            (MEMORY_V2, "memory.max")
        };
        let dir = Path::new(parent).join(name);
        let why = |error: std::io::Error| {
            format!(
                "no memory cgroup {} can be made: {error}; --memory-mib needs one",
                dir.display()
            )
        };
        std::fs::create_dir_all(&dir).map_err(why)?;
        let group = MemoryGroup(dir.clone());
        // Without the file this is no cgroup, and writing would make a plain one.
        std::fs::metadata(dir.join(limit)).map_err(why)?;
        std::fs::write(dir.join(limit), bytes.to_string()).map_err(why)?;
        Ok(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The kernel refuses as long as a process is in it; then an empty group stays behind, which
        // costs nothing.
        let _ = std::fs::remove_dir(&self.0);
    }
}

pub struct Engine {
    pub name: &'static str,
    /// What it said of itself when it was open.
    pub opened: Value,
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    _memory: Option<MemoryGroup>,
}

/// An engine's directory.
pub fn dir(options: &Options, name: &str) -> PathBuf {
    options.dir.join(name)
}

impl Engine {
    /// Starts the process and opens the engine.
    pub fn open(
        options: &Options,
        name: &'static str,
        durability: Durability,
        checkpoints: bool,
    ) -> Outcome<Engine> {
        let memory = options
            .memory_bytes
            .map(|bytes| {
                MemoryGroup::make(
                    &format!("pinion-bench-{}-{name}", std::process::id()),
                    bytes,
                )
            })
            .transpose()?;
        let cpus: Vec<String> = options.cpus.iter().map(usize::to_string).collect();
        let program = std::env::current_exe().map_err(text)?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .args(["--engine", name])
            .arg("--dir")
            .arg(dir(options, name))
            .args(["--cache-bytes", &options.cache_bytes.to_string()])
            .args(["--data-bytes", &options.data_bytes().to_string()])
            .args(["--clients", &options.clients.to_string()])
            .args(["--cpus", &cpus.join(",")]);
        // As a node of Pinion has it while it is busy: what is freed is kept for longer than from
        // one checkpoint to the next.
        command.env("MIMALLOC_PURGE_DELAY", "150000");
        if durability == Durability::Commit {
            command.arg("--commit");
        }
        if checkpoints {
            command.arg("--checkpoints");
        }
        if let Some(MemoryGroup(group)) = &memory {
            command.env("PINION_BENCH_CGROUP", group.join("cgroup.procs"));
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let requests = process.stdin.take().ok_or("a child has its input")?;
        let answers = process.stdout.take().ok_or("a child has its output")?;
        let mut engine = Engine {
            name,
            opened: Value::Null,
            process,
            requests,
            answers: BufReader::new(answers),
            _memory: memory,
        };
        engine.opened = engine.answer()?;
        Ok(engine)
    }

    fn answer(&mut self) -> Outcome<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(text)?;
        if line.is_empty() {
            return Err(format!(
                "{}: the process ended: {:?}",
                self.name,
                self.process.wait()
            ));
        }
        let mut json: Value = serde_json::from_str(&line).map_err(text)?;
        match json["error"].as_str() {
            Some(why) => Err(format!("{}: {why}", self.name)),
            None => Ok(json["ok"].take()),
        }
    }

    fn ask(&mut self, request: &Value) -> Outcome<Value> {
        writeln!(self.requests, "{request}").map_err(|error| format!("{}: {error}", self.name))?;
        self.answer()
    }

    pub fn run(&mut self, plan: Plan) -> Outcome<Value> {
        self.ask(&json!({"do": "run", "plan": plan.to_json()}))
    }

    pub fn settle(&mut self) -> Outcome<()> {
        self.ask(&json!({"do": "settle"})).map(drop)
    }

    /// Closes the engine and waits until its process has ended.
    pub fn close(mut self) -> Outcome<()> {
        self.ask(&json!({"do": "close"}))?;
        let status = self.process.wait().map_err(text)?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{}: {status}", self.name))
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A process that was closed has ended, and killing it again does nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In the child: joins its memory group, if it has one, and keeps to its processors.
pub fn confine(cpus: &[usize]) -> Outcome<()> {
    if let Some(group) = std::env::var_os("PINION_BENCH_CGROUP") {
        std::fs::write(group, std::process::id().to_string()).map_err(text)?;
    }
    // SAFETY: an empty set is all zeros; the kernel reads it and keeps nothing.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    match result {
        0 => Ok(()),
        _ => Err(format!(
            "processors {cpus:?}: {}",
            std::io::Error::last_os_error()
        )),
    }
}
