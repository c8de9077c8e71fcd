//! What the owner of capped collections keeps of them in memory: whose turn it is to insert, the
//! number of the newest record, and which reads wait for more.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_catalog::{
    Capped, Collection, CollectionOptions, core_catalog, create_collection, from_read_error,
    record_of,
};
use pinion_runtime::sync::{Notify, Permit, Semaphore};
use pinion_storage::{Direction, KeyRange, PartitionId, ReadAt, TreeId, storage};
use pinion_wire::idl::Namespace;
use pinion_wire::{ErrorCode, OpContext, Result};
use rustc_hash::FxHashMap;

use crate::limits::CAPPED_SWEEP;

/// The partition of all records.
pub const RECORDS: PartitionId = PartitionId(0);

/// Makes a capped collection of the node's own, unless there is a collection of that name.
///
/// # Errors
/// Those of `create`.
pub async fn ensure_capped(ctx: &OpContext, ns: &Namespace, size_bytes: i64) -> Result<()> {
    let options = CollectionOptions {
        capped: Some(Capped {
            size_bytes,
            max_documents: None,
        }),
        ..CollectionOptions::default()
    };
    match create_collection(ctx, ns.clone(), options).await {
        Err(error) if error.code == ErrorCode::NAMESPACE_EXISTS => Ok(()),
        made => made.map(|_| ()),
    }
}

/// The capped collections of one core that were inserted into or waited for since the node started.
#[derive(Default)]
pub struct CappedTable {
    collections: RefCell<FxHashMap<TreeId, Rc<CappedCollection>>>,
}

/// One of them.
pub struct CappedCollection {
    turn: Semaphore,
    /// The newest number that a record has or had; `None` before the tree was examined.
    newest: Cell<Option<i64>>,
    /// No record below this number is left. Removed records stay in the tree until the next
    /// checkpoint, and to search the oldest record behind them again for each insert would take
    /// long.
    oldest: Cell<i64>,
    /// There are records that the waiting reads have not seen.
    changed: Notify,
}

/// The capped collections whose documents this core owns.
pub fn capped_table() -> Rc<CappedTable> {
    pinion_runtime::core_local()
}

impl CappedTable {
    /// A record with this number came out of the log of another member. Reads that wait for more
    /// are woken, and the next one that is inserted here has a greater number.
    pub fn applied(&self, tree: TreeId, record: i64) {
        if let Some(known) = self.collections.borrow().get(&tree) {
            known
                .newest
                .set(known.newest.get().map(|newest| newest.max(record)));
            known.notify();
        }
    }

    /// The collections with these trees are gone, and others may come under their numbers.
    pub fn forget(&self, trees: &[TreeId]) {
        self.collections
            .borrow_mut()
            .retain(|tree, _| !trees.contains(tree));
    }

    /// Forgets everything: the data is another.
    pub fn clear(&self) {
        self.collections.borrow_mut().clear();
    }

    /// What is kept of the collection with this tree.
    pub fn of(&self, tree: TreeId) -> Rc<CappedCollection> {
        let mut collections = self.collections.borrow_mut();
        if let Some(found) = collections.get(&tree) {
            return found.clone();
        }
        // Those that are gone are forgotten when there are many.
        if collections.len() >= CAPPED_SWEEP && collections.len().is_power_of_two() {
            let catalog = core_catalog().current();
            collections.retain(|tree, _| catalog.by_number(tree.0).is_some());
        }
        let made = Rc::new(CappedCollection {
            turn: Semaphore::new(1),
            newest: Cell::new(None),
            oldest: Cell::new(0),
            changed: Notify::new(),
        });
        collections.insert(tree, made.clone());
        made
    }
}

impl CappedCollection {
    /// Waits until no other insert is under way.
    pub(crate) async fn turn(&self) -> Permit {
        self.turn.acquire().await
    }

    /// The number for the next record. The caller has the turn.
    pub async fn next_record(&self, collection: &Collection) -> Result<i64> {
        if let Some(newest) = self.newest.get() {
            return Ok(newest + 1);
        }
        let owned = storage().partition(RECORDS).expect("inserted on its owner");
        let range = KeyRange::all();
        let mut cursor = owned.cursor(collection.tree(), range, Direction::Reverse, ReadAt::Newest);
        let last = cursor.next().await.map_err(from_read_error)?;
        let newest = last.and_then(|(key, _)| record_of(&key)).unwrap_or(0);
        self.newest.set(Some(newest));
        Ok(newest + 1)
    }

    /// A record with this number was inserted.
    pub(crate) fn inserted(&self, record: i64) {
        assert!(
            self.newest.get().is_some_and(|newest| newest < record),
            "the numbers of records rise"
        );
        self.newest.set(Some(record));
    }

    /// Where the oldest record is looked for.
    pub(crate) fn oldest(&self) -> i64 {
        self.oldest.get()
    }

    /// All records up to this one were removed.
    pub(crate) fn evicted(&self, record: i64) {
        assert!(record >= self.oldest.get(), "the oldest records go first");
        self.oldest.set(record + 1);
    }

    /// Wakes the reads that wait for more.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until a record is inserted behind this one. What was inserted before is seen by a read
    /// that begins now.
    pub(crate) async fn beyond(&self, record: i64) {
        loop {
            let changed = self.changed.notified();
            if self.newest.get().is_some_and(|newest| newest > record) {
                return;
            }
            changed.await;
        }
    }
}
