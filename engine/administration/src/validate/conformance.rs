//! Whether a document keeps to what the BSON specification asks for beyond its form: MongoDB calls
//! that conformance.
//!
//! The document has been validated, so it can be walked to its end.

use pinion_bson::{BinarySubtype, ElementType, RawBsonRef, RawDocument, RawElem, RawElems};
use rustc_hash::FxHashSet;

/// Names of a document up to which each is compared with the others, without a set of them.
const FEW_NAMES: usize = 16;

/// The first thing by which a document does not conform. Names that come twice are looked for where
/// `thoroughly` says so.
pub(super) fn nonconformance(document: &RawDocument, thoroughly: bool) -> Option<String> {
    of_document(document.as_bytes(), thoroughly)
}

fn of_document(bytes: &[u8], thoroughly: bool) -> Option<String> {
    if thoroughly && let Some(name) = repeated_name(bytes) {
        return Some(format!(
            "A BSON document contains a duplicate field name : {name}"
        ));
    }
    RawElems::new(bytes).find_map(|elem| of_element(&elem, thoroughly))
}

fn of_array(bytes: &[u8], thoroughly: bool) -> Option<String> {
    for (index, elem) in RawElems::new(bytes).enumerate() {
        if elem.name != index.to_string().as_bytes() {
            return Some(format!(
                "Indices of BSON Array are invalid, index value: \"{}\"",
                String::from_utf8_lossy(elem.name)
            ));
        }
        if let Some(found) = of_element(&elem, thoroughly) {
            return Some(found);
        }
    }
    None
}

fn of_element(elem: &RawElem<'_>, thoroughly: bool) -> Option<String> {
    match elem.kind {
        ElementType::EmbeddedDocument => of_document(elem.value, thoroughly),
        ElementType::Array => of_array(elem.value, thoroughly),
        ElementType::Undefined
        | ElementType::DbPointer
        | ElementType::Symbol
        | ElementType::JavaScriptCodeWithScope => {
            Some(format!("Use of deprecated BSON type {}", elem.kind as u8))
        }
        ElementType::RegularExpression => of_regex(elem),
        ElementType::Binary => of_binary(elem),
        _ => None,
    }
}

fn of_regex(elem: &RawElem<'_>) -> Option<String> {
    let Some(RawBsonRef::RegularExpression(regex)) = elem.to_value() else {
        return None;
    };
    let options = regex.options.as_str();
    let sorted = options.as_bytes().windows(2).all(|two| two[0] < two[1]);
    (!sorted).then(|| format!("RegEx options are not sorted alphabetically: {options}"))
}

fn of_binary(elem: &RawElem<'_>) -> Option<String> {
    let Some(RawBsonRef::Binary(binary)) = elem.to_value() else {
        return None;
    };
    let bytes = binary.bytes.len();
    match binary.subtype {
        BinarySubtype::UuidOld => Some("Use of deprecated BSON binary data subtype 3".to_owned()),
        BinarySubtype::Uuid if bytes != 16 => Some(format!(
            "BSON UUID length should be 16, got {bytes} instead"
        )),
        BinarySubtype::Md5 if bytes != 16 => {
            Some(format!("MD5 must be 16 bytes, got {bytes} instead."))
        }
        _ => None,
    }
}

/// The first name that a document has twice.
fn repeated_name(bytes: &[u8]) -> Option<String> {
    let names = || RawElems::new(bytes).map(|elem| elem.name);
    let count = names().count();
    let repeated = if count <= FEW_NAMES {
        let is_later = |(at, name): &(usize, &[u8])| names().take(*at).any(|other| other == *name);
        names().enumerate().find(is_later).map(|(_, name)| name)
    } else {
        let mut seen = FxHashSet::default();
        names().find(|name| !seen.insert(*name))
    };
    repeated.map(|name| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use pinion_bson::{Binary, Bson, RawBinaryRef, RawDocumentBuf, cstr, doc, rawdoc};

    use super::*;

    /// A document with these fields, whatever their names.
    fn of_fields(fields: &[(&str, i32)]) -> RawDocumentBuf {
        let mut out = pinion_bson::DocBuilder::new();
        for (name, value) in fields {
            out.append(name, *value);
        }
        out.finish()
    }

    #[track_caller]
    fn check(document: &RawDocument, expected: [Option<&str>; 2]) {
        pinion_bson::validate(document.as_bytes()).expect("a valid document");
        for (thoroughly, expected) in [false, true].into_iter().zip(expected) {
            let found = nonconformance(document, thoroughly);
            match (&found, expected) {
                (None, None) => {}
                (Some(found), Some(expected)) if found.contains(expected) => {}
                _ => panic!("{found:?} is not {expected:?}"),
            }
        }
    }

    #[test]
    fn what_does_not_conform() {
        check(&rawdoc! { "a": [1, { "b": [2, "x"] }] }, [None; 2]);
        let twice = of_fields(&[("q", 1), ("a", 2), ("q", 3)]);
        check(&twice, [None, Some("duplicate field name : q")]);
        let mut nested = RawDocumentBuf::new();
        nested.append(cstr!("in"), twice);
        check(&nested, [None, Some("duplicate")]);
        let many: Vec<(String, i32)> = (0..40).map(|n| (format!("f{}", n % 39), n)).collect();
        let many: Vec<(&str, i32)> = many.iter().map(|(name, n)| (&**name, *n)).collect();
        check(&of_fields(&many), [None, Some("duplicate field name : f0")]);
        let deprecated = Some("deprecated BSON type");
        for value in [Bson::Undefined, Bson::Symbol("s".into())] {
            let document = RawDocumentBuf::try_from(&doc! { "v": [value] }).expect("a document");
            check(&document, [deprecated; 2]);
        }
        let binary = |subtype, len: usize| {
            let bytes = vec![1; len];
            RawDocumentBuf::try_from(&doc! { "v": Binary { subtype, bytes } }).expect("a document")
        };
        check(&binary(BinarySubtype::Uuid, 16), [None; 2]);
        check(&binary(BinarySubtype::Uuid, 15), [Some("UUID"); 2]);
        check(&binary(BinarySubtype::Md5, 17), [Some("MD5"); 2]);
        check(&binary(BinarySubtype::UuidOld, 16), [Some("subtype 3"); 2]);
        let empty = RawBinaryRef {
            subtype: BinarySubtype::Generic,
            bytes: &[],
        };
        let mut plain = pinion_bson::DocBuilder::new();
        plain.append("v", RawBsonRef::Binary(empty));
        check(&plain.finish(), [None; 2]);
    }

    #[test]
    fn items_of_arrays_are_numbered() {
        let mut bytes = rawdoc! { "a": [7, 8] }.into_bytes();
        let at = bytes.windows(2).position(|two| two == b"1\0");
        bytes[at.expect("the second item")] = b'5';
        let document = pinion_bson::validate(&bytes).expect("a valid document");
        check(document, [Some("index value: \"5\""); 2]);
    }
}
