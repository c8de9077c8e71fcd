//! Sorted pieces of an index's entries, and their merge.

use std::cmp::Ordering;
use std::rc::Rc;

use bytes::Bytes;
use pinion_storage::Key;
use pinion_wire::Result;

use super::run_file::RunReader;
use crate::limits::MERGE_STEP_ENTRIES;

/// Entries in one piece of memory; [`Chunk::sort`] brings them into the order of their keys.
#[derive(Default)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
}

/// Where an entry is.
#[derive(Clone, Copy)]
struct Slot {
    /// The first eight bytes of the key, which decide most comparisons.
    head: u64,
    offset: u32,
    key_len: u32,
    value_len: u32,
}

fn head(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = key.len().min(8);
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

impl Chunk {
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) {
        let offset = u32::try_from(self.bytes.len()).expect("a chunk ends long before");
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.slots.push(Slot {
            head: head(key),
            offset,
            key_len: key.len() as u32,
            value_len: value.len() as u32,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// What it takes of memory.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len() + self.slots.len() * size_of::<Slot>()
    }

    pub(super) fn key(&self, at: usize) -> &[u8] {
        let slot = &self.slots[at];
        &self.bytes[slot.offset as usize..][..slot.key_len as usize]
    }

    pub(super) fn value(&self, at: usize) -> &[u8] {
        let slot = &self.slots[at];
        &self.bytes[(slot.offset + slot.key_len) as usize..][..slot.value_len as usize]
    }

    pub(super) fn sort(&mut self) {
        let bytes = &self.bytes;
        let key = |slot: &Slot| &bytes[slot.offset as usize..][..slot.key_len as usize];
        self.slots
            .sort_unstable_by(|a, b| a.head.cmp(&b.head).then_with(|| key(a).cmp(key(b))));
    }

    /// The entries as a tree takes them.
    pub(super) fn into_records(self) -> Vec<(Key, Bytes)> {
        let bytes = Bytes::from(self.bytes);
        let record = |slot: &Slot| {
            let (start, key_len) = (slot.offset as usize, slot.key_len as usize);
            let value = start + key_len..start + key_len + slot.value_len as usize;
            (
                Key::from_slice(&bytes[start..start + key_len]),
                bytes.slice(value),
            )
        };
        self.slots.iter().map(record).collect()
    }
}

/// One of the sorted sequences that are merged.
struct Source {
    chunk: Rc<Chunk>,
    at: usize,
    /// What comes behind the chunk.
    rest: Option<RunReader>,
}

impl Source {
    fn compare(&self, other: &Source) -> Ordering {
        let heads = (
            self.chunk.slots[self.at].head,
            other.chunk.slots[other.at].head,
        );
        heads.0.cmp(&heads.1).then_with(|| {
            let key = self.chunk.key(self.at);
            key.cmp(other.chunk.key(other.at))
        })
    }
}

/// The merge of sorted sequences: a heap of those that have entries left.
pub(super) struct Merge {
    heap: Vec<Source>,
    /// The last key that was given.
    last: Option<Key>,
}

impl Merge {
    pub(super) async fn new(chunks: Vec<Rc<Chunk>>, runs: Vec<RunReader>) -> Result<Merge> {
        let mut heap = Vec::with_capacity(chunks.len() + runs.len());
        for chunk in chunks.into_iter().filter(|chunk| !chunk.is_empty()) {
            let source = Source {
                chunk,
                at: 0,
                rest: None,
            };
            heap.push(source);
        }
        for mut run in runs {
            if let Some(chunk) = run.next().await? {
                heap.push(Source {
                    chunk: Rc::new(chunk),
                    at: 0,
                    rest: Some(run),
                });
            }
        }
        let mut merge = Merge { heap, last: None };
        for at in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(at);
        }
        Ok(merge)
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let least = |a: usize, b: usize| match self.heap.get(b) {
                Some(other) if other.compare(&self.heap[a]).is_lt() => b,
                _ => a,
            };
            let next = least(least(at, 2 * at + 1), 2 * at + 2);
            if next == at {
                return;
            }
            self.heap.swap(at, next);
            at = next;
        }
    }

    /// The next entries in order, about `most_bytes` bytes of them; each key once. None when all
    /// are given.
    pub(super) async fn next(&mut self, most_bytes: usize) -> Result<Option<Chunk>> {
        let mut out = Chunk::default();
        for taken in 1usize.. {
            let Some(first) = self.heap.first_mut() else {
                break;
            };
            let key = first.chunk.key(first.at);
            let last = match out.len() {
                0 => self.last.as_deref(),
                len => Some(out.key(len - 1)),
            };
            if last != Some(key) {
                out.push(key, first.chunk.value(first.at));
            }
            first.at += 1;
            if first.at == first.chunk.len() {
                let next = match &mut first.rest {
                    Some(rest) => rest.next().await?,
                    None => None,
                };
                match next {
                    Some(chunk) => (first.chunk, first.at) = (Rc::new(chunk), 0),
                    None => {
                        self.heap.swap_remove(0);
                    }
                }
            }
            self.sift_down_first();
            if out.memory() >= most_bytes {
                break;
            }
            if taken.is_multiple_of(MERGE_STEP_ENTRIES) {
                pinion_runtime::yield_if_due().await;
            }
        }
        if !out.is_empty() {
            self.last = Some(Key::from_slice(out.key(out.len() - 1)));
        }
        Ok((!out.is_empty()).then_some(out))
    }

    fn sift_down_first(&mut self) {
        if !self.heap.is_empty() {
            self.sift_down(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(keys: &[&str]) -> Chunk {
        let mut chunk = Chunk::default();
        for key in keys {
            chunk.push(key.as_bytes(), key.to_uppercase().as_bytes());
        }
        chunk.sort();
        chunk
    }

    /// Merges chunks and compares the entries, however many come at a time.
    #[track_caller]
    fn check(chunks: &[&[&str]], expected: &[&str]) {
        for most_bytes in [1, 40, 1 << 20] {
            let chunks: Vec<Chunk> = chunks.iter().map(|keys| chunk(keys)).collect();
            let found = pinion_runtime::sim::block_on(1, async move {
                let chunks = chunks.into_iter().map(Rc::new).collect();
                let mut merge = Merge::new(chunks, Vec::new()).await.expect("no files");
                let mut found = Vec::new();
                while let Some(part) = merge.next(most_bytes).await.expect("no files") {
                    found.extend(part.into_records());
                }
                found
            });
            let found: Vec<(String, String)> = found
                .iter()
                .map(|(key, value)| {
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
                    (text(key), text(value))
                })
                .collect();
            let expected: Vec<(String, String)> = expected
                .iter()
                .map(|key| ((*key).to_owned(), key.to_uppercase()))
                .collect();
            assert_eq!(found, expected, "{most_bytes} bytes at a time");
        }
    }

    #[test]
    fn merges_are_sorted() {
        check(&[], &[]);
        check(&[&[]], &[]);
        check(&[&["b", "a", "c"]], &["a", "b", "c"]);
        check(
            &[&["d", "a"], &["c"], &["b", "e", "f"], &[]],
            &["a", "b", "c", "d", "e", "f"],
        );
        // Keys that differ behind their heads, and one that is the beginning of another.
        check(
            &[&["aaaaaaaaz", "aaaaaaaa"], &["aaaaaaaab", "aaaaaaa"]],
            &["aaaaaaa", "aaaaaaaa", "aaaaaaaab", "aaaaaaaaz"],
        );
        check(&[&["a", "b"], &["b", "c"], &["b"]], &["a", "b", "c"]);
    }
}
