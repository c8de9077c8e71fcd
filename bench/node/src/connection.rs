//! One connection of the generator: a request out, its reply in.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use mio::net::TcpStream;

/// The largest reply that is believed.
const MAX_REPLY_BYTES: usize = 48_000_000;

/// A connection with at most one request in flight.
pub struct Connection {
    pub stream: TcpStream,
    pub started: Instant,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
}

impl Connection {
    /// Connects without waiting.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            started: Instant::now(),
            output: Vec::new(),
            written: 0,
            input: Vec::new(),
        })
    }

    /// Where the next request's bytes go.
    pub fn request(&mut self) -> &mut Vec<u8> {
        self.written = 0;
        self.input.clear();
        &mut self.output
    }

    /// Writes what is left of the request.
    pub fn write(&mut self) -> io::Result<()> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
                    ) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The whole reply once it is there.
    pub fn read(&mut self, scratch: &mut [u8]) -> io::Result<Option<&[u8]>> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Err(io::Error::other("the server closed a connection")),
                Ok(count) => self.input.extend_from_slice(&scratch[..count]),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
                    ) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
            if let Some(header) = self.input.first_chunk::<4>() {
                let length = u32::from_le_bytes(*header) as usize;
                if length > MAX_REPLY_BYTES || self.input.len() > length {
                    return Err(io::Error::other("a reply has a wrong length"));
                }
                if self.input.len() == length {
                    return Ok(Some(&self.input));
                }
            }
        }
    }
}
