//! The client that makes the series, shards it, changes it and drops it, over and over, and looks
//! whether it is there as a whole or not at all.

use std::rc::Rc;

use pinion_bson::{DateTime, RawBson, RawDocument, RawDocumentBuf, cstr, rawdoc};
use pinion_runtime::{Duration, Instant, Rng, now, sleep};

use super::records::Filter;
use super::visit::{AT_SHARD, Level, Visitor, What};
use super::{BUCKETS, DB, Granularity, MAX_TIME_MS, NAME, PARTS, SOURCES, SPANS, Shown, Stage};
use crate::client::{Failure, batch, error_code};
use crate::clusters::cluster::Cluster;
use crate::clusters::lives::{CONFLICT, EXISTS, LEFT_BEHIND, NO_INDEX};
use crate::sets::workload::Active;

/// The longest that the series lives.
const LIFE_MS: u64 = 12_000;
/// The longest that it is there without being sharded.
const UNSHARDED_MS: u64 = 2_000;
/// How often it is made before it is sharded, and changed.
const MADE_FIRST: f64 = 0.3;
const CHANGED: f64 = 0.4;
const PAUSE: Duration = Duration::from_millis(200);
/// For how long, and how often, something may be shown that a primary shows which is none any more.
const STALE: Duration = Duration::from_secs(45);
const STALE_LOOKS: u32 = 5;
/// LockBusy: another definition has not ended.
const LOCK_BUSY: i32 = 46;
/// The zones of the series, and where they are.
const ZONES: [&str; 2] = ["low", "high"];

/// How the series is defined in one of its lives.
struct Plan {
    key: RawDocumentBuf,
    granularity: Option<Granularity>,
    /// Its key is of source and time, and the measurements of one source are on two shards.
    is_zoned: bool,
    is_made_first: bool,
    chunks: Option<i64>,
}

impl Plan {
    fn draw(rng: &mut Rng) -> Plan {
        let kind = rng.below(6);
        let key = match kind {
            0 => rawdoc! { "m.s": "hashed" },
            1 => rawdoc! { "m": "hashed" },
            2 => rawdoc! { "m.s": "hashed", "t": 1_i32 },
            3 => rawdoc! { "m": 1_i32 },
            _ => rawdoc! { "m.s": 1_i32, "t": 1_i32 },
        };
        let (is_hashed, is_zoned) = (kind < 3, kind > 3);
        let granularity = Granularity::ALL.get(rng.below(4) as usize).copied();
        Plan {
            key,
            granularity,
            is_zoned,
            is_made_first: rng.chance(MADE_FIRST) && !is_zoned,
            chunks: (rng.chance(0.3) && is_hashed).then(|| rng.between(2, 6) as i64),
        }
    }

    fn timeseries(&self) -> RawDocumentBuf {
        let mut out = rawdoc! { "timeField": "t", "metaField": "m" };
        if let Some(granularity) = self.granularity {
            out.append(cstr!("granularity"), granularity.name());
        }
        out
    }
}

/// How a definition ended.
enum Defined {
    Done,
    Refused(i32),
}

struct Leader {
    cluster: Rc<Cluster>,
    visitor: Visitor,
    rng: Rng,
    /// Until then an attempt at what was defined last may be under way.
    clear_at: Instant,
}

/// Leads the series until everybody ends.
pub async fn lead(cluster: Rc<Cluster>, mut rng: Rng) {
    let mut leader = Leader {
        visitor: Visitor::new(cluster.clone(), Rng::from_seed(rng.next_u64())),
        cluster,
        rng,
        clear_at: now(),
    };
    let mut stays = leader.prepare().await;
    while stays.is_some() {
        stays = leader.live().await;
    }
}

impl Leader {
    async fn begin(&self) -> Option<Active> {
        self.cluster.control().begin().await
    }

    fn now_is(&self, stage: Stage) {
        self.cluster.series.stage.set(stage);
    }

    /// Sends a definition until its outcome is known. `None` where the run ends.
    async fn define(&mut self, command: &RawDocument, may_fail: &[i32]) -> Option<Defined> {
        sleep(self.clear_at.saturating_since(now())).await;
        let cluster = self.cluster.clone();
        let _definition = cluster.definitions.send(true);
        while !cluster.control().stopped.get() {
            let router = self.visitor.session.place();
            match self.visitor.session.on(router, command).await {
                Ok(reply) => match error_code(&reply) {
                    0 => {
                        self.visitor.share_time();
                        return Some(Defined::Done);
                    }
                    code if may_fail.contains(&code) => return Some(Defined::Refused(code)),
                    code if code == CONFLICT
                        || code == LOCK_BUSY
                        || self.visitor.session.is_momentary(&reply) =>
                    {
                        self.clear_at = self.clear_at.max(now() + AT_SHARD);
                    }
                    _ => {
                        cluster.fail(format!("{command:?} was refused: {reply:?}"));
                        return None;
                    }
                },
                Err(Failure::NotSent) => {}
                Err(Failure::Unknown) => {
                    self.clear_at = self.clear_at.max(now() + LEFT_BEHIND);
                }
            }
            sleep(PAUSE).await;
        }
        None
    }

    async fn define_surely(&mut self, command: &RawDocument) -> Option<()> {
        self.define(command, &[]).await.map(|_| ())
    }

    /// Puts the database on a shard, and two shards into zones.
    async fn prepare(&mut self) -> Option<()> {
        let _active = self.begin().await?;
        let cluster = self.cluster.clone();
        let shards = &cluster.shards;
        let shard = &shards[self.rng.below(shards.len() as u64) as usize];
        let make = rawdoc! {
            "enableSharding": DB, "primaryShard": shard.name, "maxTimeMS": MAX_TIME_MS,
            "$db": "admin",
        };
        // An insert may have made it on another one.
        self.define(&make, &[EXISTS]).await?;
        let first = self.rng.below(shards.len() as u64) as usize;
        for (at, zone) in ZONES.into_iter().enumerate() {
            let shard = &shards[(first + at) % shards.len()];
            let add = rawdoc! {
                "addShardToZone": shard.name, "zone": zone, "maxTimeMS": MAX_TIME_MS,
                "$db": "admin",
            };
            self.define_surely(&add).await?;
        }
        self.now_is(Stage::Absent);
        Some(())
    }

    /// One life of the series.
    async fn live(&mut self) -> Option<()> {
        let plan = Plan::draw(&mut self.rng);
        let active = self.begin().await?;
        let series = &self.cluster.series;
        series.granularity.set(plan.granularity.unwrap_or_default());
        series.expires.set(None);
        self.now_is(Stage::Unclear);
        if plan.is_zoned {
            self.set_zones(plan.granularity.unwrap_or_default()).await?;
        }
        if plan.is_made_first {
            self.make(&plan).await?;
        }
        drop(active);
        if plan.is_made_first {
            let pause_ms = self.rng.below(UNSHARDED_MS);
            sleep(Duration::from_millis(pause_ms)).await;
        }
        let active = self.begin().await?;
        self.shard(&plan).await?;
        drop(active);
        let life_ms = self.rng.between(500, LIFE_MS);
        let first_ms = self.rng.below(life_ms);
        sleep(Duration::from_millis(first_ms)).await;
        if self.rng.chance(CHANGED) {
            let _active = self.begin().await?;
            self.change().await?;
        }
        sleep(Duration::from_millis(life_ms - first_ms)).await;
        let _active = self.begin().await?;
        self.cluster.series.records.borrow_mut().drop_began(now());
        self.remove().await?;
        self.cluster.series.records.borrow_mut().drop_ended(now());
        self.cluster.count("series dropped");
        self.now_is(Stage::Absent);
        self.confirm().await
    }

    /// Has the measurements of the middle source begin on one shard and end on another.
    async fn set_zones(&mut self, granularity: Granularity) -> Option<()> {
        let bound = |source: RawBson, time: RawBson| {
            rawdoc! { "meta.s": source, "control.min.t": time }
        };
        let time = DateTime::from_millis(granularity.time_of(SPANS * PARTS / 2));
        let middle = bound(RawBson::Int32(SOURCES as i32 / 2), RawBson::DateTime(time));
        let ranges = [
            (bound(RawBson::MinKey, RawBson::MinKey), middle.clone()),
            (middle, bound(RawBson::MaxKey, RawBson::MaxKey)),
        ];
        for (zone, (min, max)) in ZONES.into_iter().zip(ranges) {
            let update = rawdoc! {
                "updateZoneKeyRange": format!("{DB}.{BUCKETS}"), "min": min, "max": max,
                "zone": zone, "maxTimeMS": MAX_TIME_MS, "$db": "admin",
            };
            self.define_surely(&update).await?;
        }
        Some(())
    }

    /// Sends a definition of the series until nothing else has its name. A late insert may have
    /// made a collection, which is dropped then.
    async fn define_alone(&mut self, command: &RawDocument, may_fail: &[i32]) -> Option<Defined> {
        let may_fail: Vec<i32> = may_fail.iter().copied().chain([EXISTS]).collect();
        loop {
            match self.define(command, &may_fail).await? {
                Defined::Refused(EXISTS) => {
                    self.cluster.count("series whose name a collection had");
                    self.remove().await?;
                }
                other => return Some(other),
            }
        }
    }

    /// Makes the series, which is not sharded yet.
    async fn make(&mut self, plan: &Plan) -> Option<()> {
        let create = rawdoc! {
            "create": NAME, "timeseries": plan.timeseries(),
            "writeConcern": { "w": "majority" }, "maxTimeMS": MAX_TIME_MS, "$db": DB,
        };
        self.define_alone(&create, &[]).await?;
        self.cluster.series.records.borrow_mut().made(now());
        self.cluster.count("series made before they are sharded");
        self.now_is(Stage::Unsharded);
        self.confirm().await
    }

    /// Shards the series, and makes it where that is not done.
    async fn shard(&mut self, plan: &Plan) -> Option<()> {
        self.now_is(Stage::Unclear);
        let mut command = rawdoc! {
            "shardCollection": format!("{DB}.{NAME}"), "key": plan.key.clone(),
            "maxTimeMS": MAX_TIME_MS, "$db": "admin",
        };
        if !plan.is_made_first || self.rng.chance(0.5) {
            command.append(cstr!("timeseries"), plan.timeseries());
        }
        if let Some(chunks) = plan.chunks {
            command.append(cstr!("numInitialChunks"), chunks);
        }
        // Of a series with measurements no index is made.
        let may_fail: &[i32] = match plan.is_made_first {
            true => &[NO_INDEX],
            false => &[],
        };
        let stage = match self.define_alone(&command, may_fail).await? {
            Defined::Done => {
                self.cluster.count("series sharded");
                Stage::Sharded
            }
            Defined::Refused(_) => {
                self.cluster.count("series with measurements and no index");
                Stage::Unsharded
            }
        };
        if !plan.is_made_first {
            self.cluster.series.records.borrow_mut().made(now());
        }
        self.now_is(stage);
        self.confirm().await
    }

    /// Changes when measurements of the series expire.
    async fn change(&mut self) -> Option<()> {
        let secs = [None, Some(3_600), Some(1_000_000)][self.rng.below(3) as usize];
        let value = match secs {
            Some(secs) => RawBson::Int64(secs),
            None => RawBson::String("off".to_owned()),
        };
        let command = rawdoc! {
            "collMod": NAME, "expireAfterSeconds": value,
            "writeConcern": { "w": "majority" }, "maxTimeMS": MAX_TIME_MS, "$db": DB,
        };
        self.define_surely(&command).await?;
        self.cluster.series.expires.set(secs);
        self.cluster.count("series changed");
        self.confirm().await
    }

    /// Drops what has the name of the series.
    async fn remove(&mut self) -> Option<()> {
        self.now_is(Stage::Unclear);
        let command = rawdoc! {
            "drop": NAME, "writeConcern": { "w": "majority" }, "maxTimeMS": MAX_TIME_MS,
            "$db": DB,
        };
        self.define_surely(&command).await
    }

    /// Looks until the series is shown as it is, and takes measurements if it is there. What a
    /// stranded primary shows may be old.
    async fn confirm(&mut self) -> Option<()> {
        let mut wrong: Option<Instant> = None;
        let mut looks = 0;
        while !self.cluster.control().stopped.get() {
            match self.look().await {
                Ok(()) => {
                    self.cluster.count("looks at whole series");
                    return Some(());
                }
                Err(None) => {}
                Err(Some(why)) => {
                    looks += 1;
                    let since = *wrong.get_or_insert_with(now);
                    if since.elapsed() > STALE && looks >= STALE_LOOKS {
                        self.cluster
                            .fail(format!("the series stays half there: {why}"));
                        return None;
                    }
                }
            }
            sleep(PAUSE).await;
        }
        None
    }

    /// Looks once. An error without words is of the moment.
    async fn look(&mut self) -> Result<(), Option<String>> {
        let listed = self.ask(&Shown::list()).await?;
        let in_catalog = self.ask(&Shown::find_in_catalog()).await?;
        let shown = Shown::of(&listed, &in_catalog);
        let expected = self.cluster.series.expected();
        if expected != Some(shown) {
            return Err(Some(format!("{shown:?} in the place of {expected:?}")));
        }
        if self.cluster.series.stage.get() == Stage::Absent {
            return Ok(());
        }
        let Some(source) = self.visitor.insert(1, true).await else {
            return Err(None);
        };
        let (filter, what) = (Filter::of_source(source), What::Measurements);
        match self.visitor.read(&filter, what, Level::Linearizable).await {
            true => Ok(()),
            false => Err(None),
        }
    }

    async fn ask(&mut self, command: &RawDocument) -> Result<Vec<RawDocumentBuf>, Option<String>> {
        let router = self.visitor.session.place();
        let reply = self.visitor.session.on(router, command).await;
        let reply = reply.map_err(|_| None)?;
        match error_code(&reply) {
            0 => Ok(batch(&reply, "firstBatch")),
            _ if self.visitor.session.is_momentary(&reply) => Err(None),
            _ => Err(Some(format!("{command:?} was refused: {reply:?}"))),
        }
    }
}
