//! Messages that are alike but for one value. What was checked of the first need not be checked of
//! the others.

use bytes::Bytes;
use pinion_bson::{ElementType, RawBsonRef, RawDocument, RawElem, View};

use super::{Flags, Header, Message, MessageKind, OpCode, Range};
use crate::limits::{HEADER_BYTES, MAX_PATTERN_BYTES};

/// Where the body of an OP_MSG without document sequences in front of it begins.
const BODY_START: usize = HEADER_BYTES + 5;
/// Compared from the opcode on: the length is checked by itself, and every message has an id of its
/// own.
const COMPARED_FROM: usize = 12;

/// A message of which one value may be another one of the same type.
///
/// A message that fits has no flags and the example's body, byte for byte, but for the value and
/// for the lengths of the documents around it. So it is valid where the example was, and whatever
/// was read of the example holds for it.
#[derive(Debug)]
pub struct Pattern {
    example: Box<[u8]>,
    kind: ElementType,
    /// Where the value's bytes are.
    value: std::ops::Range<usize>,
    /// Where the document begins, a field of the body, that the value is in.
    document: usize,
}

impl Pattern {
    /// The pattern of `message` around the value of `elem`, a field of `document`, which is a field
    /// of the body.
    ///
    /// `None` for a long message, and for one with flags or document sequences.
    ///
    /// # Panics
    /// If document or element are not of this message.
    pub fn around(
        message: &Message,
        document: &RawDocument,
        elem: &RawElem<'_>,
    ) -> Option<Pattern> {
        let plain = message.kind == MessageKind::OpMsg
            && message.sequences.is_none()
            && message.body.start as usize == BODY_START
            && message.body.end as usize == message.bytes.len()
            && message.flags == Flags(0)
            && message.bytes.len() <= MAX_PATTERN_BYTES;
        if !plain {
            return None;
        }
        let origin = message.bytes.as_ptr() as usize;
        let document = document.as_bytes().as_ptr() as usize - origin;
        let start = elem.value.as_ptr() as usize - origin;
        let value = start..start + elem.value.len();
        assert!(BODY_START < document && document < start && value.end < message.bytes.len());
        Some(Pattern {
            example: (&*message.bytes).into(),
            kind: elem.kind,
            value,
            document,
        })
    }

    /// The value that this message has where the example has its own, if it fits.
    pub fn value_in<'a>(&self, bytes: &'a [u8]) -> Option<RawBsonRef<'a>> {
        let more = bytes.len() as isize - self.example.len() as isize;
        let start = self.value.start;
        let end = self.value.end.checked_add_signed(more)?;
        if end < start || length_at(bytes, 0)? != bytes.len() {
            return None;
        }
        let example = &self.example;
        let same = |from: usize, to: usize| bytes[from..to] == example[from..to];
        let longer = |at: usize| {
            let expected = length_at(example, at)?.checked_add_signed(more)?;
            (length_at(bytes, at)? == expected).then_some(())
        };
        let alike = if more == 0 {
            same(COMPARED_FROM, start)
        } else {
            same(COMPARED_FROM, BODY_START)
                && longer(BODY_START).is_some()
                && same(BODY_START + 4, self.document)
                && longer(self.document).is_some()
                && same(self.document + 4, start)
        };
        if !alike || bytes[end..] != example[self.value.end..] {
            return None;
        }
        View::from_bytes(self.kind, &bytes[start..end])?.to_value()
    }

    /// A message that fits. It is not checked.
    pub(crate) fn message(&self, bytes: Bytes) -> Message {
        debug_assert!(self.value_in(&bytes).is_some());
        let header = Header::read(&bytes).expect("a message that fits has a header");
        debug_assert_eq!(header.opcode, OpCode::MSG);
        Message {
            request_id: header.request_id,
            kind: MessageKind::OpMsg,
            flags: Flags(0),
            body: Range::new(BODY_START, bytes.len()),
            sequences: None,
            database: None,
            compressor: None,
            repeats: true,
            bytes,
        }
    }
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let length = bytes.get(at..)?.first_chunk::<4>()?;
    usize::try_from(i32::from_le_bytes(*length)).ok()
}

#[cfg(test)]
mod tests;
