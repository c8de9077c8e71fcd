//! Namespaces: database and collection names, checked as MongoDB checks them.

use std::fmt;
use std::sync::Arc;

use pinion_wire::{Error, ErrorCode, Result};

use crate::limits::{MAX_DATABASE_NAME_BYTES, MAX_NAMESPACE_BYTES};

/// A full namespace, `database.collection`. Cheap to clone and to send to another core.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    full: Arc<str>,
    db_bytes: usize,
}

impl Namespace {
    /// Joins a database and a collection name and checks both.
    ///
    /// # Errors
    /// `InvalidNamespace` with MongoDB's text.
    pub fn new(db: &str, collection: &str) -> Result<Namespace> {
        check_database_name(db)?;
        check_collection_name(db, collection)?;
        Ok(Self::trusted(db, collection))
    }

    /// Splits `database.collection` at its first dot and checks both parts.
    pub fn parse(full: &str) -> Result<Namespace> {
        match full.split_once('.') {
            Some((db, collection)) => Self::new(db, collection),
            None => Err(invalid_namespace(full)),
        }
    }

    /// A namespace out of the catalog, whose names were checked when it was made.
    pub(crate) fn trusted(db: &str, collection: &str) -> Namespace {
        let mut full = String::with_capacity(db.len() + 1 + collection.len());
        full.push_str(db);
        full.push('.');
        full.push_str(collection);
        Namespace { full: full.into(), db_bytes: db.len() }
    }

    /// The database's name.
    pub fn db(&self) -> &str {
        &self.full[..self.db_bytes]
    }

    /// The collection's name.
    pub fn collection(&self) -> &str {
        &self.full[self.db_bytes + 1..]
    }

    /// `database.collection`.
    pub fn full(&self) -> &str {
        &self.full
    }

    pub(crate) fn shared(&self) -> Arc<str> {
        self.full.clone()
    }

    /// True for collections that live in one partition: all of `local`, and `system.*`.
    pub fn is_single_partition(&self) -> bool {
        self.db() == "local" || self.collection().starts_with("system.")
    }

    /// The namespace of the database's command entries, `database.$cmd`.
    pub fn command_namespace(&self) -> String {
        format!("{}.$cmd", self.db())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

fn invalid_namespace(full: &str) -> Error {
    Error::new(ErrorCode::INVALID_NAMESPACE, format!("Invalid namespace specified '{full}'"))
}

/// Checks a database's name: 1 to 63 bytes, none of `/\. "$` and no NUL.
pub fn check_database_name(db: &str) -> Result<()> {
    let forbidden = |b: u8| matches!(b, b'/' | b'\\' | b'.' | b' ' | b'"' | b'$' | 0);
    if db.is_empty() || db.len() > MAX_DATABASE_NAME_BYTES || db.bytes().any(forbidden) {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid database name: '{db}'"),
        ));
    }
    Ok(())
}

/// Checks a collection's name for use: not empty, no leading or doubled dot rules as MongoDB has them, no NUL.
pub fn check_collection_name(db: &str, collection: &str) -> Result<()> {
    if collection.is_empty() || collection.starts_with('.') || collection.contains('\0') {
        return Err(invalid_namespace(&format!("{db}.{collection}")));
    }
    if db.len() + 1 + collection.len() > MAX_NAMESPACE_BYTES {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!(
                "Fully qualified namespace is too long. Namespace: {db}.{collection} Max: {MAX_NAMESPACE_BYTES}"
            ),
        ));
    }
    Ok(())
}

/// Further rules for a collection that is about to be made: no `$` and no unknown `system.` name.
pub fn check_creatable(ns: &Namespace) -> Result<()> {
    let collection = ns.collection();
    if collection.contains('$') {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid collection name: {collection}"),
        ));
    }
    const KNOWN_SYSTEM: [&str; 7] =
        ["system.users", "system.roles", "system.version", "system.js", "system.profile", "system.sessions", "system.views"];
    if collection.starts_with("system.") && !KNOWN_SYSTEM.contains(&collection) {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid system namespace: {}", ns.full()),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(db: &str, collection: &str, valid: bool) {
        assert_eq!(Namespace::new(db, collection).is_ok(), valid, "{db:?} {collection:?}");
    }

    #[test]
    fn names_are_checked() {
        check("test", "c", true);
        check("test", "a.b", true);
        check("test", "a$b", true);
        check("", "c", false);
        check("te.st", "c", false);
        check("te st", "c", false);
        check("test", "", false);
        check("test", ".c", false);
        check("test", "a\0b", false);
        check(&"d".repeat(63), "c", true);
        check(&"d".repeat(64), "c", false);
        check("test", &"c".repeat(250), true);
        check("test", &"c".repeat(251), false);
    }

    #[test]
    fn parts_are_found() {
        let ns = Namespace::parse("db.a.b").unwrap();
        assert_eq!((ns.db(), ns.collection(), ns.full()), ("db", "a.b", "db.a.b"));
        assert!(Namespace::parse("nodot").is_err());
        assert!(Namespace::parse("local.x").unwrap().is_single_partition());
    }

    #[test]
    fn system_names_are_refused() {
        assert!(check_creatable(&Namespace::new("d", "system.foo").unwrap()).is_err());
        assert!(check_creatable(&Namespace::new("d", "system.js").unwrap()).is_ok());
        assert!(check_creatable(&Namespace::new("d", "a$b").unwrap()).is_err());
    }
}
