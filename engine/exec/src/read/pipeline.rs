//! What is left of a pipeline behind the partitions' parts, fed by their merged documents.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_catalog::stored_document;
use pinion_query::PipelineRun;
use pinion_wire::{OpContext, Result};

use super::merge::MergedStream;
use crate::compute::compute;
use crate::interrupt::pause;
use crate::limits::{FINISH_STEP, PART_BATCH_DOCUMENTS};

/// Where a pipeline's documents come from.
pub(crate) enum Source {
    Read(Box<MergedStream>),
    List(VecDeque<Bytes>),
}

/// The documents that come out of a pipeline.
pub(crate) struct PipelineStream {
    source: Source,
    run: PipelineRun,
    /// No more documents come in.
    fed: bool,
    /// Nor do any come out but those that are finished.
    finished: bool,
}

impl PipelineStream {
    pub(crate) fn new(source: Source, run: PipelineRun) -> PipelineStream {
        PipelineStream {
            source,
            run,
            fed: false,
            finished: false,
        }
    }

    /// The next document.
    pub(crate) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Bytes>> {
        loop {
            if let Some(document) = self.run.pop() {
                return Ok(Some(Bytes::from(document.into_bytes())));
            }
            if self.finished {
                return Ok(None);
            }
            pause(ctx).await?;
            if self.run.is_held_up() {
                let run = &mut self.run;
                compute(ctx, || run.resume()).await?;
                continue;
            }
            if self.fed {
                let run = &mut self.run;
                self.finished = compute(ctx, || run.finish_some(FINISH_STEP)).await?;
                continue;
            }
            let next = match &mut self.source {
                _ if self.run.is_satisfied() => None,
                Source::Read(stream) => stream.next_wanted(ctx, PART_BATCH_DOCUMENTS).await?,
                Source::List(list) => list.pop_front(),
            };
            match next {
                Some(document) => {
                    let (run, mut taken) = (&mut self.run, false);
                    // Refused for its work it has been taken nevertheless, and waits for its turn.
                    let push = || match std::mem::replace(&mut taken, true) {
                        false => run.push(stored_document(&document)),
                        true => run.resume(),
                    };
                    compute(ctx, push).await?;
                }
                None => {
                    self.fed = true;
                    // Lets go of the parts and their snapshots.
                    self.source = Source::List(VecDeque::new());
                }
            }
        }
    }
}
