//! Whether a document answers a `$text` query, and how well.

use std::borrow::Cow;

use pinion_bson::RawDocument;
use pinion_wire::Result;

use super::language::{Language, TextVersion};
use super::query::TextQuery;
use super::score::{term_scores, texts};
use super::tokenizer::terms;
use super::unicode::{lowered, without_diacritics};
use crate::work;

impl TextQuery {
    /// Whether a document has one of the terms and all phrases, and nothing of what is negated.
    pub(crate) fn matches(&self, document: &RawDocument) -> Result<bool> {
        let (mut positive, mut negated) = (false, false);
        let mut phrases = vec![false; self.phrases.len()];
        texts(document, &self.fields, |text| {
            terms(
                text.text,
                text.language,
                self.fields.version,
                self.options(true),
                |term| {
                    positive = positive || self.positive.contains(term);
                    negated = negated || self.negated.contains(term);
                    Ok(())
                },
            )?;
            if !self.phrases.is_empty() || !self.negated_phrases.is_empty() {
                let folded = self.folded(text.text, text.language)?;
                for (found, phrase) in phrases.iter_mut().zip(&self.phrases) {
                    *found = *found || self.has_phrase(&folded, phrase, text.language)?;
                }
                for phrase in &self.negated_phrases {
                    negated = negated || self.has_phrase(&folded, phrase, text.language)?;
                }
            }
            Ok(!negated)
        })?;
        Ok(positive && !negated && phrases.iter().all(|found| *found))
    }

    /// Whether each document with a key of one of the terms answers the query.
    pub(crate) fn is_decided_by_keys(&self) -> bool {
        !self.operand.case_sensitive
            && !self.operand.diacritic_sensitive
            && self.negated.is_empty()
            && self.phrases.is_empty()
            && self.negated_phrases.is_empty()
    }

    /// The score of a document: the sum of what its terms weigh that are searched for.
    pub(crate) fn score(&self, document: &RawDocument) -> Result<f64> {
        let scores = term_scores(document, &self.fields)?;
        Ok(self
            .index_terms
            .iter()
            .filter_map(|term| scores.get(term))
            .sum())
    }

    /// A text as phrases are looked for in it.
    fn folded<'t>(&self, text: &'t str, language: Language) -> Result<Cow<'t, str>> {
        work::spend_bytes(text.len())?;
        if self.fields.version != TextVersion::V3 {
            return Ok(match self.operand.case_sensitive {
                true => Cow::Borrowed(text),
                false => Cow::Owned(text.to_ascii_lowercase()),
            });
        }
        let mut folded = Cow::Borrowed(text);
        if !self.operand.case_sensitive {
            folded = Cow::Owned(lowered(&folded, language));
        }
        if !self.operand.diacritic_sensitive {
            folded = Cow::Owned(without_diacritics(&folded));
        }
        Ok(folded)
    }

    fn has_phrase(&self, text: &str, phrase: &str, language: Language) -> Result<bool> {
        let phrase = self.folded(phrase, language)?;
        work::spend_bytes(text.len())?;
        Ok(text.contains(&*phrase))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{TextFields, TextOperand};
    use super::*;
    use pinion_bson::{RawBson, RawDocumentBuf, rawdoc};

    fn query(search: &str, case_sensitive: bool, diacritic_sensitive: bool) -> TextQuery {
        let listed = rawdoc! {
            "key": { "_fts": "text", "_ftsx": 1 }, "weights": { "a": 1 }, "textIndexVersion": 3,
        };
        let fields = Arc::new(TextFields::parse(&listed).expect("a text index"));
        let operand = TextOperand {
            search: search.into(),
            language: String::new(),
            case_sensitive,
            diacritic_sensitive,
        };
        TextQuery::new(operand, &fields).expect("a query")
    }

    #[track_caller]
    fn check(query: &TextQuery, text: &str, expected: bool) {
        let document: RawDocumentBuf = rawdoc! { "a": text };
        assert_eq!(
            query.matches(&document).expect("it is matched"),
            expected,
            "{text}"
        );
    }

    #[test]
    fn terms_and_phrases() {
        check(&query("running", false, false), "I run every day", true);
        check(&query("blue", false, false), "blueberries", false);
        check(&query("fox -brown", false, false), "the red fox", true);
        check(&query("fox -brown", false, false), "the brown fox", false);
        check(&query("-fox", false, false), "a dog", false);
        check(
            &query("\"brown fox\"", false, false),
            "the Brown Foxes",
            true,
        );
        check(&query("\"brown fox\"", false, false), "fox brown", false);
        check(
            &query("\"brown fox\" quick", false, false),
            "brown fox jumps",
            true,
        );
        check(
            &query("fox -\"brown fox\"", false, false),
            "a brown fox",
            false,
        );
        check(&query("the", false, false), "the", false);
    }

    #[test]
    fn case_and_diacritics() {
        check(&query("cafe", false, false), "CAFÉ", true);
        check(&query("Cafe", true, false), "Café", true);
        check(&query("Cafe", true, false), "café", false);
        check(&query("café", false, true), "Café", true);
        check(&query("café", false, true), "Cafe", false);
        check(&query("\"Le Café\"", true, true), "Le Café", true);
        check(&query("\"le Café\"", true, true), "Le Café", false);
    }

    #[test]
    fn scores_add_up() {
        let score = |search: &str, text: &str| {
            query(search, false, false)
                .score(&rawdoc! { "a": text })
                .expect("a score")
        };
        assert_eq!(score("coffee", "coffee"), 1.0);
        assert_eq!(score("coffee", "coffee coffee coffee"), 1.75);
        assert_eq!(score("coffee tea", "coffee tea"), 1.5);
        assert_eq!(score("milk", "coffee"), 0.0);
    }

    /// Texts of a few words in many forms, as a generator of random numbers says.
    fn random_text(state: &mut u64, most: u64) -> String {
        const WORDS: [&str; 14] = [
            "Dogs",
            "dog",
            "the",
            "CAFÉ",
            "cafe",
            "running",
            "Run",
            "é",
            "of",
            "don't",
            "x-y",
            "Größe",
            "-dog",
            "\"the dog\"",
        ];
        let mut next = |bound: u64| {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (*state >> 33) % bound
        };
        let words = (0..next(most)).map(|_| WORDS[next(WORDS.len() as u64) as usize]);
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_matches_has_a_key_of_a_term() {
        let (mut state, mut matched) = (7, 0);
        for round in 0..2000 {
            let search = random_text(&mut state, 4);
            let query = query(&search, round % 3 == 0, round % 4 == 0);
            let document =
                rawdoc! { "a": [random_text(&mut state, 6), random_text(&mut state, 3)] };
            let keys = super::super::keys(&document, &query.fields).expect("keys");
            let scores = keys.iter().filter_map(|key| match &key[..] {
                [RawBson::String(term), RawBson::Double(score)] => {
                    query.index_terms.contains(term).then_some(*score)
                }
                _ => panic!("a key is a term and a score"),
            });
            let found = query.matches(&document).expect("it is matched");
            assert!(
                !found || scores.clone().count() > 0,
                "{search:?} {document:?}"
            );
            if query.is_decided_by_keys() {
                assert_eq!(found, scores.clone().count() > 0, "{search:?} {document:?}");
            }
            assert_eq!(
                query.score(&document).expect("a score"),
                scores.sum::<f64>()
            );
            matched += usize::from(found);
        }
        assert!(matched > 300, "{matched}");
    }
}
