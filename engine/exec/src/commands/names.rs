//! Names of collections as diagnostic commands take them: what cannot be a collection's name is one that is not there.

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
