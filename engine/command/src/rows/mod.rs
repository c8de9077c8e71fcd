//! All rows, by family, and the look-up of one by its name.

mod administration;
mod cluster;
mod data;
mod ddl;
mod diagnostics;
mod replication;
mod security;
mod session;
mod sharding;
mod test;

use std::sync::LazyLock;

use pinion_wire::CommandSpec;
use rustc_hash::FxHashMap;

/// One row for each command, by family.
pub static ROWS: [&[CommandSpec]; 10] = [
    data::DATA,
    ddl::DDL,
    session::SESSION,
    security::SECURITY,
    diagnostics::DIAGNOSTICS,
    administration::ADMINISTRATION,
    replication::REPLICATION,
    cluster::CLUSTER,
    sharding::SHARDING,
    test::TEST,
];

static BY_NAME: LazyLock<FxHashMap<&'static str, &'static CommandSpec>> = LazyLock::new(|| {
    let mut by_name = FxHashMap::default();
    for row in ROWS.into_iter().flatten() {
        for name in std::iter::once(&row.name).chain(row.aliases) {
            let before = by_name.insert(*name, row);
            assert!(before.is_none(), "two commands are called {name}");
        }
    }
    by_name
});

/// The row of the command that has this name, in any of its spellings.
pub fn find_row(name: &str) -> Option<&'static CommandSpec> {
    BY_NAME.get(name).copied()
}

/// The row of a command that there is.
///
/// # Panics
/// If no row has this name.
pub fn row(name: &str) -> &'static CommandSpec {
    find_row(name).unwrap_or_else(|| panic!("there is no command {name}"))
}
