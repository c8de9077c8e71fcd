//! Messages of the wire protocol: one parsed message owns its bytes, and everything in it is a
//! range.

mod compress;
mod header;
mod parse;
mod pattern;
mod reply;

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawDocument, RawDocumentBuf, get};

use crate::error::{Error, ErrorCode, Result};

pub use compress::{CompressionError, CompressionState, Compressor};
pub use header::{BadLength, Header, OpCode, message_length};
pub use parse::{Answer, ParseError, parse_message, parse_reply};
pub use pattern::Pattern;
pub use reply::{
    Reply, ReplyFrame, append_labels, document_section, encode_request, encode_with_sections,
    error_reply,
};

/// A range within a message, whose length is bounded far below 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    start: u32,
    end: u32,
}

impl Range {
    fn new(start: usize, end: usize) -> Range {
        debug_assert!(start <= end && end <= crate::limits::MAX_ACCEPTED_BYTES);
        Range {
            start: start as u32,
            end: end as u32,
        }
    }

    fn as_usize(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The flags of OP_MSG. The low 16 bits must be understood, the high 16 may be ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    pub const CHECKSUM_PRESENT: Flags = Flags(1);
    /// From a client: it waits for no reply. From a server: another reply follows by itself.
    pub const MORE_TO_COME: Flags = Flags(1 << 1);
    /// The client accepts replies that follow by themselves.
    pub const EXHAUST_ALLOWED: Flags = Flags(1 << 16);

    pub fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    fn unknown_required(self) -> Option<u32> {
        let unknown = self.0 & 0xffff & !(Flags::CHECKSUM_PRESENT.0 | Flags::MORE_TO_COME.0);
        (unknown != 0).then_some(unknown)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    OpMsg,
    /// The legacy handshake; it is answered with OP_REPLY.
    OpQuery,
}

/// Documents that a message carries beside its body, under a name.
#[derive(Clone, Debug)]
pub(crate) struct DocumentSequence {
    name: Range,
    starts: Vec<u32>,
}

/// One request. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Bytes,
    request_id: i32,
    kind: MessageKind,
    flags: Flags,
    body: Range,
    sequences: Option<Arc<[DocumentSequence]>>,
    /// The database, where the body does not name it (OP_QUERY).
    database: Option<Range>,
    compressor: Option<Compressor>,
    /// It fits the pattern of a command that was run before, and was not read again.
    repeats: bool,
}

impl Message {
    /// A message made inside the node, as if a client had sent this body.
    pub fn from_body(body: RawDocumentBuf) -> Message {
        let bytes = Bytes::from(body.into_bytes());
        Message {
            body: Range::new(0, bytes.len()),
            bytes,
            request_id: 0,
            kind: MessageKind::OpMsg,
            flags: Flags(0),
            sequences: None,
            database: None,
            compressor: None,
            repeats: false,
        }
    }

    /// The same request with another body: the next step of an exhaust stream.
    pub fn with_body(&self, body: RawDocumentBuf) -> Message {
        Message {
            request_id: self.request_id,
            kind: self.kind,
            flags: self.flags,
            compressor: self.compressor,
            ..Message::from_body(body)
        }
    }

    /// Records that the message came compressed, so that its reply is.
    #[must_use]
    pub fn compressed_by(mut self, compressor: Compressor) -> Message {
        self.compressor = Some(compressor);
        self
    }

    pub fn request_id(&self) -> i32 {
        self.request_id
    }

    pub fn kind(&self) -> MessageKind {
        self.kind
    }

    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// True if it was made by the pattern of a prepared command.
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    pub fn compressor(&self) -> Option<Compressor> {
        self.compressor
    }

    /// True if the client waits for a reply.
    pub fn wants_reply(&self) -> bool {
        !self.flags.has(Flags::MORE_TO_COME)
    }

    /// All of the message, header included.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes this message holds in memory.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The command document.
    pub fn body(&self) -> &RawDocument {
        RawDocument::from_bytes(&self.bytes[self.body.as_usize()])
            .expect("validated when it was parsed")
    }

    /// The bytes of the body, sharing the message's memory.
    pub fn body_bytes(&self) -> Bytes {
        self.bytes.slice(self.body.as_usize())
    }

    /// The name of the command: that of the body's first field.
    pub fn command_name(&self) -> &str {
        pinion_bson::raw_elements(self.body())
            .next()
            .and_then(|elem| elem.name_str())
            .unwrap_or_default()
    }

    /// The database the command is for.
    pub fn database(&self) -> Result<&str> {
        if let Some(range) = self.database {
            return Ok(std::str::from_utf8(&self.bytes[range.as_usize()])
                .expect("checked when it was parsed"));
        }
        match get(self.body(), "$db") {
            None => Err(Error::new(
                ErrorCode(40571),
                "OP_MSG requests require a $db argument",
            )),
            Some(value) => value.as_str().ok_or_else(|| {
                crate::idl::wrong_type(
                    crate::idl::Path::root(self.command_name()).field("$db"),
                    value,
                    crate::idl::Types::STRING,
                )
            }),
        }
    }

    /// The names of the document sequences.
    pub fn sequence_names(&self) -> impl Iterator<Item = &str> {
        self.sequences
            .iter()
            .flat_map(|all| all.iter())
            .map(|sequence| self.sequence_name(sequence))
    }

    /// The document sequences as the message has them, one behind the other: what another request
    /// with the same documents has behind its body.
    pub fn sequence_sections(&self) -> Vec<Bytes> {
        let all = self.sequences.iter().flat_map(|all| all.iter());
        all.map(|sequence| self.bytes.slice(self.section_of(sequence)))
            .collect()
    }

    /// `kind u8 = 1 | size i32 | name cstring | documents`.
    fn section_of(&self, sequence: &DocumentSequence) -> std::ops::Range<usize> {
        let size_at = sequence.name.as_usize().start - 4;
        let size = self.bytes[size_at..]
            .first_chunk::<4>()
            .expect("checked when it was parsed");
        size_at - 1..size_at + i32::from_le_bytes(*size) as usize
    }

    fn sequence_name(&self, sequence: &DocumentSequence) -> &str {
        std::str::from_utf8(&self.bytes[sequence.name.as_usize()])
            .expect("checked when it was parsed")
    }

    /// The documents of an argument that may come as an array in the body or as a document sequence
    /// (`documents` of insert, `updates`, `deletes`); `None` if the message has neither.
    pub fn documents(&self, name: &str) -> Result<Option<Documents>> {
        let sequence = self
            .sequences
            .iter()
            .flat_map(|all| all.iter())
            .find(|sequence| self.sequence_name(sequence) == name);
        if let Some(sequence) = sequence {
            return Ok(Some(Documents {
                bytes: self.bytes.clone(),
                starts: sequence.starts.clone(),
            }));
        }
        let reader_path = crate::idl::Path::root(self.command_name());
        match get(self.body(), name) {
            None | Some(pinion_bson::RawBsonRef::Null | pinion_bson::RawBsonRef::Undefined) => {
                Ok(None)
            }
            Some(pinion_bson::RawBsonRef::Array(array)) => {
                let origin = self.bytes.as_ptr() as usize;
                let mut starts = Vec::new();
                for object in crate::idl::Objects::new(reader_path.field(name), array) {
                    let (_, document) = object?;
                    starts.push((document.as_bytes().as_ptr() as usize - origin) as u32);
                }
                Ok(Some(Documents {
                    bytes: self.bytes.clone(),
                    starts,
                }))
            }
            Some(other) => Err(crate::idl::wrong_type(
                reader_path.field(name),
                other,
                crate::idl::Types::ARRAY,
            )),
        }
    }
}

/// Documents inside a message, in order; they share its memory.
#[derive(Clone, Debug)]
pub struct Documents {
    bytes: Bytes,
    starts: Vec<u32>,
}

impl Documents {
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    fn range(&self, index: usize) -> std::ops::Range<usize> {
        let start = self.starts[index] as usize;
        let length = self.bytes[start..]
            .first_chunk::<4>()
            .expect("a validated document starts here");
        start..start + i32::from_le_bytes(*length) as usize
    }

    /// The document with this index. Panics when there is none.
    pub fn get(&self, index: usize) -> &RawDocument {
        RawDocument::from_bytes(&self.bytes[self.range(index)])
            .expect("validated when it was parsed")
    }

    /// Its bytes, sharing the memory of the whole message: copy them to keep them long.
    pub fn get_bytes(&self, index: usize) -> Bytes {
        self.bytes.slice(self.range(index))
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &RawDocument> {
        (0..self.len()).map(|index| self.get(index))
    }
}
