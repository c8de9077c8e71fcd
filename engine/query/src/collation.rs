//! Collation documents, read with MongoDB's errors, and comparisons that are accounted for.

use std::cmp::Ordering;
use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef, RawDocument};
use pinion_collation::{
    Alternate, CaseFirst, Collation, Invalid, MaxVariable, Options, Strength, VERSION,
};
use pinion_keystring::{Strings, decode_index_fields, encode_index_entry_in};
use pinion_wire::idl::{FieldReader, Path};
use pinion_wire::{Error, Result};

use crate::error::{bad_value, error};
use crate::text::document_text;
use crate::value::{bytes, first};
use crate::work;

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

/// A value with its strings, at any depth, as bounds of an index with this collation have them:
/// sort keys in hexadecimal. `None` for what nests too deep for a key to be read back.
pub fn with_sort_keys(collation: &Collation, value: RawBsonRef<'_>) -> Option<RawBson> {
    work::spend(bytes(value) as work::Units * COLLATED_BYTE).ok()?;
    let order = pinion_keystring::Ordering::ascending();
    let collated = |_| Strings::Collated(collation);
    let entry = encode_index_entry_in(&[value], order, collated, RawBsonRef::Null, None);
    let fields = decode_index_fields(&entry.key, &entry.type_bits, 1, order, |_| {
        Strings::SortKeys
    });
    first(&fields.ok()?).map(|(_, value)| value.into())
}

/// Whether strings stand in a value, or could stand in one that is compared with it: in documents
/// and arrays.
pub fn has_strings(value: RawBsonRef<'_>) -> bool {
    matches!(
        value,
        RawBsonRef::String(_) | RawBsonRef::Document(_) | RawBsonRef::Array(_)
    )
}

/// What a byte costs that a collation looks at.
const COLLATED_BYTE: work::Units = 15;

/// Accounts for making sort keys of `bytes` bytes, where there is a collation.
pub fn spend_sort_keys(collation: Option<&Collation>, bytes: usize) -> Result<()> {
    match collation {
        None => Ok(()),
        Some(_) => work::spend(bytes as work::Units * COLLATED_BYTE),
    }
}

/// Orders two values. A comparison that a call was refused for gives any order: the call is done
/// again.
pub(crate) fn compare(
    collation: Option<&Collation>,
    a: RawBsonRef<'_>,
    b: RawBsonRef<'_>,
) -> Ordering {
    let Some(collation) = collation else {
        return pinion_bson::compare_values(a, b);
    };
    let looked_at = bytes(a).min(bytes(b)) as work::Units;
    if work::spend(looked_at * COLLATED_BYTE).is_err() {
        return Ordering::Equal;
    }
    pinion_bson::compare_values_by(collation, a, b)
}

/// Whether two values are equal in that order.
pub(crate) fn equal(collation: Option<&Collation>, a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> bool {
    compare(collation, a, b).is_eq()
}

/// As [`compare`], of values that are owned.
pub(crate) fn compare_owned(collation: Option<&Collation>, a: &RawBson, b: &RawBson) -> Ordering {
    compare(collation, a.as_raw_bson_ref(), b.as_raw_bson_ref())
}

/// A value in the order of values, for sets of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered<'a> {
    value: RawBsonRef<'a>,
    collation: Option<&'a Collation>,
}

impl<'a> Ordered<'a> {
    pub(crate) fn new(value: RawBsonRef<'a>, collation: Option<&'a Collation>) -> Ordered<'a> {
        Ordered { value, collation }
    }
}

impl Ord for Ordered<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.collation, self.value, other.value)
    }
}

impl PartialOrd for Ordered<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ordered<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ordered<'_> {}

#[cfg(test)]
mod tests;
