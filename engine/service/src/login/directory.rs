//! Where a process finds its users, and what connections that are logged in take over of changes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_auth::{ResolvedUser, UserName};
use pinion_runtime::LocalBoxFuture;
use pinion_wire::idl::Namespace;
use pinion_wire::{ClientInfo, Result};

/// The collections that users and roles are stored in.
pub const USERS: &str = "admin.system.users";
pub const ROLES: &str = "admin.system.roles";

/// The users that one core knows.
pub trait UserDirectory {
    /// A user with its roles, if it exists.
    ///
    /// # Errors
    /// Users cannot be read now.
    fn find<'a>(
        &'a self,
        name: &'a UserName,
    ) -> LocalBoxFuture<'a, Result<Option<Arc<ResolvedUser>>>>;

    /// Of users that were found before it changed it is not known whether they are still the same.
    /// Never 0.
    fn generation(&self) -> u64;

    /// Users or roles may have changed.
    fn forget(&self);
}

/// What this core has for a directory.
#[derive(Default)]
pub struct Users(RefCell<Option<Rc<dyn UserDirectory>>>);

/// Sets where this core finds users. Called once on each core, behind [`Users`].
pub fn set_user_directory(directory: Rc<dyn UserDirectory>) {
    let users = pinion_runtime::core_local::<Users>();
    let before = users.0.replace(Some(directory));
    assert!(before.is_none(), "a core has one directory");
}

/// Where this core finds users; a process may have none.
pub fn user_directory() -> Option<Rc<dyn UserDirectory>> {
    let users = pinion_runtime::try_core_local::<Users>()?;
    users.0.borrow().clone()
}

/// Whether users or roles are stored in a collection.
pub fn holds_users(ns: &Namespace) -> bool {
    matches!(ns.as_str(), USERS | ROLES)
}

/// Has this core look users up again.
pub fn forget_users_here() {
    if let Some(directory) = user_directory() {
        directory.forget();
    }
}

/// Has every core look users up again before it uses them. Whatever may have changed a document of
/// a collection that [`holds_users`] calls it, once that is applied.
pub fn forget_users() -> LocalBoxFuture<'static, ()> {
    Box::pin(async {
        pinion_runtime::on_all_cores(|_| async { forget_users_here() }).await;
    })
}

/// Whether the user of a connection, if it has one, is known to be as it was found.
#[inline]
pub fn is_user_current(client: &ClientInfo) -> bool {
    let seen = client.user_generation();
    seen == 0 || user_directory().is_none_or(|directory| directory.generation() == seen)
}

/// Has the user of a connection be as it is now. One that is gone, is another of the same name, or
/// may not come from there any more, is logged out.
#[inline]
pub async fn refresh_user(client: &Arc<ClientInfo>) {
    if !is_user_current(client) {
        Box::pin(look_up(client)).await;
    }
}

#[cold]
async fn look_up(client: &Arc<ClientInfo>) {
    let (Some(known), Some(directory)) = (client.user(), user_directory()) else {
        return;
    };
    let context = || format!("conn{}", client.connection_id);
    let name = known.name();
    let found = match directory.find(name).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(target: "ACCESS", id = 20_245u64, ctx = context(), user = %name, error = error.message, "Could not fetch updated user privilege information, continuing to use old information");
            return;
        }
    };
    let present = match found {
        Some(found) if found.id() == known.id() => found,
        _ => {
            tracing::info!(target: "ACCESS", id = 20_246u64, ctx = context(), user = %name, "Removed deleted user from session cache of user information");
            client.set_user(None);
            return;
        }
    };
    if !is_admitted(client, &present) {
        tracing::info!(target: "ACCESS", id = 20_242u64, ctx = context(), user = %name, "Removed user with unmet authentication restrictions from session cache of user information. Restrictions failed because of address of the client or the server");
        client.set_user(None);
        return;
    }
    client.set_user(Some(present));
}

/// Whether the restrictions of a user and its roles admit a connection.
pub(super) fn is_admitted(client: &ClientInfo, user: &ResolvedUser) -> bool {
    let address = |socket: Option<std::net::SocketAddr>| socket.map(|socket| socket.ip());
    user.admits(address(client.remote), address(client.local))
}

/// Logs a connection out of a database.
pub fn log_out(client: &ClientInfo, db: &str) {
    if db == pinion_auth::MEMBER_DATABASE {
        client.set_member(false);
    }
    if client.user().is_some_and(|user| user.name().db == db) {
        client.set_user(None);
    }
}
