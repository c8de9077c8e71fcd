//! A child: one engine, open, that does what its parent asks for line by line.

use std::io::{BufRead, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::data::Values;
use crate::drive::{Client, clients};
use crate::measure::Meter;
use crate::plan::{Counted, Plan};
use crate::session::{Durability, Outcome, Peer, SYNC_INTERVAL, Settings, at_once, text};

/// What a parent asks for.
pub enum Request {
    Run(Plan),
    /// Writes out everything, with no measurement.
    Settle,
    Close,
}

impl Request {
    pub fn from_line(line: &str) -> Outcome<Request> {
        let json: Value = serde_json::from_str(line).map_err(text)?;
        match json["do"].as_str() {
            Some("run") => Plan::from_json(&json["plan"]).map(Request::Run),
            Some("settle") => Ok(Request::Settle),
            Some("close") => Ok(Request::Close),
            _ => Err(format!("unknown request {line}")),
        }
    }
}

/// Sends one answer.
pub fn answer(answer: Outcome<Value>) -> Outcome<()> {
    let line = match answer {
        Ok(value) => json!({"ok": value}),
        Err(why) => json!({"error": why}),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").map_err(text)?;
    out.flush().map_err(text)
}

/// The first answer of a child.
pub fn opened(version: String, about: String, took: Instant) -> Value {
    json!({"version": version, "about": about, "open_seconds": took.elapsed().as_secs_f64()})
}

/// Serves a peer until it is closed.
pub fn serve<P: Peer>(settings: &Settings) -> Outcome<()> {
    let begin = Instant::now();
    let peer = match P::open(settings) {
        Ok(peer) => peer,
        Err(why) => return answer(Err(why)),
    };
    answer(Ok(opened(
        peer.version(settings),
        P::about(settings),
        begin,
    )))?;
    let end = AtomicBool::new(false);
    let sync_error = Mutex::new(None);
    std::thread::scope(|scope| -> Outcome<()> {
        if settings.durability == Durability::Interval {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    std::thread::sleep(SYNC_INTERVAL);
                    if let Err(why) = peer.sync() {
                        *sync_error.lock().expect("nobody panics with it") = Some(why);
                    }
                }
            });
        }
        let served = serve_requests(&peer, settings, &sync_error);
        end.store(true, Ordering::Relaxed);
        served
    })?;
    answer(peer.close().map(|()| json!({})))
}

fn serve_requests<P: Peer>(
    peer: &P,
    settings: &Settings,
    sync_error: &Mutex<Option<String>>,
) -> Outcome<()> {
    for line in std::io::stdin().lock().lines() {
        let done = match Request::from_line(&line.map_err(text)?)? {
            Request::Run(plan) => run(peer, settings, &plan),
            Request::Settle => peer.settle().map(|()| json!({})),
            Request::Close => return Ok(()),
        };
        let failed = sync_error.lock().map_err(text)?.take();
        answer(failed.map_or(done, Err))?;
    }
    Ok(())
}

fn run<P: Peer>(peer: &P, settings: &Settings, plan: &Plan) -> Outcome<Value> {
    let values = Values::new(plan.value_bytes);
    let mut meter = Meter::start()?;
    let parts: Vec<Outcome<Counted>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients(plan))
            .map(|number| {
                let client = Client {
                    plan: *plan,
                    number,
                    values: &values,
                };
                scope.spawn(move || at_once(client.run(peer.session()?)))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err("a client panicked".into())))
            .collect()
    });
    meter.acknowledged();
    if plan.settle {
        peer.settle()?;
    }
    let mut counted = Counted::default();
    for part in parts {
        counted.add(part?);
    }
    meter.finish(&counted, &settings.dir)
}
