//! Replies: header, section frame and document are written once, into one buffer.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};

use super::header::{Header, OpCode};
use super::{Flags, Message, MessageKind};
use crate::command::Repeatable;
use crate::error::Error;
use crate::limits::HEADER_BYTES;

/// Behind the header of OP_MSG: `flags u32 | kind u8 = 0`.
const OP_MSG_PREFIX: usize = HEADER_BYTES + 5;
/// Behind the header of OP_REPLY: `flags i32 | cursor i64 | from i32 | count i32`.
const OP_REPLY_PREFIX: usize = HEADER_BYTES + 20;
const _: () = assert!(OP_MSG_PREFIX < OP_REPLY_PREFIX);
/// OP_REPLY's flag that a server understands awaitData, which every one does.
const AWAIT_CAPABLE: i32 = 8;

/// What a command answers, under construction; it is a `DocBuilder` of the reply's fields.
///
/// The dispatcher appends `ok: 1.0` and the times. There is room in front for either message frame.
#[derive(Debug)]
pub struct Reply {
    fields: DocBuilder,
    /// The body of the next invocation of the command, when the reply opens or continues an exhaust
    /// stream.
    next: Option<RawDocumentBuf>,
    close_connection: bool,
    /// The connection is closed instead of sending this.
    withheld: bool,
    /// `ok` is an int, as in the replies that MongoDB makes out of those of other commands.
    ok_is_int: bool,
    /// What the command leaves for the next one like it.
    repeatable: Option<Box<Repeatable>>,
}

impl Default for Reply {
    fn default() -> Reply {
        Reply::new()
    }
}

impl Reply {
    pub fn new() -> Reply {
        Reply::with_capacity(192)
    }

    /// A reply with room for a document of about this many bytes.
    pub fn with_capacity(bytes: usize) -> Reply {
        let mut buffer = Vec::with_capacity(OP_REPLY_PREFIX + bytes + 64);
        buffer.resize(OP_REPLY_PREFIX, 0);
        Reply {
            fields: DocBuilder::with_prefix(buffer),
            next: None,
            close_connection: false,
            withheld: false,
            ok_is_int: false,
            repeatable: None,
        }
    }

    /// A reply with the fields of this document.
    pub fn from_document(document: &RawDocument) -> Reply {
        let mut reply = Reply::with_capacity(document.as_bytes().len());
        reply.append_all(document);
        reply
    }

    /// Streams: after this reply the command is run again with `body`, without being asked. Only
    /// for an invocation that allows it.
    pub fn stream_next(&mut self, body: RawDocumentBuf) -> &mut Reply {
        self.next = Some(body);
        self
    }

    /// The body of the next invocation of an exhaust stream.
    pub fn take_next(&mut self) -> Option<RawDocumentBuf> {
        self.next.take()
    }

    /// The next command of the connection that fits the pattern is run without being read.
    pub fn repeatable(&mut self, repeatable: Repeatable) -> &mut Reply {
        self.repeatable = Some(Box::new(repeatable));
        self
    }

    /// What the command leaves for the next one like it.
    pub fn take_repeatable(&mut self) -> Option<Box<Repeatable>> {
        self.repeatable.take()
    }

    /// Closes the connection once the reply is sent.
    pub fn close_connection(&mut self) -> &mut Reply {
        self.close_connection = true;
        self
    }

    /// Closes the connection at once: this reply is not sent.
    pub fn withhold(&mut self) -> &mut Reply {
        self.withheld = true;
        self
    }

    pub fn is_withheld(&self) -> bool {
        self.withheld
    }

    /// `ok` will be an int.
    pub fn ok_as_int(&mut self) -> &mut Reply {
        self.ok_is_int = true;
        self
    }

    /// Appends `ok`: the command has succeeded.
    pub fn append_ok(&mut self) {
        match self.ok_is_int {
            true => self.append("ok", 1i32),
            false => self.append("ok", 1.0),
        };
    }

    pub fn closes_connection(&self) -> bool {
        self.close_connection
    }

    /// Frames the reply. The fields are complete: the dispatcher has appended `ok` and what follows
    /// it.
    pub fn encode(self, frame: ReplyFrame) -> Bytes {
        let mut bytes = self.fields.finish_bytes();
        match frame.kind {
            MessageKind::OpMsg => {
                let start = OP_REPLY_PREFIX - OP_MSG_PREFIX;
                let mut flags = 0;
                if frame.more_to_come {
                    flags |= Flags::MORE_TO_COME.0;
                }
                let mut length = bytes.len() - start;
                if frame.checksum {
                    flags |= Flags::CHECKSUM_PRESENT.0;
                    length += 4;
                }
                let header = frame.header(length, OpCode::MSG);
                bytes[start..start + HEADER_BYTES].copy_from_slice(&header.to_bytes());
                bytes[start + HEADER_BYTES..start + HEADER_BYTES + 4]
                    .copy_from_slice(&flags.to_le_bytes());
                bytes[start + HEADER_BYTES + 4] = 0;
                if frame.checksum {
                    let checksum = crc32c::crc32c(&bytes[start..]);
                    bytes.extend_from_slice(&checksum.to_le_bytes());
                }
                Bytes::from(bytes).slice(start..)
            }
            MessageKind::OpQuery => {
                let header = frame.header(bytes.len(), OpCode::REPLY);
                bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
                bytes[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&AWAIT_CAPABLE.to_le_bytes());
                // Cursor id and starting index stay zero; there is one document.
                bytes[OP_REPLY_PREFIX - 4..OP_REPLY_PREFIX].copy_from_slice(&1i32.to_le_bytes());
                Bytes::from(bytes)
            }
        }
    }
}

impl Deref for Reply {
    type Target = DocBuilder;

    fn deref(&self) -> &DocBuilder {
        &self.fields
    }
}

impl DerefMut for Reply {
    fn deref_mut(&mut self) -> &mut DocBuilder {
        &mut self.fields
    }
}

/// How a reply is framed: what it answers, and in which form.
#[derive(Clone, Copy, Debug)]
pub struct ReplyFrame {
    pub kind: MessageKind,
    pub request_id: i32,
    pub response_to: i32,
    pub checksum: bool,
    pub more_to_come: bool,
}

impl ReplyFrame {
    /// The frame of a reply to this message: same kind, and a checksum if it had one.
    pub fn answering(message: &Message, request_id: i32) -> ReplyFrame {
        ReplyFrame {
            kind: message.kind(),
            request_id,
            response_to: message.request_id(),
            checksum: message.flags().has(Flags::CHECKSUM_PRESENT),
            more_to_come: false,
        }
    }

    /// The frame of a reply to a plain OP_MSG with this id: without checksum, and nothing follows.
    pub fn plain(request_id: i32, response_to: i32) -> ReplyFrame {
        ReplyFrame {
            kind: MessageKind::OpMsg,
            request_id,
            response_to,
            checksum: false,
            more_to_come: false,
        }
    }

    fn header(&self, length: usize, opcode: OpCode) -> Header {
        let length = u32::try_from(length).expect("a document and its frame are below 2 GiB");
        Header {
            length,
            request_id: self.request_id,
            response_to: self.response_to,
            opcode,
        }
    }
}

/// The reply to a command that failed: `ok: 0.0`, `errmsg`, `code`, `codeName`, further fields and
/// labels. Where the further fields have `errorLabels`, these stand for all others; an empty list
/// is left out.
pub fn error_reply(error: &Error, more_labels: &[&'static str]) -> Reply {
    let mut reply = Reply::new();
    reply
        .append("ok", 0.0)
        .append("errmsg", error.message.as_str())
        .append("code", error.code.0)
        .append("codeName", &*error.code_name());
    if let Some(extra) = &error.extra {
        let labels = pinion_bson::get(extra, "errorLabels").and_then(|labels| labels.as_array());
        if labels.is_some_and(|labels| pinion_bson::values(labels).next().is_none()) {
            let further = pinion_bson::elements(extra).filter(|(name, _)| *name != "errorLabels");
            further.for_each(|(name, value)| {
                reply.append_raw(name, value);
            });
            return reply;
        }
        reply.append_all(extra);
    }
    let further = more_labels
        .iter()
        .filter(|label| !error.labels.contains(*label));
    append_labels(&mut reply, error.labels.iter().chain(further));
    reply
}

/// Appends `errorLabels`, where there are any and the reply has none.
pub fn append_labels<'a>(reply: &mut Reply, labels: impl IntoIterator<Item = &'a &'static str>) {
    let mut labels = labels.into_iter().peekable();
    if labels.peek().is_none() || reply.contains("errorLabels") {
        return;
    }
    reply.start_array("errorLabels");
    for label in labels {
        reply.push(*label);
    }
    reply.end();
}

/// The bytes of an OP_MSG request with this body: what a client sends.
pub fn encode_request(request_id: i32, flags: Flags, body: &RawDocument) -> Bytes {
    let reply = Reply::from_document(body);
    let frame = ReplyFrame {
        more_to_come: flags.has(Flags::MORE_TO_COME),
        ..ReplyFrame::plain(request_id, 0)
    };
    let mut bytes = reply.encode(frame).to_vec();
    bytes[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&flags.0.to_le_bytes());
    if flags.has(Flags::CHECKSUM_PRESENT) {
        let length = (bytes.len() + 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
    }
    Bytes::from(bytes)
}

/// A document sequence: the section of an argument of this name.
pub fn document_section<'d>(
    name: &str,
    documents: impl IntoIterator<Item = &'d RawDocument>,
) -> Bytes {
    let mut bytes = vec![1, 0, 0, 0, 0];
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(0);
    for document in documents {
        bytes.extend_from_slice(document.as_bytes());
    }
    // The size counts itself, the name and the documents.
    let size = u32::try_from(bytes.len() - 1).expect("a message is below 2 GiB");
    bytes[1..5].copy_from_slice(&size.to_le_bytes());
    Bytes::from(bytes)
}

/// A request with document sequences behind its body, each a whole section.
pub fn encode_with_sections(request_id: i32, body: &RawDocument, sections: &[Bytes]) -> Bytes {
    let behind: usize = sections.iter().map(Bytes::len).sum();
    let body = body.as_bytes();
    let length = OP_MSG_PREFIX + body.len() + behind;
    let header = ReplyFrame::plain(request_id, 0).header(length, OpCode::MSG);
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&header.to_bytes());
    // No flags, and the kind of the body's section.
    bytes.extend_from_slice(&[0; 5]);
    bytes.extend_from_slice(body);
    for section in sections {
        bytes.extend_from_slice(section);
    }
    Bytes::from(bytes)
}
