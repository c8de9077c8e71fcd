//! What the whole machine does, for collectors of diagnostic data.

#![allow(clippy::disallowed_methods)] // Reading procfs does not wait for a device.

use std::fs::read_to_string;

use pinion_bson::{DocBuilder, RawDocumentBuf};

/// Linux reports processor time in hundredths of a second, whatever its own clock does.
const TICK_MS: i64 = 10;

/// Counters of virtual memory that collectors take.
const VMSTAT: [&str; 6] = [
    "pgfault",
    "pgmajfault",
    "pgpgin",
    "pgpgout",
    "pswpin",
    "pswpout",
];

/// The sections `cpu`, `memory`, `vmstat` and `disks`, under the names that MongoDB has for them.
/// Files that cannot be read leave their sections empty.
pub fn system_metrics() -> RawDocumentBuf {
    let read = |path| read_to_string(path).unwrap_or_default();
    let mut out = DocBuilder::new();
    append_cpu(&mut out, &read("/proc/stat"));
    append_memory(&mut out, &read("/proc/meminfo"));
    append_vmstat(&mut out, &read("/proc/vmstat"));
    append_disks(&mut out, &read("/proc/diskstats"));
    out.finish()
}

fn append_cpu(out: &mut DocBuilder, stat: &str) {
    let numbers = |line: &str| -> Vec<i64> {
        let fields = line.split_whitespace().skip(1);
        fields.map(|field| field.parse().unwrap_or(0)).collect()
    };
    out.start_document("cpu");
    let cpus = stat.lines().filter(|line| {
        let number = line.strip_prefix("cpu");
        number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
    });
    out.append("num_cpus", cpus.count() as i64);
    for line in stat.lines() {
        match line.split_whitespace().next() {
            Some("cpu") => {
                let names = [
                    "user_ms",
                    "nice_ms",
                    "system_ms",
                    "idle_ms",
                    "iowait_ms",
                    "irq_ms",
                    "softirq_ms",
                    "steal_ms",
                    "guest_ms",
                    "guest_nice_ms",
                ];
                for (name, ticks) in names.into_iter().zip(numbers(line)) {
                    out.append(name, ticks * TICK_MS);
                }
            }
            Some(name @ ("ctxt" | "btime" | "processes" | "procs_running" | "procs_blocked")) => {
                if let Some(count) = numbers(line).first() {
                    out.append(name, *count);
                }
            }
            _ => {}
        }
    }
    out.end();
}

fn append_memory(out: &mut DocBuilder, meminfo: &str) {
    out.start_document("memory");
    for line in meminfo.lines() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        // What has another unit, or none, is no amount of memory.
        let amount = value.trim().strip_suffix(" kB");
        if let Some(kb) = amount.and_then(|kb| kb.trim().parse::<i64>().ok()) {
            out.append(&format!("{name}_kb"), kb);
        }
    }
    out.end();
}

fn append_vmstat(out: &mut DocBuilder, vmstat: &str) {
    out.start_document("vmstat");
    for line in vmstat.lines() {
        if let Some((name, value)) = line.split_once(' ')
            && VMSTAT.contains(&name)
        {
            out.append(name, value.trim().parse::<i64>().unwrap_or(0));
        }
    }
    out.end();
}

fn append_disks(out: &mut DocBuilder, diskstats: &str) {
    const NAMES: [&str; 11] = [
        "reads",
        "reads_merged",
        "read_sectors",
        "read_time_ms",
        "writes",
        "writes_merged",
        "write_sectors",
        "write_time_ms",
        "io_in_progress",
        "io_time_ms",
        "io_queued_ms",
    ];
    out.start_document("disks");
    for line in diskstats.lines() {
        let mut fields = line.split_whitespace().skip(2);
        let Some(disk) = fields.next() else {
            continue;
        };
        let counts: Vec<i64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        // Loop and memory devices that were never used say nothing.
        if counts.iter().take(NAMES.len()).all(|count| *count == 0) {
            continue;
        }
        out.start_document(disk);
        for (name, count) in NAMES.into_iter().zip(counts) {
            out.append(name, count);
        }
        out.end();
    }
    out.end();
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    fn check(append: fn(&mut DocBuilder, &str), text: &str, expected: &RawDocumentBuf) {
        let mut out = DocBuilder::new();
        append(&mut out, text);
        assert_eq!(&out.finish(), expected, "{text}");
    }

    #[test]
    fn processors() {
        let text = "cpu  1 2 3 4\ncpu0 1 1 1 1\ncpu1 0 1 2 3\nintr 5 6\nctxt 77\nprocs_running 2\n";
        let expected = rawdoc! { "cpu": {
            "num_cpus": 2i64, "user_ms": 10i64, "nice_ms": 20i64, "system_ms": 30i64, "idle_ms": 40i64,
            "ctxt": 77i64, "procs_running": 2i64,
        } };
        check(append_cpu, text, &expected);
        check(append_cpu, "", &rawdoc! { "cpu": { "num_cpus": 0i64 } });
    }

    #[test]
    fn memory() {
        let text = "MemTotal:  2048 kB\nActive(anon):  7 kB\nHugePages_Total:  3\n";
        let expected = rawdoc! { "memory": { "MemTotal_kb": 2048i64, "Active(anon)_kb": 7i64 } };
        check(append_memory, text, &expected);
        let expected = rawdoc! { "vmstat": { "pgfault": 9i64 } };
        check(append_vmstat, "nr_free_pages 3\npgfault 9\n", &expected);
    }

    #[test]
    fn disks() {
        let text = "7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n8 0 sda 1 2 3 4 5 6 7 8 9 10 11 12\n";
        let expected = rawdoc! { "disks": { "sda": {
            "reads": 1i64, "reads_merged": 2i64, "read_sectors": 3i64, "read_time_ms": 4i64, "writes": 5i64,
            "writes_merged": 6i64, "write_sectors": 7i64, "write_time_ms": 8i64, "io_in_progress": 9i64,
            "io_time_ms": 10i64, "io_queued_ms": 11i64,
        } } };
        check(append_disks, text, &expected);
    }
}
