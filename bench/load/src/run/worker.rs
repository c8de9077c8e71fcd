//! The loop of one thread: what is due goes out, what comes in is checked, and nothing waits but
//! for the poll.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::connection::{Connection, Pending};
use super::measure::{Interval, histogram};
use super::schedule::Schedule;
use crate::protocol::{Outcome, Protocol};
use crate::timer::Timer;
use crate::workload::{Chooser, Kind, Request, Shared, Spec};

/// Events of one turn of the loop.
const EVENTS: usize = 1024;
/// Bytes of one read.
const READ_BYTES: usize = 1 << 18;
/// The timer's place among the connections.
const TIMER: Token = Token(usize::MAX);
/// A turn without anything to do is not longer than this, so that intervals end and the end is
/// seen.
const LONGEST_TURN: Duration = Duration::from_millis(50);
/// What is due sooner than this is waited for without sleeping.
const SPIN_NS: u64 = 20_000;

/// What a thread needs beside its connections.
pub struct Job {
    pub spec: Arc<Spec>,
    pub shared: Arc<Shared>,
    pub chooser: Chooser,
    /// The run's zero.
    pub zero: Instant,
    /// Nothing is sent before this.
    pub start_ns: u64,
    /// Operations that begin in this window are measured.
    pub from_ns: u64,
    pub until_ns: u64,
    pub interval_ns: u64,
    /// An open loop's times; none: closed loop.
    pub schedule: Option<Schedule>,
    pub pipeline: usize,
    /// One reply in this number is compared byte for byte; 0: none.
    pub compare_every: u64,
    /// How long replies may stay out.
    pub timeout_ns: u64,
    /// An open loop's backlog may take this long after the end.
    pub drain_ns: u64,
    /// The processor that the thread stays on.
    pub cpu: Option<usize>,
    /// Replies are looked for without sleeping.
    pub busy_poll: bool,
    pub stop: Arc<AtomicBool>,
    pub sender: Sender<Interval>,
}

impl Job {
    pub fn now_ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    /// The interval that a time belongs to.
    pub fn interval_of(&self, now: u64) -> u64 {
        now.saturating_sub(self.from_ns) / self.interval_ns
    }

    /// Waits for the beginning, which is the same for all threads.
    pub fn wait(&self) {
        std::thread::sleep(Duration::from_nanos(
            self.start_ns.saturating_sub(self.now_ns()),
        ));
    }

    /// Keeps this thread on its processor.
    pub fn pin(&self) {
        let Some(cpu) = self.cpu else {
            return;
        };
        if let Err(error) = crate::cpu::pin(cpu) {
            eprintln!("pinion-bench: cannot pin to processor {cpu}: {error}");
        }
    }
}

/// What a thread reports at its end.
pub struct Finished {
    /// How late requests went out although a connection was free.
    pub lag_ns: Histogram<u64>,
    /// Open loops: how long replies that the poll reported lay there before this thread came to
    /// read them.
    pub unread_ns: Histogram<u64>,
    /// Requests of the schedule that were never sent.
    pub never_sent: u64,
    /// When the last measured operation completed.
    pub last_ns: u64,
    /// Why the thread ended before its time.
    pub failure: Option<String>,
}

impl Finished {
    pub fn new() -> Self {
        Self {
            lag_ns: histogram(),
            unread_ns: histogram(),
            never_sent: 0,
            last_ns: 0,
            failure: None,
        }
    }
}

/// A thread's state.
pub struct Worker<P> {
    job: Job,
    connections: Vec<Connection<P>>,
    /// Connections with room for a request, and since when; the one that waited longest is next.
    free: VecDeque<(u32, u64)>,
    interval: Interval,
    in_flight: usize,
    replies: u64,
    exhausted: bool,
    last_reply_ns: u64,
    finished: Finished,
}

impl<P: Protocol> Worker<P> {
    pub fn new(job: Job, connections: Vec<Connection<P>>) -> Self {
        Self {
            job,
            connections,
            free: VecDeque::new(),
            interval: Interval::new(0),
            in_flight: 0,
            replies: 0,
            exhausted: false,
            last_reply_ns: 0,
            finished: Finished::new(),
        }
    }

    /// Runs to the end of the window, or until everything is done or something broke.
    pub fn run(mut self) -> Finished {
        if let Err(why) = self.work() {
            self.job.stop.store(true, Ordering::Relaxed);
            self.finished.failure = Some(why);
        }
        self.send_interval();
        self.finished
    }

    fn now_ns(&self) -> u64 {
        self.job.now_ns()
    }

    fn work(&mut self) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("epoll: {error}");
        let mut poll = Poll::new().map_err(failed)?;
        for (number, connection) in self.connections.iter().enumerate() {
            let fd = connection.transport.as_raw_fd();
            let interest = Interest::READABLE | Interest::WRITABLE;
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
        let zero = self.now_ns();
        self.last_reply_ns = zero;
        // Round by round, so that with few requests each connection has its share.
        for _ in 0..self.job.pipeline {
            for number in 0..self.connections.len() {
                self.free.push_back((number as u32, zero));
            }
        }
        loop {
            let now = self.now_ns();
            self.turn_interval(now);
            self.issue(now)?;
            if self.over(now)? {
                return Ok(());
            }
            let timeout = self.until_due(&timer)?;
            match poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other.map_err(failed)?,
            }
            // A closed loop sends nothing before it has read: there is no schedule to fall behind.
            let polled_ns = self.job.schedule.as_ref().map(|_| self.now_ns());
            for event in &events {
                if event.token() == TIMER {
                    continue;
                }
                let number = event.token().0;
                self.event(number, event.is_writable(), polled_ns, &mut buffer)?;
            }
        }
    }

    /// Takes what the poll reported of a connection, in an open loop at `polled_ns`.
    fn event(
        &mut self,
        number: usize,
        writable: bool,
        polled_ns: Option<u64>,
        buffer: &mut [u8],
    ) -> Result<(), String> {
        if writable {
            self.connections[number].flush()?;
        }
        loop {
            let mut completed_ns = 0;
            let mut freed = 0;
            let zero = self.job.zero;
            let mut handler = Handler {
                job: &self.job,
                interval: &mut self.interval,
                finished: &mut self.finished,
                replies: &mut self.replies,
            };
            let more = self.connections[number].read(buffer, |connection, reply| {
                if completed_ns == 0 {
                    completed_ns = zero.elapsed().as_nanos() as u64;
                }
                if handler.reply(connection, reply, completed_ns)? {
                    freed += 1;
                }
                Ok(())
            })?;
            if completed_ns > 0 {
                if let Some(polled_ns) = polled_ns
                    && completed_ns >= self.job.from_ns
                {
                    let unread_ns = completed_ns.saturating_sub(polled_ns);
                    self.finished.unread_ns.saturating_record(unread_ns.max(1));
                }
                self.last_reply_ns = completed_ns;
                self.in_flight -= freed;
                for _ in 0..freed {
                    self.free.push_back((number as u32, completed_ns));
                }
                self.issue(completed_ns)?;
                // The second request of an operation is encoded but belongs to no free place.
                self.connections[number].flush()?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Sends what is due to connections that are free.
    fn issue(&mut self, mut now: u64) -> Result<(), String> {
        let mut unflushed: Option<u32> = None;
        while !self.exhausted && !self.free.is_empty() && !self.job.stop.load(Ordering::Relaxed) {
            let due_ns = match &self.job.schedule {
                None if now >= self.job.until_ns => break,
                None => now,
                Some(schedule) => {
                    let due_ns = schedule.next_ns();
                    if due_ns >= self.job.until_ns {
                        break;
                    }
                    if due_ns > now {
                        now = self.now_ns();
                        if due_ns > now {
                            break;
                        }
                    }
                    due_ns
                }
            };
            let Some(request) = self.job.chooser.next() else {
                self.exhausted = true;
                break;
            };
            let Some((number, free_ns)) = self.free.pop_front() else {
                break;
            };
            if let Some(schedule) = &mut self.job.schedule {
                schedule.advance();
                if due_ns >= self.job.from_ns {
                    let could_ns = due_ns.max(free_ns);
                    let lag_ns = self.job.zero.elapsed().as_nanos() as u64 - could_ns;
                    self.finished.lag_ns.saturating_record(lag_ns.max(1));
                }
            }
            self.in_flight += 1;
            // With a pipeline, requests for one connection stand next to each other and go in one
            // write.
            if let Some(before) = unflushed.replace(number)
                && before != number
            {
                self.connections[before as usize].flush()?;
            }
            self.connections[number as usize].push(request, due_ns);
        }
        match unflushed {
            Some(number) => self.connections[number as usize].flush(),
            None => Ok(()),
        }
    }

    /// Whether everything is done; an error if the server no longer answers.
    fn over(&mut self, now: u64) -> Result<bool, String> {
        let stopped = self.job.stop.load(Ordering::Relaxed);
        let owed = match &self.job.schedule {
            Some(schedule) if !self.exhausted => schedule.owed(self.job.until_ns),
            _ => 0,
        };
        let ended = now >= self.job.until_ns || self.exhausted || stopped;
        if ended && self.in_flight == 0 && (owed == 0 || stopped) {
            self.finished.never_sent = owed;
            return Ok(true);
        }
        if now >= self.job.until_ns.saturating_add(self.job.drain_ns) && owed > 0 {
            self.finished.never_sent = owed;
            return Err(format!(
                "{owed} requests were due and could not be sent: the server does not hold the rate"
            ));
        }
        if self.in_flight > 0 && now.saturating_sub(self.last_reply_ns) > self.job.timeout_ns {
            return Err(format!(
                "no reply within {} s",
                self.job.timeout_ns / 1_000_000_000
            ));
        }
        if self.in_flight == 0 {
            self.last_reply_ns = now;
        }
        Ok(false)
    }

    /// How long the poll may wait; what is due between two milliseconds is left to the timer.
    fn until_due(&self, timer: &Timer) -> Result<Duration, String> {
        if self.job.busy_poll {
            // The kernel's own threads of this processor, which disks and timers need, would wait
            // for a tick of some milliseconds behind a thread that never gives way.
            std::thread::yield_now();
            return Ok(Duration::ZERO);
        }
        let schedule = match &self.job.schedule {
            Some(schedule) if !self.free.is_empty() && !self.exhausted => schedule,
            _ => return Ok(LONGEST_TURN),
        };
        let due_ns = schedule.next_ns();
        if due_ns >= self.job.until_ns {
            return Ok(LONGEST_TURN);
        }
        let wait_ns = due_ns.saturating_sub(self.now_ns());
        if wait_ns < SPIN_NS {
            return Ok(Duration::ZERO);
        }
        timer
            .set(wait_ns)
            .map_err(|error| format!("timerfd: {error}"))?;
        Ok(LONGEST_TURN)
    }

    fn turn_interval(&mut self, now: u64) {
        let number = self.job.interval_of(now);
        if number > self.interval.number {
            self.send_interval();
            self.interval.number = number;
        }
    }

    fn send_interval(&mut self) {
        let next = Interval::new(self.interval.number);
        let done = std::mem::replace(&mut self.interval, next);
        // The receiver is gone only when the run is.
        let _ = self.job.sender.send(done);
    }
}

/// What handling a reply may touch while its connection is borrowed.
struct Handler<'a> {
    job: &'a Job,
    interval: &'a mut Interval,
    finished: &'a mut Finished,
    replies: &'a mut u64,
}

impl Handler<'_> {
    /// Takes one reply; true if its operation is over.
    fn reply<P: Protocol>(
        &mut self,
        connection: &mut Connection<P>,
        reply: &[u8],
        now: u64,
    ) -> Result<bool, String> {
        let Pending { request, start_ns } = connection
            .pending
            .pop_front()
            .ok_or("a reply without a request")?;
        *self.replies += 1;
        let compare =
            self.job.compare_every > 0 && self.replies.is_multiple_of(self.job.compare_every);
        self.interval.compared += u64::from(compare);
        let failures = &mut self.interval.failures;
        match connection.protocol.check(&request, reply, compare) {
            Outcome::Right => {}
            Outcome::Miss => {
                failures.misses += 1;
                failures.note(format!(
                    "no document for key {} ({})",
                    request.key,
                    request.kind.name()
                ));
                return Ok(true);
            }
            Outcome::Conflict => {
                if now >= self.job.from_ns {
                    failures.conflicts += 1;
                }
                if now >= self.job.until_ns {
                    return Ok(true);
                }
                // At once, as drivers do; its latency counts from the first try.
                connection.push(
                    Request {
                        stage: 0,
                        ..request
                    },
                    start_ns,
                );
                return Ok(false);
            }
            Outcome::Error(why) => {
                failures.errors += 1;
                failures.note(why);
                return Ok(true);
            }
            Outcome::Wrong(why) => {
                failures.wrong += 1;
                failures.note(why);
                return Ok(true);
            }
        }
        if request.stage + 1 < request.stages() {
            connection.push(
                Request {
                    stage: request.stage + 1,
                    ..request
                },
                start_ns,
            );
            return Ok(false);
        }
        self.job.shared.done(&self.job.spec, &request);
        if start_ns >= self.job.from_ns {
            let inserted = if request.kind == Kind::Insert {
                request.count
            } else {
                0
            };
            self.interval
                .record(request.kind, now.saturating_sub(start_ns), inserted);
            self.finished.last_ns = now;
        }
        Ok(true)
    }
}
