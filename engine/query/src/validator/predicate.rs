//! Why a predicate on a path fails a document: the reason, and the values that were examined.

use pinion_bson::{ElementType, RawBsonRef, RawDocument};

use crate::limits::MAX_CONSIDERED_VALUES;
use crate::matcher::Details;
use crate::path::{LeafArrays, Path, walk};
use crate::value::is_true;

/// What is said of an operator.
struct Reasons {
    /// Where it does not match.
    failed: &'static str,
    /// Where it matches, and should not.
    matched: &'static str,
    /// The types of the values it can match; none where it matches any.
    types: &'static [ElementType],
}

const NUMBERS: [ElementType; 4] = [
    ElementType::Double,
    ElementType::Int32,
    ElementType::Int64,
    ElementType::Decimal128,
];
const NUMBERS_AND_BINARY: [ElementType; 5] = [
    ElementType::Double,
    ElementType::Int32,
    ElementType::Int64,
    ElementType::Decimal128,
    ElementType::Binary,
];
const TEXTS: [ElementType; 3] = [
    ElementType::String,
    ElementType::Symbol,
    ElementType::RegularExpression,
];
const GEOMETRIES: [ElementType; 2] = [ElementType::EmbeddedDocument, ElementType::Array];

/// Whether the operator is the negation of another one.
pub(super) fn is_inversion(operator: &str) -> bool {
    matches!(operator, "$ne" | "$nin")
}

fn reasons(operator: &str, operand: RawBsonRef<'_>) -> Reasons {
    let (failed, matched, types): (_, _, &'static [ElementType]) = match operator {
        "$in" | "$nin" => (
            "no matching value found in array",
            "matching value found in array",
            &[],
        ),
        "$exists" if is_true(operand) => ("path does not exist", "path does exist", &[]),
        "$exists" => ("path does exist", "path does not exist", &[]),
        "$type" => ("type did not match", "type did match", &[]),
        "$mod" => (
            "$mod did not evaluate to expected remainder",
            "$mod did evaluate to expected remainder",
            &NUMBERS,
        ),
        "$regex" => (
            "regular expression did not match",
            "regular expression did match",
            &TEXTS,
        ),
        "$size" => (
            "array length was not equal to given size",
            "array length was equal to given size",
            &[ElementType::Array],
        ),
        "$all" => (
            "array did not contain all specified values",
            "array did contain all specified values",
            &[],
        ),
        "$elemMatch" => (
            "array did not satisfy the child predicate",
            "array did satisfy the child predicate",
            &[ElementType::Array],
        ),
        "$bitsAllSet" | "$bitsAllClear" | "$bitsAnySet" | "$bitsAnyClear" => (
            "bitwise operator failed to match",
            "bitwise operator matched successfully",
            &NUMBERS_AND_BINARY,
        ),
        "$geoWithin" | "$within" => (
            "none of the considered geometries were contained within the expression's geometry",
            "at least one of the considered geometries was contained within the expression's geometry",
            &GEOMETRIES,
        ),
        "$geoIntersects" => (
            "none of the considered geometries intersected the expression's geometry",
            "at least one of the considered geometries intersected the expression's geometry",
            &GEOMETRIES,
        ),
        _ => ("comparison failed", "comparison succeeded", &[]),
    };
    Reasons {
        failed,
        matched,
        types,
    }
}

/// Writes the reason and the values, after the operator and its operand.
pub(super) fn write_predicate(
    document: &RawDocument,
    path: &str,
    operator: &str,
    operand: RawBsonRef<'_>,
    inverted: bool,
    to: &mut Details,
) {
    let arrays = match operator {
        "$exists" | "$size" | "$elemMatch" | "$all" => LeafArrays::Keep,
        _ => LeafArrays::Traverse,
    };
    let mut values = Vec::new();
    walk(
        document,
        Path::parse(path).components(),
        arrays,
        &mut |value, _| {
            values.extend(value);
            // One more than is shown means that there are more.
            values.len() > MAX_CONSIDERED_VALUES
        },
    );
    let reasons = reasons(operator, operand);
    if operator == "$exists" {
        to.reason(if inverted {
            reasons.matched
        } else {
            reasons.failed
        });
        return to.considered(&values);
    }
    if values.is_empty() && !inverted {
        return to.reason("field was missing");
    }
    let is_expected = |v: &RawBsonRef<'_>| reasons.types.contains(&v.element_type());
    if !inverted && !reasons.types.is_empty() && !values.iter().any(is_expected) {
        to.reason("type did not match");
        to.considered(&values);
        write_types("consideredType", "consideredTypes", &types_of(&values), to);
        return write_types("expectedType", "expectedTypes", reasons.types, to);
    }
    to.reason(if inverted {
        reasons.matched
    } else {
        reasons.failed
    });
    to.considered(&values);
    if operator == "$type" {
        write_types("consideredType", "consideredTypes", &types_of(&values), to);
    }
}

fn types_of(values: &[RawBsonRef<'_>]) -> Vec<ElementType> {
    let mut types = Vec::new();
    for value in values {
        if !types.contains(&value.element_type()) {
            types.push(value.element_type());
        }
    }
    types
}

fn write_types(one_name: &str, many_name: &str, types: &[ElementType], to: &mut Details) {
    match types {
        [] => {}
        [one] => to.text(one_name, pinion_bson::type_name(*one)),
        many => {
            to.out.start_array(many_name);
            for kind in many {
                to.out
                    .push(RawBsonRef::String(pinion_bson::type_name(*kind)));
            }
            to.out.end();
        }
    }
}
