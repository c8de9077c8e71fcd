//! The pages in memory by block: a table, for a page file's blocks are dense, and a hash costs a
//! cache miss more.

use std::rc::Rc;

use super::hint;
use super::page::{FIRST_READ_BYTES, Page};

/// Blocks of one chunk.
const CHUNK_BLOCKS: usize = 64;
/// What a chunk takes.
pub(super) const CHUNK_BYTES: u64 = size_of::<Chunk>() as u64;

struct Chunk {
    pages: [Place; CHUNK_BLOCKS],
    used: usize,
}

/// A page, and where its bytes lie: what a search reads first is asked for before the page itself
/// is looked at.
#[derive(Default)]
struct Place {
    page: Option<Rc<Page>>,
    first_read: usize,
}

/// Pages by their first block. A chunk is there while one of its blocks has a page; beside that the
/// table takes eight bytes for each 64 blocks of the file.
#[derive(Default)]
pub(super) struct BlockTable {
    chunks: Vec<Option<Box<Chunk>>>,
    chunks_used: u64,
    len: usize,
}

fn place(block: u64) -> (usize, usize) {
    let chunk = (block / CHUNK_BLOCKS as u64) as usize;
    (chunk, (block % CHUNK_BLOCKS as u64) as usize)
}

impl BlockTable {
    /// The page that begins with this block.
    pub(super) fn get(&self, block: u64) -> Option<&Rc<Page>> {
        let (chunk, index) = place(block);
        let place = &self.chunks.get(chunk)?.as_ref()?.pages[index];
        hint::lines(place.first_read, FIRST_READ_BYTES);
        place.page.as_ref()
    }

    /// The same for a reader that wants it soon: what it will read first is asked for.
    pub(super) fn expect(&self, block: u64) {
        if let Some(page) = self.get(block) {
            hint::line(std::ptr::from_ref(&**page).addr());
        }
    }

    /// Adds a page.
    ///
    /// # Panics
    /// When the block has one.
    pub(super) fn insert(&mut self, block: u64, page: Rc<Page>) {
        let (chunk, index) = place(block);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let chunk = self.chunks[chunk].get_or_insert_with(|| {
            self.chunks_used += 1;
            Box::new(Chunk {
                pages: [const {
                    Place {
                        page: None,
                        first_read: 0,
                    }
                }; CHUNK_BLOCKS],
                used: 0,
            })
        });
        let place = &mut chunk.pages[index];
        assert!(place.page.is_none(), "block {block} is cached twice");
        *place = Place {
            first_read: page.first_read(),
            page: Some(page),
        };
        chunk.used += 1;
        self.len += 1;
    }

    /// Takes a page out.
    pub(super) fn remove(&mut self, block: u64) -> Option<Rc<Page>> {
        let (at, index) = place(block);
        let chunk = self.chunks.get_mut(at)?.as_mut()?;
        let page = std::mem::take(&mut chunk.pages[index]).page?;
        chunk.used -= 1;
        self.len -= 1;
        if chunk.used == 0 {
            self.chunks[at] = None;
            self.chunks_used -= 1;
        }
        Some(page)
    }

    /// Number of pages.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of chunks that are there.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks_used
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::base::page::{PageHeader, PageKind, Record, build_page, seal};
    use crate::types::TreeId;

    struct One;

    impl Record for One {
        fn key(&self) -> &[u8] {
            b"key"
        }
        fn value(&self) -> &[u8] {
            b"value"
        }
        fn is_overflow(&self) -> bool {
            false
        }
    }

    fn page(block: u64) -> Rc<Page> {
        let header = PageHeader {
            kind: PageKind::Leaf,
            level: 0,
            tree: TreeId(9),
            checkpoint: 1,
        };
        let mut bytes = build_page(header, &[One]);
        seal(&mut bytes, block, false);
        Rc::new(Page::built(bytes.into_bytes()))
    }

    #[test]
    fn chunks_come_and_go_with_their_pages() {
        let mut table = BlockTable::default();
        for block in [1, 63, 64, 1000] {
            assert!(table.get(block).is_none() && table.remove(block).is_none());
            table.insert(block, page(block));
            assert!(table.get(block).is_some() && table.get(block + 1).is_none());
        }
        assert_eq!((table.len(), table.chunks()), (4, 3));
        assert!(table.remove(1).is_some() && table.get(1).is_none());
        assert_eq!((table.len(), table.chunks()), (3, 3));
        assert!(table.remove(63).is_some());
        assert_eq!((table.len(), table.chunks()), (2, 2));
        assert!(table.get(64).is_some() && table.get(1000).is_some());
    }
}
