//! The check of untrusted bytes: what passes can be iterated, compared and encoded without an
//! error.

use core::fmt;

use bson::RawDocument;
use bson::spec::ElementType;

use crate::limits::{
    MAX_DEPTH, MAX_INTERNAL_DOCUMENT_BYTES, MAX_WRAPPED_DEPTH, MIN_DOCUMENT_BYTES,
};
use crate::view::{OLD_BINARY_SUBTYPE, find_nul, length_at};

/// Why bytes are not a BSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidBson {
    /// What is wrong.
    pub fault: Fault,
    /// Where in the bytes it was seen.
    pub offset: usize,
    /// The name of the field that holds it, as far as it is known.
    pub field: Option<String>,
}

/// What can be wrong with bytes that should be BSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There are fewer bytes than the document says, or than any document has.
    Truncated,
    /// There are bytes after the document.
    TrailingBytes,
    /// The document is larger than any may be.
    TooLarge,
    /// The length of a document, an array, a string, binary or code does not fit what it holds.
    BadLength,
    /// A document, a string or a name has no NUL at its end.
    NotTerminated,
    /// The type byte names no type.
    UnknownType(u8),
    /// A string or a field name is not UTF-8.
    NotUtf8,
    /// A boolean is neither 0 nor 1.
    BadBoolean(u8),
    /// Documents are nested deeper than `MAX_DEPTH`.
    TooDeep,
}

impl fmt::Display for InvalidBson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            Fault::Truncated => write!(f, "incorrect BSON length: not enough bytes")?,
            Fault::TrailingBytes => write!(f, "incorrect BSON length: bytes after the document")?,
            Fault::TooLarge => {
                write!(
                    f,
                    "BSONObj size is invalid: larger than {MAX_INTERNAL_DOCUMENT_BYTES} bytes"
                )?;
            }
            Fault::BadLength => write!(f, "incorrect BSON length")?,
            Fault::NotTerminated => write!(f, "BSON object not terminated with EOO")?,
            Fault::UnknownType(tag) => write!(f, "Unrecognized BSON type {tag}")?,
            Fault::NotUtf8 => write!(f, "not a UTF-8 string")?,
            Fault::BadBoolean(byte) => write!(f, "boolean value is not 0 or 1: {byte}")?,
            Fault::TooDeep => write!(
                f,
                "BSONObj exceeds maximum nested object depth: {MAX_DEPTH}"
            )?,
        }
        if let Some(field) = &self.field {
            write!(f, " in element with field name '{field}'")?;
        }
        write!(f, " at offset {}", self.offset)
    }
}

impl core::error::Error for InvalidBson {}

/// Checks that the bytes are exactly one valid document.
pub fn validate(bytes: &[u8]) -> Result<&RawDocument, InvalidBson> {
    let (document, len) = validate_prefix(bytes)?;
    if len != bytes.len() {
        return Err(InvalidBson {
            fault: Fault::TrailingBytes,
            offset: len,
            field: None,
        });
    }
    Ok(document)
}

/// Checks the document at the front of the bytes; also gives its length.
pub fn validate_prefix(bytes: &[u8]) -> Result<(&RawDocument, usize), InvalidBson> {
    validate_prefix_to(bytes, MAX_DEPTH)
}

/// The same of a document that another node has wrapped others in.
pub fn validate_wrapped_prefix(bytes: &[u8]) -> Result<(&RawDocument, usize), InvalidBson> {
    validate_prefix_to(bytes, MAX_WRAPPED_DEPTH)
}

fn validate_prefix_to(
    bytes: &[u8],
    max_depth: usize,
) -> Result<(&RawDocument, usize), InvalidBson> {
    let top = |fault| InvalidBson {
        fault,
        offset: 0,
        field: None,
    };
    let len = length_at(bytes).ok_or_else(|| {
        top(if bytes.len() < 4 {
            Fault::Truncated
        } else {
            Fault::BadLength
        })
    })?;
    if len < MIN_DOCUMENT_BYTES {
        return Err(top(Fault::BadLength));
    }
    if len > MAX_INTERNAL_DOCUMENT_BYTES {
        return Err(top(Fault::TooLarge));
    }
    let document = bytes.get(..len).ok_or_else(|| top(Fault::Truncated))?;
    let mut checker = Checker {
        bytes: document,
        at: 0,
        name: 0..0,
        max_depth,
    };
    checker.document().map_err(|fault| checker.error(fault))?;
    // The frame was checked just now, so this cannot fail; an error is still an error.
    let document = RawDocument::from_bytes(document).map_err(|_| top(Fault::BadLength))?;
    Ok((document, len))
}

struct Checker<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the name of the element in hand lies.
    name: core::ops::Range<usize>,
    max_depth: usize,
}

impl Checker<'_> {
    #[cold]
    fn error(&self, fault: Fault) -> InvalidBson {
        let field = self.bytes.get(self.name.clone()).filter(|n| !n.is_empty());
        InvalidBson {
            fault,
            offset: self.at,
            field: field.map(|n| String::from_utf8_lossy(n).into_owned()),
        }
    }

    /// Walks all documents without recursion, so depth costs no stack.
    fn document(&mut self) -> Result<(), Fault> {
        // Where each open document ends.
        let mut ends = [0u32; MAX_WRAPPED_DEPTH + 1];
        let mut depth = 0;
        ends[0] = self.enter(self.bytes.len())? as u32;
        loop {
            let end = ends[depth] as usize;
            let tag = self.byte(end)?;
            if tag == 0 {
                if self.at != end {
                    return Err(Fault::BadLength);
                }
                let Some(outer) = depth.checked_sub(1) else {
                    return Ok(());
                };
                depth = outer;
                continue;
            }
            let kind = ElementType::from(tag).ok_or(Fault::UnknownType(tag))?;
            let start = self.at;
            let name = self.cstring(end)?;
            self.name = start..start + name;
            // The last byte of the enclosing document is its terminator.
            let limit = end - 1;
            let inner = match kind {
                ElementType::Null
                | ElementType::Undefined
                | ElementType::MinKey
                | ElementType::MaxKey => None,
                ElementType::Boolean => {
                    let byte = self.byte(limit)?;
                    if byte > 1 {
                        return Err(Fault::BadBoolean(byte));
                    }
                    None
                }
                ElementType::Int32 => self.skip(4, limit)?,
                ElementType::Double
                | ElementType::Int64
                | ElementType::DateTime
                | ElementType::Timestamp => self.skip(8, limit)?,
                ElementType::ObjectId => self.skip(12, limit)?,
                ElementType::Decimal128 => self.skip(16, limit)?,
                ElementType::String | ElementType::JavaScriptCode | ElementType::Symbol => {
                    self.string(limit)?
                }
                ElementType::DbPointer => {
                    self.string(limit)?;
                    self.skip(12, limit)?
                }
                ElementType::Binary => self.binary(limit)?,
                ElementType::RegularExpression => {
                    self.cstring(limit)?;
                    self.cstring(limit)?;
                    None
                }
                ElementType::EmbeddedDocument | ElementType::Array => Some(self.enter(limit)?),
                ElementType::JavaScriptCodeWithScope => {
                    let start = self.at;
                    let len = self.length(limit)?;
                    let whole_end = start
                        .checked_add(len)
                        .filter(|&e| e <= limit)
                        .ok_or(Fault::BadLength)?;
                    self.string(whole_end)?;
                    let end = self.enter(whole_end)?;
                    if end != whole_end {
                        return Err(Fault::BadLength);
                    }
                    Some(end)
                }
            };
            if let Some(end) = inner {
                depth += 1;
                if depth > self.max_depth {
                    return Err(Fault::TooDeep);
                }
                ends[depth] = end as u32;
            }
        }
    }

    /// Reads the length of a document, checks its frame within `limit`, and gives where it ends.
    fn enter(&mut self, limit: usize) -> Result<usize, Fault> {
        let start = self.at;
        let len = self.length(limit)?;
        if len < MIN_DOCUMENT_BYTES {
            return Err(Fault::BadLength);
        }
        let end = start
            .checked_add(len)
            .filter(|&e| e <= limit)
            .ok_or(Fault::BadLength)?;
        if self.bytes[end - 1] != 0 {
            return Err(Fault::NotTerminated);
        }
        Ok(end)
    }

    #[inline]
    fn byte(&mut self, limit: usize) -> Result<u8, Fault> {
        if self.at >= limit {
            return Err(Fault::Truncated);
        }
        let byte = self.bytes[self.at];
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    fn length(&mut self, limit: usize) -> Result<usize, Fault> {
        let bytes = self.bytes.get(self.at..limit).ok_or(Fault::Truncated)?;
        let len = length_at(bytes).ok_or(Fault::BadLength)?;
        self.at += 4;
        Ok(len)
    }

    /// Passes over bytes of any content; no document is entered.
    #[inline]
    fn skip(&mut self, len: usize, limit: usize) -> Result<Option<usize>, Fault> {
        let end = self
            .at
            .checked_add(len)
            .filter(|&e| e <= limit)
            .ok_or(Fault::Truncated)?;
        self.at = end;
        Ok(None)
    }

    fn string(&mut self, limit: usize) -> Result<Option<usize>, Fault> {
        let len = self.length(limit)?;
        let end = self
            .at
            .checked_add(len)
            .filter(|&e| e <= limit)
            .ok_or(Fault::BadLength)?;
        let (&last, text) = self.bytes[self.at..end]
            .split_last()
            .ok_or(Fault::BadLength)?;
        if last != 0 {
            return Err(Fault::NotTerminated);
        }
        self.utf8(text)?;
        self.at = end;
        Ok(None)
    }

    /// Reads a NUL-terminated string and gives its length.
    #[inline]
    fn cstring(&mut self, limit: usize) -> Result<usize, Fault> {
        let rest = self.bytes.get(self.at..limit).ok_or(Fault::Truncated)?;
        let len = find_nul(rest).ok_or(Fault::NotTerminated)?;
        self.utf8(&rest[..len])?;
        self.at += len + 1;
        Ok(len)
    }

    #[inline]
    fn utf8(&self, text: &[u8]) -> Result<(), Fault> {
        simdutf8::basic::from_utf8(text)
            .map(drop)
            .map_err(|_| Fault::NotUtf8)
    }

    fn binary(&mut self, limit: usize) -> Result<Option<usize>, Fault> {
        let len = self.length(limit)?;
        let subtype = self.byte(limit)?;
        let start = self.at;
        self.skip(len, limit)?;
        if subtype == OLD_BINARY_SUBTYPE {
            let payload = &self.bytes[start..self.at];
            let inner = length_at(payload).ok_or(Fault::BadLength)?;
            if inner + 4 != len {
                return Err(Fault::BadLength);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
