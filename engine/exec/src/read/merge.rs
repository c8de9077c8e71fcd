//! Merges the parts of a read by their order keys.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use pinion_catalog::Placement;
use pinion_runtime::{CoreId, Queue, join_all};
use pinion_service::interrupt::check;
use pinion_storage::{Key, PartitionId, storage};
use pinion_wire::{OpContext, Result};
use rustc_hash::FxHashSet;

use super::access::Access;
use super::choose::Watch;
use super::item::{Batch, Item, PartCounters};
use super::part::{PartSpec, PartTable};
use super::report::ReadReport;
use crate::acquire::Renewal;
use crate::limits::PART_BATCH_DOCUMENTS;

struct Part {
    owner: CoreId,
    /// The part's number in its owner's table.
    number: u64,
    buffer: VecDeque<Item>,
    done: bool,
}

/// The documents of all parts in one order. Lives on the core of the connection, or of the cursor's
/// maker.
pub struct MergedStream {
    parts: Vec<Part>,
    descending: bool,
    skip: usize,
    limit: Option<usize>,
    counters: PartCounters,
    given: u64,
    /// The report of the read, for each operation that continues it.
    report: Arc<ReadReport>,
    /// Documents already given, where the same one may come from several parts.
    seen: Option<FxHashSet<Key>>,
    /// Parts that only keep a promised snapshot readable.
    pins: Vec<(CoreId, u64)>,
    /// The parts sorted in memory, so they know when nothing follows.
    sorted: bool,
    by_id: bool,
    /// Of a cached plan, what it has to keep.
    watch: Option<Watch>,
}

impl MergedStream {
    /// Opens a part on each of the partitions and takes its first step there in the same message.
    pub(crate) async fn open(
        spec: Arc<PartSpec>,
        report: Arc<ReadReport>,
        partitions: Vec<PartitionId>,
        ctx: &OpContext,
        step: StepSize,
        skip: usize,
        limit: Option<usize>,
    ) -> Result<MergedStream> {
        let descending = spec.descending();
        let mut stream = MergedStream {
            parts: Vec::with_capacity(partitions.len()),
            descending,
            skip,
            limit,
            counters: PartCounters::default(),
            given: 0,
            report,
            seen: spec.repeats_over_parts().then(FxHashSet::default),
            pins: Vec::new(),
            sorted: spec.sorts(),
            by_id: matches!(spec.access, Access::Id(_)),
            watch: None,
        };
        if spec.access.reads_elsewhere() && spec.renewal == Renewal::Never {
            stream.pin_all(&spec).await?;
        }
        let opened = join_all(partitions.into_iter().map(|partition| {
            let owner = storage().owner(partition);
            let (spec, ctx) = (spec.clone(), ctx.clone());
            async move {
                let opened =
                    pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
                        PartTable::open(spec, partition, &ctx, step).await
                    })
                    .await;
                (owner, opened)
            }
        }))
        .await;
        let mut failed = None;
        for (owner, opened) in opened {
            match opened {
                Ok((number, batch)) => {
                    stream.count(ctx, &batch.counters);
                    stream.parts.push(Part {
                        owner,
                        number,
                        buffer: batch.items.into(),
                        done: batch.done,
                    });
                }
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
    async fn pin_all(&mut self, spec: &PartSpec) -> Result<()> {
        let count = if spec.collection.placement == Placement::One {
            1
        } else {
            storage().partition_count()
        };
        let at = spec.at;
        let opened = join_all((0..count).map(PartitionId).map(|partition| async move {
            let owner = storage().owner(partition);
            (
                owner,
                pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
                    PartTable::open_pin(partition, at)
                })
                .await,
            )
        }))
        .await;
        let mut failed = None;
        for (owner, pin) in opened {
            match pin {
                Ok(number) => self.pins.push((owner, number)),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Takes over what a step of a part did.
    fn count(&mut self, ctx: &OpContext, step: &PartCounters) {
        self.counters.add(step);
        self.report.add(step);
        ctx.work().planned(self.report.clone());
        ctx.work().examined(step.keys_examined, step.docs_examined);
        self.look_at_plan();
    }

    /// Watches whether the plan, which was in the cache, keeps what it promised.
    pub(super) fn watch(&mut self, watch: Option<Watch>) {
        self.watch = watch;
        self.look_at_plan();
    }

    fn look_at_plan(&mut self) {
        let done = &self.counters;
        self.watch = self.watch.take().filter(|watch| watch.continues(done));
    }

    /// Steps every part that has nothing buffered.
    async fn refill(&mut self, ctx: &OpContext, step: StepSize) -> Result<()> {
        let starved: Vec<usize> = (0..self.parts.len())
            .filter(|i| self.parts[*i].buffer.is_empty() && !self.parts[*i].done)
            .collect();
        if starved.is_empty() {
            return Ok(());
        }
        let steps = join_all(starved.iter().map(|i| {
            let (owner, number, ctx) = (self.parts[*i].owner, self.parts[*i].number, ctx.clone());
            pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
                PartTable::step(number, &ctx, step).await
            })
        }))
        .await;
        let mut failed = None;
        for (i, result) in starved.into_iter().zip(steps) {
            let part = &mut self.parts[i];
            match result {
                Ok(Batch {
                    items,
                    done,
                    counters,
                }) => {
                    assert!(
                        done || !items.is_empty(),
                        "a part that is not done makes progress"
                    );
                    part.buffer = items.into();
                    part.done = done;
                    self.count(ctx, &counters);
                }
                Err(error) => {
                    part.done = true;
                    failed = failed.or(Some(error));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The next document in order, or `None` at the end.
    pub(crate) async fn next(&mut self, ctx: &OpContext, step: StepSize) -> Result<Option<Bytes>> {
        let next = self.next_ordered(ctx, step).await?;
        Ok(next.map(|(_, document)| document))
    }

    /// As [`MergedStream::next`], with the key that orders the document.
    pub(super) async fn next_ordered(
        &mut self,
        ctx: &OpContext,
        step: StepSize,
    ) -> Result<Option<(Key, Bytes)>> {
        loop {
            if self.limit == Some(0) {
                return Ok(None);
            }
            if self
                .parts
                .iter()
                .any(|part| part.buffer.is_empty() && !part.done)
            {
                check(ctx)?;
                self.refill(ctx, step).await?;
            }
            let Some(item) = self.pop() else {
                self.report.ended();
                return Ok(None);
            };
            if let (Some(seen), Some(id)) = (&mut self.seen, item.id)
                && !seen.insert(id)
            {
                continue;
            }
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            if let Some(limit) = &mut self.limit {
                *limit -= 1;
                if *limit == 0 {
                    self.report.ended();
                }
            }
            self.given += 1;
            self.report.given(self.given);
            let document = item.document.map_err(|error| *error)?;
            return Ok(Some((item.order, document)));
        }
    }

    /// The next document, when about `wanted` more are wanted.
    pub async fn next_wanted(&mut self, ctx: &OpContext, wanted: usize) -> Result<Option<Bytes>> {
        self.next(ctx, super::stream::step_for(wanted)).await
    }

    /// The next item of any part, whatever the limit: parts that count give their sums so.
    pub(crate) async fn next_raw(&mut self, ctx: &OpContext) -> Result<Option<Bytes>> {
        loop {
            let starved = |part: &Part| part.buffer.is_empty() && !part.done;
            if self.parts.iter().any(starved) {
                check(ctx)?;
                self.refill(ctx, super::stream::step_for(PART_BATCH_DOCUMENTS))
                    .await?;
            }
            let Some(item) = self.pop() else {
                self.report.ended();
                return Ok(None);
            };
            if let (Some(seen), Some(id)) = (&mut self.seen, item.id)
                && !seen.insert(id)
            {
                continue;
            }
            return item.document.map(Some).map_err(|error| *error);
        }
    }

    fn pop(&mut self) -> Option<Item> {
        let heads = self
            .parts
            .iter()
            .enumerate()
            .filter_map(|(i, part)| part.buffer.front().map(|item| (i, &item.order)));
        let best = if self.descending {
            heads.max_by(|a, b| a.1.cmp(b.1))
        } else {
            heads.min_by(|a, b| a.1.cmp(b.1))
        };
        let (i, _) = best?;
        self.parts[i].buffer.pop_front()
    }

    /// True when it is known that nothing follows. A scan knows its end only when it has run into
    /// it, as in MongoDB.
    pub(crate) fn is_eof(&self) -> bool {
        let exhausted = self
            .parts
            .iter()
            .all(|part| part.done && part.buffer.is_empty());
        self.limit == Some(0) || (exhausted && (self.sorted || self.by_id || self.parts.is_empty()))
    }

    /// What the parts have done.
    pub(crate) fn counters(&self) -> &PartCounters {
        &self.counters
    }
}

impl Drop for MergedStream {
    fn drop(&mut self) {
        let parts = self
            .parts
            .iter()
            .filter(|part| !part.done)
            .map(|part| (part.owner, part.number));
        let open: Vec<(CoreId, u64)> = parts.chain(self.pins.iter().copied()).collect();
        if open.is_empty() || pinion_runtime::try_core_local::<PartTable>().is_none() {
            return;
        }
        for (owner, number) in open {
            if owner == pinion_runtime::core_id() {
                PartTable::close(number);
                continue;
            }
            let closing = pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
                PartTable::close(number)
            });
            pinion_runtime::spawn(Queue::Foreground, closing);
        }
    }
}

/// How much a part hands over in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepSize {
    pub documents: usize,
    pub bytes: usize,
}
