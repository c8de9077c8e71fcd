//! What members of MongoDB 4.4 refuse of filters, validators and indexes, though the entry has a
//! form that they know: a member that applies such an entry stops.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_wire::Result;

use crate::oplog_format::check_v44_can_follow;

/// The operators and expressions that MongoDB 4.4 has in filters, and in what `$expr` takes.
#[rustfmt::skip]
const OPERATORS: [&str; 199] = [
    "$abs", "$accumulator", "$acos", "$acosh", "$add", "$addFields", "$addToSet", "$all", "$allElementsTrue",
    "$alwaysFalse", "$alwaysTrue", "$and", "$anyElementTrue", "$arrayElemAt", "$arrayToObject", "$asin", "$asinh",
    "$atan", "$atan2", "$atanh", "$avg", "$binarySize", "$bitsAllClear", "$bitsAllSet", "$bitsAnyClear",
    "$bitsAnySet", "$box", "$bsonSize", "$bucket", "$bucketAuto", "$caseSensitive", "$ceil", "$center",
    "$centerSphere", "$cmp", "$collStats", "$comment", "$concat", "$concatArrays", "$cond", "$const", "$convert",
    "$cos", "$cosh", "$count", "$dateFromParts", "$dateFromString", "$dateToParts", "$dateToString", "$dayOfMonth",
    "$dayOfWeek", "$dayOfYear", "$db", "$degreesToRadians", "$diacriticSensitive", "$divide", "$elemMatch", "$eq",
    "$exists", "$exp", "$expr", "$facet", "$filter", "$first", "$floor", "$function", "$geoIntersects", "$geoNear",
    "$geoWithin", "$geometry", "$graphLookup", "$group", "$gt", "$gte", "$hour", "$id", "$ifNull", "$in",
    "$indexOfArray", "$indexOfBytes", "$indexOfCP", "$indexStats", "$isArray", "$isNumber", "$isoDayOfWeek",
    "$isoWeek", "$isoWeekYear", "$jsonSchema", "$language", "$last", "$let", "$limit", "$literal", "$ln", "$log",
    "$log10", "$lookup", "$lt", "$lte", "$ltrim", "$map", "$match", "$max", "$maxDistance", "$merge", "$mergeObjects",
    "$meta", "$millisecond", "$min", "$minDistance", "$minute", "$mod", "$month", "$multiply", "$ne", "$near",
    "$nearSphere", "$nin", "$nor", "$not", "$objectToArray", "$options", "$or", "$out", "$planCacheStats", "$polygon",
    "$pow", "$project", "$push", "$radiansToDegrees", "$range", "$redact", "$reduce", "$ref", "$regex", "$regexFind",
    "$regexFindAll", "$regexMatch", "$replaceAll", "$replaceOne", "$replaceRoot", "$replaceWith", "$reverseArray",
    "$round", "$rtrim", "$sample", "$search", "$second", "$set", "$setDifference", "$setEquals", "$setIntersection",
    "$setIsSubset", "$setUnion", "$sin", "$sinh", "$size", "$skip", "$slice", "$sort", "$sortByCount", "$split",
    "$sqrt", "$stdDevPop", "$stdDevSamp", "$strLenBytes", "$strLenCP", "$strcasecmp", "$substr", "$substrBytes",
    "$substrCP", "$subtract", "$sum", "$switch", "$tan", "$tanh", "$text", "$toBool", "$toDate", "$toDecimal",
    "$toDouble", "$toInt", "$toLong", "$toLower", "$toObjectId", "$toString", "$toUpper", "$trim", "$trunc", "$type",
    "$unionWith", "$uniqueDocs", "$unset", "$unwind", "$week", "$where", "$within", "$year", "$zip",
];

/// Operators that 4.4 has in the filter of a partial index.
const PARTIAL: [&str; 7] = ["$eq", "$exists", "$gt", "$gte", "$lt", "$lte", "$type"];

/// Refuses operators that MongoDB 4.4 does not have, where its members follow.
///
/// # Errors
/// `InvalidOptions` with the name of the first.
pub(crate) fn check_operators(filter: &RawDocument) -> Result<()> {
    match unknown_operator(RawBsonRef::Document(filter)) {
        Some(name) => check_v44_can_follow(true, name),
        None => Ok(()),
    }
}

fn unknown_operator(value: RawBsonRef<'_>) -> Option<&str> {
    match value {
        RawBsonRef::Document(document) => {
            pinion_bson::elements(document).find_map(|(name, value)| {
                match name.starts_with('$') && OPERATORS.binary_search(&name).is_err() {
                    true => Some(name),
                    false => unknown_operator(value),
                }
            })
        }
        RawBsonRef::Array(array) => pinion_bson::values(array).find_map(unknown_operator),
        _ => None,
    }
}

/// Whether MongoDB 4.4 takes this for the filter of a partial index: conditions on fields, or one
/// `$and` of them.
pub(crate) fn is_partial_filter(filter: &RawDocument) -> bool {
    let mut conditions = 0;
    for (name, value) in pinion_bson::elements(filter) {
        if name == "$and" {
            let RawBsonRef::Array(list) = value else {
                return false;
            };
            let is_one = |value: RawBsonRef<'_>| {
                let document = value.as_document();
                document.is_some_and(|document| {
                    let mut fields = pinion_bson::elements(document);
                    let only = fields.next().filter(|_| fields.next().is_none());
                    only.is_some_and(|(name, value)| {
                        !name.starts_with('$') && conditions_on(value) == Some(1)
                    })
                })
            };
            return pinion_bson::elements(filter).count() == 1
                && pinion_bson::values(list).all(is_one);
        }
        match conditions_on(value).filter(|_| !name.starts_with('$')) {
            Some(count) => conditions += count,
            None => return false,
        }
    }
    conditions > 0
}

/// How many conditions the value of a field is; `None` if it is one that a partial index does not
/// have.
fn conditions_on(value: RawBsonRef<'_>) -> Option<usize> {
    let RawBsonRef::Document(document) = value else {
        return (!matches!(value, RawBsonRef::RegularExpression(_))).then_some(1);
    };
    let operators: Vec<_> = pinion_bson::elements(document).collect();
    if operators
        .first()
        .is_none_or(|(name, _)| !name.starts_with('$'))
    {
        return Some(1);
    }
    let is_plain = |(name, value): &(&str, RawBsonRef<'_>)| {
        PARTIAL.contains(name) && (*name != "$exists" || pinion_wire::idl::truthy(*value))
    };
    operators.iter().all(is_plain).then_some(operators.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    #[test]
    fn operators_of_later_versions_are_found() {
        assert!(OPERATORS.is_sorted());
        let check = |filter: RawDocumentBuf, expected: Option<&str>| {
            assert_eq!(
                unknown_operator(RawBsonRef::Document(&filter)),
                expected,
                "{filter:?}"
            );
        };
        check(
            rawdoc! { "a": { "$gt": 1 }, "$or": [{ "b": { "$in": [1] } }] },
            None,
        );
        check(
            rawdoc! { "$expr": { "$eq": ["$a", { "$toInt": "$b" }] } },
            None,
        );
        check(rawdoc! { "$jsonSchema": { "required": ["a"] } }, None);
        check(
            rawdoc! { "$expr": { "$gt": [{ "$dateDiff": {} }, 1] } },
            Some("$dateDiff"),
        );
        check(
            rawdoc! { "$and": [{ "a": { "$sampleRate": 1 } }] },
            Some("$sampleRate"),
        );
    }

    #[test]
    fn filters_of_partial_indexes() {
        let check = |filter: RawDocumentBuf, expected: bool| {
            assert_eq!(is_partial_filter(&filter), expected, "{filter:?}");
        };
        check(
            rawdoc! { "a": 1, "b": { "$gt": 1, "$lt": 5 }, "c": { "$exists": true } },
            true,
        );
        check(
            rawdoc! { "$and": [{ "a": 1 }, { "b": { "$type": "string" } }] },
            true,
        );
        check(rawdoc! { "$and": [{ "a": 1, "b": 1 }] }, false);
        check(rawdoc! { "a": 1, "$and": [{ "b": 1 }] }, false);
        check(rawdoc! { "$or": [{ "a": 1 }, { "b": 1 }] }, false);
        check(rawdoc! { "a": { "$in": [1] } }, false);
        check(rawdoc! { "a": { "$exists": false } }, false);
        check(rawdoc! {}, false);
    }
}
