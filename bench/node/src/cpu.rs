//! CPU time of processes, from /proc.

use std::io;

/// Ticks a second in /proc on Linux.
const TICKS_PER_SEC: u64 = 100;

/// User plus system time of a process in microseconds (`None`: this process).
pub fn process_us(pid: Option<u32>) -> io::Result<u64> {
    let path = match pid {
        Some(pid) => format!("/proc/{pid}/stat"),
        None => "/proc/self/stat".into(),
    };
    let text = std::fs::read_to_string(path)?;
    // The name in parentheses may hold spaces: count fields after it.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<u64> = rest
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    let (user, system) = (
        fields.get(11).copied().unwrap_or(0),
        fields.get(12).copied().unwrap_or(0),
    );
    Ok((user + system) * 1_000_000 / TICKS_PER_SEC)
}
