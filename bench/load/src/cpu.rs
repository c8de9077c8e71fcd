//! CPU time and memory of processes, from the kernel.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Ticks a second in /proc on Linux.
const TICKS_PER_SEC: u64 = 100;

/// User plus system time of this process in microseconds.
pub fn own_us() -> u64 {
    // SAFETY: an all-zero rusage is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid place for the kernel to write to.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    assert_eq!(result, 0, "getrusage of the own process cannot fail");
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// Keeps the calling thread, and what it starts, on one processor.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero set is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is below the size of the set.
    unsafe { libc::CPU_SET(cpu.min(libc::CPU_SETSIZE as usize - 1), &mut set) };
    // SAFETY: `set` is valid during the call, and its size is given.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A child that stays on one processor from its first instruction on, and gets a signal when this
/// program ends, however it ends, so that nothing stays behind.
pub fn bind_child(command: &mut Command, cpu: usize, last_signal: libc::c_int) {
    let bind = move || {
        // SAFETY: the call takes numbers only.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, last_signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
        pin(cpu)
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(bind) };
}

/// Time that all processors of the machine were busy, in microseconds.
pub fn machine_us() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    // user, nice, system, then idle and iowait, then irq, softirq and what the host took.
    let busy: u64 = ticks.get(..3)?.iter().chain(ticks.get(5..8)?).sum();
    Some(busy * 1_000_000 / TICKS_PER_SEC)
}

/// A server's processes: CPU time in microseconds and resident memory.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    pub cpu_us: u64,
    pub resident_bytes: u64,
}

/// Sums a process and all that descend from it (PostgreSQL has a process for each connection), the
/// ended ones included.
pub fn server(pid: u32) -> io::Result<Server> {
    let mut processes = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.parse::<u32>().ok())
            && let Some(process) = Process::read(number)
        {
            processes.insert(number, process);
        }
    }
    if !processes.contains_key(&pid) {
        return Err(io::Error::other(format!("there is no process {pid}")));
    }
    let belongs = |mut number: u32| {
        // A chain of parents is short; the bound is against one that changes while it is read.
        for _ in 0..64 {
            if number == pid {
                return true;
            }
            match processes.get(&number) {
                Some(process) => number = process.parent,
                None => return false,
            }
        }
        false
    };
    let mut sum = Server {
        cpu_us: 0,
        resident_bytes: 0,
    };
    for (number, process) in &processes {
        if belongs(*number) {
            sum.cpu_us += process.ticks * 1_000_000 / TICKS_PER_SEC;
            sum.resident_bytes += process.resident_bytes;
        }
    }
    Ok(sum)
}

struct Process {
    parent: u32,
    ticks: u64,
    resident_bytes: u64,
}

impl Process {
    fn read(number: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        // The name in parentheses may hold spaces: count fields after it.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<u64> = rest
            .split_whitespace()
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        Some(Self {
            parent: *fields.get(1)? as u32,
            // User and system time, then that of children that have ended.
            ticks: fields.get(11..15)?.iter().sum(),
            resident_bytes: fields.get(21)? * 4096,
        })
    }
}
