//! Index specifications: checked, brought into their stored form, and compared with the indexes that are there.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, type_name, values_equal};
use pinion_query::IndexSpec;
use pinion_storage::TreeId;
use pinion_wire::idl::f64_lossy;
use pinion_wire::{Error, ErrorCode, Result};

use crate::ddl::IndexSelection;
use crate::entry::{Collection, Index, index_spec};
use crate::limits::{MAX_INDEX_FIELDS, MAX_INDEX_NAME_BYTES, MAX_INDEXES};
use crate::text::{render, render_value};

/// Options of an index that MongoDB has and this node does not.
const UNSUPPORTED: [&str; 18] = [
    "expireAfterSeconds",
    "partialFilterExpression",
    "collation",
    "wildcardProjection",
    "hidden",
    "prepareUnique",
    "clustered",
    "storageEngine",
    "weights",
    "default_language",
    "language_override",
    "textIndexVersion",
    "2dsphereIndexVersion",
    "bits",
    "min",
    "max",
    "bucketSize",
    "columnstoreProjection",
];

/// Index types that MongoDB has and this node does not.
const UNSUPPORTED_TYPES: [&str; 6] = [
    "text",
    "hashed",
    "2d",
    "2dsphere",
    "2dsphere_bucket",
    "columnstore",
];

/// Checks one specification of `createIndexes` and brings it into the stored form `{v, key, name, unique, sparse, ...}`.
/// `ignore_unknown` drops fields that no index has; options that this node lacks are refused all the same.
///
/// # Errors
/// As MongoDB answers, with the specification in the message.
pub fn parse_index_spec(spec: &RawDocument, ignore_unknown: bool) -> Result<RawDocumentBuf> {
    parse(spec, ignore_unknown)
        .map_err(|error| {
            if error.code == ErrorCode::NOT_IMPLEMENTED {
                error
            } else {
                error.context(format!("Error in specification {}", render(spec)))
            }
        })
        .and_then(|listed| check_id_rules(spec, listed))
}

/// Checks the names of indexes to be made, which MongoDB does once all specifications have been read.
///
/// # Errors
/// `CannotCreateIndex`.
pub fn check_index_names(listed: &[RawDocumentBuf]) -> Result<()> {
    listed
        .iter()
        .map(|listed| name_of(listed))
        .try_for_each(check_name)
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(cannot_create("index name cannot be empty"));
    }
    if name.len() > MAX_INDEX_NAME_BYTES * 8 || name.contains('\0') {
        return Err(cannot_create(
            "index name is too long or has a null character",
        ));
    }
    Ok(())
}

/// Fields that the specification of an index on `_id` may have.
const ID_INDEX_FIELDS: [&str; 5] = ["v", "key", "name", "ns", "collation"];

/// Checks the `idIndex` of a collection to be made. An option that no such index has is refused as that, also one that this
/// node has for no index at all.
///
/// # Errors
/// As MongoDB answers.
pub fn check_id_index_spec(spec: &RawDocument) -> Result<()> {
    check_field_names(spec)?;
    let mut read_here = DocBuilder::new();
    for (field, value) in pinion_bson::elements(spec) {
        if KNOWN.contains(&field) && field != "hidden" {
            read_here.append_raw(field, value);
        }
    }
    match parse(&read_here.finish(), false) {
        // A type of index that this node lacks. It is not the right one in any case.
        Err(error) if error.code == ErrorCode::NOT_IMPLEMENTED => {}
        other => {
            other?;
        }
    }
    for (field, _) in pinion_bson::elements(spec) {
        if !ID_INDEX_FIELDS.contains(&field) {
            return Err(not_for_id_index(field, spec));
        }
    }
    match part(spec, "name") {
        Some(RawBsonRef::String("*")) => {
            return Err(Error::bad_value("The index name '*' is not valid."));
        }
        Some(RawBsonRef::String(name)) => check_name(name)?,
        _ => {}
    }
    match part(spec, "key") {
        Some(RawBsonRef::Document(key)) => check_ascending_id(key)?,
        other => unreachable!("{other:?} has been read as a key"),
    }
    match part(spec, "collation") {
        Some(collation) if !is_simple_collation(collation) => Err(Error::bad_value(
            "'idIndex' must have the same collation as the collection.",
        )),
        _ => Ok(()),
    }
}

fn not_for_id_index(field: &str, spec: &RawDocument) -> Error {
    Error::new(
        ErrorCode::INVALID_INDEX_SPECIFICATION_OPTION,
        format!(
            "The field '{field}' is not valid for an _id index specification. Specification: {}",
            render(spec)
        ),
    )
}

fn check_ascending_id(key: &RawDocument) -> Result<()> {
    if pinion_bson::compare_documents(key, &pinion_bson::rawdoc! { "_id": 1 })
        != std::cmp::Ordering::Equal
    {
        return Err(Error::bad_value(format!(
            "The field 'key' for an _id index must be {{_id: 1}}, but got {}",
            render(key)
        )));
    }
    Ok(())
}

fn cannot_create(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::CANNOT_CREATE_INDEX, message)
}

fn wrong_type(name: &str, expected: &str, value: RawBsonRef<'_>) -> Error {
    Error::type_mismatch(format!(
        "The field '{name}' must be {expected}, but got {}",
        type_name(value.element_type())
    ))
}

fn is_truthy(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Boolean(b) => b,
        RawBsonRef::Int32(n) => n != 0,
        RawBsonRef::Int64(n) => n != 0,
        RawBsonRef::Double(n) => n != 0.0,
        RawBsonRef::Null | RawBsonRef::Undefined => false,
        _ => true,
    }
}

/// Fields of a specification that `parse` reads.
const KNOWN: [&str; 9] = [
    "key",
    "name",
    "v",
    "ns",
    "dropDups",
    "background",
    "unique",
    "sparse",
    "hidden",
];

/// The names of all fields are looked at before the value of any.
fn check_field_names(spec: &RawDocument) -> Result<()> {
    for (field, _) in pinion_bson::elements(spec) {
        if !KNOWN.contains(&field) && !UNSUPPORTED.contains(&field) {
            return Err(Error::new(
                ErrorCode::INVALID_INDEX_SPECIFICATION_OPTION,
                format!(
                    "The field '{field}' is not valid for an index specification. Specification: {}",
                    render(spec)
                ),
            ));
        }
    }
    Ok(())
}

fn parse(spec: &RawDocument, ignore_unknown: bool) -> Result<RawDocumentBuf> {
    if !ignore_unknown {
        check_field_names(spec)?;
    }
    let (mut key, mut name, mut version) = (None, None, 2);
    let mut options = DocBuilder::new();
    for (field, value) in pinion_bson::elements(spec) {
        match field {
            "key" => match value {
                RawBsonRef::Document(pattern) => {
                    check_key_pattern(pattern)?;
                    key = Some(pattern);
                }
                other => return Err(wrong_type("key", "an object", other)),
            },
            "name" => match value {
                RawBsonRef::String(text) => name = Some(text),
                other => return Err(wrong_type("name", "a string", other)),
            },
            "v" => version = check_version(spec, value)?,
            // Accepted for old drivers; a build's kind, and duplicates, are no property of an index.
            "ns" | "dropDups" => {}
            "background" => {
                options.append_raw(field, value);
            }
            "unique" | "sparse" => {
                check_bool(field, value)?;
                if is_truthy(value) {
                    options.append(field, true);
                }
            }
            "collation" if is_simple_collation(value) => {}
            "hidden" if check_bool(field, value).map(|()| !is_truthy(value))? => {}
            _ if UNSUPPORTED.contains(&field) => {
                return Err(Error::new(
                    ErrorCode::NOT_IMPLEMENTED,
                    format!("The index option '{field}' is not supported"),
                ));
            }
            // Unknown ones that the client wants passed over.
            _ => {}
        }
    }
    let missing = |field: &str| {
        Error::failed_to_parse(format!(
            "The '{field}' field is a required property of an index specification"
        ))
    };
    let key = key.ok_or_else(|| missing("key"))?;
    let name = name.ok_or_else(|| missing("name"))?;
    let mut listed = DocBuilder::new();
    listed
        .append("v", version)
        .append("key", key)
        .append("name", name)
        .append_all(&options.finish());
    Ok(listed.finish())
}

fn check_bool(field: &str, value: RawBsonRef<'_>) -> Result<()> {
    match value {
        RawBsonRef::Boolean(_)
        | RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::Decimal128(_) => Ok(()),
        other => Err(Error::type_mismatch(format!(
            "The field '{field}' has value {field}: {}, which is not convertible to bool",
            render_value(other)
        ))),
    }
}

fn is_simple_collation(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Document(d) if d.get_str("locale").is_ok_and(|locale| locale == "simple"))
}

fn check_version(spec: &RawDocument, value: RawBsonRef<'_>) -> Result<i32> {
    let version = match value {
        RawBsonRef::Int32(n) => n as f64,
        RawBsonRef::Int64(n) => n as f64,
        RawBsonRef::Double(n) => n,
        RawBsonRef::Decimal128(_) => f64_lossy(value).unwrap_or(f64::NAN),
        other => return Err(wrong_type("v", "a number", other)),
    };
    if version.fract() != 0.0 || !(f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&version) {
        return Err(Error::bad_value(format!(
            "Index version must be representable as a 32-bit integer, but got {}",
            render_value(value)
        )));
    }
    match version as i32 {
        version @ (1 | 2) => Ok(version),
        other => Err(cannot_create(format!(
            "Invalid index specification {}; cannot create an index with v={other}",
            render(spec)
        ))),
    }
}

fn check_key_pattern(pattern: &RawDocument) -> Result<()> {
    let mut fields = 0;
    let mut seen: Vec<&str> = Vec::new();
    for (field, value) in pinion_bson::elements(pattern) {
        fields += 1;
        match value {
            RawBsonRef::Int32(0) | RawBsonRef::Int64(0) => {
                return Err(cannot_create(
                    "Values in the index key pattern cannot be 0.",
                ));
            }
            RawBsonRef::Double(0.0) => {
                return Err(cannot_create(
                    "Values in the index key pattern cannot be 0.",
                ));
            }
            RawBsonRef::Double(n) if n.is_nan() => {
                return Err(cannot_create(
                    "Values in the index key pattern cannot be NaN.",
                ));
            }
            RawBsonRef::Int32(_)
            | RawBsonRef::Int64(_)
            | RawBsonRef::Double(_)
            | RawBsonRef::Decimal128(_) => {}
            RawBsonRef::String(kind) if UNSUPPORTED_TYPES.contains(&kind) => {
                return Err(Error::new(
                    ErrorCode::NOT_IMPLEMENTED,
                    format!("The index type '{kind}' is not supported"),
                ));
            }
            RawBsonRef::String(kind) => {
                if kind == "wildcard" {
                    return Err(Error::new(
                        ErrorCode(7246202),
                        "The index type 'wildcard' cannot be given as a string: the field's name is what makes a wildcard index",
                    ));
                }
                return Err(cannot_create(format!("Unknown index plugin '{kind}'")));
            }
            other => {
                return Err(cannot_create(format!(
                    "Values in v:2 index key pattern cannot be of type {}. Only numbers > 0, numbers < 0, and strings are allowed.",
                    type_name(other.element_type())
                )));
            }
        }
        if field.is_empty() {
            return Err(cannot_create("Index keys cannot be an empty field."));
        }
        if field == "$**" || field.ends_with(".$**") {
            return Err(Error::new(
                ErrorCode::NOT_IMPLEMENTED,
                "Wildcard indexes are not supported",
            ));
        }
        for (i, part) in field.split('.').enumerate() {
            if part.is_empty() {
                return Err(cannot_create("Index keys cannot contain an empty field."));
            }
            // DBRef fields are the exception that MongoDB allows.
            if part.starts_with('$') && !(i > 0 && matches!(part, "$db" | "$id" | "$ref")) {
                return Err(cannot_create(
                    "Index key contains an illegal field name: field name starts with '$'.",
                ));
            }
        }
        if seen.contains(&field) {
            return Err(cannot_create(format!(
                "Index key pattern has the field '{field}' twice"
            )));
        }
        seen.push(field);
    }
    if fields == 0 {
        return Err(cannot_create("Index keys cannot be empty."));
    }
    if fields > MAX_INDEX_FIELDS {
        return Err(Error::new(ErrorCode(13103), "too many compound keys"));
    }
    Ok(())
}

fn is_id_pattern(key: &RawDocument) -> bool {
    let mut elements = pinion_bson::elements(key);
    let first = elements.next();
    elements.next().is_none()
        && matches!(first, Some(("_id", value)) if [1, -1].iter().any(|n| values_equal(value, RawBsonRef::Int32(*n))))
}

/// `spec` is what the client gave, in which an option counts even where it is false.
fn check_id_rules(spec: &RawDocument, mut listed: RawDocumentBuf) -> Result<RawDocumentBuf> {
    let key = listed.get_document("key").expect("made above");
    let name = listed.get_str("name").expect("made above");
    if name == "*" {
        return Err(Error::bad_value("The index name '*' is not valid."));
    }
    if is_id_pattern(key) {
        for field in ["unique", "sparse", "background"] {
            if pinion_bson::get(spec, field).is_some() {
                return Err(not_for_id_index(field, spec));
            }
        }
        check_ascending_id(key)?;
        listed = Collection::id_index();
    } else if name == "_id_" {
        return Err(Error::bad_value(format!(
            "The index name '_id_' is reserved for the _id index, which must have key pattern {{_id: 1}}, found key: {}",
            render(key)
        )));
    }
    Ok(listed)
}

/// An index that has to be built.
pub(crate) struct Wanted {
    spec: IndexSpec,
    listed: RawDocumentBuf,
}

impl Wanted {
    pub(crate) fn key(&self) -> &RawDocument {
        self.listed
            .get_document("key")
            .expect("a checked specification has a key")
    }

    pub(crate) fn into_index(self, tree: TreeId) -> Index {
        Index {
            spec: Arc::new(self.spec),
            listed: self.listed,
            tree,
            made_ms: Some(pinion_runtime::wall_ms()),
        }
    }
}

fn part<'a>(listed: &'a RawDocument, field: &str) -> Option<RawBsonRef<'a>> {
    listed.get(field).ok().flatten()
}

fn name_of(listed: &RawDocument) -> &str {
    listed
        .get_str("name")
        .expect("a checked specification has a name")
}

fn same_key(a: &RawDocument, b: &RawDocument) -> bool {
    match (part(a, "key"), part(b, "key")) {
        (Some(RawBsonRef::Document(a)), Some(RawBsonRef::Document(b))) => {
            pinion_bson::compare_documents(a, b) == std::cmp::Ordering::Equal
        }
        _ => false,
    }
}

fn flag(listed: &RawDocument, field: &str) -> bool {
    part(listed, field).is_some_and(is_truthy)
}

/// Whether two specifications mean the same index: those that differ in key, `unique` or `sparse` may stand side by side.
fn same_index(a: &RawDocument, b: &RawDocument) -> bool {
    same_key(a, b)
        && ["unique", "sparse"]
            .iter()
            .all(|field| flag(a, field) == flag(b, field))
}

/// Tells whether an index like this is there already, and refuses one that conflicts with it.
fn is_there(existing: &RawDocument, wanted: &RawDocument) -> Result<bool> {
    match (
        name_of(existing) == name_of(wanted),
        same_index(existing, wanted),
    ) {
        (true, true) => Ok(true),
        (false, false) => Ok(false),
        (true, false) => Err(Error::new(
            ErrorCode::INDEX_KEY_SPECS_CONFLICT,
            format!(
                "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and \
                 can cause conflicts. Please refer to our documentation. Requested index: {}, existing index: {}",
                render(wanted),
                render(existing)
            ),
        )),
        (false, true) => Err(Error::new(
            ErrorCode::INDEX_OPTIONS_CONFLICT,
            format!(
                "Index already exists with a different name: {}",
                name_of(existing)
            ),
        )),
    }
}

/// The requested indexes that are not there yet; no more of them than are too many by one.
pub(crate) fn missing(
    collection: &Collection,
    requested: &[RawDocumentBuf],
) -> Result<Vec<Wanted>> {
    let mut wanted: Vec<Wanted> = Vec::new();
    'requested: for listed in requested {
        if wanted.len() > MAX_INDEXES {
            break;
        }
        if name_of(listed) == "_id_" {
            continue;
        }
        for existing in &collection.indexes {
            if is_there(&existing.listed, listed)? {
                continue 'requested;
            }
        }
        for earlier in &wanted {
            if is_there(&earlier.listed, listed)? {
                return Err(Error::new(
                    ErrorCode::INDEX_ALREADY_EXISTS,
                    format!("Identical index already exists: {}", name_of(listed)),
                ));
            }
        }
        wanted.push(Wanted {
            spec: index_spec(listed)?,
            listed: listed.clone(),
        });
    }
    Ok(wanted)
}

/// The names of the indexes that a `dropIndexes` means.
pub(crate) fn select(collection: &Collection, selection: &IndexSelection) -> Result<Vec<String>> {
    let id_index = || Error::new(ErrorCode::INVALID_OPTIONS, "cannot drop _id index");
    match selection {
        IndexSelection::All => Ok(collection
            .indexes
            .iter()
            .map(|index| index.name().to_owned())
            .collect()),
        IndexSelection::Names(names) => {
            let mut selected: Vec<String> = Vec::new();
            for name in names {
                if name == "_id_" {
                    return Err(id_index());
                }
                // One after the other: a name given twice is not there the second time.
                if collection.index(name).is_none() || selected.contains(name) {
                    return Err(Error::new(
                        ErrorCode::INDEX_NOT_FOUND,
                        format!("index not found with name [{name}]"),
                    ));
                }
                selected.push(name.clone());
            }
            Ok(selected)
        }
        IndexSelection::Key(key) => {
            if is_id_pattern(key) {
                return Err(id_index());
            }
            let same = |index: &&Arc<Index>| {
                pinion_bson::compare_documents(index.key(), key) == std::cmp::Ordering::Equal
            };
            let found: Vec<&Arc<Index>> = collection.indexes.iter().filter(same).collect();
            match &found[..] {
                [index] => Ok(vec![index.name().to_owned()]),
                [] => Err(Error::new(
                    ErrorCode::INDEX_NOT_FOUND,
                    format!("can't find index with key: {}", render(key)),
                )),
                several => Err(Error::new(
                    ErrorCode::AMBIGUOUS_INDEX_KEY_PATTERN,
                    format!(
                        "{} indexes found for key: {}, identify by name instead. Conflicting indexes: {}",
                        several.len(),
                        render(key),
                        several
                            .iter()
                            .map(|index| index.name())
                            .collect::<Vec<_>>()
                            .join(", ")
                    ),
                )),
            }
        }
    }
}
