//! Clients that insert measurements into the series, read them, and delete those of a source.

use std::rc::Rc;

use pinion_bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use pinion_runtime::{Duration, Instant, Rng, now, sleep};

use super::records::{Filter, Sighting, document};
use super::{DB, MAX_TIME_MS, NAME, PARTS, SOURCES, SPANS};
use crate::client::{batch, error_code};
use crate::clusters::cluster::Cluster;
use crate::clusters::lives::LEFT_BEHIND;
use crate::sets::session::{Session, Written};
use crate::sets::workload::INCOMPLETE_HISTORY;

const MOST_AT_ONCE: u64 = 8;
/// How often a batch is sent as a retryable write.
const RETRYABLE: f64 = 0.6;
const WTIMEOUT_MS: i32 = 5_000;
/// How long a shard may be busy with what a router does not wait for.
pub const AT_SHARD: Duration = Duration::from_secs(6);
const ALL: i32 = 1_000_000;
/// QueryPlanKilled: the series was dropped, or sharded, meanwhile.
const KILLED: i32 = 175;
/// CommandNotSupportedOnView.
const IS_SERIES: i32 = 166;

/// How a read is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Linearizable,
    /// A majority's, of what all clients have seen before.
    Causal,
}

/// What is read.
#[derive(Clone, Copy, Debug)]
pub enum What {
    Measurements,
    /// Their number.
    Count,
    /// All of each source, put together by the router.
    Groups,
    /// How many each source has, counted by the shards.
    Counts,
}

/// A client of the series.
pub struct Visitor {
    pub cluster: Rc<Cluster>,
    pub session: Session,
    pub rng: Rng,
}

/// Inserts, reads and deletes until everybody ends.
pub async fn visit(cluster: Rc<Cluster>, rng: Rng) {
    let mut visitor = Visitor::new(cluster.clone(), rng);
    let mut operations = 0;
    while let Some(_active) = cluster.control().begin().await {
        match visitor.rng.below(20) {
            0..10 => {
                let retryable = visitor.rng.chance(RETRYABLE);
                visitor.insert(MOST_AT_ONCE, retryable).await;
            }
            10 => visitor.delete().await,
            _ => visitor.read_some().await,
        }
        operations += 1;
        let pause_ms = cluster.control().pause_of(operations);
        sleep(Duration::from_millis(visitor.rng.below(pause_ms + 1))).await;
    }
}

fn concern() -> RawDocumentBuf {
    rawdoc! { "w": "majority", "wtimeout": WTIMEOUT_MS }
}

impl Visitor {
    pub fn new(cluster: Rc<Cluster>, mut rng: Rng) -> Visitor {
        Visitor {
            session: Session::of(cluster.control(), &mut rng),
            cluster,
            rng,
        }
    }

    /// Exchanges what is known of time with the other clients of the series.
    pub fn share_time(&mut self) {
        let mut known = self.cluster.series.time.borrow_mut();
        self.session.share_time(&mut known);
    }

    fn draw_source(&mut self) -> i32 {
        self.rng.below(SOURCES) as i32
    }

    /// Inserts a batch, and returns the source of its last measurement if it was acknowledged.
    pub async fn insert(&mut self, most: u64, retryable: bool) -> Option<i32> {
        let is_of_one = self.rng.chance(0.3);
        let mut source = self.draw_source();
        let (mut documents, mut ids) = (RawArrayBuf::new(), Vec::new());
        for _ in 0..self.rng.between(1, most) {
            if !is_of_one {
                source = self.draw_source();
            }
            let at_ms = self.cluster.series.draw_time(&mut self.rng);
            let mut records = self.cluster.series.records.borrow_mut();
            let id = records.sent(source, at_ms, now());
            documents.push(document(id, source, at_ms));
            ids.push(id);
        }
        let command = rawdoc! {
            "insert": NAME, "documents": documents, "ordered": self.rng.chance(0.5),
            "writeConcern": concern(), "maxTimeMS": MAX_TIME_MS, "$db": DB,
        };
        let is_left_behind = match retryable {
            true => self.insert_retryably(&command).await?,
            false => self.insert_once(&command).await?,
        };
        let mut records = self.cluster.series.records.borrow_mut();
        for id in ids {
            records.acknowledged(id, is_left_behind, now());
        }
        drop(records);
        self.share_time();
        Some(source)
    }

    /// Whether a router may still be busy with an attempt; `None` where it was not acknowledged.
    async fn insert_retryably(&mut self, command: &RawDocument) -> Option<bool> {
        let sent = now();
        match self.session.write(command).await {
            Written::Acknowledged => {
                self.cluster.count("batches of measurements acknowledged");
                return Some(self.session.is_left_behind);
            }
            Written::Refused(reply) if error_code(&reply) == INCOMPLETE_HISTORY => {}
            Written::Refused(reply) => self.refused(sent, &reply),
            Written::Unknown => {}
        }
        self.cluster
            .count("batches of measurements not acknowledged");
        None
    }

    /// The same for a batch that has one effect at most, since it is never sent again.
    async fn insert_once(&mut self, command: &RawDocument) -> Option<bool> {
        let (router, sent) = (self.session.place(), now());
        match self.session.on(router, command).await {
            Ok(reply) if error_code(&reply) == 0 => {
                let name = "batches of measurements acknowledged and not retryable";
                self.cluster.count(name);
                return Some(false);
            }
            Ok(reply) if self.session.is_momentary(&reply) => {}
            Ok(reply) => self.refused(sent, &reply),
            Err(_) => {}
        }
        self.cluster
            .count("batches of measurements not acknowledged");
        None
    }

    /// An insert that has found nothing makes a collection: it may find that a series was made
    /// meanwhile.
    fn refused(&self, sent: Instant, reply: &RawDocument) {
        let was_there = self.cluster.series.records.borrow().is_there_since(sent);
        match error_code(reply) {
            IS_SERIES if !was_there => self.cluster.count("inserts beside the making of a series"),
            _ => {
                let problem = format!("measurements were refused: {reply:?}");
                self.cluster.fail(problem);
            }
        }
    }

    /// Deletes all measurements of a source.
    async fn delete(&mut self) {
        let filter = Filter {
            by_whole_meta: self.rng.chance(0.5),
            ..Filter::of_source(self.draw_source())
        };
        let source = filter.source.unwrap_or_default();
        let command = rawdoc! {
            "delete": NAME, "deletes": [{ "q": filter.to_bson(), "limit": 0_i32 }],
            "writeConcern": concern(), "maxTimeMS": MAX_TIME_MS, "$db": DB,
        };
        let records = &self.cluster.series.records;
        let number = records.borrow_mut().deletion_sent(source, now());
        let router = self.session.place();
        let over = match self.session.on(router, &command).await {
            Ok(reply) if error_code(&reply) == 0 => {
                records.borrow_mut().deletion_acknowledged(number, now());
                self.cluster.count("sources deleted");
                return self.share_time();
            }
            Ok(reply) if self.session.is_momentary(&reply) || error_code(&reply) == KILLED => {
                now() + AT_SHARD
            }
            Ok(reply) => {
                let problem = format!("a deletion of measurements was refused: {reply:?}");
                return self.cluster.fail(problem);
            }
            Err(_) => now() + LEFT_BEHIND,
        };
        records.borrow_mut().deletion_over(number, over);
    }

    async fn read_some(&mut self) {
        let mut filter = Filter::default();
        if self.rng.chance(0.5) {
            filter.source = Some(self.draw_source());
            filter.by_whole_meta = self.rng.chance(0.5);
        }
        if self.rng.chance(0.5) {
            let granularity = self.cluster.series.granularity.get();
            let first = self.rng.below((SPANS * PARTS) as u64) as i64;
            let last = first + self.rng.between(1, (SPANS * PARTS) as u64 / 2) as i64;
            filter.window = Some((granularity.time_of(first), granularity.time_of(last)));
        }
        let what = match self.rng.below(6) {
            0..3 => What::Measurements,
            3 => What::Count,
            4 => What::Groups,
            _ => What::Counts,
        };
        let level = match self.rng.chance(0.5) {
            true => Level::Linearizable,
            false => Level::Causal,
        };
        self.read(&filter, what, level).await;
    }

    /// The command of a read.
    fn query(&mut self, filter: &Filter, what: What, level: Level) -> RawDocumentBuf {
        let matching = filter.to_bson();
        let group = |group: RawDocumentBuf| {
            rawdoc! {
                "aggregate": NAME,
                "pipeline": [{ "$match": filter.to_bson() }, { "$group": group }],
                "cursor": { "batchSize": ALL },
            }
        };
        let mut query = match what {
            What::Measurements => {
                rawdoc! { "find": NAME, "filter": matching, "batchSize": ALL }
            }
            What::Count => rawdoc! { "count": NAME, "query": matching },
            What::Groups => group(rawdoc! { "_id": "$m.s", "ids": { "$push": "$u" } }),
            What::Counts => group(rawdoc! { "_id": "$m.s", "n": { "$sum": 1_i32 } }),
        };
        let mut concern = rawdoc! { "level": "linearizable" };
        if level == Level::Causal {
            self.share_time();
            concern = rawdoc! { "level": "majority" };
            if let Some(time) = self.session.operation_time {
                concern.append(cstr!("afterClusterTime"), time);
            }
            if self.rng.chance(0.5) {
                let mode = rawdoc! { "mode": "secondaryPreferred" };
                query.append(cstr!("$readPreference"), mode);
            }
        }
        query.append(cstr!("readConcern"), concern);
        query.append(cstr!("maxTimeMS"), MAX_TIME_MS);
        query.append(cstr!("$db"), DB);
        query
    }

    /// Reads and checks; whether it was answered.
    pub async fn read(&mut self, filter: &Filter, what: What, level: Level) -> bool {
        let query = self.query(filter, what, level);
        let router = self.session.place();
        let began = now();
        let Ok(reply) = self.session.on(router, &query).await else {
            return false;
        };
        match error_code(&reply) {
            0 => {}
            code if self.session.is_momentary(&reply) || code == KILLED => return false,
            _ => {
                let problem = format!("measurements were not read: {query:?}: {reply:?}");
                self.cluster.fail(problem);
                return false;
            }
        }
        self.cluster.count(match (what, level) {
            (What::Measurements, Level::Linearizable) => "linearizable reads of measurements",
            (What::Measurements, Level::Causal) => "causal reads of measurements",
            (What::Count, _) => "measurements counted",
            (What::Groups, _) => "measurements grouped",
            (What::Counts, _) => "measurements of groups counted",
        });
        if let Err(why) = self.check((filter, what), &reply, began) {
            self.cluster.fail(format!("{query:?}: {why}"));
        }
        self.share_time();
        true
    }

    fn check(
        &self,
        (filter, what): (&Filter, What),
        reply: &RawDocument,
        began: Instant,
    ) -> Result<(), String> {
        let (records, ended) = (self.cluster.series.records.borrow(), now());
        let documents = batch(reply, "firstBatch");
        match what {
            What::Measurements => {
                let found = documents.iter().map(|one| Sighting::read(one));
                let found: Vec<Sighting> = found.collect::<Result<_, String>>()?;
                records.check_found(filter, &found, began, ended)
            }
            What::Count => {
                let count = reply.get_i32("n").map_err(|error| error.to_string())?;
                records.check_count(filter, count.into(), began, ended)
            }
            What::Groups => {
                let mut found = Vec::new();
                for group in &documents {
                    found.extend(of_group(group)?);
                }
                records.check_found(filter, &found, began, ended)
            }
            What::Counts => {
                for source in sources(filter) {
                    let counted = count_of(&documents, source)?;
                    let of_source = Filter {
                        source: Some(source),
                        ..filter.clone()
                    };
                    records.check_count(&of_source, counted, began, ended)?;
                }
                Ok(())
            }
        }
    }
}

/// The sources that may be in what a filter finds.
fn sources(filter: &Filter) -> Vec<i32> {
    match filter.source {
        Some(source) => vec![source],
        None => (0..SOURCES as i32).collect(),
    }
}

fn source_of(group: &RawDocument) -> Result<i32, String> {
    match group.get_i32("_id") {
        Ok(source) if (0..SOURCES as i32).contains(&source) => Ok(source),
        _ => Err(format!("no source has this group: {group:?}")),
    }
}

fn of_group(group: &RawDocument) -> Result<Vec<Sighting>, String> {
    let source = source_of(group)?;
    let ids = group.get_array("ids").map_err(|error| error.to_string())?;
    let sightings = pinion_bson::values(ids).map(|id| match id {
        RawBsonRef::Int64(id) => Ok(Sighting {
            id,
            source,
            at_ms: None,
        }),
        other => Err(format!("{other:?} was never written")),
    });
    sightings.collect()
}

/// What the groups say of a source: none is there of a source without measurements.
fn count_of(groups: &[RawDocumentBuf], source: i32) -> Result<i64, String> {
    let mut counts = Vec::new();
    for group in groups {
        if source_of(group)? == source {
            counts.push(group.get_i32("n").map_err(|error| error.to_string())?);
        }
    }
    match counts[..] {
        [] => Ok(0),
        [count] => Ok(count.into()),
        _ => Err(format!("{source} has several groups: {groups:?}")),
    }
}
