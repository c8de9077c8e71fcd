//! Whether a value satisfies a schema.

use std::cmp::Ordering;

use pinion_bson::{Decimal, Number, RawArray, RawBson, RawBsonRef, RawDocument, compare_values};

use super::rules::{AdditionalProperties, Demands, Dependency, Others, Schema, Test};
use super::unordered::{Unordered, first_duplicate};
use crate::matcher::TypeSet;
use crate::path::{LeafArrays, Path, walk};
use crate::regex::Regex;
use crate::value::{array_document, count, elements, field, is_nan, is_number, items};
use crate::work;

/// The subtype of binary data that holds an encrypted value.
const ENCRYPTED_SUBTYPE: u8 = 6;
/// Where an encrypted value has its type before encryption: after its own kind and the number of
/// its key.
const ENCRYPTED_TYPE_AT: usize = 17;

impl Schema {
    /// Whether the whole document satisfies the schema.
    pub(crate) fn accepts_document(&self, document: &RawDocument) -> bool {
        self.accepts(RawBsonRef::Document(document))
    }

    pub(super) fn accepts(&self, value: RawBsonRef<'_>) -> bool {
        self.rules.iter().all(|rule| rule.test.accepts(value))
    }
}

impl Test {
    /// Whether the value satisfies the rule. A call that was refused for its work fails at its end,
    /// whatever comes of this.
    pub(super) fn accepts(&self, value: RawBsonRef<'_>) -> bool {
        if work::spend(work::STEP).is_err() {
            return false;
        }
        match (self, value) {
            (Test::AllOf(schemas), _) => schemas.iter().all(|schema| schema.accepts(value)),
            (Test::AnyOf(schemas), _) => schemas.iter().any(|schema| schema.accepts(value)),
            (Test::OneOf(schemas), _) => {
                let mut accepting = schemas.iter().filter(|schema| schema.accepts(value));
                accepting.next().is_some() && accepting.next().is_none()
            }
            (Test::Not(schema), _) => !schema.accepts(value),
            (Test::Enum(values), _) => is_listed(values, value),
            (Test::Type(types), _) => types.contains(value.element_type()),
            (Test::Encrypted(types), _) => is_encrypted(value, types.as_ref()),
            (_, RawBsonRef::String(text)) => self.accepts_text(text),
            (_, RawBsonRef::Array(array)) => self.accepts_array(array),
            (_, RawBsonRef::Document(document)) => self.accepts_object(document),
            (_, number) if is_number(number) => self.accepts_number(number),
            _ => true,
        }
    }

    fn accepts_text(&self, text: &str) -> bool {
        match self {
            Test::Pattern(regex) => regex.is_match(text),
            Test::MaxLength(most) => length(text) <= *most,
            Test::MinLength(least) => length(text) >= *least,
            _ => true,
        }
    }

    fn accepts_number(&self, number: RawBsonRef<'_>) -> bool {
        match self {
            Test::MultipleOf(divisor) => is_multiple(number, *divisor),
            Test::Maximum { limit, exclusive } => match compare_numbers(number, limit) {
                Some(Ordering::Equal) => !exclusive,
                order => order == Some(Ordering::Less),
            },
            Test::Minimum { limit, exclusive } => match compare_numbers(number, limit) {
                Some(Ordering::Equal) => !exclusive,
                order => order == Some(Ordering::Greater),
            },
            _ => true,
        }
    }

    fn accepts_array(&self, array: &RawArray) -> bool {
        match self {
            Test::MinItems(least) => count(array_document(array)) as i64 >= *least,
            Test::MaxItems(most) => count(array_document(array)) as i64 <= *most,
            Test::UniqueItems => first_duplicate(items(array)).is_none(),
            Test::Items(schema) => items(array).all(|item| schema.accepts(item)),
            Test::ItemsByPosition(schemas) => schemas
                .iter()
                .zip(items(array))
                .all(|(schema, item)| schema.accepts(item)),
            Test::AdditionalItems { from, others } => {
                items(array).skip(*from).all(|item| others.accepts(item))
            }
            _ => true,
        }
    }

    fn accepts_object(&self, object: &RawDocument) -> bool {
        match self {
            Test::Properties(properties) => properties.iter().all(|property| {
                let mut found = false;
                let accepted = reaches(object, &property.path, |value| {
                    found = true;
                    property.schema.accepts(value)
                });
                accepted || !found
            }),
            Test::PatternProperties(patterns) => elements(object).all(|(name, value)| {
                let mut concerned = patterns.iter().filter(|p| p.pattern.is_match(name));
                concerned.all(|p| p.schema.accepts(value))
            }),
            Test::AdditionalProperties(additional) => additional
                .of(object)
                .all(|(_, value)| additional.others.accepts(value)),
            Test::Required(paths) => missing(object, paths).next().is_none(),
            Test::MinProperties(least) => count(object) as i64 >= *least,
            Test::MaxProperties(most) => count(object) as i64 <= *most,
            Test::Dependencies(all) => all.iter().all(|dependency| dependency.is_met(object)),
            _ => true,
        }
    }
}

impl Others {
    pub(super) fn accepts(&self, value: RawBsonRef<'_>) -> bool {
        match self {
            Others::Forbidden => false,
            Others::Schema(schema) => schema.accepts(value),
        }
    }
}

impl AdditionalProperties {
    /// The fields that no other keyword speaks of.
    pub(super) fn of<'a>(
        &'a self,
        object: &'a RawDocument,
    ) -> impl Iterator<Item = (&'a str, RawBsonRef<'a>)> {
        let is_named = |name: &str| {
            self.named.contains(name) || self.patterns.iter().any(|p: &Regex| p.is_match(name))
        };
        elements(object).filter(move |(name, _)| work::spend(work::STEP).is_ok() && !is_named(name))
    }
}

impl Dependency {
    pub(super) fn is_met(&self, object: &RawDocument) -> bool {
        !exists(object, &self.property)
            || match &self.demands {
                Demands::Properties(paths) => missing(object, paths).next().is_none(),
                Demands::Schema(schema) => schema.accepts_document(object),
            }
    }
}

/// Those of the paths that lead to nothing.
pub(super) fn missing<'a>(
    object: &'a RawDocument,
    paths: &'a [Path],
) -> impl Iterator<Item = &'a Path> {
    paths.iter().filter(|path| !exists(object, path))
}

fn exists(object: &RawDocument, path: &Path) -> bool {
    reaches(object, path, |_| true)
}

/// Whether the path leads to a value for which `accepts` holds.
pub(super) fn reaches<'a>(
    object: &'a RawDocument,
    path: &Path,
    mut accepts: impl FnMut(RawBsonRef<'a>) -> bool,
) -> bool {
    match path.components() {
        // Nearly all names are without dots.
        [name] => field(object, &name.name).is_some_and(accepts),
        components => walk(object, components, LeafArrays::Keep, &mut |value, _| {
            value.is_some_and(&mut accepts)
        }),
    }
}

/// The length of a text in code points.
fn length(text: &str) -> i64 {
    // A call that was refused for its work fails at its end.
    let _ = work::spend(text.len() as work::Units);
    text.chars().count() as i64
}

/// The order of two numbers; none where one of them alone is not a number.
fn compare_numbers(number: RawBsonRef<'_>, limit: &RawBson) -> Option<Ordering> {
    let limit = limit.as_raw_bson_ref();
    match (is_nan(number), is_nan(limit)) {
        (false, false) => Some(compare_values(number, limit)),
        (true, true) => Some(Ordering::Equal),
        _ => None,
    }
}

/// Whether the number is a multiple, in decimal arithmetic: so 0.3 is one of 0.1.
fn is_multiple(number: RawBsonRef<'_>, divisor: Decimal) -> bool {
    Number::from_value(number).is_some_and(|number| (number.to_decimal() % divisor).is_zero())
}

fn is_listed(values: &[RawBson], value: RawBsonRef<'_>) -> bool {
    let value = Unordered::new(value);
    values
        .binary_search_by(|listed| compare_values(listed.as_raw_bson_ref(), value.value()))
        .is_ok()
}

fn is_encrypted(value: RawBsonRef<'_>, types: Option<&TypeSet>) -> bool {
    let RawBsonRef::Binary(data) = value else {
        return false;
    };
    if u8::from(data.subtype) != ENCRYPTED_SUBTYPE {
        return false;
    }
    let Some(types) = types else { return true };
    let before = data.bytes.get(ENCRYPTED_TYPE_AT).copied();
    before
        .and_then(|number| pinion_bson::type_from_number(i32::from(number as i8)))
        .is_some_and(|kind| types.contains(kind))
}
