//! Cursors that are read by blocks, in the model: whole, in part and given back.

use super::*;
use crate::partition::Block;

/// A cursor with the block that it has filled.
pub(super) struct BlockReader {
    cursor: Cursor,
    block: Block,
}

impl BlockReader {
    pub(super) fn new(cursor: Cursor) -> BlockReader {
        BlockReader {
            cursor,
            block: Block::default(),
        }
    }

    pub(super) fn seek(&mut self, key: &[u8]) {
        self.cursor.take_back(&mut self.block);
        self.cursor.seek(key);
    }

    /// As `seek`, where the key lies ahead.
    pub(super) fn seek_ahead(&mut self, key: &[u8]) {
        self.cursor.seek_ahead(&mut self.block, key);
    }

    /// The next record by a step of the cursor.
    pub(super) async fn next(&mut self) -> Option<(Key, Bytes)> {
        self.cursor.take_back(&mut self.block);
        let next = self.cursor.next().await.unwrap();
        next.map(|(key, read)| (key, read.value))
    }

    /// The next record of a block, whose others are kept for later or given back.
    pub(super) async fn next_of_block(&mut self, keeps_block: bool) -> Option<(Key, Bytes)> {
        if self.block.is_empty() && !self.cursor.fill(&mut self.block).await.unwrap() {
            return None;
        }
        let record = self.block.front().expect("a block that was filled");
        let given = (record.key(), record.to_bytes());
        assert_eq!(record.value(), given.1);
        self.block.pass();
        if !keeps_block {
            self.cursor.take_back(&mut self.block);
        }
        Some(given)
    }
}

/// As [`all_by_blocks`], of a cursor that has read some of another range before.
pub(super) async fn all_behind(
    cursor: Cursor,
    range: KeyRange,
    rng: &mut Rng,
) -> Vec<(Vec<u8>, Bytes)> {
    let mut reader = BlockReader::new(cursor);
    for _ in 0..rng.below(20) {
        if reader.next_of_block(rng.chance(0.9)).await.is_none() {
            break;
        }
    }
    reader.cursor.take_back(&mut reader.block);
    reader.cursor.enter(range);
    all_by_blocks(reader.cursor, rng).await
}

/// Every record that a cursor finds, by blocks, some of which are given back before all of their
/// records were passed, and by single steps among them.
pub(super) async fn all_by_blocks(cursor: Cursor, rng: &mut Rng) -> Vec<(Vec<u8>, Bytes)> {
    let mut reader = BlockReader::new(cursor);
    let mut all = Vec::new();
    // Most are read to their ends: what is given back is found one by one.
    let (steps, returns) = match rng.chance(0.3) {
        true => (0.1, 0.1),
        false => (0.0, 0.0),
    };
    loop {
        let next = match rng.chance(steps) {
            true => reader.next().await,
            false => reader.next_of_block(!rng.chance(returns)).await,
        };
        match next {
            Some((key, value)) => all.push((key.to_vec(), value)),
            None => return all,
        }
    }
}
