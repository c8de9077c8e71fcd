//! The languages of text search.

use rust_stemmers::{Algorithm, Stemmer};

/// The version of a text index, which says how its terms are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TextVersion {
    V1 = 1,
    V2 = 2,
    /// Folds case and diacritics of all scripts; the version of new indexes.
    V3 = 3,
}

impl TextVersion {
    pub(super) fn of(number: i64) -> TextVersion {
        match number {
            1 => TextVersion::V1,
            2 => TextVersion::V2,
            _ => TextVersion::V3,
        }
    }
}

/// Whether indexes of a version have a language of this name or code.
pub fn is_text_language(name: &str, version: i32) -> bool {
    Language::find(name, TextVersion::of(version.into())).is_some()
}

/// A language whose words are stemmed and whose stop words are left out, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    None,
    Danish,
    Dutch,
    English,
    Finnish,
    French,
    German,
    Hungarian,
    Italian,
    Norwegian,
    Portuguese,
    Romanian,
    Russian,
    Spanish,
    Swedish,
    Turkish,
}

/// Each language with its name and its code.
const LANGUAGES: [(&str, &str, Language); 16] = [
    ("none", "none", Language::None),
    ("danish", "da", Language::Danish),
    ("dutch", "nl", Language::Dutch),
    ("english", "en", Language::English),
    ("finnish", "fi", Language::Finnish),
    ("french", "fr", Language::French),
    ("german", "de", Language::German),
    ("hungarian", "hu", Language::Hungarian),
    ("italian", "it", Language::Italian),
    ("norwegian", "nb", Language::Norwegian),
    ("portuguese", "pt", Language::Portuguese),
    ("romanian", "ro", Language::Romanian),
    ("russian", "ru", Language::Russian),
    ("spanish", "es", Language::Spanish),
    ("swedish", "sv", Language::Swedish),
    ("turkish", "tr", Language::Turkish),
];

impl Language {
    /// The language of a name or a code. The first version takes unknown ones as none.
    pub(crate) fn find(name: &str, version: TextVersion) -> Option<Language> {
        let lower = name.to_lowercase();
        let known = LANGUAGES
            .iter()
            .find(|(name, code, _)| lower == *name || lower == *code)
            .map(|(_, _, language)| *language);
        match version {
            TextVersion::V1 => Some(known.unwrap_or(Language::None)),
            _ => known,
        }
    }

    /// The name, as it is stored.
    pub(crate) fn name(self) -> &'static str {
        LANGUAGES
            .iter()
            .find(|(_, _, language)| *language == self)
            .map_or("none", |(name, _, _)| name)
    }

    /// The code by which stop words are listed.
    pub(super) fn code(self) -> &'static str {
        match self {
            Language::Norwegian => "no",
            other => LANGUAGES
                .iter()
                .find(|(_, _, language)| *language == other)
                .map_or("none", |(_, code, _)| code),
        }
    }

    pub(super) fn stemmer(self) -> Option<Stemmer> {
        Some(Stemmer::create(match self {
            Language::None => return None,
            Language::Danish => Algorithm::Danish,
            Language::Dutch => Algorithm::Dutch,
            Language::English => Algorithm::English,
            Language::Finnish => Algorithm::Finnish,
            Language::French => Algorithm::French,
            Language::German => Algorithm::German,
            Language::Hungarian => Algorithm::Hungarian,
            Language::Italian => Algorithm::Italian,
            Language::Norwegian => Algorithm::Norwegian,
            Language::Portuguese => Algorithm::Portuguese,
            Language::Romanian => Algorithm::Romanian,
            Language::Russian => Algorithm::Russian,
            Language::Spanish => Algorithm::Spanish,
            Language::Swedish => Algorithm::Swedish,
            Language::Turkish => Algorithm::Turkish,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes() {
        let find = |name| Language::find(name, TextVersion::V3);
        assert_eq!(find("english"), Some(Language::English));
        assert_eq!(find("EN"), Some(Language::English));
        assert_eq!(find("nb"), Some(Language::Norwegian));
        assert_eq!(find("klingon"), None);
        assert_eq!(
            Language::find("klingon", TextVersion::V1),
            Some(Language::None)
        );
        assert_eq!(Language::Norwegian.name(), "norwegian");
    }
}
