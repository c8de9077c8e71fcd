//! Names of collections as diagnostic commands take them: what cannot be a collection's name is one that is not there.

use pinion_bson::{BinarySubtype, RawBsonRef};
use pinion_catalog::{Uuid, core_catalog};
use pinion_wire::idl::{CommandReader, Namespace};
use pinion_wire::{Error, ErrorCode, Result};

/// The namespace in the command's own field; `None` for one that no collection can have.
///
/// # Errors
/// InvalidNamespace (73) for what MongoDB does not take as a name at all.
pub(super) fn named(
    reader: &CommandReader<'_>,
    command: &str,
    db: &str,
) -> Result<Option<Namespace>> {
    in_database(db, reader.collection(command)?)
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
        return reader.namespace(command, db);
    };
    if binary.subtype != BinarySubtype::Uuid {
        return reader.namespace(command, db);
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

/// The namespace of these two names; `None` for one that no collection can have.
pub(super) fn in_database(db: &str, collection: &str) -> Result<Option<Namespace>> {
    if collection.is_empty() || collection.starts_with('.') || collection.contains('\0') {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid namespace specified '{db}.{collection}'"),
        ));
    }
    Ok(Namespace::new(db, collection).ok())
}

/// NamespaceNotFound (26).
pub(super) fn not_found(db: &str, collection: &str) -> Error {
    Error::new(
        ErrorCode::NAMESPACE_NOT_FOUND,
        format!("Collection {db}.{collection} does not exist."),
    )
}
