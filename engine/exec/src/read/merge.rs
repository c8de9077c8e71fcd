//! Merges the parts of a read by their order keys.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use pinion_runtime::{CoreId, Queue};
use pinion_wire::{OpContext, Result};

use super::item::{Batch, Item, PartCounters};
use super::part::{PartSpec, PartTable};
use crate::interrupt::check;
use pinion_runtime::join_all;

struct Part {
    owner: CoreId,
    /// The part's number in its owner's table.
    number: u64,
    buffer: VecDeque<Item>,
    done: bool,
}

/// The documents of all parts in one order. Lives on the core of the connection, or of the cursor's maker.
pub(crate) struct MergedStream {
    parts: Vec<Part>,
    descending: bool,
    skip: usize,
    limit: Option<usize>,
    counters: PartCounters,
}

impl MergedStream {
    /// Opens a part on each of the partitions and takes its first step there in the same message.
    pub(crate) async fn open(
        spec: Arc<PartSpec>,
        partitions: Vec<pinion_storage::PartitionId>,
        ctx: &OpContext,
        step: StepSize,
        skip: usize,
        limit: Option<usize>,
    ) -> Result<MergedStream> {
        let descending = spec.descending;
        let mut stream = MergedStream { parts: Vec::with_capacity(partitions.len()), descending, skip, limit, counters: PartCounters::default() };
        let opened = join_all(
            partitions
                .into_iter()
                .map(|partition| {
                    let owner = pinion_storage::storage().owner(partition);
                    let (spec, ctx) = (spec.clone(), ctx.clone());
                    async move {
                        let opened = pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
                            PartTable::open(spec, partition, &ctx, step).await
                        })
                        .await;
                        (owner, opened)
                    }
                })
                .collect(),
        )
        .await;
        let mut failed = None;
        for (owner, opened) in opened {
            match opened {
                Ok((number, batch)) => {
                    stream.counters.add(&batch.counters);
                    stream.parts.push(Part { owner, number, buffer: batch.items.into(), done: batch.done });
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

    /// Steps every part that has nothing buffered.
    async fn refill(&mut self, ctx: &OpContext, step: StepSize) -> Result<()> {
        let starved: Vec<usize> =
            (0..self.parts.len()).filter(|i| self.parts[*i].buffer.is_empty() && !self.parts[*i].done).collect();
        if starved.is_empty() {
            return Ok(());
        }
        let steps = join_all(
            starved
                .iter()
                .map(|i| {
                    let (owner, number, ctx) = (self.parts[*i].owner, self.parts[*i].number, ctx.clone());
                    pinion_runtime::submit_to(owner, Queue::Foreground, move || async move { PartTable::step(number, &ctx, step).await })
                })
                .collect(),
        )
        .await;
        let mut failed = None;
        for (i, result) in starved.into_iter().zip(steps) {
            let part = &mut self.parts[i];
            match result {
                Ok(Batch { items, done, counters }) => {
                    assert!(done || !items.is_empty(), "a part that is not done makes progress");
                    self.counters.add(&counters);
                    part.buffer = items.into();
                    part.done = done;
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
        loop {
            if self.limit == Some(0) {
                return Ok(None);
            }
            if self.parts.iter().any(|part| part.buffer.is_empty() && !part.done) {
                check(ctx)?;
                self.refill(ctx, step).await?;
            }
            let Some(item) = self.pop() else { return Ok(None) };
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            if let Some(limit) = &mut self.limit {
                *limit -= 1;
            }
            return Ok(Some(item.document));
        }
    }

    fn pop(&mut self) -> Option<Item> {
        let heads = self.parts.iter().enumerate().filter_map(|(i, part)| part.buffer.front().map(|item| (i, &item.order)));
        let best = if self.descending { heads.max_by(|a, b| a.1.cmp(b.1)) } else { heads.min_by(|a, b| a.1.cmp(b.1)) };
        let (i, _) = best?;
        self.parts[i].buffer.pop_front()
    }

    /// True when it is known without another step that nothing follows.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.limit == Some(0) || self.parts.iter().all(|part| part.done && part.buffer.is_empty())
    }

    /// What the parts have done.
    pub(crate) fn counters(&self) -> &PartCounters {
        &self.counters
    }
}

impl Drop for MergedStream {
    fn drop(&mut self) {
        for part in &self.parts {
            if part.done {
                continue;
            }
            let number = part.number;
            if part.owner == pinion_runtime::core_id() {
                PartTable::close(number);
                continue;
            }
            let closing = pinion_runtime::submit_to(part.owner, Queue::Foreground, move || async move { PartTable::close(number) });
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
