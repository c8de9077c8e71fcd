//! `rolesInfo`.

use pinion_auth::{
    Privilege, ResolvedRoles, Restrictions, RoleDefinition, RoleName, built_in_privileges,
    built_in_roles,
};
use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_service::login::ROLES;
use pinion_wire::idl::{FieldReader, Types, missing_field};
use pinion_wire::{Error, Invocation, Reply, Result};

use crate::arguments::Subject;
use crate::store::{check_exist, documents, of_database, resolve, stored_role};
use crate::users_info::append_inherited;

/// How privileges are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Privileges {
    Hidden,
    Shown,
    /// The roles together, as those of a user would be.
    AsUserFragment,
}

/// `rolesInfo`.
pub(crate) async fn roles_info(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let value = reader.value("rolesInfo");
    let value = value.ok_or_else(|| missing_field(reader.path().field("rolesInfo")))?;
    let parse = |value: RawBsonRef<'_>| Ok(RoleName::parse(value, cmd.db())?);
    let subject = match value {
        // Names of users alone may be those of all databases.
        value @ RawBsonRef::Document(_) => Subject::Named(vec![parse(value)?]),
        value => Subject::parse(value, parse)?,
    };
    let privileges = read_privileges(&reader)?;
    let restrictions = reader.opt_safe_bool("showAuthenticationRestrictions")?;
    let with_built_in = reader.opt_safe_bool("showBuiltinRoles")?.unwrap_or(false);
    reader.finish()?;
    if privileges == Privileges::AsUserFragment {
        return user_fragment(subject).await;
    }
    let mut out = Reply::new();
    out.start_array("roles");
    let shown = Shown {
        privileges: privileges == Privileges::Shown,
        restrictions: restrictions.unwrap_or(false),
    };
    for role in roles(&cmd, subject, with_built_in).await? {
        if let Some(described) = describe(&role, shown).await? {
            out.push(&*described);
        }
    }
    out.end();
    Ok(out)
}

/// A flag, or a word for another form of the answer.
fn read_privileges(reader: &FieldReader<'_, '_>) -> Result<Privileges> {
    const FIELD: &str = "showPrivileges";
    match reader.value(FIELD) {
        None | Some(RawBsonRef::Null) => Ok(Privileges::Hidden),
        Some(RawBsonRef::String("asUserFragment")) => Ok(Privileges::AsUserFragment),
        Some(RawBsonRef::String(other)) => Err(Error::failed_to_parse(format!(
            "Failed to parse 'showPrivileges'. 'asUserFragment' is the only string value that \
             rolesInfo takes, found '{other}'"
        ))),
        Some(value @ RawBsonRef::Boolean(_)) => Ok(flag(value)),
        Some(value) if pinion_wire::idl::is_number(value) => Ok(flag(value)),
        Some(value) => Err(reader.wrong_type(FIELD, value, Types::BOOL)),
    }
}

fn flag(value: RawBsonRef<'_>) -> Privileges {
    match pinion_wire::idl::truthy(value) {
        true => Privileges::Shown,
        false => Privileges::Hidden,
    }
}

/// Names in the order in which they are shown: as they were asked for, or the built-in ones before
/// the others, each by name.
async fn roles(
    cmd: &Invocation,
    subject: Subject<RoleName>,
    with_built_in: bool,
) -> Result<Vec<RoleName>> {
    if let Subject::Named(names) = subject {
        return Ok(names);
    }
    let mut all = Vec::new();
    if with_built_in {
        all.extend(built_in_roles(cmd.db()));
    }
    let mut stored = Vec::new();
    for document in documents(ROLES, &of_database(Some(cmd.db()))).await? {
        stored.extend(RoleDefinition::parse(&document).map(|role| role.name));
    }
    stored.sort();
    all.extend(stored);
    Ok(all)
}

/// What is shown of roles.
#[derive(Clone, Copy)]
struct Shown {
    privileges: bool,
    restrictions: bool,
}

/// What is shown of a role, if it exists.
async fn describe(name: &RoleName, shown: Shown) -> Result<Option<RawDocumentBuf>> {
    let mut out = DocBuilder::new();
    let built_in = built_in_privileges(name);
    let is_built_in = built_in.is_some();
    let definition = match built_in {
        Some(privileges) => RoleDefinition {
            privileges,
            ..RoleDefinition::new(name.clone())
        },
        None => match stored_role(name).await? {
            Some(definition) => {
                out.append("_id", &*name.id());
                definition
            }
            None => return Ok(None),
        },
    };
    out.append("role", &*name.role).append("db", &*name.db);
    if shown.privileges {
        Privilege::append_all(&definition.privileges, &mut out, "privileges");
    }
    RoleName::append_all(&definition.roles, &mut out, "roles");
    if shown.restrictions {
        let own = &definition.restrictions;
        own.append_to(&mut out, "authenticationRestrictions");
    }
    let resolved = resolve(vec![name.clone()]).await?;
    let inherited = resolved.roles.iter().filter(|role| *role != name);
    RoleName::append_all(inherited, &mut out, "inheritedRoles");
    append_inherited_of(&resolved, shown, &mut out);
    out.append("isBuiltin", is_built_in);
    Ok(Some(out.finish()))
}

fn append_inherited_of(resolved: &ResolvedRoles, shown: Shown, out: &mut DocBuilder) {
    if shown.privileges {
        Privilege::append_all(&resolved.privileges, out, "inheritedPrivileges");
    }
    if shown.restrictions {
        append_inherited(&resolved.restrictions, out);
    }
}

/// What a user would have that had these roles.
async fn user_fragment(subject: Subject<RoleName>) -> Result<Reply> {
    let Subject::Named(names) = subject else {
        return Err(Error::bad_value(
            "Cannot get user fragment for all roles in a database",
        ));
    };
    check_exist(&names).await?;
    let resolved = resolve(names.clone()).await?;
    let mut out = Reply::new();
    out.start_document("userFragment");
    RoleName::append_all(&names, &mut out, "roles");
    Restrictions::default().append_to(&mut out, "authenticationRestrictions");
    RoleName::append_all(&resolved.roles, &mut out, "inheritedRoles");
    let shown = Shown {
        privileges: true,
        restrictions: true,
    };
    append_inherited_of(&resolved, shown, &mut out);
    out.end();
    Ok(out)
}
