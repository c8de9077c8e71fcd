//! A pipeline whose first stages every partition runs over its own documents, beside them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinion_catalog::from_read_error;
use pinion_query::{Division, Document, Input, Memory, Pipeline, PipelineRun, Want};
use pinion_runtime::{Queue, join_all, submit_to};
use pinion_storage::{PartitionId, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::item::PartCounters;
use super::part::{Output, PartSpec, next_match};
use super::pipeline::RunNode;
use super::request::{Prepared, ReadRequest, open, prepare};
use super::scan::Scan;
use crate::acquire::ReadSource;
use crate::compute::offload;
use crate::interrupt::{is_interruption, pause};
use crate::limits::CORE_BUDGET;
use crate::state::state;

/// What a pipeline in parts has given.
pub(crate) struct Divided {
    pub documents: VecDeque<Document>,
    /// The indexes that were read.
    pub indexes: Vec<String>,
}

/// Runs a pipeline in parts, up to what is left behind the merge; `None` where it has to run as a whole: because the
/// result depends on the order of the documents, or takes too much memory, or is an error, which is that of the document
/// that comes first.
pub(crate) async fn run_divided(
    ctx: &OpContext,
    source: ReadSource,
    request: &ReadRequest,
    division: &Division,
    memory: &Memory,
) -> Result<Option<Divided>> {
    let run = async {
        if division.only_counts() {
            return count(ctx, source, request, division, memory).await;
        }
        group(ctx, source, request, division, memory).await
    };
    match run.await {
        Err(error) if is_interruption(&error) => Err(error),
        Err(_) => Ok(None),
        divided => divided,
    }
}

/// Counts documents without a look at what they are.
async fn count(
    ctx: &OpContext,
    source: ReadSource,
    request: &ReadRequest,
    division: &Division,
    memory: &Memory,
) -> Result<Option<Divided>> {
    let mut request = request.clone();
    request.output = Output::Count;
    let opened = open(ctx, source, request, usize::MAX).await?;
    let (mut stream, mut total) = (opened.stream, 0);
    while let Some(counted) = stream.next_raw(ctx).await? {
        let counted = counted.first_chunk().expect("a count has eight bytes");
        total += u64::from_le_bytes(*counted);
    }
    let counted = division.counted(total).into_iter().collect();
    Ok(Some(Divided {
        documents: merge(ctx, counted, division, memory).await?,
        indexes: opened.indexes,
    }))
}

async fn group(
    ctx: &OpContext,
    source: ReadSource,
    request: &ReadRequest,
    division: &Division,
    memory: &Memory,
) -> Result<Option<Divided>> {
    let at = source.timestamp(ctx).await?;
    let Prepared {
        spec,
        partitions,
        indexes,
        ..
    } = prepare(ctx, request, at).await?;
    // The same document may come from several parts then, or be read where it is not.
    if spec.access.reads_elsewhere() {
        return Ok(None);
    }
    let memory = part_memory(memory, partitions.len());
    let stop = Arc::new(AtomicBool::new(false));
    let parts = join_all(partitions.into_iter().map(|partition| {
        let part = GroupedPart {
            spec: spec.clone(),
            stages: division.part.clone(),
            memory: memory.clone(),
            stop: stop.clone(),
        };
        let ctx = ctx.clone();
        submit_to(
            storage().owner(partition),
            Queue::Foreground,
            move || async move { part.run(partition, &ctx).await },
        )
    }));
    let mut partial = VecDeque::new();
    for part in parts.await {
        let (documents, counters) = part?;
        ctx.work()
            .examined(counters.keys_examined, counters.docs_examined);
        partial.extend(documents);
    }
    Ok(Some(Divided {
        documents: merge(ctx, partial, division, &memory).await?,
        indexes,
    }))
}

/// What one of so many parts may hold. What does not suffice for it is grouped as a whole, where groups are spilled.
fn part_memory(memory: &Memory, parts: usize) -> Memory {
    let mut memory = memory.clone();
    let parts = parts.max(1);
    memory.disk = false;
    memory.limits.group /= parts;
    memory.limits.hash_agg /= parts;
    memory
}

/// Puts together what the parts know.
async fn merge(
    ctx: &OpContext,
    partial: VecDeque<Document>,
    division: &Division,
    memory: &Memory,
) -> Result<VecDeque<Document>> {
    let run = PipelineRun::new(division.merge.clone(), memory);
    let mut node = RunNode::over(partial, run);
    let mut documents = VecDeque::new();
    while let Some(document) = node.next(ctx).await? {
        documents.push_back(document);
    }
    Ok(documents)
}

/// What one partition does.
struct GroupedPart {
    spec: Arc<PartSpec>,
    stages: Pipeline,
    memory: Memory,
    /// Set once a part has failed: the others need not go on.
    stop: Arc<AtomicBool>,
}

impl GroupedPart {
    async fn run(
        self,
        partition: PartitionId,
        ctx: &OpContext,
    ) -> Result<(Vec<Document>, PartCounters)> {
        let mut counters = PartCounters::default();
        let result = self.documents(partition, ctx, &mut counters).await;
        let counted = &state().metrics.counters;
        counted.keys_examined.add(counters.keys_examined);
        counted.docs_examined.add(counters.docs_examined);
        if result.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok((result?, counters))
    }

    async fn documents(
        &self,
        partition: PartitionId,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<Vec<Document>> {
        let owned = storage().partition(partition).expect("asked its owner");
        let _pin = owned.pin(self.spec.at).map_err(from_read_error)?;
        let mut scan = Scan::open(&self.spec, owned);
        let mut run = PipelineRun::new(self.stages.clone(), &self.memory);
        let mut given = Vec::new();
        let mut input = Input::Go;
        loop {
            let mut want = run.step(input, CORE_BUDGET)?;
            if let Want::Compute = want {
                let run = &mut run;
                // In a box, as few commands ever need its room.
                want = Box::pin(offload(ctx, |stop| run.step_until(stop))).await?;
            }
            input = match want {
                Want::Document => {
                    if self.stop.load(Ordering::Relaxed) {
                        return Err(stopped());
                    }
                    let found = next_match(&mut scan, &self.spec, ctx, counters).await?;
                    found.map_or(Input::End, |found| {
                        Input::Document(Document::from(found.document))
                    })
                }
                Want::Output(document) => {
                    pause(ctx).await?;
                    given.push(document);
                    Input::Go
                }
                Want::Pause | Want::Compute => {
                    pause(ctx).await?;
                    Input::Go
                }
                Want::Done => return Ok(given),
                Want::Disk(_) => unreachable!("a part may not spill"),
            };
        }
    }
}

fn stopped() -> Error {
    Error::new(ErrorCode::INTERNAL_ERROR, "another part has failed")
}
