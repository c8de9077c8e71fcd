//! `$text` queries: what is searched for, taken apart into terms and phrases.

use std::collections::BTreeSet;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::language::Language;
use super::spec::TextFields;
use super::tokenizer::{Options, terms};
use crate::error::{bad_value, error, type_mismatch};
use crate::limits::MAX_TEXT_QUERY_TERMS;
use crate::value::{elements, type_name};

/// The operand of `$text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextOperand {
    pub search: String,
    /// Empty for the index's default.
    pub language: String,
    pub case_sensitive: bool,
    pub diacritic_sensitive: bool,
}

const FIELDS: [&str; 4] = [
    "$search",
    "$language",
    "$caseSensitive",
    "$diacriticSensitive",
];

impl TextOperand {
    pub(crate) fn parse(operand: RawBsonRef<'_>) -> Result<TextOperand> {
        let RawBsonRef::Document(operand) = operand else {
            return Err(bad_value("$text expects an object"));
        };
        let search = text(operand, "$search")?
            .ok_or_else(|| error(4, "Missing expected field \"$search\""))?;
        let parsed = TextOperand {
            search: search.into(),
            language: text(operand, "$language")?.unwrap_or_default().into(),
            case_sensitive: flag(operand, "$caseSensitive")?,
            diacritic_sensitive: flag(operand, "$diacriticSensitive")?,
        };
        match elements(operand).all(|(name, _)| FIELDS.contains(&name)) {
            true => Ok(parsed),
            false => Err(bad_value("extra fields in $text")),
        }
    }
}

fn wrong_type(name: &str, value: RawBsonRef<'_>, expected: &str) -> pinion_wire::Error {
    type_mismatch(format!(
        "\"{name}\" had the wrong type. Expected {expected}, found {}",
        type_name(value)
    ))
}

fn text<'a>(operand: &'a RawDocument, name: &str) -> Result<Option<&'a str>> {
    match crate::value::field(operand, name) {
        None => Ok(None),
        Some(RawBsonRef::String(text)) => Ok(Some(text)),
        Some(other) => Err(wrong_type(name, other, "string")),
    }
}

fn flag(operand: &RawDocument, name: &str) -> Result<bool> {
    match crate::value::field(operand, name) {
        None => Ok(false),
        Some(RawBsonRef::Boolean(flag)) => Ok(flag),
        Some(other) => Err(wrong_type(name, other, "bool")),
    }
}

/// A `$text` query for the fields of an index.
#[derive(Clone, Debug)]
pub(crate) struct TextQuery {
    pub fields: Arc<TextFields>,
    pub operand: TextOperand,
    /// The terms that the index is asked for.
    pub index_terms: BTreeSet<String>,
    /// One of these a document must have, and none of the negated ones.
    pub positive: BTreeSet<String>,
    pub negated: BTreeSet<String>,
    /// All of these a document must have, and none of the negated ones.
    pub phrases: Vec<String>,
    pub negated_phrases: Vec<String>,
}

impl TextQuery {
    /// Reads what is searched for in the language of the query, or of the index.
    pub(crate) fn new(operand: TextOperand, fields: &Arc<TextFields>) -> Result<TextQuery> {
        let language = match &operand.language[..] {
            "" => fields.default_language,
            name => Language::find(name, fields.version).ok_or_else(|| {
                bad_value(format!(
                    "unsupported language: \"{}\" for text index version {}",
                    crate::text::shortened(name),
                    fields.version as i32
                ))
            })?,
        };
        let parts = Parts::read(&operand.search);
        let mut query = TextQuery {
            fields: fields.clone(),
            operand,
            index_terms: BTreeSet::new(),
            positive: BTreeSet::new(),
            negated: BTreeSet::new(),
            phrases: parts.phrases,
            negated_phrases: parts.negated_phrases,
        };
        query.index_terms = query.terms(&parts.words, language, false)?;
        query.positive = query.terms(&parts.words, language, true)?;
        query.negated = query.terms(&parts.negated_words, language, true)?;
        Ok(query)
    }

    /// As explain prints it.
    pub(crate) fn explain(&self, out: &mut DocBuilder) {
        out.start_document("parsedTextQuery");
        let mut list = |name: &str, texts: &mut dyn Iterator<Item = &String>| {
            out.start_array(name);
            texts.for_each(|text| {
                out.push(&text[..]);
            });
            out.end();
        };
        list("terms", &mut self.positive.iter());
        list("negatedTerms", &mut self.negated.iter());
        list("phrases", &mut self.phrases.iter());
        list("negatedPhrases", &mut self.negated_phrases.iter());
        out.end();
        out.append("textIndexVersion", self.fields.version as i32);
    }

    /// How words are compared: as the operand says, or as keys hold them.
    pub(super) fn options(&self, as_asked: bool) -> Options {
        Options {
            filter_stop_words: false,
            case_sensitive: as_asked && self.operand.case_sensitive,
            diacritic_sensitive: as_asked && self.operand.diacritic_sensitive,
        }
    }

    fn terms(&self, words: &str, language: Language, as_asked: bool) -> Result<BTreeSet<String>> {
        let options = Options {
            filter_stop_words: true,
            ..self.options(as_asked)
        };
        let mut found = BTreeSet::new();
        terms(words, language, self.fields.version, options, |term| {
            found.insert(term.to_string());
            if found.len() > MAX_TEXT_QUERY_TERMS {
                return Err(bad_value(format!(
                    "a $text query may have {MAX_TEXT_QUERY_TERMS} terms at most"
                )));
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// What stands in a search string.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts {
    /// Words, those of phrases among them, with blanks in between.
    words: String,
    negated_words: String,
    phrases: Vec<String>,
    negated_phrases: Vec<String>,
}

impl Parts {
    /// A minus behind white space negates what follows up to the next white space: words or a
    /// phrase in quotes. In a phrase a minus says nothing.
    fn read(search: &str) -> Parts {
        let mut parts = Parts::default();
        let (mut negated, mut phrase_start) = (false, None);
        let mut after_space = true;
        let mut rest = search.char_indices().peekable();
        while let Some((at, c)) = rest.next() {
            match c {
                c if is_space(c) => {
                    after_space = true;
                    continue;
                }
                '-' if phrase_start.is_none() && after_space => negated = true,
                '-' => {}
                '"' => match phrase_start.take() {
                    Some(start) => {
                        let phrase = search[start..at].to_string();
                        match negated {
                            true => parts.negated_phrases.push(phrase),
                            false => parts.phrases.push(phrase),
                        }
                    }
                    None => {
                        negated &= !after_space;
                        phrase_start = Some(at + 1);
                    }
                },
                _ => {
                    let mut end = search.len();
                    while let Some((next, c)) = rest.peek().copied() {
                        if is_space(c) || matches!(c, '-' | '"') {
                            end = next;
                            break;
                        }
                        rest.next();
                    }
                    if phrase_start.is_none() && after_space {
                        negated = false;
                    }
                    let words = match (phrase_start.is_some(), negated) {
                        (true, true) => None,
                        (_, false) => Some(&mut parts.words),
                        (false, true) => Some(&mut parts.negated_words),
                    };
                    if let Some(words) = words {
                        words.push_str(&search[at..end]);
                        words.push(' ');
                    }
                }
            }
            after_space = false;
        }
        parts
    }
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawBson, rawbson, rawdoc};

    #[track_caller]
    fn check(search: &str, words: &str, negated: &str, phrases: &[&str], without: &[&str]) {
        let parts = Parts::read(search);
        assert_eq!(parts.words.trim(), words, "{search}");
        assert_eq!(parts.negated_words.trim(), negated, "{search}");
        assert_eq!(parts.phrases, phrases, "{search}");
        assert_eq!(parts.negated_phrases, without, "{search}");
    }

    #[test]
    fn search_strings() {
        check("coffee python", "coffee python", "", &[], &[]);
        check("animal -fox bear", "animal bear", "fox", &[], &[]);
        check("well-known", "well known", "", &[], &[]);
        check("-well-known", "", "well known", &[], &[]);
        check("a - b", "a b", "", &[], &[]);
        check(
            "\"brown fox\" -quick",
            "brown fox",
            "quick",
            &["brown fox"],
            &[],
        );
        check("x -\"brown fox\" y", "x y", "", &[], &["brown fox"]);
        check(
            "x - \"brown -fox\"",
            "x brown fox",
            "",
            &["brown -fox"],
            &[],
        );
        check("-\"a b\"-\"c d\"", "", "", &[], &["a b", "c d"]);
        check("an \"open end", "an open end", "", &[], &[]);
        check("   ", "", "", &[], &[]);
    }

    #[test]
    fn operands() {
        let parse =
            |operand: RawBson| TextOperand::parse(operand.as_raw_bson_ref()).map_err(|e| e.code.0);
        let operand =
            parse(rawbson!({ "$search": "a", "$language": "fr", "$caseSensitive": true }));
        assert_eq!(
            operand,
            Ok(TextOperand {
                search: "a".into(),
                language: "fr".into(),
                case_sensitive: true,
                diacritic_sensitive: false,
            })
        );
        assert_eq!(parse(rawbson!("a")), Err(2));
        assert_eq!(parse(rawbson!({})), Err(4));
        assert_eq!(parse(rawbson!({ "$search": 1 })), Err(14));
        assert_eq!(
            parse(rawbson!({ "$search": "a", "$caseSensitive": 1 })),
            Err(14)
        );
        assert_eq!(parse(rawbson!({ "$search": "a", "x": 1 })), Err(2));
    }

    #[test]
    fn terms_of_a_query() {
        let listed = rawdoc! {
            "key": { "_fts": "text", "_ftsx": 1 }, "weights": { "a": 1 }, "textIndexVersion": 3,
        };
        let fields = Arc::new(TextFields::parse(&listed).expect("a text index"));
        let operand = TextOperand {
            search: "the Running Café -Dogs".into(),
            language: String::new(),
            case_sensitive: true,
            diacritic_sensitive: false,
        };
        let query = TextQuery::new(operand.clone(), &fields).expect("a query");
        let list = |terms: &BTreeSet<String>| terms.iter().cloned().collect::<Vec<_>>();
        assert_eq!(list(&query.index_terms), ["cafe", "run"]);
        assert_eq!(list(&query.positive), ["Cafe", "Run"]);
        assert_eq!(list(&query.negated), ["Dog"]);
        let unknown = TextOperand {
            language: "klingon".into(),
            ..operand
        };
        assert_eq!(
            TextQuery::new(unknown, &fields).map_err(|e| e.code.0).err(),
            Some(2)
        );
    }
}
