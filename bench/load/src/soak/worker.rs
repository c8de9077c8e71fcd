//! One connection's load: it writes keys that no other writes, so it knows what each of them must
//! be.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::model::{End, Key, shown};
use crate::protocol::{Mongo, Protocol, Session, Stream, Transport, bson, error_text};
use crate::workload::{Random, check_value, value};

pub const DATABASE: &str = "soak";
pub const COLLECTION: &str = "documents";
/// Bytes of a document's value.
const VALUE_BYTES: usize = 1000;
/// Documents that one read by range asks for.
const RANGE: u64 = 20;
/// Documents of one insert at the beginning.
const FILL: usize = 100;
/// Documents of one read behind a restart.
const VERIFY: u64 = 200;
/// Of a hundred operations on a document that is there; the rest are reads by `_id`.
const UPDATES: u64 = 35;
const DELETES: u64 = 10;
const RANGES: u64 = 10;
const BY_INDEX: u64 = 5;
/// One write in this number is journaled.
const JOURNALED: u64 = 4;

/// What the controller and all workers share.
pub struct Shared {
    pub session: Session,
    /// Counts up when the server is being ended, and again when it answers: odd while it is away.
    pub phase: AtomicUsize,
    pub how: Mutex<End>,
    /// Workers that have verified their keys behind the restart.
    pub verified: AtomicUsize,
    pub stop: AtomicBool,
    pub latencies: Mutex<Histogram<u64>>,
    pub operations: AtomicU64,
    pub checked: AtomicU64,
    pub failures: Mutex<Vec<String>>,
    /// One worker takes one document away that must be there.
    pub lose_one: AtomicBool,
}

impl Shared {
    /// Notes what must not be; a few say as much as many.
    pub fn fail(&self, why: String) {
        let mut failures = self.failures.lock().expect("no holder panics");
        if failures.len() < 20 {
            eprintln!("pinion-bench: {why}");
            failures.push(why);
        }
    }
}

/// A worker.
pub struct Worker {
    shared: Arc<Shared>,
    first_key: u64,
    keys: Vec<Key>,
    /// Keys with writes that are acknowledged and not journaled.
    unjournaled: Vec<usize>,
    random: Random,
    connection: Option<(Mongo, Transport)>,
    period: Duration,
}

/// The server does not answer, or what it answers is wrong.
enum Trouble {
    Gone(String),
    Wrong(String),
}

impl Trouble {
    fn text(self) -> String {
        match self {
            Self::Gone(why) | Self::Wrong(why) => why,
        }
    }
}

/// What a command's reply says.
type Reply = Result<Vec<u8>, Trouble>;

impl Worker {
    pub fn new(shared: Arc<Shared>, number: u64, keys: u64, period: Duration) -> Self {
        Self {
            shared,
            first_key: number * keys,
            keys: vec![Key::absent(); keys as usize],
            unjournaled: Vec::new(),
            random: Random::new(number + 1),
            connection: None,
            period,
        }
    }

    /// Works until it is stopped, through restarts.
    pub fn run(mut self) {
        let mut phase = self.shared.phase.load(Ordering::Acquire);
        if let Err(why) = self.fill() {
            self.shared
                .fail(format!("the documents could not be made: {why}"));
        }
        self.shared.verified.fetch_add(1, Ordering::AcqRel);
        let mut due = Instant::now();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now = self.shared.phase.load(Ordering::Acquire);
            if now != phase && now.is_multiple_of(2) {
                phase = now;
                if let Err(why) = self.verify() {
                    self.shared.fail(why);
                }
                self.shared.verified.fetch_add(1, Ordering::AcqRel);
                due = Instant::now();
                continue;
            }
            if self.connection.is_none() {
                if now != phase {
                    // Nothing is asked before everything was verified, even if the server answers
                    // already.
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                match Mongo::open(&self.shared.session) {
                    Ok(opened) => self.connection = Some(opened),
                    Err(_) if self.was_ended(phase) => continue,
                    Err(why) => {
                        self.shared.fail(format!("no connection: {why}"));
                        return;
                    }
                }
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let outcome = self.operation();
            match outcome {
                Ok(()) => {
                    let latency = due.elapsed().as_nanos() as u64;
                    self.shared.operations.fetch_add(1, Ordering::Relaxed);
                    self.shared
                        .latencies
                        .lock()
                        .expect("no holder panics")
                        .saturating_record(latency.max(1));
                    due += self.period;
                }
                Err(Trouble::Wrong(why)) => {
                    self.shared.fail(why);
                    return;
                }
                Err(Trouble::Gone(why)) => {
                    self.connection = None;
                    // The server may have ended before the controller has said so.
                    if !self.was_ended(phase) {
                        self.shared
                            .fail(format!("the server broke a connection: {why}"));
                        return;
                    }
                }
            }
        }
    }

    /// Writes every document once, so that what grows later is not the data.
    fn fill(&mut self) -> Result<(), String> {
        self.connection = Some(Mongo::open(&self.shared.session)?);
        for start in (0..self.keys.len()).step_by(FILL) {
            let end = (start + FILL).min(self.keys.len());
            let first_key = self.first_key;
            let versions: Vec<u64> = self.keys[start..end]
                .iter_mut()
                .map(|key| key.send(true).version)
                .collect();
            self.command(|out| {
                bson::string(out, "insert", COLLECTION);
                bson::array(out, "documents", |out| {
                    for (place, version) in versions.iter().enumerate() {
                        let id = first_key + (start + place) as u64;
                        bson::nested(out, &place.to_string(), |out| {
                            bson::int64(out, "_id", id as i64);
                            fields(id, *version, out);
                        });
                    }
                });
                write_concern(true, out);
            })
            .map_err(Trouble::text)?;
            for key in &mut self.keys[start..end] {
                key.acknowledged();
                key.journaled();
            }
        }
        Ok(())
    }

    /// Whether the controller is ending the server, now or in a moment.
    fn was_ended(&self, phase: usize) -> bool {
        self.shared.phase.load(Ordering::Acquire) != phase
            || self.shared.stop.load(Ordering::Relaxed)
    }

    fn command(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Reply {
        let (mongo, transport) = self
            .connection
            .as_mut()
            .ok_or_else(|| Trouble::Gone("no connection".into()))?;
        let stream: &mut dyn Stream = transport;
        let judge = |why: String| {
            // A server that is ending refuses in good order.
            let refused = ["(code 91)", "(code 11600)", "(code 11602)"];
            let broke = ["no reply", "closed the connection", "could not be sent"];
            if refused.iter().chain(&broke).any(|text| why.contains(text)) {
                Trouble::Gone(why)
            } else {
                Trouble::Wrong(why)
            }
        };
        let reply = mongo.command(stream, DATABASE, fill).map_err(judge)?;
        if bson::get(&reply, "writeErrors").is_some() {
            return Err(Trouble::Wrong("a write was refused (writeErrors)".into()));
        }
        match bson::get(&reply, "writeConcernError") {
            Some(error) => Err(judge(error_text(error.value))),
            None => Ok(reply),
        }
    }

    fn operation(&mut self) -> Result<(), Trouble> {
        let place = self.random.below(self.keys.len() as u64) as usize;
        if !self.keys[place].now().present {
            return self.write(place, true);
        }
        let choice = self.random.below(100);
        match choice {
            c if c < UPDATES => self.write(place, true),
            c if c < UPDATES + DELETES => self.write(place, false),
            c if c < UPDATES + DELETES + RANGES => self.range(place, RANGE),
            c if c < UPDATES + DELETES + RANGES + BY_INDEX => self.by_index(place),
            _ => self.read(place),
        }
    }

    fn write(&mut self, place: usize, present: bool) -> Result<(), Trouble> {
        let id = self.first_key + place as u64;
        let before = self.keys[place].now();
        let journaled = self.random.below(JOURNALED) == 0;
        let state = self.keys[place].send(present);
        let statement = |out: &mut Vec<u8>, list: &str, fill: &dyn Fn(&mut Vec<u8>)| {
            bson::array(out, list, |out| bson::nested(out, "0", fill));
            write_concern(journaled, out);
        };
        let fields = |out: &mut Vec<u8>| fields(id, state.version, out);
        let query = |out: &mut Vec<u8>| {
            bson::nested(out, "q", |out| bson::int64(out, "_id", id as i64));
        };
        let reply = self.command(|out| match (before.present, present) {
            (false, _) => {
                bson::string(out, "insert", COLLECTION);
                statement(out, "documents", &|out| {
                    bson::int64(out, "_id", id as i64);
                    fields(out);
                });
            }
            (true, true) => {
                bson::string(out, "update", COLLECTION);
                statement(out, "updates", &|out| {
                    query(out);
                    bson::nested(out, "u", |out| bson::nested(out, "$set", fields));
                });
            }
            (true, false) => {
                bson::string(out, "delete", COLLECTION);
                statement(out, "deletes", &|out| {
                    query(out);
                    bson::int32(out, "limit", 1);
                });
            }
        })?;
        let n = bson::get(&reply, "n").and_then(|n| n.number());
        if n != Some(1.0) {
            return Err(Trouble::Wrong(format!(
                "a write to {id} counted {n:?}, and {} was there",
                shown(before.present.then_some(before.version))
            )));
        }
        self.keys[place].acknowledged();
        self.unjournaled.push(place);
        if journaled {
            // The journal is one: what this connection wrote before is in it before this.
            for place in std::mem::take(&mut self.unjournaled) {
                self.keys[place].journaled();
            }
        }
        Ok(())
    }

    /// The documents from a place on, as `(key, version)`.
    fn find_range(&mut self, place: usize, count: u64) -> Result<Vec<(u64, u64)>, Trouble> {
        let from = self.first_key + place as u64;
        let until = (from + count).min(self.first_key + self.keys.len() as u64);
        let reply = self.command(|out| {
            bson::string(out, "find", COLLECTION);
            bson::nested(out, "filter", |out| {
                bson::nested(out, "_id", |out| {
                    bson::int64(out, "$gte", from as i64);
                    bson::int64(out, "$lt", until as i64);
                });
            });
            bson::nested(out, "sort", |out| bson::int32(out, "_id", 1));
            bson::int32(out, "batchSize", count as i32 + 1);
        })?;
        documents(&reply).map_err(Trouble::Wrong)
    }

    /// Every document of a range must be there at its version, in order, and no other.
    fn range(&mut self, place: usize, count: u64) -> Result<(), Trouble> {
        let found = self.find_range(place, count)?;
        let end = (place + count as usize).min(self.keys.len());
        let expected: Vec<(u64, u64)> = (place..end)
            .filter(|place| self.keys[*place].now().present)
            .map(|place| {
                (
                    self.first_key + place as u64,
                    self.keys[place].now().version,
                )
            })
            .collect();
        self.shared.checked.fetch_add(count, Ordering::Relaxed);
        if found == expected {
            return Ok(());
        }
        let differs = (0..found.len().max(expected.len()))
            .find(|number| found.get(*number) != expected.get(*number))
            .unwrap_or(0);
        Err(Trouble::Wrong(format!(
            "a range gave {:?} where {:?} must be (key and version)",
            found.get(differs),
            expected.get(differs)
        )))
    }

    fn one(&mut self, place: usize, filter: impl FnOnce(&mut Vec<u8>)) -> Result<(), Trouble> {
        let id = self.first_key + place as u64;
        let reply = self.command(|out| {
            bson::string(out, "find", COLLECTION);
            bson::nested(out, "filter", filter);
        })?;
        let found = documents(&reply).map_err(Trouble::Wrong)?;
        let expected = (id, self.keys[place].now().version);
        self.shared.checked.fetch_add(1, Ordering::Relaxed);
        if found == [expected] {
            Ok(())
        } else {
            Err(Trouble::Wrong(format!(
                "a read gave {found:?} where {expected:?} must be (key and version)"
            )))
        }
    }

    fn read(&mut self, place: usize) -> Result<(), Trouble> {
        let id = self.first_key + place as u64;
        self.one(place, |out| bson::int64(out, "_id", id as i64))
    }

    fn by_index(&mut self, place: usize) -> Result<(), Trouble> {
        let id = self.first_key + place as u64;
        let tag = tag(id, self.keys[place].now().version);
        self.one(place, |out| bson::string(out, "tag", &tag))
    }

    /// Reads every key behind a restart and holds it against what may be.
    fn verify(&mut self) -> Result<(), String> {
        let end = *self.shared.how.lock().expect("no holder panics");
        let text = Trouble::text;
        self.connection = Some(Mongo::open(&self.shared.session)?);
        if self.shared.lose_one.swap(false, Ordering::AcqRel) {
            self.lose().map_err(text)?;
        }
        self.unjournaled.clear();
        for start in (0..self.keys.len()).step_by(VERIFY as usize) {
            let found = self.find_range(start, VERIFY).map_err(text)?;
            let mut found = found.into_iter().peekable();
            for place in start..(start + VERIFY as usize).min(self.keys.len()) {
                let id = self.first_key + place as u64;
                let version = found.next_if(|(key, _)| *key == id).map(|(_, v)| v);
                self.keys[place]
                    .settle(version, end)
                    .map_err(|why| format!("LOST WRITE: document {id}: {why}"))?;
                self.shared.checked.fetch_add(1, Ordering::Relaxed);
            }
            if let Some((id, _)) = found.next() {
                return Err(format!("document {id} was found where nobody wrote it"));
            }
        }
        // The index must say the same as the documents.
        for place in (0..self.keys.len()).step_by(7) {
            if self.keys[place].now().present {
                self.by_index(place).map_err(text)?;
            }
        }
        Ok(())
    }

    /// The planted fault: a document that must be there is taken away.
    fn lose(&mut self) -> Result<(), Trouble> {
        let place = self.keys.iter().position(|key| {
            let mut other = key.clone();
            key.now().present && other.settle(None, End::Killed).is_err()
        });
        let Some(place) = place else {
            return Err(Trouble::Wrong("there is nothing to lose yet".into()));
        };
        let id = self.first_key + place as u64;
        self.command(|out| {
            bson::string(out, "delete", COLLECTION);
            bson::array(out, "deletes", |out| {
                bson::nested(out, "0", |out| {
                    bson::nested(out, "q", |out| bson::int64(out, "_id", id as i64));
                    bson::int32(out, "limit", 1);
                });
            });
        })
        .map(drop)
    }
}

fn write_concern(journaled: bool, out: &mut Vec<u8>) {
    bson::nested(out, "writeConcern", |out| {
        bson::int32(out, "w", 1);
        bson::boolean(out, "j", journaled);
    });
}

/// What a document holds beside its `_id`.
fn fields(id: u64, version: u64, out: &mut Vec<u8>) {
    bson::int64(out, "v", version as i64);
    bson::string(out, "tag", &tag(id, version));
    bson::binary_with(out, "value", 0, |out| {
        value(id, 0, version, VALUE_BYTES, out);
    });
}

fn tag(id: u64, version: u64) -> String {
    format!("{id}-{version}")
}

/// Key and version of each document of a reply, their values held against what was written.
fn documents(reply: &[u8]) -> Result<Vec<(u64, u64)>, String> {
    let cursor = bson::get(reply, "cursor").ok_or("a reply has no cursor")?;
    if bson::get(cursor.value, "id").and_then(|id| id.number()) != Some(0.0) {
        return Err("a reply did not hold all that was asked for".into());
    }
    let batch = bson::get(cursor.value, "firstBatch").ok_or("a reply has no firstBatch")?;
    let mut list = bson::Elements::new(batch.value).ok_or("a reply's list is not BSON")?;
    let mut scratch = Vec::new();
    let mut out = Vec::new();
    for document in list.by_ref() {
        let number = |name: &str| {
            bson::get(document.value, name)
                .and_then(|found| found.number())
                .map(|number| number as u64)
                .ok_or_else(|| format!("a document has no {name}"))
        };
        let (id, version) = (number("_id")?, number("v")?);
        let mut expected = Vec::new();
        value(id, 0, version, VALUE_BYTES, &mut expected);
        let found = bson::get(document.value, "value").and_then(|found| found.bytes());
        let right =
            found.is_some_and(|bytes| bytes == expected && check_value(id, 0, bytes, &mut scratch));
        let named = bson::get(document.value, "tag").map(|found| found.text());
        if !right || named != Some(tag(id, version)) {
            return Err(format!(
                "document {id} at version {version} does not hold what was written"
            ));
        }
        out.push((id, version));
    }
    if list.whole() {
        Ok(out)
    } else {
        Err("a reply's list is not BSON".into())
    }
}
