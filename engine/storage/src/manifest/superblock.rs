//! Superblocks: four blocks in one file that say which manifest is true.
//!
//! Slots A and B take turns by generation, each in two copies. A copy is written and flushed before
//! its twin, so a crash spoils at most one copy of the older slot. Nothing relies on a new
//! superblock before both its copies are durable; until then the older one may still be the truth.
//! Hence a slot with both copies invalid can only be damage, and since it may have been the newest,
//! the directory is refused.
//!
//! ```text
//! file:   0 A copy 1    4096 B copy 1    8192 A copy 2    12288 B copy 2
//! block:  0 magic u64   8 version u32   12 crc32c u32 (its own four bytes read as zero)
//!        16 generation u64   24 epoch u64   32 directory u64
//!        40 partitions u16   42 hash version u16   44 manifest crc u32
//!        48 manifest generation u64   56 manifest length u64
//!        64 all_durable u64   72 base u64   80 zeros .. 4096
//! ```

use pinion_clock::Timestamp;

use crate::layout::{checksum_around, put, u16_at, u32_at, u64_at};
use crate::limits::{BLOCK_BYTES, MAX_PARTITIONS};

pub(crate) const SUPERBLOCK_BYTES: usize = BLOCK_BYTES;
const MAGIC: u64 = u64::from_le_bytes(*b"PINIONSB");
const VERSION: u32 = 1;

/// One superblock. What it repeats of its manifest lets a reader check that the two belong
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Counts the changes; the newest superblock has the highest.
    pub generation: u64,
    /// Counts the starts of the node.
    pub epoch: u64,
    /// The random identity of the data directory.
    pub directory: u64,
    /// Number of partitions.
    pub partitions: u16,
    /// The hash that places keys.
    pub hash_version: u16,
    /// The manifest that it makes true.
    pub manifest_generation: u64,
    /// That manifest's length in bytes.
    pub manifest_len: u64,
    /// The crc32c of all its bytes.
    pub manifest_crc: u32,
    /// As the manifest records it.
    pub all_durable: Timestamp,
    /// The last entry that the base contains.
    pub base: Timestamp,
}

/// One of the four places of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    /// 0 is A, 1 is B.
    pub(crate) slot: usize,
    pub(crate) copy: usize,
}

/// The four places in file order.
pub(crate) const COPIES: [Copy; 4] = [
    Copy { slot: 0, copy: 0 },
    Copy { slot: 1, copy: 0 },
    Copy { slot: 0, copy: 1 },
    Copy { slot: 1, copy: 1 },
];

impl Copy {
    pub(crate) fn offset(self) -> u64 {
        ((self.copy * 2 + self.slot) * SUPERBLOCK_BYTES) as u64
    }
}

impl Superblock {
    /// The slot that this generation is written to.
    pub(crate) fn slot(&self) -> usize {
        (self.generation % 2) as usize
    }

    pub(crate) fn encode(&self, block: &mut [u8]) {
        assert_eq!(block.len(), SUPERBLOCK_BYTES);
        block.fill(0);
        let mut put = |at, bytes: &[u8]| put(block, at, bytes);
        put(0, &MAGIC.to_le_bytes());
        put(8, &VERSION.to_le_bytes());
        put(16, &self.generation.to_le_bytes());
        put(24, &self.epoch.to_le_bytes());
        put(32, &self.directory.to_le_bytes());
        put(40, &self.partitions.to_le_bytes());
        put(42, &self.hash_version.to_le_bytes());
        put(44, &self.manifest_crc.to_le_bytes());
        put(48, &self.manifest_generation.to_le_bytes());
        put(56, &self.manifest_len.to_le_bytes());
        put(64, &self.all_durable.as_u64().to_le_bytes());
        put(72, &self.base.as_u64().to_le_bytes());
        let crc = checksum_around(block, 12);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads one block; the error says what is wrong with it.
    pub(crate) fn decode(block: &[u8]) -> Result<Superblock, String> {
        if block.len() != SUPERBLOCK_BYTES {
            return Err(format!(
                "it has {} bytes of {SUPERBLOCK_BYTES}",
                block.len()
            ));
        }
        if u32_at(block, 12) != checksum_around(block, 12) {
            return Err("its checksum does not match".to_owned());
        }
        if u64_at(block, 0) != MAGIC {
            return Err("it is not a superblock".to_owned());
        }
        if u32_at(block, 8) != VERSION {
            return Err(format!(
                "its version is {}, and this program knows {VERSION}",
                u32_at(block, 8)
            ));
        }
        let superblock = Superblock {
            generation: u64_at(block, 16),
            epoch: u64_at(block, 24),
            directory: u64_at(block, 32),
            partitions: u16_at(block, 40),
            hash_version: u16_at(block, 42),
            manifest_crc: u32_at(block, 44),
            manifest_generation: u64_at(block, 48),
            manifest_len: u64_at(block, 56),
            all_durable: Timestamp::from_u64(u64_at(block, 64)),
            base: Timestamp::from_u64(u64_at(block, 72)),
        };
        if superblock.partitions == 0 || superblock.partitions > MAX_PARTITIONS {
            return Err(format!("it names {} partitions", superblock.partitions));
        }
        Ok(superblock)
    }
}

/// Picks the newest superblock of a file, given the four copies in file order. The error names the
/// copies of a slot that are both invalid.
pub(crate) fn choose(
    copies: &[Result<Superblock, String>; 4],
) -> Result<Superblock, [(Copy, String); 2]> {
    let mut newest: Option<Superblock> = None;
    for slot in 0..2 {
        let mut invalid = Vec::new();
        for (place, copy) in COPIES
            .iter()
            .zip(copies)
            .filter(|(place, _)| place.slot == slot)
        {
            match copy {
                Ok(superblock)
                    if newest.is_none_or(|other| other.generation < superblock.generation) =>
                {
                    newest = Some(*superblock);
                }
                Ok(_) => {}
                Err(what) => invalid.push((*place, what.clone())),
            }
        }
        if let Ok(both) = <[_; 2]>::try_from(invalid) {
            return Err(both);
        }
    }
    Ok(newest.expect("each slot has a valid copy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(generation: u64) -> Superblock {
        Superblock {
            generation,
            epoch: 3,
            directory: 99,
            partitions: 4,
            hash_version: 1,
            manifest_generation: generation,
            manifest_len: 4096,
            manifest_crc: 7,
            all_durable: Timestamp::new(5, 5),
            base: Timestamp::new(5, 4),
        }
    }

    #[test]
    fn round_trip_and_every_flip() {
        let mut good = vec![0xff; SUPERBLOCK_BYTES];
        superblock(8).encode(&mut good);
        assert_eq!(Superblock::decode(&good), Ok(superblock(8)));
        for bit in 0..SUPERBLOCK_BYTES * 8 {
            let mut block = good.clone();
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&block).is_err(), "bit {bit}");
        }
        assert!(Superblock::decode(&good[..100]).is_err());
    }

    #[test]
    fn a_slot_without_a_valid_copy_is_refused() {
        // Copies in file order: A, B, A, B; 0 stands for an invalid one.
        let check = |generations: [u64; 4], expected: Option<u64>| {
            let copies = generations.map(|g| {
                if g == 0 {
                    Err("damaged".to_owned())
                } else {
                    Ok(superblock(g))
                }
            });
            assert_eq!(
                choose(&copies).ok().map(|chosen| chosen.generation),
                expected,
                "{generations:?}"
            );
        };
        check([4, 3, 4, 3], Some(4));
        check([4, 5, 4, 5], Some(5));
        // A crash while the first, then the second copy of 5 was written.
        check([4, 0, 4, 3], Some(4));
        check([4, 5, 4, 0], Some(5));
        check([4, 5, 4, 3], Some(5));
        check([0, 5, 4, 3], Some(5));
        // Damage to both copies of either slot.
        check([0, 5, 0, 5], None);
        check([4, 0, 4, 0], None);
        check([0, 0, 4, 5], Some(5));
    }
}
