//! Validators: what they refuse, and what they report of a document.

use pinion_bson::{JsonMode, RawDocumentBuf, rawdoc, to_extended_json};

use super::Validator;
use crate::expression::Variables;

fn validator(filter: RawDocumentBuf) -> Validator {
    Validator::parse(&filter, &Variables::default()).expect("the validator parses")
}

#[track_caller]
fn check_error(filter: RawDocumentBuf, code: i32, message: &str) {
    let error = Validator::parse(&filter, &Variables::default()).expect_err("refused");
    assert_eq!((error.code.0, &*error.message), (code, message));
}

#[track_caller]
fn check(filter: RawDocumentBuf, document: RawDocumentBuf, expected: Option<RawDocumentBuf>) {
    let json = |d: RawDocumentBuf| to_extended_json(&d, JsonMode::Relaxed);
    let details = validator(filter).check(&document).expect("no error");
    assert_eq!(details.map(json), expected.map(json));
}

#[test]
fn what_is_no_validator() {
    check_error(
        rawdoc! { "$where": "true" },
        2,
        "$where is not allowed in this context",
    );
    check_error(
        rawdoc! { "$text": { "$search": "x" } },
        2,
        "$text is not allowed in this context",
    );
    check_error(
        rawdoc! { "a": { "$near": [1, 2] } },
        5_626_500,
        "$geoNear, $near, and $nearSphere are not allowed in this context, as these operators require sorting \
         geospatial data. If you do not need sort, consider using $geoWithin instead. Check out \
         https://dochub.mongodb.org/core/near-sort-operation and \
         https://dochub.mongodb.org/core/nearSphere-sort-operation for more details.",
    );
    check_error(
        rawdoc! { "a": { "$nope": 1 } },
        2,
        "unknown operator: $nope",
    );
}

#[test]
fn one_predicate_stands_alone() {
    check(rawdoc! { "a": 1 }, rawdoc! { "a": 1 }, None);
    check(
        rawdoc! { "a": 1 },
        rawdoc! { "a": 2 },
        Some(rawdoc! { "operatorName": "$eq", "specifiedAs": { "a": 1 },
        "reason": "comparison failed", "consideredValue": 2 }),
    );
    check(
        rawdoc! { "a.b": { "$gt": 5 } },
        rawdoc! { "a": { "b": [1, 2] } },
        Some(
            rawdoc! { "operatorName": "$gt", "specifiedAs": { "a.b": { "$gt": 5 } },
            "reason": "comparison failed", "consideredValues": [1, 2, [1, 2]] },
        ),
    );
    check(
        rawdoc! { "a": { "$ne": 1 } },
        rawdoc! { "a": 1 },
        Some(
            rawdoc! { "operatorName": "$ne", "specifiedAs": { "a": { "$ne": 1 } },
            "reason": "comparison succeeded", "consideredValue": 1 },
        ),
    );
    check(
        rawdoc! { "a": { "$gt": 1 } },
        rawdoc! { "b": 1 },
        Some(
            rawdoc! { "operatorName": "$gt", "specifiedAs": { "a": { "$gt": 1 } },
            "reason": "field was missing" },
        ),
    );
    check(
        rawdoc! { "a": { "$exists": true } },
        rawdoc! { "b": 1 },
        Some(
            rawdoc! { "operatorName": "$exists", "specifiedAs": { "a": { "$exists": true } },
            "reason": "path does not exist" },
        ),
    );
    check(
        rawdoc! { "a": { "$regex": "x", "$options": "i" } },
        rawdoc! { "a": 1 },
        Some(rawdoc! { "operatorName": "$regex",
        "specifiedAs": { "a": { "$regex": "x", "$options": "i" } },
        "reason": "type did not match", "consideredValue": 1, "consideredType": "int",
        "expectedTypes": ["string", "symbol", "regex"] }),
    );
}

#[test]
fn several_clauses_are_named_by_their_position() {
    let greater = rawdoc! { "operatorName": "$gt", "specifiedAs": { "a": { "$gt": 5 } },
    "reason": "comparison failed", "consideredValue": 1 };
    check(
        rawdoc! { "b": 1, "a": { "$gt": 5, "$lt": 9 } },
        rawdoc! { "a": 1, "b": 1 },
        Some(rawdoc! { "operatorName": "$and", "clausesNotSatisfied": [
        { "index": 1, "details": greater.clone() } ] }),
    );
    check(
        rawdoc! { "$or": [{ "a": { "$gt": 5 } }] },
        rawdoc! { "a": 1, "b": 1 },
        Some(rawdoc! { "operatorName": "$or", "clausesNotSatisfied": [
        { "index": 0, "details": greater } ] }),
    );
    check(
        rawdoc! { "$nor": [{ "a": 2 }, { "a": { "$lt": 5 } }] },
        rawdoc! { "a": 1, "b": 1 },
        Some(rawdoc! { "operatorName": "$nor", "clausesSatisfied": [
        { "index": 1, "details": { "operatorName": "$lt",
            "specifiedAs": { "a": { "$lt": 5 } },
            "reason": "comparison succeeded", "consideredValue": 1 } } ] }),
    );
    check(
        rawdoc! { "a": { "$not": { "$lt": 5 } } },
        rawdoc! { "a": 1 },
        Some(
            rawdoc! { "operatorName": "$not", "details": { "operatorName": "$lt",
            "specifiedAs": { "a": { "$lt": 5 } },
            "reason": "comparison succeeded", "consideredValue": 1 } },
        ),
    );
}

#[test]
fn expressions_and_schemas() {
    let expression = rawdoc! { "$expr": { "$eq": ["$a", "$b"] } };
    check(
        expression.clone(),
        rawdoc! { "a": 1, "b": 2 },
        Some(
            rawdoc! { "operatorName": "$expr", "specifiedAs": expression.clone(),
            "reason": "expression did not match", "expressionResult": false },
        ),
    );
    assert!(validator(expression).uses_variables());
    let failing = rawdoc! { "$expr": { "$divide": [1, "$a"] } };
    check(
        failing.clone(),
        rawdoc! { "a": 0 },
        Some(rawdoc! { "operatorName": "$expr", "specifiedAs": failing,
        "reason": "failed to evaluate aggregation expression",
        "details": { "code": 2, "codeName": "BadValue", "errmsg": "can't $divide by zero" } }),
    );
    let schema = rawdoc! { "$jsonSchema": { "required": ["a"] } };
    check(
        schema.clone(),
        rawdoc! { "b": 1 },
        Some(
            rawdoc! { "operatorName": "$jsonSchema", "schemaRulesNotSatisfied": [
            { "operatorName": "required", "specifiedAs": { "required": ["a"] },
              "missingProperties": ["a"] } ] },
        ),
    );
    check(
        rawdoc! { "$nor": [schema.clone()] },
        rawdoc! { "a": 1 },
        Some(rawdoc! { "operatorName": "$nor", "clausesSatisfied": [
        { "index": 0, "details": { "operatorName": "$jsonSchema", "specifiedAs": schema.clone(),
          "reason": "schema matched" } } ] }),
    );
    assert!(!validator(schema).uses_variables());
}
