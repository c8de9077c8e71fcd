//! How much memory operations may hold before they spill, and how much disk they take then.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinion_query::{Held, Memory};
use pinion_wire::{Error, ErrorCode, Result};

use crate::limits::{MAX_SPILLED_BYTES, MIN_NODE_MEMORY_BYTES, NODE_MEMORY_PERCENT};
use crate::parameters::parameters;

/// What the operations of a node hold together, as each core knows it.
#[derive(Clone)]
pub struct NodeMemory {
    /// Bytes in the memory of sorts, groups and windows.
    held: Arc<Held>,
    /// Bytes on disk.
    spilled: Arc<AtomicU64>,
}

impl NodeMemory {
    /// Operations have a part of the memory that the node was given for its cache, beside that.
    pub fn new(cache_bytes: u64) -> NodeMemory {
        let share = cache_bytes / 100 * NODE_MEMORY_PERCENT;
        NodeMemory {
            held: Held::new(share.max(MIN_NODE_MEMORY_BYTES) as usize),
            spilled: Arc::default(),
        }
    }

    /// Bytes that operations hold in memory, and on disk.
    pub fn in_use(&self) -> (u64, u64) {
        let held = self.held.bytes() as u64;
        (held, self.spilled.load(Ordering::Relaxed))
    }

    /// Counts bytes that are going to be spilled.
    ///
    /// # Errors
    /// `OutOfDiskSpace` where that is more than operations may put on disk; nothing is counted
    /// then.
    pub(super) fn spill(&self, bytes: u64) -> Result<()> {
        let before = self.spilled.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes <= MAX_SPILLED_BYTES {
            return Ok(());
        }
        self.free(bytes);
        Err(Error::new(
            ErrorCode::OUT_OF_DISK_SPACE,
            format!(
                "the operations of this node have spilled {before} bytes to disk and may not spill {bytes} more: the limit \
                 is {MAX_SPILLED_BYTES} bytes"
            ),
        ))
    }

    pub(super) fn free(&self, bytes: u64) {
        self.spilled.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// This node's.
pub fn node_memory() -> Rc<NodeMemory> {
    pinion_runtime::core_local()
}

/// What an operation may hold whose command says `allowDiskUse`, or does not.
pub fn memory(allow_disk_use: Option<bool>) -> Memory {
    let parameters = parameters();
    let parameters = parameters.borrow();
    Memory {
        limits: parameters.memory,
        disk: allow_disk_use.unwrap_or(parameters.allow_disk_use_by_default),
        node: node_memory().held.clone(),
    }
}
