//! The page cache: loaded pages by block, evicted by clock under a byte budget, one load of a page
//! however many wait.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use pinion_runtime::sync::Notify;
use rustc_hash::FxHashMap;

use super::block_table::{BlockTable, CHUNK_BYTES};
use super::page::{Page, PageKind};
use crate::types::{Direction, ReadError};

/// What a cached page costs beside its bytes.
const PAGE_OVERHEAD_BYTES: u64 = 256;

/// How many pages that were used the hand of the clock passes, each time that room is made, before
/// it takes whatever comes. Where all were used, as when a cache fills up for the first time, a
/// whole round would hold the core for as long as it takes to look at every page.
const MOST_PASSED: usize = 1024;

/// A load under way, and its outcome for those that wait.
#[derive(Default)]
struct Load {
    outcome: RefCell<Option<Result<Rc<Page>, ReadError>>>,
    done: Notify,
}

#[derive(Default)]
struct Inner {
    table: BlockTable,
    /// Where the hand of the clock goes round: the block of the page in each place. A page knows
    /// its own place, and whether it was used since the hand last passed.
    places: Vec<Option<u64>>,
    vacant: Vec<u32>,
    hand: usize,
    bytes: u64,
    budget: u64,
    loading: FxHashMap<u64, Rc<Load>>,
}

/// The pages of one partition that are in memory.
#[derive(Default)]
pub(crate) struct PageCache {
    inner: RefCell<Inner>,
    pub(crate) hits: Cell<u64>,
    pub(crate) misses: Cell<u64>,
    pub(crate) evictions: Cell<u64>,
}

impl PageCache {
    pub(crate) fn new(budget: u64) -> PageCache {
        PageCache {
            inner: RefCell::new(Inner {
                budget,
                ..Inner::default()
            }),
            ..PageCache::default()
        }
    }

    /// A page that is in memory.
    pub(crate) fn get(&self, block: u64) -> Option<Rc<Page>> {
        let inner = self.inner.borrow();
        let page = inner.table.get(block)?;
        // Most are marked already; to write it again would only make the line travel back to
        // memory.
        if !page.cached.referenced.get() {
            page.cached.referenced.set(true);
        }
        self.hits.set(self.hits.get() + 1);
        Some(page.clone())
    }

    /// Has the processor fetch what a reader of the page will look at first, if the page is in
    /// memory.
    pub(crate) fn expect(&self, block: u64) {
        self.inner.borrow().table.expect(block);
    }

    /// The same for the first record that a cursor in `direction` will read of a leaf. It waits for
    /// the page's slots.
    pub(crate) fn expect_record(&self, block: u64, direction: Direction) {
        if let Some(page) = self.inner.borrow().table.get(block)
            && page.kind() == PageKind::Leaf
        {
            page.expect_record(match direction {
                Direction::Forward => 0,
                Direction::Reverse => page.len() - 1,
            });
        }
    }

    /// Whether a page is in memory; does not count as a use.
    pub(crate) fn contains(&self, block: u64) -> bool {
        self.inner.borrow().table.get(block).is_some()
    }

    /// The page, loaded with `read` if it is not in memory. Of several callers one reads and the
    /// others wait for it; if the reader is dropped before it is done, another takes over.
    pub(crate) async fn load<F, Fut>(&self, block: u64, read: F) -> Result<Rc<Page>, ReadError>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<Page, ReadError>>,
    {
        loop {
            if let Some(page) = self.get(block) {
                return Ok(page);
            }
            let waiting = self.inner.borrow().loading.get(&block).cloned();
            if let Some(load) = waiting {
                load.done.notified().await;
                match &*load.outcome.borrow() {
                    Some(outcome) => return outcome.clone(),
                    None => continue,
                }
            }
            self.misses.set(self.misses.get() + 1);
            let load = Rc::new(Load::default());
            self.inner.borrow_mut().loading.insert(block, load.clone());
            let guard = LoadGuard {
                cache: self,
                block,
                load,
            };
            let outcome = read().await.map(Rc::new);
            if let Ok(page) = &outcome {
                self.insert(block, page.clone(), true);
            }
            *guard.load.outcome.borrow_mut() = Some(outcome.clone());
            return outcome;
        }
    }

    /// Puts a page into memory and evicts others until the budget is kept. A page larger than an
    /// eighth of the budget is not kept: it would push out too much.
    pub(crate) fn insert(&self, block: u64, page: Rc<Page>, referenced: bool) {
        let mut inner = self.inner.borrow_mut();
        let size = cost(&page);
        if size > inner.budget / 8 && !(size <= inner.budget && inner.table.len() < 8) {
            return;
        }
        self.make_room(&mut inner, size);
        let place = match inner.vacant.pop() {
            Some(place) => {
                inner.places[place as usize] = Some(block);
                place
            }
            None => {
                inner.places.push(Some(block));
                u32::try_from(inner.places.len() - 1)
                    .expect("the budget bounds the number of pages")
            }
        };
        page.cached.place.set(place);
        page.cached.referenced.set(referenced);
        let chunks = inner.table.chunks();
        inner.table.insert(block, page);
        inner.bytes += size + (inner.table.chunks() - chunks) * CHUNK_BYTES;
    }

    /// Forgets a page whose blocks are about to be reused.
    pub(crate) fn remove(&self, block: u64) {
        let mut inner = self.inner.borrow_mut();
        assert!(
            !inner.loading.contains_key(&block),
            "block {block} is freed while it is being loaded"
        );
        inner.remove(block);
    }

    /// Drops a page that is rarely read any more; its blocks stay what they are.
    pub(crate) fn forget(&self, block: u64) {
        self.inner.borrow_mut().remove(block);
    }

    /// Bytes of the pages in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.inner.borrow().bytes
    }

    /// The budget.
    pub(crate) fn budget(&self) -> u64 {
        self.inner.borrow().budget
    }

    /// Whether another page of `bytes` fits without an eviction.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let inner = self.inner.borrow();
        inner.bytes + bytes as u64 + PAGE_OVERHEAD_BYTES <= inner.budget
    }

    /// Changes the budget, and evicts at once if it shrinks.
    pub(crate) fn set_budget(&self, budget: u64) {
        let mut inner = self.inner.borrow_mut();
        inner.budget = budget;
        self.make_room(&mut inner, 0);
    }

    fn make_room(&self, inner: &mut Inner, size: u64) {
        let mut passed = 0;
        while inner.bytes + size > inner.budget && inner.table.len() > 0 {
            let at = inner.hand;
            inner.hand = (at + 1) % inner.places.len();
            let Some(block) = inner.places[at] else {
                continue;
            };
            let page = inner.table.get(block).expect("a place names a page");
            if page.cached.referenced.replace(false) && passed < MOST_PASSED {
                passed += 1;
                continue;
            }
            inner.remove(block);
            self.evictions.set(self.evictions.get() + 1);
        }
    }
}

impl Inner {
    fn remove(&mut self, block: u64) {
        let chunks = self.table.chunks();
        let Some(page) = self.table.remove(block) else {
            return;
        };
        self.bytes -= cost(&page) + (chunks - self.table.chunks()) * CHUNK_BYTES;
        let place = page.cached.place.get();
        self.places[place as usize] = None;
        self.vacant.push(place);
    }
}

fn cost(page: &Page) -> u64 {
    page.size_bytes() as u64 + PAGE_OVERHEAD_BYTES
}

/// Ends a load when its reader is done or dropped.
struct LoadGuard<'a> {
    cache: &'a PageCache,
    block: u64,
    load: Rc<Load>,
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        self.cache.inner.borrow_mut().loading.remove(&self.block);
        self.load.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::{PageHeader, build_payload, seal};
    use super::*;
    use crate::types::TreeId;

    /// A cache that has just filled up has no page that was not used, and looking at each of them
    /// would take long.
    #[test]
    fn the_hand_does_not_go_round_where_all_were_used() {
        const PAGES: u64 = 8 * MOST_PASSED as u64;
        let header = PageHeader {
            kind: PageKind::FileHeader,
            level: 0,
            tree: TreeId::MASTER,
            checkpoint: 0,
        };
        let page = || {
            let mut bytes = build_payload(header, &[0; 100], 1);
            seal(&mut bytes, 0, false);
            Rc::new(Page::parse(bytes.into_bytes()).unwrap())
        };
        let bytes = cost(&page());
        let cache = PageCache::new(PAGES * (bytes + CHUNK_BYTES));
        for block in 0..PAGES {
            cache.insert(block, page(), true);
        }
        cache.set_budget(cache.bytes());
        cache.insert(PAGES, page(), true);
        assert!(cache.evictions.get() >= 1);
        // Room for many pages at once takes no more looks than that, and one for each page.
        cache.set_budget(cache.bytes() / 2);
        let (calls, evicted) = (2, cache.evictions.get());
        assert!(evicted >= PAGES / 3);
        let used = |block: &u64| {
            let inner = cache.inner.borrow();
            let page = inner.table.get(*block);
            page.is_some_and(|page| page.cached.referenced.get())
        };
        let untouched = (0..PAGES).filter(used).count();
        let looks = calls * MOST_PASSED as u64 + evicted;
        assert!(
            untouched as u64 + looks + 2 >= PAGES,
            "{untouched}, {looks}"
        );
    }
}
