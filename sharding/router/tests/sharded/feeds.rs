//! The logs of shards, and their change streams.

use std::collections::BTreeMap;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, get, rawdoc};
use pinion_query::{
    ChangeStreamOptions, Matcher, Resume, ResumeToken, Start, TokenData, check_stages,
};
use pinion_runtime::{Duration, now, sleep};
use pinion_wire::idl::i64_exact;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::nodes::Member;
use super::world::DB;

/// What an entry of a shard's log says.
#[derive(Clone, Debug, PartialEq)]
pub enum Logged {
    Insert(i32),
    Update(RawDocumentBuf),
    Drop,
    /// What concerns no stream.
    Other,
    Mark,
}

/// The log of a shard.
#[derive(Default)]
pub struct Feed {
    entries: Vec<(u32, Logged)>,
    pub marks: u32,
}

/// A stream of a shard.
pub struct FeedStream {
    shard: usize,
    /// Everything before this time was examined.
    next: u32,
    resume: Option<Resume>,
    matcher: Option<Matcher>,
    token: ResumeToken,
    reported: u32,
}

#[derive(Default)]
pub struct Feeds {
    pub of: BTreeMap<usize, Feed>,
    pub streams: BTreeMap<i64, FeedStream>,
    /// A time that a router knows: what is written from here on comes behind it.
    pub known: u32,
}

fn time_of(time: u32) -> Timestamp {
    Timestamp { time, increment: 0 }
}

/// The time of the simulation, in hundredths of a second.
fn clock() -> u32 {
    (now().as_nanos() / 10_000_000) as u32 + 100
}

impl Feed {
    pub fn last(&self) -> u32 {
        self.entries.last().map_or(0, |(time, _)| *time)
    }

    /// Writes an entry behind all others, and not before a time.
    pub fn log(&mut self, logged: Logged, least: u32) -> u32 {
        let time = (self.last() + 1).max(clock()).max(least);
        self.entries.push((time, logged));
        time
    }
}

fn token(time: u32, name: &str, shard: usize) -> ResumeToken {
    let data = TokenData {
        is_event: true,
        uuid: Some([5; 16]),
        from_invalidate: name == "invalidate",
        identifier: Some(rawdoc! { "operationType": name, "shard": shard as i32 }),
        ..TokenData::high_water_mark(time_of(time))
    };
    data.token()
}

/// The events of an entry.
pub fn events(time: u32, logged: &Logged, shard: usize) -> Vec<(ResumeToken, RawDocumentBuf)> {
    let make = |name: &str, key: Option<RawDocumentBuf>| {
        let token = token(time, name, shard);
        let mut out = DocBuilder::new();
        out.append("_id", &*token.to_document())
            .append("operationType", name);
        out.append_raw("clusterTime", RawBsonRef::Timestamp(time_of(time)));
        out.append("ns", &*rawdoc! { "db": DB, "coll": "c" });
        if let Some(key) = key {
            out.append("documentKey", &*key);
        }
        (token, out.finish())
    };
    match logged {
        Logged::Insert(id) => vec![make("insert", Some(rawdoc! { "_id": *id }))],
        Logged::Update(key) => vec![make("update", Some(key.clone()))],
        Logged::Drop => vec![make("drop", None), make("invalidate", None)],
        Logged::Other | Logged::Mark => Vec::new(),
    }
}

impl Feeds {
    pub fn feed(&mut self, shard: usize) -> &mut Feed {
        self.of.entry(shard).or_default()
    }

    /// All events of all shards from a time on, in order.
    pub fn all_events(&self, from: ResumeToken) -> Vec<RawDocumentBuf> {
        let mut all: Vec<_> = self
            .of
            .iter()
            .flat_map(|(shard, feed)| {
                let entries = feed.entries.iter();
                entries.flat_map(|(time, logged)| events(*time, logged, *shard))
            })
            .filter(|(token, _)| *token > from)
            .collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.into_iter().map(|(_, event)| event).collect()
    }
}

/// What a stream has seen of its log.
struct Seen {
    events: Vec<RawDocumentBuf>,
    has_ended: bool,
    saw_mark: bool,
}

impl FeedStream {
    fn read(&mut self, feed: &Feed) -> Seen {
        let mut seen = Seen {
            events: Vec::new(),
            has_ended: false,
            saw_mark: false,
        };
        for (time, logged) in feed.entries.iter() {
            if *time < self.next {
                continue;
            }
            if seen.events.len() > 3 {
                break;
            }
            self.next = time + 1;
            seen.saw_mark |= *logged == Logged::Mark;
            for (token, event) in events(*time, logged, self.shard) {
                if let Some(resume) = &mut self.resume {
                    let is_last = resume.is_of(&token);
                    match resume.look(&token).expect("it may be missing") {
                        pinion_query::Seen::Yes if is_last => {
                            self.token = token.clone();
                            self.reported = *time;
                            seen.events.push(rawdoc! { "_id": token.to_document() });
                            continue;
                        }
                        pinion_query::Seen::Yes => continue,
                        _ => {}
                    }
                }
                seen.has_ended |=
                    get(&event, "operationType") == Some(RawBsonRef::String("invalidate"));
                let is_wanted = self.matcher.as_ref();
                if is_wanted.is_none_or(|matcher| matcher.matches(&*event).expect("it can be")) {
                    self.reported = *time;
                    seen.events.push(event);
                }
                self.token = token;
            }
            if seen.has_ended {
                break;
            }
        }
        if !seen.has_ended && self.next > self.reported + 1 {
            self.reported = self.next - 1;
            self.token = TokenData::high_water_mark(time_of(self.reported)).token();
        }
        seen
    }
}

impl Member {
    /// Opens a stream.
    pub fn open_changes(&self, cmd: &Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers have no streams");
        let body = cmd.body();
        assert_eq!(get(body, "fromRouter"), Some(RawBsonRef::Boolean(true)));
        let Some(RawBsonRef::Array(stages)) = get(body, "pipeline") else {
            panic!("a pipeline is an array");
        };
        check_stages(stages)?;
        let mut stages = pinion_bson::values(stages).filter_map(|stage| stage.as_document());
        let spec = get(stages.next().expect("a stage"), "$changeStream").expect("a stream");
        let options = ChangeStreamOptions::parse(spec)?;
        let (next, resume) = match &options.start {
            Start::Now => panic!("a router names the beginning"),
            Start::At(time) => (time.time + u32::from(time.increment > 0), None),
            Start::Behind(resume) => {
                let mut resume = Resume::clone(resume);
                resume.allow_missing();
                (resume.data.cluster_time.time, Some(resume))
            }
        };
        let matcher = stages.next().map(|stage| {
            let filter = get(stage, "$match").and_then(|filter| filter.as_document());
            Matcher::parse(filter.expect("a filter")).expect("a filter")
        });
        let token = options.start.first_token(time_of(0));
        let stream = FeedStream {
            shard,
            next,
            reported: next.saturating_sub(1),
            resume,
            matcher,
            token: token.clone(),
        };
        let mut world = self.world.borrow_mut();
        world.next_cursor += 1;
        let id = world.next_cursor;
        world.feeds.streams.insert(id, stream);
        Ok(self.changes_reply("firstBatch", &[], &token, id))
    }

    fn changes_reply(
        &self,
        name: &str,
        events: &[RawDocumentBuf],
        token: &ResumeToken,
        id: i64,
    ) -> Reply {
        let mut reply = Reply::new();
        reply.start_document("cursor").start_array(name);
        events.iter().for_each(|event| {
            reply.push(&**event);
        });
        reply.end();
        reply
            .append("postBatchResumeToken", &*token.to_document())
            .append("id", id)
            .append("ns", "d.c")
            .end();
        reply
    }

    /// `getMore` of a stream; `None` for other cursors.
    pub async fn more_changes(&self, cmd: &Invocation, id: i64) -> Result<Option<Reply>> {
        if !self.world.borrow().feeds.streams.contains_key(&id) {
            return Ok(None);
        }
        let limit = get(cmd.body(), "maxTimeMS").and_then(i64_exact);
        let until = now() + Duration::from_millis(limit.expect("it waits") as u64);
        loop {
            {
                let world = &mut *self.world.borrow_mut();
                let Some(stream) = world.feeds.streams.get_mut(&id) else {
                    return Err(Error::new(ErrorCode::CURSOR_KILLED, "it was killed"));
                };
                let feed = world.feeds.of.entry(stream.shard).or_default();
                let seen = stream.read(feed);
                if !seen.events.is_empty() || seen.has_ended || seen.saw_mark || now() >= until {
                    let token = stream.token.clone();
                    let left = if seen.has_ended { 0 } else { id };
                    if seen.has_ended {
                        world.feeds.streams.remove(&id);
                    }
                    return Ok(Some(self.changes_reply(
                        "nextBatch",
                        &seen.events,
                        &token,
                        left,
                    )));
                }
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// `appendOplogNote`.
    pub async fn note(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers write no marks");
        let mut world = self.world.borrow_mut();
        let feed = world.feeds.feed(shard);
        let mut least = 0;
        if let Some(RawBsonRef::Timestamp(limit)) = get(cmd.body(), "maxClusterTime") {
            if feed.last() > limit.time {
                return Err(Error::new(ErrorCode::STALE_CLUSTER_TIME, "later"));
            }
            least = limit.time + 1;
        }
        feed.marks += 1;
        feed.log(Logged::Mark, least);
        Ok(Reply::new())
    }

    /// `ping`, with the times that a member knows.
    pub async fn ping(self, _: Invocation) -> Result<Reply> {
        let mut world = self.world.borrow_mut();
        let last = world.feeds.of.values().map(Feed::last).max();
        let time = last.unwrap_or(0).max(clock());
        world.feeds.known = world.feeds.known.max(time);
        let topology = Timestamp {
            time: world.topology,
            increment: 0,
        };
        world.pings += 1;
        let mut reply = Reply::new();
        reply
            .start_document("$clusterTime")
            .append_raw("clusterTime", RawBsonRef::Timestamp(time_of(time)))
            .end();
        reply.append_raw("$topologyTime", RawBsonRef::Timestamp(topology));
        Ok(reply)
    }
}

/// The bytes of documents, for comparisons.
pub fn as_bytes(documents: &[RawDocumentBuf]) -> Vec<Bytes> {
    let bytes = |document: &RawDocumentBuf| Bytes::copy_from_slice(document.as_bytes());
    documents.iter().map(bytes).collect()
}

/// Whether a pipeline is a change stream.
pub fn is_changes(command: &RawDocument) -> bool {
    let Some(RawBsonRef::Array(stages)) = get(command, "pipeline") else {
        return false;
    };
    let first = pinion_bson::values(stages).next();
    first
        .and_then(|stage| stage.as_document())
        .is_some_and(|stage| get(stage, "$changeStream").is_some())
}
