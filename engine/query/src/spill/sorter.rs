//! A sort of any size: in memory while that suffices, and of runs on disk where it does not.

use std::iter::Peekable;

use bytes::Bytes;
use pinion_wire::{ErrorCode, Result};

use super::memory::Room;
use super::request::{DiskReply, DiskRequest, Spiller};
use super::runs::{DiskRuns, Head};
use crate::error::error;
use crate::sorter::{Sorted, Sorter};
use crate::work::{STEP, spend, spend_bytes};

/// What can be written to disk and read back.
pub trait Spilled: Sized {
    /// About how many bytes it writes.
    fn spilled_bytes(&self) -> usize;
    fn write(&self, out: &mut Vec<u8>);
    /// Reads what was written. What it makes must not keep `bytes`, which are a part of something
    /// larger.
    fn read(bytes: &[u8]) -> Result<Self>;
}

/// Sorts entries by their keys; those of equal keys stay in the order in which they came.
pub struct DiskSorter<T> {
    /// What has come and is not on disk.
    sorter: Sorter<T>,
    /// `limit` counts the entries that are wanted, skipped ones included.
    limit: Option<usize>,
    room: Room,
    runs: DiskRuns,
    /// What is on its way out of memory: to the disk, or after the end to the caller that sorts.
    leaving: Option<Peekable<Sorted<T>>>,
    ended: bool,
    given: usize,
    sorted_bytes: u64,
}

impl<T> std::fmt::Debug for DiskSorter<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskSorter")
            .field("runs", &self.runs)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// What comes next in order.
#[derive(Debug)]
pub enum Next<T> {
    Entry(Bytes, T),
    /// [`DiskSorter::request`] says what has to be done first.
    Disk,
    End,
}

impl<T: Spilled> DiskSorter<T> {
    pub fn new(by: Spiller, limit: Option<usize>, room: Room) -> DiskSorter<T> {
        DiskSorter {
            sorter: Sorter::new(limit),
            limit,
            runs: DiskRuns::new(by, room.limit()),
            room,
            leaving: None,
            ended: false,
            given: 0,
            sorted_bytes: 0,
        }
    }

    /// Adds an entry under its key; `size` are the bytes the entry holds. True when memory is full:
    /// then [`DiskSorter::request`] says what has to be done before a further entry is added.
    ///
    /// # Errors
    /// `QueryExceededMemoryLimitNoDiskUseAllowed` where memory is full and the sort may not spill.
    pub fn push(&mut self, key: Vec<u8>, value: T, size: usize) -> Result<bool> {
        assert!(self.leaving.is_none(), "memory is being emptied");
        self.sorted_bytes += (key.len() + size) as u64;
        self.sorter.push(key, value, size);
        self.room.set(self.sorter.bytes());
        if !self.room.is_full()? {
            return Ok(false);
        }
        let before = self.sorter.bytes();
        self.sorter.shrink();
        self.room.set(self.sorter.bytes());
        // To throw away little again and again would take long.
        if self.sorter.bytes() <= before / 2 && !self.room.is_full()? {
            return Ok(false);
        }
        if self.room.disk() {
            self.spill();
            return Ok(true);
        }
        if !self.room.is_full()? {
            return Ok(false);
        }
        Err(error(
            ErrorCode::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED.0,
            format!(
                "Sort exceeded memory limit of {} bytes, but did not opt in to external sorting.",
                self.room.limit()
            ),
        ))
    }

    /// The bytes of all entries that have come.
    pub fn sorted_bytes(&self) -> u64 {
        self.sorted_bytes
    }

    /// No further entry comes.
    pub fn end(&mut self) {
        assert!(!self.ended, "an end once");
        self.ended = true;
        if self.runs.is_empty() {
            self.leaving = Some(self.take_sorted().peekable());
        } else {
            // Memory is free for the runs then.
            self.spill();
        }
    }

    fn take_sorted(&mut self) -> Sorted<T> {
        std::mem::replace(&mut self.sorter, Sorter::new(self.limit)).finish()
    }

    fn spill(&mut self) {
        self.runs.begin();
        self.leaving = Some(self.take_sorted().peekable());
    }

    /// What has to be done first, where memory is full and after [`Next::Disk`]. Asked again after
    /// each reply.
    pub fn request(&mut self) -> Result<Option<DiskRequest>> {
        loop {
            if let Some(request) = self.runs.request()? {
                return Ok(Some(request));
            }
            if self.runs.is_empty() {
                return Ok(None);
            }
            let Some(leaving) = &mut self.leaving else {
                return Ok(None);
            };
            while !self.runs.is_full() {
                let Some((key, value)) = leaving.peek() else {
                    self.leaving = None;
                    self.room.set(0);
                    self.runs.end();
                    if self.ended {
                        self.runs.read();
                    }
                    break;
                };
                spend(STEP)?;
                spend_bytes(key.len() + value.spilled_bytes())?;
                self.runs.add(key, |out| value.write(out));
                leaving.next();
            }
        }
    }

    /// Takes what was asked for.
    pub fn reply(&mut self, reply: DiskReply) -> Result<()> {
        self.runs.reply(reply)
    }

    /// What comes next in order, after the end.
    pub fn next_entry(&mut self) -> Result<Next<T>> {
        assert!(self.ended, "entries come out after the last one");
        if self.runs.is_empty() {
            let next = self.leaving.as_mut().and_then(Iterator::next);
            return Ok(match next {
                Some((key, value)) => Next::Entry(Bytes::from(key), value),
                None => {
                    self.room.set(0);
                    Next::End
                }
            });
        }
        if self.limit.is_some_and(|limit| self.given >= limit) {
            return Ok(Next::End);
        }
        match self.runs.head() {
            Head::Disk => Ok(Next::Disk),
            Head::End => Ok(Next::End),
            Head::Entry(key, value) => {
                spend_bytes(key.len() + value.len())?;
                let (key, value) = self.runs.pop();
                self.given += 1;
                Ok(Next::Entry(key, T::read(&value)?))
            }
        }
    }
}
