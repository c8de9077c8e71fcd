//! Reading the leaves that a merge is about to need, several at once and in their order.

use std::collections::VecDeque;
use std::iter::Peekable;

use pinion_runtime::{JoinHandle, Queue, sim, spawn};

use super::page::{Page, PagePtr};
use super::store::PageStore;
use crate::limits::{BLOCK_BYTES, IO_BYTES, MERGE_READS};
use crate::types::{Key, ReadError, TreeId};

/// The changed keys of a merge, ascending.
pub(crate) type ChangedKeys<'a> = Box<dyn Iterator<Item = &'a Key> + 'a>;

/// One leaf that is being read.
struct Reading {
    ptr: PagePtr,
    page: JoinHandle<Result<Page, ReadError>>,
}

/// Leaves on their way from the disk. What is read here is not kept in the cache: a merge comes to
/// it once.
pub(crate) struct Prefetch<'a, 'k> {
    store: &'a PageStore,
    tree: TreeId,
    root: (PagePtr, u8),
    keys: Peekable<ChangedKeys<'k>>,
    /// Keys below it lie in leaves that were looked at.
    reached: Key,
    reading: VecDeque<Reading>,
    bytes: usize,
}

impl<'a, 'k> Prefetch<'a, 'k> {
    pub(crate) fn new(
        store: &'a PageStore,
        tree: TreeId,
        root: (PagePtr, u8),
        keys: ChangedKeys<'k>,
    ) -> Prefetch<'a, 'k> {
        Prefetch {
            store,
            tree,
            root,
            keys: keys.peekable(),
            reached: Key::new(),
            reading: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Begins to read the next leaves from `lower` on, where the merge is, as far as the inner
    /// pages above them are in memory. It looks at so few leaves that it holds its core no longer
    /// than the merge of a page.
    pub(crate) fn advance(&mut self, lower: &Key) {
        if self.reached < *lower {
            self.reached = lower.clone();
        }
        for _ in 0..MERGE_READS {
            if self.reading.len() >= MERGE_READS || self.bytes >= IO_BYTES {
                return;
            }
            while self.keys.next_if(|key| **key < self.reached).is_some() {}
            let Some(key) = self.keys.peek() else { return };
            let Some(located) = self.store.try_locate_leaf(self.root, key) else {
                return;
            };
            let ptr = located.ptr;
            if !self.store.cache.contains(ptr.block) {
                let (file, tree) = (self.store.file.clone(), self.tree);
                let page = spawn(
                    Queue::Background,
                    async move { file.read(&ptr, tree).await },
                );
                self.bytes += bytes(&ptr);
                self.reading.push_back(Reading { ptr, page });
            }
            match located.upper {
                Some(upper) => self.reached = upper,
                None => self.keys = (Box::new(std::iter::empty()) as ChangedKeys<'k>).peekable(),
            }
        }
    }

    /// The leaf, if it was asked for. Those before it turned out not to change.
    pub(crate) async fn take(&mut self, ptr: &PagePtr) -> Option<Result<Page, ReadError>> {
        let mut ahead = self.reading.iter();
        let place = ahead.position(|reading| reading.ptr.block == ptr.block)?;
        for unneeded in self.reading.drain(..place) {
            self.bytes -= bytes(&unneeded.ptr);
        }
        let found = self.reading.pop_front().expect("its place was just found");
        self.bytes -= bytes(&found.ptr);
        sim::count("leaves read ahead of a merge", 1);
        found.page.await.ok()
    }
}

fn bytes(ptr: &PagePtr) -> usize {
    ptr.blocks as usize * BLOCK_BYTES
}
