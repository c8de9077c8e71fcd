//! The parts of a read on the cores that own its partitions, and the stream that merges them.

use std::sync::Arc;

use pinion_catalog::Placement;
use pinion_clock::Timestamp;
use pinion_merge::{Batch, MergeObserver, MergeSpec, MergedStream, Part, PartCounters, StepSize};
use pinion_runtime::{CoreId, Queue, join_all, submit_to};
use pinion_storage::{PartitionId, storage};
use pinion_wire::{OpContext, Result};

use super::access::Access;
use super::choose::Watch;
use super::part::{PartSpec, PartTable};
use super::report::ReadReport;
use crate::acquire::Renewal;

/// The documents of a read. Lives on the core of the connection, or of the cursor's maker.
pub type ReadStream = MergedStream<CorePart, ReadProgress>;

/// A part on the core that owns its partition, by its number in that core's table.
pub struct CorePart {
    owner: CoreId,
    /// `None` once the part has ended and left the table.
    number: Option<u64>,
}

impl CorePart {
    /// Opens a part and takes its first step in the same message.
    async fn open(
        spec: Arc<PartSpec>,
        partition: PartitionId,
        ctx: OpContext,
        size: StepSize,
    ) -> Result<(CorePart, Batch)> {
        let owner = storage().owner(partition);
        let opening = submit_to(owner, Queue::Foreground, move || async move {
            PartTable::open(spec, partition, &ctx, size).await
        });
        let (number, batch) = opening.await?;
        let number = (!batch.done).then_some(number);
        Ok((CorePart { owner, number }, batch))
    }

    /// A part that only keeps the state of a partition readable.
    async fn pin(partition: PartitionId, at: Timestamp) -> Result<CorePart> {
        let owner = storage().owner(partition);
        let pinning = submit_to(owner, Queue::Foreground, move || async move {
            PartTable::open_pin(partition, at)
        });
        let number = Some(pinning.await?);
        Ok(CorePart { owner, number })
    }
}

impl Part for CorePart {
    async fn step(&mut self, ctx: &OpContext, size: StepSize) -> Result<Batch> {
        let number = self.number.expect("no step follows the last");
        let ctx = ctx.clone();
        let stepping = submit_to(self.owner, Queue::Foreground, move || async move {
            PartTable::step(number, &ctx, size).await
        });
        let batch = stepping.await;
        let is_last = batch.as_ref().map_or(true, |batch| batch.done);
        self.number = self.number.filter(|_| !is_last);
        batch
    }
}

impl Drop for CorePart {
    fn drop(&mut self) {
        let Some(number) = self.number else {
            return;
        };
        // A node that is going down has no parts any more.
        if pinion_runtime::try_core_local::<PartTable>().is_none() {
            return;
        }
        if self.owner == pinion_runtime::core_id() {
            PartTable::close(number);
            return;
        }
        let closing = submit_to(self.owner, Queue::Foreground, move || async move {
            PartTable::close(number)
        });
        pinion_runtime::spawn(Queue::Foreground, closing);
    }
}

/// What has been done of a read, for its report and its plan, and what is kept for it.
pub struct ReadProgress {
    /// The report of the read, for each operation that continues it.
    report: Arc<ReadReport>,
    counters: PartCounters,
    /// Of a cached plan, what it has to keep.
    watch: Option<Watch>,
    /// Parts that only keep a promised snapshot readable.
    #[allow(dead_code, reason = "held for their drop")]
    pins: Vec<CorePart>,
}

impl ReadProgress {
    /// Watches whether the plan, which was in the cache, keeps what it promised.
    pub(super) fn watch(&mut self, watch: Option<Watch>) {
        self.watch = watch;
        self.look_at_plan();
    }

    fn look_at_plan(&mut self) {
        let done = &self.counters;
        self.watch = self.watch.take().filter(|watch| watch.continues(done));
    }

    /// What the parts have done.
    pub(crate) fn counters(&self) -> &PartCounters {
        &self.counters
    }
}

impl MergeObserver for ReadProgress {
    fn stepped(&mut self, ctx: &OpContext, step: &PartCounters) {
        self.counters.add(step);
        self.report.add(step);
        ctx.work().planned(self.report.clone());
        ctx.work().examined(step.keys_examined, step.docs_examined);
        self.look_at_plan();
    }

    fn returned(&mut self, documents: u64) {
        self.report.given(documents);
    }

    fn ended(&mut self) {
        self.report.ended();
    }
}

/// Opens a part on each of the partitions, and the stream over them.
pub(super) async fn open_parts(
    spec: Arc<PartSpec>,
    report: Arc<ReadReport>,
    partitions: Vec<PartitionId>,
    ctx: &OpContext,
    size: StepSize,
    (skip, limit): (usize, Option<usize>),
) -> Result<ReadStream> {
    let merge = MergeSpec {
        descending: spec.descending(),
        repeats: spec.repeats_over_parts(),
        skip,
        limit,
        ends_are_known: spec.sorts() || matches!(spec.access, Access::Id(_)),
    };
    let is_pinned = spec.access.reads_elsewhere() && spec.renewal == Renewal::Never;
    let pins = match is_pinned {
        true => pin_all(spec.collection.placement, spec.at).await?,
        false => Vec::new(),
    };
    let progress = ReadProgress {
        report,
        counters: PartCounters::default(),
        watch: None,
        pins,
    };
    let open = |partition| CorePart::open(spec.clone(), partition, ctx.clone(), size);
    let opened = join_all(partitions.into_iter().map(open)).await;
    let mut stream = ReadStream::new(merge, progress);
    let mut failed = None;
    for opened in opened {
        match opened {
            Ok((part, first)) => stream.add(ctx, part, first),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        // Dropping the stream closes the parts that did open.
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

/// Keeps the state of every partition that the parts may read documents from.
async fn pin_all(placement: Placement, at: Timestamp) -> Result<Vec<CorePart>> {
    let count = match placement {
        Placement::One => 1,
        Placement::Hashed | Placement::Scattered => storage().partition_count(),
    };
    let partitions = (0..count).map(PartitionId);
    let pins = join_all(partitions.map(|partition| CorePart::pin(partition, at))).await;
    pins.into_iter().collect()
}
