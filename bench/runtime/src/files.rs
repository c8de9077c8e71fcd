//! Random and sequential file I/O: the runtime, a bare ring, and glommio's `DmaFile`, interleaved
//! on the same file.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use glommio::{LocalExecutorBuilder, Placement};
use pinion_runtime::real::{RealOptions, run as run_node};
use pinion_runtime::{DmaBuf, File, OpenOptions, Queue, Rng, spawn};

use crate::cpu;
use crate::disk::{Disk, TestFile};
use crate::options::{Options, median};

const FILE_BYTES: u64 = 512 << 20;

/// What is done: how, in which pieces, how many at a time.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    write: bool,
    random: bool,
    piece: usize,
    depth: usize,
}

const CASES: [Case; 6] = [
    Case {
        name: "random 4 KiB read, 1 in flight",
        write: false,
        random: true,
        piece: 4096,
        depth: 1,
    },
    Case {
        name: "random 4 KiB read, 32 in flight",
        write: false,
        random: true,
        piece: 4096,
        depth: 32,
    },
    Case {
        name: "random 4 KiB write, 1 in flight",
        write: true,
        random: true,
        piece: 4096,
        depth: 1,
    },
    Case {
        name: "random 4 KiB write, 32 in flight",
        write: true,
        random: true,
        piece: 4096,
        depth: 32,
    },
    Case {
        name: "sequential 256 KiB read, 4 in flight",
        write: false,
        random: false,
        piece: 256 << 10,
        depth: 4,
    },
    Case {
        name: "sequential 256 KiB write, 4 in flight",
        write: true,
        random: false,
        piece: 256 << 10,
        depth: 4,
    },
];

/// Operations a second and CPU nanoseconds of this process for each.
type Rate = (f64, f64);

pub fn run(options: &Options) {
    println!(
        "\n# Files with direct I/O in {} ({} MiB, whole on disk)",
        options.directory.display(),
        FILE_BYTES >> 20
    );
    println!(
        "{:<40} {:>22} {:>22} {:>22}",
        "", "runtime", "bare ring", "glommio DmaFile"
    );
    let file = TestFile::make(&options.directory, "files", FILE_BYTES);
    for case in CASES {
        let mut samples: [Vec<Rate>; 3] = Default::default();
        for _ in 0..options.rounds {
            samples[0].push(runtime(&file.path, case, options.duration()));
            samples[1].push(bare(&file, case, options.duration()));
            samples[2].push(dma_file(&file.path, case, options.duration()));
        }
        let cells: Vec<String> = samples
            .iter()
            .map(|rates| {
                let rate = median(rates.iter().map(|r| r.0).collect());
                let cpu = median(rates.iter().map(|r| r.1).collect());
                format!("{rate:>9.0}/s {cpu:>6.0} ns")
            })
            .collect();
        println!(
            "{:<40} {:>22} {:>22} {:>22}",
            case.name, cells[0], cells[1], cells[2]
        );
    }
}

/// Where the next operation goes.
struct Places {
    random: Rng,
    next: u64,
    case: Case,
}

impl Places {
    fn new(case: Case) -> Places {
        Places {
            random: Rng::from_seed(case.piece as u64),
            next: 0,
            case,
        }
    }

    fn next(&mut self) -> u64 {
        let pieces = FILE_BYTES / self.case.piece as u64;
        self.next += 1;
        let piece = if self.case.random {
            self.random.below(pieces)
        } else {
            self.next % pieces
        };
        piece * self.case.piece as u64
    }
}

fn measured(operations: u64, elapsed: Duration, cpu_ns: u64) -> Rate {
    (
        operations as f64 / elapsed.as_secs_f64(),
        cpu_ns as f64 / operations as f64,
    )
}

fn runtime(path: &Path, case: Case, duration: Duration) -> Rate {
    let (cpu, _) = cpu::server_and_client();
    let node = RealOptions {
        cpus: vec![cpu],
        spin: Duration::ZERO,
        handle_signals: false,
        ..RealOptions::default()
    };
    let path = path.to_owned();
    let results = run_node(node, move |_| {
        let path = path.clone();
        async move {
            let file = File::open(&path, OpenOptions::write())
                .await
                .expect("the test file");
            let places = Rc::new(std::cell::RefCell::new(Places::new(case)));
            let (begin, cpu_before) = (Instant::now(), cpu::process_ns(std::process::id()));
            let tasks: Vec<_> = (0..case.depth)
                .map(|_| {
                    let (file, places) = (file.clone(), places.clone());
                    spawn(Queue::Foreground, async move {
                        let mut operations = 0u64;
                        while begin.elapsed() < duration {
                            let place = places.borrow_mut().next();
                            if case.write {
                                file.write_at(place, DmaBuf::zeroed(case.piece))
                                    .await
                                    .expect("write");
                            } else {
                                assert_eq!(
                                    file.read_at(place, case.piece).await.expect("read").len(),
                                    case.piece
                                );
                            }
                            operations += 1;
                        }
                        operations
                    })
                })
                .collect();
            let mut operations = 0;
            for task in tasks {
                operations += task.await.expect("not aborted");
            }
            measured(
                operations,
                begin.elapsed(),
                cpu::process_ns(std::process::id()) - cpu_before,
            )
        }
    });
    results.expect("the runtime starts")[0]
}

fn bare(file: &TestFile, case: Case, duration: Duration) -> Rate {
    let (cpu, _) = cpu::server_and_client();
    cpu::pin(cpu);
    let mut disk = Disk::new();
    let mut places = Places::new(case);
    let mut buffers: Vec<DmaBuf> = (0..case.depth)
        .map(|_| DmaBuf::zeroed(case.piece))
        .collect();
    let fd = file.file.as_raw_fd();
    let mut start = |disk: &mut Disk, slot: usize| {
        let place = places.next();
        if case.write {
            disk.write(fd, place, &buffers[slot], 0, slot as u64);
        } else {
            disk.read(fd, place, &mut buffers[slot], slot as u64);
        }
    };
    let (begin, cpu_before) = (Instant::now(), cpu::process_ns(std::process::id()));
    (0..case.depth).for_each(|slot| start(&mut disk, slot));
    let mut operations = 0u64;
    let mut in_flight = case.depth;
    let mut done = Vec::new();
    while in_flight > 0 {
        disk.turn(&mut done);
        let more = begin.elapsed() < duration;
        for slot in done.drain(..) {
            operations += 1;
            if more {
                start(&mut disk, slot as usize);
            } else {
                in_flight -= 1;
            }
        }
    }
    measured(
        operations,
        begin.elapsed(),
        cpu::process_ns(std::process::id()) - cpu_before,
    )
}

fn dma_file(path: &Path, case: Case, duration: Duration) -> Rate {
    let (cpu, _) = cpu::server_and_client();
    let path: PathBuf = path.to_owned();
    let executor = LocalExecutorBuilder::new(Placement::Fixed(cpu)).spawn(move || async move {
        let mut open = glommio::io::OpenOptions::new();
        let file = Rc::new(
            open.read(true)
                .write(true)
                .dma_open(&path)
                .await
                .expect("the test file"),
        );
        let places = Rc::new(std::cell::RefCell::new(Places::new(case)));
        let (begin, cpu_before) = (Instant::now(), cpu::process_ns(std::process::id()));
        let tasks: Vec<_> = (0..case.depth)
            .map(|_| {
                let (file, places) = (file.clone(), places.clone());
                glommio::spawn_local(async move {
                    let mut operations = 0u64;
                    while begin.elapsed() < duration {
                        let place = places.borrow_mut().next();
                        if case.write {
                            let buffer = file.alloc_dma_buffer(case.piece);
                            file.write_at(buffer, place).await.expect("write");
                        } else {
                            assert_eq!(
                                file.read_at(place, case.piece).await.expect("read").len(),
                                case.piece
                            );
                        }
                        operations += 1;
                    }
                    operations
                })
                .detach()
            })
            .collect();
        let mut operations = 0;
        for task in tasks {
            operations += task.await.expect("not cancelled");
        }
        measured(
            operations,
            begin.elapsed(),
            cpu::process_ns(std::process::id()) - cpu_before,
        )
    });
    executor
        .expect("glommio starts")
        .join()
        .expect("glommio runs")
}
