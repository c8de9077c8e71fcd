//! The commands that make, change and drop users.

use pinion_auth::{
    Credentials, EXTERNAL_DATABASE, Hash, MEMBER_DATABASE, RoleName, UserDefinition, UserId,
    UserName,
};
use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_service::generate::random_bytes;
use pinion_service::login::USERS;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use crate::arguments::{UserArguments, read_some_roles, required};
use crate::passwords::{derive, mechanisms_of};
use crate::store::{
    acknowledged, all_removed, change, check_exist, documents, insert, of_database, remove,
    remove_all, set_roles, stored_user, update,
};

/// MongoDB's code of a user that is there already.
const USER_EXISTS: ErrorCode = ErrorCode(51_003);

/// The random id of a new user: a UUID of version 4.
fn new_id() -> UserId {
    let mut bytes = random_bytes::<16>();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    UserId(bytes)
}

/// `createUser`.
pub(crate) async fn create_user(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = UserName::new(reader.str("createUser")?, cmd.db());
    let arguments = UserArguments::read(&reader, cmd.db())?;
    let roles = required(&reader, "roles", arguments.roles.clone())?;
    reader.finish()?;
    check_name(&name)?;
    let credentials = credentials_of_new(&cmd.ctx, &name, &arguments).await?;
    let user = UserDefinition {
        name,
        id: Some(new_id()),
        credentials,
        roles,
        restrictions: arguments.restrictions.unwrap_or_default(),
        custom_data: arguments.custom_data,
    };
    change(&cmd.ctx, move |ctx| async move {
        let document = user.document();
        // What the store would not read again is not stored.
        UserDefinition::parse(&document)?;
        check_exist(&user.roles).await?;
        insert(&ctx, USERS, &document)
            .await
            .map_err(|error| match error.code {
                ErrorCode::DUPLICATE_KEY => {
                    let message = format!("User \"{}\" already exists", user.name);
                    Error::new(USER_EXISTS, message)
                }
                _ => error,
            })
    })
    .await?;
    acknowledged(&cmd.ctx, Reply::new()).await
}

fn check_name(name: &UserName) -> Result<()> {
    if name.db == MEMBER_DATABASE {
        return Err(Error::bad_value(
            "Cannot create users in the local database",
        ));
    }
    if name.user.contains('\0') {
        return Err(Error::bad_value("Username cannot contain NULL characters"));
    }
    Ok(())
}

fn check_external(name: &UserName, arguments: &UserArguments) -> Result<()> {
    if name.is_external() && arguments.password.is_some() {
        return Err(Error::bad_value(format!(
            "Cannot set the password for users defined on the '{EXTERNAL_DATABASE}' database"
        )));
    }
    Ok(())
}

async fn credentials_of_new(
    ctx: &OpContext,
    name: &UserName,
    arguments: &UserArguments,
) -> Result<Credentials> {
    check_external(name, arguments)?;
    if name.is_external() {
        return Ok(Credentials::External);
    }
    let Some(password) = &arguments.password else {
        return Err(Error::bad_value(format!(
            "Must provide a 'pwd' field for all user documents, except those with \
             '{EXTERNAL_DATABASE}' as the user's source db"
        )));
    };
    let mechanisms = mechanisms_of(arguments.mechanisms.as_deref())?;
    derive(ctx, name, password, &mechanisms).await
}

/// What `updateUser` changes of the credentials.
enum CredentialsChange {
    None,
    /// To these, of a new password.
    To(Credentials),
    /// Those of other mechanisms are removed.
    Only(Vec<Hash>),
}

/// `updateUser`.
pub(crate) async fn update_user(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = UserName::new(reader.str("updateUser")?, cmd.db());
    let arguments = UserArguments::read(&reader, cmd.db())?;
    reader.finish()?;
    check_external(&name, &arguments)?;
    let named = arguments.mechanisms.as_deref();
    let credentials = match (&arguments.password, named) {
        (Some(password), named) => {
            let mechanisms = mechanisms_of(named)?;
            CredentialsChange::To(derive(&cmd.ctx, &name, password, &mechanisms).await?)
        }
        (None, Some(_)) => CredentialsChange::Only(mechanisms_of(named)?),
        (None, None) => CredentialsChange::None,
    };
    change(&cmd.ctx, move |ctx| async move {
        let changes = change_of(&arguments, &credentials);
        // Where all mechanisms are kept, nothing is changed, which is no error.
        let is_of_mechanisms = matches!(credentials, CredentialsChange::Only(_));
        if changes.is_empty() && !is_of_mechanisms {
            return Err(Error::bad_value(
                "Must specify at least one field to update in updateUser",
            ));
        }
        if let Some(roles) = &arguments.roles {
            check_exist(roles).await?;
        }
        let user = stored_user(&name).await?;
        let user = user.ok_or_else(|| {
            Error::new(ErrorCode::USER_NOT_FOUND, format!("User {name} not found"))
        })?;
        if let CredentialsChange::Only(mechanisms) = &credentials
            && mechanisms
                .iter()
                .any(|hash| user.credentials.of(*hash).is_none())
        {
            return Err(Error::bad_value(
                "mechanisms field must be a subset of previously set mechanisms",
            ));
        }
        match changes.is_empty() {
            true => Ok(()),
            false => update(&ctx, USERS, &name.id(), &changes).await,
        }
    })
    .await?;
    acknowledged(&cmd.ctx, Reply::new()).await
}

/// The change of the stored document; empty where there is none.
fn change_of(arguments: &UserArguments, credentials: &CredentialsChange) -> RawDocumentBuf {
    let (mut set, mut unset) = (DocBuilder::new(), DocBuilder::new());
    match credentials {
        CredentialsChange::None => {}
        CredentialsChange::To(credentials) => credentials.append_to(&mut set),
        CredentialsChange::Only(kept) => {
            let gone = [Hash::Sha1, Hash::Sha256].into_iter();
            for hash in gone.filter(|hash| !kept.contains(hash)) {
                unset.append(&format!("credentials.{}", hash.mechanism()), "");
            }
        }
    }
    if let Some(data) = &arguments.custom_data {
        set.append("customData", &**data);
    }
    match &arguments.restrictions {
        None => {}
        Some(none) if none.is_empty() => {
            unset.append("authenticationRestrictions", "");
        }
        Some(some) => some.append_to(&mut set, "authenticationRestrictions"),
    }
    if let Some(roles) = &arguments.roles {
        RoleName::append_all(roles, &mut set, "roles");
    }
    let mut change = DocBuilder::new();
    for (operator, fields) in [("$set", set.finish()), ("$unset", unset.finish())] {
        if !fields.is_empty() {
            change.append(operator, &*fields);
        }
    }
    change.finish()
}

/// `dropUser`.
pub(crate) async fn drop_user(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = UserName::new(reader.str("dropUser")?, cmd.db());
    reader.finish()?;
    change(&cmd.ctx, move |ctx| async move {
        // Whatever the document says, it goes: one that cannot be read too.
        let is_there = match stored_user(&name).await {
            Ok(user) => user.is_some(),
            Err(error) if error.code == ErrorCode::UNSUPPORTED_FORMAT => true,
            Err(error) => return Err(error),
        };
        if !is_there {
            return Err(Error::new(
                ErrorCode::USER_NOT_FOUND,
                format!("User '{name}' not found"),
            ));
        }
        remove(&ctx, USERS, &name.id()).await
    })
    .await?;
    acknowledged(&cmd.ctx, Reply::new()).await
}

/// `dropAllUsersFromDatabase`.
pub(crate) async fn drop_all_users(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["dropAllUsersFromDatabase"]);
    reader.finish()?;
    let db = cmd.db().to_owned();
    let dropped = change(&cmd.ctx, move |ctx| async move {
        let users = documents(USERS, &of_database(Some(&db))).await?;
        remove_all(&ctx, USERS, &users).await
    })
    .await?;
    all_removed(&cmd.ctx, dropped).await
}

/// `grantRolesToUser`.
pub(crate) async fn grant_roles(cmd: Invocation) -> Result<Reply> {
    change_roles(cmd, true).await
}

/// `revokeRolesFromUser`.
pub(crate) async fn revoke_roles(cmd: Invocation) -> Result<Reply> {
    change_roles(cmd, false).await
}

async fn change_roles(cmd: Invocation, is_granted: bool) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = UserName::new(reader.str(cmd.name())?, cmd.db());
    let roles = read_some_roles(&reader, cmd.db())?;
    reader.finish()?;
    change(&cmd.ctx, move |ctx| async move {
        let user = stored_user(&name).await?;
        let user = user.ok_or_else(|| name.not_found())?;
        check_exist(&roles).await?;
        let roles = changed_roles(user.roles, &roles, is_granted);
        update(&ctx, USERS, &name.id(), &set_roles(&roles)).await
    })
    .await?;
    acknowledged(&cmd.ctx, Reply::new()).await
}

/// Roles with others that are granted, each once, or without others that are revoked.
pub(crate) fn changed_roles(
    mut roles: Vec<RoleName>,
    others: &[RoleName],
    is_granted: bool,
) -> Vec<RoleName> {
    match is_granted {
        true => {
            for role in others {
                if !roles.contains(role) {
                    roles.push(role.clone());
                }
            }
        }
        false => roles.retain(|role| !others.contains(role)),
    }
    roles
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    fn nothing() -> UserArguments {
        UserArguments {
            password: None,
            mechanisms: None,
            custom_data: None,
            roles: None,
            restrictions: None,
        }
    }

    #[test]
    fn a_change_has_what_is_named() {
        let none = change_of(&nothing(), &CredentialsChange::None);
        assert!(none.is_empty());
        let arguments = UserArguments {
            custom_data: Some(rawdoc! { "a": 1 }),
            roles: Some(vec![RoleName::new("read", "d")]),
            restrictions: Some(Default::default()),
            ..nothing()
        };
        let only = CredentialsChange::Only(vec![Hash::Sha256]);
        let expected = rawdoc! {
            "$set": { "customData": { "a": 1 }, "roles": [{ "role": "read", "db": "d" }] },
            "$unset": { "credentials.SCRAM-SHA-1": "", "authenticationRestrictions": "" },
        };
        assert_eq!(change_of(&arguments, &only), expected);
    }

    #[test]
    fn roles_are_granted_once() {
        let role = |name: &str| RoleName::new(name, "d");
        let granted = changed_roles(vec![role("a")], &[role("a"), role("b"), role("b")], true);
        assert_eq!(granted, [role("a"), role("b")]);
        let revoked = changed_roles(granted, &[role("a"), role("c")], false);
        assert_eq!(revoked, [role("b")]);
    }

    #[test]
    fn names_are_checked() {
        assert!(check_name(&UserName::new("u", "d")).is_ok());
        assert!(check_name(&UserName::new("u", "local")).is_err());
        assert!(check_name(&UserName::new("u\0", "d")).is_err());
    }
}
