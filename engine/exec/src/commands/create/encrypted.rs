//! `encryptedFields`: read with all its rules, and refused as a standalone of MongoDB refuses it.

use pinion_bson::{RawArray, RawBsonRef, RawDocument, type_from_alias};
use pinion_wire::idl::{FieldReader, Path, Types, missing_field, wrong_type};
use pinion_wire::{Error, ErrorCode, Result};

/// Types whose values cannot be encrypted.
const UNENCRYPTABLE: [&str; 5] = ["minKey", "maxKey", "null", "undefined", "dbPointer"];

/// Types whose values have an order that ranges can be asked of.
const RANGE_TYPES: [&str; 6] = ["int", "long", "double", "decimal", "date", "timestamp"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum QueryType {
    Equality,
    Range,
    Substring,
    Suffix,
    Prefix,
}

const QUERY_TYPES: [(&str, QueryType); 6] = [
    ("equality", QueryType::Equality),
    ("range", QueryType::Range),
    ("rangePreview", QueryType::Range),
    ("substringPreview", QueryType::Substring),
    ("suffixPreview", QueryType::Suffix),
    ("prefixPreview", QueryType::Prefix),
];

fn refused(code: i32, message: impl Into<String>) -> Error {
    Error::new(ErrorCode(code), message)
}

/// Checks the description of the fields.
pub(super) fn check(config: &FieldReader<'_, '_>) -> Result<()> {
    config.only(&[
        "escCollection",
        "eccCollection",
        "ecocCollection",
        "strEncodeVersion",
        "fields",
    ])?;
    for name in ["escCollection", "eccCollection", "ecocCollection"] {
        config.opt_str(name)?;
    }
    config.opt_i32("strEncodeVersion")?;
    let Some(fields) = config.opt_objects("fields")? else {
        return Err(missing_field(config.path().field("fields")));
    };
    let (mut paths, at_fields): (Vec<&str>, _) = (Vec::new(), fields.path());
    for field in fields {
        let (at, document) = field?;
        paths.push(check_field(at_fields.index(at), document)?);
    }
    check_paths(&paths)
}

/// Refuses what encrypted fields cannot be beside, and then what a standalone does not have.
pub(super) fn check_companions(is_capped: bool, is_view: bool) -> Result<()> {
    if is_capped {
        return Err(refused(
            6367301,
            "Encrypted collections are not supported with capped collections",
        ));
    }
    if is_view {
        return Err(refused(
            6346401,
            "Encrypted collections are not supported with views or time-series collections",
        ));
    }
    Err(refused(
        6346402,
        "Encrypted collections are not supported on standalone",
    ))
}

fn check_field<'d>(at: Path<'_>, document: &'d RawDocument) -> Result<&'d str> {
    let field = FieldReader::object(at, document)?;
    field.only(&["keyId", "path", "bsonType", "queries"])?;
    if field.opt_uuid("keyId")?.is_none() {
        return Err(missing_field(field.path().field("keyId")));
    }
    let path = field.str("path")?;
    let kind = field.opt_str("bsonType")?;
    let queries = field.value("queries");
    if path.is_empty() {
        return Err(refused(6316402, "Encrypted field path cannot be empty"));
    }
    if path.contains('\0') {
        return Err(refused(
            9867600,
            "Encrypted field path contains a null byte",
        ));
    }
    if path == "_id" || path.starts_with("_id.") {
        return Err(refused(6316403, "Cannot encrypt _id or its subfields."));
    }
    if let Some(kind) = kind {
        if type_from_alias(kind).is_none() {
            return Err(Error::bad_value(format!("Unknown type name alias: {kind}")));
        }
        if UNENCRYPTABLE.contains(&kind) {
            return Err(refused(
                6338406,
                format!("Type '{kind}' is not a supported type for encryption"),
            ));
        }
    }
    match queries {
        None => {}
        Some(RawBsonRef::Document(query)) => {
            let query_path = field.path().field("queries");
            check_query(query_path, query, kind)?;
        }
        Some(RawBsonRef::Array(list)) => check_queries(&field, list, kind)?,
        Some(other) => {
            return Err(field.wrong_type("queries", other, Types::Many(&["array", "object"])));
        }
    }
    Ok(path)
}

fn check_queries(field: &FieldReader<'_, '_>, list: &RawArray, kind: Option<&str>) -> Result<()> {
    let path = field.path().field("queries");
    let mut types = Vec::new();
    for (at, query) in pinion_bson::values(list).enumerate() {
        let path = path.index(at);
        let RawBsonRef::Document(query) = query else {
            return Err(wrong_type(path, query, Types::OBJECT));
        };
        types.push(check_query(path, query, kind)?);
    }
    match types[..] {
        [] => Err(refused(
            9783412,
            "At least one query type should be specified per field",
        )),
        [_] | [QueryType::Suffix, QueryType::Prefix] | [QueryType::Prefix, QueryType::Suffix] => {
            Ok(())
        }
        [_, _] => Err(refused(
            9783414,
            "Multiple query types may only include the suffixPreview and prefixPreview query types",
        )),
        _ => Err(refused(
            9783413,
            "The number of query types for an encrypted field cannot exceed two",
        )),
    }
}

fn check_query(at: Path<'_>, query: &RawDocument, kind: Option<&str>) -> Result<QueryType> {
    let reader = FieldReader::object(at, query)?;
    reader.only(&[
        "queryType",
        "contention",
        "min",
        "max",
        "sparsity",
        "precision",
        "trimFactor",
        "strMaxLength",
        "strMinQueryLength",
        "strMaxQueryLength",
        "caseSensitive",
        "diacriticSensitive",
    ])?;
    let Some(query_type) = reader.opt_one_of("queryType", &QUERY_TYPES)? else {
        return Err(missing_field(reader.path().field("queryType")));
    };
    for (name, least) in [
        ("contention", 0),
        ("sparsity", 1),
        ("precision", 0),
        ("trimFactor", 0),
        ("strMaxLength", 1),
        ("strMinQueryLength", 1),
        ("strMaxQueryLength", 1),
    ] {
        reader.opt_whole_number(name)?;
        reader.opt_at_least(name, least)?;
    }
    let sensitive = (
        reader.opt_bool("caseSensitive")?,
        reader.opt_bool("diacriticSensitive")?,
    );
    let (min, max) = (reader.value("min"), reader.value("max"));
    let Some(kind) = kind else {
        return Err(refused(
            6412601,
            "The field 'bsonType' is missing but required for a field that can be queried",
        ));
    };
    match query_type {
        QueryType::Equality => check_equality(kind)?,
        QueryType::Range => check_range(kind, min, max)?,
        QueryType::Substring | QueryType::Suffix | QueryType::Prefix => {
            check_text(&reader, kind, query_type, sensitive)?;
        }
    }
    Ok(query_type)
}

fn check_equality(kind: &str) -> Result<()> {
    // Values that compare equal in many forms.
    if matches!(kind, "double" | "decimal" | "object" | "array") {
        return Err(refused(
            6338405,
            format!("Type '{kind}' is not a supported equality indexed type"),
        ));
    }
    Ok(())
}

fn check_range(kind: &str, min: Option<RawBsonRef<'_>>, max: Option<RawBsonRef<'_>>) -> Result<()> {
    if !RANGE_TYPES.contains(&kind) {
        return Err(refused(
            6775201,
            format!("Type '{kind}' is not a supported range indexed type"),
        ));
    }
    for bound in [min, max].into_iter().flatten() {
        let found = pinion_wire::idl::idl_type_name(bound.element_type());
        if found != kind {
            return Err(refused(
                7018200,
                format!(
                    "Range bounds must be of the type of the field, '{kind}', but are '{found}'"
                ),
            ));
        }
    }
    if let (Some(min), Some(max)) = (min, max)
        && pinion_bson::compare_values(min, max) != std::cmp::Ordering::Less
    {
        return Err(refused(
            6720005,
            "Min must be less than max for a range indexed field",
        ));
    }
    Ok(())
}

fn check_text(
    reader: &FieldReader<'_, '_>,
    kind: &str,
    query_type: QueryType,
    sensitive: (Option<bool>, Option<bool>),
) -> Result<()> {
    if kind != "string" {
        return Err(refused(
            9783400,
            format!(
                "Type '{kind}' is not a supported type for substring, suffix and prefix queries"
            ),
        ));
    }
    let missing = |code, field: &str| refused(code, format!("The field '{field}' is missing"));
    if query_type == QueryType::Substring && reader.opt_i64("strMaxLength")?.is_none() {
        return Err(missing(9783401, "strMaxLength"));
    }
    let least = reader.opt_i64("strMinQueryLength")?;
    let least = least.ok_or_else(|| missing(9783402, "strMinQueryLength"))?;
    let most = reader.opt_i64("strMaxQueryLength")?;
    let most = most.ok_or_else(|| missing(9783403, "strMaxQueryLength"))?;
    sensitive
        .0
        .ok_or_else(|| missing(9783404, "caseSensitive"))?;
    sensitive
        .1
        .ok_or_else(|| missing(9783405, "diacriticSensitive"))?;
    if least > most {
        return Err(refused(
            9783406,
            "strMinQueryLength cannot be greater than strMaxQueryLength",
        ));
    }
    if query_type == QueryType::Substring
        && reader
            .opt_i64("strMaxLength")?
            .is_some_and(|longest| most > longest)
    {
        return Err(refused(
            9783407,
            "strMaxQueryLength cannot be greater than strMaxLength",
        ));
    }
    Ok(())
}

/// Each path stands for itself: none is there twice, and none is below another.
fn check_paths(paths: &[&str]) -> Result<()> {
    let mut sorted: Vec<&str> = paths.to_vec();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        if pair[0] == pair[1] {
            return Err(refused(6338402, "Duplicate paths are not allowed"));
        }
    }
    for path in &sorted {
        let mut above = *path;
        while let Some((parent, _)) = above.rsplit_once('.') {
            if sorted.binary_search(&parent).is_ok() {
                return Err(refused(
                    6338403,
                    format!(
                        "Conflicting index paths found as one is a prefix of another {parent} and {path}"
                    ),
                ));
            }
            above = parent;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_all(paths: &[&str], expected: Option<i32>) {
        let found = check_paths(paths).err().map(|error| error.code.0);
        assert_eq!(found, expected, "{paths:?}");
    }

    #[test]
    fn paths_stand_for_themselves() {
        check_all(&["a", "b.c", "b.d"], None);
        check_all(&["a", "b", "a"], Some(6338402));
        check_all(&["a.b.c", "a-", "a"], Some(6338403));
        check_all(&["a.b", "ab"], None);
    }
}
