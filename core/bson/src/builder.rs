//! A fast append-only writer of documents.

use bson::spec::ElementType;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use smallvec::SmallVec;

use crate::view::{OLD_BINARY_SUBTYPE, RawElem, RawElems, View, with_view};

/// Writes a document into one buffer from front to back. Values are given with their field's name,
/// or without one inside arrays; a nested document or array is open until `end`.
///
/// A name must hold no NUL, which would end it inside the document: appending such a name panics.
/// Names from documents never do; check one that comes from elsewhere with `is_field_name`.
#[derive(Clone, Debug)]
pub struct DocBuilder {
    bytes: Vec<u8>,
    /// Where the document begins in `bytes`.
    root: usize,
    /// Replies nest three deep.
    open: SmallVec<[Frame; 4]>,
}

/// A value of this length is long: room for it is made at once, with some more behind it.
const LONG_VALUE_BYTES: usize = 64 * 1024;
const BEHIND_LONG_VALUE_BYTES: usize = 1024;
/// A finished document keeps at most so much room beyond twice its bytes.
const SLACK_BYTES: usize = 128;

#[derive(Clone, Copy, Debug)]
struct Frame {
    start: usize,
    /// The index of the next value, in an array.
    next_index: Option<u32>,
}

impl Default for DocBuilder {
    fn default() -> DocBuilder {
        DocBuilder::new()
    }
}

/// Whether the text can be a field's name in a document.
pub fn is_field_name(name: &str) -> bool {
    !name.as_bytes().contains(&0)
}

impl DocBuilder {
    /// An empty document.
    pub fn new() -> DocBuilder {
        DocBuilder::with_buffer(Vec::with_capacity(64))
    }

    /// An empty document written into the space of a buffer that is no longer needed.
    pub fn with_buffer(mut bytes: Vec<u8>) -> DocBuilder {
        bytes.clear();
        DocBuilder::with_prefix(bytes)
    }

    /// An empty document written behind bytes that are not part of it, such as a message header, so
    /// that both end up in one buffer. Lengths count the document alone; `finish_bytes` gives
    /// prefix and document.
    pub fn with_prefix(mut bytes: Vec<u8>) -> DocBuilder {
        let root = bytes.len();
        bytes.extend_from_slice(&[0; 4]);
        DocBuilder {
            bytes,
            root,
            open: SmallVec::new(),
        }
    }

    /// An empty document with room for this many bytes.
    pub fn with_capacity(capacity: usize) -> DocBuilder {
        DocBuilder::with_buffer(Vec::with_capacity(capacity))
    }

    /// Makes room for about `additional` bytes more, so that appending them does not move what is
    /// there.
    pub fn reserve(&mut self, additional: usize) {
        self.bytes.reserve(additional);
    }

    /// Appends a field.
    #[inline]
    pub fn append<'v>(&mut self, name: &str, value: impl Into<RawBsonRef<'v>>) -> &mut DocBuilder {
        self.append_raw(name, value.into())
    }

    /// Appends a field.
    #[inline]
    pub fn append_raw(&mut self, name: &str, value: RawBsonRef<'_>) -> &mut DocBuilder {
        with_view(value, |view| {
            self.key(view.kind(), name.as_bytes());
            self.value(view);
        });
        self
    }

    /// Appends a field whose value is a view.
    #[inline]
    pub fn append_view(&mut self, name: &str, value: View<'_>) -> &mut DocBuilder {
        self.key(value.kind(), name.as_bytes());
        self.value(value);
        self
    }

    /// Copies a field of another document, its name included.
    #[inline]
    pub fn append_elem(&mut self, elem: &RawElem<'_>) -> &mut DocBuilder {
        self.bytes.push(elem.kind as u8);
        self.bytes.extend_from_slice(elem.name);
        self.bytes.push(0);
        self.make_room(elem.value.len());
        self.bytes.extend_from_slice(elem.value);
        self
    }

    /// Copies the value of a field of another document under a name of its own.
    #[inline]
    pub fn append_elem_as(&mut self, name: &str, elem: &RawElem<'_>) -> &mut DocBuilder {
        self.key(elem.kind, name.as_bytes());
        self.make_room(elem.value.len());
        self.bytes.extend_from_slice(elem.value);
        self
    }

    /// Copies all fields of another document.
    pub fn append_all(&mut self, document: &RawDocument) -> &mut DocBuilder {
        let bytes = document.as_bytes();
        self.bytes.extend_from_slice(&bytes[4..bytes.len() - 1]);
        self
    }

    /// Appends a value to the array that is open.
    #[inline]
    pub fn push<'v>(&mut self, value: impl Into<RawBsonRef<'v>>) -> &mut DocBuilder {
        with_view(value.into(), |view| {
            self.index_key(view.kind());
            self.value(view);
        });
        self
    }

    /// Appends a view to the array that is open.
    pub fn push_view(&mut self, value: View<'_>) -> &mut DocBuilder {
        self.index_key(value.kind());
        self.value(value);
        self
    }

    /// Copies the value of a field of another document into the array that is open.
    pub fn push_elem(&mut self, elem: &RawElem<'_>) -> &mut DocBuilder {
        self.index_key(elem.kind);
        self.make_room(elem.value.len());
        self.bytes.extend_from_slice(elem.value);
        self
    }

    /// Opens a document as the value of a field.
    pub fn start_document(&mut self, name: &str) -> &mut DocBuilder {
        self.key(ElementType::EmbeddedDocument, name.as_bytes());
        self.enter(None)
    }

    /// Opens an array as the value of a field.
    pub fn start_array(&mut self, name: &str) -> &mut DocBuilder {
        self.key(ElementType::Array, name.as_bytes());
        self.enter(Some(0))
    }

    /// Opens a document as the next value of the array that is open.
    pub fn push_document(&mut self) -> &mut DocBuilder {
        self.index_key(ElementType::EmbeddedDocument);
        self.enter(None)
    }

    /// Opens an array as the next value of the array that is open.
    pub fn push_array(&mut self) -> &mut DocBuilder {
        self.index_key(ElementType::Array);
        self.enter(Some(0))
    }

    /// Closes the document or array opened last.
    ///
    /// # Panics
    /// When none is open.
    pub fn end(&mut self) -> &mut DocBuilder {
        let frame = self.open.pop().expect("a document or array is open");
        close(&mut self.bytes, frame.start);
        self
    }

    /// The bytes the document would have if it were finished now.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.root + 1 + self.open.len()
    }

    /// Whether no field has been appended.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == self.root + 4
    }

    /// Whether a field of this name has been appended to the outermost document, which must be the
    /// open one.
    pub fn contains(&self, name: &str) -> bool {
        assert!(self.open.is_empty(), "a nested document is open");
        RawElems::new(&self.bytes[self.root..]).any(|e| e.name == name.as_bytes())
    }

    /// The value of a field that has been appended to the outermost document, which must be the
    /// open one.
    pub fn get(&self, name: &str) -> Option<RawBsonRef<'_>> {
        assert!(self.open.is_empty(), "a nested document is open");
        let mut elements = RawElems::new(&self.bytes[self.root..]);
        elements.find(|e| e.name == name.as_bytes())?.to_value()
    }

    /// The document's bytes, behind the prefix if there is one.
    ///
    /// # Panics
    /// When a nested document or array is still open.
    pub fn finish_bytes(mut self) -> Vec<u8> {
        assert!(
            self.open.is_empty(),
            "{} nested documents are open",
            self.open.len()
        );
        close(&mut self.bytes, self.root);
        self.bytes
    }

    /// The document.
    ///
    /// # Panics
    /// When a nested document or array is still open, or the document stands behind a prefix.
    pub fn finish(self) -> RawDocumentBuf {
        assert_eq!(self.root, 0, "the document stands behind a prefix");
        let mut bytes = self.finish_bytes();
        // Builders are often given room for what a document comes from. Many small ones may then be
        // kept for long.
        if bytes.capacity() > 2 * bytes.len() + SLACK_BYTES {
            bytes.shrink_to_fit();
        }
        RawDocumentBuf::from_bytes(bytes).expect("the frame was just written")
    }

    fn enter(&mut self, next_index: Option<u32>) -> &mut DocBuilder {
        self.open.push(Frame {
            start: self.bytes.len(),
            next_index,
        });
        self.bytes.extend_from_slice(&[0; 4]);
        self
    }

    #[inline]
    fn key(&mut self, kind: ElementType, name: &[u8]) {
        assert!(!name.contains(&0), "a field name holds a NUL");
        self.bytes.push(kind as u8);
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
    }

    #[inline]
    fn index_key(&mut self, kind: ElementType) {
        let index = self
            .open
            .last_mut()
            .and_then(|f| f.next_index.as_mut())
            .expect("an array is open");
        let mut digits = [0; 10];
        let mut at = digits.len();
        let mut n = *index;
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        *index += 1;
        self.bytes.push(kind as u8);
        self.bytes.extend_from_slice(&digits[at..]);
        self.bytes.push(0);
    }

    #[inline]
    fn value(&mut self, value: View<'_>) {
        if let View::String(long) | View::Document(long) | View::Array(long) = value {
            self.make_room(long.len());
        }
        append_value(&mut self.bytes, value);
    }

    /// Makes room for a long value that does not fit with what closes the documents around it: else
    /// that would move all of it.
    #[inline]
    fn make_room(&mut self, len: usize) {
        if len >= LONG_VALUE_BYTES && self.bytes.capacity() - self.bytes.len() < len {
            self.bytes.reserve(len + BEHIND_LONG_VALUE_BYTES);
        }
    }
}

/// Appends the bytes of a value as they stand in a document after type and name.
pub fn append_value(bytes: &mut Vec<u8>, value: View<'_>) {
    match value {
        View::Double(v) => bytes.extend_from_slice(&v.to_le_bytes()),
        View::String(v) | View::Code(v) | View::Symbol(v) => append_string(bytes, v),
        View::Document(v) | View::Array(v) => bytes.extend_from_slice(v),
        View::Binary {
            subtype,
            bytes: payload,
        } => {
            if subtype == OLD_BINARY_SUBTYPE {
                bytes.extend_from_slice(&length(payload.len() + 4));
                bytes.push(subtype);
                bytes.extend_from_slice(&length(payload.len()));
            } else {
                bytes.extend_from_slice(&length(payload.len()));
                bytes.push(subtype);
            }
            bytes.extend_from_slice(payload);
        }
        View::Undefined | View::Null | View::MinKey | View::MaxKey => {}
        View::ObjectId(v) => bytes.extend_from_slice(&v),
        View::Boolean(v) => bytes.push(u8::from(v)),
        View::DateTime(v) | View::Int64(v) => bytes.extend_from_slice(&v.to_le_bytes()),
        View::Regex { pattern, options } => {
            bytes.extend_from_slice(pattern);
            bytes.push(0);
            bytes.extend_from_slice(options);
            bytes.push(0);
        }
        View::DbPointer { namespace, id } => {
            append_string(bytes, namespace);
            bytes.extend_from_slice(&id);
        }
        View::CodeWithScope { code, scope } => {
            bytes.extend_from_slice(&length(4 + 4 + code.len() + 1 + scope.len()));
            append_string(bytes, code);
            bytes.extend_from_slice(scope);
        }
        View::Int32(v) => bytes.extend_from_slice(&v.to_le_bytes()),
        View::Timestamp(v) => bytes.extend_from_slice(&v.to_le_bytes()),
        View::Decimal128(v) => bytes.extend_from_slice(&v),
    }
}

fn append_string(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend_from_slice(&length(text.len() + 1));
    bytes.extend_from_slice(text);
    bytes.push(0);
}

/// A length field. Callers bound documents far below its range; beyond it nothing sensible can be
/// written.
fn length(len: usize) -> [u8; 4] {
    i32::try_from(len)
        .expect("a BSON length fits 31 bits")
        .to_le_bytes()
}

fn close(bytes: &mut Vec<u8>, start: usize) {
    bytes.push(0);
    let len = length(bytes.len() - start);
    bytes[start..start + 4].copy_from_slice(&len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::ladder;
    use bson::rawdoc;

    #[test]
    fn every_type_is_written_as_the_bson_crate_writes_it() {
        for value in ladder().iter().flatten() {
            let expected = rawdoc! { "field": value.as_raw_bson_ref() };
            let mut builder = DocBuilder::new();
            builder.append_raw("field", value.as_raw_bson_ref());
            assert_eq!(
                builder.finish().as_bytes(),
                expected.as_bytes(),
                "{value:?}"
            );
        }
    }

    #[test]
    fn a_small_document_does_not_keep_the_room_of_a_large_one() {
        for (room, text) in [(16 << 20, 10), (1_000, 100), (300, 0), (64, 1)] {
            let mut builder = DocBuilder::with_capacity(room);
            builder.append("text", "x".repeat(text).as_str());
            let bytes = builder.finish().into_bytes();
            assert!(bytes.capacity() <= 2 * bytes.len() + SLACK_BYTES);
        }
    }

    #[test]
    fn a_prefix_is_no_part_of_the_document() {
        let mut builder = DocBuilder::with_prefix(vec![7; 21]);
        assert!(builder.is_empty());
        builder.start_document("d").append("x", 1i32).end();
        assert!(builder.contains("d"));
        let expected = rawdoc! { "d": { "x": 1 } };
        assert_eq!(builder.len(), expected.as_bytes().len());
        let bytes = builder.finish_bytes();
        assert_eq!(
            (&bytes[..21], &bytes[21..]),
            (&[7; 21][..], expected.as_bytes())
        );
    }

    #[test]
    fn nesting() {
        let mut builder = DocBuilder::new();
        assert!(builder.is_empty());
        builder
            .append("n", 1i32)
            .start_array("a")
            .push("x")
            .push_document()
            .append("b", true)
            .end()
            .push_array()
            .end();
        for i in 0..12 {
            builder.push(i);
        }
        builder.end().start_document("d").end();
        let expected = rawdoc! { "n": 1, "a": ["x", { "b": true }, [], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], "d": {} };
        assert!(builder.contains("a") && !builder.contains("b"));
        assert_eq!(builder.len(), expected.as_bytes().len());
        assert_eq!(builder.finish().as_bytes(), expected.as_bytes());
    }

    #[test]
    fn copies() {
        let source = rawdoc! { "a": 1, "b": [1, 2] };
        let mut builder = DocBuilder::new();
        for elem in crate::raw_elements(&source) {
            builder.append_elem(&elem);
        }
        assert_eq!(builder.finish().as_bytes(), source.as_bytes());
        let mut builder = DocBuilder::with_buffer(vec![9; 100]);
        builder.append_all(&source).append("c", "x");
        assert_eq!(
            builder.finish().as_bytes(),
            rawdoc! { "a": 1, "b": [1, 2], "c": "x" }.as_bytes()
        );
    }

    #[test]
    #[should_panic(expected = "a field name holds a NUL")]
    fn a_name_with_a_nul_is_refused() {
        assert!(!is_field_name("a\0b") && is_field_name("a.b"));
        DocBuilder::new().append("a\0b", 1);
    }
}
