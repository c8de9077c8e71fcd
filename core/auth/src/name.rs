//! Names of users and roles, each with the database that it is of.

use std::fmt;

use pinion_bson::{DocBuilder, RawArray, RawBsonRef, RawDocument, elements, values};
use sha2::{Digest, Sha256};

use crate::access_error::{AccessError, AccessErrorCode};

/// The database whose users and roles may reach beyond it, and where all of them are stored.
pub const ADMIN_DATABASE: &str = "admin";
/// The database of users whose passwords are known elsewhere.
pub const EXTERNAL_DATABASE: &str = "$external";

/// A role and the database that it is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoleName {
    pub role: String,
    pub db: String,
}

/// A user and the database that it is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName {
    pub user: String,
    pub db: String,
}

impl RoleName {
    pub fn new(role: impl Into<String>, db: impl Into<String>) -> RoleName {
        let (role, db) = (role.into(), db.into());
        RoleName { role, db }
    }

    /// Reads `"name"`, a role of the database `default_db`, or `{role: "name", db: "db"}`.
    ///
    /// # Errors
    /// `BadValue` if it is neither.
    pub fn parse(value: RawBsonRef<'_>, default_db: &str) -> Result<RoleName, AccessError> {
        let (role, db) = parse_name(value, default_db, "role", "Role")?;
        Ok(RoleName { role, db })
    }

    /// Reads an array of names, in its order.
    ///
    /// # Errors
    /// Those of `parse`, of its first value that is no name.
    pub fn parse_all(array: &RawArray, default_db: &str) -> Result<Vec<RoleName>, AccessError> {
        values(array)
            .map(|value| RoleName::parse(value, default_db))
            .collect()
    }

    /// The `_id` of the role's document in `admin.system.roles`: `db.role`.
    pub fn id(&self) -> String {
        format!("{}.{}", self.db, self.role)
    }

    /// Writes `{role, db}` as a value of the array that is open.
    pub fn push_to(&self, out: &mut DocBuilder) {
        out.push_document()
            .append("role", &*self.role)
            .append("db", &*self.db)
            .end();
    }

    /// Writes names as an array into the document that is open, under this name.
    pub fn append_all<'r>(
        roles: impl IntoIterator<Item = &'r RoleName>,
        out: &mut DocBuilder,
        name: &str,
    ) {
        out.start_array(name);
        for role in roles {
            role.push_to(out);
        }
        out.end();
    }

    /// `RoleNotFound`, in MongoDB's words.
    pub fn not_found(&self) -> AccessError {
        let message = format!("Could not find role: {self}");
        AccessError::new(AccessErrorCode::RoleNotFound, message)
    }
}

impl UserName {
    pub fn new(user: impl Into<String>, db: impl Into<String>) -> UserName {
        let (user, db) = (user.into(), db.into());
        UserName { user, db }
    }

    /// Reads `"name"`, a user of the database `default_db`, or `{user: "name", db: "db"}`.
    ///
    /// # Errors
    /// `BadValue` if it is neither.
    pub fn parse(value: RawBsonRef<'_>, default_db: &str) -> Result<UserName, AccessError> {
        let (user, db) = parse_name(value, default_db, "user", "User")?;
        Ok(UserName { user, db })
    }

    /// The `_id` of the user's document in `admin.system.users`: `db.user`.
    pub fn id(&self) -> String {
        format!("{}.{}", self.db, self.user)
    }

    /// SHA-256 of `user@db`: the field `uid` of the ids of the user's sessions.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.to_string()).into()
    }

    /// Whether the user's password is known elsewhere.
    pub fn is_external(&self) -> bool {
        self.db == EXTERNAL_DATABASE
    }

    /// `UserNotFound`, in MongoDB's words.
    pub fn not_found(&self) -> AccessError {
        let UserName { user, db } = self;
        let message = format!("Could not find user \"{user}\" for db \"{db}\"");
        AccessError::new(AccessErrorCode::UserNotFound, message)
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.role, self.db)
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.db)
    }
}

fn parse_name(
    value: RawBsonRef<'_>,
    default_db: &str,
    field: &str,
    kind: &str,
) -> Result<(String, String), AccessError> {
    let (name, db) = match value {
        RawBsonRef::String(name) => (name, default_db),
        RawBsonRef::Document(document) => parse_fields(document, field, kind)?,
        _ => {
            let message = format!("{kind} name must be either a document or string");
            return Err(AccessError::bad_value(message));
        }
    };
    if name.contains('\0') || db.contains('\0') {
        let message = format!("{kind}Name must not contain a NUL");
        return Err(AccessError::bad_value(message));
    }
    Ok((name.to_owned(), db.to_owned()))
}

fn parse_fields<'d>(
    document: &'d RawDocument,
    field: &str,
    kind: &str,
) -> Result<(&'d str, &'d str), AccessError> {
    let mut name = None;
    let mut db = None;
    for (key, value) in elements(document) {
        match value {
            RawBsonRef::String(text) if key == field => name = Some(text),
            RawBsonRef::String(text) if key == "db" => db = Some(text),
            _ if key == field || key == "db" => {}
            _ => {
                let message = format!("{kind}Name contains an unknown field named: '{key}'");
                return Err(AccessError::bad_value(message));
            }
        }
    }
    let missing = |field: &str| {
        AccessError::bad_value(format!(
            "{kind}Name must contain a string field named: {field}"
        ))
    };
    let name = name.ok_or_else(|| missing(field))?;
    Ok((name, db.ok_or_else(|| missing("db"))?))
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawBson, rawbson, rawdoc};

    use super::*;

    #[test]
    fn names_are_read() {
        let check = |value: RawBson, expected: Result<(&str, &str), &str>| {
            let expected = expected.map(|(role, db)| RoleName::new(role, db));
            let read = RoleName::parse(value.as_raw_bson_ref(), "test");
            let read = read.map_err(|error| error.to_string());
            assert_eq!(read, expected.map_err(str::to_owned), "{value:?}");
        };
        check(rawbson!("read"), Ok(("read", "test")));
        check(
            rawbson!({ "role": "a.b", "db": "admin" }),
            Ok(("a.b", "admin")),
        );
        check(rawbson!({ "db": "d", "role": "r" }), Ok(("r", "d")));
        check(
            rawbson!(1),
            Err("BadValue: Role name must be either a document or string"),
        );
        check(
            rawbson!({ "role": "r" }),
            Err("BadValue: RoleName must contain a string field named: db"),
        );
        check(
            rawbson!({ "role": 1, "db": "d" }),
            Err("BadValue: RoleName must contain a string field named: role"),
        );
        check(
            rawbson!({ "role": "r", "db": "d", "x": "y" }),
            Err("BadValue: RoleName contains an unknown field named: 'x'"),
        );
        check(
            rawbson!("a\0"),
            Err("BadValue: RoleName must not contain a NUL"),
        );
        let user = rawbson!({ "user": "u", "db": "d" });
        assert_eq!(
            UserName::parse(user.as_raw_bson_ref(), "test"),
            Ok(UserName::new("u", "d"))
        );
    }

    #[test]
    fn names_are_written() {
        let role = RoleName::new("r", "d");
        assert_eq!((role.id(), role.to_string()), ("d.r".into(), "r@d".into()));
        let mut out = DocBuilder::new();
        RoleName::append_all([&role], &mut out, "roles");
        assert_eq!(
            out.finish(),
            rawdoc! { "roles": [{ "role": "r", "db": "d" }] }
        );
        assert_eq!(role.not_found().message, "Could not find role: r@d");
        let user = UserName::new("u", "d");
        assert_eq!(
            user.not_found().message,
            "Could not find user \"u\" for db \"d\""
        );
    }

    /// By `printf 'user@admin' | sha256sum`.
    #[test]
    fn digests_are_of_the_whole_name() {
        let digest = UserName::new("user", "admin").digest();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "78e672a9f1df895a5fbe23c35a0004466ccd167529f1405d95628de7416ff5fa"
        );
    }
}
