//! Validation: good documents pass, each fault is named, and what passes iterates without an error.

use super::*;
use crate::compare::tests::ladder;
use crate::testing::Rng;
use bson::{RawDocumentBuf, rawdoc};

fn check(bytes: &[u8], expected: Fault) {
    assert_eq!(
        validate(bytes).map(|_| ()).map_err(|e| e.fault),
        Err(expected),
        "{bytes:?}"
    );
}

/// Every value of every nested document can be read.
fn walk(document: &RawDocument) {
    for element in document.iter_elements() {
        let value = element.expect("validated").value().expect("validated");
        match value {
            bson::RawBsonRef::Document(d) => walk(d),
            bson::RawBsonRef::Array(a) => walk(crate::document_of(a)),
            bson::RawBsonRef::JavaScriptCodeWithScope(c) => walk(c.scope),
            _ => {}
        }
    }
    let theirs = document.iter_elements().count();
    assert_eq!(
        crate::elements(document).count(),
        theirs,
        "both iterators see every element"
    );
    assert!(crate::raw_elements(document).all(|e| e.view().is_some()));
}

fn sample() -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    for (i, value) in ladder().into_iter().flatten().enumerate() {
        document.append(
            bson::raw::CString::try_from(format!("f{i}")).expect("no NUL"),
            value,
        );
    }
    document
}

#[test]
fn all_types_pass_and_iterate() {
    let document = sample();
    walk(validate(document.as_bytes()).expect("valid"));
}

#[test]
fn faults_are_named() {
    check(b"", Fault::Truncated);
    check(b"\x05\0\0", Fault::Truncated);
    check(b"\x04\0\0\0", Fault::BadLength);
    check(b"\xff\xff\xff\xff\0", Fault::BadLength);
    check(b"\x06\0\0\0\0", Fault::Truncated);
    check(b"\x05\0\0\0\x01", Fault::NotTerminated);
    check(b"\x05\0\0\0\0\0", Fault::TrailingBytes);
    check(b"\x06\0\0\0\0\0", Fault::BadLength);
    check(b"\x08\0\0\0\x20a\0\0", Fault::UnknownType(0x20));
    check(b"\x09\0\0\0\x08a\0\x02\0", Fault::BadBoolean(2));
    check(b"\x08\0\0\0\x08a\0\0", Fault::Truncated);
    check(b"\x0d\0\0\0\x02a\0\0\0\0\0\0\0", Fault::BadLength);
    check(b"\x0e\0\0\0\x02a\0\x02\0\0\0\xff\0\0", Fault::NotUtf8);
    check(b"\x08\0\0\0\x0a\xff\0\0", Fault::NotUtf8);
    check(b"\x0e\0\0\0\x02a\0\x02\0\0\0ab\0", Fault::NotTerminated);
    let mut large = vec![0; MAX_INTERNAL_DOCUMENT_BYTES + 1];
    let len = large.len() as u32;
    large[..4].copy_from_slice(&len.to_le_bytes());
    check(&large, Fault::TooLarge);
}

#[test]
fn depth_is_limited() {
    let nested = |depth: usize| {
        let mut document = rawdoc! {};
        for _ in 0..depth {
            document = rawdoc! { "a": document };
        }
        document
    };
    walk(validate(nested(MAX_DEPTH).as_bytes()).expect("the deepest allowed"));
    check(nested(MAX_DEPTH + 1).as_bytes(), Fault::TooDeep);
}

#[test]
fn the_message_names_the_field() {
    let error = validate(b"\x09\0\0\0\x08a\0\x02\0").expect_err("a bad boolean");
    assert_eq!(
        error.to_string(),
        "boolean value is not 0 or 1: 2 in element with field name 'a' at offset 8"
    );
}

#[test]
fn a_prefix_gives_its_length() {
    let document = rawdoc! { "a": 1 };
    let mut bytes = document.as_bytes().to_vec();
    bytes.extend_from_slice(b"rest");
    let (found, len) = validate_prefix(&bytes).expect("valid");
    assert_eq!(
        (found.as_bytes(), len),
        (document.as_bytes(), document.as_bytes().len())
    );
}

#[test]
fn what_passes_after_mutation_still_iterates() {
    let rounds = std::env::var("PINION_VALUES_ROUNDS")
        .ok()
        .and_then(|r| r.parse().ok())
        .unwrap_or(20_000);
    let original = sample().into_bytes();
    let small = rawdoc! { "a": [1, { "b": "text", "c": null }], "d": { "e": true } }.into_bytes();
    let mut rng = Rng::new(7);
    let (mut accepted, mut refused) = (0u32, 0u32);
    for round in 0..rounds {
        let source = if round % 4 == 0 { &original } else { &small };
        let mut bytes = source.clone();
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes[at] = rng.next_u64() as u8,
                1 => bytes[at] ^= 1 << rng.below(8),
                2 => bytes[at] = [0, 1, 2, 3, 4, 5, 12, 15, 127, 255][rng.below(10) as usize],
                _ => bytes.truncate(at.max(1)),
            }
        }
        match validate(&bytes) {
            Ok(document) => {
                accepted += 1;
                walk(document);
            }
            Err(error) => {
                refused += 1;
                assert!(error.offset <= bytes.len());
            }
        }
        // Views of bytes that were never validated must not panic either.
        if let Ok(document) = RawDocument::from_bytes(&bytes) {
            for element in crate::raw_elements(document) {
                let _ = element.to_value();
            }
            let _ = crate::compare_documents(document, document);
        }
    }
    assert!(
        accepted > 100 && refused > 100,
        "accepted {accepted}, refused {refused}"
    );
}
