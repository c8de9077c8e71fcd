//! The ring frame: 4 KiB of log with a header, a checksum, and a stamp in each sector.
//!
//! A frame is written once and never again. A crash leaves any subset of the 512-byte sectors of an
//! unfinished flush. So that such a *torn* frame can be distinguished from a *damaged* one, each
//! sector begins with a stamp computed from where it belongs: directory, ring, segment generation,
//! position, sector. A sector of another time or place has other stamps. All eight stamps present
//! and the checksum wrong means that the frame was written whole and changed afterwards: damage,
//! never a hole. A stamp that is nearly the one expected proves nothing by itself: stamps of other
//! places come near by chance.
//!
//! ```text
//! sector 0      0 magic     4 version u16   6 ring u16     8 crc32c u32       12 stamp u32
//!              16 epoch u64                24 generation u64
//!              32 all_durable u64          40 directory u64
//!              48 position u32             52 payload_len u16   54 first_entry u16
//!              56 written_at: secs u32     60 reserved u32
//!              64 .. 512 payload
//! sectors 1-7   0 stamp u32                 4 .. 512 payload
//! ```
//!
//! The checksum covers all 4096 bytes with its own four read as zero. Little-endian throughout.

use pinion_clock::Timestamp;
use pinion_runtime::sim;

use crate::layout::{checksum_around, put, u16_at, u32_at, u64_at};
use crate::limits::BLOCK_BYTES;

pub(crate) const FRAME_BYTES: usize = BLOCK_BYTES;
const SECTOR_BYTES: usize = 512;
const SECTORS: usize = FRAME_BYTES / SECTOR_BYTES;
const HEADER_BYTES: usize = 64;
const CRC_AT: usize = 8;
const STAMP_BYTES: usize = 4;
const FIRST_PAYLOAD_BYTES: usize = SECTOR_BYTES - HEADER_BYTES;
const NEXT_PAYLOAD_BYTES: usize = SECTOR_BYTES - STAMP_BYTES;
/// Bytes of the entry stream that one frame holds.
pub(crate) const FRAME_PAYLOAD_BYTES: usize =
    FIRST_PAYLOAD_BYTES + (SECTORS - 1) * NEXT_PAYLOAD_BYTES;

const MAGIC: u32 = u32::from_le_bytes(*b"PRNG");
const VERSION: u16 = 1;
/// `first_entry` of a frame in which no entry begins.
pub(crate) const NO_ENTRY: u16 = u16::MAX;
/// A sector whose stamp differs in no more bits than this may have been written, and flipped
/// afterwards.
const STAMP_FLIPS: u32 = 3;

/// Below this, stamps would be equal by chance so often that a torn frame looks damaged.
pub(crate) const MIN_STAMP_BITS: u32 = 16;

const _: () = assert!(FRAME_PAYLOAD_BYTES == 4004);
const _: () = assert!(FRAME_PAYLOAD_BYTES < NO_ENTRY as usize);

/// How much of a stamp distinguishes one place from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    /// The bits that differ; the others are set in every stamp.
    mask: u32,
}

impl Stamps {
    /// Only the low `bits`: 32, or fewer in simulations, where segments are few, so that stamps of
    /// different places are often close to each other.
    pub(crate) const fn new(bits: u32) -> Stamps {
        assert!(MIN_STAMP_BITS <= bits && bits <= u32::BITS);
        Stamps {
            mask: u32::MAX >> (u32::BITS - bits),
        }
    }
}

/// Where a frame belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameContext {
    /// The random identity of the data directory.
    pub(crate) directory: u64,
    pub(crate) ring: u16,
    /// The generation of the segment: counts the segments of a ring, a reused one at each use.
    pub(crate) generation: u64,
    /// Number of the frame within its segment.
    pub(crate) position: u32,
    pub(crate) stamps: Stamps,
}

impl FrameContext {
    fn stamp(&self, sector: usize) -> u32 {
        let mut x = self.directory ^ 0x9e37_79b9_7f4a_7c15;
        for part in [
            u64::from(self.ring),
            self.generation,
            u64::from(self.position),
            sector as u64,
        ] {
            x = (x ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x ^= x >> 29;
            x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^= x >> 32;
        }
        // A blank sector reads as zero: keep well away from it.
        let stamp = x as u32 | !self.stamps.mask;
        if stamp.count_ones() <= 2 * STAMP_FLIPS {
            !stamp
        } else {
            stamp
        }
    }
}

/// What a valid frame says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) epoch: u64,
    /// Everything at or below this timestamp was durable in all rings when the frame was written.
    pub(crate) all_durable: Timestamp,
    pub(crate) payload_len: u16,
    /// Offset in the payload of the first entry that begins in this frame; `None` if none does.
    pub(crate) first_entry: Option<u16>,
    /// Wall clock when written, Unix seconds: for people who inspect a ring.
    pub(crate) written_at_secs: u32,
}

/// What 4 KiB of a segment turn out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FrameState {
    Valid(FrameHeader),
    /// Valid but for bits of its stamps: the checksum proves the rest. Bits were flipped, or
    /// sectors that were not written hold the same as they should and have stamps near ours by
    /// chance.
    Mended(FrameHeader),
    /// Nothing of this frame was ever written: zeros, or a frame of an earlier generation.
    Blank,
    /// Some sectors were written and some were not: a flush that a crash interrupted.
    Torn,
    /// The whole frame was written and is no longer what was written.
    Damaged(&'static str),
}

/// The ranges of a frame that hold payload, in order.
fn payload_ranges() -> impl Iterator<Item = core::ops::Range<usize>> {
    (0..SECTORS).map(|sector| {
        let start = sector * SECTOR_BYTES;
        start
            + if sector == 0 {
                HEADER_BYTES
            } else {
                STAMP_BYTES
            }..start + SECTOR_BYTES
    })
}

/// Writes one frame into `block`. `stream` is what of the entry stream goes into it.
pub(crate) fn encode(
    block: &mut [u8],
    context: &FrameContext,
    header: &FrameHeader,
    stream: &[u8],
) {
    assert_eq!(block.len(), FRAME_BYTES);
    assert_eq!(stream.len(), usize::from(header.payload_len));
    assert!(stream.len() <= FRAME_PAYLOAD_BYTES);
    assert!(header.first_entry.is_none_or(|at| at < header.payload_len));
    block[..HEADER_BYTES].fill(0);
    put(block, 0, &MAGIC.to_le_bytes());
    put(block, 4, &VERSION.to_le_bytes());
    put(block, 6, &context.ring.to_le_bytes());
    put(block, 12, &context.stamp(0).to_le_bytes());
    put(block, 16, &header.epoch.to_le_bytes());
    put(block, 24, &context.generation.to_le_bytes());
    put(block, 32, &header.all_durable.as_u64().to_le_bytes());
    put(block, 40, &context.directory.to_le_bytes());
    put(block, 48, &context.position.to_le_bytes());
    put(block, 52, &header.payload_len.to_le_bytes());
    put(
        block,
        54,
        &header.first_entry.unwrap_or(NO_ENTRY).to_le_bytes(),
    );
    put(block, 56, &header.written_at_secs.to_le_bytes());
    for sector in 1..SECTORS {
        put(
            block,
            sector * SECTOR_BYTES,
            &context.stamp(sector).to_le_bytes(),
        );
    }
    let mut rest = stream;
    for range in payload_ranges() {
        let take = rest.len().min(range.len());
        block[range.start..range.start + take].copy_from_slice(&rest[..take]);
        block[range.start + take..range.end].fill(0);
        rest = &rest[take..];
    }
    let crc = checksum_around(block, CRC_AT);
    put(block, CRC_AT, &crc.to_le_bytes());
}

/// Where the block itself says that it belongs.
fn own_context(block: &[u8], stamps: Stamps) -> FrameContext {
    FrameContext {
        directory: u64_at(block, 40),
        ring: u16_at(block, 6),
        generation: u64_at(block, 24),
        position: u32_at(block, 48),
        stamps,
    }
}

/// Where a sector has its stamp.
fn stamp_at(sector: usize) -> usize {
    if sector == 0 {
        12
    } else {
        sector * SECTOR_BYTES
    }
}

/// Whether every stamp is the one of the place that the block names: a frame of another time or
/// place, unharmed.
fn is_whole_elsewhere(block: &[u8], stamps: Stamps) -> bool {
    let context = own_context(block, stamps);
    (0..SECTORS).all(|sector| u32_at(block, stamp_at(sector)) == context.stamp(sector))
}

/// Whether the block is the whole frame of this place but for bits of its stamps.
fn only_stamps_differ(block: &[u8], context: &FrameContext) -> bool {
    let mut mended = block.to_vec();
    for sector in 0..SECTORS {
        put(
            &mut mended,
            stamp_at(sector),
            &context.stamp(sector).to_le_bytes(),
        );
    }
    u32_at(&mended, CRC_AT) == checksum_around(&mended, CRC_AT)
}

/// Decides what `block` is. Bytes of a crashed or damaged disk are expected here; nothing panics.
/// `verify_checksum` is false only under a planted fault.
pub(crate) fn classify(block: &[u8], context: &FrameContext, verify_checksum: bool) -> FrameState {
    assert_eq!(block.len(), FRAME_BYTES);
    let (mut written, mut near, mut mended) = (0, 0, false);
    for sector in 0..SECTORS {
        match (u32_at(block, stamp_at(sector)) ^ context.stamp(sector)).count_ones() {
            0 => written += 1,
            1..=STAMP_FLIPS => near += 1,
            _ => {}
        }
    }
    if written + near == 0 {
        return FrameState::Blank;
    }
    if verify_checksum && u32_at(block, CRC_AT) != checksum_around(block, CRC_AT) {
        if written == SECTORS {
            return FrameState::Damaged("the checksum does not match");
        }
        mended = written + near == SECTORS && only_stamps_differ(block, context);
        if !mended && written > 0 {
            return FrameState::Torn;
        }
        if !mended {
            // What is left of other frames, some of whose stamps are near ours by chance.
            sim::count("stamps alike by chance", 1);
            return FrameState::Blank;
        }
    }
    if written < SECTORS && !mended && verify_checksum {
        return if is_whole_elsewhere(block, context.stamps) {
            // A stale frame some of whose stamps are ours, or near, by chance.
            sim::count("stamps alike by chance", 1);
            FrameState::Blank
        } else {
            FrameState::Damaged("the checksum matches and a sector stamp does not")
        };
    }
    if u32_at(block, 0) != MAGIC || u16_at(block, 4) != VERSION {
        return FrameState::Damaged("magic or version is unknown");
    }
    if own_context(block, context.stamps) != *context {
        return FrameState::Damaged("the frame belongs to another place");
    }
    let payload_len = u16_at(block, 52);
    let first_entry = match u16_at(block, 54) {
        NO_ENTRY => None,
        at => Some(at),
    };
    if usize::from(payload_len) > FRAME_PAYLOAD_BYTES
        || first_entry.is_some_and(|at| at >= payload_len)
    {
        return FrameState::Damaged("a length in the header is out of range");
    }
    let header = FrameHeader {
        epoch: u64_at(block, 16),
        all_durable: Timestamp::from_u64(u64_at(block, 32)),
        payload_len,
        first_entry,
        written_at_secs: u32_at(block, 56),
    };
    if mended {
        FrameState::Mended(header)
    } else {
        FrameState::Valid(header)
    }
}

/// Appends the payload of a valid frame to `out`, from `skip` on.
pub(crate) fn payload(block: &[u8], header: &FrameHeader, skip: usize, out: &mut Vec<u8>) {
    let len = usize::from(header.payload_len);
    assert!(skip <= len && len <= FRAME_PAYLOAD_BYTES);
    let (mut at, mut skip) = (0, skip);
    for range in payload_ranges() {
        let take = range.len().min(len - at);
        at += take;
        let dropped = skip.min(take);
        skip -= dropped;
        out.extend_from_slice(&block[range.start + dropped..range.start + take]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: FrameContext = FrameContext {
        directory: 77,
        ring: 3,
        generation: 12,
        position: 5,
        stamps: Stamps::new(u32::BITS),
    };
    const NARROW: FrameContext = FrameContext {
        stamps: Stamps::new(MIN_STAMP_BITS),
        ..CONTEXT
    };

    fn frame(stream: &[u8], context: &FrameContext) -> Vec<u8> {
        let header = FrameHeader {
            epoch: 4,
            all_durable: Timestamp::new(9, 9),
            payload_len: stream.len() as u16,
            first_entry: (!stream.is_empty()).then_some(0),
            written_at_secs: 1,
        };
        let mut block = vec![0xaa; FRAME_BYTES];
        encode(&mut block, context, &header, stream);
        block
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for len in [0, 1, 447, 448, 449, 955, 956, 957, 4003, 4004] {
            let stream = bytes(len);
            let block = frame(&stream, &CONTEXT);
            let FrameState::Valid(header) = classify(&block, &CONTEXT, true) else {
                panic!("length {len}")
            };
            assert_eq!(
                (header.epoch, header.all_durable),
                (4, Timestamp::new(9, 9))
            );
            for skip in [0, len / 2, len] {
                let mut out = Vec::new();
                payload(&block, &header, skip, &mut out);
                assert_eq!(out, stream[skip..], "length {len}, skip {skip}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_damage_or_mended_and_not_a_hole() {
        let good = frame(&bytes(2000), &CONTEXT);
        for bit in 0..FRAME_BYTES * 8 {
            let mut block = good.clone();
            block[bit / 8] ^= 1 << (bit % 8);
            let in_stamp = (0..SECTORS).any(|sector| {
                (stamp_at(sector)..stamp_at(sector) + STAMP_BYTES).contains(&(bit / 8))
            });
            let state = classify(&block, &CONTEXT, true);
            if in_stamp {
                assert!(matches!(state, FrameState::Mended(_)), "bit {bit}");
            } else {
                assert!(matches!(state, FrameState::Damaged(_)), "bit {bit}");
            }
        }
    }

    #[test]
    fn every_subset_of_sectors_is_torn() {
        let new = frame(&bytes(4004), &CONTEXT);
        let old = frame(
            &bytes(3000),
            &FrameContext {
                generation: 11,
                ..CONTEXT
            },
        );
        for before in [vec![0; FRAME_BYTES], old] {
            for subset in 0..1usize << SECTORS {
                let mut block = before.clone();
                for sector in (0..SECTORS).filter(|sector| subset & (1 << sector) != 0) {
                    let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                    block[range.clone()].copy_from_slice(&new[range]);
                }
                let state = classify(&block, &CONTEXT, true);
                match subset {
                    0 => assert_eq!(state, FrameState::Blank),
                    0xff => assert!(matches!(state, FrameState::Valid(_))),
                    _ => assert_eq!(state, FrameState::Torn, "subset {subset:#b}"),
                }
            }
        }
    }

    #[test]
    fn a_frame_of_another_place_is_blank() {
        let block = frame(&bytes(100), &CONTEXT);
        let check = |context| assert_eq!(classify(&block, &context, true), FrameState::Blank);
        check(FrameContext {
            directory: 78,
            ..CONTEXT
        });
        check(FrameContext { ring: 2, ..CONTEXT });
        check(FrameContext {
            generation: 13,
            ..CONTEXT
        });
        check(FrameContext {
            position: 6,
            ..CONTEXT
        });
        assert_eq!(
            classify(&[0; FRAME_BYTES], &CONTEXT, true),
            FrameState::Blank
        );
    }

    /// A frame of another generation, some stamps of which are as far from ours as `wanted` says.
    fn stale(wanted: impl Fn(usize, u32) -> bool) -> FrameContext {
        let fits = |stale: &FrameContext| {
            (0..SECTORS).any(|sector| {
                let distance = (stale.stamp(sector) ^ NARROW.stamp(sector)).count_ones();
                wanted(sector, distance)
            })
        };
        let mut generations = NARROW.generation + 1..10_000_000;
        let found = generations.find_map(|generation| {
            let stale = FrameContext {
                generation,
                ..NARROW
            };
            fits(&stale).then_some(stale)
        });
        found.expect("narrow stamps meet soon")
    }

    #[test]
    fn a_stale_frame_with_stamps_like_ours_is_blank() {
        for most in [0, STAMP_FLIPS] {
            let stale = stale(|_, distance| distance <= most);
            let block = frame(&bytes(100), &stale);
            assert_eq!(classify(&block, &NARROW, true), FrameState::Blank);
        }
    }

    #[test]
    fn a_torn_frame_over_a_stale_one_with_a_stamp_near_ours_is_torn() {
        // Only the sector whose stale stamp is near ours was not written.
        let other: Vec<u8> = bytes(4004).into_iter().rev().collect();
        let near = |distance: u32| (1..=STAMP_FLIPS).contains(&distance);
        for missing in 0..SECTORS {
            let stale = stale(|sector, distance| sector == missing && near(distance));
            let mut block = frame(&bytes(4004), &NARROW);
            let range = missing * SECTOR_BYTES..(missing + 1) * SECTOR_BYTES;
            block[range.clone()].copy_from_slice(&frame(&other, &stale)[range]);
            assert_eq!(classify(&block, &NARROW, true), FrameState::Torn);
        }
    }

    #[test]
    fn flipped_stamps_are_mended() {
        for bits in 1..=STAMP_FLIPS {
            for sector in 0..SECTORS {
                let mut block = frame(&bytes(4004), &CONTEXT);
                block[stamp_at(sector)] ^= u8::MAX >> (8 - bits);
                let state = classify(&block, &CONTEXT, true);
                assert!(matches!(state, FrameState::Mended(_)), "{bits} bits");
            }
        }
    }
}
