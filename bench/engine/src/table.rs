//! What was measured, as tables and as JSON.

use serde_json::{Value, json};

use crate::compare::Phase;
use crate::options::Options;

/// A median with the least and the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    least: f64,
    greatest: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        assert!(!values.is_empty(), "a phase has at least one round");
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        Spread {
            median: if values.len().is_multiple_of(2) {
                (values[middle - 1] + values[middle]) / 2.0
            } else {
                values[middle]
            },
            least: values[0],
            greatest: values[values.len() - 1],
        }
    }

    fn to_json(self) -> Value {
        json!({"median": self.median, "least": self.least, "greatest": self.greatest})
    }
}

fn field(round: &Value, name: &str) -> f64 {
    round[name].as_f64().unwrap_or(f64::NAN)
}

/// Operations a second, background work included where it belongs to the phase.
fn rate(round: &Value) -> f64 {
    field(round, "operations") / field(round, "seconds")
}

fn acknowledged_rate(round: &Value) -> f64 {
    field(round, "operations") / field(round, "acknowledged_seconds")
}

/// Operations and the writes beside them: what the CPU time was spent on.
fn all_operations(round: &Value) -> f64 {
    field(round, "operations") + field(round, "writes_beside")
}

fn cpu_us(round: &Value) -> f64 {
    (field(round, "cpu_user_seconds") + field(round, "cpu_system_seconds")) * 1e6
        / all_operations(round)
}

fn write_amplification(round: &Value) -> f64 {
    field(round, "device_bytes_written") / field(round, "record_bytes_written")
}

fn device_read(round: &Value) -> f64 {
    field(round, "device_bytes_read") / field(round, "operations")
}

fn spread(rounds: &[Value], of: impl Fn(&Value) -> f64) -> Spread {
    Spread::of(rounds.iter().map(of).collect())
}

/// The first engine's rate in parts of this one's, round by round.
fn ratios(first: &[Value], other: &[Value]) -> Spread {
    let of_round = |(first, other)| rate(first) / rate(other);
    Spread::of(first.iter().zip(other).map(of_round).collect())
}

fn first(phase: &Phase) -> (&'static str, &[Value]) {
    let (name, rounds) = &phase.rounds[0];
    (name, rounds)
}

pub fn to_json(phase: &Phase, options: &Options) -> Value {
    let (reference, reference_rounds) = first(phase);
    let engines: Vec<Value> = phase
        .rounds
        .iter()
        .map(|(name, rounds)| {
            json!({
                "engine": name,
                "rate": spread(rounds, rate).to_json(),
                "acknowledged_rate": spread(rounds, acknowledged_rate).to_json(),
                "cpu_us_per_operation": spread(rounds, cpu_us).to_json(),
                "write_amplification": spread(rounds, write_amplification).to_json(),
                "ratio": {"of": reference, "to": name, "rate": ratios(reference_rounds, rounds).to_json()},
                "rounds": rounds,
            })
        })
        .collect();
    json!({"phase": phase.name, "what": what(phase, options), "engines": engines})
}

pub fn print_options(options: &Options) {
    let memory = options
        .memory_bytes
        .map_or("not limited".to_owned(), |bytes| {
            format!("{} MiB", bytes >> 20)
        });
    println!(
        "# {} records of 16 + {} bytes ({} MiB), cache {} MiB, memory {memory}, {} clients, processors {:?}, \
         {} rounds, reads {} s each at snapshots of {} records",
        options.records,
        options.value_bytes,
        options.records * (options.value_bytes as u64 + 16) >> 20,
        options.cache_bytes >> 20,
        options.clients,
        options.cpus,
        options.rounds,
        options.seconds,
        options.snapshot_ops,
    );
}

pub fn print_about(opened: &[Value]) {
    println!();
    for engine in opened {
        let text = |name: &str| engine[name].as_str().unwrap_or_default().to_owned();
        println!("{}: {}; {}", text("engine"), text("version"), text("about"));
    }
}

/// What a phase measures, in words.
fn what(phase: &Phase, options: &Options) -> String {
    match phase.name {
        "load" => format!(
            "records in commits of {}, until nothing is left to be done",
            options.batch
        ),
        "read" => {
            "random reads of single records; nothing changed since all was flushed and opened again"
                .into()
        }
        "scan" => format!(
            "records a second in scans of {} from a random key on",
            options.scan_len
        ),
        "scan-all" => "records a second of one pass over all".into(),
        "read-changed" => {
            "random reads after a tenth of the records was changed and nothing flushed since".into()
        }
        "read-while-write" => format!(
            "random reads beside {} updates a second",
            options.write_rate
        ),
        "update" => format!(
            "{} updates of random records, one with each commit, until nothing is left to be done",
            options.writes
        ),
        "insert" => format!(
            "{} inserts at random, one with each commit, until nothing is left to be done",
            options.writes
        ),
        "update-sync" => format!(
            "{} updates, each durable before it is acknowledged",
            options.sync_writes
        ),
        "insert-sync" => format!(
            "{} inserts, each durable before it is acknowledged",
            options.sync_writes
        ),
        other => other.to_owned(),
    }
}

fn number(value: f64) -> String {
    if value.is_nan() || value.is_infinite() {
        return "-".into();
    }
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub fn print_phase(phase: &Phase, options: &Options) {
    let (reference, reference_rounds) = first(phase);
    println!("\n## {}: {}", phase.name, what(phase, options));
    println!(
        "{:<11} {:>10} {:>21} {:>10} {:>16} {:>8} {:>8} {:>9} {:>9} {:>8}",
        "engine",
        "ops/s",
        "least..greatest",
        "acked/s",
        format!("{reference}/it"),
        "CPU us",
        "W amp",
        "read B/op",
        "space MiB",
        "RSS MiB"
    );
    for (name, rounds) in &phase.rounds {
        let rates = spread(rounds, rate);
        let ratio = ratios(reference_rounds, rounds);
        let last = rounds.last().expect("a phase has at least one round");
        let mib = |name: &str| number(field(last, name) / f64::from(1 << 20));
        println!(
            "{name:<11} {:>10} {:>21} {:>10} {:>16} {:>8} {:>8} {:>9} {:>9} {:>8}",
            number(rates.median),
            format!("{}..{}", number(rates.least), number(rates.greatest)),
            number(spread(rounds, acknowledged_rate).median),
            format!(
                "{:.2} ({:.2}-{:.2})",
                ratio.median, ratio.least, ratio.greatest
            ),
            number(spread(rounds, cpu_us).median),
            number(spread(rounds, write_amplification).median),
            number(spread(rounds, device_read).median),
            mib("space_bytes"),
            mib("resident_bytes"),
        );
    }
    print_notes(phase);
}

/// What a reader of the table must know beside it.
fn print_notes(phase: &Phase) {
    for (name, rounds) in &phase.rounds {
        let last = rounds.last().expect("a phase has at least one round");
        if phase.name == "read-while-write" {
            let written = spread(rounds, |round| {
                field(round, "writes_beside") / field(round, "seconds")
            });
            println!(
                "{name}: {} updates a second were done",
                number(written.median)
            );
        }
        if let Some(delta) = last["delta_bytes"].as_u64() {
            println!(
                "{name}: {} KiB of changes not yet in the base at the end",
                delta >> 10
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!(
            (spread.median, spread.least, spread.greatest),
            (2.0, 1.0, 3.0)
        );
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        let round = |operations: u64| json!({"operations": operations, "seconds": 2.0});
        let ratio = ratios(&[round(100), round(300)], &[round(50), round(100)]);
        assert_eq!((ratio.median, ratio.least, ratio.greatest), (2.5, 2.0, 3.0));
    }
}
