//! The stage at work: one partition after the other.

use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef};
use pinion_wire::Result;

use super::framed::Framed;
use super::function::Function;
use super::held::Element;
use super::parse::WindowFields;
use super::series::Series;
use crate::collation::compare_owned;
use crate::error::{error, type_mismatch};
use crate::pipeline::Document;
use crate::pipeline::step::{Accepted, OnDisk, Produced, Step};
use crate::spill::{DiskQueue, DiskReply, First, Memory, Room, Spiller};
use crate::work::{self, spend_bytes};

/// `$setWindowFields` at work. Documents come sorted, so that those of a partition follow each
/// other.
#[derive(Debug)]
pub(in crate::pipeline) struct Windows {
    stage: Arc<WindowFields>,
    room: Room,
    partition: Option<Partition>,
    /// The document that was taken last, unless it has joined its partition.
    next: Option<Next>,
    ended: bool,
}

#[derive(Debug)]
struct Next {
    key: RawBson,
    document: Document,
    elements: Vec<Element>,
}

/// A partition whose documents come in and leave.
#[derive(Debug)]
struct Partition {
    key: RawBson,
    functions: Vec<Running>,
    /// The documents that have come and not left.
    documents: DiskQueue<Document>,
    /// How many have come, and how many have left.
    fed: usize,
    given: usize,
    ended: bool,
}

#[derive(Debug)]
enum Running {
    Framed(Framed),
    Series(Series),
}

impl Windows {
    pub(in crate::pipeline) fn new(stage: Arc<WindowFields>, memory: &Memory) -> Windows {
        Windows {
            stage,
            room: memory.room(memory.limits.window_fields),
            partition: None,
            next: None,
            ended: false,
        }
    }
}

impl Step for Windows {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        assert!(self.next.is_none(), "what can leave has left");
        spend_bytes(document.as_bytes().len())?;
        let key = self.stage.partition_of(document)?;
        let elements = self.stage.elements_of(document)?;
        work::check()?;
        self.next = Some(Next {
            key,
            document: document.clone(),
            elements,
        });
        Ok(Accepted::Gives)
    }

    fn end(&mut self) -> Result<()> {
        self.ended = true;
        Ok(())
    }

    fn give(&mut self) -> Result<Produced> {
        loop {
            let Some(partition) = &mut self.partition else {
                let Some(next) = &self.next else {
                    return Ok(Produced::Nothing);
                };
                self.partition = Some(Partition::new(
                    &self.stage,
                    next.key.clone(),
                    self.room.limit(),
                )?);
                continue;
            };
            match &self.next {
                Some(next) if joins(next, partition, &self.stage) => {
                    if let Some(next) = self.next.take() {
                        partition.feed(next.document, next.elements)?;
                    }
                    if partition.make_room(&mut self.room)? {
                        return Ok(Produced::Disk);
                    }
                    continue;
                }
                Some(_) => partition.end(),
                None if self.ended => partition.end(),
                None => {}
            }
            match partition.give(&self.stage)? {
                Produced::Nothing if partition.ended => {
                    self.partition = None;
                    self.room.set(0);
                }
                given => return Ok(given),
            }
        }
    }

    fn disk(&mut self) -> Result<OnDisk> {
        match &mut self.partition {
            Some(partition) => partition.documents.request().map(OnDisk::from),
            None => Ok(OnDisk::Nothing),
        }
    }

    fn reply(&mut self, reply: DiskReply) -> Result<()> {
        match &mut self.partition {
            Some(partition) => partition.documents.reply(reply),
            None => Ok(()),
        }
    }
}

/// Whether a document is one of the partition.
fn joins(next: &Next, partition: &Partition, stage: &WindowFields) -> bool {
    compare_owned(stage.collation.as_deref(), &next.key, &partition.key).is_eq()
}

impl Partition {
    fn new(stage: &WindowFields, key: RawBson, memory: usize) -> Result<Partition> {
        let running = |function: &Function| -> Result<Running> {
            Ok(match function {
                Function::Framed { what, bounds } => Running::Framed(Framed::new(what, bounds)?),
                Function::Series { what, .. } => Running::Series(Series::new(what)),
            })
        };
        Ok(Partition {
            key,
            functions: stage.functions().map(running).collect::<Result<_>>()?,
            documents: DiskQueue::new(Spiller::WindowFields, memory),
            fed: 0,
            given: 0,
            ended: false,
        })
    }

    fn feed(&mut self, document: Document, elements: Vec<Element>) -> Result<()> {
        self.documents.push(document);
        self.fed += 1;
        for (function, element) in self.functions.iter_mut().zip(elements) {
            match function {
                Running::Framed(framed) => framed.feed(element),
                Running::Series(series) => series.feed(element)?,
            }
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        let held = |function: &Running| match function {
            Running::Framed(framed) => framed.bytes(),
            Running::Series(series) => series.bytes(),
        };
        self.documents.bytes() + self.functions.iter().map(held).sum::<usize>()
    }

    /// Whether documents have to be put on disk first. What the functions hold stays in memory.
    fn make_room(&mut self, room: &mut Room) -> Result<bool> {
        let bytes = self.bytes();
        room.set(bytes);
        if !room.is_full()? {
            return Ok(false);
        }
        let worthwhile = self.documents.bytes() >= bytes / 16;
        if room.disk() && worthwhile && self.documents.spill() {
            return Ok(true);
        }
        Err(error(
            5_414_201,
            format!(
                "Exceeded memory limit in DocumentSourceSetWindowFields, used {bytes} bytes but max allowed is {}",
                room.limit()
            ),
        ))
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        for function in &mut self.functions {
            match function {
                Running::Framed(framed) => framed.end(),
                Running::Series(series) => series.end(),
            }
        }
    }

    fn give(&mut self, stage: &WindowFields) -> Result<Produced> {
        let at = self.given;
        if at == self.fed {
            return Ok(Produced::Nothing);
        }
        let is_ready = |function: &Running| match function {
            Running::Framed(framed) => framed.is_ready(at),
            Running::Series(series) => series.is_ready(at),
        };
        if !self.functions.iter().all(is_ready) {
            return Ok(Produced::Nothing);
        }
        let document = match self.documents.first() {
            First::Entry(document) => document,
            First::Disk => return Ok(Produced::Disk),
            First::Nothing => return Ok(Produced::Nothing),
        };
        let mut values = Vec::with_capacity(self.functions.len());
        for function in &mut self.functions {
            values.push(match function {
                Running::Framed(framed) => framed.value(at)?,
                Running::Series(series) => series.value(at),
            });
        }
        let made = Document::from(stage.output(document, &values)?).made_of(document);
        work::check()?;
        self.documents.pop();
        for function in &mut self.functions {
            match function {
                Running::Framed(framed) => framed.pass(at),
                Running::Series(series) => series.pass(at),
            }
        }
        self.given += 1;
        Ok(Produced::Document(made))
    }
}

/// The key of a partition: null and missing are one.
pub(super) fn partition_key(value: Option<RawBsonRef<'_>>) -> Result<RawBson> {
    match value {
        Some(RawBsonRef::Array(_)) => Err(type_mismatch(
            "An expression used to partition cannot evaluate to value of type array",
        )),
        value => Ok(value.map_or(RawBson::Null, RawBson::from)),
    }
}
