//! The cache of one namespace of the routing table, as a machine: what is known, what of it is
//! stale, and the one refresh that all accesses share.
//!
//! It is lazy: to mark something as stale starts nothing, the next access to that part does. An
//! operation first asks for what is known (`Targets::Unknown`), finds out which shards it needs,
//! and asks again for those; where that gives another table than before it targets again.
//!
//! Source: sharding document, "The routing table cache".

mod limits;
#[cfg(test)]
mod tests;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use pinion_wire::{Error, ErrorCode};

use crate::shard_id::ShardId;

pub use limits::MAX_REFRESH_RETRIES;
pub use value::{CachedCollection, CachedDatabase};

/// What a cache keeps of a namespace.
pub trait Cacheable: Clone + Debug {
    /// The version that a shard names in an error.
    type Version: Copy + Debug;

    /// Whether another access may be served with it. What does not exist is looked for each time.
    fn is_kept(&self) -> bool;

    /// Whether this is older than the version of a shard (of all of it, without one); `None` where
    /// that cannot be known.
    fn is_older_than(&self, shard: Option<&ShardId>, version: Self::Version) -> Option<bool>;

    /// Whether this is newer than the version of a shard that a request was sent with; `None` where
    /// that cannot be known.
    fn is_newer_than(&self, shard: Option<&ShardId>, version: Self::Version) -> Option<bool>;

    /// The newer of two versions that a shard named, `other` where that cannot be known.
    fn latest(one: Self::Version, other: Self::Version) -> Self::Version;

    /// Whether this, which was read later, is older than what is known: its source is behind.
    fn goes_back_from(&self, known: &Self) -> bool;

    /// Whether what changed since can be applied to it, given a version that a shard has.
    fn is_base_for(&self, version: Option<Self::Version>) -> bool;
}

/// An operation that accesses the namespace, by a number of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Accessor(pub u64);

/// The shards that an access is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// It has to know the table first.
    Unknown,
    Shards(BTreeSet<ShardId>),
}

/// What makes a namespace, or a shard's part of it, stale.
#[derive(Clone, Debug)]
pub struct Staleness<V> {
    /// The shard whose part it is; `None`: all of it.
    pub shard: Option<ShardId>,
    /// What the request was sent with that was refused.
    pub received: Option<V>,
    /// What the shard has. No older table is returned from then on.
    pub wanted: Option<V>,
    /// Whether the namespace was dropped, or flushed: nothing of what is known is built on.
    pub is_dropped: bool,
}

impl<V> Staleness<V> {
    /// The part of one shard, of which no version is known: a migration was committed there.
    pub fn of_shard(shard: ShardId) -> Staleness<V> {
        Staleness {
            shard: Some(shard),
            received: None,
            wanted: None,
            is_dropped: false,
        }
    }

    /// All of it, as of a drop and `flushRouterConfig`.
    pub fn dropped() -> Staleness<V> {
        Staleness {
            shard: None,
            received: None,
            wanted: None,
            is_dropped: true,
        }
    }
}

/// Why a refresh failed.
#[derive(Clone, Debug)]
pub enum LoadError {
    /// What was read does not fit to what it was to be applied to, or to itself.
    NeedsFull(Error),
    Failed(Error),
}

#[derive(Debug)]
pub enum Input<C: Cacheable> {
    Access {
        by: Accessor,
        targets: Targets,
    },
    /// The operation was interrupted.
    GiveUp {
        by: Accessor,
    },
    Stale(Staleness<C::Version>),
    /// What `Effect::Load` asked for.
    Loaded {
        load: u64,
        result: Result<C, LoadError>,
    },
}

#[derive(Debug)]
pub enum Effect<C> {
    /// To read from the source: what changed since `base`, applied to it, or all without one.
    Load { load: u64, base: Option<C> },
    Reply {
        to: Accessor,
        result: Result<C, Error>,
    },
}

/// The machine.
#[derive(Debug)]
pub struct NamespaceCache<C: Cacheable> {
    /// Whether accesses to shards that are not stale pass while others are refreshed:
    /// `enableFinerGrainedCatalogCacheRefresh`.
    is_fine_grained: bool,
    known: Option<C>,
    marks: BTreeMap<Option<ShardId>, Mark<C::Version>>,
    /// Counts marks.
    marked: u64,
    /// Counts loads.
    loads: u64,
    refresh: Option<Refresh>,
    /// In the order of their arrival.
    waiting: Vec<Waiting>,
}

#[derive(Clone, Debug)]
struct Mark<V> {
    /// The value of `marked` when it was set.
    number: u64,
    wanted: Option<V>,
    is_dropped: bool,
    /// A shard has refused a request: what is known serves no other one.
    is_refused: bool,
}

#[derive(Debug)]
struct Refresh {
    load: u64,
    retries: u32,
    /// The marks that were set when the load under way began.
    seen: u64,
    needs_full: bool,
}

#[derive(Debug)]
struct Waiting {
    by: Accessor,
    targets: Targets,
    /// The marks that were set when it came: later ones do not keep it.
    seen: u64,
}

type Effects<C> = Vec<Effect<C>>;

impl<C: Cacheable> NamespaceCache<C> {
    pub fn new(is_fine_grained: bool) -> NamespaceCache<C> {
        NamespaceCache {
            is_fine_grained,
            known: None,
            marks: BTreeMap::new(),
            marked: 0,
            loads: 0,
            refresh: None,
            waiting: Vec::new(),
        }
    }

    /// What is known, stale or not.
    pub fn known(&self) -> Option<&C> {
        self.known.as_ref()
    }

    /// Whether any access would wait now.
    pub fn is_stale(&self) -> bool {
        self.known.is_none() || !self.marks.is_empty()
    }

    /// Whether the cache holds neither accesses nor a refresh, and may be dropped.
    pub fn is_idle(&self) -> bool {
        self.refresh.is_none() && self.waiting.is_empty()
    }

    pub fn step(&mut self, input: Input<C>) -> Effects<C> {
        let mut out = Vec::new();
        match input {
            Input::Access { by, targets } => {
                let access = Waiting {
                    by,
                    targets,
                    seen: self.marked,
                };
                match self.served(&access) {
                    Some(value) => out.push(reply(by, Ok(value))),
                    None => {
                        self.waiting.push(access);
                        self.start_refresh(&mut out);
                    }
                }
            }
            Input::GiveUp { by } => self.waiting.retain(|access| access.by != by),
            Input::Stale(staleness) => self.mark(staleness),
            Input::Loaded { load, result } => self.loaded(load, result, &mut out),
        }
        out
    }

    /// What an access gets without waiting.
    fn served(&self, access: &Waiting) -> Option<C> {
        let known = self.known.as_ref()?;
        (self.marks_for(access).next().is_none()).then(|| known.clone())
    }

    /// The marks that an access does not pass.
    fn marks_for<'m>(&'m self, access: &'m Waiting) -> impl Iterator<Item = &'m Mark<C::Version>> {
        let blocks = |shard: &Option<ShardId>| match (shard, &access.targets) {
            (None, _) => true,
            (Some(_), _) if !self.is_fine_grained => true,
            (Some(_), Targets::Unknown) => false,
            (Some(shard), Targets::Shards(targets)) => targets.contains(shard),
        };
        let marks = self.marks.iter();
        let marks = marks.filter(move |(shard, _)| blocks(shard));
        marks
            .map(|(_, mark)| mark)
            .filter(|mark| mark.number <= access.seen)
    }

    fn mark(&mut self, staleness: Staleness<C::Version>) {
        let Staleness {
            shard,
            received,
            wanted,
            is_dropped,
        } = staleness;
        if let Some(known) = &self.known
            && !is_dropped
        {
            // The error is about an older table, or the shard is behind.
            let has_wanted =
                wanted.is_some_and(|v| known.is_older_than(shard.as_ref(), v) == Some(false));
            let is_past =
                received.is_some_and(|v| known.is_newer_than(shard.as_ref(), v) == Some(true));
            if has_wanted || (wanted.is_none() && is_past) {
                return;
            }
        }
        self.marked += 1;
        let number = self.marked;
        let mark = self.marks.entry(shard).or_insert(Mark {
            number,
            wanted: None,
            is_dropped: false,
            is_refused: false,
        });
        mark.number = number;
        // Errors may come in another order than their versions.
        mark.wanted = match (mark.wanted, wanted) {
            (Some(before), Some(now)) => Some(C::latest(before, now)),
            (before, now) => now.or(before),
        };
        mark.is_dropped |= is_dropped;
        mark.is_refused |= received.is_some();
    }

    fn start_refresh(&mut self, out: &mut Effects<C>) {
        if self.refresh.is_some() {
            return;
        }
        self.refresh = Some(Refresh {
            load: 0,
            retries: 0,
            seen: 0,
            needs_full: false,
        });
        self.load(out);
    }

    /// Reads from the source, once for all that wait.
    fn load(&mut self, out: &mut Effects<C>) {
        self.loads += 1;
        let load = self.loads;
        let refresh = self.refresh.as_mut().expect("a refresh is under way");
        refresh.load = load;
        refresh.seen = self.marked;
        let needs_full = refresh.needs_full || self.marks.values().any(|mark| mark.is_dropped);
        let is_base = |known: &&C| {
            !needs_full
                && self
                    .marks
                    .values()
                    .all(|mark| known.is_base_for(mark.wanted))
        };
        let base = self.known.as_ref().filter(is_base).cloned();
        out.push(Effect::Load { load, base });
    }

    fn loaded(&mut self, load: u64, result: Result<C, LoadError>, out: &mut Effects<C>) {
        // Of a load that was given up.
        let Some(refresh) = self.refresh.as_mut().filter(|refresh| refresh.load == load) else {
            return;
        };
        let seen = refresh.seen;
        let error = match result {
            Ok(value) => match self.behind(&value, seen) {
                None => return self.install(value, seen, out),
                Some(error) => error,
            },
            Err(LoadError::NeedsFull(error)) => {
                refresh.needs_full = true;
                error
            }
            Err(LoadError::Failed(error)) => error,
        };
        let refresh = self.refresh.as_mut().expect("checked");
        if refresh.retries < MAX_REFRESH_RETRIES {
            refresh.retries += 1;
            self.load(out);
        } else {
            self.give_up(&error, out);
        }
    }

    /// Why what was read is not to be used: its source is behind what is known or what a shard has.
    fn behind(&self, value: &C, seen: u64) -> Option<Error> {
        let marks = || self.marks.iter().filter(|(_, mark)| mark.number <= seen);
        let was_dropped = marks().any(|(_, mark)| mark.is_dropped);
        let goes_back = |known: &C| value.goes_back_from(known);
        let is_behind = (!was_dropped && self.known.as_ref().is_some_and(goes_back))
            || marks().any(|(shard, mark)| is_too_old(value, shard.as_ref(), mark));
        is_behind.then(|| {
            Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("the routing table that was read is older than what is known: {value:?}"),
            )
        })
    }

    fn install(&mut self, value: C, seen: u64, out: &mut Effects<C>) {
        self.refresh = None;
        // Marks that were set while it was read stay, unless it shows that they are outdated.
        self.marks.retain(|shard, mark| {
            let has = |v| value.is_older_than(shard.as_ref(), v) == Some(false);
            let is_outdated = !mark.is_dropped && mark.wanted.is_some_and(has);
            mark.number > seen && !is_outdated
        });
        self.known = Some(value.clone());
        let mut left = Vec::new();
        for access in std::mem::take(&mut self.waiting) {
            match self.served(&access) {
                Some(value) => out.push(reply(access.by, Ok(value))),
                None => left.push(access),
            }
        }
        self.waiting = left;
        if !value.is_kept() {
            self.known = None;
        }
        if !self.waiting.is_empty() {
            self.start_refresh(out);
        }
    }

    /// The source does not answer: all that wait get what is known, as far as no shard is known to
    /// have something newer, or has refused what is known. With that the shard would refuse them
    /// again, so they get the error, which says why. What is stale stays so.
    fn give_up(&mut self, error: &Error, out: &mut Effects<C>) {
        self.refresh = None;
        let known = self.known.as_ref().filter(|known| {
            let mut marks = self.marks.iter();
            marks.all(|(shard, mark)| !mark.is_dropped && !is_too_old(*known, shard.as_ref(), mark))
        });
        for access in std::mem::take(&mut self.waiting) {
            let is_refused = self.marks_for(&access).any(|mark| mark.is_refused);
            out.push(match known.filter(|_| !is_refused) {
                Some(known) => reply(access.by, Ok(known.clone())),
                None => reply(access.by, Err(error.clone())),
            });
        }
    }
}

fn is_too_old<C: Cacheable>(value: &C, shard: Option<&ShardId>, mark: &Mark<C::Version>) -> bool {
    mark.wanted
        .is_some_and(|version| value.is_older_than(shard, version) == Some(true))
}

fn reply<C>(to: Accessor, result: Result<C, Error>) -> Effect<C> {
    Effect::Reply { to, result }
}
