//! `usersInfo`.

use std::collections::BTreeSet;

use pinion_auth::{Privilege, Restrictions, RoleName, UserName};
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_exec::local::document_by_id;
use pinion_query::Matcher;
use pinion_service::compute::compute;
use pinion_service::login::USERS;
use pinion_wire::idl::missing_field;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::arguments::Subject;
use crate::store::{documents, of_database, resolve};

const RESTRICTIONS: &str = "authenticationRestrictions";

/// What is shown of users.
#[derive(Clone, Copy)]
struct Shown {
    credentials: bool,
    custom_data: bool,
    privileges: bool,
    restrictions: bool,
}

impl Shown {
    /// Whether what their roles amount to is shown.
    fn resolves(self) -> bool {
        self.privileges || self.restrictions
    }
}

/// `usersInfo`.
pub(crate) async fn users_info(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let value = reader.value("usersInfo");
    let value = value.ok_or_else(|| missing_field(reader.path().field("usersInfo")))?;
    let parse = |value: RawBsonRef<'_>| Ok(UserName::parse(value, cmd.db())?);
    let subject = Subject::parse(value, parse)?;
    let flag = |name| reader.opt_safe_bool(name);
    let shown = Shown {
        credentials: flag("showCredentials")?.unwrap_or(false),
        custom_data: flag("showCustomData")?.unwrap_or(true),
        privileges: flag("showPrivileges")?.unwrap_or(false),
        restrictions: flag("showAuthenticationRestrictions")?.unwrap_or(false),
    };
    let filter = reader.opt_doc("filter")?;
    reader.finish()?;
    let is_exact = matches!(subject, Subject::Named(_));
    if shown.resolves() && (!is_exact || filter.is_some()) {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Privilege or restriction details require exact-match usersInfo queries",
        ));
    }
    let matcher = match filter {
        None => None,
        Some(filter) => Some(compute(&cmd.ctx, || Matcher::parse(filter)).await?),
    };
    let mut out = Reply::new();
    out.start_array("users");
    for stored in users(&cmd, subject).await? {
        let user = describe(&stored, shown).await?;
        let is_wanted = match &matcher {
            None => true,
            Some(matcher) => compute(&cmd.ctx, || matcher.matches(&user)).await?,
        };
        if is_wanted {
            out.push(&*user);
        }
    }
    out.end();
    Ok(out)
}

/// The stored users in the order in which they are shown: by name, and then by database.
async fn users(cmd: &Invocation, subject: Subject<UserName>) -> Result<Vec<RawDocumentBuf>> {
    let mut found = match subject {
        Subject::OfDatabase => documents(USERS, &of_database(Some(cmd.db()))).await?,
        Subject::OfAllDatabases => documents(USERS, &of_database(None)).await?,
        Subject::Named(names) => {
            let mut found = Vec::new();
            for name in names.into_iter().collect::<BTreeSet<_>>() {
                let user = document_by_id(USERS, RawBsonRef::String(&name.id())).await?;
                found.extend(user.filter(|user| name_of(user) == (&*name.user, &*name.db)));
            }
            found
        }
    };
    found.sort_by(|a, b| name_of(a).cmp(&name_of(b)));
    Ok(found)
}

fn name_of(user: &RawDocument) -> (&str, &str) {
    let text = |field| user.get_str(field).unwrap_or_default();
    (text("user"), text("db"))
}

/// What is shown of a stored user.
async fn describe(stored: &RawDocument, shown: Shown) -> Result<RawDocumentBuf> {
    let mut out = DocBuilder::new();
    let mut mechanisms = Vec::new();
    for (name, value) in pinion_bson::elements(stored) {
        match (name, value) {
            ("credentials", RawBsonRef::Document(credentials)) => {
                mechanisms.extend(pinion_bson::elements(credentials).map(|(name, _)| name));
                if shown.resolves() {
                    append_mechanisms(&mechanisms, &mut out);
                }
                if shown.credentials {
                    out.append(name, credentials);
                }
            }
            ("customData", _) if !shown.custom_data => {}
            // They stand behind the roles.
            (RESTRICTIONS, _) => {}
            _ => {
                out.append(name, value);
            }
        }
    }
    match shown.resolves() {
        true => append_resolved(stored, shown, &mut out).await?,
        false => append_mechanisms(&mechanisms, &mut out),
    }
    Ok(out.finish())
}

fn append_mechanisms(mechanisms: &[&str], out: &mut DocBuilder) {
    out.start_array("mechanisms");
    for mechanism in mechanisms {
        out.push(*mechanism);
    }
    out.end();
}

/// Appends the restrictions of a user, and what its roles amount to.
async fn append_resolved(stored: &RawDocument, shown: Shown, out: &mut DocBuilder) -> Result<()> {
    if shown.restrictions {
        match pinion_bson::get(stored, RESTRICTIONS) {
            Some(own @ RawBsonRef::Array(_)) => {
                out.append(RESTRICTIONS, own);
            }
            _ => {
                out.start_array(RESTRICTIONS).end();
            }
        }
    }
    let roles = match pinion_bson::get(stored, "roles") {
        Some(RawBsonRef::Array(roles)) => RoleName::parse_all(roles, "")?,
        _ => Vec::new(),
    };
    let resolved = resolve(roles).await?;
    RoleName::append_all(&resolved.roles, out, "inheritedRoles");
    Privilege::append_all(&resolved.privileges, out, "inheritedPrivileges");
    append_inherited(&resolved.restrictions, out);
    Ok(())
}

/// Appends the restrictions of roles: an array for each role that has any.
pub(crate) fn append_inherited(restrictions: &[Restrictions], out: &mut DocBuilder) {
    out.start_array("inheritedAuthenticationRestrictions");
    for of_role in restrictions {
        of_role.push_to(out);
    }
    out.end();
}
