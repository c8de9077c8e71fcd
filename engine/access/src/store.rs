//! Users and roles as they are stored: read by their `_id`, and changed one at a time on core 0.

use std::rc::Rc;

use pinion_auth::{ResolvedRoles, RoleClosure, RoleDefinition, RoleName, UserDefinition, UserName};
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_catalog::from_fatal;
use pinion_exec::access_collections::make_access_collection;
use pinion_exec::acquire::acquire_write;
use pinion_exec::commands::acknowledge;
use pinion_exec::local::{each_document, newest_by_id};
use pinion_exec::write::{
    BatchOutcome, Change, InsertOptions, ModifyOutcome, ModifyStatement, insert_documents,
    prepare_for_insert, run, upsert_by_id,
};
use pinion_query::{Matcher, Update, Variables};
use pinion_runtime::sync::Semaphore;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, spawn, submit_to};
use pinion_service::interrupt::interruptible;
use pinion_service::login::{ROLES, USERS, forget_users};
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{ErrorCode, OpContext, Reply, Result, interruption};

/// The document of `admin.system.version` that has the version of the documents of users.
const VERSIONS: &str = "admin.system.version";
const SCHEMA: &str = "authSchema";
const SCHEMA_VERSION: i32 = 5;

/// One changes users and roles at a time; that of core 0 counts.
pub struct AccessTurn(Semaphore);

impl Default for AccessTurn {
    fn default() -> AccessTurn {
        AccessTurn(Semaphore::new(1))
    }
}

/// Changes users or roles. It comes to its end although the caller goes away, and no core knows any
/// user of before then.
///
/// # Errors
/// Those of `work`.
pub(crate) async fn change<T, Fut>(
    ctx: &OpContext,
    work: impl FnOnce(OpContext) -> Fut + Send + 'static,
) -> Result<T>
where
    T: Send + 'static,
    Fut: Future<Output = Result<T>> + 'static,
{
    let ctx = ctx.clone();
    submit_to(CoreId(0), Queue::Foreground, move || async move {
        let changing = async move {
            let turn: Rc<AccessTurn> = pinion_runtime::core_local();
            let _turn = turn.0.acquire().await;
            let changed = work(ctx).await;
            forget_users().await;
            changed
        };
        match spawn(Queue::Foreground, changing).await {
            Ok(changed) => changed,
            Err(_) => Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN)),
        }
    })
    .await
}

/// The reply to a change, once what was written is as safe as its write concern asks for: on the
/// device at least, where the command names none.
///
/// # Errors
/// When the journal cannot be written any more.
pub(crate) async fn acknowledged(ctx: &OpContext, mut out: Reply) -> Result<Reply> {
    let written = storage().last_allotted();
    if ctx.args.write_concern.is_none() {
        let durable = interruptible(ctx, storage().wait_durable(written)).await?;
        durable.map_err(from_fatal)?;
    }
    acknowledge(ctx, Some(written), &mut out).await?;
    Ok(out)
}

/// A stored user: the newest version.
///
/// # Errors
/// Those of a read; `UnsupportedFormat` of a document that is no user's.
pub(crate) async fn stored_user(name: &UserName) -> Result<Option<UserDefinition>> {
    let Some(found) = newest_by_id(USERS, &name.id()).await? else {
        return Ok(None);
    };
    let user = UserDefinition::parse(&found)?;
    // Names with dots have an `_id` in common: `a.b` of `c` and `b` of `c.a`.
    Ok((user.name == *name).then_some(user))
}

/// A role that a client defined: the newest version. A document that is no role's defines none.
///
/// # Errors
/// Those of a read.
pub(crate) async fn stored_role(name: &RoleName) -> Result<Option<RoleDefinition>> {
    let Some(found) = newest_by_id(ROLES, &name.id()).await? else {
        return Ok(None);
    };
    match RoleDefinition::parse(&found) {
        Ok(role) => Ok((role.name == *name).then_some(role)),
        Err(error) => {
            tracing::warn!(target: "ACCESS", id = 7_300_090u64, role = %name, error = %error, "A stored role cannot be read, and grants nothing");
            Ok(None)
        }
    }
}

/// Whether a role exists: as one that every deployment has, or stored.
///
/// # Errors
/// Those of a read; `RoleNotFound`.
pub(crate) async fn check_exist(roles: &[RoleName]) -> Result<()> {
    for role in roles {
        if !pinion_auth::is_built_in(role) && stored_role(role).await?.is_none() {
            return Err(role.not_found().into());
        }
    }
    Ok(())
}

/// What a set of roles amounts to.
///
/// # Errors
/// Those of a read.
pub(crate) fn resolve(roles: Vec<RoleName>) -> LocalBoxFuture<'static, Result<ResolvedRoles>> {
    Box::pin(async move {
        let mut closure = RoleClosure::new(roles);
        while let Some(role) = closure.next_undefined().cloned() {
            closure.define(stored_role(&role).await?);
        }
        Ok(closure.finish())
    })
}

/// The documents of a collection that a filter selects.
///
/// # Errors
/// Those of a read.
pub(crate) async fn documents(ns: &str, filter: &RawDocument) -> Result<Vec<RawDocumentBuf>> {
    let mut found = Vec::new();
    each_document(ns, filter, &mut |document| {
        found.push(document.to_owned());
        Ok(())
    })
    .await?;
    Ok(found)
}

/// The filter of what is of a database, or of everything.
pub(crate) fn of_database(db: Option<&str>) -> RawDocumentBuf {
    match db {
        Some(db) => rawdoc! { "db": db },
        None => RawDocumentBuf::new(),
    }
}

/// Makes the collection of users or of roles, with its index, and keeps the version of the
/// documents where there is none yet.
async fn prepare(ctx: &OpContext, ns: &str) -> Result<()> {
    let ns = Namespace::parse(ns)?;
    if let Some(making) = make_access_collection(ctx, &ns) {
        making.await?;
    }
    if newest_by_id(VERSIONS, SCHEMA).await?.is_none() {
        let schema = rawdoc! { "_id": SCHEMA, "currentVersion": SCHEMA_VERSION };
        upsert_by_id(ctx, Namespace::parse(VERSIONS)?, SCHEMA, &schema).await?;
    }
    Ok(())
}

/// Stores a new user or role. Called on core 0, in its turn, as the others below.
///
/// # Errors
/// Those of a write; `DuplicateKey`.
pub(crate) async fn insert(ctx: &OpContext, ns: &str, document: &RawDocument) -> Result<()> {
    prepare(ctx, ns).await?;
    let document = prepare_for_insert(document, true).await?;
    let acquired = acquire_write(ctx, Namespace::parse(ns)?, None).await?;
    let mut outcome = BatchOutcome::default();
    let options = InsertOptions::default();
    insert_documents(ctx, acquired, vec![(0, document)], options, &mut outcome).await?;
    match outcome.errors.pop() {
        Some(failure) => Err(failure.error),
        None => Ok(()),
    }
}

/// Changes a stored document by operators of an update.
///
/// # Errors
/// Those of a write.
pub(crate) async fn update(
    ctx: &OpContext,
    ns: &str,
    id: &str,
    change: &RawDocument,
) -> Result<()> {
    let update = Update::parse_with(RawBsonRef::Document(change), None, &Variables::default())?;
    modify(ctx, ns, id, Change::Update(update)).await
}

/// Removes a stored document.
///
/// # Errors
/// Those of a write.
pub(crate) async fn remove(ctx: &OpContext, ns: &str, id: &str) -> Result<()> {
    modify(ctx, ns, id, Change::Delete).await
}

/// Removes stored documents, and gives how many.
///
/// # Errors
/// Those of a write.
pub(crate) async fn remove_all(
    ctx: &OpContext,
    ns: &str,
    documents: &[RawDocumentBuf],
) -> Result<i32> {
    let mut removed = 0;
    for document in documents {
        if let Some(RawBsonRef::String(id)) = pinion_bson::get(document, "_id") {
            remove(ctx, ns, id).await?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// The reply of a command that has removed what was of a database.
///
/// # Errors
/// As of [`acknowledged`].
pub(crate) async fn all_removed(ctx: &OpContext, removed: i32) -> Result<Reply> {
    let mut out = Reply::new();
    out.append("n", removed);
    acknowledged(ctx, out).await
}

async fn modify(ctx: &OpContext, ns: &str, id: &str, change: Change) -> Result<()> {
    let filter = rawdoc! { "_id": id };
    let statement = ModifyStatement::plain(Matcher::parse(&filter)?, filter, change);
    let acquired = acquire_write(ctx, Namespace::parse(ns)?, None).await?;
    run(ctx, acquired, &statement, &mut ModifyOutcome::default()).await
}

/// Takes roles from a stored user or role, where it has them.
///
/// # Errors
/// Those of a write.
pub(crate) async fn take_roles(
    ctx: &OpContext,
    ns: &str,
    document: &RawDocument,
    is_taken: impl Fn(&RoleName) -> bool,
) -> Result<()> {
    let (Some(RawBsonRef::String(id)), Some(RawBsonRef::Array(roles))) = (
        pinion_bson::get(document, "_id"),
        pinion_bson::get(document, "roles"),
    ) else {
        return Ok(());
    };
    let Ok(mut roles) = RoleName::parse_all(roles, "") else {
        return Ok(());
    };
    let before = roles.len();
    roles.retain(|role| !is_taken(role));
    match roles.len() < before {
        true => update(ctx, ns, id, &set_roles(&roles)).await,
        false => Ok(()),
    }
}

/// The change that gives a user or role these roles and no others.
pub(crate) fn set_roles(roles: &[RoleName]) -> RawDocumentBuf {
    let mut change = DocBuilder::new();
    change.start_document("$set");
    RoleName::append_all(roles, &mut change, "roles");
    change.end();
    change.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_set_as_they_are_stored() {
        let roles = [RoleName::new("read", "d"), RoleName::new("mine", "admin")];
        let expected = rawdoc! { "$set": { "roles": [
            { "role": "read", "db": "d" }, { "role": "mine", "db": "admin" },
        ] } };
        assert_eq!(set_roles(&roles), expected);
        assert_eq!(of_database(None), rawdoc! {});
        assert_eq!(of_database(Some("d")), rawdoc! { "db": "d" });
    }
}
