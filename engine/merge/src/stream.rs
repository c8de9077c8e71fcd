//! The documents of a read: steps its parts, wherever they are, and merges what they give.

use bytes::Bytes;
use pinion_runtime::join_all;
use pinion_service::cursors::Documents;
use pinion_service::interrupt::check;
use pinion_wire::{OpContext, Result};

use crate::item::{Batch, OrderKey, PartCounters, StepSize};
use crate::limits::PART_BATCH_DOCUMENTS;
use crate::order::{MergeSpec, NextItem, OrderedMerge};
use crate::pipeline::Buffered;

/// A part of a read, on another core or another node. Its drop closes it there.
pub trait Part {
    /// Takes the part's next step. A batch without items is the last one; neither that nor an error
    /// is followed by another step.
    fn step(&mut self, ctx: &OpContext, size: StepSize) -> impl Future<Output = Result<Batch>>;
}

/// What follows the progress of a read, for those that report it. Dropped with the read.
pub trait MergeObserver {
    /// Notes what a part's step has done.
    fn stepped(&mut self, ctx: &OpContext, step: &PartCounters);

    /// Notes how many documents have been returned in all.
    fn returned(&mut self, documents: u64);

    /// Notes that no document follows.
    fn ended(&mut self);
}

/// The documents of all parts in one order.
pub struct MergedStream<P, O> {
    parts: Vec<P>,
    merge: OrderedMerge,
    observer: O,
    taken: u64,
    /// Of those, what is not used so far.
    unused: u64,
}

impl<P: Part, O: MergeObserver> MergedStream<P, O> {
    /// A stream without parts.
    pub fn new(spec: MergeSpec, observer: O) -> MergedStream<P, O> {
        MergedStream {
            parts: Vec::new(),
            merge: OrderedMerge::new(spec),
            observer,
            taken: 0,
            unused: 0,
        }
    }

    /// Adds a part that has been opened, with its first step. All are added before a document is
    /// read.
    pub fn add(&mut self, ctx: &OpContext, part: P, first: Batch) {
        self.observer.stepped(ctx, &first.counters);
        self.parts.push(part);
        self.merge.add_part(first.items, first.done);
    }

    /// Steps every part that has nothing buffered.
    async fn refill(&mut self, ctx: &OpContext, size: StepSize) -> Result<()> {
        let merge = &self.merge;
        let parts = self.parts.iter_mut().enumerate();
        let starved = parts.filter(|(number, _)| merge.is_starved(*number));
        let steps =
            starved.map(|(number, part)| async move { (number, part.step(ctx, size).await) });
        let steps = join_all(steps).await;
        let mut failed = None;
        for (number, step) in steps {
            match step {
                Ok(batch) => {
                    self.merge.accept(number, batch.items, batch.done);
                    self.observer.stepped(ctx, &batch.counters);
                }
                Err(error) => {
                    self.merge.accept(number, Vec::new(), true);
                    failed = failed.or(Some(error));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The next document in order, or `None` at the end; `wanted` is how many more the caller would
    /// take now.
    ///
    /// # Errors
    /// Those of a part's step, and of the document whose turn it is; the operation is stopped.
    pub async fn next_wanted(&mut self, ctx: &OpContext, wanted: usize) -> Result<Option<Bytes>> {
        let next = self.next_ordered(ctx, wanted).await?;
        Ok(next.map(|(_, document)| document))
    }

    /// As [`MergedStream::next_wanted`], with the key that orders the document.
    pub async fn next_ordered(
        &mut self,
        ctx: &OpContext,
        wanted: usize,
    ) -> Result<Option<(OrderKey, Bytes)>> {
        loop {
            match self.merge.next_item() {
                NextItem::Item(item) => {
                    self.taken += 1;
                    self.report();
                    let document = item.document.map_err(|error| *error)?;
                    return Ok(Some((item.order, document)));
                }
                NextItem::Starved => {
                    check(ctx)?;
                    self.refill(ctx, StepSize::for_wanted(wanted)).await?;
                }
                NextItem::Ended => {
                    self.observer.ended();
                    return Ok(None);
                }
                NextItem::Satisfied => return Ok(None),
            }
        }
    }

    /// Reports what was taken and is used.
    fn report(&mut self) {
        if self.merge.is_satisfied() && self.unused == 0 {
            self.observer.ended();
        }
        self.observer.returned(self.taken - self.unused);
    }

    /// The next item of any part, whatever the limit: parts that count give their sums so.
    ///
    /// # Errors
    /// As [`MergedStream::next_wanted`].
    pub async fn next_raw(&mut self, ctx: &OpContext) -> Result<Option<Bytes>> {
        loop {
            match self.merge.next_unlimited() {
                NextItem::Item(item) => return item.document.map(Some).map_err(|error| *error),
                NextItem::Starved => {
                    check(ctx)?;
                    let size = StepSize::for_wanted(PART_BATCH_DOCUMENTS);
                    self.refill(ctx, size).await?;
                }
                NextItem::Ended | NextItem::Satisfied => {
                    self.observer.ended();
                    return Ok(None);
                }
            }
        }
    }

    /// True when it is known, without reading on, that nothing follows.
    pub fn is_eof(&self) -> bool {
        self.merge.is_eof()
    }

    /// What follows the read.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// What follows the read, to change it.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }
}

impl<P: Part, O: MergeObserver> Buffered for MergedStream<P, O> {
    fn next_buffered(&mut self) -> Option<Result<Bytes>> {
        match self.merge.next_item() {
            NextItem::Item(item) => {
                self.taken += 1;
                self.unused += 1;
                Some(item.document.map_err(|error| *error))
            }
            NextItem::Starved | NextItem::Ended | NextItem::Satisfied => None,
        }
    }

    fn set_unused(&mut self, documents: usize) {
        if self.unused != documents as u64 {
            self.unused = documents as u64;
            self.report();
        }
    }
}

impl<P: Part, O: MergeObserver> Documents for MergedStream<P, O> {
    async fn next(&mut self, ctx: &OpContext, wanted: usize) -> Result<Option<Bytes>> {
        self.next_wanted(ctx, wanted).await
    }

    fn is_eof(&self) -> bool {
        MergedStream::is_eof(self)
    }

    fn is_tail(&self) -> bool {
        false
    }
}
