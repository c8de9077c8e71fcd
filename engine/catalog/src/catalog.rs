//! The in-memory catalog: an immutable map with structural sharing, one version on each core, replaced whole.

use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use imbl::OrdMap;
use pinion_storage::TreeId;

use crate::entry::Collection;
use crate::gates::Gates;
use crate::limits::FIRST_IDENT;
use crate::uuid::Uuid;
use pinion_wire::idl::Namespace;

/// One version of the catalog.
#[derive(Clone)]
pub struct Catalog {
    version: u64,
    next_number: u64,
    by_name: OrdMap<Arc<str>, Arc<Collection>>,
    by_number: OrdMap<u64, Arc<Collection>>,
    by_uuid: OrdMap<Uuid, Arc<Collection>>,
}

impl Catalog {
    /// A catalog without collections.
    pub fn empty() -> Catalog {
        Catalog {
            version: 0,
            next_number: FIRST_IDENT,
            by_name: OrdMap::new(),
            by_number: OrdMap::new(),
            by_uuid: OrdMap::new(),
        }
    }

    /// Rises by one with each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The next number for a collection or index.
    pub fn next_number(&self) -> u64 {
        self.next_number
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

    /// All collections, ordered by full name.
    pub fn collections(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.by_name.values()
    }

    /// The collections of one database, ordered by name.
    pub fn collections_of<'a>(
        &'a self,
        db: &str,
    ) -> impl Iterator<Item = &'a Arc<Collection>> + use<'a> {
        let from: Arc<str> = format!("{db}.").into();
        // The character after the dot bounds the names of the database.
        let to: Arc<str> = format!("{db}/").into();
        self.by_name
            .range((Bound::Included(from), Bound::Excluded(to)))
            .map(|(_, collection)| collection)
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

    pub(crate) fn put(&mut self, collection: Collection) {
        let collection = Arc::new(collection);
        self.remove(collection.number);
        for tree in collection.trees() {
            self.next_number = self.next_number.max(tree.0 + 1);
        }
        let displaced = self
            .by_name
            .insert(Arc::from(collection.ns.as_str()), collection.clone());
        assert!(
            displaced.is_none(),
            "two collections with the name {}",
            collection.ns
        );
        self.by_uuid.insert(collection.uuid, collection.clone());
        self.by_number.insert(collection.number, collection);
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Arc<Collection>> {
        let old = self.by_number.remove(&number)?;
        self.by_name.remove(old.ns.as_str());
        self.by_uuid.remove(&old.uuid);
        Some(old)
    }

    pub(crate) fn set_next_number(&mut self, next: u64) {
        self.next_number = self.next_number.max(next);
    }

    pub(crate) fn advance_version(&mut self) {
        self.version += 1;
    }
}

/// A core's catalog: the version it holds and its gates.
pub struct CoreCatalog {
    current: RefCell<Arc<Catalog>>,
    gates: Gates,
}

impl CoreCatalog {
    /// Makes this core's catalog out of a version.
    pub fn new(catalog: Arc<Catalog>) -> CoreCatalog {
        CoreCatalog {
            current: RefCell::new(catalog),
            gates: Gates::default(),
        }
    }

    /// The version this core holds.
    pub fn current(&self) -> Arc<Catalog> {
        self.current.borrow().clone()
    }

    /// The collection of that name in the version this core holds.
    pub fn get(&self, ns: &Namespace) -> Option<Arc<Collection>> {
        self.current.borrow().get(ns).cloned()
    }

    /// What `look` makes of the collection of that name. As [`CoreCatalog::get`], but without a share in the collection, whose
    /// count all cores would write to.
    pub fn with<R>(&self, ns: &Namespace, look: impl FnOnce(&Collection) -> R) -> Option<R> {
        self.current.borrow().get(ns).map(|found| look(found))
    }

    /// This core's gates.
    pub fn gates(&self) -> &Gates {
        &self.gates
    }

    pub(crate) fn install(&self, catalog: Arc<Catalog>) {
        let mut current = self.current.borrow_mut();
        assert!(
            catalog.version >= current.version,
            "a core's catalog went back"
        );
        *current = catalog;
    }
}

/// This core's catalog.
///
/// # Panics
/// Before the node is open on this core.
pub fn core_catalog() -> Rc<CoreCatalog> {
    pinion_runtime::core_local::<CoreCatalog>()
}
