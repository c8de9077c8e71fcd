//! What is left of a pipeline behind the partitions' parts: steps its run and performs what the run wants.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_query::{Input, PipelineRun, Want};
use pinion_wire::{OpContext, Result};

use super::merge::MergedStream;
use crate::compute::offload;
use crate::interrupt::pause;
use crate::limits::{CORE_BUDGET, PART_BATCH_DOCUMENTS};

/// Where a pipeline's documents come from.
pub(crate) enum Source {
    Read(Box<MergedStream>),
    List(VecDeque<Bytes>),
}

/// The documents that come out of a pipeline.
pub(crate) struct PipelineStream {
    source: Source,
    run: PipelineRun,
}

impl PipelineStream {
    pub(crate) fn new(source: Source, run: PipelineRun) -> PipelineStream {
        PipelineStream { source, run }
    }

    /// The next document.
    pub(crate) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Bytes>> {
        let mut input = Input::Go;
        loop {
            let mut want = self.run.step(input, CORE_BUDGET)?;
            if let Want::Compute = want {
                want = self.compute(ctx).await?;
            }
            input = match want {
                Want::Output(document) => return Ok(Some(document.into_bytes())),
                Want::Done => return Ok(None),
                Want::Document => {
                    pause(ctx).await?;
                    self.next_input(ctx).await?
                }
                Want::Pause | Want::Compute => {
                    pause(ctx).await?;
                    Input::Go
                }
            };
            if self.run.is_fed() {
                // Lets go of the parts and their snapshots.
                self.source = Source::List(VecDeque::new());
            }
        }
    }

    /// A step that takes long, on another thread.
    #[cold]
    async fn compute(&mut self, ctx: &OpContext) -> Result<Want> {
        let run = &mut self.run;
        // In a box, as few commands ever need its room.
        Box::pin(offload(ctx, |stop| run.step_until(stop))).await
    }

    async fn next_input(&mut self, ctx: &OpContext) -> Result<Input> {
        let next = match &mut self.source {
            Source::Read(stream) => stream.next_wanted(ctx, PART_BATCH_DOCUMENTS).await?,
            Source::List(list) => list.pop_front(),
        };
        Ok(next.map_or(Input::End, |document| Input::Document(document.into())))
    }
}
