//! What a collation document says: the options as given, and the settings with the locale's
//! defaults filled in.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf};

use crate::locales::{LocaleLookup, find};

/// The version that collation documents carry: that of the ICU which MongoDB has. Drivers and tools
/// compare it.
pub const VERSION: &str = "57.1";

/// How fine the differences are that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// Base characters.
    Primary = 1,
    /// And accents.
    Secondary = 2,
    /// And case and variants.
    Tertiary = 3,
    /// And punctuation, where `alternate` is shifted.
    Quaternary = 4,
    /// And code points.
    Identical = 5,
}

impl Strength {
    /// The strength with this number.
    pub fn from_number(number: i32) -> Option<Strength> {
        Some(match number {
            1 => Strength::Primary,
            2 => Strength::Secondary,
            3 => Strength::Tertiary,
            4 => Strength::Quaternary,
            5 => Strength::Identical,
            _ => return None,
        })
    }
}

/// Which case comes first among strings that differ in nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseFirst {
    Upper,
    Lower,
    /// Lower case, but after all other tertiary differences have been looked at.
    Off,
}

impl CaseFirst {
    /// The values by their names.
    pub const NAMES: [(&str, CaseFirst); 3] = [
        ("upper", CaseFirst::Upper),
        ("lower", CaseFirst::Lower),
        ("off", CaseFirst::Off),
    ];
}

/// Whether white space and punctuation count as characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alternate {
    NonIgnorable,
    /// They count at the fourth level alone.
    Shifted,
}

impl Alternate {
    /// The values by their names.
    pub const NAMES: [(&str, Alternate); 2] = [
        ("non-ignorable", Alternate::NonIgnorable),
        ("shifted", Alternate::Shifted),
    ];
}

/// Which characters `Alternate::Shifted` is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxVariable {
    Punct,
    Space,
}

impl MaxVariable {
    /// The values by their names.
    pub const NAMES: [(&str, MaxVariable); 2] =
        [("punct", MaxVariable::Punct), ("space", MaxVariable::Space)];
}

/// The options of a collation document; those that are absent have the locale's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    pub locale: &'a str,
    pub case_level: Option<bool>,
    pub case_first: Option<CaseFirst>,
    pub strength: Option<Strength>,
    pub numeric_ordering: Option<bool>,
    pub alternate: Option<Alternate>,
    pub max_variable: Option<MaxVariable>,
    pub normalization: Option<bool>,
    pub backwards: Option<bool>,
}

/// Why options make no collation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// There is no such locale; perhaps this one was meant.
    Locale { meant: Option<&'static str> },
    /// MongoDB has this variant of the locale's order, and the tables here do not.
    VariantUnsupported,
    /// `backwards` without a second level.
    Backwards,
    /// `caseFirst` without a level that distinguishes cases.
    CaseFirst,
}

/// All settings of a collation; equal settings are the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// As MongoDB spells it: `de@collation=phonebook`.
    pub locale: &'static str,
    pub case_level: bool,
    pub case_first: CaseFirst,
    pub strength: Strength,
    pub numeric_ordering: bool,
    pub alternate: Alternate,
    pub max_variable: MaxVariable,
    /// Kept for listings. Comparison normalizes always, which is what MongoDB's does where this is
    /// true; without it, MongoDB's comparison is the same for all text whose combining marks stand
    /// in canonical order.
    pub normalization: bool,
    pub backwards: bool,
}

impl Settings {
    /// The settings that options mean, and the BCP 47 tag of the locale.
    pub(crate) fn resolve(options: &Options<'_>) -> Result<(Settings, &'static str), Invalid> {
        let locale = match find(options.locale) {
            LocaleLookup::Locale(locale) => locale,
            LocaleLookup::Unsupported => return Err(Invalid::VariantUnsupported),
            LocaleLookup::Unknown { meant } => return Err(Invalid::Locale { meant }),
        };
        let settings = Settings {
            locale: locale.name,
            case_level: options.case_level.unwrap_or(false),
            case_first: options.case_first.unwrap_or(locale.case_first()),
            strength: options.strength.unwrap_or(Strength::Tertiary),
            numeric_ordering: options.numeric_ordering.unwrap_or(false),
            alternate: options.alternate.unwrap_or(locale.alternate()),
            max_variable: options.max_variable.unwrap_or(MaxVariable::Punct),
            normalization: options.normalization.unwrap_or(locale.normalization()),
            backwards: options.backwards.unwrap_or(locale.backwards()),
        };
        settings.check().map(|()| (settings, locale.tag))
    }

    fn check(&self) -> Result<(), Invalid> {
        if self.backwards && self.strength == Strength::Primary {
            return Err(Invalid::Backwards);
        }
        let cases_count = self.case_level || self.strength > Strength::Secondary;
        if self.case_first != CaseFirst::Off && !cases_count {
            return Err(Invalid::CaseFirst);
        }
        Ok(())
    }

    /// The document that listings show and the catalog stores.
    pub fn document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("locale", RawBsonRef::String(self.locale));
        out.append("caseLevel", RawBsonRef::Boolean(self.case_level));
        let case_first = name_of(&CaseFirst::NAMES, self.case_first);
        out.append("caseFirst", RawBsonRef::String(case_first));
        out.append("strength", RawBsonRef::Int32(self.strength as i32));
        let numeric = RawBsonRef::Boolean(self.numeric_ordering);
        out.append("numericOrdering", numeric);
        let alternate = name_of(&Alternate::NAMES, self.alternate);
        out.append("alternate", RawBsonRef::String(alternate));
        let max_variable = name_of(&MaxVariable::NAMES, self.max_variable);
        out.append("maxVariable", RawBsonRef::String(max_variable));
        out.append("normalization", RawBsonRef::Boolean(self.normalization));
        out.append("backwards", RawBsonRef::Boolean(self.backwards));
        out.append("version", RawBsonRef::String(VERSION));
        out.finish()
    }
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names
        .iter()
        .find(|(_, named)| *named == value)
        .map_or("", |(name, _)| name)
}
