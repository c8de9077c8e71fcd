//! What the catalog says about namespaces beyond their syntax.

use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use crate::catalog::Catalog;

/// The names below `system.` that a user may make.
const KNOWN_SYSTEM: [&str; 6] = [
    "system.users",
    "system.roles",
    "system.version",
    "system.js",
    "system.profile",
    "system.sessions",
];

/// True for collections that live in one partition: all of `local`, and `system.*`.
pub(crate) fn is_single_partition(ns: &Namespace) -> bool {
    ns.db() == "local" || ns.collection().starts_with("system.")
}

/// The namespace of a database's command entries, `database.$cmd`.
pub(crate) fn command_namespace(ns: &Namespace) -> String {
    format!("{}.$cmd", ns.db())
}

/// Rules for a collection that is about to be made: no `$` and no unknown `system.` name.
pub fn check_creatable(ns: &Namespace) -> Result<()> {
    let collection = ns.collection();
    if collection.contains('$') {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid collection name: {ns}"),
        ));
    }
    if collection.starts_with("system.") && !KNOWN_SYSTEM.contains(&collection) {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid system namespace: {ns}"),
        ));
    }
    Ok(())
}

/// Refuses a view, or a time series, where a collection is needed.
pub fn check_not_view(catalog: &Catalog, ns: &Namespace) -> Result<()> {
    match catalog.view(ns) {
        Some(view) => Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
            format!(
                "Namespace {ns} is a {}, not a collection",
                view.kind().name()
            ),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_partition() {
        let check = |ns: &str, expected| {
            assert_eq!(
                is_single_partition(&Namespace::parse(ns).unwrap()),
                expected,
                "{ns}"
            )
        };
        check("local.x", true);
        check("d.system.js", true);
        check("d.systemx", false);
        check("d.c", false);
    }

    #[test]
    fn unknown_system_names_are_refused() {
        assert!(check_creatable(&Namespace::parse("d.system.foo").unwrap()).is_err());
        assert!(check_creatable(&Namespace::parse("d.system.js").unwrap()).is_ok());
    }
}
