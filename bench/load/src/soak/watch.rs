//! What is looked at during the load, and whether it drifts.

use std::path::Path;

use serde_json::{Value, json};

use crate::cpu;

/// A life with fewer samples than this is too short to show a drift.
const LEAST_SAMPLES: usize = 16;
const MIB: f64 = 1_048_576.0;

/// One look at the server.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at_secs: f64,
    /// How often the server was started before this.
    pub life: usize,
    pub resident_bytes: f64,
    pub descriptors: f64,
    pub space_bytes: f64,
    pub per_sec: f64,
    pub p999_us: f64,
}

/// What of a sample is held against earlier ones.
struct Rule {
    what: &'static str,
    pick: fn(&Sample) -> f64,
    /// The lowest of a quarter, where work comes and goes; otherwise the middle.
    floor: bool,
    /// Growth by this share, and by so much beyond it, is no drift.
    share: f64,
    slack: f64,
    unit: (f64, &'static str),
}

const RULES: &[Rule] = &[
    Rule {
        what: "resident memory",
        pick: |sample| sample.resident_bytes,
        floor: true,
        share: 0.10,
        slack: 32.0 * MIB,
        unit: (MIB, "MiB"),
    },
    Rule {
        what: "file descriptors",
        pick: |sample| sample.descriptors,
        floor: true,
        share: 0.0,
        slack: 8.0,
        unit: (1.0, ""),
    },
    Rule {
        what: "space",
        pick: |sample| sample.space_bytes,
        floor: true,
        share: 0.15,
        // Files of a log are made whole, tens of MiB each.
        slack: 128.0 * MIB,
        unit: (MIB, "MiB"),
    },
    Rule {
        what: "p99.9",
        pick: |sample| sample.p999_us,
        floor: false,
        share: 2.0,
        // A disk that others use too is late by that much at times.
        slack: 100_000.0,
        unit: (1e3, "ms"),
    },
];

/// Looks at a server's process and directory.
pub fn look(pid: u32, data: &Path) -> Result<(f64, f64, f64), String> {
    let process = cpu::server(pid).map_err(|error| error.to_string())?;
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .map_err(|error| error.to_string())?
        .count();
    Ok((
        process.resident_bytes as f64,
        descriptors as f64,
        space(data) as f64,
    ))
}

/// What a directory takes on the disk; files that go away meanwhile count as nothing.
fn space(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => space(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

fn level(samples: &[Sample], rule: &Rule) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(rule.pick).collect();
    values.sort_by(f64::total_cmp);
    let place = if rule.floor { 0 } else { values.len() / 2 };
    values.get(place).copied().unwrap_or(0.0)
}

/// What has grown where it must not: within each life the last quarter against the second (the
/// first fills caches), and at the ends of lives the last life against the first.
pub fn drift(samples: &[Sample]) -> Vec<String> {
    let mut out = Vec::new();
    let lives: Vec<&[Sample]> = samples
        .chunk_by(|a, b| a.life == b.life)
        .filter(|life| life.len() >= LEAST_SAMPLES)
        .collect();
    for rule in RULES {
        let mut hold = |when: String, before: f64, after: f64| {
            if after > before * (1.0 + rule.share) + rule.slack {
                let (divisor, unit) = rule.unit;
                out.push(format!(
                    "{} grew {when}: from {:.1} to {:.1} {unit}",
                    rule.what,
                    before / divisor,
                    after / divisor
                ));
            }
        };
        let quarter = |life: &[Sample], number: usize| {
            let (from, until) = (life.len() * number / 4, life.len() * (number + 1) / 4);
            level(&life[from..until], rule)
        };
        for life in &lives {
            let when = format!("within life {}", life[0].life + 1);
            hold(when, quarter(life, 1), quarter(life, 3));
        }
        if let (Some(first), Some(last)) = (lives.first(), lives.last())
            && lives.len() > 1
        {
            let when = "from the first life to the last".to_owned();
            hold(when, quarter(first, 3), quarter(last, 3));
        }
    }
    out
}

/// Whether any life was long enough to show a drift.
pub fn can_show_drift(samples: &[Sample]) -> bool {
    samples
        .chunk_by(|a, b| a.life == b.life)
        .any(|life| life.len() >= LEAST_SAMPLES)
}

pub fn json(samples: &[Sample]) -> Vec<Value> {
    samples
        .iter()
        .map(|sample| {
            json!({
                "at_secs": sample.at_secs,
                "life": sample.life,
                "resident_bytes": sample.resident_bytes,
                "descriptors": sample.descriptors,
                "space_bytes": sample.space_bytes,
                "per_sec": sample.per_sec,
                "p99.9_us": sample.p999_us,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two lives of 40 samples; `change` spoils a sample by its number in its life.
    fn check(change: impl Fn(&mut Sample, f64), expected: &[&str]) {
        let mut samples = Vec::new();
        for life in 0..2 {
            for number in 0..40 {
                let saw = f64::from(number % 8);
                let mut sample = Sample {
                    at_secs: f64::from(life * 40 + number),
                    life: life as usize,
                    // Fills at the beginning of a life, and goes up and down with the checkpoints.
                    resident_bytes: (100.0 + 10.0 * f64::from(number.min(8)) + 20.0 * saw) * MIB,
                    descriptors: 30.0 + saw,
                    space_bytes: (200.0 + 50.0 * saw) * MIB,
                    per_sec: 1000.0,
                    p999_us: 3000.0 + 500.0 * saw,
                };
                change(&mut sample, f64::from(number));
                samples.push(sample);
            }
        }
        let found = drift(&samples);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    #[test]
    fn what_comes_and_goes_is_no_drift() {
        check(|_, _| {}, &[]);
    }

    #[test]
    fn what_only_grows_is_one() {
        let both = |what: &str| [1, 2].map(|life| format!("{what} grew within life {life}"));
        let [first, second] = both("resident memory");
        check(
            |sample, number| sample.resident_bytes += number * 4.0 * MIB,
            &[&first, &second],
        );
        let [first, second] = both("file descriptors");
        check(
            |sample, number| sample.descriptors += number,
            &[&first, &second],
        );
        let [first, second] = both("p99.9");
        check(
            |sample, number| sample.p999_us *= 1.0 + number * number,
            &[&first, &second],
        );
    }

    #[test]
    fn what_grows_from_life_to_life_is_one() {
        check(
            |sample, _| sample.space_bytes *= 1.0 + sample.life as f64,
            &["space grew from the first life to the last"],
        );
    }
}
