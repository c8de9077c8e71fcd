//! Arguments that several commands of users and roles have.

use pinion_auth::{Privilege, Restrictions, RoleName};
use pinion_bson::{RawArray, RawBsonRef, RawDocumentBuf};
use pinion_wire::idl::{CommandReader, Types, missing_field, wrong_type};
use pinion_wire::{Error, Result};

use crate::passwords::Password;

/// What `createUser` and `updateUser` give a user.
#[derive(Clone)]
pub(crate) struct UserArguments {
    pub password: Option<Password>,
    pub mechanisms: Option<Vec<String>>,
    pub custom_data: Option<RawDocumentBuf>,
    pub roles: Option<Vec<RoleName>>,
    pub restrictions: Option<Restrictions>,
}

impl UserArguments {
    pub(crate) fn read(reader: &CommandReader<'_>, db: &str) -> Result<UserArguments> {
        let text = reader.opt_str("pwd")?.map(str::to_owned);
        let is_digested = !reader.opt_bool("digestPassword")?.unwrap_or(true);
        Ok(UserArguments {
            password: text.map(|text| Password { text, is_digested }),
            mechanisms: read_mechanisms(reader)?,
            custom_data: reader.opt_doc("customData")?.map(ToOwned::to_owned),
            roles: read_roles(reader, db)?,
            restrictions: read_restrictions(reader)?,
        })
    }
}

fn read_mechanisms(reader: &CommandReader<'_>) -> Result<Option<Vec<String>>> {
    let Some(array) = reader.opt_array("mechanisms")? else {
        return Ok(None);
    };
    let path = reader.path().field("mechanisms");
    let names = pinion_bson::values(array).enumerate().map(|(at, value)| {
        let name = value.as_str().map(str::to_owned);
        name.ok_or_else(|| wrong_type(path.index(at), value, Types::STRING))
    });
    names.collect::<Result<_>>().map(Some)
}

/// `roles`: names, of roles of the command's database where they name none.
///
/// # Errors
/// It is no array of names.
pub(crate) fn read_roles(reader: &CommandReader<'_>, db: &str) -> Result<Option<Vec<RoleName>>> {
    match reader.opt_array("roles")? {
        None => Ok(None),
        Some(roles) => Ok(Some(RoleName::parse_all(roles, db)?)),
    }
}

/// `roles` of a command that has to have some.
///
/// # Errors
/// It is missing, empty, or no array of names.
pub(crate) fn read_some_roles(reader: &CommandReader<'_>, db: &str) -> Result<Vec<RoleName>> {
    let roles = required(reader, "roles", read_roles(reader, db)?)?;
    check_some(reader, "roles", roles.is_empty())?;
    Ok(roles)
}

/// `privileges`.
///
/// # Errors
/// It is no array of privileges.
pub(crate) fn read_privileges(
    reader: &CommandReader<'_>,
    command: &str,
) -> Result<Option<Vec<Privilege>>> {
    let parse = |array: &RawArray| Privilege::parse_all(array, &format!("{command}.privileges"));
    Ok(reader.opt_array("privileges")?.map(parse).transpose()?)
}

/// `privileges` of a command that has to have some.
///
/// # Errors
/// It is missing, empty, or no array of privileges.
pub(crate) fn read_some_privileges(
    reader: &CommandReader<'_>,
    command: &str,
) -> Result<Vec<Privilege>> {
    let privileges = required(reader, "privileges", read_privileges(reader, command)?)?;
    check_some(reader, "privileges", privileges.is_empty())?;
    Ok(privileges)
}

/// `authenticationRestrictions`.
///
/// # Errors
/// It is no array of restrictions.
pub(crate) fn read_restrictions(reader: &CommandReader<'_>) -> Result<Option<Restrictions>> {
    const FIELD: &str = "authenticationRestrictions";
    let path = reader.path().field(FIELD).to_string();
    let parse = |array: &RawArray| Restrictions::parse(array, &path);
    Ok(reader.opt_array(FIELD)?.map(parse).transpose()?)
}

/// The value of an argument that a command has to have.
///
/// # Errors
/// `IDLFailedToParse`.
pub(crate) fn required<T>(reader: &CommandReader<'_>, name: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| missing_field(reader.path().field(name)))
}

fn check_some(reader: &CommandReader<'_>, name: &str, is_empty: bool) -> Result<()> {
    match is_empty {
        false => Ok(()),
        true => Err(Error::bad_value(format!(
            "{} command requires a non-empty \"{name}\" array",
            reader.path()
        ))),
    }
}

/// The users or roles that `usersInfo` and `rolesInfo` describe.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Subject<N> {
    /// All of the database that the command is sent to.
    OfDatabase,
    OfAllDatabases,
    /// Those that exist of these.
    Named(Vec<N>),
}

impl<N> Subject<N> {
    /// Reads it, with what reads a name.
    ///
    /// # Errors
    /// Those of names.
    pub(crate) fn parse(
        value: RawBsonRef<'_>,
        parse: impl Fn(RawBsonRef<'_>) -> Result<N>,
    ) -> Result<Subject<N>> {
        match value {
            RawBsonRef::Array(names) => {
                let names = pinion_bson::values(names).map(parse).collect::<Result<_>>();
                Ok(Subject::Named(names?))
            }
            value if pinion_wire::idl::is_number(value) => Ok(Subject::OfDatabase),
            RawBsonRef::Document(document) if is_for_all(document) => Ok(Subject::OfAllDatabases),
            value => Ok(Subject::Named(vec![parse(value)?])),
        }
    }
}

fn is_for_all(document: &pinion_bson::RawDocument) -> bool {
    pinion_bson::get(document, "forAllDBs") == Some(RawBsonRef::Boolean(true))
}

#[cfg(test)]
mod tests {
    use pinion_auth::UserName;
    use pinion_bson::{RawBson, rawbson};

    use super::*;

    #[test]
    fn subjects_are_read() {
        let check = |value: RawBson, expected: Option<Subject<UserName>>| {
            let parse = |value: RawBsonRef<'_>| Ok(UserName::parse(value, "d")?);
            let read = Subject::parse(value.as_raw_bson_ref(), parse);
            assert_eq!(read.ok(), expected, "{value:?}");
        };
        let named = |names: &[(&str, &str)]| {
            let names = names.iter().map(|(user, db)| UserName::new(*user, *db));
            Some(Subject::Named(names.collect()))
        };
        check(rawbson!(1), Some(Subject::OfDatabase));
        check(
            rawbson!({ "forAllDBs": true }),
            Some(Subject::OfAllDatabases),
        );
        check(rawbson!("u"), named(&[("u", "d")]));
        check(rawbson!({ "user": "u", "db": "e" }), named(&[("u", "e")]));
        check(
            rawbson!(["u", { "user": "v", "db": "e" }]),
            named(&[("u", "d"), ("v", "e")]),
        );
        check(rawbson!([1]), None);
        check(rawbson!({ "forAllDBs": false }), None);
        check(rawbson!(true), None);
    }
}
