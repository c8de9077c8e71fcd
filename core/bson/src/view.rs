//! Byte-level views: elements of a document and their values without UTF-8 checks or copies.
//!
//! Comparison and key encoding work on these. They accept any bytes: what is malformed ends an
//! iteration or yields no view, and nothing here panics on it.

use bson::oid::ObjectId;
use bson::raw::CStr;
use bson::spec::{BinarySubtype, ElementType};
use bson::{
    DateTime, Decimal128, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, RawRegexRef,
    Timestamp,
};

use crate::array::array_of;
use crate::limits::MIN_DOCUMENT_BYTES;

/// The subtype whose payload repeats its length inside.
pub(crate) const OLD_BINARY_SUBTYPE: u8 = 2;

/// One element of a document as bytes.
#[derive(Clone, Copy, Debug)]
pub struct RawElem<'a> {
    /// The type.
    pub kind: ElementType,
    /// The field's name without its terminator, not checked to be UTF-8.
    pub name: &'a [u8],
    /// The value's bytes as they stand in the document.
    pub value: &'a [u8],
    /// The document the element stands in: a DBPointer is read through it.
    parent: &'a [u8],
}

/// The elements of a document as bytes; what is malformed ends it.
#[derive(Clone, Debug)]
pub struct RawElems<'a> {
    document: &'a [u8],
    at: usize,
}

impl<'a> RawElems<'a> {
    /// The elements of a document given with its length and terminator.
    #[inline]
    pub fn new(document: &'a [u8]) -> RawElems<'a> {
        RawElems { document, at: 4 }
    }

    /// The elements from a position on that [`RawElems::position`] gave for the same document.
    #[inline]
    pub fn resume(document: &'a [u8], position: usize) -> RawElems<'a> {
        RawElems {
            document,
            at: position,
        }
    }

    /// Where in the document's bytes the next element begins.
    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for RawElems<'a> {
    type Item = RawElem<'a>;

    #[inline]
    fn next(&mut self) -> Option<RawElem<'a>> {
        let rest = self.document.get(self.at..)?;
        let (&tag, rest) = rest.split_first()?;
        if tag == 0 {
            return None;
        }
        let Some((elem, next)) = split_element(tag, rest, self.document) else {
            self.at = self.document.len();
            return None;
        };
        self.at = self.document.len() - next.len();
        Some(elem)
    }
}

/// Splits an element whose tag has been read off the front of `rest`.
#[inline]
fn split_element<'a>(tag: u8, rest: &'a [u8], parent: &'a [u8]) -> Option<(RawElem<'a>, &'a [u8])> {
    let kind = ElementType::from(tag)?;
    let name_len = find_nul(rest)?;
    let (name, rest) = (&rest[..name_len], &rest[name_len + 1..]);
    let size = value_size(kind, rest)?;
    if size > rest.len() {
        return None;
    }
    let (value, next) = rest.split_at(size);
    Some((
        RawElem {
            kind,
            name,
            value,
            parent,
        },
        next,
    ))
}

/// The size of a value of this type at the front of `bytes`; not checked to lie within them.
#[inline]
pub(crate) fn value_size(kind: ElementType, bytes: &[u8]) -> Option<usize> {
    Some(match kind {
        ElementType::Null | ElementType::Undefined | ElementType::MinKey | ElementType::MaxKey => 0,
        ElementType::Boolean => 1,
        ElementType::Int32 => 4,
        ElementType::Double
        | ElementType::Int64
        | ElementType::DateTime
        | ElementType::Timestamp => 8,
        ElementType::ObjectId => 12,
        ElementType::Decimal128 => 16,
        ElementType::String | ElementType::JavaScriptCode | ElementType::Symbol => {
            4 + length_at(bytes)?
        }
        ElementType::DbPointer => 4 + length_at(bytes)? + 12,
        ElementType::Binary => 5 + length_at(bytes)?,
        ElementType::EmbeddedDocument | ElementType::Array => {
            let len = length_at(bytes)?;
            if len < MIN_DOCUMENT_BYTES {
                return None;
            }
            len
        }
        ElementType::JavaScriptCodeWithScope => {
            let len = length_at(bytes)?;
            if len < 4 {
                return None;
            }
            len
        }
        ElementType::RegularExpression => {
            let pattern = find_nul(bytes)?;
            let options = find_nul(&bytes[pattern + 1..])?;
            pattern + 1 + options + 1
        }
    })
}

/// Where the first NUL is. Names are short, so eight bytes at a time beat a call into a search
/// routine.
#[inline]
pub fn find_nul(bytes: &[u8]) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let (words, tail) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The lowest set bit marks the first zero byte; borrows only disturb the bits above it.
        let zeros = word.wrapping_sub(LOW) & !word & HIGH;
        if zeros != 0 {
            return Some(i * 8 + zeros.trailing_zeros() as usize / 8);
        }
    }
    tail.iter()
        .position(|&b| b == 0)
        .map(|i| bytes.len() - tail.len() + i)
}

/// A length field, which is never negative.
#[inline]
pub(crate) fn length_at(bytes: &[u8]) -> Option<usize> {
    let bytes: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    usize::try_from(i32::from_le_bytes(bytes)).ok()
}

impl<'a> RawElem<'a> {
    /// The field's name, `None` when it is not UTF-8.
    #[inline]
    pub fn name_str(&self) -> Option<&'a str> {
        simdutf8::basic::from_utf8(self.name).ok()
    }

    /// The value as a view; `None` when its bytes are malformed.
    #[inline]
    pub fn view(&self) -> Option<View<'a>> {
        View::from_bytes(self.kind, self.value)
    }

    /// The value as the `bson` crate has it; `None` when its bytes are malformed.
    #[inline]
    pub fn to_value(&self) -> Option<RawBsonRef<'a>> {
        match self.view()? {
            View::DbPointer { .. } => self.db_pointer(),
            view => view.to_value(),
        }
    }

    /// The `bson` crate alone can make a reference to a DBPointer, from the document it stands in.
    #[cold]
    fn db_pointer(&self) -> Option<RawBsonRef<'a>> {
        let document = RawDocument::from_bytes(self.parent).ok()?;
        for element in document.iter_elements() {
            let element = element.ok()?;
            if core::ptr::eq(element.key().as_str().as_ptr(), self.name.as_ptr()) {
                return element.value().ok();
            }
        }
        None
    }
}

/// A value of a document, its variable-length parts as bytes.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the variants are the BSON types")]
pub enum View<'a> {
    Double(f64),
    String(&'a [u8]),
    /// The document's bytes with length and terminator.
    Document(&'a [u8]),
    /// The array's bytes with length and terminator.
    Array(&'a [u8]),
    /// The payload, for subtype 2 without the length it repeats inside.
    Binary {
        subtype: u8,
        bytes: &'a [u8],
    },
    Undefined,
    ObjectId([u8; 12]),
    Boolean(bool),
    /// Milliseconds since 1970.
    DateTime(i64),
    Null,
    Regex {
        pattern: &'a [u8],
        options: &'a [u8],
    },
    DbPointer {
        namespace: &'a [u8],
        id: [u8; 12],
    },
    Code(&'a [u8]),
    Symbol(&'a [u8]),
    CodeWithScope {
        code: &'a [u8],
        scope: &'a [u8],
    },
    Int32(i32),
    /// Seconds in the upper half, increment in the lower.
    Timestamp(u64),
    Int64(i64),
    /// The bytes in the order of the document (little endian, BID).
    Decimal128([u8; 16]),
    MinKey,
    MaxKey,
}

impl<'a> View<'a> {
    /// Reads the value of the given type that is exactly `bytes`; `None` when malformed.
    #[inline]
    pub fn from_bytes(kind: ElementType, bytes: &'a [u8]) -> Option<View<'a>> {
        Some(match kind {
            ElementType::Double => View::Double(f64::from_le_bytes(bytes.try_into().ok()?)),
            ElementType::Int32 => View::Int32(i32::from_le_bytes(bytes.try_into().ok()?)),
            ElementType::Int64 => View::Int64(i64::from_le_bytes(bytes.try_into().ok()?)),
            ElementType::String => View::String(string_bytes(bytes)?),
            ElementType::ObjectId => View::ObjectId(bytes.try_into().ok()?),
            ElementType::Boolean => match bytes {
                [0] => View::Boolean(false),
                [1] => View::Boolean(true),
                _ => return None,
            },
            ElementType::DateTime => View::DateTime(i64::from_le_bytes(bytes.try_into().ok()?)),
            ElementType::Null => View::Null,
            ElementType::EmbeddedDocument => View::Document(document_bytes(bytes)?),
            ElementType::Array => View::Array(document_bytes(bytes)?),
            ElementType::Timestamp => View::Timestamp(u64::from_le_bytes(bytes.try_into().ok()?)),
            ElementType::Decimal128 => View::Decimal128(bytes.try_into().ok()?),
            ElementType::Binary => {
                let len = length_at(bytes)?;
                let (&subtype, payload) = bytes.get(4..)?.split_first()?;
                if payload.len() != len {
                    return None;
                }
                if subtype == OLD_BINARY_SUBTYPE {
                    let inner = payload.get(4..)?;
                    if length_at(payload)? != inner.len() {
                        return None;
                    }
                    View::Binary {
                        subtype,
                        bytes: inner,
                    }
                } else {
                    View::Binary {
                        subtype,
                        bytes: payload,
                    }
                }
            }
            ElementType::Undefined => View::Undefined,
            ElementType::RegularExpression => {
                let end = find_nul(bytes)?;
                let options = bytes[end + 1..].strip_suffix(&[0])?;
                View::Regex {
                    pattern: &bytes[..end],
                    options,
                }
            }
            ElementType::DbPointer => {
                let split = bytes.len().checked_sub(12)?;
                let (namespace, id) = bytes.split_at(split);
                View::DbPointer {
                    namespace: string_bytes(namespace)?,
                    id: id.try_into().ok()?,
                }
            }
            ElementType::JavaScriptCode => View::Code(string_bytes(bytes)?),
            ElementType::Symbol => View::Symbol(string_bytes(bytes)?),
            ElementType::JavaScriptCodeWithScope => {
                if length_at(bytes)? != bytes.len() {
                    return None;
                }
                let code_len = length_at(bytes.get(4..)?)?;
                let code = string_bytes(bytes.get(4..8 + code_len)?)?;
                View::CodeWithScope {
                    code,
                    scope: document_bytes(bytes.get(8 + code_len..)?)?,
                }
            }
            ElementType::MinKey => View::MinKey,
            ElementType::MaxKey => View::MaxKey,
        })
    }

    /// The type.
    #[inline]
    pub fn kind(&self) -> ElementType {
        match self {
            View::Double(_) => ElementType::Double,
            View::String(_) => ElementType::String,
            View::Document(_) => ElementType::EmbeddedDocument,
            View::Array(_) => ElementType::Array,
            View::Binary { .. } => ElementType::Binary,
            View::Undefined => ElementType::Undefined,
            View::ObjectId(_) => ElementType::ObjectId,
            View::Boolean(_) => ElementType::Boolean,
            View::DateTime(_) => ElementType::DateTime,
            View::Null => ElementType::Null,
            View::Regex { .. } => ElementType::RegularExpression,
            View::DbPointer { .. } => ElementType::DbPointer,
            View::Code(_) => ElementType::JavaScriptCode,
            View::Symbol(_) => ElementType::Symbol,
            View::CodeWithScope { .. } => ElementType::JavaScriptCodeWithScope,
            View::Int32(_) => ElementType::Int32,
            View::Timestamp(_) => ElementType::Timestamp,
            View::Int64(_) => ElementType::Int64,
            View::Decimal128(_) => ElementType::Decimal128,
            View::MinKey => ElementType::MinKey,
            View::MaxKey => ElementType::MaxKey,
        }
    }

    /// The value as the `bson` crate has it; `None` for what is not UTF-8 or malformed, and for a
    /// DBPointer, which only `RawElem::to_value` can give.
    #[inline]
    pub fn to_value(self) -> Option<RawBsonRef<'a>> {
        Some(match self {
            View::Double(v) => RawBsonRef::Double(v),
            View::String(v) => RawBsonRef::String(simdutf8::basic::from_utf8(v).ok()?),
            View::Document(v) => RawBsonRef::Document(RawDocument::from_bytes(v).ok()?),
            View::Array(v) => RawBsonRef::Array(array_of(RawDocument::from_bytes(v).ok()?)),
            View::Binary { subtype, bytes } => RawBsonRef::Binary(RawBinaryRef {
                subtype: BinarySubtype::from(subtype),
                bytes,
            }),
            View::Undefined => RawBsonRef::Undefined,
            View::ObjectId(v) => RawBsonRef::ObjectId(ObjectId::from_bytes(v)),
            View::Boolean(v) => RawBsonRef::Boolean(v),
            View::DateTime(v) => RawBsonRef::DateTime(DateTime::from_millis(v)),
            View::Null => RawBsonRef::Null,
            View::Regex { pattern, options } => RawBsonRef::RegularExpression(RawRegexRef {
                pattern: cstr_of(pattern)?,
                options: cstr_of(options)?,
            }),
            View::DbPointer { .. } => return None,
            View::Code(v) => RawBsonRef::JavaScriptCode(simdutf8::basic::from_utf8(v).ok()?),
            View::Symbol(v) => RawBsonRef::Symbol(simdutf8::basic::from_utf8(v).ok()?),
            View::CodeWithScope { code, scope } => {
                RawBsonRef::JavaScriptCodeWithScope(bson::RawJavaScriptCodeWithScopeRef {
                    code: simdutf8::basic::from_utf8(code).ok()?,
                    scope: RawDocument::from_bytes(scope).ok()?,
                })
            }
            View::Int32(v) => RawBsonRef::Int32(v),
            View::Timestamp(v) => RawBsonRef::Timestamp(Timestamp {
                time: (v >> 32) as u32,
                increment: v as u32,
            }),
            View::Int64(v) => RawBsonRef::Int64(v),
            View::Decimal128(v) => RawBsonRef::Decimal128(Decimal128::from_bytes(v)),
            View::MinKey => RawBsonRef::MinKey,
            View::MaxKey => RawBsonRef::MaxKey,
        })
    }
}

/// Calls `f` with the view of a value.
#[inline]
pub fn with_view<R>(value: RawBsonRef<'_>, f: impl FnOnce(View<'_>) -> R) -> R {
    let view = match value {
        RawBsonRef::Double(v) => View::Double(v),
        RawBsonRef::String(v) => View::String(v.as_bytes()),
        RawBsonRef::Document(v) => View::Document(v.as_bytes()),
        RawBsonRef::Array(v) => View::Array(v.as_bytes()),
        RawBsonRef::Binary(v) => View::Binary {
            subtype: v.subtype.into(),
            bytes: v.bytes,
        },
        RawBsonRef::Undefined => View::Undefined,
        RawBsonRef::ObjectId(v) => View::ObjectId(v.bytes()),
        RawBsonRef::Boolean(v) => View::Boolean(v),
        RawBsonRef::DateTime(v) => View::DateTime(v.timestamp_millis()),
        RawBsonRef::Null => View::Null,
        RawBsonRef::RegularExpression(v) => View::Regex {
            pattern: v.pattern.as_str().as_bytes(),
            options: v.options.as_str().as_bytes(),
        },
        RawBsonRef::DbPointer(_) => {
            // The parts of a DBPointer can only be read from its bytes.
            let mut buf = RawDocumentBuf::new();
            buf.append(bson::raw::cstr!(""), value);
            let elem = RawElems::new(buf.as_bytes())
                .next()
                .expect("one element was appended");
            return f(elem
                .view()
                .expect("the element was written by the bson crate"));
        }
        RawBsonRef::JavaScriptCode(v) => View::Code(v.as_bytes()),
        RawBsonRef::Symbol(v) => View::Symbol(v.as_bytes()),
        RawBsonRef::JavaScriptCodeWithScope(v) => View::CodeWithScope {
            code: v.code.as_bytes(),
            scope: v.scope.as_bytes(),
        },
        RawBsonRef::Int32(v) => View::Int32(v),
        RawBsonRef::Timestamp(v) => {
            View::Timestamp(u64::from(v.time) << 32 | u64::from(v.increment))
        }
        RawBsonRef::Int64(v) => View::Int64(v),
        RawBsonRef::Decimal128(v) => View::Decimal128(v.bytes()),
        RawBsonRef::MinKey => View::MinKey,
        RawBsonRef::MaxKey => View::MaxKey,
    };
    f(view)
}

/// The text of a length-prefixed string that fills `bytes`.
#[inline]
fn string_bytes(bytes: &[u8]) -> Option<&[u8]> {
    let len = length_at(bytes)?;
    let text = bytes.get(4..)?;
    if text.len() != len {
        return None;
    }
    text.strip_suffix(&[0])
}

/// A document that fills `bytes`.
#[inline]
fn document_bytes(bytes: &[u8]) -> Option<&[u8]> {
    let well_formed = bytes.len() >= MIN_DOCUMENT_BYTES
        && length_at(bytes)? == bytes.len()
        && bytes[bytes.len() - 1] == 0;
    well_formed.then_some(bytes)
}

fn cstr_of(bytes: &[u8]) -> Option<&CStr> {
    simdutf8::basic::from_utf8(bytes).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::find_nul;

    #[test]
    fn the_first_nul_is_found_wherever_it_is() {
        for len in 0..40 {
            let mut bytes = vec![1; len];
            assert_eq!(find_nul(&bytes), None);
            for at in (0..len).rev() {
                bytes[at] = 0;
                assert_eq!(find_nul(&bytes), Some(at));
            }
        }
        assert_eq!(
            find_nul(&[0x80, 0x01, 0xff, 0x00, 0x01, 0x00, 0x80, 0x7f]),
            Some(3)
        );
    }
}
