//! What an interval cost: time, CPU, bytes to and from the device, space.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::plan::Counted;
use crate::session::{Outcome, text};

/// What the whole process, with every background thread, has used so far.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    cpu_user: Duration,
    cpu_system: Duration,
    device_read: u64,
    device_written: u64,
}

impl Usage {
    fn now() -> Outcome<Usage> {
        // SAFETY: getrusage fills in all of it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        };
        let io = std::fs::read_to_string("/proc/self/io").map_err(text)?;
        let field = |name: &str| {
            io.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
                .ok_or_else(|| format!("/proc/self/io has no {name}"))
        };
        let written = field("write_bytes:")?.saturating_sub(field("cancelled_write_bytes:")?);
        Ok(Usage {
            cpu_user: time(usage.ru_utime),
            cpu_system: time(usage.ru_stime),
            device_read: field("read_bytes:")?,
            device_written: written,
        })
    }
}

/// A measurement in progress.
pub struct Meter {
    begin: Instant,
    before: Usage,
    acknowledged: Option<Duration>,
}

impl Meter {
    pub fn start() -> Outcome<Meter> {
        Ok(Meter {
            before: Usage::now()?,
            begin: Instant::now(),
            acknowledged: None,
        })
    }

    /// The last operation has been acknowledged.
    pub fn acknowledged(&mut self) {
        self.acknowledged = Some(self.begin.elapsed());
    }

    /// The end: what was counted, and what it took.
    pub fn finish(self, counted: &Counted, dir: &Path) -> Outcome<Value> {
        let seconds = self.begin.elapsed().as_secs_f64();
        let after = Usage::now()?;
        let acknowledged = self.acknowledged.map_or(seconds, |time| time.as_secs_f64());
        let status = std::fs::read_to_string("/proc/self/status").map_err(text)?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"))
            .and_then(|kib| kib.trim().parse::<u64>().ok())
            .ok_or("/proc/self/status has no VmRSS")?;
        Ok(json!({
            "operations": counted.operations,
            "seconds": seconds,
            "acknowledged_seconds": acknowledged,
            "cpu_user_seconds": (after.cpu_user - self.before.cpu_user).as_secs_f64(),
            "cpu_system_seconds": (after.cpu_system - self.before.cpu_system).as_secs_f64(),
            "record_bytes_written": counted.bytes_written,
            "value_bytes_read": counted.bytes_read,
            "sum_of_values": format!("{:016x}", counted.sum),
            "writes_beside": counted.beside,
            "device_bytes_written": after.device_written.saturating_sub(self.before.device_written),
            "device_bytes_read": after.device_read - self.before.device_read,
            "space_bytes": space(dir)?,
            "resident_bytes": resident * 1024,
        }))
    }
}

/// Bytes that the files below `dir` take on the disk.
pub fn space(dir: &Path) -> Outcome<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).map_err(text)? {
        let entry = entry.map_err(text)?;
        // Files come and go while background work removes them.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        bytes += if metadata.is_dir() {
            space(&entry.path()).unwrap_or(0)
        } else {
            metadata.blocks() * 512
        };
    }
    Ok(bytes)
}
