//! `_configsvrCommitMovePrimary`: a database gets another primary shard.
//!
//! Source: sharding document, "Change of primary".

use pinion_wire::{Error, ErrorCode, Result};

use crate::documents::{DatabaseDocument, ShardDocument};
use crate::shard_id::ShardId;
use crate::version::DatabaseVersion;

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum PrimaryChange {
    /// An earlier message has done it.
    Done,
    /// To be written with majority in the place of the document that is there.
    Write(DatabaseDocument),
}

/// Decides on the new primary shard of the database `name`, given its document and all shards.
/// `expected` is the version that the move started with.
///
/// # Errors
/// `NamespaceNotFound`; `ConflictingOperationInProgress` where the database has another version;
/// `ShardNotFound`. Nothing was written by an earlier message then.
pub fn change_primary(
    name: &str,
    found: Option<&DatabaseDocument>,
    shards: &[ShardDocument],
    expected: DatabaseVersion,
    to: &ShardId,
) -> Result<PrimaryChange> {
    let Some(found) = found else {
        return Err(Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("database {name} not found"),
        ));
    };
    let next = expected.next_primary();
    if found.version.is_placement_equal(next) && found.primary == *to {
        return Ok(PrimaryChange::Done);
    }
    if !found.version.is_placement_equal(expected) {
        return Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!(
                "the database {name} has the version {:?}, and is to be moved from {expected:?}",
                found.version
            ),
        ));
    }
    if !shards.iter().any(|shard| shard.id == *to) {
        return Err(Error::new(
            ErrorCode::SHARD_NOT_FOUND,
            format!("Shard {to} not found"),
        ));
    }
    Ok(PrimaryChange::Write(DatabaseDocument {
        primary: to.clone(),
        version: next,
        ..found.clone()
    }))
}

#[cfg(test)]
mod tests {
    use pinion_bson::Uuid;
    use pinion_clock::Timestamp;

    use super::*;

    fn version(last_mod: i32) -> DatabaseVersion {
        DatabaseVersion {
            last_mod,
            ..DatabaseVersion::first(Uuid::from_bytes([1; 16]), Timestamp::new(5, 0))
        }
    }

    #[test]
    fn a_change_is_made_once() {
        let shard = |id: &str| ShardDocument::new(id.into(), format!("{id}/a:1"), Timestamp::MIN);
        let shards = [shard("a"), shard("b")];
        let document = |primary: &str, version| DatabaseDocument::new("d", primary.into(), version);
        let check = |found: Option<DatabaseDocument>, to: &str, expected| {
            let to = ShardId::new(to);
            let made = change_primary("d", found.as_ref(), &shards, version(1), &to);
            assert_eq!(made.map_err(|error| error.code.0), expected);
        };
        let moved = document("b", version(2));
        check(
            Some(document("a", version(1))),
            "b",
            Ok(PrimaryChange::Write(moved.clone())),
        );
        check(Some(moved.clone()), "b", Ok(PrimaryChange::Done));
        // Another move has come in between, or another life of the database.
        check(Some(moved), "a", Err(117));
        check(Some(document("a", version(3))), "b", Err(117));
        let other = DatabaseVersion::first(Uuid::from_bytes([2; 16]), Timestamp::new(6, 0));
        check(Some(document("a", other)), "b", Err(117));
        check(Some(document("a", version(1))), "c", Err(70));
        check(None, "b", Err(26));
    }
}
