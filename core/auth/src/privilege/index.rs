//! The privileges of a user, built once and asked for every command.

use std::fmt;

use rustc_hash::FxHashMap;

use super::Privilege;
use crate::action::{Action, ActionSet};
use crate::resource::{
    Resource, ResourcePattern, bucketed, is_normal_database, is_system_collection,
};

type ByName<T> = FxHashMap<Box<str>, T>;

/// Which actions are granted on which resources. A question takes at most four look-ups by hash and
/// no memory, however many privileges there are.
#[derive(Clone, Default)]
pub struct Privileges {
    any: ActionSet,
    cluster: ActionSet,
    /// On normal collections.
    normal: ActionSet,
    buckets: ActionSet,
    databases: ByName<DatabasePrivileges>,
    /// On collections of a name, in any database.
    named: ByName<ActionSet>,
    named_buckets: ByName<ActionSet>,
}

/// What is granted on one database alone.
#[derive(Clone, Default)]
struct DatabasePrivileges {
    normal: ActionSet,
    buckets: ActionSet,
    collections: ByName<ActionSet>,
    series: ByName<ActionSet>,
}

impl fmt::Debug for Privileges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.databases.len();
        write!(f, "Privileges(of {names} databases by name, ..)")
    }
}

impl<'p> FromIterator<&'p Privilege> for Privileges {
    fn from_iter<I: IntoIterator<Item = &'p Privilege>>(privileges: I) -> Privileges {
        let mut all = Privileges::default();
        for privilege in privileges {
            all.add(privilege);
        }
        all
    }
}

impl Privileges {
    /// Every action on everything: what processes of a cluster are granted.
    pub fn all() -> Privileges {
        Privileges {
            any: ActionSet::ANY,
            ..Privileges::default()
        }
    }

    fn add(&mut self, privilege: &Privilege) {
        // An entry without actions would count as one on its database.
        if privilege.actions.is_empty() {
            return;
        }
        let actions = match &privilege.resource {
            ResourcePattern::Any => &mut self.any,
            ResourcePattern::Cluster => &mut self.cluster,
            ResourcePattern::AllNormal => &mut self.normal,
            ResourcePattern::AllBuckets => &mut self.buckets,
            ResourcePattern::Named(name) => named(&mut self.named, name),
            ResourcePattern::NamedBuckets(name) => named(&mut self.named_buckets, name),
            ResourcePattern::Database(db) => &mut named(&mut self.databases, db).normal,
            ResourcePattern::DatabaseBuckets(db) => &mut named(&mut self.databases, db).buckets,
            ResourcePattern::Collection { db, collection } => {
                named(&mut named(&mut self.databases, db).collections, collection)
            }
            ResourcePattern::Buckets { db, collection } => {
                named(&mut named(&mut self.databases, db).series, collection)
            }
        };
        *actions = actions.union(privilege.actions);
    }

    /// The actions that are granted on a resource.
    pub fn granted(&self, resource: Resource<'_>) -> ActionSet {
        let actions = match resource {
            Resource::Any => ActionSet::EMPTY,
            Resource::Cluster => self.cluster,
            Resource::AllNormal => self.normal,
            Resource::Database(db) => {
                let database = self.databases.get(db);
                self.normal_of(db)
                    .union(database.map_or(ActionSet::EMPTY, |known| known.normal))
            }
            Resource::Collection { db, collection } => self.on_collection(db, collection),
        };
        actions.union(self.any)
    }

    fn on_collection(&self, db: &str, collection: &str) -> ActionSet {
        let database = self.databases.get(db);
        let mut actions = get(&self.named, collection);
        if let Some(database) = database {
            actions = actions.union(get(&database.collections, collection));
        }
        if !is_system_collection(db, collection) {
            let normal = database.map_or(ActionSet::EMPTY, |database| database.normal);
            return actions.union(self.normal_of(db)).union(normal);
        }
        let Some(series) = bucketed(collection) else {
            return actions;
        };
        actions = actions
            .union(self.buckets)
            .union(get(&self.named_buckets, series));
        match database {
            Some(database) => actions
                .union(database.buckets)
                .union(get(&database.series, series)),
            None => actions,
        }
    }

    /// What is granted on normal collections of all databases, if the database is one of those.
    fn normal_of(&self, db: &str) -> ActionSet {
        if is_normal_database(db) {
            self.normal
        } else {
            ActionSet::EMPTY
        }
    }

    /// Whether an action on a resource is granted.
    pub fn allows(&self, resource: Resource<'_>, action: Action) -> bool {
        self.granted(resource).contains(action)
    }

    /// Whether all of these actions on a resource are granted; their grants may be several.
    pub fn allows_all(&self, resource: Resource<'_>, actions: ActionSet) -> bool {
        self.granted(resource).contains_all(actions)
    }

    /// Whether anything at all is granted on a collection: those that `listCollections` shows with
    /// `authorizedCollections`.
    pub fn on_collection_at_all(&self, db: &str, collection: &str) -> bool {
        let collection = Resource::Collection { db, collection };
        !self.granted(collection).is_empty()
    }

    /// Whether anything is granted on a database or on any collection that it may have: those that
    /// `listDatabases` shows with `authorizedDatabases`.
    pub fn on_database_at_all(&self, db: &str) -> bool {
        let in_any_database = [self.any, self.buckets, self.normal_of(db)];
        in_any_database.iter().any(|actions| !actions.is_empty())
            || !self.named.is_empty()
            || !self.named_buckets.is_empty()
            || self.databases.contains_key(db)
    }

    /// Whether an action is granted on all databases, `local` and `config` aside.
    pub fn on_all_databases(&self, action: Action) -> bool {
        self.allows(Resource::AllNormal, action)
    }
}

/// The value of a name, which is made where there is none.
fn named<'m, T: Default>(map: &'m mut ByName<T>, name: &str) -> &'m mut T {
    map.entry(name.into()).or_default()
}

fn get(map: &ByName<ActionSet>, name: &str) -> ActionSet {
    map.get(name).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use pinion_bson::testing::Rng;

    use super::*;

    const DATABASES: &[&str] = &["d", "e", "admin", "local", "config"];
    const COLLECTIONS: &[&str] = &[
        "c",
        "f",
        "system.js",
        "system.buckets.c",
        "system.buckets.f",
        "replset.c",
    ];

    fn pattern(rng: &mut Rng) -> ResourcePattern {
        let db = rng.pick(DATABASES).to_owned();
        let collection = rng.pick(COLLECTIONS).to_owned();
        match rng.below(10) {
            0 => ResourcePattern::Any,
            1 => ResourcePattern::Cluster,
            2 => ResourcePattern::AllNormal,
            3 => ResourcePattern::Database(db),
            4 => ResourcePattern::Named(collection),
            5 => ResourcePattern::Collection { db, collection },
            6 => ResourcePattern::AllBuckets,
            7 => ResourcePattern::DatabaseBuckets(db),
            8 => ResourcePattern::NamedBuckets(collection),
            _ => ResourcePattern::Buckets { db, collection },
        }
    }

    fn resources() -> Vec<Resource<'static>> {
        let mut all = vec![Resource::Any, Resource::Cluster, Resource::AllNormal];
        for db in DATABASES.iter().copied().chain(["other"]) {
            all.push(Resource::Database(db));
            let collections = COLLECTIONS.iter().copied().chain(["other"]);
            all.extend(collections.map(|collection| Resource::Collection { db, collection }));
        }
        all
    }

    /// The answers are those of a search over all privileges.
    #[test]
    fn answers_are_those_of_a_search() {
        let mut rng = Rng::new(11);
        let actions = &[
            Action::Find,
            Action::Insert,
            Action::Update,
            Action::AnyAction,
        ];
        let resources = resources();
        let mut granted = 0;
        for _ in 0..400 {
            let count = rng.below(5);
            let privileges: Vec<Privilege> = (0..count)
                .map(|_| {
                    let resource = pattern(&mut rng);
                    let count = rng.below(3);
                    Privilege::new(resource, (0..count).map(|_| rng.pick(actions)).collect())
                })
                .collect();
            let index: Privileges = privileges.iter().collect();
            let search = |resource: Resource<'_>| {
                let matching = privileges
                    .iter()
                    .filter(|known| known.resource.matches(resource));
                matching.fold(ActionSet::EMPTY, |all, known| all.union(known.actions))
            };
            for resource in &resources {
                let expected = search(*resource);
                assert_eq!(
                    index.granted(*resource),
                    expected,
                    "{resource:?} of {privileges:?}"
                );
                granted += usize::from(index.allows(*resource, Action::Find));
                if let Resource::Collection { db, collection } = resource {
                    let at_all = index.on_collection_at_all(db, collection);
                    assert_eq!(at_all, !expected.is_empty());
                    assert!(
                        index.on_database_at_all(db) || !at_all,
                        "{db} of {privileges:?}"
                    );
                }
            }
        }
        assert!(granted > 1000, "{granted}");
    }

    #[test]
    fn databases_with_anything_granted() {
        let check = |resource: ResourcePattern, expected: &[&str]| {
            let privilege = Privilege::new(resource, ActionSet::of(&[Action::Find]));
            let privileges: Privileges = [&privilege].into_iter().collect();
            let known = DATABASES.iter().copied();
            let shown: Vec<&str> = known
                .filter(|db| privileges.on_database_at_all(db))
                .collect();
            assert_eq!(shown, expected, "{privilege:?}");
        };
        let collection = |db: &str, collection: &str| ResourcePattern::Collection {
            db: db.into(),
            collection: collection.into(),
        };
        check(ResourcePattern::Any, DATABASES);
        check(ResourcePattern::Cluster, &[]);
        check(ResourcePattern::AllNormal, &["d", "e", "admin"]);
        check(ResourcePattern::Database("config".into()), &["config"]);
        check(ResourcePattern::Named("c".into()), DATABASES);
        check(collection("e", "system.js"), &["e"]);
        check(ResourcePattern::AllBuckets, DATABASES);
        check(ResourcePattern::DatabaseBuckets("d".into()), &["d"]);
        let none = Privilege::new(ResourcePattern::Database("d".into()), ActionSet::EMPTY);
        let none: Privileges = [&none].into_iter().collect();
        assert!(!none.on_database_at_all("d"));
    }

    #[test]
    fn grants_of_several_privileges_count_together() {
        let grant =
            |resource: ResourcePattern, action| Privilege::new(resource, ActionSet::of(&[action]));
        let both = [
            grant(ResourcePattern::Database("d".into()), Action::Find),
            grant(ResourcePattern::Named("c".into()), Action::Insert),
        ];
        let privileges: Privileges = both.iter().collect();
        let actions = ActionSet::of(&[Action::Find, Action::Insert]);
        let on = |db, collection| Resource::Collection { db, collection };
        assert!(privileges.allows_all(on("d", "c"), actions));
        assert!(!privileges.allows_all(on("d", "e"), actions));
        assert!(!privileges.allows_all(on("e", "c"), actions));
        assert!(Privileges::all().allows_all(on("local", "system.c"), ActionSet::ANY));
        assert!(Privileges::all().on_all_databases(Action::Find));
    }
}
