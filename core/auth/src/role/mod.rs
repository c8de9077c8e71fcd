//! Roles that clients define: their documents in `admin.system.roles`, and what may be granted to
//! them.
//!
//! Source: MongoDB's manual, "system.roles Collection" and `createRole`.

mod built_in;
mod closure;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, get, type_name};

use crate::access_error::{AccessError, AccessErrorCode};
use crate::name::{ADMIN_DATABASE, RoleName};
use crate::privilege::{Privilege, parse_array};
use crate::resource::ResourcePattern;
use crate::restriction::Restrictions;

pub use built_in::{built_in_privileges, built_in_roles, is_built_in};
pub use closure::{ResolvedRoles, RoleClosure};

/// A role that a client defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleDefinition {
    pub name: RoleName,
    pub privileges: Vec<Privilege>,
    /// The roles whose privileges it has too.
    pub roles: Vec<RoleName>,
    pub restrictions: Restrictions,
    /// Actions in its document that MongoDB 8 does not have, as roles of other versions may. They
    /// grant nothing, and are not written back.
    pub unknown_actions: Vec<String>,
}

impl RoleDefinition {
    pub fn new(name: RoleName) -> RoleDefinition {
        RoleDefinition {
            name,
            privileges: Vec::new(),
            roles: Vec::new(),
            restrictions: Restrictions::default(),
            unknown_actions: Vec::new(),
        }
    }

    /// Reads a document of `admin.system.roles`.
    ///
    /// # Errors
    /// `NoSuchKey` and `TypeMismatch` of a field; `FailedToParse` if `_id` is not that of the role;
    /// those of privileges, roles and restrictions.
    pub fn parse(document: &RawDocument) -> Result<RoleDefinition, AccessError> {
        let name = RoleName::new(text(document, "role")?, text(document, "db")?);
        if name.role.is_empty() || name.db.is_empty() {
            let message = "Role names and their databases must be non-empty";
            return Err(AccessError::bad_value(message));
        }
        if text(document, "_id")? != name.id() {
            return Err(AccessError::new(
                AccessErrorCode::FailedToParse,
                "Role document _id fields must be encoded as the string dbname.rolename",
            ));
        }
        let mut role = RoleDefinition::new(name);
        match field(document, "privileges", "array")? {
            RawBsonRef::Array(array) => {
                let read = parse_array(array, "privileges")?;
                role.privileges = read.privileges;
                role.unknown_actions = read.unknown_actions;
            }
            other => return Err(wrong_type("privileges", "array", other)),
        }
        match field(document, "roles", "array")? {
            RawBsonRef::Array(array) => role.roles = RoleName::parse_all(array, &role.name.db)?,
            other => return Err(wrong_type("roles", "array", other)),
        }
        match get(document, "authenticationRestrictions") {
            None | Some(RawBsonRef::Null) => {}
            Some(RawBsonRef::Array(array)) => {
                role.restrictions = Restrictions::parse(array, "authenticationRestrictions")?;
            }
            Some(other) => return Err(wrong_type("authenticationRestrictions", "array", other)),
        }
        Ok(role)
    }

    /// The document of `admin.system.roles`. Restrictions are left out where there are none.
    pub fn document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", &*self.name.id())
            .append("role", &*self.name.role)
            .append("db", &*self.name.db);
        Privilege::append_all(&self.privileges, &mut out, "privileges");
        RoleName::append_all(&self.roles, &mut out, "roles");
        if !self.restrictions.is_empty() {
            self.restrictions
                .append_to(&mut out, "authenticationRestrictions");
        }
        out.finish()
    }
}

/// Refuses privileges that a role must not have: one of a database other than `admin` has those on
/// its own database alone.
///
/// # Errors
/// `InvalidRoleModification`.
pub fn check_privileges(role: &RoleName, privileges: &[Privilege]) -> Result<(), AccessError> {
    let is_own = |resource: &ResourcePattern| resource.database() == Some(&*role.db);
    if role.db == ADMIN_DATABASE || privileges.iter().all(|one| is_own(&one.resource)) {
        return Ok(());
    }
    Err(invalid(format!(
        "Roles on the '{}' database cannot be granted privileges that target other databases or \
         the cluster",
        role.db
    )))
}

/// Refuses roles that a role must not contain: itself, and, of a database other than `admin`, those
/// of other databases. `is_within(granted)` is whether the role is among those that the granted one
/// contains, directly or not.
///
/// # Errors
/// `InvalidRoleModification`.
pub fn check_contained_roles(
    role: &RoleName,
    granted: &[RoleName],
    mut is_within: impl FnMut(&RoleName) -> bool,
) -> Result<(), AccessError> {
    for grant in granted {
        if grant == role {
            return Err(invalid(format!("Cannot grant role {role} to itself.")));
        }
        if role.db != ADMIN_DATABASE && grant.db != role.db {
            return Err(invalid(format!(
                "Roles on the '{}' database cannot be granted roles from other databases",
                role.db
            )));
        }
        if is_within(grant) {
            return Err(invalid(format!(
                "Granting {grant} to {role} would introduce a cycle in the role graph."
            )));
        }
    }
    Ok(())
}

/// Refuses changes of a built-in role.
///
/// # Errors
/// `InvalidRoleModification`.
pub fn check_modifiable(role: &RoleName) -> Result<(), AccessError> {
    if is_built_in(role) {
        let message = format!("{role} is a built-in role and cannot be modified");
        return Err(invalid(message));
    }
    Ok(())
}

fn invalid(message: String) -> AccessError {
    AccessError::new(AccessErrorCode::InvalidRoleModification, message)
}

fn text<'d>(document: &'d RawDocument, name: &str) -> Result<&'d str, AccessError> {
    match field(document, name, "string")? {
        RawBsonRef::String(text) => Ok(text),
        other => Err(wrong_type(name, "string", other)),
    }
}

fn field<'d>(
    document: &'d RawDocument,
    name: &str,
    expected: &str,
) -> Result<RawBsonRef<'d>, AccessError> {
    get(document, name).ok_or_else(|| {
        let message = format!("Missing expected field \"{name}\" of type {expected}");
        AccessError::new(AccessErrorCode::NoSuchKey, message)
    })
}

fn wrong_type(name: &str, expected: &str, value: RawBsonRef<'_>) -> AccessError {
    let found = type_name(value.element_type());
    let message = format!("\"{name}\" had the wrong type. Expected {expected}, found {found}");
    AccessError::new(AccessErrorCode::TypeMismatch, message)
}

#[cfg(test)]
mod tests {
    use pinion_bson::testing::Rng;
    use pinion_bson::{RawArrayBuf, RawBson, rawbson, rawdoc};

    use super::*;

    fn privileges(value: RawBson) -> Vec<Privilege> {
        let RawBson::Array(array) = value else {
            panic!("an array")
        };
        Privilege::parse_all(&array, "privileges").unwrap()
    }

    fn stored() -> RawDocumentBuf {
        rawdoc! {
            "_id": "d.r",
            "role": "r",
            "db": "d",
            "privileges": [
                { "resource": { "db": "d", "collection": "" }, "actions": ["find", "insert"] },
            ],
            "roles": [{ "role": "read", "db": "d" }],
            "authenticationRestrictions": [{ "clientSource": ["10.0.0.0/8"] }],
        }
    }

    fn with(name: &str, value: Option<RawBson>) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        for (field, known) in pinion_bson::elements(&stored()) {
            match &value {
                _ if field != name => out.append(field, known),
                Some(value) => out.append(field, value.as_raw_bson_ref()),
                None => &mut out,
            };
        }
        out.finish()
    }

    #[test]
    fn roles_are_read_and_written_back() {
        let role = RoleDefinition::parse(&stored()).unwrap();
        assert_eq!(role.name, RoleName::new("r", "d"));
        assert_eq!(role.document(), stored());
        let none = with("authenticationRestrictions", None);
        assert_eq!(RoleDefinition::parse(&none).unwrap().document(), none);
        // As another version stored it.
        let other = rawbson!([
            { "resource": { "cluster": true }, "actions": ["setFreeMonitoring", "top"] },
            { "resource": { "db": "d", "collection": "" }, "actions": ["storageDetails"] },
        ]);
        let role = RoleDefinition::parse(&with("privileges", Some(other))).unwrap();
        assert_eq!(
            role.unknown_actions,
            ["setFreeMonitoring", "storageDetails"]
        );
        let expected = rawbson!([{ "resource": { "cluster": true }, "actions": ["top"] }]);
        assert_eq!(role.privileges, privileges(expected));
    }

    #[test]
    fn broken_roles_are_refused() {
        let check = |name: &str, value: Option<RawBson>, code: i32, message: &str| {
            let error = RoleDefinition::parse(&with(name, value)).expect_err(message);
            assert_eq!((error.code.number(), &*error.message), (code, message));
        };
        check(
            "role",
            None,
            4,
            "Missing expected field \"role\" of type string",
        );
        check(
            "db",
            Some(rawbson!(1)),
            14,
            "\"db\" had the wrong type. Expected string, found int",
        );
        let id = "Role document _id fields must be encoded as the string dbname.rolename";
        check("_id", Some(rawbson!("r.d")), 9, id);
        check(
            "role",
            Some(rawbson!("")),
            2,
            "Role names and their databases must be non-empty",
        );
        check(
            "privileges",
            Some(rawbson!({})),
            14,
            "\"privileges\" had the wrong type. Expected array, found object",
        );
        check(
            "roles",
            None,
            4,
            "Missing expected field \"roles\" of type array",
        );
        check(
            "roles",
            Some(rawbson!([1])),
            2,
            "Role name must be either a document or string",
        );
        check(
            "authenticationRestrictions",
            Some(rawbson!(1)),
            14,
            "\"authenticationRestrictions\" had the wrong type. Expected array, found int",
        );
        let empty = RawArrayBuf::new();
        assert!(RoleName::parse_all(&empty, "d").unwrap().is_empty());
    }

    /// Whatever a field holds, the document is read or refused.
    #[test]
    fn no_document_does_harm() {
        let mut rng = Rng::new(9);
        let stored = stored();
        let names: Vec<&str> = pinion_bson::elements(&stored)
            .map(|(name, _)| name)
            .collect();
        for _ in 0..500 {
            let name = rng.pick(&names);
            let value = pinion_bson::testing::value(&mut rng);
            if let Ok(role) = RoleDefinition::parse(&with(name, Some(value))) {
                drop(role.document());
            }
            let _ = RoleDefinition::parse(&pinion_bson::testing::document(&mut rng));
        }
    }

    #[test]
    fn privileges_are_of_the_database_of_the_role() {
        let check = |db: &str, resource: RawBson, is_allowed: bool| {
            let given = privileges(rawbson!([{ "resource": resource, "actions": ["find"] }]));
            let checked = check_privileges(&RoleName::new("r", db), &given);
            let expected = "InvalidRoleModification: Roles on the 'd' database cannot be granted \
                            privileges that target other databases or the cluster";
            match checked {
                Ok(()) => assert!(is_allowed, "{given:?}"),
                Err(error) => assert_eq!((error.to_string(), is_allowed), (expected.into(), false)),
            }
        };
        check("d", rawbson!({ "db": "d", "collection": "" }), true);
        check("d", rawbson!({ "db": "d", "collection": "c" }), true);
        check("d", rawbson!({ "db": "d", "system_buckets": "c" }), true);
        check("d", rawbson!({ "db": "e", "collection": "" }), false);
        check("d", rawbson!({ "db": "", "collection": "" }), false);
        check("d", rawbson!({ "db": "", "collection": "c" }), false);
        check("d", rawbson!({ "cluster": true }), false);
        check("d", rawbson!({ "anyResource": true }), false);
        check("admin", rawbson!({ "cluster": true }), true);
        check("admin", rawbson!({ "db": "e", "collection": "" }), true);
    }

    #[test]
    fn roles_contain_those_of_their_database() {
        let check = |role: (&str, &str), granted: (&str, &str), expected: Option<&str>| {
            let role = RoleName::new(role.0, role.1);
            let granted = RoleName::new(granted.0, granted.1);
            let within = RoleName::new("outer", "d");
            let checked = check_contained_roles(&role, &[granted], |grant| *grant == within);
            let error = checked.err();
            let code = error.as_ref().map(|error| error.code);
            assert_eq!(
                code,
                expected.map(|_| AccessErrorCode::InvalidRoleModification)
            );
            assert_eq!(
                error.map(|error| error.message),
                expected.map(str::to_owned)
            );
        };
        check(("r", "d"), ("read", "d"), None);
        check(("r", "admin"), ("read", "d"), None);
        check(
            ("r", "d"),
            ("r", "d"),
            Some("Cannot grant role r@d to itself."),
        );
        let other = "Roles on the 'd' database cannot be granted roles from other databases";
        check(("r", "d"), ("root", "admin"), Some(other));
        let cycle = "Granting outer@d to r@d would introduce a cycle in the role graph.";
        check(("r", "d"), ("outer", "d"), Some(cycle));
        check_modifiable(&RoleName::new("r", "d")).unwrap();
        assert_eq!(
            check_modifiable(&RoleName::new("read", "d"))
                .unwrap_err()
                .message,
            "read@d is a built-in role and cannot be modified"
        );
    }
}
