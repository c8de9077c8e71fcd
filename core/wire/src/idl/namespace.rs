//! Names of databases and collections.

use std::fmt;

use crate::error::{Error, ErrorCode, Result};
use crate::limits::{MAX_DATABASE_NAME_BYTES, MAX_NAMESPACE_BYTES};

/// A database and a collection: `db.collection`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    text: Box<str>,
    db_len: u8,
}

impl Namespace {
    /// Joins a valid database name and a valid collection name; InvalidNamespace (73) otherwise.
    pub fn new(db: &str, collection: &str) -> Result<Namespace> {
        match is_valid(db, collection) {
            true => Ok(Namespace::join(db, collection)),
            false => Err(invalid(&[db, ".", collection].concat())),
        }
    }

    /// Checks that one that was looked for may have a collection.
    ///
    /// # Errors
    /// InvalidNamespace (73), as [`Namespace::new`] gives it.
    pub fn check(&self) -> Result<()> {
        match is_valid(self.db(), self.collection()) {
            true => Ok(()),
            false => Err(invalid(&self.text)),
        }
    }

    /// The namespace that a command looks for: its name may be longer than that of any collection,
    /// and may have a `$`, and then there is no such collection. Nothing may be made under it: that
    /// takes [`Namespace::new`].
    ///
    /// # Errors
    /// InvalidNamespace (73) for what MongoDB does not take as a name at all: an empty one, one
    /// with NUL or with a dot in front.
    pub fn sought(db: &str, collection: &str) -> Result<Namespace> {
        let is_name =
            !collection.is_empty() && !collection.starts_with('.') && !collection.contains('\0');
        if !is_name || !is_valid_database_name(db) {
            return Err(invalid(&[db, ".", collection].concat()));
        }
        Ok(Namespace::join(db, collection))
    }

    /// As [`Namespace::sought`], of `db.collection`, which is split at its first dot.
    pub fn parse_sought(text: &str) -> Result<Namespace> {
        match text.split_once('.') {
            Some((db, collection)) => Namespace::sought(db, collection),
            None => Err(invalid(text)),
        }
    }

    fn join(db: &str, collection: &str) -> Namespace {
        Namespace {
            text: [db, ".", collection].concat().into(),
            db_len: db.len() as u8,
        }
    }

    /// Splits `db.collection` at its first dot.
    pub fn parse(text: &str) -> Result<Namespace> {
        match text.split_once('.') {
            Some((db, collection)) => Namespace::new(db, collection),
            None => Err(invalid(text)),
        }
    }

    pub fn db(&self) -> &str {
        &self.text[..self.db_len.into()]
    }

    pub fn collection(&self) -> &str {
        &self.text[usize::from(self.db_len) + 1..]
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

fn is_valid(db: &str, collection: &str) -> bool {
    is_valid_database_name(db)
        && is_valid_collection_name(collection)
        && db.len() + 1 + collection.len() <= MAX_NAMESPACE_BYTES
}

#[cold]
fn invalid(text: &str) -> Error {
    Error::new(
        ErrorCode::INVALID_NAMESPACE,
        format!("Invalid namespace specified '{text}'"),
    )
}

const _: () = assert!(MAX_DATABASE_NAME_BYTES <= u8::MAX as usize);

/// True for a name a database may have: 1 to 63 bytes without `/ \ . space " $` and NUL;
/// `$external` is the one name with a dollar.
pub fn is_valid_database_name(name: &str) -> bool {
    let forbidden = |b: u8| matches!(b, b'/' | b'\\' | b'.' | b' ' | b'"' | b'$' | 0);
    (1..=MAX_DATABASE_NAME_BYTES).contains(&name.len())
        && (name == "$external" || !name.bytes().any(forbidden))
}

/// True for a name a collection may have: not empty, no dot in front, no NUL, and no `$` but in the
/// names the server itself uses.
pub fn is_valid_collection_name(name: &str) -> bool {
    let internal = matches!(name, "$cmd.aggregate" | "oplog.$main") || name.starts_with("$cmd.");
    !name.is_empty()
        && !name.starts_with('.')
        && !name.bytes().any(|b| b == 0 || (b == b'$' && !internal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        fn check(db: &str, collection: &str, valid: bool) {
            let made = Namespace::new(db, collection);
            assert_eq!(made.is_ok(), valid, "{db}.{collection}");
            match made {
                Ok(namespace) => {
                    assert_eq!((namespace.db(), namespace.collection()), (db, collection));
                    assert_eq!(Namespace::parse(namespace.as_str()).unwrap(), namespace);
                }
                Err(error) => {
                    assert_eq!(error.code, ErrorCode::INVALID_NAMESPACE);
                    assert_eq!(
                        error.message,
                        format!("Invalid namespace specified '{db}.{collection}'")
                    );
                }
            }
        }
        check("test", "c", true);
        check("test", "a.b.c", true);
        check("test", "system.views", true);
        check("test", "$cmd.aggregate", true);
        check("test", "", false);
        check("", "c", false);
        check("test", ".c", false);
        check("test", "$invalid", false);
        check("te st", "c", false);
        check("te$t", "c", false);
        check("test", "a\0b", false);
        check(&"d".repeat(63), "c", true);
        check(&"d".repeat(64), "c", false);
        check("d", &"c".repeat(253), true);
        check("d", &"c".repeat(254), false);
    }

    #[test]
    fn names_that_are_looked_for() {
        for collection in ["c", "$x", "a$b", "a..b", "x.", &"c".repeat(5000)] {
            let sought = Namespace::sought("d", collection).expect("a name");
            assert_eq!((sought.db(), sought.collection()), ("d", collection));
            assert_eq!(Namespace::parse_sought(sought.as_str()).unwrap(), sought);
            let made = Namespace::new("d", collection).map(|_| ());
            assert_eq!(
                sought.check().map_err(|error| error.message),
                made.map_err(|error| error.message)
            );
        }
        for (db, collection) in [
            ("d", ""),
            ("d", ".c"),
            ("d", "a\0b"),
            ("", "c"),
            ("a b", "c"),
        ] {
            let refused = Namespace::sought(db, collection).unwrap_err();
            assert_eq!(
                refused.code,
                ErrorCode::INVALID_NAMESPACE,
                "{db}.{collection}"
            );
        }
        assert!(Namespace::parse_sought("d").is_err());
    }
}
