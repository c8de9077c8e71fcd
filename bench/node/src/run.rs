//! One measured run.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};
use pinion_bson::RawDocument;

use crate::connection::Connection;
use crate::cpu::process_us;
use crate::requests::{BODY_OFFSET, Operation, Requests};

const WARM_UP: Duration = Duration::from_secs(1);

/// What to run.
pub struct Settings {
    pub address: SocketAddr,
    pub operation: Operation,
    pub connections: usize,
    pub keys: u64,
    pub value_bytes: usize,
    pub seconds: u64,
    pub collection: String,
    /// 0: the server's CPU time is not counted.
    pub pid: u32,
}

/// What was measured.
pub struct Report {
    operations: u64,
    wrong: u64,
    elapsed: Duration,
    latency_ns: Histogram<u64>,
    server_cpu_us: Option<u64>,
    client_cpu_us: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_operation = |us: u64| us as f64 / self.operations.max(1) as f64;
        let percentile = |p: f64| self.latency_ns.value_at_quantile(p) as f64 / 1_000.0;
        write!(
            f,
            "{{\"operations\":{},\"wrong\":{},\"per_sec\":{:.0},\"p50_us\":{:.1},\"p99_us\":{:.1},\"p999_us\":{:.1},\"max_us\":{:.1},\"client_cpu_us\":{:.2}",
            self.operations,
            self.wrong,
            self.operations as f64 / self.elapsed.as_secs_f64(),
            percentile(0.5),
            percentile(0.99),
            percentile(0.999),
            percentile(1.0),
            per_operation(self.client_cpu_us),
        )?;
        if let Some(us) = self.server_cpu_us {
            write!(f, ",\"server_cpu_us\":{:.2}", per_operation(us))?;
        }
        f.write_str("}")
    }
}

/// CPU times and the moment at which counting began.
struct Start {
    at: Instant,
    server_us: Option<u64>,
    client_us: u64,
}

impl Start {
    fn now(pid: u32) -> io::Result<Self> {
        let server_us = if pid == 0 {
            None
        } else {
            Some(process_us(Some(pid))?)
        };
        Ok(Self {
            at: Instant::now(),
            server_us,
            client_us: process_us(None)?,
        })
    }
}

/// Runs until the time is up, or until everything is loaded. Wrong replies fail the run.
pub fn run(settings: &Settings) -> io::Result<Report> {
    let load = settings.operation == Operation::Load;
    // Inserts never meet a key that an earlier run has left.
    let first_key = match settings.operation {
        Operation::Insert | Operation::InsertJournaled => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            1 << 40 | now.map_or(0, |d| d.as_millis() as u64) << 12
        }
        _ => 0,
    };
    let mut requests = Requests::new(
        settings.operation,
        &settings.collection,
        settings.keys,
        settings.value_bytes,
        first_key,
    );
    let mut poll = Poll::new()?;
    let mut connections = Vec::with_capacity(settings.connections);
    for number in 0..settings.connections {
        let mut connection = Connection::open(settings.address)?;
        poll.registry().register(
            &mut connection.stream,
            Token(number),
            Interest::READABLE | Interest::WRITABLE,
        )?;
        connections.push(connection);
    }
    let mut latency_ns = Histogram::new_with_bounds(1, 60_000_000_000, 3)
        .map_err(|_| io::Error::other("histogram"))?;
    let (mut operations, mut wrong, mut active) = (0u64, 0u64, 0usize);
    let mut scratch = vec![0u8; 1 << 16];
    for connection in &mut connections {
        if requests.next(connection.request()) {
            connection.started = Instant::now();
            active += 1;
        }
    }
    let mut start = Start::now(settings.pid)?;
    let mut warm = load;
    let mut end = start.at + WARM_UP;
    let mut events = Events::with_capacity(1024);
    while active > 0 {
        poll.poll(&mut events, Some(Duration::from_secs(30)))?;
        if events.is_empty() {
            return Err(io::Error::other("no reply within 30 s"));
        }
        for event in &events {
            let connection = &mut connections[event.token().0];
            if event.is_writable() {
                connection.write()?;
            }
            while let Some(reply) = connection.read(&mut scratch)? {
                let body = reply.get(BODY_OFFSET..).unwrap_or_default();
                let right = RawDocument::from_bytes(body).is_ok_and(|body| requests.right(body));
                let now = Instant::now();
                latency_ns.saturating_record((now - connection.started).as_nanos() as u64);
                operations += u64::from(right);
                wrong += u64::from(!right);
                let more = (load || !warm || now < end) && requests.next(connection.request());
                if !more {
                    active -= 1;
                    break;
                }
                connection.started = now;
                connection.write()?;
            }
        }
        if !warm && Instant::now() >= end {
            (operations, warm) = (0, true);
            latency_ns.reset();
            start = Start::now(settings.pid)?;
            end = start.at + Duration::from_secs(settings.seconds);
        }
    }
    if wrong > 0 {
        return Err(io::Error::other(format!(
            "{wrong} replies were wrong, {operations} right"
        )));
    }
    let server_cpu_us = match start.server_us {
        Some(before) => Some(process_us(Some(settings.pid))? - before),
        None => None,
    };
    Ok(Report {
        operations,
        wrong,
        elapsed: start.at.elapsed(),
        latency_ns,
        server_cpu_us,
        client_cpu_us: process_us(None)? - start.client_us,
    })
}
