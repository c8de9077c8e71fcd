//! `createDatabase`: which shard becomes a database's primary.
//!
//! Source: sharding document, "Database creation".

use pinion_wire::idl::is_valid_database_name;
use pinion_wire::{Error, ErrorCode, Result};

use crate::documents::DatabaseDocument;
use crate::shard_id::ShardId;
use crate::version::DatabaseVersion;

/// A database that is to exist.
#[derive(Clone, Copy, Debug)]
pub struct DatabaseRequest<'a> {
    pub name: &'a str,
    /// Where the client wants it.
    pub primary: Option<&'a str>,
}

/// What a shard has.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardSize {
    pub id: ShardId,
    pub is_draining: bool,
    /// Of all its databases.
    pub size_bytes: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum DatabaseCreation {
    /// It is there already.
    Exists(DatabaseDocument),
    /// To be inserted with majority.
    Create(DatabaseDocument),
}

/// Decides on a database, given those whose names are equal to its but for case, and all shards.
/// `version` is that of a new one.
///
/// # Errors
/// `InvalidOptions` for `admin`, `local` and other spellings of `config`; `InvalidNamespace`;
/// `DatabaseDifferCase`; `NamespaceExists` where it is on another shard than asked for;
/// `ShardNotFound` where the shard asked for is unknown or draining, or no shard is left.
pub fn create_database(
    request: DatabaseRequest<'_>,
    alike: &[DatabaseDocument],
    shards: &[ShardSize],
    version: DatabaseVersion,
) -> Result<DatabaseCreation> {
    let name = request.name;
    if name == "config" {
        let config = ShardId::new(ShardId::CONFIG);
        let document = DatabaseDocument::new(name, config, DatabaseVersion::FIXED);
        return Ok(DatabaseCreation::Exists(document));
    }
    check_name(name)?;
    if let Some(found) = alike.iter().find(|found| found.name == name) {
        return match request.primary {
            Some(wanted) if found.primary != *wanted => Err(Error::new(
                ErrorCode::NAMESPACE_EXISTS,
                format!("database already created on a primary which is different from {wanted}"),
            )),
            _ => Ok(DatabaseCreation::Exists(found.clone())),
        };
    }
    if let Some(found) = alike
        .iter()
        .find(|found| found.name.eq_ignore_ascii_case(name))
    {
        return Err(Error::new(
            ErrorCode::DATABASE_DIFFER_CASE,
            format!(
                "can't have 2 databases that just differ on case  have: {} want to add: {name}",
                found.name
            ),
        ));
    }
    let primary = match request.primary {
        Some(wanted) => shard_asked_for(wanted, shards)?,
        None => smallest_shard(shards)?,
    };
    Ok(DatabaseCreation::Create(DatabaseDocument::new(
        name,
        primary.id.clone(),
        version,
    )))
}

fn check_name(name: &str) -> Result<()> {
    if ["admin", "local", "config"]
        .iter()
        .any(|reserved| reserved.eq_ignore_ascii_case(name))
    {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!("Cannot manually create database '{name}'"),
        ));
    }
    if !is_valid_database_name(name) || name == "$external" {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid db name specified: {name}"),
        ));
    }
    Ok(())
}

fn shard_asked_for<'s>(wanted: &str, shards: &'s [ShardSize]) -> Result<&'s ShardSize> {
    match shards.iter().find(|shard| shard.id == *wanted) {
        None => Err(Error::new(
            ErrorCode::SHARD_NOT_FOUND,
            format!("Shard {wanted} not found"),
        )),
        Some(shard) if shard.is_draining => Err(Error::new(
            ErrorCode::SHARD_NOT_FOUND,
            format!("Shard {wanted} is currently draining"),
        )),
        Some(shard) => Ok(shard),
    }
}

/// The shard with the least data that stays; of equal ones that whose name comes first.
fn smallest_shard(shards: &[ShardSize]) -> Result<&ShardSize> {
    shards
        .iter()
        .filter(|shard| !shard.is_draining)
        .min_by(|one, other| (one.size_bytes, &one.id).cmp(&(other.size_bytes, &other.id)))
        .ok_or_else(|| Error::new(ErrorCode::SHARD_NOT_FOUND, "No non-draining shard found"))
}

#[cfg(test)]
mod tests {
    use pinion_bson::Uuid;
    use pinion_clock::Timestamp;

    use super::*;

    fn shard(id: &str, size_bytes: u64, is_draining: bool) -> ShardSize {
        ShardSize {
            id: id.into(),
            is_draining,
            size_bytes,
        }
    }

    fn create(name: &str, primary: Option<&str>, shards: &[ShardSize]) -> Result<DatabaseCreation> {
        let version = DatabaseVersion::first(Uuid::from_bytes([1; 16]), Timestamp::new(5, 0));
        let there = DatabaseDocument::new("Sales", "b".into(), version);
        let request = DatabaseRequest { name, primary };
        create_database(request, &[there], shards, version.next_primary())
    }

    #[test]
    fn the_smallest_shard_that_stays() {
        let check = |shards: &[ShardSize], expected: Option<&str>| match create("d", None, shards) {
            Ok(DatabaseCreation::Create(made)) => {
                assert_eq!(Some(&*made.primary), expected);
                assert_eq!((&*made.name, made.version.last_mod), ("d", 2));
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!((error.code.0, expected), (70, None), "{error}");
            }
        };
        check(&[shard("a", 9, false), shard("b", 3, false)], Some("b"));
        check(&[shard("b", 3, false), shard("a", 3, false)], Some("a"));
        check(&[shard("a", 1, true), shard("b", 3, false)], Some("b"));
        check(&[shard("a", 1, true)], None);
        check(&[], None);
    }

    #[test]
    fn what_is_refused() {
        let shards = [
            shard("a", 9, false),
            shard("b", 3, false),
            shard("c", 1, true),
        ];
        let check = |name: &str, primary, code, text: &str| {
            let error = create(name, primary, &shards).expect_err(name);
            assert_eq!((error.code.0, &*error.message), (code, text));
        };
        check("admin", None, 72, "Cannot manually create database 'admin'");
        check("Local", None, 72, "Cannot manually create database 'Local'");
        check(
            "CONFIG",
            None,
            72,
            "Cannot manually create database 'CONFIG'",
        );
        check("a b", None, 73, "Invalid db name specified: a b");
        check(
            "$external",
            None,
            73,
            "Invalid db name specified: $external",
        );
        check(
            "sales",
            None,
            13297,
            "can't have 2 databases that just differ on case  have: Sales want to add: sales",
        );
        check(
            "Sales",
            Some("a"),
            48,
            "database already created on a primary which is different from a",
        );
        check("d", Some("x"), 70, "Shard x not found");
        check("d", Some("c"), 70, "Shard c is currently draining");
    }

    #[test]
    fn what_is_there_and_what_is_asked_for() {
        let shards = [shard("a", 9, false), shard("b", 3, false)];
        for primary in [None, Some("b")] {
            let found = create("Sales", primary, &shards).expect("there");
            assert!(matches!(found, DatabaseCreation::Exists(d) if d.primary == "b"));
        }
        let found = create("d", Some("a"), &shards).expect("made");
        assert!(matches!(found, DatabaseCreation::Create(d) if d.primary == "a"));
        let config = create("config", None, &shards).expect("there");
        assert!(
            matches!(config, DatabaseCreation::Exists(d) if d.primary == "config" && d.version.is_fixed())
        );
    }
}
