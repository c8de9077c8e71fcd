//! A connection storm: each operation opens a connection, authenticates, is answered once and
//! closes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::measure::Interval;
use super::worker::{Finished, Job};
use crate::protocol::{Protocol, Session};
use crate::workload::Kind;

/// One thread's part; a storm continues when a connection fails, and counts it.
pub fn run<P: Protocol>(mut job: Job, session: &Session) -> Finished {
    let mut finished = Finished::new();
    let mut interval = Interval::new(0);
    let mut free_ns = 0;
    while !job.stop.load(Ordering::Relaxed) {
        let due_ns = match &mut job.schedule {
            None => job.now_ns(),
            Some(schedule) => {
                let due_ns = schedule.next_ns();
                schedule.advance();
                due_ns
            }
        };
        if due_ns >= job.until_ns || job.chooser.next().is_none() {
            break;
        }
        if let Some(schedule) = &job.schedule
            && job.now_ns() > job.until_ns.saturating_add(job.drain_ns)
        {
            finished.never_sent = schedule.owed(job.until_ns) + 1;
            finished.failure = Some(format!(
                "{} connections were due and not opened",
                finished.never_sent
            ));
            break;
        }
        std::thread::sleep(Duration::from_nanos(due_ns.saturating_sub(job.now_ns())));
        if job.schedule.is_some() && due_ns >= job.from_ns {
            let lag_ns = job.now_ns() - due_ns.max(free_ns);
            finished.lag_ns.saturating_record(lag_ns.max(1));
        }
        let outcome =
            P::open(session).and_then(|(mut protocol, mut stream)| protocol.ping(&mut stream));
        let now = job.now_ns();
        free_ns = now;
        let number = job.interval_of(now);
        if number > interval.number {
            let done = std::mem::replace(&mut interval, Interval::new(number));
            // The receiver is gone only when the run is.
            let _ = job.sender.send(done);
        }
        match outcome {
            Ok(()) if due_ns >= job.from_ns => {
                interval.record(Kind::Connect, now - due_ns, 0);
                finished.last_ns = now;
            }
            Ok(()) => {}
            Err(why) => {
                interval.failures.errors += 1;
                interval.failures.note(why);
            }
        }
    }
    let _ = job.sender.send(interval);
    finished
}
