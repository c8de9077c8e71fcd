//! The namespace argument of a command: a name or a UUID.

use pinion_bson::{BinarySubtype, RawBsonRef};
use pinion_catalog::{Uuid, core_catalog};
use pinion_wire::idl::{CommandReader, Namespace, is_valid_collection_name};
use pinion_wire::{Error, ErrorCode, Result};

/// The namespace of a command that reads, in its own field. It may be longer than that of any
/// collection, but has no `$`.
fn named(reader: &CommandReader<'_>, command: &str, db: &str) -> Result<Namespace> {
    let ns = reader.sought(command, db)?;
    match is_valid_collection_name(ns.collection()) {
        true => Ok(ns),
        false => Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid namespace specified '{ns}'"),
        )),
    }
}

/// The namespace in the command's own field, which may be the UUID of a collection.
///
/// # Errors
/// NamespaceNotFound (26) where the database has no collection with the UUID.
pub(super) fn named_or_uuid(
    reader: &CommandReader<'_>,
    command: &str,
    db: &str,
) -> Result<Namespace> {
    let Some(RawBsonRef::Binary(binary)) = reader.value(command) else {
        return named(reader, command, db);
    };
    if binary.subtype != BinarySubtype::Uuid {
        return named(reader, command, db);
    }
    let Ok(bytes) = binary.bytes.try_into() else {
        return Err(Error::new(
            ErrorCode::INVALID_UUID,
            "uuid must be a 16-byte binary field with UUID (4) subtype",
        ));
    };
    let (uuid, catalog) = (Uuid(bytes), core_catalog().current());
    match catalog.by_uuid(uuid) {
        Some(collection) if collection.ns.db() == db => Ok(collection.ns.clone()),
        _ => Err(Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("Unable to resolve {uuid}"),
        )),
    }
}

/// NamespaceNotFound (26).
pub fn not_found(db: &str, collection: &str) -> Error {
    Error::new(
        ErrorCode::NAMESPACE_NOT_FOUND,
        format!("Collection {db}.{collection} does not exist."),
    )
}
