//! Clients of change streams, which begin at the set's beginning and are resumed over and over, by
//! whatever member.
//!
//! From the events they build what documents hold: an event that is missing, comes twice, or comes
//! out of its place does not fit to what is there already. At the end that must be what the members
//! have, so nothing was shown that was rolled back, and nothing was left out. Tokens must rise.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use pinion_runtime::{Duration, Rng, sleep};

use super::lists;
use super::session::is_of_the_moment;
use super::workload::{COLLECTION, Shared};
use crate::client::{Client, batch, error_code};

/// How long a client waits for one answer, and the node for an event.
const ANSWER: Duration = Duration::from_secs(8);
const AWAIT_MS: u64 = 1_000;
/// Batches that a stream gives before it is left and resumed.
const MOST_BATCHES: u64 = 30;
/// CursorKilled, ChangeStreamHistoryLost: another member has it.
const ELSEWHERE: [i32; 2] = [237, 286];

/// A document of the clients: its collection, and its `_id`.
pub type DocumentKey = (String, String);

/// The numbers that documents hold, in their order.
pub type HeldNumbers = BTreeMap<DocumentKey, Vec<i64>>;

/// What a stream has shown.
#[derive(Default)]
pub struct Shown {
    pub held: HeldNumbers,
    /// The token of the last event, from which the client continues.
    token: Option<RawDocumentBuf>,
    /// The last token received, of an event or behind a batch.
    last: String,
}

/// The array of numbers that documents of a collection have.
fn field_of(collection: &str) -> Option<&'static str> {
    match collection {
        COLLECTION => Some("ops"),
        _ if lists::COLLECTIONS.contains(&collection) => Some("l"),
        _ => None,
    }
}

/// Where a document is.
pub fn document_key(collection: &str, document: &RawDocument) -> DocumentKey {
    let id = match pinion_bson::get(document, "_id") {
        Some(RawBsonRef::String(text)) => text.to_owned(),
        Some(RawBsonRef::Int32(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    (collection.to_owned(), id)
}

/// The numbers of a document of the clients; `None` where it is none.
pub fn numbers(collection: &str, document: &RawDocument) -> Option<Vec<i64>> {
    let array = document.get_array(field_of(collection)?).ok()?;
    let numbers = array.into_iter().map(|value| match value {
        Ok(RawBsonRef::Int64(number)) => Some(number),
        _ => None,
    });
    numbers.collect()
}

fn token_text(token: &RawDocument) -> Result<&str, String> {
    token
        .get_str("_data")
        .map_err(|_| format!("no token: {token:?}"))
}

impl Shown {
    /// Takes an event.
    fn take(&mut self, event: &RawDocument) -> Result<(), String> {
        let wrong = |what: &str| format!("{what}: {event:?}");
        let token = event.get_document("_id").map_err(|_| wrong("no _id"))?;
        let text = token_text(token)?;
        if text <= self.last.as_str() {
            return Err(wrong("an event behind a later one, or a second time"));
        }
        self.last = text.to_owned();
        self.token = Some(token.to_owned());
        let collection = event.get_document("ns").and_then(|ns| ns.get_str("coll"));
        let collection = collection.unwrap_or_default();
        let Some(field) = field_of(collection) else {
            return Ok(());
        };
        let kind = event.get_str("operationType").unwrap_or_default();
        let key = event.get_document("documentKey");
        match kind {
            "create" | "createIndexes" | "dropIndexes" | "modify" => return Ok(()),
            "insert" | "update" | "replace" => {}
            _ => return Err(wrong("nobody does this")),
        }
        let place = document_key(collection, key.map_err(|_| wrong("no documentKey"))?);
        if kind == "update" {
            let held = self.held.get_mut(&place);
            let held = held.ok_or_else(|| wrong("an update of what was not inserted"))?;
            return append(held, field, event)
                .ok_or_else(|| wrong(&format!("an update that does not fit behind {held:?}")));
        }
        let document = event.get_document("fullDocument");
        let document = document.map_err(|_| wrong("no fullDocument"))?;
        let new = numbers(collection, document).ok_or_else(|| wrong("not of a client"))?;
        let before = self.held.insert(place, new.clone());
        let fits = match (kind, &before) {
            ("insert", None) => true,
            ("replace", Some(before)) => new.len() == before.len() + 1 && new.starts_with(before),
            _ => false,
        };
        fits.then_some(())
            .ok_or_else(|| wrong(&format!("it does not fit behind {before:?}")))
    }

    /// The first document that it does not have as a member has it.
    pub fn difference(&self, held: &HeldNumbers) -> Option<String> {
        let places = held.keys().chain(self.held.keys());
        let mut unlike = places.filter(|place| held.get(*place) != self.held.get(*place));
        unlike.next().map(|place| {
            let (there, shown) = (held.get(place), self.held.get(place));
            format!("{place:?} holds {there:?}, and the stream has shown {shown:?}")
        })
    }
}

/// Appends what an update says to have appended: one number, right behind those that are there.
fn append(held: &mut Vec<i64>, field: &str, event: &RawDocument) -> Option<()> {
    let description = event.get_document("updateDescription").ok()?;
    let updated = description.get_document("updatedFields").ok()?;
    let mut appended = updated.iter().flatten().filter_map(|(name, value)| {
        let at = name.as_str().strip_prefix(field)?.strip_prefix('.')?;
        Some((at.parse::<usize>().ok()?, value.as_i64()?))
    });
    let (at, number) = appended.next()?;
    let fits = at == held.len() && appended.next().is_none();
    held.push(number);
    fits.then_some(())
}

struct Watcher {
    shared: Rc<Shared>,
    shown: Rc<RefCell<Shown>>,
    rng: Rng,
}

/// Watches the database from its beginning until everybody ends.
pub async fn watch(shared: Rc<Shared>, shown: Rc<RefCell<Shown>>, rng: Rng) {
    let mut watcher = Watcher {
        shared: shared.clone(),
        shown,
        rng,
    };
    while !shared.stopped.get() {
        if shared.beginning.get().is_none() {
            sleep(Duration::from_millis(20)).await;
            continue;
        }
        if watcher.watch_one().await.is_none() {
            sleep(Duration::from_millis(watcher.rng.below(200))).await;
        }
    }
}

impl Watcher {
    /// Opens a stream by some member and reads it for a while; `None` when the member could not be
    /// asked.
    async fn watch_one(&mut self) -> Option<()> {
        let members = &self.shared.members;
        let member = self.rng.below(members.len() as u64) as usize;
        let mut client = Client::new(members[member]).within(ANSWER);
        let mut options = RawDocumentBuf::new();
        let token = self.shown.borrow().token.clone();
        let is_resumed = token.is_some();
        match (token, self.shared.beginning.get()) {
            (Some(token), _) => {
                let name = match self.rng.chance(0.5) {
                    true => cstr!("resumeAfter"),
                    false => cstr!("startAfter"),
                };
                options.append(name, token);
            }
            (None, time) => {
                options.append(
                    cstr!("startAtOperationTime"),
                    time.expect("the set has begun"),
                );
            }
        }
        let most = 1 + self.rng.below(20) as i32;
        let open = rawdoc! {
            "aggregate": 1_i32,
            "pipeline": [{ "$changeStream": options }],
            "cursor": { "batchSize": self.rng.below(2) as i32 * most },
            "readConcern": { "level": "majority" },
            "$readPreference": { "mode": "secondaryPreferred" },
            "$db": "sim",
        };
        let mut reply = self.ask(&mut client, &open).await?;
        if is_resumed {
            self.shared.count("change streams resumed");
        }
        let mut name = "firstBatch";
        for _ in 0..1 + self.rng.below(MOST_BATCHES) {
            let id = self.take(&reply, name)?;
            if self.shared.stopped.get() {
                return Some(());
            }
            if id == 0 {
                self.shared
                    .fail(format!("a change stream has ended: {reply:?}"));
                return None;
            }
            let more = rawdoc! {
                "getMore": id,
                "collection": "$cmd.aggregate",
                "batchSize": most,
                "maxTimeMS": self.rng.below(AWAIT_MS) as i64,
                "$db": "sim",
            };
            reply = self.ask(&mut client, &more).await?;
            name = "nextBatch";
        }
        let id = self.take(&reply, name)?;
        if self.rng.chance(0.5) {
            let kill = rawdoc! { "killCursors": "$cmd.aggregate", "cursors": [id], "$db": "sim" };
            let _ = client.command(&kill).await;
        }
        Some(())
    }

    async fn ask(&self, client: &mut Client, command: &RawDocument) -> Option<RawDocumentBuf> {
        let reply = client.command(command).await.ok()?;
        match error_code(&reply) {
            0 => Some(reply),
            code if is_of_the_moment(code) || ELSEWHERE.contains(&code) => None,
            _ => {
                self.shared
                    .fail(format!("a change stream was refused: {reply:?}"));
                None
            }
        }
    }

    /// Takes the events of a batch, or some of them, as a client does that dies; `None` then. Gives
    /// the cursor.
    fn take(&mut self, reply: &RawDocument, name: &str) -> Option<i64> {
        let events = batch(reply, name);
        let dies_at = match self.rng.chance(0.1) {
            true => self.rng.below(events.len() as u64 + 1) as usize,
            false => usize::MAX,
        };
        for (at, event) in events.iter().enumerate() {
            if at == dies_at {
                return None;
            }
            let taken = self.shown.borrow_mut().take(event);
            self.shared.count("events of change streams");
            if let Err(problem) = taken {
                self.shared
                    .fail(format!("a change stream has shown {problem}"));
                return None;
            }
        }
        let cursor = reply.get_document("cursor").ok()?;
        let Ok(token) = cursor.get_document("postBatchResumeToken") else {
            self.shared
                .fail(format!("a batch without a token: {reply:?}"));
            return None;
        };
        let mut shown = self.shown.borrow_mut();
        match token_text(token) {
            Ok(text) if text >= shown.last.as_str() => {
                shown.last = text.to_owned();
                shown.token = Some(token.to_owned());
            }
            token => {
                let last = &shown.last;
                self.shared
                    .fail(format!("a batch continues from {token:?}, behind {last}"));
                return None;
            }
        }
        cursor.get_i64("id").ok()
    }
}
