//! Collation documents, read with MongoDB's errors.

use std::sync::Arc;

use pinion_bson::RawDocument;
use pinion_collation::{
    Alternate, CaseFirst, Collation, Invalid, MaxVariable, Options, Strength, VERSION,
};
use pinion_wire::idl::{FieldReader, Path};
use pinion_wire::{Error, Result};

use crate::error::{bad_value, error};
use crate::text::document_text;

/// The locale of the order by bytes.
const SIMPLE: &str = "simple";

/// The fields of a collation document.
const FIELDS: [&str; 10] = [
    "locale",
    "caseLevel",
    "caseFirst",
    "strength",
    "numericOrdering",
    "alternate",
    "maxVariable",
    "normalization",
    "backwards",
    "version",
];

/// Reads a collation document. None is the simple collation: strings compare by their bytes.
pub fn parse_collation(spec: &RawDocument) -> Result<Option<Arc<Collation>>> {
    let reader = FieldReader::object(Path::root("collation"), spec)?;
    reader.only(&FIELDS)?;
    let strength = match reader.opt_i32("strength")? {
        None => None,
        Some(number) => Some(Strength::from_number(number).ok_or_else(|| {
            bad_value(format!(
                "Enumeration value '{number}' for field 'collation.strength' is not a valid value."
            ))
        })?),
    };
    let options = Options {
        locale: reader.str("locale")?,
        case_level: reader.opt_bool("caseLevel")?,
        case_first: reader.opt_one_of("caseFirst", &CaseFirst::NAMES)?,
        strength,
        numeric_ordering: reader.opt_bool("numericOrdering")?,
        alternate: reader.opt_one_of("alternate", &Alternate::NAMES)?,
        max_variable: reader.opt_one_of("maxVariable", &MaxVariable::NAMES)?,
        normalization: reader.opt_bool("normalization")?,
        backwards: reader.opt_bool("backwards")?,
    };
    check_version(reader.opt_str("version")?)?;
    if options.locale == SIMPLE {
        return Ok(None);
    }
    match Collation::new(&options) {
        Ok(collation) => Ok(Some(Arc::new(collation))),
        Err(invalid) => Err(refusal(invalid, options.locale, spec)),
    }
}

fn check_version(version: Option<&str>) -> Result<()> {
    match version {
        Some(version) if version != VERSION => Err(error(
            161,
            format!(
                "Requested collation version, {version}, does not match the version of the collator, {VERSION}"
            ),
        )),
        _ => Ok(()),
    }
}

#[cold]
fn refusal(invalid: Invalid, locale: &str, spec: &RawDocument) -> Error {
    let spec = document_text(spec);
    match invalid {
        Invalid::Locale { .. } if locale.is_empty() => bad_value(format!(
            "Field 'locale' cannot be the empty string in: {spec}"
        )),
        Invalid::Locale { .. } if locale.contains('\0') => bad_value(format!(
            "Field 'locale' cannot contain null byte. Collation spec: {spec}"
        )),
        Invalid::Locale { meant: None } => {
            bad_value(format!("Field 'locale' is invalid in: {spec}"))
        }
        Invalid::Locale { meant: Some(meant) } => bad_value(format!(
            "Field 'locale' is invalid in: {spec}. Did you mean '{meant}'?"
        )),
        Invalid::VariantUnsupported => error(
            238,
            format!("The variant of the locale is not supported by this server in: {spec}"),
        ),
        Invalid::Backwards => bad_value(format!(
            "'backwards' is invalid with 'strength' of 1 in: {spec}"
        )),
        Invalid::CaseFirst => bad_value(format!(
            "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2 in: {spec}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    fn check(spec: RawDocumentBuf, expected: std::result::Result<Option<&str>, (i32, &str)>) {
        let found = parse_collation(&spec).map_err(|e| (e.code.0, e.message.clone()));
        let found = match &found {
            Ok(collation) => Ok(collation.as_ref().map(|c| c.settings().locale)),
            Err((code, message)) => Err((*code, message.as_str())),
        };
        assert_eq!(found, expected, "{}", document_text(&spec));
    }

    #[test]
    fn collations_are_read() {
        check(rawdoc! { "locale": "simple" }, Ok(None));
        check(
            rawdoc! { "locale": "simple", "normalization": true },
            Ok(None),
        );
        check(rawdoc! { "locale": "en" }, Ok(Some("en")));
        check(
            rawdoc! { "locale": "en", "strength": 2.0, "caseFirst": null },
            Ok(Some("en")),
        );
        check(
            rawdoc! { "locale": "en", "strength": 2_i64, "version": "57.1" },
            Ok(Some("en")),
        );
        check(
            rawdoc! { "locale": "de@collation=phonebook", "maxVariable": "space" },
            Ok(Some("de@collation=phonebook")),
        );
    }

    #[test]
    fn invalid_collations_are_refused() {
        check(
            rawdoc! { "strength": 2 },
            Err((
                40414,
                "BSON field 'collation.locale' is missing but a required field",
            )),
        );
        check(
            rawdoc! { "locale": "en", "x": 1 },
            Err((40415, "BSON field 'collation.x' is an unknown field.")),
        );
        check(
            rawdoc! { "locale": 1 },
            Err((
                14,
                "BSON field 'collation.locale' is the wrong type 'int', expected type 'string'",
            )),
        );
        check(
            rawdoc! { "locale": "en", "strength": 6 },
            Err((
                2,
                "Enumeration value '6' for field 'collation.strength' is not a valid value.",
            )),
        );
        check(
            rawdoc! { "locale": "en", "caseFirst": "up" },
            Err((
                2,
                "Enumeration value 'up' for field 'collation.caseFirst' is not a valid value.",
            )),
        );
        check(
            rawdoc! { "locale": "en", "caseLevel": 1 },
            Err((
                14,
                "BSON field 'collation.caseLevel' is the wrong type 'int', expected type 'bool'",
            )),
        );
        check(
            rawdoc! { "locale": "xx" },
            Err((2, "Field 'locale' is invalid in: { locale: \"xx\" }")),
        );
        check(
            rawdoc! { "locale": "en_GB" },
            Err((
                2,
                "Field 'locale' is invalid in: { locale: \"en_GB\" }. Did you mean 'en'?",
            )),
        );
        check(
            rawdoc! { "locale": "" },
            Err((
                2,
                "Field 'locale' cannot be the empty string in: { locale: \"\" }",
            )),
        );
        check(
            rawdoc! { "locale": "de@collation=search" },
            Err((
                238,
                "The variant of the locale is not supported by this server in: { locale: \"de@collation=search\" }",
            )),
        );
        check(
            rawdoc! { "locale": "fr", "backwards": true, "strength": 1 },
            Err((
                2,
                "'backwards' is invalid with 'strength' of 1 in: { locale: \"fr\", backwards: true, strength: 1 }",
            )),
        );
        check(
            rawdoc! { "locale": "fr", "caseFirst": "upper", "strength": 2 },
            Err((
                2,
                "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2 in: { locale: \"fr\", caseFirst: \"upper\", strength: 2 }",
            )),
        );
    }
}
