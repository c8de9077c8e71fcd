//! Facts about the machine, read once before the node starts.

#![allow(clippy::disallowed_methods)] // Before the runtime exists, on the main thread.

use std::fs::read_to_string;

use pinion_exec::HostInfo;

/// What hostInfo tells. Files that are not there leave their fields empty.
pub fn host_info() -> HostInfo {
    let memory_bytes = memory_bytes();
    HostInfo {
        hostname: first_line("/proc/sys/kernel/hostname"),
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as i32),
        memory_bytes,
        memory_limit_bytes: cgroup_limit_bytes()
            .unwrap_or(memory_bytes)
            .min(memory_bytes),
        os_name: os_release("PRETTY_NAME"),
        os_version: os_release("VERSION_ID"),
        kernel: first_line("/proc/sys/kernel/osrelease"),
        cpu_arch: std::env::consts::ARCH.into(),
        cpu_model: cpu_model(),
        page_bytes: 4_096,
    }
}

/// Memory that this process may use: the machine's, or the control group's limit where it is less.
pub fn usable_memory_bytes() -> u64 {
    let all = memory_bytes();
    cgroup_limit_bytes().map_or(all, |limit| limit.min(all))
}

fn first_line(path: &str) -> String {
    read_to_string(path)
        .map(|text| text.lines().next().unwrap_or_default().to_string())
        .unwrap_or_default()
}

fn memory_bytes() -> u64 {
    let text = read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find(|line| line.starts_with("MemTotal:"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kb| kb.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

fn cgroup_limit_bytes() -> Option<u64> {
    [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .into_iter()
    .find_map(|path| first_line(path).parse().ok())
}

fn os_release(name: &str) -> String {
    let text = read_to_string("/etc/os-release").unwrap_or_default();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_default().trim_matches('"').to_string()
}

fn cpu_model() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':'))
        .map(|(_, model)| model.trim().to_string())
        .unwrap_or_default()
}

/// Resident and virtual memory of this process in bytes. Reading procfs does not wait for a device.
pub fn process_memory() -> (u64, u64) {
    let text = read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text
        .split_whitespace()
        .map(|field| field.parse::<u64>().unwrap_or(0) * 4_096);
    let all = pages.next().unwrap_or(0);
    (pages.next().unwrap_or(0), all)
}
