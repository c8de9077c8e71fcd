//! Stages of a pipeline that a part runs over the documents that it finds.

use std::collections::VecDeque;

use pinion_merge::{PartCounters, step_run};
use pinion_query::{Document, Input, PartStages, PipelineRun, StageRequest};
use pinion_service::interrupt::{is_interruption, pause};
use pinion_storage::Key;
use pinion_wire::{Error, OpContext, Result};

use super::matches::{next_matches, yield_if_due};
use super::part::{PartSpec, finish, metadata_of};
use super::scan::{Scan, ScannedDocument};
use crate::limits::FOUND_GROWTH;

/// The stages of a part at work.
pub(super) struct StagedRun {
    run: PipelineRun,
    /// Documents that were found and not looked at yet.
    found: VecDeque<ScannedDocument>,
    /// How many documents the next round finds at most: under a limit that starts at one and grows.
    most: usize,
    grows: bool,
    /// Orders the document that the stages are at, and what they make of it.
    order: Key,
    ended: bool,
}

/// What the stages make of a document; the error is the document's.
pub(super) struct Made {
    /// Orders the document among those of all parts. Several that are made of one have the same.
    pub order: Key,
    pub document: Result<Document, Box<Error>>,
}

impl StagedRun {
    pub(super) fn new(stages: &PartStages, spec: &PartSpec) -> StagedRun {
        // What a transaction reads in one round is given in one step, as it may write before the
        // next. So where more may come of a document than a step has room for, each is found alone.
        let is_alone = spec.unit.is_some() && stages.computes() && stages.sort().is_none();
        StagedRun {
            run: PipelineRun::new(stages.before().clone(), &spec.memory),
            found: VecDeque::new(),
            most: match is_alone || stages.keep().is_some() {
                true => 1,
                false => usize::MAX,
            },
            grows: !is_alone,
            order: Key::new(),
            ended: false,
        }
    }

    /// Whether documents were found that are to be given before the step ends.
    pub(super) fn is_waiting(&self, spec: &PartSpec) -> bool {
        spec.unit.is_some() && !self.found.is_empty()
    }

    /// The next document that comes out of the stages; `None` at the end of the scan. Nothing
    /// follows one that has an error.
    ///
    /// # Errors
    /// Those of the scan and of its filter; the operation is stopped.
    pub(super) async fn next(
        &mut self,
        scan: &mut Scan,
        spec: &PartSpec,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<Option<Made>> {
        let mut input = Input::Go;
        loop {
            let want = match step_run(&mut self.run, input, ctx).await {
                Ok(want) => want,
                Err(error) if is_interruption(&error) => return Err(error),
                Err(error) => return Ok(Some(self.made(Err(Box::new(error))))),
            };
            input = match want {
                StageRequest::Output(document) => {
                    // Many may be made of one document, and the caller does not yield.
                    yield_if_due(scan, ctx).await?;
                    return Ok(Some(self.made(Ok(document))));
                }
                StageRequest::Document => match self.next_found(scan, spec, ctx, counters).await? {
                    None => Input::End,
                    Some(Ok(document)) => Input::Document(document),
                    Some(Err(error)) if is_interruption(&error) => return Err(*error),
                    Some(Err(error)) => return Ok(Some(self.made(Err(error)))),
                },
                StageRequest::Pause | StageRequest::Compute => {
                    scan.suspended();
                    pause(ctx).await?;
                    Input::Go
                }
                StageRequest::Done => return Ok(None),
                StageRequest::Disk(_) => unreachable!("the stages of a part hold no documents"),
            };
        }
    }

    fn made(&self, document: Result<Document, Box<Error>>) -> Made {
        Made {
            order: self.order.clone(),
            document,
        }
    }

    /// The next document in front of the stages, or why it has no form in which it can be given.
    async fn next_found(
        &mut self,
        scan: &mut Scan,
        spec: &PartSpec,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<Option<Result<Document, Box<Error>>>> {
        if self.found.is_empty() {
            assert!(!self.ended, "the scan is asked again after its end");
            next_matches(scan, spec, ctx, counters, self.most, &mut self.found).await?;
            if self.grows {
                self.most = self.most.saturating_mul(FOUND_GROWTH);
            }
        }
        let Some(found) = self.found.pop_front() else {
            self.ended = true;
            return Ok(None);
        };
        yield_if_due(scan, ctx).await?;
        let metadata = metadata_of(spec, &found, ctx).await?;
        let item = finish(spec, found, &metadata, ctx).await?;
        self.order = item.order;
        Ok(Some(item.document.map(Document::from)))
    }
}
