//! The locales that MongoDB documents, what their defaults are, and what ICU4X calls them.

use crate::settings::{Alternate, CaseFirst};

/// The default of `normalization` is true.
const NORMALIZED: u8 = 1;
/// The default of `caseFirst` is `upper`.
const UPPER_FIRST: u8 = 2;
/// The default of `alternate` is `shifted`.
const SHIFTED: u8 = 4;
/// The default of `backwards` is true.
const BACKWARDS: u8 = 8;

/// A locale, or a variant of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocaleEntry {
    /// As MongoDB spells it.
    pub name: &'static str,
    /// As BCP 47 spells it; none where ICU4X has no tables for the variant.
    tag: Option<&'static str>,
    flags: u8,
}

/// A locale there are tables for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownLocale {
    pub name: &'static str,
    pub tag: &'static str,
    flags: u8,
}

impl KnownLocale {
    pub fn normalization(self) -> bool {
        self.flags & NORMALIZED != 0
    }

    pub fn backwards(self) -> bool {
        self.flags & BACKWARDS != 0
    }

    pub fn case_first(self) -> CaseFirst {
        if self.flags & UPPER_FIRST != 0 {
            CaseFirst::Upper
        } else {
            CaseFirst::Off
        }
    }

    pub fn alternate(self) -> Alternate {
        if self.flags & SHIFTED != 0 {
            Alternate::Shifted
        } else {
            Alternate::NonIgnorable
        }
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LocaleLookup {
    Locale(KnownLocale),
    /// MongoDB has it, ICU4X has not.
    Unsupported,
    Unknown {
        /// The locale that ICU would take instead.
        meant: Option<&'static str>,
    },
}

/// Looks a locale up by MongoDB's name.
pub(crate) fn find(name: &str) -> LocaleLookup {
    let Some(entry) = entry(name) else {
        return LocaleLookup::Unknown { meant: meant(name) };
    };
    match entry.tag {
        None => LocaleLookup::Unsupported,
        Some(tag) => LocaleLookup::Locale(KnownLocale {
            name: entry.name,
            tag,
            flags: entry.flags,
        }),
    }
}

/// Whether the tables of the locale with this tag compare accents from the end.
pub(crate) fn compares_backwards(tag: &str) -> bool {
    LOCALES
        .iter()
        .any(|locale| locale.tag == Some(tag) && locale.flags & BACKWARDS != 0)
}

fn entry(name: &str) -> Option<&'static LocaleEntry> {
    LOCALES
        .binary_search_by(|locale| locale.name.cmp(name))
        .ok()
        .map(|at| &LOCALES[at])
}

/// The locale that ICU falls back to: in its own spelling, without an unknown variant, without
/// regions it has no order for.
fn meant(name: &str) -> Option<&'static str> {
    let (base, variant) = match name.split_once('@') {
        Some((base, variant)) => (base, Some(variant)),
        None => (name, None),
    };
    let mut base = canonical_case(base);
    loop {
        let whole = variant.map(|variant| format!("{base}@{variant}"));
        let found = whole.and_then(|whole| entry(&whole)).or(entry(&base));
        if let Some(found) = found {
            return Some(found.name);
        }
        base.truncate(base.rfind('_')?);
    }
}

/// `EN-us` as `en_US`, `SR_latn` as `sr_Latn`.
fn canonical_case(base: &str) -> String {
    let mut out = String::new();
    for (at, part) in base.split(['-', '_']).enumerate() {
        if at > 0 {
            out.push('_');
        }
        match part.len() {
            _ if at == 0 => out.push_str(&part.to_ascii_lowercase()),
            4 if part.is_ascii() => {
                out.push_str(&part[..1].to_ascii_uppercase());
                out.push_str(&part[1..].to_ascii_lowercase());
            }
            _ => out.push_str(&part.to_ascii_uppercase()),
        }
    }
    out
}

const fn locale(name: &'static str, tag: &'static str, flags: u8) -> LocaleEntry {
    LocaleEntry {
        name,
        tag: Some(tag),
        flags,
    }
}

const fn unsupported(name: &'static str) -> LocaleEntry {
    LocaleEntry {
        name,
        tag: None,
        flags: 0,
    }
}

/// All locales, by name.
pub(crate) static LOCALES: &[LocaleEntry] = &[
    locale("af", "af", 0),
    locale("am", "am", 0),
    locale("ar", "ar", 0),
    locale("ar@collation=compat", "ar-u-co-compat", 0),
    locale("as", "as", NORMALIZED),
    locale("az", "az", 0),
    unsupported("az@collation=search"),
    locale("be", "be", 0),
    locale("bg", "bg", 0),
    locale("bn", "bn", NORMALIZED),
    locale("bn@collation=traditional", "bn-u-co-trad", NORMALIZED),
    locale("bo", "bo", 0),
    locale("bs", "bs", 0),
    unsupported("bs@collation=search"),
    locale("bs_Cyrl", "bs-Cyrl", 0),
    locale("ca", "ca", 0),
    unsupported("ca@collation=search"),
    locale("chr", "chr", 0),
    locale("cs", "cs", 0),
    unsupported("cs@collation=search"),
    locale("cy", "cy", 0),
    locale("da", "da", UPPER_FIRST),
    unsupported("da@collation=search"),
    locale("de", "de", 0),
    locale("de@collation=eor", "de-u-co-eor", 0),
    locale("de@collation=phonebook", "de-u-co-phonebk", 0),
    unsupported("de@collation=search"),
    locale("de_AT", "de-AT", 0),
    locale("de_AT@collation=phonebook", "de-AT-u-co-phonebk", 0),
    locale("dsb", "dsb", 0),
    locale("dz", "dz", 0),
    locale("ee", "ee", 0),
    locale("el", "el", NORMALIZED),
    locale("en", "en", 0),
    locale("en_US", "en-US", 0),
    locale("en_US_POSIX", "en-US-POSIX", 0),
    locale("eo", "eo", 0),
    locale("es", "es", 0),
    unsupported("es@collation=search"),
    locale("es@collation=traditional", "es-u-co-trad", 0),
    locale("et", "et", 0),
    locale("fa", "fa", NORMALIZED),
    locale("fa_AF", "fa-AF", 0),
    locale("fi", "fi", 0),
    unsupported("fi@collation=search"),
    locale("fi@collation=traditional", "fi-u-co-trad", 0),
    locale("fil", "fil", 0),
    locale("fo", "fo", 0),
    unsupported("fo@collation=search"),
    locale("fr", "fr", 0),
    locale("fr_CA", "fr-CA", BACKWARDS),
    locale("ga", "ga", 0),
    locale("gl", "gl", 0),
    unsupported("gl@collation=search"),
    locale("gu", "gu", NORMALIZED),
    locale("ha", "ha", 0),
    locale("haw", "haw", 0),
    locale("he", "he", NORMALIZED),
    unsupported("he@collation=search"),
    locale("hi", "hi", NORMALIZED),
    locale("hr", "hr", 0),
    unsupported("hr@collation=search"),
    locale("hsb", "hsb", 0),
    locale("hu", "hu", 0),
    locale("hy", "hy", 0),
    locale("id", "id", 0),
    locale("ig", "ig", NORMALIZED),
    locale("is", "is", 0),
    unsupported("is@collation=search"),
    locale("it", "it", 0),
    locale("ja", "ja", 0),
    locale("ja@collation=unihan", "ja-u-co-unihan", 0),
    locale("ka", "ka", 0),
    locale("kk", "kk", 0),
    locale("kl", "kl", 0),
    unsupported("kl@collation=search"),
    locale("km", "km", NORMALIZED),
    locale("kn", "kn", NORMALIZED),
    locale("kn@collation=traditional", "kn-u-co-trad", NORMALIZED),
    locale("ko", "ko", 0),
    unsupported("ko@collation=search"),
    unsupported("ko@collation=searchjl"),
    locale("ko@collation=unihan", "ko-u-co-unihan", 0),
    locale("kok", "kok", NORMALIZED),
    locale("ky", "ky", 0),
    locale("lb", "lb", 0),
    locale("lkt", "lkt", 0),
    locale("ln", "ln", 0),
    unsupported("ln@collation=phonetic"),
    locale("lo", "lo", 0),
    locale("lt", "lt", 0),
    locale("lv", "lv", 0),
    locale("mk", "mk", 0),
    locale("ml", "ml", 0),
    locale("mn", "mn", 0),
    locale("mr", "mr", NORMALIZED),
    locale("ms", "ms", 0),
    locale("mt", "mt", UPPER_FIRST),
    locale("my", "my", NORMALIZED),
    locale("nb", "nb", 0),
    unsupported("nb@collation=search"),
    locale("ne", "ne", 0),
    locale("nl", "nl", 0),
    locale("nn", "nn", 0),
    unsupported("nn@collation=search"),
    locale("om", "om", 0),
    locale("or", "or", NORMALIZED),
    locale("pa", "pa", NORMALIZED),
    locale("pl", "pl", 0),
    locale("ps", "ps", NORMALIZED),
    locale("pt", "pt", 0),
    locale("ro", "ro", 0),
    locale("ru", "ru", 0),
    locale("se", "se", 0),
    unsupported("se@collation=search"),
    locale("si", "si", NORMALIZED),
    locale("si@collation=dictionary", "si-u-co-dict", NORMALIZED),
    locale("sk", "sk", 0),
    unsupported("sk@collation=search"),
    locale("sl", "sl", 0),
    locale("smn", "smn", 0),
    unsupported("smn@collation=search"),
    locale("sq", "sq", 0),
    locale("sr", "sr", 0),
    locale("sr_Latn", "sr-Latn", 0),
    unsupported("sr_Latn@collation=search"),
    locale("sv", "sv", 0),
    unsupported("sv@collation=search"),
    locale("sw", "sw", 0),
    locale("ta", "ta", NORMALIZED),
    locale("te", "te", NORMALIZED),
    locale("th", "th", NORMALIZED | SHIFTED),
    locale("to", "to", 0),
    locale("tr", "tr", 0),
    unsupported("tr@collation=search"),
    locale("ug", "ug", 0),
    locale("uk", "uk", 0),
    locale("ur", "ur", 0),
    locale("vi", "vi", NORMALIZED),
    locale("vi@collation=traditional", "vi-u-co-trad", NORMALIZED),
    locale("wae", "wae", 0),
    locale("yi", "yi", NORMALIZED),
    unsupported("yi@collation=search"),
    locale("yo", "yo", NORMALIZED),
    locale("zh", "zh", 0),
    unsupported("zh@collation=big5han"),
    unsupported("zh@collation=gb2312han"),
    locale("zh@collation=stroke", "zh-u-co-stroke", 0),
    locale("zh@collation=unihan", "zh-u-co-unihan", 0),
    locale("zh@collation=zhuyin", "zh-u-co-zhuyin", 0),
    locale("zh_Hant", "zh-Hant", 0),
    locale("zu", "zu", 0),
];
