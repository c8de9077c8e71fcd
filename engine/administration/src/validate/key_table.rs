//! Sums over the hashes of index keys, by bucket: those that documents ask for less those that
//! indexes have. Where every sum is zero nothing is missing and nothing is too many; where one is
//! not, few keys remain to be examined.
//!
//! Each key is in two buckets and is suspected where both sums are wrong, so that one wrong key
//! makes few others suspected.

use std::hash::Hasher;

use pinion_storage::{PartitionId, TreeId};
use rustc_hash::FxHasher;

use crate::limits::{MAX_KEY_BUCKETS, MIN_KEY_BUCKETS};

/// Bytes of a bucket: one in each half.
const BUCKET_BYTES: usize = 16;

/// What a table knows of an entry: of its place, its key and its TypeBits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyHash(u64);

impl KeyHash {
    pub(super) fn of(
        tree: TreeId,
        partition: PartitionId,
        key: &[u8],
        type_bits: &[u8],
    ) -> KeyHash {
        let mut hasher = FxHasher::default();
        hasher.write_u64(tree.0);
        hasher.write_u64(u64::from(partition.0));
        hasher.write_usize(key.len());
        hasher.write(key);
        hasher.write(type_bits);
        // All bits of it are used, so all must depend on all bytes.
        let mut hash = hasher.finish();
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        KeyHash(hash ^ (hash >> 33))
    }

    pub(super) fn value(self) -> u64 {
        self.0
    }
}

/// The sums.
#[derive(Clone, Debug)]
pub(super) struct KeyTable {
    /// The first half by the low bits of hashes, the second by the high ones.
    sums: Vec<u64>,
}

impl KeyTable {
    /// How many buckets each of `tables` tables may have in so much memory.
    pub(super) fn buckets_within(memory_bytes: u64, tables: usize) -> usize {
        let fitting = memory_bytes / (tables.max(1) * BUCKET_BYTES) as u64;
        let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
        let fitting = fitting.clamp(MIN_KEY_BUCKETS, MAX_KEY_BUCKETS);
        // A power of two, downwards.
        1 << fitting.ilog2()
    }

    /// A table without keys; `buckets` is a power of two.
    pub(super) fn new(buckets: usize) -> KeyTable {
        assert!(buckets.is_power_of_two(), "a bucket is chosen by bits");
        KeyTable {
            sums: vec![0; 2 * buckets],
        }
    }

    fn places(&self, hash: KeyHash) -> [usize; 2] {
        let buckets = self.sums.len() / 2;
        let mask = buckets - 1;
        [
            hash.0 as usize & mask,
            buckets + ((hash.0 >> 32) as usize & mask),
        ]
    }

    /// A document asks for the key.
    pub(super) fn add(&mut self, hash: KeyHash) {
        for place in self.places(hash) {
            self.sums[place] = self.sums[place].wrapping_add(hash.0);
        }
    }

    /// An index has the key.
    pub(super) fn take(&mut self, hash: KeyHash) {
        for place in self.places(hash) {
            self.sums[place] = self.sums[place].wrapping_sub(hash.0);
        }
    }

    /// Adds what another table of the same size has.
    pub(super) fn merge(&mut self, other: &KeyTable) {
        assert!(
            self.sums.len() == other.sums.len(),
            "tables of one validation are alike"
        );
        for (sum, other) in self.sums.iter_mut().zip(&other.sums) {
            *sum = sum.wrapping_add(*other);
        }
    }

    /// Whether the key may be one that is missing or too many.
    pub(super) fn suspects(&self, hash: KeyHash) -> bool {
        self.places(hash).iter().all(|place| self.sums[*place] != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u32) -> KeyHash {
        KeyHash::of(TreeId(7), PartitionId(1), &n.to_be_bytes(), b"")
    }

    #[test]
    fn only_what_is_wrong_and_few_others_are_suspected() {
        // Keys that documents ask for beyond 1000 common ones, and keys that the index has beyond
        // these.
        let check = |missing: &[u32], extra: &[u32]| {
            let (mut documents, mut index) = (KeyTable::new(256), KeyTable::new(256));
            let common = 0..1000;
            let asked = common.clone().chain(missing.iter().copied());
            asked.for_each(|n| documents.add(hash(n)));
            let there = common.clone().chain(extra.iter().copied());
            there.for_each(|n| index.take(hash(n)));
            documents.merge(&index);
            let wrong = missing.iter().chain(extra);
            assert!(wrong.clone().all(|n| documents.suspects(hash(*n))));
            let suspected = common.filter(|n| documents.suspects(hash(*n))).count();
            let least = missing.len() + extra.len();
            assert!(suspected <= least, "{suspected} beside {least}");
        };
        check(&[], &[]);
        check(&[5000], &[]);
        check(&[], &[5000]);
        check(&[5000, 5001, 5002], &[6000, 6001]);
    }

    #[test]
    fn entries_differ_by_place_and_type_bits() {
        let of = |tree, partition, key: &[u8], bits: &[u8]| {
            KeyHash::of(TreeId(tree), PartitionId(partition), key, bits)
        };
        let all = [
            of(7, 1, b"ab", b""),
            of(8, 1, b"ab", b""),
            of(7, 2, b"ab", b""),
            of(7, 1, b"a", b"b"),
            of(7, 1, b"ab", b"c"),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one));
        }
    }

    #[test]
    fn a_table_stays_within_its_memory() {
        let check = |bytes, tables, expected| {
            assert_eq!(KeyTable::buckets_within(bytes, tables), expected);
        };
        check(0, 4, MIN_KEY_BUCKETS);
        check(1 << 20, 4, 1 << 14);
        check((1 << 20) + 5000, 4, 1 << 14);
        check(u64::MAX, 1, MAX_KEY_BUCKETS);
    }
}
