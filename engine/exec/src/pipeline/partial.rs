//! Groups, counts and values that each partition makes of its own documents.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinion_bson::RawDocument;
use pinion_merge::{PartCounters, RunNode, step_run};
use pinion_query::{Document, Input, Memory, PartialPipeline, Pipeline, PipelineRun, StageRequest};
use pinion_runtime::{Queue, join_all, submit_to};
use pinion_service::compute::compute;
use pinion_service::interrupt::{is_interruption, pause};
use pinion_service::metrics::metrics;
use pinion_storage::{Key, PartitionId, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::Surroundings;
use crate::acquire::ReadSource;
use crate::limits::{MAX_KEPT_BYTES, MAX_KEPT_DOCUMENTS};
use crate::read::{
    Output, PartSpec, Prepared, ReadReport, ReadRequest, Scan, ScannedDocument, next_documents,
    next_matches, open, prepare,
};

/// What a pipeline in parts has given.
pub(super) struct MadeInParts {
    pub documents: VecDeque<Document>,
    /// The documents are those that were found, in their order, and none of the stages has run: the
    /// result depends on the order, and there are few.
    pub is_unmade: bool,
    /// The indexes that were read.
    pub indexes: Vec<String>,
}

/// Runs a pipeline in parts, up to what is left behind the merge; `None` where it has to run as a
/// whole: because the result depends on the order of the documents, or takes too much memory, or is
/// an error, which is that of the document that comes first.
pub(super) async fn run_partial(
    ctx: &OpContext,
    source: ReadSource,
    request: &ReadRequest,
    partial: &PartialPipeline,
    memory: &Memory,
) -> Result<Option<MadeInParts>> {
    let run = async {
        if partial.only_counts() {
            return count(ctx, source, request, partial, memory).await;
        }
        group(ctx, source, request, partial, memory).await
    };
    match run.await {
        Err(error) if is_interruption(&error) => Err(error),
        Err(_) => Ok(None),
        made => made,
    }
}

/// Counts documents without a look at what they are.
async fn count(
    ctx: &OpContext,
    source: ReadSource,
    request: &ReadRequest,
    partial: &PartialPipeline,
    memory: &Memory,
) -> Result<Option<MadeInParts>> {
    let mut request = request.clone();
    request.output = Output::Count;
    let opened = open(ctx, source, request, usize::MAX).await?;
    let (mut stream, mut total) = (opened.stream, 0);
    while let Some(counted) = stream.next_raw(ctx).await? {
        let counted = counted.first_chunk().expect("a count has eight bytes");
        total += u64::from_le_bytes(*counted);
    }
    let counted = partial.counted(total).into_iter().collect();
    Ok(Some(MadeInParts {
        documents: merge(ctx, counted, partial, memory).await?,
        is_unmade: false,
        indexes: opened.indexes,
    }))
}

async fn group(
    ctx: &OpContext,
    source: ReadSource,
    request: &ReadRequest,
    partial: &PartialPipeline,
    memory: &Memory,
) -> Result<Option<MadeInParts>> {
    let needs_order = partial.needs_order;
    let grouped = on_parts(ctx, source, request, needs_order, |count| {
        let (stages, memory) = (partial.part.clone(), part_memory(memory, count));
        move |found, partition, ctx: OpContext| async move {
            let part = GroupedPart {
                found,
                stages,
                needs_order,
                memory,
            };
            part.documents(partition, &ctx).await
        }
    });
    let Some((parts, indexes)) = grouped.await? else {
        return Ok(None);
    };
    let (mut made, mut kept) = (VecDeque::new(), Some(Vec::new()));
    for part in parts {
        made.extend(part.made);
        kept = kept.zip(part.kept).map(|(mut all, own)| {
            all.extend(own);
            all
        });
    }
    let merged = merge(ctx, made, partial, memory).await;
    Ok(match (merged, kept) {
        (Err(error), _) if is_interruption(&error) => return Err(error),
        (Ok(documents), _) => Some(MadeInParts {
            documents,
            is_unmade: false,
            indexes,
        }),
        (Err(_), Some(mut kept)) => {
            kept.sort_by(|a, b| a.order.cmp(&b.order));
            Some(MadeInParts {
                documents: kept.into_iter().map(|found| found.document).collect(),
                is_unmade: true,
                indexes,
            })
        }
        (Err(_), None) => None,
    })
}

/// The memory of one of `parts` parts. If one needs more, the pipeline groups undivided instead,
/// and spills.
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
    made: VecDeque<Document>,
    partial: &PartialPipeline,
    memory: &Memory,
) -> Result<VecDeque<Document>> {
    let run = PipelineRun::new(partial.merge.clone(), memory);
    let mut node = RunNode::<Surroundings>::over(made, run);
    let mut documents = VecDeque::new();
    while let Some(document) = node.next(ctx).await? {
        documents.push_back(document);
    }
    Ok(documents)
}

/// What one partition does.
struct GroupedPart {
    found: FoundPart,
    stages: Pipeline,
    /// The stages need what orders the documents among those of all parts.
    needs_order: bool,
    memory: Memory,
}

/// What one partition has made.
struct Grouped {
    made: Vec<Document>,
    /// What it was made of, if that is little.
    kept: Option<Vec<KeptDocument>>,
}

/// A document as it was found, with what orders it among those of all partitions.
struct KeptDocument {
    order: Key,
    document: Document,
}

impl GroupedPart {
    async fn documents(&self, partition: PartitionId, ctx: &OpContext) -> Result<Grouped> {
        let mut walk = self.found.open(partition);
        walk.gives_order = self.needs_order;
        // The order of a read that goes backwards would have to be turned over.
        walk.kept = (!self.found.spec.descending()).then(Vec::new);
        let mut run = PipelineRun::new(self.stages.clone(), &self.memory);
        let mut given = Vec::new();
        let mut input = Input::Go;
        loop {
            input = match step_run(&mut run, input, ctx).await? {
                StageRequest::Document => match walk.next(ctx).await? {
                    documents if documents.is_empty() => Input::End,
                    documents => Input::Documents(documents),
                },
                StageRequest::Output(document) => {
                    pause(ctx).await?;
                    given.push(document);
                    Input::Go
                }
                StageRequest::Pause | StageRequest::Compute => {
                    pause(ctx).await?;
                    Input::Go
                }
                StageRequest::Done => {
                    let kept = walk.kept.take();
                    return Ok(Grouped { made: given, kept });
                }
                StageRequest::Disk(_) => unreachable!("a part may not spill"),
            };
        }
    }
}

/// Has every partition put what it finds into a `T` of its own; `None` where that fails, and the
/// caller then does it document by document: an error is that of the first document then.
pub(crate) async fn collect_partial<T: Send + 'static>(
    ctx: &OpContext,
    source: ReadSource,
    request: &ReadRequest,
    new: impl Fn() -> T + Clone + Send + 'static,
    add: impl Fn(&mut T, &RawDocument) -> Result<()> + Clone + Send + Sync + 'static,
) -> Result<Option<Vec<T>>> {
    let collected = on_parts(ctx, source, request, false, |_| {
        let (new, add) = (new.clone(), add.clone());
        move |found: FoundPart, partition, ctx: OpContext| async move {
            let mut walk = found.open(partition);
            let mut collected = new();
            loop {
                let documents = walk.next(&ctx).await?;
                if documents.is_empty() {
                    return Ok(collected);
                }
                let (collected, mut added) = (&mut collected, 0);
                // What is refused for its work continues with the document that it was refused at.
                let add_all = || {
                    for document in documents.range(added..) {
                        add(collected, document)?;
                        added += 1;
                    }
                    Ok(())
                };
                compute(&ctx, add_all).await?;
            }
        }
    });
    match collected.await {
        Err(error) if is_interruption(&error) => Err(error),
        Err(_) => Ok(None),
        Ok(collected) => Ok(collected.map(|(parts, _)| parts)),
    }
}

/// Has every partition do its part of a read, and gives what each has made, with the indexes that
/// were read; `None` where parts would find documents of each other, or need the order of documents
/// that come in a descending one.
async fn on_parts<T, F, Fut>(
    ctx: &OpContext,
    source: ReadSource,
    request: &ReadRequest,
    needs_order: bool,
    part_of: impl Fn(usize) -> F,
) -> Result<Option<(Vec<T>, Vec<String>)>>
where
    T: Send + 'static,
    F: FnOnce(FoundPart, PartitionId, OpContext) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T>> + 'static,
{
    let at = source.timestamp(ctx).await?;
    let mut request = request.clone();
    request.take_source(ctx, source);
    request.restrict();
    let Prepared {
        spec,
        partitions,
        indexes,
        report,
        ..
    } = prepare(ctx, &Arc::new(request), at).await?;
    if spec.access.reads_elsewhere() || (needs_order && spec.descending()) {
        return Ok(None);
    }
    let (count, stop) = (partitions.len(), Arc::new(AtomicBool::new(false)));
    let parts = join_all(partitions.into_iter().map(|partition| {
        let found = FoundPart {
            spec: spec.clone(),
            report: report.clone(),
            stop: stop.clone(),
        };
        let (part, ctx, stop) = (part_of(count), ctx.clone(), stop.clone());
        submit_to(
            storage().owner(partition),
            Queue::Foreground,
            move || async move {
                let made = part(found, partition, ctx).await;
                if made.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                made
            },
        )
    }));
    let made: Result<Vec<T>> = parts.await.into_iter().collect();
    Ok(Some((made?, indexes)))
}

/// What one partition finds.
struct FoundPart {
    spec: Arc<PartSpec>,
    report: Arc<ReadReport>,
    /// Set once a part has failed: the others need not continue.
    stop: Arc<AtomicBool>,
}

impl FoundPart {
    fn open(&self, partition: PartitionId) -> FoundWalk<'_> {
        let owned = storage().partition(partition).expect("asked its owner");
        FoundWalk {
            scan: Scan::open(&self.spec, owned),
            part: self,
            counters: PartCounters::default(),
            gives_order: false,
            kept: None,
            kept_bytes: 0,
        }
    }
}

/// The walk over what one partition finds.
struct FoundWalk<'p> {
    part: &'p FoundPart,
    scan: Scan,
    counters: PartCounters,
    /// Documents come with what orders them.
    gives_order: bool,
    /// All documents so far, while they are few.
    kept: Option<Vec<KeptDocument>>,
    kept_bytes: usize,
}

impl FoundWalk<'_> {
    /// The next documents; none at the end.
    async fn next(&mut self, ctx: &OpContext) -> Result<VecDeque<Document>> {
        if self.part.stop.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorCode::INTERNAL_ERROR,
                "another part has failed",
            ));
        }
        let (scan, spec, counters) = (&mut self.scan, &self.part.spec, &mut self.counters);
        let mut documents = VecDeque::new();
        if self.kept.is_some() || self.gives_order {
            let mut found = VecDeque::new();
            next_matches(scan, spec, ctx, counters, usize::MAX, &mut found).await?;
            self.keep(&found);
            documents.extend(found.into_iter().map(|found| {
                let document = Document::from(found.document);
                match self.gives_order {
                    true => document.with_order(&found.order),
                    false => document,
                }
            }));
        } else {
            next_documents(scan, spec, ctx, counters, &mut documents).await?;
        }
        if documents.is_empty() {
            let (done, counted) = (&self.counters, &metrics().counters);
            ctx.work().examined(done.keys_examined, done.docs_examined);
            self.part.report.add(done);
            self.part.report.ended();
            counted.keys_examined.add(done.keys_examined);
            counted.docs_examined.add(done.docs_examined);
        }
        Ok(documents)
    }

    /// Keeps these documents too, unless all are many then.
    fn keep(&mut self, found: &VecDeque<ScannedDocument>) {
        let Some(kept) = &mut self.kept else {
            return;
        };
        let bytes: usize = found.iter().map(|found| found.document.len()).sum();
        self.kept_bytes += bytes;
        kept.extend(found.iter().map(|found| KeptDocument {
            order: found.order.clone(),
            document: Document::from(found.document.clone()),
        }));
        if kept.len() > MAX_KEPT_DOCUMENTS || self.kept_bytes > MAX_KEPT_BYTES {
            self.kept = None;
        }
    }
}
