//! Texts taken apart into terms.

use std::borrow::Cow;

use pinion_wire::Result;

use super::language::{Language, TextVersion};
use super::stop_words::is_stop_word;
use super::unicode::{is_delimiter, lowered, without_diacritics};
use crate::work::{self, spend};

/// What terms keep of their words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Stop words are left out.
    pub filter_stop_words: bool,
    pub case_sensitive: bool,
    pub diacritic_sensitive: bool,
}

/// What it takes to stem a word.
const WORD: work::Units = 500;

/// Calls `f` with each term of a text. What stands behind a null character is no part of the text.
pub(super) fn terms(
    text: &str,
    language: Language,
    version: TextVersion,
    options: Options,
    mut f: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
    let text = text.split('\0').next().unwrap_or_default();
    work::spend_bytes(text.len())?;
    let ends_word: fn(char, Language) -> bool = match version {
        TextVersion::V3 => is_delimiter,
        _ => is_ascii_delimiter,
    };
    let stemmer = language.stemmer();
    for word in text
        .split(|c| ends_word(c, language))
        .filter(|word| !word.is_empty())
    {
        spend(WORD)?;
        let small = match version {
            TextVersion::V3 => lowered(word, language),
            _ => word.to_ascii_lowercase(),
        };
        if options.filter_stop_words && is_stop_word(language, &small) {
            continue;
        }
        let word = if options.case_sensitive { word } else { &small };
        let stem = match &stemmer {
            Some(stemmer) => stemmer.stem(word),
            None => Cow::Borrowed(word),
        };
        let keeps_marks = options.diacritic_sensitive || version != TextVersion::V3;
        if keeps_marks || stem.is_ascii() {
            f(&stem)?;
        } else {
            f(&without_diacritics(&stem))?;
        }
    }
    Ok(())
}

/// What ends a word in the versions that know ASCII alone.
fn is_ascii_delimiter(c: char, language: Language) -> bool {
    match c {
        '\'' => language != Language::English,
        '_' => false,
        c => c.is_ascii_punctuation() || c.is_ascii_whitespace() || c == '\u{b}',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, language: Language, version: TextVersion, expected: &[&str]) {
        let options = Options {
            filter_stop_words: true,
            ..Options::default()
        };
        check_with(text, language, version, options, expected);
    }

    #[track_caller]
    fn check_with(
        text: &str,
        language: Language,
        version: TextVersion,
        options: Options,
        expected: &[&str],
    ) {
        let mut found = Vec::new();
        terms(text, language, version, options, |term| {
            found.push(term.to_string());
            Ok(())
        })
        .expect("terms");
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn words_are_stemmed() {
        use Language::{English, French, None, Spanish, Turkish};
        use TextVersion::V3;
        check(
            "The quick, brown foxes!",
            English,
            V3,
            &["quick", "brown", "fox"],
        );
        check("don't I'm the dog's", English, V3, &["dog"]);
        check("the running", None, V3, &["the", "running"]);
        check("je cours courant", French, V3, &["cour", "cour"]);
        check("corriendo", Spanish, V3, &["corr"]);
        check("Café Ünïcode", English, V3, &["cafe", "unicode"]);
        check(
            "well-known state_of",
            English,
            V3,
            &["well", "known", "state_of"],
        );
        check("数据库系统 東京", English, V3, &["数据库系统", "東京"]);
        check("before\0behind", English, V3, &[]);
        check("  -- ", English, V3, &[]);
        check("ISI", Turkish, V3, &["ıs"]);
    }

    #[test]
    fn the_older_versions_fold_ascii_alone() {
        let expected = ["café", "École"];
        check("CAFé ÉCOLE", Language::None, TextVersion::V2, &expected);
    }

    #[test]
    fn case_and_diacritics_may_count() {
        let options = Options {
            case_sensitive: true,
            ..Options::default()
        };
        check_with(
            "Café the",
            Language::None,
            TextVersion::V3,
            options,
            &["Cafe", "the"],
        );
        let options = Options {
            diacritic_sensitive: true,
            ..Options::default()
        };
        check_with("Café", Language::None, TextVersion::V3, options, &["café"]);
    }
}
