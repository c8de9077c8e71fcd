//! BSON types: MongoDB's names, aliases, numbers and the class each type sorts in.

use bson::spec::ElementType;

/// The class a type sorts in; values of one class are compared with each other by value. The order
/// of the classes is MongoDB's: MinKey, undefined, null, numbers, strings and symbols, documents,
/// arrays, binary, ObjectId, boolean, date, timestamp, regular expression, DBPointer, code, code
/// with scope, MaxKey.
#[inline]
pub const fn canonical_type(kind: ElementType) -> u8 {
    match kind {
        ElementType::MinKey => 0,
        ElementType::Undefined => 1,
        ElementType::Null => 5,
        ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => {
            10
        }
        ElementType::String | ElementType::Symbol => 15,
        ElementType::EmbeddedDocument => 20,
        ElementType::Array => 25,
        ElementType::Binary => 30,
        ElementType::ObjectId => 35,
        ElementType::Boolean => 40,
        ElementType::DateTime => 45,
        ElementType::Timestamp => 47,
        ElementType::RegularExpression => 50,
        ElementType::DbPointer => 55,
        ElementType::JavaScriptCode => 60,
        ElementType::JavaScriptCodeWithScope => 65,
        ElementType::MaxKey => 127,
    }
}

/// Every type with its alias and its number, in the order of the numbers.
const ALIASES: [(&str, i32, ElementType); 21] = [
    ("minKey", -1, ElementType::MinKey),
    ("double", 1, ElementType::Double),
    ("string", 2, ElementType::String),
    ("object", 3, ElementType::EmbeddedDocument),
    ("array", 4, ElementType::Array),
    ("binData", 5, ElementType::Binary),
    ("undefined", 6, ElementType::Undefined),
    ("objectId", 7, ElementType::ObjectId),
    ("bool", 8, ElementType::Boolean),
    ("date", 9, ElementType::DateTime),
    ("null", 10, ElementType::Null),
    ("regex", 11, ElementType::RegularExpression),
    ("dbPointer", 12, ElementType::DbPointer),
    ("javascript", 13, ElementType::JavaScriptCode),
    ("symbol", 14, ElementType::Symbol),
    (
        "javascriptWithScope",
        15,
        ElementType::JavaScriptCodeWithScope,
    ),
    ("int", 16, ElementType::Int32),
    ("timestamp", 17, ElementType::Timestamp),
    ("long", 18, ElementType::Int64),
    ("decimal", 19, ElementType::Decimal128),
    ("maxKey", 127, ElementType::MaxKey),
];

/// The name MongoDB prints for a type in messages and answers to `$type` in aggregation; also its
/// alias in the `$type` query operator.
pub fn type_name(kind: ElementType) -> &'static str {
    let number = type_number(kind);
    ALIASES
        .iter()
        .find(|(_, n, _)| *n == number)
        .map(|(name, _, _)| *name)
        .expect("the table of aliases holds every type")
}

/// The number of a type as `$type` takes it: -1 for MinKey, 127 for MaxKey.
pub const fn type_number(kind: ElementType) -> i32 {
    kind as u8 as i8 as i32
}

/// The type a `$type` alias names. `"number"` names several types and is the caller's to know.
pub fn type_from_alias(alias: &str) -> Option<ElementType> {
    ALIASES
        .iter()
        .find(|(name, _, _)| *name == alias)
        .map(|(_, _, kind)| *kind)
}

/// The type a `$type` number names.
pub fn type_from_number(number: i32) -> Option<ElementType> {
    ALIASES
        .iter()
        .find(|(_, n, _)| *n == number)
        .map(|(_, _, kind)| *kind)
}

/// Whether the type is one of the four numeric ones.
#[inline]
pub const fn is_numeric(kind: ElementType) -> bool {
    canonical_type(kind) == canonical_type(ElementType::Int32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_numbers_and_names_agree() {
        for (name, number, kind) in ALIASES {
            assert_eq!(type_name(kind), name);
            assert_eq!(type_number(kind), number);
            assert_eq!(type_from_alias(name), Some(kind));
            assert_eq!(type_from_number(number), Some(kind));
        }
        assert_eq!(type_from_alias("number"), None);
        assert_eq!(type_from_number(20), None);
    }
}
