//! Iteration over validated documents, and look-ups by name and by path.

use bson::{RawArray, RawBsonRef, RawDocument};

use crate::view::{RawElems, View};

/// The fields of a document. On validated bytes every field comes; malformed bytes end the
/// iteration.
#[derive(Clone, Debug)]
pub struct Elements<'a>(RawElems<'a>);

impl<'a> Iterator for Elements<'a> {
    type Item = (&'a str, RawBsonRef<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let elem = self.0.next()?;
        Some((elem.name_str()?, elem.to_value()?))
    }
}

/// The values of an array. On validated bytes every value comes; malformed bytes end the iteration.
#[derive(Clone, Debug)]
pub struct Values<'a>(RawElems<'a>);

impl<'a> Iterator for Values<'a> {
    type Item = RawBsonRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()?.to_value()
    }
}

/// The fields of a document in their order.
#[inline]
pub fn elements(document: &RawDocument) -> Elements<'_> {
    Elements(RawElems::new(document.as_bytes()))
}

/// The values of an array in their order.
#[inline]
pub fn values(array: &RawArray) -> Values<'_> {
    Values(RawElems::new(array.as_bytes()))
}

/// The fields of a document as bytes, decoded only where asked: the fastest way through a document.
#[inline]
pub fn raw_elements(document: &RawDocument) -> RawElems<'_> {
    RawElems::new(document.as_bytes())
}

/// The value of the first field with this name.
#[inline]
pub fn get<'a>(document: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    raw_elements(document)
        .find(|e| e.name == name.as_bytes())?
        .to_value()
}

/// The value at a dotted path: field names through documents, indexes through arrays. Arrays are
/// entered by index only, never fanned out.
pub fn get_path<'a>(document: &'a RawDocument, path: &str) -> Option<RawBsonRef<'a>> {
    let mut fields = RawElems::new(document.as_bytes());
    let mut rest = path;
    loop {
        let (head, tail) = match rest.split_once('.') {
            Some((head, tail)) => (head, Some(tail)),
            None => (rest, None),
        };
        let elem = fields.find(|e| e.name == head.as_bytes())?;
        let Some(tail) = tail else {
            return elem.to_value();
        };
        fields = match elem.view()? {
            View::Document(bytes) | View::Array(bytes) => RawElems::new(bytes),
            _ => return None,
        };
        rest = tail;
    }
}

/// The number of fields.
pub fn field_count(document: &RawDocument) -> usize {
    raw_elements(document).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn paths() {
        let document = rawdoc! { "a": { "b": [10, { "c": "x" }] }, "n": 1, "a.b": 2 };
        let check = |path: &str, expected: Option<RawBsonRef<'_>>| {
            assert_eq!(get_path(&document, path), expected, "{path}")
        };
        check("n", Some(RawBsonRef::Int32(1)));
        check("a.b.0", Some(RawBsonRef::Int32(10)));
        check("a.b.1.c", Some(RawBsonRef::String("x")));
        check("a.b.2", None);
        check("n.x", None);
        check("", None);
        assert_eq!(get(&document, "a.b"), Some(RawBsonRef::Int32(2)));
        assert_eq!(field_count(&document), 3);
        let names: Vec<&str> = elements(&document).map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "n", "a.b"]);
        let Some(RawBsonRef::Array(array)) = get_path(&document, "a.b") else {
            panic!("an array")
        };
        assert_eq!(values(array).next(), Some(RawBsonRef::Int32(10)));
    }
}
