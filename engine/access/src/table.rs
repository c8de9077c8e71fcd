//! The handlers of commands of users and roles.

use pinion_exec::commands::attach;
use pinion_wire::Registry;

use crate::{roles, roles_info, users, users_info};

/// Attaches them. Called on each core for its own registry.
pub fn register_commands(r: &mut Registry) {
    attach(r, "createUser", users::create_user);
    attach(r, "updateUser", users::update_user);
    attach(r, "dropUser", users::drop_user);
    attach(r, "dropAllUsersFromDatabase", users::drop_all_users);
    attach(r, "grantRolesToUser", users::grant_roles);
    attach(r, "revokeRolesFromUser", users::revoke_roles);
    attach(r, "usersInfo", users_info::users_info);
    attach(r, "createRole", roles::create_role);
    attach(r, "updateRole", roles::update_role);
    attach(r, "dropRole", roles::drop_role);
    attach(r, "dropAllRolesFromDatabase", roles::drop_all_roles);
    attach(r, "grantPrivilegesToRole", roles::grant_privileges);
    attach(r, "revokePrivilegesFromRole", roles::revoke_privileges);
    attach(r, "grantRolesToRole", roles::grant_roles);
    attach(r, "revokeRolesFromRole", roles::revoke_roles);
    attach(r, "rolesInfo", roles_info::roles_info);
}
