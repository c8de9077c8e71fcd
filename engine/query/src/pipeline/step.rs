//! What a pipeline's run exchanges with its stages at work, and with the caller that steps it.

use std::collections::VecDeque;

use pinion_wire::Result;

use super::Document;
use crate::spill::{DiskReply, DiskRequest};

/// What a run needs before it continues, or what it has done.
#[derive(Debug)]
pub enum StageRequest {
    /// The next document in front of the pipeline: [`Input::Document`], [`Input::Documents`] with
    /// others that follow it, or [`Input::End`] where none follows.
    Document,
    /// Nothing: this document has passed all stages.
    Output(Document),
    /// Nothing, but others may run before the next step.
    Pause,
    /// Something to be kept on disk, or to be read back: [`Input::Disk`].
    Disk(DiskRequest),
    /// More time than a step on a core may take: [`super::PipelineRun::step_until`] comes next, on
    /// another thread.
    Compute,
    /// Nothing any more: all documents have been given.
    Done,
}

/// What a run is given with its next step.
#[derive(Debug)]
pub enum Input {
    /// Nothing was wanted.
    Go,
    /// The document that was wanted.
    Document(Document),
    /// That document and those that follow it, which are taken before any other is wanted.
    Documents(VecDeque<Document>),
    /// There is no such document, nor will there be one.
    End,
    /// What was asked of the disk.
    Disk(DiskReply),
}

/// A stage at work.
///
/// No call does more than one document's work. One that fails because its work was refused (see
/// [`crate::work`]) has changed nothing, and is made again.
pub(crate) trait Step: std::fmt::Debug + Send {
    /// Takes the next document.
    fn take(&mut self, document: &Document) -> Result<Accepted>;

    /// No more documents come. What the stage held back is asked for with [`Step::give`] then.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    /// The next document made of what was taken; called after [`Accepted::Gives`] and after the
    /// end, until there is nothing.
    fn give(&mut self) -> Result<Produced> {
        Ok(Produced::Nothing)
    }

    /// What has to be done on disk; called after [`Accepted::Spills`] and [`Produced::Disk`] until
    /// there is nothing.
    fn disk(&mut self) -> Result<OnDisk> {
        Ok(OnDisk::Nothing)
    }

    /// What [`Step::disk`] asked for.
    fn reply(&mut self, _: DiskReply) -> Result<()> {
        unreachable!("only what is asked for is replied to")
    }
}

/// What a stage does with a document that it takes.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// Nothing is passed on for now.
    Kept,
    /// The document is passed on as it is.
    Passed,
    /// The document is passed on as it is, and no further one will be.
    PassedLast,
    /// Nothing is passed on any more, for this one or for a further one.
    KeptLast,
    /// This one is passed on in its place.
    Made(Document),
    /// What is passed on is asked for with [`Step::give`].
    Gives,
    /// Nothing is passed on for now, and memory is full: [`Step::disk`] comes first.
    Spills,
}

/// What a stage has to give.
#[derive(Debug)]
pub(crate) enum Produced {
    Document(Document),
    /// Nothing yet: the stage was at work, and is asked again.
    Working,
    /// Nothing yet: [`Step::disk`] comes first.
    Disk,
    /// Nothing, before it takes a further document.
    Nothing,
}

/// What a stage asks of the disk.
#[derive(Debug)]
pub(crate) enum OnDisk {
    Request(DiskRequest),
    /// Nothing yet: the stage was at work, and is asked again.
    Working,
    /// Nothing.
    Nothing,
}

impl From<Option<DiskRequest>> for OnDisk {
    fn from(request: Option<DiskRequest>) -> OnDisk {
        request.map_or(OnDisk::Nothing, OnDisk::Request)
    }
}
