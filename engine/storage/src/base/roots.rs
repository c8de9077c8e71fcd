//! What a manifest stores of one partition, and what the master tree stores of one tree.

use pinion_clock::Timestamp;

use super::page::PagePtr;
use crate::layout::{put, u32_at, u64_at};
use crate::limits::{BLOCK_BYTES, MAX_TREE_HEIGHT};

/// The state of one partition's page file at a checkpoint. Opaque outside: a manifest stores it,
/// and opening takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionRoots {
    /// Number of the checkpoint, counted by the partition.
    pub(crate) checkpoint: u64,
    /// Every version at or below it, and none above, is in the base.
    pub(crate) timestamp: u64,
    /// The master tree's root as packed by [`PagePtr::pack`]; 0 if there is no tree at all.
    pub(crate) master_word: u64,
    pub(crate) master_crc: u32,
    pub(crate) master_level: u8,
    /// The list of free extents; 0 if nothing is free.
    pub(crate) free_word: u64,
    pub(crate) free_crc: u32,
    /// Length of the file in blocks.
    pub(crate) file_blocks: u64,
    /// The number in the file's name; 0 for the one that the partition was made with.
    pub(crate) file: u32,
}

impl PartitionRoots {
    /// Length of the record in a manifest, whose layout stands there.
    pub(crate) const BYTES: usize = 56;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let mut put = |at, value: &[u8]| put(&mut bytes, at, value);
        put(0, &self.checkpoint.to_le_bytes());
        put(8, &self.timestamp.to_le_bytes());
        put(16, &self.master_word.to_le_bytes());
        put(24, &self.master_crc.to_le_bytes());
        put(28, &[self.master_level]);
        put(32, &self.free_word.to_le_bytes());
        put(40, &self.free_crc.to_le_bytes());
        put(44, &self.file.to_le_bytes());
        put(48, &self.file_blocks.to_le_bytes());
        bytes
    }

    /// None if the bytes are not such a record; they may have more than this program knows of.
    pub(crate) fn decode(bytes: &[u8]) -> Option<PartitionRoots> {
        let bytes = bytes.get(..Self::BYTES)?;
        (bytes[28] < MAX_TREE_HEIGHT).then(|| PartitionRoots {
            checkpoint: u64_at(bytes, 0),
            timestamp: u64_at(bytes, 8),
            master_word: u64_at(bytes, 16),
            master_crc: u32_at(bytes, 24),
            master_level: bytes[28],
            free_word: u64_at(bytes, 32),
            free_crc: u32_at(bytes, 40),
            file: u32_at(bytes, 44),
            file_blocks: u64_at(bytes, 48),
        })
    }

    /// The base's timestamp.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::from_u64(self.timestamp)
    }

    /// Number of the checkpoint, counted by the partition.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// Length of the page file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_blocks * BLOCK_BYTES as u64
    }

    pub(crate) fn master(&self) -> Option<(PagePtr, u8)> {
        (self.master_word != 0).then(|| {
            (
                PagePtr::unpack(self.master_word, self.master_crc),
                self.master_level,
            )
        })
    }

    pub(crate) fn free_list(&self) -> Option<PagePtr> {
        (self.free_word != 0).then(|| PagePtr::unpack(self.free_word, self.free_crc))
    }
}

/// The root and the exact counts of one tree: a value of the master tree.
///
/// ```text
///  0 root PagePtr (12)  12 level u8  13 zero (3)  16 records u64  24 key_bytes u64
/// 32 value_bytes u64  40 pages u64  48 blocks u64
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeRoot {
    /// The root page.
    pub ptr: PagePtr,
    /// Its level: 0 if it is a leaf.
    pub level: u8,
    pub counts: Counts,
    /// Pages, overflow extents included.
    pub pages: u64,
    /// Blocks of those pages.
    pub blocks: u64,
}

/// Exact numbers of one tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub records: u64,
    /// Sum of the lengths of the keys.
    pub key_bytes: u64,
    /// Sum of the lengths of the values.
    pub value_bytes: u64,
}

impl Counts {
    /// Counts one more record.
    pub fn add(&mut self, key_len: usize, value_len: u64) {
        self.records += 1;
        self.key_bytes += key_len as u64;
        self.value_bytes += value_len;
    }

    /// Adds what another part has.
    pub fn merge(&mut self, other: Counts) {
        self.records += other.records;
        self.key_bytes += other.key_bytes;
        self.value_bytes += other.value_bytes;
    }

    /// Takes the difference between what was counted and what was found.
    pub(crate) fn correct(&mut self, kept: Counts, found: Counts) {
        let differ =
            |count: u64, kept: u64, found: u64| count.wrapping_add(found.wrapping_sub(kept));
        self.records = differ(self.records, kept.records, found.records);
        self.key_bytes = differ(self.key_bytes, kept.key_bytes, found.key_bytes);
        self.value_bytes = differ(self.value_bytes, kept.value_bytes, found.value_bytes);
    }

    /// Counts the change of one key from one value length to another.
    pub(crate) fn change(&mut self, key_len: usize, before: Option<u64>, after: Option<u64>) {
        if let Some(len) = before {
            let less =
                |count: u64, by: u64| count.checked_sub(by).expect("a count fell below zero");
            self.records = less(self.records, 1);
            self.key_bytes = less(self.key_bytes, key_len as u64);
            self.value_bytes = less(self.value_bytes, len);
        }
        if let Some(len) = after {
            self.add(key_len, len);
        }
    }
}

impl TreeRoot {
    pub(crate) const BYTES: usize = 56;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..PagePtr::BYTES].copy_from_slice(&self.ptr.encode());
        bytes[12] = self.level;
        let numbers = [
            self.counts.records,
            self.counts.key_bytes,
            self.counts.value_bytes,
            self.pages,
            self.blocks,
        ];
        for (index, number) in numbers.into_iter().enumerate() {
            bytes[16 + index * 8..][..8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// None if the bytes are not a root record.
    pub(crate) fn decode(bytes: &[u8]) -> Option<TreeRoot> {
        if bytes.len() != Self::BYTES || bytes[12] >= MAX_TREE_HEIGHT || bytes[13..16] != [0; 3] {
            return None;
        }
        let number = |index: usize| {
            u64::from_le_bytes(
                bytes[16 + index * 8..][..8]
                    .try_into()
                    .expect("eight bytes"),
            )
        };
        Some(TreeRoot {
            ptr: PagePtr::decode(&bytes[..PagePtr::BYTES]),
            level: bytes[12],
            counts: Counts {
                records: number(0),
                key_bytes: number(1),
                value_bytes: number(2),
            },
            pages: number(3),
            blocks: number(4),
        })
    }
}
