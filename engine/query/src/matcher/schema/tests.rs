//! Schemas against documents, their errors, and the details of their failures.

use pinion_bson::{Decimal, RawDocumentBuf, rawbson, rawdoc};

use super::{Details, parse_schema, schema_details};
use crate::matcher::Matcher;

#[track_caller]
fn check(schema: RawDocumentBuf, document: RawDocumentBuf, expected: bool) {
    let filter = rawdoc! { "$jsonSchema": schema };
    let matcher = Matcher::parse(&filter).expect("the schema parses");
    let matched = matcher.matches(&document).expect("matching does not fail");
    assert_eq!(matched, expected, "{filter:?} on {document:?}");
}

/// A schema of the property `a` against several values of it.
macro_rules! check_values {
    ($schema:tt, $($value:expr => $expected:expr),+ $(,)?) => {
        $(check(
            rawdoc! { "properties": { "a": $schema } },
            rawdoc! { "_id": 1, "a": $value },
            $expected,
        );)+
    };
}

#[track_caller]
fn check_error(schema: RawDocumentBuf, code: i32, message: &str) {
    let error = Matcher::parse(&rawdoc! { "$jsonSchema": schema.clone() }).expect_err("refused");
    assert_eq!(
        (error.code.0, error.message.as_str()),
        (code, message),
        "{schema:?}"
    );
}

#[track_caller]
fn check_details(schema: RawDocumentBuf, document: RawDocumentBuf, expected: RawDocumentBuf) {
    let schema = parse_schema(&schema).expect("the schema parses");
    assert!(!schema.accepts_document(&document));
    let mut details = Details::default();
    schema_details(&schema, &document, &mut details);
    assert_eq!(
        pinion_bson::to_extended_json(&details.finish(), pinion_bson::JsonMode::Relaxed),
        pinion_bson::to_extended_json(&expected, pinion_bson::JsonMode::Relaxed),
    );
}

#[test]
fn restrictions_concern_their_own_type() {
    check_values!({ "minimum": 5 }, 5 => true, 4 => false, 5.5 => true, "x" => true, rawdoc! {} => true);
    check_values!({ "maximum": 5, "exclusiveMaximum": true }, 5 => false, 4.99 => true);
    check_values!({ "minimum": 0 }, f64::NAN => false, f64::INFINITY => true, -0.0 => true);
    check_values!({ "minLength": 2, "maxLength": 3 }, "日本" => true, "a" => false, "abcd" => false, 1 => true);
    check_values!({ "pattern": "^a" }, "ab" => true, "ba" => false, 1 => true);
    check_values!({ "minItems": 1, "maxItems": 2 }, rawbson!([1]) => true, rawbson!([1, 2, 3]) => false, 7 => true);
    check_values!({ "minProperties": 1 }, rawdoc! {} => false, rawdoc! { "x": 1 } => true, 7 => true);
    check_values!({ "required": ["x"] }, rawdoc! { "x": null } => true, rawdoc! { "y": 1 } => false, 1 => true);
    // Arrays are not looked through.
    check_values!({ "bsonType": "int" }, 1 => true, rawbson!([1]) => false);
    check_values!({ "type": "number" }, 1.5 => true, "1" => false);
    check_values!({ "bsonType": ["null", "bool"] }, true => true, 0 => false);
    check(
        rawdoc! { "properties": { "a": { "bsonType": "int" } } },
        rawdoc! { "b": 1 },
        true,
    );
}

#[test]
fn what_concerns_other_values_has_no_effect_on_documents() {
    for schema in [
        rawdoc! { "minimum": 5 },
        rawdoc! { "pattern": "(" },
        rawdoc! { "items": { "bsonType": "int" } },
        rawdoc! { "type": "object" },
        rawdoc! {},
    ] {
        check(schema, rawdoc! { "a": 1 }, true);
    }
    check(rawdoc! { "bsonType": "string" }, rawdoc! { "a": 1 }, false);
    check(rawdoc! { "enum": [1, "x"] }, rawdoc! { "a": 1 }, false);
    check(
        rawdoc! { "enum": [1, { "b": 2, "a": 1 }] },
        rawdoc! { "a": 1, "b": 2 },
        true,
    );
}

#[test]
fn multiples_are_decimal() {
    check_values!({ "multipleOf": 0.1 }, 0.3 => true, 0.35 => false, 7 => true, f64::NAN => false);
    check_values!({ "multipleOf": 3 }, 9i64 => true, 10 => false, "x" => true);
    let tenth = Decimal::from_f64_15(0.1).pack();
    check_values!({ "multipleOf": tenth }, 0.2 => true, 0.25 => false);
}

#[test]
fn arrays() {
    check_values!({ "items": { "bsonType": "int" } }, rawbson!([1, 2]) => true, rawbson!([1, "x"]) => false, rawdoc! {} => true);
    check_values!({ "items": [{ "bsonType": "int" }, {}] }, rawbson!([1]) => true, rawbson!(["x"]) => false, rawbson!([1, "x", "y"]) => true);
    check_values!(
        { "items": [{}], "additionalItems": false }, rawbson!([1]) => true, rawbson!([1, 2]) => false,
    );
    check_values!(
        { "items": [{}], "additionalItems": { "bsonType": "int" } }, rawbson!([1, 2]) => true, rawbson!([1, "x"]) => false,
    );
    check_values!({ "additionalItems": false }, rawbson!([1, 2]) => true);
    check_values!(
        { "uniqueItems": true },
        rawbson!([1, 1.0]) => false,
        rawbson!([0, false]) => true,
        rawbson!([{ "a": 1, "b": 2 }, { "b": 2, "a": 1 }]) => false,
        rawbson!([[{ "a": 1, "b": 2 }], [{ "b": 2, "a": 1 }]]) => false,
        rawbson!([[1, 2], [2, 1]]) => true,
    );
}

#[test]
fn objects() {
    let schema = rawdoc! {
        "properties": { "_id": {}, "a": { "bsonType": "int" } },
        "patternProperties": { "^x": { "bsonType": "string" } },
        "additionalProperties": false,
    };
    check(
        schema.clone(),
        rawdoc! { "_id": 1, "a": 1, "x1": "s" },
        true,
    );
    check(schema.clone(), rawdoc! { "_id": 1, "x1": 1 }, false);
    check(schema, rawdoc! { "_id": 1, "other": 1 }, false);
    let others = rawdoc! { "additionalProperties": { "bsonType": "int" } };
    check(others.clone(), rawdoc! { "a": 1, "b": 2 }, true);
    check(others, rawdoc! { "a": 1, "b": "x" }, false);
    let depends = rawdoc! { "dependencies": { "a": ["b"], "c": { "required": ["d"] } } };
    check(depends.clone(), rawdoc! { "x": 1 }, true);
    check(depends.clone(), rawdoc! { "a": 1 }, false);
    check(depends.clone(), rawdoc! { "a": 1, "b": 1 }, true);
    check(depends, rawdoc! { "c": 1 }, false);
}

#[test]
fn alternatives() {
    let int = rawdoc! { "bsonType": "int" };
    let small = rawdoc! { "maximum": 5 };
    check_values!({ "allOf": [int.clone(), small.clone()] }, 3 => true, 7 => false, 3.0 => false);
    check_values!({ "anyOf": [int.clone(), small.clone()] }, 7 => true, 3.0 => true, 7.0 => false);
    check_values!({ "oneOf": [int.clone(), small.clone()] }, 7 => true, 3 => false, 7.0 => false);
    check_values!({ "not": int.clone() }, 7 => false, "x" => true);
    check_values!({ "enum": [1, "x", { "a": 1, "b": 2 }, [1]] }, 1.0 => true, "y" => false,
        rawdoc! { "b": 2, "a": 1 } => true, rawbson!([1]) => true);
}

#[test]
fn encrypted_values() {
    use pinion_bson::{BinarySubtype, RawBinaryRef, RawBsonRef};
    let mut bytes = vec![1u8; 40];
    bytes[17] = 2;
    let value = |subtype| {
        RawBsonRef::Binary(RawBinaryRef {
            subtype,
            bytes: &bytes,
        })
    };
    let document = |subtype| {
        let mut out = pinion_bson::DocBuilder::new();
        out.append("a", value(subtype));
        out.finish()
    };
    let schema = |inner: RawDocumentBuf| rawdoc! { "properties": { "a": { "encrypt": inner } } };
    check(schema(rawdoc! {}), document(BinarySubtype::Encrypted), true);
    check(schema(rawdoc! {}), document(BinarySubtype::Generic), false);
    check(
        schema(rawdoc! { "bsonType": "string" }),
        document(BinarySubtype::Encrypted),
        true,
    );
    check(
        schema(rawdoc! { "bsonType": "int" }),
        document(BinarySubtype::Encrypted),
        false,
    );
    check_error(
        rawdoc! { "properties": { "a": { "encrypt": {}, "bsonType": "int" } } },
        9,
        "$jsonSchema keyword 'encrypt' cannot be used in conjunction with 'bsonType'",
    );
}

#[test]
fn inside_other_operators() {
    let matches = |filter: RawDocumentBuf, document: RawDocumentBuf| {
        let matcher = Matcher::parse(&filter).expect("the filter parses");
        matcher.matches(&document).expect("matching does not fail")
    };
    let int = rawdoc! { "$jsonSchema": { "properties": { "a": { "bsonType": "int" } } } };
    assert!(matches(
        rawdoc! { "$and": [int.clone(), { "a": 1 }] },
        rawdoc! { "a": 1 }
    ));
    assert!(matches(
        rawdoc! { "$or": [int.clone(), { "a": "x" }] },
        rawdoc! { "a": "x" }
    ));
    assert!(!matches(
        rawdoc! { "$nor": [int.clone()] },
        rawdoc! { "a": 1 }
    ));
    let items = rawdoc! { "l": { "$elemMatch": int } };
    assert!(matches(
        items.clone(),
        rawdoc! { "l": [{ "a": "x" }, { "a": 1 }] }
    ));
    assert!(!matches(items, rawdoc! { "l": [{ "a": "x" }] }));
}

#[test]
fn errors() {
    check_error(rawdoc! { "x": 1 }, 9, "Unknown $jsonSchema keyword: x");
    check_error(
        rawdoc! { "$ref": 1 },
        9,
        "$jsonSchema keyword '$ref' is not currently supported",
    );
    check_error(
        rawdoc! { "type": "object", "bsonType": "object" },
        9,
        "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'",
    );
    check_error(
        rawdoc! { "type": "integer" },
        9,
        "$jsonSchema type 'integer' is not currently supported.",
    );
    check_error(rawdoc! { "type": "int" }, 2, "Unknown type name alias: int");
    check_error(
        rawdoc! { "bsonType": [] },
        9,
        "$jsonSchema keyword 'bsonType' must name at least one type",
    );
    check_error(
        rawdoc! { "minLength": "x" },
        9,
        "Expected a number in: minLength: \"x\"",
    );
    check_error(
        rawdoc! { "minLength": -1 },
        9,
        "Expected a non-negative number in: minLength: -1",
    );
    check_error(
        rawdoc! { "minLength": 1.5 },
        9,
        "Expected an integer: minLength: 1.5",
    );
    check_error(
        rawdoc! { "exclusiveMinimum": true },
        9,
        "$jsonSchema keyword 'minimum' must be a present if exclusiveMinimum is present",
    );
    check_error(
        rawdoc! { "required": [] },
        9,
        "$jsonSchema keyword 'required' cannot be an empty array",
    );
    check_error(
        rawdoc! { "title": 1 },
        14,
        "$jsonSchema keyword 'title' must be of type string",
    );
}

#[test]
fn details_of_properties_and_of_what_is_missing() {
    check_details(
        rawdoc! {
            "bsonType": "object",
            "title": "Students",
            "required": ["name", "year", "address"],
            "properties": {
                "year": { "bsonType": "int", "minimum": 2017, "description": "the year" },
                "gpa": { "bsonType": ["double"] },
            },
        },
        rawdoc! { "_id": 1, "name": "n", "year": 2000, "gpa": 3 },
        rawdoc! {
            "operatorName": "$jsonSchema",
            "title": "Students",
            "schemaRulesNotSatisfied": [
                { "operatorName": "properties", "propertiesNotSatisfied": [
                    { "propertyName": "year", "description": "the year", "details": [
                        { "operatorName": "minimum", "specifiedAs": { "minimum": 2017 },
                          "reason": "comparison failed", "consideredValue": 2000 },
                    ] },
                    { "propertyName": "gpa", "details": [
                        { "operatorName": "bsonType", "specifiedAs": { "bsonType": ["double"] },
                          "reason": "type did not match", "consideredValue": 3,
                          "consideredType": "int" },
                    ] },
                ] },
                { "operatorName": "required",
                  "specifiedAs": { "required": ["name", "year", "address"] },
                  "missingProperties": ["address"] },
            ],
        },
    );
}

#[test]
fn details_of_arrays_and_alternatives() {
    check_details(
        rawdoc! {
            "properties": { "a": { "items": { "bsonType": "int" }, "uniqueItems": true } },
            "additionalProperties": false,
            "oneOf": [{ "required": ["a"] }, { "required": ["_id"] }],
        },
        rawdoc! { "_id": 1, "a": [1, "x", 1] },
        rawdoc! {
            "operatorName": "$jsonSchema",
            "schemaRulesNotSatisfied": [
                { "operatorName": "properties", "propertiesNotSatisfied": [
                    { "propertyName": "a", "details": [
                        { "operatorName": "uniqueItems", "specifiedAs": { "uniqueItems": true },
                          "reason": "found a duplicate item", "consideredValue": [1, "x", 1],
                          "duplicatedValue": 1 },
                        { "operatorName": "items",
                          "reason": "At least one item did not match the sub-schema",
                          "itemIndex": 1, "details": [
                            { "operatorName": "bsonType", "specifiedAs": { "bsonType": "int" },
                              "reason": "type did not match", "consideredValue": "x",
                              "consideredType": "string" },
                          ] },
                    ] },
                ] },
                { "operatorName": "additionalProperties",
                  "specifiedAs": { "additionalProperties": false },
                  "additionalProperties": ["_id"] },
                { "operatorName": "oneOf", "reason": "more than one subschema matched",
                  "matchingSchemaIndexes": [0, 1] },
            ],
        },
    );
}

#[test]
fn details_that_are_too_large_are_left_out() {
    let long = "x".repeat(5 << 20);
    let rule = rawdoc! { "bsonType": "int" };
    let schema = rawdoc! { "properties": { "a": { "allOf": [rule.clone(), rule.clone(), rule] } } };
    let schema = parse_schema(&schema).expect("the schema parses");
    let mut details = Details::default();
    schema_details(&schema, &rawdoc! { "a": long }, &mut details);
    let details = details.finish();
    assert!(
        details
            .get_str("reason")
            .is_ok_and(|reason| reason.contains("largest size"))
    );
}
