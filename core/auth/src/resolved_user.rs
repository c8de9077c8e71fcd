//! A user with all that its roles amount to: what a connection that is logged in as one goes by.

use std::net::IpAddr;

use crate::name::{RoleName, UserName};
use crate::privilege::{Privilege, Privileges};
use crate::role::ResolvedRoles;
use crate::scram::{Hash, StoredCredentials};
use crate::user::{UserDefinition, UserId};

/// A user as a directory of users knew it.
#[derive(Clone, Debug)]
pub struct ResolvedUser {
    pub definition: UserDefinition,
    pub resolved: ResolvedRoles,
    /// Those of `resolved`, in the form that is asked.
    pub privileges: Privileges,
    /// The generation of the directory that this is of: in a later one the user may be another.
    pub generation: u64,
}

impl ResolvedUser {
    pub fn new(
        definition: UserDefinition,
        resolved: ResolvedRoles,
        generation: u64,
    ) -> ResolvedUser {
        let privileges = resolved.privileges.iter().collect();
        ResolvedUser {
            definition,
            resolved,
            privileges,
            generation,
        }
    }

    pub fn name(&self) -> &UserName {
        &self.definition.name
    }

    pub fn id(&self) -> Option<UserId> {
        self.definition.id
    }

    /// All roles of the user, those within its roles among them.
    pub fn all_roles(&self) -> &[RoleName] {
        &self.resolved.roles
    }

    /// The privileges in the order in which they are shown.
    pub fn shown_privileges(&self) -> &[Privilege] {
        &self.resolved.privileges
    }

    pub fn credentials(&self, hash: Hash) -> Option<&StoredCredentials> {
        self.definition.credentials.of(hash)
    }

    /// Whether the restrictions of the user and of all of its roles admit a client.
    pub fn admits(&self, client: Option<IpAddr>, server: Option<IpAddr>) -> bool {
        let of_roles = self.resolved.restrictions.iter();
        of_roles
            .chain([&self.definition.restrictions])
            .all(|restrictions| restrictions.admits(client, server))
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawBson, rawbson};

    use super::*;
    use crate::restriction::Restrictions;
    use crate::user::Credentials;

    fn restrictions(value: RawBson) -> Restrictions {
        let RawBson::Array(array) = value else {
            panic!("an array")
        };
        Restrictions::parse(&array, "authenticationRestrictions").unwrap()
    }

    /// The user and each of its roles have to admit a client.
    #[test]
    fn all_restrictions_hold() {
        let definition = UserDefinition {
            name: UserName::new("u", "d"),
            id: None,
            credentials: Credentials::External,
            roles: Vec::new(),
            restrictions: restrictions(rawbson!([{ "clientSource": ["10.0.0.0/8"] }])),
            custom_data: None,
        };
        let resolved = ResolvedRoles {
            restrictions: vec![restrictions(rawbson!([{ "serverAddress": ["10.0.0.1"] }]))],
            ..ResolvedRoles::default()
        };
        let user = ResolvedUser::new(definition, resolved, 1);
        let check = |client: &str, server: &str, expected: bool| {
            let (client, server) = (client.parse().ok(), server.parse().ok());
            assert_eq!(user.admits(client, server), expected);
        };
        check("10.1.1.1", "10.0.0.1", true);
        check("11.1.1.1", "10.0.0.1", false);
        check("10.1.1.1", "10.0.0.2", false);
        check("socket", "10.0.0.1", false);
    }
}
