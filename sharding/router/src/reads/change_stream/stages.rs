//! What is done with an event at the router: its document is looked up, the client's stages see
//! it, and it is taken apart if it is too large.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::RawDocument;
use pinion_merge::step_run;
use pinion_query::{
    Document, Input, MAX_CHANGE_EVENT_BYTES, PipelineRun, ResumeToken, StageRequest,
    check_event_id, split_event,
};
use pinion_service::compute::compute_bytes;
use pinion_service::interrupt::pause;
use pinion_service::limits::CORE_BUDGET;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Result};

use super::look_up::with_full_document;

/// The stages of a stream that run here.
pub(super) struct RouterStages {
    /// They want a document between two calls.
    run: PipelineRun,
    splits: bool,
    /// The client's command, where documents are looked up.
    looks_up: Option<Invocation>,
}

impl RouterStages {
    /// Stages that have seen nothing.
    ///
    /// # Errors
    /// Those of the stages.
    pub(super) fn new(
        mut run: PipelineRun,
        splits: bool,
        looks_up: Option<Invocation>,
    ) -> Result<RouterStages> {
        let nothing = run.step(Input::Go, CORE_BUDGET)?;
        assert!(
            matches!(nothing, StageRequest::Document),
            "no stage has anything yet"
        );
        Ok(RouterStages {
            run,
            splits,
            looks_up,
        })
    }

    /// What the client gets of an event, of which it has seen some parts.
    ///
    /// # Errors
    /// Those of the stages and of the look-up; the token was taken away, or the event is not split
    /// any more.
    pub(super) async fn apply(
        &mut self,
        ctx: &OpContext,
        event: Bytes,
        token: &ResumeToken,
        parts_seen: u32,
    ) -> Result<VecDeque<Bytes>> {
        let event = match &self.looks_up {
            Some(cmd) => with_full_document(cmd, ctx, event, token).await?,
            None => event,
        };
        let Some(document) = self.through(ctx, Document::from(event)).await? else {
            return Ok(VecDeque::new());
        };
        let bytes = document.into_bytes();
        let document = RawDocument::from_bytes(&bytes);
        let document = document.map_err(|error| Error::internal(error.to_string()))?;
        check_event_id(document, &token.to_document())?;
        let is_large = self.splits && bytes.len() > MAX_CHANGE_EVENT_BYTES;
        match is_large {
            true => {
                let split = || split_event(document, token, parts_seen, MAX_CHANGE_EVENT_BYTES);
                Ok(compute_bytes(bytes.len(), split).await?.into())
            }
            false if parts_seen > 0 => Err(Error::new(
                ErrorCode::CHANGE_STREAM_FATAL_ERROR,
                "cannot resume stream; the event that was resumed from in the middle is not split any more",
            )),
            false => Ok(VecDeque::from([bytes])),
        }
    }

    async fn through(&mut self, ctx: &OpContext, event: Document) -> Result<Option<Document>> {
        let mut made = None;
        let mut input = Input::Document(event);
        loop {
            let want = step_run(&mut self.run, input, ctx).await?;
            input = Input::Go;
            match want {
                StageRequest::Output(document) => {
                    assert!(made.replace(document).is_none(), "one event makes one");
                }
                StageRequest::Document => return Ok(made),
                StageRequest::Pause | StageRequest::Compute => pause(ctx).await?,
                StageRequest::Disk(_) | StageRequest::Done => {
                    unreachable!("no stage that may follow a change stream keeps or ends anything")
                }
            }
        }
    }
}
