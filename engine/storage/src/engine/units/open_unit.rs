//! Units that stay open: the writes of a client's transaction, statement by statement, until it is
//! committed or aborted.
//!
//! A statement places its writes as open intents on their owners, all of them or none. Readers pass
//! them by, but for the unit itself ([`ReadAt::In`](crate::ReadAt::In)); writers of the same keys
//! conflict, and so does the unit with what was committed since its snapshot: the first committer
//! wins. How a unit ends is in outcome.rs.
//!
//! What is open is nowhere but in memory. A node that stops leading, or closes, aborts it, and
//! a writer that still has such a unit learns that by [`WriteError::UnitEnded`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, join_all, sim, spawn, submit_to};

use crate::engine::storage::{Storage, storage};
use crate::engine::write::{Part, divide, write_fits};
use crate::partition::{UnitId, UnitState, intent_cost};
use crate::types::{PartitionId, ReadError, Write, WriteError};

/// A transaction's writes that stay open over several statements. It is plain data and goes with
/// its client from core to core.
///
/// Its holder ends it, with [`Storage::commit_unit`], [`Storage::prepare_unit`] or
/// [`Storage::abort_unit`]. What a unit that is dropped instead holds, it holds until the node
/// stops leading or closes.
#[derive(Debug)]
#[must_use = "a unit is ended by whoever holds it"]
pub struct OpenUnit {
    pub(super) id: UnitId,
    /// Of the opening of the directory that it belongs to.
    pub(super) incarnation: u64,
    pub(super) snapshot: Timestamp,
    /// Where it may hold something.
    pub(super) partitions: BTreeSet<PartitionId>,
    bytes: u64,
    /// The core that may still be placing a statement, whose caller went away.
    placing: Option<CoreId>,
}

impl OpenUnit {
    /// The unit's identity, by which it reads what it has written.
    pub fn id(&self) -> UnitId {
        self.id
    }

    /// What it sees of others.
    pub fn snapshot(&self) -> Timestamp {
        self.snapshot
    }

    /// Whether some statement of it has placed a write.
    pub fn has_writes(&self) -> bool {
        !self.partitions.is_empty()
    }

    /// About how much memory its statements took, what they replaced of each other included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The units of one core: their numbers, and the statements of open ones that it is placing on
/// other cores.
pub(in crate::engine) struct Units {
    core: CoreId,
    next: Cell<u64>,
    placing: RefCell<BTreeMap<UnitId, Notify>>,
}

impl Units {
    pub(in crate::engine) fn new(core: CoreId) -> Units {
        Units {
            core,
            next: Cell::new(0),
            placing: RefCell::default(),
        }
    }

    /// A number that no other unit or held snapshot of this opening of the directory has.
    pub(in crate::engine) fn number(&self) -> UnitId {
        let number = self.next.get();
        self.next.set(number + 1);
        assert!(number < 1 << 48, "unit numbers are exhausted");
        UnitId(u64::from(self.core.0) << 48 | number)
    }

    fn begin_placing(&self, unit: UnitId) {
        let before = self.placing.borrow_mut().insert(unit, Notify::new());
        assert!(before.is_none(), "a unit has one statement at a time");
    }

    fn end_placing(&self, unit: UnitId) {
        let placed = self.placing.borrow_mut().remove(&unit);
        placed.expect("it was put there").notify_all();
    }

    /// Waits until no statement of the unit is being placed from here.
    async fn placed(&self, unit: UnitId) {
        let placing = self.placing.borrow().get(&unit).cloned();
        if let Some(placing) = placing {
            placing.notified().await;
        }
    }
}

/// What one partition gets of a statement, and whether the unit holds something there already.
struct Placing {
    part: Part<'static>,
    is_known: bool,
}

impl Storage {
    /// Begins a unit that reads at `snapshot`, which the caller keeps readable
    /// ([`Storage::hold_snapshot`]) until it ends.
    ///
    /// # Panics
    /// If `snapshot` is not visible yet.
    pub fn begin_unit(&self, snapshot: Timestamp) -> OpenUnit {
        let visible = self.visible();
        assert!(
            snapshot <= visible,
            "a unit reads at {snapshot}, and {visible} is visible"
        );
        OpenUnit {
            id: self.units.number(),
            incarnation: self.shared.incarnation,
            snapshot,
            partitions: BTreeSet::new(),
            bytes: 0,
            placing: None,
        }
    }

    /// Executes a statement of the unit: all its writes are placed, over those of earlier
    /// statements, or none.
    ///
    /// What another unit holds, or was committed since the unit's snapshot, is
    /// [`WriteError::Conflict`]; otherwise what is expected of a key is expected of what the unit
    /// sees: its own writes, and below them the snapshot.
    /// [`Expect::Version`](crate::Expect::Version) takes the token of a read in this unit. A unit
    /// whose statement failed can continue.
    ///
    /// The future may be dropped; the unit can only be aborted then, and the statement has taken
    /// place or not.
    ///
    /// # Errors
    /// Beside those of an ordinary statement: [`WriteError::UnitTooLarge`],
    /// [`WriteError::UnitEnded`], [`WriteError::SnapshotTooOld`].
    ///
    /// # Panics
    /// When a write is to a tree that is not replicated.
    pub fn write_unit<'a>(
        &'a self,
        unit: &'a mut OpenUnit,
        writes: Vec<Write>,
    ) -> LocalBoxFuture<'a, Result<(), WriteError>> {
        Box::pin(async move {
            assert!(
                writes.iter().all(|write| write.tree.is_replicated()),
                "a unit writes to trees that are replicated"
            );
            self.settle(unit).await?;
            let (_ring, inside) = self.enter()?;
            if !writes.iter().all(write_fits) {
                return Err(WriteError::TooLarge);
            }
            if writes.is_empty() {
                return Ok(());
            }
            self.check_room()?;
            self.wait_for_memory(|| writes.iter()).await?;
            let mut parts = Vec::new();
            divide(&writes, self.options.planted_fault, &mut parts);
            let mut by_core: BTreeMap<CoreId, Vec<Placing>> = BTreeMap::new();
            let mut fresh = Vec::new();
            for part in parts.into_iter().map(Part::into_owned) {
                let is_known = !unit.partitions.insert(part.partition);
                if !is_known {
                    fresh.push(part.partition);
                }
                let of_core = by_core.entry(self.owner(part.partition)).or_default();
                of_core.push(Placing { part, is_known });
            }
            let (id, snapshot) = (unit.id, unit.snapshot);
            let alone = by_core.len() == 1 && by_core.contains_key(&self.core);
            let placed = match alone {
                // Everything is placed in one poll: a caller that goes away leaves nothing half
                // done.
                true => {
                    let parts = by_core.remove(&self.core).expect("it has all");
                    self.place_here(id, snapshot, &parts).await
                }
                false => {
                    unit.placing = Some(self.core);
                    let this = self.rc();
                    self.units.begin_placing(id);
                    let placing = spawn(Queue::Foreground, async move {
                        let _inside = inside;
                        let placed = this.place_on_all(id, snapshot, by_core).await;
                        this.units.end_placing(id);
                        placed
                    });
                    let placed = placing.await.expect("a statement runs to its end");
                    unit.placing = None;
                    placed
                }
            };
            match placed {
                Ok(bytes) => unit.bytes += bytes,
                Err(_) => fresh.iter().for_each(|partition| {
                    unit.partitions.remove(partition);
                }),
            }
            placed.map(|_| ())
        })
    }

    /// Forgets everything that the unit has written.
    pub fn abort_unit(&self, mut unit: OpenUnit) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            let this = self.rc();
            let aborting = spawn(Queue::Foreground, async move {
                if this.settle(&mut unit).await.is_ok() {
                    this.withdraw_everywhere(unit.id, &unit.partitions).await;
                }
            });
            aborting.await.expect("a unit is aborted to its end");
        })
    }

    /// Waits for what callers that went away left under way. The unit is of this opening of the
    /// directory then.
    pub(super) async fn settle(&self, unit: &mut OpenUnit) -> Result<(), WriteError> {
        if unit.incarnation != self.shared.incarnation {
            return Err(WriteError::UnitEnded);
        }
        if let Some(core) = unit.placing {
            let id = unit.id;
            submit_to(core, Queue::Foreground, move || async move {
                storage().units.placed(id).await;
            })
            .await;
            unit.placing = None;
        }
        Ok(())
    }

    /// Places a statement on all its owners, or on none. Gives the bytes that it takes.
    async fn place_on_all(
        &self,
        unit: UnitId,
        snapshot: Timestamp,
        by_core: BTreeMap<CoreId, Vec<Placing>>,
    ) -> Result<u64, WriteError> {
        let placed = join_all(by_core.into_iter().map(|(core, parts)| async move {
            let partitions: BTreeSet<PartitionId> =
                parts.iter().map(|placing| placing.part.partition).collect();
            let placed = submit_to(core, Queue::Foreground, move || async move {
                storage().place_here(unit, snapshot, &parts).await
            });
            (core, partitions, placed.await)
        }))
        .await;
        sim::event("statement of an open unit placed");
        let failed = placed
            .iter()
            .find_map(|(_, _, placed)| placed.clone().err());
        let Some(error) = failed else {
            let bytes = placed.into_iter().filter_map(|(_, _, placed)| placed.ok());
            return Ok(bytes.sum());
        };
        let holding = placed.into_iter().filter(|(_, _, placed)| placed.is_ok());
        join_all(holding.map(|(core, partitions, _)| {
            submit_to(core, Queue::Foreground, move || async move {
                let storage = storage();
                for partition in partitions {
                    storage.owned_partition(partition).undo_statement(unit);
                }
                storage.publish_memory();
            })
        }))
        .await;
        Err(error)
    }

    /// Places the parts of a statement that are here, all in one poll, or none.
    async fn place_here(
        &self,
        unit: UnitId,
        snapshot: Timestamp,
        parts: &[Placing],
    ) -> Result<u64, WriteError> {
        self.check_fatal().map_err(WriteError::Fatal)?;
        self.check_memory()?;
        let mut prepared = Vec::with_capacity(parts.len());
        loop {
            for Placing { part, .. } in parts {
                let partition = self.owned_partition(part.partition);
                let ready = partition.prepare_for(snapshot, &part.writes).await;
                let ready = ready.map_err(|error| match error {
                    ReadError::SnapshotTooOld => WriteError::SnapshotTooOld,
                    ReadError::Interrupted => WriteError::UnitEnded,
                    error => self.read_failed(&error),
                })?;
                prepared.push((partition, ready));
            }
            let is_current = |(partition, ready): &(Rc<_>, _)| -> bool {
                let partition: &crate::partition::Partition = partition;
                partition.is_current(ready)
            };
            if prepared.iter().all(is_current) {
                break;
            }
            prepared.clear();
        }
        // From here to the end nothing awaits. What is placed before the node stops leading is
        // taken away then.
        self.check_allots()?;
        let is_there = |placing: &Placing| {
            let partition = self.owned_partition(placing.part.partition);
            !placing.is_known || partition.unit_state(unit) == Some(UnitState::Open)
        };
        if !parts.iter().all(is_there) {
            return Err(WriteError::UnitEnded);
        }
        let writes = parts.iter().flat_map(|placing| placing.part.writes.iter());
        let bytes = writes.map(|write| intent_cost(&write.key, &write.op)).sum();
        self.check_open_memory(unit, bytes)?;
        for (at, (Placing { part, .. }, (partition, ready))) in
            parts.iter().zip(&prepared).enumerate()
        {
            if let Err(error) = partition.place_open(unit, snapshot, &part.writes, ready) {
                for (placed, _) in &prepared[..at] {
                    placed.undo_statement(unit);
                }
                return Err(part.translate(error));
            }
        }
        self.publish_memory();
        Ok(bytes)
    }

    /// The partitions by the cores that own them.
    pub(super) fn by_owner(
        &self,
        partitions: &BTreeSet<PartitionId>,
    ) -> BTreeMap<CoreId, Vec<PartitionId>> {
        let mut by_core: BTreeMap<CoreId, Vec<PartitionId>> = BTreeMap::new();
        for &partition in partitions {
            by_core
                .entry(self.owner(partition))
                .or_default()
                .push(partition);
        }
        by_core
    }

    pub(super) async fn withdraw_everywhere(
        &self,
        unit: UnitId,
        partitions: &BTreeSet<PartitionId>,
    ) {
        let by_core = self.by_owner(partitions);
        join_all(by_core.into_iter().map(|(core, partitions)| {
            submit_to(core, Queue::Foreground, move || async move {
                let storage = storage();
                for partition in partitions {
                    storage.owned_partition(partition).withdraw(unit);
                }
                storage.publish_memory();
            })
        }))
        .await;
    }

    /// Aborts every open unit: the node does not lead any more, or closes. No statement may be
    /// placed meanwhile, on any core.
    pub(in crate::engine) async fn abort_open_units(&self) {
        self.on_all(|storage| async move {
            storage
                .owned()
                .for_each(|partition| partition.withdraw_open());
            storage.publish_memory();
        })
        .await;
    }
}
