//! The commands that make, change and drop roles.

use pinion_auth::{
    EXTERNAL_DATABASE, MEMBER_DATABASE, Privilege, RoleDefinition, RoleName, check_contained_roles,
    check_modifiable, check_privileges, is_built_in,
};
use pinion_bson::DocBuilder;
use pinion_service::login::{ROLES, USERS};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use crate::arguments::{
    read_privileges, read_restrictions, read_roles, read_some_privileges, read_some_roles, required,
};
use crate::store::{
    acknowledged, all_removed, change, check_exist, documents, insert, of_database, remove,
    remove_all, resolve, set_roles, stored_role, take_roles, update,
};
use crate::users::changed_roles;

/// MongoDB's code of a role that is there already.
const ROLE_EXISTS: ErrorCode = ErrorCode(51_002);

/// Refuses roles that a role cannot contain.
///
/// # Errors
/// `RoleNotFound`, `InvalidRoleModification`.
async fn check_roles(role: &RoleName, granted: &[RoleName]) -> Result<()> {
    check_exist(granted).await?;
    let mut containing = Vec::new();
    for grant in granted {
        let resolved = resolve(vec![grant.clone()]).await?;
        if resolved.roles.contains(role) {
            containing.push(grant);
        }
    }
    Ok(check_contained_roles(role, granted, |grant| {
        containing.contains(&grant)
    })?)
}

/// A role that clients may change.
///
/// # Errors
/// `InvalidRoleModification` of a built-in one, `RoleNotFound`.
async fn modifiable(name: &RoleName) -> Result<RoleDefinition> {
    check_modifiable(name)?;
    let role = stored_role(name).await?;
    role.ok_or_else(|| name.not_found().into())
}

/// `createRole`.
pub(crate) async fn create_role(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = RoleName::new(reader.str("createRole")?, cmd.db());
    let privileges = required(
        &reader,
        "privileges",
        read_privileges(&reader, "createRole")?,
    )?;
    let roles = required(&reader, "roles", read_roles(&reader, cmd.db())?)?;
    let restrictions = read_restrictions(&reader)?.unwrap_or_default();
    reader.finish()?;
    check_name(&name)?;
    let role = RoleDefinition {
        privileges,
        roles,
        restrictions,
        ..RoleDefinition::new(name)
    };
    change(&cmd.ctx, move |ctx| async move {
        check_roles(&role.name, &role.roles).await?;
        check_privileges(&role.name, &role.privileges)?;
        let document = role.document();
        RoleDefinition::parse(&document)?;
        insert(&ctx, ROLES, &document)
            .await
            .map_err(|error| match error.code {
                ErrorCode::DUPLICATE_KEY => {
                    let message = format!("Role \"{}\" already exists", role.name);
                    Error::new(ROLE_EXISTS, message)
                }
                _ => error,
            })
    })
    .await?;
    acknowledged(&cmd.ctx, Reply::new()).await
}

fn check_name(role: &RoleName) -> Result<()> {
    let refused = |message: &str| Err(Error::bad_value(message));
    match &*role.db {
        _ if role.role.is_empty() => refused("Role name must be non-empty"),
        _ if role.role.contains('\0') => refused("RoleName must not contain a NUL"),
        MEMBER_DATABASE => refused("Cannot create roles in the local database"),
        EXTERNAL_DATABASE => refused("Cannot create roles in the $external database"),
        _ if is_built_in(role) => {
            refused("Cannot create roles with the same name as a built-in role")
        }
        _ => Ok(()),
    }
}

/// `updateRole`.
pub(crate) async fn update_role(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = RoleName::new(reader.str("updateRole")?, cmd.db());
    let privileges = read_privileges(&reader, "updateRole")?;
    let roles = read_roles(&reader, cmd.db())?;
    let restrictions = read_restrictions(&reader)?;
    reader.finish()?;
    let (mut set, mut unset) = (DocBuilder::new(), DocBuilder::new());
    if let Some(privileges) = &privileges {
        Privilege::append_all(privileges, &mut set, "privileges");
    }
    if let Some(roles) = &roles {
        RoleName::append_all(roles, &mut set, "roles");
    }
    match &restrictions {
        None => {}
        Some(none) if none.is_empty() => {
            unset.append("authenticationRestrictions", "");
        }
        Some(some) => some.append_to(&mut set, "authenticationRestrictions"),
    }
    let mut changes = DocBuilder::new();
    for (operator, fields) in [("$set", set.finish()), ("$unset", unset.finish())] {
        if !fields.is_empty() {
            changes.append(operator, &*fields);
        }
    }
    let changes = changes.finish();
    if changes.is_empty() {
        return Err(Error::bad_value(
            "Must specify at least one field to update in updateRole",
        ));
    }
    change(&cmd.ctx, move |ctx| async move {
        modifiable(&name).await?;
        check_roles(&name, roles.as_deref().unwrap_or_default()).await?;
        check_privileges(&name, privileges.as_deref().unwrap_or_default())?;
        update(&ctx, ROLES, &name.id(), &changes).await
    })
    .await?;
    acknowledged(&cmd.ctx, Reply::new()).await
}

/// `dropRole`. Users and roles lose it before it goes: where that is interrupted, the role is still
/// there to be dropped again.
pub(crate) async fn drop_role(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = RoleName::new(reader.str("dropRole")?, cmd.db());
    reader.finish()?;
    change(&cmd.ctx, move |ctx| async move {
        modifiable(&name).await?;
        take_everywhere(&ctx, |role| *role == name).await?;
        remove(&ctx, ROLES, &name.id()).await
    })
    .await?;
    acknowledged(&cmd.ctx, Reply::new()).await
}

/// Takes roles from all users and roles that have them.
async fn take_everywhere(ctx: &OpContext, is_taken: impl Fn(&RoleName) -> bool) -> Result<()> {
    for ns in [USERS, ROLES] {
        for holder in documents(ns, &of_database(None)).await? {
            take_roles(ctx, ns, &holder, &is_taken).await?;
        }
    }
    Ok(())
}

/// `dropAllRolesFromDatabase`.
pub(crate) async fn drop_all_roles(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["dropAllRolesFromDatabase"]);
    reader.finish()?;
    let db = cmd.db().to_owned();
    let dropped = change(&cmd.ctx, move |ctx| async move {
        let is_dropped = |role: &RoleName| role.db == db && !is_built_in(role);
        let roles = documents(ROLES, &of_database(Some(&db))).await?;
        if !roles.is_empty() {
            take_everywhere(&ctx, is_dropped).await?;
        }
        remove_all(&ctx, ROLES, &roles).await
    })
    .await?;
    all_removed(&cmd.ctx, dropped).await
}

/// `grantPrivilegesToRole`.
pub(crate) async fn grant_privileges(cmd: Invocation) -> Result<Reply> {
    change_privileges(cmd, true).await
}

/// `revokePrivilegesFromRole`.
pub(crate) async fn revoke_privileges(cmd: Invocation) -> Result<Reply> {
    change_privileges(cmd, false).await
}

async fn change_privileges(cmd: Invocation, is_granted: bool) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = RoleName::new(reader.str(cmd.name())?, cmd.db());
    let privileges = read_some_privileges(&reader, cmd.name())?;
    reader.finish()?;
    change(&cmd.ctx, move |ctx| async move {
        let role = modifiable(&name).await?;
        let changed = match is_granted {
            true => {
                check_privileges(&name, &privileges)?;
                Privilege::merged(role.privileges.into_iter().chain(privileges))
            }
            false => Privilege::revoked(&role.privileges, &privileges),
        };
        let mut changes = DocBuilder::new();
        changes.start_document("$set");
        Privilege::append_all(&changed, &mut changes, "privileges");
        changes.end();
        update(&ctx, ROLES, &name.id(), &changes.finish()).await
    })
    .await?;
    acknowledged(&cmd.ctx, Reply::new()).await
}

/// `grantRolesToRole`.
pub(crate) async fn grant_roles(cmd: Invocation) -> Result<Reply> {
    change_roles(cmd, true).await
}

/// `revokeRolesFromRole`.
pub(crate) async fn revoke_roles(cmd: Invocation) -> Result<Reply> {
    change_roles(cmd, false).await
}

async fn change_roles(cmd: Invocation, is_granted: bool) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = RoleName::new(reader.str(cmd.name())?, cmd.db());
    let roles = read_some_roles(&reader, cmd.db())?;
    reader.finish()?;
    change(&cmd.ctx, move |ctx| async move {
        let role = modifiable(&name).await?;
        if is_granted {
            check_roles(&name, &roles).await?;
        }
        let roles = changed_roles(role.roles, &roles, is_granted);
        update(&ctx, ROLES, &name.id(), &set_roles(&roles)).await
    })
    .await?;
    acknowledged(&cmd.ctx, Reply::new()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let check = |role: &str, db: &str, expected: Option<&str>| {
            let checked = check_name(&RoleName::new(role, db));
            let message = checked.err().map(|error| error.message);
            assert_eq!(message.as_deref(), expected);
        };
        check("r", "d", None);
        check("root", "d", None);
        check("", "d", Some("Role name must be non-empty"));
        check(
            "r",
            "local",
            Some("Cannot create roles in the local database"),
        );
        check(
            "r",
            "$external",
            Some("Cannot create roles in the $external database"),
        );
        let built_in = "Cannot create roles with the same name as a built-in role";
        check("read", "d", Some(built_in));
        check("root", "admin", Some(built_in));
    }
}
