//! A Bloom filter over the keys of a run: a point read of a key that the run does not have costs a
//! few words of memory instead of a descent.

use std::hash::Hasher;

use rustc_hash::FxHasher;

use crate::limits::{RUN_FILTER_BITS, RUN_FILTER_PROBES};
use crate::types::TreeId;

/// The keys that were added are in it; of the others about one in a hundred seems to be.
pub(super) struct Filter {
    words: Vec<u64>,
}

impl Filter {
    /// A filter for about `keys` keys, in at most `most_bytes`: one that is too small for its keys
    /// only costs reads.
    pub(super) fn new(keys: usize, most_bytes: usize) -> Filter {
        let bits = keys.max(1).saturating_mul(RUN_FILTER_BITS);
        let bits = bits.min(most_bytes.saturating_mul(8)).max(1);
        Filter {
            words: vec![0; bits.div_ceil(u64::BITS as usize)],
        }
    }

    pub(super) fn add(&mut self, tree: TreeId, key: &[u8]) {
        for (word, bit) in probes(self.words.len(), tree, key) {
            self.words[word] |= bit;
        }
    }

    /// Whether the key may have been added.
    pub(super) fn may_have(&self, tree: TreeId, key: &[u8]) -> bool {
        probes(self.words.len(), tree, key).all(|(word, bit)| self.words[word] & bit != 0)
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.words.len() * size_of::<u64>()) as u64
    }
}

/// The words and bits of a key, by double hashing.
fn probes(words: usize, tree: TreeId, key: &[u8]) -> impl Iterator<Item = (usize, u64)> {
    let mut hasher = FxHasher::default();
    hasher.write_u64(tree.0);
    hasher.write(key);
    let first = mix(hasher.finish());
    let second = mix(first) | 1;
    (0..RUN_FILTER_PROBES).map(move |probe| {
        let hash = first.wrapping_add(second.wrapping_mul(probe));
        let word = (u128::from(hash) * words as u128) >> u64::BITS;
        // The bit comes from the low half of the hash, the word from the high one.
        (word as usize, 1 << (hash & 63))
    })
}

/// The finaliser of MurmurHash3: each bit of the input changes about half of the output.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_found_and_little_else() {
        let check = |keys: u64, most_wrong: usize| {
            let mut filter = Filter::new(keys as usize, usize::MAX);
            for key in 0..keys {
                filter.add(TreeId(1), &key.to_be_bytes());
            }
            assert!((0..keys).all(|key| filter.may_have(TreeId(1), &key.to_be_bytes())));
            let others = (0..10_000u64).map(|key| (TreeId(2), key));
            let beyond = (keys..keys + 10_000).map(|key| (TreeId(1), key));
            let wrong = others
                .chain(beyond)
                .filter(|(tree, key)| filter.may_have(*tree, &key.to_be_bytes()))
                .count();
            assert!(wrong <= most_wrong, "{wrong} of 20,000 with {keys} keys");
        };
        let mut full = Filter::new(100_000, 1_000);
        (0..100_000u64).for_each(|key| full.add(TreeId(1), &key.to_be_bytes()));
        assert!(full.bytes() <= 1_000);
        assert!((0..100_000u64).all(|key| full.may_have(TreeId(1), &key.to_be_bytes())));
        check(0, 0);
        check(1, 1_000);
        check(1_000, 400);
        check(100_000, 400);
    }
}
