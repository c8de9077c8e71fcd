//! Calls from one core to another: idle, back to back, and many at once.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use pinion_runtime::real::{RealOptions, available_cpus, run as run_node};
use pinion_runtime::{CoreId, Queue, join_all, sleep, submit_to};

use crate::options::Options;

struct Measured {
    idle: Histogram<u64>,
    back_to_back: Histogram<u64>,
    burst_ns: f64,
}

pub fn run(options: &Options) {
    println!("\n# Cross-core round trip (submit_to and back), microseconds");
    println!(
        "spin us   after 10 ms idle p50     p99   back to back p50     p99   busy, 64 in flight: ns a call"
    );
    let mut spins = vec![0, 50];
    if !spins.contains(&options.spin_us) {
        spins.push(options.spin_us);
    }
    for spin in spins {
        let cpus = available_cpus().expect("the affinity mask can be read");
        let cpus = vec![cpus[0], cpus[cpus.len() - 1]];
        let node = RealOptions {
            cpus,
            spin: Duration::from_micros(spin),
            handle_signals: false,
            ..RealOptions::default()
        };
        let duration = options.duration();
        let results = run_node(node, move |core| async move {
            if core.0 == 0 {
                Some(measure(duration).await)
            } else {
                None
            }
        });
        let measured = results
            .expect("the runtime starts")
            .into_iter()
            .flatten()
            .next()
            .expect("core 0 measures");
        let us = |histogram: &Histogram<u64>, q| histogram.value_at_quantile(q) as f64 / 1000.0;
        println!(
            "{spin:>7} {:>23.1} {:>7.1} {:>18.2} {:>7.2} {:>12.0}",
            us(&measured.idle, 0.5),
            us(&measured.idle, 0.99),
            us(&measured.back_to_back, 0.5),
            us(&measured.back_to_back, 0.99),
            measured.burst_ns
        );
    }
}

async fn call() -> u64 {
    submit_to(CoreId(1), Queue::Foreground, || async { 1u64 }).await
}

async fn measure(duration: Duration) -> Measured {
    let histogram =
        || Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds");
    let (mut idle, mut back_to_back) = (histogram(), histogram());
    let start = Instant::now();
    while idle.len() < 20 || start.elapsed() < duration {
        sleep(Duration::from_millis(10)).await;
        let begin = Instant::now();
        call().await;
        idle.saturating_record(begin.elapsed().as_nanos() as u64);
    }
    let start = Instant::now();
    while start.elapsed() < duration {
        let begin = Instant::now();
        call().await;
        back_to_back.saturating_record(begin.elapsed().as_nanos() as u64);
    }
    const WIDTH: u32 = 64;
    let (begin, mut calls) = (Instant::now(), 0);
    while begin.elapsed() < duration {
        join_all((0..WIDTH).map(|_| call())).await;
        calls += WIDTH;
    }
    Measured {
        idle,
        back_to_back,
        burst_ns: begin.elapsed().as_nanos() as f64 / f64::from(calls),
    }
}
