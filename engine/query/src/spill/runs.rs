//! Sorted runs on disk: written one after the other, joined where they become many, and read as
//! one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use bytes::Bytes;
use pinion_wire::Result;

use super::block::{Block, BlockReader};
use super::request::{DiskReply, DiskRequest, Place, Spiller};
use crate::limits::{MAX_FAN_IN, MAX_SPILL_BLOCK_BYTES, MIN_SPILL_BLOCK_BYTES};
use crate::work::{STEP, spend, spend_bytes};

/// The runs of one machine, in the order in which their entries came.
///
/// The owner asks [`DiskRuns::request`] what has to be done, and continues once that is nothing.
#[derive(Debug)]
pub(crate) struct DiskRuns {
    by: Spiller,
    /// Bytes that may be held of the runs while they are read.
    memory: usize,
    runs: Vec<Run>,
    /// The run that is written.
    writer: Option<Writer>,
    /// The runs of which that one is made, where it is none of new entries.
    joining: Option<Merge>,
    /// All of them as one.
    merge: Option<Merge>,
    /// No further run comes.
    reading: bool,
    largest_block: usize,
}

#[derive(Debug, Default)]
struct Run {
    blocks: VecDeque<Place>,
    /// How often its entries were written before.
    level: u32,
}

#[derive(Debug)]
struct Writer {
    run: Run,
    block: Block,
    ended: bool,
}

/// What comes next of the runs as one.
#[derive(Debug)]
pub(crate) enum Head<'r> {
    Entry(&'r Bytes, &'r Bytes),
    /// Something has to be done first.
    Disk,
    End,
}

impl DiskRuns {
    /// `memory` are the bytes that the writer of the runs may hold.
    pub(crate) fn new(by: Spiller, memory: usize) -> DiskRuns {
        DiskRuns {
            by,
            memory,
            runs: Vec::new(),
            writer: None,
            joining: None,
            merge: None,
            reading: false,
            largest_block: 0,
        }
    }

    /// Whether nothing was ever spilled.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
            && self.writer.is_none()
            && self.joining.is_none()
            && self.merge.is_none()
    }

    /// Begins a run.
    pub(crate) fn begin(&mut self) {
        assert!(
            self.writer.is_none() && !self.reading,
            "one run after the other, and none behind the last"
        );
        self.writer = Some(Writer::new(0));
    }

    /// Adds an entry to the run that is written; those of a run come in the order of their keys.
    pub(crate) fn add(&mut self, key: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let writer = self.writer.as_mut().expect("a run was begun");
        writer.block.append(key, write);
    }

    /// Whether a block has to be written before a further entry is added.
    pub(crate) fn is_full(&self) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(|writer| writer.block.len() >= self.block_bytes())
    }

    /// No further entry belongs to the run.
    pub(crate) fn end(&mut self) {
        self.writer.as_mut().expect("a run was begun").ended = true;
    }

    /// No further run comes: all are read as one.
    pub(crate) fn read(&mut self) {
        self.reading = true;
    }

    /// What has to be done first. Asked again after each reply, and after it was refused for its
    /// work.
    pub(crate) fn request(&mut self) -> Result<Option<DiskRequest>> {
        loop {
            if let Some(block) = self.due_block() {
                return Ok(Some(block));
            }
            if self.joining.is_some() {
                if let Some(place) = self.join()? {
                    return Ok(Some(DiskRequest::Read(place)));
                }
                continue;
            }
            match &self.writer {
                Some(writer) if !writer.ended => return Ok(None),
                Some(_) => {
                    let run = self.writer.take().expect("looked at before").run;
                    if !run.blocks.is_empty() {
                        self.runs.push(run);
                    }
                }
                None => match self.due_join() {
                    Some(count) => self.begin_join(count),
                    None => return Ok(self.due_read().map(DiskRequest::Read)),
                },
            }
        }
    }

    /// Takes what was asked for.
    pub(crate) fn reply(&mut self, reply: DiskReply) -> Result<()> {
        match reply {
            DiskReply::Written(place) => {
                let writer = self.writer.as_mut().expect("a block was to be written");
                self.largest_block = self.largest_block.max(place.bytes as usize);
                writer.run.blocks.push_back(place);
                Ok(())
            }
            DiskReply::Read(bytes) => {
                let merge = self.joining.as_mut().or(self.merge.as_mut());
                merge.expect("a block was wanted").supply(bytes)
            }
        }
    }

    /// What comes next of the runs as one.
    pub(crate) fn head(&self) -> Head<'_> {
        self.merge.as_ref().map_or(Head::Disk, Merge::head)
    }

    /// Takes off what comes next.
    pub(crate) fn pop(&mut self) -> (Bytes, Bytes) {
        self.merge.as_mut().expect("a head was seen").pop()
    }

    fn block_bytes(&self) -> usize {
        (self.memory / MAX_FAN_IN).clamp(MIN_SPILL_BLOCK_BYTES, MAX_SPILL_BLOCK_BYTES)
    }

    /// How many runs may be read at once.
    fn fan_in(&self) -> usize {
        (self.memory / self.largest_block.max(1)).clamp(2, MAX_FAN_IN)
    }

    fn due_block(&mut self) -> Option<DiskRequest> {
        let is_full = self.is_full();
        let writer = self.writer.as_mut()?;
        if !is_full && (!writer.ended || writer.block.is_empty()) {
            return None;
        }
        let block = std::mem::take(&mut writer.block);
        Some(DiskRequest::Write {
            block: block.archive(),
            records: block.records(),
            spills: writer.run.level == 0,
            begins: writer.run.blocks.is_empty(),
            by: self.by,
        })
    }

    /// How many of the last runs are to be joined: as many as can be read at once, that were
    /// written as often, or else what is too much to be read as one.
    fn due_join(&self) -> Option<usize> {
        let fan_in = self.fan_in();
        if self.reading {
            let excess = self.runs.len().checked_sub(fan_in).filter(|n| *n > 0)?;
            return Some(fan_in.min(excess + 1));
        }
        let level = self.runs.last()?.level;
        let same = self.runs.iter().rev().take_while(|run| run.level == level);
        (same.count() >= fan_in).then_some(fan_in)
    }

    fn begin_join(&mut self, count: usize) {
        let runs = self.runs.split_off(self.runs.len() - count);
        let level = runs.iter().map(|run| run.level).max().unwrap_or(0);
        self.joining = Some(Merge::new(runs));
        self.writer = Some(Writer::new(level + 1));
    }

    /// Moves entries of the runs that are joined until a block is full, or has to be read.
    fn join(&mut self) -> Result<Option<Place>> {
        while !self.is_full() {
            let Some(joining) = &mut self.joining else {
                break;
            };
            match joining.head() {
                Head::Entry(key, value) => {
                    spend(STEP)?;
                    spend_bytes(key.len() + value.len())?;
                    let (key, value) = joining.pop();
                    self.add(&key, |out| out.extend_from_slice(&value));
                }
                Head::Disk => return Ok(joining.wants()),
                Head::End => {
                    self.joining = None;
                    self.end();
                }
            }
        }
        Ok(None)
    }

    /// What is wanted for the runs as one.
    fn due_read(&mut self) -> Option<Place> {
        if !self.reading {
            return None;
        }
        let runs = &mut self.runs;
        let merge = self
            .merge
            .get_or_insert_with(|| Merge::new(std::mem::take(runs)));
        merge.wants()
    }
}

impl Writer {
    fn new(level: u32) -> Writer {
        Writer {
            run: Run {
                blocks: VecDeque::new(),
                level,
            },
            block: Block::default(),
            ended: false,
        }
    }
}

/// Runs that are read as one.
#[derive(Debug)]
struct Merge {
    sources: Vec<Source>,
    /// The next key of each run, the least on top; of equal ones that of the earlier run.
    heads: BinaryHeap<Reverse<(Bytes, usize)>>,
    /// The runs of which a block has to be read first.
    hungry: VecDeque<usize>,
}

#[derive(Debug)]
struct Source {
    blocks: VecDeque<Place>,
    /// What has been read and not given.
    block: BlockReader,
    /// The value to its key among the heads.
    value: Bytes,
}

impl Merge {
    fn new(runs: Vec<Run>) -> Merge {
        let source = |run: Run| Source {
            blocks: run.blocks,
            block: BlockReader::default(),
            value: Bytes::new(),
        };
        Merge {
            heads: BinaryHeap::with_capacity(runs.len()),
            hungry: (0..runs.len()).collect(),
            sources: runs.into_iter().map(source).collect(),
        }
    }

    fn wants(&self) -> Option<Place> {
        let source = &self.sources[*self.hungry.front()?];
        source.blocks.front().copied()
    }

    fn supply(&mut self, bytes: Bytes) -> Result<()> {
        let hungry = self.hungry.pop_front().expect("a block was wanted");
        let source = &mut self.sources[hungry];
        source.blocks.pop_front();
        source.block = BlockReader::new(bytes)?;
        self.advance(hungry);
        Ok(())
    }

    /// Puts the next key of a run among the heads.
    fn advance(&mut self, place: usize) {
        let source = &mut self.sources[place];
        match source.block.next() {
            Some((key, value)) => {
                source.value = value;
                self.heads.push(Reverse((key, place)));
            }
            None => {
                (source.block, source.value) = Default::default();
                if !source.blocks.is_empty() {
                    self.hungry.push_back(place);
                }
            }
        }
    }

    fn head(&self) -> Head<'_> {
        if !self.hungry.is_empty() {
            return Head::Disk;
        }
        match self.heads.peek() {
            Some(Reverse((key, place))) => Head::Entry(key, &self.sources[*place].value),
            None => Head::End,
        }
    }

    fn pop(&mut self) -> (Bytes, Bytes) {
        let Reverse((key, place)) = self.heads.pop().expect("a head was seen");
        let value = std::mem::take(&mut self.sources[place].value);
        self.advance(place);
        (key, value)
    }
}
