//! Blocks of entries, as one build writes them and the same build reads them: the archive of two
//! arrays, read where it lies.

use bytes::Bytes;
use pinion_wire::Result;
use rkyv::rancor::Error as Malformed;
use rkyv::{Archive, Serialize};

use crate::error::error;

/// What an archive holds besides the two arrays: where they lie and how long they are.
const FRAME_BYTES: usize = size_of::<ArchivedBlock>();

/// Entries that are written together.
#[derive(Debug, Default, Archive, Serialize)]
pub(super) struct Block {
    /// Where the key of each entry ends, and its value.
    ends: Vec<u32>,
    /// Keys and values, one behind the other.
    bytes: Vec<u8>,
}

impl Block {
    /// Appends an entry whose value `write` appends.
    pub(super) fn append(&mut self, key: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len() as u32);
        write(&mut self.bytes);
        self.ends.push(self.bytes.len() as u32);
    }

    /// The bytes that [`Block::archive`] gives.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() + size_of_val(self.ends.as_slice()) + FRAME_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn records(&self) -> u64 {
        self.ends.len() as u64 / 2
    }

    /// What [`BlockReader`] reads.
    pub(super) fn archive(&self) -> Vec<u8> {
        let out = Vec::with_capacity(self.len());
        let archived = rkyv::api::high::to_bytes_in::<_, Malformed>(self, out);
        let archived = archived.expect("two arrays can be written to memory");
        assert!(archived.len() == self.len(), "arrays, and where they lie");
        archived
    }
}

/// The entries of a block, which are slices of it.
#[derive(Debug, Default)]
pub(super) struct BlockReader {
    ends: std::vec::IntoIter<u32>,
    bytes: Bytes,
    /// Where the next key begins.
    at: u32,
}

impl BlockReader {
    /// Reads what [`Block::archive`] has given.
    ///
    /// # Errors
    /// [`unreadable`], if it is not that.
    pub(super) fn new(archived: Bytes) -> Result<BlockReader> {
        let block = rkyv::access::<ArchivedBlock, Malformed>(&archived);
        let block = block.map_err(|_| unreadable())?;
        let ends: Vec<u32> = block.ends.iter().map(|end| end.to_native()).collect();
        let last = ends.last().map_or(0, |end| *end as usize);
        if !ends.len().is_multiple_of(2) || !ends.is_sorted() || last != block.bytes.len() {
            return Err(unreadable());
        }
        Ok(BlockReader {
            ends: ends.into_iter(),
            bytes: archived.slice_ref(&block.bytes),
            at: 0,
        })
    }
}

impl Iterator for BlockReader {
    /// A key and its value.
    type Item = (Bytes, Bytes);

    fn next(&mut self) -> Option<(Bytes, Bytes)> {
        let (key, value) = (self.ends.next()?, self.ends.next()?);
        let slice = |from: u32, to: u32| self.bytes.slice(from as usize..to as usize);
        let entry = (slice(self.at, key), slice(key, value));
        self.at = value;
        Some(entry)
    }
}

/// The error of a block that does not hold what was written.
fn unreadable() -> pinion_wire::Error {
    error(16817, "what was spilled to disk cannot be read back")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Block {
        let mut block = Block::default();
        block.append(b"key", |out| out.extend_from_slice(b"value"));
        block.append(b"", |_| {});
        block.append(b"last", |out| out.extend_from_slice(&[0; 1000]));
        block
    }

    #[test]
    fn entries_come_back_as_they_were_written() {
        assert_eq!(block().records(), 3);
        let reader = BlockReader::new(block().archive().into()).expect("sound");
        let found: Vec<_> = reader
            .map(|(key, value)| (key.to_vec(), value.len()))
            .collect();
        assert_eq!(
            found,
            [
                (b"key".to_vec(), 5),
                (b"".to_vec(), 0),
                (b"last".to_vec(), 1000)
            ]
        );
        assert!(Block::default().is_empty() && !block().is_empty());
    }

    #[test]
    fn what_is_no_block_is_refused() {
        let archived = Bytes::from(block().archive());
        for length in 0..archived.len() {
            let refused = BlockReader::new(archived.slice(..length)).expect_err("cut");
            assert_eq!(refused.code.0, 16817);
        }
        let malformed = |ends: &[u32]| Block {
            ends: ends.to_vec(),
            bytes: vec![7; 4],
        };
        for ends in [&[1, 4, 4][..], &[3, 2], &[1, 3], &[2, 5]] {
            assert!(
                BlockReader::new(malformed(ends).archive().into()).is_err(),
                "{ends:?}"
            );
        }
        assert!(BlockReader::new(malformed(&[1, 4]).archive().into()).is_ok());
    }
}
