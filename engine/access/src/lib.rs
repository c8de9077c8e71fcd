//! Users and roles of a node: their documents in `admin.system.users` and `admin.system.roles`,
//! what logins find of them, and the commands that make and show them.
//!
//! What is changed is changed on core 0, one change at a time, and every core forgets what it knew.

mod limits;

mod store;

mod arguments;
mod directory;
mod passwords;

mod roles;
mod roles_info;
mod users;
mod users_info;

mod table;

pub use directory::{KnownUsers, NodeDirectory};
pub use store::AccessTurn;
pub use table::register_commands;
