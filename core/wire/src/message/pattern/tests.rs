//! What fits a pattern and what does not; every mutation of a message that still fits must parse,
//! with the same result.

use pinion_bson::{RawDocumentBuf, get, raw_elements, rawdoc};

use super::*;
use crate::message::{encode_request, parse_message};

fn find(id: impl Into<pinion_bson::RawBson>, db: &str) -> Bytes {
    let body = rawdoc! { "find": "c", "filter": { "_id": id.into() }, "limit": 1, "$db": db };
    encode_request(7, Flags(0), &body)
}

fn pattern_of(bytes: &Bytes) -> Option<Pattern> {
    let message = parse_message(bytes.clone()).unwrap();
    let filter = get(message.body(), "filter")
        .unwrap()
        .as_document()
        .unwrap();
    let id = raw_elements(filter).next().unwrap();
    Pattern::around(&message, filter, &id)
}

fn text(value: RawBsonRef<'_>) -> &str {
    value.as_str().unwrap()
}

#[test]
fn another_value_of_the_type_fits() {
    let pattern = pattern_of(&find("abc", "db")).unwrap();
    for id in [
        "abc",
        "xyz",
        "",
        "ä",
        "a much longer text than the example's",
    ] {
        let bytes = find(id, "db");
        assert_eq!(pattern.value_in(&bytes).map(text), Some(id));
        let (like, read) = (
            pattern.message(bytes.clone()),
            parse_message(bytes).unwrap(),
        );
        assert!(like.repeats() && !read.repeats());
        assert_eq!(like.body(), read.body());
        assert_eq!(like.request_id(), read.request_id());
        assert_eq!(like.database().unwrap(), "db");
    }
    let pattern = pattern_of(&find(5i64, "db")).unwrap();
    let bytes = find(-9i64, "db");
    assert_eq!(pattern.value_in(&bytes), Some(RawBsonRef::Int64(-9)));
}

#[test]
fn anything_else_does_not_fit() {
    let pattern = pattern_of(&find("abc", "db")).unwrap();
    let fits = |bytes: &[u8]| pattern.value_in(bytes).is_some();
    assert!(!fits(&find("abc", "dc")));
    assert!(!fits(&find("abc", "dbb")));
    assert!(!fits(&find(5i32, "db")));
    assert!(!fits(&[]));
    let two = rawdoc! { "find": "c", "filter": { "_id": "abc", "b": 1 }, "limit": 1, "$db": "db" };
    assert!(!fits(&encode_request(7, Flags(0), &two)));
    let limit = rawdoc! { "find": "c", "filter": { "_id": "abc" }, "limit": 2, "$db": "db" };
    assert!(!fits(&encode_request(7, Flags(0), &limit)));
    let same = rawdoc! { "find": "c", "filter": { "_id": "abc" }, "limit": 1, "$db": "db" };
    assert!(fits(&encode_request(7, Flags(0), &same)));
    assert!(!fits(&encode_request(7, Flags::MORE_TO_COME, &same)));
    assert!(!fits(&encode_request(7, Flags::CHECKSUM_PRESENT, &same)));
}

#[test]
fn some_messages_make_no_pattern() {
    let body = |comment: &str| -> RawDocumentBuf {
        rawdoc! { "find": "c", "filter": { "_id": 1 }, "comment": comment, "$db": "db" }
    };
    let make = |flags, comment| pattern_of(&encode_request(7, flags, &body(comment))).is_some();
    assert!(make(Flags(0), "short"));
    let long = "long".repeat(MAX_PATTERN_BYTES / 4);
    assert!(!make(Flags(0), &long));
    assert!(!make(Flags::CHECKSUM_PRESENT, "short"));
    assert!(!make(Flags::MORE_TO_COME, "short"));
}

/// Every change of one byte, and every cut or insertion of some, is either refused or is what the
/// reader makes of it.
#[test]
fn what_fits_is_valid() {
    let example = find("abcdef", "db");
    let pattern = pattern_of(&example).unwrap();
    let mut fitted = 0;
    let mut check = |mut bytes: Vec<u8>, with_length: bool| {
        if with_length {
            let length = (bytes.len() as u32).to_le_bytes();
            bytes[..4].copy_from_slice(&length);
        }
        let bytes = Bytes::from(bytes);
        let Some(value) = pattern.value_in(&bytes) else {
            return;
        };
        fitted += 1;
        let read = parse_message(bytes.clone()).expect("what fits is valid");
        let filter = get(read.body(), "filter").unwrap().as_document().unwrap();
        assert_eq!(get(filter, "_id"), Some(value));
        assert_eq!(pattern.message(bytes.clone()).body(), read.body());
    };
    for at in 0..example.len() {
        for byte in 0..=255 {
            let mut bytes = example.to_vec();
            bytes[at] = byte;
            check(bytes, false);
        }
        for count in 1..4 {
            let mut longer = example.to_vec();
            longer.splice(at..at, std::iter::repeat_n(b'a', count));
            check(longer.clone(), true);
            // With the lengths around it put right, a text with an insertion is a text.
            for length_at in [BODY_START, pattern.document, pattern.value.start] {
                let length = u32::from_le_bytes(*example[length_at..].first_chunk().unwrap());
                longer[length_at..length_at + 4]
                    .copy_from_slice(&(length + count as u32).to_le_bytes());
            }
            check(longer, true);
            let mut shorter = example.to_vec();
            shorter.drain(at..(at + count).min(example.len()));
            if shorter.len() > 4 {
                check(shorter, true);
            }
        }
    }
    assert!(fitted > 1000, "{fitted}");
}
