//! The in-memory catalog: an immutable map with structural sharing, one version on each core,
//! replaced whole.

use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use imbl::OrdMap;
use pinion_bson::RawDocumentBuf;
use pinion_clock::Timestamp;
use pinion_storage::TreeId;

use crate::entry::Collection;
use crate::gates::Gates;
use crate::limits::{FIRST_IDENT, FIRST_OWN_IDENT, MAX_GONE_NAMES, OPLOG_NUMBER};
use crate::names::is_replicated;
use crate::options::CollectionKind;
use crate::past::Past;
use crate::uuid::Uuid;
use crate::view::View;
use pinion_wire::idl::Namespace;

/// One version of the catalog.
#[derive(Clone)]
pub struct Catalog {
    version: u64,
    next_number: u64,
    next_own_number: u64,
    by_name: OrdMap<Arc<str>, Arc<Collection>>,
    by_number: OrdMap<u64, Arc<Collection>>,
    by_uuid: OrdMap<Uuid, Arc<Collection>>,
    views: OrdMap<Arc<str>, Arc<View>>,
    views_by_number: OrdMap<u64, Arc<View>>,
    is_partial: bool,
    /// When collections were made, renamed, or got or lost indexes, in this process, by their
    /// numbers.
    changed_at: OrdMap<u64, Timestamp>,
    /// When collections went away from their names, by dropping or renaming, in this process.
    gone_at: OrdMap<Namespace, Timestamp>,
    /// What is not in there went away before this, or never.
    gone_before: Timestamp,
}

impl Catalog {
    /// A catalog without collections.
    pub fn empty() -> Catalog {
        Catalog {
            version: 0,
            next_number: FIRST_IDENT,
            next_own_number: FIRST_OWN_IDENT,
            by_name: OrdMap::new(),
            by_number: OrdMap::new(),
            by_uuid: OrdMap::new(),
            views: OrdMap::new(),
            views_by_number: OrdMap::new(),
            is_partial: false,
            changed_at: OrdMap::new(),
            gone_at: OrdMap::new(),
            gone_before: Timestamp::MIN,
        }
    }

    /// Snapshots below it may have had a collection of this name where there is none now. Null if
    /// there are no such.
    pub fn gone_at(&self, ns: &Namespace) -> Timestamp {
        let known = self.gone_at.get(ns);
        known.copied().unwrap_or(self.gone_before)
    }

    /// Snapshots below it do not have the collection, or not all entries of its indexes. Null if
    /// there are no such.
    pub fn changed_at(&self, number: u64) -> Timestamp {
        let known = self.changed_at.get(&number);
        known.copied().unwrap_or(Timestamp::MIN)
    }

    /// Notes which collections are other ones than in the version before this one, which took place
    /// at `ts`.
    pub(crate) fn note_changes<'a>(
        &mut self,
        before: &Catalog,
        changed: impl Iterator<Item = &'a Collection>,
        removed: &[u64],
        ts: Timestamp,
    ) {
        let mut gone = Vec::new();
        for number in removed {
            self.changed_at.remove(number);
            gone.extend(before.by_number(*number).map(|found| found.ns.clone()));
        }
        for collection in changed {
            let trees = |found: &Collection| found.trees().collect::<Vec<_>>();
            let known = before.by_number(collection.number);
            let renamed = known.filter(|known| known.ns != collection.ns);
            gone.extend(renamed.map(|known| known.ns.clone()));
            let is_same = |known: &Arc<Collection>| {
                known.ns == collection.ns && trees(known) == trees(collection)
            };
            if !known.is_some_and(is_same) {
                self.changed_at.insert(collection.number, ts);
            }
        }
        for ns in gone {
            self.gone_at.insert(ns, ts);
        }
        if self.gone_at.len() > MAX_GONE_NAMES {
            self.gone_at.clear();
            self.gone_before = ts;
        }
    }

    /// Rises by one with each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether the replicated collections are but a part of what another member has: a copy was
    /// started, and is not complete.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    pub(crate) fn set_partial(&mut self, is_partial: bool) {
        self.is_partial = is_partial;
    }

    /// The numbers above one, in order, with the rows of what is replicated.
    pub(crate) fn rows_above(
        &self,
        number: u64,
    ) -> impl Iterator<Item = (u64, Option<RawDocumentBuf>)> {
        let range = (Bound::Excluded(number), Bound::Unbounded);
        let mut collections = self.by_number.range(range).peekable();
        let mut views = self.views_by_number.range(range).peekable();
        std::iter::from_fn(move || {
            let is_view = match (collections.peek(), views.peek()) {
                (Some((collection, _)), Some((view, _))) => view < collection,
                (collection, _) => collection.is_none(),
            };
            if is_view {
                let (number, view) = views.next()?;
                return Some((*number, is_replicated(&view.ns).then(|| view.to_row())));
            }
            let (number, found) = collections.next()?;
            Some((*number, is_replicated(&found.ns).then(|| found.to_row())))
        })
    }

    /// The next number for a collection or index.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// The next number for a collection or index that is not replicated.
    pub fn next_own_number(&self) -> u64 {
        self.next_own_number
    }

    /// The collection of that name.
    pub fn get(&self, ns: &Namespace) -> Option<&Arc<Collection>> {
        self.by_name.get(ns.as_str())
    }

    /// The collection of that full name.
    pub fn get_full(&self, full: &str) -> Option<&Arc<Collection>> {
        self.by_name.get(full)
    }

    /// The collection with that UUID.
    pub fn by_uuid(&self, uuid: Uuid) -> Option<&Arc<Collection>> {
        self.by_uuid.get(&uuid)
    }

    /// The collection whose row has that number.
    pub fn by_number(&self, number: u64) -> Option<&Arc<Collection>> {
        self.by_number.get(&number)
    }

    /// The view of that name, or the time series.
    pub fn view(&self, ns: &Namespace) -> Option<&Arc<View>> {
        self.views.get(ns.as_str())
    }

    /// The view or the time series whose row has that number.
    pub(crate) fn view_by_number(&self, number: u64) -> Option<&Arc<View>> {
        self.views_by_number.get(&number)
    }

    /// What has this name, if anything has it.
    pub fn kind(&self, ns: &Namespace) -> Option<CollectionKind> {
        match self.get(ns) {
            Some(_) => Some(CollectionKind::Collection),
            None => self.view(ns).map(|view| view.kind()),
        }
    }

    /// All views and time series, ordered by full name.
    pub fn views(&self) -> impl Iterator<Item = &Arc<View>> {
        self.views.values()
    }

    /// The views and time series of one database, ordered by name.
    pub fn views_of<'a>(&'a self, db: &str) -> impl Iterator<Item = &'a Arc<View>> + use<'a> {
        self.views.range(names_of(db)).map(|(_, view)| view)
    }

    /// All collections, ordered by full name.
    pub fn collections(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.by_name.values()
    }

    /// The collections of one database, ordered by name.
    pub fn collections_of<'a>(
        &'a self,
        db: &str,
    ) -> impl Iterator<Item = &'a Arc<Collection>> + use<'a> {
        self.by_name
            .range(names_of(db))
            .map(|(_, collection)| collection)
    }

    /// Collections and views that are each node's own and have numbers of those that members share,
    /// as older programs made them.
    pub fn wrongly_shared(&self) -> Vec<Namespace> {
        let collections = self.collections();
        let collections = collections.filter(|found| found.is_replicated());
        let views = self.views_by_number.iter();
        let views = views.filter(|(number, _)| !is_own_number(**number));
        let all = collections.map(|found| &found.ns);
        let all = all.chain(views.map(|(_, view)| &view.ns));
        all.filter(|ns| !is_replicated(ns)).cloned().collect()
    }

    /// The names of all databases, in order.
    pub fn databases(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let mut from: Bound<Arc<str>> = Bound::Unbounded;
        // One look for each database, however many collections it has: the next begins behind all
        // of its names.
        while let Some((_, collection)) = self.by_name.range((from, Bound::Unbounded)).next() {
            let db = collection.ns.db();
            names.push(db.to_owned());
            from = Bound::Included(format!("{db}/").into());
        }
        names.sort();
        names.dedup();
        names
    }

    /// How many collections there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// True when there is no collection.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Every tree that belongs to a collection or index.
    pub fn trees(&self) -> impl Iterator<Item = TreeId> + '_ {
        self.by_name
            .values()
            .flat_map(|collection| collection.trees().collect::<Vec<_>>())
    }

    /// The next version, which shows the node's log up to `through` as a collection of this size.
    pub(crate) fn with_oplog(&self, size_bytes: i64, through: Timestamp) -> Catalog {
        let mut next = self.clone();
        next.put(Collection::oplog(size_bytes, through));
        next.advance_version();
        next
    }

    /// The next version, which does not show it.
    pub(crate) fn without_oplog(&self) -> Catalog {
        let mut next = self.clone();
        next.remove(OPLOG_NUMBER);
        next.advance_version();
        next
    }

    /// Whether the node's log is shown as a collection.
    pub fn shows_oplog(&self) -> bool {
        self.by_number(OPLOG_NUMBER)
            .is_some_and(|found| found.is_oplog())
    }

    pub(crate) fn put(&mut self, collection: Collection) {
        let collection = Arc::new(collection);
        self.remove(collection.number);
        for tree in collection.trees() {
            self.set_next_number(tree.0 + 1);
        }
        let name: Arc<str> = Arc::from(collection.ns.as_str());
        let displaced = self.by_name.insert(name, collection.clone());
        assert!(
            displaced.is_none() && self.view(&collection.ns).is_none(),
            "the name {} is given twice",
            collection.ns
        );
        self.by_uuid.insert(collection.uuid, collection.clone());
        self.by_number.insert(collection.number, collection);
    }

    pub(crate) fn put_view(&mut self, view: View) {
        let view = Arc::new(view);
        self.remove(view.number);
        self.set_next_number(view.number + 1);
        let name: Arc<str> = Arc::from(view.ns.as_str());
        let displaced = self.views.insert(name, view.clone());
        assert!(
            displaced.is_none() && self.get(&view.ns).is_none(),
            "the name {} is given twice",
            view.ns
        );
        self.views_by_number.insert(view.number, view);
    }

    /// Removes the collection or the view of that number, if there is one.
    pub(crate) fn remove(&mut self, number: u64) {
        if let Some(old) = self.by_number.remove(&number) {
            self.by_name.remove(old.ns.as_str());
            self.by_uuid.remove(&old.uuid);
        }
        if let Some(old) = self.views_by_number.remove(&number) {
            self.views.remove(old.ns.as_str());
        }
    }

    /// Numbers below it are given out, of those that it is one of.
    pub(crate) fn set_next_number(&mut self, next: u64) {
        let counter = match is_own_number(next) {
            true => &mut self.next_own_number,
            false => &mut self.next_number,
        };
        *counter = next.max(*counter);
    }

    pub(crate) fn advance_version(&mut self) {
        self.version += 1;
    }
}

/// Whether a number is one for what is not replicated.
pub(crate) fn is_own_number(number: u64) -> bool {
    !TreeId(number).is_replicated()
}

/// The range of the names of one database. The character after the dot bounds them.
fn names_of(db: &str) -> (Bound<Arc<str>>, Bound<Arc<str>>) {
    let name = |end: &str| Arc::from([db, end].concat());
    (Bound::Included(name(".")), Bound::Excluded(name("/")))
}

/// A core's catalog: the version it holds, those before it that snapshots ask for, and its gates.
pub struct CoreCatalog {
    current: RefCell<Arc<Catalog>>,
    past: RefCell<Past>,
    gates: Gates,
}

impl CoreCatalog {
    /// Makes this core's catalog out of a version.
    pub fn new(catalog: Arc<Catalog>) -> CoreCatalog {
        CoreCatalog {
            current: RefCell::new(catalog),
            past: RefCell::new(Past::new()),
            gates: Gates::default(),
        }
    }

    /// The version this core holds.
    pub fn current(&self) -> Arc<Catalog> {
        self.current.borrow().clone()
    }

    /// The version that a snapshot at `ts` sees; none if it is not kept any more.
    pub fn at(&self, ts: Timestamp) -> Option<Arc<Catalog>> {
        match self.past.borrow().at(ts) {
            Ok(Some(past)) => Some(past.clone()),
            Ok(None) => Some(self.current()),
            Err(_) => None,
        }
    }

    /// The collection of that name in the version this core holds.
    pub fn get(&self, ns: &Namespace) -> Option<Arc<Collection>> {
        self.current.borrow().get(ns).cloned()
    }

    /// What `look` makes of the collection of that name. As [`CoreCatalog::get`], but without a
    /// share in the collection, whose count all cores would write to.
    pub fn with<R>(&self, ns: &Namespace, look: impl FnOnce(&Collection) -> R) -> Option<R> {
        self.current.borrow().get(ns).map(|found| look(found))
    }

    /// This core's gates.
    pub fn gates(&self) -> &Gates {
        &self.gates
    }

    /// Makes a version the current one, which begins at `ts` for snapshots; no snapshot below
    /// `oldest` is opened any more.
    pub(crate) fn install(&self, catalog: Arc<Catalog>, ts: Timestamp, oldest: Timestamp) {
        let mut current = self.current.borrow_mut();
        assert!(
            catalog.version >= current.version,
            "a core's catalog went back"
        );
        let replaced = std::mem::replace(&mut *current, catalog);
        self.past.borrow_mut().add(replaced, ts, oldest);
    }
}

/// This core's catalog.
///
/// # Panics
/// Before the node is open on this core.
pub fn core_catalog() -> Rc<CoreCatalog> {
    pinion_runtime::core_local::<CoreCatalog>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::CollectionOptions;

    fn made(ns: &str, number: u64) -> Collection {
        let ns = Namespace::parse(ns).expect("a name");
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&number.to_le_bytes());
        Collection::new(ns, Uuid(uuid), number, CollectionOptions::default())
    }

    #[test]
    fn what_older_programs_made_for_this_node_alone_is_found() {
        let mut catalog = Catalog::empty();
        catalog.put(made("db.replicated", FIRST_IDENT));
        catalog.put(made("local.own", FIRST_OWN_IDENT));
        catalog.put(made("db.system.profile", FIRST_OWN_IDENT + 1));
        assert!(catalog.wrongly_shared().is_empty());
        catalog.put(made("local.system.replset", FIRST_IDENT + 1));
        catalog.put(made("old.system.profile", FIRST_IDENT + 2));
        let found = catalog.wrongly_shared();
        let found: Vec<&str> = found.iter().map(Namespace::as_str).collect();
        assert_eq!(found, ["local.system.replset", "old.system.profile"]);
    }
}
