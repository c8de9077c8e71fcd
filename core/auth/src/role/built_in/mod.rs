//! The roles that every deployment has: which there are, and what they grant.

mod actions;
mod table;

use crate::name::{ADMIN_DATABASE, RoleName};
use crate::privilege::Privilege;
use crate::resource::ResourcePattern;
use table::{BUILT_IN_ROLES, BuiltInRole, On, Scope};

fn find(name: &str, db: &str) -> Option<&'static BuiltInRole> {
    BUILT_IN_ROLES
        .iter()
        .find(|role| role.name == name && has(role.scope, db))
}

fn has(scope: Scope, db: &str) -> bool {
    !db.is_empty() && (scope == Scope::EveryDatabase || db == ADMIN_DATABASE)
}

/// Whether the role is one that every deployment has, and no client may change.
pub fn is_built_in(role: &RoleName) -> bool {
    find(&role.role, &role.db).is_some()
}

/// The built-in roles of a database, by name.
pub fn built_in_roles(db: &str) -> impl Iterator<Item = RoleName> + '_ {
    BUILT_IN_ROLES
        .iter()
        .filter(move |role| has(role.scope, db))
        .map(move |role| RoleName::new(role.name, db))
}

/// The privileges of a built-in role, those of the roles that it contains among them; each resource
/// comes once. `None` of other roles.
pub fn built_in_privileges(role: &RoleName) -> Option<Vec<Privilege>> {
    let built_in = find(&role.role, &role.db)?;
    let mut all = Vec::new();
    collect(built_in, &role.db, &mut all);
    Some(Privilege::merged(all))
}

fn collect(role: &BuiltInRole, db: &str, all: &mut Vec<Privilege>) {
    for name in role.contains {
        let contained = find(name, db).expect("a built-in role contains built-in roles");
        collect(contained, db, all);
    }
    let grants = role.grants.iter();
    all.extend(grants.map(|(on, actions)| Privilege::new(on.pattern(db), *actions)));
}

impl On {
    fn pattern(self, own_db: &str) -> ResourcePattern {
        let collection = |db: &str, collection: &str| ResourcePattern::Collection {
            db: db.to_owned(),
            collection: collection.to_owned(),
        };
        match self {
            On::Own => ResourcePattern::Database(own_db.to_owned()),
            On::OwnCollection(name) => collection(own_db, name),
            On::Any => ResourcePattern::Any,
            On::Cluster => ResourcePattern::Cluster,
            On::AllNormal => ResourcePattern::AllNormal,
            On::AllBuckets => ResourcePattern::AllBuckets,
            On::Database(db) => ResourcePattern::Database(db.to_owned()),
            On::Collection(db, name) => collection(db, name),
            On::Named(name) => ResourcePattern::Named(name.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action::{self, *};
    use crate::action::ActionSet;
    use crate::privilege::Privileges;
    use crate::resource::Resource;

    fn privileges(role: &str, db: &str) -> Privileges {
        let role = RoleName::new(role, db);
        built_in_privileges(&role)
            .expect("a built-in role")
            .iter()
            .collect()
    }

    #[test]
    fn databases_have_their_roles() {
        let of = |db: &str| -> Vec<String> { built_in_roles(db).map(|role| role.role).collect() };
        let every = [
            "dbAdmin",
            "dbOwner",
            "enableSharding",
            "read",
            "readWrite",
            "userAdmin",
        ];
        assert_eq!(of("test"), every);
        let admin = of("admin");
        assert!(admin.is_sorted() && every.iter().all(|role| admin.contains(&role.to_string())));
        assert_eq!(admin.len(), BUILT_IN_ROLES.len());
        assert!(of("").is_empty());
        assert!(is_built_in(&RoleName::new("root", "admin")));
        assert!(!is_built_in(&RoleName::new("root", "test")));
        assert!(!is_built_in(&RoleName::new("mine", "admin")));
        assert_eq!(built_in_privileges(&RoleName::new("mine", "admin")), None);
    }

    #[test]
    fn read_is_shown_as_in_mongodb() {
        let shown = |role: &str| {
            let all = built_in_privileges(&RoleName::new(role, "test")).unwrap();
            let names = |set: ActionSet| set.names().collect::<Vec<_>>().join(" ");
            all.iter()
                .map(|one| (one.resource.clone(), names(one.actions)))
                .collect::<Vec<_>>()
        };
        let both = |actions: &str| {
            let js = ResourcePattern::Collection {
                db: "test".into(),
                collection: "system.js".into(),
            };
            let own = ResourcePattern::Database("test".into());
            vec![(own, actions.to_owned()), (js, actions.to_owned())]
        };
        let read = "changeStream collStats dbHash dbStats find killCursors listCollections \
                    listIndexes listSearchIndexes planCacheRead performRawDataOperations";
        assert_eq!(shown("read"), both(read));
        let read_write = "changeStream cleanupStructuredEncryptionData collStats \
            compactStructuredEncryptionData convertToCapped createCollection createIndex \
            createSearchIndexes dbHash dbStats dropCollection dropIndex dropSearchIndex find \
            insert killCursors listCollections listIndexes listSearchIndexes updateSearchIndex \
            planCacheRead performRawDataOperations remove renameCollectionSameDB update";
        assert_eq!(shown("readWrite"), both(read_write));
    }

    /// As MongoDB shows the privileges of a user with the role, on collections that the manual does
    /// not have.
    #[test]
    fn root_is_shown_as_in_mongodb() {
        let root = built_in_privileges(&RoleName::new("root", "admin")).unwrap();
        let check = |db: &str, collection: &str, expected: &str| {
            let (db, collection) = (db.to_owned(), collection.to_owned());
            let resource = ResourcePattern::Collection { db, collection };
            let shown = root.iter().find(|one| one.resource == resource);
            let names: Vec<&str> = shown.expect("a privilege").actions.names().collect();
            assert_eq!(names.join(" "), expected, "{resource:?}");
        };
        let member = "bypassDocumentValidation collMod convertToCapped createCollection \
            createIndex createSearchIndexes dropCollection find insert updateSearchIndex remove \
            update";
        check("local", "replset.election", member);
        check("local", "replset.minvalid", member);
        let sessions = "collStats dbStats getDatabaseVersion getShardVersion indexStats";
        check("config", "system.sessions", sessions);
        check("config", "settings", "find insert update");
        check("config", "system.preimages", "find remove");
        check(
            "config",
            "system.change_collection",
            "find insert remove update",
        );
        check("admin", "tempusers", "find");
        check(
            "admin",
            "system.users",
            "changeStream collStats createIndex createSearchIndexes dbHash dbStats dropIndex \
             dropSearchIndex find killCursors listCollections listIndexes listSearchIndexes \
             planCacheRead performRawDataOperations",
        );
    }

    #[test]
    fn what_roles_may_do() {
        let check = |role: (&str, &str), resource, action, expected: bool| {
            let allows = privileges(role.0, role.1).allows(resource, action);
            assert_eq!(allows, expected, "{role:?} {resource:?} {action:?}");
        };
        let on = |db, collection| Resource::Collection { db, collection };
        let database = Resource::Database;
        check(("read", "d"), on("d", "c"), Find, true);
        check(("read", "d"), on("e", "c"), Find, false);
        check(("read", "d"), on("d", "system.views"), Find, false);
        check(("read", "local"), on("local", "c"), Find, true);
        check(("readWrite", "d"), on("d", "c"), Insert, true);
        check(("readWrite", "d"), database("d"), DropDatabase, false);
        check(("dbOwner", "d"), database("d"), DropDatabase, true);
        check(("dbOwner", "d"), database("d"), CreateUser, true);
        check(
            ("dbOwner", "d"),
            on("d", "system.profile"),
            DropCollection,
            true,
        );
        check(("dbAdmin", "d"), on("d", "c"), Find, false);
        check(("enableSharding", "d"), on("e", "c"), EnableSharding, true);
        check(("readAnyDatabase", "admin"), on("d", "c"), Find, true);
        check(("readAnyDatabase", "admin"), on("config", "c"), Find, false);
        check(
            ("readAnyDatabase", "admin"),
            on("admin", "system.users"),
            Find,
            false,
        );
        check(
            ("readAnyDatabase", "admin"),
            Resource::Cluster,
            ListDatabases,
            true,
        );
        check(
            ("readAnyDatabase", "admin"),
            Resource::AllNormal,
            ChangeStream,
            true,
        );
        check(
            ("clusterMonitor", "admin"),
            Resource::Cluster,
            ServerStatus,
            true,
        );
        check(
            ("clusterMonitor", "admin"),
            on("local", "oplog.rs"),
            Find,
            true,
        );
        check(
            ("clusterMonitor", "admin"),
            on("d", "system.profile"),
            Find,
            true,
        );
        check(("clusterMonitor", "admin"), on("d", "c"), Find, false);
        check(
            ("clusterManager", "admin"),
            on("config", "settings"),
            Update,
            true,
        );
        check(
            ("clusterManager", "admin"),
            Resource::Cluster,
            Shutdown,
            false,
        );
        check(("clusterAdmin", "admin"), Resource::Cluster, Shutdown, true);
        check(("clusterAdmin", "admin"), database("d"), DropDatabase, true);
        check(("backup", "admin"), on("d", "system.buckets.c"), Find, true);
        check(("backup", "admin"), on("admin", "system.users"), Find, true);
        check(
            ("restore", "admin"),
            on("d", "system.buckets.c"),
            Insert,
            true,
        );
        check(
            ("restore", "admin"),
            on("admin", "system.users"),
            Insert,
            true,
        );
        check(
            ("userAdminAnyDatabase", "admin"),
            on("admin", "system.users"),
            Find,
            true,
        );
        check(
            ("userAdminAnyDatabase", "admin"),
            on("admin", "system.users"),
            Insert,
            false,
        );
        check(
            ("userAdminAnyDatabase", "admin"),
            database("config"),
            ViewUser,
            true,
        );
        check(("root", "admin"), on("d", "c"), Insert, true);
        check(("root", "admin"), on("d", "system.views"), Validate, true);
        check(
            ("root", "admin"),
            on("config", "system.preimages"),
            Remove,
            true,
        );
        check(("root", "admin"), Resource::Cluster, Internal, false);
        check(("__system", "admin"), Resource::Cluster, Internal, true);
        check(
            ("searchCoordinator", "admin"),
            on("__mdb_internal_search", "c"),
            Insert,
            true,
        );
        check(("searchCoordinator", "admin"), on("d", "c"), Insert, false);
        let direct = IssueDirectShardOperations;
        check(
            ("searchCoordinator", "admin"),
            Resource::Cluster,
            direct,
            true,
        );
        check(("root", "admin"), Resource::Cluster, direct, false);
    }

    #[test]
    fn roles_contain_what_they_say() {
        for role in BUILT_IN_ROLES {
            let db = if role.scope == Scope::Admin {
                ADMIN_DATABASE
            } else {
                "d"
            };
            let whole = privileges(role.name, db);
            for name in role.contains {
                for part in built_in_privileges(&RoleName::new(*name, db)).unwrap() {
                    let known = built_in_privileges(&RoleName::new(role.name, db)).unwrap();
                    let same = known.iter().find(|known| known.resource == part.resource);
                    let actions = same.expect("the resource of a contained role").actions;
                    assert!(actions.contains_all(part.actions), "{} {name}", role.name);
                }
            }
            let is_system = role.name == "__system";
            assert_eq!(whole.allows(Resource::Any, Action::AnyAction), is_system);
        }
    }
}
