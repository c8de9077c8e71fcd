//! What the catalog says about namespaces beyond their syntax.

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_query::BUCKETS_PREFIX;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use crate::catalog::Catalog;
use crate::entry::Collection;
use crate::uuid::Uuid;

/// The names below `system.` that a user may make.
const KNOWN_SYSTEM: [&str; 6] = [
    "system.users",
    "system.roles",
    "system.version",
    "system.js",
    "system.profile",
    "system.sessions",
];

/// The namespaces below `system.` that are of one database alone.
const KNOWN_OF_DATABASES: [&str; 7] = [
    "admin.system.keys",
    "config.system.indexBuilds",
    "config.system.preimages",
    "config.system.sharding_ddl_coordinators",
    "local.system.healthlog",
    "local.system.replset",
    "local.system.rollback.id",
];

/// True for collections that live in one partition: all of `local`, and `system.*` but for buckets.
pub(crate) fn is_single_partition(ns: &Namespace) -> bool {
    let name = ns.collection();
    let is_system = name.starts_with("system.") && !name.starts_with(BUCKETS_PREFIX);
    ns.db() == LOCAL || is_system
}

/// The database that each node writes for itself.
const LOCAL: &str = "local";
/// The collection that each node writes for itself in whatever database.
const PROFILE: &str = "system.profile";

/// Whether what is written to a collection of this name goes to the members of a set. Others are
/// each node's own.
pub fn is_replicated(ns: &Namespace) -> bool {
    ns.db() != LOCAL && ns.collection() != PROFILE
}

/// The namespace that the command entries of [`LOCAL`] would have.
pub(crate) const OWN_COMMANDS: &str = "local.$cmd";

/// The namespace of a database's command entries, `database.$cmd`.
pub(crate) fn command_namespace(ns: &Namespace) -> String {
    format!("{}.$cmd", ns.db())
}

/// Rules for a collection that is about to be made: a valid name, neither it nor its database with
/// a `$`, and no unknown `system.` name.
pub fn check_creatable(ns: &Namespace) -> Result<()> {
    ns.check()?;
    // Users of other systems are named by `$external`, which holds nothing.
    if ns.db().starts_with('$') {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid namespace: {ns}"),
        ));
    }
    let collection = ns.collection();
    if collection.contains('$') {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid collection name: {ns}"),
        ));
    }
    let is_known =
        || KNOWN_SYSTEM.contains(&collection) || KNOWN_OF_DATABASES.contains(&ns.as_str());
    if collection.starts_with("system.") && !is_known() {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid system namespace: {ns}"),
        ));
    }
    Ok(())
}

/// Rules for a collection whose documents a client writes: one that it may make, or the buckets of
/// a time series.
pub fn check_writable(ns: &Namespace) -> Result<()> {
    match ns.collection().starts_with(BUCKETS_PREFIX) {
        true => ns.check(),
        false => check_creatable(ns),
    }
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

/// Refuses a UUID that is not that of the collection with this name.
///
/// # Errors
/// `CollectionUUIDMismatch`, with the name of the collection that has the UUID, if it is in the
/// same database.
pub fn check_collection_uuid(
    catalog: &Catalog,
    ns: &Namespace,
    collection: Option<&Collection>,
    expected: Uuid,
) -> Result<()> {
    if collection.is_some_and(|found| found.uuid == expected) {
        return Ok(());
    }
    let actual = catalog
        .by_uuid(expected)
        .filter(|collection| collection.ns.db() == ns.db());
    let mut extra = DocBuilder::new();
    extra
        .append("db", ns.db())
        .append("collectionUUID", expected.to_bson())
        .append("expectedCollection", ns.collection());
    match actual {
        Some(collection) => extra.append("actualCollection", collection.ns.collection()),
        None => extra.append("actualCollection", RawBsonRef::Null),
    };
    Err(Error::new(
        ErrorCode::COLLECTION_UUID_MISMATCH,
        "Collection UUID does not match that specified",
    )
    .with_extra(extra.finish()))
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
        check("d.system.buckets.c", false);
        check("d.systemx", false);
        check("d.c", false);
    }

    #[test]
    fn unknown_system_names_are_refused() {
        assert!(check_creatable(&Namespace::parse("d.system.foo").unwrap()).is_err());
        assert!(check_creatable(&Namespace::parse("d.system.js").unwrap()).is_ok());
        assert!(check_creatable(&Namespace::parse("d.system.replset").unwrap()).is_err());
        assert!(check_creatable(&Namespace::parse("local.system.replset").unwrap()).is_ok());
    }

    #[test]
    fn names_of_written_collections() {
        let check = |ns: &str, makes: bool, writes: bool| {
            let ns = Namespace::parse_sought(ns).unwrap();
            assert_eq!(check_creatable(&ns).is_ok(), makes, "{ns}");
            assert_eq!(check_writable(&ns).is_ok(), writes, "{ns}");
        };
        check("d.c", true, true);
        check("d.system.js", true, true);
        check("d.system.buckets.s", false, true);
        check("d.system.foo", false, false);
        check("d.$x", false, false);
        check("d.$cmd.x", false, false);
        check("$external.c", false, false);
        check(&format!("d.{}", "c".repeat(300)), false, false);
        check(
            &format!("d.system.buckets.{}", "c".repeat(300)),
            false,
            false,
        );
    }
}
