//! The three protocols, each behind one trait: how a request is written and how its reply is
//! checked.

pub mod bson;
mod endpoint;
mod mongo;
mod mongo_reply;
mod postgres;
mod postgres_session;
mod resp;
mod scram;
mod tls;
mod transport;

use std::sync::Arc;

use crate::workload::{Request, Spec};

pub use endpoint::{Endpoint, Scheme};
pub use mongo::Mongo;
pub use mongo_reply::{body as reply_body, error_text};
pub use postgres::Postgres;
pub use postgres_session::query as postgres_query;
pub use resp::Resp;
pub use tls::TlsOptions;
pub use transport::{Stream, Transport};

/// What a reply was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All that was asked for, and right.
    Right,
    /// The document is not there.
    Miss,
    /// The server says that it failed.
    Error(String),
    /// A transaction that another one was in the way of; it is to be tried again from its
    /// beginning.
    Conflict,
    /// The server says that it did, but what came is not what must come.
    Wrong(String),
}

/// Something that a server counts and that disturbs what it is asked meanwhile.
#[derive(Clone, Debug)]
pub struct Counter {
    pub what: &'static str,
    pub count: f64,
    /// How long the last one took.
    pub took_ms: Option<f64>,
    /// All that was written to the device so far.
    pub written_bytes: Option<f64>,
}

impl Counter {
    fn new(what: &'static str, count: f64) -> Self {
        Self {
            what,
            count,
            took_ms: None,
            written_bytes: None,
        }
    }
}

/// What writes and reads promise; MongoDB's names, `journal` for PostgreSQL too
/// (`synchronous_commit`).
#[derive(Clone, Default, Debug)]
pub struct Concerns {
    pub w: Option<String>,
    pub journal: Option<bool>,
    pub wtimeout_ms: Option<i32>,
    pub read_concern: Option<String>,
    pub read_preference: Option<String>,
    /// MongoDB: writes name their session and a number, so that they can be repeated, as a driver's
    /// do by default.
    pub retryable: bool,
    /// Redis: each write is followed by a WAIT for this number of replicas, in the same packet.
    pub redis_wait: Option<u32>,
}

/// What every connection of a run needs to know.
pub struct Session {
    pub endpoint: Endpoint,
    pub tls: Option<Arc<rustls::ClientConfig>>,
    pub spec: Arc<Spec>,
    pub concerns: Concerns,
    /// MongoDB: fields are strings; otherwise binary, as YCSB writes them.
    pub string_fields: bool,
}

/// One connection's protocol.
pub trait Protocol: Send + Sized + 'static {
    /// Why a workload cannot be run over this protocol, in one line.
    fn refuses(session: &Session) -> Option<String>;

    /// A connection that is authenticated; blocks.
    fn open(session: &Session) -> Result<(Self, Transport), String>;

    /// Does what a connection needs once before its requests.
    fn prepare(&mut self, _: &mut dyn Stream) -> Result<(), String> {
        Ok(())
    }

    /// The server's name and version.
    fn server(&mut self, stream: &mut dyn Stream) -> Result<String, String>;

    /// Makes tables and indexes where they are missing; `fresh` removes what is there before.
    fn set_up(
        &mut self,
        stream: &mut dyn Stream,
        session: &Session,
        fresh: bool,
    ) -> Result<(), String>;

    /// The cheapest request that a server answers: the end of opening a connection.
    fn ping(&mut self, stream: &mut dyn Stream) -> Result<(), String>;

    /// What the server has done so far beside answering; empty where it does not report it.
    fn counters(&mut self, stream: &mut dyn Stream) -> Result<Vec<Counter>, String>;

    /// Appends the bytes of a request.
    fn encode(&mut self, request: &Request, out: &mut Vec<u8>);

    /// Where the first reply ends, once all of it is there.
    fn reply_end(&self, input: &[u8]) -> Result<Option<usize>, String>;

    /// Whether a reply, whole, is what its request must give. `compare`: every byte of the values
    /// too.
    fn check(&mut self, request: &Request, reply: &[u8], compare: bool) -> Outcome;
}

/// Asks one request and waits for its answer.
pub fn ask<P: Protocol>(
    protocol: &mut P,
    stream: &mut dyn Stream,
    request: &Request,
) -> Result<Outcome, String> {
    let mut out = Vec::new();
    protocol.encode(request, &mut out);
    let reply = exchange(stream, &out, |input| protocol.reply_end(input))?;
    Ok(protocol.check(request, &reply, false))
}

/// Writes bytes and reads until `end` finds a whole reply.
fn exchange(
    stream: &mut dyn Stream,
    request: &[u8],
    end: impl Fn(&[u8]) -> Result<Option<usize>, String>,
) -> Result<Vec<u8>, String> {
    stream
        .write_all(request)
        .and_then(|()| stream.flush())
        .map_err(|error| format!("a request could not be sent: {error}"))?;
    let mut input = Vec::new();
    let mut buffer = [0_u8; 1 << 14];
    loop {
        if let Some(end) = end(&input)? {
            if end != input.len() {
                return Err("the server sent more than was asked for".into());
            }
            return Ok(input);
        }
        let count = stream
            .read(&mut buffer)
            .map_err(|error| format!("no reply: {error}"))?;
        if count == 0 {
            return Err("the server closed the connection".into());
        }
        input.extend_from_slice(&buffer[..count]);
    }
}
