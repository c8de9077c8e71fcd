//! `pinion-bench streams`: what change streams deliver of what is written meanwhile, and how long
//! after its acknowledgement.

mod link;
mod race;

use std::sync::Arc;
use std::time::Duration;

use clap::{ArgMatches, Command};
use serde_json::{Value, json};

use crate::machine;
use crate::options::{number, required, secs, value};
use crate::protocol::{Concerns, Endpoint, Mongo, Protocol, Scheme, Session, bson};
use crate::workload::{Properties, Spec};

use race::{Measured, Race};

/// The collection that is watched; it is dropped first.
const COLLECTION: &str = "watched";
/// The JSON's format; a reader refuses others.
const FORMAT: &str = "pinion-bench-streams-1";
/// A rate of writes that was asked for is held if so much of it was written, but for what is under
/// way at both ends.
const HELD: f64 = 0.99;
const UNDER_WAY: f64 = 2.0;

/// What is measured.
pub struct Plan {
    pub session: Arc<Session>,
    pub streams: usize,
    pub writers: usize,
    /// Writes that may be on their way to the slowest stream.
    pub ahead: u64,
    /// Writes a second; none: as many as the writers, and `ahead`, allow.
    pub target: Option<f64>,
    pub duration: Duration,
    pub warm_up: Duration,
    /// How long the streams have to deliver the rest when the writes have ended.
    pub drain: Duration,
}

pub fn options() -> Command {
    Command::new("streams")
        .about("Opens change streams, writes, and counts what they deliver; exit status 2 if the figures must not be used")
        .arg(value("uri", "URI", "mongodb://host:port of a primary").default_value("mongodb://127.0.0.1:27017"))
        .arg(value("streams", "N", "change streams, each on a connection of its own").default_value("1"))
        .arg(value("writers", "N", "connections that insert one document after another").default_value("16"))
        .arg(value("ahead", "N", "no write begins while so many have not come to the slowest stream").default_value("1000"))
        .arg(value("target", "OPS", "writes a second in all; without it as many as the writers can"))
        .arg(value("document-bytes", "N", "bytes of the one field of each document").default_value("100"))
        .arg(value("w", "N|majority", "write concern").default_value("majority"))
        .arg(value("duration", "SECS", "how long to measure").default_value("10"))
        .arg(value("warm-up", "SECS", "how long to run before measuring").default_value("2"))
        .arg(value("drain", "SECS", "how long the streams have for the rest at the end").default_value("30"))
        .arg(value("json", "FILE", "writes the result as JSON (-: to standard output)"))
}

fn within(matches: &ArgMatches, name: &str, most: u64) -> Result<u64, String> {
    match required(matches, name)? {
        number if (1..=most).contains(&number) => Ok(number),
        number => Err(format!("--{name} is 1 to {most}, not {number}")),
    }
}

fn plan(matches: &ArgMatches) -> Result<Plan, String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let endpoint = Endpoint::parse(&text("uri").unwrap_or_default())?;
    if endpoint.scheme != Scheme::MongoDb || endpoint.tls {
        return Err("change streams are measured over mongodb://, without TLS".into());
    }
    let mut properties = Properties::default();
    let bytes = within(matches, "document-bytes", 1 << 20)?;
    properties.set("fieldcount", "1");
    properties.set("fieldlength", &bytes.to_string());
    properties.set("insertorder", "ordered");
    properties.set("table", COLLECTION);
    let target = number::<f64>(matches, "target")?;
    if target.is_some_and(|rate| !(rate > 0.0 && rate <= 1e7)) {
        return Err("--target is a rate above 0".into());
    }
    let duration = secs(matches, "duration")?.unwrap_or_default();
    if duration.is_zero() {
        return Err("--duration is above 0".into());
    }
    Ok(Plan {
        session: Arc::new(Session {
            endpoint,
            tls: None,
            spec: Arc::new(Spec::new(Some("insert"), &properties)?),
            concerns: Concerns {
                w: text("w"),
                ..Concerns::default()
            },
            string_fields: false,
        }),
        streams: within(matches, "streams", 20_000)? as usize,
        writers: within(matches, "writers", 10_000)? as usize,
        ahead: within(matches, "ahead", 10_000_000)?,
        target,
        duration,
        warm_up: secs(matches, "warm-up")?.unwrap_or_default(),
        drain: secs(matches, "drain")?.unwrap_or_default(),
    })
}

/// Measures, prints and writes. False if the figures must not be used.
pub fn command(matches: &ArgMatches) -> Result<bool, String> {
    let plan = plan(matches)?;
    let (server, measured) = measure(&plan)?;
    let result = json(&plan, &server, &measured);
    match matches.get_one::<String>("json").map(String::as_str) {
        Some("-") => println!("{result:#}"),
        file => {
            print!("{}", text(&plan, &server, &measured));
            if let Some(file) = file {
                std::fs::write(file, format!("{result:#}\n"))
                    .map_err(|error| format!("{file}: {error}"))?;
            }
        }
    }
    Ok(invalid(&plan, &measured).is_empty())
}

/// The server's name and version, and what came of it.
pub fn measure(plan: &Plan) -> Result<(String, Measured), String> {
    let session = &plan.session;
    let (mut control, mut stream) = Mongo::open(session)?;
    let server = control.server(&mut stream)?;
    control.set_up(&mut stream, session, true)?;
    let database = control.database().to_owned();
    control.command(&mut stream, &database, |out| {
        bson::string(out, "create", COLLECTION);
    })?;
    Ok((server, Race::open(plan)?.run()?))
}

/// Why the figures must not be used; empty if they may.
pub fn invalid(plan: &Plan, measured: &Measured) -> Vec<String> {
    let mut out = measured.failures.clone();
    if measured.events == 0 {
        out.push("nothing was delivered".into());
    }
    if measured.undelivered > 0 {
        out.push(format!(
            "{} events were not delivered {} s after the last write",
            measured.undelivered,
            plan.drain.as_secs_f64()
        ));
    }
    if let Some(rate) = plan.target
        && (measured.writes as f64) < rate * plan.duration.as_secs_f64() * HELD - UNDER_WAY
    {
        out.push(format!(
            "{:.0} writes a second, not {rate}: the server or its streams do not hold the rate",
            measured.writes_per_sec()
        ));
    }
    out
}

const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

fn micros(measured: &Measured) -> impl Iterator<Item = (&'static str, f64)> {
    QUANTILES.into_iter().map(|(name, quantile)| {
        (
            name,
            measured.latency_ns.value_at_quantile(quantile) as f64 / 1e3,
        )
    })
}

fn text(plan: &Plan, server: &str, measured: &Measured) -> String {
    let latency: Vec<_> = micros(measured)
        .map(|(name, us)| format!("{name} {us:.0} us"))
        .collect();
    let mut out = format!(
        "{} change streams at {} ({server})\n{:.0} writes a second, {:.0} events a second delivered in all\nfrom acknowledgement to delivery: {}\n{} events in {} replies; writes were held up {} times until the streams had caught up\n",
        plan.streams,
        plan.session.endpoint.shown(),
        measured.writes_per_sec(),
        measured.events_per_sec(),
        latency.join(", "),
        measured.events,
        measured.batches,
        measured.held,
    );
    for why in invalid(plan, measured) {
        out.push_str(&format!("INVALID: {why}\n"));
    }
    out
}

fn json(plan: &Plan, server: &str, measured: &Measured) -> Value {
    let invalid = invalid(plan, measured);
    let mut latency: serde_json::Map<String, Value> = micros(measured)
        .map(|(name, us)| (format!("{name}_us"), json!(us)))
        .collect();
    latency.insert("mean_us".into(), json!(measured.latency_ns.mean() / 1e3));
    json!({
        "format": FORMAT,
        "version": env!("CARGO_PKG_VERSION"),
        "server": server,
        "uri": plan.session.endpoint.shown(),
        "machine": machine::facts(),
        "streams": plan.streams,
        "writers": plan.writers,
        "ahead": plan.ahead,
        "target_per_sec": plan.target,
        "elapsed_secs": measured.elapsed.as_secs_f64(),
        "writes": measured.writes,
        "writes_per_sec": measured.writes_per_sec(),
        "events": measured.events,
        "events_per_sec": measured.events_per_sec(),
        "batches": measured.batches,
        "compared": measured.compared,
        "before_acknowledgement": measured.early,
        "held_up": measured.held,
        "latency": latency,
        "valid": invalid.is_empty(),
        "invalid": invalid,
    })
}

#[cfg(test)]
mod tests;
