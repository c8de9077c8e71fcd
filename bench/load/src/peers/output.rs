//! The comparison as text and as JSON.

use serde_json::{Map, Value, json};

use super::Comparison;
use super::results::{Figures, Spread};
use super::server::{Durability, Kind};
use super::targets::{Judged, Measure, Verdict, judge};

/// The JSON's format; a reader refuses others.
pub const FORMAT: &str = "pinion-bench-peers-1";

fn median(
    comparison: &Comparison,
    case: &str,
    kind: Kind,
    pick: impl Fn(&Figures) -> Option<f64>,
) -> Option<f64> {
    comparison
        .results
        .spread(case, kind, pick)
        .map(|spread| spread.median)
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

/// Prints the cases, what each server was, and the targets.
pub fn print(comparison: &Comparison) {
    println!(
        "\nMedians of {} rounds; ratios are Pinion's over the peer's, round by round.",
        comparison.options.rounds
    );
    println!(
        "{:24}{:12}{:>10}{:>9}{:>9}{:>10}{:>9}{:>9}{:>8}{:>8}  {:8}{:>8}  {:20}{:>8}",
        "case",
        "server",
        "per sec",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "server",
        "client",
        "server",
        "others",
        "limit",
        "ratio",
        "(min-max)",
        "ratio of"
    );
    println!(
        "{:62}{:>17}{:>9}{:>8}{:>8}{:>48}",
        "", "CPU us", "CPU us", "core %", "cores", "CPU"
    );
    for row in rows(comparison) {
        let shown_ratio = |ratio: Option<Spread>| match ratio {
            Some(ratio) => (
                format!("{:.2}", ratio.median),
                format!("({:.2}-{:.2})", ratio.min, ratio.max),
            ),
            None => (String::new(), String::new()),
        };
        let (ratio, range) = shown_ratio(row.ratio);
        let (by_cpu, _) = shown_ratio(row.cpu_ratio);
        let pick =
            |pick: fn(&Figures) -> Option<f64>| median(comparison, row.case, row.server, pick);
        println!(
            "{:24}{:12}{:>10}{:>9}{:>9}{:>10}{:>9}{:>9}{:>8}{:>8}  {:8}{ratio:>8}  {range:20}{by_cpu:>8}",
            row.case,
            row.server.name(),
            shown(pick(|f| Some(f.per_sec)), 0),
            shown(pick(|f| Some(f.p50_us)), 0),
            shown(pick(|f| Some(f.p99_us)), 0),
            shown(pick(|f| Some(f.p999_us)), 0),
            shown(pick(|f| f.server_cpu_us), 2),
            shown(pick(|f| Some(f.client_cpu_us)), 2),
            shown(pick(|f| f.server_share().map(|share| share * 100.0)), 0),
            shown(pick(|f| f.others_cores), 2),
            row.limit
        );
    }
    println!(
        "The ratio is that of rates, in open loops that of p99.9; where the client's core was full, that of CPU for each operation."
    );
    if let Some(disk) = Spread::of(comparison.results.disk_us.clone()) {
        println!(
            "one durable write of 4 KiB to the raw disk: {:.0} us ({:.0}-{:.0})",
            disk.median, disk.min, disk.max
        );
    }
    for (kind, bytes) in &comparison.results.idle_bytes {
        if let Some(spread) = Spread::of(bytes.clone()) {
            println!(
                "{} idle connections: {} grows by {:.0} bytes for each ({:.0}-{:.0})",
                comparison.options.idle_connections,
                kind.name(),
                spread.median,
                spread.min,
                spread.max
            );
        }
    }
    println!("\nServers:");
    for server in &comparison.servers {
        println!("  {}: {}", server.kind.name(), server.command.join(" "));
        println!(
            "    an acknowledgement by default: {}",
            server.survives(Durability::Default)
        );
        println!("    journaled: {}", server.survives(Durability::Journaled));
    }
    println!("\n{:62}{:>9}{:>9}  {:13}", "target", "ratio", "asked", "");
    for judged in judge(&comparison.results) {
        println!("{}", target_line(&judged));
    }
    for why in &comparison.invalid {
        println!("INVALID: {why}");
    }
}

fn target_line(judged: &Judged) -> String {
    let target = judged.target;
    let sign = if target.measure.at_most() { "<=" } else { ">=" };
    let aim = match (judged.ratio, target.aim) {
        (Some(ratio), Some(aim)) if ratio.median >= aim => format!(" (and the aim, {aim})"),
        (_, Some(aim)) => format!(" (the aim: {aim})"),
        _ => String::new(),
    };
    format!(
        "{:62}{:>9}{:>9}  {}{aim}{}",
        target.what,
        shown(judged.ratio.map(|ratio| ratio.median), 2),
        format!("{sign} {}", target.bound),
        verdict(judged.verdict),
        if judged.by_cpu {
            ", by CPU for each operation: the client's core was full"
        } else {
            ""
        }
    )
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reached => "reached",
        Verdict::NotReached => "NOT REACHED",
        Verdict::NotMeasured => "not measured",
    }
}

struct Row {
    case: &'static str,
    server: Kind,
    ratio: Option<Spread>,
    by_cpu: bool,
    /// Of CPU for each operation, whatever the limit was.
    cpu_ratio: Option<Spread>,
    limit: &'static str,
}

fn rows(comparison: &Comparison) -> Vec<Row> {
    let mut out = Vec::new();
    for case in &comparison.options.cases {
        for server in &comparison.servers {
            let runs = comparison.results.of(case.name, server.kind);
            if runs.is_empty() {
                continue;
            }
            let measure = if case.rate.is_some() {
                Measure::P999
            } else {
                Measure::Rate
            };
            let (ratio, by_cpu) = if server.kind == Kind::Pinion {
                (None, false)
            } else {
                comparison.results.ratio(case.name, server.kind, measure)
            };
            let cpu_ratio = (server.kind != Kind::Pinion)
                .then(|| {
                    comparison
                        .results
                        .ratio(case.name, server.kind, Measure::ServerCpu)
                        .0
                })
                .flatten();
            let full = |run: &Figures| run.server_share().is_some_and(|share| share >= 0.95);
            let limit = if case.rate.is_some() {
                "the rate"
            } else if runs.iter().any(Figures::client_is_full) {
                "client"
            } else if runs.iter().all(full) {
                "server"
            } else {
                "waiting"
            };
            out.push(Row {
                case: case.name,
                server: server.kind,
                ratio,
                by_cpu,
                cpu_ratio,
                limit,
            });
        }
    }
    out
}

fn spread(spread: Option<Spread>) -> Value {
    match spread {
        Some(spread) => json!({"median": spread.median, "min": spread.min, "max": spread.max}),
        None => Value::Null,
    }
}

/// What is written.
pub fn json(comparison: &Comparison) -> Value {
    let options = comparison.options;
    let figures: Vec<Value> = rows(comparison)
        .iter()
        .map(|row| {
            let of = |pick: fn(&Figures) -> Option<f64>| {
                spread(comparison.results.spread(row.case, row.server, pick))
            };
            json!({
                "case": row.case,
                "server": row.server.name(),
                "rounds": comparison.results.of(row.case, row.server).len(),
                "per_sec": of(|f| Some(f.per_sec)),
                "p50_us": of(|f| Some(f.p50_us)),
                "p99_us": of(|f| Some(f.p99_us)),
                "p99.9_us": of(|f| Some(f.p999_us)),
                "server_cpu_us_per_operation": of(|f| f.server_cpu_us),
                "client_cpu_us_per_operation": of(|f| Some(f.client_cpu_us)),
                "server_resident_bytes": of(|f| f.resident_bytes),
                "checkpoints": of(|f| f.checkpoints),
                "others_cores": of(|f| f.others_cores),
                "limit": row.limit,
                "ratio": spread(row.ratio),
                "ratio_by_cpu": row.by_cpu,
                "ratio_of_cpu": spread(row.cpu_ratio),
            })
        })
        .collect();
    let servers: Vec<Value> = comparison
        .servers
        .iter()
        .map(|server| {
            let version = comparison
                .versions
                .iter()
                .find(|(kind, _)| *kind == server.kind);
            json!({
                "server": server.kind.name(),
                "version": version.map(|(_, version)| version),
                "command": server.command,
                "survives_default": server.survives(Durability::Default),
                "survives_journaled": server.survives(Durability::Journaled),
            })
        })
        .collect();
    let targets: Vec<Value> = judge(&comparison.results)
        .iter()
        .map(|judged| {
            json!({
                "what": judged.target.what,
                "case": judged.target.case,
                "peer": judged.target.peer.name(),
                "bound": judged.target.bound,
                "at_most": judged.target.measure.at_most(),
                "aim": judged.target.aim,
                "ratio": spread(judged.ratio),
                "by_cpu": judged.by_cpu,
                "verdict": verdict(judged.verdict),
            })
        })
        .collect();
    let idle: Map<String, Value> = comparison
        .results
        .idle_bytes
        .iter()
        .map(|(kind, bytes)| (kind.name().to_owned(), spread(Spread::of(bytes.clone()))))
        .collect();
    json!({
        "format": FORMAT,
        "version": env!("CARGO_PKG_VERSION"),
        "command": std::env::args().collect::<Vec<_>>().join(" "),
        "machine": comparison.machine,
        "rounds": options.rounds,
        "seed": options.seed,
        "records": options.records,
        "duration_secs": options.duration.as_secs_f64(),
        "cache_gb": options.cache_gb,
        "syncdelay_secs": options.checkpoint_secs,
        "servers": servers,
        "figures": figures,
        "raw_disk_write_us": spread(Spread::of(comparison.results.disk_us.clone())),
        "idle_connections": options.idle_connections,
        "idle_bytes_per_connection": idle,
        "targets": targets,
        "invalid": comparison.invalid,
        "last_round": comparison.last,
    })
}
