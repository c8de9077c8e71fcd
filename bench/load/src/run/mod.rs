//! `pinion-bench run`: one workload against one server.

mod collect;
mod connection;
mod drive;
mod events;
mod measure;
mod ramp;
mod result;
mod schedule;
mod storm;
mod worker;

use std::sync::Arc;

use crate::machine;
use crate::options::Settings;
use crate::protocol::{Mongo, Postgres, Protocol, Resp, Scheme, Session};
use crate::workload::{Properties, Spec};

pub use connection::Connection;
use drive::{Drive, Measured};
pub use measure::histogram;
use ramp::Step;
pub use result::FORMAT;
pub use schedule::Schedule;

/// Runs as the settings say, prints and writes the result. False if it is not valid.
pub fn command(settings: &Settings) -> Result<bool, String> {
    for name in settings.spec.unknown_properties() {
        eprintln!("pinion-bench: the property {name} means nothing here");
    }
    for name in &settings.endpoint.ignored {
        eprintln!("pinion-bench: the option {name} of the URI means nothing here");
    }
    let machine = machine::facts();
    let done = match settings.endpoint.scheme {
        Scheme::MongoDb => measure::<Mongo>(settings),
        Scheme::Redis => measure::<Resp>(settings),
        Scheme::Postgres => measure::<Postgres>(settings),
    }?;
    finish(settings, machine, &done)
}

/// A measurement and what it was made of.
pub struct Done {
    pub server: String,
    pub measured: Measured,
    /// The rates that were tried, where a ramp was asked for.
    pub steps: Vec<Step>,
}

/// Makes the tables, loads if asked to, and runs.
fn measure<P: Protocol>(settings: &Settings) -> Result<Done, String> {
    let session = session(settings, Arc::clone(&settings.spec))?;
    if let Some(why) = P::refuses(&session) {
        return Err(why);
    }
    let (mut control, mut stream) = P::open(&session)?;
    let server = control.server(&mut stream)?;
    let loads = settings.spec.load;
    if settings.load_first && !loads {
        load::<P>(settings)?;
    }
    control.set_up(&mut stream, &session, settings.load_first && loads)?;
    if let Some(limit) = settings.ramp_p99 {
        let (measured, steps) = ramp::run::<P>(settings, &session, limit)?;
        return Ok(Done {
            server,
            measured,
            steps,
        });
    }
    let label = &settings.spec.name;
    let measured = Drive {
        settings,
        session: &session,
        target: settings.target,
        label,
        step: 0,
    }
    .run::<P>()?;
    Ok(Done {
        server,
        measured,
        steps: Vec::new(),
    })
}

/// What connections need, for the run's workload or for the load before it.
fn session(settings: &Settings, spec: Arc<Spec>) -> Result<Arc<Session>, String> {
    Ok(Arc::new(Session {
        endpoint: settings.endpoint.clone(),
        tls: if settings.endpoint.tls {
            Some(settings.tls.config()?)
        } else {
            None
        },
        spec,
        concerns: settings.concerns.clone(),
        string_fields: settings.string_fields,
    }))
}

/// Removes what is there and writes all documents, in batches where they go to one collection.
fn load<P: Protocol>(settings: &Settings) -> Result<(), String> {
    let mut properties: Properties = settings.spec.properties.clone();
    if settings.spec.collections == 1 {
        // Batches of about a megabyte.
        let documents = ((1 << 20) / settings.spec.document.value_bytes()).clamp(1, 100);
        properties.set("batchsize", &documents.to_string());
    }
    let spec = Arc::new(Spec::new(Some("load"), &properties)?);
    let session = session(settings, spec)?;
    let (mut control, mut stream) = P::open(&session)?;
    control.set_up(&mut stream, &session, true)?;
    let measured = Drive {
        settings,
        session: &session,
        target: None,
        label: "load",
        step: 0,
    }
    .run::<P>()?;
    match measured.invalid(settings).first() {
        Some(why) => Err(format!("the load failed: {why}")),
        None => Ok(()),
    }
}

fn finish(settings: &Settings, machine: serde_json::Value, done: &Done) -> Result<bool, String> {
    let invalid = done.measured.invalid(settings);
    if settings.json.as_deref() != Some("-") {
        print!("{}", result::text(settings, done, &invalid));
    }
    if let Some(file) = &settings.json {
        let value = result::json(settings, machine, done, &invalid);
        let text = serde_json::to_string_pretty(&value).map_err(|error| error.to_string())?;
        if file == "-" {
            println!("{text}");
        } else {
            std::fs::write(file, text + "\n").map_err(|error| format!("{file}: {error}"))?;
        }
    }
    Ok(invalid.is_empty())
}

#[cfg(test)]
mod stub;
#[cfg(test)]
pub mod tests;
