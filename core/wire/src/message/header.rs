//! The 16 bytes in front of every message.

use std::fmt;

use crate::limits::{HEADER_BYTES, MAX_ACCEPTED_BYTES};

/// What follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpCode(pub i32);

impl OpCode {
    pub const REPLY: OpCode = OpCode(1);
    pub const UPDATE: OpCode = OpCode(2001);
    pub const INSERT: OpCode = OpCode(2002);
    pub const QUERY: OpCode = OpCode(2004);
    pub const GET_MORE: OpCode = OpCode(2005);
    pub const DELETE: OpCode = OpCode(2006);
    pub const KILL_CURSORS: OpCode = OpCode(2007);
    pub const COMPRESSED: OpCode = OpCode(2012);
    pub const MSG: OpCode = OpCode(2013);
}

/// Layout, little-endian: `length i32 | request_id i32 | response_to i32 | opcode i32`; the length
/// counts the header too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub length: u32,
    pub request_id: i32,
    pub response_to: i32,
    pub opcode: OpCode,
}

/// A length no message can have: the stream cannot be followed any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLength(pub i32);

impl fmt::Display for BadLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "recv(): message msgLen {} is invalid. Min: {HEADER_BYTES} Max: {MAX_ACCEPTED_BYTES}",
            self.0
        )
    }
}

impl std::error::Error for BadLength {}

/// The length of the message at the front of `bytes`: `None` while fewer than 4 bytes are there.
pub fn message_length(bytes: &[u8]) -> Result<Option<usize>, BadLength> {
    let Some(first) = bytes.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = i32::from_le_bytes(*first);
    match usize::try_from(length) {
        Ok(n) if (HEADER_BYTES..=MAX_ACCEPTED_BYTES).contains(&n) => Ok(Some(n)),
        _ => Err(BadLength(length)),
    }
}

impl Header {
    /// Reads a header; `None` if there are fewer than 16 bytes.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let word = |at: usize| {
            bytes
                .get(at..at + 4)
                .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        };
        Some(Header {
            length: word(0)? as u32,
            request_id: word(4)?,
            response_to: word(8)?,
            opcode: OpCode(word(12)?),
        })
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.request_id.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.response_to.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.opcode.0.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let header = Header {
            length: 77,
            request_id: -3,
            response_to: 9,
            opcode: OpCode::MSG,
        };
        assert_eq!(Header::read(&header.to_bytes()), Some(header));
        assert_eq!(Header::read(&header.to_bytes()[..15]), None);
    }

    #[test]
    fn lengths() {
        fn check(length: i32, expected: Result<Option<usize>, BadLength>) {
            assert_eq!(message_length(&length.to_le_bytes()), expected);
        }
        check(16, Ok(Some(16)));
        check(48_065_536, Ok(Some(48_065_536)));
        check(48_065_537, Err(BadLength(48_065_537)));
        check(15, Err(BadLength(15)));
        check(-1, Err(BadLength(-1)));
        assert_eq!(message_length(&[1, 0, 0]), Ok(None));
    }
}
