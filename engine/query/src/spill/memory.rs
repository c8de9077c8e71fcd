//! How much memory stages may hold: each stage of an operation up to its own limit, and all
//! operations of a node together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pinion_wire::{ErrorCode, Result};

use crate::error::error;
use crate::limits::{
    MAX_GROUP_BYTES, MAX_SORT_BYTES, MAX_WINDOW_BYTES, MIN_SPILL_BYTES, ROOM_STEPS,
};

/// Bytes that several hold together, with their limit.
#[derive(Debug)]
pub struct Held {
    limit: usize,
    bytes: AtomicUsize,
}

impl Held {
    pub fn new(limit: usize) -> Arc<Held> {
        Arc::new(Held {
            limit,
            bytes: AtomicUsize::new(0),
        })
    }

    /// The bytes held now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn is_exceeded(&self) -> bool {
        self.bytes() > self.limit
    }
}

/// The limits of stages, which are server parameters.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimits {
    pub sort: usize,
    /// Of a `$group` that MongoDB would run in its classic engine, and of one in the slot-based
    /// one.
    pub group: usize,
    pub hash_agg: usize,
    pub bucket_auto: usize,
    pub window_fields: usize,
}

impl Default for MemoryLimits {
    fn default() -> MemoryLimits {
        MemoryLimits {
            sort: MAX_SORT_BYTES,
            group: MAX_GROUP_BYTES,
            hash_agg: MAX_GROUP_BYTES,
            bucket_auto: MAX_SORT_BYTES,
            window_fields: MAX_WINDOW_BYTES,
        }
    }
}

/// What an operation may hold, and whether it may put on disk what is more.
#[derive(Clone, Debug)]
pub struct Memory {
    pub limits: MemoryLimits,
    /// Whether the operation may use the disk.
    pub disk: bool,
    /// What all operations of the node hold.
    pub node: Arc<Held>,
}

impl Default for Memory {
    /// The usual limits for one operation alone, which may not spill.
    fn default() -> Memory {
        Memory {
            limits: MemoryLimits::default(),
            disk: false,
            node: Held::new(usize::MAX),
        }
    }
}

impl Memory {
    /// Room for one stage in one place.
    pub fn room(&self, limit: usize) -> Room {
        self.shared(limit, 1).room()
    }

    /// Room for one stage that `places` places work at.
    pub fn shared(&self, limit: usize, places: usize) -> SharedRoom {
        SharedRoom {
            stage: Held::new(limit),
            node: self.node.clone(),
            disk: self.disk,
            places: places.max(1),
        }
    }
}

/// The room of a stage that is at work in several places, on several cores.
#[derive(Clone, Debug)]
pub struct SharedRoom {
    stage: Arc<Held>,
    node: Arc<Held>,
    disk: bool,
    places: usize,
}

impl SharedRoom {
    /// The room of one of the places.
    pub fn room(&self) -> Room {
        Room {
            shared: self.clone(),
            bytes: 0,
            reported: 0,
        }
    }

    /// Bytes that the stage may hold in all places together.
    pub fn limit(&self) -> usize {
        self.stage.limit
    }
}

/// What a stage holds in one place.
#[derive(Debug)]
pub struct Room {
    shared: SharedRoom,
    bytes: usize,
    /// The bytes that were reported to the other places: only larger changes are.
    reported: usize,
}

impl Room {
    /// Whether the stage may spill.
    pub fn disk(&self) -> bool {
        self.shared.disk
    }

    /// Bytes that the stage may hold in all places together.
    pub fn limit(&self) -> usize {
        self.shared.limit()
    }

    /// The number of bytes that are held here now.
    pub fn set(&mut self, bytes: usize) {
        self.bytes = bytes;
        let step = self.limit() / ROOM_STEPS / self.shared.places;
        if bytes.abs_diff(self.reported) > step || bytes == 0 {
            self.report(bytes);
        }
    }

    fn report(&mut self, bytes: usize) {
        for held in [&self.shared.stage, &self.shared.node] {
            if bytes >= self.reported {
                held.bytes
                    .fetch_add(bytes - self.reported, Ordering::Relaxed);
            } else {
                held.bytes
                    .fetch_sub(self.reported - bytes, Ordering::Relaxed);
            }
        }
        self.reported = bytes;
    }

    /// Whether what is held here has to become less.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` when it is the node's memory that has come to its end, and the stage
    /// may not spill.
    pub fn is_full(&self) -> Result<bool> {
        let others = self.shared.stage.bytes().saturating_sub(self.reported);
        // A little is not worth a run of its own: another place holds more then, and spills it.
        let worthwhile = self.bytes * 4 * self.shared.places >= self.limit();
        if others + self.bytes > self.limit() && (worthwhile || !self.disk()) {
            return Ok(true);
        }
        if self.bytes >= MIN_SPILL_BYTES && self.shared.node.is_exceeded() {
            if !self.disk() {
                return Err(error(
                    ErrorCode::EXCEEDED_MEMORY_LIMIT.0,
                    format!(
                        "the operations of this node hold more than the {} bytes of memory that they may together",
                        self.shared.node.limit
                    ),
                ));
            }
            return Ok(true);
        }
        Ok(false)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.report(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(node: usize, disk: bool) -> Memory {
        Memory {
            disk,
            node: Held::new(node),
            ..Memory::default()
        }
    }

    #[test]
    fn the_places_of_a_stage_have_one_limit() {
        let shared = memory(usize::MAX, false).shared(1000, 2);
        let (mut one, mut other) = (shared.room(), shared.room());
        one.set(600);
        other.set(300);
        assert!(!other.is_full().expect("it fits"));
        other.set(500);
        assert!(one.is_full().expect("full"));
        drop(one);
        assert!(!other.is_full().expect("it fits"));
    }

    #[test]
    fn who_holds_little_does_not_spill() {
        let shared = memory(usize::MAX, true).shared(1000, 2);
        let (mut one, mut other) = (shared.room(), shared.room());
        one.set(990);
        other.set(50);
        assert!(!other.is_full().expect("it waits"));
        assert!(one.is_full().expect("full"));
    }

    #[test]
    fn operations_share_the_memory_of_their_node() {
        let memory = memory(4 * MIN_SPILL_BYTES, true);
        let (mut one, mut other) = (memory.room(MAX_SORT_BYTES), memory.room(MAX_SORT_BYTES));
        one.set(3 * MIN_SPILL_BYTES);
        assert!(!one.is_full().expect("it fits"));
        other.set(2 * MIN_SPILL_BYTES);
        assert!(one.is_full().expect("full") && other.is_full().expect("full"));
        drop(other);
        assert!(!one.is_full().expect("it fits"));
        drop(one);
        assert_eq!(memory.node.bytes(), 0);
        let refusing = Memory {
            disk: false,
            ..memory
        };
        let mut one = refusing.room(MAX_SORT_BYTES);
        one.set(5 * MIN_SPILL_BYTES);
        assert_eq!(one.is_full().expect_err("refused").code.0, 146);
    }
}
