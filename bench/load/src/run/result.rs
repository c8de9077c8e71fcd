//! The result, for people and as JSON.

use std::fmt::Write;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::Done;
use super::collect::micros;
use super::drive::Measured;
use crate::options::Settings;
use crate::workload::Kind;

/// The percentiles that are reported.
const QUANTILES: &[(&str, f64)] = &[
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("max", 1.0),
];
/// Points of the curve for each halving of what is left above.
const CURVE_STEPS: u32 = 10;
/// The JSON's format; a reader refuses others.
pub const FORMAT: &str = "pinion-bench-run-1";

const KINDS: [Kind; Kind::COUNT] = [
    Kind::Read,
    Kind::Update,
    Kind::Insert,
    Kind::Scan,
    Kind::ReadModifyWrite,
    Kind::IndexRead,
    Kind::Transaction,
    Kind::Connect,
];

fn us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    if quantile >= 1.0 {
        histogram.max() as f64 / 1e3
    } else {
        histogram.value_at_quantile(quantile) as f64 / 1e3
    }
}

fn mode(measured: &Measured) -> String {
    match measured.target {
        None => "closed loop (latency is that of a client that waits; it hides stalls)".into(),
        Some(rate) => {
            format!("open loop at {rate} operations a second, latency from the intended start")
        }
    }
}

/// CPU microseconds for each operation.
fn per_operation(measured: &Measured, cpu_us: u64) -> f64 {
    cpu_us as f64 / measured.operations().max(1) as f64
}

/// What is printed.
pub fn text(settings: &Settings, done: &Done, invalid: &[String]) -> String {
    let Done {
        server,
        measured,
        steps,
    } = done;
    let mut out = String::new();
    let failures = &measured.total.failures;
    let _ = writeln!(
        out,
        "{} against {} ({server})",
        settings.spec.name,
        settings.endpoint.shown()
    );
    let _ = writeln!(
        out,
        "{}; {} connections, pipeline {}, threads {}{}",
        mode(measured),
        settings.connections,
        settings.pipeline,
        settings.threads,
        if settings.busy_poll {
            ", busy polling"
        } else {
            ""
        }
    );
    let _ = writeln!(
        out,
        "{} operations in {:.2} s: {:.0} a second; {} documents inserted; {} replies compared byte for byte",
        measured.operations(),
        measured.elapsed.as_secs_f64(),
        measured.per_sec(),
        measured.total.documents,
        measured.total.compared
    );
    let _ = writeln!(
        out,
        "--seed {} makes the same choices of operations, keys, fields and values again",
        settings.seed
    );
    let _ = write!(
        out,
        "CPU for each operation: client {:.2} us",
        per_operation(measured, measured.client_cpu_us)
    );
    if let Some(cpu_us) = measured.server_cpu_us {
        let _ = write!(out, ", server {:.2} us", per_operation(measured, cpu_us));
    }
    if let Some(bytes) = measured.server_resident_bytes {
        let _ = write!(out, "; server resident {} MiB", bytes >> 20);
    }
    let _ = writeln!(out);
    let _ = write!(out, "{:18}{:>12}", "", "operations");
    for (name, _) in QUANTILES {
        let _ = write!(out, "{name:>10}");
    }
    let _ = writeln!(out);
    let mut row = |name: &str, histogram: &Histogram<u64>| {
        let _ = write!(out, "{name:18}{:>12}", histogram.len());
        for (_, quantile) in QUANTILES {
            let _ = write!(out, "{:>10}", micros(us(histogram, *quantile)));
        }
        let _ = writeln!(out);
    };
    for kind in KINDS {
        if let Some(histogram) = &measured.total.latencies[kind as usize] {
            row(kind.name(), histogram);
        }
    }
    row("all", &measured.total.all());
    if !measured.lag_ns.is_empty() {
        row("generator's lag", &measured.lag_ns);
    }
    if !measured.unread_ns.is_empty() {
        row("replies unread", &measured.unread_ns);
    }
    for event in &measured.events {
        let took = event
            .took_ms
            .map_or(String::new(), |ms| format!(", took {ms:.0} ms"));
        let wrote = event.written_bytes.map_or(String::new(), |bytes| {
            format!(", {:.0} MiB written since the last", bytes / 1_048_576.0)
        });
        let _ = writeln!(
            out,
            "event at {:.1} s: {}, {} times{took}{wrote}",
            event.at_secs, event.what, event.times
        );
    }
    if let Some(cores) = measured.others_cores.filter(|cores| *cores > 0.05) {
        let _ = writeln!(
            out,
            "other programs kept {cores:.2} cores of this machine busy meanwhile"
        );
    }
    for step in steps {
        let p99_ms = step.p99.as_secs_f64() * 1e3;
        let (holds, why) = (
            if step.holds { "holds" } else { "does not hold" },
            step.invalid.join("; "),
        );
        let _ = writeln!(
            out,
            "ramp: {:.0}/s: {:.0}/s done, p99 {p99_ms:.3} ms, {holds} {why}",
            step.rate, step.per_sec
        );
    }
    let _ = writeln!(
        out,
        "errors {}, misses {}, wrong replies {}",
        failures.errors, failures.misses, failures.wrong
    );
    if settings.spec.has(Kind::Transaction) {
        let each = failures.conflicts as f64 / measured.operations().max(1) as f64;
        let _ = writeln!(
            out,
            "conflicts {}, {each:.4} for each commit",
            failures.conflicts
        );
    }
    for message in &failures.messages {
        let _ = writeln!(out, "  {message}");
    }
    for why in invalid {
        let _ = writeln!(out, "INVALID: {why}");
    }
    out
}

fn latency(histogram: &Histogram<u64>) -> Value {
    let mut out = Map::new();
    out.insert("operations".into(), json!(histogram.len()));
    out.insert("mean_us".into(), json!(histogram.mean() / 1e3));
    for (name, quantile) in QUANTILES {
        out.insert(format!("{name}_us"), json!(us(histogram, *quantile)));
    }
    Value::Object(out)
}

fn curve(histogram: &Histogram<u64>) -> Vec<Value> {
    histogram
        .iter_quantiles(CURVE_STEPS)
        .map(|step| {
            json!([
                step.quantile_iterated_to(),
                step.value_iterated_to() as f64 / 1e3
            ])
        })
        .collect()
}

/// The command as it was given; a password in a URI is left out.
fn command_line(settings: &Settings) -> String {
    let password = &settings.endpoint.password;
    std::env::args()
        .map(|argument| {
            let argument = if password.is_empty() {
                argument
            } else {
                argument.replace(&format!(":{password}@"), ":***@")
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%".contains(c);
            if !argument.is_empty() && argument.chars().all(plain) {
                argument
            } else {
                format!("'{}'", argument.replace('\'', r"'\''"))
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Checkpoints that ended while it was measured.
fn checkpoints(measured: &Measured) -> f64 {
    let ended = measured.events.iter().filter(|event| {
        event.what == "checkpoint" && event.at_secs <= measured.elapsed.as_secs_f64() + 1.0
    });
    ended.map(|event| event.times).sum()
}

/// What is written.
pub fn json(settings: &Settings, machine: Value, done: &Done, invalid: &[String]) -> Value {
    let Done {
        server,
        measured,
        steps,
    } = done;
    let failures = &measured.total.failures;
    let kinds: Map<String, Value> = KINDS
        .into_iter()
        .filter_map(|kind| {
            Some((
                kind.name().to_owned(),
                latency(measured.total.latencies[kind as usize].as_ref()?),
            ))
        })
        .collect();
    let properties: Map<String, Value> = settings
        .spec
        .properties
        .iter()
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    let all = measured.total.all();
    let interval_secs = settings.interval.as_secs_f64();
    let series: Vec<Value> = measured
        .series
        .iter()
        .map(|one| {
            json!({
                "at_secs": one.number as f64 * interval_secs,
                "operations": one.operations,
                "per_sec": one.operations as f64 / interval_secs,
                "failures": one.failures,
                "p50_us": one.p50_us,
                "p99_us": one.p99_us,
                "p99.9_us": one.p999_us,
                "max_us": one.max_us,
            })
        })
        .collect();
    let events: Vec<Value> = measured
        .events
        .iter()
        .map(|event| {
            json!({
                "what": event.what,
                "at_secs": event.at_secs,
                "took_ms": event.took_ms,
                "written_bytes": event.written_bytes,
                "times": event.times,
            })
        })
        .collect();
    let ramp: Vec<Value> = steps
        .iter()
        .map(|step| {
            json!({
                "target_per_sec": step.rate,
                "per_sec": step.per_sec,
                "p99_ms": step.p99.as_secs_f64() * 1e3,
                "holds": step.holds,
                "invalid": step.invalid,
            })
        })
        .collect();
    let mut out = json!({
        "format": FORMAT,
        "version": env!("CARGO_PKG_VERSION"),
        "command": command_line(settings),
        "workload": settings.spec.name,
        "properties": properties,
        "server": server,
        "uri": settings.endpoint.shown(),
        "tls": settings.endpoint.tls,
        "machine": machine,
        "began_unix_ms": measured.began_unix_ms,
        "loop": if measured.target.is_some() { "open" } else { "closed" },
        "target_per_sec": measured.target,
        "connections": settings.connections,
        "pipeline": settings.pipeline,
        "threads": settings.threads,
        "cpus": settings.cpus,
        "warm_up_secs": settings.warm_up.as_secs_f64(),
        "elapsed_secs": measured.elapsed.as_secs_f64(),
        "operations": measured.operations(),
        "per_sec": measured.per_sec(),
        "documents_inserted": measured.total.documents,
        "compared": measured.total.compared,
        "errors": failures.errors,
        "misses": failures.misses,
        "wrong": failures.wrong,
        "messages": failures.messages,
        "never_sent": measured.never_sent,
        "valid": invalid.is_empty(),
        "invalid": invalid,
        "latency": latency(&all),
        "latency_by_kind": kinds,
        "latency_curve_us": curve(&all),
        "lag": latency(&measured.lag_ns),
        "max_lag_ms": settings.max_lag.as_secs_f64() * 1e3,
        "client_cpu_us_per_operation": per_operation(measured, measured.client_cpu_us),
        "server_cpu_us_per_operation": measured.server_cpu_us.map(|us| per_operation(measured, us)),
        "server_resident_bytes": measured.server_resident_bytes,
        "ramp": ramp,
        "ramp_p99_ms": settings.ramp_p99.map(|limit| limit.as_secs_f64() * 1e3),
        "interval_secs": interval_secs,
        "series": series,
    });
    out["conflicts"] = json!(failures.conflicts);
    out["seed"] = json!(settings.seed);
    out["unread"] = latency(&measured.unread_ns);
    out["busy_poll"] = json!(settings.busy_poll);
    out["events"] = json!(events);
    out["checkpoints"] = json!(checkpoints(measured));
    out["others_cores"] = json!(measured.others_cores);
    out
}
