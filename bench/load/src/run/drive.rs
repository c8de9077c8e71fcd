//! Opens the connections, starts the threads, and gathers what they measure.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;

use super::collect::{Collector, Summary};
use super::connection::Connection;
use super::events::{self, Event};
use super::measure::{Failures, Interval, histogram};
use super::schedule::Schedule;
use super::storm;
use super::worker::{Finished, Job, Worker};
use crate::cpu;
use crate::options::Settings;
use crate::protocol::{Outcome, Protocol, Session, ask};
use crate::workload::{Chooser, Kind, Request, Shared, Spec, derive};

/// Between opening the last connection and the first request.
const LEAD: Duration = Duration::from_millis(20);

/// One run of one workload at one rate.
pub struct Drive<'a> {
    pub settings: &'a Settings,
    pub session: &'a Arc<Session>,
    /// Operations a second; none: closed loop.
    pub target: Option<f64>,
    pub label: &'a str,
    /// Which of a run's drives this is: each makes choices of its own.
    pub step: u64,
}

/// What came of it.
pub struct Measured {
    pub target: Option<f64>,
    pub total: Interval,
    pub series: Vec<Summary>,
    pub elapsed: Duration,
    pub lag_ns: Histogram<u64>,
    pub unread_ns: Histogram<u64>,
    pub never_sent: u64,
    pub failure: Option<String>,
    pub client_cpu_us: u64,
    pub server_cpu_us: Option<u64>,
    pub server_resident_bytes: Option<u64>,
    pub began_unix_ms: u64,
    /// What the server did beside answering.
    pub events: Vec<Event>,
    /// Cores that other programs kept busy on this machine.
    pub others_cores: Option<f64>,
}

impl Measured {
    pub fn operations(&self) -> u64 {
        self.total
            .latencies
            .iter()
            .flatten()
            .map(|latencies| latencies.len())
            .sum()
    }

    pub fn per_sec(&self) -> f64 {
        self.operations() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Why the figures must not be used; empty if they may.
    pub fn invalid(&self, settings: &Settings) -> Vec<String> {
        let mut out = Vec::new();
        let Failures {
            errors,
            misses,
            wrong,
            conflicts: _,
            messages,
        } = &self.total.failures;
        let first = messages.first().map_or("", String::as_str);
        out.extend(self.failure.clone());
        if *errors > settings.allow_errors {
            out.push(format!("{errors} errors, for example: {first}"));
        }
        if *misses > settings.allow_misses {
            out.push(format!(
                "{misses} documents were not there, for example: {first}"
            ));
        }
        if *wrong > 0 {
            out.push(format!("{wrong} replies were wrong, for example: {first}"));
        }
        if self.operations() == 0 {
            out.push("no operation was completed".into());
        }
        for (late, what) in [
            (&self.lag_ns, "request in 1,000 went out"),
            (&self.unread_ns, "reply in 1,000 was read"),
        ] {
            let lag = Duration::from_nanos(late.value_at_quantile(0.999));
            if !late.is_empty() && lag > settings.max_lag {
                out.push(format!(
                    "the generator fell behind its own schedule: one {what} {:.1} ms late or more, and {:.1} ms are allowed",
                    lag.as_secs_f64() * 1e3,
                    settings.max_lag.as_secs_f64() * 1e3
                ));
            }
        }
        out
    }
}

impl Drive<'_> {
    pub fn run<P: Protocol>(&self) -> Result<Measured, String> {
        let settings = self.settings;
        let spec = &self.session.spec;
        let first_insert = self.first_insert::<P>()?;
        let shared = Arc::new(Shared::new(spec, first_insert));
        let storm = spec.has(Kind::Connect);
        let groups = if storm { Vec::new() } else { self.open::<P>()? };
        // Opening a connection waits for the server, so a storm has a thread for each that is under
        // way.
        let count = if storm {
            settings.connections
        } else {
            settings.threads
        };
        let load = spec.load;
        let warm_up = if load {
            Duration::ZERO
        } else {
            settings.warm_up
        };
        let duration = if load {
            Duration::from_secs(10_000_000)
        } else {
            settings.duration
        };
        let zero = Instant::now();
        let from = LEAD + warm_up;
        let (sender, receiver) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let job = |number: usize| -> Result<Job, String> {
            let seed = derive(settings.seed, &[self.step, number as u64]);
            Ok(Job {
                spec: Arc::clone(spec),
                shared: Arc::clone(&shared),
                chooser: Chooser::new(Arc::clone(spec), Arc::clone(&shared), seed)?,
                zero,
                start_ns: LEAD.as_nanos() as u64,
                from_ns: from.as_nanos() as u64,
                until_ns: (from + duration).as_nanos() as u64,
                interval_ns: settings.interval.as_nanos() as u64,
                schedule: self
                    .target
                    .map(|rate| Schedule::new(LEAD.as_nanos() as u64, rate, number, count)),
                pipeline: settings.pipeline,
                compare_every: settings.compare_every,
                timeout_ns: settings.timeout.as_nanos() as u64,
                drain_ns: settings.drain.as_nanos() as u64,
                cpu: (!settings.cpus.is_empty())
                    .then(|| settings.cpus[number % settings.cpus.len()]),
                busy_poll: settings.busy_poll,
                stop: Arc::clone(&stop),
                sender: sender.clone(),
            })
        };
        if storm {
            for number in 0..count {
                let (job, session) = (job(number)?, Arc::clone(self.session));
                threads.push(std::thread::spawn(move || {
                    job.pin();
                    job.wait();
                    storm::run::<P>(job, &session)
                }));
            }
        } else {
            for (number, connections) in groups.into_iter().enumerate() {
                let job = job(number)?;
                threads.push(std::thread::spawn(move || {
                    job.pin();
                    job.wait();
                    Worker::new(job, connections).run()
                }));
            }
        }
        drop(sender);
        let began_unix_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_millis() as u64);
        let mut collector = Collector::new(settings, self.label, spec, count, duration);
        let (stop_watching, stopped) = mpsc::channel();
        let watching = (!settings.events_every.is_zero() && !load && !storm).then(|| {
            let (session, every) = (Arc::clone(self.session), settings.events_every);
            events::watch::<P>(session, zero + from, every, stopped)
        });
        std::thread::sleep(from.saturating_sub(zero.elapsed()));
        let server = |pid: u32| cpu::server(pid).map_err(|error| error.to_string());
        let server_before = settings.server_pid.map(server).transpose()?;
        let client_before = cpu::own_us();
        let machine_before = cpu::machine_us();
        for interval in receiver {
            collector.take(interval);
        }
        let client_cpu_us = cpu::own_us() - client_before;
        let machine_us = cpu::machine_us().zip(machine_before);
        let counted = zero.elapsed().saturating_sub(from);
        drop(stop_watching);
        let server_after = settings.server_pid.map(server).transpose()?;
        let mut finished = Vec::new();
        for thread in threads {
            finished.push(
                thread
                    .join()
                    .map_err(|_| "a thread of the generator panicked")?,
            );
        }
        let (total, series) = collector.finish();
        let events = match watching.map(JoinHandle::join) {
            Some(Ok(Ok(events))) => events,
            Some(Ok(Err(why))) => {
                eprintln!("pinion-bench: the server's own events are not known: {why}");
                Vec::new()
            }
            _ => Vec::new(),
        };
        Ok(
            self.measured(finished, from, duration, total, series, |measured| {
                measured.client_cpu_us = client_cpu_us;
                measured.began_unix_ms = began_unix_ms;
                measured.events = events;
                if let (Some(before), Some(after)) = (server_before, server_after) {
                    let server_us = after.cpu_us.saturating_sub(before.cpu_us);
                    measured.server_cpu_us = Some(server_us);
                    // Both counts are in ticks, so a machine that does nothing else may come out
                    // below nothing.
                    measured.others_cores = machine_us.map(|(after, before)| {
                        let others = (after - before).saturating_sub(client_cpu_us + server_us);
                        others as f64 / counted.as_micros().max(1) as f64
                    });
                    measured.server_resident_bytes = Some(after.resident_bytes);
                }
            }),
        )
    }

    fn measured(
        &self,
        finished: Vec<Finished>,
        from: Duration,
        duration: Duration,
        total: Interval,
        series: Vec<Summary>,
        fill: impl FnOnce(&mut Measured),
    ) -> Measured {
        let last = finished
            .iter()
            .map(|thread| thread.last_ns)
            .max()
            .unwrap_or(0);
        let until = (from + duration).as_nanos() as u64;
        // Where the work ended before the time, the time did not count.
        let ended = self.session.spec.load || self.session.spec.operations.is_some();
        let end = if ended { last } else { last.max(until) };
        let mut measured = Measured {
            target: self.target,
            total,
            series,
            elapsed: Duration::from_nanos(end).saturating_sub(from),
            lag_ns: histogram(),
            unread_ns: histogram(),
            never_sent: finished.iter().map(|thread| thread.never_sent).sum(),
            failure: finished.iter().find_map(|thread| thread.failure.clone()),
            client_cpu_us: 0,
            server_cpu_us: None,
            server_resident_bytes: None,
            began_unix_ms: 0,
            events: Vec::new(),
            others_cores: None,
        };
        for thread in &finished {
            for (all, one) in [
                (&mut measured.lag_ns, &thread.lag_ns),
                (&mut measured.unread_ns, &thread.unread_ns),
            ] {
                all.add(one).expect("all histograms have the same bounds");
            }
        }
        fill(&mut measured);
        measured
    }

    /// Opens all connections, each thread's at the same time as the others'.
    fn open<P: Protocol>(&self) -> Result<Vec<Vec<Connection<P>>>, String> {
        let (connections, threads) = (self.settings.connections, self.settings.threads);
        let open = |number: usize| {
            let count = connections / threads + usize::from(number < connections % threads);
            (0..count)
                .map(|_| {
                    let (mut protocol, mut transport) = P::open(self.session)?;
                    protocol.prepare(&mut transport)?;
                    transport
                        .set_nonblocking()
                        .map_err(|error| error.to_string())?;
                    Ok(Connection::new(protocol, transport))
                })
                .collect::<Result<Vec<_>, String>>()
        };
        std::thread::scope(|scope| {
            let opening: Vec<_> = (0..threads)
                .map(|number| scope.spawn(move || open(number)))
                .collect();
            opening
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .map_err(|_| "a thread of the generator panicked")?
                })
                .collect()
        })
    }

    /// Where inserts begin: keys that no run before has used.
    fn first_insert<P: Protocol>(&self) -> Result<u64, String> {
        let spec: &Spec = &self.session.spec;
        let loaded = spec.insert_start + spec.insert_count;
        if spec.only_inserts() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            return Ok(now.map_or(1 << 52, |time| (time.as_millis() as u64) << 12));
        }
        if spec.load || !spec.has(Kind::Insert) {
            return Ok(loaded);
        }
        let (mut protocol, mut stream) = P::open(self.session)?;
        protocol.prepare(&mut stream)?;
        let mut exists = |key: u64| {
            let request = Request {
                kind: Kind::Read,
                key,
                other: 0,
                version: 0,
                field: 0,
                count: 1,
                stage: 0,
            };
            match ask(&mut protocol, &mut stream, &request)? {
                Outcome::Right => Ok(true),
                Outcome::Miss => Ok(false),
                Outcome::Error(why) | Outcome::Wrong(why) => Err(why),
                Outcome::Conflict => Err("a read had a conflict".into()),
            }
        };
        // Keys are used without gaps: twice as far each time, then halved.
        if !exists(loaded)? {
            return Ok(loaded);
        }
        let mut step = 1;
        while exists(loaded + step)? {
            step *= 2;
        }
        let (mut there, mut missing) = (loaded + step / 2, loaded + step);
        while missing - there > 1 {
            let middle = there + (missing - there) / 2;
            if exists(middle)? {
                there = middle;
            } else {
                missing = middle;
            }
        }
        Ok(missing)
    }
}
