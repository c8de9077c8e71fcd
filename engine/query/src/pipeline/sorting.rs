//! `$sort` at work, and `$sample`, which is a sort by chance.

use pinion_bson::RawArrayBuf;
use pinion_wire::Result;

use super::Document;
use super::sample::Sample;
use super::step::{Accepted, OnDisk, Produced, Step};
use crate::expression::{MetaKind, Random};
use crate::sort::SortPattern;
use crate::spill::{DiskReply, DiskSorter, Memory, Next, Spiller};
use crate::work;

#[derive(Debug)]
pub(super) struct Sorting {
    order: Order,
    arrived: u64,
    ended: bool,
    sorter: DiskSorter<Document>,
}

#[derive(Debug)]
enum Order {
    Pattern(SortPattern),
    Chance { random: Random, is_given: bool },
}

impl Sorting {
    /// A sort of which at most `limit` documents are wanted.
    pub(super) fn new(pattern: SortPattern, limit: Option<usize>, memory: &Memory) -> Sorting {
        Sorting::by(Order::Pattern(pattern), limit, memory)
    }

    /// As many documents as the sample takes, chosen at random.
    pub(super) fn sample(sample: Sample, memory: &Memory) -> Sorting {
        let order = Order::Chance {
            random: sample.random,
            is_given: sample.gives_numbers,
        };
        Sorting::by(order, Some(sample.size), memory)
    }

    fn by(order: Order, limit: Option<usize>, memory: &Memory) -> Sorting {
        let room = memory.room(memory.limits.sort);
        Sorting {
            order,
            arrived: 0,
            ended: false,
            sorter: DiskSorter::new(Spiller::Sort, limit, room),
        }
    }
}

/// The document with the number that it was drawn by, where the least come first. It is given as
/// MongoDB has it: between 0 and 1, and the greatest come first.
fn drawn(document: &Document, number: u64) -> Document {
    let number = ((u64::MAX - number) >> 11) as f64 / (1_u64 << 53) as f64;
    let mut key = RawArrayBuf::new();
    key.push(number);
    let metadata = document.metadata().clone();
    let metadata = metadata.with(MetaKind::RandVal, number);
    let metadata = metadata.with(MetaKind::SortKey, key);
    document.clone().with_metadata(metadata)
}

impl Step for Sorting {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        let mut kept = None;
        // Documents of equal keys stay in the order in which they came.
        let mut key = match &self.order {
            Order::Pattern(pattern) => pattern.value_key(document)?,
            Order::Chance { random, is_given } => {
                let number = random.next_u64();
                kept = is_given.then(|| drawn(document, number));
                number.to_be_bytes().to_vec()
            }
        };
        work::check()?;
        key.extend_from_slice(&self.arrived.to_be_bytes());
        self.arrived += 1;
        let bytes = document.as_bytes().len();
        let kept = kept.unwrap_or_else(|| document.clone());
        Ok(match self.sorter.push(key, kept, bytes)? {
            true => Accepted::Spills,
            false => Accepted::Kept,
        })
    }

    fn end(&mut self) -> Result<()> {
        self.ended = true;
        self.sorter.end();
        Ok(())
    }

    fn give(&mut self) -> Result<Produced> {
        if !self.ended {
            return Ok(Produced::Nothing);
        }
        Ok(match self.sorter.next_entry()? {
            Next::Entry(_, document) => Produced::Document(document),
            Next::Disk => Produced::Disk,
            Next::End => Produced::Nothing,
        })
    }

    fn disk(&mut self) -> Result<OnDisk> {
        self.sorter.request().map(OnDisk::from)
    }

    fn reply(&mut self, reply: DiskReply) -> Result<()> {
        self.sorter.reply(reply)
    }
}
