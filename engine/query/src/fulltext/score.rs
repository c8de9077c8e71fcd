//! The texts of a document, and how much each of their terms weighs.

use std::collections::BTreeMap;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::language::{Language, TextVersion};
use super::spec::TextFields;
use super::tokenizer::{Options, terms};
use crate::error::error;
use crate::keygen::KeyError;
use crate::limits::{MAX_INDEX_KEYS_PER_DOCUMENT, MAX_STORED_DEPTH};
use crate::sort::key_error;
use crate::value::{array_document, elements, field};

/// The weight of a term in a document stays below this.
const MAX_WEIGHT: f64 = 1e9;

/// A text of a document, with its language and the weight of its field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'d> {
    pub text: &'d str,
    pub language: Language,
    pub weight: f64,
}

/// Calls `f` with each text of a document that the index holds, until it gives false.
pub(super) fn texts<'d>(
    document: &'d RawDocument,
    fields: &TextFields,
    mut f: impl FnMut(Text<'d>) -> Result<bool>,
) -> Result<()> {
    let mut walk = Walk {
        fields,
        f: &mut f,
        path: String::new(),
    };
    walk.document(document, fields.default_language, false, 0)?;
    Ok(())
}

struct Walk<'s, F> {
    fields: &'s TextFields,
    f: F,
    /// The dotted path of what is walked through.
    path: String,
}

impl<'d, F: FnMut(Text<'d>) -> Result<bool>> Walk<'_, F> {
    /// Goes through a document or an array. False ends the walk.
    fn document(
        &mut self,
        document: &'d RawDocument,
        language: Language,
        is_array: bool,
        depth: usize,
    ) -> Result<bool> {
        if depth > MAX_STORED_DEPTH {
            return Ok(true);
        }
        let language = self.language_of(document, language)?;
        for (name, value) in elements(document) {
            if self.fields.wildcard && name == self.fields.language_field {
                continue;
            }
            let above = self.path.len();
            if above == 0 {
                self.path.push_str(name);
            } else if !is_array {
                self.path.push('.');
                self.path.push_str(name);
            }
            let continues = self.value(value, language, is_array, depth)?;
            self.path.truncate(above);
            if !continues {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn value(
        &mut self,
        value: RawBsonRef<'d>,
        language: Language,
        in_array: bool,
        depth: usize,
    ) -> Result<bool> {
        let weight = self.fields.weights.get(&self.path).copied();
        let all = self.fields.wildcard;
        match value {
            RawBsonRef::String(text) => match weight.or(all.then_some(1.0)) {
                Some(weight) => (self.f)(Text {
                    text,
                    language,
                    weight,
                }),
                None => Ok(true),
            },
            // As in MongoDB, what lies below a field that has a weight itself is no text of the
            // index.
            RawBsonRef::Document(inner) if all || (weight.is_none() && self.leads_on()) => {
                self.document(inner, language, false, depth + 1)
            }
            RawBsonRef::Array(array)
                if all || (!in_array && (weight.is_some() || self.leads_on())) =>
            {
                self.document(array_document(array), language, true, depth + 1)
            }
            _ => Ok(true),
        }
    }

    /// Whether a weighted field lies below the path.
    fn leads_on(&self) -> bool {
        let below = format!("{}.", self.path);
        self.fields
            .weights
            .range(below.clone()..)
            .next()
            .is_some_and(|(path, _)| path.starts_with(&below))
    }

    /// The language that a document names for itself and what is in it.
    fn language_of(&self, document: &RawDocument, language: Language) -> Result<Language> {
        match field(document, &self.fields.language_field) {
            None => Ok(language),
            Some(RawBsonRef::String(name)) => {
                Language::find(name, self.fields.version).ok_or_else(|| {
                    error(
                        17262,
                        format!(
                            "language override unsupported: {}",
                            crate::text::shortened(name)
                        ),
                    )
                })
            }
            Some(_) if self.fields.version == TextVersion::V1 => Ok(language),
            Some(_) => Err(error(
                17261,
                "found language override field in document with non-string type",
            )),
        }
    }
}

/// The terms of a document with their scores.
pub(super) fn term_scores(
    document: &RawDocument,
    fields: &TextFields,
) -> Result<BTreeMap<String, f64>> {
    let mut scores = BTreeMap::new();
    texts(document, fields, |text| {
        add_scores(text, fields.version, &mut scores)?;
        if scores.len() > MAX_INDEX_KEYS_PER_DOCUMENT {
            return Err(key_error(KeyError::TooMany));
        }
        Ok(true)
    })?;
    Ok(scores)
}

/// How a term stands in one text.
#[derive(Clone, Copy, Debug, Default)]
struct Occurrences {
    count: u32,
    /// Each further occurrence counts half of the one before.
    frequency: f64,
    next: f64,
}

fn add_scores(
    text: Text<'_>,
    version: TextVersion,
    scores: &mut BTreeMap<String, f64>,
) -> Result<()> {
    let options = Options {
        filter_stop_words: true,
        ..Options::default()
    };
    let mut found: BTreeMap<String, Occurrences> = BTreeMap::new();
    let mut total = 0_u32;
    terms(text.text, text.language, version, options, |term| {
        total += 1;
        let occurrences = match found.get_mut(term) {
            Some(occurrences) => occurrences,
            None => found.entry(term.to_string()).or_insert(Occurrences {
                next: 1.0,
                ..Occurrences::default()
            }),
        };
        occurrences.count += 1;
        occurrences.frequency += occurrences.next;
        occurrences.next /= 2.0;
        Ok(())
    })?;
    for (term, occurrences) in found {
        // A term counts for more where it is much of the text, and yet more where it is all of it.
        let share = 0.5 * f64::from(occurrences.count) / f64::from(total) + 0.5;
        let whole = term.eq_ignore_ascii_case(text.text);
        let boost = if whole { 1.1 } else { 1.0 };
        let score = scores.entry(term).or_default();
        *score += text.weight * occurrences.frequency * share * boost;
        *score = score.min(MAX_WEIGHT);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    fn fields(weights: RawDocumentBuf) -> TextFields {
        let listed = rawdoc! {
            "key": { "_fts": "text", "_ftsx": 1 }, "weights": weights,
            "default_language": "english", "language_override": "language", "textIndexVersion": 3,
        };
        TextFields::parse(&listed).expect("a text index")
    }

    #[track_caller]
    fn check(fields: &TextFields, document: RawDocumentBuf, expected: &[(&str, f64)]) {
        let scores = term_scores(&document, fields).expect("scores");
        let scores: Vec<(&str, f64)> = scores.iter().map(|(t, s)| (&**t, *s)).collect();
        assert_eq!(scores, expected, "{document:?}");
    }

    #[test]
    fn scores() {
        let a = fields(rawdoc! { "a": 1 });
        check(&a, rawdoc! { "a": "coffee" }, &[("coffe", 1.0)]);
        // The stem is the whole text.
        check(&a, rawdoc! { "a": "Fox" }, &[("fox", 1.1)]);
        check(&a, rawdoc! { "a": "fox fox fox" }, &[("fox", 1.75)]);
        check(
            &a,
            rawdoc! { "a": "the quick brown fox" },
            &[
                ("brown", 0.5 / 3.0 + 0.5),
                ("fox", 0.5 / 3.0 + 0.5),
                ("quick", 0.5 / 3.0 + 0.5),
            ],
        );
        check(
            &a,
            rawdoc! { "a": ["fox", 1, "fox dog"] },
            &[("dog", 0.75), ("fox", 1.85)],
        );
        check(&a, rawdoc! { "b": "fox", "a": { "b": "fox" } }, &[]);
        let weighted = fields(rawdoc! { "a.b": 10, "c": 2 });
        check(
            &weighted,
            rawdoc! { "a": [{ "b": "fox" }, { "b": ["dog"] }], "c": "fox" },
            &[("dog", 11.0), ("fox", 13.2)],
        );
    }

    #[test]
    fn languages() {
        let a = fields(rawdoc! { "a": 1, "s.a": 1 });
        check(
            &a,
            rawdoc! { "a": "running the", "language": "none" },
            &[("running", 0.75), ("the", 0.75)],
        );
        check(
            &a,
            rawdoc! { "s": { "a": "running", "language": "none" }, "a": "jumping" },
            &[("jump", 1.0), ("running", 1.1)],
        );
        for (language, code) in [
            (pinion_bson::rawbson!(1), 17261),
            (pinion_bson::rawbson!("klingon"), 17262),
        ] {
            let document = rawdoc! { "a": "x", "language": language };
            let error = term_scores(&document, &a).expect_err("no language");
            assert_eq!(error.code.0, code);
        }
    }

    #[test]
    fn all_fields() {
        let all = fields(rawdoc! { "$**": 1, "title": 3 });
        check(
            &all,
            rawdoc! { "title": "fox", "b": [{ "c": "dog" }, ["cat"]], "language": "english" },
            &[("cat", 1.1), ("dog", 1.1), ("fox", 3.3000000000000003)],
        );
    }
}
