//! Stages that need nothing but documents: steps their run and performs what it wants.

use std::collections::VecDeque;

use pinion_query::{Document, Input, PipelineRun, StageRequest};
use pinion_service::compute::offload;
use pinion_service::cursors::Documents;
use pinion_service::interrupt::pause;
use pinion_service::limits::CORE_BUDGET;
use pinion_service::spill::SpillFile;
use pinion_wire::{Error, OpContext, Result};

use super::{Buffered, Node, Sources};
use crate::limits::{PART_BATCH_DOCUMENTS, RUN_BATCH_DOCUMENTS};

/// Takes one step of a run: here, or on another thread if it takes long.
///
/// # Errors
/// Those of the stages; the operation is stopped.
pub async fn step_run(
    run: &mut PipelineRun,
    input: Input,
    ctx: &OpContext,
) -> Result<StageRequest> {
    match run.step(input, CORE_BUDGET)? {
        // In a box, as few commands ever need its room.
        StageRequest::Compute => Box::pin(offload(ctx, |stop| run.step_until(stop))).await,
        want => Ok(want),
    }
}

/// A run of stages, with what is before it.
pub struct RunNode<S: Sources> {
    source: Node<S>,
    run: PipelineRun,
    /// Comes behind the documents that the run has.
    failed: Option<Error>,
    file: SpillFile,
}

impl<S: Sources> RunNode<S> {
    pub(super) fn new(source: Node<S>, run: PipelineRun) -> RunNode<S> {
        RunNode {
            source,
            run,
            failed: None,
            file: SpillFile::default(),
        }
    }

    /// A run over these documents.
    pub fn over(documents: VecDeque<Document>, run: PipelineRun) -> RunNode<S> {
        RunNode::new(Node::List(documents), run)
    }

    /// The next document.
    ///
    /// # Errors
    /// Those of the source, of the stages and of the disk; the operation is stopped.
    pub async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        let mut input = Input::Go;
        loop {
            let want = step_run(&mut self.run, input, ctx).await;
            self.report_unused();
            let want = want?;
            // Also before a document moves on: a stage that has seen all its input gives one after
            // the other, and the caller that collects them does not yield.
            pause(ctx).await?;
            input = match want {
                StageRequest::Output(document) => return Ok(Some(document)),
                StageRequest::Done => return Ok(None),
                StageRequest::Document => self.next_input(ctx).await?,
                StageRequest::Pause | StageRequest::Compute => Input::Go,
                StageRequest::Disk(request) => {
                    // In a box, as few commands ever need its room.
                    Input::Disk(Box::pin(self.file.perform(ctx, request)).await?)
                }
            };
            if self.run.is_fed() {
                // Releases the parts and their snapshots.
                self.source = Node::nothing();
            }
        }
    }

    fn report_unused(&mut self) {
        if let Node::Read(read) = &mut self.source {
            read.set_unused(self.run.unused() + usize::from(self.failed.is_some()));
        }
    }

    async fn next_input(&mut self, ctx: &OpContext) -> Result<Input> {
        let next = match &mut self.source {
            Node::Read(_) => return self.next_batch(ctx).await,
            Node::List(list) => list.pop_front(),
            other => Box::pin(other.next(ctx)).await?,
        };
        Ok(next.map_or(Input::End, Input::Document))
    }

    /// The next document of a read, with those that are there behind it.
    async fn next_batch(&mut self, ctx: &OpContext) -> Result<Input> {
        if let Some(error) = self.failed.take() {
            self.report_unused();
            return Err(error);
        }
        let Node::Read(read) = &mut self.source else {
            return Ok(Input::End);
        };
        let Some(first) = read.next(ctx, PART_BATCH_DOCUMENTS).await? else {
            return Ok(Input::End);
        };
        let mut batch = VecDeque::from([Document::from(first)]);
        while batch.len() < RUN_BATCH_DOCUMENTS {
            match read.next_buffered() {
                Some(Ok(document)) => batch.push_back(document.into()),
                Some(Err(error)) => {
                    self.failed = Some(error);
                    break;
                }
                None => break,
            }
        }
        Ok(Input::Documents(batch))
    }
}
