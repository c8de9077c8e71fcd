//! How databases are profiled, and which operations that concerns.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_query::Matcher;
use pinion_wire::idl::Namespace;

use crate::parameters::server_counters;

/// The collection of a database that its profiled operations are written to.
pub const COLLECTION: &str = "system.profile";

/// Which operations of a database are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    #[default]
    Off,
    Slow,
    All,
}

impl Level {
    /// The level of this number, if there is one.
    pub fn of(number: i64) -> Option<Level> {
        match number {
            0 => Some(Level::Off),
            1 => Some(Level::Slow),
            2 => Some(Level::All),
            _ => None,
        }
    }

    /// MongoDB's number of the level.
    pub fn number(self) -> i32 {
        self as i32
    }
}

/// How one database is profiled.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub level: Level,
    /// Which operations are logged, and written at level 1, instead of those that are slow.
    pub filter: Option<Matcher>,
}

impl Profile {
    /// Whether it asks for more than lines in the log by time alone.
    fn is_on(&self) -> bool {
        self.level != Level::Off || self.filter.is_some()
    }
}

/// How the databases are profiled; every core holds the same.
#[derive(Debug)]
pub struct Profiles {
    /// Of databases without a setting of their own.
    default: Profile,
    databases: BTreeMap<Box<str>, Profile>,
    /// As a command gave it: it may be negative. Until then what the node was started with holds.
    pub slow_ms_given: Option<i32>,
    sample_rate: f64,
    /// Whether operations must be recorded at all, which each of them asks.
    is_on: bool,
    /// How much of an operation the sample still lacks.
    owed: Cell<f64>,
    /// Entries that this core is writing now.
    pub writing: Cell<usize>,
}

/// How the databases are profiled.
pub fn profiles() -> Rc<RefCell<Profiles>> {
    pinion_runtime::core_local()
}

impl Default for Profiles {
    fn default() -> Profiles {
        Profiles {
            default: Profile::default(),
            databases: BTreeMap::new(),
            slow_ms_given: None,
            sample_rate: 1.0,
            is_on: false,
            owed: Cell::new(0.0),
            writing: Cell::new(0),
        }
    }
}

impl Profiles {
    /// How a database is profiled.
    pub fn of(&self, db: &str) -> &Profile {
        self.databases.get(db).unwrap_or(&self.default)
    }

    /// Sets how a database is profiled.
    pub fn set(&mut self, db: &str, profile: Profile) {
        self.databases.insert(db.into(), profile);
        self.changed();
    }

    fn forget(&mut self, db: &str) {
        self.databases.remove(db);
        self.changed();
    }

    fn set_default(&mut self, level: Level) {
        self.default.level = level;
        self.changed();
    }

    /// The share of slow operations that are written.
    pub fn sample_rate(&self) -> f64 {
        self.sample_rate
    }

    /// Sets the share of slow operations that are written, from 0 to 1.
    pub fn set_sample_rate(&mut self, rate: f64) {
        self.sample_rate = rate;
        self.changed();
    }

    fn changed(&mut self) {
        let mut profiles = self.databases.values().chain([&self.default]);
        self.is_on = self.sample_rate < 1.0 || profiles.any(Profile::is_on);
    }

    /// From this many milliseconds on an operation is slow.
    pub fn slow_ms(&self) -> i32 {
        let of_log = || server_counters().slow_ms.get().min(i32::MAX as u64) as i32;
        self.slow_ms_given.unwrap_or_else(of_log)
    }

    /// Whether the profiler must look at operations at all.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether it must look at those of this database.
    pub fn concerns(&self, db: &str) -> bool {
        self.sample_rate < 1.0 || self.of(db).is_on()
    }

    /// Whether an operation that took so long is slow and belongs to the sample.
    pub fn is_slow(&self, us: u64) -> bool {
        us as i64 >= i64::from(self.slow_ms()) * 1000 && self.samples()
    }

    /// Whether the next slow operation belongs to the sample: of many it is the share that was
    /// asked for.
    fn samples(&self) -> bool {
        let owed = self.owed.get() + self.sample_rate;
        let taken = owed >= 1.0;
        self.owed.set(if taken { owed - 1.0 } else { owed });
        taken
    }
}

/// Whether operations of its database are written to this collection.
pub fn is_written(ns: &Namespace) -> bool {
    ns.collection() == COLLECTION && profiles().borrow().of(ns.db()).level != Level::Off
}

/// Lets a database have nothing of its own any more, on every core.
pub async fn forget(db: &str) {
    let db = db.to_owned();
    pinion_runtime::on_all_cores(move |_| {
        let db = db.clone();
        async move {
            let profiles = profiles();
            let mut profiles = profiles.borrow_mut();
            profiles.forget(&db);
        }
    })
    .await;
}

/// Sets how databases are profiled without a setting of their own, on this core (`--profile`,
/// `--slowOpSampleRate`).
pub fn set_profile_defaults(level: i64, sample_rate: f64) {
    let profiles = profiles();
    let mut profiles = profiles.borrow_mut();
    profiles.set_default(Level::of(level).unwrap_or_default());
    profiles.set_sample_rate(sample_rate);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles(sample_rate: f64) -> Profiles {
        Profiles {
            slow_ms_given: Some(0),
            sample_rate,
            ..Profiles::default()
        }
    }

    #[test]
    fn a_sample_is_the_share_that_was_asked_for() {
        let check = |rate: f64, expected: usize| {
            let profiles = profiles(rate);
            let taken = (0..1000).filter(|_| profiles.is_slow(1)).count();
            assert_eq!(taken, expected);
        };
        check(0.25, 250);
        check(0.0, 0);
        check(1.0, 1000);
    }

    #[test]
    fn databases_have_the_default_until_they_have_a_setting() {
        let mut profiles = profiles(1.0);
        assert!(!profiles.is_on());
        profiles.set_default(Level::Slow);
        assert!(profiles.is_on() && profiles.of("d").level == Level::Slow);
        profiles.set("d", Profile::default());
        assert_eq!(profiles.of("d").level, Level::Off);
        assert!(!profiles.concerns("d"));
        profiles.forget("d");
        assert_eq!(profiles.of("d").level, Level::Slow);
    }

    #[test]
    fn a_filter_alone_concerns_operations() {
        let mut profiles = profiles(1.0);
        let filter = Matcher::parse(&pinion_bson::rawdoc! { "op": "query" }).ok();
        assert!(filter.is_some());
        let level = Level::Off;
        profiles.set("d", Profile { level, filter });
        assert!(profiles.is_on() && profiles.concerns("d") && !profiles.concerns("e"));
    }
}
