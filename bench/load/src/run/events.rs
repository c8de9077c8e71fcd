//! What the server does beside answering: its counters, asked for on a connection of their own
//! during a run.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::protocol::{Counter, Protocol, Session};

/// Events of one run that are kept; a server whose counters all grow all the time would fill
/// memory.
const MOST_EVENTS: usize = 10_000;

/// Something that the server did.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub what: &'static str,
    /// Seconds since the measuring began, when it was seen; it ended at most one interval before.
    pub at_secs: f64,
    /// How long it took, where the server reports it.
    pub took_ms: Option<f64>,
    /// Written to the device since the last event of this sort was seen.
    pub written_bytes: Option<f64>,
    /// How often it happened since the last time it was asked.
    pub times: f64,
}

/// Asks every `every` until the other end of `stop` is dropped. `from` is when measuring begins.
pub fn watch<P: Protocol>(
    session: Arc<Session>,
    from: Instant,
    every: Duration,
    stop: Receiver<()>,
) -> JoinHandle<Result<Vec<Event>, String>> {
    std::thread::spawn(move || {
        let (mut protocol, mut stream) = P::open(&session)?;
        let mut events = Vec::new();
        let mut last = protocol.counters(&mut stream)?;
        while !last.is_empty()
            && events.len() < MOST_EVENTS
            && stop.recv_timeout(every) == Err(RecvTimeoutError::Timeout)
        {
            let now = protocol.counters(&mut stream)?;
            let at = Instant::now();
            let at_secs = at.saturating_duration_since(from).as_secs_f64();
            // What happened before the measuring is not part of it, but what comes after is counted
            // from there.
            if at >= from {
                events.extend(grown(&mut last, &now, at_secs));
            } else {
                last = now;
            }
        }
        Ok(events)
    })
}

/// Which counters have grown. `last` takes over what was seen; bytes are taken over only with an
/// event.
fn grown(last: &mut Vec<Counter>, now: &[Counter], at_secs: f64) -> Vec<Event> {
    let mut out = Vec::new();
    for counter in now {
        match last.iter_mut().find(|before| before.what == counter.what) {
            Some(before) if counter.count > before.count => {
                let written = counter.written_bytes.zip(before.written_bytes);
                out.push(Event {
                    what: counter.what,
                    at_secs,
                    took_ms: counter.took_ms,
                    written_bytes: written.map(|(now, before)| now - before),
                    times: counter.count - before.count,
                });
                *before = counter.clone();
            }
            // Less than before: the server has restarted.
            Some(before) if counter.count < before.count => *before = counter.clone(),
            Some(_) => {}
            None => last.push(counter.clone()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(count: f64, bytes: f64) -> Counter {
        Counter {
            what: "checkpoint",
            count,
            took_ms: Some(7.0),
            written_bytes: Some(bytes),
        }
    }

    #[test]
    fn a_counter_that_grows_is_an_event_and_one_that_restarts_is_none() {
        let mut last = vec![counter(3.0, 100.0)];
        assert_eq!(grown(&mut last, &[counter(3.0, 150.0)], 1.0), []);
        let events = grown(&mut last, &[counter(5.0, 300.0)], 2.0);
        let expected = Event {
            what: "checkpoint",
            at_secs: 2.0,
            took_ms: Some(7.0),
            written_bytes: Some(200.0),
            times: 2.0,
        };
        assert_eq!(events, [expected]);
        assert_eq!(grown(&mut last, &[counter(0.0, 0.0)], 3.0), []);
        assert_eq!(grown(&mut last, &[counter(1.0, 10.0)], 4.0).len(), 1);
    }
}
