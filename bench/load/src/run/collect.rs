//! Puts the threads' intervals together and shows them during the run.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::measure::Interval;
use crate::options::Settings;
use crate::workload::Spec;

/// One interval of the series.
#[derive(Clone, Debug)]
pub struct Summary {
    pub number: u64,
    pub operations: u64,
    pub failures: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

/// Gathers intervals.
pub struct Collector {
    open: BTreeMap<u64, (usize, Interval)>,
    total: Interval,
    series: Vec<Summary>,
    threads: usize,
    interval: Duration,
    bar: ProgressBar,
    /// Lines instead of a bar, where no terminal shows a bar.
    lines: bool,
    label: String,
    load: bool,
}

impl Collector {
    pub fn new(
        settings: &Settings,
        label: &str,
        spec: &Spec,
        threads: usize,
        duration: Duration,
    ) -> Self {
        let length = match spec.operations {
            _ if spec.load => spec.insert_count,
            Some(operations) if duration > Duration::from_secs(1_000_000) => operations,
            _ => duration.as_secs(),
        };
        let bar = if settings.quiet {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
        } else {
            ProgressBar::new(length)
        };
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {msg}");
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(label.to_owned());
        Self {
            open: BTreeMap::new(),
            total: Interval::new(0),
            series: Vec::new(),
            threads,
            interval: settings.interval,
            lines: bar.is_hidden() && !settings.quiet,
            bar,
            label: label.into(),
            load: length != duration.as_secs(),
        }
    }

    /// Takes one thread's interval. Threads send each number at most once, in order, and skip what
    /// had no turn.
    pub fn take(&mut self, interval: Interval) {
        let number = interval.number;
        match self.open.entry(number) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert((1, interval));
            }
            std::collections::btree_map::Entry::Occupied(mut place) => {
                place.get_mut().0 += 1;
                place.get_mut().1.add(interval);
            }
        }
        // Threads turn within milliseconds of each other; what two intervals have passed has all it
        // gets.
        while let Some(entry) = self.open.first_entry() {
            let whole = entry.get().0 >= self.threads;
            if !whole && *entry.key() + 2 > number {
                break;
            }
            let (_, interval) = entry.remove();
            self.close(interval);
        }
    }

    fn close(&mut self, interval: Interval) {
        let all = interval.all();
        let us = |quantile: f64| all.value_at_quantile(quantile) as f64 / 1e3;
        let failures = &interval.failures;
        let summary = Summary {
            number: interval.number,
            operations: all.len(),
            failures: failures.errors + failures.misses + failures.wrong,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: if all.is_empty() {
                0.0
            } else {
                all.max() as f64 / 1e3
            },
        };
        let secs = self.interval.as_secs_f64();
        let message = format!(
            "{:.0}/s  p50 {}  p99 {}  max {}  failed {}",
            summary.operations as f64 / secs,
            micros(summary.p50_us),
            micros(summary.p99_us),
            micros(summary.max_us),
            summary.failures
        );
        if self.lines {
            eprintln!(
                "{} {:6.1} s  {message}",
                self.label,
                (summary.number + 1) as f64 * secs
            );
        }
        if self.load {
            self.bar.inc(interval.documents.max(summary.operations));
        } else {
            self.bar
                .set_position(((summary.number + 1) as f64 * secs) as u64);
        }
        self.bar.set_message(message);
        self.series.push(summary);
        self.total.add(interval);
    }

    /// Everything together, and the series.
    pub fn finish(mut self) -> (Interval, Vec<Summary>) {
        while let Some((_, (_, interval))) = self.open.pop_first() {
            self.close(interval);
        }
        self.bar.finish_and_clear();
        self.series.sort_by_key(|summary| summary.number);
        (self.total, self.series)
    }
}

/// Microseconds in the unit that reads best.
pub fn micros(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e4 => format!("{:.1} ms", us / 1e3),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.0} us"),
    }
}
