//! The manifest's content and its bytes: a fixed header, then two tables.
//!
//! ```text
//!   0 magic u64       8 version u32        12 crc32c u32 (its own four bytes read as zero)
//!  16 generation u64  24 directory u64     32 epoch u64
//!  40 partitions u16  42 hash version u16
//!  44 flags u32 (1: spilled, 2: own, 4: transaction, 8: copied, 16: standalone)
//!  48 base u64        56 all_durable u64   64 retained_above u64
//!  72 length of the header u32   76 number of cuts u32   80 length of a cut u32
//!  84 length of a root u32       88 stable u64           96 own_base u64
//! 104 number of own cuts u32   108 ended u32            112 transaction u64
//! 120 standalone_above u64     128 zeros .. 256
//! cut:   0 epoch u64     8 at u64         16 discarded_through u64
//! root:  0 checkpoint u64   8 timestamp u64   16 master_word u64   24 master_crc u32
//!       28 master_level u8  29 zero (3)       32 free_word u64     40 free_crc u32   44 file u32
//!       48 file_blocks u64
//! ```
//!
//! The cuts follow the header, one root for each partition follows them, then come the cuts of the
//! ring of what is not replicated; zeros follow up to a multiple of 4096. A field that is added
//! takes zeros of the header, or makes the records of a table longer: zero is what a manifest says
//! that was written before, and a program that does not know the field passes over it. What such a
//! program must not pass over is a flag, of which it refuses those that it does not know.

use pinion_clock::Timestamp;

use super::cuts::{Cut, Cuts};
use crate::base::PartitionRoots;
use crate::layout::{checksum_around, put, u16_at, u32_at, u64_at};
use crate::limits::{BLOCK_BYTES, MAX_PARTITIONS};

const MAGIC: u64 = u64::from_le_bytes(*b"PINIONMF");
const VERSION: u32 = 3;
/// Some page file has spilled changes: a program that does not know of them would lose them.
const FLAG_SPILLED: u32 = 1;
/// There is a ring of what is not replicated: a program that does not know of it would lose that.
const FLAG_OWN: u32 = 2;
/// There is a transaction that the base holds nothing of, though it has started: a program that
/// does not know of it would lose it.
const FLAG_TRANSACTION: u32 = 4;
/// Some page file was copied from another node and has another name: a program that does not know
/// of it would open an older one.
const FLAG_COPIED: u32 = 8;
/// Some entries are of a standalone: a program that does not know of them would take them for those
/// of the set's oplog.
const FLAG_STANDALONE: u32 = 16;
const FLAGS: u32 = FLAG_SPILLED | FLAG_OWN | FLAG_TRANSACTION | FLAG_COPIED | FLAG_STANDALONE;
/// How processes have ended. An older program takes an end that it does not know for a crash.
const END_CLOSED: u32 = 1;
const END_MEMBER_CLOSED: u32 = 2;
const HEADER_BYTES: usize = 256;
const CRC_AT: usize = 12;
const CUT_BYTES: usize = 24;
/// The hash that places keys in partitions; a data directory keeps the one it was made with.
pub(crate) const HASH_VERSION: u16 = 1;

/// What is true of a data directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The random identity of the data directory.
    pub directory: u64,
    /// Counts the manifests.
    pub generation: u64,
    /// Counts the starts of the node.
    pub epoch: u64,
    /// Number of partitions.
    pub partitions: u16,
    /// The hash that places keys.
    pub hash_version: u16,
    /// The last entry that the base contains: the first entry after it links to it.
    pub base: u64,
    /// As known when this was written.
    pub all_durable: u64,
    /// Entries at or below this may be gone from the rings.
    pub retained_above: u64,
    /// What earlier epochs lost.
    pub cuts: Cuts,
    /// One for each partition, in order.
    pub roots: Vec<PartitionRoots>,
    /// Whether changes wait in some page file to be merged.
    pub spilled: bool,
    /// What a member of a replica set will not roll back, as known when this was written, if that
    /// is above the base.
    pub stable: u64,
    /// Whether there is a ring of what is not replicated.
    pub has_own: bool,
    /// The last entry of that ring that the base contains.
    pub own_base: u64,
    /// What earlier epochs lost of that ring.
    pub own_cuts: Cuts,
    /// The first entry of the oldest transaction that has entries in what the base contains, and
    /// its outcome behind that; 0 for none.
    pub transaction: u64,
    /// What is above it was written by a standalone over the data of a member, and is no part of
    /// the set's oplog; 0 for none.
    pub standalone_above: u64,
    /// The process that wrote this has ended in order, with everything durable, and the directory
    /// was not opened since.
    pub closed: bool,
    /// The member had ended in order over whose data a standalone writes.
    pub member_closed: bool,
}

impl Manifest {
    /// Nothing at or below it will be rolled back.
    pub(crate) fn stable(&self) -> Timestamp {
        Timestamp::from_u64(self.stable.max(self.base))
    }

    /// [`Manifest::transaction`], if there is one.
    pub(crate) fn transaction(&self) -> Option<Timestamp> {
        (self.transaction > 0).then(|| Timestamp::from_u64(self.transaction))
    }

    /// [`Manifest::standalone_above`], if there is such a timestamp.
    pub(crate) fn standalone_above(&self) -> Option<Timestamp> {
        (self.standalone_above > 0).then(|| Timestamp::from_u64(self.standalone_above))
    }

    /// [`Manifest::base`] as a timestamp.
    pub(crate) fn base(&self) -> Timestamp {
        Timestamp::from_u64(self.base)
    }

    /// Whether some page file has another name than the one that its partition was made with.
    fn is_copied(&self) -> bool {
        self.roots.iter().any(|roots| roots.file > 0)
    }

    /// What must hold of every manifest; `Err` names what does not.
    fn check_sound(&self) -> Result<(), &'static str> {
        if self.partitions == 0 || self.partitions > MAX_PARTITIONS {
            return Err("its number of partitions is out of range");
        }
        if self.roots.len() != usize::from(self.partitions) {
            return Err("it does not have one root for each partition");
        }
        if self.retained_above > self.base {
            return Err("entries above its base are not retained");
        }
        if self.base > self.all_durable {
            return Err("its base holds what was not durable");
        }
        let is_kept = self.retained_above < self.transaction && self.transaction <= self.base;
        if self.transaction > 0 && !is_kept {
            return Err("a transaction that it needs is not retained");
        }
        let mut cuts = self.cuts.0.iter().chain(&self.own_cuts.0);
        if cuts.any(|cut| cut.epoch > self.epoch) {
            return Err("it has a cut of a later epoch");
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        self.check_sound()
            .expect("only sound manifests are written");
        let (cuts, own) = (self.cuts.0.len(), self.own_cuts.0.len());
        let roots = self.roots.len() * PartitionRoots::BYTES;
        let tables = (cuts + own) * CUT_BYTES + roots;
        let mut bytes = vec![0; (HEADER_BYTES + tables).next_multiple_of(BLOCK_BYTES)];
        self.encode_header(&mut bytes);
        let (cuts, rest) = bytes[HEADER_BYTES..][..tables].split_at_mut(cuts * CUT_BYTES);
        let (roots, own_cuts) = rest.split_at_mut(roots);
        encode_cuts(&self.cuts, cuts);
        encode_cuts(&self.own_cuts, own_cuts);
        let records = roots.chunks_exact_mut(PartitionRoots::BYTES);
        for (root, record) in self.roots.iter().zip(records) {
            record.copy_from_slice(&root.encode());
        }
        let crc = checksum_around(&bytes, CRC_AT);
        put(&mut bytes, CRC_AT, &crc.to_le_bytes());
        bytes
    }

    fn encode_header(&self, bytes: &mut [u8]) {
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(self.spilled, FLAG_SPILLED)
            | flag(self.has_own, FLAG_OWN)
            | flag(self.transaction > 0, FLAG_TRANSACTION)
            | flag(self.is_copied(), FLAG_COPIED)
            | flag(self.standalone_above > 0, FLAG_STANDALONE);
        put(bytes, 0, &MAGIC.to_le_bytes());
        put(bytes, 8, &VERSION.to_le_bytes());
        put(bytes, 16, &self.generation.to_le_bytes());
        put(bytes, 24, &self.directory.to_le_bytes());
        put(bytes, 32, &self.epoch.to_le_bytes());
        put(bytes, 40, &self.partitions.to_le_bytes());
        put(bytes, 42, &self.hash_version.to_le_bytes());
        put(bytes, 44, &flags.to_le_bytes());
        put(bytes, 48, &self.base.to_le_bytes());
        put(bytes, 56, &self.all_durable.to_le_bytes());
        put(bytes, 64, &self.retained_above.to_le_bytes());
        put(bytes, 72, &(HEADER_BYTES as u32).to_le_bytes());
        put(bytes, 76, &(self.cuts.0.len() as u32).to_le_bytes());
        put(bytes, 80, &(CUT_BYTES as u32).to_le_bytes());
        put(bytes, 84, &(PartitionRoots::BYTES as u32).to_le_bytes());
        put(bytes, 88, &self.stable.to_le_bytes());
        put(bytes, 96, &self.own_base.to_le_bytes());
        put(bytes, 104, &(self.own_cuts.0.len() as u32).to_le_bytes());
        let ends = flag(self.closed, END_CLOSED) | flag(self.member_closed, END_MEMBER_CLOSED);
        put(bytes, 108, &ends.to_le_bytes());
        put(bytes, 112, &self.transaction.to_le_bytes());
        put(bytes, 120, &self.standalone_above.to_le_bytes());
    }

    /// Reads a manifest; the error says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, String> {
        if bytes.len() < BLOCK_BYTES || !bytes.len().is_multiple_of(BLOCK_BYTES) {
            return Err(format!("it has {} bytes", bytes.len()));
        }
        if u32_at(bytes, CRC_AT) != checksum_around(bytes, CRC_AT) {
            return Err("its checksum does not match".to_owned());
        }
        if u64_at(bytes, 0) != MAGIC {
            return Err("it is not a manifest".to_owned());
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(format!(
                "its version is {version}, and this program knows {VERSION}"
            ));
        }
        let flags = u32_at(bytes, 44);
        if flags & !FLAGS != 0 {
            return Err(format!(
                "it has flags that this program does not know ({flags:#x})"
            ));
        }
        let (cuts, roots, own_cuts) = tables(bytes)?;
        let manifest = Manifest {
            directory: u64_at(bytes, 24),
            generation: u64_at(bytes, 16),
            epoch: u64_at(bytes, 32),
            partitions: u16_at(bytes, 40),
            hash_version: u16_at(bytes, 42),
            base: u64_at(bytes, 48),
            all_durable: u64_at(bytes, 56),
            retained_above: u64_at(bytes, 64),
            cuts: Cuts(cuts.map(cut).collect()),
            roots: roots
                .map(PartitionRoots::decode)
                .collect::<Option<_>>()
                .ok_or("it has a root that is none")?,
            spilled: flags & FLAG_SPILLED != 0,
            stable: u64_at(bytes, 88),
            has_own: flags & FLAG_OWN != 0,
            own_base: u64_at(bytes, 96),
            own_cuts: Cuts(own_cuts.map(cut).collect()),
            transaction: u64_at(bytes, 112),
            standalone_above: u64_at(bytes, 120),
            closed: u32_at(bytes, 108) & END_CLOSED != 0,
            member_closed: u32_at(bytes, 108) & END_MEMBER_CLOSED != 0,
        };
        if (manifest.transaction > 0) != (flags & FLAG_TRANSACTION != 0) {
            return Err("its flags do not say whether it needs a transaction".to_owned());
        }
        if manifest.is_copied() != (flags & FLAG_COPIED != 0) {
            return Err("its flags do not say whether its page files were copied".to_owned());
        }
        if (manifest.standalone_above > 0) != (flags & FLAG_STANDALONE != 0) {
            return Err("its flags do not say whether a standalone has written".to_owned());
        }
        manifest.check_sound()?;
        Ok(manifest)
    }
}

type Records<'a> = std::slice::ChunksExact<'a, u8>;

/// The records of the three tables, each at least as long as this program writes them.
fn tables(bytes: &[u8]) -> Result<(Records<'_>, Records<'_>, Records<'_>), String> {
    let length = |at: usize| u32_at(bytes, at) as usize;
    let (header, cuts, cut, root) = (length(72), length(76), length(80), length(84));
    if header < HEADER_BYTES || cut < CUT_BYTES || root < PartitionRoots::BYTES {
        return Err("its records are too short".to_owned());
    }
    // None of the products overflows: each factor is below 2^32.
    let cuts_end = (cuts * cut).checked_add(header);
    let roots_end = cuts_end.and_then(|end| end.checked_add(usize::from(u16_at(bytes, 40)) * root));
    let own_end = roots_end.and_then(|end| end.checked_add(length(104) * cut));
    match (cuts_end, roots_end, own_end) {
        (Some(cuts_end), Some(roots_end), Some(end)) if end <= bytes.len() => Ok((
            bytes[header..cuts_end].chunks_exact(cut),
            bytes[cuts_end..roots_end].chunks_exact(root),
            bytes[roots_end..end].chunks_exact(cut),
        )),
        _ => Err("its length is out of range".to_owned()),
    }
}

fn encode_cuts(cuts: &Cuts, bytes: &mut [u8]) {
    for (cut, record) in cuts.0.iter().zip(bytes.chunks_exact_mut(CUT_BYTES)) {
        put(record, 0, &cut.epoch.to_le_bytes());
        put(record, 8, &cut.at.to_le_bytes());
        put(record, 16, &cut.discarded_through.to_le_bytes());
    }
}

fn cut(record: &[u8]) -> Cut {
    Cut {
        epoch: u64_at(record, 0),
        at: u64_at(record, 8),
        discarded_through: u64_at(record, 16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(partitions: u16, cuts: u64) -> Manifest {
        let root = |number: u64| PartitionRoots {
            checkpoint: number,
            timestamp: 40 + number,
            master_word: 7 * number,
            master_crc: 0xdead_beef,
            master_level: 3,
            free_word: number << 40,
            free_crc: 9,
            file_blocks: 1000 + number,
            file: (number / 5) as u32,
        };
        let cut = |epoch: u64| Cut {
            epoch,
            at: 30 + epoch,
            discarded_through: 35 + epoch,
        };
        Manifest {
            directory: 0x0123_4567_89ab_cdef,
            generation: 12,
            epoch: 90,
            partitions,
            hash_version: 1,
            base: 50,
            all_durable: 60,
            retained_above: 45,
            cuts: Cuts((1..=cuts).map(cut).collect()),
            roots: (0..u64::from(partitions)).map(root).collect(),
            spilled: partitions.is_multiple_of(2),
            stable: 40 + 30 * u64::from(partitions),
            has_own: partitions < 8,
            own_base: 7,
            own_cuts: Cuts(
                (0..u64::from(partitions) / 3)
                    .map(|nth| cut(nth + 1))
                    .collect(),
            ),
            transaction: if partitions < 3 { 0 } else { 46 },
            standalone_above: if partitions == 8 { 47 } else { 0 },
            closed: partitions > 2,
            member_closed: partitions == 8,
        }
    }

    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let crc = checksum_around(&bytes, CRC_AT);
        put(&mut bytes, CRC_AT, &crc.to_le_bytes());
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for (partitions, cuts) in [(1, 0), (2, 1), (8, 0), (64, 3), (256, 40)] {
            let manifest = manifest(partitions, cuts);
            let bytes = manifest.encode();
            assert!(bytes.len().is_multiple_of(BLOCK_BYTES));
            assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        }
    }

    #[test]
    fn every_flip_is_seen() {
        let good = manifest(3, 2).encode();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&bytes).is_err(), "bit {bit}");
        }
        assert!(Manifest::decode(&good[..100]).is_err());
        assert!(Manifest::decode(&[]).is_err());
    }

    /// A later program has a longer header and longer records; this one reads what it knows of.
    #[test]
    fn fields_of_later_programs_are_passed_over() {
        let expected = manifest(3, 2);
        let bytes = expected.encode();
        let (header, cut, root) = (HEADER_BYTES + 64, CUT_BYTES + 8, PartitionRoots::BYTES + 16);
        let mut longer = bytes[..HEADER_BYTES].to_vec();
        longer.resize(header, 0xaa);
        for record in bytes[HEADER_BYTES..][..2 * CUT_BYTES].chunks_exact(CUT_BYTES) {
            longer.extend_from_slice(record);
            longer.resize(longer.len() + cut - CUT_BYTES, 0xbb);
        }
        let roots = &bytes[HEADER_BYTES + 2 * CUT_BYTES..][..3 * PartitionRoots::BYTES];
        for record in roots.chunks_exact(PartitionRoots::BYTES) {
            longer.extend_from_slice(record);
            longer.resize(longer.len() + root - PartitionRoots::BYTES, 0xcc);
        }
        let own_cuts = &bytes[HEADER_BYTES + 2 * CUT_BYTES + 3 * PartitionRoots::BYTES..];
        longer.extend_from_slice(&own_cuts[..CUT_BYTES]);
        longer.resize(longer.len() + cut - CUT_BYTES, 0xbb);
        longer.resize(longer.len().next_multiple_of(BLOCK_BYTES), 0);
        put(&mut longer, 72, &(header as u32).to_le_bytes());
        put(&mut longer, 80, &(cut as u32).to_le_bytes());
        put(&mut longer, 84, &(root as u32).to_le_bytes());
        assert_eq!(Manifest::decode(&sealed(longer)), Ok(expected));
    }

    /// Bytes with a good checksum that no manifest has.
    #[test]
    fn what_is_out_of_range_is_refused() {
        let check = |at: usize, value: &[u8], expected: &str| {
            let mut bytes = manifest(3, 2).encode();
            put(&mut bytes, at, value);
            let refused = Manifest::decode(&sealed(bytes)).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        };
        check(0, b"PINIONSB", "not a manifest");
        check(8, &2u32.to_le_bytes(), "version is 2");
        check(44, &32u32.to_le_bytes(), "flags");
        check(44, &22u32.to_le_bytes(), "whether a standalone");
        check(44, &13u32.to_le_bytes(), "were copied");
        check(44, &3u32.to_le_bytes(), "needs a transaction");
        check(112, &51u64.to_le_bytes(), "is not retained");
        check(104, &u32::MAX.to_le_bytes(), "length is out of range");
        check(40, &0u16.to_le_bytes(), "number of partitions");
        check(40, &u16::MAX.to_le_bytes(), "length is out of range");
        check(64, &51u64.to_le_bytes(), "not retained");
        check(48, &61u64.to_le_bytes(), "not durable");
        check(32, &1u64.to_le_bytes(), "later epoch");
        check(72, &u32::MAX.to_le_bytes(), "length is out of range");
        check(76, &u32::MAX.to_le_bytes(), "length is out of range");
        check(80, &23u32.to_le_bytes(), "too short");
        check(84, &u32::MAX.to_le_bytes(), "length is out of range");
        check(
            HEADER_BYTES + 2 * CUT_BYTES + 28,
            &[64],
            "a root that is none",
        );
    }
}
