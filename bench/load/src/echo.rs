//! A server that stores nothing: it answers what the generator asks over MongoDB's protocol as fast
//! as one thread can, or late, as its options say. It gives what the machine and the generator cost
//! alone, and it can stall on purpose.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use clap::{ArgMatches, Command};
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::options::{required, value};
use crate::protocol::bson;
use crate::timer::Timer;
use crate::workload;

const LISTENER: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 1);
const READ_BYTES: usize = 1 << 18;
/// The largest request that is believed.
const MAX_MESSAGE_BYTES: usize = 48_000_000;

/// How answers are given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// After a request came.
    pub delay: Duration,
    /// Nothing is answered in so much of the beginning of each second.
    pub stall: Duration,
}

pub fn options() -> Command {
    Command::new("echo")
        .about("Answers the MongoDB protocol without storing anything: the floor of the machine and of the generator")
        .arg(value("port", "PORT", "where to listen, on 127.0.0.1").default_value("27017"))
        .arg(value("fieldcount", "N", "fields of the documents that finds are answered with").default_value("10"))
        .arg(value("fieldlength", "N", "bytes of each").default_value("100"))
        .arg(value("delay-ms", "MS", "before each answer").default_value("0"))
        .arg(value("stall-ms", "MS", "nothing is answered in so much of each second").default_value("0"))
}

pub fn command(matches: &ArgMatches) -> Result<(), String> {
    let port: u16 = required(matches, "port")?;
    let manner = Manner {
        delay: Duration::from_millis(required(matches, "delay-ms")?),
        stall: Duration::from_millis(required(matches, "stall-ms")?),
    };
    let (fields, bytes) = (
        required(matches, "fieldcount")?,
        required(matches, "fieldlength")?,
    );
    let failed = |error: std::io::Error| format!("port {port}: {error}");
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).map_err(failed)?;
    Echo::new(listener, manner, fields, bytes)
        .and_then(Echo::serve)
        .map_err(failed)
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// One thread's server.
pub struct Echo {
    poll: Poll,
    timer: Timer,
    listener: TcpListener,
    manner: Manner,
    zero: Instant,
    connections: Vec<Option<Connection>>,
    /// Answers that are not due yet; each waits the same, so they are due in their order.
    late: VecDeque<(Instant, usize, Vec<u8>)>,
    /// The fields of every document, as a find's answer has them behind the `_id`.
    fields: Vec<u8>,
}

impl Echo {
    pub fn new(
        listener: std::net::TcpListener,
        manner: Manner,
        fields: usize,
        field_bytes: usize,
    ) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        let timer = Timer::new()?;
        let fd = timer.as_raw_fd();
        poll.registry()
            .register(&mut SourceFd(&fd), TIMER, Interest::READABLE)?;
        let mut made = Vec::new();
        for field in 0..fields {
            bson::binary_with(&mut made, &format!("field{field}"), 0, |out| {
                workload::value(0, field, 0, field_bytes, out);
            });
        }
        Ok(Self {
            poll,
            timer,
            listener,
            manner,
            zero: Instant::now(),
            connections: Vec::new(),
            late: VecDeque::new(),
            fields: made,
        })
    }

    /// Answers until the process ends.
    pub fn serve(mut self) -> std::io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            // The poll knows milliseconds only. A server that spins instead uses up its share of a
            // processor that others want too, and is late then.
            if let Some((due, ..)) = self.late.front() {
                let wait = due.saturating_duration_since(Instant::now());
                self.timer.set(wait.as_nanos() as u64)?;
            }
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    TIMER => {}
                    Token(number) => {
                        // A client that goes away ends its connection and nothing else.
                        if self.turn(number, &mut buffer).is_err() {
                            self.connections[number] = None;
                        }
                    }
                }
            }
            while let Some((_, number, answer)) =
                self.late.pop_front_if(|(due, ..)| *due <= Instant::now())
            {
                let Some(connection) = &mut self.connections[number] else {
                    continue;
                };
                connection.output.extend_from_slice(&answer);
                if connection.flush().is_err() {
                    self.connections[number] = None;
                }
            }
        }
    }

    fn accept(&mut self) -> std::io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((mut stream, _)) => {
                    stream.set_nodelay(true)?;
                    // Numbers are not used again: a late answer then belongs to no other
                    // connection.
                    let token = Token(self.connections.len());
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    self.poll
                        .registry()
                        .register(&mut stream, token, interest)?;
                    self.connections.push(Some(Connection {
                        stream,
                        input: Vec::new(),
                        output: Vec::new(),
                    }));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads what there is and answers it.
    fn turn(&mut self, number: usize, buffer: &mut [u8]) -> std::io::Result<()> {
        let Some(connection) = &mut self.connections[number] else {
            return Ok(());
        };
        loop {
            let count = match connection.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            connection.input.extend_from_slice(&buffer[..count]);
            if count < buffer.len() {
                break;
            }
        }
        let input = std::mem::take(&mut connection.input);
        let mut at = 0;
        let mut answers = Vec::new();
        while let Some(message) = whole(&input[at..])? {
            at += message.len();
            let waits = !self.manner.delay.is_zero() || !self.manner.stall.is_zero();
            if waits && asks_for_documents(message) {
                let mut late = Vec::new();
                answer(message, &self.fields, &mut late)?;
                self.late.push_back((self.due(), number, late));
            } else {
                answer(message, &self.fields, &mut answers)?;
            }
        }
        let connection = self.connections[number]
            .as_mut()
            .expect("the connection was there at the beginning of the turn");
        connection.input.extend_from_slice(&input[at..]);
        connection.output.append(&mut answers);
        connection.flush()
    }

    /// When a request that came now is answered.
    fn due(&self) -> Instant {
        let at = self.zero.elapsed() + self.manner.delay;
        let phase = Duration::from_nanos(u64::from(at.subsec_nanos()));
        self.zero + at + self.manner.stall.saturating_sub(phase)
    }
}

impl Connection {
    fn flush(&mut self) -> std::io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn wrong(why: &'static str) -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidData, why)
}

/// The first message, once it is whole.
fn whole(input: &[u8]) -> std::io::Result<Option<&[u8]>> {
    let Some(length) = input.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if !(26..=MAX_MESSAGE_BYTES).contains(&length) {
        return Err(wrong("a request has a wrong length"));
    }
    Ok(input.get(..length))
}

/// The document of the first section.
fn body(message: &[u8]) -> std::io::Result<&[u8]> {
    let rest = &message[21..];
    let length = rest
        .first_chunk::<4>()
        .map_or(0, |length| u32::from_le_bytes(*length) as usize);
    rest.get(..length).ok_or_else(|| wrong("a request is cut"))
}

fn asks_for_documents(message: &[u8]) -> bool {
    let first = body(message)
        .ok()
        .and_then(bson::Elements::new)
        .and_then(|mut elements| elements.next());
    first.is_some_and(|command| matches!(command.name, b"find" | b"update" | b"insert"))
}

/// Appends the answer to one request.
fn answer(message: &[u8], fields: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    let body = body(message)?;
    let first = bson::Elements::new(body).and_then(|mut elements| elements.next());
    let command = first.ok_or_else(|| wrong("a request is not BSON"))?;
    let start = out.len();
    for word in [0, 0, word(message, 4), 2013, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.push(0);
    match command.name {
        b"find" => {
            let id = bson::get(body, "filter")
                .and_then(|filter| bson::get(filter.value, "_id"))
                .and_then(|id| id.bytes())
                .ok_or_else(|| wrong("only finds of one _id are answered"))?;
            bson::document(out, |out| {
                bson::nested(out, "cursor", |out| {
                    bson::array(out, "firstBatch", |out| {
                        bson::nested(out, "0", |out| {
                            bson::string_with(out, "_id", |out| out.extend_from_slice(id));
                            out.extend_from_slice(fields);
                        });
                    });
                    bson::int64(out, "id", 0);
                    bson::string(out, "ns", "ycsb.usertable");
                });
                bson::int32(out, "ok", 1);
            });
        }
        name => bson::document(out, |out| {
            if matches!(name, b"update" | b"insert") {
                bson::int32(out, "n", 1);
            } else if name == b"buildInfo" {
                bson::string(out, "version", "echo");
            }
            bson::int32(out, "ok", 1);
        }),
    }
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

fn word(message: &[u8], at: usize) -> u32 {
    message
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
