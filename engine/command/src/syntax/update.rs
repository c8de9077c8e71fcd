//! The statements of `update`.

use pinion_bson::{RawArray, RawBsonRef, RawDocument};
use pinion_query::Hint;
use pinion_wire::idl::{FieldReader, Path, Types};
use pinion_wire::{Error, Result};

use super::collation::CollationOption;
use super::hint::hint;

/// One update statement, syntax alone.
pub struct UpdateSpec<'d> {
    pub q: &'d RawDocument,
    pub u: RawBsonRef<'d>,
    pub multi: bool,
    pub upsert: bool,
    pub hint: Option<Hint>,
    pub sort: Option<&'d RawDocument>,
    pub array_filters: Option<&'d RawArray>,
    /// Constants that a pipeline may refer to.
    pub constants: Option<&'d RawDocument>,
    pub collation: CollationOption,
}

/// What a command calls the parts of its statements that others call differently.
pub struct UpdateNames {
    pub filter: &'static str,
    pub update: &'static str,
    pub constants: &'static str,
}

/// Those of `update`.
pub const UPDATE_NAMES: UpdateNames = UpdateNames {
    filter: "q",
    update: "u",
    constants: "c",
};

/// Reads one element of `updates`.
///
/// # Errors
/// A field that is not known, of a wrong type, or refused.
pub fn parse_update<'d>(
    path: Path<'_>,
    document: &'d RawDocument,
    of_mongos: bool,
) -> Result<UpdateSpec<'d>> {
    let reader = FieldReader::object(path, document)?;
    reader.only(&[
        "q",
        "u",
        "multi",
        "upsert",
        "hint",
        "sort",
        "arrayFilters",
        "c",
        "collation",
        "upsertSupplied",
        "allowShardKeyUpdatesWithoutFullShardKeyInQuery",
        "sampleId",
    ])?;
    let of_router = "allowShardKeyUpdatesWithoutFullShardKeyInQuery";
    reader.unsupported_unless_empty(of_router, Types::BOOL)?;
    read_update(&reader, &UPDATE_NAMES, of_mongos)
}

/// Reads an update statement, whose fields are known to be ones that it may have.
///
/// # Errors
/// A field of a wrong type, or that does not stand beside another.
pub fn read_update<'d>(
    reader: &FieldReader<'d, '_>,
    names: &UpdateNames,
    of_mongos: bool,
) -> Result<UpdateSpec<'d>> {
    let q = reader.doc(names.filter)?;
    let u = reader
        .value(names.update)
        .ok_or_else(|| pinion_wire::idl::missing_field(reader.path().field(names.update)))?;
    check_modification(u)?;
    let multi = reader.opt_bool("multi")?.unwrap_or(false);
    let upsert = reader.opt_bool("upsert")?.unwrap_or(false);
    let hint = hint(reader, of_mongos)?;
    let sort = reader.opt_doc("sort")?;
    let array_filters = array_filters(reader)?;
    let constants = reader.opt_doc(names.constants)?;
    let collation = CollationOption::read(reader)?;
    reader.unsupported_unless_empty("upsertSupplied", Types::BOOL)?;
    reader.unsupported("sampleId", Types::BIN_DATA)?;
    if multi && sort.is_some() {
        return Err(Error::failed_to_parse(
            "Cannot specify sort with multi=true",
        ));
    }
    Ok(UpdateSpec {
        q,
        u,
        multi,
        upsert,
        hint,
        sort,
        array_filters,
        constants,
        collation,
    })
}

/// Reads `arrayFilters`, an array of documents.
///
/// # Errors
/// `TypeMismatch`.
pub fn array_filters<'d>(reader: &FieldReader<'d, '_>) -> Result<Option<&'d RawArray>> {
    for document in reader.opt_objects("arrayFilters")?.into_iter().flatten() {
        document?;
    }
    reader.opt_array("arrayFilters")
}

/// Refuses what is neither a document nor a list of stages. It is part of reading the command, so
/// that the whole command fails and not the statement alone.
///
/// # Errors
/// `TypeMismatch`, `FailedToParse`.
pub fn check_modification(update: RawBsonRef<'_>) -> Result<()> {
    match update {
        RawBsonRef::Document(_) => Ok(()),
        RawBsonRef::Array(stages) => {
            if pinion_bson::values(stages).all(|stage| matches!(stage, RawBsonRef::Document(_))) {
                Ok(())
            } else {
                Err(Error::type_mismatch(
                    "Each element of the 'pipeline' array must be an object",
                ))
            }
        }
        _ => Err(Error::failed_to_parse(
            "Update argument must be either an object or an array",
        )),
    }
}
