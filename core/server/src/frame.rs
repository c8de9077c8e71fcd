//! From a stream of bytes to whole messages, with memory only for what has arrived.

use std::{fmt, io};

use bytes::{Bytes, BytesMut};
use pinion_runtime::{Connection, compute_beside, should_yield, yield_now};
use pinion_wire::{BadLength, message_length};

use crate::limits::{PAGE_BYTES, READ_AHEAD_BYTES, RESERVE_AHEAD, RESERVE_AT_ONCE_BYTES};

/// Why a stream can be followed no further.
#[derive(Debug)]
pub(crate) enum FrameError {
    Io(io::Error),
    BadLength(BadLength),
    /// The peer closed in the middle of a message.
    Truncated,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Io(error) => error.fmt(f),
            FrameError::BadLength(error) => error.fmt(f),
            FrameError::Truncated => {
                f.write_str("Connection closed by peer in the middle of a message")
            }
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
        let Some(length) = message_length(&self.buffer).map_err(FrameError::BadLength)? else {
            if self.buffer.is_empty() {
                // An idle connection holds no buffer.
                self.buffer = BytesMut::new();
            }
            return Ok(None);
        };
        if self.buffer.len() < length {
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

    /// Makes room for more of a message that is longer than its buffer, beside the cores: the memory may be fresh, and the
    /// kernel clears it for whoever touches it first.
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
        self.buffer = compute_beside(move || {
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
