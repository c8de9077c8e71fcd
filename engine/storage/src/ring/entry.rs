//! The entry header: what storage alone knows of an oplog entry.
//!
//! ```text
//!  0 length u32 (of the entry, without this header)    4 kind u16    6 check u16
//!  8 timestamp u64        16 predecessor u64           24 .. entry
//! ```
//!
//! `check` is a short checksum of the other header bytes, so that a reader which picks up the
//! stream in the wrong place notices; the frames' checksums protect the bytes themselves.

use pinion_clock::Timestamp;

use crate::layout::u64_at;
use crate::limits::MAX_ENTRY_BYTES;

pub(crate) const ENTRY_HEADER_BYTES: usize = 24;

/// What an entry is to recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// A complete oplog document, a link of the chain.
    Logged,
    /// A link of the chain without a document: a write whose effect recovery does not need.
    Link,
    /// Changes that are not replicated, in the ring of their own; its timestamps are their numbers.
    Unreplicated,
}

impl EntryKind {
    fn code(self) -> u16 {
        match self {
            EntryKind::Logged => 1,
            EntryKind::Link => 2,
            EntryKind::Unreplicated => 3,
        }
    }

    fn from_code(code: u16) -> Option<EntryKind> {
        match code {
            1 => Some(EntryKind::Logged),
            2 => Some(EntryKind::Link),
            3 => Some(EntryKind::Unreplicated),
            _ => None,
        }
    }
}

/// The header before each entry of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryHeader {
    pub(crate) len: u32,
    pub(crate) kind: EntryKind,
    pub(crate) ts: Timestamp,
    /// The timestamp allotted right before this one, on whichever core.
    pub(crate) predecessor: Timestamp,
}

fn check_of(bytes: &[u8; ENTRY_HEADER_BYTES]) -> u16 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..6]), &bytes[8..]);
    (crc ^ (crc >> 16)) as u16
}

impl EntryHeader {
    pub(crate) fn encode(&self) -> [u8; ENTRY_HEADER_BYTES] {
        assert!(self.len as usize <= MAX_ENTRY_BYTES);
        assert!(
            self.predecessor < self.ts,
            "an entry follows its predecessor"
        );
        let mut bytes = [0; ENTRY_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.kind.code().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.ts.as_u64().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.predecessor.as_u64().to_le_bytes());
        let check = check_of(&bytes);
        bytes[6..8].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a header; the error says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8; ENTRY_HEADER_BYTES]) -> Result<EntryHeader, &'static str> {
        if u16::from_le_bytes([bytes[6], bytes[7]]) != check_of(bytes) {
            return Err("the check of an entry header does not match");
        }
        let len = u32::from_le_bytes(bytes[0..4].try_into().expect("four bytes"));
        if len as usize > MAX_ENTRY_BYTES {
            return Err("an entry is longer than the limit");
        }
        let kind = EntryKind::from_code(u16::from_le_bytes([bytes[4], bytes[5]]))
            .ok_or("an entry kind is unknown")?;
        let (ts, predecessor) = (
            Timestamp::from_u64(u64_at(bytes, 8)),
            Timestamp::from_u64(u64_at(bytes, 16)),
        );
        if predecessor >= ts {
            return Err("an entry does not follow its predecessor");
        }
        Ok(EntryHeader {
            len,
            kind,
            ts,
            predecessor,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trip_and_every_flip() {
        let header = EntryHeader {
            len: 1234,
            kind: EntryKind::Logged,
            ts: Timestamp::new(5, 2),
            predecessor: Timestamp::new(5, 1),
        };
        let good = header.encode();
        assert_eq!(EntryHeader::decode(&good), Ok(header));
        for bit in 0..ENTRY_HEADER_BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(EntryHeader::decode(&bytes).is_err(), "bit {bit}");
        }
    }
}
