//! One connection of the loop: requests out, replies in, in the order of the requests.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use crate::protocol::{Protocol, Transport};
use crate::workload::Request;

/// A request whose reply has not come.
#[derive(Clone, Copy)]
pub struct Pending {
    pub request: Request,
    /// When it should have started (open loop) or started (closed loop).
    pub start_ns: u64,
}

/// A connection.
pub struct Connection<P> {
    pub protocol: P,
    pub transport: Transport,
    pub pending: VecDeque<Pending>,
    output: Vec<u8>,
    written: usize,
    /// The beginning of a reply that is not all there.
    partial: Vec<u8>,
}

impl<P: Protocol> Connection<P> {
    pub fn new(protocol: P, transport: Transport) -> Self {
        Self {
            protocol,
            transport,
            pending: VecDeque::new(),
            output: Vec::new(),
            written: 0,
            partial: Vec::new(),
        }
    }

    /// Encodes a request; `flush` sends it.
    pub fn push(&mut self, request: Request, start_ns: u64) {
        self.protocol.encode(&request, &mut self.output);
        self.pending.push_back(Pending { request, start_ns });
    }

    /// Sends what is encoded, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<(), String> {
        while self.written < self.output.len() {
            match self.transport.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("a request could not be sent: {error}")),
            }
        }
        self.output.clear();
        self.written = 0;
        match self.transport.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                Err(format!("a request could not be sent: {error}"))
            }
            _ => Ok(()),
        }
    }

    /// Reads once and hands every whole reply to `reply`. True if there may be more to read.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        mut reply: impl FnMut(&mut Self, &[u8]) -> Result<(), String>,
    ) -> Result<bool, String> {
        let count = match self.transport.read(buffer) {
            Ok(0) => return Err("the server closed a connection".into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(format!("a connection broke: {error}")),
        };
        let more = count == buffer.len() || !self.transport.short_read_is_last();
        if self.partial.is_empty() {
            let consumed = self.replies(&buffer[..count], &mut reply)?;
            self.partial.extend_from_slice(&buffer[consumed..count]);
        } else {
            let mut partial = std::mem::take(&mut self.partial);
            partial.extend_from_slice(&buffer[..count]);
            let consumed = self.replies(&partial, &mut reply)?;
            partial.drain(..consumed);
            self.partial = partial;
        }
        Ok(more)
    }

    /// Gives where the last whole reply ended.
    fn replies(
        &mut self,
        input: &[u8],
        reply: &mut impl FnMut(&mut Self, &[u8]) -> Result<(), String>,
    ) -> Result<usize, String> {
        let mut consumed = 0;
        while let Some(length) = self.protocol.reply_end(&input[consumed..])? {
            if self.pending.is_empty() {
                return Err("the server sent a reply that nobody asked for".into());
            }
            reply(self, &input[consumed..consumed + length])?;
            consumed += length;
        }
        Ok(consumed)
    }
}
