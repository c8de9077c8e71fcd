//! Group commit: how several logs on one disk become durable at the same time.
//!
//! Each log writes 4 KiB frames one after another into space that was written before, and a frame
//! is committed when it is durable.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pinion_runtime::DmaBuf;

use crate::disk::{Disk, TestFile};
use crate::options::{Options, median};

const FRAME: u64 = 4096;
const LOG_BYTES: u64 = 16 << 20;

/// Commits a second over all logs, and the median and 99th percentile of one commit in
/// microseconds.
type Sample = (f64, f64, f64);
type Scheme = fn(&[TestFile], usize, Duration) -> Sample;

const SCHEMES: [(&str, Scheme); 3] = [
    ("own file, fdatasync each", flush_each),
    ("own file, RWF_DSYNC writes", synchronous_writes),
    ("one file, one flush for all", one_flush),
];

pub fn run(options: &Options) {
    println!(
        "\n# Group commit in {}: 4 KiB frames, preallocated and written files",
        options.directory.display()
    );
    println!(
        "{:<30} {:>5} {:>12} {:>9} {:>9}",
        "scheme", "logs", "commits/s", "p50 us", "p99 us"
    );
    let files: Vec<TestFile> = (0..8)
        .map(|log| TestFile::make(&options.directory, &format!("log-{log}"), LOG_BYTES))
        .collect();
    for logs in [1, 2, 4, 8] {
        let mut samples: [Vec<Sample>; 3] = Default::default();
        for _ in 0..options.rounds {
            for ((_, scheme), samples) in SCHEMES.iter().zip(&mut samples) {
                samples.push(scheme(&files, logs, options.duration()));
            }
        }
        for ((name, _), samples) in SCHEMES.iter().zip(&samples) {
            let pick = |f: fn(&Sample) -> f64| median(samples.iter().map(f).collect());
            println!(
                "{name:<30} {logs:>5} {:>12.0} {:>9.0} {:>9.0}",
                pick(|s| s.0),
                pick(|s| s.1),
                pick(|s| s.2)
            );
        }
    }
}

struct Clock {
    begin: Instant,
    latencies: Histogram<u64>,
}

impl Clock {
    fn start() -> Clock {
        Clock {
            begin: Instant::now(),
            latencies: Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds"),
        }
    }

    fn commit(&mut self, since: Instant) {
        self.latencies
            .saturating_record(since.elapsed().as_nanos() as u64);
    }

    fn finish(self) -> Sample {
        let rate = self.latencies.len() as f64 / self.begin.elapsed().as_secs_f64();
        let us = |q| self.latencies.value_at_quantile(q) as f64 / 1000.0;
        (rate, us(0.5), us(0.99))
    }
}

/// The place of a log's frame `n`, which goes round.
fn place(n: u64) -> u64 {
    n % (LOG_BYTES / FRAME) * FRAME
}

fn flush_each(files: &[TestFile], logs: usize, duration: Duration) -> Sample {
    independent(files, logs, duration, 0, true)
}

fn synchronous_writes(files: &[TestFile], logs: usize, duration: Duration) -> Sample {
    independent(files, logs, duration, libc::RWF_DSYNC, false)
}

/// Every log continues on its own: a write, a flush if the write is not durable by itself, the next
/// write.
fn independent(
    files: &[TestFile],
    logs: usize,
    duration: Duration,
    flags: i32,
    flush: bool,
) -> Sample {
    let mut disk = Disk::new();
    let frame = DmaBuf::zeroed(FRAME as usize);
    let mut clock = Clock::start();
    let mut since = vec![clock.begin; logs];
    let mut frames = vec![0u64; logs];
    let mut flushing = vec![false; logs];
    for (log, file) in files.iter().take(logs).enumerate() {
        disk.write(file.file.as_raw_fd(), place(0), &frame, flags, log as u64);
    }
    let (mut running, mut done) = (logs, Vec::new());
    while running > 0 {
        disk.turn(&mut done);
        for log in done.drain(..) {
            let log = log as usize;
            let fd = files[log].file.as_raw_fd();
            if flush && !flushing[log] {
                flushing[log] = true;
                disk.datasync(fd, log as u64);
                continue;
            }
            flushing[log] = false;
            clock.commit(since[log]);
            if clock.begin.elapsed() >= duration {
                running -= 1;
                continue;
            }
            since[log] = Instant::now();
            frames[log] += 1;
            disk.write(fd, place(frames[log]), &frame, flags, log as u64);
        }
    }
    clock.finish()
}

/// All logs write into one file side by side; one flush makes all their frames durable.
fn one_flush(files: &[TestFile], logs: usize, duration: Duration) -> Sample {
    let mut disk = Disk::new();
    let frame = DmaBuf::zeroed(FRAME as usize);
    let fd = files[0].file.as_raw_fd();
    let mut clock = Clock::start();
    let mut done = Vec::new();
    let mut next = 0;
    while clock.begin.elapsed() < duration {
        let since = Instant::now();
        for log in 0..logs {
            disk.write(fd, place(next), &frame, 0, log as u64);
            next += 1;
        }
        while done.len() < logs {
            disk.turn(&mut done);
        }
        done.clear();
        disk.datasync(fd, 0);
        while done.is_empty() {
            disk.turn(&mut done);
        }
        done.clear();
        (0..logs).for_each(|_| clock.commit(since));
    }
    clock.finish()
}
