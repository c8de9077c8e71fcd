//! The plan cache of one core: for queries of one shape the plan that a trial found to be the best.
//!
//! As in MongoDB an entry is made inactive and is not used before a second trial has found that the
//! plan takes no more work than it promised; one that promises too little is given more, in steps,
//! and one that takes far more than it promised is no longer used. Changed indexes make another
//! `Collection`, and entries are of the very one that they were made for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_catalog::{Collection, Uuid};
use pinion_query::{Outline, QueryShape, shown_hash};
use rustc_hash::FxHashMap;

use crate::limits::{
    MAX_CACHED_PLAN_BYTES, MAX_CACHED_PLANS, MAX_PLAN_CACHE_BYTES, PLAN_WORKS_GROWTH,
};

/// Which queries share a plan: those of one shape that can be answered in the same ways.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanKey {
    pub uuid: Uuid,
    pub shape: QueryShape,
    pub ways: Arc<[Outline]>,
}

impl PlanKey {
    /// `planCacheShapeHash`.
    pub(crate) fn shape_hash(&self) -> String {
        shown_hash([self.shape.as_bytes()])
    }

    /// `planCacheKey`.
    pub(crate) fn key_hash(&self) -> String {
        let ways = self.ways.iter().map(Outline::as_bytes);
        shown_hash(std::iter::once(self.shape.as_bytes()).chain(ways))
    }

    fn bytes(&self) -> usize {
        let ways = self.ways.iter().map(|way| way.as_bytes().len() + 16);
        self.shape.as_bytes().len() + ways.sum::<usize>()
    }
}

/// What a trial found, for the cache to keep.
#[derive(Debug)]
pub struct Decision {
    pub way: Outline,
    pub works: u64,
    /// `createdFromQuery`, `cachedPlan`, `creationExecStats` and `candidatePlanScores`.
    pub shown: RawDocumentBuf,
    pub index_filter_set: bool,
}

#[derive(Debug)]
struct Entry<V> {
    made_for: Weak<V>,
    way: Outline,
    works: u64,
    is_active: bool,
    created_ms: i64,
    /// Without its documents if they are too large.
    shown: Option<RawDocumentBuf>,
    index_filter_set: bool,
    bytes: usize,
    /// When it was used last, as the cache counts.
    used: u64,
}

/// An entry as `$planCacheStats` shows it.
#[derive(Clone, Debug)]
pub struct ShownPlan {
    pub key: String,
    pub is_active: bool,
    pub created_ms: i64,
    pub document: RawDocumentBuf,
}

#[derive(Debug)]
struct Entries<V> {
    by_key: FxHashMap<Rc<PlanKey>, Entry<V>>,
    /// From the one that was used longest ago.
    by_use: BTreeMap<u64, Rc<PlanKey>>,
    bytes: usize,
    clock: u64,
}

/// The cached plans of one core, for collections as they were when the plans were found.
#[derive(Debug)]
pub struct PlanCache<V = Collection>(RefCell<Entries<V>>);

/// This core's plans.
pub fn plan_cache() -> Rc<PlanCache> {
    pinion_runtime::core_local()
}

impl<V> Default for PlanCache<V> {
    fn default() -> PlanCache<V> {
        PlanCache(RefCell::new(Entries {
            by_key: FxHashMap::default(),
            by_use: BTreeMap::new(),
            bytes: 0,
            clock: 0,
        }))
    }
}

impl<V> PlanCache<V> {
    /// Forgets every plan.
    pub fn forget(&self) {
        let empty = PlanCache::<V>::default().0.into_inner();
        drop(self.0.replace(empty));
    }

    /// How many entries there are, and about how many bytes they take.
    pub fn size(&self) -> (u64, u64) {
        let entries = self.0.borrow();
        (entries.by_key.len() as u64, entries.bytes as u64)
    }

    /// The plan to use, and the work that it promises.
    pub(crate) fn find(&self, key: &PlanKey, collection: &Arc<V>) -> Option<(Outline, u64)> {
        let mut entries = self.0.borrow_mut();
        let entry = entries.by_key.get(key)?;
        if !entry.is_of(collection) {
            entries.remove(key);
            return None;
        }
        let found = entry.is_active.then(|| (entry.way.clone(), entry.works));
        entries.touch(key);
        found
    }

    /// Keeps what a trial found.
    pub(crate) fn record(
        &self,
        key: PlanKey,
        collection: &Arc<V>,
        decision: Decision,
        now_ms: i64,
    ) {
        let mut entries = self.0.borrow_mut();
        let old = entries.by_key.get(&key).filter(|old| old.is_of(collection));
        let (is_active, works) = match old {
            None => (false, decision.works),
            Some(old) if decision.works <= old.works => (true, decision.works),
            // Another trial found less for it, so that one stands.
            Some(old) if old.is_active => return,
            Some(old) => {
                let grown = old.works.saturating_mul(PLAN_WORKS_GROWTH);
                (false, grown.max(old.works + 1))
            }
        };
        let shown = Some(decision.shown);
        let shown = shown.filter(|shown| shown.as_bytes().len() <= MAX_CACHED_PLAN_BYTES);
        let documents = shown.as_ref().map_or(0, |shown| shown.as_bytes().len());
        let entry = Entry {
            made_for: Arc::downgrade(collection),
            bytes: size_of::<Entry<V>>() + key.bytes() + decision.way.as_bytes().len() + documents,
            way: decision.way,
            works,
            is_active,
            created_ms: now_ms,
            shown,
            index_filter_set: decision.index_filter_set,
            used: 0,
        };
        entries.remove(&key);
        entries.insert(key, entry);
    }

    /// No longer uses a plan that took far more work than it promised.
    pub(crate) fn deactivate(&self, key: &PlanKey) {
        if let Some(entry) = self.0.borrow_mut().by_key.get_mut(key) {
            entry.is_active = false;
        }
    }

    /// Forgets the plans of one shape, or all of the collection.
    pub(crate) fn clear(&self, uuid: Uuid, shape: Option<&QueryShape>) {
        let mut entries = self.0.borrow_mut();
        let meant =
            |key: &&Rc<PlanKey>| key.uuid == uuid && shape.is_none_or(|shape| key.shape == *shape);
        let gone: Vec<Rc<PlanKey>> = entries.by_key.keys().filter(meant).cloned().collect();
        gone.iter().for_each(|key| entries.remove(key));
    }

    /// The entries of a collection.
    pub(crate) fn shown(&self, uuid: Uuid, collection: &Arc<V>, host: &str) -> Vec<ShownPlan> {
        let entries = self.0.borrow();
        let of = entries
            .by_key
            .iter()
            .filter(|(key, entry)| key.uuid == uuid && entry.is_of(collection));
        of.map(|(key, entry)| entry.show(key, host)).collect()
    }
}

impl<V> Entries<V> {
    fn touch(&mut self, key: &PlanKey) {
        let Some(entry) = self.by_key.get_mut(key) else {
            return;
        };
        self.clock += 1;
        let shared = self.by_use.remove(&entry.used);
        entry.used = self.clock;
        self.by_use.extend(shared.map(|key| (self.clock, key)));
    }

    fn insert(&mut self, key: PlanKey, mut entry: Entry<V>) {
        let key = Rc::new(key);
        self.clock += 1;
        entry.used = self.clock;
        self.bytes += entry.bytes;
        self.by_use.insert(self.clock, key.clone());
        self.by_key.insert(key, entry);
        while self.by_key.len() > MAX_CACHED_PLANS || self.bytes > MAX_PLAN_CACHE_BYTES {
            let Some((_, oldest)) = self.by_use.first_key_value() else {
                break;
            };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &PlanKey) {
        if let Some(entry) = self.by_key.remove(key) {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }
}

impl<V> Entry<V> {
    fn is_of(&self, collection: &Arc<V>) -> bool {
        std::ptr::eq(self.made_for.as_ptr(), Arc::as_ptr(collection))
    }

    fn show(&self, key: &PlanKey, host: &str) -> ShownPlan {
        let mut out = DocBuilder::new();
        let (shape, plan_key) = (key.shape_hash(), key.key_hash());
        out.append("version", "1")
            .append("queryHash", shape.as_str())
            .append("planCacheShapeHash", shape.as_str())
            .append("planCacheKey", plan_key.as_str())
            .append("isActive", self.is_active)
            .append("works", self.works as i64);
        let created = DateTime::from_millis(self.created_ms);
        out.append("timeOfCreation", RawBsonRef::DateTime(created));
        if let Some(shown) = &self.shown {
            out.append_all(shown);
        }
        out.append("indexFilterSet", self.index_filter_set)
            .append("estimatedSizeBytes", self.bytes as i64)
            .append("host", host);
        ShownPlan {
            key: plan_key,
            is_active: self.is_active,
            created_ms: self.created_ms,
            document: out.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_query::{IndexSpec, Matcher, PlanRequest, plans};

    use super::*;

    /// A query whose shape is that of its path, with two ways to answer it.
    fn key(path: &str) -> (PlanKey, Outline) {
        let ascending = |paths: &[&str]| {
            let mut pattern = DocBuilder::new();
            paths.iter().for_each(|path| {
                pattern.append(path, 1i32);
            });
            pattern.finish()
        };
        let index = |name, paths: &[&str]| IndexSpec::new(name, &ascending(paths));
        let indexes = [
            index("_id", &["_id"]).expect("a pattern"),
            index("one", &[path]).expect("a pattern"),
            index("two", &[path, "z"]).expect("a pattern"),
        ];
        let matcher = Matcher::parse(&ascending(&[path])).expect("a filter");
        let request = PlanRequest {
            namespace: "db.c",
            matcher: &matcher,
            sort: None,
            projection: None,
            hint: None,
            key_bounds: None,
            reads_scores: false,
            return_key: false,
            shard_key: None,
            indexes: &indexes,
            filter: None,
        };
        let plans = plans(&request).expect("plans");
        assert_eq!(plans.len(), 2);
        let ways: Vec<Outline> = plans.iter().map(pinion_query::Plan::outline).collect();
        let key = PlanKey {
            uuid: Uuid([1; 16]),
            shape: QueryShape::of(&request),
            ways: ways.into(),
        };
        let way = key.ways[0].clone();
        (key, way)
    }

    fn decision(way: &Outline, works: u64) -> Decision {
        Decision {
            way: way.clone(),
            works,
            shown: RawDocumentBuf::new(),
            index_filter_set: false,
        }
    }

    /// Each line is what a trial found, or `!` for a plan that was given up; what the cache then
    /// says.
    #[track_caller]
    fn check(steps: &[(Option<u64>, Option<u64>)]) {
        let (cache, collection) = (PlanCache::default(), Arc::new(()));
        let (key, way) = key("a");
        for (works, found) in steps {
            match works {
                Some(works) => cache.record(key.clone(), &collection, decision(&way, *works), 0),
                None => cache.deactivate(&key),
            }
            let promised = cache.find(&key, &collection).map(|(_, works)| works);
            assert_eq!(promised, *found, "{steps:?}");
        }
    }

    #[test]
    fn a_second_trial_activates_an_entry() {
        check(&[(Some(5), None), (Some(5), Some(5)), (Some(3), Some(3))]);
        check(&[(Some(5), None), (Some(9), None), (Some(10), Some(10))]);
        check(&[(Some(0), None), (Some(9), None), (Some(1), Some(1))]);
        check(&[(Some(5), None), (Some(4), Some(4)), (Some(9), Some(4))]);
        check(&[
            (Some(5), None),
            (Some(5), Some(5)),
            (None, None),
            (Some(8), None),
            (Some(9), Some(9)),
        ]);
    }

    #[test]
    fn entries_are_of_the_collection_that_they_were_made_for() {
        let (cache, first) = (PlanCache::default(), Arc::new(()));
        let (key, way) = key("a");
        for _ in 0..2 {
            cache.record(key.clone(), &first, decision(&way, 1), 0);
        }
        let changed = Arc::new(());
        assert!(cache.shown(key.uuid, &changed, "h").is_empty());
        assert!(cache.find(&key, &changed).is_none());
        assert!(cache.find(&key, &first).is_none());
    }

    #[test]
    fn what_was_used_longest_ago_goes() {
        let (cache, collection) = (PlanCache::default(), Arc::new(()));
        let keys: Vec<_> = (0..=MAX_CACHED_PLANS)
            .map(|i| key(&format!("a{i}")))
            .collect();
        for (key, way) in &keys[..MAX_CACHED_PLANS] {
            cache.record(key.clone(), &collection, decision(way, 1), 0);
        }
        cache.find(&keys[0].0, &collection);
        let (last, way) = &keys[MAX_CACHED_PLANS];
        cache.record(last.clone(), &collection, decision(way, 1), 0);
        let entries = cache.0.borrow();
        assert_eq!(entries.by_key.len(), MAX_CACHED_PLANS);
        let is_there = |at: usize| entries.by_key.contains_key(&keys[at].0);
        assert_eq!([0, 1, MAX_CACHED_PLANS].map(is_there), [true, false, true]);
    }
}
