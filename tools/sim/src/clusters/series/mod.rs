//! A time series that is sharded, dropped and sharded again under the same name, and its clients.

mod lead;
mod records;
mod visit;

use std::cell::{Cell, RefCell};

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_runtime::{Instant, Rng};

use crate::sets::session::KnownTime;
use records::{Filter, Records, Sighting};

pub use lead::lead;
pub use visit::visit;

pub const DB: &str = "series";
pub const NAME: &str = "s";
pub const BUCKETS: &str = "system.buckets.s";
/// The meta field of each measurement is `{s: <source>}`.
const SOURCES: u64 = 6;
/// The beginning of 2027, years after the clocks of a run: nothing expires.
const EARLIEST_MS: i64 = 1_798_761_600_000;
/// Measurements are spread over the time of this number of buckets.
const SPANS: i64 = 6;
/// Parts of the time of a bucket in which measurements are.
const PARTS: i64 = 60;
const MAX_TIME_MS: i32 = 5_000;

/// How coarse the times of the series are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Granularity {
    #[default]
    Seconds,
    Minutes,
    Hours,
}

impl Granularity {
    const ALL: [Granularity; 3] = [
        Granularity::Seconds,
        Granularity::Minutes,
        Granularity::Hours,
    ];

    fn name(self) -> &'static str {
        match self {
            Granularity::Seconds => "seconds",
            Granularity::Minutes => "minutes",
            Granularity::Hours => "hours",
        }
    }

    /// The longest time that a bucket spans.
    fn span_ms(self) -> i64 {
        let hours = match self {
            Granularity::Seconds => 1,
            Granularity::Minutes => 24,
            Granularity::Hours => 30 * 24,
        };
        hours * 3_600_000
    }

    /// The beginning of one of the parts of all times.
    fn time_of(self, part: i64) -> i64 {
        EARLIEST_MS + part * (self.span_ms() / PARTS)
    }
}

/// What there is of the series, as its leader knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It is being defined.
    #[default]
    Unclear,
    Absent,
    Unsharded,
    Sharded,
}

/// What the clients of the series share.
#[derive(Default)]
pub struct Series {
    records: RefCell<Records>,
    pub stage: Cell<Stage>,
    /// `expireAfterSeconds`, as it was last acknowledged.
    expires: Cell<Option<i64>>,
    granularity: Cell<Granularity>,
    /// A causal read sees what all clients have seen.
    time: RefCell<KnownTime>,
}

impl Series {
    /// The time of a measurement.
    fn draw_time(&self, rng: &mut Rng) -> i64 {
        let part = rng.below((SPANS * PARTS) as u64) as i64;
        self.granularity.get().time_of(part)
    }

    /// What a router is to show of it; `None` while that is unclear.
    pub fn expected(&self) -> Option<Shown> {
        let (is_series, is_in_catalog) = match self.stage.get() {
            Stage::Unclear => return None,
            Stage::Absent => (false, false),
            Stage::Unsharded => (true, false),
            Stage::Sharded => (true, true),
        };
        Some(Shown {
            is_series,
            has_buckets: is_series,
            expires: self.expires.get().filter(|_| is_series),
            is_in_catalog,
        })
    }

    /// Checks all measurements, as the primaries of shards had them between two times.
    pub fn check(
        &self,
        documents: &[RawDocumentBuf],
        began: Instant,
        ended: Instant,
    ) -> Result<(), String> {
        let found: Result<Vec<Sighting>, String> =
            documents.iter().map(|one| Sighting::read(one)).collect();
        let records = self.records.borrow();
        records.check_found(&Filter::default(), &found?, began, ended)
    }
}

/// What a router shows of the series. A collection of its name that is no series is not looked at:
/// a late insert makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    is_series: bool,
    has_buckets: bool,
    expires: Option<i64>,
    /// The config servers have it as sharded.
    is_in_catalog: bool,
}

impl Shown {
    /// Lists the series.
    pub fn list() -> RawDocumentBuf {
        rawdoc! {
            "listCollections": 1_i32, "filter": { "name": { "$in": [NAME, BUCKETS] } },
            "maxTimeMS": MAX_TIME_MS, "$db": DB,
        }
    }

    /// Finds what the config servers have of it.
    pub fn find_in_catalog() -> RawDocumentBuf {
        let names = [NAME, BUCKETS].map(|name| format!("{DB}.{name}"));
        let [series, buckets] = names;
        rawdoc! {
            "find": "collections", "filter": { "_id": { "$in": [series, buckets] } },
            "readConcern": { "level": "majority" }, "maxTimeMS": MAX_TIME_MS, "$db": "config",
        }
    }

    /// From the answers to both.
    pub fn of(listed: &[RawDocumentBuf], in_catalog: &[RawDocumentBuf]) -> Shown {
        let named = |one: &RawDocument, name: &str| one.get_str("name").ok() == Some(name);
        let is_series = |one: &RawDocument| one.get_str("type").ok() == Some("timeseries");
        let mut of_name = listed.iter().filter(|one| named(one, NAME));
        let series = of_name.find(|one| is_series(one));
        let expires = series.and_then(|series| {
            match pinion_bson::get_path(series, "options.expireAfterSeconds") {
                Some(RawBsonRef::Int64(secs)) => Some(secs),
                Some(RawBsonRef::Int32(secs)) => Some(secs.into()),
                _ => None,
            }
        });
        Shown {
            is_series: series.is_some(),
            has_buckets: listed.iter().any(|one| named(one, BUCKETS)),
            expires,
            is_in_catalog: !in_catalog.is_empty(),
        }
    }
}
