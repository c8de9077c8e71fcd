//! The parts of a split pipeline, opened: a pipeline over a collection, in a command or in a stage.

use std::rc::Rc;

use pinion_merge::PART_BATCH_DOCUMENTS;
use pinion_query::{Pipeline, SplitPipeline};
use pinion_wire::{OpContext, Result};

use super::partial::run_partial;
use super::{Node, Surroundings};
use crate::acquire::{ReadSource, ReadTarget};
use crate::read::{Opened, ReadRequest, is_by_id, open};

/// A pipeline whose parts are at work, or have done all that they do.
pub(crate) struct OpenedSplit {
    /// What the parts give.
    pub source: Node,
    /// What runs over that.
    pub merger: Pipeline,
    /// The indexes that are read.
    pub indexes: Vec<String>,
}

/// The read in front of a split pipeline.
pub(crate) fn request_of(split: &SplitPipeline, target: ReadTarget) -> ReadRequest {
    let mut request = ReadRequest::new(target, split.matcher.clone());
    request.sort = split.sort.clone();
    request.limit = split.limit.map(|limit| limit as usize);
    request.reads_scores = split.reads_scores();
    request.follow_up_metadata = split.metadata;
    request
}

/// Opens the parts of a pipeline. `first` is how many documents are wanted of the pipeline first;
/// `makes_groups` whether parts may make groups. A pipeline that runs for each document of another
/// one does not try, as it may be in vain; counts are always made.
pub(crate) async fn open_split(
    ctx: &OpContext,
    source: ReadSource,
    mut request: ReadRequest,
    split: SplitPipeline,
    (first, makes_groups): (usize, bool),
    around: &Rc<Surroundings>,
) -> Result<OpenedSplit> {
    let partial = split.partial();
    if let Some(partial) = partial.filter(|partial| makes_groups || partial.only_counts()) {
        let made = run_partial(ctx, source, &request, &partial, &around.memory).await?;
        if let Some(made) = made {
            return Ok(OpenedSplit {
                source: Node::List(made.documents),
                merger: match made.is_unmade {
                    true => split.into_whole(),
                    false => partial.rest,
                },
                indexes: made.indexes,
            });
        }
    }
    let wanted = match split.merger.is_empty() {
        true => first,
        false => PART_BATCH_DOCUMENTS,
    };
    // One document is changed where it is wanted.
    if !is_by_id(&request) {
        request.stages = split.part.clone();
    }
    let Opened {
        stream,
        indexes,
        is_staged,
    } = open(ctx, source, request, wanted).await?;
    Ok(OpenedSplit {
        source: Node::Read(Box::new(stream)),
        merger: match is_staged {
            true => split.merger,
            false => split.into_whole(),
        },
        indexes,
    })
}
