//! Writers and streams in one loop, and what each event must be.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::link::Link;
use super::{COLLECTION, Plan};
use crate::protocol::{Mongo, Outcome, Protocol, bson};
use crate::run::{Connection, Schedule, histogram};
use crate::timer::Timer;
use crate::workload::{Kind, Request, check_value};

const EVENTS: usize = 1024;
const READ_BYTES: usize = 1 << 18;
const TIMER: Token = Token(usize::MAX);
const LONGEST_TURN: Duration = Duration::from_millis(50);
/// The write is not acknowledged, as far as this program has read.
const UNACKNOWLEDGED: u64 = u64::MAX;
/// One document in this number is compared byte for byte.
const COMPARE_EVERY: u64 = 100;
/// Failures that are reported.
const KEPT_FAILURES: usize = 5;

/// What came of it; counts are of the measured time.
pub struct Measured {
    pub elapsed: Duration,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Events that were delivered, of all streams together.
    pub events: u64,
    /// Replies in which they came, empty ones included.
    pub batches: u64,
    /// Documents that were compared byte for byte.
    pub compared: u64,
    /// Events that came before their acknowledgement was read; their latency counts as nothing.
    pub early: u64,
    /// How often writers had nothing to do because a stream was too far behind.
    pub held: u64,
    pub latency_ns: Histogram<u64>,
    /// Events that are missing at the end.
    pub undelivered: u64,
    pub failures: Vec<String>,
}

impl Measured {
    pub fn writes_per_sec(&self) -> f64 {
        self.writes as f64 / self.elapsed.as_secs_f64()
    }

    pub fn events_per_sec(&self) -> f64 {
        self.events as f64 / self.elapsed.as_secs_f64()
    }
}

/// What was written, and in which order the streams deliver it.
struct Delivered {
    /// When each write was acknowledged, by its key.
    acknowledged_ns: Vec<u64>,
    /// The keys in the order of the first stream that came so far; all others must have the same.
    order: Vec<u64>,
    delivered: Vec<bool>,
    scratch: Vec<u8>,
    from_ns: u64,
    until_ns: u64,
    measured: Measured,
}

pub struct Race<'a> {
    plan: &'a Plan,
    writers: Vec<Connection<Mongo>>,
    free: Vec<usize>,
    links: Vec<Link>,
    deliveries: Delivered,
    schedule: Option<Schedule>,
    zero: Instant,
    /// What the slowest stream has, when it was last looked at.
    slowest: usize,
    /// Writers wait for a stream.
    holds: bool,
    acknowledged: u64,
}

impl<'a> Race<'a> {
    /// Opens all streams and then the writers' connections.
    pub fn open(plan: &'a Plan) -> Result<Self, String> {
        let links = (0..plan.streams)
            .map(|_| Link::open(&plan.session, COLLECTION))
            .collect::<Result<Vec<_>, _>>()?;
        let writers = (0..plan.writers)
            .map(|_| {
                let (mongo, transport) = Mongo::open(&plan.session)?;
                transport
                    .set_nonblocking()
                    .map_err(|error| error.to_string())?;
                Ok(Connection::new(mongo, transport))
            })
            .collect::<Result<Vec<_>, String>>()?;
        let from_ns = plan.warm_up.as_nanos() as u64;
        Ok(Self {
            plan,
            free: (0..writers.len()).collect(),
            writers,
            links,
            deliveries: Delivered {
                acknowledged_ns: Vec::new(),
                order: Vec::new(),
                delivered: Vec::new(),
                scratch: Vec::new(),
                from_ns,
                until_ns: from_ns + plan.duration.as_nanos() as u64,
                measured: Measured {
                    elapsed: plan.duration,
                    writes: 0,
                    events: 0,
                    batches: 0,
                    compared: 0,
                    early: 0,
                    held: 0,
                    latency_ns: histogram(),
                    undelivered: 0,
                    failures: Vec::new(),
                },
            },
            schedule: plan.target.map(|rate| Schedule::new(0, rate, 0, 1)),
            zero: Instant::now(),
            slowest: 0,
            holds: false,
            acknowledged: 0,
        })
    }

    fn now_ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    pub fn run(mut self) -> Result<Measured, String> {
        let failed = |error: std::io::Error| format!("epoll: {error}");
        let mut poll = Poll::new().map_err(failed)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let writers = self
            .writers
            .iter()
            .map(|writer| writer.transport.as_raw_fd());
        let links = self.links.iter().map(AsRawFd::as_raw_fd);
        for (number, fd) in writers.chain(links).enumerate() {
            poll.registry()
                .register(&mut SourceFd(&fd), Token(number), interest)
                .map_err(failed)?;
        }
        let timer = Timer::new().map_err(failed)?;
        poll.registry()
            .register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)
            .map_err(failed)?;
        let mut events = Events::with_capacity(EVENTS);
        let mut buffer = vec![0; READ_BYTES];
        self.zero = Instant::now();
        while !self.over() {
            self.issue()?;
            if let Some(schedule) = self.schedule.as_ref().filter(|_| !self.holds) {
                let wait_ns = schedule.next_ns().saturating_sub(self.now_ns());
                timer.set(wait_ns).map_err(failed)?;
            }
            match poll.poll(&mut events, Some(LONGEST_TURN)) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other.map_err(failed)?,
            }
            for event in events.iter().filter(|event| event.token() != TIMER) {
                let number = event.token().0;
                match number.checked_sub(self.writers.len()) {
                    None => self.write_event(number, &mut buffer)?,
                    Some(link) => self.link_event(link, &mut buffer)?,
                }
            }
        }
        let (streams, acknowledged) = (self.links.len() as u64, self.acknowledged);
        let delivered: u64 = self.links.iter().map(|link| link.position as u64).sum();
        self.deliveries.measured.undelivered = (streams * acknowledged).saturating_sub(delivered);
        Ok(self.deliveries.measured)
    }

    /// Whether all is written and delivered, or too late.
    fn over(&mut self) -> bool {
        let now = self.now_ns();
        if now < self.deliveries.until_ns {
            return false;
        }
        let late = now > self.deliveries.until_ns + self.plan.drain.as_nanos() as u64;
        let all = self.free.len() == self.writers.len() && {
            self.look_for_the_slowest();
            self.slowest as u64 >= self.acknowledged
        };
        all || late
    }

    fn look_for_the_slowest(&mut self) {
        let positions = self.links.iter().map(|link| link.position);
        self.slowest = positions.min().expect("there is a stream");
    }

    /// Begins the writes that are due, unless a stream is too far behind.
    fn issue(&mut self) -> Result<(), String> {
        while let Some(&writer) = self.free.last() {
            let now = self.now_ns();
            if now >= self.deliveries.until_ns
                || self
                    .schedule
                    .as_ref()
                    .is_some_and(|schedule| schedule.next_ns() > now)
            {
                break;
            }
            let key = self.deliveries.delivered.len() as u64;
            if key - self.slowest as u64 >= self.plan.ahead {
                self.look_for_the_slowest();
            }
            let holds = key - self.slowest as u64 >= self.plan.ahead;
            self.deliveries.measured.held +=
                u64::from(holds && !self.holds && now >= self.deliveries.from_ns);
            self.holds = holds;
            if holds {
                break;
            }
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
            }
            self.deliveries.delivered.push(false);
            self.deliveries.acknowledged_ns.push(UNACKNOWLEDGED);
            self.free.pop();
            let request = Request {
                kind: Kind::Insert,
                key,
                other: 0,
                version: 0,
                field: 0,
                count: 1,
                stage: 0,
            };
            self.writers[writer].push(request, now);
            self.writers[writer].flush()?;
        }
        Ok(())
    }

    fn write_event(&mut self, number: usize, buffer: &mut [u8]) -> Result<(), String> {
        let (deliveries, free, acknowledged) =
            (&mut self.deliveries, &mut self.free, &mut self.acknowledged);
        let zero = self.zero;
        let writer = &mut self.writers[number];
        writer.flush()?;
        loop {
            let more = writer.read(buffer, |connection, reply| {
                let pending = connection
                    .pending
                    .pop_front()
                    .ok_or("a reply without a request")?;
                match connection.protocol.check(&pending.request, reply, false) {
                    Outcome::Right => {}
                    // What became of the write is not known, so neither is what the streams must
                    // deliver.
                    other => return Err(format!("a write failed: {other:?}")),
                }
                let now = zero.elapsed().as_nanos() as u64;
                deliveries.acknowledged_ns[pending.request.key as usize] = now;
                deliveries.measured.writes += u64::from(deliveries.measures(now));
                *acknowledged += 1;
                free.push(number);
                Ok(())
            })?;
            if !more {
                return Ok(());
            }
        }
    }

    fn link_event(&mut self, number: usize, buffer: &mut [u8]) -> Result<(), String> {
        let now = self.now_ns();
        let (deliveries, link) = (&mut self.deliveries, &mut self.links[number]);
        link.flush()?;
        let replies = link.read(buffer, |position, event| {
            deliveries.take(position, event, now)
        })?;
        if deliveries.measures(now) {
            deliveries.measured.batches += replies;
        }
        Ok(())
    }
}

impl Delivered {
    fn measures(&self, now: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&now)
    }

    /// Takes the event at a place of a stream.
    fn take(&mut self, position: usize, event: &[u8], now: u64) -> Result<(), String> {
        let key = self.key_of(event)?;
        match self.order.get(position) {
            Some(&expected) if expected == key => {}
            Some(&expected) => self.fail(format!(
                "event {position} of a stream is of document {key} where another stream has {expected}"
            )),
            None => {
                self.order.push(key);
                if std::mem::replace(&mut self.delivered[key as usize], true) {
                    self.fail(format!("the insert of document {key} was told twice"));
                }
            }
        }
        if self.measures(now) {
            let acknowledged = self.acknowledged_ns[key as usize];
            let early = acknowledged == UNACKNOWLEDGED;
            self.measured.early += u64::from(early);
            let latency = if early {
                0
            } else {
                now.saturating_sub(acknowledged)
            };
            self.measured.latency_ns.saturating_record(latency.max(1));
            self.measured.events += 1;
        }
        Ok(())
    }

    /// The key's number, after the event was held against the event that its insert must have.
    fn key_of(&mut self, event: &[u8]) -> Result<u64, String> {
        let (mut operation, mut id, mut document) = (None, None, None);
        let mut elements = bson::Elements::new(event).ok_or("an event has a wrong length")?;
        for element in elements.by_ref() {
            match element.name {
                b"operationType" => operation = element.bytes(),
                b"documentKey" => id = bson::get(element.value, "_id").and_then(|id| id.bytes()),
                b"fullDocument" => document = Some(element.value),
                _ => {}
            }
        }
        if !elements.whole() {
            return Err("an event is not BSON".into());
        }
        if operation != Some(b"insert") {
            let name = String::from_utf8_lossy(operation.unwrap_or_default());
            return Err(format!(
                "a stream tells '{name}' where there are inserts only"
            ));
        }
        let key = id
            .and_then(|id| {
                std::str::from_utf8(id)
                    .ok()?
                    .strip_prefix("user")?
                    .parse()
                    .ok()
            })
            .filter(|&key: &u64| key < self.delivered.len() as u64)
            .ok_or("an event is of a document that nobody wrote")?;
        let document = document.ok_or("an insert's event has no document")?;
        if bson::get(document, "_id").and_then(|id| id.bytes()) != id {
            self.fail(format!("the event of document {key} has another one"));
        }
        if key.is_multiple_of(COMPARE_EVERY) {
            let value = bson::get(document, "field0").and_then(|value| value.bytes());
            if !value.is_some_and(|value| check_value(key, 0, value, &mut self.scratch)) {
                self.fail(format!(
                    "the event of document {key} has a value that was not written"
                ));
            }
            self.measured.compared += 1;
        }
        Ok(key)
    }

    fn fail(&mut self, why: String) {
        if self.measured.failures.len() < KEPT_FAILURES {
            self.measured.failures.push(why);
        }
    }
}
