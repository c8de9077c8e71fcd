//! A collation: comparison of strings and of values, and sort keys.

use core::cmp::Ordering;
use core::fmt;

use icu_collator::options::{
    AlternateHandling, CaseLevel, CollatorOptions, MaxVariable as IcuMaxVariable,
    Strength as IcuStrength,
};
use icu_collator::preferences::{CollationCaseFirst, CollationNumericOrdering};
use icu_collator::{Collator, CollatorBorrowed, CollatorPreferences};
use icu_locale_core::Locale;
use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, TextOrder};

use crate::provider::Tables;
use crate::settings::{Alternate, CaseFirst, Invalid, MaxVariable, Options, Settings, Strength};

/// Which tables sort keys come from. A change of the tables changes keys that are stored, so it is
/// a change of format: the indexes and collections with a collation would have to be rebuilt.
pub const TABLES: &str = "ICU4X 2.4, CLDR 49";

/// An order of strings as people of a language expect it.
pub struct Collation {
    settings: Settings,
    collator: IcuCollator,
}

/// ICU4X's collator. That of compiled tables is the faster one.
enum IcuCollator {
    Compiled(CollatorBorrowed<'static>),
    /// With another direction of the second level than the tables say.
    Changed(Box<Collator>),
}

impl fmt::Debug for Collation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl PartialEq for Collation {
    fn eq(&self, other: &Collation) -> bool {
        self.settings == other.settings
    }
}

impl Eq for Collation {}

impl Collation {
    /// The collation with these options; what is absent has the locale's default.
    pub fn new(options: &Options<'_>) -> Result<Collation, Invalid> {
        let (settings, tag) = Settings::resolve(options)?;
        let locale: Locale = tag.parse().expect("the tags of the table are well formed");
        let mut preferences = CollatorPreferences::from(&locale);
        preferences.case_first = Some(match settings.case_first {
            CaseFirst::Upper => CollationCaseFirst::Upper,
            CaseFirst::Lower => CollationCaseFirst::Lower,
            CaseFirst::Off => CollationCaseFirst::False,
        });
        preferences.numeric_ordering = Some(if settings.numeric_ordering {
            CollationNumericOrdering::True
        } else {
            CollationNumericOrdering::False
        });
        let has_direction = settings.backwards == crate::locales::compares_backwards(tag);
        let collator = if has_direction {
            Collator::try_new(preferences, icu_options(&settings)).map(IcuCollator::Compiled)
        } else {
            let tables = Tables {
                backwards: settings.backwards,
            };
            Collator::try_new_unstable(&tables, preferences, icu_options(&settings))
                .map(|collator| IcuCollator::Changed(Box::new(collator)))
        };
        Ok(Collation {
            settings,
            collator: collator.expect("the compiled tables have every locale, by fallback"),
        })
    }

    /// The settings, with the locale's defaults filled in.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The document that listings show and the catalog stores.
    pub fn document(&self) -> RawDocumentBuf {
        self.settings.document()
    }

    /// Orders two strings.
    pub fn compare(&self, a: &str, b: &str) -> Ordering {
        self.compare_strings(a.as_bytes(), b.as_bytes())
    }

    /// Appends a string's sort key: bytes that compare by `memcmp` as the strings do.
    pub fn sort_key(&self, text: &[u8], out: &mut Vec<u8>) {
        let written = match &self.collator {
            IcuCollator::Compiled(collator) => collator.write_sort_key_utf8_to(text, out),
            IcuCollator::Changed(collator) => {
                collator.as_borrowed().write_sort_key_utf8_to(text, out)
            }
        };
        match written {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }
}

fn icu_options(settings: &Settings) -> CollatorOptions {
    let mut options = CollatorOptions::default();
    options.strength = Some(match settings.strength {
        Strength::Primary => IcuStrength::Primary,
        Strength::Secondary => IcuStrength::Secondary,
        Strength::Tertiary => IcuStrength::Tertiary,
        Strength::Quaternary => IcuStrength::Quaternary,
        Strength::Identical => IcuStrength::Identical,
    });
    options.alternate_handling = Some(match settings.alternate {
        Alternate::NonIgnorable => AlternateHandling::NonIgnorable,
        Alternate::Shifted => AlternateHandling::Shifted,
    });
    options.max_variable = Some(match settings.max_variable {
        MaxVariable::Punct => IcuMaxVariable::Punctuation,
        MaxVariable::Space => IcuMaxVariable::Space,
    });
    options.case_level = Some(if settings.case_level {
        CaseLevel::On
    } else {
        CaseLevel::Off
    });
    options
}

impl TextOrder for Collation {
    fn compare_strings(&self, a: &[u8], b: &[u8]) -> Ordering {
        match &self.collator {
            IcuCollator::Compiled(collator) => collator.compare_utf8(a, b),
            IcuCollator::Changed(collator) => collator.as_borrowed().compare_utf8(a, b),
        }
    }

    fn compare_string_with_symbol(&self, string: &[u8], symbol: &[u8]) -> Ordering {
        let mut key = Vec::new();
        self.sort_key(string, &mut key);
        key.as_slice().cmp(symbol)
    }
}

/// Orders two values, the strings in them by the collation; without one, by their bytes.
#[inline]
pub fn compare_values(
    collation: Option<&Collation>,
    a: RawBsonRef<'_>,
    b: RawBsonRef<'_>,
) -> Ordering {
    match collation {
        None => pinion_bson::compare_values(a, b),
        Some(collation) => pinion_bson::compare_values_by(collation, a, b),
    }
}

/// Orders two documents, the strings in them by the collation; without one, by their bytes.
#[inline]
pub fn compare_documents(
    collation: Option<&Collation>,
    a: &RawDocument,
    b: &RawDocument,
) -> Ordering {
    match collation {
        None => pinion_bson::compare_documents(a, b),
        Some(collation) => pinion_bson::compare_documents_by(collation, a, b),
    }
}

/// Whether two values are equal in that order.
#[inline]
pub fn values_equal(collation: Option<&Collation>, a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> bool {
    compare_values(collation, a, b).is_eq()
}
