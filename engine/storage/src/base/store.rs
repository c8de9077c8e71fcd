//! The page store of one partition: file, cache and free space together, and the writer of a
//! checkpoint's pages.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_runtime::sync::Semaphore;
use pinion_runtime::{DmaBuf, JoinHandle, Queue, offload_bounded, spawn};

use super::cache::PageCache;
use super::file::{Access, PageFile};
use super::options::PartitionOptions;
use super::pace::{Pace, rest};
use super::page::{Page, PageHeader, PageKind, PagePtr, build_payload, payload_blocks, seal};
use super::roots::PartitionRoots;
use super::space::{Extent, FreeList, FreeSpace};
use crate::limits::{BLOCK_BYTES, IO_BYTES, READ_AHEAD_LEAVES, WRITES_IN_FLIGHT};
use crate::room::DiskRoom;
use crate::types::{Fatal, PartitionId, ReadError, TreeId};

/// Free extents gathered between two offers to yield.
const EXTENTS_AT_ONCE: usize = 1024;

/// Pages of one partition, on disk and in memory.
pub(crate) struct PageStore {
    pub(crate) file: Rc<PageFile>,
    pub(crate) cache: PageCache,
    pub(crate) space: RefCell<FreeSpace>,
    pub(crate) options: PartitionOptions,
    pub(crate) pages_written: Cell<u64>,
    /// A checkpoint and loads may take blocks at once; one of them at a time makes the file longer.
    growth: Semaphore,
    /// Where it waits for room on the disk.
    room: RefCell<Arc<DiskRoom>>,
}

impl PageStore {
    /// A new, empty page file.
    pub(crate) async fn create(
        dir: &Path,
        partition: PartitionId,
        options: PartitionOptions,
    ) -> Result<PageStore, ReadError> {
        let file = PageFile::create(dir, partition).await?;
        Ok(PageStore::new(file, FreeSpace::new(1), options))
    }

    /// The page file that `roots` describe.
    pub(crate) async fn open(
        dir: &Path,
        partition: PartitionId,
        roots: &PartitionRoots,
        options: PartitionOptions,
        access: Access,
    ) -> Result<PageStore, ReadError> {
        let file = PageFile::open(dir, partition, roots.file, access).await?;
        let space = free_space(&file, roots).await?;
        Ok(PageStore::new(file, space, options))
    }

    /// What is free in the state of this file that `roots` describe.
    pub(crate) async fn free_space_of(
        &self,
        roots: &PartitionRoots,
    ) -> Result<FreeSpace, ReadError> {
        free_space(&self.file, roots).await
    }

    fn new(file: PageFile, space: FreeSpace, options: PartitionOptions) -> PageStore {
        PageStore {
            file: Rc::new(file),
            cache: PageCache::new(options.cache_bytes),
            space: RefCell::new(space),
            options,
            pages_written: Cell::new(0),
            growth: Semaphore::new(1),
            room: RefCell::default(),
        }
    }

    /// Has the whole node know when this file finds no room on the disk.
    pub(crate) fn share_room(&self, room: Arc<DiskRoom>) {
        *self.room.borrow_mut() = room;
    }

    /// Whether what failed may be tried again.
    pub(crate) fn may_try_again(&self) -> bool {
        self.file.check().is_ok() && !self.room.borrow().is_given_up()
    }

    /// A page, from memory or disk.
    pub(crate) async fn page(&self, ptr: &PagePtr, tree: TreeId) -> Result<Rc<Page>, ReadError> {
        self.cache
            .load(ptr.block, || self.file.read(ptr, tree))
            .await
    }

    /// A page for a reader that will not come back to it: what is read from disk is not kept in
    /// memory.
    pub(crate) async fn page_once(
        &self,
        ptr: &PagePtr,
        tree: TreeId,
    ) -> Result<Rc<Page>, ReadError> {
        if self.cache.contains(ptr.block) {
            return self.page(ptr, tree).await;
        }
        Ok(Rc::new(self.file.read(ptr, tree).await?))
    }

    /// How many leaves may be read ahead at once: fewer with a small cache.
    pub(crate) fn leaves_at_once(&self) -> usize {
        let target = u64::from(self.options.leaf_target_bytes);
        (self.cache.budget() / 16 / target).min(READ_AHEAD_LEAVES) as usize
    }

    /// Makes blocks reusable. Nothing may refer to them any more, on disk or in memory.
    pub(crate) fn release(&self, extent: Extent) {
        self.cache.remove(extent.start);
        self.space.borrow_mut().release(extent);
    }

    /// Takes between `least` and `most` blocks, growing the file if nothing fits. While the disk is
    /// full this waits.
    async fn allocate(&self, least: u64, most: u64) -> Result<Extent, Fatal> {
        let most = most.max(least);
        if let Some(extent) = self.space.borrow_mut().take(least, most) {
            return Ok(extent);
        }
        let _turn = self.growth.acquire().await;
        self.file.check()?;
        let room = self.room.borrow().clone();
        let mut next_step = least.next_multiple_of(self.options.file_step_blocks());
        let allocated = room.repeat(self.file.path(), async || {
            // The file may have grown, or something become free, while this waited.
            if let Some(extent) = self.space.borrow_mut().take(least, most) {
                return Ok(extent);
            }
            let end = self.space.borrow().end();
            // A full disk may have room for less.
            let step = std::mem::replace(&mut next_step, least);
            self.file.allocate(end + step).await?;
            let mut space = self.space.borrow_mut();
            assert_eq!(space.end(), end, "a page file grew without its turn");
            space.grow(step);
            Ok(space
                .take(least, most)
                .expect("the file has just grown by as much"))
        });
        let allocated = allocated.await;
        allocated.map_err(|error| self.file.growth_failed(self.space.borrow().end(), error))
    }
}

/// Reads the list of free extents that `roots` name.
async fn free_space(file: &PageFile, roots: &PartitionRoots) -> Result<FreeSpace, ReadError> {
    let Some(ptr) = roots.free_list() else {
        return Ok(FreeSpace::new(roots.file_blocks));
    };
    let page = file.read(&ptr, TreeId::MASTER).await?;
    if page.kind() != PageKind::FreeList {
        return Err(file.corrupt(ptr.offset(), "the page is no list of free extents"));
    }
    FreeSpace::decode(&page.payload(), roots.file_blocks)
        .ok_or_else(|| file.corrupt(ptr.offset(), "the list of free extents is not sound"))
}

/// The extent that is being filled.
struct Run {
    extent: Extent,
    used_blocks: u64,
    /// The pages, in their order. The cache may share them: what is written is not copied.
    pages: Vec<Bytes>,
}

/// Writes the pages of one checkpoint, gathered into large extents, several writes under way at
/// once.
pub(crate) struct PageWriter<'a> {
    store: &'a PageStore,
    pace: &'a dyn Pace,
    checkpoint: u64,
    run: Option<Run>,
    in_flight: VecDeque<JoinHandle<Result<(), Fatal>>>,
    /// Bytes of the pages that were given a place.
    built: Rc<Cell<u64>>,
    /// What the pages of a load or a run take.
    taken: Option<TakenExtents>,
    /// Nothing on disk will refer to the pages.
    is_volatile: bool,
}

/// The extents that a load has taken so far.
pub(crate) type TakenExtents = Rc<RefCell<Vec<Extent>>>;

impl<'a> PageWriter<'a> {
    pub(crate) fn new(store: &'a PageStore, checkpoint: u64, pace: &'a dyn Pace) -> PageWriter<'a> {
        PageWriter {
            store,
            pace,
            checkpoint,
            run: None,
            in_flight: VecDeque::new(),
            built: Rc::default(),
            taken: None,
            is_volatile: false,
        }
    }

    /// A writer that records in `taken` what its pages take.
    pub(crate) fn recording(
        store: &'a PageStore,
        checkpoint: u64,
        pace: &'a dyn Pace,
        taken: TakenExtents,
    ) -> PageWriter<'a> {
        PageWriter {
            taken: Some(taken),
            ..PageWriter::new(store, checkpoint, pace)
        }
    }

    /// A writer of pages that nothing on disk refers to, ever: where a write fails, it may be tried
    /// elsewhere.
    pub(crate) fn volatile(
        store: &'a PageStore,
        checkpoint: u64,
        pace: &'a dyn Pace,
        taken: TakenExtents,
    ) -> PageWriter<'a> {
        PageWriter {
            is_volatile: true,
            ..PageWriter::recording(store, checkpoint, pace, taken)
        }
    }

    async fn allocate(&self, least: u64, most: u64) -> Result<Extent, Fatal> {
        let extent = self.store.allocate(least, most).await?;
        if let Some(taken) = &self.taken {
            taken.borrow_mut().push(extent);
        }
        Ok(extent)
    }

    /// See [`rest`].
    pub(crate) async fn rest(&self) {
        rest(self.pace).await;
    }

    /// Bytes of the pages that were given a place.
    pub(crate) fn built(&self) -> u64 {
        self.built.get()
    }

    /// The same for a reader while the writer works.
    pub(crate) fn built_cell(&self) -> Rc<Cell<u64>> {
        self.built.clone()
    }

    /// The header of a page that this checkpoint writes.
    pub(crate) fn header(&self, kind: PageKind, level: u8, tree: TreeId) -> PageHeader {
        PageHeader {
            kind,
            level,
            tree,
            checkpoint: self.checkpoint,
        }
    }

    /// Gives a page its place and queues it for writing; with `keep` it also goes into the cache.
    pub(crate) async fn put(
        &mut self,
        mut page: DmaBuf,
        overflow: bool,
        keep: bool,
    ) -> Result<PagePtr, Fatal> {
        let blocks = (page.len() / BLOCK_BYTES) as u64;
        let fits = self
            .run
            .as_ref()
            .is_some_and(|run| run.extent.blocks - run.used_blocks >= blocks);
        if !fits {
            self.end_run().await?;
            let most = self.store.options.extent_blocks();
            let extent = self.allocate(blocks, most).await?;
            self.run = Some(Run {
                extent,
                used_blocks: 0,
                pages: Vec::new(),
            });
        }
        let run = self.run.as_mut().expect("a run was just begun");
        let block = run.extent.start + run.used_blocks;
        let ptr = seal(&mut page, block, overflow);
        let page = Page::built(page.into_bytes());
        run.pages.push(page.bytes());
        run.used_blocks += blocks;
        self.count(blocks);
        if keep {
            self.store.cache.insert(block, Rc::new(page), false);
        }
        Ok(ptr)
    }

    /// Writes a large value into an extent of its own.
    pub(crate) async fn put_overflow(
        &mut self,
        tree: TreeId,
        value: &[u8],
    ) -> Result<PagePtr, Fatal> {
        let header = self.header(PageKind::Overflow, 0, tree);
        let blocks = payload_blocks(value.len());
        if blocks as usize * BLOCK_BYTES <= IO_BYTES {
            return self
                .put(build_payload(header, value, blocks), false, false)
                .await;
        }
        self.end_run().await?;
        let extent = self.allocate(blocks, blocks).await?;
        // Laid out and checksummed on a compute thread: this many bytes would hold the core for
        // long.
        let (ptr, page) = offload_bounded(|| {
            let mut page = build_payload(header, value, blocks);
            let ptr = seal(&mut page, extent.start, false);
            (ptr, Page::built(page.into_bytes()).bytes())
        })
        .await;
        self.count(blocks);
        self.write(extent.start, vec![page]).await?;
        Ok(ptr)
    }

    /// Writes the list of extents that are free once this checkpoint is durable: those free now,
    /// those `pending`, which only older states refer to, and those of `loading`, which no state
    /// refers to yet. Gives the end of the file for which the list holds. Pending extents may
    /// become free while this waits, and loads may take some that are free: in the list they stay
    /// free, as they are after a crash. What loads give back while this waits may lie behind the
    /// walk, and is listed too. The list is built in small steps and on compute threads: a file
    /// may have a million free extents.
    pub(crate) async fn put_free_list(
        &mut self,
        mut pending: Vec<Extent>,
        loading: impl Fn() -> Vec<Extent>,
    ) -> Result<(PagePtr, u64), Fatal> {
        self.end_run().await?;
        self.store.space.borrow_mut().record_released();
        let mut reached = 0;
        let end = loop {
            {
                let mut space = self.store.space.borrow_mut();
                let mut more = space.extents_above(reached).peekable();
                pending.extend(more.by_ref().take(EXTENTS_AT_ONCE));
                reached = more.peek().map_or(space.end(), |next| next.start);
                drop(more);
                if reached == space.end() {
                    // Whatever a load has taken of what was not reached yet, or has given back of
                    // what was passed.
                    pending.extend(loading());
                    pending.extend(space.take_released());
                    break reached;
                }
            }
            self.rest().await;
        };
        // Taking room for the list changes the list: one extent more at most, when the list comes
        // out of the middle of one or the file grows. An extent takes at most 18 bytes.
        let (mut list, blocks) = offload_bounded(|| {
            let list = FreeList::new(pending);
            let blocks = payload_blocks(list.encode().len() + 32);
            (list, blocks)
        })
        .await;
        let extent = self.store.allocate(blocks, blocks).await?;
        let grown = self.store.space.borrow().end() - end;
        let header = self.header(PageKind::FreeList, 0, TreeId::MASTER);
        let (ptr, page) = offload_bounded(|| {
            if grown > 0 {
                list.push(Extent {
                    start: end,
                    blocks: grown,
                });
            }
            list.take(extent);
            let mut page = build_payload(header, &list.encode(), blocks);
            let ptr = seal(&mut page, extent.start, false);
            (ptr, page.into_bytes())
        })
        .await;
        self.write(extent.start, vec![page]).await?;
        Ok((ptr, end + grown))
    }

    fn count(&self, blocks: u64) {
        let pages = &self.store.pages_written;
        pages.set(pages.get() + 1);
        self.built
            .set(self.built.get() + blocks * BLOCK_BYTES as u64);
    }

    /// Completes every write: whatever has a place can be read there.
    pub(crate) async fn settle(&mut self) -> Result<(), Fatal> {
        self.end_run().await?;
        while let Some(write) = self.in_flight.pop_front() {
            outcome(write.await)?;
        }
        Ok(())
    }

    /// Waits for the writes under way, however they end: their blocks can be used for something
    /// else afterwards.
    pub(crate) async fn drain(&mut self) {
        while let Some(write) = self.in_flight.pop_front() {
            let _ = write.await;
        }
    }

    /// Completes every write and makes them durable.
    pub(crate) async fn finish(mut self) -> Result<(), Fatal> {
        self.settle().await?;
        self.store.file.sync().await
    }

    /// Writes what the current run holds and returns the rest of its extent.
    async fn end_run(&mut self) -> Result<(), Fatal> {
        let Some(run) = self.run.take() else {
            return Ok(());
        };
        assert!(run.used_blocks > 0 && run.used_blocks <= run.extent.blocks);
        if run.used_blocks < run.extent.blocks {
            let rest = Extent {
                start: run.extent.start + run.used_blocks,
                blocks: run.extent.blocks - run.used_blocks,
            };
            if let Some(taken) = &self.taken {
                let mut taken = taken.borrow_mut();
                let last = taken.last_mut().expect("the run's extent was recorded");
                assert_eq!(*last, run.extent, "the run is what was taken last");
                last.blocks = run.used_blocks;
            }
            self.store.space.borrow_mut().release(rest);
        }
        self.write(run.extent.start, run.pages).await
    }

    /// Writes pages one behind the other, as much at a time as one transfer takes.
    async fn write(&mut self, block: u64, pages: Vec<Bytes>) -> Result<(), Fatal> {
        let (mut at, mut parts, mut len) = (block, Vec::new(), 0);
        for mut page in pages {
            while !page.is_empty() {
                let part = page.split_to(page.len().min(IO_BYTES - len));
                len += part.len();
                parts.push(part);
                if len == IO_BYTES {
                    self.queue(at, std::mem::take(&mut parts)).await?;
                    at += (IO_BYTES / BLOCK_BYTES) as u64;
                    len = 0;
                }
            }
        }
        if len > 0 {
            self.queue(at, parts).await?;
        }
        Ok(())
    }

    async fn queue(&mut self, block: u64, pages: Vec<Bytes>) -> Result<(), Fatal> {
        if self.in_flight.len() >= WRITES_IN_FLIGHT {
            let oldest = self.in_flight.pop_front().expect("the queue is full");
            outcome(oldest.await)?;
        }
        let file = self.store.file.clone();
        let offset = block * BLOCK_BYTES as u64;
        let is_volatile = self.is_volatile;
        self.in_flight
            .push_back(spawn(Queue::Background, async move {
                match is_volatile {
                    true => file.write_volatile(offset, pages).await,
                    false => file.write(offset, pages).await,
                }
            }));
        Ok(())
    }
}

fn outcome(joined: Result<Result<(), Fatal>, pinion_runtime::Cancelled>) -> Result<(), Fatal> {
    joined.unwrap_or_else(|_| {
        Err(Fatal::new(
            "a page write was cancelled: the core is stopping",
        ))
    })
}
