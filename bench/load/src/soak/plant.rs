//! Faults on purpose: what a soak must find, done to the server from outside.

use std::io::Write;
use std::net::TcpStream;

use crate::peers::plain_session;
use crate::protocol::{Mongo, Protocol, bson};

/// Bytes that one look's time adds.
const STEP_BYTES: usize = 4 << 20;
/// Of one document that is never deleted.
const DOCUMENT_BYTES: usize = 8 << 20;
/// Of an unfinished message; below MongoDB's maxMessageSizeBytes.
const MESSAGE_BYTES: usize = 40 << 20;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The server's memory grows: it holds ever more of messages that never end.
    Leak,
    /// Its descriptors grow: connections that are never closed.
    Descriptors,
    /// Its files grow: documents that are never deleted.
    Space,
    /// A journaled document is gone behind the first restart.
    LostWrite,
}

impl Plant {
    pub const NAMES: [&'static str; 4] = ["leak", "descriptors", "space", "lost-write"];

    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Leak, Self::Descriptors, Self::Space, Self::LostWrite];
        let place = Self::NAMES.iter().position(|known| *known == name)?;
        Some(all[place])
    }
}

/// A fault at work.
pub struct Planted {
    plant: Plant,
    uri: String,
    held: Vec<TcpStream>,
    /// What the last connection has sent of its message.
    sent: usize,
    documents: i64,
}

impl Planted {
    pub fn new(plant: Plant, uri: &str) -> Self {
        Self {
            plant,
            uri: uri.into(),
            held: Vec::new(),
            sent: 0,
            documents: 0,
        }
    }

    /// The server has restarted, and what was held is gone.
    pub fn server_is_new(&mut self) {
        self.held.clear();
    }

    fn connect(&self) -> Result<TcpStream, String> {
        let (_, transport) = Mongo::open(&plain_session(&self.uri)?)?;
        transport
            .into_plain()
            .ok_or_else(|| "TLS was not asked for".into())
    }

    /// A little more of it.
    pub fn grow(&mut self) -> Result<(), String> {
        match self.plant {
            Plant::LostWrite => Ok(()),
            Plant::Descriptors => {
                let connection = self.connect()?;
                self.held.push(connection);
                Ok(())
            }
            Plant::Leak => self.leak(),
            Plant::Space => self.space(),
        }
    }

    fn leak(&mut self) -> Result<(), String> {
        if self.held.is_empty() || self.sent + STEP_BYTES > MESSAGE_BYTES {
            let mut connection = self.connect()?;
            // Longer than all that is ever sent of it: a whole message would be answered and freed.
            let head = [(MESSAGE_BYTES + STEP_BYTES) as u32, 1, 0, 2013].map(u32::to_le_bytes);
            connection
                .write_all(head.as_flattened())
                .map_err(|error| error.to_string())?;
            self.held.push(connection);
            self.sent = 0;
        }
        let connection = self.held.last_mut().ok_or("a connection was just opened")?;
        self.sent += STEP_BYTES;
        connection
            .write_all(&vec![0x55; STEP_BYTES])
            .map_err(|error| error.to_string())
    }

    fn space(&mut self) -> Result<(), String> {
        let (mut mongo, mut transport) = Mongo::open(&plain_session(&self.uri)?)?;
        self.documents += 1;
        let mut state = self.documents as u64;
        let bytes: Vec<u8> = (0..DOCUMENT_BYTES)
            .map(|_| {
                // What is alike may be compressed.
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        mongo
            .command(&mut transport, "planted", |out| {
                bson::string(out, "insert", "documents");
                bson::array(out, "documents", |out| {
                    bson::nested(out, "0", |out| {
                        bson::int64(out, "_id", self.documents);
                        bson::binary_with(out, "value", 0, |out| out.extend_from_slice(&bytes));
                    });
                });
            })
            .map(drop)
    }
}
