//! Locks of definitions on one primary shard: of a database, and then of collections, each granted
//! in the order of their requests.

use std::collections::BTreeMap;

use pinion_query::BUCKETS_PREFIX;
use pinion_wire::idl::Namespace;

/// What a definition locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockScope {
    /// A database and all that is in it.
    Database(String),
    /// Its database, which others may share, and a collection.
    Collection { db: String, ns: String },
    /// The same of two collections, of one database or of two.
    Collections([Namespace; 2]),
}

impl LockScope {
    fn conflicts(&self, other: &LockScope) -> bool {
        match (self, other) {
            (LockScope::Database(a), LockScope::Database(b)) => a == b,
            (LockScope::Database(db), collections) | (collections, LockScope::Database(db)) => {
                collections.is_in(db)
            }
            (LockScope::Collection { ns, .. }, other) => other.names(ns),
            (LockScope::Collections(both), other) => both.iter().any(|ns| other.names(ns.as_str())),
        }
    }

    fn is_in(&self, database: &str) -> bool {
        match self {
            LockScope::Database(db) | LockScope::Collection { db, .. } => db == database,
            LockScope::Collections(both) => both.iter().any(|ns| ns.db() == database),
        }
    }

    fn names(&self, collection: &str) -> bool {
        match self {
            LockScope::Database(_) => false,
            LockScope::Collection { ns, .. } => are_one(ns, collection),
            LockScope::Collections(both) => both.iter().any(|ns| are_one(ns.as_str(), collection)),
        }
    }
}

/// Whether two namespaces are defined together: a series and its buckets are.
fn are_one(one: &str, other: &str) -> bool {
    fn divided(ns: &str) -> Option<(&str, &str)> {
        let (db, name) = ns.split_once('.')?;
        Some((db, name.strip_prefix(BUCKETS_PREFIX).unwrap_or(name)))
    }
    divided(one) == divided(other)
}

/// A request, in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockId(u64);

/// Requests that hold their locks, and those that wait. A request holds all its locks as soon as
/// no earlier one conflicts with it, so none holds one of them while it waits for another.
#[derive(Debug, Default)]
pub struct DdlLocks {
    requests: BTreeMap<LockId, LockScope>,
    last: u64,
}

impl DdlLocks {
    /// Puts a request behind those that are there.
    pub fn request(&mut self, scope: LockScope) -> LockId {
        self.last += 1;
        let id = LockId(self.last);
        self.requests.insert(id, scope);
        id
    }

    /// Whether the request holds its locks. Once it does, it does until it is released.
    pub fn holds(&self, id: LockId) -> bool {
        let Some(scope) = self.requests.get(&id) else {
            return false;
        };
        let mut earlier = self.requests.range(..id);
        !earlier.any(|(_, other)| other.conflicts(scope))
    }

    /// Releases a request, or gives it up. Those that wait may hold theirs now.
    pub fn release(&mut self, id: LockId) {
        self.requests.remove(&id);
    }

    /// How many requests hold their locks or wait.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collection(ns: &str) -> LockScope {
        LockScope::Collection {
            db: ns.split_once('.').expect("a namespace").0.to_owned(),
            ns: ns.to_owned(),
        }
    }

    #[test]
    fn granted_in_order() {
        let mut locks = DdlLocks::default();
        let first = locks.request(collection("d.a"));
        let other = locks.request(collection("d.b"));
        let same = locks.request(collection("d.a"));
        let database = locks.request(LockScope::Database("d".to_owned()));
        let late = locks.request(collection("d.c"));
        let elsewhere = locks.request(collection("e.a"));
        let all = [first, other, same, database, late, elsewhere];
        let held = |locks: &DdlLocks| all.map(|id| locks.holds(id));
        assert_eq!(held(&locks), [true, true, false, false, false, true]);
        locks.release(first);
        assert_eq!(held(&locks), [false, true, true, false, false, true]);
        // What waits for a whole database is not overtaken by later requests for collections.
        locks.release(same);
        assert_eq!(held(&locks), [false, true, false, false, false, true]);
        locks.release(other);
        assert_eq!(held(&locks), [false, false, false, true, false, true]);
        locks.release(database);
        assert_eq!(held(&locks), [false, false, false, false, true, true]);
        locks.release(late);
        locks.release(elsewhere);
        assert!(locks.is_empty());
    }

    #[test]
    fn a_series_is_defined_with_its_buckets() {
        let mut locks = DdlLocks::default();
        let series = locks.request(collection("d.a"));
        let buckets = locks.request(collection("d.system.buckets.a"));
        let other = locks.request(collection("d.system.buckets.b"));
        assert!(locks.holds(series) && !locks.holds(buckets) && locks.holds(other));
    }

    fn both(a: &str, b: &str) -> LockScope {
        LockScope::Collections([a, b].map(|ns| Namespace::parse(ns).expect("a namespace")))
    }

    #[test]
    fn two_collections_are_granted_together() {
        let check = |earlier: LockScope, later: LockScope, held: bool| {
            for (a, b) in [(earlier.clone(), later.clone()), (later, earlier)] {
                let mut locks = DdlLocks::default();
                let first = locks.request(a);
                let second = locks.request(b);
                assert!(locks.holds(first));
                assert_eq!(locks.holds(second), held);
                locks.release(first);
                assert!(locks.holds(second));
            }
        };
        check(both("d.a", "e.b"), collection("d.a"), false);
        check(both("d.a", "e.b"), collection("e.b"), false);
        check(both("d.a", "e.b"), collection("d.b"), true);
        check(both("d.a", "d.b"), both("d.b", "d.a"), false);
        check(both("d.a", "d.b"), both("d.b", "d.c"), false);
        check(both("d.a", "d.b"), both("d.c", "d.e"), true);
        check(
            both("d.a", "e.b"),
            LockScope::Database("d".to_owned()),
            false,
        );
        check(
            both("d.a", "e.b"),
            LockScope::Database("e".to_owned()),
            false,
        );
        check(
            both("d.a", "e.b"),
            LockScope::Database("f".to_owned()),
            true,
        );
    }

    #[test]
    fn a_request_that_is_given_up_holds_up_no_other() {
        let mut locks = DdlLocks::default();
        let first = locks.request(collection("d.a"));
        let database = locks.request(LockScope::Database("d".to_owned()));
        let late = locks.request(collection("d.b"));
        assert!(locks.holds(first) && !locks.holds(database) && !locks.holds(late));
        locks.release(database);
        assert!(locks.holds(late) && !locks.holds(database));
    }
}
