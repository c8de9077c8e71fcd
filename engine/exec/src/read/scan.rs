//! Walking one partition's trees: the collection's own, or an index and then the documents it
//! names.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_catalog::{core_catalog, from_read_error};
use pinion_merge::PartCounters;
use pinion_runtime::timeout;
use pinion_service::interrupt::{interruptible, poll_once};
use pinion_storage::{BlockRecord, Cursor, Key, Partition, PartitionId, ReadAt, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::access::Access;
use super::branch_walk::BranchWalk;
use super::branches::Branches;
use super::log::LogWalk;
use super::near::NearWalk;
use super::part::{Output, PartSpec};
use super::renew::Snapshot;
use crate::limits::OUTCOME_PATIENCE;
use crate::options::{PlantedFault, node_options};

/// A document that was found.
#[derive(Clone, Debug)]
pub struct ScannedDocument {
    /// Orders it among the documents of all parts.
    pub order: Key,
    /// Its key in the collection's tree.
    pub id: Key,
    pub document: Bytes,
    /// Where in an array the filter matched, for the positional operator of a projection.
    pub position: Option<u32>,
    /// The entry it was found by, where keys are wanted.
    pub entry: Option<Box<ScannedEntry>>,
}

/// An entry of an index.
#[derive(Clone, Debug)]
pub struct ScannedEntry {
    /// Which of the access's branches it is of.
    pub branch: usize,
    pub key: Key,
    pub type_bits: Bytes,
}

/// The walk of one part.
pub struct Scan {
    pub(super) spec: Arc<PartSpec>,
    pub(super) partition: Rc<Partition>,
    pub(super) at: ReadAt,
    pub(super) snapshot: Snapshot,
    pub(super) walk: Walk,
}

pub(super) enum Walk {
    /// One document by its key.
    Id(Option<Key>),
    /// Branch after branch.
    Branches(Box<Branches>),
    /// Outward from a point.
    Near(Box<NearWalk>),
    /// Over the node's log.
    Log(Box<LogWalk>),
}

/// What a walk reads with: the operation, the part, its partition and the state.
#[derive(Clone, Copy)]
pub(super) struct ScanContext<'p> {
    pub ctx: &'p OpContext,
    pub spec: &'p PartSpec,
    pub partition: &'p Rc<Partition>,
    pub at: ReadAt,
}

impl ScannedDocument {
    /// A document of the collection's own tree.
    pub(super) fn in_collection(record: BlockRecord<'_>, position: Option<u32>) -> ScannedDocument {
        let id = record.key();
        ScannedDocument {
            order: Key::from_slice(&id),
            id,
            document: record.to_bytes(),
            position,
            entry: None,
        }
    }
}

impl Scan {
    pub(crate) fn open(spec: &Arc<PartSpec>, partition: Rc<Partition>) -> Scan {
        let walk = match &spec.access {
            Access::Id(key) => Walk::Id(Some(key.clone())),
            Access::Near(near) => Walk::Near(Box::new(NearWalk::new(near, spec.access.repeats()))),
            Access::Collection(access) if spec.collection.is_oplog() => {
                let through = spec.collection.log_through;
                Walk::Log(Box::new(LogWalk::new(access, through)))
            }
            access => Walk::Branches(Box::new(Branches::new(access))),
        };
        Scan {
            spec: spec.clone(),
            at: planted(spec.read_at(spec.at), &partition),
            snapshot: Snapshot::of(spec),
            partition,
            walk,
        }
    }

    /// The next document of the access, not yet filtered. It may wait for the outcome of a prepared
    /// transaction, until the operation is stopped; nothing can be read on then.
    pub(crate) async fn next(
        &mut self,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<Option<ScannedDocument>> {
        loop {
            if self.snapshot.is_due() {
                // In a box, as few steps ever need its room.
                Box::pin(self.look_after(ctx)).await?;
                if let Some(given) = self.planted_repeat() {
                    return Ok(Some(given));
                }
            }
            let next = match self.at {
                ReadAt::DecidedAt(_) => self.advance(ctx, counters).await,
                _ => until_decided(ctx, self.advance(ctx, counters)).await?,
            };
            match next {
                Ok(Some(_)) if self.planted_skip() => {}
                Ok(Some(found)) => {
                    self.snapshot.gives(&found);
                    return Ok(Some(found));
                }
                Ok(None) => return Ok(None),
                Err(error) if self.renews_after(&error) => Box::pin(self.renew(ctx)).await?,
                Err(error) => return Err(error),
            }
        }
    }

    async fn advance(
        &mut self,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<Option<ScannedDocument>> {
        match &mut self.walk {
            Walk::Near(walk) => {
                let (spec, partition) = (&self.spec, &self.partition);
                // In a box, as few reads need its room.
                Box::pin(walk.next(spec, partition, self.at, ctx, counters)).await
            }
            Walk::Log(walk) => Box::pin(walk.next(counters)).await,
            Walk::Id(wanted) => {
                let Some(key) = wanted.clone() else {
                    return Ok(None);
                };
                let tree = self.spec.collection.tree();
                let read = self.partition.get(tree, &key, self.at).await;
                let read = read.map_err(from_read_error)?;
                *wanted = None;
                let Some(read) = read else {
                    return Ok(None);
                };
                counters.keys_examined += 1;
                counters.docs_examined += 1;
                Ok(Some(ScannedDocument {
                    order: key.clone(),
                    id: key,
                    document: read.value,
                    position: None,
                    entry: None,
                }))
            }
            Walk::Branches(walk) => {
                let place = ScanContext {
                    ctx,
                    spec: &self.spec,
                    partition: &self.partition,
                    at: self.at,
                };
                walk.next(place, counters).await
            }
        }
    }
}

impl Scan {
    /// Whether what comes next is in blocks, but where a planted fault changes what is given.
    pub(super) fn gives_blocks(&self) -> bool {
        let is_in_blocks =
            matches!(&self.walk, Walk::Branches(branches) if branches.is_in_blocks());
        is_in_blocks && !self.snapshot.plants()
    }

    /// Ensures that the block has a record, as [`Scan::next`] ensures that a document comes next.
    /// False at the end of the access.
    pub(super) async fn fill(
        &mut self,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<bool> {
        loop {
            if self.snapshot.is_due() {
                // In a box, as few blocks ever need its room.
                Box::pin(self.look_after(ctx)).await?;
            }
            let is_decided = matches!(self.at, ReadAt::DecidedAt(_));
            let (place, branches, _) = self.blocks(ctx);
            let filled = match is_decided {
                true => branches.fill(place, counters).await,
                false => until_decided(ctx, branches.fill(place, counters)).await?,
            };
            match filled {
                Ok(is_filled) => return Ok(is_filled),
                Err(error) if self.renews_after(&error) => Box::pin(self.renew(ctx)).await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// The walk that gives blocks, where it reads, and the state of that.
    pub(super) fn blocks<'s>(
        &'s mut self,
        ctx: &'s OpContext,
    ) -> (ScanContext<'s>, &'s mut Branches, &'s mut Snapshot) {
        let Walk::Branches(branches) = &mut self.walk else {
            panic!("the walk gives no blocks");
        };
        let place = ScanContext {
            ctx,
            spec: &self.spec,
            partition: &self.partition,
            at: self.at,
        };
        (place, branches, &mut self.snapshot)
    }

    /// Whether what is in blocks needs no look: nothing but its number is wanted.
    pub(super) fn only_counts(&self) -> bool {
        let spec = &self.spec;
        let is_count =
            spec.output == Output::Count && spec.filter.is_none() && spec.ownership.is_none();
        is_count && matches!(&self.walk, Walk::Branches(branches) if branches.gives_all())
    }

    /// Passes over documents that are there and need no look.
    pub(crate) fn pass(&mut self, most: u64) -> u64 {
        if !self.snapshot.is_pinned() || !self.only_counts() {
            return 0;
        }
        match &mut self.walk {
            Walk::Branches(branches) => {
                branches.pass_many(usize::try_from(most).unwrap_or(usize::MAX)) as u64
            }
            _ => 0,
        }
    }
}

impl Walk {
    /// Entries that were read and not given are read again.
    pub(crate) fn take_back(&mut self) {
        if let Walk::Branches(branches) = self {
            branches.walks().for_each(BranchWalk::take_back);
        }
    }

    /// The cursors release the state that they read.
    pub(crate) fn release(&mut self) {
        self.take_back();
        self.each_cursor(Cursor::release);
    }

    /// The cursors read this state, which may be the one that they released.
    pub(crate) fn renew(&mut self, at: ReadAt) {
        self.take_back();
        self.each_cursor(|cursor| cursor.renew(at));
    }

    fn each_cursor(&mut self, each: impl FnMut(&mut Cursor)) {
        match self {
            Walk::Branches(branches) => {
                branches
                    .walks()
                    .filter_map(BranchWalk::cursor)
                    .for_each(each);
            }
            Walk::Near(walk) => walk.cursor().into_iter().for_each(each),
            Walk::Id(_) | Walk::Log(_) => {}
        }
    }

    /// Documents may have several entries from here on, though the plan counts on one: each is
    /// given once.
    pub(crate) fn expect_repeats(&mut self) {
        if let Walk::Branches(branches) = self {
            branches.expect_repeats();
        }
    }

    /// Continues in another state, behind what was given.
    pub(crate) fn continue_at(&mut self, spec: &PartSpec, partition: &Rc<Partition>, at: ReadAt) {
        match self {
            Walk::Branches(branches) => branches.put_back(spec, partition, at),
            Walk::Near(walk) => walk.moves(),
            Walk::Id(_) | Walk::Log(_) => {}
        }
        self.renew(at);
    }
}

/// Completes a read that may come to what is prepared. It waits for the outcome, unless the
/// operation is stopped.
///
/// # Errors
/// The operation is stopped; `LockTimeout` on a member that follows, where the outcome comes by the
/// log, if that has an entry before it which may wait for this very read.
pub(super) async fn until_decided<F: Future>(ctx: &OpContext, read: F) -> Result<F::Output> {
    let mut read = pin!(read);
    if let Some(done) = poll_once(read.as_mut()).await {
        return Ok(done);
    }
    // In a box, as few operations ever need its room.
    Box::pin(wait_until_decided(ctx, read)).await
}

async fn wait_until_decided<F: Future>(
    ctx: &OpContext,
    mut read: Pin<&mut F>,
) -> Result<F::Output> {
    loop {
        let waiting = interruptible(ctx, read.as_mut());
        if let Ok(done) = timeout(OUTCOME_PATIENCE, waiting).await {
            return done;
        }
        if !storage().leads() && core_catalog().gates().some_is_closed() {
            return Err(Error::new(
                ErrorCode::LOCK_TIMEOUT,
                "a read waits for the outcome of a prepared transaction, and a change of the catalog that comes before it for \
                 those who read",
            ));
        }
    }
}

/// What is read at, unless a test has planted that a transaction reads one partition later than the
/// others.
fn planted(at: ReadAt, partition: &Partition) -> ReadAt {
    match at {
        ReadAt::In { at: snapshot, unit }
            if node_options().planted_fault == PlantedFault::SnapshotOfOneLater
                && partition.id() == PartitionId(0) =>
        {
            let at = storage().visible().max(snapshot);
            ReadAt::In { at, unit }
        }
        at => at,
    }
}
