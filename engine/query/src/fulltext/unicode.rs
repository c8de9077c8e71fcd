//! Characters as text search sees them: word delimiters, lower case, letters without marks.

use icu_normalizer::DecomposingNormalizerBorrowed;
use icu_properties::CodePointSetData;
use icu_properties::props::{
    Dash, Diacritic, Hyphen, PatternSyntax, QuotationMark, TerminalPunctuation, WhiteSpace,
};

use super::language::Language;

/// Whether a character ends a word, by Unicode's properties. English words have apostrophes in
/// them.
pub(super) fn is_delimiter(c: char, language: Language) -> bool {
    if c == '\'' {
        return language != Language::English;
    }
    if c.is_ascii_alphanumeric() {
        return false;
    }
    CodePointSetData::new::<WhiteSpace>().contains(c)
        || CodePointSetData::new::<PatternSyntax>().contains(c)
        || CodePointSetData::new::<TerminalPunctuation>().contains(c)
        || CodePointSetData::new::<QuotationMark>().contains(c)
        || CodePointSetData::new::<Dash>().contains(c)
        || CodePointSetData::new::<Hyphen>().contains(c)
}

/// The small letter of a character, always one, and the same of all its forms: of a final sigma the
/// common one.
fn lower(c: char, language: Language) -> char {
    match (language, c) {
        (Language::Turkish, 'I') => 'ı',
        (Language::Turkish, 'İ') => 'i',
        (_, 'ı') => 'ı',
        (_, c) if c.is_ascii() => c.to_ascii_lowercase(),
        _ => {
            let mut capitals = c.to_uppercase();
            let capital = match (capitals.next(), capitals.next()) {
                (Some(capital), None) => capital,
                // The capitals of some letters are two.
                _ => c,
            };
            capital.to_lowercase().next().unwrap_or(capital)
        }
    }
}

/// A text in small letters.
pub(super) fn lowered(text: &str, language: Language) -> String {
    text.chars().map(|c| lower(c, language)).collect()
}

/// A text without diacritics: combining marks fall away, letters that carry them lose them.
pub(super) fn without_diacritics(text: &str) -> String {
    if text.is_ascii() {
        return text.into();
    }
    let decomposer = DecomposingNormalizerBorrowed::new_nfd();
    let diacritics = CodePointSetData::new::<Diacritic>();
    let mut out = String::with_capacity(text.len());
    let mut buffer = [0; 4];
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        let decomposed = decomposer.normalize(c.encode_utf8(&mut buffer));
        let mut kept = decomposed
            .chars()
            .filter(|part| !diacritics.contains(*part));
        match (kept.next(), kept.next()) {
            (None, _) => {}
            (Some(base), None) => out.push(base),
            // What is made of several letters is one of its own.
            (Some(_), Some(_)) => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters() {
        for c in [
            ' ', '-', '.', '$', '#', '@', '\u{2014}', '\u{3002}', '"', '\n',
        ] {
            assert!(is_delimiter(c, Language::English), "{c:?}");
        }
        for c in ['a', '_', '7', 'é', '数', '\u{0}'] {
            assert!(!is_delimiter(c, Language::English), "{c:?}");
        }
        assert!(!is_delimiter('\'', Language::English));
        assert!(is_delimiter('\'', Language::French));
    }

    #[test]
    fn folding() {
        assert_eq!(lowered("ÉCOLE İI", Language::French), "école ii");
        assert_eq!(lowered("İI", Language::Turkish), "iı");
        assert_eq!(
            lowered("ΛΌΓΟΣ λόγος Straße", Language::None),
            "λόγοσ λόγοσ straße"
        );
        assert_eq!(
            without_diacritics("café cafe\u{301} Ångström"),
            "cafe cafe Angstrom"
        );
        assert_eq!(without_diacritics("数据한글"), "数据한글");
    }
}
