//! The one cast of this crate: the array view of a document's bytes.

use bson::{RawArray, RawDocument};

const _: () = assert!(size_of::<&RawArray>() == size_of::<&RawDocument>());

/// The same bytes seen as an array. The `bson` crate does this itself for array elements, but not
/// for its users.
#[inline]
pub fn array_of(document: &RawDocument) -> &RawArray {
    let document: *const RawDocument = document;
    // SAFETY: RawArray is `repr(transparent)` over RawDocument in bson 3 (a test below reads an
    // array through the cast), so both have one layout and one validity invariant, and the lifetime
    // is kept.
    unsafe { &*(document as *const RawArray) }
}

/// The same bytes seen as a document whose field names are the indexes.
#[inline]
pub fn document_of(array: &RawArray) -> &RawDocument {
    RawDocument::from_bytes(array.as_bytes())
        .expect("an array's bytes have the frame of a document")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn an_array_is_read_through_the_cast() {
        let document = rawdoc! { "0": 7, "1": "x" };
        let array = array_of(&document);
        assert_eq!(array.as_bytes(), document.as_bytes());
        assert_eq!(array.get_i32(0).ok(), Some(7));
        assert_eq!(array.get_str(1).ok(), Some("x"));
        let whole = rawdoc! { "a": [7, "x"] };
        assert_eq!(
            whole.get_array("a").ok().map(RawArray::as_bytes),
            Some(array.as_bytes())
        );
        assert_eq!(document_of(array).as_bytes(), document.as_bytes());
    }
}
