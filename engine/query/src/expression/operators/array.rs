//! Arrays, sets and documents.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use pinion_bson::{DocBuilder, RawBson, RawBsonRef, is_field_name};
use pinion_collation::Collation;
use pinion_wire::Result;
use rustc_hash::FxBuildHasher;

use super::{Arity, Comparing, Operator, Value};
use crate::accumulator::{Accumulator, Kind};
use crate::collation::{Ordered, compare_owned, equal};
use crate::error::error;
use crate::number::exact_i64;
use crate::text::value_text;
use crate::value::{array_document, count, elements, field, is_number, items};
use crate::work::{STEP, spend};

pub(super) const COMPARING: &[Comparing] = &[
    Comparing {
        name: "$in",
        arity: Arity::Exactly(2),
        evaluate: is_in,
    },
    Comparing {
        name: "$indexOfArray",
        arity: Arity::Between(2, 4),
        evaluate: index_of_array,
    },
    Comparing {
        name: "$setUnion",
        arity: Arity::Any,
        evaluate: set_union,
    },
    Comparing {
        name: "$setIntersection",
        arity: Arity::Any,
        evaluate: set_intersection,
    },
    Comparing {
        name: "$setDifference",
        arity: Arity::Exactly(2),
        evaluate: set_difference,
    },
    Comparing {
        name: "$setEquals",
        arity: Arity::Any,
        evaluate: set_equals,
    },
    Comparing {
        name: "$setIsSubset",
        arity: Arity::Exactly(2),
        evaluate: set_is_subset,
    },
];

pub(super) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$size",
        arity: Arity::Exactly(1),
        evaluate: size,
    },
    Operator {
        name: "$isArray",
        arity: Arity::Exactly(1),
        evaluate: |v| Ok(Value::boolean(v[0].as_array().is_some())),
    },
    Operator {
        name: "$arrayElemAt",
        arity: Arity::Exactly(2),
        evaluate: element_at,
    },
    Operator {
        name: "$first",
        arity: Arity::Exactly(1),
        evaluate: |v| end_item("$first", &v[0], false),
    },
    Operator {
        name: "$last",
        arity: Arity::Exactly(1),
        evaluate: |v| end_item("$last", &v[0], true),
    },
    Operator {
        name: "$concatArrays",
        arity: Arity::Any,
        evaluate: concat_arrays,
    },
    Operator {
        name: "$slice",
        arity: Arity::Between(2, 3),
        evaluate: slice,
    },
    Operator {
        name: "$reverseArray",
        arity: Arity::Exactly(1),
        evaluate: reverse,
    },
    Operator {
        name: "$range",
        arity: Arity::Between(2, 3),
        evaluate: range,
    },
    Operator {
        name: "$arrayToObject",
        arity: Arity::Exactly(1),
        evaluate: array_to_object,
    },
    Operator {
        name: "$objectToArray",
        arity: Arity::Exactly(1),
        evaluate: object_to_array,
    },
    Operator {
        name: "$mergeObjects",
        arity: Arity::Any,
        evaluate: merge_objects,
    },
    Operator {
        name: "$allElementsTrue",
        arity: Arity::Exactly(1),
        evaluate: |v| truths("$allElementsTrue", 17040, &v[0], true),
    },
    Operator {
        name: "$anyElementTrue",
        arity: Arity::Exactly(1),
        evaluate: |v| truths("$anyElementTrue", 17041, &v[0], false),
    },
    Operator {
        name: "$bsonSize",
        arity: Arity::Exactly(1),
        evaluate: bson_size,
    },
    Operator {
        name: "$binarySize",
        arity: Arity::Exactly(1),
        evaluate: binary_size,
    },
    Operator {
        name: "$subtype",
        arity: Arity::Exactly(1),
        evaluate: subtype,
    },
];

/// An integer argument that fits 32 bits.
fn small_integer(value: &Value<'_>) -> Option<i32> {
    exact_i64(value.or_null()).and_then(|n| i32::try_from(n).ok())
}

fn size<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    match values[0].as_array() {
        Some(array) => Ok(Value::int(count(array_document(array)) as i32)),
        None => Err(error(
            17124,
            format!(
                "The argument to $size must be an array, but was of type: {}",
                values[0].type_name()
            ),
        )),
    }
}

fn element_at<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [array, index] = values else {
        return Ok(Value::Missing);
    };
    if array.is_nullish() || index.is_nullish() {
        return Ok(Value::null());
    }
    if array.as_array().is_none() {
        return Err(error(
            28689,
            format!(
                "$arrayElemAt's first argument must be an array, but is {}",
                array.type_name()
            ),
        ));
    }
    if !is_number(index.or_null()) {
        return Err(error(
            28690,
            format!(
                "$arrayElemAt's second argument must be a numeric value, but is {}",
                index.type_name()
            ),
        ));
    }
    let at = small_integer(index).ok_or_else(|| {
        error(
            28691,
            format!(
                "$arrayElemAt's second argument must be representable as a 32-bit integer: {}",
                value_text(index.or_null())
            ),
        )
    })?;
    Ok(item_at(array, at))
}

fn item_at<'a>(array: &Value<'a>, at: i32) -> Value<'a> {
    let mut values = array.item_values();
    let at = if at < 0 {
        values.len() as i64 + i64::from(at)
    } else {
        i64::from(at)
    };
    match usize::try_from(at) {
        Ok(at) if at < values.len() => values.swap_remove(at),
        _ => Value::Missing,
    }
}

fn end_item<'a>(name: &str, array: &Value<'a>, last: bool) -> Result<Value<'a>> {
    if array.is_nullish() {
        return Ok(Value::null());
    }
    if array.as_array().is_none() {
        return Err(error(
            28689,
            format!(
                "{name}'s argument must be an array, but is {}",
                array.type_name()
            ),
        ));
    }
    Ok(item_at(array, if last { -1 } else { 0 }))
}

fn concat_arrays<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let mut out = DocBuilder::new();
    out.start_array("");
    for value in values {
        if value.is_nullish() {
            return Ok(Value::null());
        }
        let Some(array) = value.as_array() else {
            return Err(error(
                28664,
                format!(
                    "$concatArrays only supports arrays, not {}",
                    value.type_name()
                ),
            ));
        };
        items(array).for_each(|item| {
            out.push(item);
        });
    }
    out.end();
    Ok(Value::wrapped(out))
}

fn is_in<'a>(values: &[Value<'a>], collation: Option<&Collation>) -> Result<Value<'a>> {
    let Some(array) = values[1].as_array() else {
        return Err(error(
            40081,
            format!(
                "$in requires an array as a second argument, found: {}",
                values[1].type_name()
            ),
        ));
    };
    let found = values[0]
        .as_ref()
        .is_some_and(|wanted| items(array).any(|item| equal(collation, item, wanted)));
    Ok(Value::boolean(found))
}

fn slice<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if values.iter().any(Value::is_nullish) {
        return Ok(Value::null());
    }
    let Some(array) = values[0].as_array() else {
        return Err(error(
            28724,
            format!(
                "First argument to $slice must be an array, but is of type: {}",
                values[0].type_name()
            ),
        ));
    };
    let integer = |value: &Value<'_>, which: &str, codes: (i32, i32)| {
        if !is_number(value.or_null()) {
            return Err(error(
                codes.0,
                format!(
                    "{which} argument to $slice must be a numeric value, but is of type: {}",
                    value.type_name()
                ),
            ));
        }
        small_integer(value).map(i64::from).ok_or_else(|| {
            error(
                codes.1,
                format!(
                    "{which} argument to $slice can't be represented as a 32-bit integer: {}",
                    value_text(value.or_null())
                ),
            )
        })
    };
    let len = count(array_document(array)) as i64;
    let first = integer(&values[1], "Second", (28725, 28726))?;
    let (start, take) = match values.get(2) {
        None if first >= 0 => (0, first),
        None => ((len + first).max(0), -first),
        Some(n) => {
            let n = integer(n, "Third", (28727, 28728))?;
            if n <= 0 {
                return Err(error(
                    28729,
                    format!("Third argument to $slice must be positive: {n}"),
                ));
            }
            (
                if first < 0 {
                    (len + first).max(0)
                } else {
                    first
                },
                n,
            )
        }
    };
    Ok(Value::array(
        items(array).skip(start as usize).take(take as usize),
    ))
}

fn reverse<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if values[0].is_nullish() {
        return Ok(Value::null());
    }
    let Some(array) = values[0].as_array() else {
        return Err(error(
            34435,
            format!(
                "The argument to $reverseArray must be an array, but was of type: {}",
                values[0].type_name()
            ),
        ));
    };
    let reversed: Vec<RawBsonRef<'_>> = items(array).collect();
    Ok(Value::array(reversed.into_iter().rev()))
}

fn range<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let integer = |value: &Value<'_>, what: &str, codes: (i32, i32)| {
        if !is_number(value.or_null()) {
            return Err(error(
                codes.0,
                format!(
                    "$range requires a numeric {what} value, found value of type: {}",
                    value.type_name()
                ),
            ));
        }
        small_integer(value).map(i64::from).ok_or_else(|| {
            error(
                codes.1,
                format!(
                    "$range requires a {what} value that can be represented as a 32-bit integer, found value: {}",
                    value_text(value.or_null())
                ),
            )
        })
    };
    let start = integer(&values[0], "starting", (34443, 34444))?;
    let end = integer(&values[1], "ending", (34445, 34446))?;
    let step = values
        .get(2)
        .map_or(Ok(1), |step| integer(step, "step", (34447, 34448)))?;
    if step == 0 {
        return Err(error(34449, "$range requires a non-zero step value"));
    }
    // Each item takes at least eight bytes of a document.
    if (end - start) / step > (pinion_bson::MAX_INTERNAL_DOCUMENT_BYTES / 8) as i64 {
        return Err(error(146, "$range would use too much memory"));
    }
    spend(STEP * ((end - start) / step).max(0) as u64)?;
    let mut out = Vec::new();
    let mut at = start;
    while (step > 0 && at < end) || (step < 0 && at > end) {
        out.push(RawBsonRef::Int32(at as i32));
        at += step;
    }
    Ok(Value::array(out))
}

fn index_of_array<'a>(values: &[Value<'a>], collation: Option<&Collation>) -> Result<Value<'a>> {
    if values[0].is_nullish() {
        return Ok(Value::null());
    }
    let Some(array) = values[0].as_array() else {
        return Err(error(
            40090,
            format!(
                "$indexOfArray requires an array as a first argument, found: {}",
                values[0].type_name()
            ),
        ));
    };
    let bound = |value: Option<&Value<'_>>, which: &str| match value {
        None => Ok(None),
        Some(value) => {
            let at = small_integer(value).ok_or_else(|| {
                error(
                    9711600,
                    format!(
                        "$indexOfArray requires an integral {which} index, found a value of type: {}, with value: {}",
                        value.type_name(),
                        value_text(value.or_null())
                    ),
                )
            })?;
            usize::try_from(at).map(Some).map_err(|_| {
                error(
                    9711601,
                    format!("$indexOfArray requires a nonnegative {which} index, found: {at}"),
                )
            })
        }
    };
    let start = bound(values.get(2), "starting")?.unwrap_or(0);
    let end = bound(values.get(3), "ending")?.unwrap_or(usize::MAX);
    let wanted = values[1].or_null();
    let found = items(array)
        .enumerate()
        .find(|(at, item)| *at >= start && *at < end && equal(collation, *item, wanted));
    Ok(Value::int(found.map_or(-1, |(at, _)| at as i32)))
}

fn array_to_object<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if values[0].is_nullish() {
        return Ok(Value::null());
    }
    let Some(array) = values[0].as_array() else {
        return Err(error(
            40386,
            format!(
                "$arrayToObject requires an array input, found: {}",
                values[0].type_name()
            ),
        ));
    };
    let mut fields: IndexMap<&str, RawBsonRef<'_>, FxBuildHasher> = IndexMap::default();
    let mut pairs: Option<bool> = None;
    for item in items(array) {
        let (name, value) = match item {
            RawBsonRef::Array(pair) if pairs != Some(false) => {
                pairs = Some(true);
                let parts: Vec<RawBsonRef<'_>> = items(pair).take(3).collect();
                let [name, value] = parts[..] else {
                    return Err(error(
                        40397,
                        format!(
                            "$arrayToObject requires an array of size 2 arrays,found array of size: {}",
                            count(array_document(pair))
                        ),
                    ));
                };
                let RawBsonRef::String(name) = name else {
                    return Err(error(
                        40395,
                        format!(
                            "$arrayToObject requires an array of key-value pairs, where the key must be of type string. \
                             Found key type: {}",
                            crate::value::type_name(name)
                        ),
                    ));
                };
                if !is_field_name(name) {
                    return Err(error(
                        4940400,
                        "Key field cannot contain an embedded null byte",
                    ));
                }
                (name, value)
            }
            RawBsonRef::Document(pair) if pairs != Some(true) => {
                pairs = Some(false);
                if count(pair) != 2 {
                    return Err(error(
                        40392,
                        format!(
                            "$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of keys:{}",
                            count(pair)
                        ),
                    ));
                }
                let (Some(name), Some(value)) = (field(pair, "k"), field(pair, "v")) else {
                    return Err(error(
                        40393,
                        "$arrayToObject requires an object with keys 'k' and 'v'. Missing either or both keys from",
                    ));
                };
                let RawBsonRef::String(name) = name else {
                    return Err(error(
                        40394,
                        format!(
                            "$arrayToObject requires an object with keys 'k' and 'v', where the value of 'k' must be of type \
                             string. Found type: {}",
                            crate::value::type_name(name)
                        ),
                    ));
                };
                if !is_field_name(name) {
                    return Err(error(
                        4940401,
                        "Key field cannot contain an embedded null byte",
                    ));
                }
                (name, value)
            }
            RawBsonRef::Array(_) => {
                return Err(error(
                    40391,
                    "$arrayToObject requires a consistent input format. Elements must all be arrays or all be objects. Object was detected, now found: array",
                ));
            }
            RawBsonRef::Document(_) => {
                return Err(error(
                    40396,
                    "$arrayToObject requires a consistent input format. Elements must all be arrays or all be objects. Array was detected, now found: object",
                ));
            }
            other => {
                return Err(error(
                    40398,
                    format!(
                        "Unrecognised input type format for $arrayToObject: {}",
                        crate::value::type_name(other)
                    ),
                ));
            }
        };
        // The last value under a name counts, where the name came first.
        fields.insert(name, value);
    }
    let mut out = DocBuilder::new();
    for (name, value) in fields {
        out.append(name, value);
    }
    Ok(Value::document(out.finish()))
}

fn object_to_array<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if values[0].is_nullish() {
        return Ok(Value::null());
    }
    let Some(document) = values[0].as_document() else {
        return Err(error(
            40390,
            format!(
                "$objectToArray requires a document input, found: {}",
                values[0].type_name()
            ),
        ));
    };
    let mut out = DocBuilder::new();
    out.start_array("");
    for (name, value) in elements(document) {
        out.push_document();
        out.append("k", RawBsonRef::String(name));
        out.append("v", value);
        out.end();
    }
    out.end();
    Ok(Value::wrapped(out))
}

fn merge_objects<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let mut accumulator = Accumulator::new(&Kind::MergeObjects);
    for value in values {
        accumulator.add(value.as_ref())?;
    }
    Ok(Value::owned(accumulator.finish()))
}

/// The items of a set argument in comparison order, each once.
fn set_of(value: &Value<'_>, collation: Option<&Collation>) -> Option<Vec<RawBson>> {
    let array = value.as_array()?;
    let mut set: Vec<RawBson> = items(array).map(RawBson::from).collect();
    set.sort_by(|a, b| compare_owned(collation, a, b));
    set.dedup_by(|a, b| compare_owned(collation, a, b).is_eq());
    Some(set)
}

fn contains(set: &[RawBson], value: &RawBson, collation: Option<&Collation>) -> bool {
    set.binary_search_by(|other| compare_owned(collation, other, value))
        .is_ok()
}

fn from_set<'a>(set: &[RawBson]) -> Value<'a> {
    Value::array(set.iter().map(RawBson::as_raw_bson_ref))
}

fn set_union<'a>(values: &[Value<'a>], collation: Option<&Collation>) -> Result<Value<'a>> {
    let mut union: Vec<RawBson> = Vec::new();
    for value in values {
        if value.is_nullish() {
            return Ok(Value::null());
        }
        union.extend(set_of(value, collation).ok_or_else(|| {
            error(
                17043,
                format!(
                    "All operands of $setUnion must be arrays. One argument is of type: {}",
                    value.type_name()
                ),
            )
        })?);
    }
    union.sort_by(|a, b| compare_owned(collation, a, b));
    union.dedup_by(|a, b| compare_owned(collation, a, b).is_eq());
    Ok(from_set(&union))
}

fn set_intersection<'a>(values: &[Value<'a>], collation: Option<&Collation>) -> Result<Value<'a>> {
    let mut common: Option<Vec<RawBson>> = None;
    for value in values {
        if value.is_nullish() {
            return Ok(Value::null());
        }
        let set = set_of(value, collation).ok_or_else(|| {
            error(
                17047,
                format!(
                    "All operands of $setIntersection must be arrays. One argument is of type: {}",
                    value.type_name()
                ),
            )
        })?;
        common = Some(match common {
            None => set,
            Some(mut so_far) => {
                so_far.retain(|item| contains(&set, item, collation));
                so_far
            }
        });
    }
    Ok(from_set(&common.unwrap_or_default()))
}

fn set_difference<'a>(values: &[Value<'a>], collation: Option<&Collation>) -> Result<Value<'a>> {
    if values.iter().any(Value::is_nullish) {
        return Ok(Value::null());
    }
    let wrong = |code: i32, which: &str, value: &Value<'_>| {
        error(
            code,
            format!(
                "both operands of $setDifference must be arrays. {which} argument is of type: {}",
                value.type_name()
            ),
        )
    };
    let left = values[0]
        .as_array()
        .ok_or_else(|| wrong(17048, "First", &values[0]))?;
    let right = set_of(&values[1], collation).ok_or_else(|| wrong(17049, "Second", &values[1]))?;
    let mut seen: BTreeSet<Ordered<'_>> = right
        .iter()
        .map(|item| Ordered::new(item.as_raw_bson_ref(), collation))
        .collect();
    let left = items(left).filter(|item| seen.insert(Ordered::new(*item, collation)));
    Ok(Value::array(left))
}

fn set_equals<'a>(values: &[Value<'a>], collation: Option<&Collation>) -> Result<Value<'a>> {
    if values.len() < 2 {
        return Err(error(
            17045,
            format!(
                "$setEquals needs at least two arguments had: {}",
                values.len()
            ),
        ));
    }
    let mut first: Option<Vec<RawBson>> = None;
    let mut equal = true;
    for (at, value) in values.iter().enumerate() {
        let set = set_of(value, collation).ok_or_else(|| {
            error(
                5_887_502,
                format!(
                    "All operands of $setEquals must be arrays. {}-th argument is of type: {}",
                    at + 1,
                    value.type_name()
                ),
            )
        })?;
        match &first {
            None => first = Some(set),
            Some(first) => {
                equal &= first.len() == set.len()
                    && first
                        .iter()
                        .zip(&set)
                        .all(|(a, b)| compare_owned(collation, a, b).is_eq());
            }
        }
    }
    Ok(Value::boolean(equal))
}

fn set_is_subset<'a>(values: &[Value<'a>], collation: Option<&Collation>) -> Result<Value<'a>> {
    let wrong = |code: i32, which: &str, value: &Value<'_>| {
        error(
            code,
            format!(
                "both operands of $setIsSubset must be arrays. {which} argument is of type: {}",
                value.type_name()
            ),
        )
    };
    let left = set_of(&values[0], collation).ok_or_else(|| wrong(17046, "First", &values[0]))?;
    let right = set_of(&values[1], collation).ok_or_else(|| wrong(17042, "Second", &values[1]))?;
    Ok(Value::boolean(
        left.iter().all(|item| contains(&right, item, collation)),
    ))
}

fn truths<'a>(name: &str, code: i32, value: &Value<'a>, all: bool) -> Result<Value<'a>> {
    let Some(array) = value.as_array() else {
        return Err(error(
            code,
            format!(
                "{name}'s argument must be an array, but is {}",
                value.type_name()
            ),
        ));
    };
    let mut truths = items(array).map(crate::value::is_true);
    Ok(Value::boolean(if all {
        truths.all(|t| t)
    } else {
        truths.any(|t| t)
    }))
}

fn bson_size<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if values[0].is_nullish() {
        return Ok(Value::null());
    }
    match values[0].as_document() {
        Some(document) => Ok(Value::int(document.as_bytes().len() as i32)),
        None => Err(error(
            31393,
            format!(
                "$bsonSize requires a document input, found: {}",
                values[0].type_name()
            ),
        )),
    }
}

fn binary_size<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    match values[0].as_ref() {
        None => Ok(Value::null()),
        Some(value) if crate::value::is_nullish(value) => Ok(Value::null()),
        Some(RawBsonRef::String(text)) => Ok(Value::int(text.len() as i32)),
        Some(RawBsonRef::Binary(binary)) => Ok(Value::int(binary.bytes.len() as i32)),
        Some(other) => Err(error(
            51276,
            format!(
                "$binarySize requires a string or BinData argument, found: {}",
                crate::value::type_name(other)
            ),
        )),
    }
}

fn subtype<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    match values[0].as_ref() {
        Some(RawBsonRef::Binary(binary)) => Ok(Value::int(i32::from(u8::from(binary.subtype)))),
        _ if values[0].is_nullish() => Ok(Value::null()),
        _ => Err(error(
            10_389_300,
            format!(
                "$subtype requires a BinData argument, found: {}",
                values[0].type_name()
            ),
        )),
    }
}
