//! From bytes to a message: OP_MSG, and OP_QUERY of the legacy handshake. Nothing is believed
//! unchecked.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{
    ElementType, InvalidBson, RawDocument, raw_elements, validate_prefix, validate_wrapped_prefix,
};

use super::header::{Header, OpCode};
use super::{DocumentSequence, Flags, Message, MessageKind, Range};
use crate::error::{Error, ErrorCode};
use crate::limits::{HEADER_BYTES, MAX_ACCEPTED_BYTES, MAX_DOCUMENT_SEQUENCES};

/// A message that cannot be run.
#[derive(Debug)]
pub struct ParseError {
    pub error: Error,
    /// How to answer it; `None` when the client waits for no answer or could not read one.
    pub answer: Option<Answer>,
    /// The connection is closed after the answer: what follows in the stream cannot be trusted.
    pub close: bool,
}

/// What is known of a message that could not be read, enough to answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub request_id: i32,
    pub kind: MessageKind,
}

/// Reads one whole message, header included. The length in the header was checked by
/// `message_length`.
///
/// Compressed messages are unwrapped first, by `CompressionState::unwrap`.
pub fn parse_message(bytes: Bytes) -> Result<Message, ParseError> {
    parse(bytes, validate_prefix)
}

/// Reads one whole message of another node: a reply, whose documents may be wrapped in others.
pub fn parse_reply(bytes: Bytes) -> Result<Message, ParseError> {
    parse(bytes, validate_wrapped_prefix)
}

/// How a document at the front of some bytes is checked; gives its length too.
type Check = fn(&[u8]) -> Result<(&RawDocument, usize), InvalidBson>;

fn parse(bytes: Bytes, check: Check) -> Result<Message, ParseError> {
    assert!(
        bytes.len() <= MAX_ACCEPTED_BYTES,
        "the caller bounds messages"
    );
    let Some(header) = Header::read(&bytes) else {
        return Err(fatal(Error::new(
            ErrorCode::PROTOCOL_ERROR,
            "Message shorter than its header",
        )));
    };
    if header.length as usize != bytes.len() {
        return Err(fatal(Error::new(
            ErrorCode::PROTOCOL_ERROR,
            "Message length differs from its header",
        )));
    }
    match header.opcode {
        OpCode::MSG => parse_op_msg(bytes, header, check),
        OpCode::QUERY => parse_op_query(bytes, header),
        OpCode(other) => Err(fatal(Error::new(
            ErrorCode::PROTOCOL_ERROR,
            format!("Message has an unsupported opcode: {other}"),
        ))),
    }
}

fn fatal(error: Error) -> ParseError {
    ParseError {
        error,
        answer: None,
        close: true,
    }
}

fn parse_op_msg(bytes: Bytes, header: Header, check: Check) -> Result<Message, ParseError> {
    let mut answer = Some(Answer {
        request_id: header.request_id,
        kind: MessageKind::OpMsg,
    });
    let Some(flag_bytes) = bytes[HEADER_BYTES..].first_chunk::<4>() else {
        return Err(fatal(Error::new(
            ErrorCode::PROTOCOL_ERROR,
            "OP_MSG without flags",
        )));
    };
    let flags = Flags(u32::from_le_bytes(*flag_bytes));
    if flags.has(Flags::MORE_TO_COME) {
        answer = None;
    }
    if let Some(unknown) = flags.unknown_required() {
        return Err(ParseError {
            error: Error::new(
                ErrorCode::ILLEGAL_OP_MSG_FLAG,
                format!("Message contains illegal flags value: Ob{unknown:b}"),
            ),
            answer,
            close: true,
        });
    }
    let mut end = bytes.len();
    if flags.has(Flags::CHECKSUM_PRESENT) {
        end -= 4;
        if end < HEADER_BYTES + 4 {
            return Err(fatal(Error::new(
                ErrorCode::PROTOCOL_ERROR,
                "OP_MSG without room for its checksum",
            )));
        }
        let stored =
            u32::from_le_bytes([bytes[end], bytes[end + 1], bytes[end + 2], bytes[end + 3]]);
        if crc32c::crc32c(&bytes[..end]) != stored {
            return Err(ParseError {
                error: Error::new(
                    ErrorCode::CHECKSUM_MISMATCH,
                    "OP_MSG checksum does not match contents",
                ),
                answer,
                close: true,
            });
        }
    }
    match parse_sections(&bytes[..end], HEADER_BYTES + 4, check) {
        Ok((body, sequences)) => Ok(Message {
            bytes,
            request_id: header.request_id,
            kind: MessageKind::OpMsg,
            flags,
            body,
            sequences: (!sequences.is_empty()).then(|| Arc::from(sequences)),
            database: None,
            compressor: None,
            repeats: false,
        }),
        Err(error) => {
            let close = error.is(crate::error::Category::CONNECTION_FATAL_PARSE);
            Err(ParseError {
                error,
                answer,
                close,
            })
        }
    }
}

type Sections = (Range, Vec<DocumentSequence>);

/// Sections from `at` to the end: `kind u8 = 0 | document`, or
/// `kind u8 = 1 | size i32 | name cstring | documents`, the size counting itself, name and
/// documents.
fn parse_sections(bytes: &[u8], mut at: usize, check: Check) -> Result<Sections, Error> {
    let mut body: Option<Range> = None;
    let mut sequences: Vec<DocumentSequence> = Vec::new();
    while at < bytes.len() {
        let kind = bytes[at];
        at += 1;
        match kind {
            0 => {
                if body.is_some() {
                    return Err(Error::new(
                        ErrorCode(40430),
                        "Multiple body sections in message",
                    ));
                }
                let length = document_length(bytes, at, check)?;
                body = Some(Range::new(at, at + length));
                at += length;
            }
            1 => {
                let size = bytes
                    .get(at..)
                    .and_then(|rest| rest.first_chunk::<4>())
                    .map(|size| i32::from_le_bytes(*size))
                    .and_then(|size| usize::try_from(size).ok())
                    .filter(|size| *size >= 5 && *size <= bytes.len() - at)
                    .ok_or_else(|| {
                        Error::new(
                            ErrorCode::OVERFLOW,
                            "Document sequence's size does not fit its message",
                        )
                    })?;
                let section = &bytes[..at + size];
                let sequence = parse_sequence(section, at + 4, check)?;
                let name = &bytes[sequence.name.as_usize()];
                if sequences
                    .iter()
                    .any(|other| &bytes[other.name.as_usize()] == name)
                {
                    return Err(Error::new(
                        ErrorCode(40431),
                        format!(
                            "Duplicate document sequence: {}",
                            String::from_utf8_lossy(name)
                        ),
                    ));
                }
                if sequences.len() == MAX_DOCUMENT_SEQUENCES {
                    return Err(Error::new(
                        ErrorCode::TOO_MANY_DOCUMENT_SEQUENCES,
                        "Too many document sequences in OP_MSG",
                    ));
                }
                sequences.push(sequence);
                at += size;
            }
            other => {
                return Err(Error::new(
                    ErrorCode(40432),
                    format!("Unknown section kind {other}"),
                ));
            }
        }
    }
    let Some(body) = body else {
        return Err(Error::new(
            ErrorCode(40587),
            "OP_MSG messages must have a body",
        ));
    };
    if !sequences.is_empty() {
        check_disjoint(bytes, body, &sequences)?;
    }
    Ok((body, sequences))
}

fn parse_sequence(
    section: &[u8],
    name_start: usize,
    check: Check,
) -> Result<DocumentSequence, Error> {
    let name_len = section[name_start..]
        .iter()
        .position(|b| *b == 0)
        .ok_or_else(|| Error::new(ErrorCode::OVERFLOW, "Document sequence's name has no end"))?;
    if std::str::from_utf8(&section[name_start..name_start + name_len]).is_err() {
        return Err(Error::new(
            ErrorCode::INVALID_BSON,
            "Document sequence's name is not UTF-8",
        ));
    }
    let mut at = name_start + name_len + 1;
    let mut starts = Vec::new();
    while at < section.len() {
        starts.push(at as u32);
        at += document_length(section, at, check)?;
    }
    Ok(DocumentSequence {
        name: Range::new(name_start, name_start + name_len),
        starts,
    })
}

/// Checks the document at `at` whole and gives its length.
fn document_length(bytes: &[u8], at: usize, check: Check) -> Result<usize, Error> {
    match check(&bytes[at..]) {
        Ok((_, length)) => Ok(length),
        Err(invalid) => Err(invalid.into()),
    }
}

fn check_disjoint(bytes: &[u8], body: Range, sequences: &[DocumentSequence]) -> Result<(), Error> {
    let document = RawDocument::from_bytes(&bytes[body.as_usize()]).expect("validated before");
    for element in raw_elements(document) {
        if sequences
            .iter()
            .any(|sequence| &bytes[sequence.name.as_usize()] == element.name)
        {
            return Err(Error::new(
                ErrorCode(40433),
                format!(
                    "Duplicate field between body and document sequence {}",
                    String::from_utf8_lossy(element.name)
                ),
            ));
        }
    }
    Ok(())
}

/// Commands that MongoDB still takes in OP_QUERY, so that a client of any age learns what the
/// server is.
const OP_QUERY_COMMANDS: [&str; 6] = [
    "hello",
    "isMaster",
    "ismaster",
    "buildInfo",
    "buildinfo",
    "_isSelf",
];

const LEGACY_HELP: &str = "The client driver may require an upgrade. For more details see \
                           https://dochub.mongodb.org/core/legacy-opcode-removal";

/// Layout behind the header:
/// `flags i32 | namespace cstring | skip i32 | limit i32 | query [| fields]`.
fn parse_op_query(bytes: Bytes, header: Header) -> Result<Message, ParseError> {
    let answer = Some(Answer {
        request_id: header.request_id,
        kind: MessageKind::OpQuery,
    });
    let refuse = |error: Error| ParseError {
        error,
        answer,
        close: false,
    };
    let malformed = || fatal(Error::new(ErrorCode::PROTOCOL_ERROR, "Malformed OP_QUERY"));

    let namespace_start = HEADER_BYTES + 4;
    let namespace_len = bytes
        .get(namespace_start..)
        .and_then(|rest| rest.iter().position(|b| *b == 0))
        .ok_or_else(malformed)?;
    let namespace = Range::new(namespace_start, namespace_start + namespace_len);
    let query_start = namespace_start + namespace_len + 1 + 8;
    let rest = bytes.get(query_start..).ok_or_else(malformed)?;
    let (query, query_len) = validate_prefix(rest).map_err(|invalid| refuse(invalid.into()))?;

    let text = std::str::from_utf8(&bytes[namespace.as_usize()]).map_err(|_| malformed())?;
    let Some(database) = text.strip_suffix(".$cmd") else {
        return Err(refuse(Error::new(
            ErrorCode(5_739_101),
            format!("OP_QUERY is no longer supported. {LEGACY_HELP}"),
        )));
    };
    // A read preference makes old clients wrap the command: { $query: { hello: 1 },
    // $readPreference: .. }.
    let mut command = query;
    let mut command_start = query_start;
    if let Some(first) = raw_elements(query).next()
        && matches!(first.name, b"$query" | b"query")
        && let Some(inner) = RawDocument::from_bytes(first.value)
            .ok()
            .filter(|_| first.kind == ElementType::EmbeddedDocument)
    {
        command = inner;
        command_start = inner.as_bytes().as_ptr() as usize - bytes.as_ptr() as usize;
    }
    let name = raw_elements(command)
        .next()
        .map_or(&b""[..], |element| element.name);
    if !OP_QUERY_COMMANDS
        .iter()
        .any(|known| known.as_bytes() == name)
    {
        let name = String::from_utf8_lossy(name);
        return Err(refuse(Error::new(
            ErrorCode::UNSUPPORTED_OP_QUERY_COMMAND,
            format!("Unsupported OP_QUERY command: {name}. {LEGACY_HELP}"),
        )));
    }
    debug_assert!(query_len >= command.as_bytes().len());
    let body = Range::new(command_start, command_start + command.as_bytes().len());
    let database = Range::new(namespace_start, namespace_start + database.len());
    Ok(Message {
        request_id: header.request_id,
        kind: MessageKind::OpQuery,
        flags: Flags(0),
        body,
        sequences: None,
        database: Some(database),
        compressor: None,
        repeats: false,
        bytes,
    })
}

#[cfg(test)]
mod tests;
