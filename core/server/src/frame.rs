//! From a stream of bytes to whole messages, with memory only for what has arrived.

use std::{fmt, io};

use bytes::{Bytes, BytesMut};
use pinion_runtime::{Connection, offload_bounded, should_yield, yield_now};
use pinion_wire::{BadLength, Header, OpCode, message_length};

use crate::limits::{PAGE_BYTES, READ_AHEAD_BYTES, RESERVE_AHEAD, RESERVE_AT_ONCE_BYTES};

/// Why a stream can be followed no further.
#[derive(Debug)]
pub(crate) enum FrameError {
    Io(io::Error),
    BadLength(BadLength),
    /// The peer closed in the middle of a message.
    Truncated,
    /// The peer speaks another protocol.
    Foreign(Foreign),
}

/// A protocol that peers speak by mistake: what would be a length says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    Tls,
    Http,
}

impl Foreign {
    /// Whether a message that begins so, and whose length is none or has not arrived, is one of
    /// another protocol.
    fn of(start: &[u8]) -> Option<Foreign> {
        const METHODS: [&[u8; 4]; 9] = [
            b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC",
        ];
        if METHODS.iter().any(|method| start.starts_with(*method)) {
            return Some(Foreign::Http);
        }
        // A record of a handshake. The same three bytes begin some lengths, but requests answer
        // nothing, and replies have an opcode.
        let is_handshake = matches!(start, [0x16, 0x03, 0x00..=0x04, ..]);
        let header = Header::read(start).filter(|_| is_handshake)?;
        let is_reply = matches!(
            header.opcode,
            OpCode::REPLY | OpCode::COMPRESSED | OpCode::MSG
        );
        (!is_reply && !matches!(header.response_to, 0 | -1)).then_some(Foreign::Tls)
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Io(error) => error.fmt(f),
            FrameError::BadLength(error) => error.fmt(f),
            FrameError::Truncated => {
                f.write_str("Connection closed by peer in the middle of a message")
            }
            FrameError::Foreign(Foreign::Tls) => f.write_str(
                "SSLHandshakeFailed: SSL handshake received but server is started without SSL support",
            ),
            FrameError::Foreign(Foreign::Http) => f.write_str(
                "ProtocolError: Client sent an HTTP request over a native MongoDB connection",
            ),
        }
    }
}

/// What a receive brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Bytes,
    /// The peer has closed its side; what is in the buffer is still to be handled.
    End,
}

/// Cuts messages out of what a connection receives.
#[derive(Default)]
pub(crate) struct FrameReader {
    buffer: BytesMut,
    ended: bool,
}

impl FrameReader {
    /// The next whole message; `None` when the peer closed between messages.
    pub(crate) async fn next(
        &mut self,
        connection: &Connection,
    ) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            if self.ended {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(FrameError::Truncated)
                };
            }
            self.grow().await;
            self.fill(connection).await.map_err(FrameError::Io)?;
            if should_yield() {
                yield_now().await;
            }
        }
    }

    /// A whole message, if one has arrived.
    fn take(&mut self) -> Result<Option<Bytes>, FrameError> {
        let length =
            message_length(&self.buffer).map_err(|bad| match Foreign::of(&self.buffer) {
                Some(foreign) => FrameError::Foreign(foreign),
                None => FrameError::BadLength(bad),
            })?;
        let Some(length) = length else {
            if self.buffer.is_empty() {
                // An idle connection holds no buffer.
                self.buffer = BytesMut::new();
            }
            return Ok(None);
        };
        if self.buffer.len() < length {
            if let Some(foreign) = Foreign::of(&self.buffer) {
                return Err(FrameError::Foreign(foreign));
            }
            if length <= RESERVE_AT_ONCE_BYTES {
                self.buffer.reserve(length - self.buffer.len());
            }
            return Ok(None);
        }
        // Almost always the buffer is one message, which then takes the buffer as it is.
        let message = if self.buffer.len() == length {
            std::mem::take(&mut self.buffer)
        } else {
            self.buffer.split_to(length)
        };
        Ok(Some(message.freeze()))
    }

    /// Makes room for more of a message that is longer than its buffer, on a compute thread: the
    /// memory may be fresh, and the kernel clears it for the thread that touches it first.
    async fn grow(&mut self) {
        let Ok(Some(length)) = message_length(&self.buffer) else {
            return;
        };
        let arrived = self.buffer.len();
        let has_room = self.buffer.capacity() - arrived >= READ_AHEAD_BYTES;
        if length <= RESERVE_AT_ONCE_BYTES || self.buffer.capacity() >= length || has_room {
            return;
        }
        let room = length.min(RESERVE_AT_ONCE_BYTES.max(RESERVE_AHEAD * arrived));
        let held = std::mem::take(&mut self.buffer);
        self.buffer = offload_bounded(move || {
            let mut grown = BytesMut::with_capacity(room);
            grown.extend_from_slice(&held);
            for page in grown.spare_capacity_mut().chunks_mut(PAGE_BYTES) {
                page[0].write(0);
            }
            grown
        })
        .await;
    }

    /// Receives once.
    pub(crate) async fn fill(&mut self, connection: &Connection) -> io::Result<Fill> {
        if connection.recv(&mut self.buffer).await? == 0 {
            self.ended = true;
            return Ok(Fill::End);
        }
        Ok(Fill::Bytes)
    }

    /// True while more may be read ahead of the command that is running.
    pub(crate) fn has_room(&self) -> bool {
        !self.ended && self.buffer.len() < READ_AHEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(start: &[u8], expected: Option<Foreign>) {
        assert_eq!(Foreign::of(start), expected, "{start:?}");
    }

    #[test]
    fn other_protocols_are_known_by_their_first_bytes() {
        check(b"GET / HTTP/1.1\r\n", Some(Foreign::Http));
        check(b"POST", Some(Foreign::Http));
        check(b"GET", None);
        // Record and version, its length, a ClientHello and its length, version and the first of
        // its random bytes.
        let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0x5a, 1, 2, 3, 4, 5];
        check(&hello, Some(Foreign::Tls));
        check(&hello[..12], None);
        // A request of 66,326 bytes.
        let mut request = [0; 20];
        request[..4].copy_from_slice(&0x0001_0316u32.to_le_bytes());
        request[4..8].copy_from_slice(&7u32.to_le_bytes());
        request[12..16].copy_from_slice(&2013u32.to_le_bytes());
        check(&request, None);
        // A reply of 790 bytes to request 7.
        request[..4].copy_from_slice(&790u32.to_le_bytes());
        request[8..12].copy_from_slice(&7u32.to_le_bytes());
        check(&request, None);
    }
}
