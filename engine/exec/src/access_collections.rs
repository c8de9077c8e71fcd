//! The collections that users and roles are stored in: they have an index from the first on,
//! whatever makes them.

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_catalog::{core_catalog, create_indexes, parse_index_spec};
use pinion_clock::Timestamp;
use pinion_runtime::LocalBoxFuture;
use pinion_service::login::{ROLES, USERS};
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::parameters::parameters;

/// The index of such a collection.
fn index_of(ns: &Namespace) -> Option<RawDocumentBuf> {
    match ns.as_str() {
        USERS => {
            Some(rawdoc! { "key": { "user": 1, "db": 1 }, "name": "user_1_db_1", "unique": true })
        }
        ROLES => {
            Some(rawdoc! { "key": { "role": 1, "db": 1 }, "name": "role_1_db_1", "unique": true })
        }
        _ => None,
    }
}

/// Makes the collection with its index, where it is one of them and is not there. Gives the time of
/// that; the outer `None` is for all other collections.
///
/// # Errors
/// Those of definitions.
pub fn make_access_collection<'a>(
    ctx: &'a OpContext,
    ns: &'a Namespace,
) -> Option<LocalBoxFuture<'a, Result<Option<Timestamp>>>> {
    let index = index_of(ns)?;
    Some(Box::pin(async move {
        if core_catalog().get(ns).is_some() {
            return Ok(None);
        }
        let specs = vec![parse_index_spec(&index, false)?];
        let limits = parameters().borrow().build_limits();
        let made = create_indexes(ctx, ns.clone(), specs, limits, None).await?;
        Ok(made.ts)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_roles_have_an_index() {
        let name = |ns: &str| {
            let index = index_of(&Namespace::parse(ns).expect("a namespace"))?;
            index.get_str("name").ok().map(str::to_owned)
        };
        assert_eq!(name("admin.system.users").as_deref(), Some("user_1_db_1"));
        assert_eq!(name("admin.system.roles").as_deref(), Some("role_1_db_1"));
        assert_eq!(name("test.system.users"), None);
    }
}
