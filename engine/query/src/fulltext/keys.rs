//! The keys of a text index: one for each term of a document, with its score, between the other
//! fields.

use std::borrow::Cow;

use md5::{Digest, Md5};
use pinion_bson::{RawBson, RawBsonRef, RawDocument};
use pinion_wire::Result;
use smallvec::SmallVec;

use super::language::TextVersion;
use super::score::term_scores;
use super::spec::TextFields;
use crate::error::error;
use crate::path::Path;
use crate::text::document_text;
use crate::value::field;

/// Of a term longer than this the key has a beginning and a hash.
const LONGEST_TERM: usize = 64;
const TERM_PREFIX: usize = 32;

/// A term as keys hold it.
pub(crate) fn term_of_key(term: &str, version: TextVersion) -> Cow<'_, str> {
    if version == TextVersion::V1 || term.len() <= LONGEST_TERM {
        return Cow::Borrowed(term);
    }
    use std::fmt::Write;
    let mut out = String::from(&term[..term.floor_char_boundary(TERM_PREFIX)]);
    for byte in Md5::digest(term.as_bytes()) {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    Cow::Owned(out)
}

/// The values of each key of a document.
pub(crate) fn keys(
    document: &RawDocument,
    fields: &TextFields,
) -> Result<Vec<SmallVec<[RawBson; 4]>>> {
    let others = |paths: &[Path]| {
        paths
            .iter()
            .map(|path| other(document, path))
            .collect::<Result<SmallVec<[RawBson; 4]>>>()
    };
    let (before, after) = (others(&fields.before)?, others(&fields.after)?);
    let scores = term_scores(document, fields)?;
    let keys = scores.into_iter().map(|(term, score)| {
        let mut key = before.clone();
        key.push(RawBson::String(term_of_key(&term, fields.version).into()));
        key.push(RawBson::Double(score));
        key.extend(after.iter().cloned());
        key
    });
    Ok(keys.collect())
}

/// The value of a field beside the texts, which has no array on its path.
fn other(document: &RawDocument, path: &Path) -> Result<RawBson> {
    let mut current = document;
    let mut names = path.text().split('.').peekable();
    while let Some(name) = names.next() {
        match (field(current, name), names.peek()) {
            (Some(RawBsonRef::Array(_)), _) => {
                return Err(error(
                    201,
                    format!(
                        "Field '{}' of text index contains an array in document: {}",
                        path.text(),
                        document_text(document)
                    ),
                ));
            }
            (Some(value), None) => return Ok(value.into()),
            (Some(RawBsonRef::Document(inner)), Some(_)) => current = inner,
            _ => break,
        }
    }
    Ok(RawBson::Null)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    #[test]
    fn keys_of_documents() {
        let listed = rawdoc! {
            "key": { "p": 1, "_fts": "text", "_ftsx": 1, "q.r": -1 },
            "weights": { "a": 2 }, "default_language": "english", "textIndexVersion": 3,
        };
        let fields = TextFields::parse(&listed).expect("a text index");
        let made = keys(
            &rawdoc! { "a": "red dogs", "p": 7, "q": { "r": "x" } },
            &fields,
        );
        let key = |term: &str| -> SmallVec<[RawBson; 4]> {
            SmallVec::from_vec(vec![
                RawBson::Int32(7),
                RawBson::String(term.into()),
                RawBson::Double(1.5),
                RawBson::String("x".into()),
            ])
        };
        assert_eq!(made.expect("keys"), [key("dog"), key("red")]);
        assert!(keys(&rawdoc! { "p": [1] }, &fields).is_err());
        assert_eq!(
            keys(&rawdoc! { "p": 1 }, &fields).expect("no terms").len(),
            0
        );
    }

    #[test]
    fn long_terms_are_hashed() {
        let long = "é".repeat(40);
        let key = term_of_key(&long, TextVersion::V3);
        assert!(key.starts_with(&"é".repeat(16)) && key.len() == 64, "{key}");
        assert_eq!(term_of_key(&long, TextVersion::V1), long);
    }
}
