//! A queue whose middle is on disk: what came last is written once it is too much, and read when
//! its turn comes.

use std::collections::VecDeque;

use pinion_wire::Result;

use super::block::{Block, BlockReader};
use super::request::{DiskReply, DiskRequest, Place, Spiller};
use super::sorter::Spilled;
use crate::limits::{MAX_FAN_IN, MAX_SPILL_BLOCK_BYTES, MIN_SPILL_BLOCK_BYTES};
use crate::work::{STEP, spend, spend_bytes};

/// Entries leave in the order in which they came.
#[derive(Debug)]
pub(crate) struct DiskQueue<T> {
    by: Spiller,
    block_bytes: usize,
    front: VecDeque<T>,
    blocks: VecDeque<Place>,
    back: VecDeque<T>,
    /// What the entries in memory come to.
    bytes: usize,
    spilling: Option<Spilling<T>>,
    wants_front: bool,
}

/// Entries on their way to the disk.
#[derive(Debug)]
struct Spilling<T> {
    left: VecDeque<T>,
    block: Block,
    begins: bool,
}

/// What is first in a queue.
#[derive(Debug)]
pub(crate) enum First<'q, T> {
    Entry(&'q T),
    /// [`DiskQueue::request`] says what has to be done first.
    Disk,
    Nothing,
}

impl<T: Spilled> DiskQueue<T> {
    /// `memory` are the bytes that the queue's owner may hold.
    pub(crate) fn new(by: Spiller, memory: usize) -> DiskQueue<T> {
        DiskQueue {
            by,
            block_bytes: (memory / MAX_FAN_IN).clamp(MIN_SPILL_BLOCK_BYTES, MAX_SPILL_BLOCK_BYTES),
            front: VecDeque::new(),
            blocks: VecDeque::new(),
            back: VecDeque::new(),
            bytes: 0,
            spilling: None,
            wants_front: false,
        }
    }

    /// The bytes held in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, entry: T) {
        self.bytes += entry.spilled_bytes();
        self.back.push_back(entry);
    }

    pub(crate) fn first(&mut self) -> First<'_, T> {
        if self.spilling.is_some() {
            return First::Disk;
        }
        if self.front.is_empty() {
            if !self.blocks.is_empty() {
                self.wants_front = true;
                return First::Disk;
            }
            std::mem::swap(&mut self.front, &mut self.back);
        }
        self.front.front().map_or(First::Nothing, First::Entry)
    }

    /// Takes off what was seen to be first.
    pub(crate) fn pop(&mut self) {
        if let Some(gone) = self.front.pop_front() {
            self.bytes -= gone.spilled_bytes();
        }
    }

    /// Begins to put on disk what can be; false where that is nothing.
    pub(crate) fn spill(&mut self) -> bool {
        let mut left = std::mem::take(&mut self.back);
        if self.blocks.is_empty() {
            let mut front = std::mem::take(&mut self.front);
            front.append(&mut left);
            left = front;
        }
        if left.is_empty() {
            return false;
        }
        self.spilling = Some(Spilling {
            left,
            block: Block::default(),
            begins: true,
        });
        true
    }

    /// What has to be done first. Asked again after each reply, and after it was refused for its
    /// work.
    pub(crate) fn request(&mut self) -> Result<Option<DiskRequest>> {
        if let Some(spilling) = &mut self.spilling {
            while spilling.block.len() < self.block_bytes {
                let Some(entry) = spilling.left.front() else {
                    break;
                };
                let bytes = entry.spilled_bytes();
                spend(STEP)?;
                spend_bytes(bytes)?;
                spilling.block.append(&[], |out| entry.write(out));
                spilling.left.pop_front();
                self.bytes -= bytes;
            }
            if !spilling.block.is_empty() {
                let block = std::mem::take(&mut spilling.block);
                return Ok(Some(DiskRequest::Write {
                    block: block.archive(),
                    records: block.records(),
                    spills: true,
                    begins: std::mem::take(&mut spilling.begins),
                    by: self.by,
                }));
            }
            self.spilling = None;
        }
        if !std::mem::take(&mut self.wants_front) {
            return Ok(None);
        }
        Ok(self.blocks.front().copied().map(DiskRequest::Read))
    }

    /// Takes what was asked for.
    pub(crate) fn reply(&mut self, reply: DiskReply) -> Result<()> {
        match reply {
            DiskReply::Written(place) => self.blocks.push_back(place),
            DiskReply::Read(bytes) => {
                self.blocks.pop_front();
                for (_, value) in BlockReader::new(bytes)? {
                    let entry = T::read(&value)?;
                    self.bytes += entry.spilled_bytes();
                    self.front.push_back(entry);
                }
            }
        }
        Ok(())
    }
}
