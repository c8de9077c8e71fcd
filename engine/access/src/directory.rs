//! The users of a node as logins find them: each core keeps those that it has looked up until users
//! or roles may have changed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pinion_auth::{ResolvedUser, UserName};
use pinion_runtime::LocalBoxFuture;
use pinion_service::login::UserDirectory;
use pinion_service::parking::parking;
use pinion_wire::{ErrorCode, Result, interruption};
use rustc_hash::FxHashMap;

use crate::limits::MAX_KNOWN_USERS;
use crate::store::{resolve, stored_user};

/// The users that this core has looked up, and those that it knows not to exist.
pub struct KnownUsers {
    generation: Cell<u64>,
    users: RefCell<FxHashMap<UserName, Option<Arc<ResolvedUser>>>>,
}

impl Default for KnownUsers {
    fn default() -> KnownUsers {
        KnownUsers {
            generation: Cell::new(1),
            users: RefCell::default(),
        }
    }
}

fn known_users() -> Rc<KnownUsers> {
    pinion_runtime::core_local()
}

impl KnownUsers {
    /// Keeps what was looked up while users were of a generation, unless they are of another now.
    fn keep(&self, generation: u64, name: &UserName, found: Option<Arc<ResolvedUser>>) {
        if self.generation.get() != generation {
            return;
        }
        let mut users = self.users.borrow_mut();
        if users.len() >= MAX_KNOWN_USERS {
            users.clear();
        }
        users.insert(name.clone(), found);
    }

    fn forget(&self) {
        self.generation.set(self.generation.get() + 1);
        self.users.borrow_mut().clear();
    }
}

/// Reads users from the data of this node.
#[derive(Debug)]
pub struct NodeDirectory;

impl UserDirectory for NodeDirectory {
    fn find<'a>(
        &'a self,
        name: &'a UserName,
    ) -> LocalBoxFuture<'a, Result<Option<Arc<ResolvedUser>>>> {
        Box::pin(async move {
            let known = known_users();
            let found = known.users.borrow().get(name).cloned();
            match found {
                Some(found) => Ok(found),
                None => look_up(&known, name).await,
            }
        })
    }

    fn generation(&self) -> u64 {
        known_users().generation.get()
    }

    fn forget(&self) {
        known_users().forget();
    }
}

async fn look_up(known: &KnownUsers, name: &UserName) -> Result<Option<Arc<ResolvedUser>>> {
    // A hello is answered while the data directory is opened again, but not this.
    let _inside = parking()
        .enter()
        .ok_or_else(|| interruption(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE))?;
    let generation = known.generation.get();
    let definition = match stored_user(name).await {
        Ok(definition) => definition,
        Err(error) if error.code == ErrorCode::UNSUPPORTED_FORMAT => {
            tracing::warn!(target: "ACCESS", id = 7_300_091u64, user = %name, error = error.message, "A stored user cannot be read, and cannot log in");
            None
        }
        Err(error) => return Err(error),
    };
    let found = match definition {
        None => None,
        Some(definition) => {
            let resolved = resolve(definition.roles.clone()).await?;
            Some(Arc::new(ResolvedUser::new(
                definition, resolved, generation,
            )))
        }
    };
    known.keep(generation, name, found.clone());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_up_before_a_change_is_not_kept() {
        let known = KnownUsers::default();
        let name = UserName::new("u", "d");
        known.keep(1, &name, None);
        assert!(known.users.borrow().contains_key(&name));
        known.forget();
        assert!(known.users.borrow().is_empty());
        known.keep(1, &name, None);
        assert!(known.users.borrow().is_empty());
        known.keep(2, &name, None);
        assert_eq!(known.users.borrow().len(), 1);
    }

    #[test]
    fn no_more_users_are_kept_than_there_is_room_for() {
        let known = KnownUsers::default();
        for at in 0..2 * MAX_KNOWN_USERS {
            known.keep(1, &UserName::new(at.to_string(), "d"), None);
            assert!(known.users.borrow().len() <= MAX_KNOWN_USERS);
        }
    }
}
