//! All roles that a set of roles contains, with what they grant and restrict.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use super::RoleDefinition;
use super::built_in::{built_in_privileges, is_built_in};
use crate::name::RoleName;
use crate::privilege::Privilege;
use crate::restriction::Restrictions;

/// The resolution of a set of roles, one definition after another: the caller looks each one up
/// wherever it is stored. Every role is looked up once, so roles that contain each other do no
/// harm.
#[derive(Debug)]
pub struct RoleClosure {
    seen: FxHashSet<RoleName>,
    /// Not looked up yet. The first one is being looked up.
    pending: VecDeque<RoleName>,
    resolved: ResolvedRoles,
}

/// What a set of roles amounts to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedRoles {
    /// Those that exist, the given ones and those within them: a role comes after one that contains
    /// it.
    pub roles: Vec<RoleName>,
    /// Of all of them; each resource comes once.
    pub privileges: Vec<Privilege>,
    /// Of each role that has any. All of them must admit a client.
    pub restrictions: Vec<Restrictions>,
    /// Roles that do not exist. They grant nothing.
    pub unknown: Vec<RoleName>,
}

impl RoleClosure {
    /// Starts with these roles.
    pub fn new(roles: impl IntoIterator<Item = RoleName>) -> RoleClosure {
        let mut closure = RoleClosure {
            seen: FxHashSet::default(),
            pending: VecDeque::new(),
            resolved: ResolvedRoles::default(),
        };
        closure.add(roles);
        closure
    }

    fn add(&mut self, roles: impl IntoIterator<Item = RoleName>) {
        for role in roles {
            if self.seen.insert(role.clone()) {
                self.pending.push_back(role);
            }
        }
    }

    /// The role whose definition is to be looked up next, and passed to `define`. Built-in roles
    /// need none. `None` when all are known.
    pub fn next_undefined(&mut self) -> Option<&RoleName> {
        while let Some(role) = self.pending.front()
            && let Some(privileges) = built_in_privileges(role)
        {
            self.resolved.privileges.extend(privileges);
            let role = self.pending.pop_front().expect("the role at the front");
            self.resolved.roles.push(role);
        }
        self.pending.front()
    }

    /// Takes the definition of the role that `next_undefined` gave: `None` if there is none.
    ///
    /// # Panics
    /// If it is the definition of another role.
    pub fn define(&mut self, definition: Option<RoleDefinition>) {
        let role = self.pending.pop_front().expect("a role that is looked up");
        assert!(!is_built_in(&role), "built-in roles have no definition");
        let Some(definition) = definition else {
            self.resolved.unknown.push(role);
            return;
        };
        assert_eq!(
            definition.name, role,
            "the definition of the role looked up"
        );
        self.resolved.roles.push(role);
        self.resolved.privileges.extend(definition.privileges);
        if !definition.restrictions.is_empty() {
            self.resolved.restrictions.push(definition.restrictions);
        }
        self.add(definition.roles);
    }

    /// What the roles amount to.
    ///
    /// # Panics
    /// If a definition is still to be looked up.
    pub fn finish(mut self) -> ResolvedRoles {
        assert!(self.next_undefined().is_none(), "every role is looked up");
        self.resolved.privileges = Privilege::merged(self.resolved.privileges);
        self.resolved
    }
}

impl ResolvedRoles {
    /// Resolves roles by definitions that are at hand.
    pub fn of(
        roles: impl IntoIterator<Item = RoleName>,
        mut lookup: impl FnMut(&RoleName) -> Option<RoleDefinition>,
    ) -> ResolvedRoles {
        let mut closure = RoleClosure::new(roles);
        while let Some(role) = closure.next_undefined() {
            let definition = lookup(role);
            closure.define(definition);
        }
        closure.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use pinion_bson::rawbson;
    use pinion_bson::testing::Rng;

    use super::*;
    use crate::action::{Action, ActionSet};
    use crate::resource::ResourcePattern;

    type Graph = BTreeMap<RoleName, RoleDefinition>;

    fn name(role: &str) -> RoleName {
        RoleName::new(role, "d")
    }

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        let define = |(role, contained): &(&str, &[&str])| {
            let mut definition = RoleDefinition::new(name(role));
            definition.roles = contained.iter().copied().map(name).collect();
            let resource = ResourcePattern::Database((*role).to_owned());
            let find = ActionSet::of(&[Action::Find]);
            definition.privileges = vec![Privilege::new(resource, find)];
            (name(role), definition)
        };
        edges.iter().map(define).collect()
    }

    fn resolve(graph: &Graph, roles: &[&str]) -> ResolvedRoles {
        let roles = roles.iter().copied().map(name);
        ResolvedRoles::of(roles, |role| graph.get(role).cloned())
    }

    fn names(roles: &[RoleName]) -> Vec<&str> {
        roles.iter().map(|role| &*role.role).collect()
    }

    #[test]
    fn roles_are_followed() {
        let graph = graph(&[
            ("a", &["b", "c"]),
            ("b", &["d", "gone"]),
            ("c", &["d", "read"]),
            ("d", &[]),
            ("self", &["self"]),
            ("ping", &["pong"]),
            ("pong", &["ping", "d"]),
        ]);
        let check = |roles: &[&str], expected: &[&str], unknown: &[&str]| {
            let resolved = resolve(&graph, roles);
            assert_eq!(names(&resolved.roles), expected, "{roles:?}");
            assert_eq!(names(&resolved.unknown), unknown, "{roles:?}");
        };
        check(&[], &[], &[]);
        check(&["d", "d"], &["d"], &[]);
        check(&["a"], &["a", "b", "c", "d", "read"], &["gone"]);
        check(&["c", "a"], &["c", "a", "d", "read", "b"], &["gone"]);
        check(&["self"], &["self"], &[]);
        check(&["ping"], &["ping", "pong", "d"], &[]);
        check(&["nothing", "readWrite"], &["readWrite"], &["nothing"]);
    }

    #[test]
    fn privileges_are_those_of_all_roles() {
        let graph = graph(&[("a", &["b", "read"]), ("b", &["gone"])]);
        let resolved = resolve(&graph, &["a", "b"]);
        let resources: Vec<ResourcePattern> = resolved
            .privileges
            .iter()
            .map(|one| one.resource.clone())
            .collect();
        let mut expected: Vec<ResourcePattern> = ["a", "b", "d"]
            .map(|db| ResourcePattern::Database(db.into()))
            .into();
        let collection = "system.js".into();
        expected.push(ResourcePattern::Collection {
            db: "d".into(),
            collection,
        });
        assert_eq!(resources, expected);
    }

    #[test]
    fn restrictions_are_those_of_all_roles() {
        let mut graph = graph(&[("a", &["b", "c"]), ("b", &[]), ("c", &[])]);
        let pinion_bson::RawBson::Array(array) = rawbson!([{ "clientSource": ["10.0.0.1"] }])
        else {
            panic!("an array")
        };
        let restrictions = Restrictions::parse(&array, "restrictions").unwrap();
        for role in ["a", "c"] {
            let definition = graph.get_mut(&name(role)).unwrap();
            definition.restrictions = restrictions.clone();
        }
        assert_eq!(resolve(&graph, &["a"]).restrictions.len(), 2);
        assert!(resolve(&graph, &["b"]).restrictions.is_empty());
    }

    /// On any graph, the roles are those that can be reached, each once.
    #[test]
    fn roles_are_those_that_can_be_reached() {
        const ROLES: &[&str] = &["a", "b", "c", "d", "e", "f", "g"];
        let mut rng = Rng::new(3);
        for _ in 0..300 {
            let edges: Vec<(&str, Vec<&str>)> = ROLES
                .iter()
                .map(|role| (*role, (0..rng.below(3)).map(|_| rng.pick(ROLES)).collect()))
                .collect();
            let edges: Vec<(&str, &[&str])> = edges
                .iter()
                .map(|(role, contained)| (*role, &**contained))
                .collect();
            let graph = graph(&edges);
            let start = rng.pick(ROLES);
            let mut reached = BTreeSet::from([start]);
            loop {
                let before = reached.len();
                for (role, contained) in &edges {
                    if reached.contains(role) {
                        reached.extend(contained.iter().copied());
                    }
                }
                if reached.len() == before {
                    break;
                }
            }
            let resolved = resolve(&graph, &[start]);
            let mut roles = names(&resolved.roles);
            roles.sort_unstable();
            assert_eq!(roles, Vec::from_iter(reached));
        }
    }
}
