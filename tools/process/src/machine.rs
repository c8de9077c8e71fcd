//! Facts about the machine, read once before the node starts.

#![allow(clippy::disallowed_methods)] // Before the runtime exists, on the main thread.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::Path;

use pinion_service::options::{HostInfo, ProcessUsage};

/// What hostInfo reports. Files that are not there leave their fields empty.
pub fn host_info() -> HostInfo {
    let memory_bytes = memory_bytes();
    let usable_cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as i32);
    HostInfo {
        hostname: first_line("/proc/sys/kernel/hostname"),
        cpus: distinct_cpus(&["processor"]).max(usable_cpus),
        usable_cpus,
        // Machines that report no sockets and cores have one, with all processors in it.
        physical_cpus: match distinct_cpus(&["physical id", "core id"]) {
            0 => usable_cpus,
            cores => cores,
        },
        sockets: distinct_cpus(&["physical id"]).max(1),
        numa_nodes: numa_nodes(),
        version: first_line("/proc/version"),
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

/// The least of the limits of this process's control group and of all those above it, as far as the
/// mount shows them.
fn cgroup_limit_bytes() -> Option<u64> {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_of_groups(&groups, |path| read_to_string(path).ok())
}

/// The same for the lines of `/proc/self/cgroup`, and with what files have.
fn limit_of_groups(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut limits = Vec::new();
    for (root, file, group) in memory_groups(groups) {
        // A group of another name space is not below the mount; its own limit is at the mount's
        // root then.
        for group in Path::new(group.trim_start_matches('/')).ancestors() {
            let text = read(&Path::new(root).join(group).join(file));
            // "max", or a number beyond any memory, is no limit.
            limits.extend(text.and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    limits.into_iter().min()
}

/// Where the hierarchies that limit memory are mounted, the file of a limit, and this process's
/// group in each.
fn memory_groups(groups: &str) -> Vec<(&'static str, &'static str, &str)> {
    const V2: (&str, &str) = ("/sys/fs/cgroup", "memory.max");
    const V1: (&str, &str) = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes");
    let mut found = vec![(V2.0, V2.1, "/"), (V1.0, V1.1, "/")];
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        if controllers.is_empty() {
            found.push((V2.0, V2.1, group));
        } else if controllers.split(',').any(|name| name == "memory") {
            found.push((V1.0, V1.1, group));
        }
    }
    found
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

/// What this process has used of the machine. A file that cannot be read leaves its fields zero.
pub fn process_usage() -> ProcessUsage {
    /// Linux reports processor time in hundredths of a second, whatever its own clock does.
    const TICK_US: u64 = 10_000;
    let stat = read_to_string("/proc/self/stat").unwrap_or_default();
    // The command's name, which may hold anything, stands in parentheses before the fields.
    let fields: Vec<u64> = stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| {
        let numbers = rest.split_whitespace();
        numbers.map(|field| field.parse().unwrap_or(0)).collect()
    });
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    let (resident_bytes, virtual_bytes) = process_memory();
    ProcessUsage {
        resident_bytes,
        virtual_bytes,
        max_resident_bytes: named("/proc/self/status", "VmHWM") * 1024,
        user_us: field(14) * TICK_US,
        system_us: field(15) * TICK_US,
        minor_faults: field(10),
        major_faults: field(12),
        read_bytes: named("/proc/self/io", "read_bytes"),
        written_bytes: named("/proc/self/io", "write_bytes"),
    }
}

/// The number after `name:` in a file of such lines.
fn named(path: &str, name: &str) -> u64 {
    let text = read_to_string(path).unwrap_or_default();
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let first = values
        .next()
        .and_then(|value| value.split_whitespace().next());
    first.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// How many different values the lines with these names have together in `/proc/cpuinfo`: sockets,
/// or cores.
fn distinct_cpus(names: &[&str]) -> i32 {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processors = text.split("\n\n").filter_map(|processor| {
        let value = |name: &&str| {
            let line = processor.lines().find(|line| line.starts_with(*name))?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        names.iter().map(value).collect::<Option<Vec<String>>>()
    });
    processors.collect::<BTreeSet<_>>().len() as i32
}

/// Nodes of memory; one where the system reports none.
fn numa_nodes() -> i32 {
    let ids = std::fs::read_dir("/sys/devices/system/node").map_or(0, |entries| {
        let names = entries.flatten().map(|entry| entry.file_name());
        let nodes = names.filter(|name| {
            let number = name.to_str().and_then(|name| name.strip_prefix("node"));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        });
        nodes.count() as i32
    });
    ids.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(groups: &str, files: &[(&str, &str)], expected: Option<u64>) {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| format!("{text}\n"))
        };
        assert_eq!(
            limit_of_groups(groups, read),
            expected,
            "{groups} {files:?}"
        );
    }

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_holds() {
        let service = "/sys/fs/cgroup/system.slice/pinion.service/memory.max";
        let slice = "/sys/fs/cgroup/system.slice/memory.max";
        let root = "/sys/fs/cgroup/memory.max";
        let v2 = "0::/system.slice/pinion.service\n";
        check(v2, &[], None);
        check(v2, &[(service, "max"), (slice, "max")], None);
        check(v2, &[(service, "600"), (slice, "max")], Some(600));
        check(
            v2,
            &[(service, "600"), (slice, "500"), (root, "700")],
            Some(500),
        );
        // In a container the group's own files are at the root of the mount.
        check("0::/../other\n", &[(root, "700")], Some(700));
        let v1 = "4:cpu,cpuacct:/x\n3:memory:/docker/a\n";
        let limit = "/sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes";
        let unlimited = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        check(
            v1,
            &[(limit, "300"), (unlimited, "9223372036854771712")],
            Some(300),
        );
        check("garbage\n", &[(root, "1")], Some(1));
    }
}
